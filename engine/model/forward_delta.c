/*
 * A recurrent layer (Gated DeltaNet): projections, short convolution and delta rule, gated norm. The states
 * that the step's captures ask for are written on the way.
 *
 * Threads: the engine's thread.
 */
#include "engine/model/model_internal.h"

/* Where this layer's state of each sequence is, and where its part of each capture goes. */
static void place_sequences(const struct eng_model *m, const struct model_batch *b, uint32_t index)
{
    const struct model_workspace *w = &m->work;
    const uint64_t offset = index * kn_delta_state_bytes(&m->delta);
    size_t n = 0;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct eng_step_seq *s = &b->steps[i];
        w->delta[i] = (struct kn_delta_seq){.live = (uint8_t *)s->state + index * m->live_stride,
                                            .pos0 = s->pos0,
                                            .n = s->n,
                                            .row0 = w->seqs[i].row0,
                                            .captures = w->capture + n,
                                            .n_captures = s->n_captures};
        for (uint32_t c = 0; c < s->n_captures; c++)
            w->capture[n++] = (struct kn_delta_capture){
                .position = s->captures[c].position, .offset = offset, .to = s->captures[c].to};
    }
}

int model_delta(struct eng_model *m, const struct model_batch *b, uint32_t layer)
{
    const struct eng_model_desc *d = &m->desc;
    const struct model_layer *y = &m->weights.layers[layer];
    const struct model_workspace *w = &m->work;
    struct kn_backend *kb = m->backend;
    const size_t dim = d->delta.dim, v_heads = d->delta.v_heads, inner = v_heads * dim;
    const size_t columns = kn_delta_columns(&m->delta), ld = columns + inner + 2 * v_heads;
    const float *const qkv = w->in;                               /* (rows, columns) in rows of ld */
    const float *const z = w->in + columns;                       /* (rows, inner) in rows of ld */
    const float *const beta = w->in + columns + inner;            /* (rows, v_heads) in rows of ld */
    const float *const alpha = w->in + columns + inner + v_heads; /* (rows, v_heads) in rows of ld */
    const struct kn_delta_weights weights = {.filter = y->filter, .a = y->a, .dt_bias = y->dt_bias};
    int rc;

    model_announce(kb, &y->o, 1);
    rc = model_matmul(kb, y->in, model_parts_in(d, layer), NULL, w->normed, d->hidden, w->in, ld, b->rows,
                      false);
    if (rc != KN_OK)
        return rc;
    place_sequences(m, b, m->place[layer].index);
    rc =
        kn_delta(kb, &m->delta, &weights, w->delta, b->n_seqs, qkv, ld, beta, ld, alpha, ld, w->heads, inner);
    if (rc != KN_OK)
        return rc;
    kn_rmsnorm_gated(kb, w->heads, inner, y->delta_norm, d->rms_eps, z, ld, w->heads, inner, b->rows, v_heads,
                     dim);
    return KN_OK;
}
