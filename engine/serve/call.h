/*
 * The inside of the server: connections, calls and who touches them. Private to engine/serve.
 *
 * A call is one HTTP request. It is shared by reference count between the HTTP thread, the preparing thread,
 * the watcher and, while the engine works on it, the engine thread.
 *
 *   RECEIVING ──body──> PREPARING ──refused, or answered at once──────────────> ANSWERED
 *       │                   └──submitted──> RUNNING ──engine done──> ANSWERED      │
 *       └──(GET, refused)──────────────────────┼────────────────────────────────>──┘
 *                                              └─(stream)─> STREAMING
 *
 * In PREPARING and RUNNING the connection is suspended, in STREAMING whenever there is nothing to send. What
 * is answered at once goes from RECEIVING to ANSWERED. The suspended flag changes, and MHD_suspend/resume are
 * called, under the call's mutex only: a wake-up cannot be lost.
 *
 * Threads             does
 *   HTTP (MHD)        receives, answers, formats chunks
 *   preparing         parses, renders, submits, tokenises: whatever grows with the body
 *   watcher           notices clients that left, deadlines, slow readers; keep-alive comments
 *   engine            eng_call_on_event, eng_call_on_done: appends to the call's queue, resumes
 *
 * Lock order: server.lock, then call.lock. The engine is never called with either held.
 *
 * Stopping has two phases. `draining`: what is new is refused, and a request whose reply has not begun is
 * cancelled; both get a 503, or an error event where the stream's headers are out. Replies that have begun go
 * on until the grace is over. `stopping`: nothing is written any more, every connection is closed.
 */
#ifndef ISOTHERM_ENGINE_SERVE_CALL_H
#define ISOTHERM_ENGINE_SERVE_CALL_H

#include "engine/serve/keys.h"
#include "engine/serve/response.h"
#include "engine/serve/serve.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    ENG_UNSENT_LIMIT_BYTES = 1 << 20, /* a stream whose reader is further behind is cancelled */
    ENG_KEEP_ALIVE_MS = 15000,
    ENG_HEADERS_DEADLINE_MS = 10000, /* from connect to complete headers */
    ENG_BODY_DEADLINE_MS = 120000,
    ENG_IDLE_DEADLINE_MS = 75000, /* between requests of one connection, the next headers included */
    ENG_STALL_TIMEOUT_S = 60,     /* a client that takes no byte for so long is cut off */
    ENG_GOODBYE_MS = 2000,        /* to write the last words, once nothing is computed any more */
};

enum eng_call_state {
    ENG_CALL_RECEIVING,
    ENG_CALL_PREPARING,
    ENG_CALL_RUNNING,
    ENG_CALL_STREAMING,
    ENG_CALL_ANSWERED
};

struct eng_conn;
struct eng_route;

struct eng_call {
    struct eng_server *server;
    atomic_uint refs;

    /* HTTP thread until the call is handed to the preparing thread, then constant. */
    const struct eng_route *route;
    struct cs_tenant tenant;
    struct eng_api_error reject; /* decided before the body is there; status 0: none */
    struct eng_bytes body;
    uint64_t body_seen, body_reserved;
    const char *allow; /* for 405 */
    int status;        /* HTTP thread: what was answered; 0: nothing yet */

    atomic_int_fast64_t heard_ms; /* when its last byte came */

    pthread_mutex_t lock;       /* everything below */
    struct MHD_Connection *mhd; /* NULL: detached, the request is over for HTTP */
    enum eng_call_state state;
    bool suspended, gone, overflow, ended, ping_due, submitted, done;
    bool begun;     /* the engine has reported something of the reply */
    bool cancelled; /* because the server stops */
    int64_t last_write_ms;

    struct eng_api_error failure; /* ANSWERED: status 0 means 200 with `answer` */
    struct eng_bytes answer;

    struct eng_bytes queue; /* packed events, from the engine */
    size_t out_pending;     /* unsent bytes of out */
    eng_request_id request_id;
    int result;
    struct eng_usage usage;
    char message[256]; /* why result is not ENG_OK */

    /* HTTP thread, once RUNNING or STREAMING. */
    struct eng_reply reply;
    struct eng_bytes out;
    size_t out_at;

    struct eng_call *next_to_prepare;
};

/* One TCP connection. A lingering one is over for MHD and belongs to the watcher, which reads what the client
 * still sends: closing at once would reset the connection and take the answer away from it. */
struct eng_conn {
    uint64_t id;
    int fd;                /* duplicate of the socket, watched for the client's end */
    struct eng_call *call; /* the request in progress, referenced; NULL: none */
    bool gone;
    bool cut;            /* shut down from our side; MHD is about to close it */
    int64_t deadline_ms; /* 0: none */
    int64_t idle_since_ms;
    bool unread, lingering;
    uint64_t linger_bytes; /* read so far */
    int64_t linger_end_ms;
    struct eng_conn *prev, *next;
};

struct eng_server {
    /* constant after start */
    char *model_name, *file_name; /* answers carry the first; the second, with or without .gguf, works too */
    uint64_t max_body_bytes;
    unsigned max_connections;
    bool debug;
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
    struct eng_keys *keys; /* NULL: open */
    struct MHD_Daemon *daemon;
    uint16_t port;
    int64_t started_unix;

