/*
 * Write-behind. A published span joins the backlog, a checkpoint after a grace, so that one that is thinned
 * at once costs no write; the pump hands spans to the tier oldest first, a parent always before its children,
 * for a child without its parent is useless after a restart. Pages of spans being written cannot be evicted,
 * so those are bounded by a share of the arena; the backlog itself is not pinned: what is evicted from it is
 * lost to disk and counted.
 *
 * Where the device is not host memory a span is copied to the host first (host.c), and waits, and is written,
 * from there: then the same is true of its blocks on the host, and its pages on the device may go.
 */
#include "cachestore/policy/writebehind.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <time.h>

#define MAX_WRITE_RETRIES 2
#define PASSED_OVER_MOST  256 /* in one hold of the lock */

struct span_write {
    struct tier_write write;
    struct cs_store *s;
    struct span *span;
    bool damaged; /* by the tier's thread: what lay on the host was wrong */
    void *pages[];
};

/* Everything here but span_durable runs with the store's lock held. */

static uint64_t span_payload_bytes(const struct cs_store *s, const struct span *sp)
{
    return sp->n_pages * s->stride;
}

static uint64_t record_bytes(const struct cs_store *s, const struct span *sp)
{
    return s->tier->record_bytes(s->disk, index_record_kind(sp), sp->n_pages);
}

static struct waiting *list_of(struct cs_store *s, const struct span *sp)
{
    return sp->disk == SPAN_DISK_QUEUED ? &s->queued : sp->disk == SPAN_DISK_GRACE ? &s->grace : &s->backlog;
}

/* The span's state says which list. before: NULL for the end. */
static void list_insert(struct cs_store *s, struct span *sp, struct span *before)
{
    struct waiting *list = list_of(s, sp);
    list->bytes += span_payload_bytes(s, sp);
    sp->backlog_previous = before ? before->backlog_previous : list->last;
    sp->backlog_next = before;
    if (sp->backlog_previous)
        sp->backlog_previous->backlog_next = sp;
    else
        list->first = sp;
    if (sp->backlog_next)
        sp->backlog_next->backlog_previous = sp;
    else
        list->last = sp;
}

void writeback_unlist_locked(struct cs_store *s, struct span *sp)
{
    struct waiting *list = list_of(s, sp);
    if (sp->backlog_previous)
        sp->backlog_previous->backlog_next = sp->backlog_next;
    else
        list->first = sp->backlog_next;
    if (sp->backlog_next)
        sp->backlog_next->backlog_previous = sp->backlog_previous;
    else
        list->last = sp->backlog_previous;
    sp->backlog_next = sp->backlog_previous = NULL;
    list->bytes -= span_payload_bytes(s, sp);
}

static void backlog_insert(struct cs_store *s, struct span *sp, struct span *before)
{
    index_set_disk_locked(&s->index, sp, SPAN_DISK_BACKLOG);
    list_insert(s, sp, before);
}

struct span *writeback_next_locked(const struct waiting *list, uint32_t pass, struct span **passed,
                                   unsigned *n_passed)
{
    struct span *sp = *passed ? (*passed)->backlog_next : list->first;
    while (sp && sp->account->passed_over == pass && *n_passed < PASSED_OVER_MOST) {
        *passed = sp;
        ++*n_passed;
        sp = sp->backlog_next;
    }
    return sp && sp->account->passed_over == pass ? NULL : sp;
}

static void grace_insert(struct cs_store *s, struct span *sp, uint64_t due_ns)
{
    sp->write_due_ns = due_ns;
    index_set_disk_locked(&s->index, sp, SPAN_DISK_GRACE);
    list_insert(s, sp, NULL);
    if (s->grace.first == sp)
        pthread_cond_signal(&s->keeper_wake);
}

/* Tokens of the path that ends with it. */
static uint64_t path_tokens(const struct cs_store *s, const struct span *sp)
{
    uint64_t own = sp->kind == SPAN_CHECKPOINT ? 0 : (uint64_t)sp->n_pages * s->page_tokens;
    return sp->first_position + own;
}

/* What is written from it is whole. */
static bool can_be_written(const struct cs_store *s, const struct span *sp)
{
    return s->index.host ? index_is_on_host(sp) : index_is_resident(sp);
}

