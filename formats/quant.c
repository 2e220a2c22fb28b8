/*
 * Scalar decoding of the block formats of quant.h.
 *
 * One mechanism: every quantised type has an unpack function that splits one block into integer codes with a
 * scale and a minimum a group. fmt_row_codes hands them out; fmt_dequantize multiplies them back. In all
 * types but Q6_K the product scale * code is exact in a float (at most 11 + 6 + 5 significant bits), so the
 * result has the one rounding of the addition, like the reference's; in Q6_K the product has the one
 * rounding.
 *
 * All loads are bytewise: tensor data may lie at any address. Pure functions, any thread.
 */
#include "formats/quant.h"
#include "formats/gguf.h"

#include <string.h>

#define MAX_BLOCK_ELEMS  256
#define MAX_BLOCK_GROUPS 16

typedef void unpack_fn(const uint8_t *block, int8_t *codes, float *scale, float *min);

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float load_f16(const uint8_t *p)
{
    return fmt_f16_to_f32(load_u16(p));
}

static float float_from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float fmt_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 0x1f;
    uint32_t fraction = h & 0x3ff;

    if (exponent == 0x1f) { /* infinity, or a NaN made quiet as the hardware does */
        uint32_t quiet = fraction != 0 ? 0x400000 : 0;
        return float_from_bits(sign | 0x7f800000 | quiet | fraction << 13);
    }
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in a float */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t fmt_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000) /* rounds to 2^16 or beyond */
        return (uint16_t)(sign | 0x7c00);

    uint32_t shift, value;
    if (magnitude >= 0x38800000) { /* normal: rebias, then drop 13 bits */
        shift = 13;
        value = magnitude - (112U << 23);
    } else { /* subnormal: the significand as a multiple of 2^-24 */
        uint32_t exponent = magnitude >> 23;
        if (exponent < 102) /* below half of the smallest subnormal */
            return (uint16_t)sign;
        shift = 126 - exponent;
        value = (magnitude & 0x7fffff) | 0x800000;
    }
    uint32_t half = 1U << (shift - 1);
    uint32_t rest = value & ((1U << shift) - 1);
    uint32_t result = value >> shift;
    if (rest > half || (rest == half && (result & 1) != 0))
        result++; /* a carry into the exponent gives the next power of two, as it should */
    return (uint16_t)(sign | result);
}

float fmt_bf16_to_f32(uint16_t h)
{
    return float_from_bits((uint32_t)h << 16);
}

/* ---- blocks of 32 ------------------------------------------------------------------------------------- */

/* 32 nibbles: the low ones are elements 0..15, the high ones 16..31. */
static void unpack_nibbles_32(const uint8_t *qs, int8_t *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)(qs[i] & 15);
        codes[i + 16] = (int8_t)(qs[i] >> 4);
    }
}

/* The same with a fifth bit for element i in bit i of qh. */
static void unpack_five_bits_32(const uint8_t *qs, uint32_t qh, int8_t *codes)
{
    unpack_nibbles_32(qs, codes);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)(codes[i] | (int)((qh >> i) & 1) << 4);
}

/* d, 16 bytes of nibbles; (q - 8) * d. Codes stay 0..15 and the offset becomes the minimum, which is exact.
 */
static void unpack_q4_0(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    scale[0] = load_f16(block);
    min[0] = -8.0F * scale[0];
    unpack_nibbles_32(block + 2, codes);
}

static void unpack_q4_1(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    scale[0] = load_f16(block);
    min[0] = load_f16(block + 2);
    unpack_nibbles_32(block + 4, codes);
}

static void unpack_q5_0(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    scale[0] = load_f16(block);
    min[0] = 0;
    unpack_five_bits_32(block + 6, load_u32(block + 2), codes);
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t)(codes[i] - 16);
}

static void unpack_q5_1(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    scale[0] = load_f16(block);
    min[0] = load_f16(block + 2);
    unpack_five_bits_32(block + 8, load_u32(block + 4), codes);
}

