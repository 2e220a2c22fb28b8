/*
 * What the files of this room share: description*.c say what the model is, weights*.c pack it, forward*.c run
 * it, state.c carries what a sequence needs beside its pages. Nothing outside engine/model includes this.
 */
#ifndef ISOTHERM_ENGINE_MODEL_INTERNAL_H
#define ISOTHERM_ENGINE_MODEL_INTERNAL_H

#include "engine/model/model.h"
#include "formats/gguf.h"
#include "formats/quant.h"

/* One line for a person into err; gives back code, so that callers can return it. */
int model_fail(char *err, size_t err_len, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- description_tensors.c: the file's tensors by the part they play ----------------------------------- */

enum model_layer_tensor {
    LT_ATTN_NORM,
    /* attention */
    LT_Q, /* with a gate: of each head q, then its gate */
    LT_K,
    LT_V,
    LT_Q_BIAS,
    LT_K_BIAS,
    LT_V_BIAS,
    LT_Q_NORM,
    LT_K_NORM,
    LT_O,
    LT_POST_ATTN_NORM,
    /* Gated DeltaNet */
    LT_DELTA_QKV,
    LT_DELTA_Z,
    LT_DELTA_BETA,
    LT_DELTA_ALPHA,
    LT_DELTA_BA, /* both in one: of each k head the betas of its v heads, then their alphas */
    LT_DELTA_CONV,
    LT_DELTA_A,
    LT_DELTA_DT,
    LT_DELTA_NORM,
    LT_DELTA_OUT,
    /* feed-forward */
    LT_FFN_NORM,
    LT_GATE,
    LT_UP,
    LT_DOWN,
    LT_POST_FFN_NORM,
    LT_ROUTER,
    LT_EXPERTS_GATE,
    LT_EXPERTS_UP,
    LT_EXPERTS_DOWN,
    LT_SHARED_ROUTER,
    LT_SHARED_GATE,
    LT_SHARED_UP,
    LT_SHARED_DOWN,
    LT_COUNT,
};

struct model_layer_tensors {
    const struct fmt_tensor *t[LT_COUNT]; /* NULL: the layer has none */
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

/* Rows and columns of a matrix as the kernels see them: y (rows) = W (rows, cols) x (cols). What a layer has
 * not is NULL. */
struct model_layer {
    float *attn_norm; /* (hidden) */
    /* Attention: q (n_heads * head_dim, hidden), k and v (n_kv_heads * head_dim, hidden), the gate like q.
     * Recurrent: qkv (columns, hidden), z (v_heads * dim, hidden), beta and alpha (v_heads, hidden). */
    struct kn_matrix *in[4];
    float *qkv_bias;        /* ((n_heads + 2 * n_kv_heads) * head_dim) */
    float *q_norm, *k_norm; /* (head_dim) */
    float *filter;          /* (conv, columns): taps of the convolution, oldest first */
    float *a, *dt_bias;     /* (v_heads) */
    float *delta_norm;      /* (dim) */
    struct kn_matrix *o;    /* (hidden, n_heads * head_dim), recurrent (hidden, v_heads * dim) */
    float *post_attn_norm;  /* (hidden) */

    float *ffn_norm;                 /* (hidden) */
    struct kn_matrix *gate_up[2];    /* 2 x (ffn, hidden); with experts, the shared one's */
    struct kn_matrix *down;          /* (hidden, ffn); the same */
    float *post_ffn_norm;            /* (hidden) */
    struct kn_matrix *router;        /* (n_experts, hidden) */
    struct kn_matrix *shared_router; /* (1, hidden) */
    struct kn_matrix **experts; /* of each: gate and up (expert_ffn, hidden), down (hidden, expert_ffn) */
};

/* How many of a layer's `in` there are. */
static inline size_t model_parts_in(const struct eng_model_desc *d, size_t layer)
{
    return d->layer_kind[layer] == ENG_LAYER_RECURRENT || d->attention_gate ? 4 : 3;
}

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

/* ---- weights_pack.c ------------------------------------------------------------------------------------ */

/* Rows of a tensor and where they go. With `unit`, runs of that many rows alternate between two matrices. */
struct pack_rows {
    const struct fmt_tensor *tensor;
    uint64_t row0; /* in the tensor, all dimensions behind the first counted as one */
    uint32_t rows;
    struct kn_matrix *matrix[2]; /* or */
    float *vector;               /* (rows, ne[0]) */
    uint32_t unit;
    uint32_t to; /* first row there; with unit, as if both were one */
};
struct pack;
struct pack *pack_new(void);
void pack_free(struct pack *p);
/* Tensors enter the digest in the order of these calls. ENG_OK, ENG_ENOMEM. */
int pack_add(struct pack *p, const struct pack_rows *r);
/* Reads, hashes and packs everything. On failure *failed is the tensor, or NULL. */
int pack_run(struct pack *p, struct kn_backend *b, const struct eng_model_options *o, uint8_t digest[16],
             const struct fmt_tensor **failed);

/* ---- state.c ------------------------------------------------------------------------------------------- */

/* Where a layer keeps what it remembers: attention, layer `index` of the pages of table `table` (0: the full
 * ones, 1 + g: window group g); recurrent, the index-th of its kind. */
struct model_place {
    uint32_t table, index;
};

struct kn_delta_shape model_delta_shape(const struct eng_model_desc *d, enum kn_kv_dtype kv_dtype);
/* Fills places, state, segments and live_stride of a model whose desc and kv.dtype are set. */
int model_state_lay_out(struct eng_model *m);

/* ---- forward.c: one pass; the others are its steps ----------------------------------------------------- */

/* What a forward writes on its way; grown to the largest batch seen, then kept. */
struct model_workspace {
    size_t rows_capacity, seqs_capacity, captures_capacity, logits_capacity;
    float *x;      /* (rows, hidden): the residual stream */
    float *normed; /* (rows, hidden) */
    float *in;     /* (rows, columns of the layer's input projections, side by side) */
    float *heads;  /* (rows, n_heads * head_dim or v_heads * dim): what attention or the delta rule gives */
    float *gu;     /* (rows, 2 * ffn): gate, then up; ffn the widest of its kinds */
    float *act;    /* (rows, ffn) */
    uint32_t *ids; /* (rows) */
    uint32_t *pos; /* (rows) */
    /* experts */
    float *router;        /* (rows, n_experts) */
    float *shared_router; /* (rows, 1) */
    uint32_t *chosen;     /* (rows, n_experts_used): ids of experts */
    float *chosen_weight; /* (rows, n_experts_used) */
    uint32_t *expert_row; /* (rows * n_experts_used): rows of the batch, expert by expert */
    float *expert_weight; /* (rows * n_experts_used) */
    uint32_t *expert_at;  /* (n_experts + 1): where each begins in the two above */
    float *taken, *given; /* (rows, hidden): input and output of one expert */

    float *logits;                    /* (logits rows, n_vocab) */
    struct kn_attn_seq *seqs;         /* (tables, seqs): all rows; a table a group of layers */
    struct kn_attn_seq *last;         /* (seqs): only those that want logits, with the last layer's pages */
    struct kn_delta_seq *delta;       /* (seqs) */
    struct kn_delta_capture *capture; /* (captures) */
};

struct model_batch {
    size_t rows;     /* of all sequences, one after another */
    size_t n_seqs;   /* in work.seqs: all rows */
    size_t n_last;   /* in work.last: sequences that want logits, with just those rows */
    size_t n_logits; /* rows in work.last */
    const struct eng_step_seq *steps;
};

/* forward_workspace.c */
int model_batch_lay_out(struct eng_model *m, const struct eng_step_seq *seqs, size_t n_seqs,
                        struct model_batch *out);
void model_workspace_free(struct model_workspace *s);

/* y (n, rows of all parts) = or += x (n, cols) times the parts; leading dimensions are the widths. */
int model_matmul(struct kn_backend *b, struct kn_matrix *const *parts, size_t n_parts, const float *bias,
                 const float *x, size_t ldx, float *y, size_t ldy, size_t n, bool accumulate);

/* What the product after the coming one reads (kn_matmul_announce): these parts; a layer's first, or, of the
 * layer behind the last, the head. */
void model_announce(struct kn_backend *b, struct kn_matrix *const *parts, size_t n_parts);
void model_announce_layer(struct eng_model *m, size_t layer);

#define EXPERTS_AT_ONCE 16 /* of one row, in decode: side by side in rows of work.gu and work.act */

/* From work.normed to work.heads, all rows; of the last layer, attention itself is done for the rows in
 * work.last alone, and the others' heads are left as they are. */
int model_attention(struct eng_model *m, const struct model_batch *b, uint32_t layer);
int model_delta(struct eng_model *m, const struct model_batch *b, uint32_t layer);
/* The feed-forward of work.normed, n rows: added to work.x, or, with post norms, left in work.normed. */
int model_feed_forward(struct eng_model *m, const struct model_layer *y, size_t n);

struct eng_model {
    struct eng_model_desc desc;
    struct kn_kv_layout kv; /* of a group: its layers, not the model's */
    uint32_t context;
    struct kn_backend *backend;
    struct kn_rope_table *rope, *rope_window; /* (context, rot_dims); NULL without window layers */
    struct model_weights weights;
    struct model_workspace work;
    struct model_place place[ENG_LAYERS_MAX];
    struct eng_state_desc state;
    struct eng_state_segment *segments;
    struct kn_delta_shape delta;
    uint64_t live_stride; /* bytes of a recurrent layer in a sequence's live state */
    uint8_t fingerprint[32];
};

#endif
