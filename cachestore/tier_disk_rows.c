/*
 * The rows of the catalogue when the tier opens: what is on disk becomes records in the table, their chunks
 * are taken, and the store is told of them.
 *
 * Rows are read once, newest first, so where two claim one chunk (a power cut can bring a deleted row back)
 * the highest sequence keeps it. Rows that lose, that do not decode or whose chunks are not in the files are
 * deleted in the same batch that marks this opening, before anything is written. Chunks of a record that the
 * store refuses stay taken until all rows have been read, so that no older row gets them. Times of use lie in
 * another column family in the same order, and pins; they are merged on the way. Rows of checkpoints are kept
 * aside until all spans have been reported: there are few, and they are small.
 *
 * A catalogue that is missing, damaged, cut short while it was made, or another store's is removed and made
 * again from the record headers in the volumes, and everything starts anew. Headers of records that were
 * evicted may still lie there: they come back, which is harmless, because a record is served only after its
 * ids and checksums have matched, and the newest owner of a chunk wins here, too. Notes, use times and pins
 * are lost with the catalogue; quotas too, as far as they cannot be read any more. Where it reads, and its
 * log has lost its end, all of them are taken over.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/list.h"
#include "cachestore/tier_disk_impl.h"
#include "formats/note_row.h"

/* A time of use, newest record first. */
struct used_row {
    struct record_id id;
    int64_t used_unix;
};

/* The row of a checkpoint, until it is reported. */
struct kept_row {
    struct disk_record *rec;
    void *value;
    size_t len;
};

struct load {
    struct tier_disk *t;
    const struct tier_disk_events *events;
    struct used_row *used;
    size_t n_used, used_room, next_used;
    struct record_id *pins; /* newest record first */
    size_t n_pins, pins_room, next_pin;
    struct kept_row *kept;
    size_t n_kept, kept_room;
    struct disk_record *refused; /* out of the table, their chunks still taken */
    struct foreign_paths foreign;
    uint64_t max_sequence, dropped;
};

static void rows_drop(struct load *l, struct record_id id)
{
    catalog_delete(l->t->catalog, CATALOG_RECORD, id);
    catalog_delete(l->t->catalog, CATALOG_USED, id);
    l->dropped++;
}

/* ---- times of use ------------------------------------------------------------------------------------ */

static int used_load(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct used_row u = {.id = row->id};
    if (row->len != sizeof u.used_unix) {
        catalog_delete(l->t->catalog, CATALOG_USED, row->id);
        return CS_OK;
    }
    if (!list_reserve((void **)&l->used, &l->used_room, l->n_used, sizeof *l->used))
        return CS_ENOMEM;
    memcpy(&u.used_unix, row->value, sizeof u.used_unix);
    l->used[l->n_used++] = u;
    return CS_OK;
}

static bool is_newer(struct record_id a, struct record_id b)
{
    return a.sequence != b.sequence ? a.sequence > b.sequence : a.nonce > b.nonce;
}

/* Moves on to `id` (NULL: to the end) and deletes times of records that are not there. */
static void used_skip(struct load *l, const struct record_id *id)
{
    for (; l->next_used < l->n_used; l->next_used++) {
        struct record_id at = l->used[l->next_used].id;
        if (id != NULL && !is_newer(at, *id))
            return;
        catalog_delete(l->t->catalog, CATALOG_USED, at);
    }
}

static int64_t used_take(struct load *l, struct record_id id, int64_t otherwise)
{
    used_skip(l, &id);
    bool found = l->next_used < l->n_used && record_id_equal(l->used[l->next_used].id, id);
    return found ? l->used[l->next_used++].used_unix : otherwise;
}

/* ---- pins -------------------------------------------------------------------------------------------- */

static int pin_load(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    if (!list_reserve((void **)&l->pins, &l->pins_room, l->n_pins, sizeof *l->pins))
        return CS_ENOMEM;
    l->pins[l->n_pins++] = row->id;
    return CS_OK;
}

/* Moves on to `id` (NULL: to the end) and deletes pins of records that are not there. */
static void pins_skip(struct load *l, const struct record_id *id)
{
    for (; l->next_pin < l->n_pins; l->next_pin++) {
        struct record_id at = l->pins[l->next_pin];
        if (id != NULL && !is_newer(at, *id))
            return;
        catalog_delete(l->t->catalog, CATALOG_PINNED, at);
    }
}

static bool pin_take(struct load *l, struct record_id id)
{
    pins_skip(l, &id);
    bool found = l->next_pin < l->n_pins && record_id_equal(l->pins[l->next_pin], id);
    l->next_pin += found;
    return found;
}

/* ---- quotas ------------------------------------------------------------------------------------------ */

static int quota_load(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct cs_quota quota;
    if (!catalog_quota_decode(row->value, row->len, &quota) || catalog_quota_is_none(&quota)) {
        catalog_delete(l->t->catalog, CATALOG_QUOTA, row->id);
        return CS_OK;
    }
    struct cs_tenant tenant = catalog_quota_tenant(row->id);
    return l->events->on_quota == NULL ? CS_OK : l->events->on_quota(l->events->ctx, &tenant, &quota);
}

