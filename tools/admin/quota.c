/* cachestore-admin quota: what each tenant has in each tier, and may have. */
#include <inttypes.h>
#include <string.h>

#include "tools/admin/admin.h"

struct listing {
    const struct options *o;
    const struct cs_tenant *only; /* NULL: all */
    bool live;
    uint64_t n;
};

/* Like "1.0 MiB of 2.0 MiB". */
static const char *share_text(uint64_t used, uint64_t limit, bool known, char out[72])
{
    char a[32], b[32];
    if (!known)
        snprintf(out, 72, "-");
    else if (limit == CS_QUOTA_NONE)
        snprintf(out, 72, "%s", bytes_text(used, a));
    else
        snprintf(out, 72, "%s of %s", bytes_text(used, a), bytes_text(limit, b));
    if (!known && limit != CS_QUOTA_NONE)
        snprintf(out, 72, "- of %s", bytes_text(limit, b));
    return out;
}

static void print_limit(const char *name, uint64_t own, uint64_t limit)
{
    if (limit == CS_QUOTA_NONE)
        printf(",\"%s_limit\":null", name);
    else
        printf(",\"%s_limit\":%" PRIu64, name, limit);
    printf(",\"%s_own\":%s", name, own != 0 ? "true" : "false");
}

static int print_use(void *ctx, const struct cs_tenant_use *u)
{
    static const struct cs_tenant anonymous;
    struct listing *l = ctx;
    char hex[33], a[72], b[72], c[72];
    if (l->only != NULL && memcmp(l->only, &u->tenant, sizeof u->tenant) != 0)
        return 0;
    hex_text(u->tenant.id, sizeof u->tenant.id, hex);
    if (l->o->json) {
        printf("%s\n{\"tenant\":\"%s\",\"device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64
               ",\"disk_bytes\":%" PRIu64 ",\"records\":%" PRIu64,
               l->n++ > 0 ? "," : "", hex, u->used.device_bytes, u->used.host_bytes, u->used.disk_bytes,
               u->records);
        print_limit("device", u->own.device_bytes, u->limit.device_bytes);
        print_limit("host", u->own.host_bytes, u->limit.host_bytes);
        print_limit("disk", u->own.disk_bytes, u->limit.disk_bytes);
        printf(",\"evicted\":%" PRIu64 ",\"dropped\":%" PRIu64 "}", u->evicted, u->dropped);
        return 0;
    }
    if (l->n++ == 0)
        printf("%-32s %8s  %-23s %-23s %s\n", "tenant", "records", "device", "host", "disk");
    printf("%-32s %8" PRIu64 "  %-23s %-23s %s\n",
           memcmp(&u->tenant, &anonymous, sizeof anonymous) == 0 ? "anonymous" : hex, u->records,
           share_text(u->used.device_bytes, u->limit.device_bytes, l->live, a),
           share_text(u->used.host_bytes, u->limit.host_bytes, l->live, b),
           share_text(u->used.disk_bytes, u->limit.disk_bytes, true, c));
    return 0;
}

static int list(struct cs_inspect *in, const struct options *o, const struct cs_tenant *only)
{
    struct listing l = {.o = o, .only = only, .live = is_live(in)};
    if (o->json)
        printf("[");
    int rc = cs_inspect_tenants(in, print_use, &l);
    if (o->json)
        printf("%s]\n", l.n > 0 ? "\n" : "");
    else if (rc == CS_OK && l.n == 0 && only == NULL)
        printf("nothing stored\n");
    if (rc != CS_OK)
        return complain("cannot list what is stored: %s", cs_strerror(rc));
    if (l.n > 0 || only == NULL)
        return EXIT_FINE;
    complain("nothing is stored of the tenant '%s', and it has no limits of its own", o->word);
    return EXIT_NOT_FOUND;
}

/* The limits that the tenant has of its own now. */
struct own {
    struct cs_tenant tenant;
    struct cs_quota quota;
};

static int see_own(void *ctx, const struct cs_tenant_use *u)
{
    struct own *own = ctx;
    if (memcmp(&u->tenant, &own->tenant, sizeof own->tenant) == 0)
        own->quota = u->own;
    return 0;
}

int run_quota(struct cs_inspect *in, const struct options *o)
{
    struct own own = {.quota = {0, 0, 0}};
    char err[256] = "", a[72], b[72], c[72];
    bool sets = o->none || o->device_given || o->host_given || o->disk_given;
    if (o->word == NULL)
        return sets ? complain("quota needs the tenant that is meant") : list(in, o, NULL);
    if (o->none && (o->device_given || o->host_given || o->disk_given))
        return complain("--none goes with no other limit");
    int code = find_tenant(in, o->word, &own.tenant);
    if (code != EXIT_FINE)
        return code;
    if (!sets)
        return list(in, o, &own.tenant);
    int rc = cs_inspect_tenants(in, see_own, &own);
    if (o->none)
        own.quota = (struct cs_quota){0, 0, 0};
    if (o->device_given)
        own.quota.device_bytes = o->device_bytes;
    if (o->host_given)
        own.quota.host_bytes = o->host_bytes;
    if (o->disk_given)
        own.quota.disk_bytes = o->disk_bytes;
    if (rc == CS_OK)
        rc = cs_inspect_quota_set(in, &own.tenant, &own.quota, err, sizeof err);
    if (rc != CS_OK)
        return complain("%s", err[0] != 0 ? err : cs_strerror(rc));
    const struct cs_quota *q = &own.quota;
    if (o->json)
        printf("{\"device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",\"disk_bytes\":%" PRIu64 "}\n",
               q->device_bytes, q->host_bytes, q->disk_bytes);
    else
        printf("quota      device %s, host %s, disk %s\n",
               q->device_bytes == 0 ? "as all" : bytes_text(q->device_bytes, a),
               q->host_bytes == 0 ? "as all" : bytes_text(q->host_bytes, b),
               q->disk_bytes == 0 ? "as all" : bytes_text(q->disk_bytes, c));
    return EXIT_FINE;
}
