/*
 * Matrix products of one path. Lanes are 16 output rows of a tile; activations are broadcast.
 *
 * Quantised weights, few rows of x (decode): codes are unpacked in registers, once for all rows, and a packed
 * tile is read exactly once. Many rows (prefill): codes of one or two tiles are unpacked to int16 in scratch
 * that stays in L1, then multiplied with panel after panel. Both give the same bits, because the integer sum
 * of a group is exact and everything after it is in the same order.
 *
 * Float weights: four partial sums by column % 4 and output, kept apart to the end.
 */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd/vec.h"
#include <string.h>

/* Register tiles: rows x tiles for unpacked codes, rows x integer sums for codes in registers, rows x partial
 * sums for floats. */
#if defined(KN_VEC_AVX512)
#define PANEL_ROWS    6
#define UNPACK_TILES  2
#define SMALL_ROWS    4
#define SMALL_SUMS(R) ((R) < 4 ? 4 : 2) /* a dot waits five cycles for the one before it */
#define IN_PLACE(R)   ((R) < 4)
#define SMALL_ROLLED  UNROLL
#define FLOAT_ROWS    6
#define FLOAT_PARTS   4
#elif defined(KN_VEC_AVX2)
#define PANEL_ROWS    4
#define UNPACK_TILES  1
#define SMALL_ROWS    2
#define SMALL_SUMS(R) 2
#define IN_PLACE(R)   ((R) == 1) /* three sums a row */
#define SMALL_ROLLED  ROLLED
#define FLOAT_ROWS    5
#define FLOAT_PARTS   1
#else
#define PANEL_ROWS    4
#define UNPACK_TILES  1
#define SMALL_ROWS    4
#define SMALL_SUMS(R) 2
#define IN_PLACE(R)   false
#define SMALL_ROLLED  ROLLED
#define FLOAT_ROWS    4
#define FLOAT_PARTS   4
#endif

/* acc + the pairs of w times the one at p */
INLINE vi vi_dot_pair(vi acc, vi w, const int16_t *p)
{
#if defined(KN_VEC_AVX512) && defined(__AVX512VNNI__)
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(const void *)p));
    return acc;
#else
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vi_dot(acc, w, vi_set1(pair));
#endif
}

INLINE vi broadcast_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vi_set1(pair);
}

INLINE void store_out(vf sum, const struct kn_out *out, size_t row, size_t column, unsigned columns)
{
    float *y = out->y + row * out->ldy + column;
    if (out->bias)
        sum = vf_add(sum, vf_load_n(out->bias + column, columns));
    if (out->accumulate)
        sum = vf_add(vf_load_n(y, columns), sum);
    if (columns == KN_TILE)
        vf_store(y, sum);
    else
        vf_store_n(y, sum, columns);
}

INLINE unsigned tile_columns(const struct kn_matrix *m, uint32_t tile)
{
    uint32_t left = m->spec.rows - tile * KN_TILE;
    return left < KN_TILE ? left : KN_TILE;
}

/* ---- activations ---- */

/* Blocks whose largest |x| is below this become 0: the reciprocal of their scale would overflow. */
#define SMALLEST_SCALED 0x1p-100f

/* summed: the codes of each half are added up as well. */
INLINE void quantize_block(const float *x, int16_t *q, float *dx, bool summed, int32_t sums[2])
{
    vf a = vf_load(x), b = vf_load(x + 16);
    vi magnitude = vi_set1(0x7FFFFFFF);
    int32_t largest =
        vi_hmax(vi_max(vi_and(vi_bits(a), magnitude),
                       vi_and(vi_bits(b), magnitude))); /* as integers: a NaN is the largest of all */
    float amax;
    memcpy(&amax, &largest, sizeof amax);
    if (largest >= 0x7F800000 || amax < SMALLEST_SCALED) {
        memset(q, 0, KN_BLOCK * sizeof *q);
        *dx = largest >= 0x7F800000 ? __builtin_nanf("") : 0.0f;
        sums[0] = sums[1] = 0;
        return;
    }
    vf inverse = vf_set1(32767.0f / amax);
    vi low = vi_round(vf_mul(a, inverse)), high = vi_round(vf_mul(b, inverse));
    vi_store16(q, low, high);
    if (summed)
        vi_hsum_two(low, high, sums);
    *dx = amax * (1.0f / 32767.0f);
}

