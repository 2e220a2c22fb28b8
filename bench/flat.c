/*
 * Flat cost: the same 64 MiB, published and restored as 1, 64, 512 and 4,096 messages in one publish, and
 * as paths built by 400 publishes, of two pages or three, and by 512 of two. Beside it stands what the same
 * disk gives at best for O_DIRECT reads of the same bytes from the volume file.
 *
 *   flat [--io auto|uring|pread] [--chunk KIB] [--inflight MIB] [--mib N] DIR [ROUNDS [RESTORES]]
 *
 * DIR: where the stores are made. 9 rounds: in each, every variant publishes into a new store; that store is
 * opened and read RESTORES (3) times, variants in turns. A message is a note here, as the engine publishes
 * it: the store knows no messages beside those.
 *
 * Counted beside the times: requests to the I/O engine, calls that handed them over, other system calls that
 * read or write (/proc/self/io; RocksDB's), rows of the catalogue, copies by a device (none here: reads land
 * in the pages that sequences use).
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/numbers.h"
#include "cachestore/cachestore.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    PAGE_TOKENS = 16,
    PAGE_BYTES = 64 << 10,
    NOTE_BYTES = 64,
    MESSAGES_MAX = 4096,
    MAX_ROUNDS = 101,
    MAX_RESTORES = 10,
    ARENA_TIMES = 4,
    FLUSH_MS = 60000
};

struct work {
    double ms[MAX_ROUNDS * MAX_RESTORES], cpu_ms[MAX_ROUNDS * MAX_RESTORES];
    size_t n;
    uint64_t sqes, submissions, calls, rows, copies, spans, syncs;
};

struct variant {
    const char *name;
    size_t n_publishes, n_messages; /* 0: one page each */
    char dir[4096];
    double publish_ms[MAX_ROUNDS];
    struct work durable, restore;
};

struct settings {
    const char *base;
    enum cs_io_engine io;
    uint32_t chunk_kib, inflight_mib, mib, rounds, restores;
    size_t n_pages, n_tokens;
};

static uint32_t *ids;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool settled; /* lock */
static double ceiling_ms[MAX_ROUNDS], ceiling_write_ms[MAX_ROUNDS];
static size_t n_ceilings, n_write_ceilings;

static void die(const char *what)
{
    fprintf(stderr, "flat: %s\n", what);
    exit(1);
}

static struct cs_store *open_store(const struct settings *set, const char *dir)
{
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .arena_bytes = (uint64_t)ARENA_TIMES * set->mib << 20,
                          .disk_dir = dir,
                          .disk_bytes = (4ull * set->mib << 20) + (64u << 20),
                          .extent_bytes = 128u << 20,
                          .chunk_bytes = (uint64_t)set->chunk_kib << 10,
                          .inflight_bytes = (uint64_t)set->inflight_mib << 20,
                          .io_engine = set->io};
    struct cs_store *s;
    char err[256] = "";
    if (cs_open(&c, &s, err, sizeof err) != CS_OK)
        die(err);
    struct cs_stats st;
    cs_stats_get(s, &st);
    if (!st.disk_on)
        die("the disk tier is off");
    return s;
}

/* System calls of this process that read or write, io_uring's excepted; this one counts, too. */
static uint64_t calls_now(void)
{
    unsigned long long r = 0, w = 0;
    FILE *f = fopen("/proc/self/io", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f)) {
        (void)sscanf(line, "syscr: %llu", &r);
        (void)sscanf(line, "syscw: %llu", &w);
    }
    if (f)
        fclose(f);
    return r + w;
}

