/*
 * The handle: open, flush, counters, and the keeper thread, which fires deadlines and notifications
 * that are due, sends checkpoints to disk when their grace has ended, and backs the arena's memory ahead of
 * use. It sleeps while there is nothing of that kind.
 */
#include "cachestore/store.h"
#include "cachestore/control.h"
#include "cachestore/key.h"
#include "cachestore/log.h"
#include "cachestore/memory.h"
#include "formats/record.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define PAGE_ALIGN                  4096ull
#define MIN_INDEX_BYTES             (16ull << 20)
#define INDEX_SHARE                 64 /* of the arena's and the disk's bytes, where nothing is said */
#define DEFAULT_SPAN_BYTES          (4ull << 20)
#define FLUSH_BYTES_LEAST           (8ull << 20)
#define FLUSH_BYTES_MOST            (64ull << 20)
#define PINNED_SHARE                8 /* of the arena, for pages being written */
#define HOST_LEAST_SPANS            16
#define DEFAULT_CHECKPOINTS_A_PATH  8
#define DEFAULT_CHECKPOINT_GRACE_MS 10000u
#define FLUSH_LOOK_NS               2000000ull /* rows of notes end without a word: cs_flush looks again */
#define SETTLE_MS                   10000
#define GIVE_WAY_NS                 50000
#define NS_PER_SECOND               1000000000ull
#define NS_PER_MS                   1000000ull

static const char *const error_names[] = {
    "ok",        "out of memory",   "invalid argument",     "everything is in use",
    "I/O error", "store is in use", "other format version", "not a store",
    "not found", "corrupt",
};

const char *cs_strerror(int code)
{
    size_t n = sizeof error_names / sizeof *error_names;
    return code <= 0 && code > -(int)n ? error_names[-code] : "unknown error";
}

static const char *const miss_names[CS_MISS_COUNT] = {
    [CS_MISS_NONE] = "none",
    [CS_MISS_COLD] = "cold",
    [CS_MISS_DIVERGED] = "diverged",
    [CS_MISS_PARTIAL_PAGE] = "partial_page",
    [CS_MISS_EVICTED] = "evicted",
    [CS_MISS_DEADLINE] = "deadline",
    [CS_MISS_CORRUPT] = "corrupt",
    [CS_MISS_IO] = "io",
    [CS_MISS_ARENA_FULL] = "arena_full",
    [CS_MISS_STATE] = "state_missing",
    [CS_MISS_COMPUTE] = "cheaper_to_compute",
};

const char *cs_miss_name(enum cs_miss m)
{
    return (unsigned)m < CS_MISS_COUNT ? miss_names[m] : "unknown";
}

static const char *const gone_names[CS_GONE_COUNT] = {
    [CS_GONE_EVICTED] = "evicted", [CS_GONE_QUOTA] = "quota",     [CS_GONE_INDEX] = "index_full",
    [CS_GONE_THINNED] = "thinned", [CS_GONE_FAILED] = "failed",   [CS_GONE_DAMAGED] = "damaged",
    [CS_GONE_CUT] = "cut",         [CS_GONE_DELETED] = "deleted",
};

const char *cs_gone_name(enum cs_gone g)
{
    return (unsigned)g < CS_GONE_COUNT ? gone_names[g] : "unknown";
}

uint32_t cs_reuse_tokens(const struct cs_reuse *reuse)
{
    return reuse->tokens_device + reuse->tokens_host + reuse->tokens_disk;
}

uint64_t store_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_SECOND + (uint64_t)t.tv_nsec;
}

void store_give_way(void)
{
    nanosleep(&(struct timespec){.tv_nsec = GIVE_WAY_NS}, NULL);
}

