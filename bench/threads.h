/* What threads of this process had of the processors, as the kernel counts it. */
#ifndef ISOTHERM_BENCH_THREADS_H
#define ISOTHERM_BENCH_THREADS_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS_MAX = 64 };

struct threads {
    int id[THREADS_MAX];
    unsigned n;
};

/* On a processor; able to run and waiting for one; times put on one. */
struct thread_times {
    double ran_s, waited_s;
    uint64_t turns;
};

static inline void threads_caller(struct threads *out)
{
    *out = (struct threads){.id = {(int)syscall(SYS_gettid)}, .n = 1};
}

/* All of the process but the caller. */
static inline void threads_others(struct threads *out)
{
    int caller = (int)syscall(SYS_gettid);
    DIR *d = opendir("/proc/self/task");
    *out = (struct threads){0};
    for (struct dirent *e; d && out->n < THREADS_MAX && (e = readdir(d));) {
        int id = (int)strtol(e->d_name, NULL, 10);
        if (id > 0 && id != caller)
            out->id[out->n++] = id;
    }
    if (d)
        closedir(d);
}

/* All of them together; those that have ended, and a kernel that does not tell, count as zeros. */
static inline struct thread_times threads_times(const struct threads *t)
{
    struct thread_times sum = {0};
    for (unsigned i = 0; i < t->n; i++) {
        char path[64];
        unsigned long long ran, waited, turns;
        snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", t->id[i]);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%llu %llu %llu", &ran, &waited, &turns) == 3) {
            sum.ran_s += (double)ran * 1e-9;
            sum.waited_s += (double)waited * 1e-9;
            sum.turns += turns;
        }
        if (f)
            fclose(f);
    }
    return sum;
}

#endif
