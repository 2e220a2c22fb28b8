/*
 * libcachestore: a prefix cache for LLM serving, bounded by bytes.
 *
 * The store owns all memory that holds KV: one arena of equal pages. A live sequence takes its pages from it,
 * publishes them as it goes, and what is published is shared by reference count, found again by any later
 * prompt with the same leading token ids, written behind to disk and read back after a restart. The store
 * knows pages as opaque bytes. Where they lie on a device that is not host memory (device.h), a tier of host
 * memory stands between it and the disk, and what this header calls a page's or block's address is a name of
 * the device's.
 *
 *   cs_sequence_open(ids)      longest stored prefix found by rolling hash, proven by token ids; what is on
 *                              disk starts loading
 *   cs_sequence_poll()         ... until everything has landed, or the deadline has passed (then: the
 *                              verified part)
 *   cs_sequence_place()        positions where checkpoints are wanted, before the first step and again where
 *                              more are
 *   cs_sequence_grow()         pages for the tokens to come
 *   cs_sequence_step_begin()   window pages of the next tokens and memory of the checkpoints among them
 *   cs_sequence_step_end()     ... computed: window pages that nothing needs are free again
 *   cs_sequence_publish()      all full pages and checkpoints so far (and notes) in one call
 *   cs_sequence_close()        references dropped; what was published stays while bytes last
 *
 * A model that needs more than pages to resume (windows, recurrent state) resumes at checkpoints. The store
 * knows one as opaque bytes: state_bytes in blocks of the arena, and references to the pages of the window
 * groups that cover the last window_tokens positions. All blocks have one stride, so no kind can starve
 * another. For a dense model all of that is 0 and place, step_begin and step_end need not be called.
 *
 * A key is a chain over token ids, page by page, seeded by the store's secret, the fingerprint and the
 * tenant: another model's or another tenant's bytes are never found. The hash finds; stored ids and seeded
 * checksums prove. Any doubt is a miss: no call of this header fails because a stored byte is bad.
 *
 * inspect.h beside this one is for looking after a store.
 *
 * Threads: every function may be called from any thread unless it says otherwise; a cs_sequence belongs to
 * one thread at a time. No call waits for disk or index except cs_open, cs_flush and cs_close(_within).
 *
 * What holds for all functions, unless one says otherwise. Units: sizes are bytes, positions and lengths of
 * sequences tokens counted from their beginning. Errors: an int is CS_OK or a negative code; a call that
 * fails has changed nothing. Ownership: arguments are read during the call and not kept; what a call gives
 * out belongs to the store or the sequence. Handles are never NULL but where that is said.
 */
#ifndef ISOTHERM_CACHESTORE_H
#define ISOTHERM_CACHESTORE_H

#include "device.h" /* beside this one, wherever it is installed */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CS_OK = 0,
    CS_ENOMEM = -1,   /* host memory */
    CS_EINVAL = -2,   /* an argument this header forbids; the message of cs_open names it */
    CS_EFULL = -3,    /* no page can be freed: everything is in use by live sequences or pinned */
    CS_EIO = -4,      /* open, lock, read, write or sync failed */
    CS_EBUSY = -5,    /* another process has the store open */
    CS_EVERSION = -6, /* made by another format version */
    CS_EFORMAT = -7,  /* not a store, or its STORE file is damaged */
    CS_ENOTFOUND = -8,
    CS_ECORRUPT = -9, /* verification failed (of inspect.h only; serving turns it into a miss) */
};
/* A constant in a few words; "unknown error" for another number. */
const char *cs_strerror(int code);

struct cs_store;
struct cs_sequence;

struct cs_key {
    uint64_t lo, hi;
};

/* Who may share with whom. All zero: the one anonymous tenant. */
struct cs_tenant {
    uint8_t id[16];
};

/* What a tenant may keep of each tier, in bytes. 0: no limit of its own; CS_QUOTA_NONE: none at all. */
struct cs_quota {
    uint64_t device_bytes, host_bytes, disk_bytes;
};
#define CS_QUOTA_NONE UINT64_MAX

enum cs_log_level { CS_LOG_INFO, CS_LOG_WARN };

/* How the disk tier reads and writes. */
enum cs_io_engine {
    CS_IO_AUTO,  /* io_uring where it can be had, else the threads; a log line says which and why */
    CS_IO_URING, /* io_uring, or there is no disk tier */
    CS_IO_PREAD, /* a small pool of threads */
};

