/* The request parser: what it makes of bodies, and how it refuses them. */
#include "engine/serve/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 100 };

static int parse(enum eng_api_kind kind, const char *body, struct eng_api_request *r,
                 struct eng_api_error *err)
{
    return eng_api_parse_completion(kind, body, strlen(body), N_VOCAB, r, err);
}

/* The body must be refused with a 400 that blames `param`. */
static void refused(enum eng_api_kind kind, const char *body, const char *param)
{
    struct eng_api_request r;
    struct eng_api_error err;
    assert_int_equal(parse(kind, body, &r, &err), -1);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.param, param);
    assert_string_not_equal(err.message, "");
    eng_api_request_free(&r);
}

static void test_a_chat_with_nothing_else_has_the_documented_defaults(void **state)
{
    struct eng_api_request r;
    struct eng_api_error err;
    (void)state;
    assert_int_equal(parse(ENG_API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", &r, &err),
                     0);
    assert_int_equal(r.n_messages, 1);
    assert_int_equal(r.messages[0].role, ENG_ROLE_USER);
    assert_int_equal(r.messages[0].len, 2);
    assert_memory_equal(r.messages[0].content, "hi", 2);
    assert_null(r.model);
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1 && r.sampling.min_p == 0);
    assert_true(r.sampling.repeat_penalty == 1 && r.sampling.presence_penalty == 0);
    assert_int_equal(r.sampling.top_k, 0);
    assert_int_equal(r.n_choices, 1);
    assert_int_equal(r.max_tokens, 0);
    assert_int_equal(r.n_stop, 0);
    assert_false(r.seed_given || r.stream || r.ignore_eos || r.include_usage || r.sampling.logprobs);
    eng_api_request_free(&r);
}

static void test_every_field_arrives(void **state)
{
    struct eng_api_request r;
    struct eng_api_error err;
    (void)state;
    assert_int_equal(
        parse(ENG_API_CHAT,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
              "\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\\u0000\"}]},{\"role\":\"assistant\"}],"
              "\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":7,\"repeat_penalty\":1.5,"
              "\"presence_penalty\":-1,\"frequency_penalty\":2,\"seed\":-3,\"n\":4,\"max_tokens\":9,"
              "\"max_completion_tokens\":8,\"stop\":[\"x\",\"yz\"],\"stream\":true,\"ignore_eos\":true,"
              "\"stream_options\":{\"include_usage\":true},\"logprobs\":true,\"top_logprobs\":3,"
              "\"logit_bias\":{\"5\":-100,\"99\":1.5}}",
              &r, &err),
        0);
    assert_string_equal(r.model, "m");
    assert_int_equal(r.n_messages, 2);
    assert_int_equal(r.messages[0].role, ENG_ROLE_SYSTEM);
    assert_int_equal(r.messages[0].len, 3);
    assert_memory_equal(r.messages[0].content, "ab\0", 3);
    assert_int_equal(r.messages[1].len, 0);
    assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p == 0.25f && r.sampling.min_p == 0.125f);
    assert_true(r.sampling.repeat_penalty == 1.5f && r.sampling.presence_penalty == -1.0f &&
                r.sampling.frequency_penalty == 2.0f);
    assert_int_equal(r.sampling.top_k, 7);
    assert_true(r.seed_given && r.sampling.seed == (uint64_t)-3);
    assert_int_equal(r.n_choices, 4);
    assert_int_equal(r.max_tokens, 8);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "yz");
    assert_true(r.stream && r.ignore_eos && r.include_usage && r.sampling.logprobs);
    assert_int_equal(r.sampling.top_logprobs, 3);
    assert_int_equal(r.sampling.n_bias, 2);
    assert_true(r.sampling.bias[0].id + r.sampling.bias[1].id == 104);
    eng_api_request_free(&r);
}

