/* cachestore-admin status, ls, stats: what a store holds. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/admin/admin.h"

/* ---- status ------------------------------------------------------------------------------------------ */

struct totals {
    uint64_t tokens;
    unsigned models; /* distinct fingerprints, counted up to the size of `seen` */
    uint8_t seen[64][32];
};

static int add_totals(void *ctx, const struct cs_span_info *s)
{
    struct totals *t = ctx;
    t->tokens += s->n_tokens;
    for (unsigned i = 0; i < t->models; i++) {
        if (memcmp(t->seen[i], s->fingerprint, sizeof s->fingerprint) == 0)
            return 0;
    }
    if (t->models < sizeof t->seen / sizeof *t->seen)
        memcpy(t->seen[t->models++], s->fingerprint, sizeof s->fingerprint);
    return 0;
}

int run_status(struct cs_inspect *in, const struct options *o)
{
    bool json = o->json;
    struct cs_store_info info;
    struct totals totals = {0};
    int rc = cs_inspect_info(in, &info);
    if (rc == CS_OK)
        rc = cs_inspect_spans(in, add_totals, &totals);
    if (rc != CS_OK)
        return complain("cannot list what is stored: %s", cs_strerror(rc));
    if (info.live) { /* like spans, with what is in memory only */
        rc = read_figure(in, "notes", &info.n_notes);
        if (rc != CS_OK)
            return process_lost(rc);
    }
    if (json) {
        printf("{\"uuid\":\"%s\",\"format_version\":%" PRIu32 ",\"catalogue\":\"%s\",\"chunk_bytes\":%" PRIu64
               ",\"disk_bytes\":%" PRIu64 ",\"volume_bytes\":%" PRIu64 ",\"catalogue_bytes\":%" PRIu64
               ",\"spans\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"payload_bytes\":%" PRIu64
               ",\"checkpoints\":%" PRIu64 ",\"checkpoint_bytes\":%" PRIu64 ",\"notes\":%" PRIu64
               ",\"models\":%u,\"mode\":\"%s\"",
               info.uuid, info.format_version, info.catalog_ok ? "ok" : "unreadable", info.chunk_bytes,
               info.disk_bytes, info.volume_bytes, info.catalog_bytes, info.n_spans, totals.tokens,
               info.payload_bytes, info.n_checkpoints, info.checkpoint_bytes, info.n_notes, totals.models,
               info.live ? "live" : "offline");
        if (info.live)
            printf(",\"process\":%" PRIu32 ",\"draining\":%s,\"records_of_other_models\":%" PRIu64, info.pid,
                   info.draining ? "true" : "false", info.n_foreign);
        printf("}\n");
        return EXIT_FINE;
    }
    char a[32], b[32], c[32];
    printf("store        %s, format %" PRIu32 ", chunks of %s\n", info.uuid, info.format_version,
           bytes_text(info.chunk_bytes, a));
    printf("on disk      %s (volumes %s, catalogue %s)\n", bytes_text(info.disk_bytes, a),
           bytes_text(info.volume_bytes, b), bytes_text(info.catalog_bytes, c));
    printf("catalogue    %s\n",
           info.catalog_ok ? "ok" : "not readable: listed from the records' headers, notes are lost");
    printf("spans        %" PRIu64 " with %" PRIu64 " tokens, %s of pages, from %u model%s\n", info.n_spans,
           totals.tokens, bytes_text(info.payload_bytes, a), totals.models, totals.models == 1 ? "" : "s");
    printf("checkpoints  %" PRIu64 ", %s\n", info.n_checkpoints, bytes_text(info.checkpoint_bytes, a));
    printf("notes        %" PRIu64 "\n", info.n_notes);
    if (info.live && info.n_foreign > 0)
        printf("others       %" PRIu64 " of these records %s of other models\n", info.n_foreign,
               info.n_foreign == 1 ? "is" : "are");
    if (info.draining)
        printf("draining     nothing new is written until 'drain --end'\n");
    return EXIT_FINE;
}

