/* Row operations: equal bits on every path, near libm in double precision, exact at their edges. */
#include "tests/kernels/paths.h"
#include <math.h>

static const size_t sizes[] = {1, 2, 15, 16, 17, 31, 48, 100, 576};
#define N_SIZES (sizeof sizes / sizeof *sizes)

static void rmsnorm_of_heads_side_by_side(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 1;
    enum { N = 5, HEADS = 3 };
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t dim = sizes[k], ld = HEADS * dim + 3;
        float *x = random_floats(&rng, N * ld), *w = random_floats(&rng, dim);
        float *want = filled_floats(N * ld, 7.0f), *got = filled_floats(N * ld, 7.0f);
        for (size_t i = 0; i < n_paths; i++) {
            kn_rmsnorm(paths[i].b, x, ld, w, 1e-5f, i == 0 ? want : got, ld, N, HEADS, dim);
            check_same_bits(want, i == 0 ? want : got, N * ld, paths[i].name, "rmsnorm");
        }
        for (size_t r = 0; r < N; r++) {
            for (size_t h = 0; h < HEADS; h++) {
                const float *head = x + r * ld + h * dim;
                double sum = 0;
                for (size_t j = 0; j < dim; j++)
                    sum += (double)head[j] * (double)head[j];
                for (size_t j = 0; j < dim; j++)
                    check_close(want[r * ld + h * dim + j],
                                (double)head[j] / sqrt(sum / (double)dim + (double)1e-5f) * (double)w[j],
                                1e-6, "rmsnorm");
            }
            for (size_t j = HEADS * dim; j < ld; j++)
                assert_true(want[r * ld + j] == 7.0f);
        }
        memcpy(got, x, N * ld * sizeof(float)); /* in place */
        kn_rmsnorm(paths[n_paths - 1].b, got, ld, w, 1e-5f, got, ld, N, HEADS, dim);
        for (size_t r = 0; r < N; r++)
            check_same_bits(want + r * ld, got + r * ld, HEADS * dim, "in place", "rmsnorm");
        free(x);
        free(w);
        free(want);
        free(got);
    }
    paths_close(paths, n_paths);
}

static void rope_turns_pairs_and_leaves_the_rest(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 2;
    enum { N = 4, HEADS = 3, MAX_POS = 5000 };
    static const uint32_t pos[N] = {0, 1, 17, 4999}, rots[] = {2, 10, 16, 32, 64, 80};
    for (size_t k = 0; k < sizeof rots / sizeof *rots; k++) {
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            size_t rot = rots[k], half = rot / 2, dim = rot + 16, ld = HEADS * dim;
            struct kn_rope_table *t;
            assert_int_equal(kn_rope_table_new(MAX_POS, (uint32_t)rot, 10000.0f, &t), KN_OK);
            float *x = random_floats(&rng, N * ld);
            float *want = malloc(N * ld * sizeof(float)), *got = malloc(N * ld * sizeof(float));
            for (size_t i = 0; i < n_paths; i++) {
                float *y = i == 0 ? want : got;
                memcpy(y, x, N * ld * sizeof(float));
                kn_rope(paths[i].b, t, interleaved, y, ld, pos, N, HEADS, dim);
                check_same_bits(want, y, N * ld, paths[i].name, "rope");
            }
            for (size_t r = 0; r < N; r++) {
                for (size_t h = 0; h < HEADS; h++) {
                    const float *in = x + r * ld + h * dim, *out = want + r * ld + h * dim;
                    for (size_t j = 0; j < half; j++) {
                        size_t a = interleaved ? 2 * j : j, b = interleaved ? 2 * j + 1 : j + half;
                        double angle = pos[r] * pow(10000.0, -2.0 * (double)j / (double)rot);
                        check_close(out[a], (double)in[a] * cos(angle) - (double)in[b] * sin(angle), 1e-5,
                                    "rope a");
                        check_close(out[b], (double)in[b] * cos(angle) + (double)in[a] * sin(angle), 1e-5,
                                    "rope b");
                    }
                    check_same_bits(in + rot, out + rot, dim - rot, "scalar", "dimensions past rot");
                }
            }
            free(x);
            free(want);
            free(got);
            kn_rope_table_free(t);
        }
    }
    struct kn_rope_table *t;
    assert_int_equal(kn_rope_table_new(0, 16, 1e4f, &t), KN_EINVAL);
    assert_int_equal(kn_rope_table_new(16, 7, 1e4f, &t), KN_EINVAL);
    assert_int_equal(kn_rope_table_new(16, 16, -1.0f, &t), KN_EINVAL);
    paths_close(paths, n_paths);
}

static void silu_times_up(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 3;
    enum { N = 40 }; /* more rows than one task takes */
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t dim = sizes[k];
        float *gu = random_floats(&rng, N * 2 * dim);
        for (size_t i = 0; i < N * 2 * dim; i++)
            gu[i] *= i % 7 == 0 ? 60.0f : 3.0f;
        float *want = malloc(N * dim * sizeof(float)), *got = malloc(N * dim * sizeof(float));
        for (size_t i = 0; i < n_paths; i++) {
            kn_silu_mul(paths[i].b, gu, 2 * dim, i == 0 ? want : got, dim, N, dim);
            check_same_bits(want, i == 0 ? want : got, N * dim, paths[i].name, "silu");
        }
        for (size_t r = 0; r < N; r++)
            for (size_t j = 0; j < dim; j++) {
                double g = (double)gu[r * 2 * dim + j], u = (double)gu[r * 2 * dim + dim + j];
                check_close(want[r * dim + j], g / (1 + exp(-g)) * u, 1e-6, "silu");
            }
        free(gu);
        free(want);
        free(got);
    }
    paths_close(paths, n_paths);
}

