/*
 * The request queue of io.h. Two FIFO lists; reads go first, and writes hold at most a quarter of the bytes
 * in flight, so that a read never queues behind more than that in the device. Reads hold at most a sixth: a
 * few large requests saturate a disk, and with more they all end late and together, so that nothing is
 * verified meanwhile.
 *
 * While reads wait for their own share, one write or sync at a time goes past them: reads that never end must
 * not keep what is published from the disk, and one megabyte in the device costs a read little. While a read
 * waits for room of all that is in flight nothing passes it, or it might wait for ever.
 */
#include "cachestore/io/io.h"
#include "cachestore/histogram.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { READ_SHARE = 6, WRITE_SHARE = 4, REFILL_EVERY = 4, AGAIN_MOST = 12 };
#define REST_NS 125000u /* before the second try; twice as long before each that follows */

struct io_list {
    struct io_op *head, **tail;
};

struct io {
    struct io_engine *engine;
    struct io_list reads, writes, completed; /* completed: done() is still to be called */
    struct io_list resting;                  /* not done, for the moment: tried again later */
    uint64_t inflight_limit, inflight, inflight_reads, inflight_writes;
    unsigned n_inflight, n_inflight_reads, n_pending;
    struct histogram took_us[IO_SYNC + 1]; /* by kind */
};

static void list_init(struct io_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct io_list *l, struct io_op *op)
{
    op->next = NULL;
    *l->tail = op;
    l->tail = &op->next;
}

static void list_push_front(struct io_list *l, struct io_op *op)
{
    op->next = l->head;
    l->head = op;
    if (op->next == NULL)
        l->tail = &op->next;
}

static struct io_op *list_pop(struct io_list *l)
{
    struct io_op *op = l->head;
    if (op != NULL) {
        l->head = op->next;
        if (l->head == NULL)
            l->tail = &l->head;
    }
    return op;
}

static struct io_list *list_of(struct io *io, const struct io_op *op)
{
    return op->kind == IO_READ ? &io->reads : &io->writes;
}

