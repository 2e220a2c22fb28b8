/*
 * Opening a store that has something on disk: rows come in any order, spans are linked parents first, each
 * checkpoint below the span with the page before it. A row that repeats another one loses to the newer
 * record; a row whose chain of parents is broken leads nowhere and is deleted, and its notes with it. Without
 * memory for a row the store does not open, and nothing is deleted.
 */
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS_AHEAD = 4, KEYS_AHEAD = 8, PLACES_AHEAD = 16 };

struct row {
    struct span_record record; /* ids: in `made`; owned by a checkpoint */
    uint64_t disk_bytes;
    size_t first_key;  /* of a span: where the keys of its pages begin */
    struct span *made; /* memory of the span, its ids in place, until it is linked */
    struct span *span; /* once linked */
};

struct note_row {
    struct note_record record; /* notes and their data owned, in one block */
};

/* Where the page is that a row names as its parent. Most pages are nobody's parent, and a look into the table
 * is a cache miss, so a bitmap, small enough to stay in cache, is asked first. */
struct page_place {
    struct cs_key key;
    struct span *span; /* once linked */
    uint32_t ordinal;
    bool wanted; /* the slot is taken */
};

struct loader {
    struct cs_store *s;
    struct row *rows;
    size_t n_rows, rows_capacity;
    struct cs_key *keys; /* of all pages; computed while the ids that a row brings are at hand */
    size_t n_keys, keys_capacity;
    struct note_row *notes;
    size_t n_notes, notes_capacity;
    struct page_place *places; /* open addressing */
    size_t n_places;           /* a power of two */
    int64_t now_unix;
    bool no_memory; /* a row that could have been linked was not */
    uint32_t n_pins_let_go;
    uint64_t *maybe_parent; /* a byte a place: two bits a key, in one word, by hash */
};

struct loader *loader_new(struct cs_store *s)
{
    struct loader *l = calloc(1, sizeof *l);
    if (l)
        l->s = s;
    return l;
}

void loader_on_restart(void *ctx)
{
    struct loader *l = ctx;
    for (size_t i = 0; i < l->n_rows; i++) {
        free(l->rows[i].made);
        if (l->rows[i].record.kind == RECORD_CHECKPOINT)
            free((void *)l->rows[i].record.ids);
    }
    for (size_t i = 0; i < l->n_notes; i++)
        free((void *)l->notes[i].record.notes);
    l->n_rows = l->n_notes = l->n_keys = 0;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    loader_on_restart(l);
    free(l->rows);
    free(l->notes);
    free(l->keys);
    free(l->places);
    free(l->maybe_parent);
    free(l);
}

static bool is_sound(const struct cs_store *s, const struct span_record *r)
{
    if (r->kind != RECORD_CHECKPOINT)
        return r->n_pages > 0 && r->first_position % s->page_tokens == 0;
    return s->stateful && r->first_position > 0 && r->first_position % s->grid_tokens == 0 &&
           r->flags <= CS_BOUNDARY_END && r->n_pages == checkpoint_blocks(s, r->first_position);
}

/* The keys of r's pages follow those that are there. */
static bool keys_add(struct loader *l, const struct span_record *r)
{
    const struct cs_store *s = l->s;
    if (l->n_keys + r->n_pages > l->keys_capacity) {
        size_t capacity = 2 * l->keys_capacity + r->n_pages;
        struct cs_key *larger = realloc(l->keys, capacity * sizeof *larger);
        if (!larger)
            return false;
        l->keys = larger;
        l->keys_capacity = capacity;
    }
    struct cs_key before =
        r->first_position > 0 ? r->parent : key_seed(s->secret, s->fingerprint, &r->tenant);
    key_pages(before, r->ids, r->n_pages, s->page_tokens, l->keys + l->n_keys);
    l->n_keys += r->n_pages;
    return true;
}

int loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes)
{
    struct loader *l = ctx;
    const struct index *ix = &l->s->index;
    enum span_kind kind = r->kind == RECORD_CHECKPOINT ? SPAN_CHECKPOINT : SPAN_OF_PAGES;
    if (!list_reserve((void **)&l->rows, &l->rows_capacity, l->n_rows, sizeof *l->rows))
        return CS_ENOMEM;
    /* Unusable rows stay in the list without ids, and are deleted with the others that lead nowhere. */
    struct row row = {.record = *r, .disk_bytes = disk_bytes, .first_key = l->n_keys};
    row.record.ids = NULL;
    if (is_sound(l->s, r)) {
        /* The ids of a span are copied once, to where they stay. */
        size_t id_bytes = index_n_ids(ix, kind, r->n_pages) * sizeof *r->ids;
        if (kind == SPAN_OF_PAGES && keys_add(l, r))
            row.made = index_span_new(ix, r->n_pages);
        uint32_t *ids = row.made ? row.made->ids : kind == SPAN_CHECKPOINT ? malloc(id_bytes) : NULL;
        if (!ids)
            return CS_ENOMEM;
        memcpy(ids, r->ids, id_bytes);
        row.record.ids = ids;
    }
    l->rows[l->n_rows++] = row;
    return CS_OK;
}

