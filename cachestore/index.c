/* The index (see index.h). */
#include "cachestore/index.h"
#include "cachestore/key.h"
#include "cachestore/policy/evict.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIN_BUCKETS           64
#define MAX_GONE              4096
#define BYTES_PER_BUCKET      512 /* about what a span costs, so that a full index has about one a bucket */
#define GONE_SHARE            16  /* at most a sixteenth of the budget */
#define MICROS_PER_SECOND     1000000ull
#define NANOS_PER_MICROSECOND 1000

static size_t alloc_bytes(const struct index *ix, enum span_kind kind, uint32_t n_pages)
{
    size_t tables = ix->host ? 2 : 1;
    return sizeof(struct span) + (index_n_ids(ix, kind, n_pages) + tables * n_pages) * sizeof(uint32_t);
}

static uint64_t bytes_of(const struct index *ix, enum span_kind kind, uint32_t n_pages)
{
    return slots_bytes(alloc_bytes(ix, kind, n_pages)) + sizeof(struct span *);
}

uint64_t index_span_bytes(const struct index *ix, uint32_t n_pages)
{
    return bytes_of(ix, SPAN_OF_PAGES, n_pages);
}

uint64_t index_checkpoint_bytes(const struct index *ix, uint32_t n_blocks)
{
    return bytes_of(ix, SPAN_CHECKPOINT, n_blocks);
}

uint64_t index_bytes_of(const struct index *ix, const struct span *sp)
{
    return bytes_of(ix, sp->kind, sp->n_pages);
}

void index_charge_locked(struct index *ix, struct account *a, uint64_t bytes)
{
    ix->bytes += bytes;
    accounts_charge(&ix->accounts, a, USE_INDEX, bytes);
}

void index_discharge_locked(struct index *ix, struct account *a, uint64_t bytes)
{
    ix->bytes -= bytes;
    accounts_discharge(&ix->accounts, a, USE_INDEX, bytes);
}

/* The disk tier's own memory of a record, which has its place in the budget from when the span is made. */
static uint64_t bytes_of_record(const struct index *ix)
{
    return ix->over_disk ? TIER_DISK_RECORD_BYTES : 0;
}

static void pages_changed(struct index *ix, enum rank_tier tier, uint32_t payer, int n_pages)
{
    struct account *a = ix->accounts.slot[payer];
    if (n_pages > 0)
        accounts_charge(&ix->accounts, a, tier, (uint64_t)n_pages * ix->arena->stride);
    else
        accounts_discharge(&ix->accounts, a, tier, (uint64_t)-n_pages * ix->arena->stride);
}

static void device_pages_changed(void *ctx, uint32_t payer, int n_pages)
{
    pages_changed(ctx, RANK_DEVICE, payer, n_pages);
}

static void host_pages_changed(void *ctx, uint32_t payer, int n_pages)
{
    pages_changed(ctx, RANK_HOST, payer, n_pages);
}

int index_open(struct index *ix, struct arena *arena, struct arena *host, uint32_t page_tokens,
               uint64_t budget, const struct cs_quota *quota)
{
    *ix = (struct index){.arena = arena,
                         .host = host,
                         .page_tokens = page_tokens,
                         .budget = budget,
                         .costs = worth_costs_of(0, 0)};
    uint64_t n_buckets = MIN_BUCKETS;
    while (n_buckets * BYTES_PER_BUCKET < budget)
        n_buckets *= 2;
    /* Large tables are mapped, not touched: they cost memory as they fill. */
    ix->buckets = calloc(n_buckets, sizeof(struct span *));
    ix->bucket_mask = n_buckets - 1;
    uint64_t n_gone = budget / GONE_SHARE / sizeof(struct gone);
    ix->n_gone = n_gone > MAX_GONE ? MAX_GONE : (uint32_t)n_gone + 1;
    ix->gone = calloc(ix->n_gone, sizeof(struct gone));
    ix->bytes = n_buckets * sizeof(struct span *) + ix->n_gone * sizeof(struct gone);
    uint64_t max_spans = budget / sizeof(struct span) + 1;
    ix->heap_capacity = max_spans > UINT32_MAX - 1 ? UINT32_MAX - 1 : (uint32_t)max_spans;
    ix->heap.items = malloc(ix->heap_capacity * sizeof(struct span *));
    bool ok = ix->buckets && ix->gone && ix->heap.items;
    ranks_open(ix->ranks);
    if (!ok || accounts_open(&ix->accounts, quota) != CS_OK) {
        index_close(ix);
        return CS_ENOMEM;
    }
    arena->ledger = device_pages_changed;
    arena->ledger_ctx = ix;
    if (host) {
        host->ledger = host_pages_changed;
        host->ledger_ctx = ix;
    }
    return CS_OK;
}

