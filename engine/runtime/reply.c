/*
 * From logits to what a client sees: sample, turn tokens into whole characters, hold back what could begin a
 * stop string, and report tokens together with the text that they complete. Engine thread only.
 *
 * All of it is state of the sequence and none of it is the KV's, so that a preempted sequence goes on where
 * it was.
 */
#include "engine/runtime/engine_internal.h"
#include <stdlib.h>
#include <string.h>

static int hold_token(struct sequence *q, const struct eng_token_info *info, size_t start, size_t end)
{
    if (q->n_held == q->cap_held) {
        size_t cap = q->cap_held ? 2 * q->cap_held : 8;
        struct held_token *held = realloc(q->held, cap * sizeof *held);
        if (!held)
            return ENG_ENOMEM;
        q->held = held;
        q->cap_held = cap;
    }
    q->held[q->n_held++] = (struct held_token){*info, start, end};
    return ENG_OK;
}

static int push_piece(struct sequence *q, const char *piece, size_t len)
{
    char small[256];
    size_t need = 3 * (len + 3);
    char *text = need <= sizeof small ? small : malloc(need);
    if (!text)
        return ENG_ENOMEM;
    size_t n = eng_detok_push(&q->detok, piece, len, text);
    q->detok_bytes += n;
    int rc = stop_stream_push(&q->stop, &q->request->stop, text, n, false, &q->fresh);
    if (text != small)
        free(text);
    return rc;
}

int reply_sample(struct eng_engine *e, struct sequence *q, const float *logits, enum eng_finish *finish)
{
    struct request *r = q->request;
    *finish = ENG_FINISH_NONE;
    if (q->hash)
        XXH3_64bits_update(q->hash, logits, e->n_logits * sizeof *logits);
    struct eng_token_info info;
    uint32_t id = sampler_draw(e->sampler, e->backend, &r->sampling, q->choice, logits, q->ids.data,
                               r->n_prompt, q->ids.n, &info);
    if (eng_tokenizer_is_end(e->tokenizer, id) && !r->ignore_eos) {
        *finish = ENG_FINISH_STOP;
        return ENG_OK;
    }
    if (eng_ids_add(&q->ids, &id, 1) != ENG_OK)
        return ENG_ENOMEM;
    q->n_sampled++;
    r->usage.completion_tokens++;
    size_t len = 0;
    const char *piece = eng_tokenizer_piece(e->tokenizer, id, false, &len);
    size_t start = q->detok_bytes;
    if (push_piece(q, piece, len) != ENG_OK || hold_token(q, &info, start, q->detok_bytes) != ENG_OK)
        return ENG_ENOMEM;
    if (q->stop.stopped)
        *finish = ENG_FINISH_STOP;
    else if (q->n_sampled >= r->max_tokens)
        *finish = ENG_FINISH_LENGTH;
    return ENG_OK;
}

int reply_end_text(struct sequence *q)
{
    char text[16];
    size_t n = eng_detok_finish(&q->detok, text);
    q->detok_bytes += n;
    if (stop_stream_push(&q->stop, &q->request->stop, text, n, true, &q->fresh) != ENG_OK)
        return ENG_ENOMEM;
    /* The part that reply_report has not shown yet belongs to the reply as well. */
    return q->request->memo ? text_buffer_add(&q->shown, q->fresh.data, q->fresh.len) : ENG_OK;
}

/* How many held tokens go with the text let go so far. */
static size_t tokens_to_show(const struct sequence *q, bool last)
{
    size_t n = 0;
    while (n < q->n_held) {
        const struct held_token *t = &q->held[n];
        bool show = q->stop.stopped ? t->start < q->stop.released : last || t->end <= q->stop.released;
        if (!show)
            break;
        n++;
    }
    return n;
}

void reply_report(struct eng_engine *e, struct sequence *q, enum eng_finish finish)
{
    bool last = finish != ENG_FINISH_NONE;
    size_t n = tokens_to_show(q, last);
    if (n > e->cap_infos) {
        struct eng_token_info *infos = realloc(e->infos, n * sizeof *infos);
        if (infos) {
            e->infos = infos;
            e->cap_infos = n;
        } else {
            n = e->cap_infos;
        }
    }
    for (size_t i = 0; i < n; i++)
        e->infos[i] = q->held[i].info;
    if (n > 0) {
        memmove(q->held, q->held + n, (q->n_held - n) * sizeof *q->held);
        q->n_held -= n;
    }
    if (last || n > 0 || q->fresh.len > 0) {
        if (!last && q->request->memo)
            (void)text_buffer_add(&q->shown, q->fresh.data, q->fresh.len);
        struct eng_event ev = {
            .choice = q->choice,
            .text = q->fresh.len ? q->fresh.data : "",
            .text_len = q->fresh.len,
            .tokens = e->infos,
            .n_tokens = n,
            .finish = finish,
        };
        q->fresh.len = 0;
        if (q->request->on_event)
            q->request->on_event(q->request->ctx, &ev);
    }
}
