/* Records of another model: not reported, kept while there is room, and in which order they leave. */
#include "cachestore/key.h"
#include "tests/disk/harness.h"

/* Another model's records are not reported, count in the budget, and leave when a write needs their room. */
static void test_foreign_records_stay_until_room_is_needed(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    int64_t all = tier_disk_free_bytes(r.tier);
    uint32_t n = 0;
    while (tier_disk_free_bytes(r.tier) >= (int64_t)(2 * bytes)) {
        struct cs_note note = {.key = {n, 1}, .data = "n", .len = 1};
        struct note_record later = {.owner = put(&r, n++, 12), .notes = &note, .n_notes = 1};
        later.id = tier_disk_next_id(r.tier);
        assert_int_equal(tier_disk_write_notes(r.tier, &later), CS_OK);
    }
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 0);
    assert_int_equal(rig_stats(&r).records_foreign, n);
    assert_int_equal(tier_disk_free_bytes(r.tier), all);
    for (uint32_t i = 0; i < 10; i++)
        put(&r, 1000 + i, 12);
    uint64_t left = rig_stats(&r).records_foreign;
    assert_true(left < n && left + 10 >= n - 2);
    assert_int_equal(r.n_notes_seen, 0);
    rig_close(&r);
    assert_int_equal(rig_rows(&r, CATALOG_NOTES), left); /* notes left with their spans */
    rig_open(&r);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, left);
    assert_null(find_seen(&r, 0)); /* the oldest left first */
    assert_non_null(find_seen(&r, n - 1));
    assert_int_equal(get(&r, find_seen(&r, n - 1)->id, n - 1, 12), TIER_OK);
    rig_destroy(&r);
}

/* Opened with less room, the store gives it back before it serves. */
static void test_foreign_records_leave_a_lowered_budget(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = rig_fill(&r, 0, 12);
    rig_close(&r);
    r.config.fingerprint[0] ^= 1;
    r.config.disk_bytes /= 2;
    rig_open(&r);
    tier_disk_settle(r.tier, 60000);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_true(r.n_seen > n / 4 && r.n_seen < n);
    assert_true(tier_disk_free_bytes(r.tier) >= 0); /* and no more than was needed */
    assert_true(tier_disk_free_bytes(r.tier) < (int64_t)(2 * bytes));
    assert_non_null(find_seen(&r, n - 1));
    assert_int_equal(get(&r, find_seen(&r, n - 1)->id, n - 1, 12), TIER_OK);
    rig_destroy(&r);
}

static void put_child(struct rig *r, uint32_t number, const struct span_io *parent, uint32_t ordinal,
                      int64_t used_unix)
{
    struct span_io *s = span_make(r, number, 12);
    s->w.record.used_unix = s->w.record.created_unix = used_unix;
    struct cs_key key = parent->w.record.key;
    for (uint32_t i = 1; i <= ordinal; i++)
        key = key_next(key, parent->ids + (size_t)i * PT, PT);
    s->w.record.parent = key;
    s->w.record.first_position = (ordinal + 1) * PT;
    span_write(s);
    tier_disk_kick(r->tier);
    assert_int_equal(span_wait(s), TIER_OK);
    span_free(s);
}

/* The beginning that conversations share is the oldest record and must be the last to go: without it the
 * others lead nowhere. */
static void test_foreign_parents_leave_after_their_children(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct span_io *root = span_make(&r, 0, 12);
    span_write(root);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(root), TIER_OK);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = 1;
    for (; tier_disk_free_bytes(r.tier) >= (int64_t)(2 * bytes); n++)
        put_child(&r, n, root, n % 12, 2000 + n);
    span_free(root);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    for (uint32_t i = 0; i < 10; i++)
        put(&r, 1000 + i, 12);
    uint64_t left = rig_stats(&r).records_foreign;
    assert_true(left < n);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, left);
    assert_non_null(find_seen(&r, 0));
    assert_null(find_seen(&r, 1)); /* of its children the oldest left first */
    assert_non_null(find_seen(&r, n - 1));
    rig_destroy(&r);
}

/* The order in which they leave comes to one that is to be deleted already and waits in the inbox. */
static void test_one_that_somebody_else_deletes_is_deleted_once(void **state)
{
    (void)state;
    struct disk_record theirs = {.bytes = CHUNK, .state = REC_DURABLE, .foreign = true},
                       next = {.bytes = CHUNK, .state = REC_DURABLE, .foreign = true}, in_inbox = {0};
    struct disk_record *order[] = {&theirs, &next};
    struct tier_disk t = {.foreign = order, .n_foreign = 2};
    atomic_store(&theirs.deleted, true);
    theirs.list_next = &in_inbox;
    foreign_evict(&t, CHUNK);
    assert_ptr_equal(theirs.list_next, &in_inbox);
    assert_ptr_equal(t.row_deletes, &next);
    assert_null(next.list_next);
    assert_int_equal(t.n_dying, 1);
    tier_delete_take(&t, &theirs);
    assert_ptr_equal(t.row_deletes, &theirs);
    assert_ptr_equal(theirs.list_next, &next);
    assert_int_equal(t.n_dying, 2);
    foreign_evict(&t, CHUNK); /* none is left */
    assert_int_equal(t.n_dying, 2);
}

/* Between two looks of the I/O thread into its inbox: a write that ends at once, in whose completion all
 * records of the other model are deleted, and behind it one that needs their room. */
struct race {
    struct rig *r;
    struct tier_write first;
    struct span_io *second;
    const struct record_id *foreign;
    uint32_t n_foreign;
};

static void delete_the_foreign(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct race *race = ctx;
    (void)w;
    assert_int_equal(result, TIER_EIO); /* its id is another record's */
    for (uint32_t i = 0; i < race->n_foreign; i++)
        tier_disk_delete(race->r->tier, race->foreign[i]);
}

static void queue_both(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct race *race = ctx;
    assert_int_equal(result, TIER_OK);
    race->first = *w;
    race->first.durable = delete_the_foreign;
    tier_disk_write(race->r->tier, &race->first);
    span_write(race->second);
    tier_disk_kick(race->r->tier);
}

static void test_room_that_foreign_records_in_the_inbox_give_is_waited_for(void **state)
{
    (void)state;
    enum { N = 400 };
    struct record_id foreign[N];
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = 0;
    for (; tier_disk_free_bytes(r.tier) >= (int64_t)(2 * bytes); n++) {
        assert_true(n < N);
        foreign[n] = put(&r, n, 12);
    }
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    struct race race = {.r = &r, .foreign = foreign, .n_foreign = n, .second = span_make(&r, 1001, 12)};
    struct span_io *s = span_make(&r, 1000, 12);
    s->w.record.id = tier_disk_next_id(r.tier);
    s->w.pages = s->pages;
    s->w.durable = queue_both;
    s->w.ctx = &race;
    tier_disk_write(r.tier, &s->w);
    tier_disk_kick(r.tier);
    enum tier_result result = span_wait(race.second);
    assert_true(wait_until(deletes_done, &r));
    span_free(s);
    span_free(race.second);
    assert_int_equal(result, TIER_OK);
    assert_int_equal(rig_stats(&r).disk_spans, 2);
    assert_int_equal(rig_stats(&r).records_foreign, 0);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foreign_records_stay_until_room_is_needed),
        cmocka_unit_test(test_foreign_records_leave_a_lowered_budget),
        cmocka_unit_test(test_foreign_parents_leave_after_their_children),
        cmocka_unit_test(test_one_that_somebody_else_deletes_is_deleted_once),
        cmocka_unit_test(test_room_that_foreign_records_in_the_inbox_give_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
