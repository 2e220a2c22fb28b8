/*
 * Speed of the CPU kernels on the shapes of the default model, per code path, beside what this machine could
 * do at best, measured in the same run.
 *
 *   bench-kernels [--threads N] [--isa NAME] [--seconds S] [--cpu-time]
 *
 * --cpu-time counts processor time instead: for --threads 1 on a machine that others use as well.
 *
 * decode: one token's products over all layers (every weight is read once, so GB/s is the measure), and one
 * token's attention at several depths. prefill: 512 rows, GOP/s is the measure; attention of a 512-token
 * chunk that ends at several depths. Ceilings: a read of a 256 MiB array by all threads; chains of fused
 * multiply-adds, and of int16 dot products, that fit in registers.
 */
#include "kernels/kernels.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { HIDDEN = 576, FFN = 1536, HEADS = 9, KV_HEADS = 3, DIM = 64, LAYERS = 30, VOCAB = 49152, ROWS = 512 };
enum { QKV = (HEADS + 2 * KV_HEADS) * DIM };

static double min_seconds = 0.5;
static clockid_t clock_id = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench-kernels: %s\n", what);
    exit(1);
}

static void must(int code)
{
    if (code != KN_OK)
        die(kn_strerror(code));
}

/* Best seconds of a call: the machine is shared, so the least is the one without guests. */
static double best_seconds(void (*fn)(void *arg), void *arg)
{
    double best = 1e30, start = now();
    fn(arg);
    do {
        double t = now();
        fn(arg);
        t = now() - t;
        best = t < best ? t : best;
    } while (now() - start < min_seconds);
    return best;
}

/* ---- ceilings ---- */

#define ARRAY_BYTES ((size_t)256 << 20)
#define CHAIN_TURNS 2000000

struct ceiling {
    struct kn_backend *b;
    const uint64_t *array;
    unsigned threads;
    enum kn_isa isa;
    uint64_t sink[64];
};

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint64_t *p, size_t words)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < words; i += 16) {
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(p + i)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(p + i + 4)));
        c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i *)(p + i + 8)));
        d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i *)(p + i + 12)));
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0);
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint64_t *p, size_t words)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < words; i += 32) {
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 8));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 16));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 24));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}

#define TEN_TIMES(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9)

__attribute__((target("avx2,fma"))) static uint64_t fma_avx2(void)
{
    __m256 s[10], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int i = 0; i < 10; i++)
        s[i] = _mm256_set1_ps((float)i);
    for (int t = 0; t < CHAIN_TURNS; t++) {
#define ONE(i) s[i] = _mm256_fmadd_ps(s[i], x, y);
        TEN_TIMES(ONE)
#undef ONE
    }
    for (int i = 1; i < 10; i++)
        s[0] = _mm256_add_ps(s[0], s[i]);
    return (uint64_t)_mm256_cvtss_f32(s[0]);
}

__attribute__((target("avx512f"))) static uint64_t fma_avx512(void)
{
    __m512 s[10], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    for (int i = 0; i < 10; i++)
        s[i] = _mm512_set1_ps((float)i);
    for (int t = 0; t < CHAIN_TURNS; t++) {
#define ONE(i) s[i] = _mm512_fmadd_ps(s[i], x, y);
        TEN_TIMES(ONE)
#undef ONE
    }
    for (int i = 1; i < 10; i++)
        s[0] = _mm512_add_ps(s[0], s[i]);
    return (uint64_t)_mm512_cvtss_f32(s[0]);
}

__attribute__((target("avx2"))) static uint64_t dot_avx2(void)
{
    __m256i s[10], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
    for (int i = 0; i < 10; i++)
        s[i] = _mm256_set1_epi32(i);
    for (int t = 0; t < CHAIN_TURNS; t++) {
/* the barrier keeps the product from being made once for all */
#define ONE(i)                                                                                               \
    __asm__ volatile("" : "+x"(x));                                                                          \
    s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(x, y));
        TEN_TIMES(ONE)
#undef ONE
    }
    for (int i = 1; i < 10; i++)
        s[0] = _mm256_add_epi32(s[0], s[i]);
    return (uint64_t)_mm256_extract_epi64(s[0], 0);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static uint64_t dot_avx512(void)
{
    __m512i s[10], x = _mm512_set1_epi16(3), y = _mm512_set1_epi16(5);
    for (int i = 0; i < 10; i++)
        s[i] = _mm512_set1_epi32(i);
    for (int t = 0; t < CHAIN_TURNS; t++) {
#define ONE(i) s[i] = _mm512_dpwssd_epi32(s[i], x, y);
        TEN_TIMES(ONE)
#undef ONE
    }
    for (int i = 1; i < 10; i++)
        s[0] = _mm512_add_epi32(s[0], s[i]);
    return (uint64_t)_mm512_reduce_add_epi32(s[0]);
}
#endif

