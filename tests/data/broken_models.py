"""Files that must be refused, each with one lie, and a manifest of what the refusal must name.

write_all(folder, whole_model) writes NAME.gguf and MANIFEST: one line a file, `NAME.gguf<TAB>stage<TAB>words`. Stage `open`:
fmt_gguf_open refuses, and its message holds the words. Stage `model`: the container is sound, the model loader refuses.
"""
import os
import struct

from gguf_writer import ARRAY, BOOL, F32, File, I8, I32, STRING, U8, U32, U64, pack_string, write_file

Q2_K = 10
MAX_U64 = 2**64 - 1


def small():
    """The smallest file that has everything the reader checks: 4 tokens, hidden size 8, two tensors."""
    file = File()
    file.key("general.architecture", STRING, "llama")
    file.key("general.alignment", U32, 32)
    file.key("llama.block_count", U32, 1)
    file.key("llama.context_length", U32, 64)
    file.key("llama.embedding_length", U32, 8)
    file.key("llama.vocab_size", U32, 4)
    file.key("tokenizer.ggml.model", STRING, "gpt2")
    file.key("tokenizer.ggml.tokens", ARRAY, (STRING, ["<e>", "a", "b", "ab"]))
    file.key("tokenizer.ggml.scores", ARRAY, (F32, [0.0, 0.0, 0.0, 0.0]))
    file.key("tokenizer.ggml.token_type", ARRAY, (I32, [3, 1, 1, 1]))
    file.key("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"]))
    file.key("tokenizer.ggml.eos_token_id", U32, 0)
    file.key("tokenizer.ggml.add_bos_token", BOOL, 0)
    file.tensor("token_embd.weight", (8, 4), 0)
    file.tensor("output_norm.weight", (8,), 0)
    return file


CASES = []


def case(name, stage, words, change):
    """change is given the sound file and changes it, or returns bytes instead."""
    CASES.append((name, stage, words, change))


def set_key(name, value_type, value):
    return lambda f: f.set_key(name, value_type, value)


def set_tensor(which, /, **fields):
    def change(f):
        tensor = f.find(which)
        tensor.n_dims = len(fields.get("shape", tensor.shape))
        for field, value in fields.items():
            setattr(tensor, field, value)

    return change


# ---- magic, version, counts -----------------------------------------------------------------------------

case("empty", "open", "magic", lambda f: b"")
case("magic", "open", "magic", lambda f: setattr(f, "magic", b"GGML"))
for version in (0, 1, 4):
    case(f"version-{version}", "open", "version", lambda f, v=version: setattr(f, "version", v))
case("version-other-byte-order", "open", "byte order", lambda f: setattr(f, "version", 3 << 24))
for tag, count in (("one-too-many", 3), ("huge", 2**40), ("wraps", MAX_U64)):
    case(f"n-tensors-{tag}", "open", "tensor", lambda f, n=count: setattr(f, "n_tensors", n))
for tag, count in (("one-too-many", 14), ("huge", 2**40), ("wraps", MAX_U64)):
    case(f"n-kv-{tag}", "open", "tensor 0" if count == 14 else "n_kv", lambda f, n=count: setattr(f, "n_keys", n))

# ---- cut files: at every byte of the header, and in the data ----------------------------------------------


def cut_at(length):
    return lambda f: f.bytes()[:length]


def cut_cases():
    whole = small()
    header = whole.header()
    for length in range(1, len(header), 7):
        case(f"cut-{length:04d}", "open", "", cut_at(length))
    case("cut-before-data", "open", "tensor data", cut_at(len(header)))
    case("cut-in-data", "open", "output_norm.weight", cut_at(len(whole.bytes()) - 1))


cut_cases()

# ---- keys -------------------------------------------------------------------------------------------------

HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)  # a file of one key, to be followed by that key's bytes
FILL = bytes(64)

case("key-name-empty", "open", "key 0: name length 0", lambda f: HEAD + pack_string("") + FILL)
case("key-name-huge", "open", "name length", lambda f: HEAD + struct.pack("<Q", MAX_U64) + FILL)
case("key-name-over-the-end", "open", "key 0", lambda f: HEAD + struct.pack("<Q", 4000) + FILL)
case("key-name-too-long", "open", "name length", lambda f: HEAD + pack_string("k" * 65536) + FILL)
case("key-name-nul", "open", "NUL", lambda f: HEAD + pack_string("a\0b") + struct.pack("<II", U32, 1) + FILL)
case("key-twice", "open", "general.architecture", lambda f: f.key("general.architecture", STRING, "llama"))
case("key-type-unknown", "open", "extra", lambda f: f.key("extra", 13, b"\0" * 8))
case("key-type-huge", "open", "extra", lambda f: f.key("extra", 2**32 - 1, b"\0" * 8))
case("string-length-huge", "open", "string length", lambda f: HEAD + pack_string("extra") + struct.pack("<IQ", STRING, MAX_U64) + FILL)
case("string-over-the-end", "open", "string length", lambda f: HEAD + pack_string("extra") + struct.pack("<IQ", STRING, 65) + FILL)
case("bool-two", "open", "add_bos_token", set_key("tokenizer.ggml.add_bos_token", BOOL, 2))
case("bool-array-two", "open", "extra", lambda f: f.key("extra", ARRAY, (BOOL, [0, 1, 2])))


