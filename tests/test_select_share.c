/* test_select_share.c - scores of labels under group rule max on the CPU compared bit by bit with
 * plain loops, written as select_math.h defines them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/select/select_math.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/select_world.h"

/* The reference is slow under the thread sanitizer. */
enum { N_DRAWN = BY_SANITIZER(80, 80, 4) };

enum { LOT = 256, LANES = 32 };

/* The query of head h of the group. */
static float *head_query(const select_world *w, const select_unit *u, uint32_t h)
{
    const uint32_t d = w->pools.layout.head_dim;
    return w->q[w->stage[u->stage][u->seq].query] + u->seq * w->q_stride +
           ((size_t)u->layer * w->pools.n_heads + u->head * w->group + h) * d;
}

/* The logit of the label at position p, times log2(e). */
static float exact_logit(const select_world *w, const select_unit *u, uint32_t p, uint32_t h)
{
    const cn_digest *g = &w->pools.digest;
    const uint32_t layer = SELECT_FIRST_LAYER + u->layer;
    uint16_t channels[SELECT_MAX_CHANNELS];
    const size_t side = select_side_of(w, layer, u->seq, u->head, p);
    const float *q = head_query(w, u, h);
    float largest = 0;
    int32_t product = 0;
    select_channels_of(w, layer, u->head, channels);
    for (uint32_t c = 0; c < g->n_channels; c++) largest = fmaxf(largest, fabsf(q[channels[c]]));
    const float scale = cn_query_scale(largest);
    for (uint32_t c = 0; c < g->n_channels; c++)
        product += cn_query_of(q[channels[c]], scale) * select_label_at(g, side, c);
    return cn_label_logit(product, cn_f16_value(g->scales[side]),
                          cn_score_scale(w->pools.layout.head_dim, true) * scale);
}

/* Adds the lot whose tokens have x[LOT]; NaN: not a candidate. Makes all x NaN. */
static cn_exp_sum add_lot(cn_exp_sum sum, float *x)
{
    float lanes[LANES] = {0};
    uint32_t first = 0, top = CN_EXPONENT_BASE;
    while (first < LOT && isnan(x[first])) first++;
    if (first == LOT) return sum;
    for (uint32_t i = 0; i < LANES; i++)
        top = cn_max_u32(top, cn_weight_exponent(x[first / LANES * LANES + i]));
    for (uint32_t i = first; i < LOT; i++)
        if (!isnan(x[i])) lanes[i % LANES] += cn_weight(x[i], cn_weight_offset(top));
    for (uint32_t n = LANES / 2; n > 0; n /= 2)
        for (uint32_t i = 0; i < n; i++) lanes[i] += lanes[i + n];
    for (uint32_t i = 0; i < LOT; i++) x[i] = NAN;
    cn_exp_sum_add_lot(&sum, lanes[0], top);
    return sum;
}

/* log2 of the sum over the candidates of a head. Tiles lie side by side in lots. */
static float exact_log2_sum(const select_world *w, const select_results *x, const select_unit *u,
                            uint32_t h)
{
    float lot[LOT];
    for (uint32_t i = 0; i < LOT; i++) lot[i] = NAN;
    cn_exp_sum sum = {{0}, 0};
    for (uint32_t c = 0; c < w->n[u->stage][u->seq]; c++) {
        const uint32_t p = select_position_of(w, x, u, c);
        const uint32_t place = w->stage[u->stage][u->seq].in_tiles ? c : p;
        if (place % LOT == 0) sum = add_lot(sum, lot);
        if (p >= w->base[u->stage][u->seq]) lot[place % LOT] = exact_logit(w, u, p, h);
    }
    return cn_exp_sum_log2(add_lot(sum, lot));
}

static float f16(float x) { return cn_f16_value(cn_f16_bits(x)); }

static void check_exact_scores(const select_world *w, const select_results *x, const select_unit *u)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    if (!st->active || st->key != CN_KEY_LABELS || st->group != CN_GROUP_MAX) return;
    const uint32_t n = w->n[u->stage][u->seq];
    uint16_t *want = cn_calloc(n + 1, sizeof *want);
    for (uint32_t h = 0; h < w->group; h++) {
        const float log2_sum = f16(exact_log2_sum(w, x, u, h));
        for (uint32_t c = 0; c < n; c++) {
            const uint32_t p = select_position_of(w, x, u, c);
            if (p < w->base[u->stage][u->seq]) continue;
            const uint16_t score = cn_share_score(f16(exact_logit(w, u, p, h)) - log2_sum);
            want[c] = score > want[c] ? score : want[c];
        }
    }
    assert_memory_equal(x->score[u->stage] + u->first, want, n * sizeof *want);
    cn_free(want);
}

static void check_exact_world(cn_backend *be, const select_world *w)
{
    select_results x = select_run_stages(be, w);
    for (size_t index = 0; index < select_units(w); index++) {
        const select_unit u = select_unit_at(w, 1, index);
        check_exact_scores(w, &x, &u);
    }
    select_results_free(&x);
}

