/*
 * The made models of every weight type and odd shape against what transformers says about the same files
 * (tests/data/reference/made.json), with KV in f32. Weights are exact on both sides, so what is left is the
 * rounding of activations.
 */
#include "tests/model/support.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE_FLOAT     1e-4 /* float weights: activations stay floats */
#define TOLERANCE_QUANTISED 3e-3 /* activations are int16 a block */

static const char *reference_path;

static double number(const json_t *array, size_t i)
{
    return json_number_value(json_array_get(array, i));
}

static double log_probability(struct eng_model *m, const float *row, uint32_t id)
{
    float max, lse;
    kn_logsumexp(eng_model_backend(m), row, eng_model_desc(m)->n_vocab, &max, &lse);
    return (double)row[id] - (double)lse;
}

static void compare(const char *name, struct eng_model *m, const json_t *r, double tolerance)
{
    const json_t *prompt = json_object_get(r, "ids"), *greedy = json_object_get(r, "greedy"),
                 *logprob = json_object_get(r, "logprob"), *gap = json_object_get(r, "gap");
    uint32_t n = (uint32_t)json_array_size(prompt), steps = (uint32_t)json_array_size(greedy);
    size_t vocab = eng_model_desc(m)->n_vocab, k, i;
    json_t *at;
    assert_true(n > 0 && steps > 0);
    uint32_t *ids = calloc(n + steps, sizeof *ids);
    assert_non_null(ids);
    for (uint32_t j = 0; j < n + steps; j++)
        ids[j] = (uint32_t)(j < n ? number(prompt, j) : number(greedy, j - n));
    float *logits = run_chunked(m, ids, n + steps, 17, 3);

    json_array_foreach(json_object_get(r, "at"), k, at)
    {
        size_t position = (size_t)json_integer_value(json_object_get(at, "position"));
        const json_t *top = json_object_get(at, "ids"), *expected = json_object_get(at, "logprob");
        for (i = 0; i < json_array_size(top); i++) {
            double ours = log_probability(m, logits + position * vocab, (uint32_t)number(top, i));
            if (!(fabs(ours - number(expected, i)) <= tolerance))
                fail_msg("%s, position %zu, token %g: log-probability %g, reference %g", name, position,
                         number(top, i), ours, number(expected, i));
        }
    }
    for (i = 0; i < steps; i++) {
        const float *row = logits + (n - 1 + i) * vocab;
        double ours = log_probability(m, row, ids[n + i]);
        if (!(fabs(ours - number(logprob, i)) <= tolerance))
            fail_msg("%s, step %zu: log-probability %g, reference %g", name, i, ours, number(logprob, i));
        if (number(gap, i) > 2 * tolerance)
            assert_int_equal(kn_argmax(eng_model_backend(m), row, vocab), ids[n + i]);
    }
    free(logits);
    free(ids);
}

static void every_made_model_matches_the_reference(void **state)
{
    (void)state;
    const char *folder = getenv("ISOTHERM_TEST_MODELS");
    assert_non_null(folder);
    json_error_t error;
    json_t *all = json_load_file(reference_path, 0, &error);
    if (all == NULL)
        fail_msg("%s: %s", reference_path, error.text);
    json_t *models = json_object_get(all, "models"), *r;
    const char *name;
    assert_true(json_object_size(models) >= 19);
    json_object_foreach(models, name, r)
    {
        char path[1024];
        assert_true((size_t)snprintf(path, sizeof path, "%s/%s.gguf", folder, name) < sizeof path);
        const char *type = strrchr(name, '-');
        bool floats = type != NULL &&
                      (strcmp(type, "-f32") == 0 || strcmp(type, "-f16") == 0 || strcmp(type, "-bf16") == 0);
        struct eng_model *m = open_path(path, KN_ISA_AUTO, 2, KN_KV_F32);
        compare(name, m, r, floats ? TOLERANCE_FLOAT : TOLERANCE_QUANTISED);
        eng_model_close(m);
    }
    json_decref(all);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_made_reference made.json\n");
        return 2;
    }
    reference_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_made_model_matches_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
