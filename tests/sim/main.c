/*
 * sim --seeds FROM:TO [--jobs N]   runs them; prints the counts
 * sim --seed N [--trace]           one of them, with what happens
 * sim --seeds FROM:TO --twice      each twice: the same history, or it fails
 *
 * Jobs are processes; each takes every Nth seed. The first seed that fails ends all of them.
 */
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/life.h"
#include "tests/sim/sim.h"

enum { JOBS_MAX = 64 };

/* Shared with the processes of the jobs. */
struct job {
    struct sim_tally tally;
    uint64_t seed; /* being run */
    bool failed;
};

#define SIM_NAME(name) #name,
static const char *const fault_names[] = {SIM_FAULTS(SIM_NAME)};
static const char *const count_names[] = {SIM_COUNTS(SIM_NAME)};

struct sim sim;
static struct job *jobs, *own;
static const char *program;
static volatile bool *stop;

void sim_fail(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "seed %llu: ", (unsigned long long)sim.seed);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nagain, with what happens: %s --seed %llu --trace\n", program,
            (unsigned long long)sim.seed);
    own->failed = *stop = true;
    _exit(1);
}

void sim_say(const char *format, ...)
{
    va_list args;
    printf("%10.3f ms %2u ", (double)(sim.now_ns - 1000000000000ull) / 1e6, fibers_number());
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

bool sim_fault(enum sim_fault fault)
{
    uint32_t odds = sim.odds[fault];
    if (odds == 0 || sim.calm > 0 || (sim_next(&sim.random_faults) >> 32 & 65535) >= odds)
        return false;
    if (fault == FAULT_no_memory && fibers_is_spared())
        return false;
    sim_fault_happened(fault);
    return true;
}

void sim_fault_happened(enum sim_fault fault)
{
    sim.tally->fault[fault]++;
    sim_note(1000 + fault);
    SIM_SAY("FAULT %s", fault_names[fault]);
}

bool sim_has_faults(void)
{
    uint32_t all = 0;
    for (int i = 0; i < N_FAULTS; i++)
        all |= sim.odds[i];
    return all != 0;
}

static void run_seed(struct job *job, uint64_t seed)
{
    own = job;
    job->seed = seed;
    sim.tally = &job->tally;
    life_run_seed(seed);
}

static void run_job(uint64_t from, uint64_t to, uint32_t number, uint32_t n_jobs)
{
    for (uint64_t seed = from + number; seed < to && !*stop; seed += n_jobs)
        run_seed(&jobs[number], seed);
}

static void print_tally(uint32_t n_jobs)
{
    struct sim_tally all = {0};
    for (uint32_t i = 0; i < n_jobs; i++) {
        for (int k = 0; k < N_COUNTS; k++)
            all.count[k] += jobs[i].tally.count[k];
        for (int k = 0; k < N_FAULTS; k++)
            all.fault[k] += jobs[i].tally.fault[k];
    }
    for (int k = 0; k < N_COUNTS; k++)
        printf("%-26s %llu\n", count_names[k], (unsigned long long)all.count[k]);
    for (int k = 0; k < N_FAULTS; k++)
        printf("fault %-20s %llu\n", fault_names[k], (unsigned long long)all.fault[k]);
}

static int run_seeds(uint64_t from, uint64_t to, uint32_t n_jobs)
{
    pid_t children[JOBS_MAX];
    bool failed = false;
    for (uint32_t i = 0; i < n_jobs; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            run_job(from, to, i, n_jobs);
            _exit(0);
        }
        if (children[i] < 0)
            return 2;
    }
    for (uint32_t left = n_jobs; left > 0; left--) {
        int status = 0;
        uint32_t i = 0;
        pid_t ended = wait(&status);
        while (i + 1 < n_jobs && children[i] != ended)
            i++;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        failed = *stop = true;
        if (WIFSIGNALED(status)) /* otherwise it has said why */
            fprintf(stderr, "seed %llu: CRASH by signal %d\n", (unsigned long long)jobs[i].seed,
                    WTERMSIG(status));
    }
    print_tally(n_jobs);
    return failed ? 1 : 0;
}

/* The same seed twice: 0, or 1 where they differ. */
static int run_twice(uint64_t from, uint64_t to)
{
    for (uint64_t seed = from; seed < to; seed++) {
        uint64_t hash[2];
        for (int i = 0; i < 2; i++) {
            run_seed(&jobs[0], seed);
            hash[i] = sim.hash;
        }
        if (hash[0] != hash[1]) {
            fprintf(stderr, "seed %llu has two histories\n", (unsigned long long)seed);
            return 1;
        }
    }
    printf("%llu seeds, each with one history\n", (unsigned long long)(to - from));
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t from = 0, to = 0;
    uint32_t n_jobs = 1;
    bool twice = false;
    program = argv[0];
    for (int i = 1; i < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--trace") == 0) {
            sim.trace = true;
        } else if (strcmp(argv[i], "--twice") == 0) {
            twice = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            from = strtoull(argv[++i], &end, 10);
            to = from + 1;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            from = strtoull(argv[++i], &end, 10);
            to = *end == ':' ? strtoull(end + 1, &end, 10) : from;
        } else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc) {
            n_jobs = (uint32_t)strtoul(argv[++i], &end, 10);
        } else {
            to = from;
            break;
        }
    }
    if (to <= from || n_jobs < 1 || n_jobs > JOBS_MAX) {
        fprintf(stderr,
                "usage: sim --seeds FROM:TO [--jobs N] | --seed N [--trace] | --seeds FROM:TO --twice\n");
        return 2;
    }
    size_t bytes = sizeof *jobs * n_jobs + sizeof *stop;
    jobs = __real_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (jobs == MAP_FAILED)
        return 2;
    stop = (volatile bool *)(jobs + n_jobs);
    own = &jobs[0];
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (twice)
        return run_twice(from, to);
    if (to - from > 1)
        return run_seeds(from, to, n_jobs);
    run_seed(&jobs[0], from);
    printf("history %016llx\n", (unsigned long long)sim.hash);
    return 0;
}
