/* What control groups leave of the machine's memory, and that a host tier keeps to it. */
#include "cachestore/memory.h"
#include "tests/cachestore/fake_device.h"
#include "tests/cachestore/harness.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void folder_in(char path[512], const char *root, const char *name)
{
    snprintf(path, 512, "%s%s", root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

/* Files as the kernel has them, in a folder: 64 MiB in the group above, of which 32 are used, 16 of those by
 * file cache that can go. */
static void the_control_group_caps_it_wherever_its_limit_is(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    char root[256];
    char above[512];
    char own[512];
    char old[512];
    snprintf(root, sizeof root, "%s/isotherm-memory-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(root));
    struct cs_memory all = memory_in(root, "/above/own"); /* no groups */
    assert_false(all.limited_by_cgroup);
    folder_in(above, root, "/above");
    folder_in(own, root, "/above/own");
    put(own, "memory.max", "max\n");
    put(own, "memory.current", "33554432\n");
    assert_false(memory_in(root, "/above/own").limited_by_cgroup);
    put(above, "memory.max", "67108864\n");
    put(above, "memory.current", "33554432\n");
    put(above, "memory.stat", "anon 16777216\ninactive_file 16777216\n");
    struct cs_memory m = memory_in(root, "/above/own");
    assert_true(m.limited_by_cgroup);
    assert_int_equal(m.available_bytes, 48 << 20);
    assert_int_equal(m.all_bytes, 64 << 20);
    assert_false(memory_in(root, "").limited_by_cgroup);
    put(own, "memory.max", "1048576\n"); /* the least counts, and less than is used leaves nothing */
    m = memory_in(root, "/above/own");
    assert_int_equal(m.available_bytes, 0);
    assert_int_equal(m.all_bytes, 1 << 20);
    folder_in(old, root, "/memory"); /* version 1 */
    put(old, "memory.limit_in_bytes", "67108864\n");
    put(old, "memory.usage_in_bytes", "16777216\n");
    m = memory_in(root, "");
    assert_int_equal(m.available_bytes, 48 << 20);
    assert_int_equal(m.all_bytes, 64 << 20);
    assert_int_equal(nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static unsigned n_said;

static void listen(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    n_said += level == CS_LOG_WARN && strstr(line, "host tier") != NULL;
}

static void a_host_tier_takes_no_more_than_there_is(void **state)
{
    (void)state;
    struct cs_config c = tiny_config(4);
    c.page_bytes = 1 << 20; /* few blocks, whatever the machine has */
    c.arena_bytes = 4 * c.page_bytes;
    c.index_bytes = 64 << 20;
    c.device = fake_device_open(false);
    c.log = listen;
    c.host_bytes = 2 * c.page_bytes;
    struct cs_store *s = tiny_open(&c);
    assert_int_equal(stats_of(s).host_bytes, c.host_bytes);
    assert_int_equal(n_said, 0);
    cs_close(s, 0);
    c.host_bytes = UINT64_C(1) << 60;
    s = tiny_open(&c);
    assert_in_range(stats_of(s).host_bytes, c.page_bytes,
                    cs_memory_available().all_bytes / 100 * CS_HOST_PER_100);
    assert_int_equal(n_said, 1);
    cs_close(s, 0);
    fake_device_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_control_group_caps_it_wherever_its_limit_is),
        cmocka_unit_test(a_host_tier_takes_no_more_than_there_is),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
