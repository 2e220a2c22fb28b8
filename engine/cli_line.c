/*
 * See cli_line.h. libedit writes its prompt and echo to stderr: stdout has nothing but replies. Its own
 * reader would swallow the first signal, so it gets one that comes back at each, and that no signal between
 * two characters escapes.
 */
#include "engine/cli_line.h"
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef ISOTHERM_LIBEDIT
#include <histedit.h>
#include <locale.h>
#include <wchar.h>
#endif

#define PROMPT       "> "
#define RECALL_LINES 500

struct cli_line {
    bool terminal;
    int interrupt_fd;
    char *buffer;
    size_t cap;
#ifdef ISOTHERM_LIBEDIT
    EditLine *edit;
    History *history;
#endif
};

bool cli_line_edits(void)
{
#ifdef ISOTHERM_LIBEDIT
    return true;
#else
    return false;
#endif
}

/* Until there is something to read; false, with EINTR, after a signal. */
static bool wait_for_input(const struct cli_line *l)
{
    struct pollfd p[2] = {{.fd = l->interrupt_fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    uint64_t count;
    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    if (read(l->interrupt_fd, &count, sizeof count) < 0)
        return true;
    errno = EINTR;
    return false;
}

#ifdef ISOTHERM_LIBEDIT
static char *prompt(EditLine *edit)
{
    static char text[] = PROMPT;
    (void)edit;
    return text;
}

/* One character. 1, 0 at the end, -1 with errno. */
static int read_character(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    struct cli_line *l;
    el_get(edit, EL_CLIENTDATA, &l);
    for (;;) {
        char byte;
        if (!wait_for_input(l))
            return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1) { /* no character: what came is dropped */
            memset(&state, 0, sizeof state);
            continue;
        }
        if (used != (size_t)-2)
            return 1;
    }
}

static void edit_close(struct cli_line *l)
{
    if (l->edit)
        el_end(l->edit);
    if (l->history)
        history_end(l->history);
}

/* Without it, or where it fails, lines are read as the terminal gives them. */
static void edit_open(struct cli_line *l)
{
    HistEvent event;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    l->history = history_init();
    l->edit = l->history ? el_init("isotherm", stdin, stderr, stderr) : NULL;
    if (!l->edit)
        return;
    history(l->history, &event, H_SETSIZE, RECALL_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_wset(l->edit, EL_GETCFN, read_character);
    el_source(l->edit, NULL); /* the user's ~/.editrc */
}

static long edit_read(struct cli_line *l, const char **text)
{
    int n = 0;
    HistEvent event;
    errno = 0;
    el_set(l->edit, EL_PREP_TERM, 1); /* before the prompt says that keys may come */
    *text = el_gets(l->edit, &n);
    if (!*text || n <= 0)
        return errno == EINTR ? CLI_LINE_INTERRUPTED : CLI_LINE_END;
    if (n > 1)
        history(l->history, &event, H_ENTER, *text);
    return n;
}
#endif

struct cli_line *cli_line_open(bool terminal, int interrupt_fd)
{
    struct cli_line *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->terminal = terminal;
    l->interrupt_fd = interrupt_fd;
#ifdef ISOTHERM_LIBEDIT
    if (terminal)
        edit_open(l);
#endif
    return l;
}

static long plain_read(struct cli_line *l, const char **text)
{
    if (l->terminal) {
        fputs(PROMPT, stderr);
        fflush(stderr);
    }
    errno = 0;
    /* A terminal gives a line at a time: the buffer behind stdin is empty here. */
    ssize_t n = l->terminal && !wait_for_input(l) ? -1 : getline(&l->buffer, &l->cap, stdin);
    *text = l->buffer;
    if (n >= 0)
        return n;
    if (errno != EINTR)
        return CLI_LINE_END;
    clearerr(stdin);
    return CLI_LINE_INTERRUPTED;
}

long cli_line_read(struct cli_line *l, const char **text)
{
    long n;
#ifdef ISOTHERM_LIBEDIT
    n = l->edit ? edit_read(l, text) : plain_read(l, text);
#else
    n = plain_read(l, text);
#endif
    while (n > 0 && ((*text)[n - 1] == '\n' || (*text)[n - 1] == '\r'))
        n--;
    return n;
}

void cli_line_close(struct cli_line *l)
{
    if (!l)
        return;
#ifdef ISOTHERM_LIBEDIT
    edit_close(l);
#endif
    free(l->buffer);
    free(l);
}
