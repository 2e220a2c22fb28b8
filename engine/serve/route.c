/* Routing: which path is answered by whom, who may ask, collecting bodies, and queueing answers to MHD. HTTP
 * thread only. */
#include "engine/serve/call.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void post_chat(struct eng_call *c)
{
    eng_prepare_completion(c, ENG_API_CHAT);
}

static void post_completion(struct eng_call *c)
{
    eng_prepare_completion(c, ENG_API_COMPLETION);
}

static const struct eng_route routes[] = {
    {.path = "/",
     .get = eng_state_page,
     .open = true,
     .always = true,
     .content_type = "text/html; charset=utf-8"},
    {.path = "/health", .get = eng_state_health, .open = true, .always = true},
    {.path = "/metrics",
     .get = eng_state_metrics,
     .always = true,
     .operators = true,
     .content_type = "text/plain; version=0.0.4; charset=utf-8"},
    {.path = "/cache", .get = eng_state_cache, .operators = true},
    {.path = "/v1/models", .get = eng_state_models},
    {.path = "/v1/models/", .prefix = true, .get = eng_state_models},
    {.path = "/v1/chat/completions", .post = post_chat},
    {.path = "/v1/completions", .post = post_completion},
    {.path = "/tokenize", .post = eng_prepare_tokenize},
    {.path = "/detokenize", .post = eng_prepare_detokenize},
};

