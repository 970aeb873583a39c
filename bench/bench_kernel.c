/* bench_kernel.c - compares the GPU's ops with the limit of its memory: the bytes per second of
 * each op as a share of the read bandwidth measured in the same run. Compares matrix products with
 * cuBLASLt too, and runs the matrix products and row-wise ops of a whole decode step in one graph.
 *
 * Usage: bench_kernel [-v] [gemm|fp8|ops|step|select]...   (default: all; -v prints every candidate
 * that was timed for a product)
 * The model is Qwen3-8B's shape with random weights. Ops are timed in graphs in which every node
 * reads other weights, several times more than the L2 cache holds. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "cuda/cuda_switches.h"

enum {
    LAYERS = 36,
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    INTERMEDIATE = 12288,
    VOCAB = 151936,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    MAX_TOKENS = 4096,
    MAX_SEQS = 256,
    BLOCK_TOKENS = 256,
    LAUNCHES = 6,
    PART_GIB = 5,
    STEP_GIB = 17
};

typedef struct bench {
    cn_backend *be;
    cn_stream *s;
    double read_bytes_s; /* measured */
    char *memory;        /* all remaining memory of the device */
    size_t bytes;
} bench;

/* ---- timing ---- */

/* Returns the seconds of a run of `record`: a graph launched LAUNCHES times, the best of three. */
static double time_graph(bench *b, void (*record)(bench *b, const void *ctx), const void *ctx)
{
    cn_graph *g = NULL;
    record(b, ctx); /* makes plans, loads modules */
    bench_must(b->be->stream_sync(b->s));
    bench_must(b->be->graph_begin(b->s));
    record(b, ctx);
    bench_must(b->be->graph_end(b->s, &g));
    bench_must(b->be->graph_launch(b->s, g));
    bench_must(b->be->stream_sync(b->s));
    double best = 1e30;
    for (int round = 0; round < 3; round++) {
        const double start = cn_now_s();
        for (int i = 0; i < LAUNCHES; i++) bench_must(b->be->graph_launch(b->s, g));
        bench_must(b->be->stream_sync(b->s));
        const double once = (cn_now_s() - start) / LAUNCHES;
        if (once < best) best = once;
    }
    b->be->graph_free(g);
    return best;
}

/* ---- set-up ---- */

/* times_products: the backend times matrix products of the model. */
static bool open_bench(bench *b, cn_cuda_gemm_kind kind, uint64_t gib, bool times_products)
{
    const cn_cuda_backend_opts o = {.memory_bytes = gib << 30,
                                    .n_heads = HEADS,
                                    .n_kv_heads = KV_HEADS,
                                    .head_dim = HEAD_DIM,
                                    .hidden = times_products ? HIDDEN : 0,
                                    .intermediate = INTERMEDIATE,
                                    .vocab = VOCAB,
                                    .max_seqs = MAX_SEQS,
                                    .max_tokens = MAX_TOKENS,
                                    .switches = &(cn_cuda_switches){.gemm = kind}};
    *b = (bench){0};
    const double start = cn_now_s();
    if (cn_backend_cuda_load(&b->be, o) != CN_OK) return false;
    printf("opened in %.2f s\n", cn_now_s() - start);
    bench_must(b->be->stream_create(b->be, CN_PRIORITY_HIGH, &b->s));
    b->bytes = b->be->mem_avail(b->be) / 4096 * 4096;
    b->memory = bench_alloc(b->be, b->bytes);
    bench_fill_bf16(b->be, b->s, b->memory, b->bytes, 1, -7, -1);
    return true;
}

static void close_bench(bench *b)
{
    b->be->mem_free(b->be, b->memory);
    b->be->stream_free(b->s);
    b->be->close(b->be);
}

typedef struct span {
    size_t from, bytes;
} span;

static void record_read(bench *b, const void *ctx)
{
    const span *s = ctx;
    bench_must(b->be->mem_sum(b->s, b->memory + s->from, s->bytes, (uint64_t *)(void *)b->memory));
}

static void measure_read(bench *b)
{
    const span s = {4096, b->bytes - 4096};
    b->read_bytes_s = (double)s.bytes / time_graph(b, record_read, &s);
    printf("read bandwidth: %.0f GB/s\n", b->read_bytes_s / 1e9);
}

