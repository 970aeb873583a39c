/* test_engine_away.c - where the full KV of a request lies changes no list: on a second CPU backend
 * (home peer), in host memory (home host), or on the device. Wrong options are refused.
 * Selector `spec` ranks with the query of the step itself, by keys that depend on the tokens alone:
 * its lists must be the best by the keys of an engine with home `device`.
 *     test_engine_away [SEEDS [FIRST]]
 *
 * A seed draws a model, an engine and forced tokens. In layer 0 queries and keys depend on the
 * tokens alone, so the lists of two engines must be equal, as sets, at every step. In the other
 * layers they must be those that the ops of home `device` compute from the engine's own queries and
 * home. A third of the seeds runs on devices that run all ops late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/away.h"
#include "compress/selector.h"
#include "engine/engine_state.h"
#include "tests/lib/away_scenario.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sanitizer.h"

enum { DEFAULT_SEEDS = BY_SANITIZER(8, 8, 2) };
static uint32_t n_seeds = DEFAULT_SEEDS, first_seed = 1;

/* Totals, so that the test fails when nothing was tested. */
static struct {
    uint64_t lists, other_layers, kept, exchanges, missed;
} seen;

/* ---- home equality ---- */

/* The lists of layer 0 by position: bit p of a head's set is position p. */
typedef struct lists {
    bool there[AWAY_CONTEXT];
    uint8_t in[AWAY_CONTEXT][4][AWAY_CONTEXT]; /* [position of the step][kv head][position] */
} lists;

static cn_status (*real_attend)(cn_stream *s, const cn_attend_selected_args *a);
static lists *recording;
static uint32_t recorded_position;

/* Keeps the list of layer 0, without the sinks. */
static cn_status note_attend(cn_stream *s, const cn_attend_selected_args *a)
{
    const cn_status status = real_attend(s, a);
    const cn_select_scratch *m = &a->scratch;
    if (a->attn.layer != 0 || !a->rows.stage[1].stage[0].active) return status;
    recording->there[recorded_position] = true;
    for (uint32_t h = 0; h < a->attn.layout.n_kv_heads; h++)
        for (uint32_t i = 0; i < a->rows.stage[1].k[0]; i++)
            recording->in[recorded_position][h]
                         [m->list[(size_t)h * m->list_stride + a->rows.n_forced[0] + i]] = 1;
    return status;
}

static cn_seq *seq_of(const run *r)
{
    const cn_engine_request *q =
        CN_CONTAINER_OF(r->engine->requests.head, cn_engine_request, node);
    return r->engine->requests.head ? q->samples[0].seq : NULL;
}

/* Runs the request with home `device` and notes its lists. */
static void run_at_home(away_scenario *x, lists *out)
{
    away_ask a = x->asks[0];
    const uint32_t n_options = x->n_options;
    a.kv.home = CN_HOME_DEVICE;
    a.kv.policy = CN_KV_FULL;
    run *r = away_open_run(x);
    x->n_options = n_options;
    cn_backend *be = r->engine->backend;
    real_attend = be->attend_selected;
    be->attend_selected = note_attend;
    recording = out;
    away_submit(r, &a);
    while (r->n_done < 1) {
        const cn_seq *q = seq_of(r);
        recorded_position = q->n_computed;
        run_steps(r, 1);
    }
    run_free(r);
}

/* The candidates of a sequence, as home `device` would rank them for `position` under policy
 * `window`. Under `zip` these are all tokens that are home. */
static cn_select_span span_of(const cn_engine *e, const cn_seq *q, uint32_t position)
{
    const uint32_t b = e->plan.kv.block_tokens;
    cn_kv_params kv = q->kv;
    kv.home = CN_HOME_DEVICE;
    kv.policy = CN_KV_FULL;
    cn_select_span s = cn_select_span_at(&kv, q->n_prompt, position, b);
    const cn_away_span away = cn_away_span_of(&q->kv, q->home_len, b);
    if (q->kv.policy == CN_KV_ZIP || q->kv.select == CN_SELECT_TLS) {
        s.n[1] = away.n;
        s.base[1] = away.base;
        s.k[1] = cn_away_of(&q->kv, b).n_entries;
        s.stage[1] = q->kv.select == CN_SELECT_TLS
                         ? (cn_sel_stage){.active = 1, .key = CN_KEY_BOUNDS,
                                          .group = CN_GROUP_SUM, .query = CN_SEL_PREDICTED,
                                          .entry_log2 = 6}
                         : cn_selector_token_stage(&q->kv);
        return s;
    }
    assert_true(s.listed);
    assert_int_equal(s.n[1], away.n);
    assert_int_equal(s.base[1], away.base);
    return s;
}

