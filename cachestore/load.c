/*
 * Opening a store that has something on disk: rows come in any order (load_rows.c), spans are linked parents
 * first, each checkpoint below the span with the page before it. A row that repeats another one loses to the
 * newer record; a row whose chain of parents is broken leads nowhere and is deleted, and its notes with it.
 * Without memory for a row the store does not open, and nothing is deleted.
 *
 * One that repeats the beginning of another one may be of a damaged record, whose first pages were stored
 * anew for a path that leaves it there (publish.c), and stand for what hangs on its other pages. Where rows
 * would lead nowhere without those, they become a span without bytes, and the row stays, as it did before.
 *
 * While rows came in, each page key that a later row names found the row whose page has it. What that does
 * not answer (a parent that came before its child, being newer; one key in two rows) is answered in a second
 * pass, in which only spans that have been linked offer their pages.
 */
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/load_impl.h"
#include "cachestore/table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PLACES_AHEAD = 16, ROWS_AHEAD = 8, SPANS_AHEAD = 4 };
enum { BUCKET_BYTES_A_ROW = 2048 }; /* with more rows than that nearly every page has one */

/* ---- order ------------------------------------------------------------------------------------------- */

/* A row and the tokens before it. */
struct place_in_order {
    uint32_t row, first_position;
};

/* Parents first, then as they came, of equals the newer record first: a stable sort, byte by byte. */
static int order_make(const struct loader *l, struct place_in_order **out)
{
    size_t n = l->n_rows;
    struct place_in_order *a = malloc((n + 1) * sizeof *a), *b = malloc((n + 1) * sizeof *b);
    uint32_t any = 0;
    *out = a;
    if (!a || !b) {
        free(b);
        return CS_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        a[i] =
            (struct place_in_order){.row = (uint32_t)i, .first_position = l->rows[i].record.first_position};
        any |= a[i].first_position;
    }
    for (unsigned shift = 0; shift < 32; shift += 8) {
        if ((any >> shift & 0xff) == 0)
            continue;
        size_t at[257] = {0};
        for (size_t i = 0; i < n; i++)
            at[(a[i].first_position >> shift & 0xff) + 1]++;
        for (size_t i = 1; i < 256; i++)
            at[i] += at[i - 1];
        for (size_t i = 0; i < n; i++)
            b[at[a[i].first_position >> shift & 0xff]++] = a[i];
        struct place_in_order *swap = a;
        a = b;
        b = swap;
    }
    *out = a;
    free(b);
    return CS_OK;
}

/* ---- one row ----------------------------------------------------------------------------------------- */

/* The span with the page that the row names as its parent, and *ordinal of that page. NULL: none, or not in
 * this pass. */
static struct span *parent_find(struct loader *l, struct row *row, uint32_t *ordinal)
{
    const struct span_record *r = &row->record;
    const struct page_place *at = places_find(&l->places, r->parent);
    struct span *parent = at->state == PLACE_OFFERED ? l->rows[at->row].span : NULL;
    *ordinal = at->ordinal;
    if (!parent) {
        row->late = true;
        l->n_late++;
        return NULL;
    }
    if (memcmp(&parent->account->id, &r->tenant, sizeof r->tenant) != 0 ||
        parent->first_position + (*ordinal + 1) * l->s->page_tokens != r->first_position)
        return NULL;
    return parent;
}

static struct span *link_checkpoint(struct loader *l, struct row *row)
{
    struct cs_store *s = l->s;
    const struct span_record *r = &row->record;
    uint32_t pt = s->page_tokens, ordinal;
    struct span *parent = parent_find(l, row, &ordinal);
    if (!parent || memcmp(parent->ids + (size_t)ordinal * pt, r->ids, pt * sizeof *r->ids) != 0 ||
        index_checkpoint_locked(parent, ordinal))
        return NULL;
    struct span *c = index_add_checkpoint_locked(&s->index, parent, ordinal, r->parent, r->n_pages,
                                                 (enum cs_boundary_kind)r->flags);
    if (c)
        c->written_as = c->boundary;
    else
        l->no_memory = true;
    return c;
}

