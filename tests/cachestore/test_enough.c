/*
 * Nothing leaves for what does not fit in the end, and who must wait or is dropped holds up nobody else; the
 * index, too, is shared as quotas say.
 */
#include "cachestore/store.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <string.h>

enum { N = 2 * SPAN_PAGES * PT + 1 }; /* two whole spans, records of 4 pages each */

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

static void publish(struct cs_store *s, const struct cs_tenant *t, uint32_t seed, size_t n)
{
    uint32_t ids[N];
    make_ids(ids, n, 0, seed);
    round_trip(s, t, ids, n);
    recount(s);
    check_balance(s);
}

/* A sequence whose path is that of n ids, so that what is stored of it cannot leave the disk. */
static struct cs_sequence *hold(struct cs_store *s, const struct cs_tenant *t, uint32_t seed, size_t n)
{
    uint32_t ids[N + 1];
    struct cs_reuse r;
    make_ids(ids, n + 1, 0, seed);
    struct cs_sequence *q = open_settled(s, t, ids, n + 1, &r);
    assert_int_equal(cs_reuse_tokens(&r), n);
    return q;
}

static uint32_t found(struct cs_store *s, const struct cs_tenant *t, uint32_t seed, size_t n)
{
    uint32_t ids[N + 1];
    struct cs_sequence *q;
    make_ids(ids, n + 1, 0, seed);
    assert_int_equal(cs_sequence_open(s, t, ids, n + 1, &q), CS_OK);
    fake_finish_reads(&tier, TIER_OK);
    struct cs_reuse r = wait_settled(q);
    cs_sequence_close(q);
    recount(s);
    return cs_reuse_tokens(&r);
}

static void store(struct cs_store *s, const struct cs_tenant *t, uint32_t seed, size_t n)
{
    publish(s, t, seed, n);
    fake_finish_writes(&tier, TIER_OK);
    recount(s);
}

/* A small record that could go, a large one that is held, and a large one to come. */
static void what_fits_no_quota_of_the_disk_takes_nothing_from_it(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 100 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 6 * PAGE});
    store(s, &loud, 1, PT);              /* 2 pages on disk */
    store(s, &loud, 2, SPAN_PAGES * PT); /* 4 */
    struct cs_sequence *q = hold(s, &loud, 2, SPAN_PAGES * PT);
    store(s, &loud, 3, SPAN_PAGES * PT);
    assert_int_equal(use_of(s, &loud).dropped, 1);
    assert_int_equal(use_of(s, &loud).evicted, 0);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 6 * PAGE);
    cs_sequence_close(q);
    store(s, &loud, 4, SPAN_PAGES * PT); /* now there is enough that can go */
    assert_int_equal(use_of(s, &loud).dropped, 1);
    assert_true(use_of(s, &loud).used.disk_bytes <= 6 * PAGE);
    empty_device(s);
    assert_int_equal(found(s, &loud, 4, SPAN_PAGES * PT), SPAN_PAGES * PT);
    cs_close(s, 0);
}

/* Leaves go before what they hang on: a path counts whole, unless its end is held. */
static void a_path_is_enough_where_no_leaf_is(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 8 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    store(s, &quiet, 1, N - 1); /* two records of 4, one on the other */
    set_quota(s, &quiet, (struct cs_quota){.disk_bytes = 9 * PAGE});
    pthread_mutex_lock(&s->lock);
    assert_true(enough_on_disk_locked(s, NULL, 8 * PAGE));
    assert_true(enough_on_disk_locked(s, accounts_find(&s->index.accounts, &quiet), 8 * PAGE));
    assert_false(enough_on_disk_locked(s, NULL, 8 * PAGE + 1));
    assert_true(enough_in_index_locked(s, NULL, 2 * index_span_bytes(&s->index, SPAN_PAGES)));
    assert_false(enough_in_index_locked(s, NULL, 1 << 20));
    pthread_mutex_unlock(&s->lock);
    recount(s);
    struct cs_sequence *q = hold(s, &quiet, 1, N - 1);
    pthread_mutex_lock(&s->lock);
    assert_false(enough_on_disk_locked(s, NULL, 1));
    assert_false(enough_in_index_locked(s, NULL, 1));
    pthread_mutex_unlock(&s->lock);
    cs_sequence_close(q);
    recount(s);
    cs_close(s, 0);
}

