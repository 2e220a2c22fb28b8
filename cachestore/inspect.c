/*
 * Inspection of a store that nobody has open, and what cachestore-admin is built on: opening it, its records
 * as a tree. inspect_read.c reads one of them, inspect_find.c finds keys and token ids, inspect_change.c
 * changes the store.
 *
 * The rows are read once into small entries (no token ids) and a second time to find parents: a span or a
 * checkpoint names its parent by the key of one page, so every span's page keys are computed and looked up
 * among the wanted ones. Where the catalogue does not open, the same comes from the headers in the volumes. A
 * row is the first bytes of its record's header, so keeping a hash of it is enough to compare the two when a
 * span is verified.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "formats/note_row.h"

/* ---- loading ----------------------------------------------------------------------------------------- */

int inspect_entry_add(struct cs_inspect *in, const struct fmt_record *r, const void *row)
{
    if (in->n == NONE || !list_reserve((void **)&in->entries, &in->room, in->n, sizeof *in->entries))
        return CS_ENOMEM;
    struct entry *e = &in->entries[in->n++];
    memset(e, 0, sizeof *e);
    e->parent = e->first_child = e->sibling = NONE;
    e->row_hash = XXH3_64bits(row, fmt_record_row_bytes(r) - r->notes_bytes); /* what a header has, too */
    e->first_run = r->runs[0];
    e->header_bytes = r->header_bytes;
    struct cs_span_info *s = &e->info;
    s->record_id[0] = r->id_nonce;
    s->record_id[1] = r->id_sequence;
    s->key = (struct cs_key){r->key[0], r->key[1]};
    s->parent = (struct cs_key){r->parent[0], r->parent[1]};
    memcpy(s->fingerprint, r->fingerprint, sizeof s->fingerprint);
    memcpy(s->tenant.id, r->tenant, sizeof s->tenant.id);
    s->on_disk = true;
    s->checkpoint = r->kind == FMT_RECORD_CHECKPOINT;
    s->boundary = (enum cs_boundary_kind)r->flags; /* at most FMT_RECORD_FLAGS_MAX */
    s->first_position = r->first_position;
    s->n_tokens = s->checkpoint ? 0 : r->n_pages * r->page_tokens;
    s->n_pages = r->n_pages;
    s->payload_bytes = r->n_pages * fmt_record_stride(r->page_bytes);
    s->disk_bytes = (uint64_t)r->n_chunks * r->chunk_bytes;
    s->created_unix = s->used_unix = r->created_unix;
    *(s->checkpoint ? &in->info.n_checkpoints : &in->info.n_spans) += 1;
    *(s->checkpoint ? &in->info.checkpoint_bytes : &in->info.payload_bytes) += s->payload_bytes;
    return CS_OK;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_id(const struct cs_span_info *s, uint64_t nonce, uint64_t sequence)
{
    int c = compare_u64(s->record_id[1], sequence);
    return c != 0 ? c : compare_u64(s->record_id[0], nonce);
}

static int by_id_order(const void *a, const void *b, void *ctx)
{
    const struct entry *entries = ctx;
    const struct cs_span_info *y = &entries[*(const uint32_t *)b].info;
    return compare_id(&entries[*(const uint32_t *)a].info, y->record_id[0], y->record_id[1]);
}

int inspect_compare_key(struct cs_key a, struct cs_key b)
{
    int c = compare_u64(a.hi, b.hi);
    return c != 0 ? c : compare_u64(a.lo, b.lo);
}

static int by_parent_order(const void *a, const void *b, void *ctx)
{
    const struct entry *entries = ctx;
    return inspect_compare_key(entries[*(const uint32_t *)a].info.parent,
                               entries[*(const uint32_t *)b].info.parent);
}

struct entry *inspect_entry(const struct cs_inspect *in, uint64_t nonce, uint64_t sequence)
{
    uint32_t low = 0, high = in->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_id(&in->entries[in->by_id[middle]].info, nonce, sequence) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == in->n)
        return NULL;
    struct entry *e = &in->entries[in->by_id[low]];
    return compare_id(&e->info, nonce, sequence) == 0 ? e : NULL;
}

