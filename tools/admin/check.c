/*
 * cachestore-admin verify and scrub: everything is read and every checksum checked. scrub with --drop deletes
 * what is damaged, except where something sound hangs on it: that is found again when what is damaged has
 * been computed and stored anew. Both say how far they are; SIGINT stops them after the record at hand. Of a
 * store in use, what leaves it on the way is skipped.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/admin/admin.h"

enum { STOP = 1 };

struct check {
    struct cs_inspect *in;
    const struct options *o;
    uint64_t n, checkpoints, gone, bytes; /* bytes: of records that are whole */
    uint64_t looked_at, bytes_in_all;     /* of all */
    struct damaged {
        uint64_t record_id[2];
        bool needed; /* something sound hangs on it */
    } * damaged;
    size_t n_damaged;
    /* The path to the last record, by depth: 1 + which of the damaged it is, 0: none. */
    size_t *path, path_room;
    uint32_t depth; /* of that record */
};

static void print_damage(const struct check *c, const struct cs_span_info *s, const char *why)
{
    char record[34], place[48];
    if (c->o->json) {
        printf("%s\n{\"record\":\"%s\",\"kind\":\"%s\",\"first_position\":%" PRIu32 ",\"tokens\":%" PRIu32
               ",\"why\":\"",
               c->n_damaged > 1 ? "," : "", record_text(s->record_id, record),
               s->checkpoint ? "checkpoint" : "span", s->first_position, s->n_tokens);
        print_escaped(stdout, why, true);
        printf("\"}");
    } else {
        progress_end();
        printf("damaged    %s, %s: ", record_text(s->record_id, record), place_text(s, place));
        print_escaped(stdout, why, false);
        printf("\n");
    }
}

static bool path_reserve(struct check *c, uint32_t depth)
{
    if (depth < c->path_room)
        return true;
    size_t room = 2 * (size_t)depth + 64;
    size_t *larger = realloc(c->path, room * sizeof *larger);
    if (larger == NULL)
        return false;
    memset(larger + c->path_room, 0, (room - c->path_room) * sizeof *larger);
    c->path = larger;
    c->path_room = room;
    return true;
}

/* Something hangs on what is damaged on the path. */
static void path_is_needed(struct check *c)
{
    for (uint32_t i = 0; i < c->path_room && i <= c->depth; i++) {
        if (c->path[i] > 0)
            c->damaged[c->path[i] - 1].needed = true;
    }
}

static int check_one(void *ctx, const struct cs_span_info *s)
{
    struct check *c = ctx;
    char why[160], done[32], all[32];
    if (stopped())
        return STOP;
    if (progress_due(c->o->every_s))
        progress_line("%s of %s looked at, %zu damaged", bytes_text(c->looked_at, done),
                      bytes_text(c->bytes_in_all, all), c->n_damaged);
    int rc = cs_inspect_verify(c->in, s, why, sizeof why);
    c->looked_at += s->payload_bytes;
    if (rc == CS_ENOTFOUND || !s->on_disk) { /* of a store in use */
        c->gone++;
        return 0;
    }
    c->n++;
    c->checkpoints += s->checkpoint;
    if (rc == CS_OK)
        c->bytes += s->payload_bytes;
    if (rc == CS_ENOMEM || !path_reserve(c, s->depth))
        return CS_ENOMEM;
    c->path[s->depth] = 0;
    c->depth = s->depth;
    if (rc == CS_OK) {
        path_is_needed(c);
        return 0;
    }
    void *grown = realloc(c->damaged, (c->n_damaged + 1) * sizeof *c->damaged);
    if (grown == NULL)
        return CS_ENOMEM;
    c->damaged = grown;
    struct damaged *d = &c->damaged[c->n_damaged++];
    *d = (struct damaged){.needed = false};
    memcpy(d->record_id, s->record_id, sizeof d->record_id);
    c->path[s->depth] = c->n_damaged;
    print_damage(c, s, why);
    return 0;
}

static int by_record(const void *a, const void *b)
{
    return memcmp(((const struct damaged *)a)->record_id, ((const struct damaged *)b)->record_id,
                  sizeof((const struct damaged *)a)->record_id);
}

