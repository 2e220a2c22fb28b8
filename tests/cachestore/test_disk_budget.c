/* Room for writing: what waits is bounded, the budget is kept by evicting, what does not fit is counted. */
#include "tests/cachestore/fake_tier.h"

#include <string.h>

static void pages_being_written_stay_and_are_bounded(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(32); /* an eighth is 4 pages: one span of 3 at a time */
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[60];
    struct cs_reuse r;
    make_ids(ids, 60, 60, 0);
    round_trip(s, NULL, ids, 60); /* 15 pages, 5 spans */
    assert_int_equal(f.n_writes, 1);
    assert_true(f.n_kicks > 0);
    assert_int_equal(stats_of(s).pending_bytes, 15 * PAGE);
    assert_int_equal(cs_flush(s, 1), CS_EIO);

    uint32_t other[4] = {9, 9, 9, 9};
    struct cs_sequence *q = open_settled(s, NULL, other, 4, &r);
    assert_int_equal(cs_sequence_grow(q, 30 * PT), CS_EFULL); /* the span being written cannot go */
    assert_int_equal(cs_sequence_grow(q, 29 * PT), CS_OK);    /* the rest can, unwritten */
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.dropped_undurable, 4);
    assert_int_equal(st.dropped_queue_full, 4);
    assert_int_equal(st.pending_bytes, 3 * PAGE);
    cs_sequence_close(q);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    r = look_up(s, NULL, ids, 60);
    assert_int_equal(r.tokens_device, 12);
    assert_int_equal(r.miss, CS_MISS_EVICTED);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void the_disk_budget_evicts_leaves_first_and_is_never_exceeded(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 40 * PAGE}; /* ten records of a full span; the fake checks each write */
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[37];
    for (uint32_t k = 1; k <= 40; k++) {
        make_ids(ids, 37, 12, k); /* one shared root span and two spans of its own each */
        store_durably(&f, s, ids, 36);
        assert_true(f.n_records <= 10);
    }
    struct cs_stats st = stats_of(s);
    assert_true(st.evicted_disk_spans > 60);
    assert_int_equal(st.dropped_disk_full, 0);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_int_equal(stats_of(s).spans, f.n_records); /* nothing was orphaned */
    check_from_disk(&f, s, ids, 36);
    cs_close(s, 0);

    /* Half the budget: opening shrinks. */
    f.budget = 20 * PAGE;
    s = fake_open(&f, &c);
    assert_true(f.n_records <= 5);
    assert_int_equal(stats_of(s).spans, f.n_records);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static bool fake_holds(const struct fake_tier *f, const uint32_t *ids)
{
    for (size_t i = 0; i < f->n_records; i++)
        if (memcmp(f->records[i].record.ids, ids, SPAN_PAGES * PT * sizeof *ids) == 0)
            return true;
    return false;
}

static void times_of_use_from_the_future_count_as_now(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 12 * PAGE}; /* three records of a full span */
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    enum { N = SPAN_PAGES * PT };
    uint32_t a[N + 1], b[N + 1], other[N + 1];
    make_ids(a, N + 1, 0, 1);
    make_ids(b, N + 1, 0, 2);
    store_durably(&f, s, a, N);
    store_durably(&f, s, b, N);
    cs_close(s, 0);
    for (size_t i = 0; i < f.n_records; i++)
        f.records[i].record.used_unix += 100000000;
    s = fake_open(&f, &c);
    struct cs_sequence *q = open_loading(s, a, N + 1);
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, N);
    cs_sequence_close(q);
    for (uint32_t k = 3; k <= 4; k++) {
        make_ids(other, N + 1, 0, k);
        store_durably(&f, s, other, N);
    }
    assert_true(fake_holds(&f, a)); /* used since */
    assert_true(fake_holds(&f, other));
    assert_false(fake_holds(&f, b));
    cs_close(s, 0);
    fake_free(&f);
}

