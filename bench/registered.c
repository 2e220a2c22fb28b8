/*
 * What io_uring gains from files and buffers that are registered, for the requests of the disk tier: 1 MiB,
 * O_DIRECT, each of sixteen pages that lie anywhere in an arena. One ring, one thread, four requests at a
 * time, the ways in turns: processor time and speed of each.
 *
 *   registered [--small-pages] DIR [MIB [ROUNDS]]     DIR gets a file of MIB, which is removed at the end
 *
 * "one piece" is READ_FIXED as every kernel with io_uring has it, and the same request unregistered; many
 * pieces of registered memory (READV_FIXED) need Linux 6.15.
 */
#include "bench/clock.h"
#include "bench/numbers.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECES = 16, PIECE_BYTES = 64 << 10, OP_BYTES = PIECES * PIECE_BYTES, DEPTH = 4, ROUNDS_MAX = 99 };
/* Numbers that older headers lack. */
enum { OP_READV_FIXED = 60, OP_WRITEV_FIXED = 61 };
#define BUFFER_MOST ((uint64_t)1 << 30) /* of one registered buffer */

enum { REGISTERED_FILE = 1, REGISTERED_BUFFER = 2, ONE_PIECE = 4 };
static const struct way {
    const char *name;
    unsigned flags;
} ways[] = {
    {"as it is", 0},
    {"files", REGISTERED_FILE},
    {"files, buffers", REGISTERED_FILE | REGISTERED_BUFFER},
    {"one piece", ONE_PIECE},
    {"one piece, files, buffers", ONE_PIECE | REGISTERED_FILE | REGISTERED_BUFFER},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

struct bench {
    struct io_uring ring;
    int fd;
    uint8_t *memory;
    uint64_t bytes;
    uint32_t *piece; /* shuffled */
    struct iovec (*iov)[PIECES];
    bool vectors; /* READV_FIXED is there */
};

static double process_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void prepare(struct bench *b, struct io_uring_sqe *sqe, unsigned flags, bool write, uint64_t op)
{
    uint64_t offset = op * OP_BYTES;
    uint8_t *at = b->memory + offset;
    int fd = flags & REGISTERED_FILE ? 0 : b->fd;
    int index = (int)(offset / BUFFER_MOST);
    if (flags & ONE_PIECE) {
        if (flags & REGISTERED_BUFFER)
            (write ? io_uring_prep_write_fixed(sqe, fd, at, OP_BYTES, offset, index)
                   : io_uring_prep_read_fixed(sqe, fd, at, OP_BYTES, offset, index));
        else
            write ? io_uring_prep_write(sqe, fd, at, OP_BYTES, offset)
                  : io_uring_prep_read(sqe, fd, at, OP_BYTES, offset);
    } else {
        write ? io_uring_prep_writev(sqe, fd, b->iov[op], PIECES, offset)
              : io_uring_prep_readv(sqe, fd, b->iov[op], PIECES, offset);
        if (flags & REGISTERED_BUFFER) {
            sqe->opcode = write ? OP_WRITEV_FIXED : OP_READV_FIXED;
            sqe->buf_index = (uint16_t)index;
        }
    }
    if (flags & REGISTERED_FILE)
        sqe->flags |= IOSQE_FIXED_FILE;
}

/* The whole file once. 0 or -errno. */
static int pass(struct bench *b, unsigned flags, bool write)
{
    uint64_t n = b->bytes / OP_BYTES, sent = 0, done = 0;
    while (done < n) {
        for (; sent < n && sent - done < DEPTH; sent++)
            prepare(b, io_uring_get_sqe(&b->ring), flags, write, sent);
        int rc = io_uring_submit_and_wait(&b->ring, 1);
        if (rc < 0 && rc != -EINTR)
            return rc;
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&b->ring, &cqe) == 0) {
            int result = cqe->res;
            io_uring_cqe_seen(&b->ring, cqe);
            if (result != OP_BYTES)
                return result < 0 ? result : -EIO;
            done++;
        }
    }
    return 0;
}

