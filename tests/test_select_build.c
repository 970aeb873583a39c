/* test_select_build.c - what a step uploads to select tokens: the numbers of each decode row, the
 * ranges of rows whose candidates fit the scratch together, dense rows between rows with lists,
 * and the tiles that a step completes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/select/select.h"
#include "tests/lib/paged_batch.h"

enum { MAX_ROWS = 24, CONTEXT = 4096, SEED = 12345, UNTOUCHED = 0xa5 };

/* A plan of drawn rows. The builder's device memory is the host memory that it writes, so that the
 * test can read the view. */
typedef struct rig {
    test_rng rng;
    uint32_t block;
    cn_seq seqs[MAX_ROWS];
    cn_plan_row rows[MAX_ROWS];
    cn_plan plan;
    uint32_t selectors; /* declared */
    cn_select_builder b;
    char *memory;
} rig;

/* A route is the forms of both stages, as the rows need them; or as all rows may have them. */
static uint32_t route_of_need(const cn_sel_forms *need, const cn_sel_forms *declared)
{
    (void)declared;
    return 1U << 31 | need->stage[1] << 1 | (need->stage[0] != 0);
}
static uint32_t route_of_declared(const cn_sel_forms *need, const cn_sel_forms *declared)
{
    (void)need;
    return 1U << 31 | declared->stage[1] << 1 | (declared->stage[0] != 0);
}
static const cn_backend by_need = {.select_route = route_of_need};
static const cn_backend by_declared = {.select_route = route_of_declared};
static const cn_backend without_routes;

static uint32_t below(rig *r, uint32_t n) { return test_rng_below(&r->rng, n); }

static void move_row(rig *r, uint32_t i, uint32_t position)
{
    cn_plan_row *row = &r->rows[i];
    row->first_pos = row->first_slot = position;
    row->span = cn_select_span_at(&row->seq->kv, row->seq->n_prompt, position, r->block);
}

static void draw_row(rig *r, uint32_t i, cn_kv_select select)
{
    const cn_kv_params most = {.select_tokens = 512, .select_tiles = 64, .select_window = 16,
                               .sink_tokens = 8};
    cn_seq *q = &r->seqs[i];
    q->kv = (cn_kv_params){
        .policy = CN_KV_FULL,
        .select = select,
        .select_tokens = 1 + below(r, 200),
        .select_tiles = 8 + below(r, 8),
        .select_window = 1 + below(r, 16),
        .select_weights = (cn_select_weights)below(r, 2),
        .select_rotate = below(r, 2) == 0,
        .sink_tokens = below(r, 9),
        .recent_tokens = below(r, 100),
    };
    assert_int_equal(cn_selector_check(&q->kv, r->block, &most), CN_OK);
    q->n_prompt = 1 + below(r, 600);
    q->query_slot = (int32_t)below(r, 100);
    r->rows[i] = (cn_plan_row){.seq = q, .n_new = 1};
    move_row(r, i, q->n_prompt + below(r, CONTEXT - q->n_prompt));
}

static uint32_t most_candidates(const rig *r)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < r->plan.n_decode; i++) {
        const cn_plan_row *row = &r->rows[i];
        const cn_select_span s = cn_select_span_at(&row->seq->kv, row->seq->n_prompt,
                                                   row->first_pos, r->block);
        most = cn_max_u32(most, cn_max_u32(s.n[0], s.n[1]));
    }
    return most;
}

static void open_builder(rig *r, uint32_t room)
{
    const size_t bytes = cn_select_bytes(MAX_ROWS);
    r->memory = aligned_alloc(64, cn_round_up(bytes, 64));
    assert_non_null(r->memory);
    memset(r->memory, UNTOUCHED, bytes);
    const cn_select_builder_opts o = {.max_rows = MAX_ROWS, .room = room,
                                      .seed = SEED, .selectors = r->selectors,
                                      .be = &by_need};
    assert_int_equal(cn_select_builder_init(&r->b, &o, r->memory), CN_OK);
}

static void close_builder(rig *r)
{
    cn_select_builder_free(&r->b);
    free(r->memory);
}

