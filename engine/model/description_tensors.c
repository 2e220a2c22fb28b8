/*
 * Every tensor of the file gets its place in the graph, with shape and type checked against the numbers of
 * the description; one that has no place is refused by name. Pure functions of the file, any thread.
 */
#include "engine/model/description_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum form {
    FORM_MATRIX,  /* (rows, cols) is ne = cols, rows */
    FORM_VECTOR,  /* F32, ne = cols */
    FORM_TABLE,   /* F32, kept as it is: ne = cols, rows */
    FORM_ROW,     /* a matrix of one row, whose second dimension may be left out */
    FORM_EXPERTS, /* a matrix each: ne = cols, rows, experts */
};

#define ALL (~0u)
static const struct {
    const char *name;
    unsigned archs; /* ARCH_...: those whose files may have it */
    enum model_layer_tensor part;
    enum form form;
} layer_names[] = {
    {"attn_norm.weight", ALL, LT_ATTN_NORM, FORM_VECTOR},
    {"attn_q.weight", ALL, LT_Q, FORM_MATRIX},
    {"attn_k.weight", ALL, LT_K, FORM_MATRIX},
    {"attn_v.weight", ALL, LT_V, FORM_MATRIX},
    {"attn_q.bias", ARCH_DENSE, LT_Q_BIAS, FORM_VECTOR},
    {"attn_k.bias", ARCH_DENSE, LT_K_BIAS, FORM_VECTOR},
    {"attn_v.bias", ARCH_DENSE, LT_V_BIAS, FORM_VECTOR},
    {"attn_q_norm.weight", ARCH_QWEN3 | ARCH_GEMMA3 | ARCH_HYBRID, LT_Q_NORM, FORM_VECTOR},
    {"attn_k_norm.weight", ARCH_QWEN3 | ARCH_GEMMA3 | ARCH_HYBRID, LT_K_NORM, FORM_VECTOR},
    {"attn_output.weight", ALL, LT_O, FORM_MATRIX},
    {"post_attention_norm.weight", ARCH_GEMMA3, LT_POST_ATTN_NORM, FORM_VECTOR},
    {"attn_qkv.weight", ARCH_HYBRID, LT_DELTA_QKV, FORM_MATRIX},
    {"attn_gate.weight", ARCH_HYBRID, LT_DELTA_Z, FORM_MATRIX},
    {"ssm_beta.weight", ARCH_QWEN35, LT_DELTA_BETA, FORM_MATRIX},
    {"ssm_alpha.weight", ARCH_QWEN35, LT_DELTA_ALPHA, FORM_MATRIX},
    {"ssm_ba.weight", ARCH_QWEN3NEXT, LT_DELTA_BA, FORM_MATRIX},
    {"ssm_conv1d.weight", ARCH_HYBRID, LT_DELTA_CONV, FORM_TABLE},
    {"ssm_a", ARCH_HYBRID, LT_DELTA_A, FORM_VECTOR},
    {"ssm_dt.bias", ARCH_HYBRID, LT_DELTA_DT, FORM_VECTOR},
    {"ssm_norm.weight", ARCH_HYBRID, LT_DELTA_NORM, FORM_VECTOR},
    {"ssm_out.weight", ARCH_HYBRID, LT_DELTA_OUT, FORM_MATRIX},
    {"ffn_norm.weight", ~(unsigned)ARCH_HYBRID, LT_FFN_NORM, FORM_VECTOR},
    {"post_attention_norm.weight", ARCH_HYBRID, LT_FFN_NORM, FORM_VECTOR}, /* behind attention's sum: ours */
    {"ffn_gate.weight", ~(unsigned)ARCH_QWEN3NEXT, LT_GATE, FORM_MATRIX},
    {"ffn_up.weight", ~(unsigned)ARCH_QWEN3NEXT, LT_UP, FORM_MATRIX},
    {"ffn_down.weight", ~(unsigned)ARCH_QWEN3NEXT, LT_DOWN, FORM_MATRIX},
    {"post_ffw_norm.weight", ARCH_GEMMA3, LT_POST_FFN_NORM, FORM_VECTOR},
    {"ffn_gate_inp.weight", ARCH_QWEN3NEXT, LT_ROUTER, FORM_MATRIX},
    {"ffn_gate_exps.weight", ARCH_QWEN3NEXT, LT_EXPERTS_GATE, FORM_EXPERTS},
    {"ffn_up_exps.weight", ARCH_QWEN3NEXT, LT_EXPERTS_UP, FORM_EXPERTS},
    {"ffn_down_exps.weight", ARCH_QWEN3NEXT, LT_EXPERTS_DOWN, FORM_EXPERTS},
    {"ffn_gate_inp_shexp.weight", ARCH_QWEN3NEXT, LT_SHARED_ROUTER, FORM_ROW},
    {"ffn_gate_shexp.weight", ARCH_QWEN3NEXT, LT_SHARED_GATE, FORM_MATRIX},
    {"ffn_up_shexp.weight", ARCH_QWEN3NEXT, LT_SHARED_UP, FORM_MATRIX},
    {"ffn_down_shexp.weight", ARCH_QWEN3NEXT, LT_SHARED_DOWN, FORM_MATRIX},
};
#define N_NAMES (sizeof layer_names / sizeof layer_names[0])

