/* Requests through the engine: cancel, stop strings, choices, ends, queue, and what the events promise. */
#include "rig.h"
#include <stdatomic.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))

static struct eng_config config;
static struct eng_engine *engine;

static int open_engine(void **state)
{
    (void)state;
    config = rig_config("qwen2-q8_0", 300);
    engine = rig_open(&config);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    struct cs_stats s;
    cs_stats_get(eng_engine_store(engine), &s);
    assert_int_equal(s.pages_live, 0); /* nothing leaks, however a request ended */
    rig_close(engine);
    free((void *)config.model_path);
    return 0;
}

/* A stretch of plain ASCII in the reply, `len` long, not at its start: a usable stop string. */
static bool find_stop(const struct rig_choice *c, size_t from, size_t len, char *out)
{
    for (size_t i = from; i + len <= c->len; i++) {
        size_t k = 0;
        while (k < len && c->text[i + k] > ' ' && c->text[i + k] < 127)
            k++;
        if (k == len && memmem(c->text, i, c->text + i, len) == NULL) {
            memcpy(out, c->text + i, len);
            out[len] = '\0';
            return true;
        }
    }
    return false;
}

static void a_stop_string_cuts_the_text_wherever_tokens_end(void **state)
{
    (void)state;
    size_t tested = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        uint32_t *ids = rig_ids(seed, 40);
        struct rig_options o = rig_defaults();
        struct rig_call full;
        char stop[8];
        o.sampling.temperature = 1;
        o.sampling.seed = seed;
        o.max_tokens = 60;
        rig_run(engine, ids, 40, &o, &full);
        assert_int_equal(full.choice[0].finish, ENG_FINISH_LENGTH);
        if (find_stop(&full.choice[0], 8, 3, stop)) {
            struct rig_call cut;
            size_t at = (size_t)((char *)memmem(full.choice[0].text, full.choice[0].len, stop, 3) -
                                 full.choice[0].text);
            o.stop[0] = "never comes, or so we hope";
            o.stop[1] = stop;
            rig_run(engine, ids, 40, &o, &cut);
            assert_int_equal(cut.choice[0].finish, ENG_FINISH_STOP);
            assert_int_equal(cut.choice[0].len, at);
            assert_memory_equal(cut.choice[0].text, full.choice[0].text, at);
            assert_true(cut.choice[0].n_ids < full.choice[0].n_ids);
            assert_memory_equal(cut.choice[0].ids, full.choice[0].ids,
                                cut.choice[0].n_ids * sizeof(uint32_t));
            assert_true(cut.usage.completion_tokens > 0 && cut.usage.completion_tokens < 60);
            rig_free(&cut);
            tested++;
        }
        rig_free(&full);
        free(ids);
    }
    assert_true(tested >= 4);
}

static void every_token_is_reported_once_in_order(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(2, 30);
    struct rig_options o = rig_defaults();
    struct rig_call call;
    o.sampling.temperature = 1;
    o.sampling.logprobs = true;
    o.sampling.top_logprobs = 5;
    o.max_tokens = 50;
    o.stop[0] = "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdzzz"; /* makes text wait without ever completing */
    rig_run(engine, ids, 30, &o, &call);
    const struct rig_choice *c = &call.choice[0];
    assert_int_equal(c->n_ids, 50);
    assert_int_equal(call.usage.completion_tokens, 50);
    struct eng_detok d = {0};
    char *text = calloc(1, 4096);
    size_t len = 0;
    for (size_t i = 0; i < c->n_ids; i++) {
        size_t n;
        const char *piece = eng_tokenizer_piece(eng_engine_tokenizer(engine), c->ids[i], false, &n);
        len += eng_detok_push(&d, piece, n, text + len);
        assert_true(c->infos[i].logprob < 0);
        assert_int_equal(c->infos[i].n_top, 5);
        assert_true(c->infos[i].top[0].logprob >= c->infos[i].logprob);
    }
    len += eng_detok_finish(&d, text + len);
    assert_int_equal(len, c->len);
    assert_memory_equal(text, c->text, len);
    free(text);
    rig_free(&call);
    free(ids);
}

