/*
 * Making room. Each budget is met before it is exceeded: pages before a sequence grows, index bytes before a
 * span is added (room_index.c), blocks of the host before one is copied or read there, chunks before a span
 * is written. What is evicted is chosen by worth (ranks.h) in each tier. Pages in use, pinned spans and what
 * is being written are never candidates. A checkpoint is one even while sequences use its blocks, which they
 * keep then, but goes from the device when nothing else is left.
 *
 * Nothing leaves for what does not fit in the end: where something has to, it is asked first whether enough
 * can (enough.c). But what is over a budget or quota already goes, as far as it can. On the device all that
 * is free or unused counts as enough: what is being written there can be had soon, and who asked waits for
 * that.
 *
 * Quotas. Who would have more than its quota makes room among its own records first; who has more, because it
 * is in use or waits for the disk, is first to lose what it can when anybody needs room. So it is in the
 * index, where a tenant's share is that of its limits (accounts.h).
 */
#include "cachestore/policy/quota.h"
#include "cachestore/store.h"

#define TRIM_AT_ONCE 64 /* records, before others may have the lock */

/* Everything here runs with the store's lock held. */

static void leave_device(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    bool shared = false;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        if (sp->page[i] == ARENA_NO_PAGE)
            continue;
        const struct arena_page *p = &s->arena.pages[sp->page[i]];
        index_detach_locked(&s->index, sp, i, why);
        shared = shared || (p->refs == 0 && p->holders == 1);
    }
    if (shared)
        ranks_blocks_left_locked(&s->index, sp);
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
        room_settle_husk_locked(s, sp);
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
static void evict_checkpoint(struct cs_store *s, struct span *c, enum cs_gone why)
{
    stop_waiting(s, c);
    count_dropped(s, c);
    leave_device(s, c, why);
    index_requeue_locked(&s->index, c);
    c->lost = CS_MISS_EVICTED;
    s->totals.evicted_device_checkpoints++;
    room_settle_span_locked(s, c);
}

/* Takes at most n unused pages off the span, from its tail, or until the next one is worth more than those
 * before. */
static void evict_tail(struct cs_store *s, struct span *sp, uint64_t n, enum cs_gone why)
{
    bool dead = ranks_is_worth_nothing(sp);
    stop_waiting(s, sp);
    count_dropped(s, sp);
    for (uint32_t i = ranks_pages_to_unused(&s->index, sp); i-- > 0 && n > 0;) {
        if (sp->page[i] == ARENA_NO_PAGE || s->arena.pages[sp->page[i]].refs > 0)
            continue;
        if (dead && !ranks_page_is_dead(&s->index, sp, i))
            break;
        index_detach_locked(&s->index, sp, i, why);
        n--;
    }
    sp->lost = CS_MISS_EVICTED;
    if (sp->n_device == 0)
        s->totals.evicted_device_spans++;
    index_requeue_locked(&s->index, sp);
    room_settle_span_locked(s, sp);
}

static void evict_from_device(struct cs_store *s, struct span *sp, uint64_t n, enum cs_gone why)
{
    if (!index_is_safe(sp) && !ranks_is_worth_nothing(sp))
        s->under_pressure = true; /* bytes are about to be lost */
    if (sp->kind == SPAN_CHECKPOINT)
        evict_checkpoint(s, sp, why);
    else
        evict_tail(s, sp, n, why);
}

/* How many may go at once for a quota where `needed` would do: while a lowered one is met in the background,
 * a few more than that, and all there is to go otherwise. */
static uint64_t most_for_quota(const struct cs_store *s, uint64_t needed)
{
    return s->trimming ? needed + TRIM_AT_ONCE : UINT64_MAX;
}

void room_count_quota_eviction_locked(struct cs_store *s, struct account *account)
{
    s->totals.evicted_quota++;
    account->evicted++;
}

