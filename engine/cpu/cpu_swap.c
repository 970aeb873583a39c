/* cpu_swap.c - swap: copies whole KV blocks with their side arrays, and whole query slots, to the
 * swap space and back. On the CPU the pool and the swap space are both host memory; the op is the
 * specification for other backends. */
#include <string.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/swap_space.h"

static void move_piece(const cn_swap_plane *p, uint32_t layer, cn_block_copy c, char *items,
                       size_t item_bytes, bool out)
{
    char *device = cn_swap_on_device(p, layer, out ? c.src : c.dst);
    char *host = cn_swap_on_host(p, layer, items + (out ? c.dst : c.src) * item_bytes);
    memcpy(out ? host : device, out ? device : host, p->piece_bytes);
}

static void move_layer(void *ctx, uint32_t layer, uint32_t worker)
{
    (void)worker;
    const cn_swap_args *a = ctx;
    const cn_swap_moves *m = &a->moves;
    cn_swap_plane planes[CN_SWAP_PLANES];
    const uint32_t n_planes = cn_swap_block_planes(&a->pools, sizeof(float), planes);
    const size_t block_bytes = cn_swap_block_bytes(&a->pools, sizeof(float));
    for (uint32_t i = 0; i < m->n_blocks; i++)
        for (uint32_t p = 0; p < n_planes; p++)
            move_piece(&planes[p], layer, m->blocks[i], a->host, block_bytes, a->out);
    const cn_swap_plane windows = cn_swap_window_plane(&a->pools, sizeof(float));
    const size_t window_bytes = cn_swap_window_bytes(&a->pools, sizeof(float));
    char *items = (char *)a->host + a->n_host_blocks * block_bytes;
    for (uint32_t i = 0; i < m->n_windows; i++)
        move_piece(&windows, layer, m->windows[i], items, window_bytes, a->out);
}

cn_status cn_cpu_swap(cn_stream *s, const cn_swap_args *a)
{
    if (a->moves.n_windows > 0 && !a->pools.q_window)
        return cn_fail(CN_ERR_SHAPE,
                       "swap: %u query slots to move, but the pools have no query windows",
                       a->moves.n_windows);
    cn_cpu_parallel(s, a->pools.layout.n_layers, move_layer, (void *)a);
    return CN_OK;
}
