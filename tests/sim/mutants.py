"""Mistakes to be planted in the store, so that it is known that the simulator would see them.

    mutants.py NAME ROOT OUT      writes the source of that mutant
    mutants.py --file NAME        says which source it is
    mutants.py --check PROGRAM... each (.../sim_NAME) is caught within so many seeds; the first, without one, runs all

A mutant is one file with one piece of it replaced; the piece must be there exactly once, or the build fails.
"""

import subprocess
import sys
from pathlib import Path

# name: (file, what is there, what takes its place)
MUTANTS = {
    # The row is committed while the data may still be in the disk's cache: nobody waits for the sync.
    "index_before_data": (
        "cachestore/tier_disk_flush.c",
        "        io_add(t->io, &syncs[n++]);\n",
        "        sync_done(&syncs[n++], 0);\n",
    ),
    # Chunks are free as soon as the record is to be deleted: its row is still there, and reads are in flight.
    "reuse_before_delete": (
        "cachestore/tier_disk_delete.c",
        "    if (rec->state == REC_DURABLE) {\n",
        "    if (rec->state == REC_DURABLE) {\n"
        "        volumes_release(&t->volumes, rec->runs, rec->n_runs);\n"
        "        rec->n_runs = 0;\n",
    ),
    # A page's checksum says nothing about where the page belongs.
    "unseeded_checksum": (
        "formats/record.c",
        "    return XXH3_64bits(place, sizeof place);\n",
        "    return 0 * (uint64_t)place[0];\n",
    ),
    # A read ends with its first error, while other requests of it are still in flight.
    "recycled_operation": (
        "cachestore/tier_disk_move.c",
        "    if (--x->ops_left > 0)\n        return;\n    enum tier_result end",
        "    if (--x->ops_left > 0 && x->error == 0)\n        return;\n    enum tier_result end",
    ),
    "sync_error_ignored": (
        "cachestore/tier_disk_flush.c",
        "    if (result < 0)\n        g->sync_failed = true;\n",
        "    if (result < 0)\n        g->sync_failed = false;\n",
    ),
    # The second of two sequences at one place does not hold it.
    "lost_pin": (
        "cachestore/index.c",
        "    if (sp->pins++ == 0)\n",
        "    if (sp->pins == 0 && sp->pins++ == 0)\n",
    ),
    # A tenant's records on disk are not held against its limit.
    "quota_of_disk_ignored": (
        "cachestore/room.c",
        "    if (!drain_disk(s, a, bytes, &most))\n",
        "    if (!drain_disk(s, a, 0, &most))\n",
    ),
    # What is deleted for good says nothing of it to records that are written later.
    "epoch_not_raised": (
        "cachestore/tier_disk_admin.c",
        "    raised.purge_epoch = atomic_load(&t->purge_epoch) + 1;\n",
        "    raised.purge_epoch = atomic_load(&t->purge_epoch);\n",
    ),
    # Eviction from disk does not look at pins.
    "pin_ignored": (
        "cachestore/ranks.c",
        "sp->n_loading > 0 || sp->kept,\n",
        "sp->n_loading > 0,\n",
    ),
    # A block of the host may be given to somebody else while it is copied to the device.
    "block_freed_while_copied": (
        "cachestore/ranks.c",
        "    if (moving || sp->n_host == 0 || sp->n_loading > 0 || sp->host_pins > 0) {\n",
        "    if (moving || sp->n_host == 0 || sp->host_pins > 0) {\n",
    ),
    # Draining, it takes on what is published meanwhile.
    "drain_takes_new": (
        "cachestore/writeback.c",
        "    if (s->draining)\n        sp->held_back = true;\n    else\n        enqueue(s, sp, false);\n",
        "    enqueue(s, sp, false);\n",
    ),
}
SEEDS = 6000


def mutate(name: str, root: Path) -> str:
    file, old, new = MUTANTS[name]
    text = (root / file).read_text()
    if text.count(old) != 1:
        sys.exit(f"mutant {name}: its piece is {text.count(old)} times in {file}")
    return text.replace(old, new)


def check(programs: list[str]) -> int:
    """How many seeds each needs; the program without a mistake must run as many."""
    needed = 0
    failed = False
    for program in programs[1:]:
        name = Path(program).name.removeprefix("sim_")
        run = subprocess.run([program, "--seeds", f"0:{SEEDS}"], capture_output=True, text=True, timeout=600)
        line = next((line for line in run.stderr.splitlines() if line.startswith("seed ")), "")
        crash = run.returncode < 0
        if not line and not crash:
            print(f"{name}: NOT CAUGHT in {SEEDS} seeds")
            failed = True
            continue
        seed = int(line.split()[1].rstrip(":"))
        needed = max(needed, seed + 1)
        print(f"{name}: caught after {seed + 1} seeds: {line}")
    run = subprocess.run([programs[0], "--seeds", f"0:{needed}"], capture_output=True, text=True, timeout=600)
    print(f"without a mistake: {needed} seeds: {'clean' if run.returncode == 0 else run.stderr}")
    return 1 if failed or run.returncode != 0 else 0


def main(args: list[str]) -> int:
    if args[0] == "--check":
        return check(args[1:])
    if args[0] == "--file":
        print(MUTANTS[args[1]][0])
        return 0
    name, root, out = args
    Path(out).write_text(mutate(name, Path(root)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
