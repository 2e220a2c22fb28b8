/*
 * Gated DeltaNet of one path: short convolution, l2 norm, and the rows and the end of one block (kernels.h,
 * "Gated DeltaNet").
 *
 * Everything large is one small product, C (rows, 16 lanes) += A (rows, k) * B (k, 16 lanes), with k
 * ascending: the lanes are positions j for k_j . k_i, dimensions of v for all that meets the state or d. So
 * dimensions of v never meet, and a tile of rows runs from the state to its results in registers: S^T k and
 * S^T q first, then d of earlier rows, then the triangle of the tile itself. Rows of a block that do not
 * exist yet may hold anything: nothing of them is added or multiplied.
 */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd/vec.h"

/* Register tiles: rows x blocks of lanes (twice, for k and q); blocks of a row alone, not fewer; rows of the
 * state. */
#if defined(KN_VEC_AVX512)
#define ROWS       4
#define LANES      2
#define LANES_ONE  4
#define STATE_ROWS 8
#elif defined(KN_VEC_AVX2)
#define ROWS       2
#define LANES      1
#define LANES_ONE  2
#define STATE_ROWS 4
#else
#define ROWS       2
#define LANES      1
#define LANES_ONE  1
#define STATE_ROWS 4
#endif
#define TILE  (ROWS * LANES > LANES_ONE ? ROWS * LANES : LANES_ONE)
#define BLOCK KN_DELTA_BLOCK

/* ---- before the rule: convolution, norms ---- */

INLINE void convolve_type(enum kn_kv_dtype taps, const float *x, size_t ldx, uint32_t rows, uint32_t columns,
                          const float *filter, size_t ld_filter, uint32_t conv, float *window, float *y)
{
    float *now = window + (size_t)(conv - 1) * columns;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < columns; c += 16) {
            float rounded[16];
            vf_to_kv(taps, vf_load(x + r * ldx + c), rounded, 0);
            vf_store(now + (size_t)r * columns + c, vf_from_kv(taps, rounded, 0));
        }
    }
    for (uint32_t c = 0; c < columns; c += 16) {
        for (uint32_t r = 0; r < rows; r++) {
            const float *p = window + (size_t)r * columns + c;
            vf sum = vf_mul(vf_load(filter + c), vf_load(p));
            for (uint32_t t = 1; t < conv; t++)
                sum = vf_fma(vf_load(filter + t * ld_filter + c), vf_load(p + (size_t)t * columns), sum);
            vf_store(y + (size_t)r * columns + c, vf_sigmoid_mul(sum, sum));
        }
    }
}

static void convolve(enum kn_kv_dtype taps, const float *x, size_t ldx, uint32_t rows, uint32_t columns,
                     const float *filter, size_t ld_filter, uint32_t conv, float *window, float *y)
{
    if (taps == KN_KV_F16)
        convolve_type(KN_KV_F16, x, ldx, rows, columns, filter, ld_filter, conv, window, y);
    else if (taps == KN_KV_BF16)
        convolve_type(KN_KV_BF16, x, ldx, rows, columns, filter, ld_filter, conv, window, y);
    else
        convolve_type(KN_KV_F32, x, ldx, rows, columns, filter, ld_filter, conv, window, y);
}

static void from_kv(enum kn_kv_dtype dtype, const void *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        vf_store(y + i, vf_from_kv(dtype, x, i));
}

static void l2norm(float *x, uint32_t rows, uint32_t dim, float eps, float scale)
{
    for (uint32_t r = 0; r < rows; r++, x += dim) {
        vf squares = vf_zero();
        for (uint32_t i = 0; i < dim; i += 16) {
            vf a = vf_load(x + i);
            squares = vf_fma(a, a, squares);
        }
        vf f = vf_set1(1.0f / __builtin_sqrtf(vf_hsum(squares) + eps) * scale);
        for (uint32_t i = 0; i < dim; i += 16)
            vf_store(x + i, vf_mul(vf_load(x + i), f));
    }
}

/* ---- products of R rows of k and q with N blocks of lanes of a (blocks, dim, 16) matrix ---- */

INLINE void two_products(const float *k, const float *q, uint32_t dim, const float *m, vf *of_k, vf *of_q,
                         unsigned R, unsigned N)
{
    UNROLL for (unsigned i = 0; i < R * N; i++) of_k[i] = of_q[i] = vf_zero();
    for (uint32_t d = 0; d < dim; d++) {
        vf b[LANES_ONE];
        UNROLL for (unsigned n = 0; n < N; n++) b[n] = vf_load(m + (size_t)n * dim * 16 + d * 16);
        UNROLL for (unsigned r = 0; r < R; r++)
        {
            vf x = vf_set1(k[r * dim + d]), y = vf_set1(q[r * dim + d]);
            UNROLL for (unsigned n = 0; n < N; n++)
            {
                of_k[r * N + n] = vf_fma(x, b[n], of_k[r * N + n]);
                of_q[r * N + n] = vf_fma(y, b[n], of_q[r * N + n]);
            }
        }
    }
}

