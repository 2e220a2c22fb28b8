#!/usr/bin/env python3
"""What happens to connections and slots: keys, full queues, clients that leave, slow ones, shutdown. On a tiny model whose context is
stretched so that a reply takes long."""
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from harness import Server, ServerCase, binary, events, main, tiny_model, wait_until

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
# Never ends by itself within a test.
ENDLESS = {"ignore_eos": True, "max_tokens": 30000, "n": 4}
LONG_CONTEXT = ("--context", "32768", "--threads", "1")


def first_text(response):
    """Reads a stream up to its first text."""
    for event in events(response):
        if event != "[DONE]" and event["choices"] and event["choices"][0].get("delta", {}).get("content"):
            return event
    raise AssertionError("the stream ended")


class Leaving(ServerCase):
    FLAGS = LONG_CONTEXT + ("--max-concurrency", "4", "--kv-cache", "256M")

    def wait_idle(self, what, seconds=1):
        # The promise is a second; what is added is for a machine that does other things too.
        wait_until(what, lambda: self.server.busy() == 0, seconds + 2)

    def test_a_client_that_leaves_a_stream_frees_its_slot(self):
        connection, response = self.server.open_stream(messages=HELLO, **ENDLESS)
        first_text(response)
        self.assertGreaterEqual(self.server.busy(), 1)
        response.close()
        connection.close()
        self.wait_idle("the slot of a stream is free")

    def test_a_client_that_leaves_before_its_answer_frees_its_slot(self):
        connection = self.server.connect()
        connection.request("POST", CHAT, json.dumps({"messages": HELLO, **ENDLESS}))
        wait_until("the request runs", lambda: self.server.busy() >= 1)
        gone = self.server.metrics()["isotherm_http_clients_gone_total"]
        connection.close()
        self.wait_idle("the slot of a whole reply is free")
        self.assertEqual(self.server.metrics()["isotherm_http_clients_gone_total"], gone + 1)

    def test_clients_that_leave_the_queue_free_it(self):
        running = [self.server.open_stream(messages=HELLO, **{**ENDLESS, "n": 1}) for _ in range(4)]
        for _, response in running:
            first_text(response)
        waiting = [self.server.open_stream(messages=HELLO, **{**ENDLESS, "n": 1}) for _ in range(3)]
        wait_until("three wait", lambda: self.server.busy() == 7)
        for connection, response in waiting:
            response.close()
            connection.close()
        wait_until("the queue is free", lambda: self.server.busy() == 4, 3)
        for connection, response in running:
            response.close()
            connection.close()
        self.wait_idle("all are free")

    def test_what_was_prefilled_stays_reusable(self):
        prompt = "A prompt that nobody has sent before, " * 8
        fields = {"messages": [{"role": "user", "content": prompt}]}
        connection, response = self.server.open_stream(**fields, **ENDLESS)
        first_text(response)
        response.close()
        connection.close()
        self.wait_idle("the slot is free")
        usage = self.server.chat(prompt, max_tokens=1)["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], (usage["prompt_tokens"] - 1) // 16 * 16)

    def test_a_reader_that_does_not_read_is_cut_off(self):
        slow = self.server.metrics()["isotherm_http_slow_readers_total"]
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", self.server.port))
            body = json.dumps({"messages": HELLO, "stream": True, "logprobs": True, "top_logprobs": 20, **ENDLESS}).encode()
            sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
            wait_until("it runs", lambda: self.server.busy() >= 1)
            wait_until("it is cut off", lambda: self.server.busy() == 0, 120)
        self.assertEqual(self.server.metrics()["isotherm_http_slow_readers_total"], slow + 1)

    def test_slow_headers_are_cut_off(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as sock:
            sock.settimeout(0.5)
            sock.sendall(b"GET /health HTTP/1.1\r\n")
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                try:
                    sock.sendall(b"X: y\r\n")
                    if sock.recv(100) == b"":
                        return
                except TimeoutError:
                    continue
                except OSError:
                    return
        self.fail("a client may send headers for ever")

    def test_many_idle_connections_do_not_stop_a_chat(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
        with contextlib.ExitStack() as stack:
            for i in range(1500):  # more than the server holds
                stack.enter_context(socket.create_connection(("127.0.0.1", self.server.port)))
                if i % 100 == 99:
                    self.assertEqual(self.server.get("/health").status, 200)
            self.server.chat(max_tokens=2)
        wait_until("connections are gone", lambda: self.server.metrics()["isotherm_http_connections"] <= 1)

    def test_descriptors_are_given_back(self):
        self.server.chat(max_tokens=1)
        wait_until("quiet", lambda: self.server.metrics()["isotherm_http_connections"] <= 1)
        before = self.server.fds()
        for i in range(50):
            connection, response = self.server.open_stream(messages=HELLO, **ENDLESS)
            if i % 2:
                first_text(response)
            response.close()
            connection.close()
        self.wait_idle("all are free", 5)
        wait_until("descriptors are back", lambda: self.server.fds() <= before + 1)


class FullQueue(ServerCase):
    FLAGS = LONG_CONTEXT + ("--max-concurrency", "1", "--max-queue", "2", "--kv-cache", "256M")

    def test_a_full_queue_is_429_with_retry_after(self):
        with contextlib.ExitStack() as stack:
            opened = []
            for _ in range(12):
                connection = stack.enter_context(contextlib.closing(self.server.connect()))
                connection.request("POST", CHAT, json.dumps({"messages": HELLO, "stream": True, **ENDLESS, "n": 1}))
                reply = connection.getresponse()
                opened.append((reply.status, reply.headers, connection))
                if reply.status == 429:
                    error = json.loads(reply.read())["error"]
                    break
            statuses = [status for status, _, _ in opened]
            self.assertEqual(statuses[-1], 429, statuses)
            self.assertGreaterEqual(len(statuses), 3)
            self.assertRegex(opened[-1][1]["Retry-After"], "^[0-9]+$")
            self.assertEqual((error["type"], error["code"]), ("rate_limit_error", "queue_full"))
            self.assertGreater(self.server.metrics()["isotherm_requests_rejected_total"], 0)
        wait_until("the queue is empty", lambda: self.server.busy() == 0)
        self.server.chat(max_tokens=1)


    def test_a_stream_that_waits_gets_comments(self):
        with contextlib.closing(self.server.connect()) as busy:
            # Sixteen long replies, one after the other; not streamed, so that nobody has to read them.
            busy.request("POST", CHAT, json.dumps({"messages": HELLO, **ENDLESS, "n": 16}))
            wait_until("it runs", lambda: self.server.busy() >= 1)
            connection, response = self.server.open_stream(messages=HELLO, **ENDLESS)
            began = time.monotonic()
            self.assertEqual(response.readline(), b": keep-alive\n")
            self.assertEqual(response.readline(), b"\n")
            self.assertGreater(time.monotonic() - began, 10)
            response.close()
            connection.close()
        wait_until("the queue is empty", lambda: self.server.busy() == 0)


class Keys(unittest.TestCase):
    ALICE, BOB, OPERATOR = "sk-alice-0123456789", "sk-bob-9876543210", "sk-operator-5555"

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        file = cls.stack.enter_context(tempfile.NamedTemporaryFile("w"))
        file.write(f"# keys of the test\n\n{cls.ALICE}\n  {cls.BOB}  \noperator {cls.OPERATOR}\n")
        file.flush()
        cls.server = cls.stack.enter_context(Server(tiny_model(), "--api-key-file", file.name, "--host", "0.0.0.0"))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def ask(self, key, content="Hello"):
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return self.server.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 1}, headers)

    def test_only_a_right_key_opens(self):
        for key in (None, "", "wrong", self.ALICE + "x", self.ALICE[:-1], self.ALICE.upper(), "x" * 5000, f"{self.ALICE} {self.BOB}"):
            reply = self.ask(key)
            self.assertEqual(reply.status, 401, key)
            self.assertEqual(reply.error["code"], "invalid_api_key")
            self.assertEqual(reply.headers["WWW-Authenticate"], "Bearer")
        for path in ("/v1/models", "/cache", "/metrics"):
            self.assertEqual(self.server.get(path).status, 401)
        for key in (self.ALICE, self.BOB, self.OPERATOR):
            self.assertEqual(self.ask(key).status, 200)
        self.assertEqual(self.server.get("/v1/models", Authorization=f"bearer  {self.BOB}").status, 200)

    def test_counters_of_all_tenants_are_for_operators(self):
        for path in ("/cache", "/metrics"):
            self.assertEqual(self.server.get(path, Authorization=f"Bearer {self.OPERATOR}").status, 200)
            reply = self.server.get(path, Authorization=f"Bearer {self.BOB}")
            self.assertEqual(reply.status, 403)
            self.assertEqual(reply.error["code"], "operators_only")

    def test_health_page_and_preflight_need_no_key(self):
        for path in ("/health", "/"):
            self.assertEqual(self.server.get(path).status, 200)
        self.assertEqual(self.server.request("OPTIONS", CHAT).status, 204)

    def test_a_refused_body_is_answered_all_the_same(self):
        self.assertEqual(self.server.post(CHAT, b"x" * (8 << 20)).status, 401)

    def test_each_key_has_its_own_cache(self):
        prompt = "Something that is long enough for a few pages. " * 4
        replies = [self.ask(key, prompt).json for key in (self.ALICE, self.BOB, self.ALICE, self.BOB)]
        cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
        self.assertEqual(cached[:2], [0, 0])
        self.assertGreater(cached[2], 0)
        self.assertEqual(cached[2], cached[3])
        # Who is whose tenant is said to the key alone; an operator sees it beside what it has.
        alice, bob = (reply["x_isotherm"]["tenant"] for reply in replies[:2])
        tenants = self.server.get("/cache", Authorization=f"Bearer {self.OPERATOR}").json["tenants"]
        self.assertLessEqual({alice, bob}, {tenant["tenant"] for tenant in tenants})
        self.assertNotEqual(alice, bob)

    def test_keys_are_not_logged(self):
        self.ask(self.ALICE)
        self.ask("sk-mallory-1122334455")
        log = self.server.log()
        for secret in (self.ALICE, self.BOB, "sk-mallory"):
            self.assertNotIn(secret, log)


class Starting(unittest.TestCase):
    def refused(self, *flags):
        """Exit code and stderr of a server that must not start."""
        done = subprocess.run([binary(), "serve", "--model", tiny_model(), "--port", "0", *flags], capture_output=True, timeout=60,
                              text=True, check=False)
        return done.returncode, done.stderr

    def test_without_keys_only_loopback_is_served(self):
        code, said = self.refused("--host", "0.0.0.0")
        self.assertEqual(code, 2, said)
        self.assertIn("--api-key-file", said)
        with Server(tiny_model(), "--host", "127.0.0.1") as server:
            self.assertEqual(server.get("/health").status, 200)

    def test_bad_key_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("empty", b""), ("comments", b"# nothing\n\n"), ("long", b"x" * 300), ("binary", b"a\0b\n")):
                path = os.path.join(folder, name)
                with open(path, "wb") as f:
                    f.write(content)
                code, said = self.refused("--api-key-file", path)
                self.assertEqual(code, 2, said)
                self.assertNotIn("xxxx", said)

    def test_a_taken_port_is_refused(self):
        with Server(tiny_model()) as server:
            code, said = self.refused("--port", str(server.port))
            self.assertNotEqual(code, 0)
            self.assertIn(str(server.port), said)

    def test_a_host_name_is_refused(self):
        code, said = self.refused("--host", "example.invalid")
        self.assertEqual(code, 2, said)


