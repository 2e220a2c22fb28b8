/*
 * Reads traces, one JSON object a line, plain or gzip; unknown fields are passed over:
 *
 *   blocks of a service    {"timestamp", "input_length", "hash_ids"}: 512 tokens a block, real arrivals
 *   sessions of an agent   {"requests": [...]}: 64 tokens a block, chains with what each keeps of the one
 *                          before; sessions are laid beside each other, so many users at a time
 *   authors                {"author", "msgs"}: messages with roles; a prelude is what was stored before
 *
 * A block id says all that lies before it; a message's says its text only, so messages become nodes of a
 * tree.
 */
#include "bench/policy_sim.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define US_PER_MS        1000ull
#define US_PER_S         1000000ull
#define SERVICE_BLOCK    512
#define MESSAGE_OVERHEAD 5 /* tokens of the template around a message */
#define DECODE_US        15000ull
#define BETWEEN_SESSIONS 30 /* s before a user's next one */
#define MAX_BOOKS        16
#define LINE_BYTES       65536

/* ---- lines ------------------------------------------------------------------------------------------- */

struct lines {
    gzFile file;
    char *text;
    size_t capacity;
    size_t number;
};

static json_t *next_line(struct lines *l)
{
    size_t n = 0;
    do {
        l->text = sim_reserve(l->text, &l->capacity, n + LINE_BYTES, 1);
        if (!gzgets(l->file, l->text + n, LINE_BYTES))
            break;
        n += strlen(l->text + n);
    } while (n == 0 || l->text[n - 1] != '\n');
    if (n == 0)
        return NULL;
    l->number++;
    json_error_t error;
    json_t *line = json_loadb(l->text, n, 0, &error);
    if (!line)
        sim_die("line %zu: %s", l->number, error.text);
    return line;
}

static uint64_t number(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x > 1e15)
        sim_die("no %s where one is needed", name);
    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : (uint64_t)x;
}

static uint32_t small(const json_t *object, const char *name)
{
    uint64_t x = number(object, name);
    if (x > INT32_MAX)
        sim_die("%s is out of range", name);
    return (uint32_t)x;
}

static uint32_t small_or_0(const json_t *object, const char *name)
{
    return json_object_get(object, name) ? small(object, name) : 0;
}

static uint64_t seconds_in_us(const json_t *object, const char *name)
{
    double x = json_number_value(json_object_get(object, name));
    return x > 0 ? (uint64_t)(x * (double)US_PER_S) : 0;
}

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Nodes up to `last` are there. */
static void nodes_up_to(struct sim_trace *t, uint64_t last, uint32_t tokens)
{
    if (last >= SIM_LOOSE_ID)
        sim_die("a block's id is out of range");
    while (t->n_nodes <= last)
        (void)sim_trace_add_node(t, tokens, 0);
}

/* ---- blocks of a service ----------------------------------------------------------------------------- */

static void read_service(struct sim_trace *t, const json_t *line)
{
    const json_t *ids = json_object_get(line, "hash_ids");
    struct sim_request *r = sim_trace_add_request(t);
    r->at_us = number(line, "timestamp") * US_PER_MS;
    r->n_prompt = small(line, "input_length");
    r->n_new = (uint32_t)json_array_size(ids);
    if (r->n_prompt == 0 || (r->n_prompt - 1) / SERVICE_BLOCK + 1 != r->n_new)
        sim_die("a prompt of %u tokens has %u blocks", r->n_prompt, r->n_new);
    for (uint32_t i = 0; i < r->n_new; i++) {
        uint64_t id = (uint64_t)json_integer_value(json_array_get(ids, i)) + 1;
        nodes_up_to(t, id, SERVICE_BLOCK);
        sim_trace_list(t, (uint32_t)id);
    }
    t->n_chains = t->n_groups = 1;
}

/* ---- sessions of an agent ---------------------------------------------------------------------------- */

struct agent {
    struct sim_trace *t;
    uint32_t group, block;
    uint32_t base; /* added to a session's ids */
};

static void read_agent_request(const struct agent *a, const json_t *item, uint32_t chain, uint64_t start_us,
                               uint32_t system_tokens)
{
    struct sim_trace *t = a->t;
    uint32_t blocks = small(item, "n");
    struct sim_request *r = sim_trace_add_request(t);
    *r = (struct sim_request){.at_us = start_us + seconds_in_us(item, "t"),
                              .order = r->order,
                              .first_new = r->first_new,
                              .group = a->group,
                              .chain = chain,
                              .n_kept = small(item, "lcp"),
                              .n_prompt = blocks * a->block + 1,
                              .system_tokens = system_tokens,
                              .measured = true};
    uint32_t n_new = 0;
    const json_t *ranges = json_object_get(item, "new");
    for (size_t k = 0; k < json_array_size(ranges); k++) {
        const json_t *range = json_array_get(ranges, k);
        uint64_t first = (uint64_t)json_integer_value(json_array_get(range, 0)) + a->base;
        uint64_t n = (uint64_t)json_integer_value(json_array_get(range, 1));
        nodes_up_to(t, first + n - 1, a->block);
        for (uint64_t i = 0; i < n; i++)
            sim_trace_list(t, (uint32_t)(first + i));
        n_new += (uint32_t)n;
    }
    r->n_new = n_new;
    if (r->n_kept + n_new != blocks || blocks == 0)
        sim_die("a prompt of %u blocks keeps %u and has %u new", blocks, r->n_kept, n_new);
}

