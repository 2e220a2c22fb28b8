/* Words of the pre-tokenizers, classes of code points, and the streaming detokenizer. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/tokenizer/pretok.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Words are given with | between them. */
static void expect_words(enum pretok_kind kind, const char *words)
{
    char text[256], got[256];
    size_t len = 0, n = 0;
    for (const char *p = words; *p != '\0'; p++)
        if (*p != '|')
            text[len++] = *p;
    struct pretok p;
    pretok_init(&p, kind, text, len);
    for (;;) {
        size_t start = p.pos, word = pretok_next(&p);
        if (word == 0)
            break;
        if (n > 0)
            got[n++] = '|';
        assert_true(word <= len - start && n + word < sizeof(got));
        memcpy(got + n, text + start, word);
        n += word;
    }
    got[n] = '\0';
    assert_int_equal(p.pos, len);
    assert_string_equal(got, words);
}

static void test_gpt2_words(void **state)
{
    (void)state;
    expect_words(PRETOK_GPT2, "");
    expect_words(PRETOK_GPT2, "Hello| world|'s| x|123| 45|!?");
    expect_words(PRETOK_GPT2, "we|'ve| WE|'|VE");
    expect_words(PRETOK_GPT2, "a|  | b|\n|\n|c|   ");
    expect_words(PRETOK_GPT2, "a|\t|b|\xC2\xA0|c| \xC3\xA9\xC5\xBF");
    expect_words(PRETOK_GPT2, "'ll|'ll|''|s");
}

static void test_smollm_words(void **state)
{
    (void)state;
    expect_words(PRETOK_SMOLLM, "x| |1|2|3|  |4");
    expect_words(PRETOK_SMOLLM, "a|\xD9\xA1|\xC2\xBD| b");
    expect_words(PRETOK_SMOLLM, "it|'s|0|'s");
}

static void test_llama3_words(void **state)
{
    (void)state;
    expect_words(PRETOK_LLAMA3, "Hello| world|'S|'\xC5\xBF|t");
    expect_words(PRETOK_LLAMA3, "123|456|7| |12");
    expect_words(PRETOK_LLAMA3, "a|!b|\n|b|\tc| |\td");
    expect_words(PRETOK_LLAMA3, "x| +=\r\n\n|y|  \n \n|  | z");
    expect_words(PRETOK_LLAMA3, "   | \xFF\xFE!|a|\xFFz");
}

static void test_qwen2_words(void **state)
{
    (void)state;
    expect_words(PRETOK_QWEN2, "abc|1|2|3| |4|.|5");
    expect_words(PRETOK_QWEN2, "don|'T| \xE4\xBD\xA0\xE5\xA5\xBD|\xEF\xBC\x8C\xE4\xB8\x96|\xEF\xBC\x81");
}

static void test_qwen35_words_keep_marks_with_their_letters(void **state)
{
    (void)state;
    expect_words(PRETOK_QWEN35, "abc|1|2| |3|.x|'LL| don|'t|  | e\xCC\x81|\n");
    expect_words(PRETOK_QWEN35, " \xCC\x81|1|\xCC\x81\xCC\x81|2|!\xCC\x81|!!\n\n|\xCC\x81"
                                "e"); /* U+0301 */
    expect_words(PRETOK_QWEN2, " \xCC\x81|1|\xCC\x81\xCC\x81|2|!\xCC\x81!!\n\n|\xCC\x81"
                               "e");
    expect_words(PRETOK_QWEN35, "\xE0\xA4\xB9\xE0\xA4\xBF\xE0\xA4\xA8|7"); /* a vowel sign inside */
    expect_words(PRETOK_QWEN2, "\xE0\xA4\xB9|\xE0\xA4\xBF\xE0\xA4\xA8|7");
    expect_words(PRETOK_QWEN35, "\n|\xCC\x81|\r\n"); /* a line end goes in front of no word */
}

static void test_aliases_name_the_same_pattern(void **state)
{
    (void)state;
    assert_int_equal(pretok_find("starcoder", 9)->kind, PRETOK_SMOLLM);
    assert_int_equal(pretok_find("llama-v3", 8)->kind, PRETOK_LLAMA3);
    assert_true(pretok_find("llama-bpe", 9)->ignore_merges);
    assert_int_equal(pretok_find("deepseek-r1-qwen", 16)->kind, PRETOK_QWEN2);
    assert_int_equal(pretok_find("qwen35", 6)->kind, PRETOK_QWEN35);
    assert_null(pretok_find("qwen", 4));
    assert_null(pretok_find("qwen2x", 6));
    assert_null(pretok_find("", 0));
}

