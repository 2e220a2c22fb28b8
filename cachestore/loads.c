/*
 * Loads: what comes to the device from a lower tier, each shared by all sequences that wait for its pages. A
 * page being loaded is referenced by its load until the completion, whatever becomes of the sequences: a late
 * read or copy never lands in memory that was given to somebody else.
 *
 *   the device is host memory:                       disk --read--> pages
 *   it is not:      disk --read--> blocks of the host --copy--> pages
 *                        from there, if they are there, --copy--> pages
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

enum cs_gone load_gone(enum tier_result result)
{
    return load_miss(result) == CS_MISS_CORRUPT ? CS_GONE_DAMAGED : CS_GONE_FAILED;
}

/* Needs the lock. The record does not hold what the index says: it is read no more. Its subtree stays and is
 * reachable again once the span has been published anew. */
static void quarantine_locked(const struct load *l, enum tier_result result)
{
    struct cs_store *s = l->s;
    struct span *sp = l->span;
    sp->lost = load_miss(result);
    if (sp->disk == SPAN_DISK_DURABLE && sp->id.nonce == l->read.record.id.nonce &&
        sp->id.sequence == l->read.record.id.sequence) {
        if (result != TIER_NOTFOUND) {
            s->totals.quarantined++;
            room_quarantine_locked(s, sp, load_gone(result));
        } else {
            room_drop_record_locked(s, sp, load_gone(result));
        }
    }
}

/* Needs the lock, and gives it up while a notification runs. */
static void load_end_locked(struct load *l, enum tier_result result)
{
    struct cs_store *s = l->s;
    struct span *sp = l->span;
    l->done = true;
    l->result = result;
    s->loading_bytes -= l->from_host ? 0 : l->read.n_pages * s->stride;
    l->done_ns = store_now_ns();
    s->n_loads--;
    struct load **at = &sp->loads;
    while (*at != l)
        at = &(*at)->span_next;
    *at = l->span_next;
    for (uint32_t i = l->read.first_page; i < l->read.first_page + l->read.n_pages; i++) {
        uint32_t page = sp->page[i];
        if (result == TIER_OK)
            index_landed_locked(&s->index, sp, i);
        else
            index_detach_locked(&s->index, sp, i, load_gone(result));
        index_page_unref_locked(&s->index, page);
    }
    index_requeue_locked(&s->index, sp);
    room_settle_and_trim_locked(s, sp);
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
    host_pump_locked(s); /* blocks may be taken away again */
}

/* On the device's thread, without the lock. */
static bool load_checks(void *ctx, size_t i, uint64_t offset, uint64_t bytes)
{
    struct load *l = ctx;
    bool right = host_check_piece(l->s, l->span, l->read.first_page + (uint32_t)i, offset, bytes, &l->sum,
                                  !l->from_host);
    if (!right)
        l->damaged = true;
    return right;
}

/* On the device's thread, without the lock. */
static void load_copied(void *ctx, bool ok)
{
    struct load *l = ctx;
    struct cs_store *s = l->s;
    pthread_mutex_lock(&s->lock);
    host_copy_ended_locked(s, &l->copies, ok);
    if (l->damaged)
        host_drop_damaged_locked(s, l->span, l->read.first_page, l->read.n_pages);
    else if (!ok && !l->from_host)
        host_drop_unproven_locked(s, l->span, l->read.first_page, l->read.n_pages);
    if (!ok && !l->damaged)
        events_note_locked(s, EVENT_COPY_FAILED, &l->span->account->id, 0, 0);
    load_end_locked(l, ok ? TIER_OK : l->damaged ? TIER_CORRUPT_PAYLOAD : TIER_EIO);
    pthread_mutex_unlock(&s->lock);
}

/* Needs the lock. What was read for a device that is not host memory lies on the host now. True: it goes on
 * to the device. */
static bool landed_on_host_locked(struct load *l, enum tier_result result)
{
    struct cs_store *s = l->s;
    for (uint32_t i = l->read.first_page; i < l->read.first_page + l->read.n_pages; i++)
        if (result == TIER_OK)
            index_landed_host_locked(&s->index, l->span, i);
        else
            index_detach_host_locked(&s->index, l->span, i, load_gone(result));
    if (result != TIER_OK || s->closing)
        return false;
    struct cs_copies *batch = &l->copies;
    host_submit_locked(s, &batch, 1);
    return true;
}

