/* Steps, captures and placing, call by call: what is given, what is refused, what a wrong order does. */
#include "tests/cachestore/stateful.h"

enum { N = 400 };

static const struct cs_boundary system_only[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM}};

static void a_step_that_was_not_computed_leaves_no_checkpoint(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {{.position = 24, .kind = CS_BOUNDARY_TURN},
                                    {.position = 56, .kind = CS_BOUNDARY_TURN}};
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(cs_sequence_place(r.q, b, 2, 60), CS_OK);
    assert_int_equal(run_compute(&r, 30, 30), CS_OK);
    const struct cs_capture *captures;
    size_t n_captures;
    assert_int_equal(cs_sequence_grow(r.q, 60), CS_OK);
    assert_int_equal(cs_sequence_step_begin(r.q, 30, 60, &captures, &n_captures), CS_OK);
    assert_int_equal(n_captures, 1);
    assert_int_equal(captures[0].position, 56);
    cs_sequence_step_end(r.q, 30, false);
    run_publish(&r);
    assert_int_equal(stats_of(s).publish_checkpoints, 1);
    /* The step is done again, and now it counts. */
    assert_int_equal(run_compute(&r, 60, 60), CS_OK);
    run_publish(&r);
    assert_int_equal(stats_of(s).publish_checkpoints, 2);
    run_close(&r);
    /* Closed between begin and end. */
    make_ids(ids, N, 0, 3);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(cs_sequence_place(r.q, b, 2, 60), CS_OK);
    assert_int_equal(cs_sequence_grow(r.q, 60), CS_OK);
    assert_int_equal(cs_sequence_step_begin(r.q, 0, 60, &captures, &n_captures), CS_OK);
    assert_int_equal(n_captures, 2);
    run_close(&r);
    assert_int_equal(stats_of(s).publish_checkpoints, 2);
    check_all_let_go(s);
}

static void a_step_ends_at_most_where_it_was_to_end(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct run r;
    const struct cs_capture *captures;
    size_t n;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 200), 0);
    cs_sequence_step_end(r.q, 160, true); /* none was begun */
    assert_int_equal(cs_sequence_capture(r.q, CS_BOUNDARY_TURN, &captures), CS_ENOTFOUND);
    assert_int_equal(cs_sequence_grow(r.q, 200), CS_OK);
    assert_int_equal(cs_sequence_step_begin(r.q, 0, 30, &captures, &n), CS_OK);
    cs_sequence_step_end(r.q, 160, true);
    assert_int_equal(cs_sequence_capture(r.q, CS_BOUNDARY_TURN, &captures), CS_OK);
    assert_int_equal(captures->position, 24);
    run_close(&r);
    check_all_let_go(s);
}

/* A sequence that found nothing publishes behind one that stored the same path with its checkpoints. */
static void the_checkpoints_that_others_stored_ahead_are_placed_with_the_rest(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {system_only[0], {40, CS_BOUNDARY_TURN}, {72, CS_BOUNDARY_TURN}};
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 120), 0);
    assert_int_equal(run_turn(s, &c, 0, ids, 100, 105, b, 3), 0);
    assert_int_equal(cs_sequence_grow(r.q, 120), CS_OK);
    fill_pages(r.q, ids, 0, 30, 0);
    assert_int_equal(cs_sequence_publish(r.q, ids, 120, NULL, 0), CS_OK);
    assert_int_equal(cs_sequence_place(r.q, NULL, 0, 120), CS_OK);
    assert_int_equal(run_compute(&r, 120, 40), CS_OK);
    run_publish(&r);
    run_close(&r);
    assert_int_equal(stats_of(s).publish_checkpoints, 4);
    check_all_let_go(s);
}