static void what_fits_no_disk_takes_nothing_from_it(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 6 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    store(s, &quiet, 1, PT);
    store(s, &quiet, 2, SPAN_PAGES * PT);
    struct cs_sequence *q = hold(s, &quiet, 2, SPAN_PAGES * PT);
    store(s, &quiet, 3, SPAN_PAGES * PT);
    assert_int_equal(stats_of(s).dropped_disk_full, 1);
    assert_int_equal(stats_of(s).kept_disk_spans.gone[CS_GONE_EVICTED], 0);
    assert_int_equal(use_of(s, &quiet).used.disk_bytes, 6 * PAGE);
    cs_sequence_close(q);
    store(s, &quiet, 4, SPAN_PAGES * PT);
    assert_int_equal(stats_of(s).dropped_disk_full, 1);
    cs_close(s, 0);
}

/* Its own would be enough for its quota, and not for the disk. */
static void what_fits_a_quota_and_no_disk_takes_nothing(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 10 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 4 * PAGE});
    store(s, &quiet, 1, N - 1);
    struct cs_sequence *q = hold(s, &quiet, 1, N - 1);
    store(s, &loud, 2, PT);
    store(s, &loud, 3, SPAN_PAGES * PT);
    assert_int_equal(stats_of(s).dropped_disk_full, 1);
    assert_int_equal(use_of(s, &loud).evicted, 0);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 2 * PAGE);
    cs_sequence_close(q);
    recount(s);
    cs_close(s, 0);
}

static void what_fits_no_quota_of_the_host_takes_nothing_from_it(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    c.host_bytes = 30 * PAGE;
    c.device = fake_device_open(false);
    struct cs_store *s = tiny_open(&c);
    set_quota(s, &loud, (struct cs_quota){.host_bytes = 4 * PAGE});
    publish(s, &loud, 1, PT);
    fake_finish_everything(NULL);
    publish(s, &loud, 2, SPAN_PAGES * PT);
    fake_finish_everything(NULL);
    assert_int_equal(use_of(s, &loud).used.host_bytes, 4 * PAGE);
    /* On its way to the device, so that its blocks stay. */
    empty_device(s);
    uint32_t ids[N];
    struct cs_sequence *q;
    make_ids(ids, SPAN_PAGES * PT + 1, 0, 2);
    assert_int_equal(cs_sequence_open(s, &loud, ids, SPAN_PAGES * PT + 1, &q), CS_OK);
    pthread_mutex_lock(&s->lock);
    struct account *a = accounts_find(&s->index.accounts, &loud);
    assert_int_equal(enough_on_host_locked(s, a, 3, HOST_TURN_REST), 1);
    assert_int_equal(enough_on_host_locked(s, NULL, 3, HOST_TURN_REST), 1);
    const struct span *to_come = a->newest;
    struct span like = {.account = a, .n_pages = SPAN_PAGES};
    uint32_t none[SPAN_PAGES] = {ARENA_NO_PAGE, ARENA_NO_PAGE, ARENA_NO_PAGE};
    like.host = none;
    assert_non_null(to_come);
    assert_int_equal(room_to_copy_locked(s, &like, HOST_TURN_REST), ROOM_NONE_OF_ITS_OWN);
    assert_false(room_for_host_locked(s, 30, HOST_TURN_REST, a));
    assert_int_equal(a->used[RANK_HOST], 4 * PAGE);
    pthread_mutex_unlock(&s->lock);
    fake_finish_everything(NULL);
    wait_settled(q);
    cs_sequence_close(q);
    recount(s);
    cs_close(s, 0);
    fake_device_close();
}

