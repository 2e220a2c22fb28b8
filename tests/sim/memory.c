/*
 * Memory of the simulated process. Every piece is in a list: a kill gives all of it back, and a process that
 * ends by itself must have given back everything. The first MiB of a mapping holds other bytes than zeros,
 * for who maps an arena must not count on them.
 */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

struct piece {
    struct piece *next, *previous;
    void *whole; /* what the C library gave */
    size_t bytes;
};
_Static_assert(sizeof(struct piece) % 16 == 0, "alignment");

static struct piece pieces = {.next = &pieces, .previous = &pieces};

void memory_given_back(const void *p, size_t n)
{
    engine_given_back(p, n);
    copies_given_back(p, n);
}

static void *add(void *whole, struct piece *at, size_t bytes)
{
    *at = (struct piece){.next = pieces.next, .previous = &pieces, .whole = whole, .bytes = bytes};
    pieces.next->previous = at;
    pieces.next = at;
    return at + 1;
}

static void drop(struct piece *at)
{
    at->previous->next = at->next;
    at->next->previous = at->previous;
    __real_free(at->whole);
}

void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    if (sim_fault(FAULT_no_memory))
        return NULL;
    struct piece *p = __real_malloc(sizeof *p + n);
    return p == NULL ? NULL : add(p, p, n);
}

void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || sim_fault(FAULT_no_memory))
        return NULL;
    struct piece *p = __real_calloc(1, sizeof *p + bytes);
    return p == NULL ? NULL : add(p, p, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n)
{
    if (sim_fault(FAULT_no_memory))
        return NULL;
    char *whole = __real_malloc(n + alignment + sizeof(struct piece));
    if (whole == NULL)
        return NULL;
    uintptr_t at = ((uintptr_t)whole + sizeof(struct piece) + alignment - 1) / alignment * alignment;
    return add(whole, (struct piece *)at - 1, n);
}

void __wrap_free(void *p);
void __wrap_free(void *p)
{
    if (p == NULL)
        return;
    struct piece *at = (struct piece *)p - 1;
    memory_given_back(p, at->bytes);
    drop(at);
}

void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
    if (p == NULL)
        return __wrap_malloc(n);
    void *larger = __wrap_malloc(n);
    if (larger == NULL)
        return NULL;
    size_t had = ((struct piece *)p - 1)->bytes;
    memcpy(larger, p, had < n ? had : n);
    __wrap_free(p);
    return larger;
}

/* ---- mappings ---------------------------------------------------------------------------------------- */

/* Kept from seed to seed, for the system takes longer to make them than a seed has. */
enum { N_MAPPINGS = 16, MAPPING_ALIGN = 2 << 20 };
static struct mapping {
    char *base;
    size_t room, left; /* left: bytes that are still mapped; 0: it is free */
} mappings[N_MAPPINGS];

static struct mapping *mapping_take(size_t bytes)
{
    struct mapping *best = NULL;
    for (int i = 0; i < N_MAPPINGS; i++)
        if (mappings[i].left == 0 && mappings[i].room >= bytes &&
            (best == NULL || mappings[i].room < best->room))
            best = &mappings[i];
    for (int i = 0; i < N_MAPPINGS && best == NULL; i++) {
        if (mappings[i].room > 0)
            continue;
        size_t room = (bytes + MAPPING_ALIGN - 1) / MAPPING_ALIGN * MAPPING_ALIGN;
        char *at = __real_mmap(NULL, room + MAPPING_ALIGN, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            return NULL;
        best = &mappings[i];
        best->base = at + (-(uintptr_t)at & (MAPPING_ALIGN - 1));
        best->room = room;
    }
    if (best == NULL)
        sim_fail("more mappings than the test has room for");
    best->left = bytes;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(best->base, best->room); /* whoever had it may have been killed */
#endif
    return best;
}

static void mappings_end(bool killed)
{
    for (int i = 0; i < N_MAPPINGS; i++) {
        if (!killed && mappings[i].left > 0)
            sim_fail("LEAK: %zu bytes are still mapped at the end", mappings[i].left);
        mappings[i].left = 0;
    }
}

void memory_end(bool killed)
{
    if (!killed && pieces.next != &pieces)
        sim_fail("LEAK: %zu bytes of memory are left behind at the end", pieces.next->bytes);
    while (pieces.next != &pieces)
        drop(pieces.next);
    mappings_end(killed);
}

void *__wrap_mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
    enum { FILL_MOST = 1 << 20 };
    (void)at;
    (void)rights;
    (void)offset;
    struct mapping *m = NULL;
    if (fd < 0 && (flags & MAP_ANONYMOUS) && !sim_fault(FAULT_no_memory))
        m = mapping_take((bytes + SECTOR - 1) / SECTOR * SECTOR);
    if (m == NULL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (bytes < FILL_MOST)
        memset(m->base, 0xa7, bytes);
    return m->base;
}

int __wrap_munmap(void *p, size_t bytes);
int __wrap_munmap(void *p, size_t bytes)
{
    size_t whole = (bytes + SECTOR - 1) / SECTOR * SECTOR;
    for (int i = 0; i < N_MAPPINGS; i++) {
        struct mapping *m = &mappings[i];
        if (m->left < whole || (char *)p < m->base || (char *)p >= m->base + m->room)
            continue;
        memory_given_back(p, bytes);
        m->left -= whole;
        return 0;
    }
    sim_fail("something is unmapped that is not mapped");
}

int __wrap_madvise(void *p, size_t bytes, int advice);
int __wrap_madvise(void *p, size_t bytes, int advice)
{
    (void)p;
    (void)bytes;
    (void)advice;
    return 0;
}

ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags)
{
    (void)flags;
    uint8_t *bytes = out;
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(sim_next(&sim.random_work) >> 24);
    return (ssize_t)n;
}
