"""Speaks to the program `tokenize` (tokenize.c): encode, decode, render, over one process."""
import struct
import subprocess

ROLES = {"system": 0, "user": 1, "assistant": 2}


class Tokenizer:
    def __init__(self, program, gguf):
        self.process = subprocess.Popen([program, gguf], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise RuntimeError("tokenize ended with %d" % self.process.returncode)

    def _numbers(self, n):
        return list(struct.unpack("<%dI" % n, self._bytes(4 * n)))

    def _bytes(self, n):
        data = self.process.stdout.read(n)
        if len(data) != n:
            raise RuntimeError("tokenize ended early")
        return data

    def _ask(self, request):
        self.process.stdin.write(request)
        self.process.stdin.flush()

    def encode(self, text, parse_special=False):
        text = text if isinstance(text, bytes) else text.encode()
        self._ask(b"E" + struct.pack("<II", parse_special, len(text)) + text)
        return self._numbers(self._numbers(1)[0])

    def decode(self, ids):
        self._ask(b"D" + struct.pack("<I%dI" % len(ids), len(ids), *ids))
        return self._bytes(self._numbers(1)[0])

    def render(self, template, messages, add_generation=True):
        """-> (code, ids, boundary positions, reply_run)"""
        request = b"C" + struct.pack("<I", add_generation) + struct.pack("<I", len(template)) + template.encode()
        request += struct.pack("<I", len(messages))
        for m in messages:
            content = m["content"].encode()
            request += struct.pack("<II", ROLES[m["role"]], len(content)) + content
        self._ask(request)
        code = struct.unpack("<i", self._bytes(4))[0]
        ids = self._numbers(self._numbers(1)[0])
        return code, ids, self._numbers(self._numbers(1)[0]), self._numbers(1)[0]

    def template(self):
        self._ask(b"R")
        return self._bytes(self._numbers(1)[0]).decode()
