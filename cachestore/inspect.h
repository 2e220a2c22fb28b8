/*
 * Looking after a store of libcachestore: what is in it, whether it is whole, what is to go or to stay.
 * cachestore-admin is built on this header alone; an engine needs none of it.
 *
 * Of a store that nobody has open (cs_inspect_open) these functions hold the lock until cs_inspect_close; one
 * that a process has open (cs_inspect_connect) they ask through its socket, which costs it no more than a few
 * microseconds under its lock at a time. They read files and wait for the disk, or for the process.
 *
 * What cachestore.h says of units, errors and ownership holds here, too. A cs_inspect belongs to one thread
 * at a time. Where a call has err or why, it gets one line when the call fails, cut to the length given; text
 * of the store's files in it may hold any character. Callbacks run in the calling thread, what they are given
 * is valid during the call, and they must not call functions that change the store.
 */
#ifndef ISOTHERM_CACHESTORE_INSPECT_H
#define ISOTHERM_CACHESTORE_INSPECT_H

#include "cachestore.h" /* beside this one, wherever it is installed */

#ifdef __cplusplus
extern "C" {
#endif

struct cs_inspect;
struct cs_store_info {
    uint32_t format_version;
    char uuid[37];
    bool catalog_ok; /* false: missing or damaged; what follows was read from the records' headers */
    uint64_t disk_bytes, volume_bytes, catalog_bytes, chunk_bytes, n_spans, n_checkpoints, n_notes;
    uint64_t payload_bytes, checkpoint_bytes; /* of pages of spans; of blocks of checkpoints */
    /* Of a store that is in use. n_spans and n_checkpoints count what is in memory only as well, n_notes is
     * not known. */
    bool live, draining;
    uint32_t pid;
    uint64_t n_foreign;      /* records of other models than the process's */
    uint8_t fingerprint[32]; /* the process's model */
};
struct cs_span_info {
    bool checkpoint; /* state at first_position, child of the span that holds the page before it; n_pages: its
                        blocks; n_tokens: 0 */
    enum cs_boundary_kind boundary; /* of a checkpoint: what it serves */
    uint64_t record_id[2];          /* nonce, sequence */
    uint64_t parent_record_id[2];   /* the span that holds the page before; zero at a root or where it is not
                                       stored */
    uint32_t depth;                 /* stored spans above it */
    struct cs_key key, parent;      /* parent: key of the page before the span's first page; zero at a root */
    uint8_t fingerprint[32];
    struct cs_tenant tenant;
    uint32_t first_position, n_tokens, n_pages;
    uint64_t payload_bytes, disk_bytes;
    int64_t created_unix, used_unix;
    bool pinned;  /* not evicted by the store */
    bool on_disk; /* of a store that is in use it may be false: the record_id is then a number of this
                     inspection, with nonce 0, and disk_bytes is 0 */
    uint32_t n_device, n_host; /* of a store that is in use: pages or blocks that lie there */
};
/* Takes the store's lock: CS_EBUSY when it is in use. CS_ENOTFOUND (no such directory), CS_EFORMAT,
 * CS_EVERSION, CS_EIO, CS_ENOMEM; err gets one line. Reads only; a damaged catalogue is not an error
 * (catalog_ok). *out is the caller's until cs_inspect_close, NULL on failure. */
int cs_inspect_open(const char *dir, struct cs_inspect **out, char *err, size_t err_len);
void cs_inspect_close(struct cs_inspect *i); /* gives the lock back; NULL is allowed */
/* The same of a store that a process has open, through its control socket: for the user whose process it is,
 * and root. CS_ENOTFOUND (no such directory or socket, or nobody answers), CS_EVERSION (another version of
 * the store or of the socket's protocol), CS_EFORMAT, CS_EIO, CS_ENOMEM. What is listed is what was there
 * when it was first asked for; spans that come or go while that is read may be missing. */
int cs_inspect_connect(const char *dir, struct cs_inspect **out, char *err, size_t err_len);
/* The process that has the store open; 0: none, it is this one's. */
uint32_t cs_inspect_process(const struct cs_inspect *i);
/* What was read when it was opened, or of a store in use when its spans were. CS_OK; CS_EIO, CS_ENOMEM:
 * spans cannot be read. */
int cs_inspect_info(struct cs_inspect *i, struct cs_store_info *out);
/* Calls fn for each span and checkpoint, path by path: a parent comes before its children, and they directly
 * behind it with theirs, its checkpoints first; checkpoints have none. A non-zero return of fn stops and is
 * returned. */
int cs_inspect_spans(struct cs_inspect *i, int (*fn)(void *ctx, const struct cs_span_info *span), void *ctx);
/* Reads and checks one of them whole: CS_OK (also of what is on no disk), CS_ECORRUPT (why has one line),
 * CS_ENOTFOUND (of a store in use: it is gone since), CS_EIO or CS_ENOMEM. */
int cs_inspect_verify(struct cs_inspect *i, const struct cs_span_info *span, char *why, size_t why_len);

/* What a record says of itself beyond cs_span_info, and where it lies. */
struct cs_record_run {
    uint32_t volume, first_chunk, n_chunks;
};
struct cs_record_note {
    struct cs_key key;
    uint32_t bytes;
};
struct cs_record {
    uint32_t page_tokens, header_bytes;
    uint64_t page_bytes, purge_epoch;
    uint32_t *ids; /* of all pages; of a checkpoint those of the page before it */
    size_t n_ids;
    struct cs_record_run *runs; /* chunks in the volumes; the header and the pages fill them in order */
    size_t n_runs;
    struct cs_record_note *notes; /* none where the catalogue cannot be read */
    size_t n_notes;
};
/* Reads them from the header and the catalogue. *out is the caller's, for cs_record_free. CS_OK, CS_ECORRUPT,
 * CS_EIO, CS_ENOTFOUND, CS_ENOMEM; *out is NULL on failure. */
int cs_inspect_record(struct cs_inspect *i, const struct cs_span_info *span, struct cs_record **out,
                      char *why, size_t why_len);
void cs_record_free(struct cs_record *record); /* NULL is allowed */

/* Which record a key belongs to: that of a span or a checkpoint, of any page, or a boundary key whose page is
 * stored. *position: tokens before the place it names. CS_OK, CS_ENOTFOUND, CS_EIO, CS_ENOMEM. Reads every
 * record's ids where the key is none of a span or checkpoint. */
int cs_inspect_find(struct cs_inspect *i, struct cs_key key, struct cs_span_info *span, uint32_t *position);

/* Why a path is stored so far and no further. */
enum cs_explain_end {
    CS_EXPLAIN_WHOLE,        /* all full pages are there */
    CS_EXPLAIN_PARTIAL_PAGE, /* the ids are less than a page */
    CS_EXPLAIN_NOTHING,      /* no path of this fingerprint and tenant begins with the first id */
    CS_EXPLAIN_DIVERGED,     /* stored paths go on with another id at differs_at */
    CS_EXPLAIN_ENDS,         /* nothing is stored behind it */
    CS_EXPLAIN_DAMAGED,      /* the record that goes on fails its checks: why */
};
struct cs_explanation {
    uint32_t page_tokens;
    bool needs_checkpoint; /* the store has checkpoints of this fingerprint: it resumes at those only */
    uint32_t n_stored;     /* tokens: whole pages found, proven and verified */
    uint32_t n_reusable;   /* of those, what a prompt of these ids could skip: one token is left to compute */
    uint32_t checkpoint_position; /* the deepest that serves; 0: none */
    enum cs_explain_end end;
    uint32_t differs_at;
    char why[160];
};
/* Follows ids[0..n) through the store as a request would, by keys, and proves by ids and checksums. tenant
 * NULL: the anonymous one. fn (may be NULL) gets the spans on the way with the number of tokens used of each,
 * a span's checkpoints behind it with 0; a non-zero return stops and is returned. CS_OK, CS_EINVAL (n),
 * CS_ENOTFOUND (nothing of this fingerprint), CS_EIO, CS_ENOMEM. */
int cs_inspect_explain(struct cs_inspect *i, const uint8_t fingerprint[32], const struct cs_tenant *tenant,
                       const uint32_t *ids, size_t n,
                       int (*fn)(void *ctx, const struct cs_span_info *span, uint32_t n_tokens), void *ctx,
                       struct cs_explanation *out);

struct cs_evicted {
    uint64_t spans, checkpoints, disk_bytes;
    uint64_t
        leftovers; /* headers of records that had been evicted before, which a rebuild would have found */
    uint64_t remaining; /* of a store in use: what running requests have stored again meanwhile */
};
/* Deletes what wanted() says non-zero to (records and leftovers), and with below whatever is stored below it
 * and cannot be reached without, so that no rebuild brings it back: headers are zeroed and synced before rows
 * go, and the purge epoch rises. Pages stay in free chunks until they are written over. A process that has
 * the store open deletes it from every tier: rows go first there, and headers before their chunks are used
 * again. CS_OK; CS_EIO, CS_ENOMEM, CS_EBUSY (of a store in use: some are read or written without end): not
 * all of it is done, and doing it again goes on; nothing is done where *out counts nothing. After it the
 * inspection can only be closed. */
int cs_inspect_evict(struct cs_inspect *i, int (*wanted)(void *ctx, const struct cs_span_info *span),
                     void *ctx, bool below, struct cs_evicted *out, char *err, size_t err_len);

/* Pins a span or checkpoint, or ends that. A store that opens with the record's fingerprint keeps it and what
 * lies above it on disk, as long as all pins together take no more than half of disk_bytes and index_bytes:
 * those longest unused are let go then, until a later open has room again. A pin ends with its record:
 * quarantined, deleted, or its catalogue lost. CS_OK, CS_ENOTFOUND, CS_ECORRUPT (no catalogue that can be
 * read), CS_EIO, CS_ENOMEM. Of a store in use it holds at once: CS_EFULL where it would be one pin too many,
 * CS_EBUSY where it is on no disk yet, or of another model than the process. After it the inspection can only
 * be closed. */
int cs_inspect_pin(struct cs_inspect *i, const struct cs_span_info *span, bool pinned, char *err,
                   size_t err_len);

/* Sets what cs_quota_set does; all 0: it has none of its own. The store that has it open enforces it, or the
 * one that opens it next. CS_OK, CS_EFULL (as there), CS_ECORRUPT (no catalogue that can be read), CS_EIO,
 * CS_ENOMEM. After it the inspection can only be closed. */
int cs_inspect_quota_set(struct cs_inspect *i, const struct cs_tenant *tenant, const struct cs_quota *quota,
                         char *err, size_t err_len);
/* Of a store that nobody has open: calls fn for each tenant that has limits of its own, in no order. A
 * non-zero return stops and is returned. CS_OK (none without a catalogue that can be read), CS_EIO,
 * CS_ENOMEM. */
int cs_inspect_quotas(struct cs_inspect *i,
                      int (*fn)(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota),
                      void *ctx);

/* What cs_tenants_next tells of each tenant, in no order; of a store that nobody has open what is on disk and
 * limits of their own. A non-zero return of fn stops and is returned. CS_OK, CS_EIO, CS_ENOMEM. */
int cs_inspect_tenants(struct cs_inspect *i, int (*fn)(void *ctx, const struct cs_tenant_use *use),
                       void *ctx);

/* ---- only of a store in use; CS_EINVAL of another */

/* cs_figures_get of the process. */
int cs_inspect_figures(struct cs_inspect *i, int (*fn)(void *ctx, const struct cs_figure *f), void *ctx);
struct cs_pending {
    uint64_t bytes; /* published and not on disk yet */
    bool draining;
};
/* cs_drain of the process. CS_OK, CS_EIO. */
int cs_inspect_drain(struct cs_inspect *i, bool on);
/* What is left for it to write, as of now. CS_OK, CS_EIO. */
int cs_inspect_pending(struct cs_inspect *i, struct cs_pending *out);

/* ---- only of a store that nobody has open; CS_EBUSY of another */

struct cs_rebuilt {
    uint64_t records, dropped; /* dropped: headers of records whose chunks newer ones have */
};
/* Replaces the catalogue by one made from the record headers in the volumes, made beside it and put in its
 * place once it is whole: what fails changes nothing. Notes, times of use, pins and quotas are taken over
 * from the old one as far as it reads; records that were evicted, not those that were deleted deliberately,
 * may be found again. CS_OK, CS_EIO, CS_ENOMEM. After it the inspection can only be closed. */
int cs_inspect_rebuild(struct cs_inspect *i, struct cs_rebuilt *out, char *err, size_t err_len);

/* Calls that look through the volumes (cs_inspect_evict and _rebuild; _find without a catalogue) tell fn how
 * far they are, from the beginning again where they do so twice. A non-zero return ends the call while
 * nothing has been changed, and is returned; afterwards fn is not called. NULL: nobody is told. */
void cs_inspect_progress(struct cs_inspect *i, int (*fn)(void *ctx, uint64_t done_bytes, uint64_t all_bytes),
                         void *ctx);

/* A folder of this name in a store's directory is for whoever holds the store's lock, to keep files of its
 * own there for a while. Opening the store, by any way, removes what somebody killed has left of it. */
#define CS_SCRATCH_FOLDER "scratch"
/* Removes it at once. Of a store that a process has open: nothing is done. */
void cs_inspect_sweep(struct cs_inspect *i);

/* Makes a new, empty store in dir (made if need be). chunk_bytes: a power of two from 4096 to 2^30; 0: 256
 * KiB. replace: in place of the store that is there, damaged or not, whose contents are gone for good. CS_OK;
 * CS_EINVAL (chunk_bytes; there is a store and replace is false), CS_EFORMAT (other files are there; nothing
 * is touched), CS_EBUSY, CS_EIO. Any thread; waits for the disk. */
int cs_format(const char *dir, uint64_t chunk_bytes, bool replace, char *err, size_t err_len);

#ifdef __cplusplus
}
#endif

#endif
