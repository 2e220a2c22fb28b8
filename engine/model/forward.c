/*
 * The forward graph, read from top to bottom: one pass over a mixed batch of decode tokens and prefill
 * chunks. What differs between models is read from the description.
 *
 * A row's numbers depend on its own token, its position and the pages and state of its own sequence, never on
 * what else is in the batch: every operation below is row by row, and the kernels keep one order of rounding
 * whatever the shape (kernels/kernels.h). The last layer writes KV and state for all rows, but goes on only
 * for the rows of which logits are wanted.
 *
 * Threads: the engine's thread; the kernels fan out by themselves.
 */
#include "engine/model/model_internal.h"
#include <math.h>
#include <string.h>

int model_matmul(struct kn_backend *b, struct kn_matrix *const *parts, size_t n_parts, const float *bias,
                 const float *x, size_t ldx, float *y, size_t ldy, size_t n, bool accumulate)
{
    const struct kn_matmul_args a = {.parts = (const struct kn_matrix *const *)parts,
                                     .n_parts = n_parts,
                                     .bias = bias,
                                     .x = x,
                                     .ldx = ldx,
                                     .y = y,
                                     .ldy = ldy,
                                     .n = n,
                                     .accumulate = accumulate};
    return kn_matmul(b, &a);
}

void model_announce(struct kn_backend *b, struct kn_matrix *const *parts, size_t n_parts)
{
    kn_matmul_announce(b, (const struct kn_matrix *const *)parts, n_parts);
}

void model_announce_layer(struct eng_model *m, size_t layer)
{
    const struct eng_model_desc *d = &m->desc;
    if (layer == d->n_layers)
        model_announce(m->backend, &m->weights.head, 1);
    else
        model_announce(m->backend, m->weights.layers[layer].in, model_parts_in(d, layer));
}

/* Move the rows that want logits to the front: they ascend, so no row is overwritten before it is read. */
static void keep_last_rows(const struct model_workspace *w, const struct model_batch *b, float *a,
                           size_t columns)
{
    size_t to = 0;
    for (size_t i = 0; i < b->n_last; i++)
        for (uint32_t k = 0; k < w->last[i].n; k++, to++)
            if (to != w->last[i].row0 + k)
                memcpy(a + to * columns, a + (w->last[i].row0 + k) * columns, columns * sizeof *a);
}

/* x += rms(normed) * norm; normed is what a sub-layer gave. */
static void add_normed(struct eng_model *m, const float *norm, size_t rows)
{
    const size_t hidden = m->desc.hidden;
    float *const normed = m->work.normed;
    kn_rmsnorm(m->backend, normed, hidden, norm, m->desc.rms_eps, normed, hidden, rows, 1, hidden);
    kn_add(m->backend, m->work.x, hidden, normed, hidden, rows, hidden);
}

static int forward(struct eng_model *m, const struct model_batch *b)
{
    const struct eng_model_desc *d = &m->desc;
    struct kn_backend *kb = m->backend;
    const struct model_workspace *w = &m->work;
    const size_t hidden = d->hidden;
    float *const x = w->x;           /* (rows, hidden) */
    float *const normed = w->normed; /* (rows, hidden) */
    size_t rows = b->rows;
    int rc;

    kn_gather_rows(kb, m->weights.embedding, w->ids, rows, x);
    if (d->embedding_scaled)
        kn_scale(kb, x, hidden, sqrtf((float)hidden), rows, hidden);
    for (uint32_t l = 0; l < d->n_layers; l++) {
        const struct model_layer *y = &m->weights.layers[l];
        const size_t head_cols = kn_matrix_cols(y->o);

        kn_rmsnorm(kb, x, hidden, y->attn_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
        rc = d->layer_kind[l] == ENG_LAYER_RECURRENT ? model_delta(m, b, l) : model_attention(m, b, l);
        if (rc != KN_OK)
            return rc;
        if (l + 1 == d->n_layers) { /* from here on only the rows whose logits are wanted */
            if (b->n_logits == 0)
                return KN_OK;
            keep_last_rows(w, b, w->heads, head_cols);
            keep_last_rows(w, b, x, hidden);
            rows = b->n_logits;
        }
        if (d->n_experts == 0)
            model_announce(kb, y->gate_up, 2);
        rc = model_matmul(kb, &y->o, 1, NULL, w->heads, head_cols, d->post_norms ? normed : x, hidden, rows,
                          !d->post_norms);
        if (rc != KN_OK)
            return rc;
        if (d->post_norms)
            add_normed(m, y->post_attn_norm, rows);

        kn_rmsnorm(kb, x, hidden, y->ffn_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
        if ((rc = model_feed_forward(m, y, rows)) != KN_OK)
            return rc;
        if (d->post_norms)
            add_normed(m, y->post_ffn_norm, rows);
    }
    kn_rmsnorm(kb, x, hidden, m->weights.output_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
    return model_matmul(kb, &m->weights.head, 1, NULL, normed, hidden, w->logits, d->n_vocab, rows, false);
}

int eng_forward(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs, const float **logits)
{
    struct model_batch b;
    *logits = NULL;
    int rc = model_batch_lay_out(m, seqs, n_seqs, &b);
    if (rc != ENG_OK || b.rows == 0)
        return rc;
    rc = forward(m, &b);
    if (rc != KN_OK)
        return rc == KN_ENOMEM ? ENG_ENOMEM : ENG_EINVAL;
    *logits = m->work.logits;
    return ENG_OK;
}
