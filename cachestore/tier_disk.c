/*
 * The calls of tier_disk.h and the table of records. A call does what must be exact at once (it counts bytes
 * in the budget, it marks a record deleted), puts the rest into the inbox and wakes the I/O thread if that
 * sleeps.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cachestore/log.h"
#include "cachestore/table.h"
#include "cachestore/tier_disk_impl.h"
#include "formats/note_row.h"

/* ---- the table --------------------------------------------------------------------------------------- */

static size_t table_slot(const struct tier_disk *t, struct record_id id)
{
    /* Sequences count up, so their low bits spread by themselves. */
    return (size_t)(id.sequence ^ id.sequence >> 32) & (t->table_size - 1);
}

struct disk_record *tier_record_find(struct tier_disk *t, struct record_id id)
{
    if (t->table_size == 0)
        return NULL;
    struct disk_record *rec = t->table[table_slot(t, id)];
    while (rec != NULL && !record_id_equal(rec->id, id))
        rec = rec->table_next;
    return rec;
}

/* What the store counts on: when the table grows it has two slots for each record, and it never shrinks. */
_Static_assert(sizeof(struct disk_record) + 2 * sizeof(void *) <= TIER_DISK_RECORD_BYTES,
               "memory of a record");

static int table_grow(struct tier_disk *t)
{
    size_t size = t->table_size == 0 ? 256 : 2 * t->table_size, old_size = t->table_size;
    struct disk_record **old = t->table, **table = table_new(size, sizeof(struct disk_record *));
    if (table == NULL)
        return CS_ENOMEM;
    t->table = table;
    t->table_size = size;
    for (size_t i = 0; i < old_size; i++) {
        for (struct disk_record *rec = old[i], *next; rec != NULL; rec = next) {
            next = rec->table_next;
            struct disk_record **slot = &table[table_slot(t, rec->id)];
            rec->table_next = *slot;
            *slot = rec;
        }
    }
    free(old);
    atomic_fetch_add(&t->stats.memory_bytes, (size - old_size) * sizeof(void *));
    return CS_OK;
}

int tier_record_insert(struct tier_disk *t, struct disk_record *rec)
{
    if (t->n_records >= t->table_size && table_grow(t) != CS_OK && t->table_size == 0)
        return CS_ENOMEM;
    struct disk_record **slot = &t->table[table_slot(t, rec->id)];
    rec->table_next = *slot;
    *slot = rec;
    t->n_records++;
    atomic_fetch_add(&t->stats.memory_bytes, sizeof *rec);
    return CS_OK;
}

void tier_record_remove(struct tier_disk *t, struct disk_record *rec)
{
    struct disk_record **at = &t->table[table_slot(t, rec->id)];
    while (*at != NULL && *at != rec)
        at = &(*at)->table_next;
    if (*at == NULL)
        return;
    *at = rec->table_next;
    t->n_records--;
    atomic_fetch_sub(&t->stats.memory_bytes, sizeof *rec);
}

int tier_table_make(struct tier_disk *t)
{
    return t->table_size == 0 ? table_grow(t) : CS_OK;
}

struct disk_record *tier_record_new(const struct tier_disk *t, struct record_id id, uint32_t kind,
                                    uint32_t n_pages, uint32_t header_bytes, uint32_t n_chunks)
{
    struct disk_record *rec = calloc(1, sizeof *rec);
    if (rec == NULL)
        return NULL;
    rec->id = id;
    rec->kind = (uint8_t)kind;
    rec->n_pages = n_pages;
    rec->header_bytes = header_bytes;
    rec->bytes = (uint64_t)n_chunks * t->chunk_bytes;
    rec->runs = &rec->one;
    return rec;
}

atomic_uint_fast64_t *tier_record_counter(struct tier_disk *t, const struct disk_record *rec)
{
    if (rec->foreign)
        return &t->stats.records_foreign;
    return rec->kind == FMT_RECORD_CHECKPOINT ? &t->stats.checkpoints : &t->stats.spans;
}

int tier_record_set_runs(struct disk_record *rec, const struct fmt_record_run *runs, uint32_t n_runs)
{
    if (n_runs > 1) {
        struct fmt_record_run *copy = malloc(n_runs * sizeof *copy);
        if (copy == NULL)
            return CS_ENOMEM;
        memcpy(copy, runs, n_runs * sizeof *copy);
        rec->runs = copy;
    } else {
        rec->one = runs[0];
        rec->runs = &rec->one;
    }
    rec->n_runs = n_runs;
    return CS_OK;
}

