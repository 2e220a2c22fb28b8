/*
 * The index at size: look-up of a long prompt among a million pages, and eviction among half a million spans.
 *
 *   build/bench/index [--pages N] [--lookups N] [--victims N] [--tenants N]
 *
 * The store has no disk; its pages are 4 KiB of undefined bytes, so that what is measured is the index. One
 * path of 200,000 tokens was published in 2,000 turns; around it lie spans of two pages each from prompts of
 * 32 tokens until there are --pages. Then:
 *
 *   look-up    cs_sequence_open of the whole path, all resident, and beside it what its parts take alone: the
 *              hash of 12,500 pages, and comparing all ids once (the proof). The ceiling of the hash is the
 *              ids through XXH3 in one piece.
 *   eviction   cs_sequence_grow by two pages in a full arena: one victim each. Of the disk the choice and the
 *              index's part of it, among half as many records as there are pages, of --tenants tenants: the
 *              least worthy of all, of one tenant after the other, and of all when for 8 hours nobody asked
 *
 * Memory of the index a page and a span is that of cs_stats. Takes 4 GiB of arena for a million pages.
 */
#include "cachestore/index.h"
#include "bench/clock.h"
#include "bench/numbers.h"
#include "cachestore/key.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
    PAGE_TOKENS = 16,
    PAGE_BYTES = 4096,
    PATH_TOKENS = 200000,
    TURNS = 2000,
    PATH_PAGES = PATH_TOKENS / PAGE_TOKENS,
    SHORT_PAGES = 2,
    SHORT_TOKENS = SHORT_PAGES * PAGE_TOKENS
};

#define HOUR_US 3600000000ull

static uint32_t path[PATH_TOKENS + 1], copy[PATH_TOKENS + 1];

static void die(const char *what)
{
    fprintf(stderr, "index: %s\n", what);
    exit(1);
}

static struct cs_stats stats_of(const struct cs_store *s)
{
    struct cs_stats st;
    cs_stats_get(s, &st);
    return st;
}

/* Opens ids, makes room for all of them and publishes in `turns` turns. */
static void publish(struct cs_store *s, const uint32_t *ids, uint32_t n, uint32_t turns)
{
    struct cs_sequence *q;
    if (cs_sequence_open(s, NULL, ids, n, &q) != CS_OK || !cs_sequence_poll(q, NULL) ||
        cs_sequence_grow(q, n) != CS_OK)
        die("no room to publish");
    for (uint64_t k = 1; k <= turns; k++)
        if (cs_sequence_publish(q, ids, n * k / turns, NULL, 0) != CS_OK)
            die("publish");
    cs_sequence_close(q);
}

static void publish_short(struct cs_store *s, uint32_t seed)
{
    uint32_t ids[SHORT_TOKENS];
    for (uint32_t i = 0; i < SHORT_TOKENS; i++)
        ids[i] = seed * 2654435761u + i;
    publish(s, ids, SHORT_TOKENS, 1);
}

static double per_cent(double *v, size_t n, double part)
{
    qsort(v, n, sizeof *v, compare_doubles);
    size_t i = (size_t)(part * (double)n);
    return v[i < n ? i : n - 1];
}

static void bench_lookup(struct cs_store *s, double *open_us, double *hash_us, double *proof_us, uint32_t n)
{
    static struct cs_key keys[PATH_PAGES];
    double best_hash_us = 0;
    unsigned differences = 0;
    for (uint32_t r = 0; r < n; r++) {
        struct cs_sequence *q;
        struct cs_reuse reuse;
        double start = wall_s();
        if (cs_sequence_open(s, NULL, path, PATH_TOKENS + 1, &q) != CS_OK)
            die("open");
        open_us[r] = (wall_s() - start) * 1e6;
        if (!cs_sequence_poll(q, &reuse) || reuse.tokens_device != PATH_TOKENS)
            die("the path was not found whole");
        cs_sequence_close(q);

        start = wall_s();
        key_pages((struct cs_key){r, 1}, path, PATH_PAGES, PAGE_TOKENS, keys);
        hash_us[r] = (wall_s() - start) * 1e6;

        start = wall_s();
        for (uint32_t p = 0; p < PATH_PAGES; p++)
            differences +=
                memcmp(path + p * PAGE_TOKENS, copy + p * PAGE_TOKENS, PAGE_TOKENS * sizeof *path) != 0;
        proof_us[r] = (wall_s() - start) * 1e6;

        start = wall_s();
        differences += XXH3_64bits_withSeed(path, PATH_TOKENS * sizeof *path, r) == 0;
        double us = (wall_s() - start) * 1e6;
        if (r == 0 || us < best_hash_us)
            best_hash_us = us;
    }
    if (differences > 1) /* 0, but by a chance that will not come */
        die("the copy differs");
    printf("\nLook-up of %d tokens published in %d turns, %u times, us\n\n"
           "| | p50 | p99 |\n|---|---|---|\n",
           PATH_TOKENS, TURNS, n);
    double hash = median(hash_us, n), proof = median(proof_us, n), open = median(open_us, n);
    printf("| cs_sequence_open (target 1000) | %.0f | %.0f |\n", open, per_cent(open_us, n, 0.99));
    printf("| of it: hash of %d pages (ids in one piece: %.0f) | %.0f | %.0f |\n", PATH_PAGES, best_hash_us,
           hash, per_cent(hash_us, n, 0.99));
    printf("| of it: comparing all ids | %.0f | %.0f |\n", proof, per_cent(proof_us, n, 0.99));
    printf("| the rest: probes, references, ranks | %.0f | |\n", open - hash - proof);
}

