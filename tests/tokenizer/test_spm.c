/* SentencePiece BPE on tiny vocabularies: what is merged, taken apart, spelled in bytes and refused. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/tokenizer/internal.h"
#include "formats/gguf.h"
#include "tests/tokenizer/tiny.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define END         UINT32_MAX
#define IDS(...)    ((const uint32_t[]){__VA_ARGS__, END})
#define NO_IDS      ((const uint32_t[]){END})
#define TOKENS(...) ((const struct tiny_token[]){__VA_ARGS__, {NULL, 0}})
#define SCORES(...) ((const float[]){__VA_ARGS__})
#define SPACE       "\xE2\x96\x81"
#define HAN         "\xE5\xAD\x97" /* no token of its own anywhere here */

static void open_tiny(const struct tiny *spec, struct fmt_gguf **g, struct eng_tokenizer **t)
{
    char err[256];
    if (tiny_open(spec, g, t, err) != 0)
        fail_msg("%s", err);
}

static void test_highest_score_then_leftmost_pair_merges_first(void **state)
{
    (void)state;
    const struct tiny spec = {
        .model = "llama",
        .pre = "default",
        .extra = TOKENS({"a", 1}, {"b", 1}, {"c", 1}, {"ab", 1}, {"bc", 1}, {"aa", 1}, {"ca", 1}, {"caa", 1}),
        .scores = SCORES(-9, -9, -9, -2, -1, -2, -0.0f, 0)};
    enum { A = TINY(0), B, C, AB, BC, AA, CA, CAA };
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "abc", false, IDS(A, BC)));
    assert_true(tiny_encodes(t, "aaa", false, IDS(AA, A)));
    assert_true(tiny_encodes(t, "aab", false, IDS(AA, B)));   /* equal scores of different pieces */
    assert_true(tiny_encodes(t, "caab", false, IDS(CAA, B))); /* ca, then ca a of a score that is equal: -0 */
    assert_true(tiny_encodes(t, "abca", false, IDS(AB, CA)));
    assert_true(tiny_encodes(t, "", false, NO_IDS));
    tiny_close(g, t);
}

static void test_joined_text_decides_not_what_made_it(void **state)
{
    (void)state;
    /* No token for the characters of a piece, and a piece that two different pairs make. */
    const struct tiny spec = {.model = "llama",
                              .extra = TOKENS({HAN HAN, 1}, {"xy", 1}, {"yz", 1}, {"xyz", 1}),
                              .scores = SCORES(0, -1, -2, -3)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, HAN HAN HAN, false, IDS(TINY(0), 0xE5, 0xAD, 0x97)));
    assert_true(tiny_encodes(t, "xyz", false, IDS(TINY(3))));
    assert_true(tiny_encodes(t, "yzx", false, IDS(TINY(2), 'x')));
    assert_true(tiny_encodes(t, "x\xFFy\n", false, IDS('x', 0xFF, 'y', '\n'))); /* broken UTF-8 as it was */
    tiny_close(g, t);
}

static void test_a_space_and_its_sign_are_one_character(void **state)
{
    (void)state;
    struct tiny spec = {.model = "llama",
                        .extra = TOKENS({SPACE, 1}, {SPACE "a", 1}, {"b c", 1}, {"b" SPACE, 1}),
                        .scores = SCORES(-9, -1, 0, -2)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    size_t len;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, " a" SPACE "a a", false, IDS(TINY(1), TINY(1), TINY(1))));
    assert_true(tiny_encodes(t, "  ", false, IDS(TINY(0), TINY(0))));
    assert_true(
        tiny_encodes(t, "b c", false, IDS(TINY(3), 'c'))); /* a real space in a piece is out of reach */
    assert_memory_equal(eng_tokenizer_piece(t, TINY(1), false, &len), " a", 2);
    assert_int_equal(len, 2);
    assert_int_equal(*eng_tokenizer_piece(t, 0xE2, false, &len), '\xE2');
    assert_int_equal(len, 1);
    assert_int_equal(eng_tokenizer_longest_piece(t), 4); /* of the text: with the sign, not a space */
    tiny_close(g, t);
    spec.extra = TOKENS({"a", 1});
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, " a", false, IDS(0xE2, 0x96, 0x81, TINY(0))));
    tiny_close(g, t);
}

