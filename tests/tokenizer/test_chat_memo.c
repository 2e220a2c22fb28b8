/* The memo of chat templates: a sampled reply comes back with its own ids, proven, or is not remembered. */
#include "tests/tokenizer/chat_fixture.h"
#include <string.h>

static void test_a_sampled_reply_comes_back_as_it_was_sampled(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    static const char *const names[] = {"chatml", "qwen3", "llama3"};
    const uint32_t sampled[] = {'h', 'e', LL, 'o'}; /* not what encoding "hello" gives */
    for (size_t k = 0; k < 3; k++) {
        struct eng_message m[] = {message(ENG_ROLE_USER, "hell"), message(ENG_ROLE_ASSISTANT, "hello"),
                                  message(ENG_ROLE_USER, "x")};
        struct eng_rendered first, second;
        struct note note;
        render(t, names[k], m, 1, true, NULL, &first);
        assert_int_equal(remember(t, names[k], &first, sampled, 4, "hello", &note), ENG_OK);
        const struct eng_chat_memo memo = {look_up, learned, &note};
        render(t, names[k], m, 3, true, &memo, &second);
        assert_int_equal(note.asked, 3);
        assert_int_equal(note.answered, 1);
        assert_int_equal(note.learned, 2);
        assert_memory_equal(second.ids.data, first.ids.data, first.ids.n * sizeof(uint32_t));
        assert_memory_equal(second.ids.data + first.ids.n, sampled, sizeof(sampled));
        assert_true(eng_tokenizer_is_control(t, second.ids.data[first.ids.n + 4]));
        eng_rendered_free(&second);

        m[0] = message(ENG_ROLE_USER, "other"); /* the same reply behind another prefix is another message */
        render(t, names[k], m, 3, true, &memo, &second);
        assert_int_equal(note.answered, 1);
        eng_rendered_free(&second);
        eng_rendered_free(&first);
    }
}

