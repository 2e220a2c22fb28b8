/*
 * Copies between contiguous memory and equal blocks: how state gets into a checkpoint and out of it. Bytes
 * are cut into pieces for the pool; a piece may span blocks and a block may hold several pieces.
 */
#include "kernels/cpu/internal.h"
#include <string.h>

#define PIECE_BYTES ((uint64_t)256 << 10)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void kn_blocks_scatter(const struct kn_blocks *to, uint64_t offset, const void *from, uint64_t bytes)
{
    const char *p = from;
    while (bytes > 0) {
        uint64_t within = offset % to->stride, n = least(bytes, to->stride - within);
        memcpy((char *)to->blocks[offset / to->stride] + within, p, n);
        p += n;
        offset += n;
        bytes -= n;
    }
}

static void gather(const struct kn_blocks *from, uint64_t offset, void *to, uint64_t bytes)
{
    char *p = to;
    while (bytes > 0) {
        uint64_t within = offset % from->stride, n = least(bytes, from->stride - within);
        memcpy(p, (const char *)from->blocks[offset / from->stride] + within, n);
        p += n;
        offset += n;
        bytes -= n;
    }
}

struct copy {
    const struct kn_blocks *blocks;
    uint64_t offset, bytes;
    const void *from; /* to blocks, or NULL */
    void *to;         /* from blocks, or NULL */
};

static void copy_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct copy *c = arg;
    uint64_t at = i * PIECE_BYTES, n = least(PIECE_BYTES, c->bytes - at);
    if (c->from)
        kn_blocks_scatter(c->blocks, c->offset + at, (const char *)c->from + at, n);
    else
        gather(c->blocks, c->offset + at, (char *)c->to + at, n);
}

static void run(struct kn_backend *b, const struct copy *c)
{
    kn_pool_run(b->pool, (size_t)((c->bytes + PIECE_BYTES - 1) / PIECE_BYTES), copy_item, (void *)c);
}

void kn_blocks_write(struct kn_backend *b, const struct kn_blocks *to, uint64_t offset, const void *from,
                     uint64_t bytes)
{
    struct copy c = {.blocks = to, .offset = offset, .bytes = bytes, .from = from};
    run(b, &c);
}

void kn_blocks_read(struct kn_backend *b, const struct kn_blocks *from, uint64_t offset, void *to,
                    uint64_t bytes)
{
    struct copy c = {.blocks = from, .offset = offset, .bytes = bytes, .to = to};
    run(b, &c);
}
