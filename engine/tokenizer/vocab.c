/*
 * Builds a tokenizer from a GGUF's tokenizer.ggml.* keys. Everything in them is untrusted: counts, types,
 * ids, duplicates and merges are checked here, so that bpe.c and tokenizer.c need no checks. Messages name
 * the key (and the index) and never quote bytes of the file, except a name made of plain ASCII.
 *
 * Byte-level vocabularies write a byte as a printable code point (GPT-2's map: printable Latin-1 bytes stand
 * for themselves, the other 68 are U+0100 and up). NORMAL tokens are decoded to the bytes they stand for;
 * CONTROL and USER_DEFINED tokens are literal text.
 */
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"
#include "formats/gguf.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#define MAX_TOKENS      (1u << 24)
#define MAX_MERGES      (1u << 25)
#define MAX_SPECIAL_LEN 1024 /* bytes; bounds the work a text can cause at each position */

/* Tokens that give a conversation its structure. They are control tokens whatever type the file has for them,
 * because some files have the wrong one and text must never become one of them. */
static const struct {
    const char *text;
    bool end;
} structural[] = {
    {"<|im_end|>", true},
    {"<|endoftext|>", true},
    {"<|eot_id|>", true},
    {"<|eom_id|>", true},
    {"<|end_of_text|>", true},
    {"<|end|>", true},
    {"<|EOT|>", true},
    {"<|im_start|>", false},
    {"<|start_header_id|>", false},
    {"<|end_header_id|>", false},
    {"<|begin_of_text|>", false},
};

struct loader {
    struct eng_tokenizer *t;
    const struct fmt_gguf *g;
    struct bytes *texts; /* (n_vocab): tokens as the file has them, in its mapping */
    struct text_table by_text;
    size_t longest_text;
    char *err;
    size_t err_len;
};

__attribute__((format(printf, 3, 4))) static int fail(struct loader *l, int code, const char *format, ...)
{
    if (l->err_len > 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(l->err, l->err_len, format, args);
        va_end(args);
    }
    return code;
}

/* ---- string table ------------------------------------------------------------------------------------ */

int text_table_init(struct text_table *t, size_t n, uint64_t seed)
{
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    t->slots = malloc(slots * sizeof(*t->slots));
    if (t->slots == NULL)
        return ENG_ENOMEM;
    memset(t->slots, 0xFF, slots * sizeof(*t->slots));
    t->mask = slots - 1;
    t->seed = seed;
    return ENG_OK;
}

static uint32_t *text_slot(const struct text_table *t, const struct bytes *strings, struct bytes s)
{
    for (size_t i = XXH3_64bits_withSeed(s.data, s.len, t->seed) & t->mask;; i = (i + 1) & t->mask) {
        uint32_t id = t->slots[i];
        if (id == TOKEN_NONE || (strings[id].len == s.len && memcmp(strings[id].data, s.data, s.len) == 0))
            return &t->slots[i];
    }
}

uint32_t text_table_add(struct text_table *t, const struct bytes *strings, uint32_t id)
{
    uint32_t *slot = text_slot(t, strings, strings[id]);
    if (*slot == TOKEN_NONE)
        *slot = id;
    return *slot;
}

uint32_t text_table_find(const struct text_table *t, const struct bytes *strings, struct bytes s)
{
    return *text_slot(t, strings, s);
}

/* ---- the file's keys --------------------------------------------------------------------------------- */

static int get_array(struct loader *l, const char *key, enum fmt_gguf_type want, const char *want_name,
                     uint64_t max, uint64_t *n)
{
    enum fmt_gguf_type elem;
    int rc = fmt_gguf_array(l->g, key, &elem, n);
    if (rc == FMT_ENOTFOUND)
        return fail(l, ENG_EFORMAT, "%s is missing", key);
    if (rc != FMT_OK || elem != want)
        return fail(l, ENG_EFORMAT, "%s: not an array of %s", key, want_name);
    if (*n > max)
        return fail(l, ENG_EFORMAT, "%s: %llu entries, at most %llu are read", key, (unsigned long long)*n,
                    (unsigned long long)max);
    return ENG_OK;
}