/* ---- reports ----------------------------------------------------------------------------------------- */

/* n_notes notes at `list`, which was checked. */
static int report_notes(const struct load *l, struct record_id owner, struct record_id id, const void *list,
                        size_t n_notes)
{
    if (n_notes == 0 || l->events->on_notes == NULL)
        return CS_OK;
    struct cs_note *notes = calloc(n_notes, sizeof *notes);
    if (notes == NULL)
        return CS_ENOMEM;
    size_t at = 0;
    for (size_t i = 0; i < n_notes; i++) {
        struct fmt_note f;
        fmt_notes_next(list, &at, &f);
        notes[i] = (struct cs_note){.key = {f.key[0], f.key[1]}, .data = f.data, .len = f.len};
    }
    struct note_record n = {.id = id, .owner = owner, .notes = notes, .n_notes = n_notes};
    int rc = l->events->on_notes(l->events->ctx, &n);
    free(notes);
    return rc;
}

static int report_record(struct load *l, struct disk_record *rec, const struct fmt_record *r)
{
    struct tier_disk *t = l->t;
    struct span_record s = {.id = rec->id,
                            .kind = r->kind == FMT_RECORD_CHECKPOINT ? RECORD_CHECKPOINT : RECORD_SPAN,
                            .key = {r->key[0], r->key[1]},
                            .parent = {r->parent[0], r->parent[1]},
                            .first_position = r->first_position,
                            .n_pages = r->n_pages,
                            .flags = r->flags,
                            .ids = r->ids,
                            .created_unix = r->created_unix,
                            .used_unix = rec->used_unix,
                            .pinned = rec->pinned};
    memcpy(s.tenant.id, r->tenant, sizeof s.tenant.id);
    int rc = l->events->on_span == NULL ? 0 : l->events->on_span(l->events->ctx, &s, rec->bytes);
    if (rc <= 0)
        return rc < 0 ? rc : report_notes(l, rec->id, rec->id, r->notes, r->n_notes);
    rows_drop(l, rec->id);
    tier_record_remove(t, rec);
    rec->list_next = l->refused;
    l->refused = rec;
    return CS_OK;
}

static int report_kept(struct load *l)
{
    int rc = CS_OK;
    for (size_t i = 0; i < l->n_kept && rc == CS_OK; i++) {
        struct fmt_record r;
        if (fmt_record_row_decode(l->kept[i].value, l->kept[i].len, &r) == FMT_RECORD_OK)
            rc = report_record(l, l->kept[i].rec, &r);
    }
    return rc;
}

/* ---- records ----------------------------------------------------------------------------------------- */

static bool is_own(const struct tier_disk *t, const struct fmt_record *r)
{
    return memcmp(r->fingerprint, t->fingerprint, sizeof r->fingerprint) == 0 &&
           r->page_tokens == t->page_tokens && r->page_bytes == t->page_bytes;
}

static int keep_row(struct load *l, struct disk_record *rec, const struct catalog_row *row)
{
    if (!list_reserve((void **)&l->kept, &l->kept_room, l->n_kept, sizeof *l->kept))
        return CS_ENOMEM;
    struct kept_row k = {.rec = rec, .value = malloc(row->len), .len = row->len};
    if (k.value == NULL)
        return CS_ENOMEM;
    memcpy(k.value, row->value, row->len);
    l->kept[l->n_kept++] = k;
    return CS_OK;
}

static int record_load(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct tier_disk *t = l->t;
    struct record_id id = row->id;
    struct fmt_record r;
    if (id.sequence > l->max_sequence)
        l->max_sequence = id.sequence;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK || r.id_nonce != id.nonce ||
        r.id_sequence != id.sequence || memcmp(r.store_uuid, t->store.uuid, sizeof r.store_uuid) != 0 ||
        r.chunk_bytes != t->chunk_bytes) {
        rows_drop(l, id);
        return CS_OK;
    }
    struct disk_record *rec = tier_record_new(t, id, r.kind, r.n_pages, r.header_bytes, r.n_chunks);
    if (rec == NULL || tier_record_set_runs(rec, r.runs, r.n_runs) != CS_OK) {
        tier_record_free(rec);
        return CS_ENOMEM;
    }
    if (!volumes_claim(&t->volumes, rec->runs, rec->n_runs)) {
        tier_record_free(rec);
        rows_drop(l, id);
        return CS_OK;
    }
    if (tier_record_insert(t, rec) != CS_OK) {
        volumes_release(&t->volumes, rec->runs, rec->n_runs);
        tier_record_free(rec);
        return CS_ENOMEM;
    }
    rec->state = REC_DURABLE;
    rec->used_unix = used_take(l, id, r.created_unix);
    rec->pinned = pin_take(l, id);
    rec->foreign = !is_own(t, &r);
    if (rec->foreign)
        return foreign_paths_add(&l->foreign, rec, &r);
    return r.kind == FMT_RECORD_CHECKPOINT ? keep_row(l, rec, row) : report_record(l, rec, &r);
}

