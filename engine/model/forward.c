/*
 * The forward graph, read from top to bottom: one pass over a mixed batch of decode tokens and prefill
 * chunks.
 *
 * A row's numbers depend on its own token, its position and the KV pages of its own sequence, never on what
 * else is in the batch: every operation below is row by row, and the kernels keep one order of rounding
 * whatever the shape (kernels/kernels.h). The last layer writes KV for all rows, but goes on only for the
 * rows of which logits are wanted.
 *
 * Threads: the engine's thread; the kernels fan out by themselves.
 */
#include "engine/model/model_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- workspace ----------------------------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)

static int grow(void *pointer, size_t n, size_t columns, size_t element)
{
    void **p = pointer;
    size_t bytes;
    if (__builtin_mul_overflow(n, columns, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
        __builtin_add_overflow(bytes, HUGE_PAGE, &bytes))
        return ENG_ENOMEM;
    free(*p);
    size_t unit = bytes - HUGE_PAGE >= HUGE_PAGE ? HUGE_PAGE : 64;
    bytes = (bytes - HUGE_PAGE + unit - 1) / unit * unit;
    *p = aligned_alloc(unit, bytes ? bytes : unit);
    if (!*p)
        return ENG_ENOMEM;
    if (unit == HUGE_PAGE)
        madvise(*p, bytes, MADV_HUGEPAGE); /* only a hint: fewer TLB misses in long prefills */
    return ENG_OK;
}

/* A quarter more than asked, so that a batch that grows by a row a step does not grow memory each time. */
static size_t roomy(size_t n)
{
    return (n + n / 4 + 15) / 16 * 16;
}

static int workspace_reserve(struct model_workspace *s, const struct eng_model_desc *d, size_t rows,
                             size_t n_seqs, size_t n_logits)
{
    size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    if (rows > s->rows_capacity) {
        size_t n = roomy(rows);
        s->rows_capacity = 0;
        if (grow(&s->x, n, d->hidden, sizeof(float)) || grow(&s->normed, n, d->hidden, sizeof(float)) ||
            grow(&s->qkv, n, q + 2 * kv, sizeof(float)) || grow(&s->heads, n, q, sizeof(float)) ||
            grow(&s->gu, n, 2 * (size_t)d->ffn, sizeof(float)) || grow(&s->act, n, d->ffn, sizeof(float)) ||
            grow(&s->ids, n, 1, sizeof(uint32_t)) || grow(&s->pos, n, 1, sizeof(uint32_t)))
            return ENG_ENOMEM;
        s->rows_capacity = n;
    }
    if (n_seqs > s->seqs_capacity) {
        size_t n = roomy(n_seqs);
        s->seqs_capacity = 0;
        if (grow(&s->seqs, n, 1, sizeof *s->seqs) || grow(&s->last, n, 1, sizeof *s->last))
            return ENG_ENOMEM;
        s->seqs_capacity = n;
    }
    if (n_logits > s->logits_capacity) {
        s->logits_capacity = 0;
        if (grow(&s->logits, n_logits, d->n_vocab, sizeof(float)))
            return ENG_ENOMEM;
        s->logits_capacity = n_logits;
    }
    return ENG_OK;
}

void model_workspace_free(struct model_workspace *s)
{
    void *all[] = {s->x,   s->normed, s->qkv,    s->heads, s->gu,  s->act,
                   s->ids, s->pos,    s->logits, s->seqs,  s->last};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    memset(s, 0, sizeof *s);
}

/* ---- the batch ----------------------------------------------------------------------------------------- */

struct batch {
    size_t rows;     /* of all sequences, one after another */
    size_t n_seqs;   /* in work.seqs: all rows */
    size_t n_last;   /* in work.last: sequences that want logits, with just those rows */
    size_t n_logits; /* rows in work.last */
};

static int batch_lay_out(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs,
                         struct batch *out)
{
    struct batch b = {.n_seqs = n_seqs};
    for (size_t i = 0; i < n_seqs; i++) {
        const struct eng_step_seq *s = &seqs[i];
        if (s->n == 0 || s->n_logits > s->n || s->pos0 >= m->context || s->n > m->context - s->pos0)
            return ENG_EINVAL;
        for (uint32_t k = 0; k < s->n; k++)
            if (s->ids[k] >= m->desc.n_vocab)
                return ENG_EINVAL;
        b.rows += s->n;
        b.n_logits += s->n_logits;
    }
    if (b.rows > UINT32_MAX)
        return ENG_EINVAL;
    int rc = workspace_reserve(&m->work, &m->desc, b.rows, n_seqs, b.n_logits);
    if (rc != ENG_OK)
        return rc;
    struct model_workspace *w = &m->work;
    size_t row = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        const struct eng_step_seq *s = &seqs[i];
        w->seqs[i] =
            (struct kn_attn_seq){.pages = s->pages, .pos0 = s->pos0, .n = s->n, .row0 = (uint32_t)row};
        if (s->n_logits > 0) {
            uint32_t skip = s->n - s->n_logits;
            w->last[b.n_last++] = (struct kn_attn_seq){
                .pages = s->pages, .pos0 = s->pos0 + skip, .n = s->n_logits, .row0 = (uint32_t)row + skip};
        }
        memcpy(w->ids + row, s->ids, s->n * sizeof *w->ids);
        for (uint32_t k = 0; k < s->n; k++)
            w->pos[row + k] = s->pos0 + k;
        row += s->n;
    }
    *out = b;
    return ENG_OK;
}

