/* How the checker hears of what the store does: calls between the store's files, which the linker leads
 * through here, and what must be true at each. */
#include "tests/sim/checker_impl.h"

#include <string.h>
#include <xxhash.h>

#include "cachestore/key.h"
#include "tests/sim/asker.h"
#include "tests/sim/engine.h"
#include "tests/sim/tenants.h"

/* ---- what the store does ----------------------------------------------------------------------------- */

/* docs/format.md, written once more: each page's sum is seeded with the store, the record and its place. */
static void check_format(const struct record *r)
{
    uint8_t header[32 * SECTOR] __attribute__((aligned(8))), page[16 * SECTOR];
    uint32_t n = r->n_sectors, index = 0;
    uint64_t stride = fmt_record_stride(checker_config->page_bytes);
    const uint32_t page_sectors = (uint32_t)(stride / SECTOR), header_sectors = n - r->n_pages * page_sectors;
    struct fmt_record h;
    if (header_sectors * SECTOR > sizeof header || stride > sizeof page)
        return;
    for (uint32_t i = 0; i < r->n_runs; i++)
        for (uint32_t k = 0; k < r->runs[i].n_chunks * r->chunk_sectors && index < n; k++, index++) {
            const uint8_t *bytes =
                files_sector(r->runs[i].volume, (uint64_t)r->runs[i].first_chunk * r->chunk_sectors + k);
            if (bytes == NULL)
                sim_fail("a part of record %llx is a hole", (unsigned long long)r->id.sequence);
            if (index < header_sectors) {
                memcpy(header + (size_t)index * SECTOR, bytes, SECTOR);
                continue;
            }
            if (index == header_sectors &&
                fmt_record_decode(header, header_sectors * SECTOR, &h) != FMT_RECORD_OK)
                sim_fail("the header of record %llx is wrong", (unsigned long long)r->id.sequence);
            if (h.purge_epoch < r->epoch)
                sim_fail("record %llx is of epoch %llu, and was written after %llu",
                         (unsigned long long)r->id.sequence, (unsigned long long)h.purge_epoch,
                         (unsigned long long)r->epoch);
            uint32_t inside = (index - header_sectors) % page_sectors,
                     ordinal = (index - header_sectors) / page_sectors;
            memcpy(page + (size_t)inside * SECTOR, bytes, SECTOR);
            if (inside + 1 < page_sectors)
                continue;
            struct __attribute__((packed)) {
                uint8_t uuid[16];
                uint64_t nonce, sequence;
                uint32_t ordinal;
            } place = {.nonce = r->id.nonce, .sequence = r->id.sequence, .ordinal = ordinal};
            memcpy(place.uuid, h.store_uuid, sizeof place.uuid);
            if (h.page_sums[ordinal] != XXH3_64bits_withSeed(page, stride, XXH3_64bits(&place, sizeof place)))
                sim_fail("the sum of page %u of record %llx is not the one of docs/format.md", ordinal,
                         (unsigned long long)r->id.sequence);
        }
}

static void acknowledged(struct record *r)
{
    sim_count(COUNT_records_durable, 1);
    bool lies = sim.odds[FAULT_lost_flush] + sim.odds[FAULT_catalog_lost_flush] > 0;
    bool bad_writes =
        sim.odds[FAULT_lost_write] + sim.odds[FAULT_torn_write] + sim.odds[FAULT_misdirected_write] > 0;
    if (!record_is_intact(r) && !bad_writes)
        sim_fail("record %llx is acknowledged and its data is not in the volumes",
                 (unsigned long long)r->id.sequence);
    if (!record_is_durable(r) && !lies && !bad_writes)
        sim_fail("record %llx is acknowledged before its data is durable",
                 (unsigned long long)r->id.sequence);
    int row = rows_state(r->id.nonce, r->id.sequence);
    if (row == 0)
        sim_fail("record %llx is acknowledged without a row", (unsigned long long)r->id.sequence);
    if (row == 1 && !lies)
        sim_fail("record %llx is acknowledged before its row is durable", (unsigned long long)r->id.sequence);
    if (record_is_intact(r))
        check_format(r);
    r->lied = row == 1 || !record_is_durable(r);
}

