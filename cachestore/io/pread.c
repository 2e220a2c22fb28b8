/*
 * The pread engine: a small pool of threads, each in one plain system call at a time. For where io_uring is
 * forbidden, as it is in many containers.
 *
 *   submit()  reads ----------------+--> a thread: preadv, pwritev or fdatasync --> ended --> wait():
 * complete() writes, syncs --------+
 *
 * submit() never waits for a thread: a request that finds no slot is refused. A slot is taken until wait()
 * has handed the request back, so that none of the three queues can overflow. Reads are taken before what
 * writes, and that holds at most half of the threads: a sync that takes seconds keeps no read waiting.
 *
 * A request is in `ended` once its system call has returned, and close() joins the threads: after either of
 * them nobody touches its memory.
 *
 * Threads: submit, wait and close on the thread of io.h, wake on any, worker_main on those of the pool.
 * `lock` guards queues and flags, is held for list operations only, and no other lock is taken under it.
 */
#include "cachestore/io/io.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Eight requests of 1 MiB saturate the disks that were at hand; more of them only wait longer. */
enum { N_THREADS = 8, N_SLOTS = 256 };

struct fifo {
    unsigned first, n;
    struct io_op *op[N_SLOTS];
};

struct pread {
    struct io_engine base;
    unsigned n_taken; /* slots; the thread of io.h */
    unsigned n_threads, writers_max;
    pthread_t threads[N_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the pool: something is queued, or the end */
    pthread_cond_t awake; /* for wait(): something has ended, or wake() */
    /* Under lock. */
    struct fifo reads, writes, ended;
    unsigned n_writers; /* threads with a write or a sync */
    bool woken, closing;
};

static void fifo_push(struct fifo *f, struct io_op *op)
{
    f->op[(f->first + f->n++) % N_SLOTS] = op;
}

static struct io_op *fifo_pop(struct fifo *f)
{
    struct io_op *op = f->op[f->first];
    f->first = (f->first + 1) % N_SLOTS;
    f->n--;
    return op;
}

/* Not the newer preadv2: without its flags it does the same, and fewer sandboxes know it. */
static ssize_t system_call(const struct io_op *op)
{
    switch (op->kind) {
    case IO_READ:
        return preadv(op->fd, op->iov, (int)op->n_iov, (off_t)op->offset);
    case IO_WRITE:
        return pwritev(op->fd, op->iov, (int)op->n_iov, (off_t)op->offset);
    case IO_SYNC:
        return fdatasync(op->fd);
    }
    errno = EINVAL;
    return -1;
}

/* Bytes (never more than fit an int: the kernel moves less than 2 GiB a call) or -errno. */
static int transfer(const struct io_op *op)
{
    ssize_t n;
    do {
        n = system_call(op);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : (int)n;
}

static void *worker_main(void *arg)
{
    struct pread *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->closing) {
        bool writes = p->reads.n == 0;
        if (writes && (p->writes.n == 0 || p->n_writers == p->writers_max)) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        struct io_op *op = fifo_pop(writes ? &p->writes : &p->reads);
        p->n_writers += writes;
        pthread_mutex_unlock(&p->lock);
        int result = transfer(op);
        pthread_mutex_lock(&p->lock);
        p->n_writers -= writes;
        op->result = result;
        fifo_push(&p->ended, op);
        if (p->ended.n == 1)
            pthread_cond_signal(&p->awake);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int pread_submit(struct io_engine *e, struct io_op *op)
{
    struct pread *p = (struct pread *)e;
    if (p->n_taken == N_SLOTS)
        return -EAGAIN;
    p->n_taken++;
    e->sqes++;
    e->submissions++;
    pthread_mutex_lock(&p->lock);
    fifo_push(op->kind == IO_READ ? &p->reads : &p->writes, op);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* Lock held. */
static void sleep_until_awake(struct pread *p, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms > 0) {
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (timeout_ms % 1000) * 1000000L;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000L;
        }
    }
    int rc = timeout_ms == 0 ? ETIMEDOUT : 0;
    while (p->ended.n == 0 && !p->woken && rc == 0)
        rc = timeout_ms < 0 ? pthread_cond_wait(&p->awake, &p->lock)
                            : pthread_cond_timedwait(&p->awake, &p->lock, &until);
}

static void pread_wait(struct io_engine *e, int timeout_ms)
{
    struct pread *p = (struct pread *)e;
    struct io_op *ended[N_SLOTS];
    unsigned n = 0;
    pthread_mutex_lock(&p->lock);
    sleep_until_awake(p, timeout_ms);
    p->woken = false;
    while (p->ended.n > 0)
        ended[n++] = fifo_pop(&p->ended);
    pthread_mutex_unlock(&p->lock);
    p->n_taken -= n;
    for (unsigned i = 0; i < n; i++)
        e->complete(e->ctx, ended[i], ended[i]->result);
}

static void pread_wake(struct io_engine *e)
{
    struct pread *p = (struct pread *)e;
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_signal(&p->awake);
    pthread_mutex_unlock(&p->lock);
}

static void pread_close(struct io_engine *e)
{
    struct pread *p = (struct pread *)e;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->awake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static const struct io_engine_ops pread_ops = {
    .name = "pread",
    .submit = pread_submit,
    .wait = pread_wait,
    .wake = pread_wake,
    .close = pread_close,
};

int io_pread_engine_open(struct io_engine **out, char *reason, size_t reason_len)
{
    *out = NULL;
    struct pread *p = calloc(1, sizeof *p);
    if (p == NULL) {
        snprintf(reason, reason_len, "out of memory");
        return -ENOMEM;
    }
    p->base.ops = &pread_ops;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->awake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    /* Fewer threads than wanted are slower, but no reason to do without. */
    int rc = 0;
    pthread_mutex_lock(&p->lock);
    while (rc == 0 && p->n_threads < N_THREADS) {
        rc = pthread_create(&p->threads[p->n_threads], NULL, worker_main, p);
        p->n_threads += rc == 0;
    }
    p->writers_max = p->n_threads > 1 ? p->n_threads / 2 : 1;
    pthread_mutex_unlock(&p->lock);
    if (p->n_threads == 0) {
        snprintf(reason, reason_len, "cannot start a thread for I/O: %s", strerror(rc));
        pread_close(&p->base);
        return -rc;
    }
    *out = &p->base;
    return 0;
}
