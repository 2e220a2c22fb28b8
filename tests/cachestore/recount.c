/* Counts everything again (see recount.h). */
#include "tests/cachestore/recount.h"

#include <stdlib.h>
#include <time.h>

struct counts {
    uint64_t spans, checkpoints, doomed, on_disk, checkpoints_on_disk, ranked[RANK_TIERS], holds;
    uint64_t in_heap;
    uint64_t *used[USES], *n_spans, *n_writing, *n_listed; /* a slot of the accounts */
    uint32_t *holders;                                     /* an arena page */
    uint8_t *on_host;                                      /* a block of the host tier */
};

static uint32_t count_checkpoints(const struct span *sp, uint32_t ordinal)
{
    uint32_t n = 0;
    for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
        n += !c->doomed && c->parent_ordinal <= ordinal;
    return n;
}

/* Plainly: for each page of the span, what lies there and behind it. */
static void check_chain(const struct span *sp)
{
    uint32_t chain = 0, depth = 0;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        for (const struct span *c = sp->first_checkpoint; c; c = c->next_sibling)
            if (c->parent_ordinal == i && !c->doomed) {
                depth = 2 * (i + 1) > depth ? 2 * (i + 1) : depth;
                chain = count_checkpoints(sp, i) > chain ? count_checkpoints(sp, i) : chain;
            }
        for (const struct span *c = sp->first_child; c; c = c->next_sibling)
            if (c->parent_ordinal == i && c->chain > 0) {
                uint32_t n = count_checkpoints(sp, i) + c->chain;
                depth = 2 * (i + 1) + 1 > depth ? 2 * (i + 1) + 1 : depth;
                chain = n > chain ? n : chain;
            }
    }
    assert_int_equal(sp->chain, chain);
    assert_int_equal(sp->useful_depth, depth);
}

static void count_children(const struct cs_store *s, const struct span *sp, uint32_t *children,
                           uint32_t *device, uint32_t *host, uint32_t *disk)
{
    for (int kind = 0; kind < 2; kind++)
        for (const struct span *c = kind ? sp->first_checkpoint : sp->first_child; c; c = c->next_sibling) {
            assert_ptr_equal(c->parent, sp);
            assert_int_equal(c->kind, kind ? SPAN_CHECKPOINT : SPAN_OF_PAGES);
            assert_int_equal(c->first_position, sp->first_position + (c->parent_ordinal + 1) * PT);
            ++*children;
            assert_ptr_equal(c->account, sp->account);
            *device += c->n_device + c->n_loading > 0;
            *host += c->n_host > 0;
            *disk += index_needs_parent_on_disk(&s->index, c->kind, c->disk);
        }
}

/* Blocks on the host: each is one span's, and those on their way belong to one that says so. */
static void count_host(struct cs_store *s, const struct span *sp, struct counts *k, bool loading)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sp->n_pages && sp->host; i++) {
        if (sp->host[i] == ARENA_NO_PAGE)
            continue;
        const struct arena_page *p = &s->host.pages[sp->host[i]];
        assert_ptr_equal(p->owner, sp);
        assert_int_equal(p->holders, 1);
        assert_int_equal(p->refs, 0);
        assert_int_equal(k->on_host[sp->host[i]]++, 0);
        assert_true(!p->loading || loading || sp->disk == SPAN_DISK_COPYING);
        n += !p->loading;
    }
    assert_int_equal(sp->n_host, n);
    assert_int_equal(sp->host_pins, 0);
    assert_true(sp->kind == SPAN_OF_PAGES || n == 0 || n == sp->n_pages);
    if (s->index.host)
        assert_true(index_is_on_host(sp) || sp->disk == SPAN_DISK_NONE || sp->disk == SPAN_DISK_QUEUED ||
                    sp->disk == SPAN_DISK_COPYING || sp->disk == SPAN_DISK_DURABLE);
    assert_int_equal(sp->rank[RANK_HOST].ranked,
                     n > 0 && !loading && sp->disk != SPAN_DISK_WRITING && sp->disk != SPAN_DISK_COPYING);
}

