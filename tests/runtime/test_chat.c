/*
 * Chats through template, memo and store: what was generated matches again, token for token, and a turn
 * reuses every full page of those before it.
 */
#include "rig.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct eng_config config;
static struct eng_engine *engine;

static int open_engine(void **state)
{
    (void)state;
    config = rig_config("qwen2-q8_0", 1000);
    engine = rig_open(&config);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    rig_close(engine);
    free((void *)config.model_path);
    return 0;
}

/* A chat under way: messages, and the last prompt's ids. */
struct chat {
    struct cs_tenant tenant;
    struct eng_message messages[32];
    size_t n;
    struct eng_ids prompt;
};

static void say(struct chat *c, enum eng_role role, const char *text, size_t len)
{
    char *copy = calloc(1, len + 1);
    memcpy(copy, text, len);
    c->messages[c->n++] = (struct eng_message){role, copy, len};
}

static void user_says(struct chat *c, const char *text)
{
    say(c, ENG_ROLE_USER, text, strlen(text));
}

static void forget_last(struct chat *c)
{
    free((void *)c->messages[--c->n].content);
}

static void chat_free(struct chat *c)
{
    while (c->n > 0)
        forget_last(c);
    eng_ids_free(&c->prompt);
}

/* Renders into c->prompt. */
static void render(struct eng_engine *e, struct chat *c, struct eng_prompt *p)
{
    char err[300] = "";
    int rc = eng_engine_render(e, &c->tenant, c->messages, c->n, true, p, err, sizeof err);
    if (rc != ENG_OK)
        fail_msg("render: %s", err);
    c->prompt.n = 0;
    assert_int_equal(eng_ids_add(&c->prompt, p->ids.data, p->ids.n), ENG_OK);
}

static void render_only(struct eng_engine *e, struct chat *c)
{
    struct eng_prompt p;
    render(e, c, &p);
    eng_prompt_free(&p);
}

/* The reply to what was said so far; joins the chat. */
static void reply(struct eng_engine *e, struct chat *c, const struct rig_options *o, struct rig_call *call)
{
    struct eng_prompt p;
    struct rig_options own = *o;
    own.tenant = &c->tenant;
    render(e, c, &p);
    assert_int_equal(rig_submit_prompt(e, &p, &own, call), ENG_OK);
    rig_wait(call);
    assert_int_equal(call->result, ENG_OK);
    say(c, ENG_ROLE_ASSISTANT, call->choice[0].text, call->choice[0].len);
}

static struct rig_options hot(uint64_t seed)
{
    struct rig_options o = rig_defaults();
    o.sampling.temperature = 1.5f;
    o.sampling.seed = seed;
    o.max_tokens = 40;
    return o;
}

/* How many ids two lists have in common from the start. */
static size_t common(const struct eng_ids *a, const struct eng_ids *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->data[n] == b->data[n])
        n++;
    return n;
}

/* Prompt and reply as ids. */
static struct eng_ids history(const struct chat *c, const struct rig_call *call)
{
    struct eng_ids all = {0};
    assert_int_equal(eng_ids_add(&all, c->prompt.data, c->prompt.n), ENG_OK);
    assert_int_equal(eng_ids_add(&all, call->choice[0].ids, call->choice[0].n_ids), ENG_OK);
    return all;
}

/* llama3's template trims what a message begins and ends with: such a reply cannot come back as it was. */
static bool has_outer_space(const struct rig_choice *c)
{
    return c->len == 0 || (unsigned char)c->text[0] <= ' ' || (unsigned char)c->text[c->len - 1] <= ' ';
}

static void hot_replies_match_again_over_many_turns(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen2-q8_0", "llama-bf16", "llama3-q8_0"};
    for (size_t m = 0; m < N(models); m++) {
        struct eng_config own = rig_config(models[m], 1000);
        struct eng_engine *e = rig_open(&own);
        struct chat c = {0};
        size_t plain_differs = 0;
        for (uint64_t turn = 0; turn < 8; turn++) {
            struct rig_options o = hot(turn);
            struct rig_call call;
            user_says(&c, turn % 2 ? "And then?" : "Tell me something\nnew, please.");
            reply(e, &c, &o, &call);
            struct eng_ids before = history(&c, &call);
            user_says(&c, "x");
            render_only(e, &c);
            if (!has_outer_space(&call.choice[0]))
                assert_int_equal(common(&before, &c.prompt), before.n);
            struct eng_ids plain = {0}; /* worth testing: the reply is not its text's own encoding */
            assert_int_equal(eng_tokenizer_encode(eng_engine_tokenizer(e), call.choice[0].text,
                                                  call.choice[0].len, false, &plain),
                             ENG_OK);
            plain_differs += plain.n != call.choice[0].n_ids ||
                             memcmp(plain.data, call.choice[0].ids, plain.n * sizeof *plain.data) != 0;
            eng_ids_free(&plain);
            eng_ids_free(&before);
            rig_free(&call);
            forget_last(&c);
        }
        assert_true(plain_differs >= 6);
        chat_free(&c);
        rig_close(e);
        free((void *)own.model_path);
    }
}

