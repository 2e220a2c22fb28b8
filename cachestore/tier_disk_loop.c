/*
 * The I/O thread of the disk tier.
 *
 * One turn takes the inbox, ends what the catalogue has committed, begins reads, then writes,
 * then a flush if one is due (tier_disk_flush.c), and sleeps in the engine until a request completes,
 * somebody wakes it or the flush timer runs out.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cachestore/tier_disk_impl.h"

uint64_t tier_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- records' ends ----------------------------------------------------------------------------------- */

void tier_record_end(struct tier_disk *t, struct disk_record *rec, bool keep_chunks)
{
    pthread_mutex_lock(&t->lock);
    bool purge = rec->purge && !rec->purge_done;
    if (purge && rec->n_runs > 0) {
        pthread_mutex_unlock(&t->lock);
        if (tier_purge_begin(t, rec, keep_chunks))
            return;
        pthread_mutex_lock(&t->lock);
    }
    if (rec->purge)
        tier_asked_done(t, rec->purge_done ? rec->purge_ok : rec->n_runs == 0);
    if (rec->counted && !keep_chunks)
        atomic_fetch_sub(&t->committed, (int64_t)rec->bytes);
    if (!rec->counted && keep_chunks)
        atomic_fetch_add(&t->committed, (int64_t)rec->bytes);
    rec->counted = false;
    tier_record_remove(t, rec);
    if (atomic_load(&rec->deleted) && !rec->delete_seen) { /* still in the inbox */
        struct disk_record **at = &t->in_deletes;
        while (*at != rec)
            at = &(*at)->list_next;
        *at = rec->list_next;
    }
    pthread_mutex_unlock(&t->lock);
    t->n_dying -= rec->dying;
    if (rec->n_runs > 0 && !keep_chunks) {
        volumes_release(&t->volumes, rec->runs, rec->n_runs);
        volumes_trim(&t->volumes);
    }
    tier_record_free(rec);
}

void tier_write_end(struct tier_disk *t, struct tier_write *w, enum tier_result result)
{
    uint64_t bytes = tier_disk_record_bytes(t, w->record.kind, w->record.n_pages);
    if (result == TIER_EIO)
        atomic_fetch_add(&t->stats.io_errors, 1);
    free(w->tier_notes);
    atomic_fetch_sub(&t->stats.notes_pending, w->tier_notes_bytes);
    w->durable(w->ctx, w, result);
    atomic_fetch_sub(&t->pending, bytes);
}

void tier_row_end(struct tier_disk *t, struct row_op *row, bool ok)
{
    if (row->pin)
        tier_asked_done(t, ok);
    atomic_fetch_sub(&t->pending, row->len);
    if (!row->pin && !row->quota && row->value != NULL)
        atomic_fetch_sub(&t->stats.notes_pending, row->len);
    tier_row_op_free(row);
}

/* A write that ends without a row. */
void tier_transfer_abandon(struct transfer *x, enum tier_result result, bool keep_chunks)
{
    struct tier_disk *t = x->t;
    struct tier_write *w = x->w;
    tier_record_end(t, x->rec, keep_chunks);
    transfer_free(x);
    tier_write_end(t, w, result);
}

/* ---- writes ------------------------------------------------------------------------------------------ */

void tier_write_landed(struct transfer *x)
{
    struct tier_disk *t = x->t;
    struct transfer **at = &t->writing;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    x->next = NULL;
    t->writing_bytes -= x->rec->bytes;
    /* What has landed now is not covered by a sync that began before. */
    for (uint32_t i = 0; i < x->rec->n_runs; i++)
        t->volumes.volume[x->rec->runs[i].volume].dirty = true;
    if (x->error != 0) {
        tier_say_write_failed(t, x->error);
        tier_transfer_abandon(x, x->error == -ENOSPC ? TIER_ENOSPC : TIER_EIO, x->error != -ENOSPC);
        return;
    }
    if (t->cancel_all || x->rec->delete_seen) {
        tier_transfer_abandon(x, TIER_CANCELLED, false);
        return;
    }
    x->rec->state = REC_WRITTEN;
    t->written_bytes += x->rec->bytes;
    *t->written_tail = x;
    t->written_tail = &x->next;
}

