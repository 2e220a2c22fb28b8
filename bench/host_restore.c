/*
 * Restore from the host tier against memcpy.
 *
 *   host_restore [--page BYTES] [--mib N] [ROUNDS]
 *
 * The device is the discrete CPU backend: its memory is host memory, and two threads of its own copy and
 * verify the sum of each block. N MiB (512) of pages (360 KiB, as SmolLM2's) are published, copied to the
 * host and pushed out of the device by others; then they are restored, and that is timed, from opening the
 * sequence until it has settled. Beside it, in the same round (9 of them), memcpy moves as many bytes between
 * buffers of the same kind (huge pages where allowed, backed before), in one piece a thread: by one thread,
 * and by as many as the device has. What came is compared with what was published in the first and the last
 * round. Rounds before the first (4) are not counted: a virtual machine's memory may have to be given by its
 * host first.
 */
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/numbers.h"
#include "cachestore/cachestore.h"
#include "engine/runtime/discrete.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_TOKENS = 16, ROUNDS_MAX = 100, WARM_UP = 4 };

struct bench {
    uint32_t page_bytes;
    size_t n_pages, n_tokens, spare;
    uint32_t *ids, *others;
    struct discrete *device;
    struct cs_store *s;
    uint8_t *from, *to; /* the ceiling's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool settled; /* lock */
};

static void die(const char *what)
{
    fprintf(stderr, "host_restore: %s\n", what);
    exit(1);
}

