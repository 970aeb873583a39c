/* test_op_attn_cuda.c - attention on the GPU compared with the CPU on random shapes: the kernels
 * for this GPU and the portable ones, lengths from one slot to several thousand, graphs, padding,
 * and the guarantees about equal bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/attend_lists.h"
#include "tests/lib/attn_case.h"
#include "tests/lib/fp8_pool.h"
#include "tests/lib/op_cases.h"

/* Relative to a row's length. Weights and results are rounded to bf16, at most 2^-9 each. */
#define TOLERANCE 8e-3
/* A prefill of rows in eight bits on Hopper, of at most so many dimensions, rounds keys and values,
 * too. In double, with these four roundings, the worst row of the cases is off by 9.8e-3. */
enum { COPY_DIM = 128 };
#define COPY_TOLERANCE 12e-3

static size_t row_elems(const paged_batch *b) { return (size_t)b->n_heads * b->layout.head_dim; }

static op_tensor draw_queries(op_env *e, const paged_batch *b)
{
    const size_t n = b->view.n_tokens * row_elems(b);
    float *values = cn_calloc(n, sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = 4 * test_rng_uniform(&e->rng);
    op_tensor t = op_floats(e, values, n, CN_BF16);
    cn_free(values);
    return t;
}

/* Puts the rows of the pool on both sides in eight bits, with the same bytes. */
static void store_fp8(op_env *e, attn_case *c)
{
    fp8_pool pool = fp8_pool_make(&c->b->layout, c->b->kv);
    c->kv = op_words(e, pool.kv, cn_kv_pool_bytes(&pool.layout) / sizeof(uint32_t));
    c->cpu.kv = c->kv.cpu;
    c->cuda.kv = c->kv.cuda;
    c->cpu.layout = c->cuda.layout = pool.layout;
    c->cuda.layout.act_dtype = CN_BF16;
    fp8_pool_free(&pool);
}

/* Opens a case on the last layer. The arguments point into *c. */
static void open_case(op_env *e, attn_case *c, const paged_shape *s)
{
    attn_case_draw(e, c, s);
    const paged_batch *b = c->b;
    if (!e->fp8) c->kv = op_floats(e, b->kv, cn_kv_pool_elems(&b->layout), CN_BF16);
    c->q = draw_queries(e, b);
    c->out = op_poison(e, b->view.n_tokens * row_elems(b), CN_BF16);
    attn_case_set_args(c, s, 1.0f / sqrtf((float)s->head_dim));
    if (e->fp8) store_fp8(e, c);
    snprintf(e->shape, sizeof e->shape, "d=%u block=%u heads=%u/%u %u seqs, %u decode, up to %u",
             s->head_dim, s->block_tokens, s->n_heads, s->n_kv_heads, s->n_seqs, s->n_decode,
             b->view.max_kv);
}

/* Runs both ops on the GPU into poisoned results. Free the copy with cn_free. */
static uint16_t *run_on_gpu(op_env *e, const attn_case *c, const op_tensor *poison)
{
    cn_attn_args a = c->cuda;
    a.out = poison->cuda;
    OP_OK(e->cuda->attn_decode(e->cuda_stream, &a));
    OP_OK(e->cuda->attn_prefill(e->cuda_stream, &a));
    return op_take(e, poison);
}

/* Returns n elements of a tensor from `from` on. */
static op_tensor part_of(const op_tensor *t, size_t from, size_t n)
{
    return (op_tensor){n, t->dtype, (float *)t->cpu + from, (uint16_t *)t->cuda + from};
}

/* Returns the worst error. Errors of rows that may be off by COPY_TOLERANCE are reduced in the
 * ratio of the two tolerances. */
static double rows_error(op_env *e, const attn_case *c, const paged_shape *s)
{
    const bool is_copied = e->fp8 && !e->portable && s->head_dim <= COPY_DIM;
    const size_t n = s->n_decode * row_elems(c->b);
    const op_tensor decode = part_of(&c->out, 0, n), prefill = part_of(&c->out, n, c->out.n - n);
    const double one = op_rows_error(e, &decode, s->head_dim);
    const double some = op_rows_error(e, &prefill, s->head_dim);
    return fmax(one, is_copied ? some * (TOLERANCE / COPY_TOLERANCE) : some);
}

/* Runs both ops on both sides, twice on the GPU with the same bits. */
static double compare(op_env *e, const paged_shape *s)
{
    attn_case c;
    open_case(e, &c, s);
    op_tensor more = op_poison(e, c.out.n, CN_BF16);
    OP_OK(e->cpu->attn_decode(e->cpu_stream, &c.cpu));
    OP_OK(e->cpu->attn_prefill(e->cpu_stream, &c.cpu));
    uint16_t *got = run_on_gpu(e, &c, &c.out), *again = run_on_gpu(e, &c, &more);
    assert_memory_equal(got, again, c.out.n * sizeof *got);
    const double error = rows_error(e, &c, s);
    cn_free(again);
    cn_free(got);
    op_tensor_free(e, &more);
    attn_case_close(e, &c);
    return error;
}

/* ---- shapes ---- */

static const uint32_t DIMS[] = {16, 64, 80, 96, 112, 128, 192, 256};
enum { N_DIMS = sizeof DIMS / sizeof *DIMS, MOST_GROUP = 9, DIMS_CASES = N_DIMS * MOST_GROUP };

static paged_shape draw_shape(op_env *e)
{
    static const paged_limits most = {.dims = DIMS,
                                      .n_dims = N_DIMS,
                                      .most_seqs = 6,
                                      .most_blocks = 4,
                                      .most_edges = 3,
                                      .most_q = 200};
    return paged_shape_draw(&e->rng, &most);
}

static double run_drawn(op_env *e, uint32_t seed)
{
    (void)seed;
    const paged_shape s = draw_shape(e);
    return compare(e, &s);
}

/* Every head_dim with every group, one pair per seed: together they select the kernel and its rows.
 * Groups come in the order 1, 5, 9, 4, ..., so that a few seeds cover small and large ones. */
static double run_dims(op_env *e, uint32_t seed)
{
    const uint32_t group = 1 + seed / N_DIMS * 4 % MOST_GROUP;
    const paged_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .n_heads = 2 * group,
                           .head_dim = DIMS[seed % N_DIMS],
                           .block_tokens = 64,
                           .n_seqs = 3,
                           .n_decode = 2,
                           .n_q = {1, 1, 150},
                           .kv_len = {1, 333, 400}};
    return compare(e, &s);
}

