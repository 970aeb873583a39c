/* bench_select_cuda.c - times the GPU's kernels of selection beside the read bandwidth of the same
 * run, in the shape of Qwen3-8B: 32 query heads, 8 kv heads, head_dim 128, blocks of 256, bf16.
 *
 *   bench_select_cuda [PATTERN [HEADS]]   (cases whose names contain PATTERN; query heads)
 *
 * A case is a graph of launches, each on layers of its own, several times more than the L2 cache
 * holds; the head of `spec`, once a step, has weights of its own too. It prints the time of a
 * launch, the bytes that the launch must read and write over that time, their share of the read
 * bandwidth, and the time of a step of 36 layers. Blocks are in random order, and digests and keys
 * are random bits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "cuda/cuda_switches.h"
#include "engine/model/draft.h"

enum {
    LAYERS = 36,
    MOST_HEADS = 64,
    KV_HEADS = 8,
    DIM = 128,
    HIDDEN = 4096,
    CHANNELS = DIM / 4,
    LABEL_BYTES = CHANNELS / 2,
    BLOCK = 256,
    MAX_SEQS = 64,
    MAX_TABLE = 1024, /* blocks of a sequence */
    MAX_LIST = 2176,
    TILES = 128, /* of tls */
    ROUNDS = 7,
    RUNS = 3,
    GIB = 28
};

typedef struct bench {
    cn_backend *be;
    cn_stream *stream;
    char *memory;
    size_t bytes;
    double read_bytes_s;
    uint64_t random;
    uint32_t heads;
} bench;

/* HEAD and STATES: a retrieval head, without and with states, then its lists. */
typedef enum what { SCORE, SELECT, ATTEND, HEAD, STATES } what;

typedef struct bench_case {
    const char *name;
    what what;
    uint32_t n_seqs, n_tokens;
    uint32_t n_layers; /* of a launch */
    cn_sel_stage stage;
} bench_case;

#define STAGE(...) {.active = 1, __VA_ARGS__}
#define MEAN STAGE(.key = CN_KEY_LABELS, .group = CN_GROUP_MEAN)
#define MAX STAGE(.key = CN_KEY_LABELS, .group = CN_GROUP_MAX)
#define QUEST STAGE(.key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 4)
#define TLS STAGE(.key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 6)
#define TLS_MEAN STAGE(.key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .in_tiles = 1)
#define TLS_MAX STAGE(.key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = 1)
#define ROWS STAGE(.key = CN_KEY_ROWS, .group = CN_GROUP_MAX)
#define ROWS_MEAN STAGE(.key = CN_KEY_ROWS, .group = CN_GROUP_MEAN)

static const bench_case cases[] = {
    {"large labels mean", SCORE, 8, 32768, 9, MEAN},
    {"large labels max", SCORE, 8, 32768, 9, MAX},
    {"large quest", SCORE, 8, 32768, 4, QUEST},
    {"large tls tiles", SCORE, 8, 32768, 18, TLS},
    {"large rows max", SCORE, 8, 32768, 4, ROWS},
    {"large rows mean", SCORE, 8, 32768, 4, ROWS_MEAN},
    {"long rows max", SCORE, 4, 131072, 4, ROWS},
    {"long rows mean", SCORE, 4, 131072, 4, ROWS_MEAN},
    {"line rows max", SCORE, 8, 32768, 1, ROWS},
    {"line rows mean", SCORE, 8, 32768, 1, ROWS_MEAN},
    {"line labels mean", SCORE, 8, 32768, 1, MEAN},
    {"line labels mean", SCORE, 16, 32768, 1, MEAN},
    {"line labels mean", SCORE, 4, 131072, 1, MEAN},
    {"line labels max", SCORE, 8, 32768, 1, MAX},
    {"line labels max", SCORE, 16, 32768, 1, MAX},
    {"line labels max", SCORE, 4, 131072, 1, MAX},
    {"line quest", SCORE, 8, 32768, 1, QUEST},
    {"line tls tiles", SCORE, 8, 32768, 1, TLS},
    {"line tls tiles", SCORE, 4, 131072, 1, TLS},
    {"line tls tokens mean", SCORE, 8, 32768, 1, TLS_MEAN},
    {"line tls tokens max", SCORE, 8, 32768, 1, TLS_MAX},
    {"line labels mean+select", SELECT, 8, 32768, 1, MEAN},
    {"line labels mean+select", SELECT, 4, 131072, 1, MEAN},
    {"line labels max+select", SELECT, 8, 32768, 1, MAX},
    {"line labels max+select", SELECT, 4, 131072, 1, MAX},
    {"line quest+select", SELECT, 8, 32768, 1, QUEST},
    {"line tls mean+select", SELECT, 8, 32768, 1, TLS_MEAN},
    {"line tls max+select", SELECT, 8, 32768, 1, TLS_MAX},
    {"head+rows max+select", HEAD, 8, 32768, 1, ROWS},
    {"head+rows max+select", HEAD, 4, 131072, 1, ROWS},
    {"states+rows max+select", STATES, 8, 32768, 1, ROWS},
    {"states+rows max+select", STATES, 4, 131072, 1, ROWS},
    {"large attn_lists", ATTEND, 64, 2144, 1, MEAN},
    {"line attn_lists", ATTEND, 4, 2144, 1, MEAN},
    {"line attn_lists", ATTEND, 8, 2144, 1, MEAN},
    {"line attn_lists", ATTEND, 16, 2144, 1, MEAN},
};