static void unpack_q8_0(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    scale[0] = load_f16(block);
    min[0] = 0;
    memcpy(codes, block + 2, 32);
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------ */

/* Scale and minimum of sub-block j (0..7): six bits each, packed in 12 bytes. The first four pairs have a
 * byte each; the last four have their low nibbles in bytes 8..11 and their top two bits above the first ones.
 */
static void unpack_k_scale(const uint8_t *packed, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *min = (packed[j + 4] >> 4) | (packed[j] >> 6) << 4;
    }
}

/* Scales of Q4_K and Q5_K: d and dmin over eight sub-blocks. */
static void unpack_k_scales(const uint8_t *block, float *scale, float *min)
{
    float d = load_f16(block), dmin = load_f16(block + 2);
    for (int j = 0; j < 8; j++) {
        int s, m;
        unpack_k_scale(block + 4, j, &s, &m);
        scale[j] = d * (float)s;
        min[j] = -(dmin * (float)m);
    }
}

static void unpack_q4_k(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    const uint8_t *qs = block + 16;
    unpack_k_scales(block, scale, min);
    for (int pair = 0; pair < 4; pair++) { /* 32 bytes hold two sub-blocks: low nibbles, then high ones */
        for (int i = 0; i < 32; i++) {
            codes[64 * pair + i] = (int8_t)(qs[32 * pair + i] & 15);
            codes[64 * pair + 32 + i] = (int8_t)(qs[32 * pair + i] >> 4);
        }
    }
}

static void unpack_q5_k(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    const uint8_t *qh = block + 16, *qs = block + 48;
    unpack_k_scales(block, scale, min);
    for (int pair = 0; pair < 4; pair++) {
        for (int i = 0; i < 32; i++) {
            int low = (qh[i] >> (2 * pair)) & 1, high = (qh[i] >> (2 * pair + 1)) & 1;
            codes[64 * pair + i] = (int8_t)((qs[32 * pair + i] & 15) | low << 4);
            codes[64 * pair + 32 + i] = (int8_t)((qs[32 * pair + i] >> 4) | high << 4);
        }
    }
}

/* ql 128 (low nibbles), qh 64 (two more bits), 16 signed scales, d. Each half of 128 elements is four runs of
 * 32 that share their qh bytes. */
static void unpack_q6_k(const uint8_t *block, int8_t *codes, float *scale, float *min)
{
    float d = load_f16(block + 208);
    for (int j = 0; j < 16; j++) {
        scale[j] = d * (float)(int8_t)block[192 + j];
        min[j] = 0;
    }
    for (int half = 0; half < 2; half++) {
        const uint8_t *ql = block + 64 * half, *qh = block + 128 + 32 * half;
        int8_t *out = codes + 128 * half;
        for (int i = 0; i < 32; i++) {
            out[i] = (int8_t)(((ql[i] & 15) | (qh[i] & 3) << 4) - 32);
            out[i + 32] = (int8_t)(((ql[i + 32] & 15) | ((qh[i] >> 2) & 3) << 4) - 32);
            out[i + 64] = (int8_t)(((ql[i] >> 4) | ((qh[i] >> 4) & 3) << 4) - 32);
            out[i + 96] = (int8_t)(((ql[i + 32] >> 4) | (qh[i] >> 6) << 4) - 32);
        }
    }
}

/* ---- the table ---------------------------------------------------------------------------------------- */

struct quant_type {
    uint32_t type;
    struct fmt_type_info info;
    unpack_fn *unpack; /* NULL: floats */
};

static const struct quant_type quant_types[] = {
    {FMT_F32, {"F32", 1, 4, 0, 0, false, false}, NULL},
    {FMT_F16, {"F16", 1, 2, 0, 0, false, false}, NULL},
    {FMT_BF16, {"BF16", 1, 2, 0, 0, false, false}, NULL},
    {FMT_Q4_0, {"Q4_0", 32, 18, 32, 4, true, true}, unpack_q4_0},
    {FMT_Q4_1, {"Q4_1", 32, 20, 32, 4, true, true}, unpack_q4_1},
    {FMT_Q5_0, {"Q5_0", 32, 22, 32, 8, false, true}, unpack_q5_0},
    {FMT_Q5_1, {"Q5_1", 32, 24, 32, 8, true, true}, unpack_q5_1},
    {FMT_Q8_0, {"Q8_0", 32, 34, 32, 8, false, true}, unpack_q8_0},
    {FMT_Q4_K, {"Q4_K", 256, 144, 32, 4, true, false}, unpack_q4_k},
    {FMT_Q5_K, {"Q5_K", 256, 176, 32, 8, true, false}, unpack_q5_k},
    {FMT_Q6_K, {"Q6_K", 256, 210, 16, 8, false, false}, unpack_q6_k},
};

