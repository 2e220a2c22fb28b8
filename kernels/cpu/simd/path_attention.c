/*
 * Attention of one path: a tile of query vectors against one group of positions (kernels.h, "Bit rules").
 *
 * Scores and weighted values are the same small product, C (queries, 16 lanes) += A (queries, k) * B (k, 16
 * lanes): for scores k is a dimension and lanes are the tokens of a page, for values k is a position and
 * lanes are dimensions. A page is converted to floats once for a whole tile. Lanes past a query's count are
 * computed from whatever the page holds and then replaced, never added or multiplied: an unwritten slot may
 * hold NaN.
 */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd/vec.h"

/* Register tiles: queries x (pages or dimension blocks). */
#if defined(KN_VEC_AVX512)
#define TILE 24
#elif defined(KN_VEC_AVX2)
#define TILE 6
#else
#define TILE 4
#endif

#define PAGE KN_PAGE_TOKENS

/* ---- scores of Q queries over N pages from `page` on ---- */

/* Up to so many queries memory is the bound, and runs of one head are too short for the processor's own
 * prefetch. So what is needed next is asked for: keys of the next pages, then values of the group's first;
 * values of the next pages, then keys of the next group's first. Not more than that, so that it is still in
 * the first-level cache when it is used: what comes from the second waits for the same buffers as memory. */
#define PREFETCH_QUERIES 6
#define PREFETCH_BYTES   8192
#define LINE             64

