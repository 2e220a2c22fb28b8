/*
 * Memory for weights. Matrices of a small model are a few hundred KiB each: too small for a huge page of
 * their own, though all of them together are read once a decoded token. So they are carved one after another
 * from mappings of SLAB_BYTES that ask for huge pages. Nothing is carved twice, so all of it is zero as
 * mapped.
 *
 * Threads: carve on the backend's thread; release from any, once nobody uses what was carved.
 */
#include "kernels/cpu/internal.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SLAB_BYTES ((size_t)32 << 20)
#define HUGE_PAGE  ((size_t)2 << 20)

struct kn_slab {
    atomic_uint users; /* pieces, and the backend while it carves from here */
    uint8_t *base;     /* of the mapping */
    uint8_t *start;    /* the first huge page in it */
    size_t mapped_bytes, bytes, used;
};

void kn_slab_release(struct kn_slab *s)
{
    if (!s || atomic_fetch_sub(&s->users, 1) != 1)
        return;
    munmap(s->base, s->mapped_bytes);
    free(s);
}

static struct kn_slab *slab_new(size_t least)
{
    size_t bytes = SLAB_BYTES;
    if (least > SIZE_MAX - 2 * HUGE_PAGE)
        return NULL;
    if (bytes < least)
        bytes = (least + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    struct kn_slab *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->mapped_bytes = bytes + HUGE_PAGE; /* what is not touched costs nothing */
    void *base = mmap(NULL, s->mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(s);
        return NULL;
    }
    s->base = base;
    s->start = s->base + (-(uintptr_t)s->base & (HUGE_PAGE - 1));
    s->bytes = bytes;
    (void)madvise(s->start, bytes, MADV_HUGEPAGE); /* advice: refused is fine */
    atomic_init(&s->users, 1);
    return s;
}

void *kn_slab_carve(struct kn_backend *b, size_t bytes, struct kn_slab **slab)
{
    if (bytes > SIZE_MAX - 63)
        return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    if (!b->slab || b->slab->bytes - b->slab->used < bytes) {
        struct kn_slab *s = slab_new(bytes);
        if (!s)
            return NULL;
        kn_slab_release(b->slab);
        b->slab = s;
    }
    void *p = b->slab->start + b->slab->used;
    b->slab->used += bytes;
    atomic_fetch_add(&b->slab->users, 1);
    *slab = b->slab;
    return p;
}
