/*
 * cachestore-admin show and explain: one record by a key of it, and how far a list of token ids is stored.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/admin/admin.h"

/* ---- names ------------------------------------------------------------------------------------------- */

/* EXIT_FINE, or it has complained: what could not be read must not look like what is not there. */
static int look_through(struct cs_inspect *in, int (*fn)(void *ctx, const struct cs_span_info *s), void *ctx)
{
    int rc = cs_inspect_spans(in, fn, ctx);
    return rc == CS_OK ? EXIT_FINE : complain("cannot list what is stored: %s", cs_strerror(rc));
}

struct match {
    const char *text;
    bool by_record;
    struct cs_span_info found;
    size_t n;
};

static int match_record(void *ctx, const struct cs_span_info *s)
{
    struct match *m = ctx;
    char hex[34];
    if (m->by_record ? strcmp(record_text(s->record_id, hex), m->text) == 0
                     : hex_begins(key_text(s->key, hex), m->text)) {
        m->found = *s;
        m->n++;
    }
    return 0;
}

int find_record(struct cs_inspect *in, const char *text, struct cs_span_info *span, uint32_t *position)
{
    const char *dash = strchr(text, '-');
    struct match m = {.text = text, .by_record = dash != NULL};
    if (!is_hex(text, 4, 32) && !(dash == text + 16 && is_hex(dash + 1, 16, 16)))
        return complain("'%s' is neither a key (4 to 32 hex digits) nor a record", text);
    if (look_through(in, match_record, &m) != EXIT_FINE)
        return EXIT_USAGE;
    if (m.n > 1) {
        complain("'%s' begins the keys of %zu records", text, m.n);
        return EXIT_USAGE;
    }
    if (m.n == 1) {
        *span = m.found;
        *position = m.found.first_position;
        if (!m.found.checkpoint)
            *position += m.found.n_tokens / m.found.n_pages;
        return EXIT_FINE;
    }
    int rc = CS_ENOTFOUND;
    if (is_hex(text, 32, 32)) {
        uint8_t bytes[16];
        struct cs_key key = {0, 0};
        hex_bytes(text, bytes, sizeof bytes);
        for (int i = 0; i < 8; i++) {
            key.hi = key.hi << 8 | bytes[i];
            key.lo = key.lo << 8 | bytes[8 + i];
        }
        rc = cs_inspect_find(in, key, span, position);
    }
    if (rc == CS_OK)
        return EXIT_FINE;
    complain(rc != CS_ENOTFOUND ? "'%s': the store cannot be read"
             : m.by_record      ? "no record stored is '%s'"
                                : "nothing stored has the key '%s'",
             text);
    return rc == CS_ENOTFOUND ? EXIT_NOT_FOUND : EXIT_USAGE;
}

/* Distinct tenants or fingerprints that begin with `text`. */
struct names {
    const char *text; /* NULL: all */
    bool tenants;
    uint8_t found[32];
    size_t n;
};

static int match_name(void *ctx, const struct cs_span_info *s)
{
    struct names *m = ctx;
    const uint8_t *bytes = m->tenants ? s->tenant.id : s->fingerprint;
    size_t len = m->tenants ? sizeof s->tenant.id : sizeof s->fingerprint;
    char hex[65];
    if ((m->text != NULL && !hex_begins(hex_text(bytes, len, hex), m->text)) ||
        (m->n > 0 && memcmp(m->found, bytes, len) == 0))
        return 0;
    memcpy(m->found, bytes, len);
    m->n++; /* a third that equals the first counts again: more than one is all that matters */
    return 0;
}

static int match_tenant(void *ctx, const struct cs_tenant_use *u)
{
    const struct cs_span_info as_span = {.tenant = u->tenant};
    return match_name(ctx, &as_span);
}

