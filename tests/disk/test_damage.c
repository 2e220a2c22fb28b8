/*
 * Damage to a store that is closed: every changed byte of a record is a miss of that record and of no other,
 * a damaged STORE file is refused and left alone, a damaged or missing catalogue is rebuilt.
 */
#include "tests/disk/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachestore/catalog.h"
#include "formats/record.h"

enum { N = 6, PAGES = 20 };

/* Where the record of span `number` begins in volume.000. */
static uint64_t record_offset(const struct rig *r, uint32_t number)
{
    static uint8_t header[4096] __attribute__((aligned(8)));
    int fd = open(rig_path(r, "volume.000"), O_RDONLY);
    assert_true(fd >= 0);
    for (uint64_t at = 0; pread(fd, header, sizeof header, (off_t)at) == sizeof header; at += CHUNK) {
        struct fmt_record rec;
        if (fmt_record_decode(header, sizeof header, &rec) == FMT_RECORD_OK && rec.key[0] == number) {
            close(fd);
            return at;
        }
    }
    close(fd);
    fail_msg("span %u is not in volume.000", number);
    return 0;
}

static void filled(struct rig *r)
{
    rig_init_in_memory(r, true);
    rig_open(r);
    struct span_io *s[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(r, i, PAGES);
        span_write(s[i]);
    }
    tier_disk_kick(r->tier);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(span_wait(s[i]), TIER_OK);
        span_free(s[i]);
    }
    rig_close(r);
}

static enum tier_result get_seen(struct rig *r, uint32_t number)
{
    const struct seen_span *s = find_seen(r, number);
    return s == NULL ? TIER_NOTFOUND : get(r, s->id, number, s->n_pages);
}

/* Of a whole disk that is bad not one each: a few, and how many more. */
static void test_each_damaged_record_is_said_once_but_of_many_only_the_first(void **state)
{
    (void)state;
    enum { BAD = 11, SAID = 8 };
    struct rig r;
    struct record_id id[BAD];
    rig_init_in_memory(&r, true);
    rig_open(&r);
    for (uint32_t i = 0; i < BAD; i++)
        id[i] = put(&r, i, PAGES);
    for (uint32_t i = 0; i < BAD; i++)
        flip(rig_path(&r, "volume.000"), record_offset(&r, i) + (i == 0 ? 300 : 2 * 4096), 1);
    assert_int_equal(r.n_warnings, 0);
    char name[40];
    for (uint32_t i = 0; i < BAD; i++) {
        enum tier_result bad = i == 0 ? TIER_CORRUPT_HEADER : TIER_CORRUPT_PAYLOAD;
        for (unsigned again = 0; again < 2; again++) {
            assert_int_equal(get(&r, id[i], i, PAGES), bad);
            assert_int_equal(r.n_warnings, i < SAID ? i + 1 : SAID);
        }
        snprintf(name, sizeof name, "%016llx-%016llx", (unsigned long long)id[i].nonce,
                 (unsigned long long)id[i].sequence);
        assert_int_equal(strstr(r.last_log, name) != NULL, i < SAID);
        assert_non_null(strstr(r.last_log, "at token "));
        assert_non_null(strstr(r.last_log, i == 0 ? "header" : "damaged"));
    }
    r.watch = "3 more records";
    rig_close(&r);
    assert_int_equal(r.n_warnings, SAID + 1);
    assert_int_equal(r.n_watched, 1);
    rig_destroy(&r);
}