/* "blk.12.attn_q.weight" -> 12 and "attn_q.weight"; NULL: no such form. */
static const char *layer_suffix(const char *name, uint32_t *layer)
{
    if (strncmp(name, "blk.", 4) != 0)
        return NULL;
    uint32_t n = 0;
    const char *p = name + 4;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (n >= 100000 || (p > name + 4 && n == 0))
            return NULL; /* absurd, or a leading zero */
        n = n * 10 + (uint32_t)(*p - '0');
    }
    if (p == name + 4 || *p != '.')
        return NULL;
    *layer = n;
    return p + 1;
}

/* Puts one tensor of the file into its place; *skipped: it is of a layer that no forward runs. */
static int place_tensor(const struct reader *r, const struct eng_model_desc *d, struct model_tensors *t,
                        const struct fmt_tensor *x, bool *skipped)
{
    *skipped = false;
    if (strcmp(x->name, "token_embd.weight") == 0) {
        t->embedding = x;
        return ENG_OK;
    }
    if (strcmp(x->name, "output_norm.weight") == 0) {
        t->output_norm = x;
        return ENG_OK;
    }
    if (strcmp(x->name, "output.weight") == 0) {
        t->head = x;
        return ENG_OK;
    }
    if (strcmp(x->name, "rope_freqs.weight") == 0)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "tensor rope_freqs.weight: rope frequency factors are not supported");
    uint32_t layer;
    const char *suffix = layer_suffix(x->name, &layer);
    /* The layers behind the model's own read its last hidden state and guess tokens further ahead: nothing of
     * theirs flows back, so the logits do not depend on them. */
    if (suffix && layer >= d->n_layers && layer - d->n_layers < d->layers_not_run) {
        *skipped = true;
        return ENG_OK;
    }
    for (size_t i = 0; suffix && i < N_NAMES; i++) {
        if (!(layer_names[i].archs & r->arch->bit) || strcmp(suffix, layer_names[i].name) != 0)
            continue;
        if (layer >= d->n_layers)
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: the model has %u layers", x->name,
                              d->n_layers);
        t->layers[layer].t[layer_names[i].part] = x;
        return ENG_OK;
    }
    return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s is not one this build knows for %s",
                      x->name, r->arch->name);
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

static void show_shape(char *out, size_t len, uint32_t n_dims, const uint64_t *ne)
{
    size_t at = 0;
    for (uint32_t i = 0; i < n_dims && i < 4 && at < len; i++)
        at += (size_t)snprintf(out + at, len - at, "%s%llu", i ? ", " : "[", (unsigned long long)ne[i]);
    if (at < len)
        snprintf(out + at, len - at, "]");
}