static void enqueue(struct cs_store *s, struct span *sp, bool front)
{
    if (sp->disk != SPAN_DISK_NONE || sp->doomed)
        return;
    sp->left_behind = false;
    if (s->index.host && !index_is_on_host(sp)) {
        if (!index_is_whole(sp) || sp->n_pages > s->host.n_pages || s->closing)
            return;
        index_set_disk_locked(&s->index, sp, SPAN_DISK_QUEUED);
        list_insert(s, sp, front ? s->queued.first : NULL);
        return;
    }
    if (!s->disk || !can_be_written(s, sp) || !admission_long_enough(&s->admission, path_tokens(s, sp)))
        return; /* what is too short yet goes before its child once the path has grown */
    if (sp->kind == SPAN_CHECKPOINT && record_bytes(s, sp) == 0)
        return; /* too large for the tier's chunks, now and always */
    uint64_t due_ns = writebehind_due_ns(sp->kind == SPAN_CHECKPOINT, s->checkpoint_grace_ns, store_now_ns());
    if (due_ns > 0)
        grace_insert(s, sp, due_ns);
    else
        backlog_insert(s, sp, front ? s->backlog.first : NULL);
}

void writeback_enqueue_locked(struct cs_store *s, struct span *sp)
{
    if (s->draining)
        sp->held_back = true;
    else
        enqueue(s, sp, false);
}

void writeback_go_on_locked(struct cs_store *s, struct span *sp)
{
    enqueue(s, sp, false);
}

void writeback_lead_locked(struct cs_store *s, struct span *sp)
{
    /* Where a damaged record waits to be replaced, what is not on disk may lie above what is. */
    for (; sp && (sp->disk < SPAN_DISK_WRITING || s->n_husks > 0); sp = sp->parent) {
        if (s->draining)
            sp->held_back = true;
        else
            enqueue(s, sp, true); /* each before what hangs on it */
    }
}

void writeback_cancel_locked(struct cs_store *s, struct span *sp)
{
    writeback_unlist_locked(s, sp);
    index_set_disk_locked(&s->index, sp, SPAN_DISK_NONE);
    room_settle_husk_locked(s, sp->parent);
    pthread_cond_broadcast(&s->changed);
}

uint64_t writeback_end_grace_locked(struct cs_store *s, uint64_t now_ns)
{
    bool any = false;
    while (s->grace.first && s->grace.first->write_due_ns <= now_ns) {
        struct span *sp = s->grace.first;
        writeback_unlist_locked(s, sp);
        backlog_insert(s, sp, NULL);
        any = true;
    }
    if (any)
        writeback_pump_locked(s);
    return s->grace.first ? s->grace.first->write_due_ns : 0;
}

void writeback_relieve_locked(struct cs_store *s)
{
    if (s->under_pressure)
        (void)writeback_end_grace_locked(s, UINT64_MAX);
    s->under_pressure = false;
}

/* The write ended without a record. */
static void write_lost(struct cs_store *s, struct span *sp)
{
    notes_unstore_locked(sp);
    sp->id = (struct record_id){0};
    index_set_disk_locked(&s->index, sp, SPAN_DISK_NONE);
    sp->disk_bytes = 0;
    room_settle_husk_locked(s, sp->parent);
}

static void span_written(struct cs_store *s, struct span *sp)
{
    sp->drop_counted = false;
    sp->write_retries = 0;
    index_set_disk_locked(&s->index, sp, SPAN_DISK_DURABLE);
    room_settle_husk_locked(s, sp);
    if (!s->draining)
        notes_store_locked(s->tier, s->disk, sp); /* what came while it was being written */
    /* Children that could not be written while their parent was not on disk. */
    for (int kind = 0; kind < 2; kind++)
        for (struct span *c = kind ? sp->first_checkpoint : sp->first_child; c; c = c->next_sibling)
            if (c->left_behind)
                enqueue(s, c, false); /* also while the store drains */
            else
                writeback_enqueue_locked(s, c);
}

static void pump(struct cs_store *s);

/* On the tier's thread, without the lock. */
static bool block_is_right(void *ctx, uint32_t page)
{
    struct span_write *sw = ctx;
    if (host_check(sw->s, sw->span, page, false))
        return true;
    sw->damaged = true;
    return false;
}

