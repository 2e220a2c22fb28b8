/* Worth of what a tier keeps (see worth.h). */
#include "cachestore/policy/worth.h"

#include <math.h>

#define AGE_FLOOR_SECONDS   10.0
#define MICROS_PER_SECOND   1e6
#define ROUNDING            0x1p-50 /* of a product of two, and more */
#define LONGEST_US          0x1p62
#define TOKENS_OF_QUADRATIC 1e3 /* at this depth a token counts as one where only c is known */

struct worth_costs worth_costs_of(double linear, double quadratic)
{
    if (linear > 0)
        return (struct worth_costs){1, quadratic / linear};
    return quadratic > 0 ? (struct worth_costs){0, 1 / TOKENS_OF_QUADRATIC} : (struct worth_costs){1, 0};
}

double worth_value(const struct worth_costs *costs, const struct worth_facts *facts)
{
    static const double weight[] = {
        [WORTH_LEAF] = 1.0, [WORTH_SHARED] = 0.2, [WORTH_INTERIOR] = 0.03, [WORTH_PAGES] = 1.0};
    double from = facts->from, to = facts->to;
    if (!(to > from) || !(facts->blocks_freed > 0))
        return 0;
    double time = to - from;
    if (facts->role != WORTH_PAGES)
        time *= costs->linear + costs->quadratic * (to + from);
    return weight[facts->role] * time / facts->blocks_freed;
}

static double floored(int64_t age_us)
{
    return (double)age_us + AGE_FLOOR_SECONDS * MICROS_PER_SECOND;
}

int worth_compare(float a, int64_t age_a_us, float b, int64_t age_b_us)
{
    double of_a = (double)a * floored(age_b_us), of_b = (double)b * floored(age_a_us);
    return (of_a > of_b) - (of_a < of_b);
}

uint64_t worth_stays_us(float a, int64_t age_a_us, float b, int64_t age_b_us)
{
    if (!(a > b))
        return UINT64_MAX;
    double of_a = (double)a * floored(age_b_us), of_b = (double)b * floored(age_a_us),
           left_us = (of_b - of_a - (fabs(of_a) + fabs(of_b)) * ROUNDING) / ((double)a - (double)b);
    if (left_us >= LONGEST_US)
        return UINT64_MAX;
    return left_us > 1 ? (uint64_t)left_us : 1;
}