/* Marks the positions that the policy's area of a unit holds. */
static void mark_held(const cn_engine *e, const cn_seq *q, uint32_t layer, uint32_t head,
                      uint8_t *held)
{
    const uint32_t b = e->plan.kv.block_tokens;
    if (q->kv.policy != CN_KV_ZIP) return;
    for (uint32_t i = 0; i < q->kv.budget_tokens; i++) {
        const uint32_t block = q->table[q->n_exchange + i / b];
        const uint32_t at =
            e->pools.origin[cn_kv_side(&e->pools.layout, layer, block, head, i % b)];
        assert_true(at < q->home_len);
        assert_false(held[at]);
        held[at] = 1;
    }
}

/* Marks the best k candidates of a unit that are not held; ties go to the newer one. Candidates are
 * numbered by their position in entries. */
static void mark_best(const cn_select_span *s, const uint16_t *score, const uint8_t *held,
                      uint8_t *in)
{
    for (uint32_t k = 0; k < s->k[1]; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t c = 0; c < s->n[1]; c++) {
            const uint32_t at = (s->base[1] >> s->stage[1].entry_log2) + c;
            if (!held[at] && !in[at] && (best == UINT32_MAX || score[c] >= score[best])) best = c;
        }
        in[(s->base[1] >> s->stage[1].entry_log2) + best] = 1;
    }
}

static const cn_home *home_of(const cn_engine *e, const cn_seq *q)
{
    return &e->homes.at[q->kv.home];
}

/* The sets of a layer that home `device` would choose for `position` from the queries and the home
 * of an away request. */
static void expect_of(const cn_engine *e, const cn_seq *q, uint32_t position, uint32_t layer,
                      uint8_t (*in)[AWAY_CONTEXT])
{
    static uint16_t score[4 * AWAY_CONTEXT];
    static float logits[8 * AWAY_CONTEXT], predicted[8 * 256], raw[8 * 256];
    const cn_home *h = home_of(e, q);
    const uint32_t zero = 0, slot = (uint32_t)q->query_slot, newest = position - 1;
    const uint32_t hk = e->model_config.n_kv_heads, ring = cn_ring_rows(&q->kv);
    const bool tiles = q->kv.select == CN_SELECT_TLS;
    const bool reads_window =
        q->kv.select == CN_SELECT_SPADE || (tiles && q->kv.select_query != CN_QUERY_LAST);
    const uint32_t most = reads_window ? q->kv.select_window : 1;
    const uint32_t window = cn_min_u32(most, ring - 1);
    const uint8_t weights = (uint8_t)q->kv.select_weights;
    const uint8_t rotate = q->kv.select_rotate || tiles;
    const size_t q_elems = (size_t)e->model_config.n_heads * e->model_config.head_dim;
    const cn_select_span s = span_of(e, q, position);
    cn_backend *be = e->backend;
    const cn_predict_args p = {
        .ring = e->pools.q_window, .n_query_slots = e->pools.n_query_slots,
        .rows = e->pools.window, .n_heads = e->model_config.n_heads,
        .slots = &slot, .newest = &newest,
        .modulus = &ring, .n_window = &window, .weights = &weights, .rotate = &rotate,
        .n_seqs = 1, .first_layer = layer, .n_layers = 1,
        .eps = CN_SELECT_RIDGE, .cos = h->env.cos, .sin = h->env.sin, .out = predicted,
        .out_stride = q_elems};
    assert_int_equal(cn_select_predict_keys(be, e->stream, &e->pools, p, raw), CN_OK);
    const cn_score_args c = {
        .q = {[CN_SEL_PREDICTED] = predicted}, .stage = &s.stage[1], .pools = h->env.home,
        .tables = q->home_table, .table_stride = q->n_home_blocks, .first = &zero, .n = &s.n[1],
        .base = &s.base[1], .n_seqs = 1, .first_layer = layer, .n_layers = 1, .logits = logits,
        .out = score};
    assert_int_equal(be->score(e->stream, &c), CN_OK);
    assert_int_equal(be->stream_sync(e->stream), CN_OK);
    for (uint32_t head = 0; head < hk; head++) {
        uint8_t held[AWAY_CONTEXT] = {0};
        mark_held(e, q, layer, head, held);
        mark_best(&s, score + (size_t)head * s.n[1], held, in[head]);
    }
}

