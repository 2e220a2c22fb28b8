/* Sequences, publish and reuse on the device, without a disk. */
#include "tests/cachestore/harness.h"

#include "cachestore/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void a_published_prefix_is_found_by_a_longer_prompt(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(32);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[40];
    make_ids(ids, 40, 40, 0);
    assert_int_equal(round_trip(s, NULL, ids, 22), 0); /* 5 full pages: spans of 3 and 2 */
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_spans, 2);
    assert_int_equal(st.publish_pages, 5);
    assert_int_equal(st.pages_cached, 5);
    assert_int_equal(st.pages_live, 0);

    struct cs_reuse r = look_up(s, NULL, ids, 39);
    assert_int_equal(r.tokens_device, 20);
    assert_int_equal(r.miss, CS_MISS_DIVERGED);
    assert_int_equal(r.restore_us, 0);
    check_balance(s);
    cs_close(s, 0);
}

static void one_token_is_always_left_to_compute(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(32);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[16];
    struct cs_reuse r;
    make_ids(ids, 16, 16, 0);
    round_trip(s, NULL, ids, 16);
    for (size_t n = 0; n <= 16; n++) {
        struct cs_sequence *q = open_settled(s, NULL, ids, n, &r);
        size_t want = n ? (n - 1) / PT * PT : 0;
        assert_int_equal(r.tokens_device, want);
        assert_int_equal(r.miss, n > 0 && n <= PT ? CS_MISS_PARTIAL_PAGE : CS_MISS_NONE);
        cs_sequence_close(q);
    }
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.lookups, 16 + 1); /* n = 0 looks nothing up; the first was cold */
    assert_int_equal(st.misses[CS_MISS_COLD], 1);
    assert_int_equal(st.hits_full, 12);
    check_balance(s);
    cs_close(s, 0);
}

static void a_fork_inside_a_span_shares_what_is_equal(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(64);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[24], b[24], d[24];
    make_ids(a, 24, 24, 0);
    make_ids(b, 24, 8, 5);  /* leaves a behind its second page, in the middle of a span */
    make_ids(d, 24, 18, 9); /* leaves a inside a page */
    round_trip(s, NULL, a, 24);
    assert_int_equal(round_trip(s, NULL, b, 24), 8);
    assert_int_equal(round_trip(s, NULL, d, 24), 16);
    assert_int_equal(stats_of(s).publish_pages, 6 + 4 + 2);
    assert_int_equal(look_up(s, NULL, a, 24).tokens_device, 24);
    assert_int_equal(look_up(s, NULL, b, 24).tokens_device, 24);
    assert_int_equal(look_up(s, NULL, d, 24).tokens_device, 24);
    check_balance(s);
    cs_close(s, 0);
}

static void publishing_page_by_page_gives_what_one_publish_gives(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(64);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[100];
    struct cs_reuse r;
    make_ids(ids, 100, 100, 0);
    struct cs_sequence *q = open_settled(s, NULL, ids, 100, &r);
    for (size_t n = 1; n <= 100; n++) {
        assert_int_equal(cs_sequence_grow(q, n), CS_OK);
        if (n % PT == 0)
            fill_pages(q, ids, n / PT - 1, n / PT, 0);
        assert_int_equal(cs_sequence_publish(q, ids, n, NULL, 0), CS_OK);
    }
    cs_sequence_close(q);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_pages, 25);
    assert_int_equal(st.publish_duplicate_pages, 0);
    assert_true(st.publish_spans <= st.publishes);
    assert_int_equal(look_up(s, NULL, ids, 100).tokens_device, 100);
    check_balance(s);
    cs_close(s, 0);
}

static void what_another_sequence_published_meanwhile_is_kept(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(32);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[24];
    struct cs_reuse r;
    make_ids(ids, 24, 24, 0);
    struct cs_sequence *one = open_settled(s, NULL, ids, 24, &r), *two = open_settled(s, NULL, ids, 24, &r);
    assert_int_equal(cs_sequence_grow(one, 24), CS_OK);
    assert_int_equal(cs_sequence_grow(two, 24), CS_OK);
    fill_pages(one, ids, 0, 6, 0);
    fill_pages(two, ids, 0, 6, 1); /* other bytes, to tell them apart */
    assert_int_equal(cs_sequence_publish(one, ids, 16, NULL, 0), CS_OK);
    assert_int_equal(cs_sequence_publish(two, ids, 20, NULL, 0), CS_OK);
    struct cs_stats st = stats_of(s);
    assert_int_equal(st.publish_pages, 5);
    assert_int_equal(st.publish_duplicate_pages, 4);
    check_pages(two, ids, 5, 1); /* its own copies stay where they were */
    cs_sequence_close(two);
    st = stats_of(s);
    assert_int_equal(st.pages_live, 6);
    assert_int_equal(st.pages_cached, 1);
    cs_sequence_close(one);
    struct cs_sequence *q = open_settled(s, NULL, ids, 24, &r);
    assert_int_equal(r.tokens_device, 20);
    check_pages(q, ids, 4, 0);
    cs_sequence_close(q);
    check_balance(s);
    cs_close(s, 0);
}

