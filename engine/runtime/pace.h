/* How many tokens to prefill in a step. Internal to the runtime. */
#ifndef ISOTHERM_ENGINE_RUNTIME_PACE_H
#define ISOTHERM_ENGINE_RUNTIME_PACE_H

#include "engine/runtime/runtime.h"

#define PACE_LEAST_WORK KN_PAGE_TOKENS /* tokens at depth 0 */

struct pace {
    double knee;           /* the depth at which attending costs a token as much as the weights do */
    double unit_seconds;   /* learned: one token of prefill at depth 0 */
    double decode_seconds; /* learned: a step that only decodes */
    bool learned;
    enum eng_policy policy;
    uint32_t fixed_tokens; /* not 0: this many tokens a step, whatever they cost */
};

void pace_init(struct pace *p, const struct eng_model_desc *d, enum eng_policy policy, uint32_t fixed_tokens);
/* What a step may spend on prefill, in seconds, or in tokens when fixed. The scheduler gives the oldest
 * prompt pace_least tokens in any case. */
double pace_budget(const struct pace *p, bool others_decode);
/* The tokens, at most `want`, that fit into `budget` when they start at pos; *cost is what they take of it.
 */
uint32_t pace_tokens(const struct pace *p, double budget, uint32_t pos, uint32_t want, double *cost);
/* The fewest tokens worth a step at pos. With less work the weights, which are read all the same, would cost
 * more than the tokens; and a pace that was learned too slow can be corrected only by chunks that tell
 * something. */
uint32_t pace_least(const struct pace *p, uint32_t pos);
/* The relative work of n tokens at pos: what pace_learn sums over a step. */
double pace_work(const struct pace *p, uint32_t pos, uint32_t n);
/* A step with that much prefill work and n_decode decoding sequences took so long. */
void pace_learn(struct pace *p, double work, uint32_t n_decode, double seconds);

#endif
