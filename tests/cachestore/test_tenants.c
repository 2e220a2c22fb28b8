/*
 * Quotas of tenants: one that floods keeps no more than its own, and another one keeps all of what it may, on
 * the device, on the host, on disk and across a restart. Exact counts of what everybody uses are recount's.
 */
#include "cachestore/inspect.h"
#include "cachestore/policy/quota.h"
#include "cachestore/store.h"
#include "tests/cachestore/disk_dir.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <string.h>

enum { N = 2 * SPAN_PAGES * PT + 1, PATH_PAGES = 2 * SPAN_PAGES }; /* two whole spans */

static const struct cs_tenant quiet = {{1}}, loud = {{2}};
static struct fake_tier tier;

static int forget_disk(void **state)
{
    (void)state;
    fake_free(&tier);
    return 0;
}

static struct cs_tenant_use use_of(struct cs_store *s, const struct cs_tenant *t)
{
    struct cs_tenant_use use;
    (void)cs_quota_get(s, t, &use);
    return use;
}

static void publish(struct cs_store *s, const struct cs_tenant *t, uint32_t seed)
{
    uint32_t ids[N];
    make_ids(ids, N, 0, seed);
    round_trip(s, t, ids, N);
    recount(s);
    check_balance(s);
}

static uint32_t found(struct cs_store *s, const struct cs_tenant *t, uint32_t seed)
{
    uint32_t ids[N];
    struct cs_reuse r;
    make_ids(ids, N, 0, seed);
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, t, ids, N, &q), CS_OK);
    fake_finish_reads(&tier, TIER_OK);
    r = wait_settled(q);
    check_pages(q, ids, cs_reuse_tokens(&r) / PT, 0);
    cs_sequence_close(q);
    recount(s);
    return cs_reuse_tokens(&r);
}

/* ---- pure functions ---------------------------------------------------------------------------------- */

static void a_tenants_own_limit_comes_before_that_of_all(void **state)
{
    (void)state;
    assert_true(quota_limit(0, 0) == QUOTA_NONE);
    assert_true(quota_limit(0, 7) == 7);
    assert_true(quota_limit(5, 7) == 5);
    assert_true(quota_limit(CS_QUOTA_NONE, 7) == QUOTA_NONE);
    assert_true(quota_excess(10, 5, 15) == 0);
    assert_true(quota_excess(10, 6, 15) == 1);
    assert_true(quota_excess(20, 0, 15) == 5);
    assert_true(quota_excess(UINT64_MAX - 1, 5, QUOTA_NONE) == 0);
    assert_true(quota_excess(UINT64_MAX - 1, 5, 10) == UINT64_MAX - 10);
    assert_true(quota_never_fits(11, 10) && !quota_never_fits(10, 10));
}

/* ---- each tier --------------------------------------------------------------------------------------- */

static void a_flood_on_the_device_leaves_others_their_share(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(40);
    struct cs_store *s = tiny_open(&c);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = 20 * PAGE});
    for (uint32_t k = 0; k < 3; k++)
        publish(s, &quiet, k); /* 18 pages, not used again */
    for (uint32_t k = 100; k < 150; k++) {
        publish(s, &loud, k);
        assert_true(use_of(s, &loud).used.device_bytes <= 20 * PAGE);
    }
    assert_true(use_of(s, &loud).evicted > 0);
    assert_true(stats_of(s).kept_device.gone[CS_GONE_QUOTA] > 0);
    assert_int_equal(stats_of(s).kept_device.gone[CS_GONE_EVICTED], 0);
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(found(s, &quiet, k), N - 1);
    assert_int_equal(found(s, &loud, 149), N - 1); /* its own latest */
    cs_close(s, 0);
}

static void what_runs_may_be_more_than_the_quota_and_is_not_kept(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(40);
    struct cs_store *s = tiny_open(&c);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = 4 * PAGE});
    publish(s, &quiet, 1);
    uint32_t ids[N];
    struct cs_reuse r;
    make_ids(ids, N, 0, 2);
    struct cs_sequence *q = open_settled(s, &loud, NULL, 0, &r);
    assert_int_equal(cs_sequence_grow(q, 34 * PT), CS_OK); /* all that is free */
    fill_pages(q, ids, 0, PATH_PAGES, 0);
    assert_int_equal(cs_sequence_publish(q, ids, PATH_PAGES * PT, NULL, 0), CS_OK);
    assert_int_equal(use_of(s, &loud).used.device_bytes, 34 * PAGE);
    assert_int_equal(found(s, &quiet, 1), N - 1);
    assert_int_equal(cs_sequence_grow(q, 37 * PT), CS_OK); /* it is not broken off, even so */
    cs_sequence_close(q);
    recount(s);
    assert_true(use_of(s, &loud).used.device_bytes <= 4 * PAGE);
    cs_close(s, 0);
}