/* Why a write is not begun; TIER_OK: it is. */
static enum tier_result write_refusal(struct tier_disk *t, const struct disk_record *rec)
{
    if (t->cancel_all || rec->delete_seen)
        return TIER_CANCELLED;
    int catalog = atomic_load(&t->catalog_state);
    if (catalog == CATALOG_FINE)
        return TIER_OK;
    t->retry = true;
    return catalog == CATALOG_FULL ? TIER_EFULL : TIER_EIO;
}

/* Somebody has asked for deletes since the inbox was taken: the next turn has them. */
static bool deletes_wait(struct tier_disk *t)
{
    pthread_mutex_lock(&t->lock);
    bool any = t->in_deletes != NULL;
    pthread_mutex_unlock(&t->lock);
    return any;
}

/* Finds room and begins the data of one write. false: it must wait for chunks. */
static bool write_begin(struct tier_disk *t, struct tier_write *w)
{
    pthread_mutex_lock(&t->lock);
    struct disk_record *rec = tier_record_find(t, w->record.id);
    pthread_mutex_unlock(&t->lock);
    if (rec == NULL || rec->state != REC_QUEUED) {
        tier_write_end(t, w, TIER_EIO);
        return true;
    }
    enum tier_result refusal = write_refusal(t, rec);
    if (refusal != TIER_OK) {
        tier_record_end(t, rec, false);
        tier_write_end(t, w, refusal);
        return true;
    }
    uint32_t n_chunks = (uint32_t)(rec->bytes / t->chunk_bytes), n_runs = 0;
    struct fmt_record_run *runs = malloc(n_chunks * sizeof *runs);
    int rc = runs == NULL ? -ENOMEM : volumes_alloc(&t->volumes, n_chunks, runs, &n_runs);
    if (rc == 0 && tier_record_set_runs(rec, runs, n_runs) != CS_OK) {
        volumes_release(&t->volumes, runs, n_runs);
        rc = -ENOMEM;
    }
    free(runs);
    if (rc == -ENOSPC) {
        if (volumes_used_bytes(&t->volumes) + rec->bytes <= t->volumes.limit_bytes)
            tier_say_write_failed(t, rc);
        if (t->n_dying == 0)
            foreign_evict(t, rec->bytes);
        if (t->n_dying > 0 || deletes_wait(t))
            return false;
    }
    enum tier_result result = rc == 0 ? TIER_OK : rc == -ENOSPC ? TIER_ENOSPC : TIER_EIO;
    struct transfer *x = NULL;
    if (result == TIER_OK)
        result = move_write_begin(t, rec, w, &x);
    if (result != TIER_OK) {
        tier_record_end(t, rec, false);
        tier_write_end(t, w, result);
        return true;
    }
    rec->state = REC_WRITING;
    x->next = t->writing;
    t->writing = x;
    t->writing_bytes += rec->bytes;
    return true;
}

/* true: there is more to begin at once. A turn begins TURN_BYTES only, because it hashes them: reads that
 * have come in meanwhile go first. */
static bool writes_begin(struct tier_disk *t)
{
    enum { TURN_BYTES = 8 << 20 };
    /* Enough begun that the device never waits for a header to be made, little enough that memory stays
     * small. */
    uint64_t window = t->inflight_bytes / 2, before = t->writing_bytes;
    bool idle = before == 0;
    while (t->writes != NULL && (t->writing_bytes == 0 || t->writing_bytes < window)) {
        if (t->writing_bytes - before >= TURN_BYTES)
            return true;
        struct tier_write *w = t->writes, *next = w->tier_next;
        if (!write_begin(t, w))
            return false;
        t->writes = next;
        if (next == NULL)
            t->writes_tail = &t->writes;
        if (idle && t->writing_bytes > 0) { /* it has something to do while the rest is hashed */
            idle = false;
            io_start(t->io);
        }
    }
    return false;
}

