#!/usr/bin/env python3
"""Compares the chat templates with the models' own Jinja templates, rendered by jinja2 as transformers does and
tokenized by the Hugging Face `tokenizers` library.

    compare_chat.py TOKENIZE GOLDEN_FOLDER

SmolLM2's template is read from the default model where it is there. The others are the models' published ones
without the parts for tools and documents, which a plain conversation does not reach. Checked for each: it is
recognised; ids are equal on generated conversations; boundaries lie before role starts. Exit 77: a library is
missing.
"""
import os
import random
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "data")]
from reference_python import require

require("tokenizers", "jinja2")

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

import gguf_meta
import gguf_writer
import lines
import pipe

CONTROL, USER_DEFINED = 3, 4
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
           "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
           "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN2 = SMOLLM2.replace("You are a helpful AI assistant named SmolLM, trained by Hugging Face", "You are a helpful assistant.")
QWEN25 = r"""{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
          "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
TEMPLATES = {"chatml": CHATML, "smollm2": SMOLLM2, "qwen2": QWEN2, "qwen2.5": QWEN25, "qwen3": QWEN3, "llama3": LLAMA3,
             "llama3.1": LLAMA31}
NEEDED = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<|begin_of_text|>": CONTROL, "<|start_header_id|>": CONTROL,
          "<|end_header_id|>": CONTROL, "<|eot_id|>": CONTROL, "<think>": USER_DEFINED, "</think>": USER_DEFINED}
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
    f.key("tokenizer.chat_template", gguf_writer.STRING, template)
    f.write(path)
    return [t.decode() for t in tokens], types


def reference(tokens, types, merges):
    t = Tokenizer(models.BPE({x: i for i, x in enumerate(tokens)}, [tuple(m.decode().split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.add_special_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == CONTROL])
    t.add_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == USER_DEFINED])
    return t


def conversations(n):
    r = random.Random(5)
    texts = [t for t in lines.lines(6, 400) if "<" not in t] + ["", " ", "\n", "  padded\n\n", "\u2003x\x1f\u00a0", "\x85"]
    thoughts = ["<think>\nhm\n</think>\n\nyes", "<think>\n\n</think>\n\nno", "<think>a</think>b</think>\n\nc", "</think>x",
                "<think>open", "<think>\n\n\nso\n\n</think>\n\n\n\n", "x<think>y</think>z"]
    for _ in range(n):
        messages = []
        for i in range(r.randint(1, 7)):
            role = r.choice(["system", "user", "user", "assistant", "assistant"])
            if r.random() < 0.5:
                role = ("user", "assistant")[i % 2]
            content = r.choice(texts)
            if role == "assistant" and r.random() < 0.5:
                content = r.choice(thoughts)
            if role == "user" and r.random() < 0.1:
                content = "<tool_response>\n%s\n</tool_response>" % content
            messages.append({"role": role, "content": content})
        yield messages, r.random() < 0.7


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
        TEMPLATES["smollm2"] = real
    else:
        print("NOT CHECKED: the template of %s, which is not there (tools/fetch-model)" % model)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, text in TEMPLATES.items():
            path = os.path.join(temporary, "vocabulary.gguf")
            tokens, types = write_vocabulary(path, source, text)
            theirs = reference(tokens, types, source["tokenizer.ggml.merges"])
            ours = pipe.Tokenizer(program, path)
            if ours.template() != name:
                print("%s is recognised as %r" % (name, ours.template()))
                failures += 1
            template = env.from_string(text)
            start = tokens.index("<|start_header_id|>" if name.startswith("llama") else "<|im_start|>")
            cases = list(conversations(150))
            answers = ours.render_many(name, cases)
            for (messages, add_generation), (code, ids, boundaries, reply_run) in zip(cases, answers):
                rendered = template.render(messages=messages, add_generation_prompt=add_generation,
                                           bos_token="<|begin_of_text|>")
                want = theirs.encode(rendered, add_special_tokens=False).ids
                starts = [i for i, x in enumerate(want) if x == start] + [len(want)]
                if code != 0 or ids != want or boundaries != starts:
                    failures += 1
                    if failures < 5:
                        print("DIFFERENT %s: %r\n  ours   %s\n  theirs %s\n  %s %s" % (name, messages, ids, want, boundaries, starts))
            print("%-10s %d conversations" % (name, len(cases)), flush=True)
    print("%d differences" % failures)
    return 1 if failures else 0


sys.exit(main())