/* Until they are on disk, pages beyond the quota are borrowed: the first to go where room is wanted. */
static void pages_that_wait_for_the_disk_stay_while_nobody_wants_their_room(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(40);
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = 3 * PAGE});
    publish(s, &quiet, 1);
    fake_finish_writes(&tier, TIER_OK); /* durable, so it would be the first to go */
    publish(s, &loud, 2);
    assert_int_equal(use_of(s, &loud).used.device_bytes, PATH_PAGES * PAGE);
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, &quiet, NULL, 0, &r);
    fake_finish_writes(&tier, TIER_OK);
    recount(s);
    assert_int_equal(use_of(s, &loud).used.device_bytes, 3 * PAGE);
    publish(s, &loud, 3);
    uint64_t borrowed = use_of(s, &loud).used.device_bytes;
    assert_true(borrowed > 3 * PAGE);
    assert_int_equal(cs_sequence_grow(q, (stats_of(s).pages_free + 2) * PT), CS_OK);
    /* They come from what was borrowed; what waits no longer with them goes after them. */
    uint64_t left = use_of(s, &loud).used.device_bytes;
    assert_true(left >= 3 * PAGE && left <= borrowed - 2 * PAGE);
    cs_sequence_close(q);
    assert_int_equal(found(s, &quiet, 1), N - 1);
    assert_int_equal(tier.n_reads_queued, 0); /* from the device */
    fake_finish_writes(&tier, TIER_OK);
    cs_close(s, 0);
}

static void a_flood_on_disk_leaves_others_their_share_across_restarts(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 40 * PAGE; /* a span takes 4 */
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 24 * PAGE});
    publish(s, &quiet, 1);
    publish(s, &quiet, 2);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 16 * PAGE);
    for (uint32_t k = 100; k < 130; k++) {
        publish(s, &loud, k);
        assert_true(use_of(s, &loud).used.disk_bytes <= 24 * PAGE);
        fake_finish_writes(&tier, TIER_OK);
        assert_true(use_of(s, &loud).used.disk_bytes <= 24 * PAGE);
        recount(s);
    }
    assert_true(stats_of(s).kept_disk_spans.gone[CS_GONE_QUOTA] > 0);
    assert_int_equal(stats_of(s).kept_disk_spans.gone[CS_GONE_EVICTED], 0);
    for (int restart = 0; restart < 2; restart++) {
        cs_close(s, 0);
        s = fake_open(&tier, &c);
        recount(s);
        assert_int_equal(use_of(s, &loud).own.disk_bytes, 24 * PAGE);
        assert_int_equal(found(s, &quiet, 1), N - 1);
        assert_int_equal(found(s, &quiet, 2), N - 1);
        assert_int_equal(found(s, &loud, 129 + (uint32_t)restart), N - 1);
        publish(s, &loud, 130);
        fake_finish_writes(&tier, TIER_OK);
        assert_true(use_of(s, &loud).used.disk_bytes <= 24 * PAGE);
    }
    cs_close(s, 0);
}

static void what_never_fits_a_quota_is_dropped_and_counted(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    c.tenant_quota.disk_bytes = 6 * PAGE; /* one span, not two */
    struct cs_store *s = fake_open(&tier, &c);
    publish(s, &quiet, 1);
    fake_finish_writes(&tier, TIER_OK);
    recount(s);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 4 * PAGE);
    assert_int_equal(use_of(s, &quiet).limit.disk_bytes, 6 * PAGE);
    assert_int_equal(stats_of(s).dropped_quota, 1);
    assert_int_equal(use_of(s, &quiet).dropped, 1);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    publish(s, &loud, 1); /* has one of its own */
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 4 * PAGE);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 4 * PAGE);
    set_quota(s, &quiet, (struct cs_quota){.disk_bytes = CS_QUOTA_NONE});
    publish(s, &quiet, 1);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 8 * PAGE);
    cs_close(s, 0);
}

