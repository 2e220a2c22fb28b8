#!/usr/bin/env python3
"""The disk's benchmarks, each so small that its times mean nothing: what they count must be as claimed, and what they
print must be there. python3 test_small_runs.py PROGRAM FOLDER [ARGUMENT...]; {} in an argument is a new folder below
FOLDER, TRACE a trace of twenty requests."""
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

EXPECTED = {
    "disk_restore": [r"turned over: 1\.\d times the budget written", r"medians: ceiling [\d.]+ GB/s \(\d in flight\), restore [\d.]+ GB/s",
                     r"beside prefill: ceiling [\d.]+ GB/s \(\d in flight\), restore [\d.]+ GB/s",
                     r"beside restores +per GB the thread that reads ran [1-9]\d* ms"],
    "disk_publish": [r"first: ceiling [\d.]+ GB/s \(\d in flight\), publish [\d.]+ GB/s", r"again: ceiling .* publish", r"[1-9]\d* syncs"],
    "predicted": [rf"^{load} +{phase} +{n} restores: taken / predicted p10 [\d.]+ +p50 [\d.]+ +p90 [\d.]+; within 1\.25: \d+ %"
                  for load in ("idle", "beside prefill", "beside writes", "in turns") for phase, n in (("learning", 2), ("learned", 3))],
    "host_restore": [r"[1-9]\d* batches of copies", r"medians: memcpy [\d.]+ GB/s, by 2 threads [\d.]+; restore [\d.]+ GB/s"],
    "flat": [],
    "disk_author": [r"^20 requests", r"write: admitted 3\.0 MiB", r"amplification \d\.\d{3}; all files", r"above it in 0 of [1-9]\d* samples"],
    "registered": [r"^4 MiB registered in", r"^write +as it is +[\d.]+ GB/s +[\d.]+ ms of processor a GiB", r"^read +one piece, files, buffers "],
    "stall": [r"at work, ", r"disk frozen, .*: \d+ pages published", r"thawed, ",
              r"control  woken late"],
    "memory": [r"50 spans on disk", r"a checkpoint +[1-9]\d* bytes counted"],
}


def flat(out):
    """Rows, requests and copies do not depend on the number of messages."""
    rows = {}
    for line in out.splitlines()[2:]:
        parts = line.split("|")
        left = re.match(r"(.*?)\s+[\d.]+ ms\s+[\d.]+ ms\s+[\d.]+%\s+\d+%\s+(\d+)", parts[0])
        wrote, read = parts[1].split(), parts[3].split()
        rows[left.group(1)] = {"spans": int(left.group(2)), "SQEs": int(wrote[0]), "rows": int(wrote[4]),
                               "copies": int(wrote[5]), "read SQEs": int(read[0]), "read copies": int(read[3])}
    one = rows["1 message"]
    assert one["rows"] == one["spans"] and one["copies"] == 0 and one["read copies"] == 0, rows
    for name in ("64 messages", "512 messages", "4,096 messages"):
        for what in ("spans", "rows", "read SQEs", "copies"):
            assert rows[name][what] == one[what], (name, what, rows)
    many = rows["512 publishes"]
    assert many["rows"] == many["spans"] and many["read SQEs"] <= one["read SQEs"] + many["spans"], rows


def main():
    program, folder, *arguments = sys.argv[1:]
    name = program.rsplit("/", 1)[-1]
    with tempfile.TemporaryDirectory(dir=folder) as new:
        trace = os.path.join(new, "trace.jsonl.gz")
        with gzip.open(trace, "wt") as f:
            for i in range(20):  # a block that four have in common, and one that nobody else has
                f.write(json.dumps({"timestamp": 1000 * i, "input_length": 1024, "output_length": 1, "hash_ids": [i % 4, 100 + i]}) + "\n")
        arguments = [a.replace("{}", new).replace("TRACE", trace) for a in arguments]
        done = subprocess.run([program] + arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    for pattern in EXPECTED[name]:
        assert re.search(pattern, done.stdout, re.M), (pattern, done.stdout)
    if name == "flat":
        flat(done.stdout)


main()
