/* Calls of the system on the simulated files (files.c): each may fail, and others may run meanwhile. */
#include "tests/sim/checker.h"
#include "tests/sim/engine.h"
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
    if (fs_exists)
        return fs_refuse(EEXIST);
    if (no_space())
        return fs_refuse(ENOSPC);
    if (call_fails(&code))
        return fs_refuse(code);
    fs_exists = true;
    return 0;
}

static int open_directory(void)
{
    return fs_fd_new((struct open_file){.directory = true});
}

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    int code;
    (void)flags;
    if (strcmp(path, SIM_DIRECTORY) != 0)
        sim_fail("open of %s", path);
    if (!fs_exists)
        return fs_refuse(ENOENT);
    return call_fails(&code) ? fs_refuse(code) : open_directory();
}

int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    int code;
    if (!fs_of(dir)->directory)
        sim_fail("openat below a file");
    if (strcmp(path, "catalog") == 0) /* it has no files that could be read */
        return fs_refuse(ENOENT);
    if (call_fails(&code))
        return fs_refuse(code);
    if (strcmp(path, ".") == 0)
        return open_directory();
    struct name *n = fs_find_name(path);
    if (n != NULL && (flags & O_CREAT) && (flags & O_EXCL))
        return fs_refuse(EEXIST);
    if (n == NULL && !(flags & O_CREAT))
        return fs_refuse(ENOENT);
    if (n == NULL) {
        if (no_space())
            return fs_refuse(ENOSPC);
        int node = fs_node_new();
        n = fs_add_name(path);
        n->node = node;
        fs_directory_changed();
    }
    if (flags & O_TRUNC) {
        struct node *f = &fs_nodes[n->node];
        for (uint32_t i = 0; i < f->n_sectors_used; i++)
            if (f->held[i] != HELD_HOLE) {
                fs_make_dirty(f, i);
                fs_set_held(f, i, HELD_HOLE);
            }
        f->bytes = 0;
    }
    return fs_fd_new((struct open_file){.node = n->node, .writable = (flags & O_ACCMODE) != O_RDONLY});
}

int __wrap_close(int fd);
int __wrap_close(int fd)
{
    if (!sockets_close(fd))
        fs_of(fd)->used = false;
    return 0;
}

int __wrap_flock(int fd, int what);
int __wrap_flock(int fd, int what)
{
    struct open_file *o = fs_of(fd);
    if (what != (LOCK_EX | LOCK_NB))
        sim_fail("a lock of another kind");
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    for (int i = 0; i < N_FDS; i++)
        if (fs_open_files[i].used && fs_open_files[i].locked && &fs_open_files[i] != o)
            return fs_refuse(EWOULDBLOCK);
    o->locked = true;
    return 0;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    fibers_yield();
    if (!fs_of(fd)->directory)
        return engine_call_sync(fd);
    if (sim_fault(FAULT_sync_error))
        return fs_refuse(EIO);
    fs_directory_sync();
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
    if (!fs_of(from_dir)->directory || !fs_of(to_dir)->directory)
        sim_fail("renameat below a file");
    if (call_fails(&code))
        return fs_refuse(code);
    struct name *a = fs_find_name(from), *b = fs_find_name(to);
    if (a == NULL)
        return fs_refuse(ENOENT);
    if (b != NULL)
        b->text[0] = 0;
    snprintf(a->text, NAME_BYTES, "%s", to);
    fs_directory_changed();
    return 0;
}

int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_unlinkat(int dir, const char *path, int flags)
{
    int code;
    (void)flags;
    if (!fs_of(dir)->directory)
        sim_fail("unlinkat below a file");
    if (call_fails(&code))
        return fs_refuse(code);
    struct name *n = fs_find_name(path);
    if (n == NULL)
        return fs_refuse(ENOENT);
    n->text[0] = 0;
    fs_directory_changed();
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
    fs_of(dir);
    return fs_find_name(path) != NULL ? 0 : fs_refuse(ENOENT);
}

static int describe(const struct node *f, struct stat *out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->n_sectors_used; i++)
        n += f->held[i] != HELD_HOLE;
    *out = (struct stat){.st_mode = (f->is_socket ? S_IFSOCK : S_IFREG) | 0600,
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
        return fs_refuse(code);
    if (fs_of(fd)->directory) {
        *out = (struct stat){.st_mode = S_IFDIR | 0700, .st_nlink = 1};
        return 0;
    }
    return describe(fs_node_of(fd), out);
}

int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags);
int __wrap_fstatat(int dir, const char *path, struct stat *out, int flags)
{
    (void)flags;
    fs_of(dir);
    const struct name *n = fs_find_name(path);
    return n == NULL ? fs_refuse(ENOENT) : describe(&fs_nodes[n->node], out);
}

