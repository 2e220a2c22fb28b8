/* Load or compute: the pure functions, and what the store does with them. */
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/stateful.h"

#include "cachestore/policy/cut.h"
#include "cachestore/policy/rate.h"
#include "cachestore/store.h"

#include <math.h>

enum { N = 41, PATH = 100 };

static void a_line_is_learned_from_restores_of_several_sizes(void **state)
{
    (void)state;
    struct rate r = {0};
    double latency_us, us_a_byte;
    assert_false(rate_line(&r, &latency_us, &us_a_byte));
    assert_true(rate_predict_us(&r, 1e6) == 0);
    rate_learn(&r, 0, 50); /* tells nothing */
    assert_false(rate_line(&r, &latency_us, &us_a_byte));
    for (unsigned i = 1; i <= 8; i++)
        rate_learn(&r, 1000.0 * i, 300 + 0.25 * 1000.0 * i);
    assert_true(rate_line(&r, &latency_us, &us_a_byte));
    assert_true(fabs(latency_us - 300) < 1e-3);
    assert_true(fabs(us_a_byte - 0.25) < 1e-6);
    assert_true(fabs(rate_predict_us(&r, 1e6) - 250300) < 1);
    /* It follows: the same sizes, ten times as slow. */
    for (unsigned i = 1; i <= 60; i++)
        rate_learn(&r, 1000.0 * (i % 8 + 1), 3000 + 2.5 * 1000.0 * (i % 8 + 1));
    assert_true(fabs(rate_predict_us(&r, 1e6) - 2503000) < 2503);
}

/* 300 us and 0.65 us a KiB, but the long ones came 15 % faster: what that is must not become the latency. */
static void the_scatter_of_long_restores_says_nothing_about_short_ones(void **state)
{
    (void)state;
    const double mib = 1 << 20, bytes[] = {mib, 64 * mib, 512 * mib}, us[] = {950, 41900, 283000};
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (unsigned o = 0; o < 6; o++) {
        struct rate r = {0};
        for (unsigned i = 0; i < 9; i++)
            rate_learn(&r, bytes[orders[o][i % 3]], us[orders[o][i % 3]]);
        for (unsigned k = 0; k < 3; k++) {
            double ratio = rate_predict_us(&r, bytes[k]) / us[k];
            assert_true(ratio > 0.8 && ratio < 1.25);
        }
    }
}

static void what_no_line_fits_is_never_negative(void **state)
{
    (void)state;
    double latency_us, us_a_byte;
    struct rate equal = {0}, falling = {0}, steep = {0};
    rate_learn(&equal, 4096, 100);
    rate_learn(&equal, 4096, 300);
    assert_true(rate_line(&equal, &latency_us, &us_a_byte));
    assert_true(latency_us == 0);
    assert_true(rate_predict_us(&equal, 8192) > 200 && rate_predict_us(&equal, 8192) < 600);
    rate_learn(&falling, 1000, 900);
    rate_learn(&falling, 9000, 100);
    assert_true(rate_line(&falling, &latency_us, &us_a_byte));
    assert_true(us_a_byte == 0 && latency_us > 0);
    rate_learn(&steep, 1000, 10);
    rate_learn(&steep, 2000, 1000);
    assert_true(rate_line(&steep, &latency_us, &us_a_byte));
    assert_true(latency_us == 0 && us_a_byte > 0);
}

static void the_position_that_costs_least_is_chosen(void **state)
{
    (void)state;
    struct cut c;
    /* 1 us a byte, 1000 before the first; a token takes 10 us and the more the deeper. */
    const struct cut_costs costs = {1000, 1, 10, 0.01};
    cut_begin(&c, &costs);
    assert_true(cut_offer(&c, 100, 0)); /* there already */
    assert_false(cut_offer(&c, 200, 5000));
    assert_int_equal(c.position, 100);
    assert_true(cut_offer(&c, 2000, 50000)); /* saves 60,000 */
    assert_int_equal(c.position, 2000);
    assert_false(cut_offer(&c, 1000, 20000));
    /* Of equals the deeper one, in whatever order they come. */
    const struct cut_costs even = {0, 1, 1, 0};
    cut_begin(&c, &even);
    assert_true(cut_offer(&c, 50, 50));
    assert_true(cut_offer(&c, 60, 60));
    assert_false(cut_offer(&c, 40, 40));
    assert_int_equal(c.position, 60);
}