static void read_item(void *arg, size_t i)
{
    struct ceiling *c = arg;
    size_t words = ARRAY_BYTES / sizeof(uint64_t) / 64;
    const uint64_t *p = c->array + i * words;
#if defined(__x86_64__)
    if (c->isa == KN_ISA_AVX512) {
        c->sink[i] = read_avx512(p, words);
        return;
    }
    if (c->isa == KN_ISA_AVX2) {
        c->sink[i] = read_avx2(p, words);
        return;
    }
#endif
    uint64_t sum = 0;
    for (size_t k = 0; k < words; k++)
        sum += p[k];
    c->sink[i] = sum;
}

static void read_all(void *arg)
{
    struct ceiling *c = arg;
    kn_parallel(c->b, 64, read_item, c);
}

static void fma_item(void *arg, size_t i)
{
    struct ceiling *c = arg;
#if defined(__x86_64__)
    c->sink[i % 64] = c->isa == KN_ISA_AVX512 ? fma_avx512() : fma_avx2();
#endif
    (void)c;
}

static void fma_all(void *arg)
{
    struct ceiling *c = arg;
    kn_parallel(c->b, c->threads, fma_item, c);
}

static void dot_item(void *arg, size_t i)
{
    struct ceiling *c = arg;
#if defined(__x86_64__)
    c->sink[i % 64] = c->isa == KN_ISA_AVX512 ? dot_avx512() : dot_avx2();
#endif
    (void)c;
}

static void dot_all(void *arg)
{
    struct ceiling *c = arg;
    kn_parallel(c->b, c->threads, dot_item, c);
}

static void nothing(void *arg, size_t i)
{
    (void)arg;
    (void)i;
}

static void join_1000(void *arg)
{
    struct kn_backend *b = arg;
    for (int i = 0; i < 1000; i++)
        kn_parallel(b, 2 * kn_backend_threads(b), nothing, NULL);
}

