/* A call's life, its queue between engine and HTTP, and the reader of its stream; see call.h. */
#include "engine/serve/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int64_t eng_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- life -------------------------------------------------------------------------------------------- */

struct eng_call *eng_call_new(struct eng_server *s, struct MHD_Connection *mhd)
{
    struct eng_call *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return NULL;
    }
    c->server = s;
    c->mhd = mhd;
    c->last_write_ms = eng_now_ms();
    atomic_init(&c->heard_ms, c->last_write_ms);
    atomic_init(&c->refs, 1);
    return c;
}

struct eng_call *eng_call_ref(struct eng_call *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void eng_call_unref(struct eng_call *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    atomic_fetch_sub(&c->server->body_bytes, c->body_reserved);
    eng_bytes_free(&c->body);
    eng_bytes_free(&c->answer);
    eng_bytes_free(&c->queue);
    eng_bytes_free(&c->out);
    eng_reply_free(&c->reply);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void eng_call_resume_locked(struct eng_call *c)
{
    if (!c->suspended || !c->mhd)
        return;
    c->suspended = false;
    MHD_resume_connection(c->mhd);
}

void eng_call_abandon(struct eng_call *c)
{
    pthread_mutex_lock(&c->lock);
    c->gone = true;
    bool cancel = c->submitted && !c->done;
    eng_request_id id = c->request_id;
    eng_bytes_free(&c->queue);
    eng_call_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
    if (cancel)
        eng_cancel(atomic_load(&c->server->engine), id);
}

bool eng_call_take_cancel(struct eng_call *c, bool always, eng_request_id *id)
{
    pthread_mutex_lock(&c->lock);
    bool cancel = c->submitted && !c->done && !c->cancelled && (always || !c->begun);
    c->cancelled |= cancel;
    *id = c->request_id;
    pthread_mutex_unlock(&c->lock);
    return cancel;
}

void eng_call_detach(struct eng_call *c)
{
    pthread_mutex_lock(&c->lock);
    c->mhd = NULL;
    c->suspended = false;
    pthread_mutex_unlock(&c->lock);
    eng_call_abandon(c);
}

/* ---- engine side ------------------------------------------------------------------------------------- */

void eng_call_on_event(void *ctx, const struct eng_event *event)
{
    struct eng_call *c = ctx;
    pthread_mutex_lock(&c->lock);
    c->begun = true;
    if (!c->gone && !c->overflow) {
        eng_reply_pack(&c->queue, event, c->reply.logprobs);
        /* Lost events would make a wrong reply: better none. The watcher cancels it at its next round. */
        if (c->queue.failed || (c->reply.stream && c->queue.len + c->out_pending > ENG_UNSENT_LIMIT_BYTES)) {
            c->overflow = true;
            atomic_fetch_add(&c->server->slow_readers, 1);
            eng_bytes_free(&c->queue);
        }
    }
    if (c->reply.stream && (c->queue.len > 0 || c->overflow))
        eng_call_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
}

void eng_call_on_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct eng_call *c = ctx;
    struct eng_server *s = c->server;
    pthread_mutex_lock(&c->lock);
    c->done = true;
    c->result = result;
    c->usage = *usage;
    c->usage.message = NULL; /* valid during this call only */
    snprintf(c->message, sizeof c->message, "%s", usage->message);
    eng_call_resume_locked(c);
    pthread_mutex_unlock(&c->lock);
    eng_call_unref(c);
    pthread_mutex_lock(&s->running_lock);
    if (--s->running == 0)
        pthread_cond_broadcast(&s->running_none);
    pthread_mutex_unlock(&s->running_lock);
}

/* ---- HTTP side --------------------------------------------------------------------------------------- */

/* Formats what the engine has packed. Called with the lock held; drops it meanwhile, because building JSON
 * must not hold up the engine. */
static void format_queue(struct eng_call *c)
{
    struct eng_bytes queue = c->queue;
    bool done = c->done;
    c->queue = (struct eng_bytes){0};
    c->out.len = c->out_at = 0;
    c->out_pending = queue.len;
    pthread_mutex_unlock(&c->lock);
    eng_reply_take(&c->reply, queue.data, queue.len, &c->out);
    if (done)
        eng_reply_end_stream(&c->reply, c->result, c->message, &c->usage, &c->out);
    eng_bytes_free(&queue);
    pthread_mutex_lock(&c->lock);
    c->out_pending = c->out.len;
    c->ended = done;
}

ssize_t eng_call_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct eng_call *c = cls;
    ssize_t got = 0;
    (void)pos;
    pthread_mutex_lock(&c->lock);
    while (got == 0) {
        if (c->gone || c->overflow || c->out.failed || atomic_load(&c->server->stopping)) {
            got = MHD_CONTENT_READER_END_WITH_ERROR;
        } else if (c->out_at < c->out.len) {
            size_t n = c->out.len - c->out_at < max ? c->out.len - c->out_at : max;
            memcpy(buf, c->out.data + c->out_at, n);
            c->out_at += n;
            c->out_pending = c->out.len - c->out_at;
            c->last_write_ms = eng_now_ms();
            c->ping_due = false;
            got = (ssize_t)n;
        } else if (c->ended) {
            got = MHD_CONTENT_READER_END_OF_STREAM;
        } else if (c->queue.len > 0 || c->done) {
            format_queue(c);
        } else if (c->ping_due) {
            c->out.len = c->out_at = 0;
            eng_bytes_add_str(&c->out, ": keep-alive\n\n");
        } else {
            c->suspended = true;
            MHD_suspend_connection(c->mhd);
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return got;
}

void eng_call_finish_whole(struct eng_call *c)
{
    pthread_mutex_lock(&c->lock);
    struct eng_bytes queue = c->queue;
    bool overflow = c->overflow;
    c->queue = (struct eng_bytes){0};
    pthread_mutex_unlock(&c->lock);

    struct eng_api_error failure = {0};
    eng_reply_take(&c->reply, queue.data, queue.len, NULL);
    eng_bytes_free(&queue);
    if (eng_reply_error(&c->reply, c->result, c->message, &failure) == 0) {
        eng_reply_whole(&c->reply, &c->usage, &c->answer);
        if (c->answer.failed || overflow)
            eng_api_fail_as(&failure, 500, "server_error", NULL, "Out of memory.");
    }
    pthread_mutex_lock(&c->lock);
    c->failure = failure;
    c->state = ENG_CALL_ANSWERED;
    pthread_mutex_unlock(&c->lock);
}
