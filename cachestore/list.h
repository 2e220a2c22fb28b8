/* Lists that grow by doubling: pointer, number of entries and room lie with their owner. */
#ifndef ISOTHERM_CACHESTORE_LIST_H
#define ISOTHERM_CACHESTORE_LIST_H

#include <stdbool.h>
#include <stdlib.h>

/* Room for one entry more than n. false: no memory, nothing changed. */
static inline bool list_reserve(void **list, size_t *room, size_t n, size_t entry_bytes)
{
    if (n < *room)
        return true;
    size_t larger_room = *room == 0 ? 64 : 2 * *room;
    void *larger = realloc(*list, larger_room * entry_bytes);
    if (larger == NULL)
        return false;
    *list = larger;
    *room = larger_room;
    return true;
}

#endif
