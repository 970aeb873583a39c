/* test_select_cpu.c - digest, score and select on the CPU compared with plain loops in double and
 * with sorting, on random shapes. The arithmetic: test_select_math.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compress/selector.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/select/select_math.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/score_value.h"
#include "tests/lib/select_world.h"

/* The reference is slow under the thread sanitizer. */
enum { N_DRAWN = BY_SANITIZER(80, 80, 4), N_LATENT = BY_SANITIZER(24, 12, 2) };

/* ---- digest against plain loops ---- */

static void check_label(const select_world *w, uint32_t layer, uint32_t s, uint32_t head,
                        uint32_t p)
{
    const cn_digest *g = &w->pools.digest;
    const float *key = select_key_of(w, layer, s, head, p);
    const size_t side = select_side_of(w, layer, s, head, p);
    const size_t unit = (size_t)layer * w->pools.layout.n_kv_heads + head;
    const float *offsets = g->offsets ? g->offsets + unit * g->n_channels : NULL;
    uint16_t channels[SELECT_MAX_CHANNELS];
    double largest = 0, rest[SELECT_MAX_CHANNELS];
    select_channels_of(w, layer, head, channels);
    for (uint32_t c = 0; c < g->n_channels; c++) {
        rest[c] = (double)(key[channels[c]] - (offsets ? offsets[c] : 0));
        largest = fmax(largest, fabs(rest[c]));
    }
    const double scale = test_nearest_f16((double)((float)largest / 7));
    assert_true((double)cn_f16_value(g->scales[side]) == scale);
    for (uint32_t c = 0; c < g->n_channels; c++) {
        const double ratio = rest[c] / scale, label = select_label_at(g, side, c);
        assert_true(fabs(label) <= 7);
        assert_true(fabs(ratio - label) <= 0.5 + 1e-5 || (fabs(ratio) > 7 && fabs(label) == 7));
    }
}

static void check_bounds(const select_world *w, const float *bounds, uint32_t entry, uint32_t layer,
                         uint32_t s, uint32_t head, uint32_t p)
{
    const uint32_t d = w->pools.layout.head_dim;
    const float *low = bounds + select_side_of(w, layer, s, head, p) / entry * 2 * d;
    for (uint32_t c = 0; c < d; c++) {
        float least = INFINITY, most = -INFINITY;
        for (uint32_t i = 0; i < entry; i++) {
            const float x = select_key_of(w, layer, s, head, p + i)[c];
            least = fminf(least, x);
            most = fmaxf(most, x);
        }
        assert_true(low[c] == least && low[d + c] == most);
    }
}

/* Returns the number of bytes of the labels that are still poison. */
static size_t poison_left(const select_world *w)
{
    const cn_kv_layout *l = &w->pools.layout;
    const size_t n = (size_t)l->n_layers * l->n_blocks;
    const size_t bytes = n * cn_block_plane_bytes(l, CN_PLANE_SCALES);
    const uint8_t *scales = (const uint8_t *)w->pools.digest.scales;
    size_t count = 0;
    for (size_t i = 0; i < bytes; i += 2)
        count += scales[i] == SELECT_POISON && scales[i + 1] == SELECT_POISON;
    return count;
}

static void check_digests(cn_backend *be, select_world w)
{
    const cn_kv_layout *l = &w.pools.layout;
    const cn_digest *g = &w.pools.digest;
    const size_t heads = (size_t)l->n_layers * l->n_kv_heads, all = poison_left(&w);
    size_t written = 0;
    select_run_digest(be, &w);
    for (uint32_t s = 0; s < w.n_seqs; s++) {
        const uint32_t complete = w.b->kv_len[s] / l->tile_tokens * l->tile_tokens;
        written += complete * heads;
        for (uint32_t p = 0; p < complete; p++) {
            const uint32_t layer = (p + s) % SELECT_LAYERS, head = p % l->n_kv_heads;
            check_label(&w, layer, s, head, p);
            if (p % 16 == 0) check_bounds(&w, g->bounds_16, 16, layer, s, head, p);
            if (g->bounds_64 && p % 64 == 0) check_bounds(&w, g->bounds_64, 64, layer, s, head, p);
        }
    }
    assert_int_equal(poison_left(&w), all - written);
    select_world_free(&w);
}

