/*
 * What the parts of the CPU backend share: the handles behind kernels.h, packed formats, and the table of
 * functions that each code path (scalar, AVX2, AVX-512, AVX-512 with VNNI) implements.
 *
 * The functions of a table are compiled from the same sources (simd/path_*.c) once a path, over that path's
 * 16-lane vector (simd/vec_*.h). They run on a worker, touch only what their arguments name, and never
 * allocate.
 */
#ifndef ISOTHERM_KERNELS_CPU_INTERNAL_H
#define ISOTHERM_KERNELS_CPU_INTERNAL_H

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

/* ---- packed weights ---- */

#define KN_TILE  16 /* output rows side by side */
#define KN_BLOCK 32 /* activations that share a scale */

/*
 * Quantised: tiles ascend; in a tile groups ascend; a group is
 *   16 scales (f16 or f32), 16 minima (if kept), then codes:
 *   Q4: lines of 64 bytes for 8 columns; lane r (32 bits, little endian) belongs to row r; column 2p is
 * nibble p of the lane, column 2p + 1 nibble p + 4, so that (lane >> 4p) & 0x000F000F is a pair of int16. Q8:
 * lines of 32 bytes for 2 columns; lane r (16 bits) holds the pair of row r. Floats: tiles ascend; in a tile
 * columns ascend; a column is 16 values.
 */
struct kn_matrix {
    struct kn_matrix_spec spec;
    uint32_t tiles, groups; /* groups: in a row; 0 for floats */
    uint32_t scales_bytes;  /* of 16 scales */
    uint32_t codes_offset;  /* of the codes in a group */
    uint32_t group_bytes;   /* of a group of 16 rows */
    size_t tile_bytes;
    size_t data_bytes;
    struct kn_slab *slab; /* that data lies in; NULL: its own allocation */
    uint8_t *data;
};

/* ---- what a matrix product works on ---- */

/* Quantised rows of x in panels of `height` rows (padded with zeros): block by block of 32 columns, `height`
 * times 32 int16; dx: scale, (cols / 32, height); dxsum: dx times the integer sum of a group, (groups,
 * height). */
struct kn_panel {
    const int16_t *x;
    const float *dx, *dxsum;
    unsigned height; /* as stored */
    unsigned rows;   /* that count */
};

/* Where a product goes: rows of y from the panel's first row on, at the column of the part's first row. */
struct kn_out {
    float *y;
    size_t ldy;
    const float *bias; /* at the part's first row, or NULL */
    bool accumulate;
};

#define KN_UNPACK_BLOCKS 12 /* blocks of 32 columns unpacked at a time: 2 tiles of them take half an L1 */
#define KN_UNPACK_TILES  2
#define KN_ROWS_AT_ONCE  128 /* rows of x a task multiplies with an unpacked tile */
#define KN_UNPACK_BYTES                                                                                      \
    (KN_UNPACK_TILES * KN_UNPACK_BLOCKS *                                                                    \
     (KN_BLOCK * KN_TILE * sizeof(int16_t) + 4 * KN_TILE * sizeof(float)))
#define KN_SUMS_BYTES ((size_t)(KN_ROWS_AT_ONCE + 16) * KN_UNPACK_TILES * KN_TILE * sizeof(float))

/* ---- attention ---- */

#define KN_HEAD_DIM_MAX 512
#define KN_QUERIES_MAX  96                     /* query vectors of one unit */
#define KN_QUERY_STRIDE (KN_HEAD_DIM_MAX + 16) /* floats; odd number of cache lines */
#define KN_SCORE_STRIDE (KN_ATTN_GROUP + 16)
#define KN_QUERY_TILE   24 /* the most that any path takes at once */

/* `queries` query vectors of one kv head against one group of positions. Vector i sees positions from[i] to
 * to[i] - 1 of it (at least one); both ascend with i. Gives for each the group's max, sum and weighted
 * values. Pages of positions that no vector sees are not touched. */
struct kn_attn_job {
    enum kn_kv_dtype dtype;
    uint32_t head_dim;
    const void *const *pages;  /* the group's, then those of the groups behind it */
    uint32_t n_pages;          /* in all: what may be asked for ahead of use */
    size_t k_offset, v_offset; /* of the head in a page, bytes */
    unsigned queries;
    const uint32_t *from, *to;
    const float *q;   /* scaled, stride KN_QUERY_STRIDE */
    float *scores;    /* scratch: KN_QUERY_TILE * KN_SCORE_STRIDE */
    float *max, *sum; /* (queries) */
    float *o;         /* (queries, head_dim) */
};

