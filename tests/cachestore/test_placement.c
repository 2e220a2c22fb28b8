/* Where checkpoints lie: the pure functions of policy/placement.h. */
#include "tests/cachestore/harness.h"

#include "cachestore/policy/placement.h"

#include <math.h>
#include <stdlib.h>

enum { MANY = 300 };

static void points_at(struct placement_point *points, const uint32_t *positions, size_t n)
{
    for (size_t i = 0; i < n; i++)
        points[i] = (struct placement_point){.position = positions[i], .kind = CS_BOUNDARY_TURN};
}

static void candidates_lie_on_the_grid_at_or_before_their_boundary(void **state)
{
    (void)state;
    const struct cs_boundary b[] = {{.position = 70, .kind = CS_BOUNDARY_SYSTEM},
                                    {.position = 63, .kind = CS_BOUNDARY_TURN},
                                    {.position = 130, .kind = CS_BOUNDARY_TURN},
                                    {.position = 150, .kind = CS_BOUNDARY_TURN},
                                    {.position = 256, .kind = CS_BOUNDARY_END}};
    struct placement_point out[6];
    size_t n = placement_candidates(b, 5, 256, 64, 0, 0, out);
    assert_int_equal(n, 3);
    assert_int_equal(out[0].position, 64);
    assert_int_equal(out[0].kind, CS_BOUNDARY_SYSTEM);
    assert_int_equal(out[1].position, 128); /* two boundaries, one position */
    assert_int_equal(out[2].position, 192); /* the end: at or before 255 */
    assert_int_equal(out[2].kind, CS_BOUNDARY_END);
    /* What the sequence has behind it is no candidate; a branch point is one. */
    n = placement_candidates(b, 5, 256, 64, 64, 200, out);
    assert_int_equal(n, 2);
    assert_int_equal(out[0].position, 128);
    assert_int_equal(out[1].position, 192);
    assert_int_equal(out[1].kind, CS_BOUNDARY_BRANCH);
    assert_int_equal(placement_candidates(NULL, 0, 256, 64, 0, 0, out), 0);
    assert_int_equal(placement_candidates(b, 5, 0, 64, 0, 0, out), 0);
}

static void points_of_one_position_are_joined_and_the_stronger_kind_stays(void **state)
{
    (void)state;
    int item;
    struct placement_point p[] = {{.position = 32, .kind = CS_BOUNDARY_END},
                                  {.position = 16, .kind = CS_BOUNDARY_TURN},
                                  {.position = 16, .kind = CS_BOUNDARY_SYSTEM, .item = &item},
                                  {.position = 32, .kind = CS_BOUNDARY_BRANCH}};
    assert_int_equal(placement_sort(p, 4), 2);
    assert_int_equal(p[0].position, 16);
    assert_int_equal(p[0].kind, CS_BOUNDARY_SYSTEM);
    assert_ptr_equal(p[0].item, &item);
    assert_int_equal(p[1].kind, CS_BOUNDARY_BRANCH);
    assert_int_equal(placement_sort(p, 0), 0);
}

/* The definition, without cleverness. */
static void thin_plainly(struct placement_point *p, size_t n, uint32_t k)
{
    size_t kept = n;
    for (size_t i = 0; i < n; i++)
        p[i].kept = true;
    while (kept > k) {
        size_t least = n;
        double least_cost = INFINITY;
        for (size_t i = 0; i + 2 < n; i++) {
            if (!p[i].kept)
                continue;
            size_t after = i + 1;
            double before = 0;
            while (!p[after].kept)
                after++;
            for (size_t b = 0; b < i; b++)
                before = p[b].kept ? p[b].position : before;
            double last = p[n - 1].position,
                   cost = (p[i].position - before) *
                          log((last - p[i].position + 64) / (last - p[after].position + 64));
            if (p[i].kind == CS_BOUNDARY_BRANCH)
                cost += 1e12;
            if (p[i].kind == CS_BOUNDARY_SYSTEM)
                cost += 2e12;
            if (cost < least_cost) {
                least_cost = cost;
                least = i;
            }
        }
        p[least].kept = false;
        kept--;
    }
}

