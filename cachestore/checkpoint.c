/*
 * Checkpoints of a path. Each is a node of the index below the span with the page before it, so the
 * checkpoints of a path are those of its spans, up to the page where it leaves each of them.
 *
 * At most checkpoints_a_path lie on a path: publishing adds what was captured and thins the whole path at
 * once (policy/placement.h). A checkpoint that is added where other paths go on counts for them, too: where
 * one of them would have too many, the part that all share is thinned.
 */
#include "cachestore/policy/placement.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <time.h>

uint32_t checkpoint_window_first(const struct cs_store *s, uint32_t position)
{
    return position < s->window_tokens ? 0 : (position - s->window_tokens + 1) / s->page_tokens;
}

uint32_t checkpoint_blocks(const struct cs_store *s, uint32_t position)
{
    return s->state_blocks +
           s->window_groups * (position / s->page_tokens - checkpoint_window_first(s, position));
}

bool checkpoint_is_resident(const struct span *c)
{
    return c->n_device == c->n_pages;
}

static bool can_be_restored(const struct span *c)
{
    return checkpoint_is_resident(c) || c->n_loading > 0 || c->disk == SPAN_DISK_DURABLE;
}

/* ---- finding: all with the lock held ----------------------------------------------------------------- */

struct span *checkpoint_deepest_locked(struct cs_store *s, struct span *at, uint32_t ordinal, uint32_t limit,
                                       bool resident_only)
{
    (void)s;
    for (; at; ordinal = at->parent_ordinal, at = at->parent) {
        struct span *best = NULL;
        for (struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            if (!c->doomed && c->parent_ordinal <= ordinal && c->first_position <= limit &&
                (resident_only ? checkpoint_is_resident(c) : can_be_restored(c)) &&
                (!best || c->first_position > best->first_position))
                best = c;
        if (best)
            return best;
    }
    return NULL;
}

/* The page before `position`: goes up from (at, ordinal). NULL: the path is shorter, or the position 0. */
static struct span *page_before(const struct cs_store *s, struct span *at, uint32_t *ordinal,
                                uint32_t position)
{
    if (!at || position == 0 || position > at->first_position + (*ordinal + 1) * s->page_tokens)
        return NULL;
    while (at->first_position >= position)
        at = at->parent;
    *ordinal = (position - at->first_position) / s->page_tokens - 1;
    return at;
}

struct span *checkpoint_at_locked(struct cs_store *s, struct span *at, uint32_t ordinal, uint32_t position)
{
    struct span *sp = page_before(s, at, &ordinal, position);
    return sp ? index_checkpoint_locked(sp, ordinal) : NULL;
}

int checkpoint_hold_locked(struct cs_store *s, const struct span *c, struct held_checkpoint *held)
{
    held->block = malloc(c->n_pages * sizeof *held->block);
    if (!held->block)
        return CS_ENOMEM;
    for (uint32_t i = 0; i < c->n_pages; i++) {
        held->block[i] = c->page[i];
        index_page_ref_locked(&s->index, c->page[i]);
    }
    held->position = c->first_position;
    held->n_blocks = c->n_pages;
    return CS_OK;
}

void checkpoint_let_go_locked(struct cs_store *s, struct held_checkpoint *held)
{
    room_unref_pages_locked(s, held->block, held->n_blocks);
    free(held->block);
    *held = (struct held_checkpoint){0};
}

/* ---- branch points ----------------------------------------------------------------------------------- */

bool checkpoint_path_forks_locked(const struct span *at, uint32_t ordinal)
{
    if (!at)
        return false;
    if (ordinal + 1 < at->n_pages)
        return true;
    const struct span *child = at->first_child;
    while (child && child->parent_ordinal != ordinal)
        child = child->next_sibling;
    return child != NULL;
}

void checkpoint_note_branch_locked(struct cs_store *s, struct span *at, uint32_t ordinal, uint32_t position)
{
    struct span *c = checkpoint_at_locked(s, at, ordinal, position / s->grid_tokens * s->grid_tokens);
    if (c)
        c->boundary = placement_merge(c->boundary, CS_BOUNDARY_BRANCH);
}

/* ---- placing and thinning ---------------------------------------------------------------------------- */

/* The checkpoints of the path, in no order; room for them behind `extra` points more. NULL: no memory. */
static struct placement_point *points_of_path(struct span *place, uint32_t place_ordinal, size_t extra,
                                              size_t *n)
{
    struct placement_point *points = NULL;
    for (int pass = 0; pass < 2; pass++) {
        *n = 0;
        uint32_t ordinal = place_ordinal;
        for (struct span *at = place; at; ordinal = at->parent_ordinal, at = at->parent)
            for (struct span *c = at->first_checkpoint; c; c = c->next_sibling) {
                if (c->doomed || c->parent_ordinal > ordinal)
                    continue;
                if (points)
                    points[*n] = (struct placement_point){
                        .position = c->first_position, .kind = c->boundary, .item = c};
                ++*n;
            }
        if (!points && !(points = malloc((*n + extra + 1) * sizeof *points)))
            return NULL;
    }
    return points;
}

int cs_sequence_place(struct cs_sequence *q, const struct cs_boundary *boundaries, size_t n,
                      uint32_t n_tokens)
{
    struct cs_store *s = q->s;
    if (!q->settled || (n > 0 && !boundaries))
        return CS_EINVAL;
    if (!s->stateful)
        return CS_OK;
    size_t n_path = 0, n_new = 0;
    pthread_mutex_lock(&s->lock);
    if (q->branch)
        checkpoint_note_branch_locked(s, q->place, q->place_ordinal, q->branch);
    size_t n_captures = 0;
    for (const struct capture *c = q->captures; c; c = c->next)
        n_captures++;
    struct placement_point *points = points_of_path(q->place, q->place_ordinal, n_captures + n + 1, &n_path);
    for (const struct capture *c = q->captures; c && points; c = c->next)
        if (c->filled)
            points[n_path++] = (struct placement_point){.position = c->position, .kind = c->kind};
    pthread_mutex_unlock(&s->lock);
    struct wanted *wanted = malloc((n + 1) * sizeof *wanted);
    if (!points || !wanted) {
        free(points);
        free(wanted);
        return CS_ENOMEM;
    }
    size_t n_points = n_path + placement_candidates(boundaries, n, n_tokens, s->grid_tokens, q->n_computed,
                                                    q->branch, points + n_path);
    n_points = placement_sort(points, n_points);
    placement_thin(points, n_points, s->checkpoints_a_path);
    for (size_t i = 0; i < n_points; i++)
        if (points[i].kept && points[i].position > q->n_computed)
            wanted[n_new++] = (struct wanted){.position = points[i].position, .kind = points[i].kind};
    free(points);
    free(q->wanted);
    q->wanted = wanted;
    q->n_wanted = n_new;
    return CS_OK;
}

static void thin_path(struct cs_sequence *q)
{
    struct cs_store *s = q->s;
    size_t n;
    struct placement_point *points = points_of_path(q->place, q->place_ordinal, 0, &n);
    if (!points)
        return;
    if (n > s->checkpoints_a_path) {
        n = placement_sort(points, n);
        placement_thin(points, n, s->checkpoints_a_path);
        for (size_t i = 0; i < n; i++)
            if (!points[i].kept) {
                s->totals.thinned_checkpoints++;
                room_doom_locked(s, points[i].item, CS_MISS_STATE);
            }
    }
    free(points);
}

/* Of points[0..n), ascending, `more` must go: those that placement gives up first, but rather the last one,
 * which is new, than a point that is kept for others. */
static void thin_shared(struct cs_store *s, struct placement_point *points, size_t n, size_t more)
{
    struct span *new = points[n - 1].item;
    bool rather_new = more >= n;
    if (!rather_new)
        placement_thin(points, n, (uint32_t)(n - more));
    for (size_t i = 0; i < n && !rather_new; i++)
        rather_new =
            !points[i].kept && (points[i].kind == CS_BOUNDARY_SYSTEM || points[i].kind == CS_BOUNDARY_BRANCH);
    for (size_t i = 0; i < n && !rather_new; i++)
        if (!points[i].kept) {
            s->totals.thinned_checkpoints++;
            room_doom_locked(s, points[i].item, CS_MISS_STATE);
        }
    if (rather_new) {
        s->totals.thinned_checkpoints++;
        room_doom_locked(s, new, CS_MISS_STATE);
    }
}

/* Other paths through what this publish (of this tick) added must not have too many either. */
static void thin_paths_through(struct cs_sequence *q, uint64_t tick)
{
    struct cs_store *s = q->s;
    const struct span *root = q->place;
    while (root && root->parent)
        root = root->parent;
    for (uint32_t limit = UINT32_MAX; root && root->chain > s->checkpoints_a_path;) {
        size_t n, kept = 0;
        struct placement_point *points = points_of_path(q->place, q->place_ordinal, 0, &n);
        if (!points)
            return;
        n = placement_sort(points, n);
        for (size_t i = 0; i < n; i++) /* up to the deepest new one not looked at yet */
            if (points[i].position < limit && ((const struct span *)points[i].item)->last_used == tick)
                kept = i + 1;
        if (kept > 0) {
            const struct span *new = points[kept - 1].item;
            limit = new->first_position;
            uint32_t behind = ranks_chain_behind(new);
            if (kept + behind > s->checkpoints_a_path)
                thin_shared(s, points, kept, kept + behind - s->checkpoints_a_path);
        }
        free(points);
        if (kept == 0)
            return;
    }
}

void checkpoint_rank_path_locked(struct cs_store *s, struct span *at, uint32_t ordinal)
{
    for (; at; ordinal = at->parent_ordinal, at = at->parent)
        for (struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            if (c->parent_ordinal <= ordinal)
                ranks_update_locked(&s->index, c);
}

/* ---- publishing -------------------------------------------------------------------------------------- */

static struct span *add_node(struct cs_sequence *q, const struct capture *capture, struct span *at,
                             uint32_t ordinal)
{
    struct cs_store *s = q->s;
    struct span *c = NULL;
    if (room_for_index_locked(s, index_checkpoint_bytes(&s->index, capture->n_blocks)))
        c = index_add_checkpoint_locked(&s->index, at, ordinal,
                                        q->path_keys[capture->position / s->page_tokens - 1],
                                        capture->n_blocks, capture->kind);
    if (!c) {
        s->totals.dropped_index_full++;
        return NULL;
    }
    c->created_unix = c->touched_unix = (int64_t)time(NULL);
    s->totals.publish_checkpoints++;
    return c;
}

static void publish_capture(struct cs_sequence *q, struct capture *capture, uint64_t tick)
{
    struct cs_store *s = q->s;
    uint32_t ordinal = q->place_ordinal;
    struct span *at = page_before(s, q->place, &ordinal, capture->position);
    struct span *c = index_checkpoint_locked(at, ordinal);
    if (c)
        c->boundary = placement_merge(c->boundary, capture->kind);
    else
        c = add_node(q, capture, at, ordinal);
    if (c) {
        if (c->n_device + c->n_loading == 0)
            for (uint32_t i = 0; i < c->n_pages; i++)
                index_attach_locked(&s->index, c, i, capture->block[i], false);
        index_touch_locked(&s->index, c, tick);
        writeback_enqueue_locked(s, c);
    }
    capture_drop_locked(q, capture);
}

void checkpoint_publish_locked(struct cs_sequence *q, uint64_t tick)
{
    struct cs_store *s = q->s;
    bool any = false;
    for (struct capture *c = q->captures, *next; c; c = next) {
        next = c->next;
        if (c->filled && c->position / s->page_tokens <= q->n_known) {
            publish_capture(q, c, tick);
            any = true;
        }
    }
    if (any) {
        thin_path(q);
        thin_paths_through(q, tick);
    }
    /* The disk may have let go of it since it was published. */
    struct span *deepest = checkpoint_deepest_locked(s, q->place, q->place_ordinal, UINT32_MAX, false);
    if (deepest)
        writeback_enqueue_locked(s, deepest);
    checkpoint_rank_path_locked(s, q->place, q->place_ordinal);
}