static void without_memory_for_a_checkpoint_the_step_goes_on(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(22);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {{.position = 24, .kind = CS_BOUNDARY_TURN},
                                    {.position = 32, .kind = CS_BOUNDARY_TURN}};
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 36), 0);
    assert_int_equal(cs_sequence_place(r.q, b, 2, 36), CS_OK);
    assert_int_equal(run_compute(&r, 24, 4), CS_OK); /* 6 pages, 3 and state of the capture, windows */
    assert_int_equal(stats_of(s).captures, 1);
    assert_int_equal(run_compute(&r, 32, 4), CS_OK);
    assert_int_equal(stats_of(s).captures, 1);
    assert_int_equal(stats_of(s).dropped_checkpoints, 1);
    run_publish(&r);
    /* No window pages: the sequence is as it was. */
    assert_int_equal(run_compute(&r, 80, 40), CS_EFULL);
    check_balance(s);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 36), 24);
    run_close(&r);
    check_all_let_go(s);
}

static void count_warning(void *ctx, enum cs_log_level level, const char *line)
{
    (void)line;
    *(unsigned *)ctx += level == CS_LOG_WARN;
}

static void an_arena_that_holds_no_checkpoint_is_warned_of(void **state)
{
    (void)state;
    for (uint32_t n_pages = 8; n_pages <= 9; n_pages++) { /* 3 blocks of state, 3 pages of each window */
        struct cs_config c = stateful_config(n_pages);
        unsigned n_warnings = 0;
        c.log = count_warning;
        c.log_ctx = &n_warnings;
        struct cs_store *s = tiny_open(&c);
        assert_int_equal(n_warnings, n_pages < 9);
        check_all_let_go(s);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(100);
    struct cs_store *s;
    char err[200];
    c.grid_tokens = 6;
    assert_int_equal(cs_open(&c, &s, err, sizeof err), CS_EINVAL);
    c = stateful_config(100);
    c.window_tokens = 0;
    assert_int_equal(cs_open(&c, &s, err, sizeof err), CS_EINVAL);
    c.window_tokens = 1;
    assert_int_equal(cs_open(&c, &s, err, sizeof err), CS_EINVAL);
    c.window_groups = UINT16_MAX; /* blocks of a checkpoint would be more than 32 bits hold */
    c.window_tokens = UINT32_MAX;
    assert_int_equal(cs_open(&c, &s, err, sizeof err), CS_EINVAL);
    c = stateful_config(100);
    s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct run r;
    const struct cs_capture *captures, *one;
    size_t n;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(cs_sequence_step_begin(r.q, 0, 1, &captures, &n), CS_EINVAL);
    assert_int_equal(cs_sequence_grow(r.q, 60), CS_OK);
    assert_int_equal(cs_sequence_step_begin(r.q, 9, 5, &captures, &n), CS_EINVAL);
    assert_int_equal(cs_sequence_step_begin(r.q, 8, 16, &captures, &n), CS_EINVAL); /* 0 to 8 come first */
    assert_int_equal(cs_sequence_place(r.q, NULL, 1, 60), CS_EINVAL);
    assert_int_equal(cs_sequence_capture(r.q, CS_BOUNDARY_TURN, &one), CS_ENOTFOUND);
    run_close(&r);
    check_all_let_go(s);
    /* Of a dense model all of it is nothing. */
    c = tiny_config(100);
    s = tiny_open(&c);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(cs_sequence_place(r.q, system_only, 1, 60), CS_OK);
    assert_int_equal(run_compute(&r, 60, 7), CS_OK);
    assert_int_equal(cs_sequence_capture(r.q, CS_BOUNDARY_TURN, &one), CS_ENOTFOUND);
    run_publish(&r);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 56);
    assert_int_equal(r.reuse.tokens_matched, 56);
    run_close(&r);
    assert_int_equal(stats_of(s).checkpoints, 0);
    check_all_let_go(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_was_not_computed_leaves_no_checkpoint),
        cmocka_unit_test(a_step_ends_at_most_where_it_was_to_end),
        cmocka_unit_test(the_checkpoints_that_others_stored_ahead_are_placed_with_the_rest),
        cmocka_unit_test(without_memory_for_a_checkpoint_the_step_goes_on),
        cmocka_unit_test(an_arena_that_holds_no_checkpoint_is_warned_of),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
