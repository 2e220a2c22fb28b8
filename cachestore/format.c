/*
 * A new, empty store in a directory, in place of the one that is there if that is wanted. The new one has a
 * fresh UUID and secret, so nothing that is left of the old one could be found or proven.
 *
 * Threads: any; the directory's lock is held throughout.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachestore/catalog.h"
#include "cachestore/control.h"
#include "cachestore/inspect.h"
#include "cachestore/store_file.h"
#include "cachestore/volumes.h"

static bool has_type(int dir_fd, const char *name, mode_t type)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) == type;
}

static bool is_of_a_store(int dir_fd, const char *name)
{
    static const char *const names[] = {".",       "..",          "STORE",       "STORE.new",
                                        "catalog", "catalog.new", "catalog.old", "lost+found"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    if (strcmp(name, CONTROL_SOCKET_NAME) == 0)
        return has_type(dir_fd, name, S_IFSOCK);
    if (strcmp(name, CS_SCRATCH_FOLDER) == 0)
        return has_type(dir_fd, name, S_IFDIR);
    return strncmp(name, "volume.", 7) == 0 && strlen(name) == 10 && isdigit((unsigned char)name[7]) &&
           isdigit((unsigned char)name[8]) && isdigit((unsigned char)name[9]);
}

/* CS_OK: nothing of others is in the directory. */
static int directory_check(int dir_fd, char *err, size_t err_len)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        snprintf(err, err_len, "cannot list the directory: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return CS_EIO;
    }
    int rc = CS_OK;
    const struct dirent *e;
    while (rc == CS_OK && (e = readdir(d)) != NULL) {
        if (is_of_a_store(dir_fd, e->d_name))
            continue;
        snprintf(err, err_len, "'%s' in the directory is no part of a store; nothing was removed", e->d_name);
        rc = CS_EFORMAT;
    }
    closedir(d);
    return rc;
}

/* STORE goes last: while it is there, what is left counts as a store. */
static int store_remove(int dir_fd, char *err, size_t err_len)
{
    const char *what = "catalogue";
    int rc = catalog_remove(dir_fd);
    if (rc == 0) {
        what = "volumes";
        rc = volumes_remove(dir_fd);
    }
    (void)unlinkat(dir_fd, CONTROL_SOCKET_NAME, 0); /* of a process that is gone */
    store_scratch_remove(dir_fd);
    if (rc == 0 && (fsync(dir_fd) < 0 || (unlinkat(dir_fd, "STORE", 0) < 0 && errno != ENOENT))) {
        what = "STORE file";
        rc = -errno;
    }
    if (rc < 0)
        snprintf(err, err_len, "cannot remove the old %s: %s", what, strerror(-rc));
    return rc < 0 ? CS_EIO : CS_OK;
}

int cs_format(const char *dir, uint64_t chunk_bytes, bool replace, char *err, size_t err_len)
{
    struct store_file store;
    int dir_fd = -1;
    if (chunk_bytes == 0)
        chunk_bytes = FMT_RECORD_CHUNK_BYTES;
    if (chunk_bytes < FMT_RECORD_CHUNK_BYTES_MIN || chunk_bytes > FMT_RECORD_CHUNK_BYTES_MAX ||
        (chunk_bytes & (chunk_bytes - 1)) != 0) {
        snprintf(err, err_len, "chunks must be a power of two from %u to %u bytes",
                 FMT_RECORD_CHUNK_BYTES_MIN, FMT_RECORD_CHUNK_BYTES_MAX);
        return CS_EINVAL;
    }
    int rc = store_dir_lock(dir, true, &dir_fd, err, err_len);
    if (rc != CS_OK)
        return rc;
    rc = store_file_read(dir_fd, &store, err, err_len);
    if (rc != CS_ENOTFOUND && !replace) { /* damaged or of another version: a store all the same */
        snprintf(err, err_len, "there is a store already; it is replaced only when that is asked for");
        rc = CS_EINVAL;
    } else {
        rc = directory_check(dir_fd, err, err_len);
    }
    if (rc == CS_OK && replace)
        rc = store_remove(dir_fd, err, err_len);
    if (rc == CS_OK)
        rc = store_file_create(dir_fd, (uint32_t)chunk_bytes, &store, err, err_len);
    close(dir_fd);
    return rc;
}
