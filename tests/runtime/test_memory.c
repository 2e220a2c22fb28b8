/*
 * Out of memory is an error like any other: each allocation of an opening and of a chat turn fails once, on
 * whatever thread it happens. The request then ends with an error or does without (a note, a publish); the
 * engine goes on, pins nothing, and gives the next request the reply it always gives.
 */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/runtime/runtime.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static atomic_long allocations_left = -1; /* negative: all succeed; at 0 one fails */

static bool refuse(void)
{
    return atomic_load(&allocations_left) >= 0 && atomic_fetch_sub(&allocations_left, 1) == 0;
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return refuse() ? NULL : __real_realloc(p, size);
}

/* What one turn came to; callbacks that allocate nothing. */
struct turn {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    int result;
    enum eng_finish finish[2];
    uint64_t logits_hash;
    uint32_t n_tokens;
};

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct turn *t = ctx;
    t->n_tokens += (uint32_t)ev->n_tokens;
    if (ev->finish != ENG_FINISH_NONE)
        t->finish[ev->choice] = ev->finish;
}

static void on_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct turn *t = ctx;
    pthread_mutex_lock(&t->lock);
    t->done = true;
    t->result = result;
    t->logits_hash = usage->logits_hash;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* Two choices with a stop string, a bias and logprobs: every list of a request is in use. */
static int take_turn(struct eng_engine *e, const char *text, struct turn *t)
{
    char err[300];
    *t = (struct turn){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct eng_message m = {ENG_ROLE_USER, text, strlen(text)};
    struct eng_prompt p;
    int rc = eng_engine_render(e, NULL, &m, 1, true, &p, err, sizeof err);
    if (rc != ENG_OK)
        return rc;
    static const char *const stop[] = {"a stop string that never comes"};
    static const struct eng_logit_bias bias = {30, 0.5f};
    struct eng_sampling s = eng_sampling_defaults();
    s.bias = &bias;
    s.n_bias = 1;
    s.logprobs = true;
    s.top_logprobs = 2;
    struct eng_request r = {
        .prompt = &p,
        .sampling = &s,
        .n_choices = 2,
        .max_tokens = 20,
        .stop = stop,
        .n_stop = 1,
        .ignore_eos = true,
        .hash_logits = true,
        .on_event = on_event,
        .on_done = on_done,
        .ctx = t,
    };
    rc = eng_submit(e, &r, NULL, err, sizeof err);
    if (rc != ENG_OK)
        return rc;
    pthread_mutex_lock(&t->lock);
    while (!t->done)
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return t->result;
}

/* A dense model, one with windows, one with recurrent state. */
static const struct {
    const char *variable, *file, *chat_template;
} models[] = {
    {"ISOTHERM_TEST_MODELS", "qwen2-q8_0.gguf", NULL},
    {"ISOTHERM_TEST_DATA", "golden/gemma3.gguf", "gemma"},
    {"ISOTHERM_TEST_DATA", "golden/qwen35.gguf", "chatml"},
};
#define N_MODELS (sizeof models / sizeof models[0])

static struct eng_config config_of(size_t m)
{
    static char path[1024];
    const char *folder = getenv(models[m].variable);
    assert_non_null(folder);
    snprintf(path, sizeof path, "%s/%s", folder, models[m].file);
    return (struct eng_config){.model_path = path,
                               .threads = 1,
                               .max_concurrency = 4,
                               .kv_cache_bytes = 200 * 8192,
                               .chat_template = models[m].chat_template};
}

static void a_turn_survives_each_failure_of(size_t m)
{
    struct eng_config c = config_of(m);
    struct eng_engine *e = NULL;
    struct turn reference;
    struct turn t;
    char err[300];
    assert_int_equal(eng_engine_open(&c, &e, err, sizeof err), ENG_OK);
    assert_int_equal(take_turn(e, "The text of the reference, which is not very long.", &reference), ENG_OK);
    size_t n_failed = 0;
    size_t n_survived = 0;
    for (long k = 0;; k++) {
        char text[100];
        snprintf(text, sizeof text, "Another message each time, number %ld, so that it is computed.", k);
        atomic_store(&allocations_left, k);
        int rc = take_turn(e, text, &t);
        bool all_succeeded = atomic_exchange(&allocations_left, -1) >= 0;
        if (rc != ENG_OK && rc != ENG_ENOMEM)
            fail_msg("allocation %ld: %d", k, rc);
        if (rc == ENG_OK)
            assert_true(t.finish[0] != ENG_FINISH_NONE && t.finish[1] != ENG_FINISH_NONE);
        n_failed += rc != ENG_OK;
        n_survived += rc == ENG_OK;
        assert_int_equal(take_turn(e, "The text of the reference, which is not very long.", &t), ENG_OK);
        assert_true(t.logits_hash == reference.logits_hash);
        assert_int_equal(t.n_tokens, 40);
        struct cs_stats s;
        cs_stats_get(eng_engine_store(e), &s);
        assert_int_equal(s.pages_live, 0);
        if (all_succeeded)
            break;
    }
    assert_true(n_failed > 10 && n_survived > 1);
    assert_int_equal(eng_engine_close(e, 10000), ENG_OK);
}

static void a_turn_survives_each_failure(void **state)
{
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++)
        a_turn_survives_each_failure_of(m);
}

static void opening_fails_cleanly_with(size_t m)
{
    struct eng_config c = config_of(m);
    for (long k = 0;; k = k < 60 ? k + 1 : k + 1 + k / 10) {
        struct eng_engine *e = NULL;
        char err[300] = "";
        atomic_store(&allocations_left, k);
        int rc = eng_engine_open(&c, &e, err, sizeof err);
        bool all_succeeded = atomic_exchange(&allocations_left, -1) >= 0;
        if (rc == ENG_OK) {
            assert_int_equal(eng_engine_close(e, 10000), ENG_OK);
        } else {
            assert_null(e);
            assert_string_not_equal(err, "");
        }
        if (all_succeeded) {
            assert_int_equal(rc, ENG_OK);
            return;
        }
    }
}

static void opening_fails_cleanly(void **state)
{
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++)
        opening_fails_cleanly_with(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails_cleanly),
        cmocka_unit_test(a_turn_survives_each_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
