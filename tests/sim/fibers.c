/*
 * Threads as coroutines on one real thread. Every lock taken, wait, wake-up and simulated call is a point
 * where somebody else may run; who does is drawn from the seed. Time is a number that each step moves on a
 * little, and that jumps to the next timer when nobody can run.
 *
 * A mutex is its owner's number in the first word of the pthread_mutex_t, a condition the clock of its
 * time-outs in the first of the pthread_cond_t: who waits for either says so in its fiber. Waits end for no
 * reason now and then, as POSIX allows.
 */
#include "tests/sim/sim.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

enum { N_FIBERS = 48, STACK_BYTES = 512 << 10, STEPS_MAX = 4000000 };
enum fiber_state { FIBER_NONE, FIBER_READY, FIBER_WAITING, FIBER_ENDED };

struct fiber {
    enum fiber_state state;
    uint32_t priority;
    const void *waits_for;
    uint64_t until_ns;
    bool timed_out, alone, spared;
    int saved_errno;
    void *(*fn)(void *arg);
    void *arg, *result;
    char *stack;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
};

bool fibers_wait_for_disk;

static struct fiber fibers[N_FIBERS];
static uint32_t n_fibers; /* slots in use or used before */
static struct fiber *running;
static uint64_t steps, kill_step;
static bool by_priority;
static uint32_t switch_odds; /* of 256, where nothing has to be waited for */

/* ---- switching --------------------------------------------------------------------------------------- */

#ifdef __x86_64__
static void *main_sp;
void fibers_switch(void **save, void *to);
/* Not swapcontext: that makes a system call. */
__asm__(".text\n.globl fibers_switch\n.type fibers_switch,@function\nfibers_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size fibers_switch,.-fibers_switch\n");
#else
static ucontext_t main_context;
#endif

#if defined(__SANITIZE_ADDRESS__)
static const void *main_stack;
static size_t main_stack_bytes;
#endif

static void to_main(bool for_good)
{
    struct fiber *f = running;
    f->saved_errno = errno;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(for_good ? NULL : &fake, main_stack, main_stack_bytes);
#endif
    (void)for_good;
#ifdef __x86_64__
    fibers_switch(&f->sp, main_sp);
#else
    swapcontext(&f->context, &main_context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &main_stack, &main_stack_bytes);
#endif
    errno = f->saved_errno;
}

static void to_fiber(struct fiber *f)
{
    running = f;
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
#ifdef __x86_64__
    fibers_switch(&main_sp, f->sp);
#else
    swapcontext(&main_context, &f->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
    running = NULL;
}

static void fiber_main(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &main_stack, &main_stack_bytes);
#endif
    struct fiber *f = running;
    f->result = f->fn(f->arg);
    f->state = f->alone ? FIBER_NONE : FIBER_ENDED;
    fibers_wake(f);
    to_main(true);
    __builtin_unreachable();
}

static struct fiber *fiber_new(void *(*fn)(void *arg), void *arg)
{
    uint32_t i = 0;
    while (i < N_FIBERS && fibers[i].state != FIBER_NONE)
        i++;
    if (i == N_FIBERS)
        return NULL;
    struct fiber *f = &fibers[i];
    char *stack = f->stack;
    if (stack == NULL) {
        stack = __real_mmap(NULL, STACK_BYTES + SECTOR, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (stack == MAP_FAILED)
            sim_fail("no memory for a stack");
        mprotect(stack, SECTOR, PROT_NONE);
        stack += SECTOR;
    }
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, STACK_BYTES); /* whoever used it before may have been killed */
#endif
    *f = (struct fiber){.state = FIBER_READY,
                        .fn = fn,
                        .arg = arg,
                        .stack = stack,
                        .priority = (uint32_t)sim_next(&sim.random_schedule)};
#ifdef __x86_64__
    void **top = (void **)(stack + STACK_BYTES) - 1; /* as after a call */
    *--top = (void *)(uintptr_t)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->context, fiber_main, 0);
#endif
    if (i >= n_fibers)
        n_fibers = i + 1;
    return f;
}

bool fibers_start(void *(*fn)(void *arg))
{
    struct fiber *f = fiber_new(fn, NULL);
    if (f != NULL)
        f->alone = true;
    return f != NULL;
}

/* ---- who runs next ----------------------------------------------------------------------------------- */

