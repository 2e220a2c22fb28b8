/* The GGUF reader: what it hands out, and that every broken file is refused by name. */
#include "formats/gguf.h"
#include "formats/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* $ISOTHERM_TEST_MODELS/NAME. */
static void model_path(char *out, size_t size, const char *name)
{
    const char *folder = getenv("ISOTHERM_TEST_MODELS");
    if (folder == NULL)
        fail_msg("ISOTHERM_TEST_MODELS is not set (run through meson test)");
    else
        assert_true((size_t)snprintf(out, size, "%s/%s", folder, name) < size);
}

/* Calls fn for every line of the manifest of broken files (tests/data/README.md); returns their number. */
static unsigned each_broken(void (*fn)(const char *path, const char *name, const char *stage,
                                       const char *words))
{
    char path[4096], line[512], file[600];
    unsigned n = 0;
    model_path(path, sizeof path, "broken/MANIFEST");
    FILE *manifest = fopen(path, "r");
    assert_non_null(manifest);
    while (fgets(line, sizeof line, manifest) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *stage = strchr(line, '\t');
        assert_non_null(stage);
        *stage++ = '\0';
        char *words = strchr(stage, '\t');
        assert_non_null(words);
        *words++ = '\0';
        snprintf(file, sizeof file, "broken/%s", line);
        model_path(path, sizeof path, file);
        fn(path, line, stage, words);
        n++;
    }
    fclose(manifest);
    return n;
}

static struct fmt_gguf *open_model(const char *name)
{
    char path[4096], err[200];
    struct fmt_gguf *g;
    model_path(path, sizeof path, name);
    if (fmt_gguf_open(path, &g, err, sizeof err) != FMT_OK)
        fail_msg("%s: %s", name, err);
    return g;
}

static void open_broken(const char *path, const char *name, const char *stage, const char *words)
{
    char err[200], tiny[1];
    struct fmt_gguf *g = (struct fmt_gguf *)&err;
    int rc = fmt_gguf_open(path, &g, err, sizeof err);
    if (strcmp(stage, "open") != 0) { /* a sound container */
        if (rc != FMT_OK)
            fail_msg("%s: refused by the reader already: %s", name, err);
        fmt_gguf_close(g);
        return;
    }
    if (rc != FMT_EFORMAT && rc != FMT_EUNSUPPORTED)
        fail_msg("%s: code %d", name, rc);
    assert_null(g);
    if (strstr(err, words) == NULL || err[0] == '\0')
        fail_msg("%s: '%s' does not name '%s'", name, err, words);
    for (const char *p = err; *p != '\0'; p++)
        assert_in_range(*p, 0x20, 0x7e);
    assert_int_equal(fmt_gguf_open(path, &g, tiny, sizeof tiny), rc);
    assert_int_equal(tiny[0], 0);
}

static void refuses_every_broken_file_by_name(void **state)
{
    (void)state;
    assert_true(each_broken(open_broken) > 200);
}

static void reads_typed_values_strictly(void **state)
{
    (void)state;
    struct fmt_gguf *g = open_model("llama-q8_0.gguf");
    uint32_t u32 = 7;
    uint64_t u64 = 7;
    int32_t i32 = 7;
    float f32 = 7;
    bool flag = true;
    struct fmt_str s = {NULL, 7};

    assert_int_equal(fmt_gguf_u32(g, "llama.block_count", &u32), FMT_OK);
    assert_int_equal(u32, 2);
    assert_int_equal(fmt_gguf_u32(g, "llama.block_coun", &u32), FMT_ENOTFOUND);
    assert_int_equal(fmt_gguf_u64(g, "llama.block_count", &u64), FMT_ETYPE);
    assert_int_equal(fmt_gguf_i32(g, "llama.block_count", &i32), FMT_ETYPE);
    assert_int_equal(fmt_gguf_f32(g, "llama.block_count", &f32), FMT_ETYPE);
    assert_int_equal(fmt_gguf_str(g, "llama.block_count", &s), FMT_ETYPE);
    assert_int_equal(fmt_gguf_bool(g, "llama.block_count", &flag), FMT_ETYPE);
    assert_true(u32 == 2 && u64 == 7 && i32 == 7 && f32 == 7 && flag && s.len == 7);

    assert_int_equal(fmt_gguf_f32(g, "llama.rope.freq_base", &f32), FMT_OK);
    assert_true(f32 == 10000.0F);
    assert_int_equal(fmt_gguf_bool(g, "tokenizer.ggml.add_bos_token", &flag), FMT_OK);
    assert_false(flag);
    assert_int_equal(fmt_gguf_str(g, "general.architecture", &s), FMT_OK);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.data, "llama", 5);
    fmt_gguf_close(g);
}

