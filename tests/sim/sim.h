/*
 * The simulated world under the store: what its files share.
 *
 * The store's archive is linked unchanged; the linker puts the functions of these files in the place of
 * threads, locks, clocks, memory and files (--wrap, see meson.build). All of it runs on one real thread, and
 * everything that could go one way or another is drawn from the seed, so that a seed is one exact history.
 *
 *   fibers.c   threads as coroutines, locks, the clock; who runs next
 *   memory.c   the process's memory: gone with it at a kill, all given back at its end
 *   files.c    the file system: what is volatile, what is durable
 *   calls.c    calls of the system on it, that may fail
 *   sockets.c  the control socket and its clients
 *   engine.c   the I/O engine
 *   catalog.c  the catalogue
 *   rows.c     its rows
 *   copies.c   the device
 *   checker.c  what must be true
 *   hears.c    ... at each step that the store takes
 *   faults.c   what goes wrong
 *   life.c     what the processes of a seed do
 *   tenants.c  tenants and their quotas: what they do, and what must be true of them
 *   asker.c    who asks through the control socket meanwhile
 *   main.c     seeds, jobs, counts
 */
#ifndef ISOTHERM_TESTS_SIM_SIM_H
#define ISOTHERM_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* ---- faults and counts ------------------------------------------------------------------------------- */

/* What can go wrong. Each has a probability in a seed, in 1/65536 of the occasions; most seeds have few. */
#define SIM_FAULTS(X)                                                                                        \
    X(short_read)                                                                                            \
    X(short_write)                                                                                           \
    X(read_error)                                                                                            \
    X(write_error)                                                                                           \
    X(sync_error)                                                                                            \
    X(no_space)                                                                                              \
    X(interrupted)                                                                                           \
    X(again)                                                                                                 \
    X(late)                                                                                                  \
    X(never)                                                                                                 \
    X(lost_flush)                                                                                            \
    X(lost_write)                                                                                            \
    X(misdirected_write)                                                                                     \
    X(torn_write)                                                                                            \
    X(catalog_error)                                                                                         \
    X(catalog_lost_flush)                                                                                    \
    X(catalog_open_error)                                                                                    \
    X(catalog_scan_error)                                                                                    \
    X(call_error)                                                                                            \
    X(no_memory)                                                                                             \
    X(copy_error)                                                                                            \
    X(clock_jump)                                                                                            \
    X(bit_flip)                                                                                              \
    X(zero_page)                                                                                             \
    X(stale_page)                                                                                            \
    X(swapped_chunks)                                                                                        \
    X(row_spoiled)                                                                                           \
    X(row_flip)                                                                                              \
    X(row_lost)                                                                                              \
    X(catalog_lost)                                                                                          \
    X(volume_cut)                                                                                            \
    X(volume_lost)
#define SIM_COUNTS(X)                                                                                        \
    X(seeds)                                                                                                 \
    X(lives)                                                                                                 \
    X(opens)                                                                                                 \
    X(opens_without_disk)                                                                                    \
    X(kills)                                                                                                 \
    X(power_cuts)                                                                                            \
    X(clean_closes)                                                                                          \
    X(offline)                                                                                               \
    X(rebuilds)                                                                                              \
    X(steps)                                                                                                 \
    X(lookups)                                                                                               \
    X(pages_looked_up)                                                                                       \
    X(pages_expected)                                                                                        \
    X(pages_served)                                                                                          \
    X(pages_served_over_host)                                                                                \
    X(pages_from_disk)                                                                                       \
    X(pages_from_host)                                                                                       \
    X(states_served)                                                                                         \
    X(publishes)                                                                                             \
    X(records_written)                                                                                       \
    X(records_durable)                                                                                       \
    X(records_loaded)                                                                                        \
    X(records_deleted)                                                                                       \
    X(records_damaged)                                                                                       \
    X(records_refused_damaged)                                                                               \
    X(reads_verified)                                                                                        \
    X(sectors_torn_off)                                                                                      \
    X(rows_undone)                                                                                           \
    X(quotas_set)                                                                                            \
    X(asked)                                                                                                 \
    X(purges)                                                                                                \
    X(records_purged)                                                                                        \
    X(pins_set)                                                                                              \
    X(drains)                                                                                                \
    X(recounts)                                                                                              \
    X(virtual_seconds)

#define SIM_ENUMERATE_FAULT(name) FAULT_##name,
enum sim_fault { SIM_FAULTS(SIM_ENUMERATE_FAULT) N_FAULTS };
#define SIM_ENUMERATE_COUNT(name) COUNT_##name,
enum sim_count { SIM_COUNTS(SIM_ENUMERATE_COUNT) N_COUNTS };

struct sim_tally {
    uint64_t count[N_COUNTS], fault[N_FAULTS];
};

struct sim {
    uint64_t seed;
    bool trace;
    uint64_t hash; /* of everything that has happened */
    uint64_t random_schedule, random_faults, random_work;
    uint32_t odds[N_FAULTS]; /* of 65536 */
    int calm;                /* above 0 no fault is injected */
    struct sim_tally *tally;
    uint64_t now_ns, real_offset_ns; /* monotonic; to CLOCK_REALTIME */
};
extern struct sim sim;

/* Ends the program: prints what is wrong and the seed. */
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A line of the trace; enters the hash. Never with addresses. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define SIM_SAY(...)                                                                                         \
    do {                                                                                                     \
        if (sim.trace)                                                                                       \
            sim_say(__VA_ARGS__);                                                                            \
    } while (0)

