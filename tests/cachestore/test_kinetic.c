/* The kinetic heap against a look at all candidates. */
#include "tests/cachestore/harness.h"

#include "cachestore/kinetic.h"
#include "cachestore/policy/worth.h"

#include <stddef.h>
#include <string.h>

#define SECOND 1000000ull
#define HOUR   (3600 * SECOND)
#define START  (1000000 * HOUR)

enum { MOST = 300, HEAPS = 7, ALL_WORK = 1000000 };

struct item {
    struct kinetic_node node[2]; /* of a heap alone; of one among several */
    struct evict_facts age;
    uint32_t heap;
};

struct world {
    struct item items[MOST];
    struct kinetic_heap alone, of_members;
    struct kinetic_member members[HEAPS];
    uint64_t now, rng;
};

static void world_begin(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->now = START;
    w->rng = seed;
    w->alone = kinetic_heap_of((int16_t)(offsetof(struct item, age) - offsetof(struct item, node[0])));
    w->of_members = kinetic_heap_of_members();
    for (int i = 0; i < HEAPS; i++)
        w->members[i].heap =
            kinetic_heap_of((int16_t)(offsetof(struct item, age) - offsetof(struct item, node[1])));
}

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(random_next(&w->rng) % n);
}

static struct kinetic_member *member_of(struct world *w, const struct item *it)
{
    return &w->members[it->heap];
}

/* A few values and moments only, so that there are equals; products are exact. */
static void draw_line(struct world *w, struct item *it)
{
    it->node[0].value = it->node[1].value = (float)(1 + it->heap + 8 * below(w, 5));
    it->node[1].turn = it->node[0].turn;
    it->age.last_used = w->now - 10 * SECOND * below(w, 400);
    it->age.first_position = below(w, 4);
}

static void put(struct world *w, struct item *it)
{
    it->heap = below(w, HEAPS);
    it->node[0].turn = (uint8_t)(below(w, 20) == 0);
    draw_line(w, it);
    kinetic_insert(&w->alone, &it->node[0], w->now);
    kinetic_insert(&member_of(w, it)->heap, &it->node[1], w->now);
    kinetic_member_changed(&w->of_members, member_of(w, it), w->now);
}

static void take(struct world *w, struct item *it)
{
    kinetic_remove(&w->alone, &it->node[0], w->now);
    kinetic_remove(&member_of(w, it)->heap, &it->node[1], w->now);
    kinetic_member_changed(&w->of_members, member_of(w, it), w->now);
    assert_false(it->node[0].ranked || it->node[1].ranked);
}

static void set(struct world *w, struct item *it)
{
    kinetic_changed(&w->alone, &it->node[0], w->now);
    kinetic_changed(&member_of(w, it)->heap, &it->node[1], w->now);
    kinetic_member_changed(&w->of_members, member_of(w, it), w->now);
}

static void change(struct world *w, struct item *it)
{
    draw_line(w, it);
    set(w, it);
}

static const struct evict_facts *age_of(const struct kinetic_heap *h, const struct kinetic_node *n)
{
    return (const void *)((const char *)n + h->age_at);
}

/* Each at its place, and right but where it is known that it may not be. */
static uint32_t check_tree(const struct kinetic_heap *h, const struct kinetic_node *n, uint32_t at,
                           uint64_t now)
{
    if (!n)
        return 0;
    assert_true(n->ranked && at >= 1 && at <= h->n);
    const struct kinetic_node *p = n->parent;
    assert_true(at == 1 ? !p : (at % 2 ? p->right : p->left) == n);
    if (p) {
        assert_true(p->fails <= n->fails);
        assert_true(n->fails <= now || !kinetic_before(n, age_of(h, n), p, age_of(h, p), now));
    }
    if (h->of_members) {
        const struct kinetic_member *m = (const void *)n;
        const struct kinetic_node *first = m->heap.root;
        assert_true(first && m->node.fails <= first->fails && m->node.turn == first->turn &&
                    m->node.value == first->value && m->age.last_used == age_of(&m->heap, first)->last_used);
    }
    return 1 + check_tree(h, n->left, 2 * at, now) + check_tree(h, n->right, 2 * at + 1, now);
}

