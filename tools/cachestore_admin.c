/*
 * cachestore-admin DIR status|ls|verify [--json]: looks at a store that nobody has open. Built on
 * cachestore.h alone.
 *
 * Exit codes: 0 fine, 1 damage found (verify), 2 usage or not a readable store, 3 the store is in use. Errors
 * are one line on stderr. Nothing in a store is changed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cachestore/cachestore.h"

enum { EXIT_FINE = 0, EXIT_DAMAGE = 1, EXIT_USAGE = 2, EXIT_IN_USE = 3 };

static const char usage_line[] = "usage: cachestore-admin DIR status|ls|verify [--json]";

/* ---- text -------------------------------------------------------------------------------------------- */

/* Text of outside origin: control characters and, in JSON, quotes are escaped. */
static void print_escaped(FILE *f, const char *text, bool json)
{
    for (const unsigned char *p = (const unsigned char *)text; *p != 0; p++) {
        if (*p < 0x20 || *p == 0x7f)
            fprintf(f, json ? "\\u%04x" : "\\x%02x", *p);
        else if (json && (*p == '"' || *p == '\\'))
            fprintf(f, "\\%c", *p);
        else if (*p >= 0x80 && json)
            fprintf(f, "\\u%04x", *p);
        else
            fputc(*p, f);
    }
}

static const char *bytes_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

