/*
 * Asks the store through its socket, on a thread of its own, in the middle of everything else: listings,
 * verification and explanations, which must agree with what the checker knows; deletions for good, of which
 * nothing may be left or come back; pins, which hold from the answer on; limits of tenants; draining, after
 * which nothing waits and nothing is written.
 */
#include "tests/sim/asker.h"

#include <pthread.h>
#include <string.h>

#include "cachestore/inspect.h"
#include "cachestore/key.h"
#include "tests/sim/checker_impl.h"
#include "tests/sim/tenants.h"

enum { WAITING_MAX = 512, VERIFIED_MAX = 24, DRAIN_MS = 60000 };

bool asker_has_drained;

static struct {
    const struct geometry *g;
    const struct cs_config *config;
    uint32_t (*path)(void);
    pthread_t thread;
    bool works, stops, drains;
} asker;

/* What a listing or deletion is compared with. */
struct chosen {
    bool was_there[N_RECORDS], listed[N_RECORDS];
    struct cs_span_info spans[VERIFIED_MAX];
    uint32_t n, residue;
    bool by_tenant;
};

static uint32_t dice(uint32_t n)
{
    return sim_below(&sim.random_work, n);
}

/* ---- listings ---------------------------------------------------------------------------------------- */

static bool is_there(const struct record *r)
{
    return r->state == RECORD_DURABLE && r->loaded && !r->foreign && !r->failed && !r->doubtful;
}

static void look_before(struct chosen *k)
{
    memset(k, 0, sizeof *k);
    for (uint32_t i = 0; i < n_records; i++)
        k->was_there[i] = is_there(&records[i]);
}

static struct record *record_of(const struct cs_span_info *span)
{
    return record_find((struct record_id){span->record_id[0], span->record_id[1]});
}

static int on_span(void *ctx, const struct cs_span_info *span)
{
    struct chosen *k = ctx;
    const struct record *r = span->on_disk ? record_of(span) : NULL;
    if (span->on_disk && r == NULL)
        sim_fail("a record is listed that was never written");
    if (r != NULL && r->purged)
        sim_fail("record %llx was deleted for good, and is listed", (unsigned long long)r->id.sequence);
    if (r != NULL && memcmp(&r->tenant, &span->tenant, sizeof r->tenant) != 0)
        sim_fail("record %llx is listed as another tenant's", (unsigned long long)r->id.sequence);
    if (r != NULL)
        k->listed[r - records] = true;
    if (k->n < VERIFIED_MAX || dice(4) == 0)
        k->spans[k->n < VERIFIED_MAX ? k->n : dice(VERIFIED_MAX)] = *span;
    k->n++;
    return 0;
}

/* What was there all the time is in the list. */
static int list(struct cs_inspect *in, struct chosen *k)
{
    look_before(k);
    int rc = cs_inspect_spans(in, on_span, k);
    for (uint32_t i = 0; i < N_RECORDS && rc == CS_OK && checker_store() != NULL; i++)
        if (k->was_there[i] && is_there(&records[i]) && !k->listed[i])
            sim_fail("record %llx is on disk, and is not listed", (unsigned long long)records[i].id.sequence);
    k->n = k->n < VERIFIED_MAX ? k->n : VERIFIED_MAX;
    return rc;
}

static int verify(struct cs_inspect *in, const struct cs_span_info *span, char *err, size_t err_len)
{
    struct cs_record *record = NULL;
    int rc = dice(2) == 0 ? cs_inspect_verify(in, span, err, err_len)
                          : cs_inspect_record(in, span, &record, err, err_len);
    cs_record_free(record);
    if (rc == CS_ECORRUPT && checker_store() != NULL) {
        const struct record *r = record_of(span);
        if (r != NULL && is_there(r) && record_is_intact(r))
            sim_fail("record %llx is whole, and damaged to who asks: %s", (unsigned long long)r->id.sequence,
                     err);
        return CS_OK; /* rightly */
    }
    return rc == CS_ENOTFOUND ? CS_OK : rc; /* it has left since */
}