static int load_names(struct loader *l)
{
    struct fmt_str model, pre;
    if (fmt_gguf_str(l->g, "tokenizer.ggml.model", &model) != FMT_OK)
        return fail(l, ENG_EFORMAT, "tokenizer.ggml.model: no such string");
    bool plain = model.len < 64;
    for (size_t i = 0; i < model.len && plain; i++)
        plain = model.data[i] > ' ' && model.data[i] <= '~';
    if (model.len != 4 || memcmp(model.data, "gpt2", 4) != 0)
        return fail(l, ENG_EUNSUPPORTED, "tokenizer.ggml.model: \"%.*s\" is not supported, only \"gpt2\" is",
                    plain ? (int)model.len : 0, model.data);
    if (fmt_gguf_str(l->g, "tokenizer.ggml.pre", &pre) != FMT_OK)
        return fail(l, ENG_EUNSUPPORTED, "tokenizer.ggml.pre: no such string, the pre-tokenizer is unknown");
    plain = pre.len < 64;
    for (size_t i = 0; i < pre.len && plain; i++)
        plain = pre.data[i] > ' ' && pre.data[i] <= '~';
    l->t->pre = pretok_find(pre.data, pre.len);
    if (l->t->pre == NULL)
        return fail(l, ENG_EUNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer \"%.*s\" is not supported",
                    plain ? (int)pre.len : 0, pre.data);
    return ENG_OK;
}

static int load_tokens(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.tokens", type_key[] = "tokenizer.ggml.token_type";
    struct eng_tokenizer *t = l->t;
    uint64_t n, n_types;
    int rc = get_array(l, key, FMT_GGUF_STRING, "strings", MAX_TOKENS, &n);
    if (rc == ENG_OK)
        rc = get_array(l, type_key, FMT_GGUF_I32, "i32", MAX_TOKENS, &n_types);
    if (rc != ENG_OK)
        return rc;
    if (n == 0)
        return fail(l, ENG_EFORMAT, "%s: empty", key);
    if (n_types != n)
        return fail(l, ENG_EFORMAT, "%s: %llu entries for %llu tokens", type_key, (unsigned long long)n_types,
                    (unsigned long long)n);
    t->n_vocab = (uint32_t)n;
    t->types = malloc(n);
    t->ends = calloc(n, sizeof(*t->ends));
    t->pieces = calloc(n, sizeof(*t->pieces));
    l->texts = calloc(n, sizeof(*l->texts));
    if (t->types == NULL || t->ends == NULL || t->pieces == NULL || l->texts == NULL ||
        text_table_init(&l->by_text, n, t->merge_seed) != ENG_OK)
        return fail(l, ENG_ENOMEM, "%s: out of memory", key);

    const char *types = fmt_gguf_array_data(l->g, type_key);
    for (uint32_t i = 0; i < n; i++) {
        int32_t type;
        memcpy(&type, types + (size_t)i * sizeof(type), sizeof(type));
        if (type < TOKEN_NORMAL || type > TOKEN_UNUSED)
            return fail(l, ENG_EFORMAT, "%s[%u]: %d is no type of a byte-level vocabulary", type_key, i,
                        type);
        t->types[i] = (uint8_t)type;
        struct fmt_str s = fmt_gguf_array_str(l->g, key, i);
        l->texts[i] = (struct bytes){s.data, s.len};
        if (s.len == 0)
            continue; /* a hole in the vocabulary */
        uint32_t first = text_table_add(&l->by_text, l->texts, i);
        if (first != i)
            return fail(l, ENG_EFORMAT, "%s[%u]: the same as token %u", key, i, first);
        if (s.len > l->longest_text)
            l->longest_text = s.len;
    }
    return ENG_OK;
}

/* Reads the id under key, TOKEN_NONE when there is none. */
static int get_id(struct loader *l, const char *key, uint32_t *id)
{
    *id = TOKEN_NONE;
    int rc = fmt_gguf_u32(l->g, key, id);
    if (rc == FMT_ENOTFOUND)
        return ENG_OK;
    if (rc != FMT_OK)
        return fail(l, ENG_EFORMAT, "%s: not a u32", key);
    if (*id >= l->t->n_vocab)
        return fail(l, ENG_EFORMAT, "%s: %u is not below the %u tokens", key, *id, l->t->n_vocab);
    return ENG_OK;
}