static void a_turn_reuses_every_full_page_of_the_last(void **state)
{
    (void)state;
    struct chat c = {0};
    uint32_t before = 0;
    for (uint64_t turn = 0; turn < 6; turn++) {
        struct rig_options o = hot(40 + turn);
        struct rig_call call;
        o.max_tokens = 33 + (uint32_t)turn;
        user_says(&c, "Go on.");
        reply(engine, &c, &o, &call);
        assert_int_equal(rig_reused(&call), before / 16 * 16);
        assert_true((call.usage.reuse.miss == CS_MISS_COLD) == (turn == 0));
        /* The last sampled token has no KV yet. */
        before = (uint32_t)(c.prompt.n + call.choice[0].n_ids - 1);
        rig_free(&call);
    }
    chat_free(&c);
}

static void a_reply_that_ended_by_itself_is_whole(void **state)
{
    (void)state;
    struct chat c = {0};
    struct rig_options o = hot(3);
    struct rig_call call;
    const struct eng_tokenizer *t = eng_engine_tokenizer(engine);
    o.use_eos = true;
    struct eng_logit_bias bias = {eng_tokenizer_eos(t), 0};
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    o.max_tokens = 400;
    bias.bias = 3;
    user_says(&c, "How are you?");
    reply(engine, &c, &o, &call);
    assert_int_equal(call.choice[0].finish, ENG_FINISH_STOP);
    uint32_t all = (uint32_t)(c.prompt.n + call.choice[0].n_ids);
    assert_true(call.choice[0].n_ids > 0);
    rig_free(&call);
    user_says(&c, "Good.");
    o.max_tokens = 1;
    reply(engine, &c, &o, &call);
    assert_int_equal(rig_reused(&call), all / 16 * 16);
    rig_free(&call);
    chat_free(&c);
}

static void forks_edits_and_regenerated_replies_reuse_to_the_last_common_page(void **state)
{
    (void)state;
    struct chat c = {0};
    struct rig_options o = hot(1);
    struct rig_call call;
    user_says(&c, "First question, long enough to fill a page or two of the cache, we hope.");
    reply(engine, &c, &o, &call);
    struct eng_ids turn1 = history(&c, &call);
    turn1.n--; /* the last has no KV */
    rig_free(&call);

    user_says(&c, "Second question.");
    reply(engine, &c, &o, &call);
    struct eng_ids turn2 = history(&c, &call);
    turn2.n--;
    assert_int_equal(rig_reused(&call), common(&turn1, &c.prompt) / 16 * 16);
    assert_int_equal(common(&turn1, &c.prompt), turn1.n);
    rig_free(&call);

    forget_last(&c); /* regenerate the second reply */
    o.sampling.seed = 2;
    reply(engine, &c, &o, &call);
    assert_int_equal(rig_reused(&call), (c.prompt.n - 1) / 16 * 16);
    rig_free(&call);

    forget_last(&c);
    forget_last(&c); /* edit the last message, which is a fork from turn 1 */
    user_says(&c, "Second question, asked in another way.");
    reply(engine, &c, &o, &call);
    size_t match = common(&turn2, &c.prompt);
    assert_true(match > turn1.n);
    assert_int_equal(rig_reused(&call), match / 16 * 16);
    rig_free(&call);
    eng_ids_free(&turn1);
    eng_ids_free(&turn2);
    chat_free(&c);
}

/* How many of the reply's first tokens end with a whole character inside its text: those must come again. */
static size_t n_inside(const struct rig_choice *c)
{
    struct eng_detok d = {0};
    size_t len = 0;
    size_t inside = 0;
    for (size_t i = 0; i < c->n_ids; i++) {
        char out[256];
        size_t n;
        const char *piece = eng_tokenizer_piece(eng_engine_tokenizer(engine), c->ids[i], false, &n);
        len += eng_detok_push(&d, piece, n, out);
        if (len <= c->len && d.n_pending == 0)
            inside = i + 1;
    }
    return inside;
}

static void a_reply_cut_by_a_stop_string_matches_to_the_cut(void **state)
{
    (void)state;
    size_t tested = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct chat c = {0};
        struct rig_options o = hot(seed);
        struct rig_call full;
        struct rig_call cut;
        char stop[3] = "";
        user_says(&c, "Count, please.");
        reply(engine, &c, &o, &full);
        forget_last(&c);
        const struct rig_choice *f = &full.choice[0];
        for (size_t i = 12; i + 2 < f->len && !stop[0]; i++) {
            if (f->text[i] > ' ' && f->text[i] < 127 && f->text[i + 1] > ' ' && f->text[i + 1] < 127)
                memcpy(stop, f->text + i, 2);
        }
        o.stop[0] = stop[0] ? stop : NULL;
        reply(engine, &c, &o, &cut);
        struct eng_ids before = history(&c, &cut);
        user_says(&c, "x");
        render_only(engine, &c);
        size_t inside = n_inside(&cut.choice[0]);
        assert_true(common(&before, &c.prompt) >= before.n - cut.choice[0].n_ids + inside);
        tested += cut.choice[0].finish == ENG_FINISH_STOP && inside > 4;
        eng_ids_free(&before);
        rig_free(&full);
        rig_free(&cut);
        chat_free(&c);
    }
    assert_true(tested >= 3);
}

