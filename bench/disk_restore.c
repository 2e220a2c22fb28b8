/*
 * Restore from disk against the same file's ceiling.
 *
 *   disk_restore [--io auto|uring|pread] [--chunk KIB] [--inflight MIB] [--turnover N] [--prefill MODEL] DIR
 *                [MIB [ROUNDS]]
 *
 * DIR is made (remove it afterwards); 1024 MiB, 5 rounds; the I/O engine that can be had.
 *
 * Writes MIB of spans (pages of 360 KiB, as SmolLM2's), then alternates two measurements: the ceiling, 1 MiB
 * O_DIRECT reads of the volume into the same memory and nothing else, through io_uring, with 2, 4 and 8 in
 * flight (GB/s of each are printed; the one with the highest median is the ceiling); and one restore of all
 * spans, every header, id and checksum verified.
 *
 * --turnover N: every other span has a random number of pages, the budget is what they take and 5 % more, and
 * before the rounds spans are deleted in random order and written again until N times the budget has been
 * written; so what is read lies in whatever pieces were free.
 * --prefill MODEL: the same once more while two threads prefill with the real kernels: a round is four turns,
 * each of them the three ceilings, a restore, and a pause as long, so that prefill has a speed beside each.
 * What the thread that reads ran, and what it waited for a processor while it could have run, is printed too.
 */
#include "bench/busy.h"
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/numbers.h"
#include "bench/threads.h"
#include "formats/record.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 100, BUSY_TURNS = 4 };

struct settings {
    const char *dir, *model;
    enum cs_io_engine io;
    uint32_t chunk_kib, inflight_mib, turnover, mib, rounds;
    struct threads tier_threads;
};

static const unsigned depths[] = {2, 4, 8};
enum { N_DEPTHS = sizeof depths / sizeof *depths, RESTORE = N_DEPTHS, N_WAYS };

/* What one way of reading took in a round, all turns together. */
struct sample {
    double wall_s, cpu_s;
    uint64_t tokens; /* prefilled meanwhile */
    struct thread_times thread;
};

static struct sample sample_at(const struct threads *who)
{
    struct sample s = {.cpu_s = cpu_s(), .tokens = busy_tokens(), .thread = threads_times(who)};
    s.wall_s = wall_s();
    return s;
}

static void sample_add(struct sample *sum, const struct sample *from, const struct sample *to)
{
    sum->wall_s += to->wall_s - from->wall_s;
    sum->cpu_s += to->cpu_s - from->cpu_s;
    sum->tokens += to->tokens - from->tokens;
    sum->thread.ran_s += to->thread.ran_s - from->thread.ran_s;
    sum->thread.waited_s += to->thread.waited_s - from->thread.waited_s;
    sum->thread.turns += to->thread.turns - from->thread.turns;
}

/* One turn: all spans once by each way, and with a load a pause as long as the last of them. */
static int turn(struct disk_spans *b, const struct settings *s, bool busy, struct sample *ways,
                struct sample *pause)
{
    struct threads caller;
    struct sample from, to;
    threads_caller(&caller);
    for (unsigned k = 0; k < N_WAYS; k++) {
        const struct threads *who = k == RESTORE ? &s->tier_threads : &caller;
        from = sample_at(who);
        if (k == RESTORE ? disk_spans_read(b) != 0
                         : ceiling_disk_read_s(s->dir, b->bytes, depths[k], b->memory, b->bytes) == 0)
            return -1;
        double end = wall_s();
        to = sample_at(who);
        to.wall_s = end;
        sample_add(&ways[k], &from, &to);
    }
    if (busy) {
        double seconds = to.wall_s - from.wall_s;
        from = sample_at(&caller);
        usleep((useconds_t)(seconds * 1e6));
        to = sample_at(&caller);
        sample_add(pause, &from, &to);
    }
    return 0;
}

/* alone: tokens a second with nothing being read; 0: none are computed. */
static void report_load(const char *way, const struct sample *sum, double bytes, double alone)
{
    const struct thread_times *t = &sum->thread;
    double speed = (double)sum->tokens / sum->wall_s;
    printf("  %-18s per GB the thread that reads ran %.0f ms, was ready and waited %.0f ms, in %.0f turns",
           way, 1e12 * t->ran_s / bytes, 1e12 * t->waited_s / bytes, 1e9 * (double)t->turns / bytes);
    if (alone > 0)
        printf("; prefill %.0f tokens/s, %.0f %% of the %.0f alone", speed, 100 * speed / alone, alone);
    printf("\n");
}