def raw_array(elem, count):
    return lambda f: HEAD + pack_string("extra") + struct.pack("<IIQ", ARRAY, elem, count) + FILL


case("array-nested", "open", "array of arrays", raw_array(ARRAY, 1))
case("array-type-unknown", "open", "element type", raw_array(13, 1))
case("array-length-wraps", "open", "array length", raw_array(U64, 2**61))
case("array-length-max", "open", "array length", raw_array(U8, MAX_U64))
case("array-length-one-too-many", "open", "array length", raw_array(U8, 65))
case("array-strings-huge", "open", "array length", raw_array(STRING, 2**60))
case("array-strings-too-many", "open", "extra", raw_array(STRING, 8 + 1))
case("array-string-huge", "open", "string length", lambda f: HEAD + pack_string("extra") +
     struct.pack("<IIQQ", ARRAY, STRING, 1, 2**63) + FILL)

for tag, value in (("zero", 0), ("three", 3), ("huge", 2**17), ("top-bit", 2**31)):
    case(f"alignment-{tag}", "open", "general.alignment", set_key("general.alignment", U32, value))
case("alignment-u64", "open", "general.alignment", set_key("general.alignment", U64, 32))

# ---- tensors ----------------------------------------------------------------------------------------------

case("tensor-name-empty", "open", "name length", set_tensor("output_norm.weight", name=""))
case("tensor-name-64", "open", "name length", set_tensor("output_norm.weight", name="n" * 64))
case("tensor-name-nul", "open", "NUL", set_tensor("output_norm.weight", name="output\0norm"))
case("tensor-name-unprintable", "open", "tensor 'a??b': ne[0]", set_tensor("output_norm.weight", name="a\n\x1bb", shape=(0,)))
case("tensor-twice", "open", "token_embd.weight", set_tensor("output_norm.weight", name="token_embd.weight"))
case("tensor-n-dims-0", "open", "n_dims", set_tensor("output_norm.weight", shape=(), n_dims=0))
case("tensor-n-dims-5", "open", "n_dims", set_tensor("output_norm.weight", shape=(8, 1, 1, 1, 1), n_dims=5))
case("tensor-n-dims-max", "open", "n_dims", set_tensor("output_norm.weight", n_dims=2**32 - 1))
case("tensor-ne-0", "open", "ne[0]", set_tensor("output_norm.weight", shape=(0,)))
case("tensor-ne1-0", "open", "ne[1]", set_tensor("output_norm.weight", shape=(8, 0)))
case("tensor-ne-wraps", "open", "ne[1]", set_tensor("output_norm.weight", shape=(2**33, 2**33)))
case("tensor-ne-negative", "open", "ne[0]", set_tensor("output_norm.weight", shape=(2**63,)))
case("tensor-ne-wraps-to-small", "open", "ne[3]", set_tensor("output_norm.weight", shape=(2**16, 2**16, 2**16, 2**16 + 1)))
case("tensor-bytes-wrap", "open", "size overflows", set_tensor("output_norm.weight", shape=(2**62,)))
case("tensor-bytes-over-int64", "open", "size overflows", set_tensor("output_norm.weight", shape=(2**61,)))
case("tensor-type-unknown", "open", "type 99", set_tensor("output_norm.weight", type=99))
case("tensor-type-removed", "open", "type 4", set_tensor("output_norm.weight", type=4))
case("tensor-type-unsupported", "open", "Q2_K", set_tensor("output_norm.weight", type=Q2_K))
case("tensor-row-not-blocks", "open", "ne[0]", set_tensor("output_norm.weight", type=8, shape=(8, 4)))
case("tensor-offset-hole", "open", "offset", set_tensor("output_norm.weight", offset=160))
case("tensor-offset-overlap", "open", "offset", set_tensor("output_norm.weight", offset=0))
case("tensor-offset-unaligned", "open", "offset", set_tensor("output_norm.weight", offset=129))
case("tensor-offset-max", "open", "offset", set_tensor("output_norm.weight", offset=MAX_U64 - 31))
case("tensor-over-the-end", "open", "output_norm.weight", set_tensor("output_norm.weight", shape=(9,)))
case("tensor-far-over-the-end", "open", "output_norm.weight", set_tensor("output_norm.weight", shape=(2**40,)))


