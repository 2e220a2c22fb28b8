/*
 * The catalogue made again from the record headers in the volumes, of a store that nobody has open.
 *
 * The new one is made beside the old one and takes its place when it is whole and synced, so that whatever
 * fails before, a full file system above all, changes nothing. What headers do not have comes from the old
 * one as far as that reads: notes, times of use and pins of records that are still there, and quotas.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"
#include "formats/note_row.h"

enum { BATCH_ROWS = 256 };
#define CATALOG_SHARE (8ull << 20)

struct header {
    struct record_id id;
    struct fmt_record_run one, *runs;
    uint32_t n_runs;
    bool kept;
    bool has_notes; /* the old row of it has */
};

struct rebuild {
    struct cs_inspect *in;
    struct header *headers; /* newest first, once all are there */
    size_t n, room;
    struct catalog *old, *made;
};

static int header_note(void *ctx, const struct fmt_record *r, const void *bytes)
{
    struct rebuild *b = ctx;
    (void)bytes;
    if (!list_reserve((void **)&b->headers, &b->room, b->n, sizeof *b->headers))
        return CS_ENOMEM;
    struct header *h = &b->headers[b->n];
    *h = (struct header){
        .id = {.nonce = r->id_nonce, .sequence = r->id_sequence}, .one = r->runs[0], .n_runs = r->n_runs};
    if (r->n_runs > 1) {
        h->runs = malloc(r->n_runs * sizeof *h->runs);
        if (h->runs == NULL)
            return CS_ENOMEM;
        memcpy(h->runs, r->runs, r->n_runs * sizeof *h->runs);
    }
    b->n++;
    return CS_OK;
}

static int newest_first(const void *a, const void *b)
{
    const struct record_id *x = &((const struct header *)a)->id, *y = &((const struct header *)b)->id;
    if (x->sequence != y->sequence)
        return x->sequence > y->sequence ? -1 : 1;
    return x->nonce > y->nonce ? -1 : x->nonce < y->nonce;
}

/* The newest owns a chunk; who misses one is dropped. */
static void headers_claim(struct rebuild *b)
{
    if (b->n > 0)
        qsort(b->headers, b->n, sizeof *b->headers, newest_first);
    for (size_t i = 0; i < b->n; i++) {
        struct header *h = &b->headers[i];
        h->kept = volumes_claim(&b->in->volumes, h->runs != NULL ? h->runs : &h->one, h->n_runs);
    }
    for (size_t i = 0; i < b->n; i++) {
        struct header *h = &b->headers[i];
        if (h->kept)
            volumes_release(&b->in->volumes, h->runs != NULL ? h->runs : &h->one, h->n_runs);
    }
}

/* NULL: it is not among those that are kept. */
static struct header *header_find(const struct rebuild *b, struct record_id id)
{
    const struct header wanted = {.id = id};
    struct header *h = b->n > 0 ? bsearch(&wanted, b->headers, b->n, sizeof *b->headers, newest_first) : NULL;
    return h != NULL && h->kept ? h : NULL;
}

static int batch_bounded(struct rebuild *b)
{
    return catalog_batch_rows(b->made) < BATCH_ROWS ? CS_OK : catalog_commit(b->made, false);
}

/* ---- what the old one has ---------------------------------------------------------------------------- */

static int old_row(void *ctx, const struct catalog_row *row)
{
    struct rebuild *b = ctx;
    struct header *h = header_find(b, row->id);
    struct fmt_record r;
    if (h != NULL && fmt_record_row_decode(row->value, row->len, &r) == FMT_RECORD_OK)
        h->has_notes = r.n_notes > 0;
    return CS_OK;
}

static int old_notes(void *ctx, const struct catalog_row *row)
{
    struct rebuild *b = ctx;
    size_t n_notes;
    if (header_find(b, row->id) == NULL || fmt_notes_check(row->value, row->len, &n_notes) != 0)
        return CS_OK;
    catalog_put_notes(b->made, row->id, row->notes, row->value, row->len);
    return batch_bounded(b);
}

static int old_use(void *ctx, const struct catalog_row *row)
{
    struct rebuild *b = ctx;
    if (header_find(b, row->id) == NULL || row->len != sizeof(int64_t))
        return CS_OK;
    catalog_put(b->made, CATALOG_USED, row->id, row->value, row->len);
    return batch_bounded(b);
}

static int old_pin(void *ctx, const struct catalog_row *row)
{
    struct rebuild *b = ctx;
    if (header_find(b, row->id) == NULL)
        return CS_OK;
    catalog_put(b->made, CATALOG_PINNED, row->id, "", 0);
    return batch_bounded(b);
}

static int old_quota(void *ctx, const struct catalog_row *row)
{
    struct rebuild *b = ctx;
    struct cs_quota quota;
    if (!catalog_quota_decode(row->value, row->len, &quota))
        return CS_OK;
    catalog_put(b->made, CATALOG_QUOTA, row->id, row->value, row->len);
    return batch_bounded(b);
}

/* Another store's says nothing about this one. */
static void old_open(struct rebuild *b)
{
    struct cs_inspect *in = b->in;
    char problem[256];
    uint8_t uuid[16];
    uint32_t epoch;
    b->old = in->catalog;
    in->catalog = NULL;
    if (b->old == NULL)
        (void)catalog_open(in->dir_fd, true, CATALOG_SHARE, &b->old, problem, sizeof problem);
    if (b->old != NULL && (catalog_store_get(b->old, uuid, &epoch) != CS_OK ||
                           memcmp(uuid, in->store.uuid, sizeof uuid) != 0)) {
        catalog_close(b->old);
        b->old = NULL;
    }
}

