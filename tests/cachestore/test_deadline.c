/* The deadline of a restore: the pure functions, and what a sequence gets. */
#include "tests/cachestore/fake_tier.h"

#include "cachestore/policy/deadline.h"
#include "cachestore/policy/rate.h"
#include "cachestore/store.h"

#include <math.h>

enum { N = 25 };

static void three_times_what_was_predicted_and_never_less_than_the_floor(void **state)
{
    (void)state;
    static const struct {
        double predicted_us;
        uint32_t floor_ms;
        uint64_t after_ns;
    } cases[] = {
        {0, 250, 250000000},
        {83333, 250, 250000000},
        {100000, 250, 300000000},
        {2e6, 250, 6000000000ull},
        {1, 1, 1000000},
        {NAN, 250, 250000000},
        {-1e9, 250, 250000000},
        {1e15, 250, 3000000000000000000ull},
        {1e300, 250, 1ull << 62},
        {INFINITY, 1, 1ull << 62},
        {1, UINT32_MAX, UINT32_MAX * 1000000ull},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint64_t queued = 0; queued <= 7000000000ull; queued += 7000000000ull)
            assert_int_equal(deadline_ns(queued, cases[i].predicted_us, cases[i].floor_ms),
                             queued + cases[i].after_ns);
}

static void a_floor_of_0_switches_it_off(void **state)
{
    (void)state;
    assert_int_equal(deadline_ns(5, 0, 0), 0);
    assert_int_equal(deadline_ns(5, 1e6, 0), 0);
    assert_false(deadline_is_past(0, UINT64_MAX));
    assert_false(deadline_is_past(10, 9));
    assert_true(deadline_is_past(10, 10));
    assert_true(deadline_is_past(10, 11));
}

static void behind_it_the_deepest_state_that_is_there_serves(void **state)
{
    (void)state;
    static const struct {
        uint32_t wanted;
        bool landed;
        uint32_t held, there;
        enum deadline_state is;
    } cases[] = {
        {96, true, 56, 96, DEADLINE_WANTED},     {96, true, 56, 200, DEADLINE_WANTED},
        {96, true, 56, 92, DEADLINE_HELD}, /* its pages did not come */
        {96, false, 56, 96, DEADLINE_HELD},      {96, false, 56, 56, DEADLINE_HELD},
        {96, false, 56, 52, DEADLINE_ANY_THERE}, {96, true, 0, 92, DEADLINE_ANY_THERE},
        {0, true, 0, 96, DEADLINE_ANY_THERE},    {0, false, 56, 96, DEADLINE_HELD},
        {96, false, 0, 0, DEADLINE_ANY_THERE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(deadline_resume(cases[i].wanted, cases[i].landed, cases[i].held, cases[i].there),
                         cases[i].is);
}

/* From now on a restore of all pages is predicted to take so long. */
static void teach(struct cs_store *s, double us)
{
    pthread_mutex_lock(&s->lock);
    s->load_rate = (struct rate){0};
    if (us > 0)
        rate_learn(&s->load_rate, 6 * PAGE, us);
    pthread_mutex_unlock(&s->lock);
}

static void a_sequence_has_it_from_when_it_was_opened(void **state)
{
    (void)state;
    static const struct {
        uint32_t floor_ms;
        double predicted_us;
        uint64_t after_ns;
    } cases[] = {{0, 2e6, 0}, {250, 0, 250000000}, {250, 1000, 250000000}, {250, 2e6, 6000000000ull}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(16);
        uint32_t ids[N];
        make_ids(ids, N, N, 0);
        c.restore_deadline_ms = cases[i].floor_ms;
        struct cs_store *s = fake_open(&f, &c);
        store_durably(&f, s, ids, N - 1);
        empty_device(s);
        teach(s, cases[i].predicted_us);
        uint64_t before = store_now_ns();
        struct cs_sequence *q = open_loading(s, ids, N);
        assert_in_range(q->opened_ns, before, store_now_ns());
        assert_true(fabs(q->predicted_us - cases[i].predicted_us) < 1e-3);
        uint64_t deadline = cases[i].floor_ms ? q->opened_ns + cases[i].after_ns : 0;
        assert_in_range(q->deadline_ns, deadline - (deadline > 0), deadline + (deadline > 0));
        if (deadline > 0) { /* it has come */
            pthread_mutex_lock(&s->lock);
            assert_false(restore_ready_locked(q, deadline - 2));
            assert_true(restore_ready_locked(q, deadline + 2));
            pthread_mutex_unlock(&s->lock);
        }
        fake_finish_reads(&f, TIER_OK);
        assert_int_equal(wait_settled(q).tokens_disk, N - 1);
        cs_sequence_close(q);
        /* What waits for nothing has none. */
        struct cs_reuse r;
        q = open_settled(s, NULL, ids, N, &r);
        assert_int_equal(q->deadline_ns, 0);
        cs_sequence_close(q);
        check_balance(s);
        cs_close(s, 0);
        fake_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_times_what_was_predicted_and_never_less_than_the_floor),
        cmocka_unit_test(a_floor_of_0_switches_it_off),
        cmocka_unit_test(behind_it_the_deepest_state_that_is_there_serves),
        cmocka_unit_test(a_sequence_has_it_from_when_it_was_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
