/*
 * Room in the index: spans, their notes, and what the disk tier keeps of each, within one budget. Who is
 * forgotten is chosen by age, for a span costs the same there whatever it is worth: of a tenant that would
 * have more than its share (accounts.h) its own first, then of tenants that have more, then of all.
 *
 * Threads: everything is called with the store's lock held.
 */
#include "cachestore/policy/quota.h"
#include "cachestore/store.h"

/* What the tier will take for what is not on disk yet, and for one more: it does not ask when it takes it. */
static uint64_t tier_memory_to_come(const struct cs_store *s)
{
    uint64_t n = s->index.n_spans - s->index.n_disk_spans + 1;
    return s->disk ? n * TIER_DISK_RECORD_BYTES : 0;
}

struct span *room_index_victim_locked(const struct cs_store *s, const struct account *of)
{
    const struct account *a = of ? NULL : s->index.accounts.over[USE_INDEX];
    for (; a; a = a->over_next[USE_INDEX])
        if (a->oldest)
            return a->oldest;
    return index_first_locked(&s->index, of);
}

uint64_t room_forget_frees_locked(const struct cs_store *s, const struct span *sp)
{
    /* What the tier keeps of a record goes when it is deleted, which is later. */
    uint64_t to_come = s->disk && sp->disk != SPAN_DISK_DURABLE ? TIER_DISK_RECORD_BYTES : 0;
    return index_bytes_of(&s->index, sp) + notes_bytes_of(sp) + to_come +
           accounts_bytes_with_last_span(sp->account);
}

/* By how much the index would be over its budget with `more` bytes. */
static uint64_t index_excess(const struct cs_store *s, uint64_t more)
{
    const struct index *ix = &s->index;
    uint64_t tier = s->disk ? s->tier->memory_bytes(s->disk) : 0;
    uint64_t all = index_memory(ix) + tier + tier_memory_to_come(s),
             excess = quota_excess(all, more, ix->budget);
    return excess == 0 && ix->n_spans >= ix->heap_capacity ? 1 : excess;
}

/* Forgets until there are `more` bytes in the index: those of the account first, as long as it would have
 * more than its share. What the tier keeps of their records is there until those are deleted, and counts as
 * long. False: nobody is left who can go. */
static bool forget_some(struct cs_store *s, uint64_t more, const struct account *a)
{
    while (index_excess(s, more) > 0) {
        bool own = a && quota_excess(a->used[USE_INDEX], more, a->limit[USE_INDEX]) > 0;
        struct span *victim = room_index_victim_locked(s, own ? a : NULL);
        if (!victim)
            return false;
        if (own)
            room_count_quota_eviction_locked(s, victim->account);
        room_forget_locked(s, victim);
    }
    return true;
}

bool room_for_index_locked(struct cs_store *s, uint64_t bytes, const struct account *account)
{
    if (!forget_some(s, 0, NULL))
        return false;
    uint64_t excess = index_excess(s, bytes), own = 0;
    if (excess > 0 && account)
        own = quota_excess(account->used[USE_INDEX], bytes, account->limit[USE_INDEX]);
    if (own > excess)
        own = excess;
    if ((own > 0 && !enough_in_index_locked(s, account, own)) ||
        (excess > own && !enough_in_index_locked(s, NULL, excess)))
        return false;
    return forget_some(s, bytes, account);
}

bool room_for_span_locked(struct cs_store *s, uint64_t bytes, const struct account *account)
{
    for (;;) {
        bool counted = account->counted;
        uint64_t more = counted ? 0 : accounts_bytes_each();
        if (!room_for_index_locked(s, bytes + more, account))
            return false;
        if (account->counted == counted) /* making room may have taken its last span */
            return true;
    }
}
