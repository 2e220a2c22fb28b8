/* The file system refuses: what is stored is served, what cannot be written is counted by its reason, and all
 * goes on when there is room again. */
#include "tests/disk/harness.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* The file system refuses what lies behind 1 MiB: those writes fail, their chunks are not used again before
 * the next open, everything else goes on. */
static void test_failed_write_costs_its_chunks_until_the_next_open(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.extent_bytes = 4 << 20;
    rig_open(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    struct record_id first = put(&r, 1, 12);
    files_limit(1 << 20);
    enum { N = 24 };
    struct span_io *s[N];
    unsigned n_ok = 0, n_failed = 0;
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, 10 + i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++) {
        enum tier_result result = span_wait(s[i]);
        assert_true(result == TIER_OK || result == TIER_EIO);
        n_ok += result == TIER_OK;
        n_failed += result == TIER_EIO;
        if (result == TIER_OK)
            assert_int_equal(get(&r, s[i]->w.record.id, 10 + i, 12), TIER_OK);
        else
            assert_int_equal(get(&r, s[i]->w.record.id, 10 + i, 12), TIER_NOTFOUND);
        span_free(s[i]);
    }
    files_unlimit();
    assert_true(n_ok > 0 && n_failed > 0);
    assert_int_equal(rig_stats(&r).io_errors, n_failed);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((1 + N) * bytes));
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    put(&r, 2, 12);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2 + n_ok);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((2 + n_ok) * bytes));
    rig_destroy(&r);
}

/* The catalogue's log cannot grow: the batch fails, what is stored is served, and when the log can grow
 * again, so does the store. */
static void test_failed_catalogue_batch_is_survived(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.flush_interval_ms = 60000; /* at kicks only: the span and the note are in one batch */
    rig_open(&r);
    struct record_id first = put(&r, 1, 12);
    static char bytes[400 << 10];
    struct cs_note note = {.key = {1, 1}, .data = bytes, .len = sizeof bytes};
    files_limit(256 << 10);
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = first, .notes = &note, .n_notes = 1};
    struct span_io *s = span_make(&r, 2, 12);
    span_write(s);
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(s), TIER_EIO);
    assert_true(wait_until(nothing_pending, &r));
    assert_int_equal(r.n_warnings, 1);
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    assert_int_equal(get(&r, s->w.record.id, 2, 12), TIER_NOTFOUND);
    files_unlimit();
    r.watch = "the catalogue is written again";
    struct record_id third = put(&r, 3, 12);
    put(&r, 4, 12);
    assert_int_equal(r.n_watched, 1);
    assert_int_equal(r.n_warnings, 1);
    tier_disk_delete(r.tier, first);
    rig_reopen(&r);
    assert_null(find_seen(&r, 1));
    assert_int_equal(get(&r, third, 3, 12), TIER_OK);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    span_free(s);
    rig_destroy(&r);
}

/* The file system is full for the catalogue: what is stored is read, writes are counted as what they are,
 * room that deletes give back is not promised to them, and all goes on when others have given room back. */
static void test_full_file_system_drops_writes_until_there_is_room(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct record_id first = put(&r, 1, 12), second = put(&r, CHECKPOINT | 2, 12);
    int64_t free_bytes = tier_disk_free_bytes(r.tier);
    uint64_t reserve = atomic_exchange(&r.tier->catalog_reserve, UINT64_MAX);
    enum { N = 5 };
    for (uint32_t i = 0; i < N;
         i++) { /* the first finds out when it is synced, the others before they begin */
        struct span_io *s = span_make(&r, 10 + i, 12);
        span_write(s);
        tier_disk_kick(r.tier);
        assert_int_equal(span_wait(s), TIER_EFULL);
        span_free(s);
    }
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.io_errors, 0);
    assert_int_equal(r.n_warnings, 1);
    r.watch = "has room again";
    assert_int_equal(tier_disk_free_bytes(r.tier), free_bytes);
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    tier_disk_delete(r.tier, second); /* tried again until it can be written */
    atomic_store(&r.tier->catalog_reserve, reserve);
    assert_true(wait_until(deletes_done, &r));
    enum tier_result result = TIER_EFULL;
    for (int tries = 0; tries < 10000 && result == TIER_EFULL; tries++) {
        struct span_io *s = span_make(&r, 3, 12);
        span_write(s);
        tier_disk_kick(r.tier);
        result = span_wait(s);
        span_free(s);
    }
    assert_int_equal(result, TIER_OK);
    assert_int_equal(r.n_watched, 1);
    assert_int_equal(r.n_warnings, 1);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2);
    assert_non_null(find_seen(&r, 1));
    assert_non_null(find_seen(&r, 3));
    rig_destroy(&r);
}

/* Volumes cannot grow: two lines, however many records find no room. */
static void test_a_file_system_without_room_for_volumes_is_said_in_two_lines(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    r.watch = "the file system has no room for what the budget allows";
    rig_open(&r);
    r.tier->volumes.reserve_bytes = 1ull << 62;
    for (uint32_t i = 0; i < 4; i++) {
        struct span_io *s = span_make(&r, i, 12);
        span_write(s);
        assert_int_equal(span_wait(s), TIER_ENOSPC);
        span_free(s);
        assert_int_equal(r.n_watched, 1);
    }
    r.watch = "4 records found no room";
    rig_close(&r);
    assert_int_equal(r.n_watched, 2);
    assert_int_equal(r.n_warnings, 1);
    rig_destroy(&r);
}

