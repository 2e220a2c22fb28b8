/* Accounts of tenants (see accounts.h). */
#include "cachestore/accounts.h"
#include "cachestore/list.h"
#include "cachestore/policy/quota.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS  16
#define FIRST_SLOTS    64                                            /* of list_reserve */
#define SLOT_BYTES     (sizeof(struct account *) + sizeof(uint32_t)) /* it, and its number when it is free */
#define TABLE_SHARE    (2 * (SLOT_BYTES + sizeof(struct account *))) /* of an account: tables double */
#define ALLOC_OVERHEAD 16

static uint64_t limit_of(const struct cs_quota *q, enum rank_tier tier)
{
    return tier == RANK_DEVICE ? q->device_bytes : tier == RANK_HOST ? q->host_bytes : q->disk_bytes;
}

static void set_limits(const struct accounts *as, struct account *a)
{
    for (int t = 0; t < RANK_TIERS; t++)
        a->limit[t] =
            quota_limit(limit_of(&a->own, (enum rank_tier)t), limit_of(&as->of_all, (enum rank_tier)t));
    a->limit[USE_INDEX] = quota_share(a->limit, as->budget, RANK_TIERS, as->budget[USE_INDEX]);
}

/* Into the list of those over their limit, or out of it. */
static void look_over(struct accounts *as, struct account *a, unsigned t)
{
    bool over = quota_excess(a->used[t], 0, a->limit[t]) > 0;
    if (over == a->over[t])
        return;
    a->over[t] = over;
    if (over) {
        a->over_previous[t] = NULL;
        a->over_next[t] = as->over[t];
        if (a->over_next[t])
            a->over_next[t]->over_previous[t] = a;
        as->over[t] = a;
        return;
    }
    if (a->over_previous[t])
        a->over_previous[t]->over_next[t] = a->over_next[t];
    else
        as->over[t] = a->over_next[t];
    if (a->over_next[t])
        a->over_next[t]->over_previous[t] = a->over_previous[t];
}

int accounts_open(struct accounts *as, const struct cs_quota *of_all)
{
    *as = (struct accounts){.of_all = *of_all};
    as->buckets = calloc(FIRST_BUCKETS, sizeof(struct account *));
    if (!as->buckets)
        return CS_ENOMEM;
    as->bucket_mask = FIRST_BUCKETS - 1;
    as->bytes = FIRST_BUCKETS * sizeof(struct account *) + FIRST_SLOTS * SLOT_BYTES;
    return CS_OK;
}

void accounts_close(struct accounts *as)
{
    for (uint32_t i = 0; i < as->n_slots; i++)
        free(as->slot[i]);
    free((void *)as->slot);
    free(as->free_slot);
    free((void *)as->buckets);
    *as = (struct accounts){0};
}

/* Without its share of the tables. */
static uint64_t account_bytes(void)
{
    return sizeof(struct account) + ALLOC_OVERHEAD;
}

uint64_t accounts_bytes_each(void)
{
    return account_bytes() + TABLE_SHARE;
}

void accounts_shares_changed(struct accounts *as)
{
    for (uint32_t i = 0; i < as->n_slots; i++)
        if (as->slot[i]) {
            set_limits(as, as->slot[i]);
            look_over(as, as->slot[i], USE_INDEX);
        }
}

/* Keys of tenants may be of anybody's choice, but whoever may choose them could as well send prompts. */
static uint32_t bucket_of(const struct accounts *as, const struct cs_tenant *id)
{
    uint64_t w[2];
    memcpy(w, id->id, sizeof w);
    uint64_t h = (w[0] ^ (w[1] * 0x9e3779b97f4a7c15ull)) * 0xff51afd7ed558ccdull;
    return (uint32_t)(h >> 32) & as->bucket_mask;
}

struct account *accounts_find(const struct accounts *as, const struct cs_tenant *id)
{
    struct account *a = as->buckets[bucket_of(as, id)];
    while (a && memcmp(&a->id, id, sizeof *id) != 0)
        a = a->hash_next;
    return a;
}

/* All of them into empty buckets. */
static void rehash(struct accounts *as)
{
    for (uint32_t i = 0; i < as->n_slots; i++) {
        struct account *a = as->slot[i];
        if (!a)
            continue;
        struct account **at = &as->buckets[bucket_of(as, &a->id)];
        a->hash_next = *at;
        *at = a;
    }
}

/* A larger table; without memory the old one serves on. */
static void grow_buckets(struct accounts *as)
{
    uint32_t n = 2 * (as->bucket_mask + 1);
    struct account **buckets = calloc(n, sizeof(struct account *));
    if (!buckets)
        return;
    free((void *)as->buckets);
    as->buckets = buckets;
    as->bucket_mask = n - 1;
    rehash(as);
}

