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
 *
 * Threads: eng_submit, eng_cancel, eng_engine_render, eng_prompt_free and the getters may be called from any
 * thread between open and close. Callbacks run on the engine thread with no lock held: they may submit and
 * cancel, must not block (every stream waits meanwhile), and must not close the engine.
 */
#ifndef ISOTHERM_ENGINE_RUNTIME_H
#define ISOTHERM_ENGINE_RUNTIME_H

#include "cachestore/cachestore.h"
#include "engine/model/model.h"
#include "engine/tokenizer/chat.h"
#include "engine/tokenizer/tokenizer.h"

struct eng_engine;

/* How large the KV arena becomes when kv_cache_bytes is 0. */
enum eng_kv_limit {
    ENG_KV_CONCURRENCY, /* max_concurrency x context, but at most half of the memory that is available */
    ENG_KV_MEMORY,      /* four fifths of the memory that is available */
};

/* What is read from disk. */
enum eng_restore {
    ENG_RESTORE_MEASURED, /* as far as loading has been measured to be faster than computing */
    ENG_RESTORE_ALWAYS,   /* all there is */
};

/* Who gets a step's time. Whoever decodes is in every step in any case. */
enum eng_policy {
    ENG_POLICY_BALANCED,      /* prefill as much as keeps a step short while others decode */
    ENG_POLICY_PREFILL_FIRST, /* chunks as large as if nobody decoded: first tokens sooner, streams stutter */
    ENG_POLICY_DECODE_FIRST,  /* one page a step while others decode: smooth streams, first tokens later */
};

#define ENG_RESTORE_DEADLINE_MS 250

struct eng_config {
    const char *model_path;
    enum kn_isa isa;
    unsigned threads; /* 0: all CPUs the process may use */
    enum kn_kv_dtype kv_dtype;
    uint32_t context;         /* 0: as trained */
    uint32_t max_concurrency; /* sequences in one step; 0: 16 */
    uint32_t max_queue;       /* waiting requests; 0: 256 */
    uint32_t prefill_chunk;   /* tokens; 0: by step time */
    enum eng_policy policy;
    uint64_t kv_cache_bytes; /* 0: by kv_limit; the arena is this plus prefix_cache_bytes, less the live state
                                of max_concurrency sequences */
    enum eng_kv_limit kv_limit;
    uint64_t prefix_cache_bytes;
    /* Treats the arena as memory of a device that is reached by copies only, and prefix_cache_bytes as the
     * host tier below it (then the arena is without them). For tests, and to see what a device costs. */
    bool discrete;
    const char *disk_dir;
    uint64_t disk_bytes;       /* 0: 16 GiB, at most half of what the file system has free */
    uint64_t disk_bytes_a_day; /* most that is written to it; 0: any number */
    uint64_t tenant_memory_bytes, tenant_disk_bytes; /* that each tenant may keep in a tier; 0: any number */
    enum eng_restore restore;
    enum cs_io_engine disk_io;    /* 0: what can be had */
    uint32_t restore_deadline_ms; /* 0: ENG_RESTORE_DEADLINE_MS; UINT32_MAX: no deadline */
    const char *chat_template;    /* NULL: from the file */
    /* How long a sequence that is alone, or a prompt while nothing runs, waits for a page before it ends; 0:
     * 2000. Tests use less. */
    uint32_t page_patience_ms;
    /* NULL, or where to take index_bytes, checkpoints_a_path, checkpoint_grace_ms and the disk tier's shape
     * from (span_bytes .. inflight_bytes); its other fields are not read. Tests use tiny ones. */
    const struct cs_config *store_shape;
    /* One line a start-up step ("Allocate cache", "21.2 GiB · ...", seconds) and one a notable event. */
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    /* Not NULL: takes the start-up steps instead, in parts. */
    void (*log_step)(void *ctx, const char *step, double seconds, const char *text);
    void *log_ctx;
};

/* Blocks while the weights are read and the store opens (a server answers 503 meanwhile). ENG_*; err gets one
 * line. */
int eng_engine_open(const struct eng_config *c, struct eng_engine **out, char *err, size_t err_len);
/* Stops taking requests, ends running ones with ENG_FINISH_CANCELLED, flushes the store within deadline_ms.
 * ENG_OK: closed and freed. ENG_EIO: the disk does not answer, not in another two seconds either. The log has
 * a line that says what was not written; nothing is freed, log and log_ctx may still be used, and all that is
 * left to do is _exit. */
int eng_engine_close(struct eng_engine *e, uint32_t deadline_ms);

const struct eng_tokenizer *eng_engine_tokenizer(const struct eng_engine *e);
const struct eng_chat_template *eng_engine_template(const struct eng_engine *e); /* NULL: none */
struct cs_store *eng_engine_store(const struct eng_engine *e);
/* Tokens a sequence may hold, prompt and reply: the configured context, or less where the arena is smaller.
 */
uint32_t eng_engine_context(const struct eng_engine *e);

/* Messages to ids, the reply's header included, through the template and the message memo of this tenant.
 * thinking false: with an empty think block behind the header, where the template has one.
 * What was newly encoded is remembered by the prompt and stored when the prompt is published. For plain ids
 * (/v1/completions) zero-initialise, fill ids and leave the rest. ENG_EINVAL where there is no template or it
 * forbids the messages: err says it. */
