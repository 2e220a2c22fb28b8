/*
 * The 16-lane vector of the scalar path: plain loops, the meaning of every operation. vec_avx2.h and
 * vec_avx512.h give the same names with the same results, to the bit.
 *
 * vf: 16 floats, vi: 16 int32 (or 32 int16), vm: 16 lane flags. Tails: (p, n) touches exactly n elements.
 */
#ifndef ISOTHERM_KERNELS_CPU_SIMD_VEC_SCALAR_H
#define ISOTHERM_KERNELS_CPU_SIMD_VEC_SCALAR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float v[16];
} vf;
typedef struct {
    int32_t v[16];
} vi;
typedef struct {
    uint16_t bits;
} vm;

#define VEC_LANES for (int i = 0; i < 16; i++)

/* LANEWISE: functions of values alone, in floats and in integers that cannot overflow. Under a sanitizer each
 * of their lanes would be checked sixteen times for nothing, at fifty times the cost; what touches memory or
 * adds products of integers stays checked. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANEWISE static __attribute__((noinline, unused, no_sanitize("address", "thread", "undefined")))
#else
#define LANEWISE static inline
#endif

static inline vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline vf vf_load_n(const float *p, size_t n) /* other lanes 0 */
{
    vf r = {{0}};
    memcpy(&r, p, n * sizeof(float));
    return r;
}

static inline void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

static inline void vf_store_n(float *p, vf a, size_t n)
{
    memcpy(p, &a, n * sizeof(float));
}

LANEWISE vf vf_set1(float x)
{
    vf r;
    VEC_LANES r.v[i] = x;
    return r;
}

LANEWISE vf vf_zero(void)
{
    return vf_set1(0.0f);
}

LANEWISE vf vf_add(vf a, vf b)
{
    VEC_LANES a.v[i] += b.v[i];
    return a;
}

LANEWISE vf vf_sub(vf a, vf b)
{
    VEC_LANES a.v[i] -= b.v[i];
    return a;
}

LANEWISE vf vf_mul(vf a, vf b)
{
    VEC_LANES a.v[i] *= b.v[i];
    return a;
}

LANEWISE vf vf_div(vf a, vf b)
{
    VEC_LANES a.v[i] /= b.v[i];
    return a;
}

LANEWISE vf vf_fma(vf a, vf b, vf c) /* a * b + c */
{
    VEC_LANES c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
}

/* a > b ? a : b, so b where either is NaN (the meaning of maxps); likewise min */
LANEWISE vf vf_max(vf a, vf b)
{
    VEC_LANES b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return b;
}

LANEWISE vf vf_min(vf a, vf b)
{
    VEC_LANES b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return b;
}

LANEWISE vm vf_gt(vf a, vf b)
{
    vm m = {0};
    VEC_LANES m.bits |= (uint16_t)((a.v[i] > b.v[i]) << i);
    return m;
}

static inline vm vm_first(size_t n) /* lanes below n */
{
    return (vm){(uint16_t)(n >= 16 ? 0xFFFF : (1u << n) - 1)};
}

LANEWISE vf vf_blend(vm m, vf yes, vf no)
{
    VEC_LANES no.v[i] = m.bits >> i & 1 ? yes.v[i] : no.v[i];
    return no;
}

LANEWISE vi vi_blend(vm m, vi yes, vi no)
{
    VEC_LANES no.v[i] = m.bits >> i & 1 ? yes.v[i] : no.v[i];
    return no;
}

LANEWISE vi vi_set1(int32_t x)
{
    vi r;
    VEC_LANES r.v[i] = x;
    return r;
}

static inline vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void vi_store(void *p, vi a)
{
    memcpy(p, &a, sizeof a);
}

LANEWISE vi vi_add(vi a, vi b)
{
    VEC_LANES a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]);
    return a;
}

LANEWISE vi vi_and(vi a, vi b)
{
    VEC_LANES a.v[i] &= b.v[i];
    return a;
}

LANEWISE vi vi_max(vi a, vi b)
{
    VEC_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

/* arithmetic shift */
static inline vi vi_sra(vi a, int count)
{
    VEC_LANES a.v[i] >>= count;
    return a;
}

/* logical shift of each int16 half */
#define vi_shr16(a, count) vi_shr16_(a, count)
static inline vi vi_shr16_(vi a, int count)
{
    VEC_LANES
    {
        uint32_t x = (uint32_t)a.v[i];
        a.v[i] = (int32_t)((x & 0xFFFF) >> count | (x >> 16 >> count) << 16);
    }
    return a;
}

LANEWISE vf vf_from_vi(vi a)
{
    vf r;
    VEC_LANES r.v[i] = (float)a.v[i];
    return r;
}

LANEWISE vi vi_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}

LANEWISE vf vf_bits(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}

