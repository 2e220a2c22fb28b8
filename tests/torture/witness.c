/* See witness.h. */
#include "tests/torture/witness.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cachestore/key.h"
#include "cachestore/store.h"
#include "cachestore/tier_disk_impl.h"

/* ---- steps ------------------------------------------------------------------------------------------- */

/* Every one can end a process before it and behind it. tests/torture/meson.build has those of the first list
 * for the linker. */
#define WRAPPED_CALLS(X)                                                                                     \
    X(tier_disk_write)                                                                                       \
    X(move_write_begin)                                                                                      \
    X(tier_write_landed)                                                                                     \
    X(catalog_put)                                                                                           \
    X(catalog_commit)                                                                                        \
    X(tier_disk_delete)                                                                                      \
    X(tier_delete_take)                                                                                      \
    X(tier_group_send)                                                                                       \
    X(catalog_delete)                                                                                        \
    X(tier_deletes_end)                                                                                      \
    X(tier_record_end)                                                                                       \
    X(foreign_evict)                                                                                         \
    X(volumes_alloc)                                                                                         \
    X(volumes_release)                                                                                       \
    X(volumes_trim)                                                                                          \
    X(volumes_set_limit)                                                                                     \
    X(store_dir_lock)                                                                                        \
    X(store_file_read)                                                                                       \
    X(store_file_create)                                                                                     \
    X(volumes_open)                                                                                          \
    X(volumes_settle)                                                                                        \
    X(catalog_open)                                                                                          \
    X(catalog_remove)                                                                                        \
    X(catalog_open_new)                                                                                      \
    X(catalog_replace)                                                                                       \
    X(catalog_store_put)                                                                                     \
    X(tier_rows_load)                                                                                        \
    X(tier_rebuild)                                                                                          \
    X(loader_finish_locked)                                                                                  \
    X(tier_disk_settle)                                                                                      \
    X(tier_disk_close)                                                                                       \
    X(catalog_close)                                                                                         \
    X(volumes_close)
/* Not by the linker: parts of a call, and the system's calls. */
#define OTHER_CALLS(X)                                                                                       \
    X(durable)                                                                                               \
    X(io_write)                                                                                              \
    X(io_sync)                                                                                               \
    X(write)                                                                                                 \
    X(pwritev)                                                                                               \
    X(fsync)                                                                                                 \
    X(fdatasync)                                                                                             \
    X(rename)                                                                                                \
    X(renameat)                                                                                              \
    X(renameat2)                                                                                             \
    X(unlink)                                                                                                \
    X(unlinkat)                                                                                              \
    X(ftruncate)                                                                                             \
    X(fallocate)                                                                                             \
    X(mkdirat)

#define ENUMERATE(name) CALL_##name,
enum call { WRAPPED_CALLS(ENUMERATE) OTHER_CALLS(ENUMERATE) N_CALLS };
#define NAME(name) #name,
static const char *const call_names[] = {WRAPPED_CALLS(NAME) OTHER_CALLS(NAME)};

enum when { BEFORE, BEHIND, N_WHEN };
static const char *const when_names[] = {"before", "behind"};
/* Writes of which half gets into the file are steps of their own. */
enum { STEP_HALF_WRITE = N_WHEN * N_CALLS, STEP_HALF_PWRITEV, N_STEPS };

static void step_name(int step, char out[64])
{
    if (step == STEP_HALF_WRITE)
        snprintf(out, 64, "write:half");
    else if (step == STEP_HALF_PWRITEV)
        snprintf(out, 64, "pwritev:half");
    else
        snprintf(out, 64, "%s:%s", call_names[step / N_WHEN], when_names[step % N_WHEN]);
}

void witness_describe(void)
{
    for (int i = 0; i < N_STEPS; i++) {
        char name[64];
        step_name(i, name);
        printf("step %s\n", name);
    }
}

/* ---- the log ----------------------------------------------------------------------------------------- */

enum { LOG_BYTES = 8 << 20, LOG_HITS = 512 };
struct witness_log {
    _Atomic uint64_t used; /* words */
    uint64_t n_words, dropped, unused;
    atomic_uint hits[LOG_HITS - 8];
    uint64_t word[];
};
_Static_assert(sizeof(struct witness_log) == 2048 && N_STEPS <= LOG_HITS - 8, "the driver reads it");

