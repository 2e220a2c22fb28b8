/*
 * State at boundaries: a sequence that was resumed from a checkpoint (full pages, the last pages of its
 * windows, recurrent state) gives the bits of one that was never interrupted; what a step captures inside a
 * chunk is what would be saved if the chunk ended there.
 */
#include "tests/model/support.h"
#include <stdlib.h>
#include <string.h>

#define N 211 /* over three grids of 64, several windows, not a multiple of anything */

static const char *const stateful[] = {"gemma3", "qwen35", "qwen3next"};
static const uint32_t types[] = {FMT_Q8_0, FMT_F16, FMT_Q4_1};
static const enum kn_kv_dtype dtypes[] = {KN_KV_F16, KN_KV_F16, KN_KV_BF16};
#define PATHS_TAKE_TURNS 3
#define N_STATEFUL       (sizeof stateful / sizeof stateful[0])

/* ---- checkpoints --------------------------------------------------------------------------------------- */

/* State in blocks of the size of a page, filled with garbage. */
struct blocks {
    uint8_t *bytes;
    void **list;
    struct kn_blocks b;
    uint64_t n_bytes;
};

static struct blocks blocks_new(const struct eng_model *m)
{
    const uint64_t stride = kn_kv_page_bytes(eng_model_kv(m)), bytes = eng_model_state(m)->state_bytes;
    const size_t n = (bytes + stride - 1) / stride;
    struct blocks k = {.bytes = aligned_alloc(64, (n * stride + 64) / 64 * 64),
                       .list = calloc(n + 1, sizeof(void *)),
                       .n_bytes = bytes};
    assert_non_null(k.bytes);
    assert_non_null(k.list);
    memset(k.bytes, 0xa5, n * stride);
    for (size_t i = 0; i < n; i++)
        k.list[i] = k.bytes + i * stride;
    k.b = (struct kn_blocks){k.list, stride};
    return k;
}

static void blocks_free(struct blocks *k)
{
    free(k->bytes);
    free(k->list);
}

/* Everything that a sequence resumed at p may read, and nothing else: what is left out is NaN or NULL. */
static struct kv resume(struct eng_model *m, const struct kv *from, uint32_t p, const struct blocks *state)
{
    const struct eng_state_desc *d = eng_model_state(m);
    const uint64_t page = kn_kv_page_bytes(eng_model_kv(m));
    struct kv kv = kv_new(m, N, 1000 + p);
    for (uint32_t i = 0; i < p / KN_PAGE_TOKENS; i++)
        memcpy(kv.pages[i], from->pages[i], page);
    uint32_t first = p + 1 > d->window ? (p + 1 - d->window) / KN_PAGE_TOKENS : 0;
    for (uint32_t g = 0; g < kv.n_groups; g++)
        for (uint32_t i = 0; i < p / KN_PAGE_TOKENS; i++) {
            if (i >= first)
                memcpy(kv.groups[g][i], from->groups[g][i], page);
            else
                kv.groups[g][i] = NULL;
        }
    if (kv.state) {
        memset(kv.state, 0x7f, d->live_bytes);
        eng_state_load(m, kv.state, &state->b);
    }
    return kv;
}

static void compare_rest(struct eng_model *m, struct kv *kv, const uint32_t *ids, uint32_t p, uint32_t chunk,
                         const float *whole, const char *name)
{
    const uint32_t end =
        chunk > 1 || N - p < 80 ? N : p + 80; /* single steps: over the next grid is enough */
    for (uint32_t at = p; at < end; at += chunk) {
        const uint32_t len = end - at < chunk ? end - at : chunk;
        const struct eng_step_seq s = kv_step(kv, ids, at, len, len);
        const float *logits;
        assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
        if (memcmp(logits, whole + (size_t)at * TINY_VOCAB, len * TINY_VOCAB * sizeof *logits) != 0)
            fail_msg("%s, resumed at %u in chunks of %u: other bits at %u", name, p, chunk, at);
    }
}

/* Captures at every grid position, in chunks that hold several, one or none of them; resumed at each of them
 * on one of the code paths, which take turns (test_batches.c compares them with each other). */
