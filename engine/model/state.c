/*
 * What a resumed sequence needs beside its full pages, as numbers; and the way of recurrent state between a
 * sequence's live memory and a checkpoint's blocks.
 *
 * A checkpoint's bytes are the recurrent layers' one after another, each as the kernels write it (S, then the
 * convolution's taps). Live memory holds the same of each layer in front, and behind it what the open block
 * has so far; layers are live_stride apart.
 *
 * Threads: the engine's thread; eng_model_state_of is pure.
 */
#include "engine/model/model_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define L2_EPS 1e-6F /* of the norms of q and k; a constant of the architecture */

struct kn_delta_shape model_delta_shape(const struct eng_model_desc *d, enum kn_kv_dtype kv_dtype)
{
    return (struct kn_delta_shape){.k_heads = d->delta.k_heads,
                                   .v_heads = d->delta.v_heads,
                                   .dim = d->delta.dim,
                                   .conv = d->delta.conv,
                                   .tiled = d->delta.tiled,
                                   .taps = kv_dtype,
                                   .eps = L2_EPS};
}

void eng_model_state_of(const struct eng_model_desc *d, enum kn_kv_dtype kv_dtype, struct eng_state_desc *out)
{
    *out = (struct eng_state_desc){.grid = KN_PAGE_TOKENS,
                                   .group_layers = d->n_full,
                                   .window = d->window,
                                   .window_groups = (d->n_window + d->n_full - 1) / d->n_full};
    if (d->n_recurrent > 0) {
        const struct kn_delta_shape s = model_delta_shape(d, kv_dtype);
        out->grid = KN_DELTA_BLOCK;
        out->state_bytes = d->n_recurrent * kn_delta_state_bytes(&s);
        out->live_bytes = d->n_recurrent * kn_delta_live_bytes(&s);
    } else if (d->n_window > 0) {
        /* Each window layer needs window - 1 positions of the one below, exactly. */
        uint64_t tokens = (uint64_t)d->n_window * (d->window - 1);
        out->replay_tokens = tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
    }
}

static int list_segments(struct eng_model *m)
{
    const struct eng_model_desc *d = &m->desc;
    m->state.n_segments = 2 * d->n_recurrent;
    m->segments = calloc(m->state.n_segments, sizeof *m->segments);
    if (!m->segments)
        return ENG_ENOMEM;
    const uint64_t bytes = kn_delta_state_bytes(&m->delta),
                   s_bytes = (uint64_t)d->delta.v_heads * d->delta.dim * d->delta.dim * sizeof(float);
    struct eng_state_segment *g = m->segments;
    for (uint32_t l = 0; l < d->n_layers; l++) {
        if (d->layer_kind[l] != ENG_LAYER_RECURRENT)
            continue;
        const uint64_t offset = m->place[l].index * bytes;
        *g++ = (struct eng_state_segment){"delta", l, offset, s_bytes};
        *g++ = (struct eng_state_segment){"conv", l, offset + s_bytes, bytes - s_bytes};
    }
    m->state.segments = m->segments;
    return ENG_OK;
}

int model_state_lay_out(struct eng_model *m)
{
    const struct eng_model_desc *d = &m->desc;
    eng_model_state_of(d, m->kv.dtype, &m->state);
    uint32_t n[3] = {0};
    for (uint32_t l = 0; l < d->n_layers; l++) {
        const uint32_t kind = d->layer_kind[l], k = n[kind]++, group = m->state.group_layers;
        m->place[l] = kind == ENG_LAYER_WINDOW ? (struct model_place){1 + k / group, k % group}
                                               : (struct model_place){0, k};
    }
    if (d->n_recurrent == 0)
        return ENG_OK;
    m->delta = model_delta_shape(d, m->kv.dtype);
    m->live_stride = kn_delta_live_bytes(&m->delta);
    return list_segments(m);
}

const struct eng_state_desc *eng_model_state(const struct eng_model *m)
{
    return &m->state;
}

/* ---- live state ---------------------------------------------------------------------------------------- */

/* Bytes that a layer's live memory has in common with a checkpoint: at the edge of a block the rest of it
 * says nothing. */
static uint64_t layer_bytes(const struct eng_model *m)
{
    return m->desc.n_recurrent > 0 ? kn_delta_state_bytes(&m->delta) : 0;
}

void eng_state_start(struct eng_model *m, void *live)
{
    for (uint32_t i = 0; i < m->desc.n_recurrent; i++)
        memset((uint8_t *)live + i * m->live_stride, 0, layer_bytes(m));
}

void eng_state_load(struct eng_model *m, void *live, const struct kn_blocks *from)
{
    const uint64_t bytes = layer_bytes(m);
    for (uint32_t i = 0; i < m->desc.n_recurrent; i++)
        kn_blocks_read(m->backend, from, i * bytes, (uint8_t *)live + i * m->live_stride, bytes);
}

void eng_state_save(struct eng_model *m, const void *live, const struct kn_blocks *to)
{
    const uint64_t bytes = layer_bytes(m);
    for (uint32_t i = 0; i < m->desc.n_recurrent; i++)
        kn_blocks_write(m->backend, to, i * bytes, (const uint8_t *)live + i * m->live_stride, bytes);
}
