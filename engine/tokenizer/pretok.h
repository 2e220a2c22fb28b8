/*
 * Pre-tokenizers: cut a text into the words inside which BPE merges. One hand-written scanner for each
 * pattern, equal to the regular expression it stands for. Private to engine/tokenizer.
 *
 *   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm  each digit is a word of its own, then gpt2 on what lies between digits
 *   llama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
 *           |\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2   llama3 with \p{N} in place of \p{N}{1,3}
 *   qwen35  qwen2 with [\p{L}\p{M}]+ in place of \p{L}+, and [^\s\p{L}\p{M}\p{N}]+ for [^\s\p{L}\p{N}]+
 *
 * A byte that is not UTF-8 counts as a character that is neither letter, number nor white space.
 */
#ifndef ISOTHERM_ENGINE_TOKENIZER_PRETOK_H
#define ISOTHERM_ENGINE_TOKENIZER_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pretok_kind { PRETOK_GPT2, PRETOK_SMOLLM, PRETOK_LLAMA3, PRETOK_QWEN2, PRETOK_QWEN35 };

/* What a file's tokenizer.ggml.pre asks for. */
struct pretok_name {
    const char *name;
    enum pretok_kind kind;
    bool ignore_merges; /* a word that is in the vocabulary as a whole is that token, whatever the merges say
                         */
    bool add_bos;       /* where the file does not say */
};
/* name need not be NUL-terminated; NULL when unknown. */
const struct pretok_name *pretok_find(const char *name, size_t len);

struct pretok {
    enum pretok_kind kind;
    const uint8_t *text;
    size_t len, pos;
    size_t digit_at, after_digit; /* smollm: the next digit at or behind pos; computed once a digit */
};
void pretok_init(struct pretok *p, enum pretok_kind kind, const char *text, size_t len);
/* Length in bytes of the next word, which begins at p->pos before the call; 0 at the end. All words of a text
 * together cost time proportional to its length. */
size_t pretok_next(struct pretok *p);

#endif
