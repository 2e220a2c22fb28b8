/*
 * isotherm run: a chat in the terminal, or one prompt with -p. The reply goes to stdout, everything about it
 * to stderr. The engine reports on its own thread into a buffer; the main thread waits on an eventfd that it
 * writes to, and on one of the SIGINT handler's.
 */
#include "engine/cli.h"
#include "engine/cli_line.h"
#include "engine/runtime/stop.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define FLUSH_DEADLINE_MS 5000

static int event_fd = -1, interrupt_fd = -1;

static void on_interrupt(int number)
{
    (void)number;
    int saved = errno;
    uint64_t one = 1;
    (void)!write(interrupt_fd, &one, sizeof one);
    errno = saved;
}

/* A signal has come since the last call. */
static bool interrupted(void)
{
    uint64_t count;
    return read(interrupt_fd, &count, sizeof count) > 0;
}

/* One reply under way. `lock` guards what the engine thread writes. */
struct turn {
    pthread_mutex_t lock;
    struct text_buffer fresh; /* not printed yet */
    bool done;
    int result;
    struct eng_usage usage;
    char message[160];
};

struct chat {
    const struct cli_options *options;
    struct eng_engine *engine;
    struct eng_message *messages;
    size_t n_messages, cap_messages;
    uint64_t seed;
};

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct turn *t = ctx;
    pthread_mutex_lock(&t->lock);
    (void)text_buffer_add(&t->fresh, ev->text, ev->text_len);
    pthread_mutex_unlock(&t->lock);
    uint64_t one = 1;
    (void)!write(event_fd, &one, sizeof one);
}

static void on_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct turn *t = ctx;
    pthread_mutex_lock(&t->lock);
    t->result = result;
    t->usage = *usage;
    snprintf(t->message, sizeof t->message, "%s", usage->message);
    t->done = true;
    pthread_mutex_unlock(&t->lock);
    uint64_t one = 1;
    (void)!write(event_fd, &one, sizeof one);
}

/* Prints what comes until the reply ends; Ctrl-C cancels it. */
static int follow(struct chat *c, struct turn *t, eng_request_id id, struct text_buffer *reply)
{
    bool done = false;
    int rc = ENG_OK;
    while (!done) {
        struct pollfd p[2] = {{.fd = event_fd, .events = POLLIN}, {.fd = interrupt_fd, .events = POLLIN}};
        uint64_t count;
        (void)poll(p, 2, -1);
        (void)!read(event_fd, &count, sizeof count);
        if (interrupted())
            eng_cancel(c->engine, id);
        pthread_mutex_lock(&t->lock);
        struct text_buffer fresh = t->fresh;
        memset(&t->fresh, 0, sizeof t->fresh);
        done = t->done;
        pthread_mutex_unlock(&t->lock);
        if (fresh.len > 0) {
            fwrite(fresh.data, 1, fresh.len, stdout);
            fflush(stdout);
        }
        if (text_buffer_add(reply, fresh.data, fresh.len) != ENG_OK)
            rc = ENG_ENOMEM;
        free(fresh.data);
    }
    return t->result != ENG_OK ? t->result : rc;
}

static void print_usage(const struct eng_usage *u)
{
    bool tty = isatty(STDERR_FILENO);
    uint32_t reused = cs_reuse_tokens(&u->reuse);
    double prefill_tokens = u->prompt_tokens > reused ? u->prompt_tokens - reused : 0;
    fprintf(stderr, "%s[%u tokens", tty ? "\033[2m" : "", u->completion_tokens);
    if (u->completion_tokens > 1 && u->decode_ms > 0)
        fprintf(stderr, " · %.1f tokens/s", (u->completion_tokens - 1) * 1e3 / u->decode_ms);
    fprintf(stderr, " · prompt %u, reused %u", u->prompt_tokens, reused);
    if (u->reuse.tokens_host)
        fprintf(stderr, " (%u from host memory)", u->reuse.tokens_host);
    if (u->reuse.tokens_disk)
        fprintf(stderr, " (%u from disk)", u->reuse.tokens_disk);
    else if (u->reuse.tokens_matched > reused)
        fprintf(stderr, " of %u matched (%s)", u->reuse.tokens_matched, cs_miss_name(u->reuse.miss));
    else if (u->reuse.miss != CS_MISS_NONE)
        fprintf(stderr, " (%s)", cs_miss_name(u->reuse.miss));
    if (u->prefill_ms > 0)
        fprintf(stderr, " · prefill %.0f ms, %.0f tokens/s", u->prefill_ms,
                prefill_tokens * 1e3 / u->prefill_ms);
    fprintf(stderr, "]%s\n", tty ? "\033[0m" : "");
}

