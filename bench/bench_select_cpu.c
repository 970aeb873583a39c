/* bench_select_cpu.c - compares a decode step's selection and attention to the selected tokens with
 * attention to all tokens, on the CPU, for one layer.
 *
 *   build/bench/bench_select_cpu [threads] [batch] [context]
 *
 * Two kv heads of four query heads, head_dim 64, 512 selected tokens, 4 sinks, 64 recent tokens.
 * All arms alternate and their medians are compared, so other load on the machine affects all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "compress/selector.h"
#include "engine/cpu/cpu_ops.h"

enum {
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    BLOCK_TOKENS = 64,
    SELECT = 512,
    MAX_BATCH = 64,
    REPEATS = 31
};

enum { DENSE, STAGE_1, STAGE_2, LISTS, SPARSE, N_PARTS };
static const char *const part_names[N_PARTS] = {"dense", "tiles", "score", "select", "sparse"};

typedef struct bench {
    cn_backend *be;
    cn_stream *stream;
    uint32_t batch, context;
    cn_pools pools;
    cn_batch_view view;
    float *q, *out, *logits;
    uint16_t *score;
    uint32_t *tables, *list, *tiles;
    uint32_t q_start[MAX_BATCH + 1], kv_len[MAX_BATCH];
    uint32_t list_len[MAX_BATCH], tail[MAX_BATCH], lengths[MAX_BATCH];
} bench;

static void open_pools(bench *b)
{
    const uint32_t per_seq = (uint32_t)cn_ceil_div(b->context, BLOCK_TOKENS);
    cn_pools *p = &b->pools;
    p->layout = cn_kv_layout_make(1, b->batch * per_seq, KV_HEADS, BLOCK_TOKENS, HEAD_DIM, CN_F32);
    p->n_heads = HEADS;
    p->kv = bench_floats(cn_kv_pool_elems(&p->layout), 1, 0.5f);
    cn_digest *g = &p->digest;
    g->n_channels = cn_label_channels(HEAD_DIM);
    uint8_t *channels = cn_calloc(KV_HEADS * g->n_channels, 1);
    for (uint32_t i = 0; i < KV_HEADS * g->n_channels; i++)
        channels[i] = (uint8_t)(i % g->n_channels * 4);
    g->channels = channels;
    const size_t n = p->layout.n_blocks;
    g->labels = cn_calloc(n, cn_block_plane_bytes(&p->layout, CN_PLANE_LABELS));
    g->scales = cn_calloc(n, cn_block_plane_bytes(&p->layout, CN_PLANE_SCALES));
    g->bounds_16 = cn_calloc(n, cn_block_plane_bytes(&p->layout, CN_PLANE_BOUNDS_16));
    g->bounds_64 = cn_calloc(n, cn_block_plane_bytes(&p->layout, CN_PLANE_BOUNDS_64));
    cn_digest_tile *tiles = cn_calloc(n, sizeof *tiles);
    for (uint32_t i = 0; i < n; i++) tiles[i].block = i;
    const cn_digest_args a = {*p, tiles, (uint32_t)n};
    const double start = cn_now_s();
    bench_must(b->be->digest(b->stream, &a));
    printf("digest of %u tokens %.0f us\n", b->batch * b->context, (cn_now_s() - start) * 1e6);
    cn_free(tiles);
}

static void open_step(bench *b)
{
    const uint32_t per_seq = (uint32_t)cn_ceil_div(b->context, BLOCK_TOKENS);
    const size_t n = (size_t)b->batch * HEADS * HEAD_DIM;
    open_pools(b);
    b->q = bench_floats(n, 2, 0.5f);
    b->out = bench_floats(n, 2, 0.5f);
    b->logits = bench_floats((size_t)b->batch * b->context * HEADS, 3, 0);
    b->score = cn_calloc((size_t)b->batch * b->context * KV_HEADS, sizeof *b->score);
    b->list = cn_calloc((size_t)b->batch * b->context * KV_HEADS, sizeof *b->list);
    b->tiles = cn_calloc((size_t)b->batch * b->context * KV_HEADS, sizeof *b->tiles);
    b->tables = cn_calloc((size_t)b->batch * per_seq, sizeof *b->tables);
    for (uint32_t s = 0; s < b->batch; s++) {
        for (uint32_t i = 0; i < per_seq; i++) b->tables[s * per_seq + i] = i * b->batch + s;
        b->q_start[s + 1] = s + 1;
        b->kv_len[s] = b->context;
    }
    b->view = (cn_batch_view){.n_tokens = b->batch,
                              .n_seqs = b->batch,
                              .n_decode = b->batch,
                              .q_start = b->q_start,
                              .kv_len = b->kv_len,
                              .tables = b->tables,
                              .table_stride = per_seq,
                              .max_q = 1,
                              .max_kv = b->context};
}

/* Runs stage i of the selection of all sequences. Adds the times to t. */
static void run_stage(bench *b, const cn_select_span *span, uint32_t i, double *t)
{
    cn_sel_stage stage[MAX_BATCH];
    uint32_t first[MAX_BATCH], n[MAX_BATCH], base[MAX_BATCH], k[MAX_BATCH], forced[MAX_BATCH];
    for (uint32_t s = 0; s < b->batch; s++) {
        stage[s] = span->stage[i];
        n[s] = span->n[i];
        first[s] = s * n[s];
        base[s] = span->base[i];
        k[s] = span->k[i];
        forced[s] = span->n_forced;
    }
    cn_score_args score = {.q = {b->q, b->q},
                           .q_stride = {HEADS * HEAD_DIM, HEADS * HEAD_DIM},
                           .stage = stage,
                           .pools = b->pools,
                           .tables = b->tables,
                           .table_stride = b->view.table_stride,
                           .first = first,
                           .n = n,
                           .base = base,
                           .tiles = i ? b->tiles : NULL,
                           .tile_stride = b->context,
                           .n_seqs = b->batch,
                           .n_layers = 1,
                           .logits = b->logits,
                           .out = b->score};
    cn_select_args select = {.score = b->score,
                             .stage = stage,
                             .first = first,
                             .n = n,
                             .base = base,
                             .k = k,
                             .n_forced = forced,
                             .tiles = score.tiles,
                             .tile_stride = b->context,
                             .n_seqs = b->batch,
                             .n_layers = 1,
                             .n_kv_heads = KV_HEADS,
                             .tokens = i == 1,
                             .list = i ? b->list : b->tiles,
                             .list_stride = b->context};
    const double start = cn_now_s();
    bench_must(b->be->score(b->stream, &score));
    const double middle = cn_now_s();
    bench_must(b->be->select(b->stream, &select));
    t[i ? STAGE_2 : STAGE_1] += middle - start;
    t[i ? LISTS : STAGE_1] += cn_now_s() - middle;
}