static void test_a_completion_takes_text_or_ids(void **state)
{
    struct eng_api_request r;
    struct eng_api_error err;
    (void)state;
    assert_int_equal(parse(ENG_API_COMPLETION, "{\"prompt\":\"\",\"logprobs\":0}", &r, &err), 0);
    assert_non_null(r.prompt);
    assert_int_equal(r.prompt_len, 0);
    assert_int_equal(r.max_tokens, 16);
    assert_true(r.sampling.logprobs);
    eng_api_request_free(&r);

    assert_int_equal(parse(ENG_API_COMPLETION, "{\"prompt\":[0,99,5],\"logprobs\":false}", &r, &err), 0);
    assert_null(r.prompt);
    assert_int_equal(r.n_ids, 3);
    assert_int_equal(r.ids[1], 99);
    assert_false(r.sampling.logprobs);
    eng_api_request_free(&r);

    refused(ENG_API_COMPLETION, "{\"prompt\":[100]}", "prompt");
    refused(ENG_API_COMPLETION, "{\"prompt\":[]}", "prompt");
    refused(ENG_API_COMPLETION, "{\"prompt\":[\"a\"]}", "prompt");
    refused(ENG_API_COMPLETION, "{\"prompt\":[[1]]}", "prompt");
    refused(ENG_API_COMPLETION, "{}", "prompt");
}

static void test_what_is_wrong_is_blamed_on_its_field(void **state)
{
    static const struct {
        const char *field, *param;
    } cases[] = {
        {"\"temperature\":-1", "temperature"},
        {"\"temperature\":\"x\"", "temperature"},
        {"\"top_k\":1.5", "top_k"},
        {"\"n\":17", "n"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"stop\":[\"\"]", "stop"},
        {"\"stop\":\"a\\u0000\"", "stop"},
        {"\"stream_options\":{\"include_usage\":3}", "stream_options"},
        {"\"logit_bias\":{\"100\":1}", "logit_bias"},
        {"\"logit_bias\":{\" 1\":1}", "logit_bias"},
        {"\"top_logprobs\":1", "top_logprobs"},
        {"\"tools\":[1]", "tools"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"echo\":true", "echo"},
        {"\"suffix\":\"x\"", "suffix"},
        {"\"best_of\":2", "best_of"},
        {"\"model\":1", "model"},
        {"\"chat_template_kwargs\":1", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}", "chat_template_kwargs"},
        {"\"seed\":99999999999999999999", "seed"},
        {"\"seed\": -99999999999999999999", "seed"},
        {"\"temperature\":1e999", "temperature"},
        {"\"logit_bias\":{\"5\":1e999}", "logit_bias"},
        {"\"stop\":[\"a\\\":{\"],\"top_p\":-1E+999", "top_p"},
        {"\"x y\":1e999", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],%s}",
                 cases[i].field);
        refused(ENG_API_CHAT, body, cases[i].param);
    }
}

static void test_bodies_that_are_no_object_are_refused(void **state)
{
    static const struct {
        const char *body, *said;
    } cases[] = {
        {"", "is empty"},
        {" ", "not valid JSON"},
        {"[]", "an array"},
        {"1", "a number"},
        {"-0.5", "a number"},
        {"\"x\"", "a string"},
        {"null", "not null"},
        {"true", "a boolean"},
        {"{", "not valid JSON"},
        {"{\"a\":NaN}", "not valid JSON"},
        {"{}x", "not valid JSON"},
        {"{\"a\":\"\xff\"}", "not valid JSON"},
        {"[1e999]", "out of range: 1e999 "},
        {"1e999", "out of range: 1e999 "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct eng_api_error err = {0};
        assert_null(eng_json_parse_object(cases[i].body, strlen(cases[i].body), &err));
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, "");
        if (!strstr(err.message, cases[i].said))
            fail_msg("'%s': %s", cases[i].body, err.message);
    }
}

static void test_a_number_out_of_range_is_shown_but_not_at_length(void **state)
{
    struct eng_api_error err = {0};
    char body[4096] = "{\"seed\":[";
    size_t n = strlen(body);
    (void)state;
    memset(body + n, '9', sizeof body - n);
    assert_null(eng_json_parse_object(body, sizeof body, &err)); /* not even closed */
    memcpy(body + sizeof body - 2, "]}", 2);
    assert_null(eng_json_parse_object(body, sizeof body, &err));
    assert_string_equal(err.param, "seed");
    assert_non_null(strstr(err.message, "'seed': 99999999999999999999999999999999... "));
}

