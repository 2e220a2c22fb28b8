/*
 * What the system refuses: io_uring in one of its calls, O_DIRECT. The tier does without, says so in one
 * line, and everything else is as ever. In child processes under a seccomp filter; skipped where that is
 * refused.
 */
#include "cachestore/inspect.h"
#include "tests/disk/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, PAGES = 12 };

static bool filter_on(struct sock_filter *filter, size_t n)
{
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#define FILTER_ON(f) filter_on(f, sizeof(f) / sizeof *(f))

static bool refuse_call(unsigned number, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return FILTER_ON(filter);
}

static bool refuse_direct(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])), /* its low half */
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return FILTER_ON(filter);
}

/* ---- in the child ------------------------------------------------------------------------------------ */

static void works_and_rebuilds(struct rig *r)
{
    struct record_id id = put(r, 1, PAGES);
    assert_int_equal(get(r, id, 1, PAGES), TIER_OK);
    rig_close(r);
    remove_tree(rig_path(r, "catalog"));
    struct cs_inspect *in;
    struct cs_store_info info;
    char err[256] = "";
    assert_int_equal(cs_inspect_open(r->dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_info(in, &info), CS_OK);
    cs_inspect_close(in);
    assert_false(info.catalog_ok);
    assert_int_equal(info.n_spans, 1);
    rig_open(r);
    assert_int_equal(r->n_seen, 1);
    assert_int_equal(get(r, id, 1, PAGES), TIER_OK);
}

static int without_uring(struct rig *r, unsigned call, unsigned error)
{
    if (!refuse_call(call, error))
        return SKIPPED;
    char err[256] = "";
    r->config.io_engine = CS_IO_URING;
    assert_int_equal(rig_try_open(r, err, sizeof err), CS_EIO);
    assert_non_null(strstr(err, "io_uring"));

    r->config.io_engine = CS_IO_AUTO;
    r->watch = "I/O engine pread: io_uring is refused here: ";
    rig_open(r);
    assert_int_equal(r->n_watched, 1);
    assert_int_equal(r->n_warnings, 0);
    assert_string_equal(rig_stats(r).disk_engine, "pread");
    works_and_rebuilds(r);
    return 0;
}

static int without_direct(struct rig *r)
{
    if (!refuse_direct())
        return SKIPPED;
    r->watch = "O_DIRECT is refused";
    for (int opens = 0; opens < 2; opens++) {
        r->n_watched = 0;
        rig_open(r);
        for (uint32_t number = 1; number <= 2; number++) {
            struct record_id id = put(r, number, PAGES);
            assert_int_equal(get(r, id, number, PAGES), TIER_OK);
        }
        assert_int_equal(r->n_watched, 1); /* with the first volume: at first it is made by the first write */
        struct stat st;
        assert_int_equal(fcntl(r->tier->volumes.volume[0].fd, F_GETFL) & O_DIRECT, 0);
        assert_int_equal(fstat(r->tier->volumes.volume[0].fd, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        rig_close(r);
    }
    return 0;
}

static int child_main(const char *dir, const char *call, const char *error)
{
    struct rig r;
    rig_init_in_memory(&r, true);
    remove_tree(r.dir);
    snprintf(r.dir, sizeof r.dir, "%s", dir);
    unsigned number = (unsigned)strtoul(call, NULL, 10);
    int rc = number == SYS_openat ? without_direct(&r)
                                  : without_uring(&r, number, (unsigned)strtoul(error, NULL, 10));
    rig_destroy(&r);
    return rc;
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static void refuse(unsigned call, unsigned error)
{
    struct rig r;
    rig_init_in_memory(&r, true);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char call_text[16], error_text[16];
        snprintf(call_text, sizeof call_text, "%u", call);
        snprintf(error_text, sizeof error_text, "%u", error);
        execl("/proc/self/exe", "child", "refuse", r.dir, call_text, error_text, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    rig_destroy(&r);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_refused_io_uring_leaves_the_threads(void **state)
{
    (void)state;
    refuse(SYS_io_uring_setup, EPERM);
    refuse(SYS_io_uring_setup, ENOSYS);
    refuse(SYS_io_uring_enter, EPERM);
    refuse(SYS_io_uring_register, EACCES);
}

static void test_refused_o_direct_leaves_buffered_volumes(void **state)
{
    (void)state;
    refuse(SYS_openat, EINVAL);
}

static void test_the_engine_asked_for_is_used_and_named(void **state)
{
    (void)state;
    struct io_engine *e;
    char reason[160];
    bool uring = io_uring_engine_open(&e, reason, sizeof reason) == 0;
    if (uring)
        e->ops->close(e);
    static const struct {
        enum cs_io_engine kind;
        const char *name, *line;
    } cases[] = {
        {CS_IO_PREAD, "pread", "I/O engine pread: as configured"},
        {CS_IO_AUTO, "uring", "I/O engine uring: io_uring can be had"},
        {CS_IO_URING, "uring", "I/O engine uring: as configured"},
    };
    for (size_t i = 0; i < (uring ? 3u : 1u); i++) {
        struct rig r;
        rig_init_in_memory(&r, true);
        r.config.io_engine = cases[i].kind;
        r.watch = cases[i].line;
        rig_open(&r);
        assert_int_equal(r.n_watched, 1);
        assert_string_equal(rig_stats(&r).disk_engine, cases[i].name);
        works_and_rebuilds(&r);
        rig_destroy(&r);
    }
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "refuse") == 0)
        return child_main(argv[2], argv[3], argv[4]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_io_uring_leaves_the_threads),
        cmocka_unit_test(test_refused_o_direct_leaves_buffered_volumes),
        cmocka_unit_test(test_the_engine_asked_for_is_used_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
