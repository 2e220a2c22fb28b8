/* What the processes of a seed do. */
#ifndef ISOTHERM_TESTS_SIM_LIFE_H
#define ISOTHERM_TESTS_SIM_LIFE_H

#include <stdint.h>

/* One seed from an empty directory to its end. Fails the program where something is wrong. */
void life_run_seed(uint64_t seed);

#endif