static void test_thinking_is_on_unless_it_is_switched_off(void **state)
{
    static const struct {
        const char *arguments;
        bool off;
    } cases[] = {{"null", false},
                 {"{}", false},
                 {"{\"enable_thinking\":null}", false},
                 {"{\"enable_thinking\":true}", false},
                 {"{\"enable_thinking\":false}", true},
                 {"{\"other\":1,\"enable_thinking\":false}", true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct eng_api_request r;
        struct eng_api_error err;
        char body[256];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"chat_template_kwargs\":%s}",
                 cases[i].arguments);
        assert_int_equal(parse(ENG_API_CHAT, body, &r, &err), 0);
        assert_int_equal(r.no_thinking, cases[i].off);
        eng_api_request_free(&r);
    }
}

static void test_depth_is_refused_before_anything_recurses(void **state)
{
    struct eng_api_error err = {0};
    (void)state;
    for (size_t depth = ENG_JSON_MAX_DEPTH; depth <= 4000000;
         depth = depth == ENG_JSON_MAX_DEPTH ? depth + 1 : depth * 100) {
        char *body = malloc(depth);
        assert_non_null(body);
        memset(body, '[', depth);
        assert_null(eng_json_parse_object(body, depth, &err));
        assert_int_equal(err.status, 400);
        assert_true((strstr(err.message, "deeper") != NULL) == (depth > ENG_JSON_MAX_DEPTH));
        free(body);
    }
}

static void test_the_number_of_values_is_bounded(void **state)
{
    struct eng_api_error err = {0};
    size_t n = ENG_JSON_MAX_VALUES + 2;
    char *body = malloc(n);
    (void)state;
    assert_non_null(body);
    memset(body, ',', n);
    assert_null(eng_json_parse_object(body, n, &err));
    assert_non_null(strstr(err.message, "values"));
    free(body);
}

static void test_tokenize_and_detokenize_bodies(void **state)
{
    struct eng_api_tokenize t;
    struct eng_api_error err;
    uint32_t *ids;
    size_t n;
    static const char full[] =
        "{\"content\":\"a\",\"add_special\":true,\"parse_special\":true,\"with_pieces\":true}";
    (void)state;
    assert_int_equal(eng_api_parse_tokenize(full, sizeof full - 1, &t, &err), 0);
    assert_true(t.add_special && t.parse_special && t.with_pieces && t.len == 1);
    json_decref(t.root);
    assert_int_equal(eng_api_parse_tokenize("{\"content\":\"\"}", 14, &t, &err), 0);
    assert_false(t.add_special || t.parse_special || t.with_pieces);
    json_decref(t.root);
    assert_int_equal(eng_api_parse_tokenize("{}", 2, &t, &err), -1);
    json_decref(t.root);

    assert_int_equal(eng_api_parse_detokenize("{\"tokens\":[1,99]}", 17, N_VOCAB, &ids, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], 99);
    free(ids);
    assert_int_equal(eng_api_parse_detokenize("{\"tokens\":[100]}", 16, N_VOCAB, &ids, &n, &err), -1);
    assert_string_equal(err.param, "tokens");
    free(ids);
}

static void test_text_that_goes_out_is_valid(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
        {"a\xF0\x9F", "a\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80z", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *text = eng_json_text(cases[i].in, strlen(cases[i].in));
        assert_string_equal(json_string_value(text), cases[i].out);
        json_decref(text);
    }
    json_t *never = eng_json_logprob(-1.0f / 0.0f);
    assert_true(json_real_value(never) == -9999.0);
    json_decref(never);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chat_with_nothing_else_has_the_documented_defaults),
        cmocka_unit_test(test_every_field_arrives),
        cmocka_unit_test(test_a_completion_takes_text_or_ids),
        cmocka_unit_test(test_what_is_wrong_is_blamed_on_its_field),
        cmocka_unit_test(test_bodies_that_are_no_object_are_refused),
        cmocka_unit_test(test_a_number_out_of_range_is_shown_but_not_at_length),
        cmocka_unit_test(test_thinking_is_on_unless_it_is_switched_off),
        cmocka_unit_test(test_depth_is_refused_before_anything_recurses),
        cmocka_unit_test(test_the_number_of_values_is_bounded),
        cmocka_unit_test(test_tokenize_and_detokenize_bodies),
        cmocka_unit_test(test_text_that_goes_out_is_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
