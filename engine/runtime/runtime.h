/*
 * The engine: one thread that owns the model and steps a mixed batch of sequences, on top of the prefix
 * cache.
 *
 * A request enters by eng_submit from any thread, waits in a bounded queue while what the store has of its
 * prompt is loading, is prefilled in chunks beside the decoding of others (policy balanced), and reports
 * through its callback on the engine thread. A choice (n > 1) is a sequence of its own that shares the
 * prompt's pages. When live sequences exhaust the arena, one is preempted: published, requeued, restored
 * later, its reply unchanged.
 *
 * Determinism: the tokens of a choice depend on prompt ids, sampling parameters, seed and choice index only.
 */
#ifndef ISOTHERM_ENGINE_RUNTIME_H
#define ISOTHERM_ENGINE_RUNTIME_H

#include "cachestore/cachestore.h"
#include "engine/model/model.h"
#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/tokenizer.h"

struct eng_engine;

struct eng_config {
    const char *model_path;
    enum kn_isa isa;
    unsigned threads; /* 0: all CPUs the process may use */
    enum kn_kv_dtype kv_dtype;
    uint32_t context;         /* 0: as trained */
    uint32_t max_concurrency; /* sequences in one step; 0: 16 */
    uint32_t max_queue;       /* waiting requests; 0: 256 */
    uint32_t prefill_chunk;   /* tokens; 0: by step time */
    uint64_t kv_cache_bytes;  /* 0: chosen from memory; the arena is this plus prefix_cache_bytes */
    uint64_t prefix_cache_bytes;
    const char *disk_dir;
    uint64_t disk_bytes;
    const char *chat_template; /* NULL: from the file */
    /* One line a start-up step ("Allocate cache", "21.2 GiB · ...", seconds) and one a notable event. */
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void *log_ctx;
};

/* Blocking; `ready` is what /health asks for while it runs in another thread. */
int eng_engine_open(const struct eng_config *c, struct eng_engine **out, char *err, size_t err_len);
/* Stops taking requests, ends running ones with ENG_FINISH_CANCELLED, flushes the store within deadline_ms.
 */
void eng_engine_close(struct eng_engine *e, uint32_t deadline_ms);

const struct eng_model_desc *eng_engine_desc(const struct eng_engine *e);
const struct eng_tokenizer *eng_engine_tokenizer(const struct eng_engine *e);
const struct eng_chat_template *eng_engine_template(const struct eng_engine *e); /* NULL: none */
struct cs_store *eng_engine_store(const struct eng_engine *e);
uint32_t eng_engine_context(const struct eng_engine *e);

/* Messages to ids through the template and the message memo of this tenant. The memo's notes for what was
 * newly encoded travel in *notes to eng_submit (opaque, freed by eng_submit or eng_prompt_free). */
struct eng_prompt {
    struct eng_ids ids;
    struct eng_boundary *boundaries;
    size_t n_boundaries;
    void *memo; /* what this prompt taught; NULL for plain ids */
};
int eng_engine_render(struct eng_engine *e, const struct cs_tenant *tenant,
                      const struct eng_message *messages, size_t n_messages, struct eng_prompt *out,
                      char *err, size_t err_len);
void eng_prompt_free(struct eng_prompt *p);

struct eng_logit_bias {
    uint32_t id;
    float bias;
};

struct eng_sampling {
    float temperature;                         /* 0: greedy */
    float top_p, min_p;                        /* 1 and 0: off */
    uint32_t top_k;                            /* 0: off */
    float repeat_penalty;                      /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    uint32_t repeat_last_n;                    /* tokens the repeat penalty looks back; 0: 64 */
    uint64_t seed;
    const struct eng_logit_bias *bias;
    size_t n_bias;
    bool logprobs;         /* taken before penalties and temperature */
    uint32_t top_logprobs; /* 0..20 */
};

enum eng_finish {
    ENG_FINISH_NONE,
    ENG_FINISH_STOP,
    ENG_FINISH_LENGTH,
    ENG_FINISH_CANCELLED,
    ENG_FINISH_ERROR
};

struct eng_token_info {
    uint32_t id;
    float logprob;
    uint32_t n_top;
    struct {
        uint32_t id;
        float logprob;
    } top[20];
};

/* What a request reports, on the engine thread; pointers are valid during the call only. */
struct eng_event {
    uint32_t choice;
    const char *text; /* new text that may be shown: whole UTF-8 characters, never part of a stop string */
    size_t text_len;
    const struct eng_token_info
        *tokens; /* tokens behind this event, with logprobs when asked; may be empty */
    size_t n_tokens;
    enum eng_finish finish; /* not NONE: the last event of this choice; everything is published by now */
};

struct eng_usage {
    uint32_t prompt_tokens, completion_tokens;
    struct cs_reuse reuse;                              /* of the first choice */
    double queue_ms, restore_ms, prefill_ms, decode_ms; /* wall clock */
    uint64_t logits_hash; /* XXH3 over the logits of every sampled position, in order; the law-3 hook */
    uint32_t preemptions;
};

struct eng_request {
    const struct cs_tenant *tenant;
    struct eng_prompt *prompt; /* taken over: emptied by eng_submit whether it succeeds or not */
    const struct eng_sampling *sampling;
    uint32_t n_choices;      /* 1..16 */
    uint32_t max_tokens;     /* 0: to the end of the context */
    const char *const *stop; /* NUL-terminated, copied */
    size_t n_stop;
    bool ignore_eos;
    void (*on_event)(void *ctx, const struct eng_event *ev);
    void (*on_done)(void *ctx, int result,
                    const struct eng_usage *usage); /* once, after the last event; result ENG_* */
    void *ctx;
};

typedef uint64_t eng_request_id;

/* ENG_OK, ENG_EINVAL (prompt empty, over the context, an id out of range: err says both numbers), ENG_EFULL
 * (queue). */
int eng_submit(struct eng_engine *e, const struct eng_request *r, eng_request_id *id, char *err,
               size_t err_len);
/* Ends a request soon (within a step); on_done still comes. What was prefilled is published. Unknown id:
 * nothing. */
void eng_cancel(struct eng_engine *e, eng_request_id id);

struct eng_engine_stats {
    uint64_t requests, finished, cancelled, failed, rejected_full, preemptions;
    uint64_t prompt_tokens, reused_tokens, prefilled_tokens, decoded_tokens, forwards;
    uint32_t running, waiting;
    double prefill_seconds, decode_seconds;
};
void eng_engine_stats(const struct eng_engine *e, struct eng_engine_stats *out);

#endif
