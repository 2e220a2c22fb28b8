/*
 * The engine thread: admit, plan, step, publish (admission.c and ending.c have the first and the last).
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
 *
 * Windows need pages for a whole chunk at once. When they are short, what the sequence has is published first
 * (its checkpoints can be evicted then), and the chunk is cut before anybody is preempted for it: where a
 * chunk ends changes no bit. A preempted sequence must leave a checkpoint, or it would begin again, so one's
 * worth of memory is kept from growth while there is somebody to preempt.
 */
#include "engine/runtime/engine_internal.h"
#include <inttypes.h>

#define LOADING_POLL_MS 10 /* while nothing runs: deadlines of restores pass without a wake-up */

static size_t tokens_left(const struct sequence *q)
{
    return q->ids.n - q->n_computed;
}

static void preempt(struct eng_engine *e, struct sequence *q)
{
    engine_log(e, CS_LOG_INFO,
               "request %" PRIu64 " waits again at %zu tokens: %zu sequences fill the KV cache",
               q->request->id, q->ids.n, e->running.n);
    sequence_capture_end(e, q);
    sequence_publish(e, q, NULL);
    sequence_close(e, q);
    sequence_list_remove(&e->running, q);
    (void)sequence_list_insert(&e->waiting, q); /* admission_queue left room */
    q->state = SEQUENCE_WAITING;
    q->reopened = false;
    q->chunk = 0;
    q->request->usage.preemptions++;
    pthread_mutex_lock(&e->lock);
    e->stats.preemptions++;
    pthread_mutex_unlock(&e->lock);
}

static int take_pages(struct eng_engine *e, struct sequence *q)
{
    size_t have = cs_sequence_n_pages(q->kv);
    size_t want = pages_of(q->n_computed + q->chunk);
    if (want > have && e->state_blocks > 0 && e->running.n > 1 &&
        admission_available(e) < want - have + e->state_blocks)
        return CS_EFULL;
    int rc = cs_sequence_grow(q->kv, q->n_computed + q->chunk);
    return rc == CS_OK ? sequence_step_begin(e, q) : rc;
}

