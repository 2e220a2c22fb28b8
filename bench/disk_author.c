/*
 * What a trace of conversations costs a disk: write and space amplification, and whether the budget holds.
 *
 *   disk_author [--page-tokens N] [--page BYTES] [--state BYTES] [--arena MIB] [--disk MIB] [--chunk KIB]
 *               [--io auto|uring|pread] [--requests N] TRACE DIR
 *
 * TRACE: one of those that bench/policy-sim reads; DIR is made (remove it afterwards). Every request is
 * looked up, restored, computed (its pages keep whatever bytes they had), published and flushed before the
 * next one comes: in the trace's own time minutes lie between a user's turns, so each is written by itself.
 *
 * Write amplification: bytes that this process gave to block devices (/proc/self/io: records, headers and all
 * that RocksDB writes) over bytes of pages and state handed to the disk tier. Space amplification, at the
 * end: bytes that records, catalogue and STORE occupy over bytes of the pages and state in them. A thread
 * adds up what all files of the store take, holes left out, every 100 ms, and compares it with the budget.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/disk_spans.h"
#include "bench/numbers.h"
#include "bench/policy_sim.h"
#include "cachestore/inspect.h"
#include "cachestore/store.h"

#include <dirent.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLE_US = 100000, FLUSH_MS = 120000 };

struct settings {
    const char *trace, *dir;
    uint32_t page_tokens, page_bytes, state_bytes, arena_mib, disk_mib, chunk_kib, requests;
    enum cs_io_engine io;
};

void sim_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "disk_author: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* ---- what is handed to the disk ----------------------------------------------------------------------- */

static atomic_uint_fast64_t admitted_bytes; /* pages and state of records */
static uint64_t page_bytes, state_bytes;

static uint64_t payload(enum record_kind kind, uint32_t n_pages)
{
    return kind == RECORD_CHECKPOINT ? state_bytes : n_pages * page_bytes;
}

static void counted_write(struct tier_disk *t, struct tier_write *w)
{
    atomic_fetch_add(&admitted_bytes, payload(w->record.kind, w->record.n_pages));
    tier_disk_write(t, w);
}

/* ---- samples ------------------------------------------------------------------------------------------ */

/* What the files below a folder take of the file system. One that goes meanwhile takes nothing. */
static uint64_t tree_bytes(const char *path)
{
    struct stat st;
    DIR *d = opendir(path);
    if (!d)
        return lstat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    uint64_t sum = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char inner[4096 + 256];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%.4090s/%s", path, e->d_name);
        sum += tree_bytes(inner);
    }
    closedir(d);
    return sum;
}

struct sampler {
    const char *dir;
    uint64_t budget, most;
    unsigned n, over;
    _Atomic bool stop;
};

static void *sample(void *arg)
{
    struct sampler *s = arg;
    while (!s->stop) {
        uint64_t now = tree_bytes(s->dir);
        s->n++;
        s->over += now > s->budget;
        s->most = now > s->most ? now : s->most;
        usleep(SAMPLE_US);
    }
    return NULL;
}

/* Bytes that this process gave to block devices. */
static uint64_t written_now(void)
{
    unsigned long long n = 0;
    char line[128];
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof line, f))
        (void)sscanf(line, "write_bytes: %llu", &n);
    if (f)
        fclose(f);
    return n;
}

/* ---- the trace ---------------------------------------------------------------------------------------- */

static struct cs_store *store_start(const struct settings *set, const struct tier_vtable *tier)
{
    uint64_t stride = (set->page_bytes + 4095) / 4096 * 4096;
    struct cs_config c = {.page_tokens = set->page_tokens,
                          .page_bytes = set->page_bytes,
                          .state_bytes = set->state_bytes,
                          .grid_tokens =
                              set->state_bytes ? (64 / set->page_tokens + 1) * set->page_tokens : 0,
                          .checkpoint_grace_ms = UINT32_MAX,
                          .arena_bytes = ((uint64_t)set->arena_mib << 20) / stride * stride,
                          .disk_dir = set->dir,
                          .disk_bytes = (uint64_t)set->disk_mib << 20,
                          .chunk_bytes = (uint64_t)set->chunk_kib << 10,
                          .io_engine = set->io};
    struct cs_store *s;
    char err[256] = "";
    if (store_open(&c, tier, &s, err, sizeof err) != CS_OK)
        sim_die("%s", err);
    struct cs_stats st;
    cs_stats_get(s, &st);
    if (!st.disk_on)
        sim_die("the disk tier is off");
    return s;
}