static int measure(struct bench *b, bool write, uint32_t rounds)
{
    static double speed[N_WAYS][ROUNDS_MAX], cpu[N_WAYS][ROUNDS_MAX];
    for (uint32_t i = 0; i < rounds; i++) {
        for (unsigned k = 0; k < N_WAYS; k++) {
            unsigned flags = ways[k].flags;
            if ((flags & REGISTERED_BUFFER) && !(flags & ONE_PIECE) && !b->vectors)
                continue;
            double wall = wall_s(), ran = process_s();
            int rc = pass(b, flags, write);
            if (rc < 0) {
                fprintf(stderr, "registered: %s: %s\n", ways[k].name, strerror(-rc));
                return -1;
            }
            speed[k][i] = (double)b->bytes / (wall_s() - wall) * 1e-9;
            cpu[k][i] = (process_s() - ran) * 1e3 * (double)(1 << 30) / (double)b->bytes;
        }
    }
    for (unsigned k = 0; k < N_WAYS; k++) {
        if (speed[k][0] == 0)
            continue;
        double middle = median(cpu[k], rounds); /* sorts */
        printf("%-5s  %-26s %6.2f GB/s   %6.1f ms of processor a GiB (%.1f to %.1f)\n",
               write ? "write" : "read", ways[k].name, median(speed[k], rounds), middle, cpu[k][0],
               cpu[k][rounds - 1]);
    }
    return 0;
}

static int memory_open(struct bench *b, bool small)
{
    uint64_t n = b->bytes / PIECE_BYTES;
    b->piece = malloc(n * sizeof *b->piece);
    b->iov = malloc(b->bytes / OP_BYTES * sizeof *b->iov);
    b->memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b->piece || !b->iov || b->memory == MAP_FAILED)
        return -ENOMEM;
    (void)madvise(b->memory, b->bytes, small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memset(b->memory, 1, b->bytes);
    uint64_t x = 7;
    for (uint64_t i = 0; i < n; i++)
        b->piece[i] = (uint32_t)i;
    for (uint64_t i = n - 1; i > 0; i--) { /* within one registered buffer, which a request cannot leave */
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t first = i / (BUFFER_MOST / PIECE_BYTES) * (BUFFER_MOST / PIECE_BYTES);
        uint64_t k = first + (x >> 33) % (i - first + 1);
        uint32_t t = b->piece[i];
        b->piece[i] = b->piece[k];
        b->piece[k] = t;
    }
    for (uint64_t i = 0; i < n; i++)
        b->iov[i / PIECES][i % PIECES] =
            (struct iovec){b->memory + (uint64_t)b->piece[i] * PIECE_BYTES, PIECE_BYTES};
    return 0;
}

static int ring_open(struct bench *b)
{
    struct iovec buffers[64];
    unsigned n = 0;
    int rc = io_uring_queue_init(64, &b->ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (rc < 0)
        return rc;
    for (uint64_t at = 0; at < b->bytes && n < 64; at += BUFFER_MOST)
        buffers[n++] =
            (struct iovec){b->memory + at, b->bytes - at < BUFFER_MOST ? b->bytes - at : BUFFER_MOST};
    double start = wall_s();
    rc = io_uring_register_buffers(&b->ring, buffers, n);
    if (rc == 0) {
        printf("%.0f MiB registered in %.1f ms\n", (double)b->bytes / (1 << 20), (wall_s() - start) * 1e3);
        rc = io_uring_register_files(&b->ring, &b->fd, 1);
    }
    struct io_uring_probe *probe = io_uring_get_probe_ring(&b->ring);
    b->vectors = probe && probe->last_op >= OP_WRITEV_FIXED;
    io_uring_free_probe(probe);
    return rc;
}

int main(int argc, char **argv)
{
    bool small = argc > 1 && strcmp(argv[1], "--small-pages") == 0;
    uint32_t mib = 512, rounds = 9;
    char path[4096];
    struct bench b = {0};
    argc -= small;
    argv += small;
    if (argc < 2 || argc > 4 || (argc > 2 && !parse_number(argv[2], 1, 1 << 15, &mib)) ||
        (argc > 3 && !parse_number(argv[3], 1, ROUNDS_MAX, &rounds))) {
        fprintf(stderr, "usage: registered [--small-pages] DIR [MIB [ROUNDS]]\n");
        return 2;
    }
    b.bytes = (uint64_t)mib << 20;
    snprintf(path, sizeof path, "%s/registered.bench", argv[1]);
    b.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    int rc = b.fd < 0 ? -errno : -posix_fallocate(b.fd, 0, (off_t)b.bytes);
    if (rc == 0)
        rc = memory_open(&b, small);
    if (rc == 0)
        rc = ring_open(&b);
    if (rc < 0)
        fprintf(stderr, "registered: %s\n", strerror(-rc));
    else if (pass(&b, 0, true) != 0 || measure(&b, true, rounds) != 0 || measure(&b, false, rounds) != 0)
        rc = -EIO;
    unlink(path);
    if (b.ring.ring_fd > 0)
        io_uring_queue_exit(&b.ring);
    free(b.piece);
    free(b.iov);
    return rc == 0 ? 0 : 1;
}