/* No block of `score` waits for the sums of others, so most parts are late
 * (score_ring_shares.cuh). */
static const bench_case late_cases[] = {
    {"late labels max+select", SELECT, 8, 32768, 1, MAX},
    {"late labels max+select", SELECT, 4, 131072, 1, MAX},
};

/* ---- memory ---- */

/* The arrays of a step, [MAX_SEQS], and the lists. */
typedef struct arrays {
    cn_sel_stage stage[MAX_SEQS];
    uint32_t first[MAX_SEQS], n[MAX_SEQS], base[MAX_SEQS], seed[MAX_SEQS], k[MAX_SEQS];
    uint32_t n_forced[MAX_SEQS], list_len[MAX_SEQS], tail[MAX_SEQS], lengths[MAX_SEQS];
    uint32_t no_lengths[MAX_SEQS]; /* zeros: attention reads nothing */
    uint32_t positions[MAX_SEQS], slots[MAX_SEQS], q_start[MAX_SEQS + 1];
    uint32_t tables[MAX_SEQS * MAX_TABLE];
    uint32_t tiles[MAX_SEQS * KV_HEADS * TILES];
    uint32_t lists[MAX_SEQS * KV_HEADS * MAX_LIST];
    uint8_t channels[LAYERS * KV_HEADS * CHANNELS];
} arrays;

typedef struct bench_run {
    const bench_case *c;
    const arrays *on_device;
    cn_pools pools;
    cn_batch_view batch;
    char *q, *score, *logits, *list, *out;
    uint32_t n_launches;
    cn_draft draft; /* of the first launch: others have weights and a pool of their own */
    char *embedded;
} bench_run;

static bool has_head(const bench_case *c) { return c->what == HEAD || c->what == STATES; }

static char *carve(bench *b, char **at, size_t bytes)
{
    char *p = *at;
    *at += (bytes + 1023) / 1024 * 1024;
    if (*at > b->memory + b->bytes) {
        fprintf(stderr, "bench_select_cuda: a case needs more than %zu bytes\n", b->bytes);
        exit(1);
    }
    return p;
}

static void shuffle(bench *b, uint32_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = (uint32_t)(bench_random(&b->random) % (i + 1)), v = values[i];
        values[i] = values[j];
        values[j] = v;
    }
}

/* Fills `out` with n ascending numbers below `end`, at equal steps with random offsets. */
static void draw_list(bench *b, uint32_t *out, uint32_t n, uint32_t end)
{
    const uint32_t step = end / n;
    for (uint32_t i = 0; i < n; i++)
        out[i] = i * step + (uint32_t)(bench_random(&b->random) % step);
}

static uint32_t context_of(const bench_case *c) { return c->what == ATTEND ? 8192 : c->n_tokens; }

