/*
 * Publishing to disk against the same file system's ceiling.
 *
 *   disk_publish [--io auto|uring|pread] [--chunk KIB] DIR [MIB [ROUNDS]]
 *
 * DIR is made (remove it afterwards); 512 MiB, 7 rounds; the I/O engine that can be had.
 *
 * Each round makes a new store and writes MIB of spans (pages of 360 KiB, as SmolLM2's) until all are
 * durable: checksums taken, data synced, rows committed and synced. Then they are deleted and written again.
 * Beside each stands the ceiling: 1 MiB O_DIRECT writes through io_uring with 2, 4 and 8 in flight (GB/s of
 * each are printed; the one with the highest median is the ceiling) from the same memory into one file, and
 * as many fdatasyncs as the store made, spread among them. First into a new file whose room has just been
 * allocated, as the store's has ("first"), then over what is there ("again"). Its last line says where the
 * time of a publish goes, medians of each part; the rows are what the ceiling has not, and beside them stands
 * what a file system takes to make as much durable at the end of a file.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/engine_clock.h"
#include "bench/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS_MAX = 100, N_DEPTHS = 3, LOG_BYTES = 8192 };

static const unsigned depths[N_DEPTHS] = {2, 4, 8};

/* What the time of a publish goes to, one after another, and what only to append and sync a log takes. */
enum part { BEGIN, WRITES, WAIT, SYNC, CATALOGUE, N_PARTS, LOG = N_PARTS, N_TIMES };

struct series {
    const char *name;
    double bytes; /* of a publish */
    double raw[N_DEPTHS][ROUNDS_MAX], publish[ROUNDS_MAX], cores[ROUNDS_MAX], ms[N_TIMES][ROUNDS_MAX];
};

/* Writes all; how long it took, and how many syncs. */
static int publish(struct disk_spans *b, struct series *s, unsigned round, unsigned *n_syncs)
{
    struct cs_stats before = {0}, after = {0};
    tier_disk_stats(b->tier, &before);
    engine_clock_reset();
    double start = wall_s(), cpu = cpu_s();
    if (disk_spans_write(b) != 0)
        return -1;
    double end = wall_s(), seconds = end - start;
    struct engine_times t = engine_clock_times();
    const double at[N_PARTS + 1] = {
        start, t.first_write_begun, t.last_write_ended, t.last_sync_begun, t.last_sync_ended, end};
    for (unsigned k = 0; k < N_PARTS; k++)
        s->ms[k][round] = 1e3 * (at[k + 1] - at[k]);
    s->cores[round] = (cpu_s() - cpu) / seconds;
    s->bytes = (double)b->bytes;
    s->publish[round] = s->bytes / seconds * 1e-9;
    tier_disk_stats(b->tier, &after);
    *n_syncs = (unsigned)(after.syncs - before.syncs);
    printf("   publish %.2f GB/s   %.2f cores   %llu requests in %llu calls, %u syncs, %llu batches\n",
           s->publish[round], s->cores[round], (unsigned long long)(after.sqes - before.sqes),
           (unsigned long long)(after.submissions - before.submissions), *n_syncs,
           (unsigned long long)(after.catalog_batches - before.catalog_batches));
    return 0;
}

/* Milliseconds to append LOG_BYTES to a file and sync it, the way a catalogue's log grows. */
static double append_ms(int fd)
{
    static const char bytes[LOG_BYTES];
    double start = wall_s();
    if (write(fd, bytes, sizeof bytes) != sizeof bytes || fdatasync(fd) != 0)
        return 0;
    return 1e3 * (wall_s() - start);
}

static int ceilings(struct disk_spans *b, const char *dir, struct series *first, struct series *again,
                    unsigned round, unsigned n_syncs)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ceiling", dir);
    for (unsigned k = 0; k < N_DEPTHS; k++) {
        for (unsigned pass = 0; pass < 2; pass++) {
            double seconds = ceiling_disk_write_s(path, b->bytes, depths[k], b->memory, b->bytes, n_syncs);
            if (seconds == 0)
                return -1;
            (pass == 0 ? first : again)->raw[k][round] = (double)b->bytes / seconds * 1e-9;
        }
        unlink(path);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    (void)append_ms(fd); /* its name and first block */
    first->ms[LOG][round] = append_ms(fd);
    again->ms[LOG][round] = append_ms(fd);
    close(fd);
    unlink(path);
    for (unsigned pass = 0; pass < 2; pass++) {
        const struct series *s = pass == 0 ? first : again;
        printf("   ceiling, %s: %.2f %.2f %.2f", s->name, s->raw[0][round], s->raw[1][round],
               s->raw[2][round]);
    }
    printf(" GB/s\n");
    return 0;
}