static void tenants_and_fingerprints_never_share(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(64);
    struct cs_store *s = tiny_open(&c);
    struct cs_tenant a = {.id = {1}}, b = {.id = {2}};
    uint32_t ids[20];
    make_ids(ids, 20, 20, 0);
    round_trip(s, &a, ids, 20);
    assert_int_equal(look_up(s, &a, ids, 20).tokens_device, 20);
    struct cs_reuse r = look_up(s, &b, ids, 20);
    assert_int_equal(r.tokens_device, 0);
    assert_int_equal(r.miss, CS_MISS_COLD);
    assert_int_equal(look_up(s, NULL, ids, 20).tokens_device, 0);

    struct cs_chain ca, cb;
    cs_chain_init(s, &a, &ca);
    cs_chain_init(s, &b, &cb);
    cs_chain_add(&ca, ids, 20);
    cs_chain_add(&cb, ids, 20);
    assert_true(cs_chain_key(&ca).lo != cs_chain_key(&cb).lo);
    cs_close(s, 0);
}

static void chain_keys_depend_on_ids_only_not_on_how_they_were_added(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(8);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[23];
    make_ids(ids, 23, 23, 0);
    struct cs_key seen[24];
    for (size_t n = 0; n <= 23; n++) {
        struct cs_chain whole, single;
        cs_chain_init(s, NULL, &whole);
        cs_chain_init(s, NULL, &single);
        cs_chain_add(&whole, ids, n);
        for (size_t i = 0; i < n; i++)
            cs_chain_add(&single, ids + i, 1);
        struct cs_key k = cs_chain_key(&whole), k1 = cs_chain_key(&single);
        assert_memory_equal(&k, &k1, sizeof k);
        assert_int_equal(whole.n, n);
        seen[n] = k;
        for (size_t m = 0; m < n; m++)
            assert_true(memcmp(&seen[m], &k, sizeof k) != 0);
    }
    cs_close(s, 0);
}

static void growth_evicts_the_least_recently_used_leaf_from_its_tail(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(12);
    struct cs_store *s = tiny_open(&c);
    uint32_t a[24], b[24], d[40];
    make_ids(a, 24, 0, 1);
    make_ids(b, 24, 0, 2);
    make_ids(d, 40, 0, 3);
    round_trip(s, NULL, a, 24);
    round_trip(s, NULL, b, 24); /* the arena is full: 6 + 6 pages */
    assert_int_equal(stats_of(s).pages_free, 0);
    assert_int_equal(look_up(s, NULL, a, 24).tokens_device, 24); /* b is the older one now */
    round_trip(s, NULL, d, 16);                                  /* needs 4 pages */
    struct cs_reuse r = look_up(s, NULL, b, 24);
    assert_int_equal(r.tokens_device, 8); /* b's second span went, and one page of its first */
    assert_int_equal(r.miss, CS_MISS_EVICTED);
    assert_int_equal(look_up(s, NULL, a, 24).tokens_device, 24);
    assert_int_equal(stats_of(s).dropped_undurable, 0); /* there is no disk to lose it to */
    check_balance(s);
    cs_close(s, 0);
}

static void a_root_outlives_its_leaves(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(15);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[24], other[60];
    make_ids(other, 60, 0, 99);
    /* One shared span, then forks used later than it. The second goes on where one other did, which counts
     * as if it had been used 90 s later. */
    for (uint32_t f = 1; f <= 4; f++) {
        make_ids(ids, 24, 12, f);
        round_trip(s, NULL, ids, 24);
    }
    round_trip(s, NULL, other,
               44); /* 11 of 15 pages: nothing but one page of a leaf can stay beside the root */
    make_ids(ids, 24, 12, 2);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 16);
    check_balance(s);
    cs_close(s, 0);
}

