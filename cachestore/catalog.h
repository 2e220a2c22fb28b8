/*
 * The catalogue: which records a store has, in RocksDB. Nothing outside catalog.c knows RocksDB.
 *
 * Column family `record`: spans and checkpoints (a row of formats/record.h, with the notes that came with it)
 * and notes that came later (formats/note_row.h), keyed by kind, then the complement of the record's sequence
 * and nonce big-endian, so that a scan runs from new to old; behind them, in a key of notes, those of the row
 * itself. Column family `meta`: the
 * times of last use, pins, quotas, and one row that says whose catalogue this is and how often it was opened;
 * that row is written last when a catalogue is made or rebuilt, so one that was cut short is recognised by
 * its absence.
 *
 * Every row can be made again from the volumes (notes, use times, pins and quotas excepted), so any failure
 * to open or read is answered with CS_ECORRUPT and the caller rebuilds.
 *
 * Threads: one thread at a time: the opener, then the tier's catalogue thread.
 */
#ifndef ISOTHERM_CACHESTORE_CATALOG_H
#define ISOTHERM_CACHESTORE_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cachestore/tier_disk.h"

struct catalog;

/* Opens the folder `catalog` of the directory behind dir_fd, which must stay open longer: wherever the
 * directory is moved, and whatever the working directory becomes, it is this one. `share_bytes` sizes its
 * buffers. A new one is made when there is none (not when read_only). CS_OK, CS_ECORRUPT, CS_ENOMEM, CS_EIO
 * (no room, descriptors, memory or rights: the files are not to blame); err has one line. */
int catalog_open(int dir_fd, bool read_only, uint64_t share_bytes, struct catalog **out, char *err,
                 size_t err_len);
/* What the file system must have free before the catalogue is opened or written: an open that finds no room
 * fails, and so does the store's. */
uint64_t catalog_reserve_bytes(uint64_t share_bytes);
bool catalog_has_room(int dir_fd, uint64_t bytes);
/* Writes memtables out, so that the next open has no log to replay, and closes. */
void catalog_close(struct catalog *c);
/* Removes DIR/catalog, and what a rebuild left beside it. 0 or -errno. */
int catalog_remove(int dir_fd);
/* A rebuild: an empty one is made beside the one that is there (and may be open), filled and closed, and then
 * takes its place in one step, after which the other one is removed (open or not, it must not be used any
 * more); or it is removed itself. A crash at any moment leaves one of the two, whole, for catalog_open to
 * find. Errors of the first as catalog_open; of the others 0 or -errno. */
int catalog_open_new(int dir_fd, uint64_t share_bytes, struct catalog **out, char *err, size_t err_len);
/* What the new one takes at most at any time with so many rows that have so many bytes as values: what is not
 * synced is in no log, and nothing is compacted. */
uint64_t catalog_new_bytes(uint64_t n_rows, uint64_t value_bytes);
int catalog_replace(int dir_fd);
int catalog_remove_new(int dir_fd);
/* Bytes its files take in the file system. */
uint64_t catalog_disk_bytes(int dir_fd);
/* Bytes they may take for a while with the rows that are in it now: RocksDB writes what is in a log, and what
 * it compacts, once more before it removes the old files. */
uint64_t catalog_most_bytes(const struct catalog *c, int dir_fd);

/* A quota's row: three numbers of 8 bytes, little-endian, of device, host and disk. False: these bytes are
 * none. */
enum { CATALOG_QUOTA_BYTES = 24 };
struct record_id catalog_quota_id(const struct cs_tenant *tenant);
struct cs_tenant catalog_quota_tenant(struct record_id id);
void catalog_quota_encode(const struct cs_quota *quota, uint8_t value[CATALOG_QUOTA_BYTES]);
bool catalog_quota_decode(const void *value, size_t len, struct cs_quota *quota);
/* All limits of a quota are 0: it has no row. */
bool catalog_quota_is_none(const struct cs_quota *quota);

/* The row about the store itself. epoch: how often it was opened. CS_OK, CS_ENOTFOUND, CS_ECORRUPT. */
int catalog_store_get(struct catalog *c, uint8_t uuid[16], uint32_t *epoch);
/* Changes that had been synced when it was used last, and are not there any more: its log has lost its end. 0
 * where that is not known. */
uint64_t catalog_missing(const struct catalog *c);
/* The budget with which it was opened last. CS_OK, CS_ENOTFOUND, CS_ECORRUPT. */
int catalog_budget_get(struct catalog *c, uint64_t *bytes);

/* CATALOG_QUOTA: limits of a tenant; its id stands in the place of the record's. */
enum catalog_kind { CATALOG_RECORD, CATALOG_NOTES, CATALOG_USED, CATALOG_PINNED, CATALOG_QUOTA };
struct catalog_row {
    struct record_id id;    /* of the record */
    struct record_id notes; /* CATALOG_NOTES: of the row */
    const void *value;      /* 8-byte aligned */
    size_t len;
};
typedef int (*catalog_row_fn)(void *ctx, const struct catalog_row *row);
/* Calls fn for each row of a kind, newest record first; the row is valid during the call. CS_OK,
 * CS_ECORRUPT, CS_ENOMEM, or what fn returned, if not 0: then the scan stops. */
int catalog_scan(struct catalog *c, enum catalog_kind kind, catalog_row_fn fn, void *ctx);

/* The row of one record: *value is malloc's, *len bytes. CS_OK, CS_ENOTFOUND, CS_ECORRUPT, CS_ENOMEM. */
int catalog_get(struct catalog *c, struct record_id id, void **value, size_t *len);

/* One batch, applied whole or not at all. The calls before the commit cannot fail. */
void catalog_put(struct catalog *c, enum catalog_kind kind, struct record_id id, const void *value,
                 size_t len);
void catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id);
void catalog_put_notes(struct catalog *c, struct record_id owner, struct record_id id, const void *value,
                       size_t len);
void catalog_delete_notes(struct catalog *c, struct record_id owner, struct record_id id);
/* All rows of notes of one record. */
void catalog_delete_notes_of(struct catalog *c, struct record_id owner);
void catalog_store_put(struct catalog *c, const uint8_t uuid[16], uint32_t epoch);
void catalog_budget_put(struct catalog *c, uint64_t bytes);
/* sync: the log is synced before it returns. CS_OK or CS_EIO; the batch is empty afterwards either way. */
int catalog_commit(struct catalog *c, bool sync);
unsigned catalog_batch_rows(const struct catalog *c);

#endif
