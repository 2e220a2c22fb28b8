/* See support.h. */
#include "tests/model/support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t next_random(uint32_t *state)
{
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

void make_ids(uint32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = next_random(&seed) % TINY_VOCAB;
}

/* ---- a GGUF in memory --------------------------------------------------------------------------------- */

#define MAX_ENTRIES 192

struct entry {
    char name[96];
    bool tensor;
    uint32_t type, n_dims;
    uint64_t ne[4];
    uint8_t *bytes;
    size_t len;
};

struct gguf_writer {
    struct entry entries[MAX_ENTRIES];
    size_t n;
    uint8_t *out;
    size_t len;
};

struct gguf_writer *gguf_writer_new(void)
{
    struct gguf_writer *w = calloc(1, sizeof *w);
    assert_non_null(w);
    return w;
}

void gguf_writer_free(struct gguf_writer *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->entries[i].bytes);
    free(w->out);
    free(w);
}

void gguf_drop(struct gguf_writer *w, const char *name)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->entries[i].name, name) == 0) {
            free(w->entries[i].bytes);
            memmove(&w->entries[i], &w->entries[i + 1], (w->n - i - 1) * sizeof w->entries[0]);
            w->n--;
            return;
        }
}

static struct entry *put(struct gguf_writer *w, const char *name, uint32_t type, const void *bytes,
                         size_t len)
{
    struct entry *e = NULL;
    for (size_t i = 0; i < w->n && !e; i++)
        if (strcmp(w->entries[i].name, name) == 0)
            e = &w->entries[i];
    if (!e) {
        assert_true(w->n < MAX_ENTRIES);
        e = &w->entries[w->n++];
    }
    free(e->bytes);
    memset(e, 0, sizeof *e);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->type = type;
    e->bytes = malloc(len ? len : 1);
    assert_non_null(e->bytes);
    memcpy(e->bytes, bytes, len);
    e->len = len;
    return e;
}

void gguf_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    put(w, key, FMT_GGUF_U32, &v, sizeof v);
}

void gguf_f32(struct gguf_writer *w, const char *key, float v)
{
    put(w, key, FMT_GGUF_F32, &v, sizeof v);
}

void gguf_bool(struct gguf_writer *w, const char *key, bool v)
{
    uint8_t byte = v;
    put(w, key, FMT_GGUF_BOOL, &byte, 1);
}

static void put_number(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void gguf_string(struct gguf_writer *w, const char *key, const char *v)
{
    uint8_t buf[256];
    uint64_t n = strlen(v);
    assert_true(n + 8 <= sizeof buf);
    put_number(buf, n, 8);
    for (uint64_t i = 0; i < n; i++)
        buf[8 + i] = (uint8_t)v[i];
    put(w, key, FMT_GGUF_STRING, buf, 8 + n);
}

void gguf_bool_array(struct gguf_writer *w, const char *key, size_t n, const bool *v)
{
    uint8_t buf[256];
    assert_true(12 + n <= sizeof buf);
    put_number(buf, FMT_GGUF_BOOL, 4);
    put_number(buf + 4, n, 8);
    for (size_t i = 0; i < n; i++)
        buf[12 + i] = v[i];
    put(w, key, FMT_GGUF_ARRAY, buf, 12 + n);
}

void gguf_u32_array(struct gguf_writer *w, const char *key, size_t n, uint32_t v)
{
    uint8_t buf[1024];
    assert_true(12 + 4 * n <= sizeof buf);
    put_number(buf, FMT_GGUF_U32, 4);
    put_number(buf + 4, n, 8);
    for (size_t i = 0; i < n; i++)
        put_number(buf + 12 + 4 * i, v, 4);
    put(w, key, FMT_GGUF_ARRAY, buf, 12 + 4 * n);
}

void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                 const void *data)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < n_dims; i++)
        elements *= ne[i];
    struct entry *e = put(w, name, type, data, fmt_type_bytes(type, elements));
    e->tensor = true;
    e->n_dims = n_dims;
    memcpy(e->ne, ne, n_dims * sizeof *ne);
}

static void append(struct gguf_writer *w, const void *bytes, size_t len)
{
    w->out = realloc(w->out, w->len + len + 1);
    assert_non_null(w->out);
    memcpy(w->out + w->len, bytes, len);
    w->len += len;
}

static void append_u64(struct gguf_writer *w, uint64_t v)
{
    append(w, &v, sizeof v);
}

static void append_u32(struct gguf_writer *w, uint32_t v)
{
    append(w, &v, sizeof v);
}

static void append_name(struct gguf_writer *w, const char *name)
{
    append_u64(w, strlen(name));
    append(w, name, strlen(name));
}

#define ALIGNMENT 32

static void append_padding(struct gguf_writer *w)
{
    static const uint8_t zeros[ALIGNMENT];
    append(w, zeros, (ALIGNMENT - w->len % ALIGNMENT) % ALIGNMENT);
}

