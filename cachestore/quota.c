/*
 * Quotas of tenants, as callers see them: set, told, and the account that a sequence belongs to. Who makes
 * room for whom is decided in room.c.
 */
#include "cachestore/policy/quota.h"
#include "cachestore/store.h"

static const struct cs_tenant anonymous;

struct account *quota_enter(struct cs_store *s, const struct cs_tenant *tenant)
{
    pthread_mutex_lock(&s->lock);
    struct account *a = index_account_locked(&s->index, tenant);
    if (a)
        a->n_sequences++;
    pthread_mutex_unlock(&s->lock);
    return a;
}

void quota_leave(struct cs_store *s, struct account *account)
{
    pthread_mutex_lock(&s->lock);
    account->n_sequences--;
    index_account_settle_locked(&s->index, account);
    pthread_mutex_unlock(&s->lock);
}

void quota_shares_set_locked(struct cs_store *s)
{
    struct accounts *as = &s->index.accounts;
    uint64_t tables = as->budget[USE_INDEX] > 0 ? 0 : index_memory(&s->index); /* nothing is stored yet */
    as->budget[RANK_DEVICE] = s->arena.n_pages * s->stride;
    as->budget[RANK_HOST] = s->host.n_pages * s->stride;
    as->budget[RANK_DISK] = s->disk_budget;
    if (tables > 0)
        as->budget[USE_INDEX] = s->index.budget - tables;
    accounts_shares_changed(as);
}

/* Limits of its own make an account part of the index's memory, once. */
static bool room_for_limits_locked(struct cs_store *s, const struct cs_tenant *tenant,
                                   const struct cs_quota *quota)
{
    const struct account *a = accounts_find(&s->index.accounts, tenant);
    bool none = quota->device_bytes == 0 && quota->host_bytes == 0 && quota->disk_bytes == 0;
    return none || (a && a->counted) || room_for_index_locked(s, accounts_bytes_each(), NULL);
}

int cs_quota_set(struct cs_store *s, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    int rc = CS_OK;
    if (!tenant)
        tenant = &anonymous;
    pthread_mutex_lock(&s->lock);
    bool room = room_for_limits_locked(s, tenant, quota);
    struct account *a = room ? index_account_locked(&s->index, tenant) : NULL;
    if (!a)
        rc = room ? CS_ENOMEM : CS_EFULL;
    else if (s->disk && s->tier->quota)
        rc = s->tier->quota(s->disk, tenant, quota);
    if (rc == CS_OK)
        accounts_set_quota(&s->index.accounts, a, quota);
    if (a)
        index_account_settle_locked(&s->index, a);
    s->trimming = true;
    pthread_cond_signal(&s->keeper_wake);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int cs_quota_get(struct cs_store *s, const struct cs_tenant *tenant, struct cs_tenant_use *out)
{
    int rc = CS_OK;
    if (!tenant)
        tenant = &anonymous;
    pthread_mutex_lock(&s->lock);
    const struct account *a = accounts_find(&s->index.accounts, tenant);
    const struct cs_quota *of_all = &s->index.accounts.of_all;
    if (a) {
        accounts_describe(a, out);
    } else {
        *out = (struct cs_tenant_use){.tenant = *tenant,
                                      .limit = {quota_limit(0, of_all->device_bytes),
                                                quota_limit(0, of_all->host_bytes),
                                                quota_limit(0, of_all->disk_bytes)}};
        rc = CS_ENOTFOUND;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int cs_tenants_next(struct cs_store *s, uint64_t *cursor, struct cs_tenant_use *out)
{
    int found = 0;
    pthread_mutex_lock(&s->lock);
    const struct accounts *as = &s->index.accounts;
    while (!found && *cursor < as->n_slots) {
        const struct account *a = as->slot[(*cursor)++];
        if (a) {
            accounts_describe(a, out);
            found = 1;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
