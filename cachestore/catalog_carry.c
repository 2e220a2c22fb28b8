/* See catalog_carry.h. */
#include "cachestore/catalog_carry.h"

#include <stdlib.h>
#include <string.h>

#include "formats/note_row.h"

enum { BATCH_ROWS = 256 };

static int batch_bounded(struct carry *c)
{
    return catalog_batch_rows(c->made) < BATCH_ROWS ? CS_OK : catalog_commit(c->made, false);
}

/* ---- what the old one has ---------------------------------------------------------------------------- */

static int old_row(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    struct header *h = headers_find(c->headers, row->id);
    struct fmt_record r;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK)
        return CS_OK;
    if (h == NULL)
        return headers_add(&c->damaged, &r);
    h->wanted = true;
    h->has_notes = r.n_notes > 0;
    c->bytes += row->len > h->row_bytes ? row->len - h->row_bytes : 0;
    return CS_OK;
}

/* Of the kinds below. */
static int old_count(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    c->n_rows++;
    c->bytes += row->len;
    return CS_OK;
}

static int old_notes(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    size_t n_notes;
    if (headers_find(c->headers, row->id) == NULL || fmt_notes_check(row->value, row->len, &n_notes) != 0)
        return CS_OK;
    catalog_put_notes(c->made, row->id, row->notes, row->value, row->len);
    return batch_bounded(c);
}

static int old_use(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    if (headers_find(c->headers, row->id) == NULL || row->len != sizeof(int64_t))
        return CS_OK;
    catalog_put(c->made, CATALOG_USED, row->id, row->value, row->len);
    return batch_bounded(c);
}

static int old_pin(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    if (headers_find(c->headers, row->id) == NULL)
        return CS_OK;
    catalog_put(c->made, CATALOG_PINNED, row->id, "", 0);
    return batch_bounded(c);
}

static int old_quota(void *ctx, const struct catalog_row *row)
{
    struct carry *c = ctx;
    struct cs_quota quota;
    if (!catalog_quota_decode(row->value, row->len, &quota))
        return CS_OK;
    catalog_put(c->made, CATALOG_QUOTA, row->id, row->value, row->len);
    return batch_bounded(c);
}

/* Where a scan ends early the rest of it is lost. */
static int old_scan(struct carry *c, enum catalog_kind kind, catalog_row_fn fn)
{
    int rc = c->old != NULL ? catalog_scan(c->old, kind, fn, c) : CS_OK;
    return rc == CS_ECORRUPT ? CS_OK : rc;
}

/* The old row with its notes, if it is of exactly this header. */
static int put_with_notes(struct carry *c, const struct header *h, const void *bytes, size_t row_bytes)
{
    void *value = NULL;
    size_t len = 0;
    struct fmt_record r;
    int rc = catalog_get(c->old, h->id, &value, &len);
    if (rc == CS_ENOMEM)
        return rc;
    bool same = rc == CS_OK && len > row_bytes && memcmp(value, bytes, row_bytes) == 0 &&
                fmt_record_row_decode(value, len, &r) == FMT_RECORD_OK;
    catalog_put(c->made, CATALOG_RECORD, h->id, same ? value : bytes, same ? len : row_bytes);
    free(value);
    return batch_bounded(c);
}

int carry_row(struct carry *c, const struct fmt_record *r, const void *bytes)
{
    const struct header *h =
        headers_find(c->headers, (struct record_id){.nonce = r->id_nonce, .sequence = r->id_sequence});
    size_t row_bytes = fmt_record_row_bytes(r);
    if (h == NULL)
        return CS_OK;
    if (h->has_notes)
        return put_with_notes(c, h, bytes, row_bytes);
    catalog_put(c->made, CATALOG_RECORD, h->id, bytes, row_bytes);
    return batch_bounded(c);
}

static const struct {
    enum catalog_kind kind;
    catalog_row_fn fn;
} carried[] = {{CATALOG_NOTES, old_notes},
               {CATALOG_USED, old_use},
               {CATALOG_PINNED, old_pin},
               {CATALOG_QUOTA, old_quota}};
enum { N_CARRIED = sizeof carried / sizeof carried[0] };

int carry_look(struct carry *c)
{
    int rc = old_scan(c, CATALOG_RECORD, old_row);
    for (size_t i = 0; i < N_CARRIED && rc == CS_OK; i++)
        rc = old_scan(c, carried[i].kind, old_count);
    return rc;
}

int carry_others(struct carry *c)
{
    int rc = CS_OK;
    for (size_t i = 0; i < N_CARRIED && rc == CS_OK; i++)
        rc = old_scan(c, carried[i].kind, carried[i].fn);
    return rc == CS_OK ? catalog_commit(c->made, false) : rc;
}

void carry_free(struct carry *c)
{
    headers_free(&c->damaged);
}
