/* The store over a disk tier that completes by hand: write-behind, loads, deadlines, failures, budgets,
 * restarts. */
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Publishes n ids and makes them durable. */
static void store_durably(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, size_t n)
{
    round_trip(s, NULL, ids, n);
    fake_finish_writes(f, TIER_OK);
    assert_int_equal(cs_flush(s, 0), CS_OK);
}

/* Evicts everything that may be evicted from the device. */
static void empty_device(struct cs_store *s)
{
    uint32_t ids[1] = {1};
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, NULL, ids, 1, &r);
    assert_int_equal(cs_sequence_grow(q, stats_of(s).pages_total * PT), CS_OK);
    cs_sequence_close(q);
    assert_int_equal(stats_of(s).pages_cached, 0);
}

static struct cs_sequence *open_loading(struct cs_store *s, const uint32_t *ids, size_t n)
{
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, NULL, ids, n, &q), CS_OK);
    assert_int_equal(cs_sequence_poll(q, NULL), 0);
    return q;
}

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
    assert_int_equal(look_up(s, NULL, ids, 40).tokens_device, 40);
    assert_int_equal(f.n_written, 4);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

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
    assert_int_equal(st.disk_spans, f.n_records);
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

static void a_bad_read_quarantines_the_span_until_it_is_published_again(void **state)
{
    (void)state;
    static const struct {
        enum tier_result result;
        enum cs_miss miss;
    } cases[] = {{TIER_EIO, CS_MISS_IO},
                 {TIER_CORRUPT_HEADER, CS_MISS_CORRUPT},
                 {TIER_CORRUPT_TOKENS, CS_MISS_CORRUPT},
                 {TIER_CORRUPT_PAYLOAD, CS_MISS_CORRUPT}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = tiny_config(24);
        struct cs_store *s = fake_open(&f, &c);
        uint32_t ids[37];
        make_ids(ids, 37, 37, 0);
        store_durably(&f, s, ids, 36); /* spans A B C */
        empty_device(s);
        struct cs_sequence *q = open_loading(s, ids, 37);
        fake_finish_read(&f, 2, TIER_OK);
        fake_finish_read(&f, 1, cases[k].result);       /* B */
        assert_int_equal(cs_sequence_poll(q, NULL), 0); /* A may still come */
        fake_finish_reads(&f, TIER_OK);
        struct cs_reuse r = wait_settled(q);
        assert_int_equal(r.tokens_disk, 12);
        assert_int_equal(r.miss, cases[k].miss);
        check_pages(q, ids, 3, 0);
        struct cs_stats st = stats_of(s);
        assert_int_equal(st.quarantined, 1);
        assert_int_equal(f.n_records, 2);
        assert_int_equal(st.disk_spans, 2);

        /* B is out of reach, and so is C behind it. */
        r = look_up(s, NULL, ids, 36);
        assert_int_equal(r.tokens_device, 12);
        assert_int_equal(r.miss, cases[k].miss);
        /* Computed and published again: written anew, and C is back without a read. */
        assert_int_equal(cs_sequence_grow(q, 24), CS_OK);
        fill_pages(q, ids, 3, 6, 0);
        assert_int_equal(cs_sequence_publish(q, ids, 24, NULL, 0), CS_OK);
        cs_sequence_close(q);
        fake_finish_writes(&f, TIER_OK);
        assert_int_equal(f.n_records, 3);
        assert_int_equal(look_up(s, NULL, ids, 36).tokens_device, 36);
        check_balance(s);
        cs_close(s, 0);
        s = fake_open(&f, &c);
        q = open_loading(s, ids, 37);
        fake_finish_reads(&f, TIER_OK);
        assert_int_equal(wait_settled(q).tokens_disk, 36);
        check_pages(q, ids, 9, 0);
        cs_sequence_close(q);
        cs_close(s, 0);
        fake_free(&f);
    }
}

static void recomputed_pages_take_their_place_again_without_a_write(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[25];
    struct cs_reuse r;
    make_ids(ids, 25, 25, 0);
    /* Opened while nothing is stored, so that it computes everything. */
    struct cs_sequence *q = open_settled(s, NULL, ids, 25, &r);
    store_durably(&f, s, ids, 24);
    struct cs_sequence *hog = open_settled(s, NULL, ids, 1, &r);
    assert_int_equal(cs_sequence_grow(hog, 16 * PT), CS_OK);
    cs_sequence_close(hog);
    assert_int_equal(cs_sequence_grow(q, 24), CS_OK);
    fill_pages(q, ids, 0, 6, 0);
    assert_int_equal(cs_sequence_publish(q, ids, 24, NULL, 0), CS_OK);
    cs_sequence_close(q);
    assert_int_equal(f.n_writes, 0);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_spans, 2);
    assert_int_equal(st.publish_duplicate_pages, 0);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
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
    struct cs_sequence *q = open_loading(s, ids, 37);
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, 36);
    check_pages(q, ids, 9, 0);
    cs_sequence_close(q);
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

/* A span of three pages that others' paths go on from at its first and its last page: its record and its two
 * last pages go. */