/* ctx is the store's: w->check is called with it, too. */
static void on_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct record *r = record_find(w->record.id);
    SIM_SAY("record %llx ends as %d", (unsigned long long)r->id.sequence, result);
    if (result == TIER_OK)
        acknowledged(r);
    else
        r->doubtful = true;
    r->durable(ctx, w, result);
    if (result == TIER_OK && r->state == RECORD_WRITING) {
        r->state = RECORD_DURABLE;
        r->since = ++records_acknowledged;
    }
}

void __real_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w)
{
    struct record *r = record_add(&w->record, t->page_tokens);
    SIM_SAY("record %llx: %u pages at %u are to be written", (unsigned long long)w->record.id.sequence,
            w->record.n_pages, w->record.first_position);
    sim_count(COUNT_records_written, 1);
    r->bytes = tier_disk_record_bytes(t, w->record.kind, w->record.n_pages);
    if (asker_has_drained)
        sim_fail("the store has drained, and writes record %llx", (unsigned long long)r->id.sequence);
    r->epoch = atomic_load(&t->purge_epoch);
    if (checker_store() != NULL)
        tenants_written(checker_store(), &w->record.tenant);
    r->durable = w->durable;
    w->durable = on_durable;
    __real_tier_disk_write(t, w);
}

enum tier_result __real_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out);
enum tier_result __wrap_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out);
enum tier_result __wrap_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out)
{
    struct record *r = record_find(rec->id);
    if (r == NULL || rec->n_runs > RECORD_RUNS)
        sim_fail("a record is written that nobody asked for, or in %u runs", rec->n_runs);
    r->n_runs = rec->n_runs;
    memcpy(r->runs, rec->runs, rec->n_runs * sizeof r->runs[0]);
    r->chunk_sectors = t->chunk_bytes / SECTOR;
    r->n_sectors = (uint32_t)((rec->header_bytes + rec->n_pages * t->stride) / SECTOR);
    uint32_t index = 0;
    for (uint32_t i = 0; i < r->n_runs; i++) {
        uint64_t first = (uint64_t)r->runs[i].first_chunk * r->chunk_sectors;
        for (uint32_t k = 0; k < r->runs[i].n_chunks * r->chunk_sectors; k++, index++)
            engine_own(
                r->runs[i].volume, first + k,
                (struct sector_origin){.nonce = r->id.nonce, .sequence = r->id.sequence, .index = index});
    }
    return __real_move_write_begin(t, rec, w, out);
}

/* It is pinned, or a pinned record follows one of its pages, be it through others that can be read. */
static bool leads_to_a_pin(const struct record *r)
{
    for (uint32_t i = 0; i < n_records; i++) {
        const struct record *at = &records[i];
        if (!at->pinned || at->state != RECORD_DURABLE || !at->loaded || at->foreign || at->failed)
            continue;
        for (uint32_t depth = 0; at != NULL && depth < 64; depth++) {
            if (at == r)
                return true;
            const struct page *p = pages_by_key[at->parent.lo % N_BUCKETS];
            while (p != NULL &&
                   !(key_equal(p->key, at->parent) && !p->record->checkpoint &&
                     p->record->state == RECORD_DURABLE && p->record->loaded && !p->record->failed))
                p = p->next;
            at = p != NULL ? p->record : NULL;
        }
    }
    return false;
}

static void deleted(struct record_id id)
{
    struct record *r = record_find(id);
    if (r == NULL || r->state == RECORD_DELETED)
        return;
    SIM_SAY("record %llx is deleted", (unsigned long long)id.sequence);
    if (checker_store() != NULL && !r->purging && !r->failed && !r->doubtful && leads_to_a_pin(r))
        sim_fail("record %llx leaves, and it is pinned or leads to what is", (unsigned long long)id.sequence);
    sim_count(COUNT_records_deleted, 1);
    r->state = RECORD_DELETED;
}

void __real_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id)
{
    deleted(id);
    if (checker_store() != NULL)
        tenants_deleted(checker_store(), id);
    __real_tier_disk_delete(t, id);
}

/* Found by nobody from now on. */
void __real_index_doom_locked(struct index *ix, struct span *checkpoint);
void __wrap_index_doom_locked(struct index *ix, struct span *checkpoint);
void __wrap_index_doom_locked(struct index *ix, struct span *checkpoint)
{
    deleted(checkpoint->id);
    __real_index_doom_locked(ix, checkpoint);
}

