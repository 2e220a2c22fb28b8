/*
 * Mixture of experts: the router, and rows taken to an expert and brought back. Rows are independent, so a
 * row's bits depend on nothing else in the batch.
 */
#include "kernels/cpu/internal.h"
#include <string.h>

/* ---- router ---- */

struct route_args {
    const float *logits;
    size_t ld, experts, used;
    bool renormalise;
    uint32_t *ids;
    float *weights;
};

/* Until they are weights, `weights` holds the logits of ids, largest first. A logit enters behind its equals,
 * and ids come ascending: so the lowest of equals wins. NaN counts as -inf. */
static size_t choose(const float *logits, size_t experts, size_t used, uint32_t *ids, float *weights)
{
    size_t n = 0;
    for (size_t e = 0; e < experts; e++) {
        float x = logits[e] > -__builtin_inff() ? logits[e] : -__builtin_inff();
        if (n == used && !(x > weights[n - 1]))
            continue;
        size_t at = n < used ? n++ : n - 1;
        for (; at > 0 && x > weights[at - 1]; at--) {
            weights[at] = weights[at - 1];
            ids[at] = ids[at - 1];
        }
        weights[at] = x;
        ids[at] = (uint32_t)e;
    }
    return n;
}

static void sort_by_id(size_t n, uint32_t *ids, float *weights)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t id = ids[i];
        float w = weights[i];
        size_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = w;
    }
}

static void route_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct route_args *a = args;
    const float *logits = a->logits + r * a->ld;
    uint32_t *ids = a->ids + r * a->used;
    float *weights = a->weights + r * a->used;
    size_t n = choose(logits, a->experts, a->used, ids, weights);
    float max = weights[0], sum = 0.0f; /* the likeliest comes first */
    if (!a->renormalise)
        path->logsumexp(logits, a->experts, &max, &sum);
    sort_by_id(n, ids, weights);
    float total = 0.0f;
    for (size_t i = 0; i < n; i++) {
        weights[i] = kn_expf(weights[i] - max);
        total += weights[i];
    }
    for (size_t i = 0; i < n; i++)
        weights[i] = weights[i] / (a->renormalise ? total : sum);
}

void kn_route(struct kn_backend *b, const float *logits, size_t ld, size_t n, size_t experts, size_t used,
              bool renormalise, uint32_t *ids, float *weights)
{
    if (used == 0)
        return;
    struct route_args a = {logits, ld, experts, used, renormalise, ids, weights};
    kn_for_rows(b, n, 8 * experts, route_row, &a);
}

/* ---- rows there and back ---- */

struct rows_args {
    const float *x;
    size_t ldx;
    const uint32_t *rows;
    const float *weights;
    size_t dim;
    float *y;
    size_t ldy;
};

static void take_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    (void)path;
    const struct rows_args *a = args;
    memcpy(a->y + r * a->ldy, a->x + a->rows[r] * a->ldx, a->dim * sizeof(float));
}

void kn_rows_take(struct kn_backend *b, const float *x, size_t ldx, const uint32_t *rows, size_t n,
                  size_t dim, float *y, size_t ldy)
{
    struct rows_args a = {x, ldx, rows, NULL, dim, y, ldy};
    kn_for_rows(b, n, dim, take_row, &a);
}

static void add_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct rows_args *a = args;
    path->add_scaled(a->y + a->rows[r] * a->ldy, a->x + r * a->ldx, a->weights[r], a->dim);
}

void kn_rows_add(struct kn_backend *b, const float *x, size_t ldx, const uint32_t *rows, const float *weights,
                 size_t n, size_t dim, float *y, size_t ldy)
{
    struct rows_args a = {x, ldx, rows, weights, dim, y, ldy};
    kn_for_rows(b, n, dim, add_row, &a);
}
