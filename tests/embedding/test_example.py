#!/usr/bin/env python3
"""The example of docs/embedding.md: where each turn's tokens come from.

  test_example.py EMBED
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

LINE = re.compile(r"(.+?) +(\d+) tokens: +(\d+) from memory, +(\d+) from disk, +(\d+) computed; miss (\w+); answer ([0-9a-f]{16})")


def run(embed, *arguments, environment=None):
    return subprocess.run([embed, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment)


def turns(text):
    """name -> (tokens, from memory, from disk, computed, miss, answer), in order"""
    found = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found[match[1]] = (*map(int, match.group(2, 3, 4, 5)), match[6], match[7])
    return found


class Example(unittest.TestCase):
    embed = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else None
    environment = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="embed-test-", dir=".")
        self.addCleanup(folder.cleanup)
        self.store = os.path.join(os.path.abspath(folder.name), "store")

    def test_tokens_come_from_where_they_should(self):
        result = run(self.embed, self.store, environment=self.environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        seen = turns(result.stdout)
        self.assertEqual(list(seen), ["first turn", "second turn", "another tenant", "after a restart"])
        # 16 tokens a page; the last token is always computed.
        self.assertEqual(seen["first turn"][:5], (1000, 0, 0, 1000, "cold"))
        self.assertEqual(seen["second turn"][:5], (1500, 992, 0, 508, "diverged"))
        self.assertEqual(seen["another tenant"][:5], (1000, 0, 0, 1000, "cold"))
        self.assertEqual(seen["after a restart"][:5], (1500, 0, 1488, 12, "none"))
        answers = {name: turn[5] for name, turn in seen.items()}
        self.assertEqual(answers["another tenant"], answers["first turn"])
        self.assertEqual(answers["after a restart"], answers["second turn"])
        self.assertNotEqual(answers["second turn"], answers["first turn"])

    def test_a_second_run_finds_the_first_ones_store(self):
        run(self.embed, self.store, environment=self.environment)
        result = run(self.embed, self.store, environment=self.environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        seen = turns(result.stdout)
        self.assertEqual(seen["first turn"][:5], (1000, 0, 992, 8, "none"))
        self.assertEqual(seen["second turn"][1] + seen["second turn"][2], 1488)

    def test_says_why_it_cannot(self):
        self.assertEqual(run(self.embed, environment=self.environment).returncode, 2)
        os.mkdir(self.store)
        with open(os.path.join(self.store, "something"), "w", encoding="ascii") as file:
            file.write("else")
        result = run(self.embed, self.store, environment=self.environment)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("not a store", result.stderr)
        self.assertEqual(os.listdir(self.store), ["something"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
