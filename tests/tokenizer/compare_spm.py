#!/usr/bin/env python3
"""Compares the tokenizer with the `sentencepiece` library, on vocabularies, scores and types of GGUF files.

    compare_spm.py TOKENIZE GOLDEN_FOLDER

The library gets a model made here of the GGUF's own metadata: BPE, byte fallback, no normalising. Vocabularies: golden
gemma3's; ones trained here by the library and then made odd (equal scores, unused pieces, characters taken away, with and
without byte tokens); Gemma 3 270M's where it has been fetched. Checked: ids with and without special tokens parsed,
decoding, broken UTF-8, that text never becomes a control token, and the chat template gemma rendered by jinja2. Exit 77: a
library is missing.
"""
import io
import os
import random
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "data")]
from reference_python import require

require("sentencepiece", "jinja2")

import sentencepiece

import chat_templates
import gguf_meta
import gguf_writer
import lines
import pipe
from spm_model import SPACE, references

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
N_LINES = 2000 if "--short" in sys.argv[3:] else 20000
INVALID = 2**32 - 2  # ENG_EINVAL
ADDED = ["<think>", SPACE * 4, SPACE * 2, "\n", "\n\n", "你好", "<start_of_turn>"]
FAILURES = []


def fail(what, text, ours, theirs):
    if len(FAILURES) < 20:
        print("DIFFERENT %s: %r\n  ours   %s\n  theirs %s" % (what, text, ours, theirs))
    FAILURES.append(what)


