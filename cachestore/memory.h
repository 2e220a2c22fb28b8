/* What this process may use of the machine's memory (cs_memory_available of cachestore.h). Any thread. */
#ifndef ISOTHERM_CACHESTORE_MEMORY_H
#define ISOTHERM_CACHESTORE_MEMORY_H

#include "cachestore/cachestore.h"

/* The same by control groups mounted elsewhere; own: this process's group below the root, "" for the root. */
struct cs_memory memory_in(const char *cgroup_root, const char *own);
/* Bytes that a host tier may have of those asked for. */
uint64_t memory_host_most(uint64_t asked);

#endif
