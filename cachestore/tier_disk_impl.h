/*
 * Inside of the disk tier, shared by its files and nobody else:
 *
 * - tier_disk.c: the calls of tier_disk.h, the table of records
 * - tier_disk_loop.c: the I/O thread: its turns, and writes
 * - tier_disk_flush.c: flushes, on it
 * - tier_disk_delete.c: ... its deletes
 * - tier_disk_move.c: one record's bytes between memory and volumes, verified
 * - tier_disk_catalog.c: the catalogue thread
 * - tier_disk_admin.c: headers zeroed, pins, for who looks after an open store
 * - tier_disk_foreign.c: records of another fingerprint, and how they leave
 * - tier_disk_open.c: open: lock, files, threads
 * - tier_disk_rows.c: rows at open: conflicts, events
 * - tier_disk_say.c: lines about what goes wrong
 * - tier_disk_rebuild.c: headers in the volumes, the catalogue from them
 *
 * Life of a record:
 *
 *   write()          chunks found      data in file          fdatasync        catalogue batch
 *   QUEUED ----------> WRITING ---------> WRITTEN ----------> COMMITTING ----------> DURABLE
 *      |                  |                  |                                          | delete()
 *      +------------------+------------------+--> gone (no row was ever written)        v
 *                                                                   row deleted, last read ended --> gone
 *
 * Threads and lock. Any thread: the calls, which put work into the inbox. I/O thread: everything else
 * (volumes, io, record states, all completions). Catalogue thread: RocksDB, one group at a time. `lock`
 * guards the inbox, the table and the groups handed between the two threads; it is held for list operations
 * only, never over a system call (but the wake-up) or a callback, and no other lock is taken under it.
 */
#ifndef ISOTHERM_CACHESTORE_TIER_DISK_IMPL_H
#define ISOTHERM_CACHESTORE_TIER_DISK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cachestore/catalog.h"
#include "cachestore/episode.h"
#include "cachestore/io/io.h"
#include "cachestore/store_file.h"
#include "cachestore/tier_disk.h"
#include "cachestore/volumes.h"

enum record_state { REC_QUEUED, REC_WRITING, REC_WRITTEN, REC_COMMITTING, REC_DURABLE, REC_GONE };

struct disk_record {
    struct record_id id;
    struct disk_record *table_next;
    struct disk_record *list_next; /* the inbox's deletes, then the group's */
    uint64_t bytes;                /* of its chunks */
    int64_t used_unix;
    uint32_t n_pages, header_bytes;
    uint32_t readers; /* reads in flight */
    uint32_t n_runs;
    struct fmt_record_run one, *runs; /* runs is &one where there is one */
    uint8_t state;
    uint8_t kind; /* FMT_RECORD_... */
    bool foreign; /* of another fingerprint or geometry: never served, first to leave */
    bool counted; /* its bytes are in `committed`; under lock */
    bool pinned;  /* may have a row that says so; under lock, fixed once deleted */
    bool purge;   /* deleted for good: its header is zeroed before its chunks are free; under lock */
    bool purge_done, purge_ok; /* ... I/O thread: has been, or not */
    bool note_rows;            /* may have notes in rows of their own; under lock, fixed once deleted */
    atomic_bool deleted;       /* asked for; no read begins */
    bool delete_seen;          /* the I/O thread has taken the delete from the inbox */
    bool dying;                /* counted in n_dying: its chunks will be free before long */
    bool said;                 /* a line says that it cannot be read; I/O thread */
};

/* One record's bytes on their way. */
struct transfer_op {
    struct io_op op;
    uint64_t from, to; /* of the record's bytes */
};
struct transfer {
    struct tier_disk *t;
    struct disk_record *rec;
    struct tier_write *w; /* one of the two */
    struct tier_read *r;
    uint8_t *header;
    struct transfer_op *ops;
    struct iovec *iov;
    uint32_t n_ops, ops_left;
    int error; /* first -errno */
    /* reads */
    uint16_t *page_ops_left; /* requests that still touch a page; PAGE_VERIFIED afterwards */
    bool header_ok;
    enum tier_result result;
    /* writes */
    uint8_t *row;
    size_t row_bytes;
    struct transfer *next;
};

