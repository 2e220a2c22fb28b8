/*
 * Choosers of victims beside the store's own. The program is linked so that the store asks here
 * (--wrap=ranks_victim_locked): index, paths, placement and what a victim gives back are the store's in all
 * cases, and nothing but the choice among its candidates differs.
 *
 *   exact    the least U of policy/worth.h over all candidates, each judged anew at that moment
 *   lru      the least recently used
 *   gdsf     greedy dual size frequency: L + uses * seconds saved / blocks freed, L: that of the last victim
 *   future   the one whose next use is farthest away (Belady): of pages the next prompt that has them; of a
 *            checkpoint the next request that resumes there when nothing is ever evicted. Blind to bytes, so
 *            a bound in practice and not by proof.
 *
 * What is worth nothing goes first in all of them, and what goes when nothing else is left goes last. The
 * exact choice looks at all candidates each time. The last three stand in the store's own heaps with a value
 * of theirs that does not change with time (--wrap=kinetic_insert and so on), or a budget of a million pages
 * could not be replayed.
 */
#include "bench/policy_sim.h"
#include "cachestore/policy/evict.h"
#include "cachestore/store.h"

#include <stddef.h>
#include <stdlib.h>

void __real_kinetic_insert(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
void __wrap_kinetic_insert(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
void __real_kinetic_changed(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
void __wrap_kinetic_changed(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now);
bool __real_evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b);
bool __wrap_evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b);
int __real_worth_compare(float a, int64_t age_a_us, float b, int64_t age_b_us);
int __wrap_worth_compare(float a, int64_t age_a_us, float b, int64_t age_b_us);
uint64_t __real_worth_stays_us(float a, int64_t age_a_us, float b, int64_t age_b_us);
uint64_t __wrap_worth_stays_us(float a, int64_t age_a_us, float b, int64_t age_b_us);
struct span *__real_ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of);
struct span *__wrap_ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of);

#define ANY_TURN (-1)
#define FARTHEST (1u << 24) /* requests; floats tell as many apart */

struct credit {
    double floor; /* L when it was last used */
    uint32_t uses;
};

static struct {
    enum sim_policy policy;
    struct index *ix;
    const struct sim_uses *uses;
    uint32_t now;
    uint64_t n_victims;
    bool stateful;
    struct credit *credit; /* of nodes; gdsf only */
    double floor;
    struct span **found;
    struct kinetic_node **stack;
    size_t n_found, found_capacity, stack_capacity;
} victims;

/* ---- candidates -------------------------------------------------------------------------------------- */

static void push(struct kinetic_node *node, size_t *n)
{
    if (!node)
        return;
    victims.stack =
        sim_reserve((void *)victims.stack, &victims.stack_capacity, *n, sizeof(struct kinetic_node *));
    victims.stack[(*n)++] = node;
}

static struct span *span_of(enum rank_tier tier, struct kinetic_node *node)
{
    return (struct span *)(void *)((char *)(node - tier) - offsetof(struct span, rank));
}

static void gather_heap(enum rank_tier tier, int turn, struct kinetic_node *root)
{
    size_t n = 0;
    for (push(root, &n); n > 0;) {
        struct kinetic_node *node = victims.stack[--n];
        push(node->left, &n);
        push(node->right, &n);
        if (turn != ANY_TURN && node->turn != turn)
            continue;
        victims.found = sim_reserve((void *)victims.found, &victims.found_capacity, victims.n_found,
                                    sizeof(struct span *));
        victims.found[victims.n_found++] = span_of(tier, node);
    }
}

static void gather(const struct index *ix, enum rank_tier tier, int turn)
{
    victims.n_found = 0;
    for (uint32_t i = 0; i < ix->accounts.n_slots; i++)
        if (ix->accounts.slot[i])
            gather_heap(tier, turn, ix->accounts.slot[i]->heads[tier].heap.root);
}

/* ---- what they are worth ----------------------------------------------------------------------------- */

/* Pages up to the last one that would go. */
static uint32_t pages_of(const struct index *ix, enum rank_tier tier, const struct span *sp)
{
    return tier == RANK_DEVICE ? ranks_pages_to_unused(ix, sp) : sp->n_pages;
}