/* 32 int16 at p from 32 int8 */
static inline vi vi_from_i8(const int8_t *p)
{
    int16_t w[32];
    for (int i = 0; i < 32; i++)
        w[i] = p[i];
    return vi_load(w);
}

/* 16 int32 from 16 int8 */
static inline vi vi_widen_i8(const int8_t *p)
{
    vi r;
    VEC_LANES r.v[i] = p[i];
    return r;
}

/* acc + a.lo * b.lo + a.hi * b.hi, int16 pairs */
static inline vi vi_dot(vi acc, vi a, vi b)
{
    VEC_LANES
    {
        int32_t alo = (int16_t)(uint16_t)a.v[i], ahi = a.v[i] >> 16;
        int32_t blo = (int16_t)(uint16_t)b.v[i], bhi = b.v[i] >> 16;
        acc.v[i] += alo * blo + ahi * bhi;
    }
    return acc;
}

LANEWISE int32_t vi_hmax(vi a)
{
    int32_t top = a.v[0];
    VEC_LANES top = a.v[i] > top ? a.v[i] : top;
    return top;
}

/* of a's lanes, and of b's */
static inline void vi_hsum_two(vi a, vi b, int32_t sums[2])
{
    sums[0] = sums[1] = 0;
    VEC_LANES
    {
        sums[0] += a.v[i];
        sums[1] += b.v[i];
    }
}

/* nearest even integers, |x| < 2^22 */
static inline vi vi_round(vf a)
{
    vi r;
    VEC_LANES r.v[i] = (int32_t)((a.v[i] + 0x1.8p23f) - 0x1.8p23f);
    return r;
}

/* as 32 int16, which hold them: a's lanes, then b's */
static inline void vi_store16(int16_t *p, vi a, vi b)
{
    VEC_LANES
    {
        p[i] = (int16_t)a.v[i];
        p[i + 16] = (int16_t)b.v[i];
    }
}

LANEWISE float vec_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF, u;
    float f;
    if (exponent == 31) {
        u = sign | 0x7F800000 | mantissa << 13 | (mantissa ? 0x400000 : 0);
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        f = (float)mantissa * 0x1p-24f; /* denormal, exact */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

LANEWISE uint16_t vec_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFF;
    if (a > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (a >> 13 & 0x3FF));
    if (a >= 0x477FF000) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000) { /* denormal half: adding 2^-1 aligns its last bit */
        float x, sum;
        memcpy(&x, &a, sizeof x);
        sum = x + 0.5f;
        memcpy(&a, &sum, sizeof a);
        return (uint16_t)(sign | (a - 0x3F000000));
    }
    a += 0xFFF + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

static inline vf vf_from_f16(const uint16_t *p)
{
    vf r;
    VEC_LANES r.v[i] = vec_f16_to_f32(p[i]);
    return r;
}

static inline vf vf_from_bf16(const uint16_t *p)
{
    vi r;
    VEC_LANES r.v[i] = (int32_t)((uint32_t)p[i] << 16);
    return vf_bits(r);
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    VEC_LANES p[i] = vec_f32_to_f16(a.v[i]);
}

static inline void vf_to_bf16(uint16_t *p, vf a)
{
    vi b = vi_bits(a);
    VEC_LANES
    {
        uint32_t u = (uint32_t)b.v[i];
        uint32_t rounded = u + 0x7FFF + (u >> 16 & 1);
        p[i] = (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? u >> 16 | 0x40 : rounded >> 16);
    }
}

/* lanes i + (i + 8), then + 4, + 2, + 1 */
LANEWISE float vf_hsum(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] += a.v[i + half];
    return a.v[0];
}

/* the same tree with vf_max */
LANEWISE float vf_hmax(vf a)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

/* lane 2i <-> lane 2i + 1 */
LANEWISE vf vf_swap_pairs(vf a)
{
    vf r;
    VEC_LANES r.v[i] = a.v[i ^ 1];
    return r;
}

/* p0 p0 p1 p1 ... p7 p7 */
static inline vf vf_load_twice(const float *p)
{
    vf r;
    VEC_LANES r.v[i] = p[i / 2];
    return r;
}

/* p * 2^n with one rounding; t = n + 0x1.8p23 */
LANEWISE vf vf_scale_pow2(vf p, vf t)
{
    vi n = vi_bits(t);
    vi a, b;
    VEC_LANES
    {
        int32_t k = (int32_t)((uint32_t)n.v[i] - 0x4B400000u), half = k >> 1;
        a.v[i] = (int32_t)((uint32_t)(half + 127) << 23);
        b.v[i] = (int32_t)((uint32_t)(k - half + 127) << 23);
    }
    return vf_mul(vf_mul(p, vf_bits(a)), vf_bits(b));
}

#endif
