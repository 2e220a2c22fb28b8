/*
 * kill -9: a child process writes spans and checkpoints, deletes and reopens; it tells the parent of every
 * one after durable(), and of every delete before asking for it. The parent kills it at a random moment and
 * opens the store: what was acknowledged and not deleted is there with its note and verifies; whatever else
 * is there verifies too, or fails its checksum; nothing is wrong. Every fifth time the catalogue is removed
 * as well. $ISOTHERM_CRASH_LOOPS sets the number of kills (30).
 */
#include "tests/disk/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIVE_MAX = 4096, BATCH = 8 };

struct message {
    uint32_t deleted; /* 1: about to be deleted; 0: durable */
    uint32_t number, n_pages;
    struct record_id id;
};

static void tell(uint32_t deleted, uint32_t number, uint32_t n_pages, struct record_id id)
{
    struct message m = {.deleted = deleted, .number = number, .n_pages = n_pages, .id = id};
    if (write(STDOUT_FILENO, &m, sizeof m) != (ssize_t)sizeof m)
        _exit(9);
}

static struct message live[LIVE_MAX];
static size_t n_live;

static void child_delete(struct rig *r, size_t i)
{
    tell(1, live[i].number, live[i].n_pages, live[i].id);
    tier_disk_delete(r->tier, live[i].id);
    live[i] = live[--n_live];
}

static int child_main(const char *dir, uint32_t round)
{
    struct rig r;
    rig_init_in_memory(&r, true);
    remove_tree(r.dir);
    snprintf(r.dir, sizeof r.dir, "%s", dir);
    r.config.flush_interval_ms = 5;
    rig_open(&r);
    for (size_t i = 0; i < r.n_seen; i++)
        live[n_live++] =
            (struct message){.number = r.seen[i].number, .n_pages = r.seen[i].n_pages, .id = r.seen[i].id};
    uint64_t random = round * 7919 + 1;
    for (uint32_t number = round * 10000;;) {
        struct span_io *s[BATCH];
        for (int i = 0; i < BATCH; i++) {
            uint32_t pages = 1 + (uint32_t)(random_next(&random) % SPAN_PAGES_MAX);
            while (n_live > 0 && (tier_disk_free_bytes(r.tier) <
                                      (int64_t)tier_disk_record_bytes(r.tier, RECORD_SPAN, pages) ||
                                  random_next(&random) % 4 == 0))
                child_delete(&r, random_next(&random) % n_live);
            uint32_t kind = random_next(&random) % 3 == 0 ? CHECKPOINT : 0;
            s[i] = span_make(&r, number++ | kind, pages);
            const struct cs_note note = {.key = {number, 1}, .data = "n", .len = 1};
            s[i]->w.notes = &note;
            s[i]->w.n_notes = 1;
            span_write(s[i]);
        }
        if (random_next(&random) % 2 == 0)
            tier_disk_kick(r.tier);
        for (int i = 0; i < BATCH; i++) {
            const struct span_record *rec = &s[i]->w.record;
            if (span_wait(s[i]) != TIER_OK)
                return 8;
            live[n_live++] =
                (struct message){.number = (uint32_t)rec->key.lo, .n_pages = rec->n_pages, .id = rec->id};
            tell(0, (uint32_t)rec->key.lo, rec->n_pages, rec->id);
            span_free(s[i]);
        }
        if (random_next(&random) % 16 == 0)
            rig_reopen(&r);
    }
}

static size_t model_find(uint32_t number)
{
    size_t i = 0;
    while (i < n_live && live[i].number != number)
        i++;
    return i;
}

static void hear(const struct message *m)
{
    size_t i = model_find(m->number);
    if (m->deleted && i < n_live)
        live[i] = live[--n_live];
    else if (!m->deleted)
        live[n_live++] = *m;
}

