#!/usr/bin/env python3
"""Compares the tokenizer with the Hugging Face `tokenizers` library, on vocabularies and merges of GGUF files.

    compare_hf.py TOKENIZE GOLDEN_FOLDER [--every-code-point]

For each of the five pre-tokenizers: a vocabulary trained here (all 256 bytes, some tokens that no merge makes)
and the golden files'; for the default model as well when it is there. Checked: ids with and without special
tokens parsed, the classes of code points (both ends of every range of engine/tokenizer/unicode_table.c and their
neighbours; with --every-code-point all of them, which takes minutes), decoding, broken UTF-8, and that text never becomes
a control token. Exit 77: the library is missing.
"""
import json
import os
import random
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "data")]
from reference_python import require

require("tokenizers")

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

import gguf_meta
import gguf_writer
import lines
import pipe

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
N_LINES = 20000
FAILURES = []


def pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt-2", "smollm"))
    if name == "gpt-2":
        return level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    pattern = QWEN35 if name == "qwen35" else LLAMA3 % ("{1,3}" if name == "llama-bpe" else "")
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])


def reference(meta):
    """The library's tokenizer over the metadata of a GGUF."""
    pre = meta["tokenizer.ggml.pre"].decode()
    tokens = [t.decode() for t in meta["tokenizer.ggml.tokens"]]
    types = meta["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens) if types[i] in (NORMAL, CONTROL, USER_DEFINED)}
    merges = [tuple(m.decode().split(" ")) for m in meta["tokenizer.ggml.merges"]]
    t = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    t.pre_tokenizer = pre_tokenizer(pre)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(x, normalized=False, special=True) for x, k in zip(tokens, types) if k == CONTROL])
    t.add_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == USER_DEFINED])
    return t


