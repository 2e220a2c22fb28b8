/* The simulated engine, as the checker sees it: whose bytes go where. */
#ifndef ISOTHERM_TESTS_SIM_ENGINE_H
#define ISOTHERM_TESTS_SIM_ENGINE_H

#include "tests/sim/sim.h"

enum { ENGINE_VOLUMES = 16 };

/* What is written to this sector of a volume from now on is this. */
void engine_own(uint32_t volume, uint64_t sector, struct sector_origin origin);
/* What the last read into this page-aligned memory brought. False: not known. */
bool engine_read_origin(const void *memory, struct sector_origin *out);
/* fdatasync of the threads of pread.c. */
int engine_call_sync(int fd);

#endif
