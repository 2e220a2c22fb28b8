/*
 * Several threads at once over one small store, with and without a disk: open, poll, grow, publish, close,
 * notes and counters; then windows and state as well. Every reused page is checked; TSan watches the rest
 * (build with -Db_sanitize=thread).
 */
#include "tests/cachestore/disk_dir.h"
#include "tests/cachestore/stateful.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_THREADS = 4, STEPS = 400, TOKENS = 15 * PT, MOST_POLLS = 100000 };

struct worker {
    struct cs_store *s;
    uint64_t rng;
    uint64_t reused, published;
    bool stateful;
    const char *wrong; /* cmocka's own failures must stay on the main thread */
};

static uint32_t pick(struct worker *w, uint32_t n)
{
    return (uint32_t)(random_next(&w->rng) >> 20) % n;
}

static uint64_t word_of(const uint32_t *ids, size_t n)
{
    uint64_t h = 7;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ids[i]) * 0x9e3779b97f4a7c15ull;
    return h;
}

static struct cs_key note_key(const uint32_t *ids, size_t n)
{
    return (struct cs_key){word_of(ids, n), n};
}

static void wake(void *ctx)
{
    atomic_store((atomic_int *)ctx, 1);
}

static atomic_int never_dies; /* notify's context must outlive the store */

/* False: the sequence is closed, by a client that goes away, or because it is not to be had at all. */
static bool settle(struct worker *w, struct cs_sequence *q, struct cs_reuse *reuse)
{
    uint32_t patience = pick(w, 4) == 0 ? pick(w, 50) : MOST_POLLS;
    for (uint32_t polls = 0; !cs_sequence_poll(q, reuse); polls++) {
        if (polls == patience) {
            if (patience == MOST_POLLS)
                w->wrong = "a sequence is never settled";
            cs_sequence_close(q);
            return false;
        }
        usleep(50);
    }
    return true;
}

static void one_turn(struct worker *w)
{
    uint32_t ids[TOKENS];
    for (size_t p = 0; p < TOKENS / PT; p++) {
        uint32_t choice = pick(w, 3) == 0 ? pick(w, 3) : 0;
        for (size_t i = p * PT; i < (p + 1) * PT; i++)
            ids[i] = (uint32_t)(i * 10 + choice);
    }
    size_t n = 1 + pick(w, TOKENS);
    struct cs_sequence *q;
    if (cs_sequence_open(w->s, NULL, ids, n, &q) != CS_OK) {
        w->wrong = "open failed";
        return;
    }
    if (pick(w, 4) == 0)
        cs_sequence_notify(q, wake, &never_dies);
    struct cs_reuse reuse;
    if (!settle(w, q, &reuse))
        return;
    size_t pages = cs_sequence_n_pages(q);
    w->reused += pages;
    for (size_t p = 0; p < pages; p++) {
        uint64_t want = word_of(ids, (p + 1) * PT);
        const uint64_t *words = cs_sequence_pages(q)[p];
        if (words[0] != want || words[PAGE / 8 - 1] != ~want)
            w->wrong = "a reused page has other bytes";
    }
    while (pages * PT < n && cs_sequence_grow(q, (pages + 1) * PT) == CS_OK) {
        uint64_t *words = cs_sequence_pages(q)[pages], want = word_of(ids, (pages + 1) * PT);
        words[0] = want;
        words[PAGE / 8 - 1] = ~want;
        pages++;
        size_t known = pages * PT < n ? pages * PT : n / PT * PT;
        uint64_t text = word_of(ids, known);
        struct cs_note note = {.key = note_key(ids, known), .data = &text, .len = sizeof text};
        bool with_note = pick(w, 3) == 0;
        if (pick(w, 2) && known / PT * PT >= (reuse.tokens_device + reuse.tokens_disk) &&
            cs_sequence_publish(q, ids, known, with_note ? &note : NULL, with_note) != CS_OK)
            w->wrong = "publish failed";
        w->published++;
        void *data;
        uint32_t len;
        if (cs_note_get(w->s, note.key, &data, &len) == CS_OK) {
            if (len != sizeof text || memcmp(data, &text, len) != 0)
                w->wrong = "a note has other bytes";
            free(data);
        }
    }
    cs_sequence_close(q);
}

/* ---- windows and state ------------------------------------------------------------------------------- */

static void stamp(void *block, uint64_t word)
{
    uint64_t *words = block;
    words[0] = word;
    words[PAGE / 8 - 1] = ~word;
}

static bool is_stamped(const void *block, uint64_t word)
{
    const uint64_t *words = block;
    return words && words[0] == word && words[PAGE / 8 - 1] == ~word;
}

/* A window page, a page and a block of state with the same ids before their end differ. */
static uint64_t window_word(const uint32_t *ids, uint32_t group, uint32_t page)
{
    return word_of(ids, (page + 1) * (size_t)PT) + 1000 + group;
}

static uint64_t state_word(const uint32_t *ids, uint32_t position, uint32_t block)
{
    return word_of(ids, position) + 2000 + block;
}

static bool windows_are_right(struct cs_sequence *q, const uint32_t *ids, uint32_t position)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = position < WINDOW ? 0 : (position - WINDOW + 1) / PT; i < position / PT; i++)
            if (!is_stamped(cs_sequence_window_pages(q, g)[i], window_word(ids, g, i)))
                return false;
    return true;
}

