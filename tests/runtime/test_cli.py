#!/usr/bin/env python3
"""The command line: what is wrong is one line on stderr and exit code 2; run and info do what they say.

  test_cli.py ISOTHERM        models in $ISOTHERM_TEST_MODELS
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request

ISOTHERM = sys.argv.pop(1)
MODELS = os.environ["ISOTHERM_TEST_MODELS"]
MODEL = os.path.join(MODELS, "qwen2-q8_0.gguf")
GOLDEN = os.path.join(os.environ["ISOTHERM_TEST_DATA"], "golden")


def isotherm(*arguments, stdin=""):
    return subprocess.run([ISOTHERM, *arguments], input=stdin, capture_output=True, text=True, errors="replace", timeout=120)


class Refusals(unittest.TestCase):
    def refuse(self, needle, *arguments):
        result = isotherm(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertIn(needle, result.stderr)

    def test_commands_and_flags(self):
        self.refuse("frobnicate", "frobnicate")
        self.refuse("--frob", "serve", "--model", MODEL, "--frob")
        self.refuse("--port", "run", "--model", MODEL, "--port", "80")
        self.refuse("--model FILE is needed", "serve")
        self.refuse("--model needs a value", "info", "--model")
        self.refuse("extra", "info", "--model", MODEL, "extra")
        self.refuse("--debug takes no value", "serve", "--model", MODEL, "--debug=1")

    def test_values(self):
        for flag, value in (
            ("--port", "65536"), ("--port", "-1"), ("--port", "80x"), ("--port", ""), ("--context", "0"),
            ("--context", "99999999999999999999"), ("--threads", "0"), ("--max-concurrency", "0"), ("--kv-cache", "0"),
            ("--kv-cache", "12Q"), ("--kv-cache", "-5M"), ("--kv-cache", "1e9"), ("--kv-cache", "99999999999T"),
            ("--kv-cache-dtype", "f64"), ("--cpu-isa", "sse"), ("--scheduler-policy", "random"), ("--log-format", "xml"),
            ("--chat-template", "nosuch"), ("--prefix-cache-disk", ""), ("--prefix-cache-io", "aio"),
            ("--prefix-cache-restore-deadline", "-1"), ("--prefix-cache-restore-deadline", "3600001"),
        ):
            self.refuse(flag, "serve", "--model", MODEL, flag, value)
        self.refuse("--temperature", "run", "--model", MODEL, "--temperature", "nan")
        self.refuse("--top-p", "run", "--model", MODEL, "--top-p=1.5")

    def test_combinations(self):
        self.refuse("exclude each other", "serve", "--model", MODEL, "--kv-cache", "1G", "--kv-cache-limit", "memory")
        self.refuse("--prefix-cache-disk", "serve", "--model", MODEL, "--prefix-cache-disk-size", "1G")
        self.refuse("--prefix-cache-disk", "serve", "--model", MODEL, "--prefix-cache-disk-writes", "1G")
        self.refuse("--prefix-cache-disk DIR", "serve", "--model", MODEL, "--prefix-cache-io", "pread")
        self.refuse("--prefix-cache-disk DIR", "serve", "--model", MODEL, "--prefix-cache-io", "auto")  # the default, but asked for
        for how in ("measured", "always"):
            self.refuse("--prefix-cache-disk DIR", "run", "--model", MODEL, "--prefix-cache-restore", how)
        self.refuse("--prefix-cache-disk DIR", "run", "--model", MODEL, "--prefix-cache-restore-deadline", "0")
        self.refuse("--api-key-file FILE", "serve", "--model", MODEL, "--tenant-quota-memory", "1G")
        self.refuse("--api-key-file FILE", "serve", "--model", MODEL, "--tenant-quota-disk", "1G")
        self.refuse("--prefix-cache-disk DIR", "serve", "--model", MODEL, "--tenant-quota-disk", "1G", "--api-key-file", MODEL)
        result = isotherm("run", "--model", MODEL, "--kv-cache", "10", "-p", "x")  # known once the model is
        self.assertEqual(result.returncode, 2)
        self.assertIn("no room for two pages", result.stderr.splitlines()[-1])
        with tempfile.TemporaryDirectory() as folder:
            result = isotherm("run", "--model", MODEL, "--prefix-cache-disk", folder, "--prefix-cache-disk-size", "100K", "-p", "x")
        self.assertEqual(result.returncode, 2)
        self.assertIn("holds no record", result.stderr.splitlines()[-1])

    def test_more_memory_than_there_is(self):
        for flags, said in ((("--kv-cache", "8000T"), "a KV cache of 8000.0 TiB is more than the memory of this "),
                            (("--kv-cache", "1M", "--prefix-cache-memory", "900T"), "a KV cache of 900.0 TiB (with --prefix-cache-memory) is more")):
            result = isotherm("run", "--model", MODEL, *flags, "-p", "x")
            self.assertEqual(result.returncode, 2)
            self.assertIn(said, result.stderr.splitlines()[-1])

    def test_more_memory_than_is_free_is_said(self):
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
        between = (kib["MemTotal"] + kib["MemAvailable"]) // 2
        result = isotherm("run", "--model", MODEL, "--kv-cache", f"{between}K", "--max-tokens", "1", "-p", "x")
        if "control group" in result.stderr:
            self.skipTest("a control group allows less than the machine has")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("is more than what this machine has free now", result.stderr)
        self.assertNotIn("warning", isotherm("run", "--model", MODEL, "--kv-cache", "1M", "--max-tokens", "1", "-p", "x").stderr)

    def test_files(self):
        self.refuse("No such file", "serve", "--model", "/nonexistent.gguf")
        self.refuse("not a file", "info", "--model", MODELS)
        self.refuse("No such file", "serve", "--model", MODEL, "--api-key-file", "/nonexistent.keys")
        for text, needle in (("operator\n", "without a key"), ("sk one\n", "blank"), ("sk\x01\n", "blank or another"), ("operator a b\n", "blank")):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(text)
                file.flush()
                self.refuse(needle, "serve", "--model", MODEL, "--api-key-file", file.name)

    def test_a_file_that_is_no_model(self):
        result = isotherm("info", "--model", os.path.abspath(__file__))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


class Help(unittest.TestCase):
    def test_help_lists_the_flags(self):
        self.assertIn("serve", isotherm("--help").stdout)
        for command, flags in (("serve", ("--model FILE", "--prefix-cache-disk-size SIZE", "--kv-cache-limit")),
                               ("run", ("--temperature", "--prompt")), ("info", ("--kv-cache-dtype",))):
            result = isotherm(command, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            for flag in flags:
                self.assertIn(flag, result.stdout)
        self.assertTrue(isotherm("--version").stdout.startswith("isotherm "))
        self.assertEqual(isotherm().returncode, 2)


class Output(unittest.TestCase):
    def test_what_cannot_be_written_is_a_failure(self):
        for arguments in (("--help",), ("info", "--model", MODEL), ("run", "--model", MODEL, "--max-tokens", "2", "-p", "x")):
            with open("/dev/full", "w") as full:
                result = subprocess.run([ISOTHERM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn("standard output", result.stderr)


class Info(unittest.TestCase):
    def test_geometry(self):
        result = isotherm("info", "--model", MODEL, "--kv-cache", "1M", "--context", "100")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
        self.assertIn("qwen2", lines["model"])
        self.assertIn("2 heads · 1 kv heads · head dim 64", lines["attention"])
        self.assertIn("512 a token (f16)", lines["kv bytes"])
        self.assertIn("16 tokens · 8.0 KiB · stride 8.0 KiB", lines["page"])
        self.assertIn("0 B", lines["checkpoint"])
        self.assertIn("56.0 KiB", lines["one context"])
        self.assertIn("1.0 MiB of pages · 2048 tokens", lines["what fits"])


    def info(self, name, *arguments):
        result = isotherm("info", "--model", os.path.join(GOLDEN, name), *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return {line.strip().split("  ")[0]: line for line in result.stdout.splitlines()}

    def test_info_says_what_windows_cost(self):
        lines = self.info("gemma3.gguf", "--kv-cache", "1M", "--context", "100")
        self.assertIn("8 (1 full, 7 of the last 32 tokens)", lines["layers"])
        self.assertIn("128 a token (f16)", lines["kv bytes"])
        self.assertIn("56.0 KiB · as much as pages of 224 tokens · every 16 tokens", lines["checkpoint"])
        self.assertIn("7 groups of 1 layers · the last 32 tokens", lines["windows"])
        self.assertIn("the 217 tokens before it", lines["without it"])
        self.assertIn("140.0 KiB", lines["one context"])  # 7 pages, 7 groups of 4

    def test_info_says_what_state_costs(self):
        lines = self.info("qwen35-grouped.gguf", "--kv-cache", "1M", "--context", "100", "--max-concurrency", "2")
        self.assertIn("4 (1 full, 3 recurrent)", lines["layers"])
        self.assertIn("16.0 KiB · as much as pages of 64 tokens · every 64 tokens", lines["checkpoint"])
        self.assertIn("14.2 KiB", lines["state"])
        self.assertIn("only the whole prefix", lines["without it"])


def turns_of(result):
    """What is said below each reply."""
    return [line for line in result.stderr.splitlines() if line.startswith("[") and "reused" in line]


class Run(unittest.TestCase):
    def test_one_shot_repeats_for_a_seed(self):
        arguments = ("run", "--model", MODEL, "--seed", "3", "--max-tokens", "12", "-p", "Hello there")
        first, second = isotherm(*arguments), isotherm(*arguments)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, second.stdout)
        self.assertIn("tokens", first.stderr)
        self.assertIn("reused 0 (cold)", first.stderr)

    def test_a_second_turn_reuses_the_first(self):
        result = isotherm("run", "--model", MODEL, "--temperature", "0", "--max-tokens", "40",
                          stdin="A first message that fills some pages of the cache.\n\nAnd a second one.\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        turns = turns_of(result)
        self.assertEqual(len(turns), 2)
        self.assertIn("reused 0 (cold)", turns[0])
        self.assertNotIn("reused 0", turns[1])

    def test_prompt_over_the_context(self):
        result = isotherm("run", "--model", MODEL, "--context", "32", "-p", "word " * 200)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the context of 32", result.stderr)

    def test_commands_of_the_chat(self):
        result = isotherm("run", "--model", MODEL, "--temperature", "0", "--max-tokens", "8",
                          stdin="Hello there, a first message\n/clear\nHello there, a first message\n/quit\nnever said\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        turns = turns_of(result)
        self.assertEqual(len(turns), 2)
        prompts = [re.search("prompt ([0-9]+),", turn).group(1) for turn in turns]
        self.assertEqual(prompts[0], prompts[1])  # the second begins anew
        self.assertIn("a new chat", result.stderr)

    def test_a_chat_that_is_full_says_what_helps(self):
        result = isotherm("run", "--model", MODEL, "--context", "64", "--max-tokens", "8", stdin="Hello " * 9 + "\n" + "more " * 30 + "\n")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.splitlines()[-1], "^isotherm run: the chat with this message has [0-9]+ tokens, the context of 64 .*; /clear begins")

    def test_the_disk_budget_without_a_size(self):
        """16 GiB, at most half of what is free. Memory file systems have less."""
        for parent in {tempfile.gettempdir(), "/dev/shm"}:
            if not os.access(parent, os.W_OK):
                continue
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                fs = os.statvfs(folder)
                free = fs.f_bavail * fs.f_frsize
                result = isotherm("run", "--model", MODEL, "--kv-cache", "4M", "--prefix-cache-disk", folder, "--max-tokens", "1", "-p", "x")
                size, unit = re.search(r"of ([0-9.]+) ([KMG]iB) used", result.stderr).groups()
                budget = float(size) * 1024 ** ("KMG".index(unit[0]) + 1)
                self.assertAlmostEqual(budget, min(16 << 30, free / 2), delta=free / 20)

    def test_a_small_disk_budget_is_warned_of(self):
        for size, warned in (("1M", 1), ("1G", 0)):
            with tempfile.TemporaryDirectory() as folder:
                result = isotherm("run", "--model", MODEL, "--kv-cache", "4M", "--context", "2048", "--prefix-cache-disk", folder,
                                  "--prefix-cache-disk-size", size, "--max-tokens", "1", "-p", "x")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(re.findall("warning: disk cache: the budget of 1.0 MiB holds about [0-9]+ tokens; longer", result.stderr)), warned, result.stderr)

    def test_a_full_file_system_gives_no_disk_tier(self):
        """Where nobody asked for a size; who did is refused."""
        with tempfile.TemporaryDirectory() as folder:
            mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"', folder]
            if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
                self.skipTest("no file system of its own can be had here")
            for free, said in ((0, "disk"), (252, "no prefix cache on disk: .*half of what .*holds no record")):
                for asked, code in (((), 0), (("--prefix-cache-disk-size", "128K"), 2 if free else 0)):
                    fill = 'head -c $((4096 - $1))K /dev/zero > "$0/fill"; shift; exec "$@"'
                    result = subprocess.run([*mount, "sh", "-c", fill, folder, str(free), ISOTHERM, "run", "--model", MODEL, "--kv-cache", "4M",
                                             "--prefix-cache-disk", os.path.join(folder, "s"), *asked, "--max-tokens", "1", "-p", "x"],
                                            capture_output=True, text=True, errors="replace", timeout=120)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertRegex(result.stderr, said if not asked else "disk")
                    self.assertNotIn("Open disk cache", result.stderr)


class Terminal(unittest.TestCase):
    """isotherm run on a pseudo terminal."""

    def setUp(self):
        self.master, terminal = pty.openpty()
        self.said = b""
        self.process = subprocess.Popen([ISOTHERM, "run", "--model", MODEL, "--temperature", "0", "--max-tokens", "2", "--seed", "1"],
                                        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                                        env={**os.environ, "TERM": "xterm"}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)

    def tearDown(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def until(self, pattern, times=1):
        """Reads until this was said so many times since the last call."""
        deadline = time.monotonic() + 60
        while len(re.findall(pattern, self.said)) < times:
            self.assertLess(time.monotonic(), deadline, self.said)
            if select.select([self.master], [], [], 1)[0]:
                self.said += os.read(self.master, 4096)
        said, self.said = self.said, b""
        return said

    def type(self, keys):
        os.write(self.master, keys)

    def test_a_line_is_edited_and_recalled(self):
        if "libedit" not in isotherm("run", "--help").stdout:
            self.skipTest("built without libedit")
        self.until(b"> ")
        self.type("Größe naïve\n".encode())
        first = self.until(rb"prompt \d+, reused.*\]")
        self.type(b"/clear\n")
        self.until(b"a new chat\r?\n\r?> ")
        self.type(b"\x1b[A\x1b[A\n")  # recalled
        second = self.until(rb"prompt \d+, reused.*\]")
        self.type(b"/clear\n")
        self.until(b"a new chat\r?\n\r?> ")
        self.type("xröße naïve".encode() + b"\x01\x1b[C\x7fG" + b"\n")  # to the front, over the x, which goes
        third = self.until(rb"prompt \d+, reused.*\]")
        prompts = [re.findall(rb"prompt (\d+),", said)[0] for said in (first, second, third)]
        self.assertEqual(len(set(prompts)), 1, prompts)
        self.assertNotIn(b"reused 0", second + third)  # the same words

    def test_a_signal_at_the_prompt_gives_a_new_one_and_the_end_ends(self):
        self.until(b"> ")
        self.type(b"half a line")
        self.until(b"half a line")
        self.type(b"\x03")
        self.until(b"> ")
        self.type(b"\x04")
        self.assertEqual(self.process.wait(60), 0)


class Serve(unittest.TestCase):
    def serve(self, *arguments):
        process = subprocess.Popen([ISOTHERM, "serve", "--model", MODEL, "--port", "0", *arguments], stderr=subprocess.PIPE, text=True)
        log = []
        for line in process.stderr:
            log.append(line)
            ready = re.search(r"serving on http://127\.0\.0\.1:(\d+)", line)
            if ready:
                self.addCleanup(process.kill)
                return process, int(ready.group(1)), log
        process.kill()
        self.fail("".join(log))

    def ask(self, port):
        body = {"messages": [{"role": "user", "content": "A message that fills some pages. " * 8}], "max_tokens": 20, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self, process, number):
        process.send_signal(number)
        log = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 0, log)
        return log

    def test_a_signal_flushes_what_was_just_published(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--prefix-cache-disk", folder, "--prefix-cache-disk-size", "256M", "--kv-cache", "16M", "--prefix-cache-restore-deadline", "0")
            process, port, _ = self.serve(*arguments)
            self.ask(port)
            self.stop(process, signal.SIGTERM)
            process, port, log = self.serve(*arguments, "--prefix-cache-io", "pread")
            self.assertEqual(len([line for line in log if "I/O engine pread: as configured" in line]), 1, log)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/cache", timeout=60) as answer:
                self.assertEqual(json.load(answer)["disk"]["engine"], "pread")
            answer = self.ask(port)
            self.stop(process, signal.SIGINT)
            prompt = answer["usage"]["prompt_tokens"]
            self.assertEqual(answer["x_isotherm"]["tokens_disk"], (prompt - 1) // 16 * 16)

    def test_json_lines(self):
        process, _, log = self.serve("--log-format", "json")
        log += self.stop(process, signal.SIGTERM).splitlines()
        steps = {}
        for line in log:
            entry = json.loads(line)
            self.assertNotRegex(entry["message"], r"\[ OK \]|  ")
            if "step" in entry:
                steps[entry["step"]] = entry
                self.assertGreaterEqual(entry.pop("seconds"), 0)
                del entry["step"]
            self.assertEqual(sorted(entry), ["level", "message", "time"])
        self.assertGreaterEqual(set(steps), {"Read model file", "Load tokenizer", "Pack weights", "Allocate cache", "Ready"})

    def test_the_stop_is_not_blamed_on_the_client(self):
        process, port, _ = self.serve("--context", "100000", "--kv-cache", "64M")  # a reply too long to be done first
        body = {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.assertTrue(answer.readline().startswith(b"data: "))
            process.send_signal(signal.SIGTERM)
            rest = answer.read()
        log = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=60), 0, log)
        self.assertIn(b"shutting_down", rest)
        self.assertNotIn(b"[DONE]", rest)
        self.assertIn("/v1/completions", log)
        self.assertNotIn("by the client", log)

    def test_an_ipv6_address_is_printed_as_a_url(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("no IPv6 here")
        process = subprocess.Popen([ISOTHERM, "serve", "--model", MODEL, "--host", "::1", "--port", "0"], stderr=subprocess.PIPE, text=True)
        line = next((line for line in process.stderr if line.startswith("serving on ")), "")
        self.stop(process, signal.SIGTERM)
        self.assertRegex(line, r"http://\[::1\]:\d+$")

    def test_a_signal_while_loading_ends_it(self):
        process = subprocess.Popen([ISOTHERM, "serve", "--model", MODEL, "--port", "0"], stderr=subprocess.PIPE, text=True)
        process.stderr.readline()  # its threads run, its signals are blocked
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        process.stderr.close()
        # By the signal, as if it were not blocked; where it has come to serving meanwhile, in order.
        self.assertEqual(process.wait(timeout=60), 0 if "serving on " in log else -signal.SIGTERM, log)


if __name__ == "__main__":
    unittest.main()
