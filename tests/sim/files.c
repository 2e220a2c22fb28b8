/*
 * The file system of a simulated machine: one directory, SIM_DIRECTORY, with files of at most a few MiB.
 *
 * A file is an array of sectors of 4 KiB. What was written since the last sync is volatile: the sector keeps
 * what it held before, and a power cut may bring that back, for each sector by itself. So do sizes, and
 * changes of the directory, of which the first few survive a power cut and the others do not. A killed
 * process loses nothing of that.
 *
 * A sector knows who wrote it (sector_origin), for the checker.
 */
#include "tests/sim/checker.h"
#include "tests/sim/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { N_NODES = 24, NODE_SECTORS = 1024, N_NAMES = 20, NAME_BYTES = 24, N_SNAPSHOTS = 16 };
enum { N_FDS = 32, FIRST_FD = 1000 };
enum held { HELD_HOLE, HELD_ZEROS, HELD_DATA };

struct node {
    bool used;
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

static struct node nodes[N_NODES];
static struct directory now, snapshots[N_SNAPSHOTS]; /* snapshots[0] is durable */
static uint32_t n_snapshots;
static bool exists;
static struct open_file open_files[N_FDS];
static uint64_t capacity_bytes, used_sectors;

bool files_has_catalog;

/* ---- nodes ------------------------------------------------------------------------------------------- */

static void set_held(struct node *f, uint64_t sector, enum held held)
{
    used_sectors += (held != HELD_HOLE) - (f->held[sector] != HELD_HOLE);
    f->held[sector] = (uint8_t)held;
    if (sector >= f->n_sectors_used)
        f->n_sectors_used = (uint32_t)sector + 1;
}

static void node_clear(struct node *f)
{
    for (uint32_t i = 0; i < f->n_sectors_used; i++)
        used_sectors -= f->held[i] != HELD_HOLE;
    memset(f->held, 0, f->n_sectors_used);
    memset(f->dirty, 0, f->n_sectors_used);
    memset(f->stuck, 0, f->n_sectors_used);
    memset(f->origin, 0, f->n_sectors_used * sizeof f->origin[0]);
    f->used = false;
    f->bytes = f->durable_bytes = 0;
    f->n_sectors_used = 0;
}

static bool node_is_named(int node)
{
    for (uint32_t s = 0; s <= n_snapshots; s++) {
        const struct directory *d = s == n_snapshots ? &now : &snapshots[s];
        for (int i = 0; i < N_NAMES; i++)
            if (d->names[i].text[0] != 0 && d->names[i].node == node)
                return true;
    }
    for (int i = 0; i < N_FDS; i++)
        if (open_files[i].used && !open_files[i].directory && open_files[i].node == node)
            return true;
    return false;
}

static int node_new(void)
{
    for (int i = 0; i < N_NODES; i++)
        if (nodes[i].used && !node_is_named(i))
            node_clear(&nodes[i]);
    for (int i = 0; i < N_NODES; i++) {
        if (nodes[i].used)
            continue;
        if (nodes[i].data == NULL) {
            void *at = __real_mmap(NULL, 2 * NODE_SECTORS * SECTOR, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED)
                sim_fail("no memory for a file");
            nodes[i].data = at;
            nodes[i].old = nodes[i].data + NODE_SECTORS * SECTOR;
        }
        nodes[i].used = true;
        return i;
    }
    sim_fail("the simulated file system has too few nodes");
}

/* What the sector holds may be lost from here on. */
static void make_dirty(struct node *f, uint64_t sector)
{
    if (f->dirty[sector])
        return;
    f->dirty[sector] = true;
    f->old_held[sector] = f->held[sector];
    f->old_origin[sector] = f->origin[sector];
    if (f->held[sector] == HELD_DATA)
        memcpy(f->old + sector * SECTOR, f->data + sector * SECTOR, SECTOR);
}

static void sector_fill(struct node *f, uint64_t sector, uint64_t inside, const void *data, size_t n)
{
    make_dirty(f, sector);
    f->stuck[sector] = false;
    if (f->held[sector] != HELD_DATA && n < SECTOR)
        memset(f->data + sector * SECTOR, 0, SECTOR);
    set_held(f, sector, HELD_DATA);
    memcpy(f->data + sector * SECTOR + inside, data, n);
}

static void sector_read(const struct node *f, uint64_t sector, uint64_t inside, void *out, size_t n)
{
    if (f->held[sector] == HELD_DATA)
        memcpy(out, f->data + sector * SECTOR + inside, n);
    else
        memset(out, 0, n);
}

static void node_sync(struct node *f)
{
    for (uint32_t i = 0; i < f->n_sectors_used; i++)
        f->dirty[i] = f->dirty[i] && f->stuck[i];
    f->durable_bytes = f->bytes;
}

static void sector_revert(struct node *f, uint32_t i)
{
    set_held(f, i, f->old_held[i]);
    f->origin[i] = f->old_origin[i];
    if (f->old_held[i] == HELD_DATA)
        memcpy(f->data + (size_t)i * SECTOR, f->old + (size_t)i * SECTOR, SECTOR);
    f->dirty[i] = false;
    sim_count(COUNT_sectors_torn_off, 1);
}

/* The power is cut: of 256 sectors that were not synced, `lost` are as they were before. */
static void node_power_cut(struct node *f, uint32_t lost)
{
    for (uint32_t i = 0; i < f->n_sectors_used; i++)
        if (f->dirty[i] && sim_below(&sim.random_faults, 256) < lost)
            sector_revert(f, i);
    if (f->bytes != f->durable_bytes && sim_below(&sim.random_faults, 256) < lost)
        f->bytes = f->durable_bytes;
    for (uint64_t i = (f->bytes + SECTOR - 1) / SECTOR; i < f->n_sectors_used; i++)
        set_held(f, i, HELD_HOLE);
    memset(f->stuck, 0, f->n_sectors_used);
    node_sync(f);
}

/* ---- the directory ----------------------------------------------------------------------------------- */

static struct name *find_name(const char *text)
{
    size_t len = strlen(text); /* many are asked for that are not there: they differ at their ends */
    for (int i = 0; i < N_NAMES && len < NAME_BYTES && len > 0; i++)
        if (now.names[i].text[len - 1] == text[len - 1] && strcmp(now.names[i].text, text) == 0)
            return &now.names[i];
    return NULL;
}

static bool volumes_known;

static void directory_changed(void)
{
    volumes_known = false;
    now.has_catalog = files_has_catalog;
    if (n_snapshots == N_SNAPSHOTS) { /* the oldest changes have reached the disk */
        memmove(snapshots, snapshots + 1, (N_SNAPSHOTS - 1) * sizeof snapshots[0]);
        n_snapshots--;
    }
    snapshots[n_snapshots++] = now;
}

static void directory_sync(void)
{
    volumes_known = false;
    now.has_catalog = files_has_catalog;
    snapshots[0] = now;
    n_snapshots = 1;
}

static struct name *add_name(const char *text)
{
    for (int i = 0; i < N_NAMES; i++)
        if (now.names[i].text[0] == 0) {
            snprintf(now.names[i].text, NAME_BYTES, "%s", text);
            return &now.names[i];
        }
    sim_fail("the simulated directory is full");
}

/* ---- descriptors ------------------------------------------------------------------------------------- */

static int refuse(int code)
{
    errno = code;
    return -1;
}

static struct open_file *of(int fd)
{
    if (fd < FIRST_FD || fd >= FIRST_FD + N_FDS || !open_files[fd - FIRST_FD].used)
        sim_fail("a descriptor that is not open: %d", fd);
    return &open_files[fd - FIRST_FD];
}

static struct node *node_of(int fd)
{
    struct open_file *o = of(fd);
    return o->directory ? NULL : &nodes[o->node];
}

static int fd_new(struct open_file file)
{
    for (int i = 0; i < N_FDS; i++)
        if (!open_files[i].used) {
            open_files[i] = file;
            open_files[i].used = true;
            return FIRST_FD + i;
        }
    return refuse(EMFILE);
}

/* ---- a seed, a process ------------------------------------------------------------------------------- */

void files_reset(uint64_t capacity)
{
    for (int i = 0; i < N_NODES; i++)
        node_clear(&nodes[i]);
    memset(&now, 0, sizeof now);
    memset(open_files, 0, sizeof open_files);
    exists = files_has_catalog = false;
    directory_sync();
    used_sectors = 0;
    capacity_bytes = capacity;
}

void files_set_capacity(uint64_t bytes)
{
    capacity_bytes = bytes;
}

uint64_t files_used_bytes(void)
{
    return used_sectors * SECTOR;
}

bool files_is_full(uint64_t bytes)
{
    uint64_t used = files_used_bytes() + rows_bytes();
    return used + bytes > capacity_bytes;
}

void files_process_ended(bool killed, bool power)
{
    for (int i = 0; i < N_FDS; i++)
        if (open_files[i].used) {
            if (!killed)
                sim_fail("LEAK: a descriptor is left open at the end");
            open_files[i].used = false;
        }
    if (!power)
        return;
    static const uint8_t odds[] = {0, 64, 128, 250, 255};
    uint32_t lost = odds[sim_below(&sim.random_faults, 5)];
    uint32_t last = sim_below(&sim.random_faults, n_snapshots);
    now = snapshots[last];
    files_has_catalog = now.has_catalog;
    directory_sync();
    for (int i = 0; i < N_NODES; i++)
        if (nodes[i].used)
            node_power_cut(&nodes[i], lost);
    for (int i = 0; i < N_NODES; i++)
        if (nodes[i].used && !node_is_named(i))
            node_clear(&nodes[i]);
}

/* ---- volumes, for the engine and the checker --------------------------------------------------------- */

/* Which node is which volume, looked up again when names have changed. */
static struct node *volume_nodes[N_NAMES];
static int volume_of_node[N_NODES];

static void volumes_know(void)
{
    if (volumes_known)
        return;
    volumes_known = true;
    memset(volume_nodes, 0, sizeof volume_nodes);
    for (int i = 0; i < N_NODES; i++)
        volume_of_node[i] = -1;
    for (int i = 0; i < N_NAMES; i++) {
        if (strncmp(now.names[i].text, "volume.", 7) != 0)
            continue;
        int volume = atoi(now.names[i].text + 7);
        if (volume >= N_NAMES)
            sim_fail("volume %d is more than the test has room for", volume);
        volume_nodes[volume] = &nodes[now.names[i].node];
        volume_of_node[now.names[i].node] = volume;
    }
}

static struct node *volume_node(uint32_t volume)
{
    volumes_know();
    return volume < N_NAMES ? volume_nodes[volume] : NULL;
}

int files_volume_of(int fd)
{
    volumes_know();
    return volume_of_node[of(fd)->node];
}

uint64_t files_volume_sectors(uint32_t volume)
{
    const struct node *f = volume_node(volume);
    return f == NULL ? 0 : f->bytes / SECTOR;
}

uint8_t *files_sector(uint32_t volume, uint64_t sector)
{
    struct node *f = volume_node(volume);
    return f == NULL || sector >= f->bytes / SECTOR || f->held[sector] != HELD_DATA
               ? NULL
               : f->data + sector * SECTOR;
}

bool files_sector_is_durable(uint32_t volume, uint64_t sector)
{
    const struct node *f = volume_node(volume);
    return f != NULL && sector < f->durable_bytes / SECTOR && !f->dirty[sector] &&
           f->held[sector] == HELD_DATA;
}

struct sector_origin files_origin(uint32_t volume, uint64_t sector)
{
    const struct node *f = volume_node(volume);
    return f == NULL || sector >= NODE_SECTORS ? (struct sector_origin){0} : f->origin[sector];
}

void files_set_origin(uint32_t volume, uint64_t sector, struct sector_origin origin)
{
    struct node *f = volume_node(volume);
    if (f != NULL && sector < NODE_SECTORS)
        f->origin[sector] = origin;
}

void files_volume_cut(uint32_t volume, uint64_t sectors)
{
    struct node *f = volume_node(volume);
    if (f == NULL)
        return;
    for (uint64_t i = sectors; i < f->n_sectors_used; i++) {
        set_held(f, i, HELD_HOLE);
        f->origin[i] = (struct sector_origin){0};
    }
    f->bytes = f->durable_bytes = sectors * SECTOR;
}

void files_volume_lose(uint32_t volume)
{
    char text[NAME_BYTES];
    snprintf(text, sizeof text, "volume.%03u", volume);
    struct name *n = find_name(text);
    if (n == NULL)
        return;
    n->text[0] = 0;
    directory_sync();
}

uint64_t files_backed_bytes(void)
{
    uint64_t n = 0;
    for (int i = 0; i < N_NAMES; i++) {
        if (strncmp(now.names[i].text, "volume.", 7) != 0)
            continue;
        const struct node *f = &nodes[now.names[i].node];
        for (uint32_t k = 0; k < f->n_sectors_used; k++)
            n += f->held[k] != HELD_HOLE;
    }
    return n * SECTOR;
}

int files_read(int fd, uint64_t offset, void *out, size_t n)
{
    struct node *f = node_of(fd);
    if (offset >= f->bytes)
        return 0;
    if (n > f->bytes - offset)
        n = f->bytes - offset;
    for (size_t done = 0; done < n;) {
        uint64_t sector = (offset + done) / SECTOR, inside = (offset + done) % SECTOR;
        size_t part = SECTOR - inside < n - done ? SECTOR - inside : n - done;
        sector_read(f, sector, inside, (char *)out + done, part);
        done += part;
    }
    return (int)n;
}

/* It is this one's when all of it has been written, from the beginning on. */
static void set_origin(struct node *f, uint64_t sector, uint64_t inside, size_t n,
                       const struct sector_origin *origin, uint32_t behind)
{
    struct sector_origin o = origin == NULL ? (struct sector_origin){0} : *origin;
    const struct sector_origin *was = &f->origin[sector];
    o.index += behind;
    bool goes_on = o.nonce == was->nonce && o.sequence == was->sequence && o.index == was->index &&
                   f->filled[sector] == inside;
    f->filled[sector] = inside == 0 ? (uint32_t)n : goes_on ? (uint32_t)(inside + n) : 0;
    o.damaged = origin != NULL && f->filled[sector] != SECTOR;
    f->origin[sector] = o;
}

int files_write(int fd, uint64_t offset, const void *data, size_t n, const struct sector_origin *origin)
{
    struct node *f = node_of(fd);
    if (!of(fd)->writable)
        sim_fail("a write into a file that was opened for reading");
    if (offset + n > NODE_SECTORS * SECTOR)
        return -EFBIG;
    for (size_t done = 0; done < n;) {
        uint64_t sector = (offset + done) / SECTOR, inside = (offset + done) % SECTOR;
        size_t part = SECTOR - inside < n - done ? SECTOR - inside : n - done;
        if (f->held[sector] == HELD_HOLE && (used_sectors + 1) * SECTOR > capacity_bytes)
            return done > 0 ? (int)done : -ENOSPC;
        sector_fill(f, sector, inside, (const char *)data + done, part);
        set_origin(f, sector, inside, part, origin, (uint32_t)(sector - offset / SECTOR));
        done += part;
    }
    if (offset + n > f->bytes)
        f->bytes = offset + n;
    return (int)n;
}

int files_sync(int fd, enum files_sync how)
{
    struct node *f = node_of(fd);
    if (how == FILES_SYNC_FAILS)
        memcpy(f->stuck, f->dirty, f->n_sectors_used);
    else if (how == FILES_SYNC_DONE)
        node_sync(f);
    return how == FILES_SYNC_FAILS ? -EIO : 0;
}

/* ---- calls of the system ----------------------------------------------------------------------------- */

static bool call_fails(int *code)
{
    fibers_yield();
    if (!sim_fault(FAULT_call_error))
        return false;
    static const int codes[] = {EIO, ENOMEM, EMFILE};
    *code = codes[sim_below(&sim.random_faults, 3)];
    return true;
}

static bool no_space(void)
{
    return sim_fault(FAULT_no_space);
}

int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
    int code;
    (void)mode;
    if (strcmp(path, SIM_DIRECTORY) != 0)
        sim_fail("mkdir of %s", path);
    if (exists)
        return refuse(EEXIST);
    if (no_space())
        return refuse(ENOSPC);
    if (call_fails(&code))
        return refuse(code);
    exists = true;
    return 0;
}

