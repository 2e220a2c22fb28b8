/*
 * A rebuild of the catalogue on request: what only rows have is taken over, and whatever ends it early, the
 * catalogue that was there or the new one is there afterwards, whole.
 */
#include "cachestore/inspect.h"
#include "tests/disk/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_NOTE = 400 << 10 };

/* ---- a file system without exchange, where files may be removed so often only ------------------------- */

static bool no_exchange;
static unsigned removals = UINT32_MAX;

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (!no_exchange)
        return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    errno = EINVAL;
    return -1;
}

int unlinkat(int fd, const char *name, int flags)
{
    if (removals > 0) {
        removals--;
        return (int)syscall(SYS_unlinkat, fd, name, flags);
    }
    errno = EIO;
    return -1;
}

/* ------------------------------------------------------------------------------------------------------- */

/* Three records: a note in the row of 1, a row of notes of 2, which is pinned and was used; a quota. 3 is
 * deleted, and its header is still there. Closed. */
static void store_make(struct rig *r)
{
    static char text[LONG_NOTE];
    memset(text, 'n', sizeof text);
    struct cs_note note = {.key = {1, 2}, .data = text, .len = sizeof text},
                   later = {.key = {3, 4}, .data = "later", .len = 5};
    rig_init(r);
    rig_open(r);
    put_with_notes(r, 1, 4, &note, 1);
    struct record_id owner = put(r, 2, 4), gone = put_with_notes(r, 3, 4, &later, 1);
    struct note_record n = {.id = tier_disk_next_id(r->tier), .owner = owner, .notes = &later, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r->tier, &n), CS_OK);
    tier_disk_touch(r->tier, owner, 1234567890);
    tier_disk_delete(r->tier, gone);
    tier_disk_kick(r->tier);
    assert_true(wait_until(nothing_pending, r));
    rig_close(r);
    struct catalog *c = rig_catalog_open(r, false);
    struct cs_tenant tenant = {{1}};
    struct cs_quota quota = {.disk_bytes = 77777};
    uint8_t value[CATALOG_QUOTA_BYTES];
    catalog_quota_encode(&quota, value);
    catalog_put(c, CATALOG_PINNED, owner, "", 0);
    catalog_put(c, CATALOG_QUOTA, catalog_quota_id(&tenant), value, sizeof value);
    assert_int_equal(catalog_commit(c, true), CS_OK);
    rig_catalog_close(r, c);
}

static int rebuild(struct rig *r, char *err, size_t err_len)
{
    struct cs_inspect *in;
    struct cs_rebuilt made;
    assert_int_equal(cs_inspect_open(r->dir, &in, err, err_len), CS_OK);
    int rc = cs_inspect_rebuild(in, &made, err, err_len);
    cs_inspect_close(in);
    return rc;
}

static bool is_there(const struct rig *r, const char *name)
{
    struct stat st;
    return lstat(rig_path(r, name), &st) == 0;
}

/* All that store_make made; n: records in all. */
static void check_all(struct rig *r, size_t n)
{
    assert_int_equal(rig_rows(r, CATALOG_RECORD), n);
    assert_int_equal(rig_rows(r, CATALOG_NOTES), 1);
    assert_int_equal(rig_rows(r, CATALOG_PINNED), 1);
    assert_int_equal(rig_rows(r, CATALOG_QUOTA), 1);
    rig_open(r);
    assert_false(is_there(r, "catalog.new"));
    assert_false(is_there(r, "catalog.old"));
    assert_int_equal(r->n_seen, n);
    assert_int_equal(r->n_notes_seen, 2);
    const struct seen_span *one = find_seen(r, 1), *two = find_seen(r, 2);
    assert_non_null(one);
    assert_non_null(two);
    assert_true(one->has_notes);
    assert_true(two->record.pinned && !one->record.pinned);
    assert_int_equal(two->used_unix, 1234567890);
    assert_int_equal(get(r, one->id, 1, 4), TIER_OK);
    assert_int_equal(get(r, two->id, 2, 4), TIER_OK);
    assert_int_equal(r->n_warnings, 0);
    rig_close(r);
}

/* ... by an open that has names to put in order first. */
static void check_open_and_all(struct rig *r, size_t n)
{
    rig_open(r);
    rig_close(r);
    check_all(r, n);
}

static void what_only_rows_have_outlives_a_rebuild(void **state)
{
    (void)state;
    struct rig r;
    char err[256];
    store_make(&r);
    check_all(&r, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rebuild(&r, err, sizeof err), CS_OK);
        assert_false(is_there(&r, "catalog.new"));
        check_all(&r, 3); /* the deleted one is back, without its note */
    }
    rig_destroy(&r);
}

static void without_a_catalogue_records_come_back_alone(void **state)
{
    (void)state;
    struct rig r;
    char err[256];
    store_make(&r);
    remove_tree(rig_path(&r, "catalog"));
    assert_int_equal(rebuild(&r, err, sizeof err), CS_OK);
    assert_int_equal(rig_rows(&r, CATALOG_RECORD), 3);
    assert_int_equal(rig_rows(&r, CATALOG_PINNED), 0);
    rig_open(&r);
    assert_int_equal(r.n_seen, 3);
    assert_int_equal(r.n_notes_seen, 0);
    rig_destroy(&r);
}

