/* Notes of spans: they come with their span or later, and live no longer than it. */
#include "tests/disk/harness.h"

#include <stdlib.h>

static void test_notes_of_a_write_are_in_its_row(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    char text[] = "hello";
    struct cs_note note = {.key = {1, 2}, .data = text, .len = 5};
    struct record_id owner = put_with_notes(&r, 1, 4, &note, 1);
    text[0] = 'x';
    put(&r, 2, 4);
    assert_int_equal(rig_stats(&r).catalog_rows, 2);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2);
    assert_int_equal(r.n_notes_seen, 1);
    assert_string_equal(r.note_text, "hello");
    assert_true(record_id_equal(r.note_owner, owner) && record_id_equal(r.note_row, owner));
    assert_int_equal(get(&r, owner, 1, 4), TIER_OK);
    tier_disk_delete(r.tier, owner);
    rig_reopen(&r);
    assert_int_equal(r.n_notes_seen, 0);
    rig_destroy(&r);
}

static void test_later_notes_live_with_their_span(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id owner = put(&r, 1, 4), other = put(&r, 2, 4);
    struct cs_note notes[2] = {{.key = {1, 2}, .data = "hello", .len = 5},
                               {.key = {3, 4}, .data = "", .len = 0}};
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = owner, .notes = notes, .n_notes = 2};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    struct note_record more = {.id = tier_disk_next_id(r.tier), .owner = other, .notes = notes, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &more), CS_OK);
    more.id = tier_disk_next_id(r.tier);
    assert_int_equal(tier_disk_write_notes(r.tier, &more), CS_OK);
    struct note_record lost = {
        .id = tier_disk_next_id(r.tier), .owner = {1, 1}, .notes = notes, .n_notes = 2};
    assert_int_equal(tier_disk_write_notes(r.tier, &lost), CS_ENOTFOUND);
    assert_true(tier_disk_pending_bytes(r.tier) > 0);
    tier_disk_kick(r.tier);
    assert_true(wait_until(nothing_pending, &r));
    rig_reopen(&r);
    assert_int_equal(r.n_notes_seen, 4);
    tier_disk_delete_notes(r.tier, owner, n.id);
    tier_disk_delete(r.tier, other); /* with both rows of its notes, which were there before this open */
    rig_close(&r);
    assert_int_equal(rig_rows(&r, CATALOG_NOTES), 0);
    assert_int_equal(rig_rows(&r, CATALOG_RECORD), 1);
    rig_open(&r);
    assert_int_equal(r.n_notes_seen, 0);
    rig_destroy(&r);
}

/* Deletes overtake what waits for the next flush. */
static void test_notes_of_a_span_deleted_at_once_leave_no_row(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.flush_interval_ms = 60000;
    rig_open(&r);
    struct record_id owner = put(&r, 1, 4);
    struct cs_note note = {.key = {1, 2}, .data = "hello", .len = 5};
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = owner, .notes = &note, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    tier_disk_delete(r.tier, owner);
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_ENOTFOUND);
    put(&r, 2, 4);
    assert_true(wait_until(nothing_pending, &r));
    rig_close(&r);
    assert_int_equal(rig_rows(&r, CATALOG_NOTES), 0);
    rig_destroy(&r);
}

/* What does not fit into the catalogue's share costs the notes, not the span. */
static void test_notes_beyond_the_catalogues_share_are_counted_and_said_once(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    enum { N = 5, LEN = 1 << 20 }; /* the share is 4 MiB */
    char *bytes = calloc(1, LEN);
    struct cs_note notes[N];
    for (uint32_t i = 0; i < N; i++)
        notes[i] = (struct cs_note){.key = {i, 1}, .data = bytes, .len = LEN};
    put_with_notes(&r, 1, 4, notes, 1);
    assert_int_equal(rig_stats(&r).dropped_notes, 0);
    struct record_id last = put_with_notes(&r, 2, 4, notes, N);
    assert_int_equal(rig_stats(&r).dropped_notes, N);
    struct note_record later = {.id = tier_disk_next_id(r.tier), .owner = last, .notes = notes, .n_notes = N};
    assert_int_equal(tier_disk_write_notes(r.tier, &later), CS_EFULL);
    assert_int_equal(rig_stats(&r).dropped_notes, 2 * N);
    put(&r, 3, 4);
    assert_int_equal(r.n_warnings, 1);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 3);
    assert_int_equal(r.n_notes_seen, 1);
    assert_int_equal(get(&r, last, 2, 4), TIER_OK);
    free(bytes);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notes_of_a_write_are_in_its_row),
        cmocka_unit_test(test_later_notes_live_with_their_span),
        cmocka_unit_test(test_notes_of_a_span_deleted_at_once_leave_no_row),
        cmocka_unit_test(test_notes_beyond_the_catalogues_share_are_counted_and_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
