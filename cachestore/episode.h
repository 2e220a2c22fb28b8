/*
 * Things that come in swarms, said in two lines: when the first comes, and, with how many there were, when
 * none has come for a minute. Pure functions over a value; the caller has the clock, and says the lines.
 */
#ifndef ISOTHERM_CACHESTORE_EPISODE_H
#define ISOTHERM_CACHESTORE_EPISODE_H

#include <stdbool.h>
#include <stdint.h>

#define EPISODE_QUIET_MS 60000u

/* All 0: none. */
struct episode {
    uint64_t n, last_ms; /* how many so far, and when the last one was */
};

/* True: it begins with this one. */
bool episode_note(struct episode *e, uint64_t now_ms);
/* When it will have ended, if none comes; UINT64_MAX: there is none. */
uint64_t episode_due_ms(const struct episode *e);
/* How many there were, where it has ended now: it is over then. 0: it has not. now_ms UINT64_MAX: it has. */
uint64_t episode_end(struct episode *e, uint64_t now_ms);

#endif
