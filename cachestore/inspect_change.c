/*
 * What changes a store that nobody has open: deliberate deletion, pins, quotas.
 *
 * Deletion must hold against a rebuild, which believes record headers. So headers go first, synced, and rows
 * after them: a crash in between leaves rows whose records are misses, and whoever deletes again finds them.
 * Eviction by the running store leaves headers in free chunks; those of the same records, tenants or paths
 * are zeroed as well, or a rebuild would find there what is not to be found again. The purge epoch rises
 * first, so that what is written later can be told from what was there before. Bytes of pages stay in free
 * chunks until others are written over them; without a header nothing leads to them.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"

enum { BATCH_ROWS = 256 };
#define CATALOG_SHARE (8ull << 20)

/* The catalogue for writing; what was open for reading is closed. */
static int catalog_for_writing(struct cs_inspect *in, char *err, size_t err_len)
{
    char problem[256] = "";
    catalog_close(in->catalog);
    in->catalog = NULL;
    if (!catalog_has_room(in->dir_fd, catalog_reserve_bytes(CATALOG_SHARE))) {
        snprintf(err, err_len, "the file system is full");
        return CS_EIO;
    }
    int rc = catalog_open(in->dir_fd, false, CATALOG_SHARE, &in->catalog, problem, sizeof problem);
    if (rc != CS_OK)
        snprintf(err, err_len, "cannot open the catalogue: %s", problem);
    return rc;
}

/* For what only a catalogue that reads can take. */
static int catalog_for_rows(struct cs_inspect *in, char *err, size_t err_len)
{
    if (in->catalog != NULL)
        return catalog_for_writing(in, err, err_len);
    snprintf(err, err_len, "the catalogue is not readable: it has to be rebuilt first");
    return CS_ECORRUPT;
}

static int failed(int rc, const char *what, char *err, size_t err_len)
{
    if (rc < 0)
        snprintf(err, err_len, "cannot %s: %s", what, cs_strerror(rc));
    return rc;
}

static int on_scanned(void *ctx, uint64_t n_chunks, uint64_t n_all)
{
    const struct cs_inspect *in = ctx;
    return in->progress(in->progress_ctx, n_chunks * in->store.chunk_bytes, n_all * in->store.chunk_bytes);
}

void cs_inspect_progress(struct cs_inspect *in, int (*fn)(void *ctx, uint64_t done_bytes, uint64_t all_bytes),
                         void *ctx)
{
    in->progress = fn;
    in->progress_ctx = ctx;
    in->volumes.scanned = fn != NULL ? on_scanned : NULL;
    in->volumes.scanned_ctx = in;
}

/* ---- which records go -------------------------------------------------------------------------------- */

struct leftovers {
    const struct cs_inspect *known;
    struct cs_inspect found;
};

static int leftover_add(void *ctx, const struct fmt_record *r, const void *header)
{
    struct leftovers *l = ctx;
    if (inspect_entry(l->known, r->id_nonce, r->id_sequence) != NULL)
        return CS_OK;
    return inspect_entry_add(&l->found, r, header);
}

int inspect_leftovers_load(struct cs_inspect *in)
{
    struct leftovers l = {.known = in};
    int rc = inspect_scan_headers(in, leftover_add, &l);
    for (uint32_t i = 0; i < l.found.n && rc == CS_OK; i++) {
        if (in->n == NONE || !list_reserve((void **)&in->entries, &in->room, in->n, sizeof *in->entries)) {
            rc = CS_ENOMEM;
            break;
        }
        in->entries[in->n] = l.found.entries[i];
        in->entries[in->n++].leftover = true;
    }
    free(l.found.entries);
    if (rc == CS_OK)
        rc = inspect_sort(in);
    if (rc == CS_OK)
        rc = inspect_scan_headers(in, inspect_header_adopts, in);
    return rc;
}

static int by_place_order(const void *a, const void *b, void *ctx)
{
    const struct entry *entries = ctx;
    const struct cs_span_info *x = &entries[*(const uint32_t *)a].info;
    const struct cs_span_info *y = &entries[*(const uint32_t *)b].info;
    if (x->first_position != y->first_position)
        return x->first_position < y->first_position ? -1 : 1;
    return inspect_compare_key(x->key, y->key);
}

/* Parents lie before their children, so one pass by position sees them first. */
void inspect_mark(const struct cs_inspect *in, uint32_t *by_place, bool below, bool *goes)
{
    for (uint32_t i = 0; i < in->n; i++)
        by_place[i] = i;
    qsort_r(by_place, in->n, sizeof *by_place, by_place_order, in->entries);
    for (uint32_t i = 0, end; i < in->n; i = end) {
        bool any = false;
        for (end = i; end < in->n && by_place_order(&by_place[i], &by_place[end], in->entries) == 0; end++) {
            uint32_t parent = in->entries[by_place[end]].parent;
            any = any || goes[by_place[end]] || (below && parent != NONE && goes[parent]);
        }
        for (uint32_t k = i; k < end; k++)
            goes[by_place[k]] = any;
    }
}

