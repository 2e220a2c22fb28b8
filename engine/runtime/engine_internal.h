/*
 * What the files of the runtime share: the engine, its requests and their sequences. Internal.
 *
 *   eng_submit ──> SEQUENCE_WAITING ──admit──> SEQUENCE_RUNNING ──finish──> SEQUENCE_DONE
 *                    ^   ^     (restore loads)   │
 *    choice 0's prompt   └───────preempt─────────┘
 *    is published ── SEQUENCE_HELD (choices 1..n-1)
 *
 * Ownership: a request owns its choices. From eng_submit's last lines on, everything of a request except
 * `cancelled` belongs to the engine thread.
 *
 * Locks: engine.lock guards the fields under it and is never held while the store or a callback is called.
 * engine.wake_lock guards `awake` only and is a leaf: store threads take it in notify.
 */
#ifndef ISOTHERM_ENGINE_RUNTIME_INTERNAL_H
#define ISOTHERM_ENGINE_RUNTIME_INTERNAL_H

#include "engine/runtime/discrete.h"
#include "engine/runtime/live.h"
#include "engine/runtime/memo.h"
#include "engine/runtime/pace.h"
#include "engine/runtime/runtime.h"
#include "engine/runtime/sampler.h"
#include "engine/runtime/sizing.h"
#include "engine/runtime/stop.h"
#include <pthread.h>
#include <stdatomic.h>
#include <xxhash.h>

enum sequence_state { SEQUENCE_HELD, SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE };

/* A sampled token whose text is not shown yet. start, end: bytes of reply text before and with it. */
struct held_token {
    struct eng_token_info info;
    size_t start, end;
};

struct request;

/* One choice. ids[0..n_computed) have KV in the pages of `kv`; ids[n_computed..ids.n) are to be computed: a
 * prompt, what a preemption lost, or (decode) the one token that was sampled last. */
struct sequence {
    struct request *request;
    uint32_t choice;
    enum sequence_state state;
    uint64_t ticket; /* order of arrival; kept over preemptions, so that the oldest is never the victim */

    struct cs_sequence *kv; /* NULL: not opened (yet, or again) */
    bool settled;           /* the store has said what it reuses */
    bool reopened;          /* looked up again when admitted, as others have published meanwhile */
    uint64_t opened_at;     /* engine.published_pages when it was looked up */
    struct cs_reuse reuse;
    double full_since_s; /* the arena has had no page for it, though it is alone, since; 0: no */

    /* Of models with windows or state (checkpoints.c). */
    void *live;         /* recurrent state at n_computed; NULL while it does not run, or without state */
    bool state_lost;    /* a forward failed half way: nothing may be captured any more */
    bool stepping;      /* between the two ends of a step; dense models too */
    bool captured;      /* there is a checkpoint to publish */
    uint32_t branch_at; /* another sequence leaves this one there; 0: none does */
    struct eng_capture *captures; /* of this step */
    uint32_t n_captures, cap_captures;

    struct eng_ids ids;
    size_t n_computed;
    size_t n_published;
    size_t
        publish_at; /* publish when so much is computed, as another sequence waits for it; 0: nobody does */
    uint32_t chunk; /* tokens of this step */

    uint32_t n_sampled; /* tokens of the reply */
    struct eng_detok detok;
    size_t detok_bytes; /* text the tokens so far stand for */
    struct stop_stream stop;
    struct text_buffer fresh; /* may be shown, not reported yet */
    struct text_buffer shown; /* the whole reply as reported; kept for the memo only */
    struct held_token *held;
    size_t n_held, cap_held;
    XXH3_state_t *hash;
    uint64_t logits_hash;
};

struct request {
    eng_request_id id;
    struct cs_tenant tenant;
    size_t n_prompt, reply_run;
    struct cs_boundary *boundaries; /* ascending, before the prompt's end */
    size_t n_boundaries;
    struct eng_memo *memo;
    struct eng_sampling sampling; /* bias is its own copy */
    uint32_t max_tokens;          /* never 0; within the context */
    struct stop_set stop;
    bool ignore_eos;
    void (*on_event)(void *ctx, const struct eng_event *ev);
    void (*on_done)(void *ctx, int result, const struct eng_usage *usage);
    void *ctx;
    atomic_bool cancelled;

    struct sequence *choices;
    uint32_t n_choices, n_done;
    bool prompt_published, admitted;
    int result;
    char message[160];
    struct eng_usage usage;
    double submitted_s, admitted_s, first_token_s;

    struct request *next; /* engine.requests, under engine.lock */
};

/* A growing array of sequences in the order of their tickets. */
struct sequence_list {
    struct sequence **at;
    size_t n, cap;
};

struct eng_engine {
    struct eng_model *model;
    struct eng_tokenizer *tokenizer;
    const struct eng_chat_template *chat;
    struct cs_store *store;
    struct discrete *discrete; /* NULL: the arena is host memory */
    struct kn_backend *backend;
    struct sampler *sampler;
    const struct eng_state_desc *state;
    uint64_t stride;   /* of a block of the arena */
    double patience_s; /* how long a sequence that is alone waits for a page */
    uint32_t context, max_concurrency, max_queue;
    uint32_t n_vocab, n_logits; /* tokens that may be sampled; floats in a row of logits */
    uint32_t state_blocks;      /* of the arena, that the state of a checkpoint takes */
    char no_template[200];      /* why render refuses when chat is NULL */
    void (*log)(void *ctx, enum cs_log_level level, const char *line);
    void (*log_step)(void *ctx, const char *step, double seconds, const char *text);
    void *log_ctx;
    pthread_t thread;
    bool thread_started;
    bool stateful; /* windows or state: sequences resume at checkpoints */

