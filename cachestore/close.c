/*
 * Closing a store: what is pending is flushed, threads end, the tiers close, memory goes.
 *
 * A disk that never answers keeps what it has taken on, and with it the memory that it reads or writes, so
 * all but the last step may take for ever. cs_close_within lets a thread of its own take those steps. If it
 * does not come back in time the store is that thread's: it finishes, and frees, whenever it can.
 */
#include "cachestore/control.h"
#include "cachestore/store.h"

#include <stdlib.h>

#define NS_PER_MS 1000000ull

/* Everything but freeing. */
static void stop(struct cs_store *s, uint32_t deadline_ms)
{
    uint64_t start = store_now_ns();
    (void)cs_flush(s, deadline_ms);
    control_stop(s->control);
    uint64_t spent_ms = (store_now_ns() - start) / NS_PER_MS;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    struct waiting *lists[] = {&s->queued, &s->grace, &s->backlog};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        while (lists[i]->first)
            writeback_cancel_locked(s, lists[i]->first);
    while (s->n_copies > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_cond_signal(&s->keeper_wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper, NULL);
    pthread_mutex_lock(&s->lock);
    (void)events_say_locked(s, true);
    pthread_mutex_unlock(&s->lock);
    if (s->disk)
        s->tier->close(s->disk, spent_ms < deadline_ms ? deadline_ms - (uint32_t)spent_ms : 0);
}

void cs_close(struct cs_store *s, uint32_t deadline_ms)
{
    if (!s)
        return;
    stop(s, deadline_ms);
    store_free(s);
}

struct closing {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cs_store *store;
    uint32_t deadline_ms;
    bool stopped, left; /* under lock; left: nobody waits any more */
};

static void closing_free(struct closing *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *closing_main(void *arg)
{
    struct closing *c = arg;
    stop(c->store, c->deadline_ms);
    pthread_mutex_lock(&c->lock);
    c->stopped = true;
    bool left = c->left;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (left) {
        store_free(c->store);
        closing_free(c);
    }
    return NULL;
}

int cs_close_within(struct cs_store *s, uint32_t deadline_ms, uint32_t limit_ms)
{
    if (!s)
        return CS_OK;
    uint64_t until_ns = store_now_ns() + limit_ms * NS_PER_MS;
    struct timespec until = {.tv_sec = (time_t)(until_ns / (1000 * NS_PER_MS)),
                             .tv_nsec = (long)(until_ns % (1000 * NS_PER_MS))};
    struct closing *c = calloc(1, sizeof *c);
    pthread_t thread;
    bool begun = false;
    if (c) {
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&c->changed, &attr);
        pthread_condattr_destroy(&attr);
        pthread_mutex_init(&c->lock, NULL);
        c->store = s;
        c->deadline_ms = deadline_ms;
        begun = pthread_create(&thread, NULL, closing_main, c) == 0;
        if (!begun)
            closing_free(c);
    }
    if (!begun) {
        cs_close(s, deadline_ms);
        return CS_OK;
    }
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    while (!c->stopped && rc == 0)
        rc = pthread_cond_timedwait(&c->changed, &c->lock, &until);
    bool stopped = c->stopped;
    c->left = !stopped;
    if (!stopped)
        pthread_detach(thread);
    pthread_mutex_unlock(&c->lock);
    if (!stopped)
        return CS_EIO;
    pthread_join(thread, NULL);
    closing_free(c);
    store_free(s);
    return CS_OK;
}
