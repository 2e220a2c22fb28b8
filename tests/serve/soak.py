#!/usr/bin/env python3
"""Concurrent chats with random cancels against a real server, for a bounded time; then: no growth of memory, descriptors or files, no
sanitizer report, and a server that still answers.

  soak.py PATH/TO/isotherm [--seconds N | --minutes N] [--chats 8] [--model FILE] [--seed N]

Meant for sanitizer builds: 30 seconds in the suite, `--minutes 10` as the long one.
"""
import argparse
import json
import os
import random
import tempfile
import threading
import time

from harness import Server, events, real_model, tiny_model, wait_until

PARAGRAPHS = ["The river runs past the harbour.", "Ein zweiter Satz mit Ümläuten.", "第三句在这里。", "\U0001f600 and more of it", "x" * 300]


class Chat(threading.Thread):
    """One client: random requests, some left in the middle. Stops at the deadline or at its first failure."""

    def __init__(self, server, seed, deadline):
        super().__init__(daemon=True)
        self.server, self.random, self.deadline = server, random.Random(seed), deadline
        self.counts = {"finished": 0, "cancelled": 0, "refused": 0}
        self.failure = None
        self.messages = []

    def run(self):
        try:
            while time.monotonic() < self.deadline:
                self.step()
        except Exception as failure:  # pylint: disable=broad-except
            self.failure = failure

    def step(self):
        r = self.random
        if len(self.messages) > 8 or r.random() < 0.1:
            self.messages = []
        text = " ".join(r.choice(PARAGRAPHS) for _ in range(r.randrange(1, 12)))
        self.messages.append({"role": "user", "content": text})
        fields = {"messages": self.messages, "max_tokens": r.choice([1, 8, 64, 200]), "temperature": r.choice([0, 1, 1.5]),
                  "stream": r.random() < 0.7, "n": r.choice([1, 1, 1, 3]), "ignore_eos": r.random() < 0.5}
        if r.random() < 0.3:
            fields |= {"logprobs": True, "top_logprobs": 5}
        if r.random() < 0.3:
            fields["stop"] = ["e", "th"]
        if r.random() < 0.05:
            fields["temperature"] = "hot"
        leave_after = r.choice([None, None, 0, 1, 5])
        connection = self.server.connect(300)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(fields))
            if leave_after == 0 and r.random() < 0.5:
                self.counts["cancelled"] += 1
                self.messages.pop()
                return
            self.read(connection.getresponse(), fields, leave_after)
        finally:
            connection.close()

    def read(self, response, fields, leave_after):
        if response.status != 200:
            body = json.loads(response.read())
            assert response.status in (400, 429), (response.status, body)
            self.counts["refused"] += 1
            self.messages = []
            return
        reply = ""
        if fields["stream"]:
            done = False
            for i, event in enumerate(events(response)):
                if i == leave_after:
                    response.close()
                    self.counts["cancelled"] += 1
                    self.messages.pop()
                    return
                assert not done, "text after [DONE]"
                done = event == "[DONE]"
                if not done:
                    assert "error" not in event, event
                    choice = event["choices"][0]
                    if choice["index"] == 0:
                        reply += choice["delta"].get("content", "")
            assert done, "a stream ended without [DONE]"
        else:
            reply = json.loads(response.read())["choices"][0]["message"]["content"]
        self.messages.append({"role": "assistant", "content": reply})
        self.counts["finished"] += 1


MEMORY_GROWTH = 32 << 20  # bytes that malloc and the sanitizers' own tables may make of the same load


def count_files(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


def measure(server, folder):
    wait_until("the server is idle", lambda: server.busy() == 0 and server.metrics()["isotherm_http_connections"] <= 1, 60)
    return {"fds": server.fds(outside=folder), "resident_bytes": server.resident_bytes(), "files": count_files(folder)}


def run_chats(server, options, seconds, seed):
    deadline = time.monotonic() + seconds
    chats = [Chat(server, seed * 1000 + i, deadline) for i in range(options.chats)]
    for chat in chats:
        chat.start()
    for chat in chats:
        chat.join(seconds + 300)
        assert not chat.is_alive(), "a request hangs"
        if chat.failure:
            raise chat.failure
    return {name: sum(chat.counts[name] for chat in chats) for name in chats[0].counts}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--model", help="default: the tiny one; `real`: the real one")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    seconds = options.minutes * 60 if options.minutes else options.seconds
    model = real_model() if options.model == "real" else options.model or tiny_model()
    print(f"seed {options.seed}", flush=True)

    # The warm-up fills every budget, so that what grows after it is a leak. Small budgets make eviction and preemption part of it.
    with tempfile.TemporaryDirectory() as folder, \
            Server(model, "--kv-cache", "4M", "--prefix-cache-memory", "1M", "--prefix-cache-restore", "always", "--prefix-cache-disk", folder, "--prefix-cache-disk-size",
                   "64M", "--max-concurrency", "6", "--max-queue", "16", program=options.server,
                   env={"ASAN_OPTIONS": "quarantine_size_mb=16:" + os.environ.get("ASAN_OPTIONS", "")}) as server:
        print("warm-up:", run_chats(server, options, seconds / 3, options.seed), flush=True)
        before = measure(server, folder)
        # On a busy machine it may need more of it. What leaks goes on growing.
        for again in range(1, 3):
            print("before: ", before, flush=True)
            counts = run_chats(server, options, seconds / 3, options.seed + again)
            last, before = before, measure(server, folder)
            print("warm-up:", counts, flush=True)
            if before["resident_bytes"] - last["resident_bytes"] < MEMORY_GROWTH // 4:
                break
        print("before: ", before, flush=True)
        counts = run_chats(server, options, seconds / 3, options.seed + 3)
        after = measure(server, folder)
        print("counts: ", counts, flush=True)
        print("after:  ", after, flush=True)
        assert counts["finished"] > 0 and counts["cancelled"] > 0
        # The store's own files are counted as files; how many of them the catalogue holds open is its affair.
        assert after["files"] <= before["files"] + 8, "files grew"
        assert after["fds"] <= before["fds"] + 2, "descriptors grew"
        growth = after["resident_bytes"] - before["resident_bytes"]
        assert growth <= max(MEMORY_GROWTH, before["resident_bytes"] // 5), f"memory grew by {growth} bytes"
        reply = server.chat("Still there?", max_tokens=2)
        assert reply["usage"]["completion_tokens"] >= 1


if __name__ == "__main__":
    main()
