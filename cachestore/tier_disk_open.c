/*
 * Opening the disk tier: the directory's lock, the STORE file, volumes, catalogue, ring, then the rows.
 *
 * Records claim their chunks newest first, so where two rows claim one chunk (a power cut can bring
 * a deleted row back) the highest sequence keeps it. Rows that lose, that do not decode or whose chunks are
 * not in the files are deleted in the same batch that marks this opening, before anything is written.
 *
 * A catalogue that is missing, damaged, cut short while it was made, or another store's is removed and made
 * again from the record headers in the volumes. Headers of records that were evicted may still lie there:
 * they come back, which is harmless, because a record is served only after its ids and checksums have
 * matched, and the newest owner of a chunk wins here, too. Notes and use times are lost with the catalogue.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cachestore/tier_disk_impl.h"
#include "formats/note_row.h"

/* ---- rows -------------------------------------------------------------------------------------------- */

static bool is_own(const struct tier_disk *t, const struct fmt_record *r)
{
    return memcmp(r->fingerprint, t->fingerprint, sizeof r->fingerprint) == 0 &&
           r->page_tokens == t->page_tokens && r->page_bytes == t->page_bytes;
}

struct load {
    struct tier_disk *t;
    uint64_t max_sequence, dropped;
    const struct tier_disk_events *events;
    struct disk_record **records; /* rows that decode, oldest first, before they claim their chunks */
    size_t n_records, room;
    struct foreign_paths foreign;
};

static int load_span(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct record_id id = row->id;
    struct tier_disk *t = l->t;
    struct fmt_record r;
    if (id.sequence > l->max_sequence)
        l->max_sequence = id.sequence;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK || r.id_nonce != id.nonce ||
        r.id_sequence != id.sequence || memcmp(r.store_uuid, t->store.uuid, sizeof r.store_uuid) != 0 ||
        r.chunk_bytes != t->chunk_bytes) {
        catalog_delete(t->catalog, CATALOG_SPAN, id);
        l->dropped++;
        return CS_OK;
    }
    if (l->n_records == l->room) {
        size_t room = l->room == 0 ? 1024 : 2 * l->room;
        struct disk_record **larger = realloc(l->records, room * sizeof(struct disk_record *));
        if (larger == NULL)
            return CS_ENOMEM;
        l->records = larger;
        l->room = room;
    }
    struct disk_record *rec = tier_record_new(t, &r);
    if (rec == NULL || tier_record_set_runs(rec, r.runs, r.n_runs) != CS_OK) {
        tier_record_free(rec);
        return CS_ENOMEM;
    }
    rec->state = REC_DURABLE;
    rec->used_unix = r.created_unix;
    rec->foreign = !is_own(t, &r);
    l->records[l->n_records++] = rec;
    return CS_OK;
}

/* Newest first, records take their chunks and go into the table; those that come too late lose their rows. */
static int load_claim(struct load *l)
{
    struct tier_disk *t = l->t;
    while (l->n_records > 0) {
        struct disk_record *rec = l->records[--l->n_records];
        if (!volumes_claim(&t->volumes, rec->runs, rec->n_runs)) {
            catalog_delete(t->catalog, CATALOG_SPAN, rec->id);
            l->dropped++;
            tier_record_free(rec);
        } else if (tier_record_insert(t, rec) != CS_OK) {
            volumes_release(&t->volumes, rec->runs, rec->n_runs);
            tier_record_free(rec);
            return CS_ENOMEM;
        }
    }
    return CS_OK;
}

/* Rows are read forwards, which RocksDB reads ahead for. */
static int load_spans(struct load *l)
{
    int rc = catalog_scan(l->t->catalog, CATALOG_SPAN, false, load_span, l);
    if (rc == CS_OK)
        rc = load_claim(l);
    while (l->n_records > 0)
        tier_record_free(l->records[--l->n_records]);
    free(l->records);
    l->records = NULL;
    l->room = 0;
    return rc;
}

static int load_used(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct disk_record *rec = tier_record_find(l->t, row->id);
    if (rec != NULL && row->len == sizeof rec->used_unix)
        memcpy(&rec->used_unix, row->value, sizeof rec->used_unix);
    else
        catalog_delete(l->t->catalog, CATALOG_USED, row->id);
    return CS_OK;
}

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