int __wrap_statx(int dir, const char *path, int flags, unsigned mask, void *out);
int __wrap_statx(int dir, const char *path, int flags, unsigned mask, void *out)
{
    (void)dir;
    (void)path;
    (void)flags;
    (void)mask;
    (void)out;
    return fs_refuse(ENOSYS); /* O_DIRECT is taken at its word */
}

int __wrap_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out)
{
    fs_of(fd);
    uint64_t used = files_used_bytes() + rows_bytes();
    *out = (struct statvfs){.f_frsize = SECTOR,
                            .f_bavail = used < files_capacity() ? (files_capacity() - used) / SECTOR : 0};
    return 0;
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t len);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t len)
{
    int code;
    struct node *f = fs_node_of(fd);
    uint64_t first = (uint64_t)offset / SECTOR, end = (uint64_t)(offset + len) / SECTOR;
    if (offset % SECTOR != 0 || len % SECTOR != 0)
        sim_fail("fallocate of parts of sectors");
    fibers_yield();
    if (mode == 0) {
        if (sim_fault(FAULT_interrupted))
            return fs_refuse(EINTR);
        if (end > NODE_SECTORS)
            return fs_refuse(EFBIG);
        if (no_space())
            return fs_refuse(ENOSPC);
        uint64_t want = 0;
        for (uint64_t i = first; i < end; i++)
            want += f->held[i] == HELD_HOLE;
        if (((files_used_bytes() / SECTOR) + want) * SECTOR > files_capacity())
            return fs_refuse(ENOSPC);
    }
    if (call_fails(&code))
        return fs_refuse(code);
    for (uint64_t i = first; i < end && i < NODE_SECTORS; i++) {
        if (mode == 0 && f->held[i] == HELD_HOLE) {
            fs_make_dirty(f, i);
            fs_set_held(f, i, HELD_ZEROS);
        } else if (mode != 0 && f->held[i] != HELD_HOLE) {
            fs_make_dirty(f, i);
            fs_set_held(f, i, HELD_HOLE);
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
    struct node *f = fs_node_of(fd);
    if (call_fails(&code))
        return fs_refuse(code);
    for (uint64_t i = ((uint64_t)bytes + SECTOR - 1) / SECTOR; i < f->n_sectors_used; i++)
        if (f->held[i] != HELD_HOLE) {
            fs_make_dirty(f, i);
            fs_set_held(f, i, HELD_HOLE);
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
        return fs_refuse(EINTR);
    if (sim_fault(FAULT_read_error))
        return fs_refuse(EIO);
    if (n > 512 && sim_fault(FAULT_short_read))
        n = n / 512 / 2 * 512;
    return files_read(fd, (uint64_t)offset, out, n);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t n, off_t offset)
{
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    if (sim_fault(FAULT_write_error))
        return fs_refuse(EIO);
    if (n > 512 && sim_fault(FAULT_short_write))
        n = n / 512 / 2 * 512;
    int rc = files_write(fd, (uint64_t)offset, data, n, NULL);
    return rc < 0 ? fs_refuse(-rc) : rc;
}

ssize_t __wrap_read(int fd, void *out, size_t n);
ssize_t __wrap_read(int fd, void *out, size_t n)
{
    if (sim_fault(FAULT_read_error))
        return fs_refuse(EIO);
    if (n > 1 && sim_fault(FAULT_short_read))
        n /= 2;
    int rc = files_read(fd, fs_of(fd)->at, out, n);
    fs_of(fd)->at += (uint64_t)rc;
    return rc;
}

ssize_t __wrap_write(int fd, const void *data, size_t n);
ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    if (sim_fault(FAULT_write_error))
        return fs_refuse(EIO);
    if (no_space())
        return fs_refuse(ENOSPC);
    if (n > 1 && sim_fault(FAULT_short_write))
        n /= 2;
    int rc = files_write(fd, fs_of(fd)->at, data, n, NULL);
    if (rc < 0)
        return fs_refuse(-rc);
    fs_of(fd)->at += (uint64_t)rc;
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
    if (!fs_of(fd)->directory) {
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
    while (l->at < N_NAMES && fs_now.names[l->at].text[0] == 0)
        l->at++;
    if (l->at >= N_NAMES) {
        if (l->at > N_NAMES || !files_has_catalog)
            return NULL;
        l->at++;
        strcpy(l->entry.d_name, "catalog");
        return &l->entry;
    }
    memcpy(l->entry.d_name, fs_now.names[l->at++].text, NAME_BYTES);
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
