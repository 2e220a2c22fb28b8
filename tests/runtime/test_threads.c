/*
 * Many threads that render, submit and cancel against one engine with a small arena, while its statistics are
 * read. Most of it is for ThreadSanitizer; the rest: every request gets exactly one end, nothing stays
 * pinned, and who was not cancelled has the reply it has alone.
 */
#include "rig.h"
#include <stdatomic.h>

#define THREADS  6
#define REQUESTS 12
#define PROMPT   60
#define REPLY    30

static struct eng_engine *engine;
static atomic_bool stop_reading;

struct worker {
    uint64_t seed;
    size_t n_cancelled, n_whole;
    struct rig_call whole; /* one that ran to its end */
    uint64_t whole_seed;
};

static struct rig_options options_of(uint64_t seed)
{
    struct rig_options o = rig_defaults();
    o.sampling.temperature = 1;
    o.sampling.seed = seed;
    o.max_tokens = REPLY;
    o.n_choices = seed % 4 == 1 ? 3 : 1;
    return o;
}

static void *submit_and_cancel(void *arg)
{
    struct worker *w = arg;
    for (uint64_t i = 0; i < REQUESTS; i++) {
        uint64_t seed = w->seed * 1000 + i;
        uint32_t *ids = rig_ids(seed % 7, PROMPT); /* some prompts are shared between threads */
        struct rig_options o = options_of(seed);
        struct rig_call call;
        bool cancels = seed % 3 == 0;
        rig_start(engine, ids, PROMPT, &o, &call);
        if (cancels) {
            if (seed % 2)
                rig_wait_tokens(&call, 1 + seed % 5);
            eng_cancel(engine, call.id);
        }
        rig_wait(&call);
        if (call.choice[0].finish == ENG_FINISH_CANCELLED) {
            w->n_cancelled++;
        } else {
            assert_int_equal(call.choice[0].finish, ENG_FINISH_LENGTH);
            w->n_whole++;
        }
        if (!cancels && !w->whole.done) {
            w->whole = call;
            w->whole_seed = seed;
        } else {
            rig_free(&call);
        }
        free(ids);
        struct eng_message m = {ENG_ROLE_USER, "a message that is rendered beside the engine", 44};
        struct eng_prompt p;
        char err[100];
        assert_int_equal(eng_engine_render(engine, NULL, &m, 1, true, &p, err, sizeof err), ENG_OK);
        eng_prompt_free(&p);
    }
    return NULL;
}

static void *read_stats(void *arg)
{
    (void)arg;
    uint64_t last = 0;
    while (!atomic_load(&stop_reading)) {
        struct eng_engine_stats s;
        eng_engine_stats(engine, &s);
        assert_true(s.finished >= last);
        last = s.finished;
        sched_yield();
    }
    return NULL;
}

static void hammer(const struct eng_config *c)
{
    atomic_store(&stop_reading, false);
    engine = rig_open(c);
    pthread_t threads[THREADS];
    pthread_t reader;
    struct worker workers[THREADS] = {0};
    assert_int_equal(pthread_create(&reader, NULL, read_stats, NULL), 0);
    for (size_t i = 0; i < THREADS; i++) {
        workers[i].seed = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, submit_and_cancel, &workers[i]), 0);
    }
    size_t n = 0;
    size_t n_cancelled = 0;
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        n += workers[i].n_cancelled + workers[i].n_whole;
        n_cancelled += workers[i].n_cancelled;
    }
    atomic_store(&stop_reading, true);
    pthread_join(reader, NULL);
    assert_int_equal(n, THREADS * REQUESTS);
    assert_true(n_cancelled > 0);
    struct eng_engine_stats s;
    struct cs_stats store;
    eng_engine_stats(engine, &s);
    cs_stats_get(eng_engine_store(engine), &store);
    assert_int_equal(s.finished, n);
    assert_int_equal(s.failed, 0);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(store.pages_live, 0);
    for (size_t i = 0; i < THREADS; i++) {
        struct rig_options o = options_of(workers[i].whole_seed);
        uint32_t *ids = rig_ids(workers[i].whole_seed % 7, PROMPT);
        struct rig_call alone;
        assert_true(workers[i].whole.done);
        rig_run(engine, ids, PROMPT, &o, &alone);
        rig_assert_same(&workers[i].whole, &alone);
        rig_free(&alone);
        rig_free(&workers[i].whole);
        free(ids);
    }
    rig_close(engine);
}

/* 24 pages; six threads with sequences of six pages each, some of three choices. */
static struct eng_config narrow(void)
{
    struct eng_config c = rig_config("qwen2-q8_0", 24);
    c.context = 128;
    c.threads = 2;
    c.max_concurrency = 4;
    return c;
}

static void submitters_and_cancellers_get_their_own_replies(void **state)
{
    (void)state;
    struct eng_config c = narrow();
    hammer(&c);
    free((void *)c.model_path);
}

static void so_they_do_over_a_disk_that_evicts(void **state)
{
    (void)state;
    static const struct cs_config shape = {
        .span_bytes = 64 << 10,
        .chunk_bytes = 64 << 10,
        .extent_bytes = 1 << 20,
        .flush_bytes = 128 << 10,
        .flush_interval_ms = 5,
    };
    struct eng_config c = narrow();
    char *folder = rig_folder();
    c.disk_dir = folder;
    c.disk_bytes = 8 << 20;
    c.store_shape = &shape;
    hammer(&c);
    rig_remove_folder(folder);
    free((void *)c.model_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submitters_and_cancellers_get_their_own_replies),
        cmocka_unit_test(so_they_do_over_a_disk_that_evicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
