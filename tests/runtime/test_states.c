/*
 * Exactness for models with windows and recurrent state: a chat of twelve turns (six under a sanitizer) has
 * the same logits whether its turns are computed cold, resumed at the checkpoint before, or forked at any
 * boundary; whatever the chunks of its prefill are, and whoever runs beside it. "The same" means an equal
 * hash over all logits of all sampled positions.
 */
#include "rig.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))
#ifdef __SANITIZE_ADDRESS__
#define TURNS 6 /* cold, each turn costs all before it, some ten times as much as without */
#else
#define TURNS 12
#endif
#define MESSAGES (1 + 2 * TURNS) /* a system message, and two a turn; the last is not asked for */
#define FORK     25              /* other ids behind a boundary */
#define KV_BYTES (24 << 20)
#define ALL_KEPT 64

static const char *const models[] = {"gemma3", "qwen35", "qwen35-grouped", "qwen3next", "qwen3next-grouped"};
static const struct cs_config keep_all = {.checkpoints_a_path = ALL_KEPT};

/* Ids of the prompt of a turn: it ends with a user's message. */
static size_t turn_end(const struct rig_chat *c, size_t turn)
{
    return c->start[2 * turn + 2];
}

static struct rig_options short_reply(void)
{
    struct rig_options o = rig_defaults();
    o.sampling.temperature = 1;
    o.sampling.seed = 7;
    o.max_tokens = 6;
    return o;
}

static uint32_t grid_of(const char *model)
{
    return strcmp(model, "gemma3") == 0 ? 16 : 64;
}

/* The chat up to boundary i, then other ids; the caller frees. */
static uint32_t *fork_ids(const struct rig_chat *c, size_t i, size_t *n)
{
    *n = c->start[i] + FORK;
    uint32_t *ids = calloc(*n, sizeof *ids);
    uint32_t *other = rig_ids(1000 + i, FORK);
    assert_non_null(ids);
    memcpy(ids, c->ids, c->start[i] * sizeof *ids);
    memcpy(ids + c->start[i], other, FORK * sizeof *ids);
    ids[c->start[i]] = 20 + (c->ids[c->start[i]] - 20 + 1) % 200; /* not the same by chance */
    free(other);
    return ids;
}

/* What each turn and each fork gives cold: every one with a tenant of its own. */
struct truth {
    struct rig_call turn[TURNS], fork[MESSAGES];
};

static void learn_truth(const char *model, const struct rig_chat *c, struct truth *t)
{
    struct eng_config config = rig_golden(model, KV_BYTES);
    config.prefill_chunk = 4096;
    struct eng_engine *e = rig_open(&config);
    struct rig_options o = short_reply();
    struct cs_tenant tenant = {{0}};
    o.tenant = &tenant;
    for (size_t i = 0; i < TURNS; i++) {
        tenant.id[0]++;
        rig_run(e, c->ids, turn_end(c, i), &o, &t->turn[i]);
        assert_int_equal(rig_reused(&t->turn[i]), 0);
    }
    for (size_t i = 1; i < MESSAGES; i++) {
        size_t n;
        uint32_t *ids = fork_ids(c, i, &n);
        tenant.id[0]++;
        rig_run(e, ids, n, &o, &t->fork[i]);
        assert_int_equal(rig_reused(&t->fork[i]), 0);
        free(ids);
    }
    rig_close(e);
    free((void *)config.model_path);
}

static void forget_truth(struct truth *t)
{
    for (size_t i = 0; i < TURNS; i++)
        rig_free(&t->turn[i]);
    for (size_t i = 1; i < MESSAGES; i++)
        rig_free(&t->fork[i]);
}

/* All turns in order, each resumed behind the one before, then all of them again. */
static void walk(struct eng_engine *e, uint32_t grid, const struct rig_chat *c, const struct truth *t)
{
    struct rig_options o = short_reply();
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < TURNS; i++) {
            struct rig_call call;
            size_t there = round ? turn_end(c, i) - 1 : i > 0 ? turn_end(c, i - 1) - 1 : 0;
            rig_chat_run(e, c, turn_end(c, i), &o, &call);
            assert_true(rig_reused(&call) >= there / grid * grid);
            assert_int_equal(rig_reused(&call) % grid, 0);
            rig_assert_same(&t->turn[i], &call);
            rig_free(&call);
        }
    }
}

static void fork_everywhere(struct eng_engine *e, uint32_t grid, const struct rig_chat *c,
                            const struct truth *t)
{
    struct rig_options o = short_reply();
    for (size_t i = 1; i < MESSAGES - 1; i++) {
        size_t n;
        struct rig_call call;
        uint32_t *ids = fork_ids(c, i, &n);
        rig_run(e, ids, n, &o, &call);
        assert_int_equal(rig_reused(&call), c->start[i] / grid * grid);
        assert_true(call.usage.reuse.tokens_matched >= rig_reused(&call));
        rig_assert_same(&t->fork[i], &call);
        rig_free(&call);
        free(ids);
    }
}

