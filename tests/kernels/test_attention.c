/*
 * Attention over pages, with and without a window: equal bits on every path, for every thread count, alone or
 * in a batch, whole or in chunks or token by token; near a double-precision softmax; and nothing of an
 * unwritten slot, all of which hold NaN here, or of a page before the window, which is not there, ever shows.
 */
#include "tests/kernels/paths.h"
#include <math.h>

#define LAYERS 2
#define LAYER  1

struct shape {
    enum kn_kv_dtype dtype;
    uint32_t kv_heads, q_heads, head_dim, window;
};

/* One conversation: inputs of all positions, and pages full of NaN to begin with. */
struct talk {
    uint32_t n;
    float *q, *k, *v; /* (n, heads * head_dim) */
    void **pages;
};

static struct kn_kv_layout layout_of(const struct shape *s)
{
    return (struct kn_kv_layout){s->dtype, LAYERS, s->kv_heads, s->head_dim};
}

static uint32_t page_count(uint32_t n)
{
    return (n + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS;
}

static void forget_pages(const struct talk *t, const struct shape *s)
{
    struct kn_kv_layout l = layout_of(s);
    for (uint32_t i = 0; i < page_count(t->n); i++)
        memset(t->pages[i], 0xFF, kn_kv_page_bytes(&l)); /* NaN in all three types */
}

static struct talk make_talk(uint32_t n, const struct shape *s, uint64_t *rng)
{
    struct kn_kv_layout l = layout_of(s);
    struct talk t = {.n = n};
    t.q = random_floats(rng, (size_t)n * s->q_heads * s->head_dim);
    t.k = random_floats(rng, (size_t)n * s->kv_heads * s->head_dim);
    t.v = random_floats(rng, (size_t)n * s->kv_heads * s->head_dim);
    t.pages = malloc(page_count(n) * sizeof *t.pages);
    for (uint32_t i = 0; i < page_count(n); i++)
        t.pages[i] = malloc(kn_kv_page_bytes(&l));
    forget_pages(&t, s);
    return t;
}

static void free_talk(struct talk *t)
{
    for (uint32_t i = 0; i < page_count(t->n); i++)
        free(t->pages[i]);
    free(t->pages);
    free(t->q);
    free(t->k);
    free(t->v);
}

/* The talk's table of pages without those that lie before every window of rows from `from` on. */
static void **pages_in_window(const struct talk *t, const struct shape *s, uint32_t from)
{
    void **pages = calloc(page_count(t->n), sizeof *pages);
    assert_non_null(pages);
    uint32_t first = s->window && from + 1 > s->window ? from + 1 - s->window : 0;
    for (uint32_t i = first / KN_PAGE_TOKENS; i < page_count(t->n); i++)
        pages[i] = t->pages[i];
    return pages;
}

/* Rows [from, from + n) of each talk (fewer at its end) as one batch; results go to out[talk]. */
static void step(struct kn_backend *b, const struct shape *s, const struct talk *talks, size_t n_talks,
                 uint32_t from, uint32_t n, float *const *out)
{
    struct kn_kv_layout l = layout_of(s);
    size_t q_row = (size_t)s->q_heads * s->head_dim, kv_row = (size_t)s->kv_heads * s->head_dim, rows = 0;
    struct kn_attn_seq seqs[4];
    void **tables[4];
    size_t which[4], n_seqs = 0;
    for (size_t i = 0; i < n_talks; i++) {
        if (from >= talks[i].n)
            continue;
        uint32_t left = talks[i].n - from;
        which[n_seqs] = i;
        void **pages = tables[n_seqs] = pages_in_window(&talks[i], s, from);
        seqs[n_seqs++] = (struct kn_attn_seq){pages, from, left < n ? left : n, (uint32_t)rows};
        rows += seqs[n_seqs - 1].n;
    }
    float *q = malloc(rows * q_row * sizeof(float)), *o = malloc(rows * q_row * sizeof(float));
    float *k = malloc(rows * kv_row * sizeof(float)), *v = malloc(rows * kv_row * sizeof(float));
    for (size_t i = 0; i < n_seqs; i++) {
        const struct talk *t = &talks[which[i]];
        memcpy(q + seqs[i].row0 * q_row, t->q + from * q_row, seqs[i].n * q_row * sizeof(float));
        memcpy(k + seqs[i].row0 * kv_row, t->k + from * kv_row, seqs[i].n * kv_row * sizeof(float));
        memcpy(v + seqs[i].row0 * kv_row, t->v + from * kv_row, seqs[i].n * kv_row * sizeof(float));
    }
    kn_kv_put(b, &l, LAYER, seqs, n_seqs, k, kv_row, v, kv_row);
    float scale = 1.0f / sqrtf((float)s->head_dim);
    assert_int_equal(
        kn_attention_window(b, &l, LAYER, seqs, n_seqs, s->q_heads, s->window, scale, q, q_row, o, q_row),
        KN_OK);
    for (size_t i = 0; i < n_seqs; i++)
        memcpy(out[which[i]] + from * q_row, o + seqs[i].row0 * q_row, seqs[i].n * q_row * sizeof(float));
    for (size_t i = 0; i < n_seqs; i++)
        free(tables[i]);
    free(q);
    free(k);
    free(v);
    free(o);
}

static void check_near(const struct talk *t, const struct shape *s, const float *out)
{
    size_t dim = s->head_dim, q_row = s->q_heads * dim, kv_row = s->kv_heads * dim;
    double *p = malloc(t->n * sizeof *p);
    for (size_t row = 0; row < t->n; row += row < 40 ? 1 : 37) {
        for (size_t h = 0; h < s->q_heads; h++) {
            size_t kv = h / (s->q_heads / s->kv_heads) * dim;
            double top = -INFINITY, sum = 0;
            size_t first = s->window && row + 1 > s->window ? row + 1 - s->window : 0;
            for (size_t i = first; i <= row; i++) {
                p[i] = 0;
                for (size_t d = 0; d < dim; d++)
                    p[i] += (double)t->q[row * q_row + h * dim + d] *
                            (double)rounded(s->dtype, t->k[i * kv_row + kv + d]) / sqrt((double)dim);
                top = fmax(top, p[i]);
            }
            for (size_t i = first; i <= row; i++)
                sum += p[i] = exp(p[i] - top);
            for (size_t d = 0; d < dim; d++) {
                double want = 0;
                for (size_t i = first; i <= row; i++)
                    want += p[i] / sum * (double)rounded(s->dtype, t->v[i * kv_row + kv + d]);
                double got = (double)out[row * q_row + h * dim + d];
                if (!(fabs(got - want) < 1e-5))
                    fail_msg("row %zu head %zu dim %zu: %g, exactly %g", row, h, d, got, want);
            }
        }
    }
    free(p);
}

/* Instrumented scalar code is several times slower: there, fewer tokens, fewer ways and smaller heads. */
#ifdef __SANITIZE_ADDRESS__
enum { SLOW = 1, WINDOWED_TOKENS = 340, SCALAR_DIM = 64 };
#else
enum { SLOW = 0, WINDOWED_TOKENS = 600, SCALAR_DIM = 256 };
#endif
/* Positions come in groups of KN_ATTN_GROUP: rows 512 to 554 see three of them through a window of 300. */
enum { THREAD_COUNTS = 3, SCALAR_PATHS = THREAD_COUNTS, THREE_GROUPS_TOKENS = 520 };

static uint32_t longest_talk(const struct shape *s)
{
    if (s->window == 0)
        return 290;
    const uint32_t usual = WINDOWED_TOKENS, three_groups = THREE_GROUPS_TOKENS;
    return s->window > KN_ATTN_GROUP && usual < three_groups ? three_groups : usual;
}

static void check_shape(const struct shape *s)
{
    struct path all[9];
    struct path *paths = all;
    size_t n_all = paths_open(all), n_paths = n_all;
    bool scalar = s->head_dim <= SCALAR_DIM || n_all == SCALAR_PATHS;
    if (!scalar) {
        paths += SCALAR_PATHS;
        n_paths -= SCALAR_PATHS;
    }
    uint64_t rng = 1000 + s->head_dim + s->q_heads;
    enum { TALKS = 3 };
    const uint32_t lengths[TALKS] = {longest_talk(s), 16, 35};
    static const uint32_t chunks[] = {1, 7, 200};
    enum { N_CHUNKS = sizeof chunks / sizeof *chunks };
    struct talk talks[TALKS];
    float *want[TALKS], *got[TALKS];
    size_t q_row = (size_t)s->q_heads * s->head_dim;
    for (size_t i = 0; i < TALKS; i++) {
        talks[i] = make_talk(lengths[i], s, &rng);
        want[i] = malloc(lengths[i] * q_row * sizeof(float));
        got[i] = malloc(lengths[i] * q_row * sizeof(float));
    }
    for (size_t i = 0; i < n_paths; i++) {
        for (size_t k = 0; k < TALKS; k++)
            forget_pages(&talks[k], s);
        step(paths[i].b, s, talks, TALKS, 0, 10000, i == 0 ? want : got);
        for (size_t k = 0; k < TALKS; k++) {
            if (i == 0)
                check_near(&talks[k], s, want[k]);
            else
                check_same_bits(want[k], got[k], lengths[k] * q_row, paths[i].name, "whole");
        }
        /* With more threads not token by token where that takes seconds. */
        size_t first = SLOW && i % THREAD_COUNTS > 0 ? N_CHUNKS - 1 : 0;
        if (scalar && i < SCALAR_PATHS)
            first = i == 0 ? SLOW : SLOW ? N_CHUNKS : 1;
        for (size_t c = first; c < N_CHUNKS; c++) {
            for (size_t k = 0; k < TALKS; k++)
                forget_pages(&talks[k], s);
            for (uint32_t from = 0; from < lengths[0]; from += chunks[c])
                step(paths[i].b, s, talks, TALKS, from, chunks[c], got);
            for (size_t k = 0; k < TALKS; k++)
                check_same_bits(want[k], got[k], lengths[k] * q_row, paths[i].name, "in chunks");
        }
        forget_pages(&talks[2], s); /* alone */
        step(paths[i].b, s, &talks[2], 1, 0, 10000, &got[2]);
        check_same_bits(want[2], got[2], lengths[2] * q_row, paths[i].name, "alone");
    }
    for (size_t i = 0; i < TALKS; i++) {
        free_talk(&talks[i]);
        free(want[i]);
        free(got[i]);
    }
    paths_close(all, n_all);
}

static void f16_heads_of_64_in_groups_of_three(void **state)
{
    (void)state;
    struct shape s = {KN_KV_F16, 2, 6, 64, 0};
    check_shape(&s);
}

static void bf16_heads_of_48_one_to_one(void **state)
{
    (void)state;
    struct shape s = {KN_KV_BF16, 3, 3, 48, 0};
    check_shape(&s);
}

static void f32_heads_of_16_in_groups_of_seven(void **state)
{
    (void)state;
    struct shape s = {KN_KV_F32, 1, 7, 16, 0};
    check_shape(&s);
}

static void large_f16_heads_that_share_more_than_a_tile(void **state)
{
    (void)state;
    struct shape small = {KN_KV_F16, 1, 13, 32, 0}, large = {KN_KV_F16, 1, 13, 128, 0};
    check_shape(&small);
    check_shape(&large);
}

static void a_window_shorter_than_a_page(void **state)
{
    (void)state;
    struct shape s = {KN_KV_F16, 2, 4, 16, 5};
    check_shape(&s);
}

static void a_window_of_one_group_and_a_shared_head(void **state)
{
    (void)state;
    struct shape s = {KN_KV_F16, 1, 4, 32, 256};
    check_shape(&s);
}

static void a_window_of_one_group_and_heads_of_256(void **state)
{
    (void)state;
    struct shape s = {KN_KV_F16, 1, 4, 256, 256};
    check_shape(&s);
}

static void a_window_over_three_groups(void **state)
{
    (void)state;
    struct shape s = {KN_KV_BF16, 1, 3, 16, 300};
    check_shape(&s);
}

static void a_window_that_holds_all_changes_no_bit(void **state)
{
    (void)state;
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 77;
    struct shape all = {KN_KV_F32, 1, 2, 16, 0}, wide = {KN_KV_F32, 1, 2, 16, 400}, huge = wide;
    huge.window = UINT32_MAX;
    struct talk t = make_talk(400, &all, &rng);
    size_t n = (size_t)t.n * all.q_heads * all.head_dim;
    float *want = malloc(n * sizeof(float)), *got = malloc(n * sizeof(float));
    for (size_t i = 0; i < n_paths; i++) {
        step(paths[i].b, &all, &t, 1, 0, 10000, &want);
        step(paths[i].b, &wide, &t, 1, 0, 10000, &got);
        check_same_bits(want, got, n, paths[i].name, "window of all rows");
        step(paths[i].b, &huge, &t, 1, 0, 10000, &got);
        check_same_bits(want, got, n, paths[i].name, "largest window");
    }
    free_talk(&t);
    free(want);
    free(got);
    paths_close(paths, n_paths);
}

static void f16_saturates_and_rounds_to_even(void **state)
{
    (void)state;
    static const float in[16] = {1e9f,           -1e9f,    65519.0f, 65520.0f, INFINITY, -INFINITY,
                                 0x1p-24f,       0x1p-25f, -0.0f,    0x3p-26f, 2049.0f,  1.00048828125f,
                                 1.00146484375f, 1e-30f,   NAN,      0x1p-14f};
    static const uint16_t want[16] = {0x7BFF, 0xFBFF, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0x0001, 0x0000,
                                      0x8000, 0x0001, 0x6800, 0x3C00, 0x3C02, 0x0000, 0x7E00, 0x0400};
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    struct kn_kv_layout l = {KN_KV_F16, 1, 1, 16};
    assert_int_equal(kn_kv_page_bytes(&l), 2 * 16 * 16 * 2);
    for (size_t i = 0; i < n_paths; i++) {
        uint16_t *page = malloc(kn_kv_page_bytes(&l));
        memset(page, 0x11, kn_kv_page_bytes(&l));
        void *pages[1] = {page};
        struct kn_attn_seq seq = {pages, 3, 1, 0};
        kn_kv_put(paths[i].b, &l, 0, &seq, 1, in, 16, in, 16);
        for (size_t t = 0; t < 16; t++) {
            for (size_t d = 0; d < 16; d++) {
                uint16_t k = page[d * 16 + t], v = page[256 + t * 16 + d];
                uint16_t expect = t == 3 ? want[d] : 0x1111;
                if (t == 3 && d == 14) /* a NaN's payload is free */
                    expect = k = v = (k & 0x7FFF) > 0x7C00 && (v & 0x7FFF) > 0x7C00;
                if (k != expect || v != expect)
                    fail_msg("%s: token %zu dim %zu: k %04x v %04x, not %04x", paths[i].name, t, d, k, v,
                             expect);
            }
        }
        free(page);
    }
    paths_close(paths, n_paths);
}

static void bf16_rounds_to_even_and_keeps_nan(void **state)
{
    (void)state;
    static const uint32_t in[16] = {0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000,
                                    0x7F800001, 0xFF900000, 0x00000001, 0x80008000, 0x00008001, 0xBF807FFF,
                                    0x7FFFFFFF, 0,          0x80000000, 0x40490FDB};
    static const uint16_t want[16] = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0x7FC0, 0xFFD0,
                                      0x0000, 0x8000, 0x0001, 0xBF80, 0x7FFF, 0,      0x8000, 0x4049};
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    struct kn_kv_layout l = {KN_KV_BF16, 1, 1, 16};
    float row[16];
    memcpy(row, in, sizeof row);
    for (size_t i = 0; i < n_paths; i++) {
        uint16_t page[512];
        void *pages[1] = {page};
        struct kn_attn_seq seq = {pages, 0, 1, 0};
        kn_kv_put(paths[i].b, &l, 0, &seq, 1, row, 16, row, 16);
        for (size_t d = 0; d < 16; d++)
            if (page[256 + d] != want[d])
                fail_msg("%s: %08x became %04x, not %04x", paths[i].name, in[d], page[256 + d], want[d]);
    }
    paths_close(paths, n_paths);
}

