/*
 * Memory that the store takes for what it keeps, beside what it says it takes.
 *
 *   memory [--spans N] DIR
 *
 * Three stores with N (20,000) paths each, all on disk, the smallest pages there are (4 KiB of 16 tokens): a
 * span of one page a path; a span of 16; a span of one page and a checkpoint behind it. For each: what the
 * process has taken from the system since the store was open and its arena in use (index, tier, RocksDB's
 * memtables and caches), and what cs_stats counts in index_bytes. From the differences follow the bytes of a
 * span, of a further page and of a checkpoint.
 */
#include "bench/ceiling.h"
#include "bench/numbers.h"
#include "cachestore/cachestore.h"

#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_TOKENS = 16, PAGE_BYTES = 4096, LONG_PAGES = 16, FLUSH_MS = 120000, FLUSH_EVERY = 256 };

static void die(const char *what)
{
    fprintf(stderr, "memory: %s\n", what);
    exit(1);
}

/* Bytes of memory that are the process's own. */
static double resident(void)
{
    unsigned long all, pages, shared;
    FILE *f = fopen("/proc/self/statm", "r");
    (void)malloc_trim(0);
    if (!f || fscanf(f, "%lu %lu %lu", &all, &pages, &shared) != 3)
        die("no /proc/self/statm");
    fclose(f);
    return (double)(pages - shared) * (double)sysconf(_SC_PAGESIZE);
}

/* From here on all of the arena is in memory. */
static void use_arena(struct cs_store *s)
{
    struct cs_sequence *q;
    struct cs_stats st;
    cs_stats_get(s, &st);
    if (cs_sequence_open(s, NULL, NULL, 0, &q) != CS_OK || cs_sequence_poll(q, NULL) != 1 ||
        cs_sequence_grow(q, st.pages_free * PAGE_TOKENS) != CS_OK)
        die("the arena is not free");
    for (size_t i = 0; i < cs_sequence_n_pages(q); i++)
        memset(cs_sequence_pages(q)[i], 1, PAGE_BYTES);
    cs_sequence_close(q);
}

struct taken {
    double process, counted; /* bytes */
};

static void path(struct cs_store *s, uint32_t k, uint32_t n_pages, bool checkpoint)
{
    struct cs_sequence *q;
    const struct cs_capture *captures;
    size_t n_captures;
    uint32_t ids[LONG_PAGES * PAGE_TOKENS + 1], n = n_pages * PAGE_TOKENS;
    for (uint32_t i = 0; i <= n; i++)
        ids[i] = (k * 131071u + i) * 2654435761u;
    /* The checkpoint of a prompt's end lies before its last token. */
    const struct cs_boundary end = {.position = n + 1, .kind = CS_BOUNDARY_END};
    if (cs_sequence_open(s, NULL, ids, n + 1, &q) != CS_OK || cs_sequence_poll(q, NULL) != 1 ||
        (checkpoint && cs_sequence_place(q, &end, 1, n + 1) != CS_OK) ||
        cs_sequence_grow(q, n + 1) != CS_OK ||
        cs_sequence_step_begin(q, 0, n + 1, &captures, &n_captures) != CS_OK)
        die("a sequence");
    if (checkpoint && n_captures != 1)
        die("no checkpoint was wanted");
    cs_sequence_step_end(q, n + 1, true);
    if (cs_sequence_publish(q, ids, n + 1, NULL, 0) != CS_OK)
        die("publish");
    cs_sequence_close(q);
}

static struct taken measure(const char *base, uint32_t n_spans, uint32_t n_pages, bool checkpoint)
{
    char dir[4096], err[256] = "";
    struct cs_store *s;
    struct cs_stats st;
    struct taken t = {0};
    snprintf(dir, sizeof dir, "%s/memory-XXXXXX", base);
    if (!mkdtemp(dir))
        die("no directory for the store");
    uint64_t record = (n_pages + 2ull) * PAGE_BYTES + (checkpoint ? 2 * PAGE_BYTES : 0);
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .state_bytes = checkpoint ? PAGE_BYTES : 0,
                          .checkpoint_grace_ms = UINT32_MAX,
                          .arena_bytes = 64u << 20,
                          .index_bytes = 1u << 30,
                          .disk_dir = dir,
                          .disk_bytes = n_spans * record + n_spans * record / 8 + (64u << 20),
                          .extent_bytes = 64u << 20,
                          .chunk_bytes = 4096};
    if (cs_open(&c, &s, err, sizeof err) != CS_OK)
        die(err);
    use_arena(s);
    double empty = resident();
    cs_stats_get(s, &st);
    double counted_empty = (double)st.index_bytes;
    for (uint32_t k = 0; k < n_spans; k++) {
        path(s, k, n_pages, checkpoint);
        if (k % FLUSH_EVERY == 0 && cs_flush(s, FLUSH_MS) != CS_OK)
            die("flush");
    }
    if (cs_flush(s, FLUSH_MS) != CS_OK)
        die("flush");
    t.process = resident() - empty;
    cs_stats_get(s, &st);
    if (st.disk_spans != n_spans || st.disk_checkpoints != (checkpoint ? n_spans : 0))
        die("not all of it is on disk");
    t.counted = (double)st.index_bytes - counted_empty;
    cs_close(s, FLUSH_MS);
    bench_remove_tree(dir);
    return t;
}

static void report(const char *name, double a, double b, double n)
{
    printf("%-32s %8.0f bytes counted  %8.0f of the process\n", name, a / n, b / n);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"spans", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    uint32_t n = 20000;
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        ok = c == 's' && parse_number(optarg, 1, 1 << 24, &n);
    if (!ok || argc - optind != 1) {
        fprintf(stderr, "usage: memory [--spans N] DIR\n");
        return 2;
    }
    struct taken one = measure(argv[optind], n, 1, false), many = measure(argv[optind], n, LONG_PAGES, false),
                 state = measure(argv[optind], n, 1, true);
    printf("%u spans on disk, of each:\n", n);
    report("a span of one page", one.counted, one.process, n);
    report("a further page of a span", many.counted - one.counted, many.process - one.process,
           (double)n * (LONG_PAGES - 1));
    report("a span of 16 pages", many.counted, many.process, n);
    report("a checkpoint", state.counted - one.counted, state.process - one.process, n);
    return 0;
}
