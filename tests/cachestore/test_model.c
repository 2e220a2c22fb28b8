/*
 * Random operations against a naive model: a set of everything ever published. Whatever the store does about
 * eviction, failures and restarts, a reused page was published for exactly these ids and has its bytes, the
 * counters balance, and the index's own counts equal a recount (recount.c). Without pressure the store reuses
 * exactly what the model says.
 */
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/fake_tier.h"
#include "tests/cachestore/recount.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_PAGES = 14, MAX_TOKENS = MAX_PAGES * PT + PT, N_OPEN = 5, SET_SIZE = 1 << 16, ENOUGH_SEEDS = 10 };

static uint64_t first_seed = 1, n_seeds = 30;

/* What the seeds of one test came to: a model that never gets there proves nothing. */
static struct {
    uint64_t resumed_tokens, restored_tokens, host_tokens, durable_spans, damaged;
} seen;

/* The model: hashes of (tenant, ids up to a page's end). */
struct model {
    uint64_t set[SET_SIZE];
};

static uint64_t path_hash(uint32_t tenant, const uint32_t *ids, size_t n)
{
    return XXH3_64bits_withSeed(ids, n * sizeof *ids, tenant + 1) | 1;
}

static uint64_t *model_slot(struct model *m, uint64_t h)
{
    size_t at = h % SET_SIZE;
    while (m->set[at] && m->set[at] != h)
        at = (at + 1) % SET_SIZE;
    return &m->set[at];
}

static size_t model_pages(struct model *m, uint32_t tenant, const uint32_t *ids, size_t n)
{
    size_t p = 0;
    while ((p + 1) * PT <= n - 1 && *model_slot(m, path_hash(tenant, ids, (p + 1) * PT)))
        p++;
    return p;
}

static void model_publish(struct model *m, uint32_t tenant, const uint32_t *ids, size_t n)
{
    for (size_t p = 1; p <= n / PT; p++) {
        uint64_t h = path_hash(tenant, ids, p * PT);
        *model_slot(m, h) = h;
    }
}

struct runner {
    struct model *model;
    struct cs_store *s;
    struct fake_tier *f; /* NULL: no disk */
    bool device;         /* that is not host memory */
    uint64_t rng;
    uint32_t fail_one_in; /* 0: never */
    bool with_quotas;
    bool exact;
    struct {
        struct cs_sequence *q;
        bool settled;
        uint32_t tenant;
        uint32_t ids[MAX_TOKENS];
        size_t n, n_published;
        size_t n_known; /* pages that the model had when it was opened */
    } open[N_OPEN];
};

static uint32_t pick(struct runner *r, uint32_t n)
{
    return (uint32_t)(random_next(&r->rng) >> 20) % n;
}

static struct cs_tenant tenant_of(uint32_t t)
{
    return (struct cs_tenant){.id = {(uint8_t)t}};
}

static void step_open(struct runner *r, size_t k)
{
    r->open[k].tenant = pick(r, 2);
    r->open[k].n = 1 + pick(r, MAX_TOKENS);
    r->open[k].n_published = 0;
    r->open[k].settled = false;
    /* Few choices a page, so that paths are shared and fork everywhere. */
    for (size_t p = 0; p * PT < MAX_TOKENS; p++) {
        uint32_t choice = pick(r, 4) == 0 ? pick(r, 3) : 0;
        for (size_t i = p * PT; i < (p + 1) * PT && i < MAX_TOKENS; i++)
            r->open[k].ids[i] = (uint32_t)(i * 10 + choice);
    }
    struct cs_tenant t = tenant_of(r->open[k].tenant);
    r->open[k].n_known = model_pages(r->model, r->open[k].tenant, r->open[k].ids, r->open[k].n);
    assert_int_equal(cs_sequence_open(r->s, &t, r->open[k].ids, r->open[k].n, &r->open[k].q), CS_OK);
}

