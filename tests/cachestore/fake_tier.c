/* A disk tier in memory (see fake_tier.h). */
#include "tests/cachestore/fake_tier.h"

#include "cachestore/store.h"
#include "tests/cachestore/fake_device.h"

#include <stdlib.h>
#include <string.h>

static struct fake_tier *next_fake;

static struct fake_tier *fake(const struct tier_disk *t)
{
    return (struct fake_tier *)t;
}

static bool no_key(struct cs_key k)
{
    return k.lo == 0 && k.hi == 0;
}

static struct fake_record *find_record(struct fake_tier *f, struct record_id id)
{
    for (size_t i = 0; i < f->n_records; i++)
        if (record_id_equal(f->records[i].record.id, id))
            return &f->records[i];
    return NULL;
}

/* Key of page `ordinal` of a record, by the chain. */
static bool record_has_page_key(const struct span_record *r, struct cs_key key)
{
    struct cs_key k = r->key;
    for (uint32_t i = 0; i < r->n_pages && r->kind == RECORD_SPAN; i++) {
        if (i > 0) {
            struct cs_chain c = {.page_key = k, .page_tokens = PT};
            cs_chain_add(&c, r->ids + (size_t)i * PT, PT);
            k = c.page_key;
        }
        if (k.lo == key.lo && k.hi == key.hi)
            return true;
    }
    return false;
}

static uint64_t fake_record_bytes(const struct tier_disk *t, enum record_kind kind, uint32_t n_pages)
{
    (void)t;
    (void)kind;
    return (n_pages + 1) * (uint64_t)PAGE;
}

static int64_t fake_free_bytes(const struct tier_disk *t)
{
    struct fake_tier *f = fake(t);
    int64_t used = 0;
    for (size_t i = 0; i < f->n_records; i++)
        used += (int64_t)fake_record_bytes(t, f->records[i].record.kind, f->records[i].record.n_pages);
    for (size_t i = 0; i < f->n_writes; i++)
        used += (int64_t)fake_record_bytes(t, f->writes[i]->record.kind, f->writes[i]->record.n_pages);
    return (int64_t)f->budget - used;
}

static int fake_tier_open(const struct cs_config *config, const struct tier_disk_events *events,
                          struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len)
{
    (void)config;
    (void)err;
    (void)err_len;
    struct fake_tier *f = next_fake;
    memset(secret, 42, 16);
    f->nonce++;
    for (size_t i = 0; i < sizeof f->quotas / sizeof *f->quotas; i++)
        if (f->quotas[i].quota.device_bytes + f->quotas[i].quota.host_bytes + f->quotas[i].quota.disk_bytes >
            0)
            assert_int_equal(events->on_quota(events->ctx, &f->quotas[i].tenant, &f->quotas[i].quota), 0);
    /* Newest first; what is refused goes. */
    for (size_t i = f->n_records; i-- > 0;)
        assert_int_equal(
            events->on_span(events->ctx, &f->records[i].record,
                            fake_record_bytes(NULL, f->records[i].record.kind, f->records[i].record.n_pages)),
            0);
    for (size_t i = f->n_notes; i-- > 0;) {
        struct note_record n = {.id = f->notes[i].id,
                                .owner = f->notes[i].owner,
                                .notes = f->notes[i].notes,
                                .n_notes = f->notes[i].n};
        assert_int_equal(events->on_notes(events->ctx, &n), 0);
    }
    *out = (struct tier_disk *)f;
    return CS_OK;
}

/* Slots are by the first byte of the tenant's id. */
static int fake_quota(struct tier_disk *t, const struct cs_tenant *tenant, const struct cs_quota *quota)
{
    struct fake_tier *f = fake(t);
    assert_true(tenant->id[0] < sizeof f->quotas / sizeof *f->quotas);
    f->quotas[tenant->id[0]] = (struct fake_quota){*tenant, *quota};
    return CS_OK;
}

static struct record_id fake_next_id(struct tier_disk *t)
{
    return (struct record_id){.nonce = fake(t)->nonce, .sequence = ++fake(t)->next_sequence};
}

