/* test_latent.c - the ops of latent attention on the CPU, compared with sums written out here: the
 * row of a token and its queries, the products of heads, and attention with V inside of K. Together
 * they are the attention whose keys and values are computed from the rows. Events of policy zip. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/select/select_step.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

enum { MAX_LEN = 130, BLOCK = 16 };

/* One sequence of a layer. The last n_q tokens are queries. */
typedef struct world {
    uint32_t n_heads, nope, rope, rank, value, len, n_q;
    cn_kv_layout layout;
    float *kv, *q, *row, *norm, *weight; /* q [len, hq, nope+rope], row [len, rank+rope] */
    float *cos, *sin, *absorbed, *attn, *out;
    float *ring; /* [1, 1, len, hq, nope+rope] */
    uint32_t positions[MAX_LEN], slots[MAX_LEN], table[16], q_start[2], kv_len[1];
    int32_t q_rows[MAX_LEN];
} world;

static float *random_floats(test_rng *r, size_t n)
{
    float *p = cn_calloc(n, sizeof *p);
    test_rng_fill(r, p, n);
    return p;
}

static world *new_world(test_rng *r, uint32_t n_heads, uint32_t nope, uint32_t rope, uint32_t rank,
                        uint32_t value)
{
    enum { N_BLOCKS = 12 };
    world *w = cn_calloc(1, sizeof *w);
    *w = (world){.n_heads = n_heads, .nope = nope, .rope = rope, .rank = rank, .value = value};
    w->len = 1 + test_rng_below(r, MAX_LEN);
    w->n_q = 1 + test_rng_below(r, w->len);
    w->layout = cn_kv_layout_make(1, N_BLOCKS, 1, BLOCK, rank + rope, CN_F32);
    cn_kv_layout_share(&w->layout, rank, nope + rope);
    w->kv = random_floats(r, cn_kv_pool_elems(&w->layout));
    w->q = random_floats(r, (size_t)w->len * n_heads * (nope + rope));
    w->row = random_floats(r, (size_t)w->len * (rank + rope));
    w->norm = random_floats(r, rank);
    w->weight = random_floats(r, (size_t)n_heads * (nope + value) * rank);
    w->cos = random_floats(r, (size_t)w->len * rope / 2);
    w->sin = random_floats(r, (size_t)w->len * rope / 2);
    w->absorbed = random_floats(r, (size_t)w->len * n_heads * (rank + rope));
    w->attn = random_floats(r, (size_t)w->len * n_heads * rank);
    w->out = random_floats(r, (size_t)w->len * n_heads * value);
    w->ring = random_floats(r, (size_t)w->len * n_heads * (nope + rope));
    for (uint32_t i = 0; i < N_BLOCKS; i++) w->table[i] = (5 * i + 3) % N_BLOCKS;
    for (uint32_t t = 0; t < w->len; t++) {
        w->positions[t] = t;
        w->slots[t] = w->table[t / BLOCK] * BLOCK + t % BLOCK;
        w->q_rows[t] = t % 3 ? -1 : (int32_t)t;
    }
    return w;
}

static void free_world(world *w)
{
    float *const all[] = {w->kv,  w->q,        w->row,  w->norm, w->weight, w->cos,
                          w->sin, w->absorbed, w->attn, w->out,  w->ring};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cn_free(all[i]);
    cn_free(w);
}

/* Tokens [first, first + n). */
static cn_batch_view batch_of(world *w, uint32_t first, uint32_t n)
{
    w->q_start[0] = 0;
    w->q_start[1] = n;
    w->kv_len[0] = first + n;
    return (cn_batch_view){.n_tokens = n,
                           .n_seqs = 1,
                           .n_decode = n == 1,
                           .positions = w->positions + first,
                           .kv_slots = w->slots + first,
                           .q_rows = w->q_rows + first,
                           .q_start = w->q_start,
                           .kv_len = w->kv_len,
                           .tables = w->table,
                           .table_stride = 12,
                           .max_q = n,
                           .max_kv = first + n};
}

