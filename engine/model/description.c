/*
 * What a GGUF file says about its model, read into numbers that the forward graph understands.
 *
 * The rule here is that nothing is ignored: every key of the architecture's own namespace is either read, or
 * known to mean nothing at the value it has, or refused by name; every tensor has a place in the graph, or
 * is refused by name. A file that would make other arithmetic than ours therefore never loads.
 *
 * Key names: ggml's docs/gguf.md; tensor names: the public converter's. Pure functions of the file, any
 * thread.
 */
#include "engine/model/model_internal.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far above every published model of these families; they keep all products below 2^63. */
#define MAX_LAYERS   1024
#define MAX_HIDDEN   65536
#define MAX_FFN      (1u << 20)
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 512
#define MAX_VOCAB    (1u << 22)
#define MAX_CONTEXT  (1u << 26)

int model_fail(char *err, size_t err_len, int code, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (err_len > 0)
        vsnprintf(err, err_len, format, ap);
    va_end(ap);
    return code;
}

/* The architectures, and how they differ in arithmetic. */
static const struct architecture {
    const char *name;
    bool rope_interleaved, qkv_bias_required, qk_norm;
} architectures[] = {
    {"llama", true, false, false},
    {"qwen2", false, true, false},
    {"qwen3", false, false, true},
};

struct reader {
    const struct fmt_gguf *g;
    const struct architecture *arch;
    char *err;
    size_t err_len;
};

/* ---- keys ---------------------------------------------------------------------------------------------- */

/* A required or defaulted u32 of the architecture's namespace, within lo..hi. */
static int read_u32(const struct reader *r, const char *suffix, const uint32_t *fallback, uint32_t lo,
                    uint32_t hi, uint32_t *out)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", r->arch->name, suffix);
    uint32_t v = 0;
    int rc = fmt_gguf_u32(r->g, key, &v);
    if (rc == FMT_ENOTFOUND && fallback)
        v = *fallback;
    else if (rc == FMT_ENOTFOUND)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s is missing", key);
    else if (rc != FMT_OK)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s is not a single u32 (values per layer are not supported)", key);
    if (v < lo || v > hi)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is %u, expected %u to %u", key, v, lo,
                          hi);
    *out = v;
    return ENG_OK;
}

static int read_f32(const struct reader *r, const char *suffix, const float *fallback, float lo, float hi,
                    float *out)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", r->arch->name, suffix);
    float v = 0;
    int rc = fmt_gguf_f32(r->g, key, &v);
    if (rc == FMT_ENOTFOUND && fallback)
        v = *fallback;
    else if (rc == FMT_ENOTFOUND)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s is missing", key);
    else if (rc != FMT_OK)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s is not an f32", key);
    if (!(v >= lo && v <= hi))
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is %g, expected %g to %g", key, (double)v,
                          (double)lo, (double)hi);
    *out = v;
    return ENG_OK;
}

/* Keys of the architecture's namespace that the reading above consumes, and those that mean nothing at
 * their neutral value. Anything else in the namespace is refused. */
enum key_rule {
    KEY_READ,
    KEY_NOTE,
    KEY_ZERO_U32,
    KEY_ZERO_F32,
    KEY_ZERO_OR_ONE_F32,
    KEY_TRUE,
    KEY_FALSE,
    KEY_NONE
};
static const struct {
    const char *suffix;
    enum key_rule rule;
} key_rules[] = {
    {"block_count", KEY_READ},
    {"context_length", KEY_READ},
    {"embedding_length", KEY_READ},
    {"feed_forward_length", KEY_READ},
    {"vocab_size", KEY_READ},
    {"attention.head_count", KEY_READ},
    {"attention.head_count_kv", KEY_READ},
    {"attention.key_length", KEY_READ},
    {"attention.value_length", KEY_READ},
    {"attention.layer_norm_rms_epsilon", KEY_READ},
    {"rope.dimension_count", KEY_READ},
    {"rope.freq_base", KEY_READ},
    {"rope.scaling.type", KEY_NONE},
    {"rope.scaling.factor", KEY_ZERO_OR_ONE_F32},
    {"rope.scaling.attn_factor", KEY_ZERO_OR_ONE_F32},
    {"rope.scaling.original_context_length", KEY_NOTE}, /* says nothing without a scaling type */
    {"rope.scaling.finetuned", KEY_NOTE},
    {"rope.scale_linear", KEY_ZERO_OR_ONE_F32},
    {"attention.sliding_window", KEY_ZERO_U32},
    {"attention.scale", KEY_ZERO_F32},
    {"attention.clamp_kqv", KEY_ZERO_F32},
    {"attention.max_alibi_bias", KEY_ZERO_F32},
    {"attention.causal", KEY_TRUE},
    {"attn_logit_softcapping", KEY_ZERO_F32},
    {"final_logit_softcapping", KEY_ZERO_F32},
    {"logit_scale", KEY_ZERO_OR_ONE_F32},
    {"residual_scale", KEY_ZERO_OR_ONE_F32},
    {"embedding_scale", KEY_ZERO_OR_ONE_F32},
    {"expert_count", KEY_ZERO_U32},
    {"expert_used_count", KEY_ZERO_U32},
    {"expert_shared_count", KEY_ZERO_U32},
    {"pooling_type", KEY_ZERO_U32},
    {"use_parallel_residual", KEY_FALSE},
    {"tensor_data_layout", KEY_NOTE}, /* how the rows were permuted; the architecture says it already */
};

