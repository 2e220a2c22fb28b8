/*
 * Record headers in the volumes, and the catalogue made again from them.
 *
 * Headers lie at chunk boundaries, so the first FMT_RECORD_ALIGN bytes of every chunk are looked at, many at
 * a time. What decodes, belongs to this store and lies where it says becomes a row; who owns a chunk that
 * several of them claim is decided when the rows are loaded.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cachestore/catalog_carry.h"
#include "cachestore/tier_disk_impl.h"

enum { SCAN_DEPTH = 64, REBUILD_BATCH_ROWS = 256 };

/* ---- headers in the volumes -------------------------------------------------------------------------- */

struct header_scan {
    const struct volumes *v;
    const uint8_t *store_uuid;
    int (*fn)(void *ctx, const struct fmt_record *r, const void *header);
    void *ctx;
    int rc;
};
struct scan_slot {
    struct io_op op;
    struct iovec iov;
    struct header_scan *scan;
    uint8_t *buffer;
    uint32_t volume, chunk;
    int result;
};

static void scan_done(struct io_op *op, int result)
{
    struct scan_slot *s = op->ctx;
    s->result = result;
}

/* The whole header at a chunk whose first FMT_RECORD_ALIGN bytes are in `head`, of more than that size. */
static uint8_t *header_read(const struct volumes *v, uint32_t volume, uint32_t chunk, uint64_t bytes)
{
    uint8_t *whole = bytes > v->chunk_bytes ? NULL : aligned_alloc(FMT_RECORD_ALIGN, bytes);
    if (whole == NULL)
        return NULL;
    uint64_t offset = (uint64_t)chunk * v->chunk_bytes, done = 0;
    while (done < bytes) {
        ssize_t n = pread(v->volume[volume].fd, whole + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 || n % 512 != 0) {
            free(whole);
            return NULL;
        }
        done += (uint64_t)n;
    }
    return whole;
}

static void scan_look(struct scan_slot *s)
{
    struct header_scan *scan = s->scan;
    uint64_t header_bytes;
    struct fmt_record r;
    if (s->result != 0 || fmt_record_peek(s->buffer, FMT_RECORD_ALIGN, &header_bytes) != FMT_RECORD_OK)
        return;
    uint8_t *whole =
        header_bytes > FMT_RECORD_ALIGN ? header_read(scan->v, s->volume, s->chunk, header_bytes) : s->buffer;
    if (whole != NULL && fmt_record_decode(whole, header_bytes, &r) == FMT_RECORD_OK &&
        memcmp(r.store_uuid, scan->store_uuid, sizeof r.store_uuid) == 0 &&
        r.chunk_bytes == scan->v->chunk_bytes && r.runs[0].volume == s->volume &&
        r.runs[0].first_chunk == s->chunk)
        scan->rc = scan->fn(scan->ctx, &r, whole);
    if (whole != s->buffer)
        free(whole);
}

