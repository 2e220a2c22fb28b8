/* Who leaves a tier (see evict.h). */
#include "cachestore/policy/evict.h"

#define CONTINUES_US 90000000u

enum evict_turn evict_turn_of(const struct evict_standing *s)
{
    if (s->held || (s->rested_on && s->parents_stay))
        return EVICT_NEVER;
    if (s->gives_none)
        return EVICT_WAITING_LAST;
    if (s->useless && (s->safe || !s->part_of_useful))
        return EVICT_NOTHING;
    if (s->safe)
        return s->rested_on ? EVICT_SAFE_LAST : EVICT_SAFE;
    if (s->waits)
        return s->rested_on ? EVICT_WAITING_LAST : EVICT_WAITING;
    return s->rested_on ? EVICT_UNSAFE_LAST : EVICT_UNSAFE;
}

bool evict_by_worth(enum evict_turn turn)
{
    return turn == EVICT_SAFE || turn == EVICT_UNSAFE || turn == EVICT_WAITING;
}

uint64_t evict_used_us(const struct evict_facts *facts)
{
    return facts->last_used + (facts->continues ? CONTINUES_US : 0);
}

bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b)
{
    uint64_t used_a = evict_used_us(a), used_b = evict_used_us(b);
    if (used_a != used_b)
        return used_a < used_b;
    return a->first_position > b->first_position;
}
