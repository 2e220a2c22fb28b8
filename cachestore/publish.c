/*
 * Publish: the sequence's new full pages become part of the tree, in one pass from the place where its path
 * ends.
 *
 * For each page, in order: what is stored and resident already stays (the sequence's own copy remains
 * private); what is stored but no longer resident takes the sequence's page; behind the last stored page new
 * spans are added, of at most span_pages each. The place is remembered, so the cost is that of the new pages;
 * where there is a disk, also of a look at the spans just above the place that are not on it, and where
 * models resume at checkpoints, of a few walks up to the root, a span a step. Checkpoints that the sequence
 * captured follow in the same call.
 */
#include "cachestore/key.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Everything static here runs with the store's lock held. */

static bool same_page(const struct cs_store *s, const struct span *sp, uint32_t i, const uint32_t *ids)
{
    return memcmp(sp->ids + (size_t)i * s->page_tokens, ids, s->page_tokens * sizeof *ids) == 0;
}

static bool is_in_memory(const struct span *sp, uint32_t i)
{
    return sp->page[i] != ARENA_NO_PAGE || load_is_from_host(sp, i);
}

static bool something_hangs_behind(const struct span *sp, uint32_t n_pages)
{
    for (uint32_t i = n_pages; i < sp->n_pages; i++)
        if (sp->page[i] != ARENA_NO_PAGE)
            return true;
    for (const struct span *child = sp->first_child; child; child = child->next_sibling)
        if (child->parent_ordinal >= n_pages)
            return true;
    for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        if (c->parent_ordinal >= n_pages)
            return true;
    for (const struct cs_sequence *q = sp->placed; q; q = q->placed_next)
        if (q->place_ordinal >= n_pages)
            return true;
    return false;
}

static void split(struct cs_store *s, struct span *sp, uint32_t n_pages)
{
    index_pin_locked(&s->index, sp); /* making room must not forget it */
    struct span *tail = NULL;
    if (room_for_index_locked(s, index_span_bytes(&s->index, sp->n_pages - n_pages), sp->account))
        tail = index_split_locked(&s->index, sp, n_pages);
    if (tail)
        room_split_husk_locked(sp, tail);
    for (struct cs_sequence *q = tail ? sp->placed : NULL, *next; q; q = next) {
        next = q->placed_next;
        if (q->place_ordinal >= n_pages)
            sequence_set_place_locked(q, tail, q->place_ordinal - n_pages);
    }
    room_settle_span_locked(s, tail); /* what hung on it may have made the room */
    index_unpin_locked(&s->index, sp);
}

/* The path of q uses this span up to page `ordinal`, it is on no disk, and not whole, so it could never be
 * written, nor what hangs on it. What the sequence has is put in; the span ends before the first page that is
 * lost then, and what hangs on the rest goes on with a span of its own. */
static void mend_span(struct cs_sequence *q, struct span *sp, uint32_t ordinal)
{
    struct cs_store *s = q->s;
    if (sp->disk != SPAN_DISK_NONE || sp->n_loading > 0 || index_is_whole(sp))
        return;
    uint32_t first = sp->first_position / s->page_tokens, n = 0;
    for (uint32_t i = 0; i <= ordinal; i++)
        if (sp->page[i] == ARENA_NO_PAGE && !s->arena.pages[q->page[first + i]].owner)
            index_attach_locked(&s->index, sp, i, q->page[first + i], false);
    while (n < sp->n_pages && is_in_memory(sp, n))
        n++;
    if (n <= ordinal || n == sp->n_pages)
        return;
    if (!something_hangs_behind(sp, n))
        index_truncate_locked(&s->index, sp, n);
    else if (s->disk)
        split(s, sp, n);
}

/* The spans above the place, as far as they are on no disk. */
static void mend_path(struct cs_sequence *q)
{
    struct span *sp = q->place;
    while (q->s->disk && sp && sp->parent && sp->disk < SPAN_DISK_WRITING) {
        mend_span(q, sp->parent, sp->parent_ordinal);
        sp = sp->parent;
        index_requeue_locked(&q->s->index, sp);
    }
    if (q->s->disk)
        writeback_lead_locked(q->s, q->place);
}

/* The path goes on elsewhere behind `ordinal` of this span, or ends there. */
static void leave_span(struct cs_sequence *q, struct span *sp, uint32_t ordinal)
{
    struct cs_store *s = q->s;
    if (!sp)
        return;
    mend_span(q, sp, ordinal);
    writeback_enqueue_locked(s, sp);
    index_requeue_locked(&s->index, sp);
}

static void meet_stored_page(struct cs_store *s, struct span *sp, uint32_t i, uint32_t page)
{
    if (sp->page[i] == ARENA_NO_PAGE)
        index_attach_locked(&s->index, sp, i, page, false);
    else
        s->totals.publish_duplicate_pages++;
}