static void bench_eviction(struct cs_store *s, double *us, uint32_t n)
{
    struct cs_sequence *q;
    if (cs_sequence_open(s, NULL, NULL, 0, &q) != CS_OK || !cs_sequence_poll(q, NULL))
        die("open");
    while (stats_of(s).pages_free > 0) /* what is left of the arena */
        if (cs_sequence_grow(q, (cs_sequence_n_pages(q) + 1) * PAGE_TOKENS) != CS_OK)
            die("grow");
    uint64_t before = stats_of(s).evicted_device_spans;
    double total = cpu_s();
    for (uint32_t i = 0; i < n; i++) {
        size_t tokens = (cs_sequence_n_pages(q) + SHORT_PAGES) * PAGE_TOKENS;
        double start = wall_s();
        if (cs_sequence_grow(q, tokens) != CS_OK)
            die("nothing could be evicted");
        us[i] = (wall_s() - start) * 1e6;
    }
    total = (cpu_s() - total) * 1e6;
    uint64_t victims = stats_of(s).evicted_device_spans - before;
    if (victims == 0)
        die("nothing was evicted");
    cs_sequence_close(q);
    printf("\nEviction: %llu victims, %.2f us of a processor each (target 20); growing by two pages: p50 "
           "%.2f, p99 %.2f us\n",
           (unsigned long long)victims, total / (double)victims, median(us, n), per_cent(us, n, 0.99));
}

/* ---- records on disk, of many tenants ---------------------------------------------------------------- */

static void bench_disk(uint32_t n_records, uint32_t n_tenants, double *us, uint32_t n_victims)
{
    const struct cs_quota none = {0};
    const struct cs_tenant *tenant = NULL;
    struct index ix;
    struct arena a;
    uint32_t ids[SHORT_TOKENS] = {0};
    uint64_t rng = 88172645463325252ull;
    struct cs_tenant *tenants = calloc(n_tenants, sizeof *tenants);
    if (!tenants || arena_open(&a, PAGE_BYTES, PAGE_BYTES, NULL, false) != CS_OK ||
        index_open(&ix, &a, NULL, PAGE_TOKENS, (uint64_t)n_records * 1024 + (1ull << 30), &none) != CS_OK)
        die("memory");
    uint64_t before = index_memory(&ix), now_us = index_tick_locked(&ix);
    for (uint32_t i = 0; i < n_records; i++) {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        uint32_t t = i % n_tenants;
        memcpy(tenants[t].id, &t, sizeof t);
        ids[0] = i;
        struct account *account = index_account_locked(&ix, &tenants[t]);
        struct span *sp = account ? index_add_locked(&ix, NULL, 0, (struct cs_key){0},
                                                     (struct cs_key){rng, i}, account, ids, SHORT_PAGES)
                                  : NULL;
        if (!sp)
            die("memory");
        sp->disk_bytes = (1 + rng % 64) * PAGE_BYTES; /* so that worth differs */
        index_set_disk_locked(&ix, sp, SPAN_DISK_DURABLE);
        index_touch_locked(&ix, sp, now_us - (rng >> 20) % (720 * HOUR_US));
    }
    printf("\n%u records on disk of %u tenants: index %.0f bytes a record (of it ranks %zu), %.0f a tenant\n",
           n_records, n_tenants, (double)(ix.bytes - before) / n_records,
           sizeof(struct kinetic_node[RANK_TIERS]), (double)ix.accounts.bytes / n_tenants);
    static const char *const whose[] = {"of all", "of a tenant", "of all, 8 hours later"};
    for (int k = 0; k < 3; k++) {
        uint32_t n_behind = 0;
        if (k == 2)
            ix.last_tick += 8 * HOUR_US;
        double all = cpu_s(), most = 0;
        for (uint32_t i = 0; i < n_victims; i++) {
            double start = wall_s(), start_cpu = cpu_s();
            tenant = &tenants[i % n_tenants];
            struct account *account = accounts_find(&ix.accounts, tenant);
            struct span *sp = ranks_victim_locked(&ix, RANK_DISK, k == 1 ? account : NULL);
            if (!sp)
                die("nothing could be evicted");
            n_behind += k != 1 && ix.ranks[RANK_DISK].root->fails <= ix.last_tick;
            index_set_disk_locked(&ix, sp, SPAN_DISK_NONE);
            index_remove_locked(&ix, sp);
            us[i] = (wall_s() - start) * 1e6;
            double cpu_us = (cpu_s() - start_cpu) * 1e6;
            most = cpu_us > most ? cpu_us : most;
        }
        all = (cpu_s() - all) * 1e6;
        printf("eviction from disk, %s: %u victims, %.2f us of a processor each (target 20); p50 %.2f, p99 "
               "%.2f us, the longest %.0f of a processor; %u chosen before all that time had changed was "
               "worked off\n",
               whose[k], n_victims, all / n_victims, median(us, n_victims), per_cent(us, n_victims, 0.99),
               most, n_behind);
    }
    index_close(&ix);
    arena_close(&a);
    free(tenants);
}

