/*
 * Steps of a stateful model's sequence: window pages and captures.
 *
 * The sequence holds pages [window_first, window_end) of each window group: those that the next token or a
 * checkpoint at the last grid position needs, and those of the step under way. A capture is memory for the
 * state of one position; once its step is done it references the window pages before the position as well, so
 * that nothing is copied and neighbours share. It waits in the sequence until it is published.
 */
#include "cachestore/store.h"

#include <stdlib.h>

int step_reserve(struct cs_sequence *q, size_t capacity)
{
    struct cs_store *s = q->s;
    if (!s->stateful)
        return CS_OK;
    struct cs_key *keys = realloc(q->path_keys, (capacity + 1) * sizeof *keys);
    if (!keys)
        return CS_ENOMEM;
    q->path_keys = keys;
    if (s->window_groups == 0)
        return CS_OK;
    size_t n = s->window_groups * capacity + 1;
    uint32_t *page = malloc(n * sizeof *page);
    void **address = calloc(n, sizeof *address);
    if (!page || !address) {
        free(page);
        free((void *)address);
        return CS_ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        page[i] = ARENA_NO_PAGE;
    for (size_t g = 0; g < s->window_groups; g++)
        for (size_t i = q->window_first; i < q->window_end; i++) {
            page[g * capacity + i] = q->window_page[g * q->capacity + i];
            address[g * capacity + i] = q->window_address[g * q->capacity + i];
        }
    free(q->window_page);
    free((void *)q->window_address);
    q->window_page = page;
    q->window_address = address;
    return CS_OK;
}

void *const *cs_sequence_window_pages(const struct cs_sequence *q, uint32_t group)
{
    return group < q->s->window_groups && q->window_address ? q->window_address + group * q->capacity : NULL;
}

/* ---- window pages: all with the lock held ------------------------------------------------------------ */

static void window_put(struct cs_sequence *q, uint32_t group, uint32_t i, uint32_t page)
{
    size_t at = group * q->capacity + i;
    q->window_page[at] = page;
    q->window_address[at] = page == ARENA_NO_PAGE ? NULL : arena_address(&q->s->arena, page);
}

/* Lets go of pages before `first`. */
static void window_drop_locked(struct cs_sequence *q, uint32_t first)
{
    if (first > q->window_end)
        first = q->window_end;
    for (uint32_t g = 0; g < q->s->window_groups && q->window_first < first; g++)
        for (uint32_t i = q->window_first; i < first; i++) {
            index_page_unref_locked(&q->s->index, q->window_page[g * q->capacity + i]);
            window_put(q, g, i, ARENA_NO_PAGE);
        }
    if (first > q->window_first)
        q->window_first = first;
}

static int window_grow_locked(struct cs_sequence *q, uint32_t end)
{
    struct cs_store *s = q->s;
    if (end <= q->window_end || s->window_groups == 0)
        return CS_OK;
    int rc = room_for_pages_locked(s, (uint64_t)(end - q->window_end) * s->window_groups, q->account);
    if (rc != CS_OK)
        return rc;
    for (; q->window_end < end; q->window_end++)
        for (uint32_t g = 0; g < s->window_groups; g++)
            window_put(q, g, q->window_end, arena_take(&s->arena, q->account->slot));
    return CS_OK;
}

/* ---- captures: all with the lock held ---------------------------------------------------------------- */

void capture_drop_locked(struct cs_sequence *q, struct capture *c)
{
    struct capture **at = &q->captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    room_unref_pages_locked(q->s, c->block, c->filled ? c->n_blocks : q->s->state_blocks);
    free((void *)c->address);
    free(c);
}

static int capture_new_locked(struct cs_sequence *q, uint32_t position, enum cs_boundary_kind kind,
                              struct capture **out)
{
    struct cs_store *s = q->s;
    uint32_t n = checkpoint_blocks(s, position);
    struct capture *c = malloc(sizeof *c + n * sizeof c->block[0]);
    void **address = malloc((s->state_blocks + 1) * sizeof *address);
    int rc = c && address ? room_for_pages_locked(s, s->state_blocks, q->account) : CS_ENOMEM;
    if (rc != CS_OK) {
        free(c);
        free((void *)address);
        s->totals.dropped_checkpoints++;
        return rc;
    }
    *c = (struct capture){
        .next = q->captures, .position = position, .n_blocks = n, .kind = kind, .address = address};
    for (uint32_t i = 0; i < s->state_blocks; i++) {
        c->block[i] = arena_take(&s->arena, q->account->slot);
        address[i] = arena_address(&s->arena, c->block[i]);
    }
    q->captures = c;
    *out = c;
    return CS_OK;
}

/* Window pages that cover the position are in the sequence's tables. */
static void capture_fill_locked(struct cs_sequence *q, struct capture *c)
{
    struct cs_store *s = q->s;
    uint32_t n = s->state_blocks, end = c->position / s->page_tokens;
    for (uint32_t g = 0; g < s->window_groups; g++)
        for (uint32_t i = checkpoint_window_first(s, c->position); i < end; i++) {
            uint32_t page = q->window_page[g * q->capacity + i];
            index_page_ref_locked(&s->index, page);
            c->block[n++] = page;
        }
    c->filled = true;
    s->totals.captures++;
}

static void drop_unfilled_locked(struct cs_sequence *q)
{
    for (struct capture *c = q->captures, *next; c; c = next) {
        next = c->next;
        if (!c->filled)
            capture_drop_locked(q, c);
    }
}

/* ---- the step ---------------------------------------------------------------------------------------- */

static struct capture *find_capture(const struct cs_sequence *q, uint32_t position)
{
    struct capture *c = q->captures;
    while (c && c->position != position)
        c = c->next;
    return c;
}

/* Not there yet, and the window before it is held. */
static bool can_be_captured(const struct cs_sequence *q, uint32_t position)
{
    return !find_capture(q, position) &&
           (q->s->window_groups == 0 || checkpoint_window_first(q->s, position) >= q->window_first);
}

static bool reserve_step_captures(struct cs_sequence *q, size_t n)
{
    if (n <= q->step_captures_capacity)
        return true;
    struct cs_capture *grown = realloc(q->step_captures, n * sizeof *grown);
    if (!grown)
        return false;
    q->step_captures = grown;
    q->step_captures_capacity = n;
    return true;
}

static struct cs_capture capture_given(const struct cs_store *s, const struct capture *c)
{
    return (struct cs_capture){
        .position = c->position, .blocks = s->state_blocks ? c->address : NULL, .n_blocks = s->state_blocks};
}

int cs_sequence_step_begin(struct cs_sequence *q, uint32_t from, uint32_t to,
                           const struct cs_capture **captures, size_t *n_captures)
{
    struct cs_store *s = q->s;
    uint32_t pt = s->page_tokens;
    *captures = NULL;
    *n_captures = 0;
    if (!q->settled || from > to || to > q->n_pages * (uint64_t)pt)
        return CS_EINVAL;
    if (!s->stateful)
        return CS_OK;
    if (from > q->n_computed)
        return CS_EINVAL;
    size_t n = 0, n_wanted = 0;
    while (n_wanted < q->n_wanted && q->wanted[n_wanted].position <= to)
        n_wanted++;
    if (!reserve_step_captures(q, n_wanted))
        return CS_ENOMEM;
    pthread_mutex_lock(&s->lock);
    drop_unfilled_locked(q); /* of a step that never ended */
    int rc = window_grow_locked(q, (to + pt - 1) / pt);
    for (size_t i = 0; i < n_wanted && rc == CS_OK; i++) {
        struct capture *c;
        if (q->wanted[i].position > from && can_be_captured(q, q->wanted[i].position) &&
            capture_new_locked(q, q->wanted[i].position, q->wanted[i].kind, &c) == CS_OK)
            q->step_captures[n++] = capture_given(s, c);
    }
    if (rc == CS_OK)
        q->step_to = to;
    if (arena_wants_populate(&s->arena))
        pthread_cond_signal(&s->keeper_wake);
    writeback_relieve_locked(s);
    pthread_mutex_unlock(&s->lock);
    *captures = q->step_captures;
    *n_captures = n;
    return rc;
}

void cs_sequence_step_end(struct cs_sequence *q, uint32_t to, bool captured)
{
    struct cs_store *s = q->s;
    if (!s->stateful)
        return;
    if (to > q->step_to)
        to = q->step_to;
    pthread_mutex_lock(&s->lock);
    for (struct capture *c = q->captures, *next; c; c = next) {
        next = c->next;
        if (!c->filled && captured && c->position <= to)
            capture_fill_locked(q, c);
        else if (!c->filled)
            capture_drop_locked(q, c);
    }
    if (to > q->n_computed)
        q->n_computed = to;
    window_drop_locked(q, checkpoint_window_first(s, q->n_computed / s->grid_tokens * s->grid_tokens));
    pthread_mutex_unlock(&s->lock);
    size_t past = 0;
    while (past < q->n_wanted && q->wanted[past].position <= q->n_computed)
        past++;
    q->n_wanted -= past;
    for (size_t i = 0; i < q->n_wanted && past > 0; i++)
        q->wanted[i] = q->wanted[past + i];
}

int cs_sequence_capture(struct cs_sequence *q, enum cs_boundary_kind kind, const struct cs_capture **capture)
{
    struct cs_store *s = q->s;
    *capture = NULL;
    if (!q->settled)
        return CS_EINVAL;
    uint32_t position = q->n_computed / s->grid_tokens * s->grid_tokens;
    if (!s->stateful || position == 0)
        return CS_ENOTFOUND;
    if (!reserve_step_captures(q, 1))
        return CS_ENOMEM;
    pthread_mutex_lock(&s->lock);
    drop_unfilled_locked(q);
    struct span *stored = checkpoint_at_locked(s, q->place, q->place_ordinal, position);
    int rc = CS_ENOTFOUND;
    if (can_be_captured(q, position) && !(stored && index_is_resident(stored))) {
        struct capture *c;
        rc = capture_new_locked(q, position, kind, &c);
        if (rc == CS_OK) {
            capture_fill_locked(q, c);
            q->step_captures[0] = capture_given(s, c);
            *capture = q->step_captures;
        }
    }
    writeback_relieve_locked(s);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* ---- start and end of a sequence --------------------------------------------------------------------- */

void step_resume_locked(struct cs_sequence *q, struct held_checkpoint *from)
{
    struct cs_store *s = q->s;
    q->n_computed = from->position;
    if (from->position == 0)
        return;
    uint32_t n = s->state_blocks, end = from->position / s->page_tokens;
    q->window_first = checkpoint_window_first(s, from->position);
    q->window_end = end;
    for (uint32_t g = 0; g < s->window_groups; g++)
        for (uint32_t i = q->window_first; i < end; i++)
            window_put(q, g, i, from->block[n++]);
    q->state_block = from->block; /* of which the first state_blocks are still to be let go */
    for (uint32_t i = 0; i < s->state_blocks; i++)
        q->state_address[i] = arena_address(&s->arena, from->block[i]);
    *from = (struct held_checkpoint){0};
}

void *const *cs_sequence_state(const struct cs_sequence *q, uint32_t *n_blocks)
{
    bool there = q->settled && q->state_block && q->s->state_blocks > 0;
    *n_blocks = there ? q->s->state_blocks : 0;
    return there ? q->state_address : NULL;
}

static void state_done_locked(struct cs_sequence *q)
{
    if (q->state_block)
        room_unref_pages_locked(q->s, q->state_block, q->s->state_blocks);
    free(q->state_block);
    q->state_block = NULL;
}

void cs_sequence_state_done(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    if (!s->stateful)
        return;
    pthread_mutex_lock(&s->lock);
    state_done_locked(q);
    checkpoint_rank_path_locked(s, q->place, q->place_ordinal);
    pthread_mutex_unlock(&s->lock);
}

void step_close_locked(struct cs_sequence *q)
{
    state_done_locked(q);
    while (q->captures)
        capture_drop_locked(q, q->captures);
    window_drop_locked(q, q->window_end);
}

void step_free(struct cs_sequence *q)
{
    free(q->path_keys);
    free(q->window_page);
    free((void *)q->window_address);
    free((void *)q->state_address);
    free(q->wanted);
    free(q->step_captures);
}
