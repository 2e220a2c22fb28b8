/*
 * The engine thread: admit, plan, step, publish.
 *
 * A step is one forward over one token of every sequence that decodes and a chunk of those that prefill.
 * Everybody who decodes is in every step, and prefill gets what time is left (pace.c),
 * half of it for the oldest prompt, so that none starves, the other half for the shortest, so that none waits
 * behind a long one.
 *
 * Memory. Pages for a whole prompt are taken when it is admitted, pages for its reply as they are needed.
 * When the arena is exhausted, first the look-ahead of waiting requests is given up, then the youngest
 * running sequence is preempted: what it has computed is published, so it can be restored, and it waits by
 * its old ticket. There is no livelock: the victim is always the youngest by ticket and tickets never change,
 * so the oldest sequence always runs to its end; and a preempted one comes back only when there is room for
 * it and a few pages more for everybody who runs, so two sequences cannot push each other out in turn without
 * both getting somewhere. One that is alone and finds no page is given time (the store may be writing) and
 * then ends.
 */
#include "engine/runtime/engine_internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE            KN_PAGE_TOKENS
#define HEADROOM_PAGES  8   /* kept free for each running sequence when another one is admitted */
#define FULL_PATIENCE_S 2.0 /* how long one that is alone waits for a page */
#define LOADING_POLL_MS 10  /* while nothing runs: deadlines of restores pass without a wake-up */

static size_t pages_of(size_t n_tokens)
{
    return (n_tokens + PAGE - 1) / PAGE;
}

static size_t tokens_left(const struct sequence *q)
{
    return q->ids.n - q->n_computed;
}

static size_t pages_available(const struct eng_engine *e)
{
    struct cs_stats s;
    cs_stats_get(e->store, &s);
    return s.pages_total > s.pages_live ? s.pages_total - s.pages_live : 0;
}

/* ---- publishing and ending -------------------------------------------------------------------------- */

static void sequence_publish(struct eng_engine *e, struct sequence *q, const struct cs_note *reply)
{
    struct request *r = q->request;
    if (!q->kv)
        return;
    size_t n_notes = 0;
    const struct cs_note *notes = reply;
    if (reply)
        n_notes = 1;
    else if (r->memo)
        notes = memo_take(r->memo, q->n_computed, &n_notes);
    if (q->n_computed / PAGE == q->n_published / PAGE && n_notes == 0)
        return;
    int rc = cs_sequence_publish(q->kv, q->ids.data, q->n_computed, notes, n_notes);
    if (rc != CS_OK && !e->publish_failed) {
        e->publish_failed = true;
        engine_log(e, CS_LOG_WARN, "publishing to the prefix cache failed: %s (said once)", cs_strerror(rc));
    }
    atomic_fetch_add(&e->published_pages, q->n_computed / PAGE - q->n_published / PAGE);
    q->n_published = q->n_computed;
}

static void publish_reply(struct eng_engine *e, struct sequence *q)
{
    struct request *r = q->request;
    struct cs_note note;
    if (r->memo && q->n_sampled > 0 &&
        memo_reply(r->memo, q->ids.data, r->n_prompt, r->reply_run, q->n_sampled, q->shown.data, q->shown.len,
                   &note) == ENG_OK) {
        sequence_publish(e, q, &note);
        free((void *)note.data);
        return;
    }
    sequence_publish(e, q, NULL);
}