static int explain(struct cs_inspect *in)
{
    struct turn t = {.g = asker.g, .path = asker.path()};
    struct cs_tenant tenant = path_tenant(t.path);
    struct cs_explanation e;
    t.n = path_ids(t.path, t.ids);
    t.n_prompt = 1 + dice(t.n);
    if (checker_store() == NULL)
        return CS_OK;
    struct expectation before = checker_expect(checker_store(), &t, UINT64_MAX);
    int rc = cs_inspect_explain(in, asker.config->fingerprint, &tenant, t.ids, t.n_prompt, NULL, NULL, &e);
    if (rc == CS_ENOTFOUND) { /* of this model there is nothing */
        memset(&e, 0, sizeof e);
        rc = CS_OK;
    }
    if (rc != CS_OK || checker_store() == NULL)
        return rc;
    struct expectation now = checker_expect(checker_store(), &t, before.as_of);
    uint32_t least = before.pages < now.pages ? before.pages : now.pages,
             stored = e.n_stored / asker.g->page_tokens;
    SIM_SAY("asked: path %u is explained: %u pages are stored, at least %u expected", t.path, stored, least);
    if (stored < least && sim.odds[FAULT_read_error] + sim.odds[FAULT_no_memory] == 0)
        sim_fail("path %u: %u pages are durable and whole, and %u are explained", t.path, least, stored);
    t.n_prompt++; /* nothing has to be left to compute */
    if (stored > tenants_own_pages(checker_store(), &t))
        sim_fail("path %u: more pages are explained than its tenant has published", t.path);
    return rc;
}

/* ---- deletion for good ------------------------------------------------------------------------------- */

static bool is_wanted(const struct chosen *k, const struct cs_tenant *tenant, struct cs_key key)
{
    return k->by_tenant ? tenant->id[0] == k->residue : key.lo % 8 == k->residue;
}

static int wanted(void *ctx, const struct cs_span_info *span)
{
    return is_wanted(ctx, &span->tenant, span->key);
}

static int purge(struct cs_inspect *in, struct chosen *k, char *err, size_t err_len)
{
    struct cs_evicted out = {0};
    look_before(k);
    k->residue = dice(8);
    k->by_tenant = dice(3) == 0;
    checker_purges();
    const struct cs_store *s = checker_store();
    uint64_t epoch = s != NULL ? checker_epoch(s) : 0;
    int rc = cs_inspect_evict(in, wanted, k, dice(2) == 0, &out, err, err_len);
    SIM_SAY("asked: deleted for good: %s, %llu records, %llu leftovers, %llu remaining", cs_strerror(rc),
            (unsigned long long)(out.spans + out.checkpoints), (unsigned long long)out.leftovers,
            (unsigned long long)out.remaining);
    if (rc != CS_OK || checker_store() == NULL)
        return rc;
    sim_count(COUNT_purges, 1);
    sim_count(COUNT_records_purged, out.spans + out.checkpoints);
    if (out.spans + out.checkpoints + out.leftovers > 0 && checker_epoch(s) <= epoch)
        sim_fail("records were deleted for good, and the epoch is what it was");
    checker_purged();
    for (uint32_t i = 0; i < N_RECORDS && out.remaining == 0; i++)
        if (k->was_there[i] && is_there(&records[i]) && is_wanted(k, &records[i].tenant, records[i].key))
            sim_fail("record %llx was to be deleted for good, and is there",
                     (unsigned long long)records[i].id.sequence);
    return rc;
}

/* ---- pins -------------------------------------------------------------------------------------------- */

