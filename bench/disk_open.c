/*
 * How long a store with many spans takes to open after kill -9, its files out of the page cache.
 *
 *   disk_open DIR [SPANS [ROUNDS]]     DIR is made (remove it afterwards); 500,000 spans, 3 rounds
 *
 * The store is made without its payload: opening reads none, so volumes are sparse files and only the rows
 * are written, by a process that ends without closing. Spans have 16 pages and 256 ids and lie in paths of
 * ten. Each round drops the catalogue from the page cache and times three things: reading its files, which is
 * the least that any open of cold files can take; opening the disk tier, which reports every row to a caller
 * that only counts them; opening the whole store. Last, what the open store holds of memory: as its budget
 * counts it, and as the kernel does (the arena is small and not counted).
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/clock.h"
#include "cachestore/catalog.h"
#include "cachestore/key.h"
#include "cachestore/store_file.h"
#include "cachestore/volumes.h"

enum { PAGE_TOKENS = 16, PAGE_BYTES = 48 << 10, SPAN_PAGES = 16, PATH_SPANS = 10, BATCH_ROWS = 1000 };
enum { CHUNK = 256 << 10, ROUNDS_MAX = 100 };

static void print_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

/* ---- making it --------------------------------------------------------------------------------------- */

/* Where the next record lies: volumes are filled one after the other. */
struct place {
    uint32_t volume, chunk, volume_chunks;
};

static int rows_write(struct catalog *c, const struct store_file *store, uint32_t n_spans,
                      struct place *place)
{
    static uint64_t words[(FMT_RECORD_FIXED_BYTES + 12 + SPAN_PAGES * PAGE_TOKENS * 4 + 8) / 8];
    uint32_t ids[SPAN_PAGES * PAGE_TOKENS];
    struct cs_key keys[SPAN_PAGES], before = {0, 0};
    static const uint8_t fingerprint[32];
    static const struct cs_tenant tenant;
    uint32_t chunks = fmt_record_chunks(FMT_RECORD_SPAN, SPAN_PAGES, PAGE_TOKENS, PAGE_BYTES, CHUNK);
    uint64_t x = 1;
    for (uint32_t i = 0; i < n_spans; i++) {
        for (uint32_t k = 0; k < SPAN_PAGES * PAGE_TOKENS; k++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            ids[k] = (uint32_t)(x >> 33) % 150000;
        }
        bool root = i % PATH_SPANS == 0;
        if (root)
            before = key_seed(store->secret, fingerprint, &tenant);
        key_pages(before, ids, SPAN_PAGES, PAGE_TOKENS, keys);
        if (place->chunk + chunks > place->volume_chunks) {
            place->volume++;
            place->chunk = 0;
        }
        struct fmt_record_run run = {
            .volume = place->volume, .first_chunk = place->chunk, .n_chunks = chunks};
        place->chunk += chunks;
        struct fmt_record r = {.id_nonce = 7,
                               .id_sequence = (1ull << 32) + i,
                               .kind = FMT_RECORD_SPAN,
                               .key = {keys[0].lo, keys[0].hi},
                               .parent = {root ? 0 : before.lo, root ? 0 : before.hi},
                               .first_position = i % PATH_SPANS * SPAN_PAGES * PAGE_TOKENS,
                               .n_pages = SPAN_PAGES,
                               .page_tokens = PAGE_TOKENS,
                               .page_bytes = PAGE_BYTES,
                               .created_unix = 1700000000 + i,
                               .chunk_bytes = CHUNK,
                               .n_runs = 1,
                               .runs = &run,
                               .ids = ids};
        memcpy(r.store_uuid, store->uuid, sizeof r.store_uuid);
        before = keys[SPAN_PAGES - 1];
        size_t bytes = fmt_record_row_bytes(&r);
        if (bytes > sizeof words || fmt_record_row_encode(&r, words, bytes) != FMT_RECORD_OK)
            return -1;
        catalog_put(c, CATALOG_RECORD, (struct record_id){.nonce = 7, .sequence = r.id_sequence}, words,
                    bytes);
        if (catalog_batch_rows(c) == BATCH_ROWS && catalog_commit(c, false) != CS_OK)
            return -1;
    }
    catalog_store_put(c, store->uuid, 2);
    return catalog_commit(c, true) == CS_OK ? 0 : -1;
}

