/*
 * What a file says is read into the description, and whatever we would compute differently is refused by
 * the name of its key or tensor.
 */
#include "tests/model/support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 64

static int describe(struct gguf_writer *w, struct eng_model_desc *d, char *err, size_t err_len)
{
    size_t len;
    const void *bytes = gguf_finish(w, &len);
    struct fmt_gguf *g = NULL;
    if (fmt_gguf_open_memory(bytes, len, &g, err, err_len) != FMT_OK)
        return ENG_EFORMAT; /* the reader refuses some of it by itself */
    int rc = eng_model_describe(g, d, err, err_len);
    fmt_gguf_close(g);
    return rc;
}

static void the_description_holds_what_the_file_says(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        bool interleaved, bias, norms;
    } want[] = {{"llama", true, false, false}, {"qwen2", false, true, false}, {"qwen3", false, false, true}};
    for (size_t i = 0; i < 3; i++) {
        struct gguf_writer *w = tiny_model(want[i].architecture, FMT_F16, HIDDEN, false);
        char key[64], err[256] = "";
        snprintf(key, sizeof key, "%s.rope.dimension_count", want[i].architecture);
        gguf_u32(w, key, 8);
        snprintf(key, sizeof key, "%s.rope.freq_base", want[i].architecture);
        gguf_f32(w, key, 5e5F);
        gguf_string(w, "general.name", "A tiny one");
        struct eng_model_desc d = {0};
        assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
        assert_string_equal(d.architecture, want[i].architecture);
        assert_string_equal(d.name, "A tiny one");
        assert_int_equal(d.n_layers, 2);
        assert_int_equal(d.hidden, HIDDEN);
        assert_int_equal(d.ffn, 2 * HIDDEN);
        assert_int_equal(d.n_heads, 4);
        assert_int_equal(d.n_kv_heads, 2);
        assert_int_equal(d.head_dim, 16);
        assert_int_equal(d.rot_dims, 8);
        assert_int_equal(d.n_vocab, TINY_VOCAB);
        assert_int_equal(d.context_trained, 512);
        assert_true(d.rms_eps == 1e-5F && d.rope_theta == 5e5F);
        assert_int_equal(d.rope_interleaved, want[i].interleaved);
        assert_int_equal(d.qkv_bias, want[i].bias);
        assert_int_equal(d.qk_norm, want[i].norms);
        assert_true(d.tied_head);
        const uint64_t bias = want[i].bias ? 2 * 128 : 0, norms = want[i].norms ? 2 * 32 : 0;
        const uint64_t matrices = TINY_VOCAB * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64);
        const uint64_t vectors = 64 + 2 * 2 * 64 + bias + norms;
        assert_int_equal(d.parameters, matrices + vectors);
        assert_int_equal(d.weight_bytes, 2 * matrices + 4 * vectors);
        gguf_writer_free(w);
    }
}

