/* See harness.h. */
#include "tests/disk/harness.h"
#include "tests/support/io_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

void remove_tree(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static uint64_t walked_bytes;
static int add_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (flag == FTW_F)
        walked_bytes += (uint64_t)st->st_blocks * 512;
    return 0;
}

uint64_t dir_bytes(const char *dir)
{
    walked_bytes = 0;
    nftw(dir, add_one, 16, FTW_PHYS);
    return walked_bytes;
}

static void on_log(void *ctx, enum cs_log_level level, const char *line)
{
    struct rig *r = ctx;
    pthread_mutex_lock(&r->lock);
    if (level == CS_LOG_WARN)
        r->n_warnings++;
    r->n_watched += r->watch != NULL && strstr(line, r->watch) != NULL;
    snprintf(r->last_log, sizeof r->last_log, "%s", line);
    pthread_mutex_unlock(&r->lock);
}

void rig_init_in_memory(struct rig *r, bool in_memory)
{
    memset(r, 0, sizeof *r);
    r->in_memory = in_memory;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    /* Memory where many opens are only made slow by syncs; the build's own folder where the real thing
     * matters. */
    bool memory = r->in_memory && access("/dev/shm", W_OK) == 0;
    snprintf(r->dir, sizeof r->dir, "%sdisk-test-XXXXXX", memory ? "/dev/shm/" : "");
    assert_non_null(mkdtemp(r->dir));
    r->engine_open = io_engine_open;
    r->refuse_number = UINT32_MAX;
    r->refuse_with = 1;
    r->config = (struct cs_config){.page_tokens = PT,
                                   .page_bytes = PAGE,
                                   .fingerprint = {7},
                                   .arena_bytes = 1 << 20,
                                   .disk_dir = r->dir,
                                   .disk_bytes = 16 << 20,
                                   .io_engine = test_io_engine(),
                                   .chunk_bytes = CHUNK,
                                   .extent_bytes = EXTENT,
                                   .flush_interval_ms = 20,
                                   .log = on_log,
                                   .log_ctx = r};
}

void rig_init(struct rig *r)
{
    rig_init_in_memory(r, false);
}

void rig_destroy(struct rig *r)
{
    rig_close(r);
    free(r->seen);
    remove_tree(r->dir);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
}

static struct cs_key key_of(uint32_t number)
{
    return (struct cs_key){.lo = number, .hi = ~(uint64_t)number};
}

static bool is_checkpoint(uint32_t number)
{
    return (number & CHECKPOINT) != 0;
}

static uint32_t position_of(uint32_t number)
{
    return is_checkpoint(number) ? PT * (1 + number % 1000) : 0;
}

static uint32_t flags_of(uint32_t number)
{
    return is_checkpoint(number) ? number % (CS_BOUNDARY_END + 1) : 0;
}

static uint32_t n_ids_of(uint32_t number, uint32_t n_pages)
{
    return is_checkpoint(number) ? PT : n_pages * PT;
}

static int on_span(void *ctx, const struct span_record *s, uint64_t disk_bytes)
{
    struct rig *r = ctx;
    uint32_t number = (uint32_t)s->key.lo;
    if (r->takes_any_row)
        goto take;
    assert_true(s->key.hi == key_of(number).hi);
    assert_int_equal(s->kind, is_checkpoint(number) ? RECORD_CHECKPOINT : RECORD_SPAN);
    assert_int_equal(s->flags, flags_of(number));
    if (is_checkpoint(number))
        assert_int_equal(s->first_position, position_of(number));
    for (uint32_t i = 0; i < n_ids_of(number, s->n_pages); i++)
        assert_int_equal(s->ids[i], number * 1000 + i);
    if (r->n_seen > 0) /* spans first; of each kind the newest first */
        assert_true(is_checkpoint(r->seen[r->n_seen - 1].number) < is_checkpoint(number) ||
                    (is_checkpoint(r->seen[r->n_seen - 1].number) == is_checkpoint(number) &&
                     r->seen[r->n_seen - 1].id.sequence > s->id.sequence));
    if (number == r->refuse_number)
        return r->refuse_with;
take:;
    struct seen_span *larger = realloc(r->seen, (r->n_seen + 1) * sizeof *larger);
    assert_non_null(larger);
    r->seen = larger;
    r->seen[r->n_seen++] = (struct seen_span){.id = s->id,
                                              .number = number,
                                              .n_pages = s->n_pages,
                                              .disk_bytes = disk_bytes,
                                              .used_unix = s->used_unix,
                                              .record = *s};
    r->seen[r->n_seen - 1].record.ids = NULL;
    return 0;
}

