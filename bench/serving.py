#!/usr/bin/env python3
"""What a user feels, measured through the real server: one claim a subcommand, each with its ceiling beside it.

  restart   process start to first token of a warm 7K-token chat after a restart, against the same chat cold
  gap       gaps between tokens of a running stream while a 14K-token prompt is prefilled cold beside it
  messages  time to first token of the same ~14K tokens in 4 and in 240 messages, cold and warm, interleaved
  retention a returning user after four others with 60 messages each, two with 240, and 200 short conversations
  idle      CPU time of a server that nobody asks anything

Usage: serving.py CLAIM --server build/engine/isotherm --model FILE [--rounds N]
Needs the Python standard library only.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORDS = ("river stone harbour window letter garden morning engine silver market captain winter ladder copper bridge "
         "lantern paper forest signal valley orchard anchor meadow tunnel harvest kettle compass feather island thunder").split()


class Server:
    """A server process on a free port; use as a context manager."""

    def __init__(self, binary, model, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen([binary, "serve", "--model", model, "--port", str(self.port), *flags],
                                        stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        deadline = time.monotonic() + 120
        while self.get("/health")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                sys.exit("the server did not start:\n" + self.log.read())
            time.sleep(0.002)
        self.ready_seconds = time.monotonic() - self.started
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGTERM)

    def stop(self, how):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)

    def get(self, path):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except OSError:
            return 0, b""

    def drain(self):
        """Waits until everything published is durable."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if json.loads(self.get("/cache")[1])["pending_bytes"] == 0:
                return
            time.sleep(0.02)
        sys.exit("the store did not become durable within 60 s")

    def chat(self, messages, max_tokens=1, times=None, **fields):
        """Streams one chat; returns (text, usage, seconds to the first token). times: gets the clock at each token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **fields}
        began = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            sys.exit(f"status {reply.status}: {reply.read().decode()}")
        text, usage, first = "", None, None
        for line in reply:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            part = json.loads(line[6:])
            if part.get("usage"):
                usage = part
            for choice in part.get("choices", []):
                if choice["delta"].get("content") or choice.get("finish_reason"):
                    first = first or time.monotonic() - began
                    if times is not None:
                        times.append(time.monotonic())
                text += choice["delta"].get("content") or ""
        return text, usage, first


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def conversation(rng, n_messages, n_words):
    """n_messages alternating messages that together have n_words words; the last one is the user's."""
    each, rest = divmod(n_words, n_messages)
    sizes = [each + (i < rest) for i in range(n_messages)]
    roles = ["user", "assistant"] if n_messages % 2 else ["system"] + ["user", "assistant"] * n_messages
    return [{"role": roles[i] if n_messages % 2 == 0 else roles[i % 2], "content": words(rng, size)}
            for i, size in enumerate(sizes)]


def cached(usage):
    return usage["usage"]["prompt_tokens_details"]["cached_tokens"], usage["usage"]["prompt_tokens"]


def table(rows):
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def restart(options):
    folder = tempfile.mkdtemp(prefix="isotherm-bench-")
    flags = ("--prefix-cache-disk", folder, "--prefix-cache-disk-size", "4G")
    chat = conversation(random.Random(7), 41, 6200)
    cold, warm, tokens = [], [], None
    try:
        for _ in range(options.rounds):
            shutil.rmtree(folder)
            with Server(options.server, options.model, *flags) as server:
                _, usage, _ = server.chat(chat)
                cold.append(time.monotonic() - server.started)
                server.drain()
                server.stop(signal.SIGKILL)
            with Server(options.server, options.model, *flags) as server:
                _, usage, first = server.chat(chat)
                warm.append((time.monotonic() - server.started, server.ready_seconds, first))
                tokens = cached(usage)
                size = os.path.getsize(options.model)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total, ready, first = (statistics.median(column) for column in zip(*warm))
    print(f"{tokens[1]} tokens in {len(chat)} messages, {tokens[0]} from disk after kill -9; median of {options.rounds}")
    table([("process start to first token", "seconds"), ("cold", f"{statistics.median(cold):.3f}"),
           ("warm after a restart", f"{total:.3f}"), ("  of it: start to ready", f"{ready:.3f}"),
           ("  of it: request to first token", f"{first:.3f}")])
    print(f"(start reads and packs {size / 1e6:.0f} MB of weights)")


