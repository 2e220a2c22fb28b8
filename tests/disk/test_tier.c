/* The disk tier on real files: what was durable is there and verifies, whatever happened in between. */
#include "cachestore/key.h"
#include "tests/disk/harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void test_durable_span_reads_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 10);
    assert_int_equal(get(&r, id, 1, 10), TIER_OK);
    struct cs_stats s = rig_stats(&r);
    assert_int_equal(s.spans_written, 1);
    assert_int_equal(s.spans_read, 1);
    assert_int_equal(s.bytes_read, 10 * PAGE);
    assert_int_equal(s.pending_bytes, 0);
    assert_int_equal(s.disk_spans, 1);
    rig_destroy(&r);
}

static void test_part_of_a_span_reads_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 3, 40);
    struct span_io *s = span_make(&r, 3, 40);
    for (uint32_t first = 0; first < 40; first += 7) {
        span_read_begin(s, id, first, 40 - first < 9 ? 40 - first : 9);
        assert_int_equal(span_wait(s), TIER_OK);
        assert_true(span_bytes_right(s));
    }
    span_free(s);
    rig_destroy(&r);
}

static void test_reopen_reports_spans_newest_first(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    uint8_t secret[16];
    memcpy(secret, r.secret, sizeof secret);
    struct record_id id[4];
    for (uint32_t i = 0; i < 4; i++)
        id[i] = put(&r, i, 5 + i);
    rig_reopen(&r);
    assert_memory_equal(secret, r.secret, sizeof secret);
    assert_int_equal(r.n_seen, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(r.seen[i].number, 3 - i);
        assert_int_equal(r.seen[i].n_pages, 8 - i);
        assert_int_equal(get(&r, id[i], i, 5 + i), TIER_OK);
    }
    assert_true(tier_disk_next_id(r.tier).sequence > id[3].sequence);
    rig_destroy(&r);
}

static void test_wrong_question_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 6);
    struct span_io *s = span_make(&r, 1, 6);
    s->w.record.key.lo ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_HEADER);
    s->w.record.key.lo ^= 1;
    s->ids[5] ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_TOKENS);
    s->ids[5] ^= 1;
    s->w.record.tenant.id[3] = 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_CORRUPT_HEADER);
    s->w.record.tenant.id[3] = 0;
    id.nonce ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_NOTFOUND);
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.corrupt_header, 2);
    assert_int_equal(st.corrupt_tokens, 1);
    span_free(s);
    rig_destroy(&r);
}

static void test_deleted_span_is_gone_and_its_room_free(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    int64_t before = tier_disk_free_bytes(r.tier);
    struct record_id id = put(&r, 1, 20);
    assert_int_equal(before - tier_disk_free_bytes(r.tier), tier_disk_record_bytes(r.tier, RECORD_SPAN, 20));
    tier_disk_delete(r.tier, id);
    tier_disk_delete(r.tier, id);
    assert_int_equal(before, tier_disk_free_bytes(r.tier));
    assert_int_equal(get(&r, id, 1, 20), TIER_NOTFOUND);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 0);
    assert_int_equal(before, tier_disk_free_bytes(r.tier));
    rig_destroy(&r);
}

/* Deletes and writes alternate with the volumes full: each write waits for the chunks of the delete before
 * it. */