static void request_done(struct eng_engine *e, struct request *r)
{
    double now = engine_now_s();
    if (!r->admitted)
        r->usage.queue_ms = (now - r->submitted_s) * 1e3;
    else if (r->first_token_s > 0)
        r->usage.decode_ms = (now - r->first_token_s) * 1e3;
    else
        r->usage.prefill_ms = (now - r->admitted_s) * 1e3;
    uint64_t hashes[ENG_CHOICES_MAX];
    for (uint32_t i = 0; i < r->n_choices; i++)
        hashes[i] = r->choices[i].logits_hash;
    r->usage.logits_hash = hashes[0];
    if (r->n_choices > 1 && hashes[0] != 0)
        r->usage.logits_hash = XXH3_64bits(hashes, r->n_choices * sizeof hashes[0]);
    r->usage.message = r->message;

    pthread_mutex_lock(&e->lock);
    for (struct request **p = &e->requests; *p; p = &(*p)->next) {
        if (*p == r) {
            *p = r->next;
            break;
        }
    }
    if (!r->admitted)
        e->n_waiting--;
    e->stats.finished++;
    e->stats.cancelled += atomic_load(&r->cancelled);
    e->stats.failed += r->result != ENG_OK;
    pthread_mutex_unlock(&e->lock);

    if (r->on_done)
        r->on_done(r->ctx, r->result, &r->usage);
    request_free(r);
}

/* Into the waiting list, with room left for all that run, so that preempting cannot fail. */
static int wait_in_line(struct eng_engine *e, struct sequence *q)
{
    if (sequence_list_reserve(&e->waiting, e->waiting.n + e->max_concurrency + 1) != ENG_OK)
        return ENG_ENOMEM;
    return sequence_list_insert(&e->waiting, q);
}

/* Ends one choice. Everything is published before the client hears of the end. May free the request. */
static void sequence_finish(struct eng_engine *e, struct sequence *q, enum eng_finish finish)
{
    struct request *r = q->request;
    if (reply_end_text(q) != ENG_OK)
        q->shown.len = 0;
    publish_reply(e, q);
    sequence_close(q);
    if (q->state == SEQUENCE_RUNNING)
        sequence_list_remove(&e->running, q);
    else if (q->state == SEQUENCE_WAITING)
        sequence_list_remove(&e->waiting, q);
    q->state = SEQUENCE_DONE;
    for (size_t i = 0; i < e->n_batch; i++) {
        if (e->batch_of[i] == q)
            e->batch_of[i] = NULL;
    }
    if (q->hash)
        q->logits_hash = XXH3_64bits_digest(q->hash);
    reply_report(e, q, finish);
    if (++r->n_done == r->n_choices)
        request_done(e, r);
}

/* Ends all choices that still live. */
static void request_finish(struct eng_engine *e, struct request *r, enum eng_finish finish)
{
    uint32_t n = r->n_choices;
    struct sequence *choices = r->choices; /* the last finish frees the request */
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++)
        left += choices[i].state != SEQUENCE_DONE;
    for (uint32_t i = 0; left > 0 && i < n; i++) {
        if (choices[i].state != SEQUENCE_DONE) {
            left--;
            sequence_finish(e, &choices[i], finish);
        }
    }
}

static void request_fail(struct eng_engine *e, struct request *r, int result, const char *message)
{
    r->result = result;
    snprintf(r->message, sizeof r->message, "%s", message);
    request_finish(e, r, ENG_FINISH_ERROR);
}

/* ---- coming in -------------------------------------------------------------------------------------- */

/* Moves what was submitted to the waiting list; true while the engine is to go on. *cancels is taken first:
 * who is cancelled was submitted before that. */
static bool take_submitted(struct eng_engine *e, bool *cancels)
{
    *cancels = atomic_exchange(&e->cancel_pending, false);
    pthread_mutex_lock(&e->lock);
    while (e->submitted.n > 0) {
        if (wait_in_line(e, e->submitted.at[0]) != ENG_OK)
            break; /* stays submitted; tried again on the next turn */
        sequence_list_remove(&e->submitted, e->submitted.at[0]);
    }
    bool closing = e->closing;
    bool empty = e->requests == NULL && e->n_submitting == 0;
    for (struct request *r = e->requests; closing && r; r = r->next)
        atomic_store(&r->cancelled, true);
    *cancels |= closing;
    pthread_mutex_unlock(&e->lock);
    return !closing || !empty;
}

