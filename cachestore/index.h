/*
 * The index: every stored span, found by the key of its first page, linked into the tree of paths, and queued
 * for eviction from each tier.
 *
 * A span's pages may be resident on the device, in flight from disk, on disk only, or nowhere. A span without
 * bytes in any tier (a ghost) stays while it has children or pins: publishing its pages again brings its
 * subtree back.
 *
 * Invariants: ids and parent prove a span, its key only finds it. The tree has no span whose parent is
 * absent. bytes counts spans, their ids and page tables, notes (added by notes.c), buckets and the memory of
 * what is gone. Each span is in a heap exactly when it is a candidate there (see index_requeue_locked).
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_INDEX_H
#define ISOTHERM_CACHESTORE_INDEX_H

#include "cachestore/arena.h"
#include "cachestore/cachestore.h"
#include "cachestore/tier_disk.h"

/*
 *   NONE --publish--> BACKLOG --pump--> WRITING --acknowledged--> DURABLE
 *    ^                   |                 |                         |
 *    +---- evicted ------+---- failed -----+--- evicted, quarantined-+
 */
enum span_disk { SPAN_DISK_NONE, SPAN_DISK_BACKLOG, SPAN_DISK_WRITING, SPAN_DISK_DURABLE };

enum span_heap {
    HEAP_DEVICE, /* has an unused page at its tail */
    HEAP_DISK,   /* durable, no child on disk */
    HEAP_INDEX,  /* no child, nothing in use */
    HEAP_COUNT
};

struct note_batch;
struct load;

struct span {
    struct span *parent; /* NULL at a root */
    struct span *first_child, *next_sibling, *previous_sibling;
    struct span *hash_next;
    struct cs_key key, parent_key; /* of its first page; of the page before it */
    struct cs_tenant tenant;
    uint32_t parent_ordinal; /* the parent's page that this span follows */
    uint32_t first_position; /* tokens before it */
    uint32_t n_pages;
    uint32_t n_device, n_loading; /* pages landed; pages in flight */
    uint32_t n_live;              /* pages that somebody uses */
    uint32_t n_children, n_device_children, n_disk_children;
    uint32_t pins; /* sequences whose path ends here */
    enum span_disk disk;
    enum cs_miss lost;     /* why missing pages are missing */
    bool drop_counted;     /* already in dropped_undurable */
    uint8_t write_retries; /* after TIER_ENOSPC */
    uint64_t last_used;    /* microseconds of wall clock, made strictly increasing */
    int64_t created_unix, touched_unix;
    struct record_id id;
    uint64_t disk_bytes;
    struct span *backlog_next, *backlog_previous;
    struct load *loads;
    struct note_batch *batches;
    uint32_t heap_slot[HEAP_COUNT]; /* 1 + position, 0: not there */
    uint32_t *ids;                  /* n_pages * page_tokens */
    uint32_t *page;                 /* n_pages, ARENA_NO_PAGE where not resident */
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
    uint32_t heap_capacity;
    struct gone *gone;
    uint32_t n_gone;
    uint64_t bytes, budget;
    uint64_t n_spans, n_disk_spans;
    uint64_t last_tick;
};

int index_open(struct index *ix, struct arena *arena, uint32_t page_tokens, uint64_t budget);
void index_close(struct index *ix);

uint64_t index_span_bytes(const struct index *ix, uint32_t n_pages);
/* Adds a span without bytes in any tier; copies ids. NULL: no memory. */
struct span *index_add_locked(struct index *ix, struct span *parent, uint32_t parent_ordinal,
                              struct cs_key parent_key, struct cs_key key, const struct cs_tenant *tenant,
                              const uint32_t *ids, uint32_t n_pages);
/* Frees a span that has no children, pins, pages, record or notes. */
void index_remove_locked(struct index *ix, struct span *sp);
/* The span that follows (parent, ordinal) and whose first page holds exactly these ids; NULL: none. parent
 * NULL: a root of this tenant. */
struct span *index_find_locked(const struct index *ix, const struct span *parent, uint32_t parent_ordinal,
                               struct cs_key key, const struct cs_tenant *tenant, const uint32_t *ids);
/* Why the span with this key went; CS_MISS_NONE: not remembered. */
enum cs_miss index_gone_locked(const struct index *ix, struct cs_key key);

uint64_t index_tick_locked(struct index *ix);
void index_touch_locked(struct index *ix, struct span *sp, uint64_t tick);
void index_pin_locked(struct index *ix, struct span *sp);
void index_unpin_locked(struct index *ix, struct span *sp);
/* Moves the last pages of a span out of it: it ends behind its first n pages from now on. */
void index_truncate_locked(struct index *ix, struct span *sp, uint32_t n_pages);

/* Page i of the span becomes this arena page: resident, or expected from a read. */
void index_attach_locked(struct index *ix, struct span *sp, uint32_t i, uint32_t page, bool loading);
void index_landed_locked(struct index *ix, struct span *sp, uint32_t i);
void index_detach_locked(struct index *ix, struct span *sp, uint32_t i);
void index_set_disk_locked(struct index *ix, struct span *sp, enum span_disk disk);

/* References of arena pages, with or without owner. Unref does not requeue: call index_requeue_locked for the
 * owners once. */
void index_page_ref_locked(struct index *ix, uint32_t page);
void index_page_unref_locked(struct index *ix, uint32_t page);

/* Puts the span into the heaps where it is a candidate now, at its place, and out of the others. */
void index_requeue_locked(struct index *ix, struct span *sp);
struct span *index_first_locked(const struct index *ix, enum span_heap heap);

#endif
