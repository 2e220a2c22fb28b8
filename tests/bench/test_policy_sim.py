#!/usr/bin/env python3
"""bench/policy-sim on traces so small that what must come out is known: python3 test_policy_sim.py POLICY_SIM"""
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile

PROGRAM = sys.argv[1]
BLOCK = 64
PAGE_BYTES = 4 << 20  # of the dense model: 32 tokens of 128 KiB


def run(folder, lines, *options, code=0):
    path = os.path.join(folder, "trace.jsonl.gz")
    with gzip.open(path, "wt") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")
    done = subprocess.run([PROGRAM, path, *options], capture_output=True, text=True)
    assert done.returncode == code, (options, done.returncode, done.stdout, done.stderr)
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in done.stdout.splitlines()
            if line.startswith("| ")]
    head = rows[0] if rows else []
    return done.stdout, [dict(zip(head, row)) for row in rows[1:]]


def number(text):
    return float(text.split()[0])


def pages(n):
    return f"{n * PAGE_BYTES / 1e9:.9f}G"


def service(folder):
    """Four prompts in turn, of a block of 16 pages that comes again and a page that does not."""
    lines = [{"timestamp": 1000 * i, "input_length": 512 + 32, "output_length": 1, "hash_ids": [i % 4, 100 + i]}
             for i in range(20)]
    out, rows = run(folder, lines, "--model", "dense", "--budget", f"{pages(3 * 17)},{pages(4 * 16 + 20)}",
                    "--within", "0")
    matchable = 16 * 512 / (20 * 544)
    assert f"{100 * matchable:.2f} % matchable" in out, out
    small, large = rows[:5], rows[5:]
    for row in large:  # all that comes again fits
        assert number(row["of matchable"]) >= 0 and number(row["tokens reused"]) == round(100 * matchable, 2), row
        assert int(row["victims"]) == 0, row
    by = {row["victim"]: row for row in small}
    # Whoever evicts the oldest of four where three fit never finds anything.
    assert number(by["lru"]["tokens reused"]) == 0, by
    assert number(by["store"]["tokens reused"]) == number(by["exact"]["tokens reused"]) == 0, by
    # Who knows the future keeps two and the part of a third that there is room for: more than half.
    assert number(by["future"]["tokens reused"]) > 50 * matchable, by


def thinned(positions, k):
    """The formula of the placement, written again."""
    positions = sorted(positions)
    while len(positions) > k:
        end = positions[-1]

        def cost(i):
            before = positions[i - 1] if i else 0
            return (positions[i] - before) * math.log((end - positions[i] + 64) / (end - positions[i + 1] + 64))

        del positions[min(range(len(positions) - 2), key=cost)]
    return positions


def session(sizes, kept, start=0, step=10):
    """One chain of an agent: its requests have so many blocks and keep so many of the one before."""
    requests, used = [], 1
    for i, (n, lcp) in enumerate(zip(sizes, kept)):
        requests.append({"t": start + step * i, "n": n, "lcp": lcp, "new": [[used, n - lcp]] if n > lcp else []})
        used += n - lcp
    return {"id": "x", "block_size": BLOCK, "tool_tokens": 0, "system_tokens": 0, "requests": requests}


def placement(folder):
    """A chain that grows by a block 20 times, then goes on from its 10th."""
    lines = [session(list(range(1, 21)) + [30], [0] + list(range(1, 20)) + [10])]
    _, rows = run(folder, lines, "--placement", "1,8,all")
    grown = sum(range(1, 20))
    path = []
    for n in range(1, 21):
        path = thinned(path + [n * BLOCK], 8)
    resumes = max((p for p in path if p <= 10 * BLOCK), default=0) // BLOCK
    assert 0 < resumes <= 10
    want = {"1": grown, "8": grown + resumes, "all": grown + 10}
    for row in rows:
        share = 100 * want[row["checkpoints a path"]] / (grown + 10)
        assert abs(number(row["tokens reused, of matchable"]) - share) < 0.001, (row, share)
    assert rows[1]["on a path, mean and most"].endswith(" 8"), rows


def same(rows):
    """The store's choice is the one of who looks at all, victim for victim."""
    store, exact = ({name: text for name, text in row.items() if name not in ("victim", "processor s")}
                    for row in rows if row["victim"] in ("store", "exact"))
    assert store == exact and int(store["victims"]) > 0, rows


def worth(folder):
    """Users who grow long conversations, and others who come once: what is deep goes last."""
    lines = [session([4 * i for i in range(1, 11)], [4 * i for i in range(10)], step=60) for _ in range(6)]
    lines += [session([3], [0]) for _ in range(60)]
    options = ["--users", "8", "--kv", "20000", "--state", "6600000"]
    _, rows = run(folder, lines, *options, "--budget", "0.15G,2G")
    tight = {row["victim"]: number(row["of matchable"]) for row in rows[1:6]}
    assert tight["store"] >= tight["lru"], tight
    same(rows[1:6])
    assert tight["future"] >= tight["store"] - 0.001, tight
    assert len({row["tokens reused"] for row in rows if row["budget"] != "0.15G"}) == 1, rows
    _, rows = run(folder, lines, *options, "--budget", "0.1G", "--disk", "2G", "--policy", "store,exact")
    same(rows)
    assert number(rows[0]["from disk"]) > 0 and number(rows[0]["of matchable"]) == 100, rows


def authors(folder):
    """Messages are a tree of their own: an edit goes back behind the first answer."""
    system, first = ["s", 95, 1], [["u", 59, 2], ["a", 27, 3]]
    prompt = [system, *first, ["u", 27, 4]]
    lines = [{"author": 0, "book": 0, "prelude": 1, "msgs": [system, first[0]]},
             {"author": 0, "book": 0, "think_ms": 1000, "out": 32, "msgs": [system, first[0]], "reply": [first[1]]},
             {"author": 0, "book": 0, "think_ms": 1000, "out": 32, "msgs": prompt, "reply": [["a", 27, 5]]},
             {"author": 0, "book": 0, "think_ms": 1000, "out": 32, "msgs": prompt[:3] + [["u", 27, 6]],
              "reply": [["a", 27, 7]]}]
    _, rows = run(folder, lines, "--placement", "8")
    # 164 tokens, of which pages of 128 are matched (the last is for the logits: 160 of 164); then 196, twice.
    assert number(rows[0]["tokens reused, of matchable"]) == 100, rows


def refused(folder):
    run(folder, [{"what": 1}], code=2)
    run(folder, [session([2], [1])], code=2)
    run(folder, [session([1], [0])], "--budget", "12", code=2)


with tempfile.TemporaryDirectory() as folder_name:
    for check in (service, placement, worth, authors, refused):
        check(folder_name)
        print("ok:", check.__name__)