static void test_any_changed_byte_is_a_miss_of_its_record_only(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    uint64_t at = record_offset(&r, 2);
    /* Every field of the header, its checksum, ids, sums, then pages. */
    static const uint32_t offsets[] = {0,
                                       7,
                                       8,
                                       12,
                                       16,
                                       31,
                                       32,
                                       40,
                                       47,
                                       48,
                                       52,
                                       56,
                                       64,
                                       80,
                                       96,
                                       128,
                                       144,
                                       148,
                                       152,
                                       156,
                                       160,
                                       168,
                                       176,
                                       255,
                                       256,
                                       260,
                                       264,
                                       300,
                                       500,
                                       700,
                                       1000,
                                       2000,
                                       4087,
                                       4088,
                                       4095,
                                       4096,
                                       4097,
                                       8191,
                                       8192,
                                       5 * 4096 + 77,
                                       20 * 4096 + 4095};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        uint8_t mask = (uint8_t)(1u << (i % 8));
        flip(rig_path(&r, "volume.000"), at + offsets[i], mask);
        rig_open(&r);
        assert_int_equal(r.n_seen, N);
        enum tier_result result = get_seen(&r, 2);
        assert_int_equal(result, offsets[i] < 4096 ? TIER_CORRUPT_HEADER : TIER_CORRUPT_PAYLOAD);
        assert_int_equal(get_seen(&r, 1), TIER_OK);
        assert_int_equal(get_seen(&r, 3), TIER_OK);
        rig_close(&r);
        flip(rig_path(&r, "volume.000"), at + offsets[i], mask);
    }
    rig_open(&r);
    assert_int_equal(get_seen(&r, 2), TIER_OK);
    rig_destroy(&r);
}

/* A record that is whole but of another place: the header says so, and seeds make every page fail. */
static void test_misplaced_and_stale_records_are_misses(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    uint64_t from = record_offset(&r, 1), to = record_offset(&r, 4);
    static uint8_t buffer[4096 * (PAGES + 1)];
    int fd = open(rig_path(&r, "volume.000"), O_RDWR);
    assert_int_equal(pread(fd, buffer, sizeof buffer, (off_t)from), sizeof buffer);
    assert_int_equal(pwrite(fd, buffer, sizeof buffer, (off_t)to), sizeof buffer);
    rig_open(&r);
    assert_int_equal(get_seen(&r, 4), TIER_CORRUPT_HEADER);
    assert_int_equal(get_seen(&r, 1), TIER_OK);
    rig_close(&r);
    /* Only a page of it. */
    uint64_t other = record_offset(&r, 3);
    assert_int_equal(pwrite(fd, buffer + 4096 * 5, 4096, (off_t)(other + 4096 * 5)), 4096);
    close(fd);
    rig_open(&r);
    assert_int_equal(get_seen(&r, 3), TIER_CORRUPT_PAYLOAD);
    rig_destroy(&r);
}

static void test_volume_cut_short_loses_only_what_it_held(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    uint64_t at = record_offset(&r, 5);
    assert_int_equal(truncate(rig_path(&r, "volume.000"), (off_t)(at + CHUNK)), 0);
    rig_open(&r);
    assert_int_equal(r.n_seen, N - 1);
    assert_null(find_seen(&r, 5));
    for (uint32_t i = 0; i < N - 1; i++)
        assert_int_equal(get_seen(&r, i), TIER_OK);
    put(&r, 50, PAGES);
    rig_close(&r);
    assert_int_equal(unlink(rig_path(&r, "volume.000")), 0);
    rig_open(&r);
    assert_int_equal(r.n_seen, 0);
    struct record_id id = put(&r, 60, PAGES);
    assert_int_equal(get(&r, id, 60, PAGES), TIER_OK);
    rig_destroy(&r);
}

/* The file shrinks while the store is open: the read ends early. */
static void test_volume_cut_while_open_is_a_miss(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    uint64_t at = record_offset(&r, 5);
    rig_open(&r);
    assert_int_equal(truncate(rig_path(&r, "volume.000"), (off_t)(at + 4096 * 8)), 0);
    enum tier_result result = get_seen(&r, 5);
    assert_true(result == TIER_CORRUPT_HEADER || result == TIER_CORRUPT_PAYLOAD);
    assert_int_equal(get_seen(&r, 1), TIER_OK);
    rig_destroy(&r);
}

