/*
 * The store over the real disk tier, on real files: warm after a clean close, after kill -9, with a byte of a
 * volume changed, with the catalogue deleted, with smaller budgets; and what a publish and a restore cost.
 */
#include "cachestore/inspect.h"
#include "tests/cachestore/disk_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct cs_config disk_config(uint32_t arena_pages)
{
    struct cs_config c = tiny_config(arena_pages);
    c.index_bytes = 8 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    return c;
}

static void check_path(struct cs_store *s, const uint32_t *ids, size_t n, uint32_t want)
{
    struct cs_reuse r = look_up(s, NULL, ids, n);
    assert_int_equal(r.tokens_device + r.tokens_disk, want);
}

static void a_clean_close_leaves_everything_warm(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(256);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[101];
    struct cs_note note = {.key = {5, 6}, .data = "remember", .len = 8};
    struct cs_reuse r;
    make_ids(ids, 101, 101, 0);
    struct cs_sequence *q = open_settled(s, NULL, ids, 101, &r);
    for (size_t n = 10; n <= 100; n += 10) { /* ten turns */
        size_t had = cs_sequence_n_pages(q);
        assert_int_equal(cs_sequence_grow(q, n), CS_OK);
        fill_pages(q, ids, had, n / PT, 0);
        if (n % PT) /* a partial page is filled when it is known what its ids will be */
            fill_pages(q, ids, n / PT, n / PT + 1, 0);
        assert_int_equal(cs_sequence_publish(q, ids, n, n == 100 ? &note : NULL, n == 100), CS_OK);
    }
    cs_sequence_close(q);
    cs_close(s, FLUSH_MS);

    s = tiny_open(&c);
    struct cs_stats st = stats_of(s);
    assert_true(st.disk_on);
    assert_int_equal(st.disk_spans, st.spans);
    r = look_up(s, NULL, ids, 100);
    assert_int_equal(r.tokens_disk, 100);
    assert_int_equal(r.miss, CS_MISS_NONE);
    assert_int_equal(look_up(s, NULL, ids, 100).tokens_device, 100);
    void *data;
    uint32_t len;
    assert_int_equal(cs_note_get(s, note.key, &data, &len), CS_OK);
    assert_int_equal(len, 8);
    assert_memory_equal(data, "remember", 8);
    free(data);
    st = stats_of(s);
    assert_int_equal(st.bytes_read, 25 * PAGE);
    assert_int_equal(st.corrupt_header + st.corrupt_tokens + st.corrupt_payload + st.io_errors, 0);
    check_balance(s);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

/* ---- child processes: a fresh image of this program, for RocksDB's threads do not survive a fork
 * ----------- */

static struct cs_config durable_config(void)
{
    return disk_config(2048);
}

static struct cs_config busy_config(void)
{
    struct cs_config c = disk_config(64);
    c.disk_bytes = 24 << 20;
    c.flush_interval_ms = 5;
    return c;
}

/* Publishes paths first.. and writes the number of each third one to the pipe once it is durable. */
static void child_durable(uint32_t first, int fd)
{
    struct cs_config c = durable_config();
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = first;; k++) {
        uint32_t ids[41];
        make_ids(ids, 41, 16, k);
        round_trip(s, NULL, ids, 40);
        if (k % 3 == 0 && cs_flush(s, FLUSH_MS) == CS_OK && write(fd, &k, sizeof k) != sizeof k)
            _exit(1);
    }
}

/* Works over a disk much smaller than what it publishes, with a device smaller still. */
static void child_busy(uint32_t seed)
{
    struct cs_config c = busy_config();
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = seed;; k++) {
        uint32_t ids[41];
        make_ids(ids, 41, 4 * (k % 9), k % 400 + 1);
        round_trip(s, NULL, ids, 40); /* checks what it reuses */
    }
}

