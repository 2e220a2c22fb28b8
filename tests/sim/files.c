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
#include "tests/sim/files_impl.h"

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

struct node fs_nodes[N_NODES];
struct directory fs_now;
static struct directory snapshots[N_SNAPSHOTS]; /* snapshots[0] is durable */
static uint32_t n_snapshots;
bool fs_exists;
struct open_file fs_open_files[N_FDS];
static uint64_t capacity_bytes, used_sectors;

bool files_has_catalog;

/* ---- nodes ------------------------------------------------------------------------------------------- */

void fs_set_held(struct node *f, uint64_t sector, enum held held)
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
    f->used = f->is_socket = false;
    f->bytes = f->durable_bytes = 0;
    f->n_sectors_used = 0;
}

static bool node_is_named(int node)
{
    for (uint32_t s = 0; s <= n_snapshots; s++) {
        const struct directory *d = s == n_snapshots ? &fs_now : &snapshots[s];
        for (int i = 0; i < N_NAMES; i++)
            if (d->names[i].text[0] != 0 && d->names[i].node == node)
                return true;
    }
    for (int i = 0; i < N_FDS; i++)
        if (fs_open_files[i].used && !fs_open_files[i].directory && fs_open_files[i].node == node)
            return true;
    return false;
}

int fs_node_new(void)
{
    for (int i = 0; i < N_NODES; i++)
        if (fs_nodes[i].used && !node_is_named(i))
            node_clear(&fs_nodes[i]);
    for (int i = 0; i < N_NODES; i++) {
        if (fs_nodes[i].used)
            continue;
        if (fs_nodes[i].data == NULL) {
            void *at = __real_mmap(NULL, 2 * NODE_SECTORS * SECTOR, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (at == MAP_FAILED)
                sim_fail("no memory for a file");
            fs_nodes[i].data = at;
            fs_nodes[i].old = fs_nodes[i].data + NODE_SECTORS * SECTOR;
        }
        fs_nodes[i].used = true;
        return i;
    }
    sim_fail("the simulated file system has too few nodes");
}

/* What the sector holds may be lost from here on. */
void fs_make_dirty(struct node *f, uint64_t sector)
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
    fs_make_dirty(f, sector);
    f->stuck[sector] = false;
    if (f->held[sector] != HELD_DATA && n < SECTOR)
        memset(f->data + sector * SECTOR, 0, SECTOR);
    fs_set_held(f, sector, HELD_DATA);
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
    fs_set_held(f, i, f->old_held[i]);
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
        fs_set_held(f, i, HELD_HOLE);
    memset(f->stuck, 0, f->n_sectors_used);
    node_sync(f);
}

/* ---- the directory ----------------------------------------------------------------------------------- */

struct name *fs_find_name(const char *text)
{
    size_t len = strlen(text); /* many are asked for that are not there: they differ at their ends */
    for (int i = 0; i < N_NAMES && len < NAME_BYTES && len > 0; i++)
        if (fs_now.names[i].text[len - 1] == text[len - 1] && strcmp(fs_now.names[i].text, text) == 0)
            return &fs_now.names[i];
    return NULL;
}

static bool volumes_known;

void fs_directory_changed(void)
{
    volumes_known = false;
    fs_now.has_catalog = files_has_catalog;
    if (n_snapshots == N_SNAPSHOTS) { /* the oldest changes have reached the disk */
        memmove(snapshots, snapshots + 1, (N_SNAPSHOTS - 1) * sizeof snapshots[0]);
        n_snapshots--;
    }
    snapshots[n_snapshots++] = fs_now;
}

void fs_directory_sync(void)
{
    volumes_known = false;
    fs_now.has_catalog = files_has_catalog;
    snapshots[0] = fs_now;
    n_snapshots = 1;
}

struct name *fs_add_name(const char *text)
{
    for (int i = 0; i < N_NAMES; i++)
        if (fs_now.names[i].text[0] == 0) {
            snprintf(fs_now.names[i].text, NAME_BYTES, "%s", text);
            return &fs_now.names[i];
        }
    sim_fail("the simulated directory is full");
}

/* ---- descriptors ------------------------------------------------------------------------------------- */

int fs_refuse(int code)
{
    errno = code;
    return -1;
}

