/* test_op_digest_cuda.c - digest and predict on the GPU compared with the CPU, on random shapes.
 * Digests must have the CPU's bits, and what the list does not name must not change. Predictions
 * have a tolerance: the GPU rounds them to bf16 and solves in f32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/bf16.h"
#include "tests/lib/fp8_pool.h"
#include "tests/lib/op_cases.h"

static const uint32_t DIMS[] = {64, 96, 128, 256, 16, 80};

/* ---- digest ---- */

enum { MAX_TILES = 1024, POISON = 0xa5 };

typedef struct digest_case {
    cn_pools pools; /* the CPU's side */
    op_tensor codes; /* the GPU's K and V in eight bits; n 0: plain */
    cn_kv_layout codes_layout;
    op_tensor kv, channels, offsets, labels, scales, bounds_16, bounds_64;
    bool has_labels, has_offsets, has_16, has_64;
    cn_digest_tile tiles[MAX_TILES];
    uint32_t n_tiles;
} digest_case;

/* Keys of all sizes: usual, zeros of both signs, beyond the largest f16 scale, and so small that
 * their scale is a subnormal f16 or 0. */
static void draw_keys(test_rng *r, const cn_kv_layout *l, float *kv)
{
    static const float sizes[] = {1, 1, 1, 20, 0, 3e37f, 1e6f, 1e-3f, 1e-6f, 1e-9f};
    const size_t n_rows = cn_kv_pool_elems(l) / l->head_dim;
    for (size_t row = 0; row < n_rows; row++) {
        float *k = kv + row * l->head_dim;
        const float size = sizes[test_rng_below(r, 10)];
        test_rng_fill(r, k, l->head_dim);
        for (uint32_t c = 0; c < l->head_dim; c++)
            k[c] *= test_rng_below(r, 16) ? size : 0.0f; /* keeps the sign of zeros */
    }
}

/* Each head has n_channels different channels. */
static op_tensor draw_channels(op_env *e, const cn_kv_layout *l, uint32_t n_channels)
{
    const uint32_t n_units = l->n_layers * l->n_kv_heads;
    uint8_t *channels = cn_calloc((size_t)n_units * n_channels, 1);
    for (uint32_t u = 0; u < n_units; u++) {
        const uint32_t first = test_rng_below(&e->rng, l->head_dim);
        for (uint32_t c = 0; c < n_channels; c++)
            channels[u * n_channels + c] = (uint8_t)((first + 3 * c) % l->head_dim);
    }
    op_tensor t = op_words(e, channels, (size_t)n_units * n_channels / sizeof(uint32_t));
    cn_free(channels);
    return t;
}

/* Offsets of all sizes; many are 0. */
static op_tensor draw_offsets(op_env *e, const cn_kv_layout *l, uint32_t n_channels)
{
    static const float sizes[] = {0, 0, 1, 20, 200, 1e6f, 1e-3f};
    const size_t n = (size_t)l->n_layers * l->n_kv_heads * n_channels;
    float *offsets = cn_calloc(n, sizeof *offsets);
    test_rng_fill(&e->rng, offsets, (uint32_t)n);
    for (size_t i = 0; i < n; i++) offsets[i] *= sizes[test_rng_below(&e->rng, 7)];
    op_tensor t = op_floats(e, offsets, n, CN_F32);
    cn_free(offsets);
    return t;
}

static op_tensor poisoned_bytes(op_env *e, size_t bytes)
{
    void *p = cn_calloc(bytes, 1);
    memset(p, POISON, bytes);
    op_tensor t = op_words(e, p, bytes / sizeof(uint32_t));
    cn_free(p);
    return t;
}

/* Names each tile of the pool with probability 1/2, newest block first. */
static void draw_tiles(test_rng *r, digest_case *c)
{
    const cn_kv_layout *l = &c->pools.layout;
    const uint32_t tiles = l->block_tokens / l->tile_tokens;
    for (uint32_t i = l->n_blocks * tiles; i-- > 0;)
        if (i == 0 || test_rng_below(r, 2))
            c->tiles[c->n_tiles++] = (cn_digest_tile){i / tiles, i % tiles};
}

