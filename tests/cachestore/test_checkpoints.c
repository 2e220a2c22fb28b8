/* Checkpoints on the device: where sequences resume, what neighbours share, what placement keeps. */
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include "cachestore/store.h"

#include <string.h>

enum { N = 400 };

static const struct cs_boundary system_only[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM}};

static void a_sequence_resumes_at_each_kind_of_boundary(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM},
                                    {.position = 50, .kind = CS_BOUNDARY_TURN},
                                    {.position = 81, .kind = CS_BOUNDARY_END}};
    /* A prompt of 81 tokens and a reply up to 101. */
    assert_int_equal(run_turn(s, &c, 0, ids, 81, 101, b, 3), 0);
    assert_int_equal(stats_of(s).captures, 4); /* 16, 48, 80, and 96 behind the reply */
    assert_int_equal(stats_of(s).publish_checkpoints, 4);
    assert_int_equal(stats_of(s).checkpoints, 4);
    struct run r;
    /* The same prompt again, the next turn, an edited last message, another user of the system prompt. */
    assert_int_equal(run_start(&r, s, &c, 0, ids, 81), 80);
    assert_int_equal(r.reuse.tokens_matched, 80);
    assert_int_equal(r.reuse.miss, CS_MISS_NONE);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 120), 96);
    assert_int_equal(r.reuse.tokens_matched, 100);
    assert_int_equal(r.reuse.miss,
                     CS_MISS_DIVERGED); /* the history ends: the closest grid position was found */
    run_close(&r);
    uint32_t other[N];
    make_ids(other, N, 60, 5);
    assert_int_equal(run_start(&r, s, &c, 0, other, 90), 48);
    assert_int_equal(r.reuse.tokens_matched, 60);
    assert_int_equal(r.reuse.miss, CS_MISS_STATE); /* 56 was never a checkpoint */
    run_close(&r);
    make_ids(other, N, 21, 6);
    assert_int_equal(run_start(&r, s, &c, 0, other, 90), 16);
    assert_int_equal(r.reuse.tokens_matched, 20);
    assert_int_equal(r.reuse.miss, CS_MISS_DIVERGED);
    run_close(&r);
    make_ids(other, N, 0, 7);
    assert_int_equal(run_start(&r, s, &c, 0, other, 90), 0);
    assert_int_equal(r.reuse.miss, CS_MISS_COLD);
    run_close(&r);
    /* Another tenant finds nothing. */
    assert_int_equal(run_start(&r, s, &c, 1, ids, 81), 0);
    run_close(&r);
    check_all_let_go(s);
}

static void each_part_of_a_checkpoint_may_be_absent(void **state)
{
    (void)state;
    for (int part = 0; part < 2; part++) {
        struct cs_config c = stateful_config(400);
        if (part == 0)
            c.state_bytes = 0;
        else
            c.window_groups = c.window_tokens = 0;
        struct cs_store *s = tiny_open(&c);
        uint32_t ids[N];
        make_ids(ids, N, N, 0);
        assert_int_equal(run_turn(s, &c, 0, ids, 60, 90, system_only, 1), 0);
        assert_int_equal(run_turn(s, &c, 0, ids, 130, 130, NULL, 0), 88);
        assert_int_equal(stats_of(s).checkpoints, 2);
        check_all_let_go(s);
    }
}

static void where_stored_paths_part_a_checkpoint_is_found_by_the_third(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[N], b[N], d[N];
    make_ids(a, N, N, 0);
    make_ids(b, N, 60, 1);
    make_ids(d, N, 60, 2);
    assert_int_equal(run_turn(s, &c, 0, a, 100, 100, system_only, 1), 0);
    assert_int_equal(run_turn(s, &c, 0, b, 100, 100, system_only, 1), 16);
    assert_int_equal(run_turn(s, &c, 0, d, 100, 100, system_only, 1), 56);
    check_all_let_go(s);
}

