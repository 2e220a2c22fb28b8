/*
 * Requests on their way in: checked and copied on the caller's thread, looked up in the store at once (so
 * that a restore runs while the request waits), then handed to the engine thread. And the small things both
 * sides use: lists by ticket, waking and sleeping.
 *
 * The queue is bounded by requests that wait, not by those that run. How far ahead restores start is bounded
 * too (as many as may run): a deep queue must not pin the arena.
 */
#include "engine/runtime/engine_internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double engine_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int sequence_list_reserve(struct sequence_list *l, size_t n)
{
    if (n <= l->cap)
        return ENG_OK;
    size_t cap = l->cap ? 2 * l->cap : 16;
    while (cap < n)
        cap *= 2;
    struct sequence **at = realloc(l->at, cap * sizeof(struct sequence *));
    if (!at)
        return ENG_ENOMEM;
    l->at = at;
    l->cap = cap;
    return ENG_OK;
}

int sequence_list_insert(struct sequence_list *l, struct sequence *q)
{
    if (sequence_list_reserve(l, l->n + 1) != ENG_OK)
        return ENG_ENOMEM;
    size_t i = l->n++;
    for (; i > 0 && l->at[i - 1]->ticket > q->ticket; i--)
        l->at[i] = l->at[i - 1];
    l->at[i] = q;
    return ENG_OK;
}

void sequence_list_remove(struct sequence_list *l, const struct sequence *q)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->at[i] == q) {
            memmove(&l->at[i], &l->at[i + 1], (l->n - i - 1) * sizeof(struct sequence *));
            l->n--;
            return;
        }
    }
}

void engine_wake(void *engine)
{
    struct eng_engine *e = engine;
    pthread_mutex_lock(&e->wake_lock);
    e->awake = true;
    pthread_cond_signal(&e->wake_cond);
    pthread_mutex_unlock(&e->wake_lock);
}

void engine_sleep(struct eng_engine *e, unsigned timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->wake_lock);
    while (!e->awake) {
        if (timeout_ms == 0)
            pthread_cond_wait(&e->wake_cond, &e->wake_lock);
        else if (pthread_cond_timedwait(&e->wake_cond, &e->wake_lock, &until) == ETIMEDOUT)
            break;
    }
    e->awake = false;
    pthread_mutex_unlock(&e->wake_lock);
}

int sequence_open(struct eng_engine *e, struct sequence *q)
{
    q->opened_at = atomic_load(&e->published_pages);
    q->settled = false;
    if (cs_sequence_open(e->store, &q->request->tenant, q->ids.data, q->ids.n, &q->kv) != CS_OK) {
        q->kv = NULL;
        return ENG_ENOMEM;
    }
    cs_sequence_notify(q->kv, engine_wake, e);
    return ENG_OK;
}

void sequence_close(struct eng_engine *e, struct sequence *q)
{
    if (q->kv)
        cs_sequence_close(q->kv);
    live_pool_give(&e->live, q->live);
    q->kv = NULL;
    q->live = NULL;
    q->stepping = false;
    q->captured = false;
    q->branch_at = 0;
    q->settled = false;
    q->n_computed = 0;
    q->n_published = 0;
    q->publish_at = 0;
}

void request_free(struct eng_engine *e, struct request *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->choices && i < r->n_choices; i++) {
        struct sequence *q = &r->choices[i];
        sequence_close(e, q);
        eng_ids_free(&q->ids);
        stop_stream_free(&q->stop);
        free(q->fresh.data);
        free(q->shown.data);
        free(q->held);
        free(q->captures);
        if (q->hash)
            XXH3_freeState(q->hash);
    }
    free(r->choices);
    free(r->boundaries);
    free((void *)r->sampling.bias);
    stop_set_free(&r->stop);
    memo_free(r->memo);
    free(r);
}

static int request_check(const struct eng_engine *e, const struct eng_request *r, char *err, size_t err_len)
{
    const struct eng_ids *ids = &r->prompt->ids;
    if (ids->n == 0) {
        snprintf(err, err_len, "the prompt is empty");
        return ENG_EINVAL;
    }
    if (ids->n >= e->context) {
        snprintf(err, err_len, "the prompt has %zu tokens; the context of %u must hold it and the reply",
                 ids->n, e->context);
        return ENG_EINVAL;
    }
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->data[i] >= e->n_vocab) {
            snprintf(err, err_len, "token id %u is out of range; the vocabulary has %u", ids->data[i],
                     e->n_vocab);
            return ENG_EINVAL;
        }
    }
    if (r->n_choices < 1 || r->n_choices > ENG_CHOICES_MAX) {
        snprintf(err, err_len, "n is %u; it must be between 1 and %d", r->n_choices, ENG_CHOICES_MAX);
        return ENG_EINVAL;
    }
    return sampler_check(r->sampling, e->n_vocab, err, err_len);
}

static int sequence_init(struct sequence *q, struct request *r, uint32_t choice, const struct eng_ids *prompt,
                         bool hash_logits)
{
    q->request = r;
    q->choice = choice;
    q->state = choice == 0 ? SEQUENCE_WAITING : SEQUENCE_HELD;
    if (eng_ids_add(&q->ids, prompt->data, prompt->n) != ENG_OK)
        return ENG_ENOMEM;
    if (hash_logits) {
        q->hash = XXH3_createState();
        if (!q->hash)
            return ENG_ENOMEM;
        XXH3_64bits_reset(q->hash);
    }
    return ENG_OK;
}