INLINE void products_tile(const struct kn_delta_job *j, uint32_t row, uint32_t lanes, unsigned R, unsigned N)
{
    vf of_k[TILE], of_q[TILE];
    size_t at = (size_t)row * j->dim;
    two_products(j->k + at, j->q + at, j->dim, j->keys + (size_t)lanes * j->dim * 16, of_k, of_q, R, N);
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned n = 0; n < N; n++)
    {
        vf_store(j->kk + (row + r) * BLOCK + (lanes + n) * 16, of_k[r * N + n]);
        vf_store(j->qk + (row + r) * BLOCK + (lanes + n) * 16, of_q[r * N + n]);
    }
}

static void products(const struct kn_delta_job *j)
{
    for (uint32_t r = 0; r < j->rows; r++) { /* k_i becomes a column of keys */
        uint32_t i = j->row0 + r;
        float *column = j->keys + (size_t)(i / 16) * j->dim * 16 + i % 16;
        for (uint32_t d = 0; d < j->dim; d++)
            column[d * 16] = j->k[(size_t)r * j->dim + d];
    }
    uint32_t row = 0;
    for (; row + ROWS <= j->rows; row += ROWS) {
        uint32_t lanes = 0, end = (j->row0 + row + ROWS - 1) / 16 + 1;
        for (; lanes + LANES <= end; lanes += LANES)
            products_tile(j, row, lanes, ROWS, LANES);
        for (; lanes < end; lanes++)
            products_tile(j, row, lanes, ROWS, 1);
    }
    for (; row < j->rows; row++) {
        uint32_t lanes = 0, end = (j->row0 + row) / 16 + 1;
        for (; lanes + LANES_ONE <= end; lanes += LANES_ONE)
            products_tile(j, row, lanes, 1, LANES_ONE);
        for (; lanes < end; lanes++)
            products_tile(j, row, lanes, 1, 1);
    }
}

/* ---- rows ---- */

/* What d_j weighs in row i: -(e^(G_i - G_j) * (k_j . k_i)) in d_i, e^(G_i - G_j) * (k_j . q_i) in o_i. */
static void weigh(const struct kn_delta_job *j)
{
    vf zero = vf_zero();
    for (uint32_t r = 0; r < j->rows; r++) {
        uint32_t i = j->row0 + r, at = r * BLOCK;
        vf sum = vf_set1(j->sums[i]);
        for (uint32_t k = 0; k <= i; k += 16) {
            vf decay = vf_exp(vf_sub(sum, vf_load(j->sums + k)));
            vf_store(j->k_weight + at + k, vf_mul(vf_sub(zero, decay), vf_load(j->kk + at + k)));
            vf_store(j->q_weight + at + k, vf_mul(decay, vf_load(j->qk + at + k)));
        }
        j->decay[r] = kn_expf(j->sums[i]);
    }
}

INLINE void rows_tile(const struct kn_delta_job *j, uint32_t row, uint32_t lanes, unsigned R, unsigned N)
{
    vf delta[TILE], o[TILE];
    uint32_t dim = j->dim, first = j->row0 + row;
    size_t at = (size_t)row * dim;
    float *d = j->d + (size_t)lanes * BLOCK * 16;
    const float *kw = j->k_weight + row * BLOCK, *qw = j->q_weight + row * BLOCK;

    two_products(j->k + at, j->q + at, dim, j->state + (size_t)lanes * dim * 16, delta, o, R, N);
    UNROLL for (unsigned r = 0; r < R; r++)
    {
        vf decay = vf_set1(j->decay[row + r]), minus = vf_set1(-j->decay[row + r]);
        UNROLL for (unsigned n = 0; n < N; n++)
        {
            delta[r * N + n] =
                vf_fma(minus, delta[r * N + n], vf_load(j->v + at + r * dim + (lanes + n) * 16));
            o[r * N + n] = vf_mul(decay, o[r * N + n]);
        }
    }
    for (uint32_t i = 0; i < first; i++) { /* rows before the tile */
        vf b[LANES_ONE];
        UNROLL for (unsigned n = 0; n < N; n++) b[n] = vf_load(d + (size_t)n * BLOCK * 16 + i * 16);
        UNROLL for (unsigned r = 0; r < R; r++)
        {
            vf x = vf_set1(kw[r * BLOCK + i]), y = vf_set1(qw[r * BLOCK + i]);
            UNROLL for (unsigned n = 0; n < N; n++)
            {
                delta[r * N + n] = vf_fma(x, b[n], delta[r * N + n]);
                o[r * N + n] = vf_fma(y, b[n], o[r * N + n]);
            }
        }
    }
    UNROLL for (unsigned s = 0; s < R; s++) /* rows of the tile, each as soon as it is known */
    {
        vf beta = vf_set1(j->beta[row + s]);
        uint32_t i = first + s;
        UNROLL for (unsigned n = 0; n < N; n++)
        {
            vf done = vf_mul(delta[s * N + n], beta);
            vf_store(d + (size_t)n * BLOCK * 16 + i * 16, done);
            UNROLL for (unsigned r = s + 1; r < R; r++) delta[r * N + n] =
                vf_fma(vf_set1(kw[r * BLOCK + i]), done, delta[r * N + n]);
            UNROLL for (unsigned r = s; r < R; r++) o[r * N + n] =
                vf_fma(vf_set1(qw[r * BLOCK + i]), done, o[r * N + n]);
            vf_store(j->out + (row + s) * j->ldo + (lanes + n) * 16, o[s * N + n]);
        }
    }
}

