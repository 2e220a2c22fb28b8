/* Gates and sums along rows: equal bits on every path, near double precision, nothing outside touched. */
#include "tests/kernels/paths.h"
#include <math.h>

static const size_t sizes[] = {1, 15, 16, 17, 31, 48, 100, 640};
#define N_SIZES (sizeof sizes / sizeof *sizes)
enum { ROWS = 40 }; /* more rows than one task takes */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Some gates far out, where exp runs into its ends. */
static float *random_gates(uint64_t *rng, size_t n)
{
    float *g = random_floats(rng, n);
    for (size_t i = 0; i < n; i++)
        g[i] *= i % 7 == 0 ? 60.0f : 2.0f;
    return g;
}

static void gelu_times_up_is_near_exact_and_leaves_the_rest_alone(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 1;
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t dim = sizes[k], ld = dim + 3;
        float *gu = random_gates(&rng, ROWS * 2 * dim);
        float *want = filled_floats(ROWS * ld, 7.0f), *got = filled_floats(ROWS * ld, 7.0f);
        for (size_t i = 0; i < n_paths; i++) {
            kn_gelu_mul(paths[i].b, gu, 2 * dim, i == 0 ? want : got, ld, ROWS, dim);
            check_same_bits(want, i == 0 ? want : got, ROWS * ld, paths[i].name, "gelu");
        }
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t j = 0; j < dim; j++) {
                double g = (double)gu[r * 2 * dim + j], u = (double)gu[r * 2 * dim + dim + j];
                double exact = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
                check_close(want[r * ld + j], exact * u, 3e-6, "gelu");
            }
            for (size_t j = dim; j < ld; j++)
                assert_true(want[r * ld + j] == 7.0f);
        }
        free(gu);
        free(want);
        free(got);
    }
    float extremes[8] = {1e30f, -1e30f, INFINITY, 0.0f, 1, 1, 1, 1}, y[4];
    for (size_t i = 0; i < n_paths; i++) {
        kn_gelu_mul(paths[i].b, extremes, 8, y, 4, 1, 4);
        assert_true(y[0] == 1e30f && y[1] == 0.0f && y[2] == INFINITY && y[3] == 0.0f);
    }
    paths_close(paths, n_paths);
}

static void sigmoid_gate_a_value_and_a_head(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 2;
    enum { HEADS = 3 };
    for (size_t k = 0; k < N_SIZES; k++) {
        for (int per_head = 0; per_head < 2; per_head++) {
            size_t dim = sizes[k], ld = HEADS * dim + 2, gates = per_head ? HEADS : HEADS * dim,
                   ldgate = gates + 1;
            float *x = random_floats(&rng, ROWS * ld), *gate = random_gates(&rng, ROWS * ldgate);
            float *want = malloc(ROWS * ld * sizeof(float)), *got = malloc(ROWS * ld * sizeof(float));
            for (size_t i = 0; i < n_paths; i++) {
                float *y = i == 0 ? want : got;
                memcpy(y, x, ROWS * ld * sizeof(float));
                kn_sigmoid_mul(paths[i].b, y, ld, gate, ldgate, per_head, ROWS, HEADS, dim);
                check_same_bits(want, y, ROWS * ld, paths[i].name, "sigmoid");
            }
            for (size_t r = 0; r < ROWS; r++) {
                for (size_t j = 0; j < HEADS * dim; j++) {
                    double g = (double)gate[r * ldgate + (per_head ? j / dim : j)];
                    check_close(want[r * ld + j], (double)x[r * ld + j] * sigmoid(g), 1e-6, "sigmoid");
                }
                check_same_bits(x + r * ld + HEADS * dim, want + r * ld + HEADS * dim, 2, "scalar", "rest");
            }
            free(x);
            free(gate);
            free(want);
            free(got);
        }
    }
    paths_close(paths, n_paths);
}

static void gated_norm_takes_each_head_alone_and_works_in_place(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 3;
    enum { HEADS = 2 };
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t dim = sizes[k], ld = HEADS * dim + 1, ldz = HEADS * dim + 5;
        float *x = random_floats(&rng, ROWS * ld), *z = random_gates(&rng, ROWS * ldz);
        float *w = random_floats(&rng, dim);
        float *want = filled_floats(ROWS * ld, 7.0f), *got = filled_floats(ROWS * ld, 7.0f);
        for (size_t i = 0; i < n_paths; i++) {
            kn_rmsnorm_gated(paths[i].b, x, ld, w, 1e-6f, z, ldz, i == 0 ? want : got, ld, ROWS, HEADS, dim);
            check_same_bits(want, i == 0 ? want : got, ROWS * ld, paths[i].name, "gated norm");
        }
        for (size_t r = 0; r < ROWS; r++) {
            for (size_t h = 0; h < HEADS; h++) {
                double sum = 0;
                for (size_t j = 0; j < dim; j++)
                    sum += pow((double)x[r * ld + h * dim + j], 2);
                for (size_t j = 0; j < dim; j++) {
                    double gate = (double)z[r * ldz + h * dim + j];
                    double norm = (double)x[r * ld + h * dim + j] / sqrt(sum / (double)dim + (double)1e-6f);
                    check_close(want[r * ld + h * dim + j], norm * (double)w[j] * gate * sigmoid(gate), 2e-6,
                                "gated norm");
                }
            }
            assert_true(want[r * ld + HEADS * dim] == 7.0f);
        }
        kn_rmsnorm_gated(paths[0].b, x, ld, w, 1e-6f, z, ldz, x, ld, ROWS, HEADS, dim); /* in place */
        for (size_t r = 0; r < ROWS; r++)
            check_same_bits(want + r * ld, x + r * ld, HEADS * dim, "in place", "gated norm");
        free(x);
        free(z);
        free(w);
        free(want);
        free(got);
    }
    paths_close(paths, n_paths);
}

static void scale_and_add_round_once(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 4;
    for (size_t k = 0; k < N_SIZES; k++) {
        size_t dim = sizes[k], ld = dim + 1, ldy = dim + 2;
        float *x = random_floats(&rng, ROWS * ld), *y = random_floats(&rng, ROWS * ldy);
        float *got = malloc(ROWS * ld * sizeof(float));
        for (size_t i = 0; i < n_paths; i++) {
            memcpy(got, x, ROWS * ld * sizeof(float));
            kn_scale(paths[i].b, got, ld, 25.2982212813f, ROWS, dim);
            kn_add(paths[i].b, got, ld, y, ldy, ROWS, dim);
            for (size_t r = 0; r < ROWS; r++) {
                for (size_t j = 0; j < dim; j++) {
                    float scaled = x[r * ld + j] * 25.2982212813f;
                    assert_true(got[r * ld + j] == scaled + y[r * ldy + j]);
                }
                assert_true(got[r * ld + dim] == x[r * ld + dim]);
            }
        }
        free(x);
        free(y);
        free(got);
    }
    paths_close(paths, n_paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_times_up_is_near_exact_and_leaves_the_rest_alone),
        cmocka_unit_test(sigmoid_gate_a_value_and_a_head),
        cmocka_unit_test(gated_norm_takes_each_head_alone_and_works_in_place),
        cmocka_unit_test(scale_and_add_round_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
