/*
 * The runtime over the disk tier: warm after a restart, warm after eviction, the memo too, and never from
 * another model's store.
 */
#include "cachestore/store.h"
#include "rig.h"

#define PROMPT 300
#define FULL   ((PROMPT - 1) / 16 * 16)

static const struct cs_config shape = {
    .span_bytes = 64 << 10,
    .chunk_bytes = 64 << 10,
    .extent_bytes = 4 << 20,
    .flush_bytes = 256 << 10,
    .flush_interval_ms = 20,
};

static struct eng_config config;
static char *folder;

static int make_folder(void **state)
{
    (void)state;
    folder = rig_folder();
    config = rig_config("qwen2-q8_0", 200);
    config.disk_dir = folder;
    config.disk_bytes = 64 << 20;
    config.store_shape = &shape;
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    rig_remove_folder(folder);
    free((void *)config.model_path);
    return 0;
}

static struct cs_stats store_stats(struct eng_engine *e)
{
    struct cs_stats s;
    cs_stats_get(eng_engine_store(e), &s);
    return s;
}

static struct rig_options warm_options(void)
{
    struct rig_options o = rig_defaults();
    o.sampling.temperature = 1;
    o.sampling.seed = 5;
    return o;
}

static void a_restart_is_warm_and_exact(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(1, PROMPT);
    struct rig_options o = warm_options();
    struct rig_call cold;
    struct rig_call warm;
    struct eng_engine *e = rig_open(&config);
    rig_run(e, ids, PROMPT, &o, &cold);
    rig_close(e);
    e = rig_open(&config);
    rig_run(e, ids, PROMPT, &o, &warm);
    assert_int_equal(warm.usage.reuse.tokens_disk, FULL);
    assert_int_equal(warm.usage.reuse.tokens_device, 0);
    assert_int_equal(warm.usage.reuse.miss, CS_MISS_NONE);
    rig_assert_same(&cold, &warm);
    rig_free(&warm);
    rig_run(e, ids, PROMPT, &o, &warm); /* what was restored is shared on the device now */
    assert_int_equal(warm.usage.reuse.tokens_device, FULL);
    rig_assert_same(&cold, &warm);
    rig_free(&warm);
    rig_free(&cold);
    rig_close(e);
    free(ids);
}

static void what_left_the_arena_comes_back_from_disk(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.kv_cache_bytes = 30 * RIG_PAGE_BYTES;
    uint32_t *ids = rig_ids(1, PROMPT);
    struct rig_options o = warm_options();
    struct rig_call cold;
    struct rig_call warm;
    struct eng_engine *e = rig_open(&c);
    rig_run(e, ids, PROMPT, &o, &cold);
    for (uint64_t other = 2; other < 6; other++) {
        uint32_t *other_ids = rig_ids(other, PROMPT);
        struct rig_call call;
        assert_int_equal(cs_flush(eng_engine_store(e), 10000), CS_OK);
        rig_run(e, other_ids, PROMPT, &o, &call);
        rig_free(&call);
        free(other_ids);
    }
    rig_run(e, ids, PROMPT, &o, &warm);
    assert_int_equal(rig_reused(&warm), FULL);
    assert_true(warm.usage.reuse.tokens_disk > 0);
    rig_assert_same(&cold, &warm);
    rig_free(&cold);
    rig_free(&warm);
    rig_close(e);
    free(ids);
}

static struct eng_ids chat_ids(struct eng_engine *e, const struct eng_message *m, size_t n,
                               struct eng_prompt *p)
{
    char err[200];
    struct eng_ids ids = {0};
    assert_int_equal(eng_engine_render(e, NULL, m, n, true, p, err, sizeof err), ENG_OK);
    assert_int_equal(eng_ids_add(&ids, p->ids.data, p->ids.n), ENG_OK);
    return ids;
}

