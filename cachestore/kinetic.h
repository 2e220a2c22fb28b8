/*
 * A kinetic heap: who is worth least at this moment, where the worth of everybody falls all the time and each
 * at a rate of its own.
 *
 * Worth is v / (age + c) (policy/worth.h), so the least worthy has the greatest (now - last_used + c) / v: a
 * straight line in time for each, and two lines cross once at most. So the heap keeps the order of one moment
 * together with the first moment at which some edge of it, a node and its parent, stops being right (Basch,
 * Guibas and Hershberger 1999). Until then nothing has to be done; from then on only those subtrees are
 * looked at in which an edge has failed. The first is the least worthy, exactly; only what differs by less
 * than a rounding (2^-52) counts as equal, and then the least recently used goes, of those the deepest.
 *
 * Turns come before worth: whoever has a smaller one goes first. Edges between two turns never fail.
 *
 * The tree is complete (place n has 2n and 2n + 1 below it and is found by the bits of n) and threaded
 * through its members, so nothing is allocated. `fails` of a node is the least of its edge to its parent and
 * of all that lies below it.
 *
 * Invariant: an edge whose `fails` lies behind `now` is right; any other may be wrong, and is looked at by
 * the next kinetic_first. So changes need not settle the heap before, and kinetic_first may stop when it has
 * done as much as it was told to: the first is then the least worthy of those whose edges have been looked
 * at, and what is left is found by the next calls, at the earliest failure first.
 *
 * Two levels: the nodes of a heap of members stand for heaps, with the line of the first in each.
 *
 * `now` is microseconds and should not go back; if it does the heap keeps the order that it has. Threads:
 * none of its own, and no locks.
 */
#ifndef ISOTHERM_CACHESTORE_KINETIC_H
#define ISOTHERM_CACHESTORE_KINETIC_H

#include "cachestore/policy/evict.h"

#include <stdbool.h>
#include <stdint.h>

struct kinetic_node {
    struct kinetic_node *left, *right, *parent;
    uint64_t fails;
    float value; /* v, greater than 0 */
    uint8_t turn;
    bool ranked; /* is in a heap */
};

struct kinetic_heap {
    struct kinetic_node *root;
    uint32_t n;
    int16_t age_at; /* from a node to its struct evict_facts: what is in several heaps has one age */
    bool of_members;
};

struct kinetic_member {
    struct kinetic_node node; /* as long as heap is not empty */
    struct evict_facts age;   /* of the first of heap, as are turn and value of node */
    struct kinetic_heap heap;
};

struct kinetic_heap kinetic_heap_of(int16_t age_at);
struct kinetic_heap kinetic_heap_of_members(void);

/* turn and value are set before, the age as well. */
void kinetic_insert(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
/* Zeroes the node. */
void kinetic_remove(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
/* Call behind a change of turn, value or age; nobody else's may have changed since the last call. */
void kinetic_changed(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
/* Call behind each change of m->heap, and behind kinetic_first of it. */
void kinetic_member_changed(struct kinetic_heap *of_members, struct kinetic_member *m, uint64_t now);
/* The first, a member's node in a heap of members; NULL: the heap is empty. Looks at no more than *work
 * nodes and takes off what it has looked at: with less than the depth of both trees (64 is never less) it may
 * get nowhere. */
struct kinetic_node *kinetic_first(struct kinetic_heap *h, uint64_t now, uint32_t *work);

/* For those who look at all: whether a goes before b at that moment. */
bool kinetic_before(const struct kinetic_node *a, const struct evict_facts *age_a,
                    const struct kinetic_node *b, const struct evict_facts *age_b, uint64_t now);

#endif