/* K and V of a resident slot are those of its position in the home, and so is P. In the exchange
 * area of `tls` so is the label. */
static void expect_copied(const cn_engine *e, const cn_seq *q, uint32_t layer, uint32_t head,
                          uint32_t entry, uint32_t position)
{
    const cn_pools *home = &home_of(e, q)->env.home;
    const cn_kv_layout *l = &e->pools.layout, *m = &home->layout;
    const uint32_t b = l->block_tokens;
    for (int part = CN_KV_K; part <= CN_KV_V; part++) {
        const char *here = (const char *)e->pools.kv +
                           cn_kv_at(l, layer, q->table[entry / b], head, entry % b,
                                    (cn_kv_part)part);
        const char *there = (const char *)home->kv +
                            cn_kv_at(m, layer, q->home_table[position / b], head, position % b,
                                     (cn_kv_part)part);
        assert_memory_equal(here, there, l->part[part].row_bytes);
    }
    const cn_digest *to = &e->pools.digest, *from = &home->digest;
    if (q->kv.select == CN_SELECT_TLS && entry / b < q->n_exchange) {
        const size_t a = cn_kv_side(l, layer, q->table[entry / b], head, entry % b);
        const size_t c = cn_kv_side(m, layer, q->home_table[position / b], head, position % b);
        const size_t bytes = to->n_channels / 2;
        assert_memory_equal(to->labels + a * bytes, from->labels + c * bytes, bytes);
        assert_int_equal(to->scales[a], from->scales[c]);
    }
    if (!e->pools.origin) return;
    assert_int_equal(e->pools.origin[cn_kv_side(l, layer, q->table[entry / b], head, entry % b)],
                     position);
}

/* The policy's blocks hold the tokens that the event kept. The exchange area takes blocks that the
 * event reads, so a fill that runs before the compression changes them. */
static void expect_kept(const cn_engine *e, const cn_seq *q)
{
    const uint32_t b = e->plan.kv.block_tokens, n = q->kv.budget_tokens;
    for (uint32_t layer = e->homes.packs.first_layer; layer < e->model_config.n_layers; layer++)
        for (uint32_t head = 0; head < e->model_config.n_kv_heads; head++)
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t slot = q->n_exchange * b + i, block = q->table[slot / b];
                uint32_t position = i < q->kv.sink_tokens ? i : q->home_len - n + i;
                if (q->kv.policy == CN_KV_ZIP)
                    position =
                        e->pools.origin[cn_kv_side(&e->pools.layout, layer, block, head, i % b)];
                assert_true(position < q->home_len);
                expect_copied(e, q, layer, head, slot, position);
                seen.kept++;
            }
}

/* The plane of the dense layers has all tokens that are home. */
static void expect_plane(const cn_engine *e, const cn_seq *q)
{
    const cn_home *h = home_of(e, q);
    const cn_kv_layout *l = &e->homes.plane.layout, *m = &h->env.home.layout;
    const uint32_t b = l->block_tokens;
    for (uint32_t layer = 0; layer < e->homes.packs.first_layer; layer++)
        for (uint32_t i = 0; i < q->home_len / b; i++) {
            const uint32_t block = q->home_table[i];
            assert_memory_equal(
                (const char *)e->homes.plane.kv +
                    cn_kv_at(l, layer, h->plane_first + block, 0, 0, CN_KV_K),
                (const char *)h->env.home.kv + cn_kv_at(m, layer, block, 0, 0, CN_KV_K),
                l->block_bytes);
        }
}

