/*
 * Flushes of the disk tier, on the I/O thread.
 *
 * A flush is a group: the records whose data has landed since the last one, and the note rows and use times
 * that have come in. Volumes are synced, then the catalogue thread commits the group as one batch and hands
 * it back; one flush is under way at a time. Its batch is synced to RocksDB's log as well (0.5 ms once a
 * second buys that "durable" also means power cuts). Deletes are committed in batches of their own, unsynced
 * and at once, because writes wait for the chunks: a power cut may bring a deleted row back, and then the
 * chunk's later owner wins at open, or the checksums of the stale record fail.
 *
 * A failed sync fails everything since the last good one: records in the group, records landed meanwhile and
 * records whose data is in flight. Their chunks are not used again before the next open, because nobody knows
 * what is in them.
 */
#include <errno.h>
#include <stdlib.h>

#include "cachestore/tier_disk_impl.h"

/* Once more by the timer, at this place of t->rows. Returns the place behind it. */
static struct row_op **row_again(struct tier_disk *t, struct row_op **at, struct row_op *row)
{
    t->kick = false; /* or it would be tried without a pause */
    row->next = *at;
    if (row->next == NULL)
        t->rows_tail = &row->next;
    *at = row;
    return &row->next;
}

void tier_group_send(struct tier_disk *t, struct group *g)
{
    pthread_mutex_lock(&t->lock);
    g->next = NULL;
    *t->to_catalog_tail = g;
    t->to_catalog_tail = &g->next;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void tier_sync_failed(struct tier_disk *t)
{
    struct transfer *x;
    tier_say_sync_failed(t);
    if (t->syncing != NULL)
        t->syncing->sync_failed = true;
    while ((x = t->written) != NULL) {
        t->written = x->next;
        tier_transfer_abandon(x, TIER_EIO, true);
    }
    t->written_tail = &t->written;
    t->written_bytes = 0;
    for (x = t->writing; x != NULL; x = x->next)
        x->error = x->error != 0 ? x->error : -EIO;
}

/* Takes the rows out whose span's delete has been seen: it may reach the catalogue before them. */
static void rows_of_deleted_drop(struct tier_disk *t, struct group *g)
{
    for (struct row_op **at = &g->rows, *row; (row = *at) != NULL;) {
        if (row->quota || row->erased) {
            at = &row->next;
            continue;
        }
        pthread_mutex_lock(&t->lock);
        const struct disk_record *owner = tier_record_find(t, row->owner);
        pthread_mutex_unlock(&t->lock);
        if (owner != NULL && !owner->delete_seen) {
            at = &row->next;
            continue;
        }
        *at = row->next;
        tier_row_end(t, row, true);
    }
}

/* The volumes of a group are synced: on to the catalogue, without what failed or was deleted meanwhile. */
static void group_synced(struct tier_disk *t, struct group *g)
{
    struct transfer *keep = NULL, **tail = &keep, *x;
    t->syncing = NULL;
    if (g->sync_failed)
        tier_sync_failed(t);
    while ((x = g->writes) != NULL) {
        g->writes = x->next;
        x->next = NULL;
        if (g->sync_failed) {
            tier_transfer_abandon(x, TIER_EIO, true);
        } else if (t->cancel_all || x->rec->delete_seen) {
            tier_transfer_abandon(x, TIER_CANCELLED, false);
        } else {
            x->rec->state = REC_COMMITTING;
            *tail = x;
            tail = &x->next;
        }
    }
    g->writes = keep;
    rows_of_deleted_drop(t, g);
    free(g->syncs);
    g->syncs = NULL;
    tier_group_send(t, g);
}

static void sync_done(struct io_op *op, int result)
{
    struct group *g = op->ctx;
    if (result < 0)
        g->sync_failed = true;
    if (--g->syncs_left == 0)
        group_synced(g->t, g);
}

bool tier_flush_has_work(const struct tier_disk *t)
{
    return t->written != NULL || t->rows != NULL || t->n_touches > 0;
}

bool tier_flush_due(struct tier_disk *t)
{
    if (t->flushing || !tier_flush_has_work(t)) {
        if (!t->flushing)
            t->flush_timer = false;
        return false;
    }
    uint64_t now = tier_now_ms();
    if (!t->flush_timer) {
        t->flush_timer = true;
        t->flush_at_ms = now + t->flush_interval_ms;
    }
    /* Asked for: as soon as nothing more is on its way to the files. */
    if ((t->kick || t->closing) && t->writing == NULL && (t->writes == NULL || t->n_dying > 0))
        return true;
    return t->written_bytes >= t->flush_bytes || now >= t->flush_at_ms;
}

bool tier_flush_retry_due(const struct tier_disk *t)
{
    return t->retry && !t->flushing && tier_now_ms() >= t->retry_at_ms;
}

void tier_flush_begin(struct tier_disk *t)
{
    uint32_t n_dirty = 0;
    for (uint32_t i = 0; i < t->volumes.n_volumes && t->written != NULL; i++)
        n_dirty += t->volumes.volume[i].dirty;
    struct group *g = calloc(1, sizeof *g);
    struct io_op *syncs = calloc(n_dirty + 1, sizeof *syncs);
    if (g == NULL || syncs == NULL) {
        free(g);
        free(syncs);
        t->flush_at_ms = tier_now_ms() + t->flush_interval_ms; /* once more, later */
        return;
    }
    g->t = t;
    g->writes = t->written;
    t->written = NULL;
    t->written_tail = &t->written;
    t->written_bytes = 0;
    g->rows = t->rows;
    t->rows = NULL;
    t->rows_tail = &t->rows;
    g->touches = t->touches;
    g->n_touches = t->n_touches;
    t->touches = NULL;
    t->n_touches = 0;
    t->flush_timer = t->retry = false;
    t->retry_at_ms = tier_now_ms() + TIER_RETRY_MS;
    t->flushing = true;
    t->syncing = g;
    g->syncs = syncs;
    g->syncs_left = n_dirty;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->volumes.n_volumes && n < n_dirty; i++) {
        struct volume *v = &t->volumes.volume[i];
        if (!v->dirty)
            continue;
        v->dirty = false;
        syncs[n] = (struct io_op){.kind = IO_SYNC, .fd = v->fd, .done = sync_done, .ctx = g};
        io_add(t->io, &syncs[n++]);
        atomic_fetch_add(&t->stats.syncs, 1);
    }
    if (n_dirty == 0)
        group_synced(t, g);
}

