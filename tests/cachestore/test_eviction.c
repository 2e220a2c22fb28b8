/* What leaves the device first: what is worth least at that moment. */
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include "cachestore/policy/evict.h"
#include "cachestore/policy/worth.h"
#include "cachestore/store.h"

#include <stdlib.h>

enum { N = 400 };

static const struct cs_boundary system_only[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM}};

static void worth_is_weight_times_time_over_blocks_and_age(void **state)
{
    (void)state;
    const struct worth_costs unknown = worth_costs_of(0, 0);
    struct worth_facts f = {.from = 400, .to = 1000, .blocks_freed = 100, .role = WORTH_LEAF};
    double leaf = worth_value(&unknown, &f);
    f.role = WORTH_SHARED;
    double shared = worth_value(&unknown, &f);
    f.role = WORTH_INTERIOR;
    double interior = worth_value(&unknown, &f);
    assert_true(leaf == 6 && shared > 1.19 && shared < 1.21 && interior > 0.17 && interior < 0.19);
    f.from = 1000;
    assert_true(worth_value(&unknown, &f) == 0);
    f = (struct worth_facts){.from = 400, .to = 1000, .blocks_freed = 0, .role = WORTH_LEAF};
    assert_true(worth_value(&unknown, &f) == 0);
    /* 6 / (20 + 10) and 3 / (5 + 10). */
    assert_int_equal(worth_compare(6, 20000000, 3, 5000000), 0);
    assert_true(worth_compare(6, 20000001, 3, 5000000) < 0 && worth_compare(6, 19999999, 3, 5000000) > 0);
}

static void the_order_of_two_changes_once_and_not_before_it_is_said(void **state)
{
    (void)state;
    const int64_t second = 1000000;
    assert_true(worth_stays_us(3, 5 * second, 6, 20 * second) == UINT64_MAX);
    assert_true(worth_stays_us(3, 50 * second, 3, 20 * second) == UINT64_MAX);
    /* Worth 6 / 50 and 3 / 15; the same after 20 s. */
    uint64_t stays = worth_stays_us(6, 40 * second, 3, 5 * second);
    assert_true(stays > 19999990 && stays <= 20000000);
    assert_true(worth_compare(6, 60 * second, 3, 25 * second) == 0);
    assert_true(worth_compare(6, 60 * second + 1, 3, 25 * second + 1) > 0);
    assert_int_equal(worth_stays_us(6, 60 * second, 3, 25 * second), 1);
}

static void later_tokens_are_worth_what_they_cost_more(void **state)
{
    (void)state;
    const struct worth_facts first = {.from = 0, .to = 1000, .blocks_freed = 10, .role = WORTH_LEAF},
                             later = {.from = 3000, .to = 4000, .blocks_freed = 10, .role = WORTH_LEAF};
    /* 2 us a token and 1/1000 us a token squared: 3 and 9 ms. */
    struct worth_costs known = worth_costs_of(2, 0.001);
    assert_true(worth_value(&known, &first) > 149.9 && worth_value(&known, &first) < 150.1);
    assert_true(worth_value(&known, &later) > 449.9 && worth_value(&known, &later) < 450.1);
    struct worth_costs unknown = worth_costs_of(0, 0), steep = worth_costs_of(0, 5);
    assert_true(worth_value(&unknown, &first) == worth_value(&unknown, &later));
    double ratio = worth_value(&steep, &later) / worth_value(&steep, &first);
    assert_true(ratio > 6.99 && ratio < 7.01);
}

static void pages_of_a_dense_model_are_worth_the_same_at_any_depth(void **state)
{
    (void)state;
    const struct worth_costs known = worth_costs_of(2, 0.001);
    const struct worth_facts first = {.from = 0, .to = 16, .blocks_freed = 1, .role = WORTH_PAGES},
                             deep = {.from = 90000, .to = 90016, .blocks_freed = 1, .role = WORTH_PAGES};
    assert_true(worth_value(&known, &first) == 16 && worth_value(&known, &deep) == 16);
}

