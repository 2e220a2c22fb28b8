/*
 * Matrix products: x is quantised once, then tiles of all parts are shared out to the pool. How work is cut
 * never shows in a result: every output is summed by one task in one order (kernels.h, "Bit rules").
 */
#include "kernels/cpu/internal.h"
#include <string.h>

/* How tiles of all parts and rows of x are shared out: tasks of one stretch of tiles lie side by side. */
struct cut {
    uint32_t tiles, tiles_a_task;
    size_t row_tasks, rows_a_task;
};

struct product {
    struct kn_backend *b;
    const struct kn_matmul_args *a;
    uint32_t cols, group; /* group: of the quantised parts being multiplied */
    bool has_min;         /* has any part? */
    struct cut cut, next; /* next: of the product after this one; no tiles: not known */
    const struct kn_matrix *const *next_parts;
    /* quantised x */
    int16_t *xq;
    float *dx, *dxsum;
    size_t panels;
};

static bool part_is_quantised(const struct kn_matrix *m)
{
    return m->groups != 0;
}

/* ---- activations ---- */

static struct kn_panel panel_at(const struct product *p, size_t i)
{
    const struct kn_matmul_path *path = p->b->matmul;
    size_t row = i * path->panel_rows, left = p->a->n - row;
    unsigned rows = left < path->panel_rows ? (unsigned)left : path->panel_rows;
    size_t groups = p->cols / p->group;
    return (struct kn_panel){.x = p->xq + row * p->cols,
                             .dx = p->dx + row * (p->cols / KN_BLOCK),
                             .dxsum = p->dxsum + row * groups,
                             .height = path->panel_height(rows),
                             .rows = rows};
}

static void quantize_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct product *p = arg;
    struct kn_panel panel = panel_at(p, i);
    p->b->matmul->quantize(p->a->x + i * p->b->matmul->panel_rows * p->a->ldx, p->a->ldx, panel.rows,
                           panel.height, p->cols, p->group, (int16_t *)panel.x, (float *)panel.dx,
                           p->has_min ? (float *)panel.dxsum : NULL);
}

static int quantize_x(struct product *p)
{
    size_t panel_rows = p->b->matmul->panel_rows;
    p->panels = (p->a->n + panel_rows - 1) / panel_rows;
    size_t rows = p->panels * panel_rows;
    size_t floats_a_row = p->cols / KN_BLOCK + p->cols / p->group;
    size_t row_bytes = p->cols * sizeof(int16_t) + floats_a_row * sizeof(float), bytes;
    if (__builtin_mul_overflow(rows, row_bytes, &bytes))
        return KN_ENOMEM;
    int rc = kn_scratch_reserve(&p->b->activations, bytes);
    if (rc != KN_OK)
        return rc;
    p->xq = p->b->activations.data;
    p->dx = (float *)(void *)(p->xq + rows * p->cols);
    p->dxsum = p->dx + rows * (p->cols / KN_BLOCK);
    if (p->a->n * p->cols < 4096) {
        for (size_t i = 0; i < p->panels; i++)
            quantize_item(p, i, 0);
    } else {
        kn_pool_run(p->b->pool, p->panels, quantize_item, p);
    }
    return KN_OK;
}

/* ---- tasks ---- */

/* Tiles [t0, t1) of one part against rows [row, row + rows) of x. */
static void multiply(const struct product *p, const struct kn_matrix *m, size_t column, uint32_t t0,
                     uint32_t t1, size_t row, size_t rows, unsigned worker)
{
    const struct kn_matmul_args *a = p->a;
    const struct kn_matmul_path *path = p->b->matmul;
    struct kn_out out = {.y = a->y + row * a->ldy + column,
                         .ldy = a->ldy,
                         .bias = a->bias ? a->bias + column : NULL,
                         .accumulate = a->accumulate};
    if (!part_is_quantised(m)) {
        path->matmul_float(m, t0, t1, a->x + row * a->ldx, a->ldx, (unsigned)rows, &out);
        return;
    }
    struct kn_panel panels[KN_ROWS_AT_ONCE];
    unsigned n = 0;
    for (size_t r = 0; r < rows; r += path->panel_rows)
        panels[n++] = panel_at(p, (row + r) / path->panel_rows);
    if (n == 1 && panels[0].height <= path->small_rows) {
        path->matmul_small(m, t0, t1, panels, &out);
        return;
    }
    uint8_t *scratch = (uint8_t *)p->b->workers.data + worker * p->b->worker_stride;
    path->matmul_large(m, t0, t1, panels, n, &out, scratch, (float *)(void *)(scratch + KN_UNPACK_BYTES));
}

