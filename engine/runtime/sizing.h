/* Sizes that follow from what the machine lets this process use. Any thread. */
#ifndef ISOTHERM_ENGINE_RUNTIME_SIZING_H
#define ISOTHERM_ENGINE_RUNTIME_SIZING_H

#include "engine/runtime/runtime.h"

unsigned sizing_cpus(void); /* CPUs this process may use, at least 1 */

/* What a sequence takes of the arena, in blocks of `stride` bytes, and beside it. */
uint64_t sizing_window_blocks(const struct eng_state_desc *s,
                              uint64_t tokens); /* window pages that a sequence of so many tokens holds */
uint64_t sizing_state_blocks(const struct eng_state_desc *s, uint64_t stride); /* state of a checkpoint */
uint64_t sizing_checkpoint_blocks(const struct eng_state_desc *s,
                                  uint64_t stride); /* that, and the window pages it refers to */
/* A whole context: pages, windows, and the state of one checkpoint, so that it can be resumed. */
uint64_t sizing_context_blocks(const struct eng_state_desc *s, uint64_t stride, uint64_t tokens);
uint64_t sizing_live_bytes(const struct eng_state_desc *s); /* region of a running sequence's state */
/* How many of `concurrency` sequences may run at once: their live state (region bytes each, 0: none) takes at
 * most half of the KV cache, but one always may. */
uint32_t sizing_concurrency(uint64_t kv_bytes, uint64_t region, uint32_t concurrency);
/* The most tokens that a sequence can have in so many blocks: pages and windows. */
uint64_t sizing_tokens(const struct eng_state_desc *s, uint64_t blocks);

/* Bytes for the KV cache when the user gave none, and why that many. sequence_bytes: of a context, live state
 * included. reserved_bytes: memory that will be taken for something else. */
uint64_t sizing_kv_bytes(uint64_t sequence_bytes, uint32_t concurrency, enum eng_kv_limit limit,
                         uint64_t reserved_bytes, const char **reason);

/* Bytes of a host tier: what was asked for, but no more than four fifths of the memory that is available
 * beside reserved_bytes. */
uint64_t sizing_host_bytes(const struct cs_memory *memory, uint64_t asked, uint64_t reserved_bytes,
                           const char **reason);

/* About how many tokens of one prompt a disk budget holds, with the checkpoint that resumes it: what the
 * catalogue may take and the chunks of records are counted. 0: none. */
uint64_t sizing_disk_tokens(const struct eng_state_desc *s, uint64_t page_bytes, uint64_t budget);

#define SIZING_CONCURRENCY_DEFAULT 16

/* "21.2 GiB"; returns out. */
const char *sizing_text(uint64_t bytes, char out[32]);

#endif
