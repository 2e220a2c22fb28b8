/* Out of memory is an error like any other: each allocation of each call fails once. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include "engine/tokenizer/chat.h"
#include "formats/gguf.h"
#include "tests/tokenizer/tiny.h"
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static long allocations_left = -1; /* negative: all succeed */

static bool refuse(void)
{
    return allocations_left >= 0 && allocations_left-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return refuse() ? NULL : __real_realloc(p, size);
}

static const struct tiny spec = {
    .model = "gpt2",
    .pre = "llama-bpe",
    .extra =
        (const struct tiny_token[]){{"<|im_start|>", 3}, {"<|im_end|>", 3}, {"<x>", 4}, {"ab", 1}, {NULL, 0}},
    .merges = (const char *const[]){"a b", NULL},
    .chat_template = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
                     "{{ '<|im_start|>assistant\n' }}"};

static const struct tiny spm_spec = {
    .model = "llama",
    .extra = (const struct tiny_token[]){{"ab", 5}, {"<x>", 4}, {NULL, 0}},
};

struct fixture {
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
};

static int set_up(void **state)
{
    static struct fixture f;
    char err[256];
    *state = &f;
    return tiny_open(&spec, &f.g, &f.t, err);
}

static int set_up_spm(void **state)
{
    static struct fixture f;
    char err[256];
    *state = &f;
    return tiny_open(&spm_spec, &f.g, &f.t, err);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tiny_close(f->g, f->t);
    return 0;
}

static void test_open_fails_cleanly(void **state)
{
    struct fixture *f = *state;
    for (long k = 0;; k++) {
        struct eng_tokenizer *t;
        char err[256] = "";
        allocations_left = k;
        int rc = eng_tokenizer_open(f->g, &t, err, sizeof(err));
        bool all_succeeded = allocations_left >= 0;
        allocations_left = -1;
        eng_tokenizer_close(t);
        if (all_succeeded) {
            assert_int_equal(rc, ENG_OK);
            assert_true(k > 8);
            return;
        }
        assert_int_equal(rc, ENG_ENOMEM);
        assert_null(t);
        assert_string_not_equal(err, "");
    }
}

static void test_encode_leaves_what_was_there(void **state)
{
    struct fixture *f = *state;
    char text[200];
    memset(text, 'b', sizeof(text));
    text[50] = '<';
    text[51] = 'x';
    text[52] = '>';
    for (long k = 0;; k++) {
        struct eng_ids ids = {0};
        assert_int_equal(eng_ids_add(&ids, (const uint32_t[]){7}, 1), ENG_OK);
        allocations_left = k;
        int rc = eng_tokenizer_encode(f->t, text, sizeof(text), false, &ids);
        bool all_succeeded = allocations_left >= 0;
        allocations_left = -1;
        assert_int_equal(rc, all_succeeded ? ENG_OK : ENG_ENOMEM);
        assert_int_equal(ids.n, all_succeeded ? 1 + sizeof(text) - 2 : 1);
        assert_int_equal(ids.data[0], 7);
        eng_ids_free(&ids);
        if (all_succeeded) {
            assert_true(k > 2);
            return;
        }
    }
}

static void test_encode_with_scores_leaves_what_was_there(void **state)
{
    struct fixture *f = *state;
    static const char text[] = "ab\xE2\x96\x81<x>abababababababababababababababababab";
    for (long k = 0;; k++) {
        struct eng_ids ids = {0};
        assert_int_equal(eng_ids_add(&ids, (const uint32_t[]){7}, 1), ENG_OK);
        allocations_left = k;
        int rc = eng_tokenizer_encode(f->t, text, sizeof(text) - 1, false, &ids);
        bool all_succeeded = allocations_left >= 0;
        allocations_left = -1;
        assert_int_equal(rc, all_succeeded ? ENG_OK : ENG_ENOMEM);
        assert_int_equal(ids.n, all_succeeded ? 1 + sizeof(text) - 1 - 2 : 1);
        assert_int_equal(ids.data[0], 7);
        eng_ids_free(&ids);
        if (all_succeeded) {
            assert_true(k > 4);
            return;
        }
    }
}

static void test_render_and_note_fail_whole(void **state)
{
    struct fixture *f = *state;
    const struct eng_chat_template *c = eng_chat_by_name("chatml");
    const struct eng_message m[] = {{ENG_ROLE_USER, "abc", 3}, {ENG_ROLE_ASSISTANT, "x", 1}};
    const uint32_t sampled[] = {'a', 'b'};
    for (long k = 0;; k++) {
        struct eng_rendered r;
        struct eng_ids ids = {0};
        char err[256], *run = NULL;
        size_t run_len;
        allocations_left = k;
        int rc = eng_chat_render(c, f->t, m, 2, true, NULL, &r, err, sizeof(err));
        assert_true(rc == ENG_OK || (rc == ENG_ENOMEM && r.ids.data == NULL && r.boundaries == NULL));
        if (rc == ENG_OK) {
            rc = eng_chat_reply_note(c, f->t, &r, sampled, 2, "abab", 4, &run, &run_len, &ids);
            assert_true(rc == ENG_OK || (rc == ENG_ENOMEM && run == NULL && ids.data == NULL));
        }
        bool all_succeeded = allocations_left >= 0;
        allocations_left = -1;
        assert_int_equal(rc, all_succeeded ? ENG_OK : ENG_ENOMEM);
        free(run);
        eng_ids_free(&ids);
        eng_rendered_free(&r);
        if (all_succeeded) {
            assert_true(k > 8);
            return;
        }
    }
}

static void test_an_unreadable_template_is_an_unknown_one(void **state)
{
    struct fixture *f = *state;
    assert_non_null(eng_chat_from_gguf(f->g, f->t));
    allocations_left = 0;
    const struct eng_chat_template *c = eng_chat_from_gguf(f->g, f->t);
    allocations_left = -1;
    assert_null(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_fails_cleanly),
        cmocka_unit_test(test_encode_leaves_what_was_there),
        cmocka_unit_test(test_render_and_note_fail_whole),
        cmocka_unit_test(test_an_unreadable_template_is_an_unknown_one),
    };
    const struct CMUnitTest spm_tests[] = {
        cmocka_unit_test(test_open_fails_cleanly),
        cmocka_unit_test(test_encode_with_scores_leaves_what_was_there),
    };
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    return failed + cmocka_run_group_tests(spm_tests, set_up_spm, tear_down);
}
