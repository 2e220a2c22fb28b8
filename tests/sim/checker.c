/*
 * See checker.h. It hears of the store's steps through the linker (--wrap) and looks at the simulated disk by
 * itself:
 *
 * - when a record is acknowledged, its sectors and its row must be durable, there and then;
 * - when a read is answered with TIER_OK, each sector of its pages must be one that this record wrote there,
 *   undamaged: bytes that are right by chance are not enough;
 * - a look-up must find at least the pages whose records are acknowledged, not deleted and whole on disk,
 *   and name a reason that is possible where it does not use them;
 * - when the store opens, none of those may be left out or deleted.
 */
#include "tests/sim/checker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cachestore/key.h"
#include "cachestore/store.h"
#include "cachestore/tier_disk_impl.h"
#include "tests/cachestore/recount.h"
#include "tests/sim/engine.h"

enum { N_RECORDS = 4096, RECORD_PAGES = 16, RECORD_RUNS = 24, N_BUCKETS = 1024, N_PAGES = 16384 };
enum state { RECORD_WRITING, RECORD_DURABLE, RECORD_DELETED };

struct record {
    struct record_id id;
    enum state state;
    bool checkpoint, foreign, purging, purged; /* purging: deleted for good, once that call has returned */
    bool doubtful;  /* nothing is expected of it: it came back, or its row was damaged */
    bool lied;      /* acknowledged on the word of a disk that lied */
    bool loaded;    /* reported by this open, or written since */
    bool failed;    /* to be read, in this process: quarantined */
    uint64_t since; /* when it became durable, in acknowledgements */
    uint32_t fingerprint, n_keys, n_pages;
    void (*durable)(void *ctx, struct tier_write *w, enum tier_result result); /* the store's */
    struct cs_key key, parent, keys[RECORD_PAGES];
    uint32_t n_runs, chunk_sectors, n_sectors;
    struct fmt_record_run runs[RECORD_RUNS];
    struct record *next; /* of its bucket */
};
struct page {
    struct cs_key key;
    struct record *record;
    struct page *next;
};

static struct record records[N_RECORDS];
static uint64_t n_acknowledged;
static uint32_t n_records;
static struct record *by_id[N_BUCKETS];
static struct page pages[N_PAGES];
static uint32_t n_pages;
static struct page *by_key[N_BUCKETS];

static const struct cs_config *config;
static struct cs_store *store;
static bool opening, serving, offline, purging, ended_cleanly, rebuilt, expects;
static uint32_t loader_page_tokens;

/* ---- records ----------------------------------------------------------------------------------------- */

static struct record *find(struct record_id id)
{
    struct record *r = by_id[(id.sequence ^ id.sequence >> 29) % N_BUCKETS];
    while (r != NULL && !record_id_equal(r->id, id))
        r = r->next;
    return r;
}

static struct record *add(const struct span_record *s, uint32_t page_tokens)
{
    if (n_records == N_RECORDS || s->n_pages > RECORD_PAGES * 64)
        sim_fail("the checker has no room for a record of %u pages", s->n_pages);
    if (find(s->id) != NULL)
        sim_fail("a record id is used twice");
    struct record *r = &records[n_records++];
    *r = (struct record){.id = s->id,
                         .checkpoint = s->kind == RECORD_CHECKPOINT,
                         .fingerprint = config->fingerprint[0],
                         .key = s->key,
                         .parent = s->parent,
                         .loaded = true};
    r->n_pages = s->n_pages;
    r->n_keys = r->checkpoint ? 1 : s->n_pages;
    if (r->n_keys > RECORD_PAGES)
        sim_fail("a span of %u pages", r->n_keys);
    r->keys[0] = r->checkpoint ? s->parent : s->key;
    for (uint32_t i = 1; i < r->n_keys; i++)
        r->keys[i] = key_next(r->keys[i - 1], s->ids + (size_t)i * page_tokens, page_tokens);
    struct record **at = &by_id[(s->id.sequence ^ s->id.sequence >> 29) % N_BUCKETS];
    r->next = *at;
    *at = r;
    for (uint32_t i = 0; i < r->n_keys; i++) {
        if (n_pages == N_PAGES)
            sim_fail("the checker has no room for a page");
        struct page *p = &pages[n_pages++], **bucket = &by_key[r->keys[i].lo % N_BUCKETS];
        *p = (struct page){.key = r->keys[i], .record = r, .next = *bucket};
        *bucket = p;
    }
    return r;
}