static void what_continues_a_path_counts_as_used_90_seconds_later(void **state)
{
    (void)state;
    const struct evict_facts once = {.last_used = 100000000},
                             again = {.last_used = 10000001, .continues = true},
                             long_ago = {.last_used = 9999999, .continues = true};
    assert_true(evict_oldest_before(&once, &again) && evict_oldest_before(&long_ago, &once));
}

/* ---- the ranks themselves, against a plain search ---------------------------------------------------- */

enum { RANKED = 400, TENANTS = 5 };

/* Durable ones first, then the oldest. */
static struct span *oldest(struct span *const *spans, const struct account *of)
{
    struct span *want = NULL;
    for (uint32_t i = 0; i < RANKED; i++) {
        struct span *sp = spans[i];
        if (!sp || (of && sp->account != of))
            continue;
        bool durable = sp->disk == SPAN_DISK_DURABLE, want_durable = want && want->disk == SPAN_DISK_DURABLE;
        if (!want || (durable && !want_durable) ||
            (durable == want_durable && sp->last_used < want->last_used))
            want = sp;
    }
    return want;
}

static void what_is_worth_the_same_leaves_by_age(void **state)
{
    (void)state;
    struct index ix;
    struct arena a;
    const struct cs_quota none = {0};
    assert_int_equal(arena_open(&a, (uint64_t)RANKED * PAGE, PAGE, NULL, false), CS_OK);
    assert_int_equal(index_open(&ix, &a, NULL, PT, 4 << 20, &none), CS_OK);
    struct span *spans[RANKED];
    struct account *accounts[TENANTS];
    uint64_t rng = 5;
    uint32_t ids[PT] = {0}, left = RANKED;
    for (uint8_t i = 0; i < TENANTS; i++)
        accounts[i] = index_account_locked(&ix, &(struct cs_tenant){{i}});
    for (uint32_t i = 0; i < RANKED; i++) {
        struct cs_key key = {i + 1, i + 1};
        ids[0] = i;
        struct account *account = accounts[i % TENANTS];
        spans[i] = index_add_locked(&ix, NULL, 0, (struct cs_key){0}, key, account, ids, 1);
        uint32_t page = arena_take(&a, account->slot);
        index_attach_locked(&ix, spans[i], 0, page, false);
        index_page_unref_locked(&ix, page);
        if (random_next(&rng) % 3 == 0)
            index_set_disk_locked(&ix, spans[i], SPAN_DISK_DURABLE);
        index_touch_locked(&ix, spans[i], 1 + random_next(&rng) % 100000);
    }
    while (left > 0) {
        /* Some are used again meanwhile, or become durable. */
        for (int k = 0; k < 3; k++) {
            struct span *sp = spans[random_next(&rng) % RANKED];
            if (sp && random_next(&rng) % 2)
                index_touch_locked(&ix, sp, 1 + random_next(&rng) % 200000);
            else if (sp)
                index_set_disk_locked(&ix, sp, SPAN_DISK_DURABLE);
        }
        uint32_t whose = (uint32_t)(random_next(&rng) % (2 * TENANTS)), at = 0;
        const struct account *of =
            whose < TENANTS ? accounts_find(&ix.accounts, &(struct cs_tenant){{(uint8_t)whose}}) : NULL;
        if (whose < TENANTS && !of)
            continue; /* it has nothing any more */
        struct span *want = oldest(spans, of), *got = ranks_victim_locked(&ix, RANK_DEVICE, of);
        assert_true(want && got);
        assert_true(got->last_used == want->last_used && (!of || got->account == of));
        assert_int_equal(got->disk, want->disk);
        assert_int_equal(got->account->used[RANK_DEVICE] % PAGE, 0);
        while (spans[at] != got)
            at++;
        index_detach_locked(&ix, got, 0, CS_GONE_EVICTED);
        index_set_disk_locked(&ix, got, SPAN_DISK_NONE);
        index_requeue_locked(&ix, got);
        index_remove_locked(&ix, got);
        spans[at] = NULL;
        left--;
    }
    for (int t = 0; t < RANK_TIERS; t++)
        assert_null(ranks_victim_locked(&ix, (enum rank_tier)t, NULL));
    assert_int_equal(ix.accounts.n, 0);
    index_close(&ix);
    arena_close(&a);
}

