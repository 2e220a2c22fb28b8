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

enum eng_layer_kind { ENG_LAYER_FULL };

struct eng_model_desc {
    char architecture[32]; /* "llama", "qwen2", "qwen3" */
    char name[96];         /* general.name, or the architecture */
    uint32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, rot_dims, n_vocab;
    uint32_t context_trained;
    float rms_eps, rope_theta;
    bool rope_interleaved; /* llama GGUFs permute q and k rows */
    bool qkv_bias, qk_norm, tied_head;
    uint64_t parameters, weight_bytes; /* weight_bytes: in the file */
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
int eng_model_open(const struct fmt_gguf *g, const struct eng_model_options *o, struct eng_model **out,
                   char *err, size_t err_len);
void eng_model_close(struct eng_model *m);
/* Metadata only, no weights: what `isotherm info` needs. */
int eng_model_describe(const struct fmt_gguf *g, struct eng_model_desc *out, char *err, size_t err_len);

const struct eng_model_desc *eng_model_desc(const struct eng_model *m);
const struct kn_kv_layout *eng_model_kv(const struct eng_model *m);
struct kn_backend *eng_model_backend(const struct eng_model *m);
uint32_t eng_model_context(const struct eng_model *m);
/* XXH3 digest over all weights' bytes, names, shapes and types, and everything else that KV bits depend on:
 * architecture numbers, rope, KV dtype, page geometry, kernel numerics version. The tokenizer's digest is
 * mixed in by the caller. */
void eng_model_fingerprint(const struct eng_model *m, uint8_t out[32]);

/* One sequence's part of a step. */
struct eng_step_seq {
    const uint32_t *ids; /* n tokens to process, at positions pos0 .. pos0 + n - 1 */
    uint32_t n, pos0;
    void *const *pages; /* cover pos0 + n positions */
    uint32_t n_logits;  /* logits are wanted of the last n_logits tokens (0: none) */
};
/* One forward over a mixed batch (decode tokens and prefill chunks). *logits: (sum of n_logits, n_vocab),
 * sequences in order, owned by the model and valid until the next forward. ENG_OK, ENG_ENOMEM. */
int eng_forward(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs, const float **logits);

#endif
