/* test_op_latent_cuda.c - the ops of latent attention on the GPU compared with the CPU on random
 * shapes: the row of K and the queries of a token, products of heads, and attention over rows that
 * contain their V; events. Ranks of 128, 256 and 512 and a small one; 16, 20, 64 and 128 heads, and
 * numbers that fill no tile. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/attn_case.h"
#include "tests/lib/compress_event.h"
#include "tests/lib/compress_request.h"

void openblas_set_num_threads(int n_threads);

/* Weights and results are rounded to bf16, at most 2^-9 each. */
#define TOLERANCE 8e-3

/* r and dr. The last are those of a test checkpoint. */
static const struct {
    uint32_t rank, rope;
} ROWS[] = {{512, 64}, {256, 64}, {128, 32}, {32, 16}};
static const uint32_t HEADS[] = {20, 16, 64, 128, 1, 7, 24, 33, 40};
enum { N_ROWS = sizeof ROWS / sizeof *ROWS, N_HEADS = sizeof HEADS / sizeof *HEADS };

/* ---- the row and the queries of a token ---- */

typedef struct store_case {
    paged_batch *b;
    op_batch batch;
    op_tensor q, row, norm, cos, sin, kv, ring;
    cn_latent_store_args cpu, cuda;
} store_case;

enum { RING_SLOTS = 3, RING_ROWS = 5 };

/* Some tokens are not stored, and some are observed: each in a row of its own. */
static void draw_places(op_env *e, paged_batch *b)
{
    uint32_t observed = 0;
    for (uint32_t t = 0; t < b->view.n_tokens; t++) {
        if (test_rng_below(&e->rng, 5) == 0) b->kv_slots[t] = CN_NO_SLOT;
        if (op_coin(e) && observed < RING_SLOTS * RING_ROWS) b->q_rows[t] = (int32_t)observed++;
    }
}

static void open_store(op_env *e, store_case *c, const paged_shape *s)
{
    const uint32_t rank = s->value_dim, rope = s->head_dim - rank, d = s->query_dim;
    c->b = paged_batch_create(s, &e->rng);
    draw_places(e, c->b);
    c->batch = op_batch_upload(e, c->b);
    const cn_kv_layout *l = &c->b->layout;
    const uint32_t n = c->b->view.n_tokens;
    c->q = op_random(e, (size_t)n * s->n_heads * d);
    c->row = op_random(e, (size_t)n * s->head_dim);
    c->norm = op_random(e, rank);
    c->cos = op_random_f32(e, (size_t)c->b->view.max_kv * rope / 2);
    c->sin = op_random_f32(e, (size_t)c->b->view.max_kv * rope / 2);
    c->kv = op_random(e, cn_kv_pool_elems(l)); /* what is not stored stays */
    c->ring = op_random(e, (size_t)l->n_layers * RING_SLOTS * RING_ROWS * s->n_heads * d);
    c->cpu = (cn_latent_store_args){.q = c->q.cpu,
                                    .row = c->row.cpu,
                                    .norm = c->norm.cpu,
                                    .eps = 1e-6F,
                                    .cos = c->cos.cpu,
                                    .sin = c->sin.cpu,
                                    .batch = &c->b->view,
                                    .n_heads = s->n_heads,
                                    .layer = s->n_layers - 1,
                                    .layout = *l,
                                    .kv = c->kv.cpu,
                                    .q_window = c->ring.cpu,
                                    .n_query_slots = RING_SLOTS,
                                    .window = RING_ROWS};
    c->cuda = c->cpu;
    c->cuda.q = c->q.cuda;
    c->cuda.row = c->row.cuda;
    c->cuda.norm = c->norm.cuda;
    c->cuda.cos = c->cos.cuda;
    c->cuda.sin = c->sin.cuda;
    c->cuda.batch = &c->batch.view;
    c->cuda.layout = op_layout_as(l, CN_BF16);
    c->cuda.kv = c->kv.cuda;
    c->cuda.q_window = c->ring.cuda;
}