static int pin(struct cs_inspect *in, struct chosen *k, char *err, size_t err_len)
{
    int rc = list(in, k);
    const struct cs_span_info *span = k->n > 0 ? &k->spans[dice(k->n)] : NULL;
    struct record *r = span != NULL && span->on_disk ? record_of(span) : NULL;
    if (rc != CS_OK || r == NULL)
        return rc;
    bool on = dice(3) > 0;
    if (!on)
        checker_pin(r, false);
    rc = cs_inspect_pin(in, span, on, err, err_len);
    SIM_SAY("asked: record %llx is %s: %s", (unsigned long long)r->id.sequence, on ? "pinned" : "let go",
            cs_strerror(rc));
    sim_count(COUNT_pins_set, on && rc == CS_OK);
    if (on && rc == CS_OK && checker_store() != NULL && is_there(r))
        checker_pin(r, true);
    return rc == CS_ENOTFOUND || rc == CS_EBUSY || rc == CS_EFULL ? CS_OK : rc;
}

/* ---- draining ---------------------------------------------------------------------------------------- */

static struct cs_key waiting[WAITING_MAX];
static uint32_t n_waiting;

static bool waits(const struct span *sp)
{
    return sp->disk != SPAN_DISK_NONE && sp->disk != SPAN_DISK_DURABLE;
}

/* What leads to it is on disk or on its way there. */
static bool is_led_to(const struct span *sp)
{
    for (sp = sp->parent; sp != NULL; sp = sp->parent)
        if (sp->disk == SPAN_DISK_NONE)
            return false;
    return true;
}

static void note_waiting(struct cs_store *s)
{
    n_waiting = 0;
    pthread_mutex_lock(&s->lock);
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp != NULL; sp = sp->hash_next)
            if (waits(sp) && is_led_to(sp) && n_waiting < WAITING_MAX)
                waiting[n_waiting++] = sp->key;
    pthread_mutex_unlock(&s->lock);
}

/* Ways to leave, or not to come. */
static uint64_t count_lost(const struct cs_store *s)
{
    struct cs_stats st;
    cs_stats_get(s, &st);
    uint64_t n = st.dropped_undurable + st.dropped_queue_full + st.dropped_index_full + st.dropped_disk_full +
                 st.dropped_endurance + st.dropped_quota + st.thinned_checkpoints;
    for (int g = 0; g < CS_GONE_COUNT; g++)
        n += st.kept_disk_spans.gone[g] + st.kept_disk_checkpoints.gone[g];
    return n;
}

/* What waited when the drain began is on disk now, or something was lost and counted: what hangs on a record
 * that was not written is not counted with it. */
static void check_drained(struct cs_store *s, uint64_t lost_before)
{
    uint32_t n_lost = 0;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n_waiting; i++) {
        const struct span *sp = s->index.buckets[waiting[i].lo & s->index.bucket_mask];
        while (sp != NULL && !key_equal(sp->key, waiting[i]))
            sp = sp->hash_next;
        if (sp != NULL && waits(sp))
            sim_fail("drained, and %s at %u still wait", sp->kind == SPAN_CHECKPOINT ? "blocks" : "pages",
                     sp->first_position);
        n_lost += sp == NULL || sp->disk == SPAN_DISK_NONE;
    }
    pthread_mutex_unlock(&s->lock);
    uint64_t lost = count_lost(s) - lost_before;
    if (n_lost > 0 && lost == 0 && !sim_has_faults())
        sim_fail("drained, and %u of what waited is not on disk, and nothing was counted", n_lost);
}