void store_log(const struct cs_store *s, enum cs_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(s->log, s->log_ctx, level, format, args);
    va_end(args);
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

/* ---- keeper ------------------------------------------------------------------------------------------ */

/* Needs the lock, and gives it up while a notification runs. Returns when the next deadline is due (0: none).
 */
static uint64_t notify_due_locked(struct cs_store *s)
{
    uint64_t next = 0;
    for (struct cs_sequence *q = s->restoring; q;) {
        if (q->notify && restore_ready_locked(q, store_now_ns())) {
            void (*fn)(void *) = q->notify;
            void *ctx = q->notify_ctx;
            q->notify = NULL;
            pthread_mutex_unlock(&s->lock);
            fn(ctx);
            pthread_mutex_lock(&s->lock);
            q = s->restoring; /* the list may have changed meanwhile */
            next = 0;
            continue;
        }
        if (q->notify && q->deadline_ns && (next == 0 || q->deadline_ns < next))
            next = q->deadline_ns;
        q = q->restoring_next;
    }
    return next;
}

static void *keeper_main(void *arg)
{
    struct cs_store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        uint64_t wake = notify_due_locked(s);
        if (s->closing)
            break;
        if (events_say_locked(s, false)) /* meanwhile anything may have become due */
            continue;
        uint64_t due = writeback_end_grace_locked(s, store_now_ns());
        if (due && (!wake || due < wake))
            wake = due;
        due = events_due_ns_locked(s);
        if (due && (!wake || due < wake))
            wake = due;
        struct arena *behind = arena_wants_populate(&s->arena)                   ? &s->arena
                               : s->index.host && arena_wants_populate(&s->host) ? &s->host
                                                                                 : NULL;
        if (behind) {
            pthread_mutex_unlock(&s->lock);
            arena_populate(behind);
            if (behind == &s->host && arena_is_populated(behind))
                store_log(s, CS_LOG_INFO, "prefix cache: all %llu bytes of host memory are in place",
                          (unsigned long long)behind->mapped_bytes);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (s->trimming) {
            s->trimming = room_trim_some_locked(s);
            if (!s->trimming) /* what waited for that */
                writeback_pump_locked(s);
            pthread_mutex_unlock(&s->lock);
            store_give_way();
            pthread_mutex_lock(&s->lock);
            continue;
        }
        if (wake) {
            struct timespec until = timespec_of(wake);
            pthread_cond_timedwait(&s->keeper_wake, &s->lock, &until);
        } else {
            pthread_cond_wait(&s->keeper_wake, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int keeper_start(struct cs_store *s)
{
    /* Signals are for the application's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->keeper, NULL, keeper_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    s->keeper_started = rc == 0;
    return rc == 0 ? CS_OK : CS_ENOMEM;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static uint32_t pages_per_span(const struct cs_config *c)
{
    uint32_t n = fmt_record_pages_per_span(
        c->span_bytes ? c->span_bytes : DEFAULT_SPAN_BYTES, c->page_tokens, c->page_bytes,
        c->chunk_bytes ? (uint32_t)c->chunk_bytes : FMT_RECORD_CHUNK_BYTES);
    return n ? n : 1; /* without a disk any page will do */
}

/* Blocks of a checkpoint with whole windows before it; more than 32 bits hold are refused. */
static uint64_t checkpoint_blocks_most(const struct cs_config *c)
{
    uint64_t stride = (c->page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN,
             window_pages = ((uint64_t)c->window_tokens + c->page_tokens - 2) / c->page_tokens;
    return (c->state_bytes + stride - 1) / stride + (c->window_groups ? c->window_groups * window_pages : 0);
}

static int check_config(const struct cs_config *c, char *err, size_t err_len)
{
    const char *what = NULL;
    if (c->page_tokens < 1 || c->page_tokens > KEY_MAX_PAGE_TOKENS)
        what = "page_tokens must be 1 to 32";
    else if (c->page_bytes < 1 || c->page_bytes > UINT32_MAX)
        what = "page_bytes must be 1 byte to 4 GiB";
    else if (c->arena_bytes < (c->page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN)
        what = "arena_bytes holds no page";
    else if (c->chunk_bytes > FMT_RECORD_CHUNK_BYTES_MAX)
        what = "chunk_bytes must be at most 1 GiB";
    else if ((c->window_groups > 0) != (c->window_tokens > 0) || c->window_tokens == 1)
        what = "window_groups and window_tokens (at least 2) go together";
    else if (c->grid_tokens % c->page_tokens != 0)
        what = "grid_tokens must be a multiple of page_tokens";
    else if (c->state_bytes / c->page_bytes > UINT32_MAX / 2 || c->window_groups > UINT16_MAX ||
             checkpoint_blocks_most(c) > UINT32_MAX)
        what = "state_bytes, window_groups or window_tokens is out of range";
    else if (c->host_bytes > 0 && !c->device)
        what = "host_bytes go with a device";
    else if (c->disk_dir && c->disk_bytes == 0)
        what = "disk_bytes must not be 0 with a disk_dir";
    else if (c->io_engine > CS_IO_PREAD)
        what = "io_engine is none of cs_io_engine";
    if (what)
        snprintf(err, err_len, "%s", what);
    return what ? CS_EINVAL : CS_OK;
}

void store_free(struct cs_store *s)
{
    notes_close(&s->notes);
    index_close(&s->index);
    arena_close(&s->arena);
    arena_close(&s->host);
    free(s->host_sum);
    pthread_cond_destroy(&s->keeper_wake);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* What is copied, read and written at once should not be the whole tier. */
static uint64_t host_blocks_least(const struct cs_store *s, const struct cs_config *c)
{
    return (uint64_t)HOST_LEAST_SPANS * s->span_pages + 2 * checkpoint_blocks_most(c);
}

/* What the kernel would take back by ending the process is not promised to anybody. */
static void cap_host(struct cs_store *s, struct cs_config *c)
{
    uint64_t asked = c->host_bytes;
    c->host_bytes = memory_host_most(asked);
    if (c->host_bytes < asked)
        store_log(
            s, CS_LOG_WARN,
            "prefix cache: a host tier of %llu bytes, not %llu: the machine or its control group has no "
            "more",
            (unsigned long long)c->host_bytes, (unsigned long long)asked);
}

/* The blocks of the host tier. */
static int open_host(struct cs_store *s, const struct cs_config *c)
{
    uint64_t bytes = c->host_bytes, least = host_blocks_least(s, c) * s->stride;
    if (c->disk_dir && s->tier && bytes < least)
        bytes = least;
    if (bytes < s->stride)
        return CS_OK;
    int rc = arena_open(&s->host, bytes, s->stride, c->device, false);
    if (rc == CS_OK && !(s->host_sum = calloc(s->host.n_pages, sizeof *s->host_sum)))
        rc = CS_ENOMEM;
    if (rc == CS_OK && getrandom(&s->host_random, sizeof s->host_random, 0) != sizeof s->host_random)
        rc = CS_EIO;
    s->pinned_budget = bytes / PINNED_SHARE;
    return rc;
}

/* Records that left at open, for something that is smaller than it was. */
static void say_left(const struct cs_store *s, const uint64_t n[3])
{
    if (n[0] + n[1] + n[2] > 0)
        store_log(
            s, CS_LOG_INFO,
            "prefix cache on disk: records that had to leave at open: %llu for the disk's budget, %llu for "
            "the index's, %llu for quotas",
            (unsigned long long)n[0], (unsigned long long)n[1], (unsigned long long)n[2]);
}

static int open_disk(struct cs_store *s, const struct cs_config *c, char *err, size_t err_len)
{
    struct loader *loader = loader_new(s);
    if (!loader)
        return CS_ENOMEM;
    struct cs_config config = *c;
    config.span_bytes = c->span_bytes ? c->span_bytes : DEFAULT_SPAN_BYTES;
    /* The tier gets no more at a time than may be pinned: while one half is synced, the other is written. */
    if (config.flush_bytes == 0) {
        uint64_t half = s->pinned_budget / 2;
        config.flush_bytes = half < FLUSH_BYTES_LEAST  ? FLUSH_BYTES_LEAST
                             : half > FLUSH_BYTES_MOST ? FLUSH_BYTES_MOST
                                                       : half;
    }
    const struct tier_disk_events events = {.on_span = loader_on_span,
                                            .on_notes = loader_on_notes,
                                            .on_restart = loader_on_restart,
                                            .on_quota = loader_on_quota,
                                            .ctx = loader};
    struct tier_disk *disk = NULL;
    int rc = s->tier->open(&config, &events, &disk, s->secret, err, err_len);
    if (rc == CS_OK) {
        pthread_mutex_lock(&s->lock);
        s->disk = disk;
        s->disk_budget = c->disk_bytes;
        s->index.over_disk = true;
        quota_shares_set_locked(s);
        rc = loader_finish_locked(loader);
        bool fits = rc != CS_OK || room_for_index_locked(s, 0, NULL);
        uint32_t n_accounts = s->index.accounts.n;
        const struct cs_kept *kinds = s->index.disk;
        uint64_t left[3] = {kinds[0].gone[CS_GONE_EVICTED] + kinds[1].gone[CS_GONE_EVICTED],
                            kinds[0].gone[CS_GONE_INDEX] + kinds[1].gone[CS_GONE_INDEX],
                            kinds[0].gone[CS_GONE_QUOTA] + kinds[1].gone[CS_GONE_QUOTA]};
        pthread_mutex_unlock(&s->lock);
        say_left(s, left);
        if (!fits)
            store_log(
                s, CS_LOG_WARN,
                "prefix cache: %u tenants and the disk's records fill %llu bytes of index: nothing is kept",
                n_accounts, (unsigned long long)s->index.budget);
        if (loader_limits_let_go(loader) > 0)
            store_log(
                s, CS_LOG_WARN,
                "prefix cache: limits of %u tenants would take more than half of %llu bytes of index, and "
                "are not in force; they are kept on disk",
                loader_limits_let_go(loader), (unsigned long long)s->index.budget);
        if (loader_pins_let_go(loader) > 0)
            store_log(s, CS_LOG_WARN,
                      "prefix cache: %u pins would hold more than half of the disk or of the index; the "
                      "longest unused are let go",
                      loader_pins_let_go(loader));
        uint64_t most = checkpoint_blocks_most(c);
        if (s->stateful && s->tier->record_bytes(disk, RECORD_CHECKPOINT, (uint32_t)most) == 0)
            store_log(s, CS_LOG_WARN,
                      "prefix cache on disk: checkpoints of %llu blocks stay in memory only, chunks are too "
                      "small for their headers",
                      (unsigned long long)most);
        if (rc != CS_OK)
            snprintf(err, err_len, "%s", cs_strerror(rc));
        else
            s->tier->settle(disk, SETTLE_MS); /* what was evicted for a smaller budget */
    } else if (rc == CS_EIO) {
        store_log(s, CS_LOG_WARN, "prefix cache on disk is off: %s", err);
        rc = getrandom(s->secret, sizeof s->secret, 0) == sizeof s->secret ? CS_OK : CS_EIO;
    }
    loader_free(loader);
    return rc;
}

int store_open(const struct cs_config *asked, const struct tier_vtable *tier, struct cs_store **out,
               char *err, size_t err_len)
{
    *out = NULL;
    struct cs_config config = *asked;
    const struct cs_config *c = &config;
    int rc = check_config(c, err, err_len);
    if (rc != CS_OK)
        return rc;
    struct cs_store *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, err_len, "%s", cs_strerror(CS_ENOMEM));
        return CS_ENOMEM;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_cond_init(&s->keeper_wake, &monotonic);
    pthread_condattr_destroy(&monotonic);

    s->page_tokens = c->page_tokens;
    s->stride = (c->page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    s->span_pages = pages_per_span(c);
    s->stateful = c->window_groups > 0 || c->state_bytes > 0;
    s->window_groups = c->window_groups;
    s->window_tokens = c->window_tokens;
    s->state_blocks = (uint32_t)((c->state_bytes + s->stride - 1) / s->stride);
    s->grid_tokens = c->grid_tokens ? c->grid_tokens : c->page_tokens;
    s->checkpoints_a_path = c->checkpoints_a_path ? c->checkpoints_a_path : DEFAULT_CHECKPOINTS_A_PATH;
    if (c->checkpoint_grace_ms != UINT32_MAX)
        s->checkpoint_grace_ns =
            (c->checkpoint_grace_ms ? c->checkpoint_grace_ms : DEFAULT_CHECKPOINT_GRACE_MS) * NS_PER_MS;
    memcpy(s->fingerprint, c->fingerprint, sizeof s->fingerprint);
    s->restore_deadline_ms = c->restore_deadline_ms;
    s->pinned_budget = s->copying_budget = c->arena_bytes / PINNED_SHARE;
    s->device = c->device;
    admission_init(&s->admission, c->disk_min_tokens, c->disk_bytes_a_day, store_now_ns());
    s->log = c->log;
    s->log_ctx = c->log_ctx;
    s->tier = tier;
    if (config.host_bytes > 0)
        cap_host(s, &config);
    uint64_t index_bytes = c->index_bytes;
    if (index_bytes == 0) {
        index_bytes = c->arena_bytes / INDEX_SHARE;
        if (index_bytes < MIN_INDEX_BYTES)
            index_bytes = MIN_INDEX_BYTES;
        index_bytes += c->host_bytes / INDEX_SHARE;
        if (c->disk_dir)
            index_bytes += c->disk_bytes / INDEX_SHARE;
    }
    rc = arena_open(&s->arena, c->arena_bytes, s->stride, c->device, c->device != NULL);
    if (rc == CS_OK && c->device)
        rc = open_host(s, c);
    if (rc == CS_OK && s->stateful && checkpoint_blocks_most(c) > s->arena.n_pages)
        store_log(s, CS_LOG_WARN,
                  "prefix cache: %u blocks hold no checkpoint of %llu, so long prompts are never resumed",
                  s->arena.n_pages, (unsigned long long)checkpoint_blocks_most(c));
    if (rc == CS_OK)
        rc = index_open(&s->index, &s->arena, s->host.n_pages ? &s->host : NULL, s->page_tokens, index_bytes,
                        &c->tenant_quota);
    if (rc == CS_OK)
        rc = notes_open(&s->notes, index_bytes);
    s->index.stateful = s->stateful;
    s->index.bytes += (s->notes.bucket_mask + 1) * sizeof(void *);
    if (rc == CS_OK && index_memory(&s->index) > index_bytes)
        rc = CS_EINVAL;
    if (rc == CS_OK)
        quota_shares_set_locked(s);
    if (rc == CS_OK && getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret)
        rc = CS_EIO;
    if (rc == CS_EINVAL)
        snprintf(err, err_len, "an arena of %llu bytes with an index of %llu bytes is out of range",
                 (unsigned long long)c->arena_bytes, (unsigned long long)index_bytes);
    else if (rc != CS_OK)
        snprintf(err, err_len, "%s", cs_strerror(rc));
    else if (c->disk_dir && tier)
        rc = open_disk(s, c, err, err_len);
    if (rc == CS_OK) {
        rc = keeper_start(s);
        if (rc != CS_OK)
            snprintf(err, err_len, "%s", "no thread");
    }
    if (rc != CS_OK) {
        if (s->disk)
            tier->close(s->disk, 0);
        store_free(s);
        return rc;
    }
    char why[160];
    if (s->disk && tier->admin && !c->no_control && !(s->control = control_start(s, why, sizeof why)))
        store_log(s, CS_LOG_WARN, "prefix cache on disk: no control socket: %s", why);
    *out = s;
    return CS_OK;
}

static uint64_t pending_locked(const struct cs_store *s)
{
    return s->disk ? s->queued.bytes + s->copying_bytes + s->grace.bytes + s->backlog.bytes +
                         s->tier->pending_bytes(s->disk)
                   : 0;
}

int cs_flush(struct cs_store *s, uint32_t deadline_ms)
{
    uint64_t deadline = store_now_ns() + deadline_ms * NS_PER_MS, now;
    pthread_mutex_lock(&s->lock);
    writeback_end_grace_locked(s, UINT64_MAX);
    writeback_pump_locked(s);
    if (pending_locked(s) > 0)
        s->tier->kick(s->disk);
    while (pending_locked(s) > 0 && (now = store_now_ns()) < deadline) {
        uint64_t look = now + FLUSH_LOOK_NS;
        struct timespec until = timespec_of(look < deadline ? look : deadline);
        if (pthread_cond_timedwait(&s->changed, &s->lock, &until) == 0 && pending_locked(s) > 0)
            s->tier->kick(s->disk);
        writeback_end_grace_locked(s, UINT64_MAX); /* of what came since */
    }
    int rc = pending_locked(s) > 0 ? CS_EIO : CS_OK;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int cs_note_get(struct cs_store *s, struct cs_key key, void **data, uint32_t *len)
{
    pthread_mutex_lock(&s->lock);
    struct note_blob *blob = notes_find_locked(&s->notes, key);
    pthread_mutex_unlock(&s->lock);
    if (!blob)
        return CS_ENOTFOUND;
    *data = malloc(blob->len ? blob->len : 1);
    if (*data)
        memcpy(*data, blob->bytes, blob->len);
    *len = blob->len;
    note_blob_unref(blob);
    return *data ? CS_OK : CS_ENOMEM;
}

void cs_latencies_get(const struct cs_store *s, struct cs_latencies *out)
{
    *out = (struct cs_latencies){0};
    histogram_copy(&s->publish_us, &out->publish);
    histogram_copy(&s->restore_us, &out->restore);
    if (s->disk)
        s->tier->latencies(s->disk, out);
}

void cs_stats_get(const struct cs_store *store, struct cs_stats *out)
{
    struct cs_store *s = (struct cs_store *)store; /* the lock changes, nothing else does */
    pthread_mutex_lock(&s->lock);
    *out = s->totals;
    out->arena_bytes = s->arena.mapped_bytes;
    out->host_bytes = s->host.mapped_bytes;
    out->host_used_bytes = (s->host.n_pages - s->host.n_free) * s->stride;
    out->page_stride = s->stride;
    out->pages_total = s->arena.n_pages;
    out->pages_free = s->arena.n_free;
    out->pages_live = s->arena.n_live;
    out->pages_cached = s->arena.n_cached;
    out->checkpoint_blocks = s->arena.n_blocks;
    out->checkpoints = s->index.n_checkpoints;
    out->spans = s->index.n_spans - s->index.n_checkpoints - s->index.n_doomed;
    out->notes = s->notes.n_notes;
    out->kept_device = s->index.device;
    out->kept_device.alive = s->arena.n_holds;
    out->kept_host = s->index.kept_host;
    out->kept_host.alive = s->host.n_holds;
    out->kept_disk_spans = s->index.disk[SPAN_OF_PAGES];
    out->kept_disk_spans.alive = s->index.n_disk_spans - s->index.n_disk_checkpoints;
    out->kept_disk_checkpoints = s->index.disk[SPAN_CHECKPOINT];
    out->kept_disk_checkpoints.alive = s->index.n_disk_checkpoints;
    out->tenants = s->index.accounts.n;
    out->index_bytes = index_memory(&s->index);
    out->index_budget = s->index.budget;
    out->disk_on = s->disk != NULL;
    out->draining = s->draining;
    out->disk_engine = "off";
    out->disk_budget = s->disk_budget;
    if (s->disk) {
        s->tier->stats(s->disk, out);
        out->pending_bytes = pending_locked(s);
        out->index_bytes += s->tier->memory_bytes(s->disk);
    }
    pthread_mutex_unlock(&s->lock);
}

int cs_open(const struct cs_config *config, struct cs_store **out, char *err, size_t err_len)
{
    return store_open(config, &tier_disk_vtable, out, err, err_len);
}