static void one_kill(const char *self, struct rig *r, uint32_t round, uint64_t *random)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[16];
        snprintf(text, sizeof text, "%u", round);
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        execl(self, self, "child", r->dir, text, (char *)NULL);
        _exit(7);
    }
    close(pipes[1]);
    struct message m;
    uint64_t wanted = random_next(random) % 60;
    for (uint64_t i = 0; i < wanted; i++) {
        assert_int_equal(read(pipes[0], &m, sizeof m),
                         sizeof m); /* whole: writes below PIPE_BUF are atomic */
        hear(&m);
    }
    usleep((useconds_t)(random_next(random) % 4000));
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    while (read(pipes[0], &m, sizeof m) == (ssize_t)sizeof m)
        hear(&m);
    close(pipes[0]);

    bool rebuilt = round % 5 == 4;
    if (rebuilt) {
        char catalog[128];
        snprintf(catalog, sizeof catalog, "%s/catalog", r->dir);
        remove_tree(catalog);
    }
    rig_open(r);
    size_t lost = 0;
    for (size_t i = 0; i < n_live; i++) {
        const struct seen_span *s = find_seen(r, live[i].number);
        /* A rebuild may give a chunk to a deleted record that was made later but written earlier: a miss. */
        if (s == NULL && rebuilt) {
            lost++;
            continue;
        }
        assert_non_null(s);
        assert_int_equal(s->id.sequence, live[i].id.sequence);
        if (!rebuilt &&
            (s->number & ~CHECKPOINT) >= round * 10000) /* older ones may have lost theirs in a rebuild */
            assert_true(s->has_notes);
        assert_int_equal(get(r, s->id, s->number, s->n_pages), TIER_OK);
    }
    assert_true(lost <= n_live / 4);
    for (size_t i = 0; i < r->n_seen; i++) {
        enum tier_result result = get(r, r->seen[i].id, r->seen[i].number, r->seen[i].n_pages);
        assert_true(result == TIER_OK || (rebuilt && result == TIER_CORRUPT_PAYLOAD));
        if (result != TIER_OK)
            tier_disk_delete(r->tier, r->seen[i].id);
    }
    assert_true(dir_bytes(r->dir) <= r->config.disk_bytes);
    /* From here on the model is what is there. */
    n_live = 0;
    rig_reopen(r);
    for (size_t i = 0; i < r->n_seen; i++)
        live[n_live++] =
            (struct message){.number = r->seen[i].number, .n_pages = r->seen[i].n_pages, .id = r->seen[i].id};
    rig_close(r);
}

static char self_path[256];

static void test_acknowledged_records_survive_kill_9(void **state)
{
    (void)state;
    const char *text = getenv("ISOTHERM_CRASH_LOOPS");
    uint32_t loops = text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 30;
    struct rig r;
    rig_init_in_memory(&r, true);
    uint64_t random = 42;
    for (uint32_t i = 0; i < loops; i++)
        one_kill(self_path, &r, i + 1, &random);
    rig_destroy(&r);
}

/* ---- a maker that is killed -------------------------------------------------------------------------- */

static const char *watched_dir; /* whose syncs are counted */
static unsigned n_dir_syncs;
static bool dies_at_dir_sync;

int fsync(int fd)
{
    struct stat at, watched;
    if (watched_dir != NULL && fstat(fd, &at) == 0 && stat(watched_dir, &watched) == 0 &&
        at.st_dev == watched.st_dev && at.st_ino == watched.st_ino) {
        if (dies_at_dir_sync)
            kill(getpid(), SIGKILL);
        n_dir_syncs++;
    }
    return (int)syscall(SYS_fsync, fd);
}

/* STORE has its name, and a power cut could still take it: nothing may be promised to be durable before the
 * directory was synced, by whoever opens the store next if not by its maker. */
static void test_the_directory_is_synced_at_every_open(void **state)
{
    (void)state;
    struct rig r;
    struct stat st;
    rig_init_in_memory(&r, true);
    watched_dir = r.dir;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dies_at_dir_sync = true;
        rig_open(&r);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(stat(rig_path(&r, "STORE"), &st), 0);
    for (int i = 0; i < 2; i++) {
        n_dir_syncs = 0;
        rig_open(&r);
        assert_true(n_dir_syncs > 0);
        rig_close(&r);
    }
    watched_dir = NULL;
    rig_destroy(&r);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "child") == 0)
        return child_main(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    if (n <= 0)
        return 1;
    self_path[n] = 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_directory_is_synced_at_every_open),
        cmocka_unit_test(test_acknowledged_records_survive_kill_9),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
