#!/usr/bin/env python3
"""The rooms' arrows run one way: reads every #include of the tree and fails on one that goes against the plan.

Usage: arrows.py SOURCE_ROOT
"""
import os
import re
import sys

# Which rooms a file of a room may include from. The first matching prefix decides.
ROOMS = [
    ("formats", ["formats"]),
    ("kernels", ["kernels"]),
    ("cachestore", ["cachestore", "formats", "kernels"]),
    ("engine/tokenizer", ["engine/tokenizer", "formats"]),
    ("engine/model", ["engine/model", "engine/tokenizer/errors.h", "formats", "kernels"]),
    ("engine/runtime", ["engine/runtime", "engine/model", "engine/tokenizer", "cachestore/cachestore.h", "formats", "kernels"]),
    ("engine/serve", ["engine/serve", "engine/runtime", "engine/model/model.h", "engine/tokenizer",
                      "cachestore/cachestore.h"]),
    ("engine", ["engine", "cachestore/cachestore.h", "formats", "kernels"]),
    ("tools/admin", ["tools/admin", "cachestore/cachestore.h", "cachestore/inspect.h"]),
    ("tools", ["tools", "engine", "cachestore", "formats", "kernels"]),
    ("bench", ["bench", "engine", "cachestore", "formats", "kernels"]),
    ("examples", ["cachestore/cachestore.h"]),
    ("tests", ["tests", "bench", "engine", "cachestore", "formats", "kernels"]),
]
OURS = ("formats/", "kernels/", "cachestore/", "engine/", "tools/", "bench/", "examples/", "tests/")
# Libraries that exactly one place of the product knows; tests and benches may use them to measure and to inject faults.
ONLY = {
    "rocksdb/": ["cachestore/catalog"],
    "liburing": ["cachestore/io/"],
    "microhttpd": ["engine/serve/"],
    "immintrin": ["kernels/"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def sources(root):
    for folder, folders, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        folders[:] = [f for f in folders if not f.startswith((".", "build"))]
        for name in files:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.normpath(os.path.join(relative, name))


def inside(path, prefix):
    return path == prefix or path.startswith(prefix + "/") or (prefix.endswith(".h") and path == prefix)


def check(root):
    wrong = []
    graph = {}
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8") as source:
            lines = source.readlines()
        allowed = next((ok for prefix, ok in ROOMS if path.startswith(prefix)), None)
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1)
            where = f"{path}:{number}: includes {target}"
            for library, owners in ONLY.items():
                if target.startswith(library) and not path.startswith(("tests/", "bench/")) and not any(path.startswith(o) for o in owners):
                    wrong.append(f"{where}: only {', '.join(owners)} may")
            if not target.startswith(OURS):
                continue
            graph.setdefault(path, []).append(target)
            if not os.path.exists(os.path.join(root, target)) and not target.endswith("_generated.h"):
                wrong.append(f"{where}: no such file")
            if allowed is not None and not any(inside(target, ok) for ok in allowed):
                wrong.append(f"{where}: against the arrows")
    wrong.extend(circles(graph))
    return wrong


def circles(graph):
    """Include circles among our headers, each named once."""
    done, found = set(), []

    def walk(path, trail):
        if path in trail:
            found.append("circle: " + " -> ".join(trail[trail.index(path):] + [path]))
            return
        if path in done:
            return
        for target in graph.get(path, []):
            walk(target, trail + [path])
        done.add(path)

    for path in sorted(graph):
        walk(path, [])
    return found


def main():
    root = sys.argv[1]
    count = sum(1 for _ in sources(root))
    if count < 10:
        print(f"only {count} source files under {root}: wrong folder?")
        return 1
    wrong = check(root)
    for line in wrong:
        print(line)
    print(f"{count} files, {len(wrong)} wrong includes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
