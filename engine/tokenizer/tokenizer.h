/*
 * BPE over a GGUF's own vocabulary: byte-level with merges (tokenizer.ggml.model "gpt2") behind hand-written
 * pre-tokenizer scanners (gpt2, smollm, llama3, qwen2, qwen35), or SentencePiece with scores and byte
 * fallback ("llama"); special and added tokens, and a streaming detokenizer that never emits a broken UTF-8
 * sequence.
 *
 * Text is bytes of any content; invalid UTF-8 survives byte for byte where the vocabulary has the bytes. A
 * byte that a byte-level vocabulary lacks is dropped, as the Hugging Face tokenizers library drops it; what a
 * SentencePiece vocabulary without byte tokens lacks becomes its unknown token. In a SentencePiece vocabulary
 * U+2581 and the space are one character, and it comes back as a space. No normaliser.
 * Threads: an open tokenizer is immutable; encode and decode may run on any thread at once.
 * Errors: ENG_* codes of engine/tokenizer/errors.h; err buffers get one line.
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_H
#define ISOTHERM_ENGINE_TOKENIZER_H

#include "engine/tokenizer/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fmt_gguf;

/* A growing list of token ids. Zero-initialise; eng_ids_free when done. */
struct eng_ids {
    uint32_t *data;
    size_t n, cap;
};
int eng_ids_add(struct eng_ids *v, const uint32_t *ids, size_t n); /* ENG_OK or ENG_ENOMEM, unchanged then */
void eng_ids_free(struct eng_ids *v);

struct eng_tokenizer;

/* Builds from tokenizer.ggml.*; refuses an unknown model or pre-tokenizer by name. Keeps no reference to g.
 */
int eng_tokenizer_open(const struct fmt_gguf *g, struct eng_tokenizer **out, char *err, size_t err_len);
void eng_tokenizer_close(struct eng_tokenizer *t);

uint32_t eng_tokenizer_n_vocab(const struct eng_tokenizer *t);
/* Bytes of the longest token, at least 1. A text has no fewer tokens than its bytes over this (bytes that the
 * vocabulary lacks aside), so a caller refuses a text that no context can hold before it pays for encoding.
 */
size_t eng_tokenizer_longest_piece(const struct eng_tokenizer *t);
/* Special ids; UINT32_MAX where the model has none. */
uint32_t eng_tokenizer_bos(const struct eng_tokenizer *t);
uint32_t eng_tokenizer_eos(const struct eng_tokenizer *t);
bool eng_tokenizer_add_bos(const struct eng_tokenizer *t); /* the file asks for BOS before a text */
/* True for every id that ends a reply: eos, eot, <|im_end|>, <|eot_id|>, <|endoftext|>, ... as the vocabulary
 * has them. */
bool eng_tokenizer_is_end(const struct eng_tokenizer *t, uint32_t id);
bool eng_tokenizer_is_control(const struct eng_tokenizer *t, uint32_t id);
/* Id of a special or added token by its exact text; UINT32_MAX when there is none. */
uint32_t eng_tokenizer_special(const struct eng_tokenizer *t, const char *text);
/* 32 bytes that change with anything that could change ids (vocabulary, merges, scores, types,
 * pre-tokenizer). */
void eng_tokenizer_digest(const struct eng_tokenizer *t, uint8_t out[32]);

/* Appends the ids of text. CONTROL tokens (by type, or because the model ends or structures text with them)
 * come out of text only with parse_special; otherwise their text is plain text and no control id is ever
 * produced (but the unknown token of a SentencePiece vocabulary without byte tokens). USER_DEFINED tokens are
 * recognised in any text, as the tokenizers library and llama.cpp do. The longest one that starts first wins.
 * No BOS is added. ENG_OK, ENG_ENOMEM (out is as before). Linear in len (times the logarithm of the longest
 * word; to SentencePiece a text is one word). */
int eng_tokenizer_encode(const struct eng_tokenizer *t, const char *text, size_t len, bool parse_special,
                         struct eng_ids *out);

/* The bytes a token stands for (not NUL-terminated, owned by the tokenizer); control tokens give their text
 * only when `special` is set, else nothing. An unused token and an id out of range: nothing. */
const char *eng_tokenizer_piece(const struct eng_tokenizer *t, uint32_t id, bool special, size_t *len);

/* Streaming: bytes of consecutive tokens in, whole UTF-8 characters out. Zero-initialise. */
struct eng_detok {
    uint8_t pending[4];
    uint8_t n_pending;
};
/* Writes the characters that are complete now to out, returns the number of bytes, at most 3 * (len + 3). A
 * byte that cannot start or continue a character becomes U+FFFD, one for each maximal part of a character
 * (the Unicode standard's recommended practice, what Python and browsers do). */
size_t eng_detok_push(struct eng_detok *d, const char *bytes, size_t len, char *out);
/* At the end: what is pending becomes one U+FFFD, at most 3 bytes. */
size_t eng_detok_finish(struct eng_detok *d, char *out);

#endif