static int open_directory(void)
{
    return fd_new((struct open_file){.directory = true});
}

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    int code;
    (void)flags;
    if (strcmp(path, SIM_DIRECTORY) != 0)
        sim_fail("open of %s", path);
    if (!exists)
        return refuse(ENOENT);
    return call_fails(&code) ? refuse(code) : open_directory();
}

int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    int code;
    if (!of(dir)->directory)
        sim_fail("openat below a file");
    if (strcmp(path, "catalog") == 0) /* it has no files that could be read */
        return refuse(ENOENT);
    if (call_fails(&code))
        return refuse(code);
    if (strcmp(path, ".") == 0)
        return open_directory();
    struct name *n = find_name(path);
    if (n != NULL && (flags & O_CREAT) && (flags & O_EXCL))
        return refuse(EEXIST);
    if (n == NULL && !(flags & O_CREAT))
        return refuse(ENOENT);
    if (n == NULL) {
        if (no_space())
            return refuse(ENOSPC);
        int node = node_new();
        n = add_name(path);
        n->node = node;
        directory_changed();
    }
    if (flags & O_TRUNC) {
        struct node *f = &nodes[n->node];
        for (uint32_t i = 0; i < f->n_sectors_used; i++)
            if (f->held[i] != HELD_HOLE) {
                make_dirty(f, i);
                set_held(f, i, HELD_HOLE);
            }
        f->bytes = 0;
    }
    return fd_new((struct open_file){.node = n->node, .writable = (flags & O_ACCMODE) != O_RDONLY});
}

