/* Candidates of the device, by worth (see ranks.h). */
#include "cachestore/ranks.h"
#include "cachestore/index.h"
#include "cachestore/policy/evict.h"

#include <stddef.h>

/* ---- a pairing heap a class -------------------------------------------------------------------------- */

static bool before(const struct span *a, const struct span *b)
{
    const struct evict_facts fa = {.last_used = a->rank.last_used, .first_position = a->first_position},
                             fb = {.last_used = b->rank.last_used, .first_position = b->first_position};
    return evict_oldest_before(&fa, &fb);
}

static struct span *meld(struct span *a, struct span *b)
{
    if (!a || !b)
        return a ? a : b;
    if (before(b, a)) {
        struct span *t = a;
        a = b;
        b = t;
    }
    b->rank.previous = a;
    b->rank.next = a->rank.child;
    if (b->rank.next)
        b->rank.next->rank.previous = b;
    a->rank.child = b;
    return a;
}

/* Makes one heap of a list of siblings: pairs from the left, then one after another from the right. */
static struct span *meld_siblings(struct span *first)
{
    struct span *pairs = NULL, *root = NULL;
    while (first) {
        struct span *a = first, *b = a->rank.next;
        first = b ? b->rank.next : NULL;
        a->rank.next = a->rank.previous = NULL;
        if (b)
            b->rank.next = b->rank.previous = NULL;
        a = meld(a, b);
        a->rank.next = pairs;
        pairs = a;
    }
    while (pairs) {
        struct span *next = pairs->rank.next;
        pairs->rank.next = NULL;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}

/* ---- classes ----------------------------------------------------------------------------------------- */

static void rank_remove(struct ranks *r, struct span *sp)
{
    struct rank *k = &sp->rank;
    if (!k->ranked)
        return;
    struct span **root = &r->root[k->durable][k->class];
    struct span *below = meld_siblings(k->child);
    if (*root == sp) {
        *root = below;
    } else {
        if (k->previous->rank.child == sp)
            k->previous->rank.child = k->next;
        else
            k->previous->rank.next = k->next;
        if (k->next)
            k->next->rank.previous = k->previous;
        *root = meld(*root, below);
    }
    if (!*root)
        r->filled[k->durable] &= ~(1ull << k->class);
    *k = (struct rank){0};
}

static void rank_put(struct ranks *r, struct span *sp, bool durable, unsigned class, double value)
{
    struct rank *k = &sp->rank;
    if (k->ranked && k->durable == durable && k->class == class && k->last_used == sp->last_used) {
        k->value = value;
        return;
    }
    rank_remove(r, sp);
    *k = (struct rank){.value = value,
                       .last_used = sp->last_used,
                       .class = (uint8_t) class,
                       .ranked = true,
                       .durable = durable};
    struct span **root = &r->root[durable][class];
    *root = meld(*root, sp);
    r->filled[durable] |= 1ull << class;
}

/* NULL: there are none. */
static struct span *least(const struct ranks *r, uint64_t now_us)
{
    for (int durable = 1; durable >= 0; durable--)
        if (r->root[durable][WORTH_CLASS_NOTHING])
            return r->root[durable][WORTH_CLASS_NOTHING];
    for (int durable = 1; durable >= 0; durable--) {
        struct span *best = NULL;
        double best_worth = 0;
        uint64_t classes = r->filled[durable] & ~(1ull << WORTH_CLASS_LAST);
        for (; classes; classes &= classes - 1) {
            struct span *head = r->root[durable][__builtin_ctzll(classes)];
            uint64_t age = now_us > head->rank.last_used ? now_us - head->rank.last_used : 0;
            double worth = worth_now(head->rank.value, age);
            if (!best || worth < best_worth) {
                best = head;
                best_worth = worth;
            }
        }
        if (!best)
            best = r->root[durable][WORTH_CLASS_LAST];
        if (best)
            return best;
    }
    return NULL;
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

void ranks_checkpoints_changed_locked(struct index *ix, struct span *sp)
{
    uint32_t old = sp->chain;
    chain_count(sp, UINT32_MAX, UINT32_MAX);
    ranks_update_locked(ix, sp);
    for (struct span *parent = sp->parent; parent && sp->chain != old; sp = parent, parent = sp->parent) {
        uint32_t before = ranks_checkpoints_up_to(parent, sp->parent_ordinal), was = parent->chain,
                 was_depth = parent->useful_depth;
        if (sp->chain > old)
            chain_join(parent, before + sp->chain, depth_of(sp));
        else if (before + old >= was || (sp->chain == 0 && depth_of(sp) >= was_depth))
            chain_count(parent, was, was_depth);
        if (parent->useful_depth != was_depth)
            ranks_update_locked(ix, parent);
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

bool ranks_page_is_dead(const struct index *ix, const struct span *sp, uint32_t i)
{
    return ix->stateful && 2 * (i + 1) > sp->useful_depth;
}

/* Blocks that nobody else holds or uses. */
static uint32_t blocks_freed(const struct index *ix, const struct span *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_pages; i++)
        n += ix->arena->pages[c->page[i]].refs == 0 && ix->arena->pages[c->page[i]].holders == 1;
    return n;
}

static unsigned class_of_checkpoint(const struct index *ix, const struct span *c, double *value)
{
    const struct span *before = ranks_checkpoint_before(c);
    struct worth_facts facts = {.tokens_saved = c->first_position - (before ? before->first_position : 0),
                                .blocks_freed = blocks_freed(ix, c)};
    if (facts.blocks_freed == 0)
        return WORTH_CLASS_LAST; /* as long as others use all of it */
    bool last = c->parent->useful_depth <= depth_of(c);
    facts.role = c->boundary == CS_BOUNDARY_SYSTEM ? WORTH_SHARED : last ? WORTH_LEAF : WORTH_INTERIOR;
    if (last) /* whatever it serves: nothing else needs the pages that lead to it */
        facts.blocks_freed += facts.tokens_saved / ix->page_tokens;
    *value = worth_value(&facts);
    return worth_class(*value);
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

/* i: the last unused page. */
static unsigned class_of_span(const struct index *ix, const struct span *sp, uint32_t i, double *value)
{
    /* Where there is a lower tier, not before it is there: a span without its dead tail could not be any
     * more, and with it what rests on its other pages. */
    if (ranks_page_is_dead(ix, sp, i) &&
        (sp->useful_depth == 0 || index_is_safe(sp) || (!ix->over_disk && !ix->host)))
        return WORTH_CLASS_NOTHING;
    if (something_is_resident_behind(sp, i))
        return WORTH_CLASS_LAST;
    *value = worth_value(&(struct worth_facts){.tokens_saved = ix->page_tokens, .blocks_freed = 1});
    return worth_class(*value);
}

void ranks_update_locked(struct index *ix, struct span *sp)
{
    double value = 0;
    unsigned class;
    bool checkpoint = sp->kind == SPAN_CHECKPOINT;
    uint32_t n = !checkpoint ? ranks_pages_to_unused(ix, sp) : sp->n_loading > 0 ? 0 : sp->n_device;
    if (n == 0 || index_is_leaving_device(ix, sp)) {
        rank_remove(&ix->ranks, sp);
        return;
    }
    class = checkpoint ? class_of_checkpoint(ix, sp, &value) : class_of_span(ix, sp, n - 1, &value);
    bool gives_no_room = checkpoint && class == WORTH_CLASS_LAST;
    rank_put(&ix->ranks, sp, index_is_safe(sp) && !gives_no_room, class, value);
}

void ranks_remove_locked(struct index *ix, struct span *sp)
{
    rank_remove(&ix->ranks, sp);
}

struct span *ranks_victim_locked(struct index *ix)
{
    uint64_t now = index_now(ix);
    for (;;) {
        struct span *sp = least(&ix->ranks, now);
        if (!sp)
            return NULL;
        const struct rank was = sp->rank;
        ranks_update_locked(ix, sp);
        if (sp->rank.ranked && sp->rank.class == was.class && sp->rank.durable == was.durable)
            return sp;
    }
}
