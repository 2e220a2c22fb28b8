/*
 * The well-known keys of a GGUF file: exact types, and counts that must agree with each other.
 *
 * Readers of these keys elsewhere index one table with values of another (token ids into the embedding, types
 * beside tokens), so a lie between two of them is refused here, once, before anybody trusts them. Pure
 * functions over an open file.
 */
#include "formats/gguf_check.h"
#include "formats/gguf.h"

#include <stdio.h>
#include <string.h>

#define MAX_BLOCKS       1024U
#define MAX_ARCHITECTURE 64U

struct check {
    const struct fmt_gguf *g;
    char *err;
    size_t err_len;
};

/* One line for the person who gave us the file; the value is FMT_EFORMAT. */
#define refuse(c, ...) (snprintf((c)->err, (c)->err_len, __VA_ARGS__), FMT_EFORMAT)

static const struct {
    const char *key;
    enum fmt_gguf_type type;
    enum fmt_gguf_type elem; /* arrays */
} known_keys[] = {
    {"general.architecture", FMT_GGUF_STRING, 0},
    {"general.name", FMT_GGUF_STRING, 0},
    {"tokenizer.ggml.model", FMT_GGUF_STRING, 0},
    {"tokenizer.ggml.pre", FMT_GGUF_STRING, 0},
    {"tokenizer.chat_template", FMT_GGUF_STRING, 0},
    {"tokenizer.ggml.tokens", FMT_GGUF_ARRAY, FMT_GGUF_STRING},
    {"tokenizer.ggml.scores", FMT_GGUF_ARRAY, FMT_GGUF_F32},
    {"tokenizer.ggml.token_type", FMT_GGUF_ARRAY, FMT_GGUF_I32},
    {"tokenizer.ggml.merges", FMT_GGUF_ARRAY, FMT_GGUF_STRING},
    {"tokenizer.ggml.add_bos_token", FMT_GGUF_BOOL, 0},
    {"tokenizer.ggml.add_eos_token", FMT_GGUF_BOOL, 0},
    {"tokenizer.ggml.add_space_prefix", FMT_GGUF_BOOL, 0},
};

static const char *const type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};

static int check_types(const struct check *c)
{
    enum fmt_gguf_type type, elem;
    uint64_t n;
    for (uint64_t i = 0; i < fmt_gguf_n_keys(c->g); i++) {
        const char *key = fmt_gguf_key(c->g, i, &type);
        for (size_t j = 0; j < sizeof known_keys / sizeof known_keys[0]; j++) {
            if (strcmp(key, known_keys[j].key) != 0)
                continue;
            if (type != known_keys[j].type)
                return refuse(c, "key '%s': type %s, expected %s", known_keys[j].key, type_names[type],
                              type_names[known_keys[j].type]);
            if (type != FMT_GGUF_ARRAY)
                continue;
            fmt_gguf_array(c->g, key, &elem, &n);
            if (elem != known_keys[j].elem)
                return refuse(c, "key '%s': array of %s, expected %s", known_keys[j].key, type_names[elem],
                              type_names[known_keys[j].elem]);
        }
    }
    return FMT_OK;
}

/* The architecture is part of other keys' names and of messages: letters, digits, '-', '_' and '.' only. */
static int read_architecture(const struct check *c, char out[MAX_ARCHITECTURE])
{
    struct fmt_str s;
    out[0] = '\0';
    if (fmt_gguf_str(c->g, "general.architecture", &s) != FMT_OK)
        return FMT_OK;
    if (s.len == 0 || s.len >= MAX_ARCHITECTURE)
        return refuse(c, "key 'general.architecture': length %zu is not in 1..%u", s.len,
                      MAX_ARCHITECTURE - 1);
    for (size_t i = 0; i < s.len; i++) {
        char ch = s.data[i];
        bool good = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
                    ch == '-' || ch == '_' || ch == '.';
        if (!good)
            return refuse(c, "key 'general.architecture': not a name");
    }
    memcpy(out, s.data, s.len);
    out[s.len] = '\0';
    return FMT_OK;
}

/* {arch}.NAME when it is there: a u32 in 1..max. *value is 0 when it is missing. */
static int read_dimension(const struct check *c, const char *arch, const char *name, uint32_t max,
                          uint32_t *value)
{
    char key[MAX_ARCHITECTURE + 64];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    *value = 0;
    int rc = fmt_gguf_u32(c->g, key, value);
    if (rc == FMT_ENOTFOUND)
        return FMT_OK;
    if (rc != FMT_OK)
        return refuse(c, "key '%s': not a u32", key);
    if (*value == 0 || *value > max)
        return refuse(c, "key '%s': %u is not in 1..%u", key, *value, max);
    return FMT_OK;
}