static void windows_and_recurrence_are_described(void **state)
{
    (void)state;
    struct eng_model_desc d;
    char err[256] = "";
    struct gguf_writer *w = tiny_model("gemma3", FMT_F32, HIDDEN, false);
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    static const uint8_t every_third[] = {ENG_LAYER_WINDOW, ENG_LAYER_WINDOW, ENG_LAYER_FULL,
                                          ENG_LAYER_WINDOW};
    assert_memory_equal(d.layer_kind, every_third, 4);
    assert_int_equal(d.n_full, 1);
    assert_int_equal(d.n_window, 3);
    assert_int_equal(d.window, TINY_WINDOW);
    assert_true(d.rope_theta == 10000 && d.rope_theta_window == 10000);
    assert_true(d.post_norms && d.gelu && d.embedding_scaled && d.qk_norm && !d.attention_gate);
    const bool pattern[] = {false, true, false, true};
    gguf_bool_array(w, "gemma3.attention.sliding_window_pattern", 4, pattern);
    gguf_f32(w, "gemma3.rope.freq_base", 1e6F);
    gguf_f32(w, "gemma3.rope.freq_base_swa", 5000);
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    for (int l = 0; l < 4; l++)
        assert_int_equal(d.layer_kind[l], pattern[l] ? ENG_LAYER_WINDOW : ENG_LAYER_FULL);
    assert_true(d.rope_theta == 1e6F && d.rope_theta_window == 5000);
    gguf_writer_free(w);

    for (int experts = 0; experts < 2; experts++) {
        w = tiny_model(experts ? "qwen3next" : "qwen35", FMT_F32, HIDDEN, false);
        assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
        for (uint32_t l = 0; l < d.n_layers; l++)
            assert_int_equal(d.layer_kind[l], l % 2 ? ENG_LAYER_FULL : ENG_LAYER_RECURRENT);
        assert_int_equal(d.n_recurrent, 2);
        assert_int_equal(d.n_window + d.window, 0);
        assert_int_equal(d.delta.k_heads, 2);
        assert_int_equal(d.delta.v_heads, 4);
        assert_int_equal(d.delta.dim, 16);
        assert_int_equal(d.delta.conv, 4);
        assert_int_equal(d.delta.tiled, !experts);
        assert_int_equal(d.rot_dims, 8);
        assert_true(d.attention_gate && d.qk_norm && !d.post_norms && !d.gelu && !d.embedding_scaled);
        assert_int_equal(d.n_experts, experts ? 6 : 0);
        assert_int_equal(d.n_experts_used, experts ? 2 : 0);
        assert_int_equal(d.expert_ffn, experts ? HIDDEN : 0);
        assert_int_equal(d.shared_expert_ffn, experts ? HIDDEN : 0);
        gguf_writer_free(w);
    }
}

/* Which layers are recurrent is said by the list, and by the interval where there is none. */
static void a_list_of_recurrent_layers_wins(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("qwen35", FMT_F32, HIDDEN, false);
    struct eng_model_desc d;
    char err[256] = "";
    const bool same[] = {true, false, true, false}, other[] = {true, true, true, false};
    gguf_u32(w, "qwen35.full_attention_interval", 4);
    gguf_bool_array(w, "qwen35.attention.recurrent_layers", 4, same);
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    gguf_bool_array(w, "qwen35.attention.recurrent_layers", 4, other);
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_EFORMAT);
    assert_string_equal(err, "tensor blk.1.attn_q.weight: other layers of its kind have none");
    gguf_writer_free(w);
}

/* A block that guesses further tokens from the last hidden state: the logits do not depend on it. */
static void drafting_layers_are_counted_and_not_read(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("qwen35", FMT_F32, HIDDEN, false);
    struct eng_model_desc d, with;
    char err[256] = "";
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    const float zeros[2 * HIDDEN] = {0};
    gguf_tensor(w, "blk.4.nextn.eh_proj.weight", FMT_F32, 2, (const uint64_t[]){HIDDEN, 2}, zeros);
    gguf_tensor(w, "blk.4.attn_norm.weight", FMT_F32, 1, (const uint64_t[]){HIDDEN}, zeros);
    gguf_u32(w, "qwen35.block_count", 5);
    gguf_u32(w, "qwen35.nextn_predict_layers", 1);
    assert_int_equal(describe(w, &with, err, sizeof err), ENG_OK);
    assert_int_equal(with.n_layers, 4);
    assert_int_equal(with.layers_not_run, 1);
    assert_int_equal(with.parameters, d.parameters);
    assert_int_equal(with.weight_bytes, d.weight_bytes);
    gguf_u32(w, "qwen35.nextn_predict_layers", 5);
    assert_int_equal(describe(w, &with, err, sizeof err), ENG_EUNSUPPORTED);
    assert_string_equal(err, "qwen35.nextn_predict_layers is 5, expected 0 to 4");
    gguf_writer_free(w);
}

