/*
 * The tools of bench/states: engine, conversations, one request at a time, counters, budgets watched.
 *
 * Threads: everything here is for the main thread; the engine's callbacks and the watch only touch what their
 * own locks guard.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/states.h"
#include "formats/gguf.h"
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WATCH_US 5000
#define CLOSE_MS 60000

static int failed;

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "states: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void claim(bool holds, const char *format, ...)
{
    if (holds)
        return;
    va_list args;
    va_start(args, format);
    printf("\nNOT AS CLAIMED: ");
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    failed++;
}

int claims_failed(void)
{
    return failed;
}

/* ---- model and engine ---------------------------------------------------------------------------------- */

void geometry_read(const struct settings *s, struct geometry *g)
{
    char err[256];
    struct fmt_gguf *file;
    if (fmt_gguf_open(s->model, &file, err, sizeof err) != FMT_OK)
        die("%s: %s", s->model, err);
    if (eng_model_describe(file, &g->desc, err, sizeof err) != ENG_OK)
        die("%s: %s", s->model, err);
    fmt_gguf_close(file);
    eng_model_state_of(&g->desc, s->dtype, &g->state);
    const struct kn_kv_layout page = {.dtype = s->dtype,
                                      .layers = g->state.group_layers,
                                      .kv_heads = g->desc.n_kv_heads,
                                      .head_dim = g->desc.head_dim};
    g->stride = (kn_kv_page_bytes(&page) + 4095) / 4096 * 4096;
    uint64_t window_pages = g->state.window ? (g->state.window - 1 + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS : 0;
    g->checkpoint_blocks =
        (g->state.state_bytes + g->stride - 1) / g->stride + window_pages * g->state.window_groups;
    g->weight_bytes = g->desc.weight_bytes;
    g->stateful = g->checkpoint_blocks > 0;
}

uint64_t talk_blocks(const struct geometry *g, size_t n_tokens)
{
    uint64_t pages = (n_tokens + 2 * KN_PAGE_TOKENS) / KN_PAGE_TOKENS;
    uint64_t checkpoints = n_tokens / g->state.grid + 1;
    if (checkpoints > CHECKPOINTS_A_PATH + 2) /* two while a turn ends */
        checkpoints = CHECKPOINTS_A_PATH + 2;
    /* Of a short conversation, window pages exist once; checkpoints share them. */
    uint64_t windows = g->state.window_groups * pages;
    uint64_t state = (g->state.state_bytes + g->stride - 1) / g->stride;
    uint64_t window_each = g->checkpoint_blocks - state;
    uint64_t windows_kept = checkpoints * window_each < windows ? checkpoints * window_each : windows;
    return pages + checkpoints * state + windows_kept;
}

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    /* Ids need no template, and an arena as small as its load is on purpose. */
    if (level == CS_LOG_WARN && strncmp(line, "chat is off", 11) != 0 &&
        strncmp(line, "the KV cache holds", 18) != 0)
        fprintf(stderr, "%s\n", line);
}

struct eng_engine *engine_open(const struct settings *s, const struct geometry *g, uint64_t blocks,
                               const char *disk_dir)
{
    char err[300];
    struct eng_engine *e;
    uint32_t longest = s->tokens > s->user_tokens ? s->tokens : s->user_tokens;
    longest = s->other_tokens > longest ? s->other_tokens : longest;
    const struct eng_config c = {
        .model_path = s->model,
        .threads = s->threads,
        .kv_dtype = s->dtype,
        .context = longest + 512 < g->desc.context_trained ? longest + 512 : g->desc.context_trained,
        .max_concurrency = 1,
        .prefill_chunk = s->chunk,
        .kv_cache_bytes = blocks * g->stride + g->state.live_bytes,
        .disk_dir = disk_dir,
        .disk_bytes = disk_dir ? 4 * blocks * g->stride + (256u << 20) : 0,
        .restore_deadline_ms = UINT32_MAX,
        .log = on_log,
    };
    if (eng_engine_open(&c, &e, err, sizeof err) != ENG_OK)
        die("%s", err);
    return e;
}

void engine_close(struct eng_engine *e)
{
    (void)eng_engine_close(e, CLOSE_MS);
}

void counters_read(struct eng_engine *e, struct counters *out)
{
    cs_stats_get(eng_engine_store(e), &out->store);
    eng_engine_stats(e, &out->engine);
}

