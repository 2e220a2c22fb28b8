/* The sampler against a slow, sorted reference, and its promises: pure, ties to the lowest id, raw logprobs.
 */
#include "engine/runtime/sampler.h"
#include "kernels/kernels.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCAB 1000
#define N(a)  (sizeof(a) / sizeof((a)[0]))

static struct kn_backend *backend;
static struct sampler *sampler;
static float logits[VOCAB];

static uint32_t draw(const struct eng_sampling *p, uint32_t choice, const uint32_t *ids, size_t n_prompt,
                     size_t n)
{
    struct eng_token_info info;
    return sampler_draw(sampler, backend, p, choice, logits, ids, n_prompt, n, &info);
}

/* Logits with ties in them: multiples of 1/4 between -6 and 6. */
static void fill(uint64_t seed)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = (float)floor(sampler_uniform(seed, 0, i) * 49 - 24) / 4;
}

static const uint32_t no_ids[1];

static int reset(void **state)
{
    (void)state;
    fill(1);
    return 0;
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    struct eng_sampling p = eng_sampling_defaults();
    p.temperature = 0;
    logits[700] = logits[300] = logits[301] = 9;
    assert_int_equal(draw(&p, 0, no_ids, 0, 0), 300);
    logits[5] = NAN;
    assert_int_equal(draw(&p, 0, no_ids, 0, 0), 300);
}

struct ranked {
    double weight;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a;
    const struct ranked *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The set that top_k, top_p, min_p keep, by sorting everything. */
static size_t reference_kept(const struct eng_sampling *p, bool kept[VOCAB])
{
    struct ranked r[VOCAB];
    float max = -INFINITY;
    for (uint32_t i = 0; i < VOCAB; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < VOCAB; i++)
        r[i] = (struct ranked){exp((double)((logits[i] - max) / p->temperature)), i};
    qsort(r, VOCAB, sizeof r[0], by_rank);
    size_t n = p->top_k && p->top_k < VOCAB ? p->top_k : VOCAB;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += r[i].weight;
    if (p->top_p < 1) {
        double reached = 0;
        size_t k = 0;
        while (k < n && (k == 0 || reached < p->top_p * sum))
            reached += r[k++].weight;
        n = k;
    }
    memset(kept, 0, VOCAB * sizeof kept[0]);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].weight >= p->min_p) {
            kept[r[i].id] = true;
            n_kept++;
        }
    }
    return n_kept;
}

static void draws_all_of_the_kept_set_and_nothing_else(void **state)
{
    (void)state;
    /* top_p values that no partial sum of these weights comes near. */
    static const struct eng_sampling cases[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 7},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 1},
        {.temperature = 0.5f, .top_p = 0.3f, .repeat_penalty = 1},
        {.temperature = 0.7f, .top_p = 0.5f, .repeat_penalty = 1, .top_k = 20},
        {.temperature = 1, .top_p = 1, .min_p = 0.6f, .repeat_penalty = 1},
        {.temperature = 2, .top_p = 0.01f, .min_p = 0.2f, .repeat_penalty = 1, .top_k = 50},
        {.temperature = 1, .top_p = 0, .repeat_penalty = 1},
    };
    for (size_t c = 0; c < N(cases); c++) {
        struct eng_sampling p = cases[c];
        bool kept[VOCAB];
        bool drawn[VOCAB] = {0};
        fill(c + 10);
        size_t n_kept = reference_kept(&p, kept);
        size_t n_drawn = 0;
        for (uint64_t seed = 0; seed < 4000; seed++) {
            p.seed = seed;
            uint32_t id = draw(&p, 0, no_ids, 0, 0);
            assert_true(kept[id]);
            n_drawn += !drawn[id];
            drawn[id] = true;
        }
        assert_int_equal(n_drawn, n_kept);
    }
}