static void digests_hold_labels_and_bounds_of_complete_tiles(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_DRAWN / 2; seed++) check_digests(be, select_world_draw(seed));
    for (uint64_t seed = 0; seed < N_LATENT; seed++)
        check_digests(be, select_world_draw_latent(seed));
    backend_rig_close(be);
}

/* 2/9 of a row, a multiple of 16. */
static void latent_rows_have_labels_of_two_ninths(void **state)
{
    (void)state;
    static const uint32_t channels[][2] = {{576, 128}, {320, 64}, {160, 32},
                                           {80, 16},   {48, 16},  {1152, 128}};
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        cn_kv_layout l = cn_kv_layout_make(1, 1, 1, 64, channels[i][0], CN_BF16);
        cn_kv_layout_share(&l, channels[i][0] / 2, 64);
        assert_int_equal(cn_layout_label_channels(&l), channels[i][1]);
        assert_int_equal(cn_block_plane_bytes(&l, CN_PLANE_LABELS), 64 * channels[i][1] / 2);
    }
}

/* ---- scores against plain loops ---- */

/* The query of head h of the group; or the group's mean. */
static void query_of(const select_world *w, const select_unit *u, uint32_t h, double *q)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t d = w->pools.layout.head_dim;
    const float *from = w->q[st->query] + u->seq * w->q_stride +
                        ((size_t)u->layer * w->pools.n_heads + u->head * w->group) * d;
    for (uint32_t c = 0; c < d; c++) {
        q[c] = (double)from[h * d + c];
        if (st->group != CN_GROUP_MEAN) continue;
        q[c] = 0;
        for (uint32_t g = 0; g < w->group; g++) q[c] += (double)from[g * d + c] / w->group;
    }
}

static double label_product(const select_world *w, const select_unit *u, uint32_t p,
                            const double *q)
{
    const cn_digest *g = &w->pools.digest;
    const uint32_t layer = SELECT_FIRST_LAYER + u->layer;
    uint16_t channels[SELECT_MAX_CHANNELS];
    const size_t side = select_side_of(w, layer, u->seq, u->head, p);
    double largest = 0, sum = 0;
    select_channels_of(w, layer, u->head, channels);
    for (uint32_t c = 0; c < g->n_channels; c++) largest = fmax(largest, fabs(q[channels[c]]));
    for (uint32_t c = 0; c < g->n_channels; c++)
        sum += rint(q[channels[c]] / largest * 127) * select_label_at(g, side, c);
    return sum * largest / 127 * (double)cn_f16_value(g->scales[side]);
}

/* The largest product that the keys of the entry at position p allow, channel by channel. */
static double largest_product(const select_world *w, const select_unit *u, uint32_t p,
                              const double *q)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t d = w->pools.layout.head_dim, layer = SELECT_FIRST_LAYER + u->layer;
    double sum = 0;
    for (uint32_t c = 0; c < d; c++) {
        double best = -INFINITY;
        for (uint32_t i = 0; i < 1U << st->entry_log2; i++)
            best = fmax(best, q[c] * (double)select_key_of(w, layer, u->seq, u->head, p + i)[c]);
        sum += best;
    }
    return sum;
}

/* The logit of the candidate at position p. */
static double logit_of(const select_world *w, const select_unit *u, uint32_t p, const double *q)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    switch ((cn_sel_key)st->key) { /* the compiler asks for each key */
    case CN_KEY_LABELS: return label_product(w, u, p, q) * select_scale_of(w);
    case CN_KEY_ROWS:
    case CN_KEY_BOUNDS: return largest_product(w, u, p, q) * select_scale_of(w);
    case CN_KEY_HASH:
    case CN_N_SEL_KEYS: break;
    }
    fail_msg("key %u has no logits", st->key);
    return NAN;
}

