/*
 * The disk is never above its budget, RocksDB included: what all files of the store take is looked at
 * whenever one of them is about to be removed or to get another's name, which is when there is most of it. No
 * other file goes meanwhile, so no more is seen than there was.
 */
#include "cachestore/inspect.h"
#include "formats/note_row.h"
#include "tests/disk/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static const char *watched_dir;
static uint64_t most_bytes;
static unsigned n_looks;

static void look(void)
{
    if (watched_dir == NULL)
        return;
    uint64_t bytes = dir_bytes(watched_dir);
    if (bytes > most_bytes)
        most_bytes = bytes;
    n_looks++;
}

int unlink(const char *path)
{
    pthread_mutex_lock(&looking);
    look();
    int rc = (int)syscall(SYS_unlink, path);
    pthread_mutex_unlock(&looking);
    return rc;
}

int unlinkat(int fd, const char *name, int flags)
{
    pthread_mutex_lock(&looking);
    look();
    int rc = (int)syscall(SYS_unlinkat, fd, name, flags);
    pthread_mutex_unlock(&looking);
    return rc;
}

static void watch(const struct rig *r)
{
    pthread_mutex_lock(&looking);
    if (r != NULL)
        most_bytes = n_looks = 0;
    watched_dir = r != NULL ? r->dir : NULL;
    pthread_mutex_unlock(&looking);
}

static void rows_that_come_and_go(void **state)
{
    (void)state;
    enum { NOTE = 24 << 10, N = 64, ROUNDS = 40 };
    static char text[NOTE];
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    watch(&r);
    uint32_t n = rig_fill(&r, 0, 12);
    struct record_id owners[N], notes[N] = {{0, 0}};
    rig_close(&r);
    rig_open(&r);
    for (uint32_t i = 0; i < N; i++)
        owners[i] = r.seen[i % r.n_seen].id;
    struct cs_note note = {.key = {1, 1}, .data = text, .len = NOTE};
    unsigned refused = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < N; i++) {
            if (notes[i].sequence != 0 && i % 4 != 0)
                tier_disk_delete_notes(r.tier, owners[i], notes[i]);
            struct note_record row = {
                .id = tier_disk_next_id(r.tier), .owner = owners[i], .notes = &note, .n_notes = 1};
            if (tier_disk_write_notes(r.tier, &row) == CS_OK)
                notes[i] = row.id;
            else
                refused++;
            if (i % 8 == 0) {
                tier_disk_kick(r.tier);
                assert_true(wait_until(nothing_pending, &r));
            }
        }
        while (tier_disk_free_bytes(r.tier) >= (int64_t)tier_disk_record_bytes(r.tier, RECORD_SPAN, 12))
            put(&r, 100000 + n++, 12);
    }
    rig_close(&r);
    assert_true(refused > 0 && n_looks > 0);
    assert_true(most_bytes > r.config.disk_bytes / 2);
    assert_true(most_bytes <= r.config.disk_bytes);
    watch(NULL);
    rig_destroy(&r);
}

/* ---- two catalogues at a time -------------------------------------------------------------------------- */

enum { LONG_NOTE = 48 << 10 };

/* Full of records, and rows of notes that take most of the catalogue's share. Closed. */
static uint32_t full_store(struct rig *r, bool deletes_half)
{
    static char text[LONG_NOTE];
    rig_init_in_memory(r, true);
    rig_open(r);
    uint32_t n = rig_fill(r, 0, 12);
    rig_reopen(r);
    if (deletes_half) {
        for (size_t i = 0; i < r->n_seen / 2; i++)
            tier_disk_delete(r->tier, r->seen[i].id);
        tier_disk_settle(r->tier, 20000);
    }
    rig_reopen(r);
    rig_close(r);
    struct cs_note note = {.key = {1, 1}, .data = text, .len = LONG_NOTE};
    size_t len = fmt_notes_bytes(1, LONG_NOTE);
    void *value = malloc(len);
    struct fmt_note f = {.key = {note.key.lo, note.key.hi}, .data = note.data, .len = note.len};
    fmt_notes_add(&f, value, 0);
    struct catalog *c = rig_catalog_open(r, false);
    for (uint64_t i = 0; i < 70; i++) {
        struct record_id id = {.nonce = 1, .sequence = r->seen[i % r->n_seen].id.sequence + i};
        catalog_put_notes(c, r->seen[i % r->n_seen].id, id, value, len);
        assert_int_equal(catalog_commit(c, true), CS_OK);
    }
    rig_catalog_close(r, c);
    free(value);
    return n;
}