/* ---- ls ---------------------------------------------------------------------------------------------- */

struct listing {
    bool json, live;
    uint64_t n;
};

static int print_span(void *ctx, const struct cs_span_info *s)
{
    struct listing *l = ctx;
    if (l->json) {
        printf("%s\n{", l->n++ > 0 ? "," : "");
        print_span_fields(s, l->live);
        printf("}");
        return 0;
    }
    char key[33], fingerprint[65], tenant[33];
    key_text(s->key, key);
    hex_text(s->fingerprint, sizeof s->fingerprint, fingerprint);
    hex_text(s->tenant.id, sizeof s->tenant.id, tenant);
    if (l->n++ == 0)
        printf("%-28s %8s %11s %9s %9s  %-8s %-8s %s\n", "positions", "tokens", "bytes", "made", "used",
               "key", "model", "tenant");
    char place[48], positions[64], tokens[16] = "-", bytes[32], made[32], used[32];
    place_text(s, place);
    /* Deep paths would run off the line: the number says how deep. */
    if (s->depth <= 6)
        snprintf(positions, sizeof positions, "%*s%s", (int)(2 * s->depth), "", place);
    else
        snprintf(positions, sizeof positions, "+%" PRIu32 " %s", s->depth, place);
    if (!s->checkpoint)
        snprintf(tokens, sizeof tokens, "%" PRIu32, s->n_tokens);
    bool orphan = s->depth == 0 && s->first_position > 0;
    static const struct cs_tenant anonymous;
    char where[64] = "";
    if (l->live)
        snprintf(where, sizeof where, "  %s%s%s", s->n_device > 0 ? "device " : "",
                 s->n_host > 0 ? "host " : "", s->on_disk ? "disk" : "");
    printf("%-28s %8s %11s %9s %9s  %.8s %.8s %.8s%s%s%s\n", positions, tokens,
           bytes_text(s->disk_bytes, bytes), age_text(s->created_unix, made), age_text(s->used_unix, used),
           key, fingerprint, memcmp(&s->tenant, &anonymous, sizeof anonymous) == 0 ? "-" : tenant, where,
           s->pinned ? "  pinned" : "", orphan ? "  (what comes before is not stored)" : "");
    return 0;
}

int run_ls(struct cs_inspect *in, const struct options *o)
{
    bool json = o->json;
    struct listing l = {.json = json, .live = is_live(in)};
    if (json)
        printf("[");
    int rc = cs_inspect_spans(in, print_span, &l);
    if (rc != CS_OK)
        return complain("cannot list what is stored: %s", cs_strerror(rc));
    if (json)
        printf("%s]\n", l.n > 0 ? "\n" : "");
    else if (l.n == 0)
        printf("nothing stored\n");
    return EXIT_FINE;
}

/* ---- stats ------------------------------------------------------------------------------------------- */

/* What one tenant has of one model. */
struct share {
    uint8_t fingerprint[32];
    struct cs_tenant tenant;
    uint64_t spans, tokens, checkpoints, payload_bytes, disk_bytes;
    int64_t made, used; /* the oldest record; the last use */
};

static const char *const ages[] = {"hour", "day", "week", "older"};
enum { N_AGES = sizeof ages / sizeof *ages };

struct statistics {
    struct share *shares;
    size_t n_shares, *place, n_places; /* place: 1 + which of them, 0: free; more than twice n_shares */
    uint64_t spans, leaves, pages, payload_bytes, disk_bytes;
    uint64_t used_bytes[N_AGES]; /* by time since the last use */
    uint32_t deepest, longest;   /* in spans; in tokens */
    uint32_t last_depth; /* of the span before, to know leaves: paths end where the next is no deeper */
    bool any;
};