static int on_notes(void *ctx, const struct note_record *n)
{
    struct rig *r = ctx;
    r->n_notes_seen += n->n_notes;
    r->note_owner = n->owner;
    r->note_row = n->id;
    if (record_id_equal(n->id, n->owner)) { /* directly behind their span */
        assert_true(r->n_seen > 0 && record_id_equal(r->seen[r->n_seen - 1].id, n->owner));
        r->seen[r->n_seen - 1].has_notes = true;
    }
    if (n->n_notes > 0)
        snprintf(r->note_text, sizeof r->note_text, "%.*s", (int)n->notes[0].len,
                 (const char *)n->notes[0].data);
    return 0;
}

static void on_restart(void *ctx)
{
    struct rig *r = ctx;
    r->n_seen = r->n_notes_seen = 0;
}

int rig_try_open(struct rig *r, char *err, size_t err_len)
{
    struct tier_disk_events events = {
        .on_span = on_span, .on_notes = on_notes, .on_restart = on_restart, .ctx = r};
    r->n_seen = r->n_notes_seen = 0;
    return tier_disk_open_with(&r->config, &events, r->engine_open, &r->tier, r->secret, err, err_len);
}

void rig_open(struct rig *r)
{
    char err[256] = "";
    int rc = rig_try_open(r, err, sizeof err);
    if (rc != CS_OK)
        fail_msg("open: %d %s", rc, err);
}

void rig_close(struct rig *r)
{
    tier_disk_close(r->tier, 20000);
    r->tier = NULL;
}

void rig_reopen(struct rig *r)
{
    rig_close(r);
    rig_open(r);
}

const char *rig_path(const struct rig *r, const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    return path;
}

static uint8_t byte_of(uint32_t number, uint32_t page, uint32_t at)
{
    return (uint8_t)(number * 131 + page * 17 + at + (at >> 8));
}

struct span_io *span_make(struct rig *r, uint32_t number, uint32_t n_pages)
{
    struct span_io *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->rig = r;
    s->memory = aligned_alloc(4096, (size_t)n_pages * PAGE);
    s->pages = calloc(n_pages, sizeof(void *));
    s->ids = calloc(n_pages * PT, sizeof *s->ids);
    assert_true(s->memory != NULL && s->pages != NULL && s->ids != NULL);
    for (uint32_t p = 0; p < n_pages; p++) {
        s->pages[p] = s->memory + (size_t)p * PAGE;
        for (uint32_t i = 0; i < PAGE; i++)
            s->memory[(size_t)p * PAGE + i] = byte_of(number, p, i);
    }
    for (uint32_t i = 0; i < n_pages * PT; i++)
        s->ids[i] = number * 1000 + i;
    s->w.record = (struct span_record){.kind = is_checkpoint(number) ? RECORD_CHECKPOINT : RECORD_SPAN,
                                       .key = key_of(number),
                                       .first_position = position_of(number),
                                       .flags = flags_of(number),
                                       .n_pages = n_pages,
                                       .ids = s->ids,
                                       .created_unix = 1000,
                                       .used_unix = 1000};
    return s;
}

void span_free(struct span_io *s)
{
    free(s->memory);
    free(s->pages);
    free(s->ids);
    free(s);
}

static void finished(struct span_io *s, enum tier_result result)
{
    struct rig *r = s->rig;
    pthread_mutex_lock(&r->lock);
    assert_false(s->done);
    s->done = true;
    s->result = result;
    r->n_done++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void on_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    (void)w;
    finished(ctx, result);
}

static void on_read(void *ctx, struct tier_read *r, enum tier_result result)
{
    (void)r;
    finished(ctx, result);
}

void span_write(struct span_io *s)
{
    s->done = false;
    s->w.record.id = tier_disk_next_id(s->rig->tier);
    s->w.pages = s->pages;
    s->w.durable = on_durable;
    s->w.ctx = s;
    tier_disk_write(s->rig->tier, &s->w);
}

static void read_prepare(struct span_io *s, struct record_id id, uint32_t first, uint32_t n)
{
    s->done = false;
    s->r = (struct tier_read){
        .record = s->w.record, .first_page = first, .n_pages = n, .done = on_read, .ctx = s};
    s->r.record.id = id;
    s->r.pages = s->pages + first;
    memset(s->pages[first], 0xee, (size_t)n * PAGE);
}

void span_read_begin(struct span_io *s, struct record_id id, uint32_t first, uint32_t n)
{
    struct tier_read *one = &s->r;
    read_prepare(s, id, first, n);
    tier_disk_read(s->rig->tier, &one, 1);
}

void spans_read_begin(struct span_io *const *s, size_t n)
{
    struct tier_read *reads[64];
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) {
        read_prepare(s[i], s[i]->w.record.id, 0, s[i]->w.record.n_pages);
        reads[i] = &s[i]->r;
    }
    tier_disk_read(s[0]->rig->tier, reads, n);
}

enum tier_result span_wait(struct span_io *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&s->rig->lock);
    while (!s->done) {
        if (pthread_cond_timedwait(&s->rig->changed, &s->rig->lock, &until) == ETIMEDOUT)
            fail_msg("no completion within 60 s");
    }
    pthread_mutex_unlock(&s->rig->lock);
    return s->result;
}

