/* Load or compute (see cut.h). */
#include "cachestore/policy/cut.h"

void cut_begin(struct cut *c, const struct cut_costs *costs)
{
    *c = (struct cut){.costs = *costs};
}

bool cut_offer(struct cut *c, uint32_t position, uint64_t bytes)
{
    const struct cut_costs *k = &c->costs;
    double p = position;
    double us = bytes > 0 ? k->wait_us + (double)bytes * k->us_a_byte : 0;
    us -= k->linear_us * p + k->quadratic_us * p * p;
    if (us > c->us || (us == c->us && position < c->position))
        return false;
    c->us = us;
    c->position = position;
    return true;
}
