#!/usr/bin/env python3
"""Seeds that are not files of other tests: FOLDER/record holds headers of spans and checkpoints and their catalogue rows, of small geometries,
FOLDER/notes notes of catalogue rows, FOLDER/control messages of the control socket behind a byte that says what they are, FOLDER/tokenizer texts behind a byte that chooses the kind of vocabulary.

  make_seeds.py FOLDER --stamp FILE      standard library only, deterministic
"""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tokenizer"))
import lines

ALIGN = 4096


def round_up(value, unit):
    return (value + unit - 1) // unit * unit


SPAN, CHECKPOINT = 1, 2


def row(n_pages, page_tokens, page_bytes, chunk_bytes, runs=None, kind=SPAN):
    """The row of a record whose header takes one 4,096-byte block; its checksum is put right by the fuzz target."""
    chunks = round_up(ALIGN + n_pages * round_up(page_bytes, ALIGN), chunk_bytes) // chunk_bytes
    runs = runs or [(0, 7, chunks)]
    fixed = struct.pack("<8sII16sQQIIQ", b"Isotherm", 2, ALIGN, b"u" * 16, 11, 22, kind, chunk_bytes, 3)
    fixed += struct.pack("<QQQQ32s16s", 1, 2, 3, 4, b"f" * 32, b"t" * 16)
    position, boundary = (3 * page_tokens, 2) if kind == CHECKPOINT else (0, 0)
    fixed += struct.pack("<IIIIQqI76s", position, n_pages, page_tokens, len(runs), page_bytes, 1_700_000_000, boundary, b"")
    n_ids = page_tokens if kind == CHECKPOINT else n_pages * page_tokens
    assert len(fixed) == 256
    out = fixed + b"".join(struct.pack("<III", *run) for run in runs)
    return out + b"".join(struct.pack("<I", i) for i in range(n_ids))


def notes(*contents):
    return b"".join(struct.pack("<QQI", 3, 4, len(c)) + c for c in contents)


def write(folder, files):
    os.makedirs(folder, exist_ok=True)
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)


def main():
    folder, stamp = sys.argv[1], sys.argv[3]
    rows = {
        "one-page": row(1, 4, 100, 65536),
        "three-pages": row(3, 4, 5000, 4096, [(0, 1, 3), (0, 9, 2), (1, 0, 2)]),
        "many-tokens": row(2, 256, 4096, 262144),
        "checkpoint": row(70, 16, 4096, 65536, kind=CHECKPOINT),
        "checkpoint-in-pieces": row(3, 4, 5000, 4096, [(0, 1, 3), (0, 9, 2), (1, 0, 2)], kind=CHECKPOINT),
        "with-notes": row(1, 4, 100, 65536) + notes(b"abc", b""),
    }
    write(os.path.join(folder, "record"), {f"{name}.row": data for name, data in rows.items()})
    del rows["with-notes"]  # a header has none
    write(os.path.join(folder, "record"), {f"{name}.header": data.ljust(ALIGN, b"\0") for name, data in rows.items()})
    write(os.path.join(folder, "notes"), {"none": notes(), "one": notes(b"abc"), "three": notes(b"", b"x" * 40, b"yz")})
    one = struct.pack("<BBBB", 1, 2, 7, 0) + struct.pack("<6I", 60, 3, 3, 0, 1, 9) + bytes(range(16)) + b"k" * 48 + b"t" * 16 + bytes(24)
    assert len(one) == 132
    write(os.path.join(folder, "control"), {
        "header": b"\0" + struct.pack("<IHHiI", 0x31435349, 1, 3, 0, 8),
        "list": b"\3" + struct.pack("<Q", 77),
        "record": b"\4" + bytes(20),
        "evict": b"\5" + struct.pack("<I", 2) + bytes(32),
        "erase": b"\6" + bytes(28),
        "pin": b"\10" + bytes(16) + b"\1",
        "drain": b"\11\1",
        "rows": bytes([32]) + 2 * one,
        "figures": bytes([33]) + b"\5spans\0" + struct.pack("<Q", 5) + b"\6engine\1\5uring" + b"\4read\2" + bytes(27 * 8),
        "ids": bytes([34]) + bytes(16) + struct.pack("<6I", 5, 3, 2, 7, 8, 1) + bytes(20),
        "hello": bytes([35]) + struct.pack("<IIIQQQQ", 1, 4, 65536, 4096, 1, 1, 0) + bytes(48) + b"\1\0",
    })
    texts = [t.encode() for t in lines.lines(1, 200)] + lines.broken_lines(1, 40)
    write(os.path.join(folder, "tokenizer"), {f"{i}.text": bytes([i % 8]) + text for i, text in enumerate(texts)})
    with open(stamp, "w", encoding="utf-8") as file:
        file.write("done\n")


if __name__ == "__main__":
    main()