    _Atomic(struct eng_engine *) engine; /* NULL: loading */
    atomic_bool draining, stopping;
    atomic_uint_fast64_t body_bytes;   /* of all calls together */
    atomic_uint_fast64_t responses[6]; /* by hundreds of the status; [0]: closed without one */
    atomic_uint_fast64_t clients_gone, slow_readers, n_conns, n_streams;

    pthread_mutex_t lock; /* conns and what they hold */
    pthread_cond_t quiet; /* draining: a call or a connection has ended */
    struct eng_conn *conns;
    uint64_t next_conn_id;
    unsigned n_lingering;
    int64_t crowded_ms; /* when it was last logged that connections are closed to make room */
    int epoll_fd, wake_fd;
    pthread_t watcher;

    pthread_mutex_t prepare_lock;
    pthread_cond_t prepare_wake;
    struct eng_call *prepare_head, *prepare_tail;
    bool prepare_stop;
    pthread_t preparer;

    pthread_mutex_t running_lock;
    pthread_cond_t running_none;
    unsigned running; /* calls whose on_done is still to come */
};

int64_t eng_now_ms(void); /* monotonic */
void eng_server_log(const struct eng_server *s, enum cs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- call.c ------------------------------------------------------------------------------------------ */

struct eng_call *eng_call_new(struct eng_server *s, struct MHD_Connection *mhd);
struct eng_call *eng_call_ref(struct eng_call *c);
void eng_call_unref(struct eng_call *c);
/* The client is gone, too slow, or the server stops: ends the work for it and wakes its connection. */
void eng_call_abandon(struct eng_call *c);
/* The server stops: true, once a call, where its work is to be cancelled in the engine; the end of that is
 * then reported to the client as a failure. Without `always`, only where the reply has not begun. */
bool eng_call_take_cancel(struct eng_call *c, bool always, eng_request_id *id);
/* HTTP is through with the call: no more resumes. Abandons work that is not done. */
void eng_call_detach(struct eng_call *c);
void eng_call_resume_locked(struct eng_call *c);
/* The engine's callbacks; ctx is the call, of which on_done drops a reference. */
void eng_call_on_event(void *ctx, const struct eng_event *event);
void eng_call_on_done(void *ctx, int result, const struct eng_usage *usage);
/* MHD's reader of a stream; cls is the call. */
ssize_t eng_call_read(void *cls, uint64_t pos, char *buf, size_t max);
/* RUNNING and done: turns the packed events into answer or failure. HTTP thread. */
void eng_call_finish_whole(struct eng_call *c);

/* ---- prepare.c --------------------------------------------------------------------------------------- */

void *eng_prepare_thread(void *server);
/* Takes a reference. */
void eng_prepare_push(struct eng_server *s, struct eng_call *c);
void eng_prepare_completion(struct eng_call *c, enum eng_api_kind kind);
void eng_prepare_tokenize(struct eng_call *c);
void eng_prepare_detokenize(struct eng_call *c);

/* ---- watch.c ----------------------------------------------------------------------------------------- */

void *eng_watch_thread(void *server);
void eng_watch_wake(struct eng_server *s);
/* MHD's notification that a connection began or ended; cls is the server. */
void eng_watch_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code);
/* The connection now serves this call (NULL: none), with a deadline from now (0: none). False: the connection
 * is not watched (no memory when it began). */
bool eng_watch_set(struct eng_server *s, struct MHD_Connection *mhd, struct eng_call *c, int64_t deadline_ms);
/* The connection's body is not read to its end: it lingers when MHD closes it. */
void eng_watch_unread(struct MHD_Connection *mhd);
/* After the thread has ended: closes the connections that still linger. */
void eng_watch_close_lingering(struct eng_server *s);

/* ---- route.c ----------------------------------------------------------------------------------------- */

struct eng_route {
    const char *path;
    void (*get)(struct eng_call *c, const char *url); /* answers at once */
    void (*post)(struct eng_call *c);                 /* on the preparing thread */
    const char *content_type;                         /* NULL: JSON */
    bool prefix;                                      /* more of the path may follow */
    bool open;                                        /* needs no key */
    bool operators; /* speaks of all tenants: where keys are, only an operator's opens it */
    bool always;    /* works while the model is loading */
};

/* A body that is refused is read to its end, up to so many times the limit. */
#define ENG_DISCARD_FACTOR 4

enum MHD_Result eng_route_handle(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **ctx);
void eng_route_completed(void *cls, struct MHD_Connection *mhd, void **ctx,
                         enum MHD_RequestTerminationCode why);

/* ---- state.c ----------------------------------------------------------------------------------------- */

void eng_state_health(struct eng_call *c, const char *url);
void eng_state_metrics(struct eng_call *c, const char *url);
void eng_state_cache(struct eng_call *c, const char *url);
void eng_state_models(struct eng_call *c, const char *url);
void eng_state_page(struct eng_call *c, const char *url);
/* True for the names a request may use. */
bool eng_state_is_model(const struct eng_server *s, const char *name);

#endif
