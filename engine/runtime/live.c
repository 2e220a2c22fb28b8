/*
 * Regions for the recurrent state of running sequences: one contiguous piece each, as many as may run, so
 * that taking one cannot fail. Mapped once and backed by the kernel as they are used; a region that was given
 * back is taken again first, so a quiet server touches few.
 */
#include "engine/runtime/live.h"
#include "engine/tokenizer/errors.h"
#include <stdlib.h>
#include <sys/mman.h>

int live_pool_open(struct live_pool *p, uint64_t region_bytes, uint32_t n)
{
    *p = (struct live_pool){.region_bytes = region_bytes};
    if (region_bytes == 0 || n == 0)
        return ENG_OK;
    if (region_bytes > SIZE_MAX / n)
        return ENG_ENOMEM;
    p->free = calloc(n, sizeof *p->free);
    if (!p->free)
        return ENG_ENOMEM;
    p->mapped_bytes = region_bytes * n;
    void *base = mmap(NULL, p->mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(p->free);
        *p = (struct live_pool){0};
        return ENG_ENOMEM;
    }
    p->base = base;
    (void)madvise(base, p->mapped_bytes, MADV_HUGEPAGE);
    p->n = p->n_free = n;
    for (uint32_t i = 0; i < n; i++)
        p->free[i] = n - 1 - i;
    return ENG_OK;
}

void live_pool_close(struct live_pool *p)
{
    if (p->base)
        munmap(p->base, p->mapped_bytes);
    free(p->free);
    *p = (struct live_pool){0};
}

void *live_pool_take(struct live_pool *p)
{
    return p->n_free > 0 ? p->base + p->region_bytes * p->free[--p->n_free] : NULL;
}

void live_pool_give(struct live_pool *p, void *region)
{
    if (region)
        p->free[p->n_free++] = (uint32_t)((uint64_t)((char *)region - p->base) / p->region_bytes);
}