/* NULL: nobody can run, and no timer will change that. */
static struct fiber *pick(void)
{
    struct fiber *ready[N_FIBERS];
    for (;;) {
        uint32_t n = 0;
        uint64_t next = UINT64_MAX;
        struct fiber *first = NULL;
        for (uint32_t i = 0; i < n_fibers; i++) {
            struct fiber *f = &fibers[i];
            if (f->state == FIBER_WAITING && f->until_ns <= sim.now_ns) {
                f->state = FIBER_READY;
                f->timed_out = true;
            }
            if (f->state == FIBER_READY) {
                ready[n++] = f;
                if (first == NULL || f->priority > first->priority)
                    first = f;
            } else if (f->state == FIBER_WAITING && f->until_ns < next) {
                next = f->until_ns;
            }
        }
        if (n == 1)
            return ready[0];
        if (n > 1 && by_priority) {
            if (sim_below(&sim.random_schedule, 32) == 0)
                first->priority = (uint32_t)sim_next(&sim.random_schedule);
            return first;
        }
        if (n > 1)
            return ready[sim_below(&sim.random_schedule, n)];
        if (next == UINT64_MAX)
            return NULL;
        sim.now_ns = next;
    }
}

enum sim_end fibers_run(void *(*fn)(void *arg), void *arg, uint64_t kill_at)
{
    static const uint8_t odds[] = {0, 4, 16, 64};
    for (uint32_t i = 0; i < n_fibers; i++)
        fibers[i].state = FIBER_NONE;
    n_fibers = 0;
    steps = 0;
    kill_step = kill_at;
    fibers_wait_for_disk = false;
    by_priority = sim_below(&sim.random_schedule, 2) == 0;
    switch_odds = odds[sim_below(&sim.random_schedule, 4)];
    struct fiber *first = fiber_new(fn, arg);
    enum sim_end end = SIM_KILLED;
    while (steps != kill_step || kill_step == 0) {
        struct fiber *f = pick();
        if (f == NULL) {
            bool left = false;
            if (fibers_wait_for_disk && engine_is_stuck())
                break; /* somebody will kill it */
            for (uint32_t i = 0; i < n_fibers; i++)
                left = left || fibers[i].state == FIBER_WAITING;
            if (left)
                sim_fail("HANG: %s waits for something that will never come",
                         first->state == FIBER_WAITING ? "the first thread" : "a thread that is left");
            end = SIM_RETURNED;
            break;
        }
        if (++steps > STEPS_MAX)
            sim_fail("HANG: %u steps, and no end", STEPS_MAX);
        sim.now_ns += 50 + sim_below(&sim.random_schedule, 2000);
        sim_note((uint64_t)(f - fibers) << 40 ^ sim.now_ns);
        to_fiber(f);
    }
    sim_count(COUNT_steps, steps);
    if (end == SIM_RETURNED) {
        for (uint32_t i = 0; i < n_fibers; i++)
            if (fibers[i].state == FIBER_ENDED && &fibers[i] != first)
                sim_fail("a thread has ended and nobody has joined it");
    }
    running = NULL;
    return end;
}

void fibers_kill_soon(void)
{
    kill_step = steps;
    fibers_yield();
}

void fibers_spare(bool spared)
{
    running->spared = spared;
}

bool fibers_is_spared(void)
{
    return running == NULL || running->spared;
}

uint32_t fibers_number(void)
{
    return running != NULL ? (uint32_t)(running - fibers) : N_FIBERS;
}

void fibers_yield(void)
{
    if (running != NULL) /* it stays ready */
        to_main(false);
}

static void maybe_yield(void)
{
    if (switch_odds > 0 && (sim_next(&sim.random_schedule) >> 40 & 255) < switch_odds)
        fibers_yield();
}

bool fibers_wait(const void *what, uint64_t until_ns)
{
    struct fiber *f = running;
    if (f == NULL)
        sim_fail("the test itself would wait");
    f->state = FIBER_WAITING;
    f->waits_for = what;
    f->until_ns = until_ns;
    f->timed_out = false;
    to_main(false);
    f->waits_for = NULL;
    return !f->timed_out;
}

static void make_ready(struct fiber *f)
{
    f->state = FIBER_READY;
    f->timed_out = false;
}

void fibers_wake(const void *what)
{
    for (uint32_t i = 0; i < n_fibers; i++)
        if (fibers[i].state == FIBER_WAITING && fibers[i].waits_for == what)
            make_ready(&fibers[i]);
}

void fibers_sleep(uint64_t ns)
{
    static const char nothing;
    (void)fibers_wait(&nothing, sim.now_ns + ns);
}

/* ---- locks ------------------------------------------------------------------------------------------- */

static uint32_t *owner_of(const void *m)
{
    return (uint32_t *)(uintptr_t)m;
}

bool fibers_mutex_is_free(const void *mutex)
{
    return *owner_of(mutex) == 0;
}

static uint32_t own_number(void)
{
    return fibers_number() + 1;
}

static void mutex_take(void *m)
{
    uint32_t *owner = owner_of(m);
    if (*owner == own_number())
        sim_fail("a thread takes a lock that it has");
    while (*owner != 0)
        (void)fibers_wait(m, UINT64_MAX);
    *owner = own_number();
}