/* `chosen` after a step holds the lists of the next position. */
static void check_chosen(const cn_engine *e, const cn_seq *q, const lists *home, bool last_of_cap)
{
    const uint32_t position = q->n_computed, hk = e->model_config.n_kv_heads;
    const cn_away away = cn_away_of(&q->kv, e->plan.kv.block_tokens);
    const uint32_t k = away.n_entries, n = away.entry_tokens;
    const cn_exchange_env *env = &home_of(e, q)->env;
    for (uint32_t layer = e->homes.packs.first_layer; layer < e->model_config.n_layers; layer++) {
        uint8_t in[4][AWAY_CONTEXT] = {0};
        expect_of(e, q, position, layer, in);
        for (uint32_t head = 0; head < hk; head++) {
            const uint32_t *chosen =
                env->chosen + (((size_t)layer * env->n_slots + q->home_slot) * hk + head) *
                                  env->chosen_stride;
            for (uint32_t i = 0; i < k; i++) {
                for (uint32_t t = 0; t < n; t++)
                    expect_copied(e, q, layer, head, i * n + t, chosen[i] * n + t);
                if (!last_of_cap) continue;
                if (in[head][chosen[i]] != 1)
                    fail_msg("position %u, layer %u, head %u: %u is not in the list, or twice",
                             position, layer, head, chosen[i]);
                in[head][chosen[i]] = 2;
                if (layer > 0) seen.other_layers++;
                if (layer > 0 || !home || position + 1 >= q->max_tokens) continue;
                assert_true(home->there[position]);
                assert_int_equal(home->in[position][head][chosen[i]], 1);
                seen.lists++;
            }
        }
    }
}

static void sync_all(cn_engine *e)
{
    assert_int_equal(e->backend->stream_sync(e->stream), CN_OK);
    cn_home_sync(&e->homes);
    assert_int_equal(e->backend->stream_sync(e->event_stream), CN_OK);
    cn_home_sync(&e->homes);
}

static away_scenario *draw_equality(uint64_t seed)
{
    away_scenario *x = away_draw_scenario(seed, 4);
    away_ask *a = &x->asks[0];
    a->n_prompt = away_between(x, 1, 300);
    a->max_tokens = AWAY_CONTEXT - a->n_prompt - away_below(x, 40);
    a->n = 1;
    a->is_forced = true;
    for (uint32_t i = 0; i < a->n_prompt; i++) a->prompt[i] = away_below(x, x->vocab);
    for (uint32_t i = 0; i < a->max_tokens; i++) a->forced[i] = away_below(x, x->vocab);
    away_draw_select(x, &a->kv);
    return x;
}

/* Policy `zip` evicts, and the exchange brings evicted tokens back. */
static void set_zip(away_scenario *x, away_ask *a)
{
    away_set_text(x, "kv-policies", "full,zip");
    away_set(x, "kv-budget", 128);
    away_set(x, "kv-window", 9);
    a->kv.policy = CN_KV_ZIP;
    a->kv.budget_tokens = 128 * away_between(x, 1, 3); /* also more than the default */
    a->kv.window_tokens = away_between(x, 2, 9);
    a->kv.alpha = 0.8f;
    a->kv.lambda = 0.5f;
    a->kv.redundancy = (cn_kv_redundancy)away_below(x, 3);
    a->kv.redundancy_tau = 0.4f;
    a->kv.global_score = away_chance(x, 70);
}

/* A cap of k, or one that leaves some of the set out: then only the copies are checked. */
typedef enum form { WINDOW, ZIP, TILES } form;

/* Two to four tiles of 64, and a shorter list of their tokens. */
static void set_tiles(away_scenario *x, away_ask *a, cn_select_query query)
{
    away_set_text(x, "kv-selectors", "tls");
    away_set(x, "select-tiles", 4);
    a->kv.select = CN_SELECT_TLS;
    a->kv.select_tiles = away_between(x, 2, 4);
    a->kv.select_tokens = away_between(x, 1, 100);
    a->kv.select_keys = CN_SELECT_LABELS;
    a->kv.select_group = (cn_select_group)away_below(x, 2);
    a->kv.select_query = query;
    a->kv.select_cap = cn_min_u32(a->kv.select_cap, 16);
}

/* Checks the usage of the only request, counts it in `seen`, and frees r. */
static void end_run(run *r, bool capped)
{
    const cn_kv_usage *u = &r->samples[0][0].usage.kv;
    assert_int_equal(u->exchanges, r->stats.exchanges);
    assert_int_equal(u->fetched_entries, r->stats.fetched_entries);
    if (!capped) assert_int_equal(u->missed_entries, 0);
    seen.exchanges += u->exchanges;
    seen.missed += u->missed_entries;
    run_free(r);
    late_device_choose(0);
}

