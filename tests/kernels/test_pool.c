/* The fork-join pool and the choice of a path. */
#include "kernels/cpu/pool.h"
#include "tests/kernels/paths.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

struct tally {
    _Atomic uint32_t *hits;
    uint32_t *plain; /* written by one item each: visible to the owner after the join */
};

static void hit(void *arg, size_t i)
{
    struct tally *t = arg;
    atomic_fetch_add_explicit(&t->hits[i], 1, memory_order_relaxed);
    t->plain[i] += (uint32_t)i;
}

static void each_item_runs_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {1, 2, 3, 8};
    for (size_t k = 0; k < 4; k++) {
        struct kn_backend *b;
        assert_int_equal(kn_backend_open(KN_ISA_SCALAR, threads[k], &b), KN_OK);
        assert_int_equal(kn_backend_threads(b), threads[k]);
        for (size_t round = 0; round < 400; round++) {
            size_t n = round % 23;
            struct tally t = {calloc(n + 1, sizeof *t.hits), calloc(n + 1, sizeof *t.plain)};
            kn_parallel(b, n, hit, &t);
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(t.hits[i], 1);
                assert_int_equal(t.plain[i], i);
            }
            assert_int_equal(t.hits[n], 0);
            free((void *)t.hits);
            free(t.plain);
        }
        kn_backend_close(b);
    }
}

static void hit_apart(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    hit(arg, i);
}

static const uint8_t memory[1000];

static struct kn_stretch some_memory(void *arg, unsigned worker)
{
    (void)arg;
    return (struct kn_stretch){memory, 100 * (size_t)worker};
}

static void each_item_of_a_run_apart_runs_once(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 5; threads++) {
        struct kn_pool *p;
        assert_int_equal(kn_pool_open(threads, &p), KN_OK);
        for (size_t round = 0; round < 200; round++) {
            size_t n = round % 13;
            _Atomic uint32_t hits[13] = {0};
            uint32_t plain[13] = {0};
            struct tally t = {hits, plain};
            kn_pool_run_apart(p, n, hit_apart, some_memory, &t);
            for (size_t i = 0; i < 13; i++) {
                assert_int_equal(hits[i], i < n);
                assert_int_equal(plain[i], i < n ? i : 0);
            }
        }
        kn_pool_close(p);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void an_idle_pool_sleeps_and_wakes(void **state)
{
    (void)state;
    struct kn_backend *b;
    assert_int_equal(kn_backend_open(KN_ISA_SCALAR, 3, &b), KN_OK);
    struct tally t = {calloc(64, sizeof *t.hits), calloc(64, sizeof *t.plain)};
    for (int round = 0; round < 3; round++) {
        kn_parallel(b, 64, hit, &t);
        double before = cpu_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* idle on purpose */
        assert_true(cpu_seconds() - before < 0.05);
    }
    kn_parallel(b, 64, hit, &t);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(t.hits[i], 4);
    free((void *)t.hits);
    free(t.plain);
    kn_backend_close(b);
}

static void paths_have_names_and_unknown_ones_are_refused(void **state)
{
    (void)state;
    static const enum kn_isa all[] = {KN_ISA_AUTO, KN_ISA_SCALAR, KN_ISA_AVX2, KN_ISA_AVX512};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(kn_isa_from_name(kn_isa_name(all[i])), all[i]);
    assert_int_equal(kn_isa_from_name("sse9"), -1);
    assert_true(kn_isa_available(KN_ISA_SCALAR));
    struct kn_backend *b;
    assert_int_equal(kn_backend_open((enum kn_isa)17, 1, &b), KN_EINVAL);
    assert_null(b);
    assert_int_equal(kn_backend_open(KN_ISA_AUTO, 1u << 20, &b), KN_EINVAL);
    assert_int_equal(kn_backend_open(KN_ISA_AUTO, 0, &b), KN_OK);
    assert_true(kn_backend_threads(b) >= 1);
    assert_int_not_equal(kn_backend_isa(b), KN_ISA_AUTO);
    assert_true(strlen(kn_backend_features(b)) > 0);
    kn_backend_close(b);
    kn_backend_close(NULL);
    for (int code = 0; code >= -3; code--)
        assert_string_not_equal(kn_strerror(code), kn_strerror(-99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_item_runs_once),
        cmocka_unit_test(each_item_of_a_run_apart_runs_once),
        cmocka_unit_test(an_idle_pool_sleeps_and_wakes),
        cmocka_unit_test(paths_have_names_and_unknown_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
