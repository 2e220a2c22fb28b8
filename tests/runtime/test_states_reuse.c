/*
 * How much of a prompt models with windows and recurrent state find again, and what that costs: identical
 * prompt, next turn, edited last message, regenerated reply, fork at an older turn, shared system prompt,
 * choices, cancel; retention beside many other conversations; work that does not grow with the messages.
 */
#include "rig.h"

#define N(a)     (sizeof(a) / sizeof((a)[0]))
#define KV_BYTES (48 << 20)
#ifdef __SANITIZE_ADDRESS__
#define SHORT_CHATS 40
#else
#define SHORT_CHATS 200
#endif

static const char *const models[] = {"gemma3", "qwen35", "qwen3next-grouped"};
static const struct cs_config keep_all = {.checkpoints_a_path = 64};
static uint32_t grid;
static struct eng_config config;
static struct eng_engine *engine;

/* chunk 0: by step time; shape NULL: at most eight checkpoints a path. */
static void open_model(size_t m, uint32_t chunk, const struct cs_config *shape)
{
    config = rig_golden(models[m], KV_BYTES);
    config.prefill_chunk = chunk;
    config.store_shape = shape;
    grid = m == 0 ? 16 : 64;
    engine = rig_open(&config);
}

static void close_model(void)
{
    struct cs_stats s;
    cs_stats_get(eng_engine_store(engine), &s);
    assert_int_equal(s.pages_live, 0);
    rig_close(engine);
    free((void *)config.model_path);
}

static uint32_t on_grid(size_t position)
{
    return (uint32_t)(position / grid * grid);
}

/* Runs the chat's first n ids and says how many were reused. */
static uint32_t reused_of(const struct rig_chat *c, size_t n, const struct rig_options *o)
{
    struct rig_call call;
    rig_chat_run(engine, c, n, o, &call);
    uint32_t reused = rig_reused(&call);
    rig_free(&call);
    return reused;
}

/* A chat whose ids from `at` on are others. */
static struct rig_chat edited(const struct rig_chat *c, size_t at, uint64_t seed)
{
    struct rig_chat copy = {.n_messages = c->n_messages};
    size_t n = c->start[c->n_messages];
    copy.ids = rig_ids(seed, n);
    copy.start = calloc(c->n_messages + 1, sizeof *copy.start);
    assert_non_null(copy.start);
    memcpy(copy.ids, c->ids, at * sizeof *copy.ids);
    memcpy(copy.start, c->start, (c->n_messages + 1) * sizeof *copy.start);
    return copy;
}

static void each_way_to_go_on_finds_a_checkpoint_close_by(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct rig_chat c;
        struct rig_call call;
        struct rig_options o = rig_defaults();
        o.max_tokens = 90;
        rig_chat_make(3, 9, 150, 70, 130, &c);
        open_model(m, 0, &keep_all);
        size_t n = c.start[6]; /* the third turn's question is the last message */
        rig_chat_run(engine, &c, n, &o, &call);
        assert_int_equal(call.usage.reuse.miss, CS_MISS_COLD);
        assert_int_equal(reused_of(&c, n, &o), on_grid(n - 1)); /* again, or regenerated */

        struct rig_chat next = edited(&c, n, 8); /* the reply as it was sampled, then another question */
        memcpy(next.ids + n, call.choice[0].ids, 90 * sizeof *next.ids);
        next.start[7] = n + 90;
        next.start[8] = n + 140;
        assert_int_equal(reused_of(&next, n + 140, &o), on_grid(n + 89));
        rig_free(&call);

        struct rig_chat last = edited(&c, c.start[5], 9); /* the last message edited */
        rig_chat_run(engine, &last, n, &o, &call);
        assert_int_equal(rig_reused(&call), on_grid(c.start[5]));
        assert_int_equal(call.usage.reuse.tokens_matched, c.start[5] / 16 * 16);
        assert_int_equal(call.usage.reuse.miss, CS_MISS_DIVERGED);
        rig_free(&call);

        struct rig_chat fork = edited(&c, c.start[3], 10); /* an older turn */
        assert_int_equal(reused_of(&fork, n, &o), on_grid(c.start[3]));

        struct rig_chat other = edited(&c, c.start[1], 11); /* another user of the same system prompt */
        assert_int_equal(reused_of(&other, n, &o), on_grid(c.start[1]));

        close_model();
        rig_chat_free(&c);
        rig_chat_free(&next);
        rig_chat_free(&last);
        rig_chat_free(&fork);
        rig_chat_free(&other);
    }
}

