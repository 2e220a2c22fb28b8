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

/* Seconds that reading `bytes` of the largest file of a folder takes, O_DIRECT, 1 MiB requests, `depth` of
 * them at a time (64 at most) through io_uring (whole requests; the file's beginning again where it is
 * shorter), into memory (4096-aligned, 1 MiB at least, used in turns; NULL: `depth` MiB of its own). 0: no
 * such file, or no memory, ring or O_DIRECT. */
double ceiling_disk_read_s(const char *dir, uint64_t bytes, unsigned depth, void *memory,
                           uint64_t memory_bytes);
/* The same for writing the file `path`, which is made if it is not there; its room is allocated before the
 * clock starts. n_syncs fdatasyncs are spread among the writes, which go on meanwhile; the last comes behind
 * them. */
double ceiling_disk_write_s(const char *path, uint64_t bytes, unsigned depth, const void *memory,
                            uint64_t memory_bytes, unsigned n_syncs);
/* Bytes of that file; 0: none, or no O_DIRECT. */
uint64_t ceiling_disk_file_bytes(const char *dir);

/* Removes a folder and what is in it. */
void bench_remove_tree(const char *path);

#endif
