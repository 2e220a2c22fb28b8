/*
 * A row's logits depend on its sequence alone: whatever the chunks, the neighbours in the batch, the order
 * of the pages, the number of threads, the code path or which rows want logits, the bits are the same.
 */
#include "tests/model/support.h"
#include <stdlib.h>
#include <string.h>

#define N 131 /* over eight pages, not a multiple of anything */

static const uint32_t types[TINY_ARCHITECTURES] = {FMT_F32, FMT_Q4_1, FMT_Q8_0, FMT_Q4_0, FMT_Q8_0, FMT_BF16};
static const enum kn_kv_dtype dtypes[TINY_ARCHITECTURES] = {KN_KV_F32,  KN_KV_F16, KN_KV_BF16,
                                                            KN_KV_BF16, KN_KV_F16, KN_KV_F32};

/* Every architecture, each with another weight and KV type, on every path. */
static void for_each_model(void (*fn)(struct eng_model *m, const uint32_t *ids, const float *whole))
{
    enum kn_isa isas[4];
    size_t n_isas = isa_list(isas);
    uint32_t ids[N];
    make_ids(ids, N, 77);
    for (size_t a = 0; a < TINY_ARCHITECTURES; a++) {
        struct gguf_writer *w = tiny_model(tiny_architectures[a], types[a], 64, false);
        for (size_t i = 0; i < n_isas; i++) {
            struct eng_model *m = open_writer(w, isas[i], 2, dtypes[a]);
            float *whole = run_chunked(m, ids, N, N, 3);
            fn(m, ids, whole);
            free(whole);
            eng_model_close(m);
        }
        gguf_writer_free(w);
    }
}

static void chunks(struct eng_model *m, const uint32_t *ids, const float *whole)
{
    static const uint32_t sizes[] = {1, 7, 16, 64, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        float *logits = run_chunked(m, ids, N, sizes[i], 100 + (uint32_t)i);
        assert_memory_equal(logits, whole, N * TINY_VOCAB * sizeof *logits);
        free(logits);
    }
}

static void prefill_in_any_chunks_gives_the_same_bits(void **state)
{
    (void)state;
    for_each_model(chunks);
}

/* Our sequence in chunks of changing size, between one that decodes and one that prefills; logits of some
 * rows only, so the last layer's short cut is taken too. */
static void neighbours(struct eng_model *m, const uint32_t *ids, const float *whole)
{
    uint32_t other[2][N];
    make_ids(other[0], N, 5);
    make_ids(other[1], N, 6);
    struct kv mine = kv_new(m, N, 9), theirs[2] = {kv_new(m, N, 10), kv_new(m, N, 11)};
    uint32_t at = 0, other_at[2] = {0, 0}, step = 0;
    static const uint32_t lens[] = {5, 17, 1, 1, 33, 2, 40};
    while (at < N) {
        uint32_t len = lens[step % 7] < N - at ? lens[step % 7] : N - at;
        uint32_t wanted = step % 3 == 0 ? 0 : step % 3 == 1 ? 1 : len;
        struct eng_step_seq s[3];
        size_t n = 0, before = 0;
        for (int k = 0; k < 2; k++) {
            if (k == 1)
                s[n++] = kv_step(&mine, ids, at, len, wanted);
            uint32_t more = k == 0 ? 1 : 9;
            if (other_at[k] + more > N)
                continue;
            s[n++] = kv_step(&theirs[k], other[k], other_at[k], more, 1);
            other_at[k] += more;
            before += k == 0;
        }
        const float *logits;
        assert_int_equal(eng_forward(m, s, n, &logits), ENG_OK);
        at += len;
        assert_memory_equal(logits + before * TINY_VOCAB, whole + (size_t)(at - wanted) * TINY_VOCAB,
                            wanted * TINY_VOCAB * sizeof *logits);
        step++;
    }
    kv_free(&mine);
    kv_free(&theirs[0]);
    kv_free(&theirs[1]);
}

static void neighbours_in_the_batch_change_no_bit(void **state)
{
    (void)state;
    for_each_model(neighbours);
}

static void threads_and_paths_change_no_bit(void **state)
{
    (void)state;
    enum kn_isa isas[4];
    size_t n_isas = isa_list(isas);
    uint32_t ids[N];
    make_ids(ids, N, 78);
    for (size_t a = 0; a < TINY_ARCHITECTURES; a++) {
        struct gguf_writer *w = tiny_model(tiny_architectures[a], types[a], 64, false);
        float *first = NULL;
        for (size_t i = 0; i < n_isas; i++)
            for (unsigned threads = 1; threads <= 3; threads += 2) {
                struct eng_model *m = open_writer(w, isas[i], threads, dtypes[a]);
                float *logits = run_chunked(m, ids, N, 50, threads);
                if (first)
                    assert_memory_equal(logits, first, N * TINY_VOCAB * sizeof *logits);
                free(first);
                first = logits;
                eng_model_close(m);
            }
        free(first);
        gguf_writer_free(w);
    }
}

static void a_step_without_logits_gives_none(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, 64, false);
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 1, KN_KV_F16);
    uint32_t ids[4] = {1, 2, 3, TINY_VOCAB};
    struct kv kv = kv_new(m, 16, 1);
    const float *logits;
    struct eng_step_seq s = {.ids = ids, .n = 3, .pages = kv.pages};
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
    assert_int_equal(eng_forward(m, &s, 0, &logits), ENG_OK);
    assert_null(logits);
    s.n_logits = 4; /* more than there are rows */
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    s = (struct eng_step_seq){.ids = ids,
                              .n = 4,
                              .pos0 = 0,
                              .pages = kv.pages,
                              .n_logits = 1}; /* a token that the vocabulary lacks */
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    s = (struct eng_step_seq){.ids = ids,
                              .n = 3,
                              .pos0 = eng_model_context(m) - 2,
                              .pages = kv.pages,
                              .n_logits = 1}; /* past the context */
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_EINVAL);
    kv_free(&kv);
    eng_model_close(m);
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_in_any_chunks_gives_the_same_bits),
        cmocka_unit_test(neighbours_in_the_batch_change_no_bit),
        cmocka_unit_test(threads_and_paths_change_no_bit),
        cmocka_unit_test(a_step_without_logits_gives_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
