/*
 * Pins: a record that is pinned stays on disk with what lies above it, whatever else is published; all of
 * them together hold at most half of the disk; a pin ends with its record.
 */
#include "cachestore/inspect.h"
#include "tests/cachestore/disk_dir.h"
#include "tests/cachestore/stateful.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 40, N_OTHERS = 120 }; /* tokens; paths that fill the disk several times */

static uint32_t n_warnings;
static char last_warning[256];

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    if (level != CS_LOG_WARN)
        return;
    n_warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

/* Room for some twenty paths. */
static struct cs_config small_config(void)
{
    struct cs_config c = tiny_config(256);
    c.index_bytes = 8 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 8 << 20;
    c.chunk_bytes = 64 << 10;
    c.extent_bytes = 1 << 20;
    c.log = on_log;
    return c;
}

static void publish(const struct cs_config *c, uint32_t first, uint32_t n)
{
    struct cs_store *s = tiny_open(c);
    assert_true(stats_of(s).disk_on);
    for (uint32_t k = first; k < first + n; k++) {
        uint32_t ids[PATH + 1];
        make_ids(ids, PATH + 1, 0, k);
        round_trip(s, NULL, ids, PATH);
        if (k % 8 == 0)
            assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
    }
    cs_close(s, FLUSH_MS);
}

/* Tokens of path k that come back from disk in a store that is opened anew. */
static uint32_t found(const struct cs_config *c, uint32_t k)
{
    uint32_t ids[PATH + 1];
    make_ids(ids, PATH + 1, 0, k);
    struct cs_store *s = tiny_open(c);
    uint32_t n = look_up(s, NULL, ids, PATH).tokens_disk;
    check_balance(s);
    cs_close(s, FLUSH_MS);
    return n;
}

struct search {
    struct cs_span_info deepest;
    uint32_t n_pinned;
};

static int see_span(void *ctx, const struct cs_span_info *span)
{
    struct search *f = ctx;
    f->n_pinned += span->pinned;
    if (span->first_position >= f->deepest.first_position)
        f->deepest = *span;
    return 0;
}

/* Pins the newest of the deepest spans, or ends that; returns how many were pinned before. */
static uint32_t pin_deepest(bool pinned)
{
    char err[256] = "";
    struct cs_inspect *in;
    struct search f = {.n_pinned = 0};
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_spans(in, see_span, &f), CS_OK);
    assert_int_equal(cs_inspect_pin(in, &f.deepest, pinned, err, sizeof err), CS_OK);
    cs_inspect_close(in);
    return f.n_pinned;
}

static uint32_t count_pinned(void)
{
    char err[256] = "";
    struct cs_inspect *in;
    struct search f = {.n_pinned = 0};
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_spans(in, see_span, &f), CS_OK);
    cs_inspect_close(in);
    return f.n_pinned;
}

static void a_pinned_path_outlives_what_fills_the_disk(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = small_config();
    publish(&c, 0, 1);
    assert_int_equal(pin_deepest(true), 0);
    publish(&c, 1, N_OTHERS);
    assert_int_equal(found(&c, 1), 0); /* as old, and not pinned */
    assert_int_equal(found(&c, 0), PATH);
    assert_int_equal(count_pinned(), 1);
    assert_int_equal(n_warnings, 0);
    disk_dir_remove();
}

static void a_pin_that_is_taken_off_protects_no_more(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = small_config();
    publish(&c, 0, 1);
    pin_deepest(true);
    assert_int_equal(pin_deepest(false), 1);
    publish(&c, 1, N_OTHERS);
    assert_int_equal(found(&c, 0), 0);
    assert_int_equal(count_pinned(), 0);
    disk_dir_remove();
}

static void pins_beyond_half_of_the_disk_are_let_go(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = small_config();
    publish(&c, 0, 1);
    pin_deepest(true);
    c.disk_bytes = 768 << 10; /* a path of four spans takes 256 KiB: a third */
    n_warnings = 0;
    assert_int_equal(found(&c, 0), PATH);
    assert_int_equal(n_warnings, 0);
    c.disk_bytes = 448 << 10; /* more than a half */
    found(&c, 0);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(last_warning, "1 pins would hold more than half"));
    disk_dir_remove();
}

