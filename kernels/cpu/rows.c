/*
 * Row operations: norms, rotary embedding and its table, gates, sums, and the sampler's reductions. Rows are
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

void kn_for_rows(struct kn_backend *b, size_t n, size_t elements_a_row,
                 void (*row)(const void *args, const struct kn_rows_path *path, size_t row), const void *args)
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
    kn_for_rows(b, n, heads * dim, rmsnorm_row, &a);
}

struct rmsnorm_gated_args {
    struct rmsnorm_args norm;
    const float *z;
    size_t ldz;
};

static void rmsnorm_gated_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct rmsnorm_gated_args *g = args;
    const struct rmsnorm_args *a = &g->norm;
    for (size_t h = 0; h < a->heads; h++)
        path->rmsnorm_gated(a->x + r * a->ldx + h * a->dim, a->w, a->eps, g->z + r * g->ldz + h * a->dim,
                            a->y + r * a->ldy + h * a->dim, a->dim);
}

void kn_rmsnorm_gated(struct kn_backend *b, const float *x, size_t ldx, const float *w, float eps,
                      const float *z, size_t ldz, float *y, size_t ldy, size_t n, size_t heads, size_t dim)
{
    struct rmsnorm_gated_args a = {{x, w, ldx, eps, y, ldy, heads, dim}, z, ldz};
    kn_for_rows(b, n, 4 * heads * dim, rmsnorm_gated_row, &a);
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
    kn_for_rows(b, n, heads * head_dim, rope_row, &a);
}

/* ---- gates ---- */

#define EXP_WORTH 4 /* an exp is worth several products */

struct glu_args {
    const float *gu;
    size_t ldgu;
    float *y;
    size_t ldy, dim;
};

static void silu_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct glu_args *a = args;
    const float *g = a->gu + r * a->ldgu;
    path->silu_mul(g, g + a->dim, a->y + r * a->ldy, a->dim);
}

void kn_silu_mul(struct kn_backend *b, const float *gu, size_t ldgu, float *y, size_t ldy, size_t n,
                 size_t dim)
{
    struct glu_args a = {gu, ldgu, y, ldy, dim};
    kn_for_rows(b, n, EXP_WORTH * dim, silu_row, &a);
}

static void gelu_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct glu_args *a = args;
    const float *g = a->gu + r * a->ldgu;
    path->gelu_mul(g, g + a->dim, a->y + r * a->ldy, a->dim);
}

void kn_gelu_mul(struct kn_backend *b, const float *gu, size_t ldgu, float *y, size_t ldy, size_t n,
                 size_t dim)
{
    struct glu_args a = {gu, ldgu, y, ldy, dim};
    kn_for_rows(b, n, EXP_WORTH * dim, gelu_row, &a);
}

struct sigmoid_args {
    float *x;
    size_t ldx;
    const float *gate;
    size_t ldgate, heads, dim;
    bool gate_per_head;
};

static void sigmoid_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct sigmoid_args *a = args;
    float *x = a->x + r * a->ldx;
    const float *gate = a->gate + r * a->ldgate;
    if (!a->gate_per_head) {
        path->sigmoid_mul(x, gate, a->heads * a->dim);
        return;
    }
    for (size_t h = 0; h < a->heads; h++)
        path->sigmoid_mul_one(x + h * a->dim, gate[h], a->dim);
}

void kn_sigmoid_mul(struct kn_backend *b, float *x, size_t ldx, const float *gate, size_t ldgate,
                    bool gate_per_head, size_t n, size_t heads, size_t dim)
{
    struct sigmoid_args a = {x, ldx, gate, ldgate, heads, dim, gate_per_head};
    kn_for_rows(b, n, EXP_WORTH * heads * dim, sigmoid_row, &a);
}

/* ---- sums ---- */

struct sum_args {
    float *x;
    size_t ldx;
    const float *y;
    size_t ldy, dim;
    float factor;
};

static void scale_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct sum_args *a = args;
    path->scale(a->x + r * a->ldx, a->factor, a->dim);
}

void kn_scale(struct kn_backend *b, float *x, size_t ldx, float factor, size_t n, size_t dim)
{
    struct sum_args a = {.x = x, .ldx = ldx, .dim = dim, .factor = factor};
    kn_for_rows(b, n, dim, scale_row, &a);
}

static void add_row(const void *args, const struct kn_rows_path *path, size_t r)
{
    const struct sum_args *a = args;
    path->add(a->x + r * a->ldx, a->y + r * a->ldy, a->dim);
}

void kn_add(struct kn_backend *b, float *x, size_t ldx, const float *y, size_t ldy, size_t n, size_t dim)
{
    struct sum_args a = {.x = x, .ldx = ldx, .y = y, .ldy = ldy, .dim = dim};
    kn_for_rows(b, n, dim, add_row, &a);
}

/* ---- sampler ---- */

void kn_logsumexp(struct kn_backend *b, const float *x, size_t n, float *max, float *lse)
{
    float sum;
    b->rows->logsumexp(x, n, max, &sum);
    bool finite = *max - *max == 0.0f;
    *lse = finite ? *max + kn_logf(sum) : *max;
}

/* A whole vocabulary in pieces, a multiple of 16 each, so that lanes are the same as in one piece. */
#define PIECES_MAX  64
#define PIECE_LEAST 16384 /* floats: some microseconds */

struct pieces {
    const struct kn_rows_path *path;
    const float *x;
    float *out;
    size_t n, piece;
    float scale, sub;
    size_t best[PIECES_MAX];
};

/* Cuts n; returns the number of pieces. */
static size_t cut_pieces(const struct kn_backend *b, struct pieces *p)
{
    size_t wanted = 2 * (size_t)b->threads;
    wanted = wanted < PIECES_MAX ? wanted : PIECES_MAX;
    p->piece = ((p->n + wanted - 1) / wanted + 15) & ~(size_t)15;
    if (p->piece < PIECE_LEAST)
        p->piece = PIECE_LEAST;
    return (p->n + p->piece - 1) / p->piece;
}

static size_t piece_floats(const struct pieces *p, size_t i)
{
    size_t left = p->n - i * p->piece;
    return left < p->piece ? left : p->piece;
}

static void argmax_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    struct pieces *p = arg;
    size_t at = i * p->piece;
    p->best[i] = at + p->path->argmax(p->x + at, piece_floats(p, i));
}

size_t kn_argmax(struct kn_backend *b, const float *x, size_t n)
{
    struct pieces p = {.path = b->rows, .x = x, .n = n};
    size_t pieces = cut_pieces(b, &p), best = 0;
    if (pieces < 2)
        return b->rows->argmax(x, n);
    kn_pool_run(b->pool, pieces, argmax_item, &p);
    float top = -__builtin_inff();
    for (size_t i = 0; i < pieces; i++) {
        if (x[p.best[i]] > top) { /* never of a NaN */
            top = x[p.best[i]];
            best = p.best[i];
        }
    }
    return best;
}

static void exp_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct pieces *p = arg;
    size_t at = i * p->piece;
    p->path->exp(p->x + at, piece_floats(p, i), p->scale, p->sub, p->out + at);
}

void kn_exp(struct kn_backend *b, const float *x, size_t n, float scale, float sub, float *out)
{
    struct pieces p = {.path = b->rows, .x = x, .out = out, .n = n, .scale = scale, .sub = sub};
    kn_pool_run(b->pool, cut_pieces(b, &p), exp_item, &p);
}