static void every_boundary_resumes_with_the_bits_of_cold(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 100, 512, 4096};
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct rig_chat c;
        struct truth t;
        rig_chat_make(m, MESSAGES, 45, 9, 47, &c);
        learn_truth(models[m], &c, &t);
        for (size_t i = 0; i < N(chunks); i += 2 * rig_stride() - 1) {
            struct eng_config config = rig_golden(models[m], KV_BYTES);
            config.prefill_chunk = chunks[i];
            config.store_shape = &keep_all;
            struct eng_engine *e = rig_open(&config);
            walk(e, grid_of(models[m]), &c, &t);
            fork_everywhere(e, grid_of(models[m]), &c, &t);
            struct cs_stats s;
            cs_stats_get(eng_engine_store(e), &s);
            assert_int_equal(s.pages_live, 0);
            assert_true(s.checkpoints >= TURNS);
            rig_close(e);
            free((void *)config.model_path);
        }
        forget_truth(&t);
        rig_chat_free(&c);
    }
}

static void neighbours_cannot_be_felt(void **state)
{
    (void)state;
    enum { OTHERS = 3 };
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct rig_chat c;
        struct truth t;
        rig_chat_make(m, MESSAGES, 45, 9, 47, &c);
        learn_truth(models[m], &c, &t);
        struct eng_config config = rig_golden(models[m], KV_BYTES);
        config.store_shape = &keep_all;
        struct eng_engine *e = rig_open(&config);
        struct rig_call others[OTHERS];
        struct rig_options o = short_reply();
        for (uint32_t i = 0; i < OTHERS; i++) {
            uint32_t *ids = rig_ids(500 + i, 30 + 50 * i);
            o.max_tokens = 1800;
            rig_start(e, ids, 30 + 50 * i, &o, &others[i]);
            free(ids);
        }
        for (uint32_t i = 0; i < OTHERS; i++)
            rig_wait_tokens(&others[i], 1);
        walk(e, grid_of(models[m]), &c, &t);
        fork_everywhere(e, grid_of(models[m]), &c, &t);
        uint32_t n_to_the_end = 0;
        for (uint32_t i = 0; i < OTHERS; i++) {
            eng_cancel(e, others[i].id);
            rig_wait(&others[i]);
            n_to_the_end += others[i].choice[0].finish == ENG_FINISH_CANCELLED;
            rig_free(&others[i]);
        }
        assert_true(n_to_the_end > 0);
        rig_close(e);
        forget_truth(&t);
        rig_chat_free(&c);
        free((void *)config.model_path);
    }
}

/* The least KV cache in which one chat of `context` tokens fits. */
static uint64_t least_kv_bytes(struct eng_config c, uint32_t context, uint64_t stride)
{
    uint32_t fits = 0;
    c.context = context;
    for (c.kv_cache_bytes = 8 * stride; fits < context; c.kv_cache_bytes += 8 * stride) {
        struct eng_engine *e = NULL;
        char err[300];
        if (eng_engine_open(&c, &e, err, sizeof err) != ENG_OK)
            continue;
        fits = eng_engine_context(e);
        rig_close(e);
    }
    return c.kv_cache_bytes - 8 * stride;
}

/* Chats in arenas that hold one of them and a little more. */
static void preempted_chats_have_the_bits_they_have_alone(void **state)
{
    (void)state;
    enum { CHATS = 4, PROMPT = 140, REPLY = 600, CONTEXT = 744 };
    static const uint32_t more_blocks[] = {0, 40, 80};
    for (size_t m = 0; m < N(models); m += rig_stride()) {
        struct eng_config config = rig_golden(models[m], KV_BYTES);
        struct eng_engine *e = rig_open(&config);
        struct rig_call alone[CHATS];
        struct rig_call call[CHATS];
        uint32_t *ids[CHATS];
        struct rig_options o = short_reply();
        struct cs_stats s;
        uint32_t preemptions = 0;
        o.max_tokens = REPLY;
        for (uint32_t i = 0; i < CHATS; i++) {
            ids[i] = rig_ids(50 + i, PROMPT);
            rig_run(e, ids[i], PROMPT, &o, &alone[i]);
        }
        cs_stats_get(eng_engine_store(e), &s);
        rig_close(e);
        config.max_concurrency = 4;
        uint64_t least = least_kv_bytes(config, CONTEXT, s.page_stride);
        for (size_t k = 0; k < N(more_blocks); k++) {
            config.context = CONTEXT;
            config.kv_cache_bytes = least + more_blocks[k] * s.page_stride;
            e = rig_open(&config);
            for (uint32_t i = 0; i < CHATS; i++)
                rig_start(e, ids[i], PROMPT, &o, &call[i]);
            for (uint32_t i = 0; i < CHATS; i++) {
                rig_wait(&call[i]);
                assert_int_equal(call[i].result, ENG_OK);
                assert_int_equal(call[i].choice[0].finish, ENG_FINISH_LENGTH);
                rig_assert_same(&alone[i], &call[i]);
                preemptions += call[i].usage.preemptions;
                rig_free(&call[i]);
            }
            struct cs_stats after;
            cs_stats_get(eng_engine_store(e), &after);
            assert_int_equal(after.pages_live, 0);
            rig_close(e);
        }
        assert_true(preemptions > 0);
        for (uint32_t i = 0; i < CHATS; i++) {
            rig_free(&alone[i]);
            free(ids[i]);
        }
        free((void *)config.model_path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_boundary_resumes_with_the_bits_of_cold),
        cmocka_unit_test(neighbours_cannot_be_felt),
        cmocka_unit_test(preempted_chats_have_the_bits_they_have_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