/* ---- the I/O thread ---------------------------------------------------------------------------------- */

static void touches_take(struct tier_disk *t, struct touch *touches, size_t n)
{
    struct touch *all = n == 0 ? NULL : realloc(t->touches, (t->n_touches + n) * sizeof *all);
    if (all != NULL) {
        memcpy(all + t->n_touches, touches, n * sizeof *all);
        t->touches = all;
        t->n_touches += n;
    }
    free(touches);
}

static void inbox_take(struct tier_disk *t)
{
    pthread_mutex_lock(&t->lock);
    t->io_sleeps = false;
    struct tier_read *reads = t->in_reads;
    t->in_reads = NULL;
    t->in_reads_tail = &t->in_reads;
    if (t->in_writes != NULL) {
        *t->writes_tail = t->in_writes;
        t->writes_tail = t->in_writes_tail;
        t->in_writes = NULL;
        t->in_writes_tail = &t->in_writes;
    }
    if (t->in_rows != NULL) {
        *t->rows_tail = t->in_rows;
        t->rows_tail = t->in_rows_tail;
        t->in_rows = NULL;
        t->in_rows_tail = &t->in_rows;
    }
    struct disk_record *deletes = t->in_deletes;
    t->in_deletes = NULL;
    struct erase *erases = t->in_erases;
    t->in_erases = NULL;
    struct touch *touches = t->in_touches;
    size_t n_touches = t->n_in_touches;
    t->in_touches = NULL;
    t->n_in_touches = t->room_in_touches = 0;
    struct group *ended = t->from_catalog;
    t->from_catalog = NULL;
    t->kick = t->kick || t->in_kick;
    t->in_kick = false;
    t->closing = t->in_close;
    pthread_mutex_unlock(&t->lock);

    t->reads = reads; /* those of the last turn have all begun */
    touches_take(t, touches, n_touches);
    bool foreign = false;
    for (struct disk_record *rec = deletes, *next; rec != NULL; rec = next) {
        next = rec->list_next;
        foreign = foreign || rec->foreign;
        tier_delete_take(t, rec);
    }
    if (foreign)
        foreign_forget_deleted(t);
    tier_erases_begin(t, erases);
    for (struct group *g = ended, *next; g != NULL; g = next) {
        next = g->next;
        if (g == &t->delete_group) {
            tier_deletes_end(t, g);
        } else {
            tier_flush_end(t, g);
            free(g);
        }
    }
    if (ended != NULL) {
        uint64_t limit = tier_volume_limit(t);
        atomic_store(&t->limit, (int64_t)limit);
        if (limit != t->volumes.limit_bytes)
            volumes_set_limit(&t->volumes, limit);
    }
}

/* Past the deadline of close: what has not begun ends here; what is in flight must still be waited for. */
static void cancel_everything(struct tier_disk *t)
{
    struct transfer *x;
    t->cancel_all = true;
    while ((x = t->written) != NULL) {
        t->written = x->next;
        tier_transfer_abandon(x, TIER_CANCELLED, false);
    }
    t->written_tail = &t->written;
    t->written_bytes = 0;
    struct row_op *row;
    while ((row = t->rows) != NULL) {
        t->rows = row->next;
        tier_row_end(t, row, false);
    }
    t->rows_tail = &t->rows;
    t->n_touches = 0;
    if (t->deletes_at_ms > 0) /* the catalogue cannot be written */
        t->row_deletes = NULL;
}

static bool all_done(const struct tier_disk *t)
{
    return t->writes == NULL && t->writing == NULL && !tier_flush_has_work(t) && !t->flushing &&
           !t->deleting && t->row_deletes == NULL && io_pending(t->io) == 0;
}

