/* Reading back from disk: what loads bring, share, leave when abandoned or late, and what a restart finds. */
#include "tests/cachestore/fake_tier.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void evicted_pages_come_back_from_disk_in_one_submission(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[41];
    make_ids(ids, 41, 41, 0);
    store_durably(&f, s, ids, 40); /* 10 pages: spans of 3, 3, 3, 1 */
    assert_int_equal(f.n_records, 4);
    empty_device(s);
    assert_int_equal(stats_of(s).spans, 4);
    assert_int_equal(stats_of(s).dropped_undurable, 0);

    struct cs_sequence *q = open_loading(s, ids, 41);
    assert_int_equal(f.n_read_calls, 1);
    assert_int_equal(f.n_reads, 4);
    /* In any order. */
    fake_finish_read(&f, 2, TIER_OK);
    fake_finish_read(&f, 0, TIER_OK);
    assert_int_equal(cs_sequence_poll(q, NULL), 0);
    fake_finish_reads(&f, TIER_OK);
    struct cs_reuse r = wait_settled(q);
    assert_int_equal(r.tokens_disk, 40);
    assert_int_equal(r.tokens_device, 0);
    assert_int_equal(r.miss, CS_MISS_NONE);
    check_pages(q, ids, 10, 0);
    cs_sequence_close(q);
    struct cs_latencies took;
    uint64_t restores = 0;
    cs_latencies_get(s, &took);
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
        restores += took.restore.count[i];
    assert_int_equal(restores, 1);
    assert_int_equal(took.read.count[0], 4); /* the tier's part */
    assert_int_equal(look_up(s, NULL, ids, 40).tokens_device, 40);
    assert_int_equal(f.n_written, 4);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void a_restart_finds_what_was_durable_and_its_notes(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[41], fork[33];
    struct cs_reuse r;
    make_ids(ids, 41, 41, 0);
    make_ids(fork, 33, 17, 3); /* leaves inside the second span */
    struct cs_sequence *q = open_settled(s, NULL, ids, 41, &r);
    assert_int_equal(cs_sequence_grow(q, 41), CS_OK);
    fill_pages(q, ids, 0, 10, 0);
    struct cs_note old = {.key = {1, 1}, .data = "old", .len = 3},
                   other = {.key = {2, 2}, .data = "x", .len = 1};
    struct cs_note both[2] = {old, other};
    assert_int_equal(cs_sequence_publish(q, ids, 24, both, 2), CS_OK);
    struct cs_note fresh = {.key = {1, 1}, .data = "fresh", .len = 5};
    assert_int_equal(cs_sequence_publish(q, ids, 40, &fresh, 1), CS_OK);
    cs_sequence_close(q);
    round_trip(s, NULL, fork, 32);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(stats_of(s).notes, 2);
    assert_int_equal(f.n_notes, 2);
    cs_close(s, 0);

    s = fake_open(&f, &c);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.notes, 2);
    assert_int_equal(records_known(s), f.n_records);
    void *data;
    uint32_t len;
    assert_int_equal(cs_note_get(s, (struct cs_key){1, 1}, &data, &len), CS_OK);
    assert_int_equal(len, 5);
    assert_memory_equal(data, "fresh", 5);
    free(data);
    q = open_loading(s, ids, 41);
    struct cs_sequence *p = open_loading(s, fork, 33);
    fake_finish_reads(&f, TIER_OK);
    r = wait_settled(q);
    assert_int_equal(r.tokens_disk, 40);
    check_pages(q, ids, 10, 0);
    r = wait_settled(p);
    assert_int_equal(r.tokens_disk, 32);
    check_pages(p, fork, 8, 0);
    cs_sequence_close(q);
    cs_sequence_close(p);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void rows_whose_parents_are_missing_are_deleted_at_open(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[37], other[13];
    struct cs_reuse r;
    make_ids(ids, 37, 37, 0);
    make_ids(other, 13, 0, 6);
    struct cs_sequence *q = open_settled(s, NULL, ids, 37, &r);
    assert_int_equal(cs_sequence_grow(q, 37), CS_OK);
    struct cs_note note = {.key = {1, 1}, .data = "n", .len = 1};
    assert_int_equal(cs_sequence_publish(q, ids, 36, &note, 1), CS_OK);
    cs_sequence_close(q);
    round_trip(s, NULL, other, 12);
    fake_finish_writes(&f, TIER_OK);
    cs_close(s, 0);
    assert_int_equal(f.n_records, 4);
    f.allow_parent_delete = true;
    fake_vtable.delete_span((struct tier_disk *)&f,
                            f.records[1].record.id); /* the middle of the first path */

    s = fake_open(&f, &c);
    assert_int_equal(f.n_records, 2);
    assert_int_equal(f.n_notes, 0);
    assert_int_equal(stats_of(s).spans, 2);
    assert_int_equal(stats_of(s).notes, 0);
    cs_close(s, 0);
    fake_free(&f);
}

