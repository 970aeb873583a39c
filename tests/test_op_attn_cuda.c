/* test_op_attn_cuda.c - attention on the GPU against its CPU twin, on shapes drawn by seed: both
 * kinds of kernels (this GPU's own, and the portable ones), lengths from one slot to several
 * thousand, graphs, padding, and the promises about bits. Skipped where no GPU backend opens. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/backend.h"
#include "engine/base.h"
#include "tests/lib/bf16.h"
#include "tests/lib/paged_batch.h"

/* Of a row's length. Weights and results are rounded to bf16: 2^-9 each at most, less together. */
static const double TOLERANCE = 8e-3;

/* Shapes drawn by each test: fewer when the program is given a number (sanitizers are slow). */
static uint64_t n_seeds = 60;

/* NULL without a GPU. */
static cn_backend *open_cuda(bool portable, bool batch_invariant)
{
    cn_backend *be = NULL;
    cn_cuda_backend_opts o = {.memory_bytes = (uint64_t)1 << 30,
                              .portable = portable,
                              .n_heads = 64,
                              .max_seqs = PAGED_MAX_SEQS,
                              .batch_invariant = batch_invariant};
    return cn_backend_cuda_load(&be, o) == CN_OK ? be : NULL;
}

static cn_backend *open_cpu(void)
{
    cn_backend *be = NULL;
    assert_int_equal(cn_backend_cpu_open(&be, &(cn_cpu_backend_opts){0}), CN_OK);
    return be;
}

static void round_to_bf16(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = from_bf16(to_bf16(p[i]));
}

/* Runs a check with this GPU's own kernels and with the portable ones; skips without a GPU. */
static void each_kind_of_kernels(void (*check)(cn_backend *cuda, cn_backend *cpu,
                                               const char *kernels))
{
    for (int portable = 0; portable < 2; portable++) {
        cn_backend *cuda = open_cuda(portable, false);
        if (!cuda) skip();
        cn_backend *cpu = open_cpu();
        check(cuda, cpu, portable ? "portable" : "own");
        cuda->close(cuda);
        cpu->close(cpu);
    }
}

/* ---- a batch on the device ---- */

enum { MAX_OWNED = 24 };

typedef struct device_batch {
    cn_backend *be;
    cn_stream *stream;
    cn_batch_view view;
    cn_attn_args args;
    void *owned[MAX_OWNED];
    uint32_t n_owned;
} device_batch;

static void *device_alloc(device_batch *d, size_t bytes)
{
    void *p = NULL;
    assert_true(d->n_owned < MAX_OWNED);
    assert_int_equal(d->be->mem_alloc(d->be, bytes ? bytes : 4, &p), CN_OK);
    d->owned[d->n_owned++] = p;
    return p;
}

static void *device_copy(device_batch *d, const void *host, size_t bytes)
{
    void *p = device_alloc(d, bytes);
    assert_int_equal(d->be->mem_write(d->stream, p, host, bytes), CN_OK);
    return p;
}

static void *device_bf16(device_batch *d, const float *host, size_t n)
{
    uint16_t *half = cn_calloc(n, sizeof *half);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(host[i]);
    void *p = device_copy(d, half, n * sizeof *half);
    cn_free(half);
    return p;
}

static size_t out_elems(const paged_batch *b)
{
    return (size_t)b->view.n_tokens * b->n_heads * b->layout.head_dim;
}

static cn_attn_args host_args(const paged_batch *b, const float *q, float *out, uint32_t layer)
{
    return (cn_attn_args){.out = out,
                          .q = q,
                          .kv = b->kv,
                          .batch = &b->view,
                          .layout = b->layout,
                          .n_heads = b->n_heads,
                          .layer = layer,
                          .scale = 1.0f / sqrtf((float)b->layout.head_dim)};
}

static device_batch *upload(cn_backend *be, const paged_batch *b, const float *q, uint32_t layer)
{
    device_batch *d = cn_calloc(1, sizeof *d);
    d->be = be;
    d->stream = be->stream(be, 0);
    d->view = b->view;
    d->view.q_start = device_copy(d, b->q_start, (b->view.n_seqs + 1) * sizeof *b->q_start);
    d->view.kv_len = device_copy(d, b->kv_len, b->view.n_seqs * sizeof *b->kv_len);
    d->view.tables = device_copy(d, b->tables,
                                 (size_t)b->view.n_seqs * b->view.table_stride * sizeof *b->tables);
    d->args = host_args(b, NULL, NULL, layer);
    d->args.batch = &d->view;
    d->args.kv = device_bf16(d, b->kv, cn_kv_pool_elems(&b->layout));
    d->args.q = device_bf16(d, q, out_elems(b));
    d->args.out = device_alloc(d, out_elems(b) * sizeof(uint16_t));
    return d;
}