/* ---- in the store ------------------------------------------------------------------------------------ */

static void fill_with_others(struct cs_store *s, const struct cs_config *c, uint32_t n, uint32_t seed)
{
    uint32_t ids[N];
    for (uint32_t k = 0; k < n; k++) {
        make_ids(ids, N, 0, seed + k);
        run_turn(s, c, 0, ids, 40, 49, NULL, 0);
        check_balance(s);
    }
}

static void a_conversation_that_has_gone_on_outlives_a_later_first_prompt(void **state)
{
    (void)state;
    enum { PROMPT = 16, ROOM = 4 * PROMPT + 1 };
    struct cs_config c = tiny_config(ROOM);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[6][PROMPT * PT + 1];
    for (uint32_t i = 0; i < 6; i++)
        make_ids(ids[i], PROMPT * PT + 1, 0, 100 + i);
    round_trip(s, NULL, ids[0], PROMPT / 2 * PT);
    assert_int_equal(round_trip(s, NULL, ids[0], PROMPT * PT), PROMPT / 2 * PT);
    for (uint32_t i = 1; i < 6; i++)
        assert_int_equal(round_trip(s, NULL, ids[i], PROMPT * PT), 0);
    assert_int_equal(look_up(s, NULL, ids[0], PROMPT * PT).tokens_device, PROMPT * PT);
    assert_true(look_up(s, NULL, ids[1], PROMPT * PT).tokens_device < PROMPT * PT);
    check_balance(s);
    cs_close(s, 0);
}

static void pages_that_nothing_resumes_leave_first(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(80);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[N], b[N];
    make_ids(a, N, 0, 1);
    make_ids(b, N, 0, 2);
    assert_int_equal(run_turn(s, &c, 0, a, 40, 49, NULL, 0), 0); /* 12 pages, a checkpoint at 48 */
    /* Younger, but without a checkpoint. */
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, b, 100), 0);
    assert_int_equal(run_compute(&r, 100, 20), CS_OK);
    run_publish(&r);
    run_close(&r);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.pages_cached, 12 + 9 + 25);
    fill_with_others(s, &c, 2, 10);
    assert_int_equal(stats_of(s).evicted_device_checkpoints, 0);
    assert_int_equal(run_start(&r, s, &c, 0, a, 60), 48);
    run_close(&r);
    assert_int_equal(run_start(&r, s, &c, 0, b, 100), 0);
    assert_true(r.reuse.tokens_matched < 96);
    run_close(&r);
    cs_close(s, 0);
}

static void checkpoints_on_the_way_leave_before_ends_of_paths(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(140);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[N];
    make_ids(a, N, 0, 1);
    /* System, two on the way, the end: at 16, 40, 72, 104. */
    const struct cs_boundary b[] = {system_only[0], {40, CS_BOUNDARY_TURN}, {72, CS_BOUNDARY_TURN}};
    assert_int_equal(run_turn(s, &c, 0, a, 100, 105, b, 3), 0);
    assert_int_equal(stats_of(s).checkpoints, 4);
    struct run r;
    for (uint32_t k = 0; stats_of(s).evicted_device_checkpoints < 2; k++) {
        assert_int_equal(run_start(&r, s, &c, 0, a, 120), 104); /* used all the time */
        run_close(&r);
        fill_with_others(s, &c, 1, 10 + k);
    }
    assert_int_equal(run_start(&r, s, &c, 0, a, 120), 104);
    run_close(&r);
    assert_true(run_start(&r, s, &c, 0, a, 100) < 40);
    assert_int_equal(r.reuse.miss, CS_MISS_EVICTED);
    run_close(&r);
    cs_close(s, 0);
}