static void close_store(op_env *e, store_case *c)
{
    op_tensor *const all[] = {&c->q, &c->row, &c->norm, &c->cos, &c->sin, &c->kv, &c->ring};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    op_batch_free(e, &c->batch);
    paged_batch_free(c->b);
}

/* Every third seed has no window. */
static double run_store(op_env *e, uint32_t seed)
{
    const uint32_t rank = ROWS[seed % N_ROWS].rank, rope = ROWS[seed % N_ROWS].rope;
    const uint32_t len = op_between(e, 1, 90);
    const paged_shape s = {.n_layers = 2,
                           .n_heads = HEADS[seed / N_ROWS % N_HEADS],
                           .n_kv_heads = 1,
                           .head_dim = rank + rope,
                           .block_tokens = 16u << seed % 5,
                           .n_seqs = 2,
                           .n_decode = 1,
                           .value_dim = rank,
                           .query_dim = rope + 8 * op_between(e, 0, 24),
                           .n_q = {1, 1 + test_rng_below(&e->rng, len)},
                           .kv_len = {op_between(e, 1, 70), len}};
    store_case c;
    open_store(e, &c, &s);
    if (seed % 3 == 0) c.cpu.q_window = c.cuda.q_window = NULL;
    if (seed % 7 == 3) c.cpu.q = c.cuda.q = NULL; /* only the rows */
    OP_SHAPE(e, "r=%u dr=%u query=%u heads=%u T=%u", rank, rope, s.query_dim, s.n_heads,
             c.b->view.n_tokens);
    OP_RUN_BOTH(e, latent_store, &c.cpu, &c.cuda);
    double error = op_error(e, &c.q);
    error = fmax(error, op_error(e, &c.kv));
    error = fmax(error, op_error(e, &c.ring));
    close_store(e, &c);
    return error;
}

/* ---- products of heads ---- */

typedef struct heads_case {
    op_tensor x, weight, out;
    cn_heads_gemm_args cpu, cuda;
} heads_case;

static void open_heads(op_env *e, heads_case *c, const cn_heads_gemm_args *shape)
{
    c->cpu = *shape;
    c->x = op_random(e, (size_t)shape->n_tokens * shape->n_heads * (shape->k + shape->n_copied));
    c->weight = op_random(e, (size_t)shape->n_heads * shape->weight_stride);
    const size_t row = (size_t)shape->n_heads * (shape->n + shape->n_copied);
    /* What lies between the tokens stays. */
    c->out = op_random(e, shape->n_tokens * (shape->out_stride ? shape->out_stride : row));
    c->cpu.x = c->x.cpu;
    c->cpu.weight = c->weight.cpu;
    c->cpu.out = c->out.cpu;
    c->cuda = c->cpu;
    c->cuda.x = c->x.cuda;
    c->cuda.weight = c->weight.cuda;
    c->cuda.out = c->out.cuda;
}

static void close_heads(op_env *e, heads_case *c)
{
    op_tensor_free(e, &c->x);
    op_tensor_free(e, &c->weight);
    op_tensor_free(e, &c->out);
}

static cn_heads_gemm_args draw_heads(op_env *e, uint32_t seed)
{
    cn_heads_gemm_args a = {.n_tokens = op_some_rows(e),
                            .n_heads = 1 + test_rng_below(&e->rng, 5),
                            .n = 16 * op_between(e, 1, 33),
                            .k = 16 * op_between(e, 1, 33),
                            .n_copied = 8 * test_rng_below(&e->rng, 9),
                            .by_rows = seed % 2 == 1};
    a.weight_stride = a.n * a.k + 16 * test_rng_below(&e->rng, 3);
    if (seed % 4 < 2) a.out_stride = a.n_heads * (a.n + a.n_copied) + 8 * (seed % 5);
    return a;
}

