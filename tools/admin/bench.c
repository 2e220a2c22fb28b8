/*
 * cachestore-admin bench: what a store reaches on this disk, beside the most that the disk gives to anybody.
 *
 * Both work in a scratch folder inside the store's directory, so on the same file system. The disk: a new
 * file is written, and then read, with requests of 1 MiB from and to one buffer on huge pages that is there
 * already, 2, 4 and 8 at a time, O_DIRECT where it is granted. The store: one of its own takes the same bytes
 * as conversations of 16 MiB, is closed, opened again and restores them into memory that is there already,
 * checksums and all. Three rounds in which the two take turns; medians, and the depth that is the disk's
 * best. The store that is looked after is locked meanwhile and not touched. What a killed one leaves is
 * removed by whoever opens the store next.
 *
 * Threads: those of the disk's requests, one each, joined before a transfer returns.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/admin/admin.h"

enum {
    REQUEST_BYTES = 1 << 20,
    N_ROUNDS = 3,
    N_DEPTHS = 3,
    DEPTH_MOST = 8,
    PAGE_TOKENS = 16,
    PAGE_BYTES = 64 << 10,
    PATH_PAGES = 256,
    PATH_TOKENS = PATH_PAGES * PAGE_TOKENS,
    WAIT_MS = 600000,
};
#define PATH_BYTES   ((uint64_t)PATH_PAGES * PAGE_BYTES)
#define BUFFER_BYTES ((size_t)DEPTH_MOST * REQUEST_BYTES)
#define HUGE_BYTES   ((size_t)2 << 20)

static const unsigned depths[N_DEPTHS] = {2, 4, DEPTH_MOST};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the disk ---------------------------------------------------------------------------------------- */

struct buffer {
    uint8_t *at; /* BUFFER_BYTES */
    uint8_t *mapping;
};

static int buffer_open(struct buffer *b)
{
    b->mapping =
        mmap(NULL, BUFFER_BYTES + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->mapping == MAP_FAILED)
        return complain("no memory for the requests");
    b->at = b->mapping + (HUGE_BYTES - (uintptr_t)b->mapping % HUGE_BYTES) % HUGE_BYTES;
    (void)madvise(b->at, BUFFER_BYTES, MADV_HUGEPAGE);
    memset(b->at, 0x5a, BUFFER_BYTES);
    return EXIT_FINE;
}

static void buffer_close(struct buffer *b)
{
    munmap(b->mapping, BUFFER_BYTES + HUGE_BYTES);
}

struct transfer {
    int fd;
    bool write;
    uint8_t *buffer;
    uint32_t n_requests;
    atomic_uint n_threads, next;
    atomic_int error;
};

static void *transfer_main(void *ctx)
{
    struct transfer *x = ctx;
    uint8_t *buffer = x->buffer + (size_t)atomic_fetch_add(&x->n_threads, 1) * REQUEST_BYTES;
    unsigned i;
    while (!stopped() && atomic_load(&x->error) == 0 && (i = atomic_fetch_add(&x->next, 1)) < x->n_requests) {
        off_t at = (off_t)i * REQUEST_BYTES;
        ssize_t n =
            x->write ? pwrite(x->fd, buffer, REQUEST_BYTES, at) : pread(x->fd, buffer, REQUEST_BYTES, at);
        if (n != REQUEST_BYTES)
            atomic_store(&x->error, n < 0 ? errno : EIO);
    }
    return NULL;
}

