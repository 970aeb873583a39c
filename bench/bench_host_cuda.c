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
 *         K and V, labels and scales; not P. What arrived is compared with the home; the exit
 *         status is 1 if it differs.
 * inline  The other form that engines use: misses are fetched in line, layer by layer, into a
 *         buffer of twice the tiles by least recent use. With forced churn the wanted tiles are a
 *         run that moves on, so each tile that enters is a miss, whatever the size of the buffer.
 *         This times the 36 fetches of a step, without the ranks: a step takes at least so much
 *         longer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_side.h"

enum {
    NAMES = 42, /* width of their column */
    ROOM_GIB = 8,
    SEQS = 6,
    AREA = 32,         /* blocks of an exchange area: 128 tiles */
    HOME_BLOCKS = 384, /* of a request: 98,304 tokens; requests share blocks */
    UNITS = SEQS * LAYERS * KV_HEADS,
    MOST_TILES = 13,
    PUTS = 16
};

/* A backend of the GPU. Those that pull use the home of the first. */
static side open_gpu(uint32_t gpu, uint32_t blocks)
{
    const cn_cuda_switches switches = {.gemm = CN_CUDA_GEMM_LIBRARY, .host_blocks = blocks};
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

/* Draws moves, on average n of each unit. */
static void fill_arrays(arrays *a, double n, uint32_t n_home)
{
    enum { TILES = BLOCK / CN_DIGEST_TILE };
    uint64_t random = 1;
    for (uint32_t i = 0; i < SEQS * AREA; i++) a->local_tables[i] = i;
    for (uint32_t i = 0; i < SEQS * HOME_BLOCKS; i++)
        a->home_tables[i] = (uint32_t)(bench_random(&random) % n_home);
    memset(a->entry_log2, CN_DIGEST_TILE_LOG2, sizeof a->entry_log2);
    for (uint32_t u = 0; u < UNITS; u++) {
        a->n_moves[u] = (uint32_t)((u + 1) * n) - (uint32_t)(u * n);
        for (uint32_t i = 0; i < a->n_moves[u]; i++)
            a->moves[u * MOST_TILES + i] =
                (cn_move){(i * 5 + u) % (AREA * TILES),
                          (uint32_t)(bench_random(&random) % (HOME_BLOCKS * TILES))};
    }
}

/* Where K and V of a move of a unit come from, or go to. */
static char *tile_at(const cn_pools *pools, const arrays *a, uint32_t unit, uint32_t i, bool home)
{
    const uint32_t seq = unit / (LAYERS * KV_HEADS), layer = unit / KV_HEADS % LAYERS;
    const cn_move m = a->moves[unit * MOST_TILES + i];
    const uint32_t slot = (home ? m.source : m.entry) * CN_DIGEST_TILE;
    const uint32_t block = home ? a->home_tables[seq * HOME_BLOCKS + slot / BLOCK]
                                : a->local_tables[seq * AREA + slot / BLOCK];
    return (char *)pools->kv +
           cn_kv_at(&pools->layout, layer, block, unit % KV_HEADS, slot % BLOCK, CN_KV_K);
}

/* Writes something else into each tile that moves, and something else at each call: a copy that
 * moves nothing must not find what an earlier one left. */
static void mark_home(const cn_pools *home, const arrays *a)
{
    static uint64_t salt;
    salt += UINT64_C(1) << 48; /* addresses are below */
    const size_t n = home->layout.tile_bytes / sizeof(uint64_t);
    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t i = 0; i < a->n_moves[u]; i++) {
            uint64_t *at = (uint64_t *)(void *)tile_at(home, a, u, i, true);
            for (size_t w = 0; w < n; w++)
                at[w] = (salt + (uint64_t)(uintptr_t)(at + w)) * UINT64_C(0x9e3779b97f4a7c15);
        }
}

