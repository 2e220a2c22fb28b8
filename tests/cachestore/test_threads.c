/*
 * Several threads at once over one small store, with and without a disk: open, poll, grow, publish, close,
 * notes and counters. Every reused page is checked; TSan watches the rest (build with -Db_sanitize=thread).
 */
#include "tests/cachestore/harness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_THREADS = 4, STEPS = 400, TOKENS = 15 * PT };

struct worker {
    struct cs_store *s;
    uint64_t rng;
    uint64_t reused, published;
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
    int polls = 0;
    while (!cs_sequence_poll(q, &reuse)) {
        if (pick(w, 50) == 0 || ++polls > 100000) { /* a client that goes away */
            cs_sequence_close(q);
            return;
        }
        usleep(50);
    }
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

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < STEPS && !w->wrong; i++)
        one_turn(w);
    return NULL;
}

static void run(const struct cs_config *c)
{
    struct cs_store *s = tiny_open(c);
    struct worker w[N_THREADS];
    pthread_t threads[N_THREADS];
    uint64_t reused = 0;
    for (int t = 0; t < N_THREADS; t++) {
        w[t] = (struct worker){.s = s, .rng = 77 + (uint64_t)t * 1000003};
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
    c.index_bytes = 12 << 10;
    run(&c);
}

static void threads_share_a_store_over_a_disk(void **state)
{
    (void)state;
    char dir[256], command[300];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/store-threads-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    struct cs_config c = tiny_config(80);
    c.index_bytes = 4 << 20;
    c.disk_dir = dir;
    c.disk_bytes = 24 << 20;
    c.extent_bytes = 1 << 20;
    c.flush_interval_ms = 20;
    c.restore_deadline_ms = 2;
    run(&c);
    run(&c); /* warm */
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_store_without_a_disk),
        cmocka_unit_test(threads_share_a_store_over_a_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
