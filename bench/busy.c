/* See busy.h. */
#include "bench/busy.h"
#include "engine/model/model.h"
#include "formats/gguf.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 512, CHUNK = 64 }; /* small chunks, so that what is counted is fine enough */

static struct {
    struct eng_model *model;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool on, resting, ending, started; /* lock */
    atomic_uint_fast64_t tokens;
    uint8_t *arena;
    void *pages[PROMPT / KN_PAGE_TOKENS];
    void *state;
    uint32_t ids[PROMPT];
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int compute(uint32_t at)
{
    const struct eng_step_seq s = {
        .ids = busy.ids + at, .n = CHUNK, .pos0 = at, .pages = busy.pages, .state = busy.state};
    const float *logits;
    if (at == 0)
        eng_state_start(busy.model, busy.state);
    return eng_forward(busy.model, &s, 1, &logits);
}

static void *thread_main(void *arg)
{
    uint32_t at = 0;
    (void)arg;
    pthread_mutex_lock(&busy.lock);
    while (!busy.ending) {
        if (!busy.on) {
            busy.resting = true;
            pthread_cond_broadcast(&busy.changed);
            pthread_cond_wait(&busy.changed, &busy.lock);
            continue;
        }
        busy.resting = false;
        pthread_mutex_unlock(&busy.lock);
        if (compute(at) == ENG_OK)
            atomic_fetch_add(&busy.tokens, CHUNK);
        at = (at + CHUNK) % PROMPT;
        pthread_mutex_lock(&busy.lock);
    }
    pthread_mutex_unlock(&busy.lock);
    return NULL;
}

int busy_open(const char *model, unsigned threads)
{
    char err[256] = "out of memory";
    struct fmt_gguf *g = NULL;
    const struct eng_model_options o = {
        .isa = KN_ISA_AUTO, .threads = threads, .kv_dtype = KN_KV_F16, .context = PROMPT};
    int rc = fmt_gguf_open(model, &g, err, sizeof err) == FMT_OK &&
                     eng_model_open(g, &o, &busy.model, err, sizeof err) == ENG_OK
                 ? 0
                 : -1;
    fmt_gguf_close(g);
    if (rc == 0 && eng_model_state(busy.model)->window_groups > 0) {
        snprintf(err, sizeof err, "a model with windows; take another");
        rc = -1;
    }
    if (rc == 0) {
        size_t page = (kn_kv_page_bytes(eng_model_kv(busy.model)) + 4095) / 4096 * 4096,
               n = PROMPT / KN_PAGE_TOKENS;
        busy.arena = aligned_alloc(4096, n * page);
        busy.state = aligned_alloc(64, (eng_model_state(busy.model)->live_bytes + 64) / 64 * 64);
        for (size_t i = 0; i < n && busy.arena; i++)
            busy.pages[i] = busy.arena + i * page;
        for (uint32_t i = 0; i < PROMPT; i++)
            busy.ids[i] = (i * 2654435761u >> 8) % eng_model_desc(busy.model)->n_vocab;
        busy.started = busy.arena && busy.state && pthread_create(&busy.thread, NULL, thread_main, NULL) == 0;
        rc = busy.started ? 0 : -1;
    }
    if (rc != 0)
        fprintf(stderr, "%s: %s\n", model, err);
    return rc;
}

void busy_close(void)
{
    if (busy.started) {
        pthread_mutex_lock(&busy.lock);
        busy.ending = true;
        pthread_cond_broadcast(&busy.changed);
        pthread_mutex_unlock(&busy.lock);
        pthread_join(busy.thread, NULL);
    }
    eng_model_close(busy.model);
    free(busy.arena);
    free(busy.state);
}

void busy_run(int on)
{
    pthread_mutex_lock(&busy.lock);
    busy.on = on;
    pthread_cond_broadcast(&busy.changed);
    while (!on && !busy.resting)
        pthread_cond_wait(&busy.changed, &busy.lock);
    pthread_mutex_unlock(&busy.lock);
}

uint64_t busy_tokens(void)
{
    return atomic_load(&busy.tokens);
}