/* Sequences that are split over many blocks of the grid, next to short ones; long prefills after a
 * prefix. */
static const paged_shape LONG_SHAPES[] = {
    {.n_layers = 2,
     .n_heads = 32,
     .n_kv_heads = 8,
     .head_dim = 128,
     .block_tokens = 256,
     .n_seqs = 1,
     .n_decode = 1,
     .n_q = {1},
     .kv_len = {4097}},
    {.n_layers = 1,
     .n_heads = 8,
     .n_kv_heads = 1,
     .head_dim = 128,
     .block_tokens = 16,
     .n_seqs = 5,
     .n_decode = 5,
     .n_q = {1, 1, 1, 1, 1},
     .kv_len = {9000, 1, 2049, 64, 700}},
    {.n_layers = 2,
     .n_heads = 7,
     .n_kv_heads = 1,
     .head_dim = 64,
     .block_tokens = 128,
     .n_seqs = 3,
     .n_decode = 3,
     .n_q = {1, 1, 1},
     .kv_len = {12345, 12, 6000}},
    {.n_layers = 1,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 256,
     .block_tokens = 64,
     .n_seqs = 2,
     .n_decode = 1,
     .n_q = {1, 300},
     .kv_len = {3000, 1300}},
    {.n_layers = 2,
     .n_heads = 12,
     .n_kv_heads = 2,
     .head_dim = 128,
     .block_tokens = 256,
     .n_seqs = 3,
     .n_decode = 1,
     .n_q = {1, 700, 515},
     .kv_len = {600, 700, 1500}},
    {.n_layers = 1,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 64,
     .block_tokens = 32,
     .n_seqs = 2,
     .n_decode = 0,
     .n_q = {1000, 33},
     .kv_len = {1111, 2000}},
};

enum { N_LONG_SHAPES = sizeof LONG_SHAPES / sizeof *LONG_SHAPES };

static double run_long(op_env *e, uint32_t seed) { return compare(e, &LONG_SHAPES[seed]); }

/* ---- sparse ---- */

typedef struct slot_lists {
    op_tensor index, list_len, tail, lengths;
    uint32_t stride;
} slot_lists;

/* Draws for each decode sequence and kv head some of its slots in random order, and for each
 * sequence a tail; sometimes all slots, one or none. The first n_alike sequences get half of their
 * slots and a short tail. */