static struct witness_log *log_map;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int die_step = -1;
static uint32_t die_nth;

bool witness_open(const char *path, const char *die, uint32_t nth)
{
    for (int i = 0; die != NULL && i < N_STEPS; i++) {
        char name[64];
        step_name(i, name);
        if (strcmp(name, die) == 0)
            die_step = i;
    }
    if (die != NULL && die_step < 0)
        return false;
    die_nth = nth;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct witness_log *map = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return false;
    memset(map, 0, sizeof *map);
    map->n_words = (LOG_BYTES - sizeof *map) / sizeof map->word[0];
    log_map = map;
    return true;
}

/* Two pieces of one entry. */
static void append(enum witness_kind kind, const uint64_t *a, size_t n_a, const uint64_t *b, size_t n_b)
{
    if (log_map == NULL)
        return;
    pthread_mutex_lock(&log_lock);
    uint64_t used = atomic_load(&log_map->used);
    if (used + 1 + n_a + n_b > log_map->n_words) {
        log_map->dropped++;
    } else {
        log_map->word[used++] = (uint64_t)kind << 32 | (n_a + n_b);
        for (size_t i = 0; i < n_a; i++)
            log_map->word[used++] = a[i];
        for (size_t i = 0; i < n_b; i++)
            log_map->word[used++] = b[i];
        atomic_store(&log_map->used, used);
    }
    pthread_mutex_unlock(&log_lock);
}

void witness_say(enum witness_kind kind, const uint64_t *words, size_t n)
{
    append(kind, words, n, NULL, 0);
}

void witness_text(enum witness_kind kind, uint64_t level, const char *text)
{
    uint64_t words[64] = {0};
    snprintf((char *)words, sizeof words, "%s", text);
    append(kind, &level, 1, words, strlen((const char *)words) / sizeof words[0] + 1);
}

void witness_fail(const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    witness_text(W_FAILED, 0, text);
    _exit(3);
}

