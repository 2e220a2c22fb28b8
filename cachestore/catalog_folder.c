/*
 * The catalogue's folder, without what is in it: its names, its size, and the one that takes its place.
 */
#include "cachestore/catalog_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "cachestore/catalog.h"

uint64_t catalog_reserve_bytes(uint64_t share_bytes)
{
    uint64_t bytes = share_bytes / 2;
    return bytes < (32u << 20) ? bytes : 32u << 20;
}

bool catalog_has_room(int dir_fd, uint64_t bytes)
{
    struct statvfs fs;
    return fstatvfs(dir_fd, &fs) < 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= bytes;
}

/* Calls fn with the name of each entry of a folder. 0 or -errno (-ENOENT: there is none). */
static int each_file(int dir_fd, const char *folder, int (*fn)(void *ctx, int fd, const char *name),
                     void *ctx)
{
    int fd = openat(dir_fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    int rc = 0;
    const struct dirent *e;
    while (rc == 0 && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = fn(ctx, fd, e->d_name);
    }
    closedir(d);
    return rc;
}

static int remove_one(void *ctx, int fd, const char *name)
{
    (void)ctx;
    if (unlinkat(fd, name, 0) < 0 && unlinkat(fd, name, AT_REMOVEDIR) < 0)
        return -errno;
    return 0;
}

static int folder_remove(int dir_fd, const char *folder)
{
    int rc = each_file(dir_fd, folder, remove_one, NULL);
    if (rc == -ENOTDIR || rc == -ELOOP) /* something else has taken its name */
        return unlinkat(dir_fd, folder, 0) < 0 ? -errno : 0;
    if (rc == -ENOENT)
        return 0;
    if (rc == 0 && unlinkat(dir_fd, folder, AT_REMOVEDIR) < 0)
        rc = -errno;
    return rc;
}

int catalog_remove(int dir_fd)
{
    static const char *const names[] = {CATALOG_FOLDER_NEW, CATALOG_FOLDER_OLD, CATALOG_FOLDER};
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++)
        rc = folder_remove(dir_fd, names[i]);
    return rc;
}

int catalog_remove_new(int dir_fd)
{
    return folder_remove(dir_fd, CATALOG_FOLDER_NEW);
}

static int add_size(void *ctx, int fd, const char *name)
{
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        *(uint64_t *)ctx += (uint64_t)st.st_blocks * 512;
    return 0;
}

static int add_size_but_tables(void *ctx, int fd, const char *name)
{
    struct catalog_sizes *sizes = ctx;
    const char *end = strrchr(name, '.');
    if (end != NULL && strcmp(end, ".log") == 0)
        return add_size(&sizes->logs, fd, name);
    return end != NULL && strcmp(end, ".sst") == 0 ? 0 : add_size(&sizes->others, fd, name);
}

struct catalog_sizes catalog_folder_sizes(int dir_fd)
{
    struct catalog_sizes sizes = {0};
    each_file(dir_fd, CATALOG_FOLDER, add_size_but_tables, &sizes);
    return sizes;
}

uint64_t catalog_disk_bytes(int dir_fd)
{
    uint64_t bytes = 0;
    each_file(dir_fd, CATALOG_FOLDER, add_size, &bytes);
    each_file(dir_fd, CATALOG_FOLDER_NEW, add_size, &bytes);
    each_file(dir_fd, CATALOG_FOLDER_OLD, add_size, &bytes);
    return bytes;
}

/* ---- what had been synced ------------------------------------------------------------------------------ */

/* Not synced itself, so it is never ahead of the log: written behind each sync of that, and lost with the
 * machine or not at all. */
struct mark {
    uint64_t n_changes, sum;
};

static uint64_t mark_sum(uint64_t n_changes)
{
    return XXH3_64bits_withSeed(&n_changes, sizeof n_changes, sizeof(struct mark));
}