static void test_user_defined_tokens_are_cut_out_of_any_text(void **state)
{
    (void)state;
    const struct tiny spec = {.model = "llama",
                              .extra = TOKENS({SPACE SPACE SPACE, 4}, {"  ", 4}, {"ab", 4}, {SPACE, 1},
                                              {"bc", 1}, {SPACE "x", 1}, {SPACE SPACE, 1}),
                              .scores = SCORES(0, 0, 0, -1, -2, -3, -4)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    for (int parse_special = 0; parse_special < 2; parse_special++) {
        assert_true(tiny_encodes(t, "abc", parse_special, IDS(TINY(2), 'c'))); /* frozen: not a bc */
        assert_true(tiny_encodes(t, "    x", parse_special, IDS(TINY(0), TINY(5))));
        assert_true(tiny_encodes(t, " " SPACE "x", parse_special, IDS(TINY(1), 'x')));
    }
    tiny_close(g, t);
}

static void test_control_tokens_come_out_of_text_only_when_asked_for(void **state)
{
    (void)state;
    const struct tiny spec = {.model = "llama",
                              .extra = TOKENS({"<bos>", 3}, {"<end_of_turn>", 4}, {"<start_of_turn>", 1},
                                              {"<start_of_turn", 1}, {"x", 3}, {"xy", 1}),
                              .scores = SCORES(0, 0, 0, 0, 0, 0),
                              .bos = TINY(0) + 1};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "<bos>xy", true, IDS(TINY(0), TINY(4), 'y')));
    assert_true(tiny_encodes(t, "<end_of_turn>", true, IDS(TINY(1))));
    assert_true(
        tiny_encodes(t, "xyx", false, IDS(TINY(5), 'x'))); /* merges pass over a control token's text */
    assert_true(tiny_encodes(t, "<bos>", false, IDS('<', 'b', 'o', 's', '>')));
    static const char *const texts[] = {"<bos>", "<end_of_turn>", "<start_of_turn>", "x"};
    for (size_t i = 0; i < 4; i++) {
        struct eng_ids ids = {0};
        assert_int_equal(eng_tokenizer_encode(t, texts[i], strlen(texts[i]), false, &ids), ENG_OK);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(eng_tokenizer_is_control(t, ids.data[k]));
        eng_ids_free(&ids);
    }
    assert_true(eng_tokenizer_is_end(t, TINY(1)) && !eng_tokenizer_is_end(t, TINY(2)));
    assert_true(eng_tokenizer_add_bos(t)); /* where the file says nothing */
    tiny_close(g, t);
}

static void test_unused_pieces_are_taken_apart_again(void **state)
{
    (void)state;
    const struct tiny spec = {
        .model = "llama",
        .extra = TOKENS({"a", 1}, {"b", 1}, {"c", 1}, {"ab", 5}, {"abc", 1}, {"bb", 5}, {"bbb", 5}, {"d", 5}),
        .scores = SCORES(-9, -9, -9, 0, -1, -2, -3, 0)};
    enum { A = TINY(0), B, C, AB, ABC, BB, BBB, D };
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    size_t len;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "abc", false, IDS(ABC))); /* a way to a used piece */
    assert_true(tiny_encodes(t, "aba", false, IDS(A, B, A)));
    assert_true(tiny_encodes(t, "bbbc", false, IDS(B, B, B, C))); /* bb in bbb */
    assert_true(tiny_encodes(t, "d", false, IDS(D)));             /* it has no parts */
    eng_tokenizer_piece(t, D, true, &len);
    assert_int_equal(len, 0);
    tiny_close(g, t);
}

static void test_without_byte_tokens_a_run_of_unknown_characters_is_one_token(void **state)
{
    (void)state;
    const struct tiny spec = {
        .model = "llama", .no_bytes = true, .extra = TOKENS({"<unk>", 2}, {"a", 1}), .scores = SCORES(0, 0)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, HAN "\xFF" HAN "a a", false, IDS(TINY(0), TINY(1), TINY(0), TINY(1))));
    assert_true(tiny_encodes(t, "<unk>", true, IDS(TINY(0))));
    tiny_close(g, t);
}

static void test_work_on_one_long_text_is_nearly_linear(void **state)
{
    (void)state;
    enum { N = 130000 };
    const struct tiny spec = {.model = "llama",
                              .extra = TOKENS({"a", 1}, {"aa", 1}, {"aaaa", 5}, {"aaaaaaaa", 1}, {"b", 1}),
                              .scores = SCORES(0, 0, 0, 0, 0)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    char *text = malloc(N);
    assert_non_null(text);
    for (int round = 0; round < 2; round++) {
        memset(text, 'a', N);
        for (size_t i = 0; i < N && round == 1; i += 5)
            text[i] = 'b'; /* leaves aaaa: as many offers of an unused piece */
        struct bpe_scratch scratch = {0};
        struct eng_ids ids = {0};
        assert_int_equal(spm_text(t, &scratch, text, N, &ids), ENG_OK);
        assert_int_equal(ids.n, round == 0 ? N / 8 : N / 5 * 3);
        assert_true(scratch.work < 40u * N);
        eng_ids_free(&ids);
        bpe_scratch_free(&scratch);
    }
    free(text);
    tiny_close(g, t);
}

static void test_any_bytes_come_back(void **state)
{
    (void)state;
    const struct tiny spec = {
        .model = "llama", .extra = TOKENS({"ab", 1}, {SPACE, 1}, {"\x82", 1}), .scores = SCORES(0, 0, 0)};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_any_bytes_come_back(t));
    tiny_close(g, t);
}

static void digest_of(const struct tiny *spec, uint8_t out[32])
{
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(spec, &g, &t);
    eng_tokenizer_digest(t, out);
    tiny_close(g, t);
}