static void notes_keep(struct fake_tier *f, const struct note_record *n)
{
    f->notes = realloc(f->notes, (f->n_notes + 1) * sizeof *f->notes);
    struct fake_notes *to = &f->notes[f->n_notes++];
    *to = (struct fake_notes){
        .id = n->id, .owner = n->owner, .n = n->n_notes, .notes = calloc(n->n_notes, sizeof *to->notes)};
    for (size_t i = 0; i < n->n_notes; i++) {
        to->notes[i] = n->notes[i];
        void *data = malloc(n->notes[i].len + 1);
        memcpy(data, n->notes[i].data, n->notes[i].len);
        to->notes[i].data = data;
    }
}

static void notes_free(struct fake_notes *n)
{
    for (size_t i = 0; i < n->n; i++)
        free((void *)n->notes[i].data);
    free(n->notes);
}

/* Those of one row, or of all rows of an owner (id NULL). */
static void notes_forget(struct fake_tier *f, struct record_id owner, const struct record_id *id)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->n_notes; i++)
        if (record_id_equal(f->notes[i].owner, owner) && (!id || record_id_equal(f->notes[i].id, *id)))
            notes_free(&f->notes[i]);
        else
            f->notes[kept++] = f->notes[i];
    f->n_notes = kept;
}

static int fake_write_notes(struct tier_disk *t, const struct note_record *n)
{
    if (!find_record(fake(t), n->owner))
        fail_msg("%s", "a row of notes was written before its span's");
    if (fake(t)->refuse_notes) {
        fake(t)->n_notes_refused++;
        return CS_EFULL;
    }
    notes_keep(fake(t), n);
    return CS_OK;
}

static void fake_write(struct tier_disk *t, struct tier_write *w)
{
    struct fake_tier *f = fake(t);
    assert_true(f->n_writes < 256);
    assert_true(w->record.kind == RECORD_SPAN || w->record.kind == RECORD_CHECKPOINT);
    bool found = no_key(w->record.parent);
    assert_int_equal(found, w->record.first_position == 0);
    for (size_t i = 0; i < f->n_records && !found; i++)
        found = record_has_page_key(&f->records[i].record, w->record.parent);
    for (size_t i = 0; i < f->n_writes && !found; i++)
        found = record_has_page_key(&f->writes[i]->record, w->record.parent);
    if (!found && !f->allow_parent_delete)
        fail_msg("%s", "a child was written before its parent");
    f->writes[f->n_writes++] = w;
    const struct note_record notes = {
        .id = w->record.id, .owner = w->record.id, .notes = w->notes, .n_notes = w->n_notes};
    if (w->n_notes > 0)
        notes_keep(f, &notes);
    if (fake_free_bytes(t) < 0)
        fail_msg("%s", "a write beyond the budget");
}

static void fake_read(struct tier_disk *t, struct tier_read *const *reads, size_t n)
{
    struct fake_tier *f = fake(t);
    f->n_read_calls++;
    for (size_t i = 0; i < n; i++) {
        assert_true(f->n_reads < 256);
        f->reads[f->n_reads++] = reads[i];
        f->n_reads_queued++;
    }
}

static void record_free(struct fake_record *r)
{
    free((void *)r->record.ids);
    free(r->bytes);
}

static void fake_delete(struct tier_disk *t, struct record_id id)
{
    struct fake_tier *f = fake(t);
    struct fake_record *r = find_record(f, id);
    if (!r)
        return;
    for (size_t i = 0; i < f->n_records && !f->allow_parent_delete; i++)
        if (&f->records[i] != r && record_has_page_key(&r->record, f->records[i].record.parent))
            fail_msg("%s", "a record with children on disk was deleted");
    notes_forget(f, id, NULL);
    record_free(r);
    memmove(r, r + 1, (size_t)(f->records + f->n_records - r - 1) * sizeof *r);
    f->n_records--;
    f->n_deleted++;
}

static void fake_delete_notes(struct tier_disk *t, struct record_id owner, struct record_id id)
{
    assert_false(record_id_equal(owner, id));
    notes_forget(fake(t), owner, &id);
}