static void notes_that_fit_no_index_forget_nothing(void **state)
{
    (void)state;
    static uint8_t text[200 << 10];
    struct cs_config c = tiny_config(60);
    c.index_bytes = 128 << 10;
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = 0; k < 8; k++)
        publish(s, &quiet, k, N - 1);
    uint32_t ids[N];
    make_ids(ids, N, 0, 0);
    struct cs_sequence *q = hold(s, &quiet, 0, N - 1);
    const struct cs_note note = {.key = {1, 2}, .data = text, .len = sizeof text};
    assert_int_equal(cs_sequence_publish(q, ids, N - 1, &note, 1), CS_OK);
    assert_int_equal(stats_of(s).dropped_index_full, 1);
    assert_int_equal(stats_of(s).spans, 16);
    cs_sequence_close(q);
    recount(s);
    for (uint32_t k = 0; k < 8; k++)
        assert_int_equal(found(s, &quiet, k, N - 1), N - 1);
    cs_close(s, 0);
}

/* ---- nobody waits for another one's room ------------------------------------------------------------- */

/* A path of two spans, on no disk and not on its way there. */
static struct cs_sequence *publish_drained(struct cs_store *s, const struct cs_tenant *t, uint32_t seed)
{
    uint32_t ids[N];
    struct cs_reuse r;
    make_ids(ids, N, 0, seed);
    cs_drain(s, true);
    struct cs_sequence *q = open_settled(s, t, ids, N, &r);
    assert_int_equal(cs_sequence_grow(q, N), CS_OK);
    fill_pages(q, ids, 0, 2 * SPAN_PAGES, 0);
    assert_int_equal(cs_sequence_publish(q, ids, N - 1, NULL, 0), CS_OK);
    return q;
}

static void what_one_tenant_has_no_room_for_cancels_nothing_of_others(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 100 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = PAGE});
    struct cs_sequence *a = publish_drained(s, &loud, 1), *b = publish_drained(s, &quiet, 2);
    pthread_mutex_lock(&s->lock);
    s->draining = false;
    writeback_go_on_locked(s, a->place->parent);
    writeback_go_on_locked(s, a->place);
    writeback_go_on_locked(s, b->place); /* what it hangs on is to be brought along */
    writeback_pump_locked(s);
    assert_int_equal(s->totals.dropped_quota, 1); /* and its child with it, not once more */
    assert_int_equal(a->place->disk, SPAN_DISK_NONE);
    assert_int_equal(b->place->parent->disk, SPAN_DISK_WRITING);
    assert_int_equal(b->place->disk, SPAN_DISK_WRITING);
    pthread_mutex_unlock(&s->lock);
    fake_finish_writes(&tier, TIER_OK);
    cs_sequence_close(a);
    cs_sequence_close(b);
    recount(s);
    cs_close(s, 0);
}

static void who_waits_for_room_of_its_own_holds_up_nobody(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    tier.budget = 100 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    set_quota(s, &loud, (struct cs_quota){.disk_bytes = 4 * PAGE});
    publish(s, &loud, 1, SPAN_PAGES * PT);
    publish(s, &loud, 2, SPAN_PAGES * PT); /* when the first one is durable it can go */
    publish(s, &loud, 3, SPAN_PAGES * PT);
    assert_int_equal(tier.n_writes, 1);
    publish(s, &quiet, 1, SPAN_PAGES * PT);
    assert_int_equal(tier.n_writes, 2);
    fake_finish_writes(&tier, TIER_OK);
    assert_int_equal(stats_of(s).dropped_quota, 0);
    assert_int_equal(use_of(s, &loud).used.disk_bytes, 4 * PAGE);
    empty_device(s);
    assert_int_equal(found(s, &loud, 3, SPAN_PAGES * PT), SPAN_PAGES * PT);
    assert_int_equal(found(s, &quiet, 1, SPAN_PAGES * PT), SPAN_PAGES * PT);
    cs_close(s, 0);
}

static void who_waits_for_room_of_its_own_on_the_host_holds_up_nobody(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(60);
    c.host_bytes = 30 * PAGE;
    c.device = fake_device_open(false);
    struct cs_store *s = tiny_open(&c);
    set_quota(s, &loud, (struct cs_quota){.host_bytes = 3 * PAGE});
    publish(s, &loud, 1, SPAN_PAGES * PT);
    publish(s, &loud, 2, SPAN_PAGES * PT);
    assert_int_equal(use_of(s, &loud).used.host_bytes, 3 * PAGE);
    publish(s, &quiet, 1, SPAN_PAGES * PT);
    assert_int_equal(use_of(s, &quiet).used.host_bytes, 3 * PAGE);
    fake_finish_everything(NULL);
    assert_int_equal(stats_of(s).dropped_quota, 0);
    assert_int_equal(use_of(s, &loud).used.host_bytes, 3 * PAGE);
    recount(s);
    cs_close(s, 0);
    fake_device_close();
}

