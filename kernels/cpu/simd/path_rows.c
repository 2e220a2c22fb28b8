/*
 * Row operations of one path: norms, rotary embedding, gates, exp, log-sum-exp, argmax. Reductions keep 16
 * lanes by index % 16 (kernels.h, "Bit rules"); the last, partial vector is read and written by count.
 */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd/vec.h"

INLINE vf load_part(const float *p, size_t left)
{
    return left >= 16 ? vf_load(p) : vf_load_n(p, left);
}

INLINE void store_part(float *p, vf a, size_t left)
{
    if (left >= 16)
        vf_store(p, a);
    else
        vf_store_n(p, a, left);
}

static void rmsnorm(const float *x, const float *w, float eps, float *y, size_t dim)
{
    vf squares = vf_zero();
    for (size_t i = 0; i < dim; i += 16) {
        vf a = load_part(x + i, dim - i);
        squares = vf_fma(a, a, squares);
    }
    float factor = 1.0f / __builtin_sqrtf(vf_hsum(squares) / (float)dim + eps);
    vf f = vf_set1(factor);
    for (size_t i = 0; i < dim; i += 16) {
        vf a = vf_mul(load_part(x + i, dim - i), f);
        store_part(y + i, vf_mul(a, load_part(w + i, dim - i)), dim - i);
    }
}

/* a' = fma(a, cos, -(b * sin)); b' = fma(b, cos, a * sin) */
static void rope(bool interleaved, float *x, size_t rot, const float *cos, const float *sin)
{
    size_t half = rot / 2;
    vf zero = vf_zero();
    if (!interleaved) {
        for (size_t i = 0; i < half; i += 16) {
            size_t left = half - i;
            vf a = load_part(x + i, left), b = load_part(x + half + i, left);
            vf c = load_part(cos + i, left), s = load_part(sin + i, left);
            store_part(x + i, vf_fma(a, c, vf_sub(zero, vf_mul(b, s))), left);
            store_part(x + half + i, vf_fma(b, c, vf_mul(a, s)), left);
        }
        return;
    }
    static const float signs[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    vf sign = vf_load(signs);
    size_t i = 0;
    for (; i + 8 <= half; i += 8) {
        vf a = vf_load(x + 2 * i), c = vf_load_twice(cos + i), s = vf_load_twice(sin + i);
        vf_store(x + 2 * i, vf_fma(a, c, vf_mul(vf_mul(vf_swap_pairs(a), s), sign)));
    }
    if (i < half) {
        float c8[8] = {0}, s8[8] = {0};
        size_t left = half - i;
        for (size_t k = 0; k < left; k++) {
            c8[k] = cos[i + k];
            s8[k] = sin[i + k];
        }
        vf a = vf_load_n(x + 2 * i, 2 * left), c = vf_load_twice(c8), s = vf_load_twice(s8);
        vf_store_n(x + 2 * i, vf_fma(a, c, vf_mul(vf_mul(vf_swap_pairs(a), s), sign)), 2 * left);
    }
}

/* ---- gates ---- */

static void silu_mul(const float *g, const float *u, float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        vf a = load_part(g + i, n - i);
        store_part(y + i, vf_mul(vf_sigmoid_mul(a, a), load_part(u + i, n - i)), n - i);
    }
}

/* -2 sqrt(2 / pi), and that times 0.044715 */
#define GELU_A (-1.5957691216057308f)
#define GELU_B (-0.07135481627260025f)

static void gelu_mul(const float *g, const float *u, float *y, size_t n)
{
    vf a = vf_set1(GELU_A), b = vf_set1(GELU_B), one = vf_set1(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        vf x = load_part(g + i, n - i);
        vf e = vf_exp(vf_mul(x, vf_fma(vf_mul(x, x), b, a)));
        store_part(y + i, vf_mul(vf_div(x, vf_add(one, e)), load_part(u + i, n - i)), n - i);
    }
}

static void sigmoid_mul(float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        store_part(x + i, vf_sigmoid_mul(load_part(x + i, n - i), load_part(gate + i, n - i)), n - i);
}

