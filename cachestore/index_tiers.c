/*
 * The index: what of a span lies where, and where a span ends (see index.h). Each change tells the parent, to
 * whom it matters whether anything behind it is in the same tier, and who has to pay.
 *
 * Threads: everything is called with the store's lock held.
 */
#include "cachestore/index.h"
#include "cachestore/key.h"

/* Call behind each change of n_device or n_loading: a parent is a leaf of the device while no child has pages
 * there. */
static void device_changed(struct index *ix, struct span *sp, bool had)
{
    bool has = sp->n_device + sp->n_loading > 0;
    if (sp->parent && had != has) {
        sp->parent->n_device_children += has ? 1 : -1;
        index_requeue_locked(ix, sp->parent);
    }
}

static void attach(struct index *ix, struct span *sp, uint32_t i, uint32_t page, bool loading)
{
    bool had = sp->n_device + sp->n_loading > 0;
    sp->page[i] = page;
    bool pages = sp->kind == SPAN_OF_PAGES;
    arena_hold(ix->arena, page, pages ? sp : NULL);
    if (loading)
        ix->arena->pages[page].loading = true;
    if (pages && ix->arena->pages[page].refs > 0)
        sp->n_live++;
    if (loading)
        sp->n_loading++;
    else
        sp->n_device++;
    device_changed(ix, sp, had);
}

void index_attach_locked(struct index *ix, struct span *sp, uint32_t i, uint32_t page, bool loading)
{
    attach(ix, sp, i, page, loading);
    ix->device.stored++;
}

void index_landed_locked(struct index *ix, struct span *sp, uint32_t i)
{
    ix->arena->pages[sp->page[i]].loading = false;
    sp->n_loading--;
    sp->n_device++;
}

static void detach(struct index *ix, struct span *sp, uint32_t i)
{
    struct arena_page *p = &ix->arena->pages[sp->page[i]];
    if (p->loading)
        sp->n_loading--;
    else
        sp->n_device--;
    if (sp->kind == SPAN_OF_PAGES && p->refs > 0)
        sp->n_live--;
    p->loading = false;
    arena_release(ix->arena, sp->page[i]);
    sp->page[i] = ARENA_NO_PAGE;
    device_changed(ix, sp, true);
}

void index_detach_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why)
{
    detach(ix, sp, i);
    ix->device.gone[why]++;
}

void index_truncate_locked(struct index *ix, struct span *sp, uint32_t n_pages)
{
    for (uint32_t i = n_pages; i < sp->n_pages && sp->host; i++)
        if (sp->host[i] != ARENA_NO_PAGE)
            index_detach_host_locked(ix, sp, i, CS_GONE_CUT);
    /* The block keeps its size; the budget counts what the entry would cost now, as when it is freed. */
    index_discharge_locked(ix, sp->account,
                           index_span_bytes(ix, sp->n_pages) - index_span_bytes(ix, n_pages));
    sp->n_pages = n_pages;
}

/* Moves what hangs on pages from n on to the span that has them now. */
static struct span *move_siblings(const struct index *ix, struct span *first, struct span *to, uint32_t n)
{
    struct span *kept = NULL;
    for (struct span *sp = first, *next; sp; sp = next) {
        next = sp->next_sibling;
        struct span **list = &kept;
        if (sp != to && sp->parent_ordinal >= n) {
            struct span *from = sp->parent;
            bool device = sp->n_device + sp->n_loading > 0, host = sp->n_host > 0,
                 disk = index_needs_parent_on_disk(ix, sp->kind, sp->disk);
            from->n_children--;
            from->n_device_children -= device;
            from->n_host_children -= host;
            from->n_disk_children -= disk;
            to->n_children++;
            to->n_device_children += device;
            to->n_host_children += host;
            to->n_disk_children += disk;
            sp->parent = to;
            sp->parent_ordinal -= n;
            list = sp->kind == SPAN_OF_PAGES ? &to->first_child : &to->first_checkpoint;
        }
        sp->previous_sibling = NULL;
        sp->next_sibling = *list;
        if (*list)
            (*list)->previous_sibling = sp;
        *list = sp;
    }
    return kept;
}

