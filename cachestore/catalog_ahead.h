/*
 * Reads the catalogue's files into the page cache ahead of the scans of an open. RocksDB reads a few
 * megabytes ahead and waits for them; a store with many records after a restart is bound by that, so the disk
 * works here while rows are decoded there. A hint: nothing depends on it, and nothing fails.
 */
#ifndef ISOTHERM_CACHESTORE_CATALOG_AHEAD_H
#define ISOTHERM_CACHESTORE_CATALOG_AHEAD_H

struct catalog_ahead;

/* Begins, in a thread of its own, with the newest file (scans run from new to old). NULL: there is nothing to
 * read, or no thread. */
struct catalog_ahead *catalog_ahead_start(int dir_fd);
/* Ends it, done or not. NULL is allowed. */
void catalog_ahead_stop(struct catalog_ahead *a);

#endif
