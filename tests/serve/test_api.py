#!/usr/bin/env python3
"""Every sentence of docs/http-api.md that one request can show: fields and shapes (test_refusals.py: errors). On a tiny model."""
import json
import os
import re
import unittest

from harness import Server, ServerCase, main, text_of

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


class Places(ServerCase):
    FLAGS = ("--alias", "tiny-alias")

    def test_health_says_ok(self):
        reply = self.server.get("/health")
        self.assertEqual((reply.status, reply.json["status"]), (200, "ok"))

    def test_models_lists_the_alias(self):
        models = self.server.get("/v1/models").json
        self.assertEqual(models["object"], "list")
        self.assertEqual([m["id"] for m in models["data"]], ["tiny-alias"])
        self.assertEqual(self.server.get("/v1/models/tiny-alias").json["id"], "tiny-alias")
        self.assert_error(self.server.get("/v1/models/other"), 404, "other", code="model_not_found")

    def test_alias_file_name_default_and_none_are_the_model(self):
        for name in ("tiny-alias", "llama-q8_0", "llama-q8_0.gguf", "default", None):
            self.assertEqual(self.server.chat(model=name, max_tokens=1)["model"], "tiny-alias")
        self.assertEqual(self.server.chat(max_tokens=1)["model"], "tiny-alias")

    def test_another_model_is_404(self):
        for path, fields in ((CHAT, {"messages": HELLO}), (COMPLETION, {"prompt": "x"})):
            reply = self.server.post(path, {"model": "gpt-4", **fields})
            self.assert_error(reply, 404, "gpt-4", param="model", code="model_not_found")

    def test_the_page_needs_nothing_from_elsewhere(self):
        reply = self.server.get("/")
        self.assertEqual(reply.status, 200)
        self.assertTrue(reply.headers["Content-Type"].startswith("text/html"))
        page = reply.body.decode()
        self.assertIn("/v1/chat/completions", page)
        self.assertIn("cached_tokens", page)
        self.assertIsNone(re.search(r"https?://|\bsrc=|<link(?! rel=\"icon\" href=\"data:,\")", page))

    def test_unknown_paths_are_404(self):
        for path in ("/nope", "/v1/chat", "/v1/chat/completions/", "/healthy", "/v1/models/../secret"):
            self.assert_error(self.server.get(path), 404)

    def test_wrong_methods_are_405_and_say_what_is_allowed(self):
        for path, method, allowed in ((CHAT, "GET", "POST"), (COMPLETION, "PUT", "POST"), ("/tokenize", "GET", "POST"),
                                      ("/v1/models", "POST", "GET"), ("/health", "DELETE", "GET"), ("/cache", "POST", "GET")):
            reply = self.server.request(method, path, b"{}" if method in ("POST", "PUT") else None)
            self.assert_error(reply, 405)
            self.assertIn(allowed, reply.headers["Allow"])

    def test_head_has_the_headers_of_get(self):
        reply = self.server.request("HEAD", "/health")
        self.assertEqual((reply.status, reply.body), (200, b""))

    def test_browsers_of_other_origins_may_ask(self):
        reply = self.server.request("OPTIONS", CHAT, headers={"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST",
                                                              "Access-Control-Request-Headers": "authorization, x-stainless-os"})
        self.assertEqual(reply.status, 204)
        self.assertEqual(reply.headers["Access-Control-Allow-Origin"], "*")
        self.assertIn("POST", reply.headers["Access-Control-Allow-Methods"])
        self.assertEqual(reply.headers["Access-Control-Allow-Headers"], "authorization, x-stainless-os")
        for reply in (self.server.get("/v1/models"), self.server.post(CHAT, "{"), self.server.get("/nope")):
            self.assertEqual(reply.headers["Access-Control-Allow-Origin"], "*")

    def test_metrics_are_prometheus_text(self):
        self.server.chat(max_tokens=2)
        reply = self.server.get("/metrics")
        self.assertIn("version=0.0.4", reply.headers["Content-Type"])
        typed = set()
        for line in reply.body.decode().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                typed |= {name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
            elif not line.startswith("#"):
                self.assertRegex(line, r'^isotherm_[a-z_]+(\{[a-z]+="[A-Za-z0-9_.+-]+"(,[a-z]+="[A-Za-z0-9_.+-]+")*\})? [0-9.]+$')
                self.assertIn(re.split(r"[{ ]", line)[0], typed)
        values = self.server.metrics()
        self.assertEqual(values["isotherm_ready"], 1)
        self.assertGreater(values["isotherm_requests_total"], 0)
        self.assertGreater(values["isotherm_decoded_tokens_total"], 0)
        self.assertIn('isotherm_cache_misses_total{reason="cold"}', values)

    def test_histograms_add_up(self):
        self.server.chat(max_tokens=2)
        values = self.server.metrics()
        names = [f"isotherm_cache_{name}_seconds" for name in ("publish", "restore", "disk_read", "disk_write", "disk_sync")]
        for name in names + ["isotherm_cache_restores_taken_over_predicted"]:
            buckets = [value for key, value in values.items() if key.startswith(name + "_bucket")]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], values[name + "_count"])
        self.assertGreater(values["isotherm_cache_publish_seconds_count"], 0)
        self.assertGreater(values["isotherm_cache_publish_seconds_sum"], 0)
        ended = sum(value for key, value in values.items() if key.startswith("isotherm_cache_restores_ended_total{"))
        self.assertEqual(ended, values["isotherm_cache_restores_disk_total"])
        self.assertEqual(values['isotherm_cache_restores_ended_total{how="in_time"}'], values["isotherm_cache_restores_taken_over_predicted_count"])

    def test_cache_tells_budget_and_use_of_each_tier(self):
        cache = self.server.cache()
        for tier in ("device", "disk", "index"):
            self.assertLessEqual(cache[tier]["used_bytes"], cache[tier]["budget_bytes"])
        self.assertGreater(cache["device"]["budget_bytes"], 0)
        self.assertEqual(cache["pending_bytes"], 0)
        self.assertIs(cache["disk"]["on"], False)
        self.assertIs(cache["draining"], False)
        self.assertEqual(cache["checkpoints"]["count"], 0)  # a dense model resumes at pages
        self.assertEqual(set(cache["misses"]), {"cold", "diverged", "partial_page", "evicted", "deadline", "corrupt", "io", "arena_full", "state_missing", "cheaper_to_compute"})


