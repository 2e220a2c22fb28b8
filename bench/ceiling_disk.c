/*
 * The disk's ceiling: the same volume file that a store reads, through io_uring and nothing else.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include <dirent.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)1 << 20)
#define READ_DEPTH 64
#define PATH_BYTES (4096 + 256)

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

double ceiling_disk_read_s(const char *dir, uint64_t bytes)
{
    off_t size;
    double seconds = 0;
    struct io_uring ring;
    int fd = open_largest(dir, &size);
    size_t in_file = (size_t)size / READ_BYTES;
    if (fd < 0)
        return 0;
    size_t n = (size_t)((bytes + READ_BYTES - 1) / READ_BYTES);
    uint8_t *buffer = aligned_alloc(4096, READ_DEPTH * READ_BYTES);
    if (!buffer || in_file == 0 || io_uring_queue_init(READ_DEPTH, &ring, 0) != 0)
        goto out;
    memset(buffer, 1, READ_DEPTH * READ_BYTES);
    double start = wall_s();
    size_t sent = 0;
    size_t done = 0;
    while (done < n) {
        while (sent < n && sent - done < READ_DEPTH) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            io_uring_prep_read(sqe, fd, buffer + sent % READ_DEPTH * READ_BYTES, READ_BYTES,
                               sent % in_file * READ_BYTES);
            sent++;
        }
        struct io_uring_cqe *cqe;
        if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_wait_cqe(&ring, &cqe) != 0 ||
            cqe->res != (int)READ_BYTES)
            break;
        io_uring_cqe_seen(&ring, cqe);
        done++;
    }
    seconds = done == n ? wall_s() - start : 0;
    io_uring_queue_exit(&ring);
out:
    free(buffer);
    close(fd);
    return seconds;
}
