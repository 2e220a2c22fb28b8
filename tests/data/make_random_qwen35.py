#!/usr/bin/env python3
"""Makes a model of the geometry of Qwen3.5-0.8B with random weights: 24 layers, 18 of them recurrent, 19.5 MB of state a
checkpoint (18.6 MiB), 12 KiB of KV a token. For benches and load tests: it says nothing sensible, but costs what the real one costs.

  make_random_qwen35.py [FILE] [--seed N]     prints the path as the last line

FILE defaults to Qwen3.5-0.8B-random.Q8_0.gguf (563 MB) in $ISOTHERM_MODELS, or ${XDG_CACHE_HOME:-~/.cache}/isotherm/models.

Keys, tensor names, shapes and folded constants are those the public converter writes. Matrices are Q8_0, the rest F32, the head is tied.
The vocabulary is a small byte-level one, padded to 32,768 entries. Weights keep the variance of what goes through them; the parts
that add to the residual are smaller by the root of how many there are. Decays (ssm_a, ssm_dt) reach from few tokens to
thousands. Deterministic: the same bytes on every machine. Standard library only.
"""
import argparse
import hashlib
import math
import os
import random
import struct
import sys

from gguf_writer import (ARRAY, BOOL, CHATML_TEMPLATE, CONTROL, F32, File, I32, NORMAL, STRING, TYPES, U32, byte_symbols,
                         random_floats, train_merges)

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "Qwen3.5-0.8B-random"
LAYERS, FULL_EVERY, HIDDEN, FFN = 24, 4, 1024, 3584
Q_HEADS, KV_HEADS, HEAD_DIM, ROPE_DIMS, THETA = 8, 2, 256, 64, 1e7
DELTA_HEADS, DELTA_DIM, CONV = 16, 128, 4
VOCAB, CONTEXT, N_MERGES = 32768, 32768, 400
EMBEDDING_DEVIATION = 0.08  # of a tied head over 1,024 columns: logits of about +-2.5
UNUSED = 5
DELTA = DELTA_HEADS * DELTA_DIM
COLUMNS = 3 * DELTA  # q, k and v of a recurrent layer, side by side
RESIDUAL = (2 * LAYERS) ** -0.5


def default_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.environ.get("ISOTHERM_MODELS") or os.path.join(cache, "isotherm", "models")
    return os.path.join(folder, NAME + ".Q8_0.gguf")


def is_recurrent(layer):
    return (layer + 1) % FULL_EVERY != 0


def codes(rng, elements, deviation):
    """Q8_0 blocks with random codes and one scale: -128..127 evenly has a deviation of 73.9."""
    blocks = elements // 32
    data = bytearray(rng.randbytes(blocks * 34))
    scale = struct.pack("<e", deviation / 73.9)
    data[0::34] = scale[:1] * blocks
    data[1::34] = scale[1:] * blocks
    return bytes(data)