static void fake_touch(struct tier_disk *t, struct record_id id, int64_t used_unix)
{
    struct fake_record *r = find_record(fake(t), id);
    fake(t)->n_touches++;
    if (r)
        r->record.used_unix = used_unix;
}

static void fake_settle(struct tier_disk *t, uint32_t deadline_ms)
{
    (void)t;
    (void)deadline_ms;
}

static void fake_kick(struct tier_disk *t)
{
    fake(t)->n_kicks++;
}

static uint64_t fake_pending_bytes(const struct tier_disk *t)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < fake(t)->n_writes; i++)
        bytes += fake(t)->writes[i]->record.n_pages * (uint64_t)PAGE;
    return bytes;
}

static uint64_t fake_memory_bytes(const struct tier_disk *t)
{
    (void)t;
    return 0;
}

static void fake_stats(const struct tier_disk *t, struct cs_stats *out)
{
    out->disk_on = true;
    out->disk_engine = "fake";
    out->disk_budget = fake(t)->budget;
    out->disk_bytes = fake(t)->budget - (uint64_t)fake_free_bytes(t);
}

static void fake_latencies(const struct tier_disk *t, struct cs_latencies *out)
{
    out->read.count[0] = fake(t)->n_reads_queued; /* they take no time */
}

static void fake_close(struct tier_disk *t, uint32_t deadline_ms)
{
    (void)deadline_ms;
    struct fake_tier *f = fake(t);
    while (f->n_writes > 0)
        fake_finish_write(f, TIER_CANCELLED);
    fake_finish_reads(f, TIER_CANCELLED);
}

const struct tier_vtable fake_vtable = {
    .open = fake_tier_open,
    .record_bytes = fake_record_bytes,
    .free_bytes = fake_free_bytes,
    .next_id = fake_next_id,
    .write = fake_write,
    .write_notes = fake_write_notes,
    .read = fake_read,
    .delete_span = fake_delete,
    .delete_notes = fake_delete_notes,
    .touch = fake_touch,
    .quota = fake_quota,
    .settle = fake_settle,
    .kick = fake_kick,
    .pending_bytes = fake_pending_bytes,
    .memory_bytes = fake_memory_bytes,
    .stats = fake_stats,
    .latencies = fake_latencies,
    .close = fake_close,
};

struct cs_store *fake_open(struct fake_tier *f, const struct cs_config *c)
{
    struct cs_store *s = NULL;
    char err[200] = "";
    next_fake = f;
    if (f->budget == 0)
        f->budget = 1 << 30;
    struct cs_config config = *c;
    config.disk_dir = "memory";
    config.disk_bytes = f->budget;
    if (store_open(&config, &fake_vtable, &s, err, sizeof err) != CS_OK)
        fail_msg("store_open: %s", err);
    return s;
}

void fake_free(struct fake_tier *f)
{
    for (size_t i = 0; i < f->n_records; i++)
        record_free(&f->records[i]);
    for (size_t i = 0; i < f->n_notes; i++)
        notes_free(&f->notes[i]);
    free(f->records);
    free(f->notes);
    *f = (struct fake_tier){0};
}

size_t fake_note_rows(const struct fake_tier *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_notes; i++)
        n += !record_id_equal(f->notes[i].id, f->notes[i].owner);
    return n;
}

void fake_finish_write(struct fake_tier *f, enum tier_result result)
{
    struct tier_write *w = f->writes[0];
    memmove(f->writes, f->writes + 1, --f->n_writes * sizeof(struct tier_write *));
    for (uint32_t i = 0; i < w->record.n_pages && w->check && result == TIER_OK; i++)
        if (!w->check(w->ctx, i))
            result = TIER_EIO;
    if (result == TIER_OK) {
        f->records = realloc(f->records, (f->n_records + 1) * sizeof *f->records);
        struct fake_record *r = &f->records[f->n_records++];
        r->record = w->record;
        size_t n_ids = (w->record.kind == RECORD_SPAN ? w->record.n_pages : 1) * (size_t)PT;
        uint32_t *ids = malloc(n_ids * sizeof *ids);
        memcpy(ids, w->record.ids, n_ids * sizeof *ids);
        r->record.ids = ids;
        r->bytes = malloc(w->record.n_pages * (size_t)PAGE);
        for (uint32_t i = 0; i < w->record.n_pages; i++)
            memcpy(r->bytes + i * (size_t)PAGE, w->pages[i], PAGE);
        f->n_written++;
    } else {
        notes_forget(f, w->record.id, NULL);
    }
    w->durable(w->ctx, w, result);
}