/* Every sector holds what this record wrote there. */
static bool is_intact(const struct record *r)
{
    uint32_t index = 0;
    for (uint32_t i = 0; i < r->n_runs; i++) {
        uint64_t first = (uint64_t)r->runs[i].first_chunk * r->chunk_sectors;
        uint32_t n = r->runs[i].n_chunks * r->chunk_sectors;
        if (first + n > files_volume_sectors(r->runs[i].volume))
            return false;
        for (uint32_t k = 0; k < n && index < r->n_sectors; k++, index++) {
            struct sector_origin o = files_origin(r->runs[i].volume, first + k);
            if (o.damaged || o.nonce != r->id.nonce || o.sequence != r->id.sequence || o.index != index)
                return false;
        }
    }
    return r->n_runs > 0;
}

static bool is_durable_on_disk(const struct record *r)
{
    uint32_t index = 0;
    for (uint32_t i = 0; i < r->n_runs; i++) {
        uint64_t first = (uint64_t)r->runs[i].first_chunk * r->chunk_sectors;
        uint32_t n = r->runs[i].n_chunks * r->chunk_sectors;
        for (uint32_t k = 0; k < n && index < r->n_sectors; k++, index++)
            if (!files_sector_is_durable(r->runs[i].volume, first + k))
                return false;
    }
    return true;
}

static bool can_be_expected(const struct record *r)
{
    return r->state == RECORD_DURABLE && !r->doubtful && !r->failed && r->loaded && is_intact(r);
}

/* ---- processes --------------------------------------------------------------------------------------- */

void checker_reset(void)
{
    n_records = n_pages = 0;
    memset(by_id, 0, sizeof by_id);
    memset(by_key, 0, sizeof by_key);
    ended_cleanly = false;
    store = NULL;
    opening = serving = offline = rebuilt = false;
}

void checker_begin(const struct cs_config *c)
{
    config = c;
    store = NULL;
    opening = true;
    serving = offline = expects = false;
    for (uint32_t i = 0; i < n_records; i++) {
        records[i].loaded = records[i].failed = false;
        records[i].foreign = records[i].fingerprint != c->fingerprint[0];
        if (records[i].state == RECORD_DURABLE &&
            !is_intact(&records[i])) /* even if it is once more, later */
            records[i].doubtful = true;
    }
}

void checker_offline(bool purges, bool rebuilds)
{
    rebuilt = rebuilt || rebuilds;
    opening = serving = false;
    offline = true;
    purging = purges;
    for (uint32_t i = 0; i < n_records; i++)
        records[i].purging = false;
}

void checker_opened(struct cs_store *s, bool disk_on)
{
    store = s;
    opening = false;
    serving = expects = disk_on;
    if (!disk_on)
        return;
    for (uint32_t i = 0; i < n_records; i++) {
        struct record *r = &records[i];
        if (r->state != RECORD_DURABLE || r->foreign || r->doubtful || r->loaded || !is_intact(r))
            continue;
        if (rebuilt && sim.odds[FAULT_read_error] > 0) /* its header could not be read then */
            r->doubtful = true;
        else
            sim_fail("a durable record (%llx) was not found at open", (unsigned long long)r->id.sequence);
    }
}

void checker_closing(void)
{
    serving = false;
}

void checker_ended(bool power)
{
    ended_cleanly = !power && !opening && !serving && !offline;
    store = NULL;
    for (uint32_t i = 0; i < n_records; i++) {
        struct record *r = &records[i];
        if (r->state == RECORD_WRITING) /* its row may be there, or not */
            r->doubtful = true;
        if (power && r->lied)
            r->doubtful = true;
        r->foreign = true; /* until somebody opens with its fingerprint */
    }
    opening = serving = offline = false;
}

/* ---- what the store does ----------------------------------------------------------------------------- */

/* docs/format.md, written once more: each page's sum is seeded with the store, the record and its place. */
static void check_format(const struct record *r)
{
    uint8_t header[32 * SECTOR] __attribute__((aligned(8))), page[16 * SECTOR];
    uint32_t n = r->n_sectors, index = 0;
    uint64_t stride = fmt_record_stride(config->page_bytes);
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
    if (!is_intact(r) && !bad_writes)
        sim_fail("record %llx is acknowledged and its data is not in the volumes",
                 (unsigned long long)r->id.sequence);
    if (!is_durable_on_disk(r) && !lies && !bad_writes)
        sim_fail("record %llx is acknowledged before its data is durable",
                 (unsigned long long)r->id.sequence);
    int row = rows_state(r->id.nonce, r->id.sequence);
    if (row == 0)
        sim_fail("record %llx is acknowledged without a row", (unsigned long long)r->id.sequence);
    if (row == 1 && !lies)
        sim_fail("record %llx is acknowledged before its row is durable", (unsigned long long)r->id.sequence);
    if (is_intact(r))
        check_format(r);
    r->lied = row == 1 || !is_durable_on_disk(r);
}