static void a_pin_ends_with_its_record(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = small_config();
    publish(&c, 0, 1);
    pin_deepest(true);
    /* The pinned record's header: a miss, and it is deleted. */
    char err[256] = "", path[512];
    struct cs_inspect *in;
    struct search f = {.n_pinned = 0};
    struct cs_record *r;
    assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
    assert_int_equal(cs_inspect_spans(in, see_span, &f), CS_OK);
    assert_int_equal(cs_inspect_record(in, &f.deepest, &r, err, sizeof err), CS_OK);
    long offset = (long)r->runs[0].first_chunk * (long)c.chunk_bytes;
    cs_record_free(r);
    cs_inspect_close(in);
    snprintf(path, sizeof path, "%s/volume.000", disk_dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset + 100, SEEK_SET), 0);
    assert_int_equal(fputc(0xa5, file), 0xa5);
    assert_int_equal(fclose(file), 0);
    assert_true(found(&c, 0) < PATH);
    assert_int_equal(count_pinned(), 0);
    publish(&c, 0, 1); /* stored anew, without it */
    assert_int_equal(found(&c, 0), PATH);
    assert_int_equal(count_pinned(), 0);
    disk_dir_remove();
}

static int pin_checkpoint_at(void *ctx, const struct cs_span_info *span)
{
    struct search *f = ctx;
    if (span->checkpoint && span->first_position == 32)
        f->deepest = *span;
    return 0;
}

/* Four turns with at most three checkpoints a path, at 32, 64, 96 and 128, the first one pinned after two of
 * them or not; where somebody resumes who shares the first 50 tokens. */
static uint32_t resumes_at(bool pinned)
{
    disk_dir_make();
    struct cs_config c = stateful_config(256);
    c.index_bytes = 8 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    c.checkpoints_a_path = 3;
    uint32_t ids[140], other[140];
    make_ids(ids, 140, 140, 0);
    make_ids(other, 140, 50, 3);
    struct cs_store *s = tiny_open(&c);
    for (uint32_t n = 30; n <= 60; n += 30)
        run_turn(s, &c, 0, ids, n, n + 9, NULL, 0);
    cs_close(s, FLUSH_MS);
    if (pinned) {
        char err[256] = "";
        struct cs_inspect *in;
        struct search f = {.n_pinned = 0};
        assert_int_equal(cs_inspect_open(disk_dir, &in, err, sizeof err), CS_OK);
        assert_int_equal(cs_inspect_spans(in, pin_checkpoint_at, &f), CS_OK);
        assert_int_equal(f.deepest.first_position, 32);
        assert_int_equal(cs_inspect_pin(in, &f.deepest, true, err, sizeof err), CS_OK);
        cs_inspect_close(in);
    }
    s = tiny_open(&c);
    for (uint32_t n = 90; n <= 120; n += 30)
        run_turn(s, &c, 0, ids, n, n + 9, NULL, 0);
    assert_int_equal(stats_of(s).checkpoints, 3);
    struct run r;
    uint32_t at = run_start(&r, s, &c, 0, other, 60);
    run_close(&r);
    check_balance(s);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
    return at;
}

static void a_pinned_checkpoint_is_not_thinned_out(void **state)
{
    (void)state;
    assert_int_equal(resumes_at(false), 0);
    assert_int_equal(resumes_at(true), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pinned_path_outlives_what_fills_the_disk),
        cmocka_unit_test(a_pin_that_is_taken_off_protects_no_more),
        cmocka_unit_test(pins_beyond_half_of_the_disk_are_let_go),
        cmocka_unit_test(a_pin_ends_with_its_record),
        cmocka_unit_test(a_pinned_checkpoint_is_not_thinned_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