/* On the tier's thread, without the lock. */
static void load_read(void *ctx, struct tier_read *r, enum tier_result result)
{
    struct load *l = ctx;
    struct cs_store *s = l->s;
    pthread_mutex_lock(&s->lock);
    if (result == TIER_CANCELLED && l->waits && !s->closing) {
        /* Somebody joined after the last one had left. */
        r->cancel = false;
        s->tier->read(s->disk, &r, 1);
    } else if (!s->index.host || !landed_on_host_locked(l, result)) {
        if (result != TIER_OK && result != TIER_CANCELLED)
            quarantine_locked(l, result);
        else if (s->index.host) /* it goes no further */
            result = TIER_CANCELLED;
        load_end_locked(l, result);
    }
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

/* Needs the lock. Room for n pages on the device, and on the host where they come by way of it; returns for
 * how many there is, or (all) n or fewer than that. */
static uint32_t room_for_load_locked(struct cs_store *s, struct account *account, uint32_t n, bool by_host,
                                     bool all)
{
    if (room_for_pages_locked(s, n, account) != CS_OK && n > s->arena.n_free)
        n = s->arena.n_free;
    if (by_host && !room_for_host_locked(s, n, HOST_TURN_WAITING, account)) {
        uint64_t most = s->host.n_free + enough_on_host_locked(s, NULL, n, HOST_TURN_WAITING);
        n = most < n && !all && room_for_host_locked(s, most, HOST_TURN_WAITING, account) ? (uint32_t)most
                                                                                          : 0;
    }
    return n;
}

struct load *load_prepare_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t *n, bool all)
{
    bool by_host = s->index.host != NULL, from_host = load_is_from_host(sp, first);
    uint32_t room = room_for_load_locked(s, sp->account, *n, by_host && !from_host, all);
    if (room < *n && all)
        return NULL;
    *n = room;
    size_t bytes = sizeof(struct load) + *n * (sizeof(void *) + (by_host ? sizeof(struct cs_copy) : 0));
    struct load *l = *n > 0 ? calloc(1, bytes) : NULL;
    if (!l)
        return NULL;
    l->s = s;
    l->span = sp;
    l->refs = 1;
    l->from_host = from_host;
    struct cs_copy *copy = (struct cs_copy *)(l->pages + *n);
    for (uint32_t i = 0; i < *n; i++) {
        uint32_t page = arena_take(&s->arena, sp->account->slot);
        l->pages[i] = arena_address(&s->arena, page);
        index_attach_locked(&s->index, sp, first + i, page, true);
        if (!by_host)
            continue;
        copy[i] = (struct cs_copy){.device = l->pages[i], .bytes = s->stride};
        copy[i].host = l->pages[i] =
            from_host ? arena_address(&s->host, sp->host[first + i]) : host_take_locked(s, sp, first + i);
    }
    if (by_host)
        l->copies = (struct cs_copies){
            .copy = copy, .n = *n, .to_device = true, .piece = load_checks, .done = load_copied, .ctx = l};
    l->read = (struct tier_read){.record = index_record_of(sp),
                                 .first_page = first,
                                 .n_pages = *n,
                                 .pages = l->pages,
                                 .done = load_read,
                                 .ctx = l};
    l->span_next = sp->loads;
    sp->loads = l;
    s->loading_bytes += from_host ? 0 : *n * s->stride;
    s->n_loads++;
    index_requeue_locked(&s->index, sp);
    return l;
}

void load_batch_add(struct load_batch *b, struct load *l)
{
    if (l->from_host)
        b->copies[b->n_copies++] = &l->copies;
    else
        b->reads[b->n_reads++] = &l->read;
}

void load_batch_submit_locked(struct cs_store *s, const struct load_batch *b)
{
    if (b->n_copies > 0)
        host_submit_locked(s, b->copies, b->n_copies);
    if (b->n_reads > 0)
        s->tier->read(s->disk, b->reads, b->n_reads);
}

struct load *load_covering_locked(const struct span *sp, uint32_t page)
{
    struct load *l = sp->loads;
    while (l && (page < l->read.first_page || page >= l->read.first_page + l->read.n_pages))
        l = l->span_next;
    return l;
}
