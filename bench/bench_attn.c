/* bench_attn.c - times attention alone on a GPU, in the shape of Qwen3-8B: 32 query heads, 8 kv
 * heads, head_dim 128, blocks of 256, 36 layers with a pool each, bf16.
 *
 *   bench_attn [all|decode|prefill] [portable] [fp8]
 *   bench_attn [all|decode|prefill] latent [HEADS]
 *
 * With latent: in the shape of GLM-4.7-Flash, latent attention with 20 heads (or HEADS) over rows
 * of 512 + 64, whose V is a part of K; 1,152 bytes per slot and layer. Then latent_store and both
 * products of heads.
 *
 * With fp8 rows of K and V are in eight bits. Decode: all layers in one graph, launched repeatedly.
 * The rate is the bytes of K and V that it must read (4,096 per slot and layer, in eight bits
 * 2,080) over the time. The percentage is the share of the bandwidth of one pass over the whole
 * pool (mem_sum) in the same run. Prefill: operations over the time, and the time as a share of the
 * layer's matrix products for the same number of tokens. Values are random, because zeros run
 * faster. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "cuda/cuda_switches.h"

enum {
    LAYERS = 36,
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    BLOCK = 256,
    HIDDEN = 4096,
    INTERMEDIATE = 12288,
    MAX_SEQS = 168,
    SLOT_BYTES = 2 * 2 * KV_HEADS * DIM, /* in one layer */
    LATENT_HEADS = 20,
    LATENT_RANK = 512,
    LATENT_ROPE = 64,
    LATENT_NOPE = 192,  /* of a query before its product */
    LATENT_VALUE = 256, /* of an output after its product */
    LATENT_BYTES = 2 * (LATENT_RANK + LATENT_ROPE),
    LATENT_SLOTS = 64 * 8192, /* of the largest batch */
    ROUNDS = 7
};

typedef struct bench {
    cn_backend *be;
    cn_stream *stream;
    char *pool;
    size_t pool_bytes;
    uint64_t random;
    cn_kv_form form;
    uint32_t n_heads, n_kv_heads, dim, value_dim; /* value_dim 0: as dim, in rows of their own */
} bench;

/* Returns the median time of one run, in seconds: ROUNDS rounds of n_runs each, after a warm-up
 * round. */
static double time_runs(bench *b, void (*run)(bench *b, void *ctx), void *ctx, uint32_t n_runs)
{
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        bench_must(b->be->stream_sync(b->stream));
        double start = cn_now_s();
        for (uint32_t i = 0; i < n_runs; i++) run(b, ctx);
        bench_must(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = (cn_now_s() - start) / n_runs;
    }
    return bench_median(seconds, ROUNDS);
}

/* ---- batches ---- */

typedef struct batch {
    cn_batch_view view;
    cn_attn_args args;
    void *owned[5];
    uint64_t n_slots; /* total of all sequences */
} batch;

static void *to_device(bench *b, const void *host, size_t bytes)
{
    void *p = bench_alloc(b->be, bytes);
    bench_must(b->be->mem_write(b->stream, p, host, bytes));
    return p;
}

/* Opens a batch of sequences with kv_len[] slots, the last n_q of them computed. Blocks are
 * assigned in random order. */
static void batch_open(bench *b, batch *x, uint32_t n_seqs, const uint32_t *kv_len, uint32_t n_q,
                       uint32_t n_layers)
{
    static uint32_t tables[MAX_SEQS * 256], order[1 << 16];
    uint32_t stride = 0, n_blocks = 0, next = 0, max_kv = 0, q_start[MAX_SEQS + 1];
    *x = (batch){0};
    for (uint32_t i = 0; i < n_seqs; i++) {
        max_kv = cn_max_u32(max_kv, kv_len[i]);
        n_blocks += (uint32_t)cn_ceil_div(kv_len[i], BLOCK);
        x->n_slots += kv_len[i];
        q_start[i] = i * n_q;
    }
    q_start[n_seqs] = n_seqs * n_q;
    stride = (uint32_t)cn_ceil_div(max_kv, BLOCK);
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t j = (uint32_t)(bench_random(&b->random) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < n_seqs; i++)
        for (uint32_t j = 0; j < cn_ceil_div(kv_len[i], BLOCK); j++)
            tables[i * stride + j] = order[next++];
    size_t q_bytes = (size_t)n_seqs * n_q * b->n_heads * b->dim * 2;
    x->owned[0] = to_device(b, q_start, (n_seqs + 1) * sizeof *q_start);
    x->owned[1] = to_device(b, kv_len, n_seqs * sizeof *kv_len);
    x->owned[2] = to_device(b, tables, (size_t)n_seqs * stride * sizeof *tables);
    x->owned[3] = bench_alloc(b->be, q_bytes);
    x->owned[4] = bench_alloc(b->be, q_bytes);
    bench_fill_bf16(b->be, b->stream, x->owned[3], q_bytes, 2, -7, 1);
    x->view = (cn_batch_view){.n_tokens = n_seqs * n_q,
                              .n_seqs = n_seqs,
                              .n_decode = n_q == 1 ? n_seqs : 0,
                              .q_start = x->owned[0],
                              .kv_len = x->owned[1],
                              .tables = x->owned[2],
                              .table_stride = stride,
                              .max_q = n_q,
                              .max_kv = max_kv};
    x->args = (cn_attn_args){.q = x->owned[3],
                             .out = x->owned[4],
                             .kv = b->pool,
                             .batch = &x->view,
                             .layout = cn_kv_layout_form(n_layers, n_blocks, b->n_kv_heads, BLOCK,
                                                         b->dim, CN_BF16, b->form),
                             .n_heads = b->n_heads,
                             .scale = 1.0f / sqrtf((float)b->dim)};
    cn_kv_layout_share(&x->args.layout, b->value_dim, LATENT_NOPE + LATENT_ROPE);
    if (cn_kv_pool_bytes(&x->args.layout) > b->pool_bytes) {
        fprintf(stderr, "bench_attn: the pool of %zu bytes is too small\n", b->pool_bytes);
        exit(1);
    }
}