static void write_arrays(bench *b, const bench_case *c, arrays *on_device)
{
    static arrays a;
    static uint32_t order[MAX_SEQS * MAX_TABLE];
    const uint32_t context = context_of(c), blocks = context / BLOCK, log2 = c->stage.entry_log2;
    uint32_t first = 0;
    for (uint32_t i = 0; i < c->n_seqs * blocks; i++) order[i] = i;
    shuffle(b, order, c->n_seqs * blocks);
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        a.stage[s] = c->stage;
        a.n[s] = c->stage.in_tiles ? TILES * 64 : context >> log2;
        a.first[s] = first;
        first += a.n[s];
        a.k[s] = cn_min_u32(a.n[s], 2048 >> log2);
        a.list_len[s] = 2048;
        a.tail[s] = context - 96;
        a.lengths[s] = 2144;
        for (uint32_t i = 0; i < blocks; i++) a.tables[s * MAX_TABLE + i] = order[s * blocks + i];
        a.positions[s] = context - 1;
        a.slots[s] = order[(s + 1) * blocks - 1] * BLOCK + BLOCK - 1;
        a.q_start[s + 1] = s + 1;
        if (has_head(c)) a.lengths[s] = context;
    }
    for (uint32_t u = 0; u < c->n_seqs * KV_HEADS; u++) {
        draw_list(b, a.tiles + u * TILES, TILES, context / 64);
        draw_list(b, a.lists + u * MAX_LIST, 2048, context);
    }
    for (size_t i = 0; i < sizeof a.channels; i++) a.channels[i] = (uint8_t)(i % CHANNELS * 4);
    bench_must(b->be->mem_write(b->stream, on_device, &a, sizeof a));
    bench_must(b->be->stream_sync(b->stream));
}

/* Bytes of the weights of a head: q_proj and k_proj, then fc. */
static size_t projection_bytes(const bench *b, const bench_case *c)
{
    return (size_t)(b->heads + KV_HEADS) * DIM * HIDDEN * (c->what == STATES ? 4 : 2);
}

static size_t fc_bytes(const bench_case *c)
{
    return c->what == STATES ? (size_t)3 * HIDDEN * HIDDEN * 2 : 0;
}

static size_t draft_bytes(const bench_run *r)
{
    const cn_kv_layout l = cn_kv_layout_draft(&r->pools.layout);
    return cn_kv_pool_bytes(&l);
}

static void open_head(bench *b, bench_run *r, char **at)
{
    enum { ROW = MAX_SEQS * HIDDEN * 2 };
    const bench_case *c = r->c;
    cn_draft *d = &r->draft;
    const uint32_t n = r->n_launches;
    const size_t table = (size_t)c->n_tokens * DIM / 2 * sizeof(float);
    *d = (cn_draft){.be = b->be,
                    .head = {.n_heads = b->heads,
                             .head_dim = DIM,
                             .n_hidden_layers = c->what == STATES ? CN_DRAFT_LAYERS : 0,
                             .hidden_layers = {0, 1, 2}},
                    .hidden = HIDDEN,
                    .eps = 1e-6f};
    r->pools.layout.draft_dim = DIM;
    r->pools.layout.draft_state = c->what == STATES ? HIDDEN : 0;
    r->pools.draft = carve(b, at, n * draft_bytes(r));
    r->pools.state = carve(b, at, (size_t)r->pools.layout.n_blocks * HIDDEN * 2);
    d->q_proj = carve(b, at, n * projection_bytes(b, c));
    d->fc = carve(b, at, n * fc_bytes(c));
    d->norm = carve(b, at, HIDDEN * 2);
    d->hidden_norm = carve(b, at, HIDDEN * 2);
    d->states = carve(b, at, CN_DRAFT_LAYERS * ROW);
    d->fused = carve(b, at, ROW);
    d->before = carve(b, at, ROW);
    d->input = carve(b, at, 2 * ROW);
    d->normed = carve(b, at, ROW);
    d->queries = carve(b, at, (size_t)MAX_SEQS * b->heads * DIM * 2);
    d->keys = carve(b, at, (size_t)MAX_SEQS * KV_HEADS * DIM * 2);
    d->cos = (float *)(void *)carve(b, at, table);
    d->sin = (float *)(void *)carve(b, at, table);
    r->embedded = carve(b, at, ROW);
}