static slot_lists draw_lists(op_env *e, const paged_batch *b, uint32_t n_alike)
{
    const uint32_t n_kv_heads = b->layout.n_kv_heads, n = b->view.n_decode;
    slot_lists l = {.stride = b->view.max_kv};
    uint32_t *index = cn_calloc((size_t)n * n_kv_heads * l.stride, sizeof *index);
    uint32_t list_len[PAGED_MAX_SEQS], tail[PAGED_MAX_SEQS], lengths[PAGED_MAX_SEQS];
    for (uint32_t i = 0; i < n * n_kv_heads; i++) {
        uint32_t *list = index + (size_t)i * l.stride;
        for (uint32_t j = 0; j < b->kv_len[i / n_kv_heads]; j++) {
            const uint32_t other = test_rng_below(&e->rng, j + 1);
            list[j] = list[other];
            list[other] = j;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t len = b->kv_len[i], kind = test_rng_below(&e->rng, 6);
        list_len[i] = kind == 0 ? len : kind == 1 ? 1 : test_rng_below(&e->rng, len + 1);
        tail[i] = kind < 2 ? len : test_rng_below(&e->rng, len);
        if (i < n_alike) {
            list_len[i] = len / 2;
            tail[i] = len - 17;
        }
        lengths[i] = kind == 2 && i >= n_alike ? 0 : list_len[i] + len - tail[i];
    }
    l.index = op_words(e, index, (size_t)n * n_kv_heads * l.stride);
    l.list_len = op_words(e, list_len, n);
    l.tail = op_words(e, tail, n);
    l.lengths = op_words(e, lengths, n);
    cn_free(index);
    return l;
}

static void free_lists(op_env *e, slot_lists *l)
{
    op_tensor_free(e, &l->index);
    op_tensor_free(e, &l->list_len);
    op_tensor_free(e, &l->tail);
    op_tensor_free(e, &l->lengths);
}

/* Replaces the poison of the results, on both sides, by `value`. */
static void fill_results(op_env *e, attn_case *c, float value)
{
    const size_t n = c->out.n;
    float *values = cn_calloc(n, sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = value;
    op_tensor_free(e, &c->out);
    c->out = op_floats(e, values, n, CN_BF16);
    c->cpu.out = c->out.cpu;
    c->cuda.out = c->out.cuda;
    cn_free(values);
}

static double compare_lists(op_env *e, const paged_shape *s, uint32_t n_alike)
{
    attn_case c;
    open_case(e, &c, s);
    fill_results(e, &c, 3); /* both sides leave rows of length 0 alone */
    slot_lists l = draw_lists(e, c.b, n_alike);
    const attend_lists cpu = {l.index.cpu, l.stride, l.list_len.cpu, l.tail.cpu, l.lengths.cpu};
    const attend_lists cuda = {l.index.cuda, l.stride, l.list_len.cuda, l.tail.cuda,
                               l.lengths.cuda};
    OP_OK(attend_to_lists(e->cpu, e->cpu_stream, &c.cpu, &cpu));
    OP_OK(attend_to_lists(e->cuda, e->cuda_stream, &c.cuda, &cuda));
    const double error = op_rows_error(e, &c.out, s->head_dim);
    free_lists(e, &l);
    attn_case_close(e, &c);
    return error;
}

static double run_lists(op_env *e, uint32_t seed)
{
    paged_shape s = draw_shape(e);
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        if (seed % 4 == 0) s.kv_len[i] += test_rng_below(&e->rng, 2000);
    }
    return compare_lists(e, &s, 0);
}

/* Many long lists of the same length, so that each block uses each stage of its ring several times.
 * A block has few stages if head_dim is large. In each third case the last list differs. */
static double run_long_lists(op_env *e, uint32_t seed)
{
    paged_shape s = {.n_layers = 2,
                     .n_kv_heads = 8,
                     .n_heads = 8 * (1 + seed % MOST_GROUP),
                     .head_dim = DIMS[seed % 2 ? N_DIMS - 1 - seed / 2 % 2 : seed / 2 % N_DIMS],
                     .block_tokens = 64,
                     .n_seqs = 8,
                     .n_decode = 8};
    const uint32_t len = 1500 + test_rng_below(&e->rng, 1500);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = len;
    }
    return compare_lists(e, &s, s.n_seqs - (seed % 3 == 2));
}

/* ---- graphs and padding ---- */

/* Compares the row of each present sequence with the CPU's result for that sequence alone. The
 * rows of the others must still be poison. */
