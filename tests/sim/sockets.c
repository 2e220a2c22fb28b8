/*
 * Sockets of the simulated process, as far as the control socket and who asks through it need them: one that
 * listens in the store's directory, connections to it, event counters. Both ends are threads of one process;
 * a message arrives in pieces of any size, and there is room for a few on the way.
 */
#include "tests/sim/files_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { N_SOCKETS = 24, FIRST_SOCKET = 2000, N_WAITING = 4, PIPE_BYTES = 6000 };
enum what { SOCKET_NEW, SOCKET_LISTENS, SOCKET_CONNECTED, SOCKET_COUNTS };

struct end {
    bool used, blocks;
    enum what what;
    int peer;                          /* connected: the other end; -1: it has hung up */
    int waiting[N_WAITING], n_waiting; /* listens: ends that nobody has accepted yet */
    uint64_t count, patience_ns;       /* of an event counter; of who waits to receive or send */
    uint32_t first, n;                 /* what has arrived */
    uint8_t bytes[PIPE_BYTES];
};

static struct end ends[N_SOCKETS];
static const char changed; /* who waits is woken by any event */

static struct end *end_of(int fd)
{
    if (fd < FIRST_SOCKET || fd >= FIRST_SOCKET + N_SOCKETS || !ends[fd - FIRST_SOCKET].used)
        sim_fail("a socket that is not open: %d", fd);
    return &ends[fd - FIRST_SOCKET];
}

static int end_new(enum what what, bool blocks)
{
    fibers_yield();
    for (int i = 0; i < N_SOCKETS && !sim_fault(FAULT_call_error); i++)
        if (!ends[i].used) {
            ends[i].used = true;
            ends[i].blocks = blocks;
            ends[i].what = what;
            ends[i].peer = -1;
            ends[i].n_waiting = 0;
            ends[i].count = 0;
            ends[i].first = ends[i].n = 0;
            ends[i].patience_ns = UINT64_MAX;
            return FIRST_SOCKET + i;
        }
    return fs_refuse(EMFILE);
}

static void hang_up(struct end *e)
{
    if (e->what == SOCKET_CONNECTED && e->peer >= 0)
        end_of(e->peer)->peer = -1;
    for (int i = 0; i < e->n_waiting; i++) {
        struct end *w = end_of(e->waiting[i]);
        hang_up(w);
    }
    e->used = false;
    fibers_wake(&changed);
}

bool sockets_close(int fd)
{
    if (fd < FIRST_SOCKET)
        return false;
    hang_up(end_of(fd));
    return true;
}

void sockets_process_ended(bool killed)
{
    for (int i = 0; i < N_SOCKETS; i++)
        if (ends[i].used) {
            if (!killed)
                sim_fail("LEAK: a socket is left open at the end");
            ends[i].used = false;
        }
}

/* ---- making and finding them ------------------------------------------------------------------------- */

int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
    if (domain != AF_UNIX || (type & SOCK_STREAM) == 0 || protocol != 0)
        sim_fail("a socket of another kind");
    return end_new(SOCKET_NEW, (type & SOCK_NONBLOCK) == 0);
}

int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags)
{
    (void)count;
    (void)flags;
    return end_new(SOCKET_COUNTS, false);
}

int __wrap_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_write(int fd, eventfd_t value)
{
    end_of(fd)->count += value;
    fibers_wake(&changed);
    return 0;
}

/* The name in the directory that the address says. */
static const char *name_of(const struct sockaddr *address)
{
    const struct sockaddr_un *a = (const struct sockaddr_un *)address;
    int dir, at = 0;
    if (a->sun_family != AF_UNIX || sscanf(a->sun_path, "/proc/self/fd/%d/%n", &dir, &at) != 1 || at == 0 ||
        !fs_of(dir)->directory)
        sim_fail("an address that is not in the store's directory");
    return a->sun_path + at;
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len)
{
    const char *name = name_of(address);
    (void)len;
    (void)end_of(fd);
    if (fs_find_name(name) != NULL)
        return fs_refuse(EADDRINUSE);
    if (sim_fault(FAULT_no_space))
        return fs_refuse(ENOSPC);
    int node = fs_node_new();
    fs_nodes[node].is_socket = true;
    fs_add_name(name)->node = node;
    fs_directory_changed();
    return 0;
}

int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog)
{
    (void)backlog;
    if (sim_fault(FAULT_call_error))
        return fs_refuse(EADDRINUSE);
    end_of(fd)->what = SOCKET_LISTENS;
    return 0;
}

int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode)
{
    (void)end_of(fd);
    return mode == 0600 ? 0 : fs_refuse(EPERM);
}