static void a_flood_on_the_host_leaves_others_their_share(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    c.host_bytes = 30 * PAGE;
    c.device = fake_device_open(false);
    struct cs_store *s = tiny_open(&c);
    set_quota(s, &loud, (struct cs_quota){.host_bytes = 12 * PAGE});
    for (uint32_t k = 0; k < 3; k++) {
        publish(s, &quiet, k);
        fake_finish_everything(NULL);
    }
    assert_int_equal(use_of(s, &quiet).used.host_bytes, 18 * PAGE);
    for (uint32_t k = 100; k < 140; k++) {
        publish(s, &loud, k);
        assert_true(use_of(s, &loud).used.host_bytes <= 12 * PAGE);
        fake_finish_everything(NULL);
        recount(s);
    }
    assert_int_equal(use_of(s, &loud).used.host_bytes, 12 * PAGE);
    assert_int_equal(use_of(s, &quiet).used.host_bytes, 18 * PAGE);
    assert_true(stats_of(s).kept_host.gone[CS_GONE_QUOTA] > 0);
    assert_int_equal(stats_of(s).kept_host.gone[CS_GONE_EVICTED], 0);
    empty_device(s);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t ids[N];
        make_ids(ids, N, 0, k);
        struct cs_sequence *q;
        assert_int_equal(cs_sequence_open(s, &quiet, ids, N, &q), CS_OK);
        fake_finish_everything(NULL);
        assert_int_equal(wait_settled(q).tokens_host, N - 1);
        cs_sequence_close(q);
    }
    cs_close(s, 0);
    fake_device_close();
}

/* ---- limits that change, and who is known ------------------------------------------------------------- */

static void what_is_over_a_lowered_quota_goes_by_itself(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(100);
    struct cs_store *s = fake_open(&tier, &c);
    for (uint32_t k = 0; k < 8; k++)
        publish(s, &loud, k);
    publish(s, &quiet, 1);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 8 * 8 * PAGE);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = 10 * PAGE, .disk_bytes = 17 * PAGE});
    recount(s);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 16 * PAGE);
    assert_int_equal(use_of(s, &loud).used.device_bytes, 10 * PAGE);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 8 * PAGE);
    set_quota(s, &loud, (struct cs_quota){0});
    assert_true(use_of(s, &loud).limit.disk_bytes == CS_QUOTA_NONE);
    cs_close(s, 0);
}

/* The lock is held all the while, so nobody but these calls makes room. */
static void a_quota_that_was_lowered_far_is_met_in_pieces(void **state)
{
    (void)state;
    enum { N_PATHS = 80, AT_ONCE = 64 };
    struct cs_config c = tiny_config(N_PATHS * PATH_PAGES + 20);
    struct cs_store *s = fake_open(&tier, &c);
    for (uint32_t k = 0; k < N_PATHS; k++) {
        uint32_t ids[N];
        make_ids(ids, N, 0, k);
        round_trip(s, &loud, ids, N);
        fake_finish_writes(&tier, TIER_OK);
    }
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, &loud, NULL, 0, &r);
    pthread_mutex_lock(&s->lock);
    struct account *a = q->account;
    accounts_set_quota(&s->index.accounts, a, &(struct cs_quota){.device_bytes = PAGE, .disk_bytes = PAGE});
    s->trimming = true;
    assert_int_equal(room_for_pages_locked(s, 2, a), CS_OK);
    assert_int_equal(s->totals.evicted_quota, 2 + AT_ONCE);
    room_trim_locked(s, a);
    assert_int_equal(s->totals.evicted_quota, 2 + 3 * AT_ONCE); /* of both tiers */
    pthread_cond_signal(&s->keeper_wake);
    pthread_mutex_unlock(&s->lock);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = PAGE, .disk_bytes = 4 * PAGE});
    recount(s);
    assert_true(use_of(s, &loud).used.device_bytes <= PAGE);
    assert_true(use_of(s, &loud).used.disk_bytes <= 4 * PAGE);
    cs_sequence_close(q);
    cs_close(s, 0);
}

