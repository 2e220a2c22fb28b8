/*
 * GGUF v2/v3 reader.
 *
 * One pass over the header with a cursor that never steps over the end; every count is bounded by what the
 * rest of the file could hold before anything is allocated for it, so memory stays proportional to the file.
 * Then duplicate names are found by sorting, and gguf_check.c compares the well-known keys with each other.
 *
 * Invariants once open: keys and tensor names are unique and hold no NUL; every string, array and tensor lies
 * inside the file; tensors follow each other in file order without overlap. Immutable, so any thread may
 * read.
 */
#include "formats/gguf.h"
#include "formats/gguf_check.h"
#include "formats/gguf_file.h"
#include "formats/quant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they lie in the file");

#define MAX_STRING_BYTES  (1ULL << 30)
#define MAX_KEY_BYTES     65535ULL
#define MAX_TENSOR_NAME   63ULL
#define MAX_ALIGNMENT     65536U
#define DEFAULT_ALIGNMENT 32U
/* The least a record can take: key length, one byte, type, one byte; name length, one byte, n_dims, one ne,
 * type, offset. */
#define MIN_KEY_RECORD    (8 + 1 + 4 + 1)
#define MIN_TENSOR_RECORD (8 + 1 + 4 + 8 + 4 + 8)

/* ---- the cursor --------------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *at;
    size_t left;
    char *err;
    size_t err_len;
};

__attribute__((format(printf, 3, 4))) static int fail(const struct cursor *c, int code, const char *format,
                                                      ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->err, c->err_len, format, args);
    va_end(args);
    return code;
}

/* Messages hold names from the file: keep them one printable line. */
static void make_printable(char *text)
{
    for (char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
    }
}

/* The next n bytes, or NULL when the file has fewer. */
static const uint8_t *take(struct cursor *c, uint64_t n)
{
    if (n > c->left)
        return NULL;
    const uint8_t *p = c->at;
    c->at += n;
    c->left -= (size_t)n;
    return p;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const uint8_t *p = take(c, sizeof *out);
    if (p != NULL)
        memcpy(out, p, sizeof *out);
    return p != NULL;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const uint8_t *p = take(c, sizeof *out);
    if (p != NULL)
        memcpy(out, p, sizeof *out);
    return p != NULL;
}

static size_t scalar_bytes(uint32_t type)
{
    switch (type) {
    case FMT_GGUF_U8:
    case FMT_GGUF_I8:
    case FMT_GGUF_BOOL:
        return 1;
    case FMT_GGUF_U16:
    case FMT_GGUF_I16:
        return 2;
    case FMT_GGUF_U32:
    case FMT_GGUF_I32:
    case FMT_GGUF_F32:
        return 4;
    case FMT_GGUF_U64:
    case FMT_GGUF_I64:
    case FMT_GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

/* A name as a C string of its own. what: "key" or "tensor", with its number, for messages. */
static int take_name(struct cursor *c, const char *what, uint64_t index, uint64_t max_bytes, char **out)
{
    uint64_t len;
    const uint8_t *bytes;
    if (!take_u64(c, &len))
        return fail(c, FMT_EFORMAT, "%s %llu: the file ends in its name length", what,
                    (unsigned long long)index);
    if (len == 0 || len > max_bytes)
        return fail(c, FMT_EFORMAT, "%s %llu: name length %llu is not in 1..%llu", what,
                    (unsigned long long)index, (unsigned long long)len, (unsigned long long)max_bytes);
    bytes = take(c, len);
    if (bytes == NULL)
        return fail(c, FMT_EFORMAT, "%s %llu: the file ends in its name", what, (unsigned long long)index);
    if (memchr(bytes, 0, (size_t)len) != NULL)
        return fail(c, FMT_EFORMAT, "%s %llu: NUL in its name", what, (unsigned long long)index);
    *out = strndup((const char *)bytes, (size_t)len);
    return *out != NULL ? FMT_OK
                        : fail(c, FMT_ENOMEM, "%s %llu: out of memory", what, (unsigned long long)index);
}

/* Length and bytes of a string value. */
static int take_string(struct cursor *c, const char *key, struct fmt_str *out)
{
    const uint8_t *bytes = NULL;
    uint64_t len;
    if (!take_u64(c, &len))
        return fail(c, FMT_EFORMAT, "key '%s': the file ends in a string length", key);
    if (len <= MAX_STRING_BYTES)
        bytes = take(c, len);
    if (bytes == NULL)
        return fail(c, FMT_EFORMAT, "key '%s': string length %llu is beyond the end of the file", key,
                    (unsigned long long)len);
    *out = (struct fmt_str){(const char *)bytes, (size_t)len};
    return FMT_OK;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static int check_bools(const struct cursor *c, const struct gguf_key *k, const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] > 1)
            return fail(c, FMT_EFORMAT, "key '%s': bool with value %u", k->name, bytes[i]);
    }
    return FMT_OK;
}

