/* A kinetic heap (see kinetic.h). */
#include "cachestore/kinetic.h"
#include "cachestore/policy/worth.h"

#include <stddef.h>

#define NEVER UINT64_MAX

struct kinetic_heap kinetic_heap_of(int16_t age_at)
{
    return (struct kinetic_heap){.age_at = age_at};
}

struct kinetic_heap kinetic_heap_of_members(void)
{
    return (struct kinetic_heap){.age_at = offsetof(struct kinetic_member, age) -
                                           offsetof(struct kinetic_member, node),
                                 .of_members = true};
}

static struct kinetic_member *member_of(struct kinetic_node *n)
{
    return (struct kinetic_member *)(void *)((char *)n - offsetof(struct kinetic_member, node));
}

static const struct evict_facts *age_of(const struct kinetic_heap *h, const struct kinetic_node *n)
{
    return (const struct evict_facts *)(const void *)((const char *)n + h->age_at);
}

/* Of what was used behind `now`, less than nothing. */
static int64_t age_us(const struct evict_facts *f, uint64_t now)
{
    return (int64_t)(now - evict_used_us(f));
}

bool kinetic_before(const struct kinetic_node *a, const struct evict_facts *age_a,
                    const struct kinetic_node *b, const struct evict_facts *age_b, uint64_t now)
{
    if (a->turn != b->turn)
        return a->turn < b->turn;
    int order = worth_compare(a->value, age_us(age_a, now), b->value, age_us(age_b, now));
    return order != 0 ? order < 0 : evict_oldest_before(age_a, age_b);
}

static bool before(const struct kinetic_heap *h, const struct kinetic_node *a, const struct kinetic_node *b,
                   uint64_t now)
{
    return kinetic_before(a, age_of(h, a), b, age_of(h, b), now);
}

/* ---- when edges fail --------------------------------------------------------------------------------- */