bool witness_nearly_full(void)
{
    return log_map != NULL && atomic_load(&log_map->used) > log_map->n_words / 4 * 3;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* True: this is the moment. */
static bool counted(int step)
{
    return log_map != NULL && atomic_fetch_add(&log_map->hits[step], 1) + 1 == die_nth && step == die_step;
}

static void step(enum call call, enum when when)
{
    if (counted(N_WHEN * (int)call + (int)when))
        die();
}

/* ---- calls of the store ------------------------------------------------------------------------------ */

#define WRAP(type, name, params, args)                                                                       \
    type __real_##name params;                                                                               \
    type __wrap_##name params;                                                                               \
    type __wrap_##name params                                                                                \
    {                                                                                                        \
        step(CALL_##name, BEFORE);                                                                           \
        type result = __real_##name args;                                                                    \
        step(CALL_##name, BEHIND);                                                                           \
        return result;                                                                                       \
    }
#define WRAP_VOID(name, params, args)                                                                        \
    void __real_##name params;                                                                               \
    void __wrap_##name params;                                                                               \
    void __wrap_##name params                                                                                \
    {                                                                                                        \
        step(CALL_##name, BEFORE);                                                                           \
        __real_##name args;                                                                                  \
        step(CALL_##name, BEHIND);                                                                           \
    }

WRAP_VOID(tier_write_landed, (struct transfer * x), (x))
WRAP_VOID(catalog_put,
          (struct catalog * c, enum catalog_kind kind, struct record_id id, const void *value, size_t len),
          (c, kind, id, value, len))
WRAP(int, catalog_commit, (struct catalog * c, bool sync), (c, sync))
WRAP_VOID(tier_delete_take, (struct tier_disk * t, struct disk_record *rec), (t, rec))
WRAP_VOID(tier_group_send, (struct tier_disk * t, struct group *g), (t, g))
WRAP_VOID(tier_deletes_end, (struct tier_disk * t, struct group *g), (t, g))
WRAP_VOID(tier_record_end, (struct tier_disk * t, struct disk_record *rec, bool keep), (t, rec, keep))
WRAP_VOID(foreign_evict, (struct tier_disk * t, uint64_t bytes), (t, bytes))
WRAP(int, volumes_alloc,
     (struct volumes * v, uint32_t n_chunks, struct fmt_record_run *runs, uint32_t *n_runs),
     (v, n_chunks, runs, n_runs))
WRAP_VOID(volumes_release, (struct volumes * v, const struct fmt_record_run *runs, uint32_t n), (v, runs, n))
WRAP_VOID(volumes_trim, (struct volumes * v), (v))
WRAP_VOID(volumes_set_limit, (struct volumes * v, uint64_t limit), (v, limit))
WRAP(int, store_dir_lock, (const char *dir, bool create, int *fd, char *err, size_t err_len),
     (dir, create, fd, err, err_len))
WRAP(int, store_file_read, (int fd, struct store_file *out, char *err, size_t err_len),
     (fd, out, err, err_len))
WRAP(int, store_file_create,
     (int fd, uint32_t chunk_bytes, struct store_file *out, char *err, size_t err_len),
     (fd, chunk_bytes, out, err, err_len))
WRAP(int, volumes_open,
     (struct volumes * v, int fd, uint32_t chunk_bytes, uint64_t extent_bytes, bool read_only),
     (v, fd, chunk_bytes, extent_bytes, read_only))
WRAP(int, volumes_settle, (struct volumes * v), (v))
WRAP(int, catalog_open,
     (int fd, bool read_only, uint64_t share, struct catalog **out, char *err, size_t err_len),
     (fd, read_only, share, out, err, err_len))
WRAP(int, catalog_remove, (int fd), (fd))
WRAP(int, catalog_open_new, (int fd, uint64_t share, struct catalog **out, char *err, size_t err_len),
     (fd, share, out, err, err_len))
WRAP(int, catalog_replace, (int fd), (fd))
WRAP_VOID(catalog_store_put, (struct catalog * c, const uint8_t uuid[16], uint32_t epoch), (c, uuid, epoch))
WRAP(int, tier_rows_load,
     (struct tier_disk * t, const struct tier_disk_events *events, char *err, size_t err_len),
     (t, events, err, err_len))
WRAP(int, tier_rebuild, (struct tier_disk * t, uint32_t *epoch, char *err, size_t err_len),
     (t, epoch, err, err_len))
WRAP(int, loader_finish_locked, (struct loader * l), (l))
WRAP_VOID(tier_disk_settle, (struct tier_disk * t, uint32_t deadline_ms), (t, deadline_ms))
WRAP_VOID(tier_disk_close, (struct tier_disk * t, uint32_t deadline_ms), (t, deadline_ms))
WRAP_VOID(catalog_close, (struct catalog * c), (c))
WRAP_VOID(volumes_close, (struct volumes * v), (v))

/* ---- calls that say something ------------------------------------------------------------------------ */

enum { RECORD_PAGES_MAX = 64 };

static void say_id(enum witness_kind kind, struct record_id id, uint64_t more)
{
    uint64_t words[3] = {id.nonce, id.sequence, more};
    witness_say(kind, words, 3);
}

static void say_record(enum witness_kind kind, const struct span_record *r, uint32_t page_tokens)
{
    struct cs_key keys[RECORD_PAGES_MAX] = {r->kind == RECORD_CHECKPOINT ? r->parent : r->key};
    uint32_t n = r->kind == RECORD_CHECKPOINT ? 1 : r->n_pages;
    if (n == 0 || n > RECORD_PAGES_MAX)
        witness_fail("a record of %u pages", n);
    for (uint32_t i = 1; i < n; i++)
        keys[i] = key_next(keys[i - 1], r->ids + (size_t)i * page_tokens, page_tokens);
    uint64_t words[7] = {r->id.nonce,  r->id.sequence, r->kind, r->first_position,
                         r->parent.lo, r->parent.hi,   n};
    _Static_assert(sizeof(struct cs_key) == 2 * sizeof(uint64_t), "two words");
    append(kind, words, 7, (const uint64_t *)keys, 2 * (size_t)n);
}

struct tracked_write {
    void (*durable)(void *ctx, struct tier_write *w, enum tier_result result);
    bool (*check)(void *ctx, uint32_t page);
    void *ctx;
    struct record_id id;
};

static bool on_check(void *ctx, uint32_t page)
{
    const struct tracked_write *k = ctx;
    return k->check(k->ctx, page);
}

static void on_durable(void *ctx, struct tier_write *w, enum tier_result result)
{
    struct tracked_write *k = ctx;
    say_id(W_DURABLE, k->id, result);
    step(CALL_durable, BEFORE);
    k->durable(k->ctx, w, result);
    step(CALL_durable, BEHIND);
    free(k);
}

void __real_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w);
void __wrap_tier_disk_write(struct tier_disk *t, struct tier_write *w)
{
    step(CALL_tier_disk_write, BEFORE);
    struct tracked_write *k = malloc(sizeof *k);
    if (k == NULL)
        witness_fail("out of memory");
    *k = (struct tracked_write){.durable = w->durable, .check = w->check, .ctx = w->ctx, .id = w->record.id};
    say_record(W_WRITE, &w->record, t->page_tokens);
    w->durable = on_durable;
    w->check = w->check != NULL ? on_check : NULL;
    w->ctx = k;
    __real_tier_disk_write(t, w);
    step(CALL_tier_disk_write, BEHIND);
}

void __real_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id);
void __wrap_tier_disk_delete(struct tier_disk *t, struct record_id id)
{
    say_id(W_DELETE, id, 0);
    step(CALL_tier_disk_delete, BEFORE);
    __real_tier_disk_delete(t, id);
    step(CALL_tier_disk_delete, BEHIND);
}

void __real_catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id);
void __wrap_catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id);
void __wrap_catalog_delete(struct catalog *c, enum catalog_kind kind, struct record_id id)
{
    if (kind == CATALOG_RECORD)
        say_id(W_ROW_DELETE, id, 0);
    step(CALL_catalog_delete, BEFORE);
    __real_catalog_delete(c, kind, id);
    step(CALL_catalog_delete, BEHIND);
}

enum tier_result __real_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out);
enum tier_result __wrap_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out);
enum tier_result __wrap_move_write_begin(struct tier_disk *t, struct disk_record *rec, struct tier_write *w,
                                         struct transfer **out)
{
    uint64_t words[2 + 3 * RECORD_PAGES_MAX] = {rec->id.nonce, rec->id.sequence};
    size_t n = 2;
    for (uint32_t i = 0; i < rec->n_runs && n + 3 <= sizeof words / sizeof words[0]; i++) {
        words[n++] = rec->runs[i].volume;
        words[n++] = rec->runs[i].first_chunk;
        words[n++] = rec->runs[i].n_chunks;
    }
    witness_say(W_RUNS, words, n);
    step(CALL_move_write_begin, BEFORE);
    enum tier_result result = __real_move_write_begin(t, rec, w, out);
    step(CALL_move_write_begin, BEHIND);
    return result;
}