static int volumes_make(int dir_fd, const struct place *end)
{
    for (uint32_t i = 0; i <= end->volume; i++) {
        char name[24];
        snprintf(name, sizeof name, "volume.%03u", i);
        int fd = openat(dir_fd, name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        uint64_t chunks = i < end->volume ? end->volume_chunks : end->chunk;
        int rc = fd < 0 ? -1 : ftruncate(fd, (off_t)(chunks * CHUNK));
        if (fd >= 0)
            close(fd);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* In a process of its own, which ends as if it were killed: what is not in tables yet stays in the log. */
static int make_rows(const struct cs_config *config, uint32_t n_spans)
{
    struct store_file store;
    struct catalog *c;
    char err[256] = "";
    int dir_fd = -1;
    struct place end = {.volume_chunks = VOLUME_EXTENTS * (uint32_t)((1u << 30) / CHUNK)};
    if (store_dir_lock(config->disk_dir, false, &dir_fd, err, sizeof err) != CS_OK ||
        store_file_read(dir_fd, &store, err, sizeof err) != CS_OK ||
        catalog_open(dir_fd, false, config->disk_bytes / 64, &c, err, sizeof err) != CS_OK) {
        fprintf(stderr, "disk_open: %s\n", err);
        return 1;
    }
    return rows_write(c, &store, n_spans, &end) == 0 && volumes_make(dir_fd, &end) == 0 ? 0 : 1;
}

struct refill {
    struct catalog *catalog;
    unsigned n;
};

static int put_again(void *ctx, const struct catalog_row *row)
{
    enum { LOG_ROWS = 10000 };
    struct refill *r = ctx;
    catalog_put(r->catalog, CATALOG_RECORD, row->id, row->value, row->len);
    return ++r->n == LOG_ROWS ? 1 : CS_OK;
}

/* Writes the newest rows again and ends as if killed: an open has moved the log into tables, and the next is
 * to find one again. */
static int log_fill(const struct cs_config *config, uint32_t n)
{
    (void)n;
    struct refill r = {.n = 0};
    char err[256];
    int dir_fd = open(config->disk_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0 ||
        catalog_open(dir_fd, false, config->disk_bytes / 64, &r.catalog, err, sizeof err) != CS_OK)
        return 1;
    catalog_scan(r.catalog, CATALOG_RECORD, put_again, &r);
    return catalog_commit(r.catalog, true) == CS_OK ? 0 : 1;
}

/* Every use of RocksDB is in a process of its own: its threads would not survive a fork. */
static int in_child(int (*fn)(const struct cs_config *config, uint32_t n), const struct cs_config *config,
                    uint32_t n)
{
    int status = 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(fn(config, n));
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}

static int make_empty(const struct cs_config *config, uint32_t n)
{
    struct tier_disk *tier;
    struct tier_disk_events none = {0};
    uint8_t secret[16];
    char err[256];
    (void)n;
    if (tier_disk_open(config, &none, &tier, secret, err, sizeof err) != CS_OK) {
        fprintf(stderr, "disk_open: %s\n", err);
        return 1;
    }
    tier_disk_close(tier, 10000);
    return 0;
}

/* ---- opening it -------------------------------------------------------------------------------------- */

/* Calls fn for each file of the catalogue. */
static uint64_t each_file(const char *dir, uint64_t (*fn)(int fd))
{
    char path[512];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "%s/catalog", dir);
    DIR *d = opendir(path);
    if (d == NULL)
        return 0;
    const struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && e->d_name[0] != '.')
            sum += fn(fd);
        if (fd >= 0)
            close(fd);
    }
    closedir(d);
    return sum;
}

