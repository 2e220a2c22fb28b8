/* Wall and processor seconds of a benchmark. */
#ifndef ISOTHERM_BENCH_CLOCK_H
#define ISOTHERM_BENCH_CLOCK_H

#include <sys/resource.h>
#include <time.h>

static inline double wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of this process, all its threads, user and system. */
static inline double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

#endif
