/* A device out of reach (see fake_device.h). */
#include "tests/cachestore/fake_device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { QUEUE = 4096 };

static struct {
    struct cs_device device;
    uint8_t *names, *memory;
    uint64_t bytes;
    struct cs_copies *queue[QUEUE];
    size_t n_queued, n_submits;
    bool open, threaded, ending;
    uint8_t *pinned_from, *pinned_to;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} f;

void *fake_device_memory(const void *address)
{
    const uint8_t *a = address;
    return f.names && a >= f.names && a < f.names + f.bytes ? f.memory + (a - f.names) : (void *)a;
}

static void *fake_reserve(void *ctx, uint64_t bytes)
{
    (void)ctx;
    assert_null(f.names);
    f.names = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f.memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(f.names != MAP_FAILED && f.memory != MAP_FAILED);
    f.bytes = bytes;
    return f.names;
}

static void fake_release(void *ctx, void *memory, uint64_t bytes)
{
    (void)ctx;
    assert_ptr_equal(memory, f.names);
    assert_int_equal(bytes, f.bytes);
    assert_int_equal(f.n_queued, 0);
    munmap(f.names, bytes);
    munmap(f.memory, bytes);
    f.names = f.memory = NULL;
    f.bytes = 0;
}

/* Pieces come one behind another. */
static void fake_pin(void *ctx, void *host, uint64_t bytes)
{
    (void)ctx;
    if (f.pinned_to)
        assert_ptr_equal(f.pinned_to, host);
    else
        f.pinned_from = host;
    f.pinned_to = (uint8_t *)host + bytes;
}

static void fake_unpin(void *ctx, void *host, uint64_t bytes)
{
    (void)ctx;
    assert_ptr_equal(f.pinned_from, host);
    assert_ptr_equal(f.pinned_to, (uint8_t *)host + bytes);
    f.pinned_from = f.pinned_to = NULL;
}

static void fake_submit(void *ctx, struct cs_copies *const *batches, size_t n)
{
    (void)ctx;
    pthread_mutex_lock(&f.lock);
    f.n_submits++;
    for (size_t i = 0; i < n; i++) {
        assert_true(f.n_queued < QUEUE);
        f.queue[f.n_queued++] = batches[i];
    }
    pthread_cond_signal(&f.changed);
    pthread_mutex_unlock(&f.lock);
}

static struct cs_copies *take(size_t i)
{
    struct cs_copies *b = f.queue[i];
    memmove(f.queue + i, f.queue + i + 1, (--f.n_queued - i) * sizeof(struct cs_copies *));
    return b;
}

static bool copy_one(const struct cs_copies *b, size_t i, bool ok)
{
    const struct cs_copy *c = &b->copy[i];
    const uint8_t *names = c->device;
    assert_true(names >= f.names && names + c->bytes <= f.names + f.bytes);
    uint8_t *device = fake_device_memory(names);
    if (b->to_device && !b->piece(b->ctx, i, 0, c->bytes))
        return false;
    if (ok)
        memcpy(b->to_device ? device : c->host, b->to_device ? c->host : device, c->bytes);
    else
        memset(b->to_device ? device : c->host, 0xDD,
               c->bytes); /* one that fails may have written anything */
    return b->to_device || b->piece(b->ctx, i, 0, c->bytes);
}

static void complete(struct cs_copies *b, bool ok)
{
    bool all = true;
    size_t n = ok ? b->n : (b->n + 1) / 2;
    for (size_t i = 0; i < n && all; i++)
        all = copy_one(b, i, ok);
    b->done(b->ctx, ok && all);
}

static void *thread_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&f.lock);
    while (!f.ending || f.n_queued > 0) {
        if (f.n_queued == 0) {
            pthread_cond_wait(&f.changed, &f.lock);
            continue;
        }
        struct cs_copies *b = take(f.n_queued - 1); /* the youngest first */
        pthread_mutex_unlock(&f.lock);
        complete(b, true);
        pthread_mutex_lock(&f.lock);
    }
    pthread_mutex_unlock(&f.lock);
    return NULL;
}

const struct cs_device *fake_device_open(bool threaded)
{
    assert_false(f.open);
    memset(&f, 0, sizeof f);
    f.device = (struct cs_device){.reserve = fake_reserve,
                                  .release = fake_release,
                                  .pin = fake_pin,
                                  .unpin = fake_unpin,
                                  .submit = fake_submit};
    f.open = true;
    f.threaded = threaded;
    pthread_mutex_init(&f.lock, NULL);
    pthread_cond_init(&f.changed, NULL);
    if (threaded)
        assert_int_equal(pthread_create(&f.thread, NULL, thread_main, NULL), 0);
    return &f.device;
}

void fake_device_close(void)
{
    assert_true(f.open);
    pthread_mutex_lock(&f.lock);
    f.ending = true;
    pthread_cond_signal(&f.changed);
    pthread_mutex_unlock(&f.lock);
    if (f.threaded)
        pthread_join(f.thread, NULL);
    assert_null(f.names);
    assert_null(f.pinned_to);
    f.open = false;
}

size_t fake_device_n_queued(void)
{
    return f.n_queued;
}

size_t fake_device_n_submits(void)
{
    return f.n_submits;
}

void fake_device_finish(size_t i, bool ok)
{
    complete(take(i), ok);
}

void fake_device_finish_all(void)
{
    while (f.open && !f.threaded && f.n_queued > 0)
        fake_device_finish(0, true);
}
