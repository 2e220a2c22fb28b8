/*
 * The models that tests/data/make_models.py writes: each runs and gives the same bits on every path and in
 * any chunks; each broken one is refused with the words its manifest asks for.
 */
#include "tests/model/support.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 45

static const char *models_dir(void)
{
    const char *dir = getenv("ISOTHERM_TEST_MODELS");
    if (!dir)
        fail_msg("ISOTHERM_TEST_MODELS is not set");
    return dir;
}

static void check_model(const char *path)
{
    enum kn_isa isas[4];
    size_t n_isas = isa_list(isas);
    float *first = NULL;
    for (size_t i = 0; i < n_isas; i++) {
        struct eng_model *m = open_path(path, isas[i], 2, KN_KV_F16);
        const uint32_t vocab = eng_model_desc(m)->n_vocab;
        uint32_t ids[N], state = 4711;
        for (uint32_t k = 0; k < N; k++)
            ids[k] = next_random(&state) % vocab;
        float *whole = run_chunked(m, ids, N, N, 1), *pieces = run_chunked(m, ids, N, 13, 2);
        const size_t bytes = (size_t)N * vocab * sizeof *whole;
        for (size_t k = 0; k < (size_t)N * vocab; k++)
            if (!isfinite(whole[k]))
                fail_msg("%s: logit %zu is not finite", path, k);
        if (memcmp(whole, pieces, bytes) != 0)
            fail_msg("%s on %s: chunks give other bits", path, kn_isa_name(isas[i]));
        if (first && memcmp(whole, first, bytes) != 0)
            fail_msg("%s: %s gives other bits than %s", path, kn_isa_name(isas[i]), kn_isa_name(isas[i - 1]));
        free(pieces);
        free(first);
        first = whole;
        eng_model_close(m);
    }
    free(first);
}

static void every_model_gives_the_same_bits_on_all_paths(void **state)
{
    (void)state;
    DIR *d = opendir(models_dir());
    assert_non_null(d);
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".gguf") != 0 || strncmp(e->d_name, "vocabulary", 10) == 0)
            continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", models_dir(), e->d_name);
        check_model(path);
        n++;
    }
    closedir(d);
    assert_true(n >= 10);
}

static void fingerprint_of(const char *name, uint8_t out[32])
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", models_dir(), name);
    struct eng_model *m = open_path(path, KN_ISA_AUTO, 2, KN_KV_F16);
    eng_model_fingerprint(m, out);
    eng_model_close(m);
}

static void a_twin_with_one_other_bit_has_another_fingerprint(void **state)
{
    (void)state;
    uint8_t a[32], again[32], twin[32];
    fingerprint_of("llama-q8_0", a);
    fingerprint_of("llama-q8_0", again);
    fingerprint_of("llama-q8_0-twin", twin);
    assert_memory_equal(a, again, sizeof a);
    assert_memory_not_equal(a, twin, sizeof a);
}

static void broken_models_are_refused_in_their_words(void **state)
{
    (void)state;
    char path[1024], line[512];
    snprintf(path, sizeof path, "%s/broken/MANIFEST", models_dir());
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = 0;
    while (fgets(line, sizeof line, f)) {
        char *save, *name = strtok_r(line, "\t", &save), *stage = strtok_r(NULL, "\t", &save),
                    *words = strtok_r(NULL, "\n", &save);
        if (!name || !stage || !words || strcmp(stage, "model") != 0)
            continue;
        snprintf(path, sizeof path, "%s/broken/%s", models_dir(), name);
        char err[256] = "";
        struct fmt_gguf *g = NULL;
        if (fmt_gguf_open(path, &g, err, sizeof err) != FMT_OK)
            fail_msg("%s: %s", name, err);
        const struct eng_model_options o = {.isa = KN_ISA_AUTO, .threads = 1};
        struct eng_model *m;
        int rc = eng_model_open(g, &o, &m, err, sizeof err);
        if (rc == ENG_OK || !strstr(err, words))
            fail_msg("%s: \"%s\" does not say \"%s\"", name, err, words);
        fmt_gguf_close(g);
        n++;
    }
    fclose(f);
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_gives_the_same_bits_on_all_paths),
        cmocka_unit_test(a_twin_with_one_other_bit_has_another_fingerprint),
        cmocka_unit_test(broken_models_are_refused_in_their_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
