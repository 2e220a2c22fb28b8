/*
 * Code points for the pre-tokenizers: decoding of UTF-8 that tolerates anything, and the classes that their
 * patterns name. Private to engine/tokenizer. Pure functions.
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_UNICODE_H
#define ISOTHERM_ENGINE_TOKENIZER_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    UNICODE_LETTER = 1, /* \p{L} */
    UNICODE_NUMBER = 2, /* \p{N} */
    UNICODE_SPACE = 4,  /* \s */
    UNICODE_DIGIT = 8,  /* isolated by smollm: \p{N} of a newer Unicode version */
    UNICODE_MARK = 16,  /* \p{M} */
};

struct unicode_range {
    uint32_t first, last;
    uint32_t class;
};
/* Ascending, disjoint; code points of no class are left out. */
extern const struct unicode_range unicode_ranges[];
extern const size_t unicode_n_ranges;

/* Decodes the character at s (len > 0) and returns its length in bytes. A byte that does not start a well
 * formed character is a character of its own, U+FFFD. */
size_t unicode_decode(const uint8_t *s, size_t len, uint32_t *code_point);
unsigned unicode_class(uint32_t code_point);

#endif
