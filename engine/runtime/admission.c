/*
 * From submitted to running. Engine thread only.
 *
 * Sequences wait in the order of their tickets. Those that come next are looked up in the store early, so
 * that their restores run while they wait. A sequence is admitted when the store has answered and the arena
 * has room for all of its ids and its windows, and, while others run, for a few pages more of each of those
 * and their full windows: a preempted sequence that came back for one free page would be pushed out again at
 * once.
 *
 * Of prompts with the same beginning that come together, one computes it and the others wait for that part.
 */
#include "engine/runtime/engine_internal.h"
#include <string.h>

#define HEADROOM_PAGES 8 /* kept free for each running sequence when another one is admitted */
#define FOLLOW_PAGES   4 /* what another sequence must save for a prompt to wait for it */

size_t admission_available(const struct eng_engine *e)
{
    struct cs_stats s;
    cs_stats_get(e->store, &s);
    return s.pages_total > s.pages_live ? s.pages_total - s.pages_live : 0;
}

/* Into the waiting list, with room left for all that run, so that preempting cannot fail. */
int admission_queue(struct eng_engine *e, struct sequence *q)
{
    if (sequence_list_reserve(&e->waiting, e->waiting.n + e->max_concurrency + 1) != ENG_OK)
        return ENG_ENOMEM;
    return sequence_list_insert(&e->waiting, q);
}

/* Moves what was submitted to the waiting list; true while the engine is to go on. *cancels is taken first:
 * who is cancelled was submitted before that. */
bool admission_take_new(struct eng_engine *e, bool *cancels)
{
    *cancels = atomic_exchange(&e->cancel_pending, false);
    pthread_mutex_lock(&e->lock);
    while (e->submitted.n > 0) {
        if (admission_queue(e, e->submitted.at[0]) != ENG_OK) {
            /* It stays submitted until there is memory, and a cancel of it stays pending. */
            atomic_store(&e->cancel_pending, true);
            break;
        }
        sequence_list_remove(&e->submitted, e->submitted.at[0]);
    }
    e->left_submitted = e->submitted.n > 0;
    bool closing = e->closing;
    bool empty = e->requests == NULL && e->n_submitting == 0;
    for (struct request *r = e->requests; closing && r; r = r->next)
        atomic_store(&r->cancelled, true);
    *cancels |= closing;
    pthread_mutex_unlock(&e->lock);
    return !closing || !empty;
}

void admission_take_cancels(struct eng_engine *e)
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

/* Blocks for a sequence's ids and its windows when its first `reused` tokens are there. */
static size_t blocks_needed(const struct eng_engine *e, const struct sequence *q, size_t reused)
{
    return pages_of(q->ids.n + 1) - reused / PAGE + sizing_window_blocks(e->state, q->ids.n + 1);
}

/* What those that run will take soon, and one checkpoint, or the first preemption would lose its state. */
static size_t headroom_blocks(const struct eng_engine *e)
{
    size_t blocks = e->running.n > 0 ? e->state_blocks : 0;
    for (size_t i = 0; i < e->running.n; i++) {
        const struct sequence *q = e->running.at[i];
        size_t end = q->request->n_prompt + q->request->max_tokens;
        size_t more = pages_of(end) > pages_of(q->ids.n) ? pages_of(end) - pages_of(q->ids.n) : 0;
        more = more < HEADROOM_PAGES ? more : HEADROOM_PAGES;
        size_t windows = sizing_window_blocks(e->state, q->ids.n + more * PAGE);
        size_t held = sequence_window_blocks(e, q->n_computed);
        blocks += more + (windows > held ? windows - held : 0);
    }
    return blocks;
}

