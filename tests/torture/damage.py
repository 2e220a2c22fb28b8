"""What happens to a store's files between two processes, and to the file system below them."""
import ctypes
import os
import shutil
import stat

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS = 0x20000
libc = ctypes.CDLL(None, use_errno=True)


def volumes(store):
    return sorted(name for name in os.listdir(store) if name.startswith("volume."))


def catalog_files(store):
    folder = os.path.join(store, "catalog")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def bytes_on_disk(store):
    total = 0
    for folder in (store, os.path.join(store, "catalog")):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
                total += status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
            except FileNotFoundError:
                pass  # while the store is in use
    return total


def flip(path, offset, mask):
    with open(path, "r+b", buffering=0) as f:
        old = os.pread(f.fileno(), 1, offset)
        if old:
            os.pwrite(f.fileno(), bytes([old[0] ^ mask]), offset)


class Damage:
    """Each way returns whether it found something to damage, and tells the oracle what it did."""

    def __init__(self, store, oracle, chunk_bytes, rng):
        self.store, self.oracle, self.chunk_bytes, self.rng = store, oracle, chunk_bytes, rng
        self.turn = 0
        self.older = os.path.join(os.path.dirname(os.path.dirname(store)), "older-catalog")

    def path(self, *names):
        return os.path.join(self.store, *names)

    def some_run(self):
        runs = list(self.oracle.known_runs())
        return self.rng.choice(runs)[1:] if runs else None

    def rot(self):
        """Single bits of records' chunks."""
        done = False
        for _ in range(self.rng.randint(1, 6)):
            run = self.some_run()
            if run is None:
                break
            volume, first, n = run
            chunk = first + self.rng.randrange(n)
            path = self.path(f"volume.{volume:03}")
            if os.path.exists(path):
                flip(path, chunk * self.chunk_bytes + self.rng.randrange(self.chunk_bytes), 1 << self.rng.randrange(8))
                self.oracle.chunks_damaged(volume, chunk, 1)
                done = True
        return done

    def misplaced(self):
        """Chunks of one record in the place of another's: whole, but not there."""
        source, target = self.some_run(), self.some_run()
        if source is None or source == target:
            return False
        n = min(source[2], target[2])
        paths = [self.path(f"volume.{v:03}") for v in (source[0], target[0])]
        if not all(map(os.path.exists, paths)):
            return False
        with open(paths[0], "rb") as f:
            data = os.pread(f.fileno(), n * self.chunk_bytes, source[1] * self.chunk_bytes)
        with open(paths[1], "r+b", buffering=0) as f:
            os.pwrite(f.fileno(), data, target[1] * self.chunk_bytes)
        self.oracle.chunks_damaged(target[0], target[1], n)
        return True

    def volume_zeroed(self):
        run = self.some_run()
        if run is None or not os.path.exists(self.path(f"volume.{run[0]:03}")):
            return False
        with open(self.path(f"volume.{run[0]:03}"), "r+b", buffering=0) as f:
            os.pwrite(f.fileno(), bytes(run[2] * self.chunk_bytes), run[1] * self.chunk_bytes)
        self.oracle.chunks_damaged(*run)
        return True

    def volume_cut(self):
        """Anywhere, or the file is gone."""
        names = volumes(self.store)
        if not names:
            return False
        name = self.rng.choice(names)
        path, volume = self.path(name), int(name[7:])
        size = os.path.getsize(path)
        end = self.rng.choice((0, self.rng.randrange(size + 1)))
        if end == 0 and self.rng.random() < 0.5:
            os.unlink(path)
        else:
            os.truncate(path, end)
        self.oracle.chunks_damaged(volume, end // self.chunk_bytes, 1 << 32)
        return True

    def catalog_file(self):
        """The next file in the next way."""
        names = catalog_files(self.store)
        if not names:
            return False
        turn, self.turn = self.turn, self.turn + 1
        path = self.path("catalog", names[turn // 4 % len(names)])
        size = os.path.getsize(path)
        way = turn % 4
        if way == 0:
            os.unlink(path)
        elif way == 1:
            os.truncate(path, size // 2)
        elif way == 2:
            os.truncate(path, 0)
        else:
            for at in range(3, size, 37):
                flip(path, at, 0x55)
        self.oracle.catalog_damaged()
        return True

    def catalog_unreadable(self):
        """So that it cannot be opened and has to be removed."""
        if "CURRENT" not in catalog_files(self.store):
            return False
        os.truncate(self.path("catalog", "CURRENT"), 0)
        self.oracle.catalog_damaged()
        return True

    def catalog_removed(self):
        if not catalog_files(self.store):
            return False
        shutil.rmtree(self.path("catalog"))
        self.oracle.catalog_removed()
        return True

    def catalog_of_earlier(self):
        """The catalogue as it was some time ago, with the volumes of now."""
        if not catalog_files(self.store):
            return False
        if not os.path.isdir(self.older) or self.rng.random() < 0.3:
            shutil.rmtree(self.older, ignore_errors=True)
            shutil.copytree(self.path("catalog"), self.older)
            return False
        shutil.rmtree(self.path("catalog"))
        shutil.copytree(self.older, self.path("catalog"))
        self.oracle.catalog_damaged()
        return True

    def half_made_store_file(self):
        """What a crash while another STORE was made leaves."""
        with open(self.path("STORE.new"), "wb") as f:
            f.write(b"isotherm-st")
        return True


# ---- file systems ------------------------------------------------------------------------------------------------------


def mounts_allowed():
    """Mounts of this process's own, which end with it. False: they are refused."""
    return libc.unshare(CLONE_NEWNS) == 0 and libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0


def mount_tmpfs(folder, size):
    os.makedirs(folder, exist_ok=True)
    return libc.mount(b"torture", folder.encode(), b"tmpfs", 0, f"size={size}".encode()) == 0


def make_read_only(folder):
    path = folder.encode()
    return libc.mount(path, path, None, MS_BIND, None) == 0 and \
        libc.mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None) == 0


def unmount(folder):
    """At once for those who come; the file system goes when what a killed process began has ended."""
    return libc.umount2(folder.encode(), MNT_DETACH) == 0


class Filler:
    """Takes room on a file system, and gives it back."""

    def __init__(self, folder):
        self.file = open(os.path.join(folder, "filler"), "wb", buffering=0)
        self.folder = folder

    def leave(self, free):
        """About so many bytes are free afterwards."""
        fs = os.statvfs(self.folder)
        held = os.fstat(self.file.fileno()).st_blocks * 512
        size = max(0, held + fs.f_bavail * fs.f_frsize - free)
        try:
            if size < held:
                os.truncate(self.file.fileno(), size)
            elif size > held:
                os.posix_fallocate(self.file.fileno(), 0, size)
        except OSError:
            pass  # the store was faster
