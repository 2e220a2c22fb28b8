/*
 * The disk tier: records of spans and checkpoints in chunked volumes, catalogued in RocksDB, moved by an I/O
 * engine on its own thread.
 *
 * It knows records (header, pages, notes), never paths or policy: store.c decides what is written, read and
 * deleted. All work is queued and never waits. Completions are called on the tier's I/O thread with no lock
 * of the tier held; they may call any function of this header except tier_disk_close. Every request gets
 * exactly one completion, after an error, a cancel or at close as well; what a request points to (pages, ids,
 * the struct itself) must stay valid and unchanged until then.
 *
 * Order of a write: data -> grouped fdatasync -> one catalogue batch -> durable(). Order of a delete: the row
 * -> reads in flight on it have ended -> its chunks are free. A crash between any two steps leaves a record
 * that is found and verifies, or none.
 *
 * Budget: tier_disk_free_bytes counts a write when it is queued and a delete when it is asked for, so "evict
 * until there is room, then write" needs no waiting: the tier holds a write back until the chunks of the
 * deletes before it are free.
 */
#ifndef ISOTHERM_CACHESTORE_TIER_DISK_H
#define ISOTHERM_CACHESTORE_TIER_DISK_H

#include "cachestore/cachestore.h"

struct tier_disk;

/* Unique for ever: a nonce per open, and a sequence above every one the store has seen. All zero: none. */
struct record_id {
    uint64_t nonce, sequence;
};
static inline bool record_id_equal(struct record_id a, struct record_id b)
{
    return a.nonce == b.nonce && a.sequence == b.sequence;
}

enum record_kind {
    RECORD_SPAN = 1,
    RECORD_CHECKPOINT = 2, /* the pages are blocks: state first, then the window pages, group by group */
};

/* What a record says of itself; also what the catalogue gives back at open. */
struct span_record {
    struct record_id id;
    enum record_kind kind;
    struct cs_key
        key; /* of the span's first page; of a checkpoint: its own, made from the parent's (key.h) */
    struct cs_key parent; /* of the page before it; zero at a root */
    struct cs_tenant tenant;
    uint32_t first_position; /* tokens before it */
    uint32_t
        n_pages; /* span: at most fmt_record_pages_per_span() of formats/record.h; checkpoint: its blocks */
    uint32_t flags;      /* checkpoint: enum cs_boundary_kind */
    const uint32_t *ids; /* span: n_pages * page_tokens; checkpoint: the page_tokens ids before it; owned by
                            whoever made the struct */
    int64_t created_unix, used_unix;
    bool pinned; /* at open only: a row says that it is not to leave */
};

/* Notes that lie in one catalogue row: id is owner in the row of the span itself, otherwise the row is their
 * own. owner: the span they live and die with. */
struct note_record {
    struct record_id id;
    struct record_id owner;
    const struct cs_note *notes;
    size_t n_notes;
};

enum tier_result {
    TIER_OK,
    TIER_EIO,             /* read, write, sync or catalogue failed */
    TIER_CORRUPT_HEADER,  /* not the record that was asked for, or damaged, or the volume is cut short */
    TIER_CORRUPT_TOKENS,  /* the record holds other token ids */
    TIER_CORRUPT_PAYLOAD, /* a page's checksum fails */
    TIER_CANCELLED,
    TIER_ENOSPC,   /* no chunks: evicting records makes room */
    TIER_EFULL,    /* the file system is full: nothing is written before others give room back */
    TIER_NOTFOUND, /* never written, failed, or deleted before the read began */
};

struct tier_disk_events {
    /* Called by tier_disk_open, on the caller's thread, for every row of this fingerprint and geometry: all
     * spans, newest first (so of two rows with one key the first is the one to keep; parents in any order),
     * then all checkpoints, newest first; each followed by the notes in it if it was kept; then, in any
     * order, notes in rows of their own, of records that were kept. The record is valid during the call.
     * on_span returns 0 to keep it, more than 0 to have the tier delete it; both may return a CS_E code,
     * which ends the open, and then no row is deleted.
     *
     * on_restart: the catalogue failed in the middle. Everything reported so far is void; what follows, from
     * the first span on, comes from the headers in the volumes. Any of the three may be NULL. */
    int (*on_span)(void *ctx, const struct span_record *r, uint64_t disk_bytes);
    int (*on_notes)(void *ctx, const struct note_record *n);
    void (*on_restart)(void *ctx);
    /* Called before on_span for each tenant that has limits of its own. What was told stays after on_restart,
     * and must be told the tier again. NULL, or 0 or CS_ENOMEM, which ends the open. */
    int (*on_quota)(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota);
    void *ctx;
};

