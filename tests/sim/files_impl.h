/* Inside of the simulated file system: its state (files.c), and the calls of the system on it (calls.c). */
#ifndef ISOTHERM_TESTS_SIM_FILES_IMPL_H
#define ISOTHERM_TESTS_SIM_FILES_IMPL_H

#include "tests/sim/sim.h"

enum { N_NODES = 24, NODE_SECTORS = 1024, N_NAMES = 20, NAME_BYTES = 24, N_SNAPSHOTS = 16 };
enum { N_FDS = 64, FIRST_FD = 1000 };
enum held { HELD_HOLE, HELD_ZEROS, HELD_DATA };

struct node {
    bool used, is_socket;
    uint64_t bytes, durable_bytes;
    uint8_t held[NODE_SECTORS], old_held[NODE_SECTORS];
    bool dirty[NODE_SECTORS],
        stuck[NODE_SECTORS]; /* stuck: a sync has failed, and no later one tries again */
    struct sector_origin origin[NODE_SECTORS], old_origin[NODE_SECTORS];
    uint32_t filled[NODE_SECTORS]; /* bytes from the sector's beginning that its last writer wrote */
    uint32_t n_sectors_used;       /* no sector from here on was ever touched */
    uint8_t *data, *old;
};

struct name {
    char text[NAME_BYTES]; /* empty: none */
    int node;
};
struct directory {
    struct name names[N_NAMES];
    bool has_catalog;
};

struct open_file {
    bool used, writable, directory;
    int node; /* of a file */
    uint64_t at;
    bool locked;
};

extern struct node fs_nodes[N_NODES];
extern struct directory fs_now;
extern bool fs_exists; /* the directory */
extern struct open_file fs_open_files[N_FDS];

int fs_refuse(int code); /* sets errno; -1 */
struct open_file *fs_of(int fd);
struct node *fs_node_of(int fd); /* NULL: a directory */
int fs_fd_new(struct open_file file);
struct name *fs_find_name(const char *text);
struct name *fs_add_name(const char *text);
void fs_directory_changed(void);
void fs_directory_sync(void);
int fs_node_new(void);
void fs_set_held(struct node *f, uint64_t sector, enum held held);
/* What the sector holds may be lost from here on. */
void fs_make_dirty(struct node *f, uint64_t sector);

#endif
