/*
 * Checkpoints on disk: what holds for a span holds for them. They are proven before they are given out, any
 * changed byte of header, row or block is a miss of that one, and they come back with the spans after a
 * restart, a rebuild or a change of the model.
 */
#include "tests/disk/harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_checkpoint_reads_back_whole_and_in_part(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t number = CHECKPOINT | 7;
    int64_t before = tier_disk_free_bytes(r.tier);
    struct record_id id = put(&r, number, 40);
    assert_int_equal(before - tier_disk_free_bytes(r.tier),
                     tier_disk_record_bytes(r.tier, RECORD_CHECKPOINT, 40));
    assert_int_equal(get(&r, id, number, 40), TIER_OK);
    struct span_io *s = span_make(&r, number, 40);
    for (uint32_t first = 0; first < 40; first += 7) {
        span_read_begin(s, id, first, 40 - first < 9 ? 40 - first : 9);
        assert_int_equal(span_wait(s), TIER_OK);
        assert_true(span_bytes_right(s));
    }
    span_free(s);
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.checkpoints_written, 1);
    assert_int_equal(st.spans_written, 0);
    assert_int_equal(st.checkpoints_read, 7);
    assert_int_equal(st.spans_read, 0);
    assert_int_equal(st.disk_checkpoints, 1);
    assert_int_equal(st.disk_spans, 0);
    assert_int_equal(st.catalog_rows, 1);
    rig_destroy(&r);
}

/* One batch, one sync for both kinds; the harness checks the order of the reports. */
static void test_spans_and_checkpoints_share_a_batch_and_come_back_in_order(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    r.config.flush_interval_ms = 60000;
    rig_open(&r);
    enum { N = 12 };
    struct span_io *s[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = span_make(&r, i % 3 == 0 ? i | CHECKPOINT : i, 5);
        span_write(s[i]);
    }
    tier_disk_kick(r.tier);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(span_wait(s[i]), TIER_OK);
    struct cs_stats st = rig_stats(&r);
    assert_int_equal(st.catalog_rows, N);
    assert_true(st.catalog_batches <= 2 && st.syncs <= 2); /* the first kick may come between two writes */
    tier_disk_touch(r.tier, s[3]->w.record.id, 999);
    tier_disk_delete(r.tier, s[6]->w.record.id);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, N - 1);
    assert_int_equal(rig_stats(&r).disk_checkpoints, 3);
    assert_int_equal(rig_stats(&r).disk_spans, 8);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t number = i % 3 == 0 ? i | CHECKPOINT : i;
        const struct seen_span *seen = find_seen(&r, number);
        assert_int_equal(seen == NULL, i == 6);
        if (seen != NULL) {
            assert_int_equal(seen->used_unix, i == 3 ? 999 : 1000);
            assert_int_equal(get(&r, seen->id, number, 5), TIER_OK);
        }
        span_free(s[i]);
    }
    rig_destroy(&r);
}

static void test_wrong_question_is_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct record_id id = put(&r, CHECKPOINT | 1, 6);
    struct span_io *s = span_make(&r, CHECKPOINT | 1, 6);
    const struct span_record right = s->w.record;
    for (int what = 0; what < 6; what++) {
        struct span_record *w = &s->w.record;
        *w = right;
        if (what == 0)
            w->flags ^= 1;
        else if (what == 1)
            w->first_position += PT;
        else if (what == 2)
            w->parent.hi ^= 1;
        else if (what == 3)
            w->key.lo ^= 1;
        else if (what == 4)
            w->kind = RECORD_SPAN;
        else
            s->ids[PT - 1] ^= 1;
        span_read_begin(s, id, 0, 6);
        assert_int_equal(span_wait(s), what == 5 ? TIER_CORRUPT_TOKENS : TIER_CORRUPT_HEADER);
    }
    s->w.record = right;
    s->ids[PT - 1] ^= 1;
    span_read_begin(s, id, 0, 6);
    assert_int_equal(span_wait(s), TIER_OK);
    span_free(s);
    rig_destroy(&r);
}

/* No header of a record may be larger than a chunk: such a write ends, and takes no room. */
static void test_checkpoint_that_cannot_be_recorded_fails_its_write(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    int64_t before = tier_disk_free_bytes(r.tier);
    struct span_io *s = span_make(&r, CHECKPOINT | 1, 1);
    s->w.record.n_pages = CHUNK / 8;
    assert_int_equal(tier_disk_record_bytes(r.tier, RECORD_CHECKPOINT, CHUNK / 8), 0);
    span_write(s);
    assert_int_equal(span_wait(s), TIER_EIO);
    assert_int_equal(tier_disk_free_bytes(r.tier), before);
    assert_int_equal(tier_disk_pending_bytes(r.tier), 0);
    span_free(s);
    put(&r, CHECKPOINT | 2, 1);
    rig_destroy(&r);
}

