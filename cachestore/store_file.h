/*
 * The STORE file: what makes a directory a store. A few lines of text, mode 0600, written by write-new,
 * fsync, rename, fsync of the directory, so that it is there whole or not at all. A damaged one is refused,
 * never replaced: without its secret and UUID nothing else in the directory can be proven.
 *
 * The store's lock is a flock on the directory itself, which a rename of a file inside cannot slip from
 * under.
 */
#ifndef ISOTHERM_CACHESTORE_STORE_FILE_H
#define ISOTHERM_CACHESTORE_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_FORMAT_VERSION = 2 };

struct store_file {
    uint8_t uuid[16];
    uint8_t secret[16];
    uint32_t chunk_bytes;
    uint64_t purge_epoch;
};

/* Opens dir (making it, mode 0700, when `create`) and takes its lock. The descriptor holds the lock until it
 * is closed. CS_OK, CS_EBUSY, CS_EIO, CS_ENOTFOUND; err has one line. */
int store_dir_lock(const char *dir, bool create, int *dir_fd, char *err, size_t err_len);
/* CS_OK, CS_ENOTFOUND (no STORE file), CS_EVERSION, CS_EFORMAT, CS_EIO. */
int store_file_read(int dir_fd, struct store_file *out, char *err, size_t err_len);
/* Makes a new one with a fresh UUID and secret. CS_EFORMAT where the directory already holds other files. */
int store_file_create(int dir_fd, uint32_t chunk_bytes, struct store_file *out, char *err, size_t err_len);
/* Replaces the one that is there. CS_OK or CS_EIO. */
int store_file_update(int dir_fd, const struct store_file *s, char *err, size_t err_len);
/* Removes the scratch folder (inspect.h), files and one more level of folders. The lock is held. */
void store_scratch_remove(int dir_fd);
void store_uuid_text(const uint8_t uuid[16], char out[37]);

#endif