/* Where the share of this model and tenant is, or would be. */
static size_t *share_place(const struct statistics *t, const uint8_t fingerprint[32],
                           const struct cs_tenant *tenant)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < 32 + sizeof tenant->id; i++)
        hash = (hash ^ (i < 32 ? fingerprint[i] : tenant->id[i - 32])) * 0x100000001b3u;
    size_t at = (size_t)hash & (t->n_places - 1);
    while (t->place[at] > 0 && (memcmp(t->shares[t->place[at] - 1].fingerprint, fingerprint, 32) != 0 ||
                                memcmp(&t->shares[t->place[at] - 1].tenant, tenant, sizeof *tenant) != 0))
        at = (at + 1) & (t->n_places - 1);
    return &t->place[at];
}

static bool shares_grow(struct statistics *t)
{
    size_t n_places = t->n_places > 0 ? 2 * t->n_places : 64;
    struct share *shares = realloc(t->shares, n_places / 2 * sizeof *shares);
    if (shares != NULL)
        t->shares = shares;
    size_t *place = shares != NULL ? calloc(n_places, sizeof *place) : NULL;
    if (place == NULL)
        return false;
    free(t->place);
    t->place = place;
    t->n_places = n_places;
    for (size_t i = 0; i < t->n_shares; i++)
        *share_place(t, shares[i].fingerprint, &shares[i].tenant) = i + 1;
    return true;
}

static struct share *share_of(struct statistics *t, const struct cs_span_info *s)
{
    if (2 * (t->n_shares + 1) > t->n_places && !shares_grow(t))
        return NULL;
    size_t *place = share_place(t, s->fingerprint, &s->tenant);
    if (*place > 0)
        return &t->shares[*place - 1];
    struct share *h = &t->shares[t->n_shares++];
    *place = t->n_shares;
    *h = (struct share){.tenant = s->tenant, .made = s->created_unix, .used = s->used_unix};
    memcpy(h->fingerprint, s->fingerprint, sizeof h->fingerprint);
    return h;
}

static unsigned age_class(int64_t used_unix)
{
    int64_t seconds = (int64_t)time(NULL) - used_unix;
    return seconds < 3600 ? 0 : seconds < 86400 ? 1 : seconds < 7 * 86400 ? 2 : 3;
}

static int add_statistics(void *ctx, const struct cs_span_info *s)
{
    struct statistics *t = ctx;
    struct share *h = share_of(t, s);
    if (h == NULL)
        return CS_ENOMEM;
    h->spans += !s->checkpoint;
    h->checkpoints += s->checkpoint;
    h->tokens += s->n_tokens;
    h->payload_bytes += s->payload_bytes;
    h->disk_bytes += s->disk_bytes;
    h->made = s->created_unix < h->made ? s->created_unix : h->made;
    h->used = s->used_unix > h->used ? s->used_unix : h->used;
    if (s->on_disk) /* of a store in use there is what has still to be written, too */
        t->payload_bytes += s->payload_bytes;
    t->disk_bytes += s->disk_bytes;
    t->used_bytes[age_class(s->used_unix)] += s->disk_bytes;
    if (s->checkpoint)
        return 0;
    t->leaves += t->any && s->depth <= t->last_depth;
    t->any = true;
    t->last_depth = s->depth;
    t->spans++;
    t->pages += s->n_pages;
    if (s->depth + 1 > t->deepest)
        t->deepest = s->depth + 1;
    if (s->first_position + s->n_tokens > t->longest)
        t->longest = s->first_position + s->n_tokens;
    return 0;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b > 0 ? (double)a / (double)b : 0;
}

