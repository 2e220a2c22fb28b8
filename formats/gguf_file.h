/* What an open GGUF file is in memory: shared by gguf.c, which fills it, and gguf_get.c, which reads it. Not
 * for others. */
#ifndef ISOTHERM_FORMATS_GGUF_FILE_H
#define ISOTHERM_FORMATS_GGUF_FILE_H

#include "formats/gguf.h"

struct gguf_key {
    char *name;
    enum fmt_gguf_type type;
    enum fmt_gguf_type elem; /* arrays */
    uint64_t n;              /* array elements */
    const uint8_t *data;     /* value or first element */
    struct fmt_str string;   /* strings; lengths are kept, not read again, should the file change under us */
    struct fmt_str *strings; /* arrays of strings */
};

struct fmt_gguf {
    const uint8_t *data;
    size_t len;
    void *mapping; /* NULL: the memory is the caller's */
    uint32_t version;
    uint32_t alignment;
    uint64_t n_keys, n_tensors;
    struct gguf_key *keys;
    struct gguf_key **keys_by_name;
    struct fmt_tensor *tensors;
    uint64_t *offsets; /* as the file states them; only while opening */
    struct fmt_tensor **tensors_by_name;
};

#endif
