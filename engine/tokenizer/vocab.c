/*
 * Builds a tokenizer from a GGUF's tokenizer.ggml.* keys. Everything in them is untrusted: counts, types,
 * ids, duplicates, merges and scores are checked at load, so that bpe.c, spm.c and tokenizer.c need no
 * checks. Messages name the key (and the index) and never quote bytes of the file, except a name made of
 * plain ASCII.
 *
 * Here is what both kinds of vocabulary have; vocab_bytelevel.c and vocab_spm.c have the rest.
 */
#include "engine/tokenizer/loader.h"
#include "formats/gguf.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#define MAX_TOKENS (1u << 24)

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
    {"<end_of_turn>", true},
    {"<|im_start|>", false},
    {"<|start_header_id|>", false},
    {"<|end_header_id|>", false},
    {"<|begin_of_text|>", false},
    {"<start_of_turn>", false},
};

int loader_fail(struct loader *l, int code, const char *format, ...)
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

int loader_array(struct loader *l, const char *key, enum fmt_gguf_type want, const char *want_name,
                 uint64_t max, uint64_t *n)
{
    enum fmt_gguf_type elem;
    int rc = fmt_gguf_array(l->g, key, &elem, n);
    if (rc == FMT_ENOTFOUND)
        return loader_fail(l, ENG_EFORMAT, "%s is missing", key);
    if (rc != FMT_OK || elem != want)
        return loader_fail(l, ENG_EFORMAT, "%s: not an array of %s", key, want_name);
    if (*n > max)
        return loader_fail(l, ENG_EFORMAT, "%s: %llu entries, at most %llu are read", key,
                           (unsigned long long)*n, (unsigned long long)max);
    return ENG_OK;
}

/* A string of the file as an argument of %.*s: nothing where it is not plain ASCII, or long. */
static int shown_len(struct fmt_str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] <= ' ' || s.data[i] > '~')
            return 0;
    return s.len < 64 ? (int)s.len : 0;
}

