/*
 * Who leaves a tier, and when: pure functions over facts they are given. What a candidate is worth orders
 * those of one turn (worth.h); this says whether it is a candidate at all, and its turn:
 *
 *   1. what is worth nothing, by age
 *   2. what is still in a lower tier     (durable first)   \  by worth
 *   3. what would be lost                                  /
 *   4. of the second kind, of the third, what others of the tier rest on   (leaf first), by age
 *   5. what waits to be copied or written from here, by worth; then what of it others rest on, by age
 *
 * What is pinned, in use or on its way is no candidate. On disk nothing is that others rest on: a record
 * without its parent would be found by nobody.
 *
 * The index, and a turn by age, let go of the least recently used; of equals the deeper one goes. What
 * continues a path counts as if it had been used 90 s later: a conversation that has gone on once is more
 * likely to go on again than a first prompt is to have a second turn.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_EVICT_H
#define ISOTHERM_CACHESTORE_POLICY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

/* In the order in which they go. */
enum evict_turn {
    EVICT_NOTHING, /* worth nothing; by age */
    EVICT_SAFE,    /* by worth, like the next */
    EVICT_UNSAFE,
    EVICT_SAFE_LAST, /* by age, like the next */
    EVICT_UNSAFE_LAST,
    EVICT_WAITING, /* by worth */
    EVICT_WAITING_LAST,
    EVICT_NEVER, /* no candidate */
};

struct evict_standing {
    bool held;           /* pinned, in use or on its way, or nothing of it is here */
    bool safe;           /* it would still be in a lower tier */
    bool waits;          /* for something that is done from here */
    bool useless;        /* nothing that could be resumed needs it ... */
    bool part_of_useful; /* ... but without it what is needed could not go to a lower tier any more */
    bool rested_on;      /* something of this tier hangs on it */
    bool parents_stay;   /* of the tier: what is rested on is no candidate */
    bool gives_none;     /* others use all of it: letting it go frees nothing now */
};

enum evict_turn evict_turn_of(const struct evict_standing *s);
/* Within the turn worth decides. */
bool evict_by_worth(enum evict_turn turn);

struct evict_facts {
    uint64_t last_used;      /* greater is later */
    uint32_t first_position; /* depth in tokens */
    bool continues;          /* a path, where nothing else did; models without state only */
};

/* When it counts as used, microseconds like last_used. */
uint64_t evict_used_us(const struct evict_facts *facts);

/* True: a leaves before b. */
bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b);

#endif