void tier_record_free(struct disk_record *rec)
{
    if (rec == NULL)
        return;
    if (rec->runs != &rec->one)
        free(rec->runs);
    free(rec);
}

/* ---- small ------------------------------------------------------------------------------------------- */

void tier_log(const struct tier_disk *t, enum cs_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(t->log, t->log_ctx, level, format, args);
    va_end(args);
}

void tier_say_buffered(struct tier_disk *t)
{
    if (t->volumes.direct || t->buffered_said)
        return;
    t->buffered_said = true;
    tier_log(t, CS_LOG_INFO,
             "disk cache: O_DIRECT is refused by this file system; volumes are read and written buffered");
}

/* The catalogue has its share, or what its files may take for a while, if that is more: with room for the
 * rows of one more group, because it is looked at when they have been written. */
uint64_t tier_volume_limit(const struct tier_disk *t)
{
    enum { GROUP_SHARE = 8 };
    uint64_t share = t->catalog_share, most = atomic_load(&t->stats.catalog_most);
    if (most + share / GROUP_SHARE > share)
        share = most + share / GROUP_SHARE;
    uint64_t rest =
        t->budget > share + FMT_RECORD_ALIGN ? t->budget - share - FMT_RECORD_ALIGN : 0; /* STORE */
    return rest / t->chunk_bytes * t->chunk_bytes;
}

/* The two enumerations name the same numbers on disk and in memory. */
_Static_assert((int)RECORD_SPAN == (int)FMT_RECORD_SPAN, "kinds");
_Static_assert((int)RECORD_CHECKPOINT == (int)FMT_RECORD_CHECKPOINT, "kinds");
_Static_assert(CS_BOUNDARY_TURN == 0 && CS_BOUNDARY_SYSTEM == 1 && CS_BOUNDARY_BRANCH == 2, "flags");
_Static_assert((unsigned)CS_BOUNDARY_END == FMT_RECORD_FLAGS_MAX, "flags of a checkpoint");

uint64_t tier_disk_record_bytes(const struct tier_disk *t, enum record_kind kind, uint32_t n_pages)
{
    return (uint64_t)fmt_record_chunks(kind, n_pages, t->page_tokens, t->page_bytes, t->chunk_bytes) *
           t->chunk_bytes;
}

int64_t tier_disk_free_bytes(const struct tier_disk *t)
{
    return atomic_load(&t->limit) - atomic_load(&t->committed);
}

struct record_id tier_disk_next_id(struct tier_disk *t)
{
    return (struct record_id){.nonce = t->nonce, .sequence = atomic_fetch_add(&t->sequence, 1)};
}

uint64_t tier_disk_pending_bytes(const struct tier_disk *t)
{
    return atomic_load(&t->pending);
}