static int report_span(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct tier_disk *t = l->t;
    struct record_id id = row->id;
    struct disk_record *rec = tier_record_find(t, id);
    struct fmt_record r;
    if (rec == NULL || fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK)
        return CS_OK;
    if (rec->foreign)
        return foreign_paths_add(&l->foreign, rec, &r);
    struct span_record s = {.id = id,
                            .key = {r.key[0], r.key[1]},
                            .parent = {r.parent[0], r.parent[1]},
                            .first_position = r.first_position,
                            .n_pages = r.n_pages,
                            .ids = r.ids,
                            .created_unix = r.created_unix,
                            .used_unix = rec->used_unix};
    memcpy(s.tenant.id, r.tenant, sizeof s.tenant.id);
    if (l->events->on_span == NULL || l->events->on_span(l->events->ctx, &s, rec->bytes) == 0)
        return report_notes(l, id, id, r.notes, r.n_notes);
    catalog_delete(t->catalog, CATALOG_SPAN, id);
    catalog_delete(t->catalog, CATALOG_USED, id);
    volumes_release(&t->volumes, rec->runs, rec->n_runs);
    tier_record_remove(t, rec);
    tier_record_free(rec);
    l->dropped++;
    return CS_OK;
}

static int report_note_row(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    struct tier_disk *t = l->t;
    size_t n_notes;
    struct disk_record *owner = tier_record_find(t, row->id);
    if (owner == NULL || fmt_notes_check(row->value, row->len, &n_notes) != 0) {
        catalog_delete_notes(t->catalog, row->id, row->notes);
        return CS_OK;
    }
    owner->note_rows = true;
    return owner->foreign ? CS_OK : report_notes(l, row->id, row->notes, row->value, n_notes);
}

static void forget_rows(struct tier_disk *t)
{
    for (size_t i = 0; i < t->table_size; i++) {
        struct disk_record *rec;
        while ((rec = t->table[i]) != NULL) {
            volumes_release(&t->volumes, rec->runs, rec->n_runs);
            tier_record_remove(t, rec);
            tier_record_free(rec);
        }
    }
}

/* The event comes later; what does not read must be known before anybody was told anything. */
static int load_note(void *ctx, const struct catalog_row *row)
{
    struct load *l = ctx;
    if (row->notes.sequence > l->max_sequence)
        l->max_sequence = row->notes.sequence;
    return CS_OK;
}

/* Reads all rows into the table and the bitmaps. CS_ECORRUPT: rebuild. */
static int load_rows(struct tier_disk *t, struct load *l, uint32_t *epoch)
{
    uint8_t uuid[16];
    int rc = catalog_store_get(t->catalog, uuid, epoch);
    if (rc != CS_OK || memcmp(uuid, t->store.uuid, sizeof uuid) != 0)
        return CS_ECORRUPT;
    rc = load_spans(l);
    if (rc == CS_OK)
        rc = catalog_scan(t->catalog, CATALOG_USED, false, load_used, l);
    if (rc == CS_OK)
        rc = catalog_scan(t->catalog, CATALOG_NOTES, false, load_note, l);
    if (rc == CS_ECORRUPT) {
        forget_rows(t);
        catalog_commit(t->catalog, false); /* empties the batch; the catalogue goes anyway */
    }
    return rc;
}

/* Sums up the table after the events. */
static void count_records(struct tier_disk *t)
{
    size_t n_foreign = 0;
    uint64_t spans = 0, bytes = 0;
    for (size_t i = 0; i < t->table_size; i++) {
        for (struct disk_record *rec = t->table[i]; rec != NULL; rec = rec->table_next) {
            n_foreign += rec->foreign;
            spans += !rec->foreign;
            rec->counted = !rec->foreign;
            bytes += rec->foreign ? 0 : rec->bytes;
        }
    }
    atomic_store(&t->committed, (int64_t)bytes);
    atomic_store(&t->stats.spans, spans);
    atomic_store(&t->stats.records_foreign, n_foreign);
}