static void resume_everywhere(struct eng_model *m, const uint32_t *ids, const float *whole, const char *name,
                              size_t turn)
{
    const uint32_t grid = eng_model_state(m)->grid, n_at = N / grid;
    const bool recurrent = eng_model_state(m)->state_bytes > 0;
    struct blocks at[N / KN_PAGE_TOKENS];
    struct eng_capture captures[N / KN_PAGE_TOKENS];
    for (uint32_t i = 0; i < n_at; i++) {
        at[i] = blocks_new(m);
        captures[i] = (struct eng_capture){.position = (i + 1) * grid, .to = at[i].b};
    }
    struct kv kv = kv_new(m, N, 5);
    static const uint32_t lens[] = {130, 1, 61, 200};
    for (uint32_t pos = 0, k = 0, c = 0; pos < N; k++) {
        const uint32_t len = lens[k] < N - pos ? lens[k] : N - pos;
        struct eng_step_seq s = kv_step(&kv, ids, pos, len, 0);
        s.captures = captures + c;
        while (recurrent && c < n_at && captures[c].position <= pos + len) {
            s.n_captures++;
            c++;
        }
        const float *logits;
        assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
        pos += len;
    }
    static const uint32_t chunks[] = {1, 7, 64, N};
    for (uint32_t i = 0; i < n_at; i++) {
        if (i % PATHS_TAKE_TURNS != turn)
            continue;
        struct kv resumed = resume(m, &kv, (i + 1) * grid, &at[i]);
        compare_rest(m, &resumed, ids, (i + 1) * grid, chunks[3 * i % 4], whole, name);
        kv_free(&resumed);
    }
    for (uint32_t i = 0; i < n_at; i++)
        blocks_free(&at[i]);
    kv_free(&kv);
}

static void for_each_stateful(void (*fn)(struct eng_model *m, const uint32_t *ids, const float *whole,
                                         const char *name, size_t turn))
{
    enum kn_isa isas[4];
    const size_t n_isas = isa_list(isas);
    uint32_t ids[N];
    make_ids(ids, N, 4242);
    for (size_t a = 0; a < N_STATEFUL; a++) {
        struct gguf_writer *w = tiny_model(stateful[a], types[a], 64, false);
        for (size_t i = 0; i < n_isas; i++) {
            struct eng_model *m = open_writer(w, isas[i], 2, dtypes[a]);
            float *whole = run_chunked(m, ids, N, N, 3);
            for (size_t turn = i; turn < PATHS_TAKE_TURNS; turn += n_isas)
                fn(m, ids, whole, stateful[a], turn);
            free(whole);
            eng_model_close(m);
        }
        gguf_writer_free(w);
    }
}

static void a_resumed_sequence_gives_the_bits_of_one_that_was_not(void **state)
{
    (void)state;
    for_each_stateful(resume_everywhere);
}

/* ---- capture and save ---------------------------------------------------------------------------------- */

static void captured_is_saved(struct eng_model *m, const uint32_t *ids, const float *whole, const char *name,
                              size_t turn)
{
    (void)whole;
    (void)turn;
    const uint32_t grid = eng_model_state(m)->grid, n_at = N / grid;
    if (eng_model_state(m)->state_bytes == 0)
        return;
    struct blocks at[N / KN_PAGE_TOKENS];
    struct eng_capture captures[N / KN_PAGE_TOKENS];
    for (uint32_t i = 0; i < n_at; i++) {
        at[i] = blocks_new(m);
        captures[i] = (struct eng_capture){.position = (i + 1) * grid, .to = at[i].b};
    }
    struct kv kv = kv_new(m, N, 5);
    struct eng_step_seq s = kv_step(&kv, ids, 0, N, 0);
    const float *logits;
    s.captures = captures;
    s.n_captures = n_at;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
    /* Once with chunks that end on the grid, and once past it: saved is the last grid position before. */
    for (uint32_t past = 0; past < 2; past++) {
        struct kv again = kv_new(m, N, 7);
        struct blocks saved = blocks_new(m);
        for (uint32_t i = 0, pos = 0; i < n_at; i++) {
            const uint32_t end = (i + 1) * grid + 9 * past;
            s = kv_step(&again, ids, pos, end - pos, 0);
            assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
            eng_state_save(m, again.state, &saved.b);
            if (memcmp(saved.bytes, at[i].bytes, saved.n_bytes) != 0)
                fail_msg("%s: saved at %u differs from what was captured at %u", name, end, (i + 1) * grid);
            pos = end;
        }
        blocks_free(&saved);
        kv_free(&again);
    }
    for (uint32_t i = 0; i < n_at; i++) {
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(at[i].bytes, at[k].bytes, at[i].n_bytes);
        blocks_free(&at[i]);
    }
    kv_free(&kv);
}

