/*
 * The index: every stored span, found by the key of its first page, linked into the tree of paths, and queued
 * for eviction from each tier.
 *
 * A checkpoint is a span as well, of another kind: the child of the span that holds the page before its
 * position, with blocks in the place of pages (state first, then window pages, group by group) and that
 * page's ids. So it is written, loaded, evicted and counted like one. Its blocks are all resident, all in
 * flight or all absent; they may belong to other checkpoints too. Nothing hangs on it.
 *
 * A span's pages may be resident on the device, in flight from disk, on disk only, or nowhere. A span without
 * bytes in any tier (a ghost) stays while it has children or pins: publishing its pages again brings its
 * subtree back. A doomed checkpoint is no longer wanted and found by nobody: it goes once its read or write
 * has ended.
 *
 * Invariants: ids and parent prove a span, its key only finds it. The tree has no span whose parent is
 * absent. bytes counts spans, their ids and page tables, notes (added by notes.c), buckets and the memory of
 * what is gone. Each span is in a heap, or ranked, exactly when it is a candidate there (see
 * index_requeue_locked).
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_INDEX_H
#define ISOTHERM_CACHESTORE_INDEX_H

#include "cachestore/arena.h"
#include "cachestore/cachestore.h"
#include "cachestore/ranks.h"
#include "cachestore/tier_disk.h"

/*
 *   NONE --publish--> (GRACE -->) BACKLOG --pump--> WRITING --acknowledged--> DURABLE
 *    ^                   |           |                 |                         |
 *    +------- evicted, thinned ------+---- failed -----+--- evicted, quarantined-+
 *
 * GRACE is for checkpoints only, and counts as absent from disk: from BACKLOG on a parent is kept there.
 */
enum span_disk { SPAN_DISK_NONE, SPAN_DISK_GRACE, SPAN_DISK_BACKLOG, SPAN_DISK_WRITING, SPAN_DISK_DURABLE };

enum span_heap {
    HEAP_DISK,  /* durable, no child on disk, not kept */
    HEAP_INDEX, /* no child, no pin, not kept, no load, not being written; of pages: none in use */
    HEAP_COUNT
};

enum span_kind { SPAN_OF_PAGES, SPAN_CHECKPOINT };

struct cs_sequence;
struct note_batch;
struct load;

struct span {
    struct span *parent; /* NULL at a root */
    struct span *first_child, *first_checkpoint, *next_sibling, *previous_sibling;
    struct span *hash_next;
    struct cs_key key, parent_key; /* of its first page; of the page before it */
    struct cs_tenant tenant;
    uint32_t parent_ordinal; /* the parent's page that this span follows */
    uint32_t first_position; /* tokens before it */
    uint32_t n_pages;
    uint32_t n_device, n_loading; /* pages landed; pages in flight */
    uint32_t n_live;              /* pages that somebody uses; not counted for checkpoints */
    uint32_t n_children, n_device_children, n_disk_children; /* checkpoints included */
    uint32_t pins;                                           /* sequences whose path ends here */
    struct cs_sequence *placed;                              /* ... the sequences */
    enum span_kind kind;
    enum cs_boundary_kind boundary, written_as; /* of a checkpoint; what its record says */
    bool doomed;
    bool kept;      /* pinned by its owner: leaves disk and index for no other's sake; only while durable */
    bool kept_path; /* ... or something below it is; used while rows are linked */
    enum span_disk disk;
    enum cs_miss lost;     /* why missing pages are missing */
    bool drop_counted;     /* already in dropped_undurable */
    uint8_t write_retries; /* after TIER_ENOSPC */
    uint64_t last_used;    /* microseconds of wall clock, made strictly increasing */
    int64_t created_unix, touched_unix;
    struct record_id id;
    uint64_t disk_bytes;
    struct span *backlog_next, *backlog_previous;
    uint64_t write_due_ns; /* end of the grace */
    struct load *loads;
    struct note_batch *batches;
    uint32_t heap_slot[HEAP_COUNT]; /* 1 + position, 0: not there */
    struct rank rank;               /* among the candidates of the device */
    uint32_t chain;        /* of pages: the most checkpoints on a path from its start down (ranks.h) */
    uint32_t useful_depth; /* ... and twice the pages that lead to one, or one more */
    uint32_t *ids;         /* n_pages * page_tokens; checkpoint: the page_tokens before it */
    uint32_t *page;        /* n_pages, ARENA_NO_PAGE where not resident */
};

struct heap {
    struct span **items;
    uint32_t n;
};

/* The key of a span that was removed, and why. */
struct gone {
    struct cs_key key;
    enum cs_miss why;
};

struct index {
    struct arena *arena;
    uint32_t page_tokens;
    struct span **buckets;
    uint64_t bucket_mask;
    struct heap heaps[HEAP_COUNT];
    struct ranks ranks;
    bool stateful, over_disk; /* of the store */
    bool loading; /* rows are being linked: nothing is queued, index_requeue_locked does nothing */
    uint32_t heap_capacity;
    struct gone *gone;
    uint32_t n_gone;
    uint64_t bytes, budget;
    uint64_t n_spans, n_disk_spans;   /* checkpoints included */
    uint64_t n_checkpoints, n_doomed; /* the one without the other */
    uint64_t last_tick;
};