static int add_message(struct chat *c, enum eng_role role, const char *text, size_t len)
{
    if (c->n_messages == c->cap_messages) {
        size_t cap = c->cap_messages ? 2 * c->cap_messages : 16;
        struct eng_message *m = realloc(c->messages, cap * sizeof *m);
        if (!m)
            return ENG_ENOMEM;
        c->messages = m;
        c->cap_messages = cap;
    }
    char *copy = malloc(len + 1);
    if (!copy)
        return ENG_ENOMEM;
    if (len > 0)
        memcpy(copy, text, len);
    copy[len] = '\0';
    c->messages[c->n_messages++] = (struct eng_message){role, copy, len};
    return ENG_OK;
}

static void drop_message(struct chat *c)
{
    free((void *)c->messages[--c->n_messages].content);
}

static struct eng_sampling sampling_of(const struct chat *c)
{
    struct eng_sampling s = eng_sampling_defaults();
    s.temperature = (float)c->options->temperature;
    s.top_p = (float)c->options->top_p;
    s.top_k = c->options->top_k;
    s.min_p = (float)c->options->min_p;
    s.seed = c->seed + c->n_messages; /* another turn, other numbers; the same chat, the same ones */
    return s;
}

/* Submits *prompt and shows the reply. */
static int reply_to(struct chat *c, struct eng_prompt *prompt, struct text_buffer *reply)
{
    char err[300] = "";
    struct turn t = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct eng_sampling sampling = sampling_of(c);
    struct eng_request request = {
        .prompt = prompt,
        .sampling = &sampling,
        .n_choices = 1,
        .max_tokens = c->options->max_tokens,
        .on_event = on_event,
        .on_done = on_done,
        .ctx = &t,
    };
    eng_request_id id;
    (void)interrupted(); /* what came before is over */
    int rc = eng_submit(c->engine, &request, &id, err, sizeof err);
    if (rc != ENG_OK) {
        fprintf(stderr, "isotherm run: %s\n", err);
        return rc;
    }
    rc = follow(c, &t, id, reply);
    putchar('\n');
    fflush(stdout);
    cli_log_flush(); /* what is said of the reply here comes behind what was logged of it */
    if (rc != ENG_OK)
        fprintf(stderr, "isotherm run: %s\n", t.message[0] ? t.message : eng_strerror(rc));
    print_usage(&t.usage);
    free(t.fresh.data);
    pthread_mutex_destroy(&t.lock);
    return rc;
}

/* The chat goes on being what it was before the message. */
static int refuse_full(const struct chat *c, struct eng_prompt *prompt)
{
    fprintf(
        stderr,
        "isotherm run: the chat with this message has %zu tokens, the context of %u has no room for a reply; "
        "/clear begins a new chat, --context N makes it larger\n",
        prompt->ids.n, eng_engine_context(c->engine));
    eng_prompt_free(prompt);
    return ENG_EFULL;
}

static int take_turn(struct chat *c, const char *text, size_t len)
{
    char err[300] = "";
    struct eng_prompt prompt;
    struct text_buffer reply = {0};
    int rc = add_message(c, ENG_ROLE_USER, text, len);
    if (rc != ENG_OK)
        return rc;
    rc = eng_engine_render(c->engine, NULL, c->messages, c->n_messages, true, &prompt, err, sizeof err);
    if (rc != ENG_OK)
        fprintf(stderr, "isotherm run: %s\n", err);
    else if (prompt.ids.n >= eng_engine_context(c->engine))
        rc = refuse_full(c, &prompt);
    else
        rc = reply_to(c, &prompt, &reply);
    if (rc == ENG_OK)
        rc = add_message(c, ENG_ROLE_ASSISTANT, reply.data, reply.len);
    else
        drop_message(c);
    free(reply.data);
    return rc;
}

