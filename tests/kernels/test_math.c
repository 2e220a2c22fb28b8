/* The scalar functions against libm, and exp on every path against the scalar one. */
#include "tests/kernels/paths.h"
#include <math.h>

/* |got - want| in units of got's last place */
static double ulps(float got, double want)
{
    if ((double)got == want || (isnan(got) && isnan(want)))
        return 0;
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
}

static void expf_is_within_1_1_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = -1100000; i <= 900000; i += 7) {
        float x = (float)i * 1e-4f;
        double want = exp((double)x);
        if (want > (double)__FLT_MAX__)
            assert_true(isinf(kn_expf(x)));
        else
            worst = fmax(worst, ulps(kn_expf(x), want));
    }
    print_message("worst: %.3f ulp\n", worst);
    assert_true(worst < 1.1);
    assert_true(kn_expf(0.0f) == 1.0f && kn_expf(-INFINITY) == 0.0f && isinf(kn_expf(INFINITY)));
    assert_true(isnan(kn_expf(NAN)));
}

static void exp_has_the_same_bits_on_all_paths(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    enum { N = 4096 };
    float x[N], out[N];
    uint64_t rng = 8;
    static const float edges[] = {0.0f,     -0.0f,     1e-45f,   -1e-40f,  88.7228f, 88.73f,
                                  200.0f,   -87.4f,    -95.0f,   -103.9f,  -104.1f,  -1e30f,
                                  INFINITY, -INFINITY, 0.34657f, -0.34657f};
    for (size_t i = 0; i < N; i++)
        x[i] = i < 16 ? edges[i] : random_float(&rng) * 60.0f;
    for (size_t p = 0; p < n_paths; p++) {
        kn_exp(paths[p].b, x, N, 1.0f, 0.0f, out);
        for (size_t i = 0; i < N; i++) {
            float want = kn_expf(x[i]);
            if (memcmp(&out[i], &want, sizeof want) != 0)
                fail_msg("%s: exp(%a) is %a, not %a", paths[p].name, (double)x[i], (double)out[i],
                         (double)want);
        }
    }
    paths_close(paths, n_paths);
}

static void logf_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t u = 1; u < 0x7F800000u; u += 40009) {
        float x;
        memcpy(&x, &u, sizeof x);
        worst = fmax(worst, ulps(kn_logf(x), log((double)x)));
    }
    print_message("worst: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
    assert_true(kn_logf(1.0f) == 0.0f && isinf(kn_logf(INFINITY)) && kn_logf(0.0f) == -INFINITY);
    assert_true(isnan(kn_logf(-1.0f)) && isnan(kn_logf(NAN)));
}

static void softplusf_keeps_the_digits_of_small_values(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = -800000; i <= 800000; i += 7) {
        float x = (float)i * 1e-4f;
        double want = fmax((double)x, 0.0) + log1p(exp(-fabs((double)x)));
        worst = fmax(worst, ulps(kn_softplusf(x), want));
    }
    print_message("worst: %.3f ulp\n", worst);
    assert_true(worst < 2);
    assert_true(kn_softplusf(100.0f) == 100.0f && kn_softplusf(-INFINITY) == 0.0f);
    assert_true(isinf(kn_softplusf(INFINITY)) && isnan(kn_softplusf(NAN)));
}

static void pow_is_near_libm(void **state)
{
    (void)state;
    static const double bases[] = {10000.0, 1e6, 500000.0, 1.0, 0.3, 1234.5};
    double worst = 0;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        for (int k = -160; k <= 160; k++)
            worst = fmax(worst, fabs(kn_pow(bases[i], k / 128.0) / pow(bases[i], k / 128.0) - 1));
    print_message("worst: %.3g relative\n", worst);
    assert_true(worst < 1e-14);
    assert_true(kn_pow(10.0, -5000.0) == 0.0 && isinf(kn_pow(10.0, 5000.0)));
}

static void sincos_is_near_libm(void **state)
{
    (void)state;
    double worst = 0, s, c;
    for (int i = -200000; i <= 200000; i++) {
        double x = i * (i % 3 == 0 ? 1e-4 : i % 3 == 1 ? 0.7300001 : 5.1);
        kn_sincos(x, &s, &c);
        worst = fmax(worst, fmax(fabs(s - sin(x)), fabs(c - cos(x))));
    }
    print_message("worst: %.3g\n", worst);
    assert_true(worst < 1e-15);
    kn_sincos(INFINITY, &s, &c);
    assert_true(s >= -1 && s <= 1 && c >= -1 && c <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expf_is_within_1_1_ulp),
        cmocka_unit_test(exp_has_the_same_bits_on_all_paths),
        cmocka_unit_test(logf_is_within_one_ulp),
        cmocka_unit_test(pow_is_near_libm),
        cmocka_unit_test(sincos_is_near_libm),
        cmocka_unit_test(softplusf_keeps_the_digits_of_small_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
