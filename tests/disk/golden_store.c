/*
 * The store of tests/data/golden_store.tar.xz: made once through the public header, opened and compared by
 * every later build, so that a change of what is on disk is noticed.
 *
 *   golden_store DIR make       writes it (tests/data/make_golden_store.py packs it)
 *   golden_store DIR check      restores every path from disk and compares every byte, state and note;
 *                               check-no-notes: a rebuilt catalogue has none
 *   golden_store DIR encode     every record header in the volumes decodes, and encodes to the same bytes
 *
 * Two paths of one tenant that part in the middle of a span, one of another tenant; checkpoints of two
 * blocks; a note in a span's own row and one in a row behind it. What pages hold follows from the ids before
 * their end, so check needs nothing but this file.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cachestore/cachestore.h"
#include "formats/record.h"

enum { PT = 4, PAGE = 100, STATE = 5000, CHUNK = 8192, IDS_MAX = 64, WAIT_S = 60 };

struct path {
    const char *name;
    struct cs_tenant tenant;
    uint32_t n, common; /* ids in all, and of those the first path has, too */
    uint32_t salt;
    uint32_t system; /* a system boundary; 0: none */
    const char *note;
};
static const struct path paths[] = {
    {.name = "first", .n = 40, .salt = 1, .system = 8, .note = "in the row of its span"},
    {.name = "fork", .n = 36, .common = 24, .salt = 2},
    {.name = "tenant", .tenant = {.id = {1, 2, 3}}, .n = 8, .salt = 3},
};
enum { N_PATHS = sizeof paths / sizeof *paths };
static const char late_note[] = "in a row of its own";

static void path_ids(const struct path *p, uint32_t ids[IDS_MAX])
{
    for (uint32_t i = 0; i < IDS_MAX; i++)
        ids[i] = (i < p->common ? paths[0].salt : p->salt) * 1000 + i;
}

/* Content: bytes that follow from all ids before `end`. */
static void content(const uint32_t *ids, uint32_t end, uint32_t bytes, uint8_t *out)
{
    uint64_t x = 14695981039346656037u;
    for (uint32_t i = 0; i < end; i++)
        x = (x ^ ids[i]) * 1099511628211u;
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(x >> (i % 7 * 8)) ^ (uint8_t)i;
}

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    if (level == CS_LOG_WARN)
        fprintf(stderr, "golden_store: %s\n", line);
}

static int store_open(const char *dir, struct cs_store **s)
{
    struct cs_config c = {.page_tokens = PT,
                          .page_bytes = PAGE,
                          .state_bytes = STATE,
                          .checkpoint_grace_ms = UINT32_MAX,
                          .arena_bytes = 1 << 20,
                          .disk_dir = dir,
                          .disk_bytes = 4 << 20,
                          .span_bytes = 5 * 4096, /* a header and four pages */
                          .chunk_bytes = CHUNK,
                          .extent_bytes = 8 * CHUNK,
                          .log = on_log};
    for (uint8_t i = 0; i < sizeof c.fingerprint; i++)
        c.fingerprint[i] = i + 1;
    char err[256];
    int rc = cs_open(&c, s, err, sizeof err);
    if (rc != CS_OK)
        fprintf(stderr, "golden_store: %s\n", err);
    return rc;
}

