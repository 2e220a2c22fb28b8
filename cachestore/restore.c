/*
 * Restore: look-up and loading, one call each. The walk goes down the tree as far as keys lead and stored ids
 * prove; what is resident is referenced at once, what is on the host or on disk gets arena pages and a load
 * per span and tier, all submitted before anything is waited for. Two sequences that want the same pages
 * share the load.
 *
 *   open --all resident--> settled
 *     \--> loading --all landed, first failure, or deadline (in poll)--> settled: the verified prefix
 *
 * Where a model resumes at checkpoints, the deepest one within the match says which pages are wanted, and is
 * read with them. A resident one further up is held meanwhile: if the bytes do not come, it serves.
 */
#include "cachestore/key.h"
#include "cachestore/policy/deadline.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <string.h>

#define TOUCH_INTERVAL_SECONDS 60
#define NS_PER_US              1000ull

/* Pages of one span on the path. */
struct segment {
    struct span *sp;
    uint32_t n;
};

/* ---- the walk ---------------------------------------------------------------------------------------- */

static bool page_is_stored(const struct span *sp, uint32_t i)
{
    return sp->page[i] != ARENA_NO_PAGE || load_is_from_host(sp, i) || sp->disk == SPAN_DISK_DURABLE;
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
            i += m;
            at = sp;
            ordinal = m - 1;
        }
        if (i < n && m < sp->n_pages && same) {
            *miss = sp->lost;
            break;
        }
    }
    return n_segments;
}

/* Needs the lock. A use refreshes what it consumes, and nothing else. */
static void touch_locked(struct cs_store *s, const struct segment *segments, size_t n_segments)
{
    uint64_t tick = index_tick_locked(&s->index);
    for (size_t k = 0; k < n_segments; k++)
        index_touch_locked(&s->index, segments[k].sp, tick);
    if (n_segments > 0)
        persist_use(s, segments[n_segments - 1].sp, tick);
}

/* Needs the lock. References what is resident, first of all, so that making room cannot take it. */
static void hold_resident_locked(struct cs_sequence *q, const struct segment *segments, size_t n_segments)
{
    uint32_t at = 0;
    for (size_t k = 0; k < n_segments; k++) {
        struct span *sp = segments[k].sp;
        for (uint32_t i = 0; i < segments[k].n; i++, at++) {
            q->page[at] = sp->page[i];
            if (q->on_host)
                q->on_host[at] = load_is_from_host(sp, i);
            if (sp->page[i] != ARENA_NO_PAGE)
                index_page_ref_locked(&q->s->index, sp->page[i]);
        }
        index_requeue_locked(&q->s->index, sp);
    }
}

/* Needs the lock. Lets go again of what is resident of the pages [from, to), run by run. */
static void unref_resident_locked(struct cs_sequence *q, uint32_t from, uint32_t to)
{
    for (uint32_t n; from < to; from += n + 1) {
        n = 0;
        while (from + n < to && q->page[from + n] != ARENA_NO_PAGE)
            n++;
        room_unref_pages_locked(q->s, q->page + from, n);
    }
}

/* Needs the lock. Prepares or joins the loads of what is not resident; returns the pages that will be there.
 * The loads to submit are added to the batch. */
static uint32_t load_missing_locked(struct cs_sequence *q, const struct segment *segments, size_t n_segments,
                                    struct load_batch *batch)
{
    uint32_t at = 0;
    for (size_t k = 0; k < n_segments; k++) {
        struct span *sp = segments[k].sp;
        for (uint32_t i = 0; i < segments[k].n;) {
            uint32_t n = 1;
            struct load *l = NULL;
            if (q->page[at] == ARENA_NO_PAGE) {
                /* Making room may have let another's pages go, never this path's: what was missing is. */
                while (i + n < segments[k].n && q->page[at + n] == ARENA_NO_PAGE &&
                       load_is_from_host(sp, i + n) == load_is_from_host(sp, i))
                    n++;
                uint32_t wanted = n;
                l = load_prepare_locked(q->s, sp, i, &n, false);
                if (!l)
                    return at;
                load_batch_add(batch, l);
                for (uint32_t j = 0; j < n; j++) {
                    q->page[at + j] = sp->page[i + j];
                    index_page_ref_locked(&q->s->index, sp->page[i + j]);
                }
                load_join_locked(&q->waits[q->n_waits++], q, l, at, n);
                if (n < wanted)
                    return at + n;
            } else if (q->s->arena.pages[q->page[at]].loading) {
                l = load_covering_locked(sp, i);
                uint32_t end = l->read.first_page + l->read.n_pages;
                n = (end < segments[k].n ? end : segments[k].n) - i;
                load_join_locked(&q->waits[q->n_waits++], q, l, at, n);
            }
            i += n;
            at += n;
        }
    }
    return at;
}

