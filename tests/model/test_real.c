/*
 * The real model against transformers' float32 run of the same file (tools/make-reference made the numbers,
 * tests/data/reference/README.md says what they are): greedy replies, teacher-forced, and perplexity.
 *
 * Skipped, loudly, where the model has not been fetched.
 */
#include "tests/model/support.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *reference;
static char model_path[1024];

static double number(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

static struct eng_model *open_real(enum kn_kv_dtype dtype)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return open_path(model_path, KN_ISA_AUTO, cpus > 1 ? (unsigned)cpus : 1, dtype);
}

static float log_sum_exp(struct eng_model *m, const float *row)
{
    float max, lse;
    kn_logsumexp(eng_model_backend(m), row, eng_model_desc(m)->n_vocab, &max, &lse);
    return lse;
}

/* Prompt and the reference's reply in one pass; each reply token is predicted by the row before it. */
static double check_prompt(struct eng_model *m, const json_t *prompt, size_t index)
{
    const json_t *in = json_object_get(prompt, "ids"), *greedy = json_object_get(prompt, "greedy"),
                 *gap = json_object_get(prompt, "gap"), *logprob = json_object_get(prompt, "logprob");
    const size_t n = json_array_size(in), steps = json_array_size(greedy), vocab = eng_model_desc(m)->n_vocab;
    assert_true(n > 0 && steps > 0);
    uint32_t *ids = calloc(n + steps, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < n + steps; i++)
        ids[i] = (uint32_t)(i < n ? number(in, i) : number(greedy, i - n));
    struct kv kv = kv_new(m, (uint32_t)(n + steps), 1);
    const struct eng_step_seq s = kv_step(&kv, ids, 0, (uint32_t)(n + steps), (uint32_t)steps + 1);
    const float *logits;
    assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
    double worst = 0;
    for (size_t i = 0; i < steps; i++) {
        const float *row = logits + i * vocab;
        double ours = (double)row[ids[n + i]] - (double)log_sum_exp(m, row), theirs = number(logprob, i);
        worst = fmax(worst, fabs(ours - theirs));
        if (fabs(ours - theirs) > 0.1)
            fail_msg("prompt %zu, step %zu: log-probability %g, reference %g", index, i, ours, theirs);
        if (number(gap, i) > 0.25)
            assert_int_equal(kn_argmax(eng_model_backend(m), row, vocab), ids[n + i]);
    }
    kv_free(&kv);
    free(ids);
    return worst;
}

static void check_replies(enum kn_kv_dtype dtype, const char *name)
{
    struct eng_model *m = open_real(dtype);
    const json_t *prompts = json_object_get(reference, "prompts");
    assert_true(json_array_size(prompts) >= 20);
    double worst = 0;
    for (size_t i = 0; i < json_array_size(prompts); i++)
        worst = fmax(worst, check_prompt(m, json_array_get(prompts, i), i));
    printf("KV %s: log-probabilities of %zu greedy replies off by at most %.4f\n", name,
           json_array_size(prompts), worst);
    eng_model_close(m);
}

static void greedy_replies_match_with_kv_in_f16(void **state)
{
    (void)state;
    check_replies(KN_KV_F16, "f16");
}

static void greedy_replies_match_with_kv_in_f32(void **state)
{
    (void)state;
    check_replies(KN_KV_F32, "f32");
}

static void perplexity_matches_with_the_default_kv(void **state)
{
    (void)state;
    struct eng_model *m = open_real(KN_KV_F16);
    const json_t *window = json_object_get(reference, "perplexity"), *in = json_object_get(window, "ids");
    const uint32_t n = (uint32_t)json_array_size(in), chunk = 256;
    const size_t vocab = eng_model_desc(m)->n_vocab;
    assert_true(n >= 8192);
    uint32_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)number(in, i);
    struct kv kv = kv_new(m, n, 2);
    double loss = 0;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        const struct eng_step_seq s = kv_step(&kv, ids, at, len, len);
        const float *logits;
        assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
        for (uint32_t i = 0; i < len && at + i + 1 < n; i++) {
            const float *row = logits + i * vocab;
            loss += (double)log_sum_exp(m, row) - (double)row[ids[at + i + 1]];
        }
    }
    double ours = exp(loss / (n - 1)), theirs = json_number_value(json_object_get(window, "perplexity"));
    printf("perplexity of %u tokens: %.5f, reference %.5f (%+.4f %%)\n", n, ours, theirs,
           100 * (ours / theirs - 1));
    assert_true(theirs > 1);
    assert_true(fabs(ours / theirs - 1) < 0.002);
    kv_free(&kv);
    free(ids);
    eng_model_close(m);
}

/* The folder that tools/fetch-model fills. */
static void find_model(const char *file)
{
    const char *models = getenv("ISOTHERM_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (models && *models)
        snprintf(model_path, sizeof model_path, "%s/%s", models, file);
    else if (cache && *cache)
        snprintf(model_path, sizeof model_path, "%s/isotherm/models/%s", cache, file);
    else
        snprintf(model_path, sizeof model_path, "%s/.cache/isotherm/models/%s", home ? home : "", file);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_real REFERENCE.json\n");
        return 2;
    }
    json_error_t e;
    reference = json_load_file(argv[1], 0, &e);
    const char *file = json_string_value(json_object_get(json_object_get(reference, "model"), "file"));
    if (!file) {
        fprintf(stderr, "%s: %s\n", argv[1], reference ? "names no model" : e.text);
        return 1;
    }
    find_model(file);
    if (access(model_path, R_OK) != 0) {
        fprintf(stderr, "SKIPPED: %s is not there; fetch it to test the real model\n", model_path);
        json_decref(reference);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_replies_match_with_kv_in_f16),
        cmocka_unit_test(greedy_replies_match_with_kv_in_f32),
        cmocka_unit_test(perplexity_matches_with_the_default_kv),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(reference);
    return rc;
}
