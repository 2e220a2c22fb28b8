/* Order of eviction (see evict.h). */
#include "cachestore/policy/evict.h"

bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b)
{
    if (a->last_used != b->last_used)
        return a->last_used < b->last_used;
    return a->first_position > b->first_position;
}