static void a_hot_reply_matches_again_after_a_restart(void **state)
{
    (void)state;
    struct rig_options o = warm_options();
    struct rig_call call;
    struct eng_prompt p;
    struct eng_message m[3] = {{ENG_ROLE_USER, "Tell me a story about a cache.", 30}};
    o.sampling.temperature = 1.5f;
    o.max_tokens = 50;
    struct eng_engine *e = rig_open(&config);
    struct eng_ids before = chat_ids(e, m, 1, &p);
    assert_int_equal(rig_submit_prompt(e, &p, &o, &call), ENG_OK);
    rig_wait(&call);
    assert_int_equal(eng_ids_add(&before, call.choice[0].ids, call.choice[0].n_ids), ENG_OK);
    m[1] = (struct eng_message){ENG_ROLE_ASSISTANT, call.choice[0].text, call.choice[0].len};
    m[2] = (struct eng_message){ENG_ROLE_USER, "Go on.", 6};
    rig_close(e);

    e = rig_open(&config);
    struct rig_call next;
    struct eng_ids after = chat_ids(e, m, 3, &p);
    assert_true(after.n > before.n);
    assert_memory_equal(after.data, before.data, before.n * sizeof *before.data);
    assert_int_equal(rig_submit_prompt(e, &p, &o, &next), ENG_OK);
    rig_wait(&next);
    assert_int_equal(next.usage.reuse.tokens_disk, (before.n - 1) / 16 * 16); /* the last token had no KV */
    rig_free(&call);
    rig_free(&next);
    rig_close(e);
    eng_ids_free(&before);
    eng_ids_free(&after);
}

static void another_model_s_store_is_never_served(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(1, PROMPT);
    struct rig_options o = warm_options();
    struct rig_call call;
    struct rig_call alone;
    struct eng_config first = rig_config("llama-q8_0", 200);
    struct eng_config twin = rig_config("llama-q8_0-twin", 200); /* one bit of one weight differs */
    struct eng_engine *e = rig_open(&twin);
    rig_run(e, ids, PROMPT, &o, &alone);
    rig_close(e);
    first.disk_dir = twin.disk_dir = folder;
    first.disk_bytes = twin.disk_bytes = config.disk_bytes;
    first.store_shape = twin.store_shape = &shape;
    e = rig_open(&first);
    rig_run(e, ids, PROMPT, &o, &call);
    rig_free(&call);
    rig_close(e);
    e = rig_open(&twin);
    assert_true(store_stats(e).records_foreign > 0);
    rig_run(e, ids, PROMPT, &o, &call);
    assert_int_equal(rig_reused(&call), 0);
    rig_assert_same(&alone, &call);
    rig_free(&call);
    rig_close(e);
    e = rig_open(&first); /* and the first one's pages are still there */
    rig_run(e, ids, PROMPT, &o, &call);
    assert_int_equal(call.usage.reuse.tokens_disk, FULL);
    rig_free(&call);
    rig_free(&alone);
    rig_close(e);
    free(ids);
    free((void *)first.model_path);
    free((void *)twin.model_path);
}

/* A prompt that waits for its turn is being read from disk meanwhile. */
static void a_restore_begins_when_its_request_is_queued(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.max_concurrency = 1;
    uint32_t *ids = rig_ids(1, PROMPT);
    uint32_t *other_ids = rig_ids(2, PROMPT);
    struct rig_options o = warm_options();
    struct rig_call running;
    struct rig_call call;
    struct eng_engine *e = rig_open(&c);
    rig_run(e, ids, PROMPT, &o, &call);
    rig_free(&call);
    rig_close(e);
    e = rig_open(&c);
    o.max_tokens = 1500;
    rig_start(e, other_ids, PROMPT, &o, &running);
    rig_wait_tokens(&running, 1);
    assert_int_equal(store_stats(e).spans_read, 0);
    rig_start(e, ids, PROMPT, &o, &call);
    struct cs_store *s = eng_engine_store(e);
    pthread_mutex_lock(&s->lock);
    bool begun = s->n_loads > 0;
    pthread_mutex_unlock(&s->lock);
    begun |= store_stats(e).spans_read > 0;
    pthread_mutex_lock(&running.lock);
    bool done = running.done;
    pthread_mutex_unlock(&running.lock);
    assert_false(done);
    assert_true(begun);
    eng_cancel(e, running.id);
    rig_wait_tokens(&call, 1);
    eng_cancel(e, call.id);
    rig_wait(&call);
    assert_int_equal(call.usage.reuse.tokens_disk, FULL);
    rig_wait(&running);
    rig_free(&running);
    rig_free(&call);
    rig_close(e);
    free(other_ids);
    free(ids);
}

