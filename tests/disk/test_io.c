/* The request queue over an engine whose every completion the test decides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/io/io.h"

enum { SLOTS = 4, LOG_MAX = 64 };

struct fake {
    struct io_engine base;
    struct io_op *inflight[SLOTS];
    unsigned n_inflight;
    struct io_op *log[LOG_MAX]; /* in the order of submission */
    uint64_t log_offset[LOG_MAX], log_len[LOG_MAX];
    unsigned n_log;
    /* What the next wait completes: the oldest request, with this result; -1 for its full length. */
    int results[LOG_MAX];
    unsigned n_results, next_result;
    int slept_ms; /* what the last wait was allowed to */
};

static uint64_t iov_bytes(const struct io_op *op)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < op->n_iov; i++)
        n += op->iov[i].iov_len;
    return n;
}

static int fake_submit(struct io_engine *e, struct io_op *op)
{
    struct fake *f = (struct fake *)e;
    if (f->n_inflight == SLOTS)
        return -EAGAIN;
    f->inflight[f->n_inflight++] = op;
    f->log_offset[f->n_log] = op->offset;
    f->log_len[f->n_log] = iov_bytes(op);
    f->log[f->n_log++] = op;
    return 0;
}

static void fake_wait(struct io_engine *e, int timeout_ms)
{
    struct fake *f = (struct fake *)e;
    f->slept_ms = timeout_ms;
    if (f->n_inflight == 0 || f->next_result == f->n_results)
        return;
    struct io_op *op = f->inflight[0];
    memmove(f->inflight, f->inflight + 1, --f->n_inflight * sizeof f->inflight[0]);
    int result = f->results[f->next_result++];
    f->base.complete(f->base.ctx, op, result == -1 ? (int)iov_bytes(op) : result);
}

static void fake_wake(struct io_engine *e)
{
    (void)e;
}

static void fake_close(struct io_engine *e)
{
    (void)e;
}

static const struct io_engine_ops fake_ops = {
    .name = "fake", .submit = fake_submit, .wait = fake_wait, .wake = fake_wake, .close = fake_close};

struct request {
    struct io_op op;
    struct iovec iov[3];
    bool done;
    int result;
};

static void on_done(struct io_op *op, int result)
{
    struct request *q = op->ctx;
    assert_false(q->done);
    q->done = true;
    q->result = result;
}

static char memory[1 << 20];

static void request_make(struct request *q, enum io_kind kind, uint64_t offset, size_t a, size_t b, size_t c)
{
    memset(q, 0, sizeof *q);
    q->iov[0] = (struct iovec){.iov_base = memory, .iov_len = a};
    q->iov[1] = (struct iovec){.iov_base = memory + a, .iov_len = b};
    q->iov[2] = (struct iovec){.iov_base = memory + a + b, .iov_len = c};
    q->op = (struct io_op){.kind = kind,
                           .fd = 9,
                           .offset = offset,
                           .iov = q->iov,
                           .bytes = a + b + c,
                           .n_iov = c > 0   ? 3
                                    : b > 0 ? 2
                                            : 1,
                           .done = on_done,
                           .ctx = q};
}

static void expect(struct fake *f, int result)
{
    f->results[f->n_results++] = result;
}

static struct io *io_make(struct fake *f, uint64_t limit)
{
    memset(f, 0, sizeof *f);
    f->base.ops = &fake_ops;
    struct io *io = io_open(&f->base, limit);
    assert_non_null(io);
    return io;
}

static void test_short_transfers_go_on_where_they_stopped(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 1 << 20);
    for (int kind = IO_READ; kind <= IO_WRITE; kind++) {
        struct request q;
        request_make(&q, (enum io_kind)kind, 8192, 4096, 8192, 4096);
        f.n_log = f.n_results = f.next_result = 0;
        expect(&f, 4096 + 512);
        expect(&f, -EINTR);
        expect(&f, -EAGAIN);
        expect(&f, 7680);
        expect(&f, -1);
        io_add(io, &q.op);
        while (!q.done)
            io_run(io, -1);
        assert_int_equal(q.result, 0);
        assert_int_equal(f.n_log, 5);
        assert_int_equal(f.log_offset[1], 8192 + 4608);
        assert_int_equal(f.log_len[1], 16384 - 4608);
        assert_int_equal(f.log_offset[3], 8192 + 4608);
        assert_int_equal(f.log_offset[4], 8192 + 4608 + 7680);
        assert_int_equal(f.log_len[4], 4096);
        assert_int_equal(io_pending(io), 0);
    }
    io_close(io);
}