/* A change of a row that has no chunks: notes or a quota, written or deleted. */
struct row_op {
    struct row_op *next;
    bool quota; /* id: catalog_quota_id */
    struct record_id owner, id;
    void *value; /* NULL: delete */
    size_t len;
    bool pin;    /* it is the owner's pin, and no notes */
    bool erased; /* ... who is gone, and with this batch for good */
};

struct touch {
    struct record_id id;
    int64_t used_unix;
};

/* What goes to the catalogue in one batch. */
struct group {
    struct group *next;
    struct tier_disk *t;
    struct transfer *writes;
    struct row_op *rows;
    struct disk_record *deletes;
    struct touch *touches;
    size_t n_touches;
    struct io_op *syncs;
    uint32_t syncs_left;
    bool sync_failed;
    bool for_good; /* of deletes: the batch is synced */
    int result;    /* the commit's; CS_EFULL: it was not tried */
};

/* Whether rows can be written: by what the catalogue thread saw last. */
enum catalog_state { CATALOG_FINE, CATALOG_FULL, CATALOG_BROKEN };

struct tier_stats {
    atomic_uint_fast64_t spans_written, checkpoints_written, bytes_written, spans_read, checkpoints_read,
        bytes_read, syncs, catalog_batches, catalog_rows, corrupt_header, corrupt_tokens, corrupt_payload,
        io_errors, dropped_notes, sqes, submissions, spans, checkpoints, records_foreign, volume_bytes,
        catalog_bytes, memory_bytes;
    /* What the catalogue's files may take for a while (catalog_most_bytes), and notes that are not among its
     * rows yet. */
    atomic_uint_fast64_t catalog_most, notes_pending;
};

/* Makes the I/O thread's engine; called on that thread. As io_engine_open, which it is but for tests. */
typedef int tier_engine_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len);

struct tier_disk {
    /* Fixed after open. */
    tier_engine_open *engine_open;
    enum cs_io_engine engine_kind;
    struct store_file store;
    uint8_t fingerprint[32];
    uint32_t page_tokens, chunk_bytes;
    uint64_t page_bytes, stride;
    uint64_t budget, catalog_share, flush_bytes, inflight_bytes;
    uint32_t flush_interval_ms;
    int dir_fd;
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
    pthread_t io_thread, catalog_thread;
    bool io_thread_runs, catalog_thread_runs;
    bool catalog_fails; /* a line says so; catalogue thread */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* the catalogue thread's queue; the I/O thread's start; deletes_idle */
    /* Under lock. */
    struct disk_record **table;
    size_t table_size, n_records;
    struct tier_read *in_reads, **in_reads_tail;
    struct tier_write *in_writes, **in_writes_tail;
    struct disk_record *in_deletes;
    struct row_op *in_rows, **in_rows_tail;
    struct erase *in_erases;
    struct touch *in_touches;
    size_t n_in_touches, room_in_touches;
    bool in_kick, in_close, io_sleeps, catalog_stop;
    uint64_t close_at_ms;
    struct group *to_catalog, **to_catalog_tail, *from_catalog;
    bool deletes_idle; /* none is asked for, under way or waiting for a read */
    int io_started;    /* 0 not yet, 1 yes, 2 and it serves, 3 and it ends without having served, -1 failed */
    char start_reason[160]; /* why it is this engine, or why there is none */

    /* Any thread. */
    atomic_int_fast64_t committed; /* bytes of own records, queued ones included, deleted ones not */
    atomic_int_fast64_t limit;     /* bytes the volumes may take */
    atomic_uint_fast64_t pending, sequence, purge_epoch;
    atomic_uint_fast64_t asked, failed; /* headers to be zeroed and pins: under way; in vain, ever */
    uint64_t nonce;
    atomic_int catalog_state;             /* enum catalog_state */
    atomic_uint_fast64_t catalog_reserve; /* what the file system must have free for the catalogue */
    struct tier_stats stats;