static void what_a_chunk_captures_is_what_would_be_saved_there(void **state)
{
    (void)state;
    for_each_stateful(captured_is_saved);
}

/* Two sequences that both capture in one step, one of them in the middle of its chunk twice. */
static void neighbours_capture(struct eng_model *m, const uint32_t *ids, const float *whole, const char *name,
                               size_t turn)
{
    (void)whole;
    (void)turn;
    if (eng_model_state(m)->state_bytes == 0)
        return;
    uint32_t other[N];
    make_ids(other, N, 99);
    struct blocks alone[3], together[3];
    for (int i = 0; i < 3; i++) {
        alone[i] = blocks_new(m);
        together[i] = blocks_new(m);
    }
    const float *logits;
    struct blocks *to[2] = {alone, together};
    for (int t = 0; t < 2; t++) {
        const struct eng_capture a[] = {{64, to[t][0].b}, {128, to[t][1].b}}, b[] = {{64, to[t][2].b}};
        struct kv mine = kv_new(m, N, 1), theirs = kv_new(m, N, 2);
        struct eng_step_seq s[2] = {kv_step(&mine, ids, 0, 150, 0), kv_step(&theirs, other, 0, 70, 1)};
        s[0].captures = a;
        s[0].n_captures = 2;
        s[1].captures = b;
        s[1].n_captures = 1;
        if (t == 0) {
            assert_int_equal(eng_forward(m, &s[0], 1, &logits), ENG_OK);
            assert_int_equal(eng_forward(m, &s[1], 1, &logits), ENG_OK);
        } else {
            assert_int_equal(eng_forward(m, s, 2, &logits), ENG_OK);
        }
        kv_free(&mine);
        kv_free(&theirs);
    }
    for (int i = 0; i < 3; i++) {
        if (memcmp(alone[i].bytes, together[i].bytes, alone[i].n_bytes) != 0)
            fail_msg("%s: capture %d depends on the neighbour", name, i);
        blocks_free(&alone[i]);
        blocks_free(&together[i]);
    }
}

static void captures_do_not_depend_on_neighbours(void **state)
{
    (void)state;
    for_each_stateful(neighbours_capture);
}

/* ---- the description of state -------------------------------------------------------------------------- */

static void a_dense_model_has_no_state(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, 64, false);
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 1, KN_KV_F16);
    const struct eng_state_desc *d = eng_model_state(m);
    assert_int_equal(d->grid, KN_PAGE_TOKENS);
    assert_int_equal(d->group_layers, 2);
    assert_int_equal(
        d->window + d->window_groups + d->state_bytes + d->live_bytes + d->replay_tokens + d->n_segments, 0);
    eng_state_start(m, NULL);
    eng_state_load(m, NULL, NULL);
    eng_state_save(m, NULL, NULL);
    const uint32_t ids[64] = {0};
    struct kv kv = kv_new(m, 64, 1);
    struct eng_step_seq s = kv_step(&kv, ids, 0, 64, 0);
    const struct eng_capture capture = {.position = 64};
    s.captures = &capture;
    s.n_captures = 1;
    const float *logits;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    kv_free(&kv);
    eng_model_close(m);
    gguf_writer_free(w);
}

