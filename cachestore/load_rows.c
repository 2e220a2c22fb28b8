/*
 * Rows of the disk tier come in while the store opens (see load_impl.h).
 *
 * They come as fast as the catalogue can be read, and what can be done with one alone, or with those before
 * it, is done beside that by a second thread: its page keys, which prove the key it says, and who is whose
 * parent. Rows come from new to old and a parent is nearly always older than what hangs on it, so its key is
 * wanted when it comes, and it need not be kept for those that may name it later. Few rows are not worth a
 * thread: they are prepared when all are there.
 */
#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/load_impl.h"
#include "cachestore/table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_HANDED = 1024, ROWS_WORTH_A_THREAD = 4096, PLACES_MIN = 64 };

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

static void row_free_memory(struct row *row)
{
    if (row->record.kind == RECORD_CHECKPOINT)
        free((void *)row->record.ids);
    free(row->made);
    row->made = NULL;
    row->record.ids = NULL;
}

static int row_prepare(struct loader *l, struct row *row, uint32_t number)
{
    const struct cs_store *s = l->s;
    struct span_record *r = &row->record;
    bool pages = r->kind != RECORD_CHECKPOINT;
    if (!r->ids)
        return CS_OK;
    if (pages) {
        if (r->first_position == 0)
            r->parent = key_seed(s->secret, s->fingerprint, &r->tenant);
        if (keys_reserve(l, r->n_pages) != CS_OK)
            return CS_ENOMEM;
        key_pages(r->parent, r->ids, r->n_pages, s->page_tokens, l->keys);
    }
    if (!key_equal(pages ? l->keys[0] : key_checkpoint(r->parent), r->key)) {
        row_free_memory(row);
        return CS_OK;
    }
    if (places_reserve(&l->places) != CS_OK)
        return CS_ENOMEM;
    if (r->first_position > 0)
        places_want(&l->places, r->parent);
    for (uint32_t i = 0; pages && i < r->n_pages; i++)
        places_offer(&l->places, l->keys[i], number, i);
    return CS_OK;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void *prepare_main(void *arg)
{
    struct loader *l = arg;
    struct row_block *block = l->first_block;
    for (size_t at = 0, end = 0; !l->prepare_failed; at++) {
        if (at == end) {
            pthread_mutex_lock(&l->lock);
            while (at == l->n_handed && !l->no_more)
                pthread_cond_wait(&l->more, &l->lock);
            end = l->n_handed;
            pthread_mutex_unlock(&l->lock);
            if (at == end)
                break;
        }
        if (at > 0 && at % ROWS_A_BLOCK == 0)
            block = block->next;
        l->prepare_failed = row_prepare(l, &block->row[at % ROWS_A_BLOCK], (uint32_t)at) != CS_OK;
    }
    return NULL;
}

static void hand_over(struct loader *l)
{
    if (!l->thread_runs) {
        if (l->n_rows < ROWS_WORTH_A_THREAD || l->no_thread)
            return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the application's threads */
        l->thread_runs = pthread_create(&l->thread, NULL, prepare_main, l) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        l->no_thread = !l->thread_runs;
    }
    pthread_mutex_lock(&l->lock);
    l->n_handed = l->n_rows;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

static void thread_end(struct loader *l)
{
    if (!l->thread_runs)
        return;
    pthread_mutex_lock(&l->lock);
    l->no_more = true;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->thread_runs = l->no_more = false;
}

int loader_prepared(struct loader *l)
{
    size_t n_prepared = 0;
    if (l->thread_runs) {
        hand_over(l);
        n_prepared = l->n_rows;
        thread_end(l);
    }
    int rc = l->prepare_failed ? CS_ENOMEM : places_reserve(&l->places);
    for (; n_prepared < l->n_rows && rc == CS_OK; n_prepared++)
        rc = row_prepare(l, loader_row(l, n_prepared), (uint32_t)n_prepared);
    return rc;
}

/* ---- what the tier calls ----------------------------------------------------------------------------- */

static struct row *row_new(struct loader *l)
{
    if (l->n_rows == l->n_blocks * ROWS_A_BLOCK) {
        struct row_block *block = malloc(sizeof *block);
        if (l->n_rows > UINT32_MAX - ROWS_A_BLOCK || !block ||
            !list_reserve((void **)&l->blocks, &l->blocks_room, l->n_blocks, sizeof(struct row_block *))) {
            free(block);
            return NULL;
        }
        block->next = NULL;
        if (l->n_blocks > 0)
            l->blocks[l->n_blocks - 1]->next = block;
        else
            l->first_block = block;
        l->blocks[l->n_blocks++] = block;
    }
    return loader_row(l, l->n_rows);
}

int loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes)
{
    struct loader *l = ctx;
    const struct index *ix = &l->s->index;
    enum span_kind kind = r->kind == RECORD_CHECKPOINT ? SPAN_CHECKPOINT : SPAN_OF_PAGES;
    struct row *row = row_new(l);
    if (!row)
        return CS_ENOMEM;
    /* Unusable rows stay without ids, and are deleted with the others that lead nowhere. */
    *row = (struct row){.record = *r, .disk_bytes = disk_bytes};
    row->record.ids = NULL;
    if (is_sound(l->s, r)) {
        /* The ids of a span are copied once, to where they stay. */
        size_t id_bytes = index_n_ids(ix, kind, r->n_pages) * sizeof *r->ids;
        if (kind == SPAN_OF_PAGES)
            row->made = index_span_new(ix, r->n_pages);
        uint32_t *ids = row->made ? row->made->ids : kind == SPAN_CHECKPOINT ? malloc(id_bytes) : NULL;
        if (!ids)
            return CS_ENOMEM;
        memcpy(ids, r->ids, id_bytes);
        row->record.ids = ids;
    }
    if (++l->n_rows % ROWS_HANDED == 0)
        hand_over(l);
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

void loader_on_restart(void *ctx)
{
    struct loader *l = ctx;
    l->quotas_to_tell = true;
    thread_end(l);
    for (size_t i = 0; i < l->n_rows; i++)
        row_free_memory(loader_row(l, i));
    for (size_t i = 0; i < l->n_blocks; i++)
        free(l->blocks[i]);
    for (size_t i = 0; i < l->n_notes; i++)
        free((void *)l->notes[i].record.notes);
    l->n_rows = l->n_blocks = l->n_notes = l->n_handed = 0;
    l->prepare_failed = false;
    places_free(&l->places);
}

struct loader *loader_new(struct cs_store *s)
{
    struct loader *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->s = s;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    return l;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    loader_on_restart(l);
    free(l->blocks);
    free(l->notes);
    free(l->quotas);
    free(l->keys);
    pthread_cond_destroy(&l->more);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
