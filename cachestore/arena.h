/*
 * An arena: one mapping of equal pages, taken once. One holds all KV memory of the device; where that is not
 * host memory (cachestore/device.h), another one holds the blocks of the host tier.
 *
 * A page is free (on the free stack), live (refs > 0: a sequence or a load in flight uses it) or cached
 * (holders > 0: spans or checkpoints keep it and nobody uses it); the three counts always sum to n_pages. The
 * arena knows no spans: a page of a span has that one holder, an opaque pointer, and callers are told when
 * the page starts or ends being used; blocks of checkpoints may have any number of holders, who are only
 * counted.
 *
 * Threads: everything is called with the store's lock held, but arena_populate and the pointers of
 * arena_address, which need none.
 */
#ifndef ISOTHERM_CACHESTORE_ARENA_H
#define ISOTHERM_CACHESTORE_ARENA_H

#include "cachestore/device.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ARENA_NO_PAGE UINT32_MAX

struct arena_page {
    void *owner; /* the span that holds it; NULL for blocks of checkpoints */
    uint32_t refs, holders;
    uint32_t payer; /* a number of the caller's, until it is free */
    bool loading;   /* a read into it is in flight */
};

struct arena {
    const struct cs_device *device; /* NULL: none is concerned */
    bool on_device;                 /* its memory is the device's: addresses are only names */
    uint8_t *base;
    uint64_t stride, mapped_bytes;
    uint32_t n_pages, n_free, n_live, n_cached;
    uint32_t n_blocks; /* held by checkpoints */
    uint64_t n_holds;  /* sum of holders */
    /* Told of pages taken for a payer (n_pages > 0) and of those that are free again; NULL: nobody is. */
    void (*ledger)(void *ctx, uint32_t payer, int n_pages);
    void *ledger_ctx;
    uint32_t *free_stack;
    struct arena_page *pages;
    _Atomic uint64_t used_high_bytes; /* the highest end of a page ever taken */
    _Atomic uint64_t populated_bytes; /* written by the one thread that calls arena_populate */
};

/* device: NULL, or where memory comes from (on_device), or what copies from and to this host memory and may
 * pin it. CS_OK, CS_EINVAL (no page fits, or more than 2^32 - 2 of them) or CS_ENOMEM. */
int arena_open(struct arena *a, uint64_t arena_bytes, uint64_t stride, const struct cs_device *device,
               bool on_device);
void arena_close(struct arena *a);

static inline void *arena_address(const struct arena *a, uint32_t page)
{
    return a->base + (uint64_t)page * a->stride;
}

/* A free page with one reference and no holder; ARENA_NO_PAGE when none is free. */
uint32_t arena_take(struct arena *a, uint32_t payer);
/* True: the page was unused until now. */
bool arena_ref(struct arena *a, uint32_t page);
/* True: the page is unused from now on (cached while it is held, free otherwise). */
bool arena_unref(struct arena *a, uint32_t page);
/* One more holder of a page that is in use or held, or one less. owner NULL: a block of a checkpoint. A page
 * without holders and users is free. */
void arena_hold(struct arena *a, uint32_t page, void *owner);
void arena_release(struct arena *a, uint32_t page);

/* True while memory a little ahead of the highest page in use is not backed yet. */
bool arena_wants_populate(const struct arena *a);
/* All of it is. */
bool arena_is_populated(const struct arena *a);
/* Backs the next piece of it, without touching contents. One thread at a time, no lock needed. */
void arena_populate(struct arena *a);

#endif