/* What is written next waits until what is over the lowered limit has gone, and is not dropped. */
static void what_comes_while_a_lowered_quota_is_met_is_written_afterwards(void **state)
{
    (void)state;
    enum { N_PATHS = 80 };
    struct cs_config c = tiny_config(N_PATHS * PATH_PAGES + 20);
    struct cs_store *s = fake_open(&tier, &c);
    for (uint32_t k = 0; k < N_PATHS; k++) {
        uint32_t ids[N];
        make_ids(ids, N, 0, k);
        round_trip(s, &loud, ids, N);
        fake_finish_writes(&tier, TIER_OK);
    }
    uint32_t ids[N];
    struct cs_reuse r;
    make_ids(ids, N, 0, 1000);
    struct cs_sequence *q = open_settled(s, &loud, ids, N, &r);
    assert_int_equal(cs_sequence_grow(q, N), CS_OK);
    fill_pages(q, ids, 0, PATH_PAGES, 0);
    cs_drain(s, true);
    assert_int_equal(cs_sequence_publish(q, ids, N - 1, NULL, 0), CS_OK);
    pthread_mutex_lock(&s->lock);
    s->draining = false;
    accounts_set_quota(&s->index.accounts, q->account, &(struct cs_quota){.disk_bytes = 8 * PAGE});
    s->trimming = true;
    writeback_lead_locked(s, q->place);
    writeback_pump_locked(s);
    assert_int_equal(tier.n_writes, 0);
    assert_int_equal(s->totals.dropped_quota, 0);
    pthread_cond_signal(&s->keeper_wake);
    pthread_mutex_unlock(&s->lock);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 8 * PAGE});
    fake_finish_writes(&tier, TIER_OK);
    cs_sequence_close(q);
    recount(s);
    assert_int_equal(stats_of(s).dropped_quota, 0);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 8 * PAGE);
    empty_device(s);
    assert_int_equal(found(s, &loud, 1000), N - 1);
    cs_close(s, 0);
}

/* An index that is full of paths of one page each. */
static struct cs_store *full_index(const struct cs_config *c, const struct cs_tenant *t)
{
    struct cs_store *s = tiny_open(c);
    for (uint32_t k = 0; stats_of(s).kept_device.gone[CS_GONE_INDEX] < 8; k++) {
        uint32_t ids[PT + 1];
        make_ids(ids, PT + 1, 0, k);
        round_trip(s, t, ids, PT + 1);
    }
    return s;
}

static void tenants_that_only_ask_take_nothing_of_the_index(void **state)
{
    (void)state;
    enum { N_TENANTS = 400 };
    struct cs_config c = tiny_config(400);
    c.index_bytes = 64 << 10;
    struct cs_store *s = full_index(&c, &quiet);
    struct cs_sequence *q[N_TENANTS];
    uint64_t before = stats_of(s).index_bytes;
    for (uint32_t k = 0; k < N_TENANTS; k++) {
        struct cs_reuse r;
        q[k] = open_settled(s, &(struct cs_tenant){{9, (uint8_t)k, (uint8_t)(k >> 8)}}, NULL, 0, &r);
        assert_int_equal(stats_of(s).index_bytes, before);
    }
    assert_int_equal(stats_of(s).tenants, 1 + N_TENANTS);
    recount(s);
    for (uint32_t k = 0; k < N_TENANTS; k++) /* and each makes room for what it stores */
        if (k % 40 == 0) {
            uint32_t ids[PT];
            make_ids(ids, PT, 0, k);
            assert_int_equal(cs_sequence_grow(q[k], PT), CS_OK);
            assert_int_equal(cs_sequence_publish(q[k], ids, PT, NULL, 0), CS_OK);
            check_balance(s);
        }
    for (uint32_t k = 0; k < N_TENANTS; k++)
        cs_sequence_close(q[k]);
    recount(s);
    cs_close(s, 0);
}

static void limits_that_change_forget_nothing(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(400);
    c.index_bytes = 64 << 10;
    struct cs_store *s = full_index(&c, &loud);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 5});
    uint64_t spans = stats_of(s).spans;
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 4});
    set_quota(s, &loud, (struct cs_quota){0});
    set_quota(s, &quiet, (struct cs_quota){0}); /* has none, and nothing stored */
    assert_int_equal(stats_of(s).spans, spans);
    set_quota(s, &quiet, (struct cs_quota){.disk_bytes = 1});
    assert_true(stats_of(s).spans < spans);
    check_balance(s);
    recount(s);
    cs_close(s, 0);
}

static size_t n_tenants(struct cs_store *s)
{
    uint64_t cursor = 0;
    struct cs_tenant_use use;
    size_t n = 0;
    while (cs_tenants_next(s, &cursor, &use))
        n++;
    assert_int_equal(stats_of(s).tenants, n);
    return n;
}

