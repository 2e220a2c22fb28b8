/*
 * Prefill by step time. While others decode, a step should take no longer than STEP_DECODING_S, or their
 * streams stutter; while nobody does, only a cancel or a new request waits for its end, and larger chunks use
 * the machine better.
 *
 * The work of n tokens from position p on is n * (1 + (p + n / 2) / knee), in units of one token at depth 0:
 * the weights cost each token 2 * parameters operations, attention 4 * full layers * heads * head_dim for
 * each position it sees (what a window or a recurrent layer does has no depth), and the knee is where the two
 * are equal. What a unit takes is learned step by step (exponential average), so it follows the machine and
 * its neighbours.
 */
#include "engine/runtime/pace.h"
#include "kernels/kernels.h"
#include <math.h>

#define STEP_DECODING_S 0.100
#define STEP_ALONE_S    0.250
#define STEP_TOKENS_MAX 1024
#define FIRST_GUESS     30e9 /* operations a second; only the very first chunk rests on it */
#define LEARN           0.3

void pace_init(struct pace *p, const struct eng_model_desc *d, enum eng_policy policy, uint32_t fixed_tokens)
{
    double attention = 4.0 * d->n_full * d->n_heads * d->head_dim;
    double weights = 2.0 * (double)d->parameters;
    *p = (struct pace){
        .knee = attention > 0 && weights > 0 ? weights / attention : 4096,
        .unit_seconds = weights / FIRST_GUESS,
        .policy = policy,
        .fixed_tokens = fixed_tokens,
    };
}

double pace_budget(const struct pace *p, bool others_decode)
{
    if (p->fixed_tokens)
        return p->fixed_tokens;
    if (!others_decode || p->policy == ENG_POLICY_PREFILL_FIRST)
        return STEP_ALONE_S;
    if (p->policy == ENG_POLICY_DECODE_FIRST)
        return 0;
    double left = STEP_DECODING_S - p->decode_seconds;
    return left > STEP_DECODING_S / 4 ? left : STEP_DECODING_S / 4;
}

double pace_work(const struct pace *p, uint32_t pos, uint32_t n)
{
    return n * (1.0 + (pos + n / 2.0) / p->knee);
}

uint32_t pace_tokens(const struct pace *p, double budget, uint32_t pos, uint32_t want, double *cost)
{
    if (p->fixed_tokens) {
        uint32_t n = want < (uint32_t)budget ? want : (uint32_t)budget;
        *cost = n;
        return n;
    }
    if (want > STEP_TOKENS_MAX)
        want = STEP_TOKENS_MAX;
    /* The positive root of n^2 / (2 knee) + n (1 + pos / knee) = units. */
    double units = budget / p->unit_seconds;
    double linear = 1.0 + pos / p->knee;
    double root = p->knee * (sqrt(linear * linear + 2.0 * units / p->knee) - linear);
    uint32_t n = root < want ? (uint32_t)root : want;
    if (n < want && n >= KN_PAGE_TOKENS) {
        uint32_t over = (pos + n) % KN_PAGE_TOKENS; /* end on a page's edge */
        n -= over < n ? over : 0;
    }
    if (n >= 4 * KN_PAGE_TOKENS && want - n < KN_PAGE_TOKENS)
        n = want; /* a step of its own for the last few would cost more */
    *cost = pace_work(p, pos, n) * p->unit_seconds;
    return n;
}

uint32_t pace_least(const struct pace *p, uint32_t pos)
{
    return p->fixed_tokens ? 1 : (uint32_t)ceil(PACE_LEAST_WORK / (1.0 + pos / p->knee));
}

void pace_learn(struct pace *p, double work, uint32_t n_decode, double seconds)
{
    if (work <= 0) {
        if (n_decode > 0)
            p->decode_seconds += (p->decode_seconds > 0 ? LEARN : 1.0) * (seconds - p->decode_seconds);
        return;
    }
    double prefill = n_decode > 0 && p->decode_seconds < seconds ? seconds - p->decode_seconds : seconds;
    double unit = prefill / work;
    if (!p->learned) {
        p->unit_seconds = unit;
        p->learned = true;
    } else {
        p->unit_seconds += LEARN * (unit - p->unit_seconds);
    }
    if (!(p->unit_seconds > 1e-9))
        p->unit_seconds = 1e-9;
}
