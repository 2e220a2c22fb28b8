/*
 * A seed is a few processes, one after the other, on one simulated machine. Each opens the store (or inspects
 * it while nobody has it open), looks up what was there before, serves conversations with one to three
 * threads, and ends: by itself, by kill -9 at some step, or with the machine by a power cut. Between two of
 * them budgets, engine and fingerprint change, and sectors, rows and volumes are damaged.
 *
 * The model and its conversations are those of the crash torture (tests/torture/model.h): a byte is a
 * function of all ids before its page's end, so a wrong one is recognised.
 */
#include "tests/sim/life.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/inspect.h"
#include "cachestore/store.h"
#include "tests/sim/asker.h"
#include "tests/sim/checker.h"
#include "tests/sim/faults.h"
#include "tests/sim/tenants.h"
#include "tests/torture/device.h"
#include "tests/torture/model.h"
#include "tests/torture/witness.h"

enum { PAGE_TOKENS = 4, N_LIVE = 2, APPS_MAX = 3, FLUSH_MS = 20000, PATIENCE_MS = 300000 };

/* ---- what a seed is ---------------------------------------------------------------------------------- */

enum process {
    PROCESS_SERVES,
    PROCESS_PURGES,
    PROCESS_REBUILDS,
    PROCESS_PINS,
    PROCESS_LIMITS,
    PROCESS_LOOKS
};

struct plan {
    struct geometry g;
    struct cs_config c;
    bool device;
    uint32_t first_path, n_paths, n_apps, n_ops;
    uint32_t close_ms;
    enum process process;
    bool costs; /* the store knows what prefill costs */
};

static struct plan plan;
static struct cs_store *store; /* of the process */
static bool has_opened;        /* some process of this seed has made the store */

static uint32_t dice(uint32_t n)
{
    return sim_below(&sim.random_work, n);
}

static uint32_t between(uint32_t low, uint32_t high)
{
    return low + dice(high - low + 1);
}

static bool one_in(uint32_t n)
{
    return dice(n) == 0;
}

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    SIM_SAY("log: %s", line);
}

static void plan_budgets(void)
{
    struct cs_config *c = &plan.c;
    uint64_t stride = (c->page_bytes + SECTOR - 1) / SECTOR * SECTOR;
    /* Over a device the arena is small and the host large, so that much of what is asked for again is there.
     */
    c->arena_bytes = stride * (plan.g.groups > 0 ? between(40, plan.device ? 44 : 96)
                                                 : between(20, plan.device ? 24 : 96));
    c->disk_bytes = c->chunk_bytes * between(24, 160);
    if (c->disk_bytes < 24 * stride)
        c->disk_bytes = 24 * stride;
    c->host_bytes = !plan.device ? 0 : stride * (one_in(4) ? between(16, 64) : between(64, 320));
    c->index_bytes = one_in(4) ? 48 << 10 : 256 << 10;
}

static void plan_salt(void)
{
    plan.g.salt = (uint64_t)plan.c.fingerprint[0] << 32 | plan.c.page_bytes;
}

