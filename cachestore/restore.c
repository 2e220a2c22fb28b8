/*
 * Restore: look-up and loading, one call each. The walk goes down the tree as far as keys lead and stored ids
 * prove; what is resident is referenced at once, what is on disk gets arena pages and a read per span, all
 * submitted before anything is waited for. Two sequences that want the same pages share the read.
 *
 *   open --all resident--> settled
 *     \--> loading --all landed, first failure, or deadline (in poll)--> settled: the verified prefix
 *
 * A page being read into is referenced by its load until the completion, whatever becomes of the sequences: a
 * late read never lands in memory that was given to somebody else.
 */
#include "cachestore/key.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <string.h>

#define TOUCH_INTERVAL_SECONDS 60
#define MEASURE_WEIGHT         0.2 /* of a new sample in the moving average */
#define DEADLINE_FACTOR        3.0
#define NS_PER_MS              1000000ull
#define NS_PER_US              1000ull

/* Pages of one span on the path. */
struct segment {
    struct span *sp;
    uint32_t n;
};

/* ---- loads ------------------------------------------------------------------------------------------- */

static void load_unref(struct load *l)
{
    l->refs--;
    if (l->refs == 0)
        free(l);
    else if (!l->done && !l->waits)
        l->read.cancel = true;
}

static enum cs_miss miss_of(enum tier_result result)
{
    switch (result) {
    case TIER_CORRUPT_HEADER:
    case TIER_CORRUPT_TOKENS:
    case TIER_CORRUPT_PAYLOAD:
        return CS_MISS_CORRUPT;
    case TIER_NOTFOUND:
        return CS_MISS_EVICTED;
    default:
        return CS_MISS_IO;
    }
}

/* Needs the lock. The record does not hold what the index says: out of the disk tier with it. Its subtree
 * stays and is reachable again once the span has been published anew. */
static void quarantine_locked(struct cs_store *s, const struct load *l)
{
    struct span *sp = l->span;
    sp->lost = miss_of(l->result);
    if (sp->disk == SPAN_DISK_DURABLE && sp->id.nonce == l->read.record.id.nonce &&
        sp->id.sequence == l->read.record.id.sequence) {
        if (l->result != TIER_NOTFOUND)
            s->totals.quarantined++;
        room_drop_record_locked(s, sp);
    }
}

/* On the tier's thread, without the lock. */
static void load_done(void *ctx, struct tier_read *r, enum tier_result result)
{
    struct load *l = ctx;
    struct cs_store *s = l->s;
    struct span *sp = l->span;
    pthread_mutex_lock(&s->lock);
    if (result == TIER_CANCELLED && l->waits && !s->closing) {
        /* Somebody joined after the last one had left. */
        r->cancel = false;
        s->tier->read(s->disk, &r, 1);
        pthread_mutex_unlock(&s->lock);
        return;
    }
    l->done = true;
    l->result = result;
    l->done_ns = store_now_ns();
    struct load **at = &sp->loads;
    while (*at != l)
        at = &(*at)->span_next;
    *at = l->span_next;
    for (uint32_t i = r->first_page; i < r->first_page + r->n_pages; i++) {
        uint32_t page = sp->page[i];
        if (result == TIER_OK)
            index_landed_locked(&s->index, sp, i);
        else
            index_detach_locked(&s->index, sp, i);
        index_page_unref_locked(&s->index, page);
    }
    if (result != TIER_OK && result != TIER_CANCELLED)
        quarantine_locked(s, l);
    index_requeue_locked(&s->index, sp);
    room_settle_span_locked(s, sp);
    for (struct load_wait *w = l->waits; w;) {
        struct cs_sequence *q = w->q;
        if (!q->notify || !restore_ready_locked(q, l->done_ns)) {
            w = w->next;
            continue;
        }
        void (*fn)(void *) = q->notify;
        void *fn_ctx = q->notify_ctx;
        q->notify = NULL;
        pthread_mutex_unlock(&s->lock);
        fn(fn_ctx);
        pthread_mutex_lock(&s->lock);
        w = l->waits; /* the list may have changed meanwhile */
    }
    load_unref(l);
    pthread_mutex_unlock(&s->lock);
}

static void wait_add(struct cs_sequence *q, struct load *l, uint32_t first_page, uint32_t n_pages)
{
    struct load_wait *w = &q->waits[q->n_waits++];
    *w =
        (struct load_wait){.load = l, .q = q, .next = l->waits, .first_page = first_page, .n_pages = n_pages};
    if (l->waits)
        l->waits->previous = w;
    l->waits = w;
    l->refs++;
    l->read.cancel = false;
}