static int measure(struct disk_spans *b, const struct settings *s, bool busy)
{
    double speed[N_WAYS][ROUNDS_MAX], sorted[ROUNDS_MAX], pairs[ROUNDS_MAX], cores[ROUNDS_MAX];
    struct sample sums[N_WAYS] = {0}, pause = {0};
    unsigned turns = busy ? BUSY_TURNS : 1, best = 0;
    double bytes = (double)b->bytes * turns, ceiling = 0;
    for (unsigned i = 0; i < s->rounds; i++) {
        struct cs_stats before = {0}, after = {0};
        struct sample ways[N_WAYS] = {0};
        tier_disk_stats(b->tier, &before);
        for (unsigned t = 0; t < turns; t++)
            if (turn(b, s, busy, ways, &pause) != 0)
                return -1;
        tier_disk_stats(b->tier, &after);
        printf("round %-3u", i + 1);
        for (unsigned k = 0; k < N_WAYS; k++) {
            speed[k][i] = bytes / ways[k].wall_s * 1e-9;
            printf(k == RESTORE ? "   restore %.2f GB/s" : " %.2f", speed[k][i]);
            sample_add(&sums[k], &(struct sample){0}, &ways[k]);
        }
        cores[i] = ways[RESTORE].cpu_s / ways[RESTORE].wall_s;
        if (!busy)
            printf("   %.2f cores", cores[i]);
        printf("   %llu requests in %llu calls\n", (unsigned long long)(after.sqes - before.sqes) / turns,
               (unsigned long long)(after.submissions - before.submissions) / turns);
    }
    for (unsigned k = 0; k < N_DEPTHS; k++) {
        memcpy(sorted, speed[k], sizeof sorted);
        double middle = median(sorted, s->rounds);
        best = middle > ceiling ? k : best;
        ceiling = middle > ceiling ? middle : ceiling;
    }
    for (unsigned i = 0; i < s->rounds; i++)
        pairs[i] = speed[RESTORE][i] / speed[best][i];
    memcpy(sorted, speed[RESTORE], sizeof sorted);
    double middle = median(sorted, s->rounds);
    printf("%s: ceiling %.2f GB/s (%u in flight), restore %.2f GB/s (%.2f to %.2f), %.0f %% (of the same "
           "round's: %.0f %%)",
           busy ? "beside prefill" : "medians", ceiling, depths[best], middle, sorted[0],
           sorted[s->rounds - 1], 100 * middle / ceiling, 100 * median(pairs, s->rounds));
    if (!busy)
        printf(", %.2f cores", median(cores, s->rounds));
    printf("\n");
    double alone = busy ? (double)pause.tokens / pause.wall_s : 0;
    report_load("beside the ceiling", &sums[best], bytes * s->rounds, alone);
    report_load("beside restores", &sums[RESTORE], bytes * s->rounds, alone);
    return 0;
}

static int beside_prefill(struct disk_spans *b, const struct settings *s)
{
    if (busy_open(s->model, 2) != 0)
        return -1;
    busy_run(1);
    usleep(s->mib < 64 ? 100000 : 1000000); /* warm */
    int rc = measure(b, s, true);
    busy_run(0);
    busy_close();
    return rc;
}

/* Deletes and writes until `bytes` have been written. */
static int turn_over(struct disk_spans *b, uint64_t bytes)
{
    uint64_t x = 7, written = 0;
    unsigned under_way = 0;
    double start = wall_s();
    while (written < bytes) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t i = (uint32_t)((x >> 33) % b->n);
        /* One that is being written now cannot be written again: a few at a time, then all of them end. */
        if (b->writes[i].ctx == NULL)
            continue;
        tier_disk_delete(b->tier, b->writes[i].record.id);
        b->writes[i].ctx = NULL;
        written += tier_disk_record_bytes(b->tier, RECORD_SPAN, b->first[i + 1] - b->first[i]);
        if (++under_way < b->n / 8 + 1 && written < bytes)
            continue;
        for (uint32_t k = 0; k < b->n; k++)
            if (b->writes[k].ctx == NULL)
                disk_spans_write_one(b, k);
        tier_disk_kick(b->tier);
        if (disk_spans_wait(b, under_way) != 0)
            return -1;
        under_way = 0;
    }
    struct cs_stats st = {0};
    tier_disk_stats(b->tier, &st);
    printf("turned over: %.1f times the budget written at %.2f GB/s\n",
           (double)written / (double)st.disk_budget, (double)written / (wall_s() - start) * 1e-9);
    return 0;
}

