/*
 * Keys and token ids in an inspection: which record a key belongs to, and how far a path is stored.
 *
 * A key may name a page in the middle of a span or a position within a page (a boundary key). Nothing on disk
 * lists those: they are computed from the ids of every record until one matches.
 *
 * Threads: an inspection belongs to one thread at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cachestore/inspect_impl.h"
#include "cachestore/key.h"

/* ---- a key ------------------------------------------------------------------------------------------- */

enum { FOUND = 1 };

struct key_search {
    struct cs_inspect *in;
    struct cs_key key;
    const struct entry *found;
    uint32_t position;
};

static int search_ids(struct key_search *k, const struct entry *e, const uint32_t *ids, uint32_t pt)
{
    if (pt == 0 || pt > KEY_MAX_PAGE_TOKENS)
        return CS_OK;
    struct cs_key before = e->info.parent;
    if (e->info.first_position == 0)
        before = key_seed(k->in->store.secret, e->info.fingerprint, &e->info.tenant);
    for (uint32_t page = 0; page < e->info.n_pages; page++, ids += pt) {
        struct cs_key next = before;
        for (uint32_t n = 1; n <= pt; n++) {
            next = key_next(before, ids, n);
            if (key_equal(next, k->key)) {
                k->found = e;
                k->position = e->info.first_position + page * pt + n;
                return FOUND;
            }
        }
        before = next;
    }
    return CS_OK;
}

static int search_span(struct key_search *k, const struct fmt_record *r)
{
    const struct entry *e = inspect_entry(k->in, r->id_nonce, r->id_sequence);
    if (e == NULL || r->kind != FMT_RECORD_SPAN || e->info.n_pages != r->n_pages)
        return CS_OK;
    return search_ids(k, e, r->ids, r->page_tokens);
}

/* Of a store in use: the process has the ids, or, of another model, the record. */
static int search_live(struct key_search *k)
{
    for (uint32_t i = 0; i < k->in->n; i++) {
        const struct entry *e = &k->in->entries[i];
        uint32_t *ids;
        if (e->info.checkpoint)
            continue;
        int rc = inspect_ids(k->in, e, &ids, NULL, 0);
        if (rc == CS_ENOTFOUND || (e->foreign && (rc == CS_ECORRUPT || rc == CS_EIO)))
            continue;
        if (rc == CS_OK)
            rc = search_ids(k, e, ids, e->info.n_tokens / e->info.n_pages);
        free(ids);
        if (rc != CS_OK)
            return rc;
    }
    return CS_OK;
}

static int row_search(void *ctx, const struct catalog_row *row)
{
    struct fmt_record r;
    if (fmt_record_row_decode(row->value, row->len, &r) != FMT_RECORD_OK)
        return CS_OK;
    return search_span(ctx, &r);
}

static int header_search(void *ctx, const struct fmt_record *r, const void *header)
{
    (void)header;
    return search_span(ctx, r);
}

int cs_inspect_find(struct cs_inspect *in, struct cs_key key, struct cs_span_info *span, uint32_t *position)
{
    struct key_search k = {.in = in, .key = key};
    int listed = inspect_live_list(in);
    if (listed != CS_OK)
        return listed;
    for (uint32_t i = 0; i < in->n && k.found == NULL; i++) {
        const struct entry *e = &in->entries[in->by_id[in->n - 1 - i]]; /* newest first */
        if (!key_equal(e->info.key, key))
            continue;
        k.found = e;
        k.position = e->info.first_position;
        if (!e->info.checkpoint)
            k.position += e->info.n_tokens / e->info.n_pages;
    }
    int rc = CS_OK;
    if (k.found == NULL) {
        rc = in->live != NULL      ? search_live(&k)
             : in->catalog != NULL ? catalog_scan(in->catalog, CATALOG_RECORD, row_search, &k)
                                   : inspect_scan_headers(in, header_search, &k);
        if (rc == CS_ECORRUPT)
            rc = CS_EIO;
    }
    if (rc < 0)
        return rc;
    if (k.found == NULL)
        return CS_ENOTFOUND;
    *span = k.found->info;
    *position = k.position;
    return CS_OK;
}

/* ---- a path ------------------------------------------------------------------------------------------ */

struct walk {
    struct cs_inspect *in;
    const uint8_t *fingerprint;
    const struct cs_tenant *tenant;
    const uint32_t *ids;
    uint32_t page_tokens, n_full; /* pages of the ids */
    uint32_t n_stored;            /* of those, found and proven */
    struct cs_key key;            /* of the last page, or the seed */
    int (*fn)(void *ctx, const struct cs_span_info *span, uint32_t n_tokens);
    void *ctx;
    struct cs_explanation *out;
};

