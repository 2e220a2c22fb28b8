/*
 * The public calls: text to ids through special tokens and words, ids to pieces. An open tokenizer is never
 * written, so any thread may call.
 */
#include "engine/tokenizer/internal.h"
#include <stdlib.h>
#include <string.h>

int eng_ids_add(struct eng_ids *v, const uint32_t *ids, size_t n)
{
    if (n > v->cap - v->n) {
        if (n > SIZE_MAX / (4 * sizeof(*ids)) - v->n)
            return ENG_ENOMEM;
        size_t cap = v->n + n < 16 ? 16 : 2 * (v->n + n);
        uint32_t *data = realloc(v->data, cap * sizeof(*data));
        if (data == NULL)
            return ENG_ENOMEM;
        v->data = data;
        v->cap = cap;
    }
    if (n > 0)
        memcpy(v->data + v->n, ids, n * sizeof(*ids));
    v->n += n;
    return ENG_OK;
}

void eng_ids_free(struct eng_ids *v)
{
    free(v->data);
    *v = (struct eng_ids){0};
}

/* The longest token of the list that text starts with; TOKEN_NONE when there is none. The list is sorted, so
 * the tokens that agree with the first d bytes are a range, which each further byte narrows. */
static uint32_t match_special(const struct eng_tokenizer *t, const struct split_list *list, const char *text,
                              size_t len, size_t *match_len)
{
    uint32_t found = TOKEN_NONE;
    size_t low = 0, high = list->n;
    for (size_t d = 0; d < len && low < high; d++) {
        uint8_t want = (uint8_t)text[d];
        /* Within the range only its first token can be d bytes long, and it was taken in the last round. */
        if (t->pieces[list->ids[low]].len == d)
            low++;
        size_t a = low, b = high;
        while (a < b) { /* the first token whose byte d is not below */
            size_t mid = a + (b - a) / 2;
            if ((uint8_t)t->pieces[list->ids[mid]].data[d] < want)
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        b = high;
        while (a < b) { /* the first token whose byte d is above */
            size_t mid = a + (b - a) / 2;
            if ((uint8_t)t->pieces[list->ids[mid]].data[d] <= want)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
        if (low < high && t->pieces[list->ids[low]].len == d + 1) {
            found = list->ids[low];
            *match_len = d + 1;
        }
    }
    return found;
}

static int encode_words(const struct eng_tokenizer *t, struct bpe_scratch *scratch, const char *text,
                        size_t len, struct eng_ids *out)
{
    if (t->sentencepiece)
        return spm_text(t, scratch, text, len, out);
    struct pretok p;
    pretok_init(&p, t->pre->kind, text, len);
    for (;;) {
        const uint8_t *word = p.text + p.pos;
        size_t n = pretok_next(&p);
        if (n == 0)
            return ENG_OK;
        int rc = bpe_word(t, scratch, word, n, out);
        if (rc != ENG_OK)
            return rc;
    }
}

static int encode(const struct eng_tokenizer *t, const char *text, size_t len, bool parse_special,
                  struct eng_ids *out)
{
    const struct split_list *list = parse_special ? &t->specials : &t->added;
    struct bpe_scratch scratch = {0};
    size_t before = out->n, start = 0;
    int rc = ENG_OK;
    for (size_t i = 0; i < len && list->n > 0 && rc == ENG_OK;) {
        size_t match_len = 1;
        uint32_t id = TOKEN_NONE;
        if (list->starts[(uint8_t)text[i]])
            id = match_special(t, list, text + i, len - i, &match_len);
        if (id != TOKEN_NONE) {
            rc = encode_words(t, &scratch, text + start, i - start, out);
            if (rc == ENG_OK)
                rc = eng_ids_add(out, &id, 1);
            start = i + match_len;
        }
        i += match_len;
    }
    if (rc == ENG_OK)
        rc = encode_words(t, &scratch, text + start, len - start, out);
    if (rc != ENG_OK)
        out->n = before;
    bpe_scratch_free(&scratch);
    return rc;
}

int eng_tokenizer_encode(const struct eng_tokenizer *t, const char *text, size_t len, bool parse_special,
                         struct eng_ids *out)
{
    if (len == 0)
        return ENG_OK;
    if (!t->sentencepiece || memmem(text, len, SPM_SPACE, SPM_SPACE_BYTES) == NULL)
        return encode(t, text, len, parse_special, out);
    char *spaced = malloc(len);
    if (spaced == NULL)
        return ENG_ENOMEM;
    int rc = encode(t, spaced, spm_spaces(text, len, spaced), parse_special, out);
    free(spaced);
    return rc;
}

const char *eng_tokenizer_piece(const struct eng_tokenizer *t, uint32_t id, bool special, size_t *len)
{
    *len = 0;
    if (id >= t->n_vocab || t->types[id] == TOKEN_UNUSED || (!special && eng_tokenizer_is_control(t, id)))
        return "";
    *len = t->pieces[id].len;
    return t->pieces[id].data;
}

uint32_t eng_tokenizer_n_vocab(const struct eng_tokenizer *t)
{
    return t->n_vocab;
}

size_t eng_tokenizer_longest_piece(const struct eng_tokenizer *t)
{
    return t->longest_piece;
}

uint32_t eng_tokenizer_bos(const struct eng_tokenizer *t)
{
    return t->bos;
}

uint32_t eng_tokenizer_eos(const struct eng_tokenizer *t)
{
    return t->eos;
}

bool eng_tokenizer_add_bos(const struct eng_tokenizer *t)
{
    return t->add_bos;
}

bool eng_tokenizer_is_end(const struct eng_tokenizer *t, uint32_t id)
{
    return id < t->n_vocab && t->ends[id];
}

bool eng_tokenizer_is_control(const struct eng_tokenizer *t, uint32_t id)
{
    return id < t->n_vocab && (t->types[id] == TOKEN_CONTROL || t->types[id] == TOKEN_UNKNOWN);
}

uint32_t eng_tokenizer_special(const struct eng_tokenizer *t, const char *text)
{
    size_t len = strlen(text), match_len = 0;
    uint32_t id = match_special(t, &t->specials, text, len, &match_len);
    return id != TOKEN_NONE && match_len == len ? id : TOKEN_NONE;
}

void eng_tokenizer_digest(const struct eng_tokenizer *t, uint8_t out[32])
{
    memcpy(out, t->digest, sizeof(t->digest));
}
