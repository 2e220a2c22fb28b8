/*
 * The 16-lane vector on AVX-512 (F, BW, DQ, VL; VNNI when compiled for it): one register. Meanings are those
 * of vec_scalar.h, to the bit.
 */
#ifndef ISOTHERM_KERNELS_CPU_SIMD_VEC_AVX512_H
#define ISOTHERM_KERNELS_CPU_SIMD_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline vm vm_first(size_t n)
{
    return (vm)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline vf vf_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline void vf_store_n(float *p, vf a, size_t n)
{
    _mm512_mask_storeu_ps(p, vm_first(n), a);
}

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vm vf_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

static inline vf vf_blend(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

static inline vi vi_blend(vm m, vi yes, vi no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}

static inline vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}

#define vi_shr16(a, count) _mm512_srli_epi16(a, count)
#define vi_sra(a, count)   _mm512_srai_epi32(a, count)

static inline vf vf_from_vi(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

static inline vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}

static inline vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

static inline vi vi_from_i8(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline vi vi_widen_i8(const int8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vi vi_dot(vi acc, vi a, vi b)
{
#if defined(__AVX512VNNI__)
    /* in place: of the intrinsic gcc 12 makes two copies of every accumulator a turn */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

static inline int32_t vi_hmax(vi a)
{
    return _mm512_reduce_max_epi32(a);
}

static inline void vi_hsum_two(vi a, vi b, int32_t sums[2])
{
    __m256i x = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(b), _mm512_extracti64x4_epi64(b, 1));
    __m256i pairs = _mm256_hadd_epi32(x, y); /* x x y y | x x y y */
    pairs = _mm256_hadd_epi32(pairs, pairs); /* x y x y | x y x y */
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sums[0] = _mm_extract_epi32(both, 0);
    sums[1] = _mm_extract_epi32(both, 1);
}

static inline vi vi_round(vf a)
{
    return _mm512_cvtps_epi32(a);
}

static inline void vi_store16(int16_t *p, vi a, vi b)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256((__m256i *)(void *)(p + 16), _mm512_cvtepi32_epi16(b));
}

static inline vf vf_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline vf vf_from_bf16(const uint16_t *p)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void vf_to_bf16(uint16_t *p, vf a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd);
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

static inline float vf_hsum(vf a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float vf_hmax(vf a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline vf vf_swap_pairs(vf a)
{
    return _mm512_permute_ps(a, 0xB1);
}

static inline vf vf_load_twice(const float *p)
{
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}

static inline vf vf_scale_pow2(vf p, vf t)
{
    return _mm512_scalef_ps(p, _mm512_sub_ps(t, _mm512_set1_ps(0x1.8p23f)));
}

#endif
