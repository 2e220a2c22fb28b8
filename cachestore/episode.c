/* Swarms of events (see episode.h). */
#include "cachestore/episode.h"

bool episode_note(struct episode *e, uint64_t now_ms)
{
    e->last_ms = now_ms;
    return e->n++ == 0;
}

uint64_t episode_due_ms(const struct episode *e)
{
    return e->n == 0 ? UINT64_MAX : e->last_ms + EPISODE_QUIET_MS;
}

uint64_t episode_end(struct episode *e, uint64_t now_ms)
{
    uint64_t n = e->n;
    if (n == 0 || now_ms < episode_due_ms(e))
        return 0;
    *e = (struct episode){0};
    return n;
}