static struct span *link_span(struct loader *l, struct row *row)
{
    struct cs_store *s = l->s;
    const struct span_record *r = &row->record;
    uint32_t pt = s->page_tokens, ordinal = 0;
    struct span *parent = NULL;
    if (r->first_position > 0) {
        parent = parent_find(l, row, &ordinal);
        if (!parent)
            return NULL;
        /* Headers of deleted records come back with a rebuild. One whose pages were stored anew since, cut in
         * another way, must not stand beside them: what follows would be linked to it, and no walk gets
         * there. */
        if (ordinal + 1 < parent->n_pages &&
            memcmp(parent->ids + (size_t)(ordinal + 1) * pt, r->ids, pt * sizeof *r->ids) == 0)
            return NULL;
    }
    if (index_find_locked(&s->index, parent, ordinal, r->key, &r->tenant, r->ids))
        return NULL;
    struct account *account = index_account_locked(&s->index, &r->tenant);
    if (!account) {
        l->no_memory = true;
        return NULL;
    }
    struct span *sp = row->made;
    row->made = NULL;
    index_add_made_locked(&s->index, sp, parent, ordinal, r->parent, r->key, account);
    return sp;
}

static void link_row(struct loader *l, struct row *row)
{
    struct cs_store *s = l->s;
    const struct span_record *r = &row->record;
    struct span *sp = NULL;
    /* An index that is full of rows has no slots in its heaps. */
    if (row->proven && s->index.n_spans < s->index.heap_capacity)
        sp = r->kind == RECORD_CHECKPOINT ? link_checkpoint(l, row) : link_span(l, row);
    row->span = sp;
    if (!sp)
        return;
    sp->id = r->id;
    sp->disk_bytes = row->disk_bytes;
    sp->created_unix = r->created_unix;
    /* Where the clock was ahead then, it counts as used now: what is used from now on is younger. */
    sp->touched_unix = r->used_unix > l->now_unix ? l->now_unix : r->used_unix;
    /* Rows know seconds; within one, newer records count as used later. */
    sp->last_used =
        (sp->touched_unix > 0 ? (uint64_t)sp->touched_unix * 1000000 : 0) + r->id.sequence % 1000000;
    if (s->index.last_tick < sp->last_used)
        s->index.last_tick = sp->last_used;
    index_set_disk_locked(&s->index, sp, SPAN_DISK_DURABLE);
    sp->kept = r->pinned;
}

static int later_used_first(const void *a, const void *b)
{
    uint64_t x = (*(struct span *const *)a)->last_used, y = (*(struct span *const *)b)->last_used;
    return x > y ? -1 : x < y;
}

/* What a pinned span keeps is its whole path. All together may take half of the disk and of the index, so
 * that there is always something to evict; the longest unused pins beyond that are let go. */
static int limit_pins(struct loader *l)
{
    struct index *ix = &l->s->index;
    struct span **kept = NULL;
    size_t n = 0, room = 0;
    for (size_t i = 0; i < l->n_rows; i++) {
        if (!l->rows[i].span || !l->rows[i].span->kept)
            continue;
        if (!list_reserve((void **)&kept, &room, n, sizeof(struct span *))) {
            free((void *)kept);
            return CS_ENOMEM;
        }
        kept[n++] = l->rows[i].span;
    }
    if (n > 0)
        qsort((void *)kept, n, sizeof(struct span *), later_used_first);
    uint64_t disk_bytes = 0, index_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t on_disk = 0, in_index = 0;
        for (struct span *at = kept[i]; at && !at->kept_path; at = at->parent) {
            on_disk += at->disk_bytes;
            in_index += at->kind == SPAN_CHECKPOINT ? index_checkpoint_bytes(ix, at->n_pages)
                                                    : index_span_bytes(ix, at->n_pages);
        }
        if (disk_bytes + on_disk > l->s->disk_budget / 2 || index_bytes + in_index > ix->budget / 2) {
            kept[i]->kept = false;
            l->n_pins_let_go++;
            continue;
        }
        disk_bytes += on_disk;
        index_bytes += in_index;
        for (struct span *at = kept[i]; at && !at->kept_path; at = at->parent)
            at->kept_path = true;
    }
    free((void *)kept);
    return CS_OK;
}

/* Rows are linked in another order than they came, and tables are many times as large as a cache: what the
 * next rows will look at is asked for ahead, in the order in which it leads to more. */
