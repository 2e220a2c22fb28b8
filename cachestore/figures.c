/*
 * Figures by name: what cs_stats and cs_latencies hold, for who prints all of it without knowing each.
 *
 * Threads: any.
 */
#include "cachestore/cachestore.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define FIGURE(name)                                                                                         \
    {                                                                                                        \
#name, offsetof(struct cs_stats, name)                                                               \
    }

static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    FIGURE(arena_bytes),
    FIGURE(page_stride),
    FIGURE(pages_total),
    FIGURE(pages_free),
    FIGURE(pages_live),
    FIGURE(pages_cached),
    FIGURE(checkpoint_blocks),
    FIGURE(spans),
    FIGURE(checkpoints),
    FIGURE(notes),
    FIGURE(index_bytes),
    FIGURE(index_budget),
    FIGURE(tenants),
    FIGURE(host_bytes),
    FIGURE(host_used_bytes),
    FIGURE(disk_bytes),
    FIGURE(disk_budget),
    FIGURE(disk_spans),
    FIGURE(disk_checkpoints),
    FIGURE(pending_bytes),
    FIGURE(records_foreign),
    FIGURE(lookups),
    FIGURE(hits_full),
    FIGURE(hits_partial),
    FIGURE(tokens_looked_up),
    FIGURE(tokens_device),
    FIGURE(tokens_host),
    FIGURE(tokens_disk),
    FIGURE(restores_disk),
    FIGURE(restores_in_time),
    FIGURE(restores_unpredicted),
    FIGURE(restores_deadline),
    FIGURE(restores_failed),
    FIGURE(restores_abandoned),
    FIGURE(restores_predicted_us),
    FIGURE(restores_taken_us),
    FIGURE(restores_ratio_percent),
    FIGURE(publishes),
    FIGURE(publish_spans),
    FIGURE(publish_pages),
    FIGURE(publish_duplicate_pages),
    FIGURE(publish_checkpoints),
    FIGURE(captures),
    FIGURE(thinned_checkpoints),
    FIGURE(dropped_checkpoints),
    FIGURE(evicted_device_checkpoints),
    FIGURE(evicted_host_checkpoints),
    FIGURE(evicted_disk_checkpoints),
    FIGURE(spans_written),
    FIGURE(checkpoints_written),
    FIGURE(bytes_written),
    FIGURE(spans_read),
    FIGURE(checkpoints_read),
    FIGURE(bytes_read),
    FIGURE(syncs),
    FIGURE(catalog_batches),
    FIGURE(catalog_rows),
    FIGURE(copies),
    FIGURE(bytes_to_host),
    FIGURE(bytes_to_device),
    FIGURE(copy_errors),
    FIGURE(corrupt_host),
    FIGURE(evicted_device_spans),
    FIGURE(evicted_host_spans),
    FIGURE(evicted_disk_spans),
    FIGURE(dropped_undurable),
    FIGURE(dropped_queue_full),
    FIGURE(dropped_index_full),
    FIGURE(dropped_disk_full),
    FIGURE(dropped_endurance),
    FIGURE(dropped_notes),
    FIGURE(corrupt_header),
    FIGURE(corrupt_tokens),
    FIGURE(corrupt_payload),
    FIGURE(io_errors),
    FIGURE(quarantined),
    FIGURE(dropped_quota),
    FIGURE(evicted_quota),
    FIGURE(sqes),
    FIGURE(submissions),
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static const struct {
    const char *name;
    size_t offset;
} kept[] = {
    FIGURE(kept_device),
    FIGURE(kept_host),
    FIGURE(kept_disk_spans),
    FIGURE(kept_disk_checkpoints),
};
enum { N_KEPT = sizeof kept / sizeof *kept };

/* All of them but the flag, padded, and the engine's name: who adds one to cs_stats adds it here. */
_Static_assert(sizeof(struct cs_stats) ==
                   (N_NUMBERS + 2 * CS_MISS_COUNT + CS_RATIO_BUCKETS) * sizeof(uint64_t) +
                       N_KEPT * sizeof(struct cs_kept) + sizeof(uint64_t) + sizeof(const char *),
               "every figure has a name");

/* `of`_`name`. */
static int tell(int (*fn)(void *ctx, const struct cs_figure *f), void *ctx, const char *of, const char *name,
                uint64_t value)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s_%s", of, name);
    return fn(ctx, &(struct cs_figure){.name = whole, .value = value});
}

int cs_figures_get(const struct cs_store *s, int (*fn)(void *ctx, const struct cs_figure *f), void *ctx)
{
    struct cs_stats stats;
    struct cs_latencies l;
    cs_stats_get(s, &stats);
    cs_latencies_get(s, &l);
    int rc = fn(ctx, &(struct cs_figure){.name = "disk_engine", .text = stats.disk_engine});
    for (size_t i = 0; i < N_NUMBERS && rc == 0; i++) {
        struct cs_figure f = {.name = numbers[i].name};
        memcpy(&f.value, (const char *)&stats + numbers[i].offset, sizeof f.value);
        rc = fn(ctx, &f);
    }
    for (unsigned i = 0; i < CS_MISS_COUNT && rc == 0; i++) {
        const char *name = cs_miss_name((enum cs_miss)i);
        rc = tell(fn, ctx, "misses", name, stats.misses[i]);
        if (rc == 0)
            rc = tell(fn, ctx, "tokens_missed", name, stats.tokens_missed[i]);
    }
    for (unsigned i = 0; i < CS_RATIO_BUCKETS && rc == 0; i++) {
        char bound[16] = "more";
        if (i + 1 < CS_RATIO_BUCKETS)
            snprintf(bound, sizeof bound, "%u", cs_ratio_percent(i));
        rc = tell(fn, ctx, "restores_ratio", bound, stats.restores_ratio[i]);
    }
    for (size_t i = 0; i < N_KEPT && rc == 0; i++) {
        struct cs_kept k;
        memcpy(&k, (const char *)&stats + kept[i].offset, sizeof k);
        rc = tell(fn, ctx, kept[i].name, "stored", k.stored);
        if (rc == 0)
            rc = tell(fn, ctx, kept[i].name, "alive", k.alive);
        for (unsigned g = 0; g < CS_GONE_COUNT && rc == 0; g++)
            rc = tell(fn, ctx, kept[i].name, cs_gone_name((enum cs_gone)g), k.gone[g]);
    }
    const struct cs_figure histograms[] = {{.name = "publish", .histogram = &l.publish},
                                           {.name = "restore", .histogram = &l.restore},
                                           {.name = "read", .histogram = &l.read},
                                           {.name = "write", .histogram = &l.write},
                                           {.name = "sync", .histogram = &l.sync}};
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms && rc == 0; i++)
        rc = fn(ctx, &histograms[i]);
    return rc;
}