/* ---- matrix products ---- */

typedef struct product {
    const char *name;
    uint32_t n, k;
    bool f32, gated; /* gated: gemm_silu_mul */
} product;

static const product products[] = {
    {"qkv", QKV, HIDDEN, false, false},
    {"o", HIDDEN, HEADS * HEAD_DIM, false, false},
    {"gate_up", 2 * INTERMEDIATE, HIDDEN, false, true},
    {"down", HIDDEN, INTERMEDIATE, false, false},
    {"lm_head", VOCAB, HIDDEN, true, false},
};
enum { N_PRODUCTS = sizeof products / sizeof *products };
static const uint32_t batches[] = {1, 8, 32, 64, 128, 168, 256};
enum { N_BATCHES = sizeof batches / sizeof *batches };

typedef struct product_run {
    product p;
    uint32_t n_tokens, copies;
} product_run;

static size_t weight_bytes(const product *p) { return (size_t)p->n * p->k * 2; }

static void record_product(bench *b, const product *p, uint32_t n_tokens, void *out, const void *x,
                           const void *weight, void *gate_up)
{
    const cn_gemm_args plain = {.out = out, .x = x, .weight = {.data = weight},
                                .n_tokens = n_tokens, .n = p->n, .k = p->k,
                                .out_f32 = p->f32};
    const cn_gemm_silu_mul_args gated = {.out = out, .x = x, .weight = {.data = weight},
                                         .gate_up = gate_up,
                                         .n_tokens = n_tokens, .intermediate = p->n / 2, .k = p->k};
    if (p->gated)
        bench_must(b->be->gemm_silu_mul(b->s, &gated));
    else
        bench_must(b->be->gemm(b->s, &plain));
}

/* Weights are at the start of the memory, x and out at its end. */
static void record_products(bench *b, const void *ctx)
{
    const product_run *r = ctx;
    char *out = b->memory + b->bytes - (size_t)MAX_SEQS * VOCAB * 4;
    char *gate_up = out + (size_t)MAX_SEQS * INTERMEDIATE * 2;
    const char *x = out - (size_t)MAX_TOKENS * INTERMEDIATE * 2;
    for (uint32_t i = 0; i < r->copies; i++)
        record_product(b, &r->p, r->n_tokens, out, x, b->memory + i * weight_bytes(&r->p),
                       gate_up);
}

static void time_products(bench *b, double us[N_PRODUCTS][N_BATCHES])
{
    for (uint32_t i = 0; i < N_PRODUCTS; i++)
        for (uint32_t j = 0; j < N_BATCHES; j++) {
            const size_t bytes = weight_bytes(&products[i]), all = (size_t)2 << 30;
            const uint32_t copies = bytes < all ? (uint32_t)(all / bytes) : 1;
            const product_run r = {products[i], batches[j], copies};
            us[i][j] = time_graph(b, record_products, &r) * 1e6 / copies;
        }
}

static void bench_gemm(void)
{
    static double us[3][N_PRODUCTS][N_BATCHES];
    bench b;
    double read_bytes_s = 0;
    for (int kind = CN_CUDA_GEMM_FASTEST; kind <= CN_CUDA_GEMM_OWN; kind++) {
        if (!open_bench(&b, (cn_cuda_gemm_kind)kind, PART_GIB, true)) return;
        measure_read(&b);
        if (b.read_bytes_s > read_bytes_s) read_bytes_s = b.read_bytes_s;
        time_products(&b, us[kind]);
        close_bench(&b);
    }
    printf("\nmatrix products: us, and the weights' bytes per second as a share of %.0f GB/s\n",
           read_bytes_s / 1e9);
    printf("%-8s %5s  %18s  %18s  %18s\n", "", "rows", "cuBLASLt", "own", "fastest");
    for (uint32_t i = 0; i < N_PRODUCTS; i++)
        for (uint32_t j = 0; j < N_BATCHES; j++) {
            const double floor_us = (double)weight_bytes(&products[i]) / read_bytes_s * 1e6;
            printf("%-8s %5u", products[i].name, batches[j]);
            const int columns[] = {CN_CUDA_GEMM_LIBRARY, CN_CUDA_GEMM_OWN, CN_CUDA_GEMM_FASTEST};
            for (int c = 0; c < 3; c++)
                printf("  %9.1f %6.1f %%", us[columns[c]][i][j],
                       100 * floor_us / us[columns[c]][i][j]);
            printf("\n");
        }
}

