/* Byte-level BPE on tiny vocabularies: what is merged, dropped, split out and refused. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/tokenizer/internal.h"
#include "formats/gguf.h"
#include "tests/tokenizer/tiny.h"
#include <stdlib.h>
#include <string.h>

#define END         UINT32_MAX
#define IDS(...)    ((const uint32_t[]){__VA_ARGS__, END})
#define NO_IDS      ((const uint32_t[]){END})
#define TOKENS(...) ((const struct tiny_token[]){__VA_ARGS__, {NULL, 0}})
#define MERGES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void open_tiny(const struct tiny *spec, struct fmt_gguf **g, struct eng_tokenizer **t)
{
    char err[256];
    if (tiny_open(spec, g, t, err) != 0)
        fail_msg("%s", err);
}

static void test_lowest_rank_then_leftmost_pair_merges_first(void **state)
{
    (void)state;
    const struct tiny spec = {.model = "gpt2",
                              .pre = "gpt-2",
                              .extra = TOKENS({"ab", 1}, {"bc", 1}, {"aa", 1}, {"aab", 1}),
                              .merges = MERGES("b c", "a b", "a a", "a ab")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "abc", false, IDS('a', TINY(1))));  /* b c has rank 0 */
    assert_true(tiny_encodes(t, "aaa", false, IDS(TINY(2), 'a')));  /* the left pair of two equal ones */
    assert_true(tiny_encodes(t, "aab", false, IDS(TINY(3))));       /* a b, then a ab */
    assert_true(tiny_encodes(t, "a b", false, IDS('a', ' ', 'b'))); /* no merge across words */
    assert_true(tiny_encodes(t, "", false, NO_IDS));
    tiny_close(g, t);
}

static void test_work_on_one_long_word_is_nearly_linear(void **state)
{
    (void)state;
    enum { N = 130000 };
    const struct tiny spec = {.model = "gpt2",
                              .pre = "gpt-2",
                              .extra =
                                  TOKENS({"aa", 1}, {"aaaa", 1}, {"aaaaaaaa", 1}, {"aaaaaaaaaaaaaaaa", 1}),
                              .merges = MERGES("a a", "aa aa", "aaaa aaaa", "aaaaaaaa aaaaaaaa")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    uint8_t *word = malloc(N);
    assert_non_null(word);
    memset(word, 'a', N);
    struct bpe_scratch scratch = {0};
    struct eng_ids ids = {0};
    assert_int_equal(bpe_word(t, &scratch, word, N, &ids), ENG_OK);
    assert_int_equal(ids.n, N / 16);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.data[i], TINY(3));
    assert_true(scratch.work <
                40u * N); /* 3 entries a byte, each at most log2(3 N) = 19 steps; squares are 10^10 */
    eng_ids_free(&ids);
    bpe_scratch_free(&scratch);
    free(word);
    tiny_close(g, t);
}

static void test_a_byte_without_token_is_dropped_and_its_neighbours_meet(void **state)
{
    (void)state;
    const struct tiny spec = {.model = "gpt2",
                              .pre = "gpt-2",
                              .missing = "\x01\xF5",
                              .extra = TOKENS({"!?", 1}),
                              .merges = MERGES("! ?")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "!\x01?", false, IDS(TINY(0))));
    assert_true(tiny_encodes(t, "\x01\xF5\x01", false, NO_IDS));
    assert_true(tiny_encodes(t, "[UNUSED1]", false, IDS('[', 'U', 'N', 'U', 'S', 'E', 'D', '1', ']')));
    size_t len;
    eng_tokenizer_piece(t, 1, true, &len); /* an unused token stands for nothing */
    assert_int_equal(len, 0);
    tiny_close(g, t);
}

static const struct tiny_token special_tokens[] = {{"<|im_end|>", 3}, {"<|im_", 3},      {"<think>", 4},
                                                   {"<th", 4},        {"<|eot_id|>", 4}, {"<|endoftext|>", 1},
                                                   {"<u>", 2},        {NULL, 0}};
static const struct tiny special_spec = {
    .model = "gpt2", .pre = "gpt-2", .extra = special_tokens, .eos = TINY(0) + 1};

static void test_control_tokens_come_out_of_text_only_when_asked_for(void **state)
{
    (void)state;
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&special_spec, &g, &t);
    assert_true(tiny_encodes(t, "a<|im_end|>", true, IDS('a', TINY(0))));
    assert_true(
        tiny_encodes(t, "<|im_end>", true, IDS(TINY(1), 'e', 'n', 'd', '>'))); /* the longest that is there */
    assert_true(tiny_encodes(t, "<u>", true, IDS(TINY(6))));
    assert_true(tiny_encodes(t, "<u>", false, IDS('<', 'u', '>')));
    for (size_t i = 0; i < 6; i++) {
        struct eng_ids ids = {0};
        const char *text = special_tokens[i].text;
        assert_int_equal(eng_tokenizer_encode(t, text, strlen(text), false, &ids), ENG_OK);
        for (size_t k = 0; k < ids.n; k++)
            assert_false(eng_tokenizer_is_control(t, ids.data[k]));
        eng_ids_free(&ids);
    }
    tiny_close(g, t);
}