void accounts_pack(struct accounts *as)
{
    uint32_t n_buckets = FIRST_BUCKETS, n = 0;
    size_t capacity = FIRST_SLOTS;
    while (capacity < as->n)
        capacity *= 2;
    while (n_buckets < as->n)
        n_buckets *= 2;
    if (capacity >= as->slots_capacity)
        return;
    struct account **slot = calloc(capacity, sizeof(struct account *)),
                   **buckets = calloc(n_buckets, sizeof(struct account *));
    uint32_t *numbers = calloc(capacity, sizeof *numbers);
    if (!slot || !buckets || !numbers) {
        free((void *)slot);
        free((void *)buckets);
        free(numbers);
        return;
    }
    for (uint32_t i = 0; i < as->n_slots; i++)
        if (as->slot[i]) {
            slot[n] = as->slot[i];
            slot[n]->slot = n;
            n++;
        }
    free((void *)as->slot);
    free((void *)as->buckets);
    free(as->free_slot);
    as->slot = slot;
    as->buckets = buckets;
    as->free_slot = numbers;
    as->slots_capacity = as->free_slots_capacity = capacity;
    as->n_slots = n;
    as->n_free_slots = 0;
    as->bucket_mask = n_buckets - 1;
    rehash(as);
    as->bytes -= (as->n_counted_most - as->n_counted) * TABLE_SHARE;
    as->n_counted_most = as->n_counted;
}

static bool free_slot(struct accounts *as, uint32_t *slot)
{
    if (as->n_free_slots > 0) {
        *slot = as->free_slot[--as->n_free_slots];
        return true;
    }
    /* With room for its number, so that giving it back cannot fail. */
    if (!list_reserve((void **)&as->slot, &as->slots_capacity, as->n_slots, sizeof(struct account *)) ||
        !list_reserve((void **)&as->free_slot, &as->free_slots_capacity, as->n_slots, sizeof(uint32_t)))
        return false;
    *slot = as->n_slots++;
    as->slot[*slot] = NULL;
    return true;
}

struct account *accounts_get(struct accounts *as, const struct cs_tenant *id)
{
    struct account *a = accounts_find(as, id);
    uint32_t slot = 0;
    if (a)
        return a;
    a = calloc(1, sizeof *a);
    if (!a || !free_slot(as, &slot)) {
        free(a);
        return NULL;
    }
    ranks_open_account(a->heads);
    if (as->n > as->bucket_mask)
        grow_buckets(as);
    a->id = *id;
    a->slot = slot;
    set_limits(as, a);
    as->slot[slot] = a;
    struct account **at = &as->buckets[bucket_of(as, id)];
    a->hash_next = *at;
    *at = a;
    as->n++;
    return a;
}

static bool has_own(const struct account *a)
{
    return a->own.device_bytes > 0 || a->own.host_bytes > 0 || a->own.disk_bytes > 0;
}

static void count(struct accounts *as, struct account *a)
{
    bool counts = a->n_spans > 0 || has_own(a);
    if (counts && !a->counted) {
        as->bytes += account_bytes();
        accounts_charge(as, a, USE_INDEX, account_bytes());
        if (++as->n_counted > as->n_counted_most) {
            as->n_counted_most = as->n_counted;
            as->bytes += TABLE_SHARE;
        }
    } else if (!counts && a->counted) {
        as->bytes -= account_bytes();
        accounts_discharge(as, a, USE_INDEX, account_bytes());
        as->n_counted--;
    }
    a->counted = counts;
}

uint64_t accounts_bytes_with_last_span(const struct account *a)
{
    return a->n_spans == 1 && !has_own(a) ? account_bytes() : 0;
}

void accounts_add_span(struct accounts *as, struct account *a)
{
    a->n_spans++;
    count(as, a);
}

void accounts_remove_span(struct accounts *as, struct account *a)
{
    a->n_spans--;
    count(as, a);
    accounts_settle(as, a);
}

void accounts_settle(struct accounts *as, struct account *a)
{
    if (a->n_spans > 0 || a->n_sequences > 0 || has_own(a))
        return;
    for (int use = 0; use < USES; use++)
        if (a->used[use] > 0)
            return;
    struct account **at = &as->buckets[bucket_of(as, &a->id)];
    while (*at != a)
        at = &(*at)->hash_next;
    *at = a->hash_next;
    as->slot[a->slot] = NULL;
    as->free_slot[as->n_free_slots++] = a->slot;
    as->n--;
    free(a);
}

void accounts_set_quota(struct accounts *as, struct account *a, const struct cs_quota *own)
{
    a->own = *own;
    count(as, a);
    set_limits(as, a);
    for (unsigned use = 0; use < USES; use++)
        look_over(as, a, use);
}

void accounts_charge(struct accounts *as, struct account *a, unsigned use, uint64_t bytes)
{
    a->used[use] += bytes;
    look_over(as, a, use);
}

void accounts_discharge(struct accounts *as, struct account *a, unsigned use, uint64_t bytes)
{
    a->used[use] -= bytes;
    look_over(as, a, use);
}

void accounts_describe(const struct account *a, struct cs_tenant_use *out)
{
    *out = (struct cs_tenant_use){
        .tenant = a->id,
        .own = a->own,
        .limit = {a->limit[RANK_DEVICE], a->limit[RANK_HOST], a->limit[RANK_DISK]},
        .used = {a->used[RANK_DEVICE], a->used[RANK_HOST], a->used[RANK_DISK]},
        .records = a->n_spans,
        .evicted = a->evicted,
        .dropped = a->dropped,
    };
}
