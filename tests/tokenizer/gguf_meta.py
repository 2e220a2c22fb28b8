"""Reads the metadata of a GGUF file, no tensors: a reader of its own, so that the tests do not trust what they check."""
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

