/* test_select_cpu.c - digest, score and select on the CPU compared with plain loops in double and
 * with sorting, on random shapes; and the arithmetic that all backends share. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/select_math.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

/* The reference is slow under the thread sanitizer. */
#if defined(__SANITIZE_THREAD__)
enum { N_DRAWN = 4 };
#else
enum { N_DRAWN = 80 };
#endif

enum { MAX_GROUP = 11, MAX_QUERIES = 20, MAX_D = 256, LAYERS = 3, FIRST_LAYER = 1, POISON = 0xa5 };

/* ---- arithmetic ---- */

/* The f16 nearest to x in double, ties to even, saturated. */
static double nearest_f16(double x)
{
    int exponent;
    frexp(x, &exponent);
    const double unit = ldexp(1, (exponent - 1 < -14 ? -14 : exponent - 1) - 10);
    const double rounded = rint(x / unit) * unit;
    return fmax(-65504, fmin(65504, rounded));
}

static float value_of_score(uint16_t score)
{
    return cn_f16_value((uint16_t)(score & 0x8000u ? score & 0x7fffu : ~(uint32_t)score));
}

static void f16_is_the_nearest_and_scores_keep_the_order(void **state)
{
    (void)state;
    test_rng r = {1};
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every f16, and the middle between neighbours */
        const float x = cn_f16_value((uint16_t)h), next = cn_f16_value((uint16_t)(h + 1));
        assert_int_equal(cn_f16_bits(x), h);
        assert_int_equal(cn_f16_bits(-x), h | 0x8000);
        if (h == 0x7bff) continue;
        const float middle = (float)(((double)x + (double)next) / 2);
        assert_int_equal(cn_f16_bits(middle), h + (h & 1));
        assert_true(cn_score_bits(x) < cn_score_bits(next));
        assert_true(cn_score_bits(-next) < cn_score_bits(-x));
        assert_float_equal(value_of_score(cn_score_bits(-next)), -next, 0);
    }
    for (int i = 0; i < 200000; i++) {
        const float x = ldexpf(test_rng_uniform(&r), (int)test_rng_below(&r, 44) - 27);
        assert_true((double)cn_f16_value(cn_f16_bits(x)) == nearest_f16((double)x));
    }
    assert_int_equal(cn_score_bits(0.0f), cn_score_bits(-0.0f));
    assert_int_equal(cn_score_bits(-1e-9f), cn_score_bits(0.0f));
    assert_int_equal(cn_score_bits(NAN), 0);
    assert_int_equal(cn_score_bits(INFINITY), cn_score_bits(65504));
    assert_int_equal(cn_score_bits(-1e30f), cn_score_bits(-65504));
    assert_true(cn_score_bits(-INFINITY) > 0);
}

static void logarithms_are_close(void **state)
{
    (void)state;
    for (uint64_t sum = (uint64_t)1 << 40; sum < (uint64_t)1 << 58; sum += sum / 700 + 3) {
        const double want = log(ldexp((double)sum, -40));
        assert_true(fabs((double)cn_log_scaled(sum, -40) - want) <= 1e-6 * want + 1e-7);
    }
    assert_true(cn_log_scaled((uint64_t)1 << 40, -40) == 0.0f);
    assert_true(cn_log_scaled(0, -40) == 0.0f);
}

/* Adds up exp(x[i]) by lots of `lot`, in an order that `r` draws. */
static float log_of_sum(const float *x, uint32_t n, uint32_t lot, test_rng *r)
{
    cn_exp_sum halves[2] = {{{0}, 0}, {{0}, 0}};
    for (uint32_t from = 0; from < n; from += lot) {
        uint32_t top = 0, sum = 0;
        for (uint32_t i = from; i < n && i < from + lot; i++) {
            const uint32_t e = cn_weight_exponent(cn_weight_place(x[i]));
            top = e > top ? e : top;
        }
        for (uint32_t i = from; i < n && i < from + lot; i++)
            sum += cn_weight_in_lot(cn_weight_place(x[i]), top);
        cn_exp_sum *half = &halves[test_rng_below(r, 2)];
        *half = test_rng_below(r, 2) ? cn_exp_sum_add(*half, cn_exp_sum_of(top, sum))
                                     : cn_exp_sum_add(cn_exp_sum_of(top, sum), *half);
    }
    return cn_exp_sum_log(cn_exp_sum_add(halves[0], halves[1]));
}