/* ---- checkpoints ------------------------------------------------------------------------------------- */

/* Needs the lock. Why no checkpoint lies closer to the end of the match: one that was there and went, or
 * there never was any. */
static enum cs_miss why_no_closer_locked(const struct cs_sequence *q, uint32_t position, uint32_t matched)
{
    const struct cs_store *s = q->s;
    for (uint32_t p = matched / s->grid_tokens * s->grid_tokens; p > position; p -= s->grid_tokens) {
        enum cs_miss gone = index_gone_locked(&s->index, key_checkpoint(q->keys[p / s->page_tokens - 1]));
        if (gone != CS_MISS_NONE && gone != CS_MISS_STATE)
            return gone;
    }
    return CS_MISS_STATE;
}

/* Needs the lock. Holds the checkpoint to resume from and prepares or joins its load; returns its position.
 */
static uint32_t choose_checkpoint_locked(struct cs_sequence *q, uint32_t matched, struct load_batch *batch)
{
    struct cs_store *s = q->s;
    struct span *c = tradeoff_checkpoint_locked(q, matched);
    uint32_t best = c ? c->first_position : 0;
    bool refused = false, dear = c != checkpoint_deepest_locked(q->place, q->place_ordinal, matched, false);
    if (c && !index_is_resident(c)) {
        struct span *resident = checkpoint_deepest_locked(q->place, q->place_ordinal, best - 1, true);
        if (resident && checkpoint_hold_locked(s, resident, &q->fallback) != CS_OK)
            resident = NULL;
        struct load *l = c->loads;
        if (!l) {
            uint32_t n = c->n_pages;
            l = load_prepare_locked(s, c, 0, &n, true);
            if (l)
                load_batch_add(batch, l);
        }
        if (l && checkpoint_hold_locked(s, c, &q->resume) == CS_OK) {
            load_join_locked(&q->resume_wait, q, l, 0, c->n_pages);
        } else { /* what was prepared goes on without us */
            refused = true;
            q->resume = q->fallback;
            q->fallback = (struct held_checkpoint){0};
            /* Held blocks stay; making room may have forgotten the node that had them. */
            c = checkpoint_at_locked(s, q->place, q->place_ordinal, q->resume.position);
        }
    } else if (c && checkpoint_hold_locked(s, c, &q->resume) != CS_OK) {
        refused = true;
        c = NULL;
    }
    uint32_t position = q->resume.position;
    if (c && position > 0) {
        uint64_t tick = index_tick_locked(&s->index);
        index_touch_locked(&s->index, c, tick);
        persist_use(s, c, tick);
    }
    if (refused)
        q->reuse.miss = CS_MISS_ARENA_FULL;
    else if (dear)
        q->reuse.miss = CS_MISS_COMPUTE;
    else if (position < matched / s->grid_tokens * s->grid_tokens)
        q->reuse.miss = why_no_closer_locked(q, position, matched);
    return position;
}

/* Cuts the segments behind n pages; returns how many are left. */
static size_t cut_segments(struct segment *segments, size_t n_segments, uint32_t n)
{
    size_t k = 0;
    for (; k < n_segments && n > 0; k++) {
        if (segments[k].n > n)
            segments[k].n = n;
        n -= segments[k].n;
    }
    return k;
}

/* ---- settling ---------------------------------------------------------------------------------------- */

static bool state_has_failed(const struct cs_sequence *q)
{
    const struct load *state = q->resume_wait.load;
    return state && state->done && state->result != TIER_OK;
}