int loader_on_notes(void *ctx, const struct note_record *n)
{
    struct loader *l = ctx;
    if (!list_reserve((void **)&l->notes, &l->notes_capacity, l->n_notes, sizeof *l->notes))
        return CS_ENOMEM;
    size_t bytes = n->n_notes * sizeof(struct cs_note);
    for (size_t i = 0; i < n->n_notes; i++)
        bytes += n->notes[i].len;
    struct cs_note *copy = malloc(bytes ? bytes : 1);
    if (!copy)
        return CS_ENOMEM;
    uint8_t *data = (uint8_t *)(copy + n->n_notes);
    for (size_t i = 0; i < n->n_notes; i++) {
        copy[i] = n->notes[i];
        copy[i].data = data;
        if (n->notes[i].len)
            memcpy(data, n->notes[i].data, n->notes[i].len);
        data += n->notes[i].len;
    }
    l->notes[l->n_notes] = (struct note_row){.record = *n};
    l->notes[l->n_notes++].record.notes = copy;
    return CS_OK;
}

/* Parents first; of equals the newer record first. */
static int compare_rows(const void *a, const void *b)
{
    const struct span_record *ra = &((const struct row *)a)->record, *rb = &((const struct row *)b)->record;
    if (ra->first_position != rb->first_position)
        return ra->first_position < rb->first_position ? -1 : 1;
    if (ra->id.sequence != rb->id.sequence)
        return ra->id.sequence > rb->id.sequence ? -1 : 1;
    return 0;
}

static struct page_place *place_of(struct loader *l, struct cs_key key)
{
    size_t at = key.lo & (l->n_places - 1);
    while (l->places[at].wanted && !key_equal(l->places[at].key, key))
        at = (at + 1) & (l->n_places - 1);
    return &l->places[at];
}

static uint64_t *parent_word(const struct loader *l, struct cs_key key)
{
    return &l->maybe_parent[key.hi >> 12 & (l->n_places / sizeof(uint64_t) - 1)];
}

static uint64_t parent_bits(struct cs_key key)
{
    return 1ull << (key.hi & 63) | 1ull << (key.hi >> 6 & 63);
}

/* The span's pages, whose keys these are, may be the parents that rows name. */
static void offer_parents(struct loader *l, struct span *sp, const struct cs_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bits = parent_bits(keys[i]);
        if ((*parent_word(l, keys[i]) & bits) != bits)
            continue;
        struct page_place *at = place_of(l, keys[i]);
        if (at->wanted) {
            at->span = sp;
            at->ordinal = i;
        }
    }
}

static struct span *link_checkpoint(struct loader *l, const struct span_record *r)
{
    struct cs_store *s = l->s;
    uint32_t pt = s->page_tokens;
    const struct page_place *at = place_of(l, r->parent);
    struct span *parent = at->span;
    uint32_t ordinal = at->ordinal;
    if (!parent || memcmp(&parent->tenant, &r->tenant, sizeof r->tenant) != 0 ||
        parent->first_position + (ordinal + 1) * pt != r->first_position ||
        memcmp(parent->ids + (size_t)ordinal * pt, r->ids, pt * sizeof *r->ids) != 0 ||
        !key_equal(key_checkpoint(r->parent), r->key) || index_checkpoint_locked(parent, ordinal))
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
    uint32_t pt = s->page_tokens;
    struct span *parent = NULL;
    uint32_t ordinal = 0;
    if (r->first_position > 0) {
        const struct page_place *at = place_of(l, r->parent);
        parent = at->span;
        ordinal = at->ordinal;
        if (!parent || memcmp(&parent->tenant, &r->tenant, sizeof r->tenant) != 0 ||
            parent->first_position + (ordinal + 1) * pt != r->first_position)
            return NULL;
        /* Headers of deleted records come back with a rebuild. One whose pages were stored anew since, cut in
         * another way, must not stand beside them: what follows would be linked to it, and no walk gets
         * there. */
        if (ordinal + 1 < parent->n_pages &&
            memcmp(parent->ids + (size_t)(ordinal + 1) * pt, r->ids, pt * sizeof *r->ids) == 0)
            return NULL;
    }
    struct cs_key before = parent ? r->parent : key_seed(s->secret, s->fingerprint, &r->tenant);
    const struct cs_key *keys = l->keys + row->first_key;
    struct cs_key first = keys[0];
    if (!key_equal(first, r->key) || index_find_locked(&s->index, parent, ordinal, first, &r->tenant, r->ids))
        return NULL;
    struct span *sp = row->made;
    row->made = NULL;
    index_add_made_locked(&s->index, sp, parent, ordinal, before, first, &r->tenant);
    offer_parents(l, sp, keys, r->n_pages);
    return sp;
}