def train(pre, path):
    """A small vocabulary over the generated lines, written as a GGUF without tensors."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer(pre)
    t.train_from_iterator(lines.lines(99, 3000), trainers.BpeTrainer(
        vocab_size=1500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [NORMAL] * len(tokens)
    for extra in ("Ġgrep", "ĠSchmetterling", "ĠfranÃ§ais", "123"):  # words that the merges may not reach
        if extra not in model["vocab"]:
            tokens.append(extra)
            types.append(NORMAL)
    for text, kind in (("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<|im_", CONTROL),
                       ("<|eot_id|>", CONTROL), ("<think>", USER_DEFINED), ("</think>", USER_DEFINED), ("你好", USER_DEFINED)):
        tokens.append(text)
        types.append(kind)
    write_gguf(path, pre, tokens, types, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]])


def write_gguf(path, pre, tokens, types, merges):
    f = gguf_writer.File()
    f.key("general.architecture", gguf_writer.STRING, "llama")
    f.key("tokenizer.ggml.model", gguf_writer.STRING, "gpt2")
    f.key("tokenizer.ggml.pre", gguf_writer.STRING, pre)
    f.key("tokenizer.ggml.tokens", gguf_writer.ARRAY, (gguf_writer.STRING, tokens))
    f.key("tokenizer.ggml.token_type", gguf_writer.ARRAY, (gguf_writer.I32, types))
    f.key("tokenizer.ggml.merges", gguf_writer.ARRAY, (gguf_writer.STRING, merges))
    f.key("tokenizer.ggml.eos_token_id", gguf_writer.U32, tokens.index("<|im_end|>"))
    f.write(path)


def fail(what, text, ours, theirs):
    if len(FAILURES) < 20:
        print("DIFFERENT %s: %r\n  ours   %s\n  theirs %s" % (what, text, ours, theirs))
    FAILURES.append(what)


def compare(program, path, what, n_lines, seed):
    meta = gguf_meta.read(path)
    theirs = reference(meta)
    types = meta["tokenizer.ggml.token_type"]
    text = lines.lines(seed, n_lines)
    before = len(FAILURES)
    ours = pipe.Tokenizer(program, path)
    for parse_special in (False, True):
        theirs.encode_special_tokens = not parse_special
        want = [e.ids for e in theirs.encode_batch(text, add_special_tokens=False)]
        got = ours.encode_many(text, parse_special)
        for line, a, b in zip(text, got, want):
            if a != b:
                fail("%s parse_special=%d" % (what, parse_special), line, a, b)
            if not parse_special and any(types[i] == CONTROL for i in a):
                fail(what + " control token from text", line, a, "none")
        for ids, a, b in zip(got, ours.decode_many(got), theirs.decode_batch(got)):
            if a != b.encode():
                fail(what + " decode", ids, a, b)
    lacking = sum(ids == [] for ids in ours.encode_many([bytes([b]) for b in range(256)]))
    broken = lines.broken_lines(seed, n_lines // 10)
    for line, a in zip(broken, ours.decode_many(ours.encode_many(broken))):
        if lacking == 0 and a != line.decode(errors="replace").encode():
            fail(what + " broken UTF-8", line, a, line.decode(errors="replace"))
    r = random.Random(seed)
    random_ids = [[r.randrange(len(types) + 3) for _ in range(r.randrange(40))] for _ in range(n_lines // 20)]
    for ids, a in zip(random_ids, ours.decode_many(random_ids)):
        try:
            a.decode()
        except UnicodeDecodeError:
            fail(what + " random ids give broken UTF-8", ids, a, "")
    print("%-26s %6d lines, %2d bytes without a token: %s"
          % (what, n_lines, lacking, "ok" if len(FAILURES) == before else "FAILED"), flush=True)
    return lacking


def write_probe(pre, path):
    """A vocabulary whose ids tell the class of a code point: its first byte merges with an `a`, a `1`, a `!` and
    a space in front of it, and only where the pattern lets the two stand in one word."""
    byte = [letter for _, letter in sorted(gguf_writer.byte_symbols().items())]
    pairs = [(x, byte[lead]) for x in ("a", "1", "!", byte[0x20]) for lead in range(256) if byte[lead] != x]
    tokens = byte + [x + y for x, y in pairs] + ["<|im_end|>"]
    write_gguf(path, pre, tokens, [NORMAL] * (len(tokens) - 1) + [CONTROL], [x + " " + y for x, y in pairs])


def code_points(every):
    if every:
        return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    table = os.path.join(HERE, "../../engine/tokenizer/unicode_table.c")
    points = set(range(0x300))
    with open(table) as f:
        for first, last in re.findall(r"\{(0x[0-9a-f]+), (0x[0-9a-f]+),", f.read()):
            points.update(int(first, 16) + d for d in (-1, 0))
            points.update(int(last, 16) + d for d in (0, 1))
    return sorted(c for c in points if not 0xD800 <= c < 0xE000)


def compare_code_points(program, pre, path, points):
    write_probe(pre, path)
    theirs = reference(gguf_meta.read(path))
    before = len(FAILURES)
    for start in range(0, len(points), 65536):
        text = ["a{0}1{0}!{0} {0}".format(chr(c)) for c in points[start:start + 65536]]
        want = theirs.encode_batch(text, add_special_tokens=False)
        for line, a, b in zip(text, pipe.Tokenizer(program, path).encode_many(text), want):
            if a != b.ids:
                fail("%s U+%04X" % (pre, ord(line[1])), line, a, b.ids)
    print("%-26s %6d code points %s" % (pre, len(points), "ok" if len(FAILURES) == before else "FAILED"), flush=True)


def main():
    program, golden = sys.argv[1], sys.argv[2]
    points = code_points("--every-code-point" in sys.argv[3:])
    n_lines = N_LINES // (10 if "--short" in sys.argv[3:] else 1)
    with tempfile.TemporaryDirectory() as folder:
        for seed, pre in enumerate(("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35")):
            path = os.path.join(folder, pre + ".gguf")
            train(pre, path)
            compare(program, path, "trained " + pre, n_lines // 4, seed)
            compare_code_points(program, pre, path, points)
    for name in ("llama", "qwen2", "qwen3", "qwen3next", "qwen35"):
        path = os.path.join(golden, name + ".gguf")
        compare(program, path, "golden " + name, n_lines, 7)
    models_folder = os.environ.get("ISOTHERM_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "isotherm", "models")
    model = os.path.join(models_folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if os.path.exists(model):
        lacking = compare(program, model, "SmolLM2-135M-Instruct", n_lines, 8)
        if lacking != 21:
            fail("SmolLM2 bytes without a token", "", lacking, 21)
    else:
        print("NOT CHECKED: %s is not there (tools/fetch-model)" % model)
    if FAILURES:
        print("%d differences" % len(FAILURES))
    return 1 if FAILURES else 0


sys.exit(main())
