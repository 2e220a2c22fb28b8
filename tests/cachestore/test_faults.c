/* What goes wrong on disk: bad reads, failed writes, records lost under a path, closing in the middle. */
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include "cachestore/control.h"
#include "cachestore/key.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static time_t clock_ahead_s;

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec + clock_ahead_s;
    return now.tv_sec + clock_ahead_s;
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
        assert_int_equal(f.n_records, 3); /* that of B stays for C */
        assert_int_equal(records_known(s), 3);

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
        check_from_disk(&f, s, ids, 36);
        cs_close(s, 0);
        fake_free(&f);
    }
}

/* Read, one of them badly: what is read behind it comes back unread. */
static struct cs_reuse read_with_damage(struct fake_tier *f, struct cs_store *s, const uint32_t *ids,
                                        size_t bad)
{
    struct cs_sequence *q = open_loading(s, ids, 37);
    assert_true(f->n_reads > bad);
    fake_finish_read(f, bad, TIER_CORRUPT_PAYLOAD);
    fake_finish_reads(f, TIER_OK);
    struct cs_reuse r = wait_settled(q);
    cs_sequence_close(q);
    return r;
}

static void what_hangs_on_a_damaged_record_outlives_a_restart(void **state)
{
    (void)state;
    for (size_t bad = 0; bad < 2; bad++) { /* the root, one in the middle */
        struct fake_tier f = {.allow_parent_delete = true};
        struct cs_config c = tiny_config(24);
        struct cs_store *s = fake_open(&f, &c);
        uint32_t ids[37];
        make_ids(ids, 37, 37, 0);
        store_durably(&f, s, ids, 36); /* three spans */
        for (int restart = 0; restart < 3; restart++) {
            cs_close(s, 0);
            assert_int_equal(f.n_records, 3);
            s = fake_open(&f, &c);
            assert_int_equal(read_with_damage(&f, s, ids, bad).tokens_disk, 12 * bad);
            assert_int_equal(records_known(s), 3);
            recount(s);
        }
        /* Stored anew: the damaged one is not deleted before the new one is durable. */
        assert_int_equal(round_trip(s, NULL, ids, 36), 12 * bad);
        assert_int_equal(f.n_writes, 1);
        size_t n_deleted = f.n_deleted;
        if (bad == 0) { /* the first time it cannot be written */
            fake_finish_writes(&f, TIER_EIO);
            empty_device(s);
            assert_int_equal(round_trip(s, NULL, ids, 36), 0);
            assert_int_equal(f.n_writes, 1);
        }
        assert_int_equal(f.n_deleted, n_deleted);
        fake_finish_writes(&f, TIER_OK);
        assert_int_equal(f.n_deleted, n_deleted + 1);
        assert_int_equal(f.n_records, 3);
        assert_int_equal(records_known(s), 3);
        check_balance(s);
        cs_close(s, 0);
        s = fake_open(&f, &c);
        check_from_disk(&f, s, ids, 36);
        cs_close(s, 0);
        fake_free(&f);
    }
}

static void a_damaged_record_goes_with_the_last_that_hangs_on_it(void **state)
{
    (void)state;
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = tiny_config(24);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[37];
    make_ids(ids, 37, 37, 0);
    store_durably(&f, s, ids, 36);
    empty_device(s);
    (void)read_with_damage(&f, s, ids, 0);
    empty_device(s);
    assert_int_equal(f.n_records, 3);
    pthread_mutex_lock(&s->lock);
    assert_true(room_evict_disk_locked(s, 1)); /* the last */
    assert_int_equal(f.n_records, 2);
    assert_true(room_evict_disk_locked(s, 1));
    assert_int_equal(f.n_records, 0);
    assert_int_equal(s->index.n_spans, 0);
    pthread_mutex_unlock(&s->lock);
    /* One on which nothing hangs goes at once. */
    store_durably(&f, s, ids, 36);
    empty_device(s);
    (void)read_with_damage(&f, s, ids, 2);
    assert_int_equal(f.n_records, 2);
    recount(s);
    cs_close(s, 0);
    fake_free(&f);
}

