/* See device.h. */
#include "tests/torture/device.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/torture/witness.h"

enum { N_THREADS = 2 };

static struct {
    struct cs_device device;
    uint8_t *names, *memory; /* change while no sequence is open only */
    uint64_t bytes;
    struct cs_copies *last; /* queued; the youngest first */
    bool ending, open;
    pthread_t thread[N_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
} d = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void *device_memory(void *address)
{
    uint8_t *a = address;
    return d.names != NULL && a >= d.names && a < d.names + d.bytes ? d.memory + (a - d.names) : address;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void *map(uint64_t bytes, int rights)
{
    void *at = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        witness_fail("no memory for a device of %llu bytes", (unsigned long long)bytes);
    return at;
}

static void *reserve(void *ctx, uint64_t bytes)
{
    (void)ctx;
    d.names = map(bytes, PROT_NONE);
    d.memory = map(bytes, PROT_READ | PROT_WRITE);
    d.bytes = bytes;
    return d.names;
}

static void release(void *ctx, void *memory, uint64_t bytes)
{
    (void)ctx;
    if (memory != d.names || bytes != d.bytes || d.last != NULL)
        witness_fail("the device's memory is given back wrongly");
    munmap(d.names, d.bytes);
    munmap(d.memory, d.bytes);
    d.names = d.memory = NULL;
}

/* ---- copies ------------------------------------------------------------------------------------------ */

static void submit(void *ctx, struct cs_copies *const *batches, size_t n)
{
    (void)ctx;
    pthread_mutex_lock(&d.lock);
    for (size_t i = 0; i < n; i++) {
        batches[i]->device_next = d.last;
        d.last = batches[i];
    }
    pthread_cond_broadcast(&d.changed);
    pthread_mutex_unlock(&d.lock);
}

static bool copy_all(const struct cs_copies *b)
{
    for (size_t i = 0; i < b->n; i++) {
        const struct cs_copy *c = &b->copy[i];
        uint8_t *memory = device_memory(c->device);
        if (memory == c->device || memory + c->bytes > d.memory + d.bytes)
            witness_fail("a copy from or to memory that is not the device's");
        if (b->to_device && !b->piece(b->ctx, i, 0, c->bytes))
            return false;
        memcpy(b->to_device ? memory : c->host, b->to_device ? c->host : memory, c->bytes);
        if (!b->to_device && !b->piece(b->ctx, i, 0, c->bytes))
            return false;
    }
    return true;
}

static void *thread_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&d.lock);
    while (d.last != NULL || !d.ending) {
        struct cs_copies *b = d.last;
        if (b == NULL) {
            pthread_cond_wait(&d.changed, &d.lock);
            continue;
        }
        d.last = b->device_next;
        pthread_mutex_unlock(&d.lock);
        b->done(b->ctx, copy_all(b));
        pthread_mutex_lock(&d.lock);
    }
    pthread_mutex_unlock(&d.lock);
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

const struct cs_device *device_open(void)
{
    d.device = (struct cs_device){.reserve = reserve, .release = release, .submit = submit};
    for (int i = 0; i < N_THREADS; i++)
        if (pthread_create(&d.thread[i], NULL, thread_main, NULL) != 0)
            witness_fail("no thread for the device");
    d.open = true;
    return &d.device;
}

void device_close(void)
{
    if (!d.open)
        return;
    pthread_mutex_lock(&d.lock);
    d.ending = true;
    pthread_cond_broadcast(&d.changed);
    pthread_mutex_unlock(&d.lock);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(d.thread[i], NULL);
    d.open = false;
}