/* ---- matrix products with FP8 weights ---- */

typedef struct fp8_run {
    product p;
    uint32_t n_tokens, copies;
    bool plain; /* bf16 weights */
} fp8_run;

/* Weights are at the start of the memory, in blocks of 128 x 128; the rest is at its end. */
static void record_fp8(bench *b, const void *ctx)
{
    const fp8_run *r = ctx;
    const size_t widest = (size_t)MAX_TOKENS * 2 * INTERMEDIATE * 2;
    char *end = b->memory + b->bytes, *out = end - widest, *gate_up = out - widest;
    char *x = gate_up - widest, *rounded = x - widest;
    const float *scales = (const float *)(void *)(rounded - ((size_t)1 << 20));
    const size_t bytes = r->plain ? weight_bytes(&r->p) : weight_bytes(&r->p) / 2;
    for (uint32_t i = 0; i < r->copies; i++) {
        cn_matrix w = {.data = b->memory + i * bytes};
        if (!r->plain)
            w = (cn_matrix){w.data, CN_MATRIX_FP8, CN_X_BLOCKS, r->p.k,
                            scales, 128, CN_FP8_COLUMNS, 0};
        const cn_gemm_args plain = {.out = out, .x = x, .weight = w, .rounded = rounded,
                                    .n_tokens = r->n_tokens, .n = r->p.n, .k = r->p.k};
        const cn_gemm_silu_mul_args gated = {.out = out, .x = x, .weight = w, .rounded = rounded,
                                             .gate_up = gate_up, .n_tokens = r->n_tokens,
                                             .intermediate = r->p.n / 2, .k = r->p.k};
        if (r->p.gated) bench_must(b->be->gemm_silu_mul(b->s, &gated));
        else bench_must(b->be->gemm(b->s, &plain));
    }
}

static double time_fp8(bench *b, const product *p, uint32_t n_tokens, bool plain)
{
    const size_t bytes = plain ? weight_bytes(p) : weight_bytes(p) / 2, all = (size_t)1 << 30;
    const fp8_run r = {*p, n_tokens, (uint32_t)(all / bytes), plain};
    return time_graph(b, record_fp8, &r) * 1e6 / r.copies;
}

static void time_fp8_products(cn_cuda_gemm_kind kind)
{
    static const uint32_t rows[] = {1, 8, 16, 64, 128, 1024, 4096};
    enum { N_LAYER_PRODUCTS = N_PRODUCTS - 1 }; /* without the lm_head */
    bench b;
    if (!open_bench(&b, kind, PART_GIB, kind == CN_CUDA_GEMM_FASTEST)) return;
    measure_read(&b);
    printf("\n%s: products with FP8 weights, input rounding included, and with bf16 weights: us, "
           "and the bytes of FP8 weights per second as a share of the read bandwidth\n",
           kind == CN_CUDA_GEMM_LIBRARY ? "cuBLASLt" : "fastest");
    for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
        double fp8_us = 0, plain_us = 0, floor_us = 0;
        for (uint32_t i = 0; i < N_LAYER_PRODUCTS; i++) {
            const double floor = (double)weight_bytes(&products[i]) / 2 / b.read_bytes_s * 1e6;
            const double us = time_fp8(&b, &products[i], rows[j], false);
            const double other = time_fp8(&b, &products[i], rows[j], true);
            printf("%-8s %5u  %9.1f %6.1f %%  bf16 %9.1f  %5.3f x\n", products[i].name, rows[j], us,
                   100 * floor / us, other, us / other);
            fp8_us += us;
            plain_us += other;
            floor_us += floor;
        }
        printf("%-8s %5u  %9.1f %6.1f %%  bf16 %9.1f  %5.3f x\n", "layer", rows[j], fp8_us,
               100 * floor_us / fp8_us, plain_us, fp8_us / plain_us);
    }
    close_bench(&b);
}