static void bad_shapes_are_refused(void **state)
{
    (void)state;
    struct kn_backend *b;
    assert_int_equal(kn_backend_open(KN_ISA_SCALAR, 1, &b), KN_OK);
    float x[64] = {0};
    struct kn_kv_layout good = {KN_KV_F16, 1, 2, 16}, odd = {KN_KV_F16, 1, 1, 24},
                        wide = {KN_KV_F16, 1, 1, 528};
    assert_int_equal(kn_attention(b, &good, 0, NULL, 0, 4, 1.0f, x, 64, x, 64), KN_OK);
    assert_int_equal(kn_attention(b, &good, 0, NULL, 0, 3, 1.0f, x, 64, x, 64), KN_EINVAL);
    assert_int_equal(kn_attention(b, &good, 1, NULL, 0, 4, 1.0f, x, 64, x, 64), KN_EINVAL);
    assert_int_equal(kn_attention(b, &odd, 0, NULL, 0, 1, 1.0f, x, 64, x, 64), KN_EINVAL);
    assert_int_equal(kn_attention(b, &wide, 0, NULL, 0, 1, 1.0f, x, 64, x, 64), KN_EINVAL);
    kn_backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_heads_of_64_in_groups_of_three),
        cmocka_unit_test(bf16_heads_of_48_one_to_one),
        cmocka_unit_test(f32_heads_of_16_in_groups_of_seven),
        cmocka_unit_test(large_f16_heads_that_share_more_than_a_tile),
        cmocka_unit_test(a_window_shorter_than_a_page),
        cmocka_unit_test(a_window_of_one_group_and_a_shared_head),
        cmocka_unit_test(a_window_of_one_group_and_heads_of_256),
        cmocka_unit_test(a_window_over_three_groups),
        cmocka_unit_test(a_window_that_holds_all_changes_no_bit),
        cmocka_unit_test(f16_saturates_and_rounds_to_even),
        cmocka_unit_test(bf16_rounds_to_even_and_keeps_nan),
        cmocka_unit_test(bad_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