int main(int argc, char **argv)
{
    uint32_t n_pages = 1000000, n_lookups = 1000, n_victims = 100000, n_tenants = 1000;
    for (int i = 1; i < argc; i += 2) {
        uint32_t *out = strcmp(argv[i], "--pages") == 0     ? &n_pages
                        : strcmp(argv[i], "--lookups") == 0 ? &n_lookups
                        : strcmp(argv[i], "--victims") == 0 ? &n_victims
                        : strcmp(argv[i], "--tenants") == 0 ? &n_tenants
                                                            : NULL;
        if (!out || i + 1 == argc || !parse_number(argv[i + 1], 1, 100000000, out))
            die("usage: index [--pages N] [--lookups N] [--victims N] [--tenants N]");
    }
    if (n_pages < PATH_PAGES || n_victims > (n_pages - PATH_PAGES) / SHORT_PAGES)
        die("too few pages for the path or the victims");
    struct cs_config c = {.page_tokens = PAGE_TOKENS,
                          .page_bytes = PAGE_BYTES,
                          .span_bytes = 17 * PAGE_BYTES,
                          .chunk_bytes = PAGE_BYTES,
                          .arena_bytes = (uint64_t)n_pages * PAGE_BYTES,
                          .index_bytes = (uint64_t)n_pages * 1024};
    struct cs_store *s;
    char err[256] = "";
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20); /* as isotherm has it */
    (void)mallopt(M_TRIM_THRESHOLD, 128 << 20);
    double *a = calloc(n_lookups, sizeof *a), *b = calloc(n_lookups, sizeof *b),
           *d = calloc(n_lookups, sizeof *d), *v = calloc(n_victims, sizeof *v);
    if (!a || !b || !d || !v)
        die("memory");
    if (cs_open(&c, &s, err, sizeof err) != CS_OK)
        die(err);
    for (uint32_t i = 0; i <= PATH_TOKENS; i++)
        path[i] = copy[i] = i * 40503u + (i >> 7);
    double start = wall_s();
    publish(s, path, PATH_TOKENS, TURNS);
    for (uint32_t k = 1; stats_of(s).pages_free >= SHORT_PAGES; k++)
        publish_short(s, k);
    struct cs_stats st = stats_of(s);
    printf("%llu pages in %llu spans, published in %.1f s; index %.1f MiB: %.0f bytes a page, %.0f a span\n",
           (unsigned long long)st.pages_cached, (unsigned long long)st.spans, wall_s() - start,
           (double)st.index_bytes / (1 << 20), (double)st.index_bytes / (double)st.pages_cached,
           (double)st.index_bytes / (double)st.spans);
    bench_lookup(s, a, b, d, n_lookups);
    bench_eviction(s, v, n_victims);
    cs_close(s, 0);
    bench_disk(n_pages / SHORT_PAGES, n_tenants, v, n_victims / 2);
    free(a);
    free(b);
    free(d);
    free(v);
    return 0;
}