static void reads_arrays_by_index(void **state)
{
    (void)state;
    struct fmt_gguf *g = open_model("llama-q8_0.gguf");
    enum fmt_gguf_type elem;
    uint64_t n = 0, n_types = 0;
    int32_t type;

    assert_int_equal(fmt_gguf_array(g, "tokenizer.ggml.tokens", &elem, &n), FMT_OK);
    assert_int_equal(elem, FMT_GGUF_STRING);
    assert_int_equal(n, 3 + 256 + 140);
    struct fmt_str s = fmt_gguf_array_str(g, "tokenizer.ggml.tokens", 1);
    assert_int_equal(s.len, strlen("<|im_start|>"));
    assert_memory_equal(s.data, "<|im_start|>", s.len);
    assert_int_equal(fmt_gguf_array_str(g, "tokenizer.ggml.tokens", n).len, 0);
    assert_int_equal(fmt_gguf_array_str(g, "no such key", 0).len, 0);
    assert_int_equal(fmt_gguf_array_str(g, "tokenizer.ggml.token_type", 0).len, 0);
    assert_null(fmt_gguf_array_data(g, "tokenizer.ggml.tokens"));
    assert_null(fmt_gguf_array_data(g, "llama.block_count"));

    assert_int_equal(fmt_gguf_array(g, "tokenizer.ggml.token_type", &elem, &n_types), FMT_OK);
    assert_int_equal(elem, FMT_GGUF_I32);
    assert_int_equal(n_types, n);
    const char *types = fmt_gguf_array_data(g, "tokenizer.ggml.token_type");
    memcpy(&type, types + 2 * sizeof type, sizeof type);
    assert_int_equal(type, 3);
    memcpy(&type, types + 3 * sizeof type, sizeof type);
    assert_int_equal(type, 1);
    assert_int_equal(fmt_gguf_array(g, "general.name", &elem, &n), FMT_ETYPE);
    fmt_gguf_close(g);
}

static void lists_keys_and_tensors_in_file_order(void **state)
{
    (void)state;
    struct fmt_gguf *g = open_model("qwen2-q4_1.gguf");
    enum fmt_gguf_type type = FMT_GGUF_U8;
    const char *data_end = NULL;

    assert_string_equal(fmt_gguf_key(g, 0, &type), "general.architecture");
    assert_int_equal(type, FMT_GGUF_STRING);
    assert_string_equal(fmt_gguf_key(g, 2, &type), "qwen2.block_count");
    assert_int_equal(type, FMT_GGUF_U32);
    assert_null(fmt_gguf_key(g, fmt_gguf_n_keys(g), &type));

    assert_int_equal(fmt_gguf_n_tensors(g), 2 + 2 * 12);
    assert_null(fmt_gguf_tensor_at(g, fmt_gguf_n_tensors(g)));
    assert_null(fmt_gguf_tensor(g, "blk.0.attn_q"));
    for (uint64_t i = 0; i < fmt_gguf_n_tensors(g); i++) {
        const struct fmt_tensor *t = fmt_gguf_tensor_at(g, i);
        assert_ptr_equal(fmt_gguf_tensor(g, t->name), t);
        assert_true(data_end == NULL || (const char *)t->data >= data_end);
        data_end = (const char *)t->data + t->bytes;
    }
    const struct fmt_tensor *v = fmt_gguf_tensor(g, "blk.1.attn_v.weight");
    assert_non_null(v);
    assert_int_equal(v->type, FMT_Q4_1);
    assert_int_equal(v->n_dims, 2);
    assert_true(v->ne[0] == 224 && v->ne[1] == 32 && v->ne[2] == 1 && v->ne[3] == 1);
    assert_int_equal(v->bytes, 224 * 32 / 32 * 20);
    fmt_gguf_close(g);
}

