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

static struct eng_config discrete_config(size_t m, uint64_t host_bytes, bool disk)
{
    struct eng_config c = rig_golden(models[m], 2 << 20);
    c.max_concurrency = 1;
    c.discrete = true;
    c.prefix_cache_bytes = host_bytes;
    c.store_shape = &rig_tiny_spans;
    c.disk_dir = disk ? rig_test_folder : NULL;
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

/* A model's prompt, its cold reply on plain memory, and an engine over a discrete device. */
struct trial {
    uint32_t *ids, full;
    struct rig_options options;
    struct rig_call cold;
    struct eng_config config;
    struct eng_engine *e;
};

static struct trial trial_begin(size_t m, uint64_t host_bytes, bool disk)
{
    struct trial t = {.ids = rig_ids(1, PROMPT), .full = full(m), .options = short_reply()};
    cold_on_plain_memory(m, t.ids, &t.options, &t.cold);
    t.config = discrete_config(m, host_bytes, disk);
    t.e = rig_open(&t.config);
    return t;
}

/* The prompt again: the same bits; says what was reused. */
static struct cs_reuse trial_run(struct trial *t)
{
    struct rig_call call;
    rig_run(t->e, t->ids, PROMPT, &t->options, &call);
    rig_assert_same(&t->cold, &call);
    struct cs_reuse reuse = call.usage.reuse;
    rig_free(&call);
    return reuse;
}

static void trial_end(struct trial *t)
{
    rig_free(&t->cold);
    rig_close(t->e);
    free(t->ids);
    free((void *)t->config.model_path);
}

static void cold_warm_and_from_the_host_the_bits_are_the_same(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct trial t = trial_begin(m, 64 << 20, false);
        struct cs_reuse r = trial_run(&t);
        assert_int_equal(cs_reuse_tokens(&r), 0);
        assert_int_equal(trial_run(&t).tokens_device, t.full);
        run_others(t.e, &t.options);
        r = trial_run(&t);
        assert_int_equal(cs_reuse_tokens(&r), t.full);
        assert_true(r.tokens_host > 0);
        assert_int_equal(trial_run(&t).tokens_device, t.full); /* restored, it is shared */
        struct cs_stats s = store_stats(t.e);
        assert_int_equal(s.pages_live, 0);
        assert_int_equal(s.corrupt_host + s.copy_errors, 0);
        trial_end(&t);
    }
}

static void through_a_small_host_from_disk_the_bits_are_the_same(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct trial t = trial_begin(m, 0, true);
        (void)trial_run(&t);
        let_it_sink(t.e);
        run_others(t.e, &t.options);
        struct cs_reuse r = trial_run(&t);
        assert_true(r.tokens_disk > 0);
        assert_int_equal(cs_reuse_tokens(&r), t.full);
        struct cs_stats s = store_stats(t.e);
        assert_true(s.host_used_bytes <= s.host_bytes);
        assert_int_equal(s.corrupt_host + s.copy_errors + s.corrupt_payload + s.quarantined, 0);
        trial_end(&t);
    }
}

static void a_restart_brings_the_same_bits_through_the_host(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct trial t = trial_begin(m, 64 << 20, true);
        (void)trial_run(&t);
        rig_close(t.e);
        t.e = rig_open(&t.config);
        assert_int_equal(trial_run(&t).tokens_disk, t.full);
        run_others(t.e, &t.options);
        struct cs_reuse r = trial_run(&t);
        assert_true(r.tokens_host > 0);
        assert_int_equal(r.tokens_disk, 0);
        assert_int_equal(cs_reuse_tokens(&r), t.full);
        trial_end(&t);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rig_make_folder, rig_drop_folder)

/* argv[1]: only tests whose names match it. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        TEST(cold_warm_and_from_the_host_the_bits_are_the_same),
        TEST(through_a_small_host_from_disk_the_bits_are_the_same),
        TEST(a_restart_brings_the_same_bits_through_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
