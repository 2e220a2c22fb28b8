/*
 * Exactness through the real runtime: the logits of a sequence do not depend on where its prefix came from,
 * on the chunks of its prefill, on who runs beside it, or on preemption. "The same" means an equal hash over
 * all logits of all sampled positions.
 */
#include "rig.h"

#define N(a)   (sizeof(a) / sizeof((a)[0]))
#define PROMPT 150

static struct rig_options sampled(uint64_t seed)
{
    struct rig_options o = rig_defaults();
    o.sampling.temperature = 1;
    o.sampling.seed = seed;
    return o;
}

/* What a prompt gives in an engine of its own, cold. */
static void reference(const struct eng_config *c, const uint32_t *ids, size_t n, const struct rig_options *o,
                      struct rig_call *call)
{
    struct eng_engine *e = rig_open(c);
    rig_run(e, ids, n, o, call);
    assert_int_equal(rig_reused(call), 0);
    rig_close(e);
}

static const char *const models[] = {"llama-bf16", "llama3-q8_0", "qwen2-q8_0", "qwen3-f16", "llama-q4_k"};

static void warm_from_device_is_cold(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m++) {
        struct eng_config c = rig_config(models[m], 0);
        c.kv_cache_bytes = 8 << 20;
        uint32_t *ids = rig_ids(m, PROMPT);
        struct rig_options greedy = rig_defaults();
        struct rig_options random = sampled(5);
        struct rig_call cold;
        struct rig_call cold_random;
        struct rig_call warm;
        reference(&c, ids, PROMPT, &random, &cold_random);
        struct eng_engine *e = rig_open(&c);
        rig_run(e, ids, PROMPT, &greedy, &cold);
        assert_int_equal(cold.usage.reuse.miss, CS_MISS_COLD);
        rig_run(e, ids, PROMPT, &greedy, &warm);
        assert_int_equal(warm.usage.reuse.tokens_device, (PROMPT - 1) / 16 * 16);
        rig_assert_same(&cold, &warm);
        rig_free(&warm);
        rig_run(e, ids, PROMPT, &random, &warm);
        assert_int_equal(warm.usage.reuse.tokens_device, (PROMPT - 1) / 16 * 16);
        rig_assert_same(&cold_random, &warm);
        rig_free(&warm);
        rig_free(&cold);
        rig_free(&cold_random);
        rig_close(e);
        free(ids);
        free((void *)c.model_path);
    }
}

static void chunks_of_any_size_give_the_same(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {0, 1, 7, 16, 50, 1000};
    struct eng_config c = rig_config("qwen2-q8_0", 200);
    uint32_t *ids = rig_ids(3, PROMPT);
    struct rig_options o = sampled(11);
    struct rig_call first;
    reference(&c, ids, PROMPT, &o, &first);
    for (size_t i = 0; i < N(chunks); i++) {
        struct rig_call call;
        c.prefill_chunk = chunks[i];
        reference(&c, ids, PROMPT, &o, &call);
        rig_assert_same(&first, &call);
        rig_free(&call);
    }
    rig_free(&first);
    free(ids);
    free((void *)c.model_path);
}

static void seven_neighbours_cannot_be_felt(void **state)
{
    (void)state;
    struct eng_config c = rig_config("qwen2-q8_0", 400);
    uint32_t *ids = rig_ids(3, PROMPT);
    struct rig_options o = sampled(11);
    struct rig_call alone;
    reference(&c, ids, PROMPT, &o, &alone);
    for (int round = 0; round < 2; round++) { /* cold beside the others, then warm beside them */
        struct eng_engine *e = rig_open(&c);
        struct rig_call call;
        struct rig_call others[7];
        uint32_t *other_ids[7];
        if (round == 1) {
            rig_run(e, ids, PROMPT, &o, &call);
            rig_free(&call);
        }
        for (uint32_t i = 0; i < 7; i++) {
            struct rig_options p = sampled(i);
            p.max_tokens = 60;
            other_ids[i] = rig_ids(100 + i, 20 + 17 * i);
            if (i == 4)
                rig_start(e, ids, PROMPT, &o, &call);
            rig_start(e, other_ids[i], 20 + 17 * i, &p, &others[i]);
        }
        rig_wait(&call);
        assert_int_equal(rig_reused(&call), round == 0 ? 0 : (PROMPT - 1) / 16 * 16);
        rig_assert_same(&alone, &call);
        for (uint32_t i = 0; i < 7; i++) {
            rig_wait(&others[i]);
            assert_int_equal(others[i].result, ENG_OK);
            assert_int_equal(others[i].choice[0].n_ids, 60);
            rig_free(&others[i]);
            free(other_ids[i]);
        }
        rig_free(&call);
        rig_close(e);
    }
    rig_free(&alone);
    free(ids);
    free((void *)c.model_path);
}