static void draw_planes(op_env *e, digest_case *c)
{
    const cn_kv_layout *l = &c->pools.layout;
    const uint32_t n_channels = cn_label_channels(l->head_dim);
    const size_t slots = cn_kv_side_elems(l);
    const uint32_t planes = 1 + test_rng_below(&e->rng, 7);
    c->has_labels = planes & 1 || l->block_tokens < CN_DIGEST_TILE;
    c->has_16 = planes & 2;
    c->has_64 = planes & 4 && l->block_tokens >= CN_DIGEST_TILE;
    c->has_offsets = test_rng_below(&e->rng, 3);
    c->channels = draw_channels(e, l, n_channels);
    c->offsets = draw_offsets(e, l, n_channels);
    c->labels = poisoned_bytes(e, slots * n_channels / 2);
    c->scales = poisoned_bytes(e, slots * sizeof(uint16_t));
    c->bounds_16 = op_poison(e, slots / CN_DIGEST_PAGE * 2 * l->head_dim, CN_BF16);
    c->bounds_64 = op_poison(e, cn_ceil_div(slots, CN_DIGEST_TILE) * 2 * l->head_dim, CN_BF16);
    c->pools.digest.n_channels = n_channels;
    snprintf(e->shape, sizeof e->shape, "layers=%u heads=%u d=%u block=%u tiles=%u planes=%s%s%s",
             l->n_layers, l->n_kv_heads, l->head_dim, l->block_tokens, c->n_tiles,
             c->has_labels ? c->has_offsets ? "O" : "L" : "", c->has_16 ? "P" : "",
             c->has_64 ? "T" : "");
}

static digest_case *digest_create(op_env *e, const cn_kv_layout *l)
{
    digest_case *c = cn_calloc(1, sizeof *c);
    const size_t n = cn_kv_pool_elems(l);
    c->pools = (cn_pools){.layout = *l, .n_heads = l->n_kv_heads, .act_dtype = CN_F32};
    float *kv = cn_calloc(n, sizeof *kv);
    draw_keys(&e->rng, l, kv);
    if (e->fp8) {
        fp8_pool pool = fp8_pool_make(l, kv);
        c->codes = op_words(e, pool.kv, cn_kv_pool_bytes(&pool.layout) / sizeof(uint32_t));
        c->codes_layout = pool.layout;
        c->codes_layout.act_dtype = CN_BF16;
        fp8_pool_free(&pool);
    }
    c->kv = op_floats(e, kv, n, e->fp8 ? CN_F32 : CN_BF16);
    cn_free(kv);
    draw_tiles(&e->rng, c);
    draw_planes(e, c);
    return c;
}

static void digest_free(op_env *e, digest_case *c)
{
    op_tensor *const all[] = {&c->kv,     &c->channels,  &c->offsets,  &c->labels,
                              &c->scales, &c->bounds_16, &c->bounds_64};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    if (c->codes.n > 0) op_tensor_free(e, &c->codes);
    cn_free(c);
}

static void *side_of(const op_tensor *t, bool there, bool cuda)
{
    return !there ? NULL : cuda ? t->cuda : t->cpu;
}

static cn_digest_args digest_args(const digest_case *c, bool cuda)
{
    cn_digest_args a = {.pools = c->pools, .tiles = c->tiles, .n = c->n_tiles};
    if (cuda) {
        a.pools.layout = op_layout_as(&c->pools.layout, CN_BF16);
        a.pools.act_dtype = CN_BF16;
    }
    a.pools.kv = side_of(&c->kv, true, cuda);
    if (cuda && c->codes.n > 0) {
        a.pools.layout = c->codes_layout;
        a.pools.kv = c->codes.cuda;
    }
    a.pools.digest.channels = side_of(&c->channels, true, cuda);
    a.pools.digest.offsets = side_of(&c->offsets, c->has_offsets, cuda);
    a.pools.digest.labels = side_of(&c->labels, c->has_labels, cuda);
    a.pools.digest.scales = side_of(&c->scales, c->has_labels, cuda);
    a.pools.digest.bounds_16 = side_of(&c->bounds_16, c->has_16, cuda);
    a.pools.digest.bounds_64 = side_of(&c->bounds_64, c->has_64, cuda);
    return a;
}

/* Returns the nearest bf16 that is not above x, or not below it. */
static uint16_t rounded_out(float x, bool up)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return to_bf16(x);
    return (uint16_t)((bits + (up == !signbit(x) ? 0xffff : 0)) >> 16);
}

