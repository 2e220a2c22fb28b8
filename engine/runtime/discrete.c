/* The discrete CPU backend (see discrete.h). */
#include "engine/runtime/discrete.h"
#include "engine/tokenizer/errors.h"
#include "kernels/kernels.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct discrete {
    struct cs_device device;
    uint8_t *names, *memory;
    uint64_t bytes;
    void **table; /* of the step */
    size_t n, capacity;

    pthread_t threads[DISCRETE_THREADS];
    unsigned n_threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cs_copies *first, **last; /* queued */
    bool ending;
};

static void *behind(const struct discrete *d, const void *name)
{
    return d->memory + ((const uint8_t *)name - d->names);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static void *map(uint64_t bytes, int rights)
{
    void *at = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void *reserve(void *ctx, uint64_t bytes)
{
    struct discrete *d = ctx;
    d->names = map(bytes, PROT_NONE);
    d->memory = map(bytes, PROT_READ | PROT_WRITE);
    if (!d->names || !d->memory) {
        if (d->names)
            munmap(d->names, bytes);
        if (d->memory)
            munmap(d->memory, bytes);
        d->names = d->memory = NULL;
        return NULL;
    }
    d->bytes = bytes;
    (void)madvise(d->memory, bytes, MADV_HUGEPAGE);
    return d->names;
}

static void release(void *ctx, void *memory, uint64_t bytes)
{
    struct discrete *d = ctx;
    munmap(memory, bytes);
    munmap(d->memory, bytes);
    d->names = d->memory = NULL;
}

static void populate(void *ctx, void *memory, uint64_t bytes)
{
    (void)madvise(behind(ctx, memory), bytes, MADV_POPULATE_WRITE);
}

/* ---- copies ------------------------------------------------------------------------------------------- */

static void submit(void *ctx, struct cs_copies *const *batches, size_t n)
{
    struct discrete *d = ctx;
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++) {
        batches[i]->device_next = NULL;
        *d->last = batches[i];
        d->last = &batches[i]->device_next;
    }
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static bool copy_all(const struct discrete *d, const struct cs_copies *b)
{
    bool good = true;
    for (size_t i = 0; i < b->n && good; i++) {
        const struct cs_copy *c = &b->copy[i];
        uint8_t *device = behind(d, c->device), *host = c->host;
        for (uint64_t at = 0; at < c->bytes && good; at += CS_COPY_PIECE) {
            uint64_t n = c->bytes - at < CS_COPY_PIECE ? c->bytes - at : CS_COPY_PIECE;
            if (b->to_device)
                kn_copy_away(device + at, host + at, n);
            else
                memcpy(host + at, device + at, n);
            good = b->piece(b->ctx, i, at, n);
        }
    }
    kn_copy_away_end();
    return good;
}

static void *thread_main(void *arg)
{
    struct discrete *d = arg;
    pthread_mutex_lock(&d->lock);
    while (d->first || !d->ending) {
        struct cs_copies *b = d->first;
        if (!b) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        d->first = b->device_next;
        if (!d->first)
            d->last = &d->first;
        pthread_mutex_unlock(&d->lock);
        b->done(b->ctx, copy_all(d, b));
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- open and close ----------------------------------------------------------------------------------- */

int discrete_open(struct discrete **out)
{
    struct discrete *d = calloc(1, sizeof *d);
    *out = d;
    if (!d)
        return ENG_ENOMEM;
    d->device = (struct cs_device){
        .ctx = d, .reserve = reserve, .release = release, .populate = populate, .submit = submit};
    d->last = &d->first;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    while (d->n_threads < DISCRETE_THREADS &&
           pthread_create(&d->threads[d->n_threads], NULL, thread_main, d) == 0)
        d->n_threads++;
    return d->n_threads > 0 ? ENG_OK : ENG_ENOMEM;
}

void discrete_close(struct discrete *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->ending = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->n_threads; i++)
        pthread_join(d->threads[i], NULL);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free((void *)d->table);
    free(d);
}

const struct cs_device *discrete_device(const struct discrete *d)
{
    return &d->device;
}

/* ---- what kernels get --------------------------------------------------------------------------------- */

int discrete_begin(struct discrete *d, size_t n)
{
    d->n = 0;
    if (n <= d->capacity)
        return ENG_OK;
    void **larger = malloc(n * sizeof *larger);
    if (!larger)
        return ENG_ENOMEM;
    free((void *)d->table);
    d->table = larger;
    d->capacity = n;
    return ENG_OK;
}

void **discrete_list(struct discrete *d, void *const *names, size_t n)
{
    void **list = d->table + d->n;
    for (size_t i = 0; i < n; i++)
        list[i] = names[i] ? behind(d, names[i]) : NULL;
    d->n += n;
    return list;
}
