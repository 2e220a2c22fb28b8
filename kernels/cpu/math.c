/*
 * Scalar exp, log, pow, sin and cos with one fixed sequence of IEEE operations, so that tables, samplers and
 * vector paths see the same bits on every machine and C library. Pure functions, any thread.
 *
 * Reduction and series are the textbook ones (J.-M. Muller, "Elementary Functions", 2nd edition, chapters 4
 * and 11). Errors, measured by tests/kernels: kn_expf within 1.1 ulp, kn_logf within 1, kn_softplusf within
 * 2, kn_pow within 1e-14 relative for the exponents of a rope table, kn_sincos within 1e-15 for |x| < 2^20
 * (the reduction has 99 bits of pi / 2; beyond 2^30 accuracy is lost, the result stays in range).
 */
#include "kernels/cpu/simd/exp_constants.h"
#include "kernels/kernels.h"
#include <string.h>

static uint32_t bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static double double_of_bits(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

/* 2^n for -1022 <= n <= 1023 */
static double pow2(int n)
{
    return double_of_bits((uint64_t)(n + 1023) << 52);
}

float kn_expf(float x)
{
    x = EXP_LO > x ? EXP_LO : x;
    x = EXP_HI < x ? EXP_HI : x;
    float t = __builtin_fmaf(x, EXP_LOG2E, EXP_ROUND);
    float n = t - EXP_ROUND;
    float r = __builtin_fmaf(n, -EXP_LN2_HI, x);
    r = __builtin_fmaf(n, -EXP_LN2_LO, r);
    float q = EXP_Q4;
    q = __builtin_fmaf(q, r, EXP_Q3);
    q = __builtin_fmaf(q, r, EXP_Q2);
    q = __builtin_fmaf(q, r, EXP_Q1);
    q = __builtin_fmaf(q, r, EXP_Q0);
    float p = __builtin_fmaf(r * r, q, r) + 1.0f;
    int k = (int)(bits_of_float(t) - bits_of_float(EXP_ROUND));
    int half = k >> 1;
    return p * float_of_bits((uint32_t)(half + 127) << 23) * float_of_bits((uint32_t)(k - half + 127) << 23);
}

/* log of a positive normal double as n * ln 2 + log(m), m in [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s). */
static void log_parts(double x, int *n, double *log_m)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    double m = double_of_bits((u & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp0) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 21; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * z;
    *n = e;
    *log_m = 2.0 * s + 2.0 * s * sum;
}

#define LN2_HI 0x1.62e42fefp-1 /* 33 bits: n * LN2_HI is exact */
#define LN2_LO 0x1.473de6af278edp-34

float kn_logf(float x)
{
    if (!(x > 0.0f))
        return x == 0.0f ? -__builtin_inff() : __builtin_nanf("");
    if (x == __builtin_inff())
        return x;
    int n;
    double log_m;
    log_parts(x, &n, &log_m); /* a float's denormals are normal doubles */
    return (float)(n * LN2_HI + (log_m + n * LN2_LO));
}

/* log(1 + z) of z = e^-|x| in (0, 1] as 2 atanh(z / (2 + z)), in double and never as the log of a rounded
 * sum: small z keeps its digits, and only the last addition rounds to float. */
float kn_softplusf(float x)
{
    static const double odd[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    double z = (double)kn_expf(x < 0.0f ? x : -x);
    double s = z / (2.0 + z), square = s * s, sum = 0.0;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        sum = (sum + odd[i]) * square;
    return (float)((x > 0.0f ? (double)x : 0.0) + (2.0 * s + 2.0 * s * sum));
}

double kn_pow(double base, double exponent)
{
    int n;
    double log_m;
    log_parts(base, &n, &log_m);
    /* exponent * n * ln 2 is split so that its large part is a multiple of ln 2 */
    double whole = exponent * n;
    double t = exponent * log_m;
    double k = whole + t * 0x1.71547652b82fep0;
    if (!(k > -1000.0))
        return 0.0;
    if (!(k < 1000.0))
        return __builtin_inf();
    double rounded = (k + 0x1.8p52) - 0x1.8p52;
    double r = ((whole - rounded) * LN2_HI + t) + (whole - rounded) * LN2_LO;
    double sum = 1.0;
    for (int i = 15; i >= 1; i--)
        sum = 1.0 + sum * r / i;
    return sum * pow2((int)rounded);
}

#define PIO2_1 0x1.921fb544p0 /* pi / 2 in three parts, 33 bits each but the last */
#define PIO2_2 0x1.0b4611a6p-34
#define PIO2_3 0x1.3198a2e037073p-69

void kn_sincos(double x, double *sin_out, double *cos_out)
{
    double n = (x * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
    if (!(n > -0x1p50 && n < 0x1p50)) {
        *sin_out = 0.0;
        *cos_out = 1.0;
        return;
    }
    double r = ((x - n * PIO2_1) - n * PIO2_2) - n * PIO2_3, z = r * r;
    double s = 0.0, c = 0.0;
    for (int k = 17; k >= 3; k -= 2)
        s = -z / ((double)k * (k - 1)) * (1.0 + s);
    for (int k = 18; k >= 2; k -= 2)
        c = -z / ((double)k * (k - 1)) * (1.0 + c);
    double sine = r + r * s, cosine = 1.0 + c;
    switch ((uint64_t)(int64_t)n & 3) {
    case 0:
        *sin_out = sine;
        *cos_out = cosine;
        break;
    case 1:
        *sin_out = cosine;
        *cos_out = -sine;
        break;
    case 2:
        *sin_out = -sine;
        *cos_out = -cosine;
        break;
    default:
        *sin_out = -cosine;
        *cos_out = sine;
        break;
    }
}
