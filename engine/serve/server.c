/* Start and stop of the server; see serve.h and, for the threads, call.h. */
#include "engine/serve/call.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 1024,
    CONNECTION_MEMORY_BYTES = 32768, /* request line and headers */
    BACKLOG = 4096,
    FDS_FOR_OTHERS = 192, /* model, store, log, epoll, lingering connections */
};

void eng_server_log(const struct eng_server *s, enum cs_log_level level, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!s->log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    s->log(s->log_ctx, level, line);
}

/* ---- configuration ----------------------------------------------------------------------------------- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int parse_address(const struct eng_server_config *c, union address *out, char *err, size_t err_len)
{
    bool loopback;
    const char *host = c->host ? c->host : "127.0.0.1";
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, host, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons(c->port);
        loopback = ntohl(out->v4.sin_addr.s_addr) >> 24 == 127;
    } else if (inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons(c->port);
        loopback = IN6_IS_ADDR_LOOPBACK(&out->v6.sin6_addr);
    } else {
        snprintf(err, err_len, "host '%.64s' is not a numeric IPv4 or IPv6 address", host);
        return ENG_EINVAL;
    }
    if (!loopback && !c->api_key_file) {
        snprintf(err, err_len,
                 "host %.64s is reachable from other machines: that needs --api-key-file (without keys only "
                 "a loopback address such as 127.0.0.1 is served)",
                 host);
        return ENG_EINVAL;
    }
    return ENG_OK;
}

/* File name without its folder. */
static const char *base_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "model";
}

/* A connection costs two descriptors: its socket and the watcher's duplicate. The process's soft limit is
 * raised towards its hard one for them; where that does not do, fewer connections are taken. */
static unsigned connection_limit(void)
{
    const rlim_t wanted = 2 * CONNECTIONS_MAX + FDS_FOR_OTHERS;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return CONNECTIONS_MAX / 4;
    if (limit.rlim_cur < wanted) {
        struct rlimit raised = {limit.rlim_max < wanted ? limit.rlim_max : wanted, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            limit = raised;
    }
    if (limit.rlim_cur >= wanted)
        return CONNECTIONS_MAX;
    return limit.rlim_cur > 2 * FDS_FOR_OTHERS ? (unsigned)(limit.rlim_cur - FDS_FOR_OTHERS) / 2
                                               : FDS_FOR_OTHERS / 2;
}

static int copy_config(struct eng_server *s, const struct eng_server_config *c)
{
    s->file_name = strdup(base_name(c->model_path));
    s->model_name = strdup(c->alias && *c->alias ? c->alias : base_name(c->model_path));
    if (!s->file_name || !s->model_name)
        return ENG_ENOMEM;
    size_t len = strlen(s->model_name);
    if (!(c->alias && *c->alias) && len > 5 && strcmp(s->model_name + len - 5, ".gguf") == 0)
        s->model_name[len - 5] = '\0';
    s->max_body_bytes = c->max_body_bytes ? c->max_body_bytes : 32u << 20;
    s->max_connections = c->max_connections ? c->max_connections : connection_limit();
    s->debug = c->debug;
    s->log = c->log;
    s->log_ctx = c->log_ctx;
    s->started_unix = (int64_t)time(NULL);
    return ENG_OK;
}

/* ---- start ------------------------------------------------------------------------------------------- */

static int start_daemon(struct eng_server *s, const union address *address, char *err, size_t err_len)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    if (address->any.sa_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    errno = 0;
    s->daemon = MHD_start_daemon(
        flags, ntohs(address->v4.sin_port), NULL, NULL, eng_route_handle, s, MHD_OPTION_SOCK_ADDR,
        &address->any, MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG, MHD_OPTION_CONNECTION_LIMIT,
        s->max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)ENG_STALL_TIMEOUT_S, MHD_OPTION_NOTIFY_COMPLETED,
        eng_route_completed, s, MHD_OPTION_NOTIFY_CONNECTION, eng_watch_connection, s, MHD_OPTION_END);
    if (!s->daemon) {
        snprintf(err, err_len, "cannot listen on port %u: %s", ntohs(address->v4.sin_port), strerror(errno));
        return ENG_EIO;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : 0;
    return ENG_OK;
}

static void free_server(struct eng_server *s)
{
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->prepare_lock);
    pthread_mutex_destroy(&s->running_lock);
    pthread_cond_destroy(&s->prepare_wake);
    pthread_cond_destroy(&s->running_none);
    pthread_cond_destroy(&s->quiet);
    eng_keys_free(s->keys);
    free(s->model_name);
    free(s->file_name);
    free(s);
}

/* A condition variable whose deadlines are of the monotonic clock. */
static void init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

static void stop_preparer(struct eng_server *s)
{
    pthread_mutex_lock(&s->prepare_lock);
    s->prepare_stop = true;
    pthread_cond_signal(&s->prepare_wake);
    pthread_mutex_unlock(&s->prepare_lock);
    pthread_join(s->preparer, NULL);
}

static void stop_watcher(struct eng_server *s)
{
    atomic_store(&s->stopping, true);
    eng_watch_wake(s);
    pthread_join(s->watcher, NULL);
}

