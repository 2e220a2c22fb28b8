/* Number formats: integer codes against the dequantiser, halves against arithmetic, sizes and refusals. */
#include "formats/gguf.h"
#include "formats/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 64

static const uint32_t all_types[] = {FMT_F32,  FMT_F16,  FMT_BF16, FMT_Q4_0, FMT_Q4_1, FMT_Q5_0,
                                     FMT_Q5_1, FMT_Q8_0, FMT_Q4_K, FMT_Q5_K, FMT_Q6_K};
#define N_TYPES (sizeof all_types / sizeof all_types[0])

static uint64_t random_state = 1;

/* xorshift64 (Marsaglia, 2003). */
static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Random blocks of a type whose scales are finite: the exponent's top bit of every f16 scale is cleared. */
static void random_blocks(uint32_t type, uint8_t *out, size_t n_blocks)
{
    const struct fmt_type_info *info = fmt_type_info(type);
    for (size_t b = 0; b < n_blocks; b++, out += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++)
            out[i] = (uint8_t)random_bits();
        size_t d = type == FMT_Q6_K ? 208 : 0;
        out[d + 1] &= 0xbf;
        if (type == FMT_Q4_1 || type == FMT_Q5_1 || type == FMT_Q4_K || type == FMT_Q5_K)
            out[3] &= 0xbf;
    }
}

static void codes_give_the_dequantised_values(void **state)
{
    (void)state;
    static uint8_t blocks[BLOCKS * 210];
    static int8_t codes[BLOCKS * 256];
    static float scale[BLOCKS * 16], min[BLOCKS * 16], values[BLOCKS * 256];

    for (size_t t = 0; t < N_TYPES; t++) {
        const struct fmt_type_info *info = fmt_type_info(all_types[t]);
        if (info->group_elems == 0)
            continue;
        size_t n = (size_t)BLOCKS * info->block_elems;
        int low = 127, high = -128;
        random_blocks(all_types[t], blocks, BLOCKS);
        assert_int_equal(fmt_dequantize(all_types[t], blocks, n, values), FMT_OK);
        assert_int_equal(fmt_row_codes(all_types[t], blocks, n, codes, scale, min), FMT_OK);
        for (size_t i = 0; i < n; i++) {
            size_t group = i / info->group_elems;
            double exact = (double)scale[group] * codes[i] + min[group];
            double magnitude = fabs((double)scale[group] * codes[i]) + fabs((double)min[group]);
            if (fabs(exact - values[i]) > magnitude * 0x1p-24)
                fail_msg("%s: element %zu is %.9g, its code says %.9g", info->name, i, values[i], exact);
            assert_true(info->has_min || min[group] == 0);
            low = codes[i] < low ? codes[i] : low;
            high = codes[i] > high ? codes[i] : high;
        }
        /* the whole range of the codes was seen, and nothing beyond what code_bits promises */
        assert_true(info->code_bits == 4 ? low == 0 && high == 15 : high - low >= 31);
    }
}

static void scales_are_halves_where_the_table_says_so(void **state)
{
    (void)state;
    static uint8_t blocks[BLOCKS * 210];
    static int8_t codes[BLOCKS * 256];
    static float scale[BLOCKS * 16], min[BLOCKS * 16];

    for (size_t t = 0; t < N_TYPES; t++) {
        const struct fmt_type_info *info = fmt_type_info(all_types[t]);
        if (info->group_elems == 0)
            continue;
        size_t n = (size_t)BLOCKS * info->block_elems;
        bool all_halves = true;
        random_blocks(all_types[t], blocks, BLOCKS);
        assert_int_equal(fmt_row_codes(all_types[t], blocks, n, codes, scale, min), FMT_OK);
        for (size_t g = 0; g < n / info->group_elems; g++)
            all_halves &= fmt_f16_to_f32(fmt_f32_to_f16(scale[g])) == scale[g] &&
                          fmt_f16_to_f32(fmt_f32_to_f16(min[g])) == min[g];
        assert_true(all_halves == info->half_scales);
    }
}

