/* Candidates of each tier, by worth (see ranks.h). */
#include "cachestore/ranks.h"
#include "cachestore/index.h"

#include <float.h>
#include <stddef.h>

#define NEIGHBOURS_AT_ONCE 256  /* that are judged anew when a checkpoint comes or goes */
#define SPANS_TO_THEM      4096 /* passed on the ways to them */
#define WORK_A_VICTIM      512  /* nodes that time has put out of order, at most */

/* ---- places ------------------------------------------------------------------------------------------ */

void ranks_open(struct kinetic_heap of_all[RANK_TIERS])
{
    for (int t = 0; t < RANK_TIERS; t++)
        of_all[t] = kinetic_heap_of_members();
}

void ranks_open_account(struct kinetic_member heads[RANK_TIERS])
{
    for (int t = 0; t < RANK_TIERS; t++) {
        ptrdiff_t node = (ptrdiff_t)(offsetof(struct span, rank) + (size_t)t * sizeof(struct kinetic_node));
        heads[t].heap = kinetic_heap_of((int16_t)((ptrdiff_t)offsetof(struct span, age) - node));
    }
}

static struct span *span_of(struct kinetic_node *n, enum rank_tier t)
{
    return n ? (struct span *)(void *)((char *)(n - t) - offsetof(struct span, rank)) : NULL;
}

static void rank_remove(struct index *ix, enum rank_tier t, struct span *sp)
{
    if (!sp->rank[t].ranked)
        return;
    struct kinetic_member *m = &sp->account->heads[t];
    kinetic_remove(&m->heap, &sp->rank[t], ix->last_tick);
    kinetic_member_changed(&ix->ranks[t], m, ix->last_tick);
}

/* Where a candidate belongs; value counts within turns by worth. */
struct verdict {
    enum evict_turn turn;
    double value;
};

static void rank_put(struct index *ix, enum rank_tier t, struct span *sp, struct verdict v)
{
    struct kinetic_node *n = &sp->rank[t];
    struct kinetic_member *m = &sp->account->heads[t];
    float value = v.value < FLT_MAX ? (float)v.value : FLT_MAX;
    if (n->ranked && n->turn == v.turn && n->value == value)
        return;
    n->turn = (uint8_t)v.turn;
    n->value = value;
    if (n->ranked)
        kinetic_changed(&m->heap, n, ix->last_tick);
    else
        kinetic_insert(&m->heap, n, ix->last_tick);
    kinetic_member_changed(&ix->ranks[t], m, ix->last_tick);
}

void ranks_used_locked(struct index *ix, struct span *sp, uint64_t tick)
{
    sp->last_used = tick;
    for (int t = 0; t < RANK_TIERS; t++) {
        if (!sp->rank[t].ranked)
            continue;
        struct kinetic_member *m = &sp->account->heads[t];
        kinetic_changed(&m->heap, &sp->rank[t], ix->last_tick);
        kinetic_member_changed(&ix->ranks[t], m, ix->last_tick);
    }
}

/* NULL: there are none. */
static struct span *least(struct index *ix, enum rank_tier t, const struct account *of, uint32_t *work)
{
    uint64_t now = ix->last_tick;
    if (!of) {
        struct kinetic_member *m = (struct kinetic_member *)(void *)kinetic_first(&ix->ranks[t], now, work);
        return m ? span_of(m->heap.root, t) : NULL;
    }
    struct kinetic_member *m = &ix->accounts.slot[of->slot]->heads[t];
    struct kinetic_node *first = kinetic_first(&m->heap, now, work);
    kinetic_member_changed(&ix->ranks[t], m, now);
    return span_of(first, t);
}

/* ---- chains ------------------------------------------------------------------------------------------ */

/* Depths within a span: a checkpoint behind page i lies at 2 (i + 1), a child that hangs there one deeper. */
static uint32_t depth_of(const struct span *below)
{
    return 2 * (below->parent_ordinal + 1) + (below->kind == SPAN_OF_PAGES);
}

uint32_t ranks_checkpoints_up_to(const struct span *sp, uint32_t ordinal)
{
    uint32_t n = 0;
    for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        n += !c->doomed && c->parent_ordinal <= ordinal;
    return n;
}

static void chain_join(struct span *sp, uint32_t length, uint32_t depth)
{
    if (length > sp->chain)
        sp->chain = length;
    if (depth > sp->useful_depth)
        sp->useful_depth = depth;
}

/* Counts again; neither can be more than `length` and `depth`, so that a span with many children is not
 * looked through to the end. */