static void compare_with_home(uint64_t seed, const char *home, bool capped, form f)
{
    away_scenario *x = draw_equality(seed);
    lists *at_home = calloc(1, sizeof *at_home);
    assert_non_null(at_home);
    away_set(x, "select-dense-layers", away_chance(x, 60) ? 0 : away_below(x, x->n_layers));
    late_device_choose(0);
    away_set_home(x, home);
    x->asks[0].kv.select_cap = capped ? away_between(x, 1, 3) : AWAY_MAX_LIST;
    away_set(x, "select-cap", x->asks[0].kv.select_cap);
    away_set_text(x, "async-scheduling", away_chance(x, 50) ? "on" : "off");
    away_ask *a = &x->asks[0];
    a->kv.home = strcmp(home, "peer") == 0 ? CN_HOME_PEER : CN_HOME_HOST;
    if (a->kv.home == CN_HOME_HOST) a->kv.select_keys = CN_SELECT_LABELS;
    run_at_home(x, at_home);
    if (f == ZIP) set_zip(x, a);
    if (f == TILES) set_tiles(x, a, (cn_select_query)away_below(x, 2));
    late_device_choose(seed % 3 == 0 ? seed : 0);
    run *r = away_open_run(x);
    uint32_t kept_len = 0; /* home_len of the last commit that was checked */
    away_submit(r, a);
    while (r->n_done < 1) {
        run_steps(r, 1);
        const cn_seq *q = seq_of(r);
        if (!q || q->home_len == 0 || q->state != CN_SEQ_RUNNING) continue;
        sync_all(r->engine);
        const bool alike = r->engine->homes.packs.first_layer == 0 && f == WINDOW;
        if (q->home_len != kept_len) expect_kept(r->engine, q);
        kept_len = q->home_len;
        expect_plane(r->engine, q);
        check_chosen(r->engine, q, alike ? at_home : NULL, !capped);
    }
    end_run(r, capped);
    free(at_home);
    away_free_scenario(x);
}

static void a_peer_gives_the_lists_of_the_device(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        compare_with_home(seed, "peer", false, WINDOW);
    if (n_seeds < 4) return;
    assert_true(seen.lists > 1000 && seen.other_layers > 1000 && seen.exchanges > 10 * n_seeds);
    assert_true(seen.kept > 1000);
    assert_int_equal(seen.missed, 0);
}

static void host_memory_gives_the_lists_of_the_device(void **state)
{
    (void)state;
    const uint64_t before = seen.lists;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        compare_with_home(seed, "host", false, WINDOW);
    assert_true(n_seeds < 4 || seen.lists > before + 1000);
}

static void zip_recovers_evicted_tokens(void **state)
{
    (void)state;
    const uint64_t before = seen.other_layers;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        compare_with_home(seed, seed % 4 == 0 ? "host" : "peer", false, ZIP);
    assert_true(n_seeds < 4 || seen.other_layers > before + 1000);
}

/* `tls` brings whole tiles back with their labels, and attends to a list of their tokens. */
static void tiles_come_back_with_their_labels(void **state)
{
    (void)state;
    const uint64_t before = seen.other_layers;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        compare_with_home(seed, seed % 2 == 0 ? "host" : "peer", false, TILES);
    assert_true(n_seeds < 4 || seen.other_layers > before + 50);
}

static void a_cap_leaves_tokens_out_and_copies_the_others(void **state)
{
    (void)state;
    seen.missed = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        compare_with_home(seed, "peer", true, WINDOW);
    assert_true(seen.missed > 0);
}

/* ---- lists ranked ahead ---- */

/* The keys of the retrieval head, [position, hk, d], of an engine with home `device`. */
static void note_keys(away_scenario *x, float *keys)
{
    away_ask a = x->asks[0];
    const uint32_t n_options = x->n_options;
    a.kv.home = CN_HOME_DEVICE;
    run *r = away_open_run(x);
    x->n_options = n_options;
    const cn_engine *e = r->engine;
    const cn_kv_layout l = cn_kv_layout_draft(&e->pools.layout);
    const uint32_t hk = l.n_kv_heads, d = l.head_dim, b = l.block_tokens;
    for (away_submit(r, &a); r->n_done < 1;) {
        run_steps(r, 1);
        const cn_seq *q = seq_of(r);
        for (uint32_t p = 0; q && p < q->n_computed; p++)
            for (uint32_t h = 0; h < hk; h++)
                memcpy(keys + ((size_t)p * hk + h) * d,
                       (const char *)e->pools.draft +
                           cn_kv_at(&l, 0, q->table[p / b], h, p % b, CN_KV_K),
                       d * sizeof *keys);
    }
    run_free(r);
}