uint64_t tier_disk_memory_bytes(const struct tier_disk *t)
{
    return atomic_load(&t->stats.memory_bytes);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

/* Lock held; released on return. */
void tier_unlock_and_wake(struct tier_disk *t)
{
    /* Under the lock: once it is released, the I/O thread may see a close and be gone. */
    if (t->io_sleeps)
        io_wake(t->io);
    t->io_sleeps = false;
    pthread_mutex_unlock(&t->lock);
}

/* Notes as they will lie in a row. What cannot be had is counted. */
static int notes_encode(struct tier_disk *t, const struct cs_note *notes, size_t n_notes, void **out,
                        size_t *len)
{
    size_t data_bytes = 0;
    int rc = CS_OK;
    void *buf = NULL;
    for (size_t i = 0; i < n_notes && rc == CS_OK; i++) {
        data_bytes += notes[i].len;
        if (notes[i].len > FMT_NOTE_BYTES_MAX)
            rc = CS_EINVAL;
    }
    size_t bytes = fmt_notes_bytes(n_notes, data_bytes), at = 0;
    /* Each is in the log, and for a while in a table as well. */
    uint64_t pending = atomic_fetch_add(&t->stats.notes_pending, bytes) + bytes;
    if (rc == CS_OK && atomic_load(&t->stats.catalog_most) + 2 * pending > t->catalog_share)
        rc = CS_EFULL;
    if (rc == CS_OK && (buf = malloc(bytes + 1)) == NULL)
        rc = CS_ENOMEM;
    if (rc != CS_OK) {
        atomic_fetch_sub(&t->stats.notes_pending, bytes);
        atomic_fetch_add(&t->stats.dropped_notes, n_notes);
        return rc;
    }
    for (size_t i = 0; i < n_notes; i++) {
        const struct cs_note *note = &notes[i];
        struct fmt_note f = {.key = {note->key.lo, note->key.hi}, .data = note->data, .len = note->len};
        at = fmt_notes_add(&f, buf, at);
    }
    *out = buf;
    *len = bytes;
    return CS_OK;
}

void tier_disk_write(struct tier_disk *t, struct tier_write *w)
{
    const struct span_record *s = &w->record;
    uint64_t header_bytes =
        fmt_record_header_bytes(s->kind, s->n_pages, t->page_tokens, t->page_bytes, t->chunk_bytes);
    uint64_t bytes = tier_disk_record_bytes(t, s->kind, s->n_pages);
    /* A record that cannot be made still gets its completion, on the I/O thread, which finds none in the
     * table. */
    struct disk_record *rec = tier_record_new(t, s->id, s->kind, s->n_pages, (uint32_t)header_bytes,
                                              (uint32_t)(bytes / t->chunk_bytes));
    w->tier_notes = NULL;
    w->tier_notes_bytes = 0;
    if (w->n_notes > 0)
        (void)notes_encode(t, w->notes, w->n_notes, &w->tier_notes, &w->tier_notes_bytes);
    pthread_mutex_lock(&t->lock);
    if (rec != NULL) {
        rec->used_unix = s->used_unix;
        rec->counted = true;
    }
    if (rec == NULL || bytes == 0 || tier_record_find(t, rec->id) != NULL ||
        tier_record_insert(t, rec) != CS_OK) {
        tier_record_free(rec);
        bytes = 0;
    }
    atomic_fetch_add(&t->committed, (int64_t)bytes);
    atomic_fetch_add(&t->pending, tier_disk_record_bytes(t, s->kind, s->n_pages));
    w->tier_next = NULL;
    *t->in_writes_tail = w;
    t->in_writes_tail = &w->tier_next;
    tier_unlock_and_wake(t);
}

void tier_disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n)
{
    if (n == 0)
        return;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < n; i++) {
        reads[i]->tier_next = NULL;
        *t->in_reads_tail = reads[i];
        t->in_reads_tail = &reads[i]->tier_next;
    }
    tier_unlock_and_wake(t);
}

void tier_row_op_free(struct row_op *op)
{
    free(op->value);
    free(op);
}

/* Lock held; released on return. */
void tier_row_push(struct tier_disk *t, struct row_op *op)
{
    atomic_fetch_add(&t->pending, op->len);
    *t->in_rows_tail = op;
    t->in_rows_tail = &op->next;
    tier_unlock_and_wake(t);
}

int tier_disk_write_notes(struct tier_disk *t, const struct note_record *n)
{
    struct row_op *op = calloc(1, sizeof *op);
    int rc = op == NULL ? CS_ENOMEM : notes_encode(t, n->notes, n->n_notes, &op->value, &op->len);
    if (rc != CS_OK) {
        free(op);
        return rc;
    }
    op->owner = n->owner;
    op->id = n->id;
    pthread_mutex_lock(&t->lock);
    struct disk_record *rec = tier_record_find(t, n->owner);
    if (rec == NULL || atomic_load(&rec->deleted)) {
        pthread_mutex_unlock(&t->lock);
        atomic_fetch_sub(&t->stats.notes_pending, op->len);
        tier_row_op_free(op);
        return CS_ENOTFOUND;
    }
    rec->note_rows = true;
    tier_row_push(t, op);
    return CS_OK;
}

void tier_disk_delete_notes(struct tier_disk *t, struct record_id owner, struct record_id id)
{
    struct row_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return; /* the row then goes with its span */
    op->owner = owner;
    op->id = id;
    pthread_mutex_lock(&t->lock);
    tier_row_push(t, op);
}

int tier_disk_quota(struct tier_disk *t, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    struct row_op *op = calloc(1, sizeof *op);
    bool none = catalog_quota_is_none(quota);
    if (op != NULL && !none)
        op->value = malloc(CATALOG_QUOTA_BYTES);
    if (op == NULL || (!none && op->value == NULL)) {
        free(op);
        return CS_ENOMEM;
    }
    if (!none)
        catalog_quota_encode(quota, op->value);
    op->len = CATALOG_QUOTA_BYTES; /* pending, deleted or not */
    op->quota = true;
    op->id = catalog_quota_id(tenant);
    pthread_mutex_lock(&t->lock);
    tier_row_push(t, op);
    return CS_OK;
}

void tier_disk_delete(struct tier_disk *t, struct record_id id)
{
    pthread_mutex_lock(&t->lock);
    struct disk_record *rec = tier_record_find(t, id);
    if (rec == NULL || atomic_exchange(&rec->deleted, true)) {
        pthread_mutex_unlock(&t->lock);
        return;
    }
    if (rec->counted)
        atomic_fetch_sub(&t->committed, (int64_t)rec->bytes);
    rec->counted = false;
    rec->list_next = t->in_deletes;
    t->in_deletes = rec;
    t->deletes_idle = false;
    tier_unlock_and_wake(t);
}

