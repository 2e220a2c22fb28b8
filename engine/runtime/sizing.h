/* What the machine lets this process use, and the sizes that follow from it. Any thread. */
#ifndef ISOTHERM_ENGINE_RUNTIME_SIZING_H
#define ISOTHERM_ENGINE_RUNTIME_SIZING_H

#include "engine/runtime/runtime.h"

struct sizing_memory {
    uint64_t available_bytes; /* of this machine and this control group */
    bool limited_by_cgroup;
};
struct sizing_memory sizing_memory_available(void);
unsigned sizing_cpus(void); /* CPUs this process may use, at least 1 */

/* Bytes for KV pages of `stride` bytes when the user gave none, and why that many. reserved_bytes: memory
 * that will be taken for something else. */
uint64_t sizing_kv_bytes(uint64_t stride, uint32_t context, uint32_t concurrency, enum eng_kv_limit limit,
                         uint64_t reserved_bytes, const char **reason);

#define SIZING_CONCURRENCY_DEFAULT 16

/* "21.2 GiB"; returns out. */
const char *sizing_text(uint64_t bytes, char out[32]);

#endif