/* A token of two equal letters, and the token of one. */
static bool find_double(uint32_t *one, uint32_t *two)
{
    const struct eng_tokenizer *t = eng_engine_tokenizer(engine);
    for (uint32_t i = 0; i < eng_tokenizer_n_vocab(t); i++) {
        size_t len;
        const char *piece = eng_tokenizer_piece(t, i, false, &len);
        if (len != 2 || piece[0] != piece[1] || piece[0] < 'a' || piece[0] > 'z')
            continue;
        for (uint32_t k = 0; k < eng_tokenizer_n_vocab(t); k++) {
            size_t n;
            const char *single = eng_tokenizer_piece(t, k, false, &n);
            if (n == 1 && single[0] == piece[0]) {
                *one = k;
                *two = i;
                return true;
            }
        }
    }
    return false;
}

static void equal_texts_of_two_chats_keep_their_own_ids(void **state)
{
    (void)state;
    uint32_t token[2];
    assert_true(find_double(&token[0], &token[1]));
    struct chat chats[2] = {0};
    struct eng_ids before[2];
    for (int i = 0; i < 2; i++) {
        struct rig_options o = rig_defaults();
        struct eng_logit_bias bias = {token[i], 1e6f};
        struct rig_call call;
        o.sampling.bias = &bias;
        o.sampling.n_bias = 1;
        o.max_tokens = i == 0 ? 8 : 4;
        user_says(&chats[i], i == 0 ? "Say it slowly." : "Say it fast.");
        reply(engine, &chats[i], &o, &call);
        assert_int_equal(call.choice[0].len, 8);
        before[i] = history(&chats[i], &call);
        rig_free(&call);
    }
    assert_string_equal(chats[0].messages[1].content, chats[1].messages[1].content);
    for (int i = 0; i < 2; i++) {
        user_says(&chats[i], "Again.");
        render_only(engine, &chats[i]);
        assert_int_equal(common(&before[i], &chats[i].prompt), before[i].n);
        eng_ids_free(&before[i]);
    }
    /* The same chat regenerated with the same text and other ids: the latest wins. */
    forget_last(&chats[0]);
    forget_last(&chats[0]);
    struct rig_options o = rig_defaults();
    struct eng_logit_bias bias = {token[1], 1e6f};
    struct rig_call call;
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    o.max_tokens = 4;
    reply(engine, &chats[0], &o, &call);
    struct eng_ids latest = history(&chats[0], &call);
    user_says(&chats[0], "Again.");
    render_only(engine, &chats[0]);
    assert_int_equal(common(&latest, &chats[0].prompt), latest.n);
    eng_ids_free(&latest);
    rig_free(&call);
    chat_free(&chats[0]);
    chat_free(&chats[1]);
}

static void tenants_do_not_share(void **state)
{
    (void)state;
    struct chat a = {.tenant = {{1}}};
    struct chat b = {.tenant = {{2}}};
    struct chat *chats[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        struct rig_options o = hot(9);
        struct rig_call call;
        user_says(chats[i], "The same long question from two people who do not know each other at all.");
        reply(engine, chats[i], &o, &call);
        assert_int_equal(rig_reused(&call), 0);
        assert_int_equal(call.usage.reuse.miss, CS_MISS_COLD);
        rig_free(&call);
    }
    struct eng_ids first = {0};
    user_says(&a, "x");
    render_only(engine, &a);
    assert_int_equal(eng_ids_add(&first, a.prompt.data, a.prompt.n), ENG_OK);
    b.tenant.id[0] = 3; /* a third one, with the same words: no memo, so the reply is encoded */
    user_says(&b, "x");
    render_only(engine, &b);
    assert_true(common(&first, &b.prompt) < first.n);
    eng_ids_free(&first);
    chat_free(&a);
    chat_free(&b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_engine, close_engine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(hot_replies_match_again_over_many_turns),
        TEST(a_turn_reuses_every_full_page_of_the_last),
        TEST(a_reply_that_ended_by_itself_is_whole),
        TEST(forks_edits_and_regenerated_replies_reuse_to_the_last_common_page),
        TEST(a_reply_cut_by_a_stop_string_matches_to_the_cut),
        TEST(equal_texts_of_two_chats_keep_their_own_ids),
        TEST(tenants_do_not_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
