/*
 * A device out of reach, and the host tier below it: what is copied when, what lands where, what a failed or
 * damaged copy costs.
 */
#include "cachestore/store.h"
#include "tests/cachestore/disk_dir.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include <stdlib.h>
#include <string.h>

static struct fake_tier tier;

static struct cs_store *open_store(struct cs_config *c, bool disk)
{
    c->device = fake_device_open(false);
    return disk ? fake_open(&tier, c) : tiny_open(c);
}

static void close_store(struct cs_store *s)
{
    fake_finish_everything(&tier);
    recount(s);
    check_balance(s);
    cs_close(s, 0);
    fake_device_close();
}

static int forget_disk(void **state)
{
    (void)state;
    fake_free(&tier);
    return 0;
}

static struct cs_config host_config(uint32_t arena_pages, uint32_t host_pages)
{
    struct cs_config c = tiny_config(arena_pages);
    c.host_bytes = host_pages * (uint64_t)PAGE;
    return c;
}

/* A store to which a path of n ids was published, of which nothing was copied yet. */
static struct cs_store *with_path(struct cs_config *c, bool disk, uint32_t *ids, size_t n)
{
    struct cs_store *s = open_store(c, disk);
    make_ids(ids, n + 1, n + 1, 0);
    round_trip(s, NULL, ids, n);
    return s;
}

/* What is on its way to the device lands; the sequence has the right bytes and is closed. */
static struct cs_reuse land(struct cs_sequence *q, const uint32_t *ids, size_t n_pages)
{
    fake_device_finish_all();
    struct cs_reuse r = wait_settled(q);
    check_pages(q, ids, n_pages, 0);
    cs_sequence_close(q);
    return r;
}

static void what_left_the_device_comes_back_from_the_host_in_one_submission(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    struct cs_store *s = open_store(&c, false);
    uint32_t ids[41];
    make_ids(ids, 41, 41, 0);
    round_trip(s, NULL, ids, 40); /* 10 pages: spans of 3, 3, 3, 1 */
    assert_true(fake_device_n_queued() > 0);
    fake_finish_everything(NULL);
    assert_int_equal(stats_of(s).host_used_bytes, 10 * PAGE);
    assert_int_equal(stats_of(s).bytes_to_host, 10 * PAGE);
    empty_device(s);
    assert_int_equal(stats_of(s).spans, 4);

    size_t submits = fake_device_n_submits();
    struct cs_sequence *q = open_loading(s, ids, 41);
    assert_int_equal(fake_device_n_submits(), submits + 1);
    assert_int_equal(fake_device_n_queued(), 4);
    fake_device_finish(2, true); /* in any order */
    fake_device_finish(0, true);
    assert_int_equal(cs_sequence_poll(q, NULL), 0);
    assert_int_equal(cs_sequence_n_pages(q), 0);
    fake_device_finish_all();
    struct cs_reuse r = wait_settled(q);
    assert_int_equal(r.tokens_host, 40);
    assert_int_equal(r.tokens_device + r.tokens_disk, 0);
    assert_int_equal(r.miss, CS_MISS_NONE);
    check_pages(q, ids, 10, 0);
    cs_sequence_close(q);
    assert_int_equal(look_up(s, NULL, ids, 40).tokens_device, 40);
    assert_int_equal(stats_of(s).bytes_to_device, 10 * PAGE);
    assert_int_equal(stats_of(s).tokens_host, 40);
    close_store(s);
}

/* Pages stay on the device while they are copied: no more than an eighth of the arena at once. */
static void what_is_copied_at_once_is_bounded(void **state)
{
    (void)state;
    struct cs_config c = host_config(64, 64);
    uint32_t ids[97];
    struct cs_store *s = with_path(&c, false, ids, 96); /* 8 spans of 3 pages */
    assert_int_equal(fake_device_n_queued(), 2);
    for (; fake_device_n_queued() > 0; fake_device_finish(0, true))
        assert_in_range(fake_device_n_queued(), 1, 2);
    assert_int_equal(stats_of(s).bytes_to_host, 24 * PAGE);
    close_store(s);
}

