/* bench_pair_cuda.c - times what goes between a GPU and its cache GPU beside what the copy engine
 * moves in the same run, and the op that decides what goes, in the shape of Qwen3-8B: 36 layers, 8
 * kv heads, head_dim 128, blocks of 256, bf16.
 *
 *   bench_pair_cuda [CACHE [MODEL]]   (GPUs; 1 and 0)
 *
 * link  One copy of 537 MB in each direction.
 * push  The op `fetch` of the cache GPU: for 8 requests, 36 layers and 8 heads, random tokens of
 *       32,768 to random slots of 2,048; 56, 205 and 410 of each unit. Then 13 random tiles of 64
 *       tokens of each unit. The pools have labels, scales and P, as in an engine with `tls` and
 *       `zip`. The rate counts K and V, and for tiles labels and scales; not P.
 * put   The op `copy_blocks` of the model's GPU: whole blocks of all layers.
 * exchange  The op `exchange` of the cache GPU: 32,704 candidates and 2,048 entries of a unit, at
 *       most 205 moves; 216 and 2,304 units. The floor is one read of the scores.
 * On one GPU there is no link, and shares mean nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_side.h"

enum {
    NAMES = 28, /* width of their column */
    ROOM_GIB = 2,
    SEQS = 8,
    AREA = 8,          /* blocks of an exchange area */
    HOME_BLOCKS = 128, /* of a request: 32,768 tokens */
    HOME = 512,        /* blocks of the home space; requests share them */
    UNITS = SEQS * LAYERS * KV_HEADS,
    MOST_MOVES = 410,
    PUTS = 16,
    CANDIDATES = 32704, /* of a unit */
    ENTRIES = AREA * BLOCK,
    CAP = 205
};

/* The rate of one long copy. Planes in "host" memory make `copy_blocks` use the copy engine. */
static double link_rate(side *by, const side *from, const side *to)
{
    const cn_block_copy pair = {0, 0};
    cn_copy_args a = {.list = {.blocks = &pair, .n_blocks = 1}};
    a.from = (cn_planes){.where = CN_ON_HOST};
    a.to = a.from;
    a.from.block[CN_PLANE_KV] = cn_plane_by_layer(from->pools.kv, LINK_BYTES, 1, 1);
    a.to.block[CN_PLANE_KV] = cn_plane_by_layer(to->pools.kv, LINK_BYTES, 1, 1);
    return LINK_BYTES / time_of(by, run_copy, &a);
}

/* The arrays of `fetch`, on the cache GPU. */
typedef struct arrays {
    uint32_t local_tables[SEQS * AREA], home_tables[SEQS * HOME_BLOCKS];
    uint8_t entry_log2[SEQS];
    uint32_t n_moves[UNITS];
    cn_move moves[UNITS * MOST_MOVES];
} arrays;

/* Draws n moves of each unit, of tokens or of tiles. */
static void fill_arrays(arrays *a, uint32_t n, uint32_t log2)
{
    uint64_t random = 1;
    for (uint32_t i = 0; i < SEQS * AREA; i++) a->local_tables[i] = i;
    for (uint32_t i = 0; i < SEQS * HOME_BLOCKS; i++)
        a->home_tables[i] = (uint32_t)(bench_random(&random) % HOME);
    memset(a->entry_log2, (int)log2, sizeof a->entry_log2);
    for (uint32_t u = 0; u < UNITS; u++) {
        a->n_moves[u] = n;
        for (uint32_t i = 0; i < n; i++)
            a->moves[u * MOST_MOVES + i] = (cn_move){
                (i * 5 + u) % (AREA * BLOCK >> log2),
                (uint32_t)(bench_random(&random) % (HOME_BLOCKS * BLOCK >> log2))};
    }
}

/* The pools of a side with labels, scales and P. */
static cn_pools push_pools(const side *s)
{
    const size_t n = cn_kv_side_elems(&s->pools.layout);
    cn_pools p = s->pools;
    p.origin = bench_alloc(s->be, n * sizeof *p.origin);
    p.digest.n_channels = CHANNELS;
    p.digest.labels = bench_alloc(s->be, n * CHANNELS / 2);
    p.digest.scales = bench_alloc(s->be, n * sizeof *p.digest.scales);
    return p;
}

