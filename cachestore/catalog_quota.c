/* Rows of quotas (see catalog.h). Bytes only: no catalogue is needed for them. */
#include "cachestore/catalog.h"

#include <string.h>

struct record_id catalog_quota_id(const struct cs_tenant *tenant)
{
    struct record_id id;
    _Static_assert(sizeof id == sizeof *tenant, "a tenant's id takes a record id's place");
    memcpy(&id, tenant, sizeof id);
    return id;
}

struct cs_tenant catalog_quota_tenant(struct record_id id)
{
    struct cs_tenant tenant;
    memcpy(&tenant, &id, sizeof tenant);
    return tenant;
}

void catalog_quota_encode(const struct cs_quota *quota, uint8_t value[CATALOG_QUOTA_BYTES])
{
    const uint64_t n[3] = {quota->device_bytes, quota->host_bytes, quota->disk_bytes};
    for (int i = 0; i < CATALOG_QUOTA_BYTES; i++)
        value[i] = (uint8_t)(n[i / 8] >> (8 * (i % 8)));
}

bool catalog_quota_decode(const void *value, size_t len, struct cs_quota *quota)
{
    uint64_t n[3] = {0};
    const uint8_t *bytes = value;
    if (len != CATALOG_QUOTA_BYTES)
        return false;
    for (int i = 0; i < CATALOG_QUOTA_BYTES; i++)
        n[i / 8] |= (uint64_t)bytes[i] << (8 * (i % 8));
    *quota = (struct cs_quota){n[0], n[1], n[2]};
    return true;
}

bool catalog_quota_is_none(const struct cs_quota *quota)
{
    return quota->device_bytes == 0 && quota->host_bytes == 0 && quota->disk_bytes == 0;
}
