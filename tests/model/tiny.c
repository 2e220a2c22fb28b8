/* Tiny models of random weights, one of each architecture: see support.h. */
#include "tests/model/support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float random_float(uint32_t *state, float range)
{
    return range * ((float)(next_random(state) >> 8) * 0x1p-23F - 1.0F);
}

/* Where a block of each type has its f16 scales, and how large they should be for weights of about 0.1. */
static const struct {
    uint32_t type, at[2];
    float size[2];
} f16_fields[] = {
    {FMT_Q4_0, {0, 0}, {0.012F, 0}},       {FMT_Q4_1, {0, 2}, {0.012F, -0.1F}},
    {FMT_Q5_0, {0, 0}, {0.006F, 0}},       {FMT_Q5_1, {0, 2}, {0.006F, -0.1F}},
    {FMT_Q8_0, {0, 0}, {0.0008F, 0}},      {FMT_Q4_K, {0, 2}, {0.0004F, 0.003F}},
    {FMT_Q5_K, {0, 2}, {0.0002F, 0.003F}}, {FMT_Q6_K, {208, 208}, {0.00004F, 0}},
};

static void *random_rows(uint32_t type, uint64_t n, uint32_t *state)
{
    uint64_t bytes = fmt_type_bytes(type, n);
    uint8_t *out = malloc(bytes);
    assert_non_null(out);
    if (type == FMT_F32 || type == FMT_F16 || type == FMT_BF16) {
        for (uint64_t i = 0; i < n; i++) {
            float f = random_float(state, 0.17F);
            uint32_t bits;
            memcpy(&bits, &f, 4);
            uint16_t half = type == FMT_F16 ? fmt_f32_to_f16(f) : (uint16_t)(bits >> 16);
            if (type == FMT_F32)
                memcpy(out + 4 * i, &f, 4);
            else
                memcpy(out + 2 * i, &half, 2);
        }
        return out;
    }
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(next_random(state) >> 11);
    size_t f = 0;
    while (f16_fields[f].type != type)
        assert_true(++f < sizeof f16_fields / sizeof f16_fields[0]);
    const struct fmt_type_info *info = fmt_type_info(type);
    for (uint64_t at = 0; at < bytes; at += info->block_bytes)
        for (int k = 0; k < 2; k++) {
            if (f16_fields[f].size[k] == 0)
                continue;
            float jitter = 1.0F + random_float(state, 0.3F);
            uint16_t h = fmt_f32_to_f16(f16_fields[f].size[k] * jitter);
            memcpy(out + at + f16_fields[f].at[k], &h, 2);
        }
    return out;
}

struct tiny {
    struct gguf_writer *w;
    uint32_t type, state;
    bool plain;
};

/* experts > 0: a third dimension. */
static void tiny_matrix(struct tiny *t, const char *name, uint64_t cols, uint64_t rows, uint64_t experts)
{
    const uint64_t ne[] = {cols, rows, experts}, n = rows * cols * (experts ? experts : 1);
    const uint32_t n_dims = experts ? 3 : 2;
    uint8_t *data = random_rows(t->type, n, &t->state);
    if (t->plain) {
        float *f = malloc(n * sizeof *f);
        assert_non_null(f);
        assert_int_equal(fmt_dequantize(t->type, data, n, f), 0);
        gguf_tensor(t->w, name, FMT_F32, n_dims, ne, f);
        free(f);
    } else {
        gguf_tensor(t->w, name, t->type, n_dims, ne, data);
    }
    free(data);
}

/* Floats around `base`; rows > 0: a second dimension. */
static void tiny_floats(struct tiny *t, const char *name, uint64_t cols, uint64_t rows, float base)
{
    float v[4096];
    const uint64_t ne[] = {cols, rows}, n = cols * (rows ? rows : 1);
    assert_true(n <= sizeof v / sizeof v[0]);
    for (uint64_t i = 0; i < n; i++)
        v[i] = base + random_float(&t->state, 0.2F);
    gguf_tensor(t->w, name, FMT_F32, rows ? 2 : 1, ne, v);
}

