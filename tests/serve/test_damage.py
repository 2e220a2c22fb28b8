#!/usr/bin/env python3
"""Stores that are not as they were left, through the server: a changed byte, another model's store, a deleted catalogue. Every request is
served as if cold, a counter names the reason, other conversations stay warm. And the hook of "exact": one hash of the logits however the
prefix came."""
import concurrent.futures
import os
import shutil
import sys
import tempfile
import unittest

from harness import Server, binary, disk_flags, tiny_model

MODEL, TWIN = "llama-q8_0", "llama-q8_0-twin"
PAGE = 16
STORY = "The captain of the silver ladder keeps a lantern by the window of the winter market. "


class Damage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, model=MODEL, *flags):
        return Server(tiny_model(model), *disk_flags(self.folder, "64M"), "--kv-cache", "64M", "--debug", *flags)

    def ask(self, server, name, **fields):
        """The reply to one conversation's prompt: (text and hash, reused tokens, prompt tokens)."""
        reply = server.chat(f"{name}: {STORY * 6}", temperature=0, max_tokens=12, ignore_eos=True, **fields)
        usage = reply["usage"]
        said = (reply["choices"][0]["message"]["content"], reply["x_isotherm"]["logits_hash"])
        return said, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def fill(self, names):
        """A store with one durable conversation for each name; what each said."""
        with self.server() as server:
            said = {name: self.ask(server, name)[0] for name in names}
            server.drain()
        return said

    def volumes(self):
        return [entry.path for entry in os.scandir(self.folder) if entry.is_file() and entry.stat().st_size >= 1 << 20]

    def change_byte(self, wanted):
        """Changes one byte in the middle of the first stretch of a volume that is not zero and in which wanted(index) holds."""
        index = 0
        for path in self.volumes():
            with open(path, "r+b") as f:
                for at in range(0, os.path.getsize(path), 4096):
                    f.seek(at)
                    block = f.read(4096)
                    if len(block.strip(b"\0")) < 2000:
                        continue
                    if wanted(index):
                        f.seek(at + 1000)
                        f.write(bytes([block[1000] ^ 0x10]))
                        return
                    index += 1
        raise AssertionError("no such block")

    def check_balance(self, cache):
        reuse = cache["reuse"]
        reused = reuse["tokens_device"] + reuse["tokens_host"] + reuse["tokens_disk"]
        self.assertEqual(reuse["tokens_looked_up"], reused + sum(cache["tokens_missed"].values()))
        self.assertGreater(cache["tokens_missed"]["corrupt"], 0)
        for tier, counts in cache["kept"].items():
            self.assertEqual(counts.pop("stored"), sum(counts.values()), tier)
        self.assertEqual(cache["kept"]["disk_spans"]["damaged"], 1)

    def test_a_changed_byte_is_a_miss_with_a_name(self):
        names = ["one", "two", "three", "four"]
        said = self.fill(names)
        self.change_byte(lambda index: index == 5)
        with self.server() as server:
            cached = {}
            for name in names:
                now, cached[name], prompt = self.ask(server, name)
                self.assertEqual(now, said[name])
            full = (prompt - 1) // PAGE * PAGE
            warm = [name for name in names if cached[name] == full]
            self.assertEqual(len(warm), len(names) - 1, cached)
            faults = server.cache()["faults"]
            self.assertEqual(faults["corrupt_header"] + faults["corrupt_tokens"] + faults["corrupt_payload"], 1, faults)
            self.check_balance(server.cache())
            self.assertEqual(server.cache()["misses"]["corrupt"], 1)
            # Computed again, it is warm again.
            for name in names:
                self.assertEqual(self.ask(server, name)[1], full)

    def test_the_store_of_another_model_is_never_served(self):
        said = self.fill(["one"])
        with self.server(TWIN) as server:
            _, cached, _ = self.ask(server, "one")
            self.assertEqual(cached, 0)
            self.assertGreater(server.cache()["disk"]["records_foreign"], 0)
            server.drain()
        with self.server() as server:
            now, cached, prompt = self.ask(server, "one")
            self.assertEqual(now, said["one"])
            self.assertEqual(cached, (prompt - 1) // PAGE * PAGE)

    def test_a_deleted_catalogue_is_served_and_the_store_goes_on(self):
        said = self.fill(["one"])
        shutil.rmtree(os.path.join(self.folder, "catalog"))
        with self.server() as server:
            self.assertEqual(self.ask(server, "one")[0], said["one"])
            server.drain()
        with self.server() as server:
            now, cached, prompt = self.ask(server, "one")
            self.assertEqual(now, said["one"])
            self.assertEqual(cached, (prompt - 1) // PAGE * PAGE)

    def test_one_hash_however_the_prefix_came(self):
        with self.server() as server:
            cold, cached, prompt = self.ask(server, "one")
            self.assertEqual(cached, 0)
            warm, cached, _ = self.ask(server, "one")
            self.assertEqual((warm, cached), (cold, (prompt - 1) // PAGE * PAGE))
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                others = [pool.submit(self.ask, server, f"other {i}") for i in range(7)]
                self.assertEqual(self.ask(server, "one")[0], cold)
                for other in others:
                    other.result()
            server.drain()
            server.kill()
        with self.server() as server:
            disk, cached, _ = self.ask(server, "one")
            self.assertEqual((disk, cached), (cold, (prompt - 1) // PAGE * PAGE))
            self.assertGreater(server.cache()["reuse"]["tokens_disk"], 0)
        for flags in (("--prefill-chunk-size", "7"), ("--cpu-isa", "scalar"), ("--threads", "1")):
            with Server(tiny_model(MODEL), "--kv-cache", "64M", "--debug", *flags) as server:
                self.assertEqual(self.ask(server, "one")[0], cold, flags)


def main():
    binary()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)


if __name__ == "__main__":
    main()