/* Adds spans for the last n pages of ids; returns how many pages were added. */
static uint32_t add_spans(struct cs_sequence *q, const uint32_t *ids, const struct cs_key *keys,
                          struct cs_key previous, const uint32_t *pages, uint32_t n, uint64_t tick)
{
    struct cs_store *s = q->s;
    int64_t now_unix = (int64_t)time(NULL);
    uint32_t done = 0;
    while (done < n) {
        uint32_t take = n - done < s->span_pages ? n - done : s->span_pages;
        struct span *sp = NULL;
        if (room_for_span_locked(s, index_span_bytes(&s->index, take), q->account))
            sp = index_add_locked(&s->index, q->place, q->place_ordinal, done ? keys[done - 1] : previous,
                                  keys[done], q->account, ids + (size_t)done * s->page_tokens, take);
        if (!sp) {
            s->totals.dropped_index_full++;
            break;
        }
        sp->created_unix = sp->touched_unix = now_unix;
        sp->continues = q->continues;
        for (uint32_t i = 0; i < take; i++)
            index_attach_locked(&s->index, sp, i, pages[done + i], false);
        index_touch_locked(&s->index, sp, tick);
        sequence_set_place_locked(q, sp, take - 1);
        writeback_enqueue_locked(s, sp);
        done += take;
        s->totals.publish_spans++;
        s->totals.publish_pages += take;
    }
    return done;
}

static void add_notes(struct cs_sequence *q, const struct cs_note *notes, size_t n_notes)
{
    struct cs_store *s = q->s;
    struct span *owner = q->place;
    if (!owner || !index_holds_bytes(owner) ||
        !room_for_index_locked(s, notes_bytes(notes, n_notes), q->account) ||
        !notes_add_locked(&s->notes, &s->index, s->tier, s->disk, owner, notes, n_notes, 0)) {
        s->totals.dropped_index_full++;
        return;
    }
    /* Otherwise they go out in their owner's row, or behind it. */
    if (owner->disk == SPAN_DISK_DURABLE && !s->draining)
        notes_store_locked(s->tier, s->disk, owner);
}

static int publish_locked(struct cs_sequence *q, const uint32_t *ids, uint32_t n_full,
                          const struct cs_key *keys)
{
    struct cs_store *s = q->s;
    uint32_t pt = s->page_tokens, first = q->n_known, i = first, ordinal = q->place_ordinal;
    struct span *at = q->place;
    uint64_t tick = index_tick_locked(&s->index);
    if (at && !same_page(s, at, ordinal, ids + (size_t)(first - 1) * pt))
        return CS_EINVAL;
    mend_path(q);
    while (i < n_full) {
        const uint32_t *page_ids = ids + (size_t)i * pt;
        if (at && ordinal + 1 < at->n_pages && same_page(s, at, ordinal + 1, page_ids)) {
            ordinal++;
        } else {
            leave_span(q, at, ordinal);
            struct span *next =
                index_find_locked(&s->index, at, ordinal, keys[i - first], &q->tenant, page_ids);
            if (!next)
                break;
            at = next;
            ordinal = 0;
            index_touch_locked(&s->index, at, tick);
        }
        meet_stored_page(s, at, ordinal, q->page[i]);
        i++;
    }
    if (i == n_full) /* otherwise it was left, and nothing came behind it */
        leave_span(q, at, ordinal);
    sequence_set_place_locked(q, at, ordinal);
    if (i < n_full && s->stateful && checkpoint_path_forks_locked(at, ordinal)) {
        q->branch = i * pt;
        checkpoint_note_branch_locked(s, at, ordinal, i * pt);
    }
    if (i < n_full)
        i += add_spans(q, ids + (size_t)i * pt, keys + (i - first), i > first ? keys[i - first - 1] : q->key,
                       q->page + i, n_full - i, tick);
    if (i > first)
        q->key = keys[i - first - 1];
    q->n_known = i;
    if (s->stateful) {
        if (i > first)
            memcpy(q->path_keys + first, keys, (i - first) * sizeof *keys);
        checkpoint_publish_locked(q, tick);
    }
    return CS_OK;
}

int cs_sequence_publish(struct cs_sequence *q, const uint32_t *ids, size_t n, const struct cs_note *notes,
                        size_t n_notes)
{
    struct cs_store *s = q->s;
    uint32_t pt = s->page_tokens;
    if (!q->settled || (n > 0 && !ids) || n / pt > q->n_pages || n / pt < q->n_known ||
        (n_notes > 0 && !notes))
        return CS_EINVAL;
    for (size_t i = 0; i < n_notes; i++)
        if (notes[i].len > NOTE_MAX_BYTES || (notes[i].len > 0 && !notes[i].data))
            return CS_EINVAL;
    uint64_t begun_ns = store_now_ns();
    uint32_t n_full = (uint32_t)(n / pt), n_new = n_full - q->n_known;
    struct cs_key *keys = calloc(n_new + 1, sizeof *keys);
    if (!keys)
        return CS_ENOMEM;
    if (n_new > 0)
        key_pages(q->key, ids + (size_t)q->n_known * pt, n_new, pt, keys);
    pthread_mutex_lock(&s->lock);
    int rc = publish_locked(q, ids, n_full, keys);
    if (rc == CS_OK) {
        s->totals.publishes++;
        if (n_notes > 0)
            add_notes(q, notes, n_notes);
        writeback_pump_locked(s);
        room_trim_locked(s, q->account);
    }
    pthread_mutex_unlock(&s->lock);
    histogram_add(&s->publish_us, (store_now_ns() - begun_ns) / 1000);
    free(keys);
    return rc;
}
