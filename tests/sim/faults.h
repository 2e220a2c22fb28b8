/* What goes wrong in a seed. */
#ifndef ISOTHERM_TESTS_SIM_FAULTS_H
#define ISOTHERM_TESTS_SIM_FAULTS_H

#include <stdint.h>

void faults_reset(void); /* a new seed */
/* Draws its odds; where requests are late or never end, a deadline of restores, or none. */
void faults_plan(uint32_t *restore_deadline_ms);
/* Damage between two processes. */
void faults_between(void);

#endif
