/*
 * What is asked through the control socket, answered from the store. The work under the store's lock is
 * bounded each time it is taken: a few dozen spans, a few thousand empty buckets of the index, one span's
 * blocks.
 *
 * Threads: the control thread.
 */
#include "cachestore/control.h"
#include "cachestore/key.h"
#include "cachestore/store.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HOLD_ROWS = 64, HOLD_BUCKETS = 4096, REPLY_HOLDS = 64, EVICT_HOLDS = 16, HUSK_BUCKETS = 1024 };

/* ---- listing ----------------------------------------------------------------------------------------- */

static bool is_listed(const struct span *sp)
{
    return !sp->doomed && index_holds_bytes(sp);
}

static struct control_row row_of(struct cs_store *s, const struct span *sp)
{
    struct control_row row = {.checkpoint = sp->kind == SPAN_CHECKPOINT,
                              .boundary = sp->kind == SPAN_CHECKPOINT ? (uint8_t)sp->boundary : 0,
                              .first_position = sp->first_position,
                              .n_pages = sp->n_pages,
                              .n_device = sp->n_device,
                              .n_host = sp->n_host,
                              .key = sp->key,
                              .parent_key = sp->parent ? sp->parent_key : (struct cs_key){0},
                              .tenant = sp->account->id,
                              .created_unix = sp->created_unix,
                              .used_unix = (int64_t)(sp->last_used / 1000000)};
    struct tier_place place;
    if (sp->parent) {
        row.flags |= CONTROL_ROW_HAS_PARENT;
        row.parent_span = sp->parent->key;
    }
    if (sp->disk == SPAN_DISK_DURABLE && s->tier->admin->locate(s->disk, sp->id, &place) == CS_OK) {
        row.flags |= CONTROL_ROW_ON_DISK;
        row.record[0] = sp->id.nonce;
        row.record[1] = sp->id.sequence;
        row.disk_bytes = sp->disk_bytes;
        row.volume = place.volume;
        row.first_chunk = place.first_chunk;
    }
    if (sp->kept)
        row.flags |= CONTROL_ROW_PINNED;
    return row;
}

/* Buckets from *cursor on, whole ones, for as long as this hold and the reply allow. False: the reply is
 * full. */
static bool list_some_locked(struct cs_store *s, uint64_t *cursor, uint32_t *n_rows, struct wire_writer *w)
{
    uint64_t last = *cursor + HOLD_BUCKETS;
    uint32_t before = *n_rows;
    for (; *cursor <= s->index.bucket_mask && *cursor < last && *n_rows - before < HOLD_ROWS; ++*cursor) {
        uint32_t n = 0;
        for (const struct span *sp = s->index.buckets[*cursor]; sp; sp = sp->hash_next)
            n += is_listed(sp);
        if (*n_rows > 0 &&
            (*n_rows + n > CONTROL_ROWS_MAX || (uint64_t)n * CONTROL_ROW_BYTES > w->room - w->len))
            return false;
        for (const struct span *sp = s->index.buckets[*cursor]; sp; sp = sp->hash_next) {
            if (!is_listed(sp) || *n_rows == CONTROL_ROWS_MAX)
                continue;
            struct control_row row = row_of(s, sp);
            control_row_encode(&row, w);
            ++*n_rows;
        }
    }
    return true;
}

/* Where a span is found does not change while it lives, so a cursor sees all that stay. */
static int list(struct cs_store *s, uint64_t cursor, struct wire_writer *w)
{
    uint32_t n_rows = 0;
    bool goes_on = true;
    wire_u64(w, 0);
    wire_u32(w, 0);
    for (unsigned i = 0; i < REPLY_HOLDS && goes_on && cursor <= s->index.bucket_mask; i++) {
        if (i > 0)
            store_give_way();
        pthread_mutex_lock(&s->lock);
        goes_on = list_some_locked(s, &cursor, &n_rows, w);
        pthread_mutex_unlock(&s->lock);
    }
    if (cursor > s->index.bucket_mask)
        cursor = UINT64_MAX; /* that was all */
    wire_put_u32(w, 0, (uint32_t)cursor);
    wire_put_u32(w, 4, (uint32_t)(cursor >> 32));
    wire_put_u32(w, 8, n_rows);
    return CS_OK;
}