static void waits_drop(struct cs_sequence *q)
{
    for (uint32_t i = 0; i < q->n_waits; i++) {
        struct load_wait *w = &q->waits[i];
        if (w->previous)
            w->previous->next = w->next;
        else
            w->load->waits = w->next;
        if (w->next)
            w->next->previous = w->previous;
        load_unref(w->load);
    }
    free(q->waits);
    q->waits = NULL;
    q->n_waits = 0;
}

/* Needs the lock. Prepares a read of pages [first, first + n) of the span into fresh pages of the arena, as
 * many as there is room for; returns how many. */
static uint32_t load_prepare_locked(struct cs_sequence *q, struct span *sp, uint32_t first, uint32_t n,
                                    uint32_t sequence_page)
{
    struct cs_store *s = q->s;
    if (room_for_pages_locked(s, n) != CS_OK && n > s->arena.n_free)
        n = s->arena.n_free;
    if (n == 0)
        return 0;
    struct load *l = calloc(1, sizeof *l + n * sizeof(void *));
    if (!l)
        return 0;
    l->s = s;
    l->span = sp;
    l->refs = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = arena_take(&s->arena);
        l->pages[i] = arena_address(&s->arena, page);
        index_attach_locked(&s->index, sp, first + i, page, true);
    }
    l->read = (struct tier_read){.record = {.id = sp->id,
                                            .key = sp->key,
                                            .parent = sp->parent ? sp->parent_key : (struct cs_key){0},
                                            .tenant = sp->tenant,
                                            .first_position = sp->first_position,
                                            .n_pages = sp->n_pages,
                                            .ids = sp->ids},
                                 .first_page = first,
                                 .n_pages = n,
                                 .pages = l->pages,
                                 .done = load_done,
                                 .ctx = l};
    l->span_next = sp->loads;
    sp->loads = l;
    for (uint32_t i = 0; i < n; i++) {
        q->page[sequence_page + i] = sp->page[first + i];
        index_page_ref_locked(&s->index, sp->page[first + i]);
    }
    wait_add(q, l, sequence_page, n);
    return n;
}

/* ---- the walk ---------------------------------------------------------------------------------------- */

static bool page_is_stored(const struct span *sp, uint32_t i)
{
    return sp->page[i] != ARENA_NO_PAGE || sp->disk == SPAN_DISK_DURABLE;
}

/* A use of the whole path is persisted at its deepest span only, one row whatever the number of spans;
 * reading the rows back makes every parent as young as its youngest child. */
static void persist_use(struct cs_store *s, struct span *sp, uint64_t tick)
{
    int64_t now_unix = (int64_t)(tick / 1000000);
    if (sp->disk == SPAN_DISK_DURABLE && now_unix - sp->touched_unix >= TOUCH_INTERVAL_SECONDS) {
        sp->touched_unix = now_unix;
        s->tier->touch(s->disk, sp->id, now_unix);
    }
}

/* Needs the lock. Goes down the tree along keys and ids; returns the number of segments, with *miss why it
 * ended. */
static size_t walk_locked(struct cs_store *s, const struct cs_tenant *tenant, const uint32_t *ids,
                          const struct cs_key *keys, uint32_t n, struct segment *segments, enum cs_miss *miss)
{
    uint32_t pt = s->page_tokens, i = 0, ordinal = 0;
    uint64_t tick = index_tick_locked(&s->index);
    struct span *at = NULL;
    size_t n_segments = 0;
    *miss = CS_MISS_NONE;
    while (i < n) {
        struct span *sp = index_find_locked(&s->index, at, ordinal, keys[i], tenant, ids + (size_t)i * pt);
        if (!sp) {
            *miss = index_gone_locked(&s->index, keys[i]);
            if (*miss == CS_MISS_NONE)
                *miss = i == 0 ? CS_MISS_COLD : CS_MISS_DIVERGED;
            break;
        }
        uint32_t m = 0;
        bool same = true;
        while (m < sp->n_pages && i + m < n) {
            same = memcmp(sp->ids + (size_t)m * pt, ids + (size_t)(i + m) * pt, pt * sizeof *ids) == 0;
            if (!same || !page_is_stored(sp, m))
                break;
            m++;
        }
        if (m > 0) {
            segments[n_segments++] = (struct segment){sp, m};
            index_touch_locked(&s->index, sp, tick);
            i += m;
            at = sp;
            ordinal = m - 1;
        }
        if (i < n && m < sp->n_pages && same) {
            *miss = sp->lost;
            break;
        }
    }
    if (at)
        persist_use(s, at, tick);
    return n_segments;
}

/* Needs the lock. References what is resident, first of all, so that making room cannot take it. */
static void hold_resident_locked(struct cs_sequence *q, const struct segment *segments, size_t n_segments)
{
    uint32_t at = 0;
    for (size_t k = 0; k < n_segments; k++) {
        struct span *sp = segments[k].sp;
        for (uint32_t i = 0; i < segments[k].n; i++, at++) {
            q->page[at] = sp->page[i];
            if (sp->page[i] != ARENA_NO_PAGE)
                index_page_ref_locked(&q->s->index, sp->page[i]);
        }
        index_requeue_locked(&q->s->index, sp);
    }
}