/* What the machine, and the control groups (versions 1 and 2) of this process, let it use of its memory. */
struct cs_memory {
    uint64_t available_bytes; /* now */
    bool limited_by_cgroup;
    uint64_t all_bytes; /* what there is, used or not */
};
/* Reads some small files of the system. */
struct cs_memory cs_memory_available(void);
/* Of a hundred available bytes, the most that a host tier takes. An arena in host memory is its owner's to
 * bound: it is all that sequences have, so the store does not make it smaller than it was asked for. */
#define CS_HOST_PER_100 80

struct cs_config {
    /* Geometry. A page holds page_tokens tokens in page_bytes bytes; its stride in the arena and on disk is
     * page_bytes rounded up to 4096. */
    uint32_t page_tokens;
    uint64_t page_bytes;
    uint8_t fingerprint[32]; /* whatever, if changed, makes stored KV useless */

    /* What a resumed sequence needs beside its pages; all 0: nothing, every page edge can be resumed at. */
    uint32_t window_groups; /* page tables beside the first; each of their pages is a block like any other */
    uint32_t window_tokens; /* positions a window layer reads, its own included; at least 2 with groups */
    uint64_t state_bytes;   /* opaque bytes of a checkpoint; one that the arena cannot hold is never kept, and
                               one whose header is larger than a chunk never on disk: cs_open logs either */
    uint32_t grid_tokens; /* checkpoints lie at multiples of it; a multiple of page_tokens; 0: page_tokens */
    uint32_t checkpoints_a_path;  /* K of placement: thins one path, is no capacity; 0: 8 */
    uint32_t checkpoint_grace_ms; /* a checkpoint is written to disk so long after it was published, or under
                                     pressure, so that one thinned at once costs no write; 0: 10 s;
                                     UINT32_MAX: at once */

    /* Budgets in bytes, enforced at all times. */
    uint64_t arena_bytes; /* at least one page */
    uint64_t host_bytes;  /* host tier, with a device only; no more than CS_HOST_PER_100 of what
                             cs_memory_available says at open is taken, and the log says so; over a disk at
                             least what a few spans and two  checkpoints take: what is read and written passes
                             through it, and a restore from  disk brings no more than it holds */
    uint64_t index_bytes; /* spans, token ids, notes; 0: arena_bytes / 64, at least 16 MiB, plus the same of
                             host_bytes and disk_bytes */
    const char *disk_dir; /* NULL: no disk tier */
    uint64_t disk_bytes;  /* volumes and catalogue together */
    uint64_t disk_bytes_a_day; /* of records written, so that the device endures; at most an hour's are saved
                                  up. 0: any number */
    uint32_t disk_min_tokens;  /* shorter paths are not written until they have grown; 0: all are */
    enum cs_io_engine io_engine; /* 0: CS_IO_AUTO */

    /* Of tenants without a limit of their own, each of them; 0: no limit. The anonymous tenant is one, too.
     * Of the index a tenant may have the share that its limits are of all tiers together.
     */
    struct cs_quota tenant_quota;

    /* Whose memory the arena is; NULL: host memory. Must stay valid until cs_close. */
    const struct cs_device *device;

    /* Deadline of a restore: max(restore_deadline_ms, 3 x predicted); 0 switches it off. */
    uint32_t restore_deadline_ms;

    /* Shape of the disk tier; 0 takes the default. Tests use tiny ones. */
    uint64_t span_bytes;        /* 4 MiB: a span's header and pages */
    uint64_t chunk_bytes;       /* 256 KiB */
    uint64_t extent_bytes;      /* 1 GiB: growth step of a volume, at most disk_bytes */
    uint64_t flush_bytes;       /* written between two syncs: half of what may wait, 8 to 64 MiB */
    uint32_t flush_interval_ms; /* 1000 */
    uint64_t inflight_bytes;    /* 96 MiB */

    /* With a disk tier the store opens a socket `control` in disk_dir (mode 0600, for its own user and root),
     * through which cachestore-admin looks into it and changes it while it is open, and a thread of its own
     * serves it. true: it does not. Where there can be none, a line in the log says so, and that is all. */
    bool no_control;

    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
};

