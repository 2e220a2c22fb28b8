/*
 * The host tier: blocks of host memory between a device that the CPU cannot reach and the disk.
 *
 * Published spans and checkpoints are copied there behind publish, on the device's queue; what the disk gets
 * is written from there, and what it gives lands there and goes on to the device. A block stays until its
 * room is wanted (room.c), so a path that has left the device comes back in one copy.
 *
 *   publish --> queue --> copy --> sum of each block as it lands --> the disk, where there is one
 *   restore --> (read --> sum of each block |) sum verified --> copy
 *
 * The sum of a block is seeded with what lies in it (the span's key and the page), so that bytes which were
 * damaged, stale or meant for another block are found on the way back, and the block is dropped.
 *
 * A span's pages on the device stay while it is COPYING; so what is copied at once is bounded by a share of
 * the arena.
 */
#include "cachestore/store.h"

#include "formats/hash.h"
#include <stdlib.h>

#define COPIES_AT_ONCE 64 /* batches in one submission; the next one follows when the first has ended */

/* A copy of a span to the host, as far as it is not there. */
struct offload {
    struct cs_copies copies;
    struct cs_store *s;
    struct span *span;
    uint32_t *page; /* of the span: what each copy is of */
    uint64_t sum;   /* the device's thread's, of the block at hand */
    struct cs_copy copy[];
};

bool host_check_piece(const struct cs_store *s, const struct span *sp, uint32_t page, uint64_t offset,
                      uint64_t bytes, uint64_t *sum, bool fresh)
{
    const uint64_t spread = 0x9e3779b97f4a7c15ull; /* so that pages of one span differ */
    uint32_t block = sp->host[page];
    const char *at = (const char *)arena_address(&s->host, block);
    uint64_t seed = s->host_random.seed ^ sp->key.lo ^ page * spread, all = offset == 0 ? seed : *sum;
    for (uint64_t end = offset + bytes; offset < end; offset += CS_COPY_PIECE) {
        uint64_t n = end - offset < CS_COPY_PIECE ? end - offset : CS_COPY_PIECE;
        /* One to one in each of its terms: a wrong piece is never hidden by the others. With a secret,
         * because a seed would cost a secret made of it for each piece. */
        all = (all ^
               XXH3_64bits_withSecret(at + offset, n, s->host_random.secret, sizeof s->host_random.secret)) *
              spread;
    }
    *sum = all;
    if (offset < s->stride)
        return true;
    if (fresh)
        s->host_sum[block] = all;
    return s->host_sum[block] == all;
}

bool host_check(const struct cs_store *s, const struct span *sp, uint32_t page, bool fresh)
{
    uint64_t sum;
    return host_check_piece(s, sp, page, 0, s->stride, &sum, fresh);
}

static void submit(struct cs_store *s, struct cs_copies *const *batches, size_t n)
{
    s->totals.copies += n;
    s->device->submit(s->device->ctx, batches, n);
}

void host_submit_locked(struct cs_store *s, struct cs_copies *const *batches, size_t n)
{
    s->n_copies += n;
    submit(s, batches, n);
}

void host_copy_ended_locked(struct cs_store *s, const struct cs_copies *c, bool ok)
{
    s->n_copies--;
    if (!ok)
        s->totals.copy_errors++;
    else if (c->to_device)
        s->totals.bytes_to_device += c->n * s->stride;
    else
        s->totals.bytes_to_host += c->n * s->stride;
    if (s->closing)
        pthread_cond_broadcast(&s->changed);
}

static void drop_blocks(struct cs_store *s, struct span *sp, uint32_t first, uint32_t n, enum cs_gone why)
{
    if (sp->disk == SPAN_DISK_WRITING) /* from these blocks; it finds out by itself */
        return;
    if (index_waits(sp))
        writeback_cancel_locked(s, sp);
    for (uint32_t i = first; i < first + n; i++)
        if (sp->host[i] != ARENA_NO_PAGE)
            index_detach_host_locked(&s->index, sp, i, why);
    index_requeue_locked(&s->index, sp);
}

void host_drop_damaged_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t n)
{
    s->totals.corrupt_host++;
    events_note_locked(s, EVENT_HOST_DAMAGED, &sp->account->id, sp->first_position, 0);
    sp->lost = CS_MISS_CORRUPT;
    drop_blocks(s, sp, first, n, CS_GONE_DAMAGED);
}

void host_drop_unproven_locked(struct cs_store *s, struct span *sp, uint32_t first, uint32_t n)
{
    drop_blocks(s, sp, first, n, CS_GONE_FAILED);
}

/* ---- to the host: with the lock held but where it says otherwise --------------------------------------- */

/* On the device's thread, without the lock: nobody else touches a block that is being filled. */
static bool offload_landed(void *ctx, size_t i, uint64_t offset, uint64_t bytes)
{
    struct offload *o = ctx;
    return host_check_piece(o->s, o->span, o->page[i], offset, bytes, &o->sum, true);
}

