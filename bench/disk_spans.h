/* Spans in memory and a disk tier: what bench/disk_restore and bench/disk_publish share. One at a time. */
#ifndef ISOTHERM_BENCH_DISK_SPANS_H
#define ISOTHERM_BENCH_DISK_SPANS_H

#include "cachestore/tier_disk.h"

#include <pthread.h>

enum { SPANS_PAGE_TOKENS = 16, SPANS_PAGE_BYTES = 368640 }; /* of SmolLM2-135M */

struct io_engine;

struct disk_spans {
    struct cs_config config;
    /* NULL: the tier's own. */
    int (*engine_open)(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len);
    struct tier_disk *tier;
    uint32_t n, n_pages, span_pages; /* spans, and pages of all */
    uint8_t *memory;                 /* n_pages pages, on huge pages */
    uint64_t bytes;                  /* of them */
    void **pages;
    uint32_t *first; /* of each span: its first page; first[n] = n_pages */
    uint32_t *ids;
    struct tier_write *writes;
    struct tier_read *reads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned done, failed; /* since the last wait; lock */
};

/* Memory for `bytes` of pages, filled, cut into full spans (mixed: every other one of a random number of
 * pages). config says geometry and budget; the rest is the caller's. 0, or -1: no memory. */
int disk_spans_make(struct disk_spans *b, const struct cs_config *config, uint64_t bytes, bool mixed);
/* CS_OK, or a line on stderr. */
int disk_spans_open(struct disk_spans *b);
void disk_spans_close(struct disk_spans *b);
/* Writes all and waits until they are durable; reads all in one batch into the pages they came from; deletes
 * all and waits until their room is free. 0, or -1: one failed. */
int disk_spans_write(struct disk_spans *b);
int disk_spans_read(struct disk_spans *b);
void disk_spans_delete(struct disk_spans *b);
/* Writes one span under a new id, without waiting. */
void disk_spans_write_one(struct disk_spans *b, uint32_t i);
/* Until n completions have come since the last wait. */
int disk_spans_wait(struct disk_spans *b, unsigned n);
/* "auto", "uring" or "pread". */
bool disk_spans_engine(const char *name, enum cs_io_engine *out);

#endif