static int load(struct tier_disk *t, const struct tier_disk_events *events, char *err, size_t err_len)
{
    struct load l = {.t = t, .events = events};
    uint32_t epoch = 0;
    int rc = t->catalog == NULL ? CS_ECORRUPT : load_rows(t, &l, &epoch);
    if (rc == CS_ECORRUPT) {
        rc = tier_rebuild(t, &epoch, err, err_len);
        if (rc != CS_OK)
            return rc;
        rc = load_spans(&l);
    }
    /* The events come after all rows have been read once: a catalogue that fails does so before anybody was
     * told. */
    if (rc == CS_OK)
        rc = catalog_scan(t->catalog, CATALOG_SPAN, true, report_span, &l);
    if (rc == CS_OK)
        rc = catalog_scan(t->catalog, CATALOG_NOTES, false, report_note_row, &l);
    if ((l.max_sequence >> SEQUENCE_EPOCH_BITS) > epoch)
        epoch = (uint32_t)(l.max_sequence >> SEQUENCE_EPOCH_BITS);
    if (rc == CS_OK && epoch == UINT32_MAX)
        rc = CS_EFORMAT;
    if (rc == CS_OK) {
        epoch++;
        atomic_store(&t->sequence, (uint64_t)epoch << SEQUENCE_EPOCH_BITS);
        catalog_store_put(t->catalog, t->store.uuid, epoch);
        rc = catalog_commit(t->catalog, true);
    }
    if (rc == CS_OK)
        rc = foreign_order(t, &l.foreign);
    if (rc == CS_OK)
        count_records(t);
    foreign_paths_free(&l.foreign);
    if (rc == CS_OK && l.dropped > 0)
        tier_log(t, CS_LOG_INFO,
                 "disk cache: %llu records dropped at open (chunks missing, reused or not wanted)",
                 (unsigned long long)l.dropped);
    if (rc != CS_OK)
        snprintf(err, err_len, "cannot load the catalogue: %s", cs_strerror(rc));
    /* It read well a moment ago: the store goes on without the tier, as after any failed read. */
    return rc == CS_ECORRUPT ? CS_EIO : rc;
}

/* ---- open -------------------------------------------------------------------------------------------- */

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value != 0 ? value : fallback;
}

static int configure(struct tier_disk *t, const struct cs_config *c, char *err, size_t err_len)
{
    t->page_tokens = c->page_tokens;
    t->page_bytes = c->page_bytes;
    t->stride = fmt_record_stride(c->page_bytes);
    memcpy(t->fingerprint, c->fingerprint, sizeof t->fingerprint);
    t->budget = c->disk_bytes;
    t->flush_bytes = or_default(c->flush_bytes, 64u << 20);
    t->flush_interval_ms = (uint32_t)or_default(c->flush_interval_ms, 1000);
    t->inflight_bytes = or_default(c->inflight_bytes, 96u << 20);
    t->log = c->log;
    t->log_ctx = c->log_ctx;
    /* The catalogue's share: 1/64, at least 8 MiB, at most a quarter. Rows take about 1 KiB a span of 4 MiB.
     */
    t->catalog_share = t->budget / 64 > (8u << 20) ? t->budget / 64 : 8u << 20;
    if (t->catalog_share > t->budget / 4)
        t->catalog_share = t->budget / 4;
    uint32_t chunks = fmt_record_chunks(1, t->page_tokens, t->page_bytes, t->chunk_bytes);
    if (chunks == 0) {
        snprintf(err, err_len, "a page of %llu bytes cannot be stored in chunks of %u bytes",
                 (unsigned long long)t->page_bytes, t->chunk_bytes);
        return CS_EINVAL;
    }
    if (tier_volume_limit(t, 0) < (uint64_t)chunks * t->chunk_bytes) {
        snprintf(err, err_len, "a disk budget of %llu bytes holds no record", (unsigned long long)t->budget);
        return CS_EINVAL;
    }
    atomic_store(&t->limit, (int64_t)tier_volume_limit(t, 0));
    return CS_OK;
}

static int store_ready(struct tier_disk *t, const struct cs_config *c, char *err, size_t err_len)
{
    uint64_t chunk_bytes = or_default(c->chunk_bytes, 256u << 10);
    int rc = store_file_read(t->dir_fd, &t->store, err, err_len);
    if (rc == CS_ENOTFOUND) {
        if (chunk_bytes < FMT_RECORD_CHUNK_BYTES_MIN || chunk_bytes > FMT_RECORD_CHUNK_BYTES_MAX ||
            (chunk_bytes & (chunk_bytes - 1)) != 0) {
            snprintf(err, err_len, "chunk_bytes must be a power of two of at least %u",
                     FMT_RECORD_CHUNK_BYTES_MIN);
            return CS_EINVAL;
        }
        rc = store_file_create(t->dir_fd, (uint32_t)chunk_bytes, &t->store, err, err_len);
    }
    if (rc != CS_OK)
        return rc;
    t->chunk_bytes = t->store.chunk_bytes;
    if (c->chunk_bytes != 0 && c->chunk_bytes != t->chunk_bytes)
        tier_log(t, CS_LOG_INFO, "disk cache: the store was made with chunks of %u bytes and keeps them",
                 t->chunk_bytes);
    return CS_OK;
}

static int start_io(struct tier_disk *t, char *err, size_t err_len)
{
    if (pthread_create(&t->io_thread, NULL, tier_io_main, t) != 0) {
        snprintf(err, err_len, "cannot start the I/O thread");
        return CS_EIO;
    }
    pthread_mutex_lock(&t->lock);
    while (t->io_started == 0)
        pthread_cond_wait(&t->changed, &t->lock);
    bool failed = t->io_started < 0;
    pthread_mutex_unlock(&t->lock);
    if (failed) {
        pthread_join(t->io_thread, NULL);
        snprintf(err, err_len, "%s", t->start_reason);
        return CS_EIO;
    }
    t->io_thread_runs = true;
    return CS_OK;
}