static double decode_error(op_env *e, const attn_case *c, const uint32_t *lengths, const float *got)
{
    const paged_batch *b = c->b;
    const size_t row = row_elems(b);
    const uint32_t d = b->layout.head_dim, q_start[2] = {0, 1};
    float *want = cn_calloc(row, sizeof *want);
    double worst = 0;
    for (uint32_t i = 0; i < b->view.n_seqs; i++) {
        if (lengths[i] == 0 && !isnan(got[i * row])) worst = INFINITY;
        if (lengths[i] == 0) continue;
        cn_batch_view one = b->view;
        one.n_seqs = one.n_decode = one.n_tokens = 1;
        one.q_start = q_start;
        one.kv_len = lengths + i;
        one.tables = b->tables + (size_t)i * b->view.table_stride;
        cn_attn_args a = c->cpu;
        a.batch = &one;
        a.q = (const float *)c->q.cpu + i * row;
        a.out = want;
        OP_OK(e->cpu->attn_decode(e->cpu_stream, &a));
        for (uint32_t h = 0; h < b->n_heads; h++)
            worst = fmax(worst, op_row_error_of(got + i * row + h * d, want + h * d, d));
    }
    cn_free(want);
    return worst;
}

/* One graph, and lengths that change only on the GPU: kv_len, where 0 marks padding, in any row, or
 * lengths beside it. */
static double run_graph(op_env *e, uint32_t seed)
{
    static const uint32_t lengths[][6] = {{3000, 3000, 3000, 3000, 3000, 3000},
                                          {1, 0, 2999, 64, 65, 0},
                                          {0, 0, 0, 0, 0, 3000},
                                          {0, 0, 0, 0, 0, 0},
                                          {7, 0, 0, 1500, 0, 128}};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = 128,
                     .block_tokens = 64,
                     .n_seqs = 6,
                     .n_decode = 6,
                     .n_q = {1, 1, 1, 1, 1, 1}};
    memcpy(s.kv_len, lengths[0], sizeof lengths[0]);
    attn_case c;
    open_case(e, &c, &s);
    op_tensor kv_len = op_words(e, lengths[0], 6);
    if (seed == 0)
        c.batch.view.kv_len = kv_len.cuda;
    else
        c.cuda.lengths = kv_len.cuda;
    float *got = cn_calloc(c.out.n, sizeof *got);
    double worst = 0;
    cn_graph *graph = NULL;
    OP_OK(e->cuda->graph_begin(e->cuda_stream));
    OP_OK(e->cuda->attn_decode(e->cuda_stream, &c.cuda));
    OP_OK(e->cuda->graph_end(e->cuda_stream, &graph));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(kv_len.cpu, lengths[i], sizeof lengths[i]);
        op_send(e, &kv_len);
        op_send(e, &c.out); /* poison; the CPU writes to another array */
        OP_OK(e->cuda->graph_launch(e->cuda_stream, graph));
        op_read(e, &c.out, got);
        worst = fmax(worst, decode_error(e, &c, lengths[i], got));
    }
    e->cuda->graph_free(graph);
    cn_free(got);
    op_tensor_free(e, &kv_len);
    attn_case_close(e, &c);
    return worst;
}

/* ---- bits ---- */

/* Under batch_invariant a decode row has the same bits alone and in a batch. */
static double run_alone(op_env *e, uint32_t seed)
{
    (void)seed;
    const paged_shape s = {.n_layers = 1,
                           .n_heads = 32,
                           .n_kv_heads = 8,
                           .head_dim = 128,
                           .block_tokens = 64,
                           .n_seqs = 6,
                           .n_decode = 6,
                           .n_q = {1, 1, 1, 1, 1, 1},
                           .kv_len = {5000, 100, 2048, 2049, 3, 9999}};
    attn_case c;
    open_case(e, &c, &s);
    const size_t row = row_elems(c.b);
    uint16_t *together = run_on_gpu(e, &c, &c.out);
    const cn_batch_view all = c.batch.view;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        c.batch.view.n_seqs = c.batch.view.n_decode = c.batch.view.n_tokens = 1;
        c.batch.view.kv_len = all.kv_len + i;
        c.batch.view.tables = all.tables + (size_t)i * all.table_stride;
        c.cuda.q = (const uint16_t *)c.q.cuda + i * row;
        op_send(e, &c.out);
        uint16_t *alone = run_on_gpu(e, &c, &c.out);
        assert_memory_equal(alone, together + i * row, row * sizeof *alone);
        cn_free(alone);
    }
    cn_free(together);
    attn_case_close(e, &c);
    return 0;
}

/* A prompt row has the same bits in any chunk. The copy of eight kv heads takes turns (open_cuda),
 * and that of a short chunk does not. */
