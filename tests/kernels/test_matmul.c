/* Matrix products: equal bits on every path, threads and batch; near a double-precision product. */
#include "tests/kernels/paths.h"
#include <math.h>

struct weights {
    struct kn_matrix *m;
    double *exact; /* (rows, cols) */
    bool quantised;
};

static struct weights make_weights(struct kn_backend *b, struct kn_matrix_spec spec, uint64_t *rng)
{
    struct weights w = {.quantised = spec.kind == KN_W_Q4 || spec.kind == KN_W_Q8};
    assert_int_equal(kn_matrix_new(b, &spec, &w.m), KN_OK);
    w.exact = malloc((size_t)spec.rows * spec.cols * sizeof(double));
    for (uint32_t r = 0; r < spec.rows; r++) {
        double *exact = w.exact + (size_t)r * spec.cols;
        if (w.quantised) {
            uint32_t groups = spec.cols / spec.group;
            int8_t *codes = malloc(spec.cols);
            float *scale = malloc(groups * sizeof(float)), *min = malloc(groups * sizeof(float));
            for (uint32_t g = 0; g < groups; g++) {
                scale[g] = of_half(half_of(random_float(rng) * 0.01f));
                min[g] = of_half(half_of(random_float(rng) * 0.1f));
            }
            for (uint32_t k = 0; k < spec.cols; k++) {
                codes[k] = (int8_t)(spec.kind == KN_W_Q4 ? random_bits(rng) & 15 : random_bits(rng));
                exact[k] = (double)scale[k / spec.group] * codes[k] +
                           (spec.has_min ? (double)min[k / spec.group] : 0.0);
            }
            assert_int_equal(kn_matrix_set_codes(w.m, r, codes, scale, spec.has_min ? min : NULL), KN_OK);
            free(codes);
            free(scale);
            free(min);
            continue;
        }
        float *row = random_floats(rng, spec.cols);
        uint16_t *row16 = malloc(spec.cols * sizeof *row16);
        for (uint32_t k = 0; k < spec.cols; k++) {
            row16[k] = spec.kind == KN_W_F16 ? half_of(row[k]) : bfloat_of(row[k]);
            exact[k] = spec.kind == KN_W_F32   ? row[k]
                       : spec.kind == KN_W_F16 ? of_half(row16[k])
                                               : of_bfloat(row16[k]);
        }
        assert_int_equal(
            spec.kind == KN_W_F32 ? kn_matrix_set_f32(w.m, r, row) : kn_matrix_set_16(w.m, r, row16), KN_OK);
        free(row);
        free(row16);
    }
    return w;
}

static void free_weights(struct weights *w)
{
    kn_matrix_free(w->m);
    free(w->exact);
}