int __wrap_close(int fd);
int __wrap_close(int fd)
{
    of(fd)->used = false;
    return 0;
}

int __wrap_flock(int fd, int what);
int __wrap_flock(int fd, int what)
{
    struct open_file *o = of(fd);
    if (what != (LOCK_EX | LOCK_NB))
        sim_fail("a lock of another kind");
    if (sim_fault(FAULT_interrupted))
        return refuse(EINTR);
    for (int i = 0; i < N_FDS; i++)
        if (open_files[i].used && open_files[i].locked && &open_files[i] != o)
            return refuse(EWOULDBLOCK);
    o->locked = true;
    return 0;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    fibers_yield();
    if (!of(fd)->directory)
        return engine_call_sync(fd);
    if (sim_fault(FAULT_sync_error))
        return refuse(EIO);
    directory_sync();
    return 0;
}

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
    return __wrap_fsync(fd);
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    int code;
    if (!of(from_dir)->directory || !of(to_dir)->directory)
        sim_fail("renameat below a file");
    if (call_fails(&code))
        return refuse(code);
    struct name *a = find_name(from), *b = find_name(to);
    if (a == NULL)
        return refuse(ENOENT);
    if (b != NULL)
        b->text[0] = 0;
    snprintf(a->text, NAME_BYTES, "%s", to);
    directory_changed();
    return 0;
}

