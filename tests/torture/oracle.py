"""What must be true of a store, known outside the process that is killed.

The oracle reads the log of each process (witness.h) and keeps, over all of them, which records are durable and not
deleted, which pages of token ids they hold, and which of them somebody has damaged. Each look-up is held against that: a
page whose record is durable, whole and reachable must be a hit.

A record is *trusted* (it must be there and right) or *doubtful* (its bytes or its row were tampered with; it may be a
miss) or gone. A doubtful record whose pages were all read right is trusted again.
"""
from array import array

(OPENING, OPENED, RESTART, LOADED, WRITE, RUNS, DURABLE, DELETE, ROW_DELETE, PATH, LOOKUP, VERIFIED, FLUSHED, STATS,
 CLOSING, CLOSED, DONE, LOG, FAILED, FULL_ARENA, KEYS, PURGE, PURGED) = range(1, 24)
SPAN, CHECKPOINT = 1, 2
MISS_CORRUPT = 6  # of enum cs_miss
TIERS = ("device", "host", "disk_spans", "disk_checkpoints")
HIT_SHARE = 0.999  # of what must be a hit

HEADER_WORDS = 256  # of the log
FIRST_HIT_BYTE = 32  # of the steps' counters


class Violation(Exception):
    """The store did what it must never do."""


def entries(words):
    at = 0
    while at < len(words):
        kind, n = words[at] >> 32, words[at] & 0xffffffff
        yield kind, words[at + 1:at + 1 + n]
        at += 1 + n


def text_of(words):
    return words[1:].tobytes().split(b"\0", 1)[0].decode(errors="replace")


class Record:
    __slots__ = ("kind", "identity", "position", "parent", "keys", "runs", "trusted", "doubtful", "gone",
                 "buried",  # deleted by a process that closed in order
                 "damaged")  # its chunks were, whatever became of it since: a row that comes back says nothing

    def __init__(self, identity, words):
        self.kind, self.position, n = words[2], words[3], words[6]
        self.identity = identity
        self.parent = (identity, words[4], words[5])
        self.keys = [(identity, words[7 + 2 * i], words[8 + 2 * i]) for i in range(n)]
        self.runs = ()
        self.trusted = self.doubtful = self.gone = self.buried = self.damaged = False


class Session:
    """What one process did, as far as its log goes."""

    def __init__(self):
        self.opened = self.disk_on = self.verified = self.done = self.rebuilt = False
        self.ever_on = False  # the disk was, at one of its openings
        self.tainted = False  # checksums may fail
        self.n_purged = 0  # so many of what was to be deleted for good are
        self.code = None
        self.logs = []
        self.last_kind = None
        self.opening_us = self.verified_us = None


