/* The queue of lines for stderr (engine/cli_lines.h), with a pipe for stderr that is read or is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cli_lines.h"

enum { PIPE_BYTES = 4096, N_MANY = 40000, N_THREADS = 4, N_EACH = 200 };

static int ends[2];

static void lost(char *text, size_t len, uint64_t n)
{
    snprintf(text, len, "lost %" PRIu64, n);
}

static int begin(void **state)
{
    (void)state;
    if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) < 0)
        return -1;
    cli_lines_open(ends[1], lost);
    return 0;
}

static int end(void **state)
{
    (void)state;
    cli_lines_close(10000);
    close(ends[0]);
    close(ends[1]);
    return 0;
}

/* The next line that was written, without its newline. */
static void expect_line(char *line, size_t len)
{
    static char buffer[PIPE_BYTES];
    static size_t at, n;
    size_t used = 0;
    for (;;) {
        if (at == n) {
            struct pollfd p = {.fd = ends[0], .events = POLLIN};
            assert_int_equal(poll(&p, 1, 30000), 1);
            ssize_t got = read(ends[0], buffer, sizeof buffer);
            assert_true(got > 0);
            at = 0;
            n = (size_t)got;
        }
        char c = buffer[at++];
        if (c == '\n')
            break;
        assert_true(used + 1 < len);
        line[used++] = c;
    }
    line[used] = '\0';
}

static void test_lines_come_as_they_were_put(void **state)
{
    (void)state;
    char line[64], want[64];
    cli_lines_put("first");
    cli_lines_put("");
    assert_true(cli_lines_flush(10000));
    expect_line(line, sizeof line);
    assert_string_equal(line, "first");
    expect_line(line, sizeof line);
    assert_string_equal(line, "");
    for (unsigned round = 0; round < 20; round++) { /* around the ring, more than once */
        for (unsigned i = 0; i < 1000; i++) {
            snprintf(want, sizeof want, "round %u, line %u", round, i);
            cli_lines_put(want);
        }
        for (unsigned i = 0; i < 1000; i++) {
            snprintf(want, sizeof want, "round %u, line %u", round, i);
            expect_line(line, sizeof line);
            assert_string_equal(line, want);
        }
    }
}

/* Nobody reads while they are put: were one of them to wait, this would never end. */
static void test_a_reader_that_stalls_stops_nobody_and_costs_counted_lines(void **state)
{
    (void)state;
    char line[64];
    unsigned next = 0, notices = 0;
    for (unsigned i = 0; i < N_MANY; i++) {
        snprintf(line, sizeof line, "line number %u", i);
        cli_lines_put(line);
    }
    assert_false(cli_lines_flush(0));
    while (next < N_MANY) {
        unsigned n;
        char expected[64];
        expect_line(line, sizeof line);
        if (sscanf(line, "lost %u", &n) == 1) {
            assert_true(n > 0);
            next += n;
            notices++;
            continue;
        }
        snprintf(expected, sizeof expected, "line number %u", next++);
        assert_string_equal(line, expected);
    }
    assert_int_equal(next, N_MANY);
    assert_in_range(notices, 1, N_MANY / 2);
    cli_lines_put("after it");
    expect_line(line, sizeof line);
    assert_string_equal(line, "after it");
    assert_true(cli_lines_flush(10000));
}

static void test_a_long_line_is_cut(void **state)
{
    (void)state;
    static char longer[2 * CLI_LINE_BYTES], line[2 * CLI_LINE_BYTES];
    memset(longer, 'x', sizeof longer - 1);
    cli_lines_put(longer);
    cli_lines_put("next");
    expect_line(line, sizeof line);
    assert_int_equal(strlen(line), CLI_LINE_BYTES - 1);
    expect_line(line, sizeof line);
    assert_string_equal(line, "next");
}

static void *put_some(void *arg)
{
    char line[64];
    for (unsigned i = 0; i < N_EACH; i++) {
        snprintf(line, sizeof line, "%u %u", *(unsigned *)arg, i);
        cli_lines_put(line);
    }
    return NULL;
}

static void test_threads_lines_are_whole_and_in_their_order(void **state)
{
    (void)state;
    pthread_t thread[N_THREADS];
    unsigned number[N_THREADS], next[N_THREADS] = {0};
    for (unsigned i = 0; i < N_THREADS; i++) {
        number[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, put_some, &number[i]), 0);
    }
    for (unsigned i = 0; i < N_THREADS * N_EACH; i++) {
        char line[64], rest;
        unsigned who, n;
        expect_line(line, sizeof line);
        assert_int_equal(sscanf(line, "%u %u%c", &who, &n, &rest), 2);
        assert_in_range(who, 0, N_THREADS - 1);
        assert_int_equal(n, next[who]++);
    }
    for (unsigned i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
}

static void test_closing_does_not_wait_for_a_reader_for_ever(void **state)
{
    (void)state;
    char line[64];
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(line, sizeof line, "line number %u", i);
        cli_lines_put(line);
    }
    cli_lines_close(10);
    cli_lines_put("too late");
    assert_true(cli_lines_flush(0)); /* nothing more is to come */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines_come_as_they_were_put, begin, end),
        cmocka_unit_test_setup_teardown(test_a_reader_that_stalls_stops_nobody_and_costs_counted_lines, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_a_long_line_is_cut, begin, end),
        cmocka_unit_test_setup_teardown(test_threads_lines_are_whole_and_in_their_order, begin, end),
        /* The last: its thread stays behind. */
        cmocka_unit_test_setup(test_closing_does_not_wait_for_a_reader_for_ever, begin),
    };
    return cmocka_run_group_tests_name("lines", tests, NULL, NULL);
}
