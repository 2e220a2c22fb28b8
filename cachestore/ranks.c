/* Candidates of each tier, by worth (see ranks.h). */
#include "cachestore/ranks.h"
#include "cachestore/index.h"
#include "cachestore/policy/evict.h"

#define NEIGHBOURS_AT_ONCE 256 /* that are judged anew when a checkpoint comes or goes */

static const uint8_t n_groups[RANK_TIERS] = {[RANK_DEVICE] = 3, [RANK_HOST] = 3, [RANK_DISK] = 1};
enum { SAFE, UNSAFE, WAITING }; /* groups of the device */

/* Which heap: an account's of a class, or that of their roots. */
enum level { OF_ACCOUNT, OF_ALL };

size_t ranks_heads_bytes(enum rank_tier tier)
{
    return sizeof(struct rank_heads) + n_groups[tier] * sizeof(((struct rank_heads *)NULL)->root[0]);
}

/* ---- pairing heaps ----------------------------------------------------------------------------------- */

static bool before(const struct span *a, const struct span *b)
{
    const struct evict_facts fa = {.last_used = a->last_used, .first_position = a->first_position},
                             fb = {.last_used = b->last_used, .first_position = b->first_position};
    return evict_oldest_before(&fa, &fb);
}

static void push_child(enum rank_tier t, enum level l, struct span *a, struct span *b)
{
    b->rank[t].previous = a;
    b->rank[t].next = a->rank[t].child[l];
    if (b->rank[t].next)
        b->rank[t].next->rank[t].previous = b;
    a->rank[t].child[l] = b;
}

/* b goes below a, joined with those children that are as large. */
static void add_child(enum rank_tier t, enum level l, struct span *a, struct span *b)
{
    struct rank *k = &a->rank[t];
    struct span *first;
    while ((first = k->child[l]) && first->rank[t].order[l] == b->rank[t].order[l]) {
        k->child[l] = first->rank[t].next;
        if (k->child[l])
            k->child[l]->rank[t].previous = a;
        bool swap = before(first, b);
        struct span *winner = swap ? first : b;
        push_child(t, l, winner, swap ? b : first);
        winner->rank[t].order[l]++;
        b = winner;
    }
    push_child(t, l, a, b);
    if (k->order[l] == b->rank[t].order[l])
        k->order[l]++;
    else if (k->order[l] < b->rank[t].order[l])
        k->order[l] = b->rank[t].order[l];
}

static struct span *meld(enum rank_tier t, enum level l, struct span *a, struct span *b)
{
    if (!a || !b)
        return a ? a : b;
    bool swap = before(b, a);
    add_child(t, l, swap ? b : a, swap ? a : b);
    return swap ? b : a;
}

/* Makes one heap of a list of siblings: pairs from the left, then one after another from the right. */
static struct span *meld_siblings(enum rank_tier t, enum level l, struct span *first)
{
    struct span *pairs = NULL, *root = NULL;
    while (first) {
        struct span *a = first, *b = a->rank[t].next;
        first = b ? b->rank[t].next : NULL;
        a->rank[t].next = a->rank[t].previous = NULL;
        if (b)
            b->rank[t].next = b->rank[t].previous = NULL;
        a = meld(t, l, a, b);
        a->rank[t].next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct span *next = pairs->rank[t].next;
        pairs->rank[t].next = NULL;
        root = meld(t, l, root, pairs);
        pairs = next;
    }
    return root;
}

/* Takes sp out of the heap; a root that stays keeps its links. */
static void heap_cut(enum rank_tier t, enum level l, struct span **root, struct span *sp)
{
    struct rank *k = &sp->rank[t];
    struct span *below = meld_siblings(t, l, k->child[l]);
    k->child[l] = NULL;
    k->order[l] = 0;
    if (*root == sp) {
        *root = below;
        return;
    }
    if (k->previous->rank[t].child[l] == sp)
        k->previous->rank[t].child[l] = k->next;
    else
        k->previous->rank[t].next = k->next;
    if (k->next)
        k->next->rank[t].previous = k->previous;
    k->next = k->previous = NULL;
    *root = meld(t, l, *root, below);
}

/* ---- classes ----------------------------------------------------------------------------------------- */

static void mark_filled(struct rank_heads *h, const struct rank *k)
{
    uint64_t bit = 1ull << k->class % 64, *word = &h->filled[k->group][k->class / 64];
    *word = h->root[k->group][k->class] ? *word | bit : *word & ~bit;
}

