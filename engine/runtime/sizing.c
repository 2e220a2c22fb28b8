/*
 * What this process may use of the machine, memory and CPUs, as its control groups allow, and how large the
 * KV cache becomes by default.
 *
 * Version 2 groups are walked from the process's own up to the root, version 1 is asked at the place where
 * containers have it. A file that is not there does not limit anything. Any thread.
 */
#include "engine/runtime/sizing.h"
#include "kernels/kernels.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CGROUP_ROOT                "/sys/fs/cgroup"
#define CONCURRENCY_MEMORY_PER_100 50 /* the most of available memory, when concurrency decides */
#define MEMORY_PER_100             80

/* First line of a small file, without its newline. */
static bool read_line(const char *path, char *line, size_t len)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, (int)len, f) != NULL;
    fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

static bool parse_u64(const char *text, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false; /* "max" */
    *out = strtoull(text, &end, 10);
    return end != text;
}

/* Value of "NAME value" in a file of such lines (memory.stat, /proc/meminfo); 0 when it is not there. */
static uint64_t read_field(const char *path, const char *name)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[256];
    uint64_t value = 0;
    size_t len = strlen(name);
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, name, len) == 0 && (line[len] == ' ' || line[len] == ':')) {
            const char *p = line + len + 1;
            p += strspn(p, " \t");
            if (!parse_u64(p, &value))
                value = 0;
            break;
        }
    }
    fclose(f);
    return value;
}

/* Limit minus use of one group; file cache that nobody maps can be taken back. UINT64_MAX: no limit. *all
 * becomes no more than the limit. */
static uint64_t group_available(const char *dir, const char *limit_name, const char *use_name, uint64_t *all)
{
    char path[512];
    char line[64];
    uint64_t limit;
    uint64_t use;
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!read_line(path, line, sizeof line) || !parse_u64(line, &limit))
        return UINT64_MAX;
    *all = limit < *all ? limit : *all;
    snprintf(path, sizeof path, "%s/%s", dir, use_name);
    if (!read_line(path, line, sizeof line) || !parse_u64(line, &use))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    uint64_t reclaimable = read_field(path, "inactive_file");
    use = use > reclaimable ? use - reclaimable : 0;
    return limit > use ? limit - use : 0;
}

/* Path of this process in the version 2 hierarchy, "" for its root. */
static void own_group(char *path, size_t len)
{
    char line[400];
    path[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0 && line[4] != '\0')
            snprintf(path, len, "%s", line + 3);
    }
    fclose(f);
}

