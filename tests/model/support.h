/* What the model tests share: tiny models written in memory, KV pages from a shuffled arena, runs. */
#ifndef ISOTHERM_TESTS_MODEL_SUPPORT_H
#define ISOTHERM_TESTS_MODEL_SUPPORT_H

#include "engine/model/model.h"
#include "formats/gguf.h"
#include "formats/quant.h"
#include <setjmp.h> /* cmocka.h wants these before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- a GGUF in memory --------------------------------------------------------------------------------- */

struct gguf_writer;
struct gguf_writer *gguf_writer_new(void);
void gguf_writer_free(struct gguf_writer *w);
/* A key or tensor of a name that is there is replaced; drop takes either away. */
void gguf_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_f32(struct gguf_writer *w, const char *key, float v);
void gguf_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_string(struct gguf_writer *w, const char *key, const char *v);
void gguf_bool_array(struct gguf_writer *w, const char *key, size_t n, const bool *v);
void gguf_u32_array(struct gguf_writer *w, const char *key, size_t n, uint32_t v);
void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                 const void *data);
void gguf_drop(struct gguf_writer *w, const char *name);
/* The file's bytes, the writer's until it is freed or writes again. */
const void *gguf_finish(struct gguf_writer *w, size_t *len);

/* ---- tiny.c -------------------------------------------------------------------------------------------- */

/* A model of random weights: 4 query and 2 KV heads, 96 tokens. hidden is a multiple of 4 * 16; matrices are
 * of `type`. With `plain`, the same weights again, multiplied out to F32. llama, qwen2, qwen3: 2 layers.
 * gemma3: 4, a window of 24, every third full. qwen35: 4, every second full, two v heads a k head. qwen3next:
 * 3, so that the last is recurrent; 6 experts, 2 used. */
struct gguf_writer *tiny_model(const char *architecture, uint32_t type, uint32_t hidden, bool plain);
#define TINY_VOCAB         96
#define TINY_WINDOW        24
#define TINY_ARCHITECTURES 6
extern const char *const tiny_architectures[TINY_ARCHITECTURES];

/* ---- running ------------------------------------------------------------------------------------------ */

/* Opens the model at `path` (or in memory); the test fails with the message when it cannot be. */
struct eng_model *open_path(const char *path, enum kn_isa isa, unsigned threads, enum kn_kv_dtype dtype);
struct eng_model *open_writer(struct gguf_writer *w, enum kn_isa isa, unsigned threads,
                              enum kn_kv_dtype dtype);

/* The paths this machine has, scalar first; under AddressSanitizer without scalar where there is AVX2. */
size_t isa_list(enum kn_isa out[4]);

/* What one sequence has: pages of all tables from one arena in shuffled order, filled with NaNs, and live
 * state at position 0. */
struct kv {
    uint8_t *arena;
    void **pages;   /* of the full layers, then of each window group */
    void ***groups; /* a table a window group */
    void *state;    /* NULL without state */
    uint32_t n_pages, n_groups;
};
struct kv kv_new(const struct eng_model *m, uint32_t tokens, uint32_t seed);
void kv_free(struct kv *kv);
/* A step over ids[pos0 .. pos0 + n). */
struct eng_step_seq kv_step(const struct kv *kv, const uint32_t *ids, uint32_t pos0, uint32_t n,
                            uint32_t n_logits);

/* Logits of all n tokens, (n, n_vocab), run in chunks of `chunk` from position 0; the caller frees them. */
float *run_chunked(struct eng_model *m, const uint32_t *ids, uint32_t n, uint32_t chunk, uint32_t seed);

uint32_t next_random(uint32_t *state);
/* n ids of a tiny model, the same for the same seed. */
void make_ids(uint32_t *ids, uint32_t n, uint32_t seed);

#endif