/* Compares the tiles of every 17th unit with the home. Returns how many differ. */
static uint32_t check_tiles(const side *s, const cn_pools *local, const cn_pools *home,
                            const arrays *a)
{
    const size_t bytes = home->layout.tile_bytes;
    char *got = cn_calloc(bytes, 1);
    uint32_t n = 0, wrong = 0;
    if (!got) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for a tile"));
    for (uint32_t u = 0; u < UNITS; u += 17)
        for (uint32_t i = 0; i < a->n_moves[u]; i++, n++) {
            bench_must(s->be->mem_read(s->stream, got, tile_at(local, a, u, i, false), bytes));
            bench_must(s->be->stream_sync(s->stream));
            wrong += memcmp(got, tile_at(home, a, u, i, true), bytes) != 0;
        }
    cn_free(got);
    if (wrong > 0) printf("WRONG: %u of %u tiles differ from the home\n", wrong, n);
    return wrong;
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

/* A backend that pulls, and the arrays of its launches. */
typedef struct puller {
    side s;
    cn_pools local, home;
    arrays *host, *a; /* on the host, and on the device */
} puller;

static puller open_puller(uint32_t gpu, const cn_pools *kv, uint32_t blocks)
{
    puller p = {.s = open_gpu(gpu, blocks)};
    p.local = with_sides(&p.s, &p.s.pools);
    p.home = with_sides(&p.s, kv);
    p.host = cn_calloc(1, sizeof *p.host);
    if (!p.host) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for the moves"));
    p.a = bench_alloc(p.s.be, sizeof *p.a);
    return p;
}

static void close_puller(puller *p)
{
    cn_free(p->host);
    close_side(&p->s);
}

/* Sends moves, on average n of each unit, to the device. */
static void set_moves(puller *p, double n)
{
    fill_arrays(p->host, n, p->home.layout.n_blocks);
    bench_must(p->s.be->mem_write(p->s.stream, p->a, p->host, sizeof *p->host));
    bench_must(p->s.be->stream_sync(p->s.stream));
}

static cn_fetch_args fetch_of(const puller *p)
{
    return (cn_fetch_args){.local = p->local,
                           .home = p->home,
                           .local_tables = p->a->local_tables,
                           .home_tables = p->a->home_tables,
                           .local_stride = AREA,
                           .home_stride = HOME_BLOCKS,
                           .entry_log2 = p->a->entry_log2,
                           .moves = p->a->moves,
                           .n_moves = p->a->n_moves,
                           .move_stride = MOST_TILES,
                           .n_seqs = SEQS,
                           .n_layers = LAYERS};
}

/* Bytes of so many tiles. */
static double bytes_of(double n_tiles)
{
    enum { ROW_BYTES = 2 * DIM * 2, LABEL_BYTES = CHANNELS / 2 + 2 };
    return n_tiles * CN_DIGEST_TILE * (ROW_BYTES + LABEL_BYTES);
}

/* Times pulls by so many thread blocks; 0: the default. Returns how many tiles are wrong. */
static uint32_t time_pull(uint32_t gpu, const cn_pools *kv, uint32_t blocks, double link)
{
    static const uint32_t counts[] = {2, MOST_TILES};
    uint32_t wrong = 0;
    puller p = open_puller(gpu, kv, blocks);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[64], by[24] = "default";
        set_moves(&p, counts[i]);
        mark_home(kv, p.host);
        const cn_fetch_args f = fetch_of(&p);
        if (blocks > 0) snprintf(by, sizeof by, "%u blocks", blocks);
        snprintf(name, sizeof name, "pull, %u tiles of a unit, %s", counts[i], by);
        report(NAMES, name, bytes_of((double)UNITS * counts[i]), time_of(&p.s, run_fetch, &f),
               link);
        wrong += check_tiles(&p.s, &p.local, kv, p.host);
    }
    close_puller(&p);
    return wrong;
}

/* One fetch of each layer, as if each were in line. */
static cn_status run_layers(side *s, const void *args)
{
    cn_fetch_args f = *(const cn_fetch_args *)args;
    f.n_layers = 1;
    for (f.first_layer = 0; f.first_layer < LAYERS; f.first_layer++)
        CN_TRY(s->be->fetch(s->stream, &f));
    return CN_OK;
}

/* The moves of a layer's units are those of the first layer's. */
static void time_inline(uint32_t gpu, const cn_pools *kv)
{
    static const double churns[] = {0.01, 0.03, 0.1};
    enum { WANTED = 128 }; /* tiles */
    puller p = open_puller(gpu, kv, 0);
    for (size_t i = 0; i < sizeof churns / sizeof *churns; i++) {
        uint32_t n = 0;
        set_moves(&p, churns[i] * WANTED);
        for (uint32_t u = 0; u < SEQS * KV_HEADS; u++) n += p.host->n_moves[u];
        const cn_fetch_args f = fetch_of(&p);
        const double s = time_of(&p.s, run_layers, &f);
        printf("inline, churn %2.0f %%: at least %.3f ms of each step, %.1f GB/s\n",
               100 * churns[i], s * 1e3, bytes_of((double)n * LAYERS) / s / 1e9);
    }
    close_puller(&p);
}

int main(int argc, char **argv)
{
    static const uint32_t blocks[] = {0, 16, 64, 132};
    const double gib = argc > 1 ? strtod(argv[1], NULL) : 16;
    const uint32_t gpu = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (gib < 5) bench_must(cn_fail(CN_ERR_ARG, "GIB: expected at least 5"));
    side s = open_gpu(gpu, 0);
    const cn_pools home = take_home(&s, gib);
    const double put_link = link_rate(&s, &home, true), pull_link = link_rate(&s, &home, false);
    printf("link: to the host %.1f GB/s, from the host %.1f GB/s\n", put_link / 1e9,
           pull_link / 1e9);
    time_put(&s, &home, put_link);
    uint32_t wrong = 0;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        wrong += time_pull(gpu, &home, blocks[i], pull_link);
    time_inline(gpu, &home);
    give_home(&s, &home);
    close_side(&s);
    return wrong > 0;
}