/* ---- Gated DeltaNet ---- */

#define KN_DELTA_DIM_MAX 256

/* Rows [row0, row0 + rows) of one block and k head; then of one v head that it serves. Blocks of 16 lanes lie
 * one after another ("lane-major"): keys (4, dim of k, 16 positions), d (dim of v / 16, 64, 16), state (dim
 * of v / 16, dim of k, 16). */
struct kn_delta_job {
    uint32_t dim, row0, rows;
    const float *q, *k; /* (rows, dim), normalised */
    float *keys;        /* of the whole block; live */
    float *kk, *qk;     /* (rows, 64): k_j . k_i and k_j . q_i */

    const float *v;    /* (rows, dim) */
    const float *beta; /* (rows) */
    const float *sums; /* (64): G; live */
    float *state, *d;  /* live */
    float *out;        /* rows of the result, at the head */
    size_t ldo;
    float *decay;               /* scratch (rows): e^G_i */
    float *k_weight, *q_weight; /* scratch (rows, 64): of d_j in d_i and in o_i */
    float *weighted_keys;       /* scratch, as keys */
};

/* What a path implements, one table a source file; products have one more variant, for VNNI. */
struct kn_matmul_path {
    unsigned panel_rows;                     /* rows of a full panel */
    unsigned small_rows;                     /* up to so many rows, codes are unpacked in registers */
    unsigned (*panel_height)(unsigned rows); /* the least height that holds rows <= panel_rows */

    /* rows <= height rows of x into one panel's three arrays; dxsum NULL: no weight has a minimum */
    void (*quantize)(const float *x, size_t ldx, unsigned rows, unsigned height, uint32_t cols,
                     uint32_t group, int16_t *xq, float *dx, float *dxsum);
    /* One panel of height <= small_rows against tiles [t0, t1). */
    void (*matmul_small)(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                         const struct kn_out *out);
    /* n_panels panels, full ones but the last, against tiles [t0, t1); unpacked, sums: scratch. */
    void (*matmul_large)(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                         unsigned n_panels, const struct kn_out *out, void *unpacked, float *sums);
    void (*matmul_float)(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const float *x, size_t ldx,
                         unsigned rows, const struct kn_out *out);
    /* one row as floats */
    void (*gather)(const struct kn_matrix *m, uint32_t row, float *out);
};

struct kn_attention_path {
    void (*attention)(const struct kn_attn_job *job);
    /* (max2, sum2, o2) of a later group into the running ones */
    void (*merge)(float *max, float *sum, float *o, float max2, float sum2, const float *o2, uint32_t dim);
    void (*scale)(const float *x, float factor, float *y, size_t n); /* y = x * factor */
    /* n floats (a multiple of 16) to a KV type, f16 saturating */
    void (*to_kv)(enum kn_kv_dtype dtype, const float *x, void *y, size_t n);
};

struct kn_rows_path {
    void (*rmsnorm)(const float *x, const float *w, float eps, float *y, size_t dim);
    /* one head; cos and sin: rot / 2 each */
    void (*rope)(bool interleaved, float *x, size_t rot, const float *cos, const float *sin);
    void (*silu_mul)(const float *g, const float *u, float *y, size_t n);
    /* max, and the sum of exp(x - max) */
    void (*logsumexp)(const float *x, size_t n, float *max, float *sum);
    size_t (*argmax)(const float *x, size_t n);
    void (*gelu_mul)(const float *g, const float *u, float *y, size_t n);
    void (*sigmoid_mul)(float *x, const float *gate, size_t n);
    void (*sigmoid_mul_one)(float *x, float gate, size_t n); /* one gate for all */
    void (*rmsnorm_gated)(const float *x, const float *w, float eps, const float *z, float *y, size_t dim);
    void (*scale)(float *x, float factor, size_t n);
    void (*add)(float *x, const float *y, size_t n);
    void (*add_scaled)(float *y, const float *x, float factor, size_t n); /* y = fma(factor, x, y) */
    void (*exp)(const float *x, size_t n, float scale, float sub, float *out);
};

