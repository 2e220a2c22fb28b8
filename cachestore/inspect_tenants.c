/*
 * What each tenant has in a store, and may have. Tenants are few beside records, and those of one path lie
 * together, so the last one found is looked at first and the rest one after the other.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"

struct tenants {
    struct cs_tenant_use *use;
    size_t n, room, last;
};

static struct cs_tenant_use *use_of(struct tenants *t, const struct cs_tenant *tenant)
{
    if (t->last < t->n && memcmp(&t->use[t->last].tenant, tenant, sizeof *tenant) == 0)
        return &t->use[t->last];
    for (t->last = 0; t->last < t->n; t->last++)
        if (memcmp(&t->use[t->last].tenant, tenant, sizeof *tenant) == 0)
            return &t->use[t->last];
    if (!list_reserve((void **)&t->use, &t->room, t->n, sizeof *t->use))
        return NULL;
    struct cs_tenant_use *u = &t->use[t->n++];
    *u = (struct cs_tenant_use){.tenant = *tenant, .limit = {CS_QUOTA_NONE, CS_QUOTA_NONE, CS_QUOTA_NONE}};
    return u;
}

static int add_record(void *ctx, const struct cs_span_info *span)
{
    struct cs_tenant_use *u = use_of(ctx, &span->tenant);
    if (u == NULL)
        return CS_ENOMEM;
    u->records++;
    u->used.disk_bytes += span->disk_bytes;
    return CS_OK;
}

static int add_quota(void *ctx, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    struct cs_tenant_use *u = use_of(ctx, tenant);
    if (u == NULL)
        return CS_ENOMEM;
    u->own = *quota;
    if (quota->device_bytes != 0)
        u->limit.device_bytes = quota->device_bytes;
    if (quota->host_bytes != 0)
        u->limit.host_bytes = quota->host_bytes;
    if (quota->disk_bytes != 0)
        u->limit.disk_bytes = quota->disk_bytes;
    return CS_OK;
}

int cs_inspect_tenants(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_tenant_use *use),
                       void *ctx)
{
    if (in->live != NULL)
        return inspect_live_tenants(in, fn, ctx);
    struct tenants t = {0};
    int rc = cs_inspect_spans(in, add_record, &t);
    if (rc == CS_OK)
        rc = cs_inspect_quotas(in, add_quota, &t);
    for (size_t i = 0; i < t.n && rc == CS_OK; i++)
        rc = fn(ctx, &t.use[i]);
    free(t.use);
    return rc;
}