static void check(const struct world *w)
{
    uint32_t n = 0;
    assert_int_equal(check_tree(&w->alone, w->alone.root, 1, w->now), w->alone.n);
    assert_int_equal(check_tree(&w->of_members, w->of_members.root, 1, w->now), w->of_members.n);
    for (int i = 0; i < HEAPS; i++) {
        const struct kinetic_member *m = &w->members[i];
        assert_int_equal(check_tree(&m->heap, m->heap.root, 1, w->now), m->heap.n);
        assert_int_equal(m->node.ranked, m->heap.n > 0);
        n += m->heap.n;
    }
    assert_int_equal(n, w->alone.n);
}

/* heap: HEAPS for all. */
static const struct item *least(const struct world *w, uint32_t heap)
{
    const struct item *best = NULL;
    for (int i = 0; i < MOST; i++) {
        const struct item *it = &w->items[i];
        if (it->node[0].ranked && (heap == HEAPS || it->heap == heap) &&
            (!best || kinetic_before(&it->node[0], &it->age, &best->node[0], &best->age, w->now)))
            best = it;
    }
    return best;
}

static const struct item *first_alone(struct world *w, uint32_t *work)
{
    struct kinetic_node *n = kinetic_first(&w->alone, w->now, work);
    return n ? (const void *)((const char *)n - offsetof(struct item, node[0])) : NULL;
}

static const struct item *first_of(struct kinetic_member *m)
{
    const char *n = m ? (const char *)m->heap.root : NULL;
    return n ? (const void *)(n - offsetof(struct item, node[1])) : NULL;
}

static const struct item *first_of_all(struct world *w, uint32_t *work)
{
    return first_of((struct kinetic_member *)(void *)kinetic_first(&w->of_members, w->now, work));
}

/* Of those that are equal in all that counts any may be first. */
static void assert_same(const struct item *got, const struct item *want)
{
    if (got == want)
        return;
    assert_true(got && want);
    assert_int_equal(got->node[0].turn, want->node[0].turn);
    assert_int_equal(got->age.last_used, want->age.last_used);
    assert_int_equal(got->age.first_position, want->age.first_position);
    assert_true(got->node[0].value == want->node[0].value);
}

static void check_firsts(struct world *w)
{
    uint32_t work = ALL_WORK;
    if (below(w, 3) == 0) {
        uint32_t i = below(w, HEAPS);
        (void)kinetic_first(&w->members[i].heap, w->now, &work);
        kinetic_member_changed(&w->of_members, &w->members[i], w->now);
        assert_same(first_of(&w->members[i]), least(w, i));
    }
    assert_same(first_alone(w, &work), least(w, HEAPS));
    assert_same(first_of_all(w, &work), least(w, HEAPS));
    assert_true(w->alone.n == 0 || w->alone.root->fails > w->now);
    assert_true(w->of_members.n == 0 || w->of_members.root->fails > w->now);
}

static void the_first_is_the_least_of_all_at_any_time(void **state)
{
    (void)state;
    static struct world w;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        world_begin(&w, seed);
        for (int step = 0; step < 4000; step++) {
            struct item *it = &w.items[below(&w, seed % 2 ? MOST : 20)];
            uint32_t what = below(&w, 8);
            if (!it->node[0].ranked)
                put(&w, it);
            else if (what < 2)
                take(&w, it);
            else if (what < 5)
                change(&w, it);
            if (what == 7) /* some microseconds, some seconds, some hours */
                w.now += 1 + below(&w, 3) * below(&w, (uint32_t[]){5, 100 * SECOND, 2000 * SECOND}[step % 3]);
            if (step % 5 == 0)
                check_firsts(&w);
            if (step % 50 == 0)
                check(&w);
        }
        /* All leave, the least worthy first. */
        while (w.alone.n > 0) {
            uint32_t work = ALL_WORK;
            w.now += 3 * SECOND;
            const struct item *it = first_of_all(&w, &work);
            assert_same(it, least(&w, HEAPS));
            take(&w, &w.items[it - w.items]);
        }
        check(&w);
        assert_null(w.alone.root);
        assert_null(w.of_members.root);
    }
}

static void of_equals_the_oldest_goes_and_then_the_deepest(void **state)
{
    (void)state;
    static struct world w;
    world_begin(&w, 1);
    /* The same worth, younger and older; as old, deeper; another turn, worth least. */
    const struct {
        float value;
        uint64_t age_s;
        uint32_t position;
        uint8_t turn;
    } lines[] = {{1, 10, 0, 1}, {3, 50, 0, 1}, {3, 50, 7, 1}, {2, 30, 9, 1}, {1, 9000, 0, 2}, {90, 0, 0, 0}};
    const int order[] = {5, 2, 1, 3, 0, 4};
    for (int i = 0; i < 6; i++) {
        struct item *it = &w.items[i];
        it->node[0] = (struct kinetic_node){.value = lines[i].value, .turn = lines[i].turn};
        it->age = (struct evict_facts){w.now - lines[i].age_s * SECOND, lines[i].position, false};
        kinetic_insert(&w.alone, &it->node[0], w.now);
    }
    for (int i = 0; i < 6; i++) {
        uint32_t work = ALL_WORK;
        assert_ptr_equal(first_alone(&w, &work), &w.items[order[i]]);
        kinetic_remove(&w.alone, &w.items[order[i]].node[0], w.now);
    }
}