/* Pages that are waited for: behind a state that cannot be had, those of the one that serves in its place. */
static uint32_t pages_needed(const struct cs_sequence *q)
{
    return state_has_failed(q) ? q->fallback.position / q->s->page_tokens : q->n_restoring;
}

bool restore_ready_locked(const struct cs_sequence *q, uint64_t now_ns)
{
    if (q->settled || deadline_is_past(q->deadline_ns, now_ns))
        return true;
    const struct load *state = q->resume_wait.load;
    uint32_t need = pages_needed(q);
    for (uint32_t i = 0; i < q->n_waits && q->waits[i].first_page < need; i++) {
        const struct load *l = q->waits[i].load;
        if (!l->done || l->result != TIER_OK)
            return l->done; /* behind a failure nothing matters */
    }
    return !state || state->done;
}

/* Lets go of all pages behind the first n and moves the place there. */
static void keep_locked(struct cs_sequence *q, uint32_t n)
{
    struct cs_store *s = q->s;
    for (uint32_t i = 0; i < q->n_waits; i++)
        load_leave_locked(&q->waits[i]);
    load_leave_locked(&q->resume_wait);
    free(q->waits);
    q->waits = NULL;
    q->n_waits = 0;
    checkpoint_let_go_locked(s, &q->resume);
    checkpoint_let_go_locked(s, &q->fallback);
    room_unref_pages_locked(s, q->page + n, q->n_restoring - n);
    struct span *place = n ? q->place : NULL;
    while (place && place->first_position / s->page_tokens >= n)
        place = place->parent;
    if (n)
        q->key = q->keys[n - 1];
    if (s->stateful && n)
        memcpy(q->path_keys, q->keys, n * sizeof *q->keys);
    if (s->stateful) /* what was held is in use no longer, and may lie deeper than the path goes now */
        checkpoint_rank_path_locked(s, q->place, q->place_ordinal);
    free(q->keys);
    q->keys = NULL;
    q->n_restoring = 0;
    q->n_pages = q->n_known = n;
    q->settled = true;
    sequence_set_place_locked(q, place, place ? n - 1 - place->first_position / s->page_tokens : 0);
}

void restore_abandon_locked(struct cs_sequence *q)
{
    if (q->settled)
        return;
    tradeoff_end_locked(q, RESTORE_ABANDONED, 0, 0);
    keep_locked(q, 0);
}

/* Needs the lock. The first `keep` pages are there: takes the deepest checkpoint among them over; returns the
 * pages that it lets reuse. */
static uint32_t resume_locked(struct cs_sequence *q, uint32_t keep)
{
    struct cs_store *s = q->s;
    uint32_t limit = keep * s->page_tokens;
    const struct load *state = q->resume_wait.load;
    bool landed = q->resume.position > 0 && (!state || (state->done && state->result == TIER_OK));
    if (!landed && q->resume.position > 0 && q->resume.position <= limit)
        q->reuse.miss = state->done ? load_miss(state->result) : CS_MISS_DEADLINE;
    struct held_checkpoint other = {0}, *from = &other;
    enum deadline_state which = deadline_resume(q->resume.position, landed, q->fallback.position, limit);
    if (which == DEADLINE_WANTED) {
        from = &q->resume;
    } else if (which == DEADLINE_HELD) {
        from = &q->fallback;
    } else if (keep > 0) {
        struct span *c = checkpoint_deepest_locked(q->place, q->place_ordinal, limit, true);
        if (c)
            (void)checkpoint_hold_locked(s, c, &other);
    }
    uint32_t position = from->position;
    step_resume_locked(q, from);
    return position / s->page_tokens;
}

/* Tokens behind the last position that could have been reused at all are NONE's, unless there is none. */
static void count_missed_locked(const struct cs_sequence *q, uint32_t reused)
{
    struct cs_store *s = q->s;
    uint32_t n = q->n_looked_up, edge = s->stateful ? s->grid_tokens : s->page_tokens;
    uint32_t most = q->reuse.miss == CS_MISS_PARTIAL_PAGE ? n : (n - 1) / edge * edge;
    s->totals.tokens_missed[CS_MISS_NONE] += n - most;
    s->totals.tokens_missed[q->reuse.miss] += most - reused;
}