void tier_flush_end(struct tier_disk *t, struct group *g)
{
    struct transfer *x;
    t->flushing = false;
    while ((x = g->writes) != NULL) {
        g->writes = x->next;
        struct disk_record *rec = x->rec;
        struct tier_write *w = x->w;
        if (g->result == CS_EFULL) { /* not tried */
            tier_transfer_abandon(x, TIER_EFULL, false);
            continue;
        }
        if (g->result != CS_OK) {
            /* Whether the row is there is unknown: the chunks are neither free nor trusted. */
            tier_transfer_abandon(x, TIER_EIO, true);
            continue;
        }
        rec->state = REC_DURABLE;
        atomic_fetch_add(tier_record_counter(t, rec), 1);
        atomic_fetch_add(
            rec->kind == FMT_RECORD_CHECKPOINT ? &t->stats.checkpoints_written : &t->stats.spans_written, 1);
        atomic_fetch_add(&t->stats.bytes_written, rec->header_bytes + rec->n_pages * t->stride);
        transfer_free(x);
        if (rec->delete_seen)
            tier_delete_take(t, rec);
        tier_write_end(t, w, TIER_OK);
    }
    struct row_op *row, **again = &t->rows; /* before what has come since: the last one of a tenant counts */
    while ((row = g->rows) != NULL) {
        g->rows = row->next;
        if (row->quota && g->result != CS_OK && !t->closing)
            again = row_again(t, again, row);
        else
            tier_row_end(t, row, g->result == CS_OK);
    }
    free(g->touches);
}