/* ---- conversations --------------------------------------------------------------------------------------
 */

/* Ordinary tokens: control tokens stand at the ends of vocabularies. */
static uint32_t id_from(uint64_t random, uint32_t n_vocab)
{
    uint32_t low = n_vocab > 4000 ? 1000 : 20;
    uint32_t high = n_vocab > 24000 ? 20000 : n_vocab - 20;
    return low + (uint32_t)(random >> 33) % (high - low);
}

void talk_cut(struct talk *t, size_t n_messages)
{
    t->edges = realloc(t->edges, (n_messages + 1) * sizeof *t->edges);
    if (!t->edges)
        die("out of memory");
    for (size_t i = 0; i < n_messages; i++)
        t->edges[i] = (uint32_t)(i * t->n / n_messages);
    t->n_edges = n_messages;
}

void talk_add(struct talk *t, const struct geometry *g, uint64_t seed, size_t n_tokens)
{
    t->ids = realloc(t->ids, (t->n + n_tokens) * sizeof *t->ids);
    t->edges = realloc(t->edges, (t->n_edges + 2) * sizeof *t->edges);
    if (!t->ids || !t->edges)
        die("out of memory");
    t->edges[t->n_edges++] = (uint32_t)t->n;
    for (size_t i = 0; i < n_tokens; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        t->ids[t->n++] = id_from(seed, g->desc.n_vocab);
    }
}

void talk_make(struct talk *t, const struct geometry *g, uint64_t seed, size_t n_tokens, size_t n_messages)
{
    memset(t, 0, sizeof *t);
    talk_add(t, g, seed * 7919 + 1, n_tokens);
    talk_cut(t, n_messages < n_tokens ? n_messages : n_tokens);
}

void talk_free(struct talk *t)
{
    free(t->ids);
    free(t->edges);
    memset(t, 0, sizeof *t);
}

/* ---- one request ----------------------------------------------------------------------------------------
 */

struct call {
    const struct eng_engine *e;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int result;
    double first_token_s; /* written by the engine thread, read behind on_done */
    struct cs_stats at_first_token;
    struct eng_usage usage;
    char message[200];
};

static void on_event(void *ctx, const struct eng_event *event)
{
    (void)event;
    struct call *call = ctx;
    if (call->first_token_s > 0)
        return;
    call->first_token_s = wall_s();
    cs_stats_get(eng_engine_store(call->e), &call->at_first_token);
}

static void on_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct call *call = ctx;
    pthread_mutex_lock(&call->lock);
    call->result = result;
    call->usage = *usage;
    snprintf(call->message, sizeof call->message, "%s", usage->message);
    call->done = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static uint64_t less(uint64_t after, uint64_t before)
{
    return after - before;
}

static void counters_subtract(struct counters *c, const struct counters *before)
{
#define LESS(part, field) c->part.field = less(c->part.field, before->part.field)
    LESS(engine, forwards);
    LESS(engine, state_captures);
    LESS(engine, state_saves);
    LESS(engine, state_loads);
    LESS(engine, state_bytes);
    LESS(store, captures);
    LESS(store, publishes);
    LESS(store, publish_spans);
    LESS(store, publish_pages);
    LESS(store, pages_cached);
    LESS(store, publish_checkpoints);
    LESS(store, thinned_checkpoints);
    LESS(store, dropped_checkpoints);
    LESS(store, evicted_device_checkpoints);
    LESS(store, evicted_device_spans);
#undef LESS
}