/* ctx is the store's: w->check is called with it, too. */
static void on_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct record *r = find(w->record.id);
    SIM_SAY("record %llx ends as %d", (unsigned long long)r->id.sequence, result);
    if (result == TIER_OK)
        acknowledged(r);
    else
        r->doubtful = true;
    r->durable(ctx, w, result);
    if (result == TIER_OK && r->state == RECORD_WRITING) {
        r->state = RECORD_DURABLE;
        r->since = ++n_acknowledged;
    }
}

void __real_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w)
{
    struct record *r = add(&w->record, t->page_tokens);
    SIM_SAY("record %llx: %u pages at %u are to be written", (unsigned long long)w->record.id.sequence,
            w->record.n_pages, w->record.first_position);
    sim_count(COUNT_records_written, 1);
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
    struct record *r = find(rec->id);
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

static void deleted(struct record_id id)
{
    struct record *r = find(id);
    if (r == NULL || r->state == RECORD_DELETED)
        return;
    SIM_SAY("record %llx is deleted", (unsigned long long)id.sequence);
    sim_count(COUNT_records_deleted, 1);
    r->state = RECORD_DELETED;
}

void __real_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id)
{
    deleted(id);
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
    struct record *r = find((struct record_id){.nonce = nonce, .sequence = sequence});
    if (r == NULL || r->state == RECORD_DELETED)
        return;
    if (offline) {
        r->purging = purging;
    } else if (opening && !r->foreign && can_be_expected(r)) {
        /* Reported, and refused: another of the same pages is newer, or nothing leads to it. */
        bool newer = false, led_to = r->parent.lo == 0 && r->parent.hi == 0;
        for (const struct page *p = by_key[r->key.lo % N_BUCKETS]; p != NULL; p = p->next)
            newer = newer || (key_equal(p->key, r->key) && p->record != r && p->record->loaded &&
                              p->record->id.sequence > r->id.sequence);
        for (const struct page *p = by_key[r->parent.lo % N_BUCKETS]; p != NULL; p = p->next)
            led_to = led_to || (key_equal(p->key, r->parent) && !p->record->checkpoint && p->record != r &&
                                can_be_expected(p->record));
        if (!newer && led_to)
            sim_fail("a durable record (%llx) is deleted at open", (unsigned long long)sequence);
    }
    deleted(r->id);
}

