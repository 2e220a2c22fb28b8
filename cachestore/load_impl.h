/*
 * Inside of the loading of rows when a store opens, shared by its two files and nobody else:
 *
 * - load_rows.c: rows come in from the tier, in any order; spans are made of them, page keys are computed
 * from their ids, and rows are brought together with the rows that name their pages as parents
 * - load.c: once all are there, spans are linked parents first
 *
 * Threads: the opener's, and one of ours that turns rows into spans while more come in; `rows`, `places` and
 * `keys` are its own until loader_prepared has returned, and so is the memory of the index's spans.
 */
#ifndef ISOTHERM_CACHESTORE_LOAD_IMPL_H
#define ISOTHERM_CACHESTORE_LOAD_IMPL_H

#include "cachestore/store.h"

struct row {
    struct span_record record; /* ids: in `made`; owned by a checkpoint; NULL: the row is of no use. parent:
                                  of a root the key that stands before its first page */
    uint64_t disk_bytes;
    struct span *made; /* memory of the span, its ids in place, until it is linked */
    struct span *span; /* once linked */
    bool proven;       /* prepared, and its ids make its key */
    bool late;         /* its parent was not found in the first pass */
};

/* Where the page is that a row names as its parent. Most pages are nobody's parent, and a look into the table
 * is a cache miss, so a bitmap, small enough to stay in cache, is asked first. */
struct page_place {
    struct cs_key key;
    uint32_t row, ordinal;
    enum place_state {
        PLACE_FREE,
        PLACE_WANTED,   /* a row names it */
        PLACE_OFFERED,  /* ... and this page of this row has its key */
        PLACE_CONTESTED /* ... and so has a page of another row */
    } state;
};

struct places {
    struct page_place *place; /* open addressing */
    size_t n, n_wanted;       /* n: a power of two */
    uint64_t *maybe_parent;   /* a byte a place: two bits a key, in one word, by hash */
};

struct note_row {
    struct note_record record; /* notes and their data owned, in one block */
};

/* Rows as they came, copied, on their way from one thread to the other. */
enum { ROWS_A_BATCH = 256 };
struct row_batch {
    struct row_batch *next;
    size_t n;
    struct {
        struct span_record record; /* ids: set when it is taken */
        uint64_t disk_bytes;
        size_t first_id, n_ids;
    } row[ROWS_A_BATCH];
    uint32_t *ids;
    size_t n_ids, ids_room;
};

struct tenant_limits {
    struct cs_tenant tenant;
    struct cs_quota quota;
};

struct loader {
    struct cs_store *s;
    struct note_row *notes;
    size_t n_notes, notes_room;
    struct tenant_limits *quotas;
    size_t n_quotas, quotas_room;
    bool quotas_to_tell; /* the catalogue was made again */
    /* load_rows.c */
    struct row *rows;
    size_t n_rows, rows_room;
    struct places places;
    struct cs_key *keys; /* of the pages of one row */
    size_t keys_room;
    struct row_batch *filling; /* the opener's */
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under lock while the thread runs. */
    struct row_batch *full, **full_tail, *empty;
    unsigned n_full;
    bool no_more, failed; /* failed: no memory */
    /* load.c */
    int64_t now_unix;
    bool no_memory; /* a row that could have been linked was not */
    size_t n_late;
    uint32_t n_pins_let_go, n_limits_let_go;
};

/* Waits until every row is in `rows`. CS_OK or CS_ENOMEM. */
int loader_prepared(struct loader *l);

/* Empty, with room for n that are wanted. CS_OK or CS_ENOMEM. */
int places_start(struct places *p, size_t n);
void places_free(struct places *p);
/* There must be room. */
void places_want(struct places *p, struct cs_key key);
struct page_place *places_find(const struct places *p, struct cs_key key);
/* Page `ordinal` of the row has this key. */
void places_offer(struct places *p, struct cs_key key, uint32_t row, uint32_t ordinal);

#endif