static void count_span(struct cs_store *s, const struct span *sp, struct counts *k)
{
    uint32_t device = 0, loading = 0, live = 0, children = 0, device_children = 0, host_children = 0,
             disk_children = 0;
    bool some_unused = false, pages = sp->kind == SPAN_OF_PAGES;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        if (sp->page[i] == ARENA_NO_PAGE)
            continue;
        const struct arena_page *p = &s->arena.pages[sp->page[i]];
        assert_ptr_equal(p->owner, pages ? sp : NULL);
        k->holders[sp->page[i]]++;
        k->holds++;
        if (p->loading)
            loading++;
        else
            device++;
        live += p->refs > 0;
        some_unused |= p->refs == 0;
    }
    count_children(s, sp, &children, &device_children, &host_children, &disk_children);
    assert_int_equal(sp->n_device, device);
    assert_int_equal(sp->n_loading, loading);
    assert_int_equal(sp->n_live, pages ? live : 0);
    assert_int_equal(sp->n_children, children);
    assert_int_equal(sp->n_device_children, device_children);
    assert_int_equal(sp->n_host_children, host_children);
    assert_int_equal(sp->n_disk_children, disk_children);
    uint32_t placed = 0;
    for (const struct cs_sequence *q = sp->placed; q; q = q->placed_next) {
        assert_ptr_equal(q->place, sp);
        assert_true(q->place_ordinal < sp->n_pages);
        placed++;
    }
    assert_int_equal(sp->pins, placed);
    if (pages) {
        check_chain(sp);
    } else {
        /* All or nothing, and never without bytes. */
        assert_true(device == sp->n_pages || loading == sp->n_pages || (device == 0 && loading == 0));
        assert_int_equal(children + sp->pins, 0);
        some_unused = device > 0;
    }
    /* Nothing is kept for nothing. */
    assert_true(device + loading + sp->n_host > 0 || sp->disk != SPAN_DISK_NONE || children > 0 ||
                sp->pins > 0);
    count_host(s, sp, k, loading > 0);
    assert_int_equal(sp->rank[RANK_DEVICE].ranked, some_unused && !index_is_leaving_device(&s->index, sp));
    assert_int_equal(sp->heap_slot != 0, sp->disk != SPAN_DISK_WRITING && sp->disk != SPAN_DISK_COPYING &&
                                             !children && !sp->pins && !loading && !sp->n_live && !sp->kept);
    assert_int_equal(sp->rank[RANK_DISK].ranked,
                     sp->disk == SPAN_DISK_DURABLE && !disk_children && !sp->pins && !loading && !sp->kept);
    for (int t = 0; t < RANK_TIERS; t++)
        k->ranked[t] += sp->rank[t].ranked;
    k->in_heap += sp->heap_slot != 0;
    assert_true(!sp->heap_slot || s->index.heap.items[sp->heap_slot - 1] == sp);
    k->n_spans[sp->account->slot]++;
    k->n_listed[sp->account->slot] += sp->heap_slot != 0;
    assert_true(sp->heap_slot || (!sp->older && !sp->younger));
    assert_null(sp->aside_next);
    k->used[USE_INDEX][sp->account->slot] += index_bytes_of(&s->index, sp) + notes_bytes_of(sp) +
                                             (s->index.over_disk ? TIER_DISK_RECORD_BYTES : 0);
    k->n_writing[sp->account->slot] += sp->disk == SPAN_DISK_WRITING;
    if (sp->disk >= SPAN_DISK_WRITING)
        k->used[RANK_DISK][sp->account->slot] += sp->disk_bytes;
    k->spans++;
    k->checkpoints += !pages && !sp->doomed;
    k->doomed += sp->doomed;
    k->on_disk += sp->disk == SPAN_DISK_DURABLE;
    k->checkpoints_on_disk += sp->disk == SPAN_DISK_DURABLE && !pages;
}

/* What is in the heap; of a node nothing goes before it whose time to look at it has not come. */
static uint64_t count_heap(const struct kinetic_heap *h, const struct kinetic_node *n, uint64_t now)
{
    if (!n)
        return 0;
    const struct kinetic_node *below[] = {n->left, n->right};
    for (int i = 0; i < 2; i++) {
        const struct kinetic_node *c = below[i];
        if (!c)
            continue;
        assert_ptr_equal(c->parent, n);
        assert_true(c->ranked && n->fails <= c->fails);
        assert_true(c->fails <= now || !kinetic_before(c, (const void *)((const char *)c + h->age_at), n,
                                                       (const void *)((const char *)n + h->age_at), now));
    }
    return 1 + count_heap(h, n->left, now) + count_heap(h, n->right, now);
}