static void a_path_over_a_span_that_lost_its_record_and_its_tail_is_made_whole(void **state)
{
    (void)state;
    for (int live = 0; live < 2; live++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = tiny_config(200);
        struct cs_store *s = fake_open(&f, &c);
        uint32_t a[24], b[24], longer[24];
        make_ids(a, 24, 24, 0);
        make_ids(b, 24, PT, 1);
        make_ids(longer, 24, 24, 0);
        store_durably(&f, s, a, 20); /* pages 0 to 2 and 3, 4 */
        store_durably(&f, s, b, 20); /* leaves behind page 0 */
        struct cs_reuse reuse;
        struct cs_sequence *other = open_settled(s, NULL, longer, live ? 3 * PT : 1, &reuse);
        pthread_mutex_lock(&s->lock);
        for (uint64_t k = 0; k <= s->index.bucket_mask; k++)
            for (struct span *sp = s->index.buckets[k]; sp; sp = sp->hash_next) {
                room_drop_record_locked(s, sp); /* as a small budget would */
                index_requeue_locked(&s->index, sp);
            }
        struct span *root = NULL;
        for (uint64_t k = 0; k <= s->index.bucket_mask && !root; k++)
            for (struct span *sp = s->index.buckets[k]; sp && !root; sp = sp->hash_next)
                root = sp->parent ? NULL : sp;
        assert_non_null(root);
        index_detach_locked(&s->index, root, 2);
        if (!live)
            index_detach_locked(&s->index, root, 1);
        index_requeue_locked(&s->index, root);
        pthread_mutex_unlock(&s->lock);
        assert_int_equal(f.n_records, 0);
        /* b again: it uses only what is left of the span. */
        store_durably(&f, s, b, 20);
        assert_int_equal(stats_of(s).pending_bytes, 0);
        assert_int_equal(stats_of(s).dropped_undurable, 0);
        recount(s);
        /* a again: its own tail is there, what lay between is computed anew. */
        cs_sequence_close(other);
        store_durably(&f, s, a, 20);
        recount(s);
        cs_close(s, 0);
        s = fake_open(&f, &c);
        for (int path = 0; path < 2; path++) {
            struct cs_sequence *q;
            assert_int_equal(cs_sequence_open(s, NULL, path ? a : b, 21, &q), CS_OK);
            fake_finish_reads(&f, TIER_OK);
            reuse = wait_settled(q);
            assert_int_equal(reuse.tokens_disk + reuse.tokens_device, 20);
            check_pages(q, path ? a : b, 5, 0);
            cs_sequence_close(q);
        }
        cs_close(s, 0);
        fake_free(&f);
    }
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

static void failed_writes_leave_the_device_copy_and_are_tried_again_by_the_next_turn(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[49];
    struct cs_reuse r;
    make_ids(ids, 49, 49, 0);
    struct cs_sequence *q = open_settled(s, NULL, ids, 49, &r);
    assert_int_equal(cs_sequence_grow(q, 48), CS_OK);
    fill_pages(q, ids, 0, 12, 0);
    struct cs_note note = {.key = {4, 4}, .data = "n", .len = 1};
    assert_int_equal(cs_sequence_publish(q, ids, 24, &note, 1), CS_OK);
    while (f.n_writes > 0)
        fake_finish_write(&f, TIER_EIO);
    assert_int_equal(f.n_records, 0);
    assert_int_equal(f.n_notes, 0);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.pending_bytes, 0);
    assert_int_equal(st.disk_spans, 0);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
    assert_int_equal(cs_sequence_publish(q, ids, 48, NULL, 0), CS_OK);
    cs_sequence_close(q);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_records, 4);
    assert_int_equal(f.n_notes, 1);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_int_equal(stats_of(s).disk_spans, 4);
    assert_int_equal(stats_of(s).notes, 1);
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
    assert_int_equal(f.n_records, 1);
    assert_int_equal(stats_of(s).disk_spans, 1);
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

static void closing_with_writes_and_reads_under_way_ends_them(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13], b[61];
    make_ids(a, 13, 0, 1);
    make_ids(b, 61, 0, 2);
    store_durably(&f, s, a, 12);
    empty_device(s);
    cs_sequence_close(open_loading(s, a, 13));
    round_trip(s, NULL, b, 60);
    assert_true(f.n_writes > 0);
    assert_int_equal(f.n_reads, 1);
    cs_close(s, 1);
    assert_int_equal(f.n_writes + f.n_reads, 0);
    assert_int_equal(f.n_records, 1);
    fake_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicted_pages_come_back_from_disk_in_one_submission),
        cmocka_unit_test(pages_being_written_stay_and_are_bounded),
        cmocka_unit_test(a_restart_finds_what_was_durable_and_its_notes),
        cmocka_unit_test(rows_whose_parents_are_missing_are_deleted_at_open),
        cmocka_unit_test(two_sequences_share_one_load),
        cmocka_unit_test(an_abandoned_load_is_cancelled_and_can_be_joined_again),
        cmocka_unit_test(behind_the_deadline_the_verified_part_is_used_and_late_bytes_land_nowhere_else),
        cmocka_unit_test(a_bad_read_quarantines_the_span_until_it_is_published_again),
        cmocka_unit_test(recomputed_pages_take_their_place_again_without_a_write),
        cmocka_unit_test(the_disk_budget_evicts_leaves_first_and_is_never_exceeded),
        cmocka_unit_test(a_path_over_a_span_that_lost_its_record_and_its_tail_is_made_whole),
        cmocka_unit_test(times_of_use_from_the_future_count_as_now),
        cmocka_unit_test(a_disk_full_of_writes_under_way_is_waited_for),
        cmocka_unit_test(a_span_too_large_for_the_disk_is_dropped_and_counted),
        cmocka_unit_test(failed_writes_leave_the_device_copy_and_are_tried_again_by_the_next_turn),
        cmocka_unit_test(no_space_is_answered_by_evicting_and_one_more_try),
        cmocka_unit_test(durable_spans_leave_the_device_before_others),
        cmocka_unit_test(a_restore_into_a_full_arena_takes_what_fits),
        cmocka_unit_test(closing_with_writes_and_reads_under_way_ends_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