static bool step(struct worker *w, struct cs_sequence *q, const uint32_t *ids, uint32_t from, uint32_t to)
{
    const struct cs_capture *c;
    size_t n;
    if (cs_sequence_grow(q, to) != CS_OK || cs_sequence_step_begin(q, from, to, &c, &n) != CS_OK)
        return false;
    if (!windows_are_right(q, ids, from))
        w->wrong = "a window page has other bytes";
    for (uint32_t i = from / PT; i * PT < to; i++) {
        stamp(cs_sequence_pages(q)[i], word_of(ids, (i + 1) * (size_t)PT));
        for (uint32_t g = 0; g < GROUPS; g++)
            stamp(cs_sequence_window_pages(q, g)[i], window_word(ids, g, i));
    }
    for (size_t k = 0; k < n; k++)
        for (uint32_t b = 0; b < STATE_BLOCKS; b++)
            stamp(c[k].blocks[b], state_word(ids, c[k].position, b));
    cs_sequence_step_end(q, to, true);
    return true;
}

static void one_stateful_turn(struct worker *w)
{
    uint32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = i * 10 + (i % PT == 0 && pick(w, 3) == 0 ? pick(w, 3) : 0);
    uint32_t n = 1 + pick(w, TOKENS), n_state, at;
    struct cs_sequence *q;
    struct cs_reuse reuse;
    if (cs_sequence_open(w->s, NULL, ids, n, &q) != CS_OK) {
        w->wrong = "open failed";
        return;
    }
    if (!settle(w, q, &reuse))
        return;
    at = reuse.tokens_device + reuse.tokens_disk;
    w->reused += at / PT;
    for (uint32_t i = 0; i < at / PT; i++)
        if (!is_stamped(cs_sequence_pages(q)[i], word_of(ids, (i + 1) * (size_t)PT)))
            w->wrong = "a reused page has other bytes";
    void *const *blocks = cs_sequence_state(q, &n_state);
    for (uint32_t b = 0; b < n_state; b++)
        if (!is_stamped(blocks[b], state_word(ids, at, b)))
            w->wrong = "a block of state has other bytes";
    cs_sequence_state_done(q);
    const struct cs_boundary b[] = {{.position = pick(w, TOKENS), .kind = CS_BOUNDARY_SYSTEM}};
    if (cs_sequence_place(q, b, 1, n) != CS_OK)
        w->wrong = "place failed";
    while (at < n) {
        uint32_t to = at + 1 + pick(w, 9);
        if (!step(w, q, ids, at, to < n ? to : n))
            break;
        at = to < n ? to : n;
    }
    const struct cs_capture *end;
    if (cs_sequence_capture(q, CS_BOUNDARY_TURN, &end) == CS_OK)
        for (uint32_t k = 0; k < STATE_BLOCKS; k++)
            stamp(end->blocks[k], state_word(ids, end->position, k));
    if (pick(w, 8) > 0 && cs_sequence_publish(q, ids, at, NULL, 0) != CS_OK)
        w->wrong = "publish failed";
    cs_sequence_close(q);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < STEPS && !w->wrong; i++)
        if (w->stateful)
            one_stateful_turn(w);
        else
            one_turn(w);
    return NULL;
}

static void run(const struct cs_config *c)
{
    struct cs_store *s = tiny_open(c);
    assert_int_equal(stats_of(s).disk_on, c->disk_dir != NULL);
    struct worker w[N_THREADS];
    pthread_t threads[N_THREADS];
    uint64_t reused = 0;
    for (int t = 0; t < N_THREADS; t++) {
        w[t] = (struct worker){.s = s, .rng = 77 + (uint64_t)t * 1000003, .stateful = c->window_groups > 0};
        assert_int_equal(pthread_create(&threads[t], NULL, work, &w[t]), 0);
    }
    for (int i = 0; i < 200; i++) {
        check_balance(s);
        usleep(200);
    }
    for (int t = 0; t < N_THREADS; t++) {
        pthread_join(threads[t], NULL);
        if (w[t].wrong)
            fail_msg("%s", w[t].wrong);
        reused += w[t].reused;
    }
    assert_true(reused > 100);
    check_balance(s);
    cs_flush(s, 20000);
    assert_int_equal(stats_of(s).pages_live, 0);
    assert_int_equal(stats_of(s).pending_bytes, 0);
    cs_close(s, 20000);
}

static void threads_share_a_store_without_a_disk(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(100);
    run(&c);
    c.index_bytes = 20 << 10;
    run(&c);
    c = stateful_config(220);
    run(&c);
}

static void threads_share_a_store_over_a_disk(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = tiny_config(80);
    c.index_bytes = 4 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 24 << 20;
    c.extent_bytes = 1 << 20;
    c.flush_interval_ms = 20;
    c.restore_deadline_ms = 2;
    run(&c);
    run(&c); /* warm */
    struct cs_config windows = stateful_config(220);
    windows.index_bytes = 4 << 20;
    windows.fingerprint[0] = 1;
    windows.disk_dir = disk_dir;
    windows.disk_bytes = 24 << 20;
    windows.extent_bytes = 1 << 20;
    windows.flush_interval_ms = 20;
    windows.restore_deadline_ms = 2;
    windows.checkpoint_grace_ms = 5;
    run(&windows);
    run(&windows);
    disk_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_store_without_a_disk),
        cmocka_unit_test(threads_share_a_store_over_a_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