static inline uint64_t sim_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}
static inline uint32_t sim_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((sim_next(state) >> 32) * n >> 32);
}
static inline uint64_t sim_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}
static inline void sim_note(uint64_t v)
{
    sim.hash = sim_mix(sim.hash, v);
}
static inline void sim_count(enum sim_count what, uint64_t n)
{
    sim.tally->count[what] += n;
}
/* Whether this fault happens here and now. It is counted then. */
bool sim_fault(enum sim_fault fault);
/* For something that is not a question of chance any more. */
void sim_fault_happened(enum sim_fault fault);
bool sim_has_faults(void);

/* ---- fibers.c ---------------------------------------------------------------------------------------- */

enum sim_end { SIM_RETURNED, SIM_KILLED };

/* Runs fn as the process's first thread until it has returned and no thread is left, or the process is killed
 * at scheduling step kill_at (0: never). A state in which nobody can ever run again fails the seed. */
enum sim_end fibers_run(void *(*fn)(void *arg), void *arg, uint64_t kill_at);
void fibers_kill_soon(void); /* the process dies at the next scheduling point */
/* The process may wait for a request that never ends: until it is killed. */
extern bool fibers_wait_for_disk;
/* A thread that nobody joins; it ends before the process does. False: there are too many. */
bool fibers_start(void *(*fn)(void *arg));
/* The running thread always gets memory: the model's calls must succeed. */
void fibers_spare(bool spared);
bool fibers_is_spared(void);
/* Another fiber may run here. */
void fibers_yield(void);
void fibers_sleep(uint64_t ns);
/* Waits for fibers_wake(what), or until_ns (UINT64_MAX: no limit). False: the time is over. */
bool fibers_wait(const void *what, uint64_t until_ns);
void fibers_wake(const void *what);
uint32_t fibers_number(void);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
bool fibers_mutex_is_free(const void *mutex);

/* ---- memory.c ---------------------------------------------------------------------------------------- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__real_mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset);
void memory_end(bool killed); /* killed: everything goes; otherwise what is left is a leak */
/* Somebody else may have this memory from now on: fails where the disk or the device is still at work on it.
 * Also for pages of arenas. */
void memory_given_back(const void *p, size_t n);

/* ---- files.c ----------------------------------------------------------------------------------------- */

#define SIM_DIRECTORY "/sim/store"
enum { SECTOR = 4096 };

/* Who wrote a sector. */
struct sector_origin {
    uint64_t nonce, sequence; /* of the record; 0: not known */
    uint32_t index;           /* sector of the record */
    bool damaged;
};

void files_reset(uint64_t capacity_bytes);
/* The process is gone: descriptors, locks. power: what was not synced may be lost, sector by sector. */
void files_process_ended(bool killed, bool power);
uint64_t files_backed_bytes(void); /* of volumes */
/* Others fill the file system, or give room back. */
void files_set_capacity(uint64_t bytes);
uint64_t files_used_bytes(void), files_capacity(void);
bool files_is_full(uint64_t bytes); /* there is less room than that */
/* The I/O engine's ways to volumes: bytes or -errno. */
int files_read(int fd, uint64_t offset, void *out, size_t n);
int files_write(int fd, uint64_t offset, const void *data, size_t n, const struct sector_origin *origin);
/* FAILS: what was not on disk yet will not get there by a later sync. LOST: nothing happens, and the disk
 * says that it has. */
enum files_sync { FILES_SYNC_DONE, FILES_SYNC_FAILS, FILES_SYNC_LOST };
int files_sync(int fd, enum files_sync how);
int files_volume_of(int fd); /* number, or -1 */
/* Of a sector of a volume. */
bool files_sector_is_durable(uint32_t volume, uint64_t sector);
struct sector_origin files_origin(uint32_t volume, uint64_t sector);
void files_set_origin(uint32_t volume, uint64_t sector, struct sector_origin origin);
uint64_t files_volume_sectors(uint32_t volume);          /* 0: there is none */
uint8_t *files_sector(uint32_t volume, uint64_t sector); /* NULL: nothing was written there */
void files_volume_cut(uint32_t volume, uint64_t sectors);
void files_volume_lose(uint32_t volume);
extern bool files_has_catalog; /* the folder is there */

/* ---- sockets.c --------------------------------------------------------------------------------------- */

bool sockets_close(int fd); /* false: it is none */
void sockets_process_ended(bool killed);

/* ---- engine.c ---------------------------------------------------------------------------------------- */

void engine_process_ended(bool killed);
void engine_reset(void);
bool engine_is_stuck(void); /* a request will never end */
void engine_given_back(const void *p, size_t n);

/* ---- rows.c ------------------------------------------------------------------------------------------ */

void rows_reset(void);
void rows_process_ended(bool killed, bool power);
uint64_t rows_bytes(void);
size_t rows_n(void);
/* Damage between two processes: of row i. */
void rows_flip(size_t i, uint64_t random);
void rows_spoil(size_t i); /* it cannot be read any more */
void rows_lose(size_t i);
void rows_lose_all(void);
/* 0: not there; 1: there, may be lost in a power cut; 2: durable. */
int rows_state(uint64_t nonce, uint64_t sequence);
/* The limits of a tenant, by its id. 1: it has some; 0: none; -1: they cannot be read. */
struct cs_quota;
int rows_quota(const uint8_t tenant[16], struct cs_quota *out);
/* Whose record row i is. False: nobody's. */
bool rows_record(size_t i, uint64_t *nonce, uint64_t *sequence);

/* ---- copies.c ---------------------------------------------------------------------------------------- */

void copies_process_ended(void);
bool copies_are_stuck(void); /* one will never end */
void copies_given_back(const void *p, size_t n);

#endif
