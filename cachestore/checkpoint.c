/*
 * Checkpoints of a path. Each is a node of the index below the span with the page before it, so the
 * checkpoints of a path are those of its spans, up to the page where it leaves each of them.
 *
 * At most checkpoints_a_path lie on a path: publishing adds what was captured and thins the whole path at
 * once (policy/placement.h). A checkpoint that is added where other paths go on counts for them, too: each of
 * them that would have too many is thinned like its own, so that a long path behind a point never keeps
 * others from resuming there.
 */
#include "cachestore/policy/placement.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <time.h>

#define PATHS_AT_ONCE 256 /* that one publish thins beside its own */

uint32_t checkpoint_window_first(const struct cs_store *s, uint32_t position)
{
    return position < s->window_tokens ? 0 : (position - s->window_tokens + 1) / s->page_tokens;
}

uint32_t checkpoint_blocks(const struct cs_store *s, uint32_t position)
{
    return s->state_blocks +
           s->window_groups * (position / s->page_tokens - checkpoint_window_first(s, position));
}

static bool can_be_restored(const struct span *c)
{
    return index_is_resident(c) || c->n_loading > 0 || index_is_safe(c);
}

/* ---- finding: all with the lock held ----------------------------------------------------------------- */

struct span *checkpoint_deepest_locked(struct span *at, uint32_t ordinal, uint32_t limit, bool resident_only)
{
    for (; at; ordinal = at->parent_ordinal, at = at->parent) {
        struct span *best = NULL;
        for (struct span *c = at->first_checkpoint; c; c = c->next_sibling)
            if (!c->doomed && c->parent_ordinal <= ordinal && c->first_position <= limit &&
                (resident_only ? index_is_resident(c) : can_be_restored(c)) &&
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
    if (!points)
        return CS_ENOMEM;
    size_t n_points = n_path + placement_candidates(boundaries, n, n_tokens, s->grid_tokens, q->n_computed,
                                                    q->branch, points + n_path);
    n_points = placement_sort(points, n_points);
    /* Some may be the path's own: others may have stored what this sequence has still to compute. */
    struct wanted *wanted = malloc((n_points + 1) * sizeof *wanted);
    if (!wanted) {
        free(points);
        return CS_ENOMEM;
    }
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

static void thin_out(struct cs_store *s, struct span *c)
{
    s->totals.thinned_checkpoints++;
    room_doom_locked(s, c, CS_MISS_STATE);
}

/* Thins the path that ends behind page `ordinal` of `at`. What q resumes at next stays as branch points do:
 * its path may part there. Returns how many went. */
static size_t thin_path(struct cs_sequence *q, struct span *at, uint32_t ordinal)
{
    struct cs_store *s = q->s;
    size_t n, n_thinned = 0;
    struct placement_point *points = points_of_path(at, ordinal, 0, &n);
    if (!points)
        return 0;
    if (n > s->checkpoints_a_path) {
        const struct span *last = checkpoint_deepest_locked(q->place, q->place_ordinal, UINT32_MAX, false);
        const struct span *last_but_one = last ? ranks_checkpoint_before(last) : NULL;
        n = placement_sort(points, n);
        for (size_t i = 0; i < n; i++)
            if (points[i].item == last || points[i].item == last_but_one)
                points[i].kind = placement_merge(points[i].kind, CS_BOUNDARY_BRANCH);
        for (size_t i = 0; i < n; i++) {
            const struct span *c = points[i].item;
            if (c && c->kept)
                points[i].kind = CS_BOUNDARY_SYSTEM;
        }
        placement_thin(points, n, s->checkpoints_a_path);
        for (size_t i = 0; i < n; i++) {
            struct span *c = points[i].item;
            if (!points[i].kept && !c->kept) { /* a pin ends with who pinned it */
                thin_out(s, c);
                n_thinned++;
            }
        }
    }
    free(points);
    return n_thinned;
}

/* The last span of some path from the root with more than `most` checkpoints; there is one. */
static struct span *end_of_long_path(struct span *root, uint32_t most)
{
    struct span *at = root, *child = root;
    for (uint32_t above = 0; child;) {
        for (child = at->first_child; child; child = child->next_sibling)
            if (child->chain > 0 &&
                above + ranks_checkpoints_up_to(at, child->parent_ordinal) + child->chain > most)
                break;
        if (child) {
            above += ranks_checkpoints_up_to(at, child->parent_ordinal);
            at = child;
        }
    }
    return at;
}

/* What this publish (of this tick) added goes where other paths would have too many with it. */
static void give_up_new(struct cs_sequence *q, uint64_t tick)
{
    struct cs_store *s = q->s;
    size_t n;
    struct placement_point *points = points_of_path(q->place, q->place_ordinal, 0, &n);
    n = points ? placement_sort(points, n) : 0;
    for (size_t i = n; i-- > 0;) {
        struct span *c = points[i].item;
        if (!c->kept && c->last_used == tick && i + 1 + ranks_chain_behind(c) > s->checkpoints_a_path)
            thin_out(s, c);
    }
    free(points);
}

/* Other paths through what this publish added must not have too many either: each gives up one of its own.
 * A path costs a way down from the root, along the children of each of its spans; at most PATHS_AT_ONCE are
 * thinned. Behind a point with more of them it is given up, and whoever computes it next finds fewer. */
static void thin_other_paths(struct cs_sequence *q, uint64_t tick)
{
    struct cs_store *s = q->s;
    struct span *root = q->place;
    while (root && root->parent)
        root = root->parent;
    for (int i = 0; root && root->chain > s->checkpoints_a_path; i++) {
        struct span *end = i < PATHS_AT_ONCE ? end_of_long_path(root, s->checkpoints_a_path) : NULL;
        if (!end || thin_path(q, end, end->n_pages - 1) == 0) {
            give_up_new(q, tick);
            return;
        }
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
    if (room_for_index_locked(s, index_checkpoint_bytes(&s->index, capture->n_blocks), q->account))
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
    if (capture->position == q->branch / s->grid_tokens * s->grid_tokens)
        capture->kind = placement_merge(capture->kind, CS_BOUNDARY_BRANCH);
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
        thin_path(q, q->place, q->place_ordinal);
        thin_other_paths(q, tick);
    }
    /* The disk may have let go of it since it was published. */
    struct span *deepest = checkpoint_deepest_locked(q->place, q->place_ordinal, UINT32_MAX, false);
    if (deepest)
        writeback_enqueue_locked(s, deepest);
    checkpoint_rank_path_locked(s, q->place, q->place_ordinal);
}