/* Room for q's chunk; others, or q itself, may have to go for it. False: q is not in this step. */
static bool make_room(struct eng_engine *e, struct sequence *q)
{
    for (;;) {
        int rc = take_pages(e, q);
        if (rc == CS_OK) {
            q->full_since_s = 0;
            return true;
        }
        if (rc != CS_EFULL) {
            request_fail(e, q->request, rc == CS_ENOMEM ? ENG_ENOMEM : ENG_EIO,
                         rc == CS_ENOMEM ? "out of memory" : cs_strerror(rc));
            return false;
        }
        if (admission_drop_look_ahead(e, q))
            continue;
        if (q->captured) {
            sequence_publish(e, q, NULL);
            continue;
        }
        if (e->state->window_groups > 0 && q->chunk > PAGE) {
            q->chunk = q->chunk / 2 > PAGE ? q->chunk / 2 : PAGE;
            continue;
        }
        if (e->running.n == 1)
            break;
        struct sequence *victim = e->running.at[e->running.n - 1];
        preempt(e, victim);
        if (victim == q)
            return false;
    }
    q->chunk = 0;
    double now = engine_now_s();
    if (q->full_since_s <= 0)
        q->full_since_s = now;
    if (now - q->full_since_s >= e->patience_s) {
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
    uint32_t least = pace_least(&e->pace, (uint32_t)oldest->n_computed);
    least = least < tokens_left(oldest) ? least : (uint32_t)tokens_left(oldest);
    if (oldest->chunk < least)
        oldest->chunk = least;
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

/* What others wait for is published as soon as it is there, the whole prompt always; then the other choices
 * may share it. */
static void prompt_computed(struct eng_engine *e, struct sequence *q)
{
    struct request *r = q->request;
    if (q->publish_at > 0 && q->n_computed >= q->publish_at) {
        q->publish_at = 0;
        sequence_publish(e, q, NULL);
    }
    if (r->prompt_published || q->n_computed < r->n_prompt)
        return;
    r->prompt_published = true;
    sequence_publish(e, q, NULL);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct sequence *other = &r->choices[i];
        if (other->state != SEQUENCE_HELD)
            continue;
        if (admission_queue(e, other) == ENG_OK)
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
        bool ready = q->chunk == 0 || make_room(e, q);
        bool still_there = ready || (i < e->running.n && e->running.at[i] == q);
        i += still_there;
    }
    size_t n = 0;
    for (size_t i = 0; i < e->running.n; i++) {
        struct sequence *q = e->running.at[i];
        if (!q->stepping) /* no room, or passed over when a failing neighbour left the list */
            continue;
        uint32_t groups = e->state->window_groups;
        void *const **windows = e->batch_windows + n * groups;
        for (uint32_t g = 0; g < groups; g++)
            windows[g] = cs_sequence_window_pages(q->kv, g);
        bool has_state = e->state->state_bytes > 0;
        e->batch_of[n] = q;
        e->batch[n++] = (struct eng_step_seq){
            .ids = q->ids.data + q->n_computed,
            .n = q->chunk,
            .pos0 = (uint32_t)q->n_computed,
            .pages = cs_sequence_pages(q->kv),
            .window_pages = groups > 0 ? windows : NULL,
            .state = q->live,
            .captures = has_state ? q->captures : NULL,
            .n_captures = has_state ? q->n_captures : 0,
            .n_logits = q->chunk == tokens_left(q),
        };
    }
    e->n_batch = n;
    return n;
}

/* The kernels' view of the batch: memory in the place of the device's names. */
static int reach_batch(struct eng_engine *e, size_t n)
{
    if (!e->discrete)
        return ENG_OK;
    size_t groups = e->state->window_groups, total = 0;
    for (size_t i = 0; i < n; i++)
        total += (1 + groups) * pages_of(e->batch[i].pos0 + (size_t)e->batch[i].n) +
                 (size_t)e->batch[i].n_captures * e->state_blocks;
    if (discrete_begin(e->discrete, total) != ENG_OK)
        return ENG_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        struct eng_step_seq *s = &e->batch[i];
        size_t n_pages = pages_of(s->pos0 + (size_t)s->n);
        s->pages = discrete_list(e->discrete, s->pages, n_pages);
        for (size_t g = 0; g < groups; g++)
            e->batch_windows[i * groups + g] =
                discrete_list(e->discrete, e->batch_windows[i * groups + g], n_pages);
        for (size_t k = 0; k < s->n_captures; k++) {
            struct kn_blocks *to = &e->batch_of[i]->captures[k].to;
            to->blocks = discrete_list(e->discrete, to->blocks, e->state_blocks);
        }
    }
    return ENG_OK;
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
    if (n_chunk == 0 || work >= PACE_LEAST_WORK)
        pace_learn(&e->pace, work, n_single, seconds);
    if (n_chunk > 0 && e->pace.learned && e->restore == ENG_RESTORE_MEASURED) {
        double token_us = e->pace.unit_seconds * 1e6;
        (void)cs_prefill_cost(e->store, token_us, token_us / (2 * e->pace.knee));
    }
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
    int rc = reach_batch(e, n);
    if (rc == ENG_OK)
        rc = eng_forward(e->model, e->batch, n, &logits);
    if (rc != ENG_OK) {
        engine_log(e, CS_LOG_WARN, "a forward pass failed: %s", eng_strerror(rc));
        for (size_t i = 0; i < n; i++) {
            e->batch_of[i]->state_lost = true;
            sequence_step_end(e, e->batch_of[i], false);
        }
        while (e->running.n > 0)
            request_fail(e, e->running.at[0]->request, rc, "the forward pass failed");
        e->n_batch = 0;
        return true;
    }
    account(e, n, engine_now_s() - start);
    for (size_t i = 0; i < n; i++) {
        e->batch_of[i]->n_computed += e->batch[i].n;
        sequence_step_end(e, e->batch_of[i], true);
    }
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
    while (admission_take_new(e, &cancels)) {
        if (cancels)
            admission_take_cancels(e);
        admission_admit(e);
        admission_look_ahead(e);
        pthread_mutex_lock(&e->lock);
        e->stats.running = (uint32_t)e->running.n;
        pthread_mutex_unlock(&e->lock);
        if (e->running.n == 0)
            engine_sleep(e, e->waiting.n > 0 || e->left_submitted ? LOADING_POLL_MS : 0);
        else if (!step(e))
            engine_sleep(e, LOADING_POLL_MS);
    }
    return NULL;
}
