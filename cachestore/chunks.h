/*
 * Which chunks of one volume are in use, and which have room behind them in the file system: two bitmaps and
 * first-fit search. Pure bookkeeping: no files, no threads; volumes.c owns one a volume.
 *
 * A chunk is free when it is not used and backed; a hole (not backed) can be used only after its room was
 * allocated.
 */
#ifndef ISOTHERM_CACHESTORE_CHUNKS_H
#define ISOTHERM_CACHESTORE_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

struct chunks {
    uint64_t *used, *backed;
    uint32_t n;       /* chunks in the volume */
    uint32_t n_words; /* allocated words of each bitmap */
    uint32_t n_used, n_backed;
    uint32_t low; /* no free chunk is below */
};

void chunks_free(struct chunks *c);
/* Grows to n chunks; new ones are unused and not backed. 0 or -1 (out of memory). */
int chunks_resize(struct chunks *c, uint32_t n);
/* Marks [first, first + n) used (and backed). false, with nothing changed: out of range, or one is used
 * already. */
bool chunks_claim(struct chunks *c, uint32_t first, uint32_t n);
/* The opposite of claim; the chunks must be used. */
void chunks_release(struct chunks *c, uint32_t first, uint32_t n);
void chunks_set_backed(struct chunks *c, uint32_t first, uint32_t n, bool backed);
/* First run of at least `want` free chunks; else the first free run, shorter than that. Returns its length,
 * at most want; 0: none is free. */
uint32_t chunks_find_free(const struct chunks *c, uint32_t want, uint32_t *first);
/* First run of holes at or behind `from`, at most `want` long; 0: none. */
uint32_t chunks_find_hole(const struct chunks *c, uint32_t from, uint32_t want, uint32_t *first);
/* Last run of free chunks, at most `want` long; 0: none. */
uint32_t chunks_find_last_free(const struct chunks *c, uint32_t want, uint32_t *first);
bool chunks_is_used(const struct chunks *c, uint32_t chunk);
bool chunks_is_free(const struct chunks *c, uint32_t chunk);
/* Chunks up to and including the last used or backed one. */
uint32_t chunks_end(const struct chunks *c);

#endif
