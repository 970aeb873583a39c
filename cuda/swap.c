/* swap.c - copies whole KV blocks with their side arrays, and whole query slots, to the swap space
 * and back. The copy engine makes plain copies in stream order, one for each layer and plane. The
 * swap space is pinned memory, so the host does not wait and no staging is needed. A block moves
 * once over PCIe: 38 MB for 256 tokens of 36 layers and 8 kv heads of 128. At 50 GB/s that takes
 * about 0.8 ms, in which the host enqueues its 72 pieces. CPU version: cpu_swap.c. */
#include "cuda/cuda_ops.h"
#include "engine/swap_space.h"

static cn_status move_item(cn_stream *s, const cn_swap_args *a, const cn_swap_plane *p,
                           cn_block_copy c, char *items, size_t item_bytes)
{
    const enum cudaMemcpyKind kind = a->out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    char *item = items + (a->out ? c.dst : c.src) * item_bytes;
    for (uint32_t layer = 0; layer < a->pools.layout.n_layers; layer++) {
        char *device = cn_swap_on_device(p, layer, a->out ? c.src : c.dst);
        char *host = cn_swap_on_host(p, layer, item);
        CN_CUDA(cudaMemcpyAsync(a->out ? host : device, a->out ? device : host, p->piece_bytes,
                                kind, s->handle));
    }
    return CN_OK;
}

cn_status cn_cuda_swap(cn_stream *s, const cn_swap_args *a)
{
    const cn_swap_moves *m = &a->moves;
    if (m->n_windows > 0 && !a->pools.q_window)
        return cn_fail(CN_ERR_SHAPE,
                       "swap: %u query slots to move, but the pools have no query windows",
                       m->n_windows);
    cn_swap_plane planes[CN_SWAP_PLANES];
    const uint32_t n_planes = cn_swap_block_planes(&a->pools, sizeof(uint16_t), planes);
    const size_t block_bytes = cn_swap_block_bytes(&a->pools, sizeof(uint16_t));
    for (uint32_t i = 0; i < m->n_blocks; i++)
        for (uint32_t p = 0; p < n_planes; p++)
            CN_TRY(move_item(s, a, &planes[p], m->blocks[i], a->host, block_bytes));
    const cn_swap_plane windows = cn_swap_window_plane(&a->pools, sizeof(uint16_t));
    const size_t window_bytes = cn_swap_window_bytes(&a->pools, sizeof(uint16_t));
    char *items = (char *)a->host + a->n_host_blocks * block_bytes;
    for (uint32_t i = 0; i < m->n_windows; i++)
        CN_TRY(move_item(s, a, &windows, m->windows[i], items, window_bytes));
    return CN_OK;
}
