/*
 * The feed-forward of a layer: a gated product, or a router that sends each row through a few of many such
 * products beside one that all rows share.
 *
 * With experts a row's terms are added to the residual stream in ascending order of the expert's id, then the
 * shared one's: a row's bits depend on its own choice alone, whichever rows go through an expert together.
 *
 * Threads: the engine's thread.
 */
#include "engine/model/model_internal.h"
#include <string.h>

/* work.act (n, ffn) = what work.gu (n, 2 * ffn) gives. */
static void activate(struct eng_model *m, size_t n, size_t ffn)
{
    const struct model_workspace *w = &m->work;
    if (m->desc.gelu)
        kn_gelu_mul(m->backend, w->gu, 2 * ffn, w->act, ffn, n, ffn);
    else
        kn_silu_mul(m->backend, w->gu, 2 * ffn, w->act, ffn, n, ffn);
}

/* work.act (n, ffn) from x (n, hidden). */
static int gate_and_up(struct eng_model *m, struct kn_matrix *const *parts, const float *x, size_t n)
{
    const size_t ffn = kn_matrix_rows(parts[0]);
    int rc = model_matmul(m->backend, parts, 2, NULL, x, m->desc.hidden, m->work.gu, 2 * ffn, n, false);
    if (rc == KN_OK)
        activate(m, n, ffn);
    return rc;
}

/* Sorts the chosen pairs by expert: work.expert_at, expert_row and expert_weight. */
static void sort_by_expert(const struct eng_model *m, size_t n)
{
    const struct model_workspace *w = &m->work;
    const size_t used = m->desc.n_experts_used, experts = m->desc.n_experts;
    memset(w->expert_at, 0, (experts + 1) * sizeof *w->expert_at);
    for (size_t i = 0; i < n * used; i++)
        w->expert_at[w->chosen[i] + 1]++;
    for (size_t e = 0; e < experts; e++)
        w->expert_at[e + 1] += w->expert_at[e];
    for (size_t i = 0; i < n * used; i++) {
        uint32_t to = w->expert_at[w->chosen[i]]++;
        w->expert_row[to] = (uint32_t)(i / used);
        w->expert_weight[to] = w->chosen_weight[i];
    }
    /* Each start has moved on to its end, the next one's start. */
    memmove(w->expert_at + 1, w->expert_at, experts * sizeof *w->expert_at);
    w->expert_at[0] = 0;
}

static int one_expert(struct eng_model *m, const struct model_layer *y, uint32_t expert)
{
    const struct model_workspace *w = &m->work;
    struct kn_backend *kb = m->backend;
    const size_t hidden = m->desc.hidden;
    const uint32_t from = w->expert_at[expert], n = w->expert_at[expert + 1] - from;
    struct kn_matrix *const *parts = y->experts + 3 * (size_t)expert;
    int rc;
    if (n == 0)
        return KN_OK;
    kn_rows_take(kb, w->normed, hidden, w->expert_row + from, n, hidden, w->taken, hidden);
    if ((rc = gate_and_up(m, parts, w->taken, n)) != KN_OK ||
        (rc = model_matmul(kb, parts + 2, 1, NULL, w->act, m->desc.expert_ffn, w->given, hidden, n, false)) !=
            KN_OK)
        return rc;
    kn_rows_add(kb, w->given, hidden, w->expert_row + from, w->expert_weight + from, n, hidden, w->x, hidden);
    return KN_OK;
}

/* All rows, an expert at a time: each reads its weights once. */
static int expert_by_expert(struct eng_model *m, const struct model_layer *y, size_t n)
{
    sort_by_expert(m, n);
    for (uint32_t e = 0; e < m->desc.n_experts; e++) {
        int rc = one_expert(m, y, e);
        if (rc != KN_OK)
            return rc;
    }
    return KN_OK;
}

/* A single row, as in decode: the experts' first products side by side, for fewer and larger tasks. */
static int one_row(struct eng_model *m, const struct model_layer *y)
{
    const struct eng_model_desc *d = &m->desc;
    const struct model_workspace *w = &m->work;
    const size_t hidden = d->hidden, ffn = d->expert_ffn;
    const uint32_t row = 0;
    for (uint32_t from = 0; from < d->n_experts_used; from += EXPERTS_AT_ONCE) {
        const uint32_t left = d->n_experts_used - from, n = left < EXPERTS_AT_ONCE ? left : EXPERTS_AT_ONCE;
        struct kn_matrix *parts[2 * EXPERTS_AT_ONCE];
        for (uint32_t i = 0; i < 2 * n; i++)
            parts[i] = y->experts[3 * (size_t)w->chosen[from + i / 2] + i % 2];
        int rc =
            model_matmul(m->backend, parts, 2 * n, NULL, w->normed, hidden, w->gu, 2 * ffn * n, 1, false);
        if (rc != KN_OK)
            return rc;
        activate(m, n, ffn);
        for (uint32_t i = 0; i < n; i++) {
            struct kn_matrix *const *down = &y->experts[3 * (size_t)w->chosen[from + i] + 2];
            rc = model_matmul(m->backend, down, 1, NULL, w->act + i * ffn, ffn, w->given, hidden, 1, false);
            if (rc != KN_OK)
                return rc;
            kn_rows_add(m->backend, w->given, hidden, &row, w->chosen_weight + from + i, 1, hidden, w->x,
                        hidden);
        }
    }
    return KN_OK;
}

static int experts(struct eng_model *m, const struct model_layer *y, size_t n)
{
    const struct eng_model_desc *d = &m->desc;
    const struct model_workspace *w = &m->work;
    struct kn_backend *kb = m->backend;
    const size_t hidden = d->hidden, ffn = d->shared_expert_ffn;
    int rc = model_matmul(kb, &y->router, 1, NULL, w->normed, hidden, w->router, d->n_experts, n, false);
    if (rc != KN_OK)
        return rc;
    kn_route(kb, w->router, d->n_experts, n, d->n_experts, d->n_experts_used, true, w->chosen,
             w->chosen_weight);
    if ((rc = n == 1 ? one_row(m, y) : expert_by_expert(m, y, n)) != KN_OK)
        return rc;
    /* The shared one, times the sigmoid of its own router. */
    if ((rc = gate_and_up(m, y->gate_up, w->normed, n)) != KN_OK ||
        (rc = model_matmul(kb, &y->shared_router, 1, NULL, w->normed, hidden, w->shared_router, 1, n,
                           false)) != KN_OK)
        return rc;
    kn_sigmoid_mul(kb, w->act, ffn, w->shared_router, 1, true, n, 1, ffn);
    return model_matmul(kb, &y->down, 1, NULL, w->act, ffn, w->x, hidden, n, true);
}

int model_feed_forward(struct eng_model *m, const struct model_layer *y, size_t n)
{
    const struct eng_model_desc *d = &m->desc;
    const struct model_workspace *w = &m->work;
    if (d->n_experts > 0)
        return experts(m, y, n);
    model_announce(m->backend, &y->down, 1);
    int rc = gate_and_up(m, y->gate_up, w->normed, n);
    if (rc != KN_OK)
        return rc;
    model_announce_layer(m, (size_t)(y - m->weights.layers) + 1);
    return model_matmul(m->backend, &y->down, 1, NULL, w->act, d->ffn, d->post_norms ? w->normed : w->x,
                        d->hidden, n, !d->post_norms);
}
