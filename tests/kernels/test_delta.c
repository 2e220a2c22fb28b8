/*
 * Gated DeltaNet: near the plain recurrence in double precision; equal bits on every path, for every thread
 * count, in chunks of any size, alone or in a batch, and resumed from any state captured inside a step, with
 * everything else of the live memory full of NaN.
 */
#include "tests/kernels/paths.h"
#include <math.h>

#define BLOCK KN_DELTA_BLOCK
enum { EXTRA = 3 }; /* columns behind each row that nobody may touch */

/* One conversation: inputs of all positions, results, live memory. */
struct talk {
    uint32_t n;
    float *qkv, *beta, *alpha; /* (n, columns or v_heads) */
    char *live;
};

struct layer {
    struct kn_delta_shape s;
    struct kn_delta_weights w;
    float *filter, *a, *dt_bias;
    size_t columns, out_columns;
    uint64_t state_bytes, live_bytes;
};

static struct layer make_layer(const struct kn_delta_shape *s, uint64_t *rng)
{
    struct layer l = {.s = *s, .columns = kn_delta_columns(s), .out_columns = (size_t)s->v_heads * s->dim};
    assert_int_equal(l.columns, (2 * s->k_heads + s->v_heads) * s->dim);
    l.state_bytes = kn_delta_state_bytes(s);
    l.live_bytes = kn_delta_live_bytes(s);
    assert_int_equal(l.state_bytes, (uint64_t)s->v_heads * s->dim * s->dim * 4 +
                                        (s->conv - 1) * l.columns * kn_kv_dtype_bytes(s->taps));
    l.filter = random_floats(rng, s->conv * l.columns);
    l.a = random_floats(rng, s->v_heads);
    l.dt_bias = random_floats(rng, s->v_heads);
    for (uint32_t h = 0; h < s->v_heads; h++) {
        l.a[h] = -expf(l.a[h]);
        l.dt_bias[h] = 2 * l.dt_bias[h] - (h % 2 ? 4.0f : 0.0f); /* some heads forget fast, some slowly */
    }
    l.w = (struct kn_delta_weights){l.filter, l.a, l.dt_bias};
    return l;
}

static void free_layer(struct layer *l)
{
    free(l->filter);
    free(l->a);
    free(l->dt_bias);
}

static struct talk make_talk(const struct layer *l, uint32_t n, uint64_t *rng)
{
    struct talk t = {.n = n};
    t.qkv = random_floats(rng, n * l->columns);
    t.beta = random_floats(rng, (size_t)n * l->s.v_heads);
    t.alpha = random_floats(rng, (size_t)n * l->s.v_heads);
    assert_int_equal(posix_memalign((void **)&t.live, 64, l->live_bytes), 0);
    return t;
}

static void free_talk(struct talk *t)
{
    free(t->qkv);
    free(t->beta);
    free(t->alpha);
    free(t->live);
}

/* At position 0 the state is zero and the rest may hold anything. */
static void start(const struct layer *l, const struct talk *t)
{
    memset(t->live, 0xFF, l->live_bytes);
    memset(t->live, 0, l->state_bytes);
}

static float *laid_out(const struct kn_delta_seq *seqs, const size_t *which, size_t n_seqs, size_t rows,
                       size_t columns, float *const *inputs)
{
    float *x = filled_floats(rows * (columns + EXTRA), NAN);
    for (size_t i = 0; i < n_seqs; i++)
        for (uint32_t r = 0; r < seqs[i].n; r++)
            memcpy(x + (seqs[i].row0 + r) * (columns + EXTRA),
                   inputs[which[i]] + (seqs[i].pos0 + r) * columns, columns * sizeof(float));
    return x;
}

/* Rows [from, from + n) of each talk (fewer at its end) as one batch, last talk first in the rows; results go
 * to out[talk]. The captures are talk 0's. */
