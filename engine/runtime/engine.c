/*
 * Opening and closing the engine, and the getters. Each step of start-up prints one aligned line with what
 * was decided and why.
 */
#include "engine/runtime/engine_internal.h"
#include "formats/gguf.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define QUEUE_DEFAULT      256
#define DISK_DEFAULT_BYTES ((uint64_t)16 << 30)
#define DISK_SMALL_TOKENS  2048 /* a disk tier that holds less of a context is warned of */
#define PATIENCE_MS        2000
#define CLOSE_GRACE_MS     2000 /* beyond the deadline of the flush, for a disk that answers */
#define LINE_COLUMNS       100  /* of a start-up line before its seconds */

void engine_log(struct eng_engine *e, enum cs_log_level level, const char *format, ...)
{
    if (!e->log)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    e->log(e->log_ctx, level, line);
}

/* Columns of UTF-8 text whose characters are one column wide. */
static size_t columns_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* "[ OK ] Allocate cache    21.2 GiB · ...     0.9 s" */
static void log_step(struct eng_engine *e, const char *what, double start_s, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void log_step(struct eng_engine *e, const char *what, double start_s, const char *format, ...)
{
    char text[300];
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (e->log_step) {
        e->log_step(e->log_ctx, what, engine_now_s() - start_s, text);
        return;
    }
    snprintf(line, sizeof line, "[ OK ] %-16s %s", what, text);
    size_t columns = columns_of(line);
    int pad = columns < LINE_COLUMNS ? (int)(LINE_COLUMNS - columns) : 0;
    engine_log(e, CS_LOG_INFO, "%s%*s %6.1f s", line, pad, "", engine_now_s() - start_s);
}

static int open_file(struct eng_engine *e, const struct eng_config *c, struct fmt_gguf **gguf, char *err,
                     size_t err_len)
{
    double start = engine_now_s();
    struct eng_model_desc desc;
    char bytes[32];
    int rc = fmt_gguf_open(c->model_path, gguf, err, err_len);
    if (rc != FMT_OK)
        return rc == FMT_ENOMEM ? ENG_ENOMEM : rc == FMT_EIO ? ENG_EIO : ENG_EFORMAT;
    rc = eng_model_describe(*gguf, &desc, err, err_len);
    if (rc != ENG_OK)
        return rc;
    log_step(e, "Read model file", start, "%s · %s · %.1fM parameters · %s", desc.name, desc.architecture,
             (double)desc.parameters / 1e6, sizing_text(fmt_gguf_file_bytes(*gguf), bytes));
    return ENG_OK;
}

static int open_tokenizer(struct eng_engine *e, const struct eng_config *c, const struct fmt_gguf *gguf,
                          char *err, size_t err_len)
{
    double start = engine_now_s();
    int rc = eng_tokenizer_open(gguf, &e->tokenizer, err, err_len);
    if (rc != ENG_OK)
        return rc;
    if (c->chat_template) {
        e->chat = eng_chat_by_name(c->chat_template);
        if (!e->chat) {
            snprintf(err, err_len, "chat template '%s' is not known; there are %s", c->chat_template,
                     eng_chat_names());
            return ENG_EINVAL;
        }
        rc = eng_chat_check(e->chat, e->tokenizer, err, err_len);
        if (rc != ENG_OK)
            return rc;
    } else {
        e->chat = eng_chat_from_gguf(gguf, e->tokenizer);
        char why[160] = "the file has none that is known";
        if (e->chat && eng_chat_check(e->chat, e->tokenizer, why, sizeof why) != ENG_OK)
            e->chat = NULL;
        if (!e->chat) {
            snprintf(e->no_template, sizeof e->no_template,
                     "this model has no chat template (%s); --chat-template takes %s", why, eng_chat_names());
            engine_log(e, CS_LOG_WARN, "chat is off: %s", e->no_template);
        }
    }
    e->n_vocab = eng_tokenizer_n_vocab(e->tokenizer);
    log_step(e, "Load tokenizer", start, "%u tokens · chat template %s%s", e->n_vocab,
             e->chat ? eng_chat_name(e->chat) : "none", c->chat_template ? " (as asked)" : "");
    return ENG_OK;
}

static int open_model(struct eng_engine *e, const struct eng_config *c, const struct fmt_gguf *gguf,
                      char *err, size_t err_len)
{
    double start = engine_now_s();
    struct eng_model_options options = {
        .isa = c->isa,
        .threads = c->threads ? c->threads : sizing_cpus(),
        .kv_dtype = c->kv_dtype,
        .context = c->context,
    };
    int rc = eng_model_open(gguf, &options, &e->model, err, err_len);
    if (rc != ENG_OK)
        return rc;
    const struct eng_model_desc *d = eng_model_desc(e->model);
    /* Rows behind the vocabulary are padding and never sampled; missing ones would be read. */
    e->n_logits = d->n_vocab;
    if (e->n_logits < e->n_vocab) {
        snprintf(err, err_len, "the tokenizer has %u tokens, the embedding only %u rows", e->n_vocab,
                 e->n_logits);
        return ENG_EFORMAT;
    }
    e->backend = eng_model_backend(e->model);
    e->state = eng_model_state(e->model);
    e->stateful = e->state->window_groups > 0 || e->state->state_bytes > 0;
    e->context = eng_model_context(e->model);
    if (e->context > d->context_trained)
        engine_log(e, CS_LOG_WARN,
                   "a context of %u is beyond the %u the model was trained with: expect poor text there",
                   e->context, d->context_trained);
    log_step(e, "Pack weights", start, "%s · %u thread%s · context %u", kn_backend_features(e->backend),
             kn_backend_threads(e->backend), kn_backend_threads(e->backend) == 1 ? "" : "s", e->context);
    pace_init(&e->pace, d, c->policy, c->prefill_chunk);
    e->restore = c->restore;
    return ENG_OK;
}

/* Takes the live state off the KV budget; *arena_bytes is what is left, and *reason why that many. Live state
 * may take half: with less memory fewer sequences run at once. */
static int size_cache(struct eng_engine *e, const struct eng_config *c, uint64_t *arena_bytes,
                      const char **reason)
{
    double start = engine_now_s();
    uint64_t kv = c->kv_cache_bytes;
    uint64_t region = sizing_live_bytes(e->state);
    *reason = "as asked";
    if (kv == 0) {
        uint64_t blocks = sizing_context_blocks(e->state, e->stride, e->context);
        uint64_t pages = blocks > UINT64_MAX / e->stride ? UINT64_MAX : blocks * e->stride;
        kv = sizing_kv_bytes(pages > UINT64_MAX - region ? UINT64_MAX : pages + region, e->max_concurrency,
                             c->kv_limit, 0, reason);
    }
    if (region > 0) {
        uint32_t most = sizing_concurrency(kv, region, e->max_concurrency);
        if (most < e->max_concurrency)
            engine_log(e, CS_LOG_WARN,
                       "the KV cache holds the live state of %u sequences, so that many run at once, not %u",
                       most, e->max_concurrency);
        e->max_concurrency = most;
        if (live_pool_open(&e->live, region, e->max_concurrency) != ENG_OK)
            return ENG_ENOMEM;
        kv = kv > e->live.mapped_bytes ? kv - e->live.mapped_bytes : 0;
        char a[32];
        char b[32];
        log_step(e, "Reserve state", start, "%s · %u sequences of %s · taken off the KV cache",
                 sizing_text(e->live.mapped_bytes, a), e->max_concurrency, sizing_text(region, b));
    }
    /* Where the device is host memory, the arena is the memory tier as well. */
    uint64_t prefix = c->discrete ? 0 : c->prefix_cache_bytes;
    *arena_bytes = kv > UINT64_MAX - prefix ? UINT64_MAX : kv + prefix;
    return ENG_OK;
}

/* What can never be there is refused; what is not there now may be when it is needed: the arena is backed as
 * it fills. */
static int check_memory(struct eng_engine *e, const struct eng_config *c, uint64_t arena_bytes, char *err,
                        size_t err_len)
{
    struct cs_memory memory = cs_memory_available();
    char a[32];
    char b[32];
    const char *whose = memory.limited_by_cgroup ? "this control group" : "this machine";
    uint64_t asked =
        arena_bytes > UINT64_MAX - e->live.mapped_bytes ? UINT64_MAX : arena_bytes + e->live.mapped_bytes;
    if (asked > memory.all_bytes) {
        snprintf(err, err_len, "a KV cache of %s%s is more than the memory of %s, %s", sizing_text(asked, a),
                 c->prefix_cache_bytes && !c->discrete ? " (with --prefix-cache-memory)" : "", whose,
                 sizing_text(memory.all_bytes, b));
        return ENG_EINVAL;
    }
    if (arena_bytes > memory.available_bytes)
        engine_log(e, CS_LOG_WARN,
                   "a KV cache of %s is more than what %s has free now, %s: it may be killed as it fills",
                   sizing_text(asked, a), whose, sizing_text(memory.available_bytes, b));
    return ENG_OK;
}

/* The host tier of a discrete device, beside what its arena takes of the same memory. */
static int open_device(struct eng_engine *e, const struct eng_config *c, struct cs_config *config)
{
    if (!c->discrete)
        return ENG_OK;
    int rc = discrete_open(&e->discrete);
    if (rc != ENG_OK)
        return rc;
    const char *reason;
    struct cs_memory memory = cs_memory_available();
    config->device = discrete_device(e->discrete);
    config->host_bytes = sizing_host_bytes(&memory, c->prefix_cache_bytes, config->arena_bytes, &reason);
    char a[32];
    log_step(e, "Open device", engine_now_s(), "CPU, discrete · host tier %s · %s",
             sizing_text(config->host_bytes, a), reason);
    return ENG_OK;
}

/* What a store takes of its file system already: files of the folder and of its catalogue. */
static uint64_t stored_bytes(const char *dir, bool deeper)
{
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) {
        struct stat st;
        char path[4096];
        if (entry->d_name[0] == '.' || fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
        else if (deeper && S_ISDIR(st.st_mode) &&
                 snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) < (int)sizeof path)
            bytes += stored_bytes(path, false);
    }
    closedir(d);
    return bytes;
}

