/* An I/O engine of the disk tier that says when things happened: the one asked for, looked at from outside.
 * One at a time. */
#ifndef ISOTHERM_BENCH_ENGINE_CLOCK_H
#define ISOTHERM_BENCH_ENGINE_CLOCK_H

#include "cachestore/io/io.h"

/* In seconds of wall_s(), since engine_clock_reset; 0: none. */
struct engine_times {
    double first_write_begun, last_write_ended, last_sync_begun, last_sync_ended;
};

/* For tier_disk_open_with. */
int engine_clock_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len);
/* Both while nothing is under way. */
void engine_clock_reset(void);
struct engine_times engine_clock_times(void);

#endif