static void step(struct kn_backend *b, const struct layer *l, const struct talk *talks, size_t n_talks,
                 uint32_t from, uint32_t n, float *const *out, const struct kn_delta_capture *captures,
                 uint32_t n_captures)
{
    struct kn_delta_seq seqs[4];
    size_t which[4], n_seqs = 0, rows = 0, v_heads = l->s.v_heads;
    float *qkvs[4], *betas[4], *alphas[4];
    for (size_t i = n_talks; i-- > 0;) {
        qkvs[i] = talks[i].qkv;
        betas[i] = talks[i].beta;
        alphas[i] = talks[i].alpha;
        if (from >= talks[i].n)
            continue;
        uint32_t left = talks[i].n - from;
        which[n_seqs] = i;
        seqs[n_seqs] = (struct kn_delta_seq){
            .live = talks[i].live, .pos0 = from, .n = left < n ? left : n, .row0 = (uint32_t)rows};
        if (i == 0) {
            seqs[n_seqs].captures = captures;
            seqs[n_seqs].n_captures = n_captures;
        }
        rows += seqs[n_seqs++].n;
    }
    float *qkv = laid_out(seqs, which, n_seqs, rows, l->columns, qkvs);
    float *beta = laid_out(seqs, which, n_seqs, rows, v_heads, betas);
    float *alpha = laid_out(seqs, which, n_seqs, rows, v_heads, alphas);
    size_t ldo = l->out_columns + EXTRA;
    float *o = filled_floats(rows * ldo, 7.0f);
    assert_int_equal(kn_delta(b, &l->s, &l->w, seqs, n_seqs, qkv, l->columns + EXTRA, beta, v_heads + EXTRA,
                              alpha, v_heads + EXTRA, o, ldo),
                     KN_OK);
    for (size_t i = 0; i < n_seqs; i++) {
        for (uint32_t r = 0; r < seqs[i].n; r++) {
            const float *row = o + (seqs[i].row0 + r) * ldo;
            memcpy(out[which[i]] + (from + r) * l->out_columns, row, l->out_columns * sizeof(float));
            for (size_t k = l->out_columns; k < ldo; k++)
                assert_true(row[k] == 7.0f);
        }
    }
    free(qkv);
    free(beta);
    free(alpha);
    free(o);
}

/* ---- the plain recurrence ---- */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* silu of the convolution at row i, column c */
static double convolved(const struct layer *l, const struct talk *t, uint32_t i, size_t c)
{
    double sum = 0;
    for (uint32_t tap = 0; tap < l->s.conv; tap++) {
        uint32_t back = l->s.conv - 1 - tap;
        if (back <= i)
            sum += (double)l->filter[tap * l->columns + c] *
                   (double)rounded(l->s.taps, t->qkv[(i - back) * l->columns + c]);
    }
    return silu(sum);
}

static void normalised(const struct layer *l, const struct talk *t, uint32_t i, size_t column, double scale,
                       double *x)
{
    double sum = (double)l->s.eps;
    for (uint32_t d = 0; d < l->s.dim; d++) {
        x[d] = convolved(l, t, i, column + d);
        sum += x[d] * x[d];
    }
    for (uint32_t d = 0; d < l->s.dim; d++)
        x[d] *= scale / sqrt(sum);
}