static uint64_t size_disk(const struct eng_config *c)
{
    if (c->disk_bytes || !c->disk_dir)
        return c->disk_bytes;
    struct statvfs fs;
    (void)mkdir(c->disk_dir, 0700); /* the store makes it otherwise; here only to ask its file system */
    if (statvfs(c->disk_dir, &fs) != 0)
        return DISK_DEFAULT_BYTES;
    /* Of what would be free without it, or the budget would shrink with each start. */
    uint64_t half = ((uint64_t)fs.f_bavail * fs.f_frsize + stored_bytes(c->disk_dir, true)) / 2;
    half = half ? half : 1; /* a size, if one that holds nothing */
    return half < DISK_DEFAULT_BYTES ? half : DISK_DEFAULT_BYTES;
}

/* Where nobody asked for a size and what is free there holds nothing, there is no disk tier. */
static int open_or_without_disk(struct eng_engine *e, const struct eng_config *c, struct cs_config *config,
                                char *err, size_t err_len)
{
    char a[32];
    int rc = cs_open(config, &e->store, err, err_len);
    if (rc != CS_EINVAL || !c->disk_dir || c->disk_bytes)
        return rc;
    struct cs_config without = *config;
    without.disk_dir = NULL;
    without.disk_bytes = 0;
    char other[256] = "";
    if (cs_open(&without, &e->store, other, sizeof other) != CS_OK)
        return rc;
    engine_log(e, CS_LOG_WARN,
               "no prefix cache on disk: without --prefix-cache-disk-size it would get %s, half of what the "
               "file system of %s has for it: %s",
               sizing_text(config->disk_bytes, a), c->disk_dir, err);
    *config = without;
    return CS_OK;
}