static int check_shape(const struct reader *r, const struct fmt_tensor *x, uint64_t rows, uint64_t cols,
                       uint64_t experts, enum form form)
{
    const uint64_t want[3] = {cols, rows, experts};
    const uint32_t n_dims = form == FORM_VECTOR                  ? 1
                            : form == FORM_EXPERTS               ? 3
                            : form == FORM_ROW && x->n_dims == 1 ? 1
                                                                 : 2;
    bool equal = x->n_dims == n_dims;
    for (uint32_t i = 0; i < n_dims; i++)
        equal &= x->ne[i] == want[i];
    if (!equal) {
        char wanted[96], have[96];
        show_shape(wanted, sizeof wanted, n_dims, want);
        show_shape(have, sizeof have, x->n_dims, x->ne);
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: shape %s, expected %s", x->name, have,
                          wanted);
    }
    const struct fmt_type_info *info = fmt_type_info(x->type);
    if (!info)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s: type %s is not supported",
                          x->name, fmt_type_name(x->type));
    bool floats = form == FORM_VECTOR || form == FORM_TABLE;
    if (floats && x->type != FMT_F32)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s: type %s, expected F32", x->name,
                          info->name);
    if (!floats && info->block_elems > 1 && cols % info->block_elems != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "tensor %s: %llu columns are no multiple of %s's %u", x->name,
                          (unsigned long long)cols, info->name, info->block_elems);
    uint64_t elements = cols;
    for (uint32_t i = 1; i < n_dims; i++)
        if (__builtin_mul_overflow(elements, want[i], &elements))
            elements = 0;
    if (elements == 0 || x->bytes != fmt_type_bytes(x->type, elements))
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: %llu bytes do not hold its shape",
                          x->name, (unsigned long long)x->bytes);
    return ENG_OK;
}

struct want {
    uint64_t rows, cols; /* cols 0: the layer has no such tensor */
};

static void want_of_layer(const struct reader *r, const struct eng_model_desc *d, uint32_t layer,
                          struct want want[LT_COUNT])
{
    const uint64_t hidden = d->hidden, q = (uint64_t)d->n_heads * d->head_dim,
                   kv = (uint64_t)d->n_kv_heads * d->head_dim, ffn = d->ffn;
    memset(want, 0, LT_COUNT * sizeof *want);
    want[LT_ATTN_NORM] = want[LT_FFN_NORM] = (struct want){1, hidden};
    if (d->post_norms)
        want[LT_POST_ATTN_NORM] = want[LT_POST_FFN_NORM] = (struct want){1, hidden};
    if (d->layer_kind[layer] == ENG_LAYER_RECURRENT) {
        const uint64_t v_heads = d->delta.v_heads, inner = v_heads * d->delta.dim,
                       columns = 2ull * d->delta.k_heads * d->delta.dim + inner;
        want[LT_DELTA_QKV] = (struct want){columns, hidden};
        want[LT_DELTA_Z] = (struct want){inner, hidden};
        if (r->arch->bit & ARCH_QWEN3NEXT)
            want[LT_DELTA_BA] = (struct want){2 * v_heads, hidden};
        else
            want[LT_DELTA_BETA] = want[LT_DELTA_ALPHA] = (struct want){v_heads, hidden};
        want[LT_DELTA_CONV] = (struct want){columns, d->delta.conv};
        want[LT_DELTA_A] = want[LT_DELTA_DT] = (struct want){1, v_heads};
        want[LT_DELTA_NORM] = (struct want){1, d->delta.dim};
        want[LT_DELTA_OUT] = (struct want){hidden, inner};
    } else {
        want[LT_Q] = (struct want){d->attention_gate ? 2 * q : q, hidden};
        want[LT_K] = want[LT_V] = (struct want){kv, hidden};
        if (d->qkv_bias) {
            want[LT_Q_BIAS] = (struct want){1, q};
            want[LT_K_BIAS] = want[LT_V_BIAS] = (struct want){1, kv};
        }
        if (d->qk_norm)
            want[LT_Q_NORM] = want[LT_K_NORM] = (struct want){1, d->head_dim};
        want[LT_O] = (struct want){hidden, q};
    }
    if (d->n_experts == 0) {
        want[LT_GATE] = want[LT_UP] = (struct want){ffn, hidden};
        want[LT_DOWN] = (struct want){hidden, ffn};
    } else {
        want[LT_ROUTER] = (struct want){d->n_experts, hidden};
        want[LT_EXPERTS_GATE] = want[LT_EXPERTS_UP] = (struct want){d->expert_ffn, hidden};
        want[LT_EXPERTS_DOWN] = (struct want){hidden, d->expert_ffn};
        want[LT_SHARED_ROUTER] = (struct want){1, hidden};
        want[LT_SHARED_GATE] = want[LT_SHARED_UP] = (struct want){d->shared_expert_ffn, hidden};
        want[LT_SHARED_DOWN] = (struct want){hidden, d->shared_expert_ffn};
    }
}

