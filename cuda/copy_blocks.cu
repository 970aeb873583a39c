/* copy_blocks.cu - copies whole KV blocks with their side arrays, and whole query slots, in all
 * layers. A plane is an array [layer][item] of equal items. Planes are the pool, the scores and the
 * origins (an item is a block), and the windows (an item is a query slot). Pairs are a kernel
 * argument, at most PAIRS for each launch. Pairs take effect in order, so a pair that depends on an
 * earlier pair of the launch begins a new launch.
 * Grid (pieces of an item, layers, pairs), 16 bytes per thread and iteration. Bytes moved:
 * 2 * item * layers * pairs. CPU version: cpu_copy.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { PAIRS = 256, BLOCK = 256, PIECE_VECS = 4 * BLOCK };

typedef struct copy_plane {
    uint4 *base;
    size_t item_vecs, layer_vecs;
} copy_plane;

typedef struct copy_pairs {
    cn_block_copy pair[PAIRS];
} copy_pairs;

__global__ static void copy_kernel(const copy_plane plane, const __grid_constant__ copy_pairs pairs)
{
    const cn_block_copy c = pairs.pair[blockIdx.z];
    uint4 *layer = plane.base + blockIdx.y * plane.layer_vecs;
    const uint4 *src = layer + c.src * plane.item_vecs;
    uint4 *dst = layer + c.dst * plane.item_vecs;
    const size_t first = (size_t)blockIdx.x * PIECE_VECS + threadIdx.x;
    uint4 v[PIECE_VECS / BLOCK];
    cn_overlap_next();
    cn_wait_previous();
#pragma unroll
    for (int i = 0; i < PIECE_VECS / BLOCK; i++)
        if (first + i * BLOCK < plane.item_vecs) v[i] = src[first + i * BLOCK];
#pragma unroll
    for (int i = 0; i < PIECE_VECS / BLOCK; i++)
        if (first + i * BLOCK < plane.item_vecs) dst[first + i * BLOCK] = v[i];
}

/* Returns true when pair c must run after one of chosen[0..n). */
static bool depends(const copy_pairs *chosen, uint32_t n, cn_block_copy c)
{
    for (uint32_t i = 0; i < n; i++) {
        const cn_block_copy e = chosen->pair[i];
        if (c.src == e.dst || c.dst == e.dst || c.dst == e.src) return true;
    }
    return false;
}

/* Moves pairs from pairs[*at..n) to `chosen` while they are independent. Returns how many. */
static uint32_t choose(copy_pairs *chosen, const cn_block_copy *pairs, uint32_t n, uint32_t *at)
{
    uint32_t n_chosen = 0;
    for (; *at < n && n_chosen < PAIRS; (*at)++) {
        if (pairs[*at].src == pairs[*at].dst) continue;
        if (depends(chosen, n_chosen, pairs[*at])) break;
        chosen->pair[n_chosen++] = pairs[*at];
    }
    return n_chosen;
}

static cn_status copy_items(cn_stream *s, const copy_plane *planes, uint32_t n_planes,
                            uint32_t n_layers, const cn_block_copy *pairs, uint32_t n)
{
    copy_pairs chosen;
    uint32_t at = 0, n_chosen;
    while ((n_chosen = choose(&chosen, pairs, n, &at)) > 0)
        for (uint32_t i = 0; i < n_planes; i++) {
            const dim3 grid((unsigned)cn_ceil_div(planes[i].item_vecs, PIECE_VECS), n_layers,
                            n_chosen);
            CN_TRY(cn_cuda_launch(s, "copy_blocks", copy_kernel, {grid, BLOCK}, planes[i], chosen));
        }
    return CN_OK;
}

static copy_plane plane_of(void *base, size_t item_bytes, size_t n_items)
{
    copy_plane p;
    p.base = (uint4 *)base;
    p.item_vecs = item_bytes / sizeof(uint4);
    p.layer_vecs = p.item_vecs * n_items;
    return p;
}

extern "C" cn_status cn_cuda_copy_blocks(cn_stream *s, const cn_copy_args *a)
{
    const cn_pools *p = &a->pools;
    const cn_kv_layout *l = &p->layout;
    if (a->n_query_slots > 0 && !p->q_window)
        return cn_fail(CN_ERR_SHAPE,
                       "copy_blocks: %u query slots to copy, but the pools have no query windows",
                       a->n_query_slots);
    const size_t side_bytes = (size_t)l->n_kv_heads * l->block_tokens * sizeof(uint32_t);
    copy_plane planes[3];
    uint32_t n = 0;
    planes[n++] = plane_of(p->kv, cn_kv_block_elems(l) * sizeof(cn_bf16), l->n_blocks);
    if (p->score) planes[n++] = plane_of(p->score, side_bytes, l->n_blocks);
    if (p->origin) planes[n++] = plane_of(p->origin, side_bytes, l->n_blocks);
    CN_TRY(copy_items(s, planes, n, l->n_layers, a->blocks, a->n_blocks));
    const size_t slot_bytes = (size_t)p->window * p->n_heads * l->head_dim * sizeof(cn_bf16);
    const copy_plane windows = plane_of(p->q_window, slot_bytes, p->n_query_slots);
    return copy_items(s, &windows, 1, l->n_layers, a->query_slots, a->n_query_slots);
}