/* One block of each layout by hand: d = 0.5, minima 0.25 or scales 2. */
static void decodes_blocks_made_by_hand(void **state)
{
    (void)state;
    uint8_t block[210];
    float v[256];
    const uint8_t half[2] = {0x00, 0x38}, quarter[2] = {0x00, 0x34};

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    block[2] = 0xf1; /* element 0: 1, element 16: 15 */
    assert_int_equal(fmt_dequantize(FMT_Q4_0, block, 32, v), FMT_OK);
    assert_true(v[0] == -3.5F && v[16] == 3.5F && v[1] == -4.0F && v[31] == -4.0F);

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    memcpy(block + 2, quarter, 2);
    block[4 + 15] = 0xf1;
    assert_int_equal(fmt_dequantize(FMT_Q4_1, block, 32, v), FMT_OK);
    assert_true(v[15] == 0.75F && v[31] == 7.75F && v[0] == 0.25F);

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    block[2 + 2] = 0x02; /* bit 17: the fifth bit of element 17 */
    block[6 + 1] = 0x34;
    assert_int_equal(fmt_dequantize(FMT_Q5_0, block, 32, v), FMT_OK);
    assert_true(v[1] == -6.0F && v[17] == 1.5F && v[0] == -8.0F);

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    memcpy(block + 2, quarter, 2);
    block[4] = 0x01;
    block[8] = 0x3f;
    assert_int_equal(fmt_dequantize(FMT_Q5_1, block, 32, v), FMT_OK);
    assert_true(v[0] == 15.75F && v[16] == 1.75F && v[31] == 0.25F);

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    block[2 + 31] = 0x80;
    block[2] = 0x7f;
    assert_int_equal(fmt_dequantize(FMT_Q8_0, block, 32, v), FMT_OK);
    assert_true(v[31] == -64.0F && v[0] == 63.5F && v[1] == 0.0F);

    /* sub-block 5 (elements 160..191): scale 2 + 16 * 1 = 18, minimum 3 + 16 * 2 = 35 */
    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    memcpy(block + 2, quarter, 2);
    block[4 + 1] = 1 << 6;
    block[4 + 5] = 2 << 6;
    block[4 + 9] = 0x32;
    block[16 + 64 + 3] = 0x7a; /* element 128 + 3: 10, element 160 + 3: 7 */
    assert_int_equal(fmt_dequantize(FMT_Q4_K, block, 256, v), FMT_OK);
    assert_true(v[163] == 9.0F * 7 - 8.75F && v[160] == -8.75F && v[131] == 0.0F);

    memset(block, 0, sizeof block);
    memcpy(block, half, 2);
    block[4 + 0] = 4;     /* sub-block 0: scale 4 */
    block[4 + 1] = 2;     /* sub-block 1: scale 2 */
    block[16 + 6] = 0x02; /* element 32 + 6 has its fifth bit */
    block[48 + 6] = 0x59;
    assert_int_equal(fmt_dequantize(FMT_Q5_K, block, 256, v), FMT_OK);
    assert_true(v[6] == 2.0F * 9 && v[38] == 1.0F * 21 && v[0] == 0.0F);

    memset(block, 0, sizeof block);
    memcpy(block + 208, half, 2);
    block[192 + 15] = 0xfe; /* last group of 16 (elements 240..255): scale -2 */
    block[64 + 63] = 0x90;  /* element 255: low bits 9 */
    block[128 + 63] = 0xc0; /* and high bits 3: code 9 + 48 - 32 */
    assert_int_equal(fmt_dequantize(FMT_Q6_K, block, 256, v), FMT_OK);
    assert_true(v[255] == -25.0F && v[254] == 32.0F && v[0] == 0.0F);
}

