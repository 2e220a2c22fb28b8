#!/usr/bin/env python3
"""Makes golden_store.tar.xz, a tiny store that every later build must still read, and golden_store.json, what cachestore-admin
says of it. To be run again only when docs/format.md has a new version:

  tests/data/make_golden_store.py BUILD_FOLDER
"""
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    build = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        subprocess.run([os.path.join(build, "tests", "disk", "golden_store"), store, "make"], check=True)
        listing = subprocess.run([os.path.join(build, "tools", "cachestore-admin"), store, "ls", "--json"], check=True,
                                 capture_output=True).stdout
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as tar:
            for base, folders, names in os.walk(store):
                folders.sort()
                for name in [None, *sorted(names)]:
                    if name is not None and (name == "LOCK" or name.startswith("LOG")):
                        continue
                    path = base if name is None else os.path.join(base, name)
                    info = tar.gettarinfo(path, os.path.relpath(path, folder))
                    info.uid = info.gid = 0
                    info.uname = info.gname = ""
                    if name is None:
                        tar.addfile(info)
                    else:
                        with open(path, "rb") as file:
                            tar.addfile(info, file)
    with open(os.path.join(HERE, "golden_store.tar.xz"), "wb") as file:
        file.write(packed.getvalue())
    with open(os.path.join(HERE, "golden_store.json"), "wb") as file:
        file.write(listing)
    print(f"{len(packed.getvalue())} bytes, {len(json.loads(listing))} records")


if __name__ == "__main__":
    main()
