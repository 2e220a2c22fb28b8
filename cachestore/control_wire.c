/* See control_wire.h. */
#include "cachestore/control_wire.h"

#include <string.h>

/* ---- bytes ------------------------------------------------------------------------------------------- */

void wire_bytes(struct wire_writer *w, const void *bytes, size_t n)
{
    if (w->full || n > w->room - w->len) {
        w->full = true;
        return;
    }
    if (n > 0)
        memcpy(w->at + w->len, bytes, n);
    w->len += n;
}

static void number(struct wire_writer *w, uint64_t value, unsigned n)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < n; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    wire_bytes(w, bytes, n);
}

void wire_u8(struct wire_writer *w, uint8_t value)
{
    number(w, value, 1);
}

void wire_u32(struct wire_writer *w, uint32_t value)
{
    number(w, value, 4);
}

void wire_u64(struct wire_writer *w, uint64_t value)
{
    number(w, value, 8);
}

void wire_key(struct wire_writer *w, struct cs_key key)
{
    wire_u64(w, key.lo);
    wire_u64(w, key.hi);
}

void wire_put_u32(struct wire_writer *w, size_t place, uint32_t value)
{
    for (unsigned i = 0; i < 4 && place + 4 <= w->len; i++)
        w->at[place + i] = (uint8_t)(value >> (8 * i));
}

const uint8_t *read_bytes(struct wire_reader *r, size_t n)
{
    if (r->bad || n > r->left) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *at = r->at;
    r->at += n;
    r->left -= n;
    return at;
}