static void store(cn_backend *be, world *w)
{
    const cn_batch_view b = batch_of(w, 0, w->len);
    const cn_latent_store_args a = {.q = w->q,
                                    .row = w->row,
                                    .norm = w->norm,
                                    .eps = 1e-6F,
                                    .cos = w->cos,
                                    .sin = w->sin,
                                    .batch = &b,
                                    .n_heads = w->n_heads,
                                    .layout = w->layout,
                                    .kv = w->kv,
                                    .q_window = w->ring,
                                    .n_query_slots = 1,
                                    .window = w->len};
    assert_int_equal(be->latent_store(backend_rig_stream(be), &a), CN_OK);
}

static void multiply(cn_backend *be, const world *w, uint32_t first, uint32_t n, bool values)
{
    const cn_heads_gemm_args a = {
        .out = values ? w->out + (size_t)first * w->n_heads * w->value
                      : w->absorbed + (size_t)first * w->n_heads * (w->rank + w->rope),
        .x = values ? w->attn + (size_t)first * w->n_heads * w->rank
                    : w->q + (size_t)first * w->n_heads * (w->nope + w->rope),
        .weight = w->weight + (values ? (size_t)w->nope * w->rank : 0),
        .weight_stride = (w->nope + w->value) * w->rank,
        .n_tokens = n,
        .n_heads = w->n_heads,
        .n = values ? w->value : w->rank,
        .k = values ? w->rank : w->nope,
        .n_copied = values ? 0 : w->rope,
        .by_rows = !values};
    assert_int_equal(be->heads_gemm(backend_rig_stream(be), &a), CN_OK);
}

/* Tokens [first, first + n) of the sequence, as a step computes them. */
static void attend(cn_backend *be, world *w, uint32_t first, uint32_t n)
{
    const cn_batch_view b = batch_of(w, first, n);
    const cn_attn_args a = {.out = w->attn + (size_t)first * w->n_heads * w->rank,
                            .q = w->absorbed + (size_t)first * w->n_heads * (w->rank + w->rope),
                            .kv = w->kv,
                            .batch = &b,
                            .layout = w->layout,
                            .n_heads = w->n_heads,
                            .scale = 1 / sqrtf((float)(w->nope + w->rope))};
    multiply(be, w, first, n, false);
    assert_int_equal((n == 1 ? be->attn_decode : be->attn_prefill)(backend_rig_stream(be), &a),
                     CN_OK);
    multiply(be, w, first, n, true);
}

/* ---- the expected values ---- */

/* Pairs (i, i + half). */
static void turn(const world *w, uint32_t t, const float *x, double *out)
{
    const uint32_t half = w->rope / 2;
    for (uint32_t i = 0; i < half; i++) {
        const double c = w->cos[(size_t)t * half + i], s = w->sin[(size_t)t * half + i];
        out[i] = x[i] * c - x[half + i] * s;
        out[half + i] = x[half + i] * c + x[i] * s;
    }
}

/* The row of K of a token: norm, then RoPE. */
static void expected_row(const world *w, uint32_t t, double *out)
{
    const float *x = w->row + (size_t)t * (w->rank + w->rope);
    double squares = 0;
    for (uint32_t i = 0; i < w->rank; i++) squares += (double)x[i] * x[i];
    const double rms = sqrt(squares / w->rank + 1e-6);
    for (uint32_t i = 0; i < w->rank; i++) out[i] = x[i] / rms * w->norm[i];
    turn(w, t, x + w->rank, out + w->rank);
}

/* out[value] = attention of a head of token t, whose keys and values are computed here. Queries
 * [len, hq, nope + rope] are those before RoPE. It attends to the tokens s up to t with sees[s];
 * NULL: to all. */
