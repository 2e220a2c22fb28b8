/*
 * What each tenant has in a store, and may have. Those of one path lie together, so the last one found is
 * looked at first, and the others through a table of open addressing.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"
#include "formats/hash.h"

enum { FIRST_PLACES = 64 };

struct tenants {
    struct cs_tenant_use *use;
    size_t n, room, last;
    size_t *place, n_places; /* 1 + which of them, 0: free; n_places: a power of two, more than twice n */
};

/* Where the tenant is, or would be. */
static size_t *place_of(const struct tenants *t, const struct cs_tenant *tenant)
{
    size_t at = (size_t)XXH3_64bits(tenant, sizeof *tenant) & (t->n_places - 1);
    while (t->place[at] > 0 && memcmp(&t->use[t->place[at] - 1].tenant, tenant, sizeof *tenant) != 0)
        at = (at + 1) & (t->n_places - 1);
    return &t->place[at];
}

static bool grow(struct tenants *t)
{
    size_t n_places = t->n_places > 0 ? 2 * t->n_places : FIRST_PLACES,
           *larger = calloc(n_places, sizeof *larger);
    if (larger == NULL)
        return false;
    free(t->place);
    t->place = larger;
    t->n_places = n_places;
    for (size_t i = 0; i < t->n; i++)
        *place_of(t, &t->use[i].tenant) = i + 1;
    return true;
}

static struct cs_tenant_use *use_of(struct tenants *t, const struct cs_tenant *tenant)
{
    if (t->last < t->n && memcmp(&t->use[t->last].tenant, tenant, sizeof *tenant) == 0)
        return &t->use[t->last];
    if (2 * (t->n + 1) >= t->n_places && !grow(t))
        return NULL;
    size_t *place = place_of(t, tenant);
    if (*place > 0) {
        t->last = *place - 1;
        return &t->use[t->last];
    }
    if (!list_reserve((void **)&t->use, &t->room, t->n, sizeof *t->use))
        return NULL;
    t->last = t->n++;
    *place = t->n;
    struct cs_tenant_use *u = &t->use[t->last];
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
    free(t.place);
    return rc;
}
