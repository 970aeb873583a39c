/* cpu_copy.c - copy_blocks: copies whole KV blocks, their side arrays, and whole query slots, from
 * one memory to another. On the CPU all memory is host memory; only the strides of the planes
 * differ. The caller may change the list once the op returns, and a threaded stream runs the copies
 * later. The op therefore queues the list itself, in pieces of at most PIECE copies. */

#include "engine/cpu/cpu_ops.h"

enum { PIECE = 16 };

typedef struct copy_piece {
    cn_plane from[CN_N_BLOCK_PLANES], to[CN_N_BLOCK_PLANES];
    uint32_t n_planes, n;
    cn_block_copy copies[PIECE];
} copy_piece;
_Static_assert((int)CN_N_SLOT_PLANES <= (int)CN_N_BLOCK_PLANES &&
                   sizeof(copy_piece) <= CN_CPU_MAX_ARGS_BYTES,
               "a piece fits in an entry of a stream's queue");

/* Inside a layer copies run in order, because one may read what another wrote. Layers run in
 * parallel. */
static void copy_layer(void *ctx, uint32_t layer, uint32_t worker)
{
    (void)worker;
    const copy_piece *c = ctx;
    for (uint32_t i = 0; i < c->n; i++)
        for (uint32_t p = 0; p < c->n_planes; p++) {
            if (!c->from[p].base || layer >= c->from[p].n_layers) continue;
            char *dst = cn_plane_at(&c->to[p], layer, c->copies[i].dst);
            const char *src = cn_plane_at(&c->from[p], layer, c->copies[i].src);
            if (dst != src) memcpy(dst, src, c->from[p].item_bytes);
        }
}

static cn_status run_piece(cn_stream *s, const void *args)
{
    const copy_piece *c = args;
    uint32_t n_layers = 0;
    for (uint32_t p = 0; p < c->n_planes; p++)
        if (c->from[p].base) n_layers = cn_max_u32(n_layers, c->from[p].n_layers);
    cn_cpu_parallel(s, n_layers, copy_layer, (void *)c);
    return CN_OK;
}

static cn_status copy_cpu_items(cn_stream *s, const cn_plane *from, const cn_plane *to,
                                uint32_t n_planes, const cn_block_copy *copies, uint32_t n)
{
    copy_piece c = {.n_planes = n_planes};
    memcpy(c.from, from, n_planes * sizeof *from);
    memcpy(c.to, to, n_planes * sizeof *to);
    for (uint32_t at = 0; at < n; at += c.n) {
        c.n = cn_min_u32(PIECE, n - at);
        memcpy(c.copies, copies + at, c.n * sizeof *copies);
        CN_TRY(cn_cpu_stream_submit(s, run_piece, &c, sizeof c));
    }
    return CN_OK;
}

cn_status cn_cpu_copy_blocks(cn_stream *s, const cn_copy_args *a)
{
    const cn_copy_list *l = &a->list;
    CN_TRY(cn_copy_check(a));
    CN_TRY(
        copy_cpu_items(s, a->from.block, a->to.block, CN_N_BLOCK_PLANES, l->blocks, l->n_blocks));
    return copy_cpu_items(s, a->from.slot, a->to.slot, CN_N_SLOT_PLANES, l->slots, l->n_slots);
}
