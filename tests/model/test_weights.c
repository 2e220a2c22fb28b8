/*
 * Every weight type loads and gives what its dequantised twin in F32 gives; the fingerprint changes with
 * anything that KV depends on, and with nothing else.
 */
#include "tests/model/support.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 40

static const uint32_t types[] = {FMT_F16,  FMT_BF16, FMT_Q4_0, FMT_Q4_1, FMT_Q5_0,
                                 FMT_Q5_1, FMT_Q8_0, FMT_Q4_K, FMT_Q5_K, FMT_Q6_K};

static float *logits_of(const char *architecture, uint32_t type, bool plain)
{
    struct gguf_writer *w = tiny_model(architecture, type, 256, plain);
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 2, KN_KV_F32);
    uint32_t ids[N];
    for (uint32_t i = 0; i < N; i++)
        ids[i] = (i * 37 + 11) % TINY_VOCAB;
    float *logits = run_chunked(m, ids, N, 16, 1);
    eng_model_close(m);
    gguf_writer_free(w);
    return logits;
}

static void compare_with_twin(const char *architecture, uint32_t type)
{
    float *ours = logits_of(architecture, type, false), *twin = logits_of(architecture, type, true);
    float largest = 0, furthest = 0;
    for (size_t k = 0; k < (size_t)N * TINY_VOCAB; k++) {
        assert_true(isfinite(ours[k]));
        largest = fmaxf(largest, fabsf(twin[k]));
        furthest = fmaxf(furthest, fabsf(ours[k] - twin[k]));
    }
    /* int16 activations: one part in 65,534 of a block's largest, a product. */
    if (furthest > 1e-3F * largest || !(largest > 0.1F))
        fail_msg("%s in %s: off by %g of %g", architecture, fmt_type_name(type), (double)furthest,
                 (double)largest);
    free(ours);
    free(twin);
}

/* Each type in two architectures, each architecture in at least three types. */
static void every_type_gives_what_its_dequantised_twin_gives(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        compare_with_twin(tiny_architectures[i % TINY_ARCHITECTURES], types[i]);
        compare_with_twin(tiny_architectures[(i + 3) % TINY_ARCHITECTURES], types[i]);
    }
}

static void own_head_and_mixed_types_are_used(void **state)
{
    (void)state;
    /* The head of a tied model is its embedding: an own head with the same rows must give the same bits,
     * one of zeros must give zeros. v in Q6_K beside q and k in Q4_K, as the mixed files have it. */
    struct gguf_writer *w = tiny_model("llama", FMT_Q4_K, 256, false);
    struct gguf_writer *six = tiny_model("llama", FMT_Q6_K, 256, false);
    size_t len;
    struct fmt_gguf *g = NULL;
    char err[256] = "";
    const void *bytes = gguf_finish(six, &len);
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    const struct fmt_tensor *v = fmt_gguf_tensor(g, "blk.0.attn_v.weight");
    assert_non_null(v);
    gguf_tensor(w, v->name, v->type, v->n_dims, v->ne, v->data);
    fmt_gguf_close(g);
    gguf_writer_free(six);

    uint32_t ids[N] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, 2, KN_KV_F16);
    assert_true(eng_model_desc(m)->tied_head);
    float *tied = run_chunked(m, ids, N, N, 1);
    eng_model_close(m);

    bytes = gguf_finish(w, &len);
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    const struct fmt_tensor *e = fmt_gguf_tensor(g, "token_embd.weight");
    assert_non_null(e);
    struct gguf_writer *own = tiny_model("llama", FMT_Q4_K, 256, false);
    v = fmt_gguf_tensor(g, "blk.0.attn_v.weight");
    assert_non_null(v);
    gguf_tensor(own, v->name, v->type, v->n_dims, v->ne, v->data);
    gguf_tensor(own, "output.weight", e->type, e->n_dims, e->ne, e->data);
    fmt_gguf_close(g);
    m = open_writer(own, KN_ISA_AUTO, 2, KN_KV_F16);
    assert_false(eng_model_desc(m)->tied_head);
    float *untied = run_chunked(m, ids, N, N, 1);
    assert_memory_equal(untied, tied, (size_t)N * TINY_VOCAB * sizeof *tied);
    eng_model_close(m);
    free(untied);
    free(tied);

    float *zeros = calloc((size_t)TINY_VOCAB * 256, sizeof *zeros);
    assert_non_null(zeros);
    gguf_tensor(own, "output.weight", FMT_F32, 2, (const uint64_t[]){256, TINY_VOCAB}, zeros);
    free(zeros);
    m = open_writer(own, KN_ISA_AUTO, 2, KN_KV_F16);
    float *none = run_chunked(m, ids, N, N, 1);
    for (size_t i = 0; i < (size_t)N * TINY_VOCAB; i++)
        assert_true(none[i] == 0);
    free(none);
    eng_model_close(m);
    gguf_writer_free(own);
    gguf_writer_free(w);
}

