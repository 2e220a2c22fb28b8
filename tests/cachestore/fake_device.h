/*
 * A device whose memory nobody reaches by its addresses: they are a reservation without access rights, so
 * that whoever follows one ends there, and the memory lies elsewhere. Copies are completed by hand, in any
 * order, late, or failing; or by a thread of its own. One at a time.
 */
#ifndef ISOTHERM_TESTS_CACHESTORE_FAKE_DEVICE_H
#define ISOTHERM_TESTS_CACHESTORE_FAKE_DEVICE_H

#include "cachestore/device.h"

/* Opens it; threaded: copies complete by themselves. */
const struct cs_device *fake_device_open(bool threaded);
void fake_device_close(void);
/* What an address stands for; one that is not the device's stands for itself. */
void *fake_device_memory(const void *address);

/* By hand, in the order of submission: the i-th batch that is queued. Not ok: it fails half-way. */
size_t fake_device_n_queued(void);
void fake_device_finish(size_t i, bool ok);
/* All, and what they cause. */
void fake_device_finish_all(void);
/* Calls of submit so far. */
size_t fake_device_n_submits(void);

#endif
