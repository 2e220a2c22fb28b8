/*
 * The seam between the store and its disk tier: the functions of tier_disk.h as a table, so that tests put a
 * tier with faults and a clock of its own in its place. The rules are those of tier_disk.h.
 */
#ifndef ISOTHERM_CACHESTORE_TIER_H
#define ISOTHERM_CACHESTORE_TIER_H

#include "cachestore/tier_disk.h"

/* What an open store can be asked to do from outside. */
struct tier_admin_vtable {
    int (*locate)(struct tier_disk *t, struct record_id id, struct tier_place *out);
    uint32_t (*foreign)(struct tier_disk *t, uint64_t *cursor, struct tier_foreign *out, uint32_t n);
    void (*purge)(struct tier_disk *t, struct record_id id);
    int (*erase)(struct tier_disk *t, struct record_id id, const struct tier_place *place,
                 uint32_t header_bytes);
    int (*pin)(struct tier_disk *t, struct record_id id, bool pinned);
    void (*asked)(const struct tier_disk *t, uint64_t *asked, uint64_t *failed);
    int (*raise_epoch)(struct tier_disk *t);
    int (*dir)(const struct tier_disk *t, uint8_t uuid[16], uint32_t *chunk_bytes);
};

struct tier_vtable {
    const struct tier_admin_vtable *admin; /* NULL: nothing, and the store opens no control socket */
    int (*open)(const struct cs_config *config, const struct tier_disk_events *events, struct tier_disk **out,
                uint8_t secret[16], char *err, size_t err_len);
    uint64_t (*record_bytes)(const struct tier_disk *t, enum record_kind kind, uint32_t n_pages);
    int64_t (*free_bytes)(const struct tier_disk *t);
    struct record_id (*next_id)(struct tier_disk *t);
    void (*write)(struct tier_disk *t, struct tier_write *w);
    int (*write_notes)(struct tier_disk *t, const struct note_record *n);
    void (*read)(struct tier_disk *t, struct tier_read *const *reads, size_t n);
    void (*delete_span)(struct tier_disk *t, struct record_id id);
    void (*delete_notes)(struct tier_disk *t, struct record_id owner, struct record_id id);
    void (*touch)(struct tier_disk *t, struct record_id id, int64_t used_unix);
    int (*quota)(struct tier_disk *t, const struct cs_tenant *tenant, const struct cs_quota *quota);
    void (*settle)(struct tier_disk *t, uint32_t deadline_ms);
    void (*kick)(struct tier_disk *t);
    uint64_t (*pending_bytes)(const struct tier_disk *t);
    uint64_t (*memory_bytes)(const struct tier_disk *t);
    void (*stats)(const struct tier_disk *t, struct cs_stats *io_part);
    void (*latencies)(const struct tier_disk *t, struct cs_latencies *io_part);
    void (*close)(struct tier_disk *t, uint32_t deadline_ms);
};

extern const struct tier_vtable tier_disk_vtable;

#endif
