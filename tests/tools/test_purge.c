/* What the disk tier does for who looks after an open store: deletion that holds against a rebuild, headers
 * of earlier records zeroed, pins. */
#include "tests/disk/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool nothing_asked(void *rig)
{
    uint64_t asked, failed;
    tier_disk_asked(((struct rig *)rig)->tier, &asked, &failed);
    return asked == 0;
}

static uint64_t failures(struct rig *r)
{
    uint64_t asked, failed;
    assert_true(wait_until(nothing_asked, r));
    tier_disk_asked(r->tier, &asked, &failed);
    return failed;
}

static struct tier_place place_of(struct rig *r, struct record_id id)
{
    struct tier_place place = {0};
    assert_int_equal(tier_disk_locate(r->tier, id, &place), CS_OK);
    return place;
}

/* A whole header lies in the chunk. */
static bool header_is_at(struct rig *r, struct tier_place place)
{
    static _Alignas(8) uint8_t block[FMT_RECORD_ALIGN];
    char name[16];
    struct fmt_record record;
    snprintf(name, sizeof name, "volume.%03u", place.volume);
    int fd = open(rig_path(r, name), O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, block, sizeof block, (off_t)place.first_chunk * CHUNK), sizeof block);
    close(fd);
    return fmt_record_decode(block, sizeof block, &record) == FMT_RECORD_OK;
}

/* The catalogue is lost, and made again from headers. */
static void rebuild(struct rig *r)
{
    rig_close(r);
    remove_tree(rig_path(r, "catalog"));
    rig_open(r);
}

static void test_what_is_purged_stays_away_and_what_is_deleted_may_come_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    struct record_id first = put(&r, 1, 12), second = put(&r, 2, 30), third = put(&r, 3, 12);
    struct tier_place at = place_of(&r, second);
    tier_disk_purge(r.tier, second);
    assert_int_equal(get(&r, second, 2, 30), TIER_NOTFOUND);
    tier_disk_purge(r.tier, second); /* once more does no harm */
    tier_disk_delete(r.tier, third);
    assert_int_equal(failures(&r), 0);
    assert_true(wait_until(deletes_done, &r));
    assert_false(header_is_at(&r, at));
    struct tier_place none;
    assert_int_equal(tier_disk_locate(r.tier, second, &none), CS_ENOTFOUND);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - CHUNK);
    rebuild(&r);
    assert_non_null(find_seen(&r, 1));
    assert_null(find_seen(&r, 2));
    assert_non_null(find_seen(&r, 3));
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    rig_destroy(&r);
}

static void test_a_write_under_way_is_purged_too(void **state)
{
    (void)state;
    enum { N = 16 };
    struct rig r;
    struct span_io *s[N];
    rig_init(&r);
    rig_open(&r);
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, 10 + i, 12);
        span_write(s[i]);
        if (i % 4 == 1)
            tier_disk_kick(r.tier);
        if (i % 2 == 1)
            tier_disk_purge(r.tier, s[i]->w.record.id);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++) {
        enum tier_result result = span_wait(s[i]);
        assert_true(result == TIER_OK || (i % 2 == 1 && result == TIER_CANCELLED));
        span_free(s[i]);
    }
    assert_int_equal(failures(&r), 0);
    rebuild(&r);
    assert_int_equal(r.n_seen, N / 2);
    for (uint32_t i = 0; i < N; i++)
        assert_true((find_seen(&r, 10 + i) != NULL) == (i % 2 == 0));
    rig_destroy(&r);
}

/* Readers that have begun get their bytes; the header goes when the last one has. Chunks are used again only
 * then. */
static void test_readers_and_writers_beside_a_purge(void **state)
{
    (void)state;
    enum { ROUNDS = 12, READS = 6 };
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct record_id id = put(&r, 100 + round, 12);
        struct span_io *s[READS];
        for (unsigned i = 0; i < READS; i++) {
            s[i] = span_make(&r, 100 + round, 12);
            span_read_begin(s[i], id, 0, 12);
            if (i == READS / 2)
                tier_disk_purge(r.tier, id);
        }
        struct record_id other = put(&r, 1000 + round, 12);
        for (unsigned i = 0; i < READS; i++) {
            enum tier_result result = span_wait(s[i]);
            assert_true(result == TIER_OK ? span_bytes_right(s[i]) : result == TIER_NOTFOUND);
            span_free(s[i]);
        }
        assert_int_equal(failures(&r), 0);
        assert_int_equal(get(&r, other, 1000 + round, 12), TIER_OK);
    }
    rebuild(&r);
    assert_int_equal(r.n_seen, ROUNDS);
    rig_destroy(&r);
}