static void test_added_tokens_are_recognised_in_any_text(void **state)
{
    (void)state;
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&special_spec, &g, &t);
    for (int parse_special = 0; parse_special < 2; parse_special++) {
        assert_true(
            tiny_encodes(t, "x<think>y<thin", parse_special, IDS('x', TINY(2), 'y', TINY(3), 'i', 'n')));
        assert_true(tiny_encodes(t, "<<th", parse_special, IDS('<', TINY(3))));
    }
    tiny_close(g, t);
}

static void test_structural_tokens_are_control_tokens_whatever_their_type(void **state)
{
    (void)state;
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&special_spec, &g, &t);
    assert_true(eng_tokenizer_is_control(t, TINY(4)) && eng_tokenizer_is_end(t, TINY(4)));
    assert_true(eng_tokenizer_is_control(t, TINY(5)) && eng_tokenizer_is_end(t, TINY(5)));
    assert_true(eng_tokenizer_is_end(t, TINY(0)));
    assert_false(eng_tokenizer_is_end(t, TINY(1)));
    assert_false(eng_tokenizer_is_control(t, TINY(2)));
    assert_false(eng_tokenizer_is_control(t, 100000));
    assert_int_equal(eng_tokenizer_special(t, "<think>"), TINY(2));
    assert_int_equal(eng_tokenizer_special(t, "<|eot_id|>"), TINY(4));
    assert_int_equal(eng_tokenizer_special(t, "<|eot_id|>x"), END);
    assert_int_equal(eng_tokenizer_special(t, "a"), END);
    assert_int_equal(eng_tokenizer_eos(t), TINY(0));
    assert_int_equal(eng_tokenizer_bos(t), END);
    tiny_close(g, t);
}

static void test_merges_never_make_a_control_token(void **state)
{
    (void)state;
    const struct tiny spec = {.model = "gpt2",
                              .pre = "llama-bpe",
                              .extra = TOKENS({"ab", 3}, {"abc", 1}, {"xy", 3}),
                              .merges = MERGES("a b", "ab c")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "ab", false, IDS('a', 'b')));
    assert_true(tiny_encodes(t, "xy", false, IDS('x', 'y'))); /* nor does a whole word */
    assert_true(tiny_encodes(t, "ab", true, IDS(TINY(0))));
    tiny_close(g, t);
}

static void test_llama3_takes_a_whole_word_before_merging(void **state)
{
    (void)state;
    struct tiny spec = {.model = "gpt2",
                        .pre = "llama-bpe",
                        .extra = TOKENS({"ab", 1}, {"abc", 1}, {"\xC4\xA0hi", 1}),
                        .merges = MERGES("a b")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "abc hi", false, IDS(TINY(1), TINY(2))));
    tiny_close(g, t);
    spec.pre = "dbrx"; /* the same pattern without that rule */
    open_tiny(&spec, &g, &t);
    assert_true(tiny_encodes(t, "abc hi", false, IDS(TINY(0), 'c', ' ', 'h', 'i')));
    tiny_close(g, t);
}

static void test_any_bytes_come_back(void **state)
{
    (void)state;
    const struct tiny spec = {
        .model = "gpt2", .pre = "qwen2", .extra = TOKENS({"ab", 1}), .merges = MERGES("a b")};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    open_tiny(&spec, &g, &t);
    assert_true(tiny_any_bytes_come_back(t));
    tiny_close(g, t);
}

static void test_pieces_of_special_tokens_are_shown_only_when_asked_for(void **state)
{
    (void)state;
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    size_t len;
    open_tiny(&special_spec, &g, &t);
    eng_tokenizer_piece(t, TINY(0), false, &len);
    assert_int_equal(len, 0);
    assert_memory_equal(eng_tokenizer_piece(t, TINY(0), true, &len), "<|im_end|>", 10);
    assert_int_equal(len, 10);
    assert_memory_equal(eng_tokenizer_piece(t, TINY(2), false, &len), "<think>", 7);
    eng_tokenizer_piece(t, 1u << 30, true, &len);
    assert_int_equal(len, 0);
    assert_int_equal(eng_tokenizer_longest_piece(t), 13); /* <|endoftext|> */
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
    const struct tiny base = {.model = "gpt2",
                              .pre = "gpt-2",
                              .extra = TOKENS({"ab", 1}, {"bc", 1}, {"<x>", 3}),
                              .merges = MERGES("a b", "b c"),
                              .bos = 1,
                              .add_bos = -1};
    struct tiny other[6] = {base, base, base, base, base, base};
    other[0].pre = "smollm";
    other[1].extra = TOKENS({"ab", 1}, {"bc", 1}, {"<y>", 3});
    other[2].extra = TOKENS({"ab", 1}, {"bc", 1}, {"<x>", 4});
    other[3].merges = MERGES("b c", "a b");
    other[4].merges = MERGES("a b");
    other[5].add_bos = 1;
    uint8_t first[32], again[32];
    digest_of(&base, first);
    digest_of(&base, again);
    assert_memory_equal(first, again, 32);
    for (size_t i = 0; i < 6; i++) {
        digest_of(&other[i], again);
        assert_memory_not_equal(first, again, 16);
        assert_memory_not_equal(first + 16, again + 16, 16);
    }
}

