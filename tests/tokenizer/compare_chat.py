#!/usr/bin/env python3
"""Compares the chat templates with the models' own Jinja templates, rendered by jinja2 as transformers does and
tokenized by the Hugging Face `tokenizers` library.

    compare_chat.py TOKENIZE GOLDEN_FOLDER

SmolLM2's template is read from the default model where it is there. The others are in chat_templates.py. Checked for
each: it is recognised; ids are equal on generated conversations, and what it forbids is refused; boundaries lie before
role starts. Exit 77: a library is missing.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "data")]
from reference_python import require

require("tokenizers", "jinja2")

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

import chat_templates
import gguf_meta
import gguf_writer
import pipe

CONTROL, USER_DEFINED = 3, 4
INVALID = 2**32 - 2  # ENG_EINVAL
NEEDED = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<|begin_of_text|>": CONTROL, "<|start_header_id|>": CONTROL,
          "<|end_header_id|>": CONTROL, "<|eot_id|>": CONTROL, "<bos>": CONTROL, "<start_of_turn>": CONTROL,
          "<end_of_turn>": CONTROL, "<think>": USER_DEFINED, "</think>": USER_DEFINED}
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_vocabulary(path, source, template):
    """The source's vocabulary with all tokens that the templates need, and the template, under qwen2's pattern."""
    tokens = list(source["tokenizer.ggml.tokens"])
    types = list(source["tokenizer.ggml.token_type"])
    for text, kind in NEEDED.items():
        if text.encode() not in tokens:
            tokens.append(text.encode())
            types.append(kind)
    f = gguf_writer.File()
    f.key("general.architecture", gguf_writer.STRING, "llama")
    f.key("tokenizer.ggml.model", gguf_writer.STRING, "gpt2")
    f.key("tokenizer.ggml.pre", gguf_writer.STRING, "qwen2")
    f.key("tokenizer.ggml.tokens", gguf_writer.ARRAY, (gguf_writer.STRING, tokens))
    f.key("tokenizer.ggml.token_type", gguf_writer.ARRAY, (gguf_writer.I32, types))
    f.key("tokenizer.ggml.merges", gguf_writer.ARRAY, (gguf_writer.STRING, source["tokenizer.ggml.merges"]))
    f.key("tokenizer.ggml.bos_token_id", gguf_writer.U32, tokens.index(b"<bos>" if b"<bos>" in tokens else "<bos>"))
    f.key("tokenizer.ggml.add_bos_token", gguf_writer.BOOL, False)
    f.key("tokenizer.chat_template", gguf_writer.STRING, template)
    f.write(path)
    return [t.decode() if isinstance(t, bytes) else t for t in tokens], types


def reference(tokens, types, merges):
    t = Tokenizer(models.BPE({x: i for i, x in enumerate(tokens)}, [tuple(m.decode().split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.add_special_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == CONTROL])
    t.add_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == USER_DEFINED])
    return t


def main():
    program, golden = sys.argv[1], sys.argv[2]
    folder = os.environ.get("ISOTHERM_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "isotherm", "models")
    model = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    source = gguf_meta.read(os.path.join(golden, "qwen3.gguf"))
    if os.path.exists(model):
        real = gguf_meta.read(model)["tokenizer.chat_template"].decode()
        if pipe.Tokenizer(program, model).template() != "smollm2":
            sys.exit("the default model's template is not recognised")
        chat_templates.TEMPLATES["smollm2"] = real
    else:
        print("NOT CHECKED: the template of %s, which is not there (tools/fetch-model)" % model)
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, text in chat_templates.TEMPLATES.items():
            path = os.path.join(temporary, "vocabulary.gguf")
            tokens, types = write_vocabulary(path, source, text)
            theirs = reference(tokens, types, source["tokenizer.ggml.merges"])
            ours = pipe.Tokenizer(program, path)
            if ours.template() != name:
                print("%s is recognised as %r" % (name, ours.template()))
                failures += 1
            template = chat_templates.compile_template(text)
            start = tokens.index({"llama3": "<|start_header_id|>", "llama3.1": "<|start_header_id|>",
                                  "gemma": "<start_of_turn>"}.get(name, "<|im_start|>"))
            bos = "<bos>" if name == "gemma" else "<|begin_of_text|>"
            cases = list(chat_templates.turns(300) if name == "gemma" else chat_templates.conversations(150))
            answers = ours.render_many(name, cases)
            for (messages, generation), (code, ids, boundaries, reply_run) in zip(cases, answers):
                rendered = chat_templates.render(template, messages, generation, bos)
                if rendered is None:
                    failures += code != INVALID
                    continue
                want = theirs.encode(rendered, add_special_tokens=False).ids
                starts = [i for i, x in enumerate(want) if x == start] + [len(want)]
                if name == "gemma":
                    starts = ours.gemma_boundaries(messages, want, starts, boundaries)
                if code != 0 or ids != want or boundaries != starts:
                    failures += 1
                    if failures < 5:
                        print("DIFFERENT %s: %r\n  ours   %s\n  theirs %s\n  %s %s" % (name, messages, ids, want, boundaries, starts))
            print("%-10s %d conversations" % (name, len(cases)), flush=True)
    print("%d differences" % failures)
    return 1 if failures else 0


sys.exit(main())
