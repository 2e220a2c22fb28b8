/* How long a restore is waited for (see deadline.h). */
#include "cachestore/policy/deadline.h"

#define FACTOR    3.0
#define NS_PER_US 1e3
#define NS_PER_MS 1000000ull
#define MOST_NS   (1ull << 62) /* a prediction may be anything; more than a hundred years from now */

uint64_t deadline_ns(uint64_t queued_ns, double predicted_us, uint32_t floor_ms)
{
    if (floor_ms == 0)
        return 0;
    uint64_t floor_ns = floor_ms * NS_PER_MS;
    double ns = FACTOR * NS_PER_US * predicted_us;
    if (!(ns > (double)floor_ns))
        return queued_ns + floor_ns;
    return queued_ns + (ns < (double)MOST_NS ? (uint64_t)ns : MOST_NS);
}

bool deadline_is_past(uint64_t deadline_ns, uint64_t now_ns)
{
    return deadline_ns != 0 && now_ns >= deadline_ns;
}

enum deadline_state deadline_resume(uint32_t wanted, bool landed, uint32_t held, uint32_t there)
{
    if (wanted > 0 && landed && wanted <= there)
        return DEADLINE_WANTED;
    return held > 0 && held <= there ? DEADLINE_HELD : DEADLINE_ANY_THERE;
}