void ask(struct eng_engine *e, uint32_t tenant, const struct talk *t, struct answer *out)
{
    char err[300];
    struct call call = {.e = e, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct cs_tenant who = {0};
    memcpy(who.id, &tenant, sizeof tenant);
    struct eng_sampling greedy = eng_sampling_defaults();
    greedy.temperature = 0;
    struct eng_prompt prompt = {.reply_run = t->n};
    prompt.boundaries = calloc(t->n_edges + 1, sizeof *prompt.boundaries);
    if (!prompt.boundaries || eng_ids_add(&prompt.ids, t->ids, t->n) != ENG_OK)
        die("out of memory");
    for (size_t i = 0; i < t->n_edges; i++)
        prompt.boundaries[i] = (struct eng_boundary){.position = t->edges[i], .message = (int32_t)i};
    prompt.boundaries[t->n_edges] =
        (struct eng_boundary){.position = (uint32_t)t->n, .message = (int32_t)t->n_edges};
    prompt.n_boundaries = t->n_edges + 1;
    const struct eng_request request = {
        .tenant = &who,
        .prompt = &prompt,
        .sampling = &greedy,
        .n_choices = 1,
        .max_tokens = 2,
        .ignore_eos = true,
        .on_event = on_event,
        .on_done = on_done,
        .ctx = &call,
    };
    struct counters before;
    counters_read(e, &before);
    double start = wall_s();
    if (eng_submit(e, &request, NULL, err, sizeof err) != ENG_OK)
        die("%s", err);
    pthread_mutex_lock(&call.lock);
    while (!call.done)
        pthread_cond_wait(&call.changed, &call.lock);
    pthread_mutex_unlock(&call.lock);
    if (call.result != ENG_OK)
        die("a request failed: %s", call.message);
    out->usage = call.usage;
    out->usage.message = NULL;
    out->first_token_s = call.first_token_s - start;
    out->at_first_token = call.at_first_token;
    counters_read(e, &out->work);
    counters_subtract(&out->work, &before);
}

uint32_t reused(const struct answer *a)
{
    return cs_reuse_tokens(&a->usage.reuse);
}

uint32_t grid_floor(const struct geometry *g, size_t n)
{
    return (uint32_t)((n - 1) / g->state.grid * g->state.grid);
}

/* ---- budgets --------------------------------------------------------------------------------------------
 */

struct watch {
    struct eng_engine *e;
    pthread_t thread;
    atomic_bool stop;
    uint64_t n_samples, n_over, most_used, most_resident, budget;
};

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0;
    unsigned long long resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void *watch_thread(void *arg)
{
    struct watch *w = arg;
    while (!atomic_load(&w->stop)) {
        struct cs_stats s;
        cs_stats_get(eng_engine_store(w->e), &s);
        uint64_t used = (s.pages_live + s.pages_cached) * s.page_stride;
        uint64_t resident = resident_bytes();
        w->budget = s.arena_bytes;
        w->n_samples++;
        w->n_over += used > s.arena_bytes || s.pages_free + s.pages_live + s.pages_cached != s.pages_total ||
                     s.pages_total * s.page_stride > s.arena_bytes || s.index_bytes > s.index_budget ||
                     (s.disk_on && s.disk_bytes > s.disk_budget);
        w->most_used = used > w->most_used ? used : w->most_used;
        w->most_resident = resident > w->most_resident ? resident : w->most_resident;
        usleep(WATCH_US);
    }
    return NULL;
}

struct watch *watch_start(struct eng_engine *e)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        die("out of memory");
    w->e = e;
    if (pthread_create(&w->thread, NULL, watch_thread, w) != 0)
        die("no thread");
    return w;
}

void watch_stop(struct watch *w)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    printf("\nBudgets, sampled %llu times: exceeded %llu times (target 0); most of the arena in use %.1f of "
           "%.1f MiB; most memory of the process %.0f MiB.\n",
           (unsigned long long)w->n_samples, (unsigned long long)w->n_over, (double)w->most_used / 1048576,
           (double)w->budget / 1048576, (double)w->most_resident / 1048576);
    claim(w->n_samples > 0, "the budgets were never sampled");
    claim(w->n_over == 0, "a budget was exceeded in %llu samples", (unsigned long long)w->n_over);
    free(w);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* 97.5 % quantile of Student's t. */
static double student(size_t freedom)
{
    static const double table[] = {0,     12.71, 4.303, 3.182, 2.776, 2.571, 2.447,
                                   2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
                                   2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
    size_t n = sizeof table / sizeof table[0];
    return freedom < n ? table[freedom] : 1.96 + 2.5 / (double)freedom;
}

void paired_ratio(const double *a, const double *b, size_t n, double *mean, double *low, double *high)
{
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += log(a[i] / b[i]);
    double middle = sum / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = log(a[i] / b[i]) - middle;
        squares += d * d;
    }
    *mean = exp(middle);
    *low = *high = NAN;
    if (n > 1) {
        double half = student(n - 1) * sqrt(squares / (double)(n - 1) / (double)n);
        *low = exp(middle - half);
        *high = exp(middle + half);
    }
}