static double run_heads(op_env *e, uint32_t seed)
{
    /* GLM-4.7-Flash: queries by key matrices, results by value matrices. */
    static const cn_heads_gemm_args usual[] = {
        {.n_tokens = 65,
         .n_heads = 20,
         .n = 512,
         .k = 192,
         .n_copied = 64,
         .by_rows = true,
         .weight_stride = 448 * 512},
        {.n_tokens = 64, .n_heads = 20, .n = 256, .k = 512, .weight_stride = 448 * 512},
    };
    const cn_heads_gemm_args shape = seed < 2 ? usual[seed] : draw_heads(e, seed);
    heads_case c;
    open_heads(e, &c, &shape);
    OP_SHAPE(e, "T=%u heads=%u n=%u k=%u copied=%u%s", shape.n_tokens, shape.n_heads, shape.n,
             shape.k, shape.n_copied, shape.by_rows ? " by rows" : "");
    OP_RUN_BOTH(e, heads_gemm, &c.cpu, &c.cuda);
    const double error = op_error(e, &c.out);
    close_heads(e, &c);
    return error;
}

/* A row has the same bits alone and among others. */
static double run_heads_alone(op_env *e, uint32_t seed)
{
    const cn_heads_gemm_args shape = {.n_tokens = 131,
                                      .n_heads = 3,
                                      .n = 80,
                                      .k = 208,
                                      .n_copied = 16,
                                      .by_rows = seed == 1,
                                      .weight_stride = 80 * 208};
    heads_case c;
    open_heads(e, &c, &shape);
    const size_t out_row = (size_t)3 * (80 + 16), x_row = (size_t)3 * (208 + 16);
    OP_OK(e->cuda->heads_gemm(e->cuda_stream, &c.cuda));
    uint16_t *all = op_take(e, &c.out);
    static const uint32_t rows[] = {0, 1, 63, 64, 127, 130};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cn_heads_gemm_args one = c.cuda;
        one.n_tokens = 1;
        one.x = (const uint16_t *)c.x.cuda + rows[i] * x_row;
        op_send(e, &c.out);
        OP_OK(e->cuda->heads_gemm(e->cuda_stream, &one));
        uint16_t *got = op_take(e, &c.out);
        assert_memory_equal(got, all + rows[i] * out_row, out_row * sizeof *got);
        cn_free(got);
    }
    cn_free(all);
    close_heads(e, &c);
    return 0;
}

/* ---- attention ---- */

/* Opens a case on the last layer. The arguments point into *c. */
static void open_case(op_env *e, attn_case *c, const paged_shape *s)
{
    attn_case_draw(e, c, s);
    const paged_batch *b = c->b;
    const size_t rows = (size_t)b->view.n_tokens * b->n_heads;
    float *queries = cn_calloc(rows * s->head_dim, sizeof *queries);
    for (size_t i = 0; i < rows * s->head_dim; i++) queries[i] = 2 * test_rng_uniform(&e->rng);
    c->kv = op_floats(e, b->kv, cn_kv_pool_elems(&b->layout), CN_BF16);
    c->q = op_floats(e, queries, rows * s->head_dim, CN_BF16);
    c->out = op_poison(e, rows * s->value_dim, CN_BF16);
    cn_free(queries);
    attn_case_set_args(c, s, 2.0f / sqrtf((float)s->head_dim));
    OP_SHAPE(e, "r=%u dr=%u block=%u heads=%u %u seqs, %u decode, up to %u", s->value_dim,
             s->head_dim - s->value_dim, s->block_tokens, s->n_heads, s->n_seqs, s->n_decode,
             b->view.max_kv);
}

/* Runs both ops on the GPU into poisoned results. Free the copy with cn_free. */
static uint16_t *run_on_gpu(op_env *e, const attn_case *c)
{
    op_send(e, &c->out); /* the CPU's results, or poison */
    OP_OK(e->cuda->attn_decode(e->cuda_stream, &c->cuda));
    OP_OK(e->cuda->attn_prefill(e->cuda_stream, &c->cuda));
    return op_take(e, &c->out);
}