/* Loads take so long from now on. */
static void teach(struct cs_store *s, double us_a_byte, uint64_t age_ns)
{
    pthread_mutex_lock(&s->lock);
    s->load_rate = (struct rate){0};
    rate_learn(&s->load_rate, 1e6, 1e6 * us_a_byte);
    s->load_measured_ns = store_now_ns() - age_ns;
    pthread_mutex_unlock(&s->lock);
}

static struct cs_store *store_ten_pages(struct fake_tier *f, const struct cs_config *c, uint32_t *ids)
{
    struct cs_store *s = fake_open(f, c);
    make_ids(ids, N, N, 0);
    store_durably(f, s, ids, 40);
    empty_device(s);
    return s;
}

static void end(struct cs_store *s, struct fake_tier *f)
{
    check_balance(s);
    assert_int_equal(s->loading_bytes, 0);
    cs_close(s, 0);
    fake_free(f);
}

static void nothing_is_read_where_computing_is_faster(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    uint32_t ids[N];
    struct cs_store *s = store_ten_pages(&f, &c, ids);
    teach(s, 1000, 0);
    assert_int_equal(cs_prefill_cost(s, 1, 0), CS_OK);
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, NULL, ids, N, &r);
    assert_int_equal(f.n_reads, 0);
    assert_int_equal(r.tokens_device + r.tokens_disk, 0);
    assert_int_equal(r.tokens_matched, 40);
    assert_int_equal(r.miss, CS_MISS_COMPUTE);
    assert_int_equal(stats_of(s).misses[CS_MISS_COMPUTE], 1);
    /* What was computed is what was stored: it is resident afterwards and written no second time. */
    assert_int_equal(cs_sequence_grow(q, N), CS_OK);
    fill_pages(q, ids, 0, 10, 0);
    assert_int_equal(cs_sequence_publish(q, ids, 40, NULL, 0), CS_OK);
    cs_sequence_close(q);
    size_t written = f.n_written;
    fake_finish_writes(&f, TIER_OK);
    assert_int_equal(f.n_written, written);
    assert_int_equal(look_up(s, NULL, ids, 40).tokens_device, 40);
    end(s, &f);
}

static void everything_is_read_where_loading_is_faster_or_one_side_is_unknown(void **state)
{
    (void)state;
    enum { DEAR_COMPUTE, NEVER_MEASURED, NEVER_TOLD, MEASURED_LONG_AGO, CASES };
    for (int k = 0; k < CASES; k++) {
        struct fake_tier f = {0};
        struct cs_config c = tiny_config(16);
        uint32_t ids[N];
        struct cs_store *s = store_ten_pages(&f, &c, ids);
        if (k != NEVER_MEASURED)
            teach(s, 1, k == MEASURED_LONG_AGO ? 3600000000000ull : 0);
        if (k != NEVER_TOLD)
            assert_int_equal(cs_prefill_cost(s, k == DEAR_COMPUTE ? 1e7 : 1, 0), CS_OK);
        struct cs_sequence *q = open_loading(s, ids, N);
        assert_int_equal(s->loading_bytes, 10 * PAGE);
        fake_finish_reads(&f, TIER_OK);
        struct cs_reuse r = wait_settled(q);
        assert_int_equal(r.tokens_disk, 40);
        assert_int_equal(r.miss, CS_MISS_NONE);
        assert_true(s->load_rate.n > 0); /* a restore teaches */
        cs_sequence_close(q);
        end(s, &f);
    }
}

