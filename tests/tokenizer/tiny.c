/* See tiny.h. Free of cmocka: a fuzzer links this. */
#include "tests/tokenizer/tiny.h"
#include "formats/gguf.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Test files are small: one buffer, reused, is enough. The file that is open last owns its contents. */
struct file {
    uint8_t bytes[1 << 16];
    size_t len;
};

static void put(struct file *f, const void *data, size_t len)
{
    if (len > sizeof(f->bytes) - f->len)
        abort();
    memcpy(f->bytes + f->len, data, len);
    f->len += len;
}

static void put_u32(struct file *f, uint32_t v)
{
    put(f, &v, sizeof(v));
}

static void put_u64(struct file *f, uint64_t v)
{
    put(f, &v, sizeof(v));
}

static void put_text(struct file *f, const char *text)
{
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void key(struct file *f, const char *name, enum fmt_gguf_type type, uint64_t *n_keys)
{
    put_text(f, name);
    put_u32(f, type);
    ++*n_keys;
}

/* The letter for a byte, GPT-2's map. */
static void byte_letter(unsigned byte, char out[4])
{
    unsigned c = byte;
    if (!((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174)) {
        unsigned before = c < 33 ? c : c < 161 ? 33 + (c - 127) : 67;
        c = 256 + before;
    }
    if (c < 0x80)
        snprintf(out, 4, "%c", (int)c);
    else
        snprintf(out, 4, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 0x3F)));
}

static bool is_spm(const struct tiny *spec)
{
    return spec->model != NULL && strcmp(spec->model, "llama") == 0;
}

static bool lacks(const struct tiny *spec, unsigned b)
{
    return spec->no_bytes || (b != 0 && spec->missing != NULL && strchr(spec->missing, (int)b) != NULL);
}

static void put_spm_keys(struct file *f, const struct tiny *spec, uint32_t n_extra, uint64_t *n_keys)
{
    const uint32_t n = 256 + n_extra, n_scores = spec->n_scores > 0 ? (uint32_t)spec->n_scores : n;
    if (spec->space_prefix >= 0) {
        key(f, "tokenizer.ggml.add_space_prefix", FMT_GGUF_BOOL, n_keys);
        put(f, spec->space_prefix > 0 ? "\1" : "\0", 1);
    }
    if (spec->n_scores < 0)
        return;
    key(f, "tokenizer.ggml.scores", FMT_GGUF_ARRAY, n_keys);
    put_u32(f, spec->scores_as_f64 ? FMT_GGUF_F64 : FMT_GGUF_F32);
    put_u64(f, n_scores);
    for (uint32_t i = 0; i < n_scores; i++) {
        float score = i >= 256 && i < n && spec->scores != NULL ? spec->scores[i - 256] : 0;
        double wide = (double)score;
        if (spec->scores_as_f64)
            put(f, &wide, sizeof(wide));
        else
            put(f, &score, sizeof(score));
    }
}

static void put_vocabulary(struct file *f, const struct tiny *spec, uint64_t *n_keys)
{
    uint32_t n_extra = 0, n_merges = 0;
    while (spec->extra != NULL && spec->extra[n_extra].text != NULL)
        n_extra++;
    while (spec->merges != NULL && spec->merges[n_merges] != NULL)
        n_merges++;
    uint32_t n = 256 + n_extra, n_types = spec->n_types > 0 ? (uint32_t)spec->n_types : n;

    key(f, "tokenizer.ggml.tokens", FMT_GGUF_ARRAY, n_keys);
    put_u32(f, FMT_GGUF_STRING);
    put_u64(f, n);
    for (unsigned b = 0; b < 256; b++) {
        char letter[8], unused[16];
        if (is_spm(spec))
            snprintf(letter, sizeof(letter), "<0x%02X>", b);
        else
            byte_letter(b, letter);
        snprintf(unused, sizeof(unused), "[UNUSED%u]", b);
        put_text(f, lacks(spec, b) ? unused : letter);
    }
    for (uint32_t i = 0; i < n_extra; i++)
        put_text(f, spec->extra[i].text);

    key(f, "tokenizer.ggml.token_type", FMT_GGUF_ARRAY, n_keys);
    put_u32(f, spec->types_as_u32 ? FMT_GGUF_U32 : FMT_GGUF_I32);
    put_u64(f, n_types);
    for (uint32_t i = 0; i < n_types; i++) {
        int32_t of_bytes = is_spm(spec) ? 6 : 1;
        if (i < 256 && lacks(spec, i))
            of_bytes = 5;
        put_u32(f, (uint32_t)(i < 256 || i >= n ? of_bytes : spec->extra[i - 256].type));
    }
    if (is_spm(spec))
        put_spm_keys(f, spec, n_extra, n_keys);
    if (spec->no_merges || is_spm(spec))
        return;
    key(f, "tokenizer.ggml.merges", FMT_GGUF_ARRAY, n_keys);
    put_u32(f, FMT_GGUF_STRING);
    put_u64(f, n_merges);
    for (uint32_t i = 0; i < n_merges; i++)
        put_text(f, spec->merges[i]);
}