/* Runs both ops on both sides, twice on the GPU with the same bits. */
static double compare(op_env *e, const paged_shape *s)
{
    attn_case c;
    open_case(e, &c, s);
    uint16_t *got = run_on_gpu(e, &c);
    uint16_t *again = run_on_gpu(e, &c);
    assert_memory_equal(got, again, c.out.n * sizeof *got);
    OP_OK(e->cpu->attn_decode(e->cpu_stream, &c.cpu));
    OP_OK(e->cpu->attn_prefill(e->cpu_stream, &c.cpu));
    const double error = op_rows_error(e, &c.out, s->value_dim);
    cn_free(again);
    cn_free(got);
    attn_case_close(e, &c);
    return error;
}

static paged_shape latent_shape(uint32_t n_heads, uint32_t rows)
{
    return (paged_shape){.n_layers = 1,
                         .n_heads = n_heads,
                         .n_kv_heads = 1,
                         .head_dim = ROWS[rows].rank + ROWS[rows].rope,
                         .block_tokens = 64,
                         .value_dim = ROWS[rows].rank,
                         .query_dim = 128 + ROWS[rows].rope};
}

static double run_drawn(op_env *e, uint32_t seed)
{
    static const uint32_t dims[] = {16};
    static const paged_limits most = {
        .dims = dims, .n_dims = 1, .most_seqs = 5, .most_blocks = 4, .most_edges = 3, .most_q = 40};
    paged_shape s = paged_shape_draw(&e->rng, &most);
    const paged_shape shape = latent_shape(HEADS[seed % N_HEADS], seed / 2 % N_ROWS);
    s.n_kv_heads = 1;
    s.n_heads = shape.n_heads;
    s.head_dim = shape.head_dim;
    s.value_dim = shape.value_dim;
    s.query_dim = shape.query_dim;
    return compare(e, &s);
}

/* Sequences that are split over many blocks of the grid, next to short ones; many of equal length;
 * long prefills after a prefix. */
static double run_long(op_env *e, uint32_t seed)
{
    static const struct {
        uint32_t heads, n_seqs, n_decode, n_q[6], kv_len[6];
    } all[] = {
        {20, 1, 1, {1}, {9000}},
        {20, 5, 5, {1, 1, 1, 1, 1}, {9000, 1, 2049, 64, 700}},
        {16, 2, 2, {1, 1}, {4096, 4096}},
        {128, 3, 3, {1, 1, 1}, {3000, 12, 1500}},
        {64, 4, 4, {1, 1, 1, 1}, {2100, 2100, 2100, 2100}},
        {20, 3, 1, {1, 170, 65}, {600, 170, 1500}},
    };
    paged_shape s = latent_shape(all[seed].heads, 0);
    s.n_layers = 2;
    s.n_seqs = all[seed].n_seqs;
    s.n_decode = all[seed].n_decode;
    s.block_tokens = seed % 2 ? 16 : 256;
    memcpy(s.n_q, all[seed].n_q, sizeof all[seed].n_q);
    memcpy(s.kv_len, all[seed].kv_len, sizeof all[seed].kv_len);
    return compare(e, &s);
}

/* More sequences than multiprocessors, so that a block has several whole items. */
static double run_many(op_env *e, uint32_t seed)
{
    paged_shape s = latent_shape(seed ? 33 : 20, 2);
    s.n_seqs = s.n_decode = 300;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = op_between(e, 1, 200);
    }
    return compare(e, &s);
}

/* One graph, and lengths that change only on the GPU: kv_len, where 0 marks padding, or lengths
 * beside it. Rows of the others stay poison. */
