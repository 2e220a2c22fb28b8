/*
 * Arithmetic and bulk work of a forward pass behind one backend header. The CPU backend has three code paths
 * (scalar reference, AVX2 + FMA + F16C, AVX-512 with VNNI where the processor has it) chosen at run time.
 *
 * Bit rules: every operation has ONE order of rounding, written down beside it, and all paths follow it. So
 * results depend neither on the path, nor on threads, batch, chunk edges or tile shape: tests compare with
 * memcmp. (The sign and payload of a NaN are the only bits left open.)
 * - matmul, quantised weights: activations become int16 per block of 32 (scale dx = max|x| * (1 / 32767),
 * codes x * (32767 / max|x|) to nearest even; a block with max|x| < 2^-100 is zero, one with a NaN or
 * infinity gives NaN); in a group the integer sum is exact; per output, groups ascend: acc = fma((float)isum,
 * dw * dx, acc), then, for weights with a minimum, acc = fma(min, dx * (float)xsum, acc). Lanes are output
 * rows, so no lane sum exists.
 * - matmul, float weights: 4 partial sums by k % 4, each fma ascending; (p0 + p1) + (p2 + p3).
 * - reductions along a row (norms, log-sum-exp): 16 lanes by i % 16, fma ascending, then halves added: 8, 4,
 *   2, 1.
 * - attention: q is multiplied by scale; scores by fma ascending over head_dim; positions in absolute groups
 * of KN_ATTN_GROUP; in a group m = max, p = exp(s - m), l = sum of p as a reduction along a row, o = p * V by
 * fma ascending over positions. Groups merge ascending: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L =
 * fma(l, b, L * a), O = fma(o, b, O * a); the result is O * (1 / L). Decode and prefill alike.
 *   With a window, positions outside it are absent: groups start at the first one seen, o and l at the first
 *   position seen.
 * - gates: x * sigmoid(g) is x / (1 + exp(-g)); silu(x) the same with g = x; gelu is x / (1 + exp(x * fma(x *
 *   x, B, A))), A = -2 sqrt(2 / pi), B = 0.044715 A. What is multiplied with one is multiplied after it.
 * - router: weights exp(x - max) / sum; the sum over all experts is a reduction along a row, that of the used
 *   ones adds ascending ids.
 * - delta rule: see there.
 * - exp, log, softplus, sin, cos, pow are our own (kernels/cpu/math.c); of libm only fma, which has one right
 * answer.
 *
 * Threads: a backend owns a pool of `threads` - 1 workers that spin briefly and then sleep. One thread at a
 * time may call operations on a backend. No operation allocates after warm-up growth of its scratch; those
 * that can fail for memory return KN_ENOMEM, the others cannot fail. Shapes are row-major and written (rows,
 * columns); leading dimensions count floats.
 */
#ifndef ISOTHERM_KERNELS_H
#define ISOTHERM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KN_OK = 0,
    KN_ENOMEM = -1,
    KN_EINVAL = -2,       /* a shape or argument the header forbids */
    KN_EUNSUPPORTED = -3, /* this processor lacks the asked path */
};
const char *kn_strerror(int code);

enum kn_isa { KN_ISA_AUTO, KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512 };

/* "auto", "scalar", "avx2", "avx512" <-> enum; -1 for another name. */
int kn_isa_from_name(const char *name);
const char *kn_isa_name(enum kn_isa isa);
bool kn_isa_available(enum kn_isa isa);

/* Version of the rounding rules above; part of the store's fingerprint. Raise it with any change of bits. */
#define KN_NUMERICS_VERSION 1

struct kn_backend;
/* threads counts the caller's own; 0: one for each processor this process may use. */
int kn_backend_open(enum kn_isa isa, unsigned threads, struct kn_backend **out);
void kn_backend_close(struct kn_backend *b);
enum kn_isa kn_backend_isa(const struct kn_backend *b);      /* the one chosen, never AUTO */
const char *kn_backend_features(const struct kn_backend *b); /* "avx512+vnni", for logs */
unsigned kn_backend_threads(const struct kn_backend *b);