    /* The engine thread's own. */
    struct sequence_list waiting, running;
    struct pace pace;
    enum eng_restore restore;
    struct live_pool live;
    struct eng_step_seq *batch;  /* (max_concurrency) */
    void *const **batch_windows; /* (max_concurrency, window groups) */
    struct sequence **batch_of;  /* (max_concurrency); NULL once a sequence has ended in this step */
    size_t n_batch;
    struct eng_token_info *infos;
    size_t cap_infos;
    bool publish_failed; /* said once */
    bool left_submitted; /* no memory to take a request in: it is tried again without a wake-up */

    atomic_bool cancel_pending;
    _Atomic uint64_t published_pages;

    pthread_mutex_t lock;
    struct request *requests;       /* all that live */
    struct sequence_list submitted; /* not yet seen by the engine thread */
    eng_request_id last_id;
    uint64_t last_ticket;
    uint32_t n_waiting; /* requests submitted and not admitted yet */
    uint32_t n_submitting;
    bool closing;
    struct eng_engine_stats stats;

    pthread_mutex_t wake_lock;
    pthread_cond_t wake_cond;
    bool awake;
};

#define PAGE KN_PAGE_TOKENS
static inline size_t pages_of(size_t n_tokens)
{
    return (n_tokens + PAGE - 1) / PAGE;
}

double engine_now_s(void); /* monotonic */
void engine_log(struct eng_engine *e, enum cs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* request.c */
int sequence_list_reserve(struct sequence_list *l, size_t n);
int sequence_list_insert(struct sequence_list *l, struct sequence *q); /* by ticket; ENG_ENOMEM */
void sequence_list_remove(struct sequence_list *l, const struct sequence *q);
void engine_wake(void *engine); /* any thread */
/* Sleeps until woken or for at most timeout_ms; 0: no limit. */
void engine_sleep(struct eng_engine *e, unsigned timeout_ms);
/* Looks the sequence's ids up; what is on disk starts loading. Any thread that owns the sequence. */
int sequence_open(struct eng_engine *e, struct sequence *q);
void sequence_close(struct eng_engine *e, struct sequence *q);
void request_free(struct eng_engine *e, struct request *r);

/* reply.c */
/* Samples from logits (n_vocab), takes the token into the reply, and says whether the reply ends with it. */
int reply_sample(struct eng_engine *e, struct sequence *q, const float *logits, enum eng_finish *finish);
/* Reports what may be shown now. finish not NONE: the rest of the reply's text and the end. */
void reply_report(struct eng_engine *e, struct sequence *q, enum eng_finish finish);
/* No text comes any more: what was held back is settled. Before the reply's note is made. */
int reply_end_text(struct sequence *q);

/* Blocks of a checkpoint's state as the kernels take them; valid until the next call or step. */
void *const *sequence_blocks(struct eng_engine *e, void *const *blocks, size_t n);

/* checkpoints.c */
/* Admitted: the live state at n_computed, and the boundaries where the sequence may be resumed later. */
void sequence_resume(struct eng_engine *e, struct sequence *q);
/* Another sequence will leave this one at `position`, on the grid: a checkpoint there serves both. */
void sequence_want_branch(struct eng_engine *e, struct sequence *q, uint32_t position);
/* Window pages and checkpoints of q's chunk. CS_OK, CS_EFULL, CS_ENOMEM. */
int sequence_step_begin(struct eng_engine *e, struct sequence *q);
/* After it, n_computed moved on already; or a step that did not happen. Without a begun step: nothing. */
void sequence_step_end(struct eng_engine *e, struct sequence *q, bool computed);
/* A checkpoint at the last grid position, to be published with what has been computed. */
void sequence_capture_end(struct eng_engine *e, struct sequence *q);
/* Blocks of the window pages that a sequence of pos tokens holds between two steps. */
size_t sequence_window_blocks(const struct eng_engine *e, size_t pos);

/* ending.c */
/* Publishes the full pages and checkpoints of what is computed; reply: its note, or NULL for the prompt's
 * notes. */
void sequence_publish(struct eng_engine *e, struct sequence *q, const struct cs_note *reply);
/* Ends one choice, and its request with the last one: that frees both. */
void sequence_finish(struct eng_engine *e, struct sequence *q, enum eng_finish finish);
/* Ends all choices that still live, and so frees the request. */
void request_finish(struct eng_engine *e, struct request *r, enum eng_finish finish);
void request_fail(struct eng_engine *e, struct request *r, int result, const char *message);

/* admission.c */
/* Blocks of the arena that no sequence holds. */
size_t admission_available(const struct eng_engine *e);
int admission_queue(struct eng_engine *e, struct sequence *q);
bool admission_take_new(struct eng_engine *e, bool *cancels);
void admission_take_cancels(struct eng_engine *e);
void admission_admit(struct eng_engine *e);
void admission_look_ahead(struct eng_engine *e);
bool admission_drop_look_ahead(struct eng_engine *e, const struct sequence *except);

/* scheduler.c */
void *scheduler_thread(void *engine);

#endif
