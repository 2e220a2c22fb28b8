/*
 * A disk tier that keeps no bytes: it counts what records would take, whole chunks of them, and everything
 * that is queued succeeds when sim_disk_work is called. Behind the seam of cachestore/tier.h.
 *
 * Threads: the store calls with its lock held, from the replay and from its keeper; completions are called
 * with no lock held.
 */
#include "bench/policy_sim.h"
#include "cachestore/tier.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES  (256ull << 10)
#define HEADER_BYTES 4096ull

struct sim_disk {
    pthread_mutex_t lock;
    uint64_t budget, page_bytes, used, pending;
    uint64_t *records; /* bytes of sequence numbers 1 to n_ids; 0: not written yet, or deleted */
    size_t n_ids, capacity;
    struct tier_write *first_write, *last_write;
    struct tier_read *first_read, *last_read;
};

static struct {
    struct sim_disk *disk;
    uint64_t budget, page_bytes;
} next;

void sim_disk_next(uint64_t budget_bytes, uint64_t page_bytes)
{
    next.disk = NULL;
    next.budget = budget_bytes;
    next.page_bytes = page_bytes;
}

static struct sim_disk *of(const struct tier_disk *t)
{
    return (struct sim_disk *)t;
}

static int disk_open(const struct cs_config *config, const struct tier_disk_events *events,
                     struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len)
{
    (void)config;
    (void)events;
    (void)err;
    (void)err_len;
    struct sim_disk *d = calloc(1, sizeof *d);
    if (!d)
        return CS_ENOMEM;
    d->budget = next.budget;
    d->page_bytes = next.page_bytes;
    pthread_mutex_init(&d->lock, NULL);
    memset(secret, 1, 16);
    next.disk = d;
    *out = (struct tier_disk *)d;
    return CS_OK;
}

static uint64_t disk_record_bytes(const struct tier_disk *t, enum record_kind kind, uint32_t n_pages)
{
    (void)kind;
    return (HEADER_BYTES + n_pages * of(t)->page_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
}

static int64_t disk_free_bytes(const struct tier_disk *t)
{
    return (int64_t)of(t)->budget - (int64_t)of(t)->used;
}

static struct record_id disk_next_id(struct tier_disk *t)
{
    struct sim_disk *d = of(t);
    pthread_mutex_lock(&d->lock);
    d->n_ids++;
    d->records = sim_reserve(d->records, &d->capacity, d->n_ids, sizeof *d->records);
    d->records[d->n_ids] = 0;
    struct record_id id = {.nonce = 1, .sequence = d->n_ids};
    pthread_mutex_unlock(&d->lock);
    return id;
}

static void disk_write(struct tier_disk *t, struct tier_write *w)
{
    struct sim_disk *d = of(t);
    uint64_t bytes = disk_record_bytes(t, w->record.kind, w->record.n_pages);
    pthread_mutex_lock(&d->lock);
    d->records[w->record.id.sequence] = bytes;
    d->used += bytes;
    d->pending += bytes;
    w->tier_next = NULL;
    if (d->last_write)
        d->last_write->tier_next = w;
    else
        d->first_write = w;
    d->last_write = w;
    pthread_mutex_unlock(&d->lock);
}

static int disk_write_notes(struct tier_disk *t, const struct note_record *n)
{
    (void)t;
    (void)n;
    return CS_EFULL;
}

static void disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n)
{
    struct sim_disk *d = of(t);
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++) {
        reads[i]->tier_next = NULL;
        if (d->last_read)
            d->last_read->tier_next = reads[i];
        else
            d->first_read = reads[i];
        d->last_read = reads[i];
    }
    pthread_mutex_unlock(&d->lock);
}

static void disk_delete(struct tier_disk *t, struct record_id id)
{
    struct sim_disk *d = of(t);
    pthread_mutex_lock(&d->lock);
    if (id.sequence <= d->n_ids) {
        d->used -= d->records[id.sequence];
        d->records[id.sequence] = 0;
    }
    pthread_mutex_unlock(&d->lock);
}

static void disk_delete_notes(struct tier_disk *t, struct record_id owner, struct record_id id)
{
    (void)t;
    (void)owner;
    (void)id;
}

static void disk_touch(struct tier_disk *t, struct record_id id, int64_t used_unix)
{
    (void)t;
    (void)id;
    (void)used_unix;
}

static void disk_settle(struct tier_disk *t, uint32_t deadline_ms)
{
    (void)t;
    (void)deadline_ms;
}

static void disk_kick(struct tier_disk *t)
{
    (void)t;
}

static uint64_t disk_pending_bytes(const struct tier_disk *t)
{
    return of(t)->pending;
}

static uint64_t disk_memory_bytes(const struct tier_disk *t)
{
    (void)t;
    return 0;
}

static void disk_stats(const struct tier_disk *t, struct cs_stats *out)
{
    out->disk_on = true;
    out->disk_engine = "simulated";
    out->disk_budget = of(t)->budget;
    out->disk_bytes = of(t)->used;
}

static void disk_latencies(const struct tier_disk *t, struct cs_latencies *out)
{
    (void)t;
    (void)out;
}

static void complete(struct sim_disk *d, bool cancel)
{
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct tier_write *w = d->first_write;
        struct tier_read *r = d->first_read;
        bool there = false;
        if (r) {
            d->first_read = r->tier_next;
            d->last_read = d->first_read ? d->last_read : NULL;
            there = d->records[r->record.id.sequence] > 0;
        } else if (w) {
            d->first_write = w->tier_next;
            d->last_write = d->first_write ? d->last_write : NULL;
            d->pending -= disk_record_bytes((struct tier_disk *)d, w->record.kind, w->record.n_pages);
            there = d->records[w->record.id.sequence] > 0;
        }
        pthread_mutex_unlock(&d->lock);
        if (r)
            r->done(r->ctx, r, cancel ? TIER_CANCELLED : there ? TIER_OK : TIER_NOTFOUND);
        else if (w)
            w->durable(w->ctx, w, cancel || !there ? TIER_CANCELLED : TIER_OK);
        else
            return;
    }
}

void sim_disk_work(void)
{
    if (next.disk)
        complete(next.disk, false);
}

static void disk_close(struct tier_disk *t, uint32_t deadline_ms)
{
    (void)deadline_ms;
    struct sim_disk *d = of(t);
    complete(d, true);
    pthread_mutex_destroy(&d->lock);
    free(d->records);
    free(d);
    next.disk = NULL;
}

const struct tier_vtable sim_disk_vtable = {
    .open = disk_open,
    .record_bytes = disk_record_bytes,
    .free_bytes = disk_free_bytes,
    .next_id = disk_next_id,
    .write = disk_write,
    .write_notes = disk_write_notes,
    .read = disk_read,
    .delete_span = disk_delete,
    .delete_notes = disk_delete_notes,
    .touch = disk_touch,
    .settle = disk_settle,
    .kick = disk_kick,
    .pending_bytes = disk_pending_bytes,
    .memory_bytes = disk_memory_bytes,
    .stats = disk_stats,
    .latencies = disk_latencies,
    .close = disk_close,
};
