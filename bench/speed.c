/*
 * Prefill and decode speed of a model, without server or store, beside what the machine could do at best.
 *
 *     speed --model FILE [--threads N] [--cpu-isa NAME] [--kv-cache-dtype f16|bf16|f32] [--chunk N]
 *           [--prefill N,N] [--decode DEPTH,DEPTH] [--tokens N] [--rounds N] [--json]
 *
 * The ceiling of decode is bytes (weights once and all KV before the token) over the read bandwidth of a
 * buffer of that size; the one of prefill is operations over the peak of the instructions that do them:
 * int16 products for quantised weights, float FMA for float ones and for attention. All measured in this run.
 */
#include "bench/ceiling.h"
#include "bench/clock.h"
#include "bench/numbers.h"
#include "engine/model/model.h"
#include "formats/gguf.h"
#include "formats/quant.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_TESTS 16
#define HUGE_PAGE ((size_t)2 << 20)

struct settings {
    const char *model;
    unsigned threads;
    enum kn_isa isa;
    enum kn_kv_dtype dtype;
    uint32_t chunk, tokens, rounds;
    uint32_t prefill[MAX_TESTS], decode[MAX_TESTS];
    size_t n_prefill, n_decode;
    bool json;
};

struct run {
    struct eng_model *m;
    const struct settings *s;
    void **pages;   /* full ones, then those of each window group */
    void ***groups; /* a table a window group */
    uint8_t *arena;
    void *state, *saved; /* live state, and what it was at the depth of a decode */
    uint32_t *ids;
    double weight_bytes;       /* read by a decoded token */
    double int_ops, float_ops; /* of the matrices, a token, and of the head alone */
    double head_int_ops, head_float_ops;
    double fma_per_s, int16_per_s;
    bool first;
};

static int step(struct run *r, uint32_t pos0, uint32_t n, uint32_t n_logits)
{
    const struct eng_step_seq s = {.ids = r->ids + pos0,
                                   .n = n,
                                   .pos0 = pos0,
                                   .pages = r->pages,
                                   .window_pages = (void *const *const *)r->groups,
                                   .state = r->state,
                                   .n_logits = n_logits};
    const float *logits;
    if (pos0 == 0)
        eng_state_start(r->m, r->state);
    return eng_forward(r->m, &s, 1, &logits);
}

static int prefill(struct run *r, uint32_t n)
{
    int rc = 0;
    for (uint32_t at = 0; at < n && rc == 0; at += r->s->chunk) {
        uint32_t len = n - at < r->s->chunk ? n - at : r->s->chunk;
        rc = step(r, at, len, at + len == n ? 1 : 0);
    }
    return rc;
}

static void report(struct run *r, const char *name, uint32_t size, double rate, double ceiling)
{
    if (r->s->json)
        printf("%s{\"test\": \"%s\", \"size\": %u, \"tokens_per_s\": %.2f, \"ceiling\": %.2f}",
               r->first ? "" : ", ", name, size, rate, ceiling);
    else
        printf("%-8s %6u  %10.1f tokens/s  ceiling %10.1f  %5.1f %%\n", name, size, rate, ceiling,
               100 * rate / ceiling);
    r->first = false;
    fflush(stdout);
}

static int bench_prefill(struct run *r, uint32_t n)
{
    const struct eng_model_desc *d = eng_model_desc(r->m);
    double v[64];
    for (uint32_t i = 0; i < r->s->rounds; i++) {
        double start = wall_s();
        int rc = prefill(r, n);
        if (rc != ENG_OK)
            return rc;
        v[i] = n / (wall_s() - start);
    }
    /* Attention of row p: two products of p + 1 positions (at most a window) with head_dim numbers in each
     * query head. */
    double w = d->window < n ? d->window : n, positions = 0.5 * n * (n + 1.0);
    double attention = 4.0 * d->n_heads * d->head_dim *
                       (d->n_full * positions + d->n_window * (0.5 * w * (w + 1.0) + (n - w) * w));
    /* The delta rule of a row and v head: S with k and q, its share of the block's update of S, and four
     * products with half a block on average. */
    double dim = d->delta.dim;
    double delta =
        (double)d->n_recurrent * d->delta.v_heads * n * (6 * dim * dim + 4.0 * KN_DELTA_BLOCK * dim);
    double seconds = (n * r->int_ops + r->head_int_ops) / r->int16_per_s +
                     (n * r->float_ops + r->head_float_ops + attention + delta) / r->fma_per_s;
    report(r, "prefill", n, median(v, r->s->rounds), n / seconds);
    return ENG_OK;
}