case("tensor-sum-wraps", "open", "third.weight", lambda f: f.tensor("third.weight", (2**61 - 64,), 0, data=bytes(32)))


# ---- well-known keys ----------------------------------------------------------------------------------------

TOKENS = "tokenizer.ggml.tokens"
for key, value in ((TOKENS, (I32, [0, 1, 2, 3])), ("tokenizer.ggml.scores", (I8, [0] * 4)),
                   ("tokenizer.ggml.token_type", (I8, [1] * 4)), ("tokenizer.ggml.token_type", (U32, [1] * 4)),
                   ("tokenizer.ggml.merges", (I32, [1]))):
    case(f"{key.split('.')[-1].replace('_', '-')}-of-type-{value[0]}", "open", key, set_key(key, ARRAY, value))
case("tokens-not-array", "open", TOKENS, set_key(TOKENS, STRING, "a"))
case("tokens-none", "open", TOKENS, set_key(TOKENS, ARRAY, (STRING, [])))
case("model-not-string", "open", "tokenizer.ggml.model", set_key("tokenizer.ggml.model", U32, 1))
case("add-bos-not-bool", "open", "tokenizer.ggml.add_bos_token", set_key("tokenizer.ggml.add_bos_token", U8, 1))
case("template-not-string", "open", "tokenizer.chat_template", set_key("tokenizer.chat_template", ARRAY, (STRING, ["x"])))
case("architecture-not-string", "open", "general.architecture", set_key("general.architecture", U32, 1))
case("architecture-odd", "open", "general.architecture", set_key("general.architecture", STRING, "lla%sma"))
case("architecture-empty", "open", "general.architecture", set_key("general.architecture", STRING, ""))
case("architecture-long", "open", "general.architecture", set_key("general.architecture", STRING, "l" * 64))
for n in (3, 5, 0):
    case(f"scores-{n}", "open", "tokenizer.ggml.scores", set_key("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * n)))
    case(f"types-{n}", "open", "tokenizer.ggml.token_type", set_key("tokenizer.ggml.token_type", ARRAY, (I32, [1] * n)))
case("tokens-too-few", "open", "vocab_size", set_key(TOKENS, ARRAY, (STRING, ["a", "b", "ab"])))
case("vocab-size", "open", "vocab_size", set_key("llama.vocab_size", U32, 5))
for tag, merge in (("no-space", "ab"), ("left-empty", " b"), ("right-empty", "a "), ("empty", "")):
    case(f"merge-{tag}", "open", "tokenizer.ggml.merges", set_key("tokenizer.ggml.merges", ARRAY, (STRING, [merge])))
case("eos-beyond", "open", "eos_token_id", set_key("tokenizer.ggml.eos_token_id", U32, 4))
case("bos-max", "open", "bos_token_id", set_key("tokenizer.ggml.bos_token_id", U32, 2**32 - 1))
case("eos-i32", "open", "eos_token_id", set_key("tokenizer.ggml.eos_token_id", I32, -1))
case("embedding-rows", "open", "token_embd.weight", lambda f: (f.drop_key("llama.vocab_size"),
     f.set_key(TOKENS, ARRAY, (STRING, ["<e>", "a", "b", "ab", "x"])),
     f.set_key("tokenizer.ggml.scores", ARRAY, (F32, [0.0] * 5)),
     f.set_key("tokenizer.ggml.token_type", ARRAY, (I32, [1] * 5)))[0])
case("embedding-width", "open", "token_embd.weight", set_key("llama.embedding_length", U32, 16))
case("embedding-one-dim", "open", "token_embd.weight", set_tensor("token_embd.weight", shape=(32,), n_dims=1))
case("head-rows", "open", "output.weight", lambda f: f.tensor("output.weight", (8, 3), 0))
for key, values in (("block_count", (0, 1025, 2**32 - 1)), ("context_length", (0, 2**31)), ("embedding_length", (0,))):
    for value in values:
        case(f"{key.replace('_', '-')}-{value}", "open", key, set_key(f"llama.{key}", U32, value))
    case(f"{key.replace('_', '-')}-u64", "open", key, set_key(f"llama.{key}", U64, 1))

# ---- sound containers, impossible models (changes of the tiny llama-f32) -----------------------------------

HEADS, KV = "llama.attention.head_count", "llama.attention.head_count_kv"
EPS = "llama.attention.layer_norm_rms_epsilon"


def drop_tensor(name):
    return lambda f: setattr(f, "tensors", [t for t in f.tensors if t.name != name])


def reshape(name, shape):
    def change(f):
        tensor = f.find(name)
        tensor.shape, tensor.n_dims, tensor.data = shape, len(shape), bytes(4 * shape[0] * (shape[1] if len(shape) > 1 else 1))

    return change


case("model-architecture", "model", "mamba", set_key("general.architecture", STRING, "mamba"))
case("model-no-architecture", "model", "general.architecture", lambda f: f.drop_key("general.architecture"))
for key in ("llama.block_count", "llama.embedding_length", "llama.feed_forward_length", HEADS, EPS, "llama.context_length"):
    case(f"model-no-{key.split('.')[-1].replace('_', '-')}", "model", key, lambda f, k=key: f.drop_key(k))
case("model-heads-0", "model", "head_count", set_key(HEADS, U32, 0))
case("model-heads-huge", "model", "head_count", set_key(HEADS, U32, 2**31))
case("model-heads-per-layer", "model", "head_count", set_key(HEADS, ARRAY, (I32, [4, 4])))
case("model-kv-heads-0", "model", "head_count_kv", set_key(KV, U32, 0))
case("model-kv-heads-3", "model", "head_count_kv", set_key(KV, U32, 3))
case("model-key-length-0", "model", "key_length", set_key("llama.attention.key_length", U32, 0))
case("model-key-length-odd", "model", "key_length", set_key("llama.attention.key_length", U32, 15))
case("model-value-length", "model", "value_length", set_key("llama.attention.value_length", U32, 32))
case("model-rope-dims-odd", "model", "rope.dimension_count", set_key("llama.rope.dimension_count", U32, 7))
case("model-rope-dims-wide", "model", "rope.dimension_count", set_key("llama.rope.dimension_count", U32, 32))
case("model-rope-scaling", "model", "rope.scaling", set_key("llama.rope.scaling.type", STRING, "yarn"))
case("model-rope-linear", "model", "rope.scale_linear", set_key("llama.rope.scale_linear", F32, 2.0))
case("model-rope-base-0", "model", "rope.freq_base", set_key("llama.rope.freq_base", F32, 0.0))
case("model-rope-base-nan", "model", "rope.freq_base", set_key("llama.rope.freq_base", F32, float("nan")))
case("model-eps-negative", "model", "rms_epsilon", set_key(EPS, F32, -1.0))
case("model-eps-inf", "model", "rms_epsilon", set_key(EPS, F32, float("inf")))
case("model-soft-cap", "model", "softcapping", set_key("llama.attn_logit_softcapping", F32, 50.0))
case("model-logit-scale", "model", "logit_scale", set_key("llama.logit_scale", F32, 0.5))
case("model-window", "model", "sliding_window", set_key("llama.attention.sliding_window", U32, 128))
case("model-experts", "model", "expert_count", set_key("llama.expert_count", U32, 8))
case("model-rope-freqs", "model", "rope_freqs", lambda f: f.tensor("rope_freqs.weight", (8,), 0))
case("model-tensor-unknown", "model", "blk.0.attn_sinks", lambda f: f.tensor("blk.0.attn_sinks.weight", (4,), 0))
case("model-layer-too-many", "model", "blk.2.attn_norm", lambda f: f.tensor("blk.2.attn_norm.weight", (64,), 0))
case("model-blocks-too-many", "model", "blk.2", set_key("llama.block_count", U32, 3))
for name in ("token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight", "blk.1.ffn_down.weight"):
    tag = name.replace(".weight", "").replace(".", "-").replace("_", "-")
    case(f"model-without-{tag}", "model", name, drop_tensor(name))
for name, shape in (("blk.0.attn_q.weight", (64, 32)), ("blk.1.attn_v.weight", (32, 64)), ("blk.0.ffn_up.weight", (96, 64)),
                    ("blk.1.attn_norm.weight", (32,)), ("output_norm.weight", (64, 1)), ("blk.0.ffn_down.weight", (96, 32))):
    tag = name.replace(".weight", "").replace(".", "-").replace("_", "-")
    case(f"model-shape-{tag}", "model", name, reshape(name, shape))
case("model-bias", "model", ".bias", lambda f: f.tensor("blk.0.attn_q.bias", (64,), 0))


def write_all(folder, whole_model):
    lines = []
    for name, stage, words, change in CASES:
        file = small() if stage == "open" else whole_model()
        result = change(file)
        data = result if isinstance(result, bytes) else file.bytes()
        write_file(os.path.join(folder, name + ".gguf"), data)
        lines.append(f"{name}.gguf\t{stage}\t{words}\n")
    assert len(set(lines)) == len(CASES), "two cases have one name"
    write_file(os.path.join(folder, "MANIFEST"), "".join(lines).encode("utf-8"))
