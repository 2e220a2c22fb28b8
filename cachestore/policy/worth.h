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
 * Time is that of tokens from one position to another, T(to) - T(from) with T(n) = a n + c n^2, in units of
 * a, as only proportions matter; where nothing is known of a and c, every token takes the same.
 *
 * U of everything changes with time, so candidates are kept in classes of about equal w * time / blocks, a
 * sixth of an octave each, by age in each: the least worthy is the least of their oldest.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_WORTH_H
#define ISOTHERM_CACHESTORE_POLICY_WORTH_H

#include <stdint.h>

enum worth_role {
    WORTH_LEAF,     /* nothing stored goes on behind it */
    WORTH_SHARED,   /* the system boundary */
    WORTH_INTERIOR, /* any other */
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

enum {
    WORTH_CLASS_NOTHING = 0,
    WORTH_CLASS_LAST = 127, /* for candidates that go when no other is left */
    WORTH_CLASSES = 128
};

/* In units of the linear part; both 0: nothing is known. */
struct worth_costs worth_costs_of(double linear, double quadratic);
/* w * time / blocks; 0: worth nothing. */
double worth_value(const struct worth_costs *costs, const struct worth_facts *facts);
/* 1 to 126, a sixth of an octave of value each; 0 for a value of 0. */
unsigned worth_class(double value);
/* U. */
double worth_now(double value, uint64_t age_us);

#endif
