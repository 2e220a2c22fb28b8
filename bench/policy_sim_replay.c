/*
 * A trace through the real store: index, paths, checkpoints, placement and eviction are those that serve. A
 * page of the arena stands for a page of the simulated model (4 KiB in place of what it would take) and is
 * never touched; the clocks show the time of the trace. The program is linked so that the store's questions
 * for the time come here (--wrap=clock_gettime, --wrap=time), and none of the arena is backed with memory
 * ahead of use (--wrap=arena_wants_populate); its secret is always the same (--wrap=getrandom).
 *
 * A request takes no time: its prompt is looked up, computed, published and, where the trace has it, its
 * reply as well, before the next one comes.
 */
#include "bench/clock.h"
#include "bench/policy_sim.h"
#include "cachestore/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAND_IN_BYTES 4096 /* the least stride of an arena */
#define SPAN_BYTES     (4ull << 20)
#define NS_PER_US      1000ull
#define US_PER_S       1000000ull
#define EPOCH_S        1800000000ull /* any day */
#define AHEAD_S        1000000ull /* of the machine's monotonic clock: the keeper sleeps through a replay */
#define SLACK_BYTES    (64ull << 20)

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
time_t __wrap_time(time_t *t);
bool __wrap_arena_wants_populate(const struct arena *a);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags);

/* ---- the clock --------------------------------------------------------------------------------------- */

static uint64_t trace_us;          /* written by the one thread that replays */
static uint64_t monotonic_start_s; /* fixed before a store is opened */

static uint64_t clock_us(void)
{
    return __atomic_load_n(&trace_us, __ATOMIC_RELAXED);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    uint64_t us = clock_us(), start_s = id == CLOCK_MONOTONIC ? monotonic_start_s : EPOCH_S;
    *t = (struct timespec){.tv_sec = (time_t)(start_s + us / US_PER_S),
                           .tv_nsec = (long)(us % US_PER_S * NS_PER_US)};
    return 0;
}

time_t __wrap_time(time_t *t)
{
    time_t now = (time_t)(EPOCH_S + clock_us() / US_PER_S);
    if (t)
        *t = now;
    return now;
}

/* The store's secret: the same in each run. */
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags)
{
    (void)flags;
    memset(out, 7, n);
    return (ssize_t)n;
}

bool __wrap_arena_wants_populate(const struct arena *a)
{
    (void)a;
    return false;
}

/* ---- the store --------------------------------------------------------------------------------------- */

struct replay {
    const struct sim_trace *trace;
    const struct sim_setup *setup;
    struct sim_result *result;
    struct cs_store *store;
    struct cs_boundary *boundaries;
    size_t boundaries_capacity;
};

uint64_t sim_page_bytes(const struct sim_setup *s)
{
    return s->kv_bytes * s->page_tokens;
}

/* Pages for all that the group ever stores, its checkpoints of one block, and the longest request. */
static uint64_t pages_without_budget(const struct sim_trace *t, const struct sim_setup *s, uint32_t group)
{
    uint64_t pages = 0, longest = 0;
    for (size_t i = 0; i < t->n_requests; i++) {
        const struct sim_request *r = &t->requests[i];
        uint64_t tokens = 0;
        if (r->group != group)
            continue;
        for (uint32_t k = 0; k < r->n_new; k++)
            tokens += t->nodes[t->list[r->first_new + k]].tokens;
        pages += tokens / s->page_tokens + 2;
        if (s->state_bytes >
            0) /* at boundaries among the new pieces; its end, a branch, the system's, the reply's */
            pages += (r->n_new < s->checkpoints_a_path ? r->n_new : s->checkpoints_a_path) + 4;
        if (r->n_prompt + tokens > longest)
            longest = r->n_prompt + tokens;
    }
    return pages + longest / s->page_tokens + 2;
}

