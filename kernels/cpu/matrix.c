/*
 * Packed weight matrices: layout (internal.h), filling by rows, and rows as floats. Rows of one tile share
 * cache lines but no byte, so rows may be filled from several threads.
 */
#include "kernels/cpu/internal.h"
#include "kernels/cpu/simd/vec_scalar.h"
#include <stdlib.h>
#include <string.h>

static bool is_quantised(enum kn_weight kind)
{
    return kind == KN_W_Q4 || kind == KN_W_Q8;
}

static int lay_out(struct kn_matrix *m)
{
    const struct kn_matrix_spec *s = &m->spec;
    if (s->rows == 0 || s->cols == 0 || s->rows > UINT32_MAX - KN_TILE || (unsigned)s->kind > KN_W_Q8)
        return KN_EINVAL;
    m->tiles = (s->rows + KN_TILE - 1) / KN_TILE;
    if (is_quantised(s->kind)) {
        if ((s->group != 16 && s->group != 32) || s->cols % KN_BLOCK != 0)
            return KN_EINVAL;
        m->groups = s->cols / s->group;
        m->scales_bytes = KN_TILE * (s->half_scales ? 2 : 4);
        m->codes_offset = m->scales_bytes * (s->has_min ? 2 : 1);
        m->group_bytes = m->codes_offset + s->group * KN_TILE / (s->kind == KN_W_Q4 ? 2 : 1);
        m->tile_bytes = (size_t)m->groups * m->group_bytes;
    } else {
        m->tile_bytes = (size_t)s->cols * KN_TILE * (s->kind == KN_W_F32 ? 4 : 2);
    }
    return __builtin_mul_overflow(m->tile_bytes, (size_t)m->tiles, &m->data_bytes) ? KN_ENOMEM : KN_OK;
}

/* Smaller matrices have their own allocation, which sanitisers watch. */
#define OWN_MEMORY_BYTES ((size_t)64 << 10)

int kn_matrix_new(struct kn_backend *b, const struct kn_matrix_spec *spec, struct kn_matrix **out)
{
    *out = NULL;
    struct kn_matrix *m = calloc(1, sizeof *m);
    if (!m)
        return KN_ENOMEM;
    m->spec = *spec;
    int rc = lay_out(m);
    if (rc == KN_OK) {
        /* any path reads what any path packed: the backend gives the memory only */
        m->data = m->data_bytes < OWN_MEMORY_BYTES ? aligned_alloc(64, (m->data_bytes + 63) & ~(size_t)63)
                                                   : kn_slab_carve(b, m->data_bytes, &m->slab);
        if (m->data && !m->slab)
            memset(m->data, 0, m->data_bytes);
        if (!m->data)
            rc = KN_ENOMEM;
    }
    if (rc != KN_OK) {
        free(m);
        return rc;
    }
    *out = m;
    return KN_OK;
}

void kn_matrix_free(struct kn_matrix *m)
{
    if (!m)
        return;
    if (m->slab)
        kn_slab_release(m->slab);
    else
        free(m->data);
    free(m);
}

static int put_scale(const struct kn_matrix *m, uint8_t *p, unsigned lane, float x)
{
    if (!m->spec.half_scales) {
        memcpy(p + lane * sizeof x, &x, sizeof x);
        return KN_OK;
    }
    uint16_t half = vec_f32_to_f16(x);
    float back = vec_f16_to_f32(half);
    uint32_t bits, back_bits;
    memcpy(&bits, &x, sizeof bits);
    memcpy(&back_bits, &back, sizeof back_bits);
    if (back_bits != bits)
        return KN_EINVAL; /* not exact in f16 */
    memcpy(p + lane * sizeof half, &half, sizeof half);
    return KN_OK;
}

static int put_codes(const struct kn_matrix *m, uint8_t *p, unsigned lane, const int8_t *codes)
{
    unsigned group = m->spec.group;
    if (m->spec.kind == KN_W_Q8) {
        for (unsigned k = 0; k < group; k += 2)
            memcpy(p + k * KN_TILE + 2 * (size_t)lane, codes + k, 2);
        return KN_OK;
    }
    for (unsigned k = 0; k < group; k += 8) {
        uint32_t bits = 0;
        for (unsigned i = 0; i < 8; i++) {
            uint8_t code = (uint8_t)codes[k + i];
            if (code > 15)
                return KN_EINVAL;
            bits |= (uint32_t)code << (4 * (i / 2) + 16 * (i % 2));
        }
        memcpy(p + k * (KN_TILE / 2) + lane * sizeof bits, &bits, sizeof bits);
    }
    return KN_OK;
}

int kn_matrix_set_codes(struct kn_matrix *m, uint32_t r, const int8_t *codes, const float *scale,
                        const float *min)
{
    if (r >= m->spec.rows || !is_quantised(m->spec.kind) || m->spec.has_min != (min != NULL))
        return KN_EINVAL;
    unsigned lane = r % KN_TILE;
    uint8_t *p = m->data + r / KN_TILE * m->tile_bytes;
    for (uint32_t g = 0; g < m->groups; g++, p += m->group_bytes) {
        int rc = put_scale(m, p, lane, scale[g]);
        if (rc == KN_OK && min)
            rc = put_scale(m, p + m->scales_bytes, lane, min[g]);
        if (rc == KN_OK)
            rc = put_codes(m, p + m->codes_offset, lane, codes + (size_t)g * m->spec.group);
        if (rc != KN_OK)
            return rc;
    }
    return KN_OK;
}

int kn_matrix_set_f32(struct kn_matrix *m, uint32_t r, const float *row)
{
    if (r >= m->spec.rows || m->spec.kind != KN_W_F32)
        return KN_EINVAL;
    float *p = (float *)(void *)(m->data + r / KN_TILE * m->tile_bytes) + r % KN_TILE;
    for (uint32_t k = 0; k < m->spec.cols; k++)
        p[(size_t)k * KN_TILE] = row[k];
    return KN_OK;
}

int kn_matrix_set_16(struct kn_matrix *m, uint32_t r, const uint16_t *row)
{
    if (r >= m->spec.rows || (m->spec.kind != KN_W_F16 && m->spec.kind != KN_W_BF16))
        return KN_EINVAL;
    uint16_t *p = (uint16_t *)(void *)(m->data + r / KN_TILE * m->tile_bytes) + r % KN_TILE;
    for (uint32_t k = 0; k < m->spec.cols; k++)
        p[(size_t)k * KN_TILE] = row[k];
    return KN_OK;
}

uint32_t kn_matrix_rows(const struct kn_matrix *m)
{
    return m->spec.rows;
}

uint32_t kn_matrix_cols(const struct kn_matrix *m)
{
    return m->spec.cols;
}

uint64_t kn_matrix_bytes(const struct kn_matrix *m)
{
    return m->data_bytes;
}
