/*
 * A file system that others fill and empty at any moment, also between the store's look at it and what it
 * writes: every request gets its answer, what was durable and not deleted is there afterwards, and the
 * process lives. In a small tmpfs of the test's own, which takes a mount namespace; skipped where that is
 * refused. $ISOTHERM_FULL_ROUNDS sets the number of rounds (6).
 */
#include "cachestore/inspect.h"
#include "tests/disk/harness.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SKIPPED = 77, NOTE_BYTES = 100 << 10, WRITES = 150, LIVE_MAX = 40 };

struct filler {
    char path[128];
    atomic_bool stop;
    uint64_t random;
};

/* Takes all room, or nearly all, in one step or in several, keeps it for a moment, gives it back. */
static void *fill_and_empty(void *arg)
{
    struct filler *f = arg;
    int fd = open(f->path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    while (fd >= 0 && !atomic_load(&f->stop)) {
        struct statvfs fs;
        off_t at = 0;
        usleep((useconds_t)(random_next(&f->random) % 20000));
        unsigned steps = 1 + (unsigned)(random_next(&f->random) % 4);
        for (unsigned i = 0; i < steps && fstatvfs(fd, &fs) == 0; i++) {
            uint64_t left = random_next(&f->random) % 3 == 0 ? 0 : random_next(&f->random) % (1 << 20);
            uint64_t room = fs.f_bavail * fs.f_frsize;
            if (room > left && fallocate(fd, 0, at, (off_t)(room - left)) == 0)
                at += (off_t)(room - left);
        }
        usleep((useconds_t)(random_next(&f->random) % 30000));
        if (ftruncate(fd, 0) != 0)
            break;
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

struct life {
    struct rig *r;
    uint64_t random;
    uint32_t number, n_live, n_failed;
    struct {
        uint32_t number;
        struct record_id id;
    } live[LIVE_MAX];
};

static void delete_one(struct life *l)
{
    uint32_t i = (uint32_t)(random_next(&l->random) % l->n_live);
    tier_disk_delete(l->r->tier, l->live[i].id);
    l->live[i] = l->live[--l->n_live];
}

static void write_some(struct life *l)
{
    static char bytes[NOTE_BYTES];
    for (int i = 0; i < WRITES; i++) {
        uint32_t number = l->number++ | (i % 3 == 0 ? CHECKPOINT : 0);
        struct span_io *s = span_make(l->r, number, 12);
        struct cs_note note = {.key = {number, 1}, .data = bytes, .len = NOTE_BYTES};
        s->w.notes = &note;
        s->w.n_notes = random_next(&l->random) % 2;
        span_write(s);
        tier_disk_kick(l->r->tier);
        enum tier_result result = span_wait(s);
        assert_true(result == TIER_OK || result == TIER_EFULL || result == TIER_ENOSPC || result == TIER_EIO);
        l->n_failed += result != TIER_OK;
        if (result == TIER_OK) {
            l->live[l->n_live].number = number;
            l->live[l->n_live++].id = s->w.record.id;
        } else {
            usleep(2000);
        }
        span_free(s);
        while (l->n_live == LIVE_MAX || (l->n_live > 0 && random_next(&l->random) % 4 == 0))
            delete_one(l);
    }
}

static void check_all(const struct life *l)
{
    assert_true(l->r->n_seen >= l->n_live); /* a delete that could not be written may come back */
    for (uint32_t i = 0; i < l->n_live; i++) {
        const struct seen_span *s = find_seen(l->r, l->live[i].number);
        assert_non_null(s);
        assert_int_equal(get(l->r, s->id, s->number, 12), TIER_OK);
    }
}

static void small_file_system(struct rig *r, char mount_point[64], struct filler *f)
{
    rig_init_in_memory(r, true);
    snprintf(mount_point, 64, "%s", r->dir);
    assert_int_equal(mount("tmpfs", mount_point, "tmpfs", 0, "size=24m"), 0);
    snprintf(f->path, sizeof f->path, "%s/filler", mount_point);
    snprintf(r->dir + strlen(mount_point), sizeof r->dir - strlen(mount_point), "/store");
    r->config.disk_bytes = 12 << 20;
}

/* The store is closed. */
static void small_file_system_end(struct rig *r, const char *mount_point)
{
    r->dir[strlen(mount_point)] = 0;
    assert_int_equal(umount2(mount_point, MNT_DETACH), 0);
    rig_destroy(r);
}

static void test_file_system_that_fills_at_any_moment(void **state)
{
    (void)state;
    const char *text = getenv("ISOTHERM_FULL_ROUNDS");
    unsigned long rounds = text != NULL ? strtoul(text, NULL, 10) : 6;
    struct rig r;
    struct filler f = {.random = 7};
    char mount_point[64];
    small_file_system(&r, mount_point, &f);
    struct life l = {.r = &r, .random = 99, .number = 1};
    rig_open(&r);
    for (unsigned long i = 0; i < rounds; i++) {
        pthread_t thread;
        atomic_store(&f.stop, false);
        assert_int_equal(pthread_create(&thread, NULL, fill_and_empty, &f), 0);
        write_some(&l);
        atomic_store(&f.stop, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (uint32_t k = 0; k < l.n_live; k++)
            assert_int_equal(get(&r, l.live[k].id, l.live[k].number, 12), TIER_OK);
        rig_reopen(&r);
        check_all(&l);
        while (l.n_live > LIVE_MAX / 2)
            delete_one(&l);
    }
    assert_true(l.n_failed > 0);
    rig_close(&r);
    small_file_system_end(&r, mount_point);
}

/* A catalogue is made again beside the one that is there: without room for both, nothing changes. */
static void test_rebuild_without_room_leaves_the_catalogue(void **state)
{
    (void)state;
    struct rig r;
    struct filler f = {.random = 7};
    char mount_point[64], err[256] = "";
    small_file_system(&r, mount_point, &f);
    rig_open(&r);
    struct record_id id = put(&r, 1, 12);
    struct cs_note note = {.key = {1, 1}, .data = "note", .len = 4};
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = id, .notes = &note, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    rig_close(&r);
    for (uint64_t left = 0; left < 2 << 20; left = 2 * left + (64 << 10)) {
        struct statvfs fs;
        struct cs_inspect *in;
        struct cs_rebuilt made;
        int fd = open(f.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(fstatvfs(fd, &fs), 0);
        /* Inspection writes a few lines to RocksDB's LOG. */
        assert_int_equal(cs_inspect_open(r.dir, &in, err, sizeof err), CS_OK);
        assert_int_equal(fallocate(fd, 0, 0, (off_t)(fs.f_bavail * fs.f_frsize - left - (256 << 10))), 0);
        assert_int_equal(cs_inspect_rebuild(in, &made, err, sizeof err), CS_EIO);
        cs_inspect_close(in);
        assert_int_equal(ftruncate(fd, 0), 0);
        close(fd);
        assert_int_equal(rig_rows(&r, CATALOG_NOTES), 1);
    }
    rig_open(&r);
    assert_int_equal(r.n_notes_seen, 1);
    assert_int_equal(get(&r, id, 1, 12), TIER_OK);
    rig_close(&r);
    small_file_system_end(&r, mount_point);
}

int main(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        fprintf(stderr, "SKIPPED: no mount namespace\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rebuild_without_room_leaves_the_catalogue),
                                       cmocka_unit_test(test_file_system_that_fills_at_any_moment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
