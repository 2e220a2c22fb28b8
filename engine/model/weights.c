/*
 * Which tensor becomes which matrix or vector of the graph (weights_pack.c then fills them).
 *
 * Two tensors hold rows of two matrices by turns, and are taken apart here once, so that the graph sees plain
 * products: attn_q of a gated attention (of each head q, then its gate) and ssm_ba (of each k head the betas
 * of its v heads, then their alphas).
 *
 * Threads: the engine's thread.
 */
#include "engine/model/model_internal.h"
#include <stdlib.h>
#include <string.h>

struct load {
    struct kn_backend *backend;
    struct pack *pack;
    const struct fmt_tensor *current; /* for the message, when something fails */
};

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

static int new_matrix(struct load *l, const struct fmt_tensor *t, uint64_t rows, struct kn_matrix **out)
{
    const struct fmt_type_info *info = fmt_type_info(t->type);
    struct kn_matrix_spec spec = {.kind = weight_kind(t),
                                  .rows = (uint32_t)rows,
                                  .cols = (uint32_t)t->ne[0],
                                  .group = info->group_elems,
                                  .has_min = info->has_min,
                                  .half_scales = info->half_scales};
    int rc = kn_matrix_new(l->backend, &spec, out);
    return rc == KN_OK ? ENG_OK : rc == KN_ENOMEM ? ENG_ENOMEM : ENG_EUNSUPPORTED;
}

static int add_matrix(struct load *l, const struct fmt_tensor *t, struct kn_matrix **out)
{
    if (!t)
        return ENG_OK;
    l->current = t;
    int rc = new_matrix(l, t, t->ne[1], out);
    if (rc != ENG_OK)
        return rc;
    return pack_add(l->pack, &(struct pack_rows){.tensor = t, .rows = (uint32_t)t->ne[1], .matrix = {*out}});
}

/* Runs of `unit` rows of one tensor go to two matrices by turns. */
static int add_two(struct load *l, const struct fmt_tensor *t, uint32_t unit, struct kn_matrix **first,
                   struct kn_matrix **second)
{
    if (!t)
        return ENG_OK;
    l->current = t;
    int rc;
    if ((rc = new_matrix(l, t, t->ne[1] / 2, first)) != ENG_OK ||
        (rc = new_matrix(l, t, t->ne[1] / 2, second)) != ENG_OK)
        return rc;
    return pack_add(l->pack,
                    &(struct pack_rows){
                        .tensor = t, .rows = (uint32_t)t->ne[1], .matrix = {*first, *second}, .unit = unit});
}

/* One matrix an expert, `stride` pointers apart. */
static int add_experts(struct load *l, const struct fmt_tensor *t, struct kn_matrix **out, size_t stride)
{
    if (!t)
        return ENG_OK;
    l->current = t;
    for (uint64_t e = 0; e < t->ne[2]; e++) {
        struct kn_matrix **m = &out[e * stride];
        int rc = new_matrix(l, t, t->ne[1], m);
        if (rc != ENG_OK)
            return rc;
        const struct pack_rows rows = {
            .tensor = t, .row0 = e * t->ne[1], .rows = (uint32_t)t->ne[1], .matrix = {*m}};
        if ((rc = pack_add(l->pack, &rows)) != ENG_OK)
            return rc;
    }
    return ENG_OK;
}

static int add_floats(struct load *l, const struct fmt_tensor *t, float *into)
{
    l->current = t;
    return into ? pack_add(l->pack,
                           &(struct pack_rows){.tensor = t, .rows = (uint32_t)t->ne[1], .vector = into})
                : ENG_ENOMEM;
}

static int new_floats(struct load *l, const struct fmt_tensor *t, float **out)
{
    if (!t)
        return ENG_OK;
    *out = malloc(t->ne[0] * t->ne[1] * sizeof(float));
    return add_floats(l, t, *out);
}

