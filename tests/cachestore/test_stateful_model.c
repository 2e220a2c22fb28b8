/*
 * Random operations of a model with windows and state against a naive one: the set of all checkpoints ever
 * published. Whatever the store does about eviction, failures and restarts, a sequence resumes only where one
 * was published for exactly these ids, finds the bytes that belong there and to every window it reads later,
 * no path has more checkpoints than it may, and a recount finds what the counters say. Without pressure and
 * without thinning it resumes exactly at the deepest one.
 */
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/recount.h"
#include "tests/cachestore/stateful.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_PAGES = 16, MAX_TOKENS = MAX_PAGES * PT + 3, N_OPEN = 5, SET_SIZE = 1 << 16, ENOUGH_SEEDS = 10 };

static uint64_t first_seed = 1, n_seeds = 20;

/* What the seeds of one test came to: a model that never gets there proves nothing. */
static struct {
    uint64_t resumed_tokens, restored_tokens, host_tokens, durable_spans, damaged;
    struct cs_kept device, host, disk_spans, disk_checkpoints;
} seen;

struct set {
    uint64_t item[SET_SIZE];
};

static uint64_t *slot(struct set *m, uint32_t tenant, const uint32_t *ids, uint32_t n)
{
    uint64_t h = XXH3_64bits_withSeed(ids, n * sizeof *ids, tenant + 1) | 1;
    size_t at = h % SET_SIZE;
    while (m->item[at] && m->item[at] != h)
        at = (at + 1) % SET_SIZE;
    return &m->item[at];
}

static void set_add(struct set *m, uint32_t tenant, const uint32_t *ids, uint32_t n)
{
    uint64_t *s = slot(m, tenant, ids, n);
    *s = XXH3_64bits_withSeed(ids, n * sizeof *ids, tenant + 1) | 1;
}

struct machine {
    struct set *checkpoints;
    struct cs_store *s;
    struct cs_config c;
    struct fake_tier *f; /* NULL: no disk */
    bool device;         /* that is not host memory */
    uint64_t rng;
    uint32_t fail_one_in; /* 0: never */
    bool with_quotas;
    bool exact;
    struct {
        struct run r;
        bool open, settled, refused;
        uint32_t tenant, n; /* n: of the prompt */
        uint32_t deepest;   /* checkpoint that the model had when it was opened */
        uint32_t ids[MAX_TOKENS];
    } open[N_OPEN];
};

static uint32_t pick(struct machine *m, uint32_t n)
{
    return (uint32_t)(random_next(&m->rng) >> 20) % n;
}

static uint32_t deepest_known(struct machine *m, size_t k)
{
    uint32_t deepest = 0, grid = m->open[k].r.grid;
    for (uint32_t p = grid; p <= (m->open[k].n - 1) / PT * PT; p += grid)
        if (*slot(m->checkpoints, m->open[k].tenant, m->open[k].ids, p))
            deepest = p;
    return deepest;
}

static void step_open(struct machine *m, size_t k)
{
    m->open[k].tenant = pick(m, 2);
    m->open[k].n = 1 + pick(m, MAX_TOKENS);
    for (size_t p = 0; p * PT < MAX_TOKENS; p++) {
        uint32_t choice = pick(m, 5) == 0 ? pick(m, 3) : 0;
        for (size_t i = p * PT; i < (p + 1) * PT && i < MAX_TOKENS; i++)
            m->open[k].ids[i] = (uint32_t)(i * 10 + choice);
    }
    run_open(&m->open[k].r, m->s, &m->c, m->open[k].tenant, m->open[k].ids, m->open[k].n);
    m->open[k].deepest = deepest_known(m, k);
    m->open[k].open = true;
    m->open[k].settled = m->open[k].refused = false;
}

static void step_settle(struct machine *m, size_t k)
{
    struct run *r = &m->open[k].r;
    uint32_t n = m->open[k].n;
    if (!run_settle(r))
        return;
    m->open[k].settled = true;
    seen.resumed_tokens += r->n_computed;
    seen.restored_tokens += r->reuse.tokens_disk;
    seen.host_tokens += r->reuse.tokens_host;
    assert_true(r->n_computed <= deepest_known(m, k));
    assert_true(r->n_computed == 0 ||
                *slot(m->checkpoints, m->open[k].tenant, m->open[k].ids, r->n_computed));
    if (m->exact)
        assert_int_equal(r->n_computed, m->open[k].deepest);
    struct cs_boundary b[4];
    uint32_t n_boundaries = pick(m, 5), at = 0;
    for (uint32_t i = 0; i < n_boundaries; i++) {
        at += pick(m, n);
        b[i] = (struct cs_boundary){.position = at < n ? at : n, .kind = (enum cs_boundary_kind)pick(m, 4)};
    }
    assert_int_equal(cs_sequence_place(r->q, b, n_boundaries, n), CS_OK);
}