void __real_io_add(struct io *io, struct io_op *op);
void __wrap_io_add(struct io *io, struct io_op *op);
void __wrap_io_add(struct io *io, struct io_op *op)
{
    enum io_kind kind = op->kind;
    if (kind != IO_READ)
        step(kind == IO_SYNC ? CALL_io_sync : CALL_io_write, BEFORE);
    __real_io_add(io, op);
    if (kind != IO_READ)
        step(kind == IO_SYNC ? CALL_io_sync : CALL_io_write, BEHIND);
}

int __real_loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes);
int __wrap_loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes);
static uint32_t loader_page_tokens;
int __wrap_loader_on_span(void *ctx, const struct span_record *r, uint64_t disk_bytes)
{
    say_record(W_LOADED, r, loader_page_tokens);
    return __real_loader_on_span(ctx, r, disk_bytes);
}

struct loader *__real_loader_new(struct cs_store *s);
struct loader *__wrap_loader_new(struct cs_store *s);
struct loader *__wrap_loader_new(struct cs_store *s)
{
    loader_page_tokens = s->page_tokens;
    return __real_loader_new(s);
}

void __real_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx);
void __wrap_loader_on_restart(void *ctx)
{
    witness_say(W_RESTART, NULL, 0);
    __real_loader_on_restart(ctx);
}

