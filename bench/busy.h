/* The real kernels as a load: a thread that prefills prompts of a model, one after another, until it is told
 * to stop. One at a time. */
#ifndef ISOTHERM_BENCH_BUSY_H
#define ISOTHERM_BENCH_BUSY_H

#include <stdint.h>

/* Loads the model for so many compute threads. 0, or -1 and a line on stderr. */
int busy_open(const char *model, unsigned threads);
void busy_close(void);
/* It computes from now on, or rests. */
void busy_run(int on);
/* Tokens computed so far. */
uint64_t busy_tokens(void);

#endif
