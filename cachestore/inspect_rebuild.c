/*
 * The catalogue made again from the record headers in the volumes, of a store that nobody has open.
 *
 * The new one is made beside the old one and takes its place when it is whole and synced, so that whatever
 * fails before, a full file system above all, changes nothing. What headers do not have comes from the old
 * one as far as that reads: notes, times of use and pins of records that are still there, and quotas. Both
 * must fit into the store's budget: where they would not, chunks that no record has are given back to the
 * file system, and records that had been evicted before are not brought back.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdio.h>
#include <string.h>

#include "cachestore/catalog_carry.h"
#include "cachestore/inspect_impl.h"

#define CATALOG_SHARE (8ull << 20)

struct rebuild {
    struct cs_inspect *in;
    struct headers headers;
    struct carry carry;
    uint64_t budget;    /* 0: unknown */
    bool old_is_broken; /* or another store's */
};

static int header_note(void *ctx, const struct fmt_record *r, const void *bytes)
{
    struct rebuild *b = ctx;
    (void)bytes;
    return headers_add(&b->headers, r);
}

/* Another store's says nothing about this one. */
static void old_open(struct rebuild *b)
{
    struct cs_inspect *in = b->in;
    struct catalog *old = in->catalog;
    char problem[256];
    uint8_t uuid[16];
    uint32_t epoch;
    in->catalog = NULL;
    if (old == NULL)
        b->old_is_broken =
            catalog_open(in->dir_fd, true, CATALOG_SHARE, &old, problem, sizeof problem) == CS_ECORRUPT;
    if (old != NULL &&
        (catalog_store_get(old, uuid, &epoch) != CS_OK || memcmp(uuid, in->store.uuid, sizeof uuid) != 0)) {
        catalog_close(old);
        old = NULL;
        b->old_is_broken = true;
    }
    if (old != NULL && catalog_budget_get(old, &b->budget) != CS_OK)
        b->budget = 0;
    b->carry.old = old;
}

static int header_to_row(void *ctx, const struct fmt_record *r, const void *bytes)
{
    struct rebuild *b = ctx;
    return carry_row(&b->carry, r, bytes);
}

static int rows_make(struct rebuild *b)
{
    int rc = inspect_scan_headers(b->in, header_to_row, b);
    if (rc == CS_OK)
        rc = carry_others(&b->carry);
    if (rc == CS_OK) {
        /* Last: a catalogue without this row is made again. */
        uint64_t newest = b->headers.n > 0 ? b->headers.all[0].id.sequence : 0;
        catalog_store_put(b->carry.made, b->in->store.uuid, (uint32_t)(newest >> SEQUENCE_EPOCH_BITS));
        if (b->budget > 0)
            catalog_budget_put(b->carry.made, b->budget);
        rc = catalog_commit(b->carry.made, true);
    }
    return rc;
}

/* What the store may take: its budget, as far as that is known. Otherwise the least that it can be, for
 * volumes leave the catalogue its share; and what there is. */
static uint64_t most_bytes(const struct rebuild *b)
{
    uint64_t volumes = volumes_file_bytes(&b->in->volumes), old = catalog_disk_bytes(b->in->dir_fd),
             share = tier_catalog_share_least(volumes), there = volumes + old + FMT_RECORD_ALIGN;
    uint64_t most = b->budget > 0 ? b->budget : volumes + share + FMT_RECORD_ALIGN;
    return most > there ? most : there;
}

/* Makes room for both within that: of chunks that nobody has, and of records that had been evicted before. An
 * old one that does not open goes first, where it must. */
static int room_make(struct rebuild *b, char *err, size_t err_len)
{
    struct cs_inspect *in = b->in;
    uint64_t old = catalog_disk_bytes(in->dir_fd), most = most_bytes(b),
             others = catalog_new_bytes(b->carry.n_rows, b->carry.bytes) - catalog_new_bytes(0, 0);
    uint64_t need = volumes_file_bytes(&in->volumes) + headers_catalog_bytes(&b->headers) + others + old +
                    FMT_RECORD_ALIGN;
    if (need <= most)
        return CS_OK;
    if (b->old_is_broken && catalog_remove(in->dir_fd) == 0)
        old = 0;
    headers_hold(&b->carry.damaged, &in->volumes);
    bool fits = old + others + FMT_RECORD_ALIGN < most &&
                headers_fit(&b->headers, &in->volumes, most - old - others - FMT_RECORD_ALIGN);
    headers_release(&b->carry.damaged, &in->volumes);
    if (fits)
        return CS_OK;
    snprintf(err, err_len,
             "the store's budget has no room for a second catalogue: %llu bytes are missing; evict as much",
             (unsigned long long)(need - most));
    return CS_EIO;
}

static int catalog_make(struct rebuild *b, char *err, size_t err_len)
{
    struct cs_inspect *in = b->in;
    in->volumes.scanned = NULL; /* from here on it goes through */
    uint64_t bytes = catalog_reserve_bytes(CATALOG_SHARE) + catalog_disk_bytes(in->dir_fd);
    if (!catalog_has_room(in->dir_fd, bytes)) {
        snprintf(err, err_len, "the file system has no room for a second catalogue");
        return CS_EIO;
    }
    old_open(b);
    int rc = carry_look(&b->carry);
    if (rc == CS_OK)
        rc = room_make(b, err, err_len);
    else
        snprintf(err, err_len, "%s", cs_strerror(rc));
    if (rc == CS_OK)
        rc = catalog_open_new(in->dir_fd, CATALOG_SHARE, &b->carry.made, err, err_len);
    if (b->carry.made != NULL) {
        rc = rows_make(b);
        if (rc < 0)
            snprintf(err, err_len, "cannot write the catalogue: %s", cs_strerror(rc));
    }
    catalog_close(b->carry.made);
    catalog_close(b->carry.old);
    int replaced = rc == CS_OK ? catalog_replace(in->dir_fd) : 0;
    if (replaced < 0) {
        snprintf(err, err_len, "cannot put the new catalogue in its place: %s", strerror(-replaced));
        return CS_EIO; /* whichever is there, the next open finds it */
    }
    if (rc != CS_OK)
        (void)catalog_remove_new(in->dir_fd);
    return rc == CS_OK || rc == CS_ENOMEM ? rc : CS_EIO;
}

int cs_inspect_rebuild(struct cs_inspect *in, struct cs_rebuilt *out, char *err, size_t err_len)
{
    struct rebuild b = {.in = in};
    b.carry.headers = &b.headers;
    memset(out, 0, sizeof *out);
    if (in->live != NULL) {
        snprintf(err, err_len, "the store is in use");
        return CS_EBUSY;
    }
    int rc = inspect_scan_headers(in, header_note, &b);
    if (rc < 0)
        snprintf(err, err_len, "cannot read the volumes: %s", cs_strerror(rc));
    if (rc == CS_OK) {
        headers_claim(&b.headers, &in->volumes);
        rc = catalog_make(&b, err, err_len);
    }
    for (size_t i = 0; i < b.headers.n; i++)
        *(b.headers.all[i].kept ? &out->records : &out->dropped) += 1;
    headers_free(&b.headers);
    carry_free(&b.carry);
    return rc;
}
