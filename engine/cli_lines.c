/*
 * The queue of cli_lines.h: a ring of bytes that holds whole lines, and the thread that empties it.
 *
 * The thread copies some whole lines out under the lock and writes them without it, so the lock is never held
 * over a system call. A dropped line is counted; before the next one that fits, or when the ring is empty, a
 * line takes the place of those that are missing.
 */
#include "engine/cli_lines.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum state { LINES_DIRECT, LINES_QUEUED, LINES_ENDED };
enum { BATCH_BYTES = 2 * CLI_LINE_BYTES, NOTICE_BYTES = 256 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    pthread_t thread;
    /* Fixed while there is a thread. */
    int fd;
    void (*lost_line)(char *text, size_t len, uint64_t n);
    /* Under lock. */
    enum state state;
    size_t first, used;
    uint64_t lost; /* since the last line in the ring */
    bool writing, stop;
    char ring[CLI_LINES_BYTES];
} lines = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO};

/* Whole, or as far as somebody takes it: a reader that is gone misses nothing. */
static void write_out(const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(lines.fd, text, len);
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) { /* somebody else made the descriptor so */
            struct pollfd p = {.fd = lines.fd, .events = POLLOUT};
            (void)poll(&p, 1, -1);
        } else if (n == 0 || errno != EINTR) {
            return;
        }
    }
}

static void ring_add(const char *bytes, size_t n)
{
    size_t at = (lines.first + lines.used) % CLI_LINES_BYTES;
    size_t head = n < CLI_LINES_BYTES - at ? n : CLI_LINES_BYTES - at;
    memcpy(lines.ring + at, bytes, head);
    memcpy(lines.ring, bytes + head, n - head);
    lines.used += n;
}

/* At most len bytes from the front, whole lines: len is at least one line. */
static size_t ring_take(char *out, size_t len)
{
    size_t n = lines.used < len ? lines.used : len;
    size_t head = n < CLI_LINES_BYTES - lines.first ? n : CLI_LINES_BYTES - lines.first;
    memcpy(out, lines.ring + lines.first, head);
    memcpy(out + head, lines.ring, n - head);
    while (n > 0 && out[n - 1] != '\n')
        n--;
    lines.first = (lines.first + n) % CLI_LINES_BYTES;
    lines.used -= n;
    return n;
}

/* Length of the line, with its newline, that stands for those that are missing; 0: none is. */
static size_t notice_make(char notice[NOTICE_BYTES])
{
    if (lines.lost == 0)
        return 0;
    lines.lost_line(notice, NOTICE_BYTES - 1, lines.lost);
    size_t n = strlen(notice);
    notice[n++] = '\n';
    return n;
}

static void *lines_main(void *arg)
{
    static char batch[BATCH_BYTES];
    (void)arg;
    pthread_mutex_lock(&lines.lock);
    for (;;) {
        if (lines.used == 0 && lines.lost > 0) {
            char notice[NOTICE_BYTES];
            ring_add(notice, notice_make(notice));
            lines.lost = 0;
        }
        if (lines.used > 0) {
            size_t n = ring_take(batch, sizeof batch);
            lines.writing = true;
            pthread_mutex_unlock(&lines.lock);
            write_out(batch, n);
            pthread_mutex_lock(&lines.lock);
            lines.writing = false;
            continue;
        }
        pthread_cond_broadcast(&lines.emptied);
        if (lines.stop)
            break;
        pthread_cond_wait(&lines.filled, &lines.lock);
    }
    pthread_mutex_unlock(&lines.lock);
    return NULL;
}

void cli_lines_open(int fd, void (*lost)(char *text, size_t len, uint64_t n))
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&lines.emptied, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&lines.filled, NULL);
    lines.fd = fd;
    lines.lost_line = lost;
    lines.first = lines.used = 0;
    lines.lost = 0;
    lines.stop = lines.writing = false;
    sigset_t all, before; /* signals are for the others */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool started = pthread_create(&lines.thread, NULL, lines_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&lines.lock);
    lines.state = started ? LINES_QUEUED : LINES_DIRECT;
    pthread_mutex_unlock(&lines.lock);
}

void cli_lines_put(const char *text)
{
    char notice[NOTICE_BYTES];
    size_t n = strnlen(text, CLI_LINE_BYTES - 1);
    pthread_mutex_lock(&lines.lock);
    if (lines.state == LINES_QUEUED) {
        size_t n_notice = notice_make(notice);
        if (n_notice + n + 1 <= CLI_LINES_BYTES - lines.used) {
            bool sleeps = lines.used == 0 && !lines.writing;
            ring_add(notice, n_notice);
            ring_add(text, n);
            ring_add("\n", 1);
            lines.lost = 0;
            if (sleeps)
                pthread_cond_signal(&lines.filled);
        } else {
            lines.lost++;
        }
    }
    bool direct = lines.state == LINES_DIRECT;
    pthread_mutex_unlock(&lines.lock);
    if (direct)
        dprintf(lines.fd, "%.*s\n", (int)n, text);
}

/* Lock held. */
static bool wait_empty(uint32_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (timeout_ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    int rc = 0;
    while ((lines.used > 0 || lines.writing || lines.lost > 0) && rc == 0)
        rc = pthread_cond_timedwait(&lines.emptied, &lines.lock, &until);
    return lines.used == 0 && !lines.writing && lines.lost == 0;
}

bool cli_lines_flush(uint32_t timeout_ms)
{
    pthread_mutex_lock(&lines.lock);
    bool empty = lines.state != LINES_QUEUED || wait_empty(timeout_ms);
    pthread_mutex_unlock(&lines.lock);
    return empty;
}

void cli_lines_close(uint32_t timeout_ms)
{
    pthread_mutex_lock(&lines.lock);
    if (lines.state != LINES_QUEUED) {
        pthread_mutex_unlock(&lines.lock);
        return;
    }
    bool empty = wait_empty(timeout_ms);
    lines.state = LINES_ENDED;
    lines.stop = true;
    pthread_cond_signal(&lines.filled);
    pthread_mutex_unlock(&lines.lock);
    if (empty)
        pthread_join(lines.thread, NULL);
    else /* it sits in a write that nobody takes; the process ends under it */
        pthread_detach(lines.thread);
}