static void test_damaged_store_file_is_refused_and_left_alone(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    char err[256];
    struct stat st;
    assert_int_equal(stat(rig_path(&r, "STORE"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(r.dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(rig_path(&r, "STORE"), &st), 0);
    for (off_t i = 0; i < st.st_size; i++) {
        flip(rig_path(&r, "STORE"), (uint64_t)i, 1);
        int rc = rig_try_open(&r, err, sizeof err);
        assert_true(rc == CS_EFORMAT || rc == CS_EVERSION);
        assert_null(r.tier);
        flip(rig_path(&r, "STORE"), (uint64_t)i, 1);
    }
    /* Cut short, empty, missing. */
    static char text[1024];
    int fd = open(rig_path(&r, "STORE"), O_RDWR);
    ssize_t len = read(fd, text, sizeof text);
    assert_true(len > 100);
    assert_int_equal(ftruncate(fd, len / 2), 0);
    assert_int_equal(rig_try_open(&r, err, sizeof err), CS_EFORMAT);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(rig_try_open(&r, err, sizeof err), CS_EFORMAT);
    assert_int_equal(unlink(rig_path(&r, "STORE")), 0);
    assert_int_equal(rig_try_open(&r, err, sizeof err), CS_EFORMAT);
    close(fd);
    fd = open(rig_path(&r, "STORE"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, text, (size_t)len), len);
    close(fd);
    rig_open(&r);
    assert_int_equal(r.n_seen, N);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&r, i), TIER_OK);
    rig_destroy(&r);
}

static void test_other_format_version_is_named(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    char err[256];
    flip(rig_path(&r, "STORE"), strlen("isotherm-store "), '2' ^ '7');
    assert_int_equal(rig_try_open(&r, err, sizeof err), CS_EVERSION);
    assert_non_null(strstr(err, "7"));
    rig_destroy(&r);
}

static void test_directory_of_others_is_not_taken(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    char err[256];
    int fd = open(rig_path(&r, "thesis.doc"), O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(rig_try_open(&r, err, sizeof err), CS_EFORMAT);
    assert_int_not_equal(access(rig_path(&r, "STORE"), F_OK), 0);
    rig_destroy(&r);
}

static void test_second_open_is_busy(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    rig_open(&r);
    struct rig second = r;
    second.tier = NULL;
    second.seen = NULL;
    char err[256];
    assert_int_equal(rig_try_open(&second, err, sizeof err), CS_EBUSY);
    assert_non_null(strstr(err, "in use"));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&r, i), TIER_OK);
    rig_destroy(&r);
}

static void test_missing_catalogue_is_rebuilt(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    uint64_t damaged = record_offset(&r, 3);
    flip(rig_path(&r, "volume.000"), damaged + 300, 1);
    remove_tree(rig_path(&r, "catalog"));
    rig_open(&r);
    assert_int_equal(r.n_seen, N - 1); /* the damaged header is no header */
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&r, i), i == 3 ? TIER_NOTFOUND : TIER_OK);
    assert_true(tier_disk_next_id(r.tier).sequence > r.seen[0].id.sequence);
    struct record_id id = put(&r, 77, PAGES);
    rig_reopen(&r);
    assert_int_equal(get(&r, id, 77, PAGES), TIER_OK);
    rig_destroy(&r);
}

/* Each file of the catalogue in turn: garbage, cut in half, emptied, removed. Whatever RocksDB makes of it,
 * the store opens, and what it still has is right. */