static void test_digest_changes_with_all_that_changes_ids(void **state)
{
    (void)state;
    const struct tiny base = {.model = "llama",
                              .extra = TOKENS({"ab", 1}, {"bc", 1}, {"<x>", 3}),
                              .scores = SCORES(-1, -2, 0),
                              .add_bos = -1};
    struct tiny other[4] = {base, base, base, base};
    other[0].scores = SCORES(-2, -1, 0);
    other[1].extra = TOKENS({"ab", 1}, {"bd", 1}, {"<x>", 3});
    other[2].extra = TOKENS({"ab", 1}, {"bc", 1}, {"<x>", 4});
    other[3].add_bos = 1;
    other[3].bos = 1;
    uint8_t first[32], again[32];
    digest_of(&base, first);
    digest_of(&base, again);
    assert_memory_equal(first, again, 32);
    for (size_t i = 0; i < 4; i++) {
        digest_of(&other[i], again);
        assert_memory_not_equal(first, again, 16);
        assert_memory_not_equal(first + 16, again + 16, 16);
    }
}

static void test_hostile_vocabularies_are_refused_by_field(void **state)
{
    (void)state;
    static char long_text[1200];
    memset(long_text, 'x', sizeof(long_text) - 1);
    const struct {
        struct tiny spec;
        const char *field;
    } cases[] = {
        {{.model = "llama", .pre = "gpt-2"}, "tokenizer.ggml.pre"},
        {{.model = "llama", .space_prefix = 1}, "tokenizer.ggml.add_space_prefix"},
        {{.model = "llama", .space_prefix = -1}, "tokenizer.ggml.add_space_prefix"},
        {{.model = "llama", .other_key = "tokenizer.ggml.remove_extra_whitespaces"},
         "remove_extra_whitespaces"},
        {{.model = "llama", .other_key = "tokenizer.ggml.precompiled_charsmap"}, "precompiled_charsmap"},
        {{.model = "llama", .n_types = 255}, "tokenizer.ggml.token_type"},
        {{.model = "llama", .types_as_u32 = true}, "tokenizer.ggml.token_type"},
        {{.model = "llama", .extra = TOKENS({"ab", 0})}, "tokenizer.ggml.token_type[256]"},
        {{.model = "llama", .extra = TOKENS({"ab", 7})}, "tokenizer.ggml.token_type[256]"},
        {{.model = "llama", .n_scores = -1}, "tokenizer.ggml.scores"},
        {{.model = "llama", .n_scores = 255}, "tokenizer.ggml.scores"},
        {{.model = "llama", .n_scores = 257}, "tokenizer.ggml.scores"},
        {{.model = "llama", .scores_as_f64 = true}, "tokenizer.ggml.scores"},
        {{.model = "llama", .extra = TOKENS({"ab", 1}), .scores = SCORES(NAN)}, "tokenizer.ggml.scores[256]"},
        {{.model = "llama", .extra = TOKENS({"ab", 5}), .scores = SCORES(INFINITY)},
         "tokenizer.ggml.scores[256]"},
        {{.model = "llama", .extra = TOKENS({"ab", 1}, {"ab", 3})}, "tokenizer.ggml.tokens[257]"},
        {{.model = "llama", .extra = TOKENS({long_text, 1})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "llama", .extra = TOKENS({long_text, 3})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "llama", .extra = TOKENS({"<0x4a>", 6})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "llama", .extra = TOKENS({"<0x4A", 6})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "llama", .extra = TOKENS({"A", 6})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "llama", .missing = "A"}, "255 byte tokens"},
        {{.model = "llama", .no_bytes = true, .extra = TOKENS({"a", 1})}, "unknown token"},
        {{.model = "llama", .bos = 257}, "tokenizer.ggml.bos_token_id"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fmt_gguf *g;
        struct eng_tokenizer *t;
        char err[256];
        int rc = tiny_open(&cases[i].spec, &g, &t, err);
        if (rc == 0 || t != NULL || strstr(err, cases[i].field) == NULL || strchr(err, '\n') != NULL)
            fail_msg("case %zu: %d \"%s\", expected a line with %s", i, rc, err, cases[i].field);
        tiny_close(g, t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_highest_score_then_leftmost_pair_merges_first),
        cmocka_unit_test(test_joined_text_decides_not_what_made_it),
        cmocka_unit_test(test_a_space_and_its_sign_are_one_character),
        cmocka_unit_test(test_user_defined_tokens_are_cut_out_of_any_text),
        cmocka_unit_test(test_control_tokens_come_out_of_text_only_when_asked_for),
        cmocka_unit_test(test_unused_pieces_are_taken_apart_again),
        cmocka_unit_test(test_without_byte_tokens_a_run_of_unknown_characters_is_one_token),
        cmocka_unit_test(test_work_on_one_long_text_is_nearly_linear),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_digest_changes_with_all_that_changes_ids),
        cmocka_unit_test(test_hostile_vocabularies_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
