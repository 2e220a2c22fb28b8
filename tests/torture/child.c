/*
 * The process that is killed: opens a store, looks every conversation up, then works until somebody or one of
 * its own steps (witness.h) ends it. It says what it sees and judges only bytes; the driver (__main__.py)
 * knows what must be there.
 *
 * It works with some threads at once, in stretches: between two of them, when no call is under way, the store
 * is flushed, its counters are said for judgement, and now and then it is closed and opened again.
 *
 *   torture_child describe                      names of steps and counters
 *   torture_child LOG DIR [name=number]... [die=STEP]
 *
 * Exit codes: 0 all operations done and closed; 3 something was wrong (the log says what); 4 the store is in
 * use; 5 it does not open; 2 usage.
 */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cachestore/inspect.h"
#include "tests/torture/device.h"
#include "tests/torture/model.h"

enum { EXIT_BUSY = 4, EXIT_REFUSED = 5, N_LIVE = 3, AT_ONCE = 4, THREADS_MAX = 3, FLUSH_MS = 20000 };

/* ---- options ----------------------------------------------------------------------------------------- */

#define OPTIONS(X)                                                                                           \
    X(seed, 1)                                                                                               \
    X(purge, 0)     /* not 0: deletes every eighth path offline, for good, instead */                        \
    X(live, 0)      /* ... not offline, but by way of the process that has the store open */                 \
    X(rebuild, 0)   /* not 0: makes the catalogue again offline, instead */                                  \
    X(exchange, 1)  /* 0: on a file system that cannot exchange names */                                     \
    X(ops, 1000000) /* operations before it closes and ends */                                               \
    X(close_ms, 10000)                                                                                       \
    X(passes, 1) /* of look-ups, before it works */                                                          \
    X(keys, 0)   /* it says the keys of all paths */                                                         \
    X(reopen, 1) /* now and then, in the same process */                                                     \
    X(wait, 0)   /* for a store that is in use */                                                            \
    X(threads, 1)                                                                                            \
    X(host_bytes, 0) /* not 0: the arena is a device's, and so large is the host tier below it */            \
    X(nth, 1)        /* how often `die` must be passed */                                                    \
    X(page_tokens, 4)                                                                                        \
    X(page_bytes, 4096)                                                                                      \
    X(fingerprint, 1)                                                                                        \
    X(stateful, 0)                                                                                           \
    X(disk_bytes, 4 << 20)                                                                                   \
    X(index_bytes, 4 << 20)                                                                                  \
    X(arena_bytes, 1200 << 10)                                                                               \
    X(chunk_bytes, 8192)                                                                                     \
    X(extent_bytes, 256 << 10)                                                                               \
    X(flush_bytes, 0)                                                                                        \
    X(flush_interval_ms, 5)                                                                                  \
    X(inflight_bytes, 0)                                                                                     \
    X(io_engine, 0)
#define FIELD(name, otherwise)   uint64_t name;
#define DEFAULT(name, otherwise) .name = (otherwise),
struct options {
    OPTIONS(FIELD)
    const char *log, *dir, *die;
};

static bool option_set(struct options *o, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL)
        return false;
    size_t n = (size_t)(equals - text);
    if (strncmp(text, "die=", 4) == 0) {
        o->die = equals + 1;
        return true;
    }
#define SET(field, otherwise)                                                                                \
    if (n == sizeof #field - 1 && memcmp(text, #field, n) == 0) {                                            \
        o->field = strtoull(equals + 1, NULL, 10);                                                           \
        return true;                                                                                         \
    }
    OPTIONS(SET)
    return false;
}

/* ---- what it says ------------------------------------------------------------------------------------ */

