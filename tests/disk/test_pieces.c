/* Pure parts against naive models: the chunk bitmap, record headers, notes in rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cachestore/chunks.h"
#include "cachestore/episode.h"
#include "formats/note_row.h"
#include "formats/record.h"

static uint64_t random_state = 88172645463325252ull;
static uint64_t random_below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

enum { N_CHUNKS = 300 };

static uint32_t naive_find_free(const bool *used, const bool *backed, uint32_t n, uint32_t want,
                                uint32_t *first)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t run = 0;
        while (run < want && i + run < n && !used[i + run] && backed[i + run])
            run++;
        if (run == want) {
            *first = i;
            return run;
        }
        if (run > 0 && best == 0) {
            *first = i;
            best = run;
        }
        i += run;
    }
    return best;
}

static void test_chunks_equal_a_naive_model(void **state)
{
    (void)state;
    struct chunks c = {0};
    bool used[N_CHUNKS] = {false}, backed[N_CHUNKS] = {false};
    uint32_t n = 0, n_used = 0, n_backed = 0;
    for (int step = 0; step < 20000; step++) {
        uint32_t first = (uint32_t)random_below(N_CHUNKS), len = 1 + (uint32_t)random_below(70);
        switch (random_below(6)) {
        case 0:
            if (first > n) {
                assert_int_equal(chunks_resize(&c, first), 0);
                n = first;
            }
            break;
        case 1: {
            bool fits = first + len <= n;
            for (uint32_t i = first; fits && i < first + len; i++)
                fits = !used[i];
            assert_int_equal(chunks_claim(&c, first, len), fits);
            for (uint32_t i = first; fits && i < first + len; i++) {
                n_backed += !backed[i];
                n_used++;
                used[i] = backed[i] = true;
            }
            break;
        }
        case 2: {
            while (first < n && !used[first])
                first++;
            uint32_t run = 0;
            while (first + run < n && run < len && used[first + run])
                used[first + run++] = false;
            if (run > 0)
                chunks_release(&c, first, run);
            n_used -= run;
            break;
        }
        case 3: {
            bool on = random_below(3) > 0;
            uint32_t run = 0;
            while (first + run < n && run < len && !used[first + run]) {
                n_backed += on - backed[first + run];
                backed[first + run++] = on;
            }
            if (run > 0)
                chunks_set_backed(&c, first, run, on);
            break;
        }
        default: {
            uint32_t at = 0, naive_at = 0, want = 1 + (uint32_t)random_below(20);
            uint32_t got = chunks_find_free(&c, want, &at);
            uint32_t naive = naive_find_free(used, backed, n, want, &naive_at);
            assert_int_equal(got == want, naive == want);
            if (got == want)
                assert_int_equal(at, naive_at);
            assert_int_equal(got == 0, naive == 0);
            for (uint32_t i = at; i < at + got; i++)
                assert_true(!used[i] && backed[i]);
            got = chunks_find_last_free(&c, want, &at);
            assert_int_equal(got == 0, naive == 0);
            for (uint32_t i = at; i < at + got; i++)
                assert_true(!used[i] && backed[i]);
            for (uint32_t i = at + got; got > 0 && i < n; i++)
                assert_true(used[i] || !backed[i]);
            got = chunks_find_hole(&c, 0, want, &at);
            for (uint32_t i = 0; i < (got > 0 ? at : n); i++)
                assert_true(backed[i]);
            for (uint32_t i = at; i < at + got; i++)
                assert_false(backed[i]);
        }
        }
        assert_int_equal(c.n_used, n_used);
        assert_int_equal(c.n_backed, n_backed);
    }
    chunks_free(&c);
}

static struct fmt_record example(uint32_t kind, uint32_t n_pages, struct fmt_record_run *runs, uint32_t *ids,
                                 uint64_t *sums)
{
    for (uint32_t i = 0; i < n_pages * 16; i++)
        ids[i] = i * 7;
    for (uint32_t i = 0; i < n_pages; i++)
        sums[i] = ~(uint64_t)i;
    uint32_t chunks = fmt_record_chunks(kind, n_pages, 16, 5000, 65536);
    runs[0] = (struct fmt_record_run){.volume = 1, .first_chunk = 2, .n_chunks = 1};
    runs[1] = (struct fmt_record_run){.volume = 0, .first_chunk = 9, .n_chunks = chunks - 1};
    return (struct fmt_record){.store_uuid = {1},
                               .id_nonce = 5,
                               .id_sequence = 6,
                               .kind = kind,
                               .key = {7, 8},
                               .parent = {9, 10},
                               .fingerprint = {11},
                               .tenant = {12},
                               .purge_epoch = 13,
                               .first_position = 32,
                               .flags = kind == FMT_RECORD_CHECKPOINT ? 2 : 0,
                               .n_pages = n_pages,
                               .page_tokens = 16,
                               .page_bytes = 5000,
                               .created_unix = -14,
                               .chunk_bytes = 65536,
                               .n_runs = 2,
                               .runs = runs,
                               .ids = ids,
                               .page_sums = sums};
}

static void round_trip(uint32_t kind, uint32_t n)
{
    static uint32_t ids[100 * 16];
    static uint64_t sums[100], words[FMT_RECORD_HEADER_MAX / 8];
    struct fmt_record_run runs[2];
    size_t n_ids = kind == FMT_RECORD_SPAN ? n * 16 : 16;
    struct fmt_record r = example(kind, n, runs, ids, sums), back;
    size_t bytes = fmt_record_header_bytes(kind, n, 16, 5000, 65536);
    assert_int_equal(bytes % 4096, 0);
    assert_int_equal(fmt_record_n_ids(kind, n, 16), n_ids);
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_OK);
    assert_int_equal(fmt_record_decode(words, bytes, &back), FMT_RECORD_OK);
    assert_int_equal(back.kind, kind);
    assert_int_equal(back.flags, r.flags);
    assert_int_equal(back.id_nonce, 5);
    assert_int_equal(back.id_sequence, 6);
    assert_int_equal(back.parent[1], 10);
    assert_int_equal(back.created_unix, -14);
    assert_int_equal(back.first_position, 32);
    assert_int_equal(back.header_bytes, bytes);
    assert_int_equal(back.n_chunks, fmt_record_chunks(kind, n, 16, 5000, 65536));
    assert_memory_equal(back.ids, ids, n_ids * 4);
    assert_memory_equal(back.page_sums, sums, n * 8);
    assert_memory_equal(back.runs, runs, sizeof runs);
    struct fmt_record row;
    assert_int_equal(fmt_record_row_bytes(&r), 256 + 2 * 12 + n_ids * 4);
    assert_int_equal(fmt_record_row_decode(words, fmt_record_row_bytes(&r), &row), FMT_RECORD_OK);
    assert_memory_equal(row.ids, ids, n_ids * 4);
    assert_int_equal(fmt_record_row_decode(words, fmt_record_row_bytes(&r) - 1, &row), FMT_RECORD_ESIZE);
    assert_int_equal(fmt_record_decode(words, bytes - 1, &back), FMT_RECORD_ESIZE);
    uint64_t at = random_below(bytes * 8);
    ((uint8_t *)words)[at / 8] ^= (uint8_t)(1u << at % 8);
    assert_int_not_equal(fmt_record_decode(words, bytes, &back), FMT_RECORD_OK);
}

static void test_record_header_round_trips(void **state)
{
    (void)state;
    for (uint32_t n = 9; n <= 100; n += 7) {
        round_trip(FMT_RECORD_SPAN, n);
        round_trip(FMT_RECORD_CHECKPOINT, n);
    }
}

/* The sizes that real models have, and far beyond, in chunks of 256 KiB: blocks of 48 KiB and 192 KiB. */
static void test_headers_of_large_checkpoints_fit_a_chunk(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        uint64_t page, header;
    } sizes[] = {{160, 48 << 10, 4096},
                 {100, 192 << 10, 4096},
                 {800, 192 << 10, 16384},
                 {10000, 192 << 10, 42 * 4096},
                 {20000, 48 << 10, 51 * 4096}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t header =
            fmt_record_header_bytes(FMT_RECORD_CHECKPOINT, sizes[i].n, 16, sizes[i].page, 256 << 10);
        uint64_t chunks = fmt_record_chunks(FMT_RECORD_CHECKPOINT, sizes[i].n, 16, sizes[i].page, 256 << 10);
        assert_int_equal(chunks, (header + sizes[i].n * sizes[i].page + (256 << 10) - 1) / (256 << 10));
        uint64_t need = 256 + 12 * chunks + 64 + 8 * sizes[i].n + 8;
        assert_true(header >= need && header < need + 2 * 4096);
        assert_int_equal(header, sizes[i].header);
    }
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_CHECKPOINT, 600, 16, 4096, 4096), 0);
}

