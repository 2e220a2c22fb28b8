/*
 * The pread engine, with the system calls and thread creation in the test's hand: it holds them, interrupts
 * them, cuts them short.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cachestore/io/io.h"

enum { KINDS = IO_SYNC + 1, MANY = 400, BLOCK = 4096 };

/* ---- the system's side ------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool hold[KINDS];   /* calls of this kind do not go on */
    unsigned interrupt; /* the next calls end with EINTR */
    size_t most;        /* bytes a call moves; 0: all */
    unsigned calls;
    int threads_left;             /* that can be started; negative: any number */
    unsigned n_joined, n_started; /* threads */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .threads_left = -1};

/* false: the call is interrupted. Bytes it may move, or 0 for all. */
static bool pass(enum io_kind kind, size_t *most)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.hold[kind])
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.calls++;
    *most = gate.most;
    bool goes_on = gate.interrupt == 0;
    gate.interrupt -= !goes_on;
    pthread_mutex_unlock(&gate.lock);
    if (!goes_on)
        errno = EINTR;
    return goes_on;
}

typedef ssize_t vector_call(int fd, const struct iovec *iov, int n, off_t offset);
static ssize_t pass_vector(enum io_kind kind, vector_call *call, int fd, const struct iovec *iov, int n,
                           off_t offset)
{
    size_t most;
    if (!pass(kind, &most))
        return -1;
    if (most == 0)
        return call(fd, iov, n, offset);
    struct iovec cut = {iov->iov_base, iov->iov_len < most ? iov->iov_len : most};
    return call(fd, &cut, 1, offset);
}

vector_call __real_preadv64, __wrap_preadv64, __real_pwritev64, __wrap_pwritev64;
ssize_t __wrap_preadv64(int fd, const struct iovec *iov, int n, off_t offset)
{
    return pass_vector(IO_READ, __real_preadv64, fd, iov, n, offset);
}

ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t offset)
{
    return pass_vector(IO_WRITE, __real_pwritev64, fd, iov, n, offset);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
    size_t most;
    return pass(IO_SYNC, &most) ? __real_fdatasync(fd) : -1;
}

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    if (gate.threads_left == 0)
        return EAGAIN;
    gate.threads_left -= gate.threads_left > 0;
    gate.n_started++;
    return __real_pthread_create(t, attr, fn, arg);
}

int __real_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result)
{
    gate.n_joined++;
    return __real_pthread_join(t, result);
}

