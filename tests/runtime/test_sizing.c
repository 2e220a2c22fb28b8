/* Default sizes: by concurrency while that fits, else by the memory this process may use. */
#include "engine/runtime/sizing.h"
#include "kernels/kernels.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void what_is_available_is_at_most_the_machine(void **state)
{
    (void)state;
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct cs_memory m = cs_memory_available();
    assert_true(m.available_bytes > 0 && m.available_bytes <= m.all_bytes && m.all_bytes <= machine);
    assert_in_range(sizing_cpus(), 1, sysconf(_SC_NPROCESSORS_CONF));
}

static void concurrency_decides_while_it_fits(void **state)
{
    (void)state;
    const char *why;
    assert_int_equal(sizing_kv_bytes(4096 * 7, 3, ENG_KV_CONCURRENCY, 0, &why), 4096 * 7 * 3);
    assert_string_equal(why, "limited by concurrency");
    uint64_t half = sizing_kv_bytes(UINT64_C(1) << 60, 1000, ENG_KV_CONCURRENCY, 0, &why);
    assert_non_null(strstr(why, "memory"));
    uint64_t most = sizing_kv_bytes(4096, 1, ENG_KV_MEMORY, 0, &why);
    assert_non_null(strstr(why, "memory"));
    assert_true(half > 0 && half < most);
    assert_int_equal(sizing_kv_bytes(4096, 1, ENG_KV_MEMORY, UINT64_MAX, &why), 0);
}

/* Geometry of gemma3-270m: 5 groups, a window of 512; and of qwen3.5-0.8b: 19.5 MB of state. */
static void windows_and_state_are_part_of_a_context(void **state)
{
    (void)state;
    const struct eng_state_desc dense = {.grid = 16, .group_layers = 30};
    const struct eng_state_desc windows = {.grid = 16, .group_layers = 3, .window = 512, .window_groups = 5};
    const struct eng_state_desc deltas = {
        .grid = 64, .group_layers = 6, .state_bytes = 19537920, .live_bytes = 20000001};
    assert_int_equal(sizing_context_blocks(&dense, 4096, 1000), 63);
    assert_int_equal(sizing_checkpoint_blocks(&dense, 4096), 0);
    assert_int_equal(sizing_live_bytes(&dense), 0);
    assert_int_equal(sizing_checkpoint_blocks(&windows, 48 << 10), 160);
    assert_int_equal(sizing_window_blocks(&windows, 40), 15); /* 3 pages in each group */
    assert_int_equal(sizing_window_blocks(&windows, 32768), 5 * 34);
    assert_int_equal(sizing_context_blocks(&windows, 48 << 10, 32768), 2048 + 5 * 34);
    assert_int_equal(sizing_checkpoint_blocks(&deltas, 192 << 10), 100);
    assert_int_equal(sizing_context_blocks(&deltas, 192 << 10, 160), 110);
    assert_int_equal(sizing_live_bytes(&deltas) % 4096, 0);
    assert_in_range(sizing_live_bytes(&deltas), 20000001, 20000001 + 4095);
    assert_int_equal(sizing_tokens(&dense, 10), 160);
    assert_int_equal(sizing_tokens(&windows, 2048 + 5 * 34), 32768);
    assert_int_equal(sizing_tokens(&windows, 13), 32); /* 2 pages, 10 of windows, one block unused */
}

static void a_host_tier_is_what_was_asked_for_while_memory_lasts(void **state)
{
    (void)state;
    const char *reason = NULL;
    struct cs_memory memory = {.available_bytes = 1000 << 20, .all_bytes = UINT64_C(2000) << 20};
    assert_int_equal(sizing_host_bytes(&memory, 1 << 20, 0, &reason), 1 << 20);
    assert_string_equal(reason, "as asked");
    assert_int_equal(sizing_host_bytes(&memory, UINT64_MAX, 0, &reason), (1000 << 20) / 100 * 80);
    assert_string_equal(reason, "limited by memory");
    memory.limited_by_cgroup = true;
    assert_int_equal(sizing_host_bytes(&memory, UINT64_MAX, 100 << 20, &reason),
                     (1000 << 20) / 100 * 80 - (100 << 20));
    assert_string_equal(reason, "limited by the control group's memory");
    assert_int_equal(sizing_host_bytes(&memory, 1 << 20, UINT64_MAX, &reason), 0);
}

static void a_disk_budget_holds_what_is_beside_the_catalogue(void **state)
{
    (void)state;
    struct eng_state_desc pages = {.grid = KN_PAGE_TOKENS};
    const uint64_t page = 368640; /* of smollm2-135m: two with a header in three chunks, eleven in 4 MiB */
    assert_int_equal(sizing_disk_tokens(&pages, page, 1), 0);
    assert_int_equal(sizing_disk_tokens(&pages, page, 256 << 10), 0);
    assert_int_equal(sizing_disk_tokens(&pages, page, 1 << 20), 2 * KN_PAGE_TOKENS);
    assert_int_equal(sizing_disk_tokens(&pages, page, 48 << 20), 10 * 11 * KN_PAGE_TOKENS);
    struct eng_state_desc recurrent = {.grid = KN_PAGE_TOKENS, .state_bytes = 36 << 20};
    assert_true(sizing_disk_tokens(&recurrent, page, 48 << 20) < 11 * 2 * KN_PAGE_TOKENS);
    assert_int_equal(sizing_disk_tokens(&recurrent, page, 40 << 20), 0);
}

static void sizes_are_written_for_people(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(sizing_text(512, text), "512 B");
    assert_string_equal(sizing_text(368640, text), "360.0 KiB");
    assert_string_equal(sizing_text(UINT64_C(3) << 40, text), "3.0 TiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_available_is_at_most_the_machine),
        cmocka_unit_test(concurrency_decides_while_it_fits),
        cmocka_unit_test(windows_and_state_are_part_of_a_context),
        cmocka_unit_test(a_host_tier_is_what_was_asked_for_while_memory_lasts),
        cmocka_unit_test(a_disk_budget_holds_what_is_beside_the_catalogue),
        cmocka_unit_test(sizes_are_written_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