static int run(struct disk_spans *b, const struct settings *s)
{
    double start = wall_s();
    int rc = disk_spans_write(b);
    if (rc == 0)
        printf("written and durable at %.2f GB/s\n", (double)b->bytes / (wall_s() - start) * 1e-9);
    if (rc == 0 && s->turnover > 0)
        rc = turn_over(b, s->turnover * b->config.disk_bytes);
    if (rc == 0) {
        struct cs_stats st = {0};
        tier_disk_stats(b->tier, &st);
        printf("%u spans of up to %u pages, %.0f MiB; %.1f %% of the disk's room is free\n", b->n,
               b->span_pages, (double)b->bytes / (1 << 20),
               100.0 * (double)tier_disk_free_bytes(b->tier) / (double)st.disk_budget);
        rc = measure(b, s, false);
    }
    if (rc == 0 && s->model)
        rc = beside_prefill(b, s);
    return rc;
}

/* Bytes that all spans take on disk. */
static uint64_t taken_bytes(const struct disk_spans *b, uint64_t chunk)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->n; i++)
        sum +=
            (4096 + (uint64_t)(b->first[i + 1] - b->first[i]) * SPANS_PAGE_BYTES + chunk - 1) / chunk * chunk;
    return sum;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: disk_restore [--io auto|uring|pread] [--chunk KIB] [--inflight MIB] [--turnover N] "
            "[--prefill MODEL] DIR [MIB [ROUNDS]]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct settings *s)
{
    static const struct option options[] = {
        {"io", required_argument, NULL, 'i'},       {"chunk", required_argument, NULL, 'c'},
        {"inflight", required_argument, NULL, 'f'}, {"turnover", required_argument, NULL, 't'},
        {"prefill", required_argument, NULL, 'p'},  {NULL, 0, NULL, 0}};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'i')
            ok = disk_spans_engine(optarg, &s->io);
        else if (c == 'c')
            ok = parse_number(optarg, 4, 1 << 20, &s->chunk_kib);
        else if (c == 'f')
            ok = parse_number(optarg, 1, 4096, &s->inflight_mib);
        else if (c == 't')
            ok = parse_number(optarg, 1, 1000, &s->turnover);
        else if (c == 'p')
            s->model = optarg;
        else
            ok = false;
    }
    int n = argc - optind;
    ok = ok && n >= 1 && n <= 3;
    if (ok)
        s->dir = argv[optind];
    if (ok && n > 1)
        ok = parse_number(argv[optind + 1], 1, 1 << 20, &s->mib);
    if (ok && n > 2)
        ok = parse_number(argv[optind + 2], 1, ROUNDS_MAX, &s->rounds);
    return ok;
}

int main(int argc, char **argv)
{
    struct settings s = {.mib = 1024, .rounds = 5};
    if (!parse(argc, argv, &s))
        return usage();
    static struct disk_spans b;
    uint64_t bytes = (uint64_t)s.mib << 20;
    struct cs_config config = {.page_tokens = SPANS_PAGE_TOKENS,
                               .page_bytes = SPANS_PAGE_BYTES,
                               .disk_dir = s.dir,
                               .disk_bytes = bytes + bytes / 2 + (64u << 20),
                               .io_engine = s.io,
                               .chunk_bytes = (uint64_t)s.chunk_kib << 10,
                               .inflight_bytes = (uint64_t)s.inflight_mib << 20};
    int rc = disk_spans_make(&b, &config, bytes, s.turnover > 0);
    if (rc != 0) {
        fprintf(stderr, "disk_restore: out of memory\n");
        return 1;
    }
    if (s.turnover > 0) { /* the catalogue has its share, 1/64 and 8 MiB at least */
        uint64_t chunk = s.chunk_kib ? (uint64_t)s.chunk_kib << 10 : FMT_RECORD_CHUNK_BYTES,
                 volumes = taken_bytes(&b, chunk) / 20 * 21;
        b.config.disk_bytes = volumes + (volumes / 63 > (8u << 20) ? volumes / 63 : 8u << 20) + 4096;
    }
    if (disk_spans_open(&b) != CS_OK)
        return 1;
    threads_others(&s.tier_threads);
    rc = run(&b, &s);
    disk_spans_close(&b);
    if (rc != 0)
        fprintf(stderr, "disk_restore: a request failed\n");
    return rc == 0 ? 0 : 1;
}