/* Every array of a row holds what its span says. Returns whether the row attends to a list. */
static bool check_row(const rig *r, uint32_t i)
{
    const cn_select_view *v = &r->b.view;
    const cn_plan_row *row = &r->rows[i];
    const cn_seq *q = row->seq;
    const cn_select_span s =
        cn_select_span_at(&q->kv, q->n_prompt, row->first_pos, r->block);
    const uint32_t resident = row->first_slot + 1;
    assert_int_equal(v->rows.lengths[i], s.listed ? s.list_len + resident - s.tail : resident);
    assert_int_equal(v->rows.list_len[i], s.list_len);
    assert_int_equal(v->rows.tail[i], s.listed ? s.tail : 0);
    assert_true(s.listed == (s.list_len > 0));
    assert_int_equal(v->rows.n_forced[i], s.n_forced);
    for (uint32_t k = 0; k < CN_SELECT_STAGES; k++) {
        assert_memory_equal(&v->rows.stage[k].stage[i], &s.stage[k], sizeof s.stage[k]);
        assert_int_equal(v->rows.stage[k].n[i], s.n[k]);
        assert_int_equal(v->rows.stage[k].base[i], s.base[k]);
        assert_int_equal(v->rows.stage[k].k[i], s.k[k]);
    }
    assert_memory_equal(&v->ahead[i], &s.ahead, sizeof s.ahead);
    assert_int_equal(s.ahead.active, s.listed && q->kv.select == CN_SELECT_SPEC);
    const bool predicts = s.listed && cn_selector_of(q->kv.select)->predicts;
    assert_int_equal(v->ring_slots[i], predicts ? (uint32_t)q->query_slot : CN_NO_SLOT);
    if (!predicts) return s.listed;
    assert_int_equal(v->newest[i], row->first_pos - 1);
    assert_int_equal(v->modulus[i], v->n_window[i] + 1);
    assert_int_equal(v->n_window[i], q->kv.select == CN_SELECT_LAST ? 1 : q->kv.select_window);
    assert_int_equal(v->weights[i], q->kv.select_weights);
    assert_int_equal(v->rotate[i], q->kv.select_rotate);
    return true;
}

/* Every row is right. Returns whether some row attends to a list. */
static bool check_rows(const rig *r)
{
    bool listed = false;
    for (uint32_t i = 0; i < r->plan.n_decode; i++) listed |= check_row(r, i);
    return listed;
}

/* A step op by op launches what its rows need. */
static void check_launches(const rig *r)
{
    const cn_select_view *v = &r->b.view;
    bool predicts = false, ahead = false;
    cn_sel_forms forms = {{0}};
    for (uint32_t i = 0; i < r->plan.n_decode; i++) {
        predicts |= v->ring_slots[i] != CN_NO_SLOT;
        ahead |= v->ahead[i].active;
        for (uint32_t k = 0; k < CN_SELECT_STAGES; k++)
            forms.stage[k] |= cn_sel_form(&v->rows.stage[k].stage[i]);
    }
    assert_int_equal(v->runs_predict, predicts);
    assert_int_equal(v->ranks_ahead, ahead);
    assert_int_equal(v->route, route_of_need(&forms, NULL));
}

/* Ranges follow each other and hold all decode rows. In a range the candidates of a stage lie
 * one after the other and fit the room, and the row after the range would not fit. */
static void check_ranges(const rig *r, uint32_t room)
{
    const cn_select_view *v = &r->b.view;
    uint32_t next = 0;
    for (uint32_t g = 0; g < v->n_ranges; g++) {
        const cn_row_range range = v->ranges[g];
        uint32_t end[CN_SELECT_STAGES] = {0};
        assert_int_equal(range.start, next);
        assert_true(range.end > range.start);
        for (uint32_t i = range.start; i < range.end; i++)
            for (uint32_t k = 0; k < CN_SELECT_STAGES; k++) {
                assert_int_equal(v->rows.stage[k].first[i], end[k]);
                end[k] += v->rows.stage[k].n[i];
                assert_true(end[k] <= room);
            }
        next = range.end;
        if (next == r->plan.n_decode) continue;
        bool fits = true;
        for (uint32_t k = 0; k < CN_SELECT_STAGES; k++)
            fits &= end[k] + v->rows.stage[k].n[next] <= room;
        assert_false(fits);
    }
    assert_int_equal(next, r->plan.n_decode);
}