static void check_near(const struct layer *l, const struct talk *t, const float *out)
{
    size_t dim = l->s.dim, v_heads = l->s.v_heads;
    double *state = malloc(dim * dim * sizeof *state), q[256], k[256], d[256], worst = 0;
    for (size_t h = 0; h < v_heads; h++) {
        size_t kh = l->s.tiled ? h % l->s.k_heads : h / (v_heads / l->s.k_heads);
        memset(state, 0, dim * dim * sizeof *state);
        for (uint32_t i = 0; i < t->n; i++) {
            normalised(l, t, i, kh * dim, 1 / sqrt((double)dim), q);
            normalised(l, t, i, (l->s.k_heads + kh) * dim, 1, k);
            double x = (double)t->alpha[i * v_heads + h] + (double)l->dt_bias[h];
            double decay = exp((double)l->a[h] * (fmax(x, 0) + log1p(exp(-fabs(x)))));
            double beta = 1 / (1 + exp(-(double)t->beta[i * v_heads + h]));
            for (size_t v = 0; v < dim; v++) {
                double seen = 0;
                for (size_t j = 0; j < dim; j++)
                    seen += (state[j * dim + v] *= decay) * k[j];
                d[v] = (convolved(l, t, i, (2 * l->s.k_heads + h) * dim + v) - seen) * beta;
            }
            for (size_t v = 0; v < dim; v++) {
                double want = 0;
                for (size_t j = 0; j < dim; j++)
                    want += (state[j * dim + v] += k[j] * d[v]) * q[j];
                double got = (double)out[i * l->out_columns + h * dim + v];
                worst = fmax(worst, fabs(got - want));
                if (!(fabs(got - want) < 1e-5))
                    fail_msg("row %u head %zu dim %zu: %g, exactly %g", i, h, v, got, want);
            }
        }
    }
    print_message("dim %zu: furthest from the recurrence in double %.2g\n", dim, worst);
    free(state);
}

/* ---- all ways to the same bits ---- */

#define TALKS    3
#define CAPTURES 3

/* A state in blocks of an odd stride, at an odd offset. */
struct checkpoint {
    struct kn_delta_capture capture;
    void **blocks;
    size_t n_blocks;
};

static struct checkpoint make_checkpoint(const struct layer *l, uint32_t position, uint64_t stride)
{
    struct checkpoint c = {.n_blocks = (size_t)((l->state_bytes + 100) / stride + 1)};
    c.blocks = malloc(c.n_blocks * sizeof *c.blocks);
    for (size_t i = 0; i < c.n_blocks; i++) {
        c.blocks[i] = malloc(stride);
        memset(c.blocks[i], 0xFF, stride);
    }
    c.capture = (struct kn_delta_capture){position, 77, {c.blocks, stride}};
    return c;
}

static void free_checkpoint(struct checkpoint *c)
{
    for (size_t i = 0; i < c->n_blocks; i++)
        free(c->blocks[i]);
    free(c->blocks);
}

static void check_resumed(struct kn_backend *b, const struct layer *l, const struct talk *t,
                          const struct checkpoint *from, const float *want, float *got, const char *path)
{
    static const uint32_t chunks[] = {10000, 7, 64, 100};
    size_t row = l->out_columns;
    for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        uint32_t at = from->capture.position;
        memset(t->live, 0xFF, l->live_bytes);
        kn_blocks_read(b, &from->capture.to, from->capture.offset, t->live, l->state_bytes);
        for (; at < t->n; at += chunks[k])
            step(b, l, t, 1, at, chunks[k], &got, NULL, 0);
        at = from->capture.position;
        check_same_bits(want + at * row, got + at * row, (t->n - at) * row, path, "resumed");
    }
}

