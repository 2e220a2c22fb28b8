/* Router, rows taken to experts and brought back, and copies between memory and blocks. */
#include "tests/kernels/paths.h"
#include <math.h>

static bool likelier(const float *logits, size_t a, size_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Is expert e among the `used` likeliest? */
static bool is_used(const float *logits, size_t experts, size_t used, size_t e)
{
    size_t before = 0;
    for (size_t i = 0; i < experts; i++)
        before += i != e && likelier(logits, i, e);
    return before < used;
}

static void router_takes_the_likeliest_in_order_of_id(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 1;
    enum { N = 9 };
    static const size_t shapes[][2] = {{1, 1}, {4, 2}, {8, 8}, {17, 3}, {64, 6}, {512, 10}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        size_t experts = shapes[k][0], used = shapes[k][1], ld = experts + 3;
        for (int renormalise = 0; renormalise < 2; renormalise++) {
            float *logits = random_floats(&rng, N * ld);
            for (size_t i = 0; i < N * ld; i++)
                logits[i] = i / ld % 3 == 0 ? roundf(2 * logits[i]) / 2 : 4 * logits[i]; /* ties in a third */
            uint32_t ids[N * 10], other[N * 10];
            float *weights = filled_floats(N * used, 7.0f), *got = filled_floats(N * used, 7.0f);
            for (size_t i = 0; i < n_paths; i++) {
                kn_route(paths[i].b, logits, ld, N, experts, used, renormalise, i == 0 ? ids : other,
                         i == 0 ? weights : got);
                check_same_bits(weights, i == 0 ? weights : got, N * used, paths[i].name, "weights");
                assert_memory_equal(ids, i == 0 ? ids : other, N * used * sizeof *ids);
            }
            for (size_t r = 0; r < N; r++) {
                const float *row = logits + r * ld;
                double all = 0, chosen = 0, total = 0;
                for (size_t e = 0; e < experts; e++)
                    all += exp((double)row[e]);
                for (size_t i = 0; i < used; i++)
                    chosen += exp((double)row[ids[r * used + i]]);
                for (size_t i = 0; i < used; i++) {
                    uint32_t id = ids[r * used + i];
                    assert_true(id < experts && (i == 0 || id > ids[r * used + i - 1]));
                    assert_true(is_used(row, experts, used, id));
                    double want = exp((double)row[id]) / (renormalise ? chosen : all);
                    assert_true(fabs((double)weights[r * used + i] - want) <= 1e-6 * want);
                    total += (double)weights[r * used + i];
                }
                assert_true(!renormalise || fabs(total - 1) < 1e-6);
            }
            free(logits);
            free(weights);
            free(got);
        }
    }
    paths_close(paths, n_paths);
}

static void router_survives_nan(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    for (size_t i = 0; i < n_paths; i++) {
        float logits[12] = {NAN, 1, NAN, NAN, 2, NAN, NAN, NAN, NAN, NAN, NAN, NAN}, weights[3];
        uint32_t ids[3];
        kn_route(paths[i].b, logits, 12, 1, 12, 3, true, ids, weights);
        assert_int_equal(ids[0], 0); /* the lowest of those that count as -inf */
        assert_int_equal(ids[1], 1);
        assert_int_equal(ids[2], 4);
        assert_true(weights[0] == 0.0f && weights[2] > weights[1]);
        logits[1] = logits[4] = NAN;
        kn_route(paths[i].b, logits, 12, 1, 12, 3, true, ids, weights);
        assert_true(ids[0] == 0 && ids[1] == 1 && ids[2] == 2);
    }
    paths_close(paths, n_paths);
}

static void rows_go_to_an_expert_and_come_back(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 2;
    enum { FROM = 50, N = 23, DIM = 37, LD = 40, LDY = 41 };
    float *x = random_floats(&rng, FROM * LD), *base = random_floats(&rng, FROM * LDY),
          *weights = random_floats(&rng, N);
    uint32_t rows[N];
    for (uint32_t i = 0; i < N; i++)
        rows[i] = (i * 17 + 3) % FROM; /* distinct: 17 and 50 have no common factor */
    float *want = malloc(FROM * LDY * sizeof(float));
    memcpy(want, base, FROM * LDY * sizeof(float));
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < DIM; j++)
            want[rows[i] * LDY + j] = fmaf(weights[i], x[rows[i] * LD + j], want[rows[i] * LDY + j]);
    for (size_t k = 0; k < n_paths; k++) {
        float *taken = filled_floats(N * LDY, 7.0f), *y = malloc(FROM * LDY * sizeof(float));
        kn_rows_take(paths[k].b, x, LD, rows, N, DIM, taken, LDY);
        for (size_t i = 0; i < N; i++) {
            assert_memory_equal(taken + i * LDY, x + rows[i] * LD, DIM * sizeof(float));
            for (size_t j = DIM; j < LDY; j++)
                assert_true(taken[i * LDY + j] == 7.0f);
        }
        memcpy(y, base, FROM * LDY * sizeof(float));
        kn_rows_add(paths[k].b, taken, LDY, rows, weights, N, DIM, y, LDY);
        check_same_bits(want, y, FROM * LDY, paths[k].name, "added rows");
        free(taken);
        free(y);
    }
    free(x);
    free(base);
    free(want);
    free(weights);
    paths_close(paths, n_paths);
}

static void blocks_hold_bytes_in_order(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    static const uint64_t strides[] = {1, 7, 4096, 200000};
    static const uint64_t ranges[][2] = {{0, 1}, {5, 0}, {3, 90}, {0, 700}, {6, 600}, {111, 650000}};
    for (size_t i = 0; i < n_paths; i++) {
        for (size_t k = 0; k < sizeof strides / sizeof *strides; k++) {
            for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
                uint64_t stride = strides[k], offset = ranges[r][0], bytes = ranges[r][1];
                if (stride < 4096 && bytes > 1000)
                    continue;
                size_t n = (size_t)((offset + bytes + stride - 1) / stride + 1);
                unsigned char **blocks = calloc(n, sizeof *blocks);
                for (size_t b = 0; b < n; b++) {
                    blocks[b] = malloc(stride);
                    memset(blocks[b], 0xEE, stride);
                }
                unsigned char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
                for (uint64_t b = 0; b < bytes; b++)
                    from[b] = (unsigned char)(b * 31 + (b >> 8));
                struct kn_blocks list = {(void *const *)blocks, stride};
                kn_blocks_write(paths[i].b, &list, offset, from, bytes);
                for (uint64_t b = 0; b < n * stride; b++) {
                    bool inside = b >= offset && b < offset + bytes;
                    assert_int_equal(blocks[b / stride][b % stride], inside ? from[b - offset] : 0xEE);
                }
                to[bytes] = 0xAA;
                kn_blocks_read(paths[i].b, &list, offset, to, bytes);
                assert_memory_equal(from, to, bytes);
                assert_int_equal(to[bytes], 0xAA);
                for (size_t b = 0; b < n; b++)
                    free(blocks[b]);
                free(blocks);
                free(from);
                free(to);
            }
        }
    }
    paths_close(paths, n_paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_takes_the_likeliest_in_order_of_id),
        cmocka_unit_test(router_survives_nan),
        cmocka_unit_test(rows_go_to_an_expert_and_come_back),
        cmocka_unit_test(blocks_hold_bytes_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
