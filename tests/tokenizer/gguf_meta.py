"""Reads the metadata of a GGUF file (no tensors), and writes small metadata-only files for the tests.

Standard library only. A reader of its own, so that the tests do not trust the code they check.
"""
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FIXED = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def read(path):
    """All metadata of a file as a dict; strings stay bytes, because a vocabulary need not be UTF-8."""
    with open(path, "rb") as f:
        def take(fmt):
            return struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]

        def value(kind):
            if kind == STRING:
                return f.read(take("Q"))
            if kind == ARRAY:
                elem, n = take("I"), take("Q")
                if elem in _FIXED:
                    fmt = "<%d%s" % (n, _FIXED[elem])
                    return list(struct.unpack(fmt, f.read(struct.calcsize(fmt))))
                return [value(elem) for _ in range(n)]
            return take(_FIXED[kind])

        if f.read(4) != b"GGUF":
            raise ValueError("%s: not a GGUF file" % path)
        take("I")
        take("Q")
        return {f.read(take("Q")).decode(): value(take("I")) for _ in range(take("Q"))}


def write(path, pairs):
    """Writes a version 3 file without tensors. pairs: (key, type, value); an array's type is (ARRAY, elem)."""
    def string(s):
        s = s if isinstance(s, bytes) else s.encode()
        return struct.pack("<Q", len(s)) + s

    def scalar(kind, v):
        return string(v) if kind == STRING else struct.pack("<" + _FIXED[kind], v)

    out = [b"GGUF", struct.pack("<IQQ", 3, 0, len(pairs))]
    for key, kind, v in pairs:
        out.append(string(key))
        if isinstance(kind, tuple):
            out.append(struct.pack("<IIQ", ARRAY, kind[1], len(v)))
            out.extend(scalar(kind[1], x) for x in v)
        else:
            out.append(struct.pack("<I", kind))
            out.append(scalar(kind, v))
    data = b"".join(out)
    with open(path, "wb") as f:
        f.write(data + b"\0" * (-len(data) % 32))
