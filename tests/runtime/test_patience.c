/*
 * A sequence that is alone and finds no page is given time, then it ends: a prompt with an error, a reply
 * with what there is of it. Somebody else's sequence on the same store holds the arena meanwhile.
 */
#include "rig.h"

#define PAGES 40

static struct eng_config config;
static struct eng_engine *engine;
static struct cs_sequence *holder;

static int open_engine(void **state)
{
    (void)state;
    config = rig_config("qwen2-q8_0", PAGES);
    config.page_patience_ms = 30;
    engine = rig_open(&config);
    holder = NULL;
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    if (holder)
        cs_sequence_close(holder);
    struct cs_stats s;
    cs_stats_get(eng_engine_store(engine), &s);
    assert_int_equal(s.pages_live, 0);
    rig_close(engine);
    free((void *)config.model_path);
    return 0;
}

/* Takes all but `left` pages of the arena. */
static void hold_all_but(uint32_t left)
{
    struct cs_tenant nobody = {{9}};
    struct cs_reuse reuse;
    assert_int_equal(cs_sequence_open(eng_engine_store(engine), &nobody, NULL, 0, &holder), CS_OK);
    assert_int_equal(cs_sequence_poll(holder, &reuse), 1);
    assert_int_equal(cs_sequence_grow(holder, (size_t)(PAGES - left) * KN_PAGE_TOKENS), CS_OK);
}

static void a_prompt_without_pages_fails_in_time(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(1, 100);
    struct rig_options o = rig_defaults();
    struct rig_call call;
    hold_all_but(4);
    rig_start(engine, ids, 100, &o, &call);
    rig_wait(&call);
    assert_int_equal(call.result, ENG_EFULL);
    assert_non_null(strstr(call.message, "no memory is left"));
    assert_int_equal(call.choice[0].finish, ENG_FINISH_ERROR);
    rig_free(&call);
    rig_run(engine, ids, 40, &o, &call); /* one that fits is served */
    rig_free(&call);
    free(ids);
}

static void a_reply_without_pages_ends_with_what_there_is(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(2, 40);
    struct rig_options o = rig_defaults();
    struct rig_call call;
    o.max_tokens = 100;
    hold_all_but(4); /* 64 tokens: 40 of the prompt, the last sampled one has no page */
    rig_run(engine, ids, 40, &o, &call);
    assert_int_equal(call.choice[0].finish, ENG_FINISH_LENGTH);
    assert_int_equal(call.choice[0].n_ids, 25);
    rig_free(&call);
    free(ids);
}

static void a_page_that_comes_in_time_is_taken(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(3, 40);
    struct rig_options o = rig_defaults();
    struct rig_call alone;
    struct rig_call call;
    o.max_tokens = 60;
    struct eng_config patient = config;
    patient.page_patience_ms = 60000;
    close_engine(NULL);
    config = patient;
    config.model_path = rig_config("qwen2-q8_0", PAGES).model_path;
    engine = rig_open(&config);
    holder = NULL;
    struct cs_tenant other = {{1}};
    o.tenant = &other;
    rig_run(engine, ids, 40, &o, &alone);
    o.tenant = NULL;
    hold_all_but(4);
    rig_start(engine, ids, 40, &o, &call);
    rig_wait_tokens(&call, 25); /* behind the last one that there is a page for, see above */
    cs_sequence_close(holder);
    holder = NULL;
    rig_wait(&call);
    rig_assert_same(&alone, &call);
    assert_int_equal(call.choice[0].n_ids, 60);
    rig_free(&alone);
    rig_free(&call);
    free(ids);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_engine, close_engine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_prompt_without_pages_fails_in_time),
        TEST(a_reply_without_pages_ends_with_what_there_is),
        TEST(a_page_that_comes_in_time_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