static double run_chunks(op_env *e, uint32_t seed)
{
    enum { LEN = 391 };
    const uint32_t n_kv_heads = seed == 0 ? 2 : 8;
    static const uint32_t cuts[] = {0, 1, 65, 66, 200, 328, LEN};
    const paged_shape s = {.n_layers = 1,
                           .n_heads = 5 * n_kv_heads,
                           .n_kv_heads = n_kv_heads,
                           .head_dim = 128,
                           .block_tokens = 64,
                           .n_seqs = 1,
                           .n_q = {LEN},
                           .kv_len = {LEN}};
    attn_case c;
    open_case(e, &c, &s);
    const size_t row = row_elems(c.b);
    uint16_t *whole = run_on_gpu(e, &c, &c.out);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
        const uint32_t n_q = cuts[i + 1] - cuts[i], words[] = {0, n_q, cuts[i + 1]};
        op_tensor chunk = op_words(e, words, 3); /* q_start, kv_len */
        c.batch.view.q_start = chunk.cuda;
        c.batch.view.kv_len = (const uint32_t *)chunk.cuda + 2;
        c.batch.view.n_tokens = c.batch.view.max_q = n_q;
        c.batch.view.max_prefill_kv = cuts[i + 1];
        c.cuda.q = (const uint16_t *)c.q.cuda + cuts[i] * row;
        op_send(e, &c.out);
        uint16_t *part = run_on_gpu(e, &c, &c.out);
        assert_memory_equal(part, whole + cuts[i] * row, n_q * row * sizeof *part);
        cn_free(part);
        op_tensor_free(e, &chunk);
    }
    cn_free(whole);
    attn_case_close(e, &c);
    return 0;
}

static double run_refusals(op_env *e, uint32_t seed)
{
    (void)seed;
    const cn_batch_view view = {.n_tokens = 1, .n_seqs = 1, .n_decode = 1};
    cn_attn_args a = {
        .batch = &view, .layout = cn_kv_layout_make(1, 1, 2, 64, 264, CN_BF16), .n_heads = 4};
    assert_int_equal(e->cuda->attn_decode(e->cuda_stream, &a), CN_ERR_SHAPE);
    a.layout = cn_kv_layout_make(1, 1, 2, 64, 72, CN_BF16);
    assert_int_equal(e->cuda->attn_prefill(e->cuda_stream, &a), CN_ERR_SHAPE);
    a.layout = cn_kv_layout_make(1, 1, 2, 64, 64, CN_BF16);
    a.n_heads = 3;
    assert_int_equal(e->cuda->attn_decode(e->cuda_stream, &a), CN_ERR_SHAPE);
    return 0;
}

int main(int argc, char **argv)
{
    static const op_case cases[] = {
        {"attn", 60, TOLERANCE, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, dims", DIMS_CASES, TOLERANCE, run_dims, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, long", N_LONG_SHAPES, TOLERANCE, run_long, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, sparse", 60, TOLERANCE, run_lists, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, long lists", 24, TOLERANCE, run_long_lists, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, graph", 2, TOLERANCE, run_graph, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, chunks", 2, 0, run_chunks, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"attn, alone", 1, 0, run_alone, .batch_invariant = true},
        {"attn, fp8", 60, TOLERANCE, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"attn, fp8, dims", DIMS_CASES, TOLERANCE, run_dims, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"attn, fp8, long", N_LONG_SHAPES, TOLERANCE, run_long, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"attn, fp8, sparse", 60, TOLERANCE, run_lists, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"attn, fp8, long lists", 24, TOLERANCE, run_long_lists, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"attn, fp8, graph", 2, TOLERANCE, run_graph, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"attn, fp8, chunks", 2, 0, run_chunks, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"attn, fp8, alone", 1, 0, run_alone, .batch_invariant = true, .fp8 = true},
        {"attn, fp8, portable", 60, TOLERANCE, run_drawn, .portable = true, .fp8 = true},
        {"attn, fp8, portable, sparse", 30, TOLERANCE, run_lists, .portable = true, .fp8 = true},
        {"attn, portable", 60, TOLERANCE, run_drawn, .portable = true},
        {"attn, portable, dims", DIMS_CASES, TOLERANCE, run_dims, .portable = true},
        {"attn, portable, long", N_LONG_SHAPES, TOLERANCE, run_long, .portable = true},
        {"attn, portable, sparse", 60, TOLERANCE, run_lists, .portable = true},
        {"attn, portable, long lists", 6, TOLERANCE, run_long_lists, .portable = true},
        {"attn, portable, chunks", 2, 0, run_chunks, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