static int take_array(struct cursor *c, struct gguf_key *k)
{
    uint32_t elem;
    if (!take_u32(c, &elem) || !take_u64(c, &k->n))
        return fail(c, FMT_EFORMAT, "key '%s': the file ends in its array header", k->name);
    if (elem == FMT_GGUF_ARRAY)
        return fail(c, FMT_EFORMAT, "key '%s': array of arrays", k->name);
    if (elem > FMT_GGUF_F64)
        return fail(c, FMT_EFORMAT, "key '%s': unknown array element type %u", k->name, elem);
    k->elem = (enum fmt_gguf_type)elem;
    k->data = c->at;

    if (elem != FMT_GGUF_STRING) {
        size_t each = scalar_bytes(elem);
        if (k->n > c->left / each)
            return fail(c, FMT_EFORMAT, "key '%s': array length %llu is beyond the end of the file", k->name,
                        (unsigned long long)k->n);
        take(c, k->n * each);
        return elem == FMT_GGUF_BOOL ? check_bools(c, k, k->data, k->n) : FMT_OK;
    }

    if (k->n > c->left / sizeof(uint64_t))
        return fail(c, FMT_EFORMAT, "key '%s': array length %llu is beyond the end of the file", k->name,
                    (unsigned long long)k->n);
    if (k->n == 0)
        return FMT_OK;
    k->strings = calloc((size_t)k->n, sizeof *k->strings);
    if (k->strings == NULL)
        return fail(c, FMT_ENOMEM, "key '%s': out of memory for %llu strings", k->name,
                    (unsigned long long)k->n);
    for (uint64_t i = 0; i < k->n; i++) {
        int rc = take_string(c, k->name, &k->strings[i]);
        if (rc != FMT_OK)
            return rc;
    }
    return FMT_OK;
}

static int take_key(struct cursor *c, uint64_t index, struct gguf_key *k)
{
    uint32_t type;
    int rc = take_name(c, "key", index, MAX_KEY_BYTES, &k->name);
    if (rc != FMT_OK)
        return rc;
    if (!take_u32(c, &type))
        return fail(c, FMT_EFORMAT, "key '%s': the file ends in its type", k->name);
    if (type > FMT_GGUF_F64)
        return fail(c, FMT_EFORMAT, "key '%s': unknown value type %u", k->name, type);
    k->type = (enum fmt_gguf_type)type;

    switch (k->type) {
    case FMT_GGUF_ARRAY:
        return take_array(c, k);
    case FMT_GGUF_STRING:
        return take_string(c, k->name, &k->string);
    default:
        k->data = take(c, scalar_bytes(type));
        if (k->data == NULL)
            return fail(c, FMT_EFORMAT, "key '%s': the file ends in its value", k->name);
        return k->type == FMT_GGUF_BOOL ? check_bools(c, k, k->data, 1) : FMT_OK;
    }
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(struct gguf_key *const *)a)->name, (*(struct gguf_key *const *)b)->name);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(struct fmt_tensor *const *)a)->name, (*(struct fmt_tensor *const *)b)->name);
}

