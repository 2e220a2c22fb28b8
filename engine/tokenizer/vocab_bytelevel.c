/*
 * The byte-level kind of vocabulary (tokenizer.ggml.model "gpt2"): pieces and merges.
 *
 * Such vocabularies write a byte as a printable code point (GPT-2's map: printable Latin-1 bytes stand for
 * themselves, the other 68 are U+0100 and up). NORMAL tokens are decoded to the bytes they stand for; CONTROL
 * and USER_DEFINED tokens are literal text.
 */
#include "engine/tokenizer/loader.h"
#include "engine/tokenizer/unicode.h"
#include "formats/gguf.h"
#include <stdlib.h>
#include <string.h>

#define MAX_MERGES        (1u << 25)
#define MAX_SPECIAL_BYTES 1024 /* bounds the work a text can cause at each position */

/* ---- pieces ------------------------------------------------------------------------------------------ */

/* bytes[code point] for the 256 code points of GPT-2's map, -1 for others below 324. */
static void byte_map(int16_t bytes[324])
{
    memset(bytes, 0xFF, 324 * sizeof(*bytes));
    int16_t next = 256;
    for (int16_t b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        bytes[printable ? b : next++] = b;
    }
}

/* Decodes text to out (at least text.len bytes); false when a character is outside the map. */
static bool decode_text(const int16_t bytes[324], struct bytes text, char *out, size_t *out_len)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t c;
        i += unicode_decode((const uint8_t *)text.data + i, text.len - i, &c);
        if (c >= 324 || bytes[c] < 0)
            return false;
        out[n++] = (char)bytes[c];
    }
    *out_len = n;
    return true;
}

static int load_pieces(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    int16_t bytes[324];
    byte_map(bytes);
    size_t total = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++)
        total += l->texts[i].len; /* bounded by the file's size */
    t->blob = malloc(total + 1);
    if (t->blob == NULL ||
        (t->pre->ignore_merges && text_table_init(&t->words, t->n_vocab, t->merge_seed) != ENG_OK))
        return loader_fail(l, ENG_ENOMEM, "tokenizer.ggml.tokens: out of memory");
    memset(t->byte_ids, 0xFF, sizeof(t->byte_ids));
    char *out = t->blob;
    t->longest_piece = 1;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct bytes text = l->texts[i];
        bool special = t->types[i] == TOKEN_CONTROL || t->types[i] == TOKEN_USER_DEFINED;
        if (special && text.len > MAX_SPECIAL_BYTES)
            return loader_fail(l, ENG_EFORMAT,
                               "tokenizer.ggml.tokens[%u]: a special token of %zu bytes, at most %d", i,
                               text.len, MAX_SPECIAL_BYTES);
        t->pieces[i].data = out;
        if (t->types[i] == TOKEN_UNUSED || text.len == 0)
            continue;
        bool mapped = t->types[i] == TOKEN_NORMAL && decode_text(bytes, text, out, &t->pieces[i].len);
        if (!mapped) { /* literal text; no word of bytes leads to it */
            memcpy(out, text.data, text.len);
            t->pieces[i].len = text.len;
        }
        out += t->pieces[i].len;
        if (t->pieces[i].len > t->longest_piece)
            t->longest_piece = t->pieces[i].len;
        if (mapped && t->pieces[i].len == 1)
            t->byte_ids[(uint8_t)t->pieces[i].data[0]] = i;
        if (mapped && t->pre->ignore_merges)
            text_table_add(&t->words, t->pieces, i);
    }
    return ENG_OK;
}

/* ---- merges ------------------------------------------------------------------------------------------ */

static int load_merge(struct loader *l, uint32_t rank, char *joined)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct eng_tokenizer *t = l->t;
    struct fmt_str s = fmt_gguf_array_str(l->g, key, rank);
    const char *space = s.len > 0 ? memchr(s.data, ' ', s.len) : NULL;
    size_t left_len = space != NULL ? (size_t)(space - s.data) : 0;
    size_t right_len = space != NULL ? s.len - left_len - 1 : 0;
    if (left_len == 0 || right_len == 0 || memchr(space + 1, ' ', right_len) != NULL)
        return loader_fail(l, ENG_EFORMAT, "%s[%u]: not two tokens with a space between", key, rank);
    uint32_t left = text_table_find(&l->by_text, l->texts, (struct bytes){s.data, left_len});
    uint32_t right = text_table_find(&l->by_text, l->texts, (struct bytes){space + 1, right_len});
    uint32_t product = TOKEN_NONE;
    if (left_len + right_len <= l->longest_text) {
        memcpy(joined, s.data, left_len);
        memcpy(joined + left_len, space + 1, right_len);
        product = text_table_find(&l->by_text, l->texts, (struct bytes){joined, left_len + right_len});
    }
    if (left == TOKEN_NONE || right == TOKEN_NONE || product == TOKEN_NONE)
        return loader_fail(l, ENG_EFORMAT, "%s[%u]: its %s is not in tokenizer.ggml.tokens", key, rank,
                           left == TOKEN_NONE    ? "left token"
                           : right == TOKEN_NONE ? "right token"
                                                 : "result");
    if (t->types[product] != TOKEN_NORMAL && t->types[product] != TOKEN_USER_DEFINED)
        return ENG_OK; /* text never becomes a control token */
    /* Of two entries for a pair the later one counts, as in the Hugging Face library. */
    *merge_slot(t, left, right) = (struct merge){left, right, rank, product};
    return ENG_OK;
}

static int load_merges(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    uint64_t n;
    int rc = loader_array(l, "tokenizer.ggml.merges", FMT_GGUF_STRING, "strings", MAX_MERGES, &n);
    if (rc != ENG_OK)
        return rc;
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    t->merges = malloc(slots * sizeof(*t->merges));
    char *joined = malloc(l->longest_text + 1);
    if (t->merges == NULL || joined == NULL) {
        free(joined);
        return loader_fail(l, ENG_ENOMEM, "tokenizer.ggml.merges: out of memory");
    }
    t->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        t->merges[i].left = TOKEN_NONE;
    for (uint32_t rank = 0; rank < n && rc == ENG_OK; rank++)
        rc = load_merge(l, rank, joined);
    free(joined);
    return rc;
}

int bytelevel_load(struct loader *l)
{
    int rc = load_pieces(l);
    return rc == ENG_OK ? load_merges(l) : rc;
}