static int rebuild(struct rig *r, struct cs_rebuilt *made, char err[256])
{
    struct cs_inspect *in;
    assert_int_equal(cs_inspect_open(r->dir, &in, err, 256), CS_OK);
    int rc = cs_inspect_rebuild(in, made, err, 256);
    cs_inspect_close(in);
    return rc;
}

/* All chunks are records' that are there: it is refused, and says why; nothing has changed. */
static void a_rebuild_for_which_there_is_no_room_is_refused(void **state)
{
    (void)state;
    struct rig r;
    struct cs_rebuilt made;
    char err[256] = "";
    uint32_t n = full_store(&r, false);
    uint64_t before = dir_bytes(r.dir);
    assert_true(before <= r.config.disk_bytes);
    watch(&r);
    assert_int_equal(rebuild(&r, &made, err), CS_EIO);
    assert_non_null(strstr(err, "no room for a second catalogue"));
    watch(NULL);
    assert_true(most_bytes <= r.config.disk_bytes);
    assert_int_equal(rig_rows(&r, CATALOG_NOTES), 70);
    assert_int_equal(rig_rows(&r, CATALOG_RECORD), n);
    rig_open(&r);
    assert_int_equal(r.n_warnings, 0);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    rig_destroy(&r);
}

/* Half of the chunks have bytes of records that were evicted: those do not come back, and the rest does. */
static void a_rebuild_takes_the_room_of_what_was_evicted(void **state)
{
    (void)state;
    struct rig r;
    struct cs_rebuilt made;
    char err[256] = "";
    uint32_t n = full_store(&r, true);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    watch(&r);
    int rc = rebuild(&r, &made, err);
    watch(NULL);
    assert_int_equal(rc, CS_OK);
    assert_true(n_looks > 0 && most_bytes > r.config.disk_bytes / 2);
    assert_true(most_bytes <= r.config.disk_bytes);
    assert_int_equal(rig_rows(&r, CATALOG_NOTES), 70);
    assert_in_range(rig_rows(&r, CATALOG_RECORD), n - n / 2, n - 1);
    rig_open(&r);
    assert_int_equal(r.n_warnings, 0);
    assert_true(r.n_seen >= n - n / 2);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    rig_destroy(&r);
}

/* Its budget was lowered meanwhile: all records are there again, and the files take no more than they could
 * before. */
static void a_lost_catalogue_is_made_within_the_budget_there_was(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t n = rig_fill(&r, 0, 12);
    rig_close(&r);
    remove_tree(rig_path(&r, "catalog"));
    uint64_t budget = r.config.disk_bytes;
    r.config.disk_bytes /= 2;
    watch(&r);
    rig_open(&r);
    assert_true(r.n_seen >= n);
    for (uint32_t i = 0; i < n; i++) {
        const struct seen_span *s = find_seen(&r, i);
        assert_non_null(s);
        assert_int_equal(get(&r, s->id, i, 12), TIER_OK);
    }
    rig_close(&r);
    watch(NULL);
    assert_true(n_looks > 0 && most_bytes > budget / 2);
    assert_true(most_bytes <= budget);
    rig_open(&r);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_come_and_go),
        cmocka_unit_test(a_rebuild_for_which_there_is_no_room_is_refused),
        cmocka_unit_test(a_rebuild_takes_the_room_of_what_was_evicted),
        cmocka_unit_test(a_lost_catalogue_is_made_within_the_budget_there_was)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
