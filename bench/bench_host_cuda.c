/* bench_host_cuda.c - times home `host` on a GPU beside what the copy engine moves in the same run,
 * in the shape of Qwen3-8B: 36 layers, 8 kv heads, head_dim 128, blocks of 256, bf16.
 *
 *   bench_host_cuda [GIB [GPU]]   (16 GiB of host memory; GPU 0)
 *
 * pinned  The memory of the home: the time to take it, and to give it back.
 * link    One copy of 512 MiB in each direction.
 * put     The op `copy_blocks`: whole blocks of all layers.
 * pull    The op `fetch`: for 6 requests, 36 layers and 8 heads, random tiles of 64 tokens; 2 and
 *         13 of each unit; by as many thread blocks as the switch host_blocks says. The rate counts
 *         K and V, labels and scales; not P. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_side.h"

enum {
    NAMES = 36, /* width of their column */
    ROOM_GIB = 8,
    SEQS = 6,
    AREA = 32,         /* blocks of an exchange area: 128 tiles */
    HOME_BLOCKS = 384, /* of a request: 98,304 tokens; requests share blocks */
    UNITS = SEQS * LAYERS * KV_HEADS,
    MOST_TILES = 13,
    PUTS = 16
};

/* A backend of the GPU. Those that pull use the home of the first. */
static side open_gpu(uint32_t gpu, uint32_t host_blocks)
{
    const cn_cuda_switches switches = {.gemm = CN_CUDA_GEMM_LIBRARY, .host_blocks = host_blocks};
    return open_side(gpu, SEQS, SEQS * AREA, (uint64_t)ROOM_GIB << 30, &switches);
}

/* ---- pinned memory ---- */

/* The pools of the home: K and V in host memory. */
static cn_pools take_home(const side *s, double gib)
{
    cn_pools home = s->pools;
    const size_t block_bytes = LAYERS * home.layout.block_bytes;
    const uint32_t n = (uint32_t)(gib * (double)CN_GIB / (double)block_bytes);
    home.layout = cn_kv_layout_make(LAYERS, n, KV_HEADS, BLOCK, DIM, CN_BF16);
    void *memory = NULL;
    const double began_s = cn_now_s();
    bench_must(s->be->host_alloc(s->be, cn_kv_pool_bytes(&home.layout), &memory));
    const double took_s = cn_now_s() - began_s;
    const double each_s = took_s / cn_gib(cn_kv_pool_bytes(&home.layout));
    home.kv = memory;
    printf("pinned %.2f GiB in %.2f s: %.3f s a GiB (0.25: %s)\n",
           cn_gib(cn_kv_pool_bytes(&home.layout)), took_s, each_s,
           each_s <= 0.25 ? "met" : "MISSED");
    return home;
}

static void give_home(const side *s, const cn_pools *home)
{
    const double began_s = cn_now_s();
    s->be->host_free(s->be, home->kv);
    printf("freed %.2f GiB in %.2f s\n", cn_gib(cn_kv_pool_bytes(&home->layout)),
           cn_now_s() - began_s);
}

/* ---- copies ---- */

/* The rate of one long copy, out of the device or into it. */
static double link_rate(side *s, const cn_pools *home, bool out)
{
    const cn_block_copy pair = {0, 0};
    cn_copy_args a = {.list = {.blocks = &pair, .n_blocks = 1}};
    cn_planes device = {.where = CN_ON_DEVICE}, host = {.where = CN_ON_HOST};
    device.block[CN_PLANE_KV] = cn_plane_by_layer(s->pools.kv, LINK_BYTES, 1, 1);
    host.block[CN_PLANE_KV] = cn_plane_by_layer(home->kv, LINK_BYTES, 1, 1);
    a.from = out ? device : host;
    a.to = out ? host : device;
    return LINK_BYTES / time_of(s, run_copy, &a);
}

static void time_put(side *s, const cn_pools *home, double link)
{
    static const uint32_t counts[] = {1, PUTS};
    cn_block_copy pairs[PUTS];
    for (uint32_t i = 0; i < PUTS; i++) pairs[i] = (cn_block_copy){i * 3, i * 7 + 2};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[64];
        cn_copy_args a = {cn_pools_planes(&s->pools), cn_pools_planes(home),
                          {.blocks = pairs, .n_blocks = counts[i]}};
        a.to.where = CN_ON_HOST;
        const double bytes = (double)counts[i] * LAYERS * (double)home->layout.block_bytes;
        snprintf(name, sizeof name, "put, %u block%s", counts[i], counts[i] > 1 ? "s" : "");
        report(NAMES, name, bytes, time_of(s, run_copy, &a), link);
    }
}