/* The keys of all tokens so far lie by home block. */
static void expect_keys(const cn_engine *e, const cn_seq *q, const float *keys)
{
    const cn_pools *there = &home_of(e, q)->ahead.env.home;
    const cn_kv_layout *l = &there->layout;
    const uint32_t hk = l->n_kv_heads, b = l->block_tokens;
    for (uint32_t p = 0; p < q->n_computed; p++)
        for (uint32_t h = 0; h < hk; h++)
            assert_memory_equal(
                (const char *)there->kv + cn_kv_at(l, 0, q->home_table[p / b], h, p % b, CN_KV_K),
                keys + ((size_t)p * hk + h) * l->head_dim, l->head_dim * sizeof *keys);
}

/* The best candidates of the newest step: scored by the op from keys in blocks of their own. */
static void expect_best(const cn_engine *e, const cn_seq *q, const float *keys,
                        uint8_t (*in)[AWAY_CONTEXT])
{
    static uint16_t score[4 * AWAY_CONTEXT];
    static float logits[8 * AWAY_CONTEXT], blocks[4 * AWAY_CONTEXT * 256];
    static uint32_t table[AWAY_CONTEXT / 64];
    cn_pools own = home_of(e, q)->ahead.env.home;
    const cn_kv_layout *l = &own.layout;
    const uint32_t b = l->block_tokens, hk = l->n_kv_heads, zero = 0;
    const cn_away_span away = cn_away_span_of(&q->kv, q->home_len, b);
    cn_select_span s = {.n = {0, away.n}, .base = {0, away.base},
                        .k = {0, cn_away_of(&q->kv, b).n_entries},
                        .stage = {{0}, cn_selector_token_stage(&q->kv)}};
    for (uint32_t p = 0; p < q->home_len; p++)
        for (uint32_t h = 0; h < hk; h++)
            memcpy((char *)blocks + cn_kv_at(l, 0, p / b, h, p % b, CN_KV_K),
                   keys + ((size_t)p * hk + h) * l->head_dim, l->head_dim * sizeof *keys);
    for (uint32_t i = 0; i < AWAY_CONTEXT / b; i++) table[i] = i;
    own.kv = blocks;
    const cn_score_args c = {
        .q = {[CN_SEL_TRUE] = e->draft.queries}, .stage = &s.stage[1], .pools = own,
        .tables = table, .table_stride = AWAY_CONTEXT / b, .first = &zero, .n = &s.n[1],
        .base = &s.base[1], .n_seqs = 1, .n_layers = 1, .logits = logits, .out = score};
    assert_int_equal(e->backend->score(e->stream, &c), CN_OK);
    assert_int_equal(e->backend->stream_sync(e->stream), CN_OK);
    const uint8_t held[AWAY_CONTEXT] = {0};
    for (uint32_t h = 0; h < hk; h++) mark_best(&s, score + (size_t)h * s.n[1], held, in[h]);
}

/* The area of each layer has the tokens of the one list. in: NULL: any tokens. */
static void check_list(const cn_engine *e, const cn_seq *q, uint8_t (*in)[AWAY_CONTEXT])
{
    const cn_exchange_env *env = &home_of(e, q)->ahead.env;
    const uint32_t k = cn_away_of(&q->kv, e->plan.kv.block_tokens).n_entries;
    const uint32_t hk = e->model_config.n_kv_heads;
    for (uint32_t head = 0; head < hk; head++) {
        const uint32_t *chosen =
            env->chosen + ((size_t)q->home_slot * hk + head) * env->chosen_stride;
        for (uint32_t i = 0; i < k; i++) {
            for (uint32_t l = e->homes.packs.first_layer; l < e->model_config.n_layers; l++)
                expect_copied(e, q, l, head, i, chosen[i]);
            if (!in) continue;
            if (in[head][chosen[i]] != 1)
                fail_msg("position %u, head %u: %u is not in the list, or twice",
                         q->n_computed - 1, head, chosen[i]);
            in[head][chosen[i]] = 2;
            seen.lists++;
        }
    }
}