/* A span in memory only that begins at this position. */
static struct span *undurable_at_locked(struct cs_store *s, uint32_t position)
{
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (struct span *sp = s->index.buckets[b]; sp; sp = sp->hash_next)
            if (sp->first_position == position && sp->disk == SPAN_DISK_NONE && sp->n_device > 0)
                return sp;
    return NULL;
}

static void a_damaged_record_stays_when_what_is_deleted_beside_is_on_no_disk(void **state)
{
    (void)state;
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = tiny_config(24);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[37], fork[25];
    make_ids(ids, 37, 37, 0);
    for (uint32_t i = 0; i < 25; i++)
        fork[i] = ids[i] + (i < 12 ? 0 : 1);
    store_durably(&f, s, ids, 36);
    empty_device(s);
    (void)read_with_damage(&f, s, ids, 0);
    round_trip(s, NULL, fork, 24);
    fake_finish_writes(&f, TIER_EIO);
    assert_int_equal(records_known(s), 3);
    pthread_mutex_lock(&s->lock);
    struct span *sp = undurable_at_locked(s, 12);
    assert_non_null(sp);
    assert_true(room_purge_locked(s, sp));
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(f.n_records, 3); /* for what hangs there on disk */
    assert_int_equal(records_known(s), 3);
    recount(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void a_replacement_that_could_not_be_written_is_tried_again_by_the_next_turn(void **state)
{
    (void)state;
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[49];
    make_ids(ids, 49, 49, 0);
    store_durably(&f, s, ids, 36);
    empty_device(s);
    (void)read_with_damage(&f, s, ids, 0);
    assert_int_equal(round_trip(s, NULL, ids, 36), 0);
    assert_int_equal(f.n_writes, 1); /* what hangs on it is durable still */
    fake_finish_writes(&f, TIER_EIO);
    assert_int_equal(records_known(s), 3);
    assert_int_equal(round_trip(s, NULL, ids, 48), 36); /* from the device: only the new span is published */
    assert_int_equal(f.n_writes, 2);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_records, 4);
    assert_int_equal(records_known(s), 4);
    recount(s);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    struct cs_sequence *q = open_loading(s, ids, 49);
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, 48);
    check_pages(q, ids, 12, 0);
    cs_sequence_close(q);
    cs_close(s, 0);
    fake_free(&f);
}

/* What was to be written while the store drained is written when that ends, whatever the clock does
 * meanwhile: a path that came then, and one that was there and came again. */
static void what_was_held_back_while_draining_is_written_afterwards(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t before[24], during[24];
    make_ids(before, 24, 0, 1);
    make_ids(during, 24, 0, 2);
    round_trip(s, NULL, before, 24);
    fake_finish_writes(&f, TIER_EIO);
    assert_int_equal(f.n_records, 0);
    for (int on = 0; on < 2; on++)
        cs_drain(s, true);
    clock_ahead_s = -3600;
    round_trip(s, NULL, during, 24);
    round_trip(s, NULL, before, 24);
    assert_int_equal(f.n_writes, 0);
    cs_drain(s, false);
    clock_ahead_s = 0;
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_records, 4);
    assert_int_equal(records_known(s), 4);
    recount(s);
    /* And only once. */
    cs_drain(s, true);
    cs_drain(s, false);
    assert_int_equal(f.n_writes, 0);
    cs_close(s, 0);
    fake_free(&f);
}

static void fake_purge(struct tier_disk *t, struct record_id id)
{
    fake_vtable.delete_span(t, id);
}

/* Every id is a record's. */
static int fake_erase(struct tier_disk *t, struct record_id id, const struct tier_place *place,
                      uint32_t header_bytes)
{
    (void)t, (void)id, (void)place, (void)header_bytes;
    return CS_EBUSY;
}

/* The fake tier as one that can be asked from outside. */
static struct tier_vtable admin_vtable(void)
{
    static const struct tier_admin_vtable admin = {.purge = fake_purge, .erase = fake_erase};
    struct tier_vtable tier = fake_vtable;
    tier.admin = &admin;
    return tier;
}

/* Two spans are on disk, and the record of the first is damaged. */
static void damage_the_root(struct fake_tier *f, struct cs_store *s, const uint32_t *ids)
{
    store_durably(f, s, ids, 24);
    empty_device(s);
    struct cs_sequence *q = open_loading(s, ids, 25);
    fake_finish_read(f, 0, TIER_CORRUPT_PAYLOAD);
    fake_finish_reads(f, TIER_OK);
    (void)wait_settled(q);
    cs_sequence_close(q);
    assert_int_equal(s->n_husks, 1);
    assert_int_equal(f->n_records, 2);
}