static void quantize(const float *x, size_t ldx, unsigned rows, unsigned height, uint32_t cols,
                     uint32_t group, int16_t *xq, float *dx, float *dxsum)
{
    uint32_t blocks = cols / KN_BLOCK, groups_a_block = KN_BLOCK / group;
    for (unsigned r = 0; r < height; r++) {
        for (uint32_t b = 0; b < blocks; b++) {
            int16_t *q = xq + ((size_t)b * height + r) * KN_BLOCK;
            float *d = dx + (size_t)b * height + r;
            int32_t halves[2] = {0, 0};
            if (r < rows) {
                quantize_block(x + r * ldx + (size_t)b * KN_BLOCK, q, d, dxsum != NULL, halves);
            } else {
                memset(q, 0, KN_BLOCK * sizeof *q);
                *d = 0.0f;
            }
            if (!dxsum)
                continue;
            float *sums = dxsum + (size_t)b * groups_a_block * height + r;
            if (groups_a_block == 1) {
                sums[0] = *d * (float)(halves[0] + halves[1]);
            } else {
                sums[0] = *d * (float)halves[0];
                sums[height] = *d * (float)halves[1];
            }
        }
    }
}

/* ---- codes unpacked in registers ---- */

/* Few rows are bound by how fast codes arrive, and the processor's own prefetch leaves two thirds of that
 * unused (docs/decisions.md): ask for what is needed this far ahead. Behind the matrix that is a hint for
 * nothing. */
#define PREFETCH_BYTES 4096

INLINE vf load_scales(bool half, const uint8_t *p)
{
    return half ? vf_from_f16((const uint16_t *)(const void *)p) : vf_load((const float *)(const void *)p);
}

/* The int16 pairs of columns [column, column + 8) of a group: four vectors. */
INLINE void unpack_q4(const uint8_t *codes, unsigned column, vi w[4])
{
    vi line = vi_load(codes + column * (KN_TILE / 2)), low = vi_set1(0x000F000F);
    w[0] = vi_and(line, low);
    w[1] = vi_and(vi_shr16(line, 4), low);
    w[2] = vi_and(vi_shr16(line, 8), low);
    w[3] = vi_shr16(line, 12);
}

INLINE void unpack_q8(const uint8_t *codes, unsigned column, vi w[4])
{
    UNROLL for (unsigned i = 0; i < 4; i++) w[i] =
        vi_from_i8((const int8_t *)codes + (column + 2 * i) * KN_TILE);
}

/* The same without moving them: w[1] is 16 times the pairs, w[2] 256 times. Of eight columns of a group each,
 * so a sum of products stays below 2^30, and what it is too large by divides it. */
INLINE void unpack_q4_in_place(const uint8_t *codes, unsigned column, vi w[4])
{
    vi line = vi_load(codes + column * (KN_TILE / 2));
    w[0] = vi_and(line, vi_set1(0x000F000F));
    w[1] = vi_and(line, vi_set1(0x00F000F0));
    w[2] = vi_and(line, vi_set1(0x0F000F00));
    w[3] = vi_shr16(line, 12);
}

/* How a group of 16 rows is laid out (internal.h); known when compiled for the usual ones. */
struct form {
    bool q4, half, has_min;
    unsigned group, scales_bytes, codes_offset, bytes;
};

INLINE struct form form_of(bool q4, unsigned group, bool half, bool has_min)
{
    struct form f = {.q4 = q4, .half = half, .has_min = has_min, .group = group};
    f.scales_bytes = KN_TILE * (half ? 2 : 4);
    f.codes_offset = f.scales_bytes * (has_min ? 2 : 1);
    f.bytes = f.codes_offset + group * KN_TILE / (q4 ? 2 : 1);
    return f;
}

