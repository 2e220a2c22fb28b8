/* Traces in memory (see policy_sim.h). */
#include "bench/policy_sim.h"

#include <stdlib.h>
#include <string.h>

void *sim_reserve(void *items, size_t *capacity, size_t n, size_t size)
{
    if (n < *capacity)
        return items;
    *capacity = n + n / 2 + 64;
    void *grown = realloc(items, *capacity * size);
    if (!grown)
        sim_die("out of memory");
    return grown;
}

static void *zeroed(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        sim_die("out of memory");
    return p;
}

uint32_t sim_trace_add_node(struct sim_trace *t, uint32_t tokens, char role)
{
    if (t->n_nodes == 0)
        t->n_nodes = 1;
    if (t->n_nodes >= SIM_LOOSE_ID)
        sim_die("too many pieces");
    t->nodes = sim_reserve(t->nodes, &t->nodes_capacity, t->n_nodes, sizeof *t->nodes);
    t->nodes[t->n_nodes] = (struct sim_node){.tokens = tokens, .role = role};
    return (uint32_t)t->n_nodes++;
}

void sim_trace_list(struct sim_trace *t, uint32_t node)
{
    t->list = sim_reserve(t->list, &t->list_capacity, t->n_list, sizeof *t->list);
    t->list[t->n_list++] = node;
}

struct sim_request *sim_trace_add_request(struct sim_trace *t)
{
    t->requests = sim_reserve(t->requests, &t->requests_capacity, t->n_requests, sizeof *t->requests);
    struct sim_request *r = &t->requests[t->n_requests];
    *r = (struct sim_request){.order = (uint32_t)t->n_requests, .first_new = t->n_list, .measured = true};
    t->n_requests++;
    return r;
}

static int by_arrival(const void *a, const void *b)
{
    const struct sim_request *ra = a, *rb = b;
    if (ra->at_us != rb->at_us)
        return ra->at_us < rb->at_us ? -1 : 1;
    return ra->order < rb->order ? -1 : 1;
}

void sim_trace_finish(struct sim_trace *t, uint32_t page_tokens)
{
    if (t->n_requests == 0)
        sim_die("the trace has no requests");
    qsort(t->requests, t->n_requests, sizeof *t->requests, by_arrival);
    bool *ended = zeroed(t->n_chains, sizeof *ended), *seen = zeroed(t->n_nodes, sizeof *seen);
    for (size_t i = t->n_requests; i-- > 0;) {
        t->requests[i].last_of_chain = !ended[t->requests[i].chain];
        ended[t->requests[i].chain] = true;
    }
    t->matchable = zeroed(t->n_requests, sizeof *t->matchable);
    struct sim_cursor c = sim_cursor_new(t, false);
    for (size_t i = 0; i < t->n_requests; i++) {
        const struct sim_request *r = &t->requests[i];
        const struct sim_chain *chain = sim_cursor_step(&c, r);
        uint32_t n = 0;
        while (n < chain->n - r->n_reply && seen[chain->node[n]])
            n++;
        uint32_t tokens = n ? chain->end[n - 1] : 0;
        t->matchable[i] = (tokens < r->n_prompt ? tokens : r->n_prompt - 1) / page_tokens * page_tokens;
        for (uint32_t k = 0; k < r->n_new; k++) {
            uint32_t node = t->list[r->first_new + k];
            if (!seen[node])
                t->n_distinct_tokens += t->nodes[node].tokens;
            seen[node] = true;
        }
        sim_cursor_done(&c, r);
    }
    sim_cursor_free(&c);
    free(ended);
    free(seen);
}

void sim_trace_free(struct sim_trace *t)
{
    free(t->requests);
    free(t->list);
    free(t->nodes);
    free(t->matchable);
    *t = (struct sim_trace){0};
}

/* ---- chains ------------------------------------------------------------------------------------------ */

struct sim_cursor sim_cursor_new(const struct sim_trace *t, bool with_ids)
{
    return (struct sim_cursor){
        .trace = t, .chains = zeroed(t->n_chains, sizeof(struct sim_chain)), .with_ids = with_ids};
}

