/* Worth of what is on the device (see worth.h). */
#include "cachestore/policy/worth.h"

#include <math.h>

#define AGE_FLOOR_SECONDS  10.0
#define MICROS_PER_SECOND  1e6
#define CLASS_OF_ONE_TOKEN 25 /* a token a block; 2^-12 to 2^18.5 have classes of their own */
#define HALF_AN_OCTAVE     1.4142135623730951

double worth_value(const struct worth_facts *facts)
{
    static const double weight[] = {[WORTH_LEAF] = 1.0, [WORTH_SHARED] = 0.2, [WORTH_INTERIOR] = 0.03};
    if (facts->tokens_saved == 0 || facts->blocks_freed == 0)
        return 0;
    return weight[facts->role] * (double)facts->tokens_saved / (double)facts->blocks_freed;
}

unsigned worth_class(double value)
{
    if (!(value > 0))
        return WORTH_CLASS_NOTHING;
    int octave = ilogb(value),
        class = 2 * octave + (value >= scalbn(HALF_AN_OCTAVE, octave)) + CLASS_OF_ONE_TOKEN;
    if (class < WORTH_CLASS_NOTHING + 1)
        class = WORTH_CLASS_NOTHING + 1;
    if (class > WORTH_CLASS_LAST - 1)
        class = WORTH_CLASS_LAST - 1;
    return (unsigned)class;
}

double worth_now(double value, uint64_t age_us)
{
    return value / ((double)age_us / MICROS_PER_SECOND + AGE_FLOOR_SECONDS);
}
