/*
 * Sequences: page tables, growth, notification, end. A sequence's page is shared (owned by a span, referenced
 * by any number of sequences, read-only) or private (no owner, this reference only).
 */
#include "cachestore/store.h"

#include <stdlib.h>

void sequence_list_locked(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    if (!q->listed) {
        q->listed = true;
        q->restoring_next = s->restoring;
        if (s->restoring)
            s->restoring->restoring_previous = q;
        s->restoring = q;
    }
    pthread_cond_signal(&s->keeper_wake);
}

void sequence_set_place_locked(struct cs_sequence *q, struct span *place, uint32_t ordinal)
{
    struct span *old = q->place;
    if (old && place != old) {
        if (q->placed_previous)
            q->placed_previous->placed_next = q->placed_next;
        else
            old->placed = q->placed_next;
        if (q->placed_next)
            q->placed_next->placed_previous = q->placed_previous;
    }
    if (place && place != old) {
        q->placed_previous = NULL;
        q->placed_next = place->placed;
        if (place->placed)
            place->placed->placed_previous = q;
        place->placed = q;
        index_pin_locked(&q->s->index, place);
    }
    q->place = place;
    q->place_ordinal = ordinal;
    if (old && place != old) {
        index_unpin_locked(&q->s->index, old);
        room_settle_span_locked(q->s, old);
    }
}

void cs_sequence_notify(struct cs_sequence *q, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&q->s->lock);
    q->notify = fn;
    q->notify_ctx = ctx;
    sequence_list_locked(q);
    pthread_mutex_unlock(&q->s->lock);
}

int cs_sequence_grow(struct cs_sequence *q, size_t n_tokens)
{
    struct cs_store *s = q->s;
    if (!q->settled || n_tokens > UINT32_MAX)
        return CS_EINVAL;
    size_t n = (n_tokens + s->page_tokens - 1) / s->page_tokens;
    if (n <= q->n_pages)
        return CS_OK;
    if (n > s->arena.n_pages)
        return CS_EFULL;
    if (n > q->capacity) {
        size_t capacity = q->capacity * 2 > n ? q->capacity * 2 : n;
        uint32_t *page = realloc(q->page, capacity * sizeof *page);
        if (page)
            q->page = page;
        void **address = realloc(q->address, capacity * sizeof *address);
        if (address)
            q->address = address;
        if (!page || !address || step_reserve(q, capacity) != CS_OK)
            return CS_ENOMEM;
        q->capacity = capacity;
    }
    pthread_mutex_lock(&s->lock);
    int rc = room_for_pages_locked(s, n - q->n_pages, q->account);
    if (rc == CS_OK)
        for (; q->n_pages < n; q->n_pages++) {
            q->page[q->n_pages] = arena_take(&s->arena, q->account->slot);
            q->address[q->n_pages] = arena_address(&s->arena, q->page[q->n_pages]);
        }
    if (arena_wants_populate(&s->arena))
        pthread_cond_signal(&s->keeper_wake);
    writeback_relieve_locked(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void *const *cs_sequence_pages(const struct cs_sequence *q)
{
    return q->address;
}

size_t cs_sequence_n_pages(const struct cs_sequence *q)
{
    return q->n_pages;
}

void cs_sequence_close(struct cs_sequence *q)
{
    if (!q)
        return;
    struct cs_store *s = q->s;
    pthread_mutex_lock(&s->lock);
    restore_abandon_locked(q);
    step_close_locked(q);
    room_unref_pages_locked(s, q->page, q->n_pages);
    if (s->stateful)
        checkpoint_rank_path_locked(s, q->place, q->place_ordinal);
    sequence_set_place_locked(q, NULL, 0);
    if (q->listed) {
        if (q->restoring_previous)
            q->restoring_previous->restoring_next = q->restoring_next;
        else
            s->restoring = q->restoring_next;
        if (q->restoring_next)
            q->restoring_next->restoring_previous = q->restoring_previous;
    }
    room_trim_locked(s, q->account);
    q->account->n_sequences--;
    index_account_settle_locked(&s->index, q->account);
    s->n_sequences--;
    pthread_mutex_unlock(&s->lock);
    step_free(q);
    free(q->page);
    free(q->address);
    free(q);
}
