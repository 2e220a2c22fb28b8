/*
 * The index: every stored span, found by the key of its first page, linked into the tree of paths, and queued
 * for eviction from each tier.
 *
 * A checkpoint is a span as well, of another kind: the child of the span that holds the page before its
 * position, with blocks in the place of pages (state first, then window pages, group by group) and that
 * page's ids. So it is written, loaded, evicted and counted like one. Its blocks are all resident, all in
 * flight or all absent; they may belong to other checkpoints too. Nothing hangs on it.
 *
 * A span's pages may be resident on the device, in flight to it, on disk only, or nowhere. Over a device that
 * is not host memory each page may be in a block of the host tier as well: host[] is for those blocks what
 * page[] is for the device. A block in flight to or from the disk or the device belongs to a span that is
 * COPYING or WRITING or has a load, and no other one's blocks are taken away. A span without
 * bytes in any tier (a ghost) stays while it has children or pins: publishing its pages again brings its
 * subtree back. A doomed checkpoint is no longer wanted and found by nobody: it goes once its read or write
 * has ended.
 *
 * Invariants: ids and parent prove a span, its key only finds it. The tree has no span whose parent is
 * absent. bytes counts spans, their ids and page tables, notes (added by notes.c), buckets and the memory of
 * what is gone. Each span is in the heap and in its account's list, or ranked, exactly when it is a candidate
 * there (see index_requeue_locked). Each page of the arenas, each record on disk or on its way there, and
 * each span with its notes is charged to one account.
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_INDEX_H
#define ISOTHERM_CACHESTORE_INDEX_H

#include "cachestore/accounts.h"
#include "cachestore/arena.h"
#include "cachestore/cachestore.h"
#include "cachestore/ranks.h"
#include "cachestore/slots.h"
#include "cachestore/tier_disk.h"

/*
 *   NONE --publish--> (GRACE -->) BACKLOG --pump--> WRITING --acknowledged--> DURABLE
 *    ^                   |           |                 |                         |
 *    +------- evicted, thinned ------+---- failed -----+--- evicted, quarantined-+
 *
 * GRACE is for checkpoints only, and counts as absent from disk: from BACKLOG on a parent is kept there, for
 * pages from QUEUED on. What is written to disk comes from the device, or, where there is a host tier, from
 * there: then publishing begins with the way to it, and without a disk that is all.
 *
 *   NONE --publish--> QUEUED --pump--> COPYING --landed on the host--> NONE (--> GRACE or BACKLOG)
 */
enum span_disk {
    SPAN_DISK_NONE,
    SPAN_DISK_QUEUED,
    SPAN_DISK_COPYING,
    SPAN_DISK_GRACE,
    SPAN_DISK_BACKLOG,
    SPAN_DISK_WRITING,
    SPAN_DISK_DURABLE
};

