/*
 * The control socket: connections, and messages in and out of them. What is asked is control_serve.c's.
 *
 * Its directory may be anywhere, so it is bound by way of /proc/self/fd, where every path is short. It is
 * made with mode 0600 (the mode of the socket before it is bound, which the umask can only narrow), and who
 * connects must be the store's user or root all the same. A file of that name that is no socket is left
 * alone: then there is none.
 *
 * A connection has one request at a time: the next one is read when the reply is gone, so what a client can
 * make the store hold is one message each way. There are CONNECTIONS_MAX of them; who comes then takes the
 * place of the one that has been quiet longest, so nobody can lock others out by being silent. A client that
 * breaks a rule of the protocol is let go without a word.
 *
 * Threads: everything but start and stop on the control thread.
 */
#include "cachestore/control.h"
#include "cachestore/store.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 8, BACKLOG = 16, NO_DESCRIPTOR_MS = 200 };

struct connection {
    int fd; /* -1: free */
    uint64_t heard_ns;
    struct control_header header;
    uint32_t n_in;      /* bytes of the request that are here, its header's first */
    size_t n_out, sent; /* of the reply; n_out 0: none is under way */
    uint8_t in[CONTROL_HEADER_BYTES + CONTROL_REQUEST_MAX], out[CONTROL_HEADER_BYTES + CONTROL_REPLY_MAX];
};

struct control {
    struct cs_store *s;
    int dir_fd, listen_fd, stop_fd;
    pthread_t thread;
    struct control_request request;
    struct connection *connections[CONNECTIONS_MAX]; /* NULL: free */
};

/* ---- messages ---------------------------------------------------------------------------------------- */

static void answer(struct control *c, struct connection *k)
{
    struct wire_writer w = {.at = k->out + CONTROL_HEADER_BYTES, .room = CONTROL_REPLY_MAX};
    struct control_header h = {.command = k->header.command};
    if (!control_request_decode(h.command, k->in + CONTROL_HEADER_BYTES, k->header.bytes, &c->request))
        h.status = CS_EINVAL;
    else
        h.status = control_answer(c->s, &c->request, &w);
    if (w.full) {
        w.len = 0;
        h.status = CS_EFULL;
    }
    h.bytes = (uint32_t)w.len;
    control_header_encode(&h, k->out);
    k->n_out = CONTROL_HEADER_BYTES + w.len;
    k->sent = 0;
    k->n_in = 0;
}