static uint8_t *buffer(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    uint8_t *p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("out of memory");
    p += (huge - (uintptr_t)p % huge) % huge;
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

static void on_settled(void *ctx)
{
    struct bench *b = ctx;
    pthread_mutex_lock(&b->lock);
    b->settled = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static struct cs_sequence *open_settled(struct bench *b, const uint32_t *ids, size_t n,
                                        struct cs_reuse *reuse)
{
    struct cs_sequence *q;
    if (cs_sequence_open(b->s, NULL, ids, n, &q) != CS_OK)
        die("open");
    cs_sequence_notify(q, on_settled, b);
    pthread_mutex_lock(&b->lock);
    while (!b->settled)
        pthread_cond_wait(&b->changed, &b->lock);
    b->settled = false;
    pthread_mutex_unlock(&b->lock);
    if (cs_sequence_poll(q, reuse) != 1)
        die("not settled");
    return q;
}

/* The memory behind a page of the device. */
static uint64_t *memory_of(struct bench *b, struct cs_sequence *q, size_t page)
{
    if (discrete_begin(b->device, 1) != 0)
        die("out of memory");
    return (uint64_t *)*discrete_list(b->device, cs_sequence_pages(q) + page, 1);
}

static uint64_t word_of(size_t page, size_t word)
{
    return (page * 0x9e3779b97f4a7c15ull) ^ (word * 0xc2b2ae3d27d4eb4full);
}

static void start(struct bench *b)
{
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = b->page_bytes,
                          .arena_bytes = (b->n_pages + b->spare) * (uint64_t)b->page_bytes,
                          .host_bytes = (b->n_pages + b->spare) * (uint64_t)b->page_bytes,
                          .device = discrete_device(b->device)};
    char err[256] = "";
    if (cs_open(&c, &b->s, err, sizeof err) != CS_OK)
        die(err);
    struct cs_reuse reuse;
    struct cs_sequence *q = open_settled(b, b->ids, 0, &reuse);
    if (cs_sequence_grow(q, b->n_tokens) != CS_OK)
        die("grow");
    for (size_t p = 0; p < b->n_pages; p++) {
        uint64_t *at = memory_of(b, q, p);
        for (size_t w = 0; w < b->page_bytes / 8; w++)
            at[w] = word_of(p, w);
    }
    if (cs_sequence_publish(q, b->ids, b->n_tokens, NULL, 0) != CS_OK)
        die("publish");
    cs_sequence_close(q);
    for (;;) {
        struct cs_stats st;
        cs_stats_get(b->s, &st);
        if (st.copy_errors > 0)
            die("a copy failed");
        if (st.bytes_to_host == b->n_pages * (uint64_t)b->page_bytes)
            return;
        usleep(1000);
    }
}

/* A live sequence takes the whole device, and is gone. */
static void push_out(struct bench *b)
{
    struct cs_reuse reuse;
    struct cs_sequence *q = open_settled(b, b->others, 0, &reuse);
    if (cs_sequence_grow(q, (b->n_pages + b->spare) * PAGE_TOKENS) != CS_OK)
        die("nothing can be pushed out");
    cs_sequence_close(q);
}

static double restore_s(struct bench *b, bool compare, double *cpu, struct cs_stats *counted)
{
    struct cs_stats before;
    struct cs_reuse reuse;
    push_out(b);
    cs_stats_get(b->s, &before);
    double begun = wall_s(), cpu_begun = cpu_s();
    struct cs_sequence *q = open_settled(b, b->ids, b->n_tokens + 1, &reuse);
    double seconds = wall_s() - begun;
    *cpu = cpu_s() - cpu_begun;
    cs_stats_get(b->s, counted);
    counted->copies -= before.copies;
    if (reuse.tokens_host != b->n_tokens)
        die("the restore did not come from the host, or not whole");
    for (size_t p = 0; p < b->n_pages && compare; p++) {
        const uint64_t *at = memory_of(b, q, p);
        for (size_t w = 0; w < b->page_bytes / 8; w++)
            if (at[w] != word_of(p, w))
                die("wrong bytes");
    }
    cs_sequence_close(q);
    return seconds;
}

struct share {
    pthread_t thread;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

static void *copy_share(void *arg)
{
    const struct share *s = arg;
    memcpy(s->to, s->from, s->bytes);
    return NULL;
}

/* GB/s. */
static double copy(struct bench *b, size_t n_threads)
{
    struct share s[DISCRETE_THREADS];
    size_t all = b->n_pages * b->page_bytes;
    double begun = wall_s();
    for (size_t i = 0; i < n_threads; i++) {
        size_t from = b->n_pages * i / n_threads * b->page_bytes,
               to = b->n_pages * (i + 1) / n_threads * b->page_bytes;
        s[i] = (struct share){.to = b->to + from, .from = b->from + from, .bytes = to - from};
        if (i > 0 && pthread_create(&s[i].thread, NULL, copy_share, &s[i]) != 0)
            die("no thread");
    }
    copy_share(&s[0]);
    for (size_t i = 1; i < n_threads; i++)
        pthread_join(s[i].thread, NULL);
    return (double)all / (wall_s() - begun) * 1e-9;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"page", required_argument, NULL, 'p'}, {"mib", required_argument, NULL, 'm'}, {NULL, 0, NULL, 0}};
    struct bench b = {.page_bytes = SPANS_PAGE_BYTES,
                      .spare = 16,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER};
    uint32_t mib = 512, rounds = 9;
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        ok = c == 'p'   ? parse_number(optarg, 4096, 1 << 28, &b.page_bytes) && b.page_bytes % 4096 == 0
             : c == 'm' ? parse_number(optarg, 1, 1 << 16, &mib)
                        : false;
    if (!ok || argc - optind > 1 ||
        (argc - optind == 1 && !parse_number(argv[optind], 1, ROUNDS_MAX, &rounds))) {
        fprintf(stderr, "usage: host_restore [--page BYTES] [--mib N] [ROUNDS]\n");
        return 2;
    }
    b.n_pages = ((size_t)mib << 20) / b.page_bytes + 1;
    b.n_tokens = b.n_pages * PAGE_TOKENS;
    b.ids = calloc(b.n_tokens + 1, sizeof *b.ids);
    b.others = calloc(1, sizeof *b.others);
    if (!b.ids || !b.others || discrete_open(&b.device) != 0)
        die("out of memory");
    for (size_t i = 0; i <= b.n_tokens; i++)
        b.ids[i] = (uint32_t)(i * 2654435761u);
    size_t all = b.n_pages * b.page_bytes;
    b.from = buffer(all);
    b.to = buffer(all);
    start(&b);
    static double restores[ROUNDS_MAX], one[ROUNDS_MAX], many[ROUNDS_MAX], worked[ROUNDS_MAX];
    struct cs_stats st = {0};
    for (uint32_t i = 0; i < WARM_UP; i++) {
        double cpu;
        (void)copy(&b, DISCRETE_THREADS);
        (void)restore_s(&b, false, &cpu, &st);
    }
    for (uint32_t i = 0; i < rounds; i++) {
        double cpu = cpu_s();
        one[i] = copy(&b, 1);
        double copy_cpu = cpu_s() - cpu;
        many[i] = copy(&b, DISCRETE_THREADS);
        restores[i] = (double)all / restore_s(&b, i == 0 || i + 1 == rounds, &cpu, &st) * 1e-9;
        worked[i] = copy_cpu / cpu;
        printf(
            "round %-3u memcpy %.2f, by %d threads %.2f GB/s   restore %.2f GB/s   %llu batches of copies\n",
            i + 1, one[i], DISCRETE_THREADS, many[i], restores[i], (unsigned long long)st.copies);
    }
    double a = median(one, rounds), m = median(many, rounds), r = median(restores, rounds);
    printf("medians: memcpy %.2f GB/s, by %d threads %.2f; restore %.2f GB/s (%.2f to %.2f), by %d threads: "
           "%.0f %% and "
           "%.0f %%; of the processor time of memcpy by one thread %.0f %%; %.0f MiB, pages of %.0f KiB\n",
           a, DISCRETE_THREADS, m, r, restores[0], restores[rounds - 1], DISCRETE_THREADS, 100 * r / a,
           100 * r / m, 100 / median(worked, rounds), (double)all / (1 << 20), (double)b.page_bytes / 1024);
    cs_close(b.s, 0);
    discrete_close(b.device);
    free(b.ids);
    free(b.others);
    return 0;
}
