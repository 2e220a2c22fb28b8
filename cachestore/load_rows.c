/*
 * Rows of the disk tier come in while the store opens (see load_impl.h).
 *
 * They come as fast as the catalogue can be read, and what can be done with one alone, or with those before
 * it, is done beside that by a second thread: the memory of its span, its page keys, which prove the key it
 * says, and who is whose parent. Rows come from new to old and a parent is nearly always older than what
 * hangs on it, so its key is wanted when it comes, and it need not be kept for those that may name it later.
 * Few rows are not worth a thread: they wait in a batch until all are there.
 */
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/load_impl.h"
#include "cachestore/table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES_MIN = 64, BATCHES_AHEAD = 8 };

/* ---- places ------------------------------------------------------------------------------------------ */

int places_start(struct places *p, size_t n)
{
    places_free(p);
    for (p->n = PLACES_MIN; p->n < 2 * n;)
        p->n *= 2;
    p->place = table_new(p->n, sizeof *p->place);
    p->maybe_parent = table_new(p->n, 1);
    return p->place && p->maybe_parent ? CS_OK : CS_ENOMEM;
}

void places_free(struct places *p)
{
    free(p->place);
    free(p->maybe_parent);
    *p = (struct places){0};
}

static uint64_t *parent_word(const struct places *p, struct cs_key key)
{
    return &p->maybe_parent[key.hi >> 12 & (p->n / sizeof(uint64_t) - 1)];
}

static uint64_t parent_bits(struct cs_key key)
{
    return 1ull << (key.hi & 63) | 1ull << (key.hi >> 6 & 63);
}

struct page_place *places_find(const struct places *p, struct cs_key key)
{
    size_t at = key.lo & (p->n - 1);
    while (p->place[at].state != PLACE_FREE && !key_equal(p->place[at].key, key))
        at = (at + 1) & (p->n - 1);
    return &p->place[at];
}

void places_want(struct places *p, struct cs_key key)
{
    struct page_place *at = places_find(p, key);
    if (at->state != PLACE_FREE)
        return;
    *at = (struct page_place){.key = key, .state = PLACE_WANTED};
    *parent_word(p, key) |= parent_bits(key);
    p->n_wanted++;
}

void places_offer(struct places *p, struct cs_key key, uint32_t row, uint32_t ordinal)
{
    uint64_t bits = parent_bits(key);
    if ((*parent_word(p, key) & bits) != bits)
        return;
    struct page_place *at = places_find(p, key);
    if (at->state == PLACE_WANTED) {
        at->row = row;
        at->ordinal = ordinal;
        at->state = PLACE_OFFERED;
    } else if (at->state == PLACE_OFFERED) {
        at->state = PLACE_CONTESTED;
    }
}

/* Room for one more that is wanted. */
static int places_reserve(struct places *p)
{
    if (p->n > 0 && 2 * (p->n_wanted + 1) <= p->n)
        return CS_OK;
    struct places larger = {0};
    int rc = places_start(&larger, p->n);
    if (rc != CS_OK) {
        places_free(&larger);
        return rc;
    }
    for (size_t i = 0; i < p->n; i++) {
        if (p->place[i].state == PLACE_FREE)
            continue;
        struct cs_key key = p->place[i].key;
        *places_find(&larger, key) = p->place[i];
        *parent_word(&larger, key) |= parent_bits(key);
    }
    larger.n_wanted = p->n_wanted;
    places_free(p);
    *p = larger;
    return CS_OK;
}

/* ---- one row ----------------------------------------------------------------------------------------- */

static bool is_sound(const struct cs_store *s, const struct span_record *r)
{
    if (r->kind != RECORD_CHECKPOINT)
        return r->n_pages > 0 && r->first_position % s->page_tokens == 0;
    return s->stateful && r->first_position > 0 && r->first_position % s->grid_tokens == 0 &&
           r->flags <= CS_BOUNDARY_END && r->n_pages == checkpoint_blocks(s, r->first_position);
}

static int keys_reserve(struct loader *l, size_t n)
{
    if (n <= l->keys_room)
        return CS_OK;
    struct cs_key *larger = realloc(l->keys, n * sizeof *larger);
    if (!larger)
        return CS_ENOMEM;
    l->keys = larger;
    l->keys_room = n;
    return CS_OK;
}

