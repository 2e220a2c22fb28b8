/* Shared parts of the store's tests (see harness.h). */
#include "tests/cachestore/harness.h"
#include "cachestore/store.h"
#include "tests/cachestore/recount.h"
#include "tests/support/io_engine.h"

#include "tests/cachestore/fake_device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cs_config tiny_config(uint32_t arena_pages)
{
    return (struct cs_config){.page_tokens = PT,
                              .page_bytes = PAGE,
                              .arena_bytes = (uint64_t)arena_pages * PAGE,
                              .index_bytes = 1 << 20,
                              .io_engine = test_io_engine(),
                              .span_bytes = SPAN_BYTES,
                              .chunk_bytes = PAGE};
}

struct cs_store *tiny_open(const struct cs_config *c)
{
    struct cs_store *s = NULL;
    char err[200] = "";
    int rc = cs_open(c, &s, err, sizeof err);
    if (rc != CS_OK)
        fail_msg("cs_open: %s: %s", cs_strerror(rc), err);
    return s;
}

struct cs_stats stats_of(const struct cs_store *s)
{
    struct cs_stats st;
    cs_stats_get(s, &st);
    return st;
}

static void check_kept(const struct cs_kept *k)
{
    uint64_t sum = k->alive;
    for (int g = 0; g < CS_GONE_COUNT; g++)
        sum += k->gone[g];
    assert_int_equal(k->stored, sum);
}

void check_balance(const struct cs_store *s)
{
    struct cs_stats st = stats_of(s);
    uint64_t misses = 0, tokens = st.tokens_device + st.tokens_host + st.tokens_disk;
    for (int m = 0; m < CS_MISS_COUNT; m++) {
        misses += st.misses[m];
        tokens += st.tokens_missed[m];
        /* Nothing is missed for a reason that no look-up had. */
        assert_true(m == CS_MISS_NONE || st.misses[m] > 0 || st.tokens_missed[m] == 0);
    }
    assert_int_equal(st.lookups, misses);
    assert_int_equal(st.tokens_looked_up, tokens);
    recount_restores(s);
    check_kept(&st.kept_device);
    check_kept(&st.kept_host);
    check_kept(&st.kept_disk_spans);
    check_kept(&st.kept_disk_checkpoints);
    assert_int_equal(st.pages_total, st.pages_free + st.pages_live + st.pages_cached);
    assert_true(st.host_used_bytes <= st.host_bytes);
    assert_true(st.index_bytes <= st.index_budget);
    if (st.disk_on)
        assert_true(st.disk_bytes <= st.disk_budget);
}

void *memory_of(const void *address)
{
    return fake_device_memory(address);
}

void make_ids(uint32_t *ids, size_t n, size_t same, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(i * 2654435761u) ^ (i < same ? 0 : seed * 40503u + 1);
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* What page `page` of these ids holds at word w. */
static uint64_t prefix_hash(const uint32_t *ids, size_t n, uint32_t salt)
{
    uint64_t h = mix(1, salt);
    for (size_t i = 0; i < n; i++)
        h = mix(h, ids[i]);
    return h;
}

void fill_pages(struct cs_sequence *q, const uint32_t *ids, size_t first_page, size_t n_pages, uint32_t salt)
{
    for (size_t p = first_page; p < n_pages; p++) {
        uint64_t *words = memory_of(cs_sequence_pages(q)[p]), h = prefix_hash(ids, (p + 1) * PT, salt);
        for (size_t w = 0; w < PAGE / sizeof *words; w++)
            words[w] = mix(h, w);
    }
}

void check_pages(struct cs_sequence *q, const uint32_t *ids, size_t n_pages, uint32_t salt)
{
    assert_true(cs_sequence_n_pages(q) >= n_pages);
    for (size_t p = 0; p < n_pages; p++) {
        const uint64_t *words = memory_of(cs_sequence_pages(q)[p]);
        uint64_t h = prefix_hash(ids, (p + 1) * PT, salt);
        for (size_t w = 0; w < PAGE / sizeof *words; w++)
            if (words[w] != mix(h, w))
                fail_msg("page %zu of %zu is wrong at word %zu", p, n_pages, w);
    }
}

struct cs_reuse wait_settled(struct cs_sequence *q)
{
    struct cs_reuse reuse;
    time_t start = time(NULL);
    while (!cs_sequence_poll(q, &reuse)) {
        if (time(NULL) - start > 20)
            fail_msg("%s", "a restore did not settle");
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return reuse;
}

struct cs_sequence *open_settled(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n,
                                 struct cs_reuse *reuse)
{
    struct cs_sequence *q;
    assert_int_equal(cs_sequence_open(s, t, ids, n, &q), CS_OK);
    *reuse = wait_settled(q);
    assert_int_equal(cs_reuse_tokens(reuse) % PT, 0);
    assert_int_equal(cs_sequence_n_pages(q), cs_reuse_tokens(reuse) / PT);
    return q;
}

uint32_t round_trip(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n)
{
    struct cs_reuse reuse;
    struct cs_sequence *q = open_settled(s, t, ids, n, &reuse);
    uint32_t reused = cs_reuse_tokens(&reuse);
    check_pages(q, ids, reused / PT, 0);
    assert_int_equal(cs_sequence_grow(q, n), CS_OK);
    fill_pages(q, ids, reused / PT, n / PT, 0);
    assert_int_equal(cs_sequence_publish(q, ids, n, NULL, 0), CS_OK);
    cs_sequence_close(q);
    return reused;
}

struct cs_reuse look_up(struct cs_store *s, const struct cs_tenant *t, const uint32_t *ids, size_t n)
{
    struct cs_reuse reuse;
    uint32_t *longer = malloc((n + 1) * sizeof *longer);
    assert_non_null(longer);
    memcpy(longer, ids, n * sizeof *ids);
    longer[n] = 7;
    struct cs_sequence *q = open_settled(s, t, longer, n + 1, &reuse);
    check_pages(q, longer, cs_reuse_tokens(&reuse) / PT, 0);
    cs_sequence_close(q);
    free(longer);
    return reuse;
}

uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}
