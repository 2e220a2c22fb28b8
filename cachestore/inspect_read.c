/*
 * One record of an inspection: its header, its parts, its pages.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"
#include "formats/note_row.h"

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

static int read_failed(int rc, const char *what, char *why, size_t why_len)
{
    if (rc == -ENODATA)
        snprintf(why, why_len, "%s lies behind the end of its volume, or the volume is missing", what);
    else
        snprintf(why, why_len, "%s cannot be read: %s", what, strerror(-rc));
    return rc == -ENODATA ? CS_ECORRUPT : CS_EIO;
}

int inspect_header_read(const struct cs_inspect *in, const struct entry *e, uint8_t **out,
                        struct fmt_record *r, char *why, size_t why_len)
{
    uint64_t header_bytes = in->store.chunk_bytes, whole = 0;
    uint64_t at = (uint64_t)e->first_run.first_chunk * in->store.chunk_bytes;
    if (header_bytes > FMT_RECORD_HEADER_MAX)
        header_bytes = FMT_RECORD_HEADER_MAX;
    *out = NULL;
    uint8_t *header = aligned_alloc(FMT_RECORD_ALIGN, header_bytes);
    if (header == NULL)
        return CS_ENOMEM;
    int rc = read_at(in, e->first_run.volume, at, header, FMT_RECORD_ALIGN);
    if (rc == 0 && fmt_record_peek(header, FMT_RECORD_ALIGN, &whole) == FMT_RECORD_OK &&
        whole > FMT_RECORD_ALIGN && whole <= header_bytes)
        rc = read_at(in, e->first_run.volume, at, header, whole);
    if (rc < 0) {
        rc = read_failed(rc, "the header", why, why_len);
        goto fail;
    }
    rc = fmt_record_decode(header, header_bytes, r);
    if (rc != FMT_RECORD_OK) {
        snprintf(why, why_len, "header: %s", fmt_record_strerror(rc));
        rc = CS_ECORRUPT;
        goto fail;
    }
    bool same = r->id_nonce == e->info.record_id[0] && r->id_sequence == e->info.record_id[1];
    if (in->live != NULL && !e->foreign) /* which knows what it looks for, not the row */
        same = same && r->key[0] == e->info.key.lo && r->key[1] == e->info.key.hi &&
               r->n_pages == e->info.n_pages && r->first_position == e->info.first_position &&
               memcmp(r->tenant, e->info.tenant.id, sizeof r->tenant) == 0;
    else if (e->row_hash != 0) /* 0: nothing is known but where it lies */
        same = same && XXH3_64bits(header, fmt_record_row_bytes(r)) == e->row_hash;
    if (!same) {
        snprintf(why, why_len, "the header is another record's than the catalogue says");
        rc = CS_ECORRUPT;
        goto fail;
    }
    *out = header;
    return CS_OK;
fail:
    free(header);
    return rc;
}

