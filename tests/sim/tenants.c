/*
 * Tenants that say the same, so that each could have hit what is another's, and their quotas: set, changed
 * and taken away while the store runs, through its socket, and while nobody has it open. What their limits
 * are is known here from what was set, and from the rows of the catalogue at the beginning.
 *
 * - A look-up finds only what its own tenant has published, and of one that never did it says no more than
 *   that nothing is there.
 * - A record is handed to the disk only where its tenant has room for it; what is over a limit and neither in
 *   use nor on its way down goes.
 * - With limits that add up to no more than the budget, nobody who keeps within them loses anything for room
 *   while others have more than theirs.
 * - Limits are what they were after a restart and a rebuild.
 */
#include "tests/sim/tenants.h"

#include <string.h>

#include "cachestore/catalog.h"
#include "cachestore/key.h"
#include "cachestore/policy/quota.h"
#include "cachestore/store.h"

enum { TENANTS_MAX = 8, N_PUBLISHED = 8192, N_BUCKETS = 1024, SETTLE_MS = 20000, SMALL_INDEX = 64 << 10 };

struct limits {
    struct cs_quota own, next;  /* next: being set; own: what was set last */
    bool changes, steady;       /* steady: not changed since the listing began */
    bool known;                 /* own was read, or set */
    bool stored;                /* ... and was in the catalogue when all had been flushed */
    struct cs_quota in_catalog; /* at the beginning of the process */
    int row;                    /* of rows_quota() */
};

static struct limits limits[TENANTS_MAX];
static struct cs_quota of_all;
static const struct cs_config *config;
static uint32_t n_tenants;
static bool with_quotas, shares;
static uint64_t n_evicted; /* from disk for room, so far */

static struct key_node {
    struct cs_key key;
    struct key_node *next;
} published[N_PUBLISHED], *by_key[N_BUCKETS];
static uint32_t n_published;

static uint32_t dice(uint32_t n)
{
    return sim_below(&sim.random_work, n);
}

static struct cs_tenant tenant_of(uint32_t number)
{
    return (struct cs_tenant){.id = {(uint8_t)number}};
}

void tenants_reset(void)
{
    memset(limits, 0, sizeof limits);
    memset(by_key, 0, sizeof by_key);
    n_published = 0;
    n_tenants = dice(2) == 0 ? 1 : 2 + dice(3);
    with_quotas = dice(3) == 0;
    shares = dice(3) == 0;
}

uint32_t tenants_n(void)
{
    return n_tenants;
}

static uint64_t share_of(uint64_t budget)
{
    return shares ? budget / (2 * n_tenants) : dice(2) == 0 ? 0 : budget / 16 * (1 + dice(16));
}

void tenants_plan(struct cs_config *c)
{
    c->tenant_quota = (struct cs_quota){0};
    if (!with_quotas || (!shares && dice(2) == 0))
        return;
    c->tenant_quota.device_bytes = share_of(c->arena_bytes);
    c->tenant_quota.host_bytes = share_of(c->host_bytes);
    c->tenant_quota.disk_bytes = share_of(c->disk_bytes / 2);
}

/* ---- limits ------------------------------------------------------------------------------------------ */

static bool same(const struct cs_quota *a, const struct cs_quota *b)
{
    return a->device_bytes == b->device_bytes && a->host_bytes == b->host_bytes &&
           a->disk_bytes == b->disk_bytes;
}

static uint64_t bytes_of(const struct cs_quota *q, enum rank_tier t)
{
    return t == RANK_DEVICE ? q->device_bytes : t == RANK_HOST ? q->host_bytes : q->disk_bytes;
}

static uint64_t in_force(const struct cs_quota *own, enum rank_tier t)
{
    uint64_t mine = bytes_of(own, t), all = bytes_of(&of_all, t);
    return mine > 0 ? mine : all > 0 ? all : UINT64_MAX;
}

/* While it is being set, either. */
static uint64_t most_of(uint32_t number, enum rank_tier t)
{
    const struct limits *l = &limits[number];
    uint64_t now = in_force(&l->own, t), next = in_force(&l->next, t);
    return l->changes && next > now ? next : now;
}