/* A delete whose batch failed is tried again: its chunks are free afterwards, not only at the next open. */
static void test_failed_delete_is_tried_again(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t n = rig_fill(&r, 1, 12);
    rig_reopen(&r);
    log_beyond_limit(&r, r.seen[0].id);
    for (uint32_t i = 1; i <= 10; i++)
        tier_disk_delete(r.tier, r.seen[i].id);
    bool warned = wait_until(has_warned, &r);
    files_unlimit();
    assert_true(warned);
    assert_true(wait_until(deletes_done, &r));
    assert_int_equal(rig_stats(&r).disk_spans, n - 10);
    for (uint32_t i = 0; i < 10; i++)
        put(&r, 1000 + i, 12);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, n);
    rig_destroy(&r);
}

static int quota_read(void *ctx, const struct catalog_row *row)
{
    struct cs_quota *out = ctx;
    assert_int_equal(out->disk_bytes, 0); /* one tenant's */
    return catalog_quota_decode(row->value, row->len, out) ? CS_OK : CS_ECORRUPT;
}

static bool nothing_pending_after_a_kick(void *rig)
{
    tier_disk_kick(((struct rig *)rig)->tier);
    return nothing_pending(rig);
}

/* Of two changes of one tenant's limits that fail in one batch the later one counts, and one that comes
 * before they are tried again counts more. */
static void test_quotas_that_could_not_be_written_are_tried_again_in_order(void **state)
{
    (void)state;
    static char bytes[400 << 10];
    for (int later = 0; later < 2; later++) {
        struct rig r;
        rig_init(&r);
        r.config.flush_interval_ms = 60000; /* at kicks only */
        rig_open(&r);
        struct cs_tenant tenant = {{1}};
        struct cs_note note = {.key = {1, 1}, .data = bytes, .len = sizeof bytes};
        struct note_record n = {.owner = put(&r, 1, 12), .notes = &note, .n_notes = 1};
        n.id = tier_disk_next_id(r.tier);
        files_limit(256 << 10);
        for (uint64_t i = 1; i <= 2; i++)
            assert_int_equal(tier_disk_quota(r.tier, &tenant, &(struct cs_quota){.disk_bytes = i}), CS_OK);
        assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK); /* does not fit into a log */
        tier_disk_kick(r.tier);
        bool warned = wait_until(has_warned, &r);
        files_unlimit();
        assert_true(warned);
        if (later)
            assert_int_equal(tier_disk_quota(r.tier, &tenant, &(struct cs_quota){.disk_bytes = 3}), CS_OK);
        assert_true(wait_until(nothing_pending_after_a_kick, &r));
        rig_close(&r);
        struct cs_quota quota = {0};
        struct catalog *c = rig_catalog_open(&r, true);
        assert_int_equal(catalog_scan(c, CATALOG_QUOTA, quota_read, &quota), CS_OK);
        rig_catalog_close(&r, c);
        assert_int_equal(quota.disk_bytes, later ? 3 : 2);
        rig_destroy(&r);
    }
}

/* A process of its own: RocksDB's threads do not outlive a fork. */
static int open_without_room(const char *dir, const char *limit)
{
    struct catalog *c = NULL;
    char err[256];
    int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    files_limit(strtoull(limit, NULL, 10));
    int rc = dir_fd < 0 ? CS_EINVAL : catalog_open(dir_fd, false, 1 << 20, &c, err, sizeof err);
    catalog_close(c);
    return rc == CS_OK || rc == CS_ECORRUPT || rc == CS_EIO ? 0 : 1;
}

/* Not one byte can be written: RocksDB says so and the process lives. Its own log is what ended it, in a line
 * of each open; others take the last byte between the store's look at the file system and that. */
static void test_catalogue_that_cannot_write_a_byte_does_not_open(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct record_id id = put(&r, 1, 12);
    rig_close(&r);
    static const uint64_t limits[] = {0, 1, 60, 500, 4 << 10, 16 << 10};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char limit[24];
            snprintf(limit, sizeof limit, "%" PRIu64, limits[i]);
            execl("/proc/self/exe", "test_failures", r.dir, limit, (char *)NULL);
            _exit(2);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    rig_open(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(get(&r, id, 1, 12), TIER_OK);
    rig_destroy(&r);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return open_without_room(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_write_costs_its_chunks_until_the_next_open),
        cmocka_unit_test(test_failed_catalogue_batch_is_survived),
        cmocka_unit_test(test_full_file_system_drops_writes_until_there_is_room),
        cmocka_unit_test(test_a_file_system_without_room_for_volumes_is_said_in_two_lines),
        cmocka_unit_test(test_failed_delete_is_tried_again),
        cmocka_unit_test(test_quotas_that_could_not_be_written_are_tried_again_in_order),
        cmocka_unit_test(test_catalogue_that_cannot_write_a_byte_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