static int load_special_ids(struct loader *l)
{
    static const struct {
        const char *key;
        bool end;
    } keys[] = {
        {"tokenizer.ggml.bos_token_id", false},     {"tokenizer.ggml.eos_token_id", true},
        {"tokenizer.ggml.eot_token_id", true},      {"tokenizer.ggml.eom_token_id", true},
        {"tokenizer.ggml.unknown_token_id", false}, {"tokenizer.ggml.padding_token_id", false},
    };
    struct eng_tokenizer *t = l->t;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        uint32_t id;
        int rc = get_id(l, keys[i].key, &id);
        if (rc != ENG_OK)
            return rc;
        if (i == 0)
            t->bos = id;
        if (i == 1)
            t->eos = id;
        if (id == TOKEN_NONE)
            continue;
        if (t->types[id] == TOKEN_USER_DEFINED)
            t->types[id] = TOKEN_CONTROL;
        t->ends[id] |= keys[i].end;
    }
    for (size_t i = 0; i < sizeof(structural) / sizeof(structural[0]); i++) {
        struct bytes s = {structural[i].text, strlen(structural[i].text)};
        uint32_t id = text_table_find(&l->by_text, l->texts, s);
        if (id == TOKEN_NONE)
            continue;
        t->types[id] = TOKEN_CONTROL;
        t->ends[id] |= structural[i].end;
    }
    t->add_bos = t->pre->add_bos;
    int rc = fmt_gguf_bool(l->g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    if (rc != FMT_OK && rc != FMT_ENOTFOUND)
        return fail(l, ENG_EFORMAT, "tokenizer.ggml.add_bos_token: not a bool");
    if (t->bos == TOKEN_NONE)
        t->add_bos = false;
    return ENG_OK;
}

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
        return fail(l, ENG_ENOMEM, "tokenizer.ggml.tokens: out of memory");
    memset(t->byte_ids, 0xFF, sizeof(t->byte_ids));
    char *out = t->blob;
    t->longest_piece = 1;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct bytes text = l->texts[i];
        bool special = t->types[i] == TOKEN_CONTROL || t->types[i] == TOKEN_USER_DEFINED;
        if (special && text.len > MAX_SPECIAL_LEN)
            return fail(l, ENG_EFORMAT, "tokenizer.ggml.tokens[%u]: a special token of %zu bytes, at most %d",
                        i, text.len, MAX_SPECIAL_LEN);
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
        return fail(l, ENG_EFORMAT, "%s[%u]: not two tokens with a space between", key, rank);
    uint32_t left = text_table_find(&l->by_text, l->texts, (struct bytes){s.data, left_len});
    uint32_t right = text_table_find(&l->by_text, l->texts, (struct bytes){space + 1, right_len});
    uint32_t product = TOKEN_NONE;
    if (left_len + right_len <= l->longest_text) {
        memcpy(joined, s.data, left_len);
        memcpy(joined + left_len, space + 1, right_len);
        product = text_table_find(&l->by_text, l->texts, (struct bytes){joined, left_len + right_len});
    }
    if (left == TOKEN_NONE || right == TOKEN_NONE || product == TOKEN_NONE)
        return fail(l, ENG_EFORMAT, "%s[%u]: its %s is not in tokenizer.ggml.tokens", key, rank,
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
    int rc = get_array(l, "tokenizer.ggml.merges", FMT_GGUF_STRING, "strings", MAX_MERGES, &n);
    if (rc != ENG_OK)
        return rc;
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    t->merges = malloc(slots * sizeof(*t->merges));
    char *joined = malloc(l->longest_text + 1);
    if (t->merges == NULL || joined == NULL) {
        free(joined);
        return fail(l, ENG_ENOMEM, "tokenizer.ggml.merges: out of memory");
    }
    t->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        t->merges[i].left = TOKEN_NONE;
    for (uint32_t rank = 0; rank < n && rc == ENG_OK; rank++)
        rc = load_merge(l, rank, joined);
    free(joined);
    return rc;
}

/* ---- special tokens, digest -------------------------------------------------------------------------- */