static void store_start(struct replay *r, uint32_t group)
{
    const struct sim_setup *s = r->setup;
    uint64_t page_bytes = sim_page_bytes(s), n_pages = s->budget_bytes / page_bytes,
             state_blocks = (s->state_bytes + page_bytes - 1) / page_bytes;
    if (s->budget_bytes == SIM_NO_BUDGET) {
        n_pages = pages_without_budget(r->trace, s, group);
        state_blocks = s->state_bytes > 0;
    }
    uint64_t in_span = page_bytes < SPAN_BYTES ? SPAN_BYTES / page_bytes : 1,
             n_stored = n_pages + s->disk_bytes / page_bytes,
             page_index = s->page_tokens * sizeof(uint32_t) + 2 * sizeof(struct span);
    struct cs_config c = {.page_tokens = s->page_tokens,
                          .page_bytes = STAND_IN_BYTES,
                          .state_bytes = state_blocks * STAND_IN_BYTES,
                          .grid_tokens = s->grid_tokens,
                          .checkpoints_a_path = s->checkpoints_a_path,
                          .arena_bytes = n_pages * STAND_IN_BYTES,
                          .index_bytes = SLACK_BYTES + n_stored * page_index,
                          .span_bytes = (in_span + 1) * STAND_IN_BYTES +
                                        in_span * (s->page_tokens * sizeof(uint32_t) + 16),
                          .disk_dir = s->disk_bytes ? "nowhere" : NULL,
                          .disk_bytes = s->disk_bytes};
    sim_disk_next(s->disk_bytes, page_bytes);
    char err[200] = "";
    if (store_open(&c, s->disk_bytes ? &sim_disk_vtable : NULL, &r->store, err, sizeof err) != CS_OK)
        sim_die("%s", err);
    double two = sim_prefill_s(2), one = sim_prefill_s(1),
           square = (two - 2 * one) / 2; /* T(n) = a n + c n^2 */
    if (cs_prefill_cost(r->store, 1e6 * (one - square), 1e6 * square) != CS_OK)
        sim_die("the cost of prefill");
    sim_victims_store(&r->store->index);
}

static void store_end(struct replay *r)
{
    struct cs_stats st;
    cs_stats_get(r->store, &st);
    r->result->published += st.publish_checkpoints;
    cs_close(r->store, 0);
    r->store = NULL;
    sim_victims_store(NULL);
}

/* ---- a request --------------------------------------------------------------------------------------- */

static size_t boundaries_of(struct replay *r, const struct sim_request *q, const struct sim_chain *c)
{
    size_t n = 0;
    uint32_t system_tokens = q->system_tokens;
    for (size_t i = 0; i + q->n_reply < c->n; i++) {
        char role = r->trace->nodes[c->node[i]].role,
             next = i + q->n_reply + 1 < c->n ? r->trace->nodes[c->node[i + 1]].role : 0;
        if (!role || role == next)
            continue;
        r->boundaries = sim_reserve(r->boundaries, &r->boundaries_capacity, n + 2, sizeof *r->boundaries);
        r->boundaries[n++] = (struct cs_boundary){
            .position = c->end[i], .kind = role == 's' ? CS_BOUNDARY_SYSTEM : CS_BOUNDARY_TURN};
    }
    r->boundaries = sim_reserve(r->boundaries, &r->boundaries_capacity, n + 2, sizeof *r->boundaries);
    if (n == 0 && system_tokens > 0 && system_tokens < q->n_prompt)
        r->boundaries[n++] = (struct cs_boundary){.position = system_tokens, .kind = CS_BOUNDARY_SYSTEM};
    r->boundaries[n++] = (struct cs_boundary){.position = q->n_prompt, .kind = CS_BOUNDARY_END};
    return n;
}

