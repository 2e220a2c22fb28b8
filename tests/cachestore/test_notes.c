/* Notes: found by key from any thread, the latest wins, gone with their path, inside the index's budget. */
#include "tests/cachestore/fake_tier.h"

#include <stdlib.h>
#include <string.h>

static bool has_note(struct cs_store *s, uint64_t key, const char *want)
{
    void *data;
    uint32_t len;
    int rc = cs_note_get(s, (struct cs_key){key, 9}, &data, &len);
    if (rc == CS_ENOTFOUND)
        return false;
    assert_int_equal(rc, CS_OK);
    assert_int_equal(len, strlen(want));
    assert_memory_equal(data, want, len);
    free(data);
    return true;
}

static struct cs_note note_of(uint64_t key, const char *text)
{
    return (struct cs_note){.key = {key, 9}, .data = text, .len = (uint32_t)strlen(text)};
}

/* Publishes n ids with one note. */
static void publish_with(struct cs_store *s, const uint32_t *ids, size_t n, struct cs_note note)
{
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, NULL, ids, n, &r);
    size_t had = cs_sequence_n_pages(q);
    assert_int_equal(cs_sequence_grow(q, n), CS_OK);
    fill_pages(q, ids, had, n / PT, 0);
    assert_int_equal(cs_sequence_publish(q, ids, n, &note, 1), CS_OK);
    cs_sequence_close(q);
}

static void the_latest_note_of_a_key_wins(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(64);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[13], b[13];
    make_ids(a, 13, 0, 1);
    make_ids(b, 13, 0, 2);
    uint64_t before = stats_of(s).index_bytes;
    publish_with(s, a, 12, note_of(1, "first"));
    publish_with(s, b, 12, note_of(1, "second, and longer"));
    assert_true(has_note(s, 1, "second, and longer"));
    assert_false(has_note(s, 2, ""));
    assert_int_equal(stats_of(s).notes, 1);
    publish_with(s, a, 12, note_of(1, "")); /* adds no span; empty is a note as well */
    assert_true(has_note(s, 1, ""));
    assert_int_equal(stats_of(s).notes, 1);
    assert_true(stats_of(s).index_bytes > before);
    cs_close(s, 0);
}

static void a_note_lives_and_dies_with_its_span(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(9);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[25], b[13], other[37];
    make_ids(a, 25, 25, 0);
    make_ids(b, 13, 0, 2);
    make_ids(other, 37, 0, 3);
    publish_with(s, a, 24, note_of(1, "at the leaf"));
    publish_with(s, a, 12, note_of(2, "at the root"));
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, NULL, other, 1, &r);
    assert_int_equal(cs_sequence_grow(q, 5 * PT), CS_OK); /* two pages of the leaf must go */
    assert_true(has_note(s, 1, "at the leaf"));
    assert_int_equal(cs_sequence_grow(q, 6 * PT), CS_OK); /* and the last one */
    assert_false(has_note(s, 1, ""));
    assert_true(has_note(s, 2, "at the root"));
    assert_int_equal(cs_sequence_grow(q, 9 * PT), CS_OK);
    assert_false(has_note(s, 2, ""));
    cs_sequence_close(q);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.notes, 0);
    assert_int_equal(st.spans, 0);
    /* A path without any span has nobody to own a note. */
    uint32_t short_ids[3] = {1, 2, 3};
    publish_with(s, short_ids, 3, note_of(3, "nowhere"));
    assert_false(has_note(s, 3, ""));
    assert_int_equal(stats_of(s).dropped_index_full, 1);
    cs_close(s, 0);
}

