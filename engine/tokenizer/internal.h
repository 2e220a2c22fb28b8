/*
 * What the files of engine/tokenizer share. Private to this folder.
 *
 *   loader.h     what vocab*.c share: they read and check the file's metadata, fill struct eng_tokenizer
 *   bpe.c        merging; one word of a byte-level vocabulary to ids
 *   spm.c        one text of a SentencePiece vocabulary to ids
 *   tokenizer.c  the public calls: special tokens, words, pieces
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_INTERNAL_H
#define ISOTHERM_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/tokenizer/pretok.h"
#include "engine/tokenizer/tokenizer.h"

#define TOKEN_NONE UINT32_MAX

#define SPM_SPACE       "\xE2\x96\x81" /* U+2581: a space in SentencePiece vocabularies */
#define SPM_SPACE_BYTES 3
#define SPM_MAX_PIECE_BYTES                                                                                  \
    1024 /* bounds what a look-up costs and how deep an unused piece may be nested                           \
          */

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
    bool sentencepiece;            /* else byte-level */
    const struct pretok_name *pre; /* byte-level; NULL otherwise */
    uint8_t *types;                /* (n_vocab), enum token_type after promotion of control tokens */
    bool *ends;                    /* (n_vocab) */
    struct bytes *pieces;          /* (n_vocab): the bytes a token stands for, in `blob` */
    char *blob;
    size_t longest_piece;
    uint32_t byte_ids[256]; /* TOKEN_NONE: the vocabulary lacks this byte */
    uint32_t *ranks;        /* (n_vocab), sentencepiece: the lower one merges first; equal scores are equal */
    size_t longest_word;    /* sentencepiece: bytes of the longest of `words` */
    uint32_t unknown;       /* TOKEN_NONE: there is none */
    struct merge *merges;   /* (merge_mask + 1) */
    size_t merge_mask;
    uint64_t merge_seed;
    struct text_table words;           /* pieces that text can become as a whole: NORMAL ones where
                                          pre->ignore_merges, NORMAL and UNUSED ones of sentencepiece */
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

/* U+2581 becomes a space; out has room for len bytes. Returns the number of bytes written. */
size_t spm_spaces(const char *text, size_t len, char *out);

/* Memory for merging, reused from word to word. Zero-initialise. */
struct bpe_symbol {
    uint32_t id;             /* byte-level; sentencepiece knows a symbol by its text */
    uint32_t at;             /* sentencepiece: where its text starts */
    uint32_t next, previous; /* indices; TOKEN_NONE at the ends */
    uint32_t rank, product;  /* of the merge with the next symbol; rank TOKEN_NONE: none */
};
/* sentencepiece: an UNUSED piece was on offer, made of a left part of so many bytes and the rest. */
struct bpe_unused {
    uint32_t id, left_bytes;
    size_t order;
};
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | index */
    size_t n_heap, cap_symbols;
    const char *text; /* sentencepiece: the text being merged */
    size_t len;
    struct bpe_unused *unused;
    size_t n_unused, cap_unused;
    bool no_memory; /* for a list that could not grow */
    uint64_t work;  /* heap operations and look-ups so far: what tests bound */
};
void bpe_scratch_free(struct bpe_scratch *s);

/* The merge of symbols[left] with the next one, which exists; rank TOKEN_NONE: none. */
struct bpe_pair {
    uint32_t rank, product;
};
typedef struct bpe_pair (*bpe_look_up)(const struct eng_tokenizer *t, struct bpe_scratch *s, uint32_t left);
/* Room for n symbols. ENG_OK or ENG_ENOMEM. */
int bpe_reserve(struct bpe_scratch *s, size_t n);
void bpe_add_symbol(struct bpe_scratch *s, uint32_t index, uint32_t id, uint32_t at);
/* Merges symbols[0 .. n), n > 0, until no pair is left. What remains is the list that starts at 0. */
void bpe_merge(const struct eng_tokenizer *t, struct bpe_scratch *s, uint32_t n, bpe_look_up look_up);

/* Appends the ids of one word of a byte-level vocabulary. ENG_OK or ENG_ENOMEM. */
int bpe_word(const struct eng_tokenizer *t, struct bpe_scratch *s, const uint8_t *word, size_t len,
             struct eng_ids *out);
/* Appends the ids of a text in which nothing is cut out any more and each U+2581 is a space. ENG_OK or
 * ENG_ENOMEM. */
int spm_text(const struct eng_tokenizer *t, struct bpe_scratch *s, const char *text, size_t len,
             struct eng_ids *out);

#endif
