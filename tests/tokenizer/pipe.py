"""Asks the program `tokenize` (tokenize.c): encode, decode, render, many questions to one process."""
import struct
import subprocess

ROLES = {"system": 0, "user": 1, "assistant": 2}


class _Answers:
    def __init__(self, data):
        self.data, self.at = data, 0

    def bytes(self, n):
        self.at += n
        if self.at > len(self.data):
            raise RuntimeError("tokenize ended early")
        return self.data[self.at - n:self.at]

    def number(self):
        return struct.unpack("<I", self.bytes(4))[0]

    def numbers(self):
        n = self.number()
        return list(struct.unpack("<%dI" % n, self.bytes(4 * n)))


class Tokenizer:
    def __init__(self, program, gguf):
        self.command = [program, gguf]

    def _ask(self, requests):
        done = subprocess.run(self.command, input=b"".join(requests), stdout=subprocess.PIPE, timeout=300)
        if done.returncode != 0:
            raise RuntimeError("tokenize ended with %d" % done.returncode)
        return _Answers(done.stdout)

    def encode_many(self, texts, parse_special=False):
        texts = [t if isinstance(t, bytes) else t.encode() for t in texts]
        answers = self._ask(b"E" + struct.pack("<II", parse_special, len(t)) + t for t in texts)
        return [answers.numbers() for _ in texts]

    def gemma_boundaries(self, messages, ids, starts, boundaries):
        """Where boundaries of a conversation lie: at each start of a turn, at the end, and inside the first turn behind the last id that spells
        only system text. That one is taken from `boundaries` when it is right."""
        if messages[0]["role"] != "system":
            return starts
        at = boundaries[1] if len(boundaries) > 1 else 0
        if not starts[0] < at < starts[1]:
            return [starts[0], None] + starts[1:]
        text = "user\n" + messages[0]["content"] + "\n\n"
        spaces = text.replace("\u2581", " ")  # what SentencePiece makes of it
        # Every longer prefix, not just the next: half a character is no text, and yet its other half may complete it.
        inside, *beyond = (spelt.decode() for spelt in self.decode_many([ids[starts[0] + 1:k] for k in range(at, starts[1] + 1)]))
        inside = inside.rstrip("\ufffd")
        right = (text.startswith(inside) or spaces.startswith(inside)) and not any(
            text.startswith(longer) or spaces.startswith(longer) for longer in beyond)
        return [starts[0], at if right else None] + starts[1:]

    def decode_many(self, id_lists):
        answers = self._ask(b"D" + struct.pack("<I%dI" % len(ids), len(ids), *ids) for ids in id_lists)
        return [answers.bytes(answers.number()) for _ in id_lists]

    def render_many(self, template, cases):
        """cases: (messages, 0: nothing follows, 1: a reply's header, 2: one without thinking) -> a list of (code, ids, boundary positions, reply_run)"""
        requests = []
        for messages, generation in cases:
            request = [b"C", struct.pack("<II", generation, len(template)), template.encode(),
                       struct.pack("<I", len(messages))]
            for m in messages:
                content = m["content"].encode()
                request += [struct.pack("<II", ROLES[m["role"]], len(content)), content]
            requests.append(b"".join(request))
        answers = self._ask(requests)
        return [(answers.number(), answers.numbers(), answers.numbers(), answers.number()) for _ in cases]

    def template(self):
        answers = self._ask([b"R"])
        return answers.bytes(answers.number()).decode()
