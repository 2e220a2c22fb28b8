/*
 * Drawing a token. A pure function of (logits, parameters, ids so far, seed, choice, position): nothing is
 * kept between draws, so a preempted sequence goes on as if nothing had happened and neighbours in the batch
 * cannot be felt.
 *
 * Order: logit bias, repeat penalty, presence and frequency penalties, temperature, top_k, top_p over what
 * top_k left, min_p against the likeliest. The vocabulary is never sorted: top_k and top_p are selections
 * (a histogram, then quickselect inside one bucket, on "likelier first, then lower id", a total order, so
 * that the kept set is unique); what is not kept gets weight 0, and the draw walks the weights by ascending
 * id.
 *
 * exp and log-sum-exp are the kernels' own, so that a seed repeats on every instruction set.
 * Threads: a struct sampler belongs to one thread at a time.
 */
#include "engine/runtime/sampler.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GREEDY_TEMPERATURE 1e-4f
#define BUCKET_SHIFT       20                                  /* eight buckets for each power of two */
#define N_BUCKETS          ((0x3f800000u >> BUCKET_SHIFT) + 1) /* up to 1.0f */
#define DRAW_BLOCK         64 /* weights are summed in blocks, so that a draw skips most of them */

struct candidate {
    float weight;
    uint32_t id;
};

struct sampler {
    uint32_t n_vocab;
    float *x;                    /* (n_vocab) logits after bias and penalties */
    float *weight;               /* (n_vocab) exp((x - max) / temperature), 0 where cut off */
    uint32_t *count;             /* (n_vocab) all zero between draws */
    struct candidate *candidate; /* (n_vocab) */
    double bucket_amount[N_BUCKETS];
};

struct eng_sampling eng_sampling_defaults(void)
{
    return (struct eng_sampling){.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f};
}

int sampler_new(uint32_t n_vocab, struct sampler **out)
{
    *out = NULL;
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return ENG_ENOMEM;
    s->n_vocab = n_vocab;
    s->x = calloc(n_vocab, sizeof *s->x);
    s->weight = calloc(n_vocab, sizeof *s->weight);
    s->count = calloc(n_vocab, sizeof *s->count);
    s->candidate = calloc(n_vocab, sizeof *s->candidate);
    if (!s->x || !s->weight || !s->count || !s->candidate) {
        sampler_free(s);
        return ENG_ENOMEM;
    }
    *out = s;
    return ENG_OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->x);
    free(s->weight);
    free(s->count);
    free(s->candidate);
    free(s);
}

static bool in_range(float v, float low, float high)
{
    return v >= low && v <= high; /* false for NaN */
}

int sampler_check(const struct eng_sampling *p, uint32_t n_vocab, char *err, size_t err_len)
{
    const struct {
        const char *name;
        float value, low, high;
    } ranges[] = {
        {"temperature", p->temperature, 0.0f, 100.0f},
        {"top_p", p->top_p, 0.0f, 1.0f},
        {"min_p", p->min_p, 0.0f, 1.0f},
        {"repeat_penalty", p->repeat_penalty, 0.01f, 100.0f},
        {"presence_penalty", p->presence_penalty, -100.0f, 100.0f},
        {"frequency_penalty", p->frequency_penalty, -100.0f, 100.0f},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (!in_range(ranges[i].value, ranges[i].low, ranges[i].high)) {
            snprintf(err, err_len, "%s is %g; it must be between %g and %g", ranges[i].name,
                     (double)ranges[i].value, (double)ranges[i].low, (double)ranges[i].high);
            return ENG_EINVAL;
        }
    }
    if (p->top_logprobs > ENG_TOP_LOGPROBS_MAX) {
        snprintf(err, err_len, "top_logprobs is %u; it must be between 0 and %d", p->top_logprobs,
                 ENG_TOP_LOGPROBS_MAX);
        return ENG_EINVAL;
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id >= n_vocab) {
            snprintf(err, err_len, "logit_bias names token %u; the vocabulary has %u", p->bias[i].id,
                     n_vocab);
            return ENG_EINVAL;
        }
        if (!in_range(p->bias[i].bias, -1e9f, 1e9f)) {
            snprintf(err, err_len, "logit_bias of token %u is %g", p->bias[i].id, (double)p->bias[i].bias);
            return ENG_EINVAL;
        }
    }
    return ENG_OK;
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). */
static uint64_t mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double sampler_uniform(uint64_t seed, uint32_t choice, uint64_t position)
{
    const uint64_t step = 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
    uint64_t h = mix64(seed + step);
    h = mix64(h ^ (step * ((uint64_t)choice + 1)));
    h = mix64(h + step * (position + 1));
    return (double)(h >> 11) * 0x1p-53;
}