static void release(device_batch *d)
{
    assert_int_equal(d->be->stream_sync(d->stream), CN_OK);
    for (uint32_t i = 0; i < d->n_owned; i++) d->be->mem_free(d->be, d->owned[i]);
    cn_free(d);
}

/* Every element of out becomes a NaN that no kernel writes. */
static void poison(device_batch *d, size_t n)
{
    uint16_t *half = cn_calloc(n, sizeof *half);
    memset(half, 0xff, n * sizeof *half);
    assert_int_equal(d->be->mem_write(d->stream, d->args.out, half, n * sizeof *half), CN_OK);
    cn_free(half);
}

static uint16_t *download(device_batch *d, size_t n)
{
    uint16_t *half = cn_calloc(n, sizeof *half);
    assert_int_equal(d->be->mem_read(d->stream, half, d->args.out, n * sizeof *half), CN_OK);
    assert_int_equal(d->be->stream_sync(d->stream), CN_OK);
    return half;
}

static uint16_t *run_on_device(device_batch *d, size_t n)
{
    poison(d, n);
    assert_int_equal(d->be->attn_decode(d->stream, &d->args), CN_OK);
    assert_int_equal(d->be->attn_prefill(d->stream, &d->args), CN_OK);
    return download(d, n);
}

/* ---- comparing ---- */

static void check_rows(const uint16_t *got, const float *want, size_t n_rows, uint32_t d,
                       const char *what, uint64_t seed)
{
    for (size_t r = 0; r < n_rows; r++) {
        double diff = 0, norm = 0;
        for (uint32_t i = 0; i < d; i++) {
            double g = (double)from_bf16(got[r * d + i]), w = (double)want[r * d + i];
            diff += (g - w) * (g - w);
            norm += w * w;
        }
        if (!(sqrt(diff) <= TOLERANCE * sqrt(norm)))
            fail_msg("%s, seed %llu: row %zu is off by %.3g of %.3g", what,
                     (unsigned long long)seed, r, sqrt(diff), sqrt(norm));
    }
}

static float *draw_queries(test_rng *r, const paged_batch *b)
{
    float *q = cn_calloc(out_elems(b), sizeof *q);
    for (size_t i = 0; i < out_elems(b); i++) q[i] = 4 * test_rng_uniform(r);
    round_to_bf16(q, out_elems(b));
    return q;
}

static paged_batch *draw_batch(const paged_shape *s, test_rng *r)
{
    paged_batch *b = paged_batch_create(s, r);
    round_to_bf16(b->kv, cn_kv_pool_elems(&b->layout));
    return b;
}

/* The device's result of a batch against the CPU's. */
static void compare(cn_backend *cuda, cn_backend *cpu, const paged_shape *s, test_rng *r,
                    const char *what)
{
    uint64_t seed = r->state;
    paged_batch *b = draw_batch(s, r);
    float *q = draw_queries(r, b), *want = cn_calloc(out_elems(b), sizeof *want);
    uint32_t layer = s->n_layers - 1;
    cn_attn_args a = host_args(b, q, want, layer);
    assert_int_equal(cpu->attn_decode(cpu->stream(cpu, 0), &a), CN_OK);
    assert_int_equal(cpu->attn_prefill(cpu->stream(cpu, 0), &a), CN_OK);
    device_batch *d = upload(cuda, b, q, layer);
    uint16_t *got = run_on_device(d, out_elems(b));
    check_rows(got, want, (size_t)b->view.n_tokens * b->n_heads, s->head_dim, what, seed);
    uint16_t *again = run_on_device(d, out_elems(b));
    assert_memory_equal(got, again, out_elems(b) * sizeof *got);
    cn_free(again);
    cn_free(got);
    release(d);
    cn_free(want);
    cn_free(q);
    paged_batch_free(b);
}

static const uint32_t DIMS[] = {16, 64, 80, 96, 112, 128, 192, 256};
static const uint32_t BLOCKS[] = {16, 32, 64, 128, 256};