int find_tenant(struct cs_inspect *in, const char *text, struct cs_tenant *tenant)
{
    struct names m = {.text = text, .tenants = true};
    memset(tenant, 0, sizeof *tenant);
    if (strcmp(text, "anonymous") == 0)
        return EXIT_FINE;
    if (!is_hex(text, 4, 32))
        return complain("'%s' is no tenant: 'anonymous' or 4 to 32 hex digits", text);
    if (strlen(text) == 32) {
        hex_bytes(text, tenant->id, sizeof tenant->id);
        return EXIT_FINE;
    }
    int rc = cs_inspect_tenants(in, match_tenant, &m); /* who has limits only is one, too */
    if (rc != CS_OK)
        return complain("cannot list what is stored: %s", cs_strerror(rc));
    if (m.n == 1)
        memcpy(tenant->id, m.found, sizeof tenant->id);
    if (m.n > 1)
        return complain("'%s' begins the names of several tenants", text);
    if (m.n == 0)
        complain("nothing is known of a tenant '%s'", text);
    return m.n == 1 ? EXIT_FINE : EXIT_NOT_FOUND;
}

/* text NULL: that of the process that has the store open, or the only one there is. */
static int find_model(struct cs_inspect *in, const char *text, uint8_t fingerprint[32])
{
    struct names m = {.text = text};
    struct cs_store_info info;
    char own[65];
    if (text == NULL && is_live(in)) {
        if (cs_inspect_info(in, &info) != CS_OK)
            return complain("cannot list what is stored: %s", cs_strerror(CS_EIO));
        m.text = hex_text(info.fingerprint, sizeof info.fingerprint, own);
    }
    if (text != NULL && !is_hex(text, 4, 64))
        return complain("'%s' is no model: 4 to 64 hex digits of a fingerprint", text);
    if (look_through(in, match_name, &m) != EXIT_FINE)
        return EXIT_USAGE;
    if (m.n == 1)
        memcpy(fingerprint, m.found, 32);
    else if (m.n > 1 && text == NULL)
        return complain("the store holds several models: say which with --model");
    else if (m.n > 1)
        return complain("'%s' begins the fingerprints of several models", text);
    else if (text != NULL)
        complain("nothing is stored of a model '%s'", text);
    else
        complain("nothing is stored");
    return m.n == 1 ? EXIT_FINE : EXIT_NOT_FOUND;
}

/* ---- show -------------------------------------------------------------------------------------------- */

/* What lies around a record: those above it, and how many directly below. */
struct family {
    const struct cs_span_info *of;
    struct cs_span_info *above; /* one a depth, of the path that the walk is on */
    size_t room, n_above;
    uint64_t spans_below, checkpoints_below;
    int rc;
};

static int see_relative(void *ctx, const struct cs_span_info *s)
{
    struct family *f = ctx;
    bool is_it = memcmp(s->record_id, f->of->record_id, sizeof s->record_id) == 0;
    if (memcmp(s->parent_record_id, f->of->record_id, sizeof s->parent_record_id) == 0)
        *(s->checkpoint ? &f->checkpoints_below : &f->spans_below) += 1;
    if (is_it)
        f->n_above = s->depth;
    if (s->checkpoint || f->n_above != SIZE_MAX)
        return 0;
    if (s->depth >= f->room) {
        void *grown = realloc(f->above, (s->depth + 64) * sizeof *f->above);
        if (grown == NULL)
            return CS_ENOMEM;
        f->above = grown;
        f->room = s->depth + 64;
    }
    f->above[s->depth] = *s;
    return 0;
}