static void step_compute(struct machine *m, size_t k)
{
    struct run *r = &m->open[k].r;
    uint32_t to = r->n_computed + 1 + pick(m, 20);
    if (to > MAX_TOKENS)
        to = MAX_TOKENS;
    if (run_compute(r, to, 1 + pick(m, 12)) != CS_OK)
        m->open[k].refused = true;
}

/* All that q holds and has computed goes out; the model takes it from the sequence itself. */
static void step_publish(struct machine *m, size_t k)
{
    struct run *r = &m->open[k].r;
    for (const struct capture *c = r->q->captures; c; c = c->next)
        if (c->filled)
            set_add(m->checkpoints, m->open[k].tenant, m->open[k].ids, c->position);
    run_publish(r);
}

static uint64_t refused(const struct cs_stats *st)
{
    return st->dropped_disk_full + st->dropped_queue_full + st->dropped_index_full + st->dropped_undurable +
           st->dropped_quota + st->evicted_quota;
}

/* What was published is on disk once nothing is pending, with the checkpoint that the path is resumed from,
 * unless something was refused and counted. */
static void check_durable(struct machine *m, size_t k)
{
    struct cs_stats st = stats_of(m->s);
    struct cs_sequence *q = m->open[k].r.q;
    step_publish(m, k);
    settle_store(m->s, m->f);
    struct cs_stats now = stats_of(m->s);
    assert_int_equal(now.pending_bytes, 0);
    if (refused(&now) > refused(&st) || q->n_known < q->n_computed / PT)
        return;
    pthread_mutex_lock(&m->s->lock);
    for (const struct span *sp = q->place; sp; sp = sp->parent) {
        assert_int_equal(sp->disk, SPAN_DISK_DURABLE);
        seen.durable_spans++;
    }
    const struct span *c = checkpoint_deepest_locked(q->place, q->place_ordinal, UINT32_MAX, false);
    assert_true(!c || c->disk == SPAN_DISK_DURABLE ||
                now.evicted_disk_checkpoints > st.evicted_disk_checkpoints);
    pthread_mutex_unlock(&m->s->lock);
}

static enum tier_result any_result(struct machine *m)
{
    static const enum tier_result bad[] = {TIER_EIO, TIER_CORRUPT_PAYLOAD, TIER_CORRUPT_HEADER};
    if (m->fail_one_in && pick(m, m->fail_one_in) == 0)
        return bad[pick(m, 3)];
    return TIER_OK;
}

static void step_one(struct machine *m, size_t k)
{
    if (!m->open[k].open) {
        step_open(m, k);
        return;
    }
    if (!m->open[k].settled)
        step_settle(m, k);
    uint32_t what = pick(m, 10);
    if (what == 0 || m->open[k].refused) {
        run_close(&m->open[k].r);
        m->open[k].open = false;
    } else if (!m->open[k].settled) {
        return;
    } else if (what < 6) {
        step_compute(m, k);
    } else if (what < 8) {
        (void)run_capture(&m->open[k].r);
    } else if (m->f && m->fail_one_in == 0 && pick(m, 3) == 0) {
        check_durable(m, k);
    } else {
        step_publish(m, k);
    }
}

static void step_device(struct machine *m)
{
    size_t n = fake_device_n_queued();
    if (n > 0 && pick(m, 3) > 0)
        fake_device_finish(pick(m, (uint32_t)n), any_result(m) == TIER_OK);
    if (m->fail_one_in && pick(m, 20) == 0)
        seen.damaged += damage_host_block(m->s, &m->rng);
}

/* Of one of the two tenants; any tier may have one. */
static void step_quota(struct machine *m)
{
    struct cs_tenant t = {.id = {(uint8_t)pick(m, 2)}};
    const uint64_t most[] = {0, 0, 5 * PAGE, 20 * PAGE, 60 * PAGE};
    set_quota(m->s, &t, (struct cs_quota){most[pick(m, 5)], most[pick(m, 5)], most[pick(m, 5)]});
}