    /* I/O thread (and the opener before it serves). */
    struct io *io;
    struct volumes volumes;
    struct episode unreadable, failed_writes, failed_syncs, full;
    struct tier_read *reads; /* taken from the inbox, not begun */
    struct tier_write *writes, **writes_tail;
    struct transfer *writing; /* data in flight, for a failed sync to find */
    struct transfer *written, **written_tail;
    uint64_t writing_bytes, written_bytes;
    struct row_op *rows, **rows_tail;
    struct touch *touches;
    size_t n_touches;
    struct disk_record *row_deletes;
    struct group delete_group; /* the one delete batch under way: deletes need no memory */
    uint64_t deletes_at_ms;    /* after one that failed: when they are tried again */
    unsigned n_dying;          /* records whose chunks will be free once deletes and reads have ended */
    struct erase *erased;      /* zeros are written, no sync covers them yet */
    struct group *syncing;     /* whose volumes are being synced */
    bool flushing, deleting, kick, closing, cancel_all, erase_syncing;
    bool notes_dropped_said, buffered_said;
    bool flush_timer;
    bool retry; /* writes were refused: an empty group finds out whether the catalogue can be written again */
    uint64_t flush_at_ms, retry_at_ms;
    struct disk_record **foreign; /* in the order in which they leave */
    size_t n_foreign, next_foreign;

    /* Catalogue thread (and the opener). */
    struct catalog *catalog;
};

enum {
    MOVE_OP_BYTES = 1 << 20,
    TIER_RETRY_MS = 500,      /* until what failed is tried again */
    SEQUENCE_EPOCH_BITS = 32, /* a sequence is the number of the open, then a counter */
};

/* tier_disk.c */
struct disk_record *tier_record_find(struct tier_disk *t, struct record_id id); /* lock held */
int tier_record_insert(struct tier_disk *t, struct disk_record *rec); /* lock held; 0 or CS_ENOMEM */
int tier_table_make(struct tier_disk *t); /* before the first record; CS_OK or CS_ENOMEM */
struct disk_record *tier_record_new(const struct tier_disk *t, struct record_id id, uint32_t kind,
                                    uint32_t n_pages, uint32_t header_bytes, uint32_t n_chunks);
/* The counter of records of its kind on disk. */
atomic_uint_fast64_t *tier_record_counter(struct tier_disk *t, const struct disk_record *rec);
void tier_record_remove(struct tier_disk *t, struct disk_record *rec); /* lock held */
void tier_record_free(struct disk_record *rec);
void tier_row_op_free(struct row_op *op);
/* Lock held; released on return. */
void tier_unlock_and_wake(struct tier_disk *t);
/* Lock held; released on return. */
void tier_row_push(struct tier_disk *t, struct row_op *op);
int tier_record_set_runs(struct disk_record *rec, const struct fmt_record_run *runs, uint32_t n_runs);
void tier_log(const struct tier_disk *t, enum cs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
uint64_t tier_volume_limit(const struct tier_disk *t);
/* Of a budget; and the least that it can be where volumes take so much. */
uint64_t tier_catalog_share(uint64_t budget);
uint64_t tier_catalog_share_least(uint64_t volume_bytes);
/* Says once that volumes are read and written buffered, where they are. */
void tier_say_buffered(struct tier_disk *t);

/* tier_disk_admin.c: on the I/O thread */
/* Zeroes the header of a record whose row is gone; tier_record_end is called again then. false: no memory. */
bool tier_purge_begin(struct tier_disk *t, struct disk_record *rec, bool keep_chunks);
/* Headers in chunks that are free. */
void tier_erases_begin(struct tier_disk *t, struct erase *erases);
/* One that was asked for has ended. */
void tier_asked_done(struct tier_disk *t, bool ok);

/* tier_disk_catalog.c */
void *tier_catalog_main(void *arg);
/* Looks at what the catalogue takes. That thread, and the opener. */
void tier_measure_catalog(struct tier_disk *t);

/* tier_disk_foreign.c */
/* What is known of other fingerprints' paths while rows are read. */
struct foreign_paths {
    struct foreign_member *members;
    size_t n_members, members_room;
    struct foreign_page *pages;
    size_t n_pages, pages_room;
};
/* CS_OK or CS_ENOMEM. */
int foreign_paths_add(struct foreign_paths *f, struct disk_record *rec, const struct fmt_record *r);
/* Makes t->foreign, the order in which they leave. CS_OK or CS_ENOMEM. */
int foreign_order(struct tier_disk *t, struct foreign_paths *f);
void foreign_paths_free(struct foreign_paths *f);
/* I/O thread: begins deleting the first of them, until their chunks make up `bytes`. */
void foreign_evict(struct tier_disk *t, uint64_t bytes);
/* I/O thread: the same where the volumes hold more than they may. */
void foreign_fit(struct tier_disk *t);
/* I/O thread: takes those out of the order whose delete has been seen. */
void foreign_forget_deleted(struct tier_disk *t);

/* tier_disk_loop.c */
void *tier_io_main(void *arg);
/* Takes rec out of the table and, where its chunks are known to be idle, frees them. keep_chunks: they may
 * hold anything, or a row may still name them; they stay used and in the budget. */
void tier_record_end(struct tier_disk *t, struct disk_record *rec, bool keep_chunks);
/* The data of a write is in the volumes, or has failed. */
void tier_write_landed(struct transfer *x);

/* A write that ends without a row. */
void tier_transfer_abandon(struct transfer *x, enum tier_result result, bool keep_chunks);
/* The store hears what became of it, or of a row of its own. */
void tier_write_end(struct tier_disk *t, struct tier_write *w, enum tier_result result);
void tier_row_end(struct tier_disk *t, struct row_op *row, bool ok);
uint64_t tier_now_ms(void);

/* tier_disk_flush.c: on the I/O thread */
bool tier_flush_has_work(const struct tier_disk *t);
bool tier_flush_due(struct tier_disk *t);
/* Nothing could be written: whether to look again. */
bool tier_flush_retry_due(const struct tier_disk *t);
void tier_flush_begin(struct tier_disk *t);
/* Its group has come back from the catalogue thread. */
void tier_flush_end(struct tier_disk *t, struct group *g);
/* A sync has failed: nothing that was written since the last good one is trusted. */
void tier_sync_failed(struct tier_disk *t);
/* To the catalogue thread. */
void tier_group_send(struct tier_disk *t, struct group *g);

/* tier_disk_delete.c: on the I/O thread */
/* A delete that was asked for. */
void tier_delete_take(struct tier_disk *t, struct disk_record *rec);
/* Begins the next batch, if there is one to begin. */
void tier_deletes_send(struct tier_disk *t);
/* The batch has returned. */
void tier_deletes_end(struct tier_disk *t, struct group *g);

/* tier_disk_move.c */
/* Begins all reads of t->reads. */
void move_reads_begin(struct tier_disk *t);
/* Begins the data of a write whose record has its runs: *out, or NULL and the result says why not. */
enum tier_result move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                  struct transfer **out);
void transfer_free(struct transfer *x);

