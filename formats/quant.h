/*
 * Block-quantised number formats of GGUF tensors: sizes, a scalar dequantiser for each, and the split of a
 * row into integer codes with scales that the kernels pack (kernels/kernels.h knows no file format).
 *
 * Layouts: ggml's ggml-common.h. Pure functions, any thread.
 */
#ifndef ISOTHERM_FORMATS_QUANT_H
#define ISOTHERM_FORMATS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers are the file's own. */
enum fmt_type {
    FMT_F32 = 0,
    FMT_F16 = 1,
    FMT_Q4_0 = 2,
    FMT_Q4_1 = 3,
    FMT_Q5_0 = 6,
    FMT_Q5_1 = 7,
    FMT_Q8_0 = 8,
    FMT_Q4_K = 12,
    FMT_Q5_K = 13,
    FMT_Q6_K = 14,
    FMT_BF16 = 30,
};

struct fmt_type_info {
    const char *name;     /* "Q4_1" */
    uint32_t block_elems; /* elements a block: 1, 32 or 256 */
    uint32_t block_bytes;
    uint32_t group_elems; /* elements sharing one scale in fmt_row_codes: 32, 16 (Q6_K); 0 for floats */
    uint32_t code_bits;   /* 4: codes 0..15; 8: codes fit int8; 0 for floats */
    bool has_min;         /* false: fmt_row_codes gives minima of 0 */
    bool half_scales; /* scales and minima of fmt_row_codes are exact in f16 (|min| <= 65504 in sane files) */
};

/* NULL for a type this build does not read; fmt_type_name names known-but-unsupported ones as well and says
 * "unknown" for the rest, never NULL. */
const struct fmt_type_info *fmt_type_info(uint32_t type);
const char *fmt_type_name(uint32_t type);

/* Bytes of n elements (n a multiple of block_elems), 0 on overflow, bad n or unsupported type. */
uint64_t fmt_type_bytes(uint32_t type, uint64_t n);

/* dst[0..n) = the n elements at src, which may be unaligned; n a multiple of block_elems. 0, FMT_EUNSUPPORTED
 * or FMT_EFORMAT (n). */
int fmt_dequantize(uint32_t type, const void *src, size_t n, float *dst);

/* Integer form of a quantised row: element i = scale[i / g] * codes[i] + min[i / g], g = group_elems.
 * codes: n; scale, min: n / g each. The same values as fmt_dequantize up to one float rounding.
 * FMT_EUNSUPPORTED for the float types and those we do not read, FMT_EFORMAT for n. */
int fmt_row_codes(uint32_t type, const void *src, size_t n, int8_t *codes, float *scale, float *min);

/* IEEE half and bfloat16, exact in both directions (round to nearest even, saturation is the caller's). */
float fmt_f16_to_f32(uint16_t h);
uint16_t fmt_f32_to_f16(float f);
float fmt_bf16_to_f32(uint16_t h);

#endif
