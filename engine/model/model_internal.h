/*
 * What the three files of this room share: description.c says what the model is, weights.c packs it,
 * forward.c runs it. Nothing outside engine/model includes this.
 */
#ifndef ISOTHERM_ENGINE_MODEL_INTERNAL_H
#define ISOTHERM_ENGINE_MODEL_INTERNAL_H

#include "engine/model/model.h"
#include "formats/gguf.h"
#include "formats/quant.h"

/* One line for a person into err; gives back code, so that callers can return it. */
int model_fail(char *err, size_t err_len, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- description.c: the file's tensors by the part they play ----------------------------------------- */

enum model_layer_tensor {
    LT_ATTN_NORM,
    LT_Q,
    LT_K,
    LT_V,
    LT_Q_BIAS,
    LT_K_BIAS,
    LT_V_BIAS,
    LT_Q_NORM,
    LT_K_NORM,
    LT_O,
    LT_FFN_NORM,
    LT_GATE,
    LT_UP,
    LT_DOWN,
    LT_COUNT,
};

struct model_layer_tensors {
    const struct fmt_tensor *t[LT_COUNT]; /* NULL: the model has none */
};

struct model_tensors {
    const struct fmt_tensor *embedding;   /* (n_vocab, hidden) */
    const struct fmt_tensor *output_norm; /* (hidden) */
    const struct fmt_tensor *head;        /* (n_vocab, hidden); NULL: the embedding is the head */
    struct model_layer_tensors *layers;   /* n_layers */
};

/* Fills both from the file, everything checked. The caller frees t->layers, on failure too. */
int model_describe(const struct fmt_gguf *g, struct eng_model_desc *d, struct model_tensors *t, char *err,
                   size_t err_len);

/* ---- weights.c ----------------------------------------------------------------------------------------- */

/* Rows and columns of a matrix as the kernels see them: y (rows) = W (rows, cols) x (cols). */
struct model_layer {
    float *attn_norm;             /* (hidden) */
    struct kn_matrix *qkv[3];     /* (n_heads * head_dim, hidden), 2 x (n_kv_heads * head_dim, hidden) */
    float *qkv_bias;              /* ((n_heads + 2 * n_kv_heads) * head_dim) or NULL */
    float *q_norm, *k_norm;       /* (head_dim) or NULL */
    struct kn_matrix *o;          /* (hidden, n_heads * head_dim) */
    float *ffn_norm;              /* (hidden) */
    struct kn_matrix *gate_up[2]; /* 2 x (ffn, hidden) */
    struct kn_matrix *down;       /* (hidden, ffn) */
};

struct model_weights {
    struct kn_matrix *embedding; /* (n_vocab, hidden) */
    struct kn_matrix *head;      /* (n_vocab, hidden); the same pointer as embedding when tied */
    float *output_norm;          /* (hidden) */
    struct model_layer *layers;  /* n_layers */
    uint8_t digest[16];          /* over all tensors' names, shapes, types and bytes */
};

int model_weights_load(struct kn_backend *b, const struct eng_model_desc *d, const struct model_tensors *t,
                       const struct eng_model_options *o, struct model_weights *w, char *err, size_t err_len);
void model_weights_free(struct model_weights *w, const struct eng_model_desc *d);

/* ---- forward.c ----------------------------------------------------------------------------------------- */

/* What a forward writes on its way; grown to the largest batch seen, then kept. */
struct model_workspace {
    size_t rows_capacity, seqs_capacity, logits_capacity;
    float *x;                        /* (rows, hidden): the residual stream */
    float *normed;                   /* (rows, hidden) */
    float *qkv;                      /* (rows, (n_heads + 2 * n_kv_heads) * head_dim) */
    float *heads;                    /* (rows, n_heads * head_dim): what attention gives */
    float *gu;                       /* (rows, 2 * ffn): gate, then up */
    float *act;                      /* (rows, ffn) */
    uint32_t *ids;                   /* (rows) */
    uint32_t *pos;                   /* (rows) */
    float *logits;                   /* (logits rows, n_vocab) */
    struct kn_attn_seq *seqs, *last; /* (seqs) all rows; only those that want logits */
};
void model_workspace_free(struct model_workspace *s);

struct eng_model {
    struct eng_model_desc desc;
    struct kn_kv_layout kv;
    uint32_t context;
    struct kn_backend *backend;
    struct kn_rope_table *rope; /* (context, rot_dims) */
    struct model_weights weights;
    struct model_workspace work;
    uint8_t fingerprint[32];
};

#endif
