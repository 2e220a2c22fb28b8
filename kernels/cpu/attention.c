/*
 * KV pages and attention.
 *
 * DESIGN. The query vectors of one sequence and one kv head (rows times the q heads that share it), in row
 * order, are cut into units of at most KN_QUERIES_MAX. A unit meets the absolute groups of KN_ATTN_GROUP
 * positions that its window touches one after another; each gives (max, sum, o) for every vector, and these
 * are merged ascending. With few units (decode at depth) each (unit, group) is a task of its own and writes
 * its partial result to memory; a second pass merges. Both ways do the same arithmetic in the same order.
 */
#include "kernels/cpu/internal.h"
#include <string.h>

/* ---- pages ---- */

size_t kn_kv_dtype_bytes(enum kn_kv_dtype t)
{
    return t == KN_KV_F32 ? 4 : 2;
}

uint64_t kn_kv_layer_bytes(const struct kn_kv_layout *l)
{
    return 2ull * l->kv_heads * l->head_dim * KN_PAGE_TOKENS * kn_kv_dtype_bytes(l->dtype);
}

uint64_t kn_kv_page_bytes(const struct kn_kv_layout *l)
{
    return kn_kv_layer_bytes(l) * l->layers;
}

static size_t head_bytes(const struct kn_kv_layout *l)
{
    return (size_t)l->head_dim * KN_PAGE_TOKENS * kn_kv_dtype_bytes(l->dtype);
}

static size_t k_offset(const struct kn_kv_layout *l, uint32_t layer, uint32_t head)
{
    return (size_t)(layer * kn_kv_layer_bytes(l)) + head * head_bytes(l);
}

static size_t v_offset(const struct kn_kv_layout *l, uint32_t layer, uint32_t head)
{
    return k_offset(l, layer, l->kv_heads + head);
}

struct put_call {
    const struct kn_backend *b;
    const struct kn_kv_layout *l;
    uint32_t layer;
    const struct kn_attn_seq *seq;
    const float *k, *v;
    size_t ldk, ldv;
};

static void put_token(const struct put_call *c, uint32_t i)
{
    const struct kn_kv_layout *l = c->l;
    uint32_t pos = c->seq->pos0 + i, slot = pos % KN_PAGE_TOKENS, dim = l->head_dim;
    char *page = c->seq->pages[pos / KN_PAGE_TOKENS];
    size_t row = (size_t)c->seq->row0 + i, size = kn_kv_dtype_bytes(l->dtype);
    for (uint32_t h = 0; h < l->kv_heads; h++) {
        char *v = page + v_offset(l, c->layer, h) + (size_t)slot * dim * size;
        c->b->attn->to_kv(l->dtype, c->v + row * c->ldv + (size_t)h * dim, v, dim);
        uint32_t rounded[KN_HEAD_DIM_MAX]; /* room for the widest type */
        c->b->attn->to_kv(l->dtype, c->k + row * c->ldk + (size_t)h * dim, rounded, dim);
        char *k = page + k_offset(l, c->layer, h);
        if (size == 2) {
            const uint16_t *from = (const uint16_t *)(const void *)rounded;
            uint16_t *to = (uint16_t *)(void *)k + slot;
            for (uint32_t d = 0; d < dim; d++)
                to[d * KN_PAGE_TOKENS] = from[d];
        } else {
            uint32_t *to = (uint32_t *)(void *)k + slot;
            for (uint32_t d = 0; d < dim; d++)
                to[d * KN_PAGE_TOKENS] = rounded[d];
        }
    }
}

/* The tokens of one page. */
static void put_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct put_call *c = arg;
    uint64_t page = c->seq->pos0 / KN_PAGE_TOKENS + i;
    uint64_t from = page * KN_PAGE_TOKENS, to = from + KN_PAGE_TOKENS;
    uint64_t first = c->seq->pos0, end = first + c->seq->n;
    from = from < first ? first : from;
    to = to > end ? end : to;
    for (uint64_t pos = from; pos < to; pos++)
        put_token(c, (uint32_t)(pos - first));
}

void kn_kv_put(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
               const struct kn_attn_seq *seqs, size_t n_seqs, const float *k, size_t ldk, const float *v,
               size_t ldv)
{
    for (size_t s = 0; s < n_seqs; s++) {
        if (seqs[s].n == 0)
            continue;
        struct put_call c = {b, l, layer, &seqs[s], k, v, ldk, ldv};
        uint64_t first = seqs[s].pos0 / KN_PAGE_TOKENS;
        uint64_t last = ((uint64_t)seqs[s].pos0 + seqs[s].n - 1) / KN_PAGE_TOKENS;
        kn_pool_run(b->pool, (size_t)(last - first + 1), put_item, &c);
    }
}

/* ---- units ---- */