static void test_encoder_refuses_what_a_reader_would(void **state)
{
    (void)state;
    static uint32_t ids[20 * 16];
    static uint64_t sums[20], words[FMT_RECORD_HEADER_MAX / 8];
    struct fmt_record_run runs[2];
    size_t bytes = fmt_record_header_bytes(FMT_RECORD_SPAN, 20, 16, 5000, 65536);
    struct fmt_record r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    r.kind = 3;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_ESIZE);
    r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    r.flags = 1;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_EFIELD);
    r = example(FMT_RECORD_CHECKPOINT, 20, runs, ids, sums);
    r.flags = 4;
    size_t small = fmt_record_header_bytes(FMT_RECORD_CHECKPOINT, 20, 16, 5000, 65536);
    assert_int_equal(fmt_record_encode(&r, words, small), FMT_RECORD_EFIELD);
    r = example(FMT_RECORD_CHECKPOINT, 20, runs, ids, sums);
    r.first_position = 0;
    assert_int_equal(fmt_record_encode(&r, words, small), FMT_RECORD_EFIELD);
    r.first_position = UINT32_MAX - 15;
    assert_int_equal(fmt_record_encode(&r, words, small), FMT_RECORD_OK);
    r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    r.first_position = 33;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_EFIELD);
    r.first_position = UINT32_MAX - 15;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_EFIELD);
    r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    runs[1].n_chunks++;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_EFIELD);
    r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    runs[0].first_chunk = UINT32_MAX;
    assert_int_equal(fmt_record_encode(&r, words, bytes), FMT_RECORD_EFIELD);
    r = example(FMT_RECORD_SPAN, 20, runs, ids, sums);
    assert_int_equal(fmt_record_encode(&r, words, bytes + 4096), FMT_RECORD_ESIZE);
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_SPAN, 0, 16, 5000, 65536), 0);
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_SPAN, 1, 16, 5000, 65535), 0);
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_SPAN, 1, 16, 0, 65536), 0);
    assert_int_equal(fmt_record_header_bytes(FMT_RECORD_SPAN, UINT32_MAX, 1024, 1 << 30, 65536), 0);
}

