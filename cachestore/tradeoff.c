/*
 * A restore happens only where loading beats computing. What a load takes is learned from the restores that
 * were waited for, what computing takes is told by the caller (cs_prefill_cost); policy/cut.c picks the
 * position. As long as either is unknown everything is loaded, and so it is when the last measurement is old:
 * a disk that was slow once must be able to show that it no longer is.
 */
#include "cachestore/policy/cut.h"
#include "cachestore/store.h"

#include <math.h>

#define RATIO_PERCENT_MOST 1e6
#define TRUSTED_NS         30000000000ull /* how long a measurement speaks against loading */

unsigned cs_ratio_percent(unsigned i)
{
    static const unsigned percent[CS_RATIO_BUCKETS - 1] = {25, 50, 67, 80, 90, 110, 125, 150, 200, 300, 400};
    return percent[i];
}

int cs_prefill_cost(struct cs_store *s, double linear_us, double quadratic_us)
{
    if (!(linear_us >= 0) || !(quadratic_us >= 0))
        return CS_EINVAL;
    pthread_mutex_lock(&s->lock);
    s->prefill_linear_us = linear_us;
    s->prefill_quadratic_us = quadratic_us;
    s->index.costs = worth_costs_of(linear_us, quadratic_us); /* who is ranked is judged anew at the head */
    pthread_mutex_unlock(&s->lock);
    return CS_OK;
}

/* Everything below runs with the store's lock held. */

/* From disk. */
static bool load_is_read(const struct load *l)
{
    return l && !l->from_host;
}

void tradeoff_begin_locked(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    q->load_bytes = s->loading_bytes;
    q->predicted_us = rate_predict_us(&s->load_rate, (double)q->load_bytes);
    q->reads = load_is_read(q->resume_wait.load);
    for (uint32_t i = 0; i < q->n_waits; i++)
        q->reads |= load_is_read(q->waits[i].load);
    s->totals.restores_disk += q->reads;
}

static void count_in_time_locked(struct cs_store *s, double predicted_us, uint64_t us)
{
    struct cs_stats *t = &s->totals;
    double percent = fmin(100 * (double)us / predicted_us, RATIO_PERCENT_MOST);
    unsigned i = 0;
    t->restores_in_time++;
    t->restores_predicted_us += (uint64_t)predicted_us;
    t->restores_taken_us += us;
    t->restores_ratio_percent += (uint64_t)(percent + 0.5);
    while (i + 1 < CS_RATIO_BUCKETS && percent > cs_ratio_percent(i))
        i++;
    t->restores_ratio[i]++;
}

void tradeoff_end_locked(struct cs_sequence *q, enum restore_end end, uint64_t us, uint64_t now_ns)
{
    struct cs_store *s = q->s;
    if (!q->reads)
        return;
    if (end == RESTORE_ABANDONED)
        s->totals.restores_abandoned++;
    else if (end == RESTORE_FAILED)
        s->totals.restores_failed++;
    else if (end == RESTORE_LATE)
        s->totals.restores_deadline++;
    else if (q->predicted_us > 0)
        count_in_time_locked(s, q->predicted_us, us);
    else
        s->totals.restores_unpredicted++;
    /* One that failed at once tells nothing about how fast they are; one that was late, that it takes as
     * long as that at least. */
    if (end == RESTORE_LANDED || end == RESTORE_LATE) {
        rate_learn(&s->load_rate, (double)q->load_bytes, (double)us);
        s->load_measured_ns = now_ns;
    }
}

/* False: not known well enough to speak against a load. */
static bool costs_locked(const struct cs_store *s, uint64_t now_ns, struct cut_costs *out)
{
    double latency_us;
    *out = (struct cut_costs){.linear_us = s->prefill_linear_us, .quadratic_us = s->prefill_quadratic_us};
    if (out->linear_us == 0 && out->quadratic_us == 0)
        return false;
    if (!rate_line(&s->load_rate, &latency_us, &out->us_a_byte) || now_ns - s->load_measured_ns > TRUSTED_NS)
        return false;
    out->wait_us = latency_us + (double)s->loading_bytes * out->us_a_byte;
    return true;
}

/* What is on the host comes many times faster than from disk: it counts as there. */
static bool must_be_read(const struct cs_sequence *q, uint32_t page)
{
    return q->page[page] == ARENA_NO_PAGE && !(q->on_host && q->on_host[page]);
}

uint32_t tradeoff_pages_locked(const struct cs_sequence *q, uint32_t n)
{
    const struct cs_store *s = q->s;
    struct cut_costs costs;
    if (!costs_locked(s, q->opened_ns, &costs))
        return n;
    struct cut cut;
    uint64_t bytes = 0;
    cut_begin(&cut, &costs);
    for (uint32_t i = 0; i < n; i++) {
        bool missing = must_be_read(q, i);
        /* Among pages that all are read or all are there, one end of the run is best: the time to read them
         * is a straight line, and what they save bends upward. */
        if (i > 0 && missing != must_be_read(q, i - 1))
            (void)cut_offer(&cut, i * s->page_tokens, bytes);
        bytes += missing ? s->stride : 0;
    }
    if (n > 0)
        (void)cut_offer(&cut, n * s->page_tokens, bytes);
    return cut.position / s->page_tokens;
}

struct span *tradeoff_checkpoint_locked(const struct cs_sequence *q, uint32_t matched)
{
    const struct cs_store *s = q->s;
    struct span *deepest = checkpoint_deepest_locked(q->place, q->place_ordinal, matched, false);
    struct cut_costs costs;
    if (!deepest || !costs_locked(s, q->opened_ns, &costs))
        return deepest;
    struct cut cut;
    struct span *best = NULL;
    uint32_t n = deepest->first_position / s->page_tokens;
    uint64_t missing = 0;
    for (uint32_t i = 0; i < n; i++)
        missing += must_be_read(q, i);
    cut_begin(&cut, &costs);
    for (struct span *c = deepest; c;) {
        for (; n > c->first_position / s->page_tokens; n--)
            missing -= must_be_read(q, n - 1);
        bool there = index_is_resident(c) || index_is_on_host(c) || c->loads;
        if (cut_offer(&cut, c->first_position, (missing + (there ? 0 : c->n_pages)) * s->stride))
            best = c;
        c = checkpoint_deepest_locked(q->place, q->place_ordinal, c->first_position - 1, false);
    }
    return best;
}