static void what_is_durable_leaves_before_what_would_be_lost(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = stateful_config(100);
    c.checkpoint_grace_ms = UINT32_MAX;
    struct cs_store *s = fake_open(&f, &c);
    uint32_t ids[N];
    /* The younger one is durable. */
    make_ids(ids, N, 0, 1);
    run_turn(s, &c, 0, ids, 40, 49, NULL, 0);
    fake_finish_writes(&f, TIER_EIO);
    make_ids(ids, N, 0, 2);
    run_turn(s, &c, 0, ids, 40, 49, NULL, 0);
    fake_finish_writes(&f, TIER_OK);
    uint32_t seed = 10;
    while (stats_of(s).evicted_device_checkpoints == 0) {
        fill_with_others(s, &c, 1, seed++);
        fake_finish_writes(&f, TIER_EIO);
    }
    struct run r;
    make_ids(ids, N, 0, 1);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 48);
    run_close(&r);
    fake_finish_writes(&f, TIER_OK);
    cs_close(s, 0);
    fake_free(&f);
}

/* What is in use gives no room, durable or not: not taken before the last bytes that do. */
static void a_checkpoint_in_use_leaves_behind_all_that_gives_room(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = stateful_config(40);
    c.window_groups = c.window_tokens = 0;
    c.checkpoint_grace_ms = UINT32_MAX;
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[N], b[N];
    make_ids(a, N, 0, 1);
    make_ids(b, N, 0, 2);
    run_turn(s, &c, 0, a, 48, 49, NULL, 0); /* 12 pages, a checkpoint at 48 */
    fake_finish_writes(&f, TIER_OK);
    run_turn(s, &c, 0, b, 48, 49, NULL, 0);
    fake_finish_writes(&f, TIER_EIO);
    assert_int_equal(stats_of(s).checkpoints, 2);

    struct run user;
    run_open(&user, s, &c, 0, a, 60);
    struct cs_reuse reuse = wait_settled(user.q); /* its state is not copied yet */
    assert_int_equal(reuse.tokens_device, 48);
    assert_int_equal(cs_sequence_grow(user.q, 48 + (stats_of(s).pages_free + 1) * PT), CS_OK);
    assert_int_equal(stats_of(s).evicted_device_checkpoints, 1);
    run_close(&user);

    struct run r;
    run_open(&r, s, &c, 0, a, 60);
    assert_int_equal(f.n_reads, 0);
    assert_true(run_settle(&r));
    assert_int_equal(r.n_computed, 48);
    run_close(&r);
    fake_finish_writes(&f, TIER_OK);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

/* Their bytes are on no disk and nobody misses them: no reason to end the grace of checkpoints. */
static void pages_that_nothing_resumes_are_no_pressure(void **state)
{
    (void)state;
    struct fake_tier f = {0};
    struct cs_config c = stateful_config(60);
    c.checkpoint_grace_ms = 1000000;
    struct cs_store *s = fake_open(&f, &c);
    uint32_t a[N], b[N];
    make_ids(a, N, 0, 1);
    make_ids(b, N, 0, 2);
    run_turn(s, &c, 0, a, 40, 49, NULL, 0); /* 12 pages, a checkpoint of 9 blocks */
    fake_finish_writes(&f, TIER_OK);
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, b, 60), 0);
    assert_int_equal(run_compute(&r, 60, 20), CS_OK);
    run_publish(&r);
    run_close(&r);
    fake_finish_writes(&f, TIER_EIO);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.pages_cached, 12 + 9 + 15);
    assert_int_equal(st.pending_bytes, 9 * PAGE);
    struct cs_reuse reuse;
    struct cs_sequence *q = open_settled(s, NULL, NULL, 0, &reuse);
    assert_int_equal(cs_sequence_grow(q, (st.pages_free + 15) * PT), CS_OK);
    assert_int_equal(f.n_writes, 0);
    assert_int_equal(stats_of(s).pending_bytes, 9 * PAGE);
    cs_sequence_close(q);
    fake_finish_writes(&f, TIER_OK);
    check_balance(s);
    cs_close(s, 0);
    fake_free(&f);
}