static int sequence_open(struct cs_store *s, const struct path *p, const uint32_t *ids, size_t n,
                         struct cs_sequence **q, struct cs_reuse *reuse)
{
    int rc = cs_sequence_open(s, &p->tenant, ids, n, q);
    time_t end = time(NULL) + WAIT_S;
    while (rc == CS_OK && cs_sequence_poll(*q, reuse) == 0) {
        if (time(NULL) > end)
            return CS_EIO;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return rc;
}

static struct cs_key key_at(const struct cs_store *s, const struct path *p, const uint32_t *ids, uint32_t n)
{
    struct cs_chain chain;
    cs_chain_init(s, &p->tenant, &chain);
    cs_chain_add(&chain, ids, n);
    return cs_chain_key(&chain);
}

/* ---- make -------------------------------------------------------------------------------------------- */

static void capture_write(const struct cs_capture *c, const uint32_t *ids)
{
    uint8_t state[STATE];
    content(ids, c->position, STATE, state);
    for (uint32_t b = 0, at = 0; b < c->n_blocks; b++, at += 4096)
        memcpy(c->blocks[b], state + at, STATE - at < 4096 ? STATE - at : 4096);
}

static int path_make(struct cs_store *s, const struct path *p)
{
    uint32_t ids[IDS_MAX];
    struct cs_sequence *q = NULL;
    struct cs_reuse reuse;
    const struct cs_capture *captures;
    size_t n_captures;
    path_ids(p, ids);
    int rc = sequence_open(s, p, ids, p->n, &q, &reuse);
    if (rc != CS_OK)
        goto out;
    uint32_t from = reuse.tokens_device + reuse.tokens_disk;
    const struct cs_boundary system = {.position = p->system, .kind = CS_BOUNDARY_SYSTEM};
    rc = cs_sequence_place(q, &system, p->system > 0, p->n);
    if (rc == CS_OK)
        rc = cs_sequence_grow(q, p->n);
    if (rc == CS_OK)
        rc = cs_sequence_step_begin(q, from, p->n, &captures, &n_captures);
    if (rc != CS_OK)
        goto out;
    for (uint32_t i = from / PT; i < p->n / PT; i++)
        content(ids, (i + 1) * PT, PAGE, cs_sequence_pages(q)[i]);
    for (size_t i = 0; i < n_captures; i++)
        capture_write(&captures[i], ids);
    cs_sequence_step_end(q, p->n, true);
    rc = cs_sequence_capture(q, CS_BOUNDARY_TURN, &captures);
    if (rc != CS_OK)
        goto out;
    capture_write(captures, ids);
    struct cs_note note = {.key = key_at(s, p, ids, p->n - 1), .data = p->note};
    note.len = p->note != NULL ? (uint32_t)strlen(p->note) : 0;
    rc = cs_sequence_publish(q, ids, p->n, &note, p->note != NULL);
    if (rc == CS_OK)
        rc = cs_flush(s, WAIT_S * 1000);
    if (rc == CS_OK && p->note != NULL) {
        note = (struct cs_note){
            .key = key_at(s, p, ids, p->n - 2), .data = late_note, .len = sizeof late_note - 1};
        rc = cs_sequence_publish(q, ids, p->n, &note, 1);
    }
out:
    cs_sequence_close(q);
    return rc;
}

/* ---- check ------------------------------------------------------------------------------------------- */

static int differs(const struct path *p, const char *what, uint32_t at)
{
    fprintf(stderr, "golden_store: path '%s': %s %" PRIu32 " differs\n", p->name, what, at);
    return CS_ECORRUPT;
}

static int note_check(struct cs_store *s, const struct path *p, struct cs_key key, const char *text)
{
    void *data = NULL;
    uint32_t len = 0;
    int rc = cs_note_get(s, key, &data, &len);
    if (rc != CS_OK || len != strlen(text) || memcmp(data, text, len) != 0)
        rc = differs(p, "note of bytes", len);
    free(data);
    return rc;
}

static int path_check(struct cs_store *s, const struct path *p, bool notes)
{
    uint32_t ids[IDS_MAX], n_blocks;
    uint8_t want[STATE];
    struct cs_sequence *q = NULL;
    struct cs_reuse reuse = {0};
    path_ids(p, ids);
    int rc = sequence_open(s, p, ids, p->n + 1, &q, &reuse);
    if (rc != CS_OK)
        goto out;
    if (reuse.tokens_device + reuse.tokens_disk != p->n || reuse.miss != CS_MISS_NONE) {
        rc = differs(p, "reuse, in tokens:", reuse.tokens_device + reuse.tokens_disk);
        goto out;
    }
    for (uint32_t i = 0; i < p->n / PT && rc == CS_OK; i++) {
        content(ids, (i + 1) * PT, PAGE, want);
        if (memcmp(cs_sequence_pages(q)[i], want, PAGE) != 0)
            rc = differs(p, "page", i);
    }
    void *const *blocks = cs_sequence_state(q, &n_blocks);
    content(ids, p->n, STATE, want);
    if (n_blocks != 2)
        rc = differs(p, "state, in blocks:", n_blocks);
    for (uint32_t b = 0; b < n_blocks && rc == CS_OK; b++)
        if (memcmp(blocks[b], want + b * 4096, b == 0 ? 4096 : STATE - 4096) != 0)
            rc = differs(p, "state block", b);
    if (rc == CS_OK && notes && p->note != NULL)
        rc = note_check(s, p, key_at(s, p, ids, p->n - 1), p->note);
    if (rc == CS_OK && notes && p->note != NULL)
        rc = note_check(s, p, key_at(s, p, ids, p->n - 2), late_note);
out:
    cs_sequence_close(q);
    return rc;
}

/* ---- encode ------------------------------------------------------------------------------------------ */

/* Headers found, or -1. */
static int headers_encode(const char *path)
{
    static _Alignas(8) uint8_t chunk[CHUNK], again[CHUNK];
    int n = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return -1;
    while (n >= 0 && fread(chunk, 1, sizeof chunk, f) == sizeof chunk) {
        struct fmt_record r;
        if (fmt_record_decode(chunk, sizeof chunk, &r) != FMT_RECORD_OK)
            continue;
        n = fmt_record_encode(&r, again, r.header_bytes) == FMT_RECORD_OK &&
                    memcmp(again, chunk, r.header_bytes) == 0
                ? n + 1
                : -1;
    }
    fclose(f);
    return n;
}

int main(int argc, char **argv)
{
    bool make = argc == 3 && strcmp(argv[2], "make") == 0;
    bool check = argc == 3 && strncmp(argv[2], "check", 5) == 0;
    if (argc == 3 && strcmp(argv[2], "encode") == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/volume.000", argv[1]);
        int n = headers_encode(path);
        printf("%d\n", n);
        return n > 0 ? 0 : 1;
    }
    if (!make && !check)
        return 2;
    bool notes = strcmp(argv[2], "check-no-notes") != 0;
    struct cs_store *s;
    int rc = store_open(argv[1], &s);
    if (rc != CS_OK)
        return 1;
    for (size_t i = 0; i < N_PATHS && rc == CS_OK; i++)
        rc = make ? path_make(s, &paths[i]) : path_check(s, &paths[i], notes);
    cs_close(s, WAIT_S * 1000);
    if (rc != CS_OK)
        fprintf(stderr, "golden_store: %s\n", cs_strerror(rc));
    return rc == CS_OK ? 0 : 1;
}
