/*
 * How long a restore is waited for, and what is used when that time has passed. Pure functions over facts
 * they are given.
 *
 * The moment is three times as far away as was predicted, and never closer than a floor, for a prediction is
 * a line through what the same disk did before, and nothing is gained by giving up what is about to come. It
 * counts from the moment the request was queued. Behind it the verified part is used: of pages what has
 * landed before the first that has not; of checkpoints the one that was wanted, else the one that was held in
 * case it would not come, else whichever is there.
 */
#ifndef ISOTHERM_CACHESTORE_POLICY_DEADLINE_H
#define ISOTHERM_CACHESTORE_POLICY_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

/* The moment; 0: none, as the floor is 0. predicted_us 0: nothing is known. */
uint64_t deadline_ns(uint64_t queued_ns, double predicted_us, uint32_t floor_ms);
/* It has passed. */
bool deadline_is_past(uint64_t deadline_ns, uint64_t now_ns);

enum deadline_state { DEADLINE_WANTED, DEADLINE_HELD, DEADLINE_ANY_THERE };
/* The checkpoint to resume at where the first `there` tokens of the path have landed. wanted, held: their
 * positions, 0: there is none; landed: the wanted one is there. */
enum deadline_state deadline_resume(uint32_t wanted, bool landed, uint32_t held, uint32_t there);

#endif