bool checker_is_whole(uint64_t nonce, uint64_t sequence)
{
    const struct record *r = find((struct record_id){.nonce = nonce, .sequence = sequence});
    return r != NULL && !r->doubtful && is_intact(r);
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
    struct record *r = find((struct record_id){.nonce = nonce, .sequence = sequence});
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
    const struct record *from = find((struct record_id){.nonce = o->nonce, .sequence = o->sequence});
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
    const struct record *rec = find(r->record.id);
    if (rec == NULL)
        sim_fail("a record is read that was never written");
    uint32_t page_sectors = (uint32_t)(fmt_record_stride(config->page_bytes) / SECTOR);
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
    struct record *read = find(r->record.id);
    if (read != NULL)
        read->failed = read->failed || (result != TIER_OK && result != TIER_CANCELLED);
    if (result == TIER_OK) {
        sim_count(COUNT_reads_verified, 1);
        read_is_right(r);
    } else if (result == TIER_CORRUPT_HEADER || result == TIER_CORRUPT_TOKENS ||
               result == TIER_CORRUPT_PAYLOAD) {
        const struct record *rec = find(r->record.id);
        sim_count(COUNT_records_refused_damaged, 1);
        if (rec != NULL && !rec->doubtful && is_intact(rec))
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

/* ---- rows at open ------------------------------------------------------------------------------------ */

struct loader *__real_loader_new(struct cs_store *s);
struct loader *__wrap_loader_new(struct cs_store *s);
struct loader *__wrap_loader_new(struct cs_store *s)
{
    loader_page_tokens = s->page_tokens;
    return __real_loader_new(s);
}

void __real_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx)
{
    SIM_SAY("the catalogue is made again");
    sim_count(COUNT_rebuilds, 1);
    rebuilt = true;
    for (uint32_t i = 0; i < n_records; i++)
        records[i].loaded = false;
    __real_loader_on_restart(ctx);
}

int __real_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes);
int __wrap_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes);
int __wrap_loader_on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes)
{
    struct record *r = find(s->id);
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

/* ---- look-ups ---------------------------------------------------------------------------------------- */

struct expectation checker_expect(struct cs_store *s, const struct turn *t, uint64_t as_of)
{
    struct expectation e = {.as_of = n_acknowledged};
    if (!expects || t->n_prompt == 0)
        return e;
    struct cs_tenant tenant = path_tenant(t->path);
    struct cs_chain chain;
    cs_chain_init(s, &tenant, &chain);
    bool there = true;
    for (uint32_t i = 0; there && i < (t->n_prompt - 1) / t->g->page_tokens; i++) {
        bool state = false;
        cs_chain_add(&chain, t->ids + (size_t)i * t->g->page_tokens, t->g->page_tokens);
        struct cs_key key = cs_chain_key(&chain);
        there = false;
        for (const struct page *p = by_key[key.lo % N_BUCKETS]; p != NULL; p = p->next) {
            if (!key_equal(p->key, key) || p->record->foreign || p->record->since > as_of)
                continue;
            if (p->record->checkpoint)
                state = state || can_be_expected(p->record);
            else
                there = there || can_be_expected(p->record);
        }
        e.pages += there;
        if (there && state)
            e.state_pages = e.pages;
    }
    return e;
}

static bool is_possible(enum cs_miss miss, bool stateful)
{
    switch (miss) {
    case CS_MISS_CORRUPT: /* a checkpoint further on was damaged, and one that is resident serves */
        return stateful;
    case CS_MISS_DEADLINE:
        return config->restore_deadline_ms > 0;
    case CS_MISS_ARENA_FULL:
    case CS_MISS_COMPUTE:
        return true;
    case CS_MISS_IO:
        return sim.odds[FAULT_read_error] + sim.odds[FAULT_no_memory] + sim.odds[FAULT_copy_error] +
                   sim.odds[FAULT_call_error] >
               0;
    default:
        return false;
    }
}

void checker_settled(const struct turn *t, struct expectation before, struct expectation now)
{
    const struct cs_reuse *reuse = &t->reuse;
    uint32_t reused = cs_reuse_tokens(reuse) / t->g->page_tokens,
             matched = reuse->tokens_matched / t->g->page_tokens;
    uint32_t least = before.pages < now.pages ? before.pages : now.pages;
    uint32_t state = before.state_pages < now.state_pages ? before.state_pages : now.state_pages;
    bool stateful = t->g->groups > 0 || t->g->state_blocks > 0;
    SIM_SAY("path %u: %u of %u tokens found, %u reused, at least %u expected: %s", t->path,
            reuse->tokens_matched, t->n_prompt, cs_reuse_tokens(reuse), least * t->g->page_tokens,
            cs_miss_name(reuse->miss));
    sim_note((uint64_t)reused << 32 ^ matched << 8 ^ reuse->miss);
    sim_count(COUNT_lookups, 1);
    sim_count(COUNT_pages_looked_up, t->n_prompt > 0 ? (t->n_prompt - 1) / t->g->page_tokens : 0);
    sim_count(COUNT_pages_expected, least);
    sim_count(COUNT_pages_served, reused);
    sim_count(COUNT_pages_from_disk, reuse->tokens_disk / t->g->page_tokens);
    sim_count(COUNT_pages_from_host, reuse->tokens_host / t->g->page_tokens);
    sim_count(COUNT_states_served, stateful && reused > 0);
    if ((matched < least || reused < (stateful ? state : least)) && !is_possible(reuse->miss, stateful))
        sim_fail("path %u: %u pages are durable and whole (%u with a checkpoint), %u found, %u reused: %s",
                 t->path, least, state, matched, reused, cs_miss_name(reuse->miss));
}

/* ---- counters and budgets ---------------------------------------------------------------------------- */

void checker_budget(void)
{
    if (!serving || sim.odds[FAULT_call_error] > 0)
        return;
    uint64_t bytes = files_backed_bytes() + rows_bytes() + SECTOR;
    if (bytes > config->disk_bytes)
        sim_fail("BUDGET: %llu bytes on disk of %llu", (unsigned long long)bytes,
                 (unsigned long long)config->disk_bytes);
}

bool checker_deletes_ended(struct cs_store *s)
{
    return s->disk->deletes_idle;
}

static void check_records(const struct cs_store *s)
{
    uint64_t bytes = 0, n = 0;
    for (size_t i = 0; i < s->disk->table_size; i++)
        for (const struct disk_record *rec = s->disk->table[i]; rec != NULL; rec = rec->table_next) {
            bytes += rec->bytes;
            n++;
        }
    uint64_t used = volumes_used_bytes(&s->disk->volumes);
    if (used != bytes && !sim_has_faults())
        sim_fail("LEAK: %llu bytes of chunks are in use, %llu records have %llu", (unsigned long long)used,
                 (unsigned long long)n, (unsigned long long)bytes);
    if (used < bytes)
        sim_fail("records of %llu bytes in %llu bytes of chunks", (unsigned long long)bytes,
                 (unsigned long long)used);
}

/* Memory of records that are being deleted: it counts as free already, and will be in a moment. */
static uint64_t deleted_bytes(const struct cs_store *s)
{
    uint64_t n = 0;
    for (size_t i = 0; s->disk != NULL && i < s->disk->table_size; i++)
        for (const struct disk_record *rec = s->disk->table[i]; rec != NULL; rec = rec->table_next)
            n += atomic_load(&rec->deleted);
    return n * TIER_DISK_RECORD_BYTES;
}

/* The accounts' tables grow with tenants that have sequences and no spans, and make no room for that. */
static uint64_t accounts_tables(const struct cs_store *s)
{
    const struct accounts *a = &s->index.accounts;
    return (a->slots_capacity + a->bucket_mask + 1) * sizeof(void *);
}

void checker_balance(struct cs_store *s, bool idle)
{
    struct cs_stats st;
    cs_stats_get(s, &st);
    uint64_t misses = 0;
    for (int m = 0; m < CS_MISS_COUNT; m++)
        misses += st.misses[m];
    if (st.lookups != misses)
        sim_fail("BALANCE: %llu look-ups, %llu reasons", (unsigned long long)st.lookups,
                 (unsigned long long)misses);
    if (st.lookups < st.hits_full + st.hits_partial || st.hits_full != st.misses[CS_MISS_NONE])
        sim_fail("BALANCE: %llu look-ups, %llu full and %llu partial hits", (unsigned long long)st.lookups,
                 (unsigned long long)st.hits_full, (unsigned long long)st.hits_partial);
    if (st.pages_total != st.pages_free + st.pages_live + st.pages_cached)
        sim_fail("BALANCE: %llu pages of the arena", (unsigned long long)st.pages_total);
    if (st.index_bytes > st.index_budget + deleted_bytes(s) + accounts_tables(s))
        sim_fail(
            "BUDGET: %llu bytes of index of %llu (%llu of the disk tier, %llu of %u accounts, %llu spans)",
            (unsigned long long)st.index_bytes, (unsigned long long)st.index_budget,
            (unsigned long long)(s->disk ? s->tier->memory_bytes(s->disk) : 0),
            (unsigned long long)s->index.accounts.bytes, s->index.accounts.n,
            (unsigned long long)s->index.n_spans);
    if (st.host_used_bytes > st.host_bytes)
        sim_fail("BUDGET: %llu bytes on the host of %llu", (unsigned long long)st.host_used_bytes,
                 (unsigned long long)st.host_bytes);
    sim_count(COUNT_recounts, 1);
    recount(s);
    if (!idle)
        return;
    if (st.pages_live != 0)
        sim_fail("LEAK: %llu pages are in use and no sequence is open", (unsigned long long)st.pages_live);
    if (!st.disk_on)
        return;
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_records; i++)
        n += records[i].state == RECORD_DURABLE && records[i].loaded && !records[i].foreign;
    if (st.pending_bytes == 0 && n != st.disk_spans + st.disk_checkpoints && !sim_has_faults())
        sim_fail(
            "BALANCE: %llu records were stored and not deleted, %llu spans and %llu checkpoints are alive",
            (unsigned long long)n, (unsigned long long)st.disk_spans,
            (unsigned long long)st.disk_checkpoints);
    if (st.pending_bytes == 0)
        check_records(s);
}

/* recount.c asserts with cmocka. */
void __wrap__assert_true(uintmax_t result, const char *expression, const char *file, int line);
void __wrap__assert_true(uintmax_t result, const char *expression, const char *file, int line)
{
    if (!result)
        sim_fail("RECOUNT: %s:%d: %s", file, line, expression);
}

void __wrap__assert_int_equal(uintmax_t a, uintmax_t b, const char *file, int line);
void __wrap__assert_int_equal(uintmax_t a, uintmax_t b, const char *file, int line)
{
    if (a != b)
        sim_fail("RECOUNT: %s:%d: %llu is not %llu", file, line, (unsigned long long)a,
                 (unsigned long long)b);
}