void checker_row_delete(uint64_t nonce, uint64_t sequence)
{
    struct record *r = record_find((struct record_id){.nonce = nonce, .sequence = sequence});
    if (r == NULL || r->state == RECORD_DELETED)
        return;
    if (checker_is_offline) {
        r->purging = checker_is_purging;
    } else if (checker_opening && !r->foreign && record_can_be_expected(r)) {
        /* Reported, and refused: another of the same pages is newer, or nothing leads to it. */
        bool newer = false, led_to = r->parent.lo == 0 && r->parent.hi == 0;
        for (const struct page *p = pages_by_key[r->key.lo % N_BUCKETS]; p != NULL; p = p->next)
            newer = newer || (key_equal(p->key, r->key) && p->record != r && p->record->loaded &&
                              p->record->id.sequence > r->id.sequence);
        for (const struct page *p = pages_by_key[r->parent.lo % N_BUCKETS]; p != NULL; p = p->next)
            led_to = led_to || (key_equal(p->key, r->parent) && !p->record->checkpoint && p->record != r &&
                                record_can_be_expected(p->record));
        if (!newer && led_to)
            sim_fail("a durable record (%llx) is deleted at open", (unsigned long long)sequence);
    }
    deleted(r->id);
}

/* ---- deleted for good, or not to leave --------------------------------------------------------------- */

void checker_purges(void)
{
    for (uint32_t i = 0; i < n_records; i++)
        records[i].purging = false;
}

uint64_t checker_epoch(const struct cs_store *s)
{
    return s->disk != NULL ? atomic_load(&s->disk->purge_epoch) : 0;
}

void __real_tier_disk_purge(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_purge(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_purge(struct tier_disk *t, struct record_id id)
{
    struct record *r = record_find(id);
    if (r != NULL) {
        r->purging = true;
        deleted(id);
    }
    __real_tier_disk_purge(t, id);
}

void checker_pin(struct record *r, bool on)
{
    r->pinned = on;
}

bool checker_is_whole(uint64_t nonce, uint64_t sequence)
{
    const struct record *r = record_find((struct record_id){.nonce = nonce, .sequence = sequence});
    return r != NULL && !r->doubtful && record_is_intact(r);
}

void checker_purged(void)
{
    /* A header that was somewhere else meanwhile, or where no row said, or whose zeros were lost, may come
     * back. */
    if (sim.odds[FAULT_stale_page] + sim.odds[FAULT_swapped_chunks] + sim.odds[FAULT_lost_flush] +
            sim.odds[FAULT_row_flip] >
        0)
        return;
    for (uint32_t i = 0; i < n_records; i++)
        records[i].purged = records[i].purged || records[i].purging;
}

void checker_rows_flipped(void)
{
    /* It has no checksum of its own: it may name chunks of any other. */
    for (uint32_t i = 0; i < n_records; i++)
        records[i].doubtful = true;
}

void checker_row_damaged(uint64_t nonce, uint64_t sequence)
{
    struct record *r = record_find((struct record_id){.nonce = nonce, .sequence = sequence});
    if (r != NULL)
        r->doubtful = true;
}

/* ---- reads ------------------------------------------------------------------------------------------- */

/* What the store has called when a read ends: always the same. */
static void (*store_read_done)(void *ctx, struct tier_read *r, enum tier_result result);

/* The sector that was read is this one's, or another record's of the same page. */
static bool is_same_page(const struct record *rec, uint32_t index, const struct sector_origin *o,
                         uint32_t page_sectors)
{
    const struct record *from = record_find((struct record_id){.nonce = o->nonce, .sequence = o->sequence});
    if (from == rec)
        return o->index == index;
    if (from == NULL || from->checkpoint != rec->checkpoint)
        return false;
    uint32_t header = rec->n_sectors - rec->n_pages * page_sectors,
             from_header = from->n_sectors - from->n_pages * page_sectors;
    if (o->index < from_header || (o->index - from_header) % page_sectors != (index - header) % page_sectors)
        return false;
    /* Checkpoints share window pages. */
    return rec->checkpoint || key_equal(rec->keys[(index - header) / page_sectors],
                                        from->keys[(o->index - from_header) / page_sectors]);
}

static void read_is_right(const struct tier_read *r)
{
    const struct record *rec = record_find(r->record.id);
    if (rec == NULL)
        sim_fail("a record is read that was never written");
    uint32_t page_sectors = (uint32_t)(fmt_record_stride(checker_config->page_bytes) / SECTOR);
    uint32_t header = rec->n_sectors - r->record.n_pages * page_sectors;
    for (uint32_t i = 0; i < r->n_pages; i++)
        for (uint32_t k = 0; k < page_sectors; k++) {
            struct sector_origin o;
            if (!engine_read_origin((const char *)r->pages[i] + (size_t)k * SECTOR, &o))
                continue; /* read in parts, or another mark took its place */
            uint32_t index = header + (r->first_page + i) * page_sectors + k;
            if (o.damaged || !is_same_page(rec, index, &o, page_sectors))
                sim_fail("page %u of record %llx was accepted, but sector %u of record %llx%s was read",
                         r->first_page + i, (unsigned long long)rec->id.sequence, o.index,
                         (unsigned long long)o.sequence, o.damaged ? " (damaged)" : "");
        }
}

static void on_read(void *ctx, struct tier_read *r, enum tier_result result)
{
    SIM_SAY("read of record %llx: %d", (unsigned long long)r->record.id.sequence, result);
    struct record *read = record_find(r->record.id);
    if (read != NULL)
        read->failed = read->failed || (result != TIER_OK && result != TIER_CANCELLED);
    if (result == TIER_OK) {
        sim_count(COUNT_reads_verified, 1);
        read_is_right(r);
    } else if (result == TIER_CORRUPT_HEADER || result == TIER_CORRUPT_TOKENS ||
               result == TIER_CORRUPT_PAYLOAD) {
        const struct record *rec = record_find(r->record.id);
        sim_count(COUNT_records_refused_damaged, 1);
        if (rec != NULL && !rec->doubtful && record_is_intact(rec))
            sim_fail("record %llx is whole and was refused as damaged (%d)",
                     (unsigned long long)rec->id.sequence, result);
    }
    store_read_done(ctx, r, result);
}

void __real_tier_disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n);
void __wrap_tier_disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n);
void __wrap_tier_disk_read(struct tier_disk *t, struct tier_read *const *reads, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (reads[i]->done == on_read) /* once more */
            continue;
        if (store_read_done != NULL && reads[i]->done != store_read_done)
            sim_fail("the checker knows one kind of reads");
        store_read_done = reads[i]->done;
        reads[i]->done = on_read;
    }
    __real_tier_disk_read(t, reads, n);
}

