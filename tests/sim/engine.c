/*
 * The simulated I/O engine: completes requests in any order, late, in part, with errors, or never, and does
 * with the bytes what bad disks do. Asked for the threads of pread.c, the store gets those, on coroutines,
 * whose system calls come back here.
 *
 * Bytes move at the moment of completion, so that memory which is used again too early shows. A process that
 * is killed leaves each write in flight done, undone or torn.
 */
#include "tests/sim/engine.h"
#include "cachestore/io/io.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 96, N_MARKS = 4096 };

/* One request in flight, or a system call of pread.c's. */
struct flight {
    struct io_op *op;
    const void *engine;
    uint64_t due_ns;
    uint64_t offset, bytes;
    struct iovec iov[64];
    unsigned n_iov;
    int fd;
    enum io_kind kind;
};

struct engine {
    struct io_engine base;
    bool woken;
};

static struct flight flights[N_SLOTS];
static uint32_t n_flights;
static struct sector_origin owners[ENGINE_VOLUMES][1024]; /* whose sectors these will be */
static struct {
    const void *memory;
    struct sector_origin origin;
} marks[N_MARKS];

void engine_reset(void)
{
    n_flights = 0;
    memset(owners, 0, sizeof owners);
}

/* ---- whose bytes ------------------------------------------------------------------------------------- */

void engine_own(uint32_t volume, uint64_t sector, struct sector_origin origin)
{
    if (volume < ENGINE_VOLUMES && sector < 1024)
        owners[volume][sector] = origin;
}

static void mark(const void *memory, struct sector_origin origin)
{
    uint32_t at = (uint32_t)((uintptr_t)memory / SECTOR % N_MARKS);
    marks[at].memory = memory;
    marks[at].origin = origin;
}

bool engine_read_origin(const void *memory, struct sector_origin *out)
{
    uint32_t at = (uint32_t)((uintptr_t)memory / SECTOR % N_MARKS);
    *out = marks[at].origin;
    return marks[at].memory == memory;
}

/* ---- moving bytes ------------------------------------------------------------------------------------ */

static void note_read(int volume, uint64_t offset, const char *memory, size_t n)
{
    uintptr_t inside = (uintptr_t)memory % SECTOR;
    bool whole = volume >= 0 && offset % SECTOR == 0 && inside == 0;
    for (size_t at = 0; at < n + inside; at += SECTOR)
        if (whole && n - at >= SECTOR)
            mark(memory + at, files_origin((uint32_t)volume, (offset + at) / SECTOR));
        else /* in parts: not known */
            marks[(uintptr_t)(memory - inside + at) / SECTOR % N_MARKS].memory = NULL;
}

static int move_read(int fd, uint64_t offset, const struct iovec *iov, unsigned n_iov, uint64_t most)
{
    int all = 0, volume = files_volume_of(fd);
    for (unsigned i = 0; i < n_iov && most > 0; i++) {
        size_t n = iov[i].iov_len < most ? iov[i].iov_len : most;
        int got = files_read(fd, offset, iov[i].iov_base, n);
        note_read(volume, offset, iov[i].iov_base, (size_t)got);
        all += got;
        offset += (uint64_t)got;
        most -= (uint64_t)got;
        if ((size_t)got < n)
            break;
    }
    return all;
}

enum { TORN_ALL = 256 };

/* These bytes stand there: whether they are written makes no difference, so nothing is damaged by either. */
static bool stands_there(int fd, uint64_t offset, const void *data, size_t n)
{
    char there[SECTOR];
    return files_read(fd, offset, there, n) == (int)n && memcmp(there, data, n) == 0;
}

/* For each sector whether it gets there: of 256, `torn` do not. */
static int move_write(int fd, uint64_t offset, const struct iovec *iov, unsigned n_iov, uint64_t most,
                      uint32_t torn, int64_t astray)
{
    int all = 0, volume = files_volume_of(fd);
    for (unsigned i = 0; i < n_iov && most > 0; i++) {
        size_t n = iov[i].iov_len < most ? iov[i].iov_len : most;
        for (size_t at = 0, part; at < n; at += part) {
            part = SECTOR - offset % SECTOR;
            if (part > n - at)
                part = n - at;
            struct sector_origin origin = {0};
            uint64_t sector = offset / SECTOR;
            if (volume >= 0 && volume < ENGINE_VOLUMES && sector < 1024)
                origin = owners[volume][sector];
            int64_t to = (int64_t)offset + astray * SECTOR;
            bool nowhere = astray != 0 && files_sector((uint32_t)volume, (uint64_t)to / SECTOR) == NULL;
            const char *data = (const char *)iov[i].iov_base + at;
            bool same = (torn > 0 || astray != 0) && stands_there(fd, offset, data, part);
            int rc = 0;
            bool gets_there = torn < TORN_ALL && (torn == 0 || sim_below(&sim.random_faults, 256) >= torn);
            if (gets_there && !nowhere && (astray == 0 || !stands_there(fd, (uint64_t)to, data, part)))
                rc = files_write(fd, (uint64_t)to, data, part, &origin);
            if (rc >= 0 && same)
                rc = files_write(fd, offset, data, part, &origin);
            if (rc < 0)
                return all > 0 ? all : rc;
            all += (int)part;
            offset += part;
        }
        most -= n;
    }
    return all;
}