static bool str_is(struct fmt_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* Whether the key has the value at which it changes nothing; `shown` gets its value for the message. */
static bool key_is_neutral(const struct fmt_gguf *g, const char *key, enum key_rule rule, char *shown,
                           size_t shown_len)
{
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct fmt_str s = {0};
    snprintf(shown, shown_len, "a value of another type");
    switch (rule) {
    case KEY_READ:
    case KEY_NOTE:
        return true;
    case KEY_ZERO_U32:
        if (fmt_gguf_u32(g, key, &u) != FMT_OK)
            return false;
        snprintf(shown, shown_len, "%u", u);
        return u == 0;
    case KEY_ZERO_F32:
    case KEY_ZERO_OR_ONE_F32:
        if (fmt_gguf_f32(g, key, &f) != FMT_OK)
            return false;
        snprintf(shown, shown_len, "%g", (double)f);
        return f == 0 || (rule == KEY_ZERO_OR_ONE_F32 && f == 1);
    case KEY_TRUE:
    case KEY_FALSE:
        if (fmt_gguf_bool(g, key, &b) != FMT_OK)
            return false;
        snprintf(shown, shown_len, "%s", b ? "true" : "false");
        return b == (rule == KEY_TRUE);
    case KEY_NONE:
        if (fmt_gguf_str(g, key, &s) != FMT_OK)
            return false;
        snprintf(shown, shown_len, "\"%.*s\"", (int)(s.len < 32 ? s.len : 32), s.data);
        return str_is(s, "none");
    }
    return false;
}

static int check_key(const struct reader *r, const char *key)
{
    size_t prefix = strlen(r->arch->name);
    if (strncmp(key, "adapter.", 8) == 0)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s: adapters are not supported", key);
    if (strncmp(key, r->arch->name, prefix) != 0 || key[prefix] != '.')
        return ENG_OK; /* general, tokenizer and vendors' notes describe no arithmetic */
    const char *suffix = key + prefix + 1;
    for (size_t i = 0; i < sizeof key_rules / sizeof key_rules[0]; i++) {
        if (strcmp(suffix, key_rules[i].suffix) != 0)
            continue;
        char shown[48];
        if (key_is_neutral(r->g, key, key_rules[i].rule, shown, sizeof shown))
            return ENG_OK;
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s = %s is not supported", key, shown);
    }
    return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is not a key this build knows", key);
}

/* general.*: what would make the file something else than one whole model. */
static int check_general(const struct reader *r)
{
    struct fmt_str s;
    if (fmt_gguf_str(r->g, "general.type", &s) == FMT_OK && !str_is(s, "model"))
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "general.type is \"%.*s\", expected \"model\"", (int)(s.len < 32 ? s.len : 32),
                          s.data);
    uint32_t v = 2;
    int rc = fmt_gguf_u32(r->g, "general.quantization_version", &v);
    if ((rc != FMT_OK && rc != FMT_ENOTFOUND) || v != 2)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "general.quantization_version is not 2");
    enum fmt_gguf_type type;
    const char *key;
    for (uint64_t i = 0; (key = fmt_gguf_key(r->g, i, &type)) != NULL; i++) {
        rc = check_key(r, key);
        if (rc != ENG_OK)
            return rc;
        if (strcmp(key, "split.count") == 0)
            return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                              "split.count: a model split over several files is not supported");
    }
    return ENG_OK;
}