static void control_characters_of_a_file_reach_no_message(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, HIDDEN, false);
    struct eng_model_desc d;
    char err[256] = "";
    gguf_string(w, "general.name", "a\033[2Jb\n");
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    assert_string_equal(d.name, "a?[2Jb?");
    gguf_u32(w, "llama.odd\n\033key", 1);
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_EUNSUPPORTED);
    assert_non_null(strstr(err, "llama.odd??key"));
    gguf_writer_free(w);
}

static void head_dim_comes_from_key_length_where_it_is_given(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("qwen3", FMT_F32, HIDDEN, false);
    gguf_u32(w, "qwen3.attention.key_length", 16);
    gguf_u32(w, "qwen3.attention.head_count", 3); /* 64 is no multiple of it: only key_length can say */
    gguf_u32(w, "qwen3.attention.head_count_kv", 3);
    struct eng_model_desc d;
    char err[256] = "";
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_EFORMAT);
    assert_string_equal(err, "tensor blk.0.attn_q.weight: shape [64, 64], expected [64, 48]");
    gguf_writer_free(w);
}

/* ---- refusals ----------------------------------------------------------------------------------------- */

static void drop_norm(struct gguf_writer *w)
{
    gguf_drop(w, "blk.1.ffn_norm.weight");
}

static void drop_block_count(struct gguf_writer *w)
{
    gguf_drop(w, "llama.block_count");
}

static void drop_embedding(struct gguf_writer *w)
{
    gguf_drop(w, "token_embd.weight");
}

#define SET(name, call)                                                                                      \
    static void name(struct gguf_writer *w)                                                                  \
    {                                                                                                        \
        call;                                                                                                \
    }
static const float floats[HIDDEN * HIDDEN];
#define TENSOR(name, tensor, type, n_dims, ...)                                                              \
    SET(name, gguf_tensor(w, tensor, type, n_dims, ((const uint64_t[]){__VA_ARGS__}), floats))

SET(scaling_type, gguf_string(w, "llama.rope.scaling.type", "yarn"))
SET(scaling_factor, gguf_f32(w, "llama.rope.scaling.factor", 4))
SET(scale_linear, gguf_f32(w, "llama.rope.scale_linear", 2))
SET(attn_factor, gguf_f32(w, "llama.rope.scaling.attn_factor", 0.7F))
SET(window, gguf_u32(w, "llama.attention.sliding_window", 128))
SET(attn_cap, gguf_f32(w, "llama.attn_logit_softcapping", 50))
SET(final_cap, gguf_f32(w, "llama.final_logit_softcapping", 30))
SET(experts, gguf_u32(w, "llama.expert_count", 8))
SET(attn_scale, gguf_f32(w, "llama.attention.scale", 0.1F))
SET(clamp, gguf_f32(w, "llama.attention.clamp_kqv", 8))
SET(logit_scale, gguf_f32(w, "llama.logit_scale", 0.5F))
SET(not_causal, gguf_bool(w, "llama.attention.causal", false))
SET(unknown_key, gguf_u32(w, "llama.attention.temperature", 1))
SET(adapter, gguf_string(w, "adapter.type", "lora"))
SET(split, gguf_u32(w, "split.count", 2))
SET(other_type, gguf_string(w, "general.type", "mmproj"))
SET(old_quants, gguf_u32(w, "general.quantization_version", 1))
SET(other_architecture, gguf_string(w, "general.architecture", "mamba"))
SET(value_length, gguf_u32(w, "llama.attention.value_length", 32))
SET(odd_rotary, gguf_u32(w, "llama.rope.dimension_count", 7))
SET(wide_rotary, gguf_u32(w, "llama.rope.dimension_count", 32))
SET(odd_heads, gguf_u32(w, "llama.attention.head_count_kv", 3))
SET(heads_per_layer, gguf_u32_array(w, "llama.attention.head_count_kv", 2, 2))
SET(head_dim_8, gguf_u32(w, "llama.attention.head_count", 8))
SET(many_layers, gguf_u32(w, "llama.block_count", 4000000000U))
SET(three_layers, gguf_u32(w, "llama.block_count", 3))
SET(one_layer, gguf_u32(w, "llama.block_count", 1))
SET(no_context, gguf_u32(w, "llama.context_length", 0))
SET(nan_theta, gguf_f32(w, "llama.rope.freq_base", __builtin_nanf("")))
SET(vocab_size, gguf_u32(w, "llama.vocab_size", 95))
TENSOR(rope_freqs, "rope_freqs.weight", FMT_F32, 1, 8)
TENSOR(unknown_tensor, "blk.0.attn_gate.weight", FMT_F32, 2, HIDDEN, HIDDEN)
TENSOR(output_bias, "blk.0.attn_output.bias", FMT_F32, 1, HIDDEN)
TENSOR(stray_tensor, "mm.0.weight", FMT_F32, 1, HIDDEN)
TENSOR(leading_zero, "blk.01.attn_norm.weight", FMT_F32, 1, HIDDEN)
TENSOR(head_norm, "blk.0.attn_q_norm.weight", FMT_F32, 1, 16)
TENSOR(bias_in_one, "blk.0.attn_q.bias", FMT_F32, 1, HIDDEN)
TENSOR(bias_later, "blk.1.attn_q.bias", FMT_F32, 1, HIDDEN)
TENSOR(wrong_shape, "blk.0.attn_v.weight", FMT_F32, 2, HIDDEN, 48)
TENSOR(wrong_dims, "blk.1.ffn_up.weight", FMT_F32, 3, HIDDEN, 32, 2)
TENSOR(quantised_norm, "output_norm.weight", FMT_Q8_0, 1, HIDDEN)
TENSOR(head_rows, "output.weight", FMT_F32, 2, HIDDEN, 32)