/* Bounds of rows in eight bits are rounded outwards. */
static void assert_same_bounds(op_env *e, const op_tensor *t, uint32_t d, const char *name)
{
    uint16_t *got = op_take(e, t);
    for (size_t i = 0; i < t->n; i++) {
        const float x = ((const float *)t->cpu)[i];
        const uint16_t want = e->fp8 ? rounded_out(x, i / d % 2) : to_bf16(x);
        if (got[i] != want)
            fail_msg("%s %zu: got %#x, expected %#x", name, i, (unsigned)got[i], (unsigned)want);
    }
    cn_free(got);
}

static void check_digest(op_env *e, digest_case *c)
{
    const cn_digest_args cpu = digest_args(c, false), cuda = digest_args(c, true);
    OP_OK(e->cpu->digest(e->cpu_stream, &cpu));
    OP_OK(e->cuda->digest(e->cuda_stream, &cuda));
    memset(c->tiles, POISON, sizeof c->tiles); /* the caller may change the list at once */
    if (op_words_error(e, &c->labels) > 0) fail_msg("labels differ");
    if (op_words_error(e, &c->scales) > 0) fail_msg("scales differ");
    assert_same_bounds(e, &c->bounds_16, c->pools.layout.head_dim, "bounds of pages");
    assert_same_bounds(e, &c->bounds_64, c->pools.layout.head_dim, "bounds of tiles");
}

static double run_digest(op_env *e, uint32_t seed)
{
    static const uint32_t blocks[] = {64, 128, 256, 64, 256, 32, 16};
    test_rng *r = &e->rng;
    const uint32_t n_layers = 1 + test_rng_below(r, 3), n_heads = 1 + test_rng_below(r, 4);
    const cn_kv_layout l = cn_kv_layout_make(n_layers, 1 + test_rng_below(r, 7), n_heads,
                                             blocks[seed % 7], DIMS[test_rng_below(r, 6)], CN_F32);
    digest_case *c = digest_create(e, &l);
    check_digest(e, c);
    digest_free(e, c);
    return 0;
}

/* A prompt completes more tiles than one launch takes. */
static double run_long_digest(op_env *e, uint32_t seed)
{
    const cn_kv_layout l = cn_kv_layout_make(1, 200 + seed, 1, 256, 64, CN_F32);
    digest_case *c = digest_create(e, &l);
    assert_true(c->n_tiles > 256);
    check_digest(e, c);
    digest_free(e, c);
    return 0;
}

/* ---- predict ---- */

enum { MAX_SEQS = 6, LAYERS = 3, FIRST_LAYER = 1, N_LAYERS = 2, N_POSITIONS = 80 };

static const float UNTOUCHED = -7, ATTENTION_FACTOR = 1.25f;

typedef struct ring_shape {
    uint32_t d, n_heads, n_seqs, rows;
} ring_shape;

typedef struct ring_case {
    ring_shape shape;
    uint32_t slots[MAX_SEQS], newest[MAX_SEQS], modulus[MAX_SEQS], n_window[MAX_SEQS];
    uint8_t weights[MAX_SEQS], rotate[MAX_SEQS];
    op_tensor ring, cos, sin, out;
    op_tensor words[6]; /* the arrays above, in their order */
    size_t out_stride;
} ring_case;

/* Fills the rows of a sequence: each query is `drift` times the one before, plus a new part. */
static void fill_ring(test_rng *r, const ring_case *c, uint32_t s, float *ring)
{
    static const float drifts[] = {0.7f, 0.95f, 0.999f, 0}, sizes[] = {1, 1, 30, 1e-3f, 0};
    const ring_shape *z = &c->shape;
    const float drift = drifts[test_rng_below(r, 4)], size = sizes[test_rng_below(r, 5)];
    const uint32_t n = cn_min_u32(c->newest[s] + 1, c->modulus[s]);
    float q[256], fresh[256];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < z->n_heads; head++) {
            test_rng_fill(r, q, z->d);
            for (uint32_t i = n; i-- > 0;) { /* the oldest first */
                const uint32_t row = (c->newest[s] - i) % c->modulus[s];
                float *to = ring + cn_query_row(MAX_SEQS, z->rows, z->n_heads, z->d, layer,
                                                c->slots[s], row, head);
                test_rng_fill(r, fresh, z->d);
                for (uint32_t j = 0; j < z->d; j++) {
                    q[j] = drift * q[j] + (1 - drift) * fresh[j];
                    to[j] = size * q[j];
                }
            }
        }
}