/* ---- weights --------------------------------------------------------------------------------------- */

enum kn_weight {
    KN_W_F32, /* exact floats */
    KN_W_F16, /* 16-bit storage, converted exactly when used */
    KN_W_BF16,
    KN_W_Q4, /* codes 0..15, groups of 32, scale and min a group */
    KN_W_Q8, /* codes -128..127, groups of 32 or 16, scale and min a group */
};

/* A (rows, cols) weight matrix packed for this backend: 16 rows side by side. cols is a multiple of 32 for
 * quantised kinds; rows are padded inside. Any path can read what any path packed. */
struct kn_matrix;

struct kn_matrix_spec {
    enum kn_weight kind;
    uint32_t rows, cols;
    uint32_t group;   /* 32 or 16; quantised kinds only */
    bool has_min;     /* false: all minima are 0 and none are kept */
    bool half_scales; /* scales and minima are exact in f16 and are kept so (less to read in decode) */
};
int kn_matrix_new(struct kn_backend *b, const struct kn_matrix_spec *spec, struct kn_matrix **out);
void kn_matrix_free(struct kn_matrix *m);
/* Fill row r. codes: cols; scale, min: cols / group (min NULL when has_min is false). f32: cols floats; for
 * KN_W_F16 / BF16 the 16-bit values as they are. Rows may be filled from several threads, each row once; rows
 * never filled are 0. KN_EINVAL: the row, the kind, a Q4 code over 15, or a scale that half_scales cannot
 * hold exactly. */
int kn_matrix_set_codes(struct kn_matrix *m, uint32_t r, const int8_t *codes, const float *scale,
                        const float *min);
int kn_matrix_set_f32(struct kn_matrix *m, uint32_t r, const float *row);
int kn_matrix_set_16(struct kn_matrix *m, uint32_t r, const uint16_t *row);
uint32_t kn_matrix_rows(const struct kn_matrix *m);
uint32_t kn_matrix_cols(const struct kn_matrix *m);
uint64_t kn_matrix_bytes(const struct kn_matrix *m);

/* out (n, cols): row ids[i] of m as floats (quantised: fma(code, scale, min)). ids[i] < rows. The embedding
 * look-up. */
void kn_gather_rows(struct kn_backend *b, const struct kn_matrix *m, const uint32_t *ids, size_t n,
                    float *out);

/* y (n, sum of rows) = x (n, cols) times each part, transposed, side by side; all parts have the same cols.
 * bias (sum of rows) or NULL is added once, after the sum. accumulate: y += instead of y =. (y + (sum +
 * bias)) */
struct kn_matmul_args {
    const struct kn_matrix *const *parts;
    size_t n_parts;
    const float *bias;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
    size_t n;
    bool accumulate;
};
int kn_matmul(struct kn_backend *b, const struct kn_matmul_args *a);
/* A hint: the product after the coming one is with these parts (the array stays as it is until then). With
 * few rows, threads that wait in between ask memory for the beginning of them. */
void kn_matmul_announce(struct kn_backend *b, const struct kn_matrix *const *parts, size_t n_parts);

/* ---- rows ------------------------------------------------------------------------------------------ */

/* y row = x row * (1 / sqrt(mean(x^2) + eps)) * w, `heads` rows of dim side by side in each of n rows of x,
 * so that a head norm is one call (heads = 1 for the block norms). y may be x. w (dim). */
void kn_rmsnorm(struct kn_backend *b, const float *x, size_t ldx, const float *w, float eps, float *y,
                size_t ldy, size_t n, size_t heads, size_t dim);

/* Rotary embedding in place on `heads` heads of head_dim in each of n rows; row i is at absolute pos[i].
 * interleaved: pairs (2i, 2i+1); else halves (i, i + rot/2). rot <= head_dim dims rotate, the rest stay.
 * pos[i] < max_pos. Of a pair (a, b): a' = fma(a, cos, -(b * sin)), b' = fma(b, cos, a * sin). */