/* -p with a model that has no chat template: the text is continued. */
static int complete(struct chat *c, const char *text)
{
    struct eng_prompt prompt = {0};
    struct text_buffer reply = {0};
    const struct eng_tokenizer *t = eng_engine_tokenizer(c->engine);
    uint32_t bos = eng_tokenizer_bos(t);
    int rc = ENG_OK;
    if (eng_tokenizer_add_bos(t) && bos != UINT32_MAX)
        rc = eng_ids_add(&prompt.ids, &bos, 1);
    if (rc == ENG_OK)
        rc = eng_tokenizer_encode(t, text, strlen(text), false, &prompt.ids);
    if (rc == ENG_OK)
        rc = reply_to(c, &prompt, &reply);
    eng_prompt_free(&prompt);
    free(reply.data);
    return rc;
}

static void forget(struct chat *c)
{
    while (c->n_messages > (c->options->system != NULL))
        drop_message(c);
    fprintf(stderr, "isotherm run: a new chat\n");
}

enum command { COMMAND_NONE, COMMAND_DONE, COMMAND_QUIT };

static bool is_command(const char *line, size_t len, const char *name)
{
    return strlen(name) == len && memcmp(line, name, len) == 0;
}

/* A line that is a command is no message. */
static enum command obey(struct chat *c, const char *line, size_t len)
{
    if (is_command(line, len, "/quit") || is_command(line, len, "/exit"))
        return COMMAND_QUIT;
    if (!is_command(line, len, "/clear") && !is_command(line, len, "/reset"))
        return COMMAND_NONE;
    forget(c);
    return COMMAND_DONE;
}

static int converse(struct chat *c)
{
    bool tty = isatty(STDIN_FILENO);
    struct cli_line *lines = cli_line_open(tty, interrupt_fd);
    int rc = ENG_OK;
    if (!lines)
        return ENG_ENOMEM;
    if (tty)
        fprintf(stderr, "/clear forgets the chat, /quit or Ctrl-D ends, Ctrl-C ends a reply.\n");
    for (;;) {
        const char *line;
        long n = cli_line_read(lines, &line);
        if (n == CLI_LINE_INTERRUPTED) {
            fputc('\n', stderr);
            continue;
        }
        enum command command = n < 0 ? COMMAND_QUIT : obey(c, line, (size_t)n);
        if (command == COMMAND_QUIT)
            break;
        if (n == 0 || command == COMMAND_DONE)
            continue;
        rc = take_turn(c, line, (size_t)n);
        if (rc != ENG_OK && !tty)
            break;
    }
    if (tty)
        fputc('\n', stderr);
    cli_line_close(lines);
    return rc;
}

int cli_run(const struct cli_options *o)
{
    char err[400] = "";
    int exit_code = CLI_FAILED;
    struct chat chat = {.options = o, .seed = o->seed};
    if (!o->seed_given && getrandom(&chat.seed, sizeof chat.seed, 0) != (ssize_t)sizeof chat.seed)
        chat.seed = (uint64_t)time(NULL);
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_fd < 0 || interrupt_fd < 0) {
        fprintf(stderr, "isotherm run: eventfd: %s\n", strerror(errno));
        return CLI_FAILED;
    }
    struct eng_config config = cli_engine_config(o);
    config.max_concurrency = 1;
    config.log = cli_log;
    config.log_ctx = (void *)o;
    cli_log_open(o);
    int rc = eng_engine_open(&config, &chat.engine, err, sizeof err);
    cli_log_flush();
    if (rc != ENG_OK) {
        fprintf(stderr, "isotherm run: %s\n", err);
        exit_code = rc == ENG_EINVAL ? CLI_USAGE : CLI_FAILED;
        goto out;
    }
    struct sigaction on_int = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line comes back */
    sigaction(SIGINT, &on_int, NULL);
    if (o->system && add_message(&chat, ENG_ROLE_SYSTEM, o->system, strlen(o->system)) != ENG_OK)
        goto out;
    if (o->prompt && !eng_engine_template(chat.engine))
        rc = complete(&chat, o->prompt);
    else if (o->prompt)
        rc = take_turn(&chat, o->prompt, strlen(o->prompt));
    else
        rc = converse(&chat);
    exit_code = rc == ENG_OK ? CLI_OK : CLI_FAILED;
out:
    while (chat.n_messages > 0)
        drop_message(&chat);
    free(chat.messages);
    cli_engine_close(chat.engine, FLUSH_DEADLINE_MS);
    cli_log_close();
    close(event_fd);
    return exit_code;
}