static void time_push(side *cache, const side *model, double link)
{
    static const struct {
        uint32_t n, log2;
    } cases[] = {{56, 0}, {205, 0}, {MOST_MOVES, 0}, {13, 6}};
    enum { ROW_BYTES = 2 * DIM * 2, LABEL_BYTES = CHANNELS / 2 + 2 };
    const cn_pools home = push_pools(cache), local = push_pools(model);
    arrays *host = cn_calloc(1, sizeof *host);
    if (!host) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for the moves"));
    arrays *a = bench_alloc(cache->be, sizeof *a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t n = cases[i].n, log2 = cases[i].log2;
        char name[64];
        fill_arrays(host, n, log2);
        bench_must(cache->be->mem_write(cache->stream, a, host, sizeof *host));
        bench_must(cache->be->stream_sync(cache->stream));
        const cn_fetch_args f = {.local = local,
                                 .home = home,
                                 .local_tables = a->local_tables,
                                 .home_tables = a->home_tables,
                                 .local_stride = AREA,
                                 .home_stride = HOME_BLOCKS,
                                 .entry_log2 = a->entry_log2,
                                 .moves = a->moves,
                                 .n_moves = a->n_moves,
                                 .move_stride = MOST_MOVES,
                                 .n_seqs = SEQS,
                                 .n_layers = LAYERS};
        const double bytes = (double)UNITS * (n << log2) * (ROW_BYTES + (log2 ? LABEL_BYTES : 0));
        snprintf(name, sizeof name, "push, %u %s of a unit", n, log2 ? "tiles" : "tokens");
        report(NAMES, name, bytes, time_of(cache, run_fetch, &f), link);
    }
    cn_free(host);
}

static void time_put(side *model, const side *cache, double link)
{
    static const uint32_t counts[] = {1, PUTS};
    cn_block_copy pairs[PUTS];
    for (uint32_t i = 0; i < PUTS; i++) pairs[i] = (cn_block_copy){i * 3, i * 7 + 2};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[64];
        const cn_copy_args a = {cn_pools_planes(&model->pools), cn_pools_planes(&cache->pools),
                                {.blocks = pairs, .n_blocks = counts[i]}};
        const double bytes = (double)counts[i] * LAYERS * (double)model->pools.layout.block_bytes;
        snprintf(name, sizeof name, "put, %u block%s", counts[i], counts[i] > 1 ? "s" : "");
        report(NAMES, name, bytes, time_of(model, run_copy, &a), link);
    }
}

/* The arrays of `exchange`, on the cache GPU. */
typedef struct exchange_arrays {
    uint16_t score[(size_t)UNITS * CANDIDATES];
    uint32_t chosen[UNITS * ENTRIES];
    uint32_t first[SEQS], n[SEQS], base[SEQS], k[SEQS], cap[SEQS], slots[SEQS];
    uint8_t entry_log2[SEQS];
    uint32_t n_moves[UNITS], n_missed[UNITS];
    cn_move moves[UNITS * CAP];
} exchange_arrays;

/* Random scores. With `settled`, nine of ten chosen candidates have better scores than all that are
 * not chosen. */
static void fill_exchange(exchange_arrays *a, bool settled)
{
    uint64_t random = 1;
    for (uint32_t s = 0; s < SEQS; s++) {
        a->first[s] = s * CANDIDATES;
        a->n[s] = CANDIDATES;
        a->k[s] = ENTRIES;
        a->cap[s] = CAP;
        a->slots[s] = s;
    }
    for (size_t i = 0; i < (size_t)UNITS * CANDIDATES; i++) {
        const uint16_t drawn = (uint16_t)bench_random(&random);
        a->score[i] = settled ? drawn / 2 : drawn;
    }
    for (uint32_t i = 0; i < UNITS * ENTRIES; i++) {
        const uint32_t step = CANDIDATES / ENTRIES, entry = i % ENTRIES;
        a->chosen[i] = entry * step;
        if (settled && entry % 10 > 0)
            a->score[(size_t)(i / ENTRIES) * CANDIDATES + entry * step] |= 0x8000;
    }
}