int index_open(struct index *ix, struct arena *arena, uint32_t page_tokens, uint64_t budget);
void index_close(struct index *ix);

uint64_t index_span_bytes(const struct index *ix, uint32_t n_pages);
uint64_t index_checkpoint_bytes(const struct index *ix, uint32_t n_blocks);
/* Memory of a span of n_pages pages, not part of the index yet: its ids are to be filled in, then
 * index_add_made_locked takes it over, or free() ends it. NULL: no memory. Needs no lock. */
struct span *index_span_new(const struct index *ix, uint32_t n_pages);
void index_add_made_locked(struct index *ix, struct span *made, struct span *parent, uint32_t parent_ordinal,
                           struct cs_key parent_key, struct cs_key key, const struct cs_tenant *tenant);
/* Adds a span without bytes in any tier; copies ids. NULL: no memory. */
struct span *index_add_locked(struct index *ix, struct span *parent, uint32_t parent_ordinal,
                              struct cs_key parent_key, struct cs_key key, const struct cs_tenant *tenant,
                              const uint32_t *ids, uint32_t n_pages);
/* Adds a checkpoint without bytes in any tier behind page `ordinal` of the parent; page_key: of that page. */
struct span *index_add_checkpoint_locked(struct index *ix, struct span *parent, uint32_t ordinal,
                                         struct cs_key page_key, uint32_t n_blocks,
                                         enum cs_boundary_kind boundary);
/* The checkpoint behind page `ordinal` of a span; NULL: none. Doomed ones are none. */
struct span *index_checkpoint_locked(const struct span *sp, uint32_t ordinal);
/* The checkpoint is found by nobody from now on, and not counted. */
void index_doom_locked(struct index *ix, struct span *checkpoint);
/* Frees a span that has no children, pins, pages, record or notes. */
void index_remove_locked(struct index *ix, struct span *sp);
/* The span that follows (parent, ordinal) and whose first page holds exactly these ids; NULL: none. parent
 * NULL: a root of this tenant. */
struct span *index_find_locked(const struct index *ix, const struct span *parent, uint32_t parent_ordinal,
                               struct cs_key key, const struct cs_tenant *tenant, const uint32_t *ids);
static inline enum record_kind index_record_kind(const struct span *sp)
{
    return sp->kind == SPAN_CHECKPOINT ? RECORD_CHECKPOINT : RECORD_SPAN;
}
/* Token ids that an entry has: of all its pages, or of the page before a checkpoint. */
static inline size_t index_n_ids(const struct index *ix, enum span_kind kind, uint32_t n_pages)
{
    return (size_t)(kind == SPAN_OF_PAGES ? n_pages : 1) * ix->page_tokens;
}
/* All its pages or blocks have landed. */
static inline bool index_is_resident(const struct span *sp)
{
    return sp->n_device == sp->n_pages;
}
static inline bool index_waits_for_disk(const struct span *sp)
{
    return sp->disk == SPAN_DISK_GRACE || sp->disk == SPAN_DISK_BACKLOG;
}
/* Why the span with this key went; CS_MISS_NONE: not remembered. */
enum cs_miss index_gone_locked(const struct index *ix, struct cs_key key);

/* Microseconds of wall clock, never before the last tick. */
uint64_t index_now(const struct index *ix);
uint64_t index_tick_locked(struct index *ix);
void index_touch_locked(struct index *ix, struct span *sp, uint64_t tick);
void index_pin_locked(struct index *ix, struct span *sp);
void index_unpin_locked(struct index *ix, struct span *sp);
/* Moves the last pages of a span out of it: it ends behind its first n pages from now on. */
void index_truncate_locked(struct index *ix, struct span *sp, uint32_t n_pages);
/* The pages behind its first n become a span of their own, with what they have on the device and what hangs
 * on them; sequences that end there are the caller's to move. The span is on no disk and has no loads. NULL:
 * no memory. */
struct span *index_split_locked(struct index *ix, struct span *sp, uint32_t n_pages);

/* Page i of the span becomes this arena page, which is in use: resident, or expected from a read. */
void index_attach_locked(struct index *ix, struct span *sp, uint32_t i, uint32_t page, bool loading);
void index_landed_locked(struct index *ix, struct span *sp, uint32_t i);
void index_detach_locked(struct index *ix, struct span *sp, uint32_t i);
void index_set_disk_locked(struct index *ix, struct span *sp, enum span_disk disk);

/* References of arena pages, with or without owner. Unref does not requeue: call index_requeue_locked for the
 * owners once. */
void index_page_ref_locked(struct index *ix, uint32_t page);
void index_page_unref_locked(struct index *ix, uint32_t page);

/* Puts the span into the heaps where it is a candidate now, at its place, and out of the others; ranks it for
 * the device. */
void index_requeue_locked(struct index *ix, struct span *sp);
struct span *index_first_locked(const struct index *ix, enum span_heap heap);

#endif
