/*
 * How far what the store predicts of a restore from disk is off.
 *
 *   predicted [--prefill MODEL] [--passes N] [--opens N] DIR [MIB]
 *
 * DIR is made (remove it afterwards); 3 passes, 3 opens, 512 MiB.
 *
 * Paths of 1, 2, 4, ... MIB MiB (pages of 360 KiB, as SmolLM2's) are published and durable. Then they are
 * restored, each alone and with nothing on the device, in random order, pass after pass, and the time that
 * each took is divided by the time that had been predicted for it when it began. All this
 *
 *   idle             with nothing else going on
 *   beside prefill   (--prefill) while two threads compute a model's prompts without a pause
 *   beside writes    64 MiB (MIB, if that is less) have just been published and are on their way to the disk
 *   in turns         (--prefill) prefill begins and ends before every fifth restore
 *
 * The store is opened anew for each, and learns from nothing: its first restore has no prediction. Those of
 * the first pass are told apart ("learning") from those of the later ones. Printed are the 10th, 50th and
 * 90th percentile, how many were within a factor of 1.25 and of 3 (the deadline's), and for whom the median
 * is off: small ones (up to 4 MiB), middle ones (up to 64) and large ones.
 */
#include "bench/busy.h"
#include "bench/clock.h"
#include "bench/numbers.h"
#include "cachestore/cachestore.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_TOKENS = 16,
    PAGE_BYTES = 368640,
    SIZES_MAX = 16,
    WRITE_MIB = 64,
    TURN_RESTORES = 5,
    FLUSH_MS = 60000,
    SAMPLES_MAX = 4096
};
enum load { IDLE, PREFILL, WRITES, TURNS, N_LOADS };
static const char *const load_names[N_LOADS] = {"idle", "beside prefill", "beside writes", "in turns"};

struct settings {
    const char *dir, *model;
    uint32_t passes, opens, mib;
};

/* Taken over predicted. */
struct samples {
    double all[SAMPLES_MAX], of[3][SAMPLES_MAX];
    size_t n, n_of[3];
};

static unsigned n_sizes;
static uint32_t write_mib;
static uint32_t *ids;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool settled; /* lock */

static void die(const char *what)
{
    fprintf(stderr, "predicted: %s\n", what);
    exit(1);
}

static size_t pages_of(uint32_t mib)
{
    return (((size_t)mib << 20) + PAGE_BYTES - 1) / PAGE_BYTES;
}

static struct cs_store *open_store(const struct settings *set)
{
    uint64_t most = (uint64_t)set->mib << 20,
             written = (uint64_t)set->opens * (set->passes + 1) * n_sizes * write_mib << 20;
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .arena_bytes = most + ((2ull * write_mib + 1) << 20),
                          .disk_dir = set->dir,
                          .disk_bytes = 3 * most + written + (256u << 20)};
    struct cs_store *s;
    struct cs_stats st;
    char err[256] = "";
    if (cs_open(&c, &s, err, sizeof err) != CS_OK)
        die(err);
    cs_stats_get(s, &st);
    if (!st.disk_on)
        die("the disk tier is off");
    return s;
}