static void batch_close(bench *b, batch *x)
{
    bench_must(b->be->stream_sync(b->stream));
    for (uint32_t i = 0; i < 5; i++) b->be->mem_free(b->be, x->owned[i]);
}

/* ---- decode ---- */

static void run_graph(bench *b, void *ctx) { bench_must(b->be->graph_launch(b->stream, ctx)); }

static void bench_decode(bench *b, const char *name, uint32_t n_seqs, const uint32_t *kv_len,
                         double bandwidth)
{
    batch x;
    cn_graph *graph = NULL;
    batch_open(b, &x, n_seqs, kv_len, 1, LAYERS);
    bench_must(b->be->graph_begin(b->stream));
    for (uint32_t l = 0; l < LAYERS; l++) {
        x.args.layer = l;
        bench_must(b->be->attn_decode(b->stream, &x.args));
    }
    bench_must(b->be->graph_end(b->stream, &graph));
    double seconds = time_runs(b, run_graph, graph, 5);
    const double slot_bytes = (double)x.args.layout.block_bytes / BLOCK;
    double bytes = (double)x.n_slots * slot_bytes * LAYERS;
    printf("decode   %-24s %8.1f us/layer  %6.3f TB/s  %5.1f %%\n", name, seconds / LAYERS * 1e6,
           bytes / seconds * 1e-12, 100 * bytes / seconds / bandwidth);
    fflush(stdout);
    b->be->graph_free(graph);
    batch_close(b, &x);
}

/* ---- the ops around latent attention ---- */

typedef struct around {
    cn_latent_store_args store;
    cn_heads_gemm_args absorb, expand;
    const void *weights; /* of all layers */
} around;

/* The layers have weights of their own, so that they are read from memory. */
static void run_products_of_heads(bench *b, void *ctx)
{
    around *a = ctx;
    const size_t layer = (size_t)b->n_heads * a->absorb.weight_stride * 2;
    for (uint32_t l = 0; l < LAYERS; l++) {
        a->absorb.weight = (const char *)a->weights + l * layer;
        a->expand.weight = (const char *)a->absorb.weight + LATENT_NOPE * LATENT_RANK * 2;
        bench_must(b->be->heads_gemm(b->stream, &a->absorb));
        bench_must(b->be->heads_gemm(b->stream, &a->expand));
    }
}

static void run_stores(bench *b, void *ctx)
{
    around *a = ctx;
    for (uint32_t l = 0; l < LAYERS; l++) {
        a->store.layer = l;
        bench_must(b->be->latent_store(b->stream, &a->store));
    }
}

static void print_around(bench *b, const char *name, void (*run)(bench *, void *), around *a)
{
    cn_graph *graph = NULL;
    bench_must(b->be->graph_begin(b->stream));
    run(b, a);
    bench_must(b->be->graph_end(b->stream, &graph));
    printf("%-8s %2u tokens %30.1f us/layer\n", name, a->absorb.n_tokens,
           time_runs(b, run_graph, graph, 5) / LAYERS * 1e6);
    fflush(stdout);
    b->be->graph_free(graph);
}

