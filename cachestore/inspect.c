/*
 * Inspection of a store that nobody has open: what cachestore-admin is built on.
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

#include "cachestore/catalog.h"
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/store_file.h"
#include "cachestore/tier_disk_impl.h"
#include "formats/note_row.h"

enum { NONE = UINT32_MAX };

struct entry {
    struct cs_span_info info;
    uint64_t row_hash;
    struct fmt_record_run first_run;
    uint32_t parent;               /* entry index or NONE */
    uint32_t first_child, sibling; /* built by order() */
};

struct cs_inspect {
    int dir_fd;
    struct store_file store;
    struct volumes volumes;
    struct catalog *catalog; /* NULL: not readable */
    struct cs_store_info info;
    struct entry *entries;
    uint32_t n;
    size_t room;
    uint32_t *by_id;     /* entry indices sorted by record id */
    uint32_t *by_parent; /* entry indices sorted by the parent key they want */
    uint32_t first_root;
};

/* ---- loading ----------------------------------------------------------------------------------------- */

static int entry_add(struct cs_inspect *in, const struct fmt_record *r, const void *row)
{
    if (in->n == NONE || !list_reserve((void **)&in->entries, &in->room, in->n, sizeof *in->entries))
        return CS_ENOMEM;
    struct entry *e = &in->entries[in->n++];
    memset(e, 0, sizeof *e);
    e->parent = e->first_child = e->sibling = NONE;
    e->row_hash = XXH3_64bits(row, fmt_record_row_bytes(r) - r->notes_bytes); /* what a header has, too */
    e->first_run = r->runs[0];
    struct cs_span_info *s = &e->info;
    s->record_id[0] = r->id_nonce;
    s->record_id[1] = r->id_sequence;
    s->key = (struct cs_key){r->key[0], r->key[1]};
    s->parent = (struct cs_key){r->parent[0], r->parent[1]};
    memcpy(s->fingerprint, r->fingerprint, sizeof s->fingerprint);
    memcpy(s->tenant.id, r->tenant, sizeof s->tenant.id);
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

static int compare_key(struct cs_key a, struct cs_key b)
{
    int c = compare_u64(a.hi, b.hi);
    return c != 0 ? c : compare_u64(a.lo, b.lo);
}

static int by_parent_order(const void *a, const void *b, void *ctx)
{
    const struct entry *entries = ctx;
    return compare_key(entries[*(const uint32_t *)a].info.parent, entries[*(const uint32_t *)b].info.parent);
}

static struct entry *entry_find(const struct cs_inspect *in, uint64_t nonce, uint64_t sequence)
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

static int row_to_entry(void *ctx, const struct catalog_row *row)
{
    struct cs_inspect *in = ctx;
    struct fmt_record r;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK || r.id_nonce != row->id.nonce ||
        r.id_sequence != row->id.sequence || memcmp(r.store_uuid, in->store.uuid, sizeof r.store_uuid) != 0)
        return CS_OK; /* the next open deletes it */
    in->info.n_notes += r.n_notes;
    return entry_add(in, &r, row->value);
}

static int header_to_entry(void *ctx, const struct fmt_record *r, const void *header)
{
    return entry_add(ctx, r, header);
}

static int row_to_use(void *ctx, const struct catalog_row *row)
{
    struct entry *e = entry_find(ctx, row->id.nonce, row->id.sequence);
    if (e != NULL && row->len == sizeof e->info.used_unix)
        memcpy(&e->info.used_unix, row->value, sizeof e->info.used_unix);
    return CS_OK;
}

static int row_to_notes(void *ctx, const struct catalog_row *row)
{
    struct cs_inspect *in = ctx;
    size_t n_notes;
    if (entry_find(in, row->id.nonce, row->id.sequence) != NULL &&
        fmt_notes_check(row->value, row->len, &n_notes) == 0)
        in->info.n_notes += n_notes;
    return CS_OK;
}

/* ---- the tree ---------------------------------------------------------------------------------------- */