#define COUNTERS(X)                                                                                          \
    X(arena_bytes)                                                                                           \
    X(pages_total)                                                                                           \
    X(pages_free)                                                                                            \
    X(pages_live)                                                                                            \
    X(pages_cached)                                                                                          \
    X(checkpoints)                                                                                           \
    X(checkpoint_blocks)                                                                                     \
    X(spans)                                                                                                 \
    X(notes)                                                                                                 \
    X(index_bytes)                                                                                           \
    X(index_budget)                                                                                          \
    X(disk_bytes)                                                                                            \
    X(disk_budget)                                                                                           \
    X(disk_spans)                                                                                            \
    X(disk_checkpoints)                                                                                      \
    X(pending_bytes)                                                                                         \
    X(records_foreign)                                                                                       \
    X(tokens_looked_up)                                                                                      \
    X(tokens_device)                                                                                         \
    X(tokens_host)                                                                                           \
    X(tokens_disk)                                                                                           \
    X(lookups)                                                                                               \
    X(hits_full)                                                                                             \
    X(hits_partial)                                                                                          \
    X(restores_disk)                                                                                         \
    X(restores_in_time)                                                                                      \
    X(restores_unpredicted)                                                                                  \
    X(restores_deadline)                                                                                     \
    X(restores_failed)                                                                                       \
    X(restores_abandoned)                                                                                    \
    X(publish_spans)                                                                                         \
    X(publish_checkpoints)                                                                                   \
    X(spans_written)                                                                                         \
    X(checkpoints_written)                                                                                   \
    X(evicted_device_spans)                                                                                  \
    X(evicted_disk_spans)                                                                                    \
    X(evicted_disk_checkpoints)                                                                              \
    X(thinned_checkpoints)                                                                                   \
    X(dropped_undurable)                                                                                     \
    X(dropped_queue_full)                                                                                    \
    X(dropped_index_full)                                                                                    \
    X(dropped_disk_full)                                                                                     \
    X(dropped_endurance)                                                                                     \
    X(dropped_notes)                                                                                         \
    X(corrupt_header)                                                                                        \
    X(corrupt_tokens)                                                                                        \
    X(corrupt_payload)                                                                                       \
    X(io_errors)                                                                                             \
    X(quarantined)