/* In flight of its kind; a sync has none. */
static uint64_t *bytes_of(struct io *io, const struct io_op *op)
{
    return op->kind == IO_READ ? &io->inflight_reads : &io->inflight_writes;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* done() may take long (it verifies megabytes), so it is called after the device has been given its next
 * work. */
static void finish(struct io *io, struct io_op *op, int result)
{
    op->result = result;
    histogram_add(&io->took_us[op->kind], (now_ns() - op->begun_ns) / 1000);
    list_push(&io->completed, op);
}

/* Drops the n bytes that were moved from the front of op's list. */
static void op_advance(struct io_op *op, uint64_t n)
{
    op->offset += n;
    op->left -= n;
    while (n > 0 && op->n_iov > 0) {
        if (n < op->iov->iov_len) {
            op->iov->iov_base = (char *)op->iov->iov_base + n;
            op->iov->iov_len -= n;
            return;
        }
        n -= op->iov->iov_len;
        op->iov++;
        op->n_iov--;
    }
}

/* The engine could not do it for the moment. */
static void try_again(struct io *io, struct io_op *op, int result)
{
    if (op->again == AGAIN_MOST) {
        finish(io, op, result);
        return;
    }
    if (op->again++ == 0) {
        list_push_front(list_of(io, op), op);
        return;
    }
    op->rested_ns = now_ns() + ((uint64_t)REST_NS << (op->again - 2));
    list_push(&io->resting, op);
}

/* What has rested long enough is to be started. Returns how long the engine may wait, at most timeout_ms. */
static int end_rests(struct io *io, int timeout_ms)
{
    struct io_op *op = io->resting.head, *next;
    uint64_t now = op != NULL ? now_ns() : 0;
    list_init(&io->resting);
    for (; op != NULL; op = next) {
        next = op->next;
        if (op->rested_ns <= now) {
            list_push_front(list_of(io, op), op);
            continue;
        }
        list_push(&io->resting, op);
        int left_ms = (int)((op->rested_ns - now) / 1000000) + 1;
        if (timeout_ms < 0 || left_ms < timeout_ms)
            timeout_ms = left_ms;
    }
    return timeout_ms;
}

static void complete(void *ctx, struct io_op *op, int result)
{
    struct io *io = ctx;
    io->n_inflight--;
    io->n_inflight_reads -= op->kind == IO_READ;
    io->inflight -= op->bytes;
    *bytes_of(io, op) -= op->bytes;
    if (result == -EINTR || result == -EAGAIN) {
        try_again(io, op, result);
        return;
    }
    op->again = 0;
    if (result < 0 || op->kind == IO_SYNC) {
        finish(io, op, result < 0 ? result : 0);
        return;
    }
    if ((uint64_t)result >= op->left) {
        op->left = 0;
        finish(io, op, 0);
        return;
    }
    /* Nothing moved: the end of the file for a read, a full device for a write. A piece that is no multiple
     * of a sector cannot be continued with O_DIRECT, and only an end of file makes one. */
    if (result == 0 || result % 512 != 0) {
        finish(io, op, op->kind == IO_READ ? -ENODATA : -EIO);
        return;
    }
    op_advance(op, (uint64_t)result);
    list_push_front(list_of(io, op), op);
}

struct io *io_open(struct io_engine *engine, uint64_t inflight_bytes)
{
    struct io *io = calloc(1, sizeof *io);
    if (io == NULL) {
        engine->ops->close(engine);
        return NULL;
    }
    list_init(&io->reads);
    list_init(&io->writes);
    list_init(&io->completed);
    list_init(&io->resting);
    io->inflight_limit = inflight_bytes;
    io->engine = engine;
    engine->complete = complete;
    engine->ctx = io;
    return io;
}

void io_add(struct io *io, struct io_op *op)
{
    op->left = op->bytes;
    op->again = 0;
    io->n_pending++;
    list_push(list_of(io, op), op);
}

/* Its kind holds its share of what may be in flight. */
static bool is_over_share(struct io *io, const struct io_op *op)
{
    uint64_t now = *bytes_of(io, op), share = op->kind == IO_READ ? READ_SHARE : WRITE_SHARE;
    return now > 0 && now + op->bytes > io->inflight_limit / share;
}

static bool fits(struct io *io, const struct io_op *op)
{
    /* One request larger than the bound must still pass, alone. */
    return !is_over_share(io, op) && (io->n_inflight == 0 || io->inflight + op->bytes <= io->inflight_limit);
}

/* What may be started next; NULL: nothing. */
static struct io_op *next_op(struct io *io)
{
    struct io_op *read = io->reads.head, *write = io->writes.head;
    if (read != NULL && fits(io, read))
        return read;
    if (write == NULL || !fits(io, write))
        return NULL;
    if (read != NULL && (!is_over_share(io, read) || io->n_inflight > io->n_inflight_reads))
        return NULL;
    return write;
}

/* Whether anything was started. */
static bool start_some(struct io *io)
{
    uint64_t now = io->reads.head != NULL || io->writes.head != NULL ? now_ns() : 0;
    for (bool any = false;; any = true) {
        struct io_op *op = next_op(io);
        if (op == NULL || io->engine->ops->submit(io->engine, op) != 0)
            return any;
        list_pop(list_of(io, op));
        io->n_inflight++;
        io->n_inflight_reads += op->kind == IO_READ;
        if (op->left == op->bytes)
            op->begun_ns = now;
        io->inflight += op->bytes;
        *bytes_of(io, op) += op->bytes;
    }
}

void io_start(struct io *io)
{
    if (start_some(io))
        io->engine->ops->wait(io->engine, 0);
}

void io_run(struct io *io, int timeout_ms)
{
    timeout_ms = end_rests(io, timeout_ms);
    start_some(io);
    /* io_start may have found all that was in flight complete: nobody would end the sleep then. */
    io->engine->ops->wait(io->engine, io->completed.head != NULL ? 0 : timeout_ms);
    struct io_op *op;
    for (unsigned n = 0; io->completed.head != NULL; n++) {
        if (n % REFILL_EVERY == 0 && start_some(io))
            io->engine->ops->wait(io->engine, 0);
        op = list_pop(&io->completed);
        io->n_pending--;
        op->done(op, op->result);
    }
}

void io_wake(struct io *io)
{
    io->engine->ops->wake(io->engine);
}

unsigned io_pending(const struct io *io)
{
    return io->n_pending;
}

const char *io_engine_name(const struct io *io)
{
    return io->engine->ops->name;
}

void io_latencies(const struct io *io, struct cs_latencies *out)
{
    histogram_copy(&io->took_us[IO_READ], &out->read);
    histogram_copy(&io->took_us[IO_WRITE], &out->write);
    histogram_copy(&io->took_us[IO_SYNC], &out->sync);
}

void io_counters(const struct io *io, uint64_t *sqes, uint64_t *submissions)
{
    *sqes = io->engine->sqes;
    *submissions = io->engine->submissions;
}

void io_close(struct io *io)
{
    if (io == NULL)
        return;
    io->engine->ops->close(io->engine);
    free(io);
}