/* Seconds with so many requests at a time; negative: -errno. */
static double transfer(int fd, bool write, uint64_t bytes, const struct buffer *b, unsigned depth)
{
    struct transfer x = {
        .fd = fd, .write = write, .buffer = b->at, .n_requests = (uint32_t)(bytes / REQUEST_BYTES)};
    pthread_t thread[DEPTH_MOST];
    unsigned n = 0;
    double began = now_s();
    for (int rc = 0; n < depth && rc == 0; n += rc == 0) {
        rc = pthread_create(&thread[n], NULL, transfer_main, &x);
        if (rc != 0)
            atomic_store(&x.error, rc);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (atomic_load(&x.error) != 0)
        return -atomic_load(&x.error);
    if (write && fdatasync(fd) < 0)
        return -errno;
    return now_s() - began;
}

/* Seconds, by round. */
struct figures {
    bool direct;
    double disk_write_s[N_DEPTHS][N_ROUNDS], disk_read_s[N_DEPTHS][N_ROUNDS];
    double store_write_s[N_ROUNDS], store_read_s[N_ROUNDS];
};

static int ceiling_open(const char *path, int flags, bool *direct)
{
    int fd = open(path, flags | O_CLOEXEC | O_DIRECT, 0600);
    *direct = fd >= 0;
    return fd >= 0 ? fd : open(path, flags | O_CLOEXEC, 0600);
}

/* A new file for each depth, as the store's are new to it; the last one stays, to be read. */
static int measure_disk(const char *path, bool write, uint64_t bytes, const struct buffer *b, unsigned round,
                        struct figures *f)
{
    for (unsigned k = 0; k < N_DEPTHS && !stopped(); k++) {
        if (write)
            unlink(path);
        int fd = ceiling_open(path, write ? O_RDWR | O_CREAT : O_RDONLY, &f->direct);
        if (fd < 0)
            return complain("cannot make %s: %s", path, strerror(errno));
        int rc = write ? posix_fallocate(fd, 0, (off_t)bytes) : 0;
        double seconds = rc != 0 ? -rc : transfer(fd, write, bytes, b, depths[k]);
        close(fd);
        if (seconds < 0)
            return complain("cannot %s %s: %s", write ? "write" : "read", path, strerror((int)-seconds));
        *(write ? &f->disk_write_s[k][round] : &f->disk_read_s[k][round]) = seconds;
    }
    return EXIT_FINE;
}

/* ---- the store --------------------------------------------------------------------------------------- */

static int scratch_open(const char *scratch, uint64_t bytes, struct cs_store **s)
{
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .fingerprint = "cachestore-admin bench",
                          .arena_bytes = bytes + (64 << 20),
                          .disk_dir = scratch,
                          .disk_bytes = bytes + bytes / 4 + (256 << 20)};
    char err[256] = "";
    struct cs_stats stats;
    int rc = cs_open(&c, s, err, sizeof err);
    if (rc != CS_OK)
        return complain("%s", err);
    cs_stats_get(*s, &stats);
    if (stats.disk_on)
        return EXIT_FINE;
    cs_close(*s, 0);
    return complain("the disk tier cannot be had here");
}

static void path_ids(uint32_t path, uint32_t ids[PATH_TOKENS + 1])
{
    for (uint32_t i = 0; i <= PATH_TOKENS; i++)
        ids[i] = path << 16 | i;
}