void tier_disk_touch(struct tier_disk *t, struct record_id id, int64_t used_unix)
{
    enum { TOUCHES_MAX = 1 << 16 };
    pthread_mutex_lock(&t->lock);
    if (tier_record_find(t, id) == NULL)
        goto out;
    if (t->n_in_touches == t->room_in_touches) {
        size_t room = t->room_in_touches == 0 ? 64 : 2 * t->room_in_touches;
        struct touch *larger = room > TOUCHES_MAX ? NULL : realloc(t->in_touches, room * sizeof *larger);
        if (larger == NULL)
            goto out; /* a time of use is worth neither memory nor an error */
        t->in_touches = larger;
        t->room_in_touches = room;
    }
    t->in_touches[t->n_in_touches++] = (struct touch){.id = id, .used_unix = used_unix};
    tier_unlock_and_wake(t);
    return;
out:
    pthread_mutex_unlock(&t->lock);
}

static struct timespec in_ms(uint32_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

void tier_disk_settle(struct tier_disk *t, uint32_t deadline_ms)
{
    struct timespec until = in_ms(deadline_ms);
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    while (!t->deletes_idle && rc == 0 && atomic_load(&t->catalog_state) == CATALOG_FINE)
        rc = pthread_cond_timedwait(&t->changed, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
}

void tier_disk_kick(struct tier_disk *t)
{
    pthread_mutex_lock(&t->lock);
    t->in_kick = true;
    tier_unlock_and_wake(t);
}

void tier_disk_stats(const struct tier_disk *t, struct cs_stats *out)
{
    const struct tier_stats *s = &t->stats;
    out->disk_on = true;
    out->disk_engine = io_engine_name(t->io);
    out->disk_bytes = atomic_load(&s->volume_bytes) + atomic_load(&s->catalog_bytes) + FMT_RECORD_ALIGN;
    out->disk_budget = t->budget;
    out->disk_spans = atomic_load(&s->spans);
    out->disk_checkpoints = atomic_load(&s->checkpoints);
    out->pending_bytes = tier_disk_pending_bytes(t);
    out->records_foreign = atomic_load(&s->records_foreign);
    out->spans_written = atomic_load(&s->spans_written);
    out->checkpoints_written = atomic_load(&s->checkpoints_written);
    out->bytes_written = atomic_load(&s->bytes_written);
    out->spans_read = atomic_load(&s->spans_read);
    out->checkpoints_read = atomic_load(&s->checkpoints_read);
    out->bytes_read = atomic_load(&s->bytes_read);
    out->syncs = atomic_load(&s->syncs);
    out->catalog_batches = atomic_load(&s->catalog_batches);
    out->catalog_rows = atomic_load(&s->catalog_rows);
    out->corrupt_header = atomic_load(&s->corrupt_header);
    out->corrupt_tokens = atomic_load(&s->corrupt_tokens);
    out->corrupt_payload = atomic_load(&s->corrupt_payload);
    out->io_errors = atomic_load(&s->io_errors);
    out->dropped_notes = atomic_load(&s->dropped_notes);
    out->sqes = atomic_load(&s->sqes);
    out->submissions = atomic_load(&s->submissions);
}

void tier_disk_latencies(const struct tier_disk *t, struct cs_latencies *out)
{
    io_latencies(t->io, out);
}

void tier_disk_close(struct tier_disk *t, uint32_t deadline_ms)
{
    if (t == NULL)
        return;
    if (t->io_thread_runs) {
        pthread_mutex_lock(&t->lock);
        t->in_close = true;
        t->close_at_ms = tier_now_ms() + deadline_ms;
        tier_unlock_and_wake(t);
        pthread_join(t->io_thread, NULL);
    }
    if (t->catalog_thread_runs) {
        pthread_mutex_lock(&t->lock);
        t->catalog_stop = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->catalog_thread, NULL);
    }
    catalog_close(t->catalog);
    volumes_close(&t->volumes);
    for (size_t i = 0; i < t->table_size; i++) {
        for (struct disk_record *rec = t->table[i], *next; rec != NULL; rec = next) {
            next = rec->table_next;
            tier_record_free(rec);
        }
    }
    free(t->table);
    free(t->in_touches);
    free(t->touches);
    free(t->foreign);
    if (t->dir_fd >= 0)
        close(t->dir_fd); /* the lock */
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
    free(t);
}