static void expected_out(const world *w, const float *queries, const double *rows, uint32_t t,
                         uint32_t h, const bool *sees, double *out)
{
    const size_t d = w->nope + w->rope, width = w->rank + w->rope;
    const float *q = queries + ((size_t)t * w->n_heads + h) * d;
    const float *keys = w->weight + (size_t)h * (w->nope + w->value) * w->rank;
    const float *values = keys + (size_t)w->nope * w->rank;
    double turned[64], p[MAX_LEN], most = -INFINITY, sum = 0, mixed[512] = {0};
    turn(w, t, q + w->nope, turned);
    for (uint32_t s = 0; s <= t; s++) {
        const double *row = rows + s * width;
        p[s] = 0;
        for (uint32_t i = 0; i < w->nope; i++) {
            double key = 0;
            for (uint32_t j = 0; j < w->rank; j++) key += keys[(size_t)i * w->rank + j] * row[j];
            p[s] += q[i] * key;
        }
        for (uint32_t i = 0; i < w->rope; i++) p[s] += turned[i] * row[w->rank + i];
        p[s] = sees && !sees[s] ? -INFINITY : p[s] / sqrt((double)d);
        most = fmax(most, p[s]);
    }
    for (uint32_t s = 0; s <= t; s++) sum += p[s] = exp(p[s] - most);
    for (uint32_t s = 0; s <= t; s++)
        for (uint32_t j = 0; j < w->rank; j++) mixed[j] += p[s] / sum * rows[s * width + j];
    for (uint32_t i = 0; i < w->value; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j < w->rank; j++) out[i] += values[(size_t)i * w->rank + j] * mixed[j];
    }
}

static void check_world(cn_backend *be, world *w, test_rng *r)
{
    const size_t width = w->rank + w->rope, d = w->nope + w->rope;
    const size_t n_q = (size_t)w->len * w->n_heads * d;
    float *queries = cn_calloc(n_q, sizeof *queries);
    double *rows = cn_calloc(w->len * width, sizeof *rows);
    memcpy(queries, w->q, n_q * sizeof *queries);
    store(be, w);
    for (uint32_t t = 0; t < w->len; t++) {
        const float *got = w->kv + cn_kv_row(&w->layout, 0, w->slots[t] / 16, 0, w->slots[t] % 16,
                                             CN_KV_K);
        expected_row(w, t, rows + t * width);
        for (uint32_t i = 0; i < width; i++)
            assert_true(fabs(got[i] - rows[t * width + i]) < 1e-5 * fmax(1, fabs(got[i])));
        if (w->q_rows[t] >= 0)
            assert_memory_equal(w->ring + t * w->n_heads * d, w->q + t * w->n_heads * d,
                                w->n_heads * d * sizeof(float));
    }
    const uint32_t first = w->len - w->n_q;
    attend(be, w, first, w->n_q);
    for (uint32_t i = 0; i < 6; i++) {
        const uint32_t t = first + test_rng_below(r, w->n_q), h = test_rng_below(r, w->n_heads);
        double want[512];
        expected_out(w, queries, rows, t, h, NULL, want);
        const float *got = w->out + ((size_t)t * w->n_heads + h) * w->value;
        for (uint32_t j = 0; j < w->value; j++)
            if (fabs(got[j] - want[j]) > 2e-4 * fmax(1, fabs(want[j])))
                fail_msg("%u heads, token %u: got %g, expected %g", w->n_heads, t, (double)got[j],
                         want[j]);
    }
    cn_free(queries);
    cn_free(rows);
}

/* ---- the tests ---- */

static void ops_agree_with_expanded_keys_and_values(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_heads, nope, rope, rank, value;
    } shapes[] = {{16, 128, 64, 512, 128}, {20, 192, 64, 512, 256}, {64, 64, 32, 256, 64},
                  {128, 32, 32, 128, 32},  {1, 8, 16, 16, 8},       {3, 24, 48, 48, 40}};
    cn_backend *be = backend_rig_open(2);
    for (uint32_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        test_rng r = {i};
        world *w = new_world(&r, shapes[i / 2].n_heads, shapes[i / 2].nope, shapes[i / 2].rope,
                             shapes[i / 2].rank, shapes[i / 2].value);
        check_world(be, w, &r);
        free_world(w);
    }
    backend_rig_close(be);
}