static int add_bias(struct load *l, const struct eng_model_desc *d, const struct fmt_tensor *const *t,
                    struct model_layer *y)
{
    if (!t[LT_Q_BIAS])
        return ENG_OK;
    size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    int rc;
    y->qkv_bias = malloc((q + 2 * kv) * sizeof(float));
    if (!y->qkv_bias)
        return ENG_ENOMEM;
    if ((rc = add_floats(l, t[LT_Q_BIAS], y->qkv_bias)) != ENG_OK ||
        (rc = add_floats(l, t[LT_K_BIAS], y->qkv_bias + q)) != ENG_OK)
        return rc;
    return add_floats(l, t[LT_V_BIAS], y->qkv_bias + q + kv);
}

static int add_layer(struct load *l, const struct eng_model_desc *d, const struct fmt_tensor *const *t,
                     struct model_layer *y)
{
    const struct {
        int part;
        float **to;
    } floats[] = {{LT_ATTN_NORM, &y->attn_norm},
                  {LT_FFN_NORM, &y->ffn_norm},
                  {LT_Q_NORM, &y->q_norm},
                  {LT_K_NORM, &y->k_norm},
                  {LT_POST_ATTN_NORM, &y->post_attn_norm},
                  {LT_POST_FFN_NORM, &y->post_ffn_norm},
                  {LT_DELTA_CONV, &y->filter},
                  {LT_DELTA_A, &y->a},
                  {LT_DELTA_DT, &y->dt_bias},
                  {LT_DELTA_NORM, &y->delta_norm}};
    const struct {
        int part;
        struct kn_matrix **to;
    } matrices[] = {{LT_K, &y->in[1]},
                    {LT_V, &y->in[2]},
                    {LT_DELTA_QKV, &y->in[0]},
                    {LT_DELTA_Z, &y->in[1]},
                    {LT_DELTA_BETA, &y->in[2]},
                    {LT_DELTA_ALPHA, &y->in[3]},
                    {LT_O, &y->o},
                    {LT_DELTA_OUT, &y->o},
                    {LT_GATE, &y->gate_up[0]},
                    {LT_UP, &y->gate_up[1]},
                    {LT_DOWN, &y->down},
                    {LT_ROUTER, &y->router},
                    {LT_SHARED_ROUTER, &y->shared_router},
                    {LT_SHARED_GATE, &y->gate_up[0]},
                    {LT_SHARED_UP, &y->gate_up[1]},
                    {LT_SHARED_DOWN, &y->down}};
    int rc = ENG_OK;
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        if ((rc = new_floats(l, t[floats[i].part], floats[i].to)) != ENG_OK)
            return rc;
    rc = d->attention_gate ? add_two(l, t[LT_Q], d->head_dim, &y->in[0], &y->in[3])
                           : add_matrix(l, t[LT_Q], &y->in[0]);
    if (rc != ENG_OK)
        return rc;
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if ((rc = add_matrix(l, t[matrices[i].part], matrices[i].to)) != ENG_OK)
            return rc;
    if (t[LT_DELTA_BA] && (rc = add_two(l, t[LT_DELTA_BA], d->delta.v_heads / d->delta.k_heads, &y->in[2],
                                        &y->in[3])) != ENG_OK)
        return rc;
    if (d->n_experts > 0) {
        y->experts = calloc(3 * (size_t)d->n_experts, sizeof(void *));
        if (!y->experts)
            return ENG_ENOMEM;
        if ((rc = add_experts(l, t[LT_EXPERTS_GATE], y->experts, 3)) != ENG_OK ||
            (rc = add_experts(l, t[LT_EXPERTS_UP], y->experts + 1, 3)) != ENG_OK ||
            (rc = add_experts(l, t[LT_EXPERTS_DOWN], y->experts + 2, 3)) != ENG_OK)
            return rc;
    }
    return add_bias(l, d, t, y);
}

