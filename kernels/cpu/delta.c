/*
 * Gated DeltaNet: where a sequence's live memory lies, and the walk over its blocks.
 *
 * DESIGN. A task is one k head of one sequence with the v heads it serves: they share k_j . k_i and k_j .
 * q_i, and between k heads nothing is shared, the columns of the convolution included. A task walks its rows
 * in pieces that end at block edges, so that the state moves on, and is captured, exactly there. What a piece
 * does to a row does not depend on where pieces begin (kernels.h).
 *
 * Live memory: the state (S as (v_heads, dim of v / 16, dim of k, 16), then the taps before the block), then,
 * of the open block: the taps before its next row, keys and d (both in blocks of 16 lanes), running sums G.
 * How many rows the block has is pos0 % KN_DELTA_BLOCK, and at 0 only the state counts.
 */
#include "kernels/cpu/internal.h"
#include <string.h>

#define BLOCK    KN_DELTA_BLOCK
#define CONV_MAX 8

/* ---- layout ---- */

struct layout {
    uint64_t columns, tap_row;                  /* bytes of a row of taps */
    uint64_t taps, state_bytes;                 /* offset, end of the state */
    uint64_t recent, keys, d, sums, live_bytes; /* offsets of the open block's parts */
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

static struct layout lay_out(const struct kn_delta_shape *s)
{
    struct layout l;
    uint64_t dim = s->dim;
    l.columns = (2ull * s->k_heads + s->v_heads) * dim;
    l.tap_row = l.columns * kn_kv_dtype_bytes(s->taps);
    l.taps = s->v_heads * dim * dim * sizeof(float);
    l.state_bytes = l.taps + (s->conv - 1) * l.tap_row;
    l.recent = aligned(l.state_bytes);
    l.keys = aligned(l.recent + (s->conv - 1) * l.tap_row);
    l.d = l.keys + s->k_heads * dim * BLOCK * sizeof(float);
    l.sums = l.d + s->v_heads * dim * BLOCK * sizeof(float);
    l.live_bytes = l.sums + (uint64_t)s->v_heads * BLOCK * sizeof(float);
    return l;
}

uint32_t kn_delta_columns(const struct kn_delta_shape *s)
{
    return (uint32_t)lay_out(s).columns;
}

uint64_t kn_delta_state_bytes(const struct kn_delta_shape *s)
{
    return lay_out(s).state_bytes;
}

uint64_t kn_delta_live_bytes(const struct kn_delta_shape *s)
{
    return lay_out(s).live_bytes;
}

static bool shape_is_good(const struct kn_delta_shape *s)
{
    return s->dim > 0 && s->dim % 16 == 0 && s->dim <= KN_DELTA_DIM_MAX && s->k_heads > 0 && s->v_heads > 0 &&
           s->v_heads % s->k_heads == 0 && s->conv >= 2 && s->conv <= CONV_MAX &&
           (unsigned)s->taps <= KN_KV_F32 && lay_out(s).columns <= UINT32_MAX;
}

/* ---- a call ---- */

struct delta_call {
    struct kn_backend *b;
    const struct kn_delta_shape *s;
    const struct kn_delta_weights *w;
    const struct kn_delta_seq *seqs;
    const float *qkv, *beta, *alpha;
    size_t ldqkv, ldbeta, ldalpha;
    float *out;
    size_t ldo;
    struct layout l;
    float *worker_data; /* worker_floats each */
    size_t worker_floats;
};

/* A worker's scratch for one piece. */
struct desk {
    float *window, *q, *k, *v; /* (rows, dim); window has conv - 1 rows more */
    float *kk, *qk, *k_weight, *q_weight;
    float *weighted_keys, *decay, *beta;
};

#define DESK_FLOATS(dim) ((size_t)(CONV_MAX - 1 + 5 * BLOCK) * (dim) + 4 * BLOCK * BLOCK + 2 * BLOCK)

static struct desk desk_of(const struct delta_call *c, unsigned worker)
{
    size_t rows = (size_t)BLOCK * c->s->dim;
    struct desk d;
    d.q = c->worker_data + worker * c->worker_floats;
    d.k = d.q + rows;
    d.v = d.k + rows;
    d.weighted_keys = d.v + rows;
    d.kk = d.weighted_keys + rows;
    d.qk = d.kk + BLOCK * BLOCK;
    d.k_weight = d.qk + BLOCK * BLOCK;
    d.q_weight = d.k_weight + BLOCK * BLOCK;
    d.decay = d.q_weight + BLOCK * BLOCK;
    d.beta = d.decay + BLOCK;
    d.window = d.beta + BLOCK;
    return d;
}

/* Rows of one block that this step has, of one sequence. */
struct piece {
    char *live;
    size_t row;          /* in the batch */
    uint32_t row0, rows; /* in the block */
};

static bool ends_block(const struct piece *p)
{
    return p->row0 + p->rows == BLOCK;
}

static uint32_t v_head(const struct kn_delta_shape *s, uint32_t k_head, uint32_t i)
{
    return s->tiled ? i * s->k_heads + k_head : k_head * (s->v_heads / s->k_heads) + i;
}

/* Columns of a head in a row of convolution input. */
static size_t q_column(const struct kn_delta_shape *s, uint32_t head)
{
    return (size_t)head * s->dim;
}

static size_t k_column(const struct kn_delta_shape *s, uint32_t head)
{
    return ((size_t)s->k_heads + head) * s->dim;
}

static size_t v_column(const struct kn_delta_shape *s, uint32_t head)
{
    return (2 * (size_t)s->k_heads + head) * s->dim;
}

/* y (rows, dim) from the dim columns at `column`; the taps that the next rows need move on. */
static void convolve(const struct delta_call *c, const struct desk *d, const struct piece *p, size_t column,
                     float *y)
{
    const struct kn_delta_shape *s = c->s;
    size_t before = s->conv - 1, at = column * kn_kv_dtype_bytes(s->taps);
    const char *from = p->live + (p->row0 == 0 ? c->l.taps : c->l.recent) + at;
    char *to = p->live + (ends_block(p) ? c->l.taps : c->l.recent) + at;
    for (size_t t = 0; t < before; t++)
        c->b->delta_path->from_kv(s->taps, from + t * c->l.tap_row, d->window + t * s->dim, s->dim);
    c->b->delta_path->convolve(s->taps, c->qkv + p->row * c->ldqkv + column, c->ldqkv, p->rows, s->dim,
                               c->w->filter + column, c->l.columns, s->conv, d->window, y);
    for (size_t t = 0; t < before; t++)
        c->b->attn->to_kv(s->taps, d->window + (p->rows + t) * s->dim, to + t * c->l.tap_row, s->dim);
}

/* beta of the rows, and their running sums G. */
static void gate(const struct delta_call *c, const struct piece *p, uint32_t head, float *beta, float *sums)
{
    float a = c->w->a[head], bias = c->w->dt_bias[head];
    for (uint32_t r = 0; r < p->rows; r++) {
        uint32_t i = p->row0 + r;
        beta[r] = 1.0f / (1.0f + kn_expf(-c->beta[(p->row + r) * c->ldbeta + head]));
        float g = a * kn_softplusf(c->alpha[(p->row + r) * c->ldalpha + head] + bias);
        sums[i] = i == 0 ? g : sums[i - 1] + g;
    }
}

static void run_piece(const struct delta_call *c, const struct desk *d, const struct piece *p, uint32_t head)
{
    const struct kn_delta_shape *s = c->s;
    const struct kn_delta_path *path = c->b->delta_path;
    size_t dim = s->dim;
    struct kn_delta_job job = {
        .dim = s->dim,
        .row0 = p->row0,
        .rows = p->rows,
        .q = d->q,
        .k = d->k,
        .keys = (float *)(void *)(p->live + c->l.keys) + head * dim * BLOCK,
        .kk = d->kk,
        .qk = d->qk,
        .v = d->v,
        .beta = d->beta,
        .ldo = c->ldo,
        .decay = d->decay,
        .k_weight = d->k_weight,
        .q_weight = d->q_weight,
        .weighted_keys = d->weighted_keys,
    };
    convolve(c, d, p, q_column(s, head), d->q);
    convolve(c, d, p, k_column(s, head), d->k);
    path->l2norm(d->q, p->rows, s->dim, s->eps, 1.0f / __builtin_sqrtf((float)s->dim));
    path->l2norm(d->k, p->rows, s->dim, s->eps, 1.0f);
    path->products(&job);
    for (uint32_t i = 0; i < s->v_heads / s->k_heads; i++) {
        uint32_t h = v_head(s, head, i);
        float *sums = (float *)(void *)(p->live + c->l.sums) + (size_t)h * BLOCK;
        convolve(c, d, p, v_column(s, h), d->v);
        gate(c, p, h, d->beta, sums);
        job.sums = sums;
        job.state = (float *)(void *)p->live + h * dim * dim;
        job.d = (float *)(void *)(p->live + c->l.d) + h * dim * BLOCK;
        job.out = c->out + p->row * c->ldo + h * dim;
        path->rows(&job);
        if (ends_block(p))
            path->close(&job);
    }
}

/* ---- captures ---- */

static void capture_taps(const struct delta_call *c, const char *live, const struct kn_delta_capture *to,
                         size_t column)
{
    uint64_t size = kn_kv_dtype_bytes(c->s->taps);
    for (uint32_t t = 0; t + 1 < c->s->conv; t++) {
        uint64_t at = c->l.taps + t * c->l.tap_row + column * size;
        kn_blocks_scatter(&to->to, to->offset + at, live + at, c->s->dim * size);
    }
}

/* What one k head's task owns of the state; all tasks together write all of it. */
static void capture(const struct delta_call *c, const char *live, const struct kn_delta_capture *to,
                    uint32_t head)
{
    const struct kn_delta_shape *s = c->s;
    uint64_t bytes = (uint64_t)s->dim * s->dim * sizeof(float);
    capture_taps(c, live, to, q_column(s, head));
    capture_taps(c, live, to, k_column(s, head));
    for (uint32_t i = 0; i < s->v_heads / s->k_heads; i++) {
        uint32_t h = v_head(s, head, i);
        capture_taps(c, live, to, v_column(s, h));
        kn_blocks_scatter(&to->to, to->offset + h * bytes, live + h * bytes, bytes);
    }
}

static bool captures_are_good(const struct kn_delta_seq *q)
{
    uint32_t last = q->pos0;
    for (uint32_t i = 0; i < q->n_captures; i++) {
        uint32_t at = q->captures[i].position;
        if (at <= last || at - q->pos0 > q->n || at % BLOCK != 0)
            return false;
        last = at;
    }
    return true;
}

/* ---- the walk ---- */

static void head_item(void *arg, size_t i, unsigned worker)
{
    const struct delta_call *c = arg;
    const struct kn_delta_seq *q = &c->seqs[i / c->s->k_heads];
    uint32_t head = (uint32_t)(i % c->s->k_heads), n_captured = 0;
    struct desk d = desk_of(c, worker);
    for (uint32_t done = 0; done < q->n;) {
        uint32_t row0 = (q->pos0 + done) % BLOCK, left = q->n - done;
        struct piece p = {.live = q->live,
                          .row = (size_t)q->row0 + done,
                          .row0 = row0,
                          .rows = left < BLOCK - row0 ? left : BLOCK - row0};
        run_piece(c, &d, &p, head);
        done += p.rows;
        if (n_captured < q->n_captures && q->captures[n_captured].position == q->pos0 + done)
            capture(c, q->live, &q->captures[n_captured++], head);
    }
}

int kn_delta(struct kn_backend *b, const struct kn_delta_shape *s, const struct kn_delta_weights *w,
             const struct kn_delta_seq *seqs, size_t n_seqs, const float *qkv, size_t ldqkv,
             const float *beta, size_t ldbeta, const float *alpha, size_t ldalpha, float *out, size_t ldo)
{
    if (!shape_is_good(s))
        return KN_EINVAL;
    for (size_t i = 0; i < n_seqs; i++)
        if (!captures_are_good(&seqs[i]))
            return KN_EINVAL;
    struct delta_call c = {.b = b,
                           .s = s,
                           .w = w,
                           .seqs = seqs,
                           .qkv = qkv,
                           .beta = beta,
                           .alpha = alpha,
                           .ldqkv = ldqkv,
                           .ldbeta = ldbeta,
                           .ldalpha = ldalpha,
                           .out = out,
                           .ldo = ldo,
                           .l = lay_out(s),
                           .worker_floats = (DESK_FLOATS(s->dim) + 1023) & ~(size_t)1023};
    int rc = kn_scratch_reserve(&b->delta, b->threads * c.worker_floats * sizeof(float));
    if (rc != KN_OK)
        return rc;
    c.worker_data = b->delta.data;
    kn_pool_run(b->pool, n_seqs * s->k_heads, head_item, &c);
    return KN_OK;
}
