/*
 * Ceilings: the same few instructions that the kernels live on, in loops that do nothing else.
 *
 * Each loop runs on all threads of the backend at once, with enough independent chains to hide latency.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ROUNDS 5

/* The best of a few rounds: a ceiling is what the machine can do, not what it does when others use it. */
static double best_rate(struct kn_backend *b, void (*fn)(void *arg, size_t i), void *arg, size_t n,
                        double amount)
{
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        double start = wall_s();
        kn_parallel(b, n, fn, arg);
        double rate = amount / (wall_s() - start);
        if (rate > best)
            best = rate;
    }
    return best;
}

/* ---- reads -------------------------------------------------------------------------------------------- */

#define SLICE ((size_t)1 << 20)

struct reading {
    const uint8_t *data;
    uint64_t *sums; /* one a slice: kept, so that the reads are */
};

typedef uint64_t lane4 __attribute__((vector_size(32), aligned(32)));

/* Four streams, each asked for ahead of its use: without that, what the processor asks for by itself is the
 * limit, and not the memory. */
static void read_slice(void *arg, size_t i)
{
    enum { QUARTER = SLICE / 4 / sizeof(lane4), LINE = 64 / sizeof(lane4), AHEAD = 8 * LINE };
    struct reading *r = arg;
    const lane4 *p = (const lane4 *)(const void *)(r->data + i * SLICE);
    lane4 sum[4] = {0};
    for (size_t k = 0; k < QUARTER; k += LINE)
        for (size_t s = 0; s < 4; s++) {
            const lane4 *at = p + s * QUARTER + k;
            if (k + AHEAD < QUARTER)
                __builtin_prefetch(at + AHEAD);
            sum[s] ^= at[0] ^ at[1];
        }
    lane4 a = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    r->sums[i] = a[0] ^ a[1] ^ a[2] ^ a[3];
}

double ceiling_read_bytes_per_s(struct kn_backend *b, size_t bytes)
{
    size_t slices = (bytes + SLICE - 1) / SLICE;
    uint8_t *data = aligned_alloc(2 * SLICE, (slices + 1) / 2 * 2 * SLICE);
    uint64_t *sums = calloc(slices, sizeof *sums);
    double rate = 0;
    if (data && sums) {
        madvise(data, slices * SLICE, MADV_HUGEPAGE);
        memset(data, 1, slices * SLICE);
        struct reading r = {data, sums};
        rate = best_rate(b, read_slice, &r, slices, (double)slices * (double)SLICE);
    }
    free(data);
    free(sums);
    return rate;
}

/* ---- operations --------------------------------------------------------------------------------------- */

#define STEPS 4000000

struct peak {
    double *sink;
};

#if defined(__x86_64__)
/* Twelve chains: two or three units of four or five cycles each. */
#define CHAINS(step)                                                                                         \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)

__attribute__((target("avx2,fma"))) static void fma_avx2(void *arg, size_t i)
{
    __m256 a[12], x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(1e-3F);
    for (int k = 0; k < 12; k++)
        a[k] = _mm256_set1_ps((float)k);
    for (int s = 0; s < STEPS; s++) {
#define STEP(k) a[k] = _mm256_fmadd_ps(a[k], x, y);
        CHAINS(STEP)
#undef STEP
        __asm__ volatile("" : "+x"(x));
    }
    for (int k = 1; k < 12; k++)
        a[0] = _mm256_add_ps(a[0], a[k]);
    ((struct peak *)arg)->sink[i] = (double)_mm256_cvtss_f32(a[0]);
}

