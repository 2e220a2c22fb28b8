/* Counting how long things took. Any thread may add or copy (see cs_histogram in cachestore.h). */
#ifndef ISOTHERM_CACHESTORE_HISTOGRAM_H
#define ISOTHERM_CACHESTORE_HISTOGRAM_H

#include "cachestore/cachestore.h"

#include <stdatomic.h>

struct histogram {
    _Atomic uint64_t count[CS_HISTOGRAM_BUCKETS], sum_us;
};

static inline void histogram_add(struct histogram *h, uint64_t us)
{
    unsigned bits = us > 0 ? 64 - (unsigned)__builtin_clzll(us) : 0; /* us < 2^bits */
    unsigned i = bits < CS_HISTOGRAM_BUCKETS ? bits : CS_HISTOGRAM_BUCKETS - 1;
    atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

static inline void histogram_copy(const struct histogram *h, struct cs_histogram *out)
{
    for (unsigned i = 0; i < CS_HISTOGRAM_BUCKETS; i++)
        out->count[i] = atomic_load_explicit(&h->count[i], memory_order_relaxed);
    out->sum_us = atomic_load_explicit(&h->sum_us, memory_order_relaxed);
}

#endif