static void bench_fp8(void)
{
    time_fp8_products(CN_CUDA_GEMM_FASTEST);
    time_fp8_products(CN_CUDA_GEMM_LIBRARY);
}

/* ---- a decode step without attention ---- */

typedef struct step_memory {
    char *norms, *qkv, *o, *gate_up, *down, *lm_head; /* weights, layer after layer */
    char *kv, *cos, *sin;
    char *hidden, *x, *wide, *act, *q, *logits;
    char *indices; /* tokens, positions, kv_slots, q_rows */
} step_memory;

typedef struct step_run {
    step_memory m;
    cn_kv_layout layout;
    cn_batch_view batch;
} step_run;

static char *carve(char **at, size_t bytes)
{
    char *p = *at;
    *at += (bytes + 1023) / 1024 * 1024;
    return p;
}

static void lay_out_step(bench *b, step_run *r, uint32_t n_tokens)
{
    char *at = b->memory;
    step_memory *m = &r->m;
    r->layout = cn_kv_layout_make(LAYERS, MAX_SEQS, KV_HEADS, 16, HEAD_DIM, CN_BF16);
    m->norms = carve(&at, HIDDEN * 2);
    m->qkv = carve(&at, LAYERS * weight_bytes(&products[0]));
    m->o = carve(&at, LAYERS * weight_bytes(&products[1]));
    m->gate_up = carve(&at, LAYERS * weight_bytes(&products[2]));
    m->down = carve(&at, LAYERS * weight_bytes(&products[3]));
    m->lm_head = carve(&at, weight_bytes(&products[4]));
    m->kv = carve(&at, cn_kv_pool_bytes(&r->layout));
    m->cos = carve(&at, HEAD_DIM / 2 * 4);
    m->sin = carve(&at, HEAD_DIM / 2 * 4);
    m->hidden = carve(&at, (size_t)MAX_SEQS * HIDDEN * 2);
    m->x = carve(&at, (size_t)MAX_SEQS * HIDDEN * 2);
    m->act = carve(&at, (size_t)MAX_SEQS * INTERMEDIATE * 2);
    m->wide = carve(&at, (size_t)MAX_SEQS * 2 * INTERMEDIATE * 2);
    m->q = carve(&at, (size_t)MAX_SEQS * HEADS * HEAD_DIM * 2);
    m->logits = carve(&at, (size_t)MAX_SEQS * VOCAB * 4);
    m->indices = carve(&at, 4 * MAX_SEQS * 4);
    if (at > b->memory + b->bytes) {
        fprintf(stderr, "bench_kernel: a step needs %zu bytes, the device has %zu left\n",
                (size_t)(at - b->memory), b->bytes);
        exit(1);
    }
    uint32_t host[4 * MAX_SEQS] = {0};
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        host[i] = i * 97;
        host[2 * MAX_SEQS + i] = i * 16;
        host[3 * MAX_SEQS + i] = UINT32_MAX; /* no query slot */
    }
    bench_must(b->be->mem_write(b->s, m->indices, host, sizeof host));
    const uint32_t *index = (const uint32_t *)(void *)m->indices;
    r->batch = (cn_batch_view){.n_tokens = n_tokens,
                               .tokens = index,
                               .positions = index + MAX_SEQS,
                               .kv_slots = index + 2 * MAX_SEQS,
                               .q_rows = (const int32_t *)index + 3 * MAX_SEQS};
}

