/*
 * Quotas of tenants: pure functions. A limit of a tier is the tenant's own, where it has one, else that of
 * all who have none; UINT64_MAX stands for none.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_QUOTA_H
#define ISOTHERM_CACHESTORE_POLICY_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#define QUOTA_NONE UINT64_MAX

/* Of 0 for "not set": the limit in force. */
uint64_t quota_limit(uint64_t own, uint64_t of_all);
/* Bytes that have to go before `more` can come; 0: it can. */
uint64_t quota_excess(uint64_t used, uint64_t more, uint64_t limit);
/* `bytes` alone are more than the limit: nothing that goes makes room for them. */
bool quota_never_fits(uint64_t bytes, uint64_t limit);
/* Of `of` bytes the share that the limits of n tiers have of the tiers' budgets, all together; QUOTA_NONE:
 * there is no limit below a budget. */
uint64_t quota_share(const uint64_t *limit, const uint64_t *budget, int n, uint64_t of);

#endif
