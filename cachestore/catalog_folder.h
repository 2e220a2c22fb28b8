/*
 * Names of the catalogue in a store's directory, for catalog.c: the one that is used, the one that a
 * rebuild makes beside it, and the one that is put aside for that where names cannot be exchanged. Errors as
 * in catalog.h.
 */
#ifndef ISOTHERM_CACHESTORE_CATALOG_FOLDER_H
#define ISOTHERM_CACHESTORE_CATALOG_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CATALOG_FOLDER     "catalog"
#define CATALOG_FOLDER_NEW "catalog.new"
#define CATALOG_FOLDER_OLD "catalog.old"

/* The folder is there; not read_only: what a rebuild left is put in order before. */
int catalog_folder_ready(int dir_fd, bool read_only, char *err, size_t err_len);
/* The folder of a rebuild is there, empty. */
int catalog_folder_new(int dir_fd, char *err, size_t err_len);
/* A file that says how many changes had been synced. The descriptor, or -1; then the others do nothing. */
int catalog_mark_open(int dir_fd, const char *folder, bool read_only);
uint64_t catalog_mark_read(int fd); /* 0: it does not say */
void catalog_mark_write(int fd, uint64_t n_changes);
/* What the files of the one that is used take, but tables. */
struct catalog_sizes {
    uint64_t logs, others;
};
struct catalog_sizes catalog_folder_sizes(int dir_fd);

#endif