/* What has been counted since *b, which begins anew. */
static void count(struct cs_store *s, struct work *w, struct cs_stats *b, uint64_t *calls)
{
    struct cs_stats a;
    uint64_t now = calls_now();
    cs_stats_get(s, &a);
    if (w) {
        w->sqes = a.sqes - b->sqes;
        w->submissions = a.submissions - b->submissions;
        w->calls = now - *calls;
        w->rows = a.catalog_rows - b->catalog_rows;
        w->copies = a.copies - b->copies;
        w->spans = a.publish_spans - b->publish_spans;
        w->syncs = a.syncs - b->syncs;
    }
    *b = a;
    *calls = now;
}

static void on_settled(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    settled = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static struct cs_sequence *open_settled(struct cs_store *s, size_t n)
{
    struct cs_sequence *q;
    if (cs_sequence_open(s, NULL, ids, n, &q) != CS_OK)
        die("open");
    cs_sequence_notify(q, on_settled, NULL);
    pthread_mutex_lock(&lock);
    while (!settled)
        pthread_cond_wait(&changed, &lock);
    settled = false;
    pthread_mutex_unlock(&lock);
    if (cs_sequence_poll(q, NULL) != 1)
        die("not settled");
    return q;
}

/* A sequence with all pages of its own, filled. Before that, one that has the whole arena and touches it: its
 * memory is backed ahead of use otherwise, and page faults are not what is measured. */
static struct cs_sequence *fill(const struct settings *set, struct cs_store *s, unsigned add)
{
    struct cs_sequence *q = open_settled(s, 1);
    if (cs_sequence_grow(q, ARENA_TIMES * set->n_tokens) != CS_OK)
        die("grow");
    for (size_t p = 0; p < ARENA_TIMES * set->n_pages; p++)
        memset(cs_sequence_pages(q)[p], 0, PAGE_BYTES);
    cs_sequence_close(q);
    q = open_settled(s, 1);
    if (cs_sequence_grow(q, set->n_tokens) != CS_OK)
        die("grow");
    for (size_t p = 0; p < set->n_pages; p++)
        memset(cs_sequence_pages(q)[p], (int)(p + add), PAGE_BYTES);
    return q;
}

static void publish(const struct settings *set, struct variant *v, size_t round)
{
    static const char text[NOTE_BYTES];
    static struct cs_note notes[MESSAGES_MAX];
    struct cs_store *s = open_store(set, v->dir);
    struct cs_sequence *q = fill(set, s, 1);
    size_t n_publishes = v->n_publishes ? v->n_publishes : set->n_pages,
           n_messages = v->n_messages ? v->n_messages : set->n_pages;
    if (n_publishes > set->n_pages)
        n_publishes = set->n_pages;
    if (n_messages > MESSAGES_MAX)
        die("too many messages");
    for (size_t i = 0; i < n_messages; i++)
        notes[i] = (struct cs_note){.key = {i + 1, 1}, .data = text, .len = NOTE_BYTES};
    struct cs_stats before;
    uint64_t calls;
    count(s, NULL, &before, &calls);
    double start = wall_s();
    for (size_t k = 1; k <= n_publishes; k++) {
        size_t from = (k - 1) * n_messages / n_publishes, to = k * n_messages / n_publishes;
        size_t pages = set->n_pages * k / n_publishes;
        if (cs_sequence_publish(q, ids, pages * PAGE_TOKENS, notes + from, to - from) != CS_OK)
            die("publish");
    }
    v->publish_ms[round] = (wall_s() - start) * 1e3;
    if (cs_flush(s, FLUSH_MS) != CS_OK)
        die("flush");
    v->durable.ms[v->durable.n++] = (wall_s() - start) * 1e3;
    count(s, &v->durable, &before, &calls);
    cs_sequence_close(q);
    cs_close(s, FLUSH_MS);
}

static void restore(const struct settings *set, struct variant *v)
{
    struct cs_store *s = open_store(set, v->dir);
    /* The arena's memory is backed ahead of use; a restore right behind open would measure page faults. */
    cs_sequence_close(fill(set, s, 0));
    struct cs_stats before;
    uint64_t calls;
    count(s, NULL, &before, &calls);
    double start = wall_s(), cpu = cpu_s();
    struct cs_sequence *q = open_settled(s, set->n_tokens + 1);
    v->restore.cpu_ms[v->restore.n] = (cpu_s() - cpu) * 1e3;
    v->restore.ms[v->restore.n++] = (wall_s() - start) * 1e3;
    count(s, &v->restore, &before, &calls);
    if (cs_sequence_n_pages(q) != set->n_pages)
        die("the restore was not complete");
    for (size_t p = 0; p < set->n_pages; p++)
        if (((uint8_t *)cs_sequence_pages(q)[p])[PAGE_BYTES - 1] != (uint8_t)(p + 1))
            die("wrong bytes");
    cs_sequence_close(q);
    cs_close(s, FLUSH_MS);
}

/* As many bytes as a restore reads, from a volume that has no holes, as fast as O_DIRECT gives them. */
static void measure_ceiling(const struct settings *set, const struct variant *v)
{
    const size_t huge = (size_t)2 << 20;
    uint64_t bytes = (uint64_t)set->mib << 20;
    double read = 0, write = 0;
    char path[4096 + 16];
    uint8_t *memory = aligned_alloc(huge, bytes);
    if (!memory)
        die("out of memory");
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* as the arena */
    memset(memory, 1, bytes);
    for (unsigned depth = 2; depth <= 8; depth *= 2) {
        double s = ceiling_disk_read_s(v->dir, bytes, depth, memory, bytes);
        if (s > 0 && (read == 0 || s < read))
            read = s;
    }
    /* As a publish writes: into a new file whose room has been allocated, with the syncs that it takes. */
    for (unsigned depth = 2; depth <= 8; depth *= 2) {
        snprintf(path, sizeof path, "%s/ceiling", v->dir);
        double s = ceiling_disk_write_s(path, bytes, depth, memory, bytes, (unsigned)v->durable.syncs);
        unlink(path);
        if (s > 0 && (write == 0 || s < write))
            write = s;
    }
    free(memory);
    if (read > 0)
        ceiling_ms[n_ceilings++] = read * 1e3;
    if (write > 0)
        ceiling_write_ms[n_write_ceilings++] = write * 1e3;
}

static void report(const struct settings *set, struct variant *variants, size_t n)
{
    double ceiling = n_ceilings ? median(ceiling_ms, n_ceilings) : 0,
           write = n_write_ceilings ? median(ceiling_write_ms, n_write_ceilings) : 0, first_durable = 0,
           first_restore = 0;
    printf("%u MiB in pages of %d KiB, medians of %u rounds, %u restores in each; the same bytes by O_DIRECT "
           "alone: "
           "written and synced %.1f ms, read %.1f ms\n",
           set->mib, PAGE_BYTES >> 10, set->rounds, set->restores, write, ceiling);
    printf("%-16s %9s %9s %8s %8s %5s | %5s %6s %5s %5s %5s %6s | %8s %8s %8s %8s | %5s %6s %5s %6s\n", "",
           "publish", "durable", "of first", "of ceil.", "spans", "SQEs", "submit", "calls", "syncs", "rows",
           "copies", "restore", "of first", "of ceil.", "CPU", "SQEs", "submit", "calls", "copies");
    for (size_t k = 0; k < n; k++) {
        struct variant *v = &variants[k];
        const struct work *d = &v->durable, *r = &v->restore;
        double publish_ms = median(v->publish_ms, set->rounds), durable = median(v->durable.ms, d->n),
               restore_ms = median(v->restore.ms, r->n);
        if (k == 0) {
            first_durable = durable;
            first_restore = restore_ms;
        }
        printf("%-16s %6.2f ms %6.1f ms %7.1f%% %7.0f%% %5llu | %5llu %6llu %5llu %5llu %5llu %6llu | %5.1f "
               "ms %7.1f%% "
               "%7.0f%% %5.1f ms | %5llu %6llu %5llu %6llu\n",
               v->name, publish_ms, durable, 100 * durable / first_durable, 100 * write / durable,
               (unsigned long long)d->spans, (unsigned long long)d->sqes, (unsigned long long)d->submissions,
               (unsigned long long)d->calls, (unsigned long long)d->syncs, (unsigned long long)d->rows,
               (unsigned long long)d->copies, restore_ms, 100 * restore_ms / first_restore,
               100 * ceiling / restore_ms, median(v->restore.cpu_ms, r->n), (unsigned long long)r->sqes,
               (unsigned long long)r->submissions, (unsigned long long)r->calls,
               (unsigned long long)r->copies);
    }
}

static bool parse(int argc, char **argv, struct settings *s)
{
    static const struct option options[] = {{"io", required_argument, NULL, 'i'},
                                            {"chunk", required_argument, NULL, 'c'},
                                            {"inflight", required_argument, NULL, 'f'},
                                            {"mib", required_argument, NULL, 'm'},
                                            {NULL, 0, NULL, 0}};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        ok = c == 'i'   ? disk_spans_engine(optarg, &s->io)
             : c == 'c' ? parse_number(optarg, 4, 1 << 20, &s->chunk_kib)
             : c == 'f' ? parse_number(optarg, 1, 4096, &s->inflight_mib)
             : c == 'm' ? parse_number(optarg, 4, 1024, &s->mib)
                        : false;
    int n = argc - optind;
    ok = ok && n >= 1 && n <= 3;
    if (ok)
        s->base = argv[optind];
    ok = ok && (n < 2 || parse_number(argv[optind + 1], 1, MAX_ROUNDS, &s->rounds));
    return ok && (n < 3 || parse_number(argv[optind + 2], 1, MAX_RESTORES, &s->restores));
}

int main(int argc, char **argv)
{
    static struct variant variants[] = {
        {.name = "1 message", .n_publishes = 1, .n_messages = 1},
        {.name = "64 messages", .n_publishes = 1, .n_messages = 64},
        {.name = "512 messages", .n_publishes = 1, .n_messages = 512},
        {.name = "4,096 messages", .n_publishes = 1, .n_messages = 4096},
        {.name = "400 publishes", .n_publishes = 400, .n_messages = 400},
        {.name = "512 publishes", .n_publishes = 512, .n_messages = 512},
    };
    const size_t n = sizeof variants / sizeof variants[0];
    struct settings set = {.mib = 64, .rounds = 9, .restores = 3};
    if (!parse(argc, argv, &set)) {
        fprintf(stderr,
                "usage: flat [--io auto|uring|pread] [--chunk KIB] [--inflight MIB] [--mib N] DIR [ROUNDS "
                "[RESTORES]]\n");
        return 2;
    }
    set.n_pages = ((size_t)set.mib << 20) / PAGE_BYTES;
    set.n_tokens = set.n_pages * PAGE_TOKENS;
    ids = malloc((set.n_tokens + 1) * sizeof *ids);
    if (!ids)
        die("memory");
    for (size_t i = 0; i <= set.n_tokens; i++)
        ids[i] = (uint32_t)(i * 2654435761u);
    for (size_t r = 0; r < set.rounds; r++) {
        for (size_t k = 0; k < n; k++) {
            struct variant *v = &variants[(k + r) % n];
            snprintf(v->dir, sizeof v->dir, "%s/flat-XXXXXX", set.base);
            if (!mkdtemp(v->dir))
                die("no directory for the store");
            publish(&set, v, r);
        }
        for (size_t i = 0; i < set.restores; i++)
            for (size_t k = 0; k < n; k++)
                restore(&set, &variants[(k + r) % n]);
        measure_ceiling(&set, &variants[0]);
        for (size_t k = 0; k < n; k++)
            bench_remove_tree(variants[k].dir);
    }
    report(&set, variants, n);
    free(ids);
    return 0;
}