static void test_end_of_file_and_errors_end_a_request(void **state)
{
    (void)state;
    static const struct {
        enum io_kind kind;
        int first, then, result;
    } cases[] = {
        {IO_READ, 0, 0, -ENODATA},    {IO_READ, 4096, 0, -ENODATA}, {IO_READ, 100, 1, -ENODATA},
        {IO_READ, -EIO, 1, -EIO},     {IO_WRITE, 0, 0, -EIO},       {IO_WRITE, -ENOSPC, 1, -ENOSPC},
        {IO_WRITE, 4096, -EIO, -EIO}, {IO_SYNC, 0, 1, 0},           {IO_SYNC, -EIO, 1, -EIO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake f;
        struct io *io = io_make(&f, 1 << 20);
        struct request q;
        request_make(&q, cases[i].kind, 0, 4096, 4096, 0);
        expect(&f, cases[i].first);
        if (cases[i].then != 1)
            expect(&f, cases[i].then);
        io_add(io, &q.op);
        for (int turn = 0; turn < 8 && !q.done; turn++)
            io_run(io, -1);
        assert_true(q.done);
        assert_int_equal(q.result, cases[i].result);
        io_close(io);
    }
}

/* An engine that answers for ever that it cannot just now: it ends, and not after thousands of tries. */
static void test_what_is_refused_for_the_moment_is_tried_again_but_not_for_ever(void **state)
{
    (void)state;
    enum { TRIES = 13 };
    static const int refusals[] = {-EAGAIN, -EINTR};
    for (unsigned k = 0; k < 2; k++) {
        struct fake f;
        struct io *io = io_make(&f, 1 << 20);
        struct request q, other;
        request_make(&q, IO_WRITE, 0, 4096, 0, 0);
        request_make(&other, IO_WRITE, 4096, 4096, 0, 0);
        io_add(io, &q.op);
        for (unsigned i = 0; i < 2; i++) {
            expect(&f, refusals[k]);
            io_run(io, -1);
        }
        io_run(io, -1); /* the second try follows at once, the third does not */
        assert_int_equal(f.n_log, 2);
        assert_int_equal(io_pending(io), 1);
        assert_in_range(f.slept_ms, 0, 1); /* nobody else would wake it */
        io_add(io, &other.op);             /* others need not wait */
        expect(&f, -1);
        while (!other.done)
            io_run(io, 0);
        for (unsigned i = 2; i < TRIES; i++)
            expect(&f, refusals[k]);
        while (!q.done)
            io_run(io, -1);
        assert_int_equal(q.result, refusals[k]);
        assert_int_equal(f.n_log, TRIES + 1);
        assert_int_equal(io_pending(io), 0);

        /* Whatever gets through gives it as many tries again. */
        request_make(&q, IO_WRITE, 0, 8192, 0, 0);
        io_add(io, &q.op);
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned i = 0; i < 7; i++)
                expect(&f, refusals[k]);
            expect(&f, 4096);
        }
        while (!q.done)
            io_run(io, -1);
        assert_int_equal(q.result, 0);
        io_close(io);
    }
}

static void test_reads_go_before_writes_and_bytes_are_bounded(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 384 << 10);
    struct request w[4], r[4];
    for (int i = 0; i < 4; i++) {
        request_make(&w[i], IO_WRITE, (uint64_t)i << 20, 64 << 10, 0, 0);
        io_add(io, &w[i].op);
    }
    for (int i = 0; i < 4; i++) {
        request_make(&r[i], IO_READ, (uint64_t)i << 20, 24 << 10, 0, 0);
        io_add(io, &r[i].op);
    }
    io_run(io, -1); /* two reads fill 48 of the 64 KiB that reads may have; one write passes the third */
    assert_int_equal(f.n_log, 3);
    assert_ptr_equal(f.log[0], &r[0].op);
    assert_ptr_equal(f.log[1], &r[1].op);
    assert_ptr_equal(f.log[2], &w[0].op);
    for (int i = 0; i < 5; i++)
        expect(&f, -1);
    while (!r[3].done)
        io_run(io, -1);
    /* Writes hold a quarter of the bound, 96 KiB: one at a time. */
    unsigned writes = 0;
    for (unsigned i = 0; i < f.n_inflight; i++)
        writes += f.inflight[i]->kind == IO_WRITE;
    assert_int_equal(writes, 1);
    for (int i = 0; i < 4; i++)
        expect(&f, -1);
    while (!w[3].done) {
        io_run(io, -1);
        assert_true(f.n_inflight <= 1);
    }
    io_close(io);
}