/* tier_disk_say.c: on the I/O thread */
/* The record cannot be read, and why; error: the read's -errno, or 0. */
void tier_say_unreadable(struct tier_disk *t, struct disk_record *rec, const struct tier_read *r,
                         enum tier_result result, int error);
/* error: of the write, or -ENOSPC where the file system has no room for what the budget allows. */
void tier_say_write_failed(struct tier_disk *t, int error);
void tier_say_sync_failed(struct tier_disk *t);
/* Says what is due; last: all there is to say. */
void tier_say_due(struct tier_disk *t, bool last);
/* When something will be; UINT64_MAX: nothing is in sight. */
uint64_t tier_say_due_ms(const struct tier_disk *t);

/* tier_disk_open.c */
/* tier_disk_open with an engine of the caller's choice. */
int tier_disk_open_with(const struct cs_config *config, const struct tier_disk_events *events,
                        tier_engine_open *engine_open, struct tier_disk **out, uint8_t secret[16], char *err,
                        size_t err_len);

/* tier_disk_rows.c */
/* Reads all rows into the table and the bitmaps, reports them, rebuilds the catalogue where it does not read,
 * and marks this opening in it. CS_OK, or a CS_E code and a line in err. */
int tier_rows_load(struct tier_disk *t, const struct tier_disk_events *events, char *err, size_t err_len);

/* tier_disk_rebuild.c */
/* Replaces t's catalogue; epoch: of the newest record found. CS_OK or the reason in err. */
int tier_rebuild(struct tier_disk *t, uint32_t *epoch, char *err, size_t err_len);
/* Scans all volumes for record headers; fn gets those that are whole and lie where they say. Used by
 * inspection, too. 0 or a CS_E code. */
int volumes_scan_headers(const struct volumes *v, enum cs_io_engine kind, const uint8_t store_uuid[16],
                         int (*fn)(void *ctx, const struct fmt_record *r, const void *header), void *ctx);

#endif