/* NULL: none of ours, and err says so; *code then tells which kind of failure. */
static const struct architecture *find_architecture(const struct reader *r, int *code)
{
    struct fmt_str s;
    if (fmt_gguf_str(r->g, "general.architecture", &s) != FMT_OK) {
        *code =
            model_fail(r->err, r->err_len, ENG_EFORMAT, "general.architecture is missing or not a string");
        return NULL;
    }
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++)
        if (str_is(s, architectures[i].name))
            return &architectures[i];
    *code = model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                       "general.architecture \"%.*s\" is not supported (llama, qwen2 and qwen3 are)",
                       (int)(s.len < 64 ? s.len : 64), s.data);
    return NULL;
}

static int read_numbers(const struct reader *r, struct eng_model_desc *d)
{
    int rc;
    const float theta = 10000.0F;
    if ((rc = read_u32(r, "block_count", NULL, 1, MAX_LAYERS, &d->n_layers)) != ENG_OK ||
        (rc = read_u32(r, "context_length", NULL, 1, MAX_CONTEXT, &d->context_trained)) != ENG_OK ||
        (rc = read_u32(r, "embedding_length", NULL, 1, MAX_HIDDEN, &d->hidden)) != ENG_OK ||
        (rc = read_u32(r, "feed_forward_length", NULL, 1, MAX_FFN, &d->ffn)) != ENG_OK ||
        (rc = read_u32(r, "attention.head_count", NULL, 1, MAX_HEADS, &d->n_heads)) != ENG_OK ||
        (rc = read_u32(r, "attention.head_count_kv", &d->n_heads, 1, d->n_heads, &d->n_kv_heads)) != ENG_OK ||
        (rc = read_f32(r, "attention.layer_norm_rms_epsilon", NULL, 0, 1, &d->rms_eps)) != ENG_OK ||
        (rc = read_f32(r, "rope.freq_base", &theta, 1, 1e12F, &d->rope_theta)) != ENG_OK)
        return rc;
    const char *a = r->arch->name;
    if (d->n_heads % d->n_kv_heads != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "%s.attention.head_count %u is no multiple of head_count_kv %u", a, d->n_heads,
                          d->n_kv_heads);

    uint32_t head_dim = d->hidden / d->n_heads;
    char key[64];
    snprintf(key, sizeof key, "%s.attention.key_length", a);
    uint32_t explicit_length;
    if (fmt_gguf_u32(r->g, key, &explicit_length) == FMT_ENOTFOUND && d->hidden % d->n_heads != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "%s is missing and embedding_length %u is no multiple of head_count %u", key,
                          d->hidden, d->n_heads);
    uint32_t value_length = 0;
    if ((rc = read_u32(r, "attention.key_length", &head_dim, 16, MAX_HEAD_DIM, &d->head_dim)) != ENG_OK ||
        (rc = read_u32(r, "attention.value_length", &d->head_dim, 1, MAX_HEAD_DIM, &value_length)) !=
            ENG_OK ||
        (rc = read_u32(r, "rope.dimension_count", &d->head_dim, 2, d->head_dim, &d->rot_dims)) != ENG_OK)
        return rc;
    if (d->head_dim % 16 != 0)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s.attention.key_length %u is no multiple of 16", a, d->head_dim);
    if (value_length != d->head_dim)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s.attention.value_length %u differs from key_length %u: not supported", a,
                          value_length, d->head_dim);
    if (d->rot_dims % 2 != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s.rope.dimension_count %u is odd", a,
                          d->rot_dims);
    return ENG_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static const char *const layer_names[LT_COUNT] = {
    [LT_ATTN_NORM] = "attn_norm.weight",
    [LT_Q] = "attn_q.weight",
    [LT_K] = "attn_k.weight",
    [LT_V] = "attn_v.weight",
    [LT_Q_BIAS] = "attn_q.bias",
    [LT_K_BIAS] = "attn_k.bias",
    [LT_V_BIAS] = "attn_v.bias",
    [LT_Q_NORM] = "attn_q_norm.weight",
    [LT_K_NORM] = "attn_k_norm.weight",
    [LT_O] = "attn_output.weight",
    [LT_FFN_NORM] = "ffn_norm.weight",
    [LT_GATE] = "ffn_gate.weight",
    [LT_UP] = "ffn_up.weight",
    [LT_DOWN] = "ffn_down.weight",
};

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

