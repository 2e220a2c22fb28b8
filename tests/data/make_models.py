#!/usr/bin/env python3
"""Makes the test models that are too dull to commit: tiny random ones of every quantised type and odd sizes, and broken files.

  make_models.py FOLDER [--stamp FILE]      writes FOLDER/NAME.gguf and FOLDER/broken/

Deterministic: the same bytes on every machine. The meson target `test_models` runs it into the build folder, and tests find the
folder in $ISOTHERM_TEST_MODELS. Standard library only. README.md beside this file lists the models.
"""
import argparse
import os
import sys

import broken_models
from gguf_writer import ARRAY, BOOL, F32, File, I32, STRING, TYPES, U32, Vocabulary, random_data, random_floats, rng_for, train_merges

HERE = os.path.dirname(os.path.abspath(__file__))
N_MERGES = 140

# arch, type of the matrices, hidden, q heads, kv heads, head dim, ffn, layers; then what differs from the defaults:
# embed / head / v: type of that matrix; tied: no output.weight; style: vocabulary.
MODELS = {
    "llama-f32": ("llama", "F32", 64, 4, 2, 16, 96, 2, {}),
    "llama-f16": ("llama", "F16", 64, 4, 2, 16, 96, 2, {}),
    "llama-bf16": ("llama", "BF16", 64, 4, 2, 16, 96, 2, {"tied": False}),
    "llama-q4_0": ("llama", "Q4_0", 96, 3, 1, 32, 160, 2, {}),
    "llama-q4_1": ("llama", "Q4_1", 96, 3, 1, 32, 160, 2, {"embed": "Q8_0"}),
    "llama-q5_0": ("llama", "Q5_0", 96, 6, 2, 16, 224, 2, {"tied": False}),
    "llama-q5_1": ("llama", "Q5_1", 96, 6, 3, 16, 224, 2, {}),
    "llama-q8_0": ("llama", "Q8_0", 128, 4, 2, 32, 352, 2, {}),
    "llama-q4_k": ("llama", "Q4_K", 256, 4, 2, 64, 768, 2, {"embed": "Q6_K"}),
    "llama-q5_k": ("llama", "Q5_K", 256, 4, 4, 64, 512, 2, {"tied": False, "head": "Q6_K"}),
    "llama-q6_k": ("llama", "Q6_K", 256, 2, 1, 128, 768, 2, {}),
    "llama-mixed": ("llama", "Q4_K", 256, 4, 1, 64, 768, 2, {"v": "Q6_K", "tied": False, "head": "Q8_0", "embed": "F16"}),
    "llama-one-layer": ("llama", "Q8_0", 32, 1, 1, 32, 32, 1, {"style": "gpt2"}),
    "llama-gaps": ("llama", "Q8_0", 64, 4, 2, 16, 96, 1, {"gaps": True}),
    "llama3-q8_0": ("llama", "Q8_0", 128, 4, 2, 32, 352, 2, {"style": "llama3", "tied": False}),
    "qwen2-q8_0": ("qwen2", "Q8_0", 128, 2, 1, 64, 352, 2, {"tied": False}),
    "qwen2-q4_1": ("qwen2", "Q4_1", 224, 7, 1, 32, 416, 2, {}),
    "qwen3-f16": ("qwen3", "F16", 96, 6, 2, 32, 160, 2, {"tied": False}),
    "qwen3-q4_k": ("qwen3", "Q4_K", 256, 4, 2, 128, 768, 2, {"v": "Q6_K"}),
}
# The same, of architectures whose layers are not all alike; then what only they have. pattern: every so many layers is a full one.
STATEFUL_MODELS = {
    "gemma3-q8_0": ("gemma3", "Q8_0", 64, 4, 1, 32, 128, 8, {"window": 32, "pattern": 6}),
    "gemma3-q5_0": ("gemma3", "Q5_0", 96, 3, 1, 32, 160, 6, {"window": 40, "pattern": 3, "v": "Q8_0"}),
    "gemma3-q4_k": ("gemma3", "Q4_K", 256, 4, 1, 64, 512, 4, {"window": 512, "pattern": 2, "v": "Q6_K", "embed": "Q8_0"}),
    "qwen35-f16": ("qwen35", "F16", 64, 4, 2, 32, 96, 4, {"pattern": 4, "k_heads": 2, "v_heads": 2, "dim": 16}),
    "qwen35-q8_0": ("qwen35", "Q8_0", 128, 2, 1, 64, 224, 8, {"pattern": 4, "k_heads": 2, "v_heads": 4, "dim": 32}),
    "qwen35-q4_k": ("qwen35", "Q4_K", 256, 4, 1, 64, 512, 3, {"pattern": 2, "k_heads": 2, "v_heads": 4, "dim": 64, "tied": False}),
    "qwen3next-q8_0": ("qwen3next", "Q8_0", 64, 4, 2, 32, 96, 4,
                       {"pattern": 4, "k_heads": 2, "v_heads": 4, "dim": 16, "experts": 8, "used": 2, "expert_ffn": 32}),
    "qwen3next-q4_k": ("qwen3next", "Q4_K", 256, 4, 2, 64, 512, 2,
                       {"pattern": 2, "k_heads": 4, "v_heads": 4, "dim": 64, "experts": 16, "used": 4, "expert_ffn": 256}),
}
CONTEXT = 2048