/* KV bits depend on the model and the kernels, reuse by ids on the tokenizer as well. */
static void mix_fingerprint(const struct eng_engine *e, uint8_t out[32])
{
    uint8_t parts[64];
    eng_model_fingerprint(e->model, parts);
    eng_tokenizer_digest(e->tokenizer, parts + 32);
    for (unsigned half = 0; half < 2; half++) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(parts, sizeof parts, half));
        memcpy(out + 16 * half, canonical.digest, sizeof canonical.digest);
    }
}

/* "48.0 KiB a page · 7.5 MiB a checkpoint" */
static void log_cache(struct eng_engine *e, double start, uint64_t arena_bytes, uint64_t tokens,
                      const char *reason)
{
    char a[32];
    char b[64] = "";
    if (e->stateful)
        snprintf(b, sizeof b, " of %s",
                 sizing_text(sizing_checkpoint_blocks(e->state, e->stride) * e->stride, a));
    log_step(e, "Allocate cache", start, "%s · %llu tokens · checkpoints%s by bytes · %s",
             sizing_text(arena_bytes, a), (unsigned long long)tokens, b, reason);
}

/* What is longer than the budget pushes its own beginning out: known before, not by its misses. */
static void warn_small_disk(struct eng_engine *e, const struct cs_config *config, bool disk_on)
{
    char a[32];
    uint64_t tokens = sizing_disk_tokens(e->state, config->page_bytes, config->disk_bytes);
    if (disk_on && tokens < (e->context < DISK_SMALL_TOKENS ? e->context : DISK_SMALL_TOKENS))
        engine_log(e, CS_LOG_WARN,
                   "disk cache: the budget of %s holds about %llu tokens; longer prompts are not kept whole",
                   sizing_text(config->disk_bytes, a), (unsigned long long)tokens);
}