/* A prompt at once and token by token gives the same bits. */
static void decode_rows_have_the_bits_of_a_prompt(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint32_t seed = 0; seed < 4; seed++) {
        test_rng r = {seed};
        world *w = new_world(&r, seed % 2 ? 20 : 128, 24, 32, 64, 40);
        const size_t n = (size_t)w->len * w->n_heads * w->value;
        float *whole = cn_calloc(n, sizeof *whole);
        store(be, w);
        attend(be, w, 0, w->len);
        memcpy(whole, w->out, n * sizeof *whole);
        memset(w->out, 0, n * sizeof *whole);
        for (uint32_t t = 0; t < w->len; t++) attend(be, w, t, 1);
        assert_memory_equal(w->out, whole, n * sizeof *whole);
        cn_free(whole);
        free_world(w);
    }
    backend_rig_close(be);
}

/* ---- selection ---- */

enum { N_FORCED = 3, N_LISTED = 20, TAIL = 9 };

/* The newest token attends to the list that `oracle` chooses, and to the tail. */
static void attend_to_list(cn_backend *be, world *w, uint32_t *list)
{
    const uint32_t t = w->len - 1, first = 0, base = N_FORCED, tail = w->len - TAIL, k = N_LISTED;
    const uint32_t n = tail - base, list_len = base + k, length = list_len + TAIL, none = 0;
    const cn_sel_stage idle = {0},
                       oracle = {.active = 1, .key = CN_KEY_ROWS, .group = CN_GROUP_MAX};
    const cn_batch_view b = batch_of(w, t, 1);
    static uint16_t score[MAX_LEN];
    float *logits = cn_calloc((size_t)n * cn_logit_row(w->n_heads), sizeof *logits);
    const float scale = 1 / sqrtf((float)(w->nope + w->rope));
    const cn_attend_selected_args a = {
        .attn = {.out = w->attn + (size_t)t * w->n_heads * w->rank,
                 .q = w->absorbed + (size_t)t * w->n_heads * (w->rank + w->rope),
                 .kv = w->kv,
                 .batch = &b,
                 .layout = w->layout,
                 .n_heads = w->n_heads,
                 .scale = scale},
        .pools = {.layout = w->layout, .kv = w->kv, .n_heads = w->n_heads, .scale = scale},
        .rows = {.stage = {{&idle, &first, &none, &none, &none},
                           {&oracle, &first, &n, &base, &k}},
                 .n_forced = &base,
                 .seed = &none,
                 .list_len = &list_len,
                 .tail = &tail,
                 .lengths = &length},
        .scratch = {.score = score,
                    .logits = logits,
                    .list = list,
                    .room = MAX_LEN,
                    .list_stride = MAX_LEN},
        .n_rows = 1};
    multiply(be, w, t, 1, false);
    if (be->attend_selected(backend_rig_stream(be), &a) != CN_OK) fail_msg("%s", cn_last_error());
    multiply(be, w, t, 1, true);
    cn_free(logits);
}

/* best[s] = the larger of itself and the share of token s of the attention of a head to the
 * candidates, as a logarithm. */