static void test_damaged_catalogue_never_gives_wrong_bytes(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        for (int which = 0;; which++) {
            struct rig r;
            filled(&r);
            rig_open(&r); /* a second life, so that tables and a log exist side by side */
            put(&r, 10, PAGES);
            rig_close(&r);
            DIR *d = opendir(rig_path(&r, "catalog"));
            assert_non_null(d);
            char victim[300] = "";
            int i = 0;
            for (struct dirent *e; (e = readdir(d)) != NULL;) {
                if (e->d_name[0] != '.' && strcmp(e->d_name, "LOCK") != 0 && i++ == which)
                    snprintf(victim, sizeof victim, "catalog/%s", e->d_name);
            }
            closedir(d);
            if (victim[0] == 0) {
                assert_true(which >= 4);
                rig_destroy(&r);
                break;
            }
            struct stat st;
            assert_int_equal(stat(rig_path(&r, victim), &st), 0);
            if (way == 0) {
                for (off_t at = 3; at < st.st_size; at += 37)
                    flip(rig_path(&r, victim), (uint64_t)at, 0x55);
            } else if (way < 3) {
                assert_int_equal(truncate(rig_path(&r, victim), way == 1 ? st.st_size / 2 : 0), 0);
            } else {
                assert_int_equal(unlink(rig_path(&r, victim)), 0);
            }
            rig_open(&r);
            for (size_t k = 0; k < r.n_seen; k++)
                assert_int_equal(get(&r, r.seen[k].id, r.seen[k].number, r.seen[k].n_pages), TIER_OK);
            struct record_id id = put(&r, 20, PAGES);
            rig_reopen(&r);
            assert_int_equal(get(&r, id, 20, PAGES), TIER_OK);
            rig_destroy(&r);
        }
    }
}

/* Rows of notes lie in blocks of their own: what is damaged there costs notes, never the store. */
static void test_damaged_notes_cost_notes_only(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    rig_open(&r);
    static char bytes[16 << 10];
    struct cs_note note = {.key = {1, 1}, .data = bytes, .len = sizeof bytes};
    for (int i = 0; i < 20; i++) {
        struct note_record n = {
            .id = tier_disk_next_id(r.tier), .owner = r.seen[0].id, .notes = &note, .n_notes = 1};
        assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    }
    rig_close(&r);
    DIR *d = opendir(rig_path(&r, "catalog"));
    assert_non_null(d);
    char largest[300] = "";
    off_t size = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        char name[300];
        snprintf(name, sizeof name, "catalog/%s", e->d_name);
        if (strstr(name, ".sst") != NULL && stat(rig_path(&r, name), &st) == 0 && st.st_size > size) {
            size = st.st_size;
            memcpy(largest, name, sizeof largest);
        }
    }
    closedir(d);
    assert_true(size > (off_t)(20 * sizeof bytes)); /* rows are sorted: notes first */
    flip(rig_path(&r, largest), 1000, 1);
    rig_open(&r);
    assert_int_equal(r.n_seen, N);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&r, i), TIER_OK);
    struct record_id id = put(&r, 20, PAGES);
    rig_reopen(&r);
    assert_int_equal(get(&r, id, 20, PAGES), TIER_OK);
    rig_destroy(&r);
}

/* No descriptors left: the tier cannot be had now, and its catalogue is as it was when they are back. */
static void test_shortage_of_descriptors_does_not_cost_the_catalogue(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    rig_open(&r);
    struct cs_note note = {.key = {1, 1}, .data = "text", .len = 4};
    struct note_record n = {
        .id = tier_disk_next_id(r.tier), .owner = r.seen[0].id, .notes = &note, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    rig_close(&r);
    struct rlimit old, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    unsigned n_refused = 0, n_opened = 0;
    for (rlim_t limit = 4; limit < 40; limit++) {
        char err[256] = "";
        few = (struct rlimit){.rlim_cur = limit, .rlim_max = old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = rig_try_open(&r, err, sizeof err);
        assert_true(rc == CS_OK || rc == CS_EIO);
        n_opened += rc == CS_OK;
        n_refused += rc != CS_OK;
        if (rc != CS_OK)
            assert_true(err[0] != 0);
        else
            assert_int_equal(r.n_notes_seen, 1);
        rig_close(&r);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    }
    assert_true(n_opened > 0 && n_refused > 0);
    rig_destroy(&r);
}

static void test_catalogue_of_another_store_is_not_believed(void **state)
{
    (void)state;
    struct rig a, b;
    filled(&a);
    filled(&b);
    char from[512];
    snprintf(from, sizeof from, "%s/catalog", a.dir);
    remove_tree(rig_path(&b, "catalog"));
    assert_int_equal(rename(from, rig_path(&b, "catalog")), 0);
    rig_open(&b);
    assert_int_equal(b.n_seen, N);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&b, i), TIER_OK);
    rig_destroy(&a);
    rig_destroy(&b);
}