/* Puts one tensor of the file into its place. */
static int place_tensor(const struct reader *r, const struct eng_model_desc *d, struct model_tensors *t,
                        const struct fmt_tensor *x)
{
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
    for (int i = 0; suffix && i < LT_COUNT; i++) {
        if (strcmp(suffix, layer_names[i]) != 0)
            continue;
        if (layer >= d->n_layers)
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: the model has %u layers", x->name,
                              d->n_layers);
        if ((i == LT_Q_NORM || i == LT_K_NORM) && !r->arch->qk_norm)
            return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s: not part of architecture %s",
                              x->name, r->arch->name);
        t->layers[layer].t[i] = x;
        return ENG_OK;
    }
    return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s is not one this build knows for %s",
                      x->name, r->arch->name);
}

/* A matrix (rows, cols) is ne[0] = cols, ne[1] = rows; a vector has rows = 1 and one dimension. */
static int check_shape(const struct reader *r, const struct fmt_tensor *x, uint64_t rows, uint64_t cols,
                       bool vector)
{
    uint32_t dims = vector ? 1 : 2;
    if (x->n_dims != dims || x->ne[0] != cols || (!vector && x->ne[1] != rows)) {
        char want[48];
        if (vector)
            snprintf(want, sizeof want, "[%llu]", (unsigned long long)cols);
        else
            snprintf(want, sizeof want, "[%llu, %llu]", (unsigned long long)cols, (unsigned long long)rows);
        char have[96] = "[";
        for (uint32_t i = 0; i < x->n_dims && i < 4; i++) {
            size_t at = strlen(have);
            snprintf(have + at, sizeof have - at, "%s%llu", i ? ", " : "", (unsigned long long)x->ne[i]);
        }
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: shape %s], expected %s", x->name, have,
                          want);
    }
    const struct fmt_type_info *info = fmt_type_info(x->type);
    if (!info)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s: type %s is not supported",
                          x->name, fmt_type_name(x->type));
    if (vector && x->type != FMT_F32)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "tensor %s: type %s, expected F32", x->name,
                          info->name);
    if (!vector && info->block_elems > 1 && cols % info->block_elems != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "tensor %s: %llu columns are no multiple of %s's %u", x->name,
                          (unsigned long long)cols, info->name, info->block_elems);
    uint64_t elements;
    if (__builtin_mul_overflow(rows, cols, &elements) || x->bytes != fmt_type_bytes(x->type, elements))
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: %llu bytes do not hold its shape",
                          x->name, (unsigned long long)x->bytes);
    return ENG_OK;
}

static int check_layer(const struct reader *r, const struct eng_model_desc *d, struct model_tensors *t,
                       uint32_t layer)
{
    const uint64_t q = (uint64_t)d->n_heads * d->head_dim, kv = (uint64_t)d->n_kv_heads * d->head_dim;
    const struct {
        uint64_t rows, cols;
        bool wanted;
    } want[LT_COUNT] = {
        [LT_ATTN_NORM] = {1, d->hidden, true},
        [LT_Q] = {q, d->hidden, true},
        [LT_K] = {kv, d->hidden, true},
        [LT_V] = {kv, d->hidden, true},
        [LT_Q_BIAS] = {1, q, d->qkv_bias},
        [LT_K_BIAS] = {1, kv, d->qkv_bias},
        [LT_V_BIAS] = {1, kv, d->qkv_bias},
        [LT_Q_NORM] = {1, d->head_dim, d->qk_norm},
        [LT_K_NORM] = {1, d->head_dim, d->qk_norm},
        [LT_O] = {d->hidden, q, true},
        [LT_FFN_NORM] = {1, d->hidden, true},
        [LT_GATE] = {d->ffn, d->hidden, true},
        [LT_UP] = {d->ffn, d->hidden, true},
        [LT_DOWN] = {d->hidden, d->ffn, true},
    };
    for (int i = 0; i < LT_COUNT; i++) {
        const struct fmt_tensor *x = t->layers[layer].t[i];
        if (!x && !want[i].wanted)
            continue;
        if (!x) {
            const struct fmt_tensor *const *all = t->layers[layer].t;
            const struct fmt_tensor *partner = all[LT_Q_BIAS]   ? all[LT_Q_BIAS]
                                               : all[LT_K_BIAS] ? all[LT_K_BIAS]
                                                                : all[LT_V_BIAS];
            bool bias = i >= LT_Q_BIAS && i <= LT_V_BIAS && partner;
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor blk.%u.%s is missing%s%s", layer,
                              layer_names[i], bias ? " beside " : "", bias ? partner->name : "");
        }
        bool vector =
            i != LT_Q && i != LT_K && i != LT_V && i != LT_O && i != LT_GATE && i != LT_UP && i != LT_DOWN;
        if (!want[i].wanted)
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: other layers have none", x->name);
        int rc = check_shape(r, x, want[i].rows, want[i].cols, vector);
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
    int rc = read_u32(r, "vocab_size", &d->n_vocab, 1, MAX_VOCAB, &stated);
    if (rc != ENG_OK)
        return rc;
    if (stated != d->n_vocab)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s.vocab_size is %u but %s has %u rows",
                          r->arch->name, stated, embedding->name, d->n_vocab);
    return ENG_OK;
}