/* Tokens up to its end. */
static uint32_t end_of(const struct index *ix, enum rank_tier tier, const struct span *sp)
{
    return sp->kind == SPAN_CHECKPOINT ? sp->first_position
                                       : sp->first_position + pages_of(ix, tier, sp) * ix->page_tokens;
}

static uint32_t node_of(const struct index *ix, enum rank_tier tier, const struct span *sp)
{
    uint32_t n = sp->kind == SPAN_CHECKPOINT ? 1 : pages_of(ix, tier, sp);
    return sp->ids[n * ix->page_tokens - 1];
}

static double greedy_dual(const struct index *ix, enum rank_tier tier, const struct span *sp)
{
    const struct credit *c = &victims.credit[node_of(ix, tier, sp)];
    uint32_t end = end_of(ix, tier, sp),
             before = tier == RANK_DEVICE ? end - ix->page_tokens : sp->first_position;
    double blocks = tier == RANK_DEVICE ? 1 : (double)sp->disk_bytes / (double)ix->arena->stride;
    if (sp->kind == SPAN_CHECKPOINT) {
        const struct span *shallower = ranks_checkpoint_before(sp);
        before = shallower ? shallower->first_position : 0;
        blocks = tier == RANK_DEVICE ? sp->n_pages : blocks;
        if (sp->parent->useful_depth <= 2 * (sp->parent_ordinal + 1)) /* the end of a path */
            blocks += (double)(end - before) / ix->page_tokens;
    }
    return c->floor + c->uses * (sim_prefill_s(end) - sim_prefill_s(before)) / blocks;
}

static bool has_own_values(void)
{
    return victims.policy != SIM_STORE && victims.policy != SIM_EXACT;
}

static bool is_by_worth(unsigned turn)
{
    return evict_by_worth((enum evict_turn)turn);
}

/* The least goes, of equals the oldest. */
static float value_of(enum rank_tier tier, const struct span *sp)
{
    uint32_t next;
    switch (victims.policy) {
    case SIM_GDSF:
        return (float)greedy_dual(victims.ix, tier, sp);
    case SIM_FUTURE:
        next = sim_uses_next(victims.uses, node_of(victims.ix, tier, sp), victims.now);
        return (float)(FARTHEST - (next < FARTHEST ? next : FARTHEST));
    default:
        return 1;
    }
}

static void take_value(const struct kinetic_heap *h, struct kinetic_node *x)
{
    if (!has_own_values() || h->of_members || !is_by_worth(x->turn))
        return;
    for (int t = 0; t < RANK_TIERS; t++)
        if (h == &span_of((enum rank_tier)t, x)->account->heads[t].heap)
            x->value = value_of((enum rank_tier)t, span_of((enum rank_tier)t, x));
}

void __wrap_kinetic_insert(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    take_value(h, x);
    __real_kinetic_insert(h, x, now);
}

void __wrap_kinetic_changed(struct kinetic_heap *h, struct kinetic_node *x, uint64_t now)
{
    take_value(h, x);
    __real_kinetic_changed(h, x, now);
}

/* To the others a path that goes on is as old as it is. */
bool __wrap_evict_oldest_before(const struct evict_facts *a, const struct evict_facts *b)
{
    struct evict_facts plain_a = *a, plain_b = *b;
    if (has_own_values())
        plain_a.continues = plain_b.continues = false;
    return __real_evict_oldest_before(&plain_a, &plain_b);
}

int __wrap_worth_compare(float a, int64_t age_a_us, float b, int64_t age_b_us)
{
    return has_own_values() ? (a > b) - (a < b) : __real_worth_compare(a, age_a_us, b, age_b_us);
}

uint64_t __wrap_worth_stays_us(float a, int64_t age_a_us, float b, int64_t age_b_us)
{
    return has_own_values() ? UINT64_MAX : __real_worth_stays_us(a, age_a_us, b, age_b_us);
}

/* Whose next use has come is put where the one after it belongs. */
static void pass_uses(void)
{
    for (int t = 0; t < RANK_TIERS; t++) {
        gather(victims.ix, (enum rank_tier)t, ANY_TURN);
        for (size_t i = 0; i < victims.n_found; i++) {
            const struct kinetic_node *node = &victims.found[i]->rank[t];
            if (is_by_worth(node->turn) && FARTHEST - node->value <= victims.now)
                ranks_update_locked(victims.ix, victims.found[i]);
        }
    }
}