static void settle_locked(struct cs_sequence *q, uint64_t now_ns)
{
    struct cs_store *s = q->s;
    struct cs_stats *t = &s->totals;
    uint32_t keep = q->n_restoring, from_disk = 0, from_host = 0;
    uint64_t landed_ns = q->opened_ns;
    enum restore_end end = RESTORE_LANDED;
    bool waited = q->n_waits > 0 || q->resume_wait.load;
    for (uint32_t i = 0; i < q->n_waits; i++) {
        const struct load_wait *w = &q->waits[i];
        if (!w->load->done || w->load->result != TIER_OK) {
            keep = w->first_page;
            if (w->load->done)
                q->reuse.miss = load_miss(w->load->result);
            else if (keep >= pages_needed(q) && state_has_failed(q)) /* nobody waited for these pages */
                q->reuse.miss = load_miss(q->resume_wait.load->result);
            else
                q->reuse.miss = CS_MISS_DEADLINE;
            landed_ns = now_ns;
            end = w->load->done ? RESTORE_FAILED : RESTORE_LATE;
            break;
        }
        if (w->load->done_ns > landed_ns)
            landed_ns = w->load->done_ns;
    }
    const struct load *state = q->resume_wait.load;
    if (state && state->done && state->result == TIER_OK) {
        if (state->done_ns > landed_ns)
            landed_ns = state->done_ns;
    } else if (state) {
        landed_ns = now_ns;
        end = state->done ? RESTORE_FAILED : end == RESTORE_LANDED ? RESTORE_LATE : end;
    }
    if (s->stateful)
        keep = resume_locked(q, keep);
    for (uint32_t i = 0; i < q->n_waits && q->waits[i].first_page < keep; i++) {
        uint32_t left = keep - q->waits[i].first_page;
        uint32_t *from = q->waits[i].load->from_host ? &from_host : &from_disk;
        *from += q->waits[i].n_pages < left ? q->waits[i].n_pages : left;
    }
    q->reuse.tokens_host = from_host * s->page_tokens;
    q->reuse.tokens_disk = from_disk * s->page_tokens;
    q->reuse.tokens_device = (keep - from_host - from_disk) * s->page_tokens;
    if (waited) {
        uint64_t us = (landed_ns - q->opened_ns) / NS_PER_US;
        q->reuse.restore_us = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
        histogram_add(&s->restore_us, us);
        if (end == RESTORE_LATE)
            events_note_locked(s, EVENT_LATE, &q->tenant, q->reuse.tokens_matched, us / 1000);
        tradeoff_end_locked(q, end, us, landed_ns);
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
    t->tokens_host += q->reuse.tokens_host;
    t->tokens_disk += q->reuse.tokens_disk;
    count_missed_locked(q, keep * s->page_tokens);
}

/* Needs the lock. Deadline, and the list that the keeper watches. */
static void await_locked(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    tradeoff_begin_locked(q);
    q->deadline_ns = deadline_ns(q->opened_ns, q->predicted_us, s->restore_deadline_ms);
    sequence_list_locked(q);
}

/* Needs the lock. What the path has on the host stays there until it is let go: making room for one load must
 * not take what another one of this restore begins with. */
static void pin_host_locked(struct cs_store *s, const struct segment *segments, size_t n, bool pin)
{
    for (size_t k = 0; k < n && s->index.host; k++) {
        segments[k].sp->host_pins += pin ? 1 : -1u;
        index_requeue_locked(&s->index, segments[k].sp);
    }
}

/* Needs the lock. Looks the path up, holds what is resident and submits the loads of the rest. */
static void find_locked(struct cs_sequence *q, const uint32_t *ids, uint32_t n_full, struct segment *segments,
                        struct load_batch *batch)
{
    struct cs_store *s = q->s;
    size_t n_segments = walk_locked(s, &q->tenant, ids, q->keys, n_full, segments, &q->reuse.miss),
           n_pinned = n_segments;
    uint32_t wanted = 0;
    pin_host_locked(s, segments, n_pinned, true);
    for (size_t k = 0; k < n_segments; k++)
        wanted += segments[k].n;
    q->reuse.tokens_matched = wanted * s->page_tokens;
    if (n_segments > 0) {
        sequence_set_place_locked(q, segments[n_segments - 1].sp, segments[n_segments - 1].n - 1);
        q->continues = !s->stateful && (q->place->n_children <= 1 || q->place->continues);
    }
    if (s->stateful && wanted > 0) {
        if (q->reuse.miss == CS_MISS_DIVERGED && checkpoint_path_forks_locked(q->place, q->place_ordinal))
            q->branch = q->reuse.tokens_matched;
        /* Before room is made for the checkpoint, so that no page of its path goes for it. */
        hold_resident_locked(q, segments, n_segments);
        uint32_t position = choose_checkpoint_locked(q, q->reuse.tokens_matched, batch);
        unref_resident_locked(q, position / s->page_tokens, wanted);
        wanted = position / s->page_tokens;
    } else {
        hold_resident_locked(q, segments, n_segments);
        uint32_t n = tradeoff_pages_locked(q, wanted);
        if (n < wanted)
            q->reuse.miss = CS_MISS_COMPUTE;
        unref_resident_locked(q, n, wanted);
        wanted = n;
    }
    n_segments = cut_segments(segments, n_segments, wanted);
    touch_locked(s, segments, n_segments);
    uint32_t there = load_missing_locked(q, segments, n_segments, batch);
    if (there < wanted) {
        q->reuse.miss = CS_MISS_ARENA_FULL;
        unref_resident_locked(q, there, wanted);
    }
    q->n_restoring = there;
    for (uint32_t i = 0; i < there; i++)
        q->address[i] = arena_address(&s->arena, q->page[i]);
    load_batch_submit_locked(s, batch);
    pin_host_locked(s, segments, n_pinned, false);
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
    q->account = quota_enter(s, &q->tenant);
    if (!q->account) {
        free(q);
        return CS_ENOMEM;
    }
    struct segment *segments = NULL;
    struct load_batch batch = {0};
    if (n_full > 0) {
        q->keys = malloc(n_full * sizeof *q->keys);
        q->page = malloc(n_full * sizeof *q->page);
        q->address = malloc(n_full * sizeof *q->address);
        q->waits = malloc(n_full * sizeof *q->waits);
        q->state_address = malloc((s->state_blocks + 1) * sizeof *q->state_address);
        segments = malloc(n_full * sizeof *segments);
        batch.reads = malloc((n_full + 1) * sizeof(struct tier_read *));
        if (s->index.host)
            q->on_host = malloc(n_full * sizeof *q->on_host);
        batch.copies = malloc((n_full + 1) * sizeof(struct cs_copies *));
        if (!q->keys || !q->page || !q->address || !q->waits || !q->state_address || !segments ||
            !batch.reads || !batch.copies || (s->index.host && !q->on_host) ||
            step_reserve(q, n_full) != CS_OK) {
            free(q->keys);
            free(q->page);
            free(q->address);
            free(q->waits);
            step_free(q);
            free(segments);
            free(batch.reads);
            free(batch.copies);
            free(q->on_host);
            quota_leave(s, q->account);
            free(q);
            return CS_ENOMEM;
        }
        q->capacity = n_full;
        key_pages(q->key, ids, n_full, pt, q->keys);
    }

    pthread_mutex_lock(&s->lock);
    s->n_sequences++;
    q->reuse.miss = n == 0 ? CS_MISS_NONE : CS_MISS_PARTIAL_PAGE;
    if (n_full > 0)
        find_locked(q, ids, n_full, segments, &batch);
    if (q->n_waits > 0 || q->resume_wait.load)
        await_locked(q);
    else
        settle_locked(q, q->opened_ns);
    writeback_relieve_locked(s);
    pthread_mutex_unlock(&s->lock);
    free(segments);
    free(batch.reads);
    free(batch.copies);
    free(q->on_host);
    q->on_host = NULL;
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
