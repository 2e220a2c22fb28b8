/* See volumes.h. */
#include "cachestore/volumes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void volume_name(char name[24], uint32_t index)
{
    snprintf(name, 24, "volume.%03u", index);
}

/* Whether the file system takes O_DIRECT at our alignment. Where it does not say, it is taken at its word:
 * the open succeeded. */
static bool direct_usable(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN) != 0)
        return sx.stx_dio_mem_align != 0 && sx.stx_dio_mem_align <= FMT_RECORD_ALIGN &&
               sx.stx_dio_offset_align <= FMT_RECORD_ALIGN;
#endif
    return fd >= 0;
}

/* -1 with errno. Direct and buffered I/O never mix on one file: once refused, all volumes are opened
 * buffered. */
static int volume_open_file(struct volumes *v, uint32_t index, int extra)
{
    char name[24];
    volume_name(name, index);
    int flags = (v->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | extra;
    struct stat st; /* opening a pipe would wait for its other end */
    if (fstatat(v->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    if (v->direct) {
        int fd = openat(v->dir_fd, name, flags | O_DIRECT, 0600);
        if (fd >= 0 && direct_usable(fd))
            return fd;
        if (fd < 0 && errno != EINVAL)
            return -1;
        if (fd >= 0)
            close(fd);
        v->direct = false;
        flags &= ~O_EXCL;
    }
    return openat(v->dir_fd, name, flags, 0600);
}

static int volume_append(struct volumes *v, int fd)
{
    struct volume *grown = realloc(v->volume, (v->n_volumes + 1) * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    v->volume = grown;
    memset(&grown[v->n_volumes], 0, sizeof *grown);
    grown[v->n_volumes++].fd = fd;
    return 0;
}

/* How many volumes there are, one that was lost counted as long as there are others behind it: it keeps its
 * place, or those would be renumbered. */
static int count_places(int dir_fd, uint32_t *out)
{
    *out = 0;
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        int rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    const struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        char name[24];
        if (strncmp(e->d_name, "volume.", 7) != 0)
            continue;
        unsigned long index = strtoul(e->d_name + 7, NULL, 10);
        if (index >= VOLUME_COUNT_MAX)
            continue;
        volume_name(name, (uint32_t)index);
        if (strcmp(name, e->d_name) == 0 && index >= *out)
            *out = (uint32_t)index + 1;
    }
    closedir(d);
    return 0;
}

int volumes_open(struct volumes *v, int dir_fd, uint32_t chunk_bytes, uint64_t extent_bytes, bool read_only)
{
    memset(v, 0, sizeof *v);
    v->dir_fd = dir_fd;
    v->chunk_bytes = chunk_bytes;
    v->read_only = read_only;
    v->direct = !read_only; /* inspection reads through the page cache, into any buffer */
    uint64_t extent_chunks = extent_bytes / chunk_bytes;
    v->extent_chunks = extent_chunks == 0           ? 1
                       : extent_chunks > (1u << 24) ? 1u << 24
                                                    : (uint32_t)extent_chunks;

    uint32_t last;
    int rc = count_places(dir_fd, &last);
    if (rc < 0)
        goto fail;
    for (uint32_t i = 0; i < last; i++) {
        int fd = volume_open_file(v, i, 0);
        if (fd < 0 && errno != ENOENT) {
            rc = -errno;
            goto fail;
        }
        rc = volume_append(v, fd);
        if (rc < 0) {
            if (fd >= 0)
                close(fd);
            goto fail;
        }
        struct stat st = {0};
        if (fd >= 0 && fstat(fd, &st) < 0) {
            rc = -errno;
            goto fail;
        }
        uint64_t n = (uint64_t)st.st_size / chunk_bytes;
        if (n > UINT32_MAX || chunks_resize(&v->volume[i].chunks, (uint32_t)n) < 0) {
            rc = -ENOMEM;
            goto fail;
        }
    }
    return 0;
fail:
    volumes_close(v);
    return rc;
}

void volumes_close(struct volumes *v)
{
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        if (v->volume[i].fd >= 0)
            close(v->volume[i].fd);
        chunks_free(&v->volume[i].chunks);
    }
    free(v->volume);
    v->volume = NULL;
    v->n_volumes = 0;
}

int volumes_open_buffered(const struct volumes *v, uint32_t index)
{
    char name[24];
    volume_name(name, index);
    int fd = openat(v->dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

int volumes_remove(int dir_fd)
{
    for (uint32_t i = 0; i < VOLUME_COUNT_MAX; i++) {
        char name[24];
        volume_name(name, i);
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
            return -errno;
    }
    return 0;
}

bool volumes_claim(struct volumes *v, const struct fmt_record_run *runs, uint32_t n_runs)
{
    for (uint32_t i = 0; i < n_runs; i++) {
        if (runs[i].volume < v->n_volumes &&
            chunks_claim(&v->volume[runs[i].volume].chunks, runs[i].first_chunk, runs[i].n_chunks))
            continue;
        volumes_release(v, runs, i);
        return false;
    }
    return true;
}

void volumes_release(struct volumes *v, const struct fmt_record_run *runs, uint32_t n_runs)
{
    for (uint32_t i = 0; i < n_runs; i++)
        chunks_release(&v->volume[runs[i].volume].chunks, runs[i].first_chunk, runs[i].n_chunks);
}

bool volumes_is_free(const struct volumes *v, uint32_t volume, uint32_t chunk)
{
    return volume < v->n_volumes && v->volume[volume].fd >= 0 &&
           chunks_is_free(&v->volume[volume].chunks, chunk);
}

uint64_t volumes_used_bytes(const struct volumes *v)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < v->n_volumes; i++)
        n += v->volume[i].chunks.n_used;
    return n * v->chunk_bytes;
}

uint64_t volumes_backed_bytes(const struct volumes *v)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < v->n_volumes; i++)
        n += v->volume[i].chunks.n_backed;
    return n * v->chunk_bytes;
}

