/*
 * Checkpoints on disk, through the engine: what left the arena comes back with its bits, after a restart too,
 * windows and recurrent state alike.
 */
#include "rig.h"

#define N(a)     (sizeof(a) / sizeof((a)[0]))
#define KV_BYTES (12 << 20)
#define TURNS    12

static const char *const models[] = {"gemma3", "qwen35", "qwen35-grouped", "qwen3next", "qwen3next-grouped"};

static struct eng_config config_of(size_t m, uint64_t kv_bytes)
{
    struct eng_config c = rig_golden(models[m], kv_bytes);
    c.disk_dir = rig_test_folder;
    c.disk_bytes = 256 << 20;
    c.store_shape = &rig_tiny_spans;
    return c;
}

static uint32_t grid_of(size_t m)
{
    return m == 0 ? 16 : 64;
}

static void a_restart_resumes_at_every_turn_with_the_same_bits(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct rig_chat c;
        struct rig_call cold[TURNS];
        struct rig_options o = rig_defaults();
        o.max_tokens = 8;
        rig_chat_make(70 + m, 1 + 2 * TURNS, 45, 9, 47, &c);
        struct eng_config config = config_of(m, KV_BYTES);
        struct eng_engine *e = rig_open(&config);
        for (size_t t = 0; t < TURNS; t++)
            rig_chat_run(e, &c, c.start[2 * t + 2], &o, &cold[t]);
        rig_close(e);
        for (size_t t = TURNS; t-- > 0;) {
            struct rig_call warm;
            size_t n = c.start[2 * t + 2];
            e = rig_open(&config); /* nothing is on the device */
            rig_chat_run(e, &c, n, &o, &warm);
            assert_int_equal(warm.usage.reuse.tokens_disk, (n - 1) / grid_of(m) * grid_of(m));
            assert_int_equal(warm.usage.reuse.tokens_device, 0);
            rig_assert_same(&cold[t], &warm);
            rig_free(&warm);
            rig_chat_run(e, &c, n, &o, &warm); /* restored, it is shared */
            assert_int_equal(warm.usage.reuse.tokens_device, (n - 1) / grid_of(m) * grid_of(m));
            rig_assert_same(&cold[t], &warm);
            rig_free(&warm);
            rig_free(&cold[t]);
            rig_close(e);
        }
        rig_chat_free(&c);
        free((void *)config.model_path);
    }
}

static void what_left_the_arena_comes_back_from_disk(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        enum { PROMPT = 600, OTHERS = 8 };
        uint32_t *ids = rig_ids(1, PROMPT);
        struct rig_options o = rig_defaults();
        struct rig_call cold;
        struct rig_call call;
        struct cs_stats s;
        o.max_tokens = 8;
        struct eng_config config = config_of(m, 2 << 20);
        config.max_concurrency = 1;
        struct eng_engine *e = rig_open(&config);
        rig_run(e, ids, PROMPT, &o, &cold);
        for (uint64_t i = 0; i < OTHERS; i++) {
            uint32_t *other = rig_ids(10 + i, 1500);
            assert_int_equal(cs_flush(eng_engine_store(e), 10000), CS_OK);
            rig_run(e, other, 1500, &o, &call);
            rig_free(&call);
            free(other);
        }
        rig_run(e, ids, PROMPT, &o, &call);
        assert_int_equal(rig_reused(&call), (PROMPT - 1) / grid_of(m) * grid_of(m));
        assert_true(call.usage.reuse.tokens_disk > 0);
        rig_assert_same(&cold, &call);
        cs_stats_get(eng_engine_store(e), &s);
        assert_int_equal(s.pages_live, 0);
        assert_int_equal(s.corrupt_header + s.corrupt_tokens + s.corrupt_payload + s.quarantined, 0);
        rig_free(&cold);
        rig_free(&call);
        rig_close(e);
        free(ids);
        free((void *)config.model_path);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rig_make_folder, rig_drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restart_resumes_at_every_turn_with_the_same_bits),
        TEST(what_left_the_arena_comes_back_from_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