static uint64_t shorter(uint64_t bytes)
{
    return bytes > 512 ? (1 + sim_below(&sim.random_faults, (uint32_t)(bytes / 512 - 1))) * 512 : bytes;
}

static int do_read(int fd, uint64_t offset, const struct iovec *iov, unsigned n_iov, uint64_t bytes)
{
    if (sim_fault(FAULT_read_error))
        return -EIO;
    if (sim_fault(FAULT_short_read))
        bytes = shorter(bytes);
    return move_read(fd, offset, iov, n_iov, bytes);
}

static int do_write(int fd, uint64_t offset, const struct iovec *iov, unsigned n_iov, uint64_t bytes)
{
    if (sim_fault(FAULT_write_error)) {
        (void)move_write(fd, offset, iov, n_iov, bytes, 128, 0); /* some of it may have got there */
        return -EIO;
    }
    if (sim_fault(FAULT_no_space))
        return -ENOSPC;
    if (sim_fault(FAULT_short_write))
        bytes = shorter(bytes);
    if (sim_fault(FAULT_lost_write))
        return move_write(fd, offset, iov, n_iov, bytes, TORN_ALL, 0);
    uint32_t torn = sim_fault(FAULT_torn_write) ? 128 : 0;
    int64_t astray = 0;
    if (sim_fault(FAULT_misdirected_write))
        astray = (int64_t)sim_below(&sim.random_faults, 16) - 8;
    if ((int64_t)(offset / SECTOR) + astray < 0)
        astray = 1;
    return move_write(fd, offset, iov, n_iov, bytes, torn, astray);
}

static int do_sync(int fd)
{
    if (sim_fault(FAULT_sync_error))
        return files_sync(fd, FILES_SYNC_FAILS);
    return files_sync(fd, sim_fault(FAULT_lost_flush) ? FILES_SYNC_LOST : FILES_SYNC_DONE);
}

static int do_request(const struct flight *f)
{
    if (sim_fault(FAULT_interrupted))
        return -EINTR;
    if (sim_fault(FAULT_again))
        return -EAGAIN;
    switch (f->kind) {
    case IO_READ:
        return do_read(f->fd, f->offset, f->iov, f->n_iov, f->bytes);
    case IO_WRITE:
        return do_write(f->fd, f->offset, f->iov, f->n_iov, f->bytes);
    case IO_SYNC:
        return do_sync(f->fd);
    }
    return -EINVAL;
}

static void say(const struct flight *f, int result)
{
    static const char *const names[] = {[IO_READ] = "read", [IO_WRITE] = "write", [IO_SYNC] = "sync"};
    sim_note((uint64_t)result);
    SIM_SAY("%s of %llu bytes at %llu of volume %d: %d", names[f->kind], (unsigned long long)f->bytes,
            (unsigned long long)f->offset, files_volume_of(f->fd), result);
}

/* ---- requests in flight ------------------------------------------------------------------------------ */

static uint64_t latency_ns(enum io_kind kind)
{
    uint64_t ns = 15000 + sim_below(&sim.random_faults, kind == IO_SYNC ? 2000000 : 150000);
    if (sim_fault(FAULT_late))
        ns += 1000000ull *
              (1 + sim_below(&sim.random_faults, sim_below(&sim.random_faults, 8) == 0 ? 20000 : 500));
    return ns;
}

static struct flight *flight_add(struct flight f)
{
    if (n_flights == N_SLOTS)
        return NULL;
    f.due_ns = sim_fault(FAULT_never) ? UINT64_MAX : sim.now_ns + latency_ns(f.kind);
    flights[n_flights] = f;
    return &flights[n_flights++];
}