/* With a cap of k every list is the whole best set; with a small one the first. */
static void run_ahead(uint64_t seed, const char *home, bool capped)
{
    away_scenario *x = draw_equality(seed);
    float *keys = calloc((size_t)AWAY_CONTEXT * 4 * 256, sizeof *keys);
    assert_non_null(keys);
    away_ask *a = &x->asks[0];
    away_set_text(x, "kv-selectors", "spec");
    away_set(x, "select-dense-layers", away_chance(x, 60) ? 0 : away_below(x, x->n_layers));
    away_set_home(x, home);
    a->kv.select = CN_SELECT_SPEC;
    a->kv.select_cap = capped ? away_between(x, 1, 3) : AWAY_MAX_LIST;
    away_set(x, "select-cap", a->kv.select_cap);
    away_set_text(x, "async-scheduling", away_chance(x, 50) ? "on" : "off");
    a->kv.home = strcmp(home, "peer") == 0 ? CN_HOME_PEER : CN_HOME_HOST;
    note_keys(x, keys);
    late_device_choose(seed % 3 == 0 ? seed : 0);
    run *r = away_open_run(x);
    uint32_t kept_len = 0, n_before = 0;
    for (away_submit(r, a); r->n_done < 1;) {
        const cn_seq *q = seq_of(r);
        const uint32_t before = q->home_len;
        const bool first = !q->caught_up;
        run_steps(r, 1);
        q = seq_of(r);
        if (!q || q->home_len == 0 || q->state != CN_SEQ_RUNNING || !q->caught_up) continue;
        sync_all(r->engine);
        if (q->home_len != kept_len) expect_kept(r->engine, q);
        kept_len = q->home_len;
        expect_plane(r->engine, q);
        expect_keys(r->engine, q, keys);
        /* A step before a commit ranked fewer tokens. */
        const bool ranked_these = q->home_len == before || before == 0;
        uint8_t in[4][AWAY_CONTEXT] = {0};
        const bool whole = (first || !capped) && ranked_these && q->n_computed > n_before;
        if (whole) expect_best(r->engine, q, keys, in);
        check_list(r->engine, q, whole ? in : NULL);
        n_before = q->n_computed;
    }
    end_run(r, capped);
    free(keys);
    away_free_scenario(x);
}

static void lists_ahead_are_the_best_of_their_own_step(void **state)
{
    (void)state;
    const uint64_t before = seen.lists;
    seen.missed = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        run_ahead(seed, seed % 2 == 0 ? "host" : "peer", false);
    assert_int_equal(seen.missed, 0);
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        run_ahead(seed, seed % 2 == 0 ? "peer" : "host", true);
    assert_true(n_seeds < 4 || (seen.missed > 0 && seen.lists > before + 1000));
}

/* ---- refusals ---- */

#define PEER "kv-homes", "peer", "cache-device", "cpu", "home-space", "0.1"

