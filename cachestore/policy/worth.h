/*
 * What bytes in a tier are worth: pure functions over facts they are given.
 *
 *     U = w * time to compute again what they save / (blocks freed * (age + 10 s))
 *
 * with w = 1 for the end of a path, 0.2 behind the system message, where many paths go on, 0.03 for any other
 * checkpoint on the way. How soon somebody comes back is about 1 / (age + 5 to 35 s) in real sessions; these
 * figures kept most in bench/policy-sim (docs/decisions.md). What would cost nothing to lose is worth
 * nothing.
 *
 * Pages of a model without state count by tokens, whatever lies before them: with time, long prompts that
 * nobody asks for again took more room than they were worth.
 *
 * Time is that of tokens from one position to another, T(to) - T(from) with T(n) = a n + c n^2, in units of
 * a, as only proportions matter; where nothing is known of a and c, every token takes the same.
 *
 * U of everything falls with time. Of two candidates, the one whose w * time / blocks is greater is worth
 * more when it is young enough, and once it is worth less it stays so: their order changes once at most, at a
 * moment that is known (cachestore/kinetic.h makes use of it). Orders are found by multiplying crosswise, so
 * that equals are equal.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_WORTH_H
#define ISOTHERM_CACHESTORE_POLICY_WORTH_H

#include <stdint.h>

enum worth_role {
    WORTH_LEAF,     /* nothing stored goes on behind it */
    WORTH_SHARED,   /* the system boundary */
    WORTH_INTERIOR, /* any other */
    WORTH_PAGES,    /* pages of a model without state, which resumes behind any of them */
};

/* Of a token, and of a token squared. */
struct worth_costs {
    double linear, quadratic;
};

struct worth_facts {
    uint32_t from, to; /* tokens before the next shallower position to resume at, and before this one */
    double blocks_freed;
    enum worth_role role;
};

/* In units of the linear part; both 0: nothing is known. */
struct worth_costs worth_costs_of(double linear, double quadratic);
/* w * time / blocks; 0: worth nothing. */
double worth_value(const struct worth_costs *costs, const struct worth_facts *facts);
/* Of values greater than 0. Less than 0: a is worth less than b; 0: the same. Lines are lines before they
 * begin as well, so an age may be less than 0. */
int worth_compare(float a, int64_t age_a_us, float b, int64_t age_b_us);
/* a is worth no more than b now: at least so long, 1 us or more, that stays so. UINT64_MAX: for ever. */
uint64_t worth_stays_us(float a, int64_t age_a_us, float b, int64_t age_b_us);

#endif
