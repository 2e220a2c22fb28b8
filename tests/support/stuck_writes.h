/*
 * A disk that does not answer: writes of the I/O engine `pread` wait while stuck_writes() is on. For programs
 * that are linked with STUCK_WRITES_ARGS (meson.build).
 */
#ifndef ISOTHERM_TESTS_SUPPORT_STUCK_WRITES_H
#define ISOTHERM_TESTS_SUPPORT_STUCK_WRITES_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/uio.h>

static pthread_mutex_t stuck_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stuck_changed = PTHREAD_COND_INITIALIZER;
static bool stuck_on;
static unsigned stuck_n; /* writes that wait */

ssize_t __real_pwritev64(int fd, const struct iovec *iov, int n_iov, off_t offset);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n_iov, off_t offset);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    pthread_mutex_lock(&stuck_lock);
    stuck_n++;
    pthread_cond_broadcast(&stuck_changed);
    while (stuck_on)
        pthread_cond_wait(&stuck_changed, &stuck_lock);
    stuck_n--;
    pthread_mutex_unlock(&stuck_lock);
    return __real_pwritev64(fd, iov, n_iov, offset);
}

static inline void stuck_writes(bool on)
{
    pthread_mutex_lock(&stuck_lock);
    stuck_on = on;
    pthread_cond_broadcast(&stuck_changed);
    pthread_mutex_unlock(&stuck_lock);
}

/* Until a write waits. */
static inline void stuck_wait(void)
{
    pthread_mutex_lock(&stuck_lock);
    while (stuck_n == 0)
        pthread_cond_wait(&stuck_changed, &stuck_lock);
    pthread_mutex_unlock(&stuck_lock);
}

#endif
