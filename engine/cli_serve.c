/*
 * isotherm serve: the server first, so that /health answers 503 while the model loads; then the engine; then
 * wait for SIGINT or SIGTERM, let replies that have begun end within a grace, flush the store within a
 * deadline.
 *
 * Signals are blocked in every thread and taken by the main one with sigwait. So that it can do that while
 * the model loads, another thread loads, and tells it with SIGUSR1. A signal during loading ends the process
 * at once: there is nothing to flush. A second one after a first does the same.
 */
#include "engine/cli.h"
#include "engine/serve/serve.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REPLY_GRACE_MS    5000
#define FLUSH_DEADLINE_MS 10000

static void say(const struct cli_options *o, enum cs_log_level level, const char *format, const char *arg)
{
    char line[512];
    snprintf(line, sizeof line, format, arg);
    cli_log((void *)o, level, line);
}

struct loading {
    const struct eng_config *config;
    struct eng_engine *engine;
    int rc;
    char err[400];
    pthread_t main_thread;
};

static void *load(void *arg)
{
    struct loading *l = arg;
    l->rc = eng_engine_open(l->config, &l->engine, l->err, sizeof l->err);
    pthread_kill(l->main_thread, SIGUSR1);
    return NULL;
}

static int wait_signal(const sigset_t *set)
{
    int number = 0;
    while (sigwait(set, &number) != 0)
        ;
    return number;
}

/* The engine, or NULL with *exit_code. */
static struct eng_engine *open_engine(const struct cli_options *o, const sigset_t *signals, int *exit_code)
{
    struct eng_config config = cli_engine_config(o);
    config.log = cli_log;
    config.log_step = o->log_json ? cli_log_step : NULL;
    config.log_ctx = (void *)o;
    struct loading l = {.config = &config, .main_thread = pthread_self()};
    pthread_t loader;
    *exit_code = CLI_FAILED;
    if (pthread_create(&loader, NULL, load, &l) != 0) {
        cli_complain("isotherm serve: cannot start a thread");
        return NULL;
    }
    int number = wait_signal(signals);
    if (number != SIGUSR1) { /* nothing is kept that would have to be flushed */
        cli_log_close();
        signal(number, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, signals, NULL);
        raise(number);
    }
    pthread_join(loader, NULL);
    if (l.rc == ENG_OK)
        return l.engine;
    cli_complain("isotherm serve: %s", l.err);
    *exit_code = l.rc == ENG_EINVAL ? CLI_USAGE : CLI_FAILED;
    return NULL;
}

static int serve(const struct cli_options *o)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);

    char err[400] = "";
    struct eng_server *server = NULL;
    struct eng_server_config config = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .alias = o->alias,
        .model_path = o->model,
        .api_key_file = o->api_key_file,
        .debug = o->debug,
        .log = cli_log,
        .log_ctx = (void *)o,
    };
    int rc = eng_server_start(&config, &server, err, sizeof err);
    if (rc != ENG_OK) {
        cli_complain("isotherm serve: %s", err);
        return rc == ENG_EINVAL ? CLI_USAGE : CLI_FAILED;
    }
    char address[300];
    bool v6 = strchr(o->host, ':') != NULL; /* in a URL its address stands in brackets */
    snprintf(address, sizeof address, v6 ? "http://[%s]:%u" : "http://%s:%u", o->host,
             eng_server_port(server));
    say(o, CS_LOG_INFO, "listening on %s, loading", address);
    int exit_code;
    struct eng_engine *engine = open_engine(o, &signals, &exit_code);
    if (engine) {
        eng_server_ready(server, engine);
        say(o, CS_LOG_INFO, "serving on %s", address);
        int number;
        do {
            number = wait_signal(&signals);
        } while (number == SIGUSR1);
        say(o, CS_LOG_INFO,
            "%s: replies that have begun may end, then the prefix cache is flushed; again to end at once",
            number == SIGINT ? "SIGINT" : "SIGTERM");
        sigdelset(&signals, SIGUSR1);
        pthread_sigmask(SIG_UNBLOCK, &signals, NULL); /* their default from here on */
        exit_code = CLI_OK;
    }
    eng_server_stop(server, REPLY_GRACE_MS);
    cli_engine_close(engine, FLUSH_DEADLINE_MS);
    return exit_code;
}

int cli_serve(const struct cli_options *o)
{
    cli_log_open(o);
    int exit_code = serve(o);
    cli_log_close();
    return exit_code;
}
