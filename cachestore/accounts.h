/*
 * Accounts: what each tenant has in the tiers, what it may have, and its candidates for leaving them.
 *
 * An account is there while a span or a sequence of its tenant is, or while the tenant has limits of its own.
 * With spans or limits it is counted in the index's budget, and its share of the tables with it; otherwise
 * both are part of its sequences' memory. So nobody can make many for nothing, and nothing is counted for
 * which no room was made. Tables shrink only while a store opens, and what was counted for them stays.
 *
 * Used bytes are exact at any time: each page of an arena belongs to the tenant it was taken for until it is
 * free, a record from the moment it is handed to the disk. Who uses more than the limit of a tier is in the
 * list of that tier.
 *
 * The index is one more use: its spans and their notes, what the disk tier keeps for each, and the account
 * itself. What a tenant may have of it follows from its limits: of the index's budget the share that they are
 * of all tiers together, which is how the budget comes about (cs_config.index_bytes).
 *
 * Threads: everything is called with the store's lock held.
 */
#ifndef ISOTHERM_CACHESTORE_ACCOUNTS_H
#define ISOTHERM_CACHESTORE_ACCOUNTS_H

#include "cachestore/cachestore.h"
#include "cachestore/ranks.h"

/* What an account counts: bytes in each tier, and of the index. */
enum { USE_INDEX = RANK_TIERS, USES };

struct account {
    struct cs_tenant id;
    struct account *hash_next;
    uint32_t slot;
    uint32_t n_spans, n_sequences, n_writing; /* n_writing: records on their way to the disk */
    struct cs_quota own;
    uint64_t used[USES], limit[USES]; /* bytes; limit: QUOTA_NONE where there is none */
    uint64_t evicted, dropped;        /* for its quota */
    bool counted;                     /* in accounts.bytes */
    bool over[USES];
    struct account *over_next[USES], *over_previous[USES];
    uint32_t passed_over;         /* the last pass of writeback.c or host.c that found it waiting */
    struct span *oldest, *newest; /* of those who may be forgotten, about by age (index.c) */
    struct kinetic_member heads[RANK_TIERS];
};

struct accounts {
    struct account **slot; /* NULL: free */
    uint32_t *free_slot;   /* their numbers */
    uint32_t n_slots, n_free_slots;
    size_t slots_capacity, free_slots_capacity;
    struct account **buckets;
    uint32_t bucket_mask;
    uint32_t n, n_counted, n_counted_most; /* all; now, and ever, in the index's budget */
    struct cs_quota of_all;
    uint64_t budget[USES];      /* of all together */
    struct account *over[USES]; /* those above their limit */
    uint64_t bytes;             /* of memory: those with spans or limits of their own, and tables */
};

/* of_all: limits of those who have none of their own. CS_OK or CS_ENOMEM. */
int accounts_open(struct accounts *as, const struct cs_quota *of_all);
void accounts_close(struct accounts *as);
/* Makes the tables as small as they can be, while nothing is taken from the arenas. Without memory they stay.
 */
void accounts_pack(struct accounts *as);
/* Call when `budget` was set: bytes of each tier, and of the index what is not tables. */
void accounts_shares_changed(struct accounts *as);
/* What one more takes at most. */
uint64_t accounts_bytes_each(void);
/* What would be free without the account's last span; 0: it has others, or limits. */
uint64_t accounts_bytes_with_last_span(const struct account *a);
struct account *accounts_find(const struct accounts *as, const struct cs_tenant *id);
/* The tenant's account, made if there is none; it stays at least until accounts_settle. NULL: no memory. */
struct account *accounts_get(struct accounts *as, const struct cs_tenant *id);
/* One more of its spans, or one less; then the account is counted, or freed, as it should be. */
void accounts_add_span(struct accounts *as, struct account *a);
void accounts_remove_span(struct accounts *as, struct account *a);
/* Frees the account if nothing needs it. */
void accounts_settle(struct accounts *as, struct account *a);
void accounts_set_quota(struct accounts *as, struct account *a, const struct cs_quota *own);
/* use: a tier (enum rank_tier), or USE_INDEX. */
void accounts_charge(struct accounts *as, struct account *a, unsigned use, uint64_t bytes);
void accounts_discharge(struct accounts *as, struct account *a, unsigned use, uint64_t bytes);
void accounts_describe(const struct account *a, struct cs_tenant_use *out);

#endif