/* Who leaves the host first; of one turn the least worthy. */
enum host_turn {
    HOST_TURN_DEAD,    /* nothing that could be resumed needs it */
    HOST_TURN_DURABLE, /* still on disk */
    HOST_TURN_REST,
    HOST_TURN_WAITING, /* on its way to disk */
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
    struct account *account;       /* of its tenant */
    uint32_t parent_ordinal;       /* the parent's page that this span follows */
    uint32_t n_pages;
    uint32_t n_device, n_loading; /* pages landed; pages in flight */
    uint32_t n_live;              /* pages that somebody uses; not counted for checkpoints */
    uint32_t n_host;              /* pages landed on the host */
    uint32_t host_pins;           /* who looks at its blocks on the host, for as long as the lock is held */
    uint32_t n_children, n_device_children, n_host_children, n_disk_children; /* checkpoints included */
    uint32_t pins;              /* sequences whose path ends here */
    struct cs_sequence *placed; /* ... the sequences */
    enum span_kind kind;
    enum cs_boundary_kind boundary, written_as; /* of a checkpoint; what its record says */
    bool doomed;
    bool kept;        /* pinned by its owner: leaves disk and index for no other's sake; only while durable */
    bool kept_path;   /* ... or something below it is; used while rows are linked */
    bool held_back;   /* would have gone to lower tiers, but the store drains; or it does no more */
    bool left_behind; /* was on its way to disk, and what leads to it was not there; goes on behind that */
    enum span_disk disk;
    enum cs_miss lost;     /* why missing pages are missing */
    bool drop_counted;     /* already in dropped_undurable */
    uint8_t write_retries; /* after TIER_ENOSPC */
    uint16_t husk_above;   /* of the spans above it, how many have the first pages of the husk's record */
    uint32_t refused_pass; /* the last one of writeback.c in which it was refused */
    int64_t created_unix, touched_unix;
    struct record_id id;
    struct record_id husk; /* its damaged record, whose row stands for what hangs on it */
    uint64_t disk_bytes;
    struct span *backlog_next, *backlog_previous;
    uint64_t write_due_ns; /* end of the grace */
    struct load *loads;
    struct note_batch *batches;
    uint32_t heap_slot;           /* in the heap of the index: 1 + position, 0: not there */
    struct span *older, *younger; /* of its account, where it is in the heap */
    struct span *aside_next;      /* while the lock is held (enough.c) */
    struct kinetic_node rank[RANK_TIERS];
    union {
        struct {
            uint64_t last_used;      /* microseconds of wall clock, made strictly increasing */
            uint32_t first_position; /* tokens before it */
            bool continues;          /* set before it is ranked */
        };
        struct evict_facts age; /* the same; ranks look at it with their nodes */
    };
    uint32_t chain;        /* of pages: the most checkpoints on a path from its start down (ranks.h) */
    uint32_t useful_depth; /* ... and twice the pages that lead to one, or one more */
    size_t block_bytes;    /* of its memory: it and its tables */
    uint32_t *ids;         /* n_pages * page_tokens; checkpoint: the page_tokens before it */
    uint32_t *page;        /* n_pages, ARENA_NO_PAGE where not resident */
    uint32_t *host;        /* the same of blocks of the host tier; NULL: there is none */
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
    struct arena *arena, *host; /* host: the host tier's blocks; NULL: there is none */
    uint32_t page_tokens;
    struct slots slots; /* memory of the spans */
    struct span **buckets;
    uint64_t bucket_mask;
    /* Who may be forgotten, oldest first: no child, no pin, not kept, no load, not being written or copied;
     * of pages: none in use. */
    struct heap heap;
    struct kinetic_heap ranks[RANK_TIERS]; /* of the accounts' heads */
    struct accounts accounts;
    struct worth_costs costs;
    bool stateful, over_disk; /* of the store */
    bool loading; /* rows are being linked: nothing is queued, index_requeue_locked does nothing */
    uint32_t heap_capacity;
    struct gone *gone;
    uint32_t n_gone;
    uint64_t bytes, budget;
    uint64_t n_spans, n_disk_spans;   /* checkpoints included */
    uint64_t n_checkpoints, n_doomed; /* the one without the other */
    uint64_t n_disk_checkpoints;
    struct cs_kept device, kept_host, disk[2]; /* without alive; disk: by enum span_kind */
    uint64_t last_tick;
};

/* host: NULL without a host tier. quota: of tenants without limits of their own. From then on what is taken
 * from the arenas is charged to accounts. */
int index_open(struct index *ix, struct arena *arena, struct arena *host, uint32_t page_tokens,
               uint64_t budget, const struct cs_quota *quota);
void index_close(struct index *ix);

uint64_t index_span_bytes(const struct index *ix, uint32_t n_pages);
uint64_t index_checkpoint_bytes(const struct index *ix, uint32_t n_blocks);
/* Memory of a span of n_pages pages, not part of the index yet: its ids are to be filled in, then
 * index_add_made_locked takes it over, or index_span_free ends it. NULL: no memory. No lock while the store
 * is being opened. */
struct span *index_span_new(struct index *ix, uint32_t n_pages);
void index_span_free(struct index *ix, struct span *made);
void index_add_made_locked(struct index *ix, struct span *made, struct span *parent, uint32_t parent_ordinal,
                           struct cs_key parent_key, struct cs_key key, struct account *account);
/* Adds a span without bytes in any tier; copies ids. NULL: no memory. */
struct span *index_add_locked(struct index *ix, struct span *parent, uint32_t parent_ordinal,
                              struct cs_key parent_key, struct cs_key key, struct account *account,
                              const uint32_t *ids, uint32_t n_pages);
/* Adds a checkpoint without bytes in any tier behind page `ordinal` of the parent; page_key: of that page. */
struct span *index_add_checkpoint_locked(struct index *ix, struct span *parent, uint32_t ordinal,
                                         struct cs_key page_key, uint32_t n_blocks,
                                         enum cs_boundary_kind boundary);