int eng_server_start(const struct eng_server_config *c, struct eng_server **out, char *err, size_t err_len)
{
    union address address;
    if (parse_address(c, &address, err, err_len) != ENG_OK)
        return ENG_EINVAL;
    struct eng_server *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, err_len, "out of memory");
        return ENG_ENOMEM;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->prepare_lock, NULL);
    pthread_mutex_init(&s->running_lock, NULL);
    pthread_cond_init(&s->prepare_wake, NULL);
    pthread_cond_init(&s->running_none, NULL);
    init_monotonic(&s->quiet);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    int result = ENG_EIO;
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = 0};
    if (s->epoll_fd < 0 || s->wake_fd < 0 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &wake) != 0) {
        snprintf(err, err_len, "cannot start the HTTP server: %s", strerror(errno));
        goto fail;
    }
    if (copy_config(s, c) != ENG_OK) {
        snprintf(err, err_len, "out of memory");
        result = ENG_ENOMEM;
        goto fail;
    }
    if (c->api_key_file && eng_keys_load(c->api_key_file, &s->keys, err, err_len) != 0) {
        result = ENG_EINVAL;
        goto fail;
    }
    if (pthread_create(&s->preparer, NULL, eng_prepare_thread, s) != 0) {
        snprintf(err, err_len, "cannot start a thread");
        goto fail;
    }
    if (pthread_create(&s->watcher, NULL, eng_watch_thread, s) != 0) {
        snprintf(err, err_len, "cannot start a thread");
        stop_preparer(s);
        goto fail;
    }
    result = start_daemon(s, &address, err, err_len);
    if (result != ENG_OK) {
        stop_watcher(s);
        stop_preparer(s);
        goto fail;
    }
    *out = s;
    return ENG_OK;
fail:
    free_server(s);
    return result;
}

void eng_server_ready(struct eng_server *s, struct eng_engine *e)
{
    atomic_store(&s->engine, e);
}

uint16_t eng_server_port(const struct eng_server *s)
{
    return s->port;
}

/* ---- stop -------------------------------------------------------------------------------------------- */

/* Cancels the calls whose reply has not begun; all: every one that is not done. */
static void cancel_calls(struct eng_server *s, bool all)
{
    for (;;) {
        eng_request_id id = 0;
        bool found = false;
        pthread_mutex_lock(&s->lock);
        for (struct eng_conn *conn = s->conns; conn && !found; conn = conn->next)
            found = conn->call && eng_call_take_cancel(conn->call, all, &id);
        pthread_mutex_unlock(&s->lock);
        if (!found)
            return;
        eng_cancel(atomic_load(&s->engine), id); /* not under the lock: it calls the engine */
    }
}

static bool is_answering_locked(const struct eng_server *s)
{
    for (const struct eng_conn *conn = s->conns; conn; conn = conn->next) {
        if (!conn->call)
            continue;
        pthread_mutex_lock(&conn->call->lock);
        bool open = conn->call->state != ENG_CALL_RECEIVING && !conn->call->gone;
        pthread_mutex_unlock(&conn->call->lock);
        if (open)
            return true;
    }
    return false;
}

/* Waits until nobody is owed an answer; false: not within the time. */
static bool wait_quiet(struct eng_server *s, uint32_t ms)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += ms / 1000;
    end.tv_nsec += ms % 1000 * 1000000L;
    if (end.tv_nsec >= 1000000000L) {
        end.tv_sec++;
        end.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&s->lock);
    bool late = false;
    while (is_answering_locked(s) && !late)
        late = pthread_cond_timedwait(&s->quiet, &s->lock, &end) == ETIMEDOUT;
    pthread_mutex_unlock(&s->lock);
    return !late;
}

/* Ends every call that a connection still serves, so that none stays suspended: MHD cannot stop otherwise. */
static void abandon_all(struct eng_server *s)
{
    for (;;) {
        struct eng_call *call = NULL;
        pthread_mutex_lock(&s->lock);
        for (struct eng_conn *conn = s->conns; conn && !call; conn = conn->next) {
            if (!conn->call)
                continue;
            pthread_mutex_lock(&conn->call->lock);
            if (!conn->call->gone)
                call = eng_call_ref(conn->call);
            pthread_mutex_unlock(&conn->call->lock);
        }
        pthread_mutex_unlock(&s->lock);
        if (!call)
            return;
        eng_call_abandon(call);
        eng_call_unref(call);
    }
}

void eng_server_stop(struct eng_server *s, uint32_t grace_ms)
{
    if (!s)
        return;
    atomic_store(&s->draining, true);
    MHD_socket listen_fd = MHD_quiesce_daemon(s->daemon);
    if (listen_fd != MHD_INVALID_SOCKET)
        shutdown(listen_fd, SHUT_RDWR); /* who connects now is refused instead of left waiting */
    cancel_calls(s, false);
    if (!wait_quiet(s, grace_ms)) {
        cancel_calls(s, true);
        wait_quiet(s, ENG_GOODBYE_MS);
    }

    /* From here on (`stopping`) the handler suspends nothing; what it has suspended is found by abandon_all.
     */
    stop_watcher(s);
    stop_preparer(s);
    abandon_all(s);
    pthread_mutex_lock(&s->running_lock);
    while (s->running > 0)
        pthread_cond_wait(&s->running_none, &s->running_lock);
    pthread_mutex_unlock(&s->running_lock);
    MHD_stop_daemon(s->daemon);
    eng_watch_close_lingering(s);
    if (listen_fd != MHD_INVALID_SOCKET)
        close(listen_fd);
    while (s->prepare_head) {
        struct eng_call *c = s->prepare_head;
        s->prepare_head = c->next_to_prepare;
        eng_call_unref(c);
    }
    free_server(s);
}