static void wrong_starts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *options[16];
        const char *text;
    } cases[] = {
        {{"kv-homes", "peer,host", "cache-device", "cpu", "host-space", "0.1", "kv-selectors",
          "spade"},
         "kv home peer: --home-space is missing"},
        {{"kv-homes", "host", "host-space", "0.1", "home-space", "0.1"},
         "--home-space 0.1 and --host-space 0.1: kv home host is the only home"},
        {{PEER, "host-space", "0.1"}, "--host-space 0.1: kv home host is not declared"},
        {{"cache-device", "cpu"}, "--cache-device cpu: only kv home peer uses it"},
        {{"home-space", "2"}, "--home-space 2: no home is declared"},
        {{"kv-homes", "peer", "kv-selectors", "spade"}, "kv home peer: --home-space is missing"},
        {{"kv-homes", "peer", "home-space", "1", "kv-selectors", "spade"},
         "kv home peer: --cache-device is missing"},
        {{"kv-homes", "host", "home-space", "1", "cache-device", "cpu", "kv-selectors", "spade"},
         "--cache-device cpu: kv home host uses host memory"},
        {{PEER, "kv-selectors", "ds"}, "no selector can use it; add spade, last, tls or spec"},
        {{"kv-homes", "peer", "cache-device", "disk", "home-space", "0.1", "kv-selectors", "last"},
         "--cache-device disk: expected auto, cpu, cuda or cuda:N"},
        {{"kv-homes", "peer", "cache-device", "cuda:1", "home-space", "0.1", "kv-selectors",
          "last"},
         "--cache-device cuda:1: expected cpu beside a model on cpu"},
        {{"kv-home", "peer", "cache-device", "cpu", "home-space", "0.1", "kv-selectors", "spade"},
         "kv home peer without a selector"},
        {{PEER, "kv-home", "peer", "kv-select", "ds", "kv-selectors", "spade"},
         "kv select ds with kv home peer: expected spade, last"},
        {{"kv-homes", "host", "kv-home", "host", "home-space", "0.1", "kv-select", "spade",
          "select-keys", "rows"},
         "kv select_keys rows with kv home host"},
        {{"kv-homes", "peer", "cache-device", "cpu", "home-space", "0.0001", "kv-selectors",
          "spade"},
         "--home-space 0.0001: kv home peer expects at least"},
        {{"kv-homes", "host", "home-space", "60000", "kv-selectors", "spade"},
         "--home-space 60000 exceeds 70 %"},
        {{"kv-homes", "host", "home-space", "1", "kv-selectors", "spade", "kv-policies", "zip",
          "swap-space", "60000"},
         "--swap-space 60000 with --home-space 1 exceeds 70 %"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_assert_start_refused(cases[i].options, cases[i].text);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    run *r = run_new((const char *[]){PEER, "kv-home", "peer", "kv-select", "spade", "kv-selectors",
                                      "spade,last,tls", "device", "cpu", "select-cap", "32",
                                      "select-tokens", "256", NULL},
                     NULL);
    cn_kv_params good, kv;
    cn_engine_default_kv(r->engine, &good);
    kv = good, kv.home = CN_HOME_DEVICE;
    run_assert_kv_refused(r, &kv, "kv.home device is not enabled: add it to --kv-homes");
    kv = good, kv.home = CN_HOME_HOST;
    run_assert_kv_refused(r, &kv, "kv.home host is not enabled: add it to --kv-homes");
    kv = good, kv.select = CN_SELECT_NONE;
    run_assert_kv_refused(r, &kv, "kv home peer without a selector");
    kv = good, kv.select = CN_SELECT_TLS, kv.select_query = CN_QUERY_PREDICTED;
    kv.select_window = 17;
    run_assert_kv_refused(r, &kv, "kv select_window 17: expected 1 to 16; raise --select-window");
    kv = good, kv.select_cap = 33;
    run_assert_kv_refused(r, &kv, "kv select_cap 33: expected at most 32; raise --select-cap");
    kv = good, kv.policy = CN_KV_ZIP;
    run_assert_kv_refused(r, &kv, "kv.policy zip is not enabled");
    run_free(r);
}

/* A backend without the op has no homes. */
static void a_backend_without_exchange_is_refused_by_name(void **state)
{
    (void)state;
    const cn_cpu_backend_opts o = {.n_threads = 1};
    cn_backend *be = NULL;
    assert_int_equal(cn_backend_cpu_open(&be, &o), CN_OK);
    cn_backend lacking = *be;
    lacking.exchange = NULL;
    cn_config *c = cn_config_create();
    assert_non_null(c);
    for (const char *const *s =
             (const char *const[]){PEER, "kv-select", "spade", NULL}; *s; s += 2)
        assert_int_equal(cn_config_set(c, s[0], s[1]), CN_OK);
    cn_homes h = {.at[CN_HOME_PEER].be = be};
    assert_int_equal(cn_home_open_beside(&h, c, &lacking), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "lacks the op exchange"));
    cn_config_free(c);
    be->close(be);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_seeds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_gives_the_lists_of_the_device),
        cmocka_unit_test(host_memory_gives_the_lists_of_the_device),
        cmocka_unit_test(zip_recovers_evicted_tokens),
        cmocka_unit_test(tiles_come_back_with_their_labels),
        cmocka_unit_test(a_cap_leaves_tokens_out_and_copies_the_others),
        cmocka_unit_test(lists_ahead_are_the_best_of_their_own_step),
        cmocka_unit_test(wrong_starts_are_refused),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(a_backend_without_exchange_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
