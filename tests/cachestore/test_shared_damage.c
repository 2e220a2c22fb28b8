/*
 * A damaged record that several paths share: one of them comes back and leaves it in the middle, so that its
 * first pages are stored anew. What hangs on the others is on disk still, and outlives restarts.
 */
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <string.h>

enum { N = 36 }; /* three spans of three pages */

/* Reads the path whose span `bad` is damaged. */
static void find_damage(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, uint32_t bad)
{
    struct cs_sequence *q = open_loading(s, ids, N + 1);
    size_t i = 0;
    while (i < f->n_reads && f->reads[i]->record.first_position != bad * SPAN_PAGES * PT)
        i++;
    assert_true(i < f->n_reads);
    fake_finish_read(f, i, TIER_CORRUPT_PAYLOAD);
    fake_finish_reads(f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, bad * SPAN_PAGES * PT);
    cs_sequence_close(q);
    assert_int_equal(s->n_husks, 1);
}

static struct cs_store *restart(struct fake_tier *f, struct cs_store *s, const struct cs_config *c)
{
    recount(s);
    assert_int_equal(records_known(s), f->n_records);
    cs_close(s, 0);
    s = fake_open(f, c);
    recount(s);
    assert_int_equal(records_known(s), f->n_records);
    return s;
}

/* Publishes n ids whose path is read from disk as far as it is there; tokens reused. */
static uint32_t round_trip_over_disk(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, uint32_t n)
{
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, NULL, ids, n, &q), CS_OK);
    fake_finish_reads(f, TIER_OK);
    (void)wait_settled(q);
    cs_sequence_close(q);
    return round_trip(s, NULL, ids, n);
}

/* All of `a` is found once the pages of its damaged span are published again: one record is written. */
static void check_comes_back(struct fake_tier *f, struct cs_store *s, const struct cs_config *c,
                             const uint32_t *a, uint32_t bad, size_t n_records)
{
    uint32_t n = (bad + 1) * SPAN_PAGES * PT;
    assert_true(round_trip_over_disk(f, s, a, n) < n);
    assert_int_equal(f->n_writes, 1);
    fake_finish_writes(f, TIER_OK);
    assert_int_equal(f->n_records, n_records);
    assert_int_equal(s->n_husks, 0);
    empty_device(s);
    check_from_disk(f, s, a, N);
    s = restart(f, s, c);
    check_from_disk(f, s, a, N);
    cs_close(s, 0);
    fake_free(f);
}

static void what_hangs_behind_the_tail_of_a_damaged_record_outlives_a_restart(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < 2; bad++)
        for (uint32_t shared = bad * SPAN_PAGES + 1; shared < (bad + 1) * SPAN_PAGES; shared++) {
            struct fake_tier f = {.allow_parent_delete = true};
            struct cs_config c = tiny_config(48);
            struct cs_store *s = fake_open(&f, &c);
            uint32_t a[N + 1], b[N + 1];
            make_ids(a, N + 1, N + 1, 0);
            make_ids(b, N + 1, (size_t)shared * PT, 1);
            store_durably(&f, s, a, N);
            empty_device(s);
            find_damage(&f, s, a, bad);
            store_durably(&f, s, b, (shared + 4) * PT);
            size_t n = f.n_records;
            assert_int_equal(n, 3 + 1 + 2); /* a's, the shared pages, what b has behind them */
            for (int i = 0; i < 3; i++) {
                s = restart(&f, s, &c);
                assert_int_equal(f.n_records, n);
                check_from_disk(&f, s, b, (shared + 4) * PT);
            }
            check_comes_back(&f, s, &c, a, bad, n); /* the tail for the damaged one */
        }
}

/* First one page of the record is shared, then two. */
static void a_damaged_record_may_be_left_in_the_middle_twice(void **state)
{
    (void)state;
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[N + 1], b[N + 1], d[N + 1];
    make_ids(a, N + 1, N + 1, 0);
    make_ids(b, N + 1, PT, 1);
    make_ids(d, N + 1, 2 * PT, 2);
    store_durably(&f, s, a, N);
    empty_device(s);
    find_damage(&f, s, a, 0);
    store_durably(&f, s, b, 24);
    store_durably(&f, s, d, 24);
    size_t n = f.n_records;
    assert_int_equal(n, 3 + 3 + 3);
    for (int i = 0; i < 3; i++) {
        s = restart(&f, s, &c);
        assert_int_equal(f.n_records, n);
        check_from_disk(&f, s, b, 24);
        empty_device(s);
        check_from_disk(&f, s, d, 24);
    }
    check_comes_back(&f, s, &c, a, 0, n);
}

/* Once nothing hangs on the tail any more, the damaged record goes, too; not while its first pages are on no
 * disk and something hangs on those. */
static void a_damaged_record_goes_with_the_last_that_needs_it(void **state)
{
    (void)state;
    for (int written = 0; written < 2; written++) {
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = tiny_config(64);
        struct cs_store *s = fake_open(&f, &c);
        uint32_t a[N + 1], b[N + 1];
        make_ids(a, N + 1, N + 1, 0);
        make_ids(b, N + 1, PT, 1);
        store_durably(&f, s, a, N);
        store_durably(&f, s, b, 24); /* a's root and two */
        empty_device(s);
        assert_int_equal(f.n_records, 5);
        find_damage(&f, s, a, 0);
        round_trip(s, NULL, b, 24);
        fake_finish_writes(&f, written ? TIER_OK : TIER_EIO);
        assert_int_equal(f.n_records, 5 + (size_t)written);
        recount(s);
        pthread_mutex_lock(&s->lock);
        for (uint64_t k = 0; k <= s->index.bucket_mask; k++) /* what a has behind its root, from its end */
            for (struct span *sp = s->index.buckets[k], *next; sp; sp = next) {
                next = sp->hash_next;
                if (sp->first_position == 24 && memcmp(sp->ids, a + 24, sizeof *a * PT) == 0) {
                    struct span *parent = sp->parent;
                    room_drop_record_locked(s, sp, CS_GONE_EVICTED);
                    room_settle_span_locked(s, sp);
                    room_drop_record_locked(s, parent, CS_GONE_EVICTED);
                    room_settle_span_locked(s, parent);
                    k = s->index.bucket_mask;
                    break;
                }
            }
        pthread_mutex_unlock(&s->lock);
        assert_int_equal(s->n_husks, !written);
        assert_int_equal(f.n_records, 3);
        s = restart(&f, s, &c);
        assert_int_equal(f.n_records, 3);
        if (!written) { /* the root is damaged still */
            find_damage(&f, s, b, 0);
            round_trip(s, NULL, b, 24);
            fake_finish_writes(&f, TIER_OK);
            s = restart(&f, s, &c);
        }
        check_from_disk(&f, s, b, 24);
        cs_close(s, 0);
        fake_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_hangs_behind_the_tail_of_a_damaged_record_outlives_a_restart),
        cmocka_unit_test(a_damaged_record_may_be_left_in_the_middle_twice),
        cmocka_unit_test(a_damaged_record_goes_with_the_last_that_needs_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