static void print_stats_json(const struct statistics *t)
{
    printf("{\"shares\":[");
    for (size_t i = 0; i < t->n_shares; i++) {
        const struct share *h = &t->shares[i];
        char fingerprint[65], tenant[33];
        printf("%s\n{\"fingerprint\":\"%s\",\"tenant\":\"%s\",\"spans\":%" PRIu64 ",\"tokens\":%" PRIu64
               ",\"checkpoints\":%" PRIu64 ",\"payload_bytes\":%" PRIu64 ",\"disk_bytes\":%" PRIu64
               ",\"created\":%" PRId64 ",\"used\":%" PRId64 "}",
               i > 0 ? "," : "", hex_text(h->fingerprint, sizeof h->fingerprint, fingerprint),
               hex_text(h->tenant.id, sizeof h->tenant.id, tenant), h->spans, h->tokens, h->checkpoints,
               h->payload_bytes, h->disk_bytes, h->made, h->used);
    }
    printf("%s],\"paths\":%" PRIu64 ",\"deepest_spans\":%" PRIu32 ",\"longest_tokens\":%" PRIu32
           ",\"pages_per_span\":%.2f,\"disk_bytes\":%" PRIu64 ",\"payload_bytes\":%" PRIu64
           ",\"space_amplification\":%.3f,\"used_bytes\":{",
           t->n_shares > 0 ? "\n" : "", t->leaves, t->deepest, t->longest, ratio(t->pages, t->spans),
           t->disk_bytes, t->payload_bytes, ratio(t->disk_bytes, t->payload_bytes));
    for (unsigned i = 0; i < N_AGES; i++)
        printf("%s\"%s\":%" PRIu64, i > 0 ? "," : "", ages[i], t->used_bytes[i]);
    printf("}");
}

static void print_stats(const struct statistics *t)
{
    static const struct cs_tenant anonymous;
    printf("%-8s %-8s %8s %10s %11s %11s %9s %9s\n", "model", "tenant", "spans", "tokens", "checkpoints",
           "bytes", "made", "used");
    for (size_t i = 0; i < t->n_shares; i++) {
        const struct share *h = &t->shares[i];
        char fingerprint[65], tenant[33], bytes[32], made[32], used[32];
        hex_text(h->fingerprint, sizeof h->fingerprint, fingerprint);
        hex_text(h->tenant.id, sizeof h->tenant.id, tenant);
        printf("%.8s %-8.8s %8" PRIu64 " %10" PRIu64 " %11" PRIu64 " %11s %9s %9s\n", fingerprint,
               memcmp(&h->tenant, &anonymous, sizeof anonymous) == 0 ? "-" : tenant, h->spans, h->tokens,
               h->checkpoints, bytes_text(h->disk_bytes, bytes), age_text(h->made, made),
               age_text(h->used, used));
    }
    char a[32], b[32];
    printf("paths      %" PRIu64 ", the longest of %" PRIu32 " tokens, the deepest of %" PRIu32 " spans\n",
           t->leaves, t->longest, t->deepest);
    printf("spans      %.1f pages each\n", ratio(t->pages, t->spans));
    printf("space      %s on disk for %s of pages and checkpoints: %.2f\n", bytes_text(t->disk_bytes, a),
           bytes_text(t->payload_bytes, b), ratio(t->disk_bytes, t->payload_bytes));
    static const char *const within[N_AGES] = {"within an hour", "a day", "a week", "earlier"};
    printf("last used ");
    for (unsigned i = 0; i < N_AGES; i++)
        printf("%s %s %s", i > 0 ? "," : "", within[i], bytes_text(t->used_bytes[i], a));
    printf("\n");
}

int run_stats(struct cs_inspect *in, const struct options *o)
{
    struct statistics t = {0};
    int code = EXIT_FINE;
    if (o->watch_s > 0)
        return is_live(in) ? watch_figures(in, o) : complain("--watch goes with a store that is in use");
    int rc = cs_inspect_spans(in, add_statistics, &t);
    t.leaves += t.any; /* the last path */
    if (rc == CS_OK && o->json)
        print_stats_json(&t);
    else if (rc == CS_OK)
        print_stats(&t);
    if (rc == CS_OK && is_live(in)) {
        printf(o->json ? ",\"figures\":" : "\n");
        code = print_figures(in, o->json);
    }
    if (rc == CS_OK && o->json)
        printf("}\n");
    free(t.shares);
    free(t.place);
    return rc == CS_OK ? code : complain("%s", cs_strerror(rc));
}
