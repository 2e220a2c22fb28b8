/*
 * Load or compute: the position to resume a prompt at, so that the time to its first token is least. Resuming
 * at position d costs
 *
 *     (0 where nothing has to be read, else wait + bytes(d) * time a byte) + T(n) - T(d)
 *
 * with T(p) = linear * p + quadratic * p * p, what computing the first p tokens takes. T(n) is the same for
 * all. Pure functions over facts they are given; equal costs go to the deeper position.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_CUT_H
#define ISOTHERM_CACHESTORE_POLICY_CUT_H

#include <stdbool.h>
#include <stdint.h>

struct cut_costs {
    double wait_us; /* before the first byte: latency, and what is in the queue already */
    double us_a_byte;
    double linear_us, quadratic_us; /* a token, a token squared */
};

struct cut {
    struct cut_costs costs;
    uint32_t position; /* the best so far */
    double us;         /* its cost without T(n) */
};

/* Position 0, where nothing is read. */
void cut_begin(struct cut *c, const struct cut_costs *costs);
/* True: this position is the best so far. bytes: all that has to be read to resume there. */
bool cut_offer(struct cut *c, uint32_t position, uint64_t bytes);

#endif
