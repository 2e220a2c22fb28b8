/*
 * The watcher: what MHD does not notice by itself.
 *
 * A suspended connection is in no epoll set of MHD's, so a client that leaves while its request waits or
 * prefills would keep its slot. Each connection's socket is duplicated and watched here for its end. Once a
 * second, while there are connections, the watcher also cuts those that are past a deadline (slow headers or
 * bodies), cancels streams whose reader is too slow and asks for keep-alive comments. With no connection it
 * sleeps without a timeout.
 */
#include "engine/serve/call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUND_MS = 1000, EVENTS_MAX = 64, WAKE_ID = 0 };

void eng_watch_wake(struct eng_server *s)
{
    eventfd_write(s->wake_fd, 1);
}

/* ---- connections come and go (HTTP thread) ----------------------------------------------------------- */

static void conn_begin(struct eng_server *s, struct MHD_Connection *mhd, void **socket_context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct eng_conn *conn = calloc(1, sizeof *conn);
    if (!conn || !info) {
        free(conn);
        return; /* requests on it are refused */
    }
    conn->fd = fcntl(info->connect_fd, F_DUPFD_CLOEXEC, 0);
    conn->deadline_ms = eng_now_ms() + ENG_HEADERS_DEADLINE_MS;
    pthread_mutex_lock(&s->lock);
    conn->id = ++s->next_conn_id;
    bool first = s->conns == NULL;
    conn->next = s->conns;
    if (conn->next)
        conn->next->prev = conn;
    s->conns = conn;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_add(&s->n_conns, 1);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = conn->id};
    if (conn->fd >= 0)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event);
    if (first)
        eng_watch_wake(s);
    *socket_context = conn;
}

static void conn_end(struct eng_server *s, struct eng_conn *conn)
{
    pthread_mutex_lock(&s->lock);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        s->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    struct eng_call *call = conn->call;
    pthread_mutex_unlock(&s->lock);
    if (conn->fd >= 0)
        close(conn->fd); /* leaves the epoll set with it: nobody else holds this duplicate */
    if (call)
        eng_call_unref(call);
    free(conn);
    atomic_fetch_sub(&s->n_conns, 1);
}

void eng_watch_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct eng_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        conn_begin(s, mhd, socket_context);
    else if (*socket_context)
        conn_end(s, *socket_context);
}

bool eng_watch_set(struct eng_server *s, struct MHD_Connection *mhd, struct eng_call *c, int64_t deadline_ms)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct eng_conn *conn = info ? info->socket_context : NULL;
    if (!conn)
        return false;
    pthread_mutex_lock(&s->lock);
    struct eng_call *before = conn->call;
    bool gone = conn->gone;
    conn->call = c ? eng_call_ref(c) : NULL;
    conn->deadline_ms = deadline_ms ? eng_now_ms() + deadline_ms : 0;
    pthread_mutex_unlock(&s->lock);
    if (c && gone)
        eng_call_abandon(c);
    eng_call_unref(before);
    return true;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void client_left(struct eng_server *s, uint64_t id)
{
    struct eng_call *call = NULL;
    pthread_mutex_lock(&s->lock);
    for (struct eng_conn *conn = s->conns; conn; conn = conn->next)
        if (conn->id == id) {
            conn->gone = true;
            call = conn->call ? eng_call_ref(conn->call) : NULL;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    if (!call)
        return;
    pthread_mutex_lock(&call->lock);
    bool unanswered = call->state == ENG_CALL_PREPARING || call->state == ENG_CALL_RUNNING ||
                      (call->state == ENG_CALL_STREAMING && !call->ended);
    pthread_mutex_unlock(&call->lock);
    if (unanswered)
        atomic_fetch_add(&s->clients_gone, 1);
    eng_call_abandon(call);
    eng_call_unref(call);
}

/* Looks after one connection's call; true when its reader is too slow and it must be abandoned. */
static bool look_after_call(struct eng_call *c, int64_t now)
{
    pthread_mutex_lock(&c->lock);
    bool slow = c->overflow && !c->gone;
    if (c->state == ENG_CALL_STREAMING && !c->done && !c->ping_due &&
        now - c->last_write_ms >= ENG_KEEP_ALIVE_MS) {
        c->ping_due = true;
        eng_call_resume_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    return slow;
}

static void look_round(struct eng_server *s)
{
    struct eng_call *slow;
    do {
        int64_t now = eng_now_ms();
        slow = NULL;
        pthread_mutex_lock(&s->lock);
        for (struct eng_conn *conn = s->conns; conn && !slow; conn = conn->next) {
            if (conn->deadline_ms && now > conn->deadline_ms) {
                conn->deadline_ms = 0;
                shutdown(conn->fd, SHUT_RDWR);
            }
            if (conn->call && look_after_call(conn->call, now)) {
                slow = eng_call_ref(conn->call);
                shutdown(conn->fd, SHUT_RDWR);
            }
        }
        pthread_mutex_unlock(&s->lock);
        if (slow) {
            eng_call_abandon(slow); /* not under the lock: it calls the engine */
            eng_call_unref(slow);
        }
    } while (slow);
}

void *eng_watch_thread(void *server)
{
    struct eng_server *s = server;
    struct epoll_event events[EVENTS_MAX];
    int64_t next_round = 0;
    while (!atomic_load(&s->stopping)) {
        pthread_mutex_lock(&s->lock);
        bool idle = s->conns == NULL;
        pthread_mutex_unlock(&s->lock);
        int64_t now = eng_now_ms();
        int timeout = idle ? -1 : next_round > now ? (int)(next_round - now) : 0;
        int n = epoll_wait(s->epoll_fd, events, EVENTS_MAX, timeout);
        if (n < 0 && errno != EINTR)
            break;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == WAKE_ID) {
                eventfd_t value;
                eventfd_read(s->wake_fd, &value);
            } else {
                client_left(s, events[i].data.u64);
            }
        }
        now = eng_now_ms();
        if (now >= next_round) {
            look_round(s);
            next_round = now + ROUND_MS;
        }
    }
    return NULL;
}