static void sums_of_weights_are_close_in_any_order(void **state)
{
    (void)state;
    enum { MOST = 3000 };
    static float x[MOST];
    test_rng r = {11};
    for (int round = 0; round < 300; round++) {
        const uint32_t n = 1 + test_rng_below(&r, MOST), lot = 1U << (3 + test_rng_below(&r, 6));
        const float width = ldexpf(1, (int)test_rng_below(&r, 12) - 2);
        const float middle = ldexpf(test_rng_uniform(&r) - 0.5f, (int)test_rng_below(&r, 12));
        double largest = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            x[i] = middle + width * (test_rng_uniform(&r) - 0.5f);
            largest = fmax(largest, (double)x[i]);
        }
        for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - largest);
        const float got = log_of_sum(x, n, lot, &r);
        assert_true(fabs((double)got - (largest + log(sum))) <= 1e-3 + 1e-6 * fabs(largest));
        for (int again = 0; again < 3; again++) assert_true(log_of_sum(x, n, lot, &r) == got);
    }
    const uint32_t top = cn_weight_exponent(cn_weight_place(3.0f));
    assert_int_equal(cn_weight_in_lot(CN_NO_WEIGHT, top), 0);
    assert_int_equal(cn_weight_in_lot(cn_weight_place(NAN), top), 0);
    assert_int_equal(cn_weight_in_lot(cn_weight_place(-INFINITY), top), 0);
}

static void quantised_values_are_the_nearest_and_bounded(void **state)
{
    (void)state;
    assert_int_equal(cn_label_of(1.0f, 0), 0);
    assert_int_equal(cn_label_of(3.5f, cn_f16_bits(1)), 4);
    assert_int_equal(cn_label_of(2.5f, cn_f16_bits(1)), 2); /* ties to even */
    assert_int_equal(cn_label_of(-2.6f, cn_f16_bits(1)), -3);
    assert_int_equal(cn_label_of(-70.0f, cn_f16_bits(1)), -7);
    assert_int_equal(cn_query_of(1e30f, 1), 127);
    assert_int_equal(cn_query_of(-126.6f, 1), -127);
    assert_int_equal(cn_label_byte(-1, 3), 0x3f);
    assert_int_equal(cn_label_byte(7, -7), 0x97);
}

/* ---- a random step ---- */

typedef struct world {
    paged_batch *b;
    cn_pools pools;
    uint32_t n_seqs, group, n_layers;
    cn_sel_stage stage[2][PAGED_MAX_SEQS];
    uint32_t n[2][PAGED_MAX_SEQS], base[2][PAGED_MAX_SEQS], k[2][PAGED_MAX_SEQS];
    uint32_t first[2][PAGED_MAX_SEQS + 1];
    uint32_t n_forced[PAGED_MAX_SEQS], seed[PAGED_MAX_SEQS];
    float *q[CN_N_SEL_QUERIES];
    size_t q_row, q_stride; /* q_row: elements of a query, all layers */
} world;

/* The results of the ops for a world. */
typedef struct results {
    uint16_t *score[2];
    uint32_t *list[2];
    uint32_t stride[2];
} results;

static size_t n_units(const world *w)
{
    return (size_t)w->n_seqs * w->n_layers * w->pools.layout.n_kv_heads;
}

static void *poisoned(size_t bytes)
{
    void *p = cn_calloc(bytes + 1, 1);
    memset(p, POISON, bytes);
    return p;
}

/* Allocates every plane of the digest that the shape can have. */
static void open_digest(world *w, test_rng *r)
{
    const cn_kv_layout *l = &w->pools.layout;
    cn_digest *g = &w->pools.digest;
    const size_t n = (size_t)l->n_layers * l->n_blocks;
    g->n_channels = cn_label_channels(l->head_dim);
    const size_t n_channels = (size_t)l->n_layers * l->n_kv_heads * g->n_channels;
    uint8_t *channels = cn_calloc(n_channels, 1);
    for (size_t i = 0; i < n_channels; i++)
        channels[i] = (uint8_t)(i % g->n_channels * 4 + test_rng_below(r, 4));
    g->channels = channels;
    g->labels = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_LABELS));
    g->scales = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_SCALES));
    g->bounds_16 = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_BOUNDS_16));
    if (l->block_tokens >= CN_DIGEST_TILE)
        g->bounds_64 = poisoned(n * cn_block_plane_bytes(l, CN_PLANE_BOUNDS_64));
}

