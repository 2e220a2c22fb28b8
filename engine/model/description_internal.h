/*
 * What the files that read a description share. Nothing outside engine/model/description*.c includes this.
 */
#ifndef ISOTHERM_ENGINE_MODEL_DESCRIPTION_INTERNAL_H
#define ISOTHERM_ENGINE_MODEL_DESCRIPTION_INTERNAL_H

#include "engine/model/model_internal.h"

/* Far above every published model of these families; they keep all products below 2^63. */
#define MAX_LAYERS   ENG_LAYERS_MAX
#define MAX_HIDDEN   65536
#define MAX_FFN      (1u << 20)
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 512
#define MAX_VOCAB    (1u << 22)
#define MAX_CONTEXT  (1u << 26)
#define MAX_EXPERTS  4096

enum {
    ARCH_LLAMA = 1,
    ARCH_QWEN2 = 2,
    ARCH_QWEN3 = 4,
    ARCH_GEMMA3 = 8,
    ARCH_QWEN35 = 16,
    ARCH_QWEN3NEXT = 32,
    ARCH_DENSE = ARCH_LLAMA | ARCH_QWEN2 | ARCH_QWEN3,
    ARCH_HYBRID = ARCH_QWEN35 | ARCH_QWEN3NEXT,
};

/* The architectures, and how they differ in arithmetic. */
struct architecture {
    const char *name;
    unsigned bit; /* ARCH_... */
    bool rope_interleaved, qkv_bias_required, qk_norm;
};

struct reader {
    const struct fmt_gguf *g;
    const struct architecture *arch;
    char *err;
    size_t err_len;
};

/* ---- description.c ------------------------------------------------------------------------------------- */

/* A required (fallback NULL) or defaulted number of the architecture's namespace, within lo..hi. */
int reader_u32(const struct reader *r, const char *suffix, const uint32_t *fallback, uint32_t lo, uint32_t hi,
               uint32_t *out);
int reader_f32(const struct reader *r, const char *suffix, const float *fallback, float lo, float hi,
               float *out);

bool description_str_is(struct fmt_str s, const char *text);

/* ---- description_keys.c -------------------------------------------------------------------------------- */

/* Refuses by name every key that would change the arithmetic and is not read. */
int describe_check_keys(const struct reader *r);

/* ---- description_layers.c ------------------------------------------------------------------------------ */

/* What each layer is, and the numbers that only window, recurrent and expert layers have. n_layers counts
 * all blocks of the file when called. */
int describe_layers(const struct reader *r, struct eng_model_desc *d);

/* ---- description_tensors.c ----------------------------------------------------------------------------- */

/* Every tensor of the file in its place, shapes and types checked. */
int describe_tensors(const struct reader *r, struct eng_model_desc *d, struct model_tensors *t);

#endif