def compare(program, path, what, seed):
    meta = gguf_meta.read(path)
    plain, parsing, types = references(meta)
    unknown = types.index(UNKNOWN) if BYTE not in types else None
    text = [t for t in lines.lines(seed, N_LINES) if "<unk>" not in t]
    before = len(FAILURES)
    ours = pipe.Tokenizer(program, path)
    for parse_special, theirs in ((False, plain), (True, parsing)):
        want = theirs.encode(text)
        got = ours.encode_many(text, parse_special)
        for line, a, b in zip(text, got, want):
            if a != b:
                fail("%s parse_special=%d" % (what, parse_special), line, a, b)
            if not parse_special and any(types[i] == CONTROL or (types[i] == UNKNOWN and i != unknown) for i in a):
                fail(what + " control token from text", line, a, "none")
        if parse_special or unknown is not None:
            continue
        for line, ids, a, b in zip(text, got, ours.decode_many(got), plain.decode(got)):
            if a != b.encode() or a != line.replace(SPACE, " ").encode():
                fail(what + " decode", ids, a, b)
    if unknown is None:
        broken = lines.broken_lines(seed, N_LINES // 20)
        for line, a in zip(broken, ours.decode_many(ours.encode_many(broken))):
            if a != line.decode(errors="replace").replace(SPACE, " ").encode():
                fail(what + " broken UTF-8", line, a, line.decode(errors="replace"))
    r = random.Random(seed)
    random_ids = [[r.randrange(len(types) + 3) for _ in range(r.randrange(40))] for _ in range(1000)]
    for ids, a in zip(random_ids, ours.decode_many(random_ids)):
        try:
            a.decode()
        except UnicodeDecodeError:
            fail(what + " random ids give broken UTF-8", ids, a, "")
    print("%-26s %6d lines: %s" % (what, len(text), "ok" if len(FAILURES) == before else "FAILED"), flush=True)


def compare_chat(program, path, what):
    meta = gguf_meta.read(path)
    parsing = references(meta)[1]
    tokens = meta["tokenizer.ggml.tokens"]
    bos = tokens[meta["tokenizer.ggml.bos_token_id"]].decode()
    start = tokens.index(b"<start_of_turn>")
    template = chat_templates.compile_template(chat_templates.GEMMA)
    cases = list(chat_templates.turns(300))
    refused, before = 0, len(FAILURES)
    ours = pipe.Tokenizer(program, path)
    for (messages, add_generation), (code, ids, boundaries, _) in zip(cases, ours.render_many("gemma", cases)):
        rendered = chat_templates.render(template, messages, add_generation, bos)
        if rendered is None:
            refused += 1
            if code != INVALID:
                fail(what + " refusal", messages, code, INVALID)
            continue
        want = parsing.encode(rendered)
        starts = [i for i, x in enumerate(want) if x == start] + [len(want)]
        starts = ours.gemma_boundaries(messages, want, starts, boundaries)
        if (code, ids, boundaries) != (0, want, starts):
            fail(what + " chat", messages, (code, ids, boundaries), (want, starts))
    print("%-26s %6d conversations, %d of them refused: %s"
          % (what, len(cases), refused, "ok" if len(FAILURES) == before else "FAILED"), flush=True)


def train(path, seed, byte_fallback):
    """A vocabulary of the library's own making, then made odd."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(t.replace("\n", " ") for t in lines.lines(99, 3000)), model_writer=out, model_type="bpe", vocab_size=2200,
        byte_fallback=byte_fallback, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        user_defined_symbols=ADDED, character_coverage=0.98,
        max_sentencepiece_length=24, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    r = random.Random(seed)
    tokens, types, scores = [], [], []
    for i in range(sp.get_piece_size()):
        piece = sp.id_to_piece(i)
        kind = (BYTE if sp.is_byte(i) else UNKNOWN if sp.is_unknown(i) else CONTROL if sp.is_control(i) else
                USER_DEFINED if piece in ADDED else NORMAL)
        if kind == NORMAL and len(piece) > 1 and r.random() < 0.1:
            kind = UNUSED
        if kind == NORMAL and len(piece) == 1 and r.random() < 0.05:
            piece = "[gone%d]" % i
        tokens.append(piece)
        types.append(kind)
        scores.append(float(round(sp.get_score(i) / 7)))
    tokens += ["<end_of_turn>", "字典字典"]
    types += [NORMAL, NORMAL]
    scores += [0.0, -1.0]
    f = gguf_writer.File()
    f.key("general.architecture", gguf_writer.STRING, "gemma3")
    f.key("tokenizer.ggml.model", gguf_writer.STRING, "llama")
    f.key("tokenizer.ggml.pre", gguf_writer.STRING, "default")
    f.key("tokenizer.ggml.tokens", gguf_writer.ARRAY, (gguf_writer.STRING, tokens))
    f.key("tokenizer.ggml.scores", gguf_writer.ARRAY, (gguf_writer.F32, scores))
    f.key("tokenizer.ggml.token_type", gguf_writer.ARRAY, (gguf_writer.I32, types))
    f.key("tokenizer.ggml.bos_token_id", gguf_writer.U32, sp.bos_id())
    f.key("tokenizer.ggml.eos_token_id", gguf_writer.U32, sp.eos_id())
    f.key("tokenizer.ggml.add_space_prefix", gguf_writer.BOOL, False)
    f.write(path)


def main():
    program, golden = sys.argv[1], sys.argv[2]
    path = os.path.join(golden, "gemma3.gguf")
    compare(program, path, "golden gemma3", 7)
    compare_chat(program, path, "golden gemma3")
    with tempfile.TemporaryDirectory() as folder:
        for seed, byte_fallback in ((3, True), (4, False)):
            path = os.path.join(folder, "trained.gguf")
            train(path, seed, byte_fallback)
            compare(program, path, "trained, %s bytes" % ("with" if byte_fallback else "without"), seed)
    models_folder = os.environ.get("ISOTHERM_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "isotherm", "models")
    path = os.path.join(models_folder, "gemma-3-270m-q4_k_m.gguf")
    if os.path.exists(path):
        compare(program, path, "Gemma 3 270M", 8)
        compare_chat(program, path, "Gemma 3 270M")
    else:
        print("NOT CHECKED: %s is not there (tools/fetch-model gemma3-270m)" % path)
    if FAILURES:
        print("%d differences" % len(FAILURES))
    return 1 if FAILURES else 0


sys.exit(main())
