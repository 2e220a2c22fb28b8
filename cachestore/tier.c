/* The disk tier as a table (see tier.h). */
#include "cachestore/tier.h"

static const struct tier_admin_vtable admin = {
    .locate = tier_disk_locate,
    .foreign = tier_disk_foreign,
    .purge = tier_disk_purge,
    .erase = tier_disk_erase,
    .pin = tier_disk_pin,
    .asked = tier_disk_asked,
    .raise_epoch = tier_disk_raise_epoch,
    .dir = tier_disk_dir,
};

const struct tier_vtable tier_disk_vtable = {
    .admin = &admin,
    .open = tier_disk_open,
    .record_bytes = tier_disk_record_bytes,
    .free_bytes = tier_disk_free_bytes,
    .next_id = tier_disk_next_id,
    .write = tier_disk_write,
    .write_notes = tier_disk_write_notes,
    .read = tier_disk_read,
    .delete_span = tier_disk_delete,
    .delete_notes = tier_disk_delete_notes,
    .touch = tier_disk_touch,
    .quota = tier_disk_quota,
    .settle = tier_disk_settle,
    .kick = tier_disk_kick,
    .pending_bytes = tier_disk_pending_bytes,
    .memory_bytes = tier_disk_memory_bytes,
    .stats = tier_disk_stats,
    .latencies = tier_disk_latencies,
    .close = tier_disk_close,
};
