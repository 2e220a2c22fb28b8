/*
 * A device whose memory is out of reach (tests/torture/device.h, which the model asks for its bytes): names
 * that are no addresses, memory elsewhere, two threads that copy, batches in any order, now and then one that
 * fails half-way.
 */
#include "tests/sim/sim.h"
#include "tests/torture/device.h"

#include <stdlib.h>
#include <string.h>

enum { N_THREADS = 2, N_BATCHES = 512, FAST_NS = 20000, SLOW_NS = 2000000 };

#define NAMES 0x7000000000ull

static struct {
    struct cs_device device;
    uint8_t *memory;
    uint64_t bytes;
    struct cs_copies *queued[N_BATCHES];
    struct cs_copies *held[N_BATCHES]; /* queued, being copied, or never to end: until done() */
    uint32_t n_queued, n_held;
    bool ending, open, stuck;
    uint32_t n_running;
    uint32_t pace_ns; /* a copy takes up to so long */
} d;

bool copies_are_stuck(void)
{
    return d.stuck;
}

void *device_memory(void *address)
{
    uint64_t a = (uint64_t)(uintptr_t)address;
    return d.memory != NULL && a >= NAMES && a < NAMES + d.bytes ? d.memory + (a - NAMES) : address;
}

static void *reserve(void *ctx, uint64_t bytes)
{
    (void)ctx;
    d.memory = malloc(bytes);
    if (d.memory == NULL)
        return NULL;
    memset(d.memory, 0x5c, bytes);
    d.bytes = bytes;
    return (void *)(uintptr_t)NAMES;
}

static void release(void *ctx, void *memory, uint64_t bytes)
{
    (void)ctx;
    if ((uint64_t)(uintptr_t)memory != NAMES || bytes != d.bytes || d.n_held > 0)
        sim_fail("the device's memory is given back wrongly");
    free(d.memory);
    d.memory = NULL;
}

static void submit(void *ctx, struct cs_copies *const *batches, size_t n)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++) {
        if (d.n_held == N_BATCHES)
            sim_fail("more copies than the simulated device can hold");
        d.queued[d.n_queued++] = d.held[d.n_held++] = batches[i];
    }
    fibers_wake(&d);
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

void copies_given_back(const void *p, size_t n)
{
    for (uint32_t i = 0; i < d.n_held; i++) {
        const struct cs_copies *b = d.held[i];
        if (overlaps(p, n, b, sizeof *b) || overlaps(p, n, b->copy, b->n * sizeof b->copy[0]))
            sim_fail("a batch of copies is given back before it is done");
        for (size_t k = 0; k < b->n; k++) {
            const struct cs_copy *c = &b->copy[k];
            if (overlaps(p, n, c->host, c->bytes) || overlaps(p, n, c->device, c->bytes))
                sim_fail("memory that is copied %s the device is given back before that is done",
                         b->to_device ? "to" : "from");
        }
    }
}

/* What lies on the host was verified on its way there, and nobody else may write into a block that is being
 * copied: it can be damaged by a copy that failed half-way only. */
static bool damaged(void)
{
    if (sim.odds[FAULT_copy_error] == 0)
        sim_fail("a block on the host is not what it was");
    return false;
}

static bool copy_all(const struct cs_copies *b)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct cs_copy *c = &b->copy[i];
        uint8_t *memory = device_memory(c->device);
        if (memory == c->device || memory + c->bytes > d.memory + d.bytes)
            sim_fail("a copy from or to memory that is not the device's");
        fibers_sleep(2000 + sim_below(&sim.random_faults, d.pace_ns));
        if (sim_fault(FAULT_copy_error))
            return false;
        if (b->to_device && !b->piece(b->ctx, i, 0, c->bytes))
            return damaged();
        memcpy(b->to_device ? memory : c->host, b->to_device ? c->host : memory, c->bytes);
        if (!b->to_device && !b->piece(b->ctx, i, 0, c->bytes))
            return false;
    }
    return true;
}

static void end(struct cs_copies *b, bool ok)
{
    uint32_t i = 0;
    while (d.held[i] != b)
        i++;
    d.held[i] = d.held[--d.n_held];
    b->done(b->ctx, ok);
}

static void *thread_main(void *arg)
{
    (void)arg;
    for (;;) {
        if (d.n_queued == 0) {
            if (d.ending)
                break;
            (void)fibers_wait(&d, UINT64_MAX);
            continue;
        }
        uint32_t i = sim_below(&sim.random_faults, d.n_queued);
        struct cs_copies *b = d.queued[i];
        d.queued[i] = d.queued[--d.n_queued];
        if (sim_fault(FAULT_never)) {
            d.stuck = true;
            continue;
        }
        if (sim_fault(FAULT_late))
            fibers_sleep(1000000ull * (1 + sim_below(&sim.random_faults, 2000)));
        end(b, copy_all(b));
    }
    d.n_running--;
    fibers_wake(&d);
    return NULL;
}

const struct cs_device *device_open(void)
{
    d.device = (struct cs_device){.reserve = reserve, .release = release, .submit = submit};
    d.open = true;
    d.pace_ns = sim_below(&sim.random_faults, 2) == 0 ? FAST_NS : SLOW_NS;
    for (uint32_t i = 0; i < N_THREADS; i++)
        d.n_running += fibers_start(thread_main);
    return &d.device;
}

void device_close(void)
{
    if (!d.open)
        return;
    d.ending = true;
    fibers_wake(&d);
    while (d.n_running > 0)
        (void)fibers_wait(&d, UINT64_MAX);
    memset(&d, 0, sizeof d);
}

void copies_process_ended(void)
{
    memset(&d, 0, sizeof d); /* its memory was the process's */
}