static void take_cancels(struct eng_engine *e)
{
    for (;;) {
        struct request *cancelled = NULL;
        for (size_t i = 0; i < e->running.n && !cancelled; i++) {
            if (atomic_load(&e->running.at[i]->request->cancelled))
                cancelled = e->running.at[i]->request;
        }
        for (size_t i = 0; i < e->waiting.n && !cancelled; i++) {
            if (atomic_load(&e->waiting.at[i]->request->cancelled))
                cancelled = e->waiting.at[i]->request;
        }
        if (!cancelled)
            return;
        request_finish(e, cancelled, ENG_FINISH_CANCELLED);
    }
}

/* ---- admission -------------------------------------------------------------------------------------- */

static size_t headroom_pages(const struct eng_engine *e)
{
    size_t pages = 0;
    for (size_t i = 0; i < e->running.n; i++) {
        const struct sequence *q = e->running.at[i];
        size_t end = q->request->n_prompt + q->request->max_tokens;
        size_t more = pages_of(end) > pages_of(q->ids.n) ? pages_of(end) - pages_of(q->ids.n) : 0;
        pages += more < HEADROOM_PAGES ? more : HEADROOM_PAGES;
    }
    return pages;
}

/* Gives up the look-ahead of one waiting sequence, the youngest that has any. */
static bool drop_look_ahead(struct eng_engine *e, const struct sequence *except)
{
    for (size_t i = e->waiting.n; i > 0; i--) {
        struct sequence *q = e->waiting.at[i - 1];
        if (q->kv && q != except) {
            sequence_close(q);
            return true;
        }
    }
    return false;
}

static void admit(struct eng_engine *e, struct sequence *q)
{
    struct request *r = q->request;
    sequence_list_remove(&e->waiting, q);
    (void)sequence_list_insert(&e->running, q); /* reserved at open: cannot fail */
    q->state = SEQUENCE_RUNNING;
    q->n_computed = q->reuse.tokens_device + q->reuse.tokens_disk;
    q->n_published = q->n_computed;
    q->full_since_s = 0;
    if (r->admitted)
        return;
    r->admitted = true;
    r->admitted_s = engine_now_s();
    r->usage.reuse = q->reuse;
    r->usage.queue_ms = (r->admitted_s - r->submitted_s) * 1e3;
    r->usage.restore_ms = q->reuse.restore_us / 1e3;
    pthread_mutex_lock(&e->lock);
    e->n_waiting--;
    e->stats.reused_tokens += q->n_computed;
    pthread_mutex_unlock(&e->lock);
}

/* Has the store's answer, as fresh as it may be: others may have published this prompt's beginning since it
 * was looked up. */
static bool settle(struct eng_engine *e, struct sequence *q)
{
    if (!q->settled)
        q->settled = cs_sequence_poll(q->kv, &q->reuse) == 1;
    if (!q->settled)
        return false;
    size_t reused = q->reuse.tokens_device + q->reuse.tokens_disk;
    if (q->reopened || reused == (q->ids.n - 1) / PAGE * PAGE ||
        q->opened_at == atomic_load(&e->published_pages))
        return true;
    q->reopened = true;
    sequence_close(q);
    if (sequence_open(e, q) != ENG_OK)
        return false;
    q->settled = cs_sequence_poll(q->kv, &q->reuse) == 1;
    return q->settled;
}

enum room { ROOM_TAKEN, ROOM_LATER, ROOM_NONE };

/* Pages for all of the sequence's ids and one token more. */
static enum room take_room(struct eng_engine *e, struct sequence *q)
{
    size_t need = pages_of(q->ids.n + 1) - (q->reuse.tokens_device + q->reuse.tokens_disk) / PAGE;
    if (e->running.n > 0 && pages_available(e) < need + headroom_pages(e))
        return ROOM_LATER;
    for (;;) {
        int rc = cs_sequence_grow(q->kv, q->ids.n + 1);
        if (rc == CS_OK)
            return ROOM_TAKEN;
        if (rc != CS_EFULL)
            return ROOM_NONE;
        if (e->running.n > 0)
            return ROOM_LATER;
        if (!drop_look_ahead(e, q))
            break;
    }
    double now = engine_now_s();
    if (q->full_since_s <= 0)
        q->full_since_s = now;
    return now - q->full_since_s < FULL_PATIENCE_S ? ROOM_LATER : ROOM_NONE;
}