static void test_bos_is_asked_for_by_the_file(void **state)
{
    (void)state;
    struct tiny spec = {.model = "gpt2", .pre = "llama-bpe", .bos = 'a' + 1};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    const int asked[] = {0, 1, -1};
    const bool llama3[] = {true, true, false}, gpt2[] = {false, true, false};
    for (size_t i = 0; i < 3; i++) {
        spec.add_bos = asked[i];
        spec.pre = "llama-bpe"; /* where the file says nothing, llama 3 wants one */
        open_tiny(&spec, &g, &t);
        assert_int_equal(eng_tokenizer_add_bos(t), llama3[i]);
        tiny_close(g, t);
        spec.pre = "gpt-2";
        open_tiny(&spec, &g, &t);
        assert_int_equal(eng_tokenizer_add_bos(t), gpt2[i]);
        tiny_close(g, t);
    }
    spec = (struct tiny){.model = "gpt2", .pre = "gpt-2", .add_bos = 1};
    open_tiny(&spec, &g, &t);
    assert_false(eng_tokenizer_add_bos(t)); /* there is none to add */
    tiny_close(g, t);
}

static void test_hostile_vocabularies_are_refused_by_field(void **state)
{
    (void)state;
    char long_text[1200];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    const struct {
        struct tiny spec;
        const char *field;
    } cases[] = {
        {{.pre = "gpt-2"}, "tokenizer.ggml.model"},
        {{.model = "bert", .pre = "gpt-2"}, "\"bert\""},
        {{.model = "bert\n", .pre = "gpt-2"}, "tokenizer.ggml.model"},
        {{.model = "gpt2"}, "tokenizer.ggml.pre"},
        {{.model = "gpt2", .pre = "tekken"}, "\"tekken\""},
        {{.model = "gpt2", .pre = "gpt-2\n"}, "tokenizer.ggml.pre"},
        {{.model = "gpt2", .pre = "gpt-2", .n_types = 255}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .n_types = 257}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .types_as_u32 = true}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 0})}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 6})}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", -1})}, "tokenizer.ggml.token_type"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}, {"ab", 3})}, "tokenizer.ggml.tokens"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"a", 1})}, "tokenizer.ggml.tokens"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({long_text, 3})}, "tokenizer.ggml.tokens[256]"},
        {{.model = "gpt2", .pre = "gpt-2", .no_merges = true}, "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .merges = MERGES("a b")}, "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}), .merges = MERGES("a b", "ab cd")},
         "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}), .merges = MERGES("ab")},
         "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}), .merges = MERGES(" ab")},
         "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}), .merges = MERGES("a b c")},
         "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .extra = TOKENS({"ab", 1}), .merges = MERGES("")},
         "tokenizer.ggml.merges"},
        {{.model = "gpt2", .pre = "gpt-2", .bos = 257}, "tokenizer.ggml.bos_token_id"},
        {{.model = "gpt2", .pre = "gpt-2", .eos = UINT32_MAX}, "tokenizer.ggml.eos_token_id"},
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

static void test_every_error_code_has_a_name(void **state)
{
    (void)state;
    for (int code = ENG_OK; code >= ENG_ENOTFOUND; code--)
        assert_string_not_equal(eng_strerror(code), "unknown error");
    assert_string_equal(eng_strerror(1), "unknown error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowest_rank_then_leftmost_pair_merges_first),
        cmocka_unit_test(test_work_on_one_long_word_is_nearly_linear),
        cmocka_unit_test(test_a_byte_without_token_is_dropped_and_its_neighbours_meet),
        cmocka_unit_test(test_control_tokens_come_out_of_text_only_when_asked_for),
        cmocka_unit_test(test_added_tokens_are_recognised_in_any_text),
        cmocka_unit_test(test_structural_tokens_are_control_tokens_whatever_their_type),
        cmocka_unit_test(test_merges_never_make_a_control_token),
        cmocka_unit_test(test_llama3_takes_a_whole_word_before_merging),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_pieces_of_special_tokens_are_shown_only_when_asked_for),
        cmocka_unit_test(test_digest_changes_with_all_that_changes_ids),
        cmocka_unit_test(test_bos_is_asked_for_by_the_file),
        cmocka_unit_test(test_hostile_vocabularies_are_refused_by_field),
        cmocka_unit_test(test_every_error_code_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
