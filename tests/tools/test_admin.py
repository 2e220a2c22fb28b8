#!/usr/bin/env python3
"""cachestore-admin's commands that look closer and those that change a store: output, JSON, exit codes, and what a store is
afterwards. status, ls and verify are in tests/disk/test_admin.py.

  test_admin.py ADMIN FIXTURE DATA_FOLDER
"""
import array
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from damage import flip  # noqa: E402

ADMIN, FIXTURE, DATA = (os.path.abspath(a) for a in sys.argv[1:4])
CHUNK, PAGE = 64 << 10, 4096
OTHER = "010203" + "0" * 26  # the fixture's second tenant


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="admin-test-", dir=".")
        self.addCleanup(folder.cleanup)
        self.top = os.path.abspath(folder.name)
        self.store = os.path.join(self.top, "store")

    def run_tool(self, *command, text=None):
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=text, cwd=self.top)

    def make(self, what="make"):
        result = self.run_tool(FIXTURE, self.store, what)
        self.assertEqual(result.returncode, 0, result.stderr)

    def admin(self, *arguments, text=None):
        return self.run_tool(ADMIN, self.store, *arguments, text=text)

    def ask(self, *arguments, code=0, text=None):
        """The JSON of a command that must end with this code and without a complaint."""
        result = self.admin(*arguments, "--json", text=text)
        self.assertEqual((result.returncode, result.stderr), (code, ""), arguments)
        return json.loads(result.stdout)

    def refused(self, code, *arguments, word="", text=None):
        result = self.admin(*arguments, text=text)
        self.assertEqual((result.returncode, result.stdout), (code, ""), (arguments, result.stderr))
        complaints = [line for line in result.stderr.splitlines() if line != "offline: no process has the store open"]
        self.assertEqual(len(complaints), 1, result.stderr)
        self.assertIn(word, complaints[0])

    def places(self, tenant="0" * 32):
        return [(r["kind"], r["first_position"], r["tokens"]) for r in self.ask("ls") if r["tenant"] == tenant]

    def epoch(self):
        with open(os.path.join(self.store, "STORE"), encoding="ascii") as file:
            return int(dict(line.split(" ") for line in file.read().splitlines())["purge_epoch"])

    def opened(self):
        """How many records a store finds that opens it."""
        result = self.run_tool(FIXTURE, self.store, "count")
        self.assertEqual(result.returncode, 0, result.stderr)
        return int(result.stdout)

    def lose_catalogue(self):
        shutil.rmtree(os.path.join(self.store, "catalog"))


WHOLE = [("span", 0, 40), ("checkpoint", 16, 0), ("span", 40, 20), ("checkpoint", 60, 0), ("span", 60, 4), ("span", 16, 8)]