/* Tokens of the step are those of the batch; x and results lie in the pool. */
static void bench_around(bench *b, uint32_t n_tokens)
{
    static uint32_t slots[MAX_SEQS];
    batch x;
    uint32_t len[MAX_SEQS];
    for (uint32_t i = 0; i < n_tokens; i++) {
        len[i] = 1;
        slots[i] = i * BLOCK;
    }
    batch_open(b, &x, n_tokens, len, 1, LAYERS);
    void *places = to_device(b, slots, n_tokens * sizeof *slots);
    x.view.kv_slots = places;
    x.view.positions = x.owned[1];
    around a = {.weights = b->pool,
                .store = {.q = x.owned[3],
                          .row = x.owned[4],
                          .norm = x.owned[4],
                          .eps = 1e-6F,
                          .cos = (float *)(void *)b->pool,
                          .sin = (float *)(void *)b->pool,
                          .batch = &x.view,
                          .n_heads = b->n_heads,
                          .layout = x.args.layout,
                          .kv = b->pool},
                .absorb = {.out = x.owned[4],
                           .x = x.owned[3],
                           .weight_stride = (LATENT_NOPE + LATENT_VALUE) * LATENT_RANK,
                           .n_tokens = n_tokens,
                           .n_heads = b->n_heads,
                           .n = LATENT_RANK,
                           .k = LATENT_NOPE,
                           .n_copied = LATENT_ROPE,
                           .by_rows = true}};
    a.expand = a.absorb;
    a.expand.n = LATENT_VALUE;
    a.expand.k = LATENT_RANK;
    a.expand.n_copied = 0;
    a.expand.by_rows = false;
    print_around(b, "store", run_stores, &a);
    print_around(b, "products", run_products_of_heads, &a);
    b->be->mem_free(b->be, places);
    batch_close(b, &x);
}

static void latent_cases(bench *b, double bandwidth)
{
    static const struct {
        uint32_t n_seqs, kv_len;
    } even[] = {{64, 8192}, {4, 98304}, {168, 2176}, {64, 2176}, {8, 8192}, {1, 98304}, {1, 64}};
    uint32_t len[MAX_SEQS];
    for (uint32_t c = 0; c < sizeof even / sizeof *even; c++) {
        char name[32];
        for (uint32_t i = 0; i < even[c].n_seqs; i++) len[i] = even[c].kv_len;
        snprintf(name, sizeof name, "%u x %u", even[c].n_seqs, even[c].kv_len);
        bench_decode(b, name, even[c].n_seqs, len, bandwidth);
    }
}

static void decode_cases(bench *b, double bandwidth)
{
    uint32_t len[MAX_SEQS];
    if (b->value_dim) {
        latent_cases(b, bandwidth);
        return;
    }
    static const struct {
        uint32_t n_seqs, kv_len;
    } even[] = {{168, 2176}, {128, 2176}, {64, 2176}, {32, 2176}, {8, 2176},
                {1, 2176},   {1, 64},     {8, 32768}, {1, 32768}};
    for (uint32_t c = 0; c < sizeof even / sizeof *even; c++) {
        char name[32];
        for (uint32_t i = 0; i < even[c].n_seqs; i++) len[i] = even[c].kv_len;
        snprintf(name, sizeof name, "%u x %u", even[c].n_seqs, even[c].kv_len);
        bench_decode(b, name, even[c].n_seqs, len, bandwidth);
    }
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        double u = (double)(bench_random(&b->random) >> 11) * 0x1p-53;
        len[i] = (uint32_t)exp(u * log(8192));
    }
    bench_decode(b, "168 x log-uniform 1-8192", MAX_SEQS, len, bandwidth);
}

/* ---- prefill ---- */

static void run_prefill(bench *b, void *ctx) { bench_must(b->be->attn_prefill(b->stream, ctx)); }

typedef struct products {
    void *x, *weight, *out;
    uint32_t n_tokens;
} products;

/* The four matrix products of a layer. */
static void run_products(bench *b, void *ctx)
{
    static const uint32_t n_k[][2] = {{(HEADS + 2 * KV_HEADS) * DIM, HIDDEN},
                                      {HIDDEN, HEADS * DIM},
                                      {2 * INTERMEDIATE, HIDDEN},
                                      {HIDDEN, INTERMEDIATE}};
    const products *p = ctx;
    for (uint32_t i = 0; i < 4; i++) {
        cn_gemm_args a = {.out = p->out,
                          .x = p->x,
                          .weight = {.data = p->weight},
                          .n_tokens = p->n_tokens,
                          .n = n_k[i][0],
                          .k = n_k[i][1]};
        bench_must(b->be->gemm(b->stream, &a));
    }
}

static double time_products(bench *b, uint32_t n_tokens)
{
    size_t widest = (size_t)n_tokens * 2 * INTERMEDIATE * 2;
    products p = {.n_tokens = n_tokens};
    p.x = b->pool; /* random values; results are written elsewhere */
    p.weight = b->pool + widest;
    p.out = bench_alloc(b->be, widest);
    double seconds = time_runs(b, run_products, &p, 3);
    b->be->mem_free(b->be, p.out);
    return seconds;
}