static void a_rebuild_that_cannot_write_changes_nothing(void **state)
{
    (void)state;
    struct rig r;
    char err[256];
    store_make(&r);
    files_limit(LONG_NOTE / 2); /* the row with the long note does not fit into a log */
    assert_int_equal(rebuild(&r, err, sizeof err), CS_EIO);
    files_unlimit();
    assert_false(is_there(&r, "catalog.new"));
    check_all(&r, 2);
    assert_int_equal(rebuild(&r, err, sizeof err), CS_OK);
    check_all(&r, 3);
    rig_destroy(&r);
}

static void a_rebuild_that_ends_in_the_middle_leaves_one_catalogue(void **state)
{
    (void)state;
    struct rig r;
    char to[512];
    store_make(&r);
    /* While the new one is being made; or the old one lies there under that name, after the exchange. */
    assert_int_equal(mkdir(rig_path(&r, "catalog.new"), 0700), 0);
    int fd = open(rig_path(&r, "catalog.new/000007.log"), O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "half", 4), 4);
    close(fd);
    check_all(&r, 2);
    /* Where names cannot be exchanged, between the end of the old one and the new one's name. */
    snprintf(to, sizeof to, "%s", rig_path(&r, "catalog.new"));
    assert_int_equal(rename(rig_path(&r, "catalog"), to), 0);
    struct cs_inspect *in;
    char err[256];
    assert_int_equal(cs_inspect_open(r.dir, &in, err, sizeof err), CS_OK); /* reads only */
    cs_inspect_close(in);
    check_open_and_all(&r, 2);
    /* ... where the old one lies put aside. */
    assert_int_equal(rename(rig_path(&r, "catalog"), to), 0);
    assert_int_equal(mkdir(rig_path(&r, "catalog.old"), 0700), 0);
    check_open_and_all(&r, 2);
    rig_destroy(&r);
}

static void without_an_exchange_of_names_one_of_the_two_is_always_whole(void **state)
{
    (void)state;
    struct rig r;
    char err[256];
    store_make(&r);
    no_exchange = true;
    assert_int_equal(rebuild(&r, err, sizeof err), CS_OK);
    assert_false(is_there(&r, "catalog.new"));
    assert_false(is_there(&r, "catalog.old"));
    check_all(&r, 3);
    removals = 2; /* it ends while the old one is being removed */
    assert_int_equal(rebuild(&r, err, sizeof err), CS_OK);
    assert_int_equal(removals, 0);
    removals = UINT32_MAX;
    no_exchange = false;
    check_all(&r, 3);
    rig_destroy(&r);
}

/* The log of a process that was killed. */
static void find_log(const struct rig *r, char path[512], off_t *bytes)
{
    DIR *d = opendir(rig_path(r, "catalog"));
    assert_non_null(d);
    const struct dirent *e;
    *bytes = 0;
    while ((e = readdir(d)) != NULL) {
        struct stat st;
        const char *end = strrchr(e->d_name, '.');
        if (end == NULL || strcmp(end, ".log") != 0)
            continue;
        char name[300];
        snprintf(name, sizeof name, "catalog/%s", e->d_name);
        if (stat(rig_path(r, name), &st) == 0 && st.st_size > *bytes) {
            *bytes = st.st_size;
            snprintf(path, 512, "%s", rig_path(r, name));
        }
    }
    closedir(d);
    assert_true(*bytes > 0);
}

/* What had been synced when the process was killed is missing from the log: all is found all the same, and
 * what only older rows have stays. A log that has all of it is no reason to do anything. */
static void a_log_that_lost_its_end_is_made_good_from_headers(void **state)
{
    (void)state;
    enum { FIRST = 10, N = 5 };
    for (int part = 0; part < 4; part++) { /* all of it, half of it, one byte, nothing is lost */
        struct rig r;
        char path[512];
        off_t bytes;
        store_make(&r);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            rig_open(&r);
            for (uint32_t i = 0; i < N; i++)
                put(&r, FIRST + i, 4);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        find_log(&r, path, &bytes);
        if (part < 3)
            assert_int_equal(truncate(path, part == 0 ? 0 : part == 1 ? bytes / 2 : bytes - 1), 0);
        r.watch = "lost its end";
        for (int i = 0; i < 2; i++) {
            r.n_watched = 0;
            rig_open(&r);
            assert_int_equal(r.n_watched, part < 3 && i == 0);
            for (uint32_t k = 0; k < N; k++) {
                const struct seen_span *s = find_seen(&r, FIRST + k);
                assert_non_null(s);
                assert_int_equal(get(&r, s->id, FIRST + k, 4), TIER_OK);
            }
            const struct seen_span *one = find_seen(&r, 1), *two = find_seen(&r, 2);
            assert_true(one != NULL && one->has_notes && two != NULL && two->record.pinned);
            assert_int_equal(two->used_unix, 1234567890);
            assert_int_equal(r.n_notes_seen, 2);
            rig_close(&r);
        }
        assert_int_equal(rig_rows(&r, CATALOG_QUOTA), 1);
        rig_open(&r);
        rig_destroy(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_only_rows_have_outlives_a_rebuild),
        cmocka_unit_test(without_a_catalogue_records_come_back_alone),
        cmocka_unit_test(a_rebuild_that_cannot_write_changes_nothing),
        cmocka_unit_test(a_rebuild_that_ends_in_the_middle_leaves_one_catalogue),
        cmocka_unit_test(without_an_exchange_of_names_one_of_the_two_is_always_whole),
        cmocka_unit_test(a_log_that_lost_its_end_is_made_good_from_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
