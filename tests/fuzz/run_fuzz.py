#!/usr/bin/env python3
"""Builds one libFuzzer target in a build folder of its own and runs it for a while: no finding, or the input that makes one.

  run_fuzz.py FOLDER TARGET SEEDS SECONDS      FOLDER is made; SEEDS is a folder of seed files

$ISOTHERM_FUZZ_SECONDS, where it is set, is how long instead. What is found interesting stays in FOLDER/corpus/TARGET for the next run. Exit 77
where clang has no libFuzzer.
"""
import fcntl
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAX_INPUT_BYTES = 16384


def skip(reason):
    print(f"SKIPPED: fuzzing needs clang with libFuzzer: {reason}", file=sys.stderr)
    sys.exit(77)


def require_libfuzzer(folder):
    if not shutil.which("clang"):
        skip("no clang")
    probe = "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n) { return d[0] == 1 && n > 9 ? -1 : 0; }\n"
    command = ["clang", "-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", os.path.join(folder, "probe")]
    result = subprocess.run(command, input=probe, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        skip((result.stderr.strip().splitlines() or ["it does not link"])[0])


def build(folder, target):
    """The program's path. Targets share the build folder, so only one at a time builds."""
    build_folder = os.path.join(folder, "build")
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(build_folder, "build.ninja")):
            shutil.rmtree(build_folder, ignore_errors=True)
            subprocess.run(["meson", "setup", build_folder, ROOT, "-Dfuzz=true", "-Db_sanitize=address,undefined", "-Db_lundef=false",
                            "--buildtype=debugoptimized"], env={**os.environ, "CC": "clang"}, stdout=subprocess.DEVNULL, check=True)
        subprocess.run(["ninja", "-C", build_folder, f"tests/fuzz/fuzz_{target}"], stdout=subprocess.DEVNULL, check=True)
    return os.path.join(build_folder, "tests", "fuzz", f"fuzz_{target}")


def small_seeds(folder, seeds):
    """A folder with the seed files that are short enough to be mutated well."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for base, _, names in os.walk(seeds):
        for name in names:
            path = os.path.join(base, name)
            if os.path.getsize(path) <= MAX_INPUT_BYTES:
                shutil.copyfile(path, os.path.join(folder, name))
    return folder


def main():
    folder, target, seeds = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
    seconds = int(os.environ.get("ISOTHERM_FUZZ_SECONDS", sys.argv[4]))
    os.makedirs(folder, exist_ok=True)
    require_libfuzzer(folder)
    program = build(folder, target)
    corpus = os.path.join(folder, "corpus", target)
    findings = os.path.join(folder, "findings", target)
    for path in (corpus, findings):
        os.makedirs(path, exist_ok=True)

    command = [program, f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-timeout=10", "-rss_limit_mb=1024",
               "-malloc_limit_mb=256", "-use_value_profile=1", "-print_final_stats=1", f"-artifact_prefix={findings}{os.sep}", corpus,
               small_seeds(os.path.join(folder, "seeds", target), seeds)]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    lines = result.stderr.splitlines()
    if result.returncode != 0:
        print("\n".join(lines[-60:]))
        print(f"{target}: FOUND something, the input is in {findings}")
        return 1
    executed = next((line.split()[-1] for line in lines if line.startswith("stat::number_of_executed_units")), "0")
    print(f"{target}: {executed} inputs in {seconds} s, no finding")
    return 0 if int(executed) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