static void plan_geometry(void)
{
    static const uint32_t page_bytes[] = {4096, 4096, 3000, 8192}, chunk_bytes[] = {4096, 8192, 16384};
    plan = (struct plan){.g = {.page_tokens = PAGE_TOKENS}};
    struct cs_config *c = &plan.c;
    c->page_tokens = PAGE_TOKENS;
    c->page_bytes = plan.g.page_bytes = page_bytes[dice(4)];
    c->chunk_bytes = chunk_bytes[dice(3)];
    c->span_bytes = 8192 + 4096 * dice(5);
    c->extent_bytes = c->chunk_bytes * between(1, 16);
    c->fingerprint[0] = 1;
    c->io_engine = one_in(8) ? CS_IO_PREAD : CS_IO_AUTO;
    c->flush_interval_ms = between(1, 60);
    c->flush_bytes = one_in(3) ? 32 << 10 : 0;
    c->inflight_bytes = one_in(3) ? 64 << 10 : 0;
    c->disk_dir = SIM_DIRECTORY;
    c->log = on_log;
    plan.device = one_in(4);
    if (one_in(2)) { /* a model with windows and state */
        plan.g.groups = c->window_groups = dice(3);
        plan.g.window = c->window_tokens = plan.g.groups > 0 ? 10 : 0;
        plan.g.state_blocks = plan.g.groups == 0 ? 2 : dice(3);
        c->state_bytes = plan.g.state_blocks * c->page_bytes;
        plan.g.grid = c->grid_tokens = PAGE_TOKENS * between(1, 2);
        c->checkpoints_a_path = between(2, 8);
        c->checkpoint_grace_ms = one_in(3) ? UINT32_MAX : between(1, 40);
    }
    plan.first_path = 4 * dice(20);
    plan.n_paths = plan.device ? between(6, 12) : between(3, 10);
    plan_salt();
    plan_budgets();
}

/* ---- a process that serves --------------------------------------------------------------------------- */

struct app {
    struct turn live[N_LIVE];
    struct expectation before[N_LIVE];
    pthread_t thread;
};

void witness_fail(const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sim_fail("%s", text);
}

void witness_say(enum witness_kind kind, const uint64_t *words, size_t n)
{
    (void)n;
    if (kind == W_PATH)
        tenants_published(words + 2, (uint32_t)words[1]);
}

static uint32_t any_path(void)
{
    return plan.first_path + N_PATHS * dice(tenants_n()) +
           (one_in(3) && !plan.device ? dice((plan.n_paths + 2) / 3) : dice(plan.n_paths));
}

static void look_up(struct app *a, uint32_t i, uint32_t path, uint32_t n_prompt)
{
    struct turn probe = {.g = &plan.g, .path = path, .n_prompt = n_prompt};
    probe.n = path_ids(path, probe.ids);
    a->before[i] = checker_expect(store, &probe, UINT64_MAX);
    turn_open(&a->live[i], store, &plan.g, path, n_prompt);
}

/* False: it still loads. */
static bool poll_turn(struct app *a, uint32_t i)
{
    struct turn *t = &a->live[i];
    if (t->settled)
        return true;
    if (!turn_poll(t))
        return false;
    checker_settled(t, a->before[i], checker_expect(store, t, a->before[i].as_of));
    return true;
}

/* False: a request will never end, and the restore has no deadline. */
static bool wait_settled(struct app *a, uint32_t i)
{
    uint64_t start = sim.now_ns;
    while (!poll_turn(a, i)) {
        if (sim.now_ns - start > PATIENCE_MS * 1000000ull) {
            if (engine_is_stuck() && plan.c.restore_deadline_ms == 0)
                return false;
            sim_fail("HANG: path %u did not settle in %d simulated seconds", a->live[i].path,
                     PATIENCE_MS / 1000);
        }
        fibers_sleep(20000ull << dice(12));
    }
    return true;
}

static uint32_t path_tokens(uint32_t path)
{
    uint32_t ids[PATH_TOKENS_MAX + 1];
    return path_ids(path, ids);
}

/* Every path, one after the other. */
static void look_up_all(struct app *a)
{
    for (uint32_t i = 0; i < plan.n_paths * tenants_n(); i++) {
        uint32_t path = plan.first_path + i % plan.n_paths + N_PATHS * (i / plan.n_paths);
        look_up(a, 0, path, path_tokens(path) + 1);
        bool settled = wait_settled(a, 0);
        turn_close(&a->live[0]);
        if (!settled)
            return;
    }
}