static int take_keys(struct fmt_gguf *g, struct cursor *c)
{
    g->keys = calloc((size_t)g->n_keys + 1, sizeof *g->keys);
    g->keys_by_name = calloc((size_t)g->n_keys + 1, sizeof(struct gguf_key *));
    if (g->keys == NULL || g->keys_by_name == NULL)
        return fail(c, FMT_ENOMEM, "n_kv: out of memory for %llu keys", (unsigned long long)g->n_keys);
    for (uint64_t i = 0; i < g->n_keys; i++) {
        int rc = take_key(c, i, &g->keys[i]);
        if (rc != FMT_OK)
            return rc;
        g->keys_by_name[i] = &g->keys[i];
    }
    qsort(g->keys_by_name, (size_t)g->n_keys, sizeof(struct gguf_key *), compare_keys);
    for (uint64_t i = 1; i < g->n_keys; i++) {
        if (compare_keys(&g->keys_by_name[i - 1], &g->keys_by_name[i]) == 0)
            return fail(c, FMT_EFORMAT, "key '%s': given twice", g->keys_by_name[i]->name);
    }

    int rc = fmt_gguf_u32(g, "general.alignment", &g->alignment);
    if (rc == FMT_ENOTFOUND) {
        g->alignment = DEFAULT_ALIGNMENT;
        return FMT_OK;
    }
    if (rc != FMT_OK)
        return fail(c, FMT_EFORMAT, "key 'general.alignment': not a u32");
    if (g->alignment == 0 || g->alignment > MAX_ALIGNMENT || (g->alignment & (g->alignment - 1)) != 0)
        return fail(c, FMT_EFORMAT, "key 'general.alignment': %u is not a power of two in 1..%u",
                    g->alignment, MAX_ALIGNMENT);
    return FMT_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

static int take_tensor(struct cursor *c, uint64_t index, struct fmt_tensor *t, uint64_t *offset)
{
    char *name = NULL;
    int rc = take_name(c, "tensor", index, MAX_TENSOR_NAME, &name);
    t->name = name;
    if (rc != FMT_OK)
        return rc;
    if (!take_u32(c, &t->n_dims))
        return fail(c, FMT_EFORMAT, "tensor '%s': the file ends in n_dims", name);
    if (t->n_dims < 1 || t->n_dims > 4)
        return fail(c, FMT_EFORMAT, "tensor '%s': n_dims %u is not in 1..4", name, t->n_dims);

    uint64_t elements = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims)
            continue;
        if (!take_u64(c, &t->ne[d]))
            return fail(c, FMT_EFORMAT, "tensor '%s': the file ends in ne[%u]", name, d);
        if (t->ne[d] == 0)
            return fail(c, FMT_EFORMAT, "tensor '%s': ne[%u] is 0", name, d);
        if (__builtin_mul_overflow(elements, t->ne[d], &elements) || elements > INT64_MAX)
            return fail(c, FMT_EFORMAT, "tensor '%s': ne[%u] %llu makes too many elements", name, d,
                        (unsigned long long)t->ne[d]);
    }
    if (!take_u32(c, &t->type))
        return fail(c, FMT_EFORMAT, "tensor '%s': the file ends in its type", name);
    const struct fmt_type_info *info = fmt_type_info(t->type);
    if (info == NULL)
        return fail(c, FMT_EUNSUPPORTED, "tensor '%s': type %u (%s) is not supported", name, t->type,
                    fmt_type_name(t->type));
    if (t->ne[0] % info->block_elems != 0)
        return fail(c, FMT_EFORMAT, "tensor '%s': ne[0] %llu is not a multiple of %u, the block of %s", name,
                    (unsigned long long)t->ne[0], info->block_elems, info->name);
    t->bytes = fmt_type_bytes(t->type, elements);
    if (t->bytes == 0 || t->bytes > INT64_MAX)
        return fail(c, FMT_EFORMAT, "tensor '%s': its size overflows", name);
    if (!take_u64(c, offset))
        return fail(c, FMT_EFORMAT, "tensor '%s': the file ends in its offset", name);
    return FMT_OK;
}

