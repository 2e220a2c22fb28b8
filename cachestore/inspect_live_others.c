/*
 * Records of other models in a store that a process has open: it keeps them and knows where they lie, and all
 * else is in their headers.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "cachestore/control_wire.h"
#include "cachestore/inspect_impl.h"
#include "cachestore/list.h"

struct others {
    struct control_other *found;
    size_t n, room;
};

static int note_other(void *ctx, const struct control_other *o)
{
    struct others *all = ctx;
    if (!list_reserve((void **)&all->found, &all->room, all->n, sizeof *all->found))
        return CS_ENOMEM;
    all->found[all->n++] = *o;
    return CS_OK;
}

static int compare_others(const void *a, const void *b)
{
    return memcmp(((const struct control_other *)a)->record, ((const struct control_other *)b)->record,
                  sizeof((const struct control_other *)a)->record);
}

/* One of them becomes an entry by its header; one whose header is another's by now has gone. */
static int other_add(struct cs_inspect *in, const struct control_other *o)
{
    char why[160];
    uint8_t *header;
    struct fmt_record r;
    const struct entry wanted = {.foreign = true,
                                 .first_run = {o->volume, o->first_chunk, 1},
                                 .info.record_id = {o->record[0], o->record[1]}};
    int rc = inspect_header_read(in, &wanted, &header, &r, why, sizeof why);
    if (rc == CS_ECORRUPT || rc == CS_EIO)
        return CS_OK;
    if (rc == CS_OK)
        rc = inspect_entry_add(in, &r, header);
    if (rc == CS_OK) {
        struct entry *e = &in->entries[in->n - 1];
        e->foreign = true;
        e->info.used_unix = o->used_unix;
        free(header);
    }
    return rc;
}

/* Records of other models, which the process keeps and knows nothing of. */
int inspect_others_list(struct cs_inspect *in)
{
    struct others all = {.n = 0};
    int rc = inspect_live_others(in, note_other, &all);
    if (rc == CS_OK && all.n > 0)
        qsort(all.found, all.n, sizeof *all.found, compare_others);
    for (size_t i = 0; i < all.n && rc == CS_OK; i++)
        if (i == 0 || compare_others(&all.found[i - 1], &all.found[i]) != 0)
            rc = other_add(in, &all.found[i]);
    free(all.found);
    return rc;
}

/* ... and who is whose parent. */
int inspect_others_link(struct cs_inspect *in)
{
    char why[160];
    uint8_t *header;
    struct fmt_record r;
    for (uint32_t i = 0; i < in->n; i++) {
        if (!in->entries[i].foreign)
            continue;
        int rc = inspect_header_read(in, &in->entries[i], &header, &r, why, sizeof why);
        if (rc == CS_ENOMEM)
            return rc;
        if (rc != CS_OK)
            continue;
        (void)inspect_header_adopts(in, &r, header);
        free(header);
    }
    return CS_OK;
}