/* It is on no listing: who deletes for good finds its header, and names that. */
static void a_damaged_record_is_erased_by_the_name_in_its_header(void **state)
{
    (void)state;
    const struct tier_vtable tier = admin_vtable();
    struct fake_tier f = {.allow_parent_delete = true};
    struct cs_config c = tiny_config(24);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[25];
    struct wire_writer none = {0};
    make_ids(ids, 25, 25, 0);
    damage_the_root(&f, s, ids);
    pthread_mutex_lock(&s->lock);
    s->tier = &tier;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 2; i-- > 0;) { /* the sound one is a span's, and stays */
        struct control_request q = {.command = CONTROL_ERASE,
                                    .record = {f.records[i].record.id.nonce, f.records[i].record.id.sequence},
                                    .header_bytes = PAGE};
        bool sound = f.records[i].record.first_position > 0;
        assert_int_equal(control_answer(s, &q, &none), sound ? CS_EBUSY : CS_OK);
        assert_int_equal(s->n_husks, sound);
    }
    assert_int_equal(f.n_records, 1);
    recount(s);
    cs_close(s, 0);
    fake_free(&f);
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
                room_drop_record_locked(s, sp, CS_GONE_EVICTED); /* as a small budget would */
                index_requeue_locked(&s->index, sp);
            }
        struct span *root = NULL;
        for (uint64_t k = 0; k <= s->index.bucket_mask && !root; k++)
            for (struct span *sp = s->index.buckets[k]; sp && !root; sp = sp->hash_next)
                root = sp->parent ? NULL : sp;
        assert_non_null(root);
        index_detach_locked(&s->index, root, 2, CS_GONE_EVICTED);
        if (!live)
            index_detach_locked(&s->index, root, 1, CS_GONE_EVICTED);
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
    assert_int_equal(records_known(s), 0);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
    assert_int_equal(cs_sequence_publish(q, ids, 48, NULL, 0), CS_OK);
    cs_sequence_close(q);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_records, 4);
    assert_int_equal(f.n_notes, 1);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_int_equal(records_known(s), 4);
    assert_int_equal(stats_of(s).notes, 1);
    cs_close(s, 0);
    fake_free(&f);
}

/* More waits than is written at once. What waits behind a span that failed does not bring it back, or a disk
 * that refuses everything would be asked again and again. */