static void step(struct machine *m)
{
    if (m->with_quotas && pick(m, 30) == 0)
        step_quota(m);
    if (m->device)
        step_device(m);
    switch (pick(m, 6)) {
    case 0:
    case 1:
        if (m->f && m->f->n_reads)
            fake_finish_read(m->f, pick(m, (uint32_t)m->f->n_reads), any_result(m));
        break;
    case 2:
        if (m->f && m->f->n_writes)
            fake_finish_write(m->f, any_result(m) == TIER_OK ? TIER_OK : TIER_EIO);
        break;
    default:
        step_one(m, pick(m, N_OPEN));
    }
    if (m->f && pick(m, 50) == 0)
        cs_flush(m->s, 0); /* ends the grace of what waits */
}

static void see_gone(struct cs_kept *sum, const struct cs_kept *one)
{
    for (int g = 0; g < CS_GONE_COUNT; g++)
        sum->gone[g] += one->gone[g];
}

static void close_all(struct machine *m)
{
    for (size_t k = 0; k < N_OPEN; k++) {
        if (m->open[k].open)
            run_close(&m->open[k].r);
        m->open[k].open = false;
    }
    settle_store(m->s, m->f);
    assert_int_equal(stats_of(m->s).pages_live, 0);
    recount(m->s);
    check_balance(m->s);
    struct cs_stats st = stats_of(m->s);
    assert_true(m->fail_one_in > 0 || st.corrupt_host + st.copy_errors == 0);
    see_gone(&seen.device, &st.kept_device);
    see_gone(&seen.host, &st.kept_host);
    see_gone(&seen.disk_spans, &st.kept_disk_spans);
    see_gone(&seen.disk_checkpoints, &st.kept_disk_checkpoints);
    cs_close(m->s, 0);
    if (m->device)
        fake_device_close();
}

static struct cs_store *machine_store_open(const struct machine *m)
{
    struct cs_config c = m->c;
    if (m->device)
        c.device = fake_device_open(false);
    return m->f ? fake_open(m->f, &c) : tiny_open(&c);
}

static void run_machine(uint64_t seed, const struct cs_config *c, uint64_t disk_budget, uint32_t fail_one_in,
                        bool exact, int steps)
{
    struct fake_tier f = {.budget = disk_budget, .allow_parent_delete = fail_one_in > 0};
    struct machine *m = calloc(1, sizeof *m);
    assert_non_null(m);
    *m = (struct machine){.checkpoints = calloc(1, sizeof(struct set)),
                          .c = *c,
                          .f = disk_budget ? &f : NULL,
                          .device = c->host_bytes > 0,
                          .rng = seed * 0x9e3779b97f4a7c15ull,
                          .fail_one_in = fail_one_in,
                          .with_quotas = !exact && seed % 4 == 0,
                          .exact = exact};
    assert_non_null(m->checkpoints);
    uint32_t most = c->checkpoints_a_path ? c->checkpoints_a_path : 8;
    for (int restart = 0; restart < (disk_budget ? 3 : 1); restart++) {
        m->s = machine_store_open(m);
        recount(m->s);
        for (int i = 0; i < steps; i++) {
            step(m);
            check_balance(m->s);
            assert_true(longest_chain(m->s) <= most);
            if (i % 8 == 0)
                recount(m->s);
        }
        close_all(m);
    }
    if (disk_budget && fail_one_in == 0) {
        m->s = machine_store_open(m);
        assert_int_equal(records_known(m->s), f.n_records);
        close_all(m);
    }
    fake_free(&f);
    free(m->checkpoints);
    free(m);
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

/* Windows, state or both. */
static struct cs_config any_config(uint64_t seed, uint32_t arena_pages)
{
    struct cs_config c = stateful_config(arena_pages);
    if (seed % 4 == 1)
        c.state_bytes = 0;
    if (seed % 4 == 2)
        c.window_groups = c.window_tokens = 0;
    if (seed % 3 == 1)
        c.grid_tokens = 0;
    c.checkpoints_a_path = 2 + (uint32_t)(seed % 4);
    c.checkpoint_grace_ms = seed % 2 ? UINT32_MAX : 1000000;
    return c;
}

static void with_room_for_everything_the_deepest_checkpoint_is_found(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_config(seed, 8000);
        c.index_bytes = 16 << 20;
        c.checkpoints_a_path = 1000;
        run_machine(seed, &c, 0, 0, true, 500);
    }
    check_seen(false, false);
}

