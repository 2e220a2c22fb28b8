/*
 * A disk tier in memory, in the place of the real one: every completion is given by hand, with any result. It
 * outlives the store that uses it, so that opening again is a restart. It checks the store's side of the
 * contract as it goes: parents are written before children, no record with children on disk is deleted (but a
 * quarantined one), and what is queued stays within the budget.
 */
#ifndef ISOTHERM_TESTS_CACHESTORE_FAKE_TIER_H
#define ISOTHERM_TESTS_CACHESTORE_FAKE_TIER_H

#include "tests/cachestore/harness.h"

struct fake_record {
    struct span_record record; /* ids owned */
    uint8_t *bytes;
};

struct fake_notes {
    struct record_id id, owner;
    struct cs_note *notes;
    size_t n;
};

struct fake_tier {
    uint64_t budget, next_sequence, nonce;
    struct fake_record *records;
    size_t n_records;
    struct fake_notes *notes; /* lists of notes: in the row of a span (id is owner) or in one of their own */
    size_t n_notes;
    struct fake_quota {
        struct cs_tenant tenant;
        struct cs_quota quota; /* all 0: none */
    } quotas[8];
    struct tier_write *writes[256];
    size_t n_writes;
    struct tier_read *reads[256];
    size_t n_reads;
    size_t n_written, n_read_calls, n_reads_queued, n_deleted, n_kicks, n_touches;
    bool allow_parent_delete; /* set by tests that let reads fail */
    bool refuse_notes;        /* answers rows of notes with CS_EFULL */
    size_t n_notes_refused;
};

extern const struct tier_vtable fake_vtable;
/* The fake that the next fake_open's store uses. */
struct cs_store *fake_open(struct fake_tier *f, const struct cs_config *c);
void fake_free(struct fake_tier *f);
/* Rows that hold nothing but notes. */
size_t fake_note_rows(const struct fake_tier *f);
/* Completes what is queued, in order, with this result; what completions queue meanwhile too. */
void fake_finish_writes(struct fake_tier *f, enum tier_result result);
/* The first write queued only. */
void fake_finish_write(struct fake_tier *f, enum tier_result result);
/* The i-th read queued. */
void fake_finish_read(struct fake_tier *f, size_t i, enum tier_result result);
void fake_finish_reads(struct fake_tier *f, enum tier_result result);

/* Copies, reads and writes, and all that they cause, well. f may be NULL: no disk. */
void fake_finish_everything(struct fake_tier *f);
/* And all that waits for its time; so a close has nothing to wait for. */
void settle_store(struct cs_store *s, struct fake_tier *f);

/* Changes a byte of a block on the host that holds something and is not on its way anywhere; false: there is
 * none. */
bool damage_host_block(struct cs_store *s, uint64_t *rng);

/* Records on disk, as the store knows them, damaged ones that stay for what hangs on them included; stats has
 * the tier's figure, which this one has none of. */
uint64_t records_known(struct cs_store *s);

/* Publishes n ids and makes them durable. */
void store_durably(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, size_t n);
/* Evicts everything that may be evicted from the device. */
void empty_device(struct cs_store *s);
/* A sequence that has to wait for reads. */
struct cs_sequence *open_loading(struct cs_store *s, const uint32_t *ids, size_t n);
/* The first n of n + 1 ids, whole pages, come back from disk, all of them and right. */
void check_from_disk(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, size_t n);

#endif