/* Admits by ticket. One whose restore still runs is passed by those behind it; one for which there is no room
 * is not, or it would starve. */
static void admit_waiting(struct eng_engine *e)
{
    size_t i = 0;
    while (i < e->waiting.n && e->running.n < e->max_concurrency) {
        struct sequence *q = e->waiting.at[i];
        if (!q->kv) {
            if (e->running.n > 0 && pages_available(e) < pages_of(q->ids.n + 1) + headroom_pages(e))
                return;
            q->reopened = true;
            if (sequence_open(e, q) != ENG_OK) {
                request_fail(e, q->request, ENG_ENOMEM, "out of memory");
                i = 0;
                continue;
            }
        }
        if (!settle(e, q)) {
            i++;
            continue;
        }
        switch (take_room(e, q)) {
        case ROOM_TAKEN:
            admit(e, q);
            break;
        case ROOM_LATER:
            return;
        case ROOM_NONE:
            request_fail(e, q->request, ENG_EFULL, "no memory is left in the KV cache for this prompt");
            i = 0;
            break;
        }
    }
}

/* Starts the restores of those that come next. */
static void look_ahead(struct eng_engine *e)
{
    size_t n = e->waiting.n < e->max_concurrency ? e->waiting.n : e->max_concurrency;
    size_t available = n > 0 ? pages_available(e) : 0;
    size_t headroom = headroom_pages(e);
    for (size_t i = 0; i < n; i++) {
        struct sequence *q = e->waiting.at[i];
        if (!q->kv && available >= pages_of(q->ids.n) + headroom) {
            available -= pages_of(q->ids.n);
            (void)sequence_open(e, q);
        }
    }
}

/* ---- a step ----------------------------------------------------------------------------------------- */

static void preempt(struct eng_engine *e, struct sequence *q)
{
    sequence_publish(e, q, NULL);
    sequence_close(q);
    sequence_list_remove(&e->running, q);
    (void)sequence_list_insert(&e->waiting, q); /* wait_in_line left room */
    q->state = SEQUENCE_WAITING;
    q->reopened = false;
    q->chunk = 0;
    q->request->usage.preemptions++;
    pthread_mutex_lock(&e->lock);
    e->stats.preemptions++;
    pthread_mutex_unlock(&e->lock);
}

/* Room for q's chunk; others, or q itself, may have to go for it. False: q is not in this step. */
static bool make_room(struct eng_engine *e, struct sequence *q)
{
    for (;;) {
        int rc = cs_sequence_grow(q->kv, q->n_computed + q->chunk);
        if (rc == CS_OK) {
            q->full_since_s = 0;
            return true;
        }
        if (rc == CS_EFULL && drop_look_ahead(e, q))
            continue;
        if (rc == CS_EFULL && e->running.n > 1) {
            struct sequence *victim = e->running.at[e->running.n - 1];
            preempt(e, victim);
            if (victim == q)
                return false;
            continue;
        }
        break;
    }
    q->chunk = 0;
    double now = engine_now_s();
    if (q->full_since_s <= 0)
        q->full_since_s = now;
    if (now - q->full_since_s >= FULL_PATIENCE_S) {
        engine_log(e, CS_LOG_WARN, "request %" PRIu64 " ends at %zu tokens: the KV cache has no page left",
                   q->request->id, q->ids.n);
        if (q->n_sampled > 0)
            sequence_finish(e, q, ENG_FINISH_LENGTH);
        else
            request_fail(e, q->request, ENG_EFULL, "no memory is left in the KV cache for this prompt");
    }
    return false;
}

