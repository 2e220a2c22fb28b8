/* See rig.h. */
#include "rig.h"
#include <errno.h>
#include <ftw.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_S 120 /* sanitizers on a busy machine */
#define HOST_BYTES (16 << 20)

struct rig_options rig_defaults(void)
{
    struct rig_options o = {.sampling = eng_sampling_defaults(), .n_choices = 1, .max_tokens = 24};
    o.sampling.temperature = 0;
    return o;
}

static char *model_path(const char *variable, const char *sub_folder, const char *model)
{
    const char *folder = getenv(variable);
    char *path = NULL;
    assert_non_null(folder);
    assert_true(asprintf(&path, "%s/%s%s.gguf", folder, sub_folder, model) > 0);
    return path;
}

static struct eng_config config_of(char *path, uint64_t kv_bytes)
{
    bool discrete = getenv("ISOTHERM_TEST_DISCRETE") != NULL;
    return (struct eng_config){
        .model_path = path,
        .threads = 1,
        .kv_cache_bytes = kv_bytes,
        .restore = ENG_RESTORE_ALWAYS,
        .discrete = discrete,
        .prefix_cache_bytes = discrete ? HOST_BYTES : 0,
        .restore_deadline_ms = UINT32_MAX,
    };
}

struct eng_config rig_config(const char *model, uint32_t n_pages)
{
    return config_of(model_path("ISOTHERM_TEST_MODELS", "", model), (uint64_t)n_pages * RIG_PAGE_BYTES);
}

struct eng_config rig_golden(const char *model, uint64_t kv_bytes)
{
    return config_of(model_path("ISOTHERM_TEST_DATA", "golden/", model), kv_bytes);
}

struct eng_engine *rig_open(const struct eng_config *c)
{
    char err[300] = "";
    struct eng_engine *e = NULL;
    int rc = eng_engine_open(c, &e, err, sizeof err);
    if (rc != ENG_OK)
        fail_msg("eng_engine_open: %d, %s", rc, err);
    return e;
}

void rig_close(struct eng_engine *e)
{
    assert_int_equal(eng_engine_close(e, 10000), ENG_OK);
}

size_t rig_stride(void)
{
    return getenv("ISOTHERM_SANITIZED") ? 2 : 1;
}

uint32_t *rig_ids(uint64_t seed, size_t n)
{
    uint32_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = 20 + (uint32_t)(seed >> 33) % 200; /* bytes and merges; control tokens stand at the ends */
    }
    return ids;
}

/* Whole characters only; over-long forms and surrogates do not occur, as the detokenizer's own tests show. */
static bool is_whole_utf8(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        size_t n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
        if (n == 0 || i + n > len)
            return false;
        for (size_t k = 1; k < n; k++) {
            if (((unsigned char)text[i + k] & 0xc0) != 0x80)
                return false;
        }
        i += n;
    }
    return true;
}

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct rig_call *call = ctx;
    struct rig_choice *c = &call->choice[ev->choice];
    pthread_mutex_lock(&call->lock);
    if (c->len + ev->text_len + 1 > c->cap) {
        c->cap = 2 * (c->len + ev->text_len + 1);
        c->text = realloc(c->text, c->cap);
    }
    memcpy(c->text + c->len, ev->text, ev->text_len);
    c->len += ev->text_len;
    c->text[c->len] = '\0';
    c->ids = realloc(c->ids, (c->n_ids + ev->n_tokens + 1) * sizeof *c->ids);
    c->infos = realloc(c->infos, (c->n_ids + ev->n_tokens + 1) * sizeof *c->infos);
    for (size_t i = 0; i < ev->n_tokens; i++) {
        c->ids[c->n_ids] = ev->tokens[i].id;
        c->infos[c->n_ids++] = ev->tokens[i];
    }
    c->n_events++;
    c->n_broken += !is_whole_utf8(ev->text, ev->text_len);
    if (ev->finish != ENG_FINISH_NONE)
        c->finish = ev->finish;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static void on_done(void *ctx, int result, const struct eng_usage *usage)
{
    struct rig_call *call = ctx;
    pthread_mutex_lock(&call->lock);
    call->result = result;
    call->usage = *usage;
    snprintf(call->message, sizeof call->message, "%s", usage->message);
    call->done = true;
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

int rig_submit_prompt(struct eng_engine *e, struct eng_prompt *p, const struct rig_options *o,
                      struct rig_call *call)
{
    char err[300] = "";
    memset(call, 0, sizeof *call);
    pthread_mutex_init(&call->lock, NULL);
    pthread_cond_init(&call->changed, NULL);
    size_t n_stop = 0;
    while (n_stop < 3 && o->stop[n_stop])
        n_stop++;
    struct eng_request request = {
        .tenant = o->tenant,
        .prompt = p,
        .sampling = &o->sampling,
        .n_choices = o->n_choices,
        .max_tokens = o->max_tokens,
        .stop = o->stop,
        .n_stop = n_stop,
        .ignore_eos = !o->use_eos,
        .hash_logits = true,
        .on_event = on_event,
        .on_done = on_done,
        .ctx = call,
    };
    int rc = eng_submit(e, &request, &call->id, err, sizeof err);
    if (rc != ENG_OK)
        snprintf(call->message, sizeof call->message, "%s", err);
    return rc;
}

void rig_start(struct eng_engine *e, const uint32_t *ids, size_t n, const struct rig_options *o,
               struct rig_call *call)
{
    struct eng_prompt p = {0};
    assert_int_equal(eng_ids_add(&p.ids, ids, n), ENG_OK);
    int rc = rig_submit_prompt(e, &p, o, call);
    if (rc != ENG_OK)
        fail_msg("eng_submit: %d, %s", rc, call->message);
}

void rig_chat_make(uint64_t seed, size_t n_messages, size_t system, size_t least, size_t most,
                   struct rig_chat *c)
{
    c->n_messages = n_messages;
    c->start = calloc(n_messages + 1, sizeof *c->start);
    assert_non_null(c->start);
    uint64_t draw = seed;
    for (size_t i = 0; i < n_messages; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        size_t n = i == 0 ? system : least + (size_t)(draw >> 33) % (most - least + 1);
        c->start[i + 1] = c->start[i] + n;
    }
    c->ids = rig_ids(seed, c->start[n_messages]);
}

void rig_chat_free(struct rig_chat *c)
{
    free(c->ids);
    free(c->start);
}

void rig_chat_start(struct eng_engine *e, const struct rig_chat *c, size_t n, const struct rig_options *o,
                    struct rig_call *call)
{
    struct eng_prompt p = {0};
    assert_int_equal(eng_ids_add(&p.ids, c->ids, n), ENG_OK);
    p.boundaries = calloc(c->n_messages + 1, sizeof *p.boundaries);
    assert_non_null(p.boundaries);
    for (size_t i = 0; i <= c->n_messages && c->start[i] <= n; i++)
        p.boundaries[p.n_boundaries++] = (struct eng_boundary){
            .position = (uint32_t)c->start[i], .message = (int32_t)i, .ends_system = i == 1};
    int rc = rig_submit_prompt(e, &p, o, call);
    if (rc != ENG_OK)
        fail_msg("eng_submit: %d, %s", rc, call->message);
}

void rig_chat_run(struct eng_engine *e, const struct rig_chat *c, size_t n, const struct rig_options *o,
                  struct rig_call *call)
{
    rig_chat_start(e, c, n, o, call);
    rig_wait(call);
    assert_int_equal(call->result, ENG_OK);
}

static void wait_until(struct rig_call *call, size_t n_tokens)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&call->lock);
    int rc = 0;
    while (!call->done && call->choice[0].n_ids < n_tokens && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&call->changed, &call->lock, &deadline);
    bool done = call->done || call->choice[0].n_ids >= n_tokens;
    pthread_mutex_unlock(&call->lock);
    if (!done)
        fail_msg("a request is not done after %d s", DEADLINE_S);
}