static int bench_decode(struct run *r, uint32_t depth)
{
    const struct eng_model_desc *d = eng_model_desc(r->m);
    const uint64_t live = eng_model_state(r->m)->live_bytes;
    double v[64];
    int rc = prefill(r, depth);
    if (depth == 0)
        eng_state_start(r->m, r->state);
    if (live > 0)
        memcpy(r->saved, r->state, live);
    for (uint32_t i = 0; i < r->s->rounds && rc == ENG_OK; i++) {
        if (live > 0)
            memcpy(r->state, r->saved, live);
        double start = wall_s();
        for (uint32_t k = 0; k < r->s->tokens && rc == ENG_OK; k++)
            rc = step(r, depth + k, 1, 1);
        v[i] = r->s->tokens / (wall_s() - start);
    }
    if (rc != ENG_OK)
        return rc;
    double positions = depth + r->s->tokens / 2.0, in_window = positions < d->window ? positions : d->window;
    double kv = (double)kn_kv_layer_bytes(eng_model_kv(r->m)) / KN_PAGE_TOKENS *
                (d->n_full * positions + d->n_window * in_window);
    double bytes = r->weight_bytes + kv + (double)eng_model_state(r->m)->state_bytes;
    report(r, "decode", depth, median(v, r->s->rounds),
           ceiling_read_bytes_per_s(eng_model_backend(r->m), (size_t)bytes) / bytes);
    return ENG_OK;
}

/* What one token costs in bytes and operations, from the file's own tensors; of experts, those that a token
 * goes through. */
static void count_work(struct run *r, const struct fmt_gguf *g)
{
    const struct eng_model_desc *d = eng_model_desc(r->m);
    bool tied = d->tied_head;
    for (uint64_t i = 0; i < fmt_gguf_n_tensors(g); i++) {
        const struct fmt_tensor *t = fmt_gguf_tensor_at(g, i);
        unsigned layer = 0;
        if (sscanf(t->name, "blk.%u.", &layer) == 1 && layer >= d->n_layers)
            continue; /* no forward reads it */
        bool embedding = strcmp(t->name, "token_embd.weight") == 0;
        bool head = embedding ? tied : strcmp(t->name, "output.weight") == 0;
        if (embedding && !tied)
            continue;
        double used = t->n_dims == 3 ? (double)d->n_experts_used : 1;
        r->weight_bytes += (double)t->bytes * (t->n_dims == 3 ? used / (double)t->ne[2] : 1);
        bool quantised = fmt_type_info(t->type)->group_elems > 0;
        double ops = t->n_dims >= 2 ? 2.0 * (double)t->ne[0] * (double)t->ne[1] * used : 0;
        if (head)
            *(quantised ? &r->head_int_ops : &r->head_float_ops) += ops;
        else
            *(quantised ? &r->int_ops : &r->float_ops) += ops;
    }
}

/* Pages of every table for `longest` tokens, live state, ids. */
static bool take_memory(struct run *r, uint32_t longest)
{
    const struct eng_state_desc *d = eng_model_state(r->m);
    const size_t page = kn_kv_page_bytes(eng_model_kv(r->m)), live = (d->live_bytes + 64) / 64 * 64;
    const size_t n_pages = (longest + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS,
                 n = n_pages * (1 + d->window_groups);
    const size_t bytes = (n * page + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    r->arena = aligned_alloc(HUGE_PAGE, bytes);
    r->pages = malloc(n * sizeof *r->pages);
    r->groups = malloc((1 + d->window_groups) * sizeof *r->groups);
    r->ids = malloc(longest * sizeof *r->ids);
    r->state = aligned_alloc(64, live);
    r->saved = malloc(live);
    if (!r->arena || !r->pages || !r->groups || !r->ids || !r->state || !r->saved)
        return false;
    madvise(r->arena, bytes, MADV_HUGEPAGE); /* and populated ahead of use, as the server's arena is */
    memset(r->arena, 0, n * page);
    for (size_t i = 0; i < n; i++)
        r->pages[i] = r->arena + i * page;
    for (uint32_t g = 0; g < d->window_groups; g++)
        r->groups[g] = r->pages + (g + 1) * n_pages;
    return true;
}

/* ---- command line ------------------------------------------------------------------------------------- */

static int usage(const char *message)
{
    fprintf(stderr,
            "speed: %s\nusage: speed --model FILE [--threads N] [--cpu-isa NAME] [--kv-cache-dtype "
            "f16|bf16|f32]\n"
            "             [--chunk N] [--prefill N,N] [--decode DEPTH,DEPTH] [--tokens N] [--rounds N] "
            "[--json]\n",
            message);
    return 2;
}

static bool parse_list(char *text, uint32_t lo, uint32_t *out, size_t *n)
{
    *n = 0;
    if (strcmp(text, "none") == 0)
        return true;
    for (char *save, *p = strtok_r(text, ",", &save); p; p = strtok_r(NULL, ",", &save))
        if (*n == MAX_TESTS || !parse_number(p, lo, 1u << 24, &out[(*n)++]))
            return false;
    return *n > 0;
}

static const char *parse(int argc, char **argv, struct settings *s)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"cpu-isa", required_argument, NULL, 'i'},
                                            {"kv-cache-dtype", required_argument, NULL, 'k'},
                                            {"chunk", required_argument, NULL, 'c'},
                                            {"prefill", required_argument, NULL, 'p'},
                                            {"decode", required_argument, NULL, 'd'},
                                            {"tokens", required_argument, NULL, 'n'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"json", no_argument, NULL, 'j'},
                                            {NULL, 0, NULL, 0}};
    static const char *const dtypes[] = {[KN_KV_F16] = "f16", [KN_KV_BF16] = "bf16", [KN_KV_F32] = "f32"};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool ok = false;
        switch (c) {
        case 'm':
            s->model = optarg;
            ok = true;
            break;
        case 't':
            ok = parse_number(optarg, 1, 1024, &s->threads);
            break;
        case 'i': {
            int isa = kn_isa_from_name(optarg);
            ok = isa >= 0;
            s->isa = ok ? (enum kn_isa)isa : KN_ISA_AUTO;
            break;
        }
        case 'k':
            for (int k = 0; k < 3; k++)
                if (strcmp(optarg, dtypes[k]) == 0) {
                    s->dtype = (enum kn_kv_dtype)k;
                    ok = true;
                }
            break;
        case 'c':
            ok = parse_number(optarg, 1, 65536, &s->chunk);
            break;
        case 'p':
            ok = parse_list(optarg, 1, s->prefill, &s->n_prefill);
            break;
        case 'd':
            ok = parse_list(optarg, 0, s->decode, &s->n_decode);
            break;
        case 'n':
            ok = parse_number(optarg, 1, 65536, &s->tokens);
            break;
        case 'r':
            ok = parse_number(optarg, 1, 64, &s->rounds);
            break;
        case 'j':
            ok = s->json = true;
            break;
        default:
            break;
        }
        if (!ok)
            return "a flag or value is wrong";
    }
    if (optind < argc)
        return "too many arguments";
    return s->model ? NULL : "--model is missing";
}