/* ---- the index --------------------------------------------------------------------------------------- */

/* With limits of half of the arena a tenant has half of the index. */
static void notes_of_one_tenant_leave_others_their_share_of_the_index(void **state)
{
    (void)state;
    enum { NOTE_BYTES = 2000, N_QUIET = 6, N_ARENA = 200 };
    static uint8_t text[NOTE_BYTES];
    struct cs_config c = tiny_config(N_ARENA);
    c.index_bytes = 128 << 10;
    c.tenant_quota.device_bytes = N_ARENA / 2 * PAGE;
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = 0; k < N_QUIET; k++)
        publish(s, &quiet, k, N - 1); /* older than all that follows */
    for (uint32_t k = 0; k < 200; k++) {
        uint32_t ids[N];
        struct cs_reuse r;
        make_ids(ids, N, 0, 100 + k % 8);
        struct cs_sequence *q = open_settled(s, &loud, ids, N, &r);
        assert_int_equal(cs_sequence_grow(q, N), CS_OK);
        fill_pages(q, ids, cs_reuse_tokens(&r) / PT, 2 * SPAN_PAGES - cs_reuse_tokens(&r) / PT, 0);
        const struct cs_note note = {.key = {k, 1}, .data = text, .len = sizeof text};
        assert_int_equal(cs_sequence_publish(q, ids, N - 1, &note, 1), CS_OK);
        cs_sequence_close(q);
        recount(s);
        check_balance(s);
    }
    assert_true(stats_of(s).kept_device.gone[CS_GONE_INDEX] > 0);
    assert_int_equal(stats_of(s).dropped_index_full, 0);
    assert_true(use_of(s, &loud).evicted > 0);
    for (uint32_t k = 0; k < N_QUIET; k++)
        assert_int_equal(found(s, &quiet, k, N - 1), N - 1);
    cs_close(s, 0);
}

/* Who got more than its share while nobody wanted the rest is first to give it back. */
static void who_has_more_than_its_share_of_the_index_gives_it_back(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(480);
    c.index_bytes = 64 << 10;
    struct cs_store *s = tiny_open(&c);
    publish(s, &quiet, 0, PT); /* the oldest of all */
    for (uint32_t k = 0; stats_of(s).index_bytes + 2000 < c.index_bytes; k++)
        publish(s, &loud, 1000 + k, PT);
    assert_int_equal(stats_of(s).kept_device.gone[CS_GONE_INDEX], 0);
    set_quota(s, &loud, (struct cs_quota){.device_bytes = 120 * PAGE}); /* a quarter */
    assert_true(use_of(s, &loud).records > 10);
    for (uint32_t k = 1; k < 6; k++)
        publish(s, &quiet, k, PT);
    assert_true(stats_of(s).kept_device.gone[CS_GONE_INDEX] > 0);
    for (uint32_t k = 0; k < 6; k++)
        assert_int_equal(found(s, &quiet, k, PT), PT);
    check_balance(s);
    cs_close(s, 0);
}

