/*
 * Notes: small opaque bytes under a caller's key, owned by a span and gone with it. The notes of one publish
 * are one batch. The latest note of a key replaces an older one, whose batch goes once it is empty. Their
 * bytes count in the index.
 *
 * On disk a batch lies in the row of its span if it was there when the span was handed over, and in a row of
 * its own if it came later. Rows of their own are written once the span is durable, so that no row of notes
 * is ever without its span.
 *
 * Threads: the store's lock is held, but for note_blob_unref.
 */
#ifndef ISOTHERM_CACHESTORE_NOTES_H
#define ISOTHERM_CACHESTORE_NOTES_H

#include "cachestore/index.h"
#include "cachestore/tier.h"

#define NOTE_MAX_BYTES (1u << 20)

struct note;

/* A note's bytes, alive while somebody copies them. */
struct note_blob {
    _Atomic uint32_t refs;
    uint32_t len;
    uint8_t bytes[];
};

struct note_batch {
    struct note_batch *next, *previous; /* of the same owner */
    struct span *owner;
    struct note *notes;
    uint32_t n_notes;
    bool stored;          /* was handed to the tier */
    struct record_id row; /* then: the owner's id in the owner's row, otherwise the id of its own */
};

struct notes {
    struct note **buckets;
    uint64_t bucket_mask, n_notes, next_order;
};

int notes_open(struct notes *n, uint64_t index_budget);
void notes_close(struct notes *n);
uint64_t notes_bytes(const struct cs_note *notes, size_t n_notes);
/* Of all that the span owns. */
uint64_t notes_bytes_of(const struct span *owner);

/* Adds a batch to the owner, replacing what has the same keys. order: 0 takes the next (newest) one; rows
 * read back give the one they were written with, and lose against newer ones. Batches that became empty are
 * deleted from disk (tier may be NULL). NULL: no memory, or nothing of it is newest. */
struct note_batch *notes_add_locked(struct notes *n, struct index *ix, const struct tier_vtable *tier,
                                    struct tier_disk *disk, struct span *owner, const struct cs_note *notes,
                                    size_t n_notes, uint64_t order);
/* Drops all notes of a span, in memory and on disk. */
void notes_drop_locked(struct notes *n, struct index *ix, const struct tier_vtable *tier,
                       struct tier_disk *disk, struct span *owner);
/* The owner's notes for the row of the record it is about to get (its id is known): an array that the caller
 * frees and whose bytes live until the lock is released. NULL: there are none (or no memory: they get rows of
 * their own). */
struct cs_note *notes_for_row_locked(struct span *owner, size_t *n_notes);
/* Writes a row for each of the owner's batches that was not handed over yet. The owner is durable. */
void notes_store_locked(const struct tier_vtable *tier, struct tier_disk *disk, struct span *owner);
/* The owner's record is gone, and the rows with it; the notes stay in memory. */
void notes_unstore_locked(struct span *owner);
/* Calls fn for each note of the owner. */
void notes_each_locked(const struct span *owner, void (*fn)(void *ctx, struct cs_key key, uint32_t len),
                       void *ctx);
/* The bytes of a note with one more reference; NULL: none. */
struct note_blob *notes_find_locked(const struct notes *n, struct cs_key key);
void note_blob_unref(struct note_blob *b);

#endif