static void add_shares(const world *w, const float *queries, const double *rows, uint32_t h,
                       double *best)
{
    const uint32_t t = w->len - 1;
    const size_t d = w->nope + w->rope, width = w->rank + w->rope;
    const float *q = queries + ((size_t)t * w->n_heads + h) * d;
    const float *keys = w->weight + (size_t)h * (w->nope + w->value) * w->rank;
    double turned[64], logit[MAX_LEN], sum = 0;
    turn(w, t, q + w->nope, turned);
    for (uint32_t s = N_FORCED; s < w->len - TAIL; s++) {
        logit[s] = 0;
        for (uint32_t i = 0; i < w->nope; i++)
            for (uint32_t j = 0; j < w->rank; j++)
                logit[s] += q[i] * (double)keys[(size_t)i * w->rank + j] * rows[s * width + j];
        for (uint32_t i = 0; i < w->rope; i++)
            logit[s] += turned[i] * rows[s * width + w->rank + i];
        logit[s] /= sqrt((double)d);
        sum += exp(logit[s]);
    }
    for (uint32_t s = N_FORCED; s < w->len - TAIL; s++)
        best[s] = fmax(best[s], logit[s] - log(sum));
}

/* No candidate outside the list has a larger share than one in it. Scores are f16. */
static void check_ranks(const world *w, const double *best, const bool *sees)
{
    double least = INFINITY, most = -INFINITY;
    for (uint32_t s = N_FORCED; s < w->len - TAIL; s++)
        if (sees[s])
            least = fmin(least, best[s]);
        else
            most = fmax(most, best[s]);
    assert_true(most <= least + 2e-2);
}

static void check_list(cn_backend *be, test_rng *r, uint32_t n_heads)
{
    world *w = new_world(r, n_heads, 24, 16, 64, 8);
    while (w->len < N_FORCED + N_LISTED + TAIL + 20) {
        free_world(w);
        w = new_world(r, n_heads, 24, 16, 64, 8);
    }
    const size_t width = w->rank + w->rope, n_q = (size_t)w->len * n_heads * (24 + 16);
    const uint32_t t = w->len - 1;
    float *queries = cn_calloc(n_q, sizeof *queries);
    double *rows = cn_calloc(w->len * width, sizeof *rows), want[512];
    uint32_t list[MAX_LEN];
    double best[MAX_LEN];
    bool sees[MAX_LEN] = {false};
    for (uint32_t s = 0; s < MAX_LEN; s++) best[s] = -INFINITY;
    memcpy(queries, w->q, n_q * sizeof *queries);
    store(be, w);
    for (uint32_t s = 0; s < w->len; s++) expected_row(w, s, rows + s * width);
    attend_to_list(be, w, list);
    for (uint32_t i = 0; i < N_FORCED + N_LISTED; i++) {
        assert_true(i < N_FORCED ? list[i] == i : list[i] > list[i - 1]);
        sees[list[i]] = true;
    }
    for (uint32_t s = w->len - TAIL; s < w->len; s++) sees[s] = true;
    for (uint32_t h = 0; h < n_heads; h++) {
        const float *got = w->out + ((size_t)t * n_heads + h) * w->value;
        expected_out(w, queries, rows, t, h, sees, want);
        for (uint32_t j = 0; j < w->value; j++)
            assert_true(fabs(got[j] - want[j]) < 2e-4 * fmax(1, fabs(want[j])));
        add_shares(w, queries, rows, h, best);
    }
    check_ranks(w, best, sees);
    cn_free(queries);
    cn_free(rows);
    free_world(w);
}

/* One list for all heads: of the tokens with the largest share of any head. */
static void a_step_attends_to_its_list_and_tail(void **state)
{
    (void)state;
    static const uint32_t heads[] = {1, 16, 20};
    cn_backend *be = backend_rig_open(2);
    for (uint32_t i = 0; i < 12; i++) {
        test_rng r = {i + 70};
        check_list(be, &r, heads[i % 3]);
    }
    backend_rig_close(be);
}

