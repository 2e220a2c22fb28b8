/*
 * What the files of engine/tokenizer share. Private to this folder.
 *
 *   vocab.c      reads and checks the file's metadata, fills struct eng_tokenizer
 *   bpe.c        one word to ids
 *   tokenizer.c  the public calls: special tokens, words, pieces
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_INTERNAL_H
#define ISOTHERM_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/tokenizer/pretok.h"
#include "engine/tokenizer/tokenizer.h"

#define TOKEN_NONE UINT32_MAX

/* Values of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

struct bytes {
    const char *data;
    size_t len;
};

/* Open addressing from strings to ids; the strings lie elsewhere and are found by id. */
struct text_table {
    uint32_t *slots; /* TOKEN_NONE: free */
    size_t mask;
    uint64_t seed; /* random: a file cannot be made to collide */
};

/* (left, right) -> rank and product. */
struct merge {
    uint32_t left, right; /* left TOKEN_NONE: free slot */
    uint32_t rank, product;
};

/* Tokens that are cut out of a text before words are, sorted by their bytes. */
struct split_list {
    uint32_t *ids;
    size_t n;
    bool starts[256]; /* by first byte */
};

struct eng_tokenizer {
    uint32_t n_vocab;
    const struct pretok_name *pre;
    uint8_t *types;       /* (n_vocab), enum token_type after promotion of control tokens */
    bool *ends;           /* (n_vocab) */
    struct bytes *pieces; /* (n_vocab): the bytes a token stands for, in `blob` */
    char *blob;
    size_t longest_piece;
    uint32_t byte_ids[256]; /* TOKEN_NONE: the vocabulary lacks this byte */
    struct merge *merges;   /* (merge_mask + 1) */
    size_t merge_mask;
    uint64_t merge_seed;
    struct text_table words;           /* pieces of NORMAL tokens; empty unless pre->ignore_merges */
    struct split_list added, specials; /* USER_DEFINED; these and CONTROL */
    uint32_t bos, eos;
    bool add_bos;
    uint8_t digest[32];
};

/* Adds id unless an equal string is there; returns the id that is there afterwards. The table has room. */
uint32_t text_table_add(struct text_table *t, const struct bytes *strings, uint32_t id);
uint32_t text_table_find(const struct text_table *t, const struct bytes *strings, struct bytes s);
int text_table_init(struct text_table *t, size_t n, uint64_t seed);

/* The entry of a pair, or NULL. */
const struct merge *merge_find(const struct eng_tokenizer *t, uint32_t left, uint32_t right);
/* A free slot or the slot of the same pair, for building. */
struct merge *merge_slot(const struct eng_tokenizer *t, uint32_t left, uint32_t right);

/* Memory for merging, reused from word to word. Zero-initialise. */
struct bpe_symbol {
    uint32_t id;
    uint32_t next, previous; /* indices; TOKEN_NONE at the ends */
    uint32_t rank, product;  /* of the merge with the next symbol; rank TOKEN_NONE: none */
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | index */
    size_t n_heap, cap_symbols;
    uint64_t work; /* heap operations and look-ups so far: what tests bound */
};
void bpe_scratch_free(struct bpe_scratch *s);
/* Appends the ids of one word. ENG_OK or ENG_ENOMEM. */
int bpe_word(const struct eng_tokenizer *t, struct bpe_scratch *s, const uint8_t *word, size_t len,
             struct eng_ids *out);

#endif