static void record_layer(bench *b, const step_run *r, uint32_t layer)
{
    const step_memory *m = &r->m;
    const uint32_t t = r->batch.n_tokens;
    const cn_rmsnorm_args norm = {m->x, m->hidden, m->q, m->norms, t, HIDDEN, 1e-6f};
    const cn_rope_store_args rope = {.q = m->q, .qkv = m->wide, .q_norm = m->norms,
                                     .k_norm = m->norms, .eps = 1e-6f,
                                     .cos = (const float *)(void *)m->cos,
                                     .sin = (const float *)(void *)m->sin, .batch = &r->batch,
                                     .n_heads = HEADS, .layer = layer, .layout = r->layout,
                                     .kv = m->kv};
    const char *weights[] = {m->qkv, m->o, m->gate_up, m->down};
    for (uint32_t i = 0; i < 4; i++) weights[i] += layer * weight_bytes(&products[i]);
    bench_must(b->be->rmsnorm(b->s, &norm));
    record_product(b, &products[0], t, m->wide, m->x, weights[0], NULL);
    bench_must(b->be->rope_store(b->s, &rope));
    record_product(b, &products[1], t, m->x, m->q, weights[1], NULL);
    bench_must(b->be->rmsnorm(b->s, &norm));
    record_product(b, &products[2], t, m->act, m->x, weights[2], m->wide);
    record_product(b, &products[3], t, m->q, m->act, weights[3], NULL);
}

static void record_step(bench *b, const void *ctx)
{
    const step_run *r = ctx;
    const step_memory *m = &r->m;
    const cn_embed_args embed = {.out = m->hidden,
                                 .table = m->lm_head,
                                 .tokens = r->batch.tokens,
                                 .n_tokens = r->batch.n_tokens,
                                 .hidden = HIDDEN,
                                 .vocab = VOCAB};
    bench_must(b->be->embed(b->s, &embed));
    for (uint32_t layer = 0; layer < LAYERS; layer++) record_layer(b, r, layer);
    record_product(b, &products[4], r->batch.n_tokens, m->logits, m->x, m->lm_head, NULL);
}

static void bench_step(void)
{
    bench b;
    double bytes = (double)weight_bytes(&products[4]);
    for (uint32_t i = 0; i < 4; i++) bytes += LAYERS * (double)weight_bytes(&products[i]);
    for (int kind = CN_CUDA_GEMM_FASTEST; kind <= CN_CUDA_GEMM_LIBRARY; kind++) {
        if (!open_bench(&b, (cn_cuda_gemm_kind)kind, STEP_GIB, true)) return;
        measure_read(&b);
        const double floor_ms = bytes / b.read_bytes_s * 1e3;
        printf("\na decode step without attention, %s: floor %.3f ms (%.2f GB of weights)\n",
               kind == CN_CUDA_GEMM_LIBRARY ? "cuBLASLt alone" : "fastest kernels", floor_ms,
               bytes / 1e9);
        for (uint32_t j = 0; j < N_BATCHES; j++) {
            step_run r;
            lay_out_step(&b, &r, batches[j]);
            const double ms = time_graph(&b, record_step, &r) * 1e3;
            printf("batch %4u  %7.3f ms  %5.1f %%\n", batches[j], ms, 100 * floor_ms / ms);
        }
        close_bench(&b);
    }
}

/* ---- row-wise ops ---- */

typedef struct ops_run {
    const char *name;
    uint32_t n_tokens, copies;
    size_t stride; /* from one copy's memory to the next, in bytes */
} ops_run;

static void record_rmsnorm(bench *b, const void *ctx)
{
    const ops_run *r = ctx;
    const size_t row_bytes = (size_t)r->n_tokens * HIDDEN * 2;
    for (uint32_t i = 0; i < r->copies; i++) {
        char *at = b->memory + 65536 + i * r->stride;
        const cn_rmsnorm_args a = {at, at + row_bytes, at + 2 * row_bytes, b->memory, r->n_tokens,
                                   HIDDEN, 1e-6f};
        bench_must(b->be->rmsnorm(b->s, &a));
    }
}

static void record_silu_mul(bench *b, const void *ctx)
{
    const ops_run *r = ctx;
    for (uint32_t i = 0; i < r->copies; i++) {
        char *at = b->memory + i * r->stride;
        const cn_silu_mul_args a = {at, at + (size_t)r->n_tokens * INTERMEDIATE * 2, r->n_tokens,
                                    INTERMEDIATE};
        bench_must(b->be->silu_mul(b->s, &a));
    }
}

