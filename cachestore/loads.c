/*
 * Loads: reads of the disk tier in flight, each shared by all sequences that wait for its pages. A page being
 * read into is referenced by its load until the completion, whatever becomes of the sequences: a late read
 * never lands in memory that was given to somebody else.
 */
#include "cachestore/store.h"

#include <stdlib.h>

static void load_unref(struct load *l)
{
    l->refs--;
    if (l->refs == 0)
        free(l);
    else if (!l->done && !l->waits)
        l->read.cancel = true;
}

enum cs_miss load_miss(enum tier_result result)
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
    sp->lost = load_miss(l->result);
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
    s->loading_bytes -= r->n_pages * s->stride;
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

void load_join_locked(struct load_wait *w, struct cs_sequence *q, struct load *l, uint32_t first_page,
                      uint32_t n_pages)
{
    *w =
        (struct load_wait){.load = l, .q = q, .next = l->waits, .first_page = first_page, .n_pages = n_pages};
    if (l->waits)
        l->waits->previous = w;
    l->waits = w;
    l->refs++;
    l->read.cancel = false;
}

void load_leave_locked(struct load_wait *w)
{
    if (!w->load)
        return;
    if (w->previous)
        w->previous->next = w->next;
    else
        w->load->waits = w->next;
    if (w->next)
        w->next->previous = w->previous;
    load_unref(w->load);
    w->load = NULL;
}

struct load *load_prepare_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t *n, bool all)
{
    if (room_for_pages_locked(s, *n) != CS_OK && *n > s->arena.n_free) {
        if (all)
            return NULL;
        *n = s->arena.n_free;
    }
    struct load *l = *n > 0 ? calloc(1, sizeof *l + *n * sizeof(void *)) : NULL;
    if (!l)
        return NULL;
    l->s = s;
    l->span = sp;
    l->refs = 1;
    for (uint32_t i = 0; i < *n; i++) {
        uint32_t page = arena_take(&s->arena);
        l->pages[i] = arena_address(&s->arena, page);
        index_attach_locked(&s->index, sp, first + i, page, true);
    }
    l->read = (struct tier_read){.record = {.id = sp->id,
                                            .kind = index_record_kind(sp),
                                            .key = sp->key,
                                            .parent = sp->parent ? sp->parent_key : (struct cs_key){0},
                                            .tenant = sp->tenant,
                                            .first_position = sp->first_position,
                                            .n_pages = sp->n_pages,
                                            .flags = (uint32_t)sp->written_as,
                                            .ids = sp->ids},
                                 .first_page = first,
                                 .n_pages = *n,
                                 .pages = l->pages,
                                 .done = load_done,
                                 .ctx = l};
    l->span_next = sp->loads;
    sp->loads = l;
    s->loading_bytes += *n * s->stride;
    index_requeue_locked(&s->index, sp);
    return l;
}

struct load *load_covering_locked(const struct span *sp, uint32_t page)
{
    struct load *l = sp->loads;
    while (l && (page < l->read.first_page || page >= l->read.first_page + l->read.n_pages))
        l = l->span_next;
    return l;
}
