/*
 * The tiny golden models against what the reference implementation says of them (tests/data/golden), with KV
 * in f32, on every code path of this machine; and all paths give the same bits.
 */
#include "tests/model/support.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-3

static const char *data_dir;

static json_t *load_golden(const char *name)
{
    char path[1024];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s.json", data_dir, name);
    json_t *j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

static double log_probability(struct eng_model *m, const float *row, uint32_t id)
{
    float max, lse;
    kn_logsumexp(eng_model_backend(m), row, eng_model_desc(m)->n_vocab, &max, &lse);
    return (double)row[id] - (double)lse;
}

static double number(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

static void check_positions(struct eng_model *m, const json_t *prompt, const float *logits)
{
    size_t i;
    json_t *at;
    json_array_foreach(json_object_get(prompt, "at"), i, at)
    {
        uint32_t pos = (uint32_t)json_integer_value(json_object_get(at, "pos"));
        double lse = json_number_value(json_object_get(at, "lse"));
        const float *row = logits + (size_t)pos * eng_model_desc(m)->n_vocab;
        float max, our_lse;
        kn_logsumexp(eng_model_backend(m), row, eng_model_desc(m)->n_vocab, &max, &our_lse);
        if (fabs((double)our_lse - lse) > TOLERANCE)
            fail_msg("position %u: log-sum-exp %g, reference %g", pos, (double)our_lse, lse);
        size_t k;
        json_t *top;
        json_array_foreach(json_object_get(at, "top"), k, top)
        {
            uint32_t id = (uint32_t)number(top, 0);
            double ours = log_probability(m, row, id), theirs = number(top, 1) - lse;
            if (fabs(ours - theirs) > TOLERANCE)
                fail_msg("position %u, token %u: log-probability %g, reference %g", pos, id, ours, theirs);
        }
    }
}

/* The reference's own greedy reply is fed, so each step can be compared; the choice itself only where the
 * first and second are further apart than both errors together. */
static void check_greedy(struct eng_model *m, const json_t *prompt, const float *logits, uint32_t n)
{
    const json_t *greedy = json_object_get(prompt, "greedy"), *gap = json_object_get(prompt, "gap"),
                 *logprob = json_object_get(prompt, "logprob");
    const size_t vocab = eng_model_desc(m)->n_vocab;
    assert_true(json_array_size(greedy) > 0);
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        const float *row = logits + (n - 1 + i) * vocab;
        uint32_t id = (uint32_t)number(greedy, i);
        double ours = log_probability(m, row, id);
        if (fabs(ours - number(logprob, i)) > TOLERANCE)
            fail_msg("greedy step %zu: log-probability %g, reference %g", i, ours, number(logprob, i));
        if (number(gap, i) > 2 * TOLERANCE)
            assert_int_equal(kn_argmax(eng_model_backend(m), row, vocab), id);
    }
}

static void golden(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", data_dir, name);
    json_t *j = load_golden(name);
    const json_t *prompts = json_object_get(j, "prompts");
    assert_true(json_array_size(prompts) >= 3);
    enum kn_isa isas[4];
    size_t n_isas = isa_list(isas);
    for (size_t p = 0; p < json_array_size(prompts); p++) {
        const json_t *prompt = json_array_get(prompts, p), *in = json_object_get(prompt, "ids"),
                     *greedy = json_object_get(prompt, "greedy");
        uint32_t n = (uint32_t)json_array_size(in), total = n + (uint32_t)json_array_size(greedy);
        uint32_t *ids = calloc(total, sizeof *ids);
        assert_non_null(ids);
        for (uint32_t i = 0; i < total; i++)
            ids[i] = (uint32_t)(i < n ? number(in, i) : number(greedy, i - n));
        float *first = NULL;
        for (size_t i = 0; i < n_isas; i++) {
            struct eng_model *m = open_path(path, isas[i], 2, KN_KV_F32);
            float *logits = run_chunked(m, ids, total, total, 1 + (uint32_t)i);
            check_positions(m, prompt, logits);
            check_greedy(m, prompt, logits, n);
            size_t bytes = (size_t)total * eng_model_desc(m)->n_vocab * sizeof *logits;
            if (first) {
                if (memcmp(first, logits, bytes) != 0)
                    fail_msg("%s: %s and %s give other bits", name, kn_isa_name(isas[0]),
                             kn_isa_name(isas[i]));
                free(logits);
            } else {
                first = logits;
            }
            eng_model_close(m);
        }
        free(first);
        free(ids);
    }
    json_decref(j);
}

static void llama_matches_the_reference(void **state)
{
    (void)state;
    golden("llama");
}

static void qwen2_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen2");
}

static void qwen3_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen3");
}

static void gemma3_matches_the_reference(void **state)
{
    (void)state;
    golden("gemma3");
}

static void qwen35_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen35");
}

static void qwen35_grouped_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen35-grouped");
}

static void qwen3next_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen3next");
}

static void qwen3next_grouped_matches_the_reference(void **state)
{
    (void)state;
    golden("qwen3next-grouped");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_golden DIRECTORY\n");
        return 2;
    }
    data_dir = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_matches_the_reference),
        cmocka_unit_test(qwen2_matches_the_reference),
        cmocka_unit_test(qwen3_matches_the_reference),
        cmocka_unit_test(gemma3_matches_the_reference),
        cmocka_unit_test(qwen35_matches_the_reference),
        cmocka_unit_test(qwen35_grouped_matches_the_reference),
        cmocka_unit_test(qwen3next_matches_the_reference),
        cmocka_unit_test(qwen3next_grouped_matches_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