/* Lengths around block edges half of the time. */
static paged_shape draw_shape(test_rng *r)
{
    paged_shape s = {.n_layers = 2};
    s.head_dim = DIMS[test_rng_below(r, 8)];
    s.block_tokens = BLOCKS[test_rng_below(r, 5)];
    s.n_kv_heads = 1 + test_rng_below(r, 3);
    s.n_heads = s.n_kv_heads * (1 + test_rng_below(r, 8));
    s.n_seqs = 1 + test_rng_below(r, 6);
    s.n_decode = test_rng_below(r, s.n_seqs + 1);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        uint32_t len = 1 + test_rng_below(r, 4) * s.block_tokens + test_rng_below(r, 40);
        if (test_rng_below(r, 2))
            len = s.block_tokens * (1 + test_rng_below(r, 3)) - 1 + test_rng_below(r, 3);
        s.kv_len[i] = len;
        s.n_q[i] = i < s.n_decode ? 1 : 1 + test_rng_below(r, cn_min_u32(len, 200));
    }
    return s;
}

static void check_drawn(cn_backend *cuda, cn_backend *cpu, const char *kernels)
{
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        test_rng r = {seed};
        paged_shape s = draw_shape(&r);
        compare(cuda, cpu, &s, &r, kernels);
    }
}

static void drawn_shapes_agree_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_drawn);
}

/* Every head_dim with every group, which picks the kernel and its rows. */
static void check_dims_and_groups(cn_backend *cuda, cn_backend *cpu, const char *kernels)
{
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t group = 1; group <= 9; group += n_seeds < 60 ? 3 : 1) {
            test_rng r = {i * 100 + group};
            paged_shape s = {.n_layers = 1,
                             .n_kv_heads = 2,
                             .n_heads = 2 * group,
                             .head_dim = DIMS[i],
                             .block_tokens = 64,
                             .n_seqs = 3,
                             .n_decode = 2,
                             .n_q = {1, 1, 150},
                             .kv_len = {1, 333, 400}};
            compare(cuda, cpu, &s, &r, kernels);
        }
}

static void every_head_dim_and_group_agrees(void **state)
{
    (void)state;
    each_kind_of_kernels(check_dims_and_groups);
}

/* Sequences cut over many blocks of the grid, beside short ones; long prefills over a prefix. */
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

static void check_long(cn_backend *cuda, cn_backend *cpu, const char *kernels)
{
    for (uint32_t i = 0; i < sizeof LONG_SHAPES / sizeof *LONG_SHAPES; i++) {
        test_rng r = {1000 + i};
        compare(cuda, cpu, &LONG_SHAPES[i], &r, kernels);
    }
}

static void long_sequences_agree(void **state)
{
    (void)state;
    each_kind_of_kernels(check_long);
}

/* ---- sparse ---- */

typedef struct slot_lists {
    uint32_t *index, *n_index, stride, n_lists;
} slot_lists;

/* Per decode sequence and kv head, some of its slots in random order; sometimes all or one. */
static slot_lists draw_lists(const paged_batch *b, test_rng *r)
{
    slot_lists l = {.stride = b->view.max_kv, .n_lists = b->view.n_decode * b->layout.n_kv_heads};
    l.index = cn_calloc((size_t)l.n_lists * l.stride, sizeof *l.index);
    l.n_index = cn_calloc(l.n_lists, sizeof *l.n_index);
    for (uint32_t i = 0; i < l.n_lists; i++) {
        uint32_t n = b->kv_len[i / b->layout.n_kv_heads];
        uint32_t *list = l.index + (size_t)i * l.stride;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t other = test_rng_below(r, j + 1);
            list[j] = list[other];
            list[other] = j;
        }
        uint32_t kind = test_rng_below(r, 4);
        l.n_index[i] = kind == 0 ? n : kind == 1 ? 1 : 1 + test_rng_below(r, n);
    }
    return l;
}

static void compare_sparse(cn_backend *cuda, cn_backend *cpu, const paged_shape *s, uint64_t seed,
                           const char *kernels)
{
    test_rng r = {seed};
    paged_batch *b = draw_batch(s, &r);
    float *q = draw_queries(&r, b), *want = cn_calloc(out_elems(b), sizeof *want);
    slot_lists l = draw_lists(b, &r);
    cn_attn_sparse_args a = {.attn = host_args(b, q, want, 0),
                             .index = l.index,
                             .n_index = l.n_index,
                             .index_stride = l.stride};
    assert_int_equal(cpu->attn_sparse(cpu->stream(cpu, 0), &a), CN_OK);
    device_batch *d = upload(cuda, b, q, 0);
    cn_attn_sparse_args on_device = a;
    on_device.attn = d->args;
    on_device.index = device_copy(d, l.index, (size_t)l.n_lists * l.stride * sizeof *l.index);
    on_device.n_index = device_copy(d, l.n_index, l.n_lists * sizeof *l.n_index);
    poison(d, out_elems(b));
    assert_int_equal(cuda->attn_sparse(d->stream, &on_device), CN_OK);
    uint16_t *got = download(d, out_elems(b));
    check_rows(got, want, (size_t)b->view.n_decode * b->n_heads, s->head_dim, kernels, seed);
    cn_free(got);
    release(d);
    cn_free(l.index);
    cn_free(l.n_index);
    cn_free(want);
    cn_free(q);
    paged_batch_free(b);
}