static const struct {
    void (*change)(struct gguf_writer *w);
    int code;
    const char *message;
} refusals[] = {
    {scaling_type, ENG_EUNSUPPORTED, "llama.rope.scaling.type = \"yarn\" is not supported"},
    {scaling_factor, ENG_EUNSUPPORTED, "llama.rope.scaling.factor = 4 is not supported"},
    {scale_linear, ENG_EUNSUPPORTED, "llama.rope.scale_linear = 2 is not supported"},
    {attn_factor, ENG_EUNSUPPORTED, "llama.rope.scaling.attn_factor = 0.7 is not supported"},
    {window, ENG_EUNSUPPORTED, "llama.attention.sliding_window = 128 is not supported"},
    {attn_cap, ENG_EUNSUPPORTED, "llama.attn_logit_softcapping = 50 is not supported"},
    {final_cap, ENG_EUNSUPPORTED, "llama.final_logit_softcapping = 30 is not supported"},
    {experts, ENG_EUNSUPPORTED, "llama.expert_count = 8 is not supported"},
    {attn_scale, ENG_EUNSUPPORTED, "llama.attention.scale = 0.1 is not supported"},
    {clamp, ENG_EUNSUPPORTED, "llama.attention.clamp_kqv = 8 is not supported"},
    {logit_scale, ENG_EUNSUPPORTED, "llama.logit_scale = 0.5 is not supported"},
    {not_causal, ENG_EUNSUPPORTED, "llama.attention.causal = false is not supported"},
    {unknown_key, ENG_EUNSUPPORTED, "llama.attention.temperature is not a key this build knows"},
    {adapter, ENG_EUNSUPPORTED, "adapter.type: adapters are not supported"},
    {split, ENG_EUNSUPPORTED, "split.count: a model split over several files is not supported"},
    {other_type, ENG_EUNSUPPORTED, "general.type is \"mmproj\", expected \"model\""},
    {old_quants, ENG_EUNSUPPORTED, "general.quantization_version is not 2"},
    {other_architecture, ENG_EUNSUPPORTED,
     "general.architecture \"mamba\" is not supported (llama, qwen2, qwen3, gemma3, qwen35 and qwen3next "
     "are)"},
    {value_length, ENG_EUNSUPPORTED,
     "llama.attention.value_length 32 differs from key_length 16: not supported"},
    {odd_rotary, ENG_EFORMAT, "llama.rope.dimension_count 7 is odd"},
    {wide_rotary, ENG_EUNSUPPORTED, "llama.rope.dimension_count is 32, expected 2 to 16"},
    {odd_heads, ENG_EFORMAT, "llama.attention.head_count 4 is no multiple of head_count_kv 3"},
    {heads_per_layer, ENG_EUNSUPPORTED,
     "llama.attention.head_count_kv is not a single u32 (values per layer are not supported)"},
    {head_dim_8, ENG_EUNSUPPORTED, "llama.attention.key_length is 8, expected 16 to 512"},
    {many_layers, ENG_EFORMAT, "llama.block_count"},
    {three_layers, ENG_EFORMAT, "tensor blk.2.attn_norm.weight is missing"},
    {one_layer, ENG_EFORMAT, "tensor blk.1.attn_norm.weight: the model has 1 layers"},
    {no_context, ENG_EFORMAT, "llama.context_length"},
    {nan_theta, ENG_EUNSUPPORTED, "llama.rope.freq_base is nan, expected 1 to 1e+12"},
    {vocab_size, ENG_EFORMAT, "llama.vocab_size is 95 but token_embd.weight has 96 rows"},
    {drop_norm, ENG_EFORMAT, "tensor blk.1.ffn_norm.weight is missing"},
    {drop_block_count, ENG_EFORMAT, "llama.block_count is missing"},
    {drop_embedding, ENG_EFORMAT, "tensor token_embd.weight is missing"},
    {rope_freqs, ENG_EUNSUPPORTED, "tensor rope_freqs.weight: rope frequency factors are not supported"},
    {unknown_tensor, ENG_EUNSUPPORTED, "tensor blk.0.attn_gate.weight is not one this build knows for llama"},
    {output_bias, ENG_EUNSUPPORTED, "tensor blk.0.attn_output.bias is not one this build knows for llama"},
    {stray_tensor, ENG_EUNSUPPORTED, "tensor mm.0.weight is not one this build knows for llama"},
    {leading_zero, ENG_EUNSUPPORTED, "tensor blk.01.attn_norm.weight is not one this build knows for llama"},
    {head_norm, ENG_EUNSUPPORTED, "tensor blk.0.attn_q_norm.weight is not one this build knows for llama"},
    {bias_in_one, ENG_EFORMAT, "tensor blk.0.attn_k.bias is missing beside blk.0.attn_q.bias"},
    {bias_later, ENG_EFORMAT, "tensor blk.1.attn_q.bias: other layers have none"},
    {wrong_shape, ENG_EFORMAT, "tensor blk.0.attn_v.weight: shape [64, 48], expected [64, 32]"},
    {wrong_dims, ENG_EFORMAT, "tensor blk.1.ffn_up.weight: shape [64, 32, 2], expected [64, 128]"},
    {quantised_norm, ENG_EUNSUPPORTED, "tensor output_norm.weight: type Q8_0, expected F32"},
    {head_rows, ENG_EFORMAT, "tensor output.weight: shape [64, 32], expected [64, 96]"},
};