__attribute__((target("avx512f"))) static void fma_avx512(void *arg, size_t i)
{
    __m512 a[12], x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(1e-3F);
    for (int k = 0; k < 12; k++)
        a[k] = _mm512_set1_ps((float)k);
    for (int s = 0; s < STEPS; s++) {
#define STEP(k) a[k] = _mm512_fmadd_ps(a[k], x, y);
        CHAINS(STEP)
#undef STEP
        __asm__ volatile("" : "+v"(x));
    }
    for (int k = 1; k < 12; k++)
        a[0] = _mm512_add_ps(a[0], a[k]);
    ((struct peak *)arg)->sink[i] = (double)_mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx2"))) static void int16_avx2(void *arg, size_t i)
{
    __m256i a[12], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
    for (int k = 0; k < 12; k++)
        a[k] = _mm256_set1_epi32(k);
    for (int s = 0; s < STEPS; s++) {
#define STEP(k)                                                                                              \
    a[k] = _mm256_add_epi32(a[k], _mm256_madd_epi16(x, y));                                                  \
    __asm__ volatile("" : "+x"(x));
        CHAINS(STEP)
#undef STEP
    }
    for (int k = 1; k < 12; k++)
        a[0] = _mm256_add_epi32(a[0], a[k]);
    ((struct peak *)arg)->sink[i] = (double)_mm256_extract_epi32(a[0], 0);
}

__attribute__((target("avx512f,avx512bw"))) static void int16_avx512(void *arg, size_t i)
{
    __m512i a[12], x = _mm512_set1_epi16(3), y = _mm512_set1_epi16(5);
    for (int k = 0; k < 12; k++)
        a[k] = _mm512_set1_epi32(k);
    for (int s = 0; s < STEPS; s++) {
#define STEP(k)                                                                                              \
    a[k] = _mm512_add_epi32(a[k], _mm512_madd_epi16(x, y));                                                  \
    __asm__ volatile("" : "+v"(x));
        CHAINS(STEP)
#undef STEP
    }
    for (int k = 1; k < 12; k++)
        a[0] = _mm512_add_epi32(a[0], a[k]);
    ((struct peak *)arg)->sink[i] = (double)_mm_cvtsi128_si32(_mm512_castsi512_si128(a[0]));
}

__attribute__((target("avx512f,avx512vnni"))) static void int16_vnni(void *arg, size_t i)
{
    __m512i a[12], x = _mm512_set1_epi16(3), y = _mm512_set1_epi16(5);
    for (int k = 0; k < 12; k++)
        a[k] = _mm512_set1_epi32(k);
    for (int s = 0; s < STEPS; s++) {
#define STEP(k) a[k] = _mm512_dpwssd_epi32(a[k], x, y);
        CHAINS(STEP)
#undef STEP
        __asm__ volatile("" : "+v"(x));
    }
    for (int k = 1; k < 12; k++)
        a[0] = _mm512_add_epi32(a[0], a[k]);
    ((struct peak *)arg)->sink[i] = (double)_mm_cvtsi128_si32(_mm512_castsi512_si128(a[0]));
}
#endif

static void fma_scalar(void *arg, size_t i)
{
    float a[12], x = 0.999F;
    for (int k = 0; k < 12; k++)
        a[k] = (float)k;
    for (int s = 0; s < STEPS; s++)
        for (int k = 0; k < 12; k++)
            a[k] = a[k] * x + 1e-3F;
    for (int k = 1; k < 12; k++)
        a[0] += a[k];
    ((struct peak *)arg)->sink[i] = (double)a[0];
}

static double peak_rate(struct kn_backend *b, void (*fn)(void *arg, size_t i), double lanes)
{
    unsigned threads = kn_backend_threads(b);
    double *sink = calloc(threads, sizeof *sink);
    if (!sink)
        return 0;
    struct peak p = {sink};
    double rate = best_rate(b, fn, &p, threads, 2.0 * 12 * STEPS * lanes * threads);
    free(sink);
    return rate;
}

double ceiling_fma_per_s(struct kn_backend *b)
{
#if defined(__x86_64__)
    if (kn_backend_isa(b) == KN_ISA_AVX512)
        return peak_rate(b, fma_avx512, 16);
    if (kn_backend_isa(b) == KN_ISA_AVX2)
        return peak_rate(b, fma_avx2, 8);
#endif
    return peak_rate(b, fma_scalar, 1);
}

double ceiling_int16_per_s(struct kn_backend *b)
{
#if defined(__x86_64__)
    if (kn_backend_isa(b) == KN_ISA_AVX512)
        return strstr(kn_backend_features(b), "vnni") ? peak_rate(b, int16_vnni, 32)
                                                      : peak_rate(b, int16_avx512, 32);
    if (kn_backend_isa(b) == KN_ISA_AVX2)
        return peak_rate(b, int16_avx2, 16);
#endif
    return peak_rate(b, fma_scalar, 1);
}