/* Runs a step of one layer, dense if the span is not listed. */
static void run_step(bench *b, const cn_select_span *span, double *t)
{
    const cn_attn_args a = {.out = b->out,
                            .q = b->q,
                            .kv = b->pools.kv,
                            .batch = &b->view,
                            .layout = b->pools.layout,
                            .n_heads = HEADS,
                            .scale = 0.125f};
    if (!span->listed) {
        const double start = cn_now_s();
        bench_must(b->be->attn_decode(b->stream, &a));
        t[DENSE] = cn_now_s() - start;
        return;
    }
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++)
        if (span->stage[i].active) run_stage(b, span, i, t);
    for (uint32_t s = 0; s < b->batch; s++) {
        b->list_len[s] = span->list_len;
        b->tail[s] = span->tail;
        b->lengths[s] = span->list_len + b->context - span->tail;
    }
    static const cn_sel_stage none[MAX_BATCH]; /* the lists are made */
    const cn_attend_selected_args lists = {
        .attn = a,
        .pools = b->pools,
        .rows = {.stage = {{.stage = none}, {.stage = none}},
                 .list_len = b->list_len,
                 .tail = b->tail,
                 .lengths = b->lengths},
        .scratch = {.list = b->list, .list_stride = b->context},
        .n_rows = b->batch,
    };
    const double start = cn_now_s();
    bench_must(b->be->attend_selected(b->stream, &lists));
    t[SPARSE] = cn_now_s() - start;
}

typedef struct arm {
    const char *name;
    cn_kv_select select;
    cn_select_group group;
} arm;

static const arm arms[] = {
    {"dense", CN_SELECT_NONE, CN_SELECT_MAX},    {"ds max", CN_SELECT_DS, CN_SELECT_MAX},
    {"ds mean", CN_SELECT_DS, CN_SELECT_MEAN},   {"tls max", CN_SELECT_TLS, CN_SELECT_MAX},
    {"tls mean", CN_SELECT_TLS, CN_SELECT_MEAN}, {"quest", CN_SELECT_QUEST, CN_SELECT_MAX},
    {"oracle", CN_SELECT_ORACLE, CN_SELECT_MAX},
};
enum { N_ARMS = sizeof arms / sizeof *arms };

static void run_arms(bench *b)
{
    static double times[N_ARMS][N_PARTS + 1][REPEATS];
    for (int i = -2; i < REPEATS; i++) /* two rounds warm up */
        for (int j = 0; j < N_ARMS; j++) {
            const cn_kv_params kv = {.select = arms[j].select,
                                     .select_group = arms[j].group,
                                     .select_tokens = SELECT,
                                     .select_tiles = 4 * SELECT / CN_DIGEST_TILE,
                                     .sink_tokens = 4,
                                     .recent_tokens = 64};
            const cn_select_span span = cn_select_span_at(&kv, 1, b->context - 1, BLOCK_TOKENS);
            double t[N_PARTS] = {0}, total = 0;
            run_step(b, &span, t);
            for (int p = 0; p < N_PARTS; p++) total += t[p];
            for (int p = 0; p <= N_PARTS && i >= 0; p++)
                times[j][p][i] = p < N_PARTS ? t[p] : total;
        }
    const double dense = bench_median(times[0][N_PARTS], REPEATS);
    for (int j = 0; j < N_ARMS; j++) {
        const double total = bench_median(times[j][N_PARTS], REPEATS);
        printf("%-9s %7.0f us, %5.2f of dense  ", arms[j].name, total * 1e6, total / dense);
        for (int p = STAGE_1; p < N_PARTS; p++)
            printf(" %s %.0f", part_names[p], bench_median(times[j][p], REPEATS) * 1e6);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const uint32_t defaults[] = {cn_cpu_count(), 1, 8192}, most[] = {1024, MAX_BATCH, 1 << 18};
    uint32_t values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = i + 1 < argc ? (uint32_t)strtoul(argv[i + 1], NULL, 10) : defaults[i];
        if (argc <= 4 && values[i] >= 1 && values[i] <= most[i]) continue;
        fprintf(stderr, "usage: bench_select_cpu [threads] [batch, at most %d] [context]\n",
                MAX_BATCH);
        return 1;
    }
    bench b = {.batch = values[1], .context = values[2]};
    bench_must(cn_backend_cpu_open(&b.be, &(cn_cpu_backend_opts){.n_threads = values[0]}));
    bench_must(b.be->stream_create(b.be, CN_PRIORITY_HIGH, &b.stream));
    printf("%u threads, batch %u, context %u, medians of %d\n", values[0], b.batch, b.context,
           REPEATS);
    open_step(&b);
    run_arms(&b);
    return 0;
}