int __wrap_fchmodat(int dir, const char *path, mode_t mode, int flags);
int __wrap_fchmodat(int dir, const char *path, mode_t mode, int flags)
{
    (void)flags;
    if (!fs_of(dir)->directory || fs_find_name(path) == NULL)
        return fs_refuse(ENOENT);
    return mode == 0600 ? 0 : fs_refuse(EPERM);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len)
{
    struct end *e = end_of(fd), *listener = NULL;
    (void)len;
    fibers_yield();
    if (fs_find_name(name_of(address)) == NULL)
        return fs_refuse(ENOENT);
    for (int i = 0; i < N_SOCKETS; i++)
        if (ends[i].used && ends[i].what == SOCKET_LISTENS)
            listener = &ends[i];
    if (listener == NULL)
        return fs_refuse(ECONNREFUSED);
    if (listener->n_waiting == N_WAITING)
        return fs_refuse(EAGAIN);
    int other = end_new(SOCKET_CONNECTED, false);
    if (other < 0)
        return fs_refuse(ENOMEM);
    if (!listener->used || listener->n_waiting == N_WAITING) { /* meanwhile */
        (void)sockets_close(other);
        return fs_refuse(ECONNREFUSED);
    }
    e->what = SOCKET_CONNECTED;
    e->peer = other;
    end_of(other)->peer = fd;
    listener->waiting[listener->n_waiting++] = other;
    fibers_wake(&changed);
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    struct end *e = end_of(fd);
    (void)address;
    (void)len;
    (void)flags;
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    if (sim_fault(FAULT_call_error))
        return fs_refuse(EMFILE);
    if (e->n_waiting == 0)
        return fs_refuse(EAGAIN);
    int first = e->waiting[0];
    memmove(e->waiting, e->waiting + 1, (size_t)--e->n_waiting * sizeof e->waiting[0]);
    return first;
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
    const struct timeval *t = value;
    if (level != SOL_SOCKET || (option != SO_RCVTIMEO && option != SO_SNDTIMEO) || len != sizeof *t)
        sim_fail("an option of a socket that is not simulated");
    end_of(fd)->patience_ns = (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_usec * 1000u;
    return 0;
}

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *len)
{
    struct ucred *who = value;
    (void)end_of(fd);
    if (level != SOL_SOCKET || option != SO_PEERCRED || *len != sizeof *who)
        sim_fail("an option of a socket that is not simulated");
    *who = (struct ucred){.pid = 1, .uid = geteuid(), .gid = getegid()};
    return 0;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

/* Waits until something has changed. False: it does not wait, or no longer. */
static bool wait_for_more(const struct end *e, int flags, uint64_t until_ns)
{
    if (!e->blocks || (flags & MSG_DONTWAIT) != 0 || sim.now_ns >= until_ns)
        return false;
    (void)fibers_wait(&changed, until_ns);
    return true;
}

static uint64_t until_of(const struct end *e)
{
    return e->patience_ns == UINT64_MAX ? UINT64_MAX : sim.now_ns + e->patience_ns;
}

/* Of n bytes that could go, so many do. */
static size_t some_of(size_t n)
{
    return sim_below(&sim.random_schedule, 4) == 0 ? 1 + sim_below(&sim.random_schedule, (uint32_t)n) : n;
}

ssize_t __wrap_send(int fd, const void *data, size_t n, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t n, int flags)
{
    struct end *e = end_of(fd);
    uint64_t until = until_of(e);
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    while (e->peer >= 0 && end_of(e->peer)->n == PIPE_BYTES)
        if (!wait_for_more(e, flags, until))
            return fs_refuse(EAGAIN);
    if (e->peer < 0)
        return fs_refuse(EPIPE);
    struct end *to = end_of(e->peer);
    n = some_of(n < PIPE_BYTES - to->n ? n : PIPE_BYTES - to->n);
    for (size_t i = 0; i < n; i++)
        to->bytes[(to->first + to->n++) % PIPE_BYTES] = ((const uint8_t *)data)[i];
    fibers_wake(&changed);
    return (ssize_t)n;
}

ssize_t __wrap_recv(int fd, void *out, size_t n, int flags);
ssize_t __wrap_recv(int fd, void *out, size_t n, int flags)
{
    struct end *e = end_of(fd);
    uint64_t until = until_of(e);
    fibers_yield();
    if (sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    while (e->n == 0 && e->peer >= 0)
        if (!wait_for_more(e, flags, until))
            return fs_refuse(EAGAIN);
    if (e->n == 0)
        return 0;
    n = some_of(n < e->n ? n : e->n);
    for (size_t i = 0; i < n; i++, e->n--) {
        ((uint8_t *)out)[i] = e->bytes[e->first];
        e->first = (e->first + 1) % PIPE_BYTES;
    }
    fibers_wake(&changed);
    return (ssize_t)n;
}

static short events_of(const struct end *e)
{
    bool over = e->what == SOCKET_CONNECTED && e->peer < 0;
    bool in = e->n > 0 || e->n_waiting > 0 || e->count > 0 || over;
    bool out = over || (e->what == SOCKET_CONNECTED && end_of(e->peer)->n < PIPE_BYTES);
    return (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0));
}

int __wrap_poll(struct pollfd *polled, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *polled, nfds_t n, int timeout_ms)
{
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : sim.now_ns + (uint64_t)timeout_ms * 1000000u;
    fibers_yield();
    if (n > 0 && sim_fault(FAULT_interrupted))
        return fs_refuse(EINTR);
    for (;;) {
        int ready = 0;
        for (nfds_t i = 0; i < n; i++) {
            polled[i].revents = 0;
            if (polled[i].fd >= 0)
                polled[i].revents = (short)(events_of(end_of(polled[i].fd)) & polled[i].events);
            ready += polled[i].revents != 0;
        }
        if (ready > 0 || sim.now_ns >= until)
            return ready;
        (void)fibers_wait(&changed, until);
    }
}