static void step_settle(struct runner *r, size_t k)
{
    struct cs_reuse reuse;
    if (!cs_sequence_poll(r->open[k].q, &reuse))
        return;
    size_t pages = cs_sequence_n_pages(r->open[k].q);
    seen.resumed_tokens += pages * PT;
    seen.restored_tokens += reuse.tokens_disk;
    seen.host_tokens += reuse.tokens_host;
    assert_int_equal(pages * PT, cs_reuse_tokens(&reuse));
    assert_true(pages <= r->open[k].n_known);
    if (r->exact)
        assert_int_equal(pages, r->open[k].n_known);
    check_pages(r->open[k].q, r->open[k].ids, pages, r->open[k].tenant);
    assert_int_equal(reuse.miss == CS_MISS_NONE, r->open[k].n > PT && pages == (r->open[k].n - 1) / PT);
    r->open[k].settled = true;
    r->open[k].n_published = pages * PT;
}

static uint64_t refused(const struct cs_stats *st)
{
    return st->dropped_disk_full + st->dropped_queue_full + st->dropped_index_full + st->dropped_undurable +
           st->dropped_quota + st->evicted_quota;
}

/* What was published is on disk once nothing is pending, unless something was refused and counted. */
static void check_durable(struct runner *r, size_t k, size_t n_pages)
{
    struct cs_stats st = stats_of(r->s);
    assert_int_equal(cs_sequence_publish(r->open[k].q, r->open[k].ids, n_pages * PT, NULL, 0), CS_OK);
    fake_finish_everything(r->f);
    struct cs_stats now = stats_of(r->s);
    assert_int_equal(now.pending_bytes, 0);
    if (refused(&now) > refused(&st) || r->open[k].q->n_known < n_pages)
        return;
    pthread_mutex_lock(&r->s->lock);
    for (const struct span *sp = r->open[k].q->place; sp; sp = sp->parent) {
        assert_int_equal(sp->disk, SPAN_DISK_DURABLE);
        seen.durable_spans++;
    }
    pthread_mutex_unlock(&r->s->lock);
}

static void step_extend(struct runner *r, size_t k)
{
    struct cs_sequence *q = r->open[k].q;
    size_t had = cs_sequence_n_pages(q), n = r->open[k].n_published + pick(r, 16);
    if (n > MAX_TOKENS)
        n = MAX_TOKENS;
    if (cs_sequence_grow(q, n) != CS_OK)
        return;
    size_t full = n / PT;
    fill_pages(q, r->open[k].ids, had, cs_sequence_n_pages(q) < full ? cs_sequence_n_pages(q) : full,
               r->open[k].tenant);
    /* The last page may be partial: it is filled for all its ids, which are known. */
    if (cs_sequence_n_pages(q) > full && cs_sequence_n_pages(q) > had)
        fill_pages(q, r->open[k].ids, cs_sequence_n_pages(q) - 1, cs_sequence_n_pages(q), r->open[k].tenant);
    assert_int_equal(cs_sequence_publish(q, r->open[k].ids, n, NULL, 0), CS_OK);
    model_publish(r->model, r->open[k].tenant, r->open[k].ids, n);
    check_pages(q, r->open[k].ids, full, r->open[k].tenant);
    if (n > r->open[k].n_published)
        r->open[k].n_published = n;
    if (r->f && r->fail_one_in == 0 && pick(r, 4) == 0)
        check_durable(r, k, full);
}

static enum tier_result any_result(struct runner *r)
{
    static const enum tier_result bad[] = {TIER_EIO, TIER_CORRUPT_PAYLOAD, TIER_CORRUPT_HEADER};
    if (r->fail_one_in && pick(r, r->fail_one_in) == 0)
        return bad[pick(r, 3)];
    return TIER_OK;
}

static void step_device(struct runner *r)
{
    size_t n = fake_device_n_queued();
    if (n > 0 && pick(r, 3) > 0)
        fake_device_finish(pick(r, (uint32_t)n), any_result(r) == TIER_OK);
    if (r->fail_one_in && pick(r, 20) == 0)
        seen.damaged += damage_host_block(r->s, &r->rng);
}