static void tenants_with_nothing_are_not_remembered(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(30);
    struct cs_store *s = tiny_open(&c);
    struct cs_tenant_use use;
    struct cs_reuse r;
    uint64_t empty = stats_of(s).index_bytes;
    assert_int_equal(n_tenants(s), 0);
    for (uint8_t k = 0; k < 200; k++) { /* who only asks */
        uint32_t ids[N];
        make_ids(ids, N, 0, k);
        cs_sequence_close(open_settled(s, &(struct cs_tenant){{9, k}}, ids, N, &r));
    }
    assert_int_equal(n_tenants(s), 0);
    for (uint8_t k = 0; k < 200; k++) { /* who stores is known as long as the arena keeps it */
        struct cs_tenant t = {{9, k}};
        publish(s, &t, k);
        assert_int_equal(cs_quota_get(s, &t, &use), CS_OK);
        assert_int_equal(use.used.device_bytes, PATH_PAGES * PAGE);
        assert_int_equal(use.records, 2);
        assert_true(n_tenants(s) <= 5);
    }
    empty_device(s);
    assert_int_equal(n_tenants(s), 0);
    assert_int_equal(cs_quota_get(s, &quiet, &use), CS_ENOTFOUND);
    set_quota(s, &quiet, (struct cs_quota){.disk_bytes = 1});
    assert_int_equal(n_tenants(s), 1);
    set_quota(s, &quiet, (struct cs_quota){0});
    assert_int_equal(n_tenants(s), 0);
    assert_true(stats_of(s).index_bytes < empty + 10000); /* tables do not shrink */
    cs_close(s, 0);
}

/* ---- in the catalogue -------------------------------------------------------------------------------- */

static int first_quota(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    assert_memory_equal(tenant, &loud, sizeof loud);
    *(struct cs_quota *)ctx = *quota;
    return 1;
}

static struct cs_quota offline_quota(void)
{
    struct cs_inspect *in;
    char err[200] = "";
    struct cs_quota q = {0};
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    int rc = cs_inspect_quotas(in, first_quota, &q);
    assert_int_equal(rc, q.disk_bytes > 0 ? 1 : CS_OK);
    cs_inspect_close(in);
    return q;
}

static void a_quota_is_in_the_catalogue_and_can_be_set_offline(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = tiny_config(64);
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    struct cs_store *s = tiny_open(&c);
    const struct cs_quota first = {1 << 20, 2 << 20, 40 * PAGE}, second = {.disk_bytes = 8 * PAGE};
    set_quota(s, &loud, first);
    for (uint32_t k = 0; k < 3; k++)
        publish(s, &loud, k);
    assert_int_equal(cs_flush(s, 10000), CS_OK);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 24 * PAGE);
    cs_close(s, 10000);
    struct cs_quota read = offline_quota();
    assert_memory_equal(&read, &first, sizeof read);

    struct cs_inspect *in;
    char err[200] = "";
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_quota_set(in, &loud, &second, err, sizeof err), CS_OK);
    cs_inspect_close(in);
    s = tiny_open(&c);
    recount(s);
    assert_int_equal(use_of(s, &loud).own.disk_bytes, 8 * PAGE);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 8 * PAGE);
    set_quota(s, &loud, (struct cs_quota){0});
    assert_int_equal(cs_flush(s, 10000), CS_OK);
    cs_close(s, 10000);
    read = offline_quota();
    assert_int_equal(read.disk_bytes, 0);
    disk_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tenants_own_limit_comes_before_that_of_all),
        cmocka_unit_test(a_flood_on_the_device_leaves_others_their_share),
        cmocka_unit_test(what_runs_may_be_more_than_the_quota_and_is_not_kept),
        cmocka_unit_test_teardown(pages_that_wait_for_the_disk_stay_while_nobody_wants_their_room,
                                  forget_disk),
        cmocka_unit_test_teardown(a_flood_on_disk_leaves_others_their_share_across_restarts, forget_disk),
        cmocka_unit_test_teardown(what_never_fits_a_quota_is_dropped_and_counted, forget_disk),
        cmocka_unit_test(a_flood_on_the_host_leaves_others_their_share),
        cmocka_unit_test_teardown(what_is_over_a_lowered_quota_goes_by_itself, forget_disk),
        cmocka_unit_test_teardown(a_quota_that_was_lowered_far_is_met_in_pieces, forget_disk),
        cmocka_unit_test_teardown(what_comes_while_a_lowered_quota_is_met_is_written_afterwards, forget_disk),
        cmocka_unit_test(tenants_that_only_ask_take_nothing_of_the_index),
        cmocka_unit_test(limits_that_change_forget_nothing),
        cmocka_unit_test(tenants_with_nothing_are_not_remembered),
        cmocka_unit_test(a_quota_is_in_the_catalogue_and_can_be_set_offline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
