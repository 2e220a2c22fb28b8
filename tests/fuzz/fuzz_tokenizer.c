/*
 * The tokenizer on any bytes, over a vocabulary built here: every byte but three, merges that chain, control
 * and added tokens that are prefixes of each other. The first byte chooses the pre-tokenizer. Promises that
 * trap when they do not hold: ids in range; text gives no control token unless asked; pieces spell the text
 * again but for the three bytes; what the detokenizer shows is UTF-8 and does not depend on where the bytes
 * are cut; a message's content never ends its own message.
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
static const char *const patterns[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
static const char lacking[] = "\x01\xC0\xFF";

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

/* Opened once for the life of the process, as a server does. */
static const struct eng_tokenizer *tokenizer(unsigned which)
{
    static struct eng_tokenizer *open[4];
    if (open[which] == NULL) {
        struct tiny spec = {
            .model = "gpt2", .pre = patterns[which], .extra = extra, .merges = merges, .missing = lacking};
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

static void try_text(const struct eng_tokenizer *t, const char *text, size_t len, bool parse_special)
{
    struct eng_ids ids = {0};
    char *spelled = malloc(len + 1), *shown = malloc(6 * len + 64), *cut = malloc(6 * len + 64);
    if (spelled == NULL || shown == NULL || cut == NULL ||
        eng_tokenizer_encode(t, text, len, parse_special, &ids) != ENG_OK)
        goto out;
    size_t n = 0, at = 0;
    require(ids.n <= len);
    for (size_t i = 0; i < ids.n; i++) {
        size_t piece_len;
        require(ids.data[i] < eng_tokenizer_n_vocab(t));
        require(parse_special || !eng_tokenizer_is_control(t, ids.data[i]));
        const char *piece = eng_tokenizer_piece(t, ids.data[i], true, &piece_len);
        require(piece_len > 0 && piece_len <= len - n);
        memcpy(spelled + n, piece, piece_len);
        n += piece_len;
    }
    for (size_t i = 0; i < len; i++) {
        bool gone = text[i] != '\0' && strchr(lacking, text[i]) != NULL;
        require(gone || (at < n && spelled[at] == text[i]));
        at += !gone;
    }
    require(at == n);
    size_t n_shown = show(t, &ids, len + 1, shown), n_cut = show(t, &ids, 1, cut);
    require(n_shown == n_cut && memcmp(shown, cut, n_cut) == 0);
    struct eng_detok again = {0}; /* UTF-8 passes unchanged */
    require(eng_detok_push(&again, shown, n_shown, cut) == n_shown && memcmp(shown, cut, n_shown) == 0);
out:
    eng_ids_free(&ids);
    free(spelled);
    free(shown);
    free(cut);
}

static void try_chat(const struct eng_tokenizer *t, const char *text, size_t len)
{
    static const char *const names[] = {"chatml", "qwen3"};
    const uint32_t im_end = eng_tokenizer_special(t, "<|im_end|>");
    size_t half = len / 2;
    const struct eng_message messages[] = {{ENG_ROLE_USER, text, half},
                                           {ENG_ROLE_ASSISTANT, text + half, len - half},
                                           {ENG_ROLE_USER, text, len}};
    for (size_t k = 0; k < 2; k++) {
        struct eng_rendered r;
        size_t ends = 0;
        if (eng_chat_render(eng_chat_by_name(names[k]), t, messages, 3, true, NULL, &r, NULL, 0) != ENG_OK)
            return;
        for (size_t i = 0; i < r.ids.n; i++)
            ends += r.ids.data[i] == im_end;
        require(ends == 3 && r.n_boundaries == 5 && r.reply_run < r.ids.n);
        eng_rendered_free(&r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct eng_tokenizer *t = tokenizer(data[0] % 4);
    const char *text = (const char *)data + 1;
    try_text(t, text, size - 1, false);
    try_text(t, text, size - 1, true);
    try_chat(t, text, size - 1);
    return 0;
}
