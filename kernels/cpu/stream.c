/* Copies that leave the caches alone (see kernels.h). */
#include "kernels/kernels.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __x86_64__

/* A line of 64 bytes. */
static void line_sse2(uint8_t *to, const uint8_t *from)
{
    const __m128i *f = (const void *)from;
    __m128i *t = (void *)to, a = _mm_load_si128(f), b = _mm_load_si128(f + 1), c = _mm_load_si128(f + 2),
            d = _mm_load_si128(f + 3);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, d);
}

__attribute__((target("avx512f"))) static void line_avx512(uint8_t *to, const uint8_t *from)
{
    _mm512_stream_si512((void *)to, _mm512_load_si512((const void *)from));
}

/* 16 KiB at a time, 128 bytes of each of four pages in turns, with stores that leave the destination out of
 * the caches; bytes of the piece after the next are asked for meanwhile. n is a multiple of a line. */
#define STREAM(LINE)                                                                                         \
    const size_t page = 4096, turn = 4 * page, ahead = 2 * turn;                                             \
    size_t at = 0;                                                                                           \
    for (; n - at >= turn; at += turn)                                                                       \
        for (size_t in = at; in < at + page; in += 128)                                                      \
            for (size_t p = in; p < in + turn; p += page) {                                                  \
                __builtin_prefetch(from + p + ahead, 0, 2);                                                  \
                __builtin_prefetch(from + p + ahead + 64, 0, 2);                                             \
                LINE(to + p, from + p);                                                                      \
                LINE(to + p + 64, from + p + 64);                                                            \
            }                                                                                                \
    for (; at < n; at += 64)                                                                                 \
    LINE(to + at, from + at)

static void stream_sse2(uint8_t *to, const uint8_t *from, size_t n)
{
    STREAM(line_sse2);
}

__attribute__((target("avx512f"))) static void stream_avx512(uint8_t *to, const uint8_t *from, size_t n)
{
    STREAM(line_avx512);
}

void kn_copy_away(void *to, const void *from, size_t n)
{
    if (__builtin_cpu_supports("avx512f"))
        stream_avx512(to, from, n);
    else
        stream_sse2(to, from, n);
}

void kn_copy_away_end(void)
{
    _mm_sfence();
}

#else

void kn_copy_away_end(void)
{
}

void kn_copy_away(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

#endif