static int verify(const struct cs_inspect *in, const struct entry *e, char *why, size_t why_len)
{
    const char *piece = e->info.checkpoint ? "block" : "page";
    uint8_t *header, *page = NULL;
    struct fmt_record r;
    int rc = inspect_header_read(in, e, &header, &r, why, why_len);
    if (rc != CS_OK)
        goto out;
    uint64_t stride = fmt_record_stride(r.page_bytes);
    page = malloc(stride);
    if (page == NULL) {
        rc = CS_ENOMEM;
        goto out;
    }
    for (uint32_t i = 0; i < r.n_pages; i++) {
        rc = record_read(in, &r, r.header_bytes + i * stride, page, stride);
        if (rc < 0) {
            char what[32];
            snprintf(what, sizeof what, "%s %u", piece, i);
            rc = read_failed(rc, what, why, why_len);
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

/* What the page cache has of the volumes may be older than what a process has written past it. */
static void forget_cached(const struct cs_inspect *in)
{
    for (uint32_t i = 0; i < in->volumes.n_volumes; i++)
        if (in->volumes.volume[i].fd >= 0)
            (void)posix_fadvise(in->volumes.volume[i].fd, 0, 0, POSIX_FADV_DONTNEED);
}

int inspect_ids(struct cs_inspect *in, const struct entry *e, uint32_t **ids, char *why, size_t why_len)
{
    size_t n_ids;
    if (in->live != NULL && !e->foreign)
        return inspect_live_record(in, e, ids, &n_ids, NULL);
    uint8_t *header;
    struct fmt_record r;
    *ids = NULL;
    int rc = inspect_header_read(in, e, &header, &r, why, why_len);
    if (rc == CS_ECORRUPT && in->live != NULL && !inspect_live_is_there(in, e))
        return CS_ENOTFOUND;
    if (rc != CS_OK)
        return rc;
    size_t bytes = fmt_record_n_ids(r.kind, r.n_pages, r.page_tokens) * sizeof **ids;
    *ids = malloc(bytes);
    if (*ids != NULL)
        memcpy(*ids, r.ids, bytes);
    free(header);
    return *ids != NULL ? CS_OK : CS_ENOMEM;
}

int cs_inspect_verify(struct cs_inspect *in, const struct cs_span_info *span, char *why, size_t why_len)
{
    const struct entry *e = inspect_entry(in, span->record_id[0], span->record_id[1]);
    if (why_len > 0)
        why[0] = 0;
    if (e == NULL)
        return CS_ENOTFOUND;
    if (in->live != NULL && !e->info.on_disk)
        return CS_OK;
    int rc = verify(in, e, why, why_len);
    if (in->live == NULL || rc != CS_ECORRUPT)
        return rc;
    if (inspect_live_is_there(in, e)) {
        forget_cached(in);
        rc = verify(in, e, why, why_len);
    }
    return rc == CS_ECORRUPT && !inspect_live_is_there(in, e) ? CS_ENOTFOUND : rc;
}

/* ---- its parts --------------------------------------------------------------------------------------- */

struct note_search {
    struct cs_record *record;
    uint64_t id[2];
    size_t room;
};

static int add_notes(struct note_search *n, const void *list, size_t n_notes)
{
    size_t at = 0;
    for (size_t i = 0; i < n_notes; i++) {
        struct cs_record *r = n->record;
        struct fmt_note note;
        if (!list_reserve((void **)&r->notes, &n->room, r->n_notes, sizeof *r->notes))
            return CS_ENOMEM;
        fmt_notes_next(list, &at, &note);
        r->notes[r->n_notes++] =
            (struct cs_record_note){.key = {note.key[0], note.key[1]}, .bytes = note.len};
    }
    return CS_OK;
}

static int notes_of_row(void *ctx, const struct catalog_row *row)
{
    struct note_search *n = ctx;
    struct fmt_record r;
    if (row->id.nonce != n->id[0] || row->id.sequence != n->id[1] ||
        fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK)
        return CS_OK;
    return add_notes(n, r.notes, r.n_notes);
}

static int notes_behind_row(void *ctx, const struct catalog_row *row)
{
    struct note_search *n = ctx;
    size_t n_notes;
    if (row->id.nonce != n->id[0] || row->id.sequence != n->id[1] ||
        fmt_notes_check(row->value, row->len, &n_notes) != 0)
        return CS_OK;
    return add_notes(n, row->value, n_notes);
}

/* Of one that is on no disk: what the process knows. */
static int record_in_memory(struct cs_inspect *in, const struct entry *e, struct cs_record **out)
{
    struct cs_record *record = calloc(1, sizeof *record);
    int rc = record == NULL ? CS_ENOMEM : inspect_live_record(in, e, &record->ids, &record->n_ids, record);
    if (rc != CS_OK) {
        cs_record_free(record);
        return rc;
    }
    record->page_tokens = (uint32_t)(record->n_ids / (e->info.checkpoint ? 1 : e->info.n_pages));
    record->page_bytes = e->info.payload_bytes / e->info.n_pages;
    *out = record;
    return CS_OK;
}

int cs_inspect_record(struct cs_inspect *in, const struct cs_span_info *span, struct cs_record **out,
                      char *why, size_t why_len)
{
    const struct entry *e = inspect_entry(in, span->record_id[0], span->record_id[1]);
    *out = NULL;
    if (why_len > 0)
        why[0] = 0;
    if (e == NULL)
        return CS_ENOTFOUND;
    if (in->live != NULL && !e->info.on_disk)
        return record_in_memory(in, e, out);
    uint8_t *header;
    struct fmt_record r;
    int rc = inspect_header_read(in, e, &header, &r, why, why_len);
    if (rc != CS_OK)
        return rc == CS_ECORRUPT && in->live != NULL && !inspect_live_is_there(in, e) ? CS_ENOTFOUND : rc;
    struct cs_record *record = calloc(1, sizeof *record);
    if (record == NULL) {
        rc = CS_ENOMEM;
        goto out;
    }
    record->page_tokens = r.page_tokens;
    record->page_bytes = r.page_bytes;
    record->header_bytes = r.header_bytes;
    record->purge_epoch = r.purge_epoch;
    record->n_ids = fmt_record_n_ids(r.kind, r.n_pages, r.page_tokens);
    record->n_runs = r.n_runs;
    record->ids = malloc(record->n_ids * sizeof *record->ids);
    record->runs = malloc(r.n_runs * sizeof *record->runs);
    if (record->ids == NULL || record->runs == NULL) {
        rc = CS_ENOMEM;
        goto out;
    }
    memcpy(record->ids, r.ids, record->n_ids * sizeof *record->ids);
    for (uint32_t i = 0; i < r.n_runs; i++)
        record->runs[i] = (struct cs_record_run){r.runs[i].volume, r.runs[i].first_chunk, r.runs[i].n_chunks};
    if (in->live != NULL && !e->foreign) {
        uint32_t *ids;
        size_t n_ids;
        rc = inspect_live_record(in, e, &ids, &n_ids, record); /* whose notes nobody else knows */
        free(ids);
        goto out;
    }
    struct note_search notes = {.record = record, .id = {r.id_nonce, r.id_sequence}};
    if (in->catalog != NULL) {
        rc = catalog_scan(in->catalog, CATALOG_RECORD, notes_of_row, &notes);
        if (rc == CS_OK)
            rc = catalog_scan(in->catalog, CATALOG_NOTES, notes_behind_row, &notes);
        if (rc == CS_ECORRUPT)
            snprintf(why, why_len, "the catalogue cannot be read");
    }
out:
    free(header);
    if (rc == CS_OK)
        *out = record;
    else
        cs_record_free(record);
    return rc;
}

void cs_record_free(struct cs_record *record)
{
    if (record == NULL)
        return;
    free(record->ids);
    free(record->runs);
    free(record->notes);
    free(record);
}