int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_unlinkat(int dir, const char *path, int flags)
{
    int code;
    (void)flags;
    if (!of(dir)->directory)
        sim_fail("unlinkat below a file");
    if (call_fails(&code))
        return refuse(code);
    struct name *n = find_name(path);
    if (n == NULL)
        return refuse(ENOENT);
    n->text[0] = 0;
    directory_changed();
    return 0;
}

int __wrap_mkdirat(int dir, const char *path, mode_t mode);
int __wrap_mkdirat(int dir, const char *path, mode_t mode)
{
    (void)dir;
    (void)mode;
    sim_fail("mkdirat of %s", path);
}

int __wrap_faccessat(int dir, const char *path, int mode, int flags);
int __wrap_faccessat(int dir, const char *path, int mode, int flags)
{
    (void)mode;
    (void)flags;
    of(dir);
    return find_name(path) != NULL ? 0 : refuse(ENOENT);
}

static int describe(const struct node *f, struct stat *out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->n_sectors_used; i++)
        n += f->held[i] != HELD_HOLE;
    *out = (struct stat){.st_mode = S_IFREG | 0600,
                         .st_size = (off_t)f->bytes,
                         .st_blocks = (blkcnt_t)(n * (SECTOR / 512)),
                         .st_nlink = 1};
    return 0;
}