struct unit {
    uint32_t seq, head; /* kv head */
    uint32_t vector0, vectors;
    uint32_t group0, groups; /* from the first that its first vector sees to the last of its last vector */
    size_t task0;            /* before it, when every group is a task */
    size_t partial0;         /* its partial results: vectors a group */
};

struct attention_call {
    struct kn_backend *b;
    const struct kn_kv_layout *l;
    uint32_t layer, heads_a_kv; /* q heads that share a kv head */
    uint32_t window;            /* 0: all */
    const struct kn_attn_seq *seqs;
    float scale;
    const float *q;
    size_t ldq;
    float *out;
    size_t ldo;
    struct unit *units;
    size_t n_units, n_tasks;
    float *worker_data; /* worker_floats each */
    size_t worker_floats;
    float *max, *sum, *o; /* partial results, when every group is a task */
};

/* A worker's scratch. */
struct desk {
    float *q, *scores, *max, *sum, *o; /* o, max, sum: running and the new group's, two of each */
    uint32_t *from, *to;               /* positions of the group that each vector sees */
};

#define DESK_FLOATS(dim)                                                                                     \
    ((size_t)KN_QUERIES_MAX * KN_QUERY_STRIDE + (size_t)KN_QUERY_TILE * KN_SCORE_STRIDE +                    \
     (size_t)KN_QUERIES_MAX * (6 + 2 * (size_t)(dim)))

static struct desk desk_of(const struct attention_call *c, unsigned worker)
{
    struct desk d;
    d.q = c->worker_data + worker * c->worker_floats;
    d.scores = d.q + (size_t)KN_QUERIES_MAX * KN_QUERY_STRIDE;
    d.o = d.scores + (size_t)KN_QUERY_TILE * KN_SCORE_STRIDE;
    d.max = d.o + 2 * (size_t)KN_QUERIES_MAX * c->l->head_dim;
    d.sum = d.max + 2 * (size_t)KN_QUERIES_MAX;
    d.from = (uint32_t *)(void *)(d.sum + 2 * (size_t)KN_QUERIES_MAX);
    d.to = d.from + KN_QUERIES_MAX;
    return d;
}

static uint32_t vector_row(const struct attention_call *c, uint32_t vector)
{
    return vector / c->heads_a_kv;
}

static const float *vector_q(const struct attention_call *c, const struct unit *u, uint32_t vector)
{
    size_t row = (size_t)c->seqs[u->seq].row0 + vector_row(c, vector);
    size_t head = (size_t)u->head * c->heads_a_kv + vector % c->heads_a_kv;
    return c->q + row * c->ldq + head * c->l->head_dim;
}

static float *vector_out(const struct attention_call *c, const struct unit *u, uint32_t vector)
{
    size_t row = (size_t)c->seqs[u->seq].row0 + vector_row(c, vector);
    size_t head = (size_t)u->head * c->heads_a_kv + vector % c->heads_a_kv;
    return c->out + row * c->ldo + head * c->l->head_dim;
}

static void load_queries(const struct attention_call *c, const struct unit *u, const struct desk *d)
{
    for (uint32_t i = 0; i < u->vectors; i++)
        c->b->attn->scale(vector_q(c, u, u->vector0 + i), c->scale, d->q + (size_t)i * KN_QUERY_STRIDE,
                          c->l->head_dim);
}

/* Absolute positions that vector i of the unit sees. */
struct range {
    uint64_t from, to;
};

static struct range seen_by(const struct attention_call *c, const struct unit *u, uint32_t i)
{
    uint64_t to = (uint64_t)c->seqs[u->seq].pos0 + vector_row(c, u->vector0 + i) + 1;
    return (struct range){.from = c->window && to > c->window ? to - c->window : 0, .to = to};
}

static uint32_t first_group(const struct attention_call *c, const struct unit *u, uint32_t i)
{
    return (uint32_t)(seen_by(c, u, i).from / KN_ATTN_GROUP);
}

static uint32_t last_group(const struct attention_call *c, const struct unit *u, uint32_t i)
{
    return (uint32_t)((seen_by(c, u, i).to - 1) / KN_ATTN_GROUP);
}

/* Vectors [from, to) of the unit see something of group g: rows ascend, so those before have not reached it
 * and those behind have left it. */
static struct range vectors_in_group(const struct attention_call *c, const struct unit *u, uint32_t g)
{
    struct range r = {0, u->vectors};
    while (r.from < r.to && last_group(c, u, (uint32_t)r.from) < g)
        r.from++;
    while (r.to > r.from && first_group(c, u, (uint32_t)r.to - 1) > g)
        r.to--;
    return r;
}