static void link_ahead(const struct loader *l, const struct place_in_order *order, size_t i)
{
    enum { LINE_BYTES = 64 };
    const struct index *ix = &l->s->index;
    if (i + PLACES_AHEAD < l->n_rows) {
        const char *far = (const char *)&l->rows[order[i + PLACES_AHEAD].row];
        for (size_t at = 0; at < sizeof(struct row); at += LINE_BYTES)
            __builtin_prefetch(far + at, 1);
    }
    if (i + ROWS_AHEAD < l->n_rows) {
        const struct row *row = &l->rows[order[i + ROWS_AHEAD].row];
        __builtin_prefetch(&l->places.place[row->record.parent.lo & (l->places.n - 1)]);
        __builtin_prefetch(&ix->buckets[row->record.key.lo & ix->bucket_mask], 1);
        for (size_t at = 0; row->made && at < sizeof *row->made; at += LINE_BYTES)
            __builtin_prefetch((const char *)row->made + at, 1);
    }
    if (i + SPANS_AHEAD < l->n_rows) {
        const struct row *row = &l->rows[order[i + SPANS_AHEAD].row];
        const struct page_place *at = places_find(&l->places, row->record.parent);
        if (at->state == PLACE_OFFERED)
            __builtin_prefetch(&l->rows[at->row].span);
    }
}

/* Which positions late rows begin at, a bit each, by their number of pages before them. */
enum { POSITION_BITS = 1 << 16 };
struct positions {
    uint64_t bits[POSITION_BITS / 64];
};

static uint64_t *position_word(struct positions *p, uint32_t n_pages)
{
    return &p->bits[n_pages % POSITION_BITS / 64];
}

/* Offers the pages of a span that was linked, as far as late rows may follow them. */
static void offer_pages(struct loader *l, struct positions *p, uint32_t number)
{
    const struct row *row = &l->rows[number];
    const struct span *sp = row->span;
    uint32_t pt = l->s->page_tokens, n = 0;
    if (!sp || sp->kind == SPAN_CHECKPOINT)
        return;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        uint32_t after = sp->first_position / pt + i + 1;
        if (*position_word(p, after) >> after % 64 & 1)
            n = i + 1;
    }
    struct cs_key key = sp->key;
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            key = key_next(key, sp->ids + (size_t)i * pt, pt);
        places_offer(&l->places, key, number, i);
    }
}

/* The rows that were late, once more, against all spans that are there. */
static int link_late(struct loader *l, const struct place_in_order *order)
{
    struct positions *p = calloc(1, sizeof *p);
    if (!p || places_start(&l->places, l->n_late) != CS_OK) {
        free(p);
        return CS_ENOMEM;
    }
    for (size_t i = 0; i < l->n_rows; i++) {
        const struct row *row = &l->rows[i];
        if (!row->late || row->span)
            continue;
        places_want(&l->places, row->record.parent);
        uint32_t before = row->record.first_position / l->s->page_tokens;
        *position_word(p, before) |= 1ull << before % 64;
    }
    for (size_t i = 0; i < l->n_rows; i++)
        offer_pages(l, p, (uint32_t)i);
    for (size_t i = 0; i < l->n_rows; i++) {
        struct row *row = &l->rows[order[i].row];
        if (!row->late || row->span)
            continue;
        link_row(l, row);
        offer_pages(l, p, order[i].row);
    }
    free(p);
    return CS_OK;
}

/* ---- damaged records whose first pages were stored anew ------------------------------------------------ */

static bool is_without_bytes(const struct span *sp)
{
    return sp->disk == SPAN_DISK_NONE;
}

/* The pages of a row that was not linked behind those that spans have; without bytes. NULL: all are there, or
 * the first is not, or what is there is cut in another way. */