/* Does this pass of the product handle part m? One pass a group size, floats go with the first. */
static bool part_in_pass(const struct product *p, const struct kn_matrix *m)
{
    return part_is_quantised(m) ? m->spec.group == p->group : p->group != 16;
}

static void product_item(void *arg, size_t i, unsigned worker)
{
    const struct product *p = arg;
    size_t row = i % p->cut.row_tasks * p->cut.rows_a_task;
    size_t rows = p->a->n - row < p->cut.rows_a_task ? p->a->n - row : p->cut.rows_a_task;
    uint32_t t0 = (uint32_t)(i / p->cut.row_tasks) * p->cut.tiles_a_task;
    uint32_t t1 = p->cut.tiles - t0 < p->cut.tiles_a_task ? p->cut.tiles : t0 + p->cut.tiles_a_task;
    size_t column = 0;
    for (size_t k = 0; k < p->a->n_parts && t1 > 0; k++) {
        const struct kn_matrix *m = p->a->parts[k];
        uint32_t from = t0 < m->tiles ? t0 : m->tiles, to = t1 < m->tiles ? t1 : m->tiles;
        if (from < to && part_in_pass(p, m))
            multiply(p, m, column, from, to, row, rows, worker);
        t0 -= from;
        t1 -= to;
        column += m->spec.rows;
    }
}

/* Few rows: memory is the bound, and a task is worth its while from so many bytes of weights on. */
#define FEW_ROWS       8
#define BYTES_A_TASK   8192
#define TASKS_A_THREAD 8

/* Each thread gets several tasks; with many rows none is smaller than about 20 microseconds. */
static struct cut cut_tasks(const struct kn_backend *b, const struct kn_matrix *const *parts, size_t n_parts,
                            size_t n)
{
    unsigned panel_rows = b->matmul->panel_rows;
    size_t tile_bytes = 1; /* the most of a part's */
    struct cut c = {.rows_a_task = KN_ROWS_AT_ONCE / panel_rows * panel_rows};
    for (size_t i = 0; i < n_parts; i++) {
        c.tiles += parts[i]->tiles;
        tile_bytes = tile_bytes < parts[i]->tile_bytes ? parts[i]->tile_bytes : tile_bytes;
    }
    c.row_tasks = (n + c.rows_a_task - 1) / c.rows_a_task;
    size_t wanted = (size_t)TASKS_A_THREAD * b->threads / c.row_tasks + 1;
    size_t tiles = (c.tiles + wanted - 1) / wanted;
    size_t least =
        n < FEW_ROWS ? 1 + (BYTES_A_TASK - 1) / tile_bytes : 1 + 65536 / (parts[0]->spec.cols * FEW_ROWS);
    if (tiles < least)
        tiles = least;
    c.tiles_a_task = (uint32_t)(tiles + (tiles & 1)); /* even: tiles are unpacked in pairs */
    return c;
}

static size_t tasks_of(const struct cut *c)
{
    return (c->tiles + c->tiles_a_task - 1) / c->tiles_a_task * c->row_tasks;
}

/* What is asked for of the next product while its x is not there yet: as much as memory gives meanwhile. */
#define NEXT_BYTES 65536
#define OWN_BYTES  4096 /* of this one, by the caller, before it rounds x */

