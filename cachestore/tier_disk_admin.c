/*
 * What the disk tier does for who looks after a store while it is open: says where a record lies, deletes for
 * good, pins.
 *
 * Deleting for good must hold against a rebuild, which believes record headers. A purged record's row goes as
 * any other's; then, before its chunks are free, its header is zeroed and the volume synced, so that nobody
 * else's bytes can be meant. The same is done for a header in a free chunk, which a record left that was
 * evicted before: the chunk is taken for as long, and writes that find no room wait for it meanwhile.
 * Whoever asked counts them: what is asked and not done, and what failed.
 *
 *   purge: DURABLE --> row deleted --> no reader --> WRITING zeros --> SYNCING --> gone, chunks free
 *   erase: free chunk --> claimed ---------------------^
 *
 * Threads: the functions of tier_disk.h on any; the rest on the I/O thread.
 */
#include <stdlib.h>
#include <string.h>

#include "cachestore/tier_disk_impl.h"

struct erase {
    struct io_op op;
    struct iovec iov;
    struct tier_disk *t;
    struct erase *next;
    struct disk_record *rec; /* NULL: a chunk that was free */
    struct fmt_record_run head;
    uint32_t header_bytes;
    bool keep_chunks;
    uint8_t *zeros;
    struct erase *group; /* written, and covered by the sync under way */
};

/* ---- any thread -------------------------------------------------------------------------------------- */

int tier_disk_locate(struct tier_disk *t, struct record_id id, struct tier_place *out)
{
    pthread_mutex_lock(&t->lock);
    const struct disk_record *rec = tier_record_find(t, id);
    bool found = rec != NULL && rec->state >= REC_DURABLE && !atomic_load(&rec->deleted);
    if (found)
        *out = (struct tier_place){.volume = rec->runs[0].volume, .first_chunk = rec->runs[0].first_chunk};
    pthread_mutex_unlock(&t->lock);
    return found ? CS_OK : CS_ENOTFOUND;
}

/* One that is not on its way out. What else is told of them does not change from open on. */
static bool is_foreign(const struct disk_record *rec)
{
    return rec->foreign && !atomic_load(&rec->deleted);
}

uint32_t tier_disk_foreign(struct tier_disk *t, uint64_t *cursor, struct tier_foreign *out, uint32_t n)
{
    enum { HOLD_BUCKETS = 4096 };
    uint32_t found = 0;
    pthread_mutex_lock(&t->lock);
    uint64_t end = *cursor + HOLD_BUCKETS;
    for (; *cursor < t->table_size && *cursor < end; ++*cursor) {
        uint32_t here = 0;
        for (const struct disk_record *rec = t->table[*cursor]; rec != NULL; rec = rec->table_next)
            here += is_foreign(rec);
        if (here > n - found && found > 0)
            break;
        for (const struct disk_record *rec = t->table[*cursor]; rec != NULL && found < n;
             rec = rec->table_next)
            if (is_foreign(rec))
                out[found++] = (struct tier_foreign){.id = rec->id,
                                                     .place = {rec->runs[0].volume, rec->runs[0].first_chunk},
                                                     .used_unix = rec->used_unix};
    }
    if (*cursor >= t->table_size)
        *cursor = UINT64_MAX;
    pthread_mutex_unlock(&t->lock);
    return found;
}

void tier_disk_purge(struct tier_disk *t, struct record_id id)
{
    pthread_mutex_lock(&t->lock);
    struct disk_record *rec = tier_record_find(t, id);
    if (rec != NULL && !rec->purge) {
        rec->purge = true;
        atomic_fetch_add(&t->asked, 1);
    }
    pthread_mutex_unlock(&t->lock);
    tier_disk_delete(t, id);
}

/* The row of a record that is gone may come back in a power cut until something behind it is synced. */
static int bury(struct tier_disk *t, struct record_id id)
{
    struct row_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CS_ENOMEM;
    op->owner = op->id = id;
    op->pin = op->erased = true;
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->asked, 1);
    t->in_kick = true;
    tier_row_push(t, op);
    return CS_OK;
}

int tier_disk_erase(struct tier_disk *t, struct record_id id, const struct tier_place *place,
                    uint32_t header_bytes)
{
    pthread_mutex_lock(&t->lock);
    const struct disk_record *rec = tier_record_find(t, id);
    bool ours = rec != NULL && !rec->foreign && !atomic_load(&rec->deleted);
    pthread_mutex_unlock(&t->lock);
    if (ours)
        return CS_EBUSY;
    if (rec != NULL) {
        tier_disk_purge(t, id);
        return bury(t, id);
    }
    if (header_bytes == 0 || header_bytes > t->chunk_bytes || header_bytes % FMT_RECORD_ALIGN != 0)
        return CS_EINVAL;
    struct erase *e = calloc(1, sizeof *e);
    if (e == NULL)
        return CS_ENOMEM;
    e->t = t;
    e->head = (struct fmt_record_run){place->volume, place->first_chunk, 1};
    e->header_bytes = header_bytes;
    pthread_mutex_lock(&t->lock);
    e->next = t->in_erases;
    t->in_erases = e;
    atomic_fetch_add(&t->asked, 1);
    tier_unlock_and_wake(t);
    return bury(t, id);
}