INLINE size_t row_bytes(enum kn_kv_dtype dtype, size_t elements)
{
    return elements * (dtype == KN_KV_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Pages of a head's keys or values to be ahead by. */
INLINE unsigned pages_ahead(const struct kn_attn_job *j, enum kn_kv_dtype dtype)
{
    size_t bytes = row_bytes(dtype, (size_t)PAGE * j->head_dim);
    return bytes < PREFETCH_BYTES ? (unsigned)(PREFETCH_BYTES / bytes) : 1;
}

INLINE void scores_tile(const struct kn_attn_job *j, enum kn_kv_dtype dtype, const float *q, unsigned first,
                        unsigned page, unsigned end, float *scores, unsigned Q, unsigned N)
{
    vf sum[TILE];
    const char *k[TILE];
    UNROLL for (unsigned i = 0; i < Q * N; i++) sum[i] = vf_zero();
    UNROLL for (unsigned n = 0; n < N; n++) k[n] = (const char *)j->pages[page + n] + j->k_offset;
    const char *next[TILE];
    if (Q <= PREFETCH_QUERIES)
        UNROLL for (unsigned n = 0; n < N; n++)
        {
            unsigned ahead = page + N + n, value = first + (ahead - end);
            next[n] = ahead < end ? (const char *)j->pages[ahead] + j->k_offset
                                  : (const char *)j->pages[value < end ? value : first] + j->v_offset;
        }
    for (uint32_t d = 0; d < j->head_dim; d++) {
        UNROLL for (unsigned n = 0; n < N; n++)
        {
            if (Q <= PREFETCH_QUERIES && row_bytes(dtype, (size_t)d * PAGE) % LINE == 0)
                prefetch(next[n], row_bytes(dtype, (size_t)d * PAGE));
            vf key = vf_from_kv(dtype, k[n], (size_t)d * PAGE);
            UNROLL for (unsigned i = 0; i < Q; i++) sum[i * N + n] =
                vf_fma(vf_set1(q[(size_t)i * KN_QUERY_STRIDE + d]), key, sum[i * N + n]);
        }
    }
    UNROLL for (unsigned i = 0; i < Q; i++) UNROLL for (unsigned n = 0; n < N; n++)
        vf_store(scores + i * KN_SCORE_STRIDE + (page + n) * PAGE, sum[i * N + n]);
}

INLINE void scores(const struct kn_attn_job *j, enum kn_kv_dtype dtype, const float *q, unsigned first,
                   unsigned end, unsigned Q, unsigned N)
{
    unsigned page = first;
    for (; page + N <= end; page += N)
        scores_tile(j, dtype, q, first, page, end, j->scores, Q, N);
    for (; page < end; page++)
        scores_tile(j, dtype, q, first, page, end, j->scores, Q, 1);
}

/* ---- scores to weights: max, exp, sum of one query over positions [from, to) ---- */

INLINE void weights(float *s, uint32_t from, uint32_t to, float *max, float *sum)
{
    uint32_t start = from & ~15u;
    vf none = vf_set1(-__builtin_inff()), top = none, zero = vf_zero();
    for (uint32_t t = start; t < to; t += 16) {
        vf a = vf_load(s + t);
        if (t < from)
            a = vf_blend(vm_first(from - t), none, a);
        if (to - t < 16)
            a = vf_blend(vm_first(to - t), a, none);
        top = vf_max(a, top);
    }
    float m = vf_hmax(top);
    vf sub = vf_set1(m), total = zero;
    for (uint32_t t = start; t < to; t += 16) {
        vf p = vf_exp(vf_sub(vf_load(s + t), sub));
        if (t < from)
            p = vf_blend(vm_first(from - t), zero, p);
        if (to - t < 16)
            p = vf_blend(vm_first(to - t), p, zero);
        vf_store(s + t, p);
        total = vf_add(total, p);
    }
    *max = m;
    *sum = vf_hsum(total);
}

/* ---- o (Q queries, N blocks of 16 dimensions) += weights * values over positions [t0, t1) ---- */

/* What is needed some pages behind page `page` of the values up to `end`: see PREFETCH_QUERIES. NULL: nothing
 * in this group or the next. */
INLINE const char *needed_next(const struct kn_attn_job *j, enum kn_kv_dtype dtype, unsigned page,
                               unsigned end)
{
    unsigned ahead = page + pages_ahead(j, dtype);
    if (ahead < end)
        return (const char *)j->pages[ahead] + j->v_offset;
    ahead += KN_ATTN_GROUP / PAGE - end;
    return ahead < j->n_pages ? (const char *)j->pages[ahead] + j->k_offset : NULL;
}

INLINE void values_tile(const struct kn_attn_job *j, enum kn_kv_dtype dtype, const float *p, float *o,
                        uint32_t block, uint32_t t0, uint32_t t1, unsigned end, bool first, unsigned Q,
                        unsigned N)
{
    vf sum[TILE];
    uint32_t dim = j->head_dim;
    UNROLL for (unsigned i = 0; i < Q; i++) UNROLL for (unsigned n = 0; n < N; n++) sum[i * N + n] =
        first ? vf_zero() : vf_load(o + i * dim + (block + n) * 16);
    for (uint32_t t = t0; t < t1;) {
        const char *v = (const char *)j->pages[t / PAGE] + j->v_offset;
        const char *next = Q <= PREFETCH_QUERIES && block == 0 ? needed_next(j, dtype, t / PAGE, end) : NULL;
        uint32_t stop = (t / PAGE + 1) * PAGE;
        stop = stop < t1 ? stop : t1;
        size_t element = (size_t)(t % PAGE) * dim + block * 16;
        for (; t < stop; t++, element += dim) {
            if (Q <= PREFETCH_QUERIES && next)
                for (size_t at = 0; at < row_bytes(dtype, dim); at += LINE)
                    prefetch(next, row_bytes(dtype, (size_t)(t % PAGE) * dim) + at);
            UNROLL for (unsigned n = 0; n < N; n++)
            {
                vf value = vf_from_kv(dtype, v, element + n * 16);
                UNROLL for (unsigned i = 0; i < Q; i++) sum[i * N + n] =
                    vf_fma(vf_set1(p[(size_t)i * KN_SCORE_STRIDE + t]), value, sum[i * N + n]);
            }
        }
    }
    UNROLL for (unsigned i = 0; i < Q; i++) UNROLL for (unsigned n = 0; n < N; n++)
        vf_store(o + i * dim + (block + n) * 16, sum[i * N + n]);
}

/* All dimensions of some pages, then the next: a page is read from memory once. */
INLINE void values(const struct kn_attn_job *j, enum kn_kv_dtype dtype, const float *p, float *o, uint32_t t0,
                   uint32_t t1, bool first, unsigned Q, unsigned N)
{
    uint32_t blocks = j->head_dim / 16, end = (t1 + PAGE - 1) / PAGE;
    uint32_t step = Q <= PREFETCH_QUERIES && blocks > N ? pages_ahead(j, dtype) * PAGE : KN_ATTN_GROUP;
    do {
        uint32_t stop = t0 / step * step + step, block = 0;
        stop = stop < t1 ? stop : t1;
        for (; block + N <= blocks; block += N)
            values_tile(j, dtype, p, o, block, t0, stop, end, first, Q, N);
        for (; block < blocks; block++)
            values_tile(j, dtype, p, o, block, t0, stop, end, first, Q, 1);
        first = false;
        t0 = stop;
    } while (t0 < t1);
}

/* ---- a tile of Q queries ---- */

INLINE void attend(const struct kn_attn_job *j, enum kn_kv_dtype dtype, unsigned at, unsigned Q, unsigned N)
{
    /* both ascend: all see [common, least), some see more on either side */
    const uint32_t *from = j->from + at, *to = j->to + at;
    uint32_t common = from[Q - 1], least = to[0];
    bool first = from[0] == common;
    scores(j, dtype, j->q + (size_t)at * KN_QUERY_STRIDE, from[0] / PAGE, (to[Q - 1] + PAGE - 1) / PAGE, Q,
           N);
    for (unsigned i = 0; i < Q; i++)
        weights(j->scores + (size_t)i * KN_SCORE_STRIDE, from[i], to[i], j->max + at + i, j->sum + at + i);
    float *o = j->o + (size_t)at * j->head_dim;
    if (common >= least) { /* none is seen by all */
        for (unsigned i = 0; i < Q; i++)
            values(j, dtype, j->scores + (size_t)i * KN_SCORE_STRIDE, o + (size_t)i * j->head_dim, from[i],
                   to[i], true, 1, 4);
        return;
    }
    for (unsigned i = 0; i < Q && !first; i++) /* an empty range gives zeros */
        values(j, dtype, j->scores + (size_t)i * KN_SCORE_STRIDE, o + (size_t)i * j->head_dim, from[i],
               common, true, 1, 4);
    values(j, dtype, j->scores, o, common, least, first, Q, N);
    for (unsigned i = 0; i < Q; i++)
        if (to[i] > least)
            values(j, dtype, j->scores + (size_t)i * KN_SCORE_STRIDE, o + (size_t)i * j->head_dim, least,
                   to[i], false, 1, 4);
}

INLINE void attention_type(const struct kn_attn_job *j, enum kn_kv_dtype dtype)
{
    unsigned at = 0;
#if TILE == 24
    for (; at + 24 <= j->queries; at += 24)
        attend(j, dtype, at, 24, 1);
    for (; at + 12 <= j->queries; at += 12)
        attend(j, dtype, at, 12, 2);
#endif
#if TILE >= 6
    /* seven and eight go as four and the rest */
    for (unsigned left; (left = j->queries - at) >= 6 && left != 7 && left != 8; at += 6)
        attend(j, dtype, at, 6, TILE / 6);
    for (unsigned left; (left = j->queries - at) >= 4 && left != 6; at += 4)
        attend(j, dtype, at, 4, TILE == 24 ? 4 : 1);
    for (; at + 3 <= j->queries; at += 3)
        attend(j, dtype, at, 3, TILE == 24 ? 4 : 2);
    for (; at + 2 <= j->queries; at += 2)
        attend(j, dtype, at, 2, TILE == 24 ? 4 : 2);
#endif
    for (; at < j->queries; at++)
        attend(j, dtype, at, 1, 4);
}

static void attention(const struct kn_attn_job *j)
{
    if (j->dtype == KN_KV_F16)
        attention_type(j, KN_KV_F16);
    else if (j->dtype == KN_KV_BF16)
        attention_type(j, KN_KV_BF16);
    else
        attention_type(j, KN_KV_F32);
}

static void attn_merge(float *max, float *sum, float *o, float max2, float sum2, const float *o2,
                       uint32_t dim)
{
    float top = max2 > *max ? max2 : *max;
    float a = kn_expf(*max - top), b = kn_expf(max2 - top);
    *max = top;
    *sum = __builtin_fmaf(sum2, b, *sum * a);
    vf va = vf_set1(a), vb = vf_set1(b);
    for (uint32_t d = 0; d < dim; d += 16)
        vf_store(o + d, vf_fma(vf_load(o2 + d), vb, vf_mul(vf_load(o + d), va)));
}

/* ---- rounding to the KV type ---- */

static void to_kv(enum kn_kv_dtype dtype, const float *x, void *y, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        vf_to_kv(dtype, vf_load(x + i), y, i);
}

static void scale(const float *x, float factor, float *y, size_t n)
{
    vf f = vf_set1(factor);
    for (size_t i = 0; i < n; i += 16) {
        size_t left = n - i;
        if (left >= 16)
            vf_store(y + i, vf_mul(vf_load(x + i), f));
        else
            vf_store_n(y + i, vf_mul(vf_load_n(x + i, left), f), left);
    }
}

const struct kn_attention_path KN_FN(kn_attention_path) = {
    .attention = attention,
    .merge = attn_merge,
    .scale = scale,
    .to_kv = to_kv,
};
