/*
 * A layer's attention, over all positions or over a window: projections, head norms, rotary embedding, KV
 * into its pages, scores, and the gate where the model has one.
 *
 * Threads: the engine's thread.
 */
#include "engine/model/model_internal.h"
#include <math.h>

int model_attention(struct eng_model *m, const struct model_batch *b, uint32_t layer)
{
    const struct eng_model_desc *d = &m->desc;
    const struct model_layer *y = &m->weights.layers[layer];
    const struct model_workspace *w = &m->work;
    const struct model_place at = m->place[layer];
    struct kn_backend *kb = m->backend;
    const size_t head_dim = d->head_dim, hidden = d->hidden;
    const size_t q_cols = d->n_heads * head_dim, kv_cols = d->n_kv_heads * head_dim;
    const size_t ld = q_cols + 2 * kv_cols + (d->attention_gate ? q_cols : 0);
    float *const q = w->in;                            /* (rows, q_cols) in rows of ld */
    float *const k = w->in + q_cols;                   /* (rows, kv_cols) in rows of ld */
    float *const v = w->in + q_cols + kv_cols;         /* (rows, kv_cols) in rows of ld */
    float *const gate = w->in + q_cols + 2 * kv_cols;  /* (rows, q_cols) in rows of ld */
    const float scale = 1.0F / sqrtf((float)head_dim); /* sqrtf is exact to the last bit everywhere */
    const bool windowed = d->layer_kind[layer] == ENG_LAYER_WINDOW, last = layer + 1 == d->n_layers;
    const struct kn_attn_seq *seqs = w->seqs + at.table * b->n_seqs;
    int rc;

    model_announce(kb, &y->o, 1);
    rc = model_matmul(kb, y->in, model_parts_in(d, layer), y->qkv_bias, w->normed, hidden, w->in, ld, b->rows,
                      false);
    if (rc != KN_OK)
        return rc;
    if (d->qk_norm) {
        kn_rmsnorm(kb, q, ld, y->q_norm, d->rms_eps, q, ld, b->rows, d->n_heads, head_dim);
        kn_rmsnorm(kb, k, ld, y->k_norm, d->rms_eps, k, ld, b->rows, d->n_kv_heads, head_dim);
    }
    /* q and k heads lie side by side: one call turns both. */
    kn_rope(kb, windowed ? m->rope_window : m->rope, d->rope_interleaved, q, ld, w->pos, b->rows,
            d->n_heads + d->n_kv_heads, head_dim);
    kn_kv_put(kb, &m->kv, at.index, seqs, b->n_seqs, k, ld, v, ld);

    const size_t n_seqs = last ? b->n_last : b->n_seqs;
    if (last)
        seqs = w->last;
    if (n_seqs == 0)
        return KN_OK;
    rc = kn_attention_window(kb, &m->kv, at.index, seqs, n_seqs, d->n_heads, windowed ? d->window : 0, scale,
                             q, ld, w->heads, q_cols);
    if (rc != KN_OK || !d->attention_gate)
        return rc;
    if (!last) {
        kn_sigmoid_mul(kb, w->heads, q_cols, gate, ld, false, b->rows, d->n_heads, head_dim);
        return KN_OK;
    }
    for (size_t i = 0; i < n_seqs; i++)
        kn_sigmoid_mul(kb, w->heads + seqs[i].row0 * q_cols, q_cols, gate + seqs[i].row0 * ld, ld, false,
                       seqs[i].n, d->n_heads, head_dim);
    return KN_OK;
}