/* Two pieces with a space between them. */
static int check_merges(const struct check *c)
{
    enum fmt_gguf_type elem;
    uint64_t n = 0;
    if (fmt_gguf_array(c->g, "tokenizer.ggml.merges", &elem, &n) != FMT_OK)
        return FMT_OK;
    if (n > INT32_MAX)
        return refuse(c, "key 'tokenizer.ggml.merges': %llu merges are too many", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) {
        struct fmt_str s = fmt_gguf_array_str(c->g, "tokenizer.ggml.merges", i);
        if (s.len < 3 || memchr(s.data + 1, ' ', s.len - 2) == NULL)
            return refuse(c, "key 'tokenizer.ggml.merges': merge %llu is not two pieces",
                          (unsigned long long)i);
    }
    return FMT_OK;
}

static bool is_special_id_key(const char *key)
{
    static const char prefix[] = "tokenizer.ggml.", suffix[] = "_token_id";
    size_t len = strlen(key);
    return len > sizeof prefix + sizeof suffix - 2 && memcmp(key, prefix, sizeof prefix - 1) == 0 &&
           strcmp(key + len - (sizeof suffix - 1), suffix) == 0;
}

static int check_special_ids(const struct check *c, uint64_t n_tokens)
{
    enum fmt_gguf_type type;
    for (uint64_t i = 0; i < fmt_gguf_n_keys(c->g); i++) {
        const char *key = fmt_gguf_key(c->g, i, &type);
        uint32_t id;
        if (!is_special_id_key(key))
            continue;
        if (fmt_gguf_u32(c->g, key, &id) != FMT_OK)
            return refuse(c, "key '%.80s': type %s, expected u32", key, type_names[type]);
        if (id >= n_tokens)
            return refuse(c, "key '%.80s': %u is beyond the %llu tokens", key, id,
                          (unsigned long long)n_tokens);
    }
    return FMT_OK;
}

/* One row a token, one column a hidden dimension, where these are known. */
static int check_rows(const struct check *c, const char *name, uint64_t n_tokens, uint32_t hidden)
{
    const struct fmt_tensor *t = fmt_gguf_tensor(c->g, name);
    if (t == NULL)
        return FMT_OK;
    if (t->n_dims != 2)
        return refuse(c, "tensor '%s': n_dims %u, expected 2", name, t->n_dims);
    if (t->ne[1] != n_tokens)
        return refuse(c, "tensor '%s': %llu rows for %llu tokens", name, (unsigned long long)t->ne[1],
                      (unsigned long long)n_tokens);
    if (hidden != 0 && t->ne[0] != hidden)
        return refuse(c, "tensor '%s': ne[0] %llu, but embedding_length is %u", name,
                      (unsigned long long)t->ne[0], hidden);
    return FMT_OK;
}

static int check_vocabulary(const struct check *c, const char *arch, uint32_t vocab_size, uint32_t hidden)
{
    static const char *const beside_tokens[] = {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    enum fmt_gguf_type elem;
    uint64_t n_tokens = 0, n = 0;
    int rc;

    if (fmt_gguf_array(c->g, "tokenizer.ggml.tokens", &elem, &n_tokens) != FMT_OK)
        return FMT_OK;
    if (n_tokens == 0 || n_tokens > INT32_MAX)
        return refuse(c, "key 'tokenizer.ggml.tokens': %llu tokens", (unsigned long long)n_tokens);
    if (vocab_size != 0 && vocab_size != n_tokens)
        return refuse(c, "key '%s.vocab_size': %u for %llu tokens", arch, vocab_size,
                      (unsigned long long)n_tokens);
    for (size_t i = 0; i < sizeof beside_tokens / sizeof beside_tokens[0]; i++) {
        if (fmt_gguf_array(c->g, beside_tokens[i], &elem, &n) == FMT_OK && n != n_tokens)
            return refuse(c, "key '%s': %llu entries for %llu tokens", beside_tokens[i],
                          (unsigned long long)n, (unsigned long long)n_tokens);
    }
    rc = check_merges(c);
    if (rc == FMT_OK)
        rc = check_special_ids(c, n_tokens);
    if (rc == FMT_OK)
        rc = check_rows(c, "token_embd.weight", n_tokens, hidden);
    if (rc == FMT_OK)
        rc = check_rows(c, "output.weight", n_tokens, hidden);
    return rc;
}

int fmt_gguf_check(const struct fmt_gguf *g, char *err, size_t err_len)
{
    struct check c = {g, err, err_len};
    char arch[MAX_ARCHITECTURE];
    uint32_t blocks, vocab_size, hidden, context;

    int rc = check_types(&c);
    if (rc == FMT_OK)
        rc = read_architecture(&c, arch);
    if (rc == FMT_OK)
        rc = read_dimension(&c, arch, "block_count", MAX_BLOCKS, &blocks);
    if (rc == FMT_OK)
        rc = read_dimension(&c, arch, "context_length", INT32_MAX, &context);
    if (rc == FMT_OK)
        rc = read_dimension(&c, arch, "embedding_length", INT32_MAX, &hidden);
    if (rc == FMT_OK)
        rc = read_dimension(&c, arch, "vocab_size", INT32_MAX, &vocab_size);
    if (rc == FMT_OK)
        rc = check_vocabulary(&c, arch, vocab_size, hidden);
    return rc;
}