static void choices_share_the_prompt_and_differ(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(4, 70);
    struct rig_options o = rig_defaults();
    struct rig_call three;
    struct rig_call again;
    struct rig_call one;
    struct eng_engine_stats before;
    struct eng_engine_stats after;
    o.sampling.temperature = 1;
    o.sampling.seed = 3;
    o.n_choices = 3;
    eng_engine_stats(engine, &before);
    rig_run(engine, ids, 70, &o, &three);
    eng_engine_stats(engine, &after);
    /* 70 once, then what lies behind the last full page for each of the other two. */
    assert_int_equal(after.prefilled_tokens - before.prefilled_tokens, 70 + 2 * (70 - 64));
    assert_int_equal(three.usage.prompt_tokens, 70);
    assert_int_equal(three.usage.completion_tokens, 3 * 24);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(three.choice[i].finish, ENG_FINISH_LENGTH);
        assert_int_equal(three.choice[i].n_ids, 24);
    }
    assert_memory_not_equal(three.choice[0].ids, three.choice[1].ids, 24 * sizeof(uint32_t));
    assert_memory_not_equal(three.choice[1].ids, three.choice[2].ids, 24 * sizeof(uint32_t));
    rig_run(engine, ids, 70, &o, &again);
    rig_assert_same(&three, &again);
    o.n_choices = 1;
    rig_run(engine, ids, 70, &o, &one);
    assert_memory_equal(three.choice[0].ids, one.choice[0].ids, 24 * sizeof(uint32_t));
    rig_free(&three);
    rig_free(&again);
    rig_free(&one);
    free(ids);
}

static void the_end_of_the_context_is_length(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.context = 128;
    struct eng_engine *e = rig_open(&c);
    assert_int_equal(eng_engine_context(e), 128);
    uint32_t *ids = rig_ids(5, 200);
    struct rig_options o = rig_defaults();
    struct rig_call call;
    o.max_tokens = 0;
    rig_run(e, ids, 100, &o, &call);
    assert_int_equal(call.choice[0].finish, ENG_FINISH_LENGTH);
    assert_int_equal(call.choice[0].n_ids, 28);
    rig_free(&call);
    o.max_tokens = 1000;
    rig_run(e, ids, 127, &o, &call);
    assert_int_equal(call.choice[0].n_ids, 1);
    rig_free(&call);

    struct eng_prompt p = {0};
    assert_int_equal(eng_ids_add(&p.ids, ids, 128), ENG_OK);
    assert_int_equal(rig_submit_prompt(e, &p, &o, &call), ENG_EINVAL);
    assert_non_null(strstr(call.message, "128 tokens"));
    assert_null(p.ids.data); /* emptied all the same */
    rig_free(&call);
    rig_close(e);
    free(ids);
}

static void the_end_token_ends_and_is_not_shown(void **state)
{
    (void)state;
    const struct eng_tokenizer *t = eng_engine_tokenizer(engine);
    uint32_t *ids = rig_ids(6, 40);
    struct rig_options o = rig_defaults();
    struct eng_logit_bias bias = {eng_tokenizer_eos(t), 1e6f};
    struct rig_call call;
    assert_true(eng_tokenizer_is_end(t, bias.id));
    o.sampling.bias = &bias;
    o.sampling.n_bias = 1;
    o.use_eos = true;
    rig_run(engine, ids, 40, &o, &call);
    assert_int_equal(call.choice[0].finish, ENG_FINISH_STOP);
    assert_int_equal(call.choice[0].n_ids, 0);
    assert_int_equal(call.choice[0].len, 0);
    assert_int_equal(call.usage.completion_tokens, 0);
    assert_int_equal(call.choice[0].n_events, 1);
    rig_free(&call);
    o.use_eos = false;
    rig_run(engine, ids, 40, &o, &call);
    assert_int_equal(call.choice[0].finish, ENG_FINISH_LENGTH);
    assert_int_equal(call.choice[0].n_ids, 24);
    rig_free(&call);
    free(ids);
}

static void a_cancelled_prompt_stays_reusable(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.prefill_chunk = 16;
    struct eng_engine *e = rig_open(&c);
    uint32_t *ids = rig_ids(7, 1200);
    struct rig_options o = rig_defaults();
    struct rig_call first;
    struct rig_call busy;
    struct rig_call second;
    rig_start(e, ids + 600, 20, &o, &busy);
    rig_start(e, ids, 1200, &o, &first);
    struct eng_engine_stats s;
    do
        eng_engine_stats(e, &s);
    while (s.prefilled_tokens < 200 && s.finished < 2);
    eng_cancel(e, first.id);
    rig_wait(&first);
    rig_wait(&busy);
    assert_int_equal(first.result, ENG_OK);
    assert_int_equal(first.choice[0].finish, ENG_FINISH_CANCELLED);
    assert_int_equal(first.choice[0].n_ids, 0);
    rig_run(e, ids, 1200, &o, &second);
    assert_true(rig_reused(&second) >= 160 && rig_reused(&second) < 1200 - 1);
    assert_int_equal(second.usage.reuse.miss, CS_MISS_DIVERGED);
    eng_cancel(e, second.id); /* long gone: nothing happens */
    eng_cancel(e, 999999);
    eng_engine_stats(e, &s);
    assert_int_equal(s.cancelled, 1);
    rig_free(&first);
    rig_free(&busy);
    rig_free(&second);
    rig_close(e);
    free(ids);
}