static void test_ascii_agrees_with_the_table(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x80; c++) {
        unsigned from_table = 0;
        for (size_t i = 0; i < unicode_n_ranges; i++)
            if (c >= unicode_ranges[i].first && c <= unicode_ranges[i].last)
                from_table = unicode_ranges[i].class;
        assert_int_equal(unicode_class(c), from_table);
    }
    for (size_t i = 1; i < unicode_n_ranges; i++)
        assert_true(unicode_ranges[i].first > unicode_ranges[i - 1].last);
}

/* Encodes a code point, a surrogate too. */
static size_t put_utf8(uint32_t c, char *out)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1) {
        out[0] = (char)c;
        return 1;
    }
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(0xF00 >> n | c);
    return n;
}

static void test_every_code_point_decodes_and_streams_byte_by_byte(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4], out[64];
        size_t len = put_utf8(c, text), n = 0;
        bool surrogate = c >= 0xD800 && c < 0xE000;
        uint32_t back;
        size_t used = unicode_decode((const uint8_t *)text, len, &back);
        if (used != (surrogate ? 1 : len) || back != (surrogate ? 0xFFFD : c))
            fail_msg("U+%04X decodes to U+%04X", c, back);
        struct eng_detok d = {0};
        for (size_t i = 0; i < len; i++) {
            n += eng_detok_push(&d, text + i, 1, out + n);
            if (!surrogate && n > 0 && i + 1 < len)
                fail_msg("U+%04X was shown before it was whole", c);
        }
        n += eng_detok_finish(&d, out + n);
        if (surrogate ? n != 9 || memcmp(out, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9) != 0
                      : n != len || memcmp(out, text, len) != 0)
            fail_msg("U+%04X does not come back", c);
    }
}

static bool is_utf8(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t n = unicode_decode((const uint8_t *)s + i, len - i, &c);
        if (n == 1 && (uint8_t)s[i] >= 0x80)
            return false;
        i += n;
    }
    return true;
}

static void test_detokenizer_output_is_utf8_and_independent_of_the_cuts(void **state)
{
    (void)state;
    static const uint8_t alphabet[] = {'a',  0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2,
                                       0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    enum { K = sizeof(alphabet), LEN = 4 };
    for (unsigned x = 0; x < K * K * K * K; x++) {
        char text[LEN], whole[3 * (LEN + 3) + 3], cut[3 * (LEN + 3) + 3];
        unsigned rest = x;
        for (size_t i = 0; i < LEN; i++, rest /= K)
            text[i] = (char)alphabet[rest % K];
        struct eng_detok d = {0};
        size_t n = eng_detok_push(&d, text, LEN, whole), n_cut = 0;
        bool pushed_utf8 = is_utf8(whole, n);
        n += eng_detok_finish(&d, whole + n);
        for (size_t i = 0; i < LEN; i++)
            n_cut += eng_detok_push(&d, text + i, 1, cut + n_cut);
        n_cut += eng_detok_finish(&d, cut + n_cut);
        if (!pushed_utf8 || !is_utf8(whole, n) || n != n_cut || memcmp(whole, cut, n) != 0)
            fail_msg("%02X %02X %02X %02X", text[0] & 0xFF, text[1] & 0xFF, text[2] & 0xFF, text[3] & 0xFF);
    }
}

static void test_maximal_parts_become_one_replacement_each(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *shown;
    } cases[] = {
        /* the first is the Unicode standard's own example, table 3-8 of section 3.9 */
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                                                                 "b\xEF\xBF\xBD"
                                                                 "c\xEF\xBF\xBD\xEF\xBF\xBD"
                                                                 "d"},
        {"\xE4\xBD", "\xEF\xBF\xBD"},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eng_detok d = {0};
        char out[64];
        size_t n = eng_detok_push(&d, cases[i].bytes, strlen(cases[i].bytes), out);
        n += eng_detok_finish(&d, out + n);
        assert_int_equal(n, strlen(cases[i].shown));
        assert_memory_equal(out, cases[i].shown, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_words),
        cmocka_unit_test(test_smollm_words),
        cmocka_unit_test(test_llama3_words),
        cmocka_unit_test(test_qwen2_words),
        cmocka_unit_test(test_qwen35_words_keep_marks_with_their_letters),
        cmocka_unit_test(test_aliases_name_the_same_pattern),
        cmocka_unit_test(test_ascii_agrees_with_the_table),
        cmocka_unit_test(test_every_code_point_decodes_and_streams_byte_by_byte),
        cmocka_unit_test(test_detokenizer_output_is_utf8_and_independent_of_the_cuts),
        cmocka_unit_test(test_maximal_parts_become_one_replacement_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
