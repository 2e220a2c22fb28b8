/* CPUs that this process may use, and how large the KV cache becomes by default. Any thread. */
#include "engine/runtime/sizing.h"
#include "formats/record.h"
#include "kernels/kernels.h"
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#define CPU_MAX                    "/sys/fs/cgroup/cpu.max"
#define CONCURRENCY_MEMORY_PER_100 50 /* the most of available memory, when concurrency decides */
#define MEMORY_PER_100             80

unsigned sizing_cpus(void)
{
    cpu_set_t set;
    unsigned n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = (unsigned)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0)
        n = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    FILE *f = fopen(CPU_MAX, "re");
    uint64_t quota;
    uint64_t period;
    if (f && fscanf(f, "%" SCNu64 " %" SCNu64, &quota, &period) == 2 && period > 0) { /* or "max" */
        uint64_t whole = quota / period + (quota % period != 0);
        if (whole > 0 && whole < n)
            n = (unsigned)whole;
    }
    if (f)
        fclose(f);
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

static const char *limiting_name(const struct cs_memory *memory)
{
    return memory->limited_by_cgroup ? "limited by the control group's memory" : "limited by memory";
}

uint64_t sizing_kv_bytes(uint64_t sequence_bytes, uint32_t concurrency, enum eng_kv_limit limit,
                         uint64_t reserved_bytes, const char **reason)
{
    struct cs_memory memory = cs_memory_available();
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

uint64_t sizing_host_bytes(const struct cs_memory *memory, uint64_t asked, uint64_t reserved_bytes,
                           const char **reason)
{
    uint64_t most = memory->available_bytes / 100 * CS_HOST_PER_100;
    most = most > reserved_bytes ? most - reserved_bytes : 0;
    *reason = asked <= most ? "as asked" : limiting_name(memory);
    return asked < most ? asked : most;
}

static uint64_t record_bytes(uint32_t kind, uint32_t n_pages, uint64_t page_bytes)
{
    return (uint64_t)fmt_record_chunks(kind, n_pages, KN_PAGE_TOKENS, page_bytes, FMT_RECORD_CHUNK_BYTES) *
           FMT_RECORD_CHUNK_BYTES;
}

uint64_t sizing_disk_tokens(const struct eng_state_desc *s, uint64_t page_bytes, uint64_t budget)
{
    enum { SPAN_BYTES = 4 << 20, CATALOG_BYTES = 8 << 20, CATALOG_SHARE_MOST = 4 };
    uint64_t catalog =
        budget / CATALOG_SHARE_MOST < CATALOG_BYTES ? budget / CATALOG_SHARE_MOST : CATALOG_BYTES;
    uint64_t room = budget - catalog, checkpoint = 0;
    uint64_t blocks = sizing_checkpoint_blocks(s, (page_bytes + 4095) / 4096 * 4096);
    if (blocks > UINT32_MAX)
        return 0;
    if (blocks > 0)
        checkpoint = record_bytes(FMT_RECORD_CHECKPOINT, (uint32_t)blocks, page_bytes);
    uint32_t in_span =
        fmt_record_pages_per_span(SPAN_BYTES, KN_PAGE_TOKENS, page_bytes, FMT_RECORD_CHUNK_BYTES);
    uint64_t span = in_span ? record_bytes(FMT_RECORD_SPAN, in_span, page_bytes) : 0;
    if (span == 0 || room < checkpoint)
        return 0;
    room -= checkpoint;
    uint64_t pages = room / span * in_span;
    uint32_t rest = in_span - 1; /* of a last, shorter span */
    while (rest > 0 && record_bytes(FMT_RECORD_SPAN, rest, page_bytes) > room % span)
        rest--;
    return (pages + rest) * KN_PAGE_TOKENS;
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
