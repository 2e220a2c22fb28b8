/*
 * Records of another fingerprint or geometry: never served, they leave when own records need their room or
 * the budget is smaller than it was, least recently used first.
 *
 * A use of a path is persisted at its deepest span only, so a parent's own time says little: before the order
 * is made, every parent becomes as young as its youngest descendant, and of equals the deeper goes first.
 * Otherwise the shared beginning of all conversations, which is the oldest record, would leave first and
 * nothing could be reached any more when its model comes back. Parents are found by the key of the page
 * before a span, which the chain over the stored ids gives; only an order depends on it, so keys are not
 * proven.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cachestore/key.h"
#include "cachestore/list.h"
#include "cachestore/tier_disk_impl.h"

struct foreign_member {
    struct disk_record *rec;
    struct cs_key parent;
    uint32_t first_position;
};
struct foreign_page {
    struct cs_key key;
    struct disk_record *rec;
};

void foreign_paths_free(struct foreign_paths *f)
{
    free(f->members);
    free(f->pages);
    *f = (struct foreign_paths){0};
}

static int page_add(struct foreign_paths *f, struct cs_key key, struct disk_record *rec)
{
    if (!list_reserve((void **)&f->pages, &f->pages_room, f->n_pages, sizeof *f->pages))
        return CS_ENOMEM;
    f->pages[f->n_pages++] = (struct foreign_page){.key = key, .rec = rec};
    return CS_OK;
}

int foreign_paths_add(struct foreign_paths *f, struct disk_record *rec, const struct fmt_record *r)
{
    if (!list_reserve((void **)&f->members, &f->members_room, f->n_members, sizeof *f->members))
        return CS_ENOMEM;
    f->members[f->n_members++] = (struct foreign_member){
        .rec = rec, .parent = {r->parent[0], r->parent[1]}, .first_position = r->first_position};
    if (r->kind == FMT_RECORD_CHECKPOINT) /* nobody's parent */
        return CS_OK;
    struct cs_key key = {r->key[0], r->key[1]};
    int rc = page_add(f, key, rec);
    for (uint32_t i = 1; rc == CS_OK && i < r->n_pages && r->page_tokens <= KEY_MAX_PAGE_TOKENS; i++) {
        key = key_next(key, r->ids + (size_t)i * r->page_tokens, r->page_tokens);
        rc = page_add(f, key, rec);
    }
    return rc;
}

static int compare_keys(struct cs_key a, struct cs_key b)
{
    if (a.lo != b.lo)
        return a.lo < b.lo ? -1 : 1;
    return a.hi < b.hi ? -1 : a.hi > b.hi;
}

static int by_key(const void *a, const void *b)
{
    return compare_keys(((const struct foreign_page *)a)->key, ((const struct foreign_page *)b)->key);
}

static int deepest_first(const void *a, const void *b)
{
    const struct foreign_member *x = a, *y = b;
    return x->first_position > y->first_position ? -1 : x->first_position < y->first_position;
}

static int by_use(const void *a, const void *b)
{
    const struct foreign_member *x = a, *y = b;
    if (x->rec->used_unix != y->rec->used_unix)
        return x->rec->used_unix < y->rec->used_unix ? -1 : 1;
    if (x->first_position != y->first_position)
        return deepest_first(a, b);
    return x->rec->id.sequence < y->rec->id.sequence ? -1 : x->rec->id.sequence > y->rec->id.sequence;
}

int foreign_order(struct tier_disk *t, struct foreign_paths *f)
{
    if (f->n_members == 0)
        return CS_OK;
    t->foreign = calloc(f->n_members, sizeof(struct disk_record *));
    if (t->foreign == NULL)
        return CS_ENOMEM;
    int64_t now = (int64_t)time(NULL);
    qsort(f->pages, f->n_pages, sizeof *f->pages, by_key);
    qsort(f->members, f->n_members, sizeof *f->members, deepest_first);
    for (size_t i = 0; i < f->n_members; i++) {
        const struct foreign_member *m = &f->members[i];
        if (m->rec->used_unix > now) /* the clock was ahead then */
            m->rec->used_unix = now;
        const struct foreign_page wanted = {.key = m->parent}, *at = NULL;
        if (m->first_position > 0)
            at = bsearch(&wanted, f->pages, f->n_pages, sizeof *f->pages, by_key);
        if (at != NULL && at->rec->used_unix < m->rec->used_unix)
            at->rec->used_unix = m->rec->used_unix;
    }
    qsort(f->members, f->n_members, sizeof *f->members, by_use);
    for (size_t i = 0; i < f->n_members; i++)
        t->foreign[t->n_foreign++] = f->members[i].rec;
    return CS_OK;
}

void foreign_evict(struct tier_disk *t, uint64_t bytes)
{
    for (uint64_t freed = 0; freed < bytes && t->next_foreign < t->n_foreign;) {
        struct disk_record *rec = t->foreign[t->next_foreign++];
        if (atomic_exchange(&rec->deleted, true))
            continue; /* by somebody else, and on its way here: it is in that list */
        rec->delete_seen = true;
        rec->list_next = t->row_deletes;
        t->row_deletes = rec;
        rec->dying = true;
        t->n_dying++;
        freed += rec->bytes;
    }
}

void foreign_forget_deleted(struct tier_disk *t)
{
    size_t n = t->next_foreign;
    for (size_t i = n; i < t->n_foreign; i++)
        if (!t->foreign[i]->delete_seen)
            t->foreign[n++] = t->foreign[i];
    t->n_foreign = n;
}

void foreign_fit(struct tier_disk *t)
{
    uint64_t used = volumes_used_bytes(&t->volumes), limit = t->volumes.limit_bytes;
    if (t->n_dying == 0 && used > limit)
        foreign_evict(t, used - limit);
}
