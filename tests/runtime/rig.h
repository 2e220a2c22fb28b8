/* A real engine on a tiny model, and requests that are waited for. Failures end the test through cmocka. */
#ifndef ISOTHERM_TESTS_RUNTIME_RIG_H
#define ISOTHERM_TESTS_RUNTIME_RIG_H

#include "engine/runtime/runtime.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_PAGE_BYTES  8192 /* qwen2-q8_0: 2 layers, 1 KV head of 64, K and V in f16, 16 tokens */
#define RIG_MAX_CHOICES 4

/* What one choice reported. */
struct rig_choice {
    char *text;
    size_t len, cap;
    uint32_t *ids;
    struct eng_token_info *infos;
    size_t n_ids;
    uint32_t n_events, n_broken; /* broken: events whose text was not whole UTF-8 characters */
    enum eng_finish finish;
};

struct rig_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rig_choice choice[RIG_MAX_CHOICES];
    eng_request_id id;
    bool done;
    int result;
    struct eng_usage usage;
    char message[300];
};

/* Options of a request; rig_defaults: one greedy choice of 24 tokens that ignores the end token, hashed. */
struct rig_options {
    struct eng_sampling sampling;
    uint32_t n_choices, max_tokens;
    const char *stop[3];
    bool use_eos;
    const struct cs_tenant *tenant;
};
struct rig_options rig_defaults(void);

/* A config with the model NAME.gguf of the test models, one thread, an arena of n_pages; discrete, with a
 * host tier, where ISOTHERM_TEST_DISCRETE is set. */
struct eng_config rig_config(const char *model, uint32_t n_pages);
/* The same with a golden model: NAME.gguf of the test data. */
struct eng_config rig_golden(const char *model, uint64_t kv_bytes);
struct eng_engine *rig_open(const struct eng_config *c);
void rig_close(struct eng_engine *e);

/* Sanitizers make everything some ten times slower: of a long list of cases, one in so many is taken. */
size_t rig_stride(void);

/* n ids of ordinary tokens, the same for the same seed; the caller frees. */
uint32_t *rig_ids(uint64_t seed, size_t n);

/* Submits; returns eng_submit's code. */
int rig_submit_prompt(struct eng_engine *e, struct eng_prompt *p, const struct rig_options *o,
                      struct rig_call *call);
void rig_start(struct eng_engine *e, const uint32_t *ids, size_t n, const struct rig_options *o,
               struct rig_call *call);
/* Until done; fails the test after a minute. */
void rig_wait(struct rig_call *call);
/* Until choice 0 has reported n tokens, or all is done. */
void rig_wait_tokens(struct rig_call *call, size_t n);
/* Start and wait. */
void rig_run(struct eng_engine *e, const uint32_t *ids, size_t n, const struct rig_options *o,
             struct rig_call *call);
void rig_free(struct rig_call *call);

/* A made-up chat: a system message of `system` ids, then messages of least..most ids; ids of its own for each
 * seed. Message i is ids[start[i] .. start[i + 1]). */
struct rig_chat {
    uint32_t *ids;
    size_t *start;
    size_t n_messages;
};
void rig_chat_make(uint64_t seed, size_t n_messages, size_t system, size_t least, size_t most,
                   struct rig_chat *c);
void rig_chat_free(struct rig_chat *c);
/* ids[0..n) as a prompt with the boundaries that lie in it. */
void rig_chat_start(struct eng_engine *e, const struct rig_chat *c, size_t n, const struct rig_options *o,
                    struct rig_call *call);
void rig_chat_run(struct eng_engine *e, const struct rig_chat *c, size_t n, const struct rig_options *o,
                  struct rig_call *call);

/* The same reply to the last bit. */
void rig_assert_same(const struct rig_call *a, const struct rig_call *b);
uint32_t rig_reused(const struct rig_call *call);

/* A fresh folder, and its removal. */
char *rig_folder(void);
void rig_remove_folder(char *folder);
/* Setup and teardown: a test with a folder of its own. */
extern char *rig_test_folder;
int rig_make_folder(void **state);
int rig_drop_folder(void **state);

/* A store_shape: every checkpoint is kept, and spans are so small that a chat has many. */
extern const struct cs_config rig_tiny_spans;

#endif