static uint64_t draw(uint64_t budget)
{
    switch (dice(8)) {
    case 0:
    case 1:
        return 0;
    case 2:
        return CS_QUOTA_NONE;
    case 3:
        return 1 + dice(2 * SECTOR);
    default:
        return budget / 16 * dice(9);
    }
}

void tenants_begin(const struct cs_config *c)
{
    config = c;
    of_all = c->tenant_quota;
    n_evicted = 0;
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        struct limits *l = &limits[i];
        struct cs_tenant tenant = tenant_of(i);
        struct cs_quota before = l->own;
        l->row = rows_quota(tenant.id, &l->in_catalog);
        if (l->known && l->stored && !sim_has_faults() && (l->row < 0 || !same(&before, &l->in_catalog)))
            sim_fail("the limits of tenant %u were stored, and are not in the catalogue", i);
        l->own = l->in_catalog;
        l->known = l->changes = false;
    }
}

void tenants_opened(struct cs_store *s, bool disk_on, bool catalog_was_read)
{
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        struct limits *l = &limits[i];
        struct cs_tenant_use use;
        struct cs_tenant tenant = tenant_of(i);
        (void)cs_quota_get(s, &tenant, &use);
        /* Where they would take half of the index they stay in the catalogue. */
        bool let_go = config->index_bytes < SMALL_INDEX && catalog_quota_is_none(&use.own) && l->row == 1;
        if (disk_on && catalog_was_read && l->row >= 0 && !let_go && !same(&use.own, &l->in_catalog))
            sim_fail("tenant %u has lost its limits: %llu bytes on disk, and %llu in the catalogue", i,
                     (unsigned long long)use.own.disk_bytes, (unsigned long long)l->in_catalog.disk_bytes);
        if (!disk_on && !catalog_quota_is_none(&use.own))
            sim_fail("tenant %u has limits from nowhere", i);
        l->own = use.own;
        l->known = l->stored = disk_on && !let_go;
    }
}

/* What was set last may be in the catalogue or not. */
void tenants_ended(void)
{
    for (uint32_t i = 0; i < TENANTS_MAX; i++)
        limits[i].stored = limits[i].stored && !limits[i].changes;
}

void tenants_flushed(void)
{
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        struct cs_tenant tenant = tenant_of(i);
        struct cs_quota row;
        if (limits[i].changes || !limits[i].known || sim_has_faults())
            continue;
        if (rows_quota(tenant.id, &row) < 0 || !same(&row, &limits[i].own))
            sim_fail("all is flushed, and the limits of tenant %u are not in the catalogue", i);
        limits[i].stored = true;
    }
}

void tenants_rebuilt(void)
{
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        struct cs_tenant tenant = tenant_of(i);
        struct cs_quota row;
        if (limits[i].row >= 0 && !sim_has_faults() &&
            (rows_quota(tenant.id, &row) < 0 || !same(&row, &limits[i].in_catalog)))
            sim_fail("tenant %u has lost its limits in a rebuild", i);
    }
}

