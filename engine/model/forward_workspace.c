/*
 * The memory of a forward, and the batch laid out in it: rows of all sequences one after another, with the
 * tables that say where each one's pages and state are.
 *
 * Threads: the engine's thread.
 */
#include "engine/model/model_internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int reserve_experts(struct model_workspace *s, const struct eng_model_desc *d, size_t n)
{
    const size_t used = d->n_experts_used;
    if (grow(&s->router, n, d->n_experts, sizeof(float)) || grow(&s->shared_router, n, 1, sizeof(float)) ||
        grow(&s->chosen, n, used, sizeof(uint32_t)) || grow(&s->chosen_weight, n, used, sizeof(float)) ||
        grow(&s->expert_row, n, used, sizeof(uint32_t)) || grow(&s->expert_weight, n, used, sizeof(float)) ||
        grow(&s->expert_at, (size_t)d->n_experts + 1, 1, sizeof(uint32_t)) ||
        grow(&s->taken, n, d->hidden, sizeof(float)) || grow(&s->given, n, d->hidden, sizeof(float)))
        return ENG_ENOMEM;
    return ENG_OK;
}

static int reserve_rows(struct model_workspace *s, const struct eng_model_desc *d, size_t n)
{
    const size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    const size_t inner = (size_t)d->delta.v_heads * d->delta.dim;
    const size_t delta_in =
        2 * (size_t)d->delta.k_heads * d->delta.dim + 2 * inner + 2 * (size_t)d->delta.v_heads;
    const size_t in = larger((d->attention_gate ? 2 : 1) * q + 2 * kv, delta_in);
    const size_t ffn = d->n_experts > 0 ? larger(d->expert_ffn, d->shared_expert_ffn) : d->ffn;
    if (grow(&s->x, n, d->hidden, sizeof(float)) || grow(&s->normed, n, d->hidden, sizeof(float)) ||
        grow(&s->in, n, in, sizeof(float)) || grow(&s->heads, n, larger(q, inner), sizeof(float)) ||
        grow(&s->gu, n, 2 * ffn, sizeof(float)) || grow(&s->act, n, ffn, sizeof(float)) ||
        grow(&s->ids, n, 1, sizeof(uint32_t)) || grow(&s->pos, n, 1, sizeof(uint32_t)))
        return ENG_ENOMEM;
    return d->n_experts > 0 ? reserve_experts(s, d, n) : ENG_OK;
}

/* Each capacity is 0 while its arrays are being replaced, so that a failure leaves nothing half grown. */
static int reserve(struct eng_model *m, size_t rows, size_t n_seqs, size_t n_captures, size_t n_logits)
{
    struct model_workspace *s = &m->work;
    if (rows > s->rows_capacity) {
        size_t n = larger(roomy(rows), EXPERTS_AT_ONCE); /* one row runs so many of its experts at once */
        s->rows_capacity = 0;
        if (reserve_rows(s, &m->desc, n) != ENG_OK)
            return ENG_ENOMEM;
        s->rows_capacity = n;
    }
    if (n_seqs > s->seqs_capacity) {
        size_t n = roomy(n_seqs);
        s->seqs_capacity = 0;
        if (grow(&s->seqs, n, 1 + (size_t)m->state.window_groups, sizeof *s->seqs) ||
            grow(&s->last, n, 1, sizeof *s->last) || grow(&s->delta, n, 1, sizeof *s->delta))
            return ENG_ENOMEM;
        s->seqs_capacity = n;
    }
    if (n_captures > s->captures_capacity) {
        s->captures_capacity = 0;
        if (grow(&s->capture, roomy(n_captures), 1, sizeof *s->capture))
            return ENG_ENOMEM;
        s->captures_capacity = roomy(n_captures);
    }
    if (n_logits > s->logits_capacity) {
        s->logits_capacity = 0;
        if (grow(&s->logits, n_logits, m->desc.n_vocab, sizeof(float)))
            return ENG_ENOMEM;
        s->logits_capacity = n_logits;
    }
    return ENG_OK;
}

void model_workspace_free(struct model_workspace *s)
{
    void *all[] = {s->x,         s->normed,        s->in,     s->heads,  s->gu,
                   s->act,       s->ids,           s->pos,    s->router, s->shared_router,
                   s->chosen,    s->chosen_weight, s->taken,  s->given,  s->expert_row,
                   s->expert_at, s->expert_weight, s->logits, s->seqs,   s->last,
                   s->delta,     s->capture};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    memset(s, 0, sizeof *s);
}

/* ---- the batch ----------------------------------------------------------------------------------------- */

static int check_step(const struct eng_model *m, const struct eng_step_seq *s)
{
    if (s->n == 0 || s->n_logits > s->n || s->pos0 >= m->context || s->n > m->context - s->pos0)
        return ENG_EINVAL;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->ids[k] >= m->desc.n_vocab)
            return ENG_EINVAL;
    bool stateful = m->state.state_bytes > 0;
    if ((m->state.window_groups > 0 && !s->window_pages) || (stateful && !s->state) ||
        (!stateful && s->n_captures > 0))
        return ENG_EINVAL;
    for (uint32_t i = 0, before = s->pos0; i < s->n_captures; i++) {
        uint32_t p = s->captures[i].position;
        if (p <= before || p > s->pos0 + s->n || p % m->state.grid != 0)
            return ENG_EINVAL;
        before = p;
    }
    return ENG_OK;
}

int model_batch_lay_out(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs,
                        struct model_batch *out)
{
    struct model_batch b = {.n_seqs = n_seqs, .steps = seqs};
    size_t captures = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        int rc = check_step(m, &seqs[i]);
        if (rc != ENG_OK)
            return rc;
        b.rows += seqs[i].n;
        b.n_logits += seqs[i].n_logits;
        captures += seqs[i].n_captures;
    }
    if (b.rows > UINT32_MAX)
        return ENG_EINVAL;
    int rc = reserve(m, b.rows, n_seqs, captures, b.n_logits);
    if (rc != ENG_OK)
        return rc;
    struct model_workspace *w = &m->work;
    const uint32_t last_table = m->place[m->desc.n_layers - 1].table;
    size_t row = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        const struct eng_step_seq *s = &seqs[i];
        for (uint32_t t = 0; t <= m->state.window_groups; t++)
            w->seqs[t * n_seqs + i] =
                (struct kn_attn_seq){.pages = t == 0 ? s->pages : s->window_pages[t - 1],
                                     .pos0 = s->pos0,
                                     .n = s->n,
                                     .row0 = (uint32_t)row};
        if (s->n_logits > 0) {
            uint32_t skip = s->n - s->n_logits;
            w->last[b.n_last++] = (struct kn_attn_seq){.pages = w->seqs[last_table * n_seqs + i].pages,
                                                       .pos0 = s->pos0 + skip,
                                                       .n = s->n_logits,
                                                       .row0 = (uint32_t)row + skip};
        }
        memcpy(w->ids + row, s->ids, s->n * sizeof *w->ids);
        for (uint32_t k = 0; k < s->n; k++)
            w->pos[row + k] = s->pos0 + k;
        row += s->n;
    }
    *out = b;
    return ENG_OK;
}