/* x rounded up to the alignment; false on overflow. */
static bool padded(uint64_t x, uint32_t alignment, uint64_t *out)
{
    if (__builtin_add_overflow(x, (uint64_t)alignment - 1, out))
        return false;
    *out &= ~((uint64_t)alignment - 1);
    return true;
}

/* Tensor data follows the header in the order of the records, each padded to the alignment: any other offset
 * is a hole or an overlap and is refused. */
static int place_tensors(struct fmt_gguf *g, const struct cursor *c)
{
    uint64_t start = 0, running = 0;
    if (g->n_tensors == 0)
        return FMT_OK;
    if (!padded((uint64_t)(c->at - g->data), g->alignment, &start) || start > g->len)
        return fail(c, FMT_EFORMAT, "tensor data: the file ends before it starts");

    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct fmt_tensor *t = &g->tensors[i];
        if (g->offsets[i] != running)
            return fail(c, FMT_EFORMAT, "tensor '%s': offset %llu, expected %llu", t->name,
                        (unsigned long long)g->offsets[i], (unsigned long long)running);
        uint64_t room = g->len - start;
        if (running > room || t->bytes > room - running)
            return fail(c, FMT_EFORMAT,
                        "tensor '%s': %llu bytes at offset %llu are beyond the end of the file", t->name,
                        (unsigned long long)t->bytes, (unsigned long long)running);
        t->data = g->data + start + running;
        if (!padded(running + t->bytes, g->alignment, &running))
            return fail(c, FMT_EFORMAT, "tensor '%s': its size overflows", t->name);
    }
    return FMT_OK;
}

static int take_tensors(struct fmt_gguf *g, struct cursor *c)
{
    g->tensors = calloc((size_t)g->n_tensors + 1, sizeof *g->tensors);
    g->tensors_by_name = calloc((size_t)g->n_tensors + 1, sizeof(struct fmt_tensor *));
    g->offsets = calloc((size_t)g->n_tensors + 1, sizeof *g->offsets);
    if (g->tensors == NULL || g->tensors_by_name == NULL || g->offsets == NULL)
        return fail(c, FMT_ENOMEM, "n_tensors: out of memory for %llu tensors",
                    (unsigned long long)g->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        int rc = take_tensor(c, i, &g->tensors[i], &g->offsets[i]);
        if (rc != FMT_OK)
            return rc;
        g->tensors_by_name[i] = &g->tensors[i];
    }
    qsort(g->tensors_by_name, (size_t)g->n_tensors, sizeof(struct fmt_tensor *), compare_tensors);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        if (compare_tensors(&g->tensors_by_name[i - 1], &g->tensors_by_name[i]) == 0)
            return fail(c, FMT_EFORMAT, "tensor '%s': given twice", g->tensors_by_name[i]->name);
    }
    return place_tensors(g, c);
}

/* ---- open and close ----------------------------------------------------------------------------------- */

static int parse(struct fmt_gguf *g, struct cursor *c)
{
    const uint8_t *magic = take(c, 4);
    if (magic == NULL || memcmp(magic, "GGUF", 4) != 0)
        return fail(c, FMT_EFORMAT, "magic: not a GGUF file");
    if (!take_u32(c, &g->version))
        return fail(c, FMT_EFORMAT, "version: the file ends in it");
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return fail(c, FMT_EUNSUPPORTED, "version: the file has the other byte order");
    if (g->version != 2 && g->version != 3)
        return fail(c, FMT_EUNSUPPORTED, "version: %u is not supported, only 2 and 3 are", g->version);
    if (!take_u64(c, &g->n_tensors))
        return fail(c, FMT_EFORMAT, "n_tensors: the file ends in it");
    if (!take_u64(c, &g->n_keys))
        return fail(c, FMT_EFORMAT, "n_kv: the file ends in it");
    if (g->n_tensors > c->left / MIN_TENSOR_RECORD)
        return fail(c, FMT_EFORMAT, "n_tensors: %llu do not fit in the file",
                    (unsigned long long)g->n_tensors);
    if (g->n_keys > c->left / MIN_KEY_RECORD)
        return fail(c, FMT_EFORMAT, "n_kv: %llu do not fit in the file", (unsigned long long)g->n_keys);

    int rc = take_keys(g, c);
    if (rc == FMT_OK)
        rc = take_tensors(g, c);
    if (rc == FMT_OK)
        rc = fmt_gguf_check(g, c->err, c->err_len);
    return rc;
}

