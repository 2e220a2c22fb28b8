/*
 * Deletes of the disk tier, on the I/O thread: what one means depends on how far its record has come; rows go
 * in batches of their own, one under way at a time. A record's chunks are free when the batch with its row
 * has returned and no read of it is in flight. A batch that failed is tried again. It is synced where a
 * record is deleted for good, for a power cut would bring its row back.
 */
#include "cachestore/tier_disk_impl.h"

/* A delete that was asked for: what it means depends on how far the record has come. */
void tier_delete_take(struct tier_disk *t, struct disk_record *rec)
{
    rec->delete_seen = true;
    if (rec->state == REC_QUEUED)
        return; /* ends when its turn comes; it has no chunks */
    if (!rec->dying) {
        rec->dying = true;
        t->n_dying++;
    }
    if (rec->state == REC_DURABLE) {
        rec->list_next = t->row_deletes;
        t->row_deletes = rec;
    } else if (rec->state == REC_WRITTEN) {
        /* Not in a group yet? Then nothing refers to it any more; a group is looked through when it is
         * synced. */
        struct transfer **at = &t->written;
        while (*at != NULL && (*at)->rec != rec)
            at = &(*at)->next;
        struct transfer *x = *at;
        if (x == NULL)
            return;
        *at = x->next;
        if (x->next == NULL)
            t->written_tail = at;
        x->next = NULL;
        t->written_bytes -= rec->bytes;
        tier_transfer_abandon(x, TIER_CANCELLED, false);
    }
}

static bool is_for_good(struct tier_disk *t, const struct disk_record *rec)
{
    pthread_mutex_lock(&t->lock);
    bool purge = rec->purge;
    pthread_mutex_unlock(&t->lock);
    return purge;
}

void tier_deletes_send(struct tier_disk *t)
{
    if (t->deleting || t->row_deletes == NULL || (t->deletes_at_ms > 0 && tier_now_ms() < t->deletes_at_ms))
        return;
    struct group *g = &t->delete_group;
    *g = (struct group){.t = t, .deletes = t->row_deletes};
    t->row_deletes = NULL;
    for (struct disk_record *rec = g->deletes; rec != NULL; rec = rec->list_next)
        g->for_good = g->for_good || is_for_good(t, rec);
    t->deleting = true;
    tier_group_send(t, g);
}

void tier_deletes_end(struct tier_disk *t, struct group *g)
{
    struct disk_record *rec;
    t->deleting = false;
    t->deletes_at_ms = g->result == CS_OK ? 0 : tier_now_ms() + TIER_RETRY_MS;
    while ((rec = g->deletes) != NULL) {
        g->deletes = rec->list_next;
        bool again = !g->for_good && !t->closing && is_for_good(t, rec); /* since: that has to be synced */
        if (g->result == CS_OK && !again) {
            atomic_fetch_sub(tier_record_counter(t, rec), 1);
            rec->state = REC_GONE;
            if (rec->readers == 0)
                tier_record_end(t, rec, false);
        } else if (!t->closing) {
            /* Whether the row is there is unknown, and deleting it again does no harm. At close the row stays
             * and the record comes back with the next open. */
            rec->list_next = t->row_deletes;
            t->row_deletes = rec;
        }
    }
}
