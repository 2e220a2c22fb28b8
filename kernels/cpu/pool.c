/*
 * Fork-join pool: see pool.h.
 *
 * DESIGN. `gate` is one 64-bit word: the epoch (number of the job) in the upper half, an open bit, and the
 * number of workers that joined. Joining is a compare-and-swap on an open gate, so no worker touches a job's
 * fields after the owner has closed the gate, unless it joined; the owner waits for `left` to reach the
 * number that joined. Waiting, on both sides, is a spin of about SPIN_NS and then a futex, so an idle pool
 * costs nothing and more threads than processors only cost switches.
 *
 *   worker: wait for a new epoch -> join (gate open) -> claim items -> left++ -> wait
 *   owner:  set fields, left = 0 -> open gate, wake sleepers -> claim items -> close gate -> wait for left
 *
 * Items lie in lanes, each with its own counter. Everybody begins with the lane of its number and, when that
 * is empty, goes on with the others', so nobody idles while there is work, whoever came. Who waits asks
 * memory for the beginning of what it will read in the next job, as far as that is known: a stretch of its
 * own, copied before the join, so that nothing is read that the owner may be changing.
 */
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS    50000
#define GATE_OPEN  (1ull << 31)
#define EPOCH(g)   ((uint32_t)((g) >> 32))
#define JOINED(g)  ((uint32_t)((g) & (GATE_OPEN - 1)))
#define CACHE_LINE 64
#define ASK_BYTES  256 /* a turn of a wait: no more than memory gives meanwhile */

struct worker {
    struct kn_pool *pool;
    pthread_t thread;
    unsigned number;
};

struct lane {
    _Alignas(CACHE_LINE) _Atomic size_t next;
    size_t end;
};

struct kn_pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t gate;
    _Atomic uint32_t bell; /* futex word of sleeping workers: the epoch, as a 32-bit copy */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Alignas(CACHE_LINE) _Atomic uint32_t left; /* futex word of the owner */
    _Atomic uint32_t owner_sleeps;
    _Alignas(CACHE_LINE) struct lane *lanes; /* threads of them */
    unsigned n_lanes;                        /* of this job */
    void (*fn)(void *arg, size_t i, unsigned worker);
    struct kn_stretch (*next)(void *arg, unsigned worker);
    void *arg;
    unsigned threads, started;
    struct worker *workers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* One turn of a spin; false when the time is up. The clock is read every 16th turn only. */
static bool spin(uint64_t *deadline, unsigned *turns)
{
    pause_cpu();
    if ((++*turns & 15) != 0)
        return true;
    uint64_t now = now_ns();
    if (*deadline == 0)
        *deadline = now + SPIN_NS;
    return now < *deadline;
}

void kn_stretch_ask(struct kn_stretch *s, size_t bytes)
{
    size_t n = s->bytes < bytes ? s->bytes : bytes;
    for (size_t line = 0; line < n; line += CACHE_LINE)
        __builtin_prefetch(s->at + line);
    s->at += n;
    s->bytes -= n;
}

static struct kn_stretch claim_items(struct kn_pool *p, unsigned worker)
{
    for (unsigned k = 0; k < p->n_lanes; k++) {
        struct lane *lane = &p->lanes[(worker + k) % p->n_lanes];
        while (atomic_load_explicit(&lane->next, memory_order_relaxed) < lane->end) {
            size_t i = atomic_fetch_add_explicit(&lane->next, 1, memory_order_relaxed);
            if (i < lane->end)
                p->fn(p->arg, i, worker);
        }
    }
    return p->next ? p->next(p->arg, worker) : (struct kn_stretch){NULL, 0};
}

/* Wait until the epoch differs from `seen` and return the gate word. */
static uint64_t wait_for_epoch(struct kn_pool *p, uint32_t seen, struct kn_stretch *next)
{
    uint64_t deadline = 0;
    unsigned turns = 0;
    for (;;) {
        uint64_t g = atomic_load_explicit(&p->gate, memory_order_acquire);
        if (EPOCH(g) != seen)
            return g;
        kn_stretch_ask(next, ASK_BYTES);
        if (spin(&deadline, &turns))
            continue;
        /* sequentially consistent with the owner's (bell, sleepers) order: one of the two sees the other */
        atomic_fetch_add(&p->sleepers, 1);
        while (atomic_load(&p->bell) == seen)
            futex_wait(&p->bell, seen);
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct kn_pool *p = w->pool;
    uint32_t seen = 0;
    struct kn_stretch next = {NULL, 0};
    for (;;) {
        uint64_t g = wait_for_epoch(p, seen, &next);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return NULL;
        seen = EPOCH(g);
        bool joined = false;
        while ((g & GATE_OPEN) && EPOCH(g) == seen && !joined)
            joined = atomic_compare_exchange_weak_explicit(&p->gate, &g, g + 1, memory_order_acquire,
                                                           memory_order_acquire);
        if (!joined)
            continue;
        next = claim_items(p, w->number);
        atomic_fetch_add(&p->left, 1);
        if (atomic_load(&p->owner_sleeps))
            futex_wake(&p->left, 1);
    }
}

static void ring_bell(struct kn_pool *p, uint32_t epoch)
{
    atomic_store(&p->bell, epoch);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->bell, INT_MAX);
}

