/*
 * Where checkpoints lie on a path: pure functions over positions.
 *
 * Candidates are boundaries, each moved to the grid at or before it (a prompt's end at or before its last
 * token but one, so that one is left to compute). At most k of them stay. Which go, one after another: the
 * interior one with the least coverage cost
 *
 *     (p_i - p_(i-1)) * ln((P - p_i + 64) / (P - p_(i+1) + 64))
 *
 * (P: the last position, p_0 before the first: 0): what it saves when a later prompt leaves the path between
 * it and the next one, where leaving is about as likely at each power of two of the distance from the end.
 * The last two and the one behind the system message stay; a branch point goes when no other is left, and the
 * system's only when nothing else would bring the path down to k.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_PLACEMENT_H
#define ISOTHERM_CACHESTORE_POLICY_PLACEMENT_H

#include "cachestore/cachestore.h"

struct placement_point {
    uint32_t position;
    enum cs_boundary_kind kind;
    bool kept;
    void *item; /* the caller's */
    /* Of placement_thin. */
    uint32_t before, after;
    uint32_t least[2];
    double cost;
};

/* The kind of a checkpoint that serves both: the one that is kept longer. */
enum cs_boundary_kind placement_merge(enum cs_boundary_kind a, enum cs_boundary_kind b);
/* Boundaries of a prompt of n_tokens, moved to the grid, as points with position > after, ascending, one a
 * position. branch: where stored paths part from this prompt, 0: nowhere. out has room for n_boundaries + 1;
 * returns how many there are. */
size_t placement_candidates(const struct cs_boundary *boundaries, size_t n_boundaries, uint32_t n_tokens,
                            uint32_t grid, uint32_t after, uint32_t branch, struct placement_point *out);
/* Sorts by position and joins points of one position (an item stays); returns how many are left. */
size_t placement_sort(struct placement_point *points, size_t n);
/* Says which points of a path, ascending, stay (kept): at most k. O(n log n). Returns how many stay. */
size_t placement_thin(struct placement_point *points, size_t n, uint32_t k);

#endif