static void report(struct series *s, size_t rounds)
{
    unsigned best = 0;
    double ceiling = 0, ms[N_TIMES];
    for (unsigned k = 0; k < N_TIMES; k++)
        ms[k] = median(s->ms[k], rounds);
    for (unsigned k = 0; k < N_DEPTHS; k++) {
        double middle = median(s->raw[k], rounds);
        best = middle > ceiling ? k : best;
        ceiling = middle > ceiling ? middle : ceiling;
    }
    double speed = median(s->publish, rounds), bytes = s->bytes,
           with_log = bytes / (bytes / ceiling + 1e6 * ms[LOG]);
    printf(
        "%s: ceiling %.2f GB/s (%u in flight), publish %.2f GB/s (%.2f to %.2f), %.0f %%, %.2f cores; of the "
        "ceiling and one append to a log, synced: %.0f %%\n",
        s->name, ceiling, depths[best], speed, s->publish[0], s->publish[rounds - 1], 100 * speed / ceiling,
        median(s->cores, rounds), 100 * speed / with_log);
    printf("  %.1f ms to the first write, %.1f to the end of the last, %.1f until the last sync begins, %.1f "
           "to its end, %.1f until rows are durable and all say so (8 KiB appended to a file and synced: "
           "%.1f)\n",
           ms[BEGIN], ms[WRITES], ms[WAIT], ms[SYNC], ms[CATALOGUE], ms[LOG]);
}

static int run(struct disk_spans *b, const char *dir, unsigned rounds)
{
    static struct series first = {.name = "first"}, again = {.name = "again"};
    char store[4096];
    snprintf(store, sizeof store, "%s/store", dir);
    b->config.disk_dir = store;
    b->engine_open = engine_clock_open;
    for (unsigned i = 0; i < rounds; i++) {
        unsigned n_syncs;
        printf("round %u\n", i + 1);
        if (disk_spans_open(b) != CS_OK)
            return -1;
        int rc = publish(b, &first, i, &n_syncs);
        if (rc == 0) {
            disk_spans_delete(b);
            rc = publish(b, &again, i, &n_syncs);
        }
        disk_spans_close(b);
        bench_remove_tree(store);
        if (rc != 0 || ceilings(b, dir, &first, &again, i, n_syncs) != 0)
            return -1;
    }
    report(&first, rounds);
    report(&again, rounds);
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: disk_publish [--io auto|uring|pread] [--chunk KIB] DIR [MIB [ROUNDS]]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"io", required_argument, NULL, 'i'}, {"chunk", required_argument, NULL, 'c'}, {NULL, 0, NULL, 0}};
    enum cs_io_engine io = CS_IO_AUTO;
    uint32_t chunk_kib = 0, mib = 512, rounds = 7;
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        ok = c == 'i'   ? disk_spans_engine(optarg, &io)
             : c == 'c' ? parse_number(optarg, 4, 1 << 20, &chunk_kib)
                        : false;
    int n = argc - optind;
    ok = ok && n >= 1 && n <= 3;
    ok = ok && (n < 2 || parse_number(argv[optind + 1], 1, 1 << 20, &mib));
    ok = ok && (n < 3 || parse_number(argv[optind + 2], 1, ROUNDS_MAX, &rounds));
    if (!ok)
        return usage();
    static struct disk_spans b;
    uint64_t bytes = (uint64_t)mib << 20;
    struct cs_config config = {.page_tokens = SPANS_PAGE_TOKENS,
                               .page_bytes = SPANS_PAGE_BYTES,
                               .disk_bytes = bytes + bytes / 2 + (64u << 20),
                               .io_engine = io,
                               .chunk_bytes = (uint64_t)chunk_kib << 10};
    if (disk_spans_make(&b, &config, bytes, false) != 0 ||
        (mkdir(argv[optind], 0700) != 0 && errno != EEXIST)) {
        fprintf(stderr, "disk_publish: no memory or no directory\n");
        return 1;
    }
    int rc = run(&b, argv[optind], rounds);
    if (rc != 0)
        fprintf(stderr, "disk_publish: a request failed\n");
    return rc == 0 ? 0 : 1;
}
