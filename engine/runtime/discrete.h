/*
 * The discrete CPU backend: a device of host memory that is treated as if it could not be reached. What the
 * store gets are names from a reservation without access rights, the memory lies elsewhere, and bytes come
 * and go only by copies on threads of its own. It proves that nothing but the kernels touches device memory,
 * and how little a real device has to bring.
 *
 * Kernels get the memory behind the names: discrete_begin before a step, discrete_list for each table of it.
 *
 * Threads: open, close, begin and list on the engine's; the device by the rules of cachestore/device.h.
 */
#ifndef ISOTHERM_ENGINE_RUNTIME_DISCRETE_H
#define ISOTHERM_ENGINE_RUNTIME_DISCRETE_H

#include "cachestore/cachestore.h"

enum { DISCRETE_THREADS = 2 }; /* one alone is slower than the memory while it takes sums */

struct discrete;

/* ENG_OK, ENG_ENOMEM. */
int discrete_open(struct discrete **out);
/* Behind cs_close. NULL: nothing. */
void discrete_close(struct discrete *d);
const struct cs_device *discrete_device(const struct discrete *d);

/* What was listed before is void. n: entries of all lists to come, at most. ENG_OK, ENG_ENOMEM. */
int discrete_begin(struct discrete *d, size_t n);
/* Pointers to the memory behind n names (NULL stays NULL), valid until the next begin. */
void **discrete_list(struct discrete *d, void *const *names, size_t n);

#endif
