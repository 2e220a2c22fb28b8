/*
 * Which span leaves a tier first: pure functions over facts they are given.
 *
 * Device: what is safe on disk before what is not, leaves before interior spans, then the least recently
 * used; of equals the deeper one. Disk and index: the caller offers leaves only; the least recently used
 * goes.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_EVICT_H
#define ISOTHERM_CACHESTORE_POLICY_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct evict_facts {
    bool durable;            /* on disk, acknowledged */
    bool leaf;               /* no child has pages in this tier */
    uint64_t last_used;      /* greater is later */
    uint32_t first_position; /* depth in tokens */
};

/* True: a leaves before b. */
bool evict_device_before(const struct evict_facts *a, const struct evict_facts *b);
bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b);

#endif