static void open_run(bench *b, const bench_case *c, bench_run *r)
{
    char *at = b->memory;
    const uint32_t blocks = context_of(c) / BLOCK;
    const bool needs_kv = c->what == ATTEND || (c->stage.key == CN_KEY_ROWS && !has_head(c));
    const uint32_t layers = has_head(c)           ? 4
                            : !needs_kv           ? LAYERS
                            : c->n_seqs > 16      ? 2
                            : c->what == ATTEND   ? 24
                                                  : 4;
    *r = (bench_run){.c = c, .n_launches = layers / c->n_layers};
    cn_kv_layout l =
        cn_kv_layout_make(layers, c->n_seqs * blocks, KV_HEADS, BLOCK, DIM, CN_BF16);
    const size_t slots = cn_kv_side_elems(&l), n = (size_t)c->n_seqs * context_of(c) * KV_HEADS;
    arrays *on_device = (void *)carve(b, &at, sizeof *on_device);
    write_arrays(b, c, on_device);
    r->on_device = on_device;
    r->q = carve(b, &at, (size_t)MAX_SEQS * LAYERS * b->heads * DIM * 2);
    r->out = carve(b, &at, (size_t)MAX_SEQS * b->heads * DIM * 2);
    r->score = carve(b, &at, n * c->n_layers * 2);
    r->logits = carve(b, &at, n * c->n_layers * (b->heads / KV_HEADS) * 4);
    r->list = carve(b, &at, (size_t)MAX_SEQS * KV_HEADS * MAX_LIST * 4);
    r->pools = (cn_pools){.layout = l, .n_heads = b->heads, .act_dtype = CN_BF16};
    r->pools.digest.channels = on_device->channels;
    r->pools.digest.n_channels = CHANNELS;
    if (has_head(c)) {
        open_head(b, r, &at);
    } else if (needs_kv) {
        r->pools.kv = carve(b, &at, cn_kv_pool_bytes(&l));
    } else {
        r->pools.digest.labels = (uint8_t *)carve(b, &at, slots * LABEL_BYTES);
        r->pools.digest.scales = (uint16_t *)(void *)carve(b, &at, slots * 2);
        r->pools.digest.bounds_16 = carve(b, &at, slots / 16 * DIM * 4);
        r->pools.digest.bounds_64 = carve(b, &at, slots / 64 * DIM * 4);
    }
    r->batch = (cn_batch_view){.n_tokens = c->n_seqs,
                               .n_seqs = c->n_seqs,
                               .n_decode = c->n_seqs,
                               .positions = on_device->positions,
                               .kv_slots = on_device->slots,
                               .q_start = on_device->q_start,
                               .kv_len = on_device->lengths,
                               .tables = on_device->tables,
                               .table_stride = MAX_TABLE,
                               .max_q = 1,
                               .max_kv = context_of(c)};
}

/* ---- launches ---- */

/* Forms of the stage alone. In its place among the stages, or as `score` takes them. */
static uint32_t route_of(const bench *b, const bench_case *c)
{
    const cn_sel_forms forms = {{0, cn_sel_form(&c->stage)}};
    return b->be->select_route(&forms, &forms);
}

static void record_score(bench *b, const bench_run *r, uint32_t i)
{
    const bench_case *c = r->c;
    const arrays *a = r->on_device;
    const size_t q_row = (size_t)b->heads * DIM;
    const cn_score_args score = {.q = {r->q, r->q},
                                 .q_stride = {q_row * c->n_layers, q_row * c->n_layers},
                                 .stage = a->stage,
                                 .pools = r->pools,
                                 .tables = a->tables,
                                 .table_stride = MAX_TABLE,
                                 .first = a->first,
                                 .n = a->n,
                                 .base = a->base,
                                 .seed = a->seed,
                                 .tiles = a->tiles,
                                 .tile_stride = TILES,
                                 .route = route_of(b, c),
                                 .n_seqs = c->n_seqs,
                                 .first_layer = i * c->n_layers,
                                 .n_layers = c->n_layers,
                                 .logits = c->stage.group == CN_GROUP_MAX ? r->logits : NULL,
                                 .out = (uint16_t *)(void *)r->score};
    bench_must(b->be->score(b->stream, &score));
}