static bool is(struct fmt_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static int load_names(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.pre";
    struct fmt_str model, pre;
    if (fmt_gguf_str(l->g, "tokenizer.ggml.model", &model) != FMT_OK)
        return loader_fail(l, ENG_EFORMAT, "tokenizer.ggml.model: no such string");
    l->t->sentencepiece = is(model, "llama");
    if (!l->t->sentencepiece && !is(model, "gpt2"))
        return loader_fail(l, ENG_EUNSUPPORTED,
                           "tokenizer.ggml.model: \"%.*s\" is not supported, \"gpt2\" and \"llama\" are",
                           shown_len(model), model.data);
    int rc = fmt_gguf_str(l->g, key, &pre);
    if (rc == FMT_ENOTFOUND && l->t->sentencepiece)
        return ENG_OK;
    if (rc != FMT_OK)
        return loader_fail(l, ENG_EUNSUPPORTED, "%s: no such string, the pre-tokenizer is unknown", key);
    if (!l->t->sentencepiece)
        l->t->pre = pretok_find(pre.data, pre.len);
    if (l->t->sentencepiece ? !is(pre, "default") : l->t->pre == NULL)
        return loader_fail(l, ENG_EUNSUPPORTED, "%s: pre-tokenizer \"%.*s\" is not supported%s", key,
                           shown_len(pre), pre.data, l->t->sentencepiece ? " with scores" : "");
    return ENG_OK;
}

static int load_tokens(struct loader *l)
{
    static const char key[] = "tokenizer.ggml.tokens", type_key[] = "tokenizer.ggml.token_type";
    struct eng_tokenizer *t = l->t;
    uint64_t n, n_types;
    int rc = loader_array(l, key, FMT_GGUF_STRING, "strings", MAX_TOKENS, &n);
    if (rc == ENG_OK)
        rc = loader_array(l, type_key, FMT_GGUF_I32, "i32", MAX_TOKENS, &n_types);
    if (rc != ENG_OK)
        return rc;
    if (n == 0)
        return loader_fail(l, ENG_EFORMAT, "%s: empty", key);
    if (n_types != n)
        return loader_fail(l, ENG_EFORMAT, "%s: %llu entries for %llu tokens", type_key,
                           (unsigned long long)n_types, (unsigned long long)n);
    t->n_vocab = (uint32_t)n;
    t->types = malloc(n);
    t->ends = calloc(n, sizeof(*t->ends));
    t->pieces = calloc(n, sizeof(*t->pieces));
    l->texts = calloc(n, sizeof(*l->texts));
    if (t->types == NULL || t->ends == NULL || t->pieces == NULL || l->texts == NULL ||
        text_table_init(&l->by_text, n, t->merge_seed) != ENG_OK)
        return loader_fail(l, ENG_ENOMEM, "%s: out of memory", key);

    const char *types = fmt_gguf_array_data(l->g, type_key);
    for (uint32_t i = 0; i < n; i++) {
        int32_t type;
        memcpy(&type, types + (size_t)i * sizeof(type), sizeof(type));
        if (type < TOKEN_NORMAL || type > (t->sentencepiece ? TOKEN_BYTE : TOKEN_UNUSED))
            return loader_fail(l, ENG_EFORMAT, "%s[%u]: %d is no type of such a vocabulary", type_key, i,
                               type);
        t->types[i] = (uint8_t)type;
        struct fmt_str s = fmt_gguf_array_str(l->g, key, i);
        l->texts[i] = (struct bytes){s.data, s.len};
        if (s.len == 0)
            continue; /* a hole in the vocabulary */
        uint32_t first = text_table_add(&l->by_text, l->texts, i);
        if (first != i)
            return loader_fail(l, ENG_EFORMAT, "%s[%u]: the same as token %u", key, i, first);
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
        return loader_fail(l, ENG_EFORMAT, "%s: not a u32", key);
    if (*id >= l->t->n_vocab)
        return loader_fail(l, ENG_EFORMAT, "%s: %u is not below the %u tokens", key, *id, l->t->n_vocab);
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
        if (i == 4)
            t->unknown = id;
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
    t->add_bos = t->pre == NULL || t->pre->add_bos;
    int rc = fmt_gguf_bool(l->g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    if (rc != FMT_OK && rc != FMT_ENOTFOUND)
        return loader_fail(l, ENG_EFORMAT, "tokenizer.ggml.add_bos_token: not a bool");
    if (t->bos == TOKEN_NONE)
        t->add_bos = false;
    return ENG_OK;
}

/* ---- special tokens, digest -------------------------------------------------------------------------- */

static int order_of_bytes(const struct bytes *x, const struct bytes *y)
{
    int order = memcmp(x->data, y->data, x->len < y->len ? x->len : y->len);
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

/* By bytes, then by id: a sort need not be stable. */
static int compare_pieces(const void *a, const void *b, void *pieces)
{
    const struct bytes *all = pieces;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    int order = order_of_bytes(&all[i], &all[j]);
    return order != 0 ? order : (i > j) - (i < j);
}

/* Of tokens that stand for the same bytes (a space and U+2581 do) the one with the lowest id stays. */
static void drop_equals(struct split_list *list, const struct bytes *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (n == 0 || order_of_bytes(&pieces[list->ids[n - 1]], &pieces[list->ids[i]]) != 0)
            list->ids[n++] = list->ids[i];
    list->n = n;
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
                return loader_fail(l, ENG_ENOMEM, "tokenizer.ggml.tokens: out of memory");
        }
    }
    qsort_r(list->ids, list->n, sizeof(*list->ids), compare_pieces, t->pieces);
    drop_equals(list, t->pieces);
    return ENG_OK;
}

static void digest_number(XXH3_state_t *state, uint64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    XXH3_128bits_update(state, le, sizeof(le));
}

static void digest_merges(struct loader *l, XXH3_state_t *state)
{
    uint64_t n_merges;
    enum fmt_gguf_type elem;
    fmt_gguf_array(l->g, "tokenizer.ggml.merges", &elem, &n_merges);
    digest_number(state, n_merges);
    for (uint64_t i = 0; i < n_merges; i++) {
        struct fmt_str s = fmt_gguf_array_str(l->g, "tokenizer.ggml.merges", i);
        digest_number(state, s.len);
        XXH3_128bits_update(state, s.data, s.len);
    }
}

/* Everything ids depend on, in the file's order; not the random seeds of the tables. */
static int make_digest(struct loader *l)
{
    struct eng_tokenizer *t = l->t;
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return loader_fail(l, ENG_ENOMEM, "tokenizer: out of memory");
    for (unsigned half = 0; half < 2; half++) {
        XXH3_128bits_reset_withSeed(state, half);
        digest_number(state, 1); /* version of this digest and of the rules of encoding */
        digest_number(state, t->sentencepiece ? UINT64_MAX : t->pre->kind);
        digest_number(state, t->sentencepiece ? t->unknown : t->pre->ignore_merges);
        digest_number(state, t->add_bos);
        digest_number(state, t->bos);
        digest_number(state, t->eos);
        digest_number(state, t->n_vocab);
        for (uint32_t i = 0; i < t->n_vocab; i++) {
            digest_number(state, (uint64_t)l->texts[i].len << 8 | t->types[i]);
            XXH3_128bits_update(state, l->texts[i].data, l->texts[i].len);
            if (t->sentencepiece)
                digest_number(state, t->ranks[i]);
        }
        if (!t->sentencepiece)
            digest_merges(l, state);
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
        return loader_fail(&l, ENG_ENOMEM, "tokenizer: out of memory");
    t->bos = t->eos = t->unknown = TOKEN_NONE;
    /* Without entropy the tables still work; only crafted collisions could slow the load. */
    if (getrandom(&t->merge_seed, sizeof(t->merge_seed), GRND_NONBLOCK) != (ssize_t)sizeof(t->merge_seed))
        t->merge_seed = (uintptr_t)t;
    int rc = load_names(&l);
    if (rc == ENG_OK)
        rc = load_tokens(&l);
    if (rc == ENG_OK)
        rc = load_special_ids(&l);
    if (rc == ENG_OK)
        rc = t->sentencepiece ? spm_load(&l) : bytelevel_load(&l);
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
    free(t->ranks);
    free(t->words.slots);
    free(t->added.ids);
    free(t->specials.ids);
    free(t);
}