SET(g_no_window, gguf_drop(w, "gemma3.attention.sliding_window"))
SET(g_window_0, gguf_u32(w, "gemma3.attention.sliding_window", 0))
SET(g_pattern_0, gguf_u32(w, "gemma3.attention.sliding_window_pattern", 0))
SET(g_no_full, gguf_u32(w, "gemma3.attention.sliding_window_pattern", 5))
SET(g_short_pattern, gguf_bool_array(w, "gemma3.attention.sliding_window_pattern", 3, (const bool[3]){0}))
SET(g_numbers, gguf_u32_array(w, "gemma3.attention.sliding_window_pattern", 4, 1))
SET(g_27b, gguf_u32(w, "gemma3.block_count", 62))
SET(g_final_cap, gguf_f32(w, "gemma3.final_logit_softcapping", 30))
SET(g_linear, gguf_string(w, "gemma3.rope.scaling.type", "linear"))
SET(g_both_ways, gguf_bool(w, "gemma3.attention.causal", false))
SET(g_no_post_norm, gguf_drop(w, "blk.2.post_attention_norm.weight"))
SET(h_no_rope, gguf_drop(w, "qwen35.rope.dimension_count"))
SET(h_conv, gguf_u32(w, "qwen35.ssm.conv_kernel", 9))
SET(h_state, gguf_u32(w, "qwen35.ssm.state_size", 24))
SET(h_heads, gguf_u32(w, "qwen35.ssm.time_step_rank", 3))
SET(h_inner, gguf_u32(w, "qwen35.ssm.inner_size", 96))
SET(h_interval, gguf_u32(w, "qwen35.full_attention_interval", 5))
SET(h_list, gguf_bool_array(w, "qwen35.attention.recurrent_layers", 3, (const bool[3]){1, 1, 1}))
SET(h_sections, gguf_u32_array(w, "qwen35.rope.dimension_sections", 4, 2))
SET(h_experts, gguf_u32(w, "qwen35.expert_count", 8))
SET(h_other_ba, gguf_tensor(w, "blk.0.ssm_ba.weight", FMT_F32, 2, (const uint64_t[]){HIDDEN, 8}, floats))
SET(h_in_attention, gguf_tensor(w, "blk.1.ssm_a", FMT_F32, 1, (const uint64_t[]){4}, floats))
SET(h_no_gate, gguf_tensor(w, "blk.1.attn_q.weight", FMT_F32, 2, (const uint64_t[]){HIDDEN, HIDDEN}, floats))
SET(h_half_conv, gguf_tensor(w, "blk.0.ssm_conv1d.weight", FMT_F16, 2, (const uint64_t[]){4, 128}, floats))
SET(x_none, gguf_u32(w, "qwen3next.expert_count", 0))
SET(x_too_many, gguf_u32(w, "qwen3next.expert_used_count", 7))
SET(x_sigmoid, gguf_u32(w, "qwen3next.expert_gating_func", 2))
SET(x_not_normed, gguf_bool(w, "qwen3next.expert_weights_norm", false))
SET(x_scaled, gguf_f32(w, "qwen3next.expert_weights_scale", 2.5F))
SET(x_grouped, gguf_u32(w, "qwen3next.expert_group_count", 4))
SET(x_merged,
    gguf_tensor(w, "blk.0.ffn_gate_up_exps.weight", FMT_F32, 2, (const uint64_t[]){HIDDEN, 2}, floats))