static void run_digest(cn_backend *be, const world *w)
{
    const cn_kv_layout *l = &w->pools.layout;
    cn_digest_tile tiles[1024];
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t t = 0; t + l->tile_tokens <= w->b->kv_len[s]; t += l->tile_tokens) {
            assert_true(n < 1024);
            tiles[n++] =
                (cn_digest_tile){w->b->tables[s * w->b->view.table_stride + t / l->block_tokens],
                                 t % l->block_tokens / l->tile_tokens};
        }
    const cn_digest_args a = {w->pools, tiles, n};
    assert_int_equal(be->digest(backend_rig_stream(be), &a), CN_OK);
}

/* Draws the token stage of a sequence; all its candidates are complete. */
static void draw_row(world *w, uint32_t s, test_rng *r)
{
    static const cn_sel_stage stages[] = {
        {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX},
        {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
        {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
        {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN},
        {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .query = CN_SEL_PREDICTED},
        {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 4},
        {.active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_MAX, .entry_log2 = 4},
        {.active = 1, .key = CN_KEY_HASH, .group = CN_GROUP_MAX},
        {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MEAN, .in_tiles = 1},
        {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = 1},
        {.key = CN_KEY_LABELS, .group = CN_GROUP_MAX},
    };
    enum { N = sizeof stages / sizeof *stages, N_WITHOUT_TILES = N - 3 };
    const uint32_t tile = w->pools.layout.tile_tokens;
    const uint32_t complete = w->b->kv_len[s] / tile * tile;
    const bool tiles = w->pools.digest.bounds_64 && complete >= 64;
    cn_sel_stage *st = &w->stage[1][s];
    *st = stages[tiles || test_rng_below(r, 6) ? test_rng_below(r, tiles ? N : N_WITHOUT_TILES)
                                               : N - 1];
    if (st->group == CN_GROUP_SUM) st->n_queries = (uint8_t)(w->b->kv_len[s] % (MAX_QUERIES + 1));
    uint32_t base = cn_min_u32(test_rng_below(r, 40), complete);
    if (st->entry_log2) base = (uint32_t)cn_round_up(base, 16);
    base = cn_min_u32(base, complete);
    w->base[1][s] = w->n_forced[s] = base;
    w->n[1][s] = (complete - base) >> st->entry_log2;
    if (test_rng_below(r, 3) == 0) w->n[1][s] -= w->n[1][s] / 3;
    if (st->in_tiles) {
        w->stage[0][s] = (cn_sel_stage){
            .active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 6,
            .n_queries = (uint8_t)(complete / 64 % (MAX_QUERIES + 1))};
        w->n[0][s] = complete / 64;
        w->k[0][s] = 1 + test_rng_below(r, w->n[0][s]);
        w->n[1][s] = w->k[0][s] * 64;
    }
    const uint32_t n = w->n[1][s], most = st->in_tiles ? n - cn_min_u32(n, base) : n;
    w->k[1][s] = test_rng_below(r, 4) == 0 ? 1 : test_rng_below(r, most + 1);
    if (!st->in_tiles && test_rng_below(r, 4) == 0) w->k[1][s] = n + 5;
    w->seed[s] = test_rng_below(r, 1000);
}

static void draw_queries(world *w, test_rng *r)
{
    w->q_row = (size_t)w->n_layers * w->pools.n_heads * w->pools.layout.head_dim;
    w->q_stride = MAX_QUERIES * w->q_row + 16;
    test_rng others = *r; /* of the queries beside the first */
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) {
        w->q[i] = cn_calloc(w->n_seqs * w->q_stride, sizeof **w->q);
        for (size_t j = 0; j < w->n_seqs * w->q_stride; j++)
            w->q[i][j] = 4 * test_rng_uniform(j % w->q_stride < w->q_row + 16 ? r : &others);
    }
}

/* Makes all keys and queries equal, so that products of labels are the largest possible. */
static void make_extreme(world *w)
{
    for (size_t i = 0; i < cn_kv_pool_elems(&w->pools.layout); i++) w->b->kv[i] = 1;
    for (int i = 0; i < CN_N_SEL_QUERIES; i++)
        for (size_t j = 0; j < w->n_seqs * w->q_stride; j++) w->q[i][j] = 4;
}

static world draw_world(uint64_t seed)
{
    test_rng r = {seed * 77 + 5};
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 16}, groups[] = {1, 4, 3, MAX_GROUP};
    static const uint32_t blocks[] = {64, 16, 256, 128};
    paged_shape s = {.n_layers = LAYERS,
                     .n_kv_heads = 1 + test_rng_below(&r, 3),
                     .head_dim = dims[seed % 6],
                     .block_tokens = blocks[test_rng_below(&r, 4)],
                     .n_seqs = 1 + test_rng_below(&r, 5)};
    world w = {.n_seqs = s.n_seqs, .group = groups[seed % 4]};
    w.n_layers = 1 + test_rng_below(&r, LAYERS - FIRST_LAYER);
    s.n_heads = s.n_kv_heads * w.group;
    s.n_decode = s.n_seqs;
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.n_q[i] = 1;
        s.kv_len[i] = 1 + test_rng_below(&r, test_rng_below(&r, 3) ? 700 : 80);
        if (i == 0 && seed % 5 == 0) s.kv_len[i] += 1100; /* more than a chunk */
    }
    w.b = paged_batch_create(&s, &r);
    w.pools = (cn_pools){.layout = w.b->layout, .kv = w.b->kv, .n_heads = s.n_heads};
    open_digest(&w, &r);
    draw_queries(&w, &r);
    if (seed % 12 == 4) make_extreme(&w);
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        draw_row(&w, i, &r);
        for (int j = 0; j < 2; j++) w.first[j][i + 1] = w.first[j][i] + w.n[j][i];
    }
    return w;
}