static void a_full_arena_refuses_growth_and_leaves_the_sequence_as_it_was(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(8);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[64];
    struct cs_reuse r;
    make_ids(ids, 64, 64, 0);
    struct cs_sequence *one = open_settled(s, NULL, ids, 20, &r), *two = open_settled(s, NULL, ids, 20, &r);
    assert_int_equal(cs_sequence_grow(one, 20), CS_OK);
    assert_int_equal(cs_sequence_grow(two, 8), CS_OK);
    fill_pages(two, ids, 0, 2, 3);
    assert_int_equal(cs_sequence_grow(two, 20), CS_EFULL);
    assert_int_equal(cs_sequence_n_pages(two), 2);
    check_pages(two, ids, 2, 3);
    assert_int_equal(cs_sequence_grow(two, 1000000), CS_EFULL);
    cs_sequence_close(one);
    assert_int_equal(cs_sequence_grow(two, 20), CS_OK);
    check_pages(two, ids, 2, 3);
    cs_sequence_close(two);
    assert_int_equal(stats_of(s).pages_free, 8);
    cs_close(s, 0);
}

static void a_lost_middle_comes_back_with_its_subtree(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(12);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[48];
    struct cs_reuse r;
    make_ids(ids, 48, 48, 0);
    /* `holder` keeps the leaf alive while eviction takes what nobody uses: duplicates leave the stored pages
     * of the first span unused. */
    struct cs_sequence *first = open_settled(s, NULL, ids, 48, &r),
                       *holder = open_settled(s, NULL, ids, 48, &r);
    assert_int_equal(cs_sequence_grow(first, 12), CS_OK);
    fill_pages(first, ids, 0, 3, 0);
    assert_int_equal(cs_sequence_grow(holder, 24), CS_OK);
    fill_pages(holder, ids, 0, 6, 0);
    assert_int_equal(cs_sequence_publish(first, ids, 12, NULL, 0), CS_OK);
    assert_int_equal(cs_sequence_publish(holder, ids, 24, NULL, 0), CS_OK);
    cs_sequence_close(first);
    /* 3 cached, 6 live, 3 free: this takes the three interior pages. */
    uint32_t other[24];
    make_ids(other, 24, 0, 8);
    struct cs_sequence *q = open_settled(s, NULL, other, 24, &r);
    assert_int_equal(cs_sequence_grow(q, 24), CS_OK);
    cs_sequence_close(q);
    r = look_up(s, NULL, ids, 24);
    assert_int_equal(r.tokens_device, 0);
    assert_int_equal(r.miss, CS_MISS_EVICTED);
    round_trip(s, NULL, ids, 12);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
    cs_sequence_close(holder);
    assert_int_equal(look_up(s, NULL, ids, 24).tokens_device, 24);
    check_balance(s);
    cs_close(s, 0);
}

static void the_index_forgets_the_oldest_within_its_budget(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(2000);
    c.index_bytes = 48 << 10;
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[12];
    for (uint32_t k = 0; k < 600; k++) {
        make_ids(ids, 12, 0, k + 1);
        round_trip(s, NULL, ids, 12);
        check_balance(s);
    }
    struct cs_stats st = stats_of(s);
    assert_true(st.spans > 20);
    assert_true(st.spans < 300);
    assert_int_equal(st.pages_cached, 3 * st.spans);
    make_ids(ids, 12, 0, 600);
    assert_int_equal(look_up(s, NULL, ids, 12).tokens_device, 12);
    make_ids(ids, 12, 0, 1);
    assert_int_equal(look_up(s, NULL, ids, 12).tokens_device, 0);
    make_ids(ids, 12, 0, 600 - (uint32_t)st.spans);
    assert_int_equal(look_up(s, NULL, ids, 12).miss, CS_MISS_EVICTED);
    cs_close(s, 0);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(8);
    struct cs_store *s = NULL;
    char err[200];
    struct cs_config bad = c;
    bad.page_tokens = 33;
    assert_int_equal(cs_open(&bad, &s, err, sizeof err), CS_EINVAL);
    assert_non_null(strstr(err, "page_tokens"));
    bad = c;
    bad.arena_bytes = PAGE - 1;
    assert_int_equal(cs_open(&bad, &s, err, sizeof err), CS_EINVAL);
    bad = c;
    bad.page_bytes = 0;
    assert_int_equal(cs_open(&bad, &s, err, sizeof err), CS_EINVAL);
    bad = c;
    bad.io_engine = CS_IO_PREAD + 1;
    assert_int_equal(cs_open(&bad, &s, err, sizeof err), CS_EINVAL);
    assert_non_null(strstr(err, "io_engine"));

    s = tiny_open(&c);
    uint32_t ids[20], others[20];
    struct cs_reuse r;
    make_ids(ids, 20, 20, 0);
    make_ids(others, 20, 0, 4);
    struct cs_sequence *q = open_settled(s, NULL, ids, 20, &r);
    assert_int_equal(cs_sequence_publish(q, ids, 4, NULL, 0), CS_EINVAL); /* more than it has pages for */
    assert_int_equal(cs_sequence_grow(q, 20), CS_OK);
    fill_pages(q, ids, 0, 5, 0);
    assert_int_equal(cs_sequence_publish(q, ids, 12, NULL, 0), CS_OK);
    assert_int_equal(cs_sequence_publish(q, others, 16, NULL, 0), CS_EINVAL); /* does not extend */
    assert_int_equal(cs_sequence_publish(q, ids, 8, NULL, 0), CS_EINVAL);     /* goes back */
    struct cs_note huge = {.data = ids, .len = (1u << 20) + 1};
    assert_int_equal(cs_sequence_publish(q, ids, 16, &huge, 1), CS_EINVAL);
    assert_int_equal(cs_sequence_publish(q, ids, 20, NULL, 0), CS_OK);
    cs_sequence_close(q);
    assert_int_equal(look_up(s, NULL, ids, 20).tokens_device, 20);
    cs_close(s, 0);
}