/* On the tier's thread, without the lock. */
static void span_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct span_write *sw = ctx;
    struct cs_store *s = sw->s;
    struct span *sp = sw->span;
    (void)w;
    pthread_mutex_lock(&s->lock);
    s->writing_bytes -= span_payload_bytes(s, sp);
    if (result == TIER_OK) {
        span_written(s, sp);
    } else {
        write_lost(s, sp);
        if (sw->damaged && sp->n_loading == 0) /* a load of it finds out by itself */
            host_drop_damaged_locked(s, sp, 0, sp->n_pages);
        if (result == TIER_ENOSPC && !sp->doomed && sp->write_retries < MAX_WRITE_RETRIES &&
            room_evict_disk_locked(s, record_bytes(s, sp))) {
            sp->write_retries++;
            backlog_insert(s, sp, s->backlog.first);
        } else {
            sp->refused_pass = s->passes + 1; /* the one that follows */
            s->totals.dropped_disk_full += result == TIER_ENOSPC || result == TIER_EFULL;
        }
    }
    pthread_cond_broadcast(&s->changed);
    room_settle_and_trim_locked(s, sp);
    pump(s);
    host_pump_locked(s);
    pthread_mutex_unlock(&s->lock);
    free(sw);
}

/* Moves one span from the backlog to the tier. False: no memory. */
static bool write_span(struct cs_store *s, struct span *sp)
{
    struct span_write *sw = malloc(sizeof *sw + sp->n_pages * sizeof(void *));
    if (!sw)
        return false;
    for (uint32_t i = 0; i < sp->n_pages; i++)
        sw->pages[i] =
            s->index.host ? arena_address(&s->host, sp->host[i]) : arena_address(&s->arena, sp->page[i]);
    sp->id = s->tier->next_id(s->disk);
    size_t n_notes;
    struct cs_note *notes = notes_for_row_locked(sp, &n_notes);
    sp->touched_unix = (int64_t)time(NULL);
    sw->s = s;
    sw->span = sp;
    sw->damaged = false;
    sp->written_as = sp->boundary;
    sp->disk_bytes = record_bytes(s, sp);
    sw->write = (struct tier_write){.record = index_record_of(sp),
                                    .pages = sw->pages,
                                    .check = s->index.host ? block_is_right : NULL,
                                    .notes = notes,
                                    .n_notes = n_notes,
                                    .durable = span_durable,
                                    .ctx = sw};
    sw->write.record.created_unix = sp->created_unix;
    sw->write.record.used_unix = sp->touched_unix;
    writeback_unlist_locked(s, sp);
    index_set_disk_locked(&s->index, sp, SPAN_DISK_WRITING);
    s->writing_bytes += span_payload_bytes(s, sp);
    s->tier->write(s->disk, &sw->write);
    free(notes);
    return true;
}

/* True: every parent is on disk, on its way there, or whole and able to go. */
static bool can_be_led_to(const struct cs_store *s, const struct span *sp)
{
    for (const struct span *p = sp->parent; p; p = p->parent) {
        if (p->disk == SPAN_DISK_WRITING || p->disk == SPAN_DISK_DURABLE)
            return true;
        if (!can_be_written(s, p))
            return false;
    }
    return true;
}

/* It is not written now, nor does it come back in this pass with what hangs on it. What was above a quota
 * only for as long as it waited goes, and what led to it. */
static void refuse(struct cs_store *s, struct span *sp, uint32_t pass)
{
    struct account *account = sp->account;
    sp->refused_pass = pass;
    writeback_cancel_locked(s, sp);
    room_trim_locked(s, account);
}

/* own: its tenant's quota has none, else the disk. */
static void drop_without_room(struct cs_store *s, struct span *sp, bool own, uint32_t pass)
{
    if (own) {
        room_count_quota_drop_locked(s, sp->account);
    } else {
        s->totals.dropped_disk_full++;
        events_note_locked(s, EVENT_NO_ROOM, &sp->account->id, record_bytes(s, sp), 0);
    }
    refuse(s, sp, pass);
}

/* Each span is looked at as often as its parents are brought before it. One tenant's that must wait for room
 * of its own, or are dropped for want of it, hold up nobody else's. */
