/* Who asks the store through its control socket while it serves, as cachestore-admin does. */
#ifndef ISOTHERM_TESTS_SIM_ASKER_H
#define ISOTHERM_TESTS_SIM_ASKER_H

#include "cachestore/cachestore.h"
#include "tests/torture/model.h"

/* A thread that asks a few things at drawn times, of the store that checker_store() is. path: any of the
 * seed's. */
void asker_begin(const struct geometry *g, const struct cs_config *c, uint32_t (*path)(void));
void asker_stop(void); /* it begins nothing more */
void asker_end(void);  /* waits for it */

/* All that was published before a drain is on disk, and nothing may be written until it has ended. */
extern bool asker_has_drained;

#endif
