/* Spans on real files: what was durable is there and verifies, whatever happened in between. */
#include "tests/disk/harness.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void test_durable_span_reads_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 10);
    assert_int_equal(get(&r, id, 1, 10), TIER_OK);
    struct cs_stats s = rig_stats(&r);
    assert_int_equal(s.spans_written, 1);
    assert_int_equal(s.spans_read, 1);
    assert_int_equal(s.bytes_read, 10 * PAGE);
    assert_int_equal(s.pending_bytes, 0);
    assert_int_equal(s.disk_spans, 1);
    rig_destroy(&r);
}

static void test_part_of_a_span_reads_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 3, 40);
    struct span_io *s = span_make(&r, 3, 40);
    for (uint32_t first = 0; first < 40; first += 7) {
        span_read_begin(s, id, first, 40 - first < 9 ? 40 - first : 9);
        assert_int_equal(span_wait(s), TIER_OK);
        assert_true(span_bytes_right(s));
    }
    span_free(s);
    rig_destroy(&r);
}

static void test_reopen_reports_spans_newest_first(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    uint8_t secret[16];
    memcpy(secret, r.secret, sizeof secret);
    struct record_id id[4];
    for (uint32_t i = 0; i < 4; i++)
        id[i] = put(&r, i, 5 + i);
    rig_reopen(&r);
    assert_memory_equal(secret, r.secret, sizeof secret);
    assert_int_equal(r.n_seen, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(r.seen[i].number, 3 - i);
        assert_int_equal(r.seen[i].n_pages, 8 - i);
        assert_int_equal(get(&r, id[i], i, 5 + i), TIER_OK);
    }
    assert_true(tier_disk_next_id(r.tier).sequence > id[3].sequence);
    rig_destroy(&r);
}

static void test_wrong_question_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 6);
    struct span_io *s = span_make(&r, 1, 6);
    s->w.record.key.lo ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_HEADER);
    s->w.record.key.lo ^= 1;
    s->ids[5] ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_TOKENS);
    s->ids[5] ^= 1;
    s->w.record.tenant.id[3] = 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_HEADER);
    s->w.record.tenant.id[3] = 0;
    id.nonce ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_NOTFOUND);
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.corrupt_header, 2);
    assert_int_equal(st.corrupt_tokens, 1);
    span_free(s);
    rig_destroy(&r);
}

/* Stored prompts are nobody else's to read, whatever the umask. */
static void test_files_are_their_owners_alone(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    mode_t before = umask(0);
    rig_open(&r);
    put(&r, 1, 4);
    umask(before);
    static const struct {
        const char *name;
        mode_t mode;
    } files[] = {{"STORE", 0600}, {"volume.000", 0600}, {"catalog", 0700}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[600];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", r.dir, files[i].name);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, files[i].mode);
    }
    rig_destroy(&r);
}

static void test_time_of_use_survives(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 4);
    put(&r, 2, 4);
    tier_disk_touch(r.tier, id, 777);
    tier_disk_touch(r.tier, id, 888);
    rig_reopen(&r);
    assert_int_equal(find_seen(&r, 1)->used_unix, 888);
    assert_int_equal(find_seen(&r, 2)->used_unix, 1000);
    rig_destroy(&r);
}

static void test_refused_row_is_deleted(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    put(&r, 1, 4);
    put(&r, 2, 4);
    r.refuse_number = 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    r.refuse_number = UINT32_MAX;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(r.seen[0].number, 2);
    rig_destroy(&r);
}

static void test_error_of_the_store_ends_the_open_and_deletes_nothing(void **state)
{
    (void)state;
    struct rig r;
    char err[256] = "";
    rig_init(&r);
    rig_open(&r);
    put(&r, 1, 4);
    put(&r, CHECKPOINT | 2, 4);
    put(&r, 3, 4);
    rig_close(&r);
    r.refuse_with = CS_ENOMEM;
    for (uint32_t k = 0; k < 2; k++) {
        r.refuse_number = k ? CHECKPOINT | 2 : 1;
        assert_int_equal(rig_try_open(&r, err, sizeof err), CS_ENOMEM);
        assert_null(r.tier);
        assert_true(err[0] != '\0');
    }
    r.refuse_number = UINT32_MAX;
    rig_open(&r);
    assert_int_equal(r.n_seen, 3);
    rig_destroy(&r);
}

static void test_many_reads_cost_few_submissions(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    enum { N = 32 };
    struct span_io *s[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(span_wait(s[i]), TIER_OK);
    struct cs_stats before = rig_stats(&r);
    spans_read_begin(s, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(span_wait(s[i]), TIER_OK);
        assert_true(span_bytes_right(s[i]));
        span_free(s[i]);
    }
    /* A record of one run is one request; requests go to io_uring in bunches. */
    struct cs_stats after = rig_stats(&r);
    assert_int_equal(after.sqes - before.sqes, N);
    uint64_t most = strcmp(after.disk_engine, "uring") == 0 ? N / 4 : N;
    assert_true(after.submissions - before.submissions <= most);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_durable_span_reads_back),
        cmocka_unit_test(test_part_of_a_span_reads_back),
        cmocka_unit_test(test_reopen_reports_spans_newest_first),
        cmocka_unit_test(test_wrong_question_is_refused),
        cmocka_unit_test(test_files_are_their_owners_alone),
        cmocka_unit_test(test_time_of_use_survives),
        cmocka_unit_test(test_refused_row_is_deleted),
        cmocka_unit_test(test_error_of_the_store_ends_the_open_and_deletes_nothing),
        cmocka_unit_test(test_many_reads_cost_few_submissions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