static void print_record_json(const struct cs_span_info *s, uint32_t position, const struct cs_record *r,
                              const struct family *f, const char *why, bool live)
{
    char hex[34];
    printf("{");
    print_span_fields(s, live);
    printf(",\"position\":%" PRIu32 ",\"path\":[", position);
    for (size_t i = 0; i < f->n_above; i++)
        printf("%s\"%s\"", i > 0 ? "," : "", record_text(f->above[i].record_id, hex));
    printf("],\"spans_below\":%" PRIu64 ",\"checkpoints_below\":%" PRIu64, f->spans_below,
           f->checkpoints_below);
    if (r == NULL) {
        printf(",\"damaged\":\"");
        print_escaped(stdout, why, true);
        printf("\"}\n");
        return;
    }
    printf(",\"damaged\":null,\"page_tokens\":%" PRIu32 ",\"page_bytes\":%" PRIu64
           ",\"header_bytes\":%" PRIu32 ",\"purge_epoch\":%" PRIu64 ",\"runs\":[",
           r->page_tokens, r->page_bytes, r->header_bytes, r->purge_epoch);
    for (size_t i = 0; i < r->n_runs; i++)
        printf("%s[%" PRIu32 ",%" PRIu32 ",%" PRIu32 "]", i > 0 ? "," : "", r->runs[i].volume,
               r->runs[i].first_chunk, r->runs[i].n_chunks);
    printf("],\"notes\":[");
    for (size_t i = 0; i < r->n_notes; i++)
        printf("%s{\"key\":\"%s\",\"bytes\":%" PRIu32 "}", i > 0 ? "," : "", key_text(r->notes[i].key, hex),
               r->notes[i].bytes);
    printf("],\"ids\":[");
    for (size_t i = 0; i < r->n_ids; i++)
        printf("%s%" PRIu32, i > 0 ? "," : "", r->ids[i]);
    printf("]}\n");
}

static void print_parts(const struct cs_record *r)
{
    char hex[34];
    for (size_t i = 0; i < r->n_runs; i++)
        printf("chunks     volume %" PRIu32 ", %" PRIu32 " from %" PRIu32 " on\n", r->runs[i].volume,
               r->runs[i].n_chunks, r->runs[i].first_chunk);
    for (size_t i = 0; i < r->n_notes; i++)
        printf("note       %s, %" PRIu32 " bytes\n", key_text(r->notes[i].key, hex), r->notes[i].bytes);
    printf("ids       ");
    for (size_t i = 0; i < r->n_ids; i++)
        printf(" %" PRIu32, r->ids[i]);
    printf("\n");
}

static void print_record(const struct cs_span_info *s, uint32_t position, const struct cs_record *r,
                         const struct family *f, const char *why, bool live)
{
    static const struct cs_tenant anonymous;
    char hex[65], place[48], a[32], b[32];
    printf("record     %s\n", s->on_disk ? record_text(s->record_id, hex) : "none: it is on no disk");
    printf("%-10s %s; the key names position %" PRIu32 "\n", s->checkpoint ? "checkpoint" : "span",
           place_text(s, place), position);
    printf("key        %s\n", key_text(s->key, hex));
    printf("model      %s\n", hex_text(s->fingerprint, sizeof s->fingerprint, hex));
    hex_text(s->tenant.id, sizeof s->tenant.id, hex);
    printf("tenant     %s\n", memcmp(&s->tenant, &anonymous, sizeof anonymous) == 0 ? "anonymous" : hex);
    printf("age        made %s ago, used %s ago\n", age_text(s->created_unix, a), age_text(s->used_unix, b));
    printf("pinned     %s\n", s->pinned ? "yes" : "no");
    printf("size       %" PRIu32 " %s%s, %s on disk\n", s->n_pages, s->checkpoint ? "block" : "page",
           plural(s->n_pages), bytes_text(s->disk_bytes, a));
    if (live)
        printf("memory     %" PRIu32 " of them on the device, %" PRIu32 " on the host\n", s->n_device,
               s->n_host);
    printf("path      ");
    for (size_t i = 0; i < f->n_above; i++)
        printf(" %s", place_text(&f->above[i], place));
    printf("%s\n", f->n_above > 0          ? ""
                   : s->first_position > 0 ? " what comes before is not stored"
                                           : " it is a root");
    printf("below      %" PRIu64 " span%s, %" PRIu64 " checkpoint%s\n", f->spans_below,
           plural(f->spans_below), f->checkpoints_below, plural(f->checkpoints_below));
    if (r != NULL) {
        print_parts(r);
    } else {
        printf("damaged    ");
        print_escaped(stdout, why, false);
        printf("\n");
    }
}

