/* What may be written to disk: the pure functions, and what the store does with them. */
#include "tests/cachestore/fake_tier.h"

#include "cachestore/policy/admission.h"
#include "cachestore/policy/writebehind.h"
#include "cachestore/store.h"

#define HOUR_NS 3600000000000ull

enum { N = 61 };

static void a_days_bytes_trickle_in_and_at_most_an_hours_are_saved_up(void **state)
{
    (void)state;
    struct admission a;
    admission_init(&a, 0, 24000, 1000);
    assert_false(admission_take(&a, 1, 1000)); /* a restart brings nothing */
    uint64_t now = 1000 + HOUR_NS;
    assert_true(admission_take(&a, 600, now));
    assert_true(admission_take(&a, 5000, now)); /* more than is left: 4600 are owed */
    assert_false(admission_take(&a, 1, now));
    assert_false(admission_take(&a, 1, now + 4 * HOUR_NS));
    assert_true(admission_take(&a, 1, now + 5 * HOUR_NS));
    /* A week later there is no more than an hour's. */
    uint64_t later = now + 168 * HOUR_NS;
    assert_true(admission_take(&a, 1000, later));
    assert_false(admission_take(&a, 1, later));
    assert_false(admission_take(&a, 1, later - HOUR_NS)); /* a clock that goes back gives nothing */
    admission_init(&a, 0, 0, 0);
    assert_true(admission_take(&a, UINT64_MAX, 0));
    assert_true(admission_take(&a, UINT64_MAX, 0));
}

static void a_short_path_is_written_once_it_has_grown(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    c.disk_min_tokens = 24;
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct cs_store *s = fake_open(&f, &c);
    round_trip(s, NULL, ids, 20);
    assert_int_equal(f.n_writes, 0);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    round_trip(s, NULL, ids, 32);
    fake_finish_writes(&f, TIER_OK);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    struct cs_sequence *q = open_loading(s, ids, 41);
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, 32);
    cs_sequence_close(q);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void what_the_device_shall_not_endure_is_not_written_and_counted(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(64);
    c.disk_bytes_a_day = 24; /* one record is more than an hour's */
    uint32_t ids[N], other[N];
    make_ids(ids, N, N, 0);
    make_ids(other, N, 0, 5);
    struct cs_store *s = fake_open(&f, &c);
    round_trip(s, NULL, ids, 12);
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_written, 1);
    assert_int_equal(stats_of(s).dropped_endurance, 0);
    round_trip(s, NULL, other, 12);
    assert_int_equal(f.n_writes, 0);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    assert_int_equal(stats_of(s).dropped_endurance, 1);
    assert_int_equal(look_up(s, NULL, other, 12).tokens_device, 12); /* it is there all the same */
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

static void pages_are_written_at_once_and_checkpoints_after_their_grace(void **state)
{
    (void)state;
    assert_int_equal(writebehind_due_ns(false, 10, 100), 0);
    assert_int_equal(writebehind_due_ns(true, 10, 100), 110);
    assert_int_equal(writebehind_due_ns(true, 0, 100), 0);
}

static void a_parent_is_written_before_its_children_and_what_is_pinned_is_bounded(void **state)
{
    (void)state;
    static const enum writebehind_order orders[2][2][2] = {
        {{WRITEBEHIND_NOT_NOW, WRITEBEHIND_PARENT_FIRST}, {WRITEBEHIND_NOT_NOW, WRITEBEHIND_NOT_NOW}},
        {{WRITEBEHIND_THIS, WRITEBEHIND_THIS}, {WRITEBEHIND_THIS, WRITEBEHIND_THIS}},
    };
    for (int goes = 0; goes < 2; goes++)
        for (int refused = 0; refused < 2; refused++)
            for (int whole = 0; whole < 2; whole++)
                assert_int_equal(writebehind_order_of(goes, refused, whole), orders[goes][refused][whole]);
    assert_true(writebehind_may_pin(0, 1000, 10)); /* one alone */
    assert_true(writebehind_may_pin(6, 4, 10));
    assert_false(writebehind_may_pin(6, 5, 10));
    assert_false(writebehind_may_pin(12, 0, 10));
    assert_false(writebehind_may_pin(1, UINT64_MAX, 10));
}

static void what_has_no_room_waits_only_for_what_will_give_some(void **state)
{
    (void)state;
    static const struct {
        bool own, writing, own_writing, trimming;
        enum writebehind_without_room then;
    } cases[] = {
        {false, true, false, false, WRITEBEHIND_STOP},    {false, true, true, true, WRITEBEHIND_STOP},
        {false, false, false, false, WRITEBEHIND_DROP},   {false, false, false, true, WRITEBEHIND_DROP},
        {true, true, true, false, WRITEBEHIND_PASS_OVER}, {true, false, false, true, WRITEBEHIND_PASS_OVER},
        {true, true, false, false, WRITEBEHIND_DROP}, /* another tenant's gives it nothing */
        {true, false, false, false, WRITEBEHIND_DROP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(
            writebehind_without_room(cases[i].own, cases[i].writing, cases[i].own_writing, cases[i].trimming),
            cases[i].then);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_written_at_once_and_checkpoints_after_their_grace),
        cmocka_unit_test(a_parent_is_written_before_its_children_and_what_is_pinned_is_bounded),
        cmocka_unit_test(what_has_no_room_waits_only_for_what_will_give_some),
        cmocka_unit_test(a_days_bytes_trickle_in_and_at_most_an_hours_are_saved_up),
        cmocka_unit_test(a_short_path_is_written_once_it_has_grown),
        cmocka_unit_test(what_the_device_shall_not_endure_is_not_written_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
