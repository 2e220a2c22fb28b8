/*
 * The disk tier: span records in chunked volumes, catalogued in RocksDB, moved by an I/O engine on its own
 * thread.
 *
 * It knows records (header, pages, notes), never paths or policy: store.c decides what is written, read and
 * deleted. All work is queued and never waits: completions are called on the tier's thread with no lock of
 * the tier held. Ownership: page memory named in a request must stay valid until its completion, which always
 * comes (after an error, a cancel or at close as well).
 */
#ifndef ISOTHERM_CACHESTORE_TIER_DISK_H
#define ISOTHERM_CACHESTORE_TIER_DISK_H

#include "cachestore/cachestore.h"

struct tier_disk;

struct record_id {
    uint64_t nonce, sequence;
};

/* What a span's record says of itself; also what the catalogue gives back at open. */
struct span_record {
    struct record_id id;
    struct cs_key key;    /* of the span's first page */
    struct cs_key parent; /* of the page before it; zero at a root */
    struct cs_tenant tenant;
    uint32_t first_position; /* tokens before the span */
    uint32_t n_pages;
    const uint32_t *ids; /* n_pages * page_tokens; owned by whoever made the struct */
    int64_t created_unix, used_unix;
};

/* Notes published together: one catalogue row. owner: the span they live and die with. */
struct note_record {
    struct record_id id;
    struct record_id owner;
    const struct cs_note *notes;
    size_t n_notes;
};

enum tier_result {
    TIER_OK,
    TIER_EIO,
    TIER_CORRUPT_HEADER,
    TIER_CORRUPT_TOKENS,
    TIER_CORRUPT_PAYLOAD,
    TIER_CANCELLED,
    TIER_ENOSPC
};

struct tier_disk_events {
    /* Called by tier_disk_open for every row of this fingerprint, parents in any order. Return 0. */
    int (*on_span)(void *ctx, const struct span_record *r, uint64_t disk_bytes);
    int (*on_notes)(void *ctx, const struct note_record *n);
    void *ctx;
};

/* CS_OK; CS_EBUSY, CS_EVERSION, CS_EFORMAT as cs_open; CS_EIO where the tier cannot be had (err says why, the
 * store goes on without). secret (16 bytes) is the store's key seed, read from or made in the STORE file. */
int tier_disk_open(const struct cs_config *config, const struct tier_disk_events *events,
                   struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len);

/* Bytes a record of n_pages takes on disk, whole chunks. */
uint64_t tier_disk_record_bytes(const struct tier_disk *t, uint32_t n_pages);
/* Chunks free within the budget, in bytes: the store evicts before it writes beyond this. */
uint64_t tier_disk_free_bytes(const struct tier_disk *t);
/* A fresh id, above every one seen. */
struct record_id tier_disk_next_id(struct tier_disk *t);

/* Queue a write; done() after the data is in the file (written), and again nothing: durability is announced
 * by `durable`, called once the sync and the catalogue batch have returned (or with an error, instead).
 * TIER_ENOSPC: no chunks. */
struct tier_write {
    struct span_record record;
    void *const *pages; /* n_pages pointers, stable until durable() */
    void (*durable)(void *ctx, struct tier_write *w, enum tier_result result);
    void *ctx;
};
int tier_disk_write(struct tier_disk *t, struct tier_write *w);
int tier_disk_write_notes(struct tier_disk *t, const struct note_record *n); /* copied; CS_OK or CS_ENOMEM */

/* Queue a read of pages [first, first + n) of a record straight into pages[], verified (header, fingerprint,
 * ids, seeded checksum of every page) before done(). */
struct tier_read {
    struct span_record record; /* what must be found there: id, key, tenant, ids are compared */
    uint32_t first_page, n_pages;
    void *const *pages; /* n_pages destinations, stride bytes each, 4096-aligned */
    void (*done)(void *ctx, struct tier_read *r, enum tier_result result);
    void *ctx;
};
int tier_disk_read(struct tier_disk *t, struct tier_read *r);

/* Forget a record: its row is deleted first, then its chunks become free. Safe while a read of it is in
 * flight. */
void tier_disk_delete(struct tier_disk *t, struct record_id id);
void tier_disk_delete_notes(struct tier_disk *t, struct record_id id);
/* Note a use, persisted in batches. */
void tier_disk_touch(struct tier_disk *t, struct record_id id, int64_t used_unix);

/* Sync what was written and commit its rows soon rather than by the timer. */
void tier_disk_kick(struct tier_disk *t);
void tier_disk_stats(const struct tier_disk *t, struct cs_stats *io_part);
/* Finishes what is queued within deadline_ms, completes the rest as TIER_CANCELLED, closes. */
void tier_disk_close(struct tier_disk *t, uint32_t deadline_ms);

#endif
