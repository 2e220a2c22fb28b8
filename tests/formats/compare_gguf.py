#!/usr/bin/env python3
"""Every dequantiser against the PyPI package `gguf` on random blocks, bit for bit (either zero counts as zero).

  compare_gguf.py DEQUANTIZE_PROGRAM
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from reference_python import require

require("gguf", "numpy")

import gguf
import numpy

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
BLOCKS = 2000
# Where a block keeps its f16 scales: their top exponent bit is cleared, so that they are finite.
SCALES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "F32": [2], "BF16": [0]}


def compare(program, name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
    for offset in SCALES[name]:
        blocks[:, offset + 1] &= 0xBF
    expected = gguf.quants.dequantize(blocks.reshape(-1), kind) if name not in ("F32", "F16") else \
        blocks.view(numpy.float32 if name == "F32" else numpy.float16).astype(numpy.float32)
    expected = numpy.asarray(expected, dtype=numpy.float32).reshape(-1)

    run = subprocess.run([program, str(int(kind)), str(BLOCKS * elements)], input=blocks.tobytes(), capture_output=True, check=False)
    if run.returncode != 0:
        print(f"{name}: {run.stderr.decode().strip()}")
        return False
    found = numpy.frombuffer(run.stdout, dtype=numpy.float32)
    if not numpy.isfinite(expected).all() or found.shape != expected.shape:
        print(f"{name}: {found.shape} values, expected {expected.shape} finite ones")
        return False
    different = numpy.flatnonzero(found != expected)
    if different.size:
        i = int(different[0])
        print(f"{name}: {different.size} of {expected.size} values differ, the first is {i}: {found[i]!r}, expected {expected[i]!r}")
        return False
    print(f"{name}: {expected.size} values equal, from {expected.min():g} to {expected.max():g}")
    return True


def main():
    rng = numpy.random.default_rng(20)
    results = [compare(sys.argv[1], name, rng) for name in TYPES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