int catalog_mark_open(int dir_fd, const char *folder, bool read_only)
{
    char name[64];
    snprintf(name, sizeof name, "%s/synced", folder);
    return openat(dir_fd, name,
                  (read_only ? O_RDONLY : O_RDWR | O_CREAT) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

uint64_t catalog_mark_read(int fd)
{
    struct mark m;
    if (fd < 0 || pread(fd, &m, sizeof m, 0) != (ssize_t)sizeof m || m.sum != mark_sum(m.n_changes))
        return 0;
    return m.n_changes;
}

void catalog_mark_write(int fd, uint64_t n_changes)
{
    const struct mark m = {n_changes, mark_sum(n_changes)};
    if (fd >= 0 && pwrite(fd, &m, sizeof m, 0) != (ssize_t)sizeof m)
        (void)ftruncate(fd, 0); /* it says nothing then */
}

/* ---- names ------------------------------------------------------------------------------------------- */

static bool is_there(int dir_fd, const char *folder)
{
    return faccessat(dir_fd, folder, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* What a rebuild left that ended in the middle. Where both are there, the one with the usual name is whole:
 * the new one took that name when it was. Where only the new one is, it is whole as well, for it was when the
 * other one was put aside. */
static int names_settle(int dir_fd)
{
    int rc = 0;
    if (is_there(dir_fd, CATALOG_FOLDER))
        rc = folder_remove(dir_fd, CATALOG_FOLDER_NEW);
    else if (is_there(dir_fd, CATALOG_FOLDER_NEW) &&
             (renameat(dir_fd, CATALOG_FOLDER_NEW, dir_fd, CATALOG_FOLDER) < 0 || fsync(dir_fd) < 0))
        rc = -errno;
    return rc == 0 ? folder_remove(dir_fd, CATALOG_FOLDER_OLD) : rc;
}

static int folder_make(int dir_fd, const char *folder, char *err, size_t err_len)
{
    if (mkdirat(dir_fd, folder, 0700) == 0 || errno == EEXIST)
        return CS_OK;
    snprintf(err, err_len, "cannot make the folder: %s", strerror(errno));
    return CS_EIO;
}

int catalog_folder_ready(int dir_fd, bool read_only, char *err, size_t err_len)
{
    if (read_only) {
        if (faccessat(dir_fd, CATALOG_FOLDER "/CURRENT", F_OK, 0) == 0)
            return CS_OK;
        int problem = errno;
        snprintf(err, err_len, "%s", problem == EACCES ? strerror(problem) : "there is none");
        return problem == EACCES ? CS_EIO : CS_ECORRUPT;
    }
    int rc = names_settle(dir_fd);
    if (rc < 0) {
        snprintf(err, err_len, "cannot end a rebuild: %s", strerror(-rc));
        return CS_EIO;
    }
    /* RocksDB would make it readable by others. */
    return folder_make(dir_fd, CATALOG_FOLDER, err, err_len);
}

int catalog_folder_new(int dir_fd, char *err, size_t err_len)
{
    int rc = folder_remove(dir_fd, CATALOG_FOLDER_NEW);
    if (rc < 0) {
        snprintf(err, err_len, "cannot remove what an earlier rebuild left: %s", strerror(-rc));
        return CS_EIO;
    }
    return folder_make(dir_fd, CATALOG_FOLDER_NEW, err, err_len);
}

int catalog_replace(int dir_fd)
{
    bool both = is_there(dir_fd, CATALOG_FOLDER);
    if (both && renameat2(dir_fd, CATALOG_FOLDER_NEW, dir_fd, CATALOG_FOLDER, RENAME_EXCHANGE) == 0) {
        if (fsync(dir_fd) < 0)
            return -errno;
        (void)folder_remove(dir_fd, CATALOG_FOLDER_NEW); /* or the next open does */
        return 0;
    }
    if (both && errno != EINVAL && errno != ENOSYS)
        return -errno;
    /* A file system without exchange: the old one is put aside, in one step, and its absence says that the
     * new one is whole. */
    int rc = both ? folder_remove(dir_fd, CATALOG_FOLDER_OLD) : 0;
    if (rc < 0)
        return rc;
    if ((both && renameat(dir_fd, CATALOG_FOLDER, dir_fd, CATALOG_FOLDER_OLD) < 0) || fsync(dir_fd) < 0 ||
        renameat(dir_fd, CATALOG_FOLDER_NEW, dir_fd, CATALOG_FOLDER) < 0 || fsync(dir_fd) < 0)
        return -errno;
    (void)folder_remove(dir_fd, CATALOG_FOLDER_OLD); /* or the next open does */
    return 0;
}
