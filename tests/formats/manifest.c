/* See manifest.h. */
#include "tests/formats/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void test_model_path(char *out, size_t size, const char *name)
{
    const char *folder = getenv("ISOTHERM_TEST_MODELS");
    if (folder == NULL)
        fail_msg("ISOTHERM_TEST_MODELS is not set (run through meson test)");
    else
        assert_true((size_t)snprintf(out, size, "%s/%s", folder, name) < size);
}

unsigned test_each_broken(void (*fn)(const char *path, const char *name, const char *stage,
                                     const char *words))
{
    char path[4096], line[512], file[600];
    unsigned n = 0;
    test_model_path(path, sizeof path, "broken/MANIFEST");
    FILE *manifest = fopen(path, "r");
    assert_non_null(manifest);
    while (fgets(line, sizeof line, manifest) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *stage = strchr(line, '\t');
        assert_non_null(stage);
        *stage++ = '\0';
        char *words = strchr(stage, '\t');
        assert_non_null(words);
        *words++ = '\0';
        snprintf(file, sizeof file, "broken/%s", line);
        test_model_path(path, sizeof path, file);
        fn(path, line, stage, words);
        n++;
    }
    fclose(manifest);
    return n;
}
