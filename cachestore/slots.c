/* See slots.h. */
#include "cachestore/slots.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__has_include)
#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { SLAB_BYTES = 64 << 10, REGION_BYTES = 2 << 20, HEAD_BYTES = SLOT_ALIGN };

/* A free slot begins with the next one. */
struct free_slot {
    struct free_slot *next;
};

/* The head of a slab. */
struct slab {
    struct slab *next, *previous; /* of its size with free slots, or of the empty ones */
    struct slab *next_region;
    struct free_slot *free;
    uint32_t slot_bytes;
    uint32_t n_used, n_made, n_slots; /* n_made: the slots behind them were never used */
};
_Static_assert(sizeof(struct slab) <= HEAD_BYTES, "slots are aligned");

static struct slab *slab_of(void *slot)
{
    return (struct slab *)((uintptr_t)slot & ~(uintptr_t)(SLAB_BYTES - 1));
}

static struct slab **list_of(struct slots *s, size_t bytes)
{
    return &s->partial[(bytes - 1) / SLOT_ALIGN];
}

static void list_add(struct slab **list, struct slab *slab)
{
    slab->previous = NULL;
    slab->next = *list;
    if (*list)
        (*list)->previous = slab;
    *list = slab;
}

static void list_remove(struct slab **list, struct slab *slab)
{
    if (slab->previous)
        slab->previous->next = slab->next;
    else
        *list = slab->next;
    if (slab->next)
        slab->next->previous = slab->previous;
}

static bool region_add(struct slots *s)
{
    char *map = mmap(NULL, 2 * REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return false;
    size_t before = -(uintptr_t)map & (REGION_BYTES - 1), after = REGION_BYTES - before;
    char *region = map + before;
    if (before > 0)
        munmap(map, before);
    if (after > 0)
        munmap(region + REGION_BYTES, after);
    s->n_regions++;
    s->fresh = (struct slab *)region;
    s->fresh_end = region + REGION_BYTES;
    s->fresh->next_region = s->regions;
    s->regions = s->fresh;
    return true;
}

/* A slab without a size; NULL: no memory. */
static struct slab *slab_new(struct slots *s)
{
    struct slab *slab = s->empty;
    if (slab) {
        list_remove(&s->empty, slab);
        return slab;
    }
    if ((char *)s->fresh == s->fresh_end && !region_add(s))
        return NULL;
    slab = s->fresh;
    s->fresh = (struct slab *)((char *)slab + SLAB_BYTES);
    /* All of it will be written before long: a third less than page by page. */
    (void)madvise(slab, SLAB_BYTES, MADV_POPULATE_WRITE);
    return slab;
}

void *slots_take(struct slots *s, size_t bytes)
{
    if (bytes > SLOT_BYTES_MAX)
        return malloc(bytes);
    struct slab **list = list_of(s, bytes), *slab = *list;
    if (!slab) {
        slab = slab_new(s);
        if (!slab)
            return NULL;
        list_add(list, slab);
        slab->slot_bytes = (uint32_t)slots_bytes(bytes);
        slab->n_slots = (SLAB_BYTES - HEAD_BYTES) / slab->slot_bytes;
        slab->n_used = slab->n_made = 0;
        slab->free = NULL;
        ASAN_POISON_MEMORY_REGION((char *)slab + HEAD_BYTES, SLAB_BYTES - HEAD_BYTES);
    }
    void *slot = slab->free;
    if (!slot)
        slot = (char *)slab + HEAD_BYTES + (size_t)slab->n_made++ * slab->slot_bytes;
    ASAN_UNPOISON_MEMORY_REGION(slot, bytes);
    if (slab->free)
        slab->free = slab->free->next;
    if (++slab->n_used == slab->n_slots)
        list_remove(list, slab);
    return slot;
}

void slots_give(struct slots *s, void *slot, size_t bytes)
{
    if (bytes > SLOT_BYTES_MAX) {
        free(slot);
        return;
    }
    struct slab *slab = slab_of(slot), **list = list_of(s, bytes);
    if (slab->n_used-- == slab->n_slots)
        list_add(list, slab);
    struct free_slot *f = slot;
    f->next = slab->free;
    slab->free = f;
    ASAN_POISON_MEMORY_REGION(slot, slab->slot_bytes);
    if (slab->n_used == 0) {
        list_remove(list, slab);
        list_add(&s->empty, slab);
    }
}

void slots_end(struct slots *s)
{
    struct slab *region;
    while ((region = s->regions) != NULL) {
        s->regions = region->next_region;
        ASAN_UNPOISON_MEMORY_REGION(region, REGION_BYTES);
        munmap(region, REGION_BYTES);
    }
    *s = (struct slots){0};
}