/* The value of finite half h, from its definition. */
static double half_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, fraction = h & 1023;
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float value = fmt_f16_to_f32((uint16_t)h);
        assert_true((double)value == half_value((uint16_t)h));
        assert_int_equal(fmt_f32_to_f16(value), h);
        assert_int_equal(fmt_f32_to_f16(-value), h | 0x8000);
        /* between h and the next one: the middle goes to the even one, its neighbours to their own side */
        float next = h + 1 < 0x7c00 ? fmt_f16_to_f32((uint16_t)(h + 1)) : 65536.0F;
        float middle = (float)(((double)value + (double)next) / 2);
        assert_int_equal(fmt_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(fmt_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(fmt_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(fmt_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(fmt_f32_to_f16(-1e30F), 0xfc00);
    assert_int_equal(fmt_f32_to_f16(1e-30F), 0);
    assert_int_equal(fmt_f32_to_f16(-0.0F), 0x8000);
    assert_true(isinf(fmt_f16_to_f32(0xfc00)) && fmt_f16_to_f32(0xfc00) < 0);
    for (uint32_t h = 0x7c01; h < 0x8000; h++) {
        assert_true(isnan(fmt_f16_to_f32((uint16_t)h)));
        assert_int_equal(fmt_f32_to_f16(fmt_f16_to_f32((uint16_t)h)), h | 0x200);
    }
}

static void floats_come_back_as_they_are(void **state)
{
    (void)state;
    const float f32[2] = {1.5F, -3.25e-20F};
    const uint16_t bf16[3] = {0x3fc0, 0xc2f7, 0x0001}, f16[2] = {0x3e00, 0x8001};
    float out[3];

    assert_int_equal(fmt_dequantize(FMT_F32, f32, 2, out), FMT_OK);
    assert_memory_equal(out, f32, sizeof f32);
    assert_int_equal(fmt_dequantize(FMT_BF16, bf16, 3, out), FMT_OK);
    assert_true(out[0] == 1.5F && out[1] == -123.5F && out[2] == 0x1p-133F);
    assert_int_equal(fmt_dequantize(FMT_F16, f16, 2, out), FMT_OK);
    assert_true(out[0] == 1.5F && out[1] == -0x1p-24F);
}

static void knows_sizes_and_names(void **state)
{
    (void)state;
    assert_int_equal(fmt_type_bytes(FMT_Q4_1, 576), 576 / 32 * 20);
    assert_int_equal(fmt_type_bytes(FMT_Q6_K, 512), 420);
    assert_int_equal(fmt_type_bytes(FMT_F32, 3), 12);
    assert_int_equal(fmt_type_bytes(FMT_Q8_0, 33), 0);
    assert_int_equal(fmt_type_bytes(FMT_F32, UINT64_MAX / 2), 0);
    assert_int_equal(fmt_type_bytes(10, 256), 0);
    assert_null(fmt_type_info(10));
    assert_string_equal(fmt_type_name(10), "Q2_K");
    assert_string_equal(fmt_type_name(FMT_BF16), "BF16");
    assert_string_equal(fmt_type_name(4), "unknown");
    assert_string_equal(fmt_type_name(UINT32_MAX), "unknown");
}

static void refuses_bad_lengths_and_types(void **state)
{
    (void)state;
    uint8_t block[34] = {0};
    float out[32], scale[1], min[1];
    int8_t codes[32];
    assert_int_equal(fmt_dequantize(FMT_Q8_0, block, 31, out), FMT_EFORMAT);
    assert_int_equal(fmt_dequantize(FMT_Q4_K, block, 32, out), FMT_EFORMAT);
    assert_int_equal(fmt_dequantize(10, block, 32, out), FMT_EUNSUPPORTED);
    assert_int_equal(fmt_row_codes(FMT_F16, block, 2, codes, scale, min), FMT_EUNSUPPORTED);
    assert_int_equal(fmt_row_codes(99, block, 32, codes, scale, min), FMT_EUNSUPPORTED);
    assert_int_equal(fmt_row_codes(FMT_Q8_0, block, 16, codes, scale, min), FMT_EFORMAT);
    assert_int_equal(fmt_dequantize(FMT_Q8_0, block, 0, out), FMT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_give_the_dequantised_values),
        cmocka_unit_test(scales_are_halves_where_the_table_says_so),
        cmocka_unit_test(decodes_blocks_made_by_hand),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(floats_come_back_as_they_are),
        cmocka_unit_test(knows_sizes_and_names),
        cmocka_unit_test(refuses_bad_lengths_and_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