/* ---- calls of the system ----------------------------------------------------------------------------- */

/* The one behind this file's: of the C library, or of a sanitizer. */
static void *next_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL)
        _exit(9);
    return symbol;
}

#define SYSTEM_CALL(type, name, params, args, counts)                                                        \
    type name params                                                                                         \
    {                                                                                                        \
        static _Atomic(type(*) params) real;                                                                 \
        if (atomic_load(&real) == NULL)                                                                      \
            atomic_store(&real, (type(*) params)next_symbol(#name));                                         \
        if (!(counts))                                                                                       \
            return atomic_load(&real) args;                                                                  \
        step(CALL_##name, BEFORE);                                                                           \
        type result = atomic_load(&real) args;                                                               \
        int saved = errno;                                                                                   \
        step(CALL_##name, BEHIND);                                                                           \
        errno = saved;                                                                                       \
        return result;                                                                                       \
    }

#define UNKNOWN_FLAG (1u << 31) /* EINVAL, as where a file system does not know the others */
bool witness_no_exchange;

SYSTEM_CALL(int, fsync, (int fd), (fd), true)
SYSTEM_CALL(int, fdatasync, (int fd), (fd), true)
SYSTEM_CALL(int, rename, (const char *from, const char *to), (from, to), true)
SYSTEM_CALL(int, renameat, (int from_fd, const char *from, int to_fd, const char *to),
            (from_fd, from, to_fd, to), true)
SYSTEM_CALL(int, renameat2, (int from_fd, const char *from, int to_fd, const char *to, unsigned flags),
            (from_fd, from, to_fd, to, flags | (witness_no_exchange ? UNKNOWN_FLAG : 0)), true)
SYSTEM_CALL(int, unlink, (const char *path), (path), true)
SYSTEM_CALL(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), true)
SYSTEM_CALL(int, ftruncate, (int fd, off_t length), (fd, length), true)
SYSTEM_CALL(int, fallocate, (int fd, int mode, off_t offset, off_t len), (fd, mode, offset, len), true)
SYSTEM_CALL(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode), true)

ssize_t write(int fd, const void *buffer, size_t n)
{
    enum { WAKE_BYTES = 8 }; /* an eventfd's: no file */
    static _Atomic(ssize_t(*)(int fd, const void *buffer, size_t n)) real;
    if (atomic_load(&real) == NULL)
        atomic_store(&real, (ssize_t(*)(int fd, const void *buffer, size_t n))next_symbol("write"));
    if (fd <= STDERR_FILENO || n == WAKE_BYTES)
        return atomic_load(&real)(fd, buffer, n);
    step(CALL_write, BEFORE);
    if (counted(STEP_HALF_WRITE)) {
        (void)!atomic_load(&real)(fd, buffer, n / 2);
        die();
    }
    ssize_t result = atomic_load(&real)(fd, buffer, n);
    int saved = errno;
    step(CALL_write, BEHIND);
    errno = saved;
    return result;
}

ssize_t pwritev(int fd, const struct iovec *iov, int n_iov, off_t offset)
{
    static _Atomic(ssize_t(*)(int fd, const struct iovec *iov, int n_iov, off_t offset)) real;
    if (atomic_load(&real) == NULL)
        atomic_store(&real, (ssize_t(*)(int fd, const struct iovec *iov, int n_iov, off_t offset))next_symbol(
                                "pwritev"));
    step(CALL_pwritev, BEFORE);
    if (counted(STEP_HALF_PWRITEV)) {
        /* Direct I/O takes whole blocks only. */
        const size_t half = iov[0].iov_len / 2 / FMT_RECORD_ALIGN * FMT_RECORD_ALIGN;
        const struct iovec part = {.iov_base = iov[0].iov_base, .iov_len = half};
        (void)!atomic_load(&real)(fd, n_iov > 1 ? iov : &part, n_iov > 1 ? n_iov / 2 : 1, offset);
        die();
    }
    ssize_t result = atomic_load(&real)(fd, iov, n_iov, offset);
    int saved = errno;
    step(CALL_pwritev, BEHIND);
    errno = saved;
    return result;
}