/* Median time of the op, each time with the same areas. Leaves the counts of unit 0 in `host`. */
static double exchange_time(side *s, const cn_exchange_args *x, exchange_arrays *host,
                            exchange_arrays *a)
{
    double seconds[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        double took_s;
        bench_must(s->be->mem_write(s->stream, a->chosen, host->chosen, sizeof host->chosen));
        bench_must(s->be->stream_sync(s->stream));
        bench_must(s->be->fence_record(s->from, s->stream));
        bench_must(s->be->exchange(s->stream, x));
        bench_must(s->be->fence_record(s->to, s->stream));
        bench_must(s->be->fence_sync(s->to));
        bench_must(s->be->fence_seconds(s->from, s->to, &took_s));
        if (i >= 0) seconds[i] = took_s;
    }
    bench_must(s->be->mem_read(s->stream, host->n_moves, a->n_moves, sizeof host->n_moves));
    bench_must(s->be->mem_read(s->stream, host->n_missed, a->n_missed, sizeof host->n_missed));
    bench_must(s->be->stream_sync(s->stream));
    return bench_median(seconds, ROUNDS);
}

static void time_exchange(side *cache)
{
    static const struct {
        uint32_t n_seqs, n_layers;
    } shapes[] = {{3, 9}, {SEQS, LAYERS}};
    exchange_arrays *host = cn_calloc(1, sizeof *host);
    if (!host) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for the scores"));
    exchange_arrays *a = bench_alloc(cache->be, sizeof *a);
    for (uint32_t i = 0; i < 4; i++) {
        const bool settled = i % 2;
        const uint32_t n_seqs = shapes[i / 2].n_seqs, n_layers = shapes[i / 2].n_layers;
        fill_exchange(host, settled);
        bench_must(cache->be->mem_write(cache->stream, a, host, sizeof *host));
        bench_must(cache->be->stream_sync(cache->stream));
        const cn_exchange_args x = {.score = a->score,
                                    .first = a->first,
                                    .n = a->n,
                                    .base = a->base,
                                    .entry_log2 = a->entry_log2,
                                    .k = a->k,
                                    .cap = a->cap,
                                    .slots = a->slots,
                                    .local = cache->pools,
                                    .n_seqs = n_seqs,
                                    .n_layers = n_layers,
                                    .chosen = a->chosen,
                                    .n_slots = SEQS,
                                    .chosen_stride = ENTRIES,
                                    .moves = a->moves,
                                    .n_moves = a->n_moves,
                                    .n_missed = a->n_missed,
                                    .move_stride = CAP};
        const double s = exchange_time(cache, &x, host, a), n_units = n_seqs * n_layers * KV_HEADS;
        const double read = bench_read_bandwidth(cache->be, cache->stream, a, sizeof a->score);
        printf("exchange, %4.0f units, %4u newcomers %7.1f us, floor %5.1f us\n", n_units,
               host->n_moves[0] + host->n_missed[0], s * 1e6,
               n_units * CANDIDATES * sizeof *a->score / read * 1e6);
    }
    cn_free(host);
}

int main(int argc, char **argv)
{
    const uint32_t cache_gpu = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    const uint32_t model_gpu = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    const cn_cuda_switches switches = {.gemm = CN_CUDA_GEMM_LIBRARY};
    const uint64_t room = (uint64_t)ROOM_GIB << 30;
    side cache = open_side(cache_gpu, SEQS, HOME, room, &switches),
         model = open_side(model_gpu, SEQS, SEQS * AREA, room, &switches);
    if (cache_gpu == model_gpu) printf("one GPU: the link is its own memory\n");
    const double push = link_rate(&cache, &cache, &model), put = link_rate(&model, &model, &cache);
    printf("link: to GPU %u %.1f GB/s, to GPU %u %.1f GB/s\n", model_gpu, push / 1e9, cache_gpu,
           put / 1e9);
    time_push(&cache, &model, push);
    time_put(&model, &cache, put);
    time_exchange(&cache);
    close_side(&model);
    close_side(&cache);
    return 0;
}