int volumes_scan_headers(const struct volumes *v, enum cs_io_engine kind, const uint8_t store_uuid[16],
                         int (*fn)(void *ctx, const struct fmt_record *r, const void *header), void *ctx)
{
    struct header_scan scan = {.v = v, .store_uuid = store_uuid, .fn = fn, .ctx = ctx};
    struct io_engine *engine;
    char reason[160];
    int rc = io_engine_open(kind, &engine, reason, sizeof reason);
    if (rc != 0)
        return rc == -ENOMEM ? CS_ENOMEM : CS_EIO;
    struct io *io = io_open(engine, (uint64_t)SCAN_DEPTH * FMT_RECORD_ALIGN);
    struct scan_slot *slots = calloc(SCAN_DEPTH, sizeof *slots);
    uint8_t *buffers = aligned_alloc(FMT_RECORD_ALIGN, SCAN_DEPTH * FMT_RECORD_ALIGN);
    if (io == NULL || slots == NULL || buffers == NULL) {
        scan.rc = CS_ENOMEM;
        goto out;
    }
    uint64_t n_seen = 0, n_all = 0;
    for (uint32_t volume = 0; volume < v->n_volumes; volume++)
        n_all += v->volume[volume].chunks.n;
    for (uint32_t volume = 0; volume < v->n_volumes && scan.rc == 0; volume++) {
        uint32_t n = v->volume[volume].chunks.n;
        for (uint32_t first = 0; first < n && scan.rc == 0; first += SCAN_DEPTH) {
            uint32_t batch = n - first < SCAN_DEPTH ? n - first : SCAN_DEPTH;
            for (uint32_t i = 0; i < batch; i++) {
                struct scan_slot *s = &slots[i];
                *s = (struct scan_slot){.scan = &scan,
                                        .buffer = buffers + (size_t)i * FMT_RECORD_ALIGN,
                                        .volume = volume,
                                        .chunk = first + i};
                s->iov = (struct iovec){.iov_base = s->buffer, .iov_len = FMT_RECORD_ALIGN};
                s->op = (struct io_op){.kind = IO_READ,
                                       .fd = v->volume[volume].fd,
                                       .offset = (uint64_t)s->chunk * v->chunk_bytes,
                                       .iov = &s->iov,
                                       .n_iov = 1,
                                       .bytes = FMT_RECORD_ALIGN,
                                       .done = scan_done,
                                       .ctx = s};
                io_add(io, &s->op);
            }
            while (io_pending(io) > 0)
                io_run(io, -1);
            for (uint32_t i = 0; i < batch && scan.rc == 0; i++)
                scan_look(&slots[i]);
            n_seen += batch;
            if (scan.rc == 0 && v->scanned != NULL)
                scan.rc = v->scanned(v->scanned_ctx, n_seen, n_all);
        }
    }
out:
    io_close(io);
    free(slots);
    free(buffers);
    return scan.rc;
}

/* ---- rebuild ----------------------------------------------------------------------------------------- */

struct rebuild {
    struct catalog *made;
    uint64_t max_sequence, n;
    struct headers headers; /* where there is an old one to be carried over */
    struct carry carry;
};

static int rebuild_one(void *ctx, const struct fmt_record *r, const void *header)
{
    struct rebuild *b = ctx;
    struct record_id id = {.nonce = r->id_nonce, .sequence = r->id_sequence};
    /* A row is the header's first bytes. */
    catalog_put(b->made, CATALOG_RECORD, id, header, fmt_record_row_bytes(r));
    b->n++;
    if (r->id_sequence > b->max_sequence)
        b->max_sequence = r->id_sequence;
    return catalog_batch_rows(b->made) < REBUILD_BATCH_ROWS ? CS_OK : catalog_commit(b->made, false);
}

/* The old one is gone: it does not open, or there is no room for both. */
static int rebuild_alone(struct tier_disk *t, struct rebuild *b, char *err, size_t err_len)
{
    b->n = b->max_sequence = 0;
    int rc = catalog_open_new(t->dir_fd, t->catalog_share, &b->made, err, err_len);
    if (rc != CS_OK)
        return rc == CS_ENOMEM ? rc : CS_EIO;
    rc = volumes_scan_headers(&t->volumes, t->engine_kind, t->store.uuid, rebuild_one, b);
    return rc == CS_OK ? catalog_commit(b->made, true) : rc;
}

static int rebuild_look(void *ctx, const struct fmt_record *r, const void *header)
{
    struct rebuild *b = ctx;
    (void)header;
    b->n++;
    if (r->id_sequence > b->max_sequence)
        b->max_sequence = r->id_sequence;
    return headers_add(&b->headers, r);
}

static int rebuild_carry(void *ctx, const struct fmt_record *r, const void *header)
{
    struct rebuild *b = ctx;
    return carry_row(&b->carry, r, header);
}

/* The catalogue that is there is this store's and lost only its newest rows: the new one is made beside it
 * and takes over what only rows have. CS_EFULL: the budget has no room for both. */