class Show(Case):
    def test_by_key_beginning_of_key_and_record(self):
        self.make()
        records = self.ask("ls")
        wanted = records[2]  # 40..60
        for name in (wanted["key"], wanted["key"][:8], wanted["key"][:4].upper(), wanted["record"]):
            shown = self.ask("show", name)
            self.assertEqual({k: shown[k] for k in wanted}, wanted)
        self.assertEqual(shown["path"], [records[0]["record"]])
        self.assertEqual((shown["spans_below"], shown["checkpoints_below"]), (1, 1))
        self.assertEqual(shown["ids"], list(range(2000, 2020)))
        self.assertEqual((shown["page_tokens"], shown["page_bytes"], shown["header_bytes"], shown["purge_epoch"]), (4, PAGE, PAGE, 0))
        self.assertEqual([len(shown["runs"]), shown["runs"][0][2]], [1, 1])
        self.assertEqual(shown["notes"], [])
        note = self.ask("show", records[0]["key"])["notes"]
        self.assertEqual([n["bytes"] for n in note], [1])
        text = self.admin("show", wanted["key"]).stdout
        for line in ("span       40..60", "path       0..40\n", "ids        2000 2001"):
            self.assertIn(line, text)

    def test_a_key_in_the_middle_of_a_span_names_its_position(self):
        self.make()
        fork = next(r for r in self.ask("ls") if r["first_position"] == 16 and r["kind"] == "span")
        shown = self.ask("show", fork["parent_key"])
        self.assertEqual((shown["first_position"], shown["tokens"], shown["position"]), (0, 40, 16))
        self.lose_catalogue()
        self.assertEqual(self.ask("show", fork["parent_key"])["position"], 16)

    def test_a_boundary_key_names_its_position(self):
        with tarfile.open(os.path.join(DATA, "golden_store.tar.xz")) as tar:
            tar.extractall(self.top)
        notes = [n["key"] for r in self.ask("ls") if r["kind"] == "span" for n in self.ask("show", r["record"])["notes"]]
        self.assertEqual(len(notes), 2)
        shown = [self.ask("show", key) for key in notes]
        self.assertEqual(sorted((s["first_position"], s["position"]) for s in shown), [(32, 38), (32, 39)])

    def test_of_a_checkpoint(self):
        self.make()
        record = next(r for r in self.ask("ls") if r["boundary"] == "turn")["record"]
        shown = self.ask("show", record)
        self.assertEqual((shown["position"], shown["pages"], len(shown["ids"]), len(shown["path"])), (60, 30, 4, 2))

    def test_of_a_damaged_record(self):
        self.make()
        flip(os.path.join(self.store, "volume.000"), 60)
        key = self.ask("ls")[0]["key"]
        self.assertIn("header", self.ask("show", key, code=1)["damaged"])
        self.assertIn("damaged    header", self.admin("show", key).stdout)

    def test_refuses_what_names_nothing_or_too_much(self):
        self.make()
        for name, code in (("0" * 32, 4), ("abcdabcd", 4), ("xyz", 2), ("123", 2), ("0" * 33, 2), ("0" * 16 + "-" + "0" * 16, 4),
                           ("0" * 16 + "-0", 2), ("ffff", 2)):  # two checkpoints of the fixture begin with that
            self.refused(code, "show", name, word=name)
        self.refused(2, "show", word="usage")


class Stats(Case):
    def test_adds_up(self):
        self.make()
        records, stats = self.ask("ls"), self.ask("stats")
        self.assertEqual(sorted((s["tenant"], s["spans"], s["checkpoints"], s["tokens"]) for s in stats["shares"]),
                         [("0" * 32, 4, 2, 72), (OTHER, 1, 0, 24)])
        for total in ("disk_bytes", "payload_bytes"):
            self.assertEqual(stats[total], sum(r[total] for r in records))
            self.assertEqual(stats[total], sum(s[total] for s in stats["shares"]))
        self.assertEqual(sum(stats["used_bytes"].values()), stats["disk_bytes"])
        self.assertEqual((stats["paths"], stats["deepest_spans"], stats["longest_tokens"]), (3, 3, 64))
        self.assertAlmostEqual(stats["space_amplification"], stats["disk_bytes"] / stats["payload_bytes"], 2)
        self.assertAlmostEqual(stats["pages_per_span"], 24 / 5, 1)
        self.assertIn("paths      3, the longest of 64 tokens, the deepest of 3 spans", self.admin("stats").stdout)

    def test_of_an_empty_store(self):
        self.make("empty")
        stats = self.ask("stats")
        self.assertEqual((stats["shares"], stats["paths"], stats["disk_bytes"], stats["space_amplification"]), ([], 0, 0, 0))
        self.assertEqual(self.admin("stats").returncode, 0)