static void test_write_waits_for_room_of_deletes(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    enum { N = 400 };
    struct record_id ids[N] = {{0, 0}};
    uint32_t n = 0, oldest = 0;
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    while (n < N && tier_disk_free_bytes(r.tier) >= (int64_t)bytes) {
        ids[n] = put(&r, n, 12);
        n++;
    }
    assert_true(n > 20 && n < N);
    struct span_io *s[60];
    for (uint32_t i = 0; i < 60; i++) {
        tier_disk_delete(r.tier, ids[oldest++]);
        s[i] = span_make(&r, n + i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < 60; i++) {
        assert_int_equal(span_wait(s[i]), TIER_OK);
        assert_int_equal(get(&r, s[i]->w.record.id, n + i, 12), TIER_OK);
        span_free(s[i]);
    }
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    rig_destroy(&r);
}

static void test_beyond_the_budget_is_enospc(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t n = 0;
    enum tier_result result = TIER_OK;
    while (result == TIER_OK && n < 1000) {
        struct span_io *s = span_make(&r, n++, 12);
        span_write(s);
        tier_disk_kick(r.tier);
        result = span_wait(s);
        span_free(s);
    }
    assert_int_equal(result, TIER_ENOSPC);
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.dropped_disk_full, 1);
    assert_true(st.disk_bytes <= st.disk_budget);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    assert_true(st.disk_bytes > st.disk_budget / 2);
    rig_destroy(&r);
}

static int count_row(void *ctx, const struct catalog_row *row)
{
    (void)row;
    ++*(unsigned *)ctx;
    return CS_OK;
}

/* Rows of one kind in a store that is closed. */
static unsigned rows_of(const struct rig *r, enum catalog_kind kind)
{
    struct catalog *c;
    char err[256];
    unsigned n = 0;
    assert_int_equal(catalog_open(r->dir, true, 1 << 20, &c, err, sizeof err), CS_OK);
    assert_int_equal(catalog_scan(c, kind, count_row, &n), CS_OK);
    catalog_close(c);
    return n;
}

static struct record_id put_with_notes(struct rig *r, uint32_t number, const struct cs_note *notes,
                                       size_t n_notes)
{
    struct span_io *s = span_make(r, number, 4);
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

static void test_notes_of_a_write_are_in_its_row(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    char text[] = "hello";
    struct cs_note note = {.key = {1, 2}, .data = text, .len = 5};
    struct record_id owner = put_with_notes(&r, 1, &note, 1);
    text[0] = 'x';
    put(&r, 2, 4);
    assert_int_equal(rig_stats(&r).catalog_rows, 2);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2);
    assert_int_equal(r.n_notes_seen, 1);
    assert_string_equal(r.note_text, "hello");
    assert_true(record_id_equal(r.note_owner, owner) && record_id_equal(r.note_row, owner));
    assert_int_equal(get(&r, owner, 1, 4), TIER_OK);
    tier_disk_delete(r.tier, owner);
    rig_reopen(&r);
    assert_int_equal(r.n_notes_seen, 0);
    rig_destroy(&r);
}

static void test_later_notes_live_with_their_span(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id owner = put(&r, 1, 4), other = put(&r, 2, 4);
    struct cs_note notes[2] = {{.key = {1, 2}, .data = "hello", .len = 5},
                               {.key = {3, 4}, .data = "", .len = 0}};
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = owner, .notes = notes, .n_notes = 2};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    struct note_record more = {.id = tier_disk_next_id(r.tier), .owner = other, .notes = notes, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &more), CS_OK);
    more.id = tier_disk_next_id(r.tier);
    assert_int_equal(tier_disk_write_notes(r.tier, &more), CS_OK);
    struct note_record lost = {
        .id = tier_disk_next_id(r.tier), .owner = {1, 1}, .notes = notes, .n_notes = 2};
    assert_int_equal(tier_disk_write_notes(r.tier, &lost), CS_ENOTFOUND);
    assert_true(tier_disk_pending_bytes(r.tier) > 0);
    tier_disk_kick(r.tier);
    assert_true(wait_until(nothing_pending, &r));
    rig_reopen(&r);
    assert_int_equal(r.n_notes_seen, 4);
    tier_disk_delete_notes(r.tier, owner, n.id);
    tier_disk_delete(r.tier, other); /* with both rows of its notes, which were there before this open */
    rig_close(&r);
    assert_int_equal(rows_of(&r, CATALOG_NOTES), 0);
    assert_int_equal(rows_of(&r, CATALOG_RECORD), 1);
    rig_open(&r);
    assert_int_equal(r.n_notes_seen, 0);
    rig_destroy(&r);
}