static int add_all(struct load *l, const struct eng_model_desc *d, const struct model_tensors *t,
                   struct model_weights *w)
{
    int rc;
    if ((rc = add_matrix(l, t->embedding, &w->embedding)) != ENG_OK)
        return rc;
    w->head = t->head ? NULL : w->embedding;
    if ((rc = add_matrix(l, t->head, &w->head)) != ENG_OK ||
        (rc = new_floats(l, t->output_norm, &w->output_norm)) != ENG_OK)
        return rc;
    for (uint32_t i = 0; i < d->n_layers; i++)
        if ((rc = add_layer(l, d, t->layers[i].t, &w->layers[i])) != ENG_OK)
            return rc;
    return ENG_OK;
}

/* The file has the taps of a column side by side; the kernels read the columns of a tap (kernels.h). */
static int turn_filters(const struct eng_model_desc *d, const struct model_tensors *t,
                        struct model_weights *w)
{
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const struct fmt_tensor *f = t->layers[i].t[LT_DELTA_CONV];
        if (!f)
            continue;
        const size_t taps = f->ne[0], columns = f->ne[1];
        float *from = w->layers[i].filter, *to = malloc(taps * columns * sizeof *to);
        if (!to)
            return ENG_ENOMEM;
        for (size_t c = 0; c < columns; c++)
            for (size_t k = 0; k < taps; k++)
                to[k * columns + c] = from[c * taps + k];
        w->layers[i].filter = to;
        free(from);
    }
    return ENG_OK;
}

int model_weights_load(struct kn_backend *b, const struct eng_model_desc *d, const struct model_tensors *t,
                       const struct eng_model_options *o, struct model_weights *w, char *err, size_t err_len)
{
    struct load l = {.backend = b, .pack = pack_new()};
    const struct fmt_tensor *failed = NULL;
    int rc = ENG_ENOMEM;
    memset(w, 0, sizeof *w);
    w->layers = calloc(d->n_layers, sizeof *w->layers);
    if (!w->layers || !l.pack)
        goto out;
    rc = add_all(&l, d, t, w);
    failed = l.current;
    if (rc == ENG_OK)
        rc = pack_run(l.pack, b, o, w->digest, &failed);
    if (rc == ENG_OK)
        rc = turn_filters(d, t, w);
out:
    if (rc == ENG_ENOMEM)
        model_fail(err, err_len, rc, "out of memory while packing the weights");
    else if (rc != ENG_OK)
        model_fail(err, err_len, rc, "tensor %s: cannot be packed", failed ? failed->name : "?");
    if (rc != ENG_OK)
        model_weights_free(w, d);
    pack_free(l.pack);
    return rc;
}

static void free_matrices(struct kn_matrix **m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (m[i])
            kn_matrix_free(m[i]);
}

static void free_layer(struct model_layer *y, const struct eng_model_desc *d)
{
    free_matrices(y->in, 4);
    free_matrices(&y->o, 1);
    free_matrices(y->gate_up, 2);
    free_matrices(&y->down, 1);
    free_matrices(&y->router, 1);
    free_matrices(&y->shared_router, 1);
    if (y->experts)
        free_matrices(y->experts, 3 * (size_t)d->n_experts);
    free(y->experts);
    float *floats[] = {y->attn_norm, y->qkv_bias,   y->q_norm,         y->k_norm,   y->filter,       y->a,
                       y->dt_bias,   y->delta_norm, y->post_attn_norm, y->ffn_norm, y->post_ffn_norm};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        free(floats[i]);
}

void model_weights_free(struct model_weights *w, const struct eng_model_desc *d)
{
    for (uint32_t i = 0; w->layers && i < d->n_layers; i++)
        free_layer(&w->layers[i], d);
    if (w->head && w->head != w->embedding)
        kn_matrix_free(w->head);
    if (w->embedding)
        kn_matrix_free(w->embedding);
    free(w->output_norm);
    free(w->layers);
    memset(w, 0, sizeof *w);
}