static int rebuild_beside(struct tier_disk *t, struct rebuild *b, char *err, size_t err_len)
{
    b->carry = (struct carry){.headers = &b->headers, .old = t->catalog};
    int rc = volumes_scan_headers(&t->volumes, t->engine_kind, t->store.uuid, rebuild_look, b);
    if (rc == CS_OK) {
        headers_claim(&b->headers, &t->volumes);
        rc = carry_look(&b->carry);
    }
    uint64_t volumes = volumes_file_bytes(&t->volumes), earlier = volumes + tier_catalog_share_least(volumes),
             need = volumes + catalog_disk_bytes(t->dir_fd) + headers_catalog_bytes(&b->headers) +
                    catalog_new_bytes(b->carry.n_rows, b->carry.bytes);
    if (rc != CS_OK) {
        snprintf(err, err_len, "cannot rebuild the catalogue: %s", cs_strerror(rc));
        return rc;
    }
    /* It may have been lowered since. */
    if (need > (t->budget > earlier ? t->budget - FMT_RECORD_ALIGN : earlier))
        return CS_EFULL;
    rc = catalog_open_new(t->dir_fd, t->catalog_share, &b->made, err, err_len);
    if (rc != CS_OK)
        return rc == CS_ENOMEM ? rc : CS_EIO;
    b->carry.made = b->made;
    rc = volumes_scan_headers(&t->volumes, t->engine_kind, t->store.uuid, rebuild_carry, b);
    if (rc == CS_OK)
        rc = carry_others(&b->carry);
    return rc == CS_OK ? catalog_commit(b->made, true) : rc;
}

/* Its log has lost its end, and it is this store's. */
static bool is_cut(struct tier_disk *t)
{
    uint8_t uuid[16];
    uint32_t epoch;
    if (t->catalog == NULL || catalog_missing(t->catalog) == 0 ||
        catalog_store_get(t->catalog, uuid, &epoch) != CS_OK || memcmp(uuid, t->store.uuid, sizeof uuid) != 0)
        return false;
    tier_log(t, CS_LOG_WARN,
             "disk cache: the catalogue's log has lost its end, %llu changes that were synced: rows are made "
             "again from record headers",
             (unsigned long long)catalog_missing(t->catalog));
    return true;
}

/* With no log, so that rows lie there once. */
static int rebuild_make(struct tier_disk *t, struct rebuild *b, char *err, size_t err_len)
{
    bool any = t->volumes.n_volumes > 0; /* a new store has nothing to look through */
    int rc = any && is_cut(t) ? rebuild_beside(t, b, err, err_len) : CS_EFULL;
    catalog_close(t->catalog);
    t->catalog = NULL;
    if (rc == CS_EFULL) {
        rc = catalog_remove(t->dir_fd);
        if (rc < 0) {
            snprintf(err, err_len, "cannot remove the damaged catalogue: %s", strerror(-rc));
            return CS_EIO;
        }
        rc = any ? rebuild_alone(t, b, err, err_len) : CS_OK;
    }
    bool made = b->made != NULL;
    catalog_close(b->made);
    if (rc != CS_OK && made)
        snprintf(err, err_len, "cannot rebuild the catalogue: %s", cs_strerror(rc));
    if (rc != CS_OK) {
        (void)catalog_remove_new(t->dir_fd);
        return rc;
    }
    int replaced = made ? catalog_replace(t->dir_fd) : 0;
    if (replaced < 0)
        snprintf(err, err_len, "cannot put the new catalogue in its place: %s", strerror(-replaced));
    return replaced < 0 ? CS_EIO : CS_OK;
}

int tier_rebuild(struct tier_disk *t, uint32_t *epoch, char *err, size_t err_len)
{
    struct rebuild b = {.n = 0};
    int rc = rebuild_make(t, &b, err, err_len);
    bool made = b.made != NULL;
    headers_free(&b.headers);
    carry_free(&b.carry);
    if (rc != CS_OK)
        return rc;
    rc = catalog_open(t->dir_fd, false, t->catalog_share, &t->catalog, err, err_len);
    if (rc != CS_OK)
        return rc == CS_ENOMEM ? rc : CS_EIO;
    *epoch = (uint32_t)(b.max_sequence >> SEQUENCE_EPOCH_BITS);
    if (made)
        tier_log(t, CS_LOG_WARN, "disk cache: catalogue rebuilt from %llu record headers",
                 (unsigned long long)b.n);
    return CS_OK;
}