static bool ranks_by_max(const cn_kv_params *kv)
{
    switch (kv->select) {
    case CN_SELECT_ORACLE: return true;
    case CN_SELECT_DS:
    case CN_SELECT_TLS: return kv->select_group == CN_SELECT_MAX;
    case CN_SELECT_SPADE:
    case CN_SELECT_LAST: return kv->select_keys == CN_SELECT_ROWS;
    default: return false;
    }
}

/* What the rows need, as sets of rows that rank tiles, or tokens under rule max. */
static void check_need(const rig *r, uint32_t room, const cn_select_need *need)
{
    bool listed = false, in_layers = false, tiles = false, max = false;
    uint64_t n[CN_SELECT_STAGES] = {0};
    for (uint32_t i = 0; i < r->plan.n_decode; i++) {
        const cn_plan_row *row = &r->rows[i];
        const cn_select_span s = cn_select_span_at(&row->seq->kv, row->seq->n_prompt,
                                                   row->first_pos, r->block);
        listed |= s.listed;
        in_layers |= s.listed && row->seq->kv.select != CN_SELECT_SPEC;
        tiles |= s.listed && row->seq->kv.select == CN_SELECT_TLS;
        max |= s.listed && ranks_by_max(&row->seq->kv);
        for (uint32_t k = 0; k < CN_SELECT_STAGES; k++) n[k] += s.n[k];
    }
    assert_int_equal(need->listed, listed);
    assert_int_equal(need->fits, n[0] <= room && n[1] <= room);
    assert_int_equal(need->forms.stage[0] != 0, tiles);
    assert_int_equal((need->forms.stage[1] & CN_SEL_FORMS_MAX) != 0, max);
    assert_int_equal((need->forms.stage[1] & CN_SEL_FORMS_IN_TILES) != 0, tiles);
    assert_int_equal(need->forms.stage[1] != 0, in_layers);
}

/* Draws a plan with decode rows of any selector, then rows of prompts, which are rows of the step
 * but not of selection. */
static void draw_plan(rig *r, uint64_t seed)
{
    r->rng = (test_rng){seed};
    r->block = 64U << below(r, 3);
    r->selectors = (1U << CN_N_SELECTORS) - 1;
    const uint32_t n = 1 + below(r, MAX_ROWS), n_decode = 1 + below(r, n);
    for (uint32_t i = 0; i < n; i++) draw_row(r, i, (cn_kv_select)below(r, CN_N_SELECTORS));
    for (uint32_t i = n_decode; i < n; i++) r->rows[i] = (cn_plan_row){&r->seqs[i], .n_new = 5};
    r->plan = (cn_plan){.rows = r->rows, .n_rows = n, .n_decode = n_decode};
}

static const cn_step_shape op_by_op;

static void rows_and_ranges_are_right_for_drawn_plans(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    uint32_t n_built = 0, n_split = 0, n_dense_between = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        draw_plan(r, seed);
        const uint32_t room = most_candidates(r) + below(r, 3 * CONTEXT);
        open_builder(r, room);
        const cn_select_need need = cn_select_need_of(&r->plan, room);
        check_need(r, room, &need);
        const bool built = cn_select_build(&r->b, &r->plan, op_by_op, r->memory);
        assert_int_equal(built, need.listed);
        if (built) {
            const cn_select_view *v = &r->b.view;
            assert_true(check_rows(r));
            check_launches(r);
            check_ranges(r, room);
            assert_int_equal(v->n_ranges == 1, need.fits);
            n_built++;
            n_split += v->n_ranges > 1;
            for (uint32_t i = 1; i + 1 < r->plan.n_decode; i++)
                n_dense_between += v->rows.list_len[i] == 0 && v->rows.list_len[i - 1] > 0 &&
                                   v->rows.list_len[i + 1] > 0;
        }
        close_builder(r);
    }
    assert_true(n_built > 200 && n_split > 100 && n_dense_between > 100);
    free(r);
}

/* A padding row attends to nothing, predicts nothing and is active in no stage. */
static void check_padding(const rig *r, uint32_t row)
{
    const cn_select_view *v = &r->b.view;
    assert_int_equal(v->rows.lengths[row] | v->rows.list_len[row] | v->rows.tail[row], 0);
    assert_int_equal(v->ring_slots[row], CN_NO_SLOT);
    for (uint32_t k = 0; k < CN_SELECT_STAGES; k++) {
        assert_int_equal(v->rows.stage[k].stage[row].active, 0);
        assert_int_equal(v->rows.stage[k].n[row], 0);
    }
}