static void give_chunk(const struct eng_engine *e, struct sequence *q, double *budget)
{
    double cost = 0;
    uint32_t pos = (uint32_t)q->n_computed + q->chunk;
    q->chunk += pace_tokens(&e->pace, *budget, pos, (uint32_t)tokens_left(q) - q->chunk, &cost);
    *budget -= cost < *budget ? cost : *budget;
}

/* Chunks of this step. */
static void plan(struct eng_engine *e)
{
    struct sequence *oldest = NULL;
    uint32_t n_decode = 0;
    size_t n_prefill = 0;
    for (size_t i = 0; i < e->running.n; i++) {
        struct sequence *q = e->running.at[i];
        q->chunk = tokens_left(q) == 1;
        n_decode += q->chunk;
        n_prefill += !q->chunk;
        if (!q->chunk && !oldest)
            oldest = q;
    }
    if (!oldest)
        return;
    double budget = pace_budget(&e->pace, n_decode > 0);
    double first = n_prefill > 1 ? budget / 2 : budget;
    double rest = budget - first;
    give_chunk(e, oldest, &first);
    /* A page in every step, whatever it takes: less costs as much (the weights are read all the same), and a
     * pace that was learned too slow is corrected only by chunks that tell something. */
    size_t least = tokens_left(oldest) < PAGE ? tokens_left(oldest) : PAGE;
    if (oldest->chunk < least && !e->pace.fixed_tokens)
        oldest->chunk = (uint32_t)least;
    else if (oldest->chunk == 0)
        oldest->chunk = 1;
    if (n_prefill == 1)
        return;
    rest += first;
    size_t above = 0; /* those with that few tokens left have had their turn */
    for (size_t k = 0; k < n_prefill && rest > 0; k++) {
        struct sequence *next = NULL;
        for (size_t i = 0; i < e->running.n; i++) {
            struct sequence *q = e->running.at[i];
            if (tokens_left(q) > above && tokens_left(q) > 1 && (!next || tokens_left(q) < tokens_left(next)))
                next = q;
        }
        if (!next)
            break;
        above = tokens_left(next);
        for (size_t i = 0; i < e->running.n; i++) {
            if (tokens_left(e->running.at[i]) == above && e->running.at[i]->chunk < above)
                give_chunk(e, e->running.at[i], &rest);
        }
    }
}

/* The prompt is there: published, and the other choices may share it. */
static void prompt_computed(struct eng_engine *e, struct sequence *q)
{
    struct request *r = q->request;
    if (r->prompt_published || q->n_computed < r->n_prompt)
        return;
    r->prompt_published = true;
    sequence_publish(e, q, NULL);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct sequence *other = &r->choices[i];
        if (other->state != SEQUENCE_HELD)
            continue;
        if (wait_in_line(e, other) == ENG_OK)
            other->state = SEQUENCE_WAITING;
        else
            sequence_finish(e, other, ENG_FINISH_ERROR);
    }
}

static void token_computed(struct eng_engine *e, struct sequence *q, const float *logits)
{
    struct request *r = q->request;
    if (r->first_token_s <= 0) {
        r->first_token_s = engine_now_s();
        r->usage.prefill_ms = (r->first_token_s - r->admitted_s) * 1e3;
    }
    enum eng_finish finish;
    if (reply_sample(e, q, logits, &finish) != ENG_OK)
        request_fail(e, r, ENG_ENOMEM, "out of memory");
    else if (finish != ENG_FINISH_NONE)
        sequence_finish(e, q, finish);
    else
        reply_report(e, q, ENG_FINISH_NONE);
}

