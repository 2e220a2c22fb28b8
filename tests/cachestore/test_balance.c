/*
 * Counters that add up, for single cases whose figures are known; check_balance says so after every step of
 * the random ones (test_model.c, test_stateful_model.c, test_threads.c).
 */
#include "cachestore/store.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include <stdlib.h>
#include <string.h>

static void tokens_not_reused_are_counted_by_why(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(16);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[17], other[17];
    make_ids(ids, 17, 17, 0);
    make_ids(other, 17, 8, 1);
    struct cs_reuse r;
    cs_sequence_close(open_settled(s, NULL, ids, PT - 1, &r)); /* less than a page */
    round_trip(s, NULL, ids, 16);                              /* cold: 12 of 16 could have been reused */
    cs_sequence_close(open_settled(s, NULL, ids, 17, &r));     /* there */
    cs_sequence_close(open_settled(s, NULL, other, 17, &r));   /* 8 of 16 are */
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.tokens_looked_up, 3 + 16 + 17 + 17);
    assert_int_equal(st.tokens_device, 16 + 8);
    assert_int_equal(st.tokens_missed[CS_MISS_PARTIAL_PAGE], 3);
    assert_int_equal(st.tokens_missed[CS_MISS_COLD], 12);
    assert_int_equal(st.tokens_missed[CS_MISS_DIVERGED], 8);
    assert_int_equal(st.tokens_missed[CS_MISS_NONE], 4 + 1 + 1);
    check_balance(s);
    cs_close(s, 0);
}

static void tokens_between_two_positions_of_the_grid_are_missed_by_nobody(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(64);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[GRID + 2 * PT]; /* the last page is begun */
    make_ids(ids, GRID + 2 * PT, GRID + 2 * PT, 0);
    const struct cs_boundary end = {.position = GRID + PT + 1, .kind = CS_BOUNDARY_END};
    assert_int_equal(run_turn(s, &c, 0, ids, GRID + PT + 1, GRID + PT + 1, &end, 1), 0);
    assert_int_equal(run_turn(s, &c, 0, ids, GRID + PT + 1, GRID + PT + 1, &end, 1), GRID);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.hits_full, 1);
    assert_int_equal(st.tokens_missed[CS_MISS_COLD], GRID);
    assert_int_equal(st.tokens_missed[CS_MISS_NONE], 2 * (PT + 1));
    check_balance(s);
    cs_close(s, 0);
}

static void a_block_behind_a_lost_page_goes_when_its_span_is_cut(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(4);
    c.host_bytes = 64 * PAGE;
    c.device = fake_device_open(false);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[13], other[9];
    make_ids(ids, 13, 13, 0);
    make_ids(other, 9, 4, 1);
    round_trip(s, NULL, ids, 12); /* one span */
    fake_finish_everything(NULL);
    assert_int_equal(stats_of(s).kept_host.alive, 3);
    empty_device(s);
    /* The second of its pages is damaged, and found out without the third. */
    struct cs_sequence *q = open_loading(s, ids, 5);
    fake_finish_everything(NULL);
    assert_int_equal(wait_settled(q).tokens_host, 4);
    pthread_mutex_lock(&s->lock);
    ((uint8_t *)arena_address(&s->host, q->place->host[1]))[7] ^= 1;
    pthread_mutex_unlock(&s->lock);
    struct cs_sequence *second = open_loading(s, ids, 9);
    fake_finish_everything(NULL);
    assert_int_equal(wait_settled(second).miss, CS_MISS_CORRUPT);
    assert_int_equal(stats_of(s).kept_host.gone[CS_GONE_DAMAGED], 1);
    assert_int_equal(stats_of(s).kept_device.gone[CS_GONE_DAMAGED], 1);
    assert_int_equal(stats_of(s).kept_host.alive, 2);
    /* A path that leaves the span before them: nobody gets to the third any more. */
    assert_int_equal(cs_sequence_grow(second, 8), CS_OK);
    fill_pages(second, other, 1, 2, 0);
    assert_int_equal(cs_sequence_publish(second, other, 8, NULL, 0), CS_OK);
    assert_int_equal(stats_of(s).kept_host.gone[CS_GONE_CUT], 1);
    cs_sequence_close(q);
    cs_sequence_close(second);
    fake_finish_everything(NULL);
    recount(s);
    check_balance(s);
    cs_close(s, 0);
    fake_device_close();
}

static void reasons_have_names(void **state)
{
    (void)state;
    for (int g = 0; g < CS_GONE_COUNT; g++)
        for (int other = 0; other < g; other++)
            assert_string_not_equal(cs_gone_name((enum cs_gone)g), cs_gone_name((enum cs_gone)other));
    assert_string_equal(cs_gone_name(CS_GONE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_not_reused_are_counted_by_why),
        cmocka_unit_test(tokens_between_two_positions_of_the_grid_are_missed_by_nobody),
        cmocka_unit_test(a_block_behind_a_lost_page_goes_when_its_span_is_cut),
        cmocka_unit_test(reasons_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