def prose():
    with open(os.path.join(HERE, "prose.txt"), encoding="utf-8") as file:
        return file.read()


def add_matrix(file, rng, name, type_name, columns, rows, deviation):
    file.tensor(name, (columns, rows), TYPES[type_name][0], random_data(rng, type_name, columns * rows, deviation))


def add_vector(file, rng, name, n, mean):
    file.tensor(name, (n,), 0, random_floats(rng, n, mean, 0.1))


def add_mixer(file, rng, index, spec):
    """What takes attention's place in a recurrent layer."""
    arch, matrix_type, hidden, _, _, _, _, _, options = spec
    k_heads, v_heads, dim = options["k_heads"], options["v_heads"], options["dim"]
    inner, columns = v_heads * dim, 2 * k_heads * dim + v_heads * dim
    p = f"blk.{index}."
    add_matrix(file, rng, p + "attn_qkv.weight", matrix_type, hidden, columns, hidden**-0.5)
    add_matrix(file, rng, p + "attn_gate.weight", matrix_type, hidden, inner, hidden**-0.5)
    if arch == "qwen3next":
        add_matrix(file, rng, p + "ssm_ba.weight", matrix_type, hidden, 2 * v_heads, hidden**-0.5)
    else:
        add_matrix(file, rng, p + "ssm_beta.weight", matrix_type, hidden, v_heads, hidden**-0.5)
        add_matrix(file, rng, p + "ssm_alpha.weight", matrix_type, hidden, v_heads, hidden**-0.5)
    file.tensor(p + "ssm_conv1d.weight", (4, columns), 0, random_floats(rng, 4 * columns, 0.2, 0.3))
    file.tensor(p + "ssm_a", (v_heads,), 0, random_floats(rng, v_heads, -0.4, 0.1))
    add_vector(file, rng, p + "ssm_dt.bias", v_heads, -1.0)
    add_vector(file, rng, p + "ssm_norm.weight", dim, 1.0)
    add_matrix(file, rng, p + "ssm_out.weight", matrix_type, inner, hidden, inner**-0.5)


def add_experts(file, rng, index, spec):
    _, matrix_type, hidden, _, _, _, _, _, options = spec
    experts, ffn = options["experts"], options["expert_ffn"]
    p = f"blk.{index}.ffn_"
    file.tensor(p + "gate_inp.weight", (hidden, experts), 0, random_floats(rng, hidden * experts, 0.0, hidden**-0.5))
    file.tensor(p + "gate_inp_shexp.weight", (hidden, 1), 0, random_floats(rng, hidden, 0.0, hidden**-0.5))
    for name, columns, rows in (("gate", hidden, ffn), ("up", hidden, ffn), ("down", ffn, hidden)):
        file.tensor(f"{p}{name}_exps.weight", (columns, rows, experts), TYPES[matrix_type][0],
                    random_data(rng, matrix_type, columns * rows * experts, columns**-0.5))
        add_matrix(file, rng, f"{p}{name}_shexp.weight", matrix_type, columns, rows, columns**-0.5)


