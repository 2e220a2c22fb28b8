/*
 * GGUF v2/v3 reader: a model file mapped read-only, checked whole before anything of it is handed out.
 *
 * Every number in the file is untrusted. fmt_gguf_open() refuses, with a one-line message that names the
 * field, whatever is cut, overlapping, oversized, duplicated or of an unknown type, so that callers may use
 * what the accessors return without further bounds checks. Values are typed strictly: asking for a u32 where
 * the file holds another type is FMT_ETYPE, never a conversion.
 *
 * Threads: an open file is immutable; any thread may read it. The mapping must outlive all pointers taken
 * from it. A file that is truncated by somebody else while mapped raises SIGBUS (docs/operations.md).
 */
#ifndef ISOTHERM_FORMATS_GGUF_H
#define ISOTHERM_FORMATS_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FMT_OK = 0,
    FMT_EIO = -1,     /* open, stat, mmap or read failed */
    FMT_EFORMAT = -2, /* the file breaks a rule of its format */
    FMT_ENOMEM = -3,
    FMT_ENOTFOUND = -4,    /* no such key or tensor */
    FMT_ETYPE = -5,        /* the key is there with another type */
    FMT_EUNSUPPORTED = -6, /* well formed, but a type or version we do not read */
};
const char *fmt_strerror(int code);

enum fmt_gguf_type {
    FMT_GGUF_U8 = 0,
    FMT_GGUF_I8,
    FMT_GGUF_U16,
    FMT_GGUF_I16,
    FMT_GGUF_U32,
    FMT_GGUF_I32,
    FMT_GGUF_F32,
    FMT_GGUF_BOOL,
    FMT_GGUF_STRING,
    FMT_GGUF_ARRAY,
    FMT_GGUF_U64,
    FMT_GGUF_I64,
    FMT_GGUF_F64,
};

/* A string inside the file: not NUL-terminated. */
struct fmt_str {
    const char *data;
    size_t len;
};

struct fmt_tensor {
    const char *name; /* NUL-terminated copy, owned by the file */
    uint32_t type;    /* enum fmt_type of quant.h, always a supported one */
    uint32_t n_dims;  /* 1..4 */
    uint64_t ne[4];   /* elements; ne[0] is contiguous; unused dims are 1 */
    const void
        *data; /* inside the mapping; aligned to general.alignment only, which may be 1: do not cast it */
    uint64_t bytes;
};

struct fmt_gguf;

/* Maps and checks `path`. On failure *out is NULL and err (err_len > 0) holds one printable line naming the
 * field, without the path. FMT_EIO, FMT_EFORMAT, FMT_EUNSUPPORTED, FMT_ENOMEM. Well-known keys (general.*,
 * tokenizer.ggml.*, block_count, ...) are checked against each other as well; a missing one is no error here.
 */
int fmt_gguf_open(const char *path, struct fmt_gguf **out, char *err, size_t err_len);
/* The same over caller's memory, which must stay valid and unchanged until close (tests and the fuzzer). */
int fmt_gguf_open_memory(const void *data, size_t len, struct fmt_gguf **out, char *err, size_t err_len);
void fmt_gguf_close(struct fmt_gguf *g);

uint32_t fmt_gguf_version(const struct fmt_gguf *g);
uint64_t fmt_gguf_file_bytes(const struct fmt_gguf *g);

/* Typed look-ups: 0, FMT_ENOTFOUND or FMT_ETYPE; *out is untouched on failure. */
int fmt_gguf_u32(const struct fmt_gguf *g, const char *key, uint32_t *out);
int fmt_gguf_u64(const struct fmt_gguf *g, const char *key, uint64_t *out);
int fmt_gguf_i32(const struct fmt_gguf *g, const char *key, int32_t *out);
int fmt_gguf_f32(const struct fmt_gguf *g, const char *key, float *out);
int fmt_gguf_bool(const struct fmt_gguf *g, const char *key, bool *out);
int fmt_gguf_str(const struct fmt_gguf *g, const char *key, struct fmt_str *out);

/* Arrays: element type and count, then elements by index (i < n, unchecked beyond an assert-free clamp to
 * the zero value). fmt_gguf_array_data gives the packed, possibly unaligned elements of a numeric array. */
int fmt_gguf_array(const struct fmt_gguf *g, const char *key, enum fmt_gguf_type *elem, uint64_t *n);
struct fmt_str fmt_gguf_array_str(const struct fmt_gguf *g, const char *key, uint64_t i);
const void *fmt_gguf_array_data(const struct fmt_gguf *g, const char *key);

/* Keys in file order, so that a loader can refuse what it does not know: NULL past the end. */
uint64_t fmt_gguf_n_keys(const struct fmt_gguf *g);
const char *fmt_gguf_key(const struct fmt_gguf *g, uint64_t i, enum fmt_gguf_type *type);

uint64_t fmt_gguf_n_tensors(const struct fmt_gguf *g);
const struct fmt_tensor *fmt_gguf_tensor_at(const struct fmt_gguf *g, uint64_t i);
const struct fmt_tensor *fmt_gguf_tensor(const struct fmt_gguf *g, const char *name); /* NULL: not there */

#endif
