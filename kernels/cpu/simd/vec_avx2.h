/*
 * The 16-lane vector on AVX2 with FMA and F16C: two registers. Meanings are those of vec_scalar.h, to the
 * bit.
 */
#ifndef ISOTHERM_KERNELS_CPU_SIMD_VEC_AVX2_H
#define ISOTHERM_KERNELS_CPU_SIMD_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256i lo, hi;
} vi;
typedef struct {
    __m256 lo, hi; /* all ones or all zeros a lane */
} vm;

static inline vm vm_first(size_t n)
{
    __m256i count = _mm256_set1_epi32(n > 16 ? 16 : (int)n);
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vm){_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}

static inline vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline vf vf_load_n(const float *p, size_t n)
{
    vm m = vm_first(n);
    return (vf){_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
                _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

static inline void vf_store_n(float *p, vf a, size_t n)
{
    vm m = vm_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

static inline vf vf_set1(float x)
{
    __m256 a = _mm256_set1_ps(x);
    return (vf){a, a};
}

static inline vf vf_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline vf vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline vf vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline vf vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline vf vf_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline vf vf_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

static inline vf vf_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

static inline vm vf_gt(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}

static inline vf vf_blend(vm m, vf yes, vf no)
{
    return (vf){_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}

static inline vi vi_bits(vf a)
{
    return (vi){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}

static inline vf vf_bits(vi a)
{
    return (vf){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}

static inline vi vi_blend(vm m, vi yes, vi no)
{
    return vi_bits(vf_blend(m, vf_bits(yes), vf_bits(no)));
}

static inline vi vi_set1(int32_t x)
{
    __m256i a = _mm256_set1_epi32(x);
    return (vi){a, a};
}

static inline vi vi_load(const void *p)
{
    const __m256i *q = p;
    return (vi){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

static inline void vi_store(void *p, vi a)
{
    __m256i *q = p;
    _mm256_storeu_si256(q, a.lo);
    _mm256_storeu_si256(q + 1, a.hi);
}

static inline vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

static inline vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

static inline vi vi_max(vi a, vi b)
{
    return (vi){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}

#define vi_shr16(a, count) ((vi){_mm256_srli_epi16((a).lo, count), _mm256_srli_epi16((a).hi, count)})
#define vi_sra(a, count)   ((vi){_mm256_srai_epi32((a).lo, count), _mm256_srai_epi32((a).hi, count)})

static inline vf vf_from_vi(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

static inline vi vi_from_i8(const int8_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (vi){_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}

static inline vi vi_widen_i8(const int8_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p, *high = (const __m128i *)(const void *)(p + 8);
    return (vi){_mm256_cvtepi8_epi32(_mm_loadl_epi64(q)), _mm256_cvtepi8_epi32(_mm_loadl_epi64(high))};
}

static inline vi vi_dot(vi acc, vi a, vi b)
{
    return (vi){_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
                _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}

static inline int32_t vi_hmax(vi a)
{
    __m256i b = _mm256_max_epi32(a.lo, a.hi);
    __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    c = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xB1)));
}

static inline void vi_hsum_two(vi a, vi b, int32_t sums[2])
{
    __m256i x = _mm256_add_epi32(a.lo, a.hi), y = _mm256_add_epi32(b.lo, b.hi);
    __m256i pairs = _mm256_hadd_epi32(x, y); /* x x y y | x x y y */
    pairs = _mm256_hadd_epi32(pairs, pairs); /* x y x y | x y x y */
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sums[0] = _mm_extract_epi32(both, 0);
    sums[1] = _mm_extract_epi32(both, 1);
}

static inline vi vi_round(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}

static inline void vi_store16(int16_t *p, vi a, vi b)
{
    __m256i *q = (__m256i *)(void *)p;
    _mm256_storeu_si256(q, _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8));
    _mm256_storeu_si256(q + 1, _mm256_permute4x64_epi64(_mm256_packs_epi32(b.lo, b.hi), 0xD8));
}

static inline vf vf_from_f16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

static inline vf vf_from_bf16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return vf_bits((vi){_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16),
                        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16)});
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    __m128i *q = (__m128i *)(void *)p;
    _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* the upper half of each lane after rounding; NaN becomes quiet */
static inline __m256i vec_bf16_lanes(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
    return _mm256_srli_epi32(_mm256_castps_si256(r), 16);
}

static inline void vf_to_bf16(uint16_t *p, vf a)
{
    __m256i x = _mm256_packus_epi32(vec_bf16_lanes(a.lo), vec_bf16_lanes(a.hi));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(x, 0xD8));
}

static inline float vf_hsum(vf a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static inline float vf_hmax(vf a)
{
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

static inline vf vf_swap_pairs(vf a)
{
    return (vf){_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
}

static inline vf vf_load_twice(const float *p)
{
    __m256 x = _mm256_loadu_ps(p);
    return (vf){_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
                _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}

static inline __m256 vec_scale_pow2_half(__m256 p, __m256 t)
{
    __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4B400000));
    __m256i half = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

static inline vf vf_scale_pow2(vf p, vf t)
{
    return (vf){vec_scale_pow2_half(p.lo, t.lo), vec_scale_pow2_half(p.hi, t.hi)};
}

#endif