/* Deletes overtake what waits for the next flush. */
static void test_notes_of_a_span_deleted_at_once_leave_no_row(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.flush_interval_ms = 60000;
    rig_open(&r);
    struct record_id owner = put(&r, 1, 4);
    struct cs_note note = {.key = {1, 2}, .data = "hello", .len = 5};
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = owner, .notes = &note, .n_notes = 1};
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    tier_disk_delete(r.tier, owner);
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_ENOTFOUND);
    put(&r, 2, 4);
    assert_true(wait_until(nothing_pending, &r));
    rig_close(&r);
    assert_int_equal(rows_of(&r, CATALOG_NOTES), 0);
    rig_destroy(&r);
}

/* What does not fit into the catalogue's share costs the notes, not the span. */
static void test_notes_beyond_the_catalogues_share_are_counted_and_said_once(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    enum { N = 5, LEN = 1 << 20 }; /* the share is 4 MiB */
    char *bytes = calloc(1, LEN);
    struct cs_note notes[N];
    for (uint32_t i = 0; i < N; i++)
        notes[i] = (struct cs_note){.key = {i, 1}, .data = bytes, .len = LEN};
    put_with_notes(&r, 1, notes, 1);
    assert_int_equal(rig_stats(&r).dropped_notes, 0);
    struct record_id last = put_with_notes(&r, 2, notes, N);
    assert_int_equal(rig_stats(&r).dropped_notes, N);
    struct note_record later = {.id = tier_disk_next_id(r.tier), .owner = last, .notes = notes, .n_notes = N};
    assert_int_equal(tier_disk_write_notes(r.tier, &later), CS_EFULL);
    assert_int_equal(rig_stats(&r).dropped_notes, 2 * N);
    put(&r, 3, 4);
    assert_int_equal(r.n_warnings, 1);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 3);
    assert_int_equal(r.n_notes_seen, 1);
    assert_int_equal(get(&r, last, 2, 4), TIER_OK);
    free(bytes);
    rig_destroy(&r);
}

static void test_time_of_use_survives(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id id = put(&r, 1, 4);
    put(&r, 2, 4);
    tier_disk_touch(r.tier, id, 777);
    tier_disk_touch(r.tier, id, 888);
    rig_reopen(&r);
    assert_int_equal(find_seen(&r, 1)->used_unix, 888);
    assert_int_equal(find_seen(&r, 2)->used_unix, 1000);
    rig_destroy(&r);
}

static void test_refused_row_is_deleted(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    put(&r, 1, 4);
    put(&r, 2, 4);
    r.refuse_number = 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    r.refuse_number = UINT32_MAX;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(r.seen[0].number, 2);
    rig_destroy(&r);
}

/* Another model's records are not reported, count in the budget, and leave when a write needs their room. */
static void test_foreign_records_stay_until_room_is_needed(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    int64_t all = tier_disk_free_bytes(r.tier);
    uint32_t n = 0;
    while (tier_disk_free_bytes(r.tier) >= (int64_t)(2 * bytes)) {
        struct cs_note note = {.key = {n, 1}, .data = "n", .len = 1};
        struct note_record later = {.owner = put(&r, n++, 12), .notes = &note, .n_notes = 1};
        later.id = tier_disk_next_id(r.tier);
        assert_int_equal(tier_disk_write_notes(r.tier, &later), CS_OK);
    }
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 0);
    assert_int_equal(rig_stats(&r).records_foreign, n);
    assert_int_equal(tier_disk_free_bytes(r.tier), all);
    for (uint32_t i = 0; i < 10; i++)
        put(&r, 1000 + i, 12);
    uint64_t left = rig_stats(&r).records_foreign;
    assert_true(left < n && left + 10 >= n - 2);
    assert_int_equal(r.n_notes_seen, 0);
    rig_close(&r);
    assert_int_equal(rows_of(&r, CATALOG_NOTES), left); /* notes left with their spans */
    rig_open(&r);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, left);
    assert_null(find_seen(&r, 0)); /* the oldest left first */
    assert_non_null(find_seen(&r, n - 1));
    assert_int_equal(get(&r, find_seen(&r, n - 1)->id, n - 1, 12), TIER_OK);
    rig_destroy(&r);
}