/* Types that exist in files but not here, so that a refusal can name them. */
static const struct {
    uint32_t type;
    const char *name;
} foreign_types[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"},
};

static const struct quant_type *find_type(uint32_t type)
{
    for (size_t i = 0; i < sizeof quant_types / sizeof quant_types[0]; i++) {
        if (quant_types[i].type == type)
            return &quant_types[i];
    }
    return NULL;
}

const struct fmt_type_info *fmt_type_info(uint32_t type)
{
    const struct quant_type *t = find_type(type);
    return t != NULL ? &t->info : NULL;
}

const char *fmt_type_name(uint32_t type)
{
    const struct quant_type *t = find_type(type);
    if (t != NULL)
        return t->info.name;
    for (size_t i = 0; i < sizeof foreign_types / sizeof foreign_types[0]; i++) {
        if (foreign_types[i].type == type)
            return foreign_types[i].name;
    }
    return "unknown";
}

uint64_t fmt_type_bytes(uint32_t type, uint64_t n)
{
    const struct quant_type *t = find_type(type);
    uint64_t bytes;
    if (t == NULL || n % t->info.block_elems != 0)
        return 0;
    if (__builtin_mul_overflow(n / t->info.block_elems, (uint64_t)t->info.block_bytes, &bytes))
        return 0;
    return bytes;
}

static void floats_from_f32(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_from_bits(load_u32(src + 4 * i));
}

static void floats_from_f16(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = load_f16(src + 2 * i);
}

static void floats_from_bf16(const uint8_t *src, size_t n, float *dst)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = fmt_bf16_to_f32(load_u16(src + 2 * i));
}

static void floats_from_blocks(const struct quant_type *t, const uint8_t *src, size_t n, float *dst)
{
    const struct fmt_type_info *info = &t->info;
    int8_t codes[MAX_BLOCK_ELEMS];
    float scale[MAX_BLOCK_GROUPS], min[MAX_BLOCK_GROUPS];

    for (size_t done = 0; done < n; done += info->block_elems, src += info->block_bytes) {
        t->unpack(src, codes, scale, min);
        for (uint32_t first = 0; first < info->block_elems; first += info->group_elems) {
            float group_scale = scale[first / info->group_elems], group_min = min[first / info->group_elems];
            for (uint32_t i = first; i < first + info->group_elems; i++) {
                float product = group_scale * (float)codes[i];
                dst[done + i] = info->has_min ? product + group_min : product;
            }
        }
    }
}

int fmt_dequantize(uint32_t type, const void *src, size_t n, float *dst)
{
    const struct quant_type *t = find_type(type);
    if (t == NULL)
        return FMT_EUNSUPPORTED;
    if (n % t->info.block_elems != 0)
        return FMT_EFORMAT;
    switch (type) {
    case FMT_F32:
        floats_from_f32(src, n, dst);
        break;
    case FMT_F16:
        floats_from_f16(src, n, dst);
        break;
    case FMT_BF16:
        floats_from_bf16(src, n, dst);
        break;
    default:
        floats_from_blocks(t, src, n, dst);
        break;
    }
    return FMT_OK;
}

int fmt_row_codes(uint32_t type, const void *src, size_t n, int8_t *codes, float *scale, float *min)
{
    const struct quant_type *t = find_type(type);
    if (t == NULL || t->unpack == NULL)
        return FMT_EUNSUPPORTED;
    const struct fmt_type_info *info = &t->info;
    if (n % info->block_elems != 0)
        return FMT_EFORMAT;

    const uint8_t *block = src;
    size_t groups = info->block_elems / info->group_elems;
    for (size_t b = 0; b < n / info->block_elems; b++)
        t->unpack(block + b * info->block_bytes, codes + b * info->block_elems, scale + b * groups,
                  min + b * groups);
    return FMT_OK;
}