struct open_file *fs_of(int fd)
{
    if (fd < FIRST_FD || fd >= FIRST_FD + N_FDS || !fs_open_files[fd - FIRST_FD].used)
        sim_fail("a descriptor that is not open: %d", fd);
    return &fs_open_files[fd - FIRST_FD];
}

struct node *fs_node_of(int fd)
{
    struct open_file *o = fs_of(fd);
    return o->directory ? NULL : &fs_nodes[o->node];
}

int fs_fd_new(struct open_file file)
{
    for (int i = 0; i < N_FDS; i++)
        if (!fs_open_files[i].used) {
            fs_open_files[i] = file;
            fs_open_files[i].used = true;
            return FIRST_FD + i;
        }
    return fs_refuse(EMFILE);
}

/* ---- a seed, a process ------------------------------------------------------------------------------- */

void files_reset(uint64_t capacity)
{
    for (int i = 0; i < N_NODES; i++)
        node_clear(&fs_nodes[i]);
    memset(&fs_now, 0, sizeof fs_now);
    memset(fs_open_files, 0, sizeof fs_open_files);
    fs_exists = files_has_catalog = false;
    fs_directory_sync();
    used_sectors = 0;
    capacity_bytes = capacity;
}

void files_set_capacity(uint64_t bytes)
{
    capacity_bytes = bytes;
}

uint64_t files_capacity(void)
{
    return capacity_bytes;
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
        if (fs_open_files[i].used) {
            if (!killed)
                sim_fail("LEAK: a descriptor is left open at the end");
            fs_open_files[i].used = false;
        }
    if (!power)
        return;
    static const uint8_t odds[] = {0, 64, 128, 250, 255};
    uint32_t lost = odds[sim_below(&sim.random_faults, 5)];
    uint32_t last = sim_below(&sim.random_faults, n_snapshots);
    fs_now = snapshots[last];
    files_has_catalog = fs_now.has_catalog;
    fs_directory_sync();
    for (int i = 0; i < N_NODES; i++)
        if (fs_nodes[i].used)
            node_power_cut(&fs_nodes[i], lost);
    for (int i = 0; i < N_NODES; i++)
        if (fs_nodes[i].used && !node_is_named(i))
            node_clear(&fs_nodes[i]);
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
        if (strncmp(fs_now.names[i].text, "volume.", 7) != 0)
            continue;
        int volume = atoi(fs_now.names[i].text + 7);
        if (volume >= N_NAMES)
            sim_fail("volume %d is more than the test has room for", volume);
        volume_nodes[volume] = &fs_nodes[fs_now.names[i].node];
        volume_of_node[fs_now.names[i].node] = volume;
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
    return volume_of_node[fs_of(fd)->node];
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
        fs_set_held(f, i, HELD_HOLE);
        f->origin[i] = (struct sector_origin){0};
    }
    f->bytes = f->durable_bytes = sectors * SECTOR;
}

void files_volume_lose(uint32_t volume)
{
    char text[NAME_BYTES];
    snprintf(text, sizeof text, "volume.%03u", volume);
    struct name *n = fs_find_name(text);
    if (n == NULL)
        return;
    n->text[0] = 0;
    fs_directory_sync();
}

uint64_t files_backed_bytes(void)
{
    uint64_t n = 0;
    for (int i = 0; i < N_NAMES; i++) {
        if (strncmp(fs_now.names[i].text, "volume.", 7) != 0)
            continue;
        const struct node *f = &fs_nodes[fs_now.names[i].node];
        for (uint32_t k = 0; k < f->n_sectors_used; k++)
            n += f->held[k] != HELD_HOLE;
    }
    return n * SECTOR;
}

int files_read(int fd, uint64_t offset, void *out, size_t n)
{
    struct node *f = fs_node_of(fd);
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
    struct node *f = fs_node_of(fd);
    if (!fs_of(fd)->writable)
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
    struct node *f = fs_node_of(fd);
    if (how == FILES_SYNC_FAILS)
        memcpy(f->stuck, f->dirty, f->n_sectors_used);
    else if (how == FILES_SYNC_DONE)
        node_sync(f);
    return how == FILES_SYNC_FAILS ? -EIO : 0;
}