/* ---- pulls ---- */

/* The arrays of `fetch`. */
typedef struct arrays {
    uint32_t local_tables[SEQS * AREA], home_tables[SEQS * HOME_BLOCKS];
    uint8_t entry_log2[SEQS];
    uint32_t n_moves[UNITS];
    cn_move moves[UNITS * MOST_TILES];
} arrays;

/* Draws n moves of each unit. */
static void fill_arrays(arrays *a, uint32_t n, uint32_t n_home)
{
    enum { TILES = BLOCK / CN_DIGEST_TILE };
    uint64_t random = 1;
    for (uint32_t i = 0; i < SEQS * AREA; i++) a->local_tables[i] = i;
    for (uint32_t i = 0; i < SEQS * HOME_BLOCKS; i++)
        a->home_tables[i] = (uint32_t)(bench_random(&random) % n_home);
    memset(a->entry_log2, CN_DIGEST_TILE_LOG2, sizeof a->entry_log2);
    for (uint32_t u = 0; u < UNITS; u++) {
        a->n_moves[u] = n;
        for (uint32_t i = 0; i < n; i++)
            a->moves[u * MOST_TILES + i] =
                (cn_move){(i * 5 + u) % (AREA * TILES),
                          (uint32_t)(bench_random(&random) % (HOME_BLOCKS * TILES))};
    }
}

/* Labels, scales and P of pools, on the device. */
static cn_pools with_sides(const side *s, const cn_pools *pools)
{
    const size_t n = cn_kv_side_elems(&pools->layout);
    cn_pools p = *pools;
    p.origin = bench_alloc(s->be, n * sizeof *p.origin);
    p.digest.n_channels = CHANNELS;
    p.digest.labels = bench_alloc(s->be, n * CHANNELS / 2);
    p.digest.scales = bench_alloc(s->be, n * sizeof *p.digest.scales);
    return p;
}

/* Times pulls with one number of thread blocks; 0 is the default. */
static void time_pull(uint32_t gpu, const cn_pools *kv, uint32_t host_blocks, double link)
{
    enum { ROW_BYTES = 2 * DIM * 2, LABEL_BYTES = CHANNELS / 2 + 2 };
    static const uint32_t counts[] = {2, MOST_TILES};
    side s = open_gpu(gpu, host_blocks);
    const cn_pools local = with_sides(&s, &s.pools), home = with_sides(&s, kv);
    arrays *host = cn_calloc(1, sizeof *host);
    if (!host) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for the moves"));
    arrays *a = bench_alloc(s.be, sizeof *a);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[64];
        fill_arrays(host, counts[i], home.layout.n_blocks);
        bench_must(s.be->mem_write(s.stream, a, host, sizeof *host));
        bench_must(s.be->stream_sync(s.stream));
        const cn_fetch_args f = {.local = local,
                                 .home = home,
                                 .local_tables = a->local_tables,
                                 .home_tables = a->home_tables,
                                 .local_stride = AREA,
                                 .home_stride = HOME_BLOCKS,
                                 .entry_log2 = a->entry_log2,
                                 .moves = a->moves,
                                 .n_moves = a->n_moves,
                                 .move_stride = MOST_TILES,
                                 .n_seqs = SEQS,
                                 .n_layers = LAYERS};
        const double bytes =
            (double)UNITS * counts[i] * CN_DIGEST_TILE * (ROW_BYTES + LABEL_BYTES);
        if (host_blocks > 0)
            snprintf(name, sizeof name, "pull, %u tiles of a unit, %u blocks", counts[i],
                     host_blocks);
        else
            snprintf(name, sizeof name, "pull, %u tiles of a unit, default", counts[i]);
        report(NAMES, name, bytes, time_of(&s, run_fetch, &f), link);
    }
    cn_free(host);
    close_side(&s);
}

int main(int argc, char **argv)
{
    static const uint32_t blocks[] = {0, 4, 8, 16, 32};
    const double gib = argc > 1 ? strtod(argv[1], NULL) : 16;
    const uint32_t gpu = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (gib < 5) bench_must(cn_fail(CN_ERR_ARG, "GIB: expected at least 5"));
    side s = open_gpu(gpu, 0);
    const cn_pools home = take_home(&s, gib);
    const double put_link = link_rate(&s, &home, true), pull_link = link_rate(&s, &home, false);
    printf("link: to the host %.1f GB/s, from the host %.1f GB/s\n", put_link / 1e9,
           pull_link / 1e9);
    time_put(&s, &home, put_link);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        time_pull(gpu, &home, blocks[i], pull_link);
    give_home(&s, &home);
    close_side(&s);
    return 0;
}