/* ---- headers ----------------------------------------------------------------------------------------- */

static int zero_at(int fd, uint64_t offset, uint64_t bytes)
{
    static const uint8_t zeros[FMT_RECORD_ALIGN];
    while (bytes > 0) {
        size_t take = bytes < sizeof zeros ? bytes : sizeof zeros;
        ssize_t n = pwrite(fd, zeros, take, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Zeroes the header of an entry, if it is there: what does not decode as this record cannot come back, and
 * may be another's. */
static int header_zero(const struct cs_inspect *in, const struct entry *e, int fd)
{
    char why[160];
    uint8_t *header;
    struct fmt_record r;
    int rc = inspect_header_read(in, e, &header, &r, why, sizeof why);
    if (rc == CS_OK &&
        zero_at(fd, (uint64_t)e->first_run.first_chunk * in->store.chunk_bytes, r.header_bytes) < 0)
        rc = CS_EIO;
    free(header);
    return rc == CS_ECORRUPT ? CS_OK : rc;
}

/* All of one volume, then a sync. */
static int volume_zero(const struct cs_inspect *in, const bool *goes, uint32_t volume, char *err,
                       size_t err_len)
{
    int fd = -1, rc = CS_OK;
    for (uint32_t i = 0; i < in->n && rc == CS_OK; i++) {
        if (!goes[i] || in->entries[i].first_run.volume != volume)
            continue;
        if (fd < 0 && (fd = volumes_open_buffered(&in->volumes, volume)) < 0) {
            snprintf(err, err_len, "volume %u cannot be opened: %s", volume, strerror(-fd));
            return CS_EIO;
        }
        rc = header_zero(in, &in->entries[i], fd);
        if (rc != CS_OK)
            snprintf(err, err_len, "a header in volume %u cannot be zeroed", volume);
    }
    if (fd >= 0 && fdatasync(fd) < 0 && rc == CS_OK) {
        snprintf(err, err_len, "volume %u cannot be synced: %s", volume, strerror(errno));
        rc = CS_EIO;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Goes on behind a volume that fails: as much as possible is zeroed. */
static int headers_zero(const struct cs_inspect *in, const bool *goes, char *err, size_t err_len)
{
    int rc = CS_OK;
    for (uint32_t volume = 0; volume < in->volumes.n_volumes; volume++) {
        int one = volume_zero(in, goes, volume, err, err_len);
        rc = rc == CS_OK ? one : rc;
    }
    for (uint32_t i = 0; i < in->n && rc == CS_OK; i++) {
        if (goes[i] && in->entries[i].first_run.volume >= in->volumes.n_volumes) {
            snprintf(err, err_len, "volume %u is missing", in->entries[i].first_run.volume);
            rc = CS_EIO;
        }
    }
    return rc;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static int rows_delete(struct cs_inspect *in, const bool *goes, char *err, size_t err_len)
{
    int rc = catalog_for_writing(in, err, err_len);
    if (rc == CS_ECORRUPT) /* the next open makes it again, from what headers there are */
        return CS_OK;
    for (uint32_t i = 0; i < in->n && rc == CS_OK; i++) {
        const struct cs_span_info *s = &in->entries[i].info;
        struct record_id id = {.nonce = s->record_id[0], .sequence = s->record_id[1]};
        if (!goes[i] || in->entries[i].leftover)
            continue;
        catalog_delete(in->catalog, CATALOG_RECORD, id);
        catalog_delete(in->catalog, CATALOG_USED, id);
        catalog_delete(in->catalog, CATALOG_PINNED, id);
        catalog_delete_notes_of(in->catalog, id);
        if (catalog_batch_rows(in->catalog) >= BATCH_ROWS)
            rc = failed(catalog_commit(in->catalog, true), "delete rows", err, err_len);
    }
    return rc == CS_OK ? failed(catalog_commit(in->catalog, true), "delete rows", err, err_len) : rc;
}

int cs_inspect_evict(struct cs_inspect *in, int (*wanted)(void *ctx, const struct cs_span_info *span),
                     void *ctx, bool below, struct cs_evicted *out, char *err, size_t err_len)
{
    memset(out, 0, sizeof *out);
    if (in->live != NULL)
        return inspect_live_delete(in, wanted, ctx, below, out, err, err_len);
    bool readable = in->catalog != NULL;
    int rc = failed(inspect_leftovers_load(in), "read the volumes", err, err_len);
    uint32_t *by_place = malloc(((size_t)in->n + 1) * sizeof *by_place);
    bool *goes = calloc((size_t)in->n + 1, sizeof *goes);
    if (rc == CS_OK && (by_place == NULL || goes == NULL))
        rc = failed(CS_ENOMEM, "evict", err, err_len);
    if (rc != CS_OK)
        goto out;
    for (uint32_t i = 0; i < in->n; i++)
        goes[i] = wanted(ctx, &in->entries[i].info) != 0;
    inspect_mark(in, by_place, below, goes);
    uint64_t n = 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const struct entry *e = &in->entries[i];
        n += goes[i];
        if (goes[i] && !e->leftover) {
            *(e->info.checkpoint ? &out->checkpoints : &out->spans) += 1;
            out->disk_bytes += e->info.disk_bytes;
        }
        out->leftovers += goes[i] && e->leftover;
    }
    if (n == 0)
        goto out;
    struct store_file raised = in->store;
    raised.purge_epoch++;
    rc = store_file_update(in->dir_fd, &raised, err, err_len);
    if (rc != CS_OK) {
        memset(out, 0, sizeof *out); /* nothing has been touched */
        goto out;
    }
    in->store = raised;
    rc = headers_zero(in, goes, err, err_len);
    /* Rows go all the same: nothing is served, and only a rebuild could bring back what could not be zeroed.
     */
    int rows = readable ? rows_delete(in, goes, err, err_len) : CS_OK;
    if (rc == CS_OK)
        rc = rows;
out:
    free(by_place);
    free(goes);
    return rc;
}

/* ---- pins -------------------------------------------------------------------------------------------- */

int cs_inspect_pin(struct cs_inspect *in, const struct cs_span_info *span, bool pinned, char *err,
                   size_t err_len)
{
    if (in->live != NULL)
        return inspect_live_set_pin(in, span, pinned, err, err_len);
    struct record_id id = {.nonce = span->record_id[0], .sequence = span->record_id[1]};
    if (inspect_entry(in, id.nonce, id.sequence) == NULL)
        return failed(CS_ENOTFOUND, "pin", err, err_len);
    int rc = catalog_for_rows(in, err, err_len);
    if (rc != CS_OK)
        return rc;
    if (pinned)
        catalog_put(in->catalog, CATALOG_PINNED, id, "", 0);
    else
        catalog_delete(in->catalog, CATALOG_PINNED, id);
    return failed(catalog_commit(in->catalog, true), "write the pin", err, err_len);
}

/* ---- quotas ------------------------------------------------------------------------------------------ */

static void quota_put(struct catalog *c, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    uint8_t value[CATALOG_QUOTA_BYTES];
    catalog_quota_encode(quota, value);
    catalog_put(c, CATALOG_QUOTA, catalog_quota_id(tenant), value, sizeof value);
}

int cs_inspect_quota_set(struct cs_inspect *in, const struct cs_tenant *tenant, const struct cs_quota *quota,
                         char *err, size_t err_len)
{
    static const struct cs_tenant anonymous;
    if (tenant == NULL)
        tenant = &anonymous;
    if (in->live != NULL)
        return failed(inspect_live_set_quota(in, tenant, quota), "set the quota", err, err_len);
    int rc = catalog_for_rows(in, err, err_len);
    if (rc != CS_OK)
        return rc;
    if (catalog_quota_is_none(quota))
        catalog_delete(in->catalog, CATALOG_QUOTA, catalog_quota_id(tenant));
    else
        quota_put(in->catalog, tenant, quota);
    return failed(catalog_commit(in->catalog, true), "write the quota", err, err_len);
}

struct quotas_told {
    int (*fn)(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota);
    void *ctx;
};

static int quota_tell(void *ctx, const struct catalog_row *row)
{
    const struct quotas_told *told = ctx;
    struct cs_quota quota;
    if (!catalog_quota_decode(row->value, row->len, &quota) || catalog_quota_is_none(&quota))
        return CS_OK;
    struct cs_tenant tenant = catalog_quota_tenant(row->id);
    return told->fn(told->ctx, &tenant, &quota);
}

int cs_inspect_quotas(struct cs_inspect *in,
                      int (*fn)(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota),
                      void *ctx)
{
    struct quotas_told told = {.fn = fn, .ctx = ctx};
    if (in->catalog == NULL)
        return CS_OK;
    int rc = catalog_scan(in->catalog, CATALOG_QUOTA, quota_tell, &told);
    return rc == CS_ECORRUPT ? CS_EIO : rc;
}
