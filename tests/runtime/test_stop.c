/* Stop strings: where a reply is cut must not depend on how its text was split into tokens. */
#include "engine/runtime/stop.h"
#include "engine/tokenizer/errors.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* Pushes text in pieces whose ends are the set bits of `cuts`; what came out is appended to out. */
static bool feed(const struct stop_set *set, const char *text, uint32_t cuts, struct text_buffer *out)
{
    struct stop_stream stream = {0};
    size_t len = strlen(text);
    size_t from = 0;
    for (size_t i = 1; i <= len; i++) {
        if (i == len || cuts >> i & 1) {
            assert_int_equal(stop_stream_push(&stream, set, text + from, i - from, false, out), ENG_OK);
            from = i;
        }
    }
    assert_int_equal(stop_stream_push(&stream, set, "", 0, true, out), ENG_OK);
    bool stopped = stream.stopped;
    assert_int_equal(stream.released, out->len);
    stop_stream_free(&stream);
    return stopped;
}

static void cut_is_the_same_for_every_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stops[3], *shown;
        bool stopped;
    } cases[] = {
        {"one END two", {"END"}, "one ", true},
        {"one EN two", {"END"}, "one EN two", false},
        {"aaab", {"aab"}, "a", true},
        {"abcd", {"abcd", "bc"}, "a", true}, /* bc completes first */
        {"xabc", {"bc", "abc"}, "x", true},  /* together: the longer one */
        {"END", {"END"}, "", true},
        {"tail EN", {"END"}, "tail EN", false}, /* held back, then let go at the end */
        {"ab", {"abc", "x"}, "ab", false},
        {"a\n\nUser: b", {"\n\nUser:"}, "a", true},
        {"plain text", {NULL}, "plain text", false},
    };
    for (size_t c = 0; c < N(cases); c++) {
        size_t n = 0;
        while (n < 3 && cases[c].stops[n])
            n++;
        struct stop_set set;
        assert_int_equal(stop_set_init(&set, cases[c].stops, n), ENG_OK);
        for (uint32_t cuts = 0; cuts < 1u << 12; cuts += 2) {
            struct text_buffer out = {0};
            assert_int_equal(feed(&set, cases[c].text, cuts, &out), cases[c].stopped);
            assert_int_equal(out.len, strlen(cases[c].shown));
            assert_memory_equal(out.data ? out.data : "", cases[c].shown, out.len);
            free(out.data);
        }
        stop_set_free(&set);
    }
}

static void holds_back_only_what_could_begin_a_stop_string(void **state)
{
    (void)state;
    const char *stops[] = {"<END>", "\n\n"};
    struct stop_set set;
    struct stop_stream stream = {0};
    struct text_buffer out = {0};
    assert_int_equal(stop_set_init(&set, stops, 2), ENG_OK);
    assert_int_equal(stop_stream_push(&stream, &set, "abc<E", 5, false, &out), ENG_OK);
    assert_int_equal(out.len, 3);
    assert_int_equal(stop_stream_push(&stream, &set, "\n", 1, false, &out), ENG_OK);
    assert_int_equal(out.len, 5); /* "<E" is free again, the new line is not */
    assert_memory_equal(out.data, "abc<E", 5);
    assert_int_equal(stop_stream_push(&stream, &set, "\xc3\xa9", 2, false, &out), ENG_OK);
    assert_int_equal(out.len, 8);
    assert_false(stream.stopped);
    stop_stream_free(&stream);
    free(out.data);
    stop_set_free(&set);
}

static void drops_what_comes_after_the_stop(void **state)
{
    (void)state;
    const char *stops[] = {"##"};
    struct stop_set set;
    struct stop_stream stream = {0};
    struct text_buffer out = {0};
    assert_int_equal(stop_set_init(&set, stops, 1), ENG_OK);
    assert_int_equal(stop_stream_push(&stream, &set, "a##b", 4, false, &out), ENG_OK);
    assert_int_equal(stop_stream_push(&stream, &set, "cd", 2, true, &out), ENG_OK);
    assert_true(stream.stopped);
    assert_int_equal(out.len, 1);
    stop_stream_free(&stream);
    free(out.data);
    stop_set_free(&set);
}

static void refuses_empty_and_broken_stop_strings(void **state)
{
    (void)state;
    const char *empty[] = {"a", ""};
    const char *broken[] = {"\xa9"};
    struct stop_set set;
    assert_int_equal(stop_set_init(&set, empty, 2), ENG_EINVAL);
    assert_int_equal(stop_set_init(&set, broken, 1), ENG_EINVAL);
    assert_int_equal(stop_set_init(&set, NULL, 0), ENG_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_is_the_same_for_every_split),
        cmocka_unit_test(holds_back_only_what_could_begin_a_stop_string),
        cmocka_unit_test(drops_what_comes_after_the_stop),
        cmocka_unit_test(refuses_empty_and_broken_stop_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