static void test_memo_answers_that_do_not_spell_the_text_are_ignored(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    const struct eng_message m[] = {message(ENG_ROLE_USER, "ab")};
    static const struct {
        uint32_t ids[10];
        size_t n;
        bool good;
    } cases[] = {
        {{'u', 's', 'e', 'r', '\n', 'a', 'b'}, 7, true},
        {{'u', 's', 'e', 'r', '\n', 'a', IM_END, 'b'}, 8, true}, /* a sampled control token shows nothing */
        {{'u', 's', 'e', 'r', '\n', 'a'}, 6, false},
        {{'u', 's', 'e', 'r', '\n', 'a', 'c'}, 7, false},
        {{'u', 's', 'e', 'r', '\n', 'a', 'b', 'b'}, 8, false},
        {{'u', 's', 'e', 'r', '\n', 'a', 'b', 100000}, 8, false},
        {{0}, 0, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct note note = {.text = "user\nab", .len = 7, .n = cases[i].n, .everywhere = true};
        memcpy(note.ids, cases[i].ids, sizeof(cases[i].ids));
        const struct eng_chat_memo memo = {look_up, learned, &note};
        struct eng_rendered r;
        render(t, "chatml", m, 1, false, &memo, &r);
        assert_int_equal(note.answered, 1);
        assert_int_equal(note.learned, cases[i].good ? 0 : 1);
        assert_int_equal(r.ids.n, 3 + (cases[i].good ? cases[i].n : 7)); /* im_start, run, im_end, newline */
        eng_rendered_free(&r);
    }
}

static void test_a_reply_cut_at_a_stop_string_keeps_the_ids_inside(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    const struct eng_message m[] = {message(ENG_ROLE_USER, "x")};
    const uint32_t sampled[] = {'h', 'e', HELL, 'o'};
    struct eng_rendered r;
    struct note note;
    render(t, "chatml", m, 1, true, NULL, &r);
    size_t header = r.ids.n - r.reply_run;
    assert_int_equal(remember(t, "chatml", &r, sampled, 4, "hehe", &note), ENG_OK); /* cut inside "hell" */
    const uint32_t expected[] = {'h', 'e', HE};
    assert_int_equal(note.n, header + 3);
    assert_memory_equal(note.ids + header, expected, sizeof(expected));
    assert_int_equal(remember(t, "chatml", &r, sampled, 4, "", &note), ENG_OK);
    assert_int_equal(note.n, header);
    eng_rendered_free(&r);
}

static void test_a_reply_that_ends_inside_a_character_keeps_its_ids(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    struct eng_message m[] = {message(ENG_ROLE_USER, "x"), message(ENG_ROLE_ASSISTANT, "a\xEF\xBF\xBD")};
    const uint32_t sampled[] = {'a', 0xE4, 0xBD};
    struct eng_rendered first, second;
    struct note note;
    render(t, "chatml", m, 1, true, NULL, &first);
    assert_int_equal(remember(t, "chatml", &first, sampled, 3, "a\xEF\xBF\xBD", &note), ENG_OK);
    const struct eng_chat_memo memo = {look_up, NULL, &note};
    render(t, "chatml", m, 2, false, &memo, &second);
    assert_int_equal(note.answered, 1);
    assert_memory_equal(second.ids.data + first.ids.n, sampled, sizeof(sampled));
    eng_rendered_free(&second);
    eng_rendered_free(&first);
}

static void test_nothing_is_remembered_of_what_a_template_will_not_send_again(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    const struct eng_message m[] = {message(ENG_ROLE_USER, "x")};
    const uint32_t spaced[] = {'\n', 'h', ' '}, thought[] = {TINY(2), 'h', TINY(3), 'h'};
    struct eng_rendered r;
    struct note note;
    render(t, "llama3", m, 1, true, NULL, &r);
    assert_int_equal(remember(t, "llama3", &r, spaced, 3, "\nh ", &note), ENG_ENOTFOUND);
    assert_int_equal(remember(t, "llama3", &r, spaced + 1, 2, "h ", &note), ENG_OK);
    assert_int_equal(note.len, 3); /* "\n\nh": the trailing space goes */
    eng_rendered_free(&r);
    render(t, "qwen3", m, 1, true, NULL, &r);
    assert_int_equal(remember(t, "qwen3", &r, thought, 4, "<think>h</think>h", &note), ENG_ENOTFOUND);
    eng_rendered_free(&r);
    render(t, "chatml", m, 1, false, NULL, &r); /* no reply was asked for */
    assert_int_equal(remember(t, "chatml", &r, thought, 4, "<think>h</think>h", &note), ENG_ENOTFOUND);
    eng_rendered_free(&r);
}

static void test_no_thinking_is_an_empty_think_block_behind_the_header(void **state)
{
    const struct eng_tokenizer *t = ((struct fixture *)*state)->t;
    const struct eng_message m[] = {message(ENG_ROLE_USER, "q")};
    const uint32_t sampled[] = {'h'};
    struct eng_rendered r, with;
    struct note note;
    render(t, "qwen3", m, 1, ENG_GENERATE_REPLY, NULL, &with);
    render(t, "qwen3", m, 1, ENG_GENERATE_NO_THINKING, NULL, &r);
    assert_string_equal(spell(t, r.ids.data, r.ids.n),
                        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    assert_memory_equal(r.ids.data, with.ids.data, with.ids.n * sizeof(uint32_t));
    assert_int_equal(r.ids.data[with.ids.n], TINY(2)); /* the tag is a token */
    assert_int_equal(r.boundaries[r.n_boundaries - 1].position, r.ids.n);
    /* The next turn has this reply without the block, behind other ids: nothing to remember. */
    assert_int_equal(r.reply_run, r.ids.n);
    assert_int_equal(remember(t, "qwen3", &r, sampled, 1, "h", &note), ENG_ENOTFOUND);
    eng_rendered_free(&r);
    eng_rendered_free(&with);

    render(t, "chatml", m, 1, ENG_GENERATE_NO_THINKING, NULL, &r); /* no such block in this template */
    assert_string_equal(spell(t, r.ids.data, r.ids.n),
                        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(remember(t, "chatml", &r, sampled, 1, "h", &note), ENG_OK);
    eng_rendered_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sampled_reply_comes_back_as_it_was_sampled),
        cmocka_unit_test(test_memo_answers_that_do_not_spell_the_text_are_ignored),
        cmocka_unit_test(test_a_reply_cut_at_a_stop_string_keeps_the_ids_inside),
        cmocka_unit_test(test_a_reply_that_ends_inside_a_character_keeps_its_ids),
        cmocka_unit_test(test_nothing_is_remembered_of_what_a_template_will_not_send_again),
        cmocka_unit_test(test_no_thinking_is_an_empty_think_block_behind_the_header),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