int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out)
{
    int code;
    if (call_fails(&code))
        return refuse(code);
    if (of(fd)->directory) {
        *out = (struct stat){.st_mode = S_IFDIR | 0700, .st_nlink = 1};
        return 0;
    }
    return describe(node_of(fd), out);
}

int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags);
int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags)
{
    (void)flags;
    of(dir);
    const struct name *n = find_name(path);
    return n == NULL ? refuse(ENOENT) : describe(&nodes[n->node], out);
}

int __wrap_statx(int dir, const char *path, int flags, unsigned mask, void *out);
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, void *out)
{
    (void)dir;
    (void)path;
    (void)flags;
    (void)mask;
    (void)out;
    return refuse(ENOSYS); /* O_DIRECT is taken at its word */
}

int __wrap_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out)
{
    of(fd);
    uint64_t used = files_used_bytes() + rows_bytes();
    *out = (struct statvfs){.f_frsize = SECTOR,
                            .f_bavail = used < capacity_bytes ? (capacity_bytes - used) / SECTOR : 0};
    return 0;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len)
{
    int code;
    struct node *f = node_of(fd);
    uint64_t first = (uint64_t)offset / SECTOR, end = (uint64_t)(offset + len) / SECTOR;
    if (offset % SECTOR != 0 || len % SECTOR != 0)
        sim_fail("fallocate of parts of sectors");
    fibers_yield();
    if (mode == 0) {
        if (sim_fault(FAULT_interrupted))
            return refuse(EINTR);
        if (end > NODE_SECTORS)
            return refuse(EFBIG);
        if (no_space())
            return refuse(ENOSPC);
        uint64_t want = 0;
        for (uint64_t i = first; i < end; i++)
            want += f->held[i] == HELD_HOLE;
        if ((used_sectors + want) * SECTOR > capacity_bytes)
            return refuse(ENOSPC);
    }
    if (call_fails(&code))
        return refuse(code);
    for (uint64_t i = first; i < end && i < NODE_SECTORS; i++) {
        if (mode == 0 && f->held[i] == HELD_HOLE) {
            make_dirty(f, i);
            set_held(f, i, HELD_ZEROS);
        } else if (mode != 0 && f->held[i] != HELD_HOLE) {
            make_dirty(f, i);
            set_held(f, i, HELD_HOLE);
            f->origin[i] = (struct sector_origin){0};
        }
    }
    if (mode == 0 && end * SECTOR > f->bytes)
        f->bytes = end * SECTOR;
    checker_budget();
    return 0;
}