static void hold(enum io_kind kind, bool on)
{
    pthread_mutex_lock(&gate.lock);
    gate.hold[kind] = on;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void interrupt_and_cut(unsigned interrupt, size_t most)
{
    pthread_mutex_lock(&gate.lock);
    gate.interrupt = interrupt;
    gate.most = most;
    pthread_mutex_unlock(&gate.lock);
}

static unsigned calls(void)
{
    pthread_mutex_lock(&gate.lock);
    unsigned n = gate.calls;
    pthread_mutex_unlock(&gate.lock);
    return n;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

struct request {
    struct io_op op;
    struct iovec iov[3];
    unsigned n_done;
    int result;
};

static void on_done(struct io_op *op, int result)
{
    struct request *q = op->ctx;
    q->n_done++;
    q->result = result;
}

static void on_complete(void *ctx, struct io_op *op, int result)
{
    ++*(unsigned *)ctx;
    on_done(op, result);
}

/* Three pieces of `bytes` (a multiple of 4) in all. */
static void request_make(struct request *q, enum io_kind kind, int fd, uint64_t offset, void *memory,
                         size_t bytes)
{
    char *at = memory;
    *q = (struct request){
        .iov = {{at, bytes / 4}, {at + bytes / 4, bytes / 2}, {at + bytes / 4 * 3, bytes / 4}}};
    q->op = (struct io_op){.kind = kind,
                           .fd = fd,
                           .offset = offset,
                           .iov = q->iov,
                           .n_iov = 3,
                           .bytes = bytes,
                           .done = on_done,
                           .ctx = q};
}

static int temporary_file(void)
{
    char name[] = "pread-test-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    unlink(name);
    return fd;
}

static struct io_engine *pool_open(unsigned *n_complete)
{
    struct io_engine *e = NULL;
    char reason[160] = "";
    if (io_pread_engine_open(&e, reason, sizeof reason) != 0)
        fail_msg("%s", reason);
    e->complete = on_complete;
    e->ctx = n_complete;
    return e;
}

static struct io *queue_open(void)
{
    struct io *io = io_open(pool_open(NULL), 1 << 20);
    assert_non_null(io);
    assert_string_equal(io_engine_name(io), "pread");
    return io;
}

static int run(struct io *io, struct request *q)
{
    io_add(io, &q->op);
    while (io_pending(io) > 0)
        io_run(io, -1);
    assert_int_equal(q->n_done, 1);
    return q->result;
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static void test_every_request_ends_once_with_its_own_bytes(void **state)
{
    (void)state;
    struct io *io = queue_open();
    int fd = temporary_file();
    static uint32_t memory[MANY][BLOCK / 4];
    static struct request q[MANY], sync;
    for (uint32_t i = 0; i < MANY; i++) {
        for (uint32_t w = 0; w < BLOCK / 4; w++)
            memory[i][w] = i * 7919 + w;
        request_make(&q[i], IO_WRITE, fd, (uint64_t)(MANY - i) * BLOCK, memory[i], BLOCK);
        io_add(io, &q[i].op);
    }
    request_make(&sync, IO_SYNC, fd, 0, memory, 0);
    assert_int_equal(run(io, &sync), 0);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(q[i].n_done, 1);
        assert_int_equal(q[i].result, 0);
        memset(memory[i], 0xee, BLOCK);
        request_make(&q[i], IO_READ, fd, (uint64_t)(MANY - i) * BLOCK, memory[i], BLOCK);
        io_add(io, &q[i].op);
    }
    while (io_pending(io) > 0)
        io_run(io, -1);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(q[i].n_done, 1);
        assert_int_equal(q[i].result, 0);
        for (uint32_t w = 0; w < BLOCK / 4; w++)
            assert_int_equal(memory[i][w], i * 7919 + w);
    }
    uint64_t sqes, submissions;
    io_counters(io, &sqes, &submissions);
    assert_int_equal(sqes, 2 * MANY + 1);
    assert_int_equal(submissions, sqes);
    io_close(io);
    close(fd);
}

static void test_interrupted_calls_are_made_again_and_short_ones_go_on(void **state)
{
    (void)state;
    struct io *io = queue_open();
    int fd = temporary_file();
    static char memory[16 * BLOCK], copy[16 * BLOCK];
    for (size_t i = 0; i < sizeof memory; i++)
        copy[i] = memory[i] = (char)(i * 31 + i / 256);
    static const enum io_kind kinds[] = {IO_WRITE, IO_READ, IO_SYNC};
    for (int i = 0; i < KINDS; i++) {
        struct request q;
        uint64_t before, after, submissions;
        bool sync = kinds[i] == IO_SYNC;
        if (kinds[i] == IO_READ)
            memset(memory, 0xee, sizeof memory);
        request_make(&q, kinds[i], fd, BLOCK, memory, sync ? 0 : sizeof memory);
        io_counters(io, &before, &submissions);
        unsigned calls_before = calls();
        interrupt_and_cut(3, 3 * BLOCK);
        assert_int_equal(run(io, &q), 0);
        interrupt_and_cut(0, 0);
        io_counters(io, &after, &submissions);
        /* Pieces of 4, 8 and 4 blocks in calls of at most 3: 2, 3 and 2. An interrupted call is no request.
         */
        assert_int_equal(after - before, sync ? 1 : 7);
        assert_int_equal(calls() - calls_before, after - before + 3);
    }
    assert_memory_equal(memory, copy, sizeof memory);
    io_close(io);
    close(fd);
}

static void test_errors_and_the_end_of_the_file_come_back(void **state)
{
    (void)state;
    struct io *io = queue_open();
    int fd = temporary_file();
    static char memory[BLOCK];
    struct request q;
    for (int kind = 0; kind < KINDS; kind++) {
        request_make(&q, (enum io_kind)kind, -1, 0, memory, kind == IO_SYNC ? 0 : BLOCK);
        assert_int_equal(run(io, &q), -EBADF);
    }
    request_make(&q, IO_READ, fd, 0, memory, BLOCK);
    assert_int_equal(run(io, &q), -ENODATA);
    io_close(io);
    close(fd);
}

/* Nobody reaps: the engine takes so many and refuses the next, without waiting, whether or not threads are
 * stuck; what it has taken comes back, and then there is room again. */
static void test_a_full_pool_refuses_and_goes_on(void **state)
{
    (void)state;
    enum { MOST = 4096, BYTES = 16 };
    static struct request q[MOST];
    static char memory[MOST][BYTES];
    int fd = temporary_file();
    assert_int_equal(ftruncate(fd, BYTES), 0);
    for (int stuck = 0; stuck < 2; stuck++) {
        unsigned n_complete = 0, n = 0;
        struct io_engine *e = pool_open(&n_complete);
        hold(IO_READ, stuck);
        for (;; n++) {
            assert_true(n < MOST);
            request_make(&q[n], IO_READ, fd, 0, memory[n], BYTES);
            if (e->ops->submit(e, &q[n].op) != 0)
                break;
        }
        assert_true(n > 0);
        assert_int_equal(n_complete, 0);
        assert_int_equal(e->ops->submit(e, &q[n].op), -EAGAIN);
        hold(IO_READ, false);
        while (n_complete < n)
            e->ops->wait(e, -1);
        for (unsigned i = 0; i < n; i++)
            assert_true(q[i].n_done == 1 && q[i].result == BYTES);
        assert_int_equal(e->ops->submit(e, &q[n].op), 0);
        while (n_complete < n + 1)
            e->ops->wait(e, -1);
        e->ops->close(e);
    }
    close(fd);
}

static void test_a_read_finds_a_thread_while_all_that_writes_is_stuck(void **state)
{
    (void)state;
    enum { WRITES = 60 };
    static struct request w[WRITES], r;
    static char memory[WRITES + 1][BLOCK];
    int fd = temporary_file();
    unsigned n_complete = 0;
    struct io_engine *e = pool_open(&n_complete);
    assert_int_equal(ftruncate(fd, (WRITES + 1) * BLOCK), 0);
    hold(IO_WRITE, true);
    hold(IO_SYNC, true);
    for (unsigned i = 0; i < WRITES; i++) {
        bool sync = i % 3 == 0;
        request_make(&w[i], sync ? IO_SYNC : IO_WRITE, fd, (uint64_t)i * BLOCK, memory[i], sync ? 0 : BLOCK);
        assert_int_equal(e->ops->submit(e, &w[i].op), 0);
    }
    for (unsigned reads = 1; reads <= 20; reads++) {
        request_make(&r, IO_READ, fd, WRITES * BLOCK, memory[WRITES], BLOCK);
        assert_int_equal(e->ops->submit(e, &r.op), 0);
        while (n_complete < reads)
            e->ops->wait(e, -1);
        assert_true(r.n_done == 1 && r.result == BLOCK);
    }
    hold(IO_WRITE, false);
    hold(IO_SYNC, false);
    while (n_complete < 20 + WRITES)
        e->ops->wait(e, -1);
    for (unsigned i = 0; i < WRITES; i++)
        assert_true(w[i].n_done == 1 && w[i].result == (i % 3 == 0 ? 0 : BLOCK));
    e->ops->close(e);
    close(fd);
}

static void *wake_it(void *engine)
{
    struct io_engine *e = engine;
    e->ops->wake(e);
    return NULL;
}

static void test_a_wake_ends_a_wait_and_is_not_lost(void **state)
{
    (void)state;
    unsigned n_complete = 0;
    struct io_engine *e = pool_open(&n_complete);
    e->ops->wake(e);
    e->ops->wait(e, -1);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, wake_it, e), 0);
    e->ops->wait(e, -1);
    pthread_join(other, NULL);
    e->ops->wait(e, 1);
    e->ops->wait(e, 0);
    assert_int_equal(n_complete, 0);
    e->ops->close(e);
}