/* A step of a shape launches the same ops whatever its rows are, also with none. */
static void a_shape_fixes_what_is_launched(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    uint32_t n_plain = 0, n_routed = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        draw_plan(r, seed);
        if (seed % 4 == 0) r->plan.n_decode = 0;
        r->plan.n_rows = r->plan.n_decode;
        const bool predicts = seed % 3 > 0, ahead = seed % 5 > 0;
        const uint32_t room = MAX_ROWS * CONTEXT;
        const cn_select_need need = cn_select_need_of(&r->plan, room);
        const bool plain = !need.listed && seed % 8 == 0;
        const cn_step_shape shape = {r->plan.n_rows + below(r, MAX_ROWS - r->plan.n_rows + 1),
                                     plain ? 0 : 77};
        if (shape.rows == 0) continue;
        if (!predicts) r->selectors &= ~(1U << CN_SELECT_SPADE | 1U << CN_SELECT_LAST);
        if (!ahead) r->selectors &= ~(1U << CN_SELECT_SPEC);
        open_builder(r, room);
        const bool built = cn_select_build(&r->b, &r->plan, shape, r->memory);
        assert_int_equal(built, !plain);
        n_plain += plain;
        n_routed += built;
        const cn_select_view *v = &r->b.view;
        if (built) {
            check_rows(r);
            for (uint32_t i = r->plan.n_rows; i < shape.rows; i++) check_padding(r, i);
            assert_int_equal(v->n_ranges, 1);
            assert_int_equal(v->ranges[0].start, 0);
            assert_int_equal(v->ranges[0].end, shape.rows);
            assert_int_equal(v->runs_predict, predicts);
            assert_int_equal(v->ranks_ahead, ahead);
            assert_int_equal(v->route, 77);
        }
        close_builder(r);
    }
    assert_true(n_plain > 5 && n_routed > 100);
    free(r);
}