static void sigmoid_mul_one(float *x, float gate, size_t n)
{
    vf g = vf_set1(gate);
    for (size_t i = 0; i < n; i += 16)
        store_part(x + i, vf_sigmoid_mul(load_part(x + i, n - i), g), n - i);
}

static void rmsnorm_gated(const float *x, const float *w, float eps, const float *z, float *y, size_t dim)
{
    rmsnorm(x, w, eps, y, dim);
    for (size_t i = 0; i < dim; i += 16) {
        vf gate = load_part(z + i, dim - i);
        store_part(y + i, vf_mul(load_part(y + i, dim - i), vf_sigmoid_mul(gate, gate)), dim - i);
    }
}

/* ---- sums ---- */

static void scale(float *x, float factor, size_t n)
{
    vf f = vf_set1(factor);
    for (size_t i = 0; i < n; i += 16)
        store_part(x + i, vf_mul(load_part(x + i, n - i), f), n - i);
}

static void add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i += 16)
        store_part(x + i, vf_add(load_part(x + i, n - i), load_part(y + i, n - i)), n - i);
}

static void add_scaled(float *y, const float *x, float factor, size_t n)
{
    vf f = vf_set1(factor);
    for (size_t i = 0; i < n; i += 16)
        store_part(y + i, vf_fma(f, load_part(x + i, n - i), load_part(y + i, n - i)), n - i);
}

/* ---- reductions ---- */

/* n floats from p, other lanes and NaN as -inf */
INLINE vf load_ordered(const float *p, size_t left, vf none)
{
    vf a = left >= 16 ? vf_load(p) : vf_blend(vm_first(left), vf_load_n(p, left), none);
    return vf_max(a, none);
}

static void logsumexp(const float *x, size_t n, float *max, float *sum)
{
    vf none = vf_set1(-__builtin_inff()), top = none;
    for (size_t i = 0; i < n; i += 16)
        top = vf_max(load_ordered(x + i, n - i, none), top);
    *max = vf_hmax(top);
    vf sub = vf_set1(*max), total = vf_zero();
    for (size_t i = 0; i < n; i += 16)
        total = vf_add(total, vf_exp(vf_sub(load_ordered(x + i, n - i, none), sub)));
    *sum = vf_hsum(total);
}

static size_t argmax(const float *x, size_t n)
{
    vf none = vf_set1(-__builtin_inff()), top = none;
    vi where = vi_set1(0), step = vi_set1(0), one = vi_set1(1);
    for (size_t i = 0; i < n; i += 16) {
        vf a = load_ordered(x + i, n - i, none);
        vm better = vf_gt(a, top);
        top = vf_blend(better, a, top);
        where = vi_blend(better, step, where);
        step = vi_add(step, one);
    }
    float value[16];
    int32_t at[16];
    vf_store(value, top);
    vi_store(at, where);
    size_t best = 0;
    float best_value = -__builtin_inff();
    for (size_t lane = 0; lane < 16; lane++) {
        size_t index = (size_t)at[lane] * 16 + lane;
        if (value[lane] > best_value || (value[lane] == best_value && index < best)) {
            best_value = value[lane];
            best = index;
        }
    }
    return best;
}

static void exp_all(const float *x, size_t n, float scale, float sub, float *out)
{
    vf f = vf_set1(scale), s = vf_set1(-sub);
    for (size_t i = 0; i < n; i += 16)
        store_part(out + i, vf_exp(vf_fma(load_part(x + i, n - i), f, s)), n - i);
}

const struct kn_rows_path KN_FN(kn_rows_path) = {
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .sigmoid_mul = sigmoid_mul,
    .sigmoid_mul_one = sigmoid_mul_one,
    .rmsnorm_gated = rmsnorm_gated,
    .scale = scale,
    .add = add,
    .add_scaled = add_scaled,
    .logsumexp = logsumexp,
    .argmax = argmax,
    .exp = exp_all,
};