INLINE void group_small(const struct form f, const uint8_t *p, unsigned R, const int16_t *x, const float *dx,
                        const float *dxsum, vf *sum)
{
    const bool in_place = f.q4 && IN_PLACE(R);
    const unsigned sums = in_place && SMALL_SUMS(R) < 3 ? 3 : SMALL_SUMS(R); /* w[3] goes with w[0] */
    vi isum[SMALL_ROWS][4];
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned i = 0; i < sums; i++) isum[r][i] =
        vi_set1(0);
    const uint8_t *codes = p + f.codes_offset;
    SMALL_ROLLED for (unsigned c = 0; c < f.group; c += 8)
    {
        vi w[4];
        if (in_place)
            unpack_q4_in_place(codes, c, w);
        else if (f.q4)
            unpack_q4(codes, c, w);
        else
            unpack_q8(codes, c, w);
        UNROLL for (unsigned i = 0; i < 4; i++) UNROLL for (unsigned r = 0; r < R; r++) isum[r][i % sums] =
            vi_dot_pair(isum[r][i % sums], w[i], x + r * KN_BLOCK + c + 2 * i);
    }
    vf scale = load_scales(f.half, p);
    vf min = f.has_min ? load_scales(f.half, p + f.scales_bytes) : vf_zero();
    UNROLL for (unsigned r = 0; r < R; r++)
    {
        vi all = isum[r][0];
        all = vi_add(all, in_place ? vi_sra(isum[r][1], 4) : isum[r][1]);
        if (sums > 2)
            all = vi_add(all, in_place ? vi_sra(isum[r][2], 8) : isum[r][2]);
        if (sums > 3)
            all = vi_add(all, isum[r][3]);
        sum[r] = vf_fma(vf_from_vi(all), vf_mul(scale, vf_set1(dx[r])), sum[r]);
        if (f.has_min)
            sum[r] = vf_fma(min, vf_set1(dxsum[r]), sum[r]);
    }
}

INLINE void tiles_small(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                        const struct kn_out *out, const struct form f, unsigned R)
{
    uint32_t blocks = m->spec.cols / KN_BLOCK;
    for (uint32_t t = t0; t < t1; t++) {
        const uint8_t *p = m->data + t * m->tile_bytes;
        const int16_t *xb = x->x;
        const float *dx = x->dx, *dxsum = x->dxsum;
        vf sum[SMALL_ROWS];
        UNROLL for (unsigned r = 0; r < R; r++) sum[r] = vf_zero();
        for (uint32_t b = 0; b < blocks; b++, xb += (R - 1) * KN_BLOCK, dx += R) {
            UNROLL for (unsigned s = 0; s < KN_BLOCK; s += f.group)
            {
                UNROLL for (unsigned line = 0; line < f.bytes; line += 64) prefetch(p, PREFETCH_BYTES + line);
                group_small(f, p, R, xb, dx, dxsum, sum);
                p += f.bytes;
                xb += f.group;
                dxsum += R;
            }
        }
        UNROLL for (unsigned r = 0; r < R; r++) if (r < x->rows)
            store_out(sum[r], out, r, (size_t)t * KN_TILE, tile_columns(m, t));
    }
}

/* A single row, as in decode, in a form of its own for each common type of a file: Q4_0, Q4_1, Q4_K; Q8_0 and
 * Q5_0; Q6_K. The rest reads the form as it goes. */
