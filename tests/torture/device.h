/*
 * A device whose memory is out of reach, for the process under torture: its addresses are a reservation
 * without access rights, the memory lies elsewhere, and two threads copy, so that batches overtake one
 * another.
 *
 * Threads: open and close on one; device_memory on any while the store is open.
 */
#ifndef ISOTHERM_TESTS_TORTURE_DEVICE_H
#define ISOTHERM_TESTS_TORTURE_DEVICE_H

#include "cachestore/device.h"

/* There is one in a process. */
const struct cs_device *device_open(void);
/* Behind cs_close; without open: nothing. */
void device_close(void);
/* What an address stands for; one that is not the device's stands for itself. */
void *device_memory(void *address);

#endif
