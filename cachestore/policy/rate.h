/*
 * Time as a straight line over bytes, learned from what was measured: a latency and a time a byte. Older
 * measurements fade, so it follows a disk that becomes slow or fast. A value; functions are pure.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_RATE_H
#define ISOTHERM_CACHESTORE_POLICY_RATE_H

#include <stdbool.h>

/* Faded, weighted sums over the measurements; all 0: none yet. */
struct rate {
    double n, x, y, xx, xy;
};

/* Moving `bytes` took so long. Neither may be negative; 0 bytes teach nothing. */
void rate_learn(struct rate *r, double bytes, double us);
/* The line: neither part is negative. False: nothing was learned. */
bool rate_line(const struct rate *r, double *latency_us, double *us_a_byte);
/* 0: nothing was learned. */
double rate_predict_us(const struct rate *r, double bytes);

#endif