/* More blocks than a span ever has: the header takes two pages, the record many chunks. */
static void test_many_blocks_survive_restart_and_rebuild(void **state)
{
    (void)state;
    enum { BLOCKS = 800 };
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    uint32_t number = CHECKPOINT | 9;
    struct record_id span = put(&r, 1, 20), id = put(&r, number, BLOCKS);
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_CHECKPOINT, BLOCKS, PT, PAGE, CHUNK), 8192);
    rig_reopen(&r);
    assert_int_equal(get(&r, id, number, BLOCKS), TIER_OK);
    struct span_io *s = span_make(&r, number, BLOCKS);
    span_read_begin(s, id, 777, 23);
    assert_int_equal(span_wait(s), TIER_OK);
    assert_true(span_bytes_right(s));
    span_free(s);
    rig_close(&r);
    remove_tree(rig_path(&r, "catalog"));
    rig_open(&r);
    assert_int_equal(r.n_seen, 2);
    assert_int_equal(get(&r, id, number, BLOCKS), TIER_OK);
    assert_int_equal(get(&r, span, 1, 20), TIER_OK);
    rig_destroy(&r);
}

/* ---- damage ------------------------------------------------------------------------------------------ */

enum { BLOCKS = 20, VICTIM = 2 };

static uint32_t number_of(uint32_t i)
{
    return i == VICTIM ? i | CHECKPOINT : i;
}

/* Span, checkpoint, span, side by side at the beginning of the volume. */
static void filled(struct rig *r)
{
    rig_init_in_memory(r, true);
    rig_open(r);
    for (uint32_t i = 1; i <= 3; i++)
        put(r, number_of(i), BLOCKS);
    rig_close(r);
}

static enum tier_result get_seen(struct rig *r, uint32_t i)
{
    const struct seen_span *s = find_seen(r, number_of(i));
    return s == NULL ? TIER_NOTFOUND : get(r, s->id, s->number, s->n_pages);
}

/* Each record takes two chunks. */
static const uint64_t victim_offset = (VICTIM - 1) * 2ull * CHUNK;

static void test_any_changed_byte_is_a_miss_of_its_record_only(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    /* Every field of the header, runs, ids, sums, zeros, the header's checksum, then blocks. */
    static const uint32_t offsets[] = {0,   8,   12,  16,  32,   40,   48,   52,   56,       64,
                                       80,  96,  128, 144, 148,  152,  156,  160,  168,      176,
                                       177, 180, 255, 256, 260,  264,  268,  283,  284,      300,
                                       443, 444, 448, 999, 4087, 4088, 4095, 4096, 5 * 4096, 21 * 4096 - 1};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        uint8_t mask = (uint8_t)(1u << (i % 8));
        flip(rig_path(&r, "volume.000"), victim_offset + offsets[i], mask);
        rig_open(&r);
        assert_int_equal(r.n_seen, 3);
        assert_int_equal(get_seen(&r, VICTIM),
                         offsets[i] < 4096 ? TIER_CORRUPT_HEADER : TIER_CORRUPT_PAYLOAD);
        assert_int_equal(get_seen(&r, 1), TIER_OK);
        assert_int_equal(get_seen(&r, 3), TIER_OK);
        rig_close(&r);
        flip(rig_path(&r, "volume.000"), victim_offset + offsets[i], mask);
    }
    rig_open(&r);
    assert_int_equal(get_seen(&r, VICTIM), TIER_OK);
    rig_destroy(&r);
}

struct one_row {
    uint64_t words[64];
    size_t len;
    struct record_id id;
};

static int take_row(void *ctx, const struct catalog_row *from)
{
    struct one_row *row = ctx;
    struct fmt_record rec;
    assert_int_equal(fmt_record_row_decode(from->value, from->len, &rec), FMT_RECORD_OK);
    if (rec.kind == FMT_RECORD_CHECKPOINT) {
        assert_true(from->len <= sizeof row->words);
        memcpy(row->words, from->value, from->len);
        row->len = from->len;
        row->id = from->id;
    }
    return 0;
}

/* A row is believed for nothing but where to look: changed anywhere, it is dropped, or what it leads to is
 * refused. Purge epoch and time of creation are not proven: they say nothing about bytes. */