/* False: the connection is over. */
static bool receive(struct control *c, struct connection *k)
{
    for (;;) {
        size_t want = CONTROL_HEADER_BYTES;
        if (k->n_in >= CONTROL_HEADER_BYTES)
            want += k->header.bytes;
        if (k->n_in == want) {
            answer(c, k);
            return true;
        }
        ssize_t n = recv(k->fd, k->in + k->n_in, want - k->n_in, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        k->n_in += (uint32_t)n;
        if (k->n_in != CONTROL_HEADER_BYTES)
            continue;
        int rc = control_header_decode(k->in, CONTROL_REQUEST_MAX, &k->header);
        if (rc == CS_EVERSION) { /* said in the header alone, which all versions share */
            control_header_encode(&(struct control_header){.command = k->header.command, .status = rc},
                                  k->out);
            k->n_out = CONTROL_HEADER_BYTES;
            k->sent = 0;
            k->n_in = 0;
            return true;
        }
        if (rc != CS_OK)
            return false;
    }
}

static bool deliver(struct connection *k)
{
    while (k->sent < k->n_out) {
        ssize_t n = send(k->fd, k->out + k->sent, k->n_out - k->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        k->sent += (size_t)n;
    }
    k->n_out = 0;
    return true;
}

/* ---- connections ------------------------------------------------------------------------------------- */

static void hang_up(struct control *c, unsigned i)
{
    close(c->connections[i]->fd);
    free(c->connections[i]);
    c->connections[i] = NULL;
}

static bool is_welcome(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && (who.uid == geteuid() || who.uid == 0);
}

/* A place for one more. */
static unsigned place(struct control *c)
{
    unsigned quietest = 0;
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
        if (!c->connections[i])
            return i;
        if (c->connections[i]->heard_ns < c->connections[quietest]->heard_ns)
            quietest = i;
    }
    hang_up(c, quietest);
    return quietest;
}

/* False: there is no descriptor to be had. */
static bool welcome(struct control *c)
{
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    struct connection *k = is_welcome(fd) ? malloc(sizeof *k) : NULL;
    if (!k) {
        close(fd);
        return true;
    }
    k->fd = fd;
    k->heard_ns = store_now_ns();
    k->n_in = 0;
    k->n_out = k->sent = 0;
    c->connections[place(c)] = k;
    return true;
}

static void *control_main(void *arg)
{
    struct control *c = arg;
    bool full = false;
    for (;;) {
        struct pollfd polled[2 + CONNECTIONS_MAX] = {{.fd = c->stop_fd, .events = POLLIN},
                                                     {.fd = full ? -1 : c->listen_fd, .events = POLLIN}};
        for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
            const struct connection *k = c->connections[i];
            polled[2 + i] =
                (struct pollfd){.fd = k ? k->fd : -1, .events = k && k->n_out > 0 ? POLLOUT : POLLIN};
        }
        int n = poll(polled, 2 + CONNECTIONS_MAX, full ? NO_DESCRIPTOR_MS : -1);
        full = false;
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            break;
        if (n <= 0)
            continue;
        if (polled[0].revents)
            break;
        for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
            struct connection *k = c->connections[i];
            if (!k || !polled[2 + i].revents)
                continue;
            k->heard_ns = store_now_ns();
            bool goes_on = k->n_out > 0 ? deliver(k) : receive(c, k);
            if (goes_on && k->n_out > 0) /* mostly there is room at once */
                goes_on = deliver(k);
            if (!goes_on)
                hang_up(c, i);
        }
        if (polled[1].revents)
            full = !welcome(c);
    }
    return NULL;
}

/* ---- start and stop ---------------------------------------------------------------------------------- */

void control_address(int dir_fd, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/" CONTROL_SOCKET_NAME, dir_fd);
}

/* -1 with errno. */
static int socket_open(int dir_fd)
{
    struct stat st;
    if (fstatat(dir_fd, CONTROL_SOCKET_NAME, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISSOCK(st.st_mode)) {
            errno = EEXIST;
            return -1;
        }
        if (unlinkat(dir_fd, CONTROL_SOCKET_NAME, 0) < 0) /* of a process that is gone: its lock is ours */
            return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    struct sockaddr_un address;
    control_address(dir_fd, &address);
    bool bound = fchmod(fd, 0600) == 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    /* Nobody can connect before it listens. */
    if (bound && fchmodat(dir_fd, CONTROL_SOCKET_NAME, 0600, 0) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int problem = errno;
    if (bound)
        unlinkat(dir_fd, CONTROL_SOCKET_NAME, 0);
    close(fd);
    errno = problem;
    return -1;
}

struct control *control_start(struct cs_store *s, char *why, size_t why_len)
{
    uint8_t uuid[16];
    uint32_t chunk_bytes;
    struct control *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, why_len, "out of memory");
        return NULL;
    }
    c->s = s;
    c->listen_fd = -1;
    c->dir_fd = s->tier->admin->dir(s->disk, uuid, &chunk_bytes);
    c->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->stop_fd >= 0)
        c->listen_fd = socket_open(c->dir_fd);
    if (c->listen_fd < 0) {
        snprintf(why, why_len, "%s", strerror(errno));
        goto fail;
    }
    sigset_t all, before; /* signals are for the application's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&c->thread, NULL, control_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return c;
    snprintf(why, why_len, "no thread");
    unlinkat(c->dir_fd, CONTROL_SOCKET_NAME, 0);
fail:
    if (c->listen_fd >= 0)
        close(c->listen_fd);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
    free(c);
    return NULL;
}

void control_stop(struct control *c)
{
    if (!c)
        return;
    (void)eventfd_write(c->stop_fd, 1);
    pthread_join(c->thread, NULL);
    unlinkat(c->dir_fd, CONTROL_SOCKET_NAME, 0);
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
        if (c->connections[i])
            hang_up(c, i);
    close(c->listen_fd);
    close(c->stop_fd);
    free(c);
}
