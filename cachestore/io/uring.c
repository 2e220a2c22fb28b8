/*
 * The io_uring engine. One ring, made and used by one thread (SINGLE_ISSUER and DEFER_TASKRUN where the
 * kernel has them). While idle the thread sleeps in the ring's wait; a read of an eventfd that is always in
 * flight lets other threads end that sleep, so idleness costs nothing.
 *
 * A completion is matched to its request by slot and generation: one that comes for a slot in an earlier life
 * (it cannot, unless the kernel or this file is wrong) is ignored instead of touching the request that is
 * there now.
 */
#include "cachestore/io/io.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RING_ENTRIES = 256, N_SLOTS = RING_ENTRIES - 1, WAKE_SLOT = N_SLOTS, REAP_BATCH = 64 };

struct slot {
    struct io_op *op;
    uint32_t generation;
    uint32_t next_free;
};

struct uring {
    struct io_engine base;
    struct io_uring ring;
    int event_fd;
    uint64_t event_value; /* target of the eventfd read */
    bool wake_armed;
    bool unsubmitted; /* requests prepared since the last system call */
    uint32_t first_free;
    struct slot slots[N_SLOTS];
};

static struct io_uring_sqe *take_sqe(struct uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (sqe == NULL) {
        if (io_uring_submit(&u->ring) > 0)
            u->base.submissions++;
        sqe = io_uring_get_sqe(&u->ring);
    }
    return sqe;
}

static int uring_submit_op(struct io_engine *e, struct io_op *op)
{
    struct uring *u = (struct uring *)e;
    uint32_t index = u->first_free;
    if (index == N_SLOTS)
        return -EAGAIN;
    struct io_uring_sqe *sqe = take_sqe(u);
    if (sqe == NULL)
        return -EAGAIN;
    struct slot *s = &u->slots[index];
    switch (op->kind) {
    case IO_READ:
        io_uring_prep_readv(sqe, op->fd, op->iov, op->n_iov, op->offset);
        break;
    case IO_WRITE:
        io_uring_prep_writev(sqe, op->fd, op->iov, op->n_iov, op->offset);
        break;
    case IO_SYNC:
        io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
        break;
    }
    u->first_free = s->next_free;
    s->op = op;
    io_uring_sqe_set_data64(sqe, (uint64_t)s->generation << 32 | index);
    u->unsubmitted = true;
    e->sqes++;
    return 0;
}

static void arm_wake(struct uring *u)
{
    if (u->wake_armed)
        return;
    struct io_uring_sqe *sqe = take_sqe(u);
    if (sqe == NULL)
        return;
    io_uring_prep_read(sqe, u->event_fd, &u->event_value, sizeof u->event_value, 0);
    io_uring_sqe_set_data64(sqe, WAKE_SLOT);
    u->wake_armed = true;
}

static void handle(struct uring *u, uint64_t data, int result)
{
    uint32_t index = (uint32_t)data, generation = (uint32_t)(data >> 32);
    if (index == WAKE_SLOT) {
        u->wake_armed = false;
        return;
    }
    if (index > N_SLOTS)
        return;
    struct slot *s = &u->slots[index];
    if (s->op == NULL || s->generation != generation)
        return;
    struct io_op *op = s->op;
    s->op = NULL;
    s->generation++;
    s->next_free = u->first_free;
    u->first_free = index;
    u->base.complete(u->base.ctx, op, result);
}