static uint32_t checkpoints_of_path(const struct cs_sequence *q)
{
    uint32_t n = 0, ordinal = q->place_ordinal;
    for (const struct span *at = q->place; at; ordinal = at->parent_ordinal, at = at->parent)
        for (const struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            n += !c->doomed && c->parent_ordinal <= ordinal;
    return n;
}

/* False: there is no room. */
static bool compute(struct cs_sequence *q, uint32_t from, uint32_t to)
{
    const struct cs_capture *captures;
    size_t n;
    if (cs_sequence_grow(q, to) != CS_OK)
        return false;
    int rc = cs_sequence_step_begin(q, from, to, &captures, &n);
    if (rc != CS_OK)
        sim_die("a step: %s", cs_strerror(rc));
    cs_sequence_step_end(q, to, true);
    return true;
}

static void publish(struct cs_sequence *q, const struct sim_chain *c, uint32_t n)
{
    int rc = cs_sequence_publish(q, c->ids, n, NULL, 0);
    if (rc != CS_OK)
        sim_die("a publish: %s", cs_strerror(rc));
}

static void count(struct replay *r, size_t i, const struct cs_reuse *reuse)
{
    const struct sim_request *request = &r->trace->requests[i];
    struct sim_result *out = r->result;
    uint32_t reused = reuse->tokens_device + reuse->tokens_disk;
    if (!request->measured)
        return;
    out->requests++;
    out->prompt_tokens += request->n_prompt;
    out->matchable_tokens += r->trace->matchable[i];
    out->reused_tokens += reused;
    out->disk_tokens += reuse->tokens_disk;
    out->prompt_s += sim_prefill_s(request->n_prompt);
    out->matchable_s += sim_prefill_s(r->trace->matchable[i]);
    out->saved_s += sim_prefill_s(reused);
}

static void serve(struct replay *r, size_t i, const struct sim_chain *c)
{
    const struct sim_request *request = &r->trace->requests[i];
    struct cs_sequence *q;
    struct cs_reuse reuse;
    const struct cs_capture *capture;
    if (cs_sequence_open(r->store, NULL, c->ids, request->n_prompt, &q) != CS_OK)
        sim_die("out of memory");
    while (!cs_sequence_poll(q, &reuse))
        sim_disk_work();
    cs_sequence_state_done(q);
    uint32_t reused = reuse.tokens_device + reuse.tokens_disk, all = c->end[c->n - 1];
    count(r, i, &reuse);
    if (r->setup->resumed)
        r->setup->resumed[i] = reused ? c->ids[reused - 1] : 0;
    sim_victims_hit(q, (uint32_t)i, c, reused);
    if (r->setup->state_bytes > 0) {
        size_t n = boundaries_of(r, request, c);
        if (cs_sequence_place(q, r->boundaries, n, request->n_prompt) != CS_OK)
            sim_die("out of memory");
    }
    if (!compute(q, reused, request->n_prompt)) {
        r->result->refused++;
        cs_sequence_close(q);
        return;
    }
    publish(q, c, request->n_prompt);
    if (request->n_reply > 0 && compute(q, request->n_prompt, all)) {
        if (cs_sequence_capture(q, CS_BOUNDARY_TURN, &capture) == CS_ENOMEM)
            sim_die("out of memory");
        publish(q, c, all);
    }
    sim_victims_published(q, c, reused);
    if (request->measured && r->setup->state_bytes > 0) {
        uint32_t n = checkpoints_of_path(q);
        r->result->path_checkpoints += n;
        if (n > r->result->most_checkpoints)
            r->result->most_checkpoints = n;
    }
    cs_sequence_close(q);
}

/* What is due by now is done. */
static void background(struct cs_store *s)
{
    pthread_mutex_lock(&s->lock);
    writeback_end_grace_locked(s, store_now_ns());
    pthread_mutex_unlock(&s->lock);
    sim_disk_work();
}

#define ALL_GROUPS UINT32_MAX

static void replay_group(struct replay *r, uint32_t group)
{
    const struct sim_trace *t = r->trace;
    struct sim_cursor cursor = sim_cursor_new(t, true);
    __atomic_store_n(&trace_us, 0, __ATOMIC_RELAXED); /* an index's time never goes back */
    store_start(r, group);
    for (size_t i = 0; i < t->n_requests; i++) {
        const struct sim_request *request = &t->requests[i];
        if (group != ALL_GROUPS && request->group != group)
            continue;
        const struct sim_chain *c = sim_cursor_step(&cursor, request);
        __atomic_store_n(&trace_us, request->at_us, __ATOMIC_RELAXED);
        background(r->store);
        serve(r, i, c);
        sim_cursor_done(&cursor, request);
    }
    store_end(r);
    sim_cursor_free(&cursor);
}

void sim_replay(const struct sim_trace *t, const struct sim_setup *setup, struct sim_result *out)
{
    *out = (struct sim_result){0};
    struct replay r = {.trace = t, .setup = setup, .result = out};
    double start = cpu_s();
    if (monotonic_start_s == 0) {
        struct timespec now;
        (void)__real_clock_gettime(CLOCK_MONOTONIC, &now);
        monotonic_start_s = (uint64_t)now.tv_sec + AHEAD_S;
    }
    sim_victims_begin(t, setup);
    /* Where nothing is evicted, those that have nothing in common may be replayed apart, in less memory. */
    if (setup->budget_bytes == SIM_NO_BUDGET)
        for (uint32_t g = 0; g < t->n_groups; g++)
            replay_group(&r, g);
    else
        replay_group(&r, ALL_GROUPS);
    out->victims = sim_victims_end();
    out->cpu_s = cpu_s() - start;
    free(r.boundaries);
}
