#!/usr/bin/env python3
"""What a user feels, measured through the real server: one claim a subcommand, each with its ceiling beside it.

  restart   process start to first token of a warm 7K-token chat after a restart, against the same chat cold
  gap       gaps between tokens of a running stream while a 14K-token prompt is prefilled cold beside it
  beside    the same while others' chats are restored from disk beside it, go on, are published and written
  messages  time to first token of the same 14,000 tokens in 4 and in 240 messages, cold and warm, interleaved
  retention a returning user after two others with 240 messages each, four with 60, 200 short conversations, and kill -9
  idle      CPU time of a server that nobody asks anything

Usage: serving.py CLAIM --server build/engine/isotherm --model FILE [--rounds N]
Exit code 1, after a line that says why, when a target is missed or a measurement is not what it claims to be. Needs the Python
standard library only.
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

    def post(self, path, fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            sys.exit(f"{path}: status {reply.status}: {reply.read().decode()}")
        return json.loads(reply.read())

    def metric(self, name):
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        sys.exit(f"/metrics has no {name}")

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

    def chat(self, messages, max_tokens=1, times=None, until=None, **fields):
        """Streams one chat; returns (text, usage, seconds to the first token). times: gets the clock at each token; until: an event
        at which the client leaves."""
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
            if until and until.is_set():
                connection.close()
                break
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


class Sized:
    """Conversations of random words with a wanted number of tokens. Words are tokenized one by one, so counts add up."""

    def __init__(self, server):
        def tokens(text):
            return len(server.post("/tokenize", {"content": text})["tokens"])
        self.first, self.later = {w: tokens(w) for w in WORDS}, {w: tokens(" " + w) for w in WORDS}
        roles = ("user", "assistant", "user")
        one, three = (server.chat([{"role": r, "content": WORDS[0]} for r in roles[:n]])[1]["usage"]["prompt_tokens"] for n in (1, 3))
        self.message = (three - one) // 2 - self.first[WORDS[0]]

    def conversation(self, rng, n_messages, n_tokens):
        made, used = [], 0
        for i, message in enumerate(conversation(rng, n_messages, n_messages)):
            content, used = message["content"], used + self.message + self.first[message["content"]]
            while used < n_tokens * (i + 1) / n_messages:
                word = rng.choice(WORDS)
                content, used = content + " " + word, used + self.later[word]
            made.append({"role": message["role"], "content": content})
        return made


class Stalls(threading.Thread):
    """A clock that ought to tick every 5 ms: where it was late, the machine gave this process no time, and nobody else either."""

    def __init__(self):
        super().__init__(daemon=True)
        self.late, self.running = [], True

    def run(self):
        while self.running:
            began = time.monotonic()
            time.sleep(0.005)
            late = time.monotonic() - began - 0.005
            if late > 0.01:
                self.late.append((began, began + 0.005 + late, late))

    def largest(self, begin, end):
        return max((late for b, e, late in self.late if b < end and e > begin), default=0)


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
    want = (tokens[1] - 1) // 16 * 16
    return [f"{tokens[0]} of {want} tokens came back"] if tokens[0] != want else []


def deliveries(times):
    """(time, index of its first token): tokens that came together are one delivery, so that they do not thin out the gaps."""
    return [(t, i) for i, t in enumerate(times) if i == 0 or t - times[i - 1] > 0.001]


class Stream:
    """A chat that streams for as long as the block runs, and the gaps between its deliveries."""

    def __init__(self, server, seed):
        self.times, self.enough = [], threading.Event()
        self.thread = threading.Thread(daemon=True, target=lambda: server.chat(
            [{"role": "user", "content": words(random.Random(seed), 20)}], 8000, self.times, self.enough, ignore_eos=True))

    def __enter__(self):
        self.thread.start()
        deadline = time.monotonic() + 60
        while len(self.times) < 64:
            if not self.thread.is_alive() or time.monotonic() > deadline:
                sys.exit("the stream that the gaps are taken of did not get going")
            time.sleep(0.005)
        self.alone = (self.times[63] - self.times[16]) / 47
        return self

    def __exit__(self, *_):
        self.enough.set()
        self.thread.join()

    def gaps(self, began, ended):
        """(seconds, from, to, token) of those that reach into that time."""
        if not self.thread.is_alive():
            sys.exit("the stream ended before what it was to run beside did: there is nothing to measure at its end")
        seen = deliveries(list(self.times))
        return [(b - a, a, b, i) for (a, _), (b, i) in zip(seen, seen[1:]) if b > began and a < ended]


def gap(options):
    prompt_tokens, largest_shown = 14000, 5
    gaps, missed, stalls = [], [], Stalls()
    stalls.start()
    with Server(options.server, options.model, "--context", "16384") as server:
        sized = Sized(server)
        for n in range(options.rounds):
            with Stream(server, n) as stream:
                began = time.monotonic()
                _, usage, first = server.chat(sized.conversation(random.Random(1000 + n), 41, prompt_tokens))
                inside = stream.gaps(began, time.monotonic())
            gaps.extend(inside)
            have, total = cached(usage)
            print(f"round {n + 1}: prefill of {total} tokens ({have} of them cached) took {first:.2f} s; the stream got {len(inside)} "
                  f"deliveries meanwhile (alone: a token each {stream.alone * 1e3:.1f} ms); its largest gaps:")
            if have > total // 20:
                missed.append(f"round {n + 1} was not cold: {have} of {total} tokens were cached")
            table([("gap, ms", "began after the prefill did, s", "of the prefill", "token of the stream", "machine stalled meanwhile, ms")] +
                  [(f"{g * 1e3:.0f}", f"{a - began:.3f}", f"{(a - began) / first:.1%}", i, f"{stalls.largest(a, b) * 1e3:.0f}")
                   for g, a, b, i in sorted(inside, reverse=True)[:largest_shown]])
            print()
    stalls.running = False
    values = sorted(g for g, *_ in gaps)
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    print(f"{len(values)} gaps of {options.rounds} rounds")
    table([("gap between tokens", "ms"), ("median", f"{statistics.median(values) * 1e3:.0f}"), ("p99", f"{p99 * 1e3:.0f}"),
           ("largest", f"{values[-1] * 1e3:.0f}"), ("target, p99", "250")])
    if len(values) < 300:
        missed.append(f"{len(values)} gaps are too few for a 99th percentile")
    if p99 >= 0.25:
        missed.append(f"p99 is {p99 * 1e3:.0f} ms")
    return missed


def beside(options):
    prompt_tokens, reply_tokens = 4000, 32
    folder = tempfile.mkdtemp(prefix="isotherm-bench-")
    flags = ("--prefix-cache-disk", folder, "--prefix-cache-disk-size", "8G", "--prefix-cache-restore", "always")
    rows = [("restored from disk, tokens", "first token, ms", "largest gap meanwhile, ms", "and until all was written, ms",
             "alone, ms a token", "machine stalled meanwhile, ms")]
    missed, stalls = [], Stalls()
    try:
        with Server(options.server, options.model, *flags) as server:
            sized = Sized(server)
            chats = [sized.conversation(random.Random(2000 + n), 41, prompt_tokens) for n in range(options.rounds)]
            for chat in chats:
                server.chat(chat)
            server.drain()
        stalls.start()
        with Server(options.server, options.model, *flags) as server:
            for n, chat in enumerate(chats):
                with Stream(server, n) as stream:
                    began = time.monotonic()
                    _, usage, first = server.chat(chat, reply_tokens, ignore_eos=True)
                    ended = time.monotonic()
                    server.drain()
                    written = time.monotonic()
                    meanwhile, after = (max(g for g, *_ in stream.gaps(*span)) for span in ((began, ended), (ended, written)))
                disk, (have, total) = usage["x_isotherm"]["tokens_disk"], cached(usage)
                rows.append((f"{disk} of {total}", f"{first * 1e3:.0f}", f"{meanwhile * 1e3:.0f}", f"{after * 1e3:.0f}",
                             f"{stream.alone * 1e3:.1f}", f"{stalls.largest(began, written) * 1e3:.0f}"))
                if have != (total - 1) // 16 * 16 or have - disk > 64:  # the stream's chat begins with the same few
                    missed.append(f"{have} of {total} tokens were reused, {disk} of them from disk")
                if max(meanwhile, after) >= 0.1:
                    missed.append(f"a gap of {max(meanwhile, after) * 1e3:.0f} ms")
    finally:
        stalls.running = False
        shutil.rmtree(folder, ignore_errors=True)
    table(rows)
    print("target: every gap under 100 ms")
    return missed


def messages(options):
    n_tokens, warm_repeats, counts = 14000, 5, (4, 240)
    rows = {count: {"cold": [], "warm": [], "tokens": set(), "forwards": set(), "cached": []} for count in counts}
    missed = []
    # Chunks by step time would differ with the machine's mood; with a fixed size the work can be compared by count.
    with Server(options.server, options.model, "--context", "16384", "--prefill-chunk-size", "512") as server:
        sized = Sized(server)
        for n in range(options.rounds):
            chats = {count: sized.conversation(random.Random(f"{n}/{count}"), count, n_tokens) for count in counts}
            warm = {count: [] for count in counts}
            for count in counts if n % 2 else counts[::-1]:
                before = server.metric("isotherm_forwards_total")
                _, usage, first = server.chat(chats[count])
                rows[count]["cold"].append(first)
                rows[count]["forwards"].add(int(server.metric("isotherm_forwards_total") - before))
                rows[count]["tokens"].add(cached(usage)[1])
                if cached(usage)[0] > n_tokens // 100:
                    missed.append(f"a cold prompt was not cold: {cached(usage)}")
            for repeat in range(warm_repeats):
                for count in counts if (n + repeat) % 2 else counts[::-1]:
                    _, usage, first = server.chat(chats[count])
                    warm[count].append(first)
                    have, total = cached(usage)
                    if have != (total - 1) // 16 * 16:
                        missed.append(f"a warm prompt reused {have} of {total} tokens")
            for count in counts:
                rows[count]["warm"].append(statistics.median(warm[count]))
    few, many = (rows[count] for count in counts)
    ratios = {kind: [b / a for a, b in zip(few[kind], many[kind])] for kind in ("cold", "warm")}
    print(f"time to first token, medians of {options.rounds} rounds, warm ones of {warm_repeats} requests each")
    table([("messages", "tokens", "forward passes, cold", "cold s", "warm ms")] +
          [(count, "/".join(map(str, sorted(row["tokens"]))), "/".join(map(str, sorted(row["forwards"]))),
            f"{statistics.median(row['cold']):.3f}", f"{statistics.median(row['warm']) * 1e3:.1f}") for count, row in rows.items()] +
          [(f"{counts[1]} / {counts[0]}, paired", "", "", *(f"{statistics.median(r):.3f}" for r in ratios.values())),
           ("  from .. to", "", "", *(f"{min(r):.3f} .. {max(r):.3f}" for r in ratios.values())),
           ("target", "equal", "equal", "<= 1.03", "<= 1.05")])
    # Of n independent pairs, all lie on one side of the true median with probability 2^(1-n).
    print(f"the true median ratio lies in the range with {1 - 2 ** (1 - options.rounds):.0%}")
    sizes = few["tokens"] | many["tokens"]
    if max(sizes) > 1.002 * min(sizes):
        missed.append(f"the prompts differ in size: {sorted(sizes)} tokens")
    if len(few["forwards"] | many["forwards"]) > 1:
        missed.append(f"forward passes differ: {sorted(few['forwards'])} and {sorted(many['forwards'])}")
    for kind, target in (("cold", 1.03), ("warm", 1.05)):
        if statistics.median(ratios[kind]) > target:
            missed.append(f"{kind}: {counts[1]} messages take {statistics.median(ratios[kind]):.3f} times as long as {counts[0]}")
    return missed


def retention(options):
    rng, missed = random.Random(11), []
    folder = tempfile.mkdtemp(prefix="isotherm-bench-")
    flags = ("--prefix-cache-disk", folder, "--prefix-cache-disk-size", "8G")
    mine = conversation(rng, 41, 3000)
    rows = [("other people's conversations since the last row", "their tokens", "reused", "of", "not reused because")]

    def come_back(server, label, theirs):
        _, usage, _ = server.chat(mine)
        have, total = cached(usage)
        want, why = (total - 1) // 16 * 16, usage["x_isotherm"]["miss"]
        rows.append((label, theirs, have, want, "" if have == want else why))
        if have != want:
            missed.append(f"after {label}: {have} of {want} tokens reused, {want - have} fewer than there are ({why})")

    try:
        with Server(options.server, options.model, *flags) as server:
            server.chat(mine)
            for label, others in (("none", []), ("2 with 240 messages each", [(240, 3500)] * 2),
                                  ("4 with 60 messages each", [(60, 3500)] * 4), ("200 short ones", [(3, 60)] * 200)):
                theirs = 0
                for count, size in others:
                    _, usage, _ = server.chat(conversation(rng, count, size))
                    theirs += cached(usage)[1]
                come_back(server, label, theirs)
            device = json.loads(server.get("/cache")[1])["device"]
            server.drain()
            server.stop(signal.SIGKILL)
        with Server(options.server, options.model, *flags) as server:
            come_back(server, "kill -9 and a restart", 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table(rows)
    print(f"arena: {device['pages_total'] * 16} tokens, {device['pages_cached'] * 16} of them cached before the end, "
          f"{device['evicted_spans']} spans evicted (with none evicted, only the index and the disk are tried)")
    return missed


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
    return [f"an idle server took {share:.2%} of a CPU"] if share >= 0.01 else []


def main():
    claims = {f.__name__: f for f in (restart, gap, beside, messages, retention, idle)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claim", choices=claims)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    missed = claims[options.claim](options)
    for line in missed:
        print("MISSED: " + line)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
