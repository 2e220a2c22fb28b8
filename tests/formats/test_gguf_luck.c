/*
 * Opening a GGUF file under bad luck: every allocation of the reader fails once, and the file changes its
 * size while it is read. Linked with --wrap, so that the reader's calloc, strndup, free and fstat pass
 * through here (fstat64: meson asks for 64-bit offsets).
 */
#include "formats/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

void *__real_calloc(size_t n, size_t size);
char *__real_strndup(const char *s, size_t n);
void __real_free(void *p);
void *__wrap_calloc(size_t n, size_t size);
char *__wrap_strndup(const char *s, size_t n);
void __wrap_free(void *p);
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);

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

static off_t grows_by; /* added to the size by every fstat but the first */
static unsigned n_stats;

int __wrap_fstat64(int fd, struct stat *st)
{
    int rc = __real_fstat64(fd, st);
    st->st_size += n_stats++ > 0 ? grows_by : 0;
    return rc;
}

static void model_path(char *out, size_t size)
{
    const char *folder = getenv("ISOTHERM_TEST_MODELS");
    assert_non_null(folder);
    assert_true((size_t)snprintf(out, size, "%s/qwen2-q4_1.gguf", folder) < size);
}

static void a_file_that_changes_size_while_it_is_read_is_refused(void **state)
{
    (void)state;
    char path[4096], err[160];
    static const off_t changes[] = {1, -1, 0};
    model_path(path, sizeof path);
    for (size_t i = 0; i < 3; i++) {
        struct fmt_gguf *g = NULL;
        n_stats = 0;
        grows_by = changes[i];
        int rc = fmt_gguf_open(path, &g, err, sizeof err);
        assert_int_equal(n_stats, 2);
        assert_int_equal(rc, changes[i] != 0 ? FMT_EIO : FMT_OK);
        assert_true((g == NULL) == (changes[i] != 0));
        assert_true(changes[i] == 0 || strstr(err, "size") != NULL);
        fmt_gguf_close(g);
    }
}

static void every_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    char path[4096], err[160];
    model_path(path, sizeof path);

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
        cmocka_unit_test(a_file_that_changes_size_while_it_is_read_is_refused),
        cmocka_unit_test(every_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
