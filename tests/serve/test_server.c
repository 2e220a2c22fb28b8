/* The server before its engine is there, which no test from outside can hold still: what it answers, and that
 * it stops. */
#include "engine/serve/serve.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const struct eng_server_config config = {.host = "127.0.0.1", .model_path = "/models/tiny.gguf"};

static int dial(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Sends one request and reads the answer to its end. */
static void ask(uint16_t port, const char *method, const char *path, const char *body, char *answer,
                size_t len)
{
    char request[512];
    int fd = dial(port);
    snprintf(request, sizeof request,
             "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", method, path,
             strlen(body), body);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    size_t n = 0;
    ssize_t got;
    while (n + 1 < len && (got = recv(fd, answer + n, len - 1 - n, 0)) > 0)
        n += (size_t)got;
    answer[n] = '\0';
    close(fd);
}

static struct eng_server *start(void)
{
    struct eng_server *s = NULL;
    char err[256] = "";
    assert_int_equal(eng_server_start(&config, &s, err, sizeof err), ENG_OK);
    assert_non_null(s);
    assert_true(eng_server_port(s) > 0);
    return s;
}

static void test_while_loading_it_says_so(void **state)
{
    struct eng_server *s = start();
    uint16_t port = eng_server_port(s);
    static char answer[65536];
    (void)state;
    ask(port, "GET", "/health", "", answer, sizeof answer);
    assert_non_null(strstr(answer, "HTTP/1.1 503 "));
    assert_non_null(strstr(answer, "{\"status\":\"loading\"}"));

    static const char *const posts[] = {"/v1/chat/completions", "/v1/completions", "/tokenize",
                                        "/detokenize"};
    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++) {
        ask(port, "POST", posts[i], "{}", answer, sizeof answer);
        assert_non_null(strstr(answer, "HTTP/1.1 503 "));
        assert_non_null(strstr(answer, "\r\nRetry-After: "));
        assert_non_null(strstr(answer, "\"code\":\"loading\""));
    }
    static const char *const gets[] = {"/v1/models", "/cache"};
    for (size_t i = 0; i < sizeof gets / sizeof gets[0]; i++) {
        ask(port, "GET", gets[i], "", answer, sizeof answer);
        assert_non_null(strstr(answer, "HTTP/1.1 503 "));
    }
    ask(port, "GET", "/metrics", "", answer, sizeof answer);
    assert_non_null(strstr(answer, "HTTP/1.1 200 "));
    assert_non_null(strstr(answer, "\nisotherm_ready 0\n"));
    ask(port, "GET", "/", "", answer, sizeof answer);
    assert_non_null(strstr(answer, "HTTP/1.1 200 "));
    ask(port, "GET", "/nope", "", answer, sizeof answer);
    assert_non_null(strstr(answer, "HTTP/1.1 404 "));
    eng_server_stop(s, 0);
}

static void test_it_stops_beside_open_connections(void **state)
{
    struct eng_server *s = start();
    int fds[8];
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        fds[i] = dial(eng_server_port(s));
        if (i % 2)
            assert_int_equal(send(fds[i], "POST /tokenize HTTP/1.1\r\n", 25, MSG_NOSIGNAL), 25);
    }
    eng_server_stop(s, 0);
    for (size_t i = 0; i < 8; i++)
        close(fds[i]);
}

/* Waits until the peer has closed. */
static void expect_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    assert_int_equal(poll(&p, 1, 30000), 1);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
}

static void test_who_is_silent_for_longest_makes_room(void **state)
{
    enum { LIMIT = 16, SILENT = 3 * LIMIT };
    static const char headers[] = "POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\n{";
    static char answer[65536];
    struct eng_server_config c = config;
    (void)state;
    c.max_connections = LIMIT;
    for (int with_headers = 0; with_headers < 2; with_headers++) {
        struct eng_server *s = NULL;
        char err[256] = "";
        int fds[SILENT];
        assert_int_equal(eng_server_start(&c, &s, err, sizeof err), ENG_OK);
        for (size_t i = 0; i < SILENT; i++) {
            fds[i] = dial(eng_server_port(s));
            if (with_headers)
                assert_int_equal(send(fds[i], headers, sizeof headers - 1, MSG_NOSIGNAL), sizeof headers - 1);
            ask(eng_server_port(s), "GET", "/health", "", answer, sizeof answer);
            assert_non_null(strstr(answer, "{\"status\":\"loading\"}"));
        }
        for (size_t i = 0; i < SILENT - LIMIT; i++)
            expect_closed(fds[i]);
        struct pollfd youngest = {.fd = fds[SILENT - 1], .events = POLLIN};
        assert_int_equal(poll(&youngest, 1, 0), 0);
        for (size_t i = 0; i < SILENT; i++)
            close(fds[i]);
        eng_server_stop(s, 0);
    }
}

/* A client that announces more than is taken hears it before it sends, and while it sends. */
static void test_an_announced_body_that_is_too_large_is_refused_at_once(void **state)
{
    enum { LIMIT = 100000 };
    static const char *const methods[] = {"POST", "GET"};
    static char body[LIMIT + 1], answer[65536];
    struct eng_server_config c = config;
    struct eng_server *s = NULL;
    char err[256] = "", request[256];
    (void)state;
    c.max_body_bytes = LIMIT;
    assert_int_equal(eng_server_start(&c, &s, err, sizeof err), ENG_OK);
    for (size_t i = 0; i < 4; i++) {
        int fd = dial(eng_server_port(s));
        int n =
            snprintf(request, sizeof request, "%s /health HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
                     methods[i % 2], i < 2 ? 1000000000 : LIMIT + 1);
        assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
        if (i >= 2)
            assert_int_equal(send(fd, body, sizeof body, MSG_NOSIGNAL), sizeof body);
        size_t have = 0;
        ssize_t got;
        while ((got = recv(fd, answer + have, sizeof answer - 1 - have, 0)) > 0)
            have += (size_t)got;
        assert_int_equal(got, 0); /* an end, no reset */
        answer[have] = '\0';
        assert_non_null(strstr(answer, i % 2 ? "HTTP/1.1 413 " : "HTTP/1.1 405 "));
        close(fd);
    }
    int left = dial(eng_server_port(s)); /* one that lingers while the server stops */
    int n =
        snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n");
    assert_int_equal(send(left, request, (size_t)n, MSG_NOSIGNAL), n);
    assert_true(recv(left, answer, sizeof answer, 0) > 0);
    eng_server_stop(s, 0);
    close(left);
}

static void test_addresses_that_others_reach_need_keys(void **state)
{
    static const char *const open[] = {"0.0.0.0", "192.0.2.1", "::", "2001:db8::1"};
    static const char *const unknown[] = {"localhost", "", "127.0.0.1.2", "nonsense"};
    struct eng_server *s = NULL;
    char err[256];
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct eng_server_config c = config;
        c.host = open[i];
        assert_int_equal(eng_server_start(&c, &s, err, sizeof err), ENG_EINVAL);
        assert_non_null(strstr(err, "--api-key-file"));
        c.host = unknown[i];
        assert_int_equal(eng_server_start(&c, &s, err, sizeof err), ENG_EINVAL);
        assert_non_null(strstr(err, "numeric"));
    }
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_while_loading_it_says_so),
        cmocka_unit_test(test_it_stops_beside_open_connections),
        cmocka_unit_test(test_who_is_silent_for_longest_makes_room),
        cmocka_unit_test(test_an_announced_body_that_is_too_large_is_refused_at_once),
        cmocka_unit_test(test_addresses_that_others_reach_need_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
