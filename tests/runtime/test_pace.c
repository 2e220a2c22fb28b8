/* Chunk sizes: within the time they are given, growing when alone, and learned from what steps took. */
#include "engine/runtime/pace.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct eng_model_desc desc = {
    .n_layers = 30, .n_full = 30, .n_heads = 9, .head_dim = 64, .parameters = 134500000};

static uint32_t chunk(const struct pace *p, bool others_decode, uint32_t pos, uint32_t want)
{
    double cost;
    uint32_t n = pace_tokens(p, pace_budget(p, others_decode), pos, want, &cost);
    assert_true(cost <= pace_budget(p, others_decode) + 1e-9);
    return n;
}

/* A machine that prefills `speed` tokens a second at depth 0 and decodes a step in 10 ms. */
static void learn(struct pace *p, double speed)
{
    pace_learn(p, 0, 1, 0.010);
    for (int i = 0; i < 30; i++)
        pace_learn(p, pace_work(p, 0, 64), 1, 0.010 + pace_work(p, 0, 64) / speed);
}

static void chunks_keep_the_step_time(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, &desc, ENG_POLICY_BALANCED, 0);
    learn(&p, 1000);
    uint32_t shallow = chunk(&p, true, 0, 8000);
    uint32_t deep = chunk(&p, true, 8000, 8000);
    uint32_t alone = chunk(&p, false, 0, 8000);
    assert_in_range(shallow, 70, 96); /* 90 ms of it */
    assert_in_range(deep, 16, 48);    /* attention costs twice what the weights do there */
    assert_true(alone > 2 * shallow);
    assert_int_equal(shallow % 16, 0);
    assert_int_equal(chunk(&p, true, 5, 8000) % 16, 11); /* ends at a page's edge */
    assert_int_equal(chunk(&p, true, 0, 7), 7);
    assert_int_equal(pace_least(&p, 0), 16);
    assert_in_range(pace_least(&p, 8000), 5, 7);
    double cost; /* no step for the last few tokens alone */
    assert_int_equal(pace_tokens(&p, pace_budget(&p, true), 0, shallow + 15, &cost), shallow + 15);
}

static void a_machine_that_changes_is_followed(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, &desc, ENG_POLICY_BALANCED, 0);
    learn(&p, 100);
    uint32_t slow = chunk(&p, true, 0, 8000);
    learn(&p, 4000);
    uint32_t fast = chunk(&p, true, 0, 8000);
    assert_true(slow <= 16);
    assert_true(fast >= 256);
    learn(&p, 100);
    assert_true(chunk(&p, true, 0, 8000) <= 16);
    pace_learn(&p, 0, 3, 5.0); /* a step that hung: a minimum of time for prefill stays */
    assert_true(pace_budget(&p, true) > 0);
}

static void policies_differ_while_others_decode(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, &desc, ENG_POLICY_PREFILL_FIRST, 0);
    learn(&p, 1000);
    assert_int_equal(chunk(&p, true, 0, 8000), chunk(&p, false, 0, 8000));
    p.policy = ENG_POLICY_DECODE_FIRST;
    assert_int_equal(chunk(&p, true, 0, 8000), 0);
    assert_true(chunk(&p, false, 0, 8000) > 200);
    p.policy = ENG_POLICY_BALANCED;
    p.fixed_tokens = 50;
    assert_int_equal(chunk(&p, true, 0, 8000), 50);
    assert_int_equal(chunk(&p, false, 0, 8000), 50);
    assert_int_equal(chunk(&p, false, 0, 20), 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_keep_the_step_time),
        cmocka_unit_test(a_machine_that_changes_is_followed),
        cmocka_unit_test(policies_differ_while_others_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