static void check_lists(cn_backend *cuda, cn_backend *cpu, const char *kernels)
{
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        test_rng r = {seed};
        paged_shape s = draw_shape(&r);
        s.n_decode = s.n_seqs;
        for (uint32_t i = 0; i < s.n_seqs; i++) {
            s.n_q[i] = 1;
            if (seed % 4 == 0) s.kv_len[i] += test_rng_below(&r, 2000);
        }
        compare_sparse(cuda, cpu, &s, seed, kernels);
    }
}

static void lists_of_slots_agree_with_the_cpu(void **state)
{
    (void)state;
    each_kind_of_kernels(check_lists);
}

/* ---- graphs and padding ---- */

static void check_decode_rows(const paged_batch *b, const uint16_t *got, const float *q,
                              cn_backend *cpu, const char *what)
{
    float *want = cn_calloc(out_elems(b), sizeof *want);
    for (uint32_t i = 0; i < b->view.n_seqs; i++) {
        if (b->kv_len[i] == 0) continue;
        size_t at = (size_t)i * b->n_heads * b->layout.head_dim;
        cn_batch_view one = b->view;
        uint32_t q_start[2] = {0, 1};
        one.n_seqs = one.n_decode = one.n_tokens = 1;
        one.q_start = q_start;
        one.kv_len = b->kv_len + i;
        one.tables = b->tables + (size_t)i * b->view.table_stride;
        cn_attn_args a = host_args(b, q + at, want + at, 0);
        a.batch = &one;
        assert_int_equal(cpu->attn_decode(cpu->stream(cpu, 0), &a), CN_OK);
        check_rows(got + at, want + at, b->n_heads, b->layout.head_dim, what, i);
    }
    cn_free(want);
}

/* One graph, lengths that change on the device alone; 0 marks padding, wherever it stands. */
static void a_graph_serves_any_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[][6] = {{3000, 3000, 3000, 3000, 3000, 3000},
                                          {1, 0, 2999, 64, 65, 0},
                                          {0, 0, 0, 0, 0, 3000},
                                          {0, 0, 0, 0, 0, 0},
                                          {7, 0, 0, 1500, 0, 128}};
    cn_backend *cuda = open_cuda(false, false);
    if (!cuda) skip();
    cn_backend *cpu = open_cpu();
    paged_shape s = {.n_layers = 1,
                     .n_heads = 8,
                     .n_kv_heads = 2,
                     .head_dim = 128,
                     .block_tokens = 64,
                     .n_seqs = 6,
                     .n_decode = 6,
                     .n_q = {1, 1, 1, 1, 1, 1}};
    memcpy(s.kv_len, lengths[0], sizeof lengths[0]);
    test_rng r = {5};
    paged_batch *b = draw_batch(&s, &r);
    float *q = draw_queries(&r, b);
    device_batch *d = upload(cuda, b, q, 0);
    cn_graph *graph = NULL;
    assert_int_equal(cuda->graph_begin(d->stream), CN_OK);
    assert_int_equal(cuda->attn_decode(d->stream, &d->args), CN_OK);
    assert_int_equal(cuda->graph_end(d->stream, &graph), CN_OK);
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(b->kv_len, lengths[i], sizeof lengths[i]);
        union {
            const uint32_t *in;
            void *out;
        } kv_len = {.in = d->view.kv_len};
        assert_int_equal(cuda->mem_write(d->stream, kv_len.out, lengths[i], sizeof lengths[i]),
                         CN_OK);
        poison(d, out_elems(b));
        assert_int_equal(cuda->graph_launch(d->stream, graph), CN_OK);
        uint16_t *got = download(d, out_elems(b));
        check_decode_rows(b, got, q, cpu, "graph");
        cn_free(got);
    }
    cuda->graph_free(graph);
    release(d);
    cn_free(q);
    paged_batch_free(b);
    cuda->close(cuda);
    cpu->close(cpu);
}

/* ---- bits ---- */

