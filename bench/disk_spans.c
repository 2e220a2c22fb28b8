/* See disk_spans.h. */
#include "bench/disk_spans.h"
#include "cachestore/tier_disk_impl.h"
#include "formats/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static void count(struct disk_spans *b, enum tier_result result)
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

int disk_spans_wait(struct disk_spans *b, unsigned n)
{
    pthread_mutex_lock(&b->lock);
    while (b->done < n)
        pthread_cond_wait(&b->changed, &b->lock);
    int rc = b->failed == 0 ? 0 : -1;
    b->done = b->failed = 0;
    pthread_mutex_unlock(&b->lock);
    return rc;
}

void disk_spans_write_one(struct disk_spans *b, uint32_t i)
{
    b->writes[i] = (struct tier_write){.record = {.id = tier_disk_next_id(b->tier),
                                                  .kind = RECORD_SPAN,
                                                  .key = {i, 1},
                                                  .n_pages = b->first[i + 1] - b->first[i],
                                                  .ids = b->ids},
                                       .pages = b->pages + b->first[i],
                                       .durable = on_durable,
                                       .ctx = b};
    tier_disk_write(b->tier, &b->writes[i]);
}

int disk_spans_write(struct disk_spans *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        disk_spans_write_one(b, i);
    tier_disk_kick(b->tier);
    return disk_spans_wait(b, b->n);
}

int disk_spans_read(struct disk_spans *b)
{
    struct tier_read **list = malloc(b->n * sizeof(struct tier_read *));
    if (list == NULL)
        return -1;
    for (uint32_t i = 0; i < b->n; i++) {
        b->reads[i] = (struct tier_read){.record = b->writes[i].record,
                                         .n_pages = b->writes[i].record.n_pages,
                                         .pages = b->writes[i].pages,
                                         .done = on_read,
                                         .ctx = b};
        list[i] = &b->reads[i];
    }
    tier_disk_read(b->tier, list, b->n);
    int rc = disk_spans_wait(b, b->n);
    free(list);
    return rc;
}

void disk_spans_delete(struct disk_spans *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        tier_disk_delete(b->tier, b->writes[i].record.id);
    tier_disk_settle(b->tier, 60000);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

int disk_spans_make(struct disk_spans *b, const struct cs_config *config, uint64_t bytes, bool mixed)
{
    uint64_t x = 1;
    memset(b, 0, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->config = *config;
    uint64_t chunk_bytes = config->chunk_bytes ? config->chunk_bytes : FMT_RECORD_CHUNK_BYTES;
    b->span_pages =
        fmt_record_pages_per_span(4 << 20, config->page_tokens, config->page_bytes, (uint32_t)chunk_bytes);
    b->n_pages = (uint32_t)(bytes / config->page_bytes / b->span_pages + 1) * b->span_pages;
    b->bytes = b->n_pages * config->page_bytes;
    uint8_t *mapped =
        mmap(NULL, b->bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->pages = calloc(b->n_pages, sizeof *b->pages);
    b->first = calloc(b->n_pages + 1, sizeof *b->first);
    b->ids = calloc((size_t)b->span_pages * config->page_tokens, sizeof *b->ids);
    b->writes = calloc(b->n_pages, sizeof *b->writes);
    b->reads = calloc(b->n_pages, sizeof *b->reads);
    if (mapped == MAP_FAILED || !b->pages || !b->first || !b->ids || !b->writes || !b->reads)
        return -1;
    b->memory = mapped + (HUGE_PAGE - (uintptr_t)mapped % HUGE_PAGE) % HUGE_PAGE;
    madvise(b->memory, b->bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < b->bytes / 8; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        ((uint64_t *)(void *)b->memory)[i] = x;
    }
    for (size_t i = 0; i < b->n_pages; i++)
        b->pages[i] = b->memory + i * config->page_bytes;
    for (uint32_t at = 0; at < b->n_pages;) {
        uint32_t take = b->span_pages;
        if (mixed && b->n % 2 == 1)
            take = 1 + (uint32_t)(random_next(&x) % b->span_pages);
        if (take > b->n_pages - at)
            take = b->n_pages - at;
        b->first[b->n++] = at;
        b->first[b->n] = at += take;
    }
    return 0;
}

static void print_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    if (level == CS_LOG_WARN)
        fprintf(stderr, "%s\n", line);
}

int disk_spans_open(struct disk_spans *b)
{
    struct tier_disk_events none = {0};
    uint8_t secret[16];
    char err[256] = "";
    b->config.log = print_log;
    int rc = b->engine_open
                 ? tier_disk_open_with(&b->config, &none, b->engine_open, &b->tier, secret, err, sizeof err)
                 : tier_disk_open(&b->config, &none, &b->tier, secret, err, sizeof err);
    if (rc != CS_OK)
        fprintf(stderr, "%s\n", err);
    return rc;
}

void disk_spans_close(struct disk_spans *b)
{
    tier_disk_close(b->tier, 10000);
    b->tier = NULL;
}

bool disk_spans_engine(const char *name, enum cs_io_engine *out)
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