static void test_pages_per_span_is_the_most_that_fit(void **state)
{
    (void)state;
    static const struct {
        uint64_t span, page;
        uint32_t tokens, chunk;
    } shapes[] = {{4 << 20, 368640, 16, 256 << 10}, {4 << 20, 4096, 16, 256 << 10},
                  {64 << 10, 4096, 4, 64 << 10},    {16384, 4096, 4, 64 << 10},
                  {4096, 9 << 20, 16, 256 << 10},   {4 << 20, 100, 32, 65536}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        uint32_t n =
            fmt_record_pages_per_span(shapes[i].span, shapes[i].tokens, shapes[i].page, shapes[i].chunk);
        assert_true(n >= 1);
        uint64_t stride = fmt_record_stride(shapes[i].page);
        uint64_t header =
            fmt_record_header_bytes(FMT_RECORD_SPAN, n, shapes[i].tokens, shapes[i].page, shapes[i].chunk);
        uint64_t more = fmt_record_header_bytes(FMT_RECORD_SPAN, n + 1, shapes[i].tokens, shapes[i].page,
                                                shapes[i].chunk);
        if (n > 1)
            assert_true(header + n * stride <= shapes[i].span);
        assert_true(more == 0 || more + (n + 1) * stride > shapes[i].span);
    }
    assert_int_equal(fmt_record_pages_per_span(4 << 20, 16, 1 << 30, 4096), 0);
}