static int place_tensors(const struct reader *r, struct eng_model_desc *d, struct model_tensors *t)
{
    uint64_t n = fmt_gguf_n_tensors(r->g);
    t->layers = calloc(d->n_layers, sizeof *t->layers);
    if (!t->layers)
        return model_fail(r->err, r->err_len, ENG_ENOMEM, "out of memory");
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        const struct fmt_tensor *x = fmt_gguf_tensor_at(r->g, i);
        rc = place_tensor(r, d, t, x);
        if (rc != ENG_OK)
            return rc;
        uint64_t elements = 1;
        for (uint32_t k = 0; k < x->n_dims && k < 4; k++)
            if (__builtin_mul_overflow(elements, x->ne[k], &elements))
                return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: its shape overflows", x->name);
        if (__builtin_add_overflow(d->parameters, elements, &d->parameters) ||
            __builtin_add_overflow(d->weight_bytes, x->bytes, &d->weight_bytes))
            return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s: the sum of sizes overflows",
                              x->name);
    }
    if (!t->embedding || !t->output_norm)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "tensor %s is missing",
                          t->embedding ? "output_norm.weight" : "token_embd.weight");
    d->tied_head = !t->head;
    d->qk_norm = r->arch->qk_norm;
    d->qkv_bias = r->arch->qkv_bias_required || t->layers[0].t[LT_Q_BIAS] || t->layers[0].t[LT_K_BIAS] ||
                  t->layers[0].t[LT_V_BIAS];
    if ((rc = check_vocabulary(r, d, t->embedding)) != ENG_OK ||
        (rc = check_shape(r, t->embedding, d->n_vocab, d->hidden, false)) != ENG_OK ||
        (rc = check_shape(r, t->output_norm, 1, d->hidden, true)) != ENG_OK ||
        (t->head && (rc = check_shape(r, t->head, d->n_vocab, d->hidden, false)) != ENG_OK))
        return rc;
    for (uint32_t l = 0; l < d->n_layers; l++)
        if ((rc = check_layer(r, d, t, l)) != ENG_OK)
            return rc;
    return ENG_OK;
}

int model_describe(const struct fmt_gguf *g, struct eng_model_desc *d, struct model_tensors *t, char *err,
                   size_t err_len)
{
    struct reader r = {.g = g, .err = err, .err_len = err_len};
    memset(d, 0, sizeof *d);
    memset(t, 0, sizeof *t);
    int rc = ENG_EFORMAT;
    r.arch = find_architecture(&r, &rc);
    if (!r.arch)
        return rc;
    snprintf(d->architecture, sizeof d->architecture, "%s", r.arch->name);
    struct fmt_str name;
    if (fmt_gguf_str(g, "general.name", &name) == FMT_OK && name.len > 0)
        snprintf(d->name, sizeof d->name, "%.*s",
                 (int)(name.len < sizeof d->name ? name.len : sizeof d->name - 1), name.data);
    else
        snprintf(d->name, sizeof d->name, "%s", r.arch->name);
    d->rope_interleaved = r.arch->rope_interleaved;
    if ((rc = check_general(&r)) != ENG_OK || (rc = read_numbers(&r, d)) != ENG_OK)
        return rc;
    return place_tensors(&r, d, t);
}

int eng_model_describe(const struct fmt_gguf *g, struct eng_model_desc *out, char *err, size_t err_len)
{
    struct model_tensors t;
    int rc = model_describe(g, out, &t, err, err_len);
    free(t.layers);
    return rc;
}