/* CS_OK; CS_EBUSY, CS_EVERSION, CS_EFORMAT as cs_open; CS_EINVAL (the budget holds no record); CS_EIO where
 * the tier cannot be had (err says why, the store goes on without). secret (16 bytes) is the store's key
 * seed, read from or made in the STORE file, and it is known before the first event: it is written before
 * on_span is called. Calls config->log, also later from its own threads; keeps no pointer to config. */
int tier_disk_open(const struct cs_config *config, const struct tier_disk_events *events,
                   struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len);

/* Bytes a record of n_pages (of a checkpoint: blocks) takes on disk, whole chunks. 0: no such record can be
 * made (its header would not fit into a chunk); its write ends as TIER_EIO. */
uint64_t tier_disk_record_bytes(const struct tier_disk *t, enum record_kind kind, uint32_t n_pages);
/* Room within the budget: what is queued, written or of another fingerprint counts, what was deleted does not
 * (except that records of another fingerprint leave by themselves, oldest first, when a write needs their
 * room: they count as free here). Negative after the budget was lowered, or while the catalogue outgrows its
 * share: evict that much, or writes are refused. */
int64_t tier_disk_free_bytes(const struct tier_disk *t);
/* A fresh id, above every one seen. */
struct record_id tier_disk_next_id(struct tier_disk *t);

/* Queue a write. durable() is called once the sync and the catalogue batch have returned, or with the error
 * that ended it before. On success the record may be read from then on (not earlier). record.id comes from
 * tier_disk_next_id. */
struct tier_write {
    struct span_record record;
    void *const *pages; /* n_pages pointers, 4096-aligned, stride bytes each */
    /* NULL, or called with ctx for each page on the I/O thread before its checksum is taken. False: these are
     * not the bytes that were to be written; the write ends as TIER_EIO. */
    bool (*check)(void *ctx, uint32_t page);
    /* Go into the span's own row. Copied before the call returns. Where the catalogue has outgrown its share,
     * or without memory, the span is written without them and they are counted (dropped_notes). */
    const struct cs_note *notes;
    size_t n_notes;
    void (*durable)(void *ctx, struct tier_write *w, enum tier_result result);
    void *ctx;
    struct tier_write *tier_next; /* the tier's, while queued */
    void *tier_notes;
    size_t tier_notes_bytes;
};
void tier_disk_write(struct tier_disk *t, struct tier_write *w);
/* A row of its own for notes of a span that is durable already. Copied; committed with the next batch. CS_OK;
 * CS_ENOTFOUND: no such span, or it was deleted; CS_ENOMEM, CS_EFULL: as above, and counted. */
int tier_disk_write_notes(struct tier_disk *t, const struct note_record *n);

/* Queue reads of pages [first_page, first_page + n_pages) of records straight into pages[], verified (header,
 * fingerprint, id, kind, key, parent, tenant, position, flags, token ids, seeded checksum of every page)
 * before done(). On any
 * result but TIER_OK the pages' bytes are undefined. All n are queued under one lock with one wake-up: queue
 * a restore's reads in one call. */
struct tier_read {
    struct span_record record; /* what must be found there: all but the times is compared */
    uint32_t first_page, n_pages;
    void *const *pages; /* n_pages destinations, stride bytes each, 4096-aligned; neighbours are merged */
    void (*done)(void *ctx, struct tier_read *r, enum tier_result result);
    void *ctx;
    _Atomic bool cancel;         /* the owner may set it at any time: what has not started is not read */
    struct tier_read *tier_next; /* the tier's, while queued */
};
void tier_disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n);

/* Forget a record (unknown ids are ignored): its row and those of its notes are deleted first, then its
 * chunks become free. Safe while reads of it are in flight (they end as they would have). A write that is not
 * durable yet ends as TIER_CANCELLED, or as TIER_OK when it was too late to stop it; it is gone all the same.
 */
void tier_disk_delete(struct tier_disk *t, struct record_id id);
/* One row of notes of a span that stays. */
void tier_disk_delete_notes(struct tier_disk *t, struct record_id owner, struct record_id id);
/* A tenant's limits, or that it has none (all 0); in the catalogue with the next batch, or a later one where
 * that fails. CS_OK, CS_ENOMEM. */