/* Opens (creating it if need be) and serves at once. Where the disk tier cannot be had (directory read-only,
 * io_uring asked for and refused) the store opens without it and logs one line; a store in use (CS_EBUSY) or
 * of another format version (CS_EVERSION) is refused. err gets one line on failure. Blocks for the
 * catalogue's rows, never for payload. CS_EINVAL, CS_ENOMEM, CS_EIO (also: no random bytes), CS_EFORMAT
 * beside these; *out is NULL then. config may go afterwards, log and log_ctx must stay until cs_close: log is
 * called from any thread, with no lock held, and must not call the store. Threads started here inherit the
 * caller's signal mask. */
int cs_open(const struct cs_config *config, struct cs_store **out, char *err, size_t err_len);
/* Waits until everything published is durable or deadline_ms have passed. CS_OK, or CS_EIO with bytes still
 * pending (and going on). CS_OK at once without a disk tier. */
int cs_flush(struct cs_store *s, uint32_t deadline_ms);
/* Flushes within deadline_ms, then closes and frees: what is pending by then is not on disk. Waits for copies
 * that the device and for requests that the disk has taken on, however long, because their memory is still in
 * use. All sequences must be closed, and no other thread in a call. NULL is allowed. */
void cs_close(struct cs_store *s, uint32_t deadline_ms);
/* The same, and back at the latest after limit_ms, which should leave more than a second beyond deadline_ms.
 * CS_OK: closed and freed. CS_EIO: something has not answered in time. The store is not the caller's any
 * more; it goes on closing on a thread of its own, and what it was given (device, log_ctx, contexts of
 * notifications) must stay for as long as the process runs: a process that wants to end does so with _exit.
 * Nothing that was durable is lost by that. CS_OK without a limit where there is no memory or thread for
 * this. */
int cs_close_within(struct cs_store *s, uint32_t deadline_ms, uint32_t limit_ms);

/* ---- sequences --------------------------------------------------------------------------------------- */

/* Why a prompt's tokens were not all reused: the reason at the point where reuse ended. */
enum cs_miss {
    CS_MISS_NONE, /* all full pages of the first n - 1 tokens were reused; of a model with windows or state,
                     all before their last multiple of grid_tokens */
    CS_MISS_COLD, /* nothing stored for this prefix, not even its first page */
    CS_MISS_DIVERGED,     /* stored paths go on with other tokens, or stored history ends here */
    CS_MISS_PARTIAL_PAGE, /* the first n - 1 tokens are less than a page */
    CS_MISS_EVICTED,    /* a span that was stored here has been evicted (known while its key is remembered) */
    CS_MISS_DEADLINE,   /* the load was too slow */
    CS_MISS_CORRUPT,    /* checksum, header or token proof failed */
    CS_MISS_IO,         /* the read failed */
    CS_MISS_ARENA_FULL, /* no page to restore into */
    CS_MISS_STATE,      /* pages match further, but no checkpoint is kept closer to there ("state_missing") */
    CS_MISS_COMPUTE,    /* computing the rest again is faster than loading it ("cheaper_to_compute") */
    CS_MISS_COUNT
};
/* A constant, "cold", "diverged", ...: stable, for metrics and JSON. */
const char *cs_miss_name(enum cs_miss m);

struct cs_reuse {
    uint32_t tokens_device, tokens_host,
        tokens_disk;         /* reused, by the tier they came from; their sum is a multiple of page_tokens */
    uint32_t tokens_matched; /* stored pages found and proven; more than were reused where no checkpoint lies
                                at or close (grid_tokens) before their end */
    enum cs_miss miss;
    uint32_t restore_us; /* open to last landed byte */
};
/* Tokens reused, from any tier. */
uint32_t cs_reuse_tokens(const struct cs_reuse *reuse);

/* Finds the longest stored prefix of ids[0..n) that may be reused: at most floor((n - 1) / page_tokens)
 * pages, so that one token is left to compute logits from (n = 0: nothing is looked up). Pins it and starts
 * the disk reads. tenant NULL: the anonymous one. *out is the caller's until cs_sequence_close. CS_EINVAL (n
 * beyond 2^32 - 1, ids NULL), CS_ENOMEM; *out is NULL then. */
int cs_sequence_open(struct cs_store *s, const struct cs_tenant *tenant, const uint32_t *ids, size_t n,
                     struct cs_sequence **out);
