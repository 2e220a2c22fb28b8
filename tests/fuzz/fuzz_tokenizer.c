/*
 * The tokenizer on any bytes, over vocabularies built here. Byte-level: every byte but three, merges that
 * chain, control and added tokens that are prefixes of each other. SentencePiece, with and without byte
 * tokens: pieces that merge in several ways, unused ones within them, user-defined runs of spaces. The first
 * byte chooses. Promises that trap when they do not hold: ids in range; text gives no control token unless
 * asked; pieces spell the text again but for what the vocabulary lacks (and U+2581 comes back as a space);
 * what the detokenizer shows is UTF-8 and does not depend on where the bytes are cut; a message's content
 * never ends its own message.
 *
 * What is behind the last kind is not text but a vocabulary: tokens of a few bytes, their types and scores.
 */
#include "engine/tokenizer/chat.h"
#include "tests/tokenizer/tiny.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tiny_token extra[] = {{"<|im_start|>", 3},
                                          {"<|im_end|>", 3},
                                          {"<|im_", 3},
                                          {"<think>", 4},
                                          {"</think>", 4},
                                          {"<th", 4},
                                          {"aa", 1},
                                          {"aaaa", 1},
                                          {"ab", 1},
                                          {"ba", 1},
                                          {"\xC4\xA0\xC4\xA0", 1},
                                          {"\xC4\xA0"
                                           "a",
                                           1},
                                          {"\xC3\xA4\xC2\xBD", 1},
                                          {NULL, 0}};
static const char *const merges[] = {
    "a b", "b a", "a a", "aa aa", "\xC4\xA0 \xC4\xA0", "\xC4\xA0 a", "\xC3\xA4 \xC2\xBD", NULL};
static const char *const patterns[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35"};
#define SPACE "\xE2\x96\x81"
static const struct tiny_token spm_extra[] = {{"<s>", 3},
                                              {"<unk>", 2},
                                              {"<start_of_turn>", 4},
                                              {"<end_of_turn>", 1},
                                              {SPACE SPACE SPACE, 4},
                                              {"  ", 4},
                                              {"\n\n", 4},
                                              {SPACE, 1},
                                              {"a", 1},
                                              {"b", 1},
                                              {"aa", 1},
                                              {"aaa", 5},
                                              {"aab", 1},
                                              {"aaab", 5},
                                              {"aaaab", 1},
                                              {"ab", 5},
                                              {"aba", 1},
                                              {SPACE "a", 1},
                                              {"a" SPACE "a", 1},
                                              {"a b", 1},
                                              {"\xE4\xBD\xA0", 1},
                                              {"\xE4\xBD\xA0\xE5\xA5\xBD", 1},
                                              {NULL, 0}};
static const float spm_scores[] = {0,  0,  0,     0, 0,  0,  0,  -9, -9, -9, -2,
                                   -1, -2, -0.0f, 0, -3, -1, -4, -5, 0,  -9, -1};
enum { N_PATTERNS = 5, SPM = N_PATTERNS, SPM_WITHOUT_BYTES, VOCABULARY, N_KINDS };
static const char lacking[] = "\x01\xC0\xFF";

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

/* Opened once for the life of the process, as a server does. */
static const struct eng_tokenizer *tokenizer(unsigned which)
{
    static struct eng_tokenizer *open[VOCABULARY];
    if (open[which] == NULL) {
        struct tiny spec = {.model = "llama",
                            .extra = spm_extra,
                            .scores = spm_scores,
                            .bos = TINY(0) + 1,
                            .no_bytes = which == SPM_WITHOUT_BYTES};
        if (which < N_PATTERNS)
            spec = (struct tiny){.model = "gpt2",
                                 .pre = patterns[which],
                                 .extra = extra,
                                 .merges = merges,
                                 .missing = lacking};
        struct fmt_gguf *g;
        char err[256];
        require(tiny_open(&spec, &g, &open[which], err) == 0);
        tiny_close(g, NULL); /* the tokenizer keeps no reference to it */
    }
    return open[which];
}

/* Shows the pieces of ids, cut into slices of `cut` bytes. */
static size_t show(const struct eng_tokenizer *t, const struct eng_ids *ids, size_t cut, char *out)
{
    struct eng_detok d = {0};
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *piece = eng_tokenizer_piece(t, ids->data[i], false, &len);
        for (size_t at = 0; at < len; at += cut)
            n += eng_detok_push(&d, piece + at, len - at < cut ? len - at : cut, out + n);
    }
    return n + eng_detok_finish(&d, out + n);
}

/* The text without the bytes that the vocabulary lacks, and with spaces as they come back. */
static size_t expected(unsigned which, const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (which < N_PATTERNS) {
            if (text[i] == '\0' || strchr(lacking, text[i]) == NULL)
                out[n++] = text[i];
        } else if (len - i >= 3 && memcmp(text + i, SPACE, 3) == 0) {
            out[n++] = ' ';
            i += 2;
        } else {
            out[n++] = text[i];
        }
    }
    return n;
}