static void draw_sequence(test_rng *r, ring_case *c, uint32_t s, uint32_t window)
{
    c->slots[s] = test_rng_below(r, 8) ? MAX_SEQS - 1 - s : CN_NO_SLOT;
    c->n_window[s] = window;
    c->modulus[s] = window + 1 + test_rng_below(r, c->shape.rows - window);
    /* One in three has fewer queries than the window needs; some have one. */
    c->newest[s] = test_rng_below(r, 3) ? window + test_rng_below(r, 3000)
                                        : test_rng_below(r, cn_min_u32(window + 1, 6));
    c->weights[s] = (uint8_t)test_rng_below(r, 2);
    c->rotate[s] = (uint8_t)test_rng_below(r, 2);
}

static void draw_tables(op_env *e, ring_case *c)
{
    const uint32_t half = c->shape.d / 2;
    float *cos_table = cn_calloc((size_t)N_POSITIONS * half, sizeof *cos_table);
    float *sin_table = cn_calloc((size_t)N_POSITIONS * half, sizeof *sin_table);
    for (uint32_t p = 0; p < N_POSITIONS; p++)
        for (uint32_t i = 0; i < half; i++) {
            const float x = (float)p * powf(10000, -(float)i / (float)half);
            cos_table[p * half + i] = ATTENTION_FACTOR * cosf(x);
            sin_table[p * half + i] = ATTENTION_FACTOR * sinf(x);
        }
    c->cos = op_floats(e, cos_table, (size_t)N_POSITIONS * half, CN_F32);
    c->sin = op_floats(e, sin_table, (size_t)N_POSITIONS * half, CN_F32);
    cn_free(cos_table);
    cn_free(sin_table);
}

static op_tensor bytes_of(op_env *e, const uint8_t bytes[MAX_SEQS])
{
    uint8_t padded[2 * sizeof(uint32_t)] = {0};
    memcpy(padded, bytes, MAX_SEQS);
    return op_words(e, padded, 2);
}

/* Rows without a query are NaN, so that a prediction from them is NaN. */
static void ring_create(op_env *e, ring_case *c)
{
    const ring_shape *z = &c->shape;
    const size_t row = (size_t)z->n_heads * z->d, n = (size_t)LAYERS * MAX_SEQS * z->rows * row;
    c->out_stride = N_LAYERS * row;
    const size_t n_out = z->n_seqs * c->out_stride;
    float *ring = cn_calloc(n, sizeof *ring), *out = cn_calloc(n_out, sizeof *out);
    for (size_t i = 0; i < n; i++) ring[i] = NAN;
    for (size_t i = 0; i < n_out; i++) out[i] = UNTOUCHED;
    for (uint32_t s = 0; s < z->n_seqs; s++)
        if (c->slots[s] != CN_NO_SLOT) fill_ring(&e->rng, c, s, ring);
    c->ring = op_floats(e, ring, n, CN_BF16);
    c->out = op_floats(e, out, n_out, CN_BF16);
    cn_free(ring);
    cn_free(out);
    draw_tables(e, c);
    c->words[0] = op_words(e, c->slots, MAX_SEQS);
    c->words[1] = op_words(e, c->newest, MAX_SEQS);
    c->words[2] = op_words(e, c->modulus, MAX_SEQS);
    c->words[3] = op_words(e, c->n_window, MAX_SEQS);
    c->words[4] = bytes_of(e, c->weights);
    c->words[5] = bytes_of(e, c->rotate);
}