static double block_max(const float *x, size_t k)
{
    double most = 0;
    for (size_t i = k / 32 * 32; i < k / 32 * 32 + 32; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

/* Within what the activations' rounding and single precision allow. */
static void check_near(const struct weights *w, size_t parts, const float *x, size_t n, const float *bias,
                       const float *before, const float *y)
{
    size_t ldy = 0, column = 0;
    for (size_t p = 0; p < parts; p++)
        ldy += kn_matrix_rows(w[p].m);
    for (size_t p = 0; p < parts; p++) {
        size_t cols = kn_matrix_cols(w[p].m), rows = kn_matrix_rows(w[p].m);
        for (size_t i = 0; i < n; i++) {
            const float *xi = x + i * cols;
            for (size_t r = 0; r < rows; r++) {
                double want = 0, error = 1e-6;
                for (size_t k = 0; k < cols; k++) {
                    double weight = w[p].exact[r * cols + k], term = weight * (double)xi[k];
                    want += term;
                    error += 1e-6 * fabs(term);
                    if (w[p].quantised) /* half a step of the block's scale */
                        error += fabs(weight) * block_max(xi, k) / 65534 * 1.01;
                }
                size_t at = i * ldy + column + r;
                want += (bias ? (double)bias[column + r] : 0.0) + (before ? (double)before[at] : 0.0);
                if (!(fabs((double)y[at] - want) <= error))
                    fail_msg("row %zu output %zu: %g, exactly %g", i, column + r, (double)y[at], want);
            }
        }
        column += rows;
    }
}

/* All paths against scalar with one thread, for several n; and every row alone against the batch. */
static void check_product(const struct kn_matrix_spec *specs, size_t parts, bool with_bias, bool accumulate)
{
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    static const size_t batches[] = {1, 2, 3, 4, 5, 6, 7, 13, 131};
    uint64_t rng = 42 + specs[0].cols;
    struct weights w[3];
    const struct kn_matrix *m[3];
    size_t ldy = 0, cols = specs[0].cols;
    for (size_t p = 0; p < parts; p++) {
        w[p] = make_weights(paths[0].b, specs[p], &rng);
        m[p] = w[p].m;
        ldy += specs[p].rows;
    }
    float *bias = random_floats(&rng, ldy);
    for (size_t t = 0; t < sizeof batches / sizeof *batches; t++) {
        size_t n = batches[t];
        float *x = random_floats(&rng, n * cols), *before = random_floats(&rng, n * ldy);
        x[cols / 2] = 1000.0f;                                                  /* an outlier */
        memset(x + (n - 1) * cols, 0, (cols < 32 ? cols : 32) * sizeof(float)); /* a block of zeros */
        float *want = malloc(n * ldy * sizeof(float)), *got = malloc(n * ldy * sizeof(float));
        for (size_t i = 0; i < n_paths; i++) {
            float *y = i == 0 ? want : got;
            memcpy(y, before, n * ldy * sizeof(float));
            struct kn_matmul_args a = {.parts = m,
                                       .n_parts = parts,
                                       .bias = with_bias ? bias : NULL,
                                       .x = x,
                                       .ldx = cols,
                                       .y = y,
                                       .ldy = ldy,
                                       .n = n,
                                       .accumulate = accumulate};
            assert_int_equal(kn_matmul(paths[i].b, &a), KN_OK);
            if (i == 0)
                check_near(w, parts, x, n, with_bias ? bias : NULL, accumulate ? before : NULL, y);
            else
                check_same_bits(want, got, n * ldy, paths[i].name, "matmul");
            for (size_t r = 0; r < n && n <= 13; r++) {
                float *one = malloc(ldy * sizeof(float));
                memcpy(one, before + r * ldy, ldy * sizeof(float));
                struct kn_matmul_args alone = a;
                alone.x = x + r * cols;
                alone.y = one;
                alone.n = 1;
                assert_int_equal(kn_matmul(paths[i].b, &alone), KN_OK);
                check_same_bits(want + r * ldy, one, ldy, paths[i].name, "row alone");
                free(one);
            }
        }
        free(x);
        free(before);
        free(want);
        free(got);
    }
    free(bias);
    for (size_t p = 0; p < parts; p++)
        free_weights(&w[p]);
    paths_close(paths, n_paths);
}

static void q4_with_minimum_equals_scalar_on_all_paths(void **state)
{
    (void)state;
    struct kn_matrix_spec s = {KN_W_Q4, 83, 96, 32, true, true};
    check_product(&s, 1, false, false);
}

static void q4_groups_of_16_with_float_scales(void **state)
{
    (void)state;
    struct kn_matrix_spec s = {KN_W_Q4, 17, 640, 16, false, false};
    check_product(&s, 1, true, false);
}

static void q8_without_minimum_over_more_columns_than_one_chunk(void **state)
{
    (void)state;
    struct kn_matrix_spec s = {KN_W_Q8, 50, 1184, 32, false, true};
    check_product(&s, 1, false, true);
}

static void q8_groups_of_16_with_minimum(void **state)
{
    (void)state;
    struct kn_matrix_spec s = {KN_W_Q8, 33, 64, 16, true, false};
    check_product(&s, 1, true, true);
}

static void parts_of_different_kinds_lie_side_by_side(void **state)
{
    (void)state;
    struct kn_matrix_spec s[3] = {{KN_W_Q4, 40, 64, 32, true, true},
                                  {KN_W_F32, 5, 64, 0, false, false},
                                  {KN_W_Q8, 37, 64, 16, false, false}};
    check_product(s, 3, true, false);
    struct kn_matrix_spec t[3] = {{KN_W_Q8, 20, 64, 16, true, true},
                                  {KN_W_Q8, 16, 64, 16, false, false},
                                  {KN_W_BF16, 18, 64, 0, false, false}};
    check_product(t, 3, false, true);
}

static void float_weights_of_any_column_count(void **state)
{
    (void)state;
    for (uint32_t cols = 61; cols <= 64; cols++) {
        struct kn_matrix_spec f32 = {KN_W_F32, 35, cols, 0, false, false};
        check_product(&f32, 1, true, false);
    }
    struct kn_matrix_spec f16 = {KN_W_F16, 19, 67, 0, false, false};
    check_product(&f16, 1, false, true);
    struct kn_matrix_spec bf16 = {KN_W_BF16, 16, 3, 0, false, false};
    check_product(&bf16, 1, false, false);
}

static void leading_dimensions_leave_the_gaps_alone(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 7;
    struct kn_matrix_spec spec = {KN_W_Q4, 21, 32, 32, true, true};
    struct weights w = make_weights(paths[0].b, spec, &rng);
    const struct kn_matrix *m = w.m;
    enum { N = 9, LDX = 40, LDY = 30 };
    float *x = random_floats(&rng, (N - 1) * LDX + 32);
    for (size_t i = 0; i < n_paths; i++) {
        float *y = filled_floats((N - 1) * LDY + 21, -5.0f);
        struct kn_matmul_args a = {.parts = &m, .n_parts = 1, .x = x, .ldx = LDX, .y = y, .ldy = LDY, .n = N};
        assert_int_equal(kn_matmul(paths[i].b, &a), KN_OK);
        for (size_t r = 0; r + 1 < N; r++)
            for (size_t c = 21; c < LDY; c++)
                assert_true(y[r * LDY + c] == -5.0f);
        free(y);
    }
    free(x);
    free_weights(&w);
    paths_close(paths, n_paths);
}

static void tiny_and_non_finite_activations_are_defined(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 9;
    struct kn_matrix_spec spec = {KN_W_Q8, 16, 32, 32, false, false};
    struct weights w = make_weights(paths[0].b, spec, &rng);
    const struct kn_matrix *m = w.m;
    static const float values[] = {1e-42f, 1e-38f, 1e-31f, 1e37f, INFINITY, NAN};
    for (size_t i = 0; i < n_paths; i++) {
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            float x[32] = {0}, y[16];
            x[3] = values[k];
            struct kn_matmul_args a = {
                .parts = &m, .n_parts = 1, .x = x, .ldx = 32, .y = y, .ldy = 16, .n = 1};
            assert_int_equal(kn_matmul(paths[i].b, &a), KN_OK);
            for (size_t r = 0; r < 16; r++) {
                if (isfinite(values[k]))
                    assert_true(fabs((double)y[r] - w.exact[r * 32 + 3] * (double)values[k]) <=
                                1e-4 * fabs((double)values[k]) + 1e-29);
                else
                    assert_true(isnan(y[r]));
            }
        }
    }
    free_weights(&w);
    paths_close(paths, n_paths);
}

static void gathered_rows_are_the_weights(void **state)
{
    (void)state;
    static const struct kn_matrix_spec specs[] = {
        {KN_W_F32, 20, 37, 0, false, false},  {KN_W_F16, 20, 37, 0, false, false},
        {KN_W_BF16, 20, 37, 0, false, false}, {KN_W_Q4, 20, 64, 32, true, true},
        {KN_W_Q4, 20, 64, 16, false, false},  {KN_W_Q8, 20, 64, 32, false, true},
        {KN_W_Q8, 20, 64, 16, true, false}};
    static const uint32_t ids[] = {19, 0, 7, 16, 15, 7};
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 11;
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct weights w = make_weights(paths[0].b, specs[s], &rng);
        size_t cols = specs[s].cols;
        for (size_t i = 0; i < n_paths; i++) {
            float *out = malloc(6 * cols * sizeof(float));
            kn_gather_rows(paths[i].b, w.m, ids, 6, out);
            for (size_t r = 0; r < 6; r++)
                for (size_t k = 0; k < cols; k++)
                    if (out[r * cols + k] != (float)w.exact[ids[r] * cols + k])
                        fail_msg("%s, spec %zu: row %u column %zu", paths[i].name, s, ids[r], k);
            free(out);
        }
        free_weights(&w);
    }
    paths_close(paths, n_paths);
}

