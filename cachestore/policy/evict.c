/* Who leaves a tier (see evict.h). */
#include "cachestore/policy/evict.h"

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

bool evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b)
{
    if (a->last_used != b->last_used)
        return a->last_used < b->last_used;
    return a->first_position > b->first_position;
}