void fake_finish_writes(struct fake_tier *f, enum tier_result result)
{
    while (f->n_writes > 0)
        fake_finish_write(f, result);
}

void fake_finish_read(struct fake_tier *f, size_t i, enum tier_result result)
{
    struct tier_read *r = f->reads[i];
    memmove(f->reads + i, f->reads + i + 1, (--f->n_reads - i) * sizeof(struct tier_read *));
    struct fake_record *record = find_record(f, r->record.id);
    if (!record)
        result = TIER_NOTFOUND;
    else
        assert_true(record->record.kind == r->record.kind && record->record.flags == r->record.flags);
    for (uint32_t p = 0; p < r->n_pages; p++)
        if (result == TIER_OK)
            memcpy(r->pages[p], record->bytes + (r->first_page + p) * (size_t)PAGE, PAGE);
        else
            memset(r->pages[p], 0xEE, PAGE); /* a read that fails may have written anything */
    r->done(r->ctx, r, result);
}

void fake_finish_reads(struct fake_tier *f, enum tier_result result)
{
    while (f->n_reads > 0)
        fake_finish_read(f, 0, result);
}

void fake_finish_everything(struct fake_tier *f)
{
    do {
        fake_device_finish_all();
        if (f) {
            fake_finish_reads(f, TIER_OK);
            fake_finish_writes(f, TIER_OK);
        }
    } while (fake_device_n_queued() > 0);
}

void settle_store(struct cs_store *s, struct fake_tier *f)
{
    /* A span that became durable brings what waited for it. */
    for (int round = 0; round < 8; round++) {
        cs_flush(s, 0);
        fake_finish_everything(f);
    }
}

bool damage_host_block(struct cs_store *s, uint64_t *rng)
{
    bool done = false;
    pthread_mutex_lock(&s->lock);
    uint32_t first = s->host.n_pages ? (uint32_t)(random_next(rng) >> 20) % s->host.n_pages : 0;
    for (uint32_t i = 0; i < s->host.n_pages && !done; i++) {
        uint32_t block = (first + i) % s->host.n_pages;
        const struct span *sp = s->host.pages[block].owner;
        done = sp && sp->n_loading == 0 && sp->disk != SPAN_DISK_COPYING;
        if (done)
            ((uint8_t *)arena_address(&s->host, block))[random_next(rng) % PAGE] ^= 1;
    }
    pthread_mutex_unlock(&s->lock);
    return done;
}

uint64_t records_known(struct cs_store *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->index.n_disk_spans + s->n_husks;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void store_durably(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, size_t n)
{
    round_trip(s, NULL, ids, n);
    fake_finish_writes(f, TIER_OK);
    assert_int_equal(cs_flush(s, 0), CS_OK);
}

void empty_device(struct cs_store *s)
{
    uint32_t ids[1] = {1};
    struct cs_reuse r;
    struct cs_sequence *q = open_settled(s, NULL, ids, 1, &r);
    assert_int_equal(cs_sequence_grow(q, stats_of(s).pages_total * PT), CS_OK);
    cs_sequence_close(q);
    assert_int_equal(stats_of(s).pages_cached, 0);
}

struct cs_sequence *open_loading(struct cs_store *s, const uint32_t *ids, size_t n)
{
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, NULL, ids, n, &q), CS_OK);
    assert_int_equal(cs_sequence_poll(q, NULL), 0);
    return q;
}

void check_from_disk(struct fake_tier *f, struct cs_store *s, const uint32_t *ids, size_t n)
{
    struct cs_sequence *q = open_loading(s, ids, n + 1);
    fake_finish_reads(f, TIER_OK);
    assert_int_equal(wait_settled(q).tokens_disk, n);
    check_pages(q, ids, n / PT, 0);
    cs_sequence_close(q);
}