static void check_shape(const struct kn_delta_shape *s)
{
    struct path paths[9];
    size_t n_paths = paths_open(paths);
    uint64_t rng = 1000 + s->dim + s->v_heads;
    static const uint32_t lengths[TALKS] = {205, 64, 35}, chunks[] = {1, 7, 63, 64, 65, 100};
    struct layer l = make_layer(s, &rng);
    struct talk talks[TALKS];
    struct checkpoint points[CAPTURES];
    struct kn_delta_capture captures[CAPTURES];
    float *want[TALKS], *got[TALKS];
    char *states[CAPTURES], *state = malloc(l.state_bytes);
    for (size_t i = 0; i < TALKS; i++) {
        talks[i] = make_talk(&l, lengths[i], &rng);
        want[i] = malloc(lengths[i] * l.out_columns * sizeof(float));
        got[i] = malloc(lengths[i] * l.out_columns * sizeof(float));
    }
    for (uint32_t i = 0; i < CAPTURES; i++) {
        points[i] = make_checkpoint(&l, (i + 1) * BLOCK, 1009 + 300 * i);
        captures[i] = points[i].capture;
        states[i] = malloc(l.state_bytes);
    }
    for (size_t i = 0; i < n_paths; i++) {
        struct kn_backend *b = paths[i].b;
        for (size_t k = 0; k < TALKS; k++)
            start(&l, &talks[k]);
        step(b, &l, talks, TALKS, 0, 10000, i == 0 ? want : got, captures, CAPTURES);
        for (size_t k = 0; k < TALKS; k++) {
            if (i == 0)
                check_near(&l, &talks[k], want[k]);
            else
                check_same_bits(want[k], got[k], lengths[k] * l.out_columns, paths[i].name, "whole");
        }
        for (size_t k = 0; k < CAPTURES; k++) {
            kn_blocks_read(b, &captures[k].to, captures[k].offset, state, l.state_bytes);
            if (i == 0)
                memcpy(states[k], state, l.state_bytes);
            assert_memory_equal(states[k], state, l.state_bytes);
        }
        assert_memory_equal(states[2], talks[0].live, l.state_bytes); /* live memory begins with it */
        /* scalar is slow under sanitizers: with more threads whole only, large heads in few ways */
        bool threads_only = i == 1 || i == 2, large = i == 0 && s->dim >= 128;
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks && !threads_only; c += large ? 3 : 1) {
            for (size_t k = 0; k < TALKS; k++)
                start(&l, &talks[k]);
            for (uint32_t from = 0; from < lengths[0]; from += chunks[c])
                step(b, &l, talks, TALKS, from, chunks[c], got, NULL, 0);
            for (size_t k = 0; k < TALKS; k++)
                check_same_bits(want[k], got[k], lengths[k] * l.out_columns, paths[i].name, "in chunks");
            assert_memory_equal(states[2], talks[0].live, l.state_bytes);
        }
        start(&l, &talks[2]);
        step(b, &l, &talks[2], 1, 0, 10000, &got[2], NULL, 0);
        check_same_bits(want[2], got[2], lengths[2] * l.out_columns, paths[i].name, "alone");
        for (size_t k = large ? CAPTURES - 1 : 0; k < CAPTURES && !threads_only; k++)
            check_resumed(b, &l, &talks[0], &points[k], want[0], got[0], paths[i].name);
    }
    for (size_t i = 0; i < TALKS; i++) {
        free_talk(&talks[i]);
        free(want[i]);
        free(got[i]);
    }
    for (size_t i = 0; i < CAPTURES; i++) {
        free_checkpoint(&points[i]);
        free(states[i]);
    }
    free(state);
    free_layer(&l);
    paths_close(paths, n_paths);
}

static void tiny_heads_grouped_f32_taps(void **state)
{
    (void)state;
    struct kn_delta_shape s = {2, 4, 16, 4, false, KN_KV_F32, 1e-6f};
    check_shape(&s);
}

static void tiny_heads_tiled_f16_taps(void **state)
{
    (void)state;
    struct kn_delta_shape s = {3, 6, 16, 4, true, KN_KV_F16, 1e-6f};
    check_shape(&s);
}

static void heads_of_48_two_bf16_taps(void **state)
{
    (void)state;
    struct kn_delta_shape s = {1, 1, 48, 2, false, KN_KV_BF16, 1e-6f};
    check_shape(&s);
}

static void large_heads_and_eight_taps(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* instrumented scalar code takes minutes for 128 */
    struct kn_delta_shape s = {1, 1, 64, 8, true, KN_KV_F16, 1e-6f};
#else
    struct kn_delta_shape s = {1, 2, 128, 8, true, KN_KV_F16, 1e-6f};
#endif
    check_shape(&s);
}