static void thinned_without_pressure_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_config(seed, 8000);
        c.index_bytes = 16 << 20;
        run_machine(seed, &c, 0, 0, false, 500);
    }
    check_seen(false, false);
}

static void under_pressure_of_pages_and_index_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_config(seed, 50 + (uint32_t)(seed % 5) * 23);
        c.index_bytes = seed % 2 ? 14 << 10 : 1 << 20;
        run_machine(seed, &c, 0, 0, false, 500);
    }
    check_seen(false, false);
}

static void over_a_disk_with_small_budgets_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_config(seed, 60 + (uint32_t)(seed % 4) * 40);
        c.index_bytes = seed % 2 ? 14 << 10 : 1 << 20;
        run_machine(seed, &c, (seed % 3 + 1) * 90 * PAGE, 0, false, 500);
    }
    check_seen(true, true);
}

static void over_a_failing_disk_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_config(seed, 60 + (uint32_t)(seed % 4) * 40);
        run_machine(seed, &c, (seed % 3 + 1) * 90 * PAGE, 4 + (uint32_t)seed % 10, false, 500);
    }
    check_seen(true, false);
}

static struct cs_config any_device_config(uint64_t seed, uint32_t arena_pages)
{
    struct cs_config c = any_config(seed, arena_pages);
    c.host_bytes = (uint64_t[]){20, 90, 400}[seed % 3] * PAGE;
    return c;
}

static void on_a_device_out_of_reach_the_deepest_checkpoint_is_found(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_device_config(seed, 8000);
        c.index_bytes = 16 << 20;
        c.checkpoints_a_path = 1000;
        run_machine(seed, &c, 0, 0, true, 500);
    }
    check_seen(false, false);
}

static void over_a_host_tier_alone_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_device_config(seed, 50 + (uint32_t)(seed % 5) * 23);
        c.index_bytes = seed % 2 ? 28 << 10 : 1 << 20;
        run_machine(seed, &c, 0, seed % 4 ? 0 : 5, false, 500);
    }
    check_seen(false, false);
    assert_true(n_seeds < ENOUGH_SEEDS || seen.host_tokens > 0);
}

static void over_host_and_disk_with_small_budgets_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_device_config(seed, 60 + (uint32_t)(seed % 4) * 40);
        c.index_bytes = seed % 2 ? 28 << 10 : 1 << 20;
        run_machine(seed, &c, (seed % 3 + 1) * 90 * PAGE, 0, false, 500);
    }
    check_seen(true, true);
    assert_true(n_seeds < ENOUGH_SEEDS || seen.host_tokens > 0);
}

static void over_host_and_disk_that_fail_nothing_wrong_is_served(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct cs_config c = any_device_config(seed, 60 + (uint32_t)(seed % 4) * 40);
        c.index_bytes = seed % 2 ? 28 << 10 : 1 << 20;
        run_machine(seed, &c, (seed % 3 + 1) * 90 * PAGE, 4 + (uint32_t)seed % 10, false, 500);
    }
    check_seen(true, false);
    assert_true(n_seeds < ENOUGH_SEEDS || (seen.host_tokens > 0 && seen.damaged > 0));
    /* The counters balanced all the way (check_balance), whatever things went for. */
    for (int g = 0; g < CS_GONE_CUT && n_seeds >= ENOUGH_SEEDS; g++) {
        assert_true(seen.device.gone[g] > 0 && seen.host.gone[g] > 0 && seen.disk_checkpoints.gone[g] > 0);
        assert_true(seen.disk_spans.gone[g] > 0 || g == CS_GONE_THINNED);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        n_seeds = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(with_room_for_everything_the_deepest_checkpoint_is_found, forget_seen),
        cmocka_unit_test_setup(thinned_without_pressure_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(under_pressure_of_pages_and_index_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_a_disk_with_small_budgets_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_a_failing_disk_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(on_a_device_out_of_reach_the_deepest_checkpoint_is_found, forget_seen),
        cmocka_unit_test_setup(over_a_host_tier_alone_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_host_and_disk_with_small_budgets_nothing_wrong_is_served, forget_seen),
        cmocka_unit_test_setup(over_host_and_disk_that_fail_nothing_wrong_is_served, forget_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