/* With the stage of tokens, of SELECT; or without, of ATTEND: then the lists are given. */
static void record_attend(bench *b, const bench_run *r, uint32_t i)
{
    const arrays *a = r->on_device;
    const bench_case *c = r->c;
    const bool selects = c->what == SELECT;
    const cn_sel_forms none = {{0}};
    cn_attend_selected_args attend = {
        .attn = {.out = r->out,
                 .q = r->q,
                 .kv = r->pools.kv,
                 .batch = &r->batch,
                 .layout = r->pools.layout,
                 .n_heads = b->heads,
                 .layer = i,
                 .scale = 1.0f / sqrtf(DIM)},
        .pools = r->pools,
        .rows = {.n_forced = a->n_forced,
                 .seed = a->seed,
                 .list_len = a->list_len,
                 .tail = a->tail,
                 .lengths = selects ? a->no_lengths : a->lengths},
        .scratch = {.score = (uint16_t *)(void *)r->score,
                    .logits = r->logits,
                    .list = selects ? (uint32_t *)(void *)r->list : (uint32_t *)(uintptr_t)a->lists,
                    .tiles = (uint32_t *)(uintptr_t)a->tiles,
                    .list_stride = MAX_LIST,
                    .tile_stride = TILES},
        .n_rows = c->n_seqs,
        .route = selects ? route_of(b, c) : b->be->select_route(&none, &none),
    };
    attend.rows.stage[1].stage = a->stage;
    attend.rows.stage[1].first = a->first;
    attend.rows.stage[1].n = a->n;
    attend.rows.stage[1].base = a->base;
    attend.rows.stage[1].k = a->k;
    attend.rows.stage[0] = attend.rows.stage[1];
    bench_must(b->be->attend_selected(b->stream, &attend));
}

/* What a step with `spec` does besides attention: the head, score and select. */
static void record_head(bench *b, const bench_run *r, uint32_t i)
{
    const arrays *a = r->on_device;
    const bench_case *c = r->c;
    const cn_row_range all = {0, c->n_seqs};
    cn_pools pools = r->pools;
    cn_draft d = r->draft;
    pools.draft = (char *)pools.draft + i * draft_bytes(r);
    d.q_proj = (char *)d.q_proj + i * projection_bytes(b, c);
    d.k_proj = (char *)d.q_proj + projection_bytes(b, c) / (b->heads + KV_HEADS) * b->heads;
    d.fc = (char *)d.fc + i * fc_bytes(c);
    cn_select_view view = {.ranks_ahead = true,
                           .rows = {.n_forced = a->n_forced, .seed = a->seed},
                           .ahead = a->stage,
                           .ranges = &all,
                           .n_ranges = 1};
    view.rows.stage[1].first = a->first;
    view.rows.stage[1].n = a->n;
    view.rows.stage[1].base = a->base;
    view.rows.stage[1].k = a->k;
    const cn_select_scratch scratch = {.score = (uint16_t *)(void *)r->score,
                                       .logits = r->logits,
                                       .list = (uint32_t *)(void *)r->list,
                                       .list_stride = MAX_LIST};
    const cn_select_step step = {.be = b->be,
                                 .stream = b->stream,
                                 .batch = &r->batch,
                                 .pools = &pools,
                                 .view = &view,
                                 .scratch = &scratch};
    bench_must(cn_draft_store(&d, b->stream, &r->batch, &pools, r->embedded));
    bench_must(cn_draft_select(&d, &step));
    for (uint32_t l = 0; l < CN_DRAFT_LAYERS; l++)
        bench_must(cn_draft_enter_layer(&d, b->stream, &r->batch, &pools, r->embedded, l));
}

static void record(bench *b, const bench_run *r)
{
    for (uint32_t i = 0; i < r->n_launches; i++)
        if (has_head(r->c)) record_head(b, r, i);
        else if (r->c->what == SCORE) record_score(b, r, i);
        else record_attend(b, r, i);
}

/* Bytes that a launch must read, and write. */
static void count_bytes(const bench *b, const bench_case *c, double *reads, double *writes)
{
    const double units = (double)c->n_seqs * c->n_layers * KV_HEADS;
    const uint32_t n = c->stage.in_tiles ? TILES * 64 : c->n_tokens >> c->stage.entry_log2;
    const double key = c->stage.key == CN_KEY_ROWS     ? 2 * DIM
                       : c->stage.key == CN_KEY_LABELS ? LABEL_BYTES + 2
                                                       : 4 * DIM;
    *reads = units * n * key;
    *writes = units * n * 2;
    if (c->what == SELECT || has_head(c)) *writes += units * 2048 * 4;
    if (has_head(c)) *reads += (double)(projection_bytes(b, c) + fc_bytes(c));
    if (c->what != ATTEND) return;
    *reads = units * (c->n_tokens * 4.0 * DIM + 2048 * 4);
    *writes = (double)c->n_seqs * b->heads * DIM * 2;
}

