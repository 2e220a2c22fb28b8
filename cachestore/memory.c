/*
 * What this process may use of the machine's memory, as its control groups allow.
 *
 * Version 2 groups are walked from the process's own up to the root, version 1 is asked at the place where
 * containers have it. A file that is not there does not limit anything. Any thread.
 */
#include "cachestore/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

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

struct cs_memory memory_in(const char *cgroup_root, const char *own)
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
    return (struct cs_memory){.available_bytes = least < machine ? least : machine,
                              .limited_by_cgroup = least < machine,
                              .all_bytes = all};
}

struct cs_memory cs_memory_available(void)
{
    char group[400];
    own_group(group, sizeof group);
    return memory_in(CGROUP_ROOT, group);
}

uint64_t memory_host_most(uint64_t asked)
{
    uint64_t most = cs_memory_available().available_bytes / 100 * CS_HOST_PER_100;
    return asked < most ? asked : most;
}