int run_show(struct cs_inspect *in, const struct options *o)
{
    struct cs_span_info span;
    uint32_t position = 0;
    int code = find_record(in, o->word, &span, &position);
    if (code != EXIT_FINE)
        return code;
    char why[160] = "";
    struct cs_record *r = NULL;
    struct family f = {.of = &span, .n_above = SIZE_MAX};
    int rc = cs_inspect_spans(in, see_relative, &f);
    if (rc == CS_OK)
        rc = cs_inspect_record(in, &span, &r, why, sizeof why);
    if (rc == CS_OK || rc == CS_ECORRUPT || rc == CS_EIO) {
        (o->json ? print_record_json : print_record)(&span, position, r, &f, why, is_live(in));
        code = rc == CS_OK ? EXIT_FINE : EXIT_DAMAGE;
    } else if (rc == CS_ENOTFOUND) {
        complain("'%s' is gone since it was found", o->word);
        code = EXIT_NOT_FOUND;
    } else {
        code = complain("%s", cs_strerror(rc));
    }
    cs_record_free(r);
    free(f.above);
    return code;
}

/* ---- explain ----------------------------------------------------------------------------------------- */

/* Token ids of a file or stdin: numbers, with anything of space, comma and brackets between them. */
static int read_ids(const char *name, uint32_t **out, size_t *n)
{
    bool from_stdin = name == NULL || strcmp(name, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(name, "r");
    size_t room = 0;
    int code = EXIT_FINE, c = 0;
    *out = NULL;
    *n = 0;
    if (f == NULL)
        return complain("cannot open %s: %s", name, strerror(errno));
    uint64_t value = 0;
    bool in_number = false;
    while (code == EXIT_FINE && c != EOF) {
        c = fgetc(f);
        if (c >= '0' && c <= '9') {
            value = value * 10 + (uint64_t)(c - '0');
            in_number = true;
            if (value > UINT32_MAX)
                code = complain("token id %zu is larger than 32 bits", *n);
            continue;
        }
        if (c != EOF && strchr(" \t\r\n,[]", c) == NULL)
            code = complain("token ids are numbers: unexpected '%c' behind %zu of them", c, *n);
        if (!in_number || code != EXIT_FINE)
            continue;
        if (*n == room) {
            room = room == 0 ? 1024 : 2 * room;
            uint32_t *grown = realloc(*out, room * sizeof *grown);
            if (grown == NULL) {
                code = complain("%s", cs_strerror(CS_ENOMEM));
                break;
            }
            *out = grown;
        }
        (*out)[(*n)++] = (uint32_t)value;
        value = 0;
        in_number = false;
    }
    if (code == EXIT_FINE && ferror(f))
        code = complain("cannot read token ids: %s", strerror(errno));
    if (!from_stdin)
        fclose(f);
    if (code == EXIT_FINE && *n == 0)
        code = complain("no token ids");
    return code;
}

struct steps {
    bool json;
    size_t n;
};

static int print_step(void *ctx, const struct cs_span_info *s, uint32_t n_tokens)
{
    struct steps *steps = ctx;
    char place[48], hex[34];
    if (steps->json)
        printf("%s\n{\"record\":\"%s\",\"kind\":\"%s\",\"first_position\":%" PRIu32
               ",\"tokens_used\":%" PRIu32 "}",
               steps->n > 0 ? "," : "", record_text(s->record_id, hex), s->checkpoint ? "checkpoint" : "span",
               s->first_position, n_tokens);
    else if (s->checkpoint)
        printf("           %s\n", place_text(s, place));
    else
        printf("stored     %s, %" PRIu32 " tokens of it, key %.8s\n", place_text(s, place), n_tokens,
               key_text(s->key, hex));
    steps->n++;
    return 0;
}

static const char *const end_names[] = {
    [CS_EXPLAIN_WHOLE] = "whole",     [CS_EXPLAIN_PARTIAL_PAGE] = "partial_page",
    [CS_EXPLAIN_NOTHING] = "nothing", [CS_EXPLAIN_DIVERGED] = "diverged",
    [CS_EXPLAIN_ENDS] = "ends",       [CS_EXPLAIN_DAMAGED] = "damaged",
};

static void print_end(const struct cs_explanation *x, size_t n, const uint32_t *ids)
{
    printf("tokens     %zu given, %" PRIu32 " stored, %" PRIu32 " reusable\n", n, x->n_stored, x->n_reusable);
    printf("ends       ");
    switch (x->end) {
    case CS_EXPLAIN_WHOLE:
        printf("nowhere: all full pages of %" PRIu32 " tokens are stored\n", x->page_tokens);
        break;
    case CS_EXPLAIN_PARTIAL_PAGE:
        printf("at once: the ids are less than a page of %" PRIu32 " tokens\n", x->page_tokens);
        break;
    case CS_EXPLAIN_NOTHING:
        printf("at once: no stored path of this model and tenant begins with token %" PRIu32 "\n", ids[0]);
        break;
    case CS_EXPLAIN_DIVERGED:
        printf("at %" PRIu32 ": stored paths go on with another token than %" PRIu32 " at position %" PRIu32
               "\n",
               x->n_stored, ids[x->differs_at], x->differs_at);
        break;
    case CS_EXPLAIN_ENDS:
        printf("at %" PRIu32 ": nothing is stored behind it\n", x->n_stored);
        break;
    case CS_EXPLAIN_DAMAGED:
        printf("at %" PRIu32 ": what goes on is damaged: ", x->n_stored);
        print_escaped(stdout, x->why, false);
        printf("\n");
        break;
    }
    if (x->needs_checkpoint)
        printf("resumes    at checkpoints only, here at %" PRIu32 "\n", x->checkpoint_position);
}

int run_explain(struct cs_inspect *in, const struct options *o)
{
    uint8_t fingerprint[32];
    struct cs_tenant tenant = {{0}};
    uint32_t *ids = NULL;
    size_t n;
    int code = find_model(in, o->model, fingerprint);
    if (code == EXIT_FINE && o->tenant != NULL)
        code = find_tenant(in, o->tenant, &tenant);
    if (code == EXIT_FINE)
        code = read_ids(o->word, &ids, &n);
    if (code != EXIT_FINE || ids == NULL)
        goto out;
    struct steps steps = {.json = o->json};
    struct cs_explanation x;
    if (o->json)
        printf("{\"records\":[");
    int rc = cs_inspect_explain(in, fingerprint, &tenant, ids, n, print_step, &steps, &x);
    if (rc != CS_OK) {
        code = complain("%s", cs_strerror(rc));
        goto out;
    }
    if (o->json) {
        printf("%s],\"given\":%zu,\"stored\":%" PRIu32 ",\"reusable\":%" PRIu32 ",\"page_tokens\":%" PRIu32
               ",\"end\":\"%s\",\"differs_at\":",
               steps.n > 0 ? "\n" : "", n, x.n_stored, x.n_reusable, x.page_tokens, end_names[x.end]);
        if (x.end == CS_EXPLAIN_DIVERGED)
            printf("%" PRIu32, x.differs_at);
        else
            printf("null");
        printf(",\"needs_checkpoint\":%s,\"checkpoint\":%" PRIu32 ",\"why\":\"",
               x.needs_checkpoint ? "true" : "false", x.checkpoint_position);
        print_escaped(stdout, x.why, true);
        printf("\"}\n");
    } else {
        print_end(&x, n, ids);
    }
    code = x.end == CS_EXPLAIN_DAMAGED ? EXIT_DAMAGE : EXIT_FINE;
out:
    free(ids);
    return code;
}