/* One row a path, at most once a minute; what was used last stays longest after a restart as well. */
static void a_use_is_persisted_at_the_end_of_its_path_and_decides_after_a_restart(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 16 * PAGE}; /* four records of a full span */
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    enum { N = SPAN_PAGES * PT };
    uint32_t a[2 * N + 1], b[N + 1], other[N + 1];
    make_ids(a, 2 * N + 1, 0, 1);
    make_ids(b, N + 1, 0, 2);
    store_durably(&f, s, a, 2 * N);
    store_durably(&f, s, b, N);
    cs_close(s, 0);
    assert_int_equal(f.n_records, 3);
    for (size_t i = 0; i < f.n_records; i++) /* a was used first */
        f.records[i].record.used_unix -= f.records[i].record.ids[0] == b[0] ? 1000 : 2000;
    int64_t before = f.records[1].record.used_unix;
    s = fake_open(&f, &c);
    check_from_disk(&f, s, a, 2 * N);
    assert_int_equal(f.n_touches, 1);
    assert_int_equal(f.records[0].record.used_unix, before);
    assert_true(f.records[1].record.used_unix >= before + 2000);
    assert_int_equal(look_up(s, NULL, a, 2 * N).tokens_device, 2 * N);
    assert_int_equal(f.n_touches, 1);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    for (uint32_t k = 3; k <= 4; k++) {
        make_ids(other, N + 1, 0, k);
        store_durably(&f, s, other, N);
    }
    assert_false(fake_holds(&f, b));
    assert_true(fake_holds(&f, a) && fake_holds(&f, a + N) && fake_holds(&f, other));
    cs_close(s, 0);
    fake_free(&f);
}

static void a_disk_full_of_writes_under_way_is_waited_for(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 12 * PAGE}; /* three records of a full span */
    struct cs_config c = tiny_config(512);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[SPAN_PAGES * PT + 1];
    for (uint32_t k = 1; k <= 5; k++) {
        make_ids(ids, SPAN_PAGES * PT + 1, 0, k);
        round_trip(s, NULL, ids, SPAN_PAGES * PT);
    }
    assert_int_equal(f.n_writes, 3);
    assert_true(f.n_kicks > 0);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(cs_flush(s, 0), CS_OK);
    assert_int_equal(f.n_written, 5);
    assert_int_equal(stats_of(s).dropped_disk_full, 0);
    assert_true(fake_holds(&f, ids));
    cs_close(s, 0);
    fake_free(&f);
}

static void a_span_too_large_for_the_disk_is_dropped_and_counted(void **state)
{
    (void)state;
    struct fake_tier f = {.budget = 3 * PAGE};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[13];
    make_ids(ids, 13, 13, 0);
    round_trip(s, NULL, ids, 12);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.dropped_disk_full, 1);
    assert_int_equal(st.pending_bytes, 0);
    assert_int_equal(look_up(s, NULL, ids, 12).tokens_device, 12);
    cs_close(s, 0);
    fake_free(&f);
}

static void no_space_is_answered_by_evicting_and_one_more_try(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13], b[13];
    make_ids(a, 13, 0, 1);
    make_ids(b, 13, 0, 2);
    store_durably(&f, s, a, 12);
    round_trip(s, NULL, b, 12);
    fake_finish_write(&f, TIER_ENOSPC);
    assert_int_equal(f.n_records, 0); /* the older one gave way */
    assert_int_equal(f.n_writes, 1);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(stats_of(s).dropped_disk_full, 0);
    assert_int_equal(f.n_records, 1);
    assert_int_equal(records_known(s), 1);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void durable_spans_leave_the_device_before_others(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(12);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13], b[13], d[13];
    struct cs_reuse r;
    make_ids(a, 13, 0, 1);
    make_ids(b, 13, 0, 2);
    make_ids(d, 13, 0, 3);
    round_trip(s, NULL, a, 12);
    fake_finish_writes(&f, TIER_EIO); /* a is the oldest and not on disk */
    store_durably(&f, s, b, 12);
    struct cs_sequence *q = open_settled(s, NULL, d, 13, &r);
    assert_int_equal(cs_sequence_grow(q, 9 * PT), CS_OK);
    assert_int_equal(look_up(s, NULL, a, 12).tokens_device, 12);
    assert_int_equal(stats_of(s).dropped_undurable, 0);
    cs_sequence_close(q);
    cs_close(s, 0);
    fake_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_being_written_stay_and_are_bounded),
        cmocka_unit_test(the_disk_budget_evicts_leaves_first_and_is_never_exceeded),
        cmocka_unit_test(times_of_use_from_the_future_count_as_now),
        cmocka_unit_test(a_use_is_persisted_at_the_end_of_its_path_and_decides_after_a_restart),
        cmocka_unit_test(a_disk_full_of_writes_under_way_is_waited_for),
        cmocka_unit_test(a_span_too_large_for_the_disk_is_dropped_and_counted),
        cmocka_unit_test(no_space_is_answered_by_evicting_and_one_more_try),
        cmocka_unit_test(durable_spans_leave_the_device_before_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