static void a_prompt_without_a_checkpoint_says_so(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    assert_int_equal(run_turn(s, &c, 0, ids, 60, 60, NULL, 0), 0);
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(r.reuse.tokens_matched, 56);
    assert_int_equal(r.reuse.miss, CS_MISS_STATE);
    run_close(&r);
    /* Pages alone are no reason to reuse; a prompt shorter than the grid has none to miss. */
    assert_int_equal(run_start(&r, s, &c, 0, ids, 6), 0);
    assert_int_equal(r.reuse.miss, CS_MISS_NONE);
    run_close(&r);
    check_all_let_go(s);
}

static void neighbours_share_the_pages_of_their_windows(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    const struct cs_boundary b[] = {{.position = 40, .kind = CS_BOUNDARY_TURN},
                                    {.position = 48, .kind = CS_BOUNDARY_TURN}};
    assert_int_equal(run_turn(s, &c, 0, ids, 50, 50, b, 2), 0);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.checkpoints, 2);
    /* Pages 7 to 9 and 9 to 11 of two groups, and state twice. */
    assert_int_equal(st.checkpoint_blocks, 2 * 5 + 2 * STATE_BLOCKS);
    assert_int_equal(st.pages_cached, 12 + st.checkpoint_blocks);
    /* A live sequence uses the same blocks, too. */
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 48);
    assert_int_equal(stats_of(s).pages_live, 12 + 2 * 3);
    assert_int_equal(run_compute(&r, 60, 60), CS_OK);
    run_close(&r);
    assert_int_equal(stats_of(s).pages_cached, st.pages_cached);
    check_all_let_go(s);
}

static void a_path_keeps_at_most_k_checkpoints(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(2000);
    c.checkpoints_a_path = 5;
    c.index_bytes = 8 << 20;
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[1600];
    make_ids(ids, 1600, 1600, 0);
    uint32_t n = 30;
    for (int turn = 0; turn < 40; turn++) {
        uint32_t resumed = run_turn(s, &c, 0, ids, n, n + 17, system_only, 1);
        if (turn > 0)
            assert_true(n - resumed < 30);
        assert_true(stats_of(s).checkpoints <= 5);
        n += 34;
    }
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.checkpoints, 5);
    assert_int_equal(st.publish_checkpoints, st.checkpoints + st.thinned_checkpoints);
    /* All boundaries of a long prompt at once: thinned before anything is captured. */
    struct cs_boundary b[90];
    for (uint32_t i = 0; i < 90; i++)
        b[i] = (struct cs_boundary){.position = 16 * (i + 1), .kind = CS_BOUNDARY_TURN};
    b[2].kind = CS_BOUNDARY_SYSTEM;
    uint32_t other[1600];
    make_ids(other, 1600, 0, 9);
    assert_int_equal(run_turn(s, &c, 0, other, 1500, 1500, b, 90), 0);
    assert_int_equal(stats_of(s).captures, st.captures + 5);
    assert_int_equal(stats_of(s).thinned_checkpoints, st.thinned_checkpoints);
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, other, 60), 48);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, other, 1441), 1440);
    run_close(&r);
    check_all_let_go(s);
}

/* Turns of a conversation with prompts of n, n + 34, ... tokens and replies of 17; returns the next n. */
static uint32_t have_turns(struct cs_store *s, const struct cs_config *c, const uint32_t *ids, uint32_t n,
                           int turns)
{
    for (; turns > 0; turns--, n += 34)
        run_turn(s, c, 0, ids, n, n + 17, NULL, 0);
    return n;
}

static void check_paths(struct cs_store *s, uint32_t most)
{
    recount(s);
    check_balance(s);
    assert_true(longest_chain(s) <= most);
}