/* Gives up the look-ahead of one waiting sequence, the youngest that has any. */
bool admission_drop_look_ahead(struct eng_engine *e, const struct sequence *except)
{
    for (size_t i = e->waiting.n; i > 0; i--) {
        struct sequence *q = e->waiting.at[i - 1];
        if (q->kv && q != except) {
            sequence_close(e, q);
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
    q->n_computed = cs_reuse_tokens(&q->reuse);
    q->n_published = q->n_computed;
    q->full_since_s = 0;
    sequence_resume(e, q);
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
    size_t reused = cs_reuse_tokens(&q->reuse);
    if (q->reopened || reused == (q->ids.n - 1) / e->state->grid * e->state->grid ||
        q->opened_at == atomic_load(&e->published_pages))
        return true;
    q->reopened = true;
    sequence_close(e, q);
    if (sequence_open(e, q) != ENG_OK)
        return false;
    q->settled = cs_sequence_poll(q->kv, &q->reuse) == 1;
    return q->settled;
}

enum room { ROOM_TAKEN, ROOM_LATER, ROOM_NONE, ROOM_NO_MEMORY };

/* Pages for all of the sequence's ids and one token more; those of windows are taken step by step. */
static enum room take_room(struct eng_engine *e, struct sequence *q)
{
    size_t need = blocks_needed(e, q, cs_reuse_tokens(&q->reuse));
    if (e->running.n > 0 && admission_available(e) < need + headroom_blocks(e))
        return ROOM_LATER;
    for (;;) {
        int rc = cs_sequence_grow(q->kv, q->ids.n + 1);
        if (rc == CS_OK)
            return ROOM_TAKEN;
        if (rc != CS_EFULL)
            return ROOM_NO_MEMORY;
        if (e->running.n > 0)
            return ROOM_LATER;
        if (!admission_drop_look_ahead(e, q))
            break;
    }
    double now = engine_now_s();
    if (q->full_since_s <= 0)
        q->full_since_s = now;
    return now - q->full_since_s < e->patience_s ? ROOM_LATER : ROOM_NONE;
}

/* True: a running sequence is computing a good part of q's prompt just now. It is cheaper to wait until that
 * part is there (it is published at once) than to compute it twice. */
static bool follows_another(struct eng_engine *e, struct sequence *q)
{
    size_t reused = cs_reuse_tokens(&q->reuse);
    bool waits = false;
    for (size_t i = 0; i < e->running.n && !waits; i++) {
        struct sequence *r = e->running.at[i];
        size_t most = (r->ids.n < q->ids.n ? r->ids.n : q->ids.n - 1) / PAGE * PAGE;
        if (r->n_published >= most || most < reused + FOLLOW_PAGES * PAGE ||
            memcmp(&r->request->tenant, &q->request->tenant, sizeof q->request->tenant) != 0)
            continue;
        size_t common = 0;
        while (common < most &&
               memcmp(r->ids.data + common, q->ids.data + common, PAGE * sizeof(uint32_t)) == 0)
            common += PAGE;
        common = common / e->state->grid * e->state->grid;
        if (common < reused + FOLLOW_PAGES * PAGE || common <= r->n_published)
            continue;
        if (r->publish_at == 0 || common < r->publish_at)
            r->publish_at = common;
        sequence_want_branch(e, r, (uint32_t)common);
        waits = true;
    }
    if (waits)
        q->reopened = false; /* to be looked up again */
    return waits;
}

/* Admits by ticket. One whose restore still runs is passed by those behind it; one for which there is no room
 * is not, or it would starve. */
void admission_admit(struct eng_engine *e)
{
    size_t i = 0;
    while (i < e->waiting.n && e->running.n < e->max_concurrency) {
        struct sequence *q = e->waiting.at[i];
        if (!q->kv) {
            if (e->running.n > 0 && admission_available(e) < blocks_needed(e, q, 0) + headroom_blocks(e))
                return;
            q->reopened = true;
            if (sequence_open(e, q) != ENG_OK) {
                request_fail(e, q->request, ENG_ENOMEM, "out of memory");
                i = 0;
                continue;
            }
        }
        if (!settle(e, q) || follows_another(e, q)) {
            i++;
            continue;
        }
        switch (take_room(e, q)) {
        case ROOM_TAKEN:
            admit(e, q);
            break;
        case ROOM_LATER:
            return;
        case ROOM_NO_MEMORY:
            request_fail(e, q->request, ENG_ENOMEM, "out of memory");
            i = 0;
            break;
        case ROOM_NONE:
            request_fail(e, q->request, ENG_EFULL, "no memory is left in the KV cache for this prompt");
            i = 0;
            break;
        }
    }
}

/* Starts the restores of those that come next. */
void admission_look_ahead(struct eng_engine *e)
{
    size_t n = e->waiting.n < e->max_concurrency ? e->waiting.n : e->max_concurrency;
    if (n == 0)
        return;
    size_t available = admission_available(e);
    size_t headroom = headroom_blocks(e);
    for (size_t i = 0; i < n; i++) {
        struct sequence *q = e->waiting.at[i];
        size_t need = blocks_needed(e, q, 0) + e->state_blocks;
        if (!q->kv && available >= need + headroom) {
            available -= need;
            (void)sequence_open(e, q);
        }
    }
}