static int open_store(struct eng_engine *e, const struct eng_config *c, char *err, size_t err_len)
{
    double start = engine_now_s();
    struct cs_config config = {0};
    if (c->store_shape)
        config = *c->store_shape;
    config.page_tokens = KN_PAGE_TOKENS;
    config.page_bytes = kn_kv_page_bytes(eng_model_kv(e->model));
    config.window_groups = e->state->window_groups;
    config.window_tokens = e->state->window;
    config.state_bytes = e->state->state_bytes;
    config.grid_tokens = e->state->grid;
    e->stride = (config.page_bytes + 4095) / 4096 * 4096;
    e->state_blocks = (uint32_t)sizing_state_blocks(e->state, e->stride);
    const char *reason;
    mix_fingerprint(e, config.fingerprint);
    if (size_cache(e, c, &config.arena_bytes, &reason) != ENG_OK) {
        snprintf(err, err_len, "no memory for the live state of %u sequences", e->max_concurrency);
        return ENG_ENOMEM;
    }
    int rc = check_memory(e, c, config.arena_bytes, err, err_len);
    if (rc != ENG_OK)
        return rc;
    if (open_device(e, c, &config) != ENG_OK) {
        snprintf(err, err_len, "no memory, or no thread, for the device");
        return ENG_ENOMEM;
    }
    config.disk_dir = c->disk_dir;
    config.disk_bytes = size_disk(c);
    config.disk_bytes_a_day = c->disk_bytes_a_day;
    config.tenant_quota = (struct cs_quota){.device_bytes = c->tenant_memory_bytes,
                                            .host_bytes = c->tenant_memory_bytes,
                                            .disk_bytes = c->tenant_disk_bytes};
    config.io_engine = c->disk_io;
    config.restore_deadline_ms = c->restore_deadline_ms == UINT32_MAX ? 0
                                 : c->restore_deadline_ms             ? c->restore_deadline_ms
                                                                      : ENG_RESTORE_DEADLINE_MS;
    config.log = c->log;
    config.log_ctx = c->log_ctx;
    char a[32];
    uint64_t tokens = sizing_tokens(e->state, config.arena_bytes / e->stride);
    if (tokens < 2 * (uint64_t)KN_PAGE_TOKENS) {
        char b[32];
        uint64_t asked = c->kv_cache_bytes ? c->kv_cache_bytes : config.arena_bytes + e->live.mapped_bytes;
        snprintf(err, err_len,
                 "a KV cache of %s has no room for two pages of %u tokens beside live state of %s",
                 sizing_text(asked, a), KN_PAGE_TOKENS, sizing_text(e->live.mapped_bytes, b));
        return ENG_EINVAL;
    }
    bool too_large = config.arena_bytes / e->stride > UINT32_MAX - 2; /* pages have 32-bit numbers */
    rc = too_large ? CS_ENOMEM : open_or_without_disk(e, c, &config, err, err_len);
    if (rc == CS_ENOMEM)
        snprintf(err, err_len,
                 "a KV cache of %s and the index of a disk cache of %s are more than can be had",
                 sizing_text(config.arena_bytes, a),
                 sizing_text(c->disk_dir ? config.disk_bytes : 0, (char[32]){0}));
    if (rc != CS_OK)
        return rc == CS_ENOMEM ? ENG_ENOMEM : rc == CS_EINVAL ? ENG_EINVAL : ENG_EIO;

    if (e->discrete &&
        discrete_begin(e->discrete, e->state_blocks) != ENG_OK) /* so that it cannot fail later */
        return ENG_ENOMEM;

    struct cs_stats s;
    cs_stats_get(e->store, &s);
    if (tokens < e->context) {
        engine_log(e, CS_LOG_WARN, "the KV cache holds %llu tokens, so that is the context, not %u",
                   (unsigned long long)tokens, e->context);
        e->context = (uint32_t)tokens;
    }
    log_cache(e, start, config.arena_bytes, tokens, reason);
    warn_small_disk(e, &config, s.disk_on);
    if (c->disk_dir && s.disk_on)
        log_step(e, "Open disk cache", start, "%s · %s of %s used · %llu span%s · %s", c->disk_dir,
                 sizing_text(s.disk_bytes, (char[32]){0}), sizing_text(s.disk_budget, a),
                 (unsigned long long)s.disk_spans, s.disk_spans == 1 ? "" : "s", s.disk_engine);
    return ENG_OK;
}

