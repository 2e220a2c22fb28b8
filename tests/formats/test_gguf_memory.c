/*
 * Opening a GGUF file while memory runs out: every allocation of the reader fails once. Linked with --wrap,
 * so that calloc, strndup and free of the reader pass through here.
 */
#include "formats/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *__real_calloc(size_t n, size_t size);
char *__real_strndup(const char *s, size_t n);
void __real_free(void *p);
void *__wrap_calloc(size_t n, size_t size);
char *__wrap_strndup(const char *s, size_t n);
void __wrap_free(void *p);

static bool counting;
static long until_failure, living; /* living: blocks of the reader that are not freed yet */

static bool fails_now(void)
{
    return counting && until_failure-- == 0;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = fails_now() ? NULL : __real_calloc(n, size);
    living += counting && p != NULL;
    return p;
}

char *__wrap_strndup(const char *s, size_t n)
{
    char *p = fails_now() ? NULL : __real_strndup(s, n);
    living += counting && p != NULL;
    return p;
}

void __wrap_free(void *p)
{
    living -= counting && p != NULL;
    __real_free(p);
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    char path[4096], err[160];
    const char *folder = getenv("ISOTHERM_TEST_MODELS");
    assert_non_null(folder);
    assert_true((size_t)snprintf(path, sizeof path, "%s/qwen2-q4_1.gguf", folder) < sizeof path);

    long failures = 0;
    for (;; failures++) {
        struct fmt_gguf *g = NULL;
        until_failure = failures;
        living = 0;
        counting = true;
        int rc = fmt_gguf_open(path, &g, err, sizeof err);
        bool came_to_the_end = until_failure >= 0;
        if (rc == FMT_OK)
            fmt_gguf_close(g);
        counting = false;
        assert_int_equal(living, 0);
        if (came_to_the_end) {
            assert_int_equal(rc, FMT_OK);
            break;
        }
        assert_int_equal(rc, FMT_ENOMEM);
        assert_null(g);
        assert_non_null(strstr(err, "out of memory"));
    }
    assert_true(failures > 50); /* the file has 20 keys and 26 tensors, each with a name of its own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