static void test_headers_of_earlier_records_and_of_other_models_are_zeroed(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.fingerprint[0] = 1;
    rig_open(&r);
    struct record_id theirs = put(&r, 1, 12), theirs_too = put(&r, 2, 12);
    struct tier_place their_place = place_of(&r, theirs);
    rig_close(&r);
    r.config.fingerprint[0] = 2;
    rig_open(&r);
    struct record_id ours = put(&r, 3, 12), gone = put(&r, 4, 12);
    struct tier_place our_place = place_of(&r, ours), gone_place = place_of(&r, gone);
    tier_disk_delete(r.tier, gone);
    assert_true(wait_until(deletes_done, &r));
    assert_true(header_is_at(&r, gone_place));
    assert_int_equal(tier_disk_erase(r.tier, gone, &gone_place, FMT_RECORD_ALIGN), CS_OK);
    assert_int_equal(tier_disk_erase(r.tier, theirs, &their_place, FMT_RECORD_ALIGN), CS_OK);
    /* Not what is in use, whatever it is called, and not what is not there. */
    assert_int_equal(tier_disk_erase(r.tier, ours, &our_place, FMT_RECORD_ALIGN), CS_EBUSY);
    assert_int_equal(tier_disk_erase(r.tier, gone, &our_place, FMT_RECORD_ALIGN), CS_OK);
    const struct tier_place nowhere[] = {{0, UINT32_MAX}, {9, 0}, {UINT32_MAX, UINT32_MAX}};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(tier_disk_erase(r.tier, gone, &nowhere[i], CHUNK), CS_OK);
    assert_int_equal(tier_disk_erase(r.tier, gone, &gone_place, 0), CS_EINVAL);
    assert_int_equal(tier_disk_erase(r.tier, gone, &gone_place, 2 * CHUNK), CS_EINVAL);
    assert_int_equal(failures(&r), 0);
    assert_true(wait_until(deletes_done, &r));
    assert_false(header_is_at(&r, gone_place));
    assert_false(header_is_at(&r, their_place));
    assert_true(header_is_at(&r, our_place));
    assert_int_equal(rig_stats(&r).records_foreign, 1);
    /* The rest of the others leaves in its turn all the same. */
    rig_fill(&r, 100, 12);
    assert_true(wait_until(nothing_pending, &r));
    assert_int_equal(rig_stats(&r).records_foreign, 0);
    (void)theirs_too;
    rig_destroy(&r);
}

static void test_what_cannot_be_zeroed_is_counted(void **state)
{
    (void)state;
    enum { N = 20 };
    struct rig r;
    struct record_id id[N];
    rig_init(&r);
    r.config.extent_bytes = 4 << 20;
    rig_open(&r);
    for (uint32_t i = 0; i < N; i++)
        id[i] = put(&r, 10 + i, 12);
    files_limit(1 << 20); /* refuses the last four */
    for (uint32_t i = 0; i < N; i++)
        if (i % 2 == 0)
            tier_disk_purge(r.tier, id[i]);
    uint64_t n = failures(&r);
    files_unlimit();
    assert_int_equal(n, 2);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get(&r, id[i], 10 + i, 12), i % 2 == 0 ? TIER_NOTFOUND : TIER_OK);
    rig_destroy(&r);
}

static void test_pins_are_written_and_go_with_their_record(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id first = put(&r, 1, 12), second = put(&r, 2, 12), third = put(&r, 3, 12);
    assert_int_equal(tier_disk_pin(r.tier, first, true), CS_OK);
    assert_int_equal(tier_disk_pin(r.tier, second, true), CS_OK);
    assert_int_equal(tier_disk_pin(r.tier, third, true), CS_OK);
    assert_int_equal(failures(&r), 0);
    rig_reopen(&r);
    assert_true(find_seen(&r, 1)->record.pinned && find_seen(&r, 2)->record.pinned);
    assert_int_equal(tier_disk_pin(r.tier, first, false), CS_OK);
    assert_int_equal(failures(&r), 0);
    tier_disk_delete(r.tier, second);
    tier_disk_purge(r.tier, third);
    assert_int_equal(tier_disk_pin(r.tier, second, true), CS_ENOTFOUND);
    assert_int_equal(failures(&r), 0);
    assert_true(wait_until(deletes_done, &r));
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_false(find_seen(&r, 1)->record.pinned);
    rig_close(&r);
    assert_int_equal(rig_rows(&r, CATALOG_PINNED), 0);
    rig_open(&r);
    rig_destroy(&r);
}

static void test_the_purge_epoch_is_in_what_is_written_later(void **state)
{
    (void)state;
    struct rig r;
    struct store_file store;
    char err[160];
    rig_init(&r);
    rig_open(&r);
    assert_int_equal(tier_disk_raise_epoch(r.tier), CS_OK);
    assert_int_equal(tier_disk_raise_epoch(r.tier), CS_OK);
    put(&r, 1, 12);
    rig_reopen(&r);
    assert_int_equal(get(&r, find_seen(&r, 1)->id, 1, 12), TIER_OK);
    assert_int_equal(tier_disk_raise_epoch(r.tier), CS_OK);
    rig_close(&r);
    int fd = open(rig_path(&r, "."), O_RDONLY | O_DIRECTORY);
    assert_int_equal(store_file_read(fd, &store, err, sizeof err), CS_OK);
    close(fd);
    assert_int_equal(store.purge_epoch, 3);
    rig_open(&r);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_purged_stays_away_and_what_is_deleted_may_come_back),
        cmocka_unit_test(test_a_write_under_way_is_purged_too),
        cmocka_unit_test(test_readers_and_writers_beside_a_purge),
        cmocka_unit_test(test_headers_of_earlier_records_and_of_other_models_are_zeroed),
        cmocka_unit_test(test_what_cannot_be_zeroed_is_counted),
        cmocka_unit_test(test_pins_are_written_and_go_with_their_record),
        cmocka_unit_test(test_the_purge_epoch_is_in_what_is_written_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