/* Reads that never end: what writes and syncs gets through, one at a time. */
static void test_reads_without_end_do_not_keep_writes_from_the_disk(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 384 << 10);
    struct request r[40], w[3];
    for (int i = 0; i < 40; i++)
        request_make(&r[i], IO_READ, (uint64_t)i << 20, 24 << 10, 0, 0);
    request_make(&w[0], IO_WRITE, 0, 32 << 10, 0, 0);
    request_make(&w[1], IO_WRITE, 1 << 20, 32 << 10, 0, 0);
    request_make(&w[2], IO_SYNC, 0, 0, 0, 0);
    int next = 0;
    while (next < 6)
        io_add(io, &r[next++].op);
    for (int i = 0; i < 3; i++)
        io_add(io, &w[i].op);
    while (!w[2].done) {
        assert_true(next < 40);
        io_add(io, &r[next++].op);
        expect(&f, -1);
        io_run(io, -1);
        unsigned n_writes = 0;
        for (unsigned i = 0; i < f.n_inflight; i++)
            n_writes += f.inflight[i]->kind != IO_READ;
        assert_true(n_writes <= 1);
        assert_false(r[next - 1].done); /* there was always one that waited */
    }
    assert_true(w[0].done && w[1].done);
    while (io_pending(io) > 0) {
        expect(&f, -1);
        io_run(io, -1);
    }
    io_close(io);
}

/* A read that needs all there may be in flight is passed by nothing. */
static void test_a_read_that_waits_for_all_others_is_not_passed(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 64 << 10);
    struct request w[4], r;
    for (int i = 0; i < 4; i++)
        request_make(&w[i], IO_WRITE, (uint64_t)i << 20, 4096, 0, 0);
    request_make(&r, IO_READ, 0, 256 << 10, 0, 0);
    io_add(io, &w[0].op);
    io_run(io, -1);
    io_add(io, &r.op);
    for (int i = 1; i < 4; i++)
        io_add(io, &w[i].op);
    io_run(io, -1);
    assert_int_equal(f.n_log, 1);
    expect(&f, -1);
    io_run(io, -1);
    io_run(io, -1);
    assert_int_equal(f.n_log, 2);
    assert_ptr_equal(f.log[1], &r.op);
    while (io_pending(io) > 0) {
        expect(&f, -1);
        io_run(io, -1);
    }
    io_close(io);
}

static void test_request_above_the_bound_passes_alone(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 8 << 10);
    struct request big, other;
    request_make(&big, IO_READ, 0, 64 << 10, 0, 0);
    request_make(&other, IO_READ, 1 << 20, 4096, 0, 0);
    io_add(io, &big.op);
    io_add(io, &other.op);
    io_run(io, -1);
    assert_int_equal(f.n_log, 1);
    expect(&f, -1);
    expect(&f, -1);
    while (!other.done)
        io_run(io, -1);
    assert_true(big.done);
    io_close(io);
}

static void test_a_full_engine_keeps_the_order(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 1 << 20);
    struct request q[3 * SLOTS];
    for (unsigned i = 0; i < 3 * SLOTS; i++) {
        request_make(&q[i], IO_READ, i, 4096, 0, 0);
        io_add(io, &q[i].op);
        expect(&f, -1);
    }
    while (io_pending(io) > 0)
        io_run(io, -1);
    for (unsigned i = 0; i < 3 * SLOTS; i++)
        assert_ptr_equal(f.log[i], &q[i].op);
    io_close(io);
}

/* The rest of what was to be begun is refused, say: no completion is left to end a sleep. */
static void test_what_ended_while_the_rest_was_prepared_is_not_slept_upon(void **state)
{
    (void)state;
    struct fake f;
    struct io *io = io_make(&f, 1 << 20);
    struct request q;
    request_make(&q, IO_WRITE, 0, 4096, 0, 0);
    expect(&f, -1);
    io_add(io, &q.op);
    io_start(io);
    assert_int_equal(f.n_inflight, 0);
    assert_false(q.done);
    io_run(io, -1);
    assert_int_equal(f.slept_ms, 0);
    assert_true(q.done);
    io_run(io, -1); /* nothing is left: as long as it takes */
    assert_int_equal(f.slept_ms, -1);
    io_close(io);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_transfers_go_on_where_they_stopped),
        cmocka_unit_test(test_end_of_file_and_errors_end_a_request),
        cmocka_unit_test(test_what_is_refused_for_the_moment_is_tried_again_but_not_for_ever),
        cmocka_unit_test(test_reads_go_before_writes_and_bytes_are_bounded),
        cmocka_unit_test(test_reads_without_end_do_not_keep_writes_from_the_disk),
        cmocka_unit_test(test_a_read_that_waits_for_all_others_is_not_passed),
        cmocka_unit_test(test_request_above_the_bound_passes_alone),
        cmocka_unit_test(test_a_full_engine_keeps_the_order),
        cmocka_unit_test(test_what_ended_while_the_rest_was_prepared_is_not_slept_upon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