static int serve(struct tier_disk *t, char *err, size_t err_len)
{
    if (pthread_create(&t->catalog_thread, NULL, tier_catalog_main, t) != 0) {
        snprintf(err, err_len, "cannot start the catalogue thread");
        return CS_EIO;
    }
    t->catalog_thread_runs = true;
    return CS_OK;
}

int tier_disk_open_with(const struct cs_config *config, const struct tier_disk_events *events,
                        tier_engine_open *engine_open, struct tier_disk **out, uint8_t secret[16], char *err,
                        size_t err_len)
{
    *out = NULL;
    struct tier_disk *t = calloc(1, sizeof *t);
    if (t == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    t->dir_fd = -1;
    t->engine_open = engine_open;
    t->in_reads_tail = &t->in_reads;
    t->in_writes_tail = &t->in_writes;
    t->in_rows_tail = &t->in_rows;
    t->to_catalog_tail = &t->to_catalog;
    t->writes_tail = &t->writes;
    t->written_tail = &t->written;
    t->rows_tail = &t->rows;
    t->log = config->log;
    t->log_ctx = config->log_ctx;
    char note[160], problem[256] = "";
    t->dir = strdup(config->disk_dir);
    int rc = t->dir == NULL ? CS_ENOMEM : store_dir_lock(config->disk_dir, true, &t->dir_fd, err, err_len);
    if (rc == CS_ENOTFOUND)
        rc = CS_EIO;
    if (rc == CS_OK)
        rc = store_ready(t, config, err, err_len);
    if (rc == CS_OK)
        rc = configure(t, config, err, err_len);
    if (rc == CS_OK && getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce) {
        snprintf(err, err_len, "no random bytes");
        rc = CS_EIO;
    }
    if (rc == CS_OK)
        rc = start_io(t, err, err_len);
    if (rc != CS_OK)
        goto fail;
    rc = volumes_open(&t->volumes, t->dir_fd, t->chunk_bytes, or_default(config->extent_bytes, 1u << 30),
                      false, note, sizeof note);
    if (rc < 0) {
        snprintf(err, err_len, "cannot open the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    memcpy(secret, t->store.secret, sizeof t->store.secret);
    if (!catalog_has_room(t->dir_fd, catalog_reserve_bytes(t->catalog_share))) {
        snprintf(err, err_len, "the file system is full");
        rc = CS_EIO;
        goto fail;
    }
    t->volumes.reserve_bytes = 2 * catalog_reserve_bytes(t->catalog_share);
    rc = catalog_open(t->dir, false, t->catalog_share, &t->catalog, problem, sizeof problem);
    if (rc == CS_ECORRUPT)
        tier_log(t, CS_LOG_WARN, "disk cache: the catalogue does not open, rebuilding it: %s", problem);
    if (rc == CS_OK || rc == CS_ECORRUPT)
        rc = load(t, events, err, err_len);
    else
        snprintf(err, err_len, "cannot open the catalogue: %s", problem);
    if (rc != CS_OK)
        goto fail;
    rc = volumes_settle(&t->volumes);
    if (rc < 0) {
        snprintf(err, err_len, "cannot look at the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    if (note[0] != 0)
        tier_log(t, CS_LOG_INFO, "disk cache: %s", note);
    uint64_t catalog_bytes = catalog_disk_bytes(t->dir_fd);
    atomic_store(&t->stats.catalog_bytes, catalog_bytes);
    atomic_store(&t->limit, (int64_t)tier_volume_limit(t, catalog_bytes));
    volumes_set_limit(&t->volumes, tier_volume_limit(t, catalog_bytes));
    atomic_store(&t->stats.volume_bytes, volumes_backed_bytes(&t->volumes));
    rc = serve(t, err, err_len);
    if (rc != CS_OK)
        goto fail;
    pthread_mutex_lock(&t->lock);
    t->io_started = 2;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    *out = t;
    return CS_OK;
fail:
    pthread_mutex_lock(&t->lock);
    if (t->io_started == 1)
        t->io_started = 2;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    tier_disk_close(t, 0);
    return rc;
}

int tier_disk_open(const struct cs_config *config, const struct tier_disk_events *events,
                   struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len)
{
    return tier_disk_open_with(config, events, io_uring_engine_open, out, secret, err, err_len);
}