class Oracle:
    def __init__(self, counters, page_tokens_of, grid_of):
        """page_tokens_of, grid_of: of an identity; grid 0: every page edge can be resumed at."""
        self.counters = counters
        self.page_tokens_of, self.grid_of = page_tokens_of, grid_of
        self.records = {}
        self.spans, self.checkpoints = {}, {}  # key -> trusted records
        self.doubtful = set()
        self.doubtful_keys = set()  # when the store was opened
        self.paths = {}
        self.ever_durable, self.ever_published = set(), set()
        self.purged = set()  # ids that may never come back
        self.pristine = True  # the catalogue was never tampered with, nor made again
        self.catalog_touched = False  # since the last process
        self.rolled_back = False  # ... and opened without what was in it last
        self.damaged = False  # something was, and no process has come to the end of its look-ups since
        self.before = set()  # trusted before the catalogue was damaged, volumes untouched since
        self.totals = {"pages expected": 0, "pages hit": 0, "look-ups": 0, "balances judged": 0, "records durable": 0, "records deleted": 0,
                       "catalogue damaged: records before": 0, "catalogue damaged: records after": 0}

    # ---- records

    def trust(self, record):
        if not record.trusted:
            record.trusted, record.gone = True, False
            table = self.checkpoints if record.kind == CHECKPOINT else self.spans
            for key in record.keys:
                table.setdefault(key, set()).add(record)
        record.doubtful = False
        self.doubtful.discard(record)

    def distrust(self, record):
        if record.trusted:
            record.trusted = False
            table = self.checkpoints if record.kind == CHECKPOINT else self.spans
            for key in record.keys:
                table[key].discard(record)

    def doubt(self, record):
        self.distrust(record)
        record.doubtful, record.gone = True, False
        self.doubtful.add(record)

    def forget(self, record):
        self.distrust(record)
        record.doubtful, record.gone = False, True
        self.doubtful.discard(record)

    def trusted(self, identity):
        return {r for r in self.records.values() if r.trusted and r.identity == identity}

    def known_runs(self):
        """(record, volume, first chunk, chunks) of everything that should be on disk."""
        for record in self.records.values():
            if record.trusted or record.doubtful:
                for run in record.runs:
                    yield record, *run

    def reachable(self, record):
        """Every page before it is in a trusted record."""
        while record.position > 0:
            above = self.spans.get(record.parent)
            if not above:
                return False
            record = next(iter(above))
        return True

    # ---- damage, as the driver does it

    def chunks_damaged(self, volume, first, n):
        self.damaged = True
        for record in list(self.records.values()):
            if any(v == volume and f < first + n and first < f + count for v, f, count in record.runs):
                record.damaged = True
                self.before.discard(record)
                if record.trusted:
                    self.doubt(record)

    def catalog_damaged(self):
        self.damaged, self.pristine, self.catalog_touched = True, False, True
        for record in list(self.records.values()):
            if record.trusted:
                self.before.add(record)
                self.doubt(record)
        self.totals["catalogue damaged: records before"] += len(self.before)

    def catalog_removed(self):
        """All of it, or it is made again: what the volumes hold comes back."""
        self.doubt_what_was_rolled_back()
        self.pristine = False

    # ---- one process

    def replay(self, words, identity, may_shrink=False, may_fail=False, purged=False):
        """Returns the Session; raises Violation. may_shrink: budgets are smaller than at the last open. may_fail: the
        disk cannot be had, or is full. purged: another process told this one to delete what it was about to write."""
        s = Session()
        loaded, trusted_before, opening = set(), set(), False
        n_durable, published, room_lost, deleted = 0, set(), purged, []
        present, n_loaded, n_dropped = set(), 0, 0  # durable records that the process has; of rows at its opening
        hits, hit_states, wanted, had, misses = set(), set(), 0, 0, []
        flushed, purging = False, {}  # ids, in order
        for kind, w in entries(words):
            last, s.last_kind = s.last_kind, kind
            if kind == LOOKUP:
                if s.disk_on:
                    expected, reused = self.judge_lookup(identity, w, hits, hit_states)
                    wanted, had = wanted + expected, had + min(expected, reused)
                    if reused < expected:
                        misses.append((w[0], expected, reused, w[2], w[3]))
            elif kind == WRITE:
                self.records[(w[0], w[1])] = Record(identity, w)
            elif kind == RUNS:
                record = self.records[(w[0], w[1])]
                record.runs = [tuple(w[i:i + 3]) for i in range(2, len(w), 3)]
            elif kind == DURABLE:
                record = self.records[(w[0], w[1])]
                if w[2] == 0:
                    n_durable += 1
                    self.totals["records durable"] += 1
                    self.ever_durable.update(record.keys)
                    if not record.gone:
                        self.trust(record)
                        present.add(record)
                else:
                    room_lost = True
            elif kind in (DELETE, ROW_DELETE):
                record = self.records.get((w[0], w[1]))
                if record is not None:
                    if opening and record.trusted and not (may_shrink and not s.ever_on or may_fail or self.damaged or s.rebuilt) and \
                            self.reachable(record):
                        raise Violation(f"a durable record at {record.position} was dropped at open")
                    if not record.gone:
                        self.totals["records deleted"] += 1
                    self.forget(record)
                    deleted.append(record)
                    present.discard(record)
                    if opening and kind == DELETE and record in loaded:
                        n_dropped += 1
                    if purging:
                        purging[w[0], w[1]] = True
            elif kind == PATH:
                keys = [(identity, w[2 + 2 * i], w[3 + 2 * i]) for i in range(w[1])]
                published.update(keys)
                self.ever_published.update(keys)
            elif kind == PURGE:
                purging.pop((w[0], w[1]), None)  # it is the last one then
                purging[w[0], w[1]] = True
            elif kind == PURGED and w[0] == 0:
                s.n_purged = len(purging) - w[1]
            elif kind == KEYS and s.disk_on:  # without the disk the store has another secret
                self.paths[(identity, w[0])] = [(identity, w[2 + 2 * i], w[3 + 2 * i]) for i in range(w[1])]
            elif kind == LOADED:
                loaded.add(self.load(identity, w, s.rebuilt))
            elif kind == RESTART:
                self.start_again(loaded, s)
                trusted_before |= self.trusted(identity)
            elif kind == OPENING:
                opening, loaded, trusted_before = True, set(), self.trusted(identity)
                n_durable, published, room_lost, deleted = 0, set(), purged, []
                s.opened = s.disk_on = s.rebuilt = False
                n_dropped = 0
            elif kind == OPENED:
                opening = False
                s.code, s.opened, s.disk_on = w[0], w[0] == 0, bool(w[1])
                self.doubtful_keys = {key for r in self.doubtful if r.identity == identity for key in r.keys}
                s.tainted = self.damaged or bool(self.doubtful_keys)
                s.ever_on = s.ever_on or s.disk_on
                n_loaded, present = len(loaded), {r for r in loaded if not r.gone}
                if s.disk_on:
                    self.judge_open(identity, loaded, trusted_before)
                elif s.opened and not may_fail:
                    raise Violation("the disk tier is off: " + "; ".join(s.logs[-3:]))
                hits, hit_states, wanted, had, misses = set(), set(), 0, 0, []
            elif kind == VERIFIED:
                s.verified = s.disk_on
                s.verified_us = s.verified_us or w[0]
                if s.disk_on:
                    self.judge_verified(identity, hits, hit_states, wanted, had, misses)
                hits, hit_states, wanted, had, misses = set(), set(), 0, 0, []
            elif kind == FLUSHED:
                flushed = w[0] == 0
            elif kind == STATS:
                st = dict(zip(self.counters, w))
                self.judge_stats(st, s, flushed, n_durable, published, room_lost, may_fail)
                if s.disk_on and flushed and not s.tainted:
                    self.judge_records(st, n_loaded, n_dropped, len(present))
                if last == VERIFIED and w[self.counters.index("pages_live")] and not s.tainted:
                    raise Violation(f"{w[self.counters.index('pages_live')]} pages are in use by nobody")
                flushed = False
            elif kind == FULL_ARENA:
                room_lost = True
            elif kind == CLOSED:
                for record in deleted if s.disk_on and not may_fail else ():
                    record.buried = True
            elif kind == DONE:
                s.done = True
            elif kind == LOG:
                s.logs.append(text_of(w))
                if "rebuilding it" in s.logs[-1] and "No space left" in s.logs[-1]:
                    raise Violation("a catalogue is given up for want of room: " + s.logs[-1])
            elif kind == FAILED:
                raise Violation(text_of(w))
        if purging:
            self.judge_purge(list(purging), s.n_purged)
        if self.catalog_touched and not s.rebuilt:  # what has no row any more may be overwritten from here on
            self.before = set()
            self.rolled_back = True
        self.catalog_touched = False
        return s

    def judge_purge(self, ids, n_done):
        """What was not done to the end is in doubt, and so is all below: it may go without a word."""
        done = set(ids[:max(0, n_done)])
        records = [self.records[i] for i in ids if i in self.records]
        pages = {key for record in records if record.kind == SPAN for key in record.keys}
        below = [r for r in self.records.values() if r.trusted and self.is_below(r, pages)]
        for i in ids:
            record = self.records.get(i)
            if record is None:
                continue
            if i in done:
                self.forget(record)
                continue
            record.damaged = True  # headers go first
            if record.trusted:
                self.doubt(record)
        for record in below:
            if record.trusted:
                self.doubt(record)
        self.before.difference_update(records, below)
        self.purged |= done

    def is_below(self, record, pages):
        """A page before it is one of these, or is not there."""
        while record.position > 0:
            above = self.spans.get(record.parent)
            if record.parent in pages or not above:
                return True
            parent, record = record.parent, next(iter(above))
            if not pages.isdisjoint(record.keys[:record.keys.index(parent)]):
                return True
        return False

    def load(self, identity, w, rebuilt):
        if (w[0], w[1]) in self.purged and (rebuilt or self.pristine):
            raise Violation(f"a record at {w[3]} that was deleted for good came back")
        record = self.records.get((w[0], w[1]))
        if record is None:
            record = self.records[(w[0], w[1])] = Record(identity, w)
        if record.gone and record.buried and not rebuilt and self.pristine:
            raise Violation(f"a record at {record.position} that was deleted came back after a close")
        self.ever_durable.update(record.keys)
        if record.trusted:
            return record
        # A row that was never acknowledged, or whose deletion was asked for but not done: whole, as long as nobody
        # has touched the catalogue. From headers anything may come.
        if self.pristine and not rebuilt and not record.doubtful and not record.damaged:
            self.trust(record)
        else:
            self.doubt(record)
        return record

    def start_again(self, loaded, session):
        """The catalogue is made from the headers, where everything is that was trusted and whose chunks nobody touched."""
        session.rebuilt = True
        loaded.clear()
        self.pristine = self.pristine and not self.records
        self.doubt_what_was_rolled_back()
        for record in self.before:
            if record.doubtful:
                self.trust(record)

    def doubt_what_was_rolled_back(self):
        """Before a rebuild: so were the ids of new records, and a deleted one may be the newest of its chunks."""
        if self.rolled_back:
            self.before = set()
            for record in list(self.records.values()):
                if record.trusted:
                    self.doubt(record)

    def judge_open(self, identity, loaded, trusted_before):
        lost = [r for r in trusted_before if r not in loaded and not r.doubtful]
        if lost:
            raise Violation(f"{len(lost)} of {len(trusted_before)} durable records have no row after opening, "
                            f"the first at {min(r.position for r in lost)}")
        for record in list(self.doubtful):
            if record.identity == identity and record not in loaded:
                self.forget(record)

    def judge_lookup(self, identity, w, hits, hit_states):
        path, reused = w[0], w[1]
        page_tokens, grid = self.page_tokens_of(identity), self.grid_of(identity)
        keys = self.paths[(identity, path)]
        self.totals["look-ups"] += 1
        if not self.ever_published.issuperset(keys[:reused // page_tokens]):
            raise Violation(f"path {path}: {reused} tokens reused, more than were ever published")
        n = 0
        while n < len(keys) and self.spans.get(keys[n]):
            n += 1
        expected = n * page_tokens
        if grid:
            expected = expected // grid * grid
            while expected > 0 and not self.checkpoints.get(keys[expected // page_tokens - 1]):
                expected -= grid
            if reused > 0:
                hit_states.add(keys[reused // page_tokens - 1])
            # The deepest checkpoint was read and is damaged, or a page before it is: what serves then is the deepest
            # that is in memory. The next look-up finds the next one.
            if w[3] == MISS_CORRUPT and not self.doubtful_keys.isdisjoint(keys):
                expected = min(expected, reused)
        hits.update(keys[:reused // page_tokens])
        return expected, reused

    def judge_verified(self, identity, hits, hit_states, wanted, had, misses):
        page_tokens = self.page_tokens_of(identity)
        self.totals["pages expected"] += wanted // page_tokens
        self.totals["pages hit"] += had // page_tokens
        if had < HIT_SHARE * wanted:
            raise Violation(f"{(wanted - had) // page_tokens} of {wanted // page_tokens} durable pages are misses: " + ", ".join(
                f"path {p}: {r} of {e} tokens (matched {m}, reason {why})" for p, e, r, m, why in misses[:8]))
        for record in list(self.doubtful):
            if record.identity != identity:
                continue
            found = hit_states if record.kind == CHECKPOINT else hits
            if all(key in found for key in record.keys):
                self.trust(record)
        self.totals["catalogue damaged: records after"] += sum(r.trusted for r in self.before)
        self.before = set()
        self.damaged = False

    def judge_stats(self, st, session, flushed, n_durable, published, room_lost, may_fail):
        if st["lookups"] != st["misses"]:
            raise Violation(f"{st['lookups']} look-ups, {st['misses']} reasons")
        if st["pages_total"] != st["pages_free"] + st["pages_live"] + st["pages_cached"]:
            raise Violation("pages: total is not free + live + cached")
        tokens = st["tokens_device"] + st["tokens_host"] + st["tokens_disk"] + st["tokens_missed"]
        if st["tokens_looked_up"] != tokens:
            raise Violation(f"{st['tokens_looked_up']} tokens looked up, {tokens} reused or missed")
        ended = sum(st[f"restores_{how}"] for how in ("in_time", "unpredicted", "deadline", "failed", "abandoned"))
        # One that waits has pages in use.
        if ended > st["restores_disk"] or (ended < st["restores_disk"] and st["pages_live"] == 0):
            raise Violation(f"{st['restores_disk']} restores waited for the disk, and {ended} have ended")
        for tier in TIERS:
            stored, alive, gone = (st[f"kept_{tier} {what}"] for what in ("stored", "alive", "gone"))
            if stored != alive + gone:
                raise Violation(f"{tier}: {stored} stored, {alive} alive and {gone} gone")
        if st["index_bytes"] > st["index_budget"]:
            raise Violation(f"index: {st['index_bytes']} bytes of {st['index_budget']}")
        if not session.disk_on:
            return
        # A budget that was lowered is met by deleting rows, for which a full file system may have no room.
        if st["disk_bytes"] > st["disk_budget"] and not may_fail:
            raise Violation(f"disk: {st['disk_bytes']} bytes of {st['disk_budget']}, by its own count")
        corrupt = st["corrupt_header"] + st["corrupt_tokens"] + st["corrupt_payload"]
        if corrupt and not session.tainted:
            raise Violation(f"{corrupt} records fail their checksums, and nobody touched them")
        if not flushed:
            return
        if st["pending_bytes"] != 0:
            raise Violation(f"flushed, and {st['pending_bytes']} bytes are pending")
        if st["spans_written"] + st["checkpoints_written"] != n_durable:
            raise Violation(f"{st['spans_written']} spans and {st['checkpoints_written']} checkpoints written, {n_durable} durable")
        dropped = sum(value for name, value in st.items() if name.startswith("dropped_") and name != "dropped_notes")
        missing = published - self.ever_durable
        if missing and not dropped and not room_lost:
            raise Violation(f"flushed, nothing dropped, and {len(missing)} published pages were never durable")


    def judge_records(self, st, n_loaded, n_dropped, n_present):
        """What the store says it has on disk, against what was seen to come and go. n_dropped: of the rows, at the opening."""
        self.totals["balances judged"] += 1
        written = st["spans_written"] + st["checkpoints_written"]
        stored, alive = (st[f"kept_disk_spans {what}"] + st[f"kept_disk_checkpoints {what}"] for what in ("stored", "alive"))
        if not n_loaded - n_dropped <= stored - written <= n_loaded:
            raise Violation(f"{stored} records stored, {written} of them written, and {n_loaded} were there at the opening")
        if alive != n_present:
            raise Violation(f"{alive} records alive, and {n_present} came and did not go")


def read_log(log, n_steps):
    """The entries of a mapped log, and how often each step was passed."""
    used = int.from_bytes(log[0:8], "little")
    words = array("Q")
    words.frombytes(log[HEADER_WORDS * 8:(HEADER_WORDS + used) * 8])
    if int.from_bytes(log[16:24], "little"):
        raise RuntimeError("the log was too small")
    hits = array("I")
    hits.frombytes(log[FIRST_HIT_BYTE:FIRST_HIT_BYTE + 4 * n_steps])
    return words, hits