int tenants_change(struct cs_store *s, struct cs_inspect *in, char *err, size_t err_len)
{
    uint32_t number = dice(2 * n_tenants);
    struct limits *l = &limits[number];
    struct cs_tenant tenant = tenant_of(number);
    struct cs_tenant_use use;
    if (!with_quotas || l->changes)
        return CS_OK;
    if (dice(4) > 0)
        l->next =
            (struct cs_quota){draw(config->arena_bytes), draw(config->host_bytes), draw(config->disk_bytes)};
    else
        l->next = (struct cs_quota){0};
    l->changes = true;
    l->stored = l->steady = false;
    sim_count(COUNT_quotas_set, 1);
    SIM_SAY("tenant %u may have %lld bytes of the device, %lld of the host, %lld on disk", number,
            (long long)l->next.device_bytes, (long long)l->next.host_bytes, (long long)l->next.disk_bytes);
    int rc = in == NULL ? cs_quota_set(s, &tenant, &l->next)
                        : cs_inspect_quota_set(in, &tenant, &l->next, err, err_len);
    SIM_SAY("limits of tenant %u: %s", number, cs_strerror(rc));
    if (in == NULL && rc != CS_OK && rc != CS_EFULL && rc != CS_ENOMEM)
        sim_fail("cs_quota_set: %s", cs_strerror(rc));
    if (s == NULL) /* the next process reads what there is; what was said to be done is for good */
        l->stored = l->known = rc == CS_OK;
    if (s == NULL || rc == CS_OK)
        l->own = rc == CS_OK ? l->next : l->own;
    else if (s != NULL && checker_serves(s)) { /* nothing has changed, or the answer was lost */
        (void)cs_quota_get(s, &tenant, &use);
        if (!same(&use.own, &l->own) && !(in != NULL && rc == CS_EIO && same(&use.own, &l->next)))
            sim_fail("limits of tenant %u: %s, and they have changed", number, cs_strerror(rc));
        l->own = use.own;
    }
    l->changes = false;
    return rc;
}

/* ---- what is over them ------------------------------------------------------------------------------- */

static bool is_on_its_way(const struct cs_store *s, const struct span *sp)
{
    return index_waits_on_device(&s->index, sp) || index_is_leaving_device(&s->index, sp) ||
           sp->n_loading > 0;
}

/* Something of the span could leave the device, and would give room. */
static bool can_leave_device(const struct cs_store *s, const struct span *sp)
{
    if (is_on_its_way(s, sp))
        return false;
    for (uint32_t i = 0; i < sp->n_pages; i++)
        if (sp->page[i] != ARENA_NO_PAGE && s->arena.pages[sp->page[i]].refs == 0 &&
            s->arena.pages[sp->page[i]].holders == 1)
            return true;
    return false;
}

static bool can_leave_host(const struct cs_store *s, const struct span *sp)
{
    return sp->n_host > 0 && sp->host_pins == 0 && sp->n_loading == 0 && sp->loads == NULL &&
           index_host_turn(&s->index, sp) <= HOST_TURN_REST && sp->disk != SPAN_DISK_WRITING &&
           sp->disk != SPAN_DISK_COPYING;
}

static bool can_leave_disk(const struct cs_store *s, const struct span *sp)
{
    (void)s;
    return sp->disk == SPAN_DISK_DURABLE && sp->n_disk_children == 0 && sp->pins == 0 && sp->n_loading == 0 &&
           !sp->kept;
}

static bool can_leave(const struct cs_store *s, const struct span *sp, enum rank_tier t)
{
    return t == RANK_DEVICE ? can_leave_device(s, sp)
           : t == RANK_HOST ? can_leave_host(s, sp)
                            : can_leave_disk(s, sp);
}

/* A span of `of`, or of anybody, who is over the limit; NULL: there is none that could go. pages: checkpoints
 * do not count, for whether one gives room on the device changes with what others use of it. */
static const struct span *excess_of(const struct cs_store *s, enum rank_tier t, const struct account *of,
                                    bool pages)
{
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp != NULL; sp = sp->hash_next) {
            const struct account *a = sp->account;
            if ((of == NULL || a == of) && (!pages || sp->kind == SPAN_OF_PAGES) &&
                a->used[t] > most_of(a->id.id[0], t) && can_leave(s, sp, t))
                return sp;
        }
    return NULL;
}

/* What waits may be worth less than what could go, and then it is waited for. */
static bool has_things_on_their_way(const struct cs_store *s, const struct account *a)
{
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp != NULL; sp = sp->hash_next)
            if (sp->account == a && (is_on_its_way(s, sp) || index_waits(sp)))
                return true;
    return false;
}

/* Whose limits are known: of a tier that everybody has, and that adds up. */
static bool adds_up(const struct cs_store *s, enum rank_tier t)
{
    uint64_t budget = t == RANK_DEVICE ? (uint64_t)s->arena.n_pages * s->stride
                      : t == RANK_HOST ? (uint64_t)s->host.n_pages * s->stride
                                       : config->disk_bytes / 2,
             sum = 0;
    for (uint32_t i = 0; i < 2 * n_tenants; i++) {
        uint64_t most = most_of(i, t);
        if (most > budget || (sum += most) > budget)
            return false;
    }
    return true;
}