bool span_bytes_right(const struct span_io *s)
{
    uint32_t number = (uint32_t)s->w.record.key.lo;
    for (uint32_t p = s->r.first_page; p < s->r.first_page + s->r.n_pages; p++) {
        for (uint32_t i = 0; i < PAGE; i++) {
            if (((const uint8_t *)s->pages[p])[i] != byte_of(number, p, i))
                return false;
        }
    }
    return true;
}

struct record_id put(struct rig *r, uint32_t number, uint32_t n_pages)
{
    return put_with_notes(r, number, n_pages, NULL, 0);
}

struct record_id put_with_notes(struct rig *r, uint32_t number, uint32_t n_pages, const struct cs_note *notes,
                                size_t n_notes)
{
    struct span_io *s = span_make(r, number, n_pages);
    s->w.notes = notes;
    s->w.n_notes = n_notes;
    span_write(s);
    s->w.notes = NULL; /* they have been copied */
    tier_disk_kick(r->tier);
    assert_int_equal(span_wait(s), TIER_OK);
    struct record_id id = s->w.record.id;
    span_free(s);
    return id;
}

enum tier_result get(struct rig *r, struct record_id id, uint32_t number, uint32_t n_pages)
{
    struct span_io *s = span_make(r, number, n_pages);
    span_read_begin(s, id, 0, n_pages);
    enum tier_result result = span_wait(s);
    if (result == TIER_OK)
        assert_true(span_bytes_right(s));
    span_free(s);
    return result;
}

const struct seen_span *find_seen(const struct rig *r, uint32_t number)
{
    for (size_t i = 0; i < r->n_seen; i++) {
        if (r->seen[i].number == number)
            return &r->seen[i];
    }
    return NULL;
}

struct cs_stats rig_stats(struct rig *r)
{
    struct cs_stats s = {0};
    tier_disk_stats(r->tier, &s);
    return s;
}

struct catalog *rig_catalog_open(struct rig *r, bool read_only)
{
    struct catalog *c = NULL;
    char err[256] = "";
    r->catalog_fd = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(r->catalog_fd >= 0);
    if (catalog_open(r->catalog_fd, read_only, 1 << 20, &c, err, sizeof err) != CS_OK)
        fail_msg("catalogue: %s", err);
    return c;
}

void rig_catalog_close(struct rig *r, struct catalog *c)
{
    catalog_close(c);
    close(r->catalog_fd);
}

uint32_t rig_fill(struct rig *r, uint32_t number, uint32_t n_pages)
{
    uint64_t bytes = tier_disk_record_bytes(r->tier, RECORD_SPAN, n_pages);
    uint32_t n = 0;
    while (tier_disk_free_bytes(r->tier) >= (int64_t)bytes)
        put(r, number + n++, n_pages);
    return n;
}

void flip(const char *path, uint64_t offset, uint8_t mask)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

static struct rlimit file_limit_before;

void files_limit(uint64_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &file_limit_before), 0);
    struct rlimit small = {.rlim_cur = bytes, .rlim_max = file_limit_before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
}

void files_unlimit(void)
{
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &file_limit_before), 0);
}

void log_beyond_limit(struct rig *r, struct record_id owner)
{
    static char bytes[400 << 10];
    struct cs_note note = {.key = {1, 1}, .data = bytes, .len = sizeof bytes};
    struct note_record n = {.id = tier_disk_next_id(r->tier), .owner = owner, .notes = &note, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r->tier, &n), CS_OK);
    tier_disk_kick(r->tier);
    assert_true(wait_until(nothing_pending, r));
    files_limit(256 << 10);
}

bool has_warned(void *rig)
{
    struct rig *r = rig;
    pthread_mutex_lock(&r->lock);
    bool warned = r->n_warnings > 0;
    pthread_mutex_unlock(&r->lock);
    return warned;
}

bool deletes_done(void *rig)
{
    struct tier_disk *t = ((struct rig *)rig)->tier;
    pthread_mutex_lock(&t->lock);
    bool done = t->deletes_idle;
    pthread_mutex_unlock(&t->lock);
    return done;
}

static int count_row(void *ctx, const struct catalog_row *row)
{
    (void)row;
    ++*(unsigned *)ctx;
    return CS_OK;
}

unsigned rig_rows(struct rig *r, enum catalog_kind kind)
{
    struct catalog *c = rig_catalog_open(r, true);
    unsigned n = 0;
    assert_int_equal(catalog_scan(c, kind, count_row, &n), CS_OK);
    rig_catalog_close(r, c);
    return n;
}

bool wait_until(bool (*cond)(void *ctx), void *ctx)
{
    for (int i = 0; i < 20000; i++) {
        if (cond(ctx))
            return true;
        usleep(1000);
    }
    return false;
}

bool nothing_pending(void *rig)
{
    return tier_disk_pending_bytes(((struct rig *)rig)->tier) == 0;
}
