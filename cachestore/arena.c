/* Arenas (see arena.h). */
#include "cachestore/arena.h"
#include "cachestore/cachestore.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Backing runs this far ahead of use, a huge page a call: the kernel holds the address space's lock for a
 * whole call, and every thread that maps, unmaps or grows its heap waits for it (with 16 MiB a call that was
 * up to half a second on a busy machine). */
#define POPULATE_AHEAD_BYTES (128ull << 20)
#define POPULATE_PIECE_BYTES (2ull << 20)

static void *map_memory(uint64_t bytes)
{
    void *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    return base;
}

int arena_open(struct arena *a, uint64_t arena_bytes, uint64_t stride, const struct cs_device *device,
               bool on_device)
{
    *a = (struct arena){.stride = stride, .device = device, .on_device = on_device};
    uint64_t n = stride ? arena_bytes / stride : 0;
    if (n == 0 || n >= ARENA_NO_PAGE)
        return CS_EINVAL;
    a->n_pages = (uint32_t)n;
    a->mapped_bytes = n * stride;
    a->base = on_device ? device->reserve(device->ctx, a->mapped_bytes) : map_memory(a->mapped_bytes);
    if (!a->base)
        return CS_ENOMEM;
    a->free_stack = malloc(n * sizeof *a->free_stack);
    a->pages = calloc(n, sizeof *a->pages);
    if (!a->free_stack || !a->pages) {
        arena_close(a);
        return CS_ENOMEM;
    }
    /* Low addresses on top, so that use grows upwards behind the populated edge. */
    for (uint32_t i = 0; i < a->n_pages; i++)
        a->free_stack[i] = a->n_pages - 1 - i;
    a->n_free = a->n_pages;
    return CS_OK;
}

void arena_close(struct arena *a)
{
    uint64_t populated = atomic_load_explicit(&a->populated_bytes, memory_order_relaxed);
    if (a->base && a->on_device) {
        a->device->release(a->device->ctx, a->base, a->mapped_bytes);
    } else if (a->base) {
        if (a->device && a->device->unpin && populated > 0)
            a->device->unpin(a->device->ctx, a->base, populated);
        munmap(a->base, a->mapped_bytes);
    }
    free(a->free_stack);
    free(a->pages);
    *a = (struct arena){0};
}

uint32_t arena_take(struct arena *a, uint32_t payer)
{
    if (a->n_free == 0)
        return ARENA_NO_PAGE;
    uint32_t page = a->free_stack[--a->n_free];
    a->pages[page] = (struct arena_page){.refs = 1, .payer = payer};
    a->n_live++;
    if (a->ledger)
        a->ledger(a->ledger_ctx, payer, 1);
    uint64_t end = ((uint64_t)page + 1) * a->stride;
    if (end > atomic_load_explicit(&a->used_high_bytes, memory_order_relaxed))
        atomic_store_explicit(&a->used_high_bytes, end, memory_order_relaxed);
    return page;
}

static void free_push(struct arena *a, uint32_t page)
{
    a->free_stack[a->n_free++] = page;
    if (a->ledger)
        a->ledger(a->ledger_ctx, a->pages[page].payer, -1);
}

bool arena_ref(struct arena *a, uint32_t page)
{
    struct arena_page *p = &a->pages[page];
    if (p->refs++ > 0)
        return false;
    a->n_live++;
    a->n_cached--;
    return true;
}

bool arena_unref(struct arena *a, uint32_t page)
{
    struct arena_page *p = &a->pages[page];
    if (--p->refs > 0)
        return false;
    a->n_live--;
    if (p->holders > 0)
        a->n_cached++;
    else
        free_push(a, page);
    return true;
}

void arena_hold(struct arena *a, uint32_t page, void *owner)
{
    struct arena_page *p = &a->pages[page];
    p->owner = owner;
    a->n_holds++;
    if (p->holders++ == 0 && !owner)
        a->n_blocks++;
}

void arena_release(struct arena *a, uint32_t page)
{
    struct arena_page *p = &a->pages[page];
    a->n_holds--;
    if (--p->holders > 0)
        return;
    if (!p->owner)
        a->n_blocks--;
    p->owner = NULL;
    if (p->refs == 0) {
        a->n_cached--;
        free_push(a, page);
    }
}

static uint64_t populate_target(const struct arena *a)
{
    uint64_t target = atomic_load_explicit(&a->used_high_bytes, memory_order_relaxed) + POPULATE_AHEAD_BYTES;
    return target < a->mapped_bytes ? target : a->mapped_bytes;
}

bool arena_wants_populate(const struct arena *a)
{
    return atomic_load_explicit(&a->populated_bytes, memory_order_relaxed) < populate_target(a);
}

bool arena_is_populated(const struct arena *a)
{
    return atomic_load_explicit(&a->populated_bytes, memory_order_relaxed) == a->mapped_bytes;
}

void arena_populate(struct arena *a)
{
    uint64_t populated = atomic_load_explicit(&a->populated_bytes, memory_order_relaxed);
    uint64_t left = populate_target(a) - populated;
    uint64_t piece = left < POPULATE_PIECE_BYTES ? left : POPULATE_PIECE_BYTES;
    const struct cs_device *d = a->device;
    if (!a->on_device) {
        /* A kernel without it (before 5.14) backs pages at first touch instead. */
        (void)madvise(a->base + populated, piece, MADV_POPULATE_WRITE);
        if (d && d->pin)
            d->pin(d->ctx, a->base + populated, piece);
    } else if (d->populate) {
        d->populate(d->ctx, a->base + populated, piece);
    }
    atomic_store_explicit(&a->populated_bytes, populated + piece, memory_order_relaxed);
}