static struct span *link_rest(struct loader *l, struct row *row)
{
    struct cs_store *s = l->s;
    const struct span_record *r = &row->record;
    uint32_t pt = s->page_tokens, ordinal = 0, done = 0;
    uint16_t above = 0;
    struct cs_key before = r->parent, key = r->key;
    struct span *at = r->first_position > 0 ? parent_find(l, row, &ordinal) : NULL, *next;
    if (r->first_position > 0 && !at)
        return NULL;
    while ((next = index_find_locked(&s->index, at, ordinal, key, &r->tenant, r->ids + (size_t)done * pt))) {
        if (is_without_bytes(next) || next->n_pages >= r->n_pages - done ||
            memcmp(next->ids, r->ids + (size_t)done * pt, (size_t)next->n_pages * pt * sizeof *r->ids) != 0)
            return NULL;
        for (uint32_t i = 0; i < next->n_pages; i++) {
            before = key;
            key = key_next(key, r->ids + (size_t)(++done) * pt, pt);
        }
        at = next;
        ordinal = next->n_pages - 1;
        above++;
    }
    if (above == 0 || s->index.n_spans >= s->index.heap_capacity)
        return NULL;
    struct span *rest = index_add_locked(&s->index, at, ordinal, before, key, at->account,
                                         r->ids + (size_t)done * pt, r->n_pages - done);
    if (!rest) {
        l->no_memory = true;
        return NULL;
    }
    rest->lost = CS_MISS_CORRUPT;
    rest->created_unix = r->created_unix;
    rest->husk = r->id;
    rest->husk_above = above;
    s->n_husks++;
    return rest;
}

static bool is_rest(const struct row *row)
{
    return row->span && is_without_bytes(row->span);
}

/* It may have been shortened. */
static bool may_have_rest(const struct row *row)
{
    return !row->span && row->proven && row->made;
}

/* Where rows lead nowhere: what records stand for that are longer than the spans with their first pages. */
static int link_rests(struct loader *l, const struct place_in_order *order)
{
    bool any_left = false, any_rest = false;
    for (size_t i = 0; i < l->n_rows; i++)
        any_left = any_left || (l->rows[i].late && !l->rows[i].span);
    if (!any_left)
        return CS_OK;
    for (size_t i = 0; i < l->n_rows; i++) { /* their parents are wanted */
        l->n_late += !l->rows[i].late && may_have_rest(&l->rows[i]);
        l->rows[i].late = l->rows[i].late || may_have_rest(&l->rows[i]);
    }
    int rc = link_late(l, order);
    for (size_t i = 0; i < l->n_rows && rc == CS_OK; i++) {
        struct row *row = &l->rows[order[i].row];
        if (may_have_rest(row))
            row->span = link_rest(l, row);
        any_rest = any_rest || is_rest(row);
    }
    if (rc == CS_OK && any_rest)
        rc = link_late(l, order);
    for (size_t i = 0; i < l->n_rows && rc == CS_OK; i++) {
        struct row *row = &l->rows[i];
        if (!is_rest(row) || row->span->n_children > 0)
            continue;
        row->span->husk = (struct record_id){0};
        l->s->n_husks--;
        index_remove_locked(&l->s->index, row->span);
        row->span = NULL;
    }
    return rc;
}

/* A row by the sequence of its record. */
struct place_by_id {
    uint64_t sequence;
    uint32_t row;
};

