/* The discrete CPU backend (see discrete.h). */
#include "engine/runtime/discrete.h"
#include "engine/tokenizer/errors.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

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

#ifdef __x86_64__

/* A line of 64 bytes. */
static void line_sse2(uint8_t *to, const uint8_t *from)
{
    const __m128i *f = (const void *)from;
    __m128i *t = (void *)to, a = _mm_load_si128(f), b = _mm_load_si128(f + 1), c = _mm_load_si128(f + 2),
            d = _mm_load_si128(f + 3);
    _mm_stream_si128(t, a);
    _mm_stream_si128(t + 1, b);
    _mm_stream_si128(t + 2, c);
    _mm_stream_si128(t + 3, d);
}

__attribute__((target("avx512f"))) static void line_avx512(uint8_t *to, const uint8_t *from)
{
    _mm512_stream_si512((void *)to, _mm512_load_si512((const void *)from));
}

/* 16 KiB at a time, 128 bytes of each of four pages in turns, with stores that leave the destination out of
 * the caches; bytes of the piece after the next are asked for meanwhile. n is a multiple of a line. */
#define STREAM(LINE)                                                                                         \
    const size_t page = 4096, turn = 4 * page, ahead = 2 * turn;                                             \
    size_t at = 0;                                                                                           \
    for (; n - at >= turn; at += turn)                                                                       \
        for (size_t in = at; in < at + page; in += 128)                                                      \
            for (size_t p = in; p < in + turn; p += page) {                                                  \
                __builtin_prefetch(from + p + ahead, 0, 2);                                                  \
                __builtin_prefetch(from + p + ahead + 64, 0, 2);                                             \
                LINE(to + p, from + p);                                                                      \
                LINE(to + p + 64, from + p + 64);                                                            \
            }                                                                                                \
    for (; at < n; at += 64)                                                                                 \
    LINE(to + at, from + at)

static void stream_sse2(uint8_t *to, const uint8_t *from, size_t n)
{
    STREAM(line_sse2);
}

__attribute__((target("avx512f"))) static void stream_avx512(uint8_t *to, const uint8_t *from, size_t n)
{
    STREAM(line_avx512);
}

/* What is copied to the device is not read here again. Seen by others once copies_end has returned. */
static void copy_away(uint8_t *to, const uint8_t *from, size_t n)
{
    if (__builtin_cpu_supports("avx512f"))
        stream_avx512(to, from, n);
    else
        stream_sse2(to, from, n);
}

static void copies_end(void)
{
    _mm_sfence();
}

#else

static void copies_end(void)
{
}

static void copy_away(uint8_t *to, const uint8_t *from, size_t n)
{
    memcpy(to, from, n);
}

#endif

static bool copy_all(const struct discrete *d, const struct cs_copies *b)
{
    bool good = true;
    for (size_t i = 0; i < b->n && good; i++) {
        const struct cs_copy *c = &b->copy[i];
        uint8_t *device = behind(d, c->device), *host = c->host;
        for (uint64_t at = 0; at < c->bytes && good; at += CS_COPY_PIECE) {
            uint64_t n = c->bytes - at < CS_COPY_PIECE ? c->bytes - at : CS_COPY_PIECE;
            if (b->to_device)
                copy_away(device + at, host + at, n);
            else
                memcpy(host + at, device + at, n);
            good = b->piece(b->ctx, i, at, n);
        }
    }
    copies_end();
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
