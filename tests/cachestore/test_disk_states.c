/* Checkpoints over the real disk tier: warm after a clean close, after kill -9, and over a disk that is too
 * small. */
#include "tests/cachestore/disk_dir.h"
#include "tests/cachestore/stateful.h"

#include <string.h>
#include <unistd.h>

static const struct cs_boundary system_only[] = {{.position = 21, .kind = CS_BOUNDARY_SYSTEM}};

static struct cs_config states_config(uint32_t arena_pages)
{
    struct cs_config c = stateful_config(arena_pages);
    c.index_bytes = 8 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    return c;
}

static struct cs_config busy_config(void)
{
    struct cs_config c = states_config(150);
    c.disk_bytes = 24 << 20;
    c.flush_interval_ms = 5;
    c.checkpoint_grace_ms = 3;
    return c;
}

static void a_clean_close_leaves_checkpoints_warm(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = states_config(256);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[130];
    make_ids(ids, 130, 130, 0);
    const struct cs_boundary system = {.position = 21, .kind = CS_BOUNDARY_SYSTEM};
    for (uint32_t n = 30; n < 120; n += 30) /* three turns: checkpoints at 16, 32, 64 and 96 */
        run_turn(s, &c, 0, ids, n, n + 9, &system, 1);
    assert_int_equal(stats_of(s).checkpoints, 4);
    assert_true(stats_of(s).pending_bytes > 0);
    cs_close(s, FLUSH_MS);

    s = tiny_open(&c);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.checkpoints, 4);
    assert_int_equal(st.disk_checkpoints, 4);
    assert_int_equal(st.disk_spans, st.spans);
    struct run r;
    assert_int_equal(run_start(&r, s, &c, 0, ids, 125), 96);
    assert_int_equal(r.reuse.tokens_disk, 96);
    assert_int_equal(run_compute(&r, 125, 9), CS_OK);
    run_close(&r);
    uint32_t other[130];
    make_ids(other, 130, 30, 3); /* another user of the system prompt */
    assert_int_equal(run_start(&r, s, &c, 0, other, 125), 16);
    run_close(&r);
    st = stats_of(s);
    assert_int_equal(st.checkpoints_read, 2);
    assert_int_equal(st.corrupt_header + st.corrupt_tokens + st.corrupt_payload + st.io_errors, 0);
    check_balance(s);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

static void count_warning(void *ctx, enum cs_log_level level, const char *line)
{
    *(unsigned *)ctx += level == CS_LOG_WARN && strstr(line, "checkpoints of 306 blocks");
}

static void a_checkpoint_whose_header_fills_more_than_a_chunk_stays_in_memory(void **state)
{
    (void)state;
    disk_dir_make();
    unsigned n_warnings = 0;
    struct cs_config c = states_config(2000);
    c.state_bytes = 300 * PAGE;
    c.checkpoint_grace_ms = UINT32_MAX;
    c.log = count_warning;
    c.log_ctx = &n_warnings;
    struct cs_store *s = tiny_open(&c);
    assert_int_equal(n_warnings, 1);
    uint32_t ids[130];
    make_ids(ids, 130, 130, 0);
    struct run r;
    for (uint32_t n = 60; n <= 120; n += 30) /* published again and again, and still no write */
        run_turn(s, &c, 0, ids, n - 1, n, NULL, 0);
    assert_int_equal(cs_flush(s, FLUSH_MS), CS_OK);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.checkpoints, 3);
    assert_int_equal(st.disk_checkpoints + st.io_errors, 0);
    assert_int_equal(st.disk_spans, st.spans);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 125), 120);
    run_close(&r);
    cs_close(s, FLUSH_MS);
    s = tiny_open(&c);
    assert_int_equal(run_start(&r, s, &c, 0, ids, 125), 0);
    assert_int_equal(r.reuse.miss, CS_MISS_STATE);
    run_close(&r);
    cs_close(s, FLUSH_MS);
    disk_dir_remove();
}

/* ---- children ---------------------------------------------------------------------------------------- */

/* A turn of 40 tokens and a reply up to 50; each third number is told once it is durable. */
static void child_durable(uint32_t first, int fd)
{
    struct cs_config c = states_config(4000);
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = first;; k++) {
        uint32_t ids[60];
        make_ids(ids, 60, 22, k);
        run_turn(s, &c, 0, ids, 40, 50, system_only, 1);
        if (k % 3 == 0 && cs_flush(s, FLUSH_MS) == CS_OK && write(fd, &k, sizeof k) != sizeof k)
            _exit(1);
    }
}

static void make_busy_ids(uint32_t *ids, uint32_t k)
{
    make_ids(ids, 60, 4 * (k % 9), k % 300 + 1);
}

/* Over a disk and a device much smaller than what is published; checks all that it resumes from. */
static void child_busy(uint32_t seed, int fd)
{
    struct cs_config c = busy_config();
    struct cs_store *s = tiny_open(&c);
    for (uint32_t k = seed;; k = k % 2700 + 1) {
        uint32_t ids[60];
        make_busy_ids(ids, k);
        run_turn(s, &c, 0, ids, 40, 50, system_only, 1);
        if (write(fd, &k, sizeof k) != sizeof k)
            _exit(1);
    }
}

static void durable_checkpoints_survive_kill_9(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = states_config(4000);
    uint32_t first = 1;
    for (int round = 0; round < 3; round++) {
        uint32_t last = disk_child_kill("durable", first, 2 + (uint32_t)round * 2);
        struct cs_store *s = tiny_open(&c);
        for (uint32_t k = 1; k <= last; k++) {
            uint32_t ids[60];
            struct run r;
            make_ids(ids, 60, 22, k);
            assert_int_equal(run_start(&r, s, &c, 0, ids, 60), 48);
            run_close(&r);
        }
        struct cs_stats st = stats_of(s);
        assert_int_equal(st.corrupt_header + st.corrupt_tokens + st.corrupt_payload + st.io_errors, 0);
        check_balance(s);
        cs_close(s, FLUSH_MS);
        first = last + 1;
    }
    disk_dir_remove();
}

static void a_kill_at_any_moment_leaves_only_state_that_is_right(void **state)
{
    (void)state;
    disk_dir_make();
    struct cs_config c = busy_config();
    uint64_t rng = 99, found = 0;
    for (int round = 0; round < 6; round++) {
        uint32_t first = 1 + (uint32_t)(random_next(&rng) % 2000);
        disk_child_kill("busy", first, 40 + (uint32_t)(random_next(&rng) % 400));
        struct cs_store *s = tiny_open(&c);
        for (uint32_t k = first; k < first + 440; k++) {
            uint32_t ids[60];
            struct run r;
            make_busy_ids(ids, k);
            found += run_start(&r, s, &c, 0, ids, 60);
            run_close(&r);
        }
        check_balance(s);
        cs_close(s, FLUSH_MS);
    }
    assert_true(found > 0);
    disk_dir_remove();
}

int main(int argc, char **argv)
{
    int fd;
    uint32_t number;
    const char *what = disk_child_is(argc, argv, &number, &fd);
    if (what && strcmp(what, "durable") == 0)
        child_durable(number, fd);
    if (what)
        child_busy(number, fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clean_close_leaves_checkpoints_warm),
        cmocka_unit_test(a_checkpoint_whose_header_fills_more_than_a_chunk_stays_in_memory),
        cmocka_unit_test(durable_checkpoints_survive_kill_9),
        cmocka_unit_test(a_kill_at_any_moment_leaves_only_state_that_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
