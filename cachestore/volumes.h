/*
 * The volume files of a store: volume.000, volume.001, ... in its directory, cut into chunks. Finds chunks
 * for a record, grows the files by extents while the limit allows, gives room back to the file system when it
 * falls.
 *
 * Invariant: the bytes behind all volumes (used, free and being written) are at most the limit, or everything
 * that is not used has been given back already.
 *
 * Threads: none of its own; one thread at a time (tier_disk's opener, then its I/O thread).
 */
#ifndef ISOTHERM_CACHESTORE_VOLUMES_H
#define ISOTHERM_CACHESTORE_VOLUMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cachestore/chunks.h"
#include "formats/record.h"

/* Extents a volume grows to before the next one is begun. */
enum { VOLUME_EXTENTS = 64, VOLUME_COUNT_MAX = 1000 };

struct volume {
    int fd; /* -1: the file is missing (its records are misses) */
    struct chunks chunks;
    bool dirty; /* written since it was last synced */
};

struct volumes {
    int dir_fd;
    uint32_t chunk_bytes, extent_chunks;
    uint64_t limit_bytes;
    uint64_t reserve_bytes; /* of the file system, left to others by growth */
    bool read_only;
    bool direct; /* no file system has refused O_DIRECT so far */
    struct volume *volume;
    uint32_t n_volumes;
    /* Where set, told how many chunks a scan of headers has looked at; what it returns ends the scan if not
     * 0. */
    int (*scanned)(void *ctx, uint64_t n_chunks, uint64_t n_all);
    void *scanned_ctx;
};

/* Opens what is there; dir_fd stays the caller's. 0 or -errno. */
int volumes_open(struct volumes *v, int dir_fd, uint32_t chunk_bytes, uint64_t extent_bytes, bool read_only);
void volumes_close(struct volumes *v);
/* A descriptor of one volume for buffered writes, the caller's to close; where v itself was opened read_only.
 * -errno. */
int volumes_open_buffered(const struct volumes *v, uint32_t index);
/* Removes all volume files of the directory. 0 or -errno. */
int volumes_remove(int dir_fd);

/* Marks a record's chunks used. false, with nothing changed, when one is outside the files or used already.
 */
bool volumes_claim(struct volumes *v, const struct fmt_record_run *runs, uint32_t n_runs);
void volumes_release(struct volumes *v, const struct fmt_record_run *runs, uint32_t n_runs);
/* The chunk is there, nobody's, and has room behind it. */
bool volumes_is_free(const struct volumes *v, uint32_t volume, uint32_t chunk);
/* To be called once after all claims at open: finds out which free chunks have room behind them. */
int volumes_settle(struct volumes *v);

/* Finds n_chunks, in one run where possible, and marks them used. runs has room for n_chunks entries. 0,
 * -ENOSPC (limit or file system), or another -errno. */
int volumes_alloc(struct volumes *v, uint32_t n_chunks, struct fmt_record_run *runs, uint32_t *n_runs);
/* Sets the limit and gives back room beyond it. */
void volumes_set_limit(struct volumes *v, uint64_t limit_bytes);
/* Gives back free room beyond the limit; after releases while the volumes are over it. */
void volumes_trim(struct volumes *v);

/* Gives room behind every chunk that is not used back to the file system, as far as that can. */
void volumes_empty_unused(struct volumes *v);

uint64_t volumes_used_bytes(const struct volumes *v);
uint64_t volumes_backed_bytes(const struct volumes *v);
/* What the file system says that all of them take. */
uint64_t volumes_file_bytes(const struct volumes *v);

#endif