/* The batch in the order of tickets; what make_room preempts is always behind the one it makes room for. */
static size_t build_batch(struct eng_engine *e)
{
    for (size_t i = 0; i < e->running.n;) {
        struct sequence *q = e->running.at[i];
        if (q->chunk == 0 || make_room(e, q))
            i++;
        else if (i < e->running.n && e->running.at[i] == q)
            i++; /* still there, without a page */
    }
    size_t n = 0;
    for (size_t i = 0; i < e->running.n; i++) {
        struct sequence *q = e->running.at[i];
        /* The second test: one that was passed over when a failing neighbour left the list. */
        if (q->chunk == 0 || cs_sequence_n_pages(q->kv) < pages_of(q->n_computed + q->chunk))
            continue;
        e->batch_of[n] = q;
        e->batch[n++] = (struct eng_step_seq){
            .ids = q->ids.data + q->n_computed,
            .n = q->chunk,
            .pos0 = (uint32_t)q->n_computed,
            .pages = cs_sequence_pages(q->kv),
            .n_logits = q->chunk == tokens_left(q),
        };
    }
    e->n_batch = n;
    return n;
}

/* What a step's time teaches. Single tokens cost what a decoding step costs, wherever they stand; very small
 * chunks tell little about large ones. */
static void account(struct eng_engine *e, size_t n, double seconds)
{
    double work = 0;
    uint32_t n_single = 0;
    size_t n_chunk = 0;
    size_t n_decoded = 0;
    for (size_t i = 0; i < n; i++) {
        const struct eng_step_seq *s = &e->batch[i];
        n_decoded += s->n == 1 && s->pos0 >= e->batch_of[i]->request->n_prompt;
        n_single += s->n == 1;
        n_chunk += s->n > 1 ? s->n : 0;
        work += s->n > 1 ? pace_work(&e->pace, s->pos0, s->n) : 0;
    }
    if (n_chunk == 0 || n_chunk >= PAGE)
        pace_learn(&e->pace, work, n_single, seconds);
    double decode = n_chunk == 0 ? seconds : n_single > 0 ? e->pace.decode_seconds : 0;
    decode = decode < seconds ? decode : seconds;
    pthread_mutex_lock(&e->lock);
    e->stats.forwards++;
    e->stats.prefilled_tokens += n_chunk + n_single - n_decoded;
    e->stats.decoded_tokens += n_decoded;
    e->stats.decode_seconds += decode;
    e->stats.prefill_seconds += seconds - decode;
    pthread_mutex_unlock(&e->lock);
}

/* False: nothing could be computed. */
static bool step(struct eng_engine *e)
{
    plan(e);
    size_t n = build_batch(e);
    if (n == 0)
        return false;
    const float *logits = NULL;
    double start = engine_now_s();
    int rc = eng_forward(e->model, e->batch, n, &logits);
    if (rc != ENG_OK) {
        engine_log(e, CS_LOG_WARN, "a forward pass failed: %s", eng_strerror(rc));
        while (e->running.n > 0)
            request_fail(e, e->running.at[0]->request, rc, "the forward pass failed");
        e->n_batch = 0;
        return true;
    }
    account(e, n, engine_now_s() - start);
    for (size_t i = 0; i < n; i++)
        e->batch_of[i]->n_computed += e->batch[i].n;
    for (size_t i = 0; i < n; i++) {
        const float *row = logits;
        logits += (size_t)e->batch[i].n_logits * e->n_logits;
        if (e->batch_of[i])
            prompt_computed(e, e->batch_of[i]);
        if (e->batch_of[i] && e->batch[i].n_logits > 0)
            token_computed(e, e->batch_of[i], row);
    }
    e->n_batch = 0;
    return true;
}

void *scheduler_thread(void *engine)
{
    struct eng_engine *e = engine;
    bool cancels;
    while (take_submitted(e, &cancels)) {
        if (cancels)
            take_cancels(e);
        admit_waiting(e);
        look_ahead(e);
        pthread_mutex_lock(&e->lock);
        e->stats.running = (uint32_t)e->running.n;
        e->stats.waiting = e->n_waiting;
        pthread_mutex_unlock(&e->lock);
        if (e->running.n == 0)
            engine_sleep(e, e->waiting.n > 0 ? LOADING_POLL_MS : 0);
        else if (!step(e))
            engine_sleep(e, LOADING_POLL_MS);
    }
    return NULL;
}
