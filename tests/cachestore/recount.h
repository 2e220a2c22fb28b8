/* What the store says of itself, counted again from the spans up. */
#ifndef ISOTHERM_TESTS_CACHESTORE_RECOUNT_H
#define ISOTHERM_TESTS_CACHESTORE_RECOUNT_H

#include "tests/cachestore/harness.h"

#include "cachestore/store.h"

void recount(struct cs_store *s);
/* The most checkpoints on any path, or 0. */
uint32_t longest_chain(struct cs_store *s);

#endif
