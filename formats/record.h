/*
 * A record: the unit a disk volume holds, a span or a checkpoint. One header, a multiple of 4096 bytes, then
 * its pages at their stride. The header names everything a reader must prove before it trusts a page: the
 * store, the record's id, the key and its parent, the model's fingerprint, the tenant, token ids, the chunks
 * the record lies in and one checksum a page. docs/format.md has the offsets; record.c asserts them.
 *
 * The pages of a span hold n_pages * page_tokens tokens and their ids. Those of a checkpoint are blocks of
 * the same stride that say nothing about tokens; it has the ids of the one page before its position, so its
 * header stays small however many blocks it has.
 *
 * Pure functions over memory: no files, no threads, no globals. All numbers in a header are untrusted;
 * fmt_record_decode() refuses what breaks a rule, so what it returns may be used without further bounds
 * checks (chunk numbers excepted: only the caller knows how large its volumes are).
 */
#ifndef ISOTHERM_FORMATS_RECORD_H
#define ISOTHERM_FORMATS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FMT_RECORD_VERSION         2u
#define FMT_RECORD_ALIGN           4096u /* header and stride are multiples; also what O_DIRECT asks for */
#define FMT_RECORD_FIXED_BYTES     256u  /* the fields before runs, ids and checksums */
#define FMT_RECORD_HEADER_MAX      (1u << 20)
#define FMT_RECORD_PAGE_TOKENS_MAX 1024u
#define FMT_RECORD_PAGE_BYTES_MAX  (1ull << 30)
#define FMT_RECORD_CHUNK_BYTES_MIN 4096u
#define FMT_RECORD_CHUNK_BYTES_MAX (1u << 30)
#define FMT_RECORD_CHUNK_BYTES     (256u << 10) /* where nobody says otherwise */
#define FMT_RECORD_FLAGS_MAX       3u           /* of a checkpoint */

enum {
    FMT_RECORD_OK = 0,
    FMT_RECORD_EMAGIC = -1,    /* not a record */
    FMT_RECORD_EVERSION = -2,  /* a record of another format version */
    FMT_RECORD_ESIZE = -3,     /* the buffer is smaller than what the header says, or a size breaks a limit */
    FMT_RECORD_EFIELD = -4,    /* a field breaks a rule */
    FMT_RECORD_ECHECKSUM = -5, /* the header's checksum fails */
};
const char *fmt_record_strerror(int code);

enum { FMT_RECORD_SPAN = 1, FMT_RECORD_CHECKPOINT = 2 };

/* Chunks [first_chunk, first_chunk + n_chunks) of volume file `volume`. The record's bytes fill its runs in
 * order. */
struct fmt_record_run {
    uint32_t volume, first_chunk, n_chunks;
};

struct fmt_record {
    uint8_t store_uuid[16];
    uint64_t id_nonce, id_sequence;
    uint32_t kind;
    uint64_t key[2], parent[2]; /* lo, hi */
    uint8_t fingerprint[32];
    uint8_t tenant[16];
    uint64_t purge_epoch;
    uint32_t first_position; /* tokens before it; of a checkpoint: its position, one page at least */
    uint32_t flags;          /* checkpoint: which kind of boundary it serves; span: 0 */
    uint32_t n_pages, page_tokens;
    uint64_t page_bytes;
    int64_t created_unix;
    uint32_t chunk_bytes, n_runs;
    uint32_t header_bytes, n_chunks;   /* set by decoding, not read by encoding */
    const struct fmt_record_run *runs; /* n_runs */
    const uint32_t *ids;               /* fmt_record_n_ids */
    const uint64_t *page_sums;         /* n_pages; NULL in a row */
    const void *notes;                 /* of a row only: as note_row.h has them */
    size_t notes_bytes, n_notes;
};

/* page_bytes rounded up to FMT_RECORD_ALIGN. */
uint64_t fmt_record_stride(uint64_t page_bytes);
/* Token ids that a record holds: of all its pages, or of the page before a checkpoint. */
uint64_t fmt_record_n_ids(uint32_t kind, uint32_t n_pages, uint32_t page_tokens);
/* Bytes of the header of a record of n_pages, padding and checksum included: room for as many runs as the
 * record has chunks, so that it does not depend on where the record lies. 0: the geometry breaks a limit, or
 * the header would not fit into the first chunk (a checkpoint in chunks of 256 KiB may have thousands of
 * blocks before it does not). */
uint64_t fmt_record_header_bytes(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                                 uint32_t chunk_bytes);
/* Chunks of a record of n_pages; 0 as above. */
uint32_t fmt_record_chunks(uint32_t kind, uint32_t n_pages, uint32_t page_tokens, uint64_t page_bytes,
                           uint32_t chunk_bytes);
/* The most pages of a span whose record (header and pages) is within span_bytes, at least 1; 0 where not even
 * one page can be stored. */
uint32_t fmt_record_pages_per_span(uint64_t span_bytes, uint32_t page_tokens, uint64_t page_bytes,
                                   uint32_t chunk_bytes);

/* Seed of page `ordinal`'s checksum: bytes that are intact but of another store, record or place fail. */
uint64_t fmt_record_page_seed(const uint8_t store_uuid[16], uint64_t id_nonce, uint64_t id_sequence,
                              uint32_t ordinal);
/* XXH3-64 of the whole stride. */
uint64_t fmt_record_page_sum(const void *page, uint64_t stride, uint64_t seed);

/* Writes the header into out[0..header_bytes), 8-byte aligned. FMT_RECORD_EFIELD / ESIZE where r breaks a
 * rule a reader would refuse. page_sums must be set. */
int fmt_record_encode(const struct fmt_record *r, void *out, size_t header_bytes);
/* Checks buf[0..len), 8-byte aligned, len >= FMT_RECORD_ALIGN, and fills r; its pointers point into buf. */
int fmt_record_decode(const void *buf, size_t len, struct fmt_record *r);
/* What the header at buf says its size is, from its first FMT_RECORD_FIXED_BYTES bytes: magic, version and
 * limits are checked, nothing else, so that a reader knows how much to read. 0 or FMT_RECORD_E... */
int fmt_record_peek(const void *buf, size_t len, uint64_t *header_bytes);

/* A catalogue row: the header without checksums, exactly its first bytes, and the span's notes (n_notes is
 * set by decoding only). */
size_t fmt_record_row_bytes(const struct fmt_record *r);
int fmt_record_row_encode(const struct fmt_record *r, void *out, size_t row_bytes);
/* buf is 8-byte aligned. */
int fmt_record_row_decode(const void *buf, size_t len, struct fmt_record *r);

#endif