/* One fingerprint may have been stored in pages of several sizes; ids are compared a page at a time. */
static bool is_of_walk(const struct walk *w, const struct entry *e)
{
    const struct cs_span_info *s = &e->info;
    return memcmp(s->fingerprint, w->fingerprint, sizeof s->fingerprint) == 0 &&
           memcmp(&s->tenant, w->tenant, sizeof *w->tenant) == 0 &&
           (s->checkpoint || s->n_tokens == (uint64_t)s->n_pages * w->page_tokens);
}

/* The key that children of the walk's place name as their parent. */
static struct cs_key parent_key(const struct walk *w)
{
    return w->n_stored > 0 ? w->key : (struct cs_key){0, 0};
}

/* The i-th entry behind the walk's place, from `at` on in by_parent; NULL at the end. */
static const struct entry *behind(const struct walk *w, uint32_t *at)
{
    const struct cs_inspect *in = w->in;
    uint32_t position = w->n_stored * w->page_tokens;
    for (; *at < in->n; ++*at) {
        const struct entry *e = &in->entries[in->by_parent[*at]];
        if (inspect_compare_key(e->info.parent, parent_key(w)) != 0)
            return NULL;
        if (e->info.first_position != position || !is_of_walk(w, e))
            continue;
        ++*at;
        return e;
    }
    return NULL;
}

static bool is_newer(const struct entry *a, const struct entry *b)
{
    if (a->info.record_id[1] != b->info.record_id[1])
        return a->info.record_id[1] > b->info.record_id[1];
    return a->info.record_id[0] > b->info.record_id[0];
}

/* The span that goes on with the next page, the newest where there are several; checkpoint: the one here. */
static const struct entry *next_entry(const struct walk *w, bool checkpoint)
{
    uint32_t at = inspect_first_child(w->in, parent_key(w));
    struct cs_key want = {0, 0};
    if (!checkpoint)
        want = key_next(w->key, w->ids + (size_t)w->n_stored * w->page_tokens, w->page_tokens);
    const struct entry *found = NULL, *e;
    while ((e = behind(w, &at)) != NULL) {
        if (e->info.checkpoint == checkpoint && (checkpoint || key_equal(e->info.key, want)) &&
            (found == NULL || is_newer(e, found)))
            found = e;
    }
    return found;
}

