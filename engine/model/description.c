/*
 * What a GGUF file says about its model, read into numbers that the forward graph understands.
 *
 * The rule here is that nothing is ignored: every key of the architecture's own namespace is either read, or
 * known to mean nothing at the value it has, or refused by name (description_keys.c); every tensor has a
 * place in the graph, or is refused by name (description_tensors.c). A file that would make other arithmetic
 * than ours therefore never loads.
 *
 * Key names: ggml's docs/gguf.md; tensor names: the public converter's. Pure functions of the file, any
 * thread.
 */
#include "engine/model/description_internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names in a file may hold what would steer a terminal or break a log's line. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7F)
            *text = '?';
}

int model_fail(char *err, size_t err_len, int code, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (err_len > 0) {
        vsnprintf(err, err_len, format, ap);
        make_printable(err);
    }
    va_end(ap);
    return code;
}

static const struct architecture architectures[] = {
    {"llama", ARCH_LLAMA, true, false, false},   {"qwen2", ARCH_QWEN2, false, true, false},
    {"qwen3", ARCH_QWEN3, false, false, true},   {"gemma3", ARCH_GEMMA3, false, false, true},
    {"qwen35", ARCH_QWEN35, false, false, true}, {"qwen3next", ARCH_QWEN3NEXT, false, false, true},
};

/* ---- keys ---------------------------------------------------------------------------------------------- */

int reader_u32(const struct reader *r, const char *suffix, const uint32_t *fallback, uint32_t lo, uint32_t hi,
               uint32_t *out)
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

int reader_f32(const struct reader *r, const char *suffix, const float *fallback, float lo, float hi,
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

bool description_str_is(struct fmt_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
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
        if (description_str_is(s, architectures[i].name))
            return &architectures[i];
    *code = model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                       "general.architecture \"%.*s\" is not supported (llama, qwen2, qwen3, gemma3, qwen35 "
                       "and qwen3next are)",
                       (int)(s.len < 64 ? s.len : 64), s.data);
    return NULL;
}

static int read_numbers(const struct reader *r, struct eng_model_desc *d)
{
    int rc;
    const float theta = 10000.0F;
    const uint32_t none = 0;
    bool experts = r->arch->bit & ARCH_QWEN3NEXT; /* of those, the file need not say how wide others were */
    if ((rc = reader_u32(r, "block_count", NULL, 1, MAX_LAYERS, &d->n_layers)) != ENG_OK ||
        (rc = reader_u32(r, "context_length", NULL, 1, MAX_CONTEXT, &d->context_trained)) != ENG_OK ||
        (rc = reader_u32(r, "embedding_length", NULL, 1, MAX_HIDDEN, &d->hidden)) != ENG_OK ||
        (rc = reader_u32(r, "feed_forward_length", experts ? &none : NULL, !experts, MAX_FFN, &d->ffn)) !=
            ENG_OK ||
        (rc = reader_u32(r, "attention.head_count", NULL, 1, MAX_HEADS, &d->n_heads)) != ENG_OK ||
        (rc = reader_u32(r, "attention.head_count_kv", &d->n_heads, 1, d->n_heads, &d->n_kv_heads)) !=
            ENG_OK ||
        (rc = reader_f32(r, "attention.layer_norm_rms_epsilon", NULL, 0, 1, &d->rms_eps)) != ENG_OK ||
        (rc = reader_f32(r, "rope.freq_base", &theta, 1, 1e12F, &d->rope_theta)) != ENG_OK)
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
    if ((rc = reader_u32(r, "attention.key_length", &head_dim, 16, MAX_HEAD_DIM, &d->head_dim)) != ENG_OK ||
        (rc = reader_u32(r, "attention.value_length", &d->head_dim, 1, MAX_HEAD_DIM, &value_length)) !=
            ENG_OK ||
        (rc = reader_u32(r, "rope.dimension_count", r->arch->bit & ARCH_HYBRID ? NULL : &d->head_dim, 2,
                         d->head_dim, &d->rot_dims)) != ENG_OK)
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
    make_printable(d->name);
    d->rope_interleaved = r.arch->rope_interleaved;
    d->attention_gate = r.arch->bit & ARCH_HYBRID;
    d->post_norms = d->gelu = d->embedding_scaled = r.arch->bit & ARCH_GEMMA3;
    if ((rc = describe_check_keys(&r)) != ENG_OK || (rc = read_numbers(&r, d)) != ENG_OK ||
        (rc = describe_layers(&r, d)) != ENG_OK)
        return rc;
    return describe_tensors(&r, d, t);
}

int eng_model_describe(const struct fmt_gguf *g, struct eng_model_desc *out, char *err, size_t err_len)
{
    struct model_tensors t;
    int rc = model_describe(g, out, &t, err, err_len);
    free(t.layers);
    return rc;
}