static void test_page_sums_depend_on_place_and_owner(void **state)
{
    (void)state;
    static const uint8_t page[4096], uuid[16] = {1}, other[16] = {2};
    uint64_t sum = fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(uuid, 1, 2, 3));
    assert_true(sum != fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(other, 1, 2, 3)));
    assert_true(sum != fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(uuid, 2, 2, 3)));
    assert_true(sum != fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(uuid, 1, 3, 3)));
    assert_true(sum != fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(uuid, 1, 2, 4)));
    assert_true(sum == fmt_record_page_sum(page, sizeof page, fmt_record_page_seed(uuid, 1, 2, 3)));
}

/* docs/format.md: XXH3-64 with a seed, whatever way it is computed; a change anywhere shows. */
static void test_page_sums_are_those_of_the_library(void **state)
{
    (void)state;
    enum { MOST = 3 * 4096 + 7 };
    static const size_t sizes[] = {0, 1, 240, 241, 1023, 1024, 1025, 4096, 5119, 8192, 2 * 4096 + 100, MOST};
    uint8_t *page = malloc(MOST);
    assert_non_null(page);
    for (size_t i = 0; i < MOST; i++)
        page[i] = (uint8_t)random_below(256);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t seed = random_below(UINT64_MAX), sum = XXH3_64bits_withSeed(page, sizes[i], seed);
        assert_true(fmt_record_page_sum(page, sizes[i], seed) == sum);
        if (sizes[i] == 0)
            continue;
        size_t at = (size_t)random_below(sizes[i]);
        page[at] ^= 1;
        assert_true(fmt_record_page_sum(page, sizes[i], seed) != sum);
        page[at] ^= 1;
    }
    free(page);
}

static void test_notes_round_trip_and_refuse_damage(void **state)
{
    (void)state;
    static uint8_t list[256];
    struct fmt_note notes[2] = {{.key = {1, 2}, .data = "abc", .len = 3},
                                {.key = {4, 5}, .data = NULL, .len = 0}},
                    got;
    size_t bytes = fmt_notes_bytes(2, 3), at = 0, n = 9;
    assert_int_equal(fmt_notes_check(list, 0, &n), 0);
    assert_int_equal(n, 0);
    at = fmt_notes_add(&notes[0], list, at);
    at = fmt_notes_add(&notes[1], list, at);
    assert_int_equal(at, bytes);
    assert_int_equal(fmt_notes_check(list, bytes, &n), 0);
    assert_int_equal(n, 2);
    at = 0;
    fmt_notes_next(list, &at, &got);
    assert_memory_equal(got.data, "abc", 3);
    fmt_notes_next(list, &at, &got);
    assert_int_equal(got.key[1], 5);
    assert_int_equal(at, bytes);
    for (size_t len = 1; len < bytes; len++) /* the first note alone is a list as well */
        assert_int_equal(fmt_notes_check(list, len, &n), len == fmt_notes_bytes(1, 3) ? 0 : -1);
    assert_int_equal(fmt_notes_check(list, bytes + 1, &n), -1);
    list[16] = 200; /* a length beyond the list */
    assert_int_equal(fmt_notes_check(list, bytes, &n), -1);
}