/* Where records of other models lie. */
static int others(struct cs_store *s, uint64_t cursor, struct wire_writer *w)
{
    struct tier_foreign some[HOLD_ROWS];
    uint32_t n = 0;
    wire_u64(w, 0);
    wire_u32(w, 0);
    for (unsigned i = 0; i < REPLY_HOLDS && n + HOLD_ROWS <= CONTROL_OTHERS_MAX && cursor != UINT64_MAX;
         i++) {
        uint32_t more = s->tier->admin->foreign(s->disk, &cursor, some, HOLD_ROWS);
        for (uint32_t k = 0; k < more; k++) {
            const struct control_other o = {.record = {some[k].id.nonce, some[k].id.sequence},
                                            .volume = some[k].place.volume,
                                            .first_chunk = some[k].place.first_chunk,
                                            .used_unix = some[k].used_unix};
            control_other_encode(&o, w);
        }
        n += more;
        store_give_way();
    }
    wire_put_u32(w, 0, (uint32_t)cursor);
    wire_put_u32(w, 4, (uint32_t)(cursor >> 32));
    wire_put_u32(w, 8, n);
    return CS_OK;
}

/* ---- one of them ------------------------------------------------------------------------------------- */

static struct span *find_locked(const struct cs_store *s, struct cs_key key)
{
    for (struct span *sp = s->index.buckets[key.lo & s->index.bucket_mask]; sp; sp = sp->hash_next)
        if (key_equal(sp->key, key) && is_listed(sp))
            return sp;
    return NULL;
}

struct note_list {
    struct wire_writer *w;
    uint32_t n;
};

static void note_add(void *ctx, struct cs_key key, uint32_t len)
{
    struct note_list *l = ctx;
    if (l->n == CONTROL_NOTES_MAX)
        return;
    wire_key(l->w, key);
    wire_u32(l->w, len);
    l->n++;
}

static void notes_list_locked(const struct span *sp, struct wire_writer *w)
{
    struct note_list l = {.w = w};
    size_t place = w->len;
    wire_u32(w, 0);
    notes_each_locked(sp, note_add, &l);
    wire_put_u32(w, place, l.n);
}

static int record(struct cs_store *s, struct cs_key key, uint32_t from, struct wire_writer *w)
{
    int rc = CS_ENOTFOUND;
    pthread_mutex_lock(&s->lock);
    const struct span *sp = find_locked(s, key);
    if (sp) {
        uint32_t n_ids = (uint32_t)index_n_ids(&s->index, sp->kind, sp->n_pages);
        rc = from > n_ids ? CS_EINVAL : CS_OK;
        if (rc == CS_OK) {
            uint32_t n = n_ids - from < CONTROL_IDS_MAX ? n_ids - from : CONTROL_IDS_MAX;
            wire_u64(w, sp->disk == SPAN_DISK_DURABLE ? sp->id.nonce : 0);
            wire_u64(w, sp->disk == SPAN_DISK_DURABLE ? sp->id.sequence : 0);
            wire_u32(w, n_ids);
            wire_u32(w, from);
            wire_u32(w, n);
            for (uint32_t i = 0; i < n; i++)
                wire_u32(w, sp->ids[from + i]);
            if (from == 0)
                notes_list_locked(sp, w);
            else
                wire_u32(w, 0);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int evict(struct cs_store *s, const struct cs_key *keys, uint32_t n, struct wire_writer *w)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i % EVICT_HOLDS == EVICT_HOLDS - 1)
            store_give_way();
        pthread_mutex_lock(&s->lock);
        struct span *sp = find_locked(s, keys[i]);
        uint8_t result = CONTROL_EVICT_NOT_THERE;
        if (sp)
            result = room_purge_locked(s, sp) ? CONTROL_EVICT_DONE : CONTROL_EVICT_BUSY;
        if (result == CONTROL_EVICT_BUSY) {
            (void)writeback_end_grace_locked(s, UINT64_MAX);
            s->tier->kick(s->disk); /* a write ends the sooner */
        }
        pthread_mutex_unlock(&s->lock);
        wire_u8(w, result);
    }
    return CS_OK;
}