SET(x_bias, gguf_tensor(w, "blk.0.exp_probs_b.bias", FMT_F32, 1, (const uint64_t[]){6}, floats))
SET(x_flat,
    gguf_tensor(w, "blk.0.ffn_up_exps.weight", FMT_F32, 2, (const uint64_t[]){HIDDEN, HIDDEN}, floats))
SET(x_no_shared, gguf_drop(w, "blk.1.ffn_gate_inp_shexp.weight"))

static const struct {
    const char *architecture;
    void (*change)(struct gguf_writer *w);
    int code;
    const char *message;
} more_refusals[] = {
    {"gemma3", g_no_window, ENG_EFORMAT, "gemma3.attention.sliding_window is missing"},
    {"gemma3", g_window_0, ENG_EUNSUPPORTED, "gemma3.attention.sliding_window is 0"},
    {"gemma3", g_pattern_0, ENG_EUNSUPPORTED, "gemma3.attention.sliding_window_pattern is 0"},
    {"gemma3", g_no_full, ENG_EUNSUPPORTED, "gemma3: none of the 4 layers has full attention"},
    {"gemma3", g_short_pattern, ENG_EFORMAT,
     "gemma3.attention.sliding_window_pattern has 3 values for 4 layers"},
    {"gemma3", g_numbers, ENG_EUNSUPPORTED,
     "gemma3.attention.sliding_window_pattern is not an array of bools"},
    {"gemma3", g_27b, ENG_EUNSUPPORTED, "gemma3.block_count is 62"},
    {"gemma3", g_final_cap, ENG_EUNSUPPORTED, "gemma3.final_logit_softcapping = 30 is not supported"},
    {"gemma3", g_linear, ENG_EUNSUPPORTED, "gemma3.rope.scaling.type = \"linear\" is not supported"},
    {"gemma3", g_both_ways, ENG_EUNSUPPORTED, "gemma3.attention.causal = false is not supported"},
    {"gemma3", g_no_post_norm, ENG_EFORMAT, "tensor blk.2.post_attention_norm.weight is missing"},
    {"qwen35", h_no_rope, ENG_EFORMAT, "qwen35.rope.dimension_count is missing"},
    {"qwen35", h_conv, ENG_EUNSUPPORTED, "qwen35.ssm.conv_kernel is 9, expected 2 to 8"},
    {"qwen35", h_state, ENG_EUNSUPPORTED, "qwen35.ssm.state_size 24 is no multiple of 16"},
    {"qwen35", h_heads, ENG_EFORMAT, "qwen35.ssm.time_step_rank 3 is no multiple of group_count 2"},
    {"qwen35", h_inner, ENG_EUNSUPPORTED, "qwen35.ssm.inner_size 96 is not time_step_rank 4 times"},
    {"qwen35", h_interval, ENG_EUNSUPPORTED, "qwen35: none of the 4 layers has full attention"},
    {"qwen35", h_list, ENG_EFORMAT, "qwen35.attention.recurrent_layers has 3 values for 4 layers"},
    {"qwen35", h_sections, ENG_EUNSUPPORTED,
     "qwen35.rope.dimension_sections: a fourth section is not supported"},
    {"qwen35", h_experts, ENG_EUNSUPPORTED, "qwen35.expert_count = 8 is not supported"},
    {"qwen35", h_other_ba, ENG_EUNSUPPORTED,
     "tensor blk.0.ssm_ba.weight is not one this build knows for qwen35"},
    {"qwen35", h_in_attention, ENG_EFORMAT, "tensor blk.1.ssm_a: other layers of its kind have none"},
    {"qwen35", h_no_gate, ENG_EFORMAT, "tensor blk.1.attn_q.weight: shape [64, 64], expected [64, 128]"},
    {"qwen35", h_half_conv, ENG_EUNSUPPORTED, "tensor blk.0.ssm_conv1d.weight: type F16, expected F32"},
    {"qwen3next", x_none, ENG_EUNSUPPORTED, "qwen3next.expert_count is 0"},
    {"qwen3next", x_too_many, ENG_EUNSUPPORTED, "qwen3next.expert_used_count is 7, expected 1 to 6"},
    {"qwen3next", x_sigmoid, ENG_EUNSUPPORTED, "qwen3next.expert_gating_func = 2 is not supported"},
    {"qwen3next", x_not_normed, ENG_EUNSUPPORTED, "qwen3next.expert_weights_norm = false is not supported"},
    {"qwen3next", x_scaled, ENG_EUNSUPPORTED, "qwen3next.expert_weights_scale = 2.5 is not supported"},
    {"qwen3next", x_grouped, ENG_EUNSUPPORTED, "qwen3next.expert_group_count = 4 is not supported"},
    {"qwen3next", x_merged, ENG_EUNSUPPORTED,
     "tensor blk.0.ffn_gate_up_exps.weight is not one this build knows for qwen3next"},
    {"qwen3next", x_bias, ENG_EUNSUPPORTED,
     "tensor blk.0.exp_probs_b.bias is not one this build knows for qwen3next"},
    {"qwen3next", x_flat, ENG_EFORMAT,
     "tensor blk.0.ffn_up_exps.weight: shape [64, 64], expected [64, 64, 6]"},
    {"qwen3next", x_no_shared, ENG_EFORMAT, "tensor blk.1.ffn_gate_inp_shexp.weight is missing"},
};