static void check_ranks(const struct index *ix, enum rank_tier t, uint64_t n_ranked)
{
    const struct kinetic_heap *all = &ix->ranks[t];
    uint64_t n = 0;
    uint32_t n_heads = 0;
    for (uint32_t i = 0; i < ix->accounts.n_slots; i++) {
        const struct account *a = ix->accounts.slot[i];
        if (!a)
            continue;
        const struct kinetic_member *m = &a->heads[t];
        assert_int_equal(count_heap(&m->heap, m->heap.root, ix->last_tick), m->heap.n);
        assert_int_equal(m->node.ranked, m->heap.n > 0);
        if (m->heap.n > 0) {
            const struct kinetic_node *first = m->heap.root;
            assert_true(m->node.turn == first->turn && m->node.value == first->value &&
                        m->node.fails <= first->fails);
        }
        n += m->heap.n;
        n_heads += m->heap.n > 0;
    }
    assert_int_equal(count_heap(all, all->root, ix->last_tick), n_heads);
    assert_int_equal(all->n, n_heads);
    assert_int_equal(n, n_ranked);
}

/* What each tenant uses, and that nobody has an account for nothing. */
static void check_accounts(const struct cs_store *s, const struct counts *k)
{
    const struct accounts *as = &s->index.accounts;
    enum { TABLE_SHARE = 2 * (2 * sizeof(void *) + sizeof(uint32_t)) }; /* of the tables, not its own */
    uint32_t n = 0, n_over[USES] = {0};
    uint64_t n_sequences = 0;
    for (uint32_t i = 0; i < as->n_slots; i++) {
        const struct account *a = as->slot[i];
        if (!a)
            continue;
        n++;
        n_sequences += a->n_sequences;
        assert_int_equal(a->slot, i);
        assert_ptr_equal(accounts_find(as, &a->id), a);
        assert_int_equal(a->n_spans, k->n_spans[i]);
        assert_int_equal(a->n_writing, k->n_writing[i]);
        for (int t = 0; t < USES; t++) {
            uint64_t own = t == USE_INDEX && a->counted ? accounts_bytes_each() - TABLE_SHARE : 0;
            assert_int_equal(a->used[t], k->used[t][i] + own);
            assert_int_equal(a->over[t], a->used[t] > a->limit[t]);
            n_over[t] += a->over[t];
        }
        uint64_t n_listed = 0;
        for (const struct span *sp = a->oldest; sp; sp = sp->younger, n_listed++) {
            assert_ptr_equal(sp->account, a);
            assert_ptr_equal(sp->younger ? sp->younger->older : a->newest, sp);
        }
        assert_int_equal(n_listed, k->n_listed[i]);
        assert_true(a->n_spans > 0 || a->n_sequences > 0 || a->own.device_bytes > 0 ||
                    a->own.host_bytes > 0 || a->own.disk_bytes > 0);
    }
    assert_int_equal(n, as->n);
    assert_true(n_sequences >= s->n_sequences); /* one that is being opened has its account already */
    assert_int_equal(as->n_free_slots, as->n_slots - n);
    for (int t = 0; t < USES; t++)
        for (const struct account *a = as->over[t]; a; a = a->over_next[t])
            assert_int_not_equal(n_over[t]--, 0);
}

void recount_restores(const struct cs_store *store)
{
    struct cs_store *s = (struct cs_store *)store; /* the lock changes, nothing else does */
    pthread_mutex_lock(&s->lock);
    const struct cs_stats *t = &s->totals;
    uint64_t compared = 0, waiting = 0,
             ended = t->restores_in_time + t->restores_unpredicted + t->restores_deadline +
                     t->restores_failed + t->restores_abandoned;
    for (unsigned i = 0; i < CS_RATIO_BUCKETS; i++)
        compared += t->restores_ratio[i];
    for (const struct cs_sequence *q = s->restoring; q; q = q->restoring_next)
        waiting += q->reads && !q->settled;
    bool every_one = t->restores_disk == ended + waiting, in_time = compared == t->restores_in_time;
    pthread_mutex_unlock(&s->lock);
    assert_true(every_one);
    assert_true(in_time);
}