/* Of one of the two tenants; any tier may have one. */
static void step_quota(struct runner *r)
{
    struct cs_tenant t = {.id = {(uint8_t)pick(r, 2)}};
    const uint64_t most[] = {0, 0, 5 * PAGE, 20 * PAGE, 60 * PAGE};
    set_quota(r->s, &t, (struct cs_quota){most[pick(r, 5)], most[pick(r, 5)], most[pick(r, 5)]});
}

static void step(struct runner *r)
{
    if (r->with_quotas && pick(r, 30) == 0)
        step_quota(r);
    size_t k = pick(r, N_OPEN);
    if (r->device)
        step_device(r);
    switch (pick(r, 6)) {
    case 0:
    case 1:
        if (r->f && r->f->n_reads)
            fake_finish_read(r->f, pick(r, (uint32_t)r->f->n_reads), any_result(r));
        break;
    case 2:
        if (r->f && r->f->n_writes)
            fake_finish_write(r->f, any_result(r) == TIER_OK ? TIER_OK : TIER_EIO);
        break;
    default:
        if (!r->open[k].q) {
            step_open(r, k);
        } else if (!r->open[k].settled) {
            step_settle(r, k);
            if (!r->open[k].settled && pick(r, 20) == 0) {
                cs_sequence_close(r->open[k].q);
                r->open[k].q = NULL;
            }
        } else if (pick(r, 4) == 0) {
            cs_sequence_close(r->open[k].q);
            r->open[k].q = NULL;
        } else {
            step_extend(r, k);
        }
    }
}

static void close_all(struct runner *r)
{
    for (size_t k = 0; k < N_OPEN; k++) {
        if (r->open[k].q)
            cs_sequence_close(r->open[k].q);
        r->open[k].q = NULL;
    }
    settle_store(r->s, r->f);
    assert_int_equal(stats_of(r->s).pages_live, 0);
    recount(r->s);
    check_balance(r->s);
    struct cs_stats st = stats_of(r->s);
    assert_true(r->fail_one_in > 0 || st.corrupt_host + st.copy_errors == 0);
    cs_close(r->s, 0);
    if (r->device)
        fake_device_close();
}

static struct cs_store *run_store_open(struct runner *r, const struct cs_config *c)
{
    struct cs_config config = *c;
    if (r->device)
        config.device = fake_device_open(false);
    return r->f ? fake_open(r->f, &config) : tiny_open(&config);
}

static void run(uint64_t seed, const struct cs_config *c, uint64_t disk_budget, uint32_t fail_one_in,
                bool exact, int steps)
{
    struct fake_tier f = {.budget = disk_budget, .allow_parent_delete = fail_one_in > 0};
    struct runner r = {.model = calloc(1, sizeof(struct model)),
                       .f = disk_budget ? &f : NULL,
                       .device = c->host_bytes > 0,
                       .rng = seed,
                       .fail_one_in = fail_one_in,
                       .with_quotas = !exact && seed % 4 == 0,
                       .exact = exact};
    assert_non_null(r.model);
    for (int restart = 0; restart < (disk_budget ? 3 : 1); restart++) {
        r.s = run_store_open(&r, c);
        recount(r.s);
        for (int i = 0; i < steps; i++) {
            step(&r);
            check_balance(r.s);
            if (i % 16 == 0)
                recount(r.s);
        }
        close_all(&r);
    }
    if (disk_budget && fail_one_in == 0) {
        /* Every durable row still leads somewhere. */
        r.s = run_store_open(&r, c);
        assert_int_equal(records_known(r.s), f.n_records);
        close_all(&r);
    }
    fake_free(&f);
    free(r.model);
}

static int forget_seen(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof seen);
    return 0;
}

/* Behind all seeds; few of them may miss something. */
static void check_seen(bool disk, bool durable)
{
    if (n_seeds < ENOUGH_SEEDS)
        return;
    assert_true(seen.resumed_tokens > 0);
    assert_int_equal(seen.restored_tokens > 0, disk);
    assert_int_equal(seen.durable_spans > 0, durable);
}

