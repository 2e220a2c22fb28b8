/*
 * Who leaves a tier next: for device, host and disk each the candidates, within a few groups that go one
 * after another, in each the least worthy at this moment first (policy/worth.h, kinetic.h).
 *
 *   device   what is safe in another tier, what would be lost, what waits to be written or copied
 *   host     what is durable, what is not, what waits for the disk
 *   disk     one group
 *
 * What is worth nothing goes first of all, by age, then the first group, then the second, but for those at
 * last, which follow, by age, then the third. At last goes what others rest on: a checkpoint that is in
 * memory only needs its pages there, even if they are on disk, for the disk lets go of pages that lead to
 * nothing on it. A checkpoint on the device whose blocks are all in use, by sequences or by other
 * checkpoints, would give no room: it goes at last of the last group, wherever else it is stored. A candidate
 * is judged when what it is worth by changes, when its neighbours on the path come or go (at most 256 of them
 * on all ways down, with no more than 4,096 spans between), and again when it is the first. What
 * cs_prefill_cost says counts from then on.
 *
 * Spans go from the tail, leaves before spans with something of the tier behind them. On the device they go
 * page by page, and pages in use are passed over: a sequence that computed all of its path anew uses pages
 * that were missing at a tail, and not those before them, which would hold memory that nobody can have.
 *
 * Where a model resumes at checkpoints only, pages behind the last checkpoint of all paths through them are
 * worth nothing; the others are what their checkpoints rest on, and go when those are gone. A checkpoint at
 * the end of a path is judged together with the pages that become worthless with it.
 *
 * For that each span knows its chain, the most checkpoints on any path from its start down, and how deep into
 * it pages are useful. Both are kept up to date along the path to the root, as far as they change.
 *
 * Each account (accounts.h) has a heap of its own in each tier, so that one tenant's least worthy record is
 * found like anybody's, and the heaps of all are members of one.
 *
 * So the choice is the exact least of all, but that one query looks at no more than 512 nodes that time has
 * put out of order: where more have failed, after hours in which nobody asked, the queries that follow choose
 * among an order that is partly of then, until they have worked it off.
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_RANKS_H
#define ISOTHERM_CACHESTORE_RANKS_H

#include "cachestore/kinetic.h"
#include "cachestore/policy/evict.h"
#include "cachestore/policy/worth.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index;
struct span;
struct account;

enum rank_tier { RANK_DEVICE, RANK_HOST, RANK_DISK, RANK_TIERS };

void ranks_open(struct kinetic_heap of_all[RANK_TIERS]);
void ranks_open_account(struct kinetic_member heads[RANK_TIERS]);
/* Puts the span in where it belongs now in each tier, or takes it out where it is no candidate. */
void ranks_update_locked(struct index *ix, struct span *sp);
void ranks_remove_locked(struct index *ix, struct span *sp);
/* Sets last_used. */
void ranks_used_locked(struct index *ix, struct span *sp, uint64_t tick);
/* The candidate to leave the tier next, of an account's or (NULL) of all; NULL: there is none. */
struct span *ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of);
/* Call when a checkpoint behind page `ordinal` of the span has come or gone. */
void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp, uint32_t ordinal);
/* Call when blocks that the checkpoint shared with others have become another's alone: it may give room now.
 */
void ranks_blocks_left_locked(struct index *ix, const struct span *checkpoint);
/* Call when what hangs on the span was taken from it or given to it. */
void ranks_recount_locked(struct index *ix, struct span *sp);
/* How many pages of the span there are up to its last resident one that nobody uses; 0: none. */
uint32_t ranks_pages_to_unused(const struct index *ix, const struct span *sp);
/* Nothing that could be resumed needs page i of the span. */
bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i);
/* It leaves the device first of all. */
bool ranks_is_worth_nothing(const struct span *sp);
/* It leaves the device last, because its blocks are all in use. */
bool ranks_gives_no_room(const struct span *sp);
/* Checkpoints of the span behind its pages up to `ordinal`. */
uint32_t ranks_checkpoints_up_to(const struct span *sp, uint32_t ordinal);
/* The most checkpoints behind this one on any path. */
uint32_t ranks_chain_behind(const struct span *checkpoint);
/* The next shallower checkpoint of the path; NULL: none. */
struct span *ranks_checkpoint_before(const struct span *checkpoint);

#endif
