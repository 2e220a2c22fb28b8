/*
 * The disk's ceiling: files beside or of a store, 1 MiB O_DIRECT requests through io_uring and nothing else.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OP_BYTES   ((size_t)1 << 20)
#define DEPTH_MAX  64
#define PATH_BYTES (4096 + 256)
#define SYNC_TAG   UINT64_MAX

void bench_remove_tree(const char *path)
{
    DIR *d = opendir(path);
    if (!d) {
        unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char inner[PATH_BYTES];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%.4090s/%s", path, e->d_name);
        bench_remove_tree(inner);
    }
    closedir(d);
    rmdir(path);
}

/* The largest file of a folder, opened with O_DIRECT; -1: none. */
static int open_largest(const char *dir, off_t *size)
{
    char best[PATH_BYTES] = "";
    char path[PATH_BYTES];
    *size = 0;
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        snprintf(path, sizeof path, "%.4090s/%s", dir, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > *size) {
            *size = st.st_size;
            memcpy(best, path, sizeof best);
        }
    }
    closedir(d);
    return open(best, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

uint64_t ceiling_disk_file_bytes(const char *dir)
{
    off_t size;
    int fd = open_largest(dir, &size);
    if (fd < 0)
        return 0;
    close(fd);
    return (uint64_t)size;
}

struct stream {
    int fd;
    bool write;
    uint8_t *memory;
    size_t memory_ops; /* requests that the memory has room for; used in turns */
    size_t file_ops;   /* requests that the file has room for; in turns, too */
    unsigned depth, n_syncs;
};

/* Seconds for n requests and the syncs spread among them, the last one behind all; 0: something failed. */
static double stream_run(const struct stream *s, size_t n)
{
    struct io_uring ring;
    size_t sent = 0, done = 0, syncs_sent = 0, syncs_done = 0;
    bool good = io_uring_queue_init(2 * DEPTH_MAX, &ring, 0) == 0;
    if (!good)
        return 0;
    double start = wall_s();
    while (good && (done < n || syncs_done < s->n_syncs)) {
        while (sent < n && sent - done < s->depth) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            uint8_t *at = s->memory + sent % s->memory_ops * OP_BYTES;
            uint64_t offset = sent % s->file_ops * OP_BYTES;
            if (s->write)
                io_uring_prep_write(sqe, s->fd, at, OP_BYTES, offset);
            else
                io_uring_prep_read(sqe, s->fd, at, OP_BYTES, offset);
            io_uring_sqe_set_data64(sqe, 0);
            sent++;
        }
        if (syncs_sent == syncs_done && syncs_sent < s->n_syncs &&
            done >= n * (syncs_sent + 1) / s->n_syncs) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_fsync(sqe, s->fd, IORING_FSYNC_DATASYNC);
            io_uring_sqe_set_data64(sqe, SYNC_TAG);
            syncs_sent++;
        }
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(&ring, 1);
        good = rc >= 0 || rc == -EINTR;
        while (good && io_uring_peek_cqe(&ring, &cqe) == 0) {
            bool sync = io_uring_cqe_get_data64(cqe) == SYNC_TAG;
            good = cqe->res == (sync ? 0 : (int)OP_BYTES);
            if (sync)
                syncs_done++;
            else
                done++;
            io_uring_cqe_seen(&ring, cqe);
        }
    }
    double seconds = wall_s() - start;
    io_uring_queue_exit(&ring);
    return good ? seconds : 0;
}

double ceiling_disk_read_s(const char *dir, uint64_t bytes, unsigned depth, void *memory,
                           uint64_t memory_bytes)
{
    off_t size;
    double seconds = 0;
    uint8_t *own = NULL;
    struct stream s = {.fd = open_largest(dir, &size), .depth = depth < DEPTH_MAX ? depth : DEPTH_MAX};
    if (s.fd < 0)
        return 0;
    if (memory == NULL) {
        memory_bytes = s.depth * OP_BYTES;
        memory = own = aligned_alloc(4096, memory_bytes);
        if (own != NULL)
            memset(own, 1, memory_bytes);
    }
    s.memory = memory;
    s.memory_ops = (size_t)(memory_bytes / OP_BYTES);
    s.file_ops = (size_t)size / OP_BYTES;
    if (memory != NULL && s.memory_ops > 0 && s.file_ops > 0)
        seconds = stream_run(&s, (size_t)((bytes + OP_BYTES - 1) / OP_BYTES));
    free(own);
    close(s.fd);
    return seconds;
}

double ceiling_disk_write_s(const char *path, uint64_t bytes, unsigned depth, const void *memory,
                            uint64_t memory_bytes, unsigned n_syncs)
{
    size_t n = (size_t)((bytes + OP_BYTES - 1) / OP_BYTES);
    double seconds = 0;
    struct stream s = {.fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600),
                       .write = true,
                       .memory = (uint8_t *)(uintptr_t)memory,
                       .memory_ops = (size_t)(memory_bytes / OP_BYTES),
                       .file_ops = n,
                       .depth = depth < DEPTH_MAX ? depth : DEPTH_MAX,
                       .n_syncs = n_syncs};
    if (s.fd < 0)
        return 0;
    if (s.memory_ops > 0 && n > 0 && fallocate(s.fd, 0, 0, (off_t)(n * OP_BYTES)) == 0)
        seconds = stream_run(&s, n);
    close(s.fd);
    return seconds;
}