/* The next to leave the tier, first of those who have more than their quota. */
static struct span *victim_of_all(struct cs_store *s, enum rank_tier tier)
{
    struct index *ix = &s->index;
    for (const struct account *a = ix->accounts.over[tier]; a; a = a->over_next[tier]) {
        struct span *sp = ranks_victim_locked(ix, tier, a);
        if (sp && (tier != RANK_DEVICE || !ranks_gives_no_room(sp)))
            return sp;
    }
    return ranks_victim_locked(ix, tier, NULL);
}

/* At most `most` records of the account leave the device until it could have `more` bytes there, or as long
 * as they give room. waiting: also what waits for a lower tier. */
static void keep_device_quota(struct cs_store *s, struct account *a, uint64_t more, bool waiting,
                              uint64_t most)
{
    uint64_t excess;
    while (most-- > 0 && (excess = quota_excess(a->used[RANK_DEVICE], more, a->limit[RANK_DEVICE])) > 0) {
        struct span *sp = ranks_victim_locked(&s->index, RANK_DEVICE, a);
        if (!sp || ranks_gives_no_room(sp) || (!waiting && index_waits_on_device(&s->index, sp)))
            return;
        room_count_quota_eviction_locked(s, a);
        evict_from_device(s, sp, (excess + s->stride - 1) / s->stride, CS_GONE_QUOTA);
    }
}

/* At most n pages of the next to leave; of who has more than its quota what is too much, for the rest of it
 * is its share, and others may have borrowed more. What waits no longer with them was borrowed, too. */
static void evict_for_others(struct cs_store *s, struct span *sp, uint64_t n)
{
    struct account *a = sp->account;
    uint64_t excess = quota_excess(a->used[RANK_DEVICE], 0, a->limit[RANK_DEVICE]),
             borrowed = (excess + s->stride - 1) / s->stride;
    bool waits = index_waits_on_device(&s->index, sp);
    a->n_sequences++; /* it outlives its last record */
    evict_from_device(s, sp, borrowed > 0 && borrowed < n ? borrowed : n, CS_GONE_EVICTED);
    if (waits) /* the device's alone: the caller may be about to read from a lower tier */
        keep_device_quota(s, a, 0, false, most_for_quota(s, 0));
    a->n_sequences--;
    index_account_settle_locked(&s->index, a);
}

int room_for_pages_locked(struct cs_store *s, uint64_t n, struct account *account)
{
    if (n > (uint64_t)s->arena.n_free + s->arena.n_cached)
        return CS_EFULL;
    keep_device_quota(s, account, n * s->stride, true, most_for_quota(s, n));
    while (s->arena.n_free < n) {
        struct span *victim = victim_of_all(s, RANK_DEVICE);
        if (!victim) {
            /* What is being written becomes evictable sooner. */
            if (s->disk && s->writing_bytes > 0)
                s->tier->kick(s->disk);
            return CS_EFULL;
        }
        evict_for_others(s, victim, n - s->arena.n_free);
    }
    return CS_OK;
}

static void record_gone(struct cs_store *s, struct span *sp)
{
    sp->id = (struct record_id){0};
    index_set_disk_locked(&s->index, sp, SPAN_DISK_NONE);
    sp->disk_bytes = 0;
    room_settle_husk_locked(s, sp->parent);
}

void room_drop_record_locked(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    s->index.disk[sp->kind].gone[why]++;
    notes_unstore_locked(sp);
    s->tier->delete_span(s->disk, sp->id);
    record_gone(s, sp);
}

void room_quarantine_locked(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    if (sp->n_disk_children == 0) {
        room_drop_record_locked(s, sp, why);
        return;
    }
    s->index.disk[sp->kind].gone[why]++;
    notes_unstore_locked(sp);
    sp->husk = sp->id;
    s->n_husks++;
    record_gone(s, sp);
}

static bool has_husk(const struct span *sp)
{
    return sp && !record_id_equal(sp->husk, (struct record_id){0});
}

static void husk_delete(struct cs_store *s, struct span *sp, bool for_good)
{
    if (!has_husk(sp))
        return;
    if (for_good)
        s->tier->admin->purge(s->disk, sp->husk);
    else
        s->tier->delete_span(s->disk, sp->husk);
    sp->husk = (struct record_id){0};
    sp->husk_above = 0;
    s->n_husks--;
}