static uint32_t common_ids(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static void end_at(struct walk *w, enum cs_explain_end end, uint32_t differs_at)
{
    /* Of several ways on, the one that agrees longest. */
    if (w->out->end == end && w->out->differs_at >= differs_at)
        return;
    w->out->end = end;
    w->out->differs_at = differs_at;
}

static int damaged(struct walk *w, int rc)
{
    if (rc != CS_ECORRUPT && rc != CS_EIO)
        return rc;
    w->out->end = CS_EXPLAIN_DAMAGED;
    return CS_OK;
}

/* A checkpoint at the walk's place serves if it is whole and the prompt may use it. */
static int see_checkpoint(struct walk *w, uint32_t n_usable)
{
    char why[160];
    const struct entry *e = next_entry(w, true);
    if (e == NULL || w->n_stored > n_usable)
        return CS_OK;
    int rc = cs_inspect_verify(w->in, &e->info, why, sizeof why);
    if (rc != CS_OK)
        return rc == CS_ECORRUPT || rc == CS_EIO || rc == CS_ENOTFOUND ? CS_OK : rc;
    w->out->checkpoint_position = e->info.first_position;
    return w->fn != NULL ? w->fn(w->ctx, &e->info, 0) : CS_OK;
}

/* Goes along one span; *more: the path may go on behind what matched of it. */
static int walk_span(struct walk *w, const struct entry *e, uint32_t n_usable, bool *more)
{
    struct cs_explanation *x = w->out;
    uint32_t *stored, pt = w->page_tokens, room = w->n_full - w->n_stored, n_pages = 0;
    const uint32_t *ids = w->ids + (size_t)w->n_stored * pt;
    *more = false;
    int rc = inspect_ids(w->in, e, &stored, x->why, sizeof x->why);
    if (rc == CS_ENOTFOUND) /* since the spans were listed */
        return CS_OK;
    if (rc != CS_OK)
        return damaged(w, rc);
    rc = cs_inspect_verify(w->in, &e->info, x->why, sizeof x->why);
    if (rc != CS_OK) {
        rc = rc == CS_ENOTFOUND ? CS_OK : damaged(w, rc);
        goto out;
    }
    while (n_pages < e->info.n_pages && n_pages < room &&
           memcmp(ids + (size_t)n_pages * pt, stored + (size_t)n_pages * pt, pt * sizeof *ids) == 0)
        n_pages++;
    if (n_pages < e->info.n_pages && n_pages < room)
        end_at(w, CS_EXPLAIN_DIVERGED, w->n_stored * pt + common_ids(ids, stored, (n_pages + 1) * pt));
    if (n_pages > 0 && w->fn != NULL)
        rc = w->fn(w->ctx, &e->info, n_pages * pt);
    for (uint32_t i = 0; i < n_pages && rc == CS_OK; i++) {
        w->key = key_next(w->key, ids + (size_t)i * pt, pt);
        w->n_stored++;
        rc = see_checkpoint(w, n_usable);
    }
    *more = n_pages > 0; /* a fork may go on where this span does not */
out:
    free(stored);
    return rc;
}

/* Why nothing goes on at the walk's place: what is there has other ids, or nothing is there. */
static int look_behind(struct walk *w)
{
    uint32_t at = inspect_first_child(w->in, parent_key(w)), pt = w->page_tokens;
    const struct entry *e;
    while ((e = behind(w, &at)) != NULL) {
        char why[160];
        uint32_t *stored;
        if (e->info.checkpoint)
            continue;
        int rc = inspect_ids(w->in, e, &stored, why, sizeof why);
        if (rc == CS_ECORRUPT || rc == CS_EIO || rc == CS_ENOTFOUND)
            continue;
        if (rc != CS_OK)
            return rc;
        uint32_t same = common_ids(w->ids + (size_t)w->n_stored * pt, stored, pt);
        free(stored);
        if (w->n_stored > 0 || same > 0)
            end_at(w, CS_EXPLAIN_DIVERGED, w->n_stored * pt + same);
    }
    return CS_OK;
}

int cs_inspect_explain(struct cs_inspect *in, const uint8_t fingerprint[32], const struct cs_tenant *tenant,
                       const uint32_t *ids, size_t n,
                       int (*fn)(void *ctx, const struct cs_span_info *span, uint32_t n_tokens), void *ctx,
                       struct cs_explanation *out)
{
    static const struct cs_tenant anonymous;
    struct walk w = {.in = in,
                     .fingerprint = fingerprint,
                     .tenant = tenant != NULL ? tenant : &anonymous,
                     .ids = ids,
                     .fn = fn,
                     .ctx = ctx,
                     .out = out};
    memset(out, 0, sizeof *out);
    int listed = inspect_live_list(in);
    if (listed != CS_OK)
        return listed;
    bool stateful = in->live != NULL && inspect_live_is_stateful(in) &&
                    memcmp(in->info.fingerprint, fingerprint, sizeof in->info.fingerprint) == 0;
    for (uint32_t i = 0; i < in->n; i++) {
        const struct cs_span_info *s = &in->entries[i].info;
        if (memcmp(s->fingerprint, fingerprint, sizeof s->fingerprint) != 0)
            continue;
        stateful = stateful || s->checkpoint;
        if (!s->checkpoint && s->n_pages > 0)
            w.page_tokens = s->n_tokens / s->n_pages;
    }
    if (w.page_tokens == 0 || w.page_tokens > KEY_MAX_PAGE_TOKENS)
        return CS_ENOTFOUND;
    if (n > UINT32_MAX || (n > 0 && ids == NULL))
        return CS_EINVAL;
    w.n_full = (uint32_t)(n / w.page_tokens);
    w.key = key_seed(in->store.secret, fingerprint, w.tenant);
    uint32_t n_usable = n > 0 ? (uint32_t)((n - 1) / w.page_tokens) : 0;
    out->page_tokens = w.page_tokens;
    out->needs_checkpoint = stateful;
    out->end = w.n_full == 0 ? CS_EXPLAIN_PARTIAL_PAGE : CS_EXPLAIN_NOTHING;
    int rc = CS_OK;
    for (bool more = w.n_full > 0; more && w.n_stored < w.n_full && rc == CS_OK;) {
        const struct entry *e = next_entry(&w, false);
        if (e == NULL)
            break;
        /* What an earlier place said of other ways on is of no interest here. */
        out->end = CS_EXPLAIN_ENDS;
        out->differs_at = 0;
        rc = walk_span(&w, e, n_usable, &more);
    }
    if (rc != CS_OK)
        return rc;
    if (w.n_full > 0 && w.n_stored == w.n_full)
        out->end = CS_EXPLAIN_WHOLE;
    else if (w.n_full > 0 && out->end != CS_EXPLAIN_DAMAGED)
        rc = look_behind(&w);
    if (out->end != CS_EXPLAIN_DAMAGED)
        out->why[0] = 0;
    out->n_stored = w.n_stored * w.page_tokens;
    out->n_reusable =
        stateful ? out->checkpoint_position : (w.n_stored < n_usable ? w.n_stored : n_usable) * w.page_tokens;
    return rc;
}
