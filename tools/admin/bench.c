/*
 * cachestore-admin bench: what a store reaches on this disk, beside what the disk gives a plain program.
 *
 * Both work in a scratch folder inside the store's directory, so on the same file system: a file is written
 * and read with requests of 1 MiB by a few threads, O_DIRECT where it is granted; a store of its own takes
 * the same bytes as conversations of 16 MiB, is closed, opened again and restores them, checksums and all.
 * One round: other load on the disk shows. The store that is looked after is locked meanwhile and not
 * touched. What a killed one leaves is removed by whoever opens the store next.
 *
 * Threads: those of the ceiling's reads and writes, joined before it returns.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/admin/admin.h"

enum {
    REQUEST_BYTES = 1 << 20,
    N_THREADS = 4,
    PAGE_TOKENS = 16,
    PAGE_BYTES = 64 << 10,
    PATH_PAGES = 256,
    PATH_TOKENS = PATH_PAGES * PAGE_TOKENS,
    WAIT_MS = 600000,
};
#define PATH_BYTES ((uint64_t)PATH_PAGES * PAGE_BYTES)

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- the disk ---------------------------------------------------------------------------------------- */

struct transfer {
    int fd;
    bool write;
    uint32_t n_requests;
    atomic_uint next;
    atomic_int error;
};

static void *transfer_main(void *ctx)
{
    struct transfer *x = ctx;
    uint8_t *buffer = aligned_alloc(4096, REQUEST_BYTES);
    unsigned i;
    if (buffer == NULL)
        atomic_store(&x->error, ENOMEM);
    else
        memset(buffer, 0x5a, REQUEST_BYTES);
    while (buffer != NULL && !stopped() && (i = atomic_fetch_add(&x->next, 1)) < x->n_requests) {
        off_t at = (off_t)i * REQUEST_BYTES;
        ssize_t n =
            x->write ? pwrite(x->fd, buffer, REQUEST_BYTES, at) : pread(x->fd, buffer, REQUEST_BYTES, at);
        if (n != REQUEST_BYTES)
            atomic_store(&x->error, n < 0 ? errno : EIO);
    }
    free(buffer);
    return NULL;
}

/* Seconds; negative: -errno. */
static double transfer(int fd, bool write, uint64_t bytes)
{
    struct transfer x = {.fd = fd, .write = write, .n_requests = (uint32_t)(bytes / REQUEST_BYTES)};
    pthread_t thread[N_THREADS];
    unsigned n = 0;
    double began = now_s();
    while (n < N_THREADS && pthread_create(&thread[n], NULL, transfer_main, &x) == 0)
        n++;
    for (unsigned i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (n == 0)
        return -EAGAIN;
    if (write && fdatasync(fd) < 0)
        return -errno;
    return atomic_load(&x.error) != 0 ? -atomic_load(&x.error) : now_s() - began;
}

struct figures {
    bool direct;
    double disk_write_s, disk_read_s, store_write_s, store_read_s;
};

static int measure_disk(const char *scratch, uint64_t bytes, struct figures *f)
{
    char path[4160];
    snprintf(path, sizeof path, "%s/ceiling", scratch);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
    f->direct = fd >= 0;
    if (fd < 0)
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return complain("cannot make %s: %s", path, strerror(errno));
    int code = EXIT_FINE, rc = posix_fallocate(fd, 0, (off_t)bytes);
    f->disk_write_s = rc != 0 ? -rc : transfer(fd, true, bytes);
    f->disk_read_s = f->disk_write_s < 0 ? f->disk_write_s : transfer(fd, false, bytes);
    if (f->disk_read_s < 0)
        code = complain("cannot write and read %s: %s", path, strerror((int)-f->disk_read_s));
    close(fd);
    unlink(path);
    return code;
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

static int read_paths(struct cs_store *s, struct cs_sequence **q, uint32_t n, double *seconds)
{
    static uint32_t ids[PATH_TOKENS + 1];
    struct cs_reuse reuse;
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

static int measure_store(const char *scratch, uint64_t bytes, struct figures *f)
{
    uint32_t n = (uint32_t)(bytes / PATH_BYTES);
    int code = EXIT_FINE;
    for (int reads = 0; reads < 2 && code == EXIT_FINE; reads++) {
        struct cs_store *s;
        struct cs_sequence **q = calloc(n, sizeof(struct cs_sequence *));
        if (q == NULL)
            return complain("%s", cs_strerror(CS_ENOMEM));
        code = scratch_open(scratch, bytes, &s);
        if (code != EXIT_FINE) {
            free((void *)q);
            break;
        }
        code = reads ? read_paths(s, q, n, &f->store_read_s) : write_paths(s, q, n, &f->store_write_s);
        for (uint32_t i = 0; i < n; i++)
            cs_sequence_close(q[i]);
        cs_close(s, code == EXIT_FINE ? WAIT_MS : 0);
        free((void *)q);
    }
    return code;
}

/* ---- both -------------------------------------------------------------------------------------------- */

static void print_measured(const struct figures *f, uint64_t bytes, bool json)
{
    double mb = (double)bytes / 1e6;
    if (json) {
        printf("{\"bytes\":%" PRIu64 ",\"direct\":%s,\"disk_write_mb_s\":%.1f,\"store_write_mb_s\":%.1f,"
               "\"disk_read_mb_s\":%.1f,\"store_restore_mb_s\":%.1f}\n",
               bytes, f->direct ? "true" : "false", mb / f->disk_write_s, mb / f->store_write_s,
               mb / f->disk_read_s, mb / f->store_read_s);
        return;
    }
    printf("written    %8.1f MB/s by the store until durable, %8.1f by plain requests: %.0f %%\n",
           mb / f->store_write_s, mb / f->disk_write_s, 100 * f->disk_write_s / f->store_write_s);
    printf("restored   %8.1f MB/s by the store, verified,     %8.1f by plain requests: %.0f %%\n",
           mb / f->store_read_s, mb / f->disk_read_s, 100 * f->disk_read_s / f->store_read_s);
    printf("requests   %d MiB each, %d at a time, %s; %.0f MB, one round\n", REQUEST_BYTES >> 20, N_THREADS,
           f->direct ? "O_DIRECT" : "through the page cache, because O_DIRECT is refused here", mb);
}

int run_bench(struct cs_inspect *in, const struct options *o)
{
    uint64_t bytes = (o->bytes != 0 ? o->bytes : 256 << 20) / PATH_BYTES * PATH_BYTES;
    struct figures f = {0};
    char scratch[4096];
    if (bytes == 0 || bytes > (1ull << 40) ||
        (size_t)snprintf(scratch, sizeof scratch, "%s/%s", o->dir, CS_SCRATCH_FOLDER) >= sizeof scratch)
        return complain("the size must be 16 MiB to 1 TiB");
    if (mkdir(scratch, 0700) < 0)
        return complain("cannot make %s: %s", scratch, strerror(errno));
    stop_on_signals();
    int code = measure_disk(scratch, bytes, &f);
    if (code == EXIT_FINE && !stopped())
        code = measure_store(scratch, bytes, &f);
    cs_inspect_sweep(in);
    if (stopped()) {
        complain("stopped");
        return EXIT_STOPPED;
    }
    if (code == EXIT_FINE)
        print_measured(&f, bytes, o->json);
    return code;
}