static void scale_queries(select_world *w, float factor)
{
    for (int i = 0; i < CN_N_SEL_QUERIES; i++)
        for (size_t j = 0; j < w->n_seqs * w->q_stride; j++) w->q[i][j] *= factor;
}

/* With a factor of 300, tokens often exceed those of the window by more than 96; with the largest,
 * logits and shares exceed f16. */
static void shares_of_labels_are_those_of_plain_loops(void **state)
{
    (void)state;
    static const float factors[] = {1, 300, 30, 100, 8, 3000, 50000};
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 2 * N_DRAWN; seed++) {
        select_world w = select_world_draw(seed);
        scale_queries(&w, factors[seed / 4 % 7]);
        select_run_digest(be, &w);
        check_exact_world(be, &w);
        select_world_free(&w);
    }
    backend_rig_close(be);
}

static float *key_at(const select_world *w, uint32_t p)
{
    return paged_batch_row(w->b, SELECT_FIRST_LAYER, 0, 0, p, CN_KV_K);
}

/* A world of one unit with n tokens, whose keys are below 0 and whose queries are above. */
static select_world one_unit(uint32_t n, uint32_t base, bool in_tiles, test_rng *r)
{
    const paged_shape s = {.n_layers = SELECT_FIRST_LAYER + 1,
                           .n_heads = 1,
                           .n_kv_heads = 1,
                           .head_dim = 64,
                           .block_tokens = 64,
                           .n_seqs = 1,
                           .n_decode = 1,
                           .n_q = {1},
                           .kv_len = {n}};
    select_world w = {.n_seqs = 1, .group = 1, .n_layers = 1, .b = paged_batch_create(&s, r)};
    w.pools = (cn_pools){.layout = w.b->layout, .kv = w.b->kv, .n_heads = 1};
    select_open_digest(&w, r);
    select_draw_queries(&w, r);
    for (size_t i = 0; i < w.q_row; i++) w.q[0][i] = 1 + fabsf(w.q[0][i]);
    for (uint32_t p = 0; p < n; p++) {
        const float size = 1 + fabsf(test_rng_uniform(r));
        float *key = key_at(&w, p);
        for (uint32_t c = 0; c < s.head_dim; c++) key[c] = -size * (1 + fabsf(key[c]));
    }
    w.stage[1][0] = (cn_sel_stage){
        .active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX, .in_tiles = in_tiles};
    w.base[1][0] = base;
    w.n[1][0] = in_tiles ? n : n - base;
    if (in_tiles) {
        w.stage[0][0] = (cn_sel_stage){
            .active = 1, .key = CN_KEY_BOUNDS, .group = CN_GROUP_SUM, .entry_log2 = 6};
        w.n[0][0] = w.k[0][0] = n / 64;
    }
    for (int i = 0; i < 2; i++) w.first[i][1] = w.n[i][0];
    return w;
}

/* The logit of one token is 0 and log2 of the sum is nearly 0, where f16 is so fine that the last
 * bits of the sum decide the token's score. */
static void the_order_of_a_sum_is_that_of_plain_loops(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    for (uint64_t seed = 0; seed < N_DRAWN; seed++) {
        test_rng r = {seed};
        const uint32_t n = 64 * (1 + test_rng_below(&r, 8));
        select_world w = one_unit(n, test_rng_below(&r, 60), seed % 2, &r);
        memset(key_at(&w, n - 1), 0, 64 * sizeof(float));
        select_run_digest(be, &w);
        select_results x = select_run_stages(be, &w);
        const select_unit u = select_unit_at(&w, 1, 0);
        float *q = w.q[0], one[64], low = 0, high = 64, log2_sum = 1;
        memcpy(one, q, sizeof one);
        for (int i = 0; i < 40 && fabsf(log2_sum) > 1e-6f; i++) {
            const float middle = (low + high) / 2;
            for (uint32_t c = 0; c < 64; c++) q[c] = one[c] * middle;
            log2_sum = exact_log2_sum(&w, &x, &u, 0);
            if (log2_sum > 0)
                low = middle;
            else
                high = middle;
        }
        assert_true(fabsf(log2_sum) < 1e-4f);
        select_results_free(&x);
        check_exact_world(be, &w);
        select_world_free(&w);
    }
    backend_rig_close(be);
}

/* All logits are beyond the least exponent. There a weight of candidates below the base would
 * equal the others. */
static void candidates_below_the_base_have_no_weight(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {5};
    for (uint32_t base = 0; base < 64; base++) {
        select_world w = one_unit(64, base, true, &r);
        for (uint32_t p = 0; p < 64; p++)
            for (uint32_t c = 0; c < 64; c++) key_at(&w, p)[c] = -1;
        for (uint32_t c = 0; c < 64; c++) w.q[0][c] = 3100;
        select_run_digest(be, &w);
        check_exact_world(be, &w);
        select_world_free(&w);
    }
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_of_labels_are_those_of_plain_loops),
        cmocka_unit_test(the_order_of_a_sum_is_that_of_plain_loops),
        cmocka_unit_test(candidates_below_the_base_have_no_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
