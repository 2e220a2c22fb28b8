/* What may be written to disk (see admission.h). */
#include "cachestore/policy/admission.h"

#define DAY_NS      86400e9
#define HOURS_A_DAY 24.0

void admission_init(struct admission *a, uint32_t min_tokens, uint64_t bytes_a_day, uint64_t now_ns)
{
    *a = (struct admission){.min_tokens = min_tokens, .bytes_a_day = bytes_a_day, .at_ns = now_ns};
}

bool admission_long_enough(const struct admission *a, uint64_t n_tokens)
{
    return n_tokens >= a->min_tokens;
}

bool admission_take(struct admission *a, uint64_t bytes, uint64_t now_ns)
{
    if (a->bytes_a_day == 0)
        return true;
    double most = (double)a->bytes_a_day / HOURS_A_DAY;
    if (now_ns > a->at_ns) {
        a->left += (double)a->bytes_a_day * ((double)(now_ns - a->at_ns) / DAY_NS);
        a->at_ns = now_ns;
    }
    if (a->left > most)
        a->left = most;
    if (!(a->left > 0))
        return false;
    a->left -= (double)bytes;
    return true;
}