/* 2^x, linear between powers of two. */
static double interpolated_power(double x) { return ldexp(1 + x - floor(x), (int)floor(x)); }

/* want[n] = the scores of a unit; NaN below the base. A share is a difference of
 * two rounded terms: slack[n] is what their rounding may change. */
static void reference_scores(const select_world *w, const select_results *x, const select_unit *u,
                             double *want, double *slack)
{
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    const uint32_t n = w->n[u->stage][u->seq], base = w->base[u->stage][u->seq];
    const uint32_t n_heads = st->group == CN_GROUP_MEAN ? 1 : w->group;
    double *logits = cn_calloc(n + 1, sizeof *logits), q[SELECT_MAX_D];
    for (uint32_t c = 0; c < n; c++) want[c] = st->group == CN_GROUP_SUM ? 0 : -INFINITY;
    memset(slack, 0, n * sizeof *slack);
    for (uint32_t h = 0; h < n_heads; h++) {
        double sum = 0;
        query_of(w, u, h, q);
        for (uint32_t c = 0; c < n; c++) {
            const uint32_t p = select_position_of(w, x, u, c);
            logits[c] = p < base ? NAN : logit_of(w, u, p, q);
            if (st->group == CN_GROUP_MAX) logits[c] *= (double)CN_LOG2_E;
            if (p >= base) sum += interpolated_power(logits[c]);
        }
        const double log2_sum = st->group == CN_GROUP_MAX ? log2(sum) - 0.0430356 : 0;
        for (uint32_t c = 0; c < n; c++) {
            if (st->group == CN_GROUP_MAX)
                slack[c] = fmax(slack[c], 6e-4 * (fabs(logits[c]) + fabs(log2_sum)));
            logits[c] -= log2_sum;
            want[c] = st->group == CN_GROUP_SUM ? want[c] + logits[c]
                      : isnan(logits[c])        ? NAN
                                                : fmax(want[c], logits[c]);
        }
    }
    cn_free(logits);
}

static void check_scores(const select_world *w, const select_results *x, const select_unit *u)
{
    const uint32_t n = w->n[u->stage][u->seq];
    const uint16_t *got = x->score[u->stage] + u->first;
    const cn_sel_stage *st = &w->stage[u->stage][u->seq];
    if (!st->active) {
        for (uint32_t c = 0; c < n; c++) assert_int_equal(got[c], SELECT_POISON * 0x101);
        return;
    }
    if (st->key == CN_KEY_HASH) {
        for (uint32_t c = 0; c < n; c++)
            assert_int_equal(got[c], cn_hash_score(w->seed[u->seq], SELECT_FIRST_LAYER + u->layer,
                                                   u->head, select_position_of(w, x, u, c)));
        return;
    }
    double *want = cn_calloc(n + 1, sizeof *want), *slack = cn_calloc(n + 1, sizeof *slack);
    reference_scores(w, x, u, want, slack);
    for (uint32_t c = 0; c < n; c++) {
        if (isnan(want[c])) {
            assert_int_equal(got[c], 0);
            continue;
        }
        const double error = fabs((double)test_score_value(got[c]) - want[c]);
        assert_true(error <= 6e-4 * fabs(want[c]) + 1e-4 + slack[c]);
    }
    cn_free(want);
    cn_free(slack);
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

static void check_list(const select_world *w, const select_results *x, const select_unit *u)
{
    const uint32_t i = u->stage, s = u->seq, n = w->n[i][s],
                   entry = 1U << w->stage[i][s].entry_log2;
    const uint32_t k = cn_min_u32(w->k[i][s], n);
    const uint32_t *got = x->list[i] + u->index * x->stride[i];
    if (!w->stage[i][s].active) {
        assert_int_equal(got[0], 0x01010101u * SELECT_POISON);
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
        const uint32_t p = select_position_of(w, x, u, all[j].c);
        if (i == 0) want[n_want++] = p / entry;
        for (uint32_t t = 0; i == 1 && t < entry; t++) want[n_want++] = p + t;
    }
    qsort(want, n_want, sizeof *want, by_number);
    for (uint32_t j = 0; j + 1 < n_want; j++) assert_true(want[j] < want[j + 1]);
    assert_memory_equal(got, want, n_want * sizeof *want);
    assert_int_equal(got[n_want], 0x01010101u * SELECT_POISON);
    cn_free(want);
    cn_free(all);
}

static void check_step(cn_backend *be, select_world w)
{
    select_run_digest(be, &w);
    select_results x = select_run_stages(be, &w);
    for (uint32_t i = 0; i < 2; i++)
        for (size_t index = 0; index < select_units(&w); index++) {
            const select_unit u = select_unit_at(&w, i, index);
            check_scores(&w, &x, &u);
            check_list(&w, &x, &u);
        }
    select_results_free(&x);
    select_world_free(&w);
}

static void random_steps_agree_with_plain_loops_and_sorting(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_DRAWN; seed++) check_step(be, select_world_draw(seed));
    backend_rig_close(be);
}