static void a_disk_that_refuses_everything_is_asked_once_a_turn(void **state)
{
    (void)state;
    static const enum tier_result results[] = {TIER_EIO, TIER_EFULL, TIER_ENOSPC};
    for (size_t k = 0; k < 3; k++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(40); /* an eighth is 5 pages: one span of 3 at a time */
        struct cs_store *s = fake_open(&f, &c);
        uint32_t ids[61];
        struct cs_reuse r;
        make_ids(ids, 61, 61, 0);
        struct cs_sequence *q = open_settled(s, NULL, ids, 61, &r);
        assert_int_equal(cs_sequence_grow(q, 60), CS_OK);
        fill_pages(q, ids, 0, 15, 0);
        for (size_t turn = 1; turn <= 2; turn++) {
            assert_int_equal(cs_sequence_publish(q, ids, 24 + 12 * turn, NULL, 0), CS_OK);
            assert_int_equal(f.n_writes, 1);
            assert_true(stats_of(s).pending_bytes > 3 * PAGE);
            fake_finish_write(&f, results[k]);
            assert_int_equal(f.n_writes, 0);
            assert_int_equal(stats_of(s).pending_bytes, 0);
            assert_int_equal(stats_of(s).dropped_disk_full, results[k] == TIER_EIO ? 0 : turn);
        }
        /* Nothing is lost for good. */
        assert_int_equal(cs_sequence_publish(q, ids, 60, NULL, 0), CS_OK);
        cs_sequence_close(q);
        fake_finish_writes(&f, TIER_OK);
        assert_int_equal(f.n_records, 5);
        recount(s);
        cs_close(s, 0);
        fake_free(&f);
    }
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

/* Puts a record of ids [from, to) before all others: one that was deleted, and whose header was found again.
 */
static void bring_back(struct fake_tier *f, const uint32_t *ids, uint32_t from, uint32_t to)
{
    struct cs_key keys[16];
    const struct cs_tenant nobody = {{0}};
    uint8_t secret[16], fingerprint[32] = {0};
    memset(secret, 42, sizeof secret);
    key_pages(key_seed(secret, fingerprint, &nobody), ids, to / PT, PT, keys);
    size_t n_ids = to - from;
    uint32_t *copy = malloc(n_ids * sizeof *copy);
    memcpy(copy, ids + from, n_ids * sizeof *ids);
    struct fake_record r = {.record = {.id = {.nonce = f->nonce},
                                       .kind = RECORD_SPAN,
                                       .key = keys[from / PT],
                                       .parent = keys[from / PT - 1],
                                       .first_position = from,
                                       .n_pages = (to - from) / PT,
                                       .ids = copy},
                            .bytes = calloc((to - from) / PT, PAGE)};
    f->records = realloc(f->records, (f->n_records + 1) * sizeof *f->records);
    memmove(f->records + 1, f->records, f->n_records++ * sizeof *f->records);
    f->records[0] = r;
    f->allow_parent_delete = true;
}

/* After a rebuild there may be records of pages that were stored anew since, cut in another way. */
static void a_record_that_came_back_does_not_stand_before_newer_ones(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[25];
    make_ids(ids, 25, 25, 0);
    store_durably(&f, s, ids, 24); /* spans of 0..12 and 12..24 */
    cs_close(s, 0);
    assert_int_equal(f.n_records, 2);
    bring_back(&f, ids, 8, 16);
    s = fake_open(&f, &c);
    assert_int_equal(f.n_records, 2);
    check_from_disk(&f, s, ids, 24);
    recount(s);
    cs_close(s, 0);
    fake_free(&f);
}

/* Longer than the span that has its first page now: what is behind that stands there, too, or nothing leads
 * on from it. */
static void a_longer_record_that_came_back_stands_for_nothing(void **state)
{
    (void)state;
    for (int stored = 0; stored < 2; stored++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(64);
        struct cs_store *s = fake_open(&f, &c);
        uint32_t ids[37];
        make_ids(ids, 37, 37, 0);
        store_durably(&f, s, ids, 12);
        store_durably(&f, s, ids, 16);
        if (stored)
            store_durably(&f, s, ids, 28);
        cs_close(s, 0);
        size_t n = f.n_records;
        bring_back(&f, ids, 12, 24);
        bring_back(&f, ids, 28 + PT, 36); /* of no use, so that all are looked through */
        s = fake_open(&f, &c);
        assert_int_equal(f.n_records, n);
        assert_int_equal(s->n_husks, 0);
        check_from_disk(&f, s, ids, stored ? 28 : 16);
        recount(s);
        cs_close(s, 0);
        fake_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_read_quarantines_the_span_until_it_is_published_again),
        cmocka_unit_test(what_hangs_on_a_damaged_record_outlives_a_restart),
        cmocka_unit_test(a_damaged_record_goes_with_the_last_that_hangs_on_it),
        cmocka_unit_test(a_damaged_record_stays_when_what_is_deleted_beside_is_on_no_disk),
        cmocka_unit_test(a_replacement_that_could_not_be_written_is_tried_again_by_the_next_turn),
        cmocka_unit_test(a_damaged_record_is_erased_by_the_name_in_its_header),
        cmocka_unit_test(recomputed_pages_take_their_place_again_without_a_write),
        cmocka_unit_test(a_path_over_a_span_that_lost_its_record_and_its_tail_is_made_whole),
        cmocka_unit_test(failed_writes_leave_the_device_copy_and_are_tried_again_by_the_next_turn),
        cmocka_unit_test(a_disk_that_refuses_everything_is_asked_once_a_turn),
        cmocka_unit_test(closing_with_writes_and_reads_under_way_ends_them),
        cmocka_unit_test(a_record_that_came_back_does_not_stand_before_newer_ones),
        cmocka_unit_test(a_longer_record_that_came_back_stands_for_nothing),
        cmocka_unit_test(what_was_held_back_while_draining_is_written_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