/* No kind starves another: the arena is full of what is asked for, whatever that is. */
static void the_arena_turns_from_pages_to_checkpoints_and_back(void **state)
{
    (void)state;
    struct cs_config c = stateful_config(1000);
    c.index_bytes = 8 << 20;
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    for (int round = 0; round < 3; round++) {
        /* Long paths with a checkpoint at their end only. */
        for (uint32_t k = 0; k < 40; k++) {
            make_ids(ids, N, 0, 1000u * (uint32_t)round + k);
            run_turn(s, &c, 0, ids, 390, N - 1, NULL, 0);
            check_balance(s);
        }
        struct cs_stats st = stats_of(s);
        assert_true(st.pages_live == 0 && st.pages_cached * 100 >= st.pages_total * 95);
        assert_true(st.checkpoint_blocks * 100 < st.pages_total * 15);
        grow_old(s);
        /* Paths of two pages that hold a checkpoint each. */
        for (uint32_t k = 0; k < 200; k++) {
            make_ids(ids, N, 0, 1000u * (uint32_t)round + 100 + k);
            run_turn(s, &c, 0, ids, 8, 9, NULL, 0);
            check_balance(s);
        }
        st = stats_of(s);
        assert_true(st.pages_live == 0 && st.pages_cached * 100 >= st.pages_total * 95);
        assert_true(st.checkpoint_blocks * 100 > st.pages_total * 65);
        grow_old(s);
    }
    cs_close(s, 0);
}

/* When the checkpoint at this position was used last; 0: there is none. */
static uint64_t checkpoint_used(struct cs_store *s, uint32_t position)
{
    uint64_t used = 0;
    pthread_mutex_lock(&s->lock);
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp; sp = sp->hash_next)
            if (sp->kind == SPAN_CHECKPOINT && sp->first_position == position)
                used = sp->last_used;
    pthread_mutex_unlock(&s->lock);
    return used;
}

static void a_hit_refreshes_the_checkpoint_it_resumes_from_and_no_other(void **state)
{
    (void)state;
    static const uint32_t at[] = {16, 56, 96};
    static const struct cs_boundary boundaries[] = {{21, CS_BOUNDARY_SYSTEM}, {60, CS_BOUNDARY_END}};
    struct cs_config c = stateful_config(300);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, N, 0);
    assert_int_equal(run_turn(s, &c, 0, ids, 60, 100, boundaries, 2), 0);
    for (size_t hit = 0; hit < 3; hit++) {
        uint64_t before[3];
        struct run r;
        for (size_t i = 0; i < 3; i++)
            before[i] = checkpoint_used(s, at[i]);
        assert_int_equal(run_start(&r, s, &c, 0, ids, at[hit] + 5), at[hit]);
        run_close(&r);
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(checkpoint_used(s, at[i]) > before[i], i == hit);
    }
    check_balance(s);
    cs_close(s, 0);
}

/* What was evicted from a span comes back as pages of a sequence that has its own copies of the others. */
static void unused_pages_before_used_ones_make_room(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(7);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[N];
    make_ids(ids, N, 0, 1);
    assert_int_equal(round_trip(s, NULL, ids, 3 * PT), 0);
    struct cs_reuse reuse;
    struct cs_sequence *q = open_settled(s, NULL, NULL, 0, &reuse), *other;
    assert_int_equal(cs_sequence_grow(q, 3 * PT), CS_OK);
    fill_pages(q, ids, 0, 3, 0);
    other = open_settled(s, NULL, NULL, 0, &reuse);
    assert_int_equal(cs_sequence_grow(other, 2 * PT), CS_OK); /* the span's last page leaves */
    cs_sequence_close(other);
    assert_int_equal(cs_sequence_publish(q, ids, 3 * PT, NULL, 0), CS_OK);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_duplicate_pages, 2);
    assert_int_equal(st.pages_live, 3);
    assert_int_equal(st.pages_cached, 2);
    check_balance(s);
    assert_int_equal(cs_sequence_grow(q, 6 * PT), CS_OK);
    check_balance(s);
    assert_int_equal(stats_of(s).pages_cached, 1);
    assert_int_equal(cs_sequence_grow(q, 7 * PT), CS_OK);
    check_balance(s);
    check_pages(q, ids, 3, 0);
    cs_sequence_close(q);
    check_balance(s);
    assert_int_equal(round_trip(s, NULL, ids, 7 * PT), 0);
    assert_int_equal(look_up(s, NULL, ids, 7 * PT).tokens_device, 7 * PT);
    cs_close(s, 0);
}