/* Move the rows that want logits to the front: they ascend, so no row is overwritten before it is read. */
static void keep_last_rows(const struct model_workspace *w, const struct batch *b, float *a, size_t columns)
{
    size_t to = 0;
    for (size_t i = 0; i < b->n_last; i++)
        for (uint32_t k = 0; k < w->last[i].n; k++, to++)
            if (to != w->last[i].row0 + k)
                memcpy(a + to * columns, a + (w->last[i].row0 + k) * columns, columns * sizeof *a);
}

/* ---- the graph ----------------------------------------------------------------------------------------- */

static int matmul(struct kn_backend *kb, struct kn_matrix *const *parts, size_t n_parts, const float *bias,
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
    return kn_matmul(kb, &a);
}

static int forward(struct eng_model *m, const struct batch *b)
{
    const struct eng_model_desc *d = &m->desc;
    struct kn_backend *kb = m->backend;
    const struct model_workspace *w = &m->work;
    const size_t hidden = d->hidden, ffn = d->ffn, head_dim = d->head_dim;
    const size_t q_cols = d->n_heads * head_dim, kv_cols = d->n_kv_heads * head_dim;
    const size_t qkv_cols = q_cols + 2 * kv_cols;
    float *const x = w->x;                             /* (rows, hidden) */
    float *const normed = w->normed;                   /* (rows, hidden) */
    float *const q = w->qkv;                           /* (rows, q_cols) in rows of qkv_cols */
    float *const k = w->qkv + q_cols;                  /* (rows, kv_cols) in rows of qkv_cols */
    float *const v = w->qkv + q_cols + kv_cols;        /* (rows, kv_cols) in rows of qkv_cols */
    const float scale = 1.0F / sqrtf((float)head_dim); /* sqrtf is exact to the last bit everywhere */
    size_t rows = b->rows, n_seqs = b->n_seqs;
    const struct kn_attn_seq *seqs = w->seqs;
    int rc;

    kn_gather_rows(kb, m->weights.embedding, w->ids, rows, x);
    for (uint32_t l = 0; l < d->n_layers; l++) {
        const struct model_layer *y = &m->weights.layers[l];

        kn_rmsnorm(kb, x, hidden, y->attn_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
        if ((rc = matmul(kb, y->qkv, 3, y->qkv_bias, normed, hidden, w->qkv, qkv_cols, rows, false)) != KN_OK)
            return rc;
        if (d->qk_norm) {
            kn_rmsnorm(kb, q, qkv_cols, y->q_norm, d->rms_eps, q, qkv_cols, rows, d->n_heads, head_dim);
            kn_rmsnorm(kb, k, qkv_cols, y->k_norm, d->rms_eps, k, qkv_cols, rows, d->n_kv_heads, head_dim);
        }
        /* q and k heads lie side by side: one call turns both. */
        kn_rope(kb, m->rope, d->rope_interleaved, q, qkv_cols, w->pos, rows, d->n_heads + d->n_kv_heads,
                head_dim);
        kn_kv_put(kb, &m->kv, l, seqs, n_seqs, k, qkv_cols, v, qkv_cols);

        bool last = l + 1 == d->n_layers;
        if (last) { /* from here on only the rows whose logits are wanted */
            seqs = w->last;
            n_seqs = b->n_last;
            if (n_seqs == 0)
                return KN_OK;
        }
        if ((rc = kn_attention(kb, &m->kv, l, seqs, n_seqs, d->n_heads, scale, q, qkv_cols, w->heads,
                               q_cols)) != KN_OK)
            return rc;
        if (last) {
            keep_last_rows(w, b, w->heads, q_cols);
            keep_last_rows(w, b, x, hidden);
            rows = b->n_logits;
        }
        if ((rc = matmul(kb, &y->o, 1, NULL, w->heads, q_cols, x, hidden, rows, true)) != KN_OK)
            return rc;

        kn_rmsnorm(kb, x, hidden, y->ffn_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
        if ((rc = matmul(kb, y->gate_up, 2, NULL, normed, hidden, w->gu, 2 * ffn, rows, false)) != KN_OK)
            return rc;
        kn_silu_mul(kb, w->gu, 2 * ffn, w->act, ffn, rows, ffn);
        if ((rc = matmul(kb, &y->down, 1, NULL, w->act, ffn, x, hidden, rows, true)) != KN_OK)
            return rc;
    }
    kn_rmsnorm(kb, x, hidden, m->weights.output_norm, d->rms_eps, normed, hidden, rows, 1, hidden);
    return matmul(kb, &m->weights.head, 1, NULL, normed, hidden, w->logits, d->n_vocab, rows, false);
}

int eng_forward(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs, const float **logits)
{
    struct batch b;
    *logits = NULL;
    int rc = batch_lay_out(m, seqs, n_seqs, &b);
    if (rc != ENG_OK || b.rows == 0)
        return rc;
    rc = forward(m, &b);
    if (rc != KN_OK)
        return rc == KN_ENOMEM ? ENG_ENOMEM : ENG_EINVAL;
    *logits = m->work.logits;
    return ENG_OK;
}