static const char *age_text(int64_t then, char out[32])
{
    int64_t seconds = (int64_t)time(NULL) - then;
    if (seconds < 0)
        snprintf(out, 32, "in the future");
    else if (seconds < 120)
        snprintf(out, 32, "%" PRId64 " s", seconds);
    else if (seconds < 7200)
        snprintf(out, 32, "%" PRId64 " min", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(out, 32, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(out, 32, "%" PRId64 " d", seconds / 86400);
    return out;
}

static const char *hex_text(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

static const char *key_text(struct cs_key key, char out[33])
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, key.hi, key.lo);
    return out;
}

/* "sequence-nonce", the order in which records were made. */
static const char *record_text(const uint64_t id[2], char out[34])
{
    snprintf(out, 34, "%016" PRIx64 "-%016" PRIx64, id[1], id[0]);
    return out;
}

/* What a checkpoint serves; NULL: it is a span. */
static const char *boundary_text(const struct cs_span_info *s)
{
    static const char *const names[] = {[CS_BOUNDARY_TURN] = "turn",
                                        [CS_BOUNDARY_SYSTEM] = "system",
                                        [CS_BOUNDARY_BRANCH] = "branch",
                                        [CS_BOUNDARY_END] = "end"};
    if (!s->checkpoint)
        return NULL;
    return (unsigned)s->boundary < sizeof names / sizeof *names ? names[s->boundary] : "unknown";
}

/* "40..60" for a span, "@60 turn" for a checkpoint. */
static const char *place_text(const struct cs_span_info *s, char out[48])
{
    if (s->checkpoint)
        snprintf(out, 48, "@%" PRIu32 " %s", s->first_position, boundary_text(s));
    else
        snprintf(out, 48, "%" PRIu32 "..%" PRIu32, s->first_position, s->first_position + s->n_tokens);
    return out;
}

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

static int run_status(struct cs_inspect *in, bool json)
{
    struct cs_store_info info;
    struct totals totals = {0};
    cs_inspect_info(in, &info);
    cs_inspect_spans(in, add_totals, &totals);
    if (json) {
        printf("{\"uuid\":\"%s\",\"format_version\":%" PRIu32 ",\"catalogue\":\"%s\",\"chunk_bytes\":%" PRIu64
               ",\"disk_bytes\":%" PRIu64 ",\"volume_bytes\":%" PRIu64 ",\"catalogue_bytes\":%" PRIu64
               ",\"spans\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"payload_bytes\":%" PRIu64
               ",\"checkpoints\":%" PRIu64 ",\"checkpoint_bytes\":%" PRIu64 ",\"notes\":%" PRIu64
               ",\"models\":%u}\n",
               info.uuid, info.format_version, info.catalog_ok ? "ok" : "unreadable", info.chunk_bytes,
               info.disk_bytes, info.volume_bytes, info.catalog_bytes, info.n_spans, totals.tokens,
               info.payload_bytes, info.n_checkpoints, info.checkpoint_bytes, info.n_notes, totals.models);
        return EXIT_FINE;
    }
    char a[32], b[32], c[32];
    printf("store      %s, format %" PRIu32 ", chunks of %s\n", info.uuid, info.format_version,
           bytes_text(info.chunk_bytes, a));
    printf("on disk    %s (volumes %s, catalogue %s)\n", bytes_text(info.disk_bytes, a),
           bytes_text(info.volume_bytes, b), bytes_text(info.catalog_bytes, c));
    printf("catalogue  %s\n",
           info.catalog_ok ? "ok" : "not readable: listed from the records' headers, notes are lost");
    printf("spans      %" PRIu64 " with %" PRIu64 " tokens, %s of pages, from %u model%s\n", info.n_spans,
           totals.tokens, bytes_text(info.payload_bytes, a), totals.models, totals.models == 1 ? "" : "s");
    printf("states     %" PRIu64 " checkpoint%s, %s\n", info.n_checkpoints,
           info.n_checkpoints == 1 ? "" : "s", bytes_text(info.checkpoint_bytes, a));
    printf("notes      %" PRIu64 "\n", info.n_notes);
    return EXIT_FINE;
}

/* ---- ls ---------------------------------------------------------------------------------------------- */

struct listing {
    bool json;
    uint64_t n;
};

static int print_span(void *ctx, const struct cs_span_info *s)
{
    struct listing *l = ctx;
    char key[33], parent[33], record[34], above[34], fingerprint[65], tenant[33];
    key_text(s->key, key);
    hex_text(s->fingerprint, sizeof s->fingerprint, fingerprint);
    hex_text(s->tenant.id, sizeof s->tenant.id, tenant);
    if (l->json) {
        bool has_parent = s->parent_record_id[0] != 0 || s->parent_record_id[1] != 0;
        const char *boundary = boundary_text(s), *quote = boundary != NULL ? "\"" : "";
        printf("%s\n{\"record\":\"%s\",\"kind\":\"%s\",\"boundary\":%s%s%s,\"parent_record\":%s%s%s,"
               "\"depth\":%" PRIu32
               ",\"key\":\"%s\",\"parent_key\":\"%s\",\"fingerprint\":\"%s\",\"tenant\":\"%s\",\"first_"
               "position\":%" PRIu32 ",\"tokens\":%" PRIu32 ",\"pages\":%" PRIu32
               ",\"payload_bytes\":%" PRIu64 ",\"disk_bytes\":%" PRIu64 ",\"created\":%" PRId64
               ",\"used\":%" PRId64 "}",
               l->n > 0 ? "," : "", record_text(s->record_id, record), s->checkpoint ? "checkpoint" : "span",
               quote, boundary != NULL ? boundary : "null", quote, has_parent ? "\"" : "",
               has_parent ? record_text(s->parent_record_id, above) : "null", has_parent ? "\"" : "",
               s->depth, key, key_text(s->parent, parent), fingerprint, tenant, s->first_position,
               s->n_tokens, s->n_pages, s->payload_bytes, s->disk_bytes, s->created_unix, s->used_unix);
        l->n++;
        return 0;
    }
    if (l->n++ == 0)
        printf("%-28s %8s %11s %9s %9s  %-8s %-8s %-8s\n", "positions", "tokens", "bytes", "made", "used",
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
    printf("%-28s %8s %11s %9s %9s  %.8s %.8s %.8s%s\n", positions, tokens, bytes_text(s->disk_bytes, bytes),
           age_text(s->created_unix, made), age_text(s->used_unix, used), key, fingerprint,
           memcmp(&s->tenant, &anonymous, sizeof anonymous) == 0 ? "-" : tenant,
           orphan ? "  (what comes before is not stored)" : "");
    return 0;
}

static int run_ls(struct cs_inspect *in, bool json)
{
    struct listing l = {.json = json};
    if (json)
        printf("[");
    cs_inspect_spans(in, print_span, &l);
    if (json)
        printf("%s]\n", l.n > 0 ? "\n" : "");
    else if (l.n == 0)
        printf("nothing stored\n");
    return EXIT_FINE;
}

/* ---- verify ------------------------------------------------------------------------------------------ */

struct verification {
    struct cs_inspect *in;
    bool json;
    uint64_t n, checkpoints, bytes, damaged;
};

static int verify_span(void *ctx, const struct cs_span_info *s)
{
    struct verification *v = ctx;
    char why[160], record[34], place[48];
    int rc = cs_inspect_verify(v->in, s, why, sizeof why);
    v->n++;
    v->checkpoints += s->checkpoint;
    v->bytes += s->payload_bytes;
    if (rc == CS_OK)
        return 0;
    if (rc == CS_ENOMEM)
        return rc;
    if (v->json) {
        printf("%s\n{\"record\":\"%s\",\"kind\":\"%s\",\"first_position\":%" PRIu32 ",\"tokens\":%" PRIu32
               ",\"why\":\"",
               v->damaged > 0 ? "," : "", record_text(s->record_id, record),
               s->checkpoint ? "checkpoint" : "span", s->first_position, s->n_tokens);
        print_escaped(stdout, why, true);
        printf("\"}");
    } else {
        printf("damaged    %s, %s: ", record_text(s->record_id, record), place_text(s, place));
        print_escaped(stdout, why, false);
        printf("\n");
    }
    v->damaged++;
    return 0;
}

static int run_verify(struct cs_inspect *in, bool json)
{
    struct cs_store_info info;
    struct verification v = {.in = in, .json = json};
    cs_inspect_info(in, &info);
    if (json)
        printf("{\"catalogue\":\"%s\",\"damaged\":[", info.catalog_ok ? "ok" : "unreadable");
    int rc = cs_inspect_spans(in, verify_span, &v);
    if (json)
        printf("%s],\"spans\":%" PRIu64 ",\"checkpoints\":%" PRIu64 ",\"read_bytes\":%" PRIu64
               ",\"n_damaged\":%" PRIu64 "}\n",
               v.damaged > 0 ? "\n" : "", v.n - v.checkpoints, v.checkpoints, v.bytes, v.damaged);
    if (rc != 0) {
        fprintf(stderr, "cachestore-admin: %s\n", cs_strerror(rc));
        return EXIT_USAGE;
    }
    if (!json) {
        char a[32];
        if (!info.catalog_ok)
            printf("catalogue  not readable: rebuilt at the next open, notes are lost\n");
        printf("%s         %" PRIu64 " spans, %" PRIu64 " checkpoint%s, %s read, %" PRIu64 " damaged\n",
               v.damaged == 0 ? "ok" : "--", v.n - v.checkpoints, v.checkpoints,
               v.checkpoints == 1 ? "" : "s", bytes_text(v.bytes, a), v.damaged);
    }
    return v.damaged > 0 || !info.catalog_ok ? EXIT_DAMAGE : EXIT_FINE;
}

/* ---- main -------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(struct cs_inspect *in, bool json);
} commands[] = {{"status", run_status}, {"ls", run_ls}, {"verify", run_verify}};

int main(int argc, char **argv)
{
    const char *words[2] = {NULL, NULL};
    size_t n_words = 0;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("%s\n\n  status   what the store holds\n  ls       one line a span or checkpoint, path by "
                   "path\n"
                   "  verify   read everything and check every checksum\n\n"
                   "The store must not be in use. Exit codes: 0 fine, 1 damage found, 2 usage or not a "
                   "store, 3 in use.\n",
                   usage_line);
            return EXIT_FINE;
        }
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (argv[i][0] == '-' || n_words == 2) {
            fprintf(stderr, "cachestore-admin: unexpected argument '");
            print_escaped(stderr, argv[i], false);
            fprintf(stderr, "'; %s\n", usage_line);
            return EXIT_USAGE;
        } else
            words[n_words++] = argv[i];
    }
    int (*run)(struct cs_inspect * in, bool json) = NULL;
    for (size_t i = 0; n_words == 2 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(words[1], commands[i].name) == 0)
            run = commands[i].run;
    }
    if (run == NULL) {
        fprintf(stderr, "%s\n", usage_line);
        return EXIT_USAGE;
    }
    struct cs_inspect *in;
    char err[256] = "";
    int rc = cs_inspect_open(words[0], &in, err, sizeof err);
    if (rc != CS_OK) {
        fprintf(stderr, "cachestore-admin: ");
        print_escaped(stderr, err[0] != 0 ? err : cs_strerror(rc), false);
        fprintf(stderr, "\n");
        return rc == CS_EBUSY ? EXIT_IN_USE : EXIT_USAGE;
    }
    int code = run(in, json);
    cs_inspect_close(in);
    if (fflush(stdout) != 0 || ferror(stdout))
        code = code == EXIT_FINE ? EXIT_USAGE : code;
    return code;
}