static int sleep_ms(struct tier_disk *t)
{
    uint64_t until = tier_say_due_ms(t), now = tier_now_ms();
    if (t->flush_timer && !t->flushing && t->flush_at_ms < until)
        until = t->flush_at_ms;
    if (t->row_deletes != NULL && !t->deleting && t->deletes_at_ms < until)
        until = t->deletes_at_ms;
    if (t->closing && !t->cancel_all && t->close_at_ms < until)
        until = t->close_at_ms;
    if (until == UINT64_MAX)
        return -1;
    return until <= now ? 0 : until - now > 3600000 ? 3600000 : (int)(until - now);
}

static void publish_counters(struct tier_disk *t)
{
    uint64_t sqes, submissions;
    io_counters(t->io, &sqes, &submissions);
    atomic_store_explicit(&t->stats.sqes, sqes, memory_order_relaxed);
    atomic_store_explicit(&t->stats.submissions, submissions, memory_order_relaxed);
    atomic_store_explicit(&t->stats.volume_bytes, volumes_backed_bytes(&t->volumes), memory_order_relaxed);
}

static int engine_start(struct tier_disk *t)
{
    struct io_engine *engine;
    char reason[sizeof t->start_reason] = "";
    int rc = t->engine_open(t->engine_kind, &engine, reason, sizeof reason);
    struct io *io = rc == 0 ? io_open(engine, t->inflight_bytes) : NULL;
    pthread_mutex_lock(&t->lock);
    t->io = io;
    t->io_started = io != NULL ? 1 : -1;
    memcpy(t->start_reason, reason, sizeof reason);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return io != NULL ? 0 : -1;
}

void *tier_io_main(void *arg)
{
    struct tier_disk *t = arg;
    if (engine_start(t) != 0)
        return NULL;
    /* The opener owns everything until it serves; it says so through the inbox. */
    pthread_mutex_lock(&t->lock);
    while (t->io_started == 1)
        pthread_cond_wait(&t->changed, &t->lock);
    bool serves = t->io_started == 2;
    pthread_mutex_unlock(&t->lock);
    while (serves) {
        inbox_take(t);
        if (t->closing && !t->cancel_all && tier_now_ms() >= t->close_at_ms && !all_done(t))
            cancel_everything(t);
        move_reads_begin(t);
        bool more = writes_begin(t);
        tier_say_buffered(t); /* the first volume may just have been made */
        foreign_fit(t);
        tier_deletes_send(t);
        if (tier_flush_due(t) || tier_flush_retry_due(t))
            tier_flush_begin(t);
        if (t->kick && !t->flushing && t->writes == NULL && t->writing == NULL && !tier_flush_has_work(t))
            t->kick = false;
        publish_counters(t);
        tier_say_due(t, false);
        pthread_mutex_lock(&t->lock);
        bool inbox_empty = t->in_reads == NULL && t->in_writes == NULL && t->in_rows == NULL &&
                           t->in_deletes == NULL && t->in_erases == NULL && t->n_in_touches == 0 &&
                           t->from_catalog == NULL && !t->in_kick && t->in_close == t->closing;
        bool quit = inbox_empty && t->closing && all_done(t);
        t->io_sleeps = inbox_empty && !more;
        bool idle = t->in_deletes == NULL && t->row_deletes == NULL && !t->deleting && t->n_dying == 0;
        if ((idle && !t->deletes_idle) || t->deletes_at_ms > 0) /* somebody may wait for it in vain */
            pthread_cond_broadcast(&t->changed);
        t->deletes_idle = idle;
        pthread_mutex_unlock(&t->lock);
        if (quit)
            break;
        io_run(t->io, inbox_empty && !more ? sleep_ms(t) : 0);
    }
    tier_say_due(t, true);
    io_close(t->io);
    return NULL;
}
