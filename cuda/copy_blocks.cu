/* copy_blocks.cu - copies whole KV blocks and whole query slots, in all layers and planes
 * (paged/planes.h). CPU version: cpu_copy.c.
 *
 * A kernel copies inside device memory, and from one memory to another of the same device or of a
 * peer. Pairs are a kernel argument, at most PAIRS for each launch. Inside one memory pairs take
 * effect in order, so a pair that depends on an earlier pair of the launch begins a new launch.
 * Grid (pieces of an item, layers, pairs), 16 bytes per thread and iteration. Bytes moved:
 * 2 * item * layers * pairs.
 *
 * The copy engine copies to and from host memory: one 2-D copy for each item and plane, or one copy
 * for each layer when a stride exceeds the copy engine's limit. Host memory is pinned, so the host
 * does not wait and needs no staging buffer. A block crosses PCIe once: 38 MB for 256 tokens of 36
 * layers and 8 kv heads of 128, which takes 0.8 ms at 50 GB/s. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { PAIRS = 256, BLOCK = 256, PIECE_VECS = 4 * BLOCK };

/* ---- device memory ---- */

/* A plane of one memory, in vectors. */
typedef struct copy_side {
    uint4 *base;
    size_t item, layer; /* from one item or layer to the next */
} copy_side;

typedef struct copy_plane {
    copy_side from, to;
    size_t item_vecs;
} copy_plane;

typedef struct copy_pairs {
    cn_block_copy pair[PAIRS];
} copy_pairs;

__global__ static void copy_kernel(const copy_plane plane, const __grid_constant__ copy_pairs pairs)
{
    const cn_block_copy c = pairs.pair[blockIdx.z];
    const uint4 *src = plane.from.base + blockIdx.y * plane.from.layer + c.src * plane.from.item;
    uint4 *dst = plane.to.base + blockIdx.y * plane.to.layer + c.dst * plane.to.item;
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

/* Moves pairs from pairs[*at..n) to `chosen` while they are independent. Returns how many. Pairs of
 * two memories always are. */
static uint32_t choose_independent(copy_pairs *chosen, const cn_block_copy *pairs, uint32_t n,
                                   bool inside, uint32_t *at)
{
    uint32_t n_chosen = 0;
    for (; *at < n && n_chosen < PAIRS; (*at)++) {
        if (inside && pairs[*at].src == pairs[*at].dst) continue;
        if (inside && depends(chosen, n_chosen, pairs[*at])) break;
        chosen->pair[n_chosen++] = pairs[*at];
    }
    return n_chosen;
}

static copy_side copy_side_of(const cn_plane *p)
{
    copy_side side;
    side.base = (uint4 *)p->base;
    side.item = p->item_stride / sizeof(uint4);
    side.layer = p->layer_stride / sizeof(uint4);
    return side;
}

static cn_status copy_plane_items(cn_stream *s, const cn_plane *from, const cn_plane *to,
                                  const copy_pairs *pairs, uint32_t n)
{
    if (!from->base) return CN_OK;
    copy_plane plane;
    plane.from = copy_side_of(from);
    plane.to = copy_side_of(to);
    plane.item_vecs = from->item_bytes / sizeof(uint4);
    const dim3 grid((unsigned)cn_ceil_div(plane.item_vecs, PIECE_VECS), from->n_layers, n);
    return cn_cuda_launch(s, "copy_blocks", copy_kernel, {grid, BLOCK}, plane, *pairs);
}

static cn_status copy_on_device(cn_stream *s, const cn_plane *from, const cn_plane *to,
                                uint32_t n_planes, const cn_block_copy *pairs, uint32_t n)
{
    copy_pairs chosen;
    uint32_t at = 0, n_chosen, first = 0;
    while (first < n_planes && !from[first].base) first++;
    if (first == n_planes) return CN_OK;
    const bool inside = from[first].base == to[first].base;
    while ((n_chosen = choose_independent(&chosen, pairs, n, inside, &at)) > 0)
        for (uint32_t i = first; i < n_planes; i++)
            CN_TRY(copy_plane_items(s, &from[i], &to[i], &chosen, n_chosen));
    return CN_OK;
}

/* ---- to and from host memory ---- */

static cn_status copy_item(cn_stream *s, const cn_plane *from, const cn_plane *to, cn_block_copy c)
{
    const size_t most = s->cuda->device.max_pitch;
    if (from->layer_stride <= most && to->layer_stride <= most) {
        CN_CUDA(cudaMemcpy2DAsync(cn_plane_at(to, 0, c.dst), to->layer_stride,
                                  cn_plane_at(from, 0, c.src), from->layer_stride,
                                  from->item_bytes, from->n_layers, cudaMemcpyDefault, s->handle));
        return CN_OK;
    }
    for (uint32_t layer = 0; layer < from->n_layers; layer++)
        CN_CUDA(cudaMemcpyAsync(cn_plane_at(to, layer, c.dst), cn_plane_at(from, layer, c.src),
                                from->item_bytes, cudaMemcpyDefault, s->handle));
    return CN_OK;
}

static cn_status copy_across(cn_stream *s, const cn_plane *from, const cn_plane *to,
                             uint32_t n_planes, const cn_block_copy *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < n_planes; p++)
            if (from[p].base) CN_TRY(copy_item(s, &from[p], &to[p], pairs[i]));
    return CN_OK;
}

extern "C" cn_status cn_cuda_copy_blocks(cn_stream *s, const cn_copy_args *a)
{
    const cn_planes *from = &a->from, *to = &a->to;
    const cn_copy_list *l = &a->list;
    CN_TRY(cn_copy_check(a));
    if (from->where == CN_ON_DEVICE && to->where == CN_ON_DEVICE) {
        CN_TRY(copy_on_device(s, from->block, to->block, CN_N_BLOCK_PLANES, l->blocks,
                              l->n_blocks));
        return copy_on_device(s, from->slot, to->slot, CN_N_SLOT_PLANES, l->slots, l->n_slots);
    }
    CN_TRY(copy_across(s, from->block, to->block, CN_N_BLOCK_PLANES, l->blocks, l->n_blocks));
    return copy_across(s, from->slot, to->slot, CN_N_SLOT_PLANES, l->slots, l->n_slots);
}
