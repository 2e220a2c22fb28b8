/*
 * The SentencePiece kind of vocabulary (tokenizer.ggml.model "llama"): pieces, scores, byte tokens.
 *
 * Such vocabularies write a space as U+2581. Here both are a space: pieces are decoded, and so is a text
 * before it is looked up (tokenizer.c). NORMAL and UNUSED tokens are what text can merge to; one with a real
 * space in it is out of reach, because no text that the library looks up has one. A BYTE token is written
 * <0xXX> and stands for that byte.
 *
 * What would change ids and is not done is refused by name: a space in front of a text, white space that is
 * thinned out, a normaliser.
 */
#include "engine/tokenizer/loader.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char tokens_key[] = "tokenizer.ggml.tokens", scores_key[] = "tokenizer.ggml.scores";

static int refuse_unsupported(struct loader *l)
{
    static const char prefix[] = "tokenizer.ggml.add_space_prefix",
                      thin[] = "tokenizer.ggml.remove_extra_whitespaces",
                      charsmap[] = "tokenizer.ggml.precompiled_charsmap";
    bool on = true; /* what the library does where nothing is said */
    int rc = fmt_gguf_bool(l->g, prefix, &on);
    if (rc != FMT_OK && rc != FMT_ENOTFOUND)
        return loader_fail(l, ENG_EFORMAT, "%s: not a bool", prefix);
    if (on)
        return loader_fail(l, ENG_EUNSUPPORTED, "%s: only false is supported%s", prefix,
                           rc == FMT_ENOTFOUND ? ", and where it is missing it is true" : "");
    on = false;
    rc = fmt_gguf_bool(l->g, thin, &on);
    if (rc != FMT_OK && rc != FMT_ENOTFOUND)
        return loader_fail(l, ENG_EFORMAT, "%s: not a bool", thin);
    if (on)
        return loader_fail(l, ENG_EUNSUPPORTED, "%s: only false is supported", thin);
    enum fmt_gguf_type elem;
    uint64_t n;
    if (fmt_gguf_array(l->g, charsmap, &elem, &n) != FMT_ENOTFOUND)
        return loader_fail(l, ENG_EUNSUPPORTED, "%s: a normaliser is not supported", charsmap);
    return ENG_OK;
}

/* A key that is lower for a higher score and equal for equal scores, never TOKEN_NONE; score is finite. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 and 0 are one score */
    memcpy(&bits, &score, sizeof(bits));
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

/* The byte of <0xXX>, or -1. */
static int byte_of(struct bytes text)
{
    int value = 0;
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    for (size_t i = 3; i < 5; i++) {
        char c = text.data[i];
        if (c >= '0' && c <= '9')
            value = value * 16 + (c - '0');
        else if (c >= 'A' && c <= 'F')
            value = value * 16 + (c - 'A' + 10);
        else
            return -1;
    }
    return value;
}

size_t spm_spaces(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (len - i >= SPM_SPACE_BYTES && memcmp(text + i, SPM_SPACE, SPM_SPACE_BYTES) == 0) {
            out[n++] = ' ';
            i += SPM_SPACE_BYTES;
        } else {
            out[n++] = text[i++];
        }
    }
    return n;
}

/* The piece of token i, at *out. */
static int load_piece(struct loader *l, uint32_t i, float score, char **out)
{
    struct eng_tokenizer *t = l->t;
    struct bytes text = l->texts[i], *piece = &t->pieces[i];
    bool word = t->types[i] == TOKEN_NORMAL || t->types[i] == TOKEN_UNUSED;
    if (text.len > SPM_MAX_PIECE_BYTES)
        return loader_fail(l, ENG_EFORMAT, "%s[%u]: a token of %zu bytes, at most %d", tokens_key, i,
                           text.len, SPM_MAX_PIECE_BYTES);
    if (word && !isfinite(score))
        return loader_fail(l, ENG_EFORMAT, "%s[%u]: not a finite number", scores_key, i);
    *piece = (struct bytes){*out, 0};
    t->ranks[i] = word ? rank_of(score) : TOKEN_NONE;
    if (t->types[i] == TOKEN_BYTE) {
        int byte = byte_of(text);
        if (byte < 0)
            return loader_fail(l, ENG_EFORMAT, "%s[%u]: a byte token that is not written <0xXX>", tokens_key,
                               i);
        **out = (char)byte;
        piece->len = 1;
        t->byte_ids[byte] = i;
    } else {
        piece->len = spm_spaces(text.data, text.len, *out);
        if (text.len > t->longest_piece)
            t->longest_piece = text.len; /* a text may have U+2581 as well */
    }
    *out += piece->len;
    if (word && piece->len > 0 && memchr(text.data, ' ', text.len) == NULL) {
        text_table_add(&t->words, t->pieces, i);
        if (piece->len > t->longest_word)
            t->longest_word = piece->len;
    }
    return ENG_OK;
}

static int check_fallback(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    unsigned n_bytes = 0;
    for (unsigned b = 0; b < 256; b++)
        n_bytes += t->byte_ids[b] != TOKEN_NONE;
    if (n_bytes != 0 && n_bytes != 256)
        return loader_fail(l, ENG_EFORMAT, "%s: %u byte tokens, neither none nor all 256", tokens_key,
                           n_bytes);
    for (uint32_t i = 0; i < t->n_vocab && t->unknown == TOKEN_NONE; i++)
        if (t->types[i] == TOKEN_UNKNOWN)
            t->unknown = i;
    if (n_bytes == 0 && t->unknown == TOKEN_NONE)
        return loader_fail(l, ENG_EFORMAT, "%s: neither byte tokens nor an unknown token", tokens_key);
    return ENG_OK;
}

int spm_load(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    uint64_t n_scores;
    int rc = refuse_unsupported(l);
    if (rc == ENG_OK)
        rc = loader_array(l, scores_key, FMT_GGUF_F32, "f32", UINT32_MAX, &n_scores);
    if (rc != ENG_OK)
        return rc;
    if (n_scores != t->n_vocab)
        return loader_fail(l, ENG_EFORMAT, "%s: %llu entries for %u tokens", scores_key,
                           (unsigned long long)n_scores, t->n_vocab);
    size_t total = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++)
        total += l->texts[i].len; /* bounded by the file's size */
    t->blob = malloc(total + 1);
    t->ranks = malloc(((size_t)t->n_vocab + 1) * sizeof(*t->ranks));
    if (t->blob == NULL || t->ranks == NULL ||
        text_table_init(&t->words, t->n_vocab, t->merge_seed) != ENG_OK)
        return loader_fail(l, ENG_ENOMEM, "%s: out of memory", tokens_key);
    memset(t->byte_ids, 0xFF, sizeof(t->byte_ids));
    t->longest_piece = 1;
    char *out = t->blob;
    const char *scores = fmt_gguf_array_data(l->g, scores_key);
    for (uint32_t i = 0; i < t->n_vocab && rc == ENG_OK; i++) {
        float score;
        memcpy(&score, scores + (size_t)i * sizeof(score), sizeof(score));
        rc = load_piece(l, i, score, &out);
    }
    return rc == ENG_OK ? check_fallback(l) : rc;
}