static void a_place_without_a_boundary_says_so_and_gets_one(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        enum { PROMPT = 800, SHARED = 500 };
        struct rig_options o = rig_defaults();
        struct rig_call call;
        uint32_t *ids = rig_ids(1, PROMPT);
        open_model(m, 0, NULL);
        rig_run(engine, ids, PROMPT, &o, &call); /* plain ids: only the end has a checkpoint */
        rig_free(&call);
        for (int i = 0; i < 2; i++) {
            uint32_t *other = rig_ids(20 + (uint64_t)i, PROMPT);
            memcpy(other, ids, SHARED * sizeof *ids);
            rig_run(engine, other, PROMPT, &o, &call);
            assert_int_equal(call.usage.reuse.tokens_matched, SHARED / 16 * 16);
            if (i == 0) { /* pages match, nothing to resume from; computed, it is kept as a branch */
                assert_int_equal(rig_reused(&call), 0);
                assert_int_equal(call.usage.reuse.miss, CS_MISS_STATE);
            } else {
                assert_int_equal(rig_reused(&call), on_grid(SHARED));
                assert_int_equal(call.usage.reuse.miss, CS_MISS_DIVERGED);
            }
            rig_free(&call);
            free(other);
        }
        close_model();
        free(ids);
    }
}

static void choices_share_the_checkpoints_of_the_prompt(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        enum { PROMPT = 300 };
        struct rig_options o = rig_defaults();
        struct rig_call call;
        struct eng_engine_stats s;
        uint32_t *ids = rig_ids(4, PROMPT);
        open_model(m, 0, NULL);
        o.sampling.temperature = 1;
        o.n_choices = 3;
        rig_run(engine, ids, PROMPT, &o, &call);
        eng_engine_stats(engine, &s);
        assert_int_equal(s.prefilled_tokens, PROMPT + 2 * (PROMPT - on_grid(PROMPT - 1)));
        assert_memory_not_equal(call.choice[0].ids, call.choice[1].ids, 24 * sizeof *ids);
        rig_free(&call);
        close_model();
        free(ids);
    }
}

/* Three prompts that begin alike, together. True: the two that came later waited for the first one's
 * beginning. False: it was past that place already when the engine saw them. */
static bool share_a_beginning(const uint32_t *ids, size_t shared, size_t n, const struct cs_tenant *tenant)
{
    struct rig_options o = rig_defaults();
    struct rig_call call[3];
    struct eng_engine_stats before;
    struct eng_engine_stats s;
    uint64_t computed = 0;
    bool waited = true;
    o.tenant = tenant;
    eng_engine_stats(engine, &before);
    rig_start(engine, ids, n, &o, &call[0]);
    do
        eng_engine_stats(engine, &s);
    while (s.prefilled_tokens == before.prefilled_tokens);
    for (uint32_t i = 1; i < N(call); i++) {
        uint32_t *other = rig_ids(30 + i, n);
        memcpy(other, ids, shared * sizeof *ids);
        rig_start(engine, other, n, &o, &call[i]);
        free(other);
    }
    for (uint32_t i = 0; i < N(call); i++) {
        rig_wait(&call[i]);
        assert_int_equal(call[i].result, ENG_OK);
        assert_int_equal(rig_reused(&call[i]) % grid, 0);
        assert_true(rig_reused(&call[i]) <= (i ? on_grid(shared) : 0));
        waited &= rig_reused(&call[i]) == (i ? on_grid(shared) : 0);
        computed += n - rig_reused(&call[i]);
        rig_free(&call[i]);
    }
    eng_engine_stats(engine, &s);
    assert_int_equal(s.prefilled_tokens - before.prefilled_tokens, computed);
    return waited;
}