static void a_span_that_is_on_the_host_leaves_the_device_before_one_that_is_not(void **state)
{
    (void)state;
    struct cs_config c = host_config(8, 64);
    struct cs_store *s = open_store(&c, false);
    uint32_t there[13], not_there[13], other[9];
    make_ids(there, 13, 0, 1);
    make_ids(not_there, 13, 0, 2);
    make_ids(other, 9, 0, 3);
    round_trip(s, NULL, not_there, 12);
    fake_device_finish(0, false); /* its copy fails */
    assert_int_equal(stats_of(s).copy_errors, 1);
    assert_int_equal(stats_of(s).host_used_bytes, 0);
    round_trip(s, NULL, there, 12);
    fake_finish_everything(NULL);
    round_trip(s, NULL, other, 8); /* 8 of 8 pages are in use */
    fake_finish_everything(NULL);
    uint32_t more[9];
    make_ids(more, 9, 0, 4);
    round_trip(s, NULL, more, 8);
    fake_finish_everything(NULL);
    assert_int_equal(look_up(s, NULL, not_there, 12).tokens_device, 12);
    close_store(s);
}

static void a_failed_copy_is_a_miss_and_the_next_one_is_not(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[25];
    struct cs_store *s = with_path(&c, false, ids, 24);
    fake_finish_everything(NULL);
    empty_device(s);
    struct cs_sequence *q = open_loading(s, ids, 25);
    fake_device_finish(0, true);
    fake_device_finish(0, false);
    struct cs_reuse r = wait_settled(q);
    assert_int_equal(cs_reuse_tokens(&r), 12);
    assert_int_equal(r.miss, CS_MISS_IO);
    check_pages(q, ids, 3, 0);
    cs_sequence_close(q);
    q = open_loading(s, ids, 25);
    fake_device_finish_all();
    r = wait_settled(q);
    assert_int_equal(r.tokens_device, 12);
    assert_int_equal(r.tokens_host, 12);
    check_pages(q, ids, 6, 0);
    cs_sequence_close(q);
    close_store(s);
}

static void damage_everything_on_the_host(struct cs_store *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->host.n_pages; i++)
        ((uint8_t *)arena_address(&s->host, i))[i % PAGE] ^= 4;
    pthread_mutex_unlock(&s->lock);
}

static void damaged_blocks_are_a_miss_and_the_disk_serves_the_next_one(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[25];
    struct cs_store *s = with_path(&c, true, ids, 24);
    fake_finish_everything(&tier);
    assert_int_equal(tier.n_records, 2);
    empty_device(s);
    damage_everything_on_the_host(s);
    struct cs_sequence *q = open_loading(s, ids, 25);
    assert_int_equal(tier.n_reads, 0);
    fake_device_finish_all();
    struct cs_reuse r = wait_settled(q);
    assert_int_equal(cs_reuse_tokens(&r), 0);
    assert_int_equal(r.miss, CS_MISS_CORRUPT);
    cs_sequence_close(q);
    assert_int_equal(stats_of(s).corrupt_host, 2);
    assert_int_equal(stats_of(s).quarantined, 0);
    assert_int_equal(stats_of(s).host_used_bytes, 0);
    q = open_loading(s, ids, 25);
    assert_int_equal(tier.n_reads, 2);
    fake_finish_everything(&tier);
    r = wait_settled(q);
    assert_int_equal(r.tokens_disk, 24);
    check_pages(q, ids, 6, 0);
    cs_sequence_close(q);
    close_store(s);
}

static void what_a_failed_copy_leaves_on_the_host_is_not_taken_for_damage(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    struct cs_store *s = open_store(&c, true);
    uint32_t ids[25];
    make_ids(ids, 25, 25, 0);
    round_trip(s, NULL, ids, 24);
    fake_finish_everything(&tier);
    empty_device(s);
    damage_everything_on_the_host(s);
    struct cs_sequence *q = open_loading(s, ids, 25);
    fake_device_finish_all();
    wait_settled(q);
    cs_sequence_close(q);
    q = open_loading(s, ids, 25);
    fake_finish_reads(&tier, TIER_OK); /* on the host now */
    fake_device_finish(0, false);      /* half of its sums are taken */
    fake_finish_everything(&tier);
    assert_int_equal(wait_settled(q).miss, CS_MISS_IO);
    cs_sequence_close(q);
    empty_device(s);
    uint64_t damaged = stats_of(s).corrupt_host;
    q = open_loading(s, ids, 25);
    fake_finish_everything(&tier);
    assert_int_equal(cs_sequence_poll(q, NULL), 1);
    assert_int_equal(cs_sequence_n_pages(q), 6);
    check_pages(q, ids, 6, 0);
    cs_sequence_close(q);
    assert_int_equal(stats_of(s).corrupt_host, damaged);
    close_store(s);
}

