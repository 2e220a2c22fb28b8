/* See engine_clock.h. */
#include "bench/engine_clock.h"
#include "bench/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct engine_clock {
    struct io_engine base;
    struct io_engine *inner;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine_times times; /* lock */

void engine_clock_reset(void)
{
    pthread_mutex_lock(&lock);
    times = (struct engine_times){0};
    pthread_mutex_unlock(&lock);
}

struct engine_times engine_clock_times(void)
{
    pthread_mutex_lock(&lock);
    struct engine_times t = times;
    pthread_mutex_unlock(&lock);
    return t;
}

static void note(enum io_kind kind, bool ended)
{
    double now = wall_s();
    pthread_mutex_lock(&lock);
    if (kind == IO_WRITE && ended)
        times.last_write_ended = now;
    else if (kind == IO_WRITE && times.first_write_begun == 0)
        times.first_write_begun = now;
    else if (kind == IO_SYNC && ended)
        times.last_sync_ended = now;
    else if (kind == IO_SYNC)
        times.last_sync_begun = now;
    pthread_mutex_unlock(&lock);
}

static void pass_on(void *ctx, struct io_op *op, int result)
{
    struct engine_clock *c = ctx;
    note(op->kind, true);
    c->base.complete(c->base.ctx, op, result);
}

static int clock_submit(struct io_engine *e, struct io_op *op)
{
    struct engine_clock *c = (struct engine_clock *)e;
    int rc = c->inner->ops->submit(c->inner, op);
    if (rc == 0)
        note(op->kind, false);
    return rc;
}

static void clock_wait(struct io_engine *e, int timeout_ms)
{
    struct engine_clock *c = (struct engine_clock *)e;
    c->inner->ops->wait(c->inner, timeout_ms);
    e->sqes = c->inner->sqes;
    e->submissions = c->inner->submissions;
}

static void clock_wake(struct io_engine *e)
{
    struct engine_clock *c = (struct engine_clock *)e;
    c->inner->ops->wake(c->inner);
}

static void clock_close(struct io_engine *e)
{
    struct engine_clock *c = (struct engine_clock *)e;
    c->inner->ops->close(c->inner);
    free(c);
}

static const struct io_engine_ops clock_ops = {
    .name = "clock", .submit = clock_submit, .wait = clock_wait, .wake = clock_wake, .close = clock_close};

int engine_clock_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len)
{
    struct engine_clock *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return -ENOMEM;
    int rc = io_engine_open(kind, &c->inner, reason, reason_len);
    if (rc != 0) {
        free(c);
        return rc;
    }
    c->base.ops = &clock_ops;
    c->inner->complete = pass_on;
    c->inner->ctx = c;
    *out = &c->base;
    return 0;
}
