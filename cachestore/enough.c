/*
 * Whether enough can leave a tier, or the index, before anything does: what goes for a record that does not
 * fit in the end, because all the rest is in use, pinned or on its way, would be lost for nothing.
 *
 * It is a rehearsal. The next victim is set aside, so that what it rests on becomes a candidate as if it had
 * gone, and so on until there is enough or nobody is left; then all are put back. So it costs what is wanted
 * and not what is stored, whatever the answer: where there is too little, few are to be set aside.
 *
 * Threads: everything is called with the store's lock held.
 */
#include "cachestore/store.h"

enum from { FROM_HOST, FROM_DISK, FROM_INDEX };

/* What the parent counts of such children. */
static uint32_t *children_of(struct span *parent, enum from from)
{
    return from == FROM_HOST   ? &parent->n_host_children
           : from == FROM_DISK ? &parent->n_disk_children
                               : &parent->n_children;
}

/* Pinned: no candidate any more. What it has, and who pays for it, is untouched. */
static void set_aside(struct cs_store *s, struct span **aside, struct span *sp, enum from from)
{
    sp->aside_next = *aside;
    *aside = sp;
    if (from == FROM_HOST)
        sp->host_pins++;
    else
        sp->pins++;
    index_requeue_locked(&s->index, sp);
    if (sp->parent) {
        --*children_of(sp->parent, from);
        index_requeue_locked(&s->index, sp->parent);
    }
}

/* The last one first, so parents before what hangs on them. */
static void put_back(struct cs_store *s, struct span *aside, enum from from)
{
    for (struct span *sp = aside, *next; sp; sp = next) {
        next = sp->aside_next;
        sp->aside_next = NULL;
        if (sp->parent) {
            ++*children_of(sp->parent, from);
            index_requeue_locked(&s->index, sp->parent);
        }
        if (from == FROM_HOST)
            sp->host_pins--;
        else
            sp->pins--;
        index_requeue_locked(&s->index, sp);
    }
}

bool enough_on_disk_locked(struct cs_store *s, const struct account *of, uint64_t bytes)
{
    struct span *aside = NULL, *sp;
    uint64_t found = 0;
    while (found < bytes && (sp = ranks_victim_locked(&s->index, RANK_DISK, of)) != NULL) {
        found += sp->disk_bytes ? sp->disk_bytes : 1;
        set_aside(s, &aside, sp, FROM_DISK);
    }
    put_back(s, aside, FROM_DISK);
    return found >= bytes;
}

uint64_t enough_on_host_locked(struct cs_store *s, const struct account *of, uint64_t n, enum host_turn last)
{
    struct accounts *as = &s->index.accounts;
    struct span *aside = NULL, *sp;
    uint64_t found = 0;
    while (found < n && (sp = room_host_victim_locked(s, of, last)) != NULL) {
        found += sp->n_host;
        /* Who has more than its quota is asked first, and only as long. */
        accounts_discharge(as, sp->account, RANK_HOST, sp->n_host * s->stride);
        set_aside(s, &aside, sp, FROM_HOST);
    }
    for (sp = aside; sp; sp = sp->aside_next)
        accounts_charge(as, sp->account, RANK_HOST, sp->n_host * s->stride);
    put_back(s, aside, FROM_HOST);
    return found;
}

bool enough_in_index_locked(struct cs_store *s, const struct account *of, uint64_t bytes)
{
    struct span *aside = NULL, *sp;
    uint64_t found = 0;
    while (found < bytes && (sp = room_index_victim_locked(s, of)) != NULL) {
        found += room_forget_frees_locked(s, sp);
        sp->account->n_spans--;
        set_aside(s, &aside, sp, FROM_INDEX);
    }
    for (sp = aside; sp; sp = sp->aside_next)
        sp->account->n_spans++;
    put_back(s, aside, FROM_INDEX);
    return found >= bytes;
}