static void on_settled(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    settled = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* The first n ids, behind one that tells the path. */
static struct cs_sequence *open_settled(struct cs_store *s, uint32_t path, size_t n)
{
    struct cs_sequence *q;
    ids[0] = path;
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

/* Nothing is cached on the device then. touch: all of its memory is backed, too. */
static void empty_device(struct cs_store *s, bool touch)
{
    struct cs_stats st;
    struct cs_sequence *q = open_settled(s, UINT32_MAX, 1);
    if (cs_flush(s, FLUSH_MS) != CS_OK)
        die("flush");
    cs_stats_get(s, &st);
    if (cs_sequence_grow(q, st.pages_total * PAGE_TOKENS) != CS_OK)
        die("grow");
    for (size_t p = 0; touch && p < st.pages_total; p++)
        memset(cs_sequence_pages(q)[p], 0, PAGE_BYTES);
    cs_sequence_close(q);
}

static void publish(struct cs_store *s, uint32_t path, uint32_t mib)
{
    size_t n = pages_of(mib);
    struct cs_sequence *q = open_settled(s, path, 1);
    if (cs_sequence_grow(q, n * PAGE_TOKENS) != CS_OK)
        die("grow");
    for (size_t p = 0; p < n; p++)
        memset(cs_sequence_pages(q)[p], (int)(path + p), PAGE_BYTES);
    if (cs_sequence_publish(q, ids, n * PAGE_TOKENS, NULL, 0) != CS_OK)
        die("publish");
    cs_sequence_close(q);
}

static void restore(struct cs_store *s, uint32_t size, struct samples *out)
{
    struct cs_stats before, after;
    size_t n = pages_of(1u << size);
    cs_stats_get(s, &before);
    struct cs_sequence *q = open_settled(s, size, n * PAGE_TOKENS + 1);
    cs_stats_get(s, &after);
    if (cs_sequence_n_pages(q) != n || after.restores_disk != before.restores_disk + 1)
        die("the restore was not complete");
    cs_sequence_close(q);
    if (after.restores_in_time == before.restores_in_time || out->n == SAMPLES_MAX)
        return; /* the first one */
    double predicted = (double)(after.restores_predicted_us - before.restores_predicted_us),
           taken = (double)(after.restores_taken_us - before.restores_taken_us),
           ratio = taken / (predicted > 1 ? predicted : 1);
    unsigned class = size <= 2 ? 0 : size <= 6 ? 1 : 2;
    out->all[out->n++] = ratio;
    out->of[class][out->n_of[class]++] = ratio;
}

static uint64_t random_next(uint64_t *x)
{
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return *x >> 33;
}

static void pass(struct cs_store *s, enum load load, uint64_t *x, struct samples *out)
{
    static uint32_t written = 1000;
    static unsigned restores;
    uint32_t order[SIZES_MAX] = {0};
    for (uint32_t i = 0; i < n_sizes; i++) {
        uint32_t k = (uint32_t)(random_next(x) % (i + 1));
        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t i = 0; i < n_sizes; i++) {
        if (load == TURNS && restores++ % TURN_RESTORES == 0)
            busy_run(restores / TURN_RESTORES % 2 == 0);
        empty_device(s, false);
        if (load == WRITES)
            publish(s, written++, write_mib);
        restore(s, order[i], out);
    }
}

static double percentile(const double *sorted, size_t n, double p)
{
    return n > 0 ? sorted[(size_t)(p * (double)(n - 1) + 0.5)] : 0;
}

static double share_within(const double *a, size_t n, double factor)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += a[i] <= factor && a[i] >= 1 / factor;
    return n > 0 ? 100.0 * (double)k / (double)n : 0;
}

static void report(enum load load, const char *phase, struct samples *s)
{
    qsort(s->all, s->n, sizeof *s->all, compare_doubles);
    printf("%-15s %-9s %4zu restores: taken / predicted p10 %.2f  p50 %.2f  p90 %.2f; within 1.25: %.0f %%, "
           "within 3: "
           "%.0f %%; medians of small, middle, large:",
           load_names[load], phase, s->n, percentile(s->all, s->n, 0.1), percentile(s->all, s->n, 0.5),
           percentile(s->all, s->n, 0.9), share_within(s->all, s->n, 1.25), share_within(s->all, s->n, 3));
    for (unsigned k = 0; k < 3; k++) {
        qsort(s->of[k], s->n_of[k], sizeof *s->of[k], compare_doubles);
        printf(" %.2f", percentile(s->of[k], s->n_of[k], 0.5));
    }
    printf("\n");
    fflush(stdout);
}

static void run(const struct settings *set, enum load load, uint64_t *x)
{
    static struct samples learning, learned;
    learning = learned = (struct samples){0};
    for (uint32_t i = 0; i < set->opens; i++) {
        struct cs_store *s = open_store(set);
        empty_device(s, true);
        if (load == PREFILL)
            busy_run(1);
        for (uint32_t k = 0; k <= set->passes; k++)
            pass(s, load, x, k == 0 ? &learning : &learned);
        if (set->model)
            busy_run(0);
        cs_close(s, FLUSH_MS);
    }
    report(load, "learning", &learning);
    report(load, "learned", &learned);
}

static bool parse(int argc, char **argv, struct settings *s)
{
    static const struct option options[] = {{"prefill", required_argument, NULL, 'p'},
                                            {"passes", required_argument, NULL, 'n'},
                                            {"opens", required_argument, NULL, 'o'},
                                            {NULL, 0, NULL, 0}};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'p')
            s->model = optarg;
        else if (c == 'n')
            ok = parse_number(optarg, 1, 100, &s->passes);
        else if (c == 'o')
            ok = parse_number(optarg, 1, 100, &s->opens);
        else
            ok = false;
    }
    int n = argc - optind;
    ok = ok && (n == 1 || n == 2);
    if (ok)
        s->dir = argv[optind];
    if (ok && n > 1)
        ok = parse_number(argv[optind + 1], 1, 1 << (SIZES_MAX - 1), &s->mib);
    return ok;
}

int main(int argc, char **argv)
{
    struct settings set = {.passes = 3, .opens = 3, .mib = 512};
    if (!parse(argc, argv, &set)) {
        fprintf(stderr, "usage: predicted [--prefill MODEL] [--passes N] [--opens N] DIR [MIB]\n");
        return 2;
    }
    write_mib = set.mib < WRITE_MIB ? set.mib : WRITE_MIB;
    while (n_sizes < SIZES_MAX && 1u << n_sizes <= set.mib)
        n_sizes++;
    size_t n_ids = pages_of(set.mib) * PAGE_TOKENS + 1;
    ids = calloc(n_ids, sizeof *ids);
    if (!ids)
        die("out of memory");
    for (size_t i = 0; i < n_ids; i++)
        ids[i] = (uint32_t)i;
    if (set.model && busy_open(set.model, 2) != 0)
        return 1;
    struct cs_store *s = open_store(&set);
    for (uint32_t i = 0; i < n_sizes; i++) {
        publish(s, i, 1u << i);
        empty_device(s, false);
    }
    cs_close(s, FLUSH_MS);
    uint64_t x = 1;
    for (enum load load = IDLE; load < N_LOADS; load++)
        if (set.model || load == IDLE || load == WRITES)
            run(&set, load, &x);
    if (set.model)
        busy_close();
    free(ids);
    return 0;
}