const void *gguf_finish(struct gguf_writer *w, size_t *len)
{
    uint64_t tensors = 0, offset = 0;
    w->len = 0;
    for (size_t i = 0; i < w->n; i++)
        tensors += w->entries[i].tensor;
    append(w, "GGUF", 4);
    append_u32(w, 3);
    append_u64(w, tensors);
    append_u64(w, w->n - tensors);
    for (size_t i = 0; i < w->n; i++) {
        const struct entry *e = &w->entries[i];
        if (e->tensor)
            continue;
        append_name(w, e->name);
        append_u32(w, e->type);
        append(w, e->bytes, e->len);
    }
    for (size_t i = 0; i < w->n; i++) {
        const struct entry *e = &w->entries[i];
        if (!e->tensor)
            continue;
        append_name(w, e->name);
        append_u32(w, e->n_dims);
        for (uint32_t k = 0; k < e->n_dims; k++)
            append_u64(w, e->ne[k]);
        append_u32(w, e->type);
        append_u64(w, offset);
        offset += (e->len + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    append_padding(w);
    for (size_t i = 0; i < w->n; i++)
        if (w->entries[i].tensor) {
            append(w, w->entries[i].bytes, w->entries[i].len);
            append_padding(w);
        }
    *len = w->len;
    return w->out;
}

/* ---- running ------------------------------------------------------------------------------------------ */

static struct eng_model *open_gguf(struct fmt_gguf *g, enum kn_isa isa, unsigned threads,
                                   enum kn_kv_dtype dtype)
{
    char err[256] = "";
    const struct eng_model_options o = {.isa = isa, .threads = threads, .kv_dtype = dtype};
    struct eng_model *m = NULL;
    if (eng_model_open(g, &o, &m, err, sizeof err) != ENG_OK)
        fail_msg("%s", err);
    fmt_gguf_close(g); /* the header promises that the mapping is no longer needed */
    return m;
}

struct eng_model *open_path(const char *path, enum kn_isa isa, unsigned threads, enum kn_kv_dtype dtype)
{
    char err[256] = "";
    struct fmt_gguf *g = NULL;
    if (fmt_gguf_open(path, &g, err, sizeof err) != FMT_OK)
        fail_msg("%s: %s", path, err);
    return open_gguf(g, isa, threads, dtype);
}

struct eng_model *open_writer(struct gguf_writer *w, enum kn_isa isa, unsigned threads,
                              enum kn_kv_dtype dtype)
{
    char err[256] = "";
    size_t len;
    const void *bytes = gguf_finish(w, &len);
    struct fmt_gguf *g = NULL;
    if (fmt_gguf_open_memory(bytes, len, &g, err, sizeof err) != FMT_OK)
        fail_msg("%s", err);
    return open_gguf(g, isa, threads, dtype);
}

size_t isa_list(enum kn_isa out[4])
{
    static const enum kn_isa all[] = {KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512};
    size_t n = 0, first = 0;
#ifdef __SANITIZE_ADDRESS__ /* instrumented scalar code takes minutes; the kernels' own tests run it */
    first = kn_isa_available(KN_ISA_AVX2);
#endif
    for (size_t i = first; i < sizeof all / sizeof all[0]; i++)
        if (kn_isa_available(all[i]))
            out[n++] = all[i];
    return n;
}

/* One arena for all tables, its blocks dealt out in shuffled order. */
struct kv kv_new(const struct eng_model *m, uint32_t tokens, uint32_t seed)
{
    const struct eng_state_desc *state = eng_model_state(m);
    const uint64_t page = kn_kv_page_bytes(eng_model_kv(m));
    const uint32_t n_pages = (tokens + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS,
                   n_tables = 1 + state->window_groups, n = n_pages * n_tables;
    struct kv kv = {.n_pages = n_pages,
                    .n_groups = state->window_groups,
                    .arena = aligned_alloc(4096, (n * page + 4095) / 4096 * 4096),
                    .pages = calloc(n, sizeof(void *)),
                    .groups = calloc(n_tables, sizeof(void **))};
    assert_non_null(kv.arena);
    assert_non_null(kv.pages);
    assert_non_null(kv.groups);
    memset(kv.arena, 0xff, n * page);
    for (uint32_t i = 0; i < n; i++)
        kv.pages[i] = kv.arena + i * page;
    uint32_t random = seed * 2654435761U + 1;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = next_random(&random) % i;
        void *swap = kv.pages[i - 1];
        kv.pages[i - 1] = kv.pages[k];
        kv.pages[k] = swap;
    }
    for (uint32_t g = 0; g < kv.n_groups; g++)
        kv.groups[g] = kv.pages + (size_t)(g + 1) * n_pages;
    if (state->live_bytes > 0) {
        kv.state = aligned_alloc(64, (state->live_bytes + 63) / 64 * 64);
        assert_non_null(kv.state);
        memset(kv.state, 0xff, state->live_bytes);
        eng_state_start((struct eng_model *)m, kv.state);
    }
    return kv;
}

void kv_free(struct kv *kv)
{
    free(kv->arena);
    free(kv->pages);
    free(kv->groups);
    free(kv->state);
}

struct eng_step_seq kv_step(const struct kv *kv, const uint32_t *ids, uint32_t pos0, uint32_t n,
                            uint32_t n_logits)
{
    return (struct eng_step_seq){.ids = ids + pos0,
                                 .n = n,
                                 .pos0 = pos0,
                                 .pages = kv->pages,
                                 .window_pages = kv->n_groups > 0 ? (void *const *const *)kv->groups : NULL,
                                 .state = kv->state,
                                 .n_logits = n_logits};
}

float *run_chunked(struct eng_model *m, const uint32_t *ids, uint32_t n, uint32_t chunk, uint32_t seed)
{
    const size_t vocab = eng_model_desc(m)->n_vocab;
    float *out = malloc(n * vocab * sizeof *out);
    assert_non_null(out);
    struct kv kv = kv_new(m, n, seed);
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t len = n - at < chunk ? n - at : chunk;
        const struct eng_step_seq s = kv_step(&kv, ids, at, len, len);
        const float *logits;
        assert_int_equal(eng_forward(m, &s, 1, &logits), ENG_OK);
        memcpy(out + at * vocab, logits, len * vocab * sizeof *out);
    }
    kv_free(&kv);
    return out;
}
