/*
 * The file's tensors repacked for the kernels, and the digest that names these weights.
 *
 * DESIGN. Both need every byte once, so one pass does both: the tensors are cut into blocks of whole rows,
 * and the pool takes block after block, hashing it and then packing it while it is in the cache. The cut
 * depends on the tensor only, never on the number of threads, so the digest does not either.
 *
 * Threads: load and free on the engine's thread; the blocks run on the backend's pool.
 */
#include "engine/model/model_internal.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BLOCK_BYTES (256u << 10)
#define BLOCK_ROWS  16 /* matrices are packed by 16 rows: a multiple, so that no two blocks share a line */

/* How the kernels keep a type of the file (kernels/kernels.h knows no file format). */
static enum kn_weight weight_kind(const struct fmt_tensor *t)
{
    switch (t->type) {
    case FMT_F32:
        return KN_W_F32;
    case FMT_F16:
        return KN_W_F16;
    case FMT_BF16:
        return KN_W_BF16;
    default:
        return fmt_type_info(t->type)->code_bits == 4 ? KN_W_Q4 : KN_W_Q8;
    }
}

struct block {
    const struct fmt_tensor *tensor;
    struct kn_matrix *matrix; /* or */
    float *vector;            /* (ne[0]) */
    uint32_t row0, rows;
};

struct load {
    struct block *blocks;
    XXH128_hash_t *hashes; /* one a block */
    size_t n, capacity, first;
    atomic_int error;
    _Atomic(const struct fmt_tensor *) failed; /* the first of which a block failed */
};

/* ---- one block ----------------------------------------------------------------------------------------- */

static uint32_t tensor_rows(const struct fmt_tensor *t)
{
    return (uint32_t)(t->n_dims > 1 ? t->ne[1] : 1);
}

static int pack_rows(const struct block *k, const uint8_t *src, size_t row_bytes)
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
        uint32_t r = k->row0 + i;
        const uint8_t *row = src + i * row_bytes;
        switch (weight_kind(k->tensor)) {
        case KN_W_F32:
            memcpy(scratch, row, row_bytes);
            rc = kn_matrix_set_f32(k->matrix, r, (const float *)(const void *)scratch);
            break;
        case KN_W_F16:
        case KN_W_BF16:
            memcpy(scratch, row, row_bytes);
            rc = kn_matrix_set_16(k->matrix, r, (const uint16_t *)(const void *)scratch);
            break;
        case KN_W_Q4:
        case KN_W_Q8:
            rc = fmt_row_codes(k->tensor->type, row, cols, (int8_t *)scratch, scale, min);
            if (rc == 0)
                rc = kn_matrix_set_codes(k->matrix, r, (const int8_t *)scratch, scale,
                                         info->has_min ? min : NULL);
            break;
        }
    }
    free(scratch);
    return rc == 0 ? ENG_OK : ENG_EFORMAT;
}

static void load_block(void *arg, size_t i)
{
    struct load *l = arg;
    const struct block *k = &l->blocks[l->first + i];
    size_t row_bytes = k->tensor->bytes / tensor_rows(k->tensor);
    const uint8_t *src = (const uint8_t *)k->tensor->data + (size_t)k->row0 * row_bytes;
    l->hashes[l->first + i] = XXH3_128bits(src, k->rows * row_bytes);
    int rc = k->matrix ? pack_rows(k, src, row_bytes)
                       : fmt_dequantize(k->tensor->type, src, k->tensor->ne[0], k->vector);
    int none = ENG_OK;
    if (rc != ENG_OK &&
        atomic_compare_exchange_strong(&l->error, &none, rc == ENG_ENOMEM ? ENG_ENOMEM : ENG_EFORMAT))
        atomic_store(&l->failed, k->tensor);
}

/* ---- the list of blocks -------------------------------------------------------------------------------- */