uint64_t volumes_file_bytes(const struct volumes *v)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        struct stat st;
        if (v->volume[i].fd >= 0 && fstat(v->volume[i].fd, &st) == 0)
            bytes += (uint64_t)st.st_blocks * 512;
    }
    return bytes;
}

static int punch(int fd, uint64_t offset, uint64_t len)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)len);
}

void volumes_empty_unused(struct volumes *v)
{
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        struct chunks *c = &v->volume[i].chunks;
        int fd = v->volume[i].fd < 0 ? -1 : volumes_open_buffered(v, i);
        for (uint32_t at = 0, end; fd >= 0 && at < c->n; at = end) {
            bool used = chunks_is_used(c, at);
            for (end = at + 1; end < c->n && chunks_is_used(c, end) == used; end++)
                ;
            if (!used && punch(fd, (uint64_t)at * v->chunk_bytes, (uint64_t)(end - at) * v->chunk_bytes) == 0)
                chunks_set_backed(c, at, end - at, false);
        }
        if (fd >= 0)
            close(fd);
    }
}

int volumes_settle(struct volumes *v)
{
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        struct volume *vol = &v->volume[i];
        struct stat st;
        if (vol->fd < 0)
            continue;
        if (fstat(vol->fd, &st) < 0)
            return -errno;
        /* A whole file was never shrunk: every chunk has room. One with holes does not say where they are
         * without asking for each; make the answer simple by emptying everything that is free. */
        bool whole = (uint64_t)st.st_blocks * 512 >= (uint64_t)vol->chunks.n * v->chunk_bytes;
        for (uint32_t c = 0; c < vol->chunks.n;) {
            uint32_t first, n = chunks_find_hole(&vol->chunks, c, UINT32_MAX, &first);
            if (n == 0)
                break;
            if (whole || punch(vol->fd, (uint64_t)first * v->chunk_bytes, (uint64_t)n * v->chunk_bytes) < 0)
                chunks_set_backed(&vol->chunks, first, n, true);
            c = first + n;
        }
    }
    return 0;
}

/* Room for [first, first + n) of a volume. File systems without fallocate get a longer file instead: the
 * budget still bounds its length. */
static int back(struct volumes *v, struct volume *vol, uint32_t first, uint32_t n)
{
    uint64_t offset = (uint64_t)first * v->chunk_bytes, len = (uint64_t)n * v->chunk_bytes;
    int rc;
    do {
        rc = fallocate(vol->fd, 0, (off_t)offset, (off_t)len);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno == EOPNOTSUPP) {
        struct stat st;
        rc = fstat(vol->fd, &st);
        if (rc == 0 && (uint64_t)st.st_size < offset + len)
            rc = ftruncate(vol->fd, (off_t)(offset + len));
    }
    if (rc < 0) /* limits of the file or of the user are room that is not there, too */
        return errno == EFBIG || errno == EDQUOT ? -ENOSPC : -errno;
    vol->dirty = true;
    chunks_set_backed(&vol->chunks, first, n, true);
    return 0;
}

/* Chunks that the file system has room for. What cannot be asked is found out by trying. */
static uint64_t file_system_chunks(const struct volumes *v)
{
    struct statvfs fs;
    if (fstatvfs(v->dir_fd, &fs) < 0)
        return UINT32_MAX;
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return bytes > v->reserve_bytes ? (bytes - v->reserve_bytes) / v->chunk_bytes : 0;
}

static int volume_begin(struct volumes *v)
{
    if (v->n_volumes == VOLUME_COUNT_MAX)
        return -ENOSPC;
    int fd = volume_open_file(v, v->n_volumes, O_CREAT | O_EXCL);
    if (fd < 0)
        return -errno;
    int rc = fsync(v->dir_fd) < 0 ? -errno : volume_append(v, fd);
    if (rc < 0)
        close(fd);
    return rc;
}