struct one_row {
    uint64_t words[512];
    size_t len;
    uint32_t number;
};

static int take_row(void *ctx, const struct catalog_row *from)
{
    struct one_row *row = ctx;
    struct fmt_record rec;
    assert_int_equal(fmt_record_row_decode(from->value, from->len, &rec), FMT_RECORD_OK);
    if (rec.key[0] == row->number) {
        assert_true(from->len <= sizeof row->words);
        memcpy(row->words, from->value, from->len);
        row->len = from->len;
    }
    return 0;
}

/* A power cut may bring a deleted row back: a second row with the chunks of span 2, older or newer than its
 * own. */
static void put_rival_row(struct rig *r, int64_t age)
{
    struct one_row row = {.number = 2};
    struct fmt_record rec;
    struct catalog *c = rig_catalog_open(r, false);
    assert_int_equal(catalog_scan(c, CATALOG_RECORD, take_row, &row), CS_OK);
    assert_int_equal(fmt_record_row_decode(row.words, row.len, &rec), FMT_RECORD_OK);
    uint64_t rival[512];
    rec.id_sequence += (uint64_t)age;
    rec.key[0] = 99;
    rec.key[1] = ~99ull;
    uint32_t ids[PAGES * PT];
    for (uint32_t i = 0; i < PAGES * PT; i++)
        ids[i] = 99 * 1000 + i;
    rec.ids = ids;
    assert_int_equal(fmt_record_row_encode(&rec, rival, row.len), FMT_RECORD_OK);
    struct record_id id = {.nonce = rec.id_nonce, .sequence = rec.id_sequence};
    catalog_put(c, CATALOG_RECORD, id, rival, row.len);
    assert_int_equal(catalog_commit(c, true), CS_OK);
    rig_catalog_close(r, c);
}

static void test_of_two_rows_for_a_chunk_the_newest_keeps_it(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    put_rival_row(&r, -1000);
    rig_open(&r);
    assert_int_equal(r.n_seen, N);
    assert_null(find_seen(&r, 99));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(get_seen(&r, i), TIER_OK);
    rig_close(&r);
    put_rival_row(&r, 1000);
    for (int opens = 0; opens < 2; opens++) {
        rig_open(&r);
        assert_int_equal(r.n_seen, N);
        assert_null(find_seen(&r, 2)); /* its row is gone for good */
        assert_int_equal(get_seen(&r, 99), TIER_CORRUPT_HEADER);
        assert_int_equal(get_seen(&r, 3), TIER_OK);
        rig_close(&r);
    }
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_damaged_record_is_said_once_but_of_many_only_the_first),
        cmocka_unit_test(test_any_changed_byte_is_a_miss_of_its_record_only),
        cmocka_unit_test(test_misplaced_and_stale_records_are_misses),
        cmocka_unit_test(test_volume_cut_short_loses_only_what_it_held),
        cmocka_unit_test(test_volume_cut_while_open_is_a_miss),
        cmocka_unit_test(test_damaged_store_file_is_refused_and_left_alone),
        cmocka_unit_test(test_other_format_version_is_named),
        cmocka_unit_test(test_directory_of_others_is_not_taken),
        cmocka_unit_test(test_second_open_is_busy),
        cmocka_unit_test(test_of_two_rows_for_a_chunk_the_newest_keeps_it),
        cmocka_unit_test(test_missing_catalogue_is_rebuilt),
        cmocka_unit_test(test_damaged_catalogue_never_gives_wrong_bytes),
        cmocka_unit_test(test_damaged_notes_cost_notes_only),
        cmocka_unit_test(test_shortage_of_descriptors_does_not_cost_the_catalogue),
        cmocka_unit_test(test_catalogue_of_another_store_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