/* Group g of a unit for the vectors of `who`. Results of vector i are at index i of max, sum, o. */
static void attend_group(const struct attention_call *c, const struct unit *u, const struct desk *d,
                         uint32_t g, struct range who, float *max, float *sum, float *o)
{
    uint32_t skip = (uint32_t)who.from, dim = c->l->head_dim;
    uint64_t start = (uint64_t)g * KN_ATTN_GROUP, first_page = start / KN_PAGE_TOKENS;
    uint64_t pages = (seen_by(c, u, u->vectors - 1).to + KN_PAGE_TOKENS - 1) / KN_PAGE_TOKENS;
    for (uint32_t i = skip; i < who.to; i++) {
        struct range seen = seen_by(c, u, i);
        d->from[i] = seen.from > start ? (uint32_t)(seen.from - start) : 0;
        d->to[i] = seen.to - start < KN_ATTN_GROUP ? (uint32_t)(seen.to - start) : KN_ATTN_GROUP;
    }
    struct kn_attn_job job = {
        .dtype = c->l->dtype,
        .head_dim = dim,
        .pages = (const void *const *)c->seqs[u->seq].pages + first_page,
        .n_pages = (uint32_t)(pages - first_page),
        .k_offset = k_offset(c->l, c->layer, u->head),
        .v_offset = v_offset(c->l, c->layer, u->head),
        .queries = (uint32_t)who.to - skip,
        .from = d->from + skip,
        .to = d->to + skip,
        .q = d->q + (size_t)skip * KN_QUERY_STRIDE,
        .scores = d->scores,
        .max = max + skip,
        .sum = sum + skip,
        .o = o + (size_t)skip * dim,
    };
    c->b->attn->attention(&job);
}

static void finish_vector(const struct attention_call *c, const struct unit *u, uint32_t i, float sum,
                          const float *o)
{
    c->b->attn->scale(o, 1.0f / sum, vector_out(c, u, u->vector0 + i), c->l->head_dim);
}

/* ---- a unit in one task ---- */

static void unit_item(void *arg, size_t i, unsigned worker)
{
    const struct attention_call *c = arg;
    const struct unit *u = &c->units[c->n_units - 1 - i]; /* the deepest first */
    struct desk d = desk_of(c, worker);
    uint32_t dim = c->l->head_dim;
    float *max2 = d.max + KN_QUERIES_MAX, *sum2 = d.sum + KN_QUERIES_MAX;
    float *o2 = d.o + (size_t)KN_QUERIES_MAX * dim;
    load_queries(c, u, &d);
    for (uint32_t g = u->group0; g < u->groups; g++) {
        struct range who = vectors_in_group(c, u, g);
        if (first_group(c, u, (uint32_t)who.from) == g) { /* of all: nothing to merge with */
            attend_group(c, u, &d, g, who, d.max, d.sum, d.o);
            continue;
        }
        attend_group(c, u, &d, g, who, max2, sum2, o2);
        for (uint32_t k = (uint32_t)who.from; k < who.to; k++) {
            float *o = d.o + (size_t)k * dim, *more = o2 + (size_t)k * dim;
            if (first_group(c, u, k) < g) {
                c->b->attn->merge(&d.max[k], &d.sum[k], o, max2[k], sum2[k], more, dim);
                continue;
            }
            d.max[k] = max2[k];
            d.sum[k] = sum2[k];
            memcpy(o, more, dim * sizeof *o);
        }
    }
    for (uint32_t k = 0; k < u->vectors; k++)
        finish_vector(c, u, k, d.sum[k], d.o + (size_t)k * dim);
}

/* ---- a task each group, then a merge ---- */

static const struct unit *unit_of_task(const struct attention_call *c, size_t task)
{
    size_t low = 0, high = c->n_units;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (c->units[middle].task0 <= task)
            low = middle;
        else
            high = middle;
    }
    return &c->units[low];
}

static void group_item(void *arg, size_t i, unsigned worker)
{
    const struct attention_call *c = arg;
    const struct unit *u = unit_of_task(c, i);
    struct desk d = desk_of(c, worker);
    uint32_t g = u->group0 + (uint32_t)(i - u->task0);
    size_t at = u->partial0 + (i - u->task0) * u->vectors;
    load_queries(c, u, &d);
    attend_group(c, u, &d, g, vectors_in_group(c, u, g), c->max + at, c->sum + at,
                 c->o + at * c->l->head_dim);
}

static void merge_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct attention_call *c = arg;
    const struct unit *u = &c->units[i];
    uint32_t dim = c->l->head_dim;
    for (uint32_t k = 0; k < u->vectors; k++) {
        uint32_t first = first_group(c, u, k), last = last_group(c, u, k);
        size_t at = u->partial0 + (size_t)(first - u->group0) * u->vectors + k, from = at;
        for (uint32_t g = first + 1; g <= last; g++) {
            from += u->vectors;
            c->b->attn->merge(&c->max[at], &c->sum[at], c->o + at * dim, c->max[from], c->sum[from],
                              c->o + from * dim, dim);
        }
        finish_vector(c, u, k, c->sum[at], c->o + at * dim);
    }
}