uint32_t inspect_first_child(const struct cs_inspect *in, struct cs_key parent)
{
    uint32_t low = 0, high = in->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (inspect_compare_key(in->entries[in->by_parent[middle]].info.parent, parent) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int row_to_entry(void *ctx, const struct catalog_row *row)
{
    struct cs_inspect *in = ctx;
    struct fmt_record r;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK || r.id_nonce != row->id.nonce ||
        r.id_sequence != row->id.sequence || memcmp(r.store_uuid, in->store.uuid, sizeof r.store_uuid) != 0)
        return CS_OK; /* the next open deletes it */
    in->info.n_notes += r.n_notes;
    return inspect_entry_add(in, &r, row->value);
}

static int header_to_entry(void *ctx, const struct fmt_record *r, const void *header)
{
    return inspect_entry_add(ctx, r, header);
}

static int row_to_use(void *ctx, const struct catalog_row *row)
{
    struct entry *e = inspect_entry(ctx, row->id.nonce, row->id.sequence);
    if (e != NULL && row->len == sizeof e->info.used_unix)
        memcpy(&e->info.used_unix, row->value, sizeof e->info.used_unix);
    return CS_OK;
}

static int row_to_pin(void *ctx, const struct catalog_row *row)
{
    struct entry *e = inspect_entry(ctx, row->id.nonce, row->id.sequence);
    if (e != NULL)
        e->info.pinned = true;
    return CS_OK;
}

static int row_to_notes(void *ctx, const struct catalog_row *row)
{
    struct cs_inspect *in = ctx;
    size_t n_notes;
    if (inspect_entry(in, row->id.nonce, row->id.sequence) != NULL &&
        fmt_notes_check(row->value, row->len, &n_notes) == 0)
        in->info.n_notes += n_notes;
    return CS_OK;
}

int inspect_scan_headers(const struct cs_inspect *in,
                         int (*fn)(void *ctx, const struct fmt_record *r, const void *header), void *ctx)
{
    return volumes_scan_headers(&in->volumes, CS_IO_AUTO, in->store.uuid, fn, ctx);
}

/* ---- the tree ---------------------------------------------------------------------------------------- */

/* r's pages may be the parents that others want. */
static void adopt(struct cs_inspect *in, const struct fmt_record *r)
{
    struct entry *parent = inspect_entry(in, r->id_nonce, r->id_sequence);
    if (parent == NULL || r->kind == FMT_RECORD_CHECKPOINT || r->page_tokens > KEY_MAX_PAGE_TOKENS)
        return;
    struct cs_key key = parent->info.key;
    for (uint32_t page = 0; page < r->n_pages; page++) {
        if (page > 0)
            key = key_next(key, r->ids + (size_t)page * r->page_tokens, r->page_tokens);
        for (uint32_t at = inspect_first_child(in, key); at < in->n; at++) {
            struct entry *child = &in->entries[in->by_parent[at]];
            if (inspect_compare_key(child->info.parent, key) != 0)
                break;
            /* Positions must agree, which also makes a circle impossible. */
            if (child->info.first_position != parent->info.first_position + (page + 1) * r->page_tokens ||
                memcmp(child->info.fingerprint, r->fingerprint, sizeof r->fingerprint) != 0)
                continue;
            child->parent = (uint32_t)(parent - in->entries);
            memcpy(child->info.parent_record_id, parent->info.record_id, sizeof child->info.parent_record_id);
        }
    }
}

static int row_adopts(void *ctx, const struct catalog_row *row)
{
    struct fmt_record r;
    if (fmt_record_row_decode(row->value, row->len, &r) == FMT_RECORD_OK)
        adopt(ctx, &r);
    return CS_OK;
}

int inspect_header_adopts(void *ctx, const struct fmt_record *r, const void *header)
{
    (void)header;
    adopt(ctx, r);
    return CS_OK;
}

/* by_id is by age, so going through it backwards leaves each list oldest first. */
static void link_kind(struct cs_inspect *in, bool checkpoints)
{
    for (uint32_t i = in->n; i > 0; i--) {
        uint32_t index = in->by_id[i - 1];
        struct entry *e = &in->entries[index];
        if (e->info.checkpoint != checkpoints)
            continue;
        uint32_t *head = e->parent == NONE ? &in->first_root : &in->entries[e->parent].first_child;
        e->sibling = *head;
        *head = index;
    }
}

void inspect_link_tree(struct cs_inspect *in)
{
    in->first_root = NONE;
    link_kind(in, false);
    link_kind(in, true);
}

int inspect_sort(struct cs_inspect *in)
{
    free(in->by_id);
    free(in->by_parent);
    in->by_id = malloc((in->n + 1u) * sizeof *in->by_id);
    in->by_parent = malloc((in->n + 1u) * sizeof *in->by_parent);
    if (in->by_id == NULL || in->by_parent == NULL)
        return CS_ENOMEM;
    for (uint32_t i = 0; i < in->n; i++)
        in->by_id[i] = in->by_parent[i] = i;
    qsort_r(in->by_id, in->n, sizeof *in->by_id, by_id_order, in->entries);
    qsort_r(in->by_parent, in->n, sizeof *in->by_parent, by_parent_order, in->entries);
    return CS_OK;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static int load_entries(struct cs_inspect *in)
{
    int rc = CS_OK;
    if (in->catalog != NULL) {
        rc = catalog_scan(in->catalog, CATALOG_RECORD, row_to_entry, in);
        if (rc == CS_ECORRUPT) {
            catalog_close(in->catalog);
            in->catalog = NULL;
            in->n = 0;
            in->info.n_spans = in->info.n_checkpoints = in->info.n_notes = 0;
            in->info.payload_bytes = in->info.checkpoint_bytes = 0;
        }
    }
    if (in->catalog == NULL)
        rc = inspect_scan_headers(in, header_to_entry, in);
    if (rc != CS_OK)
        return rc;
    in->info.catalog_ok = in->catalog != NULL || (in->volumes.n_volumes == 0 && in->info.catalog_bytes == 0);
    rc = inspect_sort(in);
    if (rc != CS_OK)
        return rc;
    if (in->catalog != NULL) {
        rc = catalog_scan(in->catalog, CATALOG_USED, row_to_use, in);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_PINNED, row_to_pin, in);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_NOTES, row_to_notes, in);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_RECORD, row_adopts, in);
        if (rc == CS_ECORRUPT) {
            in->info.catalog_ok = false;
            rc = CS_OK;
        }
    } else {
        rc = inspect_scan_headers(in, inspect_header_adopts, in);
    }
    if (rc != CS_OK)
        return rc;
    inspect_link_tree(in);
    return CS_OK;
}