static void a_long_conversation_does_not_keep_others_from_a_shared_beginning(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(4000);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[1000], other[1000];
    make_ids(ids, 1000, 1000, 0);
    /* All its states lie behind the 100 tokens that it shares. */
    run_turn(s, &c, 0, ids, 130, 147, NULL, 0);
    uint32_t n = have_turns(s, &c, ids, 164, 9);
    assert_int_equal(checkpoints_on_path(s, &c, ids, n), 8);
    for (uint32_t k = 1; k <= 6; k++) {
        make_ids(other, 1000, 100, k);
        assert_int_equal(run_turn(s, &c, 0, other, 130, 147, NULL, 0), k == 1 ? 0 : 96);
        check_paths(s, 8);
    }
    assert_int_equal(checkpoints_on_path(s, &c, ids, n), 8);
    struct run r; /* its last two */
    assert_int_equal(run_start(&r, s, &c, 0, ids, n), (n - 17) / GRID * GRID);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, ids, n - 34), (n - 34 - 17) / GRID * GRID);
    run_close(&r);
    /* It goes on, and what the others share stays. */
    n = have_turns(s, &c, ids, n, 9);
    check_paths(s, 8);
    make_ids(other, 1000, 100, 7);
    assert_int_equal(run_turn(s, &c, 0, other, 130, 147, NULL, 0), 96);
    check_all_let_go(s);
}

static void every_edit_of_an_older_turn_but_the_first_reuses_up_to_the_fork(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(4000);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[1000], other[1000];
    make_ids(ids, 1000, 1000, 0);
    run_turn(s, &c, 0, ids, 30, 47, system_only, 1);
    uint32_t n = have_turns(s, &c, ids, 64, 11);
    assert_int_equal(checkpoints_on_path(s, &c, ids, n), 8);
    for (uint32_t at = 155; at <= 305; at += 75)
        for (uint32_t k = 1; k <= 3; k++) {
            make_ids(other, 1000, at, at + k);
            uint32_t resumed = run_turn(s, &c, 0, other, at + 30, at + 47, NULL, 0), fork = at / GRID * GRID;
            assert_true(k == 1 ? resumed < fork : resumed == fork);
            check_paths(s, 8);
        }
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, n), (n - 17) / GRID * GRID);
    run_close(&r);
    make_ids(other, 1000, 21, 2000); /* the system boundary */
    assert_int_equal(run_start(&r, s, &c, 0, other, 60), 16);
    run_close(&r);
    check_all_let_go(s);
}

/* A conversation that keeps nothing but a state behind each turn. */
static void have_states_behind_turns(struct cs_store *s, const struct cs_config *c, const uint32_t *ids,
                                     uint32_t n, int turns)
{
    for (; turns > 0; turns--, n += 24) {
        struct run r;
        run_start(&r, s, c, 0, ids, n);
        assert_int_equal(run_compute(&r, n, 13), CS_OK);
        assert_int_equal(run_capture(&r), CS_OK);
        run_publish(&r);
        run_close(&r);
    }
}

static void all_long_paths_behind_a_new_branch_point_make_room_for_it(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(4000);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[400];
    for (uint32_t k = 0; k < 5; k++) {
        make_ids(ids, 400, 100, k);
        have_states_behind_turns(s, &c, ids, 120, 8);
        assert_int_equal(checkpoints_on_path(s, &c, ids, 400), 8);
    }
    uint64_t thinned = stats_of(s).thinned_checkpoints;
    for (uint32_t k = 5; k < 7; k++) {
        make_ids(ids, 400, 100, k);
        assert_int_equal(run_turn(s, &c, 0, ids, 130, 130, NULL, 0), k == 5 ? 0 : 96);
        check_paths(s, 8);
    }
    assert_int_equal(stats_of(s).thinned_checkpoints, thinned + 5);
    for (uint32_t k = 0; k < 5; k++) {
        make_ids(ids, 400, 100, k);
        struct run r;
        assert_int_equal(run_start(&r, s, &c, 0, ids, 320), 288);
        run_close(&r);
        assert_int_equal(checkpoints_on_path(s, &c, ids, 400), 8);
    }
    check_all_let_go(s);
}

