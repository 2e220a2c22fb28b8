/*
 * Restore from disk against the same file's ceiling.
 *
 *   disk_restore [--io auto|uring|pread] DIR [MIB [ROUNDS]]
 *
 * DIR is made (remove it afterwards); 1024 MiB, 5 rounds; the I/O engine that can be had.
 *
 * Writes MIB of spans (pages of 360 KiB, as SmolLM2's), then alternates two measurements: the ceiling, 1 MiB
 * O_DIRECT reads of the volume and nothing else, the faster of 8 and 96 in flight, through io_uring where it
 * can be had, whatever engine the store has; and one restore of all spans, every header, id and checksum
 * verified. The disk drifts between rounds, so the ratio is taken within each round and the median is what
 * counts.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/clock.h"
#include "cachestore/io/io.h"
#include "cachestore/tier_disk.h"
#include "formats/record.h"

enum { PAGE_TOKENS = 16, PAGE_BYTES = 368640, READ_BYTES = 1 << 20, DEPTH_MAX = 96, ROUNDS_MAX = 100 };

struct bench {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned done, failed;
    uint32_t n_spans, span_pages;
    uint8_t *memory;
    void **pages;
    uint32_t *ids;
    struct tier_write *writes;
    struct tier_read *reads;
    struct tier_disk *tier;
};

static void count(struct bench *b, enum tier_result result)
{
    pthread_mutex_lock(&b->lock);
    b->done++;
    b->failed += result != TIER_OK;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void on_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    (void)w;
    count(ctx, result);
}

static void on_read(void *ctx, struct tier_read *r, enum tier_result result)
{
    (void)r;
    count(ctx, result);
}

static int wait_for(struct bench *b, unsigned n)
{
    pthread_mutex_lock(&b->lock);
    while (b->done < n)
        pthread_cond_wait(&b->changed, &b->lock);
    int rc = b->failed == 0 ? 0 : -1;
    b->done = b->failed = 0;
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static int write_all(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_spans; i++) {
        b->writes[i] = (struct tier_write){.record = {.id = tier_disk_next_id(b->tier),
                                                      .kind = RECORD_SPAN,
                                                      .key = {i, 1},
                                                      .n_pages = b->span_pages,
                                                      .ids = b->ids},
                                           .pages = b->pages + (size_t)i * b->span_pages,
                                           .durable = on_durable,
                                           .ctx = b};
        tier_disk_write(b->tier, &b->writes[i]);
    }
    tier_disk_kick(b->tier);
    return wait_for(b, b->n_spans);
}

static int restore_all(struct bench *b)
{
    struct tier_read **list = malloc(b->n_spans * sizeof(struct tier_read *));
    if (list == NULL)
        return -1;
    for (uint32_t i = 0; i < b->n_spans; i++) {
        b->reads[i] = (struct tier_read){.record = b->writes[i].record,
                                         .n_pages = b->span_pages,
                                         .pages = b->writes[i].pages,
                                         .done = on_read,
                                         .ctx = b};
        list[i] = &b->reads[i];
    }
    tier_disk_read(b->tier, list, b->n_spans);
    int rc = wait_for(b, b->n_spans);
    free(list);
    return rc;
}

struct raw {
    struct io_op op;
    struct iovec iov;
    struct raw_run *run;
};
struct raw_run {
    struct io *io;
    int fd, error;
    uint64_t next, end;
    uint8_t *memory;
};

static void raw_next(struct raw *r);
static void raw_done(struct io_op *op, int result)
{
    struct raw *r = op->ctx;
    if (result < 0)
        r->run->error = result;
    else
        raw_next(r);
}

static void raw_next(struct raw *r)
{
    struct raw_run *run = r->run;
    if (run->next + READ_BYTES > run->end)
        return;
    r->iov = (struct iovec){.iov_base = run->memory + run->next, .iov_len = READ_BYTES};
    r->op = (struct io_op){.kind = IO_READ,
                           .fd = run->fd,
                           .offset = run->next,
                           .iov = &r->iov,
                           .n_iov = 1,
                           .bytes = READ_BYTES,
                           .done = raw_done,
                           .ctx = r};
    run->next += READ_BYTES;
    io_add(run->io, &r->op);
}

/* Reads the first `bytes` of the volume; seconds, or negative. */
static double read_raw(const char *path, uint8_t *memory, uint64_t bytes, int depth)
{
    struct raw reads[DEPTH_MAX];
    struct raw_run run = {.memory = memory, .end = bytes};
    struct io_engine *engine;
    char reason[160];
    run.fd = open(path, O_RDONLY | O_DIRECT);
    if (run.fd < 0 || io_engine_open(CS_IO_AUTO, &engine, reason, sizeof reason) != 0)
        return -1;
    run.io = io_open(engine, 96u << 20);
    if (run.io == NULL)
        return -1;
    double start = wall_s();
    for (int i = 0; i < depth; i++) {
        reads[i].run = &run;
        raw_next(&reads[i]);
    }
    while (io_pending(run.io) > 0)
        io_run(run.io, -1);
    double seconds = wall_s() - start;
    io_close(run.io);
    close(run.fd);
    return run.error == 0 ? seconds : -1;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int measure(struct bench *b, const char *dir, unsigned rounds)
{
    char path[512];
    double ratio[ROUNDS_MAX];
    uint64_t payload = (uint64_t)b->n_spans * b->span_pages * PAGE_BYTES;
    snprintf(path, sizeof path, "%s/volume.000", dir);
    for (unsigned i = 0; i < rounds; i++) {
        double shallow = read_raw(path, b->memory, payload, 8);
        double deep = read_raw(path, b->memory, payload, DEPTH_MAX);
        double raw = shallow < deep ? shallow : deep;
        struct cs_stats before = {0}, after = {0};
        tier_disk_stats(b->tier, &before);
        double start = wall_s(), cpu = cpu_s();
        if (shallow < 0 || deep < 0 || restore_all(b) != 0)
            return -1;
        double seconds = wall_s() - start;
        cpu = cpu_s() - cpu;
        tier_disk_stats(b->tier, &after);
        double ceiling = (double)payload / raw * 1e-9, speed = (double)payload / seconds * 1e-9;
        ratio[i] = speed / ceiling;
        printf("round %u   ceiling %.2f GB/s   restore %.2f GB/s   %.0f %%   %.2f cores   %llu requests in "
               "%llu calls\n",
               i + 1, ceiling, speed, 100 * ratio[i], cpu / seconds,
               (unsigned long long)(after.sqes - before.sqes),
               (unsigned long long)(after.submissions - before.submissions));
    }
    qsort(ratio, rounds, sizeof *ratio, by_value);
    printf("median    %.0f %% of the ceiling (%u spans of %u pages, %.0f MiB)\n", 100 * ratio[rounds / 2],
           b->n_spans, b->span_pages, (double)payload / (1 << 20));
    return 0;
}

static void print_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

static int setup(struct bench *b, uint64_t bytes)
{
    b->span_pages = fmt_record_pages_per_span(4 << 20, PAGE_TOKENS, PAGE_BYTES, 256 << 10);
    b->n_spans = (uint32_t)(bytes / PAGE_BYTES / b->span_pages) + 1;
    size_t n_pages = (size_t)b->n_spans * b->span_pages, arena = n_pages * PAGE_BYTES;
    b->memory = mmap(NULL, arena + (2u << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->pages = calloc(n_pages, sizeof *b->pages);
    b->ids = calloc((size_t)b->span_pages * PAGE_TOKENS, sizeof *b->ids);
    b->writes = calloc(b->n_spans, sizeof *b->writes);
    b->reads = calloc(b->n_spans, sizeof *b->reads);
    if (b->memory == MAP_FAILED || b->pages == NULL || b->ids == NULL || b->writes == NULL ||
        b->reads == NULL)
        return -1;
    madvise(b->memory, arena + (2u << 20), MADV_HUGEPAGE);
    uint64_t x = 1;
    for (size_t i = 0; i < arena / 8; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        ((uint64_t *)(void *)b->memory)[i] = x;
    }
    for (size_t i = 0; i < n_pages; i++)
        b->pages[i] = b->memory + i * PAGE_BYTES;
    return 0;
}

static bool engine_by_name(const char *name, enum cs_io_engine *out)
{
    static const char *const names[] = {
        [CS_IO_AUTO] = "auto", [CS_IO_URING] = "uring", [CS_IO_PREAD] = "pread"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum cs_io_engine)i;
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    enum cs_io_engine io_engine = CS_IO_AUTO;
    bool usage = false;
    if (argc > 2 && strcmp(argv[1], "--io") == 0) {
        usage = !engine_by_name(argv[2], &io_engine);
        argc -= 2;
        argv += 2;
    }
    if (usage || argc < 2 || argc > 4) {
        fprintf(stderr, "usage: disk_restore [--io auto|uring|pread] DIR [MIB [ROUNDS]]\n");
        return 2;
    }
    uint64_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1024) << 20;
    unsigned rounds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 5;
    if (rounds == 0 || rounds > ROUNDS_MAX || bytes == 0) {
        fprintf(stderr, "disk_restore: 1 to %d rounds of at least 1 MiB\n", ROUNDS_MAX);
        return 2;
    }
    static struct bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct cs_config config = {.page_tokens = PAGE_TOKENS,
                               .page_bytes = PAGE_BYTES,
                               .disk_dir = argv[1],
                               .disk_bytes = bytes + bytes / 4 + (256u << 20),
                               .io_engine = io_engine,
                               .log = print_log};
    struct tier_disk_events none = {0};
    uint8_t secret[16];
    char err[256] = "out of memory";
    int rc = setup(&b, bytes);
    if (rc == 0)
        rc = tier_disk_open(&config, &none, &b.tier, secret, err, sizeof err);
    if (rc != 0) {
        fprintf(stderr, "disk_restore: %s\n", err);
        return 1;
    }
    double start = wall_s();
    rc = write_all(&b);
    if (rc == 0) {
        double payload = (double)b.n_spans * b.span_pages * PAGE_BYTES;
        printf("written and durable at %.2f GB/s\n", payload / (wall_s() - start) * 1e-9);
        rc = measure(&b, argv[1], rounds);
    }
    tier_disk_close(b.tier, 10000);
    if (rc != 0)
        fprintf(stderr, "disk_restore: a request failed\n");
    return rc == 0 ? 0 : 1;
}
