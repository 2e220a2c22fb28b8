/*
 * One record's bytes between memory and volumes.
 *
 * A record is one string of bytes: header, then pages. Its runs say where the string lies in the volumes, the
 * header buffer and the caller's page pointers where it lies in memory. A transfer walks both at once and
 * cuts requests where a run ends or MOVE_OP_BYTES are reached; neighbouring pages become one iovec.
 *
 * A read is verified as it lands, while the bytes are in cache: the header is whole in the first request (it
 * fits into one chunk), and a page is hashed when the last request that touches it has completed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/tier_disk_impl.h"

enum { PAGE_VERIFIED = UINT16_MAX };

void transfer_free(struct transfer *x)
{
    if (x == NULL)
        return;
    free(x->header);
    free(x->ops);
    free(x->iov);
    free(x->page_ops_left);
    free(x->row);
    free(x);
}

/* Memory behind byte `at` of the record, and how much of it is in one piece. */
static void *memory_at(const struct transfer *x, uint64_t at, uint64_t *len)
{
    uint64_t header_bytes = x->rec->header_bytes, stride = x->t->stride;
    if (at < header_bytes) {
        *len = header_bytes - at;
        return x->header + at;
    }
    uint64_t page = (at - header_bytes) / stride, inside = (at - header_bytes) % stride;
    void *const *pages = x->w != NULL ? x->w->pages : x->r->pages;
    *len = stride - inside;
    return (char *)pages[page - (x->r != NULL ? x->r->first_page : 0)] + inside;
}

/* Appends requests for bytes [from, to). The arrays have room (transfer_new). */
static void build_ops(struct transfer *x, uint64_t from, uint64_t to, uint32_t *n_iov,
                      void (*done)(struct io_op *op, int result))
{
    const struct disk_record *rec = x->rec;
    uint64_t chunk_bytes = x->t->chunk_bytes, run_start = 0;
    uint32_t run = 0;
    while (from < to) {
        while (from >= run_start + rec->runs[run].n_chunks * chunk_bytes)
            run_start += rec->runs[run++].n_chunks * chunk_bytes;
        uint64_t end = run_start + rec->runs[run].n_chunks * chunk_bytes;
        if (end > to)
            end = to;
        if (end > from + MOVE_OP_BYTES)
            end = from + MOVE_OP_BYTES;
        struct transfer_op *o = &x->ops[x->n_ops++];
        o->from = from;
        o->to = end;
        o->op.kind = x->w != NULL ? IO_WRITE : IO_READ;
        o->op.fd = x->t->volumes.volume[rec->runs[run].volume].fd;
        o->op.offset = rec->runs[run].first_chunk * chunk_bytes + (from - run_start);
        o->op.bytes = end - from;
        o->op.iov = &x->iov[*n_iov];
        o->op.n_iov = 0;
        o->op.done = done;
        o->op.ctx = x;
        while (from < end) {
            uint64_t len;
            char *memory = memory_at(x, from, &len);
            if (len > end - from)
                len = end - from;
            struct iovec *last = o->op.n_iov > 0 ? &o->op.iov[o->op.n_iov - 1] : NULL;
            if (last != NULL && (char *)last->iov_base + last->iov_len == memory) {
                last->iov_len += len;
            } else {
                o->op.iov[o->op.n_iov++] = (struct iovec){.iov_base = memory, .iov_len = len};
                (*n_iov)++;
            }
            from += len;
        }
    }
}

static struct transfer *transfer_new(struct tier_disk *t, struct disk_record *rec, uint32_t n_pages)
{
    struct transfer *x = calloc(1, sizeof *x);
    if (x == NULL)
        return NULL;
    x->t = t;
    x->rec = rec;
    /* Each request ends at a run's end, at MOVE_OP_BYTES, or at the end of one of two ranges. */
    uint64_t bytes = rec->header_bytes + n_pages * t->stride;
    size_t max_ops = rec->n_runs + bytes / MOVE_OP_BYTES + 3;
    x->header = aligned_alloc(FMT_RECORD_ALIGN, rec->header_bytes);
    x->ops = calloc(max_ops, sizeof *x->ops);
    x->iov = calloc(max_ops + n_pages + 1, sizeof *x->iov);
    if (x->header == NULL || x->ops == NULL || x->iov == NULL) {
        transfer_free(x);
        return NULL;
    }
    return x;
}