def gap(options):
    gaps = []
    with Server(options.server, options.model, "--context", "16384") as server:
        for n in range(options.rounds):
            times = []
            stream = threading.Thread(target=lambda seed=n, seen=times: server.chat(
                [{"role": "user", "content": words(random.Random(seed), 20)}], 2500, seen, ignore_eos=True))
            stream.start()
            while len(times) < 32:
                time.sleep(0.005)
            alone = statistics.median(b - a for a, b in zip(times[8:], times[9:]))
            began = time.monotonic()
            _, usage, first = server.chat(conversation(random.Random(1000 + n), 41, 13700))
            ended = time.monotonic()
            inside = [b - a for a, b in zip(times, times[1:]) if b > began and a < ended]
            gaps.extend(inside)
            print(f"prefill of {cached(usage)[1]} tokens took {first:.2f} s; the stream got {len(inside)} tokens meanwhile "
                  f"(alone: one each {alone * 1e3:.1f} ms)")
            stream.join()
    gaps.sort()
    table([("gap between tokens", "ms"), ("median", f"{statistics.median(gaps) * 1e3:.0f}"),
           ("p99", f"{gaps[int(len(gaps) * 0.99)] * 1e3:.0f}"), ("largest", f"{gaps[-1] * 1e3:.0f}"), ("target, p99", "250")])


def messages(options):
    rows = {4: [[], []], 240: [[], []]}
    with Server(options.server, options.model, "--context", "16384") as server:
        for n in range(options.rounds):
            for count in rows:
                # the template adds about 4 tokens a message: fewer words in the chatty one
                chat = conversation(random.Random(f"{n}/{count}"), count, 12500 - 4 * count)
                for column in (0, 1):
                    _, usage, first = server.chat(chat)
                    rows[count][column].append(first / cached(usage)[1] * 14000)
    median = {count: [statistics.median(column) for column in columns] for count, columns in rows.items()}
    print(f"time to first token, scaled to 14,000 tokens; median of {options.rounds}")
    table([("messages", "cold s", "warm s")] + [(c, f"{m[0]:.3f}", f"{m[1]:.4f}") for c, m in median.items()] +
          [("240 / 4", f"{median[240][0] / median[4][0]:.3f}", f"{median[240][1] / median[4][1]:.3f}"),
           ("target", "<= 1.03", "<= 1.05")])


def retention(options):
    rng = random.Random(11)
    with Server(options.server, options.model) as server:
        mine = conversation(rng, 41, 3000)
        server.chat(mine)
        rows = [("other people's conversations meanwhile", "reused", "of")]
        for label, others in (("none", []), ("2 with 240 messages each", [(240, 3500)] * 2),
                              ("4 with 60 messages each", [(60, 3500)] * 4), ("200 short ones", [(3, 60)] * 200)):
            for count, size in others:
                server.chat(conversation(rng, count, size))
            _, usage, _ = server.chat(mine)
            have, total = cached(usage)
            rows.append((label, have, (total - 1) // 16 * 16))
        table(rows)


def idle(options):
    with Server(options.server, options.model) as server:
        server.chat([{"role": "user", "content": "hello"}])
        time.sleep(2)
        ticks = os.sysconf("SC_CLK_TCK")

        def used():
            with open(f"/proc/{server.process.pid}/stat", encoding="utf-8") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / ticks
        before, began = used(), time.monotonic()
        time.sleep(20)
        share = (used() - before) / (time.monotonic() - began)
    table([("idle server", "% of one CPU"), ("over 20 s", f"{share * 100:.2f}"), ("target", "< 1")])


def main():
    claims = {f.__name__: f for f in (restart, gap, messages, retention, idle)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claim", choices=claims)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    claims[options.claim](options)


if __name__ == "__main__":
    main()
