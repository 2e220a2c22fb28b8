/*
 * Block I/O of the disk tier: a queue that orders and bounds requests, over an engine behind a small vtable.
 *
 * The queue (io.c) is the same for every engine: reads go before writes, bytes in flight are bounded, short
 * reads and writes are resubmitted for the rest, and an end of file inside a read is an error (-ENODATA),
 * because the tier never asks for bytes it has not written. What was interrupted or refused for the moment
 * is tried again, at once and then after pauses that grow, and fails after half a second without any
 * progress. An engine only moves bytes.
 *
 * Threads: one thread makes, uses and closes an io; io_wake() alone may be called from any thread.
 */
#ifndef ISOTHERM_CACHESTORE_IO_H
#define ISOTHERM_CACHESTORE_IO_H

#include "cachestore/cachestore.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum io_kind { IO_READ, IO_WRITE, IO_SYNC };

/* A request. The memory it names belongs to it from io_add() to done(), which always comes. */
struct io_op {
    enum io_kind kind;
    int fd;
    uint64_t offset;
    struct iovec *iov; /* consumed: its entries move as parts of the request complete */
    unsigned n_iov;    /* at most IOV_MAX */
    uint64_t bytes;    /* sum of iov */
    void (*done)(struct io_op *op, int result); /* 0 or -errno; may call io_add() */
    void *ctx;
    struct io_op *next; /* the queue's */
    uint64_t left;      /* the queue's: bytes still to move */
    uint64_t begun_ns;  /* the queue's: when the engine took it on */
    uint64_t rested_ns; /* the queue's: when it is tried again */
    unsigned again;     /* the queue's: times that it was not done, since something of it last was */
    int result;         /* the engine's between submit and completion, then the queue's until done() */
};

struct io_engine;
struct io_engine_ops {
    const char *name;
    /* Takes op (kind, fd, offset, iov, n_iov) without waiting. 0, or -EAGAIN: no slot is free. */
    int (*submit)(struct io_engine *e, struct io_op *op);
    /* Hands over what was submitted and waits until a request has completed, wake was called or timeout_ms
     * have passed (-1: no limit); calls complete() for each request with the result of its system call. */
    void (*wait)(struct io_engine *e, int timeout_ms);
    void (*wake)(struct io_engine *e);
    /* Nothing may be in flight. */
    void (*close)(struct io_engine *e);
};
struct io_engine {
    const struct io_engine_ops *ops;
    void (*complete)(void *ctx, struct io_op *op, int result);
    void *ctx;
    uint64_t sqes, submissions; /* requests, and system calls that handed some over */
};

/* The engine that a configuration asks for. 0 or -errno; reason gets one line in both cases: why it is this
 * engine, or why there is none. */
int io_engine_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len);
/* An engine on io_uring. 0, or -errno with a reason. */
int io_uring_engine_open(struct io_engine **out, char *reason, size_t reason_len);
/* An engine of threads that read and write with plain system calls. As above. */
int io_pread_engine_open(struct io_engine **out, char *reason, size_t reason_len);

struct io;
/* Takes the engine over, also on failure. NULL: out of memory. */
struct io *io_open(struct io_engine *engine, uint64_t inflight_bytes);
void io_add(struct io *io, struct io_op *op);
/* Hands over what the bounds allow of what was added, without waiting; calls no done(). */
void io_start(struct io *io);
/* Starts what the bounds allow, waits as the engine's wait does (not at all when something was already
 * complete), and calls done() of what has completed. */
void io_run(struct io *io, int timeout_ms);
void io_wake(struct io *io);
/* Requests added whose done() has not been called. */
unsigned io_pending(const struct io *io);
const char *io_engine_name(const struct io *io);
/* Fills read, write and sync. Any thread. */
void io_latencies(const struct io *io, struct cs_latencies *out);
void io_counters(const struct io *io, uint64_t *sqes, uint64_t *submissions);
/* io_pending() must be 0. */
void io_close(struct io *io);

#endif