static int notes_load(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct tier_disk *t = l->t;
    size_t n_notes;
    if (row->notes.sequence > l->max_sequence)
        l->max_sequence = row->notes.sequence;
    struct disk_record *owner = tier_record_find(t, row->id);
    if (owner == NULL || fmt_notes_check(row->value, row->len, &n_notes) != 0) {
        catalog_delete_notes(t->catalog, row->id, row->notes);
        return CS_OK;
    }
    owner->note_rows = true;
    return owner->foreign ? CS_OK : report_notes(l, row->id, row->notes, row->value, n_notes);
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static void refused_free(struct load *l)
{
    struct disk_record *rec;
    while ((rec = l->refused) != NULL) {
        l->refused = rec->list_next;
        volumes_release(&l->t->volumes, rec->runs, rec->n_runs);
        tier_record_free(rec);
    }
}

static void load_free(struct load *l)
{
    refused_free(l);
    foreign_paths_free(&l->foreign);
    while (l->n_kept > 0)
        free(l->kept[--l->n_kept].value);
    free(l->kept);
    free(l->used);
    free(l->pins);
    *l = (struct load){.t = l->t, .events = l->events};
}

/* CS_ECORRUPT: the catalogue does not read. */
static int rows_read(struct load *l)
{
    struct catalog *c = l->t->catalog;
    int rc = catalog_scan(c, CATALOG_QUOTA, quota_load, l);
    if (rc == CS_OK)
        rc = catalog_scan(c, CATALOG_USED, used_load, l);
    if (rc == CS_OK)
        rc = catalog_scan(c, CATALOG_PINNED, pin_load, l);
    if (rc == CS_OK)
        rc = catalog_scan(c, CATALOG_RECORD, record_load, l);
    if (rc != CS_OK)
        return rc;
    used_skip(l, NULL);
    pins_skip(l, NULL);
    rc = report_kept(l);
    return rc == CS_OK ? catalog_scan(c, CATALOG_NOTES, notes_load, l) : rc;
}

/* Back to where nothing was read. */
static void rows_forget(struct load *l)
{
    struct tier_disk *t = l->t;
    load_free(l);
    for (size_t i = 0; i < t->table_size; i++) {
        struct disk_record *rec;
        while ((rec = t->table[i]) != NULL) {
            volumes_release(&t->volumes, rec->runs, rec->n_runs);
            tier_record_remove(t, rec);
            tier_record_free(rec);
        }
    }
    if (l->events->on_restart != NULL)
        l->events->on_restart(l->events->ctx);
}

static bool is_this_stores(struct tier_disk *t, uint32_t *epoch)
{
    uint8_t uuid[16];
    return t->catalog != NULL && catalog_store_get(t->catalog, uuid, epoch) == CS_OK &&
           memcmp(uuid, t->store.uuid, sizeof uuid) == 0;
}

/* Sums up the table after the events. */
static void count_records(struct tier_disk *t)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->table_size; i++) {
        for (struct disk_record *rec = t->table[i]; rec != NULL; rec = rec->table_next) {
            atomic_fetch_add(tier_record_counter(t, rec), 1);
            rec->counted = !rec->foreign;
            bytes += rec->foreign ? 0 : rec->bytes;
        }
    }
    atomic_store(&t->committed, (int64_t)bytes);
}

int tier_rows_load(struct tier_disk *t, const struct tier_disk_events *events, char *err, size_t err_len)
{
    struct load l = {.t = t, .events = events};
    uint32_t epoch = 0;
    int rc = is_this_stores(t, &epoch) && catalog_missing(t->catalog) == 0 ? rows_read(&l) : CS_ECORRUPT;
    if (rc == CS_ECORRUPT) {
        rows_forget(&l);
        rc = tier_rebuild(t, &epoch, err, err_len);
        if (rc != CS_OK)
            return rc;
        rc = rows_read(&l);
    }
    if ((l.max_sequence >> SEQUENCE_EPOCH_BITS) > epoch)
        epoch = (uint32_t)(l.max_sequence >> SEQUENCE_EPOCH_BITS);
    if (rc == CS_OK && epoch == UINT32_MAX)
        rc = CS_EFORMAT;
    if (rc == CS_OK) {
        epoch++;
        atomic_store(&t->sequence, (uint64_t)epoch << SEQUENCE_EPOCH_BITS);
        catalog_store_put(t->catalog, t->store.uuid, epoch);
        catalog_budget_put(t->catalog, t->budget);
        rc = catalog_commit(t->catalog, true);
    }
    if (rc == CS_OK)
        rc = foreign_order(t, &l.foreign);
    if (rc == CS_OK && l.dropped > 0)
        tier_log(t, CS_LOG_INFO,
                 "disk cache: %llu records dropped at open (chunks missing, reused or not wanted)",
                 (unsigned long long)l.dropped);
    load_free(&l);
    if (rc == CS_OK)
        count_records(t);
    if (rc != CS_OK)
        snprintf(err, err_len, "cannot load the catalogue: %s", cs_strerror(rc));
    /* It read well a moment ago: the store goes on without the tier, as after any failed read. */
    return rc == CS_ECORRUPT ? CS_EIO : rc;
}