static void a_cancelled_reply_is_published_too(void **state)
{
    (void)state;
    uint32_t *ids = rig_ids(8, 40);
    struct rig_options o = rig_defaults();
    struct rig_call first;
    struct rig_call second;
    o.max_tokens = 1500;
    rig_start(engine, ids, 40, &o, &first);
    rig_wait_tokens(&first, 100);
    eng_cancel(engine, first.id);
    rig_wait(&first);
    assert_int_equal(first.choice[0].finish, ENG_FINISH_CANCELLED);
    size_t n = first.choice[0].n_ids;
    assert_in_range(n, 100, 1499);
    uint32_t *all = calloc(40 + n, sizeof *all);
    memcpy(all, ids, 40 * sizeof *all);
    memcpy(all + 40, first.choice[0].ids, n * sizeof *all);
    o.max_tokens = 1;
    rig_run(engine, all, 40 + n, &o, &second);
    assert_int_equal(rig_reused(&second), (40 + n - 1) / 16 * 16);
    free(all);
    rig_free(&first);
    rig_free(&second);
    free(ids);
}

static void the_queue_is_bounded_and_keeps_its_order(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.max_concurrency = 1;
    c.max_queue = 2;
    struct eng_engine *e = rig_open(&c);
    uint32_t *ids = rig_ids(9, 300);
    struct rig_options o = rig_defaults();
    struct rig_call running;
    struct rig_call waiting[2];
    struct rig_call refused;
    o.max_tokens = 1500;
    rig_start(e, ids, 60, &o, &running);
    rig_wait_tokens(&running, 1);
    o.max_tokens = 4;
    rig_start(e, ids + 10, 60, &o, &waiting[0]);
    rig_start(e, ids + 20, 60, &o, &waiting[1]);
    struct eng_prompt p = {0};
    assert_int_equal(eng_ids_add(&p.ids, ids, 60), ENG_OK);
    assert_int_equal(rig_submit_prompt(e, &p, &o, &refused), ENG_EFULL);
    rig_free(&refused);
    eng_cancel(e, waiting[0].id); /* one that waits can be cancelled while another runs */
    rig_wait(&waiting[0]);
    assert_int_equal(waiting[0].choice[0].finish, ENG_FINISH_CANCELLED);
    eng_cancel(e, running.id);
    rig_wait(&running);
    rig_wait(&waiting[1]);
    assert_int_equal(waiting[1].choice[0].finish, ENG_FINISH_LENGTH);
    struct eng_engine_stats s;
    eng_engine_stats(e, &s);
    assert_int_equal(s.rejected_full, 1);
    assert_int_equal(s.requests, 3);
    rig_free(&running);
    rig_free(&waiting[0]);
    rig_free(&waiting[1]);
    rig_close(e);
    free(ids);
}

static void decode_first_prefills_a_page_a_step(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.policy = ENG_POLICY_DECODE_FIRST;
    struct eng_engine *e = rig_open(&c);
    uint32_t *ids = rig_ids(12, 400);
    struct rig_options o = rig_defaults();
    struct rig_call decoding;
    struct rig_call prompt;
    struct eng_engine_stats before;
    struct eng_engine_stats after;
    o.max_tokens = 1900;
    rig_start(e, ids, 20, &o, &decoding);
    rig_wait_tokens(&decoding, 1);
    eng_engine_stats(e, &before);
    o.max_tokens = 1;
    rig_run(e, ids + 40, 320, &o, &prompt);
    eng_engine_stats(e, &after);
    assert_true(after.forwards - before.forwards >= 320 / 16);
    eng_cancel(e, decoding.id);
    rig_wait(&decoding);
    assert_true(decoding.choice[0].n_ids >= 320 / 16);
    rig_free(&decoding);
    rig_free(&prompt);
    rig_close(e);
    free(ids);
}

static void closing_ends_what_runs_and_what_waits(void **state)
{
    (void)state;
    struct eng_config c = config;
    c.max_concurrency = 2;
    struct eng_engine *e = rig_open(&c);
    struct rig_options o = rig_defaults();
    struct rig_call call[6];
    uint32_t *ids = rig_ids(10, 300);
    o.max_tokens = 1500;
    o.n_choices = 2;
    for (size_t i = 0; i < N(call); i++)
        rig_start(e, ids + 10 * i, 100, &o, &call[i]);
    rig_wait_tokens(&call[0], 3);
    rig_close(e);
    for (size_t i = 0; i < N(call); i++) {
        assert_true(call[i].done);
        assert_int_equal(call[i].choice[0].finish, ENG_FINISH_CANCELLED);
        assert_int_equal(call[i].choice[1].finish, ENG_FINISH_CANCELLED);
        rig_free(&call[i]);
    }
    free(ids);
}

struct relay {
    struct rig_call call;
    atomic_int n_left;
    atomic_uint_fast64_t id;
    atomic_int n_cancelled;
};

static void relay_submit(struct relay *r);

