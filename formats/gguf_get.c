/*
 * What an open GGUF file answers. Names are found by halving the lists that gguf.c has sorted; nothing here
 * changes the file, so any thread may ask.
 */
#include "formats/gguf_file.h"

#include <string.h>

const char *fmt_strerror(int code)
{
    switch (code) {
    case FMT_OK:
        return "ok";
    case FMT_EIO:
        return "cannot read the file";
    case FMT_EFORMAT:
        return "the file breaks a rule of its format";
    case FMT_ENOMEM:
        return "out of memory";
    case FMT_ENOTFOUND:
        return "not found";
    case FMT_ETYPE:
        return "wrong type";
    case FMT_EUNSUPPORTED:
        return "not supported";
    default:
        return "unknown error";
    }
}

uint32_t fmt_gguf_version(const struct fmt_gguf *g)
{
    return g->version;
}

uint64_t fmt_gguf_file_bytes(const struct fmt_gguf *g)
{
    return g->len;
}

static const struct gguf_key *find_key(const struct fmt_gguf *g, const char *name)
{
    uint64_t low = 0, high = g->n_keys;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(name, g->keys_by_name[middle]->name);
        if (order == 0)
            return g->keys_by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static int get_scalar(const struct fmt_gguf *g, const char *key, enum fmt_gguf_type type, void *out,
                      size_t size)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL)
        return FMT_ENOTFOUND;
    if (k->type != type)
        return FMT_ETYPE;
    memcpy(out, k->data, size);
    return FMT_OK;
}

int fmt_gguf_u32(const struct fmt_gguf *g, const char *key, uint32_t *out)
{
    return get_scalar(g, key, FMT_GGUF_U32, out, sizeof *out);
}

int fmt_gguf_u64(const struct fmt_gguf *g, const char *key, uint64_t *out)
{
    return get_scalar(g, key, FMT_GGUF_U64, out, sizeof *out);
}

int fmt_gguf_i32(const struct fmt_gguf *g, const char *key, int32_t *out)
{
    return get_scalar(g, key, FMT_GGUF_I32, out, sizeof *out);
}

int fmt_gguf_f32(const struct fmt_gguf *g, const char *key, float *out)
{
    return get_scalar(g, key, FMT_GGUF_F32, out, sizeof *out);
}

int fmt_gguf_bool(const struct fmt_gguf *g, const char *key, bool *out)
{
    uint8_t byte;
    int rc = get_scalar(g, key, FMT_GGUF_BOOL, &byte, sizeof byte);
    if (rc == FMT_OK)
        *out = byte != 0;
    return rc;
}

int fmt_gguf_str(const struct fmt_gguf *g, const char *key, struct fmt_str *out)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL)
        return FMT_ENOTFOUND;
    if (k->type != FMT_GGUF_STRING)
        return FMT_ETYPE;
    *out = k->string;
    return FMT_OK;
}

int fmt_gguf_array(const struct fmt_gguf *g, const char *key, enum fmt_gguf_type *elem, uint64_t *n)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL)
        return FMT_ENOTFOUND;
    if (k->type != FMT_GGUF_ARRAY)
        return FMT_ETYPE;
    *elem = k->elem;
    *n = k->n;
    return FMT_OK;
}

struct fmt_str fmt_gguf_array_str(const struct fmt_gguf *g, const char *key, uint64_t i)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->strings == NULL || i >= k->n)
        return (struct fmt_str){"", 0};
    return k->strings[i];
}

const void *fmt_gguf_array_data(const struct fmt_gguf *g, const char *key)
{
    const struct gguf_key *k = find_key(g, key);
    if (k == NULL || k->type != FMT_GGUF_ARRAY || k->elem == FMT_GGUF_STRING)
        return NULL;
    return k->data;
}

uint64_t fmt_gguf_n_keys(const struct fmt_gguf *g)
{
    return g->n_keys;
}

const char *fmt_gguf_key(const struct fmt_gguf *g, uint64_t i, enum fmt_gguf_type *type)
{
    if (i >= g->n_keys)
        return NULL;
    *type = g->keys[i].type;
    return g->keys[i].name;
}

uint64_t fmt_gguf_n_tensors(const struct fmt_gguf *g)
{
    return g->n_tensors;
}

const struct fmt_tensor *fmt_gguf_tensor_at(const struct fmt_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct fmt_tensor *fmt_gguf_tensor(const struct fmt_gguf *g, const char *name)
{
    uint64_t low = 0, high = g->n_tensors;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(name, g->tensors_by_name[middle]->name);
        if (order == 0)
            return g->tensors_by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