static void free_world(world *w)
{
    cn_digest *g = &w->pools.digest;
    cn_free((void *)(uintptr_t)g->channels);
    cn_free(g->labels);
    cn_free(g->scales);
    cn_free(g->bounds_16);
    cn_free(g->bounds_64);
    for (int i = 0; i < CN_N_SEL_QUERIES; i++) cn_free(w->q[i]);
    paged_batch_free(w->b);
}

/* ---- running the ops ---- */

static cn_score_args score_args(const world *w, uint32_t i, const results *x, float *logits)
{
    return (cn_score_args){.q = {w->q[0], w->q[1]},
                           .q_stride = {w->q_stride, w->q_stride},
                           .stage = w->stage[i],
                           .pools = w->pools,
                           .tables = w->b->tables,
                           .table_stride = w->b->view.table_stride,
                           .first = w->first[i],
                           .n = w->n[i],
                           .base = w->base[i],
                           .seed = w->seed,
                           .tiles = i ? x->list[0] : NULL,
                           .tile_stride = x->stride[0],
                           .max_queries = MAX_QUERIES,
                           .n_seqs = w->n_seqs,
                           .first_layer = FIRST_LAYER,
                           .n_layers = w->n_layers,
                           .logits = logits,
                           .out = x->score[i]};
}

static cn_select_args select_args(const world *w, uint32_t i, const results *x)
{
    return (cn_select_args){.score = x->score[i],
                            .stage = w->stage[i],
                            .first = w->first[i],
                            .n = w->n[i],
                            .base = w->base[i],
                            .k = w->k[i],
                            .n_forced = w->n_forced,
                            .tiles = i ? x->list[0] : NULL,
                            .tile_stride = x->stride[0],
                            .n_seqs = w->n_seqs,
                            .n_layers = w->n_layers,
                            .n_kv_heads = w->pools.layout.n_kv_heads,
                            .tokens = i == 1,
                            .list = x->list[i],
                            .list_stride = x->stride[i]};
}

static results run_stages(cn_backend *be, const world *w)
{
    results x = {.stride = {64, 2000}};
    const size_t hk = w->pools.layout.n_kv_heads;
    for (uint32_t i = 0; i < 2; i++) {
        const size_t n = w->first[i][w->n_seqs] * hk * w->n_layers;
        float *logits = poisoned(n * w->group * sizeof *logits);
        x.score[i] = poisoned(n * sizeof *x.score[i]);
        x.list[i] = poisoned(n_units(w) * x.stride[i] * sizeof *x.list[i]);
        const cn_score_args score = score_args(w, i, &x, logits);
        const cn_select_args select = select_args(w, i, &x);
        assert_int_equal(be->score(backend_rig_stream(be), &score), CN_OK);
        assert_int_equal(be->select(backend_rig_stream(be), &select), CN_OK);
        cn_free(logits);
    }
    return x;
}