static void turn_go_on(struct app *a, uint32_t i)
{
    struct turn *t = &a->live[i];
    if (t->q == NULL) {
        uint32_t path = any_path();
        look_up(a, i, path, 1 + dice(path_tokens(path)));
        return;
    }
    if (one_in(16) || (!poll_turn(a, i) && one_in(8))) { /* the client has gone */
        turn_close(t);
        return;
    }
    if (!t->settled) {
        fibers_sleep(10000ull << dice(8));
        return;
    }
    uint32_t to = t->n_computed < t->n_prompt ? t->n_prompt : t->n_computed + 1 + dice(20);
    bool whole = turn_compute(t, to < t->n ? to : t->n, 4 + dice(24));
    if (whole && plan.g.grid > 0 && one_in(2))
        turn_capture(t);
    turn_publish(t, one_in(3));
    sim_count(COUNT_publishes, 1);
    if (!whole || t->n_computed >= t->n || one_in(4))
        turn_close(t);
}

static bool flush(void)
{
    uint64_t start = sim.now_ns;
    int rc = cs_flush(store, FLUSH_MS);
    if (rc != CS_OK && !sim_has_faults())
        sim_fail("cs_flush: %s", cs_strerror(rc));
    if (sim.now_ns - start > (FLUSH_MS + 1000) * 1000000ull)
        sim_fail("cs_flush took %llu ms", (unsigned long long)((sim.now_ns - start) / 1000000));
    return rc == CS_OK;
}

static void *app_main(void *arg)
{
    struct app *a = arg;
    fibers_spare(true);
    for (uint32_t i = 0; i < plan.n_ops; i++) {
        uint32_t what = dice(64);
        if (what < 2) {
            (void)flush();
        } else if (what < 4) {
            note_check(store, any_path());
        } else if (what < 8) {
            fibers_sleep(1000ull << dice(18));
        } else if (what < 10) {
            checker_balance(store, false);
        } else if (what < 12) {
            (void)tenants_change(store, NULL, NULL, 0);
        } else {
            turn_go_on(a, dice(N_LIVE));
        }
    }
    for (uint32_t i = 0; i < N_LIVE; i++)
        if (a->live[i].q != NULL)
            turn_close(&a->live[i]);
    return NULL;
}

static void apps_run(struct app *apps)
{
    sim.calm++;
    for (uint32_t i = 1; i < plan.n_apps; i++)
        if (pthread_create(&apps[i].thread, NULL, app_main, &apps[i]) != 0)
            sim_fail("no thread for the test");
    sim.calm--;
    app_main(&apps[0]);
    for (uint32_t i = 1; i < plan.n_apps; i++)
        pthread_join(apps[i].thread, NULL);
}

/* Restores that nobody waits for any more end by themselves. False: one will never end. */
static bool loads_end(void)
{
    uint64_t start = sim.now_ns;
    while (store->n_loads + store->n_copies > 0 || (store->disk != NULL && !checker_deletes_ended(store))) {
        if (engine_is_stuck())
            return false;
        if (sim.now_ns - start > PATIENCE_MS * 1000000ull) {
            if (sim_has_faults() && store->n_loads + store->n_copies == 0)
                return false; /* the catalogue refuses for good */
            sim_fail("HANG: a load or a delete did not end");
        }
        fibers_sleep(100000);
    }
    return true;
}

static void store_end(void)
{
    bool flushed = plan.close_ms > 0;
    if (flushed) /* or it sees the store close */
        asker_end();
    if (flushed && flush())
        tenants_flushed();
    checker_balance(store, flushed && loads_end());
    checker_closing();
    if (engine_is_stuck()) /* nobody can close it */
        fibers_kill_soon();
    fibers_wait_for_disk = true;
    asker_has_drained = false;
    cs_close(store, plan.close_ms);
    asker_end();
    fibers_wait_for_disk = false;
    store = NULL;
}

