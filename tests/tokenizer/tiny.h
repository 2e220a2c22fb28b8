/* Vocabularies of a few tokens for the unit tests: a GGUF without tensors, built in memory. */
#ifndef ISOTHERM_TESTS_TOKENIZER_TINY_H
#define ISOTHERM_TESTS_TOKENIZER_TINY_H

#include "engine/tokenizer/tokenizer.h"
#include <stdint.h>

struct fmt_gguf;

struct tiny_token {
    const char *text; /* NULL ends a list */
    int32_t type;
};

/* The 256 single bytes come first (id = byte), then extra tokens in order. NULL or 0 leaves a key out. The
 * model "llama" writes the bytes as <0xXX>, has scores, and no merges. */
struct tiny {
    const char *model, *pre;
    const struct tiny_token *extra;
    const char *const *merges; /* NULL ends the list */
    const char *chat_template;
    const char *missing; /* bytes that get no token: their places hold UNUSED ones */
    int n_types;         /* entries of token_type; 0: as many as tokens */
    bool no_merges, types_as_u32;
    uint32_t bos, eos; /* ids + 1; 0: no such key */
    int add_bos;       /* 1 true, -1 false, 0 no such key */
    /* model "llama" only */
    const float *scores; /* one for each extra token */
    bool no_bytes;       /* UNUSED tokens in the places of all bytes */
    int space_prefix;    /* 1 true, 0 false, -1 no such key */
    int n_scores;        /* entries of the key; 0: as many as tokens; -1: no such key */
    bool scores_as_f64;
    const char *other_key; /* a key more, a bool that is true */
};

/* id of the i-th extra token */
#define TINY(i) (256u + (i))

/* Refused by the reader or by the tokenizer: *t is NULL and err says why. *g keeps the file for
 * eng_chat_from_gguf; free both with tiny_close. */
int tiny_open(const struct tiny *spec, struct fmt_gguf **g, struct eng_tokenizer **t, char err[256]);
void tiny_close(struct fmt_gguf *g, struct eng_tokenizer *t);

/* Encodes text and compares with the ids, ended by UINT32_MAX. */
bool tiny_encodes(const struct eng_tokenizer *t, const char *text, bool parse_special, const uint32_t *ids);
/* Encodes random bytes, in every other text none of them ASCII, and spells the ids again. */
bool tiny_any_bytes_come_back(const struct eng_tokenizer *t);

#endif