static uint64_t read_number(struct wire_reader *r, unsigned n)
{
    const uint8_t *bytes = read_bytes(r, n);
    uint64_t value = 0;
    for (unsigned i = 0; bytes && i < n; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

uint8_t read_u8(struct wire_reader *r)
{
    return (uint8_t)read_number(r, 1);
}

uint32_t read_u32(struct wire_reader *r)
{
    return (uint32_t)read_number(r, 4);
}

uint64_t read_u64(struct wire_reader *r)
{
    return read_number(r, 8);
}

struct cs_key read_key(struct wire_reader *r)
{
    struct cs_key key;
    key.lo = read_u64(r);
    key.hi = read_u64(r);
    return key;
}

/* A byte that is 0 or 1. */
static bool read_flag(struct wire_reader *r)
{
    uint8_t value = read_u8(r);
    r->bad = r->bad || value > 1;
    return value == 1;
}

static void read_into(struct wire_reader *r, void *out, size_t n)
{
    const uint8_t *bytes = read_bytes(r, n);
    if (bytes)
        memcpy(out, bytes, n);
    else
        memset(out, 0, n);
}

bool read_ended(const struct wire_reader *r)
{
    return !r->bad && r->left == 0;
}

/* ---- the header -------------------------------------------------------------------------------------- */

void control_header_encode(const struct control_header *h, uint8_t out[CONTROL_HEADER_BYTES])
{
    struct wire_writer w = {.at = out, .room = CONTROL_HEADER_BYTES};
    wire_u32(&w, CONTROL_MAGIC);
    wire_u32(&w, CONTROL_VERSION | (uint32_t)h->command << 16);
    wire_u32(&w, (uint32_t)h->status);
    wire_u32(&w, h->bytes);
}

int control_header_decode(const uint8_t in[CONTROL_HEADER_BYTES], size_t max_bytes, struct control_header *h)
{
    struct wire_reader r = {.at = in, .left = CONTROL_HEADER_BYTES};
    uint32_t magic = read_u32(&r), what = read_u32(&r);
    h->command = (uint16_t)(what >> 16);
    h->status = (int32_t)read_u32(&r);
    h->bytes = read_u32(&r);
    if (magic != CONTROL_MAGIC)
        return CS_EFORMAT;
    if ((what & 0xffff) != CONTROL_VERSION)
        return CS_EVERSION;
    return h->bytes > max_bytes ? CS_EINVAL : CS_OK;
}

static void quota_encode(const struct cs_quota *q, struct wire_writer *w)
{
    wire_u64(w, q->device_bytes);
    wire_u64(w, q->host_bytes);
    wire_u64(w, q->disk_bytes);
}

static struct cs_quota quota_decode(struct wire_reader *r)
{
    struct cs_quota q = {.device_bytes = read_u64(r)};
    q.host_bytes = read_u64(r);
    q.disk_bytes = read_u64(r);
    return q;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

void control_request_encode(const struct control_request *q, struct wire_writer *w)
{
    switch (q->command) {
    case CONTROL_LIST:
    case CONTROL_TENANTS:
    case CONTROL_OTHERS:
        wire_u64(w, q->cursor);
        break;
    case CONTROL_QUOTA:
        wire_bytes(w, q->tenant.id, sizeof q->tenant.id);
        quota_encode(&q->quota, w);
        break;
    case CONTROL_RECORD:
        wire_key(w, q->key);
        wire_u32(w, q->from);
        break;
    case CONTROL_EVICT:
        wire_u32(w, q->n_keys);
        for (uint32_t i = 0; i < q->n_keys; i++)
            wire_key(w, q->keys[i]);
        break;
    case CONTROL_ERASE:
        wire_u64(w, q->record[0]);
        wire_u64(w, q->record[1]);
        wire_u32(w, q->volume);
        wire_u32(w, q->first_chunk);
        wire_u32(w, q->header_bytes);
        break;
    case CONTROL_PIN:
        wire_key(w, q->key);
        wire_u8(w, q->on);
        break;
    case CONTROL_DRAIN:
        wire_u8(w, q->on);
        break;
    default:
        break;
    }
}

bool control_request_decode(uint16_t command, const uint8_t *payload, size_t len, struct control_request *q)
{
    struct wire_reader r = {.at = payload, .left = len};
    q->command = (enum control_command)command;
    q->n_keys = 0;
    switch (command) {
    case CONTROL_HELLO:
    case CONTROL_FIGURES:
    case CONTROL_EPOCH:
    case CONTROL_PROGRESS:
        break;
    case CONTROL_LIST:
    case CONTROL_TENANTS:
    case CONTROL_OTHERS:
        q->cursor = read_u64(&r);
        break;
    case CONTROL_QUOTA:
        read_into(&r, q->tenant.id, sizeof q->tenant.id);
        q->quota = quota_decode(&r);
        break;
    case CONTROL_RECORD:
        q->key = read_key(&r);
        q->from = read_u32(&r);
        break;
    case CONTROL_EVICT:
        q->n_keys = read_u32(&r);
        if (q->n_keys > CONTROL_KEYS_MAX)
            return false;
        for (uint32_t i = 0; i < q->n_keys; i++)
            q->keys[i] = read_key(&r);
        break;
    case CONTROL_ERASE:
        q->record[0] = read_u64(&r);
        q->record[1] = read_u64(&r);
        q->volume = read_u32(&r);
        q->first_chunk = read_u32(&r);
        q->header_bytes = read_u32(&r);
        break;
    case CONTROL_PIN:
        q->key = read_key(&r);
        q->on = read_flag(&r);
        break;
    case CONTROL_DRAIN:
        q->on = read_flag(&r);
        break;
    default:
        return false;
    }
    return read_ended(&r);
}

/* ---- replies ----------------------------------------------------------------------------------------- */

void control_row_encode(const struct control_row *row, struct wire_writer *w)
{
    wire_u8(w, row->checkpoint);
    wire_u8(w, row->boundary);
    wire_u8(w, row->flags);
    wire_u8(w, 0);
    wire_u32(w, row->first_position);
    wire_u32(w, row->n_pages);
    wire_u32(w, row->n_device);
    wire_u32(w, row->n_host);
    wire_u32(w, row->volume);
    wire_u32(w, row->first_chunk);
    wire_u64(w, row->record[0]);
    wire_u64(w, row->record[1]);
    wire_key(w, row->key);
    wire_key(w, row->parent_key);
    wire_key(w, row->parent_span);
    wire_bytes(w, row->tenant.id, sizeof row->tenant.id);
    wire_u64(w, (uint64_t)row->created_unix);
    wire_u64(w, (uint64_t)row->used_unix);
    wire_u64(w, row->disk_bytes);
}

bool control_row_decode(struct wire_reader *r, struct control_row *row)
{
    row->checkpoint = read_flag(r);
    row->boundary = read_u8(r);
    row->flags = read_u8(r);
    (void)read_u8(r);
    row->first_position = read_u32(r);
    row->n_pages = read_u32(r);
    row->n_device = read_u32(r);
    row->n_host = read_u32(r);
    row->volume = read_u32(r);
    row->first_chunk = read_u32(r);
    row->record[0] = read_u64(r);
    row->record[1] = read_u64(r);
    row->key = read_key(r);
    row->parent_key = read_key(r);
    row->parent_span = read_key(r);
    read_into(r, row->tenant.id, sizeof row->tenant.id);
    row->created_unix = (int64_t)read_u64(r);
    row->used_unix = (int64_t)read_u64(r);
    row->disk_bytes = read_u64(r);
    return !r->bad && row->boundary <= CS_BOUNDARY_END && row->n_pages > 0 && row->n_device <= row->n_pages &&
           row->n_host <= row->n_pages &&
           row->flags <= (CONTROL_ROW_PINNED | CONTROL_ROW_ON_DISK | CONTROL_ROW_HAS_PARENT);
}

void control_other_encode(const struct control_other *o, struct wire_writer *w)
{
    wire_u64(w, o->record[0]);
    wire_u64(w, o->record[1]);
    wire_u32(w, o->volume);
    wire_u32(w, o->first_chunk);
    wire_u64(w, (uint64_t)o->used_unix);
}

bool control_other_decode(struct wire_reader *r, struct control_other *o)
{
    o->record[0] = read_u64(r);
    o->record[1] = read_u64(r);
    o->volume = read_u32(r);
    o->first_chunk = read_u32(r);
    o->used_unix = (int64_t)read_u64(r);
    return !r->bad && (o->record[0] != 0 || o->record[1] != 0);
}

bool control_record_decode(struct wire_reader *r, struct control_record *record)
{
    record->record[0] = read_u64(r);
    record->record[1] = read_u64(r);
    record->n_ids = read_u32(r);
    record->from = read_u32(r);
    record->n_here = read_u32(r);
    if (record->n_here > CONTROL_IDS_MAX || record->from > record->n_ids ||
        record->n_here > record->n_ids - record->from)
        return false;
    record->ids = read_bytes(r, (size_t)record->n_here * 4);
    record->n_notes = read_u32(r);
    if (record->n_notes > CONTROL_NOTES_MAX)
        return false;
    record->notes = read_bytes(r, (size_t)record->n_notes * 20);
    return !r->bad;
}

uint32_t control_record_id(const struct control_record *record, uint32_t i)
{
    struct wire_reader r = {.at = record->ids + (size_t)i * 4, .left = 4};
    return read_u32(&r);
}

struct cs_record_note control_record_note(const struct control_record *record, uint32_t i)
{
    struct wire_reader r = {.at = record->notes + (size_t)i * 20, .left = 20};
    struct cs_record_note note = {.key = read_key(&r)};
    note.bytes = read_u32(&r);
    return note;
}

void control_hello_encode(const struct control_hello *h, struct wire_writer *w)
{
    wire_u32(w, h->pid);
    wire_u32(w, h->page_tokens);
    wire_u32(w, h->chunk_bytes);
    wire_u64(w, h->stride);
    wire_u64(w, h->disk_budget);
    wire_u64(w, h->index_budget);
    wire_u64(w, h->records_foreign);
    wire_bytes(w, h->uuid, sizeof h->uuid);
    wire_bytes(w, h->fingerprint, sizeof h->fingerprint);
    wire_u8(w, h->stateful);
    wire_u8(w, h->draining);
}

bool control_hello_decode(struct wire_reader *r, struct control_hello *h)
{
    h->pid = read_u32(r);
    h->page_tokens = read_u32(r);
    h->chunk_bytes = read_u32(r);
    h->stride = read_u64(r);
    h->disk_budget = read_u64(r);
    h->index_budget = read_u64(r);
    h->records_foreign = read_u64(r);
    read_into(r, h->uuid, sizeof h->uuid);
    read_into(r, h->fingerprint, sizeof h->fingerprint);
    h->stateful = read_flag(r);
    h->draining = read_flag(r);
    return !r->bad && h->page_tokens > 0 && h->chunk_bytes > 0 && h->stride > 0 && h->stride <= 1ull << 32;
}

void control_progress_encode(const struct control_progress *p, struct wire_writer *w)
{
    wire_u64(w, p->pending_bytes);
    wire_u64(w, p->asked);
    wire_u64(w, p->failed);
    wire_u8(w, p->draining);
}

bool control_progress_decode(struct wire_reader *r, struct control_progress *p)
{
    p->pending_bytes = read_u64(r);
    p->asked = read_u64(r);
    p->failed = read_u64(r);
    p->draining = read_flag(r);
    return !r->bad;
}

void control_tenant_encode(const struct cs_tenant_use *u, struct wire_writer *w)
{
    wire_bytes(w, u->tenant.id, sizeof u->tenant.id);
    quota_encode(&u->own, w);
    quota_encode(&u->limit, w);
    quota_encode(&u->used, w);
    wire_u64(w, u->records);
    wire_u64(w, u->evicted);
    wire_u64(w, u->dropped);
}

bool control_tenant_decode(struct wire_reader *r, struct cs_tenant_use *u)
{
    read_into(r, u->tenant.id, sizeof u->tenant.id);
    u->own = quota_decode(r);
    u->limit = quota_decode(r);
    u->used = quota_decode(r);
    u->records = read_u64(r);
    u->evicted = read_u64(r);
    u->dropped = read_u64(r);
    return !r->bad;
}

/* Length in one byte, then its characters. */
static void text_encode(const char *text, struct wire_writer *w)
{
    size_t n = strlen(text);
    wire_u8(w, (uint8_t)(n > 63 ? 63 : n));
    wire_bytes(w, text, n > 63 ? 63 : n);
}

static void text_decode(struct wire_reader *r, char out[64])
{
    uint8_t n = read_u8(r);
    const uint8_t *bytes = n < 64 ? read_bytes(r, n) : NULL;
    r->bad = r->bad || !bytes || memchr(bytes, 0, n) != NULL;
    memset(out, 0, 64);
    if (!r->bad)
        memcpy(out, bytes, n);
}

enum { FIGURE_NUMBER, FIGURE_TEXT, FIGURE_HISTOGRAM };

void control_figure_encode(const struct cs_figure *f, struct wire_writer *w)
{
    text_encode(f->name, w);
    wire_u8(w, f->histogram ? FIGURE_HISTOGRAM : f->text ? FIGURE_TEXT : FIGURE_NUMBER);
    if (f->histogram) {
        wire_u64(w, f->histogram->sum_us);
        for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
            wire_u64(w, f->histogram->count[i]);
    } else if (f->text) {
        text_encode(f->text, w);
    } else {
        wire_u64(w, f->value);
    }
}

bool control_figure_decode(struct wire_reader *r, struct cs_figure *f, struct control_figure_room *room)
{
    text_decode(r, room->name);
    *f = (struct cs_figure){.name = room->name};
    switch (read_u8(r)) {
    case FIGURE_NUMBER:
        f->value = read_u64(r);
        break;
    case FIGURE_TEXT:
        text_decode(r, room->text);
        f->text = room->text;
        break;
    case FIGURE_HISTOGRAM:
        room->histogram.sum_us = read_u64(r);
        for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
            room->histogram.count[i] = read_u64(r);
        f->histogram = &room->histogram;
        break;
    default:
        r->bad = true;
    }
    return !r->bad;
}