struct kn_rope_table;
int kn_rope_table_new(uint32_t max_pos, uint32_t rot_dims, float theta, struct kn_rope_table **out);
void kn_rope_table_free(struct kn_rope_table *t);
void kn_rope(struct kn_backend *b, const struct kn_rope_table *t, bool interleaved, float *x, size_t ldx,
             const uint32_t *pos, size_t n, size_t heads, size_t head_dim);

/* y (n, dim) = silu(g) * u where gu (n, 2 * dim) holds g then u. silu(g) = g / (1 + exp(-g)). */
void kn_silu_mul(struct kn_backend *b, const float *gu, size_t ldgu, float *y, size_t ldy, size_t n,
                 size_t dim);

/* y (n, dim) = gelu(g) * u, laid out as kn_silu_mul's; the tanh form: gelu(g) = g / (1 + exp(-2 c)), c =
 * sqrt(2 / pi) (g + 0.044715 g^3). */
void kn_gelu_mul(struct kn_backend *b, const float *gu, size_t ldgu, float *y, size_t ldy, size_t n,
                 size_t dim);

/* x (n, heads * dim) *= sigmoid(gate), one gate a value (gate (n, heads * dim)) or, with gate_per_head, one a
 * head (gate (n, heads)). */
void kn_sigmoid_mul(struct kn_backend *b, float *x, size_t ldx, const float *gate, size_t ldgate,
                    bool gate_per_head, size_t n, size_t heads, size_t dim);

/* y (n, heads * dim) = rmsnorm(x) * w * silu(z), head by head; the output norm of Gated DeltaNet. y may be x.
 * w (dim). */
void kn_rmsnorm_gated(struct kn_backend *b, const float *x, size_t ldx, const float *w, float eps,
                      const float *z, size_t ldz, float *y, size_t ldy, size_t n, size_t heads, size_t dim);

/* x (n, dim) *= factor; x (n, dim) += y. */
void kn_scale(struct kn_backend *b, float *x, size_t ldx, float factor, size_t n, size_t dim);
void kn_add(struct kn_backend *b, float *x, size_t ldx, const float *y, size_t ldy, size_t n, size_t dim);

/* ---- experts ----------------------------------------------------------------------------------------- */

/* Softmax over the logits (n, experts), the `used` likeliest of each row (the lowest id on a tie; NaN counts
 * as -inf) in ascending order of id, and their weights; renormalise: weights sum to 1. ids and weights are
 * (n, used); 1 <= used <= experts. */
void kn_route(struct kn_backend *b, const float *logits, size_t ld, size_t n, size_t experts, size_t used,
              bool renormalise, uint32_t *ids, float *weights);
/* y (n, dim): row i = row rows[i] of x. */
void kn_rows_take(struct kn_backend *b, const float *x, size_t ldx, const uint32_t *rows, size_t n,
                  size_t dim, float *y, size_t ldy);
/* Row rows[i] of y = fma(weights[i], row i of x, that row); rows are distinct. An expert after another, by
 * ascending id, each row of y has one order of sums. */
void kn_rows_add(struct kn_backend *b, const float *x, size_t ldx, const uint32_t *rows, const float *weights,
                 size_t n, size_t dim, float *y, size_t ldy);

/* max and log(sum(exp(x - max))) + max of n floats; index of the largest, lowest index on a tie. NaN counts
 * as -inf. */
void kn_logsumexp(struct kn_backend *b, const float *x, size_t n, float *max, float *lse);
size_t kn_argmax(struct kn_backend *b, const float *x, size_t n);

/* out = exp(x * scale - sub) elementwise; the sampler's. out may be x. */
void kn_exp(struct kn_backend *b, const float *x, size_t n, float scale, float sub, float *out);

/* ---- KV pages and attention ------------------------------------------------------------------------ */

enum kn_kv_dtype { KN_KV_F16, KN_KV_BF16, KN_KV_F32 };
size_t kn_kv_dtype_bytes(enum kn_kv_dtype t);