static void what_was_damaged_on_the_host_is_not_written_to_disk(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[13];
    struct cs_store *s = with_path(&c, true, ids, 12);
    fake_device_finish_all();
    assert_int_equal(tier.n_writes, 1);
    damage_everything_on_the_host(s);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(tier.n_records, 0);
    assert_int_equal(stats_of(s).corrupt_host, 1);
    assert_int_equal(stats_of(s).host_used_bytes, 0);
    /* The device still has it, and the next publish of the path sends it again. */
    assert_int_equal(look_up(s, NULL, ids, 12).tokens_device, 12);
    round_trip(s, NULL, ids, 12);
    fake_finish_everything(&tier);
    assert_int_equal(tier.n_records, 1);
    close_store(s);
}

static void pages_may_leave_the_device_while_the_disk_writes_from_the_host(void **state)
{
    (void)state;
    struct cs_config c = host_config(8, 64);
    uint32_t ids[25];
    struct cs_store *s = with_path(&c, true, ids, 24);
    fake_device_finish_all();
    assert_true(tier.n_writes > 0);
    empty_device(s);
    assert_int_equal(stats_of(s).dropped_undurable, 0);
    struct cs_sequence *q = open_loading(s, ids, 25);
    assert_int_equal(tier.n_reads, 0);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(land(q, ids, 6).tokens_host, 24);
    assert_int_equal(tier.n_records, 2);
    close_store(s);
}

static void a_restart_reads_through_the_host_and_keeps_it_there(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[41];
    struct cs_store *s = with_path(&c, true, ids, 40);
    close_store(s);
    s = open_store(&c, true);
    struct cs_sequence *q = open_loading(s, ids, 41);
    assert_int_equal(tier.n_reads, 4);
    fake_finish_reads(&tier, TIER_OK);
    assert_int_equal(fake_device_n_queued(), 4);
    assert_int_equal(cs_sequence_poll(q, NULL), 0); /* on the host is not there */
    assert_int_equal(land(q, ids, 10).tokens_disk, 40);
    empty_device(s);
    q = open_loading(s, ids, 41);
    assert_int_equal(tier.n_reads, 0);
    assert_int_equal(land(q, ids, 10).tokens_host, 40);
    close_store(s);
}

static void what_nobody_waits_for_any_more_lands_all_the_same(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[25];
    struct cs_store *s = with_path(&c, true, ids, 24);
    close_store(s);
    s = open_store(&c, true);
    struct cs_sequence *q = open_loading(s, ids, 25);
    cs_sequence_close(q);
    fake_finish_everything(&tier);
    assert_int_equal(stats_of(s).pages_cached, 6);
    assert_int_equal(stats_of(s).host_used_bytes, 6 * PAGE);
    empty_device(s);
    q = open_loading(s, ids, 25);
    assert_int_equal(land(q, ids, 6).tokens_host, 24);
    close_store(s);
}

static void a_full_host_lets_go_of_what_is_durable_first(void **state)
{
    (void)state;
    struct cs_config c = host_config(64, 0);
    c.host_bytes = 16 * SPAN_PAGES * PAGE; /* what a disk needs at least */
    struct cs_store *s = open_store(&c, true);
    assert_int_equal(stats_of(s).host_bytes, c.host_bytes);
    uint32_t ids[121];
    make_ids(ids, 121, 0, 1);
    round_trip(s, NULL, ids, 120); /* 30 pages */
    fake_finish_everything(&tier);
    make_ids(ids, 121, 0, 2);
    round_trip(s, NULL, ids, 120);
    fake_finish_everything(&tier);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.pending_bytes, 0);
    assert_int_equal(st.dropped_queue_full + st.dropped_undurable, 0);
    assert_true(st.evicted_host_spans > 0);
    assert_int_equal(tier.n_records, 20);
    close_store(s);
}

static void a_checkpoint_comes_back_from_the_host(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(60);
    c.host_bytes = 100 * PAGE;
    struct cs_store *s = open_store(&c, false);
    uint32_t ids[49];
    make_ids(ids, 49, 49, 0);
    struct cs_boundary b = {.position = 16, .kind = CS_BOUNDARY_SYSTEM};
    assert_int_equal(run_turn(s, &c, 0, ids, 33, 40, &b, 1), 0);
    fake_finish_everything(NULL);
    empty_device(s);
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 49), 40);
    assert_int_equal(r.reuse.tokens_host, 40);
    run_close(&r);
    close_store(s);
}

