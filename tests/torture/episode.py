"""One store's life under torture: processes that are killed, damage between them, and what the oracle makes of it."""
import mmap
import os
import random
import select
import shutil
import signal
import time

import damage
from oracle import OPENED, Oracle, Violation, entries, read_log

LOG_BYTES = 8 << 20
LOGS_KEPT = 4
PATIENCE_MS = 120000  # a process that is silent for so long hangs
CODES = {0: "done", 3: "failed", 4: "busy", 5: "refused"}

# What a step needs before it comes: a way to damage the store, or a configuration.
NEEDS = {"tier_rebuild": "catalog_removed", "catalog_remove": "catalog_unreadable", "unlinkat": "catalog_unreadable",
         "store_file_create": "fresh", "fallocate": "fresh", "renameat": "fresh", "mkdirat": "fresh", "foreign_evict": "foreign",
         "pwritev": "pread", "ftruncate": "shrink", "tier_disk_settle": "shrink", "tier_disk_close": "close", "catalog_close": "close",
         "volumes_close": "close", **dict.fromkeys(("catalog_open_new", "catalog_replace", "renameat2"), "rebuild"), **dict.fromkeys(("tier_disk_delete", "tier_delete_take", "tier_group_send", "catalog_delete",
                                                    "tier_deletes_end", "tier_record_end", "volumes_release", "volumes_trim"), "small")}
DAMAGES = ("rot", "rot", "misplaced", "volume_zeroed", "volume_cut", "catalog_file", "catalog_file", "catalog_unreadable",
           "catalog_removed", "catalog_removed", "catalog_of_earlier", "half_made_store_file")
# Where a rebuild on request may be killed.
REBUILD_STEPS = [f"{call}:{when}" for when in ("before", "behind") for call in (
    "catalog_open_new", "catalog_put", "catalog_commit", "catalog_store_put", "catalog_close", "catalog_replace", "renameat2", "renameat",
    "rename", "mkdirat", "fsync", "fdatasync", "write", "unlink", "unlinkat")]
MIB = 1 << 20
IO_AUTO, IO_PREAD = 0, 2  # of enum cs_io_engine
BUDGETS = (3 * MIB, 4 * MIB, 5 * MIB, 8 * MIB)
THREADS = (1, 2, 3)
HOST_BLOCKS = (0, 256, 400)  # of a page; what all threads restore at once has to fit in


class Process:
    """A child and its log."""

    def __init__(self, child, log_path, options, environment):
        self.log_path = log_path
        if not os.path.exists(log_path):
            with open(log_path, "wb") as f:
                f.truncate(LOG_BYTES)
        with open(log_path, "r+b") as f:
            self.log = mmap.mmap(f.fileno(), LOG_BYTES)
        self.log[0:8] = bytes(8)
        arguments = [child, log_path, options.pop("dir")] + [f"{name}={value}" for name, value in options.items()]
        out = log_path + ".stderr"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.began = time.monotonic()
        self.pid = os.posix_spawn(child, arguments, environment, file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, out, flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)])
        self.pidfd = os.pidfd_open(self.pid)
        self.poll = select.poll()
        self.poll.register(self.pidfd, select.POLLIN)
        self.status = None

    def ended(self, timeout_ms):
        """Whether it ended by then."""
        if self.status is None and self.poll.poll(timeout_ms):
            _, self.status = os.waitpid(self.pid, 0)
            os.close(self.pidfd)
        return self.status is not None

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            if not self.ended(PATIENCE_MS):
                raise Violation("it does not even end by kill -9")

    def has_said(self, kind):
        used = int.from_bytes(self.log[0:8], "little")
        if used == 0:
            return False
        words, _ = read_log(self.log, 0)
        return any(k == kind for k, _ in entries(words))

    def close(self):
        self.kill()
        self.log.close()

    def verdict(self):
        """How it ended: "killed" or a word of CODES; a crash is a violation."""
        if os.WIFSIGNALED(self.status):
            if os.WTERMSIG(self.status) == signal.SIGKILL:
                return "killed"
            raise Violation(f"it crashed with signal {os.WTERMSIG(self.status)}: {self.stderr()}")
        code = os.WEXITSTATUS(self.status)
        if code not in CODES:
            raise Violation(f"it ended with code {code}: {self.stderr()}")
        return CODES[code]

    def stderr(self):
        with open(self.log_path + ".stderr", encoding="utf-8", errors="replace") as f:
            text = f.read()
        return text if len(text) < 3000 else text[:2000] + " ... " + text[-1000:]


