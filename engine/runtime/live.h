/* Regions for the recurrent state of running sequences. Internal to the runtime; engine thread only. */
#ifndef ISOTHERM_ENGINE_RUNTIME_LIVE_H
#define ISOTHERM_ENGINE_RUNTIME_LIVE_H

#include <stdint.h>

struct live_pool {
    char *base; /* NULL: the model has no state */
    uint64_t region_bytes, mapped_bytes;
    uint32_t *free;
    uint32_t n, n_free;
};

/* n regions of region_bytes (a multiple of 64; 0: nothing is taken). ENG_ENOMEM. */
int live_pool_open(struct live_pool *p, uint64_t region_bytes, uint32_t n);
void live_pool_close(struct live_pool *p);
/* NULL without state, and when all n are taken. */
void *live_pool_take(struct live_pool *p);
void live_pool_give(struct live_pool *p, void *region); /* NULL: nothing */

#endif