static void steps_over_latent_rows_agree_with_plain_loops_and_sorting(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 2 * N_LATENT; seed++)
        check_step(be, select_world_draw_latent(seed));
    backend_rig_close(be);
}

static void results_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    cn_backend *one = backend_rig_open(1), *three = backend_rig_open(3);
    for (uint64_t seed = 0; seed < N_DRAWN / 4; seed++) {
        select_world w = select_world_draw(seed);
        select_run_digest(one, &w);
        select_results x = select_run_stages(one, &w);
        select_run_digest(three, &w);
        select_results y = select_run_stages(three, &w);
        for (uint32_t i = 0; i < 2; i++) {
            const size_t n = w.first[i][w.n_seqs] * (size_t)w.pools.layout.n_kv_heads * w.n_layers;
            assert_memory_equal(x.score[i], y.score[i], n * sizeof **x.score);
            assert_memory_equal(x.list[i], y.list[i],
                                select_units(&w) * x.stride[i] * sizeof **x.list);
        }
        select_results_free(&x);
        select_results_free(&y);
        select_world_free(&w);
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

/* ---- coverage ---- */

static bool is_drawn(const cn_sel_stage *st)
{
    uint32_t n;
    const cn_sel_stage *drawn = select_world_stages(&n);
    for (uint32_t i = 0; i < n; i++)
        if (drawn[i].active && drawn[i].key == st->key && drawn[i].group == st->group &&
            drawn[i].entry_log2 == st->entry_log2 && drawn[i].in_tiles == st->in_tiles)
            return true;
    return false;
}

/* The tests above, and those of the GPU, draw every stage over tokens that a selector can have. */
static void the_stages_of_every_selector_are_drawn(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4 * CN_N_SELECTORS; i++) {
        const cn_kv_params kv = {.select = (cn_kv_select)(i / 4),
                                 .select_keys = i % 4 / 2 ? CN_SELECT_ROWS : CN_SELECT_LABELS,
                                 .select_group = i % 2 ? CN_SELECT_MEAN : CN_SELECT_MAX};
        const cn_sel_stage st = cn_selector_token_stage(&kv);
        if (kv.select != CN_SELECT_NONE && !is_drawn(&st))
            fail_msg("no row ranks as selector %s: add its stage to tests/lib/select_world.c",
                     cn_kv_select_name(kv.select));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_hold_labels_and_bounds_of_complete_tiles),
        cmocka_unit_test(latent_rows_have_labels_of_two_ninths),
        cmocka_unit_test(random_steps_agree_with_plain_loops_and_sorting),
        cmocka_unit_test(steps_over_latent_rows_agree_with_plain_loops_and_sorting),
        cmocka_unit_test(results_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(equal_scores_select_the_newest),
        cmocka_unit_test(a_list_longer_than_its_room_is_refused),
        cmocka_unit_test(the_stages_of_every_selector_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