/* What the request has used is put there again. */
static void credit_path(const struct cs_sequence *q)
{
    uint32_t ordinal = q->place_ordinal;
    for (struct span *at = q->place; at; ordinal = at->parent_ordinal, at = at->parent) {
        ranks_update_locked(victims.ix, at);
        for (struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            if (c->parent_ordinal <= ordinal)
                ranks_update_locked(victims.ix, c);
    }
}

static struct span *least(enum rank_tier tier, unsigned turn)
{
    uint64_t now = index_now(victims.ix);
    struct span *best = NULL;
    gather(victims.ix, tier, (int)turn);
    for (size_t i = 0; i < victims.n_found; i++) {
        struct span *sp = victims.found[i];
        if (!best || kinetic_before(&sp->rank[tier], &sp->age, &best->rank[tier], &best->age, now))
            best = sp;
    }
    return best;
}

struct span *__wrap_ranks_victim_locked(struct index *ix, enum rank_tier tier, const struct account *of)
{
    struct span *best = NULL;
    if (victims.policy == SIM_EXACT) {
        uint64_t now = index_now(ix);
        ix->last_tick = ix->last_tick < now ? now : ix->last_tick; /* as the store does */
        gather(ix, tier, ANY_TURN);
        for (size_t i = 0; i < victims.n_found; i++)
            ranks_update_locked(ix, victims.found[i]);
    }
    const struct kinetic_node *first = ix->ranks[tier].root; /* turns do not change with time */
    if (victims.policy == SIM_EXACT && first && is_by_worth(first->turn))
        best = least(tier, first->turn);
    else
        best = __real_ranks_victim_locked(ix, tier, of);
    if (best && victims.policy == SIM_GDSF && is_by_worth(best->rank[tier].turn))
        victims.floor = best->rank[tier].value;
    victims.n_victims += best != NULL;
    return best;
}

/* ---- uses -------------------------------------------------------------------------------------------- */

void sim_victims_store(struct index *ix)
{
    victims.ix = ix;
}

void sim_victims_begin(const struct sim_trace *t, const struct sim_setup *setup)
{
    victims.policy = setup->policy;
    victims.uses = setup->uses;
    victims.stateful = setup->state_bytes > 0;
    victims.now = 0;
    victims.n_victims = 0;
    victims.floor = 0;
    if (setup->policy == SIM_GDSF) {
        victims.credit = calloc(t->n_nodes, sizeof *victims.credit);
        if (!victims.credit)
            sim_die("out of memory");
    }
}

static void use(uint32_t node, bool again)
{
    struct credit *c = &victims.credit[node];
    c->uses = again ? c->uses + 1 : 1;
    c->floor = victims.floor;
}

/* Pages are used by who has them, a checkpoint by who resumes there. */
void sim_victims_hit(const struct cs_sequence *q, uint32_t now, const struct sim_chain *chain,
                     uint32_t reused)
{
    victims.now = now;
    if (victims.policy == SIM_FUTURE && victims.stateful)
        pass_uses(); /* else the request uses what lies on its path */
    if (victims.policy != SIM_GDSF || reused == 0)
        return;
    if (victims.stateful) {
        use(chain->ids[reused - 1], true);
        credit_path(q);
        return;
    }
    for (size_t i = 0; i < chain->n && (i == 0 || chain->end[i - 1] < reused); i++)
        use(chain->node[i], true);
}

void sim_victims_published(const struct cs_sequence *q, const struct sim_chain *chain, uint32_t reused)
{
    if (victims.policy == SIM_FUTURE && !victims.stateful)
        credit_path(q);
    if (victims.policy != SIM_GDSF)
        return;
    for (size_t i = chain->n; i-- > 0 && chain->end[i] > reused;)
        if (i == 0 || chain->end[i - 1] >= reused)
            use(chain->node[i], false);
    credit_path(q);
}

uint64_t sim_victims_end(void)
{
    free(victims.credit);
    victims.credit = NULL;
    free((void *)victims.found);
    free((void *)victims.stack);
    victims.found = NULL;
    victims.stack = NULL;
    victims.found_capacity = victims.stack_capacity = 0;
    return victims.n_victims;
}