static int check_layer(const struct reader *r, const struct eng_model_desc *d, struct model_tensors *t,
                       uint32_t layer)
{
    struct want want[LT_COUNT];
    want_of_layer(r, d, layer, want);
    const struct fmt_tensor *const *all = t->layers[layer].t;
    for (size_t i = 0; i < N_NAMES; i++) {
        const enum model_layer_tensor part = layer_names[i].part;
        const struct fmt_tensor *x = all[part];
        if (!(layer_names[i].archs & r->arch->bit) || (!x && want[part].cols == 0))
            continue;
        if (!x) {
            const struct fmt_tensor *partner = all[LT_Q_BIAS]   ? all[LT_Q_BIAS]
                                               : all[LT_K_BIAS] ? all[LT_K_BIAS]
                                                                : all[LT_V_BIAS];
            bool bias = part >= LT_Q_BIAS && part <= LT_V_BIAS && partner;
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor blk.%u.%s is missing%s%s", layer,
                              layer_names[i].name, bias ? " beside " : "", bias ? partner->name : "");
        }
        if (want[part].cols == 0)
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: other layers %shave none", x->name,
                              d->n_recurrent > 0 ? "of its kind " : "");
        int rc = check_shape(r, x, want[part].rows, want[part].cols, d->n_experts, layer_names[i].form);
        if (rc != ENG_OK)
            return rc;
    }
    return ENG_OK;
}

/* The vocabulary is as long as the embedding is high; the reader has compared the tokens with it. */
static int check_vocabulary(const struct reader *r, struct eng_model_desc *d,
                            const struct fmt_tensor *embedding)
{
    if (embedding->n_dims != 2 || embedding->ne[1] < 1 || embedding->ne[1] > MAX_VOCAB)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "tensor %s: expected 2 dimensions and at most %u rows", embedding->name, MAX_VOCAB);
    d->n_vocab = (uint32_t)embedding->ne[1];
    uint32_t stated = 0;
    int rc = reader_u32(r, "vocab_size", &d->n_vocab, 1, MAX_VOCAB, &stated);
    if (rc != ENG_OK)
        return rc;
    if (stated != d->n_vocab)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s.vocab_size is %u but %s has %u rows",
                          r->arch->name, stated, embedding->name, d->n_vocab);
    return ENG_OK;
}

static int count_tensor(const struct reader *r, struct eng_model_desc *d, const struct fmt_tensor *x)
{
    uint64_t elements = 1;
    for (uint32_t k = 0; k < x->n_dims && k < 4; k++)
        if (__builtin_mul_overflow(elements, x->ne[k], &elements))
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: its shape overflows", x->name);
    if (__builtin_add_overflow(d->parameters, elements, &d->parameters) ||
        __builtin_add_overflow(d->weight_bytes, x->bytes, &d->weight_bytes))
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: the sum of sizes overflows", x->name);
    return ENG_OK;
}

int describe_tensors(const struct reader *r, struct eng_model_desc *d, struct model_tensors *t)
{
    uint64_t n = fmt_gguf_n_tensors(r->g);
    t->layers = calloc(d->n_layers, sizeof *t->layers);
    if (!t->layers)
        return model_fail(r->err, r->err_len, ENG_ENOMEM, "out of memory");
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        const struct fmt_tensor *x = fmt_gguf_tensor_at(r->g, i);
        bool skipped;
        if ((rc = place_tensor(r, d, t, x, &skipped)) != ENG_OK ||
            (!skipped && (rc = count_tensor(r, d, x)) != ENG_OK))
            return rc;
    }
    if (!t->embedding || !t->output_norm)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s is missing",
                          t->embedding ? "output_norm.weight" : "token_embd.weight");
    d->tied_head = !t->head;
    d->qk_norm = r->arch->qk_norm;
    d->qkv_bias = r->arch->qkv_bias_required || t->layers[0].t[LT_Q_BIAS] || t->layers[0].t[LT_K_BIAS] ||
                  t->layers[0].t[LT_V_BIAS];
    if ((rc = check_vocabulary(r, d, t->embedding)) != ENG_OK ||
        (rc = check_shape(r, t->embedding, d->n_vocab, d->hidden, 0, FORM_MATRIX)) != ENG_OK ||
        (rc = check_shape(r, t->output_norm, 1, d->hidden, 0, FORM_VECTOR)) != ENG_OK ||
        (t->head && (rc = check_shape(r, t->head, d->n_vocab, d->hidden, 0, FORM_MATRIX)) != ENG_OK))
        return rc;
    for (uint32_t l = 0; l < d->n_layers; l++)
        if ((rc = check_layer(r, d, t, l)) != ENG_OK)
            return rc;
    return ENG_OK;
}
