/* What the store says of itself, counted again from the spans up. */
#ifndef ISOTHERM_TESTS_CACHESTORE_RECOUNT_H
#define ISOTHERM_TESTS_CACHESTORE_RECOUNT_H

#include "tests/cachestore/harness.h"

#include "cachestore/store.h"

void recount(struct cs_store *s);
/* Each restore from disk ended once or waits; each of those in time was compared with what was predicted. */
void recount_restores(const struct cs_store *s);
/* As if nobody had used anything for an hour. */
void grow_old(struct cs_store *s);
/* Sets the tenant's quota and waits until what is over it has gone. */
void set_quota(struct cs_store *s, const struct cs_tenant *tenant, struct cs_quota quota);
/* The most checkpoints on any path, or 0. */
uint32_t longest_chain(struct cs_store *s);

#endif
