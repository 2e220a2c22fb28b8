/* The server before its engine is there, which no test from outside can hold still: what it answers, and that
 * it stops. */
#include "engine/serve/serve.h"

#include <arpa/inet.h>
#include <netinet/in.h>
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
    eng_server_stop(s);
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
    eng_server_stop(s);
    for (size_t i = 0; i < 8; i++)
        close(fds[i]);
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
        cmocka_unit_test(test_addresses_that_others_reach_need_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