int tier_disk_pin(struct tier_disk *t, struct record_id id, bool pinned)
{
    struct row_op *op = calloc(1, sizeof *op);
    if (op == NULL || (pinned && (op->value = calloc(1, 1)) == NULL)) {
        free(op);
        return CS_ENOMEM;
    }
    op->owner = op->id = id;
    op->pin = true;
    pthread_mutex_lock(&t->lock);
    struct disk_record *rec = tier_record_find(t, id);
    if (rec == NULL || atomic_load(&rec->deleted)) {
        pthread_mutex_unlock(&t->lock);
        tier_row_op_free(op);
        return CS_ENOTFOUND;
    }
    rec->pinned = true; /* it may have a row from now on */
    atomic_fetch_add(&t->asked, 1);
    t->in_kick = true;
    tier_row_push(t, op);
    return CS_OK;
}

void tier_disk_asked(const struct tier_disk *t, uint64_t *asked, uint64_t *failed)
{
    *asked = atomic_load(&t->asked);
    *failed = atomic_load(&t->failed);
}

int tier_disk_raise_epoch(struct tier_disk *t)
{
    char err[160];
    struct store_file raised = t->store;
    raised.purge_epoch = atomic_load(&t->purge_epoch) + 1;
    int rc = store_file_update(t->dir_fd, &raised, err, sizeof err);
    if (rc == CS_OK)
        atomic_store(&t->purge_epoch, raised.purge_epoch);
    else
        tier_log(t, CS_LOG_WARN, "disk cache: %s", err);
    return rc;
}

int tier_disk_dir(const struct tier_disk *t, uint8_t uuid[16], uint32_t *chunk_bytes)
{
    memcpy(uuid, t->store.uuid, sizeof t->store.uuid);
    *chunk_bytes = t->chunk_bytes;
    return t->dir_fd;
}

/* ---- the I/O thread ---------------------------------------------------------------------------------- */

void tier_asked_done(struct tier_disk *t, bool ok)
{
    if (!ok)
        atomic_fetch_add(&t->failed, 1);
    atomic_fetch_sub(&t->asked, 1);
}

static void erase_end(struct erase *e, bool ok)
{
    struct tier_disk *t = e->t;
    if (!ok && e->rec != NULL)
        atomic_fetch_add(&t->stats.io_errors, 1);
    if (e->rec != NULL) {
        e->rec->purge_done = true;
        e->rec->purge_ok = ok;
        tier_record_end(t, e->rec, e->keep_chunks);
    } else {
        volumes_release(&t->volumes, &e->head, 1);
        volumes_trim(&t->volumes);
        t->n_dying--;
        tier_asked_done(t, ok);
    }
    free(e->zeros);
    free(e);
}

static void sync_begin(struct tier_disk *t);

static void sync_done(struct io_op *op, int result)
{
    struct erase *first = op->ctx;
    struct tier_disk *t = first->t;
    t->erase_syncing = false;
    if (result < 0) /* the kernel says it once: a flush would not hear of it */
        tier_sync_failed(t);
    for (struct erase *e = first, *next; e != NULL; e = next) {
        next = e->group;
        erase_end(e, result >= 0);
    }
    sync_begin(t);
}

/* One sync for all that have been written in the volume of the first. */
static void sync_begin(struct tier_disk *t)
{
    struct erase *first = t->erased;
    if (t->erase_syncing || first == NULL)
        return;
    struct erase *last = first;
    t->erased = first->next;
    first->group = NULL;
    for (struct erase **at = &t->erased, *e; (e = *at) != NULL;) {
        if (e->head.volume != first->head.volume) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->group = NULL;
        last->group = e;
        last = e;
    }
    t->erase_syncing = true;
    first->op = (struct io_op){
        .kind = IO_SYNC, .fd = t->volumes.volume[first->head.volume].fd, .done = sync_done, .ctx = first};
    io_add(t->io, &first->op);
    atomic_fetch_add(&t->stats.syncs, 1);
}

static void zeros_written(struct io_op *op, int result)
{
    struct erase *e = op->ctx;
    if (result < 0) {
        erase_end(e, false);
        return;
    }
    e->next = e->t->erased;
    e->t->erased = e;
    sync_begin(e->t);
}

static void erase_begin(struct erase *e)
{
    struct tier_disk *t = e->t;
    e->zeros = aligned_alloc(FMT_RECORD_ALIGN, e->header_bytes);
    if (e->zeros == NULL) {
        erase_end(e, false);
        return;
    }
    memset(e->zeros, 0, e->header_bytes);
    e->iov = (struct iovec){.iov_base = e->zeros, .iov_len = e->header_bytes};
    e->op = (struct io_op){.kind = IO_WRITE,
                           .fd = t->volumes.volume[e->head.volume].fd,
                           .offset = (uint64_t)e->head.first_chunk * t->chunk_bytes,
                           .iov = &e->iov,
                           .n_iov = 1,
                           .bytes = e->header_bytes,
                           .done = zeros_written,
                           .ctx = e};
    io_add(t->io, &e->op);
}

bool tier_purge_begin(struct tier_disk *t, struct disk_record *rec, bool keep_chunks)
{
    struct erase *e = calloc(1, sizeof *e);
    if (e == NULL)
        return false;
    e->t = t;
    e->rec = rec;
    e->head = rec->runs[0];
    e->header_bytes = rec->header_bytes;
    e->keep_chunks = keep_chunks;
    erase_begin(e);
    return true;
}

void tier_erases_begin(struct tier_disk *t, struct erase *erases)
{
    for (struct erase *e = erases, *next; e != NULL; e = next) {
        next = e->next;
        struct fmt_record_run head = e->head;
        if (!volumes_is_free(&t->volumes, head.volume, head.first_chunk)) {
            /* Somebody's by now, who will write over it, or nothing at all. */
            tier_asked_done(t, true);
            free(e);
            continue;
        }
        volumes_claim(&t->volumes, &head, 1);
        t->n_dying++;
        erase_begin(e);
    }
}
