/*
 * Who leaves the device next: the candidates in classes of worth (policy/worth.h), durable ones (and what is
 * whole on the host) apart from those that would be lost, in each class the least recently used first. The
 * least worthy is found by comparing the heads of the classes, at most WORTH_CLASSES of them, whatever the
 * number of candidates.
 *
 * What is worth nothing goes first, then what is safe in another tier, then the rest; of both kinds the last
 * class when all others are empty. A checkpoint whose blocks are all in use, by sequences or by other
 * checkpoints, would give no room: it is in the last class of the rest, wherever else it is stored. A class
 * is that of the moment when the candidate was last looked at; it is looked at again when it comes to the
 * head, so what changes far away costs nothing.
 *
 * Spans go from the tail, leaves before spans with something resident behind them. Pages in use are passed
 * over: a sequence that computed all of its path anew uses pages that were missing at a tail, and not those
 * before them, which would hold memory that nobody can have.
 *
 * Where a model resumes at checkpoints only, pages behind the last checkpoint of all paths through them are
 * worth nothing; the others are what their checkpoints rest on, and go when those are gone. A checkpoint at
 * the end of a path is judged together with the pages that become worthless with it.
 *
 * For that each span knows its chain, the most checkpoints on any path from its start down, and how deep into
 * it pages are useful. Both are kept up to date along the path to the root, as far as they change.
 *
 * Within a class candidates are in a pairing heap that is threaded through the spans (Fredman, Sedgewick,
 * Sleator and Tarjan 1986), so that nothing is allocated.
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_RANKS_H
#define ISOTHERM_CACHESTORE_RANKS_H

#include "cachestore/policy/worth.h"

#include <stdbool.h>
#include <stdint.h>

struct index;
struct span;

struct ranks {
    struct span *root[2][WORTH_CLASSES]; /* not safe in another tier, safe there */
    uint64_t filled[2];                  /* a bit a class */
};

/* In a span. */
struct rank {
    struct span *child, *next, *previous; /* previous: of a first child its parent */
    double value;                         /* w * tokens / blocks */
    uint64_t last_used;
    uint8_t class;
    bool ranked, durable; /* durable: safe in another tier, and its leaving gives room */
};

/* Puts the span in where it belongs now, or takes it out if it is no candidate. */
void ranks_update_locked(struct index *ix, struct span *sp);
void ranks_remove_locked(struct index *ix, struct span *sp);
/* The candidate to evict next; NULL: there is none. */
struct span *ranks_victim_locked(struct index *ix);
/* Call when a checkpoint of the span has come or gone. */
void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp);
/* Call when what hangs on the span was taken from it or given to it. */
void ranks_recount_locked(struct index *ix, struct span *sp);
/* How many pages of the span there are up to its last resident one that nobody uses; 0: none. */
uint32_t ranks_pages_to_unused(const struct index *ix, const struct span *sp);
/* Nothing that could be resumed needs page i of the span. */
bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i);
/* Checkpoints of the span behind its pages up to `ordinal`. */
uint32_t ranks_checkpoints_up_to(const struct span *sp, uint32_t ordinal);
/* The most checkpoints behind this one on any path. */
uint32_t ranks_chain_behind(const struct span *checkpoint);
/* The next shallower checkpoint of the path; NULL: none. */
struct span *ranks_checkpoint_before(const struct span *checkpoint);

#endif
