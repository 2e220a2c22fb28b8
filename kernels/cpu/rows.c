/*
 * Row operations: norms, rotary embedding and its table, SwiGLU, and the sampler's reductions. Rows are
 * shared out to the pool when there is enough work; a row is always one worker's.
 */
#include "kernels/cpu/internal.h"
#include <stdlib.h>

#define ELEMENTS_A_TASK 16384

struct rows_call {
    const struct kn_rows_path *path;
    size_t n, rows_a_task;
    void (*row)(const void *args, const struct kn_rows_path *path, size_t row);
    const void *args;
};

static void rows_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct rows_call *c = arg;
    size_t end = (i + 1) * c->rows_a_task;
    for (size_t r = i * c->rows_a_task; r < c->n && r < end; r++)
        c->row(c->args, c->path, r);
}

static void for_rows(struct kn_backend *b, size_t n, size_t elements_a_row,
                     void (*row)(const void *args, const struct kn_rows_path *path, size_t row),
                     const void *args)
{
    struct rows_call c = {.path = b->rows, .n = n, .row = row, .args = args};
    c.rows_a_task = 1 + ELEMENTS_A_TASK / (elements_a_row + 1);
    kn_pool_run(b->pool, (n + c.rows_a_task - 1) / c.rows_a_task, rows_item, &c);
}

/* ---- norms ---- */

struct rmsnorm_args {
    const float *x, *w;
    size_t ldx;
    float eps;
    float *y;
    size_t ldy, heads, dim;
};

static void rmsnorm_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct rmsnorm_args *a = args;
    for (size_t h = 0; h < a->heads; h++)
        path->rmsnorm(a->x + r * a->ldx + h * a->dim, a->w, a->eps, a->y + r * a->ldy + h * a->dim, a->dim);
}

void kn_rmsnorm(struct kn_backend *b, const float *x, size_t ldx, const float *w, float eps, float *y,
                size_t ldy, size_t n, size_t heads, size_t dim)
{
    struct rmsnorm_args a = {x, w, ldx, eps, y, ldy, heads, dim};
    for_rows(b, n, heads * dim, rmsnorm_row, &a);
}

/* ---- rotary embedding ---- */

int kn_rope_table_new(uint32_t max_pos, uint32_t rot_dims, float theta, struct kn_rope_table **out)
{
    *out = NULL;
    if (max_pos == 0 || rot_dims == 0 || rot_dims % 2 != 0 || rot_dims > KN_HEAD_DIM_MAX || !(theta > 0.0f))
        return KN_EINVAL;
    uint32_t half = rot_dims / 2;
    struct kn_rope_table *t = calloc(1, sizeof *t);
    double *frequency = calloc(half, sizeof *frequency);
    if (!t || !frequency)
        goto no_memory;
    t->max_pos = max_pos;
    t->rot = rot_dims;
    t->data = calloc((size_t)max_pos, rot_dims * sizeof(float));
    if (!t->data)
        goto no_memory;
    for (uint32_t i = 0; i < half; i++)
        frequency[i] = kn_pow((double)theta, -2.0 * i / rot_dims);
    for (uint32_t pos = 0; pos < max_pos; pos++) {
        float *cosines = t->data + (size_t)pos * rot_dims, *sines = cosines + half;
        for (uint32_t i = 0; i < half; i++) {
            double s, c;
            kn_sincos(pos * frequency[i], &s, &c);
            cosines[i] = (float)c;
            sines[i] = (float)s;
        }
    }
    free(frequency);
    *out = t;
    return KN_OK;
no_memory:
    free(frequency);
    kn_rope_table_free(t);
    return KN_ENOMEM;
}

void kn_rope_table_free(struct kn_rope_table *t)
{
    if (!t)
        return;
    free(t->data);
    free(t);
}

struct rope_args {
    const struct kn_rope_table *t;
    bool interleaved;
    float *x;
    size_t ldx;
    const uint32_t *pos;
    size_t heads, head_dim;
};

static void rope_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct rope_args *a = args;
    const float *cosines = a->t->data + (size_t)a->pos[r] * a->t->rot;
    for (size_t h = 0; h < a->heads; h++)
        path->rope(a->interleaved, a->x + r * a->ldx + h * a->head_dim, a->t->rot, cosines,
                   cosines + a->t->rot / 2);
}

void kn_rope(struct kn_backend *b, const struct kn_rope_table *t, bool interleaved, float *x, size_t ldx,
             const uint32_t *pos, size_t n, size_t heads, size_t head_dim)
{
    struct rope_args a = {t, interleaved, x, ldx, pos, heads, head_dim};
    for_rows(b, n, heads * head_dim, rope_row, &a);
}

/* ---- SwiGLU ---- */

struct silu_args {
    const float *gu;
    size_t ldgu;
    float *y;
    size_t ldy, dim;
};

static void silu_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct silu_args *a = args;
    const float *g = a->gu + r * a->ldgu;
    path->silu_mul(g, g + a->dim, a->y + r * a->ldy, a->dim);
}

void kn_silu_mul(struct kn_backend *b, const float *gu, size_t ldgu, float *y, size_t ldy, size_t n,
                 size_t dim)
{
    struct silu_args a = {gu, ldgu, y, ldy, dim};
    for_rows(b, n, 4 * dim, silu_row, &a); /* an exp is worth several products */
}

/* ---- sampler ---- */

void kn_logsumexp(struct kn_backend *b, const float *x, size_t n, float *max, float *lse)
{
    float sum;
    b->rows->logsumexp(x, n, max, &sum);
    bool finite = *max - *max == 0.0f;
    *lse = finite ? *max + kn_logf(sum) : *max;
}

size_t kn_argmax(struct kn_backend *b, const float *x, size_t n)
{
    return b->rows->argmax(x, n);
}

void kn_exp(struct kn_backend *b, const float *x, size_t n, float scale, float sub, float *out)
{
    b->rows->exp(x, n, scale, sub, out);
}
