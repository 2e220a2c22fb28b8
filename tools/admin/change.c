/*
 * cachestore-admin evict, pin, unpin, rebuild and format: what changes a store.
 */
#include <inttypes.h>
#include <string.h>

#include "tools/admin/admin.h"

enum { STOP = 1 };

/* Of a command that looks through the volumes before it changes anything. */
static int on_scan(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    const struct options *o = ctx;
    char done[32], all[32];
    if (stopped())
        return STOP;
    if (progress_due(o->every_s))
        progress_line("%s of %s of volumes looked through", bytes_text(done_bytes, done),
                      bytes_text(all_bytes, all));
    return 0;
}

static int say_stopped(void)
{
    complain("stopped; nothing was changed");
    return EXIT_STOPPED;
}

/* ---- evict ------------------------------------------------------------------------------------------- */

struct choice {
    const uint64_t *record; /* one of the three */
    const struct cs_tenant *tenant;
    bool all;
};

static int is_chosen(void *ctx, const struct cs_span_info *s)
{
    const struct choice *c = ctx;
    if (c->record != NULL)
        return memcmp(s->record_id, c->record, sizeof s->record_id) == 0;
    return c->all || memcmp(&s->tenant, c->tenant, sizeof s->tenant) == 0;
}

int run_evict(struct cs_inspect *in, const struct options *o)
{
    struct cs_span_info span;
    struct cs_tenant tenant;
    uint32_t position;
    struct choice choice = {.all = o->all};
    int code = EXIT_FINE;
    if ((o->word != NULL) + (o->tenant != NULL) + o->all != 1)
        return complain("evict takes one of KEY, --tenant TENANT and --all");
    if (o->word != NULL) {
        code = find_record(in, o->word, &span, &position);
        choice.record = span.record_id;
    } else if (o->tenant != NULL) {
        code = find_tenant(in, o->tenant, &tenant);
        choice.tenant = &tenant;
    }
    if (code != EXIT_FINE)
        return code;
    struct cs_evicted gone;
    char err[256] = "", a[32];
    stop_on_signals();
    cs_inspect_progress(in, on_scan, (void *)o);
    int rc = cs_inspect_evict(in, is_chosen, &choice, true, &gone, err, sizeof err);
    progress_end();
    if (rc == STOP)
        return say_stopped();
    if (rc != CS_OK && gone.spans + gone.checkpoints + gone.leftovers == 0)
        return complain("nothing is deleted: %s", err);
    if (rc != CS_OK)
        return complain("not all of it is deleted, do it again: %s", err);
    if (o->json)
        printf("{\"spans\":%" PRIu64 ",\"checkpoints\":%" PRIu64 ",\"disk_bytes\":%" PRIu64
               ",\"leftovers\":%" PRIu64 ",\"remaining\":%" PRIu64 "}\n",
               gone.spans, gone.checkpoints, gone.disk_bytes, gone.leftovers, gone.remaining);
    else
        printf("evicted    %" PRIu64 " span%s, %" PRIu64 " checkpoint%s, %s; %" PRIu64
               " header%s of earlier records\n",
               gone.spans, plural(gone.spans), gone.checkpoints, plural(gone.checkpoints),
               bytes_text(gone.disk_bytes, a), gone.leftovers, plural(gone.leftovers));
    if (!o->json && gone.remaining > 0)
        printf("remaining  %" PRIu64
               ": running requests store them again; do it again when they have ended\n",
               gone.remaining);
    return gone.spans + gone.checkpoints + gone.leftovers > 0 ? EXIT_FINE : EXIT_NOT_FOUND;
}

/* ---- pin --------------------------------------------------------------------------------------------- */

static int set_pin(struct cs_inspect *in, const struct options *o, bool pinned)
{
    struct cs_span_info span;
    uint32_t position;
    char err[256] = "", record[34], place[48];
    int code = find_record(in, o->word, &span, &position);
    if (code != EXIT_FINE)
        return code;
    if (cs_inspect_pin(in, &span, pinned, err, sizeof err) != CS_OK)
        return complain("%s", err);
    if (o->json)
        printf("{\"record\":\"%s\",\"pinned\":%s}\n", record_text(span.record_id, record),
               pinned ? "true" : "false");
    else
        printf("%s %s, %s\n", pinned ? "pinned    " : "unpinned  ", record_text(span.record_id, record),
               place_text(&span, place));
    return EXIT_FINE;
}

int run_pin(struct cs_inspect *in, const struct options *o)
{
    return set_pin(in, o, true);
}

int run_unpin(struct cs_inspect *in, const struct options *o)
{
    return set_pin(in, o, false);
}

/* ---- rebuild ----------------------------------------------------------------------------------------- */

int run_rebuild(struct cs_inspect *in, const struct options *o)
{
    struct cs_rebuilt made;
    char err[256] = "";
    stop_on_signals();
    cs_inspect_progress(in, on_scan, (void *)o);
    int rc = cs_inspect_rebuild(in, &made, err, sizeof err);
    progress_end();
    if (rc == STOP)
        return say_stopped();
    if (rc != CS_OK)
        return complain("%s", err);
    if (o->json)
        printf("{\"records\":%" PRIu64 ",\"dropped\":%" PRIu64 "}\n", made.records, made.dropped);
    else
        printf("rebuilt    %" PRIu64 " record%s\n", made.records, plural(made.records));
    if (!o->json && made.dropped > 0)
        printf("dropped    %" PRIu64 ": newer records have their chunks\n", made.dropped);
    return EXIT_FINE;
}

/* ---- format ------------------------------------------------------------------------------------------ */

int run_format(const struct options *o)
{
    struct cs_inspect *in;
    struct cs_store_info info;
    char err[256] = "", a[32];
    int rc = cs_format(o->dir, o->chunk_bytes, o->force, err, sizeof err);
    if (rc == CS_OK)
        rc = cs_inspect_open(o->dir, &in, err, sizeof err);
    if (rc == CS_EBUSY)
        return complain_in_use("format");
    if (rc != CS_OK)
        return complain("%s", err);
    cs_inspect_info(in, &info);
    cs_inspect_close(in);
    if (o->json)
        printf("{\"uuid\":\"%s\",\"format_version\":%" PRIu32 ",\"chunk_bytes\":%" PRIu64 "}\n", info.uuid,
               info.format_version, info.chunk_bytes);
    else
        printf("store      %s, format %" PRIu32 ", chunks of %s\n", info.uuid, info.format_version,
               bytes_text(info.chunk_bytes, a));
    return EXIT_FINE;
}
