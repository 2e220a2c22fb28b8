/*
 * Memory of large tables that are looked into at random. Pages of fresh memory that are read before they are
 * written are mapped twice, and the second time all processors are interrupted, so they are made at once, and
 * huge where the kernel can. Only hints: the memory is the same without.
 */
#ifndef ISOTHERM_CACHESTORE_TABLE_H
#define ISOTHERM_CACHESTORE_TABLE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The memory is about to be written nearly everywhere. */
static inline void table_populate(void *table, size_t bytes)
{
    enum { PAGE = 4096, WORTH_IT = 64 * PAGE };
    uintptr_t first = ((uintptr_t)table + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    uintptr_t end = ((uintptr_t)table + bytes) & ~(uintptr_t)(PAGE - 1);
    if (bytes < WORTH_IT)
        return;
    (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
}

/* Zeroed; free() ends it. NULL: no memory. */
static inline void *table_new(size_t n, size_t entry_bytes)
{
    void *table = calloc(n, entry_bytes);
    if (table != NULL)
        table_populate(table, n * entry_bytes);
    return table;
}

#endif
