/*
 * The disk is never above its budget, RocksDB included: what all files of the store take is looked at
 * whenever one of them is about to be removed or to get another's name, which is when there is most of it. No
 * other file goes meanwhile, so no more is seen than there was.
 */
#include "tests/disk/harness.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_that_come_and_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