static void draws_in_proportion(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    logits[10] = logf(1);
    logits[400] = logf(2);
    logits[999] = logf(5);
    struct eng_sampling p = eng_sampling_defaults();
    uint32_t count[VOCAB] = {0};
    const uint32_t n = 16000;
    for (p.seed = 0; p.seed < n; p.seed++)
        count[draw(&p, 0, no_ids, 0, 0)]++;
    assert_int_equal(count[10] + count[400] + count[999], n);
    assert_in_range(count[10], n / 8 - 250, n / 8 + 250); /* six standard deviations */
    assert_in_range(count[400], n / 4 - 330, n / 4 + 330);
}

static void a_draw_depends_on_seed_choice_and_position_only(void **state)
{
    (void)state;
    struct eng_sampling p = eng_sampling_defaults();
    p.temperature = 1.5f;
    p.seed = 7;
    static const uint32_t ids[40] = {3, 1, 4, 1, 5};
    uint32_t first = draw(&p, 2, ids, 5, 20);
    for (uint64_t other = 0; other < 50; other++) { /* anything in between changes nothing */
        struct eng_sampling q = p;
        q.seed = other;
        q.top_k = 3;
        q.repeat_penalty = 1.3f;
        (void)draw(&q, 0, ids, 5, 30);
    }
    assert_int_equal(draw(&p, 2, ids, 5, 20), first);
    assert_int_equal(draw(&p, 2, ids, 7, 22),
                     first); /* the position in the reply counts, not the prompt's length */
    size_t same_choice = 0;
    size_t same_position = 0;
    size_t same_seed = 0;
    for (uint32_t i = 0; i < 30; i++) {
        struct eng_sampling q = p;
        q.seed = 100 + i;
        same_seed += draw(&q, 2, ids, 5, 20) == first;
        same_choice += draw(&p, 3 + i, ids, 5, 20) == first;
        same_position += draw(&p, 2, ids, 0, i) == first;
    }
    assert_true(same_choice < 5 && same_position < 5 && same_seed < 5);
    assert_true(sampler_uniform(0, 0, 0) != sampler_uniform(0, 1, 0));
    assert_true(sampler_uniform(0, 0, 1) != sampler_uniform(1, 0, 0));
}

static void bias_and_penalties_move_the_winner(void **state)
{
    (void)state;
    struct eng_sampling p = eng_sampling_defaults();
    p.temperature = 0;
    memset(logits, 0, sizeof logits);
    logits[20] = 5;
    logits[30] = 4.5f;
    logits[40] = 4;

    struct eng_logit_bias bias[] = {{20, -100}, {40, 1}};
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(draw(&p, 0, no_ids, 0, 0), 40);
    p.n_bias = 0;

    const uint32_t ids[] = {20, 20, 20, 30};
    p.repeat_penalty = 1.2f; /* 20: 5 / 1.2, once however often it came; 30: 4.5 / 1.2 */
    assert_int_equal(draw(&p, 0, ids, 4, 4), 20);
    p.repeat_penalty = 1.3f;
    assert_int_equal(draw(&p, 0, ids, 4, 4), 40);
    p.repeat_last_n = 1; /* only 30 is looked back at */
    assert_int_equal(draw(&p, 0, ids, 4, 4), 20);
    p.repeat_penalty = 1;

    p.presence_penalty = 0.7f;
    assert_int_equal(draw(&p, 0, ids, 4, 4), 20); /* the prompt does not count */
    assert_int_equal(draw(&p, 0, ids, 3, 4), 20); /* 30 does */
    assert_int_equal(draw(&p, 0, ids, 0, 3), 30);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.3f; /* three times 0.3 against one */
    assert_int_equal(draw(&p, 0, ids, 0, 4), 30);
    logits[50] = -1;
    p.frequency_penalty = -10;
    const uint32_t negative[] = {50};
    assert_int_equal(draw(&p, 0, negative, 0, 1), 50);
}