static uint64_t available_bytes(int dir_fd)
{
    struct statvfs fs;
    assert_int_equal(fstatvfs(dir_fd, &fs), 0);
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* An extent that the file system has no room for is no reason to store nothing, nor is the rest of the room
 * for the volumes to take. */
static void test_growth_takes_what_a_nearly_full_file_system_has(void **state)
{
    (void)state;
    enum { ROOM = 64 << 20 };
    struct rig r;
    rig_init_in_memory(&r, true);
    int dir_fd = open(r.dir, O_RDONLY | O_DIRECTORY);
    assert_true(dir_fd >= 0);
    struct volumes v;
    char note[160];
    assert_int_equal(volumes_open(&v, dir_fd, CHUNK, 1 << 30, false, note, sizeof note), 0);
    volumes_set_limit(&v, 1ull << 40);
    uint64_t available = available_bytes(dir_fd);
    assert_true(available > ROOM);
    v.reserve_bytes = available - ROOM;
    struct fmt_record_run runs[4];
    uint32_t n_runs;
    assert_int_equal(volumes_alloc(&v, 4, runs, &n_runs), 0);
    assert_int_equal(n_runs, 1);
    assert_true(volumes_backed_bytes(&v) < 2 * ROOM); /* others use the file system, too */
    v.reserve_bytes = UINT64_MAX;
    uint64_t backed = volumes_backed_bytes(&v);
    while (volumes_alloc(&v, 1, runs, &n_runs) == 0)
        ;
    assert_int_equal(volumes_backed_bytes(&v), backed);
    assert_int_equal(volumes_used_bytes(&v), backed);
    volumes_close(&v);
    close(dir_fd);
    rig_destroy(&r);
}

/* A limit that no extent fits into still leaves room for records. */
static void test_growth_takes_what_a_limit_allows(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = EXTENT / 2, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct span_io *s[2];
    for (uint32_t i = 0; i < 2; i++) {
        s[i] = span_make(&r, i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    enum tier_result results[2];
    for (uint32_t i = 0; i < 2; i++) {
        results[i] = span_wait(s[i]);
        span_free(s[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(results[0], TIER_OK);
    assert_int_equal(results[1], TIER_OK);
    rig_destroy(&r);
}

static bool within_budget(void *ctx)
{
    struct rig *r = ctx;
    return dir_bytes(r->dir) <= r->config.disk_bytes;
}

/* Opened with less room, the store gives it back without waiting for a write. */
static void test_foreign_records_leave_a_lowered_budget(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = 0;
    while (tier_disk_free_bytes(r.tier) >= (int64_t)bytes)
        put(&r, n++, 12);
    rig_close(&r);
    r.config.fingerprint[0] ^= 1;
    r.config.disk_bytes /= 2;
    rig_open(&r);
    assert_true(wait_until(within_budget, &r));
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_true(r.n_seen > n / 4 && r.n_seen < n);
    assert_true(tier_disk_free_bytes(r.tier) >= 0); /* and no more than was needed */
    assert_true(tier_disk_free_bytes(r.tier) < (int64_t)(2 * bytes));
    assert_non_null(find_seen(&r, n - 1));
    assert_int_equal(get(&r, find_seen(&r, n - 1)->id, n - 1, 12), TIER_OK);
    rig_destroy(&r);
}

static void put_child(struct rig *r, uint32_t number, const struct span_io *parent, uint32_t ordinal,
                      int64_t used_unix)
{
    struct span_io *s = span_make(r, number, 12);
    s->w.record.used_unix = s->w.record.created_unix = used_unix;
    struct cs_key key = parent->w.record.key;
    for (uint32_t i = 1; i <= ordinal; i++)
        key = key_next(key, parent->ids + (size_t)i * PT, PT);
    s->w.record.parent = key;
    s->w.record.first_position = (ordinal + 1) * PT;
    span_write(s);
    tier_disk_kick(r->tier);
    assert_int_equal(span_wait(s), TIER_OK);
    span_free(s);
}

/* The beginning that conversations share is the oldest record and must be the last to go: without it the
 * others lead nowhere. */
static void test_foreign_parents_leave_after_their_children(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct span_io *root = span_make(&r, 0, 12);
    span_write(root);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(root), TIER_OK);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = 1;
    for (; tier_disk_free_bytes(r.tier) >= (int64_t)(2 * bytes); n++)
        put_child(&r, n, root, n % 12, 2000 + n);
    span_free(root);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    for (uint32_t i = 0; i < 10; i++)
        put(&r, 1000 + i, 12);
    uint64_t left = rig_stats(&r).records_foreign;
    assert_true(left < n);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, left);
    assert_non_null(find_seen(&r, 0));
    assert_null(find_seen(&r, 1)); /* of its children the oldest left first */
    assert_non_null(find_seen(&r, n - 1));
    rig_destroy(&r);
}

static void test_lowered_budget_gives_room_back(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    uint32_t n = 0;
    while (tier_disk_free_bytes(r.tier) >= (int64_t)bytes)
        put(&r, n++, 12);
    rig_close(&r);
    r.config.disk_bytes /= 2;
    rig_open(&r);
    assert_int_equal(r.n_seen, n);
    assert_true(tier_disk_free_bytes(r.tier) < 0);
    struct span_io *s = span_make(&r, 5000, 12);
    span_write(s);
    assert_int_equal(span_wait(s), TIER_ENOSPC);
    for (size_t i = 0; i < n && tier_disk_free_bytes(r.tier) < (int64_t)bytes; i++)
        tier_disk_delete(r.tier, r.seen[n - 1 - i].id);
    span_write(s);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(s), TIER_OK);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    assert_int_equal(get(&r, r.seen[0].id, r.seen[0].number, 12), TIER_OK);
    /* And up again: holes are filled before the files grow. */
    rig_close(&r);
    r.config.disk_bytes *= 2;
    rig_open(&r);
    size_t kept = r.n_seen;
    n = 0;
    while (tier_disk_free_bytes(r.tier) >= (int64_t)bytes)
        put(&r, 9000 + n++, 12);
    assert_true(n > 20);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, kept + n);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    assert_true(dir_bytes(r.dir) <= r.config.disk_bytes);
    span_free(s);
    rig_destroy(&r);
}

/* The file system refuses what lies behind 1 MiB: those writes fail, their chunks are not used again before
 * the next open, everything else goes on. */
static void test_failed_write_costs_its_chunks_until_the_next_open(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.extent_bytes = 4 << 20;
    rig_open(&r);
    int64_t all = tier_disk_free_bytes(r.tier);
    struct record_id first = put(&r, 1, 12);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum { N = 24 };
    struct span_io *s[N];
    unsigned n_ok = 0, n_failed = 0;
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, 10 + i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++) {
        enum tier_result result = span_wait(s[i]);
        assert_true(result == TIER_OK || result == TIER_EIO);
        n_ok += result == TIER_OK;
        n_failed += result == TIER_EIO;
        if (result == TIER_OK)
            assert_int_equal(get(&r, s[i]->w.record.id, 10 + i, 12), TIER_OK);
        else
            assert_int_equal(get(&r, s[i]->w.record.id, 10 + i, 12), TIER_NOTFOUND);
        span_free(s[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(n_ok > 0 && n_failed > 0);
    assert_int_equal(rig_stats(&r).io_errors, n_failed);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((1 + N) * bytes));
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    put(&r, 2, 12);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 2 + n_ok);
    assert_int_equal(tier_disk_free_bytes(r.tier), all - (int64_t)((2 + n_ok) * bytes));
    rig_destroy(&r);
}

/* The catalogue's log cannot grow: the batch fails, what is stored is served, and when the log can grow
 * again, so does the store. */
static void test_failed_catalogue_batch_is_survived(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct record_id first = put(&r, 1, 12);
    static char bytes[400 << 10];
    struct cs_note note = {.key = {1, 1}, .data = bytes, .len = sizeof bytes};
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 256 << 10, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct note_record n = {.id = tier_disk_next_id(r.tier), .owner = first, .notes = &note, .n_notes = 1};
    struct span_io *s = span_make(&r, 2, 12);
    span_write(s);
    assert_int_equal(tier_disk_write_notes(r.tier, &n), CS_OK);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(s), TIER_EIO);
    assert_true(wait_until(nothing_pending, &r));
    assert_true(r.n_warnings > 0);
    assert_int_equal(get(&r, first, 1, 12), TIER_OK);
    assert_int_equal(get(&r, s->w.record.id, 2, 12), TIER_NOTFOUND);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    struct record_id third = put(&r, 3, 12);
    tier_disk_delete(r.tier, first);
    rig_reopen(&r);
    assert_null(find_seen(&r, 1));
    assert_int_equal(get(&r, third, 3, 12), TIER_OK);
    for (size_t i = 0; i < r.n_seen; i++)
        assert_int_equal(get(&r, r.seen[i].id, r.seen[i].number, 12), TIER_OK);
    span_free(s);
    rig_destroy(&r);
}

static void test_many_reads_cost_few_submissions(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    enum { N = 32 };
    struct span_io *s[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, i, 12);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(span_wait(s[i]), TIER_OK);
    struct cs_stats before = rig_stats(&r);
    spans_read_begin(s, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(span_wait(s[i]), TIER_OK);
        assert_true(span_bytes_right(s[i]));
        span_free(s[i]);
    }
    /* A record of one run is one request; requests go to the kernel in bunches. */
    struct cs_stats after = rig_stats(&r);
    assert_int_equal(after.sqes - before.sqes, N);
    assert_true(after.submissions - before.submissions <= N / 4);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_durable_span_reads_back),
        cmocka_unit_test(test_part_of_a_span_reads_back),
        cmocka_unit_test(test_reopen_reports_spans_newest_first),
        cmocka_unit_test(test_wrong_question_is_refused),
        cmocka_unit_test(test_deleted_span_is_gone_and_its_room_free),
        cmocka_unit_test(test_write_waits_for_room_of_deletes),
        cmocka_unit_test(test_beyond_the_budget_is_enospc),
        cmocka_unit_test(test_notes_of_a_write_are_in_its_row),
        cmocka_unit_test(test_later_notes_live_with_their_span),
        cmocka_unit_test(test_notes_of_a_span_deleted_at_once_leave_no_row),
        cmocka_unit_test(test_notes_beyond_the_catalogues_share_are_counted_and_said_once),
        cmocka_unit_test(test_time_of_use_survives),
        cmocka_unit_test(test_refused_row_is_deleted),
        cmocka_unit_test(test_foreign_records_stay_until_room_is_needed),
        cmocka_unit_test(test_growth_takes_what_a_nearly_full_file_system_has),
        cmocka_unit_test(test_growth_takes_what_a_limit_allows),
        cmocka_unit_test(test_foreign_records_leave_a_lowered_budget),
        cmocka_unit_test(test_foreign_parents_leave_after_their_children),
        cmocka_unit_test(test_lowered_budget_gives_room_back),
        cmocka_unit_test(test_failed_write_costs_its_chunks_until_the_next_open),
        cmocka_unit_test(test_failed_catalogue_batch_is_survived),
        cmocka_unit_test(test_many_reads_cost_few_submissions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