static void serve(void)
{
    struct app apps[APPS_MAX] = {0};
    struct cs_config c = plan.c;
    char err[300] = "";
    fibers_spare(true);
    if (plan.device)
        c.device = device_open();
    checker_begin(&plan.c);
    fibers_spare(false);
    fibers_wait_for_disk = true; /* it reads what it needs to serve */
    int rc = cs_open(&c, &store, err, sizeof err);
    fibers_spare(true);
    fibers_wait_for_disk = false;
    sim_count(COUNT_opens, 1);
    SIM_SAY("cs_open: %s %s", cs_strerror(rc), err);
    if (rc != CS_OK) {
        if (!sim_has_faults())
            sim_fail("cs_open: %s: %s", cs_strerror(rc), err);
        device_close();
        checker_closing();
        return;
    }
    struct cs_stats st;
    cs_stats_get(store, &st);
    if (!st.disk_on && !sim_has_faults())
        sim_fail("the disk tier is off");
    sim_count(COUNT_opens_without_disk, !st.disk_on);
    has_opened = has_opened || st.disk_on;
    checker_opened(store, st.disk_on);
    if (plan.costs)
        cs_prefill_cost(store, 5 + dice(500), 0.01);
    if (st.spans > 0)
        look_up_all(&apps[0]);
    asker_begin(&plan.g, &plan.c, any_path);
    apps_run(apps);
    asker_stop();
    store_end();
    device_close();
}

/* ---- a process that inspects ------------------------------------------------------------------------- */

struct chosen {
    struct cs_span_info span;
    uint32_t n, at, residue;
};

static int on_span(void *ctx, const struct cs_span_info *span)
{
    struct chosen *k = ctx;
    if (k->n++ == k->at)
        k->span = *span;
    return 0;
}

static int is_purged(void *ctx, const struct cs_span_info *span)
{
    const struct chosen *k = ctx;
    return span->key.lo % 8 == k->residue;
}

static int inspect_do(struct cs_inspect *in, char *err, size_t err_len)
{
    struct chosen k = {.at = dice(8), .residue = dice(8)};
    int rc = cs_inspect_spans(in, on_span, &k);
    if (rc != CS_OK)
        return rc;
    if (plan.process == PROCESS_PURGES) {
        struct cs_evicted evicted;
        rc = cs_inspect_evict(in, is_purged, &k, one_in(2), &evicted, err, err_len);
        if (rc == CS_OK)
            checker_purged();
    } else if (plan.process == PROCESS_REBUILDS) {
        struct cs_rebuilt rebuilt;
        rc = cs_inspect_rebuild(in, &rebuilt, err, err_len);
        if (rc == CS_OK)
            tenants_rebuilt();
        else if (rc == CS_EIO && strstr(err, "no room for a second catalogue") != NULL)
            rc = CS_OK; /* budgets are small here */
    } else if (plan.process == PROCESS_LIMITS) {
        rc = tenants_change(NULL, in, err, err_len);
        if (rc == CS_ECORRUPT) /* as above */
            rc = CS_OK;
    } else if (plan.process == PROCESS_PINS && k.n > k.at) {
        rc = cs_inspect_pin(in, &k.span, one_in(2), err, err_len);
        if (rc == CS_ECORRUPT) /* the catalogue went with a power cut, or was not made yet */
            rc = CS_OK;
    } else if (k.n > k.at) {
        rc = cs_inspect_verify(in, &k.span, err, err_len);
        if (rc == CS_ECORRUPT && !checker_is_whole(k.span.record_id[0], k.span.record_id[1]))
            rc = CS_OK; /* rightly */
    }
    return rc;
}

static void inspect(void)
{
    struct cs_inspect *in = NULL;
    char err[300] = "";
    checker_begin(&plan.c);
    checker_offline(plan.process == PROCESS_PURGES, plan.process == PROCESS_REBUILDS);
    sim_count(COUNT_offline, 1);
    fibers_wait_for_disk = true;
    int rc = cs_inspect_open(SIM_DIRECTORY, &in, err, sizeof err);
    if (rc == CS_OK)
        rc = inspect_do(in, err, sizeof err);
    cs_inspect_close(in);
    SIM_SAY("inspection %u: %s %s", plan.process, cs_strerror(rc), err);
    bool no_store = rc == CS_ENOTFOUND || rc == CS_EFORMAT; /* its making was cut short */
    if (rc != CS_OK && !sim_has_faults() && !(no_store && !has_opened))
        sim_fail("inspection: %s: %s", cs_strerror(rc), err);
}