static void a_scale_that_overflows_f16_is_refused(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_Q4_0, 64, false);
    uint8_t rows[64 / 32 * 18 * 32] = {0};
    uint16_t scale = fmt_f32_to_f16(60000);
    memcpy(rows + 18 * 5, &scale, 2);
    gguf_tensor(w, "blk.1.attn_k.weight", FMT_Q4_0, 2, (const uint64_t[]){64, 32}, rows);
    size_t len;
    const void *bytes = gguf_finish(w, &len);
    struct fmt_gguf *g = NULL;
    char err[256] = "";
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    const struct eng_model_options o = {.isa = KN_ISA_AUTO, .threads = 2};
    struct eng_model *m;
    assert_int_equal(eng_model_open(g, &o, &m, err, sizeof err), ENG_EFORMAT);
    assert_string_equal(err, "tensor blk.1.attn_k.weight: cannot be packed");
    fmt_gguf_close(g);
    gguf_writer_free(w);
}

static void progress(void *ctx, double done)
{
    double *last = ctx;
    assert_true(done > *last && done <= 1);
    *last = done;
}

static void progress_is_told_to_the_end(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, 256, false);
    size_t len;
    const void *bytes = gguf_finish(w, &len);
    struct fmt_gguf *g = NULL;
    char err[256] = "";
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    double done = 0;
    const struct eng_model_options o = {
        .isa = KN_ISA_AUTO, .threads = 2, .progress = progress, .progress_ctx = &done};
    struct eng_model *m;
    assert_int_equal(eng_model_open(g, &o, &m, err, sizeof err), ENG_OK);
    assert_true(done == 1);
    eng_model_close(m);
    fmt_gguf_close(g);
    gguf_writer_free(w);
}

/* ---- fingerprint -------------------------------------------------------------------------------------- */

struct print {
    uint8_t bytes[32];
};

static struct print fingerprint(struct gguf_writer *w, unsigned threads, enum kn_kv_dtype dtype)
{
    struct print p;
    struct eng_model *m = open_writer(w, KN_ISA_AUTO, threads, dtype);
    eng_model_fingerprint(m, p.bytes);
    eng_model_close(m);
    return p;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

static void set_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_u32(w, key, v);
}

static void set_theta(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_f32(w, key, (float)v);
}

/* Keys of the newer architectures that change no tensor's shape: each gives another fingerprint. */
static void check_more_fingerprints(void)
{
    static const struct {
        const char *architecture, *key;
        void (*set)(struct gguf_writer *w, const char *key, uint32_t v);
        uint32_t v;
    } changes[] = {{"gemma3", "gemma3.attention.sliding_window", set_u32, TINY_WINDOW + 1},
                   {"gemma3", "gemma3.attention.sliding_window_pattern", set_u32, 4},
                   {"gemma3", "gemma3.rope.freq_base_swa", set_theta, 20000},
                   {"qwen35", "qwen35.rope.dimension_count", set_u32, 16},
                   {"qwen3next", "qwen3next.expert_used_count", set_u32, 3}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct gguf_writer *w = tiny_model(changes[i].architecture, FMT_F32, 64, false);
        const struct print before = fingerprint(w, 1, KN_KV_F16);
        changes[i].set(w, changes[i].key, changes[i].v);
        if (same(before, fingerprint(w, 1, KN_KV_F16)))
            fail_msg("%s changes nothing in the fingerprint", changes[i].key);
        gguf_writer_free(w);
    }
}

static void the_fingerprint_names_what_kv_depends_on(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_Q8_0, 256, false);
    const struct print base = fingerprint(w, 1, KN_KV_F16);
    assert_true(same(base, fingerprint(w, 3, KN_KV_F16))); /* threads change nothing */
    assert_false(same(base, fingerprint(w, 1, KN_KV_BF16)));
    assert_false(same(base, fingerprint(w, 1, KN_KV_F32)));
    gguf_string(w, "general.name", "Another name");
    assert_true(same(base, fingerprint(w, 1, KN_KV_F16)));

    gguf_f32(w, "llama.rope.freq_base", 10001);
    assert_false(same(base, fingerprint(w, 1, KN_KV_F16)));
    gguf_drop(w, "llama.rope.freq_base");
    assert_true(same(base, fingerprint(w, 1, KN_KV_F16)));
    gguf_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-6F);
    assert_false(same(base, fingerprint(w, 1, KN_KV_F16)));
    gguf_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5F);

    check_more_fingerprints();

    /* One bit of one weight. */
    size_t len;
    uint8_t *bytes = (uint8_t *)(uintptr_t)gguf_finish(w, &len);
    bytes[len - 40] ^= 1;
    struct fmt_gguf *g = NULL;
    char err[256] = "";
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    const struct eng_model_options o = {.isa = KN_ISA_AUTO, .threads = 2, .kv_dtype = KN_KV_F16};
    struct eng_model *m;
    assert_int_equal(eng_model_open(g, &o, &m, err, sizeof err), ENG_OK);
    struct print changed;
    eng_model_fingerprint(m, changed.bytes);
    assert_false(same(base, changed));
    eng_model_close(m);
    fmt_gguf_close(g);
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_gives_what_its_dequantised_twin_gives),
        cmocka_unit_test(own_head_and_mixed_types_are_used),
        cmocka_unit_test(a_scale_that_overflows_f16_is_refused),
        cmocka_unit_test(progress_is_told_to_the_end),
        cmocka_unit_test(the_fingerprint_names_what_kv_depends_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
