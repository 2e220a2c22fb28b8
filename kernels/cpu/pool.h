/*
 * Fork-join pool of the CPU backend. One owner thread submits; workers claim item numbers from a counter.
 * A worker that arrives late finds the gate closed and is not waited for, so a descheduled worker never
 * holds up a join.
 */
#ifndef ISOTHERM_KERNELS_CPU_POOL_H
#define ISOTHERM_KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

struct kn_pool;
/* threads counts the owner: threads - 1 workers are started. KN_OK, KN_ENOMEM (no memory or no thread). */
int kn_pool_open(unsigned threads, struct kn_pool **out);
void kn_pool_close(struct kn_pool *p);
/* fn(arg, i, worker) for i in 0..n-1, any order; worker in 0..threads-1 is unique among those running at one
 * time. Returns when all are done. Owner thread only; fn must not call it. */
void kn_pool_run(struct kn_pool *p, size_t n, void (*fn)(void *arg, size_t i, unsigned worker), void *arg);
/* Memory that a thread will read next: asked for while it waits for others, from `at` on. */
struct kn_stretch {
    const uint8_t *at;
    size_t bytes;
};

/* The same; each thread takes items side by side as long as there are any, of which it alone began the run,
 * so that what it asks of memory ahead is what it needs next. next: what the thread will read in the job
 * after this one; NULL: nothing is known. */
void kn_pool_run_apart(struct kn_pool *p, size_t n, void (*fn)(void *arg, size_t i, unsigned worker),
                       struct kn_stretch (*next)(void *arg, unsigned worker), void *arg);
/* Items [from, to) of n are those that `worker` begins with there. */
void kn_pool_items_apart(const struct kn_pool *p, size_t n, unsigned worker, size_t *from, size_t *to);
/* Asks for up to `bytes` of a stretch and moves on. */
void kn_stretch_ask(struct kn_stretch *s, size_t bytes);

#endif
