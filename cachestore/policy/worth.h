/*
 * What bytes on the device are worth: pure functions over facts they are given.
 *
 *     U = w * tokens that would have to be computed again / (blocks freed * (age + 10 s))
 *
 * with w = 1 for the end of a path, 0.2 behind the system message, where many paths go on, 0.03 for any other
 * checkpoint on the way. Tokens stand for seconds. How soon somebody comes back is about 1 / (age + 5 to 35
 * s) in real sessions; these figures kept most in bench/policy-sim (docs/decisions.md). What would cost
 * nothing to lose is worth nothing.
 *
 * U of everything changes with time, so candidates are kept in classes of about equal w * tokens / blocks, by
 * age in each: the least worthy is the least of their oldest.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_WORTH_H
#define ISOTHERM_CACHESTORE_POLICY_WORTH_H

#include <stdint.h>

enum worth_role {
    WORTH_LEAF,     /* nothing stored goes on behind it */
    WORTH_SHARED,   /* the system boundary */
    WORTH_INTERIOR, /* any other */
};

struct worth_facts {
    uint64_t tokens_saved; /* over the next shallower position to resume at */
    uint64_t blocks_freed;
    enum worth_role role;
};

enum {
    WORTH_CLASS_NOTHING = 0,
    WORTH_CLASS_LAST = 63, /* for candidates that go when no other is left */
    WORTH_CLASSES = 64
};

/* w * tokens / blocks; 0: worth nothing. */
double worth_value(const struct worth_facts *facts);
/* 1 to 62, half an octave of value each; 0 for a value of 0. */
unsigned worth_class(double value);
/* U. */
double worth_now(double value, uint64_t age_us);

#endif