static void take_logprobs(struct kn_backend *b, const float *logits, size_t n_vocab, uint32_t n_top,
                          struct eng_token_info *info)
{
    float max;
    float lse;
    kn_logsumexp(b, logits, n_vocab, &max, &lse);
    info->logprob = logits[info->id] - lse;
    uint32_t n = 0;
    for (size_t i = 0; n_top > 0 && i < n_vocab; i++) {
        float x = logits[i];
        if (isnan(x) || (n == n_top && !(x > info->top[n - 1].logprob)))
            continue;
        /* Ids ascend and only a strictly larger one moves ahead: ties stay in the order of ids. */
        uint32_t at = n < n_top ? n++ : n - 1;
        while (at > 0 && x > info->top[at - 1].logprob) {
            info->top[at] = info->top[at - 1];
            at--;
        }
        info->top[at].id = (uint32_t)i;
        info->top[at].logprob = x;
    }
    for (uint32_t i = 0; i < n; i++)
        info->top[i].logprob -= lse;
    info->n_top = n;
}

static bool has_changes(const struct eng_sampling *p)
{
    return p->n_bias > 0 || p->repeat_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* s->x = logits with bias and penalties; NaN becomes -inf. */
static void apply_changes(struct sampler *s, const struct eng_sampling *p, const float *logits,
                          const uint32_t *ids, size_t n_prompt, size_t n)
{
    for (uint32_t i = 0; i < s->n_vocab; i++)
        s->x[i] = isnan(logits[i]) ? -INFINITY : logits[i];
    for (size_t i = 0; i < p->n_bias; i++)
        s->x[p->bias[i].id] += p->bias[i].bias;
    if (p->repeat_penalty != 1.0f) {
        size_t last_n = p->repeat_last_n ? p->repeat_last_n : 64;
        size_t from = n > last_n ? n - last_n : 0;
        for (size_t i = from; i < n; i++) {
            if (s->count[ids[i]]++ == 0) {
                float *x = &s->x[ids[i]];
                *x = *x > 0.0f ? *x / p->repeat_penalty : *x * p->repeat_penalty;
            }
        }
        for (size_t i = from; i < n; i++)
            s->count[ids[i]] = 0;
    }
    if (p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f) {
        for (size_t i = n_prompt; i < n; i++)
            s->count[ids[i]]++;
        for (size_t i = n_prompt; i < n; i++) {
            if (s->count[ids[i]] == 0)
                continue; /* done at its first place */
            s->x[ids[i]] -= p->presence_penalty + p->frequency_penalty * (float)s->count[ids[i]];
            s->count[ids[i]] = 0;
        }
    }
}

static bool before(struct candidate a, struct candidate b)
{
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

/* Moves the pivot (median of first, middle, last) to its rank inside c[lo, hi) and returns it. */
static size_t partition(struct candidate *c, size_t lo, size_t hi)
{
    size_t mid = lo + (hi - lo) / 2;
    if (before(c[mid], c[lo]))
        swap(&c[mid], &c[lo]);
    if (before(c[hi - 1], c[mid]))
        swap(&c[hi - 1], &c[mid]);
    if (before(c[mid], c[lo]))
        swap(&c[mid], &c[lo]);
    swap(&c[mid], &c[hi - 1]);
    struct candidate pivot = c[hi - 1];
    size_t m = lo;
    for (size_t i = lo; i + 1 < hi; i++) {
        if (before(c[i], pivot)) {
            swap(&c[i], &c[m]);
            m++;
        }
    }
    swap(&c[m], &c[hi - 1]);
    return m;
}

/* The number k of candidates, best first, whose sum (of weights, or of ones) first reaches `need`; afterwards
 * c[0..k) are those. All of them when rounding lets the sum fall short. */
static size_t select_best(struct candidate *c, size_t n, double need, bool by_weight)
{
    size_t lo = 0;
    size_t hi = n;
    while (lo < hi) {
        size_t m = partition(c, lo, hi);
        double front = 0;
        for (size_t i = lo; i < m; i++)
            front += by_weight ? (double)c[i].weight : 1.0;
        double pivot = by_weight ? (double)c[m].weight : 1.0;
        if (need <= front) {
            hi = m;
        } else if (need <= front + pivot) {
            return m + 1;
        } else {
            need -= front + pivot;
            lo = m + 1;
        }
    }
    return lo > 0 ? lo : 1;
}

/* Weights are positive floats of at most 1, so their leading bits order them. */
static uint32_t bucket_of(float weight)
{
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return bits >> BUCKET_SHIFT;
}

/* Keeps the best weights whose sum (or number) first reaches `share` of all (or `share` itself) and sets the
 * others to 0. A histogram by leading bits finds the bucket in which the cut lies; only that one is selected
 * from. */
static void keep_best(struct sampler *s, double share, bool by_weight)
{
    double sum = 0;
    memset(s->bucket_amount, 0, sizeof s->bucket_amount);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->weight[i] > 0.0f)
            s->bucket_amount[bucket_of(s->weight[i])] += by_weight ? (double)s->weight[i] : 1.0;
    }
    for (uint32_t k = 0; k < N_BUCKETS; k++)
        sum += s->bucket_amount[k];
    double need = by_weight ? share * sum : share;
    uint32_t cut = N_BUCKETS;
    double front = 0;
    while (cut > 0 && (s->bucket_amount[cut - 1] <= 0 || front + s->bucket_amount[cut - 1] < need))
        front += s->bucket_amount[--cut];
    if (cut-- == 0)
        return; /* all of them do not reach it: all stay */
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        uint32_t k = bucket_of(s->weight[i]);
        if (k > cut)
            continue;
        if (k == cut && s->weight[i] > 0.0f)
            s->candidate[n++] = (struct candidate){s->weight[i], i};
        s->weight[i] = 0.0f;
    }
    n = select_best(s->candidate, n, need - front, by_weight);
    for (size_t i = 0; i < n; i++)
        s->weight[s->candidate[i].id] = s->candidate[i].weight;
}