static void pump(struct cs_store *s)
{
    uint32_t pass = ++s->passes;
    struct span *passed = NULL, *sp;
    unsigned n_passed = 0;
    while ((sp = writeback_next_locked(&s->backlog, pass, &passed, &n_passed)) != NULL) {
        struct span *parent = sp->parent;
        bool goes = !parent || parent->disk == SPAN_DISK_WRITING || parent->disk == SPAN_DISK_DURABLE;
        enum writebehind_order order =
            writebehind_order_of(goes, !goes && parent->refused_pass == pass, goes || can_be_led_to(s, sp));
        if (order == WRITEBEHIND_NOT_NOW) {
            sp->left_behind = true;
            refuse(s, sp, pass);
            continue;
        }
        if (parent && order == WRITEBEHIND_PARENT_FIRST) {
            if (parent->disk == SPAN_DISK_BACKLOG)
                writeback_unlist_locked(s, parent);
            backlog_insert(s, parent, sp);
            continue;
        }
        if (!writebehind_may_pin(s->writing_bytes, span_payload_bytes(s, sp), s->pinned_budget)) {
            s->tier->kick(s->disk);
            return;
        }
        enum room room = room_for_record_locked(s, sp, record_bytes(s, sp));
        if (room != ROOM_MADE) {
            bool own = room == ROOM_NONE_OF_ITS_OWN;
            struct account *account = sp->account;
            enum writebehind_without_room then =
                writebehind_without_room(own, s->writing_bytes > 0, account->n_writing > 0, s->trimming);
            if (then != WRITEBEHIND_DROP)
                s->tier->kick(s->disk);
            if (then == WRITEBEHIND_STOP)
                return;
            if (then == WRITEBEHIND_PASS_OVER)
                account->passed_over = pass;
            else
                drop_without_room(s, sp, own, pass);
            continue;
        }
        if (!admission_take(&s->admission, record_bytes(s, sp), store_now_ns())) {
            s->totals.dropped_endurance++;
            events_note_locked(s, EVENT_ENDURANCE, &sp->account->id, s->admission.bytes_a_day, 0);
            refuse(s, sp, pass);
            continue;
        }
        if (!write_span(s, sp)) {
            s->totals.dropped_queue_full++;
            refuse(s, sp, pass);
        }
    }
}

void writeback_pump_locked(struct cs_store *s)
{
    if (s->disk)
        pump(s);
    host_pump_locked(s);
}

/* ---- drain ------------------------------------------------------------------------------------------- */

/* What would have gone down in the meantime goes now; true: there is more of the index to look at. */
static bool catch_up_locked(struct cs_store *s, uint64_t *bucket)
{
    enum { HOLD_BUCKETS = 4096, HOLD_SPANS = 64 };
    uint64_t end = *bucket + HOLD_BUCKETS;
    unsigned n = 0;
    for (; *bucket <= s->index.bucket_mask && *bucket < end && n < HOLD_SPANS; ++*bucket)
        for (struct span *sp = s->index.buckets[*bucket]; sp; sp = sp->hash_next, n++) {
            if (sp->held_back)
                enqueue(s, sp, false);
            sp->held_back = false;
            if (sp->disk == SPAN_DISK_DURABLE)
                notes_store_locked(s->tier, s->disk, sp);
        }
    return *bucket <= s->index.bucket_mask;
}

void cs_drain(struct cs_store *s, bool on)
{
    pthread_mutex_lock(&s->lock);
    bool was = s->draining;
    if (s->disk && on) {
        s->draining = true;
        (void)writeback_end_grace_locked(s, UINT64_MAX);
        writeback_pump_locked(s);
        s->tier->kick(s->disk);
    }
    s->draining = s->draining && on;
    bool more = was && !on;
    for (uint64_t bucket = 0; more && !s->draining;) {
        more = catch_up_locked(s, &bucket);
        pthread_mutex_unlock(&s->lock);
        store_give_way();
        pthread_mutex_lock(&s->lock);
    }
    if (was && !on)
        writeback_pump_locked(s);
    pthread_mutex_unlock(&s->lock);
    if (s->disk && was != on)
        store_log(s, CS_LOG_INFO, "prefix cache on disk: %s",
                  on ? "draining: nothing new is written" : "draining has ended");
}