static void compute(struct cs_sequence *q, uint32_t from, uint32_t to)
{
    const struct cs_capture *captures;
    size_t n;
    if (cs_sequence_grow(q, to) != CS_OK)
        sim_die("the arena is too small for a prompt of %u tokens", to);
    if (cs_sequence_step_begin(q, from, to, &captures, &n) != CS_OK)
        sim_die("a step failed");
    cs_sequence_step_end(q, to, true);
}

static void publish(struct cs_store *s, struct cs_sequence *q, const struct sim_chain *c, uint32_t n)
{
    if (cs_sequence_publish(q, c->ids, n, NULL, 0) != CS_OK || cs_flush(s, FLUSH_MS) != CS_OK)
        sim_die("a publish failed");
}

static void serve(const struct settings *set, struct cs_store *s, const struct sim_request *r,
                  const struct sim_chain *c)
{
    struct cs_sequence *q;
    struct cs_reuse reuse;
    const struct cs_capture *capture;
    uint32_t all = c->end[c->n - 1];
    if (cs_sequence_open(s, NULL, c->ids, r->n_prompt, &q) != CS_OK)
        sim_die("out of memory");
    while (!cs_sequence_poll(q, &reuse))
        usleep(200);
    cs_sequence_state_done(q);
    if (set->state_bytes > 0) {
        struct cs_boundary end = {.position = r->n_prompt, .kind = CS_BOUNDARY_END};
        if (cs_sequence_place(q, &end, 1, r->n_prompt) != CS_OK)
            sim_die("out of memory");
    }
    compute(q, cs_reuse_tokens(&reuse), r->n_prompt);
    publish(s, q, c, r->n_prompt);
    if (r->n_reply > 0) {
        compute(q, r->n_prompt, all);
        if (set->state_bytes > 0 && cs_sequence_capture(q, CS_BOUNDARY_TURN, &capture) == CS_ENOMEM)
            sim_die("out of memory");
        publish(s, q, c, all);
    }
    cs_sequence_close(q);
}

/* ---- what is left ------------------------------------------------------------------------------------- */

struct left {
    uint64_t payload, records, chunks, pages;
};

static int add_record(void *ctx, const struct cs_span_info *span)
{
    struct left *l = ctx;
    l->payload += payload(span->checkpoint ? RECORD_CHECKPOINT : RECORD_SPAN, span->n_pages);
    l->pages += span->n_pages;
    l->chunks += span->disk_bytes;
    l->records++;
    return 0;
}

static void report_space(const char *dir)
{
    struct cs_inspect *in;
    struct cs_store_info info;
    struct left left = {0};
    char err[256];
    if (cs_inspect_open(dir, &in, err, sizeof err) != CS_OK)
        sim_die("%s", err);
    (void)cs_inspect_info(in, &info);
    (void)cs_inspect_spans(in, add_record, &left);
    cs_inspect_close(in);
    uint64_t occupied = left.chunks + info.catalog_bytes + 4096;
    printf("space: %llu records of %.1f pages on average; payload %.1f MiB; chunks %.1f MiB (%.3f), "
           "catalogue %.2f "
           "MiB; amplification %.3f; all files %.3f\n",
           (unsigned long long)left.records, (double)left.pages / (double)left.records,
           (double)left.payload / (1 << 20), (double)left.chunks / (1 << 20),
           (double)left.chunks / (double)left.payload, (double)info.catalog_bytes / (1 << 20),
           (double)occupied / (double)left.payload, (double)info.disk_bytes / (double)left.payload);
}