static uint64_t file_drop(int fd)
{
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

static uint64_t file_read(int fd)
{
    static char buffer[1 << 20];
    uint64_t sum = 0;
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
        sum += (uint64_t)n;
    return sum;
}

static int count_span(void *ctx, const struct span_record *r, uint64_t disk_bytes)
{
    (void)r;
    (void)disk_bytes;
    ++*(uint64_t *)ctx;
    return 0;
}

/* What an open in a process of its own said; seconds less than 0: it failed. */
struct opened {
    double seconds, cpu;
    uint64_t index_bytes, resident_bytes;
};

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%*u %llu", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The process ends without closing, so that the next finds the store as it was left by a crash. */
static struct opened timed_open(const struct cs_config *config, bool whole, uint32_t n_spans)
{
    struct opened o = {.seconds = -1};
    int pipes[2];
    if (pipe(pipes) != 0)
        return o;
    pid_t child = fork();
    if (child == 0) {
        char err[256] = "";
        struct tier_disk *tier;
        struct cs_store *store;
        uint8_t secret[16];
        uint64_t n = 0, before = resident_bytes();
        struct tier_disk_events events = {.on_span = count_span, .ctx = &n};
        double from = wall_s();
        int rc = whole ? cs_open(config, &store, err, sizeof err)
                       : tier_disk_open(config, &events, &tier, secret, err, sizeof err);
        if (rc == CS_OK)
            o = (struct opened){.seconds = wall_s() - from, .cpu = cpu_s()};
        if (rc == CS_OK && whole) {
            struct cs_stats stats;
            cs_stats_get(store, &stats);
            n = stats.spans;
            o.index_bytes = stats.index_bytes;
            o.resident_bytes = resident_bytes() - before;
        }
        if (n != n_spans)
            fprintf(stderr, "disk_open: %" PRIu64 " spans of %" PRIu32 " %s\n", n, n_spans, err);
        if (n != n_spans || write(pipes[1], &o, sizeof o) != sizeof o)
            _exit(1);
        _exit(0);
    }
    close(pipes[1]);
    if (read(pipes[0], &o, sizeof o) != sizeof o)
        o.seconds = -1;
    close(pipes[0]);
    waitpid(child, NULL, 0);
    return o;
}

static void print_memory(const struct opened *o, uint32_t n_spans)
{
    double index = (double)o->index_bytes / n_spans, resident = (double)o->resident_bytes / n_spans;
    printf("memory: the index %.0f bytes a span, %.1f a page; all of the process %.0f a span, %.1f a page\n",
           index, index / SPAN_PAGES, resident, resident / SPAN_PAGES);
}

static int measure(const struct cs_config *config, uint32_t n_spans, unsigned rounds)
{
    printf("%8s  %22s  %22s  %22s\n", "round", "reading the files", "disk tier", "whole store");
    for (unsigned i = 1; i <= rounds; i++) {
        struct opened o[2];
        each_file(config->disk_dir, file_drop);
        double from = wall_s();
        uint64_t bytes = each_file(config->disk_dir, file_read);
        double reading = wall_s() - from;
        for (int whole = 0; whole < 2; whole++) {
            if (in_child(log_fill, config, n_spans) != 0)
                return -1;
            each_file(config->disk_dir, file_drop);
            o[whole] = timed_open(config, whole, n_spans);
            if (o[whole].seconds < 0)
                return -1;
        }
        printf("%8u  %7.2f s (%7.1f MB)  %7.2f s (%5.2f s cpu)  %7.2f s (%5.2f s cpu)\n", i, reading,
               (double)bytes * 1e-6, o[0].seconds, o[0].cpu, o[1].seconds, o[1].cpu);
        if (i == rounds)
            print_memory(&o[1], n_spans);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t n_spans = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 500000;
    unsigned rounds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 3;
    if (argc < 2 || argc > 4 || n_spans == 0 || rounds == 0 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: disk_open DIR [SPANS [ROUNDS]]\n");
        return 2;
    }
    uint64_t span_bytes =
        (uint64_t)CHUNK * fmt_record_chunks(FMT_RECORD_SPAN, SPAN_PAGES, PAGE_TOKENS, PAGE_BYTES, CHUNK);
    struct cs_config config = {.page_tokens = PAGE_TOKENS,
                               .page_bytes = PAGE_BYTES,
                               .arena_bytes = 1u << 20,
                               .index_bytes = (64u << 20) + (uint64_t)n_spans * 4096,
                               .disk_dir = argv[1],
                               .disk_bytes = 2 * n_spans * span_bytes + (1u << 30),
                               .log = print_log};
    double from = wall_s();
    if (in_child(make_empty, &config, n_spans) != 0 || in_child(make_rows, &config, n_spans) != 0) {
        fprintf(stderr, "disk_open: the store cannot be made\n");
        return 1;
    }
    printf("%" PRIu32 " spans of %d pages made in %.1f s\n", n_spans, SPAN_PAGES, wall_s() - from);
    return measure(&config, n_spans, rounds) == 0 ? 0 : 1;
}