static void what_the_newer_architectures_cannot_say_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof more_refusals / sizeof more_refusals[0]; i++) {
        struct gguf_writer *w = tiny_model(more_refusals[i].architecture, FMT_F32, HIDDEN, false);
        more_refusals[i].change(w);
        struct eng_model_desc d;
        char err[256] = "";
        int rc = describe(w, &d, err, sizeof err);
        if (!strstr(err, more_refusals[i].message))
            fail_msg("\"%s\" does not say \"%s\"", err, more_refusals[i].message);
        assert_int_equal(rc, more_refusals[i].code);
        gguf_writer_free(w);
    }
}

static void what_would_change_the_arithmetic_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct gguf_writer *w = tiny_model("llama", FMT_F32, HIDDEN, false);
        refusals[i].change(w);
        struct eng_model_desc d;
        char err[256] = "";
        int rc = describe(w, &d, err, sizeof err);
        if (!strstr(err, refusals[i].message))
            fail_msg("\"%s\" does not say \"%s\"", err, refusals[i].message);
        assert_int_equal(rc, refusals[i].code);
        gguf_writer_free(w);
    }
}

SET(neutral, gguf_string(w, "llama.rope.scaling.type", "none"); gguf_f32(w, "llama.rope.scaling.factor", 1);
    gguf_u32(w, "llama.rope.scaling.original_context_length", 512);
    gguf_u32(w, "llama.attention.sliding_window", 0); gguf_u32(w, "llama.expert_count", 0);
    gguf_u32(w, "llama.expert_used_count", 0); gguf_bool(w, "llama.attention.causal", true);
    gguf_string(w, "general.type", "model"); gguf_u32(w, "general.quantization_version", 2);
    gguf_string(w, "somebody.note", "hello"))