static void a_checkpoint_where_paths_come_to_part_is_kept_like_a_branch_point(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(4000);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[1000], other[1000];
    make_ids(ids, 1000, 1000, 0);
    /* The reply ends at 104, where the next one leaves; then the first goes on for long. */
    assert_int_equal(run_turn(s, &c, 0, ids, 90, 104, NULL, 0), 0);
    uint32_t n = have_turns(s, &c, ids, 130, 1);
    make_ids(other, 1000, 104, 1);
    assert_int_equal(run_turn(s, &c, 0, other, 130, 147, NULL, 0), 104);
    n = have_turns(s, &c, ids, n, 20);
    check_paths(s, 8);
    make_ids(other, 1000, 104, 2);
    assert_int_equal(run_turn(s, &c, 0, other, 130, 147, NULL, 0), 104);
    /* Two at once: the second finds out only when it is published. */
    const struct cs_boundary end = {.position = 97, .kind = CS_BOUNDARY_END};
    struct run a, b;
    make_ids(ids, 1000, 0, 3);
    make_ids(other, 1000, 0, 3);
    for (uint32_t i = 100; i < 1000; i++)
        other[i] += 1000000;
    run_start(&a, s, &c, 0, ids, 130);
    run_start(&b, s, &c, 0, other, 130);
    assert_int_equal(cs_sequence_place(b.q, &end, 1, 130), CS_OK);
    assert_int_equal(run_compute(&a, 130, 130), CS_OK);
    assert_int_equal(run_compute(&b, 130, 130), CS_OK);
    run_publish(&a);
    run_publish(&b);
    pthread_mutex_lock(&s->lock);
    const struct span *at = checkpoint_at_locked(s, b.q->place, b.q->place_ordinal, 96);
    assert_non_null(at);
    assert_int_equal(at->boundary, CS_BOUNDARY_BRANCH);
    pthread_mutex_unlock(&s->lock);
    run_close(&a);
    run_close(&b);
    check_all_let_go(s);
}

/* One more than a publish thins at once, see PATHS_AT_ONCE. */
static void behind_very_many_long_paths_a_branch_point_is_kept_the_second_time(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(30000);
    c.index_bytes = 16 << 20;
    c.checkpoints_a_path = 3;
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[200];
    for (uint32_t k = 0; k < 257; k++) {
        make_ids(ids, 200, 100, k);
        have_states_behind_turns(s, &c, ids, 112, 3);
    }
    uint64_t thinned = stats_of(s).thinned_checkpoints;
    assert_int_equal(stats_of(s).checkpoints, 3 * 257);
    for (uint32_t k = 1000; k < 1003; k++) {
        make_ids(ids, 200, 100, k);
        assert_int_equal(run_turn(s, &c, 0, ids, 110, 110, NULL, 0), k < 1002 ? 0 : 96);
        assert_int_equal(stats_of(s).thinned_checkpoints, thinned + (k == 1000 ? 257 : 258));
        check_paths(s, 3);
    }
    check_all_let_go(s);
}

static void two_sequences_resume_from_one_checkpoint(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[N], b[N];
    make_ids(a, N, N, 0);
    make_ids(b, N, 50, 1);
    assert_int_equal(run_turn(s, &c, 0, a, 40, 49, NULL, 0), 0);
    struct run ra, rb;
    run_start(&ra, s, &c, 0, a, 100);
    run_start(&rb, s, &c, 0, b, 100);
    assert_int_equal(ra.n_computed, 48);
    assert_int_equal(rb.n_computed, 48);
    assert_int_equal(run_compute(&ra, 100, 9), CS_OK);
    assert_int_equal(run_compute(&rb, 100, 14), CS_OK);
    assert_int_equal(run_capture(&ra), CS_OK);
    assert_int_equal(run_capture(&ra), CS_ENOTFOUND);
    run_publish(&ra);
    assert_int_equal(run_capture(&ra), CS_ENOTFOUND);
    assert_int_equal(run_capture(&rb), CS_OK);
    run_publish(&rb);
    run_close(&ra);
    run_close(&rb);
    assert_int_equal(run_start(&ra, s, &c, 0, a, 100), 96);
    assert_int_equal(run_start(&rb, s, &c, 0, b, 100), 96);
    run_close(&ra);
    run_close(&rb);
    check_all_let_go(s);
}