static void run_case(bench *b, const bench_case *c)
{
    bench_run r;
    cn_graph *graph = NULL;
    double seconds[ROUNDS], reads, writes;
    open_run(b, c, &r);
    record(b, &r);
    bench_must(b->be->stream_sync(b->stream));
    bench_must(b->be->graph_begin(b->stream));
    record(b, &r);
    bench_must(b->be->graph_end(b->stream, &graph));
    for (uint32_t round = 0; round <= ROUNDS; round++) { /* the first round warms up */
        const double start = cn_now_s();
        for (uint32_t i = 0; i < RUNS; i++) bench_must(b->be->graph_launch(b->stream, graph));
        bench_must(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = (cn_now_s() - start) / RUNS / r.n_launches;
    }
    b->be->graph_free(graph);
    count_bytes(b, c, &reads, &writes);
    const double s = bench_median(seconds, ROUNDS), rate = (reads + writes) / s;
    printf("%-24s %2u x %6u x %2u layers %8.1f MB %9.2f us %6.0f GB/s %5.1f %% (reads %5.1f %%) "
           "%7.3f ms a step\n",
           c->name, c->n_seqs, c->n_tokens, c->n_layers, (reads + writes) * 1e-6, s * 1e6,
           rate * 1e-9, 100 * rate / b->read_bytes_s, 100 * reads / s / b->read_bytes_s,
           s * 1e3 * (has_head(c) ? 1 : LAYERS / c->n_layers));
    fflush(stdout);
}

/* Opens the backend and prints the read bandwidth. Returns false if there is no GPU. */
static bool open_backend(bench *b, bool late)
{
    const cn_cuda_backend_opts o = {.memory_bytes = (uint64_t)GIB << 30,
                                    .n_heads = MOST_HEADS,
                                    .n_kv_heads = KV_HEADS,
                                    .head_dim = DIM,
                                    .max_seqs = 256,
                                    .switches = &(cn_cuda_switches){.impatient = late}};
    if (cn_backend_cuda_load(&b->be, o) != CN_OK) {
        printf("skipped: %s\n", cn_last_error());
        return false;
    }
    bench_must(b->be->stream_create(b->be, CN_PRIORITY_HIGH, &b->stream));
    b->bytes = (b->be->mem_avail(b->be) - ((size_t)1 << 20)) / 4096 * 4096;
    b->memory = bench_alloc(b->be, b->bytes);
    bench_fill_bf16(b->be, b->stream, b->memory, b->bytes, 1, -7, -1);
    b->read_bytes_s = bench_read_bandwidth(b->be, b->stream, b->memory, (size_t)4 << 30);
    printf("read bandwidth: %.0f GB/s\n", b->read_bytes_s * 1e-9);
    return true;
}

static void close_backend(bench *b)
{
    b->be->mem_free(b->be, b->memory);
    b->be->stream_free(b->stream);
    b->be->close(b->be);
}

/* Runs the cases whose names contain `pattern`. Returns false if there is no GPU. */
static bool run_cases(bench *b, const char *pattern, const bench_case *of, size_t n, bool late)
{
    bool is_open = false;
    for (size_t i = 0; i < n; i++) {
        if (!strstr(of[i].name, pattern)) continue;
        if (!is_open && !open_backend(b, late)) return false;
        is_open = true;
        run_case(b, &of[i]);
    }
    if (is_open) close_backend(b);
    return true;
}

int main(int argc, char **argv)
{
    bench b = {.random = 1, .heads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 32};
    if (b.heads < KV_HEADS || b.heads > MOST_HEADS || b.heads % KV_HEADS != 0) {
        fprintf(stderr, "bench_select_cuda: HEADS %s: expected a multiple of %d, at most %d\n",
                argv[2], KV_HEADS, MOST_HEADS);
        return 2;
    }
    const char *pattern = argc > 1 ? argv[1] : "";
    if (run_cases(&b, pattern, cases, sizeof cases / sizeof *cases, false))
        run_cases(&b, pattern, late_cases, sizeof late_cases / sizeof *late_cases, true);
    return 0;
}
