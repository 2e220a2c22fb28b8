"""The `sentencepiece` library's processor for the vocabulary, scores and types of a GGUF file: BPE, byte fallback, no normalising.

    references(gguf_meta.read(path)) -> (for plain text, for text in which special tokens are parsed, types)
"""
import struct

import sentencepiece

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
SPACE = "▁"
TURNS = ("<start_of_turn>", "<end_of_turn>")  # control tokens whatever their type (engine/tokenizer/vocab.c)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A field of a protocol buffer: bytes, a float, or a whole number."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model(tokens, scores, types, byte_fallback):
    """sentencepiece_model.proto: pieces, trainer_spec (model_type BPE), normalizer_spec (identity)."""
    out = b"".join(field(1, field(1, t) + field(2, float(s)) + field(3, k)) for t, s, k in zip(tokens, scores, types))
    trainer = field(3, 2) + field(35, int(byte_fallback))
    normalizer = field(1, b"identity") + field(3, 0) + field(4, 0) + field(5, 1)
    return sentencepiece.SentencePieceProcessor(model_proto=out + field(2, trainer) + field(3, normalizer))


def references(meta):
    """The library's processors for plain text and for text in which special tokens are parsed; the types they have."""
    types = list(meta["tokenizer.ggml.token_type"])
    tokens = list(meta["tokenizer.ggml.tokens"])
    named = [meta.get("tokenizer.ggml.%s_token_id" % k) for k in ("bos", "eos", "eot", "eom", "unknown", "padding")]
    for i, token in enumerate(tokens):
        if token.decode(errors="replace") in TURNS or (i in named and types[i] == USER_DEFINED):
            types[i] = CONTROL
        if types[i] == USER_DEFINED:  # converters write them with real spaces
            tokens[i] = token.replace(b" ", SPACE.encode())
    scores = meta["tokenizer.ggml.scores"]
    fallback = BYTE in types
    parsing = [USER_DEFINED if k == CONTROL else k for k in types]
    return model(tokens, scores, types, fallback), model(tokens, scores, parsing, fallback), types