static int row_prepare(struct loader *l, struct row *row, uint32_t number)
{
    const struct cs_store *s = l->s;
    struct span_record *r = &row->record;
    bool pages = r->kind != RECORD_CHECKPOINT;
    if (pages) {
        if (r->first_position == 0)
            r->parent = key_seed(s->secret, s->fingerprint, &r->tenant);
        if (keys_reserve(l, r->n_pages) != CS_OK)
            return CS_ENOMEM;
        key_pages(r->parent, r->ids, r->n_pages, s->page_tokens, l->keys);
    }
    row->proven = key_equal(pages ? l->keys[0] : key_checkpoint(r->parent), r->key);
    if (!row->proven)
        return CS_OK;
    if (places_reserve(&l->places) != CS_OK)
        return CS_ENOMEM;
    if (r->first_position > 0)
        places_want(&l->places, r->parent);
    for (uint32_t i = 0; pages && i < r->n_pages; i++)
        places_offer(&l->places, l->keys[i], number, i);
    return CS_OK;
}

/* ids NULL: the row is unusable; it stays, and is deleted with the others that lead nowhere. */
static int row_take(struct loader *l, const struct span_record *r, const uint32_t *ids, size_t n_ids,
                    uint64_t disk_bytes)
{
    if (l->n_rows == UINT32_MAX ||
        !list_reserve((void **)&l->rows, &l->rows_room, l->n_rows, sizeof *l->rows))
        return CS_ENOMEM;
    struct row *row = &l->rows[l->n_rows];
    *row = (struct row){.record = *r, .disk_bytes = disk_bytes};
    row->record.ids = NULL;
    if (ids) {
        if (r->kind != RECORD_CHECKPOINT)
            row->made = index_span_new(&l->s->index, r->n_pages);
        uint32_t *own = row->made                      ? row->made->ids
                        : r->kind == RECORD_CHECKPOINT ? malloc(n_ids * sizeof *own)
                                                       : NULL;
        if (!own)
            return CS_ENOMEM;
        memcpy(own, ids, n_ids * sizeof *own);
        row->record.ids = own;
    }
    l->n_rows++;
    return ids ? row_prepare(l, row, (uint32_t)(l->n_rows - 1)) : CS_OK;
}