static void chain_free(struct sim_chain *c)
{
    free(c->node);
    free(c->end);
    free(c->ids);
    *c = (struct sim_chain){0};
}

static void chain_add(struct sim_chain *c, uint32_t node, uint32_t tokens, bool with_ids)
{
    size_t capacity = c->capacity;
    uint32_t start = c->n ? c->end[c->n - 1] : 0;
    c->node = sim_reserve(c->node, &capacity, c->n, sizeof *c->node);
    c->end = sim_reserve(c->end, &c->capacity, c->n, sizeof *c->end);
    c->node[c->n] = node;
    c->end[c->n++] = start + tokens;
    if (!with_ids)
        return;
    c->ids = sim_reserve(c->ids, &c->ids_capacity, (size_t)start + tokens + 1, sizeof *c->ids);
    for (uint32_t i = 0; i <= tokens; i++)
        c->ids[start + i] = i < tokens ? node : SIM_LOOSE_ID;
}

const struct sim_chain *sim_cursor_step(struct sim_cursor *cursor, const struct sim_request *r)
{
    struct sim_chain *c = &cursor->chains[r->chain];
    if (c->n < r->n_kept)
        sim_die("request %u keeps more than there is", r->order);
    c->n = r->n_kept;
    for (uint32_t i = 0; i < r->n_new; i++) {
        uint32_t node = cursor->trace->list[r->first_new + i];
        chain_add(c, node, cursor->trace->nodes[node].tokens, cursor->with_ids);
    }
    if (c->n == 0)
        sim_die("request %u has no prompt", r->order);
    if (r->n_new == 0 && cursor->with_ids) /* what came behind it is no part of this prompt */
        c->ids[c->end[c->n - 1]] = SIM_LOOSE_ID;
    return c;
}

void sim_cursor_done(struct sim_cursor *c, const struct sim_request *r)
{
    if (r->last_of_chain)
        chain_free(&c->chains[r->chain]);
}

void sim_cursor_free(struct sim_cursor *c)
{
    for (uint32_t i = 0; i < c->trace->n_chains; i++)
        chain_free(&c->chains[i]);
    free(c->chains);
}

/* ---- uses -------------------------------------------------------------------------------------------- */

/* Counts, then places: `used` NULL stands for all nodes of each prompt. */
static struct sim_uses uses_new(const struct sim_trace *t, const uint32_t *used)
{
    struct sim_uses u = {.first = zeroed(t->n_nodes + 2, sizeof *u.first)};
    for (int pass = 0; pass < 2; pass++) {
        struct sim_cursor c = sim_cursor_new(t, false);
        for (size_t i = 0; i < t->n_requests; i++) {
            const struct sim_request *r = &t->requests[i];
            const struct sim_chain *chain = sim_cursor_step(&c, r);
            const uint32_t *node = used ? &used[i] : chain->node;
            size_t n = used ? used[i] != 0 : chain->n - r->n_reply;
            for (size_t k = 0; k < n; k++)
                if (pass == 0)
                    u.first[node[k] + 2]++;
                else
                    u.request[u.first[node[k] + 1]++] = (uint32_t)i;
            sim_cursor_done(&c, r);
        }
        sim_cursor_free(&c);
        if (pass == 0) {
            for (size_t k = 2; k < t->n_nodes + 2; k++)
                u.first[k] += u.first[k - 1];
            u.request = zeroed(u.first[t->n_nodes + 1], sizeof *u.request);
        }
    }
    return u;
}

struct sim_uses sim_uses_of_prompts(const struct sim_trace *t)
{
    return uses_new(t, NULL);
}

struct sim_uses sim_uses_of(const struct sim_trace *t, const uint32_t *used)
{
    return uses_new(t, used);
}

void sim_uses_free(struct sim_uses *u)
{
    free(u->first);
    free(u->request);
    *u = (struct sim_uses){0};
}

uint32_t sim_uses_next(const struct sim_uses *u, uint32_t node, uint32_t now)
{
    size_t low = u->first[node], high = u->first[node + 1], end = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (u->request[middle] > now)
            high = middle;
        else
            low = middle + 1;
    }
    return low < end ? u->request[low] : SIM_NEVER;
}
