/*
 * Encoding and decoding of record headers: see record.h for the contract, docs/format.md for the layout.
 *
 * The fields before the lists are one struct with asserted offsets; runs, ids and page checksums follow it in
 * that order, each at the end of the one before (checksums at the next multiple of 8); the header's own
 * checksum is its last 8 bytes, over everything before it. A row of the catalogue is the same bytes up to the
 * end of the ids, so one check serves both; the span's notes follow there.
 */
#include "formats/record.h"
#include "formats/note_row.h"

#include "formats/hash.h"
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little-endian and read in place");

static const uint8_t record_magic[8] = {'I', 's', 'o', 't', 'h', 'e', 'r', 'm'};

struct record_fixed {
    uint8_t magic[8];
    uint32_t version, header_bytes;
    uint8_t store_uuid[16];
    uint64_t id_nonce, id_sequence;
    uint32_t kind, chunk_bytes;
    uint64_t purge_epoch;
    uint64_t key[2];
    uint64_t parent[2];
    uint8_t fingerprint[32];
    uint8_t tenant[16];
    uint32_t first_position, n_pages, page_tokens, n_runs;
    uint64_t page_bytes;
    int64_t created_unix;
    uint32_t flags;
    uint8_t reserved[76]; /* zero */
};
_Static_assert(sizeof(struct record_fixed) == FMT_RECORD_FIXED_BYTES, "docs/format.md");
#define AT(field, offset) _Static_assert(offsetof(struct record_fixed, field) == (offset), "docs/format.md")
AT(magic, 0);
AT(version, 8);
AT(header_bytes, 12);
AT(store_uuid, 16);
AT(id_nonce, 32);
AT(id_sequence, 40);
AT(kind, 48);
AT(chunk_bytes, 52);
AT(purge_epoch, 56);
AT(key, 64);
AT(parent, 80);
AT(fingerprint, 96);
AT(tenant, 128);
AT(first_position, 144);
AT(n_pages, 148);
AT(page_tokens, 152);
AT(n_runs, 156);
AT(page_bytes, 160);
AT(created_unix, 168);
AT(flags, 176);
AT(reserved, 180);
#undef AT
_Static_assert(sizeof(struct fmt_record_run) == 12, "docs/format.md");
#define AT(field, offset) _Static_assert(offsetof(struct fmt_record_run, field) == (offset), "docs/format.md")
AT(volume, 0);
AT(first_chunk, 4);
AT(n_chunks, 8);
#undef AT
_Static_assert(FMT_RECORD_SPAN == 1 && FMT_RECORD_CHECKPOINT == 2, "docs/format.md");

const char *fmt_record_strerror(int code)
{
    switch (code) {
    case FMT_RECORD_OK:
        return "ok";
    case FMT_RECORD_EMAGIC:
        return "not a record";
    case FMT_RECORD_EVERSION:
        return "record of another format version";
    case FMT_RECORD_ESIZE:
        return "record size out of bounds";
    case FMT_RECORD_EFIELD:
        return "record field out of bounds";
    case FMT_RECORD_ECHECKSUM:
        return "record header checksum";
    default:
        return "unknown record error";
    }
}

/* unit is a power of two. */
static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

uint64_t fmt_record_stride(uint64_t page_bytes)
{
    return round_up(page_bytes, FMT_RECORD_ALIGN);
}

uint64_t fmt_record_n_ids(uint32_t kind, uint32_t n_pages, uint32_t page_tokens)
{
    return kind == FMT_RECORD_CHECKPOINT ? page_tokens : (uint64_t)n_pages * page_tokens;
}

static bool geometry_ok(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                        uint32_t chunk_bytes)
{
    return (kind == FMT_RECORD_SPAN || kind == FMT_RECORD_CHECKPOINT) && n_pages >= 1 &&
           n_pages <= FMT_RECORD_HEADER_MAX / 8 && page_tokens >= 1 &&
           page_tokens <= FMT_RECORD_PAGE_TOKENS_MAX && page_bytes >= 1 &&
           page_bytes <= FMT_RECORD_PAGE_BYTES_MAX && chunk_bytes >= FMT_RECORD_CHUNK_BYTES_MIN &&
           chunk_bytes <= FMT_RECORD_CHUNK_BYTES_MAX && (chunk_bytes & (chunk_bytes - 1)) == 0;
}

/* Offset of the page checksums: behind fixed fields, runs and ids. With the limits of geometry_ok every
 * product here is far below 2^64: 2^17 pages * 2^10 ids * 4 bytes, 2^17 pages * 2^30 bytes. */