static void the_same_checkpoint_published_twice_is_stored_once(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(400);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    struct run a, b;
    assert_int_equal(run_start(&a, s, &c, 0, ids, 60), 0);
    assert_int_equal(run_start(&b, s, &c, 0, ids, 60), 0);
    assert_int_equal(run_compute(&a, 60, 60), CS_OK);
    assert_int_equal(run_compute(&b, 60, 7), CS_OK);
    assert_int_equal(run_capture(&a), CS_OK);
    assert_int_equal(run_capture(&b), CS_OK);
    run_publish(&a);
    run_publish(&b);
    run_close(&a);
    run_close(&b);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_checkpoints, 1);
    assert_int_equal(st.checkpoints, 1);
    assert_int_equal(st.pages_cached, 15 + st.checkpoint_blocks);
    assert_int_equal(run_start(&a, s, &c, 0, ids, 60), 56);
    run_close(&a);
    check_all_let_go(s);
}

static void eviction_leaves_what_a_live_sequence_uses(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(60);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N], other[N];
    make_ids(ids, N, N, 0);
    assert_int_equal(run_turn(s, &c, 0, ids, 40, 49, NULL, 0), 0);
    struct run live;
    assert_int_equal(run_start(&live, s, &c, 0, ids, 90), 48);
    for (uint32_t k = 1; k < 20; k++) {
        make_ids(other, N, 0, k);
        run_turn(s, &c, 0, other, 40, 49, NULL, 0);
        check_balance(s);
    }
    assert_true(stats_of(s).evicted_device_checkpoints > 5);
    assert_int_equal(run_compute(&live, 90, 11), CS_OK); /* checks the windows it reads */
    assert_int_equal(run_capture(&live), CS_OK);
    run_publish(&live);
    run_close(&live);
    assert_int_equal(run_start(&live, s, &c, 0, ids, 95), 88);
    run_close(&live);
    check_all_let_go(s);
}

static void a_lost_checkpoint_is_named_evicted(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(60);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N], other[N];
    make_ids(ids, N, N, 0);
    /* Its pages stay because a live sequence uses them; its checkpoint goes. */
    assert_int_equal(run_turn(s, &c, 0, ids, 40, 49, NULL, 0), 0);
    struct run live;
    assert_int_equal(run_start(&live, s, &c, 0, ids, 60), 48);
    assert_int_equal(run_compute(&live, 60, 60), CS_OK);
    run_publish(&live);
    grow_old(s); /* what others use of its blocks makes it worth more by the rest, but not so much */
    /* No more than it takes, for each eviction may take the place of one that is remembered. */
    for (uint32_t k = 1; stats_of(s).evicted_device_checkpoints == 0; k++) {
        make_ids(other, N, 0, k);
        run_turn(s, &c, 0, other, 40, 49, NULL, 0);
    }
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 0);
    assert_int_equal(r.reuse.tokens_matched, 56);
    assert_int_equal(r.reuse.miss, CS_MISS_EVICTED);
    run_close(&r);
    run_close(&live);
    check_all_let_go(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_resumes_at_each_kind_of_boundary),
        cmocka_unit_test(each_part_of_a_checkpoint_may_be_absent),
        cmocka_unit_test(where_stored_paths_part_a_checkpoint_is_found_by_the_third),
        cmocka_unit_test(a_prompt_without_a_checkpoint_says_so),
        cmocka_unit_test(neighbours_share_the_pages_of_their_windows),
        cmocka_unit_test(a_path_keeps_at_most_k_checkpoints),
        cmocka_unit_test(a_long_conversation_does_not_keep_others_from_a_shared_beginning),
        cmocka_unit_test(every_edit_of_an_older_turn_but_the_first_reuses_up_to_the_fork),
        cmocka_unit_test(all_long_paths_behind_a_new_branch_point_make_room_for_it),
        cmocka_unit_test(a_checkpoint_where_paths_come_to_part_is_kept_like_a_branch_point),
        cmocka_unit_test(behind_very_many_long_paths_a_branch_point_is_kept_the_second_time),
        cmocka_unit_test(two_sequences_resume_from_one_checkpoint),
        cmocka_unit_test(the_same_checkpoint_published_twice_is_stored_once),
        cmocka_unit_test(eviction_leaves_what_a_live_sequence_uses),
        cmocka_unit_test(a_lost_checkpoint_is_named_evicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