struct kn_delta_path {
    /* window (conv - 1 + rows, columns): its first conv - 1 rows are given, x rounded to the taps' type
     * follows; y (rows, columns) = silu(convolution). columns is a multiple of 16. */
    void (*convolve)(enum kn_kv_dtype taps, const float *x, size_t ldx, uint32_t rows, uint32_t columns,
                     const float *filter, size_t ld_filter, uint32_t conv, float *window, float *y);
    /* n values of a KV type as floats, a multiple of 16 */
    void (*from_kv)(enum kn_kv_dtype dtype, const void *x, float *y, size_t n);
    /* x (rows, dim): each row * (1 / sqrt(sum of squares + eps) * scale) */
    void (*l2norm)(float *x, uint32_t rows, uint32_t dim, float eps, float scale);
    void (*products)(const struct kn_delta_job *j); /* rows of k into keys; kk, qk */
    void (*rows)(const struct kn_delta_job *j);     /* d and out of the rows */
    void (*close)(const struct kn_delta_job *j);    /* state over the whole block */
};

extern const struct kn_matmul_path kn_matmul_path_scalar;
extern const struct kn_attention_path kn_attention_path_scalar;
extern const struct kn_rows_path kn_rows_path_scalar;
extern const struct kn_delta_path kn_delta_path_scalar;
#if defined(__x86_64__)
extern const struct kn_matmul_path kn_matmul_path_avx2, kn_matmul_path_avx512, kn_matmul_path_avx512vnni;
extern const struct kn_attention_path kn_attention_path_avx2, kn_attention_path_avx512;
extern const struct kn_rows_path kn_rows_path_avx2, kn_rows_path_avx512;
extern const struct kn_delta_path kn_delta_path_avx2, kn_delta_path_avx512;
#endif

/* ---- backend ---- */

struct kn_scratch {
    void *data;
    size_t bytes;
    bool mapped;
};
/* At least `bytes`, 64-byte aligned, old contents lost. KN_OK, KN_ENOMEM. */
int kn_scratch_reserve(struct kn_scratch *s, size_t bytes);

struct kn_backend {
    enum kn_isa isa;
    unsigned threads;
    const char *features;
    const struct kn_matmul_path *matmul;
    const struct kn_attention_path *attn;
    const struct kn_rows_path *rows;
    const struct kn_delta_path *delta_path;
    struct kn_pool *pool;
    struct kn_slab *slab;      /* that weights are being carved from; NULL: none yet */
    struct kn_scratch workers; /* worker_stride bytes each: unpacked tiles and sums of a product */
    size_t worker_stride;
    struct kn_scratch activations; /* quantised x of the running product */
    struct kn_scratch attention;   /* attention's: work list, and per worker queries, scores, results */
    const struct kn_matrix *const *next_parts; /* announced */
    size_t n_next_parts;
    struct kn_scratch partials; /* (max, sum, o) of a group and query */
    struct kn_scratch delta;    /* per worker: a block's rows of one k head */
};

/* Zeroed, 64-byte aligned; large ones as a mapping that asks for huge pages. NULL: no memory. */
void *kn_memory_new(size_t bytes, bool *mapped);
void kn_memory_free(void *p, size_t bytes, bool mapped);

/* Zeroed, 64-byte aligned memory for weights, side by side in mappings that ask for huge pages. It lives
 * until its slab is released by everybody who carved from it, the backend included. NULL: no memory. */
struct kn_slab;
void *kn_slab_carve(struct kn_backend *b, size_t bytes, struct kn_slab **slab);
void kn_slab_release(struct kn_slab *s);

/* One thread's part of kn_blocks_write. */
void kn_blocks_scatter(const struct kn_blocks *to, uint64_t offset, const void *from, uint64_t bytes);

/* Rows shared out to the pool: row(args, path, r) for r in 0..n-1, several rows a task when they are short.
 */
void kn_for_rows(struct kn_backend *b, size_t n, size_t elements_a_row,
                 void (*row)(const void *args, const struct kn_rows_path *path, size_t row),
                 const void *args);

struct kn_rope_table {
    uint32_t max_pos, rot;
    float *data; /* (max_pos, rot): rot / 2 cosines, then rot / 2 sines */
};

#endif