/* The checkpoint behind page `ordinal` of a span; NULL: none. Doomed ones are none. */
struct span *index_checkpoint_locked(const struct span *sp, uint32_t ordinal);
/* The checkpoint is found by nobody from now on, and not counted. */
void index_doom_locked(struct index *ix, struct span *checkpoint);
/* The tenant's account, which stays while what asked for it is counted there. NULL: no memory. */
struct account *index_account_locked(struct index *ix, const struct cs_tenant *tenant);
void index_account_settle_locked(struct index *ix, struct account *a);
/* Bytes of the account's spans, or of their notes. */
void index_charge_locked(struct index *ix, struct account *a, uint64_t bytes);
void index_discharge_locked(struct index *ix, struct account *a, uint64_t bytes);
/* What the budget counts for the span, notes aside. */
uint64_t index_bytes_of(const struct index *ix, const struct span *sp);
/* Memory of the index, accounts included. */
static inline uint64_t index_memory(const struct index *ix)
{
    return ix->bytes + ix->accounts.bytes;
}
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
/* What a record of it says, but for its times. */
struct span_record index_record_of(const struct span *sp);
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
static inline bool index_is_on_host(const struct span *sp)
{
    return sp->n_host == sp->n_pages;
}
/* It waits in one of the lists of writeback.c. */
static inline bool index_waits(const struct span *sp)
{
    return sp->disk == SPAN_DISK_QUEUED || sp->disk == SPAN_DISK_GRACE || sp->disk == SPAN_DISK_BACKLOG;
}
/* ... for something that is done from its pages on the device. */
static inline bool index_waits_on_device(const struct index *ix, const struct span *sp)
{
    return index_waits(sp) && (!ix->host || sp->disk == SPAN_DISK_QUEUED);
}
/* Its pages on the device are being read. */
static inline bool index_is_leaving_device(const struct index *ix, const struct span *sp)
{
    return sp->disk == SPAN_DISK_COPYING || (sp->disk == SPAN_DISK_WRITING && !ix->host);
}
/* On disk, or, as far as its parent is concerned, as good as there: the parent's record is kept for it. A
 * checkpoint is not before its grace has ended. */
static inline bool index_needs_parent_on_disk(const struct index *ix, enum span_kind kind,
                                              enum span_disk disk)
{
    return disk >= SPAN_DISK_BACKLOG || (ix->over_disk && kind == SPAN_OF_PAGES &&
                                         (disk == SPAN_DISK_QUEUED || disk == SPAN_DISK_COPYING));
}
/* Leaving the device it would still be in another tier. */
static inline bool index_is_safe(const struct span *sp)
{
    return sp->disk == SPAN_DISK_DURABLE || index_is_on_host(sp);
}
/* Some of it is in some tier, or on its way there. */
static inline bool index_holds_bytes(const struct span *sp)
{
    return sp->n_device + sp->n_loading + sp->n_host > 0 || sp->disk != SPAN_DISK_NONE;
}
/* Every page can be had from memory: the span could be copied or written. */
bool index_is_whole(const struct span *sp);
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
void index_detach_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why);
/* The same of blocks of the host tier. Their owner is the span, be it of pages or a checkpoint. */
void index_attach_host_locked(struct index *ix, struct span *sp, uint32_t i, uint32_t block, bool loading);
void index_landed_host_locked(struct index *ix, struct span *sp, uint32_t i);
void index_detach_host_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why);
/* From WRITING on sp->disk_bytes are charged: they are set before, and stay until it has left. Where a
 * durable record becomes none, the caller counts why. */
void index_set_disk_locked(struct index *ix, struct span *sp, enum span_disk disk);

/* References of arena pages, with or without owner. Unref does not requeue: call index_requeue_locked for the
 * owners once. */
void index_page_ref_locked(struct index *ix, uint32_t page);
void index_page_unref_locked(struct index *ix, uint32_t page);

enum host_turn index_host_turn(const struct index *ix, const struct span *sp);
/* Puts the span into the heap and the ranks where it is a candidate now, at its place, and out of the others.
 */
void index_requeue_locked(struct index *ix, struct span *sp);
/* Who is to be forgotten next, of an account's (about the oldest) or (NULL) of all; NULL: nobody can be. */
struct span *index_first_locked(const struct index *ix, const struct account *of);

#endif
