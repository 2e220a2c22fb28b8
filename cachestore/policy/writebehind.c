/* Write-behind (see writebehind.h). */
#include "cachestore/policy/writebehind.h"

uint64_t writebehind_due_ns(bool checkpoint, uint64_t grace_ns, uint64_t now_ns)
{
    return checkpoint && grace_ns > 0 ? now_ns + grace_ns : 0;
}

enum writebehind_order writebehind_order_of(bool parent_goes, bool parent_refused, bool path_whole)
{
    if (parent_goes)
        return WRITEBEHIND_THIS;
    return parent_refused || !path_whole ? WRITEBEHIND_NOT_NOW : WRITEBEHIND_PARENT_FIRST;
}

bool writebehind_may_pin(uint64_t pinned, uint64_t more, uint64_t most)
{
    return pinned == 0 || (pinned <= most && more <= most - pinned);
}

enum writebehind_without_room writebehind_without_room(bool own, bool writing, bool own_writing,
                                                       bool trimming)
{
    if (own)
        return own_writing || trimming ? WRITEBEHIND_PASS_OVER : WRITEBEHIND_DROP;
    return writing ? WRITEBEHIND_STOP : WRITEBEHIND_DROP;
}
