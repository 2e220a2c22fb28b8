/* Worth of what a tier keeps (see worth.h). */
#include "cachestore/policy/worth.h"

#include <math.h>

#define AGE_FLOOR_SECONDS   10.0
#define MICROS_PER_SECOND   1e6
#define CLASS_OF_ONE        55 /* a token a block; 2^-9 to 2^11.8 have classes of their own */
#define CLASSES_AN_OCTAVE   6
#define TOKENS_OF_QUADRATIC 1e3 /* at this depth a token counts as one where only c is known */

struct worth_costs worth_costs_of(double linear, double quadratic)
{
    if (linear > 0)
        return (struct worth_costs){1, quadratic / linear};
    return quadratic > 0 ? (struct worth_costs){0, 1 / TOKENS_OF_QUADRATIC} : (struct worth_costs){1, 0};
}

double worth_value(const struct worth_costs *costs, const struct worth_facts *facts)
{
    static const double weight[] = {[WORTH_LEAF] = 1.0, [WORTH_SHARED] = 0.2, [WORTH_INTERIOR] = 0.03};
    double from = facts->from, to = facts->to;
    if (!(to > from) || !(facts->blocks_freed > 0))
        return 0;
    return weight[facts->role] * (to - from) * (costs->linear + costs->quadratic * (to + from)) /
           facts->blocks_freed;
}

unsigned worth_class(double value)
{
    if (!(value > 0))
        return WORTH_CLASS_NOTHING;
    double class = floor(CLASSES_AN_OCTAVE * log2(value)) + CLASS_OF_ONE;
    if (class < WORTH_CLASS_NOTHING + 1)
        return WORTH_CLASS_NOTHING + 1;
    return class > WORTH_CLASS_LAST - 1 ? WORTH_CLASS_LAST - 1 : (unsigned)class;
}

double worth_now(double value, uint64_t age_us)
{
    return value / ((double)age_us / MICROS_PER_SECOND + AGE_FLOOR_SECONDS);
}