static const uint64_t *big_array(void)
{
    static uint64_t *array;
    if (array)
        return array;
    array = mmap(NULL, ARRAY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (array == MAP_FAILED)
        die("no memory");
    (void)madvise(array, ARRAY_BYTES, MADV_HUGEPAGE);
    memset(array, 1, ARRAY_BYTES);
    return array;
}

struct best {
    double gb_s, gflop_s, gop_s;
};

static struct best measure_ceilings(struct kn_backend *b)
{
    struct ceiling c = {
        .b = b, .array = big_array(), .threads = kn_backend_threads(b), .isa = kn_backend_isa(b)};
    struct best best = {.gb_s = (double)ARRAY_BYTES / best_seconds(read_all, &c) * 1e-9};
    if (c.isa != KN_ISA_SCALAR) {
        double lanes = c.isa == KN_ISA_AVX512 ? 16 : 8;
        double work = (double)CHAIN_TURNS * 10 * lanes * 2 * c.threads * 1e-9;
        best.gflop_s = work / best_seconds(fma_all, &c);
        if (c.isa != KN_ISA_AVX512 || strstr(kn_backend_features(b), "vnni"))
            best.gop_s = 2 * work / best_seconds(dot_all, &c);
    }
    double join = best_seconds(join_1000, b) / 1000;
    printf("  ceilings: read %.1f GB/s, f32 fma %.0f GFLOP/s, int16 dot %.0f GOP/s; fork-join %.2f us\n",
           best.gb_s, best.gflop_s, best.gop_s, join * 1e6);
    return best;
}

/* ---- products ---- */

struct layer {
    struct kn_matrix *q, *k, *v, *o, *gate, *up, *down;
};

struct model {
    struct kn_backend *b;
    struct layer layers[LAYERS];
    struct kn_matrix *head;
    uint64_t bytes;
    size_t rows; /* of x in the product being timed */
    size_t n_layers;
    bool with_head;
    float *x, *y;
};

static struct kn_matrix *make_matrix(struct model *m, enum kn_weight kind, uint32_t rows, uint32_t cols)
{
    struct kn_matrix_spec s = {kind, rows, cols, 32, kind == KN_W_Q4, true};
    struct kn_matrix *w;
    must(kn_matrix_new(m->b, &s, &w));
    int8_t *codes = malloc(cols);
    float *scale = calloc(cols / 32, sizeof *scale), *min = calloc(cols / 32, sizeof *min);
    for (uint32_t i = 0; i < cols; i++)
        codes[i] = (int8_t)(i * 7 % 16);
    for (uint32_t i = 0; i < cols / 32; i++) {
        scale[i] = 0.015625f;
        min[i] = -0.125f;
    }
    for (uint32_t r = 0; r < rows; r++)
        must(kn_matrix_set_codes(w, r, codes, scale, s.has_min ? min : NULL));
    free(codes);
    free(scale);
    free(min);
    m->bytes += kn_matrix_bytes(w);
    return w;
}

static void product(struct model *m, const struct kn_matrix *const *parts, size_t n_parts, size_t cols,
                    size_t rows_out)
{
    struct kn_matmul_args a = {
        .parts = parts, .n_parts = n_parts, .x = m->x, .ldx = cols, .y = m->y, .ldy = rows_out, .n = m->rows};
    must(kn_matmul(m->b, &a));
}

static void products(void *arg)
{
    struct model *m = arg;
    for (size_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        product(m, (const struct kn_matrix *const[]){l->q, l->k, l->v}, 3, HIDDEN, QKV);
        product(m, (const struct kn_matrix *const[]){l->o}, 1, HIDDEN, HIDDEN);
        product(m, (const struct kn_matrix *const[]){l->gate, l->up}, 2, HIDDEN, 2 * FFN);
        product(m, (const struct kn_matrix *const[]){l->down}, 1, FFN, HIDDEN);
    }
    if (m->with_head)
        product(m, (const struct kn_matrix *const[]){m->head}, 1, HIDDEN, VOCAB);
}

static void make_model(struct model *m)
{
    for (size_t i = 0; i < LAYERS; i++) {
        struct layer *l = &m->layers[i];
        l->q = make_matrix(m, KN_W_Q4, HEADS * DIM, HIDDEN);
        l->k = make_matrix(m, KN_W_Q4, KV_HEADS * DIM, HIDDEN);
        l->v = make_matrix(m, KN_W_Q4, KV_HEADS * DIM, HIDDEN);
        l->o = make_matrix(m, KN_W_Q4, HIDDEN, HIDDEN);
        l->gate = make_matrix(m, KN_W_Q4, FFN, HIDDEN);
        l->up = make_matrix(m, KN_W_Q4, FFN, HIDDEN);
        l->down = make_matrix(m, KN_W_Q4, HIDDEN, FFN);
    }
    m->head = make_matrix(m, KN_W_Q8, VOCAB, HIDDEN);
    m->x = calloc((size_t)ROWS * FFN, sizeof(float));
    m->y = calloc((size_t)ROWS * 2 * FFN > VOCAB ? (size_t)ROWS * 2 * FFN : VOCAB, sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * FFN; i++)
        m->x[i] = (float)(i % 97) * 0.01f - 0.5f;
}

static void free_model(struct model *m)
{
    for (size_t i = 0; i < LAYERS; i++) {
        struct layer *l = &m->layers[i];
        struct kn_matrix *all[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (size_t k = 0; k < 7; k++)
            kn_matrix_free(all[k]);
    }
    kn_matrix_free(m->head);
    free(m->x);
    free(m->y);
}

static double decode_products(struct model *m, const struct best *best)
{
    m->rows = 1;
    m->n_layers = LAYERS;
    m->with_head = true;
    double t = best_seconds(products, m), gb_s = (double)m->bytes / t * 1e-9;
    printf("  decode products    %7.2f ms a token  %6.1f GB/s  %3.0f %% of read\n", t * 1e3, gb_s,
           100 * gb_s / best->gb_s);
    return t;
}

static double prefill_products(struct model *m, const struct best *best)
{
    m->rows = ROWS;
    m->n_layers = LAYERS;
    m->with_head = false;
    double macs = (double)LAYERS * HIDDEN * (QKV + HIDDEN + 3 * FFN) * ROWS;
    double t = best_seconds(products, m), gop_s = 2 * macs / t * 1e-9;
    printf("  prefill products   %7.1f us a token  %6.0f GOP/s %3.0f %% of int16 dot\n", t / ROWS * 1e6,
           gop_s, best->gop_s > 0 ? 100 * gop_s / best->gop_s : 0.0);
    return t / ROWS;
}

/* ---- attention ---- */

#define DEPTH_MAX 8192

struct attention {
    struct kn_backend *b;
    struct kn_kv_layout layout;
    struct kn_attn_seq seq;
    float *q, *out;
};

static void attend(void *arg)
{
    struct attention *a = arg;
    for (uint32_t layer = 0; layer < a->layout.layers; layer++)
        must(kn_attention(a->b, &a->layout, layer, &a->seq, 1, HEADS, 0.125f, a->q, HEADS * DIM, a->out,
                          HEADS * DIM));
}

static void make_attention(struct attention *a, void **pages, void *memory)
{
    a->layout = (struct kn_kv_layout){KN_KV_F16, LAYERS, KV_HEADS, DIM};
    size_t page_bytes = kn_kv_page_bytes(&a->layout);
    for (size_t i = 0; i < DEPTH_MAX / KN_PAGE_TOKENS; i++)
        pages[i] = (char *)memory + i * page_bytes;
    a->q = calloc((size_t)ROWS * HEADS * DIM, sizeof(float));
    a->out = calloc((size_t)ROWS * HEADS * DIM, sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * HEADS * DIM; i++)
        a->q[i] = (float)(i % 89) * 0.02f - 0.9f;
    a->seq.pages = pages;
}

static double attention_at(struct attention *a, uint32_t depth, uint32_t n, const struct best *best)
{
    a->seq.pos0 = depth - n;
    a->seq.n = n;
    double t = best_seconds(attend, a);
    double pairs = 0;
    for (uint32_t i = 0; i < n; i++)
        pairs += depth - n + i + 1;
    double flop = 4 * pairs * HEADS * DIM * LAYERS;
    if (n == 1) {
        double gb_s = (double)depth * KV_HEADS * DIM * 4 * LAYERS / t * 1e-9;
        printf("  decode attention   %7.2f ms a token  %6.1f GB/s  %3.0f %% of read, depth %u\n", t * 1e3,
               gb_s, 100 * gb_s / best->gb_s, depth);
    } else {
        printf("  prefill attention  %7.1f us a token  %6.0f GF/s  %3.0f %% of fma, depth %u\n", t / n * 1e6,
               flop / t * 1e-9, best->gflop_s > 0 ? 100 * flop / t * 1e-9 / best->gflop_s : 0.0, depth);
    }
    return t / n;
}

/* ---- rows ---- */

struct rows {
    struct kn_backend *b;
    struct kn_rope_table *table;
    struct kn_kv_layout layout;
    struct kn_attn_seq seq;
    uint32_t pos[ROWS];
    float *x, *y, *w;
    size_t n;
};

/* What a layer does besides products and attention. */
static void row_work(void *arg)
{
    struct rows *r = arg;
    for (uint32_t i = 0; i < LAYERS; i++) {
        kn_rmsnorm(r->b, r->x, HIDDEN, r->w, 1e-5f, r->y, HIDDEN, r->n, 1, HIDDEN);
        kn_rope(r->b, r->table, true, r->y, QKV, r->pos, r->n, HEADS + KV_HEADS, DIM);
        kn_kv_put(r->b, &r->layout, i, &r->seq, 1, r->y + HEADS * DIM, QKV, r->y + (HEADS + KV_HEADS) * DIM,
                  QKV);
        kn_rmsnorm(r->b, r->x, HIDDEN, r->w, 1e-5f, r->y, HIDDEN, r->n, 1, HIDDEN);
        kn_silu_mul(r->b, r->x, 2 * FFN, r->y, FFN, r->n, FFN);
    }
}

static double rows_of(struct kn_backend *b, void **pages, size_t n)
{
    struct rows r = {
        .b = b, .layout = {KN_KV_F16, LAYERS, KV_HEADS, DIM}, .seq = {pages, 0, (uint32_t)n, 0}, .n = n};
    must(kn_rope_table_new(ROWS, DIM, 10000.0f, &r.table));
    r.x = calloc(n * 2 * FFN, sizeof(float));
    r.y = calloc(n * 2 * FFN, sizeof(float));
    r.w = calloc(HIDDEN, sizeof(float));
    for (size_t i = 0; i < n * 2 * FFN; i++)
        r.x[i] = (float)(i % 97) * 0.01f - 0.5f;
    for (uint32_t i = 0; i < n; i++)
        r.pos[i] = i;
    double t = best_seconds(row_work, &r) / (double)n;
    printf("  %s rows       %7.2f us a token\n", n == 1 ? "decode " : "prefill", t * 1e6);
    kn_rope_table_free(r.table);
    free(r.x);
    free(r.y);
    free(r.w);
    return t;
}

/* ---- one path ---- */

static void bench_path(enum kn_isa isa, unsigned threads, void **pages, void *memory)
{
    struct kn_backend *b;
    must(kn_backend_open(isa, threads, &b));
    printf("%s, %u threads\n", kn_backend_features(b), kn_backend_threads(b));
    struct best best = measure_ceilings(b);
    struct model m = {.b = b};
    make_model(&m);
    struct attention a = {.b = b};
    make_attention(&a, pages, memory);
    double decode = decode_products(&m, &best) + rows_of(b, pages, 1);
    double prefill = prefill_products(&m, &best) + rows_of(b, pages, ROWS);
    double at_4096 = attention_at(&a, 4096, 1, &best), at_8000 = attention_at(&a, 8000, 1, &best);
    double to_512 = attention_at(&a, 512, ROWS, &best), to_4096 = attention_at(&a, 4096, ROWS, &best),
           to_8192 = attention_at(&a, 8192, ROWS, &best);
    /* attention costs a token in proportion to its depth: the mean over 8192 tokens is near that at 4096 */
    printf("  sum: decode %.0f / %.0f / %.0f tokens/s at depth 0 / 4096 / 8000; prefill %.0f / %.0f at 512 / "
           "8192\n",
           1 / decode, 1 / (decode + at_4096), 1 / (decode + at_8000), 1 / (prefill + to_512),
           1 / (prefill + (to_512 + 6 * to_4096 + to_8192) / 8));
    free(a.q);
    free(a.out);
    free_model(&m);
    kn_backend_close(b);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"threads", 1, NULL, 't'},
                                            {"isa", 1, NULL, 'i'},
                                            {"seconds", 1, NULL, 's'},
                                            {"cpu-time", 0, NULL, 'c'},
                                            {0}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    unsigned threads = 0;
    int only = -1, c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 't')
            threads = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 's')
            min_seconds = strtod(optarg, NULL);
        else if (c == 'c')
            clock_id = CLOCK_PROCESS_CPUTIME_ID;
        else if (c == 'i' && (only = kn_isa_from_name(optarg)) >= 0)
            continue;
        else
            die("usage: bench-kernels [--threads N] [--isa NAME] [--seconds S] [--cpu-time]");
    }
    if (clock_id == CLOCK_PROCESS_CPUTIME_ID && threads != 1)
        die("--cpu-time goes with --threads 1 only");
    struct kn_kv_layout l = {KN_KV_F16, LAYERS, KV_HEADS, DIM};
    size_t bytes = kn_kv_page_bytes(&l) * (DEPTH_MAX / KN_PAGE_TOKENS);
    void **pages = calloc(DEPTH_MAX / KN_PAGE_TOKENS, sizeof *pages);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!pages || memory == MAP_FAILED)
        die("no memory");
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    static const enum kn_isa isas[] = {KN_ISA_AVX512, KN_ISA_AVX2};
    for (size_t i = 0; i < 2; i++)
        if (kn_isa_available(isas[i]) && (only < 0 || only == (int)isas[i]))
            bench_path(isas[i], threads, pages, memory);
    if (only == KN_ISA_SCALAR || (!kn_isa_available(KN_ISA_AVX2) && only < 0))
        bench_path(KN_ISA_SCALAR, threads, pages, memory);
    munmap(memory, bytes);
    free(pages);
    return 0;
}