static struct load *load_covering(const struct span *sp, uint32_t page)
{
    struct load *l = sp->loads;
    while (l && (page < l->read.first_page || page >= l->read.first_page + l->read.n_pages))
        l = l->span_next;
    return l;
}

/* Needs the lock. Prepares or joins the loads of what is not resident; returns the pages that will be there.
 * The reads to submit are left in reads. */
static uint32_t load_missing_locked(struct cs_sequence *q, const struct segment *segments, size_t n_segments,
                                    struct tier_read **reads, size_t *n_reads)
{
    uint32_t at = 0;
    *n_reads = 0;
    for (size_t k = 0; k < n_segments; k++) {
        struct span *sp = segments[k].sp;
        for (uint32_t i = 0; i < segments[k].n;) {
            uint32_t n = 1;
            if (q->page[at] == ARENA_NO_PAGE) {
                /* Making room may have let another's pages go, never this path's: what was missing is. */
                while (i + n < segments[k].n && q->page[at + n] == ARENA_NO_PAGE)
                    n++;
                uint32_t started = load_prepare_locked(q, sp, i, n, at);
                index_requeue_locked(&q->s->index, sp);
                if (started > 0)
                    reads[(*n_reads)++] = &sp->loads->read;
                if (started < n)
                    return at + started;
            } else if (q->s->arena.pages[q->page[at]].loading) {
                struct load *l = load_covering(sp, i);
                uint32_t end = l->read.first_page + l->read.n_pages;
                n = (end < segments[k].n ? end : segments[k].n) - i;
                wait_add(q, l, at, n);
            }
            i += n;
            at += n;
        }
    }
    return at;
}

/* ---- settling ---------------------------------------------------------------------------------------- */

bool restore_ready_locked(const struct cs_sequence *q, uint64_t now_ns)
{
    if (q->settled || (q->deadline_ns && now_ns >= q->deadline_ns))
        return true;
    for (uint32_t i = 0; i < q->n_waits; i++) {
        const struct load *l = q->waits[i].load;
        if (!l->done || l->result != TIER_OK)
            return l->done; /* behind a failure nothing matters */
    }
    return true;
}

/* Lets go of all pages behind the first n and moves the place there. */
static void keep_locked(struct cs_sequence *q, uint32_t n)
{
    struct cs_store *s = q->s;
    waits_drop(q);
    room_unref_pages_locked(s, q->page + n, q->n_restoring - n);
    struct span *place = n ? q->place : NULL;
    while (place && place->first_position / s->page_tokens >= n)
        place = place->parent;
    if (n)
        q->key = q->keys[n - 1];
    free(q->keys);
    q->keys = NULL;
    q->n_restoring = 0;
    q->n_pages = q->n_known = n;
    q->settled = true;
    sequence_set_place_locked(q, place, place ? n - 1 - place->first_position / s->page_tokens : 0);
}

void restore_abandon_locked(struct cs_sequence *q)
{
    if (!q->settled)
        keep_locked(q, 0);
}

static void measure(struct cs_store *s, uint64_t bytes, uint64_t us)
{
    if (bytes == 0 || us == 0)
        return;
    double sample = (double)bytes / (double)us;
    s->load_bytes_per_us = s->load_bytes_per_us > 0
                               ? (1 - MEASURE_WEIGHT) * s->load_bytes_per_us + MEASURE_WEIGHT * sample
                               : sample;
}

static void settle_locked(struct cs_sequence *q, uint64_t now_ns)
{
    struct cs_store *s = q->s;
    struct cs_stats *t = &s->totals;
    uint32_t keep = q->n_restoring, from_disk = 0;
    uint64_t landed_ns = q->opened_ns;
    bool waited = q->n_waits > 0;
    for (uint32_t i = 0; i < q->n_waits; i++) {
        const struct load_wait *w = &q->waits[i];
        if (!w->load->done || w->load->result != TIER_OK) {
            keep = w->first_page;
            q->reuse.miss = w->load->done ? miss_of(w->load->result) : CS_MISS_DEADLINE;
            landed_ns = now_ns;
            break;
        }
        from_disk += w->n_pages;
        if (w->load->done_ns > landed_ns)
            landed_ns = w->load->done_ns;
    }
    q->reuse.tokens_disk = from_disk * s->page_tokens;
    q->reuse.tokens_device = (keep - from_disk) * s->page_tokens;
    if (waited) {
        uint64_t us = (landed_ns - q->opened_ns) / NS_PER_US;
        q->reuse.restore_us = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
        measure(s, from_disk * s->stride, us);
    }
    keep_locked(q, keep);
    if (!q->counted)
        return;
    t->lookups++;
    t->misses[q->reuse.miss]++;
    if (q->reuse.miss == CS_MISS_NONE)
        t->hits_full++;
    else if (keep > 0)
        t->hits_partial++;
    t->tokens_looked_up += q->n_looked_up;
    t->tokens_device += q->reuse.tokens_device;
    t->tokens_disk += q->reuse.tokens_disk;
}