struct span *index_split_locked(struct index *ix, struct span *sp, uint32_t n_pages)
{
    struct cs_key key = sp->key, before = key;
    for (uint32_t i = 1; i <= n_pages; i++) {
        before = key;
        key = key_next(key, sp->ids + (size_t)i * ix->page_tokens, ix->page_tokens);
    }
    struct span *tail = index_add_locked(ix, sp, n_pages - 1, before, key, sp->account,
                                         sp->ids + (size_t)n_pages * ix->page_tokens, sp->n_pages - n_pages);
    if (!tail)
        return NULL;
    tail->lost = sp->lost;
    tail->held_back = sp->held_back;
    tail->last_used = sp->last_used;
    tail->continues = sp->continues;
    tail->created_unix = sp->created_unix;
    tail->touched_unix = sp->touched_unix;
    for (uint32_t i = n_pages; i < sp->n_pages; i++) {
        uint32_t page = sp->page[i];
        if (page == ARENA_NO_PAGE)
            continue;
        index_page_ref_locked(ix, page); /* free between two owners, it would be anybody's */
        detach(ix, sp, i);
        attach(ix, tail, i - n_pages, page, false);
        index_page_unref_locked(ix, page);
    }
    sp->first_child = move_siblings(ix, sp->first_child, tail, n_pages);
    sp->first_checkpoint = move_siblings(ix, sp->first_checkpoint, tail, n_pages);
    index_truncate_locked(ix, sp, n_pages);
    ranks_recount_locked(ix, tail);
    ranks_recount_locked(ix, sp);
    index_requeue_locked(ix, tail);
    index_requeue_locked(ix, sp);
    return tail;
}

bool index_is_whole(const struct span *sp)
{
    if (sp->n_device == sp->n_pages || sp->n_host == sp->n_pages)
        return true;
    bool host = sp->n_host > 0;
    for (uint32_t i = 0; i < sp->n_pages; i++)
        if (sp->page[i] == ARENA_NO_PAGE && (!host || sp->host[i] == ARENA_NO_PAGE))
            return false;
    return sp->n_loading == 0;
}

/* The same of the host: blocks that have landed. */
static void host_changed(struct index *ix, struct span *sp, int change)
{
    bool had = sp->n_host > 0;
    sp->n_host += (uint32_t)change;
    bool has = sp->n_host > 0;
    if (sp->parent && had != has) {
        sp->parent->n_host_children += has ? 1 : -1;
        index_requeue_locked(ix, sp->parent);
    }
}

void index_attach_host_locked(struct index *ix, struct span *sp, uint32_t i, uint32_t block, bool loading)
{
    sp->host[i] = block;
    arena_hold(ix->host, block, sp);
    ix->host->pages[block].loading = loading;
    ix->kept_host.stored++;
    if (!loading)
        host_changed(ix, sp, 1);
}

void index_landed_host_locked(struct index *ix, struct span *sp, uint32_t i)
{
    ix->host->pages[sp->host[i]].loading = false;
    host_changed(ix, sp, 1);
}

void index_detach_host_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why)
{
    struct arena_page *p = &ix->host->pages[sp->host[i]];
    bool landed = !p->loading;
    p->loading = false;
    arena_release(ix->host, sp->host[i]);
    sp->host[i] = ARENA_NO_PAGE;
    ix->kept_host.gone[why]++;
    if (landed)
        host_changed(ix, sp, -1);
}

void index_set_disk_locked(struct index *ix, struct span *sp, enum span_disk disk)
{
    bool had = index_needs_parent_on_disk(ix, sp->kind, sp->disk),
         has = index_needs_parent_on_disk(ix, sp->kind, disk);
    if ((sp->disk == SPAN_DISK_DURABLE) != (disk == SPAN_DISK_DURABLE)) {
        uint64_t one = disk == SPAN_DISK_DURABLE ? 1 : -1ull;
        ix->n_disk_spans += one;
        if (sp->kind == SPAN_CHECKPOINT)
            ix->n_disk_checkpoints += one;
        ix->disk[sp->kind].stored += disk == SPAN_DISK_DURABLE;
    }
    bool charged = sp->disk >= SPAN_DISK_WRITING, charge = disk >= SPAN_DISK_WRITING;
    sp->account->n_writing += (disk == SPAN_DISK_WRITING) - (sp->disk == SPAN_DISK_WRITING);
    if (charge && !charged)
        accounts_charge(&ix->accounts, sp->account, RANK_DISK, sp->disk_bytes);
    else if (charged && !charge)
        accounts_discharge(&ix->accounts, sp->account, RANK_DISK, sp->disk_bytes);
    sp->disk = disk;
    sp->kept = sp->kept && disk == SPAN_DISK_DURABLE;
    if (sp->parent && had != has) {
        sp->parent->n_disk_children += has ? 1 : -1;
        index_requeue_locked(ix, sp->parent);
    }
    index_requeue_locked(ix, sp);
}

void index_page_ref_locked(struct index *ix, uint32_t page)
{
    struct span *owner = ix->arena->pages[page].owner;
    if (arena_ref(ix->arena, page) && owner)
        owner->n_live++;
}

void index_page_unref_locked(struct index *ix, uint32_t page)
{
    struct span *owner = ix->arena->pages[page].owner;
    if (arena_unref(ix->arena, page) && owner)
        owner->n_live--;
}
