"""A GGUF writer of our own for test files, and the tiny byte-level BPE vocabularies that they carry.

The writer writes what it is told, right or wrong: broken_models.py uses it to lie. Standard library only.
"""
import os
import random
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALAR_FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q",
                  I64: "<q", F64: "<d"}

# name: (number in the file, elements a block, bytes a block)
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2),
}


def pack_string(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def pack_array(elem, values):
    body = b"".join(pack_string(v) if elem == STRING else struct.pack(SCALAR_FORMATS[elem], v) for v in values)
    return struct.pack("<IQ", elem, len(values)) + body


def pack_value(value_type, value):
    """value is (element type, list) for an array, raw bytes for anything else that should not be packed."""
    if isinstance(value, bytes) and value_type != STRING:
        return value
    if value_type == STRING:
        return pack_string(value)
    if value_type == ARRAY:
        return pack_array(*value)
    return struct.pack(SCALAR_FORMATS[value_type], value)


class Tensor:
    """offset None: where it should be. data None: as many zeros as shape and type ask for."""

    def __init__(self, name, shape, type_number, data=None, offset=None, n_dims=None):
        self.name, self.shape, self.type, self.offset = name, shape, type_number, offset
        self.n_dims = len(shape) if n_dims is None else n_dims
        if data is None:
            elements = 1
            for n in shape:
                elements *= n
            block, size = next((t[1:] for t in TYPES.values() if t[0] == type_number), (1, 4))
            data = bytes(elements // block * size)
        self.data = data


class File:
    """Keys and tensors in order; counts, version and magic may be overridden."""

    def __init__(self):
        self.magic, self.version, self.alignment = b"GGUF", 3, 32
        self.keys = []  # (name, type, value)
        self.tensors = []
        self.n_keys = self.n_tensors = None

    def key(self, name, value_type, value):
        self.keys.append((name, value_type, value))

    def set_key(self, name, value_type, value):
        """Replaces the key of that name, or appends it."""
        for i, (old, _, _) in enumerate(self.keys):
            if old == name:
                self.keys[i] = (name, value_type, value)
                return
        self.key(name, value_type, value)

    def drop_key(self, name):
        self.keys = [k for k in self.keys if k[0] != name]

    def tensor(self, *args, **keywords):
        self.tensors.append(Tensor(*args, **keywords))

    def find(self, name):
        return next(t for t in self.tensors if t.name == name)

    def header(self):
        """Everything in front of the padding before the data."""
        out = [self.magic, struct.pack("<I", self.version),
               struct.pack("<QQ", len(self.tensors) if self.n_tensors is None else self.n_tensors,
                           len(self.keys) if self.n_keys is None else self.n_keys)]
        for name, value_type, value in self.keys:
            out.append(pack_string(name) + struct.pack("<I", value_type) + pack_value(value_type, value))
        running = 0
        for t in self.tensors:
            out.append(pack_string(t.name) + struct.pack("<I", t.n_dims))
            out.append(b"".join(struct.pack("<Q", n) for n in t.shape))
            out.append(struct.pack("<IQ", t.type, running if t.offset is None else t.offset))
            running += len(t.data) + -len(t.data) % self.alignment
        return b"".join(out)

    def bytes(self):
        out = self.header()
        out += bytes(-len(out) % self.alignment)
        parts = [out]
        for t in self.tensors:
            parts.append(t.data + bytes(-len(t.data) % self.alignment))
        return b"".join(parts)

    def write(self, path):
        """The whole file at once under its name, so that a reader never sees half of it."""
        write_file(path, self.bytes())


def write_file(path, data):
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


# ---- random tensors -------------------------------------------------------------------------------------


def half(x):
    return struct.pack("<e", x)


def random_data(rng, type_name, elements, deviation):
    """Blocks with random codes whose values have about the given standard deviation; no quantiser is needed."""
    _, block, _ = TYPES[type_name]
    if block == 1:
        values = [rng.gauss(0.0, deviation) for _ in range(elements)]
        if type_name == "F32":
            return struct.pack(f"<{elements}f", *values)
        if type_name == "F16":
            return struct.pack(f"<{elements}e", *values)
        return b"".join(struct.pack("<f", v)[2:] for v in values)

    out = []
    for _ in range(elements // block):
        s = deviation * (0.5 + rng.random())
        if type_name == "Q4_0":
            out.append(half(s / 4.61) + rng.randbytes(16))
        elif type_name == "Q4_1":
            out.append(half(s / 4.61) + half(-7.5 * s / 4.61) + rng.randbytes(16))
        elif type_name == "Q5_0":
            out.append(half(s / 9.23) + rng.randbytes(20))
        elif type_name == "Q5_1":
            out.append(half(s / 9.23) + half(-15.5 * s / 9.23) + rng.randbytes(20))
        elif type_name == "Q8_0":
            out.append(half(s / 73.9) + rng.randbytes(32))
        elif type_name == "Q4_K":
            out.append(half(s / 260) + half(7.5 * s / 260) + rng.randbytes(140))
        elif type_name == "Q5_K":
            out.append(half(s / 520) + half(15.5 * s / 520) + rng.randbytes(172))
        elif type_name == "Q6_K":
            out.append(rng.randbytes(208) + half(s / 1370))
    return b"".join(out)


def random_floats(rng, n, mean, deviation):
    return struct.pack(f"<{n}f", *[rng.gauss(mean, deviation) for _ in range(n)])


# ---- vocabularies ---------------------------------------------------------------------------------------


def byte_symbols():
    """The printable character that byte-level BPE writes for each byte (GPT-2's map)."""
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    symbols = {b: chr(b) for b in plain}
    others = [b for b in range(256) if b not in symbols]
    symbols.update({b: chr(256 + i) for i, b in enumerate(others)})
    return symbols


def train_merges(text, n_merges):
    """Plain BPE on words with their leading space; ties go to the pair that sorts first."""
    symbols = byte_symbols()
    counts = {}
    for word in text.replace("\n", " ").split(" "):
        if word.isalpha():
            counts[" " + word] = counts.get(" " + word, 0) + 1
    words = [([symbols[b] for b in w.encode("utf-8")], n) for w, n in counts.items()]
    merges = []
    while len(merges) < n_merges:
        pairs = {}
        for pieces, n in words:
            for pair in zip(pieces, pieces[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for pieces, _ in words:
            i = 0
            while i + 1 < len(pieces):
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
                i += 1
    return merges


NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3_TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# style: pre-tokenizer, special tokens in front, tokens behind (text, type), BOS, EOS, template
STYLES = {
    "smollm": ("smollm", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], "<|im_start|>", "<|im_end|>", CHATML_TEMPLATE),
    "gpt2": ("gpt2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], "<|endoftext|>", "<|im_end|>", CHATML_TEMPLATE),
    "qwen2": ("qwen2", [], [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL),
                            ("<think>", USER_DEFINED), ("</think>", USER_DEFINED)], None, "<|im_end|>", CHATML_TEMPLATE),
    "llama3": ("llama-bpe", [], [("<|begin_of_text|>", CONTROL), ("<|end_of_text|>", CONTROL),
                                 ("<|start_header_id|>", CONTROL), ("<|end_header_id|>", CONTROL), ("<|eot_id|>", CONTROL)],
               "<|begin_of_text|>", "<|eot_id|>", LLAMA3_TEMPLATE),
}


class Vocabulary:
    """Specials in front, the 256 bytes (fewer with `gaps`: no tokens for 0x00..0x05), merges, specials behind."""

    def __init__(self, style, merges, gaps=False):
        self.pre, front, behind, self.bos, self.eos, self.template = STYLES[style]
        symbols = byte_symbols()
        self.tokens = list(front)
        self.types = [CONTROL] * len(front)
        order = sorted(range(256), key=lambda b: symbols[b])
        self.tokens += [symbols[b] for b in order if not (gaps and b < 6)]
        self.tokens += ["".join(pair) for pair in merges]
        self.types += [NORMAL] * (len(self.tokens) - len(self.types))
        self.tokens += [text for text, _ in behind]
        self.types += [token_type for _, token_type in behind]
        self.merges = [" ".join(pair) for pair in merges]

    def add_keys(self, file):
        file.key("tokenizer.ggml.model", STRING, "gpt2")
        file.key("tokenizer.ggml.pre", STRING, self.pre)
        file.key("tokenizer.ggml.tokens", ARRAY, (STRING, self.tokens))
        file.key("tokenizer.ggml.token_type", ARRAY, (I32, self.types))
        file.key("tokenizer.ggml.merges", ARRAY, (STRING, self.merges))
        if self.bos:
            file.key("tokenizer.ggml.bos_token_id", U32, self.tokens.index(self.bos))
        file.key("tokenizer.ggml.eos_token_id", U32, self.tokens.index(self.eos))
        file.key("tokenizer.ggml.add_bos_token", BOOL, int(self.pre == "llama-bpe"))
        file.key("tokenizer.chat_template", STRING, self.template)


def rng_for(name):
    """The same numbers for the same name on every machine."""
    return random.Random("isotherm " + name)