/* Predicted queries are multiplied by the key matrices: the newest, rotated by one position. */
static void predicted_queries_are_those_of_rows(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {3};
    world *w = new_world(&r, 20, 24, 16, 64, 8);
    while (w->len < 12) w->len++;
    enum { SEQS = 2, LAYERS = 2, WIDTH = 64 + 16, RAW_DIM = 24 + 16, ROWS = 4 };
    cn_kv_layout l = cn_kv_layout_make(LAYERS, 1, 1, BLOCK, WIDTH, CN_F32);
    cn_kv_layout_share(&l, 64, RAW_DIM);
    float *ring = random_floats(&r, (size_t)LAYERS * SEQS * ROWS * 20 * RAW_DIM);
    float *out = random_floats(&r, (size_t)SEQS * LAYERS * 20 * WIDTH + 8);
    float *raw = random_floats(&r, (size_t)SEQS * 20 * RAW_DIM);
    float *other = random_floats(&r, (size_t)20 * (24 + 8) * 64);
    const void *weights[LAYERS] = {w->weight, other};
    const cn_pools pools = {.layout = l,
                            .n_heads = 20,
                            .act_dtype = CN_F32,
                            .latent = {weights, (24 + 8) * 64}};
    const uint32_t slots[SEQS] = {1, 0}, newest[SEQS] = {6, 9}, modulus[SEQS] = {4, 3};
    const uint32_t window[SEQS] = {1, 1};
    const uint8_t soft[SEQS] = {0}, rotated[SEQS] = {1, 0};
    float cos[2 * 8], sin[2 * 8];
    for (uint32_t i = 0; i < 16; i++) {
        cos[i] = i < 8 ? 1 : cosf(0.3F * (float)i);
        sin[i] = i < 8 ? 0 : sinf(0.3F * (float)i);
    }
    const cn_predict_args a = {.ring = ring, .n_query_slots = SEQS, .rows = ROWS, .n_heads = 20,
                               .slots = slots, .newest = newest, .modulus = modulus,
                               .n_window = window, .weights = soft, .rotate = rotated,
                               .n_seqs = SEQS, .n_layers = LAYERS, .eps = 0.01F, .cos = cos,
                               .sin = sin, .out = out, .out_stride = LAYERS * 20 * WIDTH + 4};
    assert_int_equal(cn_select_predict_keys(be, backend_rig_stream(be), &pools, a, raw), CN_OK);
    for (uint32_t i = 0; i < SEQS * LAYERS * 20; i++) {
        const uint32_t h = i % 20, layer = i / 20 % LAYERS, s = i / 20 / LAYERS;
        const float *q = ring + cn_query_row(SEQS, ROWS, 20, RAW_DIM, layer, slots[s],
                                             newest[s] % modulus[s], h);
        const float *keys = (const float *)weights[layer] + (size_t)h * (24 + 8) * 64;
        const float *got = out + s * a.out_stride + ((size_t)layer * 20 + h) * WIDTH;
        for (uint32_t c = 0; c < WIDTH; c++) {
            double want = 0;
            for (uint32_t k = 0; c < 64 && k < 24; k++) want += (double)q[k] * keys[k * 64 + c];
            const uint32_t e = c - 64, pair = e % 8;
            const float *x = q + 24;
            if (c >= 64 && !rotated[s]) want = x[e];
            if (c >= 64 && rotated[s])
                want = e < 8 ? x[pair] * cos[8 + pair] - x[8 + pair] * sin[8 + pair]
                             : x[8 + pair] * cos[8 + pair] + x[pair] * sin[8 + pair];
            assert_true(fabs(got[c] - want) < 1e-4);
        }
    }
    cn_free(ring);
    cn_free(out);
    cn_free(raw);
    cn_free(other);
    free_world(w);
    backend_rig_close(be);
}