class Chat(ServerCase):
    def test_a_reply_has_the_shape_of_the_api(self):
        reply = self.server.chat(max_tokens=4, ignore_eos=True)
        self.assertEqual(reply["object"], "chat.completion")
        self.assertTrue(reply["id"].startswith("chatcmpl-"))
        choice = reply["choices"][0]
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "length", None))
        self.assertEqual(choice["message"]["role"], "assistant")
        usage = reply["usage"]
        self.assertEqual(usage["completion_tokens"], 4)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 4)
        own = reply["x_isotherm"]
        self.assertNotIn("tenant", own)  # nobody has a key
        self.assertEqual(own["tokens_device"] + own["tokens_host"] + own["tokens_disk"], usage["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual(own["tokens_prefilled"] + usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])
        self.assertIsInstance(own["miss"], str)
        self.assertGreaterEqual(own["tokens_matched"], own["tokens_device"] + own["tokens_host"] + own["tokens_disk"])
        self.assertEqual(set(own["timings"]), {"queue_ms", "restore_ms", "prefill_ms", "decode_ms"})
        self.assertNotIn("logits_hash", own)

    def test_parts_are_the_same_as_a_string(self):
        def tokens(content):
            return self.server.chat(content, max_tokens=1)["usage"]["prompt_tokens"]
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        self.assertEqual(tokens("Hello"), tokens(parts))
        self.assertEqual(tokens(""), tokens([]))
        self.assertLess(tokens(""), tokens("Hello"))

    def test_system_and_developer_messages_may_stand_anywhere(self):
        for role in ("system", "developer"):
            messages = [{"role": "user", "content": "a"}, {"role": role, "content": "be brief"}, {"role": "assistant", "content": None},
                        {"role": "user", "content": "b"}]
            self.server.chat(messages=messages, max_tokens=1)

    def test_content_may_hold_any_character(self):
        for content in ("\u0000", "a\u0000b", "\U0001f600\u200d", "\ufffd", "<|im_end|>", '"\\\n\r\t', "\u0007"):
            self.server.chat("x" + content, max_tokens=1)

    def test_text_of_a_user_never_becomes_a_control_token(self):
        def tokens(content):
            return self.server.chat(content, max_tokens=1)["usage"]["prompt_tokens"]
        self.assertGreater(tokens("<|im_end|>"), tokens("x") + 1)

    def test_both_names_of_the_token_limit_work(self):
        for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
            reply = self.server.chat(ignore_eos=True, **fields)
            self.assertEqual(reply["usage"]["completion_tokens"], 3)
            self.assertEqual(reply["choices"][0]["finish_reason"], "length")

    def test_without_a_limit_the_reply_ends_with_the_context(self):
        reply = self.server.chat("word " * 300, ignore_eos=True)
        self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        self.assertLessEqual(reply["usage"]["total_tokens"], 2048)
        self.assertGreater(reply["usage"]["completion_tokens"], 1)

    def test_n_choices_are_returned(self):
        reply = self.server.chat(n=3, max_tokens=4, seed=1, ignore_eos=True)
        self.assertEqual([c["index"] for c in reply["choices"]], [0, 1, 2])
        self.assertEqual(reply["usage"]["completion_tokens"], 12)

    def test_a_seed_repeats(self):
        def text(seed):
            return self.server.chat(seed=seed, max_tokens=16, ignore_eos=True)["choices"][0]["message"]["content"]
        self.assertEqual(text(7), text(7))
        self.assertEqual(text(-7), text(-7))

    def test_stop_strings_end_a_reply_and_are_not_in_it(self):
        fields = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
        for prompt in ("Hello", "Once", "The river", "A letter"):
            whole = self.server.chat(prompt, **fields)["choices"][0]["message"]["content"]
            found = re.search(r"(?<=...)[ -~]{3}", whole, re.S)
            if found:
                break
        stop = found.group()
        for value in (stop, [stop], ["\u1234 never", stop]):
            choice = self.server.chat(prompt, stop=value, **fields)["choices"][0]
            self.assertEqual(choice["message"]["content"], whole[:whole.index(stop)])
            self.assertEqual(choice["finish_reason"], "stop")
        chunks = self.server.stream(messages=[{"role": "user", "content": prompt}], stop=stop, **fields)
        self.assertEqual(text_of(chunks), whole[:whole.index(stop)])

    def test_logit_bias_can_force_a_token(self):
        token = self.server.post("/tokenize", {"content": "q"}).json["tokens"][0]
        reply = self.server.chat(logit_bias={str(token): 100}, max_tokens=3, temperature=0)
        self.assertEqual(reply["choices"][0]["message"]["content"], "qqq")

    def test_sampling_fields_are_taken(self):
        self.server.chat(max_tokens=2, temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repeat_penalty=1.1, presence_penalty=0.5,
                         frequency_penalty=-0.5, seed=3, stop=None, logit_bias={}, user="u", nonsense={"a": [1]})
        self.server.chat(max_tokens=2, temperature=2, top_p=0, top_k=-1, min_p=0)
        self.server.chat(max_tokens=2.0, n=1.0)


class Streams(ServerCase):
    def check_chat(self, chunks, n=1):
        self.assertEqual(chunks[-1], "[DONE]")
        for chunk in chunks[:-1]:
            self.assertEqual(chunk["object"], "chat.completion.chunk")
            self.assertEqual(chunk["id"], chunks[0]["id"])
        for index in range(n):
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"] and c["choices"][0]["index"] == index]
            self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual(mine[-1]["delta"], {})
            self.assertEqual(mine[-1]["finish_reason"], "length")
            for choice in mine[1:-1]:
                self.assertEqual(set(choice["delta"]), {"content"})
            for choice in mine[:-1]:
                self.assertIsNone(choice["finish_reason"])

    def test_a_chat_streams_role_text_reason_and_done(self):
        fields = {"messages": HELLO, "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        chunks = self.server.stream(**fields)
        self.check_chat(chunks)
        self.assertTrue(all("usage" not in c for c in chunks[:-1]))
        whole = self.server.chat(**fields)
        self.assertEqual(text_of(chunks), whole["choices"][0]["message"]["content"])

    def test_usage_comes_last_when_it_is_asked_for(self):
        chunks = self.server.stream(messages=HELLO, max_tokens=5, ignore_eos=True, stream_options={"include_usage": True})
        self.check_chat(chunks[:-2] + chunks[-1:])
        last = chunks[-2]
        self.assertEqual(last["choices"], [])
        self.assertEqual(last["usage"]["completion_tokens"], 5)
        self.assertIn("tokens_device", last["x_isotherm"])
        for chunk in chunks[:-2]:
            self.assertIsNone(chunk["usage"])

    def test_choices_stream_side_by_side(self):
        chunks = self.server.stream(messages=HELLO, n=3, max_tokens=5, ignore_eos=True, seed=5)
        self.check_chat(chunks, 3)

    def test_completions_stream_text(self):
        fields = {"prompt": "Hello", "max_tokens": 6, "ignore_eos": True, "temperature": 0}
        chunks = self.server.stream(COMPLETION, **fields)
        self.assertEqual(chunks[-1], "[DONE]")
        self.assertEqual({c["object"] for c in chunks[:-1]}, {"text_completion"})
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(text_of(chunks), self.server.complete(**fields)["choices"][0]["text"])

    def test_an_error_before_the_stream_is_a_plain_error(self):
        reply = self.server.post(CHAT, {"messages": HELLO, "stream": True, "temperature": 9})
        self.assert_error(reply, 400, param="temperature")

    def test_one_connection_takes_many_requests(self):
        connection = self.server.connect()
        for stream in (True, False, True, False):
            connection.request("POST", CHAT, json.dumps({"messages": HELLO, "max_tokens": 2, "stream": stream}))
            reply = connection.getresponse()
            self.assertEqual(reply.status, 200)
            reply.read()
        connection.close()


class Logprobs(ServerCase):
    FIELDS = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}

    def check_content(self, content, text, n_top):
        whole = b"".join(bytes(entry["bytes"]) for entry in content)
        self.assertEqual(whole.decode("utf-8", "replace"), text)
        for entry in content:
            self.assertEqual(entry["token"], bytes(entry["bytes"]).decode("utf-8", "replace"))
            self.assertLessEqual(entry["logprob"], 0)
            self.assertEqual(len(entry["top_logprobs"]), n_top)
            values = [top["logprob"] for top in entry["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            if n_top:
                self.assertEqual(values[0], entry["logprob"])  # greedy: the chosen one is the likeliest

    def test_chat_has_an_entry_for_every_token(self):
        for top in (0, 5, 20):
            choice = self.server.chat(logprobs=True, top_logprobs=top, **self.FIELDS)["choices"][0]
            self.assertEqual(len(choice["logprobs"]["content"]), 40)
            self.check_content(choice["logprobs"]["content"], choice["message"]["content"], top)

    def test_a_stream_has_the_same_entries(self):
        chunks = self.server.stream(messages=HELLO, logprobs=True, top_logprobs=2, **self.FIELDS)
        content = [entry for c in chunks[:-1] for entry in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
        whole = self.server.chat(logprobs=True, top_logprobs=2, **self.FIELDS)["choices"][0]
        self.assertEqual(content, whole["logprobs"]["content"])
        self.assertEqual(text_of(chunks), whole["message"]["content"])

    def test_parts_of_a_character_have_their_entries(self):
        tokens = self.server.post("/tokenize", {"content": "\U0001f600", "with_pieces": True}).json["tokens"]
        parts = [t for t in tokens if isinstance(t["piece"], list)]
        self.assertGreater(len(parts), 1)
        # A token that is never a whole character, forced for the whole reply.
        bias = {str(parts[0]["id"]): 100}
        choice = self.server.chat(logprobs=True, logit_bias=bias, max_tokens=3, temperature=0)["choices"][0]
        self.assertEqual([entry["bytes"] for entry in choice["logprobs"]["content"]], [parts[0]["piece"]] * 3)
        self.assertEqual({entry["token"] for entry in choice["logprobs"]["content"]}, {"\ufffd"})
        choice = self.server.complete(logprobs=0, logit_bias=bias, max_tokens=3, temperature=0)["choices"][0]
        name = "bytes:" + "".join(f"\\x{b:02x}" for b in parts[0]["piece"])
        self.assertEqual(choice["logprobs"]["tokens"], [name] * 3)

    def test_completions_have_four_lists(self):
        for top in (0, 3):
            choice = self.server.complete(logprobs=top, **self.FIELDS)["choices"][0]
            logprobs = choice["logprobs"]
            self.assertEqual({len(v) for v in logprobs.values()}, {40})
            for token, value, alternatives in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
                self.assertEqual(alternatives[token], value)
                self.assertLessEqual(len(alternatives), top + 1)
            offsets = logprobs["text_offset"]
            self.assertEqual(offsets, sorted(offsets))
            self.assertEqual(offsets[0], 0)
            for token, offset in zip(logprobs["tokens"], offsets):
                if not token.startswith("bytes:"):
                    self.assertEqual(choice["text"][offset:offset + len(token)], token)

    def test_completions_stream_the_same_lists(self):
        whole = self.server.complete(logprobs=2, **self.FIELDS)["choices"][0]["logprobs"]
        chunks = self.server.stream(COMPLETION, prompt="Hello", logprobs=2, **self.FIELDS)
        for name, values in whole.items():
            self.assertEqual([v for c in chunks[:-1] for v in (c["choices"][0]["logprobs"] or {name: []})[name]], values)


class Completions(ServerCase):
    def test_a_string_and_its_ids_are_the_same_prompt(self):
        fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
        ids = self.server.post("/tokenize", {"content": "Once upon", "add_special": True}).json["tokens"]
        one, two = self.server.complete("Once upon", **fields), self.server.complete(ids, **fields)
        self.assertEqual(one["choices"][0]["text"], two["choices"][0]["text"])
        self.assertEqual(one["usage"]["prompt_tokens"], len(ids))
        self.assertEqual(one["object"], "text_completion")

    def test_the_default_limit_is_16(self):
        self.assertEqual(self.server.complete(ignore_eos=True)["usage"]["completion_tokens"], 16)

    def test_several_prompts_are_refused(self):
        for prompt in (["a"], ["a", "b"], [[1, 2], [3]]):
            self.assert_error(self.server.post(COMPLETION, {"prompt": prompt}), 400, "not offered", param="prompt")

    def test_bad_prompts_are_refused(self):
        for prompt in ([], None, 5, {}, [1, "a"], [-1], [1 << 40], [1.5], [True], [None]):
            self.assert_error(self.server.post(COMPLETION, {"prompt": prompt}), 400, param="prompt")
        self.assert_error(self.server.post(COMPLETION, {}), 400, param="prompt")

    def test_a_prompt_over_the_context_says_both_numbers(self):
        ids = [5] * 2048
        self.assert_error(self.server.post(COMPLETION, {"prompt": ids}), 400, 2048, param="prompt", code="context_length_exceeded")
        self.assert_error(self.server.post(COMPLETION, {"prompt": [5] * 5000}), 400, 5000, 2048)
        reply = self.server.post(CHAT, {"messages": [{"role": "user", "content": "a b " * 4000}]})
        self.assert_error(reply, 400, 2048, param="messages", code="context_length_exceeded")
        reply = self.server.post(CHAT, {"messages": [{"role": "user", "content": "a" * 2_000_000}]})  # not even encoded
        self.assert_error(reply, 400, "at least", 2048, param="messages", code="context_length_exceeded")
        self.assertEqual(self.server.complete([5] * 2047)["usage"]["prompt_tokens"], 2047)


class Tokens(ServerCase):
    def tokenize(self, content, **fields):
        return self.server.post("/tokenize", {"content": content, **fields}).json["tokens"]

    def detokenize(self, tokens):
        return self.server.post("/detokenize", {"tokens": tokens}).json["content"]

    def test_text_comes_back(self):
        for text in ("", "Hello world", "naïve 日本語 \U0001f600", " a  b\n\n\tc ", "<|im_start|>"):
            self.assertEqual(self.detokenize(self.tokenize(text)), text)

    def test_special_tokens_are_parsed_only_when_asked(self):
        self.assertGreater(len(self.tokenize("<|im_end|>")), 1)
        self.assertGreater(len(self.tokenize("<|im_end|>", parse_special=False)), 1)
        ids = self.tokenize("<|im_end|>", parse_special=True)
        self.assertEqual(len(ids), 1)
        self.assertEqual(self.detokenize(ids), "<|im_end|>")

    def test_pieces_are_text_or_bytes(self):
        tokens = self.tokenize("Hi \U0001f600", with_pieces=True)
        self.assertEqual([t["id"] for t in tokens], self.tokenize("Hi \U0001f600"))
        joined = b"".join(bytes(t["piece"]) if isinstance(t["piece"], list) else t["piece"].encode() for t in tokens)
        self.assertEqual(joined.decode(), "Hi \U0001f600")

    def test_add_special_adds_only_what_the_model_asks_for(self):
        self.assertEqual(self.tokenize("Hello", add_special=True), self.tokenize("Hello"))

    def test_a_text_longer_than_any_prompt_is_not_encoded(self):
        reply = self.server.post("/tokenize", {"content": "a" * 2_000_000})
        self.assert_error(reply, 400, "at least", 2048, param="content", code="context_length_exceeded")
        self.assertGreater(len(self.tokenize("a b " * 4000)), 2048)  # counted, though no prompt

    def test_half_a_character_is_replaced(self):
        ids = [t["id"] for t in self.tokenize("\U0001f600", with_pieces=True) if isinstance(t["piece"], list)]
        self.assertGreater(len(ids), 1)
        self.assertEqual(set(self.detokenize(ids[:1])), {"\ufffd"})

    def test_wrong_fields_are_400(self):
        for fields in ({}, {"content": 5}, {"content": None}, {"content": ["a"]}, {"content": "a", "add_special": 1},
                       {"content": "a", "parse_special": "yes"}):
            self.assert_error(self.server.post("/tokenize", fields), 400)
        for fields in ({}, {"tokens": 5}, {"tokens": "a"}, {"tokens": ["a"]}, {"tokens": [-1]}, {"tokens": [10**9]}):
            self.assert_error(self.server.post("/detokenize", fields), 400, param="tokens")


class Thinking(ServerCase):
    MODEL, FLAGS = "qwen2-q8_0", ("--chat-template", "qwen3")
    QUESTION = "What is behind the harbour, and who has the key to the old stone bridge?"
    OFF = {"chat_template_kwargs": {"enable_thinking": False, "unknown": 1}}
    FIELDS = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}

    def ids(self, text):
        return self.server.post("/tokenize", {"content": text, "parse_special": True}).json["tokens"]

    def cached(self, reply):
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_off_puts_an_empty_think_block_behind_the_header(self):
        prompt = self.ids(f"<|im_start|>user\n{self.QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
        want = self.server.complete(prompt, **self.FIELDS)
        have = self.server.chat(self.QUESTION, **self.OFF, **self.FIELDS)
        self.assertEqual(have["usage"]["prompt_tokens"], len(prompt))
        self.assertEqual(have["choices"][0]["message"]["content"], want["choices"][0]["text"])
        for on in ({}, {"chat_template_kwargs": None}, {"chat_template_kwargs": {}}, {"chat_template_kwargs": {"enable_thinking": True}}):
            reply = self.server.chat(self.QUESTION, max_tokens=1, **on)
            self.assertEqual(reply["usage"]["prompt_tokens"], len(prompt) - len(self.ids("<think>\n\n</think>\n\n")))

    def test_the_next_turn_reuses_all_but_the_block(self):
        # An earlier reply comes back without the block, so its own pages do not match: the template's rule.
        block = len(self.ids("<think>\n\n</think>\n\n"))
        messages = [{"role": "user", "content": "Turns: " + self.QUESTION}]
        for turn in range(4):
            reply = self.server.chat(messages=messages, **self.OFF, **self.FIELDS, seed=turn)
            total = reply["usage"]["prompt_tokens"]
            if turn:
                self.assertGreaterEqual(self.cached(reply), (before - block) // 16 * 16)
            again = self.server.chat(messages=messages, **self.OFF, **self.FIELDS, seed=turn)
            self.assertEqual(self.cached(again), (total - 1) // 16 * 16)
            self.assertEqual(again["choices"][0]["message"]["content"], reply["choices"][0]["message"]["content"])
            before = total
            messages += [reply["choices"][0]["message"], {"role": "user", "content": f"And number {turn}? {self.QUESTION}"}]

    def test_wrong_arguments_are_refused(self):
        for arguments in (5, [], "x", {"enable_thinking": "no"}, {"enable_thinking": 0}):
            reply = self.server.post(CHAT, {"messages": HELLO, "chat_template_kwargs": arguments})
            self.assert_error(reply, 400, "chat_template_kwargs", param="chat_template_kwargs")


class Debug(ServerCase):
    FLAGS = ("--debug",)

    def test_the_hash_of_the_logits_repeats(self):
        def hash_of(**fields):
            return self.server.chat(max_tokens=6, ignore_eos=True, temperature=0, **fields)["x_isotherm"]["logits_hash"]
        self.assertRegex(hash_of(), "^[0-9a-f]{16}$")
        self.assertEqual(hash_of(), hash_of())


class Llama3(ServerCase):
    MODEL = "llama3-q8_0"

    def test_a_model_that_asks_for_bos_gets_it(self):
        plain = self.server.post("/tokenize", {"content": "Hello"}).json["tokens"]
        special = self.server.post("/tokenize", {"content": "Hello", "add_special": True}).json["tokens"]
        self.assertEqual(special[1:], plain)
        self.assertEqual(self.server.complete("Hello", max_tokens=1)["usage"]["prompt_tokens"], len(special))


class NoTemplate(unittest.TestCase):
    MODEL = os.path.join(os.environ.get("ISOTHERM_TEST_DATA", ""), "golden", "llama.gguf")

    def test_chat_names_the_templates_and_completions_work(self):
        with Server(self.MODEL) as server:
            reply = server.post(CHAT, {"messages": HELLO})
            self.assertEqual(reply.status, 400, reply.body)
            for name in ("--chat-template", "chatml", "llama3", "qwen3"):
                self.assertIn(name, reply.error["message"])
            self.assertEqual(server.complete([5, 6, 7], max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"], 3)


if __name__ == "__main__":
    main()