static void bench_prefill(bench *b, uint32_t n_seqs, uint32_t n_q, uint32_t kv_len)
{
    batch x;
    uint32_t len[MAX_SEQS];
    for (uint32_t i = 0; i < n_seqs; i++) len[i] = kv_len;
    batch_open(b, &x, n_seqs, len, n_q, 1);
    double seconds = time_runs(b, run_prefill, &x.args, 5);
    double seen = (double)n_seqs * n_q * ((double)kv_len - 0.5 * (n_q - 1));
    const uint32_t value_dim = b->value_dim ? b->value_dim : b->dim;
    double rate = 2.0 * b->n_heads * (b->dim + value_dim) * seen / seconds;
    batch_close(b, &x);
    if (b->value_dim) {
        printf("prefill  %2u x %5u of %5u      %8.1f us/layer  %6.1f TFLOP/s\n", n_seqs, n_q,
               kv_len, seconds * 1e6, rate * 1e-12);
        fflush(stdout);
        return;
    }
    double gemm = time_products(b, n_seqs * n_q);
    printf("prefill  %2u x %5u of %5u      %8.1f us/layer  %6.1f TFLOP/s  %5.3f of its matrix "
           "products\n",
           n_seqs, n_q, kv_len, seconds * 1e6, rate * 1e-12, seconds / gemm);
    fflush(stdout);
}

static void prefill_cases(bench *b)
{
    bench_prefill(b, 1, 1024, 1024);
    bench_prefill(b, 1, 4096, 4096);
    bench_prefill(b, 1, 8192, 8192);
    bench_prefill(b, 1, 16384, 16384);
    bench_prefill(b, 1, 2048, 16384);
    bench_prefill(b, 1, 2048, 131072);
    bench_prefill(b, 8, 512, 512);
    bench_prefill(b, 16, 128, 2176);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    bool portable = false, fp8 = false, latent = false;
    uint32_t heads = LATENT_HEADS;
    for (int i = 2; i < argc; i++) {
        portable |= strcmp(argv[i], "portable") == 0;
        fp8 |= strcmp(argv[i], "fp8") == 0;
        latent |= strcmp(argv[i], "latent") == 0;
        if (latent && atoi(argv[i]) > 0) heads = (uint32_t)atoi(argv[i]);
    }
    bench b = {.random = 1, .form = fp8 ? CN_KV_FP8 : CN_KV_PLAIN, .n_heads = HEADS,
               .n_kv_heads = KV_HEADS, .dim = DIM};
    if (latent) {
        b.n_heads = heads;
        b.n_kv_heads = 1;
        b.dim = LATENT_RANK + LATENT_ROPE;
        b.value_dim = LATENT_RANK;
    }
    const cn_cuda_switches switches = {.portable = portable, .latent = latent};
    const cn_cuda_backend_opts o = {.memory_share = 0.9f,
                                    .n_heads = b.n_heads,
                                    .n_kv_heads = b.n_kv_heads,
                                    .head_dim = b.dim,
                                    .max_seqs = MAX_SEQS,
                                    .plain_bytes = fp8 ? 256 << 20 : 0,
                                    .switches = &switches};
    if (cn_backend_cuda_load(&b.be, o) != CN_OK) {
        fprintf(stderr, "bench_attn: %s; nothing measured\n", cn_last_error());
        return 0;
    }
    bench_must(b.be->stream_create(b.be, CN_PRIORITY_HIGH, &b.stream));
    b.pool_bytes = (size_t)2 << 30;
    if (strcmp(which, "prefill") != 0)
        b.pool_bytes = LAYERS * (latent ? (size_t)LATENT_SLOTS * LATENT_BYTES
                                        : (size_t)168 * 9 * BLOCK * SLOT_BYTES);
    b.pool = bench_alloc(b.be, b.pool_bytes);
    bench_fill_bf16(b.be, b.stream, b.pool, b.pool_bytes, 1, -7, 1);
    double bandwidth = bench_read_bandwidth(b.be, b.stream, b.pool, b.pool_bytes);
    printf("read     one pass of %.1f GB: %.3f TB/s\n", (double)b.pool_bytes * 1e-9,
           bandwidth * 1e-12);
    if (strcmp(which, "prefill") != 0) decode_cases(&b, bandwidth);
    if (strcmp(which, "decode") != 0) prefill_cases(&b);
    for (uint32_t n = 64; latent && n > 0; n /= 64) bench_around(&b, n); /* changes the pool */
    b.be->mem_free(b.be, b.pool);
    b.be->stream_free(b.stream);
    b.be->close(b.be);
    return 0;
}