static void record_copy_blocks(bench *b, const void *ctx)
{
    const ops_run *r = ctx; /* n_tokens is the number of pairs */
    cn_block_copy pairs[64];
    const cn_kv_layout l =
        cn_kv_layout_make(LAYERS, 2 * r->n_tokens, KV_HEADS, BLOCK_TOKENS, HEAD_DIM, CN_BF16);
    for (uint32_t i = 0; i < r->n_tokens; i++) pairs[i] = (cn_block_copy){i, r->n_tokens + i};
    for (uint32_t i = 0; i < r->copies; i++) {
        const cn_pools pools = {.layout = l, .kv = b->memory + i * r->stride};
        const cn_planes planes = cn_pools_planes(&pools);
        const cn_copy_args a = {planes, planes, {.blocks = pairs, .n_blocks = r->n_tokens}};
        bench_must(b->be->copy_blocks(b->s, &a));
    }
}

/* ---- selection ---- */

enum {
    TILE_TOKENS = 64,
    WINDOW = 16, /* queries that predict one */
    CHANNELS = HEAD_DIM / 4,
    /* Of the arrays below in the first 64 KiB of the bench's memory. */
    CHANNELS_AT = 0,
    WORDS_AT = 16384,
    UNITS_AT = 24576,
    FLAGS_AT = 32768,
    COS_AT = 36864,
    SIN_AT = 49152
};

typedef struct query_words {
    uint32_t slots[MAX_SEQS], newest[MAX_SEQS], modulus[MAX_SEQS], n_window[MAX_SEQS];
} query_words;

/* What `select` reads of its sequences. */
typedef struct select_words {
    cn_sel_stage stage[MAX_SEQS];
    uint32_t first[MAX_SEQS], n[MAX_SEQS], base[MAX_SEQS], k[MAX_SEQS], n_forced[MAX_SEQS];
} select_words;
_Static_assert(UNITS_AT + sizeof(select_words) <= FLAGS_AT, "the arrays do not overlap");

/* A launch of `select` in a step: n_seqs sequences with n candidates in each unit, of which k are
 * selected. */
typedef struct select_shape {
    const char *name;
    uint32_t n_seqs, n, k, entry_log2;
    bool tokens;
} select_shape;

/* Writes the small arrays of the ops; cosines and sines stay random. */
static void write_select_arrays(bench *b)
{
    static uint8_t channels[LAYERS * KV_HEADS * CHANNELS], flags[2][MAX_SEQS];
    static query_words w;
    for (size_t i = 0; i < sizeof channels; i++) channels[i] = (uint8_t)(i * 5 % HEAD_DIM);
    memset(flags[0], CN_WEIGHTS_SOFTMAX, MAX_SEQS);
    memset(flags[1], 1, MAX_SEQS);
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        w.slots[i] = i;
        w.newest[i] = 1000 + i;
        w.modulus[i] = WINDOW + 1;
        w.n_window[i] = WINDOW;
    }
    bench_must(b->be->mem_write(b->s, b->memory + CHANNELS_AT, channels, sizeof channels));
    bench_must(b->be->mem_write(b->s, b->memory + WORDS_AT, &w, sizeof w));
    bench_must(b->be->mem_write(b->s, b->memory + FLAGS_AT, flags, sizeof flags));
}

static void record_digest(bench *b, const void *ctx)
{
    const ops_run *r = ctx; /* n_tokens is the number of tiles */
    const uint32_t tiles = BLOCK_TOKENS / TILE_TOKENS;
    const uint32_t n_blocks = (uint32_t)cn_ceil_div(r->n_tokens, tiles);
    const cn_kv_layout l =
        cn_kv_layout_make(LAYERS, n_blocks, KV_HEADS, BLOCK_TOKENS, HEAD_DIM, CN_BF16);
    const size_t slots = cn_kv_side_elems(&l);
    static cn_digest_tile list[MAX_TOKENS / TILE_TOKENS];
    for (uint32_t i = 0; i < r->n_tokens; i++) list[i] = (cn_digest_tile){i / tiles, i % tiles};
    for (uint32_t i = 0; i < r->copies; i++) {
        char *at = b->memory + 65536 + i * r->stride;
        char *planes = at + cn_kv_pool_bytes(&l);
        cn_digest_args a = {.pools = {.layout = l, .kv = at, .n_heads = HEADS},
                            .tiles = list,
                            .n = r->n_tokens};
        cn_digest *g = &a.pools.digest;
        g->channels = (const uint8_t *)b->memory + CHANNELS_AT;
        g->n_channels = CHANNELS;
        g->bounds_16 = planes;
        g->bounds_64 = planes + slots / 16 * HEAD_DIM * 4;
        g->labels = (uint8_t *)planes + slots / 64 * 5 * HEAD_DIM * 4;
        g->scales = (uint16_t *)(void *)(g->labels + slots * CHANNELS / 2);
        bench_must(b->be->digest(b->s, &a));
    }
}

