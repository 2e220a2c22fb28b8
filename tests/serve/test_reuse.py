#!/usr/bin/env python3
"""The main job through the real `openai` client: chats stream and not, a second turn reuses the first, a fork, an edited message, a
regenerated reply, and a restart after kill -9. On a tiny model, and on the real one when it is here.

The client is in the virtual environment that tools/check makes ($ISOTHERM_PYTHON); without it the test skips, loudly.
"""
import os
import sys
import tempfile
import unittest

from harness import SKIPPED, Server, binary, cache_folder, disk_flags, real_model, tiny_model

try:
    import openai
except ImportError:
    PYTHON = os.environ.get("ISOTHERM_PYTHON") or os.path.join(cache_folder(), "venv", "bin", "python3")
    if os.path.exists(PYTHON) and not os.environ.get("ISOTHERM_REEXECUTED"):
        os.environ["ISOTHERM_REEXECUTED"] = "1"
        os.execv(PYTHON, [PYTHON, *sys.argv])
    print("SKIPPED, NOT TESTED: the Python package `openai` is missing (tools/check installs it)", flush=True)
    sys.exit(SKIPPED)

PAGE = 16
STORY = "Tell me about the river, the harbour and the old stone bridge in the town where the lanterns burn all night. "


class Talk:
    """A chat kept by a client of the API."""

    def __init__(self, client, messages=()):
        self.client, self.messages = client, list(messages)

    def fork(self, n_messages):
        return Talk(self.client, self.messages[:n_messages])

    def say(self, content, **fields):
        """One turn, streamed; returns its usage. The reply joins the history."""
        self.messages.append({"role": "user", "content": content})
        return self.answer(**fields)

    def answer(self, **fields):
        stream = self.client.chat.completions.create(model="default", messages=self.messages, stream=True,
                                                     stream_options={"include_usage": True}, **{"max_tokens": 40, **fields})
        text, usage, finish, self.n_shown = "", None, None, 0
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                self.n_shown += len(choice.logprobs.content) if choice.logprobs else 0
                finish = choice.finish_reason or finish
        self.messages.append({"role": "assistant", "content": text})
        self.finish = finish
        return usage


def cached(usage):
    return usage.prompt_tokens_details.cached_tokens


def stored_tokens(usage):
    """Tokens of this turn whose KV exists: the last sampled one has none."""
    return usage.prompt_tokens + usage.completion_tokens - 1


def full_pages(n_tokens):
    return n_tokens // PAGE * PAGE