/* The beginning of what a thread reads of some parts cut so; few rows only. */
static struct kn_stretch beginning(const struct kn_backend *b, const struct cut *c,
                                   const struct kn_matrix *const *parts, unsigned worker)
{
    size_t from, to;
    kn_pool_items_apart(b->pool, tasks_of(c), worker, &from, &to);
    if (from == to)
        return (struct kn_stretch){NULL, 0};
    size_t t = from * c->tiles_a_task;
    for (; t >= (*parts)->tiles; parts++)
        t -= (*parts)->tiles;
    size_t left = (*parts)->data_bytes - t * (*parts)->tile_bytes;
    return (struct kn_stretch){(*parts)->data + t * (*parts)->tile_bytes,
                               left < NEXT_BYTES ? left : NEXT_BYTES};
}

static struct kn_stretch next_beginning(void *arg, unsigned worker)
{
    const struct product *p = arg;
    return p->next.tiles ? beginning(p->b, &p->next, p->next_parts, worker) : (struct kn_stretch){NULL, 0};
}

static int run_pass(struct product *p, bool quantised)
{
    if (quantised) {
        int rc = quantize_x(p);
        if (rc != KN_OK)
            return rc;
    }
    kn_pool_run_apart(p->b->pool, tasks_of(&p->cut), product_item, next_beginning, p);
    return KN_OK;
}

int kn_matmul(struct kn_backend *b, const struct kn_matmul_args *a)
{
    if (a->n_parts == 0)
        return KN_EINVAL;
    struct product p = {.b = b, .a = a, .cols = a->parts[0]->spec.cols, .group = KN_BLOCK};
    bool group32 = false, group16 = false, floats = false;
    uint64_t tiles = 0;
    for (size_t i = 0; i < a->n_parts; i++) {
        const struct kn_matrix *m = a->parts[i];
        if (m->spec.cols != p.cols)
            return KN_EINVAL;
        tiles += m->tiles;
        p.has_min |= m->spec.has_min;
        group32 |= part_is_quantised(m) && m->spec.group == 32;
        group16 |= part_is_quantised(m) && m->spec.group == 16;
        floats |= !part_is_quantised(m);
    }
    if (tiles > UINT32_MAX / 2)
        return KN_EINVAL;
    if (a->n == 0)
        return KN_OK;
    p.cut = cut_tasks(b, a->parts, a->n_parts, a->n);
    if (a->n < FEW_ROWS) {
        struct kn_stretch own = beginning(b, &p.cut, a->parts, 0);
        kn_stretch_ask(&own, OWN_BYTES);
        if (b->n_next_parts > 0)
            p.next = cut_tasks(b, b->next_parts, b->n_next_parts, a->n);
        p.next_parts = b->next_parts;
    }
    b->n_next_parts = 0;
    int rc = KN_OK;
    if (group32 || floats)
        rc = run_pass(&p, group32);
    if (rc == KN_OK && group16) {
        p.group = 16;
        rc = run_pass(&p, true);
    }
    return rc;
}

void kn_matmul_announce(struct kn_backend *b, const struct kn_matrix *const *parts, size_t n_parts)
{
    b->next_parts = parts;
    b->n_next_parts = n_parts;
}

/* ---- embedding look-up ---- */

struct gather_call {
    const struct kn_matmul_path *path;
    const struct kn_matrix *m;
    const uint32_t *ids;
    float *out;
};

static void gather_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct gather_call *g = arg;
    g->path->gather(g->m, g->ids[i], g->out + i * g->m->spec.cols);
}

void kn_gather_rows(struct kn_backend *b, const struct kn_matrix *m, const uint32_t *ids, size_t n,
                    float *out)
{
    struct gather_call g = {b->matmul, m, ids, out};
    if (n < 4) {
        for (size_t i = 0; i < n; i++)
            gather_item(&g, i, 0);
    } else {
        kn_pool_run(b->pool, n, gather_item, &g);
    }
}