int main(int argc, char **argv)
{
    struct settings s = {.threads = 2,
                         .isa = KN_ISA_AUTO,
                         .dtype = KN_KV_F16,
                         .chunk = 512,
                         .tokens = 32,
                         .rounds = 3,
                         .prefill = {512, 8192},
                         .n_prefill = 2,
                         .decode = {0, 4096, 8000},
                         .n_decode = 3};
    const char *wrong = parse(argc, argv, &s);
    if (wrong)
        return usage(wrong);

    char err[256];
    struct fmt_gguf *g = NULL;
    struct run r = {.s = &s, .first = true};
    int rc = 1;
    double start = wall_s();
    if (fmt_gguf_open(s.model, &g, err, sizeof err) != FMT_OK) {
        fprintf(stderr, "speed: %s: %s\n", s.model, err);
        return 1;
    }
    uint32_t longest = 1;
    for (size_t i = 0; i < s.n_prefill; i++)
        longest = s.prefill[i] > longest ? s.prefill[i] : longest;
    for (size_t i = 0; i < s.n_decode; i++)
        longest = s.decode[i] + s.tokens > longest ? s.decode[i] + s.tokens : longest;
    const struct eng_model_options o = {
        .isa = s.isa, .threads = s.threads, .kv_dtype = s.dtype, .context = longest};
    if (eng_model_open(g, &o, &r.m, err, sizeof err) != ENG_OK) {
        fprintf(stderr, "speed: %s: %s\n", s.model, err);
        goto out;
    }
    double load = wall_s() - start;
    struct kn_backend *b = eng_model_backend(r.m);
    count_work(&r, g);
    r.fma_per_s = ceiling_fma_per_s(b);
    r.int16_per_s = ceiling_int16_per_s(b);

    if (!take_memory(&r, longest)) {
        fprintf(stderr, "speed: out of memory\n");
        goto out;
    }
    uint32_t state = 1;
    for (uint32_t i = 0; i < longest; i++) {
        state = state * 1664525U + 1013904223U;
        r.ids[i] = (state >> 8) % eng_model_desc(r.m)->n_vocab;
    }

    if (s.json)
        printf("{\"features\": \"%s\", \"threads\": %u, \"load_s\": %.3f, \"fma_per_s\": %.4g, "
               "\"int16_per_s\": %.4g, "
               "\"tests\": [",
               kn_backend_features(b), s.threads, load, r.fma_per_s, r.int16_per_s);
    else
        printf("%s\n%s, %u threads, loaded in %.3f s; float FMA %.0f GFLOP/s, int16 %.0f GOP/s\n",
               eng_model_desc(r.m)->name, kn_backend_features(b), s.threads, load, r.fma_per_s / 1e9,
               r.int16_per_s / 1e9);
    int run = step(&r, 0, 1, 1); /* warm-up */
    for (size_t i = 0; i < s.n_prefill && run == ENG_OK; i++)
        run = bench_prefill(&r, s.prefill[i]);
    for (size_t i = 0; i < s.n_decode && run == ENG_OK; i++)
        run = bench_decode(&r, s.decode[i]);
    if (s.json)
        printf("]}\n");
    if (run != ENG_OK)
        fprintf(stderr, "speed: the forward failed with code %d\n", run);
    rc = run == ENG_OK ? 0 : 1;
out:
    eng_model_close(r.m);
    fmt_gguf_close(g);
    free(r.arena);
    free(r.pages);
    free(r.groups);
    free(r.state);
    free(r.saved);
    free(r.ids);
    return rc;
}