static int compare_pieces(const void *a, const void *b, void *pieces)
{
    const struct bytes *x = &((const struct bytes *)pieces)[*(const uint32_t *)a];
    const struct bytes *y = &((const struct bytes *)pieces)[*(const uint32_t *)b];
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static int load_split_list(struct loader *l, struct split_list *list, bool with_control)
{
    struct eng_tokenizer *t = l->t;
    for (int pass = 0; pass < 2; pass++) {
        list->n = 0;
        for (uint32_t i = 0; i < t->n_vocab; i++) {
            bool wanted = t->types[i] == TOKEN_USER_DEFINED ||
                          (with_control && (t->types[i] == TOKEN_CONTROL || t->types[i] == TOKEN_UNKNOWN));
            if (!wanted || t->pieces[i].len == 0)
                continue;
            if (pass == 1) {
                list->ids[list->n] = i;
                list->starts[(uint8_t)t->pieces[i].data[0]] = true;
            }
            list->n++;
        }
        if (pass == 0) {
            list->ids = malloc((list->n + 1) * sizeof(*list->ids));
            if (list->ids == NULL)
                return fail(l, ENG_ENOMEM, "tokenizer.ggml.tokens: out of memory");
        }
    }
    qsort_r(list->ids, list->n, sizeof(*list->ids), compare_pieces, t->pieces);
    return ENG_OK;
}

static void digest_number(XXH3_state_t *state, uint64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    XXH3_128bits_update(state, le, sizeof(le));
}

/* Everything ids depend on, in the file's order; not the random seeds of the tables. */
static int make_digest(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    uint64_t n_merges;
    enum fmt_gguf_type elem;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return fail(l, ENG_ENOMEM, "tokenizer: out of memory");
    fmt_gguf_array(l->g, "tokenizer.ggml.merges", &elem, &n_merges);
    for (unsigned half = 0; half < 2; half++) {
        XXH3_128bits_reset_withSeed(state, half);
        digest_number(state, 1); /* version of this digest and of the rules of encoding */
        digest_number(state, t->pre->kind);
        digest_number(state, t->pre->ignore_merges);
        digest_number(state, t->add_bos);
        digest_number(state, t->bos);
        digest_number(state, t->eos);
        digest_number(state, t->n_vocab);
        for (uint32_t i = 0; i < t->n_vocab; i++) {
            digest_number(state, (uint64_t)l->texts[i].len << 8 | t->types[i]);
            XXH3_128bits_update(state, l->texts[i].data, l->texts[i].len);
        }
        digest_number(state, n_merges);
        for (uint64_t i = 0; i < n_merges; i++) {
            struct fmt_str s = fmt_gguf_array_str(l->g, "tokenizer.ggml.merges", i);
            digest_number(state, s.len);
            XXH3_128bits_update(state, s.data, s.len);
        }
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(t->digest + 16 * half, canonical.digest, 16);
    }
    XXH3_freeState(state);
    return ENG_OK;
}

int eng_tokenizer_open(const struct fmt_gguf *g, struct eng_tokenizer **out, char *err, size_t err_len)
{
    *out = NULL;
    struct eng_tokenizer *t = calloc(1, sizeof(*t));
    struct loader l = {.t = t, .g = g, .err = err, .err_len = err_len};
    if (t == NULL)
        return fail(&l, ENG_ENOMEM, "tokenizer: out of memory");
    t->bos = t->eos = TOKEN_NONE;
    /* Without entropy the tables still work; only crafted collisions could slow the load. */
    if (getrandom(&t->merge_seed, sizeof(t->merge_seed), GRND_NONBLOCK) != (ssize_t)sizeof(t->merge_seed))
        t->merge_seed = (uintptr_t)t;
    int rc = load_names(&l);
    if (rc == ENG_OK)
        rc = load_tokens(&l);
    if (rc == ENG_OK)
        rc = load_special_ids(&l);
    if (rc == ENG_OK)
        rc = load_pieces(&l);
    if (rc == ENG_OK)
        rc = load_merges(&l);
    if (rc == ENG_OK)
        rc = load_split_list(&l, &t->added, false);
    if (rc == ENG_OK)
        rc = load_split_list(&l, &t->specials, true);
    if (rc == ENG_OK)
        rc = make_digest(&l);
    free(l.texts);
    free(l.by_text.slots);
    if (rc != ENG_OK) {
        eng_tokenizer_close(t);
        return rc;
    }
    *out = t;
    return ENG_OK;
}

void eng_tokenizer_close(struct eng_tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->types);
    free(t->ends);
    free(t->pieces);
    free(t->blob);
    free(t->merges);
    free(t->words.slots);
    free(t->added.ids);
    free(t->specials.ids);
    free(t);
}
