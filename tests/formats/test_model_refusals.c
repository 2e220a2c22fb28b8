/* Sound containers with impossible models: the model loader refuses each by name, and loads the file they
 * were made from. */
#include "engine/model/model.h"
#include "formats/gguf.h"
#include "tests/formats/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int load(const char *path, char *err, size_t err_len)
{
    const struct eng_model_options options = {.isa = KN_ISA_SCALAR, .threads = 1, .kv_dtype = KN_KV_F16};
    struct fmt_gguf *g;
    struct eng_model *model = NULL;
    if (fmt_gguf_open(path, &g, err, err_len) != FMT_OK)
        fail_msg("%s: refused by the reader already: %s", path, err);
    int rc = eng_model_open(g, &options, &model, err, err_len);
    assert_true((rc == ENG_OK) == (model != NULL));
    eng_model_close(model);
    fmt_gguf_close(g);
    return rc;
}

static unsigned n_refused;

static void load_broken(const char *path, const char *name, const char *stage, const char *words)
{
    char err[200] = "";
    if (strcmp(stage, "model") != 0)
        return;
    int rc = load(path, err, sizeof err);
    if (rc != ENG_EFORMAT && rc != ENG_EUNSUPPORTED)
        fail_msg("%s: code %d", name, rc);
    if (strstr(err, words) == NULL)
        fail_msg("%s: '%s' does not name '%s'", name, err, words);
    n_refused++;
}

static void every_impossible_model_is_refused_by_name(void **state)
{
    (void)state;
    test_each_broken(load_broken);
    assert_true(n_refused > 40);
}

static void the_model_they_were_made_from_loads(void **state)
{
    (void)state;
    char path[4096], err[200] = "";
    test_model_path(path, sizeof path, "llama-f32.gguf");
    if (load(path, err, sizeof err) != ENG_OK)
        fail_msg("%s", err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_impossible_model_is_refused_by_name),
        cmocka_unit_test(the_model_they_were_made_from_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
