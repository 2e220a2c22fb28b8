#!/usr/bin/env python3
"""What docs/http-api.md refuses: fields and bodies that are not offered, wrong, too large or malformed. On a tiny model."""
import json
import socket

from harness import ServerCase, main

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


class Refusals(ServerCase):
    def refused(self, fields, *words, param, path=CHAT):
        body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
        self.assert_error(self.server.post(path, {**body, **fields}), 400, *words, param=param)

    def test_what_is_not_offered_is_said(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        for fields in ({"tools": [tool]}, {"tool_choice": "required"}, {"functions": [{"name": "f"}]},
                       {"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_schema", "json_schema": {}}},
                       {"modalities": ["text", "audio"]}, {"audio": {"voice": "a"}}, {"best_of": 3}, {"grammar": "root ::= x"}):
            self.refused(fields, "not offered", param=next(iter(fields)))
        for fields in ({"echo": True}, {"suffix": "end"}, {"best_of": 2}):
            self.refused(fields, "not offered", param=next(iter(fields)), path=COMPLETION)

    def test_asking_for_nothing_is_fine(self):
        nothing = {"tools": [], "tool_choice": None, "functions": None, "response_format": {"type": "text"}, "echo": False, "suffix": None,
                   "modalities": ["text"], "audio": None, "best_of": 1, "stop": [], "logit_bias": None, "logprobs": None}
        self.server.chat(max_tokens=1, **nothing)
        self.server.complete(max_tokens=1, **{**nothing, "suffix": ""})
        self.server.chat(max_tokens=1, response_format=None, tools=None, tool_choice="none")

    def test_parts_that_are_not_text_are_refused(self):
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        for content in ([image], [{"type": "text", "text": "a"}, image], [{"type": "text"}], ["a"], [{}], 5, None, {"type": "text"}):
            self.refused({"messages": [{"role": "user", "content": content}]}, param="messages[0].content")

    def test_messages_must_be_messages(self):
        for messages in (None, [], {}, "hi", 5):
            self.refused({"messages": messages}, param="messages")
        for message in ("hi", 5, None, []):
            self.refused({"messages": [HELLO[0], message]}, param="messages[1]")
        for role in ("tool", "function", "wizard", 5, None):
            self.refused({"messages": [{"role": role, "content": "a"}]}, param="messages[0].role")
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]
        self.refused({"messages": [HELLO[0], {"role": "assistant", "content": "", "tool_calls": calls}]}, "tool", param="messages[1]")

    def test_wrong_types_and_ranges_name_the_field(self):
        for name, values in {
                "temperature": ["hot", -0.1, 2.1, True, [], 1e300], "top_p": [-0.1, 1.1, "x"], "min_p": [-1, 2], "top_k": [-2, 1.5, "x"],
                "repeat_penalty": [0, -1, 11], "presence_penalty": [-2.1, 2.1], "frequency_penalty": [-2.1, 2.1, "x"],
                "seed": [1.5, "x", 1e30], "n": [0, 17, -1, "2", 1.5], "max_tokens": [0, -1, "x", 1.5],
                "max_completion_tokens": [0, -5, "x"], "stream": ["yes", 1], "ignore_eos": [1, "x"], "logprobs": [5, "x"],
                "top_logprobs": [-1, 21, "x", 3], "stop": [5, [5], [""], "", ["a"] * 17, "a\u0000b", {}], "model": [5, []],
                "stream_options": [5, [], {"include_usage": 1}], "response_format": ["text", {}, {"type": 5}],
                "logit_bias": [[], 5, {"x": 1}, {"-1": 1}, {"99999999999": 1}, {"5": 101}, {"5": "x"}, {"5": None}, {"": 1}]}.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    self.refused({name: value}, name, param=name)
        for value in (True, -1, 21, "x"):
            self.refused({"logprobs": value}, param="logprobs", path=COMPLETION)


class Bodies(ServerCase):
    def test_malformed_json_is_400(self):
        for body in (b"", b"{", b"nonsense", b"[]", b"5", b'"x"', b"null", b'{"messages":', b'{"messages": NaN}', b"{'a': 1}", b"{}{}",
                     b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"\x00", b"\xff\xfe",
                     b'{"a": 1e999}'):
            for path in (CHAT, COMPLETION, "/tokenize", "/detokenize"):
                self.assert_error(self.server.post(path, body), 400)

    def test_numbers_that_nothing_holds_name_their_field(self):
        for field, number in (("seed", "99999999999999999999999"), ("temperature", "1e999"), ("max_tokens", "-9223372036854775809")):
            body = '{"messages": [{"role": "user", "content": "Hello"}], "%s": %s}' % (field, number)
            self.assert_error(self.server.post(CHAT, body), 400, field, number, "out of range", param=field)

    def test_a_body_that_is_no_object_says_what_it_is(self):
        for body, said in (("null", "not null"), ("[]", "an array"), ("5", "a number"), ('"x"', "a string"), ("", "empty")):
            self.assert_error(self.server.post(CHAT, body), 400, said)

    def test_deep_json_is_400(self):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            for depth in (65, 10_000, 1_000_000):
                self.assert_error(self.server.post(CHAT, opening * depth + b"1" + closing * depth), 400, "deep")
        self.assert_error(self.server.post(CHAT, b"[" * 10_000), 400, "deep")
        # Brackets in a string are text.
        self.server.chat("[" * 500, max_tokens=1)

    def test_too_many_values_are_400(self):
        self.assert_error(self.server.post(COMPLETION, b'{"prompt":[' + b"1," * 1_100_000 + b"1]}"), 400, "values")

    def test_a_large_body_is_413(self):
        body = b'{"messages":[{"role":"user","content":"' + b"x" * (33 << 20) + b'"}]}'
        self.assert_error(self.server.post(CHAT, body), 413, 32 << 20)
        # In chunks, without a length to go by.
        pieces = (body[i:i + 65536] for i in range(0, len(body), 65536))
        self.assert_error(self.server.request("POST", CHAT, pieces), 413, 32 << 20)
        # Refused before it is sent, whether the client asks first or not.
        for asks in (True, False):
            connection = self.server.connect()
            connection.putrequest("POST", CHAT)
            connection.putheader("Content-Length", str(1 << 40))
            if asks:
                connection.putheader("Expect", "100-continue")
            connection.endheaders()
            self.assertEqual(connection.getresponse().status, 413)
            connection.close()

    def test_one_host_header_is_needed(self):
        for version, hosts, status in (("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 2, 400)):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as sock:
                sock.sendall(f"GET /health HTTP/{version}\r\nConnection: close\r\n".encode() + b"Host: x\r\n" * hosts + b"\r\n")
                answer = b"".join(iter(lambda: sock.recv(4096), b""))
            self.assertEqual(answer.split()[1], str(status).encode(), (version, hosts))
            self.assertEqual(b"Host header" in answer, status == 400)

    def test_a_body_whose_end_is_said_twice_is_no_second_request(self):
        body = b'{"content":"hi"}'
        hidden = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for framing in (b"Content-Length: %d\r\nContent-Length: 40\r\n\r\n%s" % (len(body), body),
                        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n%s\r\n0\r\n\r\n" % body):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as sock:
                sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + framing + hidden)
                answer = b""
                try:
                    while part := sock.recv(65536):
                        answer += part
                except ConnectionResetError:  # closed with bytes unread
                    pass
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)

    def test_a_body_in_chunks_is_taken(self):
        body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
        self.assertEqual(self.server.request("POST", CHAT, (bytes([b]) for b in body)).status, 200)


if __name__ == "__main__":
    main()