static int is_useless(void *ctx, const struct cs_span_info *s)
{
    const struct check *c = ctx;
    struct damaged wanted = {.needed = false};
    memcpy(wanted.record_id, s->record_id, sizeof wanted.record_id);
    const struct damaged *d = bsearch(&wanted, c->damaged, c->n_damaged, sizeof *c->damaged, by_record);
    return d != NULL && !d->needed;
}

/* What --drop deletes: the damaged records on which nothing sound hangs, as far as that is known. */
static int drop(struct check *c, bool all_seen, uint64_t *n_dropped, uint64_t *n_kept)
{
    struct cs_evicted gone = {0};
    char err[256] = "";
    if (!c->o->drop || c->n_damaged == 0)
        return EXIT_FINE;
    if (!all_seen)
        path_is_needed(c);
    for (size_t i = 0; i < c->n_damaged; i++)
        *n_kept += c->damaged[i].needed;
    qsort(c->damaged, c->n_damaged, sizeof *c->damaged, by_record); /* c->path is of no more use */
    int rc = cs_inspect_evict(c->in, is_useless, c, true, &gone, err, sizeof err);
    *n_dropped = rc == CS_OK ? gone.spans + gone.checkpoints : 0;
    return rc == CS_OK ? EXIT_FINE : complain("%s", err);
}

static int run_check(struct check *c)
{
    struct cs_store_info info;
    bool json = c->o->json;
    uint64_t dropped = 0, kept = 0;
    int rc = cs_inspect_info(c->in, &info);
    if (rc != CS_OK)
        return complain("cannot list what is stored: %s", cs_strerror(rc));
    c->bytes_in_all = info.payload_bytes + info.checkpoint_bytes;
    stop_on_signals();
    if (json)
        printf("{\"catalogue\":\"%s\",\"damaged\":[", info.catalog_ok ? "ok" : "unreadable");
    rc = cs_inspect_spans(c->in, check_one, c);
    int code = EXIT_FINE;
    progress_end();
    if (rc >= 0)
        code = drop(c, rc != STOP, &dropped, &kept);
    if (json)
        printf("%s],\"spans\":%" PRIu64 ",\"checkpoints\":%" PRIu64 ",\"read_bytes\":%" PRIu64
               ",\"n_damaged\":%zu,\"dropped\":%" PRIu64 ",\"kept\":%" PRIu64 ",\"stopped\":%s}\n",
               c->n_damaged > 0 ? "\n" : "", c->n - c->checkpoints, c->checkpoints, c->bytes, c->n_damaged,
               dropped, kept, rc == STOP ? "true" : "false");
    if (rc < 0)
        return complain("%s", cs_strerror(rc));
    if (!json) {
        char a[32];
        if (c->gone > 0)
            printf("skipped    %" PRIu64 " that are on no disk, or not any more\n", c->gone);
        if (!info.catalog_ok)
            printf("catalogue  not readable: rebuilt at the next open, notes are lost\n");
        printf("%s         %" PRIu64 " span%s, %" PRIu64 " checkpoint%s, %s read, %zu damaged\n",
               c->n_damaged == 0 ? "ok" : "--", c->n - c->checkpoints, c->n - c->checkpoints == 1 ? "" : "s",
               c->checkpoints, c->checkpoints == 1 ? "" : "s", bytes_text(c->bytes, a), c->n_damaged);
        if (dropped > 0)
            printf("dropped    %" PRIu64 "\n", dropped);
        if (kept > 0)
            printf("kept       %" PRIu64 " for what is stored below: it is found when they are stored anew\n",
                   kept);
        if (rc == STOP)
            printf("stopped    the rest was not read\n");
    }
    if (code != EXIT_FINE)
        return code;
    if (c->n_damaged > 0 || !info.catalog_ok)
        return EXIT_DAMAGE;
    return rc == STOP ? EXIT_STOPPED : EXIT_FINE;
}

int run_verify(struct cs_inspect *in, const struct options *o)
{
    struct check c = {.in = in, .o = o};
    int code = run_check(&c);
    free(c.damaged);
    free(c.path);
    return code;
}

int run_scrub(struct cs_inspect *in, const struct options *o)
{
    return run_verify(in, o);
}
