/*
 * Picks the 16-lane vector of the path being compiled (KN_VEC_AVX512, KN_VEC_AVX2, or neither: scalar), gives
 * the functions on top of it that need no instruction of their own, and names: KN_FN(x) is x with the path's
 * suffix.
 */
#ifndef ISOTHERM_KERNELS_CPU_SIMD_VEC_H
#define ISOTHERM_KERNELS_CPU_SIMD_VEC_H

#if defined(KN_VEC_AVX512)
#include "kernels/cpu/simd/vec_avx512.h"
#elif defined(KN_VEC_AVX2)
#include "kernels/cpu/simd/vec_avx2.h"
#else
#include "kernels/cpu/simd/vec_scalar.h"
#endif
#include "kernels/cpu/simd/exp_constants.h"
#include "kernels/kernels.h"

#define KN_CAT_(a, b) a##_##b
#define KN_CAT(a, b)  KN_CAT_(a, b)
#define KN_FN(name)   KN_CAT(name, KN_PATH)

/* UNROLL: loops over the registers of a tile; ROLLED: loops around those, which spill when unrolled; INLINE:
 * functions made once for each tile shape. KN_COMPACT: neither, for the scalar path (it has no registers to
 * fill) and for sanitizers (instrumented, the copies take minutes to compile). */
#if defined(KN_COMPACT)
#define UNROLL
#define ROLLED
#define INLINE static inline
#else
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define ROLLED _Pragma("GCC unroll 1")
#endif
#define INLINE static inline __attribute__((always_inline))
#endif

/* Ask for the cache line `bytes` behind p, which may lie outside of what p points into: then nothing happens.
 */
INLINE void prefetch(const void *p, size_t bytes)
{
    __builtin_prefetch((const void *)((uintptr_t)p + bytes));
}

/* kn_expf in each lane */
INLINE vf vf_exp(vf x)
{
    x = vf_max(vf_set1(EXP_LO), x);
    x = vf_min(vf_set1(EXP_HI), x);
    vf t = vf_fma(x, vf_set1(EXP_LOG2E), vf_set1(EXP_ROUND));
    vf n = vf_sub(t, vf_set1(EXP_ROUND));
    vf r = vf_fma(n, vf_set1(-EXP_LN2_HI), x);
    r = vf_fma(n, vf_set1(-EXP_LN2_LO), r);
    vf q = vf_set1(EXP_Q4);
    q = vf_fma(q, r, vf_set1(EXP_Q3));
    q = vf_fma(q, r, vf_set1(EXP_Q2));
    q = vf_fma(q, r, vf_set1(EXP_Q1));
    q = vf_fma(q, r, vf_set1(EXP_Q0));
    vf p = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set1(1.0f));
    return vf_scale_pow2(p, t);
}

/* 16 values of a weight or KV type as floats; element counts from `p` in elements of that type */
INLINE vf vf_from_kv(enum kn_kv_dtype dtype, const void *p, size_t element)
{
    if (dtype == KN_KV_F16)
        return vf_from_f16((const uint16_t *)p + element);
    if (dtype == KN_KV_BF16)
        return vf_from_bf16((const uint16_t *)p + element);
    return vf_load((const float *)p + element);
}

/* 16 floats to a KV type, f16 saturating */
INLINE void vf_to_kv(enum kn_kv_dtype dtype, vf a, void *p, size_t element)
{
    if (dtype == KN_KV_F16)
        vf_to_f16((uint16_t *)p + element, vf_min(vf_set1(65504.0f), vf_max(vf_set1(-65504.0f), a)));
    else if (dtype == KN_KV_BF16)
        vf_to_bf16((uint16_t *)p + element, a);
    else
        vf_store((float *)p + element, a);
}

/* x / (1 + exp(-gate)) in each lane */
INLINE vf vf_sigmoid_mul(vf x, vf gate)
{
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), gate))));
}

#endif
