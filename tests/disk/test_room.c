/* The budget: it is used, it is never exceeded, and it may change. */
#include "tests/disk/harness.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void test_deleted_span_is_gone_and_its_room_free(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    int64_t before = tier_disk_free_bytes(r.tier);
    struct record_id id = put(&r, 1, 20);
    assert_int_equal(before - tier_disk_free_bytes(r.tier), tier_disk_record_bytes(r.tier, RECORD_SPAN, 20));
    tier_disk_delete(r.tier, id);
    tier_disk_delete(r.tier, id);
    assert_int_equal(before, tier_disk_free_bytes(r.tier));
    assert_int_equal(get(&r, id, 1, 20), TIER_NOTFOUND);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 0);
    assert_int_equal(before, tier_disk_free_bytes(r.tier));
    rig_destroy(&r);
}

/* Deletes and writes alternate with the volumes full: each write waits for the chunks of the delete before
 * it. */
static void test_write_waits_for_room_of_deletes(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    enum { N = 400 };
    struct record_id ids[N] = {{0, 0}};
    uint32_t n = 0, oldest = 0;
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    while (n < N && tier_disk_free_bytes(r.tier) >= (int64_t)bytes) {
        ids[n] = put(&r, n, 12);
        n++;
    }
    assert_true(n > 20 && n < N);
    struct span_io *s[60];
    for (uint32_t i = 0; i < 60; i++) {
        tier_disk_delete(r.tier, ids[oldest++]);
        s[i] = span_make(&r, n + i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < 60; i++) {
        assert_int_equal(span_wait(s[i]), TIER_OK);
        assert_int_equal(get(&r, s[i]->w.record.id, n + i, 12), TIER_OK);
        span_free(s[i]);
    }
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    rig_destroy(&r);
}

static void test_beyond_the_budget_is_enospc(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t n = 0;
    enum tier_result result = TIER_OK;
    while (result == TIER_OK && n < 1000) {
        struct span_io *s = span_make(&r, n++, 12);
        span_write(s);
        tier_disk_kick(r.tier);
        result = span_wait(s);
        span_free(s);
    }
    assert_int_equal(result, TIER_ENOSPC);
    struct cs_stats st = rig_stats(&r);
    assert_true(st.disk_bytes <= st.disk_budget);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    assert_true(st.disk_bytes > st.disk_budget / 2);
    rig_destroy(&r);
}

static uint64_t available_bytes(int dir_fd)
{
    struct statvfs fs;
    assert_int_equal(fstatvfs(dir_fd, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* An extent that the file system has no room for is no reason to store nothing, nor is the rest of the room
 * for the volumes to take. */
static void test_growth_takes_what_a_nearly_full_file_system_has(void **state)
{
    (void)state;
    enum { ROOM = 64 << 20 };
    struct rig r;
    rig_init(&r);
    int dir_fd = open(r.dir, O_RDONLY | O_DIRECTORY);
    assert_true(dir_fd >= 0);
    struct volumes v;
    assert_int_equal(volumes_open(&v, dir_fd, CHUNK, 1 << 30, false), 0);
    volumes_set_limit(&v, 1ull << 40);
    uint64_t available = available_bytes(dir_fd);
    assert_true(available > ROOM);
    v.reserve_bytes = available - ROOM;
    struct fmt_record_run runs[4];
    uint32_t n_runs;
    assert_int_equal(volumes_alloc(&v, 4, runs, &n_runs), 0);
    assert_int_equal(n_runs, 1);
    assert_true(volumes_backed_bytes(&v) < 2 * ROOM); /* others use the file system, too */
    v.reserve_bytes = UINT64_MAX;
    uint64_t backed = volumes_backed_bytes(&v);
    while (volumes_alloc(&v, 1, runs, &n_runs) == 0)
        ;
    assert_int_equal(volumes_backed_bytes(&v), backed);
    assert_int_equal(volumes_used_bytes(&v), backed);
    volumes_close(&v);
    close(dir_fd);
    rig_destroy(&r);
}

/* A limit that no extent fits into still leaves room for records. */
static void test_growth_takes_what_a_limit_allows(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    files_limit(EXTENT / 2);
    struct span_io *s[2];
    for (uint32_t i = 0; i < 2; i++) {
        s[i] = span_make(&r, i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    enum tier_result results[2];
    for (uint32_t i = 0; i < 2; i++) {
        results[i] = span_wait(s[i]);
        span_free(s[i]);
    }
    files_unlimit();
    assert_int_equal(results[0], TIER_OK);
    assert_int_equal(results[1], TIER_OK);
    rig_destroy(&r);
}

static void test_lowered_budget_gives_room_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = rig_fill(&r, 0, 12);
    rig_close(&r);
    r.config.disk_bytes /= 2;
    rig_open(&r);
    assert_int_equal(r.n_seen, n);
    assert_true(tier_disk_free_bytes(r.tier) < 0);
    struct span_io *s = span_make(&r, 5000, 12);
    span_write(s);
    assert_int_equal(span_wait(s), TIER_ENOSPC);
    for (size_t i = 0; i < n && tier_disk_free_bytes(r.tier) < (int64_t)bytes; i++)
        tier_disk_delete(r.tier, r.seen[n - 1 - i].id);
    tier_disk_settle(r.tier, 60000);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    span_write(s);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(s), TIER_OK);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    assert_int_equal(get(&r, r.seen[0].id, r.seen[0].number, 12), TIER_OK);
    /* And up again: holes are filled before the files grow. */
    rig_close(&r);
    r.config.disk_bytes *= 2;
    rig_open(&r);
    size_t kept = r.n_seen;
    n = rig_fill(&r, 9000, 12);
    assert_true(n > 20);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, kept + n);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    span_free(s);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deleted_span_is_gone_and_its_room_free),
        cmocka_unit_test(test_write_waits_for_room_of_deletes),
        cmocka_unit_test(test_beyond_the_budget_is_enospc),
        cmocka_unit_test(test_growth_takes_what_a_nearly_full_file_system_has),
        cmocka_unit_test(test_growth_takes_what_a_limit_allows),
        cmocka_unit_test(test_lowered_budget_gives_room_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
