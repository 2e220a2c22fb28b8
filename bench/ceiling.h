/* What this machine can do at best, measured: the numbers that a bench prints beside its own. */
#ifndef ISOTHERM_BENCH_CEILING_H
#define ISOTHERM_BENCH_CEILING_H

#include "kernels/kernels.h"

/* Bytes a second that the backend's threads read from a buffer of `bytes` (huge pages where allowed). 0: no
 * memory. */
double ceiling_read_bytes_per_s(struct kn_backend *b, size_t bytes);
/* Operations a second (a multiply and an add are two) of all threads from registers, with the instructions of
 * the backend's path: float FMA, and int16 products summed to int32. */
double ceiling_fma_per_s(struct kn_backend *b);
double ceiling_int16_per_s(struct kn_backend *b);

double bench_now_s(void);

#endif