INLINE void tiles_small_kind(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                             const struct kn_out *out, unsigned R)
{
    const bool q4 = m->spec.kind == KN_W_Q4, half = m->spec.half_scales, has_min = m->spec.has_min;
    const unsigned group = m->spec.group;
    if (R == 1 && q4 && group == 32 && half && has_min)
        tiles_small(m, t0, t1, x, out, form_of(true, 32, true, true), R);
    else if (R == 1 && q4 && group == 32 && half)
        tiles_small(m, t0, t1, x, out, form_of(true, 32, true, false), R);
    else if (R == 1 && q4 && group == 32 && has_min)
        tiles_small(m, t0, t1, x, out, form_of(true, 32, false, true), R);
    else if (R == 1 && !q4 && group == 32 && half && !has_min)
        tiles_small(m, t0, t1, x, out, form_of(false, 32, true, false), R);
    else if (R == 1 && !q4 && group == 16 && !half && !has_min)
        tiles_small(m, t0, t1, x, out, form_of(false, 16, false, false), R);
    else if (q4 && group == 32)
        tiles_small(m, t0, t1, x, out, form_of(true, 32, half, has_min), R);
    else if (q4)
        tiles_small(m, t0, t1, x, out, form_of(true, 16, half, has_min), R);
    else if (group == 32)
        tiles_small(m, t0, t1, x, out, form_of(false, 32, half, has_min), R);
    else
        tiles_small(m, t0, t1, x, out, form_of(false, 16, half, has_min), R);
}

static void matmul_small(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                         const struct kn_out *out)
{
    switch (x->height) {
    case 1:
        tiles_small_kind(m, t0, t1, x, out, 1);
        break;
    case 2:
        tiles_small_kind(m, t0, t1, x, out, 2);
        break;
#if SMALL_ROWS > 2
    default:
        tiles_small_kind(m, t0, t1, x, out, 4);
        break;
#endif
    }
}

/* ---- codes unpacked to scratch ---- */

/* Of `blocks` blocks of UNPACK_TILES tiles: pairs (tile, blocks * 16, 16 lanes), then scales and minima
 * (tile, groups, 16). */
struct unpacked {
    int16_t *pairs;
    float *scale, *min;
};

INLINE struct unpacked unpacked_at(void *scratch)
{
    struct unpacked u;
    u.pairs = scratch;
    u.scale = (float *)(void *)(u.pairs + (size_t)KN_UNPACK_TILES * KN_UNPACK_BLOCKS * KN_BLOCK * KN_TILE);
    u.min = u.scale + (size_t)KN_UNPACK_TILES * KN_UNPACK_BLOCKS * 2 * KN_TILE;
    return u;
}

static void unpack_tile(const struct kn_matrix *m, uint32_t tile, uint32_t block, uint32_t blocks,
                        const struct unpacked *u, unsigned slot)
{
    unsigned group = m->spec.group, groups = blocks * (KN_BLOCK / group);
    const uint8_t *p = m->data + tile * m->tile_bytes + (size_t)block * (KN_BLOCK / group) * m->group_bytes;
    int16_t *pairs = u->pairs + (size_t)slot * KN_UNPACK_BLOCKS * KN_BLOCK * KN_TILE;
    size_t at = (size_t)slot * KN_UNPACK_BLOCKS * 2 * KN_TILE;
    for (unsigned g = 0; g < groups; g++, p += m->group_bytes, at += KN_TILE) {
        vf_store(u->scale + at, load_scales(m->spec.half_scales, p));
        if (m->spec.has_min)
            vf_store(u->min + at, load_scales(m->spec.half_scales, p + m->scales_bytes));
        for (unsigned c = 0; c < group; c += 8) {
            vi w[4];
            if (m->spec.kind == KN_W_Q4)
                unpack_q4(p + m->codes_offset, c, w);
            else
                unpack_q8(p + m->codes_offset, c, w);
            UNROLL for (unsigned i = 0; i < 4; i++, pairs += 2 * KN_TILE) vi_store(pairs, w[i]);
        }
    }
}