static void check_account(struct cs_store *s, const struct account *a, bool idle)
{
    static const char *const names[] = {"device", "host", "disk"};
    uint32_t number = a->id.id[0];
    if (number >= TENANTS_MAX)
        sim_fail("an account of nobody");
    for (int t = 0; t < RANK_TIERS; t++) {
        uint64_t most = most_of(number, (enum rank_tier)t);
        const struct limits *l = &limits[number];
        if (a->limit[t] != in_force(&l->own, (enum rank_tier)t) &&
            !(l->changes && a->limit[t] == in_force(&l->next, (enum rank_tier)t)))
            sim_fail("tenant %u may have %llu bytes of the %s, and was given %llu", number,
                     (unsigned long long)a->limit[t], names[t], (unsigned long long)most);
        if (a->used[t] <= most || s->trimming || (!idle && t != RANK_DEVICE) ||
            (!idle && (a->n_sequences > 0 || has_things_on_their_way(s, a))))
            continue;
        const struct span *sp = excess_of(s, (enum rank_tier)t, a, false);
        if (sp != NULL)
            sim_fail("QUOTA: tenant %u has %llu bytes of the %s and may have %llu; %s at %u could go", number,
                     (unsigned long long)a->used[t], names[t], (unsigned long long)most,
                     sp->kind == SPAN_CHECKPOINT ? "a checkpoint" : "pages", sp->first_position);
    }
}

/* What is over a limit of host or disk goes before more comes there, and when a sequence ends. */
static void end_a_sequence_of_each(struct cs_store *s)
{
    for (uint32_t i = 0; i < 2 * n_tenants; i++) {
        struct cs_tenant tenant = tenant_of(i);
        struct cs_sequence *q = NULL;
        if (cs_sequence_open(s, &tenant, NULL, 0, &q) == CS_OK)
            cs_sequence_close(q);
    }
}

void tenants_check(struct cs_store *s, bool idle)
{
    if (idle && with_quotas)
        end_a_sequence_of_each(s);
    uint64_t start = sim.now_ns;
    while (idle && s->trimming) {
        if (sim.now_ns - start > SETTLE_MS * 1000000ull)
            sim_fail("HANG: limits are not met in %d simulated seconds", SETTLE_MS / 1000);
        fibers_sleep(100000);
    }
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->index.accounts.n_slots; i++)
        if (s->index.accounts.slot[i] != NULL)
            check_account(s, s->index.accounts.slot[i], idle);
    pthread_mutex_unlock(&s->lock);
}

void tenants_listing(void)
{
    for (uint32_t i = 0; i < TENANTS_MAX; i++)
        limits[i].steady = !limits[i].changes;
}

int tenants_listed(void *ctx, const struct cs_tenant_use *use)
{
    const struct cs_store *s = ctx;
    const struct limits *l = &limits[use->tenant.id[0] % TENANTS_MAX];
    if (use->tenant.id[0] >= TENANTS_MAX || (checker_serves(s) && l->steady && !same(&use->own, &l->own)))
        sim_fail("tenant %u is listed with limits that it does not have", use->tenant.id[0]);
    return 0;
}

void tenants_written(struct cs_store *s, const struct cs_tenant *tenant)
{
    const struct account *a = accounts_find(&s->index.accounts, tenant);
    uint64_t most = most_of(tenant->id[0], RANK_DISK), own = checker_tenant_bytes(tenant);
    if (a == NULL || a->used[RANK_DISK] > most || (own > most && !sim_has_faults()))
        sim_fail("QUOTA: a record is written for tenant %u, which has %llu bytes on disk then, by the "
                 "checker's count %llu, and may have %llu",
                 tenant->id[0], a != NULL ? (unsigned long long)a->used[RANK_DISK] : 0,
                 (unsigned long long)own, (unsigned long long)most);
}