/* However much time has put out of order, a question looks at what it may and no more; the next ones go on.
 */
static void work_is_bounded_and_gets_done(void **state)
{
    (void)state;
    static struct world w;
    world_begin(&w, 3);
    for (int i = 0; i < MOST; i++) {
        struct item *it = &w.items[i];
        put(&w, it);
        /* The greater its value the sooner it goes; in some days it will be the other way round. */
        it->node[0].value = it->node[1].value = (float)(1 + i);
        it->age.last_used = w.now - (uint64_t)(i + 1) * (uint64_t)(i + 1) * SECOND;
        set(&w, it);
    }
    check_firsts(&w);
    w.now += 1000 * HOUR;
    int calls = 0;
    bool wrong = false;
    do {
        uint32_t work = 14;
        const struct item *it = first_of_all(&w, &work);
        assert_true(work <= 14);
        wrong |= it != least(&w, HEAPS);
        check(&w);
        /* What comes and goes meanwhile is put where it belongs among the others. */
        if (calls % 4 == 3)
            change(&w, &w.items[MOST / 2 + below(&w, MOST / 2)]);
        assert_true(++calls < 400);
    } while (w.of_members.root->fails <= w.now);
    assert_true(calls > 3 && wrong);
    check_firsts(&w);
}

static void a_clock_that_goes_back_changes_no_order_and_harms_none(void **state)
{
    (void)state;
    static struct world w;
    world_begin(&w, 4);
    for (int i = 0; i < MOST; i++)
        put(&w, &w.items[i]);
    w.now += HOUR;
    check_firsts(&w);
    const struct item *before = least(&w, HEAPS);
    uint64_t later = w.now;
    w.now -= HOUR / 2;
    uint32_t work = ALL_WORK;
    assert_ptr_equal(first_of_all(&w, &work), before);
    for (int i = 0; i < MOST; i += 2) {
        change(&w, &w.items[i]);
        (void)first_of_all(&w, &work);
        (void)first_alone(&w, &work);
    }
    for (w.now = later; w.now < later + HOUR; w.now += HOUR / 8) {
        check(&w);
        check_firsts(&w);
    }
}

/* Values of any size, ages before the beginning: worth is not less than the least by more than a rounding. */
static void any_values_and_ages_are_in_order(void **state)
{
    (void)state;
    static struct world w;
    world_begin(&w, 5);
    for (int i = 0; i < MOST; i++) {
        struct item *it = &w.items[i];
        it->node[0].value = 1e-30f;
        for (uint32_t n = below(&w, 200); n > 0; n--)
            it->node[0].value *= 2.1f;
        it->age.last_used = w.now + HOUR - random_next(&w.rng) % (2000 * HOUR);
        kinetic_insert(&w.alone, &it->node[0], w.now);
    }
    for (int step = 0; step < 40; step++) {
        w.now += step < 3 ? 0 : HOUR;
        uint32_t work = ALL_WORK;
        const struct item *got = first_alone(&w, &work), *want = least(&w, HEAPS);
        double worth[] = {got->node[0].value / ((double)(int64_t)(w.now - got->age.last_used) + 1e7),
                          want->node[0].value / ((double)(int64_t)(w.now - want->age.last_used) + 1e7)};
        assert_true(got == want || worth[0] <= worth[1] * (1 + 1e-12));
        struct item *it = &w.items[got - w.items];
        it->age.last_used = w.now;
        kinetic_changed(&w.alone, &it->node[0], w.now);
        assert_int_equal(check_tree(&w.alone, w.alone.root, 1, w.now), MOST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_the_least_of_all_at_any_time),
        cmocka_unit_test(of_equals_the_oldest_goes_and_then_the_deepest),
        cmocka_unit_test(work_is_bounded_and_gets_done),
        cmocka_unit_test(a_clock_that_goes_back_changes_no_order_and_harms_none),
        cmocka_unit_test(any_values_and_ages_are_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