static void chain_count(struct span *sp, uint32_t length, uint32_t depth)
{
    sp->chain = sp->useful_depth = 0;
    for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (!c->doomed)
            chain_join(sp, ranks_checkpoints_up_to(sp, c->parent_ordinal), depth_of(c));
    const struct span *child = sp->first_child;
    for (; child && (sp->chain < length || sp->useful_depth < depth); child = child->next_sibling)
        if (child->chain > 0)
            chain_join(sp, ranks_checkpoints_up_to(sp, child->parent_ordinal) + child->chain,
                       depth_of(child));
}

void ranks_recount_locked(struct index *ix, struct span *sp)
{
    chain_count(sp, UINT32_MAX, UINT32_MAX);
    ranks_update_locked(ix, sp);
}

/* Checkpoints of the span: whether anything lies behind them may have changed. */
static void update_checkpoints(struct index *ix, struct span *sp)
{
    for (struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        ranks_update_locked(ix, c);
}

/* How far a walk may still go. */
struct walk {
    uint32_t checkpoints, spans;
};

/* The first checkpoints on all ways down from behind the first `from` pages of the span. */
static void update_next_deeper(struct index *ix, struct span *sp, uint32_t from, struct walk *left)
{
    struct span *next = NULL;
    for (struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (!c->doomed && c->parent_ordinal >= from && (!next || c->parent_ordinal < next->parent_ordinal))
            next = c;
    if (next) {
        ranks_update_locked(ix, next);
        left->checkpoints--;
    }
    uint32_t before = next ? next->parent_ordinal : sp->n_pages;
    for (struct span *child = sp->first_child; child && left->checkpoints > 0 && left->spans > 0;
         child = child->next_sibling) {
        if (child->chain == 0 || child->parent_ordinal + 1 < from || child->parent_ordinal >= before)
            continue;
        left->spans--;
        update_next_deeper(ix, child, 0, left);
    }
}

void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp, uint32_t ordinal)
{
    struct walk left = {NEIGHBOURS_AT_ONCE, SPANS_TO_THEM};
    uint32_t old = sp->chain;
    chain_count(sp, UINT32_MAX, UINT32_MAX);
    ranks_update_locked(ix, sp);
    if (!ix->loading) {
        update_checkpoints(ix, sp);
        update_next_deeper(ix, sp, ordinal + 1, &left);
    }
    for (struct span *parent = sp->parent; parent && sp->chain != old; sp = parent, parent = sp->parent) {
        uint32_t before = ranks_checkpoints_up_to(parent, sp->parent_ordinal), was = parent->chain,
                 was_depth = parent->useful_depth;
        if (sp->chain > old)
            chain_join(parent, before + sp->chain, depth_of(sp));
        else if (before + old >= was || (sp->chain == 0 && depth_of(sp) >= was_depth))
            chain_count(parent, was, was_depth);
        if (parent->useful_depth != was_depth) {
            ranks_update_locked(ix, parent);
            update_checkpoints(ix, parent);
        }
        old = was;
    }
}

static void update_within(struct index *ix, struct span *sp, uint32_t from, uint32_t to)
{
    for (struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (c->first_position >= from && c->first_position <= to)
            ranks_update_locked(ix, c);
}

/* The same of all that hangs below it. */
static void update_below(struct index *ix, struct span *sp, uint32_t from, uint32_t to, uint32_t *spans)
{
    for (struct span *child = sp->first_child; child && *spans > 0; child = child->next_sibling) {
        if (child->first_position >= to)
            continue;
        --*spans;
        update_within(ix, child, from, to);
        update_below(ix, child, from, to, spans);
    }
}

void ranks_blocks_left_locked(struct index *ix, const struct span *checkpoint)
{
    /* Whoever shares a block with it is no further away than that it has blocks. */
    uint32_t spans = NEIGHBOURS_AT_ONCE, at = checkpoint->first_position,
             reach = checkpoint->n_pages * ix->page_tokens, from = at > reach ? at - reach : 0;
    struct span *sp = checkpoint->parent;
    update_within(ix, sp, from, at + reach);
    while (sp->parent && sp->first_position > from) {
        sp = sp->parent;
        update_within(ix, sp, from, at + reach);
    }
    update_below(ix, sp, from, at + reach, &spans);
}

uint32_t ranks_chain_behind(const struct span *checkpoint)
{
    const struct span *sp = checkpoint->parent;
    uint32_t before = ranks_checkpoints_up_to(sp, checkpoint->parent_ordinal),
             most = ranks_checkpoints_up_to(sp, sp->n_pages) - before;
    for (const struct span *child = sp->first_child; child; child = child->next_sibling) {
        uint32_t n = ranks_checkpoints_up_to(sp, child->parent_ordinal) + child->chain;
        if (child->parent_ordinal >= checkpoint->parent_ordinal && n - before > most)
            most = n - before;
    }
    return most;
}

struct span *ranks_checkpoint_before(const struct span *checkpoint)
{
    uint32_t limit = checkpoint->parent_ordinal; /* pages before it */
    for (const struct span *at = checkpoint->parent; at; limit = at->parent_ordinal + 1, at = at->parent) {
        struct span *best = NULL;
        for (struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            if (!c->doomed && c->parent_ordinal < limit &&
                (!best || c->parent_ordinal > best->parent_ordinal))
                best = c;
        if (best)
            return best;
    }
    return NULL;
}

/* ---- what a candidate is worth ----------------------------------------------------------------------- */

static struct verdict judge(const struct index *ix, const struct evict_standing *standing,
                            const struct worth_facts *facts)
{
    struct verdict v = {evict_turn_of(standing), 1};
    if (evict_by_worth(v.turn)) {
        v.value = worth_value(&ix->costs, facts);
        if (!(v.value > FLT_MIN))
            v = (struct verdict){EVICT_NOTHING, 1};
    }
    return v;
}

bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i)
{
    return ix->stateful && 2 * (i + 1) > sp->useful_depth;
}

bool ranks_gives_no_room(const struct span *sp)
{
    return sp->kind == SPAN_CHECKPOINT && sp->rank[RANK_DEVICE].turn == EVICT_WAITING_LAST;
}

bool ranks_is_worth_nothing(const struct span *sp)
{
    return sp->rank[RANK_DEVICE].turn == EVICT_NOTHING;
}

/* Blocks that nobody else holds or uses. */
static uint32_t blocks_freed(const struct index *ix, const struct span *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_pages; i++)
        n += ix->arena->pages[c->page[i]].refs == 0 && ix->arena->pages[c->page[i]].holders == 1;
    return n;
}

static double blocks_on_disk(const struct index *ix, const struct span *sp)
{
    return (double)sp->disk_bytes / (double)ix->arena->stride;
}

/* What is known of a checkpoint's worth but how many blocks it gives back itself. */
static struct worth_facts facts_of_checkpoint(const struct index *ix, const struct span *c)
{
    const struct span *shallower = ranks_checkpoint_before(c);
    bool last = c->parent->useful_depth <= depth_of(c);
    struct worth_facts facts = {.from = shallower ? shallower->first_position : 0,
                                .to = c->first_position,
                                .role = c->boundary == CS_BOUNDARY_SYSTEM ? WORTH_SHARED
                                        : last                            ? WORTH_LEAF
                                                                          : WORTH_INTERIOR};
    uint32_t pages = (facts.to - facts.from) / ix->page_tokens;
    if (last) /* whatever it serves: nothing else needs the pages that lead to it */
        facts.blocks_freed = pages;
    return facts;
}

static struct worth_facts facts_of_span(const struct index *ix, const struct span *sp, double blocks)
{
    return (struct worth_facts){.from = sp->first_position,
                                .to = sp->first_position + sp->n_pages * ix->page_tokens,
                                .blocks_freed = blocks,
                                .role = ix->stateful ? WORTH_LEAF : WORTH_PAGES};
}

uint32_t ranks_pages_to_unused(const struct index *ix, const struct span *sp)
{
    uint32_t n = sp->n_live < sp->n_device + sp->n_loading ? sp->n_pages : 0;
    while (n > 0 && (sp->page[n - 1] == ARENA_NO_PAGE || ix->arena->pages[sp->page[n - 1]].refs > 0))
        n--;
    return n;
}

static bool something_is_resident_behind(const struct span *sp, uint32_t i)
{
    if (sp->n_device_children > 0)
        return true;
    while (++i < sp->n_pages)
        if (sp->page[i] != ARENA_NO_PAGE)
            return true;
    return false;
}

static void update_device(struct index *ix, struct span *sp, const struct worth_facts *checkpoint)
{
    uint32_t n = checkpoint ? (sp->n_loading > 0 ? 0 : sp->n_device) : ranks_pages_to_unused(ix, sp);
    struct evict_standing standing = {.held = n == 0 || index_is_leaving_device(ix, sp),
                                      .safe = index_is_safe(sp),
                                      .waits = index_waits_on_device(ix, sp)};
    if (standing.held) {
        rank_remove(ix, RANK_DEVICE, sp);
        return;
    }
    struct worth_facts facts;
    if (checkpoint) {
        uint32_t own = blocks_freed(ix, sp);
        facts = *checkpoint;
        facts.blocks_freed += own;
        standing.gives_none = own == 0;
    } else { /* the last unused page */
        uint32_t i = n - 1, from = sp->first_position + i * ix->page_tokens;
        standing.useless = ranks_page_is_dead(ix, sp, i);
        standing.part_of_useful = sp->useful_depth > 0 && (ix->over_disk || ix->host);
        standing.rested_on = something_is_resident_behind(sp, i);
        facts = (struct worth_facts){.from = from,
                                     .to = from + ix->page_tokens,
                                     .blocks_freed = 1,
                                     .role = ix->stateful ? WORTH_LEAF : WORTH_PAGES};
    }
    rank_put(ix, RANK_DEVICE, sp, judge(ix, &standing, &facts));
}

static void update_host(struct index *ix, struct span *sp, const struct worth_facts *checkpoint)
{
    bool moving = sp->disk == SPAN_DISK_WRITING || sp->disk == SPAN_DISK_COPYING;
    if (moving || sp->n_host == 0 || sp->n_loading > 0 || sp->host_pins > 0) {
        rank_remove(ix, RANK_HOST, sp);
        return;
    }
    struct worth_facts facts = checkpoint ? *checkpoint : facts_of_span(ix, sp, 0);
    facts.blocks_freed += sp->n_host;
    const struct evict_standing standing = {.safe = sp->disk == SPAN_DISK_DURABLE,
                                            .waits = index_waits(sp),
                                            .useless = index_host_turn(ix, sp) == HOST_TURN_DEAD,
                                            .rested_on = sp->n_host_children > 0};
    rank_put(ix, RANK_HOST, sp, judge(ix, &standing, &facts));
}

/* Pages on disk that lead to no checkpoint there, nor to one that will be. */
static bool leads_nowhere_on_disk(const struct index *ix, const struct span *sp)
{
    if (!ix->stateful)
        return false;
    for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (!c->doomed && c->disk != SPAN_DISK_NONE)
            return false;
    return true;
}

static void update_disk(struct index *ix, struct span *sp, const struct worth_facts *checkpoint)
{
    struct evict_standing standing = {.held = sp->disk != SPAN_DISK_DURABLE || sp->pins > 0 ||
                                              sp->n_loading > 0 || sp->kept,
                                      .safe = true, /* one group: there is no tier below */
                                      .rested_on = sp->n_disk_children > 0,
                                      .parents_stay = true};
    if (evict_turn_of(&standing) == EVICT_NEVER) {
        rank_remove(ix, RANK_DISK, sp);
        return;
    }
    struct worth_facts facts = checkpoint ? *checkpoint : facts_of_span(ix, sp, 0);
    facts.blocks_freed += blocks_on_disk(ix, sp);
    standing.useless = !checkpoint && leads_nowhere_on_disk(ix, sp);
    rank_put(ix, RANK_DISK, sp, judge(ix, &standing, &facts));
}

static void update_tiers(struct index *ix, struct span *sp, enum rank_tier first, enum rank_tier last)
{
    struct worth_facts of_checkpoint, *facts = NULL;
    if (ix->loading)
        return;
    if (sp->kind == SPAN_CHECKPOINT) {
        of_checkpoint = facts_of_checkpoint(ix, sp);
        facts = &of_checkpoint;
    }
    if (first <= RANK_DEVICE && last >= RANK_DEVICE)
        update_device(ix, sp, facts);
    if (first <= RANK_HOST && last >= RANK_HOST && ix->host)
        update_host(ix, sp, facts);
    if (first <= RANK_DISK && last >= RANK_DISK)
        update_disk(ix, sp, facts);
}

void ranks_update_locked(struct index *ix, struct span *sp)
{
    update_tiers(ix, sp, RANK_DEVICE, RANK_DISK);
}

void ranks_remove_locked(struct index *ix, struct span *sp)
{
    for (int t = 0; t < RANK_TIERS; t++)
        rank_remove(ix, (enum rank_tier)t, sp);
}

struct span *ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of)
{
    uint64_t now = index_now(ix);
    uint32_t work = WORK_A_VICTIM;
    if (ix->last_tick < now)
        ix->last_tick = now; /* what has been judged at this moment is never judged at an earlier one */
    for (;;) {
        struct span *sp = least(ix, tier, of, &work);
        if (!sp)
            return NULL;
        struct kinetic_node was = sp->rank[tier];
        update_tiers(ix, sp, tier, tier);
        const struct kinetic_node *is = &sp->rank[tier];
        if (is->ranked && is->turn == was.turn && is->value == was.value)
            return sp;
    }
}