class Maker:
    def __init__(self, seed):
        self.rng = random.Random(f"isotherm {NAME} {seed}")
        self.file = File()

    def matrix(self, name, columns, rows, gain=1.0):
        self.file.tensor(name, (columns, rows), TYPES["Q8_0"][0], codes(self.rng, columns * rows, gain * columns**-0.5))

    def vector(self, name, values):
        self.file.tensor(name, (len(values),), 0, struct.pack(f"<{len(values)}f", *values))

    def norm(self, name, n):
        self.file.tensor(name, (n,), 0, random_floats(self.rng, n, 1.0, 0.1))

    def recurrent(self, p):
        rng = self.rng
        # exp(ssm_a * softplus(alpha + dt)) is a token's decay: half of what was there is gone after 1 to 3,000 tokens.
        self.vector(p + "ssm_a", [-math.exp(rng.uniform(math.log(0.05), math.log(4.0))) for _ in range(DELTA_HEADS)])
        self.file.tensor(p + "ssm_conv1d.weight", (CONV, COLUMNS), 0, random_floats(rng, CONV * COLUMNS, 0.0, CONV**-0.5))
        self.vector(p + "ssm_dt.bias", [rng.uniform(-5.0, -1.5) for _ in range(DELTA_HEADS)])
        self.matrix(p + "ssm_alpha.weight", HIDDEN, DELTA_HEADS, 0.3)
        self.matrix(p + "ssm_beta.weight", HIDDEN, DELTA_HEADS)
        self.matrix(p + "attn_qkv.weight", HIDDEN, COLUMNS)
        self.matrix(p + "attn_gate.weight", HIDDEN, DELTA)
        self.norm(p + "ssm_norm.weight", DELTA_DIM)
        self.matrix(p + "ssm_out.weight", DELTA, HIDDEN, RESIDUAL)

    def full(self, p):
        self.norm(p + "attn_k_norm.weight", HEAD_DIM)
        self.matrix(p + "attn_k.weight", HIDDEN, KV_HEADS * HEAD_DIM)
        self.matrix(p + "attn_output.weight", Q_HEADS * HEAD_DIM, HIDDEN, 2 * RESIDUAL)
        self.norm(p + "attn_q_norm.weight", HEAD_DIM)
        self.matrix(p + "attn_q.weight", HIDDEN, 2 * Q_HEADS * HEAD_DIM)  # of each head: query, then gate
        self.matrix(p + "attn_v.weight", HIDDEN, KV_HEADS * HEAD_DIM)

    def layer(self, index):
        p = f"blk.{index}."
        self.norm(p + "attn_norm.weight", HIDDEN)
        (self.recurrent if is_recurrent(index) else self.full)(p)
        self.matrix(p + "ffn_down.weight", FFN, HIDDEN, 2 * RESIDUAL)
        self.matrix(p + "ffn_gate.weight", HIDDEN, FFN)
        self.matrix(p + "ffn_up.weight", HIDDEN, FFN)
        self.norm(p + "post_attention_norm.weight", HIDDEN)

    def keys(self):
        key, a = self.file.key, "qwen35."
        key("general.architecture", STRING, "qwen35")
        key("general.type", STRING, "model")
        key("general.name", STRING, NAME)
        for name, value in (("block_count", LAYERS), ("context_length", CONTEXT), ("embedding_length", HIDDEN),
                            ("feed_forward_length", FFN), ("attention.head_count", Q_HEADS),
                            ("attention.head_count_kv", KV_HEADS)):
            key(a + name, U32, value)
        key(a + "rope.freq_base", F32, THETA)
        key(a + "attention.layer_norm_rms_epsilon", F32, 1e-6)
        key(a + "attention.key_length", U32, HEAD_DIM)
        key(a + "attention.value_length", U32, HEAD_DIM)
        key("general.file_type", U32, 7)
        for name, value in (("conv_kernel", CONV), ("state_size", DELTA_DIM), ("group_count", DELTA_HEADS),
                            ("time_step_rank", DELTA_HEADS), ("inner_size", DELTA)):
            key(a + "ssm." + name, U32, value)
        key(a + "attention.recurrent_layers", ARRAY, (BOOL, [int(is_recurrent(i)) for i in range(LAYERS)]))
        key(a + "full_attention_interval", U32, FULL_EVERY)
        key(a + "rope.dimension_count", U32, ROPE_DIMS)
        key(a + "rope.dimension_sections", ARRAY, (I32, [11, 11, 10, 0]))
        key("general.quantization_version", U32, 2)

    def vocabulary(self):
        with open(os.path.join(HERE, "prose.txt"), encoding="utf-8") as prose:
            merges = train_merges(prose.read(), N_MERGES)
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokens = list(dict.fromkeys(special + sorted(byte_symbols().values()) + ["".join(pair) for pair in merges]))
        types = [CONTROL] * len(special) + [NORMAL] * (len(tokens) - len(special)) + [UNUSED] * (VOCAB - len(tokens))
        tokens += [f"[PAD{i}]" for i in range(len(tokens), VOCAB)]
        key = self.file.key
        key("tokenizer.ggml.model", STRING, "gpt2")
        key("tokenizer.ggml.pre", STRING, "qwen35")
        key("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))
        key("tokenizer.ggml.token_type", ARRAY, (I32, types))
        key("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(pair) for pair in merges]))
        key("tokenizer.ggml.eos_token_id", U32, 2)
        key("tokenizer.ggml.padding_token_id", U32, 0)
        key("tokenizer.chat_template", STRING, CHATML_TEMPLATE)

    def write(self, path):
        """Tensor by tensor, under its name when it is whole; returns the SHA-256."""
        temporary = f"{path}.{os.getpid()}"
        digest = hashlib.sha256()
        head = self.file.header()
        parts = [head + bytes(-len(head) % self.file.alignment)]
        parts += [t.data + bytes(-len(t.data) % self.file.alignment) for t in self.file.tensors]
        with open(temporary, "wb") as out:
            for part in parts:
                out.write(part)
                digest.update(part)
        os.replace(temporary, path)
        return digest.hexdigest()


def make(seed):
    maker = Maker(seed)
    maker.keys()
    maker.vocabulary()
    maker.file.tensor("token_embd.weight", (HIDDEN, VOCAB), TYPES["Q8_0"][0],
                      codes(maker.rng, HIDDEN * VOCAB, EMBEDDING_DEVIATION))
    for index in range(LAYERS):
        maker.layer(index)
    maker.norm("output_norm.weight", HIDDEN)
    return maker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", default=default_path())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.makedirs(os.path.dirname(os.path.abspath(options.file)), exist_ok=True)
    print(f"SHA-256 {make(options.seed).write(options.file)}")
    print(options.file)


if __name__ == "__main__":
    sys.exit(main())