static void free_results(results *x)
{
    for (int i = 0; i < 2; i++) {
        cn_free(x->score[i]);
        cn_free(x->list[i]);
    }
}

/* ---- digest against plain loops ---- */

static const float *key_of(const world *w, uint32_t layer, uint32_t s, uint32_t head, uint32_t p)
{
    return paged_batch_row(w->b, layer, s, head, p, CN_KV_K);
}

static size_t side_of(const world *w, uint32_t layer, uint32_t s, uint32_t head, uint32_t p)
{
    const cn_kv_layout *l = &w->pools.layout;
    const uint32_t block = w->b->tables[s * w->b->view.table_stride + p / l->block_tokens];
    return cn_kv_side(l, layer, block, head, p % l->block_tokens);
}

static const uint8_t *channels_of(const world *w, uint32_t layer, uint32_t head)
{
    const cn_digest *g = &w->pools.digest;
    return g->channels + ((size_t)layer * w->pools.layout.n_kv_heads + head) * g->n_channels;
}

/* Channel c of the label of slot `side`. */
static int label_at(const cn_digest *g, size_t side, uint32_t c)
{
    const int nibble = g->labels[(side * g->n_channels + c) / 2] >> (c % 2 * 4) & 15;
    return nibble < 8 ? nibble : nibble - 16;
}

static void check_label(const world *w, uint32_t layer, uint32_t s, uint32_t head, uint32_t p)
{
    const cn_digest *g = &w->pools.digest;
    const float *key = key_of(w, layer, s, head, p);
    const uint8_t *channels = channels_of(w, layer, head);
    const size_t side = side_of(w, layer, s, head, p);
    double largest = 0;
    for (uint32_t c = 0; c < g->n_channels; c++)
        largest = fmax(largest, fabs((double)key[channels[c]]));
    const double scale = nearest_f16((double)((float)largest / 7));
    assert_true((double)cn_f16_value(g->scales[side]) == scale);
    for (uint32_t c = 0; c < g->n_channels; c++) {
        const double ratio = (double)key[channels[c]] / scale, label = label_at(g, side, c);
        assert_true(fabs(label) <= 7);
        assert_true(fabs(ratio - label) <= 0.5 + 1e-5 || (fabs(ratio) > 7 && fabs(label) == 7));
    }
}

static void check_bounds(const world *w, const float *bounds, uint32_t entry, uint32_t layer,
                         uint32_t s, uint32_t head, uint32_t p)
{
    const uint32_t d = w->pools.layout.head_dim;
    const float *low = bounds + side_of(w, layer, s, head, p) / entry * 2 * d;
    for (uint32_t c = 0; c < d; c++) {
        float least = INFINITY, most = -INFINITY;
        for (uint32_t i = 0; i < entry; i++) {
            const float x = key_of(w, layer, s, head, p + i)[c];
            least = fminf(least, x);
            most = fmaxf(most, x);
        }
        assert_true(low[c] == least && low[d + c] == most);
    }
}

/* Returns the number of bytes of the labels that are still poison. */
static size_t poison_left(const world *w)
{
    const cn_kv_layout *l = &w->pools.layout;
    const size_t n = (size_t)l->n_layers * l->n_blocks;
    const size_t bytes = n * cn_block_plane_bytes(l, CN_PLANE_SCALES);
    const uint8_t *scales = (const uint8_t *)w->pools.digest.scales;
    size_t count = 0;
    for (size_t i = 0; i < bytes; i += 2) count += scales[i] == POISON && scales[i + 1] == POISON;
    return count;
}

