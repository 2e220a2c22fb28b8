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

/* Seconds that reading `bytes` of the largest file of a folder takes, O_DIRECT, 1 MiB requests, 64 at a time
 * (whole requests; the file's beginning again where it is shorter). 0: no such file, or no memory, ring or
 * O_DIRECT. */
double ceiling_disk_read_s(const char *dir, uint64_t bytes);
/* Bytes of that file; 0: none, or no O_DIRECT. */
uint64_t ceiling_disk_file_bytes(const char *dir);

/* Removes a folder and what is in it. */
void bench_remove_tree(const char *path);

#endif