/* Needs the lock. Deadline, and the list that the keeper watches. */
static void await_locked(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < q->n_waits; i++)
        bytes += q->waits[i].n_pages * s->stride;
    if (s->restore_deadline_ms) {
        double predicted_us = s->load_bytes_per_us > 0 ? (double)bytes / s->load_bytes_per_us : 0;
        uint64_t floor_ns = s->restore_deadline_ms * NS_PER_MS;
        uint64_t limit_ns = (uint64_t)(DEADLINE_FACTOR * predicted_us * (double)NS_PER_US);
        q->deadline_ns = q->opened_ns + (limit_ns > floor_ns ? limit_ns : floor_ns);
    }
    sequence_list_locked(q);
}

int cs_sequence_open(struct cs_store *s, const struct cs_tenant *tenant, const uint32_t *ids, size_t n,
                     struct cs_sequence **out)
{
    static const struct cs_tenant anonymous;
    uint32_t pt = s->page_tokens;
    *out = NULL;
    if (n > UINT32_MAX || (n > 0 && !ids))
        return CS_EINVAL;
    uint32_t n_full = n > 0 ? (uint32_t)((n - 1) / pt) : 0;
    struct cs_sequence *q = calloc(1, sizeof *q);
    if (!q)
        return CS_ENOMEM;
    q->s = s;
    q->tenant = tenant ? *tenant : anonymous;
    q->key = key_seed(s->secret, s->fingerprint, &q->tenant);
    q->n_looked_up = (uint32_t)n;
    q->counted = n > 0;
    q->opened_ns = store_now_ns();
    struct segment *segments = NULL;
    struct tier_read **reads = NULL;
    if (n_full > 0) {
        q->capacity = n_full;
        q->keys = malloc(n_full * sizeof *q->keys);
        q->page = malloc(n_full * sizeof *q->page);
        q->address = malloc(n_full * sizeof *q->address);
        q->waits = malloc(n_full * sizeof *q->waits);
        segments = malloc(n_full * sizeof *segments);
        reads = malloc(n_full * sizeof(struct tier_read *));
        if (!q->keys || !q->page || !q->address || !q->waits || !segments || !reads) {
            free(q->keys);
            free(q->page);
            free(q->address);
            free(q->waits);
            free(segments);
            free(reads);
            free(q);
            return CS_ENOMEM;
        }
        key_pages(q->key, ids, n_full, pt, q->keys);
    }

    pthread_mutex_lock(&s->lock);
    s->n_sequences++;
    q->reuse.miss = CS_MISS_PARTIAL_PAGE;
    if (n_full > 0) {
        size_t n_segments = walk_locked(s, &q->tenant, ids, q->keys, n_full, segments, &q->reuse.miss);
        uint32_t matched = 0;
        for (size_t k = 0; k < n_segments; k++)
            matched += segments[k].n;
        if (n_segments > 0)
            sequence_set_place_locked(q, segments[n_segments - 1].sp, segments[n_segments - 1].n - 1);
        hold_resident_locked(q, segments, n_segments);
        size_t n_reads;
        uint32_t there = load_missing_locked(q, segments, n_segments, reads, &n_reads);
        if (there < matched) {
            q->reuse.miss = CS_MISS_ARENA_FULL;
            for (uint32_t i = there; i < matched; i++)
                if (q->page[i] != ARENA_NO_PAGE)
                    room_unref_pages_locked(s, &q->page[i], 1);
        }
        q->n_restoring = there;
        for (uint32_t i = 0; i < there; i++)
            q->address[i] = arena_address(&s->arena, q->page[i]);
        if (n_reads > 0)
            s->tier->read(s->disk, reads, n_reads);
    } else if (n == 0) {
        q->reuse.miss = CS_MISS_NONE;
    }
    if (q->n_waits > 0)
        await_locked(q);
    else
        settle_locked(q, q->opened_ns);
    pthread_mutex_unlock(&s->lock);
    free(segments);
    free(reads);
    *out = q;
    return CS_OK;
}

int cs_sequence_poll(struct cs_sequence *q, struct cs_reuse *reuse)
{
    struct cs_store *s = q->s;
    pthread_mutex_lock(&s->lock);
    uint64_t now = store_now_ns();
    if (!q->settled && restore_ready_locked(q, now))
        settle_locked(q, now);
    int settled = q->settled;
    if (settled && reuse)
        *reuse = q->reuse;
    pthread_mutex_unlock(&s->lock);
    return settled;
}
