/*
 * What the files of the store share: the handle, and the few operations that cross them.
 *
 *   store.c      open, close, counters, the keeper thread
 *   load.c       rows of the disk tier become spans when the store opens
 *   sequence.c   grow, notify, close, page tables
 *   restore.c    look-up, loads in flight, poll
 *   publish.c    new pages and notes become part of the tree
 *   writeback.c  spans on their way to disk
 *   room.c       making room: device pages, index bytes, disk bytes
 *   index.c notes.c arena.c key.c policy/   no knowledge of the store
 *
 * Threads and locks. Callers' threads, the tier's thread (completions) and the keeper (deadlines,
 * notifications, populating the arena) meet under one mutex, cs_store.lock. It is held for short, bounded
 * work in memory only: no I/O, no hashing, no copy of a page. Functions named _locked need it held. Lock
 * order: cs_store.lock, then the tier's own; the tier calls back with none of its locks held. Notifications
 * are called with no lock.
 */
#ifndef ISOTHERM_CACHESTORE_STORE_H
#define ISOTHERM_CACHESTORE_STORE_H

#include "cachestore/arena.h"
#include "cachestore/cachestore.h"
#include "cachestore/index.h"
#include "cachestore/notes.h"
#include "cachestore/tier.h"

#include <pthread.h>

struct cs_store {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for cs_flush: something became durable, or never will */

    /* Fixed after open. */
    uint32_t page_tokens, span_pages;
    uint64_t stride;
    uint8_t fingerprint[32], secret[16];
    uint32_t restore_deadline_ms;
    uint64_t disk_budget, pinned_budget;
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
    const struct tier_vtable *tier;
    struct tier_disk *disk; /* NULL: off */

    struct arena arena;
    struct index index;
    struct notes notes;
    struct cs_stats totals; /* the counters; states are filled in by cs_stats_get */
    uint64_t n_sequences;

    /* Write-behind: spans waiting, oldest first, and what is being written. */
    struct span *backlog_first, *backlog_last;
    uint64_t backlog_bytes;
    uint64_t writing_bytes; /* with the tier: their pages are pinned */

    /* Sequences that the keeper watches for their deadline or a notification due, and how fast loads are. */
    struct cs_sequence *restoring;
    double load_bytes_per_us; /* moving average; 0: nothing measured */

    /* Keeper thread. */
    pthread_t keeper;
    pthread_cond_t keeper_wake;
    bool keeper_started, closing;
};

/* A read in flight of pages [first, first + n) of a span, shared by all who wait for them. */
struct load {
    struct tier_read read;
    struct cs_store *s;
    struct span *span;
    struct load *span_next; /* of span->loads */
    struct load_wait *waits;
    uint32_t refs; /* waits, and one while in flight */
    bool done;
    enum tier_result result;
    uint64_t done_ns;
    void *pages[]; /* n destinations */
};

/* A sequence waiting for a load. */
struct load_wait {
    struct load *load;
    struct cs_sequence *q;
    struct load_wait *next, *previous; /* of load->waits */
    uint32_t first_page, n_pages;      /* of the sequence */
};

struct cs_sequence {
    struct cs_store *s;
    struct cs_tenant tenant;
    /* The place in the tree: the path's last page is (place, place_ordinal); NULL: at the root. Pinned. */
    struct span *place;
    uint32_t place_ordinal;
    uint32_t n_known;  /* pages of the path that are in the tree */
    struct cs_key key; /* behind them */
    /* Page table. n_pages is 0 while a restore is under way. */
    uint32_t *page;
    void **address;
    size_t n_pages, capacity;
    /* Restore. */
    bool settled;
    bool counted; /* something was looked up */
    bool listed;  /* in cs_store.restoring, until it is closed */
    uint32_t n_looked_up, n_restoring;
    struct cs_key *keys; /* of the pages being restored */
    struct load_wait *waits;
    uint32_t n_waits, next_wait;
    uint64_t opened_ns, deadline_ns; /* 0: none */
    struct cs_sequence *restoring_next, *restoring_previous;
    struct cs_reuse reuse;
    void (*notify)(void *ctx);
    void *notify_ctx;
};

/* Opens with a tier of the caller's choice; NULL: none. cs_open is this with the disk tier. */
int store_open(const struct cs_config *config, const struct tier_vtable *tier, struct cs_store **out,
               char *err, size_t err_len);
uint64_t store_now_ns(void);
void store_log(const struct cs_store *s, enum cs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* load.c */
struct loader;
struct loader *loader_new(struct cs_store *s);
int loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes);
int loader_on_notes(void *ctx, const struct note_record *n);
/* Links what was read into the tree, deletes rows that nothing leads to. CS_OK or CS_ENOMEM. */
int loader_finish_locked(struct loader *l);
void loader_free(struct loader *l);

/* room.c */
/* Makes n arena pages free, evicting as needed. CS_OK or CS_EFULL. */
int room_for_pages_locked(struct cs_store *s, uint64_t n);
/* Makes room for bytes in the index, forgetting the oldest leaves. False: everything is in use. */
bool room_for_index_locked(struct cs_store *s, uint64_t bytes);
/* Deletes the oldest leaves from disk until `bytes` are free, or that many more than before. False: nothing
 * is left to delete. */
bool room_for_disk_locked(struct cs_store *s, uint64_t bytes);
bool room_evict_disk_locked(struct cs_store *s, uint64_t bytes);
/* The span's record is gone or useless: out of the disk tier. */
void room_drop_record_locked(struct cs_store *s, struct span *sp);
/* Call behind a loss of pages, record, child or pin: a span that holds nothing loses its notes, and goes
 * once nothing hangs on it; then its parents. */
void room_settle_span_locked(struct cs_store *s, struct span *sp);
/* Drops references of arena pages and queues their owners. */
void room_unref_pages_locked(struct cs_store *s, const uint32_t *pages, size_t n);

/* writeback.c */
void writeback_enqueue_locked(struct cs_store *s, struct span *sp);
void writeback_cancel_locked(struct cs_store *s, struct span *sp);
/* Hands spans to the tier while its budgets allow. */
void writeback_pump_locked(struct cs_store *s);

/* restore.c */
bool restore_ready_locked(const struct cs_sequence *q, uint64_t now_ns);
void restore_abandon_locked(struct cs_sequence *q);
/* Puts q where the keeper sees it. */
void sequence_list_locked(struct cs_sequence *q);
/* The path of q ends behind its first n pages. */
void sequence_set_place_locked(struct cs_sequence *q, struct span *place, uint32_t ordinal);

#endif