static const struct eng_route *find_route(const char *url)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        size_t len = strlen(routes[i].path);
        if (routes[i].prefix ? strncmp(url, routes[i].path, len) == 0 && url[len]
                             : strcmp(url, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

static const char *header(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

/* ---- answers ----------------------------------------------------------------------------------------- */

static enum MHD_Result queue_response(struct eng_call *c, struct MHD_Connection *mhd, int status,
                                      struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", "*");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    if (atomic_load(&c->server->draining))
        MHD_add_response_header(response, "Connection", "close");
    c->status = status;
    pthread_mutex_lock(&c->lock);
    if (c->state == ENG_CALL_RECEIVING)
        c->state = ENG_CALL_ANSWERED;
    pthread_mutex_unlock(&c->lock);
    enum MHD_Result result = MHD_queue_response(mhd, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

/* Takes text over. */
static struct MHD_Response *make_response(char *text, size_t len, const char *content_type)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
    if (!response)
        free(text);
    else
        MHD_add_response_header(response, "Content-Type", content_type);
    return response;
}

static enum MHD_Result queue_failure(struct eng_call *c, struct MHD_Connection *mhd,
                                     const struct eng_api_error *failure)
{
    char *text = eng_error_json(failure);
    if (!text)
        return MHD_NO;
    struct MHD_Response *response = make_response(text, strlen(text), "application/json");
    if (!response)
        return MHD_NO;
    if (failure->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (failure->status == 405)
        MHD_add_response_header(response, "Allow", c->allow);
    if (failure->status == 429 || failure->status == 503)
        MHD_add_response_header(response, "Retry-After", "1");
    return queue_response(c, mhd, failure->status, response);
}

static enum MHD_Result queue_answer(struct eng_call *c, struct MHD_Connection *mhd)
{
    if (c->failure.status != 0)
        return queue_failure(c, mhd, &c->failure);
    const char *type = c->route && c->route->content_type ? c->route->content_type : "application/json";
    struct eng_bytes body = c->answer;
    c->answer = (struct eng_bytes){0};
    struct MHD_Response *response = make_response(body.data, body.len, type);
    if (response && c->route && c->route->get == eng_state_page)
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                                "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                                "frame-ancestors 'none'");
    return queue_response(c, mhd, c->status ? c->status : MHD_HTTP_OK, response);
}

static void stream_free(void *cls)
{
    struct eng_call *c = cls;
    atomic_fetch_sub(&c->server->n_streams, 1);
    eng_call_unref(c);
}

static enum MHD_Result queue_stream(struct eng_call *c, struct MHD_Connection *mhd)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, eng_call_read, c, stream_free);
    if (!response)
        return MHD_NO;
    eng_call_ref(c);
    atomic_fetch_add(&c->server->n_streams, 1);
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue_response(c, mhd, MHD_HTTP_OK, response);
}

static enum MHD_Result queue_preflight(struct eng_call *c, struct MHD_Connection *mhd)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    const char *wanted = header(mhd, "Access-Control-Request-Headers");
    MHD_add_response_header(response, "Allow", c->allow);
    MHD_add_response_header(response, "Access-Control-Allow-Methods", c->allow);
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            wanted ? wanted : "Authorization, Content-Type");
    MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
    return queue_response(c, mhd, MHD_HTTP_NO_CONTENT, response);
}

/* ---- arrival ----------------------------------------------------------------------------------------- */

static bool is_read(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static bool is_too_large(const struct eng_server *s, struct MHD_Connection *mhd)
{
    const char *length = header(mhd, "Content-Length");
    return length && strtoull(length, NULL, 10) > s->max_body_bytes;
}

static void fail_too_large(const struct eng_server *s, struct eng_api_error *err)
{
    eng_api_fail_as(err, 413, "invalid_request_error", "request_too_large",
                    "The request body is larger than %llu bytes.", (unsigned long long)s->max_body_bytes);
}

/* Decides from the headers alone whether the request is refused; c->reject says how. */
static void judge(struct eng_call *c, struct MHD_Connection *mhd, const char *url, const char *method)
{
    struct eng_server *s = c->server;
    struct eng_api_error *err = &c->reject;
    bool preflight = strcmp(method, "OPTIONS") == 0;
    c->route = find_route(url);
    if (atomic_load(&s->draining)) {
        eng_error_stopping(err);
        return;
    }
    if (!c->route) {
        eng_api_fail_as(err, 404, "invalid_request_error", "unknown_url", "Unknown path %s %.200s.", method,
                        url);
        return;
    }
    c->allow = c->route->get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    if (!preflight && (c->route->get ? !is_read(method) : strcmp(method, "POST") != 0)) {
        eng_api_fail_as(err, 405, "invalid_request_error", "method_not_allowed", "%s takes %s, not %s.",
                        c->route->path, c->route->get ? "GET" : "POST", method);
        return;
    }
    if (preflight)
        return;
    bool is_operator = !s->keys;
    if (s->keys && !c->route->open &&
        !eng_keys_find(s->keys, header(mhd, "Authorization"), &c->tenant, &is_operator)) {
        eng_api_fail_as(err, 401, "authentication_error", "invalid_api_key",
                        "A valid API key is needed: send it as 'Authorization: Bearer KEY'.");
        return;
    }
    if (c->route->operators && !is_operator) {
        eng_api_fail_as(err, 403, "permission_error", "operators_only",
                        "%s counts what all tenants do: it needs the key of an operator.", c->route->path);
        return;
    }
    if (!c->route->always && !atomic_load(&s->engine)) {
        eng_api_fail_as(err, 503, "server_error", "loading", "The model is still loading.");
        return;
    }
    if (is_too_large(s, mhd))
        fail_too_large(s, err);
}

/* Keeps the body within both limits: this request's and that of all bodies together. False: close the
 * connection. */
static bool collect(struct eng_call *c, const char *data, size_t len)
{
    struct eng_server *s = c->server;
    c->body_seen += len;
    atomic_store(&c->heard_ms, eng_now_ms());
    if (c->reject.status == 0 && c->body_seen > s->max_body_bytes)
        fail_too_large(s, &c->reject);
    if (c->reject.status == 0 && atomic_load(&s->body_bytes) + len > ENG_DISCARD_FACTOR * s->max_body_bytes)
        eng_api_fail_as(&c->reject, 429, "rate_limit_error", "busy",
                        "Too many large requests at once; try again in a moment.");
    if (c->reject.status != 0) {
        eng_bytes_free(&c->body);
        atomic_fetch_sub(&s->body_bytes, c->body_reserved);
        c->body_reserved = 0;
        return c->body_seen <= ENG_DISCARD_FACTOR * s->max_body_bytes;
    }
    atomic_fetch_add(&s->body_bytes, len);
    c->body_reserved += len;
    eng_bytes_add(&c->body, data, len);
    return !c->body.failed;
}

/* Suspends the connection unless it has to end. Called with the call's lock held. */
static enum MHD_Result suspend_locked(struct eng_call *c)
{
    if (c->gone || atomic_load(&c->server->stopping))
        return MHD_NO;
    c->suspended = true;
    MHD_suspend_connection(c->mhd);
    return MHD_YES;
}

/* The request is complete. */
static enum MHD_Result dispatch(struct eng_call *c, struct MHD_Connection *mhd, const char *url,
                                const char *method)
{
    if (!eng_watch_set(c->server, mhd, c, 0))
        return MHD_NO;
    if (c->reject.status == 0 && atomic_load(&c->server->draining))
        eng_error_stopping(&c->reject);
    if (c->reject.status != 0)
        return queue_failure(c, mhd, &c->reject);
    if (strcmp(method, "OPTIONS") == 0)
        return queue_preflight(c, mhd);
    if (c->route->get) {
        c->route->get(c, url);
        if (c->answer.failed)
            return MHD_NO;
        return queue_answer(c, mhd);
    }
    pthread_mutex_lock(&c->lock);
    c->state = ENG_CALL_PREPARING;
    enum MHD_Result result = suspend_locked(c);
    pthread_mutex_unlock(&c->lock);
    if (result == MHD_YES)
        eng_prepare_push(c->server, c);
    return result;
}

/* The connection was resumed. */
static enum MHD_Result proceed(struct eng_call *c, struct MHD_Connection *mhd)
{
    enum MHD_Result result = MHD_NO;
    pthread_mutex_lock(&c->lock);
    enum eng_call_state state = c->state;
    bool over = c->gone || atomic_load(&c->server->stopping);
    if (!over && (state == ENG_CALL_PREPARING || (state == ENG_CALL_RUNNING && !c->done))) {
        result = suspend_locked(c);
        over = true;
    }
    pthread_mutex_unlock(&c->lock);
    if (over)
        return result;
    if (state == ENG_CALL_STREAMING)
        return queue_stream(c, mhd);
    if (state == ENG_CALL_RUNNING)
        eng_call_finish_whole(c);
    return queue_answer(c, mhd);
}

struct framing {
    unsigned lengths, codings, hosts;
};

static enum MHD_Result count_framing(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct framing *f = cls;
    (void)kind;
    (void)value;
    f->lengths += strcasecmp(key, "Content-Length") == 0;
    f->codings += strcasecmp(key, "Transfer-Encoding") == 0;
    f->hosts += strcasecmp(key, "Host") == 0;
    return MHD_YES;
}

/* Where a body ends is said twice: a proxy in front may have taken the other one (RFC 9112, 6.3), and what it
 * took for a body would be the next request here. */
static bool is_ambiguous(const struct framing *f)
{
    return f->lengths + f->codings > 1;
}

/* RFC 9112, 3.2. MHD's own option for it counts no second one, and wants much else. */
static bool lacks_host(const struct framing *f, const char *version)
{
    return f->hosts > 1 || (f->hosts == 0 && strcmp(version, "HTTP/1.1") == 0);
}

/* Where a refusal need not wait for the body it goes out now: to a client that asks before it sends, and when
 * what is announced would not be read to its end, or has none. MHD then closes the connection. */
static enum MHD_Result refuse_early(struct eng_call *c, struct MHD_Connection *mhd, const struct framing *f)
{
    if (!header(mhd, "Expect") && !is_too_large(c->server, mhd) && !is_ambiguous(f))
        return MHD_YES;
    eng_watch_unread(mhd);
    return queue_failure(c, mhd, &c->reject);
}

enum MHD_Result eng_route_handle(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **ctx)
{
    struct eng_server *s = cls;
    struct eng_call *c = *ctx;
    if (atomic_load(&s->stopping))
        return MHD_NO;
    if (!c) {
        c = eng_call_new(s, mhd);
        if (!c)
            return MHD_NO;
        *ctx = c;
        if (!eng_watch_set(s, mhd, c, ENG_BODY_DEADLINE_MS))
            return MHD_NO;
        struct framing f = {0};
        MHD_get_connection_values(mhd, MHD_HEADER_KIND, count_framing, &f);
        judge(c, mhd, url, method);
        if (lacks_host(&f, version))
            (void)eng_api_fail(&c->reject, NULL, "An HTTP/1.1 request has one Host header.");
        if (is_ambiguous(&f))
            (void)eng_api_fail(&c->reject, NULL,
                               "Content-Length and Transfer-Encoding must come once, and not both.");
        return c->reject.status != 0 ? refuse_early(c, mhd, &f) : MHD_YES;
    }
    if (*upload_size > 0) {
        bool good = collect(c, upload, *upload_size);
        *upload_size = 0;
        return good ? MHD_YES : MHD_NO;
    }
    /* RECEIVING is left on this thread only. */
    pthread_mutex_lock(&c->lock);
    bool complete = c->state == ENG_CALL_RECEIVING;
    pthread_mutex_unlock(&c->lock);
    return complete ? dispatch(c, mhd, url, method) : proceed(c, mhd);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void log_call(struct eng_call *c)
{
    pthread_mutex_lock(&c->lock);
    bool done = c->done, ran = c->submitted || done; /* it may be done before whoever submitted it says so */
    struct eng_usage usage = c->usage;
    pthread_mutex_unlock(&c->lock);
    if (c->status >= 500 && c->status != 503)
        eng_server_log(c->server, CS_LOG_WARN, "%s %d", c->route ? c->route->path : "?", c->status);
    else if (ran && !done)
        eng_server_log(c->server, CS_LOG_INFO, "%s %s", c->route->path,
                       atomic_load(&c->server->stopping) ? "cut off: the server stops"
                                                         : "cancelled by the client");
    else if (ran)
        eng_server_log(c->server, CS_LOG_INFO,
                       "%s %d · prompt %u · reused %u device, %u host, %u disk, missed: %s · reply %u · "
                       "prefill %.0f ms · decode %.0f ms",
                       c->route->path, c->status, usage.prompt_tokens, usage.reuse.tokens_device,
                       usage.reuse.tokens_host, usage.reuse.tokens_disk, cs_miss_name(usage.reuse.miss),
                       usage.completion_tokens, usage.prefill_ms, usage.decode_ms);
}

void eng_route_completed(void *cls, struct MHD_Connection *mhd, void **ctx,
                         enum MHD_RequestTerminationCode why)
{
    struct eng_server *s = cls;
    struct eng_call *c = *ctx;
    (void)why;
    if (!c)
        return;
    *ctx = NULL;
    atomic_fetch_add(&s->responses[c->status / 100 % 6], 1);
    log_call(c);
    eng_call_detach(c);
    eng_watch_set(s, mhd, NULL, ENG_IDLE_DEADLINE_MS);
    eng_call_unref(c);
}