/* On the device's thread, without the lock. */
static void offload_done(void *ctx, bool ok)
{
    struct offload *o = ctx;
    struct cs_store *s = o->s;
    struct span *sp = o->span;
    pthread_mutex_lock(&s->lock);
    s->copying_bytes -= sp->n_pages * s->stride;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        if (sp->host[i] == ARENA_NO_PAGE || !s->host.pages[sp->host[i]].loading)
            continue;
        if (ok)
            index_landed_host_locked(&s->index, sp, i);
        else
            index_detach_host_locked(&s->index, sp, i, CS_GONE_FAILED);
    }
    if (!ok)
        events_note_locked(s, EVENT_COPY_FAILED, &sp->account->id, 0, 0);
    index_set_disk_locked(&s->index, sp, SPAN_DISK_NONE);
    if (ok)
        writeback_go_on_locked(s, sp);
    host_copy_ended_locked(s, &o->copies, ok);
    pthread_cond_broadcast(&s->changed);
    room_settle_and_trim_locked(s, sp);
    writeback_pump_locked(s);
    pthread_mutex_unlock(&s->lock);
    free(o);
}

void *host_take_locked(struct cs_store *s, struct span *sp, uint32_t i)
{
    uint32_t block = arena_take(&s->host, sp->account->slot);
    index_attach_host_locked(&s->index, sp, i, block, true);
    arena_unref(&s->host, block); /* the span's state keeps it */
    if (arena_wants_populate(&s->host))
        pthread_cond_signal(&s->keeper_wake);
    return arena_address(&s->host, block);
}

/* Blocks for what is not on the host yet. NULL: no memory. */
static struct offload *offload_prepare(struct cs_store *s, struct span *sp)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sp->n_pages; i++)
        n += sp->host[i] == ARENA_NO_PAGE;
    struct offload *o = malloc(sizeof *o + n * (sizeof o->copy[0] + sizeof *o->page));
    if (!o)
        return NULL;
    *o = (struct offload){.s = s, .span = sp, .page = (uint32_t *)(o->copy + n)};
    n = 0;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        if (sp->host[i] != ARENA_NO_PAGE)
            continue;
        o->page[n] = i;
        o->copy[n++] = (struct cs_copy){.device = arena_address(&s->arena, sp->page[i]),
                                        .host = host_take_locked(s, sp, i),
                                        .bytes = s->stride};
    }
    o->copies =
        (struct cs_copies){.copy = o->copy, .n = n, .piece = offload_landed, .done = offload_done, .ctx = o};
    return o;
}

/* Begins the copy of a queued span. NULL: it cannot be copied any more, or there is no room. */
static struct offload *offload_begin(struct cs_store *s, struct span *sp)
{
    bool can = index_is_whole(sp) && s->host.n_free >= sp->n_pages;
    struct offload *o = can ? offload_prepare(s, sp) : NULL;
    if (o) {
        writeback_unlist_locked(s, sp);
        index_set_disk_locked(&s->index, sp, SPAN_DISK_COPYING);
        s->copying_bytes += sp->n_pages * s->stride;
        s->n_copies++;
    }
    return o;
}

void host_pump_locked(struct cs_store *s)
{
    struct cs_copies *batches[COPIES_AT_ONCE];
    size_t n = 0;
    uint32_t pass = ++s->passes;
    struct span *passed = NULL, *sp;
    unsigned n_passed = 0;
    while (!s->closing && n < COPIES_AT_ONCE &&
           (sp = writeback_next_locked(&s->queued, pass, &passed, &n_passed)) != NULL) {
        if (s->copying_bytes > 0 && s->copying_bytes + sp->n_pages * s->stride > s->copying_budget)
            break;
        enum room room = room_to_copy_locked(s, sp, HOST_TURN_REST);
        bool within = room != ROOM_NONE_OF_ITS_OWN;
        if (room != ROOM_MADE) {
            if (s->grace.first) { /* what waits for the disk has all of it: this is no time for a grace */
                (void)writeback_end_grace_locked(s, UINT64_MAX);
                passed = NULL; /* which has come by here */
                pass = ++s->passes;
                continue;
            }
            /* What holds it ends with a call of this. Room of its own is a tenant's own matter. */
            if (s->n_copies > 0 || (within && (s->n_loads > 0 || s->writing_bytes > 0)) ||
                sp->account->n_writing > 0 || s->trimming) {
                if (within)
                    break;
                sp->account->passed_over = pass;
                continue;
            }
        }
        struct offload *o = within ? offload_begin(s, sp) : NULL;
        if (o) {
            batches[n++] = &o->copies;
        } else {
            if (within)
                s->totals.dropped_queue_full++;
            else
                room_count_quota_drop_locked(s, sp->account);
            writeback_cancel_locked(s, sp);
            room_settle_and_trim_locked(s, sp);
        }
    }
    if (n > 0)
        submit(s, batches, n);
}