static void notes_travel_in_the_row_of_a_span_and_later_ones_in_rows_that_leave_when_replaced(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13];
    struct cs_reuse r;
    make_ids(a, 13, 0, 1);
    struct cs_sequence *q = open_settled(s, NULL, a, 13, &r);
    assert_int_equal(cs_sequence_grow(q, 12), CS_OK);
    fill_pages(q, a, 0, 3, 0);
    struct cs_note three[3] = {note_of(1, "one"), note_of(2, "two"), note_of(3, "three")};
    assert_int_equal(cs_sequence_publish(q, a, 12, three, 3), CS_OK);
    cs_sequence_close(q);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_notes, 1);
    assert_int_equal(fake_note_rows(&f), 0);
    struct cs_note both[2] = {note_of(1, "uno"), note_of(2, "due")};
    q = open_settled(s, NULL, a, 13, &r);
    assert_int_equal(cs_sequence_publish(q, a, 12, both, 2), CS_OK);
    cs_sequence_close(q);
    assert_int_equal(fake_note_rows(&f), 1);
    publish_with(s, a, 12, note_of(1, "un"));
    assert_int_equal(fake_note_rows(&f), 2); /* the first still has "due" */
    publish_with(s, a, 12, note_of(2, "deux"));
    assert_int_equal(fake_note_rows(&f), 2);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_true(has_note(s, 1, "un"));
    assert_true(has_note(s, 2, "deux"));
    assert_true(has_note(s, 3, "three")); /* the span's own row still has three */
    assert_int_equal(stats_of(s).notes, 3);
    cs_close(s, 0);
    fake_free(&f);
}

/* The tier fails on a row of notes whose span it does not have. */
static void notes_that_come_while_the_span_is_written_follow_it(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13];
    make_ids(a, 13, 0, 1);
    publish_with(s, a, 12, note_of(1, "one"));
    assert_true(f.n_writes > 0);
    publish_with(s, a, 12, note_of(2, "two"));
    publish_with(s, a, 12, note_of(1, "uno"));
    assert_int_equal(fake_note_rows(&f), 0);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(fake_note_rows(&f), 2);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_true(has_note(s, 1, "uno"));
    assert_true(has_note(s, 2, "two"));
    cs_close(s, 0);
    fake_free(&f);
}

/* A catalogue that is full must not make each publish pay for all notes before it. */
static void refused_notes_stay_in_memory_and_are_not_tried_again(void **state)
{
    (void)state;
    struct fake_tier f = {.refuse_notes = true};
    struct cs_config c = tiny_config(64);
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[13];
    make_ids(a, 13, 0, 1);
    publish_with(s, a, 12, note_of(1, "one"));
    fake_finish_writes(&f, TIER_OK);
    publish_with(s, a, 12, note_of(2, "two"));
    publish_with(s, a, 12, note_of(3, "three"));
    publish_with(s, a, 12, note_of(2, "due"));
    assert_int_equal(f.n_notes_refused, 3);
    assert_true(has_note(s, 1, "one"));
    assert_true(has_note(s, 2, "due"));
    assert_true(has_note(s, 3, "three"));
    cs_close(s, 0);
    s = fake_open(&f, &c);
    assert_true(has_note(s, 1, "one"));
    assert_int_equal(stats_of(s).notes, 1);
    cs_close(s, 0);
    fake_free(&f);
}

static void notes_stay_inside_the_index_budget(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(1000);
    c.index_bytes = 64 << 10;
    struct cs_store *s = tiny_open(&c);
    char text[2001];
    memset(text, 'x', 2000);
    text[2000] = 0;
    uint32_t ids[13];
    for (uint32_t k = 1; k <= 100; k++) {
        make_ids(ids, 13, 0, k);
        publish_with(s, ids, 12, note_of(k, text));
        check_balance(s);
        assert_true(has_note(s, k, text));
    }
    assert_true(stats_of(s).notes < 32);
    assert_false(has_note(s, 1, text));
    char *huge = calloc(1, 80 << 10);
    struct cs_note too_large = {.key = {7, 7}, .data = huge, .len = 80 << 10};
    publish_with(s, ids, 12, too_large);
    assert_int_equal(stats_of(s).dropped_index_full, 1);
    free(huge);
    check_balance(s);
    cs_close(s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_latest_note_of_a_key_wins),
        cmocka_unit_test(a_note_lives_and_dies_with_its_span),
        cmocka_unit_test(notes_travel_in_the_row_of_a_span_and_later_ones_in_rows_that_leave_when_replaced),
        cmocka_unit_test(notes_that_come_while_the_span_is_written_follow_it),
        cmocka_unit_test(refused_notes_stay_in_memory_and_are_not_tried_again),
        cmocka_unit_test(notes_stay_inside_the_index_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