/* A page holds KN_PAGE_TOKENS tokens of all layers. In a layer: K as (kv_heads, head_dim, 16 tokens), then V
 * as (kv_heads, 16 tokens, head_dim). Tokens are lanes in K, dims are lanes in V, so neither product needs a
 * lane sum. */
#define KN_PAGE_TOKENS 16
#define KN_ATTN_GROUP  256

struct kn_kv_layout {
    enum kn_kv_dtype dtype;
    uint32_t layers, kv_heads, head_dim; /* head_dim a multiple of 16 up to 512 */
};
uint64_t kn_kv_layer_bytes(const struct kn_kv_layout *l);
uint64_t kn_kv_page_bytes(const struct kn_kv_layout *l);

/* One sequence of a batch: its rows in the batch's (n, …) arrays and where its KV lives. */
struct kn_attn_seq {
    void *const *pages; /* pages[i] holds positions 16 i .. 16 i + 15; must cover pos0 + n */
    uint32_t pos0;      /* absolute position of its first row */
    uint32_t n;         /* rows in this step */
    uint32_t row0;      /* its first row in the batch */
};

/* Round k and v rows (batch rows, kv_heads * head_dim) to the layout's dtype, f16 saturating at +-65504, and
 * put them in place. Attention reads what was put, in its own chunk as well. */
void kn_kv_put(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
               const struct kn_attn_seq *seqs, size_t n_seqs, const float *k, size_t ldk, const float *v,
               size_t ldv);

/* out (batch rows, q_heads * head_dim): causal attention of each row over positions 0 .. its own. q_heads is
 * a multiple of kv_heads; q head h reads kv head h / (q_heads / kv_heads). */
int kn_attention(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
                 const struct kn_attn_seq *seqs, size_t n_seqs, uint32_t q_heads, float scale, const float *q,
                 size_t ldq, float *out, size_t ldo);

/* The same over the last `window` positions only, the row's own included (0: all). Pages that lie wholly
 * before every row's window are not read and may be NULL. Positions of a group that are outside a row's
 * window count as absent; which pages exist changes no bit. */
int kn_attention_window(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
                        const struct kn_attn_seq *seqs, size_t n_seqs, uint32_t q_heads, uint32_t window,
                        float scale, const float *q, size_t ldq, float *out, size_t ldo);

/* ---- Gated DeltaNet ----------------------------------------------------------------------------------
 *
 * One layer's short convolution and delta rule, in the block form: inside an absolute block of KN_DELTA_BLOCK
 * positions with start state S (v_heads, dim of k, dim of v), rows keep k_j, d_j and the running sum G_j, and
 *   d_i = beta_i (v_i - e^G_i S^T k_i - sum_{j<i} e^(G_i - G_j) (k_j . k_i) d_j)
 *   o_i = e^G_i S^T q_i + sum_{j<=i} e^(G_i - G_j) (k_j . q_i) d_j
 * and at the block's end S <- e^G_63 S + sum_j e^(G_63 - G_j) k_j d_j^T. Row i depends on rows <= i of its
 * block and on S only, and every sum has one order, so chunk edges, batch and decode against prefill change
 * no bit.
 *
 * Order: the convolution rounds its first product, then fma by ascending tap; silu. l2 norm: x * (1 /
 * sqrt(sum of squares as a reduction along a row + eps) * scale), scale dim^-0.5 for q and 1 for k. G_i =
 * G_(i-1) + a * softplus(alpha + dt_bias), from the block's first row on. k.k, k.q, S^T k, S^T q: fma
 * ascending over the dim of k. d_i = beta * x: x = fma(-e^G_i, S^T k, v), then fma(-(e^(G_i - G_j) * k.k),
 * d_j, x), j ascending. o_i: e^G_i * S^T q, then fma(e^(G_i - G_j) * k.q, d_j, o), j ascending. S: e^G_63 *
 * S, then fma(k_j * e^(G_63 - G_j), d_j, S), j ascending.
 *
 * Live memory of a sequence and layer: the state at the start of the open block (S, then the `conv - 1` rows
 * of convolution input before it, in the taps' dtype), then what the open block has so far; with pos0 at a
 * block's edge only the state counts. The first kn_delta_state_bytes of it are what a checkpoint at the last
 * block edge holds. */
