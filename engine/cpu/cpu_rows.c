/* cpu_rows.c - see cpu_rows.h. */
#include "engine/cpu/cpu_rows.h"

#include "engine/base/base.h"
#include "paged/kv_fp8.h"

/* Returns the part that holds the scales of the rows of K or V. */
static cn_kv_part scale_part(cn_kv_part part)
{
    return part == CN_KV_K ? CN_KV_K_SCALE : CN_KV_V_SCALE;
}

static size_t bytes_to(const cn_kv_layout *l, cn_cpu_place at, cn_kv_part part)
{
    return cn_kv_at(l, at.layer, at.block, at.head, at.slot, part);
}

/* out[n, d] = codes[n, d] times the scale of each row. */
static void read_row_fp8(float *out, const uint8_t *codes, const uint16_t *scales, uint32_t n,
                         uint32_t d)
{
    for (uint32_t t = 0; t < n; t++, codes += d, out += d) {
        const float scale = cn_fp8_scale_value(scales[t]);
#pragma omp simd
        for (uint32_t i = 0; i < d; i++) out[i] = cn_fp8_value(codes[i]) * scale;
    }
}

const float *cn_cpu_rows(const cn_kv_layout *l, const void *kv, cn_cpu_place at, cn_kv_part part,
                         uint32_t n, float *room)
{
    CN_ASSERT(at.slot % l->tile_tokens + n <= l->tile_tokens);
    const char *rows = (const char *)kv + bytes_to(l, at, part);
    if (cn_kv_form_of(l) == CN_KV_PLAIN) return (const float *)(const void *)rows;
    const char *scales = (const char *)kv + bytes_to(l, at, scale_part(part));
    read_row_fp8(room, (const uint8_t *)rows, (const uint16_t *)(const void *)scales, n,
                 l->head_dim);
    return room;
}

void cn_cpu_read_rows(const cn_kv_layout *l, const void *kv, cn_cpu_place at, cn_kv_part part,
                      uint32_t n, float *out)
{
    const float *rows = cn_cpu_rows(l, kv, at, part, n, out);
    if (rows != out) memcpy(out, rows, (size_t)n * l->head_dim * sizeof *out);
}

static void store_fp8(uint8_t *codes, uint16_t *scale, const float *x, uint32_t d)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < d; i++) largest = cn_max_u32(largest, cn_fp8_size(x[i]));
    *scale = cn_fp8_scale(largest);
    const float value = cn_fp8_scale_value(*scale);
    for (uint32_t i = 0; i < d; i++) codes[i] = cn_fp8_of(x[i] / value);
}

void cn_cpu_store_row(const cn_kv_layout *l, void *kv, cn_cpu_place at, cn_kv_part part,
                      const float *x)
{
    char *row = (char *)kv + bytes_to(l, at, part);
    if (cn_kv_form_of(l) == CN_KV_PLAIN) {
        memcpy(row, x, l->head_dim * sizeof *x);
        return;
    }
    char *scale = (char *)kv + bytes_to(l, at, scale_part(part));
    store_fp8((uint8_t *)row, (uint16_t *)(void *)scale, x, l->head_dim);
}