static void uring_wait(struct io_engine *e, int timeout_ms)
{
    struct uring *u = (struct uring *)e;
    arm_wake(u);
    struct __kernel_timespec ts = {.tv_sec = timeout_ms / 1000, .tv_nsec = (timeout_ms % 1000) * 1000000LL};
    struct io_uring_cqe *cqe = NULL;
    if (u->unsubmitted)
        e->submissions++;
    u->unsubmitted = false;
    int rc = timeout_ms == 0
                 ? io_uring_submit_and_get_events(&u->ring)
                 : io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, timeout_ms < 0 ? NULL : &ts, NULL);
    /* -ETIME and -EINTR end the wait, -EAGAIN and -EBUSY mean "reap first": in all of them look at what is
     * there. Anything else would spin if it persisted, so give the processor away. */
    if (rc < 0 && rc != -ETIME && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
        usleep(1000);
    /* Completions may submit again, so take a batch out of the ring before calling anybody. */
    for (;;) {
        struct io_uring_cqe *batch[REAP_BATCH];
        struct {
            uint64_t data;
            int result;
        } got[REAP_BATCH];
        unsigned n = io_uring_peek_batch_cqe(&u->ring, batch, REAP_BATCH);
        for (unsigned i = 0; i < n; i++) {
            got[i].data = batch[i]->user_data;
            got[i].result = batch[i]->res;
        }
        io_uring_cq_advance(&u->ring, n);
        for (unsigned i = 0; i < n; i++)
            handle(u, got[i].data, got[i].result);
        if (n < REAP_BATCH)
            return;
    }
}

static void uring_wake(struct io_engine *e)
{
    struct uring *u = (struct uring *)e;
    uint64_t one = 1;
    /* Fails only when the counter is full, and then the sleeper is awake. */
    if (write(u->event_fd, &one, sizeof one) < 0)
        return;
}

static void uring_close(struct io_engine *e)
{
    struct uring *u = (struct uring *)e;
    /* The eventfd read points into this struct: let it end before the memory goes. */
    while (u->wake_armed) {
        uring_wake(e);
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(&u->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
            break;
        while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
            if (cqe->user_data == WAKE_SLOT)
                u->wake_armed = false;
            io_uring_cqe_seen(&u->ring, cqe);
        }
    }
    io_uring_queue_exit(&u->ring);
    close(u->event_fd);
    free(u);
}

static const struct io_engine_ops uring_ops = {
    .name = "uring",
    .submit = uring_submit_op,
    .wait = uring_wait,
    .wake = uring_wake,
    .close = uring_close,
};

/* Whether the ring does what this file asks of it: kernels and sandboxes exist that let one be made, and then
 * know no reads or refuse the call that waits. 0 or -errno. */
static int ring_try(struct io_uring *ring)
{
    static const int needed[] = {IORING_OP_READ, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC};
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool all = probe != NULL;
    for (size_t i = 0; all && i < sizeof needed / sizeof *needed; i++)
        all = io_uring_opcode_supported(probe, needed[i]);
    io_uring_free_probe(probe);
    if (!all)
        return -EOPNOTSUPP;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int rc;
    do {
        rc = io_uring_submit_and_wait(ring, 1);
    } while (rc == -EINTR);
    struct io_uring_cqe *cqe;
    if (rc >= 0)
        rc = io_uring_peek_cqe(ring, &cqe);
    if (rc == 0)
        io_uring_cqe_seen(ring, cqe);
    return rc;
}

int io_uring_engine_open(struct io_engine **out, char *reason, size_t reason_len)
{
    *out = NULL;
    struct uring *u = calloc(1, sizeof *u);
    if (u == NULL) {
        snprintf(reason, reason_len, "out of memory");
        return -ENOMEM;
    }
    u->base.ops = &uring_ops;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        u->slots[i].next_free = i + 1;
    u->event_fd = eventfd(0, EFD_CLOEXEC);
    if (u->event_fd < 0) {
        int rc = -errno;
        snprintf(reason, reason_len, "eventfd: %s", strerror(-rc));
        free(u);
        return rc;
    }
    int rc =
        io_uring_queue_init(RING_ENTRIES, &u->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (rc == -EINVAL)
        rc = io_uring_queue_init(RING_ENTRIES, &u->ring, 0);
    if (rc == 0) {
        rc = ring_try(&u->ring);
        if (rc < 0)
            io_uring_queue_exit(&u->ring);
    }
    if (rc < 0) {
        snprintf(reason, reason_len, "io_uring is refused here: %s%s", strerror(-rc),
                 rc == -EPERM || rc == -ENOSYS
                     ? " (a container's seccomp profile or kernel.io_uring_disabled)"
                     : "");
        close(u->event_fd);
        free(u);
        return rc;
    }
    *out = &u->base;
    return 0;
}
