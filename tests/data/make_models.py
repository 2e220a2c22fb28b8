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
from gguf_writer import ARRAY, BOOL, F32, File, STRING, TYPES, U32, Vocabulary, random_data, random_floats, rng_for, train_merges

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
CONTEXT = 2048


def prose():
    with open(os.path.join(HERE, "prose.txt"), encoding="utf-8") as file:
        return file.read()


def add_matrix(file, rng, name, type_name, columns, rows, deviation):
    file.tensor(name, (columns, rows), TYPES[type_name][0], random_data(rng, type_name, columns * rows, deviation))


def add_vector(file, rng, name, n, mean):
    file.tensor(name, (n,), 0, random_floats(rng, n, mean, 0.1))


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
    vocabulary.add_keys(file)

    add_matrix(file, rng, "token_embd.weight", options.get("embed", matrix_type), hidden, n_vocab, 0.3)
    for index in range(layers):
        add_layer(file, rng, index, spec)
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
    for name, spec in MODELS.items():
        build(name, spec, merges).write(os.path.join(options.folder, name + ".gguf"))
    twin(build("llama-q8_0", MODELS["llama-q8_0"], merges)).write(os.path.join(options.folder, "llama-q8_0-twin.gguf"))
    vocabulary_only(merges).write(os.path.join(options.folder, "vocabulary-only.gguf"))
    broken_models.write_all(os.path.join(options.folder, "broken"), lambda: build("llama-f32", MODELS["llama-f32"], merges))
    if options.stamp:
        with open(options.stamp, "w", encoding="utf-8") as file:
            file.write("done\n")


if __name__ == "__main__":
    sys.exit(main())