static void rank_remove(struct index *ix, enum rank_tier t, struct span *sp)
{
    struct rank *k = &sp->rank[t];
    if (!k->ranked)
        return;
    struct rank_heads *mine = sp->account->heads[t], *all = ix->ranks[t];
    struct span **root = &mine->root[k->group][k->class], **roots = &all->root[k->group][k->class];
    if (*root != sp) {
        heap_cut(t, OF_ACCOUNT, root, sp);
    } else {
        heap_cut(t, OF_ALL, roots, sp);
        heap_cut(t, OF_ACCOUNT, root, sp);
        if (*root)
            *roots = meld(t, OF_ALL, *roots, *root);
        mark_filled(mine, k);
        mark_filled(all, k);
    }
    *k = (struct rank){0};
}

static void rank_put(struct index *ix, enum rank_tier t, struct span *sp, unsigned group, unsigned class,
                     double value)
{
    struct rank *k = &sp->rank[t];
    if (k->ranked && k->group == group && k->class == class) {
        k->value = (float)value;
        return;
    }
    rank_remove(ix, t, sp);
    *k = (struct rank){.value = (float)value, .class = (uint8_t) class, .group = group & 3, .ranked = true};
    struct rank_heads *mine = sp->account->heads[t], *all = ix->ranks[t];
    struct span **root = &mine->root[group][class], **roots = &all->root[group][class];
    if (*root && !before(sp, *root)) {
        (void)meld(t, OF_ACCOUNT, *root, sp);
        return;
    }
    if (*root)
        heap_cut(t, OF_ALL, roots, *root);
    *root = meld(t, OF_ACCOUNT, *root, sp);
    *roots = meld(t, OF_ALL, *roots, sp);
    mark_filled(mine, k);
    mark_filled(all, k);
}

static struct span *least_of_group(const struct rank_heads *h, enum rank_tier t, unsigned group,
                                   uint64_t now_us)
{
    struct span *best = NULL;
    double best_worth = 0;
    for (unsigned word = 0; word < WORTH_CLASSES / 64; word++)
        for (uint64_t classes = h->filled[group][word]; classes; classes &= classes - 1) {
            unsigned class = 64 * word + (unsigned)__builtin_ctzll(classes);
            if (class == WORTH_CLASS_LAST)
                break;
            struct span *head = h->root[group][class];
            uint64_t age = now_us > head->last_used ? now_us - head->last_used : 0;
            double worth = worth_now(head->rank[t].value, age);
            if (!best || worth < best_worth) {
                best = head;
                best_worth = worth;
            }
        }
    return best;
}

/* Of the first groups. */
static struct span *first_of_last_classes(const struct rank_heads *h, unsigned groups)
{
    struct span *first = NULL;
    for (unsigned group = 0; group < groups && !first; group++)
        first = h->root[group][WORTH_CLASS_LAST];
    return first;
}