static void two_sequences_share_one_load(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[25];
    make_ids(ids, 25, 25, 0);
    store_durably(&f, s, ids, 24);
    empty_device(s);
    struct cs_sequence *shallow = open_loading(s, ids, 9), *deep = open_loading(s, ids, 25),
                       *again = open_loading(s, ids, 25);
    /* Pages 0 and 1, then what is missing beside them, then nothing. */
    assert_int_equal(f.n_reads_queued, 3);
    cs_sequence_close(shallow); /* the others go on */
    fake_finish_reads(&f, TIER_OK);
    struct cs_reuse r = wait_settled(deep);
    assert_int_equal(r.tokens_disk, 24);
    check_pages(deep, ids, 6, 0);
    r = wait_settled(again);
    assert_int_equal(r.tokens_disk, 24);
    assert_ptr_equal(cs_sequence_pages(deep)[5], cs_sequence_pages(again)[5]);
    cs_sequence_close(deep);
    cs_sequence_close(again);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.pages_live, 0);
    assert_int_equal(st.pages_cached, 6);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void an_abandoned_load_is_cancelled_and_can_be_joined_again(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[13];
    make_ids(ids, 13, 13, 0);
    store_durably(&f, s, ids, 12);
    empty_device(s);
    cs_sequence_close(open_loading(s, ids, 13));
    assert_true(f.reads[0]->cancel);
    assert_int_equal(stats_of(s).pages_live, 3); /* the read owns them until it ends */
    struct cs_sequence *q = open_loading(s, ids, 13);
    assert_int_equal(f.n_reads, 1);
    fake_finish_read(&f, 0, TIER_CANCELLED); /* it was too late to change the tier's mind: read once more */
    assert_int_equal(cs_sequence_poll(q, NULL), 0);
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, 12);
    check_pages(q, ids, 3, 0);
    cs_sequence_close(q);

    empty_device(s);
    cs_sequence_close(open_loading(s, ids, 13));
    fake_finish_reads(&f, TIER_CANCELLED);
    assert_int_equal(stats_of(s).pages_free, 16);
    assert_int_equal(f.n_records, 1);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void count_call(void *ctx)
{
    __atomic_add_fetch((int *)ctx, 1, __ATOMIC_SEQ_CST);
}

static void behind_the_deadline_the_verified_part_is_used_and_late_bytes_land_nowhere_else(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(12);
    c.restore_deadline_ms = 5;
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[25];
    int calls = 0;
    make_ids(ids, 25, 25, 0);
    store_durably(&f, s, ids, 24);
    empty_device(s);
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, NULL, ids, 25, &q), CS_OK);
    cs_sequence_notify(q, count_call, &calls);
    fake_finish_read(&f, 0, TIER_OK); /* the second span's read hangs */
    time_t start = time(NULL);
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0 && time(NULL) - start < 20)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_int_equal(calls, 1);
    struct cs_reuse r;
    assert_int_equal(cs_sequence_poll(q, &r), 1);
    assert_int_equal(r.tokens_disk, 12);
    assert_int_equal(r.miss, CS_MISS_DEADLINE);
    assert_int_equal(stats_of(s).restores_deadline, 1);
    /* Three pages are still the read's: the sequence can have all but them. */
    assert_int_equal(cs_sequence_grow(q, 10 * PT), CS_EFULL);
    assert_int_equal(cs_sequence_grow(q, 9 * PT), CS_OK);
    fill_pages(q, ids, 3, 6, 0);
    for (size_t p = 6; p < 9; p++)
        memset(cs_sequence_pages(q)[p], 0x11, PAGE);
    fake_finish_reads(&f, TIER_OK);
    check_pages(q, ids, 6, 0);
    for (size_t p = 6; p < 9; p++)
        for (size_t b = 0; b < PAGE; b++)
            assert_int_equal(((uint8_t *)cs_sequence_pages(q)[p])[b], 0x11);
    /* What landed late is as good as any other. */
    assert_int_equal(cs_sequence_publish(q, ids, 24, NULL, 0), CS_OK);
    assert_int_equal(stats_of(s).publish_duplicate_pages, 3);
    cs_sequence_close(q);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void a_restore_into_a_full_arena_takes_what_fits(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(12);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[37], other[2] = {1, 2};
    struct cs_reuse r;
    make_ids(ids, 37, 37, 0);
    store_durably(&f, s, ids, 36);
    struct cs_sequence *hog = open_settled(s, NULL, other, 2, &r);
    assert_int_equal(cs_sequence_grow(hog, 12 * PT), CS_OK);
    struct cs_sequence *none = open_settled(s, NULL, ids, 37, &r);
    assert_int_equal(r.tokens_disk, 0);
    assert_int_equal(r.miss, CS_MISS_ARENA_FULL);
    cs_sequence_close(none);
    cs_sequence_close(hog);
    hog = open_settled(s, NULL, other, 2, &r);
    assert_int_equal(cs_sequence_grow(hog, 8 * PT), CS_OK);
    struct cs_sequence *q = open_loading(s, ids, 37);
    fake_finish_reads(&f, TIER_OK);
    r = wait_settled(q);
    assert_int_equal(r.tokens_disk, 16);
    assert_int_equal(r.miss, CS_MISS_ARENA_FULL);
    check_pages(q, ids, 4, 0);
    cs_sequence_close(q);
    cs_sequence_close(hog);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicted_pages_come_back_from_disk_in_one_submission),
        cmocka_unit_test(a_restart_finds_what_was_durable_and_its_notes),
        cmocka_unit_test(rows_whose_parents_are_missing_are_deleted_at_open),
        cmocka_unit_test(two_sequences_share_one_load),
        cmocka_unit_test(an_abandoned_load_is_cancelled_and_can_be_joined_again),
        cmocka_unit_test(behind_the_deadline_the_verified_part_is_used_and_late_bytes_land_nowhere_else),
        cmocka_unit_test(a_restore_into_a_full_arena_takes_what_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