/* Settled, or stopped. */
static int settle(struct cs_sequence *q, struct cs_reuse *reuse)
{
    while (cs_sequence_poll(q, reuse) == 0) {
        if (stopped())
            return EXIT_STOPPED;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return EXIT_FINE;
}

/* Pages are filled first: only publishing and writing count. */
static int write_paths(struct cs_store *s, struct cs_sequence **q, uint32_t n, double *seconds)
{
    static uint32_t ids[PATH_TOKENS + 1];
    struct cs_reuse reuse;
    for (uint32_t i = 0; i < n; i++) {
        path_ids(i, ids);
        int rc = cs_sequence_open(s, NULL, ids, PATH_TOKENS, &q[i]);
        if (rc != CS_OK || settle(q[i], &reuse) != EXIT_FINE)
            return rc == CS_OK ? EXIT_STOPPED : complain("%s", cs_strerror(rc));
        rc = cs_sequence_grow(q[i], PATH_TOKENS);
        if (rc != CS_OK)
            return complain("%s", cs_strerror(rc));
        for (uint32_t page = 0; page < PATH_PAGES; page++)
            memset(cs_sequence_pages(q[i])[page], (int)(i * 31 + page), PAGE_BYTES);
    }
    double began = now_s();
    for (uint32_t i = 0; i < n; i++) {
        path_ids(i, ids);
        int rc = cs_sequence_publish(q[i], ids, PATH_TOKENS, NULL, 0);
        if (rc != CS_OK)
            return complain("%s", cs_strerror(rc));
    }
    if (cs_flush(s, WAIT_MS) != CS_OK)
        return complain("what was published does not get to disk");
    *seconds = now_s() - began;
    return stopped() ? EXIT_STOPPED : EXIT_FINE;
}

/* As it is in a server that has run for a while: what is restored goes into memory that is there. */
static int fill_arena(struct cs_store *s, uint32_t n)
{
    struct cs_sequence *q;
    int rc = cs_sequence_open(s, NULL, NULL, 0, &q);
    if (rc == CS_OK) {
        rc = cs_sequence_grow(q, (size_t)n * PATH_TOKENS);
        for (size_t page = 0; rc == CS_OK && page < cs_sequence_n_pages(q); page++)
            memset(cs_sequence_pages(q)[page], 0, PAGE_BYTES);
        cs_sequence_close(q);
    }
    return rc == CS_OK ? EXIT_FINE : complain("%s", cs_strerror(rc));
}

static int read_paths(struct cs_store *s, struct cs_sequence **q, uint32_t n, double *seconds)
{
    static uint32_t ids[PATH_TOKENS + 1];
    struct cs_reuse reuse;
    if (fill_arena(s, n) != EXIT_FINE)
        return EXIT_USAGE;
    double began = now_s();
    for (uint32_t i = 0; i < n; i++) {
        path_ids(i, ids);
        int rc = cs_sequence_open(s, NULL, ids, PATH_TOKENS + 1, &q[i]);
        if (rc != CS_OK)
            return complain("%s", cs_strerror(rc));
    }
    for (uint32_t i = 0; i < n; i++) {
        if (settle(q[i], &reuse) != EXIT_FINE)
            return EXIT_STOPPED;
        if (reuse.tokens_disk != PATH_TOKENS)
            return complain("%u of %u tokens came back: %s", reuse.tokens_disk, (unsigned)PATH_TOKENS,
                            cs_miss_name(reuse.miss));
    }
    *seconds = now_s() - began;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t page = 0; page < PATH_PAGES; page++) {
            const uint8_t *bytes = cs_sequence_pages(q[i])[page];
            if (bytes[0] != (uint8_t)(i * 31 + page) || memcmp(bytes, bytes + 1, PAGE_BYTES - 1) != 0)
                return complain("a restored page differs");
        }
    }
    return EXIT_FINE;
}

static int measure_store(const char *scratch, bool write, uint64_t bytes, unsigned round, struct figures *f)
{
    uint32_t n = (uint32_t)(bytes / PATH_BYTES);
    struct cs_store *s;
    struct cs_sequence **q = calloc(n, sizeof(struct cs_sequence *));
    if (q == NULL)
        return complain("%s", cs_strerror(CS_ENOMEM));
    int code = scratch_open(scratch, bytes, &s);
    if (code == EXIT_FINE) {
        code = write ? write_paths(s, q, n, &f->store_write_s[round])
                     : read_paths(s, q, n, &f->store_read_s[round]);
        for (uint32_t i = 0; i < n; i++)
            cs_sequence_close(q[i]);
        cs_close(s, code == EXIT_FINE ? WAIT_MS : 0);
    }
    free((void *)q);
    return code;
}

/* ---- both -------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double values[N_ROUNDS])
{
    double sorted[N_ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, N_ROUNDS, sizeof *sorted, by_value);
    return sorted[N_ROUNDS / 2];
}

/* One direction: MB/s by medians, the store's share of the disk's in the same round by its median. */
struct measured {
    double store_mb_s, disk_mb_s, percent;
    unsigned depth;
};