void inspect_measure(struct cs_inspect *in)
{
    in->info.format_version = STORE_FORMAT_VERSION;
    store_uuid_text(in->store.uuid, in->info.uuid);
    in->info.chunk_bytes = in->store.chunk_bytes;
    in->info.catalog_bytes = catalog_disk_bytes(in->dir_fd);
    for (uint32_t i = 0; i < in->volumes.n_volumes; i++) {
        struct stat st;
        if (in->volumes.volume[i].fd >= 0 && fstat(in->volumes.volume[i].fd, &st) == 0)
            in->info.volume_bytes += (uint64_t)st.st_blocks * 512;
    }
    in->info.disk_bytes = in->info.volume_bytes + in->info.catalog_bytes + FMT_RECORD_ALIGN;
}

int cs_inspect_open(const char *dir, struct cs_inspect **out, char *err, size_t err_len)
{
    *out = NULL;
    struct cs_inspect *in = calloc(1, sizeof *in);
    if (in == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    in->dir_fd = -1;
    in->first_root = NONE;
    char problem[256];
    int rc = store_dir_lock(dir, false, &in->dir_fd, err, err_len);
    if (rc == CS_OK) {
        rc = store_file_read(in->dir_fd, &in->store, err, err_len);
        if (rc == CS_ENOTFOUND)
            rc = CS_EFORMAT;
    }
    if (rc != CS_OK)
        goto fail;
    rc = volumes_open(&in->volumes, in->dir_fd, in->store.chunk_bytes, in->store.chunk_bytes, true);
    if (rc < 0) {
        snprintf(err, err_len, "cannot open the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    store_scratch_remove(in->dir_fd);
    inspect_measure(in);
    rc = catalog_open(in->dir_fd, true, 8u << 20, &in->catalog, problem, sizeof problem);
    uint8_t uuid[16];
    uint32_t epoch;
    if (rc == CS_OK && (catalog_store_get(in->catalog, uuid, &epoch) != CS_OK ||
                        memcmp(uuid, in->store.uuid, sizeof uuid) != 0)) {
        catalog_close(in->catalog);
        in->catalog = NULL;
    }
    if (rc == CS_EIO) {
        snprintf(err, err_len, "cannot read the catalogue: %s", problem);
        goto fail;
    }
    if (rc == CS_OK || rc == CS_ECORRUPT)
        rc = load_entries(in);
    if (rc != CS_OK) {
        snprintf(err, err_len, "cannot read the store: %s", cs_strerror(rc));
        goto fail;
    }
    *out = in;
    return CS_OK;
fail:
    cs_inspect_close(in);
    return rc;
}

void cs_inspect_sweep(struct cs_inspect *in)
{
    if (in->live == NULL)
        store_scratch_remove(in->dir_fd);
}

void cs_inspect_close(struct cs_inspect *in)
{
    if (in == NULL)
        return;
    inspect_live_close(in->live);
    catalog_close(in->catalog);
    volumes_close(&in->volumes);
    free(in->entries);
    free(in->by_id);
    free(in->by_parent);
    if (in->dir_fd >= 0)
        close(in->dir_fd);
    free(in);
}

int cs_inspect_info(struct cs_inspect *in, struct cs_store_info *out)
{
    int rc = inspect_live_list(in);
    *out = in->info;
    return rc;
}

int cs_inspect_spans(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_span_info *span), void *ctx)
{
    int listed = inspect_live_list(in);
    uint32_t at = in->first_root, depth = 0;
    if (listed != CS_OK)
        return listed;
    while (at != NONE) {
        struct entry *e = &in->entries[at];
        e->info.depth = depth;
        int rc = fn(ctx, &e->info);
        if (rc != 0)
            return rc;
        if (e->first_child != NONE) {
            at = e->first_child;
            depth++;
            continue;
        }
        while (at != NONE && in->entries[at].sibling == NONE) {
            at = in->entries[at].parent;
            depth -= at != NONE;
        }
        if (at != NONE)
            at = in->entries[at].sibling;
    }
    return CS_OK;
}