/* Where the prompt's messages begin. Its end is no boundary like these: the last token is computed again. */
static int take_boundaries(struct request *r, const struct eng_prompt *p)
{
    if (p->n_boundaries == 0)
        return ENG_OK;
    r->boundaries = calloc(p->n_boundaries, sizeof *r->boundaries);
    if (!r->boundaries)
        return ENG_ENOMEM;
    for (size_t i = 0; i < p->n_boundaries; i++) {
        const struct eng_boundary *b = &p->boundaries[i];
        if (b->position > 0 && b->position < r->n_prompt)
            r->boundaries[r->n_boundaries++] =
                (struct cs_boundary){b->position, b->ends_system ? CS_BOUNDARY_SYSTEM : CS_BOUNDARY_TURN};
    }
    return ENG_OK;
}

static int request_new(struct eng_engine *e, const struct eng_request *from, struct request **out, char *err,
                       size_t err_len)
{
    int rc = ENG_ENOMEM;
    snprintf(err, err_len, "out of memory");
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return rc;
    if (from->tenant)
        r->tenant = *from->tenant;
    r->n_prompt = from->prompt->ids.n;
    r->reply_run = from->prompt->reply_run;
    r->sampling = *from->sampling;
    r->sampling.bias = NULL;
    if (from->sampling->n_bias > 0) {
        struct eng_logit_bias *bias = calloc(from->sampling->n_bias, sizeof *bias);
        if (!bias)
            goto fail;
        memcpy(bias, from->sampling->bias, from->sampling->n_bias * sizeof *bias);
        r->sampling.bias = bias;
    }
    uint32_t room = e->context - (uint32_t)r->n_prompt;
    r->max_tokens = from->max_tokens && from->max_tokens < room ? from->max_tokens : room;
    rc = stop_set_init(&r->stop, from->stop, from->n_stop);
    if (rc != ENG_OK) {
        if (rc == ENG_EINVAL)
            snprintf(err, err_len, "a stop string is empty or is not UTF-8");
        goto fail;
    }
    rc = take_boundaries(r, from->prompt);
    if (rc != ENG_OK)
        goto fail;
    rc = ENG_ENOMEM;
    r->ignore_eos = from->ignore_eos;
    r->on_event = from->on_event;
    r->on_done = from->on_done;
    r->ctx = from->ctx;
    r->choices = calloc(from->n_choices, sizeof *r->choices);
    if (!r->choices)
        goto fail;
    r->n_choices = from->n_choices;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        if (sequence_init(&r->choices[i], r, i, &from->prompt->ids, from->hash_logits) != ENG_OK)
            goto fail;
    }
    r->usage.prompt_tokens = (uint32_t)r->n_prompt;
    r->submitted_s = engine_now_s();
    r->memo = from->prompt->memo; /* last: on failure the prompt still owns it */
    from->prompt->memo = NULL;
    *out = r;
    return ENG_OK;
fail:
    request_free(e, r);
    return rc;
}

/* Takes a place in the queue. *look_ahead: the restore may start now. */
static int queue_reserve(struct eng_engine *e, bool *look_ahead, char *err, size_t err_len)
{
    int rc = ENG_OK;
    pthread_mutex_lock(&e->lock);
    if (e->closing) {
        snprintf(err, err_len, "the engine is shutting down");
        rc = ENG_EFULL;
    } else if (e->n_waiting >= e->max_queue) {
        snprintf(err, err_len, "%u requests wait already", e->n_waiting);
        e->stats.rejected_full++;
        rc = ENG_EFULL;
    } else {
        *look_ahead = e->n_waiting < e->max_concurrency;
        e->n_waiting++;
        e->n_submitting++;
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

int eng_submit(struct eng_engine *e, const struct eng_request *from, eng_request_id *id, char *err,
               size_t err_len)
{
    struct request *r = NULL;
    bool look_ahead = false;
    int rc = request_check(e, from, err, err_len);
    if (rc == ENG_OK)
        rc = request_new(e, from, &r, err, err_len);
    if (rc == ENG_OK)
        rc = queue_reserve(e, &look_ahead, err, err_len);
    eng_prompt_free(from->prompt);
    if (rc != ENG_OK) {
        request_free(e, r);
        return rc;
    }
    if (look_ahead)
        (void)sequence_open(e, &r->choices[0]); /* else the engine thread opens it */

    pthread_mutex_lock(&e->lock);
    e->n_submitting--;
    for (uint32_t i = 0; i < r->n_choices; i++)
        r->choices[i].ticket = ++e->last_ticket;
    rc = sequence_list_insert(&e->submitted, &r->choices[0]);
    if (rc == ENG_OK) {
        r->id = ++e->last_id;
        if (id)
            *id = r->id;
        r->next = e->requests;
        e->requests = r;
        e->stats.requests++;
        e->stats.prompt_tokens += r->n_prompt;
    } else {
        e->n_waiting--;
    }
    pthread_mutex_unlock(&e->lock);
    if (rc != ENG_OK) {
        snprintf(err, err_len, "out of memory");
        request_free(e, r);
    }
    engine_wake(e);
    return rc;
}

void eng_cancel(struct eng_engine *e, eng_request_id id)
{
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (struct request *r = e->requests; r && !found; r = r->next) {
        if (r->id == id) {
            atomic_store(&r->cancelled, true);
            atomic_store(&e->cancel_pending, true);
            found = true;
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (found)
        engine_wake(e);
}
