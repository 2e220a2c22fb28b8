#!/usr/bin/env python3
"""libcachestore as others get it: installed under a folder of its own, found by pkg-config, the example built against that
copy alone, out of the tree.

  test_installed.py EXAMPLE_SOURCE BUILD_FOLDER
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

EXAMPLE, BUILD = (os.path.abspath(a) for a in sys.argv[1:3])
sys.argv[1:] = []
sys.dont_write_bytecode = True
import test_example  # pylint: disable=wrong-import-position


def output(*command, **keywords):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **keywords).stdout


class Installed(test_example.Example):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="installed-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        root = os.path.join(cls.folder.name, "root")
        output("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", root, "--tags", "devel")
        pcs = [os.path.join(base, name) for base, _, names in os.walk(root) for name in names if name == "libcachestore.pc"]
        assert len(pcs) == 1, pcs
        with open(pcs[0], encoding="utf-8") as file:
            prefix = re.search(r"^prefix=(.*)$", file.read(), re.MULTILINE)[1]
        # Installed under DESTDIR: the file says where it would be without.
        cls.prefix = root + prefix
        cls.config = ["pkg-config", f"--define-variable=prefix={cls.prefix}"]
        cls.environment = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(pcs[0])}
        cls.headers = [os.path.join(cls.prefix, "include", "isotherm", "cachestore", name) for name in ("cachestore.h", "inspect.h")]
        cls.libdir = cls.ask("--variable=libdir")[0]
        cls.environment["LD_LIBRARY_PATH"] = cls.libdir
        source = shutil.copy(EXAMPLE, cls.folder.name)
        cls.embed = os.path.join(cls.folder.name, "embed")
        output("cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", source, *cls.ask("--cflags", "--libs"), "-o",
               cls.embed, cwd=cls.folder.name)

    @classmethod
    def ask(cls, *arguments):
        return output(*cls.config, *arguments, "libcachestore", env=cls.environment).split()

    def test_the_program_runs_on_the_installed_library(self):
        libraries = output("ldd", self.embed, env=self.environment)
        self.assertIn(f"{self.libdir}/libcachestore.so.0", libraries)

    def texts(self):
        for header in self.headers:
            with open(header, encoding="utf-8") as file:
                yield file.read()

    def test_the_library_shows_what_the_headers_declare_and_nothing_else(self):
        text = re.sub(r"/\*.*?\*/", "", "".join(self.texts()), flags=re.DOTALL)
        declared = set(re.findall(r"\b(cs_\w+)\(", text))
        self.assertGreater(len(declared), 30)
        symbols = output("nm", "-D", "--defined-only", os.path.join(self.libdir, "libcachestore.so"))
        shown = {line.split()[2] for line in symbols.splitlines()}
        self.assertEqual(shown, declared)

    def test_every_function_is_described(self):
        lines = "".join(self.texts()).splitlines()
        bare = [line for above, line in zip(lines, lines[1:])
                if re.match(r"[a-z].*\bcs_\w+\(", line) and not above.endswith("*/") and not line.endswith("*/")]
        self.assertEqual(bare, [])

    def test_each_header_stands_alone_in_c_and_in_cpp(self):
        for language, standard in (("c", "c11"), ("c++", "c++11")):
            compiler = shutil.which("cc" if language == "c" else "c++")
            if compiler is None:
                self.skipTest("no C++ compiler")
            for header in self.headers:
                output(compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                       header)

    def test_linked_from_cpp(self):
        if shutil.which("c++") is None:
            self.skipTest("no C++ compiler")
        program = os.path.join(self.folder.name, "cpp")
        source = '#include "cachestore/cachestore.h"\n#include <cstdio>\nint main() { std::puts(cs_strerror(CS_EBUSY)); }\n'
        output("c++", "-x", "c++", "-", *self.ask("--cflags", "--libs"), "-o", program, input=source)
        self.assertNotEqual(output(program, env=self.environment).strip(), "")


if __name__ == "__main__":
    for tool in ("meson", "pkg-config", "cc", "nm", "ldd"):
        if shutil.which(tool) is None:
            print(f"SKIPPED: no {tool}", file=sys.stderr)
            sys.exit(77)
    unittest.main()