static int start_thread(struct eng_engine *e)
{
    uint32_t n = e->max_concurrency;
    e->batch = calloc(n, sizeof *e->batch);
    e->batch_of = calloc(n, sizeof(struct sequence *));
    e->batch_windows = calloc((size_t)n * e->state->window_groups + 1, sizeof(void *const *));
    if (!e->batch || !e->batch_of || !e->batch_windows || sequence_list_reserve(&e->running, n) != ENG_OK ||
        sampler_new(e->n_vocab, &e->sampler) != ENG_OK)
        return ENG_ENOMEM;
    if (pthread_create(&e->thread, NULL, scheduler_thread, e) != 0)
        return ENG_ENOMEM;
    e->thread_started = true;
    return ENG_OK;
}

/* All but the thread and the store, which have ended. */
static void engine_free(struct eng_engine *e)
{
    discrete_close(e->discrete);
    sampler_free(e->sampler);
    live_pool_close(&e->live);
    if (e->model)
        eng_model_close(e->model);
    if (e->tokenizer)
        eng_tokenizer_close(e->tokenizer);
    free(e->waiting.at);
    free(e->running.at);
    free(e->submitted.at);
    free(e->batch);
    free(e->batch_of);
    free(e->batch_windows);
    free(e->infos);
    pthread_cond_destroy(&e->wake_cond);
    pthread_mutex_destroy(&e->wake_lock);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

int eng_engine_open(const struct eng_config *c, struct eng_engine **out, char *err, size_t err_len)
{
    double start = engine_now_s();
    *out = NULL;
    struct eng_engine *e = calloc(1, sizeof *e);
    if (!e) {
        snprintf(err, err_len, "out of memory");
        return ENG_ENOMEM;
    }
    e->log = c->log;
    e->log_step = c->log_step;
    e->log_ctx = c->log_ctx;
    e->max_concurrency = c->max_concurrency ? c->max_concurrency : SIZING_CONCURRENCY_DEFAULT;
    e->max_queue = c->max_queue ? c->max_queue : QUEUE_DEFAULT;
    e->patience_s = (c->page_patience_ms ? c->page_patience_ms : PATIENCE_MS) / 1e3;
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->wake_lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake_cond, &attr);
    pthread_condattr_destroy(&attr);

    struct fmt_gguf *gguf = NULL;
    int rc = open_file(e, c, &gguf, err, err_len);
    if (rc == ENG_OK)
        rc = open_tokenizer(e, c, gguf, err, err_len);
    if (rc == ENG_OK)
        rc = open_model(e, c, gguf, err, err_len);
    fmt_gguf_close(gguf); /* the weights are packed */
    if (rc == ENG_OK)
        rc = open_store(e, c, err, err_len);
    if (rc == ENG_OK) {
        rc = start_thread(e);
        if (rc != ENG_OK)
            snprintf(err, err_len, "out of memory");
    }
    if (rc != ENG_OK) {
        cs_close(e->store, 0);
        engine_free(e);
        return rc;
    }
    log_step(e, "Ready", start, "%u sequences at once · %u may wait", e->max_concurrency, e->max_queue);
    *out = e;
    return ENG_OK;
}