/* r's pages may be the parents that others want. */
static void adopt(struct cs_inspect *in, const struct fmt_record *r)
{
    struct entry *parent = entry_find(in, r->id_nonce, r->id_sequence);
    if (parent == NULL || r->kind == FMT_RECORD_CHECKPOINT || r->page_tokens > KEY_MAX_PAGE_TOKENS)
        return;
    struct cs_key key = parent->info.key;
    for (uint32_t page = 0; page < r->n_pages; page++) {
        if (page > 0)
            key = key_next(key, r->ids + (size_t)page * r->page_tokens, r->page_tokens);
        uint32_t low = 0, high = in->n;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (compare_key(in->entries[in->by_parent[middle]].info.parent, key) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        for (; low < in->n; low++) {
            struct entry *child = &in->entries[in->by_parent[low]];
            if (compare_key(child->info.parent, key) != 0)
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

static int header_adopts(void *ctx, const struct fmt_record *r, const void *header)
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

/* Links children to parents, a span's checkpoints before the spans that follow it. */
static void link_tree(struct cs_inspect *in)
{
    in->first_root = NONE;
    link_kind(in, false);
    link_kind(in, true);
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
        rc = volumes_scan_headers(&in->volumes, in->store.uuid, header_to_entry, in);
    if (rc != CS_OK)
        return rc;
    in->info.catalog_ok = in->catalog != NULL || (in->volumes.n_volumes == 0 && in->info.catalog_bytes == 0);
    in->by_id = malloc((in->n + 1u) * sizeof *in->by_id);
    in->by_parent = malloc((in->n + 1u) * sizeof *in->by_parent);
    if (in->by_id == NULL || in->by_parent == NULL)
        return CS_ENOMEM;
    for (uint32_t i = 0; i < in->n; i++)
        in->by_id[i] = in->by_parent[i] = i;
    qsort_r(in->by_id, in->n, sizeof *in->by_id, by_id_order, in->entries);
    qsort_r(in->by_parent, in->n, sizeof *in->by_parent, by_parent_order, in->entries);
    if (in->catalog != NULL) {
        rc = catalog_scan(in->catalog, CATALOG_USED, row_to_use, in);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_NOTES, row_to_notes, in);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_RECORD, row_adopts, in);
        if (rc == CS_ECORRUPT) {
            in->info.catalog_ok = false;
            rc = CS_OK;
        }
    } else {
        rc = volumes_scan_headers(&in->volumes, in->store.uuid, header_adopts, in);
    }
    if (rc != CS_OK)
        return rc;
    link_tree(in);
    return CS_OK;
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
    char note[1], problem[256];
    int rc = store_dir_lock(dir, false, &in->dir_fd, err, err_len);
    if (rc == CS_OK) {
        rc = store_file_read(in->dir_fd, &in->store, err, err_len);
        if (rc == CS_ENOTFOUND)
            rc = CS_EFORMAT;
    }
    if (rc != CS_OK)
        goto fail;
    rc = volumes_open(&in->volumes, in->dir_fd, in->store.chunk_bytes, in->store.chunk_bytes, true, note, 0);
    if (rc < 0) {
        snprintf(err, err_len, "cannot open the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
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
    rc = catalog_open(in->dir_fd, true, 8u << 20, &in->catalog, problem, sizeof problem);
    uint8_t uuid[16];
    uint32_t epoch;
    if (rc == CS_OK && (catalog_store_get(in->catalog, uuid, &epoch) != CS_OK ||
                        memcmp(uuid, in->store.uuid, sizeof uuid) != 0)) {
        catalog_close(in->catalog);
        in->catalog = NULL;
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

void cs_inspect_close(struct cs_inspect *in)
{
    if (in == NULL)
        return;
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
    *out = in->info;
    return CS_OK;
}

int cs_inspect_spans(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_span_info *span), void *ctx)
{
    uint32_t at = in->first_root, depth = 0;
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

/* ---- verify ------------------------------------------------------------------------------------------ */

/* 0, or -errno; -ENODATA: the file ends before. */
static int read_at(const struct cs_inspect *in, uint32_t volume, uint64_t offset, void *out, uint64_t len)
{
    if (volume >= in->volumes.n_volumes || in->volumes.volume[volume].fd < 0)
        return -ENODATA;
    for (uint64_t done = 0; done < len;) {
        ssize_t n =
            pread(in->volumes.volume[volume].fd, (char *)out + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        done += (uint64_t)n;
    }
    return 0;
}

/* Bytes [from, from + len) of a record. */
static int record_read(const struct cs_inspect *in, const struct fmt_record *r, uint64_t from, uint8_t *out,
                       uint64_t len)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < r->n_runs && len > 0; i++) {
        uint64_t bytes = (uint64_t)r->runs[i].n_chunks * r->chunk_bytes;
        if (from < start + bytes) {
            uint64_t inside = from - start, take = bytes - inside < len ? bytes - inside : len;
            uint64_t offset = (uint64_t)r->runs[i].first_chunk * r->chunk_bytes + inside;
            int rc = read_at(in, r->runs[i].volume, offset, out, take);
            if (rc < 0)
                return rc;
            out += take;
            from += take;
            len -= take;
        }
        start += bytes;
    }
    return len == 0 ? 0 : -ENODATA;
}

static int verify_failed(int rc, const char *what, char *why, size_t why_len)
{
    if (rc == -ENODATA)
        snprintf(why, why_len, "%s lies behind the end of its volume, or the volume is missing", what);
    else
        snprintf(why, why_len, "%s cannot be read: %s", what, strerror(-rc));
    return rc == -ENODATA ? CS_ECORRUPT : CS_EIO;
}

int cs_inspect_verify(struct cs_inspect *in, const struct cs_span_info *span, char *why, size_t why_len)
{
    const char *piece = span->checkpoint ? "block" : "page";
    const struct entry *e = entry_find(in, span->record_id[0], span->record_id[1]);
    if (why_len > 0)
        why[0] = 0;
    if (e == NULL)
        return CS_ENOTFOUND;
    uint64_t stride = e->info.payload_bytes / e->info.n_pages, header_bytes = in->store.chunk_bytes;
    if (header_bytes > FMT_RECORD_HEADER_MAX)
        header_bytes = FMT_RECORD_HEADER_MAX;
    uint8_t *header = aligned_alloc(FMT_RECORD_ALIGN, header_bytes), *page = malloc(stride);
    int rc = header == NULL || page == NULL ? CS_ENOMEM : CS_OK;
    if (rc != CS_OK)
        goto out;
    rc = read_at(in, e->first_run.volume, (uint64_t)e->first_run.first_chunk * in->store.chunk_bytes, header,
                 FMT_RECORD_ALIGN);
    uint64_t whole = 0;
    if (rc == 0 && fmt_record_peek(header, FMT_RECORD_ALIGN, &whole) == FMT_RECORD_OK &&
        whole > FMT_RECORD_ALIGN && whole <= header_bytes)
        rc = read_at(in, e->first_run.volume, (uint64_t)e->first_run.first_chunk * in->store.chunk_bytes,
                     header, whole);
    if (rc < 0) {
        rc = verify_failed(rc, "the header", why, why_len);
        goto out;
    }
    struct fmt_record r;
    rc = fmt_record_decode(header, header_bytes, &r);
    if (rc != FMT_RECORD_OK) {
        snprintf(why, why_len, "header: %s", fmt_record_strerror(rc));
        rc = CS_ECORRUPT;
        goto out;
    }
    if (r.id_nonce != e->info.record_id[0] || r.id_sequence != e->info.record_id[1] ||
        XXH3_64bits(header, fmt_record_row_bytes(&r)) != e->row_hash) {
        snprintf(why, why_len, "the header is another record's than the catalogue says");
        rc = CS_ECORRUPT;
        goto out;
    }
    fmt_record_peek(header, FMT_RECORD_ALIGN, &whole);
    for (uint32_t i = 0; i < r.n_pages; i++) {
        rc = record_read(in, &r, whole + i * stride, page, stride);
        if (rc < 0) {
            char what[32];
            snprintf(what, sizeof what, "%s %u", piece, i);
            rc = verify_failed(rc, what, why, why_len);
            goto out;
        }
        uint64_t seed = fmt_record_page_seed(r.store_uuid, r.id_nonce, r.id_sequence, i);
        if (fmt_record_page_sum(page, stride, seed) != r.page_sums[i]) {
            snprintf(why, why_len, "%s %u of %u: checksum", piece, i, r.n_pages);
            rc = CS_ECORRUPT;
            goto out;
        }
    }
out:
    free(header);
    free(page);
    return rc;
}
