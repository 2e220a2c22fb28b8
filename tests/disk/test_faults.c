/*
 * Faults of the device, put between the tier and its engine by one that wraps it: failed syncs, failed
 * reads and writes, reads that take their time. Whatever fails is a failed write or a miss; what was durable
 * stays so.
 */
#include "tests/disk/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FAILED_MAX = 256, HELD_MAX = 16 };

struct faulty {
    struct io_engine base;
    struct io_engine *inner;
    struct io_op *failed[FAILED_MAX];
    int result[FAILED_MAX];
    unsigned n_failed;
    struct io_op *held[HELD_MAX];
    unsigned n_held;
};

/* What fails next; set by the test, read on the I/O thread. */
static atomic_int fail_sync, fail_read, fail_write;
static atomic_bool hold_reads;
static atomic_uint reads_held; /* whatever the engine holds just now */

static bool take(atomic_int *count)
{
    int n = atomic_load(count);
    while (n > 0 && !atomic_compare_exchange_weak(count, &n, n - 1))
        ;
    return n > 0;
}

static int faulty_submit(struct io_engine *e, struct io_op *op)
{
    struct faulty *f = (struct faulty *)e;
    f->inner->complete = f->base.complete;
    f->inner->ctx = f->base.ctx;
    if (f->n_failed == FAILED_MAX)
        return -EAGAIN;
    atomic_int *count = op->kind == IO_SYNC ? &fail_sync : op->kind == IO_READ ? &fail_read : &fail_write;
    if (take(count)) {
        f->result[f->n_failed] = -EIO;
        f->failed[f->n_failed++] = op;
        return 0;
    }
    if (op->kind == IO_READ && atomic_load(&hold_reads) && f->n_held < HELD_MAX) {
        f->held[f->n_held++] = op;
        atomic_store(&reads_held, f->n_held);
        return 0;
    }
    return f->inner->ops->submit(f->inner, op);
}

static void faulty_wait(struct io_engine *e, int timeout_ms)
{
    struct faulty *f = (struct faulty *)e;
    f->inner->complete = f->base.complete;
    f->inner->ctx = f->base.ctx;
    while (f->n_held > 0 && !atomic_load(&hold_reads) &&
           f->inner->ops->submit(f->inner, f->held[f->n_held - 1]) == 0)
        atomic_store(&reads_held, --f->n_held);
    f->inner->ops->wait(f->inner, f->n_failed > 0 ? 0 : timeout_ms);
    while (f->n_failed > 0) {
        f->n_failed--;
        f->base.complete(f->base.ctx, f->failed[f->n_failed], f->result[f->n_failed]);
    }
}

static void faulty_wake(struct io_engine *e)
{
    struct faulty *f = (struct faulty *)e;
    f->inner->ops->wake(f->inner);
}

static void faulty_close(struct io_engine *e)
{
    struct faulty *f = (struct faulty *)e;
    f->inner->ops->close(f->inner);
    free(f);
}

static const struct io_engine_ops faulty_ops = {.name = "faulty",
                                                .submit = faulty_submit,
                                                .wait = faulty_wait,
                                                .wake = faulty_wake,
                                                .close = faulty_close};

static int faulty_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len)
{
    struct faulty *f = calloc(1, sizeof *f);
    if (f == NULL)
        return -ENOMEM;
    int rc = io_engine_open(kind, &f->inner, reason, reason_len);
    if (rc != 0) {
        free(f);
        return rc;
    }
    f->base.ops = &faulty_ops;
    *out = &f->base;
    return 0;
}

static void faulty_rig(struct rig *r)
{
    rig_init_in_memory(r, true);
    r->engine_open = faulty_open;
    rig_open(r);
}

/* Every other record is a checkpoint; of 12 pages or blocks both kinds take as much. */
static uint32_t mixed(uint32_t number)
{
    return number % 2 == 0 ? number | CHECKPOINT : number;
}

static void test_failed_sync_loses_everything_since_the_last_good_one(void **state)
{
    (void)state;
    struct rig r;
    faulty_rig(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    struct record_id first = put(&r, 1, 12);
    enum { N = 20 };
    struct span_io *s[N];
    atomic_store(&fail_sync, 1);
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, mixed(10 + i), 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    unsigned n_failed = 0;
    for (uint32_t i = 0; i < N; i++) {
        enum tier_result result = span_wait(s[i]);
        assert_true(result == TIER_EIO || result == TIER_OK);
        n_failed += result == TIER_EIO;
        assert_int_equal(get(&r, s[i]->w.record.id, mixed(10 + i), 12),
                         result == TIER_OK ? TIER_OK : TIER_NOTFOUND);
    }
    assert_true(n_failed > 0);
    assert_true(r.n_warnings > 0);
    /* Their chunks are not used again, so they count until the next open. */
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((1 + N) * bytes));
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    struct record_id later = put(&r, 2, 12);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2 + N - n_failed);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((2 + N - n_failed) * bytes));
    for (uint32_t i = 0; i < N; i++) {
        if (s[i]->result == TIER_EIO)
            assert_null(find_seen(&r, mixed(10 + i)));
        span_free(s[i]);
    }
    assert_int_equal(get(&r, later, 2, 12), TIER_OK);
    rig_destroy(&r);
}

