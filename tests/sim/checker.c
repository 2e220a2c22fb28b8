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
#include "tests/sim/checker_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cachestore/key.h"
#include "cachestore/store.h"
#include "cachestore/tier_disk_impl.h"
#include "tests/cachestore/recount.h"
#include "tests/sim/engine.h"
#include "tests/sim/tenants.h"

struct record records[N_RECORDS];
uint64_t records_acknowledged;
uint32_t n_records;
static struct record *by_id[N_BUCKETS];
static struct page pages[N_PAGES];
static uint32_t n_pages;
struct page *pages_by_key[N_BUCKETS];

const struct cs_config *checker_config;
static struct cs_store *store;
bool checker_opening, checker_is_offline, checker_is_purging, checker_rebuilt, checker_rebuilding;
static bool serving, ended_cleanly, expects;

/* ---- records ----------------------------------------------------------------------------------------- */

struct record *record_find(struct record_id id)
{
    struct record *r = by_id[(id.sequence ^ id.sequence >> 29) % N_BUCKETS];
    while (r != NULL && !record_id_equal(r->id, id))
        r = r->next;
    return r;
}

struct record *record_add(const struct span_record *s, uint32_t page_tokens)
{
    if (n_records == N_RECORDS || s->n_pages > RECORD_PAGES * 64)
        sim_fail("the checker has no room for a record of %u pages", s->n_pages);
    if (record_find(s->id) != NULL)
        sim_fail("a record id is used twice");
    struct record *r = &records[n_records++];
    *r = (struct record){.id = s->id,
                         .checkpoint = s->kind == RECORD_CHECKPOINT,
                         .fingerprint = checker_config->fingerprint[0],
                         .tenant = s->tenant,
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
        struct page *p = &pages[n_pages++], **bucket = &pages_by_key[r->keys[i].lo % N_BUCKETS];
        *p = (struct page){.key = r->keys[i], .record = r, .next = *bucket};
        *bucket = p;
    }
    return r;
}

/* Every sector holds what this record wrote there. */
bool record_is_intact(const struct record *r)
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

bool record_is_durable(const struct record *r)
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

bool record_can_be_expected(const struct record *r)
{
    return r->state == RECORD_DURABLE && !r->doubtful && !r->failed && r->loaded && record_is_intact(r);
}

/* ---- processes --------------------------------------------------------------------------------------- */

void checker_reset(void)
{
    n_records = n_pages = 0;
    memset(by_id, 0, sizeof by_id);
    memset(pages_by_key, 0, sizeof pages_by_key);
    ended_cleanly = false;
    store = NULL;
    checker_opening = serving = checker_is_offline = checker_rebuilt = false;
}

void checker_begin(const struct cs_config *c)
{
    checker_config = c;
    store = NULL;
    checker_opening = true;
    checker_rebuilding = false;
    tenants_begin(c);
    serving = checker_is_offline = expects = false;
    for (uint32_t i = 0; i < n_records; i++) {
        records[i].loaded = records[i].failed = false;
        records[i].foreign = records[i].fingerprint != c->fingerprint[0];
        if (records[i].state == RECORD_DURABLE &&
            !record_is_intact(&records[i])) /* even if it is once more, later */
            records[i].doubtful = true;
    }
}

void checker_offline(bool purges, bool rebuilds)
{
    checker_rebuilt = checker_rebuilt || rebuilds;
    checker_opening = serving = false;
    checker_is_offline = true;
    checker_is_purging = purges;
    for (uint32_t i = 0; i < n_records; i++)
        records[i].purging = false;
}

/* Damaged ones that were left in the middle stay for what hangs on them, and are not read. */
static void note_husks(struct cs_store *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint64_t i = 0; i <= s->index.bucket_mask && s->n_husks > 0; i++)
        for (const struct span *sp = s->index.buckets[i]; sp != NULL; sp = sp->hash_next) {
            struct record *r = record_find(sp->husk);
            if (r != NULL)
                r->failed = true;
        }
    pthread_mutex_unlock(&s->lock);
}

/* Pins are as many rows; what is let go of at open for want of room is no pin any more. */
static void find_pins(const struct cs_store *s)
{
    for (uint32_t i = 0; i < n_records; i++)
        records[i].pinned = false;
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp != NULL; sp = sp->hash_next) {
            struct record *r = sp->kept ? record_find(sp->id) : NULL;
            if (r != NULL)
                r->pinned = true;
        }
}