static void with_room_for_everything_reuse_is_exactly_what_was_published(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(4000);
    c.index_bytes = 8 << 20;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        run(seed, &c, 0, 0, true, 600);
    check_seen(false, false);
}

static void under_pressure_of_pages_and_index_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = tiny_config(20 + (uint32_t)(seed % 5) * 13);
        c.index_bytes = seed % 2 ? 12 << 10 : 1 << 20;
        run(seed, &c, 0, 0, false, 600);
    }
    check_seen(false, false);
}

static void run_small_budgets(uint64_t seed)
{
    struct cs_config c = tiny_config(24 + (uint32_t)(seed % 4) * 20);
    c.index_bytes = seed % 2 ? 12 << 10 : 1 << 20;
    run(seed, &c, (seed % 3 + 1) * 60 * PAGE, 0, false, 600);
}

static void over_a_disk_with_small_budgets_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        run_small_budgets(seed);
    check_seen(true, true);
}

/* Parents that were on no disk waited behind what hangs on them, and those above went for room meanwhile. */
static void a_path_waits_for_the_disk_from_its_beginning_on(void **state)
{
    (void)state;
    run_small_budgets(10638);
}

static void over_a_failing_disk_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = tiny_config(24 + (uint32_t)(seed % 4) * 20);
        run(seed, &c, (seed % 3 + 1) * 60 * PAGE, 3 + (uint32_t)seed % 10, false, 600);
    }
    check_seen(true, false);
}

/* Pages of an arena out of reach, blocks of the host: from a few spans to more than the arena. */
static struct cs_config device_config(uint64_t seed, uint32_t arena_pages)
{
    struct cs_config c = tiny_config(arena_pages);
    c.host_bytes = (uint64_t[]){10, 60, 200}[seed % 3] * PAGE;
    return c;
}

static void on_a_device_out_of_reach_reuse_is_exact_while_there_is_room(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = device_config(seed, 4000);
        c.index_bytes = 8 << 20;
        run(seed, &c, 0, 0, true, 600);
    }
    check_seen(false, false);
}

static void over_a_host_tier_alone_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = device_config(seed, 20 + (uint32_t)(seed % 5) * 13);
        c.index_bytes = seed % 2 ? 12 << 10 : 1 << 20;
        run(seed, &c, 0, seed % 4 ? 0 : 5, false, 600);
    }
    check_seen(false, false);
    assert_true(n_seeds < ENOUGH_SEEDS || seen.host_tokens > 0);
}

static void over_host_and_disk_with_small_budgets_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = device_config(seed, 24 + (uint32_t)(seed % 4) * 20);
        c.index_bytes = seed % 2 ? 14 << 10 : 1 << 20;
        run(seed, &c, (seed % 3 + 1) * 60 * PAGE, 0, false, 600);
    }
    check_seen(true, true);
    assert_true(n_seeds < ENOUGH_SEEDS || seen.host_tokens > 0);
}

static void over_host_and_disk_that_fail_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = device_config(seed, 24 + (uint32_t)(seed % 4) * 20);
        run(seed, &c, (seed % 3 + 1) * 60 * PAGE, 3 + (uint32_t)seed % 10, false, 600);
    }
    check_seen(true, false);
    assert_true(n_seeds < ENOUGH_SEEDS || (seen.host_tokens > 0 && seen.damaged > 0));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        n_seeds = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(with_room_for_everything_reuse_is_exactly_what_was_published, forget_seen),
        cmocka_unit_test_setup(under_pressure_of_pages_and_index_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_a_disk_with_small_budgets_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test(a_path_waits_for_the_disk_from_its_beginning_on),
        cmocka_unit_test_setup(over_a_failing_disk_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(on_a_device_out_of_reach_reuse_is_exact_while_there_is_room, forget_seen),
        cmocka_unit_test_setup(over_a_host_tier_alone_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_host_and_disk_with_small_budgets_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_host_and_disk_that_fail_nothing_wrong_is_served, forget_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
