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
 * What is worth nothing goes first in all of them, and what goes when nothing else is left goes last.
 */
#include "bench/policy_sim.h"
#include "cachestore/index.h"
#include "cachestore/policy/evict.h"

#include <stddef.h>
#include <stdlib.h>

struct span *__real_ranks_victim_locked(struct index *ix, enum rank_tier tier, struct account *of);
struct span *__wrap_ranks_victim_locked(struct index *ix, enum rank_tier tier, struct account *of);

#define ANY_TURN (-1)

struct credit {
    double floor; /* L when it was last used */
    uint32_t uses;
};

static struct {
    enum sim_policy policy;
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
        victims.found[victims.n_found++] =
            (struct span *)(void *)((char *)(node - tier) - offsetof(struct span, rank));
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

/* The least goes. */
static double worth_of(const struct index *ix, enum rank_tier tier, const struct span *sp, uint64_t now_us)
{
    uint64_t age = now_us > sp->last_used ? now_us - sp->last_used : 0;
    switch (victims.policy) {
    case SIM_GDSF:
        return greedy_dual(ix, tier, sp);
    case SIM_FUTURE:
        return -(double)sim_uses_next(victims.uses, node_of(ix, tier, sp), victims.now);
    default:
        return -(double)age;
    }
}

/* The exact choice has no worth of its own: it compares. */
static bool goes_before(enum rank_tier tier, const struct span *a, double worth_a, const struct span *b,
                        double worth_b, uint64_t now_us)
{
    if (victims.policy == SIM_EXACT)
        return kinetic_before(&a->rank[tier], &a->age, &b->rank[tier], &b->age, now_us);
    return worth_a != worth_b ? worth_a < worth_b : evict_oldest_before(&a->age, &b->age);
}

static struct span *least(const struct index *ix, enum rank_tier tier)
{
    uint64_t now = index_now(ix);
    struct span *best = NULL;
    double best_worth = 0;
    for (size_t i = 0; i < victims.n_found; i++) {
        struct span *sp = victims.found[i];
        double worth = victims.policy == SIM_EXACT ? 0 : worth_of(ix, tier, sp, now);
        if (!best || goes_before(tier, sp, worth, best, best_worth, now)) {
            best = sp;
            best_worth = worth;
        }
    }
    if (best && victims.policy == SIM_GDSF)
        victims.floor = best_worth;
    return best;
}

static bool is_by_worth(unsigned turn)
{
    return turn == RANK_SAFE || turn == RANK_UNSAFE || turn == RANK_WAITING;
}

struct span *__wrap_ranks_victim_locked(struct index *ix, enum rank_tier tier, struct account *of)
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
    if (victims.policy != SIM_STORE && first && is_by_worth(first->turn)) {
        gather(ix, tier, first->turn);
        best = least(ix, tier);
    } else {
        best = __real_ranks_victim_locked(ix, tier, of);
    }
    victims.n_victims += best != NULL;
    return best;
}

/* ---- uses -------------------------------------------------------------------------------------------- */

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
void sim_victims_hit(uint32_t now, const struct sim_chain *chain, uint32_t reused)
{
    victims.now = now;
    if (victims.policy != SIM_GDSF || reused == 0)
        return;
    if (victims.stateful) {
        use(chain->ids[reused - 1], true);
        return;
    }
    for (size_t i = 0; i < chain->n && (i == 0 || chain->end[i - 1] < reused); i++)
        use(chain->node[i], true);
}

void sim_victims_published(const struct sim_chain *chain, uint32_t reused)
{
    if (victims.policy != SIM_GDSF)
        return;
    for (size_t i = chain->n; i-- > 0 && chain->end[i] > reused;)
        if (i == 0 || chain->end[i - 1] >= reused)
            use(chain->node[i], false);
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
