/* gemma's template: the system text is part of the first turn, roles alternate, BOS comes first. */
#include "tests/tokenizer/chat_fixture.h"
#include <string.h>

static const struct tiny gemma_spec = {.model = "llama",
                                       .pre = "default",
                                       .extra = (const struct tiny_token[]){{"<bos>", 3},
                                                                            {"<start_of_turn>", 3},
                                                                            {"<end_of_turn>", 3},
                                                                            {"\xE2\x96\x81", 1},
                                                                            {"he", 1},
                                                                            {"ll", 1},
                                                                            {"hell", 1},
                                                                            {NULL, 0}},
                                       .scores = (const float[]){0, 0, 0, 0, 0, 0, 0},
                                       .bos = TINY(0) + 1,
                                       .add_bos = -1}; /* the template wants it all the same */
enum { START_OF_TURN = TINY(1), END_OF_TURN = TINY(2), GEMMA_LL = TINY(5) };

static int set_up_gemma(void **state)
{
    return set_up_with(state, &gemma_spec);
}

static void test_gemma_puts_the_system_text_into_the_first_turn(void **state)
{
    struct fixture *f = *state;
    const struct eng_message m[] = {message(ENG_ROLE_SYSTEM, " be "), message(ENG_ROLE_USER, " hi\n"),
                                    message(ENG_ROLE_ASSISTANT, "\tyo "), message(ENG_ROLE_USER, "x")};
    expect_text(f->t, "gemma", m, 4, true,
                "<bos><start_of_turn>user\n be \n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n"
                "<start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n");
    expect_text(f->t, "gemma", m + 1, 1, false, "<bos><start_of_turn>user\nhi<end_of_turn>\n");
    struct eng_rendered r;
    render(f->t, "gemma", m, 4, true, NULL, &r);
    static const int32_t messages[] = {0, 1, 2, 3, 4, 4};
    assert_int_equal(r.n_boundaries, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(r.boundaries[i].message, messages[i]);
        if (i != 1 && i < 5)
            assert_int_equal(r.ids.data[r.boundaries[i].position], START_OF_TURN);
    }
    assert_int_equal(r.boundaries[0].position, 1);
    assert_int_equal(r.boundaries[5].position, r.ids.n);
    assert_int_equal(system_end(&r), 1); /* inside the first run, in front of what the user says */
    size_t len;
    const char *piece = eng_tokenizer_piece(f->t, r.ids.data[r.boundaries[1].position], false, &len);
    assert_true(len > 0 && piece[0] == 'h');
    assert_int_equal(r.reply_run, r.boundaries[4].position + 1);
    eng_rendered_free(&r);
}

static void test_gemma_refuses_what_its_template_refuses(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t n;
        enum eng_role roles[3];
        const char *word; /* NULL: it is taken */
    } cases[] = {{1, {ENG_ROLE_USER}, NULL},
                 {2, {ENG_ROLE_USER, ENG_ROLE_ASSISTANT}, NULL},
                 {2, {ENG_ROLE_SYSTEM, ENG_ROLE_USER}, NULL},
                 {1, {ENG_ROLE_ASSISTANT}, "alternate"},
                 {2, {ENG_ROLE_USER, ENG_ROLE_USER}, "alternate"},
                 {2, {ENG_ROLE_SYSTEM, ENG_ROLE_ASSISTANT}, "alternate"},
                 {2, {ENG_ROLE_SYSTEM, ENG_ROLE_SYSTEM}, "alternate"},
                 {3, {ENG_ROLE_USER, ENG_ROLE_SYSTEM, ENG_ROLE_USER}, "alternate"},
                 {1, {ENG_ROLE_SYSTEM}, "user's message"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eng_message m[3];
        struct eng_rendered r;
        char err[256] = "";
        for (size_t k = 0; k < cases[i].n; k++)
            m[k] = message(cases[i].roles[k], "x");
        int rc =
            eng_chat_render(eng_chat_by_name("gemma"), f->t, m, cases[i].n, true, NULL, &r, err, sizeof(err));
        bool refused = rc == ENG_EINVAL && cases[i].word != NULL && strstr(err, cases[i].word) != NULL;
        if (cases[i].word == NULL ? rc != ENG_OK : !refused || r.ids.data != NULL)
            fail_msg("case %zu: %d \"%s\"", i, rc, err);
        eng_rendered_free(&r);
    }
}

