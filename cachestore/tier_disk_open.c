/*
 * Opening the disk tier: the directory's lock, the STORE file, the I/O thread, volumes, catalogue, then the
 * rows (tier_disk_rows.c), and last the catalogue thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cachestore/catalog_ahead.h"
#include "cachestore/tier_disk_impl.h"

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value != 0 ? value : fallback;
}

/* 1/64, at least 8 MiB, at most a quarter. Rows take about 1 KiB a span of 4 MiB. */
#define SHARE_LEAST (8ull << 20)
enum { SHARE = 64, SHARE_MOST = 4 };

uint64_t tier_catalog_share(uint64_t budget)
{
    uint64_t share = budget / SHARE > SHARE_LEAST ? budget / SHARE : SHARE_LEAST;
    return share < budget / SHARE_MOST ? share : budget / SHARE_MOST;
}

uint64_t tier_catalog_share_least(uint64_t volume_bytes)
{
    uint64_t share = volume_bytes / (SHARE - 1), small = volume_bytes / (SHARE_MOST - 1);
    share = share > SHARE_LEAST ? share : SHARE_LEAST;
    return share < small ? share : small;
}

static int configure(struct tier_disk *t, const struct cs_config *c, char *err, size_t err_len)
{
    t->page_tokens = c->page_tokens;
    t->page_bytes = c->page_bytes;
    t->stride = fmt_record_stride(c->page_bytes);
    memcpy(t->fingerprint, c->fingerprint, sizeof t->fingerprint);
    t->budget = c->disk_bytes;
    t->flush_bytes = or_default(c->flush_bytes, 64u << 20);
    t->flush_interval_ms = (uint32_t)or_default(c->flush_interval_ms, 1000);
    t->inflight_bytes = or_default(c->inflight_bytes, 96u << 20);
    t->log = c->log;
    t->log_ctx = c->log_ctx;
    t->catalog_share = tier_catalog_share(t->budget);
    uint32_t chunks = fmt_record_chunks(FMT_RECORD_SPAN, 1, t->page_tokens, t->page_bytes, t->chunk_bytes);
    if (chunks == 0) {
        snprintf(err, err_len, "a page of %llu bytes cannot be stored in chunks of %u bytes",
                 (unsigned long long)t->page_bytes, t->chunk_bytes);
        return CS_EINVAL;
    }
    if (tier_volume_limit(t) < (uint64_t)chunks * t->chunk_bytes) {
        snprintf(err, err_len, "a disk budget of %llu bytes holds no record", (unsigned long long)t->budget);
        return CS_EINVAL;
    }
    atomic_store(&t->limit, (int64_t)tier_volume_limit(t));
    return CS_OK;
}

static int store_ready(struct tier_disk *t, const struct cs_config *c, char *err, size_t err_len)
{
    uint64_t chunk_bytes = or_default(c->chunk_bytes, FMT_RECORD_CHUNK_BYTES);
    int rc = store_file_read(t->dir_fd, &t->store, err, err_len);
    /* Its maker may have been killed before it could; without it nothing here could be proven. */
    if (rc == CS_OK)
        (void)fsync(t->dir_fd);
    if (rc == CS_ENOTFOUND) {
        if (chunk_bytes < FMT_RECORD_CHUNK_BYTES_MIN || chunk_bytes > FMT_RECORD_CHUNK_BYTES_MAX ||
            (chunk_bytes & (chunk_bytes - 1)) != 0) {
            snprintf(err, err_len, "chunk_bytes must be a power of two of at least %u",
                     FMT_RECORD_CHUNK_BYTES_MIN);
            return CS_EINVAL;
        }
        rc = store_file_create(t->dir_fd, (uint32_t)chunk_bytes, &t->store, err, err_len);
    }
    if (rc != CS_OK)
        return rc;
    t->chunk_bytes = t->store.chunk_bytes;
    atomic_store(&t->purge_epoch, t->store.purge_epoch);
    if (c->chunk_bytes != 0 && c->chunk_bytes != t->chunk_bytes)
        tier_log(t, CS_LOG_INFO, "disk cache: the store was made with chunks of %u bytes and keeps them",
                 t->chunk_bytes);
    return CS_OK;
}

static int start_io(struct tier_disk *t, char *err, size_t err_len)
{
    if (pthread_create(&t->io_thread, NULL, tier_io_main, t) != 0) {
        snprintf(err, err_len, "cannot start the I/O thread");
        return CS_EIO;
    }
    pthread_mutex_lock(&t->lock);
    while (t->io_started == 0)
        pthread_cond_wait(&t->changed, &t->lock);
    bool failed = t->io_started < 0;
    pthread_mutex_unlock(&t->lock);
    if (failed) {
        pthread_join(t->io_thread, NULL);
        snprintf(err, err_len, "%s", t->start_reason);
        return CS_EIO;
    }
    t->io_thread_runs = true;
    tier_log(t, CS_LOG_INFO, "disk cache: I/O engine %s: %s", io_engine_name(t->io), t->start_reason);
    return CS_OK;
}