void index_close(struct index *ix)
{
    if (ix->buckets)
        for (uint64_t b = 0; b <= ix->bucket_mask; b++)
            while (ix->buckets[b]) {
                struct span *sp = ix->buckets[b];
                ix->buckets[b] = sp->hash_next;
                slots_give(&ix->slots, sp, sp->block_bytes);
            }
    slots_end(&ix->slots);
    free(ix->buckets);
    free(ix->gone);
    free((void *)ix->heap.items);
    accounts_close(&ix->accounts);
    *ix = (struct index){0};
}

/* ---- the heap ---------------------------------------------------------------------------------------- */

static bool before(const struct span *a, const struct span *b)
{
    return evict_oldest_before(&a->age, &b->age);
}

static void heap_put(struct heap *heap, uint32_t at, struct span *sp)
{
    heap->items[at] = sp;
    sp->heap_slot = at + 1;
}

/* Moves the item at `at` to where it belongs. */
static void heap_fix(struct heap *heap, uint32_t at)
{
    struct span *sp = heap->items[at];
    while (at > 0 && before(sp, heap->items[(at - 1) / 2])) {
        heap_put(heap, at, heap->items[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->n)
            break;
        if (child + 1 < heap->n && before(heap->items[child + 1], heap->items[child]))
            child++;
        if (!before(heap->items[child], sp))
            break;
        heap_put(heap, at, heap->items[child]);
        at = child;
    }
    heap_put(heap, at, sp);
}

static void heap_set(struct heap *heap, struct span *sp, bool candidate)
{
    uint32_t slot = sp->heap_slot;
    if (candidate) {
        if (!slot) {
            heap_put(heap, heap->n, sp);
            slot = ++heap->n;
        }
        heap_fix(heap, slot - 1);
    } else if (slot) {
        sp->heap_slot = 0;
        struct span *last = heap->items[--heap->n];
        if (last != sp) {
            heap_put(heap, slot - 1, last);
            heap_fix(heap, slot - 1);
        }
    }
}

/* Into its account's list, or out of it. By age as far as that is seen at either end: who comes has mostly
 * just been used, or, behind the last child of its own, is older than all. */
static void age_set(struct span *sp, bool candidate)
{
    struct account *a = sp->account;
    bool listed = sp->older || sp->younger || a->oldest == sp;
    if (listed && candidate && (!sp->younger || sp->last_used <= sp->younger->last_used))
        return;
    if (listed) {
        *(sp->older ? &sp->older->younger : &a->oldest) = sp->younger;
        *(sp->younger ? &sp->younger->older : &a->newest) = sp->older;
        sp->older = sp->younger = NULL;
    }
    if (!candidate)
        return;
    if (a->oldest && sp->last_used < a->oldest->last_used) {
        sp->younger = a->oldest;
        a->oldest->older = sp;
        a->oldest = sp;
        return;
    }
    sp->older = a->newest;
    *(a->newest ? &a->newest->younger : &a->oldest) = sp;
    a->newest = sp;
}

static void forgettable_set(struct index *ix, struct span *sp, bool candidate)
{
    heap_set(&ix->heap, sp, candidate);
    age_set(sp, candidate);
}

struct span_record index_record_of(const struct span *sp)
{
    return (struct span_record){.id = sp->id,
                                .kind = index_record_kind(sp),
                                .key = sp->key,
                                .parent = sp->parent ? sp->parent_key : (struct cs_key){0},
                                .tenant = sp->account->id,
                                .first_position = sp->first_position,
                                .n_pages = sp->n_pages,
                                .flags = (uint32_t)sp->written_as,
                                .ids = sp->ids};
}

enum host_turn index_host_turn(const struct index *ix, const struct span *sp)
{
    if (sp->kind == SPAN_OF_PAGES && ranks_page_is_dead(ix, sp, 0) && !index_waits(sp))
        return HOST_TURN_DEAD;
    if (sp->disk == SPAN_DISK_DURABLE)
        return HOST_TURN_DURABLE;
    return index_waits(sp) ? HOST_TURN_WAITING : HOST_TURN_REST;
}

void index_requeue_locked(struct index *ix, struct span *sp)
{
    bool writing = sp->disk == SPAN_DISK_WRITING || sp->disk == SPAN_DISK_COPYING;
    if (ix->loading)
        return;
    ranks_update_locked(ix, sp);
    forgettable_set(ix, sp,
                    !writing && sp->n_children == 0 && sp->pins == 0 && sp->n_loading == 0 &&
                        sp->n_live == 0 && !sp->kept);
}

struct span *index_first_locked(const struct index *ix, const struct account *of)
{
    if (of)
        return of->oldest;
    return ix->heap.n ? ix->heap.items[0] : NULL;
}

/* ---- accounts ---------------------------------------------------------------------------------------- */

struct account *index_account_locked(struct index *ix, const struct cs_tenant *tenant)
{
    return accounts_get(&ix->accounts, tenant);
}

void index_account_settle_locked(struct index *ix, struct account *a)
{
    accounts_settle(&ix->accounts, a);
}

/* ---- the tree ---------------------------------------------------------------------------------------- */

/* Memory whose ids and page table are where they will be. */
static struct span *span_new(struct index *ix, enum span_kind kind, uint32_t n_pages)
{
    size_t bytes = alloc_bytes(ix, kind, n_pages);
    struct span *sp = slots_take(&ix->slots, bytes);
    if (sp) {
        sp->n_pages = n_pages;
        sp->block_bytes = bytes;
        sp->ids = (uint32_t *)(sp + 1);
    }
    return sp;
}

/* sp: of span_new, its ids filled in. */
static void add_locked(struct index *ix, struct span *sp, const struct span *like)
{
    struct span *parent = like->parent;
    size_t block_bytes = sp->block_bytes;
    *sp = *like;
    sp->block_bytes = block_bytes;
    accounts_add_span(&ix->accounts, sp->account);
    sp->lost = CS_MISS_EVICTED;
    if (parent)
        sp->first_position = parent->first_position + (sp->parent_ordinal + 1) * ix->page_tokens;
    sp->ids = (uint32_t *)(sp + 1);
    sp->page = sp->ids + index_n_ids(ix, sp->kind, sp->n_pages);
    sp->host = ix->host ? sp->page + sp->n_pages : NULL;
    for (uint32_t i = 0; i < sp->n_pages; i++) {
        sp->page[i] = ARENA_NO_PAGE;
        if (sp->host)
            sp->host[i] = ARENA_NO_PAGE;
    }

    struct span **bucket = &ix->buckets[sp->key.lo & ix->bucket_mask];
    sp->hash_next = *bucket;
    *bucket = sp;
    if (parent) {
        struct span **first = sp->kind == SPAN_OF_PAGES ? &parent->first_child : &parent->first_checkpoint;
        sp->next_sibling = *first;
        if (*first)
            (*first)->previous_sibling = sp;
        *first = sp;
        parent->n_children++;
        index_requeue_locked(ix, parent);
    }
    ix->n_spans++;
    index_charge_locked(ix, sp->account, bytes_of(ix, sp->kind, sp->n_pages));
    accounts_charge(&ix->accounts, sp->account, USE_INDEX, bytes_of_record(ix));
}

struct span *index_span_new(struct index *ix, uint32_t n_pages)
{
    return span_new(ix, SPAN_OF_PAGES, n_pages);
}

void index_span_free(struct index *ix, struct span *made)
{
    if (made)
        slots_give(&ix->slots, made, made->block_bytes);
}

void index_add_made_locked(struct index *ix, struct span *made, struct span *parent, uint32_t parent_ordinal,
                           struct cs_key parent_key, struct cs_key key, struct account *account)
{
    const struct span like = {.kind = SPAN_OF_PAGES,
                              .parent = parent,
                              .parent_ordinal = parent_ordinal,
                              .key = key,
                              .parent_key = parent_key,
                              .account = account,
                              .n_pages = made->n_pages};
    add_locked(ix, made, &like);
}

struct span *index_add_locked(struct index *ix, struct span *parent, uint32_t parent_ordinal,
                              struct cs_key parent_key, struct cs_key key, struct account *account,
                              const uint32_t *ids, uint32_t n_pages)
{
    struct span *sp = index_span_new(ix, n_pages);
    if (!sp)
        return NULL;
    memcpy(sp->ids, ids, (size_t)n_pages * ix->page_tokens * sizeof *ids);
    index_add_made_locked(ix, sp, parent, parent_ordinal, parent_key, key, account);
    return sp;
}

struct span *index_add_checkpoint_locked(struct index *ix, struct span *parent, uint32_t ordinal,
                                         struct cs_key page_key, uint32_t n_blocks,
                                         enum cs_boundary_kind boundary)
{
    const struct span like = {.kind = SPAN_CHECKPOINT,
                              .boundary = boundary,
                              .parent = parent,
                              .parent_ordinal = ordinal,
                              .key = key_checkpoint(page_key),
                              .parent_key = page_key,
                              .account = parent->account,
                              .n_pages = n_blocks};
    struct span *sp = span_new(ix, SPAN_CHECKPOINT, n_blocks);
    if (!sp)
        return NULL;
    memcpy(sp->ids, parent->ids + (size_t)ordinal * ix->page_tokens, ix->page_tokens * sizeof *sp->ids);
    add_locked(ix, sp, &like);
    ix->n_checkpoints++;
    ranks_checkpoints_changed_locked(ix, parent, ordinal);
    struct span *shallower = ranks_checkpoint_before(sp); /* the end of the path no longer */
    if (shallower)
        ranks_update_locked(ix, shallower);
    return sp;
}

struct span *index_checkpoint_locked(const struct span *sp, uint32_t ordinal)
{
    struct span *c = sp->first_checkpoint;
    while (c && (c->parent_ordinal != ordinal || c->doomed))
        c = c->next_sibling;
    return c;
}

void index_doom_locked(struct index *ix, struct span *checkpoint)
{
    if (checkpoint->doomed)
        return;
    ix->n_checkpoints--;
    ix->n_doomed++;
    checkpoint->doomed = true;
    ranks_checkpoints_changed_locked(ix, checkpoint->parent, checkpoint->parent_ordinal);
}

void index_remove_locked(struct index *ix, struct span *sp)
{
    struct gone *gone = &ix->gone[sp->key.hi % ix->n_gone];
    gone->key = sp->key;
    gone->why = sp->lost;

    forgettable_set(ix, sp, false);
    ranks_remove_locked(ix, sp);
    struct span **at = &ix->buckets[sp->key.lo & ix->bucket_mask];
    while (*at != sp)
        at = &(*at)->hash_next;
    *at = sp->hash_next;
    struct span *parent = sp->parent;
    if (parent) {
        if (sp->previous_sibling)
            sp->previous_sibling->next_sibling = sp->next_sibling;
        else if (sp->kind == SPAN_OF_PAGES)
            parent->first_child = sp->next_sibling;
        else
            parent->first_checkpoint = sp->next_sibling;
        if (sp->next_sibling)
            sp->next_sibling->previous_sibling = sp->previous_sibling;
        parent->n_children--;
        if (sp->kind == SPAN_CHECKPOINT && !sp->doomed) {
            ix->n_checkpoints--;
            ranks_checkpoints_changed_locked(ix, parent, sp->parent_ordinal);
        }
        index_requeue_locked(ix, parent);
    }
    ix->n_spans--;
    ix->n_doomed -= sp->doomed;
    index_discharge_locked(ix, sp->account, bytes_of(ix, sp->kind, sp->n_pages));
    accounts_discharge(&ix->accounts, sp->account, USE_INDEX, bytes_of_record(ix));
    accounts_remove_span(&ix->accounts, sp->account);
    slots_give(&ix->slots, sp, sp->block_bytes);
}

struct span *index_find_locked(const struct index *ix, const struct span *parent, uint32_t parent_ordinal,
                               struct cs_key key, const struct cs_tenant *tenant, const uint32_t *ids)
{
    for (struct span *sp = ix->buckets[key.lo & ix->bucket_mask]; sp; sp = sp->hash_next)
        if (key_equal(sp->key, key) && sp->parent == parent &&
            (!parent || sp->parent_ordinal == parent_ordinal) &&
            memcmp(&sp->account->id, tenant, sizeof *tenant) == 0 &&
            memcmp(sp->ids, ids, ix->page_tokens * sizeof *ids) == 0)
            return sp;
    return NULL;
}

enum cs_miss index_gone_locked(const struct index *ix, struct cs_key key)
{
    const struct gone *gone = &ix->gone[key.hi % ix->n_gone];
    return key_equal(gone->key, key) ? gone->why : CS_MISS_NONE;
}

uint64_t index_now(const struct index *ix)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t now = (uint64_t)t.tv_sec * MICROS_PER_SECOND + (uint64_t)t.tv_nsec / NANOS_PER_MICROSECOND;
    return now > ix->last_tick ? now : ix->last_tick;
}

uint64_t index_tick_locked(struct index *ix)
{
    /* A clock that was set back must not make what is used now older than what was used before. */
    uint64_t now = index_now(ix);
    ix->last_tick = now > ix->last_tick ? now : ix->last_tick + 1;
    return ix->last_tick;
}

void index_touch_locked(struct index *ix, struct span *sp, uint64_t tick)
{
    ranks_used_locked(ix, sp, tick);
    index_requeue_locked(ix, sp);
}

void index_pin_locked(struct index *ix, struct span *sp)
{
    if (sp->pins++ == 0)
        index_requeue_locked(ix, sp);
}

void index_unpin_locked(struct index *ix, struct span *sp)
{
    if (--sp->pins == 0)
        index_requeue_locked(ix, sp);
}