static struct span *link_row(struct loader *l, struct row *row)
{
    struct cs_store *s = l->s;
    const struct span_record *r = &row->record;
    struct span *sp = NULL;
    if (r->ids)
        sp = r->kind == RECORD_CHECKPOINT ? link_checkpoint(l, r) : link_span(l, row);
    if (!sp)
        return NULL;
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
    return sp;
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
 * next rows will look at is asked for ahead, keys first, for they say what else. */
static void link_ahead(const struct loader *l, size_t i)
{
    enum { LINE_BYTES = 64 };
    const struct index *ix = &l->s->index;
    if (i + KEYS_AHEAD < l->n_rows && l->rows[i + KEYS_AHEAD].made) {
        const struct row *far = &l->rows[i + KEYS_AHEAD];
        const char *keys = (const char *)(l->keys + far->first_key);
        for (size_t at = 0; at < far->record.n_pages * sizeof *l->keys; at += LINE_BYTES)
            __builtin_prefetch(keys + at);
    }
    if (i + ROWS_AHEAD >= l->n_rows)
        return;
    const struct row *near = &l->rows[i + ROWS_AHEAD];
    __builtin_prefetch(&l->places[near->record.parent.lo & (l->n_places - 1)]);
    __builtin_prefetch(&ix->buckets[near->record.key.lo & ix->bucket_mask], 1);
    if (!near->made)
        return;
    for (size_t at = 0; at < sizeof *near->made; at += LINE_BYTES)
        __builtin_prefetch((const char *)near->made + at, 1);
    for (uint32_t page = 0; page < near->record.n_pages; page++)
        __builtin_prefetch(parent_word(l, l->keys[near->first_key + page]));
}

static void link_notes(struct loader *l)
{
    struct cs_store *s = l->s;
    for (size_t k = 0; k < l->n_notes; k++) {
        const struct note_record *n = &l->notes[k].record;
        struct span *owner = NULL;
        for (size_t lo = 0, hi = l->n_rows; lo < hi && !owner;) {
            size_t mid = lo + (hi - lo) / 2;
            const struct row *row = &l->rows[mid];
            if (row->record.id.sequence == n->owner.sequence) {
                owner = row->record.id.nonce == n->owner.nonce ? row->span : NULL;
                break;
            }
            if (row->record.id.sequence < n->owner.sequence)
                lo = mid + 1;
            else
                hi = mid;
        }
        struct note_batch *b = NULL;
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
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t sa = ((const struct row *)a)->record.id.sequence,
             sb = ((const struct row *)b)->record.id.sequence;
    return sa < sb ? -1 : sa > sb;
}

uint32_t loader_pins_let_go(const struct loader *l)
{
    return l->n_pins_let_go;
}

int loader_finish_locked(struct loader *l)
{
    struct cs_store *s = l->s;
    for (l->n_places = 64; l->n_places < 2 * l->n_rows;)
        l->n_places *= 2;
    l->places = calloc(l->n_places, sizeof *l->places);
    l->maybe_parent = calloc(l->n_places, 1);
    if (!l->places || !l->maybe_parent)
        return CS_ENOMEM;
    l->now_unix = (int64_t)time(NULL);
    for (size_t i = 0; i < l->n_rows; i++)
        if (l->rows[i].record.first_position > 0) {
            struct cs_key parent = l->rows[i].record.parent;
            if (i + PLACES_AHEAD < l->n_rows)
                __builtin_prefetch(&l->places[l->rows[i + PLACES_AHEAD].record.parent.lo & (l->n_places - 1)],
                                   1);
            *parent_word(l, parent) |= parent_bits(parent);
            *place_of(l, parent) = (struct page_place){.key = parent, .wanted = true};
        }
    if (l->n_rows > 0)
        qsort(l->rows, l->n_rows, sizeof *l->rows, compare_rows);
    /* Who may leave is asked once all are there: nearly every span is a leaf until its child comes. */
    s->index.loading = true;
    for (size_t i = 0; i < l->n_rows; i++) {
        link_ahead(l, i);
        if (s->index.n_spans < s->index.heap_capacity)
            l->rows[i].span = link_row(l, &l->rows[i]);
    }
    if (l->no_memory)
        return CS_ENOMEM;
    for (size_t i = l->n_rows; i-- > 0;) {
        struct span *sp = l->rows[i].span;
        if (!sp)
            s->tier->delete_span(s->disk, l->rows[i].record.id);
        else if (sp->parent && sp->parent->last_used < sp->last_used)
            index_touch_locked(&s->index, sp->parent, sp->last_used);
    }
    int rc = limit_pins(l);
    if (rc != CS_OK)
        return rc;
    s->index.loading = false;
    for (size_t i = 0; i < l->n_rows; i++)
        if (l->rows[i].span)
            index_requeue_locked(&s->index, l->rows[i].span);
    if (l->n_notes > 0) {
        qsort(l->rows, l->n_rows, sizeof *l->rows, compare_ids);
        link_notes(l);
    }
    /* Budgets may be smaller than they were. */
    room_for_index_locked(s, 0);
    room_for_disk_locked(s, 0);
    return CS_OK;
}
