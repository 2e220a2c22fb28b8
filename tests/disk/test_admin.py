#!/usr/bin/env python3
"""cachestore-admin on real stores: output, JSON, exit codes, and that it changes nothing.

  test_admin.py ADMIN FIXTURE
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from damage import flip  # noqa: E402

ADMIN, FIXTURE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CHUNK = 64 << 10
PAGE = 4096


def admin(*arguments):
    result = subprocess.run([ADMIN, *arguments], capture_output=True, text=True, timeout=60, check=False)
    blank = [line for line in result.stdout.splitlines() if line.endswith(" ")]
    if blank:
        raise AssertionError(f"lines that end in blanks: {blank}")
    return result


def fixture(folder, what):
    subprocess.run([FIXTURE, folder, what], check=True, timeout=60, cwd=os.path.dirname(folder))


def contents(folder):
    """Every file's bytes, RocksDB's own log of being opened excepted."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("LOG"):
                with open(os.path.join(base, name), "rb") as f:
                    found[os.path.relpath(os.path.join(base, name), folder)] = hashlib.sha256(f.read()).hexdigest()
    return found


class Admin(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="admin-test-", dir=".")
        self.top = os.path.abspath(self.top)
        self.store = os.path.join(self.top, "store")

    def tearDown(self):
        shutil.rmtree(self.top)

    def make(self, what="make"):
        fixture(self.store, what)

    def records(self):
        result = admin(self.store, "ls", "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_ls_is_a_tree(self):
        self.make()
        records = self.records()
        spans = [r for r in records if r["kind"] == "span"]
        self.assertEqual((len(records), len(spans)), (7, 5))
        places = [(s["depth"], s["first_position"], s["tokens"]) for s in spans]
        anonymous = [p for p, s in zip(places, spans) if s["tenant"] == "0" * 32]
        self.assertEqual(anonymous, [(0, 0, 40), (1, 40, 20), (2, 60, 4), (1, 16, 8)])
        self.assertEqual(sum(s["tenant"] != "0" * 32 for s in spans), 1)
        self.assertEqual([s["boundary"] for s in spans], [None] * 5)
        by_record = {s["record"]: s for s in records}
        for s in records:
            self.assertEqual(s["disk_bytes"] % CHUNK, 0)
            self.assertEqual(s["payload_bytes"], s["pages"] * PAGE)
            if s["depth"] > 0:
                above = by_record[s["parent_record"]]
                self.assertLess(above["first_position"], s["first_position"])
                self.assertLessEqual(s["first_position"], above["first_position"] + above["tokens"])
            else:
                self.assertIsNone(s["parent_record"])
        text = admin(self.store, "ls").stdout.splitlines()
        self.assertEqual(len(text), 8)
        self.assertTrue(any(line.startswith("    60..64 ") for line in text))

    def test_ls_shows_checkpoints_under_their_span(self):
        self.make()
        records = self.records()
        order = [(r["depth"], r["first_position"], r["kind"], r["boundary"], r["tokens"], r["pages"]) for r in records
                 if r["tenant"] == "0" * 32]
        self.assertEqual(order, [(0, 0, "span", None, 40, 10), (1, 16, "checkpoint", "system", 0, 3),
                                 (1, 40, "span", None, 20, 5), (2, 60, "checkpoint", "turn", 0, 30),
                                 (2, 60, "span", None, 4, 1), (1, 16, "span", None, 8, 2)])
        text = [line[:38].split() for line in admin(self.store, "ls").stdout.splitlines()]
        self.assertIn(["@16", "system", "-"], text)
        self.assertIn(["@60", "turn", "-"], text)

    def test_status_adds_up(self):
        self.make()
        before = contents(self.store)
        result = admin(self.store, "status", "--json")
        self.assertEqual(result.returncode, 0)
        status = json.loads(result.stdout)
        records = self.records()
        self.assertEqual((status["spans"], status["checkpoints"]), (5, 2))
        self.assertEqual(status["tokens"], sum(r["tokens"] for r in records))
        self.assertEqual(status["payload_bytes"], sum(r["payload_bytes"] for r in records if r["kind"] == "span"))
        self.assertEqual(status["checkpoint_bytes"], 33 * PAGE)
        self.assertEqual(status["notes"], 1)
        self.assertEqual(status["models"], 1)
        self.assertEqual(status["catalogue"], "ok")
        self.assertEqual(status["chunk_bytes"], CHUNK)
        self.assertGreaterEqual(status["volume_bytes"], sum(r["disk_bytes"] for r in records))
        text = admin(self.store, "status").stdout
        self.assertIn("5 with 96 tokens", text)
        self.assertIn("checkpoints  2, 132.0 KiB", text)
        self.assertEqual(before, contents(self.store))

    def test_verify_finds_one_changed_byte(self):
        self.make()
        result = admin(self.store, "verify")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("5 spans, 2 checkpoints", result.stdout)
        # The first record is one header and ten pages; change its seventh page.
        flip(os.path.join(self.store, "volume.000"), 7 * PAGE + 123)
        result = admin(self.store, "verify", "--json")
        self.assertEqual(result.returncode, 1)
        verdict = json.loads(result.stdout)
        self.assertEqual(verdict["n_damaged"], 1)
        self.assertEqual(verdict["damaged"][0]["why"], "page 6 of 10: checksum")
        self.assertEqual(verdict["damaged"][0]["first_position"], 0)
        # Then its header.
        flip(os.path.join(self.store, "volume.000"), 60)
        result = admin(self.store, "verify")
        self.assertEqual(result.returncode, 1)
        self.assertIn("record header checksum", result.stdout)

    def test_verify_finds_one_changed_byte_of_a_checkpoint(self):
        self.make()
        # Records are written one after the other: 40 tokens, 20 tokens, then the checkpoint of 30 blocks.
        flip(os.path.join(self.store, "volume.000"), 2 * CHUNK + 30 * PAGE + 5)
        result = admin(self.store, "verify", "--json")
        self.assertEqual(result.returncode, 1)
        damaged = json.loads(result.stdout)["damaged"]
        self.assertEqual([(d["kind"], d["first_position"], d["why"]) for d in damaged],
                         [("checkpoint", 60, "block 29 of 30: checksum")])
        self.assertIn("@60 turn: block 29", admin(self.store, "verify").stdout)

    def test_verify_says_that_a_volume_is_missing(self):
        self.make()
        os.unlink(os.path.join(self.store, "volume.000"))
        result = admin(self.store, "verify", "--json")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(json.loads(result.stdout)["n_damaged"], 7)

    def test_without_catalogue_headers_tell(self):
        self.make()
        records = self.records()
        shutil.rmtree(os.path.join(self.store, "catalog"))
        before = contents(self.store)
        self.assertEqual(records, self.records())
        status = json.loads(admin(self.store, "status", "--json").stdout)
        self.assertEqual((status["catalogue"], status["spans"], status["notes"]), ("unreadable", 5, 0))
        self.assertEqual(admin(self.store, "verify").returncode, 1)
        self.assertEqual(before, contents(self.store))

    def test_empty_store(self):
        self.make("empty")
        self.assertEqual(self.records(), [])
        self.assertEqual(admin(self.store, "ls").stdout, "nothing stored\n")
        self.assertEqual(admin(self.store, "verify").returncode, 0)
        self.assertEqual(json.loads(admin(self.store, "status", "--json").stdout)["spans"], 0)

    def test_store_in_use(self):
        self.make("empty")
        with subprocess.Popen([FIXTURE, self.store, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=self.top) as holder:
            self.assertEqual(holder.stdout.readline(), "open\n")
            result = admin(self.store, "status")
            self.assertEqual(result.returncode, 3)
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertIn("in use", result.stderr)
            holder.stdin.close()
            self.assertEqual(holder.wait(60), 0)
        self.assertEqual(admin(self.store, "status").returncode, 0)

    def test_usage_and_bad_directories(self):
        os.mkdir(self.store)
        odd = os.path.join(self.top, "no\nsuch\tplace")
        for arguments in [(), (self.store,), (self.store, "reformat"), (self.store, "status", "more"),
                          (self.store, "status", "--yaml"), (self.store, "status"), (odd, "ls")]:
            result = admin(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertEqual(os.listdir(self.store), [])
        self.assertFalse(os.path.exists(odd))
        self.assertEqual(admin("--help").returncode, 0)

    def test_damaged_store_file(self):
        self.make("empty")
        flip(os.path.join(self.store, "STORE"), 40)
        result = admin(self.store, "status")
        self.assertEqual(result.returncode, 2)
        self.assertIn("STORE file is damaged", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
