/* cpu_digest.c - digest: labels and bounds of the keys of complete tiles. Tasks are (tile, layer,
 * kv head). Bytes read: those of K of each token, layer and kv head. */
#include <math.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "engine/select/select_math.h"

/* The keys of a tile of one head in one layer. */
typedef struct digest_tile {
    const float *keys; /* [n, d] */
    uint32_t n, d;
    size_t side; /* of its first slot in arrays by slot (cn_kv_side) */
} digest_tile;

static void write_labels(const cn_digest *g, const digest_tile *t, size_t unit)
{
    const uint32_t n_channels = g->n_channels;
    uint16_t channels[CN_CPU_MAX_CHANNELS];
    cn_cpu_read_channels(g, unit, channels);
    const float *offsets = g->offsets ? g->offsets + unit * n_channels : NULL;
    float rest[CN_CPU_MAX_CHANNELS];
    for (uint32_t i = 0; i < t->n; i++) {
        const float *key = t->keys + (size_t)i * t->d;
        uint8_t *label = g->labels + (t->side + i) * (n_channels / 2);
        float largest = 0;
        for (uint32_t c = 0; c < n_channels; c++) {
            rest[c] = key[channels[c]] - (offsets ? offsets[c] : 0);
            const float size = fabsf(rest[c]);
            largest = size > largest ? size : largest;
        }
        const uint16_t scale = cn_label_scale(largest);
        g->scales[t->side + i] = scale;
        for (uint32_t c = 0; c < n_channels; c += 2)
            label[c / 2] =
                cn_label_byte(cn_label_of(rest[c], scale), cn_label_of(rest[c + 1], scale));
    }
}

/* bounds[entry, min|max, d] of the tile's entries of `entry` tokens. */
static void write_bounds(float *bounds, const digest_tile *t, uint32_t entry)
{
    const uint32_t d = t->d;
    float *low = bounds + t->side / entry * 2 * d;
    for (uint32_t first = 0; first < t->n; first += entry, low += (size_t)2 * d) {
        float *high = low + d;
        const float *key = t->keys + (size_t)first * d;
        memcpy(low, key, d * sizeof *low);
        memcpy(high, key, d * sizeof *high);
        for (uint32_t i = 1; i < entry; i++) {
            key += d;
#pragma omp simd
            for (uint32_t c = 0; c < d; c++) {
                low[c] = key[c] < low[c] ? key[c] : low[c];
                high[c] = key[c] > high[c] ? key[c] : high[c];
            }
        }
    }
}

static void digest_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const cn_digest_args *a = ctx;
    const cn_kv_layout *l = &a->pools.layout;
    const cn_digest *g = &a->pools.digest;
    const uint32_t head = task % l->n_kv_heads, layer = task / l->n_kv_heads % l->n_layers;
    const cn_digest_tile *at = a->tiles + task / l->n_kv_heads / l->n_layers;
    const uint32_t slot = at->tile * l->tile_tokens;
    float room[CN_CPU_MAX_TILE * CN_CPU_MAX_HEAD_DIM];
    const digest_tile t = {.keys = cn_cpu_rows(l, a->pools.kv,
                                               (cn_cpu_place){layer, at->block, head, slot},
                                               CN_KV_K, l->tile_tokens, room),
                           .n = l->tile_tokens,
                           .d = l->head_dim,
                           .side = cn_kv_side(l, layer, at->block, head, slot)};
    const size_t unit = (size_t)layer * l->n_kv_heads + head;
    if (g->labels) write_labels(g, &t, unit);
    if (g->bounds_16) write_bounds(g->bounds_16, &t, CN_DIGEST_PAGE);
    if (g->bounds_64) write_bounds(g->bounds_64, &t, CN_DIGEST_TILE);
}

cn_status cn_cpu_digest(cn_stream *s, const cn_digest_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    CN_TRY(cn_cpu_check_selection(&a->pools, "digest"));
    cn_cpu_parallel(s, a->n * l->n_layers * l->n_kv_heads, digest_task, (void *)(uintptr_t)a);
    return CN_OK;
}
