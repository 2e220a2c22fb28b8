/*
 * The watcher: what MHD does not notice by itself.
 *
 * A suspended connection is in no epoll set of MHD's, so a client that leaves while its request waits or
 * prefills would keep its slot. Each connection's socket is duplicated and watched here for its end. Once a
 * second, while there are connections, the watcher also cuts those that are past a deadline (slow headers or
 * bodies), cancels streams whose reader is too slow and asks for keep-alive comments. With no connection it
 * sleeps without a timeout.
 *
 * Room for new clients. MHD stops accepting at its limit, and who holds connections without asking anything
 * could keep everybody else out. So a sixteenth of the limit is kept free: when a connection begins beyond
 * that, the one that has been silent for longest, between requests or inside a body, is cut.
 *
 * Lingering. A request that is answered before its body has come leaves a client that may still be sending.
 * When MHD has closed such a connection the duplicate keeps it open, and what comes is read and thrown away
 * until the client closes, for a bounded time and number of bytes.
 */
#include "engine/serve/call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ROUND_MS = 1000,
    EVENTS_MAX = 64,
    WAKE_ID = 0,
    ROOM_SHARE = 16,        /* of the connections, this part is kept free */
    CROWDED_LOG_MS = 60000, /* the log hears of it once a minute */
    LINGER_MAX = 64,        /* connections */
    LINGER_MS = 30000,
    LINGER_SILENT_MS = 5000, /* a client that sends nothing for so long is done */
};

void eng_watch_wake(struct eng_server *s)
{
    eventfd_write(s->wake_fd, 1);
}

/* ---- room for new clients (HTTP thread) -------------------------------------------------------------- */

/* When the client was last heard; INT64_MAX while its request is worked on or answered. Under server.lock. */
static int64_t silent_since_ms(const struct eng_conn *conn)
{
    if (!conn->call)
        return conn->idle_since_ms;
    pthread_mutex_lock(&conn->call->lock);
    bool receiving = conn->call->state == ENG_CALL_RECEIVING;
    pthread_mutex_unlock(&conn->call->lock);
    return receiving ? atomic_load(&conn->call->heard_ms) : INT64_MAX;
}

static void make_room(struct eng_server *s, const struct eng_conn *newest)
{
    unsigned keep = s->max_connections - (s->max_connections + ROOM_SHARE - 1) / ROOM_SHARE, n = 0;
    if (atomic_load(&s->n_conns) <= keep)
        return;
    int64_t now = eng_now_ms(), least = INT64_MAX;
    struct eng_conn *silent = NULL;
    bool log = false;
    pthread_mutex_lock(&s->lock);
    for (struct eng_conn *conn = s->conns; conn; conn = conn->next) { /* youngest first */
        if (conn->cut || conn->lingering)
            continue;
        n++;
        if (conn == newest || conn->fd < 0)
            continue;
        int64_t since = silent_since_ms(conn);
        if (since <= least && since != INT64_MAX) {
            least = since;
            silent = conn;
        }
    }
    if (n > keep && silent) {
        silent->cut = true;
        shutdown(silent->fd, SHUT_RDWR);
        log = s->crowded_ms == 0 || now - s->crowded_ms >= CROWDED_LOG_MS;
        if (log)
            s->crowded_ms = now;
    }
    pthread_mutex_unlock(&s->lock);
    if (log)
        eng_server_log(
            s, CS_LOG_WARN,
            "%u connections are open: the one that is silent for longest is closed for each new one", n);
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
    conn->idle_since_ms = eng_now_ms();
    conn->deadline_ms = conn->idle_since_ms + ENG_HEADERS_DEADLINE_MS;
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
    make_room(s, conn);
}

static void unlink_locked(struct eng_server *s, struct eng_conn *conn)
{
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        s->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
}

static void close_conn(struct eng_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd); /* leaves the epoll set with it: nobody else holds this duplicate */
    free(conn);
}

/* The watcher reads what the client still sends. The end of our answer goes out now. */
static bool linger_locked(struct eng_server *s, struct eng_conn *conn)
{
    if (!conn->unread || conn->fd < 0 || conn->cut || s->n_lingering >= LINGER_MAX ||
        atomic_load(&s->stopping))
        return false;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = conn->id};
    if (shutdown(conn->fd, SHUT_WR) != 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event) != 0)
        return false;
    int64_t now = eng_now_ms();
    conn->call = NULL;
    conn->lingering = true;
    conn->linger_end_ms = now + LINGER_MS;
    conn->deadline_ms = now + LINGER_SILENT_MS;
    s->n_lingering++;
    return true;
}

static void conn_end(struct eng_server *s, struct eng_conn *conn)
{
    pthread_mutex_lock(&s->lock);
    struct eng_call *call = conn->call;
    bool lingers = linger_locked(s, conn);
    if (!lingers)
        unlink_locked(s, conn);
    pthread_cond_signal(&s->quiet);
    pthread_mutex_unlock(&s->lock);
    if (!lingers)
        close_conn(conn);
    if (call)
        eng_call_unref(call);
    atomic_fetch_sub(&s->n_conns, 1);
}

void eng_watch_unread(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct eng_conn *conn = info ? info->socket_context : NULL;
    if (conn)
        conn->unread = true; /* the HTTP thread's until it ends */
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
    conn->idle_since_ms = eng_now_ms();
    conn->deadline_ms = deadline_ms ? conn->idle_since_ms + deadline_ms : 0;
    pthread_cond_signal(&s->quiet);
    pthread_mutex_unlock(&s->lock);
    if (c && gone)
        eng_call_abandon(c);
    eng_call_unref(before);
    return true;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

/* Reads and drops what has come, a bounded part of it; true when that was the end. */
static bool drop_input(const struct eng_server *s, struct eng_conn *conn)
{
    char buf[65536];
    for (int i = 0; i < 2; i++) { /* under the server's lock: what is left is reported again */
        ssize_t n = recv(conn->fd, buf, sizeof buf, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return true;
        if (n < 0)
            break;
        conn->linger_bytes += (uint64_t)n;
        conn->deadline_ms = eng_now_ms() + LINGER_SILENT_MS;
    }
    return conn->linger_bytes > ENG_DISCARD_FACTOR * s->max_body_bytes;
}

static void end_lingering_locked(struct eng_server *s, struct eng_conn *conn)
{
    unlink_locked(s, conn);
    s->n_lingering--;
    close_conn(conn);
}

void eng_watch_close_lingering(struct eng_server *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct eng_conn *conn = s->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->lingering)
            end_lingering_locked(s, conn);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The client has closed its side, or sends on a connection that lingers. */
static void take_event(struct eng_server *s, uint64_t id)
{
    struct eng_call *call = NULL;
    pthread_mutex_lock(&s->lock);
    struct eng_conn *conn = s->conns;
    while (conn && conn->id != id)
        conn = conn->next;
    if (conn && conn->lingering) {
        if (drop_input(s, conn))
            end_lingering_locked(s, conn);
    } else if (conn) {
        conn->gone = true;
        call = conn->call ? eng_call_ref(conn->call) : NULL;
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
        for (struct eng_conn *conn = s->conns, *next; conn && !slow; conn = next) {
            next = conn->next;
            if (conn->lingering) {
                if (now > conn->deadline_ms || now > conn->linger_end_ms)
                    end_lingering_locked(s, conn);
                continue;
            }
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
                take_event(s, events[i].data.u64);
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
