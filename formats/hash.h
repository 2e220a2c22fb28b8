/* XXH3, over whole pages with the widest registers that the processor has: the library's plain functions are
 * compiled for the oldest one, and those that look first are declared in a header of their own. */
#ifndef ISOTHERM_FORMATS_HASH_H
#define ISOTHERM_FORMATS_HASH_H

#define XXH_STATIC_LINKING_ONLY /* states of the caller's own */
#ifdef ISOTHERM_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <stddef.h>
#include <stdint.h>

/* XXH3_64bits_withSeed of what lies in memory and in no cache, as what a device has just written: lines are
 * asked for a page ahead of their use, for a stream that the processor guesses at waits at every page's edge.
 * Twice as fast (docs/decisions.md). The value is the same. */
static inline uint64_t hash_far(const void *bytes, size_t n, uint64_t seed)
{
    enum { LINE_BYTES = 64, PIECE_BYTES = 1024, AHEAD_BYTES = 4096 };
    const char *at = bytes;
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    for (size_t left = n; left > 0;) {
        size_t piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        for (size_t i = AHEAD_BYTES; i < AHEAD_BYTES + piece && i < left; i += LINE_BYTES)
            __builtin_prefetch(at + i);
        XXH3_64bits_update(&state, at, piece);
        at += piece;
        left -= piece;
    }
    return XXH3_64bits_digest(&state);
}

#endif