static int add_blocks(struct load *l, const struct fmt_tensor *t, struct kn_matrix *matrix, float *vector)
{
    uint32_t rows = tensor_rows(t);
    uint64_t row_bytes = t->bytes / rows;
    uint64_t step = BLOCK_BYTES / row_bytes / BLOCK_ROWS * BLOCK_ROWS;
    if (step < BLOCK_ROWS)
        step = BLOCK_ROWS;
    for (uint64_t r = 0; r < rows; r += step) {
        if (l->n == l->capacity) {
            size_t capacity = l->capacity ? 2 * l->capacity : 256;
            struct block *grown = realloc(l->blocks, capacity * sizeof *grown);
            if (!grown)
                return ENG_ENOMEM;
            l->blocks = grown;
            l->capacity = capacity;
        }
        l->blocks[l->n++] =
            (struct block){t, matrix, vector, (uint32_t)r, (uint32_t)(rows - r < step ? rows - r : step)};
    }
    return ENG_OK;
}

static int add_matrix(struct kn_backend *b, struct load *l, const struct fmt_tensor *t,
                      struct kn_matrix **out)
{
    const struct fmt_type_info *info = fmt_type_info(t->type);
    struct kn_matrix_spec spec = {.kind = weight_kind(t),
                                  .rows = (uint32_t)t->ne[1],
                                  .cols = (uint32_t)t->ne[0],
                                  .group = info->group_elems,
                                  .has_min = info->has_min,
                                  .half_scales = info->half_scales};
    int rc = kn_matrix_new(b, &spec, out);
    if (rc != KN_OK)
        return rc == KN_ENOMEM ? ENG_ENOMEM : ENG_EUNSUPPORTED;
    return add_blocks(l, t, *out, NULL);
}

static int add_vector(struct load *l, const struct fmt_tensor *t, float *into)
{
    return into ? add_blocks(l, t, NULL, into) : ENG_ENOMEM;
}

static int new_vector(struct load *l, const struct fmt_tensor *t, float **out)
{
    *out = malloc(t->ne[0] * sizeof(float));
    return add_vector(l, t, *out);
}

static int add_layer(struct kn_backend *b, struct load *l, const struct eng_model_desc *d,
                     const struct model_layer_tensors *t, struct model_layer *w,
                     const struct fmt_tensor **failed)
{
    const struct {
        int tensor;
        struct kn_matrix **matrix;
    } matrices[] = {{LT_Q, &w->qkv[0]},        {LT_K, &w->qkv[1]},      {LT_V, &w->qkv[2]}, {LT_O, &w->o},
                    {LT_GATE, &w->gate_up[0]}, {LT_UP, &w->gate_up[1]}, {LT_DOWN, &w->down}};
    const struct {
        int tensor;
        float **vector;
    } vectors[] = {{LT_ATTN_NORM, &w->attn_norm},
                   {LT_FFN_NORM, &w->ffn_norm},
                   {LT_Q_NORM, &w->q_norm},
                   {LT_K_NORM, &w->k_norm}};
    int rc = ENG_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        if ((*failed = t->t[vectors[i].tensor]) && (rc = new_vector(l, *failed, vectors[i].vector)) != ENG_OK)
            return rc;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        *failed = t->t[matrices[i].tensor];
        if ((rc = add_matrix(b, l, *failed, matrices[i].matrix)) != ENG_OK)
            return rc;
    }
    if (!d->qkv_bias)
        return ENG_OK;
    size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    *failed = t->t[LT_Q_BIAS];
    w->qkv_bias = malloc((q + 2 * kv) * sizeof(float));
    if (!w->qkv_bias || (rc = add_vector(l, t->t[LT_Q_BIAS], w->qkv_bias)) != ENG_OK ||
        (rc = add_vector(l, t->t[LT_K_BIAS], w->qkv_bias + q)) != ENG_OK ||
        (rc = add_vector(l, t->t[LT_V_BIAS], w->qkv_bias + q + kv)) != ENG_OK)
        return rc != ENG_OK ? rc : ENG_ENOMEM;
    return ENG_OK;
}