/* NULL: there are none. */
static struct span *least(const struct rank_heads *h, enum rank_tier t, uint64_t now_us)
{
    struct span *best = NULL;
    for (unsigned group = 0; group < n_groups[t] && !best; group++)
        best = h->root[group][WORTH_CLASS_NOTHING];
    for (unsigned group = 0; group < n_groups[t] && !best; group++) {
        if (group + 1 == RANK_GROUPS_MOST)
            best = first_of_last_classes(h, group);
        if (!best)
            best = least_of_group(h, t, group, now_us);
    }
    return best ? best : first_of_last_classes(h, n_groups[t]);
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

/* The first checkpoints on all ways down from behind the first `from` pages of the span. */
static void update_next_deeper(struct index *ix, struct span *sp, uint32_t from, uint32_t *left)
{
    struct span *next = NULL;
    for (struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (!c->doomed && c->parent_ordinal >= from && (!next || c->parent_ordinal < next->parent_ordinal))
            next = c;
    if (next)
        ranks_update_locked(ix, next);
    uint32_t before = next ? next->parent_ordinal : sp->n_pages;
    for (struct span *child = sp->first_child; child && *left > 0; child = child->next_sibling) {
        if (child->chain == 0 || child->parent_ordinal + 1 < from || child->parent_ordinal >= before)
            continue;
        --*left;
        update_next_deeper(ix, child, 0, left);
    }
}

void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp, uint32_t ordinal)
{
    uint32_t old = sp->chain, left = NEIGHBOURS_AT_ONCE;
    chain_count(sp, UINT32_MAX, UINT32_MAX);
    ranks_update_locked(ix, sp);
    if (ix->loading)
        left = 0;
    else
        update_checkpoints(ix, sp);
    update_next_deeper(ix, sp, ordinal + 1, &left);
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

/* Where it is ranked; the class says whether by value. */
struct verdict {
    unsigned group, class;
    double value;
};

static struct verdict by_value(const struct index *ix, unsigned group, const struct worth_facts *facts)
{
    double value = worth_value(&ix->costs, facts);
    return (struct verdict){group, worth_class(value), value};
}

bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i)
{
    return ix->stateful && 2 * (i + 1) > sp->useful_depth;
}

bool ranks_gives_no_room(const struct span *sp)
{
    return sp->kind == SPAN_CHECKPOINT && sp->rank[RANK_DEVICE].class == WORTH_CLASS_LAST;
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
                                .role = WORTH_LEAF};
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

static unsigned group_on_device(const struct index *ix, const struct span *sp)
{
    return index_is_safe(sp) ? SAFE : index_waits_on_device(ix, sp) ? WAITING : UNSAFE;
}

/* i: the last unused page of the span. */
static struct verdict page_on_device(const struct index *ix, const struct span *sp, uint32_t i)
{
    unsigned group = group_on_device(ix, sp);
    /* Where there is a lower tier, not before it is there: a span without its dead tail could not be any
     * more, and with it what rests on its other pages. */
    if (ranks_page_is_dead(ix, sp, i) &&
        (sp->useful_depth == 0 || index_is_safe(sp) || (!ix->over_disk && !ix->host)))
        return (struct verdict){group, WORTH_CLASS_NOTHING, 0};
    if (something_is_resident_behind(sp, i))
        return (struct verdict){group, WORTH_CLASS_LAST, 0};
    uint32_t from = sp->first_position + i * ix->page_tokens;
    return by_value(ix, group,
                    &(struct worth_facts){
                        .from = from, .to = from + ix->page_tokens, .blocks_freed = 1, .role = WORTH_LEAF});
}

static void update_device(struct index *ix, struct span *sp, const struct worth_facts *checkpoint)
{
    uint32_t n = checkpoint ? (sp->n_loading > 0 ? 0 : sp->n_device) : ranks_pages_to_unused(ix, sp);
    struct verdict v;
    if (n == 0 || index_is_leaving_device(ix, sp)) {
        rank_remove(ix, RANK_DEVICE, sp);
        return;
    }
    if (!checkpoint) {
        v = page_on_device(ix, sp, n - 1);
    } else {
        struct worth_facts facts = *checkpoint;
        uint32_t own = blocks_freed(ix, sp);
        facts.blocks_freed += own;
        v = own > 0 ? by_value(ix, group_on_device(ix, sp), &facts)
                    : (struct verdict){WAITING, WORTH_CLASS_LAST, 0}; /* as long as others use all of it */
    }
    rank_put(ix, RANK_DEVICE, sp, v.group, v.class, v.value);
}

static void update_host(struct index *ix, struct span *sp, const struct worth_facts *checkpoint)
{
    bool moving = sp->disk == SPAN_DISK_WRITING || sp->disk == SPAN_DISK_COPYING;
    if (moving || sp->n_host == 0 || sp->n_loading > 0 || sp->host_pins > 0) {
        rank_remove(ix, RANK_HOST, sp);
        return;
    }
    enum host_turn turn = index_host_turn(ix, sp);
    struct worth_facts facts = checkpoint ? *checkpoint : facts_of_span(ix, sp, 0);
    facts.blocks_freed += sp->n_host;
    struct verdict v = {turn == HOST_TURN_DEAD ? 0 : turn - HOST_TURN_DURABLE,
                        turn == HOST_TURN_DEAD ? WORTH_CLASS_NOTHING : WORTH_CLASS_LAST, 0};
    if (turn != HOST_TURN_DEAD && sp->n_host_children == 0)
        v = by_value(ix, v.group, &facts);
    rank_put(ix, RANK_HOST, sp, v.group, v.class, v.value);
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
    if (sp->disk != SPAN_DISK_DURABLE || sp->n_disk_children > 0 || sp->pins > 0 || sp->n_loading > 0 ||
        sp->kept) {
        rank_remove(ix, RANK_DISK, sp);
        return;
    }
    struct worth_facts facts = checkpoint ? *checkpoint : facts_of_span(ix, sp, 0);
    facts.blocks_freed += blocks_on_disk(ix, sp);
    struct verdict v = {0, WORTH_CLASS_NOTHING, 0};
    if (checkpoint || !leads_nowhere_on_disk(ix, sp))
        v = by_value(ix, 0, &facts);
    rank_put(ix, RANK_DISK, sp, v.group, v.class, v.value);
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
    const struct rank_heads *heads = of ? of->heads[tier] : ix->ranks[tier];
    for (;;) {
        struct span *sp = heads ? least(heads, tier, now) : NULL;
        if (!sp)
            return NULL;
        unsigned class = sp->rank[tier].class, group = sp->rank[tier].group;
        update_tiers(ix, sp, tier, tier);
        if (sp->rank[tier].ranked && sp->rank[tier].class == class && sp->rank[tier].group == group)
            return sp;
    }
}