#define KN_DELTA_BLOCK 64

struct kn_delta_shape {
    uint32_t k_heads, v_heads; /* v_heads a multiple of k_heads */
    uint32_t dim;              /* of a k head and of a v head; a multiple of 16 up to 256 */
    uint32_t conv;             /* taps of the convolution, the current row included: 2 to 8 */
    bool tiled;                /* v head h is served by k head h % k_heads; else by h / (v_heads / k_heads) */
    enum kn_kv_dtype taps;     /* convolution input is rounded to it, live as well */
    float eps;                 /* of the l2 norms of q and k */
};
/* Columns of a row of convolution input: q (k_heads * dim), k (k_heads * dim), v (v_heads * dim). */
uint32_t kn_delta_columns(const struct kn_delta_shape *s);
uint64_t kn_delta_state_bytes(const struct kn_delta_shape *s);
uint64_t kn_delta_live_bytes(const struct kn_delta_shape *s); /* a multiple of 64 */

/* Bytes in equal blocks: byte i is blocks[i / stride][i % stride]. */
struct kn_blocks {
    void *const *blocks;
    uint64_t stride;
};

/* A state wanted inside a step: at `position` (a multiple of KN_DELTA_BLOCK, pos0 < position <= pos0 + n) the
 * layer's state bytes go to `to` at byte `offset`. */
struct kn_delta_capture {
    uint32_t position;
    uint64_t offset;
    struct kn_blocks to;
};

struct kn_delta_seq {
    void *live; /* kn_delta_live_bytes, 64-byte aligned; its first kn_delta_state_bytes are zero at position 0
                 */
    uint32_t pos0, n, row0;                  /* as kn_attn_seq */
    const struct kn_delta_capture *captures; /* ascending */
    uint32_t n_captures;
};

struct kn_delta_weights {
    const float *filter;  /* (conv, columns), oldest tap first: columns are lanes */
    const float *a;       /* (v_heads): -exp(A_log) */
    const float *dt_bias; /* (v_heads) */
};

/* Moves each sequence's live memory on by its n rows; two sequences never share one. qkv (batch rows,
 * columns): convolution input, before the convolution. beta, alpha (batch rows, v_heads):
 * projections, before sigmoid and softplus. out (batch rows, v_heads * dim): o, before the gated norm.
 * KN_EINVAL, KN_ENOMEM. */
int kn_delta(struct kn_backend *b, const struct kn_delta_shape *s, const struct kn_delta_weights *w,
             const struct kn_delta_seq *seqs, size_t n_seqs, const float *qkv, size_t ldqkv,
             const float *beta, size_t ldbeta, const float *alpha, size_t ldalpha, float *out, size_t ldo);

/* write: contiguous memory into blocks (scatter); read: out of blocks (gather). On the pool. */
void kn_blocks_write(struct kn_backend *b, const struct kn_blocks *to, uint64_t offset, const void *from,
                     uint64_t bytes);
void kn_blocks_read(struct kn_backend *b, const struct kn_blocks *from, uint64_t offset, void *to,
                    uint64_t bytes);

/* Copies n bytes, a multiple of 64, between places aligned to 64, with stores that leave the destination out
 * of the caches. On the calling thread; others see them once it has called the second. */
void kn_copy_away(void *to, const void *from, size_t n);
void kn_copy_away_end(void);

/* ---- scalar functions the tables are made with; the same bits everywhere --------------------------- */
double kn_pow(double base, double exponent); /* base > 0 */
void kn_sincos(double x, double *sin_out, double *cos_out);
float kn_expf(float x); /* what every path computes lane by lane */
float kn_logf(float x);
float kn_softplusf(float x); /* log(1 + e^x) */

/* Run fn(arg, i) for i in 0..n-1 on the pool, any order; returns when all are done (weights are packed with
 * it). */
void kn_parallel(struct kn_backend *b, size_t n, void (*fn)(void *arg, size_t i), void *arg);

#endif