/* R rows x T tiles x `blocks` blocks; sums (rows, T * 16) are read and written. */
INLINE void panel_blocks(const struct unpacked *u, uint32_t blocks, unsigned group, bool has_min,
                         const int16_t *x, const float *dx, const float *dxsum, float *sums, bool first,
                         unsigned R, unsigned T)
{
    vf sum[PANEL_ROWS][UNPACK_TILES];
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned t = 0; t < T; t++) sum[r][t] =
        first ? vf_zero() : vf_load(sums + (r * T + t) * KN_TILE);
    const int16_t *w = u->pairs;
    const float *scale = u->scale, *min = u->min;
    const size_t pairs_stride = (size_t)KN_UNPACK_BLOCKS * KN_BLOCK * KN_TILE;
    const size_t scale_stride = (size_t)KN_UNPACK_BLOCKS * 2 * KN_TILE;
    for (uint32_t b = 0; b < blocks; b++, x += (R - 1) * KN_BLOCK, dx += R) {
        for (unsigned s = 0; s < KN_BLOCK; s += group) {
            vi isum[PANEL_ROWS][UNPACK_TILES];
            UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned t = 0; t < T; t++) isum[r][t] =
                vi_set1(0);
            ROLLED for (unsigned j = 0; j < group; j += 2, w += 2 * KN_TILE, x += 2)
            {
                vi wt[UNPACK_TILES];
                UNROLL for (unsigned t = 0; t < T; t++) wt[t] = vi_load(w + t * pairs_stride);
                UNROLL for (unsigned r = 0; r < R; r++)
                {
                    vi pair = broadcast_pair(x + r * KN_BLOCK);
                    UNROLL for (unsigned t = 0; t < T; t++) isum[r][t] = vi_dot(isum[r][t], wt[t], pair);
                }
            }
            UNROLL for (unsigned t = 0; t < T; t++)
            {
                vf d = vf_load(scale + t * scale_stride);
                UNROLL for (unsigned r = 0; r < R; r++) sum[r][t] =
                    vf_fma(vf_from_vi(isum[r][t]), vf_mul(d, vf_set1(dx[r])), sum[r][t]);
                if (has_min) {
                    vf low = vf_load(min + t * scale_stride);
                    UNROLL for (unsigned r = 0; r < R; r++) sum[r][t] =
                        vf_fma(low, vf_set1(dxsum[r]), sum[r][t]);
                }
            }
            scale += KN_TILE;
            min += KN_TILE;
            dxsum += R;
        }
    }
    UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned t = 0; t < T; t++)
        vf_store(sums + (r * T + t) * KN_TILE, sum[r][t]);
}

INLINE void panel_kind(const struct kn_matrix *m, const struct unpacked *u, uint32_t blocks, const int16_t *x,
                       const float *dx, const float *dxsum, float *sums, bool first, unsigned R, unsigned T)
{
    if (m->spec.group == 32 && m->spec.has_min)
        panel_blocks(u, blocks, 32, true, x, dx, dxsum, sums, first, R, T);
    else if (m->spec.group == 32)
        panel_blocks(u, blocks, 32, false, x, dx, dxsum, sums, first, R, T);
    else
        panel_blocks(u, blocks, 16, m->spec.has_min, x, dx, dxsum, sums, first, R, T);
}