static void what_is_resident_serves_and_what_follows_is_computed(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    uint32_t ids[N];
    struct cs_store *s = store_ten_pages(&f, &c, ids);
    struct cs_sequence *q = open_loading(s, ids, 21); /* the first 5 pages */
    fake_finish_reads(&f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, 20);
    cs_sequence_close(q);
    teach(s, 1000, 0);
    assert_int_equal(cs_prefill_cost(s, 1, 0), CS_OK);
    struct cs_reuse r;
    q = open_settled(s, NULL, ids, N, &r);
    assert_int_equal(f.n_reads, 0);
    assert_int_equal(r.tokens_device, 20);
    assert_int_equal(r.tokens_disk, 0);
    assert_int_equal(r.miss, CS_MISS_COMPUTE);
    check_pages(q, ids, 5, 0);
    cs_sequence_close(q);
    end(s, &f);
}

/* However slow the disk is: it comes from memory. */
static void what_is_on_the_host_is_taken_where_the_disk_is_slower_than_computing(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    c.host_bytes = 64 * (uint64_t)PAGE;
    c.device = fake_device_open(false);
    uint32_t ids[N];
    struct cs_store *s = fake_open(&f, &c);
    make_ids(ids, N, N, 0);
    round_trip(s, NULL, ids, 40);
    fake_finish_everything(&f);
    empty_device(s);
    teach(s, 1000, 0);
    assert_int_equal(cs_prefill_cost(s, 1, 0), CS_OK);
    struct cs_sequence *q = open_loading(s, ids, N);
    assert_int_equal(f.n_reads, 0);
    fake_device_finish_all();
    struct cs_reuse r = wait_settled(q);
    assert_int_equal(r.tokens_host, 40);
    assert_int_equal(r.miss, CS_MISS_NONE);
    check_pages(q, ids, 10, 0);
    cs_sequence_close(q);
    fake_finish_everything(&f);
    end(s, &f);
    fake_device_close();
}

static void a_checkpoint_on_the_host_is_taken_where_the_disk_is_slower_than_computing(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = stateful_config(300);
    c.checkpoint_grace_ms = UINT32_MAX;
    c.host_bytes = 300 * (uint64_t)PAGE;
    c.device = fake_device_open(false);
    uint32_t ids[N + PATH];
    make_ids(ids, N + PATH, N + PATH, 0);
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(run_turn(s, &c, 0, ids, 60, PATH, (struct cs_boundary[]){{60, CS_BOUNDARY_END}}, 1), 0);
    fake_finish_everything(&f);
    empty_device(s);
    teach(s, 1000, 0);
    assert_int_equal(cs_prefill_cost(s, 1, 0), CS_OK);
    struct run r;
    run_open(&r, s, &c, 0, ids, 120);
    assert_int_equal(f.n_reads, 0);
    fake_device_finish_all();
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 96);
    assert_int_equal(r.reuse.tokens_host, 96);
    run_close(&r);
    fake_finish_everything(&f);
    end(s, &f);
    fake_device_close();
}

static void a_resident_checkpoint_is_taken_where_a_deeper_one_is_dear_to_load(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = stateful_config(300);
    c.checkpoint_grace_ms = UINT32_MAX;
    uint32_t ids[N + PATH];
    make_ids(ids, N + PATH, N + PATH, 0);
    struct cs_store *s = fake_open(&f, &c);
    assert_int_equal(run_turn(s, &c, 0, ids, 60, PATH, (struct cs_boundary[]){{60, CS_BOUNDARY_END}}, 1), 0);
    fake_finish_writes(&f, TIER_OK);
    cs_close(s, 0);
    s = fake_open(&f, &c);
    struct run r;
    run_open(&r, s, &c, 0, ids, 61);
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 56);
    run_close(&r);
    teach(s, 1, 0);
    assert_int_equal(cs_prefill_cost(s, 1, 0), CS_OK);
    run_open(&r, s, &c, 0, ids, 120);
    assert_int_equal(f.n_reads, 0);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 56);
    assert_int_equal(r.reuse.miss, CS_MISS_COMPUTE);
    run_close(&r);
    assert_int_equal(cs_prefill_cost(s, 1, 1e6), CS_OK);
    run_open(&r, s, &c, 0, ids, 120);
    assert_false(run_settle(&r));
    fake_finish_reads(&f, TIER_OK);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 96);
    run_close(&r);
    fake_finish_writes(&f, TIER_OK);
    end(s, &f);
}