/* ---- pages of arenas --------------------------------------------------------------------------------- */

static void free_page(const struct arena *a, uint32_t page)
{
    if (a->pages[page].refs == 0 && a->pages[page].holders == 0)
        memory_given_back(arena_address(a, page), a->stride);
}

bool __real_arena_unref(struct arena *a, uint32_t page);
bool __wrap_arena_unref(struct arena *a, uint32_t page);
bool __wrap_arena_unref(struct arena *a, uint32_t page)
{
    bool unused = __real_arena_unref(a, page);
    free_page(a, page);
    return unused;
}

void __real_arena_release(struct arena *a, uint32_t page);
void __wrap_arena_release(struct arena *a, uint32_t page);
void __wrap_arena_release(struct arena *a, uint32_t page)
{
    __real_arena_release(a, page);
    free_page(a, page);
}

/* ---- rows at open ------------------------------------------------------------------------------------ */

void __real_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx)
{
    SIM_SAY("the catalogue is made again");
    sim_count(COUNT_rebuilds, 1);
    checker_rebuilt = checker_rebuilding = true;
    for (uint32_t i = 0; i < n_records; i++)
        records[i].loaded = false;
    __real_loader_on_restart(ctx);
}

int __real_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes);
int __wrap_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes);
int __wrap_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes)
{
    struct record *r = record_find(s->id);
    sim_count(COUNT_records_loaded, 1);
    SIM_SAY("record %llx is loaded", (unsigned long long)s->id.sequence);
    if (r == NULL)
        sim_fail("a record is loaded that was never written");
    if (r->purged)
        sim_fail("record %llx was deleted for good, and is back", (unsigned long long)s->id.sequence);
    if (!r->doubtful && (!key_equal(r->key, s->key) || !key_equal(r->parent, s->parent)))
        sim_fail("record %llx is loaded with another key", (unsigned long long)s->id.sequence);
    r->loaded = true;
    if (r->state != RECORD_DURABLE) { /* a delete was lost, or a write was never acknowledged */
        r->state = RECORD_DURABLE;
        r->doubtful = true;
    }
    return __real_loader_on_span(ctx, s, disk_bytes);
}
