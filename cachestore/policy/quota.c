/* Quotas of tenants (see quota.h). */
#include "cachestore/policy/quota.h"

uint64_t quota_limit(uint64_t own, uint64_t of_all)
{
    if (own > 0)
        return own;
    return of_all > 0 ? of_all : QUOTA_NONE;
}

uint64_t quota_excess(uint64_t used, uint64_t more, uint64_t limit)
{
    if (limit == QUOTA_NONE)
        return 0;
    uint64_t all = more > UINT64_MAX - used ? UINT64_MAX : used + more;
    return all > limit ? all - limit : 0;
}

bool quota_never_fits(uint64_t bytes, uint64_t limit)
{
    return bytes > limit;
}

uint64_t quota_share(const uint64_t *limit, const uint64_t *budget, int n, uint64_t of)
{
    double may = 0, all = 0;
    for (int i = 0; i < n; i++) {
        may += (double)(limit[i] < budget[i] ? limit[i] : budget[i]);
        all += (double)budget[i];
    }
    return may < all ? (uint64_t)(may / all * (double)of) : QUOTA_NONE;
}
