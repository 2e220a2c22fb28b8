/*
 * What the files that build a tokenizer share. Private to engine/tokenizer.
 *
 *   vocab.c            keys, tokens, types and special ids, the lists to split at, the digest
 *   vocab_bytelevel.c  pieces and merges of a byte-level vocabulary
 *   vocab_spm.c        pieces and scores of a SentencePiece vocabulary
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_LOADER_H
#define ISOTHERM_ENGINE_TOKENIZER_LOADER_H

#include "engine/tokenizer/internal.h"
#include "formats/gguf.h"

struct loader {
    struct eng_tokenizer *t;
    const struct fmt_gguf *g;
    struct bytes *texts; /* (n_vocab): tokens as the file has them, in its mapping */
    struct text_table by_text;
    size_t longest_text;
    char *err;
    size_t err_len;
};

/* Writes the message and returns the code. */
__attribute__((format(printf, 3, 4))) int loader_fail(struct loader *l, int code, const char *format, ...);
/* The length of the array under key, whose elements are what the caller will read. */
int loader_array(struct loader *l, const char *key, enum fmt_gguf_type want, const char *want_name,
                 uint64_t max, uint64_t *n);

/* Tokens, types and special ids are known. ENG_OK, or an error with its message. */
int bytelevel_load(struct loader *l);
int spm_load(struct loader *l);

#endif