static uint64_t sums_offset(uint64_t n_runs, uint64_t n_ids)
{
    return round_up(FMT_RECORD_FIXED_BYTES + n_runs * sizeof(struct fmt_record_run) + n_ids * 4, 8);
}

/* Header bytes (0: a limit is broken) and chunks. */
static uint64_t shape(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                      uint32_t chunk_bytes, uint64_t *chunks)
{
    *chunks = 0;
    if (!geometry_ok(kind, n_pages, page_tokens, page_bytes, chunk_bytes))
        return 0;
    uint64_t n_ids = fmt_record_n_ids(kind, n_pages, page_tokens);
    uint64_t payload = n_pages * fmt_record_stride(page_bytes);
    unsigned chunk_bits = (unsigned)__builtin_ctz(chunk_bytes);
    /* The header has a slot for each chunk and is itself in the chunks: grow it until it holds. Each round
     * adds at most what the last one added, so this ends after a few. */
    uint64_t header = FMT_RECORD_ALIGN;
    for (;;) {
        uint64_t n = round_up(header + payload, chunk_bytes) >> chunk_bits;
        uint64_t need = round_up(sums_offset(n, n_ids) + 8ull * n_pages + 8, FMT_RECORD_ALIGN);
        if (need > FMT_RECORD_HEADER_MAX || need > chunk_bytes)
            return 0;
        if (need <= header) {
            *chunks = n;
            return header;
        }
        header = need;
    }
}

uint64_t fmt_record_header_bytes(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                                 uint32_t chunk_bytes)
{
    uint64_t chunks;
    return shape(kind, n_pages, page_tokens, page_bytes, chunk_bytes, &chunks);
}

uint32_t fmt_record_chunks(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                           uint32_t chunk_bytes)
{
    uint64_t chunks;
    shape(kind, n_pages, page_tokens, page_bytes, chunk_bytes, &chunks);
    return (uint32_t)chunks;
}

uint32_t fmt_record_pages_per_span(uint64_t span_bytes, uint32_t page_tokens, uint64_t page_bytes,
                                   uint32_t chunk_bytes)
{
    if (fmt_record_header_bytes(FMT_RECORD_SPAN, 1, page_tokens, page_bytes, chunk_bytes) == 0)
        return 0;
    /* Both the header and the record grow with n, so the largest n that fits is found by halving. */
    uint32_t low = 1, high = FMT_RECORD_HEADER_MAX / 8;
    while (low < high) {
        uint32_t n = low + (high - low + 1) / 2;
        uint64_t header = fmt_record_header_bytes(FMT_RECORD_SPAN, n, page_tokens, page_bytes, chunk_bytes);
        if (header != 0 && header + n * fmt_record_stride(page_bytes) <= span_bytes)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

uint64_t fmt_record_page_seed(const uint8_t store_uuid[16], uint64_t id_nonce, uint64_t id_sequence,
                              uint32_t ordinal)
{
    uint8_t place[36]; /* docs/format.md */
    _Static_assert(sizeof place == 16 + sizeof id_nonce + sizeof id_sequence + sizeof ordinal,
                   "docs/format.md");
    memcpy(place, store_uuid, 16);
    memcpy(place + 16, &id_nonce, 8);
    memcpy(place + 24, &id_sequence, 8);
    memcpy(place + 32, &ordinal, 4);
    return XXH3_64bits(place, sizeof place);
}

uint64_t fmt_record_page_sum(const void *page, uint64_t stride, uint64_t seed)
{
    return hash_far(page, stride, seed);
}

/* The rules that an encoder, a header and a row share; sets header_bytes and n_chunks. */
static int fields_check(struct fmt_record *r)
{
    if (!geometry_ok(r->kind, r->n_pages, r->page_tokens, r->page_bytes, r->chunk_bytes))
        return FMT_RECORD_EFIELD;
    uint64_t chunks,
        header = shape(r->kind, r->n_pages, r->page_tokens, r->page_bytes, r->chunk_bytes, &chunks);
    if (header == 0)
        return FMT_RECORD_ESIZE;
    r->header_bytes = (uint32_t)header;
    r->n_chunks = (uint32_t)chunks;
    uint64_t last = r->first_position;
    if (r->kind == FMT_RECORD_SPAN)
        last += (uint64_t)r->n_pages * r->page_tokens;
    bool flags_ok = r->flags <= (r->kind == FMT_RECORD_CHECKPOINT ? FMT_RECORD_FLAGS_MAX : 0);
    if (!flags_ok || r->first_position % r->page_tokens != 0 || last > UINT32_MAX ||
        (r->kind == FMT_RECORD_CHECKPOINT && r->first_position == 0))
        return FMT_RECORD_EFIELD;
    return r->n_runs == 0 || r->n_runs > chunks ? FMT_RECORD_EFIELD : FMT_RECORD_OK;
}

static int runs_check(const struct fmt_record *r)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < r->n_runs; i++) {
        const struct fmt_record_run *run = &r->runs[i];
        if (run->n_chunks == 0 || run->n_chunks > UINT32_MAX - run->first_chunk)
            return FMT_RECORD_EFIELD;
        total += run->n_chunks;
    }
    return total == r->n_chunks ? FMT_RECORD_OK : FMT_RECORD_EFIELD;
}