int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_ftruncate(int fd, off_t bytes)
{
    int code;
    struct node *f = node_of(fd);
    if (call_fails(&code))
        return refuse(code);
    for (uint64_t i = ((uint64_t)bytes + SECTOR - 1) / SECTOR; i < f->n_sectors_used; i++)
        if (f->held[i] != HELD_HOLE) {
            make_dirty(f, i);
            set_held(f, i, HELD_HOLE);
            f->origin[i] = (struct sector_origin){0};
        }
    f->bytes = (uint64_t)bytes;
    return 0;
}

/* ---- reading and writing ----------------------------------------------------------------------------- */

ssize_t __wrap_pread(int fd, void *out, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *out, size_t n, off_t offset)
{
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return refuse(EINTR);
    if (sim_fault(FAULT_read_error))
        return refuse(EIO);
    if (n > 512 && sim_fault(FAULT_short_read))
        n = n / 512 / 2 * 512;
    return files_read(fd, (uint64_t)offset, out, n);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset)
{
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return refuse(EINTR);
    if (sim_fault(FAULT_write_error))
        return refuse(EIO);
    if (n > 512 && sim_fault(FAULT_short_write))
        n = n / 512 / 2 * 512;
    int rc = files_write(fd, (uint64_t)offset, data, n, NULL);
    return rc < 0 ? refuse(-rc) : rc;
}

ssize_t __wrap_read(int fd, void *out, size_t n);
ssize_t __wrap_read(int fd, void *out, size_t n)
{
    if (sim_fault(FAULT_read_error))
        return refuse(EIO);
    if (n > 1 && sim_fault(FAULT_short_read))
        n /= 2;
    int rc = files_read(fd, of(fd)->at, out, n);
    of(fd)->at += (uint64_t)rc;
    return rc;
}

ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return refuse(EINTR);
    if (sim_fault(FAULT_write_error))
        return refuse(EIO);
    if (no_space())
        return refuse(ENOSPC);
    if (n > 1 && sim_fault(FAULT_short_write))
        n /= 2;
    int rc = files_write(fd, of(fd)->at, data, n, NULL);
    if (rc < 0)
        return refuse(-rc);
    of(fd)->at += (uint64_t)rc;
    return rc;
}

/* ---- listing ----------------------------------------------------------------------------------------- */

struct listing {
    int fd, at;
    struct dirent entry;
};

DIR *__wrap_fdopendir(int fd);
DIR *__wrap_fdopendir(int fd)
{
    if (!of(fd)->directory) {
        errno = ENOTDIR;
        return NULL;
    }
    struct listing *l = malloc(sizeof *l);
    if (l == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    *l = (struct listing){.fd = fd};
    return (DIR *)l;
}

struct dirent *__wrap_readdir(DIR *d);
struct dirent *__wrap_readdir(DIR *d)
{
    struct listing *l = (struct listing *)d;
    while (l->at < N_NAMES && now.names[l->at].text[0] == 0)
        l->at++;
    if (l->at >= N_NAMES) {
        if (l->at > N_NAMES || !files_has_catalog)
            return NULL;
        l->at++;
        strcpy(l->entry.d_name, "catalog");
        return &l->entry;
    }
    memcpy(l->entry.d_name, now.names[l->at++].text, NAME_BYTES);
    return &l->entry;
}

int __wrap_closedir(DIR *d);
int __wrap_closedir(DIR *d)
{
    struct listing *l = (struct listing *)d;
    __wrap_close(l->fd);
    free(l);
    return 0;
}