static void wait_for_workers(struct kn_pool *p, uint32_t joined, struct kn_stretch *next)
{
    uint64_t deadline = 0;
    unsigned turns = 0;
    for (;;) {
        if (atomic_load_explicit(&p->left, memory_order_acquire) == joined)
            return;
        kn_stretch_ask(next, ASK_BYTES);
        if (spin(&deadline, &turns))
            continue;
        atomic_store(&p->owner_sleeps, 1);
        uint32_t left = atomic_load(&p->left);
        if (left != joined)
            futex_wait(&p->left, left);
        atomic_store(&p->owner_sleeps, 0);
    }
}

static void run_in_lanes(struct kn_pool *p, unsigned lanes, size_t n,
                         void (*fn)(void *arg, size_t i, unsigned worker),
                         struct kn_stretch (*next)(void *arg, unsigned worker), void *arg)
{
    if (p->started == 0 || n <= 1) {
        for (size_t i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    size_t at = 0;
    for (unsigned k = 0; k < lanes; k++) {
        atomic_store_explicit(&p->lanes[k].next, at, memory_order_relaxed);
        at = n * (k + 1) / lanes;
        p->lanes[k].end = at;
    }
    p->n_lanes = lanes;
    p->fn = fn;
    p->next = next;
    p->arg = arg;
    atomic_store_explicit(&p->left, 0, memory_order_relaxed);
    uint32_t epoch = EPOCH(atomic_load_explicit(&p->gate, memory_order_relaxed)) + 1;
    atomic_store_explicit(&p->gate, (uint64_t)epoch << 32 | GATE_OPEN, memory_order_release);
    ring_bell(p, epoch);
    struct kn_stretch ahead = claim_items(p, 0);
    uint64_t g = atomic_fetch_and_explicit(&p->gate, ~GATE_OPEN, memory_order_acq_rel);
    wait_for_workers(p, JOINED(g), &ahead);
}

void kn_pool_run(struct kn_pool *p, size_t n, void (*fn)(void *arg, size_t i, unsigned worker), void *arg)
{
    run_in_lanes(p, 1, n, fn, NULL, arg);
}

void kn_pool_run_apart(struct kn_pool *p, size_t n, void (*fn)(void *arg, size_t i, unsigned worker),
                       struct kn_stretch (*next)(void *arg, unsigned worker), void *arg)
{
    run_in_lanes(p, p->threads, n, fn, next, arg);
}

void kn_pool_items_apart(const struct kn_pool *p, size_t n, unsigned worker, size_t *from, size_t *to)
{
    *from = n * worker / p->threads;
    *to = n * (worker + 1) / p->threads;
}

void kn_pool_close(struct kn_pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    uint32_t epoch = EPOCH(atomic_load(&p->gate)) + 1;
    atomic_store_explicit(&p->gate, (uint64_t)epoch << 32, memory_order_release);
    ring_bell(p, epoch);
    for (unsigned i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p->lanes);
    free(p);
}

int kn_pool_open(unsigned threads, struct kn_pool **out)
{
    struct kn_pool *p = NULL;
    if (posix_memalign((void **)&p, CACHE_LINE, sizeof *p) != 0)
        return KN_ENOMEM;
    *p = (struct kn_pool){.threads = threads};
    if (threads > 1) {
        p->lanes = aligned_alloc(CACHE_LINE, threads * sizeof *p->lanes);
        p->workers = calloc(threads - 1, sizeof *p->workers);
        if (!p->workers || !p->lanes)
            goto fail;
    }
    /* signals belong to the program's own threads */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (unsigned i = 0; i + 1 < threads && rc == 0; i++) {
        p->workers[i] = (struct worker){.pool = p, .number = i + 1};
        rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (rc == 0)
            p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        goto fail;
    *out = p;
    return KN_OK;
fail:
    kn_pool_close(p);
    return KN_ENOMEM;
}