static struct measured measured_of(double disk_s[N_DEPTHS][N_ROUNDS], const double store_s[N_ROUNDS],
                                   uint64_t bytes)
{
    double mb = (double)bytes / 1e6, share[N_ROUNDS];
    unsigned best = 0;
    for (unsigned k = 1; k < N_DEPTHS; k++)
        best = median(disk_s[k]) < median(disk_s[best]) ? k : best;
    for (unsigned i = 0; i < N_ROUNDS; i++)
        share[i] = 100 * disk_s[best][i] / store_s[i];
    return (struct measured){mb / median(store_s), mb / median(disk_s[best]), median(share), depths[best]};
}

static void print_measured(struct figures *f, uint64_t bytes, bool json)
{
    struct measured w = measured_of(f->disk_write_s, f->store_write_s, bytes);
    struct measured r = measured_of(f->disk_read_s, f->store_read_s, bytes);
    if (json) {
        printf("{\"bytes\":%" PRIu64 ",\"direct\":%s,\"rounds\":%d,"
               "\"disk_write_mb_s\":%.1f,\"disk_write_depth\":%u,\"store_write_mb_s\":%.1f,\"write_percent\":"
               "%.1f,"
               "\"disk_read_mb_s\":%.1f,\"disk_read_depth\":%u,\"store_restore_mb_s\":%.1f,\"restore_"
               "percent\":%.1f}\n",
               bytes, f->direct ? "true" : "false", N_ROUNDS, w.disk_mb_s, w.depth, w.store_mb_s, w.percent,
               r.disk_mb_s, r.depth, r.store_mb_s, r.percent);
        return;
    }
    printf("written    %8.1f MB/s by the store until durable, %8.1f by the disk at best (%u at a time): %.0f "
           "%%\n",
           w.store_mb_s, w.disk_mb_s, w.depth, w.percent);
    printf("restored   %8.1f MB/s by the store, verified,     %8.1f by the disk at best (%u at a time): %.0f "
           "%%\n",
           r.store_mb_s, r.disk_mb_s, r.depth, r.percent);
    printf("requests   %d MiB each, 2, 4 and 8 at a time, %s; %.0f MB, medians of %d rounds\n",
           REQUEST_BYTES >> 20,
           f->direct ? "O_DIRECT" : "through the page cache, because O_DIRECT is refused here",
           (double)bytes / 1e6, N_ROUNDS);
}

static int measure_round(const char *scratch, uint64_t bytes, const struct buffer *b, unsigned round,
                         struct figures *f)
{
    char ceiling[4160];
    snprintf(ceiling, sizeof ceiling, "%s/ceiling", scratch);
    if (mkdir(scratch, 0700) < 0)
        return complain("cannot make %s: %s", scratch, strerror(errno));
    /* The store first: a new one wants an empty folder. */
    int code = measure_store(scratch, true, bytes, round, f);
    if (code == EXIT_FINE && !stopped())
        code = measure_disk(ceiling, true, bytes, b, round, f);
    if (code == EXIT_FINE && !stopped())
        code = measure_disk(ceiling, false, bytes, b, round, f);
    if (code == EXIT_FINE && !stopped())
        code = measure_store(scratch, false, bytes, round, f);
    return code;
}

int run_bench(struct cs_inspect *in, const struct options *o)
{
    uint64_t bytes = (o->bytes != 0 ? o->bytes : 256 << 20) / PATH_BYTES * PATH_BYTES;
    struct figures f = {0};
    struct buffer buffer = {0};
    char scratch[4096];
    if (bytes == 0 || bytes > (1ull << 40) ||
        (size_t)snprintf(scratch, sizeof scratch, "%s/%s", o->dir, CS_SCRATCH_FOLDER) >= sizeof scratch)
        return complain("the size must be 16 MiB to 1 TiB");
    int code = buffer_open(&buffer);
    if (code != EXIT_FINE)
        return code;
    stop_on_signals();
    for (unsigned round = 0; round < N_ROUNDS && code == EXIT_FINE && !stopped(); round++) {
        code = measure_round(scratch, bytes, &buffer, round, &f);
        cs_inspect_sweep(in);
    }
    buffer_close(&buffer);
    if (stopped()) {
        complain("stopped");
        return EXIT_STOPPED;
    }
    if (code == EXIT_FINE)
        print_measured(&f, bytes, o->json);
    return code;
}