static void test_close_waits_for_its_threads(void **state)
{
    (void)state;
    unsigned started = gate.n_started, joined = gate.n_joined, n_complete = 0;
    struct io_engine *e = pool_open(&n_complete);
    assert_true(gate.n_started > started);
    e->ops->close(e);
    assert_int_equal(gate.n_joined - joined, gate.n_started - started);
}

static void test_fewer_threads_do_and_none_is_an_error(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        gate.threads_left = threads;
        struct io *io = queue_open();
        gate.threads_left = -1;
        int fd = temporary_file();
        static char memory[BLOCK];
        struct request q;
        for (int kind = KINDS - 1; kind >= 0; kind--) {
            request_make(&q, (enum io_kind)kind, fd, 0, memory, kind == IO_SYNC ? 0 : BLOCK);
            assert_int_equal(run(io, &q), 0);
        }
        io_close(io);
        close(fd);
    }
    struct io_engine *e;
    char reason[160] = "";
    gate.threads_left = 0;
    int rc = io_pread_engine_open(&e, reason, sizeof reason);
    gate.threads_left = -1;
    assert_int_equal(rc, -EAGAIN);
    assert_null(e);
    assert_non_null(strstr(reason, "thread"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_request_ends_once_with_its_own_bytes),
        cmocka_unit_test(test_interrupted_calls_are_made_again_and_short_ones_go_on),
        cmocka_unit_test(test_errors_and_the_end_of_the_file_come_back),
        cmocka_unit_test(test_a_full_pool_refuses_and_goes_on),
        cmocka_unit_test(test_a_read_finds_a_thread_while_all_that_writes_is_stuck),
        cmocka_unit_test(test_a_wake_ends_a_wait_and_is_not_lost),
        cmocka_unit_test(test_close_waits_for_its_threads),
        cmocka_unit_test(test_fewer_threads_do_and_none_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