/* They are kept on disk, and those of who has something stored come first. */
static void limits_take_no_more_than_half_of_an_index_that_has_become_smaller(void **state)
{
    (void)state;
    enum { N_TENANTS = 8, STORED = 6 };
    struct cs_config c = tiny_config(60);
    tier.budget = 100 * PAGE;
    struct cs_store *s = fake_open(&tier, &c);
    for (uint8_t k = 0; k < N_TENANTS; k++)
        set_quota(s, &(struct cs_tenant){{k}}, (struct cs_quota){.disk_bytes = (50 + k) * PAGE});
    store(s, &(struct cs_tenant){{STORED}}, 1, PT);
    uint64_t each = accounts_bytes_each(), room;
    cs_close(s, 0);
    c.index_bytes = 256 << 10;
    do { /* until half of what is no table has room for three of them */
        c.index_bytes -= each / 2;
        s = fake_open(&tier, &c);
        room = s->index.accounts.budget[USE_INDEX] / 2;
        assert_true(stats_of(s).index_bytes <= c.index_bytes);
        recount(s);
        if (room >= 4 * each)
            cs_close(s, 0);
    } while (room >= 4 * each);
    uint32_t n = 0;
    for (uint8_t k = 0; k < N_TENANTS; k++)
        n += use_of(s, &(struct cs_tenant){{k}}).own.disk_bytes == (50ull + k) * PAGE;
    assert_int_equal(n, 3);
    assert_true(use_of(s, &(struct cs_tenant){{STORED}}).own.disk_bytes > 0);
    assert_int_equal(found(s, &(struct cs_tenant){{STORED}}, 1, PT), PT);
    cs_close(s, 0);
    c.index_bytes = 0;
    s = fake_open(&tier, &c);
    for (uint8_t k = 0; k < N_TENANTS; k++)
        assert_int_equal(use_of(s, &(struct cs_tenant){{k}}).own.disk_bytes, (50 + k) * PAGE);
    recount(s);
    cs_close(s, 0);
}

static void tables_of_tenants_that_are_gone_shrink_when_a_store_opens(void **state)
{
    (void)state;
    enum { N_TENANTS = 300 };
    struct accounts as;
    struct account *a[N_TENANTS];
    assert_int_equal(accounts_open(&as, &(struct cs_quota){0}), CS_OK);
    uint64_t empty = as.bytes;
    for (uint32_t k = 0; k < N_TENANTS; k++) {
        a[k] = accounts_get(&as, &(struct cs_tenant){{(uint8_t)k, (uint8_t)(k >> 8)}});
        assert_non_null(a[k]);
        accounts_add_span(&as, a[k]);
    }
    for (uint32_t k = 0; k < N_TENANTS; k++)
        if (k % 100 != 7)
            accounts_remove_span(&as, a[k]);
    uint64_t before = as.bytes;
    accounts_pack(&as);
    assert_true(as.bytes < before);
    assert_int_equal(as.n_slots, 3);
    for (uint32_t k = 0; k < N_TENANTS; k++)
        assert_ptr_equal(accounts_find(&as, &(struct cs_tenant){{(uint8_t)k, (uint8_t)(k >> 8)}}),
                         k % 100 == 7 ? a[k] : NULL);
    for (uint32_t k = 7; k < N_TENANTS; k += 100)
        accounts_remove_span(&as, a[k]);
    for (uint32_t k = 0; k < N_TENANTS; k++) /* numbers are used again */
        accounts_settle(&as, accounts_get(&as, &(struct cs_tenant){{1, 1, (uint8_t)k, (uint8_t)(k >> 8)}}));
    assert_int_equal(as.n_slots, 3);
    accounts_pack(&as);
    assert_true(as.bytes <= empty + 3 * accounts_bytes_each());
    accounts_close(&as);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_fits_no_quota_of_the_disk_takes_nothing_from_it, forget_disk),
        cmocka_unit_test_teardown(a_path_is_enough_where_no_leaf_is, forget_disk),
        cmocka_unit_test_teardown(what_fits_no_disk_takes_nothing_from_it, forget_disk),
        cmocka_unit_test_teardown(what_fits_a_quota_and_no_disk_takes_nothing, forget_disk),
        cmocka_unit_test(what_fits_no_quota_of_the_host_takes_nothing_from_it),
        cmocka_unit_test(notes_that_fit_no_index_forget_nothing),
        cmocka_unit_test_teardown(what_one_tenant_has_no_room_for_cancels_nothing_of_others, forget_disk),
        cmocka_unit_test_teardown(who_waits_for_room_of_its_own_holds_up_nobody, forget_disk),
        cmocka_unit_test(who_waits_for_room_of_its_own_on_the_host_holds_up_nobody),
        cmocka_unit_test(notes_of_one_tenant_leave_others_their_share_of_the_index),
        cmocka_unit_test(who_has_more_than_its_share_of_the_index_gives_it_back),
        cmocka_unit_test_teardown(limits_take_no_more_than_half_of_an_index_that_has_become_smaller,
                                  forget_disk),
        cmocka_unit_test(tables_of_tenants_that_are_gone_shrink_when_a_store_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
