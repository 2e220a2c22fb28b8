#!/usr/bin/env python3
"""The control socket of a store that a process has open, and cachestore-admin through it: what it shows, changes and refuses,
and that nothing a client does harms the process.

  test_control.py ADMIN HOLDER
"""
import array
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

ADMIN, HOLDER = (os.path.abspath(a) for a in sys.argv[1:3])
ONE = "11" * 16  # tenants of the holder
MAGIC, HELLO, FIGURES, LIST, RECORD, EVICT, ERASE, EPOCH, PIN, DRAIN, PROGRESS = 0x31435349, *range(1, 11)


class Holder:
    """A process that has the store open."""

    def __init__(self, folder, *arguments):
        self.process = subprocess.Popen([HOLDER, folder, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def publish(self, tenant, first, n):
        return int(self.tell(f"publish {tenant} {first} {n}").split()[1])

    def close(self):
        """Ends it in order; what it logged."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=60)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="control-test-", dir=".")
        self.addCleanup(folder.cleanup)
        self.top = os.path.abspath(folder.name)
        self.store = os.path.join(self.top, "store")
        self.socket = os.path.join(self.store, "control")

    def hold(self, *arguments):
        holder = Holder(self.store, *arguments)
        self.addCleanup(holder.kill)
        self.assertEqual(holder.line, "open\n")
        return holder

    def admin(self, *arguments, text=None):
        return subprocess.run([ADMIN, self.store, *arguments], capture_output=True, text=True, timeout=120, check=False, input=text,
                              cwd=self.top)

    def ask(self, *arguments, code=0, text=None):
        result = self.admin(*arguments, "--json", text=text)
        self.assertEqual((result.returncode, result.stderr), (code, ""), arguments)
        return json.loads(result.stdout)

    def refused(self, code, *arguments, word=""):
        result = self.admin(*arguments)
        self.assertEqual((result.returncode, result.stdout), (code, ""), (arguments, result.stderr))
        complaints = [line for line in result.stderr.splitlines() if not line.startswith(("live: ", "offline: "))]
        self.assertEqual(len(complaints), 1, result.stderr)
        self.assertIn(word, complaints[0])

    def places(self, tenant=None):
        return sorted((r["first_position"], r["tokens"]) for r in self.ask("ls") if tenant in (None, r["tenant"]))

    def key_at(self, position, tenant="0" * 32):
        return next(r["key"] for r in self.ask("ls") if r["first_position"] == position and r["tenant"] == tenant)

    def connect(self):
        s = socket.socket(socket.AF_UNIX)
        self.addCleanup(s.close)
        s.settimeout(60)
        here = os.getcwd()
        os.chdir(self.store)  # a path of any length
        try:
            while True:
                try:
                    s.connect("control")
                    return s
                except BlockingIOError:  # more at once than it listens for
                    time.sleep(0.001)
        finally:
            os.chdir(here)

    def send(self, s, command, payload=b"", magic=MAGIC, version=1, length=None):
        s.sendall(struct.pack("<IHHiI", magic, version, command, 0, len(payload) if length is None else length) + payload)

    def receive(self, s):
        """Status and payload; None: it hung up."""
        def exactly(n):
            data = b""
            while len(data) < n:
                piece = s.recv(n - len(data))
                if not piece:
                    return None
                data += piece
            return data
        try:
            header = exactly(16)
        except ConnectionResetError:
            return None
        if header is None:
            return None
        magic, version, _, status, length = struct.unpack("<IHHiI", header)
        self.assertEqual((magic, version), (MAGIC, 1))
        self.assertLessEqual(length, 128 << 10)
        return status, exactly(length) if length else b""


class Looking(Case):
    def test_says_what_is_there_and_that_it_is_live(self):
        holder = self.hold()
        holder.tell("note 0 1000 100")
        holder.publish(1, 5000, 30)
        self.assertEqual(holder.tell("flush"), "flushed")
        status = self.ask("status")
        self.assertEqual((status["mode"], status["process"], status["spans"], status["tokens"]), ("live", holder.process.pid, 3, 128))
        self.assertEqual(self.places(), [(0, 28), (0, 56), (56, 44)])
        self.assertEqual(self.admin("status").stderr, f"live: process {holder.process.pid} has the store open and is asked\n")
        live = self.ask("ls")
        self.assertEqual([r["pages_device"] for r in live], [14, 11, 7])
        self.assertEqual(self.ask("verify")["read_bytes"], 32 * 4096)
        shown = self.ask("show", live[1]["key"])
        self.assertEqual((shown["ids"], shown["path"], [n["bytes"] for n in shown["notes"]]), (list(range(1056, 1100)), [live[0]["record"]], [4]))
        self.assertEqual(self.ask("show", shown["notes"][0]["key"])["position"], 100)  # a boundary key
        figures = self.ask("stats")["figures"]
        self.assertEqual((figures["disk_spans"], figures["publishes"], sum(figures["publish"]["count"]), figures["misses_cold"]), (3, 2, 2, 2))
        self.assertEqual({u["tenant"]: u["disk_bytes"] for u in self.ask("quota")}, {"0" * 32: 128 << 10, ONE: 64 << 10})
        ids = " ".join(map(str, range(1000, 1090)))
        explained = self.ask("explain", text=ids)
        self.assertEqual((explained["stored"], explained["reusable"], explained["end"]), (88, 88, "whole"))
        self.assertEqual(self.ask("explain", "--tenant", ONE, text=ids)["end"], "nothing")
        holder.close()
        # The same, read from the files.
        self.assertEqual(self.ask("status")["mode"], "offline")
        dead = self.ask("ls")
        for of_live, of_dead in zip(live, dead, strict=True):
            self.assertEqual({k: v for k, v in of_live.items() if k in of_dead and k != "used"}, {k: v for k, v in of_dead.items() if k != "used"})

    def test_records_of_other_models_are_there_as_they_are_offline(self):
        holder = self.hold("1")
        holder.publish(0, 3000, 60)
        holder.tell("note 1 4000 30")
        self.assertEqual(holder.tell("flush"), "flushed")
        holder.close()
        dead = self.ask("ls")
        other = dead[0]["fingerprint"]
        holder = self.hold("0")
        holder.publish(0, 1000, 30)
        self.assertEqual(holder.tell("flush"), "flushed")
        listed = self.ask("ls")
        live = [r for r in listed if r["fingerprint"] == other]
        self.assertEqual((len(live), len(listed)), (3, 4))
        for of_live, of_dead in zip(live, dead, strict=True):
            self.assertEqual({k: v for k, v in of_live.items() if k in of_dead}, of_dead)
        status = self.ask("status")
        self.assertEqual((status["spans"], status["tokens"], status["models"], status["records_of_other_models"]), (4, 60 + 28 + 28, 2, 3))
        self.assertEqual([s["spans"] for s in self.ask("stats")["shares"] if s["fingerprint"] == other], [2, 1])
        self.assertEqual(self.ask("verify")["read_bytes"], (15 + 7 + 7) * 4096)
        shown = self.ask("show", live[1]["record"])
        self.assertEqual((shown["ids"], shown["path"]), (list(range(3056, 3060)), [live[0]["record"]]))
        ids = " ".join(map(str, range(3000, 3060)))
        self.assertEqual(self.ask("explain", text=ids)["end"], "nothing")  # of the model that is served
        self.assertEqual(self.ask("explain", "--model", other, text=ids)["stored"], 60)
        self.refused(2, "pin", live[0]["key"], word="another model")
        self.assertEqual(self.ask("evict", live[1]["key"])["spans"], 1)
        self.assertEqual(self.ask("evict", "--tenant", ONE)["spans"], 1)
        self.assertEqual([r["key"] for r in self.ask("ls") if r["fingerprint"] == other], [live[0]["key"]])
        holder.close()
        self.assertEqual(self.ask("rebuild")["records"], 2)

    def test_what_is_in_memory_only_is_seen_too(self):
        holder = self.hold("0", "slow")
        holder.publish(0, 1000, 60)
        listed = self.ask("ls")
        self.assertEqual([(r["record"], r["disk_bytes"], r["pages_device"]) for r in listed], [(None, 0, 14), (None, 0, 1)])
        self.assertEqual(self.ask("show", listed[0]["key"])["ids"], list(range(1000, 1056)))
        self.assertEqual(self.ask("explain", text=" ".join(map(str, range(1000, 1060))))["stored"], 60)
        self.refused(2, "pin", listed[0]["key"], word="on no disk yet")
        self.assertEqual(self.ask("evict", listed[1]["key"])["spans"], 1)
        self.assertEqual(self.places(), [(0, 56)])

    def test_watches(self):
        self.hold()
        with subprocess.Popen([ADMIN, self.store, "stats", "--watch", "0.02", "--json"], stdout=subprocess.PIPE, text=True) as process:
            lines = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
        self.assertEqual([line["publishes"] for line in lines], [0, 0, 0])
        # Stopped while nobody reads.
        with subprocess.Popen([ADMIN, self.store, "stats", "--watch", "0.001", "--json"], stdout=subprocess.PIPE) as process:
            there, before, deadline = array.array("i", [0]), -1, time.monotonic() + 60
            while (there[0] != before or there[0] == 0) and time.monotonic() < deadline:
                before = there[0]
                time.sleep(0.1)
                fcntl.ioctl(process.stdout, termios.FIONREAD, there)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), 0)
        self.refused(2, "stats", "--watch", "0", word="--watch")

    def test_which_way_can_be_forced(self):
        holder = self.hold()
        self.refused(3, "status", "--offline", word="in use")
        self.assertEqual(self.ask("status", "--live")["mode"], "live")
        for arguments in (("rebuild",), ("bench",), ("format", "--force"), ("scrub", "--drop")):
            self.refused(3, *arguments, word="in use")
        self.assertEqual(self.ask("scrub")["n_damaged"], 0)
        holder.close()
        self.assertFalse(os.path.exists(self.socket))
        self.refused(2, "status", "--live", word="can be asked")
        self.refused(2, "stats", "--watch", "1", word="in use")
        self.assertEqual(self.ask("drain")["pending_bytes"], 0)
        self.refused(2, "status", "--live", "--offline", word="usage")

    def test_verify_of_damage(self):
        holder = self.hold()
        holder.publish(0, 1000, 100)
        holder.tell("flush")
        with open(os.path.join(self.store, "volume.000"), "r+b") as file:
            file.seek((64 << 10) + 8192)
            file.write(b"damage")
        result = self.ask("verify", code=1)
        self.assertEqual((result["n_damaged"], result["read_bytes"]), (1, 14 * 4096))


class Changing(Case):
    def reused_after_rebuild(self, *conversations):
        """What a store finds whose catalogue was made anew from headers."""
        shutil.rmtree(os.path.join(self.store, "catalog"))
        holder = self.hold()
        found = [holder.publish(*c) for c in conversations]
        holder.close()
        return found

    def epoch(self):
        with open(os.path.join(self.store, "STORE"), encoding="ascii") as file:
            return int(dict(line.split(" ") for line in file.read().splitlines())["purge_epoch"])

    def test_what_is_evicted_is_gone_at_once_and_no_rebuild_brings_it_back(self):
        holder = self.hold()
        for conversation in ((0, 1000, 120), (0, 9000, 60), (1, 1000, 120)):
            holder.publish(*conversation)
        holder.tell("flush")
        gone = self.ask("evict", self.key_at(56))
        self.assertEqual((gone["spans"], gone["remaining"]), (2, 0))
        self.assertEqual(self.epoch(), 1)
        self.assertEqual(holder.publish(0, 1000, 58), 56)  # which stores nothing new
        gone = self.ask("evict", "--tenant", ONE)
        self.assertEqual((gone["spans"], self.places(ONE)), (3, []))
        self.assertEqual(holder.close().count("deletion for good through the control socket"), 2)
        self.assertEqual(self.admin("verify").returncode, 0)
        self.assertEqual(self.reused_after_rebuild((0, 1000, 121), (0, 9000, 61), (1, 1000, 121)), [56, 60, 0])

    def test_everything_with_what_left_earlier_and_what_other_models_stored(self):
        holder = self.hold("1")
        holder.publish(0, 3000, 60)
        holder.close()
        holder = self.hold("0", "forgetful")
        for i in range(40):
            holder.publish(0, 10000 + 100 * i, 56)
        self.ask("drain")  # nothing is written over what leaves now
        for i in range(200):
            holder.publish(0, 20000 + 100 * i, 56)
        self.assertGreater(self.ask("stats")["figures"]["evicted_disk_spans"], 0)
        gone = self.ask("evict", "--all")
        self.assertGreater(gone["leftovers"], 0)
        self.assertEqual(self.places(), [])
        figures = self.ask("stats")["figures"]
        self.assertEqual((figures["spans"], figures["disk_spans"], figures["records_foreign"]), (0, 0, 0))
        holder.close()
        self.assertEqual(self.reused_after_rebuild((0, 10000, 57), (0, 13900, 57), (0, 39900, 57)), [0, 0, 0])
        holder = self.hold("1")
        self.assertEqual(holder.publish(0, 3000, 61), 0)

    def test_what_a_running_request_holds_stays_its_own(self):
        holder = self.hold()
        holder.tell("hold 0 1000 100")
        holder.tell("flush")
        self.assertEqual(self.ask("evict", "--all")["spans"], 2)
        self.assertEqual(self.places(), [])
        self.assertEqual(holder.tell("release"), "released")
        holder.tell("flush")
        self.assertEqual(holder.publish(0, 1000, 57) in (0, 56), True)
        self.assertEqual(holder.tell("quiet").split()[3], "0")

    def test_pins_hold_at_once_and_later(self):
        holder = self.hold("0", "small")
        holder.publish(0, 1000, 112)
        holder.tell("flush")
        record = self.ask("ls")[1]["record"]
        self.assertEqual(self.ask("pin", record), {"record": record, "pinned": True})
        def press():
            for i in range(140):
                holder.publish(0, 10000 + 100 * i, 56)
            holder.tell("flush")
        press()
        self.assertEqual([r["first_position"] for r in self.ask("ls") if r["pinned"]], [56])
        self.assertEqual(holder.publish(0, 1000, 113), 112)
        holder.kill()
        self.assertEqual([r["first_position"] for r in self.ask("ls") if r["pinned"]], [56])
        holder = self.hold("0", "small")
        self.assertFalse(self.ask("unpin", record)["pinned"])
        press()
        self.assertNotIn(record, [r["record"] for r in self.ask("ls")])
        self.refused(4, "pin", "0" * 32)

    def test_quotas_are_kept_at_once_and_later(self):
        def use(tenant):
            return next((u for u in self.ask("quota") if u["tenant"] == tenant), None)
        holder = self.hold()
        for i in range(10):
            holder.publish(1, 10000 + 100 * i, 56)
        holder.tell("flush")
        self.assertEqual((use(ONE)["disk_bytes"], use(ONE)["device_bytes"], use(ONE)["records"]), (640 << 10, 560 << 10, 10))
        self.assertIsNone(use(ONE)["disk_limit"])
        self.assertEqual(self.ask("quota", ONE, "--disk", "256K"), {"device_bytes": 0, "host_bytes": 0, "disk_bytes": 256 << 10})
        deadline = time.monotonic() + 60
        while use(ONE)["disk_bytes"] > 256 << 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual((use(ONE)["disk_bytes"], use(ONE)["disk_limit"], use(ONE)["disk_own"]), (256 << 10, 256 << 10, True))
        self.ask("quota", ONE, "--device", "112K")  # the other limit stays
        self.assertEqual([(u["device_limit"], u["disk_limit"]) for u in self.ask("quota", "1111")], [(112 << 10, 256 << 10)])
        self.assertIn("256.0 KiB of 256.0 KiB", self.admin("quota").stdout)
        self.assertNotRegex(self.admin("quota").stdout, r"(?m) $")
        self.assertIn(f"quota of tenant {ONE} through the control socket: device {112 << 10} bytes, host as all others, disk {256 << 10} bytes", holder.close())
        self.assertEqual((use(ONE)["disk_bytes"], use(ONE)["disk_limit"]), (256 << 10, 256 << 10))
        self.ask("quota", ONE, "--none")
        self.assertIsNone(use(ONE)["disk_limit"])
        self.ask("quota", "22" * 16, "--disk", "128K")
        self.assertEqual([u["disk_limit"] for u in self.ask("quota", "2222")], [128 << 10])  # it has nothing else
        holder = self.hold()
        for i in range(6):
            holder.publish(1, 20000 + 100 * i, 56)
            holder.publish(2, 20000 + 100 * i, 56)
        holder.tell("flush")
        self.assertEqual((use(ONE)["disk_bytes"], use("22" * 16)["disk_bytes"]), (640 << 10, 128 << 10))
        for arguments in (("--disk", "1M"), (ONE, "--disk", "x"), (ONE, "--none", "--disk", "1M"), ("xyz",)):
            self.refused(2, "quota", *arguments)
        self.refused(4, "quota", "33" * 16)

    def test_drains(self):
        holder = self.hold("0", "slow")
        holder.publish(0, 1000, 100)
        self.assertGreater(self.ask("stats")["figures"]["pending_bytes"], 0)
        self.assertEqual(self.ask("drain"), {"draining": True, "pending_bytes": 0, "stopped": False})
        self.assertTrue(self.ask("status")["draining"])
        self.assertIn("draining", self.admin("status").stdout)
        holder.tell("note 0 5000 100")
        self.assertEqual(holder.publish(0, 5000, 101), 100)  # from memory
        self.assertEqual(self.ask("stats")["figures"]["pending_bytes"], 0)
        self.assertEqual(self.ask("stats")["figures"]["spans_written"], 2)
        self.assertFalse(self.ask("drain", "--end")["draining"])
        self.assertEqual(holder.tell("flush"), "flushed")
        self.assertEqual(self.ask("stats")["figures"]["spans_written"], 4)
        self.assertIn("drained", self.admin("drain").stdout)
        holder.publish(0, 7000, 60)
        holder.kill()  # nothing that was there when it drained is lost
        holder = self.hold()
        self.assertEqual([holder.publish(0, first, 101) for first in (1000, 5000, 7000)], [100, 100, 0])


class Clients(Case):
    def test_only_its_user_gets_in(self):
        holder = self.hold()
        mode = os.stat(self.socket)
        self.assertEqual((stat.S_ISSOCK(mode.st_mode), stat.S_IMODE(mode.st_mode)), (True, 0o600))
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        # Even where the file's mode would let them.
        for path, wide in ((self.top, 0o755), (self.store, 0o755), (self.socket, 0o666)):
            os.chmod(path, wide)
        script = ("import os, socket, struct, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nos.fchdir(fd)\nos.setgid(65534)\nos.setuid(65534)\n"
                  "s = socket.socket(socket.AF_UNIX)\ns.settimeout(60)\ns.connect('control')\n"
                  "try:\n  s.sendall(struct.pack('<IHHiI', 0x31435349, 1, 1, 0, 0))\n  print(len(s.recv(16)))\n"
                  "except (BrokenPipeError, ConnectionResetError):\n  print(0)\n")
        result = subprocess.run([sys.executable, "-c", script, self.store], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((result.returncode, result.stdout), (0, "0\n"), result.stderr)
        self.assertEqual(self.ask("status")["mode"], "live")
        self.assertEqual(holder.tell("flush"), "flushed")

    def test_garbage_is_let_go_and_harms_nobody(self):
        holder = self.hold()
        holder.publish(0, 1000, 100)
        holder.tell("flush")
        before = self.places()
        for junk in (b"GET / HTTP/1.1\r\n\r\n" + bytes(40), os.urandom(400), bytes(16)):
            s = self.connect()
            s.sendall(junk)
            self.assertIsNone(self.receive(s))
        s = self.connect()
        self.send(s, LIST, length=1 << 30)
        self.assertIsNone(self.receive(s))
        s = self.connect()
        self.send(s, HELLO, version=9)
        self.assertEqual(self.receive(s), (-6, b""))
        # Requests of the right form that make no sense are answered, and the connection goes on.
        s = self.connect()
        for command, payload in ((0, b""), (99, b""), (HELLO, b"x"), (LIST, b""), (LIST, bytes(9)), (RECORD, bytes(19)), (EVICT, b"\xff" * 4),
                                 (EVICT, struct.pack("<I", 5) + bytes(16)), (PIN, bytes(16) + b"\x07"), (DRAIN, b"\x02"), (ERASE, bytes(27))):
            self.send(s, command, payload)
            self.assertEqual(self.receive(s), (-2, b""), command)
        for command, payload, status in ((RECORD, bytes(20), -8), (PIN, bytes(17), -8), (LIST, b"\xff" * 8, 0), (EVICT, struct.pack("<I", 0), 0),
                                         (EVICT, struct.pack("<I", 128) + os.urandom(2048), 0),
                                         (ERASE, b"\xff" * 28, -2), (ERASE, b"\xff" * 24 + struct.pack("<I", 4096), 0),
                                         (ERASE, bytes(16) + struct.pack("<III", 0, 0, 4096), 0)):  # a chunk that is in use
            self.send(s, command, payload)
            self.assertEqual(self.receive(s)[0], status, command)
        s.sendall(struct.pack("<IHHiI", MAGIC, 1, HELLO, 0, 0)[:7])  # half a header, then silence
        self.assertEqual((self.places(), self.ask("verify")["n_damaged"]), (before, 0))
        holder.close()
        self.assertEqual(self.admin("verify").returncode, 0)

    def test_those_that_stop_reading_or_say_nothing_lock_nobody_out(self):
        holder = self.hold()
        for i in range(20):
            holder.publish(0, 10000 + 1000 * i, 300)
        silent = [self.connect() for _ in range(30)]
        deaf = self.connect()
        deaf.setblocking(False)
        try:
            while True:  # until neither side takes more
                deaf.send(struct.pack("<IHHiIQ", MAGIC, 1, LIST, 0, 8, 0) * 100)
        except BlockingIOError:
            pass
        self.assertEqual(self.ask("status")["spans"], 20 * 6)
        results = []
        threads = [threading.Thread(target=lambda: results.append(len(self.ask("ls")))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, [120] * 4)
        self.assertEqual(self.receive(silent[0]), None)
        self.assertEqual(holder.tell("flush"), "flushed")

    def test_a_stale_socket_is_replaced_and_other_files_are_left_alone(self):
        holder = self.hold()
        holder.kill()
        self.assertTrue(os.path.exists(self.socket))
        self.assertEqual(self.ask("status")["mode"], "offline")
        holder = self.hold()
        self.assertEqual(self.ask("status")["mode"], "live")
        holder.close()
        with open(self.socket, "w", encoding="ascii") as file:
            file.write("dear")
        holder = self.hold()
        self.refused(3, "status", word="cannot be asked")
        self.assertIn("no control socket", holder.close())
        with open(self.socket, encoding="ascii") as file:
            self.assertEqual(file.read(), "dear")
        self.refused(2, "format", "--force", word="'control'")
        os.remove(self.socket)
        holder = self.hold("0", "no-control")
        self.assertFalse(os.path.exists(self.socket))
        self.refused(3, "ls", word="cannot be asked")

    def test_a_process_that_goes_away_is_not_taken_for_an_empty_store(self):
        self.hold().publish(1, 1000, 30)
        real = self.connect()
        self.send(real, HELLO)
        _, hello = self.receive(real)
        os.unlink(self.socket)
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        here = os.getcwd()
        os.chdir(self.store)
        try:
            server.bind("control")
        finally:
            os.chdir(here)
        server.listen()
        asked = [("show", "11111111"), ("evict", "--tenant", "1111"), ("explain", "--model", "0000"), ("quota", "1111", "--none")]

        def greet_and_leave():
            for _ in asked:
                peer, _ = server.accept()
                with peer:
                    peer.recv(16, socket.MSG_WAITALL)
                    peer.sendall(struct.pack("<IHHiI", MAGIC, 1, HELLO, 0, len(hello)) + hello)
        thread = threading.Thread(target=greet_and_leave)
        thread.start()
        for arguments in asked:
            self.refused(2, *arguments, word="cannot list what is stored")
        thread.join()

    def test_in_a_folder_with_a_long_name(self):
        self.store = os.path.join(self.top, *["a-long-name-" * 8] * 3, "store")
        self.socket = os.path.join(self.store, "control")
        os.makedirs(os.path.dirname(self.store))
        self.hold()
        self.assertGreater(len(self.socket), 200)
        self.assertEqual(self.ask("status")["mode"], "live")

    def test_evicting_listing_and_verifying_while_requests_run(self):
        holder = self.hold("0", "small")
        holder.tell("busy 3")
        ends = time.monotonic() + 2
        done = {"ls": 0, "evict": 0, "verify": 0}

        def keep(name, *arguments):
            while time.monotonic() < ends:
                result = self.admin(name, *arguments, "--json")
                self.assertEqual(result.returncode in (0, 4), True, (name, result.stderr))
                if name == "verify":
                    self.assertEqual(json.loads(result.stdout)["n_damaged"], 0)
                done[name] += 1
        problems = []

        def run(*arguments):
            try:
                keep(*arguments)
            except Exception as e:  # pylint: disable=broad-except
                problems.append(e)
        threads = [threading.Thread(target=run, args=a) for a in (("ls",), ("evict", "--tenant", ONE), ("verify",))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        rounds, wrong = (int(n) for n in holder.tell("quiet").split()[1::2])
        self.assertEqual((problems, wrong), ([], 0))
        self.assertGreater(min(rounds, *done.values()), 0)
        self.assertEqual(self.ask("evict", "--all")["remaining"], 0)
        self.assertEqual(self.places(), [])
        holder.close()
        self.assertEqual(self.ask("verify")["n_damaged"], 0)
        self.assertEqual(self.ask("rebuild")["records"], 0)  # no header is left, of nothing that ever was there


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
