/*
 * A directory of its own for tests over the real disk tier, and child processes to kill: fresh images of the
 * test program, for RocksDB's threads do not survive a fork.
 */
#ifndef ISOTHERM_TESTS_CACHESTORE_DISK_DIR_H
#define ISOTHERM_TESTS_CACHESTORE_DISK_DIR_H

#include "tests/cachestore/harness.h"

#include <sys/types.h>

enum { FLUSH_MS = 30000 };

extern char disk_dir[256];
void disk_dir_make(void);
void disk_dir_remove(void);
void disk_dir_remove_tree(const char *path);

/* The child works in disk_dir; main finds out with disk_child_is what it is to do (NULL: it is no child). */
pid_t disk_child_start(const char *what, uint32_t number, int fd);
const char *disk_child_is(int argc, char **argv, uint32_t *number, int *fd);
/* Lets a child go on until it has written kill_after numbers, and kills it. Returns the last one. */
uint32_t disk_child_kill(const char *what, uint32_t first, uint32_t kill_after);

#endif
