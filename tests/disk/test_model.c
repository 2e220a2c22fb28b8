/*
 * Random writes of spans and checkpoints, deletes, partial reads, touches, cancels and reopens, against a
 * model that is a list: what the tier said is durable and nobody deleted is there with its bytes, and nothing
 * else is. Deletes chase
 * writes at every stage of their way. $ISOTHERM_MODEL_STEPS sets the number of steps (3000).
 */
#include "tests/disk/harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIVE_MAX = 2048, IN_FLIGHT = 24 };

struct model {
    struct rig rig;
    uint64_t random;
    uint32_t next_number;
    struct {
        uint32_t number, n_pages;
        struct record_id id;
        int64_t used;
    } live[LIVE_MAX];
    size_t n_live;
    struct {
        struct span_io *s; /* NULL: free */
        bool reading, deleted;
    } flight[IN_FLIGHT];
};

static uint64_t below(struct model *m, uint64_t n)
{
    return random_next(&m->random) % n;
}

static size_t find_live(const struct model *m, uint32_t number)
{
    size_t i = 0;
    while (i < m->n_live && m->live[i].number != number)
        i++;
    return i;
}

static void settle(struct model *m, size_t slot)
{
    struct span_io *s = m->flight[slot].s;
    enum tier_result result = span_wait(s);
    uint32_t number = (uint32_t)s->w.record.key.lo;
    if (m->flight[slot].reading) {
        /* A delete after the read was queued may or may not have come first. */
        assert_true(result == TIER_OK || (m->flight[slot].deleted && result == TIER_NOTFOUND) ||
                    (atomic_load(&s->r.cancel) && result == TIER_CANCELLED));
        if (result == TIER_OK)
            assert_true(span_bytes_right(s));
    } else if (m->flight[slot].deleted) {
        assert_true(result == TIER_OK || result == TIER_CANCELLED);
    } else {
        assert_int_equal(result, TIER_OK);
        assert_true(m->n_live < LIVE_MAX);
        m->live[m->n_live].number = number;
        m->live[m->n_live].n_pages = s->w.record.n_pages;
        m->live[m->n_live].used = 1000;
        m->live[m->n_live++].id = s->w.record.id;
    }
    span_free(s);
    m->flight[slot].s = NULL;
}

static void settle_all(struct model *m)
{
    tier_disk_kick(m->rig.tier);
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        if (m->flight[i].s != NULL)
            settle(m, i);
    }
}

static void delete_live(struct model *m, size_t i)
{
    for (size_t k = 0; k < IN_FLIGHT; k++) {
        if (m->flight[k].s != NULL && m->flight[k].s->w.record.key.lo == m->live[i].number)
            m->flight[k].deleted = true;
    }
    tier_disk_delete(m->rig.tier, m->live[i].id);
    m->live[i] = m->live[--m->n_live];
}

static void step_write(struct model *m, size_t slot)
{
    uint32_t pages = 1 + (uint32_t)below(m, SPAN_PAGES_MAX);
    /* A checkpoint of as many blocks takes no more. */
    while (tier_disk_free_bytes(m->rig.tier) <
           (int64_t)tier_disk_record_bytes(m->rig.tier, RECORD_SPAN, pages)) {
        if (m->n_live == 0) {
            settle_all(m);
            if (m->n_live == 0)
                return;
        }
        delete_live(m, below(m, m->n_live));
    }
    if (m->flight[slot].s != NULL)
        settle(m, slot);
    uint32_t kind = below(m, 3) == 0 ? CHECKPOINT : 0;
    m->flight[slot].s = span_make(&m->rig, m->next_number++ | kind, pages);
    m->flight[slot].reading = m->flight[slot].deleted = false;
    span_write(m->flight[slot].s);
    if (below(m, 8) == 0) { /* at once, while it is on its way */
        m->flight[slot].deleted = true;
        tier_disk_delete(m->rig.tier, m->flight[slot].s->w.record.id);
    }
}

