/*
 * What a sequence of a model with windows or recurrent state does beside its pages. For a dense model all of
 * it is nothing. Engine thread only.
 *
 *   admitted     takes a live region; the state of the checkpoint where it resumes is copied in (one scatter)
 *   placed       the prompt's boundaries are named to the store, which keeps the best of them
 *   each step    window pages and memory for checkpoints before it; after it the store drops what is behind
 *   at its end   the state at the last grid position becomes a checkpoint of the turn (one gather)
 *
 * Checkpoints inside a chunk are written by the forward itself: no forward is cut for one, and none is copied
 * afterwards.
 */
#include "engine/runtime/engine_internal.h"
#include <stdlib.h>

static void count(struct eng_engine *e, uint64_t *counter, uint64_t n)
{
    pthread_mutex_lock(&e->lock);
    *counter += n;
    e->stats.state_bytes += n * e->state->state_bytes;
    pthread_mutex_unlock(&e->lock);
}

void *const *sequence_blocks(struct eng_engine *e, void *const *blocks, size_t n)
{
    if (!e->discrete || !blocks)
        return blocks;
    (void)discrete_begin(e->discrete, n); /* there is room since it was opened */
    return discrete_list(e->discrete, blocks, n);
}

/* Without memory for the list nothing is kept but the end of the turn: a later turn is slower, not wrong. */
static void place(struct sequence *q)
{
    const struct request *r = q->request;
    struct cs_boundary *list = calloc(r->n_boundaries + 2, sizeof *list);
    if (!list)
        return;
    size_t n = 0;
    for (size_t i = 0; i < r->n_boundaries; i++)
        list[n++] = r->boundaries[i];
    /* One token is always computed, so the same prompt again resumes before its last one. */
    list[n++] = (struct cs_boundary){(uint32_t)r->n_prompt - 1, CS_BOUNDARY_END};
    if (q->branch_at > 0)
        list[n++] = (struct cs_boundary){q->branch_at, CS_BOUNDARY_BRANCH};
    (void)cs_sequence_place(q->kv, list, n, (uint32_t)q->ids.n);
    free(list);
}

void sequence_resume(struct eng_engine *e, struct sequence *q)
{
    if (!e->stateful)
        return;
    q->live = live_pool_take(&e->live);
    if (q->live && q->n_computed == 0) {
        eng_state_start(e->model, q->live);
    } else if (q->live) {
        uint32_t n_blocks = 0;
        void *const *blocks = cs_sequence_state(q->kv, &n_blocks);
        struct kn_blocks from = {sequence_blocks(e, blocks, n_blocks), e->stride};
        eng_state_load(e->model, q->live, &from);
        count(e, &e->stats.state_loads, 1);
    }
    cs_sequence_state_done(q->kv);
    place(q);
}

void sequence_want_branch(struct eng_engine *e, struct sequence *q, uint32_t position)
{
    if (!e->stateful || position <= q->n_computed ||
        (q->branch_at > q->n_computed && q->branch_at <= position))
        return;
    q->branch_at = position;
    place(q);
}

int sequence_step_begin(struct eng_engine *e, struct sequence *q)
{
    q->n_captures = 0;
    if (e->stateful) {
        const struct cs_capture *wanted = NULL;
        size_t n = 0;
        uint32_t from = (uint32_t)q->n_computed;
        int rc = cs_sequence_step_begin(q->kv, from, from + q->chunk, &wanted, &n);
        if (rc != CS_OK)
            return rc;
        if (n > q->cap_captures) {
            struct eng_capture *captures = realloc(q->captures, n * sizeof *captures);
            if (!captures) {
                cs_sequence_step_end(q->kv, from, false);
                return CS_ENOMEM;
            }
            q->captures = captures;
            q->cap_captures = (uint32_t)n;
        }
        for (size_t i = 0; i < n; i++)
            q->captures[i] =
                (struct eng_capture){wanted[i].position, {.blocks = wanted[i].blocks, .stride = e->stride}};
        q->n_captures = (uint32_t)n;
    }
    q->stepping = true;
    return CS_OK;
}

void sequence_step_end(struct eng_engine *e, struct sequence *q, bool computed)
{
    if (!q->stepping)
        return;
    q->stepping = false;
    if (!e->stateful)
        return;
    cs_sequence_step_end(q->kv, (uint32_t)q->n_computed, computed);
    if (computed && q->n_captures > 0) {
        q->captured = true;
        count(e, &e->stats.state_captures, q->n_captures);
    }
}

void sequence_capture_end(struct eng_engine *e, struct sequence *q)
{
    sequence_step_end(e, q, false);
    if (!e->stateful || !q->kv || q->state_lost || q->n_computed < e->state->grid)
        return;
    const struct cs_capture *c = NULL;
    if (cs_sequence_capture(q->kv, CS_BOUNDARY_TURN, &c) != CS_OK)
        return;
    q->captured = true;
    if (e->state->state_bytes == 0)
        return;
    struct kn_blocks to = {sequence_blocks(e, c->blocks, c->n_blocks), e->stride};
    eng_state_save(e->model, q->live, &to);
    count(e, &e->stats.state_saves, 1);
}

size_t sequence_window_blocks(const struct eng_engine *e, size_t pos)
{
    const struct eng_state_desc *s = e->state;
    if (s->window_groups == 0)
        return 0;
    size_t at = pos / s->grid * s->grid;
    size_t first = at + 1 > s->window ? (at + 1 - s->window) / PAGE : 0;
    return s->window_groups * (pages_of(pos) - first);
}