static void count_call(void *ctx)
{
    ++*(int *)ctx;
}

static void a_landed_copy_notifies(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    uint32_t ids[13];
    int calls = 0;
    struct cs_store *s = with_path(&c, false, ids, 12);
    fake_finish_everything(NULL);
    empty_device(s);
    struct cs_sequence *q = open_loading(s, ids, 13);
    cs_sequence_notify(q, count_call, &calls);
    fake_device_finish_all();
    assert_int_equal(calls, 1);
    assert_int_equal(wait_settled(q).tokens_host, 12);
    cs_sequence_close(q);
    close_store(s);
}

static void a_late_copy_lands_in_no_memory_of_others(void **state)
{
    (void)state;
    struct cs_config c = host_config(6, 64);
    struct cs_store *s = open_store(&c, false);
    uint32_t ids[13], other[13];
    struct cs_reuse r;
    make_ids(ids, 13, 13, 0);
    make_ids(other, 13, 0, 5);
    round_trip(s, NULL, ids, 12);
    fake_finish_everything(NULL);
    empty_device(s);
    struct cs_sequence *q = open_loading(s, ids, 13);
    cs_sequence_close(q); /* its copy is still on the way */
    q = open_settled(s, NULL, other, 13, &r);
    assert_int_equal(cs_sequence_grow(q, 24), CS_EFULL); /* 3 of 6 pages are not to be had */
    assert_int_equal(cs_sequence_grow(q, 12), CS_OK);
    fill_pages(q, other, 0, 3, 0);
    fake_device_finish_all();
    check_pages(q, other, 3, 0);
    cs_sequence_close(q);
    close_store(s);
}

static void host_bytes_without_a_device_are_refused(void **state)
{
    (void)state;
    struct cs_config c = host_config(16, 64);
    struct cs_store *s = NULL;
    char err[200] = "";
    assert_int_equal(cs_open(&c, &s, err, sizeof err), CS_EINVAL);
    assert_non_null(strstr(err, "host_bytes"));
    assert_null(s);
}

/* Threads: the device's own, and the real disk tier's. */
static void a_device_and_a_disk_at_work_bring_the_right_bytes(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = host_config(24, 80);
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    uint32_t ids[65];
    for (int restart = 0; restart < 3; restart++) {
        c.device = fake_device_open(true);
        struct cs_store *s = tiny_open(&c);
        for (uint32_t i = 0; i < 12; i++) {
            make_ids(ids, 65, 24, i % 6);
            round_trip(s, NULL, ids, 64);
            assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK); /* the arena is small */
        }
        for (uint32_t i = 0; i < 6; i++) {
            make_ids(ids, 65, 24, i);
            struct cs_reuse r = look_up(s, NULL, ids, 64);
            assert_int_equal(cs_reuse_tokens(&r), 64);
        }
        struct cs_stats st = stats_of(s);
        assert_true(st.tokens_host > 0);
        assert_int_equal(st.tokens_disk > 0, restart > 0);
        assert_int_equal(st.corrupt_host + st.copy_errors + st.corrupt_payload + st.io_errors, 0);
        recount(s);
        cs_close(s, FLUSH_MS);
        fake_device_close();
    }
    disk_dir_remove();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, forget_disk, forget_disk)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_left_the_device_comes_back_from_the_host_in_one_submission),
        TEST(what_is_copied_at_once_is_bounded),
        TEST(a_span_that_is_on_the_host_leaves_the_device_before_one_that_is_not),
        TEST(a_failed_copy_is_a_miss_and_the_next_one_is_not),
        TEST(damaged_blocks_are_a_miss_and_the_disk_serves_the_next_one),
        TEST(what_a_failed_copy_leaves_on_the_host_is_not_taken_for_damage),
        TEST(what_was_damaged_on_the_host_is_not_written_to_disk),
        TEST(pages_may_leave_the_device_while_the_disk_writes_from_the_host),
        TEST(a_restart_reads_through_the_host_and_keeps_it_there),
        TEST(what_nobody_waits_for_any_more_lands_all_the_same),
        TEST(a_full_host_lets_go_of_what_is_durable_first),
        TEST(a_checkpoint_comes_back_from_the_host),
        TEST(a_landed_copy_notifies),
        TEST(a_late_copy_lands_in_no_memory_of_others),
        TEST(host_bytes_without_a_device_are_refused),
        TEST(a_device_and_a_disk_at_work_bring_the_right_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
