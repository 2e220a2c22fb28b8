"""A server process for tests, and plain HTTP to talk to it. Standard library only.

Tests get the server's binary as their first argument and the tiny models' folder in $ISOTHERM_TEST_MODELS. Nothing here sleeps to
wait for a state: wait_until polls with a deadline.
"""
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77
REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# What a sanitizer's report begins with.
REPORTS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")


def cache_folder():
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "isotherm")


def tiny_model(name="llama-q8_0"):
    return os.path.join(os.environ.get("ISOTHERM_TEST_MODELS", ""), name + ".gguf")


def real_model():
    """The real model's path, or None after a loud line. A sanitizer makes it too slow: the tiny ones do there."""
    if os.environ.get("ISOTHERM_SANITIZED"):
        print("the real model is left to the release build", flush=True)
        return None
    for folder in (os.environ.get("ISOTHERM_MODELS"), os.path.join(cache_folder(), "models")):
        if folder and os.path.exists(os.path.join(folder, REAL_MODEL)):
            return os.path.join(folder, REAL_MODEL)
    print(f"SKIPPED, NOT TESTED: {REAL_MODEL} is not here; tools/fetch-model fetches it", flush=True)
    return None


def disk_flags(folder, size):
    """A prefix cache on disk that loads whatever is there, however slow this machine is just now: who counts reused tokens must not
    depend on the time that loads take."""
    return ("--prefix-cache-restore", "always", "--prefix-cache-restore-deadline", "0", "--prefix-cache-disk", folder, "--prefix-cache-disk-size", size)


def binary():
    if len(sys.argv) < 2 or not os.path.exists(sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} PATH/TO/isotherm")
    return os.path.abspath(sys.argv[1])


def wait_until(what, condition, seconds=30):
    """Polls until condition() is true and returns its value; fails with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def shorten(log):
    """The first report of a sanitizer, if there is one, and the last lines."""
    lines = log.splitlines()
    report = [i for i, line in enumerate(lines) if any(r in line for r in REPORTS)][:1]
    head = [line for i in report for line in lines[i:i + 60] + ["..."]]
    return "\n".join(head + lines[-40:])


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Server:
    """A server on a free port of 127.0.0.1; a context manager. Leaving it checks that the process ended well and that no sanitizer
    reported anything."""

    def __init__(self, model, *flags, wait=True, env=None, program=None):
        self.wait = wait
        self.port = None
        self.good_ends = {0, -signal.SIGKILL}
        self.log_file = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            [program or binary(), "serve", "--model", model, "--port", "0", *flags],
            stdout=self.log_file, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})

    def __enter__(self):
        try:
            wait_until("the server says its port", lambda: self.alive() and self.find_port(), 120)
            wait_until("the server answers", lambda: self.alive() and self.probe(), 120)
        except BaseException:
            print(self.log(), flush=True)
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "none: it did not end within 60 s of SIGTERM"
        log = self.log()
        self.log_file.close()
        reported = [line for line in log.splitlines() if any(r in line for r in REPORTS)]
        if kind or reported or code not in self.good_ends:
            print(f"---- log of the server (exit code {code}) ----\n{shorten(log)}", flush=True)
        if not kind:
            assert not reported, reported[0]
            assert code in self.good_ends, f"exit code {code}"

    def alive(self):
        assert self.process.poll() is None, f"the server ended with code {self.process.returncode}"
        return True

    def find_port(self):
        said = re.search(r"listening on http://[^\s\"]*:(\d+)", self.log())
        self.port = int(said.group(1)) if said else None
        return self.port

    def probe(self):
        with contextlib.suppress(OSError):
            status = self.get("/health").status
            return status == 200 or (status == 503 and not self.wait)
        return False

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def log(self):
        # pread: the server writes at the same offset that a seek would move
        size = os.fstat(self.log_file.fileno()).st_size
        return os.pread(self.log_file.fileno(), size, 0).decode(errors="replace")

    # ---- requests

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, fields, headers=None):
        body = fields if isinstance(fields, (bytes, str)) else json.dumps(fields)
        return self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})

    def chat(self, content="Hello", **fields):
        """A chat completion that must succeed, as an object."""
        messages = fields.pop("messages", None) or [{"role": "user", "content": content}]
        reply = self.post("/v1/chat/completions", {"messages": messages, **fields})
        assert reply.status == 200, f"{reply.status} {reply.body!r}"
        return reply.json

    def complete(self, prompt="Hello", **fields):
        reply = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert reply.status == 200, f"{reply.status} {reply.body!r}"
        return reply.json

    def open_stream(self, path="/v1/chat/completions", timeout=60, **fields):
        """Sends a streaming request and returns (connection, response) with nothing but the headers read."""
        connection = self.connect(timeout)
        connection.request("POST", path, json.dumps({"stream": True, **fields}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return connection, response

    def stream(self, path="/v1/chat/completions", **fields):
        """All data lines of a stream: objects, and the string "[DONE]"."""
        connection, response = self.open_stream(path, **fields)
        try:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            return list(events(response))
        finally:
            connection.close()

    def metrics(self):
        """{name or name{labels}: value}"""
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def cache(self):
        return self.get("/cache").json

    def busy(self):
        """Sequences and waiting requests that the engine holds."""
        requests = self.cache()["requests"]
        return requests["running"] + requests["waiting"]

    def drain(self):
        """Waits until everything published is durable."""
        wait_until("pending_bytes is 0", lambda: self.cache()["pending_bytes"] == 0)

    def fds(self, outside=None):
        """Open descriptors; those of files below `outside` are left out."""
        folder, count = f"/proc/{self.process.pid}/fd", 0
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(os.path.join(folder, name))
                count += not (outside and target.startswith(outside + "/"))
        return count

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def events(response):
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith("data: "):
            data = line[6:]
            yield data if data == "[DONE]" else json.loads(data)


def text_of(chunks):
    """The text of a stream's only choice."""
    text = ""
    for chunk in chunks:
        for choice in chunk["choices"] if chunk != "[DONE]" else []:
            text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


class ServerCase(unittest.TestCase):
    """Tests that share one server: set MODEL (a tiny one's name) and FLAGS."""
    MODEL, FLAGS, ENV = "llama-q8_0", (), None

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.server = cls.stack.enter_context(Server(tiny_model(cls.MODEL), *cls.FLAGS, env=cls.ENV))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def assert_error(self, reply, status, *words, param=None, code=None):
        """An OpenAI-shaped error with this status whose message has these words."""
        self.assertEqual(reply.status, status, reply.body)
        self.assertEqual(reply.headers["Content-Type"], "application/json")
        error = reply.error
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        for word in words:
            self.assertIn(str(word), error["message"])
        if param is not None:
            self.assertEqual(error["param"], param)
        if code is not None:
            self.assertEqual(error["code"], code)


def main():
    binary()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