static void windows_are_cut_into_groups_of_the_size_of_a_page(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("gemma3", FMT_F32, 64, false);
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 1, KN_KV_F16);
    const struct eng_state_desc *d = eng_model_state(m);
    assert_int_equal(d->grid, KN_PAGE_TOKENS);
    assert_int_equal(d->group_layers, 1);
    assert_int_equal(d->window, TINY_WINDOW);
    assert_int_equal(d->window_groups, 3);
    assert_int_equal(d->replay_tokens, 3 * (TINY_WINDOW - 1));
    assert_int_equal(d->state_bytes + d->live_bytes + d->n_segments, 0);
    assert_int_equal(eng_model_kv(m)->layers, 1);
    const uint32_t ids[16] = {0};
    struct kv kv = kv_new(m, 16, 1);
    struct eng_step_seq s = kv_step(&kv, ids, 0, 16, 0);
    const float *logits;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
    s.window_pages = NULL;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    kv_free(&kv);
    eng_model_close(m);
    gguf_writer_free(w);
}

static void segments_cover_the_state(void **state)
{
    (void)state;
    for (size_t a = 1; a < N_STATEFUL; a++) {
        struct gguf_writer *w = tiny_model(stateful[a], FMT_F32, 64, false);
        for (int dtype = KN_KV_F16; dtype <= KN_KV_F32; dtype++) {
            struct eng_model *m = open_writer(w, KN_ISA_AUTO, 1, (enum kn_kv_dtype)dtype);
            const struct eng_state_desc *d = eng_model_state(m);
            assert_int_equal(d->grid, KN_DELTA_BLOCK);
            assert_int_equal(d->window + d->window_groups + d->replay_tokens, 0);
            const uint32_t n_full = a == 1 ? 2 : 1;
            assert_int_equal(d->group_layers, n_full);
            assert_int_equal(d->n_segments, 4);
            uint64_t at = 0;
            for (uint32_t i = 0; i < d->n_segments; i++) {
                const struct eng_state_segment *g = &d->segments[i];
                assert_string_equal(g->name, i % 2 ? "conv" : "delta");
                assert_int_equal(g->layer, i / 2 * 2);
                assert_int_equal(g->offset, at);
                const uint64_t taps = 3 * (2 * 2 * 16 + 4 * 16) * kn_kv_dtype_bytes((enum kn_kv_dtype)dtype);
                assert_int_equal(g->bytes, i % 2 ? taps : 4 * 16 * 16 * sizeof(float));
                at += g->bytes;
            }
            assert_int_equal(at, d->state_bytes);
            assert_true(d->live_bytes >= d->state_bytes && d->live_bytes % 64 == 0);
            struct eng_state_desc of;
            eng_model_state_of(eng_model_desc(m), (enum kn_kv_dtype)dtype, &of);
            assert_null(of.segments);
            assert_int_equal(of.grid, d->grid);
            assert_int_equal(of.group_layers, d->group_layers);
            assert_int_equal(of.state_bytes, d->state_bytes);
            assert_int_equal(of.live_bytes, d->live_bytes);
            assert_int_equal(of.n_segments, 0);
            eng_model_close(m);
        }
        gguf_writer_free(w);
    }
}

static void a_step_that_cannot_be_captured_is_refused(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("qwen35", FMT_F32, 64, false);
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 1, KN_KV_F16);
    uint32_t ids[N];
    make_ids(ids, N, 1);
    struct kv kv = kv_new(m, N, 1);
    struct blocks k = blocks_new(m);
    const float *logits;
    const uint32_t wrong[][2] = {{0, 64}, {63, 64}, {64, 64}, {128, 64}, {192, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct eng_capture captures[] = {{wrong[i][0], k.b}, {wrong[i][1], k.b}};
        struct eng_step_seq s = kv_step(&kv, ids, 0, 150, 0);
        s.captures = captures;
        s.n_captures = 2;
        assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    }
    struct eng_step_seq s = kv_step(&kv, ids, 0, 150, 0);
    s.state = NULL;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    blocks_free(&k);
    kv_free(&kv);
    eng_model_close(m);
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_sequence_gives_the_bits_of_one_that_was_not),
        cmocka_unit_test(what_a_chunk_captures_is_what_would_be_saved_there),
        cmocka_unit_test(captures_do_not_depend_on_neighbours),
        cmocka_unit_test(a_dense_model_has_no_state),
        cmocka_unit_test(windows_are_cut_into_groups_of_the_size_of_a_page),
        cmocka_unit_test(segments_cover_the_state),
        cmocka_unit_test(a_step_that_cannot_be_captured_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