static void digests_hold_labels_and_bounds_of_complete_tiles(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_DRAWN / 2; seed++) {
        world w = draw_world(seed);
        const cn_kv_layout *l = &w.pools.layout;
        const cn_digest *g = &w.pools.digest;
        const size_t heads = (size_t)l->n_layers * l->n_kv_heads, all = poison_left(&w);
        size_t written = 0;
        run_digest(be, &w);
        for (uint32_t s = 0; s < w.n_seqs; s++) {
            const uint32_t complete = w.b->kv_len[s] / l->tile_tokens * l->tile_tokens;
            written += complete * heads;
            for (uint32_t p = 0; p < complete; p++) {
                const uint32_t layer = (p + s) % LAYERS, head = p % l->n_kv_heads;
                check_label(&w, layer, s, head, p);
                if (p % 16 == 0) check_bounds(&w, g->bounds_16, 16, layer, s, head, p);
                if (g->bounds_64 && p % 64 == 0)
                    check_bounds(&w, g->bounds_64, 64, layer, s, head, p);
            }
        }
        assert_int_equal(poison_left(&w), all - written);
        free_world(&w);
    }
    backend_rig_close(be);
}

/* ---- scores against plain loops ---- */

typedef struct unit {
    uint32_t stage, seq, layer, head; /* layer: index of the call */
    size_t index, first;              /* first: of its scores */
} unit;

static unit unit_at(const world *w, uint32_t stage, size_t index)
{
    const uint32_t hk = w->pools.layout.n_kv_heads;
    unit u = {.stage = stage, .index = index};
    u.head = (uint32_t)(index % hk);
    u.layer = (uint32_t)(index / hk % w->n_layers);
    u.seq = (uint32_t)(index / hk / w->n_layers);
    const uint32_t n = w->n[stage][u.seq];
    u.first = ((size_t)w->first[stage][u.seq] * w->n_layers + u.layer * n) * hk + u.head * n;
    return u;
}

static uint32_t position_of(const world *w, const results *x, const unit *u, uint32_t c)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    if (st->in_tiles) return x->list[0][u->index * x->stride[0] + c / 64] * 64 + c % 64;
    return w->base[u->stage][u->seq] + (c << st->entry_log2);
}

/* Query `number` of head h of the group; or the group's mean. */
static void query_of(const world *w, const unit *u, uint32_t number, uint32_t h, double *q)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t d = w->pools.layout.head_dim;
    const float *from = w->q[st->query] + u->seq * w->q_stride + number * w->q_row +
                        ((size_t)u->layer * w->pools.n_heads + u->head * w->group) * d;
    for (uint32_t c = 0; c < d; c++) {
        q[c] = (double)from[h * d + c];
        if (st->group != CN_GROUP_MEAN) continue;
        q[c] = 0;
        for (uint32_t g = 0; g < w->group; g++) q[c] += (double)from[g * d + c] / w->group;
    }
}

static double label_product(const world *w, const unit *u, uint32_t p, const double *q)
{
    const cn_digest *g = &w->pools.digest;
    const uint32_t layer = FIRST_LAYER + u->layer;
    const uint8_t *channels = channels_of(w, layer, u->head);
    const size_t side = side_of(w, layer, u->seq, u->head, p);
    double largest = 0, sum = 0;
    for (uint32_t c = 0; c < g->n_channels; c++) largest = fmax(largest, fabs(q[channels[c]]));
    for (uint32_t c = 0; c < g->n_channels; c++)
        sum += rint(q[channels[c]] / largest * 127) * label_at(g, side, c);
    return sum * largest / 127 * (double)cn_f16_value(g->scales[side]);
}

/* The logit of the candidate at position p. */
static double logit_of(const world *w, const unit *u, uint32_t p, const double *q)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t d = w->pools.layout.head_dim, layer = FIRST_LAYER + u->layer;
    double sum = 0;
    if (st->key == CN_KEY_LABELS) return label_product(w, u, p, q) / sqrt(d);
    for (uint32_t c = 0; c < d; c++) {
        double best = -INFINITY;
        for (uint32_t i = 0; i < 1U << st->entry_log2; i++)
            best = fmax(best, q[c] * (double)key_of(w, layer, u->seq, u->head, p + i)[c]);
        sum += best;
    }
    return sum / sqrt(d);
}