static void husk_move(struct span *from, struct span *to, uint16_t above)
{
    to->husk = from->husk;
    to->husk_above = above;
    from->husk = (struct record_id){0};
    from->husk_above = 0;
}

static bool needs_husk(const struct span *sp)
{
    return sp->disk != SPAN_DISK_DURABLE && sp->n_disk_children > 0;
}

void room_split_husk_locked(struct span *sp, struct span *tail)
{
    if (has_husk(sp))
        husk_move(sp, tail, sp->husk_above + 1);
}

void room_settle_husk_locked(struct cs_store *s, struct span *sp)
{
    if (!has_husk(sp) || needs_husk(sp))
        return;
    struct span *up = sp->parent;
    for (uint16_t above = sp->husk_above; above > 0; above--, up = up->parent)
        if (needs_husk(up) && !has_husk(up)) {
            husk_move(sp, up, above - 1);
            return;
        }
    husk_delete(s, sp, false);
}

bool room_purge_husk_locked(struct cs_store *s, struct record_id id, uint64_t *bucket, uint64_t n)
{
    struct index *ix = &s->index;
    if (s->n_husks == 0)
        *bucket = ix->bucket_mask + 1;
    for (; n > 0 && *bucket <= ix->bucket_mask; n--, ++*bucket)
        for (struct span *sp = ix->buckets[*bucket]; sp; sp = sp->hash_next)
            if (has_husk(sp) && record_id_equal(sp->husk, id)) {
                husk_delete(s, sp, true);
                return true;
            }
    return false;
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

static void evict_from_host(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    if (index_waits(sp) && sp->disk != SPAN_DISK_QUEUED) {
        s->totals.dropped_queue_full++;
        writeback_cancel_locked(s, sp);
    }
    count_evicted_host(s, sp);
    leave_host(s, sp, why);
    if (!index_is_resident(sp)) {
        count_dropped(s, sp);
        sp->lost = CS_MISS_EVICTED;
    }
    index_requeue_locked(&s->index, sp);
    room_settle_span_locked(s, sp);
}

static bool has_its_turn(const struct cs_store *s, const struct span *sp, enum host_turn last)
{
    return sp && index_host_turn(&s->index, sp) <= last;
}

struct span *room_host_victim_locked(struct cs_store *s, const struct account *of, enum host_turn last)
{
    struct span *victim = of ? NULL : victim_of_all(s, RANK_HOST);
    if (!has_its_turn(s, victim, last))
        victim = ranks_victim_locked(&s->index, RANK_HOST, of);
    return has_its_turn(s, victim, last) ? victim : NULL;
}

/* At most *most records of the account leave the host until it could have `more` bytes there. False: some of
 * it is left. */
static bool drain_host(struct cs_store *s, struct account *a, uint64_t more, enum host_turn last,
                       uint64_t *most)
{
    while (quota_excess(a->used[RANK_HOST], more, a->limit[RANK_HOST]) > 0) {
        struct span *sp = *most > 0 ? room_host_victim_locked(s, a, last) : NULL;
        if (!sp)
            return false;
        --*most;
        room_count_quota_eviction_locked(s, a);
        evict_from_host(s, sp, CS_GONE_QUOTA);
    }
    return true;
}

/* What is over the quota goes; and what else would have to for `more` bytes is enough. False: it is not. */
static bool could_keep_host_quota(struct cs_store *s, struct account *a, uint64_t more, enum host_turn last)
{
    uint64_t most = most_for_quota(s, 0);
    if (!drain_host(s, a, 0, last, &most))
        return false;
    uint64_t excess = quota_excess(a->used[RANK_HOST], more, a->limit[RANK_HOST]),
             blocks = (excess + s->stride - 1) / s->stride;
    return enough_on_host_locked(s, a, blocks, last) >= blocks;
}

static void keep_host_quota(struct cs_store *s, struct account *a, uint64_t more, enum host_turn last,
                            uint64_t most)
{
    if (could_keep_host_quota(s, a, more, last))
        (void)drain_host(s, a, more, last, &most);
}

/* As many blocks could be free. */
static bool enough_blocks(struct cs_store *s, uint64_t n, enum host_turn last)
{
    uint64_t missing = s->host.n_free < n ? n - s->host.n_free : 0;
    return enough_on_host_locked(s, NULL, missing, last) >= missing;
}

bool room_for_host_locked(struct cs_store *s, uint64_t n, enum host_turn last, struct account *account)
{
    if (!enough_blocks(s, n, last))
        return false;
    keep_host_quota(s, account, n * s->stride, last, most_for_quota(s, n));
    while (s->host.n_free < n) {
        struct span *victim = room_host_victim_locked(s, NULL, last);
        if (!victim)
            return false;
        evict_from_host(s, victim, CS_GONE_EVICTED);
    }
    return true;
}

enum room room_to_copy_locked(struct cs_store *s, const struct span *sp, enum host_turn last)
{
    struct account *a = sp->account;
    uint64_t missing = (uint64_t)sp->n_pages * s->stride;
    if (quota_never_fits(missing, a->limit[RANK_HOST]))
        return ROOM_NONE_OF_ITS_OWN;
    for (uint32_t i = 0; i < sp->n_pages; i++)
        missing -= sp->host[i] != ARENA_NO_PAGE ? s->stride : 0;
    if (!could_keep_host_quota(s, a, missing, last))
        return ROOM_NONE_OF_ITS_OWN;
    if (!enough_blocks(s, sp->n_pages, last))
        return ROOM_NONE;
    uint64_t most = most_for_quota(s, sp->n_pages);
    if (!drain_host(s, a, missing, last, &most))
        return ROOM_NONE_OF_ITS_OWN;
    return room_for_host_locked(s, sp->n_pages, last, a) ? ROOM_MADE : ROOM_NONE;
}

void room_forget_locked(struct cs_store *s, struct span *sp)
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

bool room_purge_locked(struct cs_store *s, struct span *sp)
{
    if (sp->n_loading > 0 || sp->host_pins > 0 || sp->disk == SPAN_DISK_WRITING ||
        sp->disk == SPAN_DISK_COPYING)
        return false;
    if (index_waits(sp))
        writeback_cancel_locked(s, sp);
    leave_host(s, sp, CS_GONE_DELETED);
    husk_delete(s, sp, true);
    if (sp->disk == SPAN_DISK_DURABLE) {
        if (sp->parent && sp->parent->n_disk_children == 1) /* what it stands for goes */
            husk_delete(s, sp->parent, true);
        s->tier->admin->purge(s->disk, sp->id);
        room_drop_record_locked(s, sp, CS_GONE_DELETED); /* has been deleted already */
    }
    leave_device(s, sp, CS_GONE_DELETED);
    sp->lost = CS_MISS_EVICTED;
    index_requeue_locked(&s->index, sp);
    room_settle_span_locked(s, sp);
    return true;
}

static uint64_t evict_from_disk(struct cs_store *s, struct span *sp, enum cs_gone why)
{
    uint64_t bytes = sp->disk_bytes ? sp->disk_bytes : 1;
    room_drop_record_locked(s, sp, why);
    count_evicted_disk(s, sp);
    sp->lost = CS_MISS_EVICTED;
    room_settle_span_locked(s, sp);
    return bytes;
}

/* At most *most records of the account leave the disk until it could have `more` bytes there. False: some of
 * it is left. */
static bool drain_disk(struct cs_store *s, struct account *a, uint64_t more, uint64_t *most)
{
    while (quota_excess(a->used[RANK_DISK], more, a->limit[RANK_DISK]) > 0) {
        struct span *sp = *most > 0 ? ranks_victim_locked(&s->index, RANK_DISK, a) : NULL;
        if (!sp)
            return false;
        --*most;
        room_count_quota_eviction_locked(s, a);
        (void)evict_from_disk(s, sp, CS_GONE_QUOTA);
    }
    return true;
}

/* Bytes that it had; 0: there is none to evict. */
static uint64_t evict_one_from_disk(struct cs_store *s)
{
    struct span *victim = victim_of_all(s, RANK_DISK);
    return victim ? evict_from_disk(s, victim, CS_GONE_EVICTED) : 0;
}

bool room_evict_disk_locked(struct cs_store *s, uint64_t bytes)
{
    if (!enough_on_disk_locked(s, NULL, bytes))
        return false;
    for (uint64_t freed = 0, more; freed < bytes; freed += more)
        if ((more = evict_one_from_disk(s)) == 0)
            return false;
    return true;
}

/* What is over a budget that has become smaller goes, whether it is enough or not; `bytes` could be free. */
static bool enough_disk(struct cs_store *s, uint64_t bytes)
{
    while (s->tier->free_bytes(s->disk) < 0)
        if (evict_one_from_disk(s) == 0)
            return false;
    int64_t missing = (int64_t)bytes - s->tier->free_bytes(s->disk);
    return missing <= 0 || enough_on_disk_locked(s, NULL, (uint64_t)missing);
}

bool room_for_disk_locked(struct cs_store *s, uint64_t bytes)
{
    if (!enough_disk(s, bytes))
        return false;
    while (s->tier->free_bytes(s->disk) < (int64_t)bytes)
        if (evict_one_from_disk(s) == 0)
            return false;
    return true;
}

enum room room_for_record_locked(struct cs_store *s, const struct span *sp, uint64_t bytes)
{
    struct account *a = sp->account;
    uint64_t most = most_for_quota(s, 1);
    if (quota_never_fits(bytes, a->limit[RANK_DISK]) || !drain_disk(s, a, 0, &most) ||
        !enough_on_disk_locked(s, a, quota_excess(a->used[RANK_DISK], bytes, a->limit[RANK_DISK])))
        return ROOM_NONE_OF_ITS_OWN;
    if (!enough_disk(s, bytes))
        return ROOM_NONE;
    if (!drain_disk(s, a, bytes, &most))
        return ROOM_NONE_OF_ITS_OWN;
    return room_for_disk_locked(s, bytes) ? ROOM_MADE : ROOM_NONE;
}

/* ---- quotas ------------------------------------------------------------------------------------------ */

void room_count_quota_drop_locked(struct cs_store *s, struct account *account)
{
    s->totals.dropped_quota++;
    account->dropped++;
    events_note_locked(s, EVENT_QUOTA, &account->id, 0, 0);
}

static void trim(struct cs_store *s, struct account *a, uint64_t most)
{
    a->n_sequences++; /* it outlives its last record */
    if (a->over[RANK_DEVICE])
        keep_device_quota(s, a, 0, false, most);
    if (a->over[RANK_HOST])
        (void)drain_host(s, a, 0, HOST_TURN_REST, &most);
    if (a->over[RANK_DISK])
        (void)drain_disk(s, a, 0, &most);
    a->n_sequences--;
    index_account_settle_locked(&s->index, a);
}

void room_trim_locked(struct cs_store *s, struct account *account)
{
    trim(s, account, most_for_quota(s, 0));
}

void room_settle_and_trim_locked(struct cs_store *s, struct span *sp)
{
    struct account *account = sp->account;
    account->n_sequences++;
    room_settle_span_locked(s, sp);
    account->n_sequences--;
    trim(s, account, most_for_quota(s, 0));
}

bool room_trim_some_locked(struct cs_store *s)
{
    uint64_t before = s->totals.evicted_quota, n = 0;
    for (int t = 0; t < RANK_TIERS; t++)
        for (struct account *a = s->index.accounts.over[t], *next; a && n < TRIM_AT_ONCE; a = next) {
            next = a->over_next[t];
            trim(s, a, TRIM_AT_ONCE - n);
            n = s->totals.evicted_quota - before;
        }
    return n >= TRIM_AT_ONCE;
}