/* 1: settled, *reuse filled (NULL is allowed), the pages of the reused tokens are in place and shared (do not
 * write them); so it stays. 0: still loading; growing, steps, captures and publishing are refused until then.
 */
int cs_sequence_poll(struct cs_sequence *q, struct cs_reuse *reuse);
/* Registers a callback for "poll would now return 1", called once from a store thread with no lock held; it
 * must not call the store. It may still be running when cs_sequence_close returns: ctx must live until
 * cs_close. One that has settled already is told at once. A second call replaces the first. */
void cs_sequence_notify(struct cs_sequence *q, void (*fn)(void *ctx), void *ctx);

/* Makes room for n_tokens in all (reused ones included). New pages are private and their bytes are undefined.
 * Evicts unused published pages as needed. CS_EINVAL: not settled, or n_tokens beyond 2^32 - 1; CS_ENOMEM;
 * CS_EFULL: nothing could be freed; the sequence is as before.
 * Published pages on their way to disk cannot be evicted: they are at most an eighth of the arena (or one
 * span), and a refusal hastens them. */
int cs_sequence_grow(struct cs_sequence *q, size_t n_tokens);
/* One pointer a page, 4096-aligned, in the order of positions; the table is valid until the next grow,
 * publish or close of this sequence, the pages until its close. */
void *const *cs_sequence_pages(const struct cs_sequence *q);
/* Of those of the reused tokens and of grow; 0 until it has settled. */
size_t cs_sequence_n_pages(const struct cs_sequence *q);

/* ---- checkpoints: of models with windows or state only --------------------------------------------------
 */

/* Kind of a boundary, for placement. The numbers are also on disk. */
enum cs_boundary_kind {
    CS_BOUNDARY_TURN = 0,   /* a role change, or the end of a reply */
    CS_BOUNDARY_SYSTEM = 1, /* behind the system message: shared by many, thinned out last */
    CS_BOUNDARY_BRANCH = 2, /* where stored paths part; the store finds these itself */
    CS_BOUNDARY_END = 3,    /* the end of the prompt */
};
struct cs_boundary {
    uint32_t position; /* tokens before it; the checkpoint lies on the grid at or before it */
    enum cs_boundary_kind kind;
};

/* Says where this sequence may be resumed later: boundaries, in any order, of the n_tokens that will be
 * computed first (the whole prompt; the end is taken at or before n_tokens - 1). The store adds the branch
 * point it has found, thins them together with the checkpoints that the path has already
 * (policy/placement.h) and remembers which are wanted. Replaces what an earlier call wanted; keeps no pointer
 * to boundaries. CS_OK, CS_ENOMEM (what was wanted before still is), CS_EINVAL (the sequence has not
 * settled). */
int cs_sequence_place(struct cs_sequence *q, const struct cs_boundary *boundaries, size_t n,
                      uint32_t n_tokens);

/* Table of a window group, cs_sequence_n_pages pointers; NULL where no page is held. Valid as
 * cs_sequence_pages, but step_begin and step_end change entries as well. */
void *const *cs_sequence_window_pages(const struct cs_sequence *q, uint32_t group);

/* A checkpoint wanted in a step: state_bytes to be written to these blocks of the arena (n_blocks of the
 * stride; none without state_bytes). */
struct cs_capture {
    uint32_t position;
    void *const *blocks;
    uint32_t n_blocks;
};
/* Before a step that computes tokens [from, to): window pages for them, memory for the checkpoints wanted at
 * positions in (from, to]. *captures is owned by the sequence and valid until step_end. A checkpoint for
 * which there is no memory is skipped and counted. CS_OK, CS_EFULL (no window pages; nothing changed),
 * CS_EINVAL (the sequence has not settled, `from` is behind `to` or behind what has been computed, grow does
 * not cover `to`), CS_ENOMEM. */
int cs_sequence_step_begin(struct cs_sequence *q, uint32_t from, uint32_t to,
                           const struct cs_capture **captures, size_t *n_captures);
/* All tokens before `to` (at most that of step_begin) have been computed: window pages stay where the next
 * token, a wanted checkpoint or the one at the last grid position needs them; the others are free. captured
 * false: the captures of this step hold nothing. */