/* want[n] = the scores of a unit under one query; NaN below the base. */
static void reference_query(const world *w, const results *x, const unit *u, uint32_t number,
                            double *want)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t n = w->n[u->stage][u->seq], base = w->base[u->stage][u->seq];
    const uint32_t n_queries = st->group == CN_GROUP_MEAN ? 1 : w->group;
    double *logits = cn_calloc(n + 1, sizeof *logits), q[MAX_D];
    for (uint32_t c = 0; c < n; c++) want[c] = st->group == CN_GROUP_SUM ? 0 : -INFINITY;
    for (uint32_t h = 0; h < n_queries; h++) {
        double sum = 0;
        query_of(w, u, number, h, q);
        for (uint32_t c = 0; c < n; c++) {
            const uint32_t p = position_of(w, x, u, c);
            logits[c] = p < base ? NAN : logit_of(w, u, p, q);
            if (p >= base) sum += exp(logits[c]);
        }
        for (uint32_t c = 0; c < n; c++) {
            if (st->group == CN_GROUP_MAX) logits[c] -= log(sum);
            want[c] = st->group == CN_GROUP_SUM ? want[c] + logits[c]
                      : isnan(logits[c])        ? NAN
                                                : fmax(want[c], logits[c]);
        }
    }
    cn_free(logits);
}

/* want[n] = the largest scores of a unit under any of its queries. */
static void reference_scores(const world *w, const results *x, const unit *u, double *want)
{
    const uint32_t n = w->n[u->stage][u->seq], n_queries = w->stage[u->stage][u->seq].n_queries;
    double *other = cn_calloc(n + 1, sizeof *other);
    reference_query(w, x, u, 0, want);
    for (uint32_t i = 1; i < n_queries; i++) {
        reference_query(w, x, u, i, other);
        for (uint32_t c = 0; c < n; c++) want[c] = other[c] > want[c] ? other[c] : want[c];
    }
    cn_free(other);
}

static void check_scores(const world *w, const results *x, const unit *u)
{
    const uint32_t n = w->n[u->stage][u->seq];
    const uint16_t *got = x->score[u->stage] + u->first;
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    if (!st->active) {
        for (uint32_t c = 0; c < n; c++) assert_int_equal(got[c], POISON * 0x101);
        return;
    }
    if (st->key == CN_KEY_HASH) {
        for (uint32_t c = 0; c < n; c++)
            assert_int_equal(got[c], cn_hash_score(w->seed[u->seq], FIRST_LAYER + u->layer, u->head,
                                                   position_of(w, x, u, c)));
        return;
    }
    double *want = cn_calloc(n + 1, sizeof *want);
    reference_scores(w, x, u, want);
    for (uint32_t c = 0; c < n; c++) {
        if (isnan(want[c])) {
            assert_int_equal(got[c], 0);
            continue;
        }
        const double error = fabs((double)value_of_score(got[c]) - want[c]);
        assert_true(error <= 6e-4 * fabs(want[c]) + 1e-4);
    }
    cn_free(want);
}

/* ---- lists against sorting ---- */

typedef struct ranked {
    uint32_t score, c;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->c > y->c ? -1 : 1;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void check_list(const world *w, const results *x, const unit *u)
{
    const uint32_t i = u->stage, s = u->seq, n = w->n[i][s],
                   entry = 1U << w->stage[i][s].entry_log2;
    const uint32_t k = cn_min_u32(w->k[i][s], n);
    const uint32_t *got = x->list[i] + u->index * x->stride[i];
    if (!w->stage[i][s].active) {
        assert_int_equal(got[0], 0x01010101u * POISON);
        return;
    }
    ranked *all = cn_calloc(n + 1, sizeof *all);
    uint32_t *want = cn_calloc(x->stride[i], sizeof *want), n_want = 0;
    for (uint32_t c = 0; c < n; c++) all[c] = (ranked){x->score[i][u->first + c], c};
    qsort(all, n, sizeof *all, by_rank);
    if (i == 1)
        while (n_want < w->n_forced[s]) {
            want[n_want] = n_want;
            n_want++;
        }
    for (uint32_t j = 0; j < k; j++) {
        const uint32_t p = position_of(w, x, u, all[j].c);
        if (i == 0) want[n_want++] = p / entry;
        for (uint32_t t = 0; i == 1 && t < entry; t++) want[n_want++] = p + t;
    }
    qsort(want, n_want, sizeof *want, by_number);
    for (uint32_t j = 0; j + 1 < n_want; j++) assert_true(want[j] < want[j + 1]);
    assert_memory_equal(got, want, n_want * sizeof *want);
    assert_int_equal(got[n_want], 0x01010101u * POISON);
    cn_free(want);
    cn_free(all);
}

static void random_steps_agree_with_plain_loops_and_sorting(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_DRAWN; seed++) {
        world w = draw_world(seed);
        run_digest(be, &w);
        results x = run_stages(be, &w);
        for (uint32_t i = 0; i < 2; i++)
            for (size_t index = 0; index < n_units(&w); index++) {
                const unit u = unit_at(&w, i, index);
                check_scores(&w, &x, &u);
                check_list(&w, &x, &u);
            }
        free_results(&x);
        free_world(&w);
    }
    backend_rig_close(be);
}