static void test_gemma_replies_come_back_as_they_were_sampled(void **state)
{
    struct fixture *f = *state;
    const uint32_t sampled[] = {'h', 'e', GEMMA_LL, 'o'}; /* not what encoding "hello" gives */
    struct eng_message m[] = {message(ENG_ROLE_SYSTEM, "s"), message(ENG_ROLE_USER, "hell"),
                              message(ENG_ROLE_ASSISTANT, "hello"), message(ENG_ROLE_USER, "x")};
    struct eng_rendered first, second;
    struct note note;
    render(f->t, "gemma", m, 2, true, NULL, &first);
    assert_int_equal(remember(f->t, "gemma", &first, sampled, 4, " hello", &note), ENG_ENOTFOUND);
    assert_int_equal(remember(f->t, "gemma", &first, sampled, 4, "hello", &note), ENG_OK);
    assert_memory_equal(note.text, "model\nhello", note.len);
    const struct eng_chat_memo memo = {look_up, learned, &note};
    render(f->t, "gemma", m, 4, true, &memo, &second);
    assert_int_equal(note.asked, 3); /* the system text and the first user's are one run */
    assert_int_equal(note.answered, 1);
    assert_memory_equal(second.ids.data, first.ids.data, first.ids.n * sizeof(uint32_t));
    assert_memory_equal(second.ids.data + first.ids.n, sampled, sizeof(sampled));
    assert_int_equal(second.ids.data[first.ids.n + 4], END_OF_TURN);
    eng_rendered_free(&second);
    m[0] = message(ENG_ROLE_SYSTEM, "other");
    render(f->t, "gemma", m, 4, true, &memo, &second);
    assert_int_equal(note.answered, 1);
    eng_rendered_free(&second);
    eng_rendered_free(&first);
}

#define GEMMA_TEMPLATE(gap)                                                                                  \
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = "                  \
    "messages[0]['content'] + " gap " -%}{%- set loop_messages = messages[1:] -%}{%- endif -%}"              \
    "{%- for message in loop_messages -%}{%- set role = \"model\" -%}{{ '<start_of_turn>' + role + '\n' + "  \
    "(first_user_prefix if loop.first else \"\") }}{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}"   \
    "{%- endfor -%}{{'<start_of_turn>model\n'}}"

static void test_gemma_is_recognised_with_an_empty_line_behind_the_system_text(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool known;
    } cases[] = {{GEMMA_TEMPLATE("'\n\n'"), true},   {GEMMA_TEMPLATE("\"\\n\\n\""), true},
                 {GEMMA_TEMPLATE("'\n'"), false},    {GEMMA_TEMPLATE("'\n\n\n'"), false},
                 {GEMMA_TEMPLATE("'\n\nx'"), false}, {GEMMA_TEMPLATE("'\n\n"), false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny spec = gemma_spec;
        struct fmt_gguf *g;
        struct eng_tokenizer *t;
        char err[256];
        spec.chat_template = cases[i].text;
        assert_int_equal(tiny_open(&spec, &g, &t, err), 0);
        const struct eng_chat_template *c = eng_chat_from_gguf(g, t);
        if ((c != NULL) != cases[i].known || (c != NULL && strcmp(eng_chat_name(c), "gemma") != 0))
            fail_msg("case %zu is %s", i, c != NULL ? eng_chat_name(c) : "unknown");
        tiny_close(g, t);
        spec.bos = 0; /* nothing to begin with */
        assert_int_equal(tiny_open(&spec, &g, &t, err), 0);
        assert_null(eng_chat_from_gguf(g, t));
        assert_int_equal(eng_chat_check(eng_chat_by_name("gemma"), t, err, sizeof(err)), ENG_ENOTFOUND);
        assert_non_null(strstr(err, "BOS"));
        tiny_close(g, t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemma_puts_the_system_text_into_the_first_turn),
        cmocka_unit_test(test_gemma_refuses_what_its_template_refuses),
        cmocka_unit_test(test_gemma_replies_come_back_as_they_were_sampled),
        cmocka_unit_test(test_gemma_is_recognised_with_an_empty_line_behind_the_system_text),
    };
    return cmocka_run_group_tests(tests, set_up_gemma, tear_down);
}
