/*
 * The file's tensors repacked for the kernels, and the digest that names these weights.
 *
 * DESIGN. Both need every byte once, so one pass does both: the tensors are cut into blocks of whole rows,
 * and the pool takes block after block, hashing it and then packing it while it is in the cache. The cut
 * depends on the tensor only, never on the number of threads, so the digest does not either.
 *
 * Threads: the engine's thread calls; the blocks run on the backend's pool.
 */
#include "engine/model/model_internal.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BLOCK_BYTES (256u << 10)
#define BLOCK_ROWS  16 /* matrices are packed by 16 rows: a multiple, so that no two blocks share a line */

struct pack {
    struct pack_rows *blocks;
    XXH128_hash_t *hashes; /* one a block */
    size_t n, capacity, first;
    atomic_int error;
    _Atomic(const struct fmt_tensor *) failed; /* the first of which a block failed */
};

struct pack *pack_new(void)
{
    return calloc(1, sizeof(struct pack));
}

void pack_free(struct pack *p)
{
    if (!p)
        return;
    free(p->blocks);
    free(p->hashes);
    free(p);
}

/* ---- one block ----------------------------------------------------------------------------------------- */

static uint64_t tensor_row_bytes(const struct fmt_tensor *t)
{
    return t->bytes / (t->ne[1] * t->ne[2] * t->ne[3]);
}

static int set_row(struct kn_matrix *m, uint32_t r, const struct fmt_tensor *t, const uint8_t *row,
                   size_t row_bytes, uint8_t *scratch, float *scale, float *min)
{
    const struct fmt_type_info *info = fmt_type_info(t->type);
    if (info->group_elems > 0) {
        int rc = fmt_row_codes(t->type, row, t->ne[0], (int8_t *)scratch, scale, min);
        return rc == 0 ? kn_matrix_set_codes(m, r, (const int8_t *)scratch, scale, info->has_min ? min : NULL)
                       : rc;
    }
    memcpy(scratch, row, row_bytes);
    return t->type == FMT_F32 ? kn_matrix_set_f32(m, r, (const float *)(const void *)scratch)
                              : kn_matrix_set_16(m, r, (const uint16_t *)(const void *)scratch);
}

static int set_rows(const struct pack_rows *k, const uint8_t *src, size_t row_bytes)
{
    const struct fmt_type_info *info = fmt_type_info(k->tensor->type);
    size_t cols = k->tensor->ne[0], groups = info->group_elems ? cols / info->group_elems : 0;
    /* codes, or a float row copied to where it is aligned (a file may align by 1), then scales and minima */
    size_t row_space = ((info->group_elems ? cols : row_bytes) + 63) / 64 * 64;
    uint8_t *scratch = aligned_alloc(64, row_space + (2 * groups * sizeof(float) + 63) / 64 * 64);
    if (!scratch)
        return ENG_ENOMEM;
    float *scale = (float *)(void *)(scratch + row_space), *min = scale + groups;
    int rc = 0;
    for (uint32_t i = 0; i < k->rows && rc == 0; i++) {
        uint32_t r = k->to + i, second = 0;
        if (k->unit > 0) {
            uint32_t run = r / k->unit;
            second = run % 2;
            r = run / 2 * k->unit + r % k->unit;
        }
        rc = set_row(k->matrix[second], r, k->tensor, src + i * row_bytes, row_bytes, scratch, scale, min);
    }
    free(scratch);
    return rc == 0 ? ENG_OK : ENG_EFORMAT;
}

static void load_block(void *arg, size_t i)
{
    struct pack *p = arg;
    const struct pack_rows *k = &p->blocks[p->first + i];
    const struct fmt_tensor *t = k->tensor;
    size_t row_bytes = tensor_row_bytes(t);
    const uint8_t *src = (const uint8_t *)t->data + k->row0 * row_bytes;
    p->hashes[p->first + i] = XXH3_128bits(src, k->rows * row_bytes);
    int rc = k->vector ? fmt_dequantize(t->type, src, k->rows * t->ne[0], k->vector + k->to * t->ne[0])
                       : set_rows(k, src, row_bytes);
    int none = ENG_OK;
    if (rc != ENG_OK &&
        atomic_compare_exchange_strong(&p->error, &none, rc == ENG_ENOMEM ? ENG_ENOMEM : ENG_EFORMAT))
        atomic_store(&p->failed, t);
}

/* ---- the list of blocks -------------------------------------------------------------------------------- */

int pack_add(struct pack *p, const struct pack_rows *r)
{
    uint64_t grain = BLOCK_ROWS;
    if (r->unit > 0) /* whole pairs of runs; where runs do not keep to 16 rows, no cut at all */
        grain = r->unit % BLOCK_ROWS == 0 ? 2 * (uint64_t)r->unit : r->rows;
    uint64_t step = BLOCK_BYTES / tensor_row_bytes(r->tensor) / grain * grain;
    if (step < grain)
        step = grain;
    for (uint64_t at = 0; at < r->rows; at += step) {
        if (p->n == p->capacity) {
            size_t capacity = p->capacity ? 2 * p->capacity : 256;
            struct pack_rows *grown = realloc(p->blocks, capacity * sizeof *grown);
            if (!grown)
                return ENG_ENOMEM;
            p->blocks = grown;
            p->capacity = capacity;
        }
        struct pack_rows *k = &p->blocks[p->n++];
        *k = *r;
        k->row0 = r->row0 + at;
        k->to = r->to + (uint32_t)at;
        k->rows = (uint32_t)(r->rows - at < step ? r->rows - at : step);
    }
    return ENG_OK;
}

/* Blocks come in the graph's order, those of one tensor in a row. */
static int digest_all(const struct pack *p, uint8_t out[16])
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return ENG_ENOMEM;
    XXH3_128bits_reset(state);
    const struct fmt_tensor *last = NULL;
    XXH128_canonical_t canonical;
    for (size_t i = 0; i < p->n; i++) {
        const struct fmt_tensor *t = p->blocks[i].tensor;
        if (t != last) {
            XXH3_128bits_update(state, t->name, strlen(t->name) + 1);
            XXH3_128bits_update(state, &t->type, sizeof t->type);
            XXH3_128bits_update(state, t->ne, sizeof t->ne);
            last = t;
        }
        XXH128_canonicalFromHash(&canonical, p->hashes[i]);
        XXH3_128bits_update(state, &canonical, sizeof canonical);
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    memcpy(out, &canonical, 16);
    return ENG_OK;
}

int pack_run(struct pack *p, struct kn_backend *b, const struct eng_model_options *o, uint8_t digest[16],
             const struct fmt_tensor **failed)
{
    *failed = NULL;
    p->hashes = malloc(p->n * sizeof *p->hashes);
    if (!p->hashes)
        return ENG_ENOMEM;
    /* In slices, so that progress is told from this thread. */
    size_t slice = p->n / 32 + 4 * (size_t)kn_backend_threads(b);
    for (p->first = 0; p->first < p->n; p->first += slice) {
        size_t n = p->n - p->first < slice ? p->n - p->first : slice;
        kn_parallel(b, n, load_block, p);
        if (o->progress)
            o->progress(o->progress_ctx, (double)(p->first + n) / (double)p->n);
    }
    *failed = atomic_load(&p->failed);
    int rc = atomic_load(&p->error);
    return rc == ENG_OK ? digest_all(p, digest) : rc;
}