struct eng_prompt {
    struct eng_ids ids;
    struct eng_boundary *boundaries;
    size_t n_boundaries;
    size_t reply_run;      /* where the run that the reply continues starts (engine/tokenizer/chat.h) */
    struct eng_memo *memo; /* what this prompt taught; NULL for plain ids */
};
int eng_engine_render(struct eng_engine *e, const struct cs_tenant *tenant,
                      const struct eng_message *messages, size_t n_messages, bool thinking,
                      struct eng_prompt *out, char *err, size_t err_len);
void eng_prompt_free(struct eng_prompt *p);

#define ENG_TOP_LOGPROBS_MAX 20
#define ENG_CHOICES_MAX      16

struct eng_logit_bias {
    uint32_t id;
    float bias;
};

/* Order: bias, repeat / presence / frequency penalties, temperature, top_k, top_p (over what top_k left),
 * min_p (against the likeliest). */
struct eng_sampling {
    float temperature;                         /* below 1e-4: greedy, the lowest id on a tie */
    float top_p, min_p;                        /* 1 and 0: off */
    uint32_t top_k;                            /* 0: off */
    float repeat_penalty;                      /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off; they count tokens of the reply */
    uint32_t repeat_last_n;            /* tokens of prompt and reply the repeat penalty looks back; 0: 64 */
    uint64_t seed;                     /* the caller picks one where the client gave none */
    const struct eng_logit_bias *bias; /* copied */
    size_t n_bias;
    bool logprobs;         /* taken before penalties and temperature */
    uint32_t top_logprobs; /* 0..ENG_TOP_LOGPROBS_MAX */
};
/* Temperature 1, everything else off, seed 0. */
struct eng_sampling eng_sampling_defaults(void);

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
    } top[ENG_TOP_LOGPROBS_MAX]; /* likeliest first; ties to the lowest id */
};

/* What a request reports, on the engine thread; pointers are valid during the call only. The tokens of all
 * events are those whose text was shown, in order: a token comes with the event that completes its text (one
 * that holds a part of a character comes with an event without text), those behind a stop string's cut and
 * the end token never. */
struct eng_event {
    uint32_t choice;
    const char *text; /* new text that may be shown: whole UTF-8 characters, never part of a stop string */
    size_t text_len;
    const struct eng_token_info *tokens; /* logprobs are 0 unless asked for */
    size_t n_tokens;
    enum eng_finish finish; /* not NONE: the last event of this choice; everything is published by now */
};

struct eng_usage {
    uint32_t prompt_tokens, completion_tokens;
    struct cs_reuse reuse;                              /* of the first choice, when it was first admitted */
    double queue_ms, restore_ms, prefill_ms, decode_ms; /* wall clock */
    /* With hash_logits, else 0. XXH3-64 over the logits of every sampled position, in order; of several
     * choices, XXH3-64 over their hashes. Equal for equal ids, wherever
     * their prefix came from; tests hold it to that. */
    uint64_t logits_hash;
    uint32_t preemptions;
    const char *message; /* why the result is not ENG_OK; never NULL */
};

struct eng_request {
    const struct cs_tenant *tenant; /* NULL: anonymous */
    struct eng_prompt *prompt;      /* taken over */
    const struct eng_sampling *sampling;
    uint32_t n_choices;      /* 1..ENG_CHOICES_MAX */
    uint32_t max_tokens;     /* 0: to the end of the context, where every reply ends with ENG_FINISH_LENGTH */
    const char *const *stop; /* NUL-terminated UTF-8, not empty, copied; the first to complete wins */
    size_t n_stop;
    bool ignore_eos;
    bool hash_logits;
    void (*on_event)(void *ctx, const struct eng_event *ev);
    void (*on_done)(void *ctx, int result,
                    const struct eng_usage *usage); /* once, after the last event; result ENG_* */
    void *ctx;
};

typedef uint64_t eng_request_id;

/* ENG_OK, ENG_EINVAL (prompt empty, over the context, an id or a parameter out of range: err says both
 * numbers), ENG_EFULL (the queue, or the engine is closing), ENG_ENOMEM. Events may come before it returns;
 * *id is set before the first. The prompt is emptied in every case. */
int eng_submit(struct eng_engine *e, const struct eng_request *r, eng_request_id *id, char *err,
               size_t err_len);
/* Ends a request soon (within a step); on_done still comes. What was prefilled is published. Unknown id:
 * nothing. */
void eng_cancel(struct eng_engine *e, eng_request_id id);

struct eng_engine_stats {
    uint64_t requests, finished, cancelled, failed, rejected_full, preemptions;
    uint64_t prompt_tokens, reused_tokens, prefilled_tokens, decoded_tokens, forwards;
    /* Recurrent state: written by a forward at a checkpoint inside it; copied out at the end of a turn;
     * copied in when a sequence resumes; the bytes of all three. Of a model with windows only, checkpoints
     * are references and nothing is copied: captures are counted, bytes are 0. */
    uint64_t state_captures, state_saves, state_loads, state_bytes;
    uint32_t running, waiting;
    double prefill_seconds, decode_seconds;
};
void eng_engine_stats(const struct eng_engine *e, struct eng_engine_stats *out);

#endif
