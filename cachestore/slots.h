/*
 * Memory of the index's spans. Hundreds of thousands are made by the thread that opens a store, and die one
 * by one in favour of spans that other threads publish: malloc keeps what one thread took for that thread,
 * and a budget in bytes would not bound what the process holds.
 *
 * Slots are multiples of 64 bytes, in slabs of 64 KiB of one size each; an empty slab serves any size. Slabs
 * come in regions of 2 MiB, which stay until the end. What is larger than an eighth of a slab is malloc's.
 *
 * Not asked for: huge pages. They halve the time of filling gigabytes where memory is at hand, and multiply
 * it where a hypervisor has to give it first.
 *
 * Threads: one at a time.
 */
#ifndef ISOTHERM_CACHESTORE_SLOTS_H
#define ISOTHERM_CACHESTORE_SLOTS_H

#include <stddef.h>
#include <stdint.h>

enum { SLOT_ALIGN = 64, SLOT_BYTES_MAX = 8192, SLOT_SIZES = SLOT_BYTES_MAX / SLOT_ALIGN };

struct slab;
struct slots {
    struct slab *partial[SLOT_SIZES]; /* slabs with free slots, by size */
    struct slab *empty;
    struct slab *fresh; /* in the last region: the next that was never used */
    char *fresh_end;
    struct slab *regions; /* the first slab of each */
    uint64_t n_regions;
};

/* bytes > 0. NULL: no memory. */
void *slots_take(struct slots *s, size_t bytes);
/* bytes: as when it was taken. */
void slots_give(struct slots *s, void *slot, size_t bytes);
/* Ends all that is in slabs; what was malloc's must have been given back. */
void slots_end(struct slots *s);
/* What the budget counts for one. */
static inline size_t slots_bytes(size_t bytes)
{
    return (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

#endif