static void put_file(struct file *f, const struct tiny *spec)
{
    uint64_t n_keys = 0;
    f->len = 0;
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, 0);
    put_u64(f, 0);
    const char *const texts[][2] = {{"general.architecture", "llama"},
                                    {"tokenizer.ggml.model", spec->model},
                                    {"tokenizer.ggml.pre", spec->pre},
                                    {"tokenizer.chat_template", spec->chat_template}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i][1] == NULL)
            continue;
        key(f, texts[i][0], FMT_GGUF_STRING, &n_keys);
        put_text(f, texts[i][1]);
    }
    put_vocabulary(f, spec, &n_keys);
    if (spec->bos > 0) {
        key(f, "tokenizer.ggml.bos_token_id", FMT_GGUF_U32, &n_keys);
        put_u32(f, spec->bos - 1);
    }
    if (spec->eos > 0) {
        key(f, "tokenizer.ggml.eos_token_id", FMT_GGUF_U32, &n_keys);
        put_u32(f, spec->eos - 1);
    }
    if (spec->add_bos != 0) {
        key(f, "tokenizer.ggml.add_bos_token", FMT_GGUF_BOOL, &n_keys);
        put(f, spec->add_bos > 0 ? "\1" : "\0", 1);
    }
    if (spec->other_key != NULL) {
        key(f, spec->other_key, FMT_GGUF_BOOL, &n_keys);
        put(f, "\1", 1);
    }
    while (f->len % 32 != 0)
        put(f, "", 1);
    memcpy(f->bytes + 16, &n_keys, sizeof(n_keys));
}

int tiny_open(const struct tiny *spec, struct fmt_gguf **g, struct eng_tokenizer **t, char err[256])
{
    static struct file file;
    *g = NULL;
    *t = NULL;
    err[0] = '\0';
    put_file(&file, spec);
    int rc = fmt_gguf_open_memory(file.bytes, file.len, g, err, 256);
    return rc != FMT_OK ? rc : eng_tokenizer_open(*g, t, err, 256);
}

void tiny_close(struct fmt_gguf *g, struct eng_tokenizer *t)
{
    eng_tokenizer_close(t);
    fmt_gguf_close(g);
}

bool tiny_encodes(const struct eng_tokenizer *t, const char *text, bool parse_special, const uint32_t *ids)
{
    struct eng_ids got = {0};
    size_t n = 0;
    while (ids[n] != UINT32_MAX)
        n++;
    bool equal = eng_tokenizer_encode(t, text, strlen(text), parse_special, &got) == ENG_OK && got.n == n &&
                 (n == 0 || memcmp(got.data, ids, n * sizeof(*ids)) == 0);
    if (!equal) {
        fprintf(stderr, "\"%s\" became", text);
        for (size_t i = 0; i < got.n; i++)
            fprintf(stderr, " %u", got.data[i]);
        fprintf(stderr, "\n");
    }
    eng_ids_free(&got);
    return equal;
}

bool tiny_any_bytes_come_back(const struct eng_tokenizer *t)
{
    uint32_t x = 1;
    bool equal = true;
    for (int round = 0; equal && round < 300; round++) {
        char text[64], back[64];
        size_t n = 0;
        struct eng_ids ids = {0};
        for (size_t i = 0; i < sizeof(text); i++) {
            x = x * 1664525 + 1013904223;
            text[i] = (char)(round % 2 ? x >> 24 : 0x80 | x >> 25);
        }
        equal = eng_tokenizer_encode(t, text, sizeof(text), true, &ids) == ENG_OK;
        for (size_t i = 0; equal && i < ids.n; i++) {
            size_t len;
            const char *piece = eng_tokenizer_piece(t, ids.data[i], false, &len);
            equal = len <= sizeof(back) - n;
            if (equal)
                memcpy(back + n, piece, len);
            n += len;
        }
        equal = equal && n == sizeof(text) && memcmp(back, text, n) == 0;
        if (!equal)
            fprintf(stderr, "the bytes of round %d do not come back\n", round);
        eng_ids_free(&ids);
    }
    return equal;
}