void cs_sequence_step_end(struct cs_sequence *q, uint32_t to, bool captured);
/* A checkpoint outside a step, at the last grid position at or before what has been computed: the end of a
 * turn. Gives the blocks to write (owned by the sequence, valid until the next step_begin, capture or
 * publish: write them before that, for publish takes the checkpoint as it is). CS_ENOTFOUND: there is one
 * already, or the position is 0; CS_EFULL, CS_ENOMEM: there is no room, and it is counted; CS_EINVAL: the
 * sequence has not settled. */
int cs_sequence_capture(struct cs_sequence *q, enum cs_boundary_kind kind, const struct cs_capture **capture);

/* After poll returned 1: the blocks that hold the state of the position where the sequence resumes,
 * state_bytes in n_blocks of the stride; NULL at position 0 or without state. Copy them, then let them go:
 * until state_done (or close) they cannot be evicted. */
void *const *cs_sequence_state(const struct cs_sequence *q, uint32_t *n_blocks);
/* They have been copied; nothing happens where there are none. */
void cs_sequence_state_done(struct cs_sequence *q);

/* A note: small opaque bytes addressed by a caller's key, living and dying with the path they were published
 * with. */
struct cs_note {
    struct cs_key key;
    const void *data;
    uint32_t len; /* at most 1 MiB */
};

/* Publishes all full pages of ids[0..n): KV of those n tokens has been computed into the sequence's pages.
 * ids must extend what was opened or published before. Pages already stored for these ids are not stored
 * again. Checkpoints captured at positions up to n go with them, and the path is thinned to
 * checkpoints_a_path. Done for the device when it returns; host and disk follow in the background. Work is
 * proportional to the new bytes. Published pages become read-only. notes (n_notes) may be NULL; they are
 * copied. The same sequence may publish any number of times. CS_EINVAL: not settled, ids that do not extend
 * those, fewer or more of them than there are pages for, a note that is too long; CS_ENOMEM. What finds no
 * room in the index or on disk is no error: it is counted. */
int cs_sequence_publish(struct cs_sequence *q, const uint32_t *ids, size_t n, const struct cs_note *notes,
                        size_t n_notes);

/* What computing the first n tokens of a prompt takes here: linear_us * n + quadratic_us * n * n. Learned by
 * the caller, told as often as it likes. From then on a restore loads only as far as loading is predicted to
 * be faster; before, or with both 0, all there is. CS_EINVAL: negative or not a number. */
int cs_prefill_cost(struct cs_store *s, double linear_us, double quadratic_us);

/* Drops the sequence's references and pages and frees it. A load still in flight is abandoned safely. NULL is
 * allowed. */
void cs_sequence_close(struct cs_sequence *q);

/* ---- keys and notes ---------------------------------------------------------------------------------- */

/* The rolling key of a growing list of ids, for callers that address boundaries. A value; copy it freely. */
struct cs_chain {
    struct cs_key page_key; /* key of the last full page, or the seed */
    uint32_t n_pending;     /* ids since the last page edge */
    uint32_t page_tokens;
    uint32_t pending[32];
    uint64_t n;
};
/* The chain of no ids. tenant NULL: the anonymous one. No lock is taken: any thread. */
void cs_chain_init(const struct cs_store *s, const struct cs_tenant *tenant, struct cs_chain *c);
/* n more ids; costs one hash a page. */
void cs_chain_add(struct cs_chain *c, const uint32_t *ids, size_t n);
/* Key of the position reached: the page's key at a page edge, the boundary key otherwise. */
struct cs_key cs_chain_key(const struct cs_chain *c);

/* Copies the note into a malloc'ed buffer the caller frees. CS_ENOTFOUND, CS_ENOMEM. The latest published
 * note wins. */
int cs_note_get(struct cs_store *s, struct cs_key key, void **data, uint32_t *len);

/* ---- tenants ----------------------------------------------------------------------------------------------
 *
 * A quota says what a tenant keeps. Over it, its own least worthy records go, never another tenant's: from
 * host and disk before more is copied or written there (what finds no room is dropped and counted), from the
 * device when more pages are taken, and when what ran has ended. Pages of live sequences count, but a
 * sequence that runs gets what it needs, even from others where the arena has nothing else. What is over a
 * quota because it is in use or waits for the disk is borrowed: whoever needs room takes it first. Without
 * quotas worth alone decides, whoever owns it.
 */