static int list_blocks(struct kn_backend *b, struct load *l, const struct eng_model_desc *d,
                       const struct model_tensors *t, struct model_weights *w,
                       const struct fmt_tensor **failed)
{
    int rc;
    *failed = t->embedding;
    if ((rc = add_matrix(b, l, t->embedding, &w->embedding)) != ENG_OK)
        return rc;
    w->head = w->embedding;
    if (t->head) {
        *failed = t->head;
        w->head = NULL;
        if ((rc = add_matrix(b, l, t->head, &w->head)) != ENG_OK)
            return rc;
    }
    *failed = t->output_norm;
    if ((rc = new_vector(l, t->output_norm, &w->output_norm)) != ENG_OK)
        return rc;
    for (uint32_t i = 0; i < d->n_layers; i++)
        if ((rc = add_layer(b, l, d, &t->layers[i], &w->layers[i], failed)) != ENG_OK)
            return rc;
    return ENG_OK;
}

/* ---- all ----------------------------------------------------------------------------------------------- */

/* Blocks come in the graph's order, those of one tensor in a row. */
static int digest_all(const struct load *l, uint8_t out[16])
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return ENG_ENOMEM;
    XXH3_128bits_reset(state);
    const struct fmt_tensor *last = NULL;
    XXH128_canonical_t canonical;
    for (size_t i = 0; i < l->n; i++) {
        const struct fmt_tensor *t = l->blocks[i].tensor;
        if (t != last) {
            XXH3_128bits_update(state, t->name, strlen(t->name) + 1);
            XXH3_128bits_update(state, &t->type, sizeof t->type);
            XXH3_128bits_update(state, t->ne, sizeof t->ne);
            last = t;
        }
        XXH128_canonicalFromHash(&canonical, l->hashes[i]);
        XXH3_128bits_update(state, &canonical, sizeof canonical);
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    memcpy(out, &canonical, 16);
    return ENG_OK;
}

int model_weights_load(struct kn_backend *b, const struct eng_model_desc *d, const struct model_tensors *t,
                       const struct eng_model_options *o, struct model_weights *w, char *err, size_t err_len)
{
    struct load l = {0};
    const struct fmt_tensor *failed = NULL;
    int rc = ENG_ENOMEM;
    memset(w, 0, sizeof *w);
    w->layers = calloc(d->n_layers, sizeof *w->layers);
    if (!w->layers)
        goto out;
    if ((rc = list_blocks(b, &l, d, t, w, &failed)) != ENG_OK)
        goto out;
    l.hashes = malloc(l.n * sizeof *l.hashes);
    if (!l.hashes) {
        rc = ENG_ENOMEM;
        goto out;
    }
    /* In slices, so that progress is told from this thread. */
    size_t slice = l.n / 32 + 4 * (size_t)kn_backend_threads(b);
    for (l.first = 0; l.first < l.n; l.first += slice) {
        size_t n = l.n - l.first < slice ? l.n - l.first : slice;
        kn_parallel(b, n, load_block, &l);
        if (o->progress)
            o->progress(o->progress_ctx, (double)(l.first + n) / (double)l.n);
    }
    rc = atomic_load(&l.error);
    failed = atomic_load(&l.failed);
    if (rc == ENG_OK)
        rc = digest_all(&l, w->digest);
out:
    if (rc == ENG_ENOMEM)
        model_fail(err, err_len, rc, "out of memory while packing the weights");
    else if (rc != ENG_OK)
        model_fail(err, err_len, rc, "tensor %s: cannot be packed", failed ? failed->name : "?");
    if (rc != ENG_OK)
        model_weights_free(w, d);
    free(l.blocks);
    free(l.hashes);
    return rc;
}

void model_weights_free(struct model_weights *w, const struct eng_model_desc *d)
{
    for (uint32_t i = 0; w->layers && i < d->n_layers; i++) {
        struct model_layer *y = &w->layers[i];
        struct kn_matrix *matrices[] = {y->qkv[0],     y->qkv[1],     y->qkv[2], y->o,
                                        y->gate_up[0], y->gate_up[1], y->down};
        for (size_t k = 0; k < sizeof matrices / sizeof matrices[0]; k++)
            if (matrices[k])
                kn_matrix_free(matrices[k]);
        free(y->attn_norm);
        free(y->ffn_norm);
        free(y->qkv_bias);
        free(y->q_norm);
        free(y->k_norm);
    }
    if (w->head && w->head != w->embedding)
        kn_matrix_free(w->head);
    if (w->embedding)
        kn_matrix_free(w->embedding);
    free(w->output_norm);
    free(w->layers);
    memset(w, 0, sizeof *w);
}