static void fixed_from(const struct fmt_record *r, struct record_fixed *f)
{
    memset(f, 0, sizeof *f);
    memcpy(f->magic, record_magic, sizeof f->magic);
    f->version = FMT_RECORD_VERSION;
    f->header_bytes = r->header_bytes;
    memcpy(f->store_uuid, r->store_uuid, sizeof f->store_uuid);
    f->id_nonce = r->id_nonce;
    f->id_sequence = r->id_sequence;
    f->kind = r->kind;
    f->chunk_bytes = r->chunk_bytes;
    f->purge_epoch = r->purge_epoch;
    memcpy(f->key, r->key, sizeof f->key);
    memcpy(f->parent, r->parent, sizeof f->parent);
    memcpy(f->fingerprint, r->fingerprint, sizeof f->fingerprint);
    memcpy(f->tenant, r->tenant, sizeof f->tenant);
    f->first_position = r->first_position;
    f->n_pages = r->n_pages;
    f->page_tokens = r->page_tokens;
    f->n_runs = r->n_runs;
    f->page_bytes = r->page_bytes;
    f->created_unix = r->created_unix;
    f->flags = r->flags;
}

static uint64_t n_ids_of(const struct fmt_record *r)
{
    return fmt_record_n_ids(r->kind, r->n_pages, r->page_tokens);
}

/* What a header and a row begin with. */
static size_t common_bytes(const struct fmt_record *r)
{
    return FMT_RECORD_FIXED_BYTES + (size_t)r->n_runs * sizeof(struct fmt_record_run) + n_ids_of(r) * 4;
}

static int common_encode(const struct fmt_record *from, void *out)
{
    struct fmt_record r = *from;
    int rc = fields_check(&r);
    if (rc == FMT_RECORD_OK)
        rc = runs_check(&r);
    if (rc != FMT_RECORD_OK)
        return rc;
    struct record_fixed fixed;
    fixed_from(&r, &fixed);
    uint8_t *p = out;
    memcpy(p, &fixed, sizeof fixed);
    p += sizeof fixed;
    memcpy(p, r.runs, (size_t)r.n_runs * sizeof *r.runs);
    p += (size_t)r.n_runs * sizeof *r.runs;
    memcpy(p, r.ids, n_ids_of(&r) * 4);
    return FMT_RECORD_OK;
}

size_t fmt_record_row_bytes(const struct fmt_record *r)
{
    return common_bytes(r) + r->notes_bytes;
}

int fmt_record_row_encode(const struct fmt_record *r, void *out, size_t row_bytes)
{
    if (row_bytes != fmt_record_row_bytes(r))
        return FMT_RECORD_ESIZE;
    int rc = common_encode(r, out);
    if (rc == FMT_RECORD_OK && r->notes_bytes > 0)
        memcpy((uint8_t *)out + common_bytes(r), r->notes, r->notes_bytes);
    return rc;
}

int fmt_record_encode(const struct fmt_record *r, void *out, size_t header_bytes)
{
    if (header_bytes !=
            fmt_record_header_bytes(r->kind, r->n_pages, r->page_tokens, r->page_bytes, r->chunk_bytes) ||
        header_bytes == 0)
        return FMT_RECORD_ESIZE;
    uint8_t *p = out;
    memset(p, 0, header_bytes);
    int rc = common_encode(r, p);
    if (rc != FMT_RECORD_OK)
        return rc;
    memcpy(p + sums_offset(r->n_runs, n_ids_of(r)), r->page_sums, 8ull * r->n_pages);
    uint64_t sum = XXH3_64bits(p, header_bytes - 8);
    memcpy(p + header_bytes - 8, &sum, 8);
    return FMT_RECORD_OK;
}

static bool all_zero(const uint8_t *bytes, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        if (bytes[i] != 0)
            return false;
    }
    return true;
}