static void step_read(struct model *m, size_t slot)
{
    if (m->flight[slot].s != NULL)
        settle(m, slot);
    if (m->n_live == 0)
        return;
    size_t i = below(m, m->n_live);
    uint32_t n = m->live[i].n_pages, first = (uint32_t)below(m, n);
    struct span_io *s = span_make(&m->rig, m->live[i].number, n);
    span_read_begin(s, m->live[i].id, first, 1 + (uint32_t)below(m, n - first));
    if (below(m, 8) == 0)
        atomic_store(&s->r.cancel, true);
    m->flight[slot].s = s;
    m->flight[slot].reading = true;
    m->flight[slot].deleted = false;
}

static void check_all(struct model *m)
{
    settle_all(m);
    rig_reopen(&m->rig);
    assert_int_equal(m->rig.n_seen, m->n_live);
    for (size_t i = 0; i < m->rig.n_seen; i++) {
        const struct seen_span *s = &m->rig.seen[i];
        size_t k = find_live(m, s->number);
        assert_true(k < m->n_live);
        assert_int_equal(s->id.sequence, m->live[k].id.sequence);
        assert_int_equal(s->n_pages, m->live[k].n_pages);
        assert_int_equal(s->used_unix, m->live[k].used);
        if (below(m, 4) == 0)
            assert_int_equal(get(&m->rig, s->id, s->number, s->n_pages), TIER_OK);
    }
    assert_true(dir_bytes(m->rig.dir) <= m->rig.config.disk_bytes);
}

static void test_random_life_equals_a_list(void **state)
{
    (void)state;
    static struct model m;
    const char *text = getenv("ISOTHERM_MODEL_STEPS");
    unsigned long steps = text != NULL ? strtoul(text, NULL, 10) : 3000;
    m.random = 20260101;
    rig_init_in_memory(&m.rig, true);
    rig_open(&m.rig);
    for (unsigned long i = 0; i < steps; i++) {
        size_t slot = below(&m, IN_FLIGHT);
        uint64_t what = below(&m, 100);
        if (what < 45)
            step_write(&m, slot);
        else if (what < 75)
            step_read(&m, slot);
        else if (what < 90 && m.n_live > 0)
            delete_live(&m, below(&m, m.n_live));
        else if (what < 95 && m.n_live > 0) {
            size_t k = below(&m, m.n_live);
            m.live[k].used = 2000 + (int64_t)i;
            tier_disk_touch(m.rig.tier, m.live[k].id, m.live[k].used);
        } else if (what < 98)
            tier_disk_kick(m.rig.tier);
        else if (below(&m, 4) == 0)
            check_all(&m);
    }
    check_all(&m);
    rig_destroy(&m.rig);
}

/* Closing without time: every request still gets its completion, and the store opens again with what was
 * durable. */
static void test_close_without_time_completes_everything(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    r.config.flush_interval_ms = 60000;
    rig_open(&r);
    struct record_id kept = put(&r, 1, 10);
    enum { N = 40 };
    struct span_io *s[N], *q[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, 100 + i, 20);
        span_write(s[i]);
        q[i] = span_make(&r, 1, 10);
        span_read_begin(q[i], kept, 0, 10);
    }
    tier_disk_close(r.tier, 0);
    r.tier = NULL;
    uint32_t durable = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_true(s[i]->done && q[i]->done);
        assert_true(s[i]->result == TIER_OK || s[i]->result == TIER_CANCELLED);
        assert_true(q[i]->result == TIER_OK || q[i]->result == TIER_CANCELLED);
        durable += s[i]->result == TIER_OK;
        span_free(s[i]);
        span_free(q[i]);
    }
    rig_open(&r);
    assert_int_equal(r.n_seen, 1 + durable);
    assert_int_equal(get(&r, kept, 1, 10), TIER_OK);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life_equals_a_list),
        cmocka_unit_test(test_close_without_time_completes_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