/* Under batch_invariant a decode row is the same alone as beside others. */
static void a_row_does_not_depend_on_its_batch(void **state)
{
    (void)state;
    cn_backend *cuda = open_cuda(false, true);
    if (!cuda) skip();
    paged_shape s = {.n_layers = 1,
                     .n_heads = 32,
                     .n_kv_heads = 8,
                     .head_dim = 128,
                     .block_tokens = 64,
                     .n_seqs = 6,
                     .n_decode = 6,
                     .n_q = {1, 1, 1, 1, 1, 1},
                     .kv_len = {5000, 100, 2048, 2049, 3, 9999}};
    test_rng r = {6};
    paged_batch *b = draw_batch(&s, &r);
    float *q = draw_queries(&r, b);
    device_batch *d = upload(cuda, b, q, 0);
    size_t row = (size_t)b->n_heads * s.head_dim;
    uint16_t *together = run_on_device(d, out_elems(b));
    cn_batch_view all = d->view;
    cn_attn_args args = d->args;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        d->view.n_seqs = d->view.n_decode = d->view.n_tokens = 1;
        d->view.kv_len = all.kv_len + i;
        d->view.tables = all.tables + (size_t)i * all.table_stride;
        d->args.q = (const uint16_t *)args.q + i * row;
        uint16_t *alone = run_on_device(d, row);
        assert_memory_equal(alone, together + i * row, row * sizeof *alone);
        cn_free(alone);
    }
    cn_free(together);
    release(d);
    cn_free(q);
    paged_batch_free(b);
    cuda->close(cuda);
}

/* A prompt row is the same whatever chunk it comes in. */
static void check_chunks(cn_backend *cuda, cn_backend *cpu, const char *kernels)
{
    (void)cpu, (void)kernels;
    enum { LEN = 391, DIM = 128 };
    static const uint32_t cuts[] = {0, 1, 65, 66, 200, 328, LEN};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 10,
                     .n_kv_heads = 2,
                     .head_dim = DIM,
                     .block_tokens = 64,
                     .n_seqs = 1,
                     .n_q = {LEN},
                     .kv_len = {LEN}};
    test_rng r = {8};
    paged_batch *b = draw_batch(&s, &r);
    float *q = draw_queries(&r, b);
    device_batch *d = upload(cuda, b, q, 0);
    uint16_t *whole = run_on_device(d, out_elems(b));
    const uint16_t *all_q = d->args.q;
    for (uint32_t c = 0; c + 1 < sizeof cuts / sizeof *cuts; c++) {
        uint32_t n_q = cuts[c + 1] - cuts[c], q_start[2] = {0, n_q};
        size_t at = (size_t)cuts[c] * s.n_heads * DIM, n = (size_t)n_q * s.n_heads * DIM;
        d->view.q_start = device_copy(d, q_start, sizeof q_start);
        d->view.kv_len = device_copy(d, &cuts[c + 1], sizeof *cuts);
        d->view.n_tokens = d->view.max_q = n_q;
        d->args.q = all_q + at;
        uint16_t *part = run_on_device(d, n);
        assert_memory_equal(part, whole + at, n * sizeof *part);
        cn_free(part);
    }
    cn_free(whole);
    release(d);
    cn_free(q);
    paged_batch_free(b);
}

static void a_row_does_not_depend_on_its_chunk(void **state)
{
    (void)state;
    each_kind_of_kernels(check_chunks);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    cn_backend *cuda = open_cuda(false, false);
    if (!cuda) skip();
    cn_batch_view view = {.n_tokens = 1, .n_seqs = 1, .n_decode = 1};
    cn_attn_args a = {.batch = &view, .layout = cn_kv_layout_make(1, 1, 2, 64, 264), .n_heads = 4};
    assert_int_equal(cuda->attn_decode(cuda->stream(cuda, 0), &a), CN_ERR_SHAPE);
    a.layout = cn_kv_layout_make(1, 1, 2, 64, 72);
    assert_int_equal(cuda->attn_prefill(cuda->stream(cuda, 0), &a), CN_ERR_SHAPE);
    a.layout = cn_kv_layout_make(1, 1, 2, 64, 64);
    a.n_heads = 3;
    assert_int_equal(cuda->attn_decode(cuda->stream(cuda, 0), &a), CN_ERR_SHAPE);
    cuda->close(cuda);
}

int main(int argc, char **argv)
{
    if (argc > 1 && (n_seeds = strtoull(argv[1], NULL, 10)) == 0) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_shapes_agree_with_the_cpu),
        cmocka_unit_test(every_head_dim_and_group_agrees),
        cmocka_unit_test(long_sequences_agree),
        cmocka_unit_test(lists_of_slots_agree_with_the_cpu),
        cmocka_unit_test(a_graph_serves_any_lengths),
        cmocka_unit_test(a_row_does_not_depend_on_its_batch),
        cmocka_unit_test(a_row_does_not_depend_on_its_chunk),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