/* ---- the call ---- */

static size_t count_units(const struct attention_call *c, size_t n_seqs)
{
    size_t n = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        uint64_t vectors = (uint64_t)c->seqs[s].n * c->heads_a_kv;
        n += (size_t)((vectors + KN_QUERIES_MAX - 1) / KN_QUERIES_MAX) * c->l->kv_heads;
    }
    return n;
}

/* Returns the number of partial results that a task each group would need. */
static size_t list_units(struct attention_call *c, size_t n_seqs)
{
    size_t at = 0, tasks = 0, partials = 0;
    for (size_t s = 0; s < n_seqs; s++) {
        uint64_t vectors = (uint64_t)c->seqs[s].n * c->heads_a_kv;
        for (uint64_t v = 0; v < vectors; v += KN_QUERIES_MAX) {
            for (uint32_t h = 0; h < c->l->kv_heads; h++) {
                struct unit *u = &c->units[at++];
                uint64_t left = vectors - v;
                *u = (struct unit){.seq = (uint32_t)s,
                                   .head = h,
                                   .vector0 = (uint32_t)v,
                                   .vectors = left < KN_QUERIES_MAX ? (uint32_t)left : KN_QUERIES_MAX,
                                   .task0 = tasks,
                                   .partial0 = partials};
                u->group0 = first_group(c, u, 0);
                u->groups = last_group(c, u, u->vectors - 1) + 1;
                tasks += u->groups - u->group0;
                partials += (size_t)(u->groups - u->group0) * u->vectors;
            }
        }
    }
    c->n_tasks = tasks;
    return partials;
}

static int run_by_group(struct attention_call *c, size_t partials)
{
    size_t floats;
    if (__builtin_mul_overflow(partials, (size_t)c->l->head_dim + 2, &floats))
        return KN_ENOMEM;
    int rc = kn_scratch_reserve(&c->b->partials, floats * sizeof(float));
    if (rc != KN_OK)
        return rc;
    c->o = c->b->partials.data;
    c->max = c->o + partials * c->l->head_dim;
    c->sum = c->max + partials;
    kn_pool_run_apart(c->b->pool, c->n_tasks, group_item, NULL, c);
    if (c->n_units < 16) {
        for (size_t i = 0; i < c->n_units; i++)
            merge_item(c, i, 0);
    } else {
        kn_pool_run(c->b->pool, c->n_units, merge_item, c);
    }
    return KN_OK;
}

int kn_attention_window(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
                        const struct kn_attn_seq *seqs, size_t n_seqs, uint32_t q_heads, uint32_t window,
                        float scale, const float *q, size_t ldq, float *out, size_t ldo)
{
    if (l->head_dim == 0 || l->head_dim % 16 != 0 || l->head_dim > KN_HEAD_DIM_MAX || l->kv_heads == 0 ||
        q_heads == 0 || q_heads % l->kv_heads != 0 || layer >= l->layers)
        return KN_EINVAL;
    struct attention_call c = {.b = b,
                               .l = l,
                               .layer = layer,
                               .heads_a_kv = q_heads / l->kv_heads,
                               .window = window,
                               .seqs = seqs,
                               .scale = scale,
                               .q = q,
                               .ldq = ldq,
                               .out = out,
                               .ldo = ldo};
    c.n_units = count_units(&c, n_seqs);
    if (c.n_units == 0)
        return KN_OK;
    c.worker_floats = (DESK_FLOATS(l->head_dim) + 1023) & ~(size_t)1023;
    size_t worker_bytes = b->threads * c.worker_floats * sizeof(float);
    int rc = kn_scratch_reserve(&b->attention, worker_bytes + c.n_units * sizeof(struct unit));
    if (rc != KN_OK)
        return rc;
    c.worker_data = b->attention.data;
    c.units = (struct unit *)(void *)((char *)b->attention.data + worker_bytes);
    size_t partials = list_units(&c, n_seqs);
    bool by_group = b->threads > 1 && c.n_units < 8 * (size_t)b->threads && c.n_tasks > c.n_units;
    if (by_group)
        return run_by_group(&c, partials);
    kn_pool_run(b->pool, c.n_units, unit_item, &c);
    return KN_OK;
}

int kn_attention(struct kn_backend *b, const struct kn_kv_layout *l, uint32_t layer,
                 const struct kn_attn_seq *seqs, size_t n_seqs, uint32_t q_heads, float scale, const float *q,
                 size_t ldq, float *out, size_t ldo)
{
    return kn_attention_window(b, l, layer, seqs, n_seqs, q_heads, 0, scale, q, ldq, out, ldo);
}