static void chats_that_outgrow_the_arena_finish_while_the_disk_writes(void **state)
{
    (void)state;
    enum { CHATS = 8, TOKENS = 90 };
    struct eng_config c = config;
    struct rig_call alone[CHATS];
    struct rig_call call[CHATS];
    uint32_t *ids[CHATS];
    struct rig_options o = warm_options();
    struct eng_config wide = rig_config("qwen2-q8_0", 600);
    struct eng_engine *e = rig_open(&wide);
    o.max_tokens = 150;
    for (uint32_t i = 0; i < CHATS; i++) {
        ids[i] = rig_ids(60 + i, TOKENS);
        rig_run(e, ids[i], TOKENS, &o, &alone[i]);
    }
    rig_close(e);
    c.kv_cache_bytes = 40 * RIG_PAGE_BYTES;
    c.context = 256;
    e = rig_open(&c);
    for (uint32_t i = 0; i < CHATS; i++)
        rig_start(e, ids[i], TOKENS, &o, &call[i]);
    for (uint32_t i = 0; i < CHATS; i++) {
        rig_wait(&call[i]);
        assert_int_equal(call[i].result, ENG_OK);
        rig_assert_same(&alone[i], &call[i]);
        rig_free(&alone[i]);
        rig_free(&call[i]);
        free(ids[i]);
    }
    assert_int_equal(store_stats(e).pages_live, 0);
    rig_close(e);
    free((void *)wide.model_path);
}

/* What steps teach of the time of a prompt reaches the store, which decides by it what is worth a load. */
static void the_store_is_told_what_prefill_costs_where_it_shall_decide(void **state)
{
    (void)state;
    static const enum eng_restore how[] = {ENG_RESTORE_ALWAYS, ENG_RESTORE_MEASURED};
    static const struct cs_tenant tenants[] = {{.id = {1}}, {.id = {2}}};
    uint32_t *ids = rig_ids(1, PROMPT);
    struct rig_options o = warm_options();
    for (size_t i = 0; i < 2; i++) {
        struct eng_config c = config;
        c.restore = how[i];
        struct eng_engine *e = rig_open(&c);
        struct rig_call call;
        o.tenant = &tenants[i]; /* nothing to reuse */
        rig_run(e, ids, PROMPT, &o, &call);
        rig_free(&call);
        struct cs_store *s = eng_engine_store(e);
        pthread_mutex_lock(&s->lock);
        double linear_us = s->prefill_linear_us, quadratic_us = s->prefill_quadratic_us;
        pthread_mutex_unlock(&s->lock);
        assert_int_equal(linear_us > 0 && quadratic_us > 0, how[i] == ENG_RESTORE_MEASURED);
        rig_close(e);
    }
    free(ids);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restart_is_warm_and_exact),
        TEST(the_store_is_told_what_prefill_costs_where_it_shall_decide),
        TEST(what_left_the_arena_comes_back_from_disk),
        TEST(a_restore_begins_when_its_request_is_queued),
        TEST(a_hot_reply_matches_again_after_a_restart),
        TEST(another_model_s_store_is_never_served),
        TEST(chats_that_outgrow_the_arena_finish_while_the_disk_writes),
    };
    if (!getenv("ISOTHERM_TEST_MODELS")) {
        fprintf(stderr, "ISOTHERM_TEST_MODELS is not set\n");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