static int drain(struct cs_inspect *in)
{
    struct cs_pending p = {.bytes = 1};
    struct cs_store *s = checker_store();
    if (s == NULL)
        return CS_OK;
    uint64_t start = sim.now_ns, lost = count_lost(s);
    int rc = cs_inspect_drain(in, true);
    bool began = rc == CS_OK && !asker.drains;
    asker.drains = asker.drains || rc == CS_OK;
    if (rc == CS_OK && checker_serves(s))
        note_waiting(s);
    while (rc == CS_OK && !asker.stops && p.bytes > 0) {
        fibers_sleep(100000ull << dice(6));
        rc = cs_inspect_pending(in, &p);
        if (sim.now_ns - start > DRAIN_MS * 1000000ull && !sim_has_faults())
            sim_fail("%llu bytes are pending after %d simulated seconds of draining",
                     (unsigned long long)p.bytes, DRAIN_MS / 1000);
        if (sim.now_ns - start > DRAIN_MS * 1000000ull)
            break;
    }
    if (rc == CS_OK && p.bytes == 0 && checker_serves(s)) {
        if (!p.draining)
            sim_fail("it does not drain");
        if (began)
            check_drained(s, lost);
        asker_has_drained = true;
        sim_count(COUNT_drains, 1);
        fibers_sleep(1000000ull << dice(6));
    }
    if (rc != CS_OK || dice(4) == 0)
        return rc; /* it goes on, or ends with the process */
    asker_has_drained = false;
    rc = cs_inspect_drain(in, false);
    asker.drains = rc != CS_OK;
    return rc;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static int on_figure(void *ctx, const struct cs_figure *f)
{
    *(uint32_t *)ctx += f->name != NULL;
    return 0;
}

static int ask(struct cs_inspect *in, struct chosen *k, char *err, size_t err_len)
{
    uint32_t n = 0;
    int rc;
    switch (dice(12)) {
    case 0:
        return list(in, k);
    case 1:
    case 2: /* scrub */
        rc = list(in, k);
        for (uint32_t i = 0; i < k->n && rc == CS_OK; i++)
            rc = verify(in, &k->spans[i], err, err_len);
        return rc;
    case 3:
    case 4:
        return explain(in);
    case 5:
    case 6:
        return purge(in, k, err, err_len);
    case 7:
        return pin(in, k, err, err_len);
    case 8:
        return drain(in);
    case 9:
        tenants_listing();
        return cs_inspect_tenants(in, tenants_listed, checker_store());
    case 10:
        rc = cs_inspect_figures(in, on_figure, &n);
        if (rc == CS_OK && n < 50)
            sim_fail("%u figures", n);
        return rc;
    default:
        return checker_store() == NULL ? CS_OK : tenants_change(checker_store(), in, err, err_len);
    }
}

static void *asker_main(void *arg)
{
    static struct chosen k; /* one thread */
    (void)arg;
    for (uint32_t left = 1 + dice(6); left > 0 && !asker.stops; left--) {
        struct cs_inspect *in = NULL;
        char err[300] = "";
        fibers_sleep(1000ull << dice(17));
        sim_count(COUNT_asked, 1);
        int rc = cs_inspect_connect(SIM_DIRECTORY, &in, err, sizeof err);
        if (rc == CS_OK)
            rc = ask(in, &k, err, sizeof err);
        cs_inspect_close(in);
        SIM_SAY("asked: %s %s", cs_strerror(rc), err);
        if (rc != CS_OK && !sim_has_faults() && !asker.stops && !(rc == CS_EFULL || rc == CS_ENOMEM))
            sim_fail("asked: %s: %s", cs_strerror(rc), err);
    }
    return NULL;
}

void asker_begin(const struct geometry *g, const struct cs_config *c, uint32_t (*path)(void))
{
    asker_has_drained = false;
    memset(&asker, 0, sizeof asker);
    asker.g = g;
    asker.config = c;
    asker.path = path;
    sim.calm++;
    asker.works = !c->no_control && pthread_create(&asker.thread, NULL, asker_main, NULL) == 0;
    sim.calm--;
}

void asker_stop(void)
{
    asker.stops = true;
}

void asker_end(void)
{
    asker.stops = true;
    fibers_wait_for_disk = true; /* its own reads may never end */
    if (asker.works)
        pthread_join(asker.thread, NULL);
    fibers_wait_for_disk = false;
    asker.works = false;
}
