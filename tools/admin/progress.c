/* Long commands: lines of progress, and signals that stop them in order. */
#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "tools/admin/admin.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* Once each: a second one finds what it had found without us, be it that a process does not answer. */
static void catch_signals(int flags)
{
    static const int stopping[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = flags | SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++)
        sigaction(stopping[i], &action, NULL);
}

void stop_on_signals(void)
{
    catch_signals(SA_RESTART);
}

void stop_at_once_on_signals(void)
{
    catch_signals(0);
}

bool stopped(void)
{
    return interrupted != 0;
}

bool progress_due(double every_s)
{
    static double last = -1;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    if (last < 0)
        last = now;
    if (now - last < every_s)
        return false;
    last = now;
    return true;
}

static bool line_open;

void progress_line(const char *format, ...)
{
    bool terminal = isatty(STDERR_FILENO) != 0;
    char line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, terminal ? "\r\033[K%s" : "%s\n", line);
    line_open = terminal;
    fflush(stderr);
}

void progress_end(void)
{
    if (line_open)
        fprintf(stderr, "\r\033[K");
    line_open = false;
}