static void logprobs_are_of_the_raw_logits(void **state)
{
    (void)state;
    struct eng_sampling p = eng_sampling_defaults();
    struct eng_logit_bias bias[] = {{123, 1000}};
    struct eng_token_info info;
    p.temperature = 0.01f;
    p.bias = bias;
    p.n_bias = 1;
    p.logprobs = true;
    p.top_logprobs = 20;
    logits[800] = logits[200] = 20; /* a tie at the top */
    double sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    assert_int_equal(sampler_draw(sampler, backend, &p, 0, logits, no_ids, 0, 0, &info), 123);
    assert_true(fabs(info.logprob - (logits[123] - log(sum))) < 1e-4);
    assert_int_equal(info.n_top, 20);
    assert_int_equal(info.top[0].id, 200);
    assert_int_equal(info.top[1].id, 800);
    for (uint32_t i = 0; i < info.n_top; i++) {
        assert_true(fabs(info.top[i].logprob - (logits[info.top[i].id] - log(sum))) < 1e-4);
        if (i > 0)
            assert_true(
                info.top[i].logprob < info.top[i - 1].logprob ||
                (info.top[i].logprob == info.top[i - 1].logprob && info.top[i].id > info.top[i - 1].id));
    }
    size_t above = 0; /* nobody better was left out */
    for (uint32_t i = 0; i < VOCAB; i++)
        above += logits[i] > logits[info.top[19].id];
    assert_true(above < 20);
    p.logprobs = false;
    sampler_draw(sampler, backend, &p, 0, logits, no_ids, 0, 0, &info);
    assert_int_equal(info.n_top, 0);
}

static void odd_logits_do_not_break_it(void **state)
{
    (void)state;
    struct eng_sampling p = eng_sampling_defaults();
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = i % 2 ? NAN : -INFINITY;
    assert_true(draw(&p, 0, no_ids, 0, 0) < VOCAB);
    logits[77] = INFINITY;
    assert_int_equal(draw(&p, 0, no_ids, 0, 0), 77);
    fill(3);
    p.top_p = 0.5f;
    p.top_k = VOCAB + 5;
    assert_true(draw(&p, 0, no_ids, 0, 0) < VOCAB);
}

static void checks_name_the_field(void **state)
{
    (void)state;
    char err[200];
    struct eng_sampling p = eng_sampling_defaults();
    assert_int_equal(sampler_check(&p, VOCAB, err, sizeof err), ENG_OK);
    p.temperature = NAN;
    assert_int_equal(sampler_check(&p, VOCAB, err, sizeof err), ENG_EINVAL);
    assert_non_null(strstr(err, "temperature"));
    p = eng_sampling_defaults();
    p.top_p = 1.5f;
    assert_int_equal(sampler_check(&p, VOCAB, err, sizeof err), ENG_EINVAL);
    assert_non_null(strstr(err, "top_p"));
    p = eng_sampling_defaults();
    struct eng_logit_bias bias[] = {{VOCAB, 1}};
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(sampler_check(&p, VOCAB, err, sizeof err), ENG_EINVAL);
    assert_non_null(strstr(err, "1000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(greedy_takes_the_lowest_of_equals, reset),
        cmocka_unit_test_setup(draws_all_of_the_kept_set_and_nothing_else, reset),
        cmocka_unit_test_setup(draws_in_proportion, reset),
        cmocka_unit_test_setup(a_draw_depends_on_seed_choice_and_position_only, reset),
        cmocka_unit_test_setup(bias_and_penalties_move_the_winner, reset),
        cmocka_unit_test_setup(logprobs_are_of_the_raw_logits, reset),
        cmocka_unit_test_setup(odd_logits_do_not_break_it, reset),
        cmocka_unit_test_setup(checks_name_the_field, reset),
    };
    if (kn_backend_open(KN_ISA_AUTO, 1, &backend) != KN_OK || sampler_new(VOCAB, &sampler) != ENG_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    sampler_free(sampler);
    kn_backend_close(backend);
    return rc;
}