static int batch_take(struct loader *l, const struct row_batch *b)
{
    int rc = CS_OK;
    for (size_t i = 0; i < b->n && rc == CS_OK; i++)
        rc = row_take(l, &b->row[i].record, b->row[i].n_ids ? b->ids + b->row[i].first_id : NULL,
                      b->row[i].n_ids, b->row[i].disk_bytes);
    return rc;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void *take_main(void *arg)
{
    struct loader *l = arg;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (!l->full && !l->no_more)
            pthread_cond_wait(&l->changed, &l->lock);
        struct row_batch *b = l->full;
        if (!b)
            break;
        l->full = b->next;
        if (!l->full)
            l->full_tail = &l->full;
        bool failed = l->failed;
        pthread_mutex_unlock(&l->lock);
        if (!failed)
            failed = batch_take(l, b) != CS_OK;
        pthread_mutex_lock(&l->lock);
        l->failed = failed;
        b->next = l->empty;
        l->empty = b;
        l->n_full--;
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void thread_start(struct loader *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the application's threads */
    l->thread_runs = pthread_create(&l->thread, NULL, take_main, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void thread_end(struct loader *l)
{
    if (!l->thread_runs)
        return;
    pthread_mutex_lock(&l->lock);
    l->no_more = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->thread_runs = l->no_more = false;
}

/* What was filled is taken: by the thread, or, where there is none, here. */
static int hand_over(struct loader *l)
{
    struct row_batch *b = l->filling;
    if (!l->thread_runs) {
        if (batch_take(l, b) != CS_OK)
            l->failed = true;
        b->n = b->n_ids = 0;
        return l->failed ? CS_ENOMEM : CS_OK;
    }
    pthread_mutex_lock(&l->lock);
    while (l->n_full >= BATCHES_AHEAD)
        pthread_cond_wait(&l->changed, &l->lock);
    b->next = NULL;
    *l->full_tail = b;
    l->full_tail = &b->next;
    l->n_full++;
    l->filling = l->empty;
    if (l->filling)
        l->empty = l->filling->next;
    int rc = l->failed ? CS_ENOMEM : CS_OK;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (l->filling)
        l->filling->n = l->filling->n_ids = 0;
    return rc;
}

int loader_prepared(struct loader *l)
{
    int rc = l->filling && l->filling->n > 0 ? hand_over(l) : CS_OK;
    thread_end(l);
    if (rc == CS_OK && l->failed)
        rc = CS_ENOMEM;
    return rc == CS_OK ? places_reserve(&l->places) : rc;
}

/* ---- what the tier calls ----------------------------------------------------------------------------- */

static bool ids_reserve(struct row_batch *b, size_t n)
{
    if (b->n_ids + n <= b->ids_room)
        return true;
    size_t room = 2 * (b->n_ids + n);
    uint32_t *larger = realloc(b->ids, room * sizeof *larger);
    if (!larger)
        return false;
    b->ids = larger;
    b->ids_room = room;
    return true;
}

int loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes)
{
    struct loader *l = ctx;
    if (l->filling && l->filling->n == ROWS_A_BATCH) {
        if (!l->thread_runs)
            thread_start(l);
        if (hand_over(l) != CS_OK)
            return CS_ENOMEM;
    }
    if (!l->filling && !(l->filling = calloc(1, sizeof *l->filling)))
        return CS_ENOMEM;
    struct row_batch *b = l->filling;
    enum span_kind kind = r->kind == RECORD_CHECKPOINT ? SPAN_CHECKPOINT : SPAN_OF_PAGES;
    size_t n_ids = is_sound(l->s, r) ? index_n_ids(&l->s->index, kind, r->n_pages) : 0;
    if (!ids_reserve(b, n_ids))
        return CS_ENOMEM;
    b->row[b->n].record = *r;
    b->row[b->n].disk_bytes = disk_bytes;
    b->row[b->n].first_id = b->n_ids;
    b->row[b->n].n_ids = n_ids;
    b->n++;
    if (n_ids > 0)
        memcpy(b->ids + b->n_ids, r->ids, n_ids * sizeof *r->ids);
    b->n_ids += n_ids;
    return CS_OK;
}

int loader_on_notes(void *ctx, const struct note_record *n)
{
    struct loader *l = ctx;
    if (!list_reserve((void **)&l->notes, &l->notes_room, l->n_notes, sizeof *l->notes))
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

int loader_on_quota(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    struct loader *l = ctx;
    if (!list_reserve((void **)&l->quotas, &l->quotas_room, l->n_quotas, sizeof *l->quotas))
        return CS_ENOMEM;
    l->quotas[l->n_quotas++] = (struct tenant_limits){*tenant, *quota};
    return CS_OK;
}

static void batches_free(struct row_batch *b)
{
    for (struct row_batch *next; b; b = next) {
        next = b->next;
        free(b->ids);
        free(b);
    }
}

void loader_on_restart(void *ctx)
{
    struct loader *l = ctx;
    l->quotas_to_tell = true;
    thread_end(l);
    for (size_t i = 0; i < l->n_rows; i++) {
        struct row *row = &l->rows[i];
        index_span_free(&l->s->index, row->made);
        if (row->record.kind == RECORD_CHECKPOINT)
            free((void *)row->record.ids);
    }
    for (size_t i = 0; i < l->n_notes; i++)
        free((void *)l->notes[i].record.notes);
    l->n_rows = l->n_notes = 0;
    l->failed = false;
    if (l->filling)
        l->filling->n = l->filling->n_ids = 0;
    places_free(&l->places);
}

struct loader *loader_new(struct cs_store *s)
{
    struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->s = s;
    l->full_tail = &l->full;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    return l;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    loader_on_restart(l);
    if (l->filling)
        l->filling->next = NULL;
    batches_free(l->filling);
    batches_free(l->empty);
    free(l->rows);
    free(l->notes);
    free(l->quotas);
    free(l->keys);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