class Tools:
    """What all episodes share."""

    def __init__(self, child, steps, counters, folder, may_mount, environment):
        self.child, self.steps, self.counters, self.folder = child, steps, counters, folder
        self.may_mount, self.environment = may_mount, environment
        self.typical_hits = {}  # of a step, in a process
        self.verify_ms = 20.0


class Episode:
    def __init__(self, tools, seed, number, counts):
        self.tools, self.counts = tools, counts
        self.rng = random.Random(f"{seed}/{number}")
        self.number = number
        self.folder = os.path.join(tools.folder, f"episode-{number}")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.stateful = number % 3 == 1
        self.full = tools.may_mount and number % 8 == 5
        self.host = number % 5 in (2, 4)  # some of its processes have a device and a host tier
        self.chunk_bytes = self.rng.choice((4096, 8192, 16384))
        self.disk_bytes = self.rng.choice(BUDGETS)
        self.identities = [(1, 4, 4096), (2, 4, 4096), (1, 8, 8192)]  # fingerprint, page_tokens, page_bytes
        self.identity = self.identities[0]
        self.store = os.path.join(self.folder, "fs", "store")
        self.filler = None
        if self.full:
            if not damage.mount_tmpfs(os.path.dirname(self.store), self.disk_bytes * 5 // 4):
                raise RuntimeError("a mount was refused")
            self.filler = damage.Filler(os.path.dirname(self.store))
        else:
            os.makedirs(os.path.dirname(self.store))
        self.read_only = False
        self.io_engine = IO_AUTO
        self.n_spawned = 0
        self.history = []  # of damage
        self.loops, self.what = 0, []  # so far; what this one has done, for a message
        self.oracle = None
        self.renew()

    def renew(self):
        """A store from nothing."""
        if self.oracle is not None:
            self.count_totals()
        shutil.rmtree(self.store, ignore_errors=True)
        self.oracle = Oracle(self.tools.counters, lambda i: i[1], lambda i: 8 if self.stateful else 0)
        self.damage = damage.Damage(self.store, self.oracle, self.chunk_bytes, self.rng)
        self.damage.turn = self.rng.randrange(64)
        self.known_keys = set()
        self.opened_budget = 0
        self.catalog_is_whole = self.catalog_touched = False
        self.count("stores")

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    def count_totals(self):
        for name, n in self.oracle.totals.items():
            self.count(name, n)

    def end(self, keep):
        self.count_totals()
        if self.filler is not None:
            self.filler.file.close()
            if keep:  # the mount ends with this process
                shutil.copytree(self.store, os.path.join(self.folder, "store"), ignore=shutil.ignore_patterns("control"),
                                dirs_exist_ok=True)  # but for the socket
            damage.unmount(os.path.dirname(self.store))
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- one loop

    def options(self, **more):
        rng = self.rng
        options = {"dir": self.store, "seed": rng.randrange(1, 1 << 48), "fingerprint": self.identity[0],
                   "page_tokens": self.identity[1], "page_bytes": self.identity[2], "stateful": int(self.stateful),
                   "ops": rng.randrange(50, 600), "disk_bytes": self.disk_bytes, "chunk_bytes": self.chunk_bytes,
                   "arena_bytes": rng.choice((320, 400, 800)) * self.identity[2],
                   "extent_bytes": rng.choice((64 << 10, 256 << 10, MIB)), "flush_bytes": rng.choice((0, 128 << 10)),
                   "io_engine": self.io_engine, "flush_interval_ms": rng.choice((1, 5, 20)), "inflight_bytes": rng.choice((0, 256 << 10)),
                   "passes": 2 if self.oracle.damaged or self.oracle.doubtful else 1,
                   "keys": int(self.identity not in self.known_keys), "threads": rng.choice(THREADS),
                   "host_bytes": rng.choice(HOST_BLOCKS) * self.identity[2] if self.host else 0}
        options.update(more)
        self.count(f"processes of {options['threads']} threads")
        if options["host_bytes"]:
            self.count("processes with a host tier")
        return options

    def spawn(self, name="log", **more):
        self.n_spawned += 1
        name = f"{name}.{self.n_spawned % LOGS_KEPT}"
        options = self.options(**more)
        self.what.append(" ".join(f"{n}={v}" for n, v in options.items() if n != "dir"))
        return Process(self.tools.child, os.path.join(self.folder, name), options, self.tools.environment)

    def hear(self, process, purged=False):
        """Reads the log of a process that has ended. Returns its session."""
        words, hits = read_log(process.log, len(self.tools.steps))
        for step, n in zip(self.tools.steps, hits):
            if n:
                self.tools.typical_hits[step] = (3 * self.tools.typical_hits.get(step, n) + n) / 4
        may_fail = self.full or self.read_only
        shrinks = self.disk_bytes < self.opened_budget
        session = self.oracle.replay(words, self.identity, may_shrink=shrinks, may_fail=may_fail, purged=purged)
        if session.rebuilt and session.disk_on and self.catalog_is_whole and not self.catalog_touched and not self.full:
            raise Violation("a catalogue is made again that nobody has touched: " + "; ".join(session.logs[-3:]))
        self.catalog_touched &= not (session.rebuilt and session.disk_on)
        self.catalog_is_whole |= session.ever_on
        if session.ever_on:
            # On a full file system rows of what is to leave may have to stay for a while.
            self.opened_budget = max(self.opened_budget, self.disk_bytes) if self.full else self.disk_bytes
        if session.verified:
            self.count("verified after a kill or a close")
            if session.verified_us is not None:
                ms = (session.verified_us / 1e6 - process.began) * 1000
                self.tools.verify_ms = 0.9 * self.tools.verify_ms + 0.1 * ms
            if not self.read_only:
                self.known_keys.add(self.identity)
        if session.rebuilt and session.opened:
            self.count("catalogues rebuilt")
        return session

    def judge_size(self):
        limit = max(self.opened_budget, self.disk_bytes)
        size = damage.bytes_on_disk(self.store)
        self.counts["largest store, per mille of its budget"] = max(
            self.counts.get("largest store, per mille of its budget", 0), size * 1000 // limit)
        if size > limit:
            raise Violation(f"the files take {size} bytes of {limit}")

    def change(self):
        """Another configuration for the next process, now and then."""
        rng = self.rng
        if rng.random() < 0.15:
            self.disk_bytes = rng.choice(BUDGETS)
            self.count("budget changes")
        if rng.random() < 0.2:
            self.io_engine = rng.choice((IO_AUTO, IO_PREAD))
            self.count("I/O engine changes")
        if self.identity != self.identities[0] or rng.random() < 0.08:
            other = rng.choice(self.identities)
            if other != self.identity:
                self.identity = other
                self.count("fingerprint or page size changes")

    def prepare(self, need):
        """Whatever makes a step come that needs something."""
        if need == "fresh":
            self.renew()
        elif need == "foreign":
            self.identity = self.identities[(self.identities.index(self.identity) + 1) % len(self.identities)]
            self.disk_bytes = BUDGETS[0]
        elif need == "pread":
            self.io_engine = IO_PREAD
        elif need == "small":
            self.disk_bytes = BUDGETS[0]
        elif need == "shrink":
            if self.disk_bytes == BUDGETS[0] or self.opened_budget <= BUDGETS[0]:
                self.disk_bytes = BUDGETS[-1]
                self.close_cleanly(ops=1500)
            self.disk_bytes = BUDGETS[0]
        elif need not in (None, "close") and getattr(self.damage, need)():
            self.what.append(need)
            self.history.append(f"{self.loops}: {need}")
            self.count(f"damage: {need}")
            self.catalog_touched |= need.startswith("catalog")

    def loop(self, step=None, attempt=0):
        """Returns whether `step` was where it ended (True without one). Each attempt waits for it half as often."""
        rng = self.rng
        self.count("loops")
        self.loops += 1
        self.what = []
        self.change()
        if self.full:
            self.filler.leave(64 * MIB)
        if step is None:
            if rng.random() < 0.3 and os.path.isdir(self.store):
                self.prepare(rng.choice(DAMAGES))
            if self.full:
                self.filler.leave(rng.choice((0, 64 << 10, 300 << 10, MIB, 64 * MIB)))
            if rng.random() < 0.02:
                return self.read_only_loop()
            if rng.random() < 0.06:
                return self.two_processes()
            if rng.random() < 0.06 and self.opened_budget > 0 and not self.full:
                self.offline(rng.choice(("purge", "purge", "rebuild")))
                return True
            if rng.random() < 0.06 and self.opened_budget > 0 and not self.full:
                return self.purge_live()
            kind = rng.random()
            if kind < 0.45:
                step = self.some_step()
            elif kind < 0.55:
                return self.close_cleanly()
            else:
                return self.kill_at_random()
        return self.kill_at(step, attempt)

    def some_step(self):
        """Mostly one that is known to come."""
        while True:
            step = self.rng.choice(self.tools.steps)
            if self.tools.typical_hits.get(step, 0) >= 1 or step.split(":")[0] in NEEDS or self.rng.random() < 0.1:
                return step

    def kill_at(self, step, attempt):
        need = NEEDS.get(step.split(":")[0])
        if need == "rebuild":
            return self.rebuild_killed_at(step)
        self.prepare(need)
        nth = 1 + self.rng.randrange(max(1, int(self.tools.typical_hits.get(step, 1)) >> attempt))
        more = {"ops": self.rng.randrange(20, 120)} if need == "close" else {}
        process = self.spawn(die=step, nth=nth, close_ms=self.rng.choice((0, 10000)), **more)
        try:
            self.wait(process)
            came = process.verdict() == "killed"
            self.count("killed at a step" if came else "closed, for a step did not come")
            if came:
                self.count("at " + step)
            self.judge(process)
            return came
        finally:
            process.close()

    def wait(self, process):
        """Until it has ended by itself."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not process.ended(3):
            self.meanwhile()
            if time.monotonic() > end:
                raise Violation("it hangs: " + process.stderr())

    def meanwhile(self):
        """While a process runs."""
        self.judge_size()
        if self.full and self.rng.random() < 0.3:
            self.filler.leave(self.rng.choice((0, 0, 32 << 10, 200 << 10, MIB, 64 * MIB)))

    def judge(self, process, purged=False):
        verdict = process.verdict()
        session = self.hear(process, purged)
        if verdict == "refused":
            raise Violation(f"the store does not open: code {session.code}: " + "; ".join(session.logs[-3:]))
        if verdict == "done" and not session.done:
            raise Violation("it ended before it was done: " + process.stderr())
        if verdict == "busy":
            raise Violation("nobody else has the store, and it is busy")
        self.judge_size()
        return session

    def kill_at_random(self):
        process = self.spawn()
        try:
            until = process.began + self.rng.random() * (2 * self.tools.verify_ms + 15) / 1000
            while not process.ended(max(0, min(3, (until - time.monotonic()) * 1000))):
                if time.monotonic() >= until:
                    break
                self.meanwhile()
            process.kill()
            self.count("killed at random" if process.verdict() == "killed" else "closed, before it was killed")
            self.judge(process)
        finally:
            process.close()
        return True

    def crowd(self):
        """Options for as much at once as there can be."""
        return {"threads": THREADS[-1], "host_bytes": HOST_BLOCKS[1] * self.identity[2]}

    def close_cleanly(self, ops=None, **more):
        process = self.spawn(ops=ops or self.rng.randrange(200), close_ms=self.rng.choice((0, 50, 10000)), **more)
        try:
            self.wait(process)
            self.count("closed")
            self.judge(process)
        finally:
            process.close()
        return True

    def first_process(self, **more):
        """One that has the store open and works on."""
        first = self.spawn(reopen=0, ops=1000000, **more)
        end = time.monotonic() + PATIENCE_MS / 1000
        while not first.has_said(OPENED) and not first.ended(1):
            if time.monotonic() > end:
                first.close()
                raise Violation("it hangs while it opens")
        return first

    def purge_live(self):
        """A second process has paths deleted for good by one that works, and that may be killed at it."""
        rng = self.rng
        dies = {"die": self.some_step(), "nth": 1 + rng.randrange(30)} if rng.random() < 0.4 else {}
        first, second = self.first_process(**dies), None
        try:
            second = self.spawn("log-2", purge=1 + rng.randrange(8), live=1)
            if not dies and rng.random() < 0.5:
                second.ended(rng.random() * self.tools.verify_ms)
                first.kill()
            if not second.ended(PATIENCE_MS):
                raise Violation("a live purge hangs: " + second.stderr())
            if rng.random() < 0.5:
                first.ended(rng.randrange(30))
            first.kill()
            self.count("killed beside a live purge" if first.verdict() == "killed" else "closed, for a step did not come")
            self.judge(first, purged=True)
            ended = second.verdict()
            if ended == "refused":  # by who was killed
                self.hear(second)
            else:
                self.judge(second)
            self.count(f"live purge: {ended}")
            self.history.append(f"{self.loops}: live purge {ended}")
        finally:
            first.close()
            if second is not None:
                second.close()
        return True

    def two_processes(self):
        """A second one finds the store busy, or takes it over from the one that is killed."""
        takes_over = self.rng.random() < 0.5
        first, second = self.first_process(), None
        try:
            second = self.spawn("log-2", wait=int(takes_over), ops=self.rng.randrange(60), keys=1)
            if takes_over:
                second.ended(self.rng.randrange(1, 30))
                first.kill()
            if not second.ended(PATIENCE_MS):
                raise Violation("the second process hangs: " + second.stderr())
            busy, had_ended = second.verdict() == "busy", first.ended(0)
            first.kill()
            session = self.judge(first)
            if takes_over and busy:
                raise Violation("the store of a process that is dead stays busy")
            if not takes_over and not busy and session.ever_on and not had_ended:
                raise Violation("two processes have the store open")
            self.count("second process refused" if busy else "store taken over from a killed process" if takes_over
                       else "store taken over")
            if not busy:
                self.judge(second)
        finally:
            first.close()
            if second is not None:
                second.close()
        return True

    def rebuild_killed_at(self, step):
        """Returns whether it came."""
        if self.full:  # there may be no room for a second catalogue
            return self.kill_at_random()
        if not self.opened_budget:
            self.close_cleanly()
        came = self.offline("rebuild", {"die": step, "nth": 1, "exchange": 1}) == "killed"
        self.count("killed at a step" if came else "closed, for a step did not come")
        if came:
            self.count("at " + step)
        return came

    def offline(self, what, dies=None):
        """Deletes for good, or makes the catalogue again, in a process that may be killed at it. Returns how it ended."""
        rng = self.rng
        more = dies or {}
        if not dies and rng.random() < 0.5:
            more = {"die": rng.choice(REBUILD_STEPS) if what == "rebuild" else self.some_step(), "nth": 1 + rng.randrange(3)}
        if what == "rebuild":
            self.oracle.catalog_removed()
            more = {"exchange": rng.randrange(2), **more}
        process = self.spawn(**{what: 1 + rng.randrange(8)}, **more)
        try:
            if "die" not in more and rng.random() < 0.5:
                process.ended(rng.random() * self.tools.verify_ms)
                process.kill()
            self.wait(process)
            ended = process.verdict()
            if ended == "refused" and self.oracle.damaged:  # a catalogue that does not open
                self.hear(process)
            else:
                self.judge(process)
            self.count(f"offline {what}: {ended}")
            self.history.append(f"{self.loops}: {what} {ended}")
        finally:
            process.close()
        return ended

    def read_only_loop(self):
        """Served without the disk, which is as it was afterwards."""
        if not self.tools.may_mount or not os.path.isdir(self.store) or self.full:
            return self.kill_at_random()
        if not damage.make_read_only(self.store):
            raise RuntimeError("a mount was refused")
        self.read_only = True
        try:
            process = self.spawn(ops=self.rng.randrange(100), close_ms=0, keys=0)
            try:
                if not process.ended(PATIENCE_MS):
                    raise Violation("it hangs on a read-only directory")
                verdict, session = process.verdict(), self.hear(process)
                if verdict != "done" or session.disk_on or session.rebuilt:
                    raise Violation(f"on a read-only directory: {verdict}, disk {session.disk_on}, rebuilt {session.rebuilt}: " + "; ".join(session.logs[-3:]))
                self.count("read-only directory")
            finally:
                process.close()
        finally:
            self.read_only = False
            damage.unmount(self.store)
        return True