INLINE void panel_rows(const struct kn_matrix *m, const struct unpacked *u, uint32_t blocks, const int16_t *x,
                       const float *dx, const float *dxsum, float *sums, bool first, unsigned height,
                       unsigned T)
{
    switch (height) {
    case 1:
        panel_kind(m, u, blocks, x, dx, dxsum, sums, first, 1, T);
        break;
    case 2:
        panel_kind(m, u, blocks, x, dx, dxsum, sums, first, 2, T);
        break;
#if PANEL_ROWS > 4
    case 4:
        panel_kind(m, u, blocks, x, dx, dxsum, sums, first, 4, T);
        break;
#endif
    default:
        panel_kind(m, u, blocks, x, dx, dxsum, sums, first, PANEL_ROWS, T);
        break;
    }
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* 1, 2, 4 or PANEL_ROWS: the heights that panel_rows is made for */
static unsigned panel_height(unsigned rows)
{
    return rows <= 2 ? rows : least((rows + 3) / 4 * 4, PANEL_ROWS);
}

static void matmul_large(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const struct kn_panel *x,
                         unsigned n_panels, const struct kn_out *out, void *scratch, float *sums)
{
    struct unpacked u = unpacked_at(scratch);
    uint32_t blocks = m->spec.cols / KN_BLOCK, groups_a_block = KN_BLOCK / m->spec.group;
    for (uint32_t t = t0; t < t1; t += UNPACK_TILES) {
        unsigned tiles = least(t1 - t, UNPACK_TILES);
        for (uint32_t b = 0; b < blocks; b += KN_UNPACK_BLOCKS) {
            uint32_t count = blocks - b < KN_UNPACK_BLOCKS ? blocks - b : KN_UNPACK_BLOCKS;
            for (unsigned i = 0; i < tiles; i++)
                unpack_tile(m, t + i, b, count, &u, i);
            float *at = sums;
            for (unsigned p = 0; p < n_panels; p++) {
                unsigned height = x[p].height;
                const int16_t *xq = x[p].x + (size_t)b * height * KN_BLOCK;
                const float *dx = x[p].dx + (size_t)b * height;
                const float *dxsum = x[p].dxsum + (size_t)b * groups_a_block * height;
#if UNPACK_TILES > 1
                if (tiles == 1)
                    panel_rows(m, &u, count, xq, dx, dxsum, at, b == 0, height, 1);
                else
#endif
                    panel_rows(m, &u, count, xq, dx, dxsum, at, b == 0, height, UNPACK_TILES);
                at += (size_t)height * tiles * KN_TILE;
            }
        }
        const float *at = sums;
        size_t row = 0;
        for (unsigned p = 0; p < n_panels; p++) {
            for (unsigned r = 0; r < x[p].rows; r++)
                for (unsigned i = 0; i < tiles; i++)
                    store_out(vf_load(at + (r * tiles + i) * KN_TILE), out, row + r,
                              (size_t)(t + i) * KN_TILE, tile_columns(m, t + i));
            at += (size_t)x[p].height * tiles * KN_TILE;
            row += x[p].rows;
        }
    }
}

/* ---- float weights ---- */

INLINE vf load_column(enum kn_weight kind, const uint8_t *tile, size_t column)
{
    const void *p = tile;
    if (kind == KN_W_F16)
        return vf_from_f16((const uint16_t *)p + column * KN_TILE);
    if (kind == KN_W_BF16)
        return vf_from_bf16((const uint16_t *)p + column * KN_TILE);
    return vf_load((const float *)p + column * KN_TILE);
}

/* R rows; P = 4: all partial sums in one pass over the tile, P = 1: one pass each. */
INLINE void tile_float(const struct kn_matrix *m, uint32_t t, const float *x, size_t ldx, size_t row,
                       const struct kn_out *out, enum kn_weight kind, unsigned R, unsigned P)
{
    const uint8_t *tile = m->data + t * m->tile_bytes;
    size_t cols = m->spec.cols;
    vf low[FLOAT_ROWS], high[FLOAT_ROWS];
    for (unsigned first = 0; first < 4; first += P) {
        vf part[FLOAT_ROWS][4];
        UNROLL for (unsigned r = 0; r < R; r++) UNROLL for (unsigned i = 0; i < P; i++) part[r][i] =
            vf_zero();
        size_t k = first;
        for (; k + P <= cols; k += 4) {
            UNROLL for (unsigned i = 0; i < P; i++)
            {
                vf w = load_column(kind, tile, k + i);
                UNROLL for (unsigned r = 0; r < R; r++) part[r][i] =
                    vf_fma(w, vf_set1(x[(row + r) * ldx + k + i]), part[r][i]);
            }
        }
        if (P > 1) { /* the last columns, fewer than four */
            UNROLL for (unsigned i = 0; i < P; i++) if (k + i < cols)
            {
                vf w = load_column(kind, tile, k + i);
                UNROLL for (unsigned r = 0; r < R; r++) part[r][i] =
                    vf_fma(w, vf_set1(x[(row + r) * ldx + k + i]), part[r][i]);
            }
        }
        UNROLL for (unsigned r = 0; r < R; r++)
        {
            if (P == 4) {
                low[r] = vf_add(part[r][0], part[r][1]);
                high[r] = vf_add(part[r][2], part[r][3]);
            } else if (first == 0) {
                low[r] = part[r][0];
            } else if (first == 1) {
                low[r] = vf_add(low[r], part[r][0]);
            } else if (first == 2) {
                high[r] = part[r][0];
            } else {
                high[r] = vf_add(high[r], part[r][0]);
            }
        }
    }
    UNROLL for (unsigned r = 0; r < R; r++)
        store_out(vf_add(low[r], high[r]), out, row + r, (size_t)t * KN_TILE, tile_columns(m, t));
}

INLINE void tiles_float(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const float *x, size_t ldx,
                        unsigned rows, const struct kn_out *out, enum kn_weight kind)
{
    for (uint32_t t = t0; t < t1; t++) {
        unsigned row = 0;
        for (; row + FLOAT_ROWS <= rows; row += FLOAT_ROWS)
            tile_float(m, t, x, ldx, row, out, kind, FLOAT_ROWS, FLOAT_PARTS);
        for (; row < rows; row++)
            tile_float(m, t, x, ldx, row, out, kind, 1, 4);
    }
}

static void matmul_float(const struct kn_matrix *m, uint32_t t0, uint32_t t1, const float *x, size_t ldx,
                         unsigned rows, const struct kn_out *out)
{
    if (m->spec.kind == KN_W_F16)
        tiles_float(m, t0, t1, x, ldx, rows, out, KN_W_F16);
    else if (m->spec.kind == KN_W_BF16)
        tiles_float(m, t0, t1, x, ldx, rows, out, KN_W_BF16);
    else
        tiles_float(m, t0, t1, x, ldx, rows, out, KN_W_F32);
}

/* ---- one row as floats ---- */

static void gather_quantised(const struct kn_matrix *m, uint32_t row, float *out)
{
    unsigned lane = row % KN_TILE, group = m->spec.group;
    const uint8_t *p = m->data + row / KN_TILE * m->tile_bytes;
    for (uint32_t g = 0; g < m->groups; g++, p += m->group_bytes) {
        float scale[KN_TILE], min[KN_TILE];
        int8_t codes[KN_BLOCK];
        vf_store(scale, load_scales(m->spec.half_scales, p));
        if (m->spec.has_min)
            vf_store(min, load_scales(m->spec.half_scales, p + m->scales_bytes));
        const uint8_t *c = p + m->codes_offset;
        if (m->spec.kind == KN_W_Q4) {
            for (unsigned k = 0; k < group; k += 8) {
                uint32_t bits;
                memcpy(&bits, c + k * (KN_TILE / 2) + lane * 4, sizeof bits);
                for (unsigned i = 0; i < 8; i++)
                    codes[k + i] = (int8_t)(bits >> (4 * (i / 2) + 16 * (i % 2)) & 15);
            }
        } else {
            for (unsigned k = 0; k < group; k += 2)
                memcpy(codes + k, c + k * KN_TILE + 2 * (size_t)lane, 2);
        }
        for (unsigned k = 0; k < group; k += 16) {
            vf code = vf_from_vi(vi_widen_i8(codes + k)), s = vf_set1(scale[lane]);
            vf_store(out + (size_t)g * group + k,
                     m->spec.has_min ? vf_fma(code, s, vf_set1(min[lane])) : vf_mul(code, s));
        }
    }
}

static void gather(const struct kn_matrix *m, uint32_t row, float *out)
{
    if (m->groups) {
        gather_quantised(m, row, out);
        return;
    }
    const uint8_t *tile = m->data + row / KN_TILE * m->tile_bytes;
    for (uint32_t k = 0; k < m->spec.cols; k++) {
        float column[KN_TILE];
        vf_store(column, load_column(m->spec.kind, tile, k));
        out[k] = column[row % KN_TILE];
    }
}

const struct kn_matmul_path KN_FN(kn_matmul_path) = {
    .panel_rows = PANEL_ROWS,
    .small_rows = SMALL_ROWS,
    .quantize = quantize,
    .panel_height = panel_height,
    .matmul_small = matmul_small,
    .matmul_large = matmul_large,
    .matmul_float = matmul_float,
    .gather = gather,
};
