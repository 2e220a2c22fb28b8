/*
 * A model's life: open describes, packs and names it; the accessors tell; close gives everything back.
 *
 * Threads: open and close on the engine's thread; what the accessors give never changes in between.
 */
#include "engine/model/model_internal.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Of the graph in forward.c: raise it with any change that can move a bit of K, V or a logit. */
#define GRAPH_VERSION 2

static uint32_t float_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* First half: the weights. Second half: everything else that the bits of KV and state depend on, in numbers
 * written little-endian one after another. */
static void make_fingerprint(struct eng_model *m)
{
    const struct eng_model_desc *d = &m->desc;
    const uint32_t numbers[] = {GRAPH_VERSION,
                                KN_NUMERICS_VERSION,
                                KN_PAGE_TOKENS,
                                KN_ATTN_GROUP,
                                KN_DELTA_BLOCK,
                                d->n_layers,
                                d->hidden,
                                d->ffn,
                                d->n_heads,
                                d->n_kv_heads,
                                d->head_dim,
                                d->rot_dims,
                                d->n_vocab,
                                d->rope_interleaved,
                                d->qkv_bias,
                                d->qk_norm,
                                d->tied_head,
                                d->attention_gate,
                                d->post_norms,
                                d->gelu,
                                d->embedding_scaled,
                                float_bits(d->rms_eps),
                                float_bits(d->rope_theta),
                                d->window,
                                float_bits(d->rope_theta_window),
                                d->delta.k_heads,
                                d->delta.v_heads,
                                d->delta.dim,
                                d->delta.conv,
                                d->delta.tiled,
                                float_bits(m->delta.eps),
                                d->n_experts,
                                d->n_experts_used,
                                d->expert_ffn,
                                d->shared_expert_ffn,
                                m->state.grid,
                                m->state.group_layers,
                                m->state.window_groups,
                                (uint32_t)m->kv.dtype};
    uint8_t bytes[sizeof d->architecture + ENG_LAYERS_MAX + sizeof numbers] = {0};
    uint8_t *p = bytes;
    memcpy(p, d->architecture, sizeof d->architecture);
    p += sizeof d->architecture;
    memcpy(p, d->layer_kind, d->n_layers);
    p += ENG_LAYERS_MAX;
    for (size_t i = 0; i < sizeof numbers; i++)
        p[i] = (uint8_t)(numbers[i / 4] >> (8 * (i % 4)));
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, sizeof bytes));
    memcpy(m->fingerprint, m->weights.digest, 16);
    memcpy(m->fingerprint + 16, &canonical, 16);
}

int eng_model_open(const struct fmt_gguf *g, const struct eng_model_options *o, struct eng_model **out,
                   char *err, size_t err_len)
{
    *out = NULL;
    struct model_tensors t = {0};
    struct eng_model *m = calloc(1, sizeof *m);
    if (!m)
        return model_fail(err, err_len, ENG_ENOMEM, "out of memory");
    int rc = model_describe(g, &m->desc, &t, err, err_len);
    if (rc != ENG_OK)
        goto out;
    m->context = o->context ? o->context : m->desc.context_trained;
    m->kv = (struct kn_kv_layout){.dtype = o->kv_dtype,
                                  .layers = m->desc.n_full,
                                  .kv_heads = m->desc.n_kv_heads,
                                  .head_dim = m->desc.head_dim};
    if ((rc = model_state_lay_out(m)) != ENG_OK) {
        model_fail(err, err_len, rc, "out of memory");
        goto out;
    }
    int kn = kn_backend_open(o->isa, o->threads, &m->backend);
    if (kn != KN_OK) {
        rc = model_fail(err, err_len, kn == KN_ENOMEM ? ENG_ENOMEM : ENG_EUNSUPPORTED,
                        "instruction set %s: %s", kn_isa_name(o->isa), kn_strerror(kn));
        goto out;
    }
    if (kn_rope_table_new(m->context, m->desc.rot_dims, m->desc.rope_theta, &m->rope) != KN_OK ||
        (m->desc.n_window > 0 && kn_rope_table_new(m->context, m->desc.rot_dims, m->desc.rope_theta_window,
                                                   &m->rope_window) != KN_OK)) {
        rc = model_fail(err, err_len, ENG_ENOMEM, "out of memory for the rotary table of %u positions",
                        m->context);
        goto out;
    }
    rc = model_weights_load(m->backend, &m->desc, &t, o, &m->weights, err, err_len);
    if (rc != ENG_OK)
        goto out;
    make_fingerprint(m);
    *out = m;
    m = NULL;
out:
    free(t.layers);
    eng_model_close(m);
    return rc;
}

void eng_model_close(struct eng_model *m)
{
    if (!m)
        return;
    model_workspace_free(&m->work);
    model_weights_free(&m->weights, &m->desc);
    if (m->rope)
        kn_rope_table_free(m->rope);
    if (m->rope_window)
        kn_rope_table_free(m->rope_window);
    free(m->segments);
    if (m->backend)
        kn_backend_close(m->backend);
    free(m);
}

const struct eng_model_desc *eng_model_desc(const struct eng_model *m)
{
    return &m->desc;
}

const struct kn_kv_layout *eng_model_kv(const struct eng_model *m)
{
    return &m->kv;
}

struct kn_backend *eng_model_backend(const struct eng_model *m)
{
    return m->backend;
}

uint32_t eng_model_context(const struct eng_model *m)
{
    return m->context;
}

void eng_model_fingerprint(const struct eng_model *m, uint8_t out[32])
{
    memcpy(out, m->fingerprint, 32);
}