static void captures_come_in_any_chunk_that_reaches_them(void **state)
{
    (void)state;
    struct kn_delta_shape s = {1, 2, 16, 4, false, KN_KV_F16, 1e-6f};
    uint64_t rng = 5;
    struct kn_backend *b;
    assert_int_equal(kn_backend_open(KN_ISA_AUTO, 2, &b), KN_OK);
    struct layer l = make_layer(&s, &rng);
    struct talk t = make_talk(&l, 130, &rng);
    struct checkpoint whole = make_checkpoint(&l, 128, 512), parts = make_checkpoint(&l, 128, 4096);
    char *a = malloc(l.state_bytes), *c = malloc(l.state_bytes);
    float *out = malloc(t.n * l.out_columns * sizeof(float));
    start(&l, &t);
    step(b, &l, &t, 1, 0, 130, &out, &whole.capture, 1);
    start(&l, &t);
    for (uint32_t from = 0; from < 130; from += 50) { /* reached by the last chunk */
        bool reached = from < 128 && from + 50 >= 128;
        step(b, &l, &t, 1, from, 50, &out, reached ? &parts.capture : NULL, reached);
    }
    kn_blocks_read(b, &whole.capture.to, 77, a, l.state_bytes);
    kn_blocks_read(b, &parts.capture.to, 77, c, l.state_bytes);
    assert_memory_equal(a, c, l.state_bytes);
    free(a);
    free(c);
    free(out);
    free_checkpoint(&whole);
    free_checkpoint(&parts);
    free_talk(&t);
    free_layer(&l);
    kn_backend_close(b);
}

static int call_with(struct kn_backend *b, const struct kn_delta_shape *s, const struct kn_delta_seq *q)
{
    float x[1024] = {0};
    struct kn_delta_weights w = {x, x, x};
    return kn_delta(b, s, &w, q, q != NULL, x, 0, x, 0, x, 0, x, 0);
}

static void bad_shapes_and_captures_are_refused(void **state)
{
    (void)state;
    struct kn_backend *b;
    assert_int_equal(kn_backend_open(KN_ISA_SCALAR, 1, &b), KN_OK);
    static const struct kn_delta_shape bad[] = {
        {0, 1, 16, 4, false, KN_KV_F32, 0}, {2, 3, 16, 4, false, KN_KV_F32, 0},
        {1, 0, 16, 4, false, KN_KV_F32, 0}, {1, 1, 0, 4, false, KN_KV_F32, 0},
        {1, 1, 24, 4, false, KN_KV_F32, 0}, {1, 1, 272, 4, false, KN_KV_F32, 0},
        {1, 1, 16, 1, false, KN_KV_F32, 0}, {1, 1, 16, 9, false, KN_KV_F32, 0},
        {1, 1, 16, 4, false, 3, 0},         {1u << 31, 1u << 31, 256, 4, false, KN_KV_F32, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(call_with(b, &bad[i], NULL), KN_EINVAL);
    struct kn_delta_shape good = {1, 1, 16, 4, false, KN_KV_F32, 1e-6f};
    assert_int_equal(call_with(b, &good, NULL), KN_OK);
    struct kn_delta_capture at[2] = {{64, 0, {NULL, 0}}, {64, 0, {NULL, 0}}};
    struct kn_delta_seq q = {NULL, 64, 100, 0, at, 1};
    assert_int_equal(call_with(b, &good, &q), KN_EINVAL); /* not behind pos0 */
    at[0].position = 192;
    assert_int_equal(call_with(b, &good, &q), KN_EINVAL); /* not reached */
    at[0].position = 100;
    assert_int_equal(call_with(b, &good, &q), KN_EINVAL); /* not on the grid */
    at[0].position = at[1].position = 128;
    q.n_captures = 2;
    assert_int_equal(call_with(b, &good, &q), KN_EINVAL); /* twice */
    kn_backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_heads_grouped_f32_taps),
        cmocka_unit_test(tiny_heads_tiled_f16_taps),
        cmocka_unit_test(heads_of_48_two_bf16_taps),
        cmocka_unit_test(large_heads_and_eight_taps),
        cmocka_unit_test(captures_come_in_any_chunk_that_reaches_them),
        cmocka_unit_test(bad_shapes_and_captures_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
