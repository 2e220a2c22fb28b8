/*
 * What may be written to disk: paths long enough to be worth a record, and not more bytes a day than the
 * device shall endure. Pure functions over a value.
 *
 * The day's bytes trickle in evenly, from nothing, and at most an hour's are saved up, so that neither a
 * restart nor a quiet night allows a burst. What is admitted may be larger than what is left: the rest is
 * owed until the process ends.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_ADMISSION_H
#define ISOTHERM_CACHESTORE_POLICY_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

struct admission {
    uint32_t min_tokens;
    uint64_t bytes_a_day; /* 0: any number */
    double left;          /* may be negative */
    uint64_t at_ns;       /* of `left` */
};

void admission_init(struct admission *a, uint32_t min_tokens, uint64_t bytes_a_day, uint64_t now_ns);
/* A path of n_tokens is long enough. */
bool admission_long_enough(const struct admission *a, uint64_t n_tokens);
/* True: the bytes may be written, and are taken off. */
bool admission_take(struct admission *a, uint64_t bytes, uint64_t now_ns);

#endif
