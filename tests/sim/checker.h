/*
 * What must be true of the store, kept beside it: which records were handed to the disk tier, acknowledged,
 * deleted, and whether the sectors of each still hold what was written there.
 */
#ifndef ISOTHERM_TESTS_SIM_CHECKER_H
#define ISOTHERM_TESTS_SIM_CHECKER_H

#include "cachestore/cachestore.h"
#include "tests/sim/sim.h"
#include "tests/torture/model.h"

void checker_reset(void); /* a new seed */
/* A process begins; c: as which. */
void checker_begin(const struct cs_config *c);
void checker_opened(struct cs_store *s, bool disk_on);
void checker_closing(void);
void checker_ended(bool power);
/* An offline process is at work: rows may go. */
void checker_offline(bool purges, bool rebuilds);

/* Around a look-up of n tokens of a path: how many pages must be found at least, and where it must be
 * resumable. */
struct expectation {
    uint64_t as_of;
    uint32_t pages, state_pages; /* state_pages: the deepest checkpoint, in pages */
};
/* as_of: what became durable later does not count (UINT64_MAX: everything does). */
struct expectation checker_expect(struct cs_store *s, const struct turn *t, uint64_t as_of);
void checker_settled(const struct turn *t, struct expectation before, struct expectation now);

/* The store that is open; NULL: none, or it is being closed. */
struct cs_store *checker_store(void);
bool checker_serves(const struct cs_store *s);
/* What the tenant has on disk or on its way there. */
uint64_t checker_tenant_bytes(const struct cs_tenant *tenant);

/* All that was to be deleted from disk is gone. */
bool checker_deletes_ended(struct cs_store *s);
/* Counters, arena, budget. idle: no sequence is open and everything was flushed. */
void checker_balance(struct cs_store *s, bool idle);
/* Bytes on disk, at any moment. */
void checker_budget(void);
/* All of the record is on disk as it was written. */
bool checker_is_whole(uint64_t nonce, uint64_t sequence);
/* A row of a record is about to be deleted. */
void checker_row_delete(uint64_t nonce, uint64_t sequence);
/* A deletion for good begins, of a store that is open. */
void checker_purges(void);
/* How many there have been in this store. */
uint64_t checker_epoch(const struct cs_store *s);
/* The deletion for good has returned: what it deleted must not come back. */
void checker_purged(void);
/* Damage between two processes that no checksum of the catalogue's finds; the row of this record is bad or
 * gone. */
void checker_rows_flipped(void);
void checker_row_damaged(uint64_t nonce, uint64_t sequence);

#endif