static int fixed_check(const struct record_fixed *f)
{
    if (memcmp(f->magic, record_magic, sizeof f->magic) != 0)
        return FMT_RECORD_EMAGIC;
    if (f->version != FMT_RECORD_VERSION)
        return FMT_RECORD_EVERSION;
    if (f->header_bytes < FMT_RECORD_ALIGN || f->header_bytes > FMT_RECORD_HEADER_MAX ||
        f->header_bytes % FMT_RECORD_ALIGN != 0)
        return FMT_RECORD_ESIZE;
    return FMT_RECORD_OK;
}

/* Fixed fields, runs and ids of buf[0..len): what a header and a row have in common. */
static int common_decode(const uint8_t *buf, size_t len, struct fmt_record *r)
{
    struct record_fixed f;
    if (len < sizeof f)
        return FMT_RECORD_ESIZE;
    memcpy(&f, buf, sizeof f);
    int rc = fixed_check(&f);
    if (rc != FMT_RECORD_OK)
        return rc;
    if (!all_zero(f.reserved, 0, sizeof f.reserved))
        return FMT_RECORD_EFIELD;
    memset(r, 0, sizeof *r);
    memcpy(r->store_uuid, f.store_uuid, sizeof r->store_uuid);
    r->id_nonce = f.id_nonce;
    r->id_sequence = f.id_sequence;
    r->kind = f.kind;
    memcpy(r->key, f.key, sizeof r->key);
    memcpy(r->parent, f.parent, sizeof r->parent);
    memcpy(r->fingerprint, f.fingerprint, sizeof r->fingerprint);
    memcpy(r->tenant, f.tenant, sizeof r->tenant);
    r->purge_epoch = f.purge_epoch;
    r->first_position = f.first_position;
    r->n_pages = f.n_pages;
    r->page_tokens = f.page_tokens;
    r->page_bytes = f.page_bytes;
    r->created_unix = f.created_unix;
    r->flags = f.flags;
    r->chunk_bytes = f.chunk_bytes;
    r->n_runs = f.n_runs;
    rc = fields_check(r);
    if (rc != FMT_RECORD_OK)
        return rc;
    if (r->header_bytes != f.header_bytes)
        return FMT_RECORD_ESIZE;
    if (len < common_bytes(r))
        return FMT_RECORD_ESIZE;
    r->runs = (const struct fmt_record_run *)(const void *)(buf + sizeof f);
    r->ids = (const uint32_t *)(const void *)(r->runs + r->n_runs);
    return runs_check(r);
}

int fmt_record_row_decode(const void *buf, size_t len, struct fmt_record *r)
{
    int rc = common_decode(buf, len, r);
    if (rc != FMT_RECORD_OK)
        return rc;
    r->notes = (const uint8_t *)buf + common_bytes(r);
    r->notes_bytes = len - common_bytes(r);
    return fmt_notes_check(r->notes, r->notes_bytes, &r->n_notes) == 0 ? FMT_RECORD_OK : FMT_RECORD_ESIZE;
}

int fmt_record_peek(const void *buf, size_t len, uint64_t *header_bytes)
{
    struct record_fixed f;
    if (len < sizeof f)
        return FMT_RECORD_ESIZE;
    memcpy(&f, buf, sizeof f);
    int rc = fixed_check(&f);
    *header_bytes = rc == FMT_RECORD_OK ? f.header_bytes : 0;
    return rc;
}

int fmt_record_decode(const void *buf, size_t len, struct fmt_record *r)
{
    const uint8_t *p = buf;
    uint64_t header_bytes;
    int rc = fmt_record_peek(p, len, &header_bytes);
    if (rc != FMT_RECORD_OK)
        return rc;
    if (header_bytes > len)
        return FMT_RECORD_ESIZE;
    /* The checksum before the fields: a damaged header should say so, whichever byte it was. */
    uint64_t sum;
    memcpy(&sum, p + header_bytes - 8, 8);
    if (sum != XXH3_64bits(p, header_bytes - 8))
        return FMT_RECORD_ECHECKSUM;
    rc = common_decode(p, header_bytes, r);
    if (rc != FMT_RECORD_OK)
        return rc;
    uint64_t sums = sums_offset(r->n_runs, n_ids_of(r)), sums_end = sums + 8ull * r->n_pages;
    if (!all_zero(p, common_bytes(r), sums) || !all_zero(p, sums_end, header_bytes - 8))
        return FMT_RECORD_EFIELD;
    r->page_sums = (const uint64_t *)(const void *)(p + sums);
    return FMT_RECORD_OK;
}