struct sizing_memory sizing_memory_in(const char *cgroup_root, const char *own)
{
    uint64_t machine = read_field("/proc/meminfo", "MemAvailable") * 1024;
    if (machine == 0) {
        long pages = sysconf(_SC_AVPHYS_PAGES);
        machine = pages > 0 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
    }
    long total = sysconf(_SC_PHYS_PAGES);
    uint64_t all = total > 0 ? (uint64_t)total * (uint64_t)sysconf(_SC_PAGESIZE) : UINT64_MAX;
    char dir[512];
    char group[400];
    snprintf(dir, sizeof dir, "%s/memory", cgroup_root);
    uint64_t least = group_available(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", &all);
    snprintf(group, sizeof group, "%s", own);
    for (;;) {
        snprintf(dir, sizeof dir, "%.*s%s", (int)(sizeof dir - sizeof group), cgroup_root, group);
        uint64_t here = group_available(dir, "memory.max", "memory.current", &all);
        least = here < least ? here : least;
        char *slash = strrchr(group, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return (struct sizing_memory){.available_bytes = least < machine ? least : machine,
                                  .limited_by_cgroup = least < machine,
                                  .all_bytes = all};
}

struct sizing_memory sizing_memory_available(void)
{
    char group[400];
    own_group(group, sizeof group);
    return sizing_memory_in(CGROUP_ROOT, group);
}

unsigned sizing_cpus(void)
{
    cpu_set_t set;
    unsigned n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = (unsigned)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0)
        n = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    char line[64];
    uint64_t quota;
    uint64_t period;
    if (read_line(CGROUP_ROOT "/cpu.max", line, sizeof line) && parse_u64(line, &quota) &&
        strchr(line, ' ') && parse_u64(strchr(line, ' ') + 1, &period) && period > 0) {
        uint64_t whole = (quota + period - 1) / period;
        if (whole > 0 && whole < n)
            n = (unsigned)whole;
    }
    return n > 0 ? n : 1;
}

static uint64_t pages_of_tokens(uint64_t tokens)
{
    return tokens / KN_PAGE_TOKENS + (tokens % KN_PAGE_TOKENS != 0);
}

/* The window of the last grid position, what has come since, and a page's worth of tokens being computed. */
uint64_t sizing_window_blocks(const struct eng_state_desc *s, uint64_t tokens)
{
    if (s->window_groups == 0)
        return 0;
    uint64_t most =
        pages_of_tokens(s->window - 1) + ((uint64_t)s->grid + KN_PAGE_TOKENS - 2) / KN_PAGE_TOKENS + 1;
    uint64_t pages = pages_of_tokens(tokens);
    return s->window_groups * (pages < most ? pages : most);
}

uint64_t sizing_state_blocks(const struct eng_state_desc *s, uint64_t stride)
{
    return s->state_bytes / stride + (s->state_bytes % stride != 0);
}

uint64_t sizing_checkpoint_blocks(const struct eng_state_desc *s, uint64_t stride)
{
    uint64_t window_pages = s->window > 1 ? pages_of_tokens(s->window - 1) : 0;
    return sizing_state_blocks(s, stride) + s->window_groups * window_pages;
}

uint64_t sizing_context_blocks(const struct eng_state_desc *s, uint64_t stride, uint64_t tokens)
{
    return pages_of_tokens(tokens) + sizing_window_blocks(s, tokens) + sizing_state_blocks(s, stride);
}

uint64_t sizing_live_bytes(const struct eng_state_desc *s)
{
    return s->live_bytes > UINT64_MAX - 4095 ? UINT64_MAX / 4096 * 4096
                                             : (s->live_bytes + 4095) / 4096 * 4096;
}

uint32_t sizing_concurrency(uint64_t kv_bytes, uint64_t region, uint32_t concurrency)
{
    uint64_t most = region ? kv_bytes / 2 / region : concurrency;
    if (most == 0)
        most = 1;
    return most < concurrency ? (uint32_t)most : concurrency;
}

uint64_t sizing_tokens(const struct eng_state_desc *s, uint64_t blocks)
{
    uint64_t low = 0; /* fits */
    uint64_t high = blocks + 1;
    while (high - low > 1) {
        uint64_t pages = low + (high - low) / 2;
        if (pages + sizing_window_blocks(s, pages * KN_PAGE_TOKENS) <= blocks)
            low = pages;
        else
            high = pages;
    }
    return low * KN_PAGE_TOKENS;
}

static const char *limiting_name(const struct sizing_memory *memory)
{
    return memory->limited_by_cgroup ? "limited by the control group's memory" : "limited by memory";
}

uint64_t sizing_kv_bytes(uint64_t sequence_bytes, uint32_t concurrency, enum eng_kv_limit limit,
                         uint64_t reserved_bytes, const char **reason)
{
    struct sizing_memory memory = sizing_memory_available();
    uint64_t wanted = sequence_bytes > UINT64_MAX / concurrency ? UINT64_MAX : sequence_bytes * concurrency;
    uint64_t free_bytes =
        memory.available_bytes > reserved_bytes ? memory.available_bytes - reserved_bytes : 0;
    uint64_t most = free_bytes / 100 * (limit == ENG_KV_MEMORY ? MEMORY_PER_100 : CONCURRENCY_MEMORY_PER_100);
    if (limit == ENG_KV_CONCURRENCY && wanted <= most) {
        *reason = "limited by concurrency";
        return wanted;
    }
    *reason = limiting_name(&memory);
    return most;
}

uint64_t sizing_host_bytes(const struct sizing_memory *memory, uint64_t asked, uint64_t reserved_bytes,
                           const char **reason)
{
    uint64_t most = memory->available_bytes / 100 * MEMORY_PER_100;
    most = most > reserved_bytes ? most - reserved_bytes : 0;
    *reason = asked <= most ? "as asked" : limiting_name(memory);
    return asked < most ? asked : most;
}

const char *sizing_text(uint64_t bytes, char out[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t i = 0;
    for (; v >= 1024 && i < 4; i++)
        v /= 1024;
    snprintf(out, 32, i ? "%.1f %s" : "%.0f %s", v, unit[i]);
    return out;
}