static uint64_t edge_fails(const struct kinetic_heap *h, const struct kinetic_node *n, uint64_t now)
{
    const struct kinetic_node *p = n->parent;
    if (!p || p->turn < n->turn)
        return NEVER;
    if (before(h, n, p, now))
        return now;
    uint64_t left = worth_stays_us(p->value, age_us(age_of(h, p), now), n->value, age_us(age_of(h, n), now));
    return left < NEVER - now ? now + left : NEVER;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t fails_of(const struct kinetic_heap *h, struct kinetic_node *n, uint64_t now)
{
    uint64_t fails = edge_fails(h, n, now);
    if (n->left)
        fails = lesser(fails, n->left->fails);
    if (n->right)
        fails = lesser(fails, n->right->fails);
    if (h->of_members && member_of(n)->heap.root)
        fails = lesser(fails, member_of(n)->heap.root->fails);
    return fails;
}

static void refresh(const struct kinetic_heap *h, struct kinetic_node *n, uint64_t now)
{
    if (n)
        n->fails = fails_of(h, n, now);
}

/* At a place below p something failed at `was`, and fails at `is` now. Goes up as far as that matters. */
static void tell(const struct kinetic_heap *h, struct kinetic_node *p, uint64_t was, uint64_t is,
                 uint64_t now)
{
    for (; p; p = p->parent) {
        uint64_t old = p->fails;
        if (is < old)
            p->fails = is;
        else if (is > was && was == old)
            p->fails = fails_of(h, p, now);
        if (p->fails == old)
            return;
        was = old;
        is = p->fails;
    }
}

/* Nodes have moved between the places of low and high, low's below or the same; edges above are as they were.
 */
static void refresh_path(const struct kinetic_heap *h, struct kinetic_node *low,
                         const struct kinetic_node *high, uint64_t now)
{
    refresh(h, low->left, now);
    refresh(h, low->right, now);
    for (struct kinetic_node *n = low; n != high; n = n->parent) {
        refresh(h, n->parent->left, now);
        refresh(h, n->parent->right, now);
    }
}

/* The same, and those above; was: what failed at high's place. */
static void mend(const struct kinetic_heap *h, struct kinetic_node *low, struct kinetic_node *high,
                 uint64_t was, uint64_t now)
{
    refresh_path(h, low, high, now);
    refresh(h, high, now);
    tell(h, high->parent, was, high->fails, now);
}

/* ---- places ------------------------------------------------------------------------------------------ */

/* The pointer to place i; *parent: whose it is. */
static struct kinetic_node **place(struct kinetic_heap *h, uint32_t i, struct kinetic_node **parent)
{
    struct kinetic_node **at = &h->root;
    *parent = NULL;
    for (int bit = 30 - __builtin_clz(i); bit >= 0; bit--) {
        *parent = *at;
        at = i >> bit & 1 ? &(*at)->right : &(*at)->left;
    }
    return at;
}

static void set_parent(struct kinetic_node *n, struct kinetic_node *parent)
{
    if (n)
        n->parent = parent;
}

static struct kinetic_node **pointer_to(struct kinetic_heap *h, const struct kinetic_node *n)
{
    struct kinetic_node *p = n->parent;
    return !p ? &h->root : p->left == n ? &p->left : &p->right;
}

static void swap_with_parent(struct kinetic_heap *h, struct kinetic_node *n)
{
    struct kinetic_node *p = n->parent, *left = n->left, *right = n->right;
    *pointer_to(h, p) = n;
    n->parent = p->parent;
    n->left = p->left == n ? p : p->left;
    n->right = p->right == n ? p : p->right;
    set_parent(n->left, n);
    set_parent(n->right, n);
    p->left = left;
    p->right = right;
    set_parent(left, p);
    set_parent(right, p);
}

/* Returns who is at its old place then. */
static struct kinetic_node *sift_down(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    struct kinetic_node *top = x;
    for (;;) {
        struct kinetic_node *first = x->left;
        if (first && x->right && before(h, x->right, first, now))
            first = x->right;
        if (!first || !before(h, first, x, now))
            return top;
        swap_with_parent(h, first);
        if (top == x)
            top = first;
    }
}

/* was: what failed at its place before. */
static void sift(struct kinetic_heap *h, struct kinetic_node *x, uint64_t was, uint64_t now)
{
    struct kinetic_node *low = x;
    while (x->parent && before(h, x, x->parent, now)) {
        struct kinetic_node *p = x->parent;
        was = p->fails;
        swap_with_parent(h, x);
        if (low == x)
            low = p;
    }
    if (low != x)
        mend(h, low, x, was, now);
    else
        mend(h, x, sift_down(h, x, now), was, now);
}

void kinetic_insert(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    *place(h, ++h->n, &x->parent) = x;
    x->left = x->right = NULL;
    x->ranked = true;
    sift(h, x, NEVER, now);
}

void kinetic_remove(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    struct kinetic_node *parent, **at = place(h, h->n--, &parent), *last = *at;
    *at = NULL;
    tell(h, parent, last->fails, NEVER, now);
    if (last != x) {
        last->left = x->left;
        last->right = x->right;
        last->parent = x->parent;
        *pointer_to(h, x) = last;
        set_parent(last->left, last);
        set_parent(last->right, last);
        sift(h, last, x->fails, now);
    }
    *x = (struct kinetic_node){0};
}

void kinetic_changed(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    sift(h, x, x->fails, now);
}

/* ---- two levels -------------------------------------------------------------------------------------- */

/* The line of the first; false: it is the same as before. */
static bool take_line(struct kinetic_member *m)
{
    const struct kinetic_node *first = m->heap.root;
    const struct evict_facts *age = age_of(&m->heap, first);
    if (m->node.turn == first->turn && m->node.value == first->value && m->age.last_used == age->last_used &&
        m->age.first_position == age->first_position && m->age.continues == age->continues)
        return false;
    m->node.turn = first->turn;
    m->node.value = first->value;
    m->age = *age;
    return true;
}

void kinetic_member_changed(struct kinetic_heap *of_members, struct kinetic_member *m, uint64_t now)
{
    if (!m->heap.root) {
        if (m->node.ranked)
            kinetic_remove(of_members, &m->node, now);
        return;
    }
    bool other = take_line(m);
    if (!m->node.ranked) {
        kinetic_insert(of_members, &m->node, now);
    } else if (other) {
        kinetic_changed(of_members, &m->node, now);
    } else {
        uint64_t was = m->node.fails;
        refresh(of_members, &m->node, now);
        tell(of_members, m->node.parent, was, m->node.fails, now);
    }
}

/* ---- time goes on ------------------------------------------------------------------------------------ */

static bool has_failed(const struct kinetic_node *n, uint64_t now)
{
    return n && n->fails <= now;
}

/* Puts right what has failed below n's place, from below; `fails` of who is there then is the caller's to
 * refresh. No deeper than two trees are. */
static void settle(struct kinetic_heap *h, struct kinetic_node *n, uint64_t now, uint32_t *work)
{
    if (*work == 0)
        return;
    --*work;
    bool other = false;
    if (h->of_members) {
        struct kinetic_member *m = member_of(n);
        (void)kinetic_first(&m->heap, now, work);
        other = take_line(m);
    }
    struct kinetic_node *next = n->left, *then = n->right;
    if (next && then && then->fails < next->fails) {
        next = n->right;
        then = n->left;
    }
    bool failed = has_failed(next, now);
    if (failed)
        settle(h, next, now, work);
    if (has_failed(then, now)) {
        failed = true;
        settle(h, then, now, work);
    }
    if (failed || other)
        refresh_path(h, n, sift_down(h, n, now), now);
}

struct kinetic_node *kinetic_first(struct kinetic_heap *h, uint64_t now, uint32_t *work)
{
    if (has_failed(h->root, now)) {
        settle(h, h->root, now, work);
        refresh(h, h->root, now);
    }
    return h->root;
}
