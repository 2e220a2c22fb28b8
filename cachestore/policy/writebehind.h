/*
 * Write-behind: when what was published may go to disk, and what is done about the one that is next. Pure
 * functions over facts they are given.
 *
 * Pages go as soon as the writer is idle; a checkpoint after a grace, so that one that is thinned at once
 * costs no write. A parent goes before its children, for a child without its parent is useless after a
 * restart. What is being written is pinned, so it is bounded. What finds no room waits for what will give
 * some, and is dropped where nothing will; what its own tenant alone has no room for holds up nobody else's.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_WRITEBEHIND_H
#define ISOTHERM_CACHESTORE_POLICY_WRITEBEHIND_H

#include <stdbool.h>
#include <stdint.h>

/* When it may be written; 0: at once. */
uint64_t writebehind_due_ns(bool checkpoint, uint64_t grace_ns, uint64_t now_ns);

enum writebehind_order {
    WRITEBEHIND_THIS,
    WRITEBEHIND_PARENT_FIRST,
    WRITEBEHIND_NOT_NOW, /* it comes back when its parent is on disk, or with its path's next publish */
};
/* parent_goes: it has none, or that is on disk or on its way there. path_whole: all above it that is not can
 * be written. */
enum writebehind_order writebehind_order_of(bool parent_goes, bool parent_refused, bool path_whole);

/* `more` bytes may be pinned beside those that are: one alone always may. */
bool writebehind_may_pin(uint64_t pinned, uint64_t more, uint64_t most);

enum writebehind_without_room {
    WRITEBEHIND_STOP,      /* all wait: what is being written can be evicted once it is durable */
    WRITEBEHIND_PASS_OVER, /* its tenant's wait */
    WRITEBEHIND_DROP,
};
/* own: its tenant's quota has none, else the disk. writing, own_writing: something is being written, of its
 * tenant. trimming: limits were lowered, and what is over them is about to go. */
enum writebehind_without_room writebehind_without_room(bool own, bool writing, bool own_writing,
                                                       bool trimming);

#endif