static void a_beginning_two_prompts_share_is_computed_once(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        enum { SHARED = 1600, PROMPT = 1900, ATTEMPTS = 50 };
        struct cs_tenant tenant = {{0}};
        uint32_t *ids = rig_ids(20, PROMPT);
        open_model(m, 16, NULL);
        bool waited = false;
        for (uint8_t i = 0; i < ATTEMPTS && !waited; i++) {
            tenant.id[0] = i;
            waited = share_a_beginning(ids, SHARED, PROMPT, &tenant);
        }
        assert_true(waited);
        close_model();
        free(ids);
    }
}

static void a_cancelled_prompt_resumes_where_it_was(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        enum { PROMPT = 1800 };
        struct rig_options o = rig_defaults();
        struct rig_call cold;
        struct rig_call call;
        struct eng_engine_stats s;
        struct cs_tenant other = {{1}};
        open_model(m, 16, NULL);
        uint32_t *ids = rig_ids(5, PROMPT);
        o.tenant = &other;
        rig_run(engine, ids, PROMPT, &o, &cold);
        o.tenant = NULL;
        rig_start(engine, ids, PROMPT, &o, &call);
        do
            eng_engine_stats(engine, &s);
        while (s.prefilled_tokens < PROMPT + 300);
        eng_cancel(engine, call.id);
        rig_wait(&call);
        assert_int_equal(call.choice[0].finish, ENG_FINISH_CANCELLED);
        rig_free(&call);
        eng_engine_stats(engine, &s);
        size_t computed = s.prefilled_tokens - PROMPT;
        rig_run(engine, ids, PROMPT, &o, &call);
        assert_int_equal(rig_reused(&call), on_grid(computed));
        rig_assert_same(&cold, &call);
        rig_free(&call);
        rig_free(&cold);
        close_model();
        free(ids);
    }
}

/* The report's retention rows: others come with 4 x 60 and 2 x 240 messages, then many short conversations.
 */
static void a_returning_user_finds_all_of_it_while_bytes_last(void **state)
{
    (void)state;
    static const struct {
        uint32_t chats, messages;
    } rows[] = {{4, 60}, {2, 240}, {SHORT_CHATS, 3}};
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct rig_chat mine;
        struct rig_options o = rig_defaults();
        struct cs_stats s;
        o.max_tokens = 4;
        open_model(m, 0, NULL);
        rig_chat_make(1, 30, 100, 20, 40, &mine);
        size_t n = mine.start[30];
        assert_int_equal(reused_of(&mine, n, &o), 0);
        for (size_t r = 0; r < N(rows); r++) {
            for (uint32_t i = 0; i < rows[r].chats; i++) {
                struct rig_chat other;
                rig_chat_make(100 + 1000 * r + i, rows[r].messages, 20, 3, 10, &other);
                (void)reused_of(&other, other.start[rows[r].messages], &o);
                rig_chat_free(&other);
            }
            assert_int_equal(reused_of(&mine, n, &o), on_grid(n - 1));
            cs_stats_get(eng_engine_store(engine), &s);
            assert_int_equal(s.evicted_device_spans + s.evicted_device_checkpoints, 0);
            assert_true((s.pages_live + s.pages_cached) * s.page_stride <= s.arena_bytes);
            assert_true(s.index_bytes <= s.index_budget);
        }
        close_model();
        rig_chat_free(&mine);
    }
}

/* The same ids, cut into 4 or 240 messages: the same forwards and publishes, and no more checkpoints than a
 * path may have. */