static int compare_ids(const void *a, const void *b)
{
    const struct place_by_id *x = a, *y = b;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static struct span *owner_find(const struct loader *l, const struct place_by_id *by_id, struct record_id id)
{
    const struct place_by_id wanted = {.sequence = id.sequence},
                             *at = bsearch(&wanted, by_id, l->n_rows, sizeof *by_id, compare_ids);
    const struct row *row = at ? &l->rows[at->row] : NULL;
    return row && row->record.id.nonce == id.nonce ? row->span : NULL;
}

static int link_notes(struct loader *l)
{
    struct cs_store *s = l->s;
    if (l->n_notes == 0 || l->n_rows == 0)
        return CS_OK;
    struct place_by_id *by_id = malloc(l->n_rows * sizeof *by_id);
    if (!by_id)
        return CS_ENOMEM;
    for (size_t i = 0; i < l->n_rows; i++)
        by_id[i] = (struct place_by_id){.sequence = l->rows[i].record.id.sequence, .row = (uint32_t)i};
    qsort(by_id, l->n_rows, sizeof *by_id, compare_ids);
    for (size_t k = 0; k < l->n_notes; k++) {
        const struct note_record *n = &l->notes[k].record;
        struct span *owner = owner_find(l, by_id, n->owner);
        struct note_batch *b = NULL;
        if (owner && owner->disk != SPAN_DISK_DURABLE) /* they go with the damaged record */
            continue;
        if (owner)
            b = notes_add_locked(&s->notes, &s->index, s->tier, s->disk, owner, n->notes, n->n_notes,
                                 n->id.sequence);
        if (b) {
            b->row = n->id;
            b->stored = true;
        } else if (owner && !record_id_equal(n->id, n->owner)) {
            s->tier->delete_notes(s->disk, n->owner, n->id);
        }
    }
    free(by_id);
    return CS_OK;
}

uint32_t loader_pins_let_go(const struct loader *l)
{
    return l->n_pins_let_go;
}

uint32_t loader_limits_let_go(const struct loader *l)
{
    return l->n_limits_let_go;
}

/* Limits keep their accounts in the index, so all together may take half of what it has, like pins: first of
 * those who have something stored. The others stay in the catalogue, for an open with more room. */
static int set_quotas(struct loader *l)
{
    struct cs_store *s = l->s;
    struct accounts *as = &s->index.accounts;
    uint64_t room = as->budget[USE_INDEX] / 2, each = accounts_bytes_each();
    for (int stored = 1; stored >= 0; stored--)
        for (size_t i = 0; i < l->n_quotas; i++) {
            const struct tenant_limits *q = &l->quotas[i];
            struct account *a = accounts_find(as, &q->tenant);
            if ((a && a->n_spans > 0) != stored)
                continue;
            if (room < each) {
                l->n_limits_let_go++;
                continue;
            }
            room -= each;
            a = index_account_locked(&s->index, &q->tenant);
            if (!a)
                return CS_ENOMEM;
            accounts_set_quota(as, a, &q->quota);
        }
    for (size_t i = 0; i < l->n_quotas && l->quotas_to_tell && s->tier->quota; i++)
        if (s->tier->quota(s->disk, &l->quotas[i].tenant, &l->quotas[i].quota) != CS_OK)
            return CS_ENOMEM;
    return CS_OK;
}

int loader_finish_locked(struct loader *l)
{
    struct cs_store *s = l->s;
    struct place_in_order *order = NULL;
    int rc = loader_prepared(l);
    if (rc == CS_OK)
        rc = order_make(l, &order);
    if (rc != CS_OK)
        goto out;
    l->now_unix = (int64_t)time(NULL);
    size_t bucket_bytes = (s->index.bucket_mask + 1) * sizeof(struct span *);
    if (l->n_rows > bucket_bytes / BUCKET_BYTES_A_ROW)
        table_populate((void *)s->index.buckets, bucket_bytes);
    /* Who may leave is asked once all are there: nearly every span is a leaf until its child comes. */
    s->index.loading = true;
    for (size_t i = 0; i < l->n_rows; i++) {
        link_ahead(l, order, i);
        link_row(l, &l->rows[order[i].row]);
    }
    if (l->n_late > 0)
        rc = link_late(l, order);
    if (rc == CS_OK)
        rc = link_rests(l, order);
    if (rc == CS_OK && l->no_memory)
        rc = CS_ENOMEM;
    if (rc != CS_OK)
        goto out;
    for (size_t i = l->n_rows; i-- > 0;) {
        const struct row *row = &l->rows[order[i].row];
        struct span *sp = row->span;
        if (!sp)
            s->tier->delete_span(s->disk, row->record.id);
        else if (sp->parent && sp->parent->last_used < sp->last_used)
            index_touch_locked(&s->index, sp->parent, sp->last_used);
    }
    rc = limit_pins(l);
    if (rc != CS_OK)
        goto out;
    s->index.loading = false;
    (void)index_tick_locked(&s->index);    /* ranked for this moment, not for when the store was closed */
    for (size_t i = l->n_rows; i-- > 0;) { /* they came from new to old */
        struct span *sp = l->rows[i].span;
        if (sp)
            index_requeue_locked(&s->index, sp);
    }
    rc = link_notes(l);
    if (rc == CS_OK)
        rc = set_quotas(l);
    if (rc != CS_OK)
        goto out;
    /* Budgets may be smaller than they were. */
    room_for_index_locked(s, 0, NULL);
    accounts_pack(&s->index.accounts);
    room_for_disk_locked(s, 0);
    while (room_trim_some_locked(s))
        ;
out:
    free(order);
    return rc;
}