static void ring_free(op_env *e, ring_case *c)
{
    op_tensor *const all[] = {&c->ring, &c->cos, &c->sin, &c->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    for (size_t i = 0; i < 6; i++) op_tensor_free(e, &c->words[i]);
}

static cn_predict_args predict_args(const ring_case *c, bool cuda)
{
    const ring_shape *z = &c->shape;
    return (cn_predict_args){.ring = side_of(&c->ring, true, cuda),
                             .n_query_slots = MAX_SEQS,
                             .rows = z->rows,
                             .n_heads = z->n_heads,
                             .head_dim = z->d,
                             .slots = side_of(&c->words[0], true, cuda),
                             .newest = side_of(&c->words[1], true, cuda),
                             .modulus = side_of(&c->words[2], true, cuda),
                             .n_window = side_of(&c->words[3], true, cuda),
                             .weights = side_of(&c->words[4], true, cuda),
                             .rotate = side_of(&c->words[5], true, cuda),
                             .n_seqs = z->n_seqs,
                             .first_layer = FIRST_LAYER,
                             .n_layers = N_LAYERS,
                             .eps = 0.01f,
                             .cos = side_of(&c->cos, true, cuda),
                             .sin = side_of(&c->sin, true, cuda),
                             .out = side_of(&c->out, true, cuda),
                             .out_stride = c->out_stride};
}

static double compare_predictions(op_env *e, const ring_case *c)
{
    const cn_predict_args cpu = predict_args(c, false), cuda = predict_args(c, true);
    OP_OK(e->cpu->predict(e->cpu_stream, &cpu));
    OP_OK(e->cuda->predict(e->cuda_stream, &cuda));
    snprintf(e->shape, sizeof e->shape, "d=%u heads=%u seqs=%u rows=%u window=%u", c->shape.d,
             c->shape.n_heads, c->shape.n_seqs, c->shape.rows, c->n_window[0]);
    return op_rows_error(e, &c->out, c->shape.d);
}

static double run_predict(op_env *e, uint32_t seed)
{
    test_rng *r = &e->rng;
    ring_case c = {.shape = {.d = DIMS[seed % 6],
                             .n_heads = 1 + test_rng_below(r, 5),
                             .n_seqs = 1 + test_rng_below(r, MAX_SEQS)}};
    c.shape.rows = 2 + test_rng_below(r, seed % 3 == 0 ? 80 : 17);
    const uint32_t most = cn_min_u32(c.shape.rows - 1, CN_MAX_SELECT_WINDOW);
    for (uint32_t s = 0; s < c.shape.n_seqs; s++)
        draw_sequence(r, &c, s, 1 + test_rng_below(r, most));
    ring_create(e, &c);
    const double error = compare_predictions(e, &c);
    ring_free(e, &c);
    return error;
}

/* The largest window and the largest head, with all weights, with and without rotation. */
static double run_long_predict(op_env *e, uint32_t seed)
{
    ring_case c = {.shape = {.d = DIMS[seed % 4], .n_heads = 2, .n_seqs = MAX_SEQS, .rows = 65}};
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        draw_sequence(&e->rng, &c, s, CN_MAX_SELECT_WINDOW);
        c.slots[s] = s;
        c.newest[s] = 500 + s;
        c.weights[s] = (uint8_t)(s % 2);
        c.rotate[s] = s >= 3;
    }
    ring_create(e, &c);
    const double error = compare_predictions(e, &c);
    ring_free(e, &c);
    return error;
}

/* ---- refusals ---- */

static double run_refusals(op_env *e, uint32_t seed)
{
    (void)seed;
    const cn_kv_layout narrow = cn_kv_layout_make(1, 1, 1, 64, 24, CN_BF16);
    const cn_kv_layout f32 = cn_kv_layout_make(1, 1, 1, 64, 64, CN_F32);
    const cn_digest_tile tile = {0, 0};
    cn_digest_args d = {.pools = {.layout = narrow, .n_heads = 1}, .tiles = &tile, .n = 1};
    assert_int_equal(e->cuda->digest(e->cuda_stream, &d), CN_ERR_SHAPE);
    assert_string_equal(cn_last_error(),
                        "digest: head_dim 24: expected a multiple of 16, at most 256");
    d.pools.layout = f32;
    assert_int_equal(e->cuda->digest(e->cuda_stream, &d), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "rows of 64 elements of K and V, in bf16, or"));
    const cn_predict_args p = {.rows = 2, .n_heads = 1, .head_dim = 272, .n_seqs = 1,
                               .n_layers = 1};
    assert_int_equal(e->cuda->predict(e->cuda_stream, &p), CN_ERR_SHAPE);
    assert_string_equal(cn_last_error(),
                        "predict: head_dim 272: expected a multiple of 16, at most 256");
    return 0;
}

int main(int argc, char **argv)
{
    static const op_case cases[] = {
        {"digest", 42, 0, run_digest, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"digest, long", 2, 0, run_long_digest, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"digest, fp8", 42, 0, run_digest, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"digest, fp8, long", 2, 0, run_long_digest, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"predict", 60, 1e-2, run_predict, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"predict, long", 8, 1e-2, run_long_predict, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"digest, predict, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"digest, portable", 42, 0, run_digest, .portable = true},
        {"digest, portable, long", 2, 0, run_long_digest, .portable = true},
        {"predict, portable", 60, 1e-2, run_predict, .portable = true},
        {"predict, portable, long", 8, 1e-2, run_long_predict, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