def add_stateful_layer(file, rng, index, spec):
    arch, matrix_type, hidden, q_heads, kv_heads, head_dim, ffn, _, options = spec
    p = f"blk.{index}."
    hybrid = arch != "gemma3"
    wide, narrow = q_heads * head_dim, kv_heads * head_dim
    add_vector(file, rng, p + "attn_norm.weight", hidden, 1.0)
    if hybrid and (index + 1) % options["pattern"] != 0:
        add_mixer(file, rng, index, spec)
    else:
        add_matrix(file, rng, p + "attn_q.weight", matrix_type, hidden, 2 * wide if hybrid else wide, hidden**-0.5)
        add_matrix(file, rng, p + "attn_k.weight", matrix_type, hidden, narrow, hidden**-0.5)
        add_matrix(file, rng, p + "attn_v.weight", options.get("v", matrix_type), hidden, narrow, hidden**-0.5)
        add_vector(file, rng, p + "attn_q_norm.weight", head_dim, 1.0)
        add_vector(file, rng, p + "attn_k_norm.weight", head_dim, 1.0)
        add_matrix(file, rng, p + "attn_output.weight", matrix_type, wide, hidden, wide**-0.5)
    add_vector(file, rng, p + "post_attention_norm.weight", hidden, 1.0)
    if not hybrid:
        add_vector(file, rng, p + "ffn_norm.weight", hidden, 1.0)
        add_vector(file, rng, p + "post_ffw_norm.weight", hidden, 1.0)
    if "experts" in options:
        add_experts(file, rng, index, spec)
        return
    add_matrix(file, rng, p + "ffn_gate.weight", matrix_type, hidden, ffn, hidden**-0.5)
    add_matrix(file, rng, p + "ffn_up.weight", matrix_type, hidden, ffn, hidden**-0.5)
    add_matrix(file, rng, p + "ffn_down.weight", matrix_type, ffn, hidden, ffn**-0.5)