static void keys_that_change_nothing_are_accepted(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, HIDDEN, false);
    neutral(w);
    struct eng_model_desc d;
    char err[256] = "";
    assert_int_equal(describe(w, &d, err, sizeof err), ENG_OK);
    assert_string_equal(err, "");
    gguf_writer_free(w);
}

static void a_refused_file_gives_no_model(void **state)
{
    (void)state;
    struct gguf_writer *w = tiny_model("llama", FMT_F32, HIDDEN, false);
    scaling_type(w);
    size_t len;
    const void *bytes = gguf_finish(w, &len);
    struct fmt_gguf *g = NULL;
    char err[256] = "";
    assert_int_equal(fmt_gguf_open_memory(bytes, len, &g, err, sizeof err), FMT_OK);
    const struct eng_model_options o = {.isa = KN_ISA_AUTO, .threads = 1};
    struct eng_model *m = (struct eng_model *)&o;
    assert_int_equal(eng_model_open(g, &o, &m, err, sizeof err), ENG_EUNSUPPORTED);
    assert_null(m);
    assert_string_equal(err, "llama.rope.scaling.type = \"yarn\" is not supported");
    fmt_gguf_close(g);
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_description_holds_what_the_file_says),
        cmocka_unit_test(head_dim_comes_from_key_length_where_it_is_given),
        cmocka_unit_test(windows_and_recurrence_are_described),
        cmocka_unit_test(a_list_of_recurrent_layers_wins),
        cmocka_unit_test(drafting_layers_are_counted_and_not_read),
        cmocka_unit_test(control_characters_of_a_file_reach_no_message),
        cmocka_unit_test(what_would_change_the_arithmetic_is_refused_by_name),
        cmocka_unit_test(what_the_newer_architectures_cannot_say_is_refused_by_name),
        cmocka_unit_test(keys_that_change_nothing_are_accepted),
        cmocka_unit_test(a_refused_file_gives_no_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