bool engine_is_stuck(void)
{
    for (uint32_t i = 0; i < n_flights; i++)
        if (flights[i].due_ns == UINT64_MAX)
            return true;
    return copies_are_stuck();
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Memory of a request must stay until its end. */
void engine_given_back(const void *p, size_t n)
{
    for (uint32_t i = 0; i < n_flights; i++) {
        const struct flight *f = &flights[i];
        if (overlaps(p, n, f->op, sizeof *f->op))
            sim_fail("a request is given back while it is in flight");
        for (unsigned k = 0; k < f->n_iov; k++)
            if (overlaps(p, n, f->iov[k].iov_base, f->iov[k].iov_len))
                sim_fail("the memory of a request is given back while it is in flight");
    }
}

static int engine_submit(struct io_engine *e, struct io_op *op)
{
    bool own = false;
    for (uint32_t i = 0; i < n_flights; i++) {
        own = own || flights[i].engine == e;
        if (flights[i].op == op)
            sim_fail("a request is submitted again while it is in flight");
    }
    if (n_flights == N_SLOTS || (own && sim_fault(FAULT_again)))
        return -EAGAIN;
    struct flight f = {
        .op = op, .engine = e, .fd = op->fd, .offset = op->offset, .bytes = op->left, .kind = op->kind};
    if (op->kind != IO_SYNC) {
        if (op->n_iov > 64 || op->offset % 512 != 0)
            sim_fail("a request that a disk would refuse");
        memcpy(f.iov, op->iov, op->n_iov * sizeof f.iov[0]);
        f.n_iov = op->n_iov;
    }
    (void)flight_add(f);
    e->sqes++;
    e->submissions++;
    return 0;
}

static void engine_wait(struct io_engine *e, int timeout_ms)
{
    struct engine *s = (struct engine *)e;
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : sim.now_ns + (uint64_t)timeout_ms * 1000000u;
    fibers_yield();
    for (;;) {
        struct flight due[N_SLOTS];
        uint32_t n = 0;
        uint64_t next = until;
        for (uint32_t i = 0; i < n_flights;) {
            struct flight *f = &flights[i];
            if (f->engine != e || f->due_ns > sim.now_ns) {
                if (f->engine == e && f->due_ns < next)
                    next = f->due_ns;
                i++;
                continue;
            }
            due[n++] = *f;
            flights[i] = flights[--n_flights];
        }
        /* In any order. */
        for (uint32_t i = n; i > 1; i--) {
            uint32_t k = sim_below(&sim.random_faults, i);
            struct flight f = due[i - 1];
            due[i - 1] = due[k];
            due[k] = f;
        }
        for (uint32_t i = 0; i < n; i++) {
            int result = do_request(&due[i]);
            say(&due[i], result);
            e->complete(e->ctx, due[i].op, result);
        }
        if (n > 0 || s->woken || sim.now_ns >= until)
            break;
        (void)fibers_wait(s, next);
    }
    s->woken = false;
}

static void engine_wake(struct io_engine *e)
{
    struct engine *s = (struct engine *)e;
    s->woken = true;
    fibers_wake(s);
}

static void engine_close(struct io_engine *e)
{
    for (uint32_t i = 0; i < n_flights; i++)
        if (flights[i].engine == e)
            sim_fail("an engine is closed while a request is in flight");
    free(e);
}

static const struct io_engine_ops sim_ops = {
    .name = "sim", .submit = engine_submit, .wait = engine_wait, .wake = engine_wake, .close = engine_close};

int __wrap_io_engine_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len);
int __wrap_io_engine_open(enum cs_io_engine kind, struct io_engine **out, char *reason, size_t reason_len)
{
    *out = NULL;
    if (kind == CS_IO_PREAD)
        return io_pread_engine_open(out, reason, reason_len);
    struct engine *s = sim_fault(FAULT_call_error) ? NULL : calloc(1, sizeof *s);
    snprintf(reason, reason_len, "%s", s != NULL ? "simulated" : "out of memory");
    if (s == NULL)
        return -ENOMEM;
    s->base.ops = &sim_ops;
    *out = &s->base;
    return 0;
}

/* ---- the calls of pread.c ---------------------------------------------------------------------------- */

static ssize_t call(enum io_kind kind, int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    struct flight f = {.fd = fd, .offset = (uint64_t)offset, .kind = kind, .n_iov = (unsigned)n_iov};
    if (n_iov > 64)
        sim_fail("a request that a disk would refuse");
    for (int i = 0; i < n_iov; i++) {
        f.iov[i] = iov[i];
        f.bytes += iov[i].iov_len;
    }
    /* Its place in the list, so that a kill finds it; it has no engine that would take it out. */
    static uint64_t calls;
    f.engine = (const void *)(uintptr_t)(calls = calls % 100000 + 1);
    const void *tag = f.engine;
    struct flight *at = flight_add(f);
    uint64_t until = at != NULL ? at->due_ns : sim.now_ns + latency_ns(kind);
    (void)fibers_wait(&calls, until);
    for (uint32_t i = 0; i < n_flights; i++)
        if (flights[i].engine == tag) {
            flights[i] = flights[--n_flights];
            break;
        }
    int result = do_request(&f);
    say(&f, result);
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n_iov, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    return call(IO_READ, fd, iov, n_iov, offset);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n_iov, off_t offset);
ssize_t __wrap_pwritev(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    return call(IO_WRITE, fd, iov, n_iov, offset);
}

int engine_call_sync(int fd)
{
    return (int)call(IO_SYNC, fd, NULL, 0, 0);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void engine_process_ended(bool killed)
{
    memset(marks, 0, sizeof marks);
    for (uint32_t i = 0; i < n_flights && killed; i++) {
        const struct flight *f = &flights[i];
        if (f->kind != IO_WRITE)
            continue;
        uint32_t how = sim_below(&sim.random_faults, 4);
        if (how > 0)
            (void)move_write(f->fd, f->offset, f->iov, f->n_iov, f->bytes, how == 1 ? 128 : 0, 0);
    }
    n_flights = 0;
}