static void record_predict(bench *b, const void *ctx)
{
    const ops_run *r = ctx; /* n_tokens is the number of sequences */
    const query_words *w = (const void *)(b->memory + WORDS_AT);
    const size_t ring_bytes =
        (size_t)LAYERS * r->n_tokens * (WINDOW + 1) * HEADS * HEAD_DIM * 2;
    for (uint32_t i = 0; i < r->copies; i++) {
        char *at = b->memory + 65536 + i * r->stride;
        const cn_predict_args a = {.ring = at,
                                   .n_query_slots = r->n_tokens,
                                   .rows = WINDOW + 1,
                                   .n_heads = HEADS,
                                   .head_dim = HEAD_DIM,
                                   .slots = w->slots,
                                   .newest = w->newest,
                                   .modulus = w->modulus,
                                   .n_window = w->n_window,
                                   .weights = (const uint8_t *)b->memory + FLAGS_AT,
                                   .rotate = (const uint8_t *)b->memory + FLAGS_AT + MAX_SEQS,
                                   .n_seqs = r->n_tokens,
                                   .n_layers = LAYERS,
                                   .eps = 0.01f,
                                   .cos = (const void *)(b->memory + COS_AT),
                                   .sin = (const void *)(b->memory + SIN_AT),
                                   .out = at + ring_bytes,
                                   .out_stride = LAYERS * HEADS * HEAD_DIM};
        bench_must(b->be->predict(b->s, &a));
    }
}

static void record_select(bench *b, const void *ctx)
{
    const select_shape *z = ctx;
    const select_words *w = (const void *)(b->memory + UNITS_AT);
    const size_t n_scores = (size_t)z->n_seqs * KV_HEADS * z->n;
    const cn_select_args a = {.score = (const uint16_t *)(void *)(b->memory + 65536),
                              .stage = w->stage,
                              .first = w->first,
                              .n = w->n,
                              .base = w->base,
                              .k = w->k,
                              .n_forced = w->n_forced,
                              .n_seqs = z->n_seqs,
                              .n_layers = 1,
                              .n_kv_heads = KV_HEADS,
                              .tokens = z->tokens,
                              .list = (uint32_t *)(void *)(b->memory + 65536 + 2 * n_scores),
                              .list_stride = z->k << z->entry_log2};
    for (uint32_t i = 0; i < LAYERS; i++) bench_must(b->be->select(b->s, &a));
}

/* The launches of LAYERS layers. In a step the scores were written just before, so they are in the
 * L2 cache; here all launches read the same scores. */
static void time_select(bench *b, const select_shape *z)
{
    static select_words w;
    for (uint32_t i = 0; i < z->n_seqs; i++) {
        w.stage[i] = (cn_sel_stage){.active = 1, .entry_log2 = (uint8_t)z->entry_log2};
        w.first[i] = i * z->n;
        w.n[i] = z->n;
        w.k[i] = z->k;
    }
    bench_must(b->be->mem_write(b->s, b->memory + UNITS_AT, &w, sizeof w));
    const double s = time_graph(b, record_select, z);
    printf("select, %-22s %u x %-6u %9.2f us, %6.3f ms for %d layers\n", z->name, z->n_seqs, z->n,
           s * 1e6 / LAYERS, s * 1e3, LAYERS);
}