static void start(struct transfer *x)
{
    x->ops_left = x->n_ops;
    for (uint32_t i = 0; i < x->n_ops; i++)
        io_add(x->t->io, &x->ops[i].op);
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static bool names_equal(const struct fmt_record *h, const struct span_record *want)
{
    return h->id_nonce == want->id.nonce && h->id_sequence == want->id.sequence &&
           h->kind == (uint32_t)want->kind && h->flags == want->flags && h->key[0] == want->key.lo &&
           h->key[1] == want->key.hi && h->parent[0] == want->parent.lo && h->parent[1] == want->parent.hi &&
           memcmp(h->tenant, want->tenant.id, sizeof h->tenant) == 0 &&
           h->first_position == want->first_position && h->n_pages == want->n_pages;
}

static enum tier_result header_check(const struct transfer *x, struct fmt_record *h)
{
    const struct tier_disk *t = x->t;
    const struct disk_record *rec = x->rec;
    const struct span_record *want = &x->r->record;
    if (fmt_record_decode(x->header, rec->header_bytes, h) != FMT_RECORD_OK)
        return TIER_CORRUPT_HEADER;
    if (memcmp(h->store_uuid, t->store.uuid, sizeof h->store_uuid) != 0 ||
        memcmp(h->fingerprint, t->fingerprint, sizeof h->fingerprint) != 0 ||
        h->page_tokens != t->page_tokens || h->page_bytes != t->page_bytes ||
        h->chunk_bytes != t->chunk_bytes || !names_equal(h, want))
        return TIER_CORRUPT_HEADER;
    if (h->n_runs != rec->n_runs || memcmp(h->runs, rec->runs, rec->n_runs * sizeof *h->runs) != 0)
        return TIER_CORRUPT_HEADER;
    if (memcmp(h->ids, want->ids, fmt_record_n_ids(h->kind, h->n_pages, h->page_tokens) * sizeof *h->ids) !=
        0)
        return TIER_CORRUPT_TOKENS;
    return TIER_OK;
}

static void page_verify(struct transfer *x, const struct fmt_record *h, uint32_t index)
{
    uint32_t ordinal = x->r->first_page + index;
    x->page_ops_left[index] = PAGE_VERIFIED;
    uint64_t seed = fmt_record_page_seed(h->store_uuid, h->id_nonce, h->id_sequence, ordinal);
    if (fmt_record_page_sum(x->r->pages[index], x->t->stride, seed) != h->page_sums[ordinal] &&
        x->result == TIER_OK)
        x->result = TIER_CORRUPT_PAYLOAD;
}

static void read_landed(struct transfer *x, const struct transfer_op *o)
{
    uint64_t header_bytes = x->rec->header_bytes, stride = x->t->stride;
    uint64_t first_byte = header_bytes + x->r->first_page * stride;
    struct fmt_record h;
    bool decoded = false;
    if (o->from == 0) {
        enum tier_result result = header_check(x, &h);
        if (result != TIER_OK) {
            x->result = result;
            return;
        }
        x->header_ok = decoded = true;
        /* Pages that came before their header. */
        for (uint32_t i = 0; i < x->r->n_pages; i++) {
            if (x->page_ops_left[i] == 0)
                page_verify(x, &h, i);
        }
    }
    if (o->to <= first_byte)
        return;
    uint64_t from = o->from > first_byte ? o->from : first_byte;
    uint32_t first = (uint32_t)((from - first_byte) / stride),
             last = (uint32_t)((o->to - 1 - first_byte) / stride);
    for (uint32_t i = first; i <= last; i++) {
        if (--x->page_ops_left[i] != 0 || !x->header_ok)
            continue;
        /* Decoding again is a checksum of a few KiB: only where this request did not bring the header. */
        if (!decoded && fmt_record_decode(x->header, header_bytes, &h) != FMT_RECORD_OK) {
            x->result = TIER_CORRUPT_HEADER;
            return;
        }
        decoded = true;
        page_verify(x, &h, i);
    }
}

static void read_ended(struct transfer *x, enum tier_result result)
{
    struct tier_disk *t = x->t;
    struct tier_read *r = x->r;
    struct disk_record *rec = x->rec;
    if (result != TIER_OK)
        tier_say_unreadable(t, rec, r, result, x->error);
    transfer_free(x);
    struct tier_stats *s = &t->stats;
    switch (result) {
    case TIER_OK:
        atomic_fetch_add(rec->kind == FMT_RECORD_CHECKPOINT ? &s->checkpoints_read : &s->spans_read, 1);
        atomic_fetch_add(&s->bytes_read, r->n_pages * t->stride);
        break;
    case TIER_CORRUPT_HEADER:
        atomic_fetch_add(&s->corrupt_header, 1);
        break;
    case TIER_CORRUPT_TOKENS:
        atomic_fetch_add(&s->corrupt_tokens, 1);
        break;
    case TIER_CORRUPT_PAYLOAD:
        atomic_fetch_add(&s->corrupt_payload, 1);
        break;
    default:
        atomic_fetch_add(&s->io_errors, 1);
        break;
    }
    if (--rec->readers == 0 && rec->state == REC_GONE)
        tier_record_end(t, rec, false);
    r->done(r->ctx, r, result);
}

static void read_done(struct io_op *op, int result)
{
    struct transfer *x = op->ctx;
    struct transfer_op *o = (struct transfer_op *)op;
    if (result < 0 && x->error == 0)
        x->error = result;
    if (x->error == 0 && x->result == TIER_OK)
        read_landed(x, o);
    if (--x->ops_left > 0)
        return;
    enum tier_result end = x->result;
    if (x->error == -ENODATA) /* the volume was cut short */
        end = x->header_ok ? TIER_CORRUPT_PAYLOAD : TIER_CORRUPT_HEADER;
    else if (x->error != 0)
        end = TIER_EIO;
    read_ended(x, end);
}

static enum tier_result read_begin(struct tier_disk *t, struct disk_record *rec, struct tier_read *r)
{
    if (r->record.n_pages != rec->n_pages || r->n_pages == 0 || r->first_page >= rec->n_pages ||
        r->n_pages > rec->n_pages - r->first_page)
        return TIER_CORRUPT_HEADER;
    struct transfer *x = transfer_new(t, rec, r->n_pages);
    if (x == NULL)
        return TIER_EIO;
    x->r = r;
    x->page_ops_left = calloc(r->n_pages, sizeof *x->page_ops_left);
    if (x->page_ops_left == NULL) {
        transfer_free(x);
        return TIER_EIO;
    }
    uint32_t n_iov = 0;
    uint64_t first_byte = rec->header_bytes + r->first_page * t->stride,
             end = first_byte + r->n_pages * t->stride;
    if (r->first_page == 0) {
        build_ops(x, 0, end, &n_iov, read_done);
    } else {
        build_ops(x, 0, rec->header_bytes, &n_iov, read_done);
        build_ops(x, first_byte, end, &n_iov, read_done);
    }
    for (uint32_t i = 0; i < x->n_ops; i++) {
        const struct transfer_op *o = &x->ops[i];
        if (o->to <= first_byte)
            continue;
        uint64_t from = o->from > first_byte ? o->from : first_byte;
        for (uint64_t p = (from - first_byte) / t->stride; p <= (o->to - 1 - first_byte) / t->stride; p++)
            x->page_ops_left[p]++;
    }
    rec->readers++;
    start(x);
    return TIER_OK;
}

void move_reads_begin(struct tier_disk *t)
{
    enum { START_EVERY = 16 }; /* so that the device works while the rest is prepared */
    struct tier_read *r;
    for (unsigned n = 1; (r = t->reads) != NULL; n++) {
        t->reads = r->tier_next;
        if (n % START_EVERY == 0)
            io_start(t->io);
        enum tier_result result = TIER_CANCELLED;
        if (!t->cancel_all && !atomic_load(&r->cancel)) {
            pthread_mutex_lock(&t->lock);
            struct disk_record *rec = tier_record_find(t, r->record.id);
            pthread_mutex_unlock(&t->lock);
            if (rec == NULL || rec->state != REC_DURABLE || rec->foreign || atomic_load(&rec->deleted))
                result = TIER_NOTFOUND;
            else if ((result = read_begin(t, rec, r)) != TIER_OK)
                tier_say_unreadable(t, rec, r, result, -ENOMEM);
        }
        if (result == TIER_CORRUPT_HEADER)
            atomic_fetch_add(&t->stats.corrupt_header, 1);
        if (result != TIER_OK)
            r->done(r->ctx, r, result);
    }
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void write_done(struct io_op *op, int result)
{
    struct transfer *x = op->ctx;
    if (result < 0 && x->error == 0)
        x->error = result;
    if (--x->ops_left == 0)
        tier_write_landed(x);
}

/* Fills the header and the catalogue row. rec's runs are set. */
static int write_describe(struct transfer *x, uint64_t *sums)
{
    const struct tier_disk *t = x->t;
    const struct disk_record *rec = x->rec;
    const struct span_record *s = &x->w->record;
    struct fmt_record r = {
        .id_nonce = s->id.nonce,
        .id_sequence = s->id.sequence,
        .kind = s->kind,
        .key = {s->key.lo, s->key.hi},
        .parent = {s->parent.lo, s->parent.hi},
        .purge_epoch = atomic_load(&t->purge_epoch),
        .first_position = s->first_position,
        .flags = s->flags,
        .n_pages = s->n_pages,
        .page_tokens = t->page_tokens,
        .page_bytes = t->page_bytes,
        .created_unix = s->created_unix,
        .chunk_bytes = t->chunk_bytes,
        .n_runs = rec->n_runs,
        .runs = rec->runs,
        .ids = s->ids,
        .page_sums = sums,
    };
    memcpy(r.store_uuid, t->store.uuid, sizeof r.store_uuid);
    memcpy(r.fingerprint, t->fingerprint, sizeof r.fingerprint);
    memcpy(r.tenant, s->tenant.id, sizeof r.tenant);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        if (x->w->check != NULL && !x->w->check(x->w->ctx, i))
            return -EBADMSG;
        uint64_t seed = fmt_record_page_seed(r.store_uuid, r.id_nonce, r.id_sequence, i);
        sums[i] = fmt_record_page_sum(x->w->pages[i], t->stride, seed);
    }
    r.notes = x->w->tier_notes;
    r.notes_bytes = x->w->tier_notes_bytes;
    x->row_bytes = fmt_record_row_bytes(&r);
    x->row = malloc(x->row_bytes);
    if (x->row == NULL)
        return -ENOMEM;
    if (fmt_record_encode(&r, x->header, rec->header_bytes) != FMT_RECORD_OK ||
        fmt_record_row_encode(&r, x->row, x->row_bytes) != FMT_RECORD_OK)
        return -EINVAL;
    return 0;
}

enum tier_result move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                  struct transfer **out)
{
    *out = NULL;
    struct transfer *x = transfer_new(t, rec, rec->n_pages);
    uint64_t *sums = malloc(rec->n_pages * sizeof *sums);
    if (x != NULL)
        x->w = w;
    if (x == NULL || sums == NULL || write_describe(x, sums) != 0) {
        transfer_free(x);
        free(sums);
        return TIER_EIO;
    }
    free(sums);
    uint32_t n_iov = 0;
    build_ops(x, 0, rec->header_bytes + rec->n_pages * t->stride, &n_iov, write_done);
    *out = x;
    start(x);
    return TIER_OK;
}