/* Files may not grow beyond a limit, which is what a full file system looks like. */
static int child_full(void)
{
    struct cs_config c = disk_config(1024);
    struct rlimit limit = {.rlim_cur = 2 << 20, .rlim_max = 2 << 20};
    signal(SIGXFSZ, SIG_IGN);
    struct cs_store *s = tiny_open(&c);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 2;
    uint32_t ids[41];
    for (uint32_t k = 1; k <= 80; k++) { /* 3.5 MiB and more */
        make_ids(ids, 41, 0, k);
        round_trip(s, NULL, ids, 40);
        struct cs_reuse r = look_up(s, NULL, ids, 40);
        if (r.tokens_device + r.tokens_disk != 40)
            return 3;
    }
    cs_flush(s, FLUSH_MS);
    struct cs_stats st = stats_of(s);
    if (st.pending_bytes != 0)
        return 4;
    if (st.disk_spans == 0)
        return 5;
    for (uint32_t k = 1; k <= 80; k++) {
        make_ids(ids, 41, 0, k);
        look_up(s, NULL, ids, 40);
    }
    cs_close(s, FLUSH_MS);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static void what_was_durable_survives_kill_9(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = durable_config();
    uint32_t first = 1;
    for (int round = 0; round < 4; round++) {
        uint32_t last = disk_child_kill("durable", first, 2 + (uint32_t)round * 3);
        struct cs_store *s = tiny_open(&c);
        for (uint32_t k = 1; k <= last; k++) {
            uint32_t ids[41];
            make_ids(ids, 41, 16, k);
            check_path(s, ids, 40, 40);
        }
        struct cs_stats st = stats_of(s);
        assert_int_equal(st.corrupt_header + st.corrupt_tokens + st.corrupt_payload + st.io_errors, 0);
        check_balance(s);
        cs_close(s, FLUSH_MS);
        first = last + 1;
    }
    disk_dir_remove();
}

/* Calls fn for each volume file. */
static int each_volume(int (*fn)(const char *path, void *ctx), void *ctx)
{
    DIR *d = opendir(disk_dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", disk_dir, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= 1 << 20)
            n += fn(path, ctx);
    }
    closedir(d);
    return n;
}

static int flip_byte(const char *path, void *ctx)
{
    uint64_t at = *(const uint64_t *)ctx;
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
    return 1;
}

static void a_changed_byte_anywhere_is_a_miss_and_others_stay_warm(void **state)
{
    (void)state;
    uint64_t rng = 12345;
    uint64_t found = 0;
    for (int round = 0; round < 12; round++) {
        disk_dir_make();
        struct cs_config c = disk_config(512);
        struct cs_store *s = tiny_open(&c);
        uint32_t ids[41];
        for (uint32_t k = 1; k <= 6; k++) {
            make_ids(ids, 41, 0, k);
            round_trip(s, NULL, ids, 40);
        }
        uint64_t used = stats_of(s).spans * 4 * PAGE;
        cs_close(s, FLUSH_MS);
        uint64_t at = random_next(&rng) % used;
        assert_true(each_volume(flip_byte, &at) > 0);
        s = tiny_open(&c);
        uint32_t cold = 0;
        for (uint32_t k = 1; k <= 6; k++) {
            make_ids(ids, 41, 0, k);
            struct cs_reuse r = look_up(s, NULL, ids, 40); /* checks the bytes of what it gets */
            cold += r.tokens_disk < 40;
            /* Served again in full after it was computed again. */
            round_trip(s, NULL, ids, 40);
            check_path(s, ids, 40, 40);
        }
        struct cs_stats st = stats_of(s);
        assert_true(cold <= 1);
        assert_int_equal(cold, st.quarantined);
        assert_int_equal(cold, st.corrupt_header + st.corrupt_tokens + st.corrupt_payload);
        found += cold;
        cs_close(s, FLUSH_MS);
        s = tiny_open(&c);
        for (uint32_t k = 1; k <= 6; k++) {
            make_ids(ids, 41, 0, k);
            check_path(s, ids, 40, 40);
        }
        cs_close(s, FLUSH_MS);
        disk_dir_remove();
    }
    assert_true(found > 0); /* most bytes belong to somebody */
}

static void what_hangs_on_a_damaged_record_comes_back_with_it(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(256);
    uint32_t ids[41];
    make_ids(ids, 41, 41, 0);
    struct cs_store *s = tiny_open(&c);
    round_trip(s, NULL, ids, 40);
    uint64_t n_spans = stats_of(s).spans;
    cs_close(s, FLUSH_MS);
    uint64_t at = PAGE + 100; /* in the first page of the first record, the root's */
    assert_true(each_volume(flip_byte, &at) > 0);
    for (int restart = 0; restart < 2; restart++) {
        s = tiny_open(&c);
        assert_int_equal(stats_of(s).spans, n_spans);
        check_path(s, ids, 40, 0);
        assert_int_equal(stats_of(s).quarantined, 1);
        assert_int_equal(stats_of(s).disk_spans, n_spans);
        check_balance(s);
        cs_close(s, FLUSH_MS);
    }
    s = tiny_open(&c);
    check_path(s, ids, 40, 0);
    round_trip(s, NULL, ids, 40);
    assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
    assert_true(stats_of(s).spans_written < n_spans); /* not all is stored anew */
    cs_close(s, FLUSH_MS);
    s = tiny_open(&c);
    assert_int_equal(stats_of(s).disk_spans, n_spans);
    check_path(s, ids, 40, 40);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void a_deleted_catalogue_never_serves_wrong_bytes_and_the_store_goes_on(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(256);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[41];
    make_ids(ids, 41, 41, 0);
    round_trip(s, NULL, ids, 40);
    cs_close(s, FLUSH_MS);
    DIR *d = opendir(disk_dir);
    for (struct dirent *e; (e = readdir(d));) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", disk_dir, e->d_name);
        if (e->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            disk_dir_remove_tree(path);
    }
    closedir(d);
    s = tiny_open(&c);
    look_up(s, NULL, ids, 40);
    round_trip(s, NULL, ids, 40);
    cs_close(s, FLUSH_MS);
    s = tiny_open(&c);
    check_path(s, ids, 40, 40);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void another_fingerprint_never_hits(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(256);
    uint32_t ids[41];
    make_ids(ids, 41, 41, 0);
    struct cs_store *s = tiny_open(&c);
    round_trip(s, NULL, ids, 40);
    cs_close(s, FLUSH_MS);
    struct cs_config changed = c;
    changed.fingerprint[31] ^= 1;
    s = tiny_open(&changed);
    struct cs_reuse r = look_up(s, NULL, ids, 40);
    assert_int_equal(r.tokens_device + r.tokens_disk, 0);
    assert_int_equal(r.miss, CS_MISS_COLD);
    assert_true(stats_of(s).records_foreign > 0);
    cs_close(s, FLUSH_MS);
    s = tiny_open(&c);
    check_path(s, ids, 40, 40);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void paths_in_pages_of_another_size_are_not_compared(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(64);
    uint32_t ids[8 * PT + 1], other[8 * PT + 1];
    make_ids(ids, 8 * PT + 1, 8 * PT + 1, 0);
    make_ids(other, 8 * PT + 1, PT, 1);
    for (uint32_t n = 8 * PT; n >= PT; n /= 8) { /* a page of 32, then one of 4, of the same fingerprint */
        c.page_tokens = n;
        struct cs_store *s = tiny_open(&c);
        struct cs_reuse r;
        struct cs_sequence *q = open_settled(s, NULL, NULL, 0, &r);
        assert_int_equal(cs_sequence_grow(q, n), CS_OK);
        assert_int_equal(cs_sequence_publish(q, n > PT ? other : ids, n, NULL, 0), CS_OK);
        cs_sequence_close(q);
        cs_close(s, FLUSH_MS);
    }
    struct cs_inspect *in;
    struct cs_explanation x;
    char err[200];
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_explain(in, c.fingerprint, NULL, ids, 8 * PT + 1, NULL, NULL, &x), CS_OK);
    assert_int_equal(x.page_tokens, 8 * PT); /* of the oldest */
    assert_int_equal(x.end, CS_EXPLAIN_DIVERGED);
    assert_int_equal(x.differs_at, PT);
    cs_inspect_close(in);
    disk_dir_remove();
}

static void a_store_in_use_is_refused(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(16);
    struct cs_store *s = tiny_open(&c), *second = NULL;
    char err[200] = "";
    assert_int_equal(cs_open(&c, &second, err, sizeof err), CS_EBUSY);
    assert_true(strlen(err) > 0);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void count_warning(void *ctx, enum cs_log_level level, const char *line)
{
    (void)line;
    *(int *)ctx += level == CS_LOG_WARN;
}

static void where_the_disk_cannot_be_had_memory_serves_and_one_line_says_so(void **state)
{
    (void)state;
    disk_dir_make();
    int warnings = 0;
    char path[300];
    struct cs_config c = disk_config(16);
    c.log = count_warning;
    c.log_ctx = &warnings;
    c.disk_dir = "/dev/null/store";
    struct cs_store *s = tiny_open(&c);
    struct cs_stats st = stats_of(s);
    assert_false(st.disk_on);
    assert_string_equal(st.disk_engine, "off");
    assert_int_equal(warnings, 1);
    uint32_t ids[21];
    make_ids(ids, 21, 21, 0);
    round_trip(s, NULL, ids, 20);
    assert_int_equal(look_up(s, NULL, ids, 20).tokens_device, 20);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    assert_int_equal(cs_flush(s, 0), CS_OK);
    cs_close(s, 0);
    assert_int_equal(warnings, 1);

    /* One that it makes itself is its owner's alone. */
    struct stat made;
    snprintf(path, sizeof path, "%s/made", disk_dir);
    c.disk_dir = path;
    cs_close(tiny_open(&c), FLUSH_MS);
    assert_int_equal(stat(path, &made), 0);
    assert_int_equal(made.st_mode & 0777, 0700);
    assert_int_equal(warnings, 1);
    disk_dir_remove_tree(path);
    disk_dir_remove();
}

static void the_disk_stays_within_its_budget_and_a_smaller_one_shrinks_it(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = disk_config(256);
    c.disk_bytes = 24 << 20;
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[37]; /* spans of three pages: a shorter one is worth less */
    for (uint32_t k = 1; k <= 700; k++) {
        make_ids(ids, 37, 12, k);
        round_trip(s, NULL, ids, 36);
        check_balance(s);
        if (k % 50 == 0)
            assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
    }
    struct cs_stats st = stats_of(s);
    assert_true(st.evicted_disk_spans > 0);
    assert_int_equal(st.corrupt_header + st.corrupt_payload + st.io_errors, 0);
    make_ids(ids, 37, 12, 700);
    check_path(s, ids, 36, 36);
    cs_close(s, FLUSH_MS);
    c.disk_bytes = 16 << 20;
    s = tiny_open(&c);
    check_balance(s); /* opening has evicted, and given the room back */
    check_path(s, ids, 36, 36);
    make_ids(ids, 37, 12, 701);
    round_trip(s, NULL, ids, 36);
    assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
    check_balance(s);
    cs_close(s, FLUSH_MS);
    s = tiny_open(&c);
    check_path(s, ids, 36, 36);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void a_kill_at_any_moment_leaves_only_bytes_that_are_right(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = busy_config();
    uint64_t rng = 4242;
    for (int round = 0; round < 12; round++) {
        pid_t pid = disk_child_start("busy", (uint32_t)random_next(&rng) % 1000000, -1);
        usleep((useconds_t)(random_next(&rng) % 120000));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status)); /* it did not fail before */
        struct cs_store *s = tiny_open(&c);
        for (uint32_t k = 1; k <= 400; k += 7) {
            uint32_t ids[41];
            make_ids(ids, 41, 4 * (k % 9), k + 1);
            look_up(s, NULL, ids, 40);
        }
        struct cs_stats st = stats_of(s);
        assert_int_equal(st.corrupt_header + st.corrupt_tokens + st.corrupt_payload + st.io_errors, 0);
        check_balance(s);
        cs_close(s, FLUSH_MS);
    }
    disk_dir_remove();
}

static void a_full_file_system_costs_durability_and_nothing_else(void **state)
{
    (void)state;
    disk_dir_make();
    int status;
    pid_t pid = disk_child_start("full", 0, -1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    struct cs_config c = disk_config(512);
    struct cs_store *s = tiny_open(&c);
    assert_true(stats_of(s).disk_spans > 0);
    check_balance(s);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void cost_follows_bytes_and_not_messages(void **state)
{
    (void)state;
    enum { TOKENS = 240 * PT };
    static uint32_t ids[TOKENS + 1];
    make_ids(ids, TOKENS + 1, TOKENS + 1, 0);
    struct cs_note notes[TOKENS / PT]; /* a message a page */
    for (uint32_t i = 0; i < TOKENS / PT; i++)
        notes[i] = (struct cs_note){.key = {i, 7}, .data = &ids[i], .len = sizeof ids[i]};
    uint64_t rows_of_publishes[2];
    for (int turns = 0; turns < 2; turns++) {
        size_t step = turns ? PT : TOKENS; /* 240 publishes of a page, or one */
        disk_dir_make();
        struct cs_config c = disk_config(1024);
        struct cs_store *s = tiny_open(&c);
        struct cs_reuse r;
        struct cs_sequence *q = open_settled(s, NULL, ids, TOKENS + 1, &r);
        for (size_t n = step; n <= TOKENS; n += step) {
            size_t had = cs_sequence_n_pages(q);
            assert_int_equal(cs_sequence_grow(q, n), CS_OK);
            fill_pages(q, ids, had, n / PT, 0);
            assert_int_equal(cs_sequence_publish(q, ids, n, notes + (n - step) / PT, step / PT), CS_OK);
        }
        assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
        struct cs_stats st = stats_of(s);
        rows_of_publishes[turns] = st.catalog_rows;
        assert_true(st.publish_spans <= st.publishes + TOKENS / PT / SPAN_PAGES);
        assert_int_equal(st.catalog_rows, st.publish_spans); /* notes travel with their span */
        assert_int_equal(st.publish_pages, TOKENS / PT);
        /* Nothing new but notes: one row, however many. */
        struct cs_note later[2] = {{.key = {1, 8}, .data = "a", .len = 1},
                                   {.key = {2, 8}, .data = "b", .len = 1}};
        assert_int_equal(cs_sequence_publish(q, ids, TOKENS, later, 2), CS_OK);
        cs_sequence_close(q);
        assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
        assert_int_equal(stats_of(s).catalog_rows, st.catalog_rows + 1);
        cs_close(s, FLUSH_MS);
        s = tiny_open(&c);
        r = look_up(s, NULL, ids, TOKENS);
        assert_int_equal(r.tokens_disk, TOKENS);
        st = stats_of(s);
        assert_int_equal(st.bytes_read, (uint64_t)TOKENS / PT * PAGE);
        assert_int_equal(st.notes, TOKENS / PT + 2);
        for (uint32_t i = 0; i < TOKENS / PT; i++) {
            void *data;
            uint32_t len;
            assert_int_equal(cs_note_get(s, notes[i].key, &data, &len), CS_OK);
            assert_int_equal(len, sizeof ids[i]);
            assert_memory_equal(data, &ids[i], len);
            free(data);
        }
        cs_close(s, FLUSH_MS);
        disk_dir_remove();
    }
    assert_true(rows_of_publishes[0] < rows_of_publishes[1]);
}

int main(int argc, char **argv)
{
    int fd;
    uint32_t number;
    const char *what = disk_child_is(argc, argv, &number, &fd);
    if (what && strcmp(what, "durable") == 0)
        child_durable(number, fd);
    if (what && strcmp(what, "busy") == 0)
        child_busy(number);
    if (what)
        return child_full();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clean_close_leaves_everything_warm),
        cmocka_unit_test(what_was_durable_survives_kill_9),
        cmocka_unit_test(a_changed_byte_anywhere_is_a_miss_and_others_stay_warm),
        cmocka_unit_test(what_hangs_on_a_damaged_record_comes_back_with_it),
        cmocka_unit_test(a_deleted_catalogue_never_serves_wrong_bytes_and_the_store_goes_on),
        cmocka_unit_test(another_fingerprint_never_hits),
        cmocka_unit_test(paths_in_pages_of_another_size_are_not_compared),
        cmocka_unit_test(a_store_in_use_is_refused),
        cmocka_unit_test(where_the_disk_cannot_be_had_memory_serves_and_one_line_says_so),
        cmocka_unit_test(the_disk_stays_within_its_budget_and_a_smaller_one_shrinks_it),
        cmocka_unit_test(a_kill_at_any_moment_leaves_only_bytes_that_are_right),
        cmocka_unit_test(a_full_file_system_costs_durability_and_nothing_else),
        cmocka_unit_test(cost_follows_bytes_and_not_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