/* The requests of one chain, and of the chains of its sub-agents. */
static void read_agent_chain(const struct agent *a, const json_t *of, uint64_t start_us)
{
    const json_t *requests = json_object_get(of, "requests");
    uint32_t chain = a->t->n_chains++;
    uint32_t system_tokens = small_or_0(of, "tool_tokens") + small_or_0(of, "system_tokens");
    for (size_t i = 0; i < json_array_size(requests); i++) {
        const json_t *item = json_array_get(requests, i);
        if (json_object_get(item, "requests"))
            read_agent_chain(a, item, start_us + seconds_in_us(item, "t"));
        else
            read_agent_request(a, item, chain, start_us, system_tokens);
    }
}

static int by_time(const void *a, const void *b)
{
    const struct sim_request *ra = *(struct sim_request *const *)a, *rb = *(struct sim_request *const *)b;
    if (ra->at_us != rb->at_us)
        return ra->at_us < rb->at_us ? -1 : 1;
    return ra->order < rb->order ? -1 : 1;
}

/* Cuts the session's pauses, keeps each chain in order, and lets it begin at start_us; returns its end. */
static uint64_t lay_session(struct sim_trace *t, size_t first, uint64_t start_us, uint64_t cap_us)
{
    size_t n = t->n_requests - first;
    struct sim_request **order = malloc((n + 1) * sizeof(struct sim_request *));
    if (!order)
        sim_die("out of memory");
    for (size_t i = 0; i < n; i++) {
        order[i] = &t->requests[first + i];
        /* Of a chain that the file has out of order, a later request never comes before an earlier one. */
        for (size_t k = i; k-- > 0;)
            if (order[k]->chain == order[i]->chain) {
                if (order[k]->at_us > order[i]->at_us)
                    order[i]->at_us = order[k]->at_us;
                break;
            }
    }
    qsort((void *)order, n, sizeof(struct sim_request *), by_time);
    uint64_t at = start_us, before = n ? order[0]->at_us : 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t gap = order[i]->at_us - before;
        before = order[i]->at_us;
        at += gap < cap_us ? gap : cap_us;
        order[i]->at_us = at;
    }
    free((void *)order);
    return at;
}

static void read_agents(struct sim_trace *t, struct lines *l, json_t *line, const struct sim_arrival *arrival)
{
    json_t **sessions = NULL;
    size_t n = 0, capacity = 0;
    for (; line; line = next_line(l)) {
        sessions = sim_reserve((void *)sessions, &capacity, n, sizeof(json_t *));
        sessions[n++] = line;
    }
    uint64_t seed = arrival->seed;
    for (size_t i = n; i > 1; i--) {
        size_t k = splitmix(&seed) % i;
        json_t *s = sessions[i - 1];
        sessions[i - 1] = sessions[k];
        sessions[k] = s;
    }
    uint64_t *free_us = calloc(arrival->users, sizeof *free_us);
    if (!free_us)
        sim_die("out of memory");
    for (size_t i = 0; i < n; i++) {
        if (arrival->sessions == 0 || i < arrival->sessions) {
            uint32_t user = 0;
            for (uint32_t u = 1; u < arrival->users; u++)
                if (free_us[u] < free_us[user])
                    user = u;
            const struct agent a = {.t = t,
                                    .group = t->n_groups++,
                                    .block = small(sessions[i], "block_size"),
                                    .base = t->n_nodes ? (uint32_t)t->n_nodes : 1};
            size_t first = t->n_requests;
            read_agent_chain(&a, sessions[i], 0);
            free_us[user] = lay_session(t, first, free_us[user], arrival->gap_cap_s * US_PER_S) +
                            BETWEEN_SESSIONS * US_PER_S;
        }
        json_decref(sessions[i]);
    }
    free(free_us);
    free((void *)sessions);
}

/* ---- authors ----------------------------------------------------------------------------------------- */

struct message {
    uint32_t parent, tokens;
    uint64_t text;
    char role;
    uint32_t node; /* 0: the slot is free */
};

struct authors {
    struct sim_trace *t;
    struct message *table; /* a power of two of slots, open */
    size_t n, slots;
    struct chain_so_far {
        uint32_t *node;
        size_t n, capacity;
    } * chains;
    size_t chains_capacity;
    uint64_t *now_us; /* of each author */
    size_t now_capacity, n_authors;
};

static size_t slot_of(const struct message *table, size_t slots, const struct message *m)
{
    uint64_t state = m->text ^ ((uint64_t)m->parent << 32 | m->tokens) ^ (uint64_t)m->role << 56;
    size_t i = splitmix(&state) & (slots - 1);
    while (table[i].node && (table[i].parent != m->parent || table[i].tokens != m->tokens ||
                             table[i].text != m->text || table[i].role != m->role))
        i = (i + 1) & (slots - 1);
    return i;
}