/* Sets the weights that top_k, top_p and min_p cut off to 0. The likeliest always stays. */
static void cut_weights(struct sampler *s, const struct eng_sampling *p)
{
    if (p->top_k > 0 && p->top_k < s->n_vocab)
        keep_best(s, p->top_k, false);
    if (p->top_p < 1.0f)
        keep_best(s, (double)p->top_p, true);
    for (uint32_t i = 0; p->min_p > 0.0f && i < s->n_vocab; i++) {
        if (s->weight[i] < p->min_p) /* the likeliest has weight 1 */
            s->weight[i] = 0.0f;
    }
}

static double block_sum(const struct sampler *s, size_t from)
{
    size_t to = from + DRAW_BLOCK < s->n_vocab ? from + DRAW_BLOCK : s->n_vocab;
    double sum = 0;
    for (size_t i = from; i < to; i++)
        sum += (double)s->weight[i];
    return sum;
}

static uint32_t draw(const struct sampler *s, double uniform)
{
    double total = 0;
    for (size_t from = 0; from < s->n_vocab; from += DRAW_BLOCK)
        total += block_sum(s, from);
    double rest = uniform * total;
    size_t from = 0;
    for (; from + DRAW_BLOCK < s->n_vocab; from += DRAW_BLOCK) {
        double sum = block_sum(s, from);
        if (rest < sum)
            break;
        rest -= sum;
    }
    uint32_t last = 0;
    for (size_t i = from; i < s->n_vocab; i++) {
        if (s->weight[i] <= 0.0f)
            continue;
        last = (uint32_t)i;
        if (rest < (double)s->weight[i])
            return last;
        rest -= (double)s->weight[i];
    }
    /* Rounding let the walk fall off the end: the last one that can be drawn. */
    for (size_t i = s->n_vocab; i > 0 && s->weight[last] <= 0.0f; i--)
        last = (uint32_t)(i - 1);
    return last;
}

uint32_t sampler_draw(struct sampler *s, struct kn_backend *b, const struct eng_sampling *p, uint32_t choice,
                      const float *logits, const uint32_t *ids, size_t n_prompt, size_t n,
                      struct eng_token_info *info)
{
    memset(info, 0, sizeof *info);
    const float *x = logits;
    bool greedy = p->temperature < GREEDY_TEMPERATURE;
    if (has_changes(p) || !greedy) {
        apply_changes(s, p, logits, ids, n_prompt, n);
        x = s->x;
    }
    uint32_t best = (uint32_t)kn_argmax(b, x, s->n_vocab);
    info->id = best;
    if (!greedy && isfinite(x[best])) {
        float max = x[best];
        for (uint32_t i = 0; i < s->n_vocab; i++)
            s->x[i] -= max;
        kn_exp(b, s->x, s->n_vocab, 1.0f / p->temperature, 0.0f, s->weight);
        cut_weights(s, p);
        info->id = draw(s, sampler_uniform(p->seed, choice, n - n_prompt));
    }
    if (p->logprobs)
        take_logprobs(b, logits, s->n_vocab, p->top_logprobs, info);
    return info->id;
}