static void replay(const struct settings *set, const struct sim_trace *t)
{
    struct tier_vtable tier = tier_disk_vtable;
    tier.write = counted_write;
    struct cs_store *s = store_start(set, &tier);
    struct sampler sampler = {.dir = set->dir, .budget = (uint64_t)set->disk_mib << 20};
    pthread_t thread;
    if (pthread_create(&thread, NULL, sample, &sampler) != 0)
        sim_die("no thread");
    struct sim_cursor cursor = sim_cursor_new(t, true);
    uint64_t before = written_now();
    double start = wall_s();
    size_t n = set->requests && set->requests < t->n_requests ? set->requests : t->n_requests;
    for (size_t i = 0; i < n; i++) {
        const struct sim_chain *c = sim_cursor_step(&cursor, &t->requests[i]);
        serve(set, s, &t->requests[i], c);
        sim_cursor_done(&cursor, &t->requests[i]);
    }
    sim_cursor_free(&cursor);
    struct cs_stats st;
    cs_stats_get(s, &st);
    cs_close(s, FLUSH_MS);
    sampler.stop = true;
    pthread_join(thread, NULL);
    uint64_t admitted = atomic_load(&admitted_bytes), written = written_now() - before;
    printf("%zu requests in %.1f s; %llu spans and %llu checkpoints written, %llu and %llu evicted from "
           "disk; %.1f %% of "
           "tokens reused\n",
           n, wall_s() - start, (unsigned long long)st.spans_written,
           (unsigned long long)st.checkpoints_written, (unsigned long long)st.evicted_disk_spans,
           (unsigned long long)st.evicted_disk_checkpoints,
           100.0 * (double)(st.tokens_device + st.tokens_disk) / (double)st.tokens_looked_up);
    printf("write: admitted %.1f MiB, records %.1f MiB, to the device %.1f MiB; amplification %.3f; %llu "
           "syncs, %llu "
           "batches, %llu rows\n",
           (double)admitted / (1 << 20), (double)st.bytes_written / (1 << 20), (double)written / (1 << 20),
           (double)written / (double)admitted, (unsigned long long)st.syncs,
           (unsigned long long)st.catalog_batches, (unsigned long long)st.catalog_rows);
    report_space(set->dir);
    printf("budget: %u MiB, most %.1f MiB (%.1f %%); above it in %u of %u samples\n", set->disk_mib,
           (double)sampler.most / (1 << 20), 100.0 * (double)sampler.most / (double)sampler.budget,
           sampler.over, sampler.n);
    if (sampler.over > 0)
        sim_die("the budget was exceeded");
}

static bool parse(int argc, char **argv, struct settings *s)
{
    static const struct option options[] = {{"page-tokens", required_argument, NULL, 't'},
                                            {"page", required_argument, NULL, 'p'},
                                            {"state", required_argument, NULL, 's'},
                                            {"arena", required_argument, NULL, 'a'},
                                            {"disk", required_argument, NULL, 'd'},
                                            {"chunk", required_argument, NULL, 'c'},
                                            {"requests", required_argument, NULL, 'n'},
                                            {"io", required_argument, NULL, 'i'},
                                            {NULL, 0, NULL, 0}};
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 't':
            ok = parse_number(optarg, 1, 1024, &s->page_tokens);
            break;
        case 'p':
            ok = parse_number(optarg, 1, 1 << 30, &s->page_bytes);
            break;
        case 's':
            ok = parse_number(optarg, 1, 1 << 30, &s->state_bytes);
            break;
        case 'a':
            ok = parse_number(optarg, 1, 1 << 20, &s->arena_mib);
            break;
        case 'd':
            ok = parse_number(optarg, 1, 1 << 20, &s->disk_mib);
            break;
        case 'c':
            ok = parse_number(optarg, 4, 1 << 20, &s->chunk_kib);
            break;
        case 'n':
            ok = parse_number(optarg, 1, UINT32_MAX, &s->requests);
            break;
        case 'i':
            ok = disk_spans_engine(optarg, &s->io);
            break;
        default:
            ok = false;
        }
    if (!ok || argc - optind != 2)
        return false;
    s->trace = argv[optind];
    s->dir = argv[optind + 1];
    return true;
}

int main(int argc, char **argv)
{
    struct settings set = {
        .page_tokens = 16, .page_bytes = SPANS_PAGE_BYTES, .arena_mib = 6144, .disk_mib = 8192};
    if (!parse(argc, argv, &set)) {
        fprintf(
            stderr,
            "usage: disk_author [--page-tokens N] [--page BYTES] [--state BYTES] [--arena MIB] [--disk MIB]\n"
            "                   [--chunk KIB] [--io auto|uring|pread] [--requests N] TRACE DIR\n");
        return 2;
    }
    page_bytes = set.page_bytes;
    state_bytes = set.state_bytes;
    const struct sim_arrival arrival = {.users = 16};
    struct sim_trace t = {0};
    sim_read(set.trace, &arrival, &t);
    sim_trace_finish(&t, set.page_tokens);
    replay(&set, &t);
    sim_trace_free(&t);
    return 0;
}