/* Makes up to `want` more free chunks, more where the extent allows, fewer where the file system is nearly
 * full. 0 or -errno. */
static int grow(struct volumes *v, uint32_t want)
{
    uint64_t backed = volumes_backed_bytes(v);
    uint64_t room = v->limit_bytes > backed ? (v->limit_bytes - backed) / v->chunk_bytes : 0;
    uint64_t there = file_system_chunks(v);
    if (room > there)
        room = there;
    if (room == 0)
        return -ENOSPC;
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        struct volume *vol = &v->volume[i];
        uint32_t first, n;
        if (vol->fd < 0)
            continue;
        n = chunks_find_hole(&vol->chunks, 0, room < want ? (uint32_t)room : want, &first);
        if (n > 0)
            return back(v, vol, first, n);
    }
    uint32_t full = VOLUME_EXTENTS * v->extent_chunks;
    if (v->n_volumes == 0 || v->volume[v->n_volumes - 1].chunks.n >= full ||
        v->volume[v->n_volumes - 1].fd < 0) {
        int rc = volume_begin(v);
        if (rc < 0)
            return rc;
    }
    struct volume *vol = &v->volume[v->n_volumes - 1];
    uint32_t first = vol->chunks.n, n = v->extent_chunks < want ? want : v->extent_chunks;
    if (n > room)
        n = (uint32_t)room;
    for (;;) {
        if (chunks_resize(&vol->chunks, first + n) < 0)
            return -ENOMEM;
        int rc = back(v, vol, first, n);
        if (rc == 0)
            return 0;
        /* A file system that ran full on the way keeps what it has given: let go of it. */
        if (ftruncate(vol->fd, (off_t)((uint64_t)first * v->chunk_bytes)) < 0)
            return rc;
        chunks_resize(&vol->chunks, first);
        /* A quota or a limit may still allow less. */
        if (rc != -ENOSPC || n <= want)
            return rc;
        n = n / 2 > want ? n / 2 : want;
    }
}

/* One run of n_chunks if any volume has it; with `whole` false the first fragment instead. */
static bool take_run(struct volumes *v, uint32_t n_chunks, bool whole, struct fmt_record_run *run)
{
    for (uint32_t i = 0; i < v->n_volumes; i++) {
        uint32_t first, n;
        if (v->volume[i].fd < 0)
            continue;
        n = chunks_find_free(&v->volume[i].chunks, n_chunks, &first);
        if (n == 0 || (whole && n < n_chunks))
            continue;
        chunks_claim(&v->volume[i].chunks, first, n);
        *run = (struct fmt_record_run){.volume = i, .first_chunk = first, .n_chunks = n};
        return true;
    }
    return false;
}

int volumes_alloc(struct volumes *v, uint32_t n_chunks, struct fmt_record_run *runs, uint32_t *n_runs)
{
    *n_runs = 0;
    if (volumes_used_bytes(v) + (uint64_t)n_chunks * v->chunk_bytes > v->limit_bytes)
        return -ENOSPC;
    if (take_run(v, n_chunks, true, &runs[0])) {
        *n_runs = 1;
        return 0;
    }
    /* Grow before using fragments: a record in one run is read in fewer requests. Where that fails, fragments
     * do. */
    grow(v, n_chunks);
    uint32_t left = n_chunks;
    while (left > 0) {
        if (take_run(v, left, *n_runs == 0, &runs[*n_runs]) || take_run(v, left, false, &runs[*n_runs])) {
            left -= runs[(*n_runs)++].n_chunks;
            continue;
        }
        int grown = grow(v, left);
        if (grown < 0) {
            volumes_release(v, runs, *n_runs);
            *n_runs = 0;
            return grown;
        }
    }
    return 0;
}

void volumes_trim(struct volumes *v)
{
    for (uint32_t i = v->n_volumes; i > 0; i--) {
        struct volume *vol = &v->volume[i - 1];
        while (vol->fd >= 0) {
            uint64_t backed = volumes_backed_bytes(v);
            uint32_t over, first, n;
            if (backed <= v->limit_bytes)
                return;
            over = (uint32_t)((backed - v->limit_bytes + v->chunk_bytes - 1) / v->chunk_bytes);
            n = chunks_find_last_free(&vol->chunks, over, &first);
            if (n == 0 || punch(vol->fd, (uint64_t)first * v->chunk_bytes, (uint64_t)n * v->chunk_bytes) < 0)
                break;
            chunks_set_backed(&vol->chunks, first, n, false);
            uint32_t end = chunks_end(&vol->chunks);
            if (end < vol->chunks.n && ftruncate(vol->fd, (off_t)((uint64_t)end * v->chunk_bytes)) == 0)
                chunks_resize(&vol->chunks, end);
        }
    }
}

void volumes_set_limit(struct volumes *v, uint64_t limit_bytes)
{
    v->limit_bytes = limit_bytes;
    volumes_trim(v);
}