static void results_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    cn_backend *one = backend_rig_open(1), *three = backend_rig_open(3);
    for (uint64_t seed = 0; seed < N_DRAWN / 4; seed++) {
        world w = draw_world(seed);
        run_digest(one, &w);
        results x = run_stages(one, &w);
        run_digest(three, &w);
        results y = run_stages(three, &w);
        for (uint32_t i = 0; i < 2; i++) {
            const size_t n = w.first[i][w.n_seqs] * (size_t)w.pools.layout.n_kv_heads * w.n_layers;
            assert_memory_equal(x.score[i], y.score[i], n * sizeof **x.score);
            assert_memory_equal(x.list[i], y.list[i], n_units(&w) * x.stride[i] * sizeof **x.list);
        }
        free_results(&x);
        free_results(&y);
        free_world(&w);
    }
    backend_rig_close(one);
    backend_rig_close(three);
}

/* Few different scores: the newest of equal candidates win. */
static void equal_scores_select_the_newest(void **state)
{
    (void)state;
    enum { N = 3000 };
    static uint16_t score[N];
    static uint32_t list[N + 1], want[N];
    cn_backend *be = backend_rig_open(1);
    test_rng r = {9};
    for (uint32_t k = 1; k <= N; k += 1 + test_rng_below(&r, 300)) {
        const uint32_t n_values = 1 + test_rng_below(&r, 5), first = 0, n = N, base = 0;
        ranked all[N];
        for (uint32_t c = 0; c < N; c++) {
            score[c] = (uint16_t)(test_rng_below(&r, n_values) * 21845);
            all[c] = (ranked){score[c], c};
        }
        const cn_sel_stage stage = {.active = 1};
        const cn_select_args a = {.score = score,
                                  .stage = &stage,
                                  .first = &first,
                                  .n = &n,
                                  .base = &base,
                                  .k = &k,
                                  .n_seqs = 1,
                                  .n_layers = 1,
                                  .n_kv_heads = 1,
                                  .list = list,
                                  .list_stride = N};
        list[k] = UINT32_MAX;
        assert_int_equal(be->select(backend_rig_stream(be), &a), CN_OK);
        qsort(all, N, sizeof *all, by_rank);
        for (uint32_t j = 0; j < k; j++) want[j] = all[j].c;
        qsort(want, k, sizeof *want, by_number);
        assert_memory_equal(list, want, k * sizeof *list);
        assert_int_equal(list[k], UINT32_MAX);
    }
    backend_rig_close(be);
}

static void a_list_longer_than_its_room_is_refused(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    const cn_sel_stage stage = {.active = 1, .entry_log2 = 4};
    const uint32_t first = 0, n = 10, base = 16, k = 3, n_forced = 16;
    uint16_t score[10] = {0};
    uint32_t list[64];
    cn_select_args a = {.score = score,
                        .stage = &stage,
                        .first = &first,
                        .n = &n,
                        .base = &base,
                        .k = &k,
                        .n_forced = &n_forced,
                        .n_seqs = 1,
                        .n_layers = 1,
                        .n_kv_heads = 1,
                        .tokens = true,
                        .list = list,
                        .list_stride = 63};
    assert_int_equal(be->select(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "list of 64 slots of sequence 0: expected at most 63"));
    a.list_stride = 64;
    assert_int_equal(be->select(backend_rig_stream(be), &a), CN_OK);
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_is_the_nearest_and_scores_keep_the_order),
        cmocka_unit_test(logarithms_are_close),
        cmocka_unit_test(sums_of_weights_are_close_in_any_order),
        cmocka_unit_test(quantised_values_are_the_nearest_and_bounded),
        cmocka_unit_test(digests_hold_labels_and_bounds_of_complete_tiles),
        cmocka_unit_test(random_steps_agree_with_plain_loops_and_sorting),
        cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(equal_scores_select_the_newest),
        cmocka_unit_test(a_list_longer_than_its_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
