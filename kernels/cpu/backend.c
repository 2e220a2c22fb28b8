/*
 * Opening a CPU backend: which code path runs, the pool, and memory. The path is chosen at run time from what
 * the processor has and the operating system saves (CPUID and XGETBV), never from the build machine.
 */
#include "kernels/cpu/internal.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

const char *kn_strerror(int code)
{
    switch (code) {
    case KN_OK:
        return "success";
    case KN_ENOMEM:
        return "out of memory";
    case KN_EINVAL:
        return "invalid argument or shape";
    case KN_EUNSUPPORTED:
        return "this processor lacks the instruction set";
    default:
        return "unknown error";
    }
}

/* ---- what the processor has ---- */

struct cpu_features {
    bool avx2, avx512, vnni;
};

static struct cpu_features detect(void)
{
    struct cpu_features f = {0};
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return f;
    const unsigned fma_bit = 1u << 12, osxsave = 1u << 27, f16c = 1u << 29;
    if ((c & (fma_bit | osxsave | f16c)) != (fma_bit | osxsave | f16c))
        return f;
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    f.avx2 = b >> 5 & 1;
    /* foundation, DQ, BW, VL; opmask and both halves of the upper registers saved */
    const unsigned need = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    f.avx512 = f.avx2 && (b & need) == need && (xcr0 & 0xE0) == 0xE0;
    f.vnni = f.avx512 && (c >> 11 & 1);
#endif
    return f;
}

static const char *const isa_names[] = {
    [KN_ISA_AUTO] = "auto", [KN_ISA_SCALAR] = "scalar", [KN_ISA_AVX2] = "avx2", [KN_ISA_AVX512] = "avx512"};

int kn_isa_from_name(const char *name)
{
    for (int i = KN_ISA_AUTO; i <= KN_ISA_AVX512; i++)
        if (strcmp(name, isa_names[i]) == 0)
            return i;
    return -1;
}

const char *kn_isa_name(enum kn_isa isa)
{
    return (unsigned)isa <= KN_ISA_AVX512 ? isa_names[isa] : "unknown";
}

bool kn_isa_available(enum kn_isa isa)
{
    struct cpu_features f = detect();
    switch (isa) {
    case KN_ISA_AUTO:
    case KN_ISA_SCALAR:
        return true;
    case KN_ISA_AVX2:
        return f.avx2;
    case KN_ISA_AVX512:
        return f.avx512;
    }
    return false;
}

/* ---- memory ---- */

#define HUGE_PAGE ((size_t)2 << 20)

void *kn_memory_new(size_t bytes, bool *mapped)
{
    void *p = NULL;
    *mapped = bytes >= HUGE_PAGE;
    if (*mapped) {
        /* the kernel aligns a mapping of this size to huge pages where it can */
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return NULL;
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* advice: refused is fine */
        return p;
    }
    if (posix_memalign(&p, 64, bytes ? bytes : 64) != 0)
        return NULL;
    memset(p, 0, bytes);
    return p;
}

void kn_memory_free(void *p, size_t bytes, bool mapped)
{
    if (p && mapped)
        munmap(p, bytes);
    else
        free(p);
}

int kn_scratch_reserve(struct kn_scratch *s, size_t bytes)
{
    if (bytes <= s->bytes)
        return KN_OK;
    if (bytes > SIZE_MAX / 2)
        return KN_ENOMEM;
    size_t grown = bytes + bytes / 4;
    bool mapped;
    void *p = kn_memory_new(grown, &mapped);
    if (!p)
        return KN_ENOMEM;
    kn_memory_free(s->data, s->bytes, s->mapped);
    *s = (struct kn_scratch){.data = p, .bytes = grown, .mapped = mapped};
    return KN_OK;
}

static void scratch_free(struct kn_scratch *s)
{
    kn_memory_free(s->data, s->bytes, s->mapped);
}

/* ---- the handle ---- */

static int choose_path(struct kn_backend *b, enum kn_isa isa)
{
    struct cpu_features f = detect();
    if (isa == KN_ISA_AUTO)
        isa = f.avx512 ? KN_ISA_AVX512 : f.avx2 ? KN_ISA_AVX2 : KN_ISA_SCALAR;
    if (!kn_isa_available(isa))
        return KN_EUNSUPPORTED;
    b->isa = isa;
    switch (isa) {
#if defined(__x86_64__)
    case KN_ISA_AVX512:
        b->matmul = f.vnni ? &kn_matmul_path_avx512vnni : &kn_matmul_path_avx512;
        b->attn = &kn_attention_path_avx512;
        b->rows = &kn_rows_path_avx512;
        b->delta_path = &kn_delta_path_avx512;
        b->features = f.vnni ? "avx512+vnni" : "avx512";
        return KN_OK;
    case KN_ISA_AVX2:
        b->matmul = &kn_matmul_path_avx2;
        b->attn = &kn_attention_path_avx2;
        b->rows = &kn_rows_path_avx2;
        b->delta_path = &kn_delta_path_avx2;
        b->features = "avx2+fma+f16c";
        return KN_OK;
#endif
    default:
        b->matmul = &kn_matmul_path_scalar;
        b->attn = &kn_attention_path_scalar;
        b->rows = &kn_rows_path_scalar;
        b->delta_path = &kn_delta_path_scalar;
        b->features = "scalar";
        return KN_OK;
    }
}

static unsigned usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

#define THREADS_MAX 1024

int kn_backend_open(enum kn_isa isa, unsigned threads, struct kn_backend **out)
{
    *out = NULL;
    if ((unsigned)isa > KN_ISA_AVX512 || threads > THREADS_MAX)
        return KN_EINVAL;
    struct kn_backend *b = calloc(1, sizeof *b);
    if (!b)
        return KN_ENOMEM;
    int rc = choose_path(b, isa);
    if (rc != KN_OK)
        goto out;
    b->threads = threads ? threads : usable_cpus();
    b->worker_stride = (KN_UNPACK_BYTES + KN_SUMS_BYTES + 4095) & ~(size_t)4095;
    rc = kn_scratch_reserve(&b->workers, b->worker_stride * b->threads);
    if (rc != KN_OK)
        goto out;
    rc = kn_pool_open(b->threads, &b->pool);
    if (rc != KN_OK)
        goto out;
    *out = b;
    return KN_OK;
out:
    kn_backend_close(b);
    return rc;
}

void kn_backend_close(struct kn_backend *b)
{
    if (!b)
        return;
    kn_pool_close(b->pool);
    kn_slab_release(b->slab);
    scratch_free(&b->workers);
    scratch_free(&b->activations);
    scratch_free(&b->attention);
    scratch_free(&b->partials);
    scratch_free(&b->delta);
    free(b);
}

enum kn_isa kn_backend_isa(const struct kn_backend *b)
{
    return b->isa;
}

const char *kn_backend_features(const struct kn_backend *b)
{
    return b->features;
}

unsigned kn_backend_threads(const struct kn_backend *b)
{
    return b->threads;
}

struct parallel_call {
    void (*fn)(void *arg, size_t i);
    void *arg;
};

static void parallel_item(void *arg, size_t i, unsigned worker)
{
    (void)worker;
    const struct parallel_call *c = arg;
    c->fn(c->arg, i);
}

void kn_parallel(struct kn_backend *b, size_t n, void (*fn)(void *arg, size_t i), void *arg)
{
    struct parallel_call c = {fn, arg};
    kn_pool_run(b->pool, n, parallel_item, &c);
}
