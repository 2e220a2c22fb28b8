/*
 * Who leaves a tier next: for device, host and disk each the candidates in classes of worth (policy/worth.h),
 * within a few groups that go one after another, in each class the least recently used first. The least
 * worthy is found by comparing the heads of the classes, at most WORTH_CLASSES of a group, whatever the
 * number of candidates.
 *
 *   device   what is safe in another tier, what would be lost, what waits to be written or copied
 *   host     what is durable, what is not, what waits for the disk
 *   disk     one group
 *
 * What is worth nothing goes first of all, then the first group, then the second, but for their last classes,
 * which follow, then the third. A last class is of what others rest on: a checkpoint that is in memory only
 * needs its pages there, even if they are on disk, for the disk lets go of pages that lead to nothing on it.
 * A checkpoint on the device whose blocks are all in use, by sequences or by other checkpoints, would give no
 * room: it is in the last class of the last group, wherever else it is stored. A class is that of the moment
 * when the candidate was last looked at. It is looked at when its neighbours on the path come or go, and
 * again when it comes to the head.
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
 * Each account (accounts.h) has heads of its own, so that one tenant's least worthy record is found like
 * anybody's. A class of an account is a pairing heap threaded through the spans (Fredman, Sedgewick, Sleator
 * and Tarjan 1986), so that nothing is allocated; the roots of all accounts form another such heap, of which
 * the oldest is the oldest of the class. A root has no siblings in its own heap, so one pair of links serves
 * both. Children of about one size are joined as they come, as in a binomial heap: in a plain pairing heap
 * all who come in the order of their ages become children of the first, and the first victim among 500,000
 * would pay for them all at once.
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_RANKS_H
#define ISOTHERM_CACHESTORE_RANKS_H

#include "cachestore/policy/worth.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index;
struct span;
struct account;

enum rank_tier { RANK_DEVICE, RANK_HOST, RANK_DISK, RANK_TIERS };
enum { RANK_GROUPS_MOST = 3 };

struct rank_heads {
    uint64_t filled[RANK_GROUPS_MOST][WORTH_CLASSES / 64]; /* a bit a class */
    struct span *root[][WORTH_CLASSES];                    /* a row a group of the tier */
};
size_t ranks_heads_bytes(enum rank_tier tier);

/* In a span, one a tier. */
struct rank {
    struct span *child[2]; /* of its account's heap; of the heap of roots */
    struct span *next,
        *previous; /* siblings in the one that it is below; previous of a first child: parent */
    float value;   /* w * time / blocks */
    uint8_t class;
    uint8_t group : 2, ranked : 1;
    uint8_t order[2]; /* about the logarithm of how many are below it, of each heap */
};

/* Puts the span in where it belongs now in each tier, or takes it out where it is no candidate. */
void ranks_update_locked(struct index *ix, struct span *sp);
void ranks_remove_locked(struct index *ix, struct span *sp);
/* The candidate to leave the tier next, of an account's or (NULL) of all; NULL: there is none. */
struct span *ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of);
/* Call when a checkpoint behind page `ordinal` of the span has come or gone. */
void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp, uint32_t ordinal);
/* Call when what hangs on the span was taken from it or given to it. */
void ranks_recount_locked(struct index *ix, struct span *sp);
/* How many pages of the span there are up to its last resident one that nobody uses; 0: none. */
uint32_t ranks_pages_to_unused(const struct index *ix, const struct span *sp);
/* Nothing that could be resumed needs page i of the span. */
bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i);
/* It leaves the device last, because its blocks are all in use. */
bool ranks_gives_no_room(const struct span *sp);
/* Checkpoints of the span behind its pages up to `ordinal`. */
uint32_t ranks_checkpoints_up_to(const struct span *sp, uint32_t ordinal);
/* The most checkpoints behind this one on any path. */
uint32_t ranks_chain_behind(const struct span *checkpoint);
/* The next shallower checkpoint of the path; NULL: none. */
struct span *ranks_checkpoint_before(const struct span *checkpoint);

#endif