class StalledLog(unittest.TestCase):
    """Stderr is a pipe that nobody reads any more."""

    def setUp(self):
        self.process = subprocess.Popen([binary(), "serve", "--model", tiny_model(), "--port", "0"], stderr=subprocess.PIPE)
        self.addCleanup(self.end)
        self.server = Server.__new__(Server)  # only to ask
        for line in self.process.stderr:
            if b"serving on" in line:
                self.server.port = int(line.rsplit(b":", 1)[1])
                break
        fcntl.fcntl(self.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        # A description of its own: that of the server must go on blocking.
        filler = os.open(f"/proc/self/fd/{self.process.stderr.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        self.filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.filled += os.write(filler, b"x")
        os.close(filler)
        self.assertGreaterEqual(self.filled, 4096)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def test_the_server_goes_on_answering(self):
        for _ in range(3):  # each of them is logged
            self.assertEqual(self.server.chat(max_tokens=1)["object"], "chat.completion")
        self.assertEqual(self.server.get("/health").status, 200)
        self.process.stderr.read(self.filled)
        for _ in range(3):
            self.assertIn(b"/v1/chat/completions 200", self.process.stderr.readline())
        self.process.send_signal(signal.SIGTERM)
        self.assertIn(b"SIGTERM", self.process.stderr.readline())
        self.assertEqual(self.process.wait(60), 0)

    def test_the_server_ends_all_the_same(self):
        self.server.chat(max_tokens=1)
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(60), 0)


class Stopping(unittest.TestCase):
    FLAGS = LONG_CONTEXT + ("--max-concurrency", "1", "--kv-cache", "256M")
    ENDLESS = {**ENDLESS, "n": 16}  # one after the other

    def begin(self, server, **fields):
        """A stream whose reply has begun."""
        connection, response = server.open_stream(messages=HELLO, **{**self.ENDLESS, **fields})
        first_text(response)
        return connection, response

    def assert_told(self, error):
        self.assertEqual((error["type"], error["code"]), ("server_error", "shutting_down"))
        self.assertIn("shutting down", error["message"])

    def test_whoever_waits_gets_a_503_and_streams_an_error(self):
        with Server(tiny_model(), *self.FLAGS) as server, contextlib.ExitStack() as stack:
            running, stream = self.begin(server)
            waiting, waiting_stream = server.open_stream(messages=HELLO, **self.ENDLESS)
            whole, sending, idle = (stack.enter_context(contextlib.closing(server.connect())) for _ in range(3))
            whole.request("POST", CHAT, json.dumps({"messages": HELLO, **self.ENDLESS}))
            wait_until("two wait", lambda: server.busy() == 3)
            idle.request("GET", "/health")
            idle.getresponse().read()
            sending.putrequest("POST", CHAT)
            sending.putheader("Content-Length", "2")
            sending.endheaders()
            wait_until("all are taken", lambda: server.metrics()["isotherm_http_connections"] >= 6)  # the asking one too
            server.process.send_signal(signal.SIGTERM)

            reply = whole.getresponse()
            self.assertEqual(reply.status, 503)
            self.assertRegex(reply.headers["Retry-After"], "^[0-9]+$")
            self.assertEqual(reply.headers["Connection"], "close")
            self.assert_told(json.loads(reply.read())["error"])
            last = list(events(waiting_stream))[-1]
            self.assert_told(last["error"])
            # What comes after the signal, on connections that are open, is refused too; new ones are not taken.
            sending.send(b"{}")
            idle.request("POST", CHAT, json.dumps({"messages": HELLO}))
            for connection in (sending, idle):
                reply = connection.getresponse()
                self.assertEqual(reply.status, 503)
                self.assert_told(json.loads(reply.read())["error"])
            with self.assertRaises(OSError):
                server.get("/health")
            # The reply that had begun goes on for a while; then it is told as well.
            seen = list(events(stream))
            self.assertGreater(len(seen), 1)
            self.assert_told(seen[-1]["error"])
            self.assertEqual(server.process.wait(60), 0)
            for connection in (running, waiting):
                connection.close()

    def test_a_reply_that_ends_in_time_ends_well(self):
        with Server(tiny_model(), *self.FLAGS) as server:
            connection, response = self.begin(server, max_tokens=100, n=1)
            server.process.send_signal(signal.SIGTERM)
            seen = list(events(response))
            self.assertEqual(seen[-1], "[DONE]")
            self.assertEqual(seen[-2]["choices"][0]["finish_reason"], "length")
            connection.close()
            self.assertEqual(server.process.wait(60), 0)

    def test_a_whole_reply_that_has_begun_may_end_or_is_a_503(self):
        for fields, status in (({"n": 1, "max_tokens": 100}, 200), ({}, 503)):
            with Server(tiny_model(), *self.FLAGS) as server, contextlib.closing(server.connect()) as connection:
                connection.request("POST", CHAT, json.dumps({"messages": HELLO, **self.ENDLESS, **fields}))
                wait_until("it has begun", lambda: server.metrics()["isotherm_decoded_tokens_total"] > 1)
                server.process.send_signal(signal.SIGTERM)
                reply = connection.getresponse()
                self.assertEqual(reply.status, status)
                body = json.loads(reply.read())
                if status == 503:
                    self.assert_told(body["error"])
                self.assertEqual(server.process.wait(60), 0)

    def test_a_second_signal_ends_at_once(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)):
            with Server(tiny_model(), *self.FLAGS) as server:
                server.good_ends = {-second}
                connection, _ = self.begin(server)
                server.process.send_signal(first)
                wait_until("it stops", lambda: "again to end at once" in server.log())
                server.process.send_signal(second)
                self.assertEqual(server.process.wait(60), -second)
                connection.close()

    def test_a_client_that_leaves_meanwhile_is_not_waited_for(self):
        with Server(tiny_model(), *self.FLAGS) as server:
            connection, response = self.begin(server)
            server.process.send_signal(signal.SIGTERM)
            response.close()
            connection.close()
            self.assertEqual(server.process.wait(60), 0)


if __name__ == "__main__":
    main()