static void thinning_drops_the_least_cost_first(void **state)
{
    (void)state;
    uint64_t rng = 7;
    for (int round = 0; round < 40; round++) {
        struct placement_point a[MANY], b[MANY];
        size_t n = 2 + random_next(&rng) % (MANY - 2);
        uint32_t at = 0, k = 2 + (uint32_t)(random_next(&rng) % 10);
        for (size_t i = 0; i < n; i++) {
            at += 16 * (1 + (uint32_t)(random_next(&rng) % 40));
            a[i] = (struct placement_point){.position = at,
                                            .kind = random_next(&rng) % 20 == 0   ? CS_BOUNDARY_BRANCH
                                                    : random_next(&rng) % 40 == 0 ? CS_BOUNDARY_SYSTEM
                                                                                  : CS_BOUNDARY_TURN};
            b[i] = a[i];
        }
        size_t kept = placement_thin(a, n, k);
        thin_plainly(b, n, k);
        assert_int_equal(kept, n < k ? n : k);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(a[i].kept, b[i].kept);
    }
}

static void the_system_boundary_and_the_last_two_stay(void **state)
{
    (void)state;
    uint32_t positions[MANY];
    struct placement_point p[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        positions[i] = 16 * (i + 1);
    for (uint32_t k = 1; k <= 8; k++) {
        points_at(p, positions, MANY);
        p[3].kind = CS_BOUNDARY_SYSTEM;
        assert_int_equal(placement_thin(p, MANY, k), k);
        assert_true(p[MANY - 1].kept);
        assert_int_equal(p[MANY - 2].kept, k >= 2);
        assert_int_equal(p[3].kept, k >= 3);
    }
}

static void branch_points_go_when_nothing_else_is_left(void **state)
{
    (void)state;
    uint32_t positions[] = {16, 32, 48, 64, 80, 96, 112, 128};
    struct placement_point p[8];
    points_at(p, positions, 8);
    p[0].kind = CS_BOUNDARY_SYSTEM;
    p[1].kind = p[4].kind = CS_BOUNDARY_BRANCH;
    assert_int_equal(placement_thin(p, 8, 5), 5);
    assert_true(p[0].kept && p[1].kept && p[4].kept && p[6].kept && p[7].kept);
    assert_int_equal(placement_thin(p, 8, 4), 4);
    assert_true(p[0].kept && p[6].kept && p[7].kept);
    assert_int_equal(p[1].kept + p[4].kept, 1);
}

static void what_stays_is_dense_at_the_end_and_thin_at_the_start(void **state)
{
    (void)state;
    struct placement_point p[MANY];
    uint32_t positions[MANY], last_gap = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i < MANY; i++)
        positions[i] = 64 * (i + 1);
    points_at(p, positions, MANY);
    assert_int_equal(placement_thin(p, MANY, 8), 8);
    for (size_t i = 0; i < MANY; i++)
        if (p[i].kept) {
            assert_true(p[i].position - last <= last_gap);
            last_gap = p[i].position - last;
            last = p[i].position;
        }
}

static void a_path_grown_turn_by_turn_never_has_more_than_k(void **state)
{
    (void)state;
    struct placement_point p[9];
    size_t n = 0;
    uint64_t rng = 3;
    uint32_t at = 0;
    for (int turn = 0; turn < 500; turn++) {
        at += 16 * (1 + (uint32_t)(random_next(&rng) % 30));
        p[n++] =
            (struct placement_point){.position = at, .kind = turn ? CS_BOUNDARY_TURN : CS_BOUNDARY_SYSTEM};
        n = placement_sort(p, n);
        placement_thin(p, n, 8);
        size_t kept = 0;
        for (size_t i = 0; i < n; i++)
            if (p[i].kept)
                p[kept++] = p[i];
        assert_true(kept <= 8);
        assert_int_equal(p[0].kind, CS_BOUNDARY_SYSTEM);
        assert_int_equal(p[kept - 1].position, at);
        n = kept;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_lie_on_the_grid_at_or_before_their_boundary),
        cmocka_unit_test(points_of_one_position_are_joined_and_the_stronger_kind_stays),
        cmocka_unit_test(thinning_drops_the_least_cost_first),
        cmocka_unit_test(the_system_boundary_and_the_last_two_stay),
        cmocka_unit_test(branch_points_go_when_nothing_else_is_left),
        cmocka_unit_test(what_stays_is_dense_at_the_end_and_thin_at_the_start),
        cmocka_unit_test(a_path_grown_turn_by_turn_never_has_more_than_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