/* Eight chats of up to 300 tokens (19 pages) in an arena of 44 pages. */
static void chats_that_outgrow_the_arena_finish_with_their_own_bits(void **state)
{
    (void)state;
    enum { CHATS = 8, PROMPT_TOKENS = 100, REPLY_TOKENS = 200 };
    struct eng_config wide = rig_config("qwen2-q8_0", 400);
    struct eng_config narrow = rig_config("qwen2-q8_0", 44);
    struct rig_call alone[CHATS];
    struct rig_call call[CHATS];
    uint32_t *ids[CHATS];
    struct rig_options o[CHATS];
    narrow.context = 320;
    for (uint32_t i = 0; i < CHATS; i++) {
        o[i] = i % 2 ? sampled(i) : rig_defaults();
        o[i].max_tokens = REPLY_TOKENS;
        ids[i] = rig_ids(50 + i, PROMPT_TOKENS);
        reference(&wide, ids[i], PROMPT_TOKENS, &o[i], &alone[i]);
    }
    struct eng_engine *e = rig_open(&narrow);
    for (uint32_t i = 0; i < CHATS; i++)
        rig_start(e, ids[i], PROMPT_TOKENS, &o[i], &call[i]);
    uint32_t preemptions = 0;
    for (uint32_t i = 0; i < CHATS; i++) {
        rig_wait(&call[i]);
        assert_int_equal(call[i].result, ENG_OK);
        assert_int_equal(call[i].choice[0].finish, ENG_FINISH_LENGTH);
        rig_assert_same(&alone[i], &call[i]);
        preemptions += call[i].usage.preemptions;
    }
    assert_int_equal(call[0].usage.preemptions, 0); /* the oldest is never the victim */
    assert_true(preemptions > 0);
    struct eng_engine_stats s;
    eng_engine_stats(e, &s);
    assert_int_equal(s.preemptions, preemptions);
    assert_int_equal(s.finished, CHATS);
    struct cs_stats store;
    cs_stats_get(eng_engine_store(e), &store);
    assert_int_equal(store.pages_live, 0);
    rig_close(e);
    for (uint32_t i = 0; i < CHATS; i++) {
        rig_free(&alone[i]);
        rig_free(&call[i]);
        free(ids[i]);
    }
    free((void *)wide.model_path);
    free((void *)narrow.model_path);
}

static void a_prompt_computed_while_it_waited_is_found(void **state)
{
    (void)state;
    struct eng_config c = rig_config("qwen2-q8_0", 200);
    c.max_concurrency = 1;
    uint32_t *ids = rig_ids(9, PROMPT);
    struct rig_options o = rig_defaults();
    struct rig_call first;
    struct rig_call second;
    struct eng_engine *e = rig_open(&c);
    rig_start(e, ids, PROMPT, &o, &first);
    rig_start(e, ids, PROMPT, &o, &second); /* looked up when nothing was stored yet */
    rig_wait(&first);
    rig_wait(&second);
    assert_int_equal(rig_reused(&first), 0);
    assert_int_equal(rig_reused(&second), (PROMPT - 1) / 16 * 16);
    rig_assert_same(&first, &second);
    rig_free(&first);
    rig_free(&second);
    rig_close(e);
    free(ids);
    free((void *)c.model_path);
}

static void prompts_that_begin_alike_compute_the_beginning_once(void **state)
{
    (void)state;
    enum { SHARED = 800, LONG = 1200, SHORT = 850 };
    struct eng_config c = rig_config("qwen2-q8_0", 600);
    c.prefill_chunk = 16;
    uint32_t *first_ids = rig_ids(20, LONG);
    uint32_t *other_ids[3];
    struct rig_options o = sampled(4);
    struct rig_call first;
    struct rig_call others[3];
    struct rig_call alone;
    struct eng_engine_stats s;
    struct eng_engine *e = rig_open(&c);
    rig_start(e, first_ids, LONG, &o, &first);
    do
        eng_engine_stats(e, &s);
    while (s.prefilled_tokens == 0);
    for (uint32_t i = 0; i < N(others); i++) {
        other_ids[i] = rig_ids(30 + i, SHORT);
        memcpy(other_ids[i], first_ids, SHARED * sizeof *first_ids);
        rig_start(e, other_ids[i], SHORT, &o, &others[i]);
    }
    rig_wait(&first);
    for (uint32_t i = 0; i < N(others); i++) {
        rig_wait(&others[i]);
        assert_int_equal(rig_reused(&others[i]), SHARED);
    }
    eng_engine_stats(e, &s);
    assert_int_equal(s.prefilled_tokens, LONG + N(others) * (SHORT - SHARED));
    rig_close(e);
    reference(&c, other_ids[1], SHORT, &o, &alone);
    rig_assert_same(&alone, &others[1]);
    rig_free(&alone);
    rig_free(&first);
    for (uint32_t i = 0; i < N(others); i++) {
        rig_free(&others[i]);
        free(other_ids[i]);
    }
    free(first_ids);
    free((void *)c.model_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_from_device_is_cold),
        cmocka_unit_test(chunks_of_any_size_give_the_same),
        cmocka_unit_test(seven_neighbours_cannot_be_felt),
        cmocka_unit_test(chats_that_outgrow_the_arena_finish_with_their_own_bits),
        cmocka_unit_test(prompts_that_begin_alike_compute_the_beginning_once),
        cmocka_unit_test(a_prompt_computed_while_it_waited_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