struct cs_tenant_use {
    struct cs_tenant tenant;
    struct cs_quota own;   /* as set; 0: none of its own */
    struct cs_quota limit; /* in force; CS_QUOTA_NONE: no limit */
    struct cs_quota
        used;         /* whole pages of the arena, live ones included; blocks of the host; chunks on disk */
    uint64_t records; /* spans and checkpoints in the index */
    uint64_t evicted, dropped; /* by its quota, since it was known: had to go; not copied or written */
};
/* Sets the tenant's own limits, for good where there is a disk tier: they are in the catalogue before long,
 * and back when the store is opened. All 0: it has none of its own. What is over the new limits goes in the
 * background. tenant NULL: the anonymous one. CS_OK; CS_ENOMEM; CS_EFULL: no room in the index. */
int cs_quota_set(struct cs_store *s, const struct cs_tenant *tenant, const struct cs_quota *quota);
/* What it may keep and does. CS_OK; CS_ENOTFOUND: it has nothing, and no limits of its own (*out says what is
 * in force all the same). */
int cs_quota_get(struct cs_store *s, const struct cs_tenant *tenant, struct cs_tenant_use *out);
/* All tenants that have something stored, a sequence or limits of their own, in no order: *cursor is 0 before
 * the first call. 1: *out is the next one; 0: there is none. Each call takes the store's lock for one tenant;
 * of those that come or go between calls some may be missed, none comes twice. */
int cs_tenants_next(struct cs_store *s, uint64_t *cursor, struct cs_tenant_use *out);

/* ---- state, for /cache, /metrics and tests ------------------------------------------------------------ */

/* Why something left a tier. */
enum cs_gone {
    CS_GONE_EVICTED, /* for room in this tier */
    CS_GONE_QUOTA,   /* for its tenant's quota of this tier */
    CS_GONE_INDEX,   /* for room in the index: out of every tier */
    CS_GONE_THINNED, /* a checkpoint that its path can do without */
    CS_GONE_FAILED,  /* reading or copying it failed or was given up; here it never landed, or it is on disk
                        and cannot be read */
    CS_GONE_DAMAGED, /* checksum, header or token proof failed */
    CS_GONE_CUT,     /* pages before it are lost, and its span ends there now */
    CS_GONE_DELETED, /* by who looks after the store (cs_inspect_evict) */
    CS_GONE_COUNT
};
/* A constant, "evicted", "index_full", ...: stable, for metrics and JSON. */
const char *cs_gone_name(enum cs_gone g);

/* stored = alive + sum of gone[]. stored: since open, and what was on disk then. */
struct cs_kept {
    uint64_t stored, alive, gone[CS_GONE_COUNT];
};

/* Time that a restore took over the time it was predicted to take: bucket i counts those of at most
 * cs_ratio_percent(i), and more than the one before; the last one all above. */
enum { CS_RATIO_BUCKETS = 12 };
/* i < CS_RATIO_BUCKETS - 1. */
unsigned cs_ratio_percent(unsigned i);

