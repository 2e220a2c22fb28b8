#!/usr/bin/env python3
"""cachestore-admin beside a server that runs: what a chat stored is seen, drained, deleted and made good again, on a model that
resumes at any page and on one that resumes at checkpoints, which wait ten seconds before they are written.

  test_serve.py ISOTHERM ADMIN      tiny models in $ISOTHERM_TEST_MODELS
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serve"))
from harness import Server, disk_flags, tiny_model

ADMIN = os.path.abspath(sys.argv[2])
STORY = "Tell me about the river, the harbour and the old stone bridge in the town where the lanterns burn all night. " * 4


class Admin(unittest.TestCase):
    def ask(self, *arguments, codes=(0,)):
        result = subprocess.run([ADMIN, self.folder, *arguments, "--json"], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((result.returncode in codes, result.stderr), (True, ""), result)
        return json.loads(result.stdout)

    def cached(self, server):
        return server.chat(STORY, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def beside(self, model, *flags):
        with tempfile.TemporaryDirectory(prefix="admin-serve-", dir=".") as folder:
            self.folder = os.path.abspath(folder)

            def start():
                return Server(tiny_model(model), *disk_flags(self.folder, "64M"), "--kv-cache", "32M", "--prefix-cache-memory", "8M", *flags)
            with start() as server:
                self.assertEqual(self.cached(server), 0)
                warm = self.cached(server)
                self.assertGreater(warm, 0)
                self.assertEqual((self.ask("status")["mode"], self.ask("status")["process"]), ("live", server.process.pid))
                self.assertGreater(self.ask("stats")["figures"]["tokens_device"], 0)
                # Deleting while somebody talks harms neither.
                talking = threading.Thread(target=lambda: server.stream(messages=[{"role": "user", "content": STORY}], max_tokens=40))
                talking.start()
                self.ask("evict", "--all")
                talking.join()
                self.ask("evict", "--all", codes=(0, 4))  # what it brought back, if it was still at it
                self.assertEqual((self.ask("ls"), self.cached(server), self.cached(server)), ([], 0, warm))
                for options, draining in ((("drain",), True), (("drain", "--end"), False), (("drain",), True)):
                    self.assertEqual(self.ask(*options)["draining"], draining)
                    self.assertIs(server.cache()["draining"], draining)
                    self.assertEqual(server.metrics()["isotherm_cache_disk_draining"], draining)
                self.assertEqual(server.cache()["pending_bytes"], 0)
                server.kill()
            with start() as server:
                self.assertEqual((self.cached(server), self.ask("verify")["n_damaged"]), (warm, 0))
            self.assertEqual(self.ask("status")["mode"], "offline")

    def test_beside_a_model_of_pages(self):
        self.beside("llama-q8_0")

    def test_beside_a_model_of_checkpoints(self):
        self.beside("gemma3-q8_0")

    def test_beside_a_device_and_a_host_tier(self):
        self.beside("llama-q8_0", "--cpu-discrete")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
