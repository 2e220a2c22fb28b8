/*
 * Byte pair encoding: the merging of symbols, for both kinds of vocabulary, and words of a byte-level one.
 *
 * The pair with the lowest rank, the leftmost among equals, is merged until no pair may be. Symbols are a
 * linked list and pairs wait in a binary heap; an entry whose rank is no longer the pair's is stale and
 * skipped. (One that is stale and has the rank of the pair there is now is as good as that pair's own entry.)
 * Each merge pushes at most two pairs, so n symbols cost O(n log n) however long the word is.
 *
 * A byte-level word starts as one symbol a byte. A byte without a token is left out before merging, so its
 * neighbours meet: this is what the Hugging Face tokenizers library does when a vocabulary has no unknown
 * token.
 */
#include "engine/tokenizer/internal.h"
#include <stdlib.h>

static size_t merge_hash(const struct eng_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ t->merge_seed;
    h *= 0x9E3779B97F4A7C15u; /* 2^64 over the golden ratio: spreads the low bits into the high ones */
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (size_t)(h >> 32) & t->merge_mask;
}

struct merge *merge_slot(const struct eng_tokenizer *t, uint32_t left, uint32_t right)
{
    for (size_t i = merge_hash(t, left, right);; i = (i + 1) & t->merge_mask) {
        struct merge *m = &t->merges[i];
        if (m->left == TOKEN_NONE || (m->left == left && m->right == right))
            return m;
    }
}

const struct merge *merge_find(const struct eng_tokenizer *t, uint32_t left, uint32_t right)
{
    const struct merge *m = merge_slot(t, left, right);
    return m->left == TOKEN_NONE ? NULL : m;
}

/* Room for a word of n symbols: fewer than n pairs at first, and each of the fewer than n merges takes its
 * own pair out and puts at most two in. */
int bpe_reserve(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cap_symbols)
        return ENG_OK;
    size_t cap =
        n < 64 ? 64 : n; /* exactly: the words of prose are short, and a long one is rare and large */
    if (n >= TOKEN_NONE || cap > SIZE_MAX / (2 * sizeof(uint64_t)))
        return ENG_ENOMEM;
    struct bpe_symbol *symbols = realloc(s->symbols, cap * sizeof(*symbols));
    if (symbols == NULL)
        return ENG_ENOMEM;
    s->symbols = symbols;
    uint64_t *heap = realloc(s->heap, 2 * cap * sizeof(*heap));
    if (heap == NULL)
        return ENG_ENOMEM;
    s->heap = heap;
    s->cap_symbols = cap;
    return ENG_OK;
}

static void heap_push(struct bpe_scratch *s, uint64_t entry)
{
    size_t i = s->n_heap++;
    while (i > 0 && s->heap[(i - 1) / 2] > entry) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
        s->work++;
    }
    s->heap[i] = entry;
}

static uint64_t heap_pop(struct bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child])
            child++;
        if (s->heap[child] >= last)
            break;
        s->heap[i] = s->heap[child];
        i = child;
        s->work++;
    }
    s->heap[i] = last;
    return top;
}

/* Looks up the pair that starts at symbol i and queues it. */
static void offer(const struct eng_tokenizer *t, struct bpe_scratch *s, bpe_look_up look_up, uint32_t i)
{
    struct bpe_symbol *a = &s->symbols[i];
    a->rank = TOKEN_NONE;
    if (a->next == TOKEN_NONE)
        return;
    s->work++;
    struct bpe_pair pair = look_up(t, s, i);
    if (pair.rank == TOKEN_NONE)
        return;
    a->rank = pair.rank;
    a->product = pair.product;
    heap_push(s, (uint64_t)pair.rank << 32 | i);
}

void bpe_add_symbol(struct bpe_scratch *s, uint32_t index, uint32_t id, uint32_t at)
{
    s->symbols[index] = (struct bpe_symbol){.id = id,
                                            .at = at,
                                            .next = index + 1,
                                            .previous = index > 0 ? index - 1 : TOKEN_NONE,
                                            .rank = TOKEN_NONE};
}

void bpe_merge(const struct eng_tokenizer *t, struct bpe_scratch *s, uint32_t n, bpe_look_up look_up)
{
    s->symbols[n - 1].next = TOKEN_NONE;
    s->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        offer(t, s, look_up, i);

    while (s->n_heap > 0) {
        uint64_t top = heap_pop(s);
        uint32_t i = (uint32_t)top;
        struct bpe_symbol *a = &s->symbols[i];
        if (a->rank != (uint32_t)(top >> 32))
            continue;
        struct bpe_symbol *b = &s->symbols[a->next];
        a->id = a->product;
        a->next = b->next;
        b->rank = TOKEN_NONE; /* whatever waits for b is stale */
        if (a->next != TOKEN_NONE)
            s->symbols[a->next].previous = i;
        offer(t, s, look_up, i);
        if (a->previous != TOKEN_NONE)
            offer(t, s, look_up, a->previous);
    }
}

static struct bpe_pair merge_of_ids(const struct eng_tokenizer *t, struct bpe_scratch *s, uint32_t left)
{
    const struct bpe_symbol *a = &s->symbols[left];
    const struct merge *m = merge_find(t, a->id, s->symbols[a->next].id);
    return m != NULL ? (struct bpe_pair){m->rank, m->product} : (struct bpe_pair){TOKEN_NONE, 0};
}

int bpe_word(const struct eng_tokenizer *t, struct bpe_scratch *s, const uint8_t *word, size_t len,
             struct eng_ids *out)
{
    if (t->pre->ignore_merges) {
        uint32_t id = text_table_find(&t->words, t->pieces, (struct bytes){(const char *)word, len});
        if (id != TOKEN_NONE)
            return eng_ids_add(out, &id, 1);
    }
    int rc = bpe_reserve(s, len);
    if (rc != ENG_OK)
        return rc;
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++)
        if (t->byte_ids[word[i]] != TOKEN_NONE)
            bpe_add_symbol(s, n++, t->byte_ids[word[i]], 0);
    if (n == 0)
        return ENG_OK;
    bpe_merge(t, s, n, merge_of_ids);
    for (uint32_t i = 0; i != TOKEN_NONE; i = s->symbols[i].next) {
        rc = eng_ids_add(out, &s->symbols[i].id, 1);
        if (rc != ENG_OK)
            return rc;
    }
    return ENG_OK;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    free(s->unused);
    *s = (struct bpe_scratch){0};
}
