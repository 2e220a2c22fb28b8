/*
 * What each layer of a model is: full attention, attention over a window, or recurrent; and the numbers that
 * only such layers have. Pure functions of the file, any thread.
 */
#include "engine/model/description_internal.h"
#include <stdio.h>
#include <string.h>

/* *out: one bool a layer under `suffix`; NULL where the file has no such key (or, with or_u32, one that is no
 * array). ENG_OK, or a refusal. */
static int read_layer_bools(const struct reader *r, const char *suffix, bool or_u32, uint32_t n,
                            const uint8_t **out)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", r->arch->name, suffix);
    enum fmt_gguf_type elem;
    uint64_t count;
    int rc = fmt_gguf_array(r->g, key, &elem, &count);
    *out = NULL;
    if (rc == FMT_ENOTFOUND || (rc == FMT_ETYPE && or_u32))
        return ENG_OK;
    if (rc != FMT_OK || elem != FMT_GGUF_BOOL)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is not an array of bools", key);
    if (count != n)
        return model_fail(r->err, r->err_len, ENG_EFORMAT, "%s has %llu values for %u layers", key,
                          (unsigned long long)count, n);
    *out = fmt_gguf_array_data(r->g, key);
    return ENG_OK;
}

/* ---- windows ------------------------------------------------------------------------------------------- */

/* The largest Gemma 3 scales its scores by another number than head_dim^-0.5, and its files do not say so. */
#define GEMMA3_27B_LAYERS 62

static int describe_windows(const struct reader *r, struct eng_model_desc *d)
{
    const float theta = 10000.0F;
    const uint32_t every = 6;
    const uint8_t *windowed;
    uint32_t pattern = 0;
    int rc;
    if (d->n_layers == GEMMA3_27B_LAYERS)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s.block_count is %u: that model's scale of attention is not in its file",
                          r->arch->name, d->n_layers);
    if ((rc = reader_u32(r, "attention.sliding_window", NULL, 1, MAX_CONTEXT, &d->window)) != ENG_OK ||
        (rc = reader_f32(r, "rope.freq_base_swa", &theta, 1, 1e12F, &d->rope_theta_window)) != ENG_OK ||
        (rc = read_layer_bools(r, "attention.sliding_window_pattern", true, d->n_layers, &windowed)) !=
            ENG_OK)
        return rc;
    if (!windowed &&
        (rc = reader_u32(r, "attention.sliding_window_pattern", &every, 1, MAX_LAYERS, &pattern)) != ENG_OK)
        return rc;
    for (uint32_t l = 0; l < d->n_layers; l++)
        if (windowed ? windowed[l] : (l + 1) % pattern != 0)
            d->layer_kind[l] = ENG_LAYER_WINDOW;
    return ENG_OK;
}

/* ---- recurrence ---------------------------------------------------------------------------------------- */

/* Sections of the rotary embedding say which of several positions turns which pair. Those of text are all the
 * same, so the plain embedding results; but the fourth section's is not the position of text. */
static int check_sections(const struct reader *r)
{
    char key[96];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", r->arch->name);
    enum fmt_gguf_type elem;
    uint64_t n;
    int rc = fmt_gguf_array(r->g, key, &elem, &n);
    if (rc == FMT_ENOTFOUND)
        return ENG_OK;
    if (rc != FMT_OK || (elem != FMT_GGUF_I32 && elem != FMT_GGUF_U32) || n > 4)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is not an array of at most 4 integers",
                          key);
    uint32_t fourth = 0;
    if (n == 4)
        memcpy(&fourth, (const uint8_t *)fmt_gguf_array_data(r->g, key) + 3 * sizeof fourth, sizeof fourth);
    if (fourth != 0)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s: a fourth section is not supported", key);
    return ENG_OK;
}

