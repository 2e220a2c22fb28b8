#!/usr/bin/env python3
"""A store that was written once and is kept in the tree: this build reads it, and its bytes lie where docs/format.md says.

  test_golden_store.py ADMIN GOLDEN_STORE DATA_FOLDER
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

ADMIN, GOLDEN, DATA = (os.path.abspath(a) for a in sys.argv[1:4])
CHUNK, PAGE_TOKENS, PAGE_BYTES, STRIDE = 8192, 4, 100, 4096
# docs/format.md, "Record header": offset and struct code of each field.
FIELDS = {"magic": (0, "8s"), "version": (8, "I"), "header_bytes": (12, "I"), "uuid": (16, "16s"), "nonce": (32, "Q"), "sequence": (40, "Q"),
          "kind": (48, "I"), "chunk_bytes": (52, "I"), "purge_epoch": (56, "Q"), "key": (64, "2Q"), "parent": (80, "2Q"),
          "fingerprint": (96, "32s"), "tenant": (128, "16s"), "position": (144, "I"), "pages": (148, "I"), "page_tokens": (152, "I"),
          "runs": (156, "I"), "page_bytes": (160, "Q"), "created": (168, "q"), "flags": (176, "I"), "zero": (180, "76s")}
BOUNDARIES = ["turn", "system", "branch", "end"]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


class GoldenStore(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="golden-test-", dir=".")
        self.addCleanup(folder.cleanup)
        with tarfile.open(os.path.join(DATA, "golden_store.tar.xz")) as tar:
            tar.extractall(folder.name)
        self.store = os.path.join(os.path.abspath(folder.name), "store")
        with open(os.path.join(DATA, "golden_store.json"), encoding="utf-8") as file:
            self.expected = json.load(file)

    def records(self):
        result = run(ADMIN, self.store, "ls", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def known(self, records):
        """Without what cachestore-admin did not say yet when the store was made."""
        return [{name: record[name] for name in known} for record, known in zip(records, self.expected)] + records[len(self.expected):]

    def restores(self, how="check", says=""):
        result = run(GOLDEN, self.store, how)
        self.assertEqual((result.returncode, result.stderr), (0, says))

    def test_is_what_its_maker_says(self):
        spans = [r for r in self.expected if r["kind"] == "span"]
        self.assertEqual(sorted((r["first_position"], r["tokens"]) for r in spans),
                         [(0, 8), (0, 16), (16, 16), (24, 12), (32, 8)])
        self.assertGreaterEqual({r["boundary"] for r in self.expected}, {None, "system", "turn"})
        self.assertEqual({r["tenant"] for r in spans}, {"0" * 32, "010203" + "0" * 26})

    def test_is_listed_and_whole(self):
        self.assertEqual(self.known(self.records()), self.expected)
        result = run(ADMIN, self.store, "verify")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual(json.loads(run(ADMIN, self.store, "status", "--json").stdout)["notes"], 2)

    def test_is_restored_byte_by_byte_with_its_notes(self):
        self.restores()
        self.restores()  # after the first one has opened and closed it

    def test_is_found_without_its_catalogue(self):
        shutil.rmtree(os.path.join(self.store, "catalog"))
        without_use = [{**r, "used": r["created"]} for r in self.expected]
        self.assertEqual(self.known(self.records()), without_use)
        self.restores("check-no-notes", "golden_store: disk cache: catalogue rebuilt from 10 record headers\n")

    def headers(self):
        """offset in the volume -> fields, and the header's bytes"""
        with open(os.path.join(self.store, "volume.000"), "rb") as file:
            volume = file.read()
        found = {}
        for at in range(0, len(volume), CHUNK):
            if volume[at:at + 8] == b"Isotherm":
                fields = {name: struct.unpack_from("<" + code, volume, at + offset) for name, (offset, code) in FIELDS.items()}
                found[at] = ({n: v if len(v) > 1 else v[0] for n, v in fields.items()}, volume[at:at + fields["header_bytes"][0]])
        return found

    def test_headers_lie_where_the_document_says(self):
        with open(os.path.join(self.store, "STORE"), encoding="ascii") as file:
            lines = dict(line.split(" ") for line in file.read().splitlines())
        self.assertEqual(list(lines), ["isotherm-store", "uuid", "secret", "chunk_bytes", "purge_epoch", "checksum"])
        self.assertEqual((lines["isotherm-store"], lines["chunk_bytes"], lines["purge_epoch"]), ("2", str(CHUNK), "0"))
        records = {r["record"]: r for r in self.expected}
        headers = self.headers()
        self.assertEqual(len(headers), len(records))
        for at, (h, header) in headers.items():
            r = records.pop(f"{h['sequence']:016x}-{h['nonce']:016x}")
            self.assertEqual((h["version"], h["header_bytes"], h["chunk_bytes"], h["purge_epoch"]), (2, 4096, CHUNK, 0))
            self.assertEqual(h["uuid"].hex(), lines["uuid"].replace("-", ""))
            self.assertEqual(h["kind"], 1 if r["kind"] == "span" else 2)
            self.assertEqual(h["flags"], BOUNDARIES.index(r["boundary"]) if r["boundary"] else 0)
            for name, of in (("key", "key"), ("parent", "parent_key")):
                low, high = h[name]
                self.assertEqual(f"{high:016x}{low:016x}", r[of])
            self.assertEqual((h["fingerprint"].hex(), h["tenant"].hex()), (r["fingerprint"], r["tenant"]))
            self.assertEqual(h["fingerprint"], bytes(range(1, 33)))
            self.assertEqual((h["position"], h["pages"], h["created"]), (r["first_position"], r["pages"], r["created"]))
            self.assertEqual((h["page_tokens"], h["page_bytes"], h["zero"]), (PAGE_TOKENS, PAGE_BYTES, bytes(76)))
            runs = [struct.unpack_from("<3I", header, 256 + 12 * i) for i in range(h["runs"])]
            self.assertEqual(runs[0][:2], (0, at // CHUNK))
            self.assertEqual(sum(run[2] for run in runs), -(-(4096 + h["pages"] * STRIDE) // CHUNK))
            n_ids = PAGE_TOKENS * (h["pages"] if h["kind"] == 1 else 1)
            ids = struct.unpack_from(f"<{n_ids}I", header, 256 + 12 * h["runs"])
            first = h["position"] if h["kind"] == 1 else h["position"] - PAGE_TOKENS
            self.assertEqual([i % 1000 for i in ids], list(range(first, first + n_ids)))
            sums = -(-(256 + 12 * h["runs"] + 4 * n_ids) // 8) * 8
            self.assertNotIn(bytes(8), [header[sums + 8 * i:sums + 8 * i + 8] for i in range(h["pages"])])
            self.assertEqual(header[sums + 8 * h["pages"]:4088].strip(b"\0"), b"")
            self.assertNotEqual(header[4088:], bytes(8))
        self.assertEqual(records, {})

    def test_headers_encode_to_the_same_bytes(self):
        result = run(GOLDEN, self.store, "encode")
        self.assertEqual((result.returncode, int(result.stdout)), (0, len(self.expected)))

    def test_another_version_is_refused_by_name(self):
        path = os.path.join(self.store, "STORE")
        with open(path, encoding="ascii") as file:
            text = file.read()
        with open(path, "w", encoding="ascii") as file:
            file.write(re.sub("^isotherm-store 2", "isotherm-store 3", text))
        result = run(ADMIN, self.store, "status")
        self.assertEqual(result.returncode, 2)
        self.assertIn("format version 3, this program reads 2", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
