/*
 * A model as data, and one forward graph that reads it.
 *
 * eng_model_open binds every tensor of the file by name, with shape and type checked against the description
 * derived from the metadata; a key or tensor that would change the arithmetic is implemented or refused by
 * name, never ignored. Weights are repacked for the kernels at load; the file's mapping may be closed
 * afterwards.
 *
 * Threads: open, close and forward on one thread (the engine's); the description may be read from any.
 */
#ifndef ISOTHERM_ENGINE_MODEL_H
#define ISOTHERM_ENGINE_MODEL_H

#include "engine/tokenizer/errors.h"
#include "kernels/kernels.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fmt_gguf;

enum eng_layer_kind { ENG_LAYER_FULL, ENG_LAYER_WINDOW, ENG_LAYER_RECURRENT };

#define ENG_LAYERS_MAX 512

/* What a resumed sequence needs beside its full-attention pages, as data: the runtime and the store handle it
 * without knowing what it is. A dense model has grid KN_PAGE_TOKENS, its layers as the one group, and zeros.
 *
 * Pages. A block of the arena holds KN_PAGE_TOKENS tokens of group_layers layers. The full-attention layers
 * are one group: the page itself. Window layers are cut into window_groups of the same size (the last one may
 * have unused room), and have pages of their own: of a group, those that cover the last `window` positions.
 *
 * State. state_bytes of a checkpoint are the segments, one after another; a live sequence has live_bytes,
 * which begin with nothing particular: only eng_state_* know its layout. */
struct eng_state_segment {
    char name[32]; /* "delta", "conv" */
    uint32_t layer;
    uint64_t offset, bytes; /* within the state_bytes of a checkpoint */
};
struct eng_state_desc {
    uint32_t grid; /* tokens: a sequence can be resumed at multiples of it; a multiple of KN_PAGE_TOKENS */
    uint32_t group_layers; /* layers of a page */
    uint32_t window;       /* positions a window layer reads, its own included; 0: no window layers */
    uint32_t window_groups;
    uint64_t state_bytes, live_bytes;
    /* Tokens that would have to be computed again to rebuild the windows without a checkpoint; 0 with
     * recurrent layers, which nothing but the whole prefix rebuilds. */
    uint32_t replay_tokens;
    const struct eng_state_segment
        *segments; /* n_segments, owned by the model; none from eng_model_state_of */
    uint32_t n_segments;
};

struct eng_model_desc {
    char architecture[32]; /* "llama", "qwen2", "qwen3", "gemma3", "qwen35", "qwen3next" */
    char name[96];         /* general.name, or the architecture */
    uint32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, rot_dims, n_vocab;
    uint32_t context_trained;
    float rms_eps, rope_theta;
    bool rope_interleaved; /* llama GGUFs permute q and k rows */
    bool qkv_bias, qk_norm, tied_head;
    bool attention_gate;     /* what attention gives is multiplied by a sigmoid of its own projection */
    bool post_norms;         /* a norm behind attention and one behind the feed-forward */
    bool gelu;               /* else SiLU */
    bool embedding_scaled;   /* by sqrt(hidden), in float */
    uint32_t layers_not_run; /* of the file, behind the n_layers: heads that draft several tokens */
    uint8_t layer_kind[ENG_LAYERS_MAX]; /* enum eng_layer_kind */
    uint32_t n_full, n_window, n_recurrent;
    uint32_t window;         /* positions of a window layer, its own included */
    float rope_theta_window; /* of the window layers */
    struct {
        uint32_t k_heads, v_heads, dim, conv;
        bool tiled;
    } delta;                                                           /* of the recurrent layers */
    uint32_t n_experts, n_experts_used, expert_ffn, shared_expert_ffn; /* 0: a dense feed-forward */
    uint64_t parameters, weight_bytes;                                 /* weight_bytes: in the file */
};

struct eng_model_options {
    enum kn_isa isa;
    unsigned threads;
    enum kn_kv_dtype kv_dtype;
    uint32_t context;                         /* 0: as trained */
    void (*progress)(void *ctx, double done); /* may be NULL; 0..1 while weights are packed */
    void *progress_ctx;
};

struct eng_model;
/* ENG_OK, or with one line in err: ENG_EFORMAT (a key or tensor is missing, twice or out of range),
 * ENG_EUNSUPPORTED (what the file asks for is refused by name, or the processor lacks the path), ENG_ENOMEM.
 * The caller closes *out. */
int eng_model_open(const struct fmt_gguf *g, const struct eng_model_options *o, struct eng_model **out,
                   char *err, size_t err_len);
void eng_model_close(struct eng_model *m);
/* Metadata only, no weights: what `isotherm info` needs. Errors as eng_model_open. */
int eng_model_describe(const struct fmt_gguf *g, struct eng_model_desc *out, char *err, size_t err_len);

const struct eng_model_desc *eng_model_desc(const struct eng_model *m);
const struct kn_kv_layout *eng_model_kv(const struct eng_model *m);
struct kn_backend *eng_model_backend(const struct eng_model *m);
uint32_t eng_model_context(const struct eng_model *m);
/* XXH3 digest over all weights' bytes, names, shapes and types, and everything else that KV bits depend on:
 * architecture numbers, rope, KV dtype, page geometry, kernel numerics version. The tokenizer's digest is
 * mixed in by the caller. */
void eng_model_fingerprint(const struct eng_model *m, uint8_t out[32]);

/* What the KV dtype decides of a checkpoint; d from eng_model_describe. */
void eng_model_state_of(const struct eng_model_desc *d, enum kn_kv_dtype kv_dtype,
                        struct eng_state_desc *out);
const struct eng_state_desc *eng_model_state(const struct eng_model *m);

/* The live state of one sequence: live_bytes, 64-byte aligned, the caller's. Of a model without state:
 * no-ops. start: at position 0. load: at the position of a checkpoint, whose state is copied out of `from`.
 * save: the state at the last multiple of grid at or before what has been computed, copied into `to`. Both a
 * layer at a time, on the pool. */
void eng_state_start(struct eng_model *m, void *live);
void eng_state_load(struct eng_model *m, void *live, const struct kn_blocks *from);
void eng_state_save(struct eng_model *m, const void *live, const struct kn_blocks *to);

/* A state wanted inside a step: at position (a multiple of grid, pos0 < position <= pos0 + n), state_bytes
 * into `to`. The forward is not cut for it. */
struct eng_capture {
    uint32_t position;
    struct kn_blocks to;
};

/* One sequence's part of a step. */
struct eng_step_seq {
    const uint32_t *ids; /* n tokens to process, at positions pos0 .. pos0 + n - 1 */
    uint32_t n, pos0;
    void *const *pages;                 /* cover pos0 + n positions */
    void *const *const *window_pages;   /* one table a window group, indexed like pages; entries before the
                                           window of pos0 may be NULL. NULL without window groups */
    void *state;                        /* live state at pos0; NULL without state. The forward moves it on */
    const struct eng_capture *captures; /* ascending; only with state */
    uint32_t n_captures;
    uint32_t n_logits; /* logits are wanted of the last n_logits tokens (0: none) */
};
/* One forward over a mixed batch (decode tokens and prefill chunks). *logits: (sum of n_logits, n_vocab),
 * sequences in order, owned by the model and valid until the next forward. ENG_OK; ENG_EINVAL (an empty or
 * too long part, an id outside the vocabulary, window pages or state missing, captures that do not ascend on
 * the grid within the step); ENG_ENOMEM. On failure *logits is NULL, and what the step's positions of the
 * pages and its live states hold is undefined: start or load them again. */
int eng_forward(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs, const float **logits);

#endif