static uint32_t node_of_message(struct authors *a, struct message m)
{
    if (2 * a->n >= a->slots) {
        size_t slots = a->slots ? 2 * a->slots : 1024;
        struct message *table = calloc(slots, sizeof *table);
        if (!table)
            sim_die("out of memory");
        for (size_t i = 0; i < a->slots; i++)
            if (a->table[i].node)
                table[slot_of(table, slots, &a->table[i])] = a->table[i];
        free(a->table);
        a->table = table;
        a->slots = slots;
    }
    struct message *slot = &a->table[slot_of(a->table, a->slots, &m)];
    if (!slot->node) {
        *slot = m;
        slot->node = sim_trace_add_node(a->t, m.tokens, m.role);
        a->n++;
    }
    return slot->node;
}

/* Adds the messages behind the first n pieces of the chain; returns the tokens that they make. */
static uint32_t read_messages(struct authors *a, struct chain_so_far *c, const json_t *messages, size_t *n,
                              struct sim_request *r)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < json_array_size(messages); i++, ++*n) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_array_get(m, 0));
        uint32_t tokens = (uint32_t)json_integer_value(json_array_get(m, 1)) + MESSAGE_OVERHEAD;
        uint32_t node =
            node_of_message(a, (struct message){.parent = *n ? c->node[*n - 1] : 0,
                                                .tokens = tokens,
                                                .text = (uint64_t)json_integer_value(json_array_get(m, 2)),
                                                .role = role ? role[0] : 'u'});
        sum += tokens;
        if (r->n_kept == *n && *n < c->n && c->node[*n] == node) {
            r->n_kept++;
            continue;
        }
        c->node = sim_reserve(c->node, &c->capacity, *n, sizeof *c->node);
        c->node[*n] = node;
        c->n = *n + 1;
        sim_trace_list(a->t, node);
        r->n_new++;
    }
    return sum;
}

static void read_author(struct authors *a, const json_t *line)
{
    struct sim_trace *t = a->t;
    uint32_t author = small(line, "author"), book = small(line, "book"), chain = author * MAX_BOOKS + book;
    if (book >= MAX_BOOKS || author >= 1u << 16)
        sim_die("author %u, book %u", author, book);
    bool prelude = json_object_get(line, "prelude") != NULL;
    while (t->n_chains <= chain) {
        a->chains = sim_reserve(a->chains, &a->chains_capacity, t->n_chains, sizeof *a->chains);
        a->chains[t->n_chains++] = (struct chain_so_far){0};
    }
    for (; a->n_authors <= author; a->n_authors++) {
        a->now_us = sim_reserve(a->now_us, &a->now_capacity, a->n_authors, sizeof *a->now_us);
        a->now_us[a->n_authors] = 0;
    }
    struct sim_request r = *sim_trace_add_request(t);
    struct chain_so_far *c = &a->chains[chain];
    const json_t *reply = json_object_get(line, "reply");
    size_t n = 0;
    r.chain = chain;
    r.measured = !prelude;
    r.n_prompt = read_messages(a, c, json_object_get(line, "msgs"), &n, &r);
    c->n = n; /* a shorter prompt ends here */
    uint32_t listed = r.n_new;
    (void)read_messages(a, c, reply, &n, &r);
    r.n_reply = r.n_new - listed;
    if (prelude) {
        a->now_us[author] += US_PER_S;
        r.at_us = a->now_us[author];
    } else {
        r.at_us = a->now_us[author] + number(line, "think_ms") * US_PER_MS;
        a->now_us[author] = r.at_us + number(line, "out") * DECODE_US;
    }
    t->requests[t->n_requests - 1] = r;
    t->n_groups = 1;
}

static void read_authors(struct sim_trace *t, struct lines *l, json_t *line)
{
    struct authors a = {.t = t};
    for (; line; line = next_line(l)) {
        read_author(&a, line);
        json_decref(line);
    }
    for (uint32_t i = 0; i < t->n_chains; i++)
        free(a.chains[i].node);
    free(a.chains);
    free(a.table);
    free(a.now_us);
}

/* ---- all --------------------------------------------------------------------------------------------- */

void sim_read(const char *path, const struct sim_arrival *arrival, struct sim_trace *t)
{
    struct lines l = {.file = gzopen(path, "rb")};
    if (!l.file)
        sim_die("cannot open %s", path);
    json_t *line = next_line(&l);
    if (line && json_object_get(line, "requests")) {
        read_agents(t, &l, line, arrival);
    } else if (line && json_object_get(line, "msgs")) {
        read_authors(t, &l, line);
    } else {
        for (; line; line = next_line(&l)) {
            if (!json_object_get(line, "hash_ids"))
                sim_die("line %zu is of no trace known", l.number);
            read_service(t, line);
            json_decref(line);
        }
    }
    gzclose(l.file);
    free(l.text);
}