static void test_a_row_carries_notes_behind_the_header(void **state)
{
    (void)state;
    static uint32_t ids[9 * 16];
    static uint64_t sums[9], words[512];
    uint8_t list[64];
    struct fmt_record_run runs[2];
    struct fmt_note note = {.key = {1, 2}, .data = "abc", .len = 3}, got;
    struct fmt_record r = example(FMT_RECORD_SPAN, 9, runs, ids, sums), back;
    size_t bare = fmt_record_row_bytes(&r), at = 0;
    r.notes = list;
    r.notes_bytes = fmt_notes_add(&note, list, 0);
    size_t bytes = fmt_record_row_bytes(&r);
    assert_int_equal(bytes, bare + r.notes_bytes);
    assert_true(bytes <= sizeof words);
    assert_int_equal(fmt_record_row_encode(&r, words, bytes), FMT_RECORD_OK);
    assert_int_equal(fmt_record_row_decode(words, bytes, &back), FMT_RECORD_OK);
    assert_int_equal(back.n_notes, 1);
    fmt_notes_next(back.notes, &at, &got);
    assert_int_equal(got.key[1], 2);
    assert_memory_equal(got.data, "abc", 3);
    assert_int_equal(fmt_record_row_decode(words, bytes - 1, &back), FMT_RECORD_ESIZE);
    assert_int_equal(fmt_record_row_decode(words, bare, &back), FMT_RECORD_OK);
    assert_int_equal(back.n_notes, 0);
    /* A header has none, so that a row made from it has none either. */
    size_t header_bytes = fmt_record_header_bytes(FMT_RECORD_SPAN, 9, 16, 5000, 65536);
    assert_true(header_bytes <= sizeof words);
    assert_int_equal(fmt_record_encode(&r, words, header_bytes), FMT_RECORD_OK);
    assert_int_equal(fmt_record_decode(words, header_bytes, &back), FMT_RECORD_OK);
    assert_int_equal(fmt_record_row_bytes(&back), bare);
}

static void test_a_swarm_begins_once_and_ends_when_it_has_been_quiet(void **state)
{
    (void)state;
    struct episode e = {0};
    assert_true(episode_due_ms(&e) == UINT64_MAX);
    assert_int_equal(episode_end(&e, UINT64_MAX), 0);
    for (unsigned round = 0; round < 2; round++) {
        uint64_t now = 1000 + round * 1000000u;
        assert_true(episode_note(&e, now));
        assert_false(episode_note(&e, now + 5));
        assert_false(episode_note(&e, now + EPISODE_QUIET_MS));
        assert_int_equal(episode_due_ms(&e), now + 2 * EPISODE_QUIET_MS);
        assert_int_equal(episode_end(&e, now + 2 * EPISODE_QUIET_MS - 1), 0);
        assert_int_equal(episode_end(&e, now + 2 * EPISODE_QUIET_MS), 3);
        assert_int_equal(episode_end(&e, UINT64_MAX), 0);
    }
    assert_true(episode_note(&e, 7));
    assert_int_equal(episode_end(&e, UINT64_MAX), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_swarm_begins_once_and_ends_when_it_has_been_quiet),
        cmocka_unit_test(test_chunks_equal_a_naive_model),
        cmocka_unit_test(test_record_header_round_trips),
        cmocka_unit_test(test_headers_of_large_checkpoints_fit_a_chunk),
        cmocka_unit_test(test_encoder_refuses_what_a_reader_would),
        cmocka_unit_test(test_pages_per_span_is_the_most_that_fit),
        cmocka_unit_test(test_page_sums_depend_on_place_and_owner),
        cmocka_unit_test(test_page_sums_are_those_of_the_library),
        cmocka_unit_test(test_notes_round_trip_and_refuse_damage),
        cmocka_unit_test(test_a_row_carries_notes_behind_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