static void rows(const struct kn_delta_job *j)
{
    uint32_t blocks = j->dim / 16, tiled = j->rows / ROWS * ROWS, lanes = 0;
    weigh(j);
    /* lanes outermost: their part of the state stays in L1 over all rows */
    for (; lanes + LANES <= blocks; lanes += LANES)
        for (uint32_t row = 0; row < tiled; row += ROWS)
            rows_tile(j, row, lanes, ROWS, LANES);
    for (; lanes < blocks; lanes++)
        for (uint32_t row = 0; row < tiled; row += ROWS)
            rows_tile(j, row, lanes, ROWS, 1);
    for (lanes = 0; lanes + LANES_ONE <= blocks; lanes += LANES_ONE)
        for (uint32_t row = tiled; row < j->rows; row++)
            rows_tile(j, row, lanes, 1, LANES_ONE);
    for (; lanes < blocks; lanes++)
        for (uint32_t row = tiled; row < j->rows; row++)
            rows_tile(j, row, lanes, 1, 1);
}

/* ---- the end of a block ---- */

INLINE void close_tile(const struct kn_delta_job *j, uint32_t row, uint32_t lanes, vf decay, unsigned R,
                       unsigned N)
{
    vf sum[STATE_ROWS * LANES];
    float *s = j->state + (size_t)lanes * j->dim * 16 + (size_t)row * 16;
    const float *d = j->d + (size_t)lanes * BLOCK * 16;
    size_t ld = (size_t)j->dim * 16;
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned n = 0; n < N; n++) sum[r * N + n] =
        vf_mul(decay, vf_load(s + n * ld + r * 16));
    for (uint32_t i = 0; i < BLOCK; i++) {
        const float *k = j->weighted_keys + (i / 16) * ld + (size_t)row * 16 + i % 16;
        vf b[LANES];
        UNROLL for (unsigned n = 0; n < N; n++) b[n] = vf_load(d + (size_t)n * BLOCK * 16 + i * 16);
        UNROLL for (unsigned r = 0; r < R; r++)
        {
            vf x = vf_set1(k[r * 16]);
            UNROLL for (unsigned n = 0; n < N; n++) sum[r * N + n] = vf_fma(x, b[n], sum[r * N + n]);
        }
    }
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned n = 0; n < N; n++)
        vf_store(s + n * ld + r * 16, sum[r * N + n]);
}

static void close_block(const struct kn_delta_job *j)
{
    uint32_t blocks = j->dim / 16, lanes = 0;
    float last = j->sums[BLOCK - 1];
    for (uint32_t k = 0; k < BLOCK; k += 16) {
        vf decay = vf_exp(vf_sub(vf_set1(last), vf_load(j->sums + k)));
        size_t at = (size_t)k * j->dim;
        for (uint32_t d = 0; d < j->dim; d++, at += 16)
            vf_store(j->weighted_keys + at, vf_mul(vf_load(j->keys + at), decay));
    }
    vf decay = vf_set1(kn_expf(last));
    for (; lanes + LANES <= blocks; lanes += LANES)
        for (uint32_t row = 0; row < j->dim; row += STATE_ROWS)
            close_tile(j, row, lanes, decay, STATE_ROWS, LANES);
    for (; lanes < blocks; lanes++)
        for (uint32_t row = 0; row < j->dim; row += STATE_ROWS)
            close_tile(j, row, lanes, decay, STATE_ROWS, 1);
}

const struct kn_delta_path KN_FN(kn_delta_path) = {
    .convolve = convolve,
    .from_kv = from_kv,
    .l2norm = l2norm,
    .products = products,
    .rows = rows,
    .close = close_block,
};
