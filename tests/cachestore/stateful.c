/* A make-believe model with windows and state (see stateful.h). */
#include "tests/cachestore/stateful.h"

#include "cachestore/store.h"
#include "tests/cachestore/fake_device.h"

struct cs_config stateful_config(uint32_t arena_pages)
{
    struct cs_config c = tiny_config(arena_pages);
    c.window_groups = GROUPS;
    c.window_tokens = WINDOW;
    c.state_bytes = STATE_BLOCKS * PAGE - 100;
    c.grid_tokens = GRID;
    return c;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

static uint64_t hash_of(const struct run *r, uint32_t n, uint32_t what)
{
    uint64_t h = mix(what, r->salt);
    for (uint32_t i = 0; i < n; i++)
        h = mix(h, r->ids[i]);
    return h;
}

static void fill_block(void *block, uint64_t h)
{
    uint64_t *words = memory_of(block);
    for (size_t w = 0; w < PAGE / sizeof *words; w++)
        words[w] = mix(h, w);
}

static void check_block(const void *block, uint64_t h, const char *what, uint32_t at)
{
    const uint64_t *words = memory_of(block);
    if (!block) {
        fail_msg("%s %u is absent", what, at);
        return;
    }
    for (size_t w = 0; w < PAGE / sizeof *words; w++)
        if (words[w] != mix(h, w))
            fail_msg("%s %u is wrong at word %zu", what, at, w);
}

static uint64_t window_hash(const struct run *r, uint32_t group, uint32_t page)
{
    return hash_of(r, (page + 1) * PT, 1000 + group);
}

static uint64_t state_hash(const struct run *r, uint32_t position, uint32_t block)
{
    return hash_of(r, position, 2000 + block);
}

/* What a step at `position` reads: the full pages of the windows before it. */
static void check_windows(const struct run *r, uint32_t position)
{
    uint32_t first = position < r->window ? 0 : (position - r->window + 1) / PT;
    for (uint32_t g = 0; g < r->groups; g++)
        for (uint32_t i = first; i < position / PT; i++)
            check_block(cs_sequence_window_pages(r->q, g)[i], window_hash(r, g, i), "window page", i);
}

void run_open(struct run *r, struct cs_store *s, const struct cs_config *c, uint32_t tenant,
              const uint32_t *ids, uint32_t n)
{
    *r = (struct run){.s = s,
                      .ids = ids,
                      .salt = tenant,
                      .groups = c->window_groups,
                      .window = c->window_tokens,
                      .state_blocks = (uint32_t)((c->state_bytes + PAGE - 1) / PAGE),
                      .grid = c->grid_tokens ? c->grid_tokens : PT};
    struct cs_tenant t = {.id = {(uint8_t)tenant}};
    assert_int_equal(cs_sequence_open(s, &t, ids, n, &r->q), CS_OK);
}

bool run_settle(struct run *r)
{
    if (!cs_sequence_poll(r->q, &r->reuse))
        return false;
    r->n_computed = cs_reuse_tokens(&r->reuse);
    assert_int_equal(r->n_computed % r->grid, 0);
    assert_true(r->n_computed <= r->reuse.tokens_matched);
    assert_int_equal(cs_sequence_n_pages(r->q), r->n_computed / PT);
    check_pages(r->q, r->ids, r->n_computed / PT, r->salt);
    check_windows(r, r->n_computed);
    uint32_t n;
    void *const *state = cs_sequence_state(r->q, &n);
    if (r->n_computed == 0 || r->state_blocks == 0)
        assert_null(state);
    else
        assert_int_equal(n, r->state_blocks);
    for (uint32_t i = 0; state && i < n; i++)
        check_block(state[i], state_hash(r, r->n_computed, i), "state block", i);
    cs_sequence_state_done(r->q);
    assert_null(cs_sequence_state(r->q, &n));
    return true;
}

struct fake_tier *run_fake;

uint32_t run_start(struct run *r, struct cs_store *s, const struct cs_config *c, uint32_t tenant,
                   const uint32_t *ids, uint32_t n)
{
    run_open(r, s, c, tenant, ids, n);
    if (run_fake)
        fake_finish_reads(run_fake, TIER_OK);
    fake_device_finish_all();
    wait_settled(r->q);
    assert_true(run_settle(r));
    return r->n_computed;
}

static void fill_capture(const struct run *r, const struct cs_capture *c)
{
    assert_int_equal(c->position % r->grid, 0);
    assert_int_equal(c->n_blocks, r->state_blocks);
    for (uint32_t b = 0; b < c->n_blocks; b++)
        fill_block(c->blocks[b], state_hash(r, c->position, b));
}

int run_compute(struct run *r, uint32_t to, uint32_t chunk)
{
    while (r->n_computed < to) {
        uint32_t from = r->n_computed, end = to - from < chunk ? to : from + chunk;
        const struct cs_capture *captures;
        size_t n_captures;
        uint32_t had = (uint32_t)cs_sequence_n_pages(r->q);
        int rc = cs_sequence_grow(r->q, end);
        if (rc == CS_OK)
            rc = cs_sequence_step_begin(r->q, from, end, &captures, &n_captures);
        if (rc != CS_OK)
            return rc;
        check_windows(r, from);
        uint32_t n_pages = (end + PT - 1) / PT;
        fill_pages(r->q, r->ids, had, n_pages, r->salt);
        for (uint32_t g = 0; g < r->groups; g++)
            for (uint32_t i = from / PT; i < n_pages; i++)
                fill_block(cs_sequence_window_pages(r->q, g)[i], window_hash(r, g, i));
        for (size_t k = 0; k < n_captures; k++) {
            assert_true(captures[k].position > from && captures[k].position <= end);
            fill_capture(r, &captures[k]);
        }
        cs_sequence_step_end(r->q, end, true);
        r->n_computed = end;
    }
    return CS_OK;
}

int run_capture(struct run *r)
{
    const struct cs_capture *c;
    int rc = cs_sequence_capture(r->q, CS_BOUNDARY_TURN, &c);
    if (rc == CS_OK)
        fill_capture(r, c);
    return rc;
}

void run_publish(struct run *r)
{
    assert_int_equal(cs_sequence_publish(r->q, r->ids, r->n_computed, NULL, 0), CS_OK);
}

void run_close(struct run *r)
{
    cs_sequence_close(r->q);
    r->q = NULL;
}

uint32_t run_turn(struct cs_store *s, const struct cs_config *c, uint32_t tenant, const uint32_t *ids,
                  uint32_t n_prompt, uint32_t n, const struct cs_boundary *boundaries, size_t n_boundaries)
{
    struct run r;
    uint32_t resumed = run_start(&r, s, c, tenant, ids, n_prompt);
    assert_int_equal(cs_sequence_place(r.q, boundaries, n_boundaries, n_prompt), CS_OK);
    assert_int_equal(run_compute(&r, n_prompt, 13), CS_OK);
    run_publish(&r);
    assert_int_equal(run_compute(&r, n, 1), CS_OK);
    if (n > n_prompt) {
        (void)run_capture(&r);
        run_publish(&r);
    }
    run_close(&r);
    return resumed;
}

void check_all_let_go(struct cs_store *s)
{
    check_balance(s);
    assert_int_equal(stats_of(s).pages_live, 0);
    cs_close(s, 0);
}

uint32_t checkpoints_on_path(struct cs_store *s, const struct cs_config *c, const uint32_t *ids, uint32_t n)
{
    struct cs_sequence *q;
    struct cs_tenant t = {0};
    uint32_t count = 0;
    (void)c;
    assert_int_equal(cs_sequence_open(s, &t, ids, n, &q), CS_OK);
    wait_settled(q);
    pthread_mutex_lock(&s->lock);
    for (uint32_t p = PT; p <= q->reuse.tokens_matched; p += PT)
        count += checkpoint_at_locked(s, q->place, q->place_ordinal, p) != NULL;
    pthread_mutex_unlock(&s->lock);
    cs_sequence_close(q);
    return count;
}