int tier_disk_quota(struct tier_disk *t, const struct cs_tenant *tenant, const struct cs_quota *quota);
/* Note a use, persisted in batches. */
void tier_disk_touch(struct tier_disk *t, struct record_id id, int64_t used_unix);

/* ---- for who looks after a store while it is open (control.c) ---- */

/* Where a record begins. */
struct tier_place {
    uint32_t volume, first_chunk;
};
/* CS_OK; CS_ENOTFOUND: there is no such record that could be read. */
int tier_disk_locate(struct tier_disk *t, struct record_id id, struct tier_place *out);
/* Records of other fingerprints: whole buckets of the table from *cursor on, which is moved, as long as they
 * hold no more than n together, and no more than some thousand. How many; *cursor UINT64_MAX: that was all.
 * What is there throughout is told at least once, twice where the table grows meanwhile. */
struct tier_foreign {
    struct record_id id;
    struct tier_place place;
    int64_t used_unix;
};
uint32_t tier_disk_foreign(struct tier_disk *t, uint64_t *cursor, struct tier_foreign *out, uint32_t n);
/* tier_disk_delete for good: its header is zeroed, too, and that is synced, before its chunks are free. */
void tier_disk_purge(struct tier_disk *t, struct record_id id);
/* The same for a record of another fingerprint, for one that is being deleted, or for the header of one that
 * is gone, at the beginning of a chunk that is free; nothing happens where it is not. CS_OK: it is under way;
 * CS_EBUSY: it is a record of this store's, who deletes it by tier_disk_purge; CS_EINVAL (header_bytes),
 * CS_ENOMEM. */
int tier_disk_erase(struct tier_disk *t, struct record_id id, const struct tier_place *place,
                    uint32_t header_bytes);
/* Writes that a record is pinned, or no more. CS_OK: it is under way; CS_ENOTFOUND, CS_ENOMEM. */
int tier_disk_pin(struct tier_disk *t, struct record_id id, bool pinned);
/* How many of those three are under way, and have failed since open. */
void tier_disk_asked(const struct tier_disk *t, uint64_t *asked, uint64_t *failed);
/* Records that are written from now on have a higher purge epoch. Waits for the disk; one thread at a time.
 * CS_OK, CS_EIO. */
int tier_disk_raise_epoch(struct tier_disk *t);
/* The directory, for as long as the tier is open; the store's UUID and chunk size. */
int tier_disk_dir(const struct tier_disk *t, uint8_t uuid[16], uint32_t *chunk_bytes);

/* Waits until all that was to be deleted is gone and its room given back, at most deadline_ms, and not where
 * the catalogue cannot be written: after it, what is on disk fits a budget that was lowered. For the opener;
 * not from a completion. */
void tier_disk_settle(struct tier_disk *t, uint32_t deadline_ms);
/* Sync what was written and commit its rows soon rather than by the timer. */
void tier_disk_kick(struct tier_disk *t);
/* Bytes of writes and notes queued whose durable() has not returned. 0: all is on disk or has failed. */
uint64_t tier_disk_pending_bytes(const struct tier_disk *t);
/* At most so much more memory is held for one more record. */
enum { TIER_DISK_RECORD_BYTES = 144 };
/* Memory the tier holds for its records, for the index's budget. */
uint64_t tier_disk_memory_bytes(const struct tier_disk *t);
/* Fills the disk fields and the disk's totals (disk_on, disk_engine, disk_bytes, disk_budget, disk_spans,
 * disk_checkpoints, pending_bytes, records_foreign, spans_written, checkpoints_written, bytes_written,
 * spans_read, checkpoints_read, bytes_read, syncs, catalog_batches, catalog_rows, corrupt_header,
 * corrupt_tokens, corrupt_payload, io_errors, dropped_notes, sqes, submissions); leaves the others alone.
 * What was read counts once it is verified, what could not be written is the caller's to count. */
void tier_disk_stats(const struct tier_disk *t, struct cs_stats *io_part);
/* Fills read, write and sync. Any thread. */
void tier_disk_latencies(const struct tier_disk *t, struct cs_latencies *io_part);
/* Finishes what is queued within deadline_ms, completes the rest as TIER_CANCELLED, closes. Not from a
 * completion. */
void tier_disk_close(struct tier_disk *t, uint32_t deadline_ms);

#endif