static void mutex_leave(void *m)
{
    uint32_t *owner = owner_of(m);
    if (*owner != own_number())
        sim_fail("a thread gives up a lock that it does not have");
    *owner = 0;
    fibers_wake(m);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
    (void)attr;
    memset(m, 0, sizeof *m);
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m)
{
    if (*owner_of(m) != 0)
        sim_fail("a lock is destroyed while somebody has it");
    memset(m, 0xff, sizeof *m);
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    maybe_yield();
    mutex_take(m);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
    maybe_yield();
    if (*owner_of(m) != 0)
        return EBUSY;
    mutex_take(m);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    mutex_leave(m);
    maybe_yield();
    return 0;
}

/* ---- conditions -------------------------------------------------------------------------------------- */

int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attr)
{
    clockid_t clock = CLOCK_REALTIME;
    if (attr != NULL)
        pthread_condattr_getclock(attr, &clock);
    memset(c, 0, sizeof *c);
    memcpy(c, &clock, sizeof clock);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *c);
int __wrap_pthread_cond_destroy(pthread_cond_t *c)
{
    for (uint32_t i = 0; i < n_fibers; i++)
        if (fibers[i].state == FIBER_WAITING && fibers[i].waits_for == c)
            sim_fail("a condition is destroyed while somebody waits for it");
    memset(c, 0xff, sizeof *c);
    return 0;
}

static int cond_wait(pthread_cond_t *c, pthread_mutex_t *m, uint64_t until_ns)
{
    uint64_t until = until_ns;
    bool for_nothing = sim_below(&sim.random_schedule, 64) == 0;
    if (for_nothing && sim.now_ns + 30000 < until)
        until = sim.now_ns + 30000;
    mutex_leave(m);
    bool woken = fibers_wait(c, until);
    mutex_take(m);
    return woken || sim.now_ns < until_ns ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    (void)cond_wait(c, m, UINT64_MAX);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until)
{
    clockid_t clock;
    memcpy(&clock, c, sizeof clock);
    if (until->tv_nsec < 0 || until->tv_nsec >= 1000000000)
        sim_fail("a time with %ld nanoseconds", until->tv_nsec);
    uint64_t ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    if (clock == CLOCK_REALTIME)
        ns = ns > sim.real_offset_ns ? ns - sim.real_offset_ns : 0;
    return cond_wait(c, m, ns);
}

int __wrap_pthread_cond_signal(pthread_cond_t *c);
int __wrap_pthread_cond_signal(pthread_cond_t *c)
{
    struct fiber *waiting[N_FIBERS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_fibers; i++)
        if (fibers[i].state == FIBER_WAITING && fibers[i].waits_for == c)
            waiting[n++] = &fibers[i];
    if (n > 0)
        make_ready(waiting[n == 1 ? 0 : sim_below(&sim.random_schedule, n)]);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
    fibers_wake(c);
    return 0;
}

/* ---- threads ----------------------------------------------------------------------------------------- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *arg), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *arg), void *arg)
{
    (void)attr;
    if (sim_fault(FAULT_call_error))
        return EAGAIN;
    struct fiber *f = fiber_new(fn, arg);
    if (f == NULL)
        return EAGAIN;
    *thread = (pthread_t)(f - fibers) + 1;
    maybe_yield();
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    if (thread == 0 || thread > n_fibers || fibers[thread - 1].state == FIBER_NONE)
        sim_fail("a thread is joined that does not exist");
    struct fiber *f = &fibers[thread - 1];
    while (f->state != FIBER_ENDED)
        (void)fibers_wait(f, UINT64_MAX);
    if (result != NULL)
        *result = f->result;
    f->state = FIBER_NONE;
    return 0;
}

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    (void)how;
    (void)set;
    if (before != NULL)
        memset(before, 0, sizeof *before);
    return 0;
}

/* ---- time -------------------------------------------------------------------------------------------- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock == CLOCK_REALTIME && sim_fault(FAULT_clock_jump)) {
        /* Hours to and fro, and years ahead. */
        const uint64_t hour = 3600ull * 1000000000u;
        uint32_t what = sim_below(&sim.random_faults, 4);
        sim.real_offset_ns += what == 0 ? 10000 * hour : what < 3 ? hour : -(2 * hour);
    }
    uint64_t ns = sim.now_ns + (clock == CLOCK_REALTIME ? sim.real_offset_ns : 0);
    out->tv_sec = (time_t)(ns / 1000000000u);
    out->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}

time_t __wrap_time(time_t *out);
time_t __wrap_time(time_t *out)
{
    struct timespec t;
    __wrap_clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL)
        *out = t.tv_sec;
    return t.tv_sec;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    fibers_sleep((uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec);
    return 0;
}

int __wrap_usleep(unsigned us);
int __wrap_usleep(unsigned us)
{
    fibers_sleep(us * 1000ull);
    return 0;
}