/* ---- architectures ------------------------------------------------------------------------------------- */

enum {
    LLAMA = 1,
    QWEN2 = 2,
    QWEN3 = 4,
    GEMMA3 = 8,
    QWEN35 = 16,
    QWEN3NEXT = 32,
    HYBRID = QWEN35 | QWEN3NEXT
};
const char *const tiny_architectures[TINY_ARCHITECTURES] = {"llama",  "qwen2",  "qwen3",
                                                            "gemma3", "qwen35", "qwen3next"};
static const uint32_t n_layers[TINY_ARCHITECTURES] = {2, 2, 2, 4, 4, 3};

#define HEADS    4
#define KV_HEADS 2
#define K_HEADS  2 /* of the recurrent layers */
#define V_HEADS  4
#define CONV     4
#define EXPERTS  6
#define USED     2

static void tiny_keys(struct gguf_writer *w, const char *architecture, unsigned arch, uint32_t layers,
                      uint32_t hidden)
{
    const struct {
        const char *suffix;
        uint32_t v;
        unsigned archs;
    } numbers[] = {{"block_count", layers, ~0U},
                   {"context_length", 512, ~0U},
                   {"embedding_length", hidden, ~0U},
                   {"feed_forward_length", 2 * hidden, ~0U},
                   {"attention.head_count", HEADS, ~0U},
                   {"attention.head_count_kv", KV_HEADS, ~0U},
                   {"attention.sliding_window", TINY_WINDOW, GEMMA3},
                   {"attention.sliding_window_pattern", 3, GEMMA3},
                   {"full_attention_interval", 2, HYBRID},
                   {"rope.dimension_count", hidden / HEADS / 2, HYBRID},
                   {"ssm.conv_kernel", CONV, HYBRID},
                   {"ssm.state_size", hidden / HEADS, HYBRID},
                   {"ssm.group_count", K_HEADS, HYBRID},
                   {"ssm.time_step_rank", V_HEADS, HYBRID},
                   {"ssm.inner_size", hidden, HYBRID},
                   {"expert_count", EXPERTS, QWEN3NEXT},
                   {"expert_used_count", USED, QWEN3NEXT},
                   {"expert_feed_forward_length", hidden, QWEN3NEXT},
                   {"expert_shared_feed_forward_length", hidden, QWEN3NEXT}};
    char key[96];
    gguf_string(w, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!(numbers[i].archs & arch))
            continue;
        snprintf(key, sizeof key, "%s.%s", architecture, numbers[i].suffix);
        gguf_u32(w, key, numbers[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    gguf_f32(w, key, 1e-5F);
}

static void tiny_layer(struct tiny *t, unsigned arch, uint32_t layer, uint32_t hidden)
{
    const uint32_t head_dim = hidden / HEADS, q = hidden, kv = KV_HEADS * head_dim, ffn = 2 * hidden,
                   columns = 2 * K_HEADS * head_dim + hidden;
    const bool recurrent = arch & HYBRID && (layer + 1) % 2 != 0;
    const unsigned attention = recurrent ? 0 : ~0U, delta = recurrent ? HYBRID : 0;
    const unsigned dense = ~(unsigned)QWEN3NEXT, normed = QWEN3 | GEMMA3 | HYBRID;
    const struct {
        const char *suffix;
        uint32_t cols, rows, experts; /* floats: rows 0 is a vector */
        bool floats;
        float base;
        unsigned archs;
    } tensors[] = {
        {"attn_norm.weight", hidden, 0, 0, true, 1, ~0U},
        {"attn_q.weight", hidden, arch & HYBRID ? 2 * q : q, 0, false, 0, attention},
        {"attn_k.weight", hidden, kv, 0, false, 0, attention},
        {"attn_v.weight", hidden, kv, 0, false, 0, attention},
        {"attn_q.bias", q, 0, 0, true, 0, QWEN2},
        {"attn_k.bias", kv, 0, 0, true, 0, QWEN2},
        {"attn_v.bias", kv, 0, 0, true, 0, QWEN2},
        {"attn_q_norm.weight", head_dim, 0, 0, true, 1, normed & attention},
        {"attn_k_norm.weight", head_dim, 0, 0, true, 1, normed & attention},
        {"attn_output.weight", q, hidden, 0, false, 0, attention},
        {"attn_qkv.weight", hidden, columns, 0, false, 0, delta},
        {"attn_gate.weight", hidden, hidden, 0, false, 0, delta},
        {"ssm_beta.weight", hidden, V_HEADS, 0, false, 0, delta & QWEN35},
        {"ssm_alpha.weight", hidden, V_HEADS, 0, false, 0, delta & QWEN35},
        {"ssm_ba.weight", hidden, 2 * V_HEADS, 0, false, 0, delta & QWEN3NEXT},
        {"ssm_conv1d.weight", CONV, columns, 0, true, 0.3F, delta},
        {"ssm_a", V_HEADS, 0, 0, true, -0.4F, delta},
        {"ssm_dt.bias", V_HEADS, 0, 0, true, -1, delta},
        {"ssm_norm.weight", head_dim, 0, 0, true, 1, delta},
        {"ssm_out.weight", hidden, hidden, 0, false, 0, delta},
        {"post_attention_norm.weight", hidden, 0, 0, true, 1, GEMMA3 | HYBRID},
        {"ffn_norm.weight", hidden, 0, 0, true, 1, ~(unsigned)HYBRID},
        {"ffn_gate.weight", hidden, ffn, 0, false, 0, dense},
        {"ffn_up.weight", hidden, ffn, 0, false, 0, dense},
        {"ffn_down.weight", ffn, hidden, 0, false, 0, dense},
        {"post_ffw_norm.weight", hidden, 0, 0, true, 1, GEMMA3},
        {"ffn_gate_inp.weight", hidden, EXPERTS, 0, false, 0, QWEN3NEXT},
        {"ffn_gate_exps.weight", hidden, hidden, EXPERTS, false, 0, QWEN3NEXT},
        {"ffn_up_exps.weight", hidden, hidden, EXPERTS, false, 0, QWEN3NEXT},
        {"ffn_down_exps.weight", hidden, hidden, EXPERTS, false, 0, QWEN3NEXT},
        {"ffn_gate_inp_shexp.weight", hidden, 1, 0, false, 0, QWEN3NEXT},
        {"ffn_gate_shexp.weight", hidden, hidden, 0, false, 0, QWEN3NEXT},
        {"ffn_up_shexp.weight", hidden, hidden, 0, false, 0, QWEN3NEXT},
        {"ffn_down_shexp.weight", hidden, hidden, 0, false, 0, QWEN3NEXT},
    };
    char name[96];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (!(tensors[i].archs & arch))
            continue;
        snprintf(name, sizeof name, "blk.%u.%s", layer, tensors[i].suffix);
        if (tensors[i].floats)
            tiny_floats(t, name, tensors[i].cols, tensors[i].rows, tensors[i].base);
        else
            tiny_matrix(t, name, tensors[i].cols, tensors[i].rows, tensors[i].experts);
    }
}

struct gguf_writer *tiny_model(const char *architecture, uint32_t type, uint32_t hidden, bool plain)
{
    unsigned at = 0;
    while (strcmp(tiny_architectures[at], architecture) != 0)
        assert_true(++at < TINY_ARCHITECTURES);
    struct tiny t = {gguf_writer_new(), type, 12345 + type, plain};
    tiny_keys(t.w, architecture, 1U << at, n_layers[at], hidden);
    tiny_matrix(&t, "token_embd.weight", hidden, TINY_VOCAB, 0);
    tiny_floats(&t, "output_norm.weight", hidden, 0, 1);
    for (uint32_t l = 0; l < n_layers[at]; l++)
        tiny_layer(&t, 1U << at, l, hidden);
    return t.w;
}