static void work_does_not_grow_with_the_messages(void **state)
{
    (void)state;
    enum { PROMPT = 1920, CHUNK = 100, MOST = 8 };
    static const size_t messages[] = {4, 30, 120, 240};
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        uint64_t forwards = 0;
        uint32_t *ids = rig_ids(9, PROMPT);
        struct rig_options o = rig_defaults();
        o.max_tokens = 4;
        for (size_t k = 0; k < N(messages); k++) {
            open_model(m, CHUNK, NULL);
            struct rig_chat c = {.ids = ids, .n_messages = messages[k]};
            c.start = calloc(messages[k] + 1, sizeof *c.start);
            assert_non_null(c.start);
            for (size_t i = 0; i <= messages[k]; i++)
                c.start[i] = PROMPT * i / messages[k];
            struct eng_engine_stats s;
            struct cs_stats st;
            assert_int_equal(reused_of(&c, PROMPT, &o), 0);
            eng_engine_stats(engine, &s);
            cs_stats_get(eng_engine_store(engine), &st);
            forwards = forwards ? forwards : s.forwards;
            assert_int_equal(s.forwards, forwards);
            assert_int_equal(s.forwards, (PROMPT + CHUNK - 1) / CHUNK + 3);
            assert_true(s.state_captures <= MOST);
            assert_true(s.state_saves <= 1);
            assert_int_equal(s.state_loads, 0);
            assert_int_equal(st.publishes, 2); /* the prompt, and the turn */
            assert_true(st.publish_checkpoints <= MOST + 1);
            assert_int_equal(reused_of(&c, PROMPT, &o), on_grid(PROMPT - 1));
            eng_engine_stats(engine, &s);
            assert_int_equal(s.state_loads, m == 0 ? 0 : 1);
            close_model();
            free(c.start);
        }
        free(ids);
    }
}

/* An arena that one long reply fills: what was cached for others must not be in its way, whatever of a shared
 * beginning was evicted, and computed again, meanwhile. */
static void replies_in_a_small_arena_have_all_their_tokens(void **state)
{
    (void)state;
    enum { AT_ONCE = 8, ROUNDS = 16, MOST = 400 };
    static const size_t shared[] = {384, 384, 320, 200}, own[] = {1, 3, 16};
    config = rig_golden("qwen35", 640 << 10);
    config.max_concurrency = 2;
    config.page_patience_ms = 500;
    engine = rig_open(&config);
    assert_true(eng_engine_context(engine) >= 384 + 16 + MOST);
    uint32_t *beginning = rig_ids(40, 384);
    for (size_t round = 0; round < ROUNDS; round += 3 * rig_stride() - 2) {
        struct rig_call calls[AT_ONCE];
        uint32_t *prompts[AT_ONCE];
        uint32_t wanted[AT_ONCE];
        for (size_t i = 0; i < AT_ONCE; i++) {
            size_t at = round * AT_ONCE + i, n = shared[at * 7 / 3 % N(shared)],
                   more = own[at * 5 / 2 % N(own)];
            struct rig_options o = rig_defaults();
            prompts[i] = rig_ids(1000 + at, n + more);
            memcpy(prompts[i], beginning, n * sizeof *beginning);
            o.max_tokens = wanted[i] = at * 3 / 2 % 2 ? MOST / 2 : MOST;
            rig_start(engine, prompts[i], n + more, &o, &calls[i]);
        }
        for (size_t i = 0; i < AT_ONCE; i++) {
            rig_wait(&calls[i]);
            assert_int_equal(calls[i].result, ENG_OK);
            assert_int_equal(calls[i].choice[0].n_ids, wanted[i]);
            rig_free(&calls[i]);
            free(prompts[i]);
        }
    }
    free(beginning);
    close_model();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_way_to_go_on_finds_a_checkpoint_close_by),
        cmocka_unit_test(a_place_without_a_boundary_says_so_and_gets_one),
        cmocka_unit_test(choices_share_the_checkpoints_of_the_prompt),
        cmocka_unit_test(a_beginning_two_prompts_share_is_computed_once),
        cmocka_unit_test(a_cancelled_prompt_resumes_where_it_was),
        cmocka_unit_test(a_returning_user_finds_all_of_it_while_bytes_last),
        cmocka_unit_test(work_does_not_grow_with_the_messages),
        cmocka_unit_test(replies_in_a_small_arena_have_all_their_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