static void logsumexp_and_exp_follow_libm(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 4;
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t n = sizes[k];
        float *x = random_floats(&rng, n), *want = malloc(n * sizeof(float)),
              *got = malloc(n * sizeof(float));
        for (size_t i = 0; i < n; i++)
            x[i] *= 20.0f;
        float max0 = 0, lse0 = 0;
        for (size_t i = 0; i < n_paths; i++) {
            float max, lse;
            kn_logsumexp(paths[i].b, x, n, &max, &lse);
            if (i == 0) {
                max0 = max;
                lse0 = lse;
            }
            check_same_bits(&max0, &max, 1, paths[i].name, "max");
            check_same_bits(&lse0, &lse, 1, paths[i].name, "lse");
            kn_exp(paths[i].b, x, n, 0.7f, lse, i == 0 ? want : got);
            check_same_bits(want, i == 0 ? want : got, n, paths[i].name, "exp");
        }
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < n; i++)
            top = fmax(top, (double)x[i]);
        for (size_t i = 0; i < n; i++) {
            sum += exp((double)x[i] - top);
            double want_exp = exp((double)fmaf(x[i], 0.7f, -lse0));
            assert_true(fabs((double)want[i] - want_exp) <= 2e-7 * want_exp + 1e-44);
        }
        assert_true((double)max0 == top);
        check_close(lse0, top + log(sum), 1e-6, "lse");
        free(x);
        free(want);
        free(got);
    }
    paths_close(paths, n_paths);
}

static void argmax_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 5;
    for (size_t i = 0; i < n_paths; i++) {
        struct kn_backend *b = paths[i].b;
        for (size_t n = 1; n < 70; n++) {
            float *x = random_floats(&rng, n);
            for (size_t at = 0; at < n; at++) {
                for (size_t again = at; again < n; again += 13) {
                    float a = x[at], c = x[again];
                    x[at] = x[again] = 50.0f;
                    if (kn_argmax(b, x, n) != at)
                        fail_msg("%s: n %zu, equal at %zu and %zu", paths[i].name, n, at, again);
                    x[again] = c;
                    x[at] = a;
                }
            }
            free(x);
        }
        float zeros[20] = {-1, -1, -1, -0.0f, 0.0f, 0.0f};
        for (size_t j = 6; j < 20; j++)
            zeros[j] = -1;
        assert_int_equal(kn_argmax(b, zeros, 20), 3);
    }
    paths_close(paths, n_paths);
}

/* Long rows are shared out to threads. */
static void a_long_row_in_pieces_is_as_in_one(void **state)
{
    (void)state;
    enum { N = 5 * 16384 + 21 };
    static const size_t places[] = {0, 16383, 16384, 40000, 65535, 65536, N - 1};
    const size_t n_places = sizeof places / sizeof places[0];
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 11;
    float *x = random_floats(&rng, N), *want = malloc(N * sizeof *want), *got = malloc(N * sizeof *got);
    for (size_t i = 0; i < n_paths; i++) {
        struct kn_backend *b = paths[i].b;
        for (size_t k = n_places; k-- > 0;) { /* from the end: each time the new one comes first */
            float before = x[places[k]];
            x[places[k]] = 50.0f;
            for (size_t l = k; l < n_places; l++) {
                float other = x[places[l]];
                x[places[l]] = 50.0f;
                assert_int_equal(kn_argmax(b, x, N), places[k]);
                x[places[l]] = other;
            }
            x[places[k]] = before;
        }
        kn_exp(b, x, N, 0.7f, 0.3f, i == 0 ? want : got);
        if (i > 0)
            assert_memory_equal(want, got, N * sizeof *want);
        float *none = malloc(N * sizeof *none);
        for (size_t k = 0; k < N; k++)
            none[k] = k % 3 ? NAN : -INFINITY;
        assert_int_equal(kn_argmax(b, none, N), 0);
        none[N - 3] = -1e30f;
        assert_int_equal(kn_argmax(b, none, N), N - 3);
        free(none);
    }
    free(x);
    free(want);
    free(got);
    paths_close(paths, n_paths);
}

static void nan_counts_as_minus_infinity(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    float x[37], max, lse;
    for (size_t i = 0; i < n_paths; i++) {
        struct kn_backend *b = paths[i].b;
        for (size_t j = 0; j < 37; j++)
            x[j] = NAN;
        assert_int_equal(kn_argmax(b, x, 37), 0);
        kn_logsumexp(b, x, 37, &max, &lse);
        assert_true(max == -INFINITY && lse == -INFINITY);
        x[33] = -3.0f;
        x[35] = -3.0f;
        assert_int_equal(kn_argmax(b, x, 37), 33);
        kn_logsumexp(b, x, 37, &max, &lse);
        assert_true(max == -3.0f && fabsf(lse - (-3.0f + 0.69314718f)) < 1e-6f);
        x[2] = INFINITY;
        assert_int_equal(kn_argmax(b, x, 37), 2);
        kn_logsumexp(b, x, 37, &max, &lse);
        assert_true(max == INFINITY && lse == INFINITY);
    }
    paths_close(paths, n_paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_of_heads_side_by_side),
        cmocka_unit_test(rope_turns_pairs_and_leaves_the_rest),
        cmocka_unit_test(silu_times_up),
        cmocka_unit_test(logsumexp_and_exp_follow_libm),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
        cmocka_unit_test(a_long_row_in_pieces_is_as_in_one),
        cmocka_unit_test(nan_counts_as_minus_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