static int pin(struct cs_store *s, struct cs_key key, bool on)
{
    pthread_mutex_lock(&s->lock);
    struct span *sp = find_locked(s, key);
    int rc = !sp ? CS_ENOTFOUND : sp->disk != SPAN_DISK_DURABLE ? CS_EBUSY : CS_OK;
    if (rc == CS_OK)
        rc = s->tier->admin->pin(s->disk, sp->id, on);
    if (rc == CS_OK) {
        sp->kept = on;
        index_requeue_locked(&s->index, sp);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- the store --------------------------------------------------------------------------------------- */

static int hello(struct cs_store *s, struct wire_writer *w)
{
    struct cs_stats stats;
    struct control_hello h = {.pid = (uint32_t)getpid(),
                              .page_tokens = s->page_tokens,
                              .stride = s->stride,
                              .disk_budget = s->disk_budget,
                              .stateful = s->stateful};
    cs_stats_get(s, &stats);
    h.index_budget = stats.index_budget;
    h.records_foreign = stats.records_foreign;
    (void)s->tier->admin->dir(s->disk, h.uuid, &h.chunk_bytes);
    memcpy(h.fingerprint, s->fingerprint, sizeof h.fingerprint);
    pthread_mutex_lock(&s->lock);
    h.draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    control_hello_encode(&h, w);
    return CS_OK;
}

static int progress(struct cs_store *s, struct wire_writer *w)
{
    struct cs_stats stats;
    struct control_progress p;
    s->tier->admin->asked(s->disk, &p.asked, &p.failed);
    cs_stats_get(s, &stats);
    p.pending_bytes = stats.pending_bytes;
    pthread_mutex_lock(&s->lock);
    p.draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    control_progress_encode(&p, w);
    return CS_OK;
}

static int tenants(struct cs_store *s, uint64_t cursor, struct wire_writer *w)
{
    struct cs_tenant_use use;
    uint32_t n = 0;
    wire_u64(w, 0);
    wire_u32(w, 0);
    while (n < CONTROL_TENANTS_MAX && cs_tenants_next(s, &cursor, &use) == 1) {
        control_tenant_encode(&use, w);
        n++;
    }
    if (n < CONTROL_TENANTS_MAX)
        cursor = UINT64_MAX; /* that was all */
    wire_put_u32(w, 0, (uint32_t)cursor);
    wire_put_u32(w, 4, (uint32_t)(cursor >> 32));
    wire_put_u32(w, 8, n);
    return CS_OK;
}

enum { LIMIT_TEXT = 32 };

static const char *limit_text(uint64_t bytes, char out[LIMIT_TEXT])
{
    if (bytes == 0)
        return "as all others";
    if (bytes == CS_QUOTA_NONE)
        return "none";
    snprintf(out, LIMIT_TEXT, "%llu bytes", (unsigned long long)bytes);
    return out;
}

static int set_quota(struct cs_store *s, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    char name[EVENTS_TENANT_TEXT], limit[3][LIMIT_TEXT];
    int rc = cs_quota_set(s, tenant, quota);
    s->tier->kick(s->disk); /* on disk soon */
    if (rc == CS_OK)
        store_log(s, CS_LOG_INFO,
                  "prefix cache: quota of tenant %s through the control socket: device %s, host %s, disk %s",
                  events_tenant_text(tenant, name), limit_text(quota->device_bytes, limit[0]),
                  limit_text(quota->host_bytes, limit[1]), limit_text(quota->disk_bytes, limit[2]));
    return rc;
}

/* A deletion for good begins with it. */
static int raise_epoch(struct cs_store *s)
{
    int rc = s->tier->admin->raise_epoch(s->disk);
    if (rc == CS_OK)
        store_log(s, CS_LOG_INFO, "prefix cache on disk: deletion for good through the control socket");
    return rc;
}

static int add_figure(void *ctx, const struct cs_figure *f)
{
    control_figure_encode(f, ctx);
    return 0;
}

/* A header that no span names; or that of a damaged record which stays for what hangs on it: to the tier that
 * is one of its own. */
static int erase(struct cs_store *s, const struct control_request *q)
{
    const struct tier_place place = {.volume = q->volume, .first_chunk = q->first_chunk};
    struct record_id id = {.nonce = q->record[0], .sequence = q->record[1]};
    int rc = s->tier->admin->erase(s->disk, id, &place, q->header_bytes);
    for (uint64_t bucket = 0; rc == CS_EBUSY && bucket <= s->index.bucket_mask;) {
        if (bucket > 0)
            store_give_way();
        pthread_mutex_lock(&s->lock);
        if (room_purge_husk_locked(s, id, &bucket, HUSK_BUCKETS))
            rc = CS_OK;
        pthread_mutex_unlock(&s->lock);
    }
    return rc;
}

int control_answer(struct cs_store *s, const struct control_request *q, struct wire_writer *w)
{
    switch (q->command) {
    case CONTROL_HELLO:
        return hello(s, w);
    case CONTROL_FIGURES:
        return cs_figures_get(s, add_figure, w);
    case CONTROL_LIST:
        return list(s, q->cursor, w);
    case CONTROL_RECORD:
        return record(s, q->key, q->from, w);
    case CONTROL_EVICT:
        return evict(s, q->keys, q->n_keys, w);
    case CONTROL_ERASE:
        return erase(s, q);
    case CONTROL_EPOCH:
        return raise_epoch(s);
    case CONTROL_PIN:
        return pin(s, q->key, q->on);
    case CONTROL_DRAIN:
        cs_drain(s, q->on);
        return CS_OK;
    case CONTROL_PROGRESS:
        return progress(s, w);
    case CONTROL_TENANTS:
        return tenants(s, q->cursor, w);
    case CONTROL_QUOTA:
        return set_quota(s, &q->tenant, &q->quota);
    case CONTROL_OTHERS:
        return others(s, q->cursor, w);
    case CONTROL_COMMANDS:
        break;
    }
    return CS_EINVAL;
}
