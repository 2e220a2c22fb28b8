/* See model.h. */
#include "tests/torture/model.h"
#include "tests/torture/device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAMILY = 4, N_SYSTEMS = 3, SYSTEM_TOKENS = 13, NOTE_BYTES_MAX = 300 };

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* ---- conversations ----------------------------------------------------------------------------------- */

uint32_t path_ids(uint32_t path, uint32_t ids[PATH_TOKENS_MAX + 1])
{
    path %= N_PATHS;
    uint32_t family = path / FAMILY, fork = SYSTEM_TOKENS + family * 7 % 30;
    uint32_t n = PATH_TOKENS_MAX - path * 11 % 23;
    for (uint32_t i = 0; i <= n; i++) {
        uint64_t owner = i < SYSTEM_TOKENS ? 1000 + family % N_SYSTEMS : i < fork ? 2000 + family : path;
        ids[i] = (uint32_t)mix(mix(77, owner), i);
    }
    ids[n] = 7;
    return n;
}

struct cs_tenant path_tenant(uint32_t path)
{
    uint32_t number = path / N_PATHS, own = path % N_PATHS / FAMILY % N_SYSTEMS == 2;
    return (struct cs_tenant){.id = {(uint8_t)(2 * number + own)}};
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

enum { WHAT_PAGE = 1, WHAT_WINDOW = 1000, WHAT_STATE = 2000 };

static uint64_t hash_of(const struct turn *t, uint32_t n, uint32_t what)
{
    uint64_t h = mix(mix(what, t->g->salt), path_tenant(t->path).id[0]);
    for (uint32_t i = 0; i < n; i++)
        h = mix(h, t->ids[i]);
    return h;
}

static void fill(const struct turn *t, void *block, uint64_t h)
{
    uint64_t *words = device_memory(block);
    for (size_t w = 0; w < t->g->page_bytes / sizeof *words; w++)
        words[w] = mix(h, w);
}

static void check(const struct turn *t, void *block, uint64_t h, const char *what, uint32_t at)
{
    if (block == NULL)
        witness_fail("path %u: %s %u is absent", t->path, what, at);
    const uint64_t *words = device_memory(block);
    for (size_t w = 0; w < t->g->page_bytes / sizeof *words; w++)
        if (words[w] != mix(h, w))
            witness_fail("path %u: WRONG BYTES in %s %u at word %zu", t->path, what, at, w);
}

static uint64_t page_hash(const struct turn *t, uint32_t page)
{
    return hash_of(t, (page + 1) * t->g->page_tokens, WHAT_PAGE);
}

static uint64_t window_hash(const struct turn *t, uint32_t group, uint32_t page)
{
    return hash_of(t, (page + 1) * t->g->page_tokens, WHAT_WINDOW + group);
}

static uint64_t state_hash(const struct turn *t, uint32_t position, uint32_t block)
{
    return hash_of(t, position, WHAT_STATE + block);
}

/* What a step at `position` reads: the full pages of the windows before it. */
static void check_windows(const struct turn *t, uint32_t position)
{
    const struct geometry *g = t->g;
    uint32_t first = position < g->window ? 0 : (position - g->window + 1) / g->page_tokens;
    for (uint32_t group = 0; group < g->groups; group++)
        for (uint32_t i = first; i < position / g->page_tokens; i++)
            check(t, cs_sequence_window_pages(t->q, group)[i], window_hash(t, group, i), "window page", i);
}

static bool is_stateful(const struct geometry *g)
{
    return g->groups > 0 || g->state_blocks > 0;
}

/* ---- turns ------------------------------------------------------------------------------------------- */

static void demand(const struct turn *t, const char *call, int rc)
{
    if (rc != CS_OK)
        witness_fail("path %u: %s: %s", t->path, call, cs_strerror(rc));
}

void turn_open(struct turn *t, struct cs_store *s, const struct geometry *g, uint32_t path, uint32_t n_prompt)
{
    *t = (struct turn){.s = s, .g = g, .path = path, .n_prompt = n_prompt};
    t->n = path_ids(path, t->ids);
    struct cs_tenant tenant = path_tenant(path);
    demand(t, "open", cs_sequence_open(s, &tenant, t->ids, n_prompt, &t->q));
}

static void check_reuse(struct turn *t)
{
    const struct geometry *g = t->g;
    uint32_t reused = cs_reuse_tokens(&t->reuse);
    if (reused % g->page_tokens != 0 || reused > t->reuse.tokens_matched || reused >= t->n_prompt + !reused ||
        (is_stateful(g) && reused % g->grid != 0) || cs_sequence_n_pages(t->q) != reused / g->page_tokens)
        witness_fail("path %u: %u tokens of %u cannot be reused", t->path, reused, t->n_prompt);
    for (uint32_t i = 0; i < reused / g->page_tokens; i++)
        check(t, cs_sequence_pages(t->q)[i], page_hash(t, i), "page", i);
    t->n_computed = reused;
    if (!is_stateful(g))
        return;
    check_windows(t, reused);
    uint32_t n;
    void *const *state = cs_sequence_state(t->q, &n);
    if (n != (reused > 0 ? g->state_blocks : 0))
        witness_fail("path %u: %u blocks of state at %u", t->path, n, reused);
    for (uint32_t i = 0; i < n; i++)
        check(t, state[i], state_hash(t, reused, i), "state block", i);
    cs_sequence_state_done(t->q);
}

static void place(struct turn *t)
{
    const struct cs_boundary boundaries[] = {{.position = SYSTEM_TOKENS, .kind = CS_BOUNDARY_SYSTEM},
                                             {.position = t->n_prompt / 2, .kind = CS_BOUNDARY_TURN}};
    size_t n = t->n_prompt / 2 > SYSTEM_TOKENS ? 2 : t->n_prompt > SYSTEM_TOKENS;
    demand(t, "place", cs_sequence_place(t->q, boundaries, n, t->n_prompt));
}

bool turn_poll(struct turn *t)
{
    if (t->settled || !cs_sequence_poll(t->q, &t->reuse))
        return t->settled;
    t->settled = true;
    check_reuse(t);
    if (is_stateful(t->g) && t->n_prompt > 0)
        place(t);
    return true;
}

void turn_wait(struct turn *t)
{
    enum { LOOK_NS = 40000, PATIENCE_SECONDS = 60 };
    time_t start = time(NULL);
    while (!turn_poll(t)) {
        if (time(NULL) - start > PATIENCE_SECONDS)
            witness_fail("path %u: HANG: a restore did not settle in %d s", t->path, PATIENCE_SECONDS);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

static void fill_capture(const struct turn *t, const struct cs_capture *c)
{
    if (c->position % t->g->grid != 0 || c->n_blocks != t->g->state_blocks)
        witness_fail("path %u: a capture of %u blocks at %u", t->path, c->n_blocks, c->position);
    for (uint32_t b = 0; b < c->n_blocks; b++)
        fill(t, c->blocks[b], state_hash(t, c->position, b));
}

bool turn_compute(struct turn *t, uint32_t to, uint32_t chunk)
{
    const struct geometry *g = t->g;
    while (t->n_computed < to) {
        uint32_t from = t->n_computed, end = to - from < chunk ? to : from + chunk;
        const struct cs_capture *captures;
        size_t n_captures;
        int rc = cs_sequence_grow(t->q, end);
        if (rc == CS_OK)
            rc = cs_sequence_step_begin(t->q, from, end, &captures, &n_captures);
        if (rc == CS_EFULL)
            return false;
        demand(t, "grow, step_begin", rc);
        check_windows(t, from);
        for (uint32_t i = from / g->page_tokens; i < (end + g->page_tokens - 1) / g->page_tokens; i++) {
            fill(t, cs_sequence_pages(t->q)[i], page_hash(t, i));
            for (uint32_t group = 0; group < g->groups; group++)
                fill(t, cs_sequence_window_pages(t->q, group)[i], window_hash(t, group, i));
        }
        for (size_t k = 0; k < n_captures; k++)
            fill_capture(t, &captures[k]);
        cs_sequence_step_end(t->q, end, true);
        t->n_computed = end;
    }
    return true;
}

void turn_capture(struct turn *t)
{
    const struct cs_capture *c;
    int rc = cs_sequence_capture(t->q, CS_BOUNDARY_TURN, &c);
    if (rc == CS_OK)
        fill_capture(t, c);
    else if (rc != CS_ENOTFOUND && rc != CS_EFULL)
        demand(t, "capture", rc);
}

/* ---- notes ------------------------------------------------------------------------------------------- */

static struct cs_key note_key(uint32_t path)
{
    return (struct cs_key){path, 0x6e6f7465};
}

static uint32_t note_bytes(uint32_t path, uint8_t out[NOTE_BYTES_MAX])
{
    uint32_t n = path * 37 % NOTE_BYTES_MAX;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)(path * 131 + i);
    return n;
}

void note_check(struct cs_store *s, uint32_t path)
{
    uint8_t want[NOTE_BYTES_MAX];
    uint32_t n = note_bytes(path, want), len;
    void *data;
    int rc = cs_note_get(s, note_key(path), &data, &len);
    if (rc == CS_ENOTFOUND)
        return;
    if (rc != CS_OK || len != n || memcmp(data, want, n) != 0)
        witness_fail("WRONG BYTES in the note of path %u (%s)", path, cs_strerror(rc));
    free(data);
}

/* ---- publishing -------------------------------------------------------------------------------------- */

void turn_say_keys(const struct turn *t, enum witness_kind kind, uint32_t n_pages)
{
    uint64_t words[2 + 2 * PATH_TOKENS_MAX] = {t->path, n_pages};
    struct cs_tenant tenant = path_tenant(t->path);
    struct cs_chain chain;
    cs_chain_init(t->s, &tenant, &chain);
    for (uint32_t i = 0; i < n_pages; i++) {
        cs_chain_add(&chain, t->ids + (size_t)i * t->g->page_tokens, t->g->page_tokens);
        struct cs_key key = cs_chain_key(&chain);
        words[2 + 2 * i] = key.lo;
        words[3 + 2 * i] = key.hi;
    }
    witness_say(kind, words, 2 + 2 * (size_t)n_pages);
}

void turn_publish(struct turn *t, bool with_note)
{
    uint8_t text[NOTE_BYTES_MAX];
    struct cs_note note = {.key = note_key(t->path), .data = text, .len = note_bytes(t->path, text)};
    turn_say_keys(t, W_PATH, t->n_computed / t->g->page_tokens);
    demand(t, "publish", cs_sequence_publish(t->q, t->ids, t->n_computed, &note, with_note));
}

void turn_close(struct turn *t)
{
    cs_sequence_close(t->q);
    t->q = NULL;
}
