#!/usr/bin/env python3
"""Crash torture of the prefix cache's store on real files.

  python3 tests/torture [--child PROGRAM] [--loops N | --seconds S] [--seed N] [--episode N] [--dir FOLDER] [--jobs N] [--calm]

A loop is one process (torture_child) that opens the store, looks every conversation up, works and dies: by kill -9 at a
random moment, by its own hand at one of the labelled steps of publish, evict, rebuild, open and close, or by a clean close.
Between two processes files are damaged, budgets, fingerprint and page size change, the directory is read-only, a second
process comes, the file system fills. The oracle (oracle.py) is told what was acknowledged through shared memory and checks
after each: no wrong byte, no hang, no budget overrun, counters that balance, and at least 99.9 % of what was durable and not
evicted is hit.

Stops at the first violation, keeps the store, prints the seed and how to run that episode again (decisions are the same then;
threads run as they like). Exit code 0; 1 after a violation; 77 where there is no disk tier.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import damage
from episode import Episode, Tools
from oracle import read_log, Violation

LOOPS_AN_EPISODE = 40
CALM_LOOPS_AN_EPISODE, CALM_OPS = 2, 400
PROGRESS_S = 60
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments():
    p = argparse.ArgumentParser(prog="torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--child", default=os.path.join(ROOT, "build", "tests", "torture", "torture_child"))
    p.add_argument("--loops", type=int, help="about so many, whole episodes")
    p.add_argument("--seconds", type=float, help="begin no loop after so long (default 25, where no --loops are given)")
    p.add_argument("--seed", type=int)
    p.add_argument("--episode", type=int, help="only this one")
    p.add_argument("--dir", help="where stores are made; default: memory")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--calm", action="store_true",
                   help="nothing is killed or damaged: three threads, a device and a host tier, closed in order; for sanitizers")
    return p.parse_args()


def describe(child):
    lines = subprocess.run([child, "describe"], check=True, capture_output=True, text=True, timeout=60).stdout.split("\n")
    names = [line.split(" ", 1) for line in lines if line]
    return [n for what, n in names if what == "step"], [n for what, n in names if what == "counter"]


def kills(counts):
    return sum(n for what, n in counts if what.startswith("killed ") or "taken over from" in what)


class Run:
    def __init__(self, options, tools, seed):
        self.options, self.tools, self.seed = options, tools, seed
        self.lock = threading.Lock()
        self.counts = {}
        self.counting = []  # of threads at work
        self.first_episode = 1 if options.calm else 0  # that one is the sweep
        self.next_episode = options.episode or self.first_episode
        self.loops_an_episode = CALM_LOOPS_AN_EPISODE if options.calm else LOOPS_AN_EPISODE
        self.failure = None
        self.start = time.monotonic()
        self.limit_s = options.seconds if options.seconds or options.loops else 25

    def is_over(self):
        return self.failure is not None or bool(self.limit_s and time.monotonic() - self.start > self.limit_s)

    def take_episode(self):
        with self.lock:
            number = self.next_episode
            self.next_episode += 1
        if self.options.episode is not None:
            return number if number == self.options.episode else None
        before = (number - self.first_episode) * self.loops_an_episode
        if not self.first_episode and number > 0:
            before += len(self.tools.steps) - self.loops_an_episode
        return None if self.options.loops and before >= self.options.loops else number

    def episode(self, number, counts):
        episode = Episode(self.tools, self.seed, number, counts)
        broken = True
        try:
            if number < 1:
                self.sweep(episode)
            else:
                for _ in range(self.loops_an_episode):
                    if self.is_over():
                        break
                    if self.options.calm:
                        episode.close_cleanly(ops=CALM_OPS, **episode.crowd())
                    else:
                        episode.loop()
            broken = False
        except Exception as failure:  # pylint: disable=broad-exception-caught
            with self.lock:
                self.failure = self.failure or (
                    f"VIOLATION in episode {number}, loop {episode.loops} ({episode.what}): {failure}\n"
                    f"  damage before, by loop: {', '.join(episode.history) or 'none'}\n"
                    f"  seed {self.seed}; again: python3 tests/torture --seed {self.seed} --episode {number} --child {self.tools.child}\n"
                    f"  kept: {episode.folder}" + ("" if isinstance(failure, Violation) else "\n" + traceback.format_exc()))
        finally:
            episode.end(keep=broken)

    def sweep(self, episode):
        """Each step once, or it is not reached by anything."""
        left = self.tools.steps
        for attempt in range(8):
            left = [step for step in left if not episode.loop(step, attempt)]
        if left:
            raise Violation("steps that never came: " + ", ".join(left))

    def say_progress(self):
        loops = killed = 0
        for counts in self.counting:
            loops += counts.get("loops", 0)
            killed += kills(list(counts.items()))
        print(f"{time.strftime('%H:%M:%S')}  {loops} loops, {killed} kill -9, {time.monotonic() - self.start:.0f} s", flush=True)

    def work(self):
        counts = {}
        self.counting.append(counts)
        while not self.is_over():
            number = self.take_episode()
            if number is None:
                break
            self.episode(number, counts)
        with self.lock:
            for what, n in counts.items():
                if what.startswith("largest"):
                    self.counts[what] = max(self.counts.get(what, 0), n)
                else:
                    self.counts[what] = self.counts.get(what, 0) + n

    def report(self):
        steps = {what: n for what, n in self.counts.items() if what.startswith("at ")}
        self.counts["different steps killed at"] = len(steps)
        self.counts["fewest kills at one of them"] = min(steps.values(), default=0)
        self.counts["kill -9"] = kills(self.counts.items())
        for what in sorted(self.counts):
            if what not in steps:
                print(f"{self.counts[what]:10}  {what}")
        expected, hit = self.counts.get("pages expected", 0), self.counts.get("pages hit", 0)
        if expected:
            print(f"{100 * hit / expected:10.4f}  % of durable pages hit")
        print(f"{time.monotonic() - self.start:10.0f}  seconds, seed {self.seed}")


def main():
    options = arguments()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"torture: seed {seed}", flush=True)
    child = os.path.abspath(options.child)
    steps, counters = describe(child)
    base = options.dir or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    folder = tempfile.mkdtemp(prefix="torture-", dir=base)
    may_mount = damage.mounts_allowed()
    if not may_mount:
        print("SKIPPED: a file system that fills up and a read-only directory; they need the right to mount", flush=True)
    run = Run(options, Tools(child, steps, counters, folder, may_mount, dict(os.environ)), seed)
    if not disk_can_be_had(run.tools):
        print("SKIPPED: the disk tier cannot be had here (io_uring)")
        shutil.rmtree(folder)
        return 77
    threads = [threading.Thread(target=run.work) for _ in range(options.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        while t.is_alive():
            t.join(PROGRESS_S)
            if t.is_alive():
                run.say_progress()
    run.report()
    if run.failure:
        print(run.failure)
        return 1
    shutil.rmtree(folder)
    return 0


def disk_can_be_had(tools):
    """One short life of a store."""
    episode = Episode(tools, 0, -1, {})
    process = episode.spawn(ops=1)
    try:
        process.ended(60000)
        process.kill()
        words, _ = read_log(process.log, len(tools.steps))
        session = episode.oracle.replay(words, episode.identity, may_fail=True)
        return not session.opened or session.disk_on
    finally:
        process.close()
        episode.end(keep=False)


if __name__ == "__main__":
    sys.exit(main())
