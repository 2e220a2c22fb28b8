/*
 * A text of a SentencePiece vocabulary to ids, as that library's BPE model does it.
 *
 * There are no words: the whole text starts as one symbol a character, and two neighbours merge when their
 * joined text is a piece, whatever made them; the highest score first. A symbol that is no piece in the end
 * becomes its bytes' tokens, or the unknown token (one for a run of them) where the vocabulary has no byte
 * tokens. A byte that is not UTF-8 is a character of its own, and with byte tokens comes back as it was; the
 * library puts U+FFFD in its place.
 *
 * UNUSED pieces take part in merging, and one that is left is taken apart again: into the two parts it was
 * last offered as, anywhere in the text, which is the library's rule.
 */
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"
#include <stdlib.h>

static uint32_t piece_at(const struct eng_tokenizer *t, const struct bpe_scratch *s, size_t at, size_t end)
{
    return text_table_find(&t->words, t->pieces, (struct bytes){s->text + at, end - at});
}

static size_t end_of(const struct bpe_scratch *s, uint32_t symbol)
{
    uint32_t next = s->symbols[symbol].next;
    return next == TOKEN_NONE ? s->len : s->symbols[next].at;
}

static void note_unused(struct bpe_scratch *s, uint32_t id, uint32_t left_bytes)
{
    if (s->n_unused == s->cap_unused) {
        size_t cap = s->cap_unused > 0 ? 2 * s->cap_unused : 64;
        struct bpe_unused *grown = realloc(s->unused, cap * sizeof(*grown));
        if (grown == NULL) {
            s->no_memory = true;
            return;
        }
        s->unused = grown;
        s->cap_unused = cap;
    }
    s->unused[s->n_unused] = (struct bpe_unused){id, left_bytes, s->n_unused};
    s->n_unused++;
}

static struct bpe_pair joined_piece(const struct eng_tokenizer *t, struct bpe_scratch *s, uint32_t left)
{
    const struct bpe_symbol *a = &s->symbols[left];
    size_t end = end_of(s, a->next);
    uint32_t id = end - a->at <= t->longest_word ? piece_at(t, s, a->at, end) : TOKEN_NONE;
    if (id == TOKEN_NONE)
        return (struct bpe_pair){TOKEN_NONE, 0};
    if (t->types[id] == TOKEN_UNUSED)
        note_unused(s, id, s->symbols[a->next].at - a->at);
    return (struct bpe_pair){t->ranks[id], id};
}

static int compare_unused(const void *a, const void *b)
{
    const struct bpe_unused *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Bytes of the left part of the last offer of id, 0 when there was none; the list is sorted. */
static uint32_t last_split(const struct bpe_scratch *s, uint32_t id)
{
    size_t low = 0, high = s->n_unused;
    while (low < high) { /* the first entry with a larger id */
        size_t mid = low + (high - low) / 2;
        if (s->unused[mid].id <= id)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && s->unused[low - 1].id == id ? s->unused[low - 1].left_bytes : 0;
}

/* A text without a piece, one character. */
static int add_unknown(const struct eng_tokenizer *t, const char *text, size_t len, bool after_unknown,
                       struct eng_ids *out)
{
    int rc = ENG_OK;
    if (t->byte_ids[0] == TOKEN_NONE) /* none or all, the loader has seen to it */
        return after_unknown ? ENG_OK : eng_ids_add(out, &t->unknown, 1);
    if (len == 1 && text[0] == ' ') {
        text = SPM_SPACE;
        len = SPM_SPACE_BYTES;
    }
    for (size_t i = 0; i < len && rc == ENG_OK; i++)
        rc = eng_ids_add(out, &t->byte_ids[(uint8_t)text[i]], 1);
    return rc;
}

/* The ids of the symbol whose text is [at, end): one, or those of the parts of an unused piece. */
static int add_symbol_ids(const struct eng_tokenizer *t, const struct bpe_scratch *s, size_t at, size_t end,
                          bool *after_unknown, struct eng_ids *out)
{
    size_t waiting[SPM_MAX_PIECE_BYTES],
        n_waiting = 0; /* ends of right parts: each lies inside the one before */
    for (;;) {
        uint32_t id = end - at <= t->longest_word ? piece_at(t, s, at, end) : TOKEN_NONE;
        uint32_t left = id != TOKEN_NONE && t->types[id] == TOKEN_UNUSED ? last_split(s, id) : 0;
        if (left > 0) {
            waiting[n_waiting++] = end;
            end = at + left;
            continue;
        }
        int rc = id != TOKEN_NONE ? eng_ids_add(out, &id, 1)
                                  : add_unknown(t, s->text + at, end - at, *after_unknown, out);
        if (rc != ENG_OK)
            return rc;
        *after_unknown = id == TOKEN_NONE;
        if (n_waiting == 0)
            return ENG_OK;
        at = end;
        end = waiting[--n_waiting];
    }
}

int spm_text(const struct eng_tokenizer *t, struct bpe_scratch *s, const char *text, size_t len,
             struct eng_ids *out)
{
    uint32_t n = 0;
    int rc = bpe_reserve(s, len);
    if (rc != ENG_OK || len == 0)
        return rc;
    s->text = text;
    s->len = len;
    s->n_unused = 0;
    s->no_memory = false;
    for (size_t at = 0; at < len;) {
        uint32_t code_point;
        bpe_add_symbol(s, n++, TOKEN_NONE, (uint32_t)at);
        at += unicode_decode((const uint8_t *)text + at, len - at, &code_point);
    }
    bpe_merge(t, s, n, joined_piece);
    if (s->no_memory)
        return ENG_ENOMEM;
    if (s->n_unused > 0)
        qsort(s->unused, s->n_unused, sizeof(*s->unused), compare_unused);
    bool after_unknown = false;
    for (uint32_t i = 0; i != TOKEN_NONE && rc == ENG_OK; i = s->symbols[i].next)
        rc = add_symbol_ids(t, s, s->symbols[i].at, end_of(s, i), &after_unknown, out);
    return rc;
}