static void bench_select(void)
{
    bench b;
    if (!open_bench(&b, CN_CUDA_GEMM_LIBRARY, 1, false)) return;
    static const select_shape shapes[] = {
        {"tokens", 8, 32768 - 68, 2048, 0, true},   {"tokens", 16, 32768 - 68, 2048, 0, true},
        {"tokens", 4, 131072 - 68, 2048, 0, true},  {"tokens", 64, 8192 - 68, 2048, 0, true},
        {"tiles", 8, 511, 128, 6, false},           {"tokens of 128 tiles", 8, 8192, 2048, 0, true},
        {"pages", 8, 2043, 128, 4, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) time_select(&b, &shapes[i]);
    close_bench(&b);
}

/* ---- running ops ---- */

static void print_op(bench *b, const char *name, uint32_t n_tokens, size_t bytes, size_t stride,
                     void (*record)(bench *b, const void *ctx))
{
    const uint32_t most = (uint32_t)((b->bytes - 65536) / stride);
    const ops_run r = {name, n_tokens, most < 40 ? most : 40, stride};
    const double s = time_graph(b, record, &r) / r.copies;
    printf("%-12s %6u  %9.2f us  %7.0f GB/s  %5.1f %%\n", name, n_tokens, s * 1e6,
           (double)bytes / s / 1e9, 100 * (double)bytes / s / b->read_bytes_s);
}

/* Digests of tiles that a step completes, and predictions for its sequences. */
static void bench_select_ops(bench *b)
{
    static const uint32_t tiles[] = {1, 4, 64}, seqs[] = {1, 8, 64};
    const size_t head_rows = (size_t)LAYERS * KV_HEADS, d = HEAD_DIM;
    const size_t query_bytes = (size_t)LAYERS * HEADS * HEAD_DIM * 2;
    write_select_arrays(b);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const size_t blocks = cn_ceil_div(tiles[i] * TILE_TOKENS, BLOCK_TOKENS);
        const size_t token_bytes = 2 * d + d / 8 + 2 + 4 * d / 16 + 4 * d / 64;
        print_op(b, "digest", tiles[i], tiles[i] * TILE_TOKENS * head_rows * token_bytes,
                 blocks * BLOCK_TOKENS * head_rows * (token_bytes + 2 * d), record_digest);
    }
    for (size_t i = 0; i < sizeof seqs / sizeof *seqs; i++)
        print_op(b, "predict", seqs[i], seqs[i] * (WINDOW + 2) * query_bytes,
                 seqs[i] * (WINDOW + 2) * query_bytes, record_predict);
}

static void bench_ops(void)
{
    bench b;
    static const uint32_t rows[] = {1, 168, 4096};
    if (!open_bench(&b, CN_CUDA_GEMM_FASTEST, PART_GIB, true)) return;
    measure_read(&b);
    printf("\nrow-wise ops: bytes moved per second, and their share of the read bandwidth\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t t = rows[i];
        print_op(&b, "rmsnorm", rows[i], 8 * t * HIDDEN, 6 * t * HIDDEN, record_rmsnorm);
        print_op(&b, "silu_mul", rows[i], 6 * t * INTERMEDIATE, 6 * t * INTERMEDIATE,
                 record_silu_mul);
    }
    const size_t block_bytes = (size_t)LAYERS * KV_HEADS * BLOCK_TOKENS * HEAD_DIM * 4;
    print_op(&b, "copy_blocks", 1, 2 * block_bytes, 2 * block_bytes, record_copy_blocks);
    print_op(&b, "copy_blocks", 16, 32 * block_bytes, 32 * block_bytes, record_copy_blocks);
    bench_select_ops(&b);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"gemm", bench_gemm},
                 {"fp8", bench_fp8},
                 {"ops", bench_ops},
                 {"step", bench_step},
                 {"select", bench_select}};
    cn_backend *probe = NULL;
    if (cn_backend_cuda_load(&probe, (cn_cuda_backend_opts){.memory_bytes = 256 << 20}) != CN_OK) {
        printf("skipped: %s\n", cn_last_error());
        return 0;
    }
    probe->close(probe);
    const int first = argc > 1 && strcmp(argv[1], "-v") == 0 ? 2 : 1;
    if (first == 2) cn_log_set_level(CN_LOG_DEBUG);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool wanted = argc == first;
        for (int j = first; j < argc; j++) wanted = wanted || strcmp(argv[j], parts[i].name) == 0;
        if (wanted) parts[i].run();
    }
    return 0;
}
