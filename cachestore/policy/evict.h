/*
 * Which of two goes first where age alone decides (in the index, among what is worth the same): the least
 * recently used; of equals the deeper one. A pure function over facts it is given; the caller offers leaves
 * only.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_EVICT_H
#define ISOTHERM_CACHESTORE_POLICY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct evict_facts {
    uint64_t last_used;      /* greater is later */
    uint32_t first_position; /* depth in tokens */
};

/* True: a leaves before b. */
bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b);

#endif