static void reads_version_2_and_files_without_tensors(void **state)
{
    (void)state;
    struct fmt_gguf *g = open_model("vocabulary-only.gguf");
    assert_int_equal(fmt_gguf_version(g), 2);
    assert_int_equal(fmt_gguf_n_tensors(g), 0);
    assert_null(fmt_gguf_tensor(g, "token_embd.weight"));
    fmt_gguf_close(g);
}

/* Nothing may depend on the alignment of the memory. */
static void reads_from_unaligned_memory(void **state)
{
    (void)state;
    char path[4096], err[200];
    struct fmt_gguf *g;
    float weights[32];
    model_path(path, sizeof path, "llama-q4_0.gguf");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *memory = malloc(1 << 20);
    assert_non_null(memory);
    size_t len = fread(memory + 1, 1, (1 << 20) - 1, f);
    fclose(f);
    assert_int_equal(fmt_gguf_open_memory(memory + 1, len, &g, err, sizeof err), FMT_OK);
    assert_int_equal(fmt_gguf_file_bytes(g), len);
    const struct fmt_tensor *t = fmt_gguf_tensor(g, "blk.0.attn_q.weight");
    assert_non_null(t);
    assert_int_equal(fmt_dequantize(t->type, t->data, 32, weights), FMT_OK);
    fmt_gguf_close(g);
    free(memory);
}

static void refuses_what_is_no_regular_file(void **state)
{
    (void)state;
    char path[4096], name[32], err[200];
    struct fmt_gguf *g;
    model_path(path, sizeof path, "not there.gguf");
    assert_int_equal(fmt_gguf_open(path, &g, err, sizeof err), FMT_EIO);
    assert_non_null(strstr(err, "open: "));
    model_path(path, sizeof path, ".");
    assert_int_equal(fmt_gguf_open(path, &g, err, sizeof err), FMT_EIO);
    assert_non_null(strstr(err, "not a regular file"));

    snprintf(name, sizeof name, "fifo.%d", (int)getpid()); /* nobody writes: must not block */
    model_path(path, sizeof path, name);
    assert_int_equal(mkfifo(path, 0600), 0);
    int rc = fmt_gguf_open(path, &g, err, sizeof err);
    unlink(path);
    assert_int_equal(rc, FMT_EIO);
    assert_null(g);
}

static void names_every_code(void **state)
{
    (void)state;
    for (int code = FMT_OK; code >= FMT_EUNSUPPORTED; code--) {
        assert_string_not_equal(fmt_strerror(code), fmt_strerror(1));
        for (int other = code - 1; other >= FMT_EUNSUPPORTED; other--)
            assert_string_not_equal(fmt_strerror(code), fmt_strerror(other));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_every_broken_file_by_name),
        cmocka_unit_test(reads_typed_values_strictly),
        cmocka_unit_test(reads_arrays_by_index),
        cmocka_unit_test(lists_keys_and_tensors_in_file_order),
        cmocka_unit_test(reads_version_2_and_files_without_tensors),
        cmocka_unit_test(reads_from_unaligned_memory),
        cmocka_unit_test(refuses_what_is_no_regular_file),
        cmocka_unit_test(names_every_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