static void other_shapes_are_refused(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    cn_latent_store_args a = {.n_heads = 2,
                              .layout = cn_kv_layout_make(1, 1, 1, 16, 64, CN_F32)};
    assert_int_equal(be->latent_store(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    cn_kv_layout_share(&a.layout, 40, 64);
    assert_int_equal(be->latent_store(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "rows of 64, of them 40 of V"));
    const cn_heads_gemm_args g = {.n_heads = 2, .n = 8, .k = 24, .n_tokens = 1};
    assert_int_equal(be->heads_gemm(backend_rig_stream(be), &g), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "matrix of 24 columns"));
    backend_rig_close(be);
}

/* ---- events ---- */

enum { BLOCKS = 8, TARGETS = 3, WINDOW = 6, RING = 21, HEADS = 20 }; /* RING: rows of it */
enum { NOPE = 24, ROPE = 16, RANK = 48, VALUE = 8, RAW = NOPE + ROPE, ROW = RANK + ROPE };

/* Pools of one layer with F and P, and the result of an event. */
typedef struct event_pools {
    cn_pools pools;
    float *ring;
} event_pools;

static event_pools new_pools(test_rng *r, bool latent, float scale)
{
    event_pools e = {0};
    cn_pools *p = &e.pools;
    p->layout = cn_kv_layout_make(1, BLOCKS, 1, BLOCK, ROW, CN_F32);
    if (latent) cn_kv_layout_share(&p->layout, RANK, RAW);
    p->kv = random_floats(r, cn_kv_pool_elems(&p->layout));
    p->score = cn_calloc(BLOCKS * BLOCK, sizeof *p->score);
    p->origin = cn_calloc(BLOCKS * BLOCK, sizeof *p->origin);
    p->q_window = e.ring = random_floats(r, (size_t)RING * HEADS * p->layout.query_dim);
    p->n_query_slots = 1;
    p->window = RING;
    p->n_heads = HEADS;
    p->scale = scale;
    return e;
}

static void free_pools(event_pools *e)
{
    cn_free(e->pools.kv);
    cn_free(e->pools.score);
    cn_free(e->pools.origin);
    cn_free(e->ring);
}

static const float *row_at(const cn_pools *p, uint32_t slot)
{
    return (const float *)p->kv + cn_kv_row(&p->layout, 0, slot / BLOCK, 0, slot % BLOCK, CN_KV_K);
}

/* What differs between the events of the seeds. */
static cn_kv_params params_of(uint64_t seed)
{
    static const cn_kv_rule rules[] = {CN_RULE_ZIPAGE, CN_RULE_SCALED, CN_RULE_PEAK};
    return (cn_kv_params){.rule = rules[seed / 3 % 3],
                          .redundancy = (cn_kv_redundancy)(seed % 3),
                          .head_rule = seed % 2 ? CN_HEADS_MEAN : CN_HEADS_MAX,
                          .observe_tokens = seed % 4 < 2 ? RING : 0};
}

static void run_event(cn_backend *be, event_pools *e, const cn_kv_params *drawn)
{
    uint32_t table[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) table[i] = i;
    const cn_compress_req req = {.params = {.policy = CN_KV_ZIP,
                                            .budget_tokens = TARGETS * BLOCK,
                                            .window_tokens = WINDOW,
                                            .global_score = true,
                                            .alpha = 0.8F,
                                            .rule = drawn->rule,
                                            .redundancy = drawn->redundancy,
                                            .head_rule = drawn->head_rule,
                                            .observe_tokens = drawn->observe_tokens,
                                            .redundancy_p = 0.3F,
                                            .redundancy_tau = 0.1F,
                                            .lambda = 0.6F,
                                            .combine = CN_COMBINE_SUBTRACT},
                                 .n_blocks = BLOCKS,
                                 .n_target = TARGETS,
                                 .table = table,
                                 .target = table,
                                 .position_end = BLOCKS * BLOCK,
                                 .first_event = true};
    const size_t bytes = be->compress_scratch_bytes(be, &e->pools, BLOCKS * BLOCK);
    void *scratch = cn_calloc_aligned(bytes, 1);
    const cn_compress_args a = {
        .pools = e->pools, .reqs = &req, .n_reqs = 1, .scratch = scratch, .scratch_bytes = bytes};
    if (be->compress(backend_rig_stream(be), &a) != CN_OK) fail_msg("%s", cn_last_error());
    cn_free(scratch);
}

/* An event keeps what it keeps of K and V of one head of the same width, whose ring has the
 * queries after the product with the key matrices. */
static void check_event(cn_backend *be, uint64_t seed)
{
    const cn_kv_params drawn = params_of(seed);
    test_rng r = {seed};
    /* Queries that are twice as long, times half of the scale: 1 / sqrt(ROW). */
    event_pools latent = new_pools(&r, true, 0.25F), plain = new_pools(&r, false, 0);
    float *weight = random_floats(&r, (size_t)HEADS * (NOPE + VALUE) * RANK);
    const void *layers[] = {weight};
    latent.pools.latent = (cn_latent_keys){layers, (NOPE + VALUE) * RANK};
    for (uint32_t s = 0; s < BLOCKS * BLOCK; s++)
        memcpy((float *)(uintptr_t)row_at(&plain.pools, s), row_at(&latent.pools, s),
               ROW * sizeof(float));
    const cn_heads_gemm_args g = {.out = plain.ring, .x = latent.ring, .weight = weight,
                                  .weight_stride = (NOPE + VALUE) * RANK, .n_tokens = RING,
                                  .n_heads = HEADS, .n = RANK, .k = NOPE, .n_copied = ROPE,
                                  .by_rows = true};
    assert_int_equal(be->heads_gemm(backend_rig_stream(be), &g), CN_OK);
    for (uint32_t i = 0; i < RING * HEADS * ROW; i++) plain.ring[i] *= 2;
    run_event(be, &latent, &drawn);
    run_event(be, &plain, &drawn);
    const size_t n = (size_t)TARGETS * BLOCK;
    assert_memory_equal(latent.pools.origin, plain.pools.origin, n * sizeof(uint32_t));
    assert_memory_equal(latent.pools.score, plain.pools.score, n * sizeof(float));
    uint32_t n_moved = 0;
    for (uint32_t s = 0; s < n; s++) {
        assert_memory_equal(row_at(&latent.pools, s), row_at(&plain.pools, s), ROW * sizeof(float));
        n_moved += latent.pools.origin[s] != s;
    }
    assert_true(n_moved > 0 && latent.pools.score[0] > 0);
    free_pools(&latent);
    free_pools(&plain);
    cn_free(weight);
}

static void an_event_multiplies_the_queries_of_its_window(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    for (uint64_t seed = 0; seed < 36; seed++) check_event(be, seed);
    backend_rig_close(be);
}

/* Bytes of a block and of the ring. */
static void a_layout_has_one_part(void **state)
{
    (void)state;
    cn_kv_layout l = cn_kv_layout_make(47, 9, 1, 64, 576, CN_BF16);
    cn_kv_layout_share(&l, 512, 256);
    assert_int_equal(l.block_bytes, 64 * 1152);
    assert_int_equal(cn_kv_pool_bytes(&l), (size_t)47 * 9 * 64 * 1152);
    assert_int_equal(cn_kv_at(&l, 3, 2, 0, 7, CN_KV_V), cn_kv_at(&l, 3, 2, 0, 7, CN_KV_K));
    assert_int_equal(l.part[CN_KV_V].width, 512);
    assert_true(cn_kv_layout_is_shared(&l) && !cn_kv_layout_is_uniform(&l, CN_BF16));
    const cn_kv_layout more = cn_kv_layout_like(&l, 2, 5);
    assert_int_equal(cn_kv_pool_bytes(&more), (size_t)2 * 5 * 64 * 1152);
    assert_int_equal(more.query_dim, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_agree_with_expanded_keys_and_values),
        cmocka_unit_test(decode_rows_have_the_bits_of_a_prompt),
        cmocka_unit_test(a_step_attends_to_its_list_and_tail),
        cmocka_unit_test(predicted_queries_are_those_of_rows),
        cmocka_unit_test(other_shapes_are_refused),
        cmocka_unit_test(an_event_multiplies_the_queries_of_its_window),
        cmocka_unit_test(a_layout_has_one_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