/* The routes are those of all sets of forms that steps can have, and 0. */
static void routes_are_those_of_the_declared_selectors(void **state)
{
    enum { LABELS = CN_KEY_LABELS * 4, ROWS = CN_KEY_ROWS * 4, BOUNDS = CN_KEY_BOUNDS * 4 };
    static const struct {
        uint32_t selectors, n_forms;
        cn_sel_forms forms;
    } cases[] = {
        {1U << CN_SELECT_NONE, 0, {{0}}},
        {1U << CN_SELECT_ORACLE, 1, {{0, 1 << (ROWS + 2)}}},
        {1U << CN_SELECT_QUEST, 1, {{0, 1 << BOUNDS}}},
        {1U << CN_SELECT_DS, 2, {{0, 5 << LABELS}}},
        {1U << CN_SELECT_TLS, 2, {{1 << BOUNDS, 10 << LABELS}}},
        {1U << CN_SELECT_SPADE, 2, {{0, 1 << (ROWS + 2) | 1 << LABELS}}},
        {1U << CN_SELECT_RANDOM, 1, {{0, 1 << (CN_KEY_HASH * 4)}}},
        {1U << CN_SELECT_DS | 1U << CN_SELECT_TLS, 4, {{1 << BOUNDS, 15 << LABELS}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t routes[CN_MAX_ROUTES];
        const cn_sel_forms forms = cn_selectors_forms(cases[i].selectors);
        assert_int_equal(forms.stage[0], cases[i].forms.stage[0]);
        assert_int_equal(forms.stage[1], cases[i].forms.stage[1]);
        const uint32_t n = cn_select_routes(&by_need, cases[i].selectors, routes);
        assert_int_equal(n, 1U << cases[i].n_forms);
        assert_int_equal(routes[0], 0);
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t b = 0; b < a; b++) assert_int_not_equal(routes[a], routes[b]);
        const uint32_t n_wide = cn_select_routes(&by_declared, cases[i].selectors, routes);
        assert_int_equal(n_wide, n > 1 ? 2 : 1);
        assert_int_equal(cn_select_routes(&without_routes, cases[i].selectors, routes), n_wide);
    }
}

static void a_step_without_lists_writes_nothing(void **state)
{
    (void)state;
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->block = 64;
    draw_row(r, 0, CN_SELECT_NONE);
    draw_row(r, 1, CN_SELECT_DS);
    r->seqs[1].n_prompt = 20;
    move_row(r, 1, 20);
    r->plan = (cn_plan){.rows = r->rows, .n_rows = 2, .n_decode = 2};
    open_builder(r, CONTEXT);
    assert_false(cn_select_build(&r->b, &r->plan, op_by_op, r->memory));
    for (size_t i = 0; i < cn_select_bytes(MAX_ROWS); i++)
        assert_int_equal((unsigned char)r->memory[i], UNTOUCHED);
    move_row(r, 1, 2000);
    assert_true(cn_select_build(&r->b, &r->plan, op_by_op, r->memory));
    assert_true(check_rows(r));
    check_launches(r);
    assert_int_equal(r->b.view.rows.list_len[0], 0);
    close_builder(r);
    free(r);
}

/* A step is split only where the candidates of its rows exceed the room. The room holds any single
 * row, and no more than all rows have. */
static void the_room_is_bounded_and_holds_a_row(void **state)
{
    (void)state;
    cn_select_limits l = {.selectors = 1U << CN_SELECT_DS,
                          .max_tokens = 100,
                          .max_tiles = 7,
                          .block_tokens = 64,
                          .max_sinks = 5,
                          .max_rows = 10,
                          .max_model_len = 1000};
    cn_select_scratch s = cn_select_scratch_sizes(&l);
    assert_int_equal(s.room, 10000);
    assert_int_equal(s.list_stride, 128 + 16);
    assert_int_equal(s.tile_stride, 0);
    l.selectors |= 1U << CN_SELECT_TLS;
    l.max_model_len = 1U << 20;
    s = cn_select_scratch_sizes(&l);
    assert_int_equal(s.room, 1U << 20);
    assert_int_equal(s.tile_stride, 7);
    l.block_tokens = 256; /* an exchange area is whole blocks */
    assert_int_equal(cn_select_scratch_sizes(&l).tile_stride, 8);
    l.block_tokens = 64;
    l.max_tokens = l.max_tiles = 1U << 30; /* lists are shorter than the context */
    l.max_model_len = 1000;
    s = cn_select_scratch_sizes(&l);
    assert_int_equal(s.list_stride, 1008); /* whole pages */
    assert_int_equal(s.tile_stride, 1000 / 64);
    l.max_model_len = 3U << 20;
    assert_int_equal(cn_select_scratch_sizes(&l).room, 3U << 20);
    l.selectors = 1U << CN_SELECT_NONE;
    assert_int_equal(cn_select_scratch_sizes(&l).room, 0);
}

static void tiles_are_those_that_the_rows_complete(void **state)
{
    (void)state;
    uint32_t table[] = {7, 3, 9};
    cn_seq q = {.table = table};
    /* Slots 60 to 259 complete tiles 0 to 3; one decoded token completes tile 4, the next one none;
     * slots of a compressed sequence are not positions. */
    const cn_plan_row rows[] = {
        {.seq = &q, .n_new = 1, .first_pos = 319, .first_slot = 319},
        {.seq = &q, .n_new = 1, .first_pos = 320, .first_slot = 320},
        {.seq = &q, .n_new = 1, .first_pos = 500, .first_slot = 127},
        {.seq = &q, .n_new = 200, .first_pos = 60, .first_slot = 60},
    };
    const cn_plan plan = {.rows = rows, .n_rows = 4, .n_decode = 3};
    const cn_digest_tile expected[] = {{9, 0}, {7, 0}, {7, 1}, {3, 0}, {3, 1}};
    cn_digest_tile tiles[8];
    assert_int_equal(cn_select_completed_tiles(&plan, 128, tiles), 5);
    assert_memory_equal(tiles, expected, sizeof expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_ranges_are_right_for_drawn_plans),
        cmocka_unit_test(a_shape_fixes_what_is_launched),
        cmocka_unit_test(routes_are_those_of_the_declared_selectors),
        cmocka_unit_test(a_step_without_lists_writes_nothing),
        cmocka_unit_test(the_room_is_bounded_and_holds_a_row),
        cmocka_unit_test(tiles_are_those_that_the_rows_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