static int describe_recurrence(const struct reader *r, struct eng_model_desc *d)
{
    const uint32_t every = 4, none = 0;
    uint32_t interval, inner, blocks = d->n_layers;
    const uint8_t *recurrent;
    int rc;
    if ((rc = reader_u32(r, "nextn_predict_layers", &none, 0, blocks - 1, &d->layers_not_run)) != ENG_OK ||
        (rc = reader_u32(r, "full_attention_interval", &every, 1, MAX_LAYERS, &interval)) != ENG_OK ||
        (rc = read_layer_bools(r, "attention.recurrent_layers", false, blocks, &recurrent)) != ENG_OK ||
        (rc = reader_u32(r, "ssm.conv_kernel", NULL, 2, 8, &d->delta.conv)) != ENG_OK ||
        (rc = reader_u32(r, "ssm.state_size", NULL, 16, 256, &d->delta.dim)) != ENG_OK ||
        (rc = reader_u32(r, "ssm.group_count", NULL, 1, MAX_HEADS, &d->delta.k_heads)) != ENG_OK ||
        (rc = reader_u32(r, "ssm.time_step_rank", NULL, 1, MAX_HEADS, &d->delta.v_heads)) != ENG_OK ||
        (rc = reader_u32(r, "ssm.inner_size", NULL, 1, UINT32_MAX, &inner)) != ENG_OK ||
        (rc = check_sections(r)) != ENG_OK)
        return rc;
    const char *a = r->arch->name;
    if (d->delta.dim % 16 != 0)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s.ssm.state_size %u is no multiple of 16",
                          a, d->delta.dim);
    if (d->delta.v_heads % d->delta.k_heads != 0)
        return model_fail(r->err, r->err_len, ENG_EFORMAT,
                          "%s.ssm.time_step_rank %u is no multiple of group_count %u", a, d->delta.v_heads,
                          d->delta.k_heads);
    if (inner != d->delta.v_heads * d->delta.dim)
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s.ssm.inner_size %u is not time_step_rank %u times state_size %u", a, inner,
                          d->delta.v_heads, d->delta.dim);
    d->delta.tiled = r->arch->bit & ARCH_QWEN35;
    d->n_layers = blocks - d->layers_not_run;
    for (uint32_t l = 0; l < d->n_layers; l++)
        if (recurrent ? recurrent[l] : (l + 1) % interval != 0)
            d->layer_kind[l] = ENG_LAYER_RECURRENT;
    return ENG_OK;
}

/* ---- experts ------------------------------------------------------------------------------------------- */

static int describe_experts(const struct reader *r, struct eng_model_desc *d)
{
    int rc;
    if ((rc = reader_u32(r, "expert_count", NULL, 1, MAX_EXPERTS, &d->n_experts)) != ENG_OK ||
        (rc = reader_u32(r, "expert_used_count", NULL, 1, d->n_experts, &d->n_experts_used)) != ENG_OK ||
        (rc = reader_u32(r, "expert_feed_forward_length", NULL, 1, MAX_FFN, &d->expert_ffn)) != ENG_OK)
        return rc;
    return reader_u32(r, "expert_shared_feed_forward_length", NULL, 1, MAX_FFN, &d->shared_expert_ffn);
}

int describe_layers(const struct reader *r, struct eng_model_desc *d)
{
    int rc = ENG_OK;
    if (r->arch->bit & ARCH_GEMMA3)
        rc = describe_windows(r, d);
    if (r->arch->bit & ARCH_HYBRID)
        rc = describe_recurrence(r, d);
    if (rc == ENG_OK && r->arch->bit & ARCH_QWEN3NEXT)
        rc = describe_experts(r, d);
    if (rc != ENG_OK)
        return rc;
    for (uint32_t l = 0; l < d->n_layers; l++) {
        d->n_full += d->layer_kind[l] == ENG_LAYER_FULL;
        d->n_window += d->layer_kind[l] == ENG_LAYER_WINDOW;
        d->n_recurrent += d->layer_kind[l] == ENG_LAYER_RECURRENT;
    }
    if (d->n_full == 0) /* a block of the cache is the size of what those have of a page */
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED,
                          "%s: none of the %u layers has full attention", r->arch->name, d->n_layers);
    if (d->n_window == 0) {
        d->window = 0;
        d->rope_theta_window = 0;
    }
    return ENG_OK;
}