static double run_graph(op_env *e, uint32_t seed)
{
    static const uint32_t lengths[][4] = {
        {700, 700, 700, 700}, {1, 0, 699, 64}, {0, 0, 0, 700}, {0, 0, 0, 0}, {65, 7, 0, 128}};
    paged_shape s = latent_shape(20, 0);
    s.n_seqs = s.n_decode = 4;
    for (uint32_t i = 0; i < 4; i++) s.n_q[i] = 1;
    memcpy(s.kv_len, lengths[0], sizeof lengths[0]);
    attn_case c;
    open_case(e, &c, &s);
    op_tensor kv_len = op_words(e, lengths[0], 4);
    if (seed == 0)
        c.batch.view.kv_len = kv_len.cuda;
    else
        c.cuda.lengths = kv_len.cuda;
    float *poison = cn_calloc(c.out.n, sizeof *poison);
    memcpy(poison, c.out.cpu, c.out.n * sizeof *poison);
    double worst = 0;
    cn_graph *graph = NULL;
    OP_OK(e->cuda->graph_begin(e->cuda_stream));
    OP_OK(e->cuda->attn_decode(e->cuda_stream, &c.cuda));
    OP_OK(e->cuda->graph_end(e->cuda_stream, &graph));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(kv_len.cpu, lengths[i], sizeof lengths[i]);
        memcpy(c.out.cpu, poison, c.out.n * sizeof *poison);
        op_send(e, &kv_len);
        op_send(e, &c.out);
        OP_OK(e->cuda->graph_launch(e->cuda_stream, graph));
        c.cpu.lengths = lengths[i];
        OP_OK(e->cpu->attn_decode(e->cpu_stream, &c.cpu));
        worst = fmax(worst, op_error(e, &c.out));
    }
    e->cuda->graph_free(graph);
    cn_free(poison);
    op_tensor_free(e, &kv_len);
    attn_case_close(e, &c);
    return worst;
}

/* Under batch_invariant a decode row has the same bits alone and in a batch. */
static double run_alone(op_env *e, uint32_t seed)
{
    static const uint32_t lengths[] = {5000, 100, 2048, 2049, 3, 9999};
    paged_shape s = latent_shape(seed ? 64 : 20, seed);
    s.n_seqs = s.n_decode = 6;
    for (uint32_t i = 0; i < 6; i++) s.n_q[i] = 1;
    memcpy(s.kv_len, lengths, sizeof lengths);
    attn_case c;
    open_case(e, &c, &s);
    const size_t q_row = (size_t)s.n_heads * s.head_dim, row = (size_t)s.n_heads * s.value_dim;
    uint16_t *together = run_on_gpu(e, &c);
    const cn_batch_view all = c.batch.view;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        c.batch.view.n_seqs = c.batch.view.n_decode = c.batch.view.n_tokens = 1;
        c.batch.view.kv_len = all.kv_len + i;
        c.batch.view.tables = all.tables + (size_t)i * all.table_stride;
        c.cuda.q = (const uint16_t *)c.q.cuda + i * q_row;
        uint16_t *alone = run_on_gpu(e, &c);
        assert_memory_equal(alone, together + i * row, row * sizeof *alone);
        cn_free(alone);
    }
    cn_free(together);
    attn_case_close(e, &c);
    return 0;
}

/* A prompt row has the same bits in any chunk. */
static double run_chunks(op_env *e, uint32_t seed)
{
    enum { LEN = 131 };
    static const uint32_t cuts[] = {0, 1, 65, 66, 100, LEN};
    paged_shape s = latent_shape(seed ? 16 : 20, seed);
    s.n_seqs = 1;
    s.n_q[0] = s.kv_len[0] = LEN;
    attn_case c;
    open_case(e, &c, &s);
    const size_t q_row = (size_t)s.n_heads * s.head_dim, row = (size_t)s.n_heads * s.value_dim;
    uint16_t *whole = run_on_gpu(e, &c);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
        const uint32_t n_q = cuts[i + 1] - cuts[i], words[] = {0, n_q, cuts[i + 1]};
        op_tensor chunk = op_words(e, words, 3); /* q_start, kv_len */
        c.batch.view.q_start = chunk.cuda;
        c.batch.view.kv_len = (const uint32_t *)chunk.cuda + 2;
        c.batch.view.n_tokens = c.batch.view.max_q = n_q;
        c.cuda.q = (const uint16_t *)c.q.cuda + cuts[i] * q_row;
        uint16_t *part = run_on_gpu(e, &c);
        assert_memory_equal(part, whole + cuts[i] * row, n_q * row * sizeof *part);
        cn_free(part);
        op_tensor_free(e, &chunk);
    }
    cn_free(whole);
    attn_case_close(e, &c);
    return 0;
}