/* The catalogue and its rows. */
static int records_load(struct tier_disk *t, const struct tier_disk_events *events, char *err, size_t err_len)
{
    char problem[256] = "";
    uint64_t reserve = catalog_reserve_bytes(t->catalog_share);
    atomic_store(&t->catalog_reserve, reserve);
    t->volumes.reserve_bytes = 2 * reserve;
    if (!catalog_has_room(t->dir_fd, reserve)) {
        snprintf(err, err_len, "the file system is full");
        return CS_EIO;
    }
    int rc = catalog_open(t->dir_fd, false, t->catalog_share, &t->catalog, problem, sizeof problem);
    /* Not before: the sync of the log's rows would wait behind all it asks for. */
    struct catalog_ahead *ahead = catalog_ahead_start(t->dir_fd);
    if (rc == CS_ECORRUPT)
        tier_log(t, CS_LOG_WARN, "disk cache: the catalogue does not open, rebuilding it: %s", problem);
    if (rc == CS_OK || rc == CS_ECORRUPT)
        rc = tier_rows_load(t, events, err, err_len);
    else
        snprintf(err, err_len, "cannot open the catalogue: %s", problem);
    catalog_ahead_stop(ahead);
    return rc;
}

static int serve(struct tier_disk *t, char *err, size_t err_len)
{
    if (pthread_create(&t->catalog_thread, NULL, tier_catalog_main, t) != 0) {
        snprintf(err, err_len, "cannot start the catalogue thread");
        return CS_EIO;
    }
    t->catalog_thread_runs = true;
    return CS_OK;
}

int tier_disk_open_with(const struct cs_config *config, const struct tier_disk_events *events,
                        tier_engine_open *engine_open, struct tier_disk **out, uint8_t secret[16], char *err,
                        size_t err_len)
{
    *out = NULL;
    struct tier_disk *t = calloc(1, sizeof *t);
    if (t == NULL) {
        snprintf(err, err_len, "out of memory");
        return CS_ENOMEM;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->dir_fd = -1;
    t->engine_open = engine_open;
    t->engine_kind = config->io_engine;
    t->in_reads_tail = &t->in_reads;
    t->in_writes_tail = &t->in_writes;
    t->in_rows_tail = &t->in_rows;
    t->to_catalog_tail = &t->to_catalog;
    t->writes_tail = &t->writes;
    t->written_tail = &t->written;
    t->rows_tail = &t->rows;
    t->log = config->log;
    t->log_ctx = config->log_ctx;
    int rc = store_dir_lock(config->disk_dir, true, &t->dir_fd, err, err_len);
    if (rc == CS_ENOTFOUND)
        rc = CS_EIO;
    if (rc == CS_OK)
        rc = store_ready(t, config, err, err_len);
    if (rc == CS_OK)
        store_scratch_remove(t->dir_fd);
    if (rc == CS_OK)
        rc = configure(t, config, err, err_len);
    if (rc == CS_OK && (rc = tier_table_make(t)) != CS_OK)
        snprintf(err, err_len, "out of memory");
    if (rc == CS_OK && getrandom(&t->nonce, sizeof t->nonce, 0) != (ssize_t)sizeof t->nonce) {
        snprintf(err, err_len, "no random bytes");
        rc = CS_EIO;
    }
    if (rc == CS_OK)
        rc = start_io(t, err, err_len);
    if (rc != CS_OK)
        goto fail;
    rc = volumes_open(&t->volumes, t->dir_fd, t->chunk_bytes, or_default(config->extent_bytes, 1u << 30),
                      false);
    if (rc < 0) {
        snprintf(err, err_len, "cannot open the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    memcpy(secret, t->store.secret, sizeof t->store.secret);
    rc = records_load(t, events, err, err_len);
    if (rc != CS_OK)
        goto fail;
    rc = volumes_settle(&t->volumes);
    if (rc < 0) {
        snprintf(err, err_len, "cannot look at the volumes: %s", strerror(-rc));
        rc = CS_EIO;
        goto fail;
    }
    tier_say_buffered(t);
    tier_measure_catalog(t);
    atomic_store(&t->limit, (int64_t)tier_volume_limit(t));
    volumes_set_limit(&t->volumes, tier_volume_limit(t));
    atomic_store(&t->stats.volume_bytes, volumes_backed_bytes(&t->volumes));
    rc = serve(t, err, err_len);
    if (rc != CS_OK)
        goto fail;
    pthread_mutex_lock(&t->lock);
    t->io_started = 2;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    *out = t;
    return CS_OK;
fail:
    pthread_mutex_lock(&t->lock);
    if (t->io_started == 1)
        t->io_started = 3; /* no catalogue thread would end what it begins */
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    tier_disk_close(t, 0);
    return rc;
}

int tier_disk_open(const struct cs_config *config, const struct tier_disk_events *events,
                   struct tier_disk **out, uint8_t secret[16], char *err, size_t err_len)
{
    return tier_disk_open_with(config, events, io_engine_open, out, secret, err, err_len);
}
