/*
 * Making room. Each budget is met before it is exceeded: pages before a sequence grows, index bytes before a
 * span is added, blocks of the host before one is copied or read there, chunks before a span is written. What
 * is evicted is chosen by policy/evict.c through the heaps of the index and the ranks of the device. Pages in
 * use, pinned spans and what is being written are never candidates. A checkpoint is one even while sequences
 * use its blocks, which they keep then, but goes from the device when nothing else is left.
 */
#include "cachestore/store.h"

/* Everything here runs with the store's lock held. */

static void leave_device(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    for (uint32_t i = 0; i < sp->n_pages; i++)
        if (sp->page[i] != ARENA_NO_PAGE)
            index_detach_locked(&s->index, sp, i, why);
}

static void leave_host(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    for (uint32_t i = 0; i < sp->n_pages && sp->host; i++)
        if (sp->host[i] != ARENA_NO_PAGE)
            index_detach_host_locked(&s->index, sp, i, why);
}

void room_doom_locked(struct cs_store *s, struct span *checkpoint, enum cs_miss why)
{
    checkpoint->lost = why;
    index_doom_locked(&s->index, checkpoint);
    room_settle_span_locked(s, checkpoint);
}

void room_settle_span_locked(struct cs_store *s, struct span *sp)
{
    if (sp && sp->doomed && sp->n_loading == 0 && sp->disk != SPAN_DISK_WRITING &&
        sp->disk != SPAN_DISK_COPYING) {
        if (index_waits(sp))
            writeback_cancel_locked(s, sp);
        leave_device(s, sp, CS_GONE_THINNED);
        leave_host(s, sp, CS_GONE_THINNED);
        index_requeue_locked(&s->index, sp);
        if (sp->disk == SPAN_DISK_DURABLE)
            room_drop_record_locked(s, sp, CS_GONE_THINNED);
    }
    while (sp && !index_holds_bytes(sp)) {
        notes_drop_locked(&s->notes, &s->index, s->tier, s->disk, sp);
        if (sp->n_children > 0 || sp->pins > 0)
            break;
        struct span *parent = sp->parent;
        index_remove_locked(&s->index, sp);
        sp = parent;
    }
}

void room_unref_pages_locked(struct cs_store *s, const uint32_t *pages, size_t n)
{
    struct span *owner = NULL;
    for (size_t i = 0; i < n; i++) {
        struct span *next = s->arena.pages[pages[i]].owner;
        if (next != owner && owner)
            index_requeue_locked(&s->index, owner);
        owner = next;
        index_page_unref_locked(&s->index, pages[i]);
    }
    if (owner)
        index_requeue_locked(&s->index, owner);
}

static void count_dropped(struct cs_store *s, struct span *sp)
{
    if (s->disk && !sp->drop_counted && !index_is_safe(sp)) {
        s->totals.dropped_undurable++;
        sp->drop_counted = true;
    }
}

/* What waits to be copied or written from the device, and is about to lose pages there, does so in vain. */
static void stop_waiting(struct cs_store *s, struct span *sp)
{
    if (index_waits_on_device(&s->index, sp)) {
        s->totals.dropped_queue_full++;
        writeback_cancel_locked(s, sp);
    }
}

/* Evicts a checkpoint from the device as a whole: half of one is worth nothing. */
static void evict_checkpoint(struct cs_store *s, struct span *c)
{
    stop_waiting(s, c);
    count_dropped(s, c);
    leave_device(s, c, CS_GONE_EVICTED);
    index_requeue_locked(&s->index, c);
    c->lost = CS_MISS_EVICTED;
    s->totals.evicted_device_checkpoints++;
    room_settle_span_locked(s, c);
}

/* Takes unused pages off the span, from its tail, until `want` pages of the arena are free or the next one is
 * worth more than those before. */
static void evict_tail(struct cs_store *s, struct span *sp, uint64_t want)
{
    bool dead = sp->rank.class == WORTH_CLASS_NOTHING;
    stop_waiting(s, sp);
    count_dropped(s, sp);
    for (uint32_t i = ranks_pages_to_unused(&s->index, sp); i-- > 0 && s->arena.n_free < want;) {
        if (sp->page[i] == ARENA_NO_PAGE || s->arena.pages[sp->page[i]].refs > 0)
            continue;
        if (dead && !ranks_page_is_dead(&s->index, sp, i))
            break;
        index_detach_locked(&s->index, sp, i, CS_GONE_EVICTED);
    }
    sp->lost = CS_MISS_EVICTED;
    if (sp->n_device == 0)
        s->totals.evicted_device_spans++;
    index_requeue_locked(&s->index, sp);
    room_settle_span_locked(s, sp);
}