/* ---- events ---- */

/* Requests of any policy, some of which count more queries than a tile of the product has rows. */
static double run_events(op_env *e, uint32_t seed)
{
    const uint32_t rows = seed % N_ROWS;
    const event_shape s = {.n_layers = 2,
                           .n_kv_heads = 1,
                           .group = HEADS[seed / 2 % N_HEADS],
                           .head_dim = ROWS[rows].rank + ROWS[rows].rope,
                           .block_tokens = 16u << seed % 5,
                           .ring = seed % 3 ? op_between(e, 1, 20) : 70,
                           .n_reqs = op_between(e, 1, 3),
                           .rank = ROWS[rows].rank,
                           .nope = 16 * op_between(e, 1, 8)};
    const uint32_t most = s.block_tokens >= 128 ? 3 : 8;
    event *ev = event_create(e, &s, 2 * MAX_REQS * most);
    uint32_t next = 0;
    for (uint32_t i = 0; i < ev->n_reqs; i++) {
        ev->reqs[i] = compress_request_draw(&e->rng, &ev->pools, i, op_between(e, 1, most));
        draw_tables(e, ev, i, (compress_placement)test_rng_below(&e->rng, N_PLACEMENTS), &next);
    }
    check_event(e, ev);
    event_free(e, ev);
    return 0;
}

static double run_refusals(op_env *e, uint32_t seed)
{
    (void)seed;
    const cn_batch_view view = {.n_tokens = 1, .n_seqs = 1, .n_decode = 1};
    cn_attn_args a = {
        .batch = &view, .layout = cn_kv_layout_make(1, 1, 1, 64, 640, CN_BF16), .n_heads = 4};
    cn_kv_layout_share(&a.layout, 576, 192);
    assert_int_equal(e->cuda->attn_decode(e->cuda_stream, &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "rows of 640 elements, of them 576 of V"));
    a.layout = cn_kv_layout_make(1, 1, 2, 64, 160, CN_BF16);
    cn_kv_layout_share(&a.layout, 128, 192);
    assert_int_equal(e->cuda->attn_prefill(e->cuda_stream, &a), CN_ERR_SHAPE);
    const cn_latent_store_args store = {.batch = &view, .layout = a.layout, .n_heads = 4};
    assert_int_equal(e->cuda->latent_store(e->cuda_stream, &store), CN_ERR_SHAPE);
    const cn_heads_gemm_args heads = {.n_tokens = 1, .n_heads = 2, .n = 16, .k = 12};
    assert_int_equal(e->cuda->heads_gemm(e->cuda_stream, &heads), CN_ERR_SHAPE);
    return 0;
}

int main(int argc, char **argv)
{
    openblas_set_num_threads(1);
    static const op_case cases[] = {
        {"latent, store", 36, 4e-3, run_store, .latent = true},
        {"latent, heads", 24, 4e-3, run_heads, .latent = true},
        {"latent, heads, alone", 2, 0, run_heads_alone, .latent = true},
        {"latent, attn", 54, TOLERANCE, run_drawn, .latent = true},
        {"latent, attn, long", 6, TOLERANCE, run_long, .latent = true},
        {"latent, attn, many", 2, TOLERANCE, run_many, .latent = true},
        {"latent, attn, graph", 2, TOLERANCE, run_graph, .latent = true},
        {"latent, attn, chunks", 2, 0, run_chunks, .latent = true},
        {"latent, attn, alone", 2, 0, run_alone, .batch_invariant = true, .latent = true},
        {"latent, events", 40, 0, run_events, .latent = true},
        {"latent, refused", 1, 0, run_refusals, .latent = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
