/*
 * Publishing what a sequence has, and ending it. Engine thread only.
 *
 * Three moments publish: the end of a prompt (with the notes of its messages), the end of a reply (with the
 * reply's note, before the client hears of the end), and a preemption or cancel (what there is). Each is one
 * call with all pages and checkpoints. The last sampled token has no KV and is never part of it.
 */
#include "engine/runtime/engine_internal.h"
#include <stdio.h>
#include <stdlib.h>

void sequence_publish(struct eng_engine *e, struct sequence *q, const struct cs_note *reply)
{
    struct request *r = q->request;
    if (!q->kv || q->n_computed == 0) /* one that waits has nothing of its own */
        return;
    size_t n_notes = 0;
    const struct cs_note *notes = reply;
    if (reply)
        n_notes = 1;
    else if (r->memo)
        notes = memo_take(r->memo, q->n_computed, &n_notes);
    if (q->n_computed / PAGE == q->n_published / PAGE && n_notes == 0 && !q->captured)
        return;
    int rc = cs_sequence_publish(q->kv, q->ids.data, q->n_computed, notes, n_notes);
    if (rc != CS_OK && !e->publish_failed) {
        e->publish_failed = true;
        engine_log(e, CS_LOG_WARN, "publishing to the prefix cache failed: %s (said once)", cs_strerror(rc));
    }
    atomic_fetch_add(&e->published_pages, q->n_computed / PAGE - q->n_published / PAGE + q->captured);
    q->n_published = q->n_computed;
    q->captured = false;
}

static void publish_reply(struct eng_engine *e, struct sequence *q)
{
    struct request *r = q->request;
    struct cs_note note;
    sequence_capture_end(e, q);
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
    uint64_t hashes[ENG_CHOICES_MAX] = {0};
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
    request_free(e, r);
}

/* Ends one choice. Everything is published before the client hears of the end. May free the request. */
void sequence_finish(struct eng_engine *e, struct sequence *q, enum eng_finish finish)
{
    struct request *r = q->request;
    if (reply_end_text(q) != ENG_OK)
        q->shown.len = 0;
    publish_reply(e, q);
    sequence_close(e, q);
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
void request_finish(struct eng_engine *e, struct request *r, enum eng_finish finish)
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

void request_fail(struct eng_engine *e, struct request *r, int result, const char *message)
{
    r->result = result;
    snprintf(r->message, sizeof r->message, "%s", message);
    request_finish(e, r, ENG_FINISH_ERROR);
}