int room_for_pages_locked(struct cs_store *s, uint64_t n)
{
    if (n > (uint64_t)s->arena.n_free + s->arena.n_cached)
        return CS_EFULL;
    while (s->arena.n_free < n) {
        struct span *victim = ranks_victim_locked(&s->index);
        if (!victim) {
            /* What is being written becomes evictable sooner. */
            if (s->disk && s->writing_bytes > 0)
                s->tier->kick(s->disk);
            return CS_EFULL;
        }
        if (!index_is_safe(victim) && victim->rank.class != WORTH_CLASS_NOTHING)
            s->under_pressure = true; /* bytes are about to be lost */
        if (victim->kind == SPAN_CHECKPOINT)
            evict_checkpoint(s, victim);
        else
            evict_tail(s, victim, n);
    }
    return CS_OK;
}

void room_drop_record_locked(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    s->index.disk[sp->kind].gone[why]++;
    notes_unstore_locked(sp);
    s->tier->delete_span(s->disk, sp->id);
    sp->id = (struct record_id){0};
    sp->disk_bytes = 0;
    index_set_disk_locked(&s->index, sp, SPAN_DISK_NONE);
}

static void count_evicted_disk(struct cs_store *s, const struct span *sp)
{
    if (sp->kind == SPAN_CHECKPOINT)
        s->totals.evicted_disk_checkpoints++;
    else
        s->totals.evicted_disk_spans++;
}

static void count_evicted_host(struct cs_store *s, const struct span *sp)
{
    if (sp->n_host > 0 && sp->kind == SPAN_CHECKPOINT)
        s->totals.evicted_host_checkpoints++;
    else if (sp->n_host > 0)
        s->totals.evicted_host_spans++;
}

bool room_for_host_locked(struct cs_store *s, uint64_t n, enum host_turn last)
{
    struct index *ix = &s->index;
    while (s->host.n_free < n) {
        struct span *victim = index_first_locked(ix, HEAP_HOST);
        if (!victim)
            return false;
        if (victim->host_turn != index_host_turn(ix, victim)) { /* something far away has changed */
            index_requeue_locked(ix, victim);
            continue;
        }
        if (victim->host_turn > last)
            return false;
        if (index_waits(victim) && victim->disk != SPAN_DISK_QUEUED) {
            s->totals.dropped_queue_full++;
            writeback_cancel_locked(s, victim);
        }
        count_evicted_host(s, victim);
        leave_host(s, victim, CS_GONE_EVICTED);
        if (!index_is_resident(victim)) {
            count_dropped(s, victim);
            victim->lost = CS_MISS_EVICTED;
        }
        index_requeue_locked(ix, victim);
        room_settle_span_locked(s, victim);
    }
    return true;
}

/* Out of every tier. The span has no children, pins or loads, is not being written, and nobody uses its pages
 * (blocks of a checkpoint stay with who uses them). */
static void forget(struct cs_store *s, struct span *sp)
{
    if (index_waits(sp))
        writeback_cancel_locked(s, sp);
    count_evicted_host(s, sp);
    leave_host(s, sp, CS_GONE_INDEX);
    count_dropped(s, sp);
    if (sp->disk == SPAN_DISK_DURABLE) {
        room_drop_record_locked(s, sp, CS_GONE_INDEX);
        count_evicted_disk(s, sp);
    }
    if (sp->n_device > 0 && sp->kind == SPAN_CHECKPOINT)
        s->totals.evicted_device_checkpoints++;
    else if (sp->n_device > 0)
        s->totals.evicted_device_spans++;
    leave_device(s, sp, CS_GONE_INDEX);
    sp->lost = CS_MISS_EVICTED;
    room_settle_span_locked(s, sp);
}

bool room_for_index_locked(struct cs_store *s, uint64_t bytes)
{
    struct index *ix = &s->index;
    /* The tier's own table counts too. It shrinks a little after its records are deleted, so what that will
     * free is taken off here, or impatience would forget too much. */
    uint64_t tier = s->disk ? s->tier->memory_bytes(s->disk) : 0;
    uint64_t tier_per_span = ix->n_disk_spans ? tier / ix->n_disk_spans : 0;
    while (ix->bytes + tier + bytes > ix->budget || ix->n_spans >= ix->heap_capacity) {
        struct span *victim = index_first_locked(ix, HEAP_INDEX);
        if (!victim)
            return false;
        if (victim->disk == SPAN_DISK_DURABLE)
            tier -= tier_per_span < tier ? tier_per_span : tier;
        forget(s, victim);
    }
    return true;
}

bool room_evict_disk_locked(struct cs_store *s, uint64_t bytes)
{
    uint64_t freed = 0;
    while (freed < bytes) {
        struct span *victim = index_first_locked(&s->index, HEAP_DISK);
        if (!victim)
            return false;
        freed += victim->disk_bytes ? victim->disk_bytes : 1;
        room_drop_record_locked(s, victim, CS_GONE_EVICTED);
        count_evicted_disk(s, victim);
        victim->lost = CS_MISS_EVICTED;
        room_settle_span_locked(s, victim);
    }
    return true;
}

bool room_for_disk_locked(struct cs_store *s, uint64_t bytes)
{
    while (s->tier->free_bytes(s->disk) < (int64_t)bytes)
        if (!room_evict_disk_locked(s, 1))
            return false;
    return true;
}