static void *process_main(void *arg)
{
    (void)arg;
    if (plan.process == PROCESS_SERVES)
        serve();
    else
        inspect();
    return NULL;
}

/* ---- a seed ------------------------------------------------------------------------------------------ */

static void process_plan(bool first)
{
    plan.n_apps = between(1, APPS_MAX);
    plan.n_ops = (plan.device ? between(40, 160) : between(4, 30)) / plan.n_apps + 2;
    plan.close_ms = one_in(4) ? 0 : FLUSH_MS;
    plan.c.no_control = one_in(2);
    plan.process = PROCESS_SERVES;
    plan.costs = one_in(8);
    if (first) {
        tenants_plan(&plan.c);
        return;
    }
    if (one_in(6))
        plan.process = PROCESS_PURGES + dice(5);
    if (one_in(3)) {
        plan_budgets();
        tenants_plan(&plan.c);
    }
    if (one_in(8)) {
        plan.c.fingerprint[0] = (uint8_t)between(1, 2);
        plan_salt();
    }
    if (one_in(4))
        plan.c.io_engine = one_in(4) ? CS_IO_PREAD : CS_IO_AUTO;
    plan.c.extent_bytes = plan.c.chunk_bytes * between(1, 16);
}

static void process_run(bool with_kills, bool with_power)
{
    uint64_t kill_at = with_kills && !one_in(3) ? 1 + dice(1u << between(5, 12)) : 0;
    bool power = with_power && one_in(2);
    uint64_t began = sim.now_ns;
    SIM_SAY("a process begins: %u, to be killed at step %llu%s", plan.process, (unsigned long long)kill_at,
            power ? " by a power cut" : "");
    bool killed = fibers_run(process_main, NULL, kill_at) == SIM_KILLED;
    power = power && killed;
    SIM_SAY("it %s", power ? "ends in a power cut" : killed ? "is killed" : "ends");
    sim_count(COUNT_lives, 1);
    sim_count(power ? COUNT_power_cuts : killed ? COUNT_kills : COUNT_clean_closes, 1);
    sim_count(COUNT_virtual_seconds, (sim.now_ns - began) / 1000000000u);
    sim.calm++;
    engine_process_ended(killed);
    files_process_ended(killed, power);
    sockets_process_ended(killed);
    rows_process_ended(killed, power);
    copies_process_ended();
    memory_end(killed);
    checker_ended(power);
    sim.calm--;
}

void life_run_seed(uint64_t seed)
{
    bool trace = sim.trace;
    struct sim_tally *tally = sim.tally;
    uint64_t spread = (seed + 1) * 0x9e3779b97f4a7c15ull;
    sim = (struct sim){.seed = seed,
                       .trace = trace,
                       .tally = tally,
                       .now_ns = 1000000000000ull,
                       .real_offset_ns = 1700000000ull * 1000000000ull,
                       .random_schedule = sim_mix(1, spread) | 1,
                       .random_faults = sim_mix(2, spread) | 1,
                       .random_work = sim_mix(3, spread) | 1};
    files_reset(UINT64_MAX / 2);
    rows_reset();
    engine_reset();
    checker_reset();
    tenants_reset();
    plan_geometry();
    faults_plan(&plan.c.restore_deadline_ms);
    has_opened = false;
    faults_reset();
    bool with_kills = !one_in(4), with_power = one_in(2);
    uint32_t n = between(2, 5);
    for (uint32_t i = 0; i < n; i++) {
        process_plan(i == 0);
        process_run(with_kills, with_power);
        faults_between();
    }
    sim_count(COUNT_seeds, 1);
}