void recount(struct cs_store *s)
{
    struct counts k = {.holders = calloc(s->arena.n_pages, sizeof *k.holders),
                       .on_host = calloc(s->host.n_pages + 1, 1)};
    assert_true(k.holders && k.on_host);
    pthread_mutex_lock(&s->lock);
    uint32_t n_slots = s->index.accounts.n_slots;
    k.n_spans = calloc(n_slots + 1, sizeof *k.n_spans);
    k.n_writing = calloc(n_slots + 1, sizeof *k.n_writing);
    k.n_listed = calloc(n_slots + 1, sizeof *k.n_listed);
    for (int t = 0; t < USES; t++)
        k.used[t] = calloc(n_slots + 1, sizeof *k.used[t]);
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (struct span *sp = s->index.buckets[b]; sp; sp = sp->hash_next)
            count_span(s, sp, &k);
    assert_int_equal(k.spans, s->index.n_spans);
    assert_int_equal(k.checkpoints, s->index.n_checkpoints);
    assert_int_equal(k.doomed, s->index.n_doomed);
    assert_int_equal(k.on_disk, s->index.n_disk_spans);
    assert_int_equal(k.checkpoints_on_disk, s->index.n_disk_checkpoints);
    assert_int_equal(k.holds, s->arena.n_holds);
    for (int t = 0; t < RANK_TIERS; t++)
        if (t != RANK_HOST || s->index.host)
            check_ranks(&s->index, (enum rank_tier)t, k.ranked[t]);
    assert_int_equal(k.in_heap, s->index.heap.n);
    uint32_t n_free = 0, n_live = 0, n_cached = 0, n_blocks = 0;
    for (uint32_t i = 0; i < s->arena.n_pages; i++) {
        const struct arena_page *p = &s->arena.pages[i];
        assert_int_equal(p->holders, k.holders[i]);
        n_live += p->refs > 0;
        n_cached += p->refs == 0 && p->holders > 0;
        n_free += p->refs == 0 && p->holders == 0;
        n_blocks += p->holders > 0 && !p->owner;
        if (p->refs > 0 || p->holders > 0)
            k.used[RANK_DEVICE][p->payer] += s->stride;
    }
    assert_int_equal(n_free, s->arena.n_free);
    assert_int_equal(n_live, s->arena.n_live);
    assert_int_equal(n_cached, s->arena.n_cached);
    assert_int_equal(n_blocks, s->arena.n_blocks);
    uint32_t n_on_host = 0;
    for (uint32_t i = 0; i < s->host.n_pages; i++) {
        n_on_host += k.on_host[i];
        if (k.on_host[i])
            k.used[RANK_HOST][s->host.pages[i].payer] += s->stride;
    }
    assert_int_equal(s->host.n_pages - s->host.n_free, n_on_host);
    assert_int_equal(s->host.n_holds, n_on_host);
    assert_int_equal(s->host.n_live, 0);
    check_accounts(s, &k);
    pthread_mutex_unlock(&s->lock);
    recount_restores(s);
    free(k.holders);
    free(k.on_host);
    free(k.n_spans);
    free(k.n_writing);
    free(k.n_listed);
    for (int t = 0; t < USES; t++)
        free(k.used[t]);
}

void set_quota(struct cs_store *s, const struct cs_tenant *tenant, struct cs_quota quota)
{
    assert_int_equal(cs_quota_set(s, tenant, &quota), CS_OK);
    time_t start = time(NULL);
    for (bool busy = true; busy;) {
        pthread_mutex_lock(&s->lock);
        busy = s->trimming;
        pthread_mutex_unlock(&s->lock);
        assert_true(time(NULL) - start < 20);
    }
}

void grow_old(struct cs_store *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (struct span *sp = s->index.buckets[b]; sp; sp = sp->hash_next)
            index_touch_locked(&s->index, sp, sp->last_used - 3600000000ull);
    pthread_mutex_unlock(&s->lock);
}

uint32_t longest_chain(struct cs_store *s)
{
    uint32_t longest = 0;
    pthread_mutex_lock(&s->lock);
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (struct span *sp = s->index.buckets[b]; sp; sp = sp->hash_next)
            if (sp->chain > longest)
                longest = sp->chain;
    pthread_mutex_unlock(&s->lock);
    return longest;
}