static int close_store(struct eng_engine *e, uint32_t deadline_ms)
{
    double start = engine_now_s();
    struct cs_stats s;
    char pending[32];
    if (cs_flush(e->store, deadline_ms) != CS_OK) {
        cs_stats_get(e->store, &s);
        engine_log(e, CS_LOG_WARN, "%s of the prefix cache did not reach the disk in %u ms",
                   sizing_text(s.pending_bytes, pending), deadline_ms);
    }
    cs_stats_get(e->store, &s);
    double spent_ms = (engine_now_s() - start) * 1e3;
    uint32_t left_ms = spent_ms < deadline_ms ? deadline_ms - (uint32_t)spent_ms : 0;
    if (cs_close_within(e->store, left_ms, left_ms + CLOSE_GRACE_MS) == CS_OK)
        return ENG_OK;
    engine_log(
        e, CS_LOG_WARN,
        "the disk of the prefix cache does not answer: it is left as it is, without %s that were pending",
        sizing_text(s.pending_bytes, pending));
    return ENG_EIO;
}

int eng_engine_close(struct eng_engine *e, uint32_t deadline_ms)
{
    if (!e)
        return ENG_OK;
    if (e->thread_started) {
        pthread_mutex_lock(&e->lock);
        e->closing = true;
        pthread_mutex_unlock(&e->lock);
        engine_wake(e);
        pthread_join(e->thread, NULL);
    }
    int rc = e->store ? close_store(e, deadline_ms) : ENG_OK;
    if (rc == ENG_OK)
        engine_free(e);
    return rc;
}

const struct eng_tokenizer *eng_engine_tokenizer(const struct eng_engine *e)
{
    return e->tokenizer;
}

const struct eng_chat_template *eng_engine_template(const struct eng_engine *e)
{
    return e->chat;
}

struct cs_store *eng_engine_store(const struct eng_engine *e)
{
    return e->store;
}

uint32_t eng_engine_context(const struct eng_engine *e)
{
    return e->context;
}

int eng_engine_render(struct eng_engine *e, const struct cs_tenant *tenant,
                      const struct eng_message *messages, size_t n_messages, bool thinking,
                      struct eng_prompt *out, char *err, size_t err_len)
{
    memset(out, 0, sizeof *out);
    if (!e->chat) {
        snprintf(err, err_len, "%s", e->no_template);
        return ENG_EINVAL;
    }
    struct cs_tenant anonymous = {0};
    struct eng_memo *memo = memo_new(e->store, e->tokenizer, e->chat, tenant ? tenant : &anonymous);
    if (!memo) {
        snprintf(err, err_len, "out of memory");
        return ENG_ENOMEM;
    }
    struct eng_chat_memo hooks = memo_hooks(memo);
    struct eng_rendered rendered;
    int rc = eng_chat_render(e->chat, e->tokenizer, messages, n_messages,
                             thinking ? ENG_GENERATE_REPLY : ENG_GENERATE_NO_THINKING, &hooks, &rendered, err,
                             err_len);
    if (rc != ENG_OK) {
        memo_free(memo);
        return rc;
    }
    *out = (struct eng_prompt){
        .ids = rendered.ids,
        .boundaries = rendered.boundaries,
        .n_boundaries = rendered.n_boundaries,
        .reply_run = rendered.reply_run,
        .memo = memo,
    };
    return ENG_OK;
}

void eng_prompt_free(struct eng_prompt *p)
{
    eng_ids_free(&p->ids);
    free(p->boundaries);
    memo_free(p->memo);
    memset(p, 0, sizeof *p);
}

void eng_engine_stats(const struct eng_engine *e, struct eng_engine_stats *out)
{
    struct eng_engine *locked = (struct eng_engine *)e;
    pthread_mutex_lock(&locked->lock);
    *out = e->stats;
    out->waiting = e->n_waiting;
    pthread_mutex_unlock(&locked->lock);
}