/* Where a scan ends early the rest of it is lost. */
static int old_scan(struct rebuild *b, enum catalog_kind kind, catalog_row_fn fn)
{
    int rc = b->old != NULL ? catalog_scan(b->old, kind, fn, b) : CS_OK;
    return rc == CS_ECORRUPT ? CS_OK : rc;
}

/* ---- the new one ------------------------------------------------------------------------------------- */

/* The old row with its notes, if it is of exactly this header. */
static int put_with_notes(struct rebuild *b, const struct header *h, const void *bytes, size_t row_bytes)
{
    void *value = NULL;
    size_t len = 0;
    struct fmt_record r;
    int rc = catalog_get(b->old, h->id, &value, &len);
    if (rc == CS_ENOMEM)
        return rc;
    bool same = rc == CS_OK && len > row_bytes && memcmp(value, bytes, row_bytes) == 0 &&
                fmt_record_row_decode(value, len, &r) == FMT_RECORD_OK;
    catalog_put(b->made, CATALOG_RECORD, h->id, same ? value : bytes, same ? len : row_bytes);
    free(value);
    return batch_bounded(b);
}

static int header_to_row(void *ctx, const struct fmt_record *r, const void *bytes)
{
    struct rebuild *b = ctx;
    const struct header *h =
        header_find(b, (struct record_id){.nonce = r->id_nonce, .sequence = r->id_sequence});
    size_t row_bytes = fmt_record_row_bytes(r);
    if (h == NULL)
        return CS_OK;
    if (h->has_notes)
        return put_with_notes(b, h, bytes, row_bytes);
    catalog_put(b->made, CATALOG_RECORD, h->id, bytes, row_bytes);
    return batch_bounded(b);
}

static int rows_make(struct rebuild *b)
{
    static const struct {
        enum catalog_kind kind;
        catalog_row_fn fn;
    } carried[] = {{CATALOG_NOTES, old_notes},
                   {CATALOG_USED, old_use},
                   {CATALOG_PINNED, old_pin},
                   {CATALOG_QUOTA, old_quota}};
    int rc = old_scan(b, CATALOG_RECORD, old_row);
    if (rc == CS_OK)
        rc = inspect_scan_headers(b->in, header_to_row, b);
    for (size_t i = 0; i < sizeof carried / sizeof carried[0] && rc == CS_OK; i++)
        rc = old_scan(b, carried[i].kind, carried[i].fn);
    if (rc == CS_OK)
        rc = catalog_commit(b->made, false);
    if (rc == CS_OK) {
        /* Last: a catalogue without this row is made again. */
        uint64_t newest = b->n > 0 ? b->headers[0].id.sequence : 0;
        catalog_store_put(b->made, b->in->store.uuid, (uint32_t)(newest >> SEQUENCE_EPOCH_BITS));
        rc = catalog_commit(b->made, true);
    }
    return rc;
}

static int catalog_make(struct rebuild *b, char *err, size_t err_len)
{
    struct cs_inspect *in = b->in;
    in->volumes.scanned = NULL; /* from here on it goes through */
    uint64_t bytes = catalog_reserve_bytes(CATALOG_SHARE) + catalog_disk_bytes(in->dir_fd);
    if (!catalog_has_room(in->dir_fd, bytes)) {
        snprintf(err, err_len, "the file system has no room for a second catalogue");
        return CS_EIO;
    }
    old_open(b);
    int rc = catalog_open_new(in->dir_fd, CATALOG_SHARE, &b->made, err, err_len);
    if (rc == CS_OK) {
        rc = rows_make(b);
        if (rc < 0)
            snprintf(err, err_len, "cannot write the catalogue: %s", cs_strerror(rc));
    }
    catalog_close(b->made);
    catalog_close(b->old);
    int replaced = rc == CS_OK ? catalog_replace(in->dir_fd) : 0;
    if (replaced < 0) {
        snprintf(err, err_len, "cannot put the new catalogue in its place: %s", strerror(-replaced));
        return CS_EIO; /* whichever is there, the next open finds it */
    }
    if (rc != CS_OK)
        (void)catalog_remove_new(in->dir_fd);
    return rc == CS_OK || rc == CS_ENOMEM ? rc : CS_EIO;
}

int cs_inspect_rebuild(struct cs_inspect *in, struct cs_rebuilt *out, char *err, size_t err_len)
{
    struct rebuild b = {.in = in};
    memset(out, 0, sizeof *out);
    if (in->live != NULL) {
        snprintf(err, err_len, "the store is in use");
        return CS_EBUSY;
    }
    int rc = inspect_scan_headers(in, header_note, &b);
    if (rc < 0)
        snprintf(err, err_len, "cannot read the volumes: %s", cs_strerror(rc));
    if (rc == CS_OK) {
        headers_claim(&b);
        rc = catalog_make(&b, err, err_len);
    }
    for (size_t i = 0; i < b.n; i++) {
        *(b.headers[i].kept ? &out->records : &out->dropped) += 1;
        free(b.headers[i].runs);
    }
    free(b.headers);
    return rc;
}
