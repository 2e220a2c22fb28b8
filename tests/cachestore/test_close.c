/* Closing a store within a limit: over a disk that answers, and over one that does not. */
#include "tests/cachestore/disk_dir.h"
#include "tests/support/stuck_writes.h"

#include <time.h>

enum { N_IDS = 101, LIMIT_MS = 60000 };

static struct cs_config config_of(void)
{
    struct cs_config c = tiny_config(256);
    c.index_bytes = 8 << 20;
    c.disk_dir = disk_dir;
    c.disk_bytes = 64 << 20;
    c.extent_bytes = 1 << 20;
    c.io_engine = CS_IO_PREAD;
    return c;
}

static void what_is_published_is_there_after_a_close_in_time(void **state)
{
    (void)state;
    uint32_t ids[N_IDS];
    disk_dir_make();
    struct cs_config c = config_of();
    make_ids(ids, N_IDS, N_IDS, 0);
    struct cs_store *s = tiny_open(&c);
    round_trip(s, NULL, ids, N_IDS);
    assert_int_equal(cs_close_within(s, LIMIT_MS, 2 * LIMIT_MS), CS_OK);
    s = tiny_open(&c); /* which it could not, were the lock still held */
    assert_int_equal(look_up(s, NULL, ids, N_IDS).tokens_disk, N_IDS - 1);
    assert_int_equal(cs_close_within(s, 0, LIMIT_MS), CS_OK);
    assert_int_equal(cs_close_within(NULL, 0, 0), CS_OK);
    disk_dir_remove();
}

static void a_disk_that_does_not_answer_is_left_with_what_it_has(void **state)
{
    (void)state;
    uint32_t ids[N_IDS];
    char err[200];
    disk_dir_make();
    struct cs_config c = config_of();
    make_ids(ids, N_IDS, N_IDS, 0);
    struct cs_store *s = tiny_open(&c), *second;
    stuck_writes(true);
    round_trip(s, NULL, ids, N_IDS);
    stuck_wait();
    assert_int_equal(cs_close_within(s, 10, 200), CS_EIO);
    assert_int_equal(cs_open(&c, &second, err, sizeof err), CS_EBUSY);

    /* When it answers after all, memory that it reads is still there, and then all goes. */
    stuck_writes(false);
    int rc;
    for (time_t until = time(NULL) + 30; (rc = cs_open(&c, &second, err, sizeof err)) == CS_EBUSY;) {
        assert_true(time(NULL) < until);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(rc, CS_OK);
    cs_close(second, FLUSH_MS);
    disk_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_published_is_there_after_a_close_in_time),
        cmocka_unit_test(a_disk_that_does_not_answer_is_left_with_what_it_has),
    };
    return cmocka_run_group_tests_name("close", tests, NULL, NULL);
}