class Reuse:
    """Cases for one model."""
    model = None
    flags = ("--kv-cache", "256M")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.start()

    @classmethod
    def start(cls):
        cls.server = Server(cls.model, *disk_flags(cls.folder.name, "256M"), *cls.flags)
        cls.server.__enter__()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0, timeout=300)

    @classmethod
    def stop(cls):
        cls.client.close()
        cls.server.__exit__(None, None, None)

    @classmethod
    def tearDownClass(cls):
        cls.stop()
        cls.folder.cleanup()

    def restart_after_kill(self):
        self.server.drain()
        self.server.kill()
        self.stop()
        self.start()

    def assert_turn_reused(self, usage, before):
        """All full pages of what existed before, the reply included, were reused (or all but the prompt's last token)."""
        self.assertGreaterEqual(cached(usage), min(full_pages(stored_tokens(before)), full_pages(usage.prompt_tokens - 1)),
                                self.server.cache()["misses"])

    def test_a_reply_comes_whole_and_streamed(self):
        fields = {"model": "default", "messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 12}
        whole = self.client.chat.completions.create(**fields)
        streamed = "".join(c.choices[0].delta.content or "" for c in self.client.chat.completions.create(stream=True, **fields))
        self.assertEqual(whole.choices[0].message.content, streamed)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        text = self.client.completions.create(model="default", prompt=STORY, temperature=0, max_tokens=5)
        self.assertLessEqual(text.usage.completion_tokens, 5)

    def test_logprobs_parse(self):
        reply = self.client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hi"}], logprobs=True,
                                                    top_logprobs=3, max_tokens=4)
        entries = reply.choices[0].logprobs.content
        self.assertEqual(len(entries), reply.usage.completion_tokens - (reply.choices[0].finish_reason == "stop"))
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "Hi"}])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hi"}], temperature=5)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(self.client.models.list().data[0].object, "model")

    def test_turns_reuse_each_other_at_any_temperature(self):
        for temperature in (0, 1.5):
            talk = Talk(self.client)
            before = talk.say(f"{temperature} {STORY}", temperature=temperature, seed=3)
            for i in range(4):
                usage = talk.say(f"And then, number {i}?", temperature=temperature, seed=i)
                self.assert_turn_reused(usage, before)
                before = usage

    def test_a_reply_cut_by_a_stop_string_is_reused(self):
        cut = None
        for seed in range(20):
            talk = Talk(self.client)
            talk.say("stop " + STORY, temperature=1.5, seed=seed)
            text = talk.messages[-1]["content"]
            whole = text.split("\ufffd")[0]
            if len(whole) >= 12:
                cut = whole[-3:]
                break
        self.assertIsNotNone(cut, "no reply begins with text")
        talk = talk.fork(1)
        before = talk.answer(temperature=1.5, seed=seed, stop=cut, logprobs=True)
        self.assertEqual(talk.finish, "stop")
        self.assertEqual(talk.messages[-1]["content"], text[:text.index(cut)])
        usage = talk.say("More.", temperature=0)
        # All but the token that the cut may have gone through.
        self.assertGreaterEqual(cached(usage), full_pages(before.prompt_tokens + talk.n_shown - 1))

    def test_a_fork_an_edit_and_a_regenerated_reply_reuse_the_common_pages(self):
        talk = Talk(self.client)
        first = talk.say("fork " + STORY, temperature=1.5, seed=1)
        second = talk.say("Go on.", temperature=1.5, seed=2)

        fork = talk.fork(2)
        self.assert_turn_reused(fork.say("Another way.", seed=3), first)

        edited = talk.fork(2)
        usage = edited.say("Stop it.", seed=4)
        self.assert_turn_reused(usage, first)

        again = talk.fork(3)
        usage = again.answer(seed=5)
        self.assertEqual(usage.prompt_tokens, second.prompt_tokens)
        self.assertEqual(cached(usage), full_pages(usage.prompt_tokens - 1))

    def test_the_next_turn_is_warm_after_kill_9(self):
        talk = Talk(self.client)
        before = talk.say("restart " + STORY * 3, temperature=1.5, seed=21)
        self.restart_after_kill()
        talk.client = self.client
        fork, again = talk.fork(2), talk.fork(1)
        usage = talk.say("Still there?", seed=1)
        self.assert_turn_reused(usage, before)
        self.assert_turn_reused(fork.say("Are you?", seed=2), before)
        usage = again.answer(seed=3)
        self.assertEqual(cached(usage), full_pages(usage.prompt_tokens - 1))
        self.assertGreater(self.server.cache()["reuse"]["tokens_disk"], 0)

    def test_a_seed_says_the_same_cold_and_warm(self):
        def text(usage_of, **fields):
            talk = Talk(self.client, [{"role": "system", "content": "Nobody else has this system message."}])
            usage_of.append(talk.say("same " + STORY, seed=9, temperature=1, **fields))
            return talk.messages[-1]["content"]
        usages = []
        cold, warm = text(usages), text(usages)
        self.assertEqual(cached(usages[0]), 0)
        self.assertEqual(cached(usages[1]), full_pages(usages[1].prompt_tokens - 1))
        self.assertEqual(cold, warm)


class TinyModel(Reuse, unittest.TestCase):
    model = tiny_model()


class RealModel(Reuse, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = real_model()
        if not cls.model:
            raise unittest.SkipTest("no real model")
        super().setUpClass()


if __name__ == "__main__":
    binary()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