static void test_any_changed_byte_of_a_row_is_a_miss(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    r.takes_any_row = true;
    struct one_row row = {.len = 0};
    struct catalog *c = rig_catalog_open(&r, false);
    assert_int_equal(catalog_scan(c, CATALOG_RECORD, take_row, &row), CS_OK);
    assert_int_equal(row.len, 256 + 12 + 4 * PT);
    for (size_t at = 0; at < row.len; at += at < 176 ? 4 : 7) {
        ((uint8_t *)row.words)[at] ^= 1;
        catalog_put(c, CATALOG_RECORD, row.id, row.words, row.len);
        assert_int_equal(catalog_commit(c, false), CS_OK);
        rig_catalog_close(&r, c);
        rig_open(&r);
        const struct seen_span *seen = NULL;
        for (size_t i = 0; i < r.n_seen; i++)
            seen = record_id_equal(r.seen[i].id, row.id) ? &r.seen[i] : seen;
        bool unproven = (at >= 56 && at < 64) || (at >= 168 && at < 176);
        assert_true(seen != NULL || !unproven);
        if (seen != NULL) {
            struct span_io *s = span_make(&r, number_of(VICTIM), BLOCKS);
            s->w.record = seen->record;
            s->w.record.ids = (const uint32_t *)((const uint8_t *)row.words + 256 + 12);
            if (s->w.record.n_pages == BLOCKS) {
                span_read_begin(s, row.id, 0, BLOCKS);
                enum tier_result result = span_wait(s);
                assert_int_equal(result == TIER_OK, unproven);
                s->w.record.key.lo = number_of(VICTIM);
                assert_true(result != TIER_OK || span_bytes_right(s));
            }
            span_free(s);
        }
        assert_int_equal(get_seen(&r, 1), TIER_OK);
        assert_int_equal(get_seen(&r, 3), TIER_OK);
        rig_close(&r);
        ((uint8_t *)row.words)[at] ^= 1;
        c = rig_catalog_open(&r, false);
        catalog_put(c, CATALOG_RECORD, row.id, row.words, row.len);
        assert_int_equal(catalog_commit(c, false), CS_OK);
    }
    rig_catalog_close(&r, c);
    rig_open(&r);
    assert_int_equal(get_seen(&r, VICTIM), TIER_OK);
    rig_destroy(&r);
}

static void test_volume_cut_inside_a_checkpoint(void **state)
{
    (void)state;
    struct rig r;
    filled(&r);
    rig_open(&r);
    assert_int_equal(truncate(rig_path(&r, "volume.000"), (off_t)(victim_offset + CHUNK)), 0);
    enum tier_result result = get_seen(&r, VICTIM);
    assert_true(result == TIER_CORRUPT_HEADER || result == TIER_CORRUPT_PAYLOAD);
    assert_int_equal(get_seen(&r, 1), TIER_OK);
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1); /* rows whose chunks are not in the file are gone */
    assert_int_equal(get_seen(&r, 1), TIER_OK);
    rig_destroy(&r);
}

/* ---- another model's --------------------------------------------------------------------------------- */

/* Used at the same second, a checkpoint leaves before the span it hangs on; its use keeps the span young. */
static void test_foreign_checkpoints_leave_before_their_span(void **state)
{
    (void)state;
    struct rig r;
    rig_init_in_memory(&r, true);
    rig_open(&r);
    struct span_io *root = span_make(&r, 1, 12), *child = span_make(&r, CHECKPOINT | 2, 12);
    child->w.record.parent = root->w.record.key;
    child->w.record.first_position = PT;
    root->w.record.used_unix = 500;
    span_write(child); /* written first: age alone would let it leave last */
    span_write(root);
    tier_disk_kick(r.tier);
    assert_int_equal(span_wait(child), TIER_OK);
    assert_int_equal(span_wait(root), TIER_OK);
    tier_disk_touch(r.tier, root->w.record.id, 500);
    span_free(root);
    span_free(child);
    uint64_t bytes = tier_disk_record_bytes(r.tier, RECORD_SPAN, 12);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 0);
    assert_int_equal(rig_stats(&r).records_foreign, 2);
    for (uint32_t n = 0; rig_stats(&r).records_foreign == 2; n++) {
        assert_true(tier_disk_free_bytes(r.tier) >= (int64_t)bytes);
        put(&r, 100 + n, 12);
    }
    assert_int_equal(rig_stats(&r).records_foreign, 1);
    r.config.fingerprint[0] ^= 1;
    rig_reopen(&r);
    assert_int_equal(r.n_seen, 1);
    assert_int_equal(r.seen[0].number, 1);
    rig_destroy(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_reads_back_whole_and_in_part),
        cmocka_unit_test(test_spans_and_checkpoints_share_a_batch_and_come_back_in_order),
        cmocka_unit_test(test_wrong_question_is_refused),
        cmocka_unit_test(test_checkpoint_that_cannot_be_recorded_fails_its_write),
        cmocka_unit_test(test_many_blocks_survive_restart_and_rebuild),
        cmocka_unit_test(test_any_changed_byte_is_a_miss_of_its_record_only),
        cmocka_unit_test(test_any_changed_byte_of_a_row_is_a_miss),
        cmocka_unit_test(test_volume_cut_inside_a_checkpoint),
        cmocka_unit_test(test_foreign_checkpoints_leave_before_their_span),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