static void bad_shapes_and_rows_are_refused(void **state)
{
    (void)state;
    struct kn_backend *b;
    assert_int_equal(kn_backend_open(KN_ISA_SCALAR, 1, &b), KN_OK);
    static const struct kn_matrix_spec bad[] = {{KN_W_Q4, 16, 48, 32, true, true},
                                                {KN_W_Q8, 16, 64, 8, true, true},
                                                {KN_W_F32, 0, 4, 0, false, false},
                                                {KN_W_F32, 4, 0, 0, false, false},
                                                {(enum kn_weight)9, 4, 4, 0, false, false}};
    struct kn_matrix *m, *wide;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kn_matrix_new(b, &bad[i], &m), KN_EINVAL);
        assert_null(m);
    }
    struct kn_matrix_spec spec = {KN_W_Q4, 3, 32, 32, true, true};
    assert_int_equal(kn_matrix_new(b, &spec, &m), KN_OK);
    int8_t codes[32] = {0};
    float scale = 1.0f, min = 0.5f, rounded = 0.1f;
    assert_int_equal(kn_matrix_set_codes(m, 3, codes, &scale, &min), KN_EINVAL);
    assert_int_equal(kn_matrix_set_codes(m, 0, codes, &scale, NULL), KN_EINVAL);
    assert_int_equal(kn_matrix_set_codes(m, 0, codes, &rounded, &min), KN_EINVAL);
    assert_int_equal(kn_matrix_set_f32(m, 0, &scale), KN_EINVAL);
    assert_int_equal(kn_matrix_set_codes(m, 0, codes, &scale, &min), KN_OK);
    codes[31] = 16;
    assert_int_equal(kn_matrix_set_codes(m, 0, codes, &scale, &min), KN_EINVAL);

    struct kn_matrix_spec wider = {KN_W_F32, 3, 33, 0, false, false};
    assert_int_equal(kn_matrix_new(b, &wider, &wide), KN_OK);
    const struct kn_matrix *parts[2] = {m, wide};
    float x[33] = {0}, y[6];
    struct kn_matmul_args a = {.parts = parts, .n_parts = 2, .x = x, .ldx = 33, .y = y, .ldy = 6, .n = 1};
    assert_int_equal(kn_matmul(b, &a), KN_EINVAL);
    a.n_parts = 0;
    assert_int_equal(kn_matmul(b, &a), KN_EINVAL);
    kn_matrix_free(m);
    kn_matrix_free(wide);
    kn_backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_with_minimum_equals_scalar_on_all_paths),
        cmocka_unit_test(q4_groups_of_16_with_float_scales),
        cmocka_unit_test(q8_without_minimum_over_more_columns_than_one_chunk),
        cmocka_unit_test(q8_groups_of_16_with_minimum),
        cmocka_unit_test(parts_of_different_kinds_lie_side_by_side),
        cmocka_unit_test(float_weights_of_any_column_count),
        cmocka_unit_test(leading_dimensions_leave_the_gaps_alone),
        cmocka_unit_test(tiny_and_non_finite_activations_are_defined),
        cmocka_unit_test(gathered_rows_are_the_weights),
        cmocka_unit_test(bad_shapes_and_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