/* Each end once, and what was predicted beside what came only where both are known. */
static void what_was_predicted_is_counted_beside_what_came(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = tiny_config(16);
    uint32_t ids[N];
    struct cs_store *s = store_ten_pages(&f, &c, ids);
    struct cs_sequence *q = open_loading(s, ids, N); /* nothing is known yet */
    assert_int_equal(stats_of(s).restores_disk, 1);
    check_balance(s); /* it waits */
    fake_finish_reads(&f, TIER_OK);
    wait_settled(q);
    cs_sequence_close(q);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.restores_unpredicted, 1);
    assert_int_equal(st.restores_in_time, 0);
    cs_sequence_close(open_settled(s, NULL, ids, N, &(struct cs_reuse){0})); /* resident: no restore */
    assert_int_equal(stats_of(s).restores_disk, 1);

    /* An hour is more than any machine needs; a millionth of it is less. */
    const double us_a_byte[] = {3.6e9 / (10 * PAGE), 1e-9};
    const unsigned bucket[] = {0, CS_RATIO_BUCKETS - 1};
    for (unsigned i = 0; i < 2; i++) {
        struct cs_stats before = stats_of(s);
        empty_device(s);
        teach(s, us_a_byte[i], 0);
        q = open_loading(s, ids, N);
        fake_finish_reads(&f, TIER_OK);
        struct cs_reuse r = wait_settled(q);
        cs_sequence_close(q);
        st = stats_of(s);
        assert_int_equal(st.restores_in_time, i + 1);
        assert_int_equal(st.restores_ratio[bucket[i]], 1);
        assert_int_equal(st.restores_taken_us - before.restores_taken_us, r.restore_us);
        assert_int_equal(st.restores_predicted_us - before.restores_predicted_us, i == 0 ? 3600000000 : 0);
        check_balance(s);
    }

    empty_device(s);
    q = open_loading(s, ids, N); /* given up */
    cs_sequence_close(q);
    fake_finish_reads(&f, TIER_CANCELLED);
    q = open_loading(s, ids, N); /* a read fails */
    fake_finish_read(&f, 0, TIER_EIO);
    fake_finish_reads(&f, TIER_OK);
    wait_settled(q);
    cs_sequence_close(q);
    check_balance(s);
    st = stats_of(s);
    assert_int_equal(st.restores_abandoned, 1);
    assert_int_equal(st.restores_failed, 1);
    assert_int_equal(st.restores_disk, 5);
    assert_int_equal(st.restores_in_time, 2);
    for (unsigned i = 1; i + 1 < CS_RATIO_BUCKETS; i++)
        assert_true(cs_ratio_percent(i) > cs_ratio_percent(i - 1));
    end(s, &f);
}

static void a_cost_that_is_none_is_refused(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(4);
    struct cs_store *s = tiny_open(&c);
    assert_int_equal(cs_prefill_cost(s, -1, 0), CS_EINVAL);
    assert_int_equal(cs_prefill_cost(s, 0, NAN), CS_EINVAL);
    assert_int_equal(cs_prefill_cost(s, 0, 0), CS_OK);
    cs_close(s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_learned_from_restores_of_several_sizes),
        cmocka_unit_test(the_scatter_of_long_restores_says_nothing_about_short_ones),
        cmocka_unit_test(what_no_line_fits_is_never_negative),
        cmocka_unit_test(the_position_that_costs_least_is_chosen),
        cmocka_unit_test(nothing_is_read_where_computing_is_faster),
        cmocka_unit_test(everything_is_read_where_loading_is_faster_or_one_side_is_unknown),
        cmocka_unit_test(what_is_resident_serves_and_what_follows_is_computed),
        cmocka_unit_test(what_is_on_the_host_is_taken_where_the_disk_is_slower_than_computing),
        cmocka_unit_test(a_checkpoint_on_the_host_is_taken_where_the_disk_is_slower_than_computing),
        cmocka_unit_test(a_resident_checkpoint_is_taken_where_a_deeper_one_is_dear_to_load),
        cmocka_unit_test(what_was_predicted_is_counted_beside_what_came),
        cmocka_unit_test(a_cost_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