static void test_failed_read_is_eio_and_the_next_one_works(void **state)
{
    (void)state;
    struct rig r;
    faulty_rig(&r);
    for (uint32_t number = 1; number <= 2; number++) {
        struct record_id id = put(&r, mixed(number), 12);
        atomic_store(&fail_read, 1);
        r.watch = strerror(EIO);
        assert_int_equal(get(&r, id, mixed(number), 12), TIER_EIO);
        assert_int_equal(r.n_watched, number);
        assert_int_equal(rig_stats(&r).io_errors, number);
        assert_int_equal(get(&r, id, mixed(number), 12), TIER_OK);
    }
    rig_destroy(&r);
}

static void test_failed_write_ends_that_write_only(void **state)
{
    (void)state;
    struct rig r;
    faulty_rig(&r);
    atomic_store(&fail_write, 1);
    struct span_io *a = span_make(&r, 1, 12), *b = span_make(&r, mixed(2), 12);
    span_write(a);
    span_write(b);
    tier_disk_kick(r.tier);
    enum tier_result ra = span_wait(a), rb = span_wait(b);
    assert_true((ra == TIER_EIO) != (rb == TIER_EIO));
    assert_true(ra == TIER_OK || rb == TIER_OK);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(get(&r, r.seen[0].id, r.seen[0].number, 12), TIER_OK);
    span_free(a);
    span_free(b);
    rig_destroy(&r);
}

/* One line when it begins, one when it has ended, however often it fails. */
static void test_failing_writes_and_syncs_are_said_in_two_lines(void **state)
{
    (void)state;
    enum { TIMES = 3 };
    static const char *const lines[2][3] = {{"a write failed", "no write has failed lately; 3 did"},
                                            {"fdatasync failed", "no fdatasync has failed lately; 3 did"}};
    for (unsigned k = 0; k < 2; k++) {
        struct rig r;
        faulty_rig(&r);
        r.watch = lines[k][0];
        for (uint32_t i = 0; i < TIMES; i++) {
            atomic_store(k == 0 ? &fail_write : &fail_sync, 1);
            struct span_io *s = span_make(&r, 1 + i, 12);
            span_write(s);
            tier_disk_kick(r.tier);
            assert_int_equal(span_wait(s), TIER_EIO);
            span_free(s);
            assert_int_equal(r.n_watched, 1);
        }
        assert_int_equal(r.n_warnings, 1);
        r.watch = lines[k][1];
        rig_close(&r);
        assert_int_equal(r.n_watched, 2);
        assert_int_equal(r.n_warnings, 1);
        rig_destroy(&r);
    }
}

/* A delete while the record's sync fails: one completion, and the room of a record that nobody knows is not
 * reused. */
static void test_delete_meets_failed_sync(void **state)
{
    (void)state;
    struct rig r;
    faulty_rig(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    for (int i = 0; i < 20; i++) {
        atomic_store(&fail_sync, 1);
        struct span_io *s = span_make(&r, mixed(100 + (uint32_t)i), 2);
        span_write(s);
        tier_disk_kick(r.tier);
        tier_disk_delete(r.tier, s->w.record.id);
        enum tier_result result = span_wait(s);
        assert_true(result == TIER_EIO || result == TIER_CANCELLED);
        assert_int_equal(get(&r, s->w.record.id, mixed(100 + (uint32_t)i), 2), TIER_NOTFOUND);
        span_free(s);
    }
    atomic_store(&fail_sync, 0);
    put(&r, 1, 2);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(tier_disk_free_bytes(r.tier),
                     all - (int64_t)tier_disk_record_bytes(r.tier, RECORD_SPAN, 2));
    rig_destroy(&r);
}

static bool read_is_held(void *ctx)
{
    (void)ctx;
    return atomic_load(&reads_held) > 0;
}

/* The record's batch of deletes fails while it is being read: the read ends as it would have, the delete is
 * tried again, and then the chunks are free. */
static void test_failed_delete_meets_a_reader(void **state)
{
    (void)state;
    struct rig r;
    faulty_rig(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    struct record_id id = put(&r, 1, 12), other = put(&r, 2, 12);
    struct span_io *s = span_make(&r, 1, 12);
    atomic_store(&hold_reads, true);
    span_read_begin(s, id, 0, 12);
    assert_true(wait_until(read_is_held, NULL));
    log_beyond_limit(&r, other);
    tier_disk_delete(r.tier, id);
    bool warned = wait_until(has_warned, &r);
    files_unlimit();
    assert_true(warned);
    atomic_store(&hold_reads, false);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(s), TIER_OK);
    assert_true(span_bytes_right(s));
    span_free(s);
    assert_true(wait_until(deletes_done, &r));
    assert_int_equal(rig_stats(&r).disk_spans, 1);
    assert_int_equal(tier_disk_free_bytes(r.tier),
                     all - (int64_t)tier_disk_record_bytes(r.tier, RECORD_SPAN, 12));
    rig_fill(&r, 100, 12); /* into the last chunk */
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_sync_loses_everything_since_the_last_good_one),
        cmocka_unit_test(test_failed_read_is_eio_and_the_next_one_works),
        cmocka_unit_test(test_failed_write_ends_that_write_only),
        cmocka_unit_test(test_failing_writes_and_syncs_are_said_in_two_lines),
        cmocka_unit_test(test_delete_meets_failed_sync),
        cmocka_unit_test(test_failed_delete_meets_a_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