struct cs_stats {
    /* device */
    uint64_t arena_bytes, page_stride, pages_total, pages_free, pages_live,
        pages_cached;           /* total = free + live + cached; live: referenced by a sequence */
    uint64_t checkpoint_blocks; /* of pages_cached and pages_live: held by checkpoints */
    /* index: what is in any tier, or has something behind it that is */
    uint64_t spans, checkpoints, notes, index_bytes, index_budget;
    uint64_t tenants; /* that have something stored, a sequence or limits of their own */
    /* host: of a device that is not host memory */
    uint64_t host_bytes, host_used_bytes; /* both in whole blocks of page_stride */
    /* disk */
    bool disk_on, draining;  /* draining: cs_drain, nothing new is written */
    const char *disk_engine; /* "uring", "pread"; "off" */
    uint64_t disk_bytes, disk_budget, disk_spans, disk_checkpoints,
        pending_bytes;        /* disk_bytes: all on disk, catalogue included */
    uint64_t records_foreign; /* rows of another fingerprint: kept, counted in the budget, never served */
    /* totals since open */
    uint64_t lookups, hits_full, hits_partial,
        misses[CS_MISS_COUNT]; /* lookups = sum of misses[] (NONE is a full hit) */
    /* tokens_looked_up = tokens_device + _host + _disk + sum of tokens_missed[]: those not reused, by the
     * miss of their look-up. NONE: what is computed even at a full hit. */
    uint64_t tokens_looked_up, tokens_device, tokens_host, tokens_disk, tokens_missed[CS_MISS_COUNT];
    /* Restores that waited for the disk, by how the wait ended; all = sum of the other five + those that wait
     * now. in_time: all landed and a time had been predicted; unpredicted: none had, nothing being learned;
     * failed: a read; abandoned: closed before. predicted_us and taken_us are sums over those in time,
     * restores_ratio[] counts each of them, and ratio_percent is the sum of their ratios. */
    uint64_t restores_disk, restores_in_time, restores_unpredicted, restores_deadline, restores_failed,
        restores_abandoned, restores_predicted_us, restores_taken_us, restores_ratio_percent,
        restores_ratio[CS_RATIO_BUCKETS];
    uint64_t publishes, publish_spans, publish_pages, publish_duplicate_pages, publish_checkpoints;
    uint64_t captures, thinned_checkpoints, dropped_checkpoints; /* dropped: no memory when it was wanted */
    uint64_t evicted_device_checkpoints, evicted_host_checkpoints, evicted_disk_checkpoints;
    uint64_t spans_written, checkpoints_written, bytes_written, spans_read, checkpoints_read, bytes_read;
    uint64_t syncs, catalog_batches, catalog_rows;
    uint64_t copies, bytes_to_host, bytes_to_device, /* copies: batches given to the device */
        copy_errors, corrupt_host; /* of batches; of reads from the host, by disk or device */
    uint64_t evicted_device_spans, evicted_host_spans, evicted_disk_spans, dropped_undurable,
        dropped_queue_full, dropped_index_full, dropped_disk_full, dropped_endurance;
    uint64_t dropped_quota, evicted_quota; /* spans and checkpoints that their tenant's quota kept from host
                                              or disk; of those evicted, how many for it */
    uint64_t dropped_notes;                /* not written to disk: the catalogue's share was full */
    uint64_t corrupt_header, corrupt_tokens, corrupt_payload, io_errors, quarantined;
    uint64_t sqes, submissions;
    /* Pages of spans and blocks of checkpoints, on their way there included; a block that several checkpoints
     * share counts for each. */
    struct cs_kept kept_device, kept_host;
    struct cs_kept kept_disk_spans, kept_disk_checkpoints; /* durable records */
};
/* A snapshot; totals never fall. Takes the store's lock for as long as copying it takes. */
void cs_stats_get(const struct cs_store *s, struct cs_stats *out);

/* How long things took: count[i] of them at least 2^(i-1) and less than 2^i microseconds; all longer ones are
 * in the last. */
enum { CS_HISTOGRAM_BUCKETS = 26 };
struct cs_histogram {
    uint64_t count[CS_HISTOGRAM_BUCKETS], sum_us;
};
struct cs_latencies {
    struct cs_histogram publish;           /* cs_sequence_publish, all of the call */
    struct cs_histogram restore;           /* open to settled, where something had to be loaded */
    struct cs_histogram read, write, sync; /* requests of the disk tier, from the system's taking them on */
};
/* Since open. Takes no lock: a call under way may be in a count and not in a sum yet. */
void cs_latencies_get(const struct cs_store *s, struct cs_latencies *out);

/* One of all that cs_stats and cs_latencies hold, under the name it has there. */
struct cs_figure {
    const char *name;
    uint64_t value;   /* where the other two are NULL */
    const char *text; /* a word */
    const struct cs_histogram *histogram;
};
/* Calls fn for each; a non-zero return stops and is returned. What fn is given is valid during the call. */
int cs_figures_get(const struct cs_store *s, int (*fn)(void *ctx, const struct cs_figure *f), void *ctx);

/* Nothing new goes to the host or to disk from now on (on), and what is waiting goes there without delay:
 * once cs_stats.pending_bytes is 0, nothing that was published before is lost if the process ends. Requests
 * are served as ever, from what there is. Off: what was published meanwhile follows. Any thread; does not
 * wait. Nothing happens without a disk tier. */
void cs_drain(struct cs_store *s, bool on);

#ifdef __cplusplus
}
#endif

#endif