static void notified(void *ctx)
{
    __atomic_add_fetch((int *)ctx, 1, __ATOMIC_SEQ_CST);
}

/* Memory is backed some way ahead of use, without anybody asking, and no further. */
static void memory_is_backed_in_the_background_ahead_of_use(void **state)
{
    (void)state;
    enum { AHEAD = 128 << 20, BEYOND = 16 << 20 };
    static unsigned char resident[(AHEAD + BEYOND) / PAGE];
    struct cs_config c = tiny_config((AHEAD + BEYOND) / PAGE);
    struct cs_store *s = tiny_open(&c);
    struct timespec now, start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (madvise(s->arena.base, PAGE, MADV_POPULATE_WRITE) != 0) { /* before Linux 5.14 */
        cs_close(s, 0);
        skip();
    }
    size_t n;
    do {
        assert_int_equal(mincore(s->arena.base, sizeof resident * PAGE, resident), 0);
        for (n = 0; n < sizeof resident && resident[n] & 1; n++)
            ;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (n < AHEAD / PAGE && now.tv_sec - start.tv_sec < 60);
    assert_in_range(n, AHEAD / PAGE, AHEAD / PAGE + (4 << 20) / PAGE); /* up to an edge of a huge page */
    cs_close(s, 0);
}

static void a_settled_sequence_notifies_once(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(8);
    struct cs_store *s = tiny_open(&c);
    uint32_t ids[20];
    struct cs_reuse r;
    int calls = 0;
    make_ids(ids, 20, 20, 0);
    struct cs_sequence *q = open_settled(s, NULL, ids, 20, &r);
    cs_sequence_notify(q, notified, &calls);
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0)
        ;
    cs_sequence_close(q);
    cs_close(s, 0);
    assert_int_equal(calls, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_prefix_is_found_by_a_longer_prompt),
        cmocka_unit_test(one_token_is_always_left_to_compute),
        cmocka_unit_test(a_fork_inside_a_span_shares_what_is_equal),
        cmocka_unit_test(publishing_page_by_page_gives_what_one_publish_gives),
        cmocka_unit_test(what_another_sequence_published_meanwhile_is_kept),
        cmocka_unit_test(tenants_and_fingerprints_never_share),
        cmocka_unit_test(chain_keys_depend_on_ids_only_not_on_how_they_were_added),
        cmocka_unit_test(growth_evicts_the_least_recently_used_leaf_from_its_tail),
        cmocka_unit_test(a_root_outlives_its_leaves),
        cmocka_unit_test(a_full_arena_refuses_growth_and_leaves_the_sequence_as_it_was),
        cmocka_unit_test(a_lost_middle_comes_back_with_its_subtree),
        cmocka_unit_test(the_index_forgets_the_oldest_within_its_budget),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(a_settled_sequence_notifies_once),
        cmocka_unit_test(memory_is_backed_in_the_background_ahead_of_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