#define KEPT(X)            X(kept_device) X(kept_host) X(kept_disk_spans) X(kept_disk_checkpoints)
#define NAME_COUNTER(name) puts("counter " #name);
#define NAME_KEPT(name)                                                                                      \
    puts("counter " #name " stored");                                                                        \
    puts("counter " #name " alive");                                                                         \
    puts("counter " #name " gone");
#define VALUE(name)      st.name,
#define VALUE_KEPT(name) st.name.stored, st.name.alive, sum(st.name.gone, CS_GONE_COUNT),

static void describe(void)
{
    witness_describe();
    COUNTERS(NAME_COUNTER)
    KEPT(NAME_KEPT)
    puts("counter disk_on");
    puts("counter misses");
    puts("counter tokens_missed");
}

static uint64_t sum(const uint64_t *numbers, size_t n)
{
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++)
        all += numbers[i];
    return all;
}

static void say_stats(const struct cs_store *s)
{
    struct cs_stats st;
    cs_stats_get(s, &st);
    const uint64_t words[] = {COUNTERS(VALUE) KEPT(VALUE_KEPT) st.disk_on, sum(st.misses, CS_MISS_COUNT),
                              sum(st.tokens_missed, CS_MISS_COUNT)};
    witness_say(W_STATS, words, sizeof words / sizeof words[0]);
}

static void say(enum witness_kind kind, uint64_t a, uint64_t b)
{
    const uint64_t words[] = {a, b};
    witness_say(kind, words, 2);
}

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    witness_text(W_LOG, level, line);
}

/* ---- what it does ------------------------------------------------------------------------------------ */

/* What all threads share. */
struct shared {
    const struct options *o;
    struct geometry g;
    struct cs_store *s;
    const struct cs_device *device; /* NULL: the arena is host memory */
    atomic_llong left;              /* operations of this stretch */
};

struct worker {
    struct shared *all;
    uint32_t number;
    uint64_t random;
    pthread_t thread;
    struct turn live[N_LIVE];
};

static uint32_t dice(struct worker *w, uint32_t n)
{
    uint64_t x = w->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    w->random = x;
    return (uint32_t)((x >> 11) % n);
}

/* On each of the threads, the caller's among them. */
static void all_do(struct worker *w, void *(*fn)(void *worker))
{
    const uint64_t n = w->all->o->threads;
    for (uint64_t i = 1; i < n; i++)
        if (pthread_create(&w[i].thread, NULL, fn, &w[i]) != 0)
            witness_fail("no thread");
    fn(&w[0]);
    for (uint64_t i = 1; i < n; i++)
        pthread_join(w[i].thread, NULL);
}

static int store_begin(struct shared *all)
{
    const struct options *o = all->o;
    struct cs_config c = {.page_tokens = (uint32_t)o->page_tokens,
                          .page_bytes = o->page_bytes,
                          .fingerprint = {(uint8_t)o->fingerprint},
                          .window_groups = all->g.groups,
                          .window_tokens = all->g.window,
                          .state_bytes = all->g.state_blocks * o->page_bytes,
                          .grid_tokens = all->g.grid,
                          .checkpoint_grace_ms = o->stateful ? 3 : 0,
                          .arena_bytes = o->arena_bytes,
                          .device = all->device,
                          .host_bytes = o->host_bytes,
                          .index_bytes = o->index_bytes,
                          .disk_dir = o->dir,
                          .disk_bytes = o->disk_bytes,
                          .span_bytes = 16 << 10,
                          .chunk_bytes = o->chunk_bytes,
                          .extent_bytes = o->extent_bytes,
                          .flush_bytes = o->flush_bytes,
                          .flush_interval_ms = (uint32_t)o->flush_interval_ms,
                          .inflight_bytes = o->inflight_bytes,
                          .io_engine = (enum cs_io_engine)o->io_engine,
                          .log = on_log};
    char err[300] = "";
    int rc;
    for (;;) {
        say(W_OPENING, 0, 0);
        rc = cs_open(&c, &all->s, err, sizeof err);
        if (rc != CS_EBUSY || !o->wait)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    struct cs_stats st = {.disk_on = false};
    if (rc == CS_OK)
        cs_stats_get(all->s, &st);
    else
        witness_text(W_LOG, CS_LOG_WARN, err);
    say(W_OPENED, (uint64_t)(int64_t)rc, st.disk_on);
    return rc;
}

/* No thread is at work. */
static void store_end(struct worker *w, uint32_t deadline_ms)
{
    for (uint64_t i = 0; i < w->all->o->threads; i++)
        for (int k = 0; k < N_LIVE; k++)
            if (w[i].live[k].q != NULL)
                turn_close(&w[i].live[k]);
    say(W_CLOSING, deadline_ms, 0);
    cs_close(w->all->s, deadline_ms);
    say(W_CLOSED, 0, 0);
}

static void look_up(struct worker *w, struct turn *t, uint32_t path)
{
    uint32_t ids[PATH_TOKENS_MAX + 1];
    turn_open(t, w->all->s, &w->all->g, path, path_ids(path, ids) + 1);
}

/* The thread's share of all paths, a few at once. */
static void *look_up_some(void *worker)
{
    struct worker *w = worker;
    const uint32_t n_threads = (uint32_t)w->all->o->threads, at_once = n_threads > 1 ? 2 : AT_ONCE;
    struct turn t[AT_ONCE];
    for (uint32_t first = w->number * at_once; first < N_PATHS; first += n_threads * at_once) {
        for (uint32_t i = 0; i < at_once; i++) {
            look_up(w, &t[i], first + i);
            if (w->all->o->keys)
                turn_say_keys(&t[i], W_KEYS, t[i].n / w->all->g.page_tokens);
        }
        for (uint32_t i = 0; i < at_once; i++) {
            turn_wait(&t[i]);
            const uint64_t words[] = {t[i].path, cs_reuse_tokens(&t[i].reuse), t[i].reuse.tokens_matched,
                                      t[i].reuse.miss};
            witness_say(W_LOOKUP, words, 4);
        }
        for (uint32_t i = 0; i < at_once; i++)
            turn_close(&t[i]);
    }
    return NULL;
}

/* Every path. */
static void verify(struct worker *w)
{
    all_do(w, look_up_some);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    say(W_VERIFIED, (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, 0);
    say_stats(w->all->s);
}

/* Some conversations are asked for more often than others. */
static uint32_t any_path(struct worker *w)
{
    return dice(w, 3) == 0 ? dice(w, N_PATHS / 6) : dice(w, N_PATHS);
}

/* One step of a conversation that is being served. */
static void turn_go_on(struct worker *w, struct turn *t)
{
    if (t->q == NULL) {
        uint32_t ids[PATH_TOKENS_MAX + 1], path = any_path(w);
        turn_open(t, w->all->s, &w->all->g, path, 1 + dice(w, path_ids(path, ids)));
        return;
    }
    if (dice(w, 16) == 0 || (!turn_poll(t) && dice(w, 4) == 0)) { /* the client has gone */
        turn_close(t);
        return;
    }
    if (!t->settled)
        return;
    uint32_t to = t->n_computed < t->n_prompt ? t->n_prompt : t->n_computed + 1 + dice(w, 20);
    bool whole = turn_compute(t, to < t->n ? to : t->n, 1 + dice(w, 24));
    if (!whole)
        say(W_FULL_ARENA, 0, 0);
    else if (dice(w, 2) == 0)
        turn_capture(t);
    turn_publish(t, dice(w, 3) == 0);
    if (!whole || t->n_computed >= t->n || dice(w, 4) == 0)
        turn_close(t);
}

static void *work_some(void *worker)
{
    struct worker *w = worker;
    struct cs_store *s = w->all->s;
    while (atomic_fetch_sub(&w->all->left, 1) > 0 && !witness_nearly_full()) {
        uint32_t what = dice(w, 64);
        if (what == 0) { /* others publish meanwhile: there is no saying what must be durable then */
            (void)cs_flush(s, FLUSH_MS);
            say_stats(s);
        } else if (what < 3) {
            note_check(s, dice(w, N_PATHS));
        } else if (what < 5) {
            nanosleep(&(struct timespec){.tv_nsec = 1000 + (long)dice(w, 4000000)}, NULL);
        } else {
            turn_go_on(w, &w->live[dice(w, N_LIVE)]);
        }
    }
    return NULL;
}

static void work(struct worker *w)
{
    enum { STRETCH = 128 };
    struct shared *all = w->all;
    for (uint64_t done = 0, n; done < all->o->ops && !witness_nearly_full(); done += n) {
        n = 1 + dice(w, STRETCH);
        n = n < all->o->ops - done ? n : all->o->ops - done;
        atomic_store(&all->left, (long long)n);
        all_do(w, work_some);
        if (dice(w, 2) == 0) {
            say(W_FLUSHED, (uint64_t)(int64_t)cs_flush(all->s, FLUSH_MS), 0);
            say_stats(all->s);
        }
        if (all->o->reopen && dice(w, 4) == 0) {
            store_end(w, dice(w, 2) == 0 ? 0 : FLUSH_MS);
            int rc = store_begin(all);
            if (rc == CS_EBUSY) /* another process was waiting */
                _exit(EXIT_BUSY);
            if (rc != CS_OK)
                witness_fail("it does not open again: %s", cs_strerror(rc));
            verify(w);
        }
    }
}

/* ---- inspection -----------------------------------------------------------------------------------------
 */

static int is_purged(void *ctx, const struct cs_span_info *span)
{
    const struct options *o = ctx;
    if (span->key.lo % 8 != o->purge % 8)
        return 0;
    if (span->on_disk)
        say(W_PURGE, span->record_id[0], span->record_id[1]);
    return 1;
}

static int work_inspecting(struct options *o)
{
    struct cs_inspect *i = NULL;
    char err[300] = "";
    int rc = o->live ? cs_inspect_connect(o->dir, &i, err, sizeof err)
                     : cs_inspect_open(o->dir, &i, err, sizeof err);
    if (rc == CS_OK && o->purge) {
        struct cs_evicted evicted;
        rc = cs_inspect_evict(i, is_purged, o, true, &evicted, err, sizeof err);
        say(W_PURGED, (uint64_t)(int64_t)rc, rc == CS_OK ? evicted.remaining : 0);
    } else if (rc == CS_OK) {
        struct cs_rebuilt rebuilt;
        rc = cs_inspect_rebuild(i, &rebuilt, err, sizeof err);
    }
    cs_inspect_close(i);
    if (rc != CS_OK)
        witness_text(W_LOG, CS_LOG_WARN, err);
    else
        say(W_DONE, 0, 0);
    return rc == CS_OK ? 0 : rc == CS_EBUSY ? EXIT_BUSY : EXIT_REFUSED;
}

/* Where it was, for the driver to print. */
static void on_crash(int signal_number)
{
    void *frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, sizeof frames / sizeof frames[0]), STDERR_FILENO);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

int main(int argc, char **argv)
{
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    if (argc == 2 && strcmp(argv[1], "describe") == 0) {
        describe();
        return 0;
    }
    struct options o = {OPTIONS(DEFAULT).log = argc > 2 ? argv[1] : NULL};
    for (int i = 3; i < argc; i++)
        if (!option_set(&o, argv[i]))
            return 2;
    if (argc < 3 || !witness_open(argv[1], o.die, (uint32_t)o.nth))
        return 2;
    o.dir = argv[2];
    if (o.threads < 1 || o.threads > THREADS_MAX)
        return 2;
    witness_no_exchange = o.exchange == 0;
    struct shared all = {
        .o = &o,
        .g = {.page_tokens = (uint32_t)o.page_tokens,
              .page_bytes = o.page_bytes,
              .salt = o.fingerprint << 32 | o.page_bytes << 8 | o.page_tokens},
    };
    if (o.stateful) {
        all.g.groups = 2;
        all.g.window = 10;
        all.g.state_blocks = 3;
        all.g.grid = 8;
    }
    if (o.purge || o.rebuild)
        return work_inspecting(&o);
    if (o.host_bytes > 0)
        all.device = device_open();
    struct worker w[THREADS_MAX];
    for (uint32_t i = 0; i < THREADS_MAX; i++)
        w[i] = (struct worker){.all = &all, .number = i, .random = (o.seed + i) * 0x9e3779b97f4a7c15ull + 1};
    int rc = store_begin(&all);
    if (rc != CS_OK)
        return rc == CS_EBUSY ? EXIT_BUSY : EXIT_REFUSED;
    for (uint64_t i = 0; i < o.passes; i++)
        verify(w);
    work(w);
    store_end(w, (uint32_t)o.close_ms);
    device_close();
    say(W_DONE, 0, 0);
    return 0;
}
