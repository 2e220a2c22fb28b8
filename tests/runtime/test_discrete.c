/*
 * The discrete CPU backend: device memory that nobody reaches by its addresses. A reply has the same bits as
 * on the plain backend, cold, and whichever tier its beginning comes from: device, host, disk, and after a
 * restart; for pages, windows and recurrent state.
 */
#include "rig.h"

#define N(a)   (sizeof(a) / sizeof((a)[0]))
#define PROMPT 600
#define OTHERS 8

static const char *const models[] = {"qwen3", "gemma3", "qwen35", "qwen3next-grouped"};
static const struct cs_config shape = {
    .checkpoint_grace_ms = UINT32_MAX,
    .checkpoints_a_path = 64,
    .span_bytes = 64 << 10,
    .chunk_bytes = 64 << 10,
    .extent_bytes = 4 << 20,
    .flush_bytes = 256 << 10,
    .flush_interval_ms = 20,
};

static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = rig_folder();
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    rig_remove_folder(folder);
    return 0;
}

static struct eng_config discrete_config(size_t m, uint64_t host_bytes, bool disk)
{
    struct eng_config c = rig_golden(models[m], 2 << 20);
    c.max_concurrency = 1;
    c.discrete = true;
    c.prefix_cache_bytes = host_bytes;
    c.store_shape = &shape;
    c.disk_dir = disk ? folder : NULL;
    c.disk_bytes = disk ? 256 << 20 : 0;
    return c;
}

static uint32_t full(size_t m)
{
    uint32_t grid = m < 2 ? 16 : 64;
    return (PROMPT - 1) / grid * grid;
}

static struct cs_stats store_stats(struct eng_engine *e)
{
    struct cs_stats s;
    cs_stats_get(eng_engine_store(e), &s);
    return s;
}

/* Waits until all that was published is where it goes. */
static void let_it_sink(struct eng_engine *e)
{
    assert_int_equal(cs_flush(eng_engine_store(e), 10000), CS_OK);
}

static void run_others(struct eng_engine *e, const struct rig_options *o)
{
    for (uint64_t i = 0; i < OTHERS; i++) {
        struct rig_call call;
        uint32_t *other = rig_ids(10 + i, 1500);
        rig_run(e, other, 1500, o, &call);
        rig_free(&call);
        free(other);
        let_it_sink(e);
    }
}

static void run_and_compare(struct eng_engine *e, const uint32_t *ids, const struct rig_options *o,
                            const struct rig_call *cold, struct cs_reuse *reuse)
{
    struct rig_call call;
    rig_run(e, ids, PROMPT, o, &call);
    rig_assert_same(cold, &call);
    *reuse = call.usage.reuse;
    rig_free(&call);
}

static struct rig_options short_reply(void)
{
    struct rig_options o = rig_defaults();
    o.max_tokens = 8;
    return o;
}

static void cold_on_plain_memory(size_t m, const uint32_t *ids, const struct rig_options *o,
                                 struct rig_call *cold)
{
    struct eng_config plain = rig_golden(models[m], 2 << 20);
    plain.discrete = false;
    plain.prefix_cache_bytes = 0;
    plain.max_concurrency = 1;
    struct eng_engine *e = rig_open(&plain);
    rig_run(e, ids, PROMPT, o, cold);
    rig_close(e);
    free((void *)plain.model_path);
}

static void cold_warm_and_from_the_host_the_bits_are_the_same(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        uint32_t *ids = rig_ids(1, PROMPT);
        struct rig_options o = short_reply();
        struct rig_call cold;
        struct cs_reuse r;
        cold_on_plain_memory(m, ids, &o, &cold);
        struct eng_config config = discrete_config(m, 64 << 20, false);
        struct eng_engine *e = rig_open(&config);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_int_equal(cs_reuse_tokens(&r), 0);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_int_equal(r.tokens_device, full(m));
        run_others(e, &o);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_int_equal(cs_reuse_tokens(&r), full(m));
        assert_true(r.tokens_host > 0);
        run_and_compare(e, ids, &o, &cold, &r); /* restored, it is shared */
        assert_int_equal(r.tokens_device, full(m));
        struct cs_stats s = store_stats(e);
        assert_int_equal(s.pages_live, 0);
        assert_int_equal(s.corrupt_host + s.copy_errors, 0);
        rig_free(&cold);
        rig_close(e);
        free(ids);
        free((void *)config.model_path);
    }
}

static void through_a_small_host_from_disk_the_bits_are_the_same(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        uint32_t *ids = rig_ids(1, PROMPT);
        struct rig_options o = short_reply();
        struct rig_call cold;
        struct cs_reuse r;
        cold_on_plain_memory(m, ids, &o, &cold);
        struct eng_config config = discrete_config(m, 0, true);
        struct eng_engine *e = rig_open(&config);
        run_and_compare(e, ids, &o, &cold, &r);
        let_it_sink(e);
        run_others(e, &o);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_true(r.tokens_disk > 0);
        assert_int_equal(cs_reuse_tokens(&r), full(m));
        struct cs_stats s = store_stats(e);
        assert_true(s.host_used_bytes <= s.host_bytes);
        assert_int_equal(s.corrupt_host + s.copy_errors + s.corrupt_payload + s.quarantined, 0);
        rig_free(&cold);
        rig_close(e);
        free(ids);
        free((void *)config.model_path);
    }
}

static void a_restart_brings_the_same_bits_through_the_host(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        uint32_t *ids = rig_ids(1, PROMPT);
        struct rig_options o = short_reply();
        struct rig_call cold;
        struct cs_reuse r;
        cold_on_plain_memory(m, ids, &o, &cold);
        struct eng_config config = discrete_config(m, 64 << 20, true);
        struct eng_engine *e = rig_open(&config);
        run_and_compare(e, ids, &o, &cold, &r);
        rig_close(e);
        e = rig_open(&config);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_int_equal(r.tokens_disk, full(m));
        run_others(e, &o);
        run_and_compare(e, ids, &o, &cold, &r);
        assert_true(r.tokens_host > 0);
        assert_int_equal(r.tokens_disk, 0);
        assert_int_equal(cs_reuse_tokens(&r), full(m));
        rig_free(&cold);
        rig_close(e);
        free(ids);
        free((void *)config.model_path);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cold_warm_and_from_the_host_the_bits_are_the_same),
        TEST(through_a_small_host_from_disk_the_bits_are_the_same),
        TEST(a_restart_brings_the_same_bits_through_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