def add_stateful_keys(file, spec):
    arch, _, _, _, _, head_dim, _, layers, options = spec
    if arch == "gemma3":
        file.key("gemma3.attention.sliding_window", U32, options["window"])
        file.key("gemma3.attention.sliding_window_pattern", U32, options["pattern"])
        file.key("gemma3.rope.freq_base_swa", F32, 5000.0)
        return
    file.key(f"{arch}.rope.dimension_count", U32, head_dim // 4)
    if arch == "qwen35":
        file.key("qwen35.rope.dimension_sections", ARRAY, (I32, [11, 11, 10, 0]))
    file.key(f"{arch}.full_attention_interval", U32, options["pattern"])
    file.key(f"{arch}.attention.recurrent_layers", ARRAY, (BOOL, [int((i + 1) % options["pattern"] != 0) for i in range(layers)]))
    file.key(f"{arch}.ssm.conv_kernel", U32, 4)
    file.key(f"{arch}.ssm.state_size", U32, options["dim"])
    file.key(f"{arch}.ssm.group_count", U32, options["k_heads"])
    file.key(f"{arch}.ssm.time_step_rank", U32, options["v_heads"])
    file.key(f"{arch}.ssm.inner_size", U32, options["v_heads"] * options["dim"])
    if "experts" in options:
        file.key(f"{arch}.expert_count", U32, options["experts"])
        file.key(f"{arch}.expert_used_count", U32, options["used"])
        file.key(f"{arch}.expert_feed_forward_length", U32, options["expert_ffn"])
        file.key(f"{arch}.expert_shared_feed_forward_length", U32, options["expert_ffn"])


def add_layer(file, rng, index, spec):
    arch, matrix_type, hidden, q_heads, kv_heads, head_dim, ffn, _, options = spec
    v_type = options.get("v", matrix_type)
    wide, narrow = q_heads * head_dim, kv_heads * head_dim
    p = f"blk.{index}."
    add_vector(file, rng, p + "attn_norm.weight", hidden, 1.0)
    add_matrix(file, rng, p + "attn_q.weight", matrix_type, hidden, wide, hidden**-0.5)
    add_matrix(file, rng, p + "attn_k.weight", matrix_type, hidden, narrow, hidden**-0.5)
    add_matrix(file, rng, p + "attn_v.weight", v_type, hidden, narrow, hidden**-0.5)
    if arch == "qwen2":
        for part, n in (("q", wide), ("k", narrow), ("v", narrow)):
            add_vector(file, rng, f"{p}attn_{part}.bias", n, 0.0)
    if arch == "qwen3":
        add_vector(file, rng, p + "attn_q_norm.weight", head_dim, 1.0)
        add_vector(file, rng, p + "attn_k_norm.weight", head_dim, 1.0)
    add_matrix(file, rng, p + "attn_output.weight", matrix_type, wide, hidden, wide**-0.5)
    add_vector(file, rng, p + "ffn_norm.weight", hidden, 1.0)
    add_matrix(file, rng, p + "ffn_gate.weight", matrix_type, hidden, ffn, hidden**-0.5)
    add_matrix(file, rng, p + "ffn_up.weight", matrix_type, hidden, ffn, hidden**-0.5)
    add_matrix(file, rng, p + "ffn_down.weight", matrix_type, ffn, hidden, ffn**-0.5)


def build(name, spec, merges):
    arch, matrix_type, hidden, q_heads, kv_heads, head_dim, ffn, layers, options = spec
    rng = rng_for(name)
    style = options.get("style", "smollm" if arch == "llama" else "qwen2")
    vocabulary = Vocabulary(style, merges, options.get("gaps", False))
    n_vocab = len(vocabulary.tokens)

    file = File()
    file.key("general.architecture", STRING, arch)
    file.key("general.name", STRING, f"Test {name}")
    file.key(f"{arch}.block_count", U32, layers)
    file.key(f"{arch}.context_length", U32, CONTEXT)
    file.key(f"{arch}.embedding_length", U32, hidden)
    file.key(f"{arch}.feed_forward_length", U32, ffn)
    file.key(f"{arch}.attention.head_count", U32, q_heads)
    file.key(f"{arch}.attention.head_count_kv", U32, kv_heads)
    file.key(f"{arch}.attention.key_length", U32, head_dim)
    file.key(f"{arch}.attention.value_length", U32, head_dim)
    file.key(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5)
    file.key(f"{arch}.rope.freq_base", F32, 10000.0)
    if arch == "llama":
        file.key("llama.rope.dimension_count", U32, head_dim)
        file.key("llama.vocab_size", U32, n_vocab)
    stateful = name in STATEFUL_MODELS
    if stateful:
        add_stateful_keys(file, spec)
    vocabulary.add_keys(file)

    add_matrix(file, rng, "token_embd.weight", options.get("embed", matrix_type), hidden, n_vocab, 0.3)
    for index in range(layers):
        (add_stateful_layer if stateful else add_layer)(file, rng, index, spec)
    add_vector(file, rng, "output_norm.weight", hidden, 1.0)
    if not options.get("tied", True):
        add_matrix(file, rng, "output.weight", options.get("head", matrix_type), hidden, n_vocab, 0.3)
    return file


def twin(file):
    """The same model with one bit of one weight changed: another fingerprint, nearly the same numbers."""
    tensor = file.find("blk.0.ffn_up.weight")
    data = bytearray(tensor.data)
    data[len(data) // 2] ^= 1
    tensor.data = bytes(data)
    return file


def vocabulary_only(merges):
    """No tensors at all, as files that carry only a tokenizer."""
    file = File()
    file.version = 2
    file.key("general.architecture", STRING, "llama")
    Vocabulary("smollm", merges).add_keys(file)
    file.key("tokenizer.ggml.add_space_prefix", BOOL, 0)
    file.key("general.languages", ARRAY, (STRING, ["en"]))
    return file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--stamp", help="a file to write when all is there (for meson)")
    options = parser.parse_args()

    os.makedirs(os.path.join(options.folder, "broken"), exist_ok=True)
    merges = train_merges(prose()[:16000], N_MERGES)
    for name, spec in {**MODELS, **STATEFUL_MODELS}.items():
        build(name, spec, merges).write(os.path.join(options.folder, name + ".gguf"))
    twin(build("llama-q8_0", MODELS["llama-q8_0"], merges)).write(os.path.join(options.folder, "llama-q8_0-twin.gguf"))
    vocabulary_only(merges).write(os.path.join(options.folder, "vocabulary-only.gguf"))
    broken_models.write_all(os.path.join(options.folder, "broken"), lambda: build("llama-f32", MODELS["llama-f32"], merges))
    if options.stamp:
        with open(options.stamp, "w", encoding="utf-8") as file:
            file.write("done\n")


if __name__ == "__main__":
    sys.exit(main())