static void relay_event(void *ctx, const struct eng_event *ev)
{
    struct relay *r = ctx;
    if (ev->finish == ENG_FINISH_CANCELLED)
        atomic_fetch_add(&r->n_cancelled, 1);
    else if (ev->finish == ENG_FINISH_NONE)
        eng_cancel(engine, atomic_load(&r->id)); /* its own request, in its first event */
}

static void relay_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct relay *r = ctx;
    (void)usage;
    if (result == ENG_OK && atomic_fetch_sub(&r->n_left, 1) > 1) {
        relay_submit(r);
        return;
    }
    pthread_mutex_lock(&r->call.lock);
    r->call.done = true;
    pthread_cond_broadcast(&r->call.changed);
    pthread_mutex_unlock(&r->call.lock);
}

static void relay_submit(struct relay *r)
{
    char err[200];
    eng_request_id id = 0;
    struct eng_prompt p = {0};
    struct eng_sampling greedy = eng_sampling_defaults();
    uint32_t *ids = rig_ids(77, 30);
    struct eng_request request = {
        .prompt = &p,
        .sampling = &greedy,
        .n_choices = 1,
        .ignore_eos = true,
        .on_event = relay_event,
        .on_done = relay_done,
        .ctx = r,
    };
    (void)eng_ids_add(&p.ids, ids, 30);
    free(ids);
    (void)eng_submit(engine, &request, &id, err, sizeof err);
    atomic_store(&r->id, id);
}

static void callbacks_may_submit_and_cancel(void **state)
{
    (void)state;
    struct relay r = {.call = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER},
                      .n_left = 5};
    relay_submit(&r);
    rig_wait(&r.call);
    assert_int_equal(atomic_load(&r.n_left), 0);
    assert_true(atomic_load(&r.n_cancelled) >=
                4); /* the very first may be through before its id is known here */
}

static void bad_requests_are_refused_by_name(void **state)
{
    (void)state;
    struct rig_call call;
    struct rig_options o = rig_defaults();
    struct eng_prompt empty = {0};
    assert_int_equal(rig_submit_prompt(engine, &empty, &o, &call), ENG_EINVAL);
    assert_non_null(strstr(call.message, "empty"));
    rig_free(&call);
    struct eng_prompt p = {0};
    const uint32_t far = 1000000;
    assert_int_equal(eng_ids_add(&p.ids, &far, 1), ENG_OK);
    assert_int_equal(rig_submit_prompt(engine, &p, &o, &call), ENG_EINVAL);
    assert_non_null(strstr(call.message, "1000000"));
    rig_free(&call);
    const uint32_t one = 30;
    assert_int_equal(eng_ids_add(&p.ids, &one, 1), ENG_OK);
    o.sampling.temperature = -1;
    assert_int_equal(rig_submit_prompt(engine, &p, &o, &call), ENG_EINVAL);
    assert_non_null(strstr(call.message, "temperature"));
    rig_free(&call);
    assert_int_equal(eng_ids_add(&p.ids, &one, 1), ENG_OK);
    o = rig_defaults();
    o.stop[0] = "";
    assert_int_equal(rig_submit_prompt(engine, &p, &o, &call), ENG_EINVAL);
    rig_free(&call);
}

static void a_cache_smaller_than_the_context_becomes_the_context(void **state)
{
    (void)state;
    struct eng_config c = rig_config("qwen2-q8_0", 6);
    struct eng_engine *e = rig_open(&c);
    uint32_t *ids = rig_ids(11, 80);
    struct rig_options o = rig_defaults();
    struct rig_call call;
    assert_int_equal(eng_engine_context(e), 96);
    o.max_tokens = 0;
    for (int i = 0; i < 3; i++) { /* also with other prompts' pages in the way */
        rig_run(e, ids + i, 70, &o, &call);
        assert_int_equal(call.choice[0].finish, ENG_FINISH_LENGTH);
        assert_int_equal(call.choice[0].n_ids, 26);
        rig_free(&call);
    }
    rig_close(e);
    free(ids);
    free((void *)c.model_path);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_engine, close_engine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stop_string_cuts_the_text_wherever_tokens_end),
        TEST(every_token_is_reported_once_in_order),
        TEST(choices_share_the_prompt_and_differ),
        TEST(the_end_of_the_context_is_length),
        TEST(the_end_token_ends_and_is_not_shown),
        TEST(a_cancelled_prompt_stays_reusable),
        TEST(a_cancelled_reply_is_published_too),
        TEST(the_queue_is_bounded_and_keeps_its_order),
        TEST(decode_first_prefills_a_page_a_step),
        TEST(closing_ends_what_runs_and_what_waits),
        TEST(callbacks_may_submit_and_cancel),
        TEST(bad_requests_are_refused_by_name),
        TEST(a_cache_smaller_than_the_context_becomes_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