static void try_text(unsigned which, const char *text, size_t len, bool parse_special)
{
    const struct eng_tokenizer *t = tokenizer(which);
    struct eng_ids ids = {0};
    char *spelled = malloc(len + 1), *want = malloc(len + 1), *shown = malloc(6 * len + 64),
         *cut = malloc(6 * len + 64);
    if (spelled == NULL || want == NULL || shown == NULL || cut == NULL ||
        eng_tokenizer_encode(t, text, len, parse_special, &ids) != ENG_OK)
        goto out;
    size_t n = 0;
    require(ids.n <= len);
    for (size_t i = 0; i < ids.n; i++) {
        size_t piece_len;
        require(ids.data[i] < eng_tokenizer_n_vocab(t));
        if (which == SPM_WITHOUT_BYTES && ids.data[i] == TINY(1))
            continue; /* it stands for whatever was there */
        require(parse_special || !eng_tokenizer_is_control(t, ids.data[i]));
        const char *piece = eng_tokenizer_piece(t, ids.data[i], true, &piece_len);
        require(piece_len > 0 && piece_len <= len - n);
        memcpy(spelled + n, piece, piece_len);
        n += piece_len;
    }
    size_t n_want = expected(which, text, len, want);
    if (which == SPM_WITHOUT_BYTES)
        require(n <= n_want);
    else
        require(n == n_want && memcmp(spelled, want, n) == 0);
    size_t n_shown = show(t, &ids, len + 1, shown), n_cut = show(t, &ids, 1, cut);
    require(n_shown == n_cut && memcmp(shown, cut, n_cut) == 0);
    struct eng_detok again = {0}; /* UTF-8 passes unchanged */
    require(eng_detok_push(&again, shown, n_shown, cut) == n_shown && memcmp(shown, cut, n_shown) == 0);
out:
    eng_ids_free(&ids);
    free(spelled);
    free(want);
    free(shown);
    free(cut);
}

static void try_chat(unsigned which, const char *text, size_t len)
{
    static const char *const names[] = {"chatml", "qwen3", "gemma"};
    const struct eng_tokenizer *t = tokenizer(which);
    const uint32_t end = eng_tokenizer_special(t, which < N_PATTERNS ? "<|im_end|>" : "<end_of_turn>");
    size_t half = len / 2;
    const struct eng_message messages[] = {{ENG_ROLE_USER, text, half},
                                           {ENG_ROLE_ASSISTANT, text + half, len - half},
                                           {ENG_ROLE_USER, text, len}};
    for (size_t k = which < N_PATTERNS ? 0 : 2; k < (which < N_PATTERNS ? 2u : 3u); k++) {
        struct eng_rendered r;
        size_t ends = 0;
        int rc = eng_chat_render(eng_chat_by_name(names[k]), t, messages, 3, true, NULL, &r, NULL, 0);
        require(rc == ENG_OK || rc == ENG_ENOMEM);
        if (rc != ENG_OK)
            return;
        for (size_t i = 0; i < r.ids.n; i++)
            ends += r.ids.data[i] == end;
        require(ends == 3 && r.n_boundaries == 5 && r.reply_run < r.ids.n);
        eng_rendered_free(&r);
    }
}

/* A vocabulary made of the input: each token a byte that holds length, type and score, and its text. */
static void try_vocabulary(const char *data, size_t size)
{
    enum { MAX_TOKENS = 200 };
    static char texts[MAX_TOKENS][8];
    static struct tiny_token tokens[MAX_TOKENS + 1];
    static float scores[MAX_TOKENS];
    size_t n = 0, at = 0;
    while (n < MAX_TOKENS && at < size) {
        uint8_t head = (uint8_t)data[at++];
        size_t len = head & 7;
        if (len > size - at)
            len = size - at;
        memcpy(texts[n], data + at, len);
        texts[n][len] = '\0';
        at += len;
        tokens[n] = (struct tiny_token){texts[n], 1 + (head >> 3) % 6};
        scores[n] = (float)-(head >> 5);
        n++;
    }
    tokens[n] = (struct tiny_token){NULL, 0};
    struct tiny spec = {.model = "llama", .extra = tokens, .scores = scores};
    struct fmt_gguf *g;
    struct eng_tokenizer *t;
    struct eng_ids ids = {0};
    char err[256];
    int rc = tiny_open(&spec, &g, &t, err);
    require((rc == 0) == (t != NULL) && (rc == 0 || err[0] != '\0'));
    if (t != NULL && eng_tokenizer_encode(t, data, size, false, &ids) == ENG_OK)
        for (size_t i = 0; i < ids.n; i++)
            require(ids.data[i] < eng_tokenizer_n_vocab(t) && !eng_tokenizer_is_control(t, ids.data[i]));
    eng_ids_free(&ids);
    tiny_close(g, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    unsigned which = data[0] % N_KINDS;
    if (which == VOCABULARY) {
        try_vocabulary(text, size - 1);
        return 0;
    }
    try_text(which, text, size - 1, false);
    try_text(which, text, size - 1, true);
    try_chat(which, text, size - 1);
    return 0;
}
