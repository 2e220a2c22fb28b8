/*
 * The record headers that a scan of the volumes has found: who owns a chunk that several claim, and, where a
 * catalogue that is to be made of them would not fit into the budget, which of them go first.
 *
 * Threads: one at a time.
 */
#ifndef ISOTHERM_CACHESTORE_HEADERS_H
#define ISOTHERM_CACHESTORE_HEADERS_H

#include "cachestore/tier_disk.h"
#include "cachestore/volumes.h"

struct header {
    struct record_id id;
    struct fmt_record_run one, *runs; /* runs: where there are several */
    uint32_t n_runs, row_bytes, first_position;
    bool kept;      /* headers_claim: no newer one has any of its chunks */
    bool wanted;    /* it is not among those that may go: the caller's, false at first */
    bool has_notes; /* the caller's */
};

struct headers {
    struct header *all; /* newest first, once claimed */
    size_t n, room;
};

void headers_free(struct headers *h);
/* Appends one. CS_OK or CS_ENOMEM. */
int headers_add(struct headers *h, const struct fmt_record *r);
/* Sorts them and says which are kept. None of their chunks is marked used, before or afterwards. */
void headers_claim(struct headers *h, struct volumes *v);
/* Marks chunks used of those that have none that is used; headers_release ends that. */
void headers_hold(struct headers *h, struct volumes *v);
void headers_release(const struct headers *h, struct volumes *v);
/* NULL: it is not among those that are kept. */
struct header *headers_find(const struct headers *h, struct record_id id);
/* What a new catalogue with a row for each of those that are kept takes at most. */
uint64_t headers_catalog_bytes(const struct headers *h);
/* Gives room back to the file system until the volumes take `bytes` less the catalogue's
 * (headers_catalog_bytes) at most: chunks that nobody has first, then those of records that are not wanted,
 * deepest first, so that no path loses its beginning. Those are not kept any more. False: there is no more to
 * give. */
bool headers_fit(struct headers *h, struct volumes *v, uint64_t bytes);

#endif
