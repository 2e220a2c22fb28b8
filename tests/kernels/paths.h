/*
 * Shared by the kernel tests: every code path this machine has, with 1, 2 and 3 threads; deterministic
 * random numbers; buffers of exact size (so that ASan sees the first byte too far).
 */
#ifndef ISOTHERM_TESTS_KERNELS_PATHS_H
#define ISOTHERM_TESTS_KERNELS_PATHS_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include "kernels/kernels.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct path {
    struct kn_backend *b;
    char name[48];
};

/* The scalar path with one thread is the first; returns their number. */
static inline size_t paths_open(struct path out[9])
{
    static const enum kn_isa isas[] = {KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512};
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        for (unsigned threads = 1; threads <= 3; threads++) {
            int rc = kn_backend_open(isas[i], threads, &out[n].b);
            if (!kn_isa_available(isas[i])) {
                assert_int_equal(rc, KN_EUNSUPPORTED);
                continue;
            }
            assert_int_equal(rc, KN_OK);
            snprintf(out[n].name, sizeof out[n].name, "%s x %u", kn_backend_features(out[n].b), threads);
            n++;
        }
    }
    return n;
}

static inline void paths_close(struct path *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kn_backend_close(p[i].b);
}

static inline uint64_t random_bits(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* roughly normal, unit variance */
static inline float random_float(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random_bits(state) >> 40) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

__attribute__((noinline, unused)) static float *random_floats(uint64_t *state, size_t n)
{
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(state);
    return x;
}

__attribute__((noinline, unused)) static float *filled_floats(size_t n, float value)
{
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

static inline void check_same_bits(const float *a, const float *b, size_t n, const char *path,
                                   const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s, %s: element %zu is %a, scalar has %a", what, path, i, (double)b[i], (double)a[i]);
}

/* within `relative` of want; near zero, of 1e-3 more */
static inline void check_close(float got, double want, double relative, const char *what)
{
    if (!(fabs((double)got - want) <= relative * (fabs(want) + 1e-3)))
        fail_msg("%s: %.9g, exactly %.9g", what, (double)got, want);
}

/* value as the 16-bit formats hold it */
static inline uint16_t half_of(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}

static inline float of_half(uint16_t u)
{
    _Float16 h;
    memcpy(&h, &u, sizeof h);
    return (float)h;
}

static inline uint16_t bfloat_of(float x) /* truncated */
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static inline float of_bfloat(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* x as a cache of this type holds it: to the nearest, ties to even */
static inline float rounded(enum kn_kv_dtype dtype, float x)
{
    if (dtype == KN_KV_F16)
        return of_half(half_of(x));
    if (dtype == KN_KV_F32)
        return x;
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return of_bfloat((uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16));
}

#endif