void checker_opened(struct cs_store *s, bool disk_on)
{
    store = s;
    checker_opening = false;
    tenants_opened(s, disk_on, !checker_rebuilding);
    serving = expects = disk_on;
    if (!disk_on)
        return;
    find_pins(s);
    for (uint32_t i = 0; i < n_records; i++) {
        struct record *r = &records[i];
        if (r->state != RECORD_DURABLE || r->foreign || r->doubtful || r->loaded || !record_is_intact(r))
            continue;
        if (checker_rebuilt && sim.odds[FAULT_read_error] > 0) /* its header could not be read then */
            r->doubtful = true;
        else
            sim_fail("a durable record (%llx) was not found at open", (unsigned long long)r->id.sequence);
    }
    note_husks(s);
}

void checker_closing(void)
{
    store = NULL;
    serving = false;
}

void checker_ended(bool power)
{
    tenants_ended();
    ended_cleanly = !power && !checker_opening && !serving && !checker_is_offline;
    store = NULL;
    for (uint32_t i = 0; i < n_records; i++) {
        struct record *r = &records[i];
        if (r->state == RECORD_WRITING) /* its row may be there, or not */
            r->doubtful = true;
        if (power && r->lied)
            r->doubtful = true;
        r->foreign = true; /* until somebody opens with its fingerprint */
    }
    checker_opening = serving = checker_is_offline = false;
}

struct cs_store *checker_store(void)
{
    return store;
}

bool checker_serves(const struct cs_store *s)
{
    return s != NULL && s == store;
}

uint64_t checker_tenant_bytes(const struct cs_tenant *tenant)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_records; i++) {
        const struct record *r = &records[i];
        bool there = r->state == RECORD_WRITING ? !r->doubtful : r->state == RECORD_DURABLE && !r->failed;
        if (there && r->loaded && !r->foreign && memcmp(&r->tenant, tenant, sizeof *tenant) == 0)
            n += r->bytes;
    }
    return n;
}

/* ---- look-ups ---------------------------------------------------------------------------------------- */

struct expectation checker_expect(struct cs_store *s, const struct turn *t, uint64_t as_of)
{
    struct expectation e = {.as_of = records_acknowledged};
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
        for (const struct page *p = pages_by_key[key.lo % N_BUCKETS]; p != NULL; p = p->next) {
            if (!key_equal(p->key, key) || p->record->foreign || p->record->since > as_of)
                continue;
            if (p->record->checkpoint)
                state = state || record_can_be_expected(p->record);
            else
                there = there || record_can_be_expected(p->record);
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
        return checker_config->restore_deadline_ms > 0;
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
    if (store != NULL)
        tenants_found(store, t, matched);
    sim_note((uint64_t)reused << 32 ^ matched << 8 ^ reuse->miss);
    sim_count(COUNT_lookups, 1);
    sim_count(COUNT_pages_looked_up, t->n_prompt > 0 ? (t->n_prompt - 1) / t->g->page_tokens : 0);
    sim_count(COUNT_pages_expected, least);
    sim_count(COUNT_pages_served, reused);
    sim_count(COUNT_pages_served_over_host, checker_config->host_bytes > 0 ? reused : 0);
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
    if (bytes > checker_config->disk_bytes)
        sim_fail("BUDGET: %llu bytes on disk of %llu", (unsigned long long)bytes,
                 (unsigned long long)checker_config->disk_bytes);
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
    if (st.index_bytes > st.index_budget)
        sim_fail(
            "BUDGET: %llu bytes of index of %llu (%llu of the disk tier, %llu of %u accounts, %llu spans)",
            (unsigned long long)st.index_bytes, (unsigned long long)st.index_budget,
            (unsigned long long)(s->disk ? s->tier->memory_bytes(s->disk) : 0),
            (unsigned long long)s->index.accounts.bytes, s->index.accounts.n,
            (unsigned long long)s->index.n_spans);
    if (st.host_used_bytes > st.host_bytes)
        sim_fail("BUDGET: %llu bytes on the host of %llu", (unsigned long long)st.host_used_bytes,
                 (unsigned long long)st.host_bytes);
    if (st.corrupt_host > 0 && sim.odds[FAULT_copy_error] == 0)
        sim_fail("%llu reads from the host found damage there", (unsigned long long)st.corrupt_host);
    sim_count(COUNT_recounts, 1);
    recount(s);
    tenants_check(s, idle && st.pending_bytes == 0);
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
