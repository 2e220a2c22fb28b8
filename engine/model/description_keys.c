/*
 * Which keys of a file may be there: nothing is ignored. Every key of the architecture's own namespace is
 * either read, or known to mean nothing at the value it has, or refused by name.
 *
 * Key names: ggml's docs/gguf.md and the public converter's. Pure functions of the file, any thread.
 */
#include "engine/model/description_internal.h"
#include <stdio.h>
#include <string.h>

/* What a key must be where it is not read. */
enum key_rule {
    KEY_UNKNOWN, /* absent */
    KEY_NOTE,    /* anything: it describes no arithmetic */
    KEY_ZERO_U32,
    KEY_ZERO_OR_ONE_U32,
    KEY_ZERO_F32,
    KEY_ZERO_OR_ONE_F32,
    KEY_TRUE,
    KEY_FALSE,
    KEY_NONE
};
#define ALL (~0u)
static const struct {
    const char *suffix;
    enum key_rule rule;
    unsigned read_by; /* ARCH_... */
} key_rules[] = {
    {"block_count", KEY_UNKNOWN, ALL},
    {"context_length", KEY_UNKNOWN, ALL},
    {"embedding_length", KEY_UNKNOWN, ALL},
    {"feed_forward_length", KEY_UNKNOWN, ALL},
    {"vocab_size", KEY_UNKNOWN, ALL},
    {"attention.head_count", KEY_UNKNOWN, ALL},
    {"attention.head_count_kv", KEY_UNKNOWN, ALL},
    {"attention.key_length", KEY_UNKNOWN, ALL},
    {"attention.value_length", KEY_UNKNOWN, ALL},
    {"attention.layer_norm_rms_epsilon", KEY_UNKNOWN, ALL},
    {"rope.dimension_count", KEY_UNKNOWN, ALL},
    {"rope.freq_base", KEY_UNKNOWN, ALL},
    {"rope.freq_base_swa", KEY_UNKNOWN, ARCH_GEMMA3},
    {"rope.dimension_sections", KEY_UNKNOWN, ARCH_HYBRID},
    {"rope.scaling.type", KEY_NONE, 0},
    {"rope.scaling.factor", KEY_ZERO_OR_ONE_F32, 0},
    {"rope.scaling.attn_factor", KEY_ZERO_OR_ONE_F32, 0},
    {"rope.scaling.original_context_length", KEY_NOTE, 0}, /* says nothing without a scaling type */
    {"rope.scaling.finetuned", KEY_NOTE, 0},
    {"rope.scale_linear", KEY_ZERO_OR_ONE_F32, 0},
    {"attention.sliding_window", KEY_ZERO_U32, ARCH_GEMMA3},
    {"attention.sliding_window_pattern", KEY_UNKNOWN, ARCH_GEMMA3},
    {"attention.recurrent_layers", KEY_UNKNOWN, ARCH_HYBRID},
    {"full_attention_interval", KEY_UNKNOWN, ARCH_HYBRID},
    {"ssm.conv_kernel", KEY_UNKNOWN, ARCH_HYBRID},
    {"ssm.state_size", KEY_UNKNOWN, ARCH_HYBRID},
    {"ssm.group_count", KEY_UNKNOWN, ARCH_HYBRID},
    {"ssm.time_step_rank", KEY_UNKNOWN, ARCH_HYBRID},
    {"ssm.inner_size", KEY_UNKNOWN, ARCH_HYBRID},
    {"nextn_predict_layers", KEY_ZERO_U32, ARCH_HYBRID},
    {"attention.scale", KEY_ZERO_F32, 0},
    {"attention.clamp_kqv", KEY_ZERO_F32, 0},
    {"attention.max_alibi_bias", KEY_ZERO_F32, 0},
    {"attention.causal", KEY_TRUE, 0},
    {"attn_logit_softcapping", KEY_ZERO_F32, 0},
    {"final_logit_softcapping", KEY_ZERO_F32, 0},
    {"logit_scale", KEY_ZERO_OR_ONE_F32, 0},
    {"residual_scale", KEY_ZERO_OR_ONE_F32, 0},
    {"embedding_scale", KEY_ZERO_OR_ONE_F32, 0},
    {"expert_count", KEY_ZERO_U32, ARCH_QWEN3NEXT},
    {"expert_used_count", KEY_ZERO_U32, ARCH_QWEN3NEXT},
    {"expert_feed_forward_length", KEY_ZERO_U32, ARCH_QWEN3NEXT},
    {"expert_shared_feed_forward_length", KEY_ZERO_U32, ARCH_QWEN3NEXT},
    {"expert_shared_count", KEY_ZERO_U32, 0},
    {"expert_gating_func", KEY_ZERO_OR_ONE_U32, 0}, /* 1: softmax */
    {"expert_weights_norm", KEY_TRUE, 0},
    {"expert_weights_scale", KEY_ZERO_OR_ONE_F32, 0},
    {"expert_group_count", KEY_ZERO_OR_ONE_U32, 0},
    {"expert_group_used_count", KEY_ZERO_OR_ONE_U32, 0},
    {"leading_dense_block_count", KEY_ZERO_U32, 0},
    {"pooling_type", KEY_ZERO_U32, 0},
    {"use_parallel_residual", KEY_FALSE, 0},
    {"tensor_data_layout", KEY_NOTE, 0}, /* how the rows were permuted; the architecture says it already */
};

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
    case KEY_UNKNOWN:
        return false;
    case KEY_NOTE:
        return true;
    case KEY_ZERO_U32:
    case KEY_ZERO_OR_ONE_U32:
        if (fmt_gguf_u32(g, key, &u) != FMT_OK)
            return false;
        snprintf(shown, shown_len, "%u", u);
        return u == 0 || (rule == KEY_ZERO_OR_ONE_U32 && u == 1);
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
        return description_str_is(s, "none");
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
        if (key_rules[i].read_by & r->arch->bit)
            return ENG_OK;
        if (key_rules[i].rule == KEY_UNKNOWN)
            break;
        char shown[48];
        if (key_is_neutral(r->g, key, key_rules[i].rule, shown, sizeof shown))
            return ENG_OK;
        return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s = %s is not supported", key, shown);
    }
    return model_fail(r->err, r->err_len, ENG_EUNSUPPORTED, "%s is not a key this build knows", key);
}

/* Of general.*: what would make the file something else than one whole model. */
int describe_check_keys(const struct reader *r)
{
    struct fmt_str s;
    if (fmt_gguf_str(r->g, "general.type", &s) == FMT_OK && !description_str_is(s, "model"))
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