/* Room was needed on disk, where everybody could have its own. */
void tenants_deleted(struct cs_store *s, struct record_id id)
{
    uint64_t n = s->index.disk[0].gone[CS_GONE_EVICTED] + s->index.disk[1].gone[CS_GONE_EVICTED];
    bool evicted = n > n_evicted;
    n_evicted = n;
    if (!evicted || !with_quotas || !adds_up(s, RANK_DISK) || s->trimming)
        return;
    for (uint64_t b = 0; b <= s->index.bucket_mask; b++)
        for (const struct span *sp = s->index.buckets[b]; sp != NULL; sp = sp->hash_next)
            if (record_id_equal(sp->id, id) &&
                sp->account->used[RANK_DISK] <= most_of(sp->account->id.id[0], RANK_DISK) &&
                excess_of(s, RANK_DISK, NULL, false) != NULL)
                sim_fail("QUOTA: tenant %u loses a record to others that have more than their share",
                         sp->account->id.id[0]);
}

void __real_index_detach_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why);
void __wrap_index_detach_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why);
void __wrap_index_detach_locked(struct index *ix, struct span *sp, uint32_t i, enum cs_gone why)
{
    const struct cs_store *s = checker_store();
    const struct account *a = sp->account;
    uint64_t before = a->used[RANK_DEVICE];
    if (sp->kind == SPAN_CHECKPOINT && s != NULL) /* it goes as a whole: what it had when that began */
        before += (sp->n_pages - sp->n_device) * s->stride;
    if (why == CS_GONE_EVICTED && with_quotas && s != NULL && !s->trimming &&
        before <= most_of(a->id.id[0], RANK_DEVICE) && adds_up(s, RANK_DEVICE) &&
        excess_of(s, RANK_DEVICE, NULL, true) != NULL)
        sim_fail("QUOTA: tenant %u loses pages of its share, and others have more than theirs", a->id.id[0]);
    __real_index_detach_locked(ix, sp, i, why);
}

/* ---- whose pages are found --------------------------------------------------------------------------- */

static bool is_published(struct cs_key key)
{
    const struct key_node *k = by_key[key.lo % N_BUCKETS];
    while (k != NULL && !key_equal(k->key, key))
        k = k->next;
    return k != NULL;
}

void tenants_published(const uint64_t *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct cs_key key = {keys[2 * i], keys[2 * i + 1]};
        if (is_published(key))
            continue;
        if (n_published == N_PUBLISHED)
            sim_fail("the checker has no room for a key");
        struct key_node *k = &published[n_published++];
        *k = (struct key_node){.key = key, .next = by_key[key.lo % N_BUCKETS]};
        by_key[key.lo % N_BUCKETS] = k;
    }
}

uint32_t tenants_own_pages(struct cs_store *s, const struct turn *t)
{
    struct cs_tenant tenant = path_tenant(t->path);
    struct cs_chain chain;
    cs_chain_init(s, &tenant, &chain);
    uint32_t n = t->n_prompt > 0 ? (t->n_prompt - 1) / t->g->page_tokens : 0, own = 0;
    for (bool goes_on = true; goes_on && own < n; own += goes_on) {
        cs_chain_add(&chain, t->ids + (size_t)own * t->g->page_tokens, t->g->page_tokens);
        goes_on = is_published(cs_chain_key(&chain));
    }
    return own;
}

void tenants_found(struct cs_store *s, const struct turn *t, uint32_t n_pages)
{
    uint32_t own = tenants_own_pages(s, t);
    enum cs_miss miss = t->reuse.miss;
    if (n_pages > own)
        sim_fail("path %u: %u pages are found, and its tenant has published %u", t->path, n_pages, own);
    if (own == 0 && miss != CS_MISS_COLD && miss != CS_MISS_PARTIAL_PAGE && miss != CS_MISS_NONE)
        sim_fail("path %u: its tenant has published nothing of it, and the reason is %s", t->path,
                 cs_miss_name(miss));
}
