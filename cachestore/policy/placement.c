/* Placement of checkpoints (see placement.h). */
#include "cachestore/policy/placement.h"

#include <math.h>
#include <stdlib.h>

#define DISTANCE_FLOOR 64.0 /* tokens: leaving the path closer to its end than this is equally likely */
#define NEVER          INFINITY
#define KIND_STEP      1e12 /* above every coverage cost: 2^32 * ln(2^32) is below 1e11 */
#define NOBODY         UINT32_MAX
#define PROTECTED_TAIL 2

static int kind_rank(enum cs_boundary_kind kind)
{
    switch (kind) {
    case CS_BOUNDARY_SYSTEM:
        return 2;
    case CS_BOUNDARY_BRANCH:
        return 1;
    default:
        return 0;
    }
}

enum cs_boundary_kind placement_merge(enum cs_boundary_kind a, enum cs_boundary_kind b)
{
    return kind_rank(b) > kind_rank(a) ? b : a;
}

static int compare_points(const void *a, const void *b)
{
    const struct placement_point *pa = a, *pb = b;
    return (pa->position > pb->position) - (pa->position < pb->position);
}

size_t placement_sort(struct placement_point *points, size_t n)
{
    if (n == 0)
        return 0;
    qsort(points, n, sizeof *points, compare_points);
    size_t last = 0;
    for (size_t i = 1; i < n; i++) {
        if (points[i].position != points[last].position) {
            points[++last] = points[i];
            continue;
        }
        points[last].kind = placement_merge(points[last].kind, points[i].kind);
        if (!points[last].item)
            points[last].item = points[i].item;
    }
    return last + 1;
}

size_t placement_candidates(const struct cs_boundary *boundaries, size_t n_boundaries, uint32_t n_tokens,
                            uint32_t grid, uint32_t after, uint32_t branch, struct placement_point *out)
{
    size_t n = 0;
    for (size_t i = 0; i <= n_boundaries; i++) {
        struct cs_boundary b = i < n_boundaries
                                   ? boundaries[i]
                                   : (struct cs_boundary){.position = branch, .kind = CS_BOUNDARY_BRANCH};
        uint32_t limit = n_tokens;
        if (b.kind == CS_BOUNDARY_END && limit > 0)
            limit--;
        uint32_t position = (b.position < limit ? b.position : limit) / grid * grid;
        if (position > after)
            out[n++] = (struct placement_point){.position = position, .kind = b.kind};
    }
    return placement_sort(out, n);
}

/* ---- thinning: a linked list of what is kept, and a tree of tournaments for the least cost ------------- */

/* Node j of the tree: 1 is the root, j's children are 2j and 2j + 1, point i is leaf n + i. */
static uint32_t *node(struct placement_point *points, size_t j)
{
    return &points[j / 2].least[j % 2];
}

static void play_up(struct placement_point *points, size_t n, size_t i)
{
    for (size_t j = (n + i) / 2; j >= 1; j /= 2) {
        uint32_t a = *node(points, 2 * j), b = *node(points, 2 * j + 1);
        *node(points, j) = points[b].cost < points[a].cost ? b : a;
    }
}

static double cost_of(const struct placement_point *points, size_t n, size_t i)
{
    const struct placement_point *p = &points[i];
    if (p->after == NOBODY)
        return NEVER;
    double last = points[n - 1].position, before = p->before == NOBODY ? 0 : points[p->before].position,
           after = points[p->after].position, position = p->position;
    double cost =
        (position - before) * log((last - position + DISTANCE_FLOOR) / (last - after + DISTANCE_FLOOR));
    return cost + KIND_STEP * kind_rank(p->kind);
}

size_t placement_thin(struct placement_point *points, size_t n, uint32_t k)
{
    size_t kept = n;
    for (size_t i = 0; i < n; i++)
        points[i].kept = true;
    if (n <= k)
        return n;
    size_t tail = k < PROTECTED_TAIL ? k : PROTECTED_TAIL;
    for (size_t i = 0; i < n; i++) {
        points[i].before = i > 0 ? (uint32_t)(i - 1) : NOBODY;
        points[i].after = i + 1 < n ? (uint32_t)(i + 1) : NOBODY;
        *node(points, n + i) = (uint32_t)i;
    }
    for (size_t i = 0; i < n; i++)
        points[i].cost = i + tail >= n ? NEVER : cost_of(points, n, i);
    for (size_t j = n - 1; j >= 1; j--) {
        uint32_t a = *node(points, 2 * j), b = *node(points, 2 * j + 1);
        *node(points, j) = points[b].cost < points[a].cost ? b : a;
    }
    while (kept > k) {
        uint32_t i = *node(points, 1);
        struct placement_point *p = &points[i];
        p->kept = false;
        p->cost = NEVER;
        kept--;
        play_up(points, n, i);
        if (p->before != NOBODY) {
            points[p->before].after = p->after;
            points[p->before].cost = cost_of(points, n, p->before);
            play_up(points, n, p->before);
        }
        if (p->after != NOBODY) {
            points[p->after].before = p->before;
            if (p->after + tail < n) {
                points[p->after].cost = cost_of(points, n, p->after);
                play_up(points, n, p->after);
            }
        }
    }
    return kept;
}