class Explain(Case):
    PATH = [*range(1000, 1040), *range(2000, 2020), *range(3000, 3004)]
    FORK = [*range(1000, 1016), *range(4000, 4008)]

    def explain(self, ids, *arguments, code=0):
        return self.ask("explain", *arguments, code=code, text=" ".join(map(str, ids)))

    def test_a_whole_path(self):
        self.make()
        x = self.explain(self.PATH)
        self.assertEqual((x["given"], x["stored"], x["end"], x["page_tokens"]), (64, 64, "whole", 4))
        # It resumes at checkpoints: the deepest is at 60, and one token must be left.
        self.assertEqual((x["needs_checkpoint"], x["checkpoint"], x["reusable"]), (True, 60, 60))
        self.assertEqual([(r["kind"], r["first_position"], r["tokens_used"]) for r in x["records"]],
                         [("span", 0, 40), ("checkpoint", 16, 0), ("span", 40, 20), ("checkpoint", 60, 0), ("span", 60, 4)])
        x = self.explain(self.PATH[:60])
        self.assertEqual((x["stored"], x["end"], x["checkpoint"]), (60, "whole", 16))

    def test_where_and_why_it_ends(self):
        self.make()
        for ids, stored, end, differs in (
                ([*self.PATH, 1, 2, 3, 4], 64, "ends", None),
                ([*self.PATH[:62], 7, 7], 60, "diverged", 62),
                ([*self.PATH[:40], 2000, 2001, 9, 9, 9], 40, "diverged", 42),
                ([*self.FORK, 5, 5, 5, 5], 24, "ends", None),
                ([*self.FORK[:20], 4004, 4005, 5, 5], 20, "diverged", 22),
                (self.FORK[:20], 20, "whole", None),
                ([1000, 1001, 9, 9], 0, "diverged", 2),
                ([9, 9, 9, 9], 0, "nothing", None),
                ([1000, 1001, 1002], 0, "partial_page", None)):
            x = self.explain(ids)
            self.assertEqual((x["stored"], x["end"], x["differs_at"]), (stored, end, differs), ids)

    def test_a_tenant_sees_its_own_only(self):
        self.make()
        ids = range(5000, 5024)
        self.assertEqual(self.explain(ids)["end"], "nothing")
        for name in (OTHER, "0102"):
            self.assertEqual(self.explain(ids, "--tenant", name)["stored"], 24)
        self.assertEqual(self.explain(self.PATH, "--tenant", OTHER)["stored"], 0)
        self.assertEqual(self.explain(self.PATH, "--tenant", "anonymous")["stored"], 64)

    def test_damage_ends_it(self):
        self.make()
        flip(os.path.join(self.store, "volume.000"), CHUNK + 2 * PAGE)  # of 40..60
        x = self.explain(self.PATH, code=1)
        self.assertEqual((x["stored"], x["end"], x["why"]), (40, "damaged", "page 1 of 5: checksum"))
        self.assertIn("at 40: what goes on is damaged: page 1", self.admin("explain", text=" ".join(map(str, self.PATH))).stdout)

    def test_reads_ids_as_people_have_them(self):
        self.make()
        path = os.path.join(self.top, "ids.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(self.PATH, file, indent=1)
        self.assertEqual(self.ask("explain", path)["stored"], 64)
        self.assertEqual(self.ask("explain", "-", text="1000,1001\t1002\n1003")["stored"], 4)
        text = self.admin("explain", path).stdout
        for line in ("tokens     64 given, 64 stored, 60 reusable", "stored     40..60, 20 tokens of it", "ends       nowhere",
                     "resumes    at checkpoints only, here at 60"):
            self.assertIn(line, text)
        for bad, word in (("1 two", "unexpected 't'"), ("4294967296", "32 bits"), ("99999999999999999999", "32 bits"), ("", "no token"),
                          ("-1", "unexpected '-'")):
            self.refused(2, "explain", text=bad, word=word)
        self.refused(2, "explain", os.path.join(self.top, "nowhere"), word="cannot open")

    def test_of_an_empty_store_or_an_unknown_model(self):
        self.make()
        self.refused(4, "explain", "--model", "deadbeef", text="1", word="deadbeef")
        self.refused(2, "explain", "--model", "xyzt", text="1", word="xyzt")
        self.refused(4, "explain", "--tenant", "deadbeef", text="1", word="deadbeef")
        self.assertEqual(self.explain(self.PATH, "--model", "0700")["stored"], 64)
        shutil.rmtree(self.store)
        self.make("empty")
        self.refused(4, "explain", text="1", word="nothing is stored")


class Evict(Case):
    def stays_gone(self, places, others):
        """After a rebuild from headers, too, and for a store that opens it."""
        self.assertEqual((self.places(), self.places(OTHER)), (places, others))
        self.assertEqual(self.admin("verify").returncode, 0)
        self.lose_catalogue()
        self.assertEqual(self.ask("rebuild")["dropped"], 0)
        self.assertEqual((self.places(), self.places(OTHER)), (places, others))
        self.lose_catalogue()
        self.assertEqual(self.opened(), len(places) + len(others))

    def test_a_record_goes_with_what_is_below_it(self):
        self.make()
        key = next(r for r in self.ask("ls") if r["first_position"] == 40)["key"]
        gone = self.ask("evict", key)
        self.assertEqual((gone["spans"], gone["checkpoints"], gone["leftovers"]), (2, 1, 0))
        self.assertEqual(self.epoch(), 1)
        self.stays_gone([("span", 0, 40), ("checkpoint", 16, 0), ("span", 16, 8)], [("span", 0, 24)])

    def test_a_checkpoint_goes_alone(self):
        self.make()
        record = next(r for r in self.ask("ls") if r["boundary"] == "turn")["record"]
        self.assertIn("0 spans, 1 checkpoint,", self.admin("evict", record).stdout)
        self.stays_gone([p for p in WHOLE if p != ("checkpoint", 60, 0)], [("span", 0, 24)])

    def test_a_tenant(self):
        self.make()
        self.assertEqual(self.ask("evict", "--tenant", OTHER[:6])["spans"], 1)
        self.stays_gone(WHOLE, [])
        self.assertEqual(self.ask("evict", "--tenant", "anonymous")["spans"], 4)
        self.assertEqual(self.epoch(), 2)
        self.stays_gone([], [])

    def test_everything(self):
        self.make()
        gone = self.ask("evict", "--all")
        self.assertEqual((gone["spans"], gone["checkpoints"]), (5, 2))
        self.assertEqual(self.admin("ls").stdout, "nothing stored\n")
        self.stays_gone([], [])

    def test_headers_of_what_was_evicted_before_go_too(self):
        self.make("leftovers")
        self.assertEqual((self.places(), self.places(OTHER)), ([p for p in WHOLE if p != ("span", 60, 4)], []))
        copy = os.path.join(self.top, "copy")
        shutil.copytree(self.store, copy)
        # Without a purge a rebuild finds both again: that is what headers are for.
        self.lose_catalogue()
        self.ask("rebuild")
        self.assertEqual((self.places(), self.places(OTHER)), (WHOLE, [("span", 0, 24)]))
        shutil.rmtree(self.store)
        os.rename(copy, self.store)
        gone = self.ask("evict", "--tenant", OTHER)
        self.assertEqual((gone["spans"], gone["leftovers"]), (0, 1))
        key = next(r for r in self.ask("ls") if r["first_position"] == 40)["key"]
        gone = self.ask("evict", key)
        self.assertEqual((gone["spans"], gone["checkpoints"], gone["leftovers"]), (1, 1, 1))
        self.stays_gone([("span", 0, 40), ("checkpoint", 16, 0), ("span", 16, 8)], [])

    def test_one_that_was_interrupted_goes_on(self):
        self.make()
        key = next(r for r in self.ask("ls") if r["first_position"] == 40)["key"]
        with open(os.path.join(self.store, "volume.000"), "r+b") as file:
            file.seek(CHUNK)
            file.write(bytes(PAGE))  # headers go before rows: this one has gone already
        self.assertEqual(self.admin("verify").returncode, 1)
        self.assertEqual(self.ask("evict", key)["spans"], 2)
        self.stays_gone([("span", 0, 40), ("checkpoint", 16, 0), ("span", 16, 8)], [("span", 0, 24)])

    def test_without_a_catalogue(self):
        self.make()
        self.lose_catalogue()
        self.assertEqual(self.ask("evict", "--tenant", OTHER)["spans"], 1)
        self.assertEqual((self.places(), self.places(OTHER)), (WHOLE, []))

    def test_what_names_nothing_changes_nothing(self):
        self.make()
        self.refused(4, "evict", "0" * 32)
        self.refused(4, "evict", "--tenant", "abcd")
        self.assertEqual(self.admin("evict", "--tenant", "ab" * 16, "--json").returncode, 4)
        for arguments in ((), ("--all", "--tenant", OTHER), ("0" * 32, "--all")):
            self.refused(2, "evict", *arguments, word="one of")
        self.assertEqual((self.epoch(), self.places()), (0, WHOLE))

    def test_says_that_a_volume_is_out_of_reach(self):
        self.make()
        os.unlink(os.path.join(self.store, "volume.000"))
        self.refused(2, "evict", "--all", word="volume 0 is missing")


class Pin(Case):
    def pins(self):
        return [r["first_position"] for r in self.ask("ls") if r["pinned"]]

    def test_on_and_off(self):
        self.make()
        record = self.ask("ls")[2]["record"]
        self.assertEqual(self.ask("pin", record), {"record": record, "pinned": True})
        self.assertEqual(self.pins(), [40])
        self.assertTrue(self.ask("show", record)["pinned"])
        self.assertEqual(len([line for line in self.admin("ls").stdout.splitlines() if line.endswith("  pinned")]), 1)
        self.assertEqual((self.opened(), self.pins()), (7, [40]))  # a store that opens it leaves it there
        self.assertIn("unpinned   " + record, self.admin("unpin", record).stdout)
        self.assertEqual(self.pins(), [])
        self.assertEqual(self.ask("unpin", record)["pinned"], False)  # once more does no harm

    def test_goes_with_the_record_and_with_the_catalogue_but_not_with_a_rebuild(self):
        self.make()
        records = self.ask("ls")
        for record in (records[2]["record"], records[5]["record"]):
            self.ask("pin", record)
        self.ask("evict", records[2]["record"])
        self.assertEqual((self.pins(), self.opened()), ([16], 4))
        self.ask("rebuild")
        self.assertEqual(self.pins(), [16])
        self.lose_catalogue()
        self.ask("rebuild")
        self.assertEqual(self.pins(), [])

    def test_refuses_what_it_cannot_do(self):
        self.make()
        record = self.ask("ls")[2]["record"]
        self.refused(4, "pin", "0" * 32)
        self.refused(2, "pin", word="usage")
        self.lose_catalogue()
        self.refused(2, "pin", record, word="rebuilt first")


class Rebuild(Case):
    def test_from_headers_alone(self):
        self.make()
        before = self.ask("ls")
        self.lose_catalogue()
        self.assertEqual(self.ask("rebuild"), {"records": 7, "dropped": 0})
        self.assertEqual(self.ask("ls"), before)
        status = self.ask("status")
        self.assertEqual((status["catalogue"], status["notes"]), ("ok", 0))
        self.assertEqual(self.admin("verify").returncode, 0)
        self.assertEqual(self.opened(), 7)

    def test_of_a_damaged_catalogue_and_of_a_good_one(self):
        self.make()
        with open(os.path.join(self.store, "catalog", "CURRENT"), "w", encoding="ascii") as file:
            file.write("nonsense")
        self.assertIn("7 records", self.admin("rebuild").stdout)
        self.assertIn("7 records", self.admin("rebuild").stdout)
        self.assertEqual(self.places(), WHOLE)

    def test_the_newest_owns_a_chunk(self):
        self.make()
        volume = os.path.join(self.store, "volume.000")
        with open(volume, "rb") as file:
            file.seek(2 * CHUNK)
            old = file.read(CHUNK)  # the first of the two chunks of the checkpoint at 60
        self.ask("evict", next(r for r in self.ask("ls") if r["boundary"] == "turn")["record"])
        self.assertEqual(self.run_tool(FIXTURE, self.store, "two").returncode, 0)
        with open(volume, "r+b") as file:
            file.seek(2 * CHUNK)
            file.write(old)  # a write that was lost: the old header is back, its second chunk is another's
        self.lose_catalogue()
        self.assertEqual(self.ask("rebuild"), {"records": 7, "dropped": 1})
        self.assertEqual(self.admin("verify").returncode, 0)

    def test_a_damaged_header_is_left_out(self):
        self.make()
        flip(os.path.join(self.store, "volume.000"), 60)
        self.assertEqual(self.ask("rebuild")["records"], 6)
        self.assertEqual(self.admin("verify").returncode, 0)


class Format(Case):
    def test_makes_an_empty_store(self):
        made = self.ask("format", "--chunk", "128K")
        self.assertEqual((made["chunk_bytes"], made["format_version"]), (128 << 10, 2))
        self.assertEqual(self.ask("status")["uuid"], made["uuid"])
        self.assertEqual(os.listdir(self.store), ["STORE"])
        self.assertEqual(self.opened(), 0)

    def test_replaces_a_store_only_by_force(self):
        self.make()
        before = self.ask("status")
        self.refused(2, "format", word="there is a store already")
        self.assertEqual(self.ask("status"), before)
        self.assertIn("chunks of 256.0 KiB", self.admin("format", "--force").stdout)
        after = self.ask("status")
        self.assertNotEqual(after["uuid"], before["uuid"])
        self.assertEqual((after["spans"], os.listdir(self.store)), (0, ["STORE"]))
        flip(os.path.join(self.store, "STORE"), 40)
        self.refused(2, "format", word="already")
        self.assertEqual(self.admin("format", "--force").returncode, 0)
        self.assertEqual(self.admin("status").returncode, 0)

    def test_leaves_other_peoples_files_alone(self):
        self.make()
        path = os.path.join(self.store, "letters.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write("dear")
        before = self.ask("status")
        self.refused(2, "format", "--force", word="letters.txt")
        self.assertEqual(self.ask("status"), before)
        os.rename(path, os.path.join(self.top, "letters.txt"))
        self.assertEqual(self.run_tool(ADMIN, self.top, "format").returncode, 2)

    def test_refuses_odd_chunks(self):
        for size in ("3000", "1K", "2G", "K", "1X", "-1", "1.5K", "99999999999T"):
            self.refused(2, "format", "--chunk", size)
        self.assertFalse(os.path.exists(self.store))


class Pipes(Case):
    def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(self):
        for name in ("STORE", "volume.000"):
            self.make()
            os.remove(os.path.join(self.store, name))
            os.mkfifo(os.path.join(self.store, name))
            self.refused(2, "status")
            shutil.rmtree(self.store)


class Scrub(Case):
    def test_reads_everything(self):
        self.make()
        result = self.ask("scrub")
        self.assertEqual((result["spans"], result["checkpoints"], result["n_damaged"], result["stopped"]), (5, 2, 0, False))
        self.assertEqual(result["read_bytes"], sum(r["payload_bytes"] for r in self.ask("ls")))

    def test_bytes_of_a_lost_volume_were_not_read(self):
        self.make()
        for command in ("verify", "scrub"):
            self.assertEqual(self.ask(command)["read_bytes"], sum(r["payload_bytes"] for r in self.ask("ls")))
        os.unlink(os.path.join(self.store, "volume.000"))
        for command in ("verify", "scrub"):
            result = self.ask(command, code=1)
            self.assertEqual((result["n_damaged"], result["read_bytes"]), (7, 0))

    def test_drops_damaged_records_with_nothing_sound_below(self):
        self.make()
        flip(os.path.join(self.store, "volume.000"), CHUNK + 2 * PAGE)  # of 40..60
        before = self.ask("ls")
        self.assertEqual(self.ask("scrub", code=1)["n_damaged"], 1)
        self.assertEqual(self.ask("ls"), before)
        result = self.ask("scrub", "--drop", code=1)
        self.assertEqual((result["n_damaged"], result["dropped"], result["kept"]), (1, 0, 1))
        self.assertEqual(self.ask("ls"), before)
        flip(os.path.join(self.store, "volume.000"), 2 * CHUNK + 2 * PAGE)  # the checkpoint at 60, which hangs on it
        result = self.ask("scrub", "--drop", code=1)
        self.assertEqual((result["n_damaged"], result["dropped"], result["kept"]), (2, 1, 1))
        self.assertEqual(sorted(self.places()), sorted(p for p in WHOLE if p != ("checkpoint", 60, 0)))
        self.assertEqual(self.ask("scrub", code=1)["n_damaged"], 1)

    def blocked(self, *arguments, filled=0):
        """A process whose lines of progress fill its stderr, which nobody reads; `filled`: of that pipe beforehand."""
        reader, writer = os.pipe()
        room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer, b"." * filled)
        process = subprocess.Popen([ADMIN, self.store, *arguments, "--every", "0"], stdout=subprocess.PIPE, stderr=writer)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        os.close(writer)
        enough = filled + 1 if filled else room - 100
        there, deadline = array.array("i", [0]), time.monotonic() + 60
        while there[0] < enough and process.poll() is None and time.monotonic() < deadline:
            fcntl.ioctl(reader, termios.FIONREAD, there)
            time.sleep(0.01)
        self.assertIsNone(process.poll())
        return process, open(reader, encoding="utf-8")

    def test_shows_progress_and_stops(self):
        self.make("many")
        process, errors = self.blocked("scrub", "--json")
        process.send_signal(signal.SIGTERM)
        with errors:
            lines = errors.read().splitlines()
        result = json.loads(process.stdout.read())
        self.assertEqual(process.wait(60), 5)
        self.assertTrue(result["stopped"])
        self.assertLess(result["spans"], 150)
        self.assertGreaterEqual(result["spans"], len(lines) - 1)
        self.assertEqual(lines[3], f"{3 * PAGE / 1024:.1f} KiB of 600.0 KiB looked at, 0 damaged")

    def test_what_is_stopped_before_it_changes_anything_has_changed_nothing(self):
        self.make("many")
        for arguments in (("rebuild", "--json"), ("evict", "--all", "--json")):
            # Room for one line: the second one waits until somebody reads.
            process, errors = self.blocked(*arguments, filled=4096 - 60)
            process.send_signal(signal.SIGINT)
            with errors:
                lines = errors.read().lstrip(".").splitlines()
            self.assertEqual((process.stdout.read(), process.wait(60)), (b"", 5))
            self.assertRegex(lines[0], r"^4\.0 MiB of \d+\.0 MiB of volumes looked through$")
            self.assertIn("nothing was changed", lines[-1])
            self.assertEqual((self.ask("status")["catalogue"], len(self.ask("ls")), self.epoch()), ("ok", 150, 0))


class Bench(Case):
    def test_measures_and_leaves_nothing(self):
        self.make()
        before, files = self.ask("ls"), sorted(os.listdir(self.store))
        figures = self.ask("bench", "--size", "16M")
        self.assertEqual(figures.pop("bytes"), 16 << 20)
        self.assertIn(figures.pop("direct"), (True, False))
        self.assertGreaterEqual(figures.pop("rounds"), 3)
        self.assertLessEqual({figures.pop("disk_write_depth"), figures.pop("disk_read_depth")}, {2, 4, 8})
        self.assertEqual(set(figures), {"disk_write_mb_s", "store_write_mb_s", "write_percent", "disk_read_mb_s",
                                        "store_restore_mb_s", "restore_percent"})
        for figure in figures.values():
            self.assertGreater(figure, 0)
        self.assertEqual((self.ask("ls"), sorted(os.listdir(self.store))), (before, files))
        self.refused(2, "bench", "--size", "1M", word="16 MiB")

    def test_what_a_killed_one_leaves_goes_with_the_next_open(self):
        scratch = os.path.join(self.store, "scratch")
        for reopen in (lambda: self.ask("status"), self.opened, lambda: self.ask("format", "--force")):
            self.make("empty")
            with subprocess.Popen([ADMIN, self.store, "bench", "--size", "64M"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                deadline = time.monotonic() + 60
                while not os.path.exists(os.path.join(scratch, "ceiling")) and time.monotonic() < deadline:
                    time.sleep(0.001)
                process.kill()
            self.assertTrue(os.path.exists(scratch))
            if reopen == self.opened:  # as it is killed later
                os.makedirs(os.path.join(scratch, "catalog"), exist_ok=True)
                with open(os.path.join(scratch, "catalog", "000001.log"), "wb") as file:
                    file.write(b"x")
            reopen()
            self.assertFalse(os.path.exists(scratch))


class Usage(Case):
    def test_options_that_do_not_go_together(self):
        self.make("empty")
        for arguments in (("ls", "--force"), ("verify", "--drop"), ("show",), ("status", "word"), ("explain", "a", "b"), ("--json",)):
            self.refused(2, *arguments, word="usage")

    def test_a_value_that_will_not_do_is_told_what_would(self):
        self.make("empty")
        for arguments, word in ((("scrub", "--every"), "takes seconds"), (("scrub", "--every", "-1"), "not '-1'"),
                                (("scrub", "--every", "x"), "not 'x'"), (("bench", "--size", "5Q"), "a size such as"),
                                (("evict", "--tenant"), "nothing follows")):
            self.refused(2, *arguments, word=word)

    def test_a_store_in_use_is_left_alone(self):
        self.make("empty")
        with subprocess.Popen([FIXTURE, self.store, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=self.top) as holder:
            self.assertEqual(holder.stdout.readline(), "open\n")
            for arguments in (("stats",), ("show", "abcd"), ("explain",), ("scrub",), ("evict", "--all"), ("pin", "abcd"), ("rebuild",), ("bench",),
                              ("format", "--force")):
                self.refused(3, *arguments, word="in use", text="1")
            holder.stdin.close()
            self.assertEqual(holder.wait(60), 0)

    def test_help_names_every_command(self):
        text = self.run_tool(ADMIN, "--help").stdout
        for command in ("status", "stats", "ls", "show", "explain", "verify", "scrub", "evict", "pin", "quota", "drain", "rebuild", "bench", "format"):
            self.assertIn(f"\n  {command}", text)
            for words in ((self.store, command), (command,)):
                one = self.run_tool(ADMIN, *words, "--help")
                self.assertEqual((one.returncode, one.stderr), (0, ""))
                self.assertIn(f"\n  {command}", one.stdout)
                self.assertLess(len(one.stdout), len(text))
                self.assertIn("Exit codes", one.stdout)

    def test_what_needs_the_store_for_itself_asks_no_process(self):
        self.make("empty")
        for arguments in (("rebuild",), ("bench",), ("format", "--force"), ("scrub", "--drop")):
            self.refused(2, *arguments, "--live", word="itself")

    def test_a_catalogue_that_may_not_be_read_is_not_taken_for_damaged(self):
        self.make()
        folder = tempfile.TemporaryDirectory(prefix="admin-test-")  # that another user can reach
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        tool, store = shutil.copy(ADMIN, folder.name), shutil.copytree(self.store, os.path.join(folder.name, "store"))
        os.chmod(os.path.join(store, "catalog"), 0)
        if os.geteuid() == 0:
            for base, folders, files in os.walk(store):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(base, name), 65534, 65534)
        for arguments in (("status",), ("verify",), ("evict", "--all"), ("quota",), ("rebuild",)):
            result = subprocess.run([tool, store, *arguments], capture_output=True, text=True, timeout=120, check=False,
                                    user=65534 if os.geteuid() == 0 else None)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn("Permission denied", result.stderr)
        os.chmod(os.path.join(store, "catalog"), 0o755)
        os.chmod(store, 0o555)
        result = subprocess.run([tool, store, "evict", "--all"], capture_output=True, text=True, timeout=120, check=False,
                                user=65534 if os.geteuid() == 0 else None)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("nothing is deleted: ", result.stderr)
        os.chmod(store, 0o755)
        self.assertEqual(len(json.loads(self.run_tool(ADMIN, store, "ls", "--json").stdout)), 7)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