/* Durable first, leaves before what rests on them, what waits at the end, and what is held never. */
static void who_may_leave_and_when(void **state)
{
    (void)state;
    static const struct {
        struct evict_standing is;
        enum evict_turn turn;
    } cases[] = {
        {{.safe = true}, EVICT_SAFE},
        {{.safe = false}, EVICT_UNSAFE},
        {{.waits = true}, EVICT_WAITING},
        {{.safe = true, .waits = true}, EVICT_SAFE},
        {{.safe = true, .rested_on = true}, EVICT_SAFE_LAST},
        {{.rested_on = true}, EVICT_UNSAFE_LAST},
        {{.waits = true, .rested_on = true}, EVICT_WAITING_LAST},
        {{.useless = true}, EVICT_NOTHING},
        {{.useless = true, .rested_on = true, .waits = true}, EVICT_NOTHING},
        {{.useless = true, .part_of_useful = true}, EVICT_UNSAFE},
        {{.useless = true, .part_of_useful = true, .waits = true}, EVICT_WAITING},
        {{.useless = true, .part_of_useful = true, .safe = true}, EVICT_NOTHING},
        {{.gives_none = true}, EVICT_WAITING_LAST},
        {{.gives_none = true, .safe = true, .useless = true}, EVICT_WAITING_LAST},
        {{.held = true}, EVICT_NEVER},
        {{.held = true, .safe = true, .useless = true}, EVICT_NEVER},
        {{.held = true, .gives_none = true}, EVICT_NEVER},
        {{.safe = true, .parents_stay = true}, EVICT_SAFE},
        {{.safe = true, .parents_stay = true, .rested_on = true}, EVICT_NEVER},
        {{.useless = true, .parents_stay = true, .rested_on = true}, EVICT_NEVER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(evict_turn_of(&cases[i].is), cases[i].turn);
    static const enum evict_turn order[] = {EVICT_NOTHING,      EVICT_SAFE,        EVICT_UNSAFE,
                                            EVICT_SAFE_LAST,    EVICT_UNSAFE_LAST, EVICT_WAITING,
                                            EVICT_WAITING_LAST, EVICT_NEVER};
    static const bool by_worth[] = {false, true, true, false, false, true, false, false};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        assert_true(i == 0 || order[i] > order[i - 1]);
        assert_int_equal(evict_by_worth(order[i]), by_worth[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worth_is_weight_times_time_over_blocks_and_age),
        cmocka_unit_test(the_order_of_two_changes_once_and_not_before_it_is_said),
        cmocka_unit_test(later_tokens_are_worth_what_they_cost_more),
        cmocka_unit_test(pages_of_a_dense_model_are_worth_the_same_at_any_depth),
        cmocka_unit_test(what_continues_a_path_counts_as_used_90_seconds_later),
        cmocka_unit_test(who_may_leave_and_when),
        cmocka_unit_test(what_is_worth_the_same_leaves_by_age),
        cmocka_unit_test(a_conversation_that_has_gone_on_outlives_a_later_first_prompt),
        cmocka_unit_test(pages_that_nothing_resumes_leave_first),
        cmocka_unit_test(checkpoints_on_the_way_leave_before_ends_of_paths),
        cmocka_unit_test(what_is_durable_leaves_before_what_would_be_lost),
        cmocka_unit_test(a_checkpoint_in_use_leaves_behind_all_that_gives_room),
        cmocka_unit_test(pages_that_nothing_resumes_are_no_pressure),
        cmocka_unit_test(the_arena_turns_from_pages_to_checkpoints_and_back),
        cmocka_unit_test(unused_pages_before_used_ones_make_room),
        cmocka_unit_test(a_hit_refreshes_the_checkpoint_it_resumes_from_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