/* Takes over `mapping` (may be NULL), on failure too. */
static int open_bytes(const void *data, size_t len, void *mapping, struct fmt_gguf **out, char *err,
                      size_t err_len)
{
    struct cursor c = {data, len, err, err_len};
    struct fmt_gguf *g = calloc(1, sizeof *g);
    int rc;
    if (g == NULL) {
        if (mapping != NULL)
            munmap(mapping, len);
        return fail(&c, FMT_ENOMEM, "out of memory");
    }
    g->data = data;
    g->len = len;
    g->mapping = mapping;
    rc = parse(g, &c);
    free(g->offsets);
    g->offsets = NULL;
    if (rc != FMT_OK) {
        make_printable(err);
        fmt_gguf_close(g);
        return rc;
    }
    *out = g;
    return FMT_OK;
}

int fmt_gguf_open_memory(const void *data, size_t len, struct fmt_gguf **out, char *err, size_t err_len)
{
    *out = NULL;
    err[0] = '\0';
    return open_bytes(data, len, NULL, out, err, err_len);
}

int fmt_gguf_open(const char *path, struct fmt_gguf **out, char *err, size_t err_len)
{
    struct cursor none = {NULL, 0, err, err_len};
    struct stat before, after;
    void *mapping;
    int rc;

    *out = NULL;
    err[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block us before fstat */
    if (fd < 0)
        return fail(&none, FMT_EIO, "open: %s", strerror(errno));
    if (fstat(fd, &before) != 0) {
        rc = fail(&none, FMT_EIO, "stat: %s", strerror(errno));
        goto out;
    }
    if (!S_ISREG(before.st_mode)) {
        rc = fail(&none, FMT_EIO, "open: not a regular file");
        goto out;
    }
    if (before.st_size == 0 || (uint64_t)before.st_size > SIZE_MAX) {
        rc = fail(&none, FMT_EFORMAT, "magic: the file is %s",
                  before.st_size == 0 ? "empty" : "too large to map");
        goto out;
    }
    mapping = mmap(NULL, (size_t)before.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED) {
        rc = fail(&none, FMT_EIO, "mmap: %s", strerror(errno));
        goto out;
    }
    rc = open_bytes(mapping, (size_t)before.st_size, mapping, out, err, err_len);
    if (rc != FMT_OK)
        goto out;
    if (fstat(fd, &after) != 0 || after.st_size != before.st_size) {
        rc = fail(&none, FMT_EIO, "size: the file changed while it was read");
        fmt_gguf_close(*out);
        *out = NULL;
    }
out:
    close(fd);
    return rc;
}

void fmt_gguf_close(struct fmt_gguf *g)
{
    if (g == NULL)
        return;
    for (uint64_t i = 0; g->keys != NULL && i < g->n_keys; i++) {
        free(g->keys[i].name);
        free(g->keys[i].strings);
    }
    for (uint64_t i = 0; g->tensors != NULL && i < g->n_tensors; i++)
        free((char *)g->tensors[i].name);
    free(g->keys);
    free(g->keys_by_name);
    free(g->tensors);
    free(g->tensors_by_name);
    if (g->mapping != NULL)
        munmap(g->mapping, g->len);
    free(g);
}
