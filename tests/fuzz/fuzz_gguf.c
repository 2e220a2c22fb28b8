/*
 * The GGUF reader on any bytes. What opens is walked through every accessor; a promise of formats/gguf.h that
 * does not hold traps: tensors inside the file, in order, of the stated size; names found by look-up; typed
 * values or a refusal.
 */
#include "formats/gguf.h"
#include "formats/quant.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void require(int promise)
{
    if (!promise)
        __builtin_trap();
}

static void read_bytes(const void *from, uint64_t n)
{
    const uint8_t *p = from;
    unsigned sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += p[i];
    sink += sum;
}

static void walk_array(const struct fmt_gguf *g, const char *key)
{
    static const size_t elem_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    enum fmt_gguf_type elem;
    uint64_t n;
    require(fmt_gguf_array(g, key, &elem, &n) == FMT_OK);
    require(elem != FMT_GGUF_ARRAY);
    if (elem != FMT_GGUF_STRING) {
        const void *elements = fmt_gguf_array_data(g, key);
        require(elements != NULL && fmt_gguf_array_str(g, key, 0).len == 0);
        read_bytes(elements, n * elem_bytes[elem]);
        return;
    }
    require(fmt_gguf_array_data(g, key) == NULL);
    for (uint64_t i = 0; i < n; i++) {
        struct fmt_str s = fmt_gguf_array_str(g, key, i);
        read_bytes(s.data, s.len);
    }
    require(fmt_gguf_array_str(g, key, n).len == 0);
}

static void walk_key(const struct fmt_gguf *g, const char *key, enum fmt_gguf_type type)
{
    uint32_t u32 = 0;
    uint64_t u64 = 0;
    int32_t i32 = 0;
    float f32 = 0;
    bool flag = false;
    struct fmt_str s = {"", 0};
    require((fmt_gguf_u32(g, key, &u32) == FMT_OK) == (type == FMT_GGUF_U32));
    require((fmt_gguf_u64(g, key, &u64) == FMT_OK) == (type == FMT_GGUF_U64));
    require((fmt_gguf_i32(g, key, &i32) == FMT_OK) == (type == FMT_GGUF_I32));
    require((fmt_gguf_f32(g, key, &f32) == FMT_OK) == (type == FMT_GGUF_F32));
    require((fmt_gguf_bool(g, key, &flag) == FMT_OK) == (type == FMT_GGUF_BOOL));
    require((fmt_gguf_str(g, key, &s) == FMT_OK) == (type == FMT_GGUF_STRING));
    read_bytes(s.data, s.len);
    if (type == FMT_GGUF_ARRAY)
        walk_array(g, key);
}

static void walk_tensors(const struct fmt_gguf *g, const uint8_t *file, size_t size)
{
    float values[256], scale[16], min[16];
    int8_t codes[256];
    const uint8_t *end = file;
    for (uint64_t i = 0; i < fmt_gguf_n_tensors(g); i++) {
        const struct fmt_tensor *t = fmt_gguf_tensor_at(g, i);
        const struct fmt_type_info *info = fmt_type_info(t->type);
        const uint8_t *start = t->data;
        require(fmt_gguf_tensor(g, t->name) == t && info != NULL);
        require(start >= end && t->bytes > 0 && t->bytes <= (uint64_t)(file + size - start));
        require(t->bytes == fmt_type_bytes(t->type, t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]));
        end = start + t->bytes;
        require(fmt_dequantize(t->type, end - info->block_bytes, info->block_elems, values) == FMT_OK);
        if (info->group_elems != 0)
            require(fmt_row_codes(t->type, start, info->block_elems, codes, scale, min) == FMT_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fmt_gguf *g;
    enum fmt_gguf_type type;
    char err[160];
    int rc = fmt_gguf_open_memory(data, size, &g, err, sizeof err);
    if (rc != FMT_OK) {
        require(g == NULL && err[0] != '\0' && strlen(err) < sizeof err);
        return 0;
    }
    require(fmt_gguf_file_bytes(g) == size);
    for (uint64_t i = 0; i < fmt_gguf_n_keys(g); i++) {
        const char *key = fmt_gguf_key(g, i, &type);
        require(key != NULL);
        walk_key(g, key, type);
    }
    require(fmt_gguf_key(g, fmt_gguf_n_keys(g), &type) == NULL);
    require(fmt_gguf_tensor_at(g, fmt_gguf_n_tensors(g)) == NULL);
    walk_tensors(g, data, size);
    fmt_gguf_close(g);
    return 0;
}