void rig_wait(struct rig_call *call)
{
    wait_until(call, SIZE_MAX);
    for (size_t i = 0; i < RIG_MAX_CHOICES; i++)
        assert_int_equal(call->choice[i].n_broken, 0);
}

void rig_wait_tokens(struct rig_call *call, size_t n)
{
    wait_until(call, n);
}

void rig_run(struct eng_engine *e, const uint32_t *ids, size_t n, const struct rig_options *o,
             struct rig_call *call)
{
    rig_start(e, ids, n, o, call);
    rig_wait(call);
    assert_int_equal(call->result, ENG_OK);
}

void rig_free(struct rig_call *call)
{
    for (size_t i = 0; i < RIG_MAX_CHOICES; i++) {
        free(call->choice[i].text);
        free(call->choice[i].ids);
        free(call->choice[i].infos);
    }
    pthread_mutex_destroy(&call->lock);
    pthread_cond_destroy(&call->changed);
    memset(call, 0, sizeof *call);
}

void rig_assert_same(const struct rig_call *a, const struct rig_call *b)
{
    for (size_t i = 0; i < RIG_MAX_CHOICES; i++) {
        const struct rig_choice *x = &a->choice[i];
        const struct rig_choice *y = &b->choice[i];
        assert_int_equal(x->n_ids, y->n_ids);
        if (x->n_ids > 0)
            assert_memory_equal(x->ids, y->ids, x->n_ids * sizeof x->ids[0]);
        assert_int_equal(x->len, y->len);
        if (x->len > 0)
            assert_memory_equal(x->text, y->text, x->len);
        assert_int_equal(x->finish, y->finish);
    }
    assert_true(a->usage.logits_hash != 0);
    assert_true(a->usage.logits_hash == b->usage.logits_hash);
}

uint32_t rig_reused(const struct rig_call *call)
{
    return cs_reuse_tokens(&call->usage.reuse);
}

char *rig_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *folder = NULL;
    assert_true(asprintf(&folder, "%s/isotherm-runtime-XXXXXX", tmp ? tmp : "/tmp") > 0);
    assert_non_null(mkdtemp(folder));
    return folder;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void rig_remove_folder(char *folder)
{
    (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

char *rig_test_folder;

int rig_make_folder(void **state)
{
    (void)state;
    rig_test_folder = rig_folder();
    return 0;
}

int rig_drop_folder(void **state)
{
    (void)state;
    rig_remove_folder(rig_test_folder);
    return 0;
}

const struct cs_config rig_tiny_spans = {
    .checkpoint_grace_ms = UINT32_MAX,
    .checkpoints_a_path = 64,
    .span_bytes = 64 << 10,
    .chunk_bytes = 64 << 10,
    .extent_bytes = 4 << 20,
    .flush_bytes = 256 << 10,
    .flush_interval_ms = 20,
};
