/* test_exchange_cpu.c - exchange and fetch on the CPU compared with sorted lists of all candidates,
 * over many rounds on random shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/backend_rig.h"
#include "tests/lib/exchange_case.h"
#include "tests/lib/sanitizer.h"

/* The reference is slow under the thread sanitizer. */
enum { N_DRAWN = BY_SANITIZER(60, 60, 6), N_LONG = BY_SANITIZER(6, 6, 2) };
enum { N_SMALL_CAPS = BY_SANITIZER(10, 5, 1) };

enum { POISON = 0xa5 };

/* A case, the pools of both sides, and what the ops must have left there. */
typedef struct world {
    exchange_case *c;
    cn_pools local, home;
    cn_move *moves;
    uint32_t *n_moves, *n_missed;
    uint32_t *chosen, *origin; /* expected */
    float *kv;                 /* expected */
    uint8_t *labels;           /* expected */
    uint16_t *scales;          /* expected */
} world;

static void *copy_of(const void *p, size_t bytes)
{
    void *copy = cn_calloc(bytes + 1, 1);
    memcpy(copy, p, bytes);
    return copy;
}

static size_t chosen_bytes(const world *w)
{
    return exchange_case_chosen(w->c) * sizeof(uint32_t);
}

static size_t side_bytes(const world *w)
{
    return cn_kv_side_elems(&w->c->local) * sizeof(uint32_t);
}

static size_t label_bytes(const cn_pools *p)
{
    return cn_kv_side_elems(&p->layout) * p->digest.n_channels / 2;
}

static size_t scale_bytes(const cn_pools *p)
{
    return cn_kv_side_elems(&p->layout) * sizeof *p->digest.scales;
}

static void *random_bytes(test_rng *r, size_t n)
{
    uint8_t *p = cn_calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)test_rng_below(r, 256);
    return p;
}

static cn_pools random_pools(test_rng *r, const cn_kv_layout *l)
{
    cn_pools p = {.layout = *l, .digest = {.n_channels = cn_label_channels(l->head_dim)}};
    p.kv = cn_calloc(cn_kv_pool_elems(l), sizeof(float));
    test_rng_fill(r, p.kv, cn_kv_pool_elems(l));
    p.digest.labels = random_bytes(r, label_bytes(&p));
    p.digest.scales = random_bytes(r, scale_bytes(&p));
    return p;
}

static void free_pools(cn_pools *p)
{
    cn_free(p->kv);
    cn_free(p->digest.labels);
    cn_free(p->digest.scales);
}

static world open_world(exchange_case *c, test_rng *r)
{
    world w = {.c = c, .local = random_pools(r, &c->local), .home = random_pools(r, &c->home)};
    const size_t n = exchange_case_units(c);
    w.local.origin = c->origin;
    w.moves = cn_calloc(n * c->move_stride, sizeof *w.moves);
    w.n_moves = cn_calloc(2 * n, sizeof *w.n_moves);
    w.n_missed = w.n_moves + n;
    w.chosen = copy_of(c->chosen, chosen_bytes(&w));
    w.origin = copy_of(c->origin, side_bytes(&w));
    w.kv = copy_of(w.local.kv, cn_kv_pool_bytes(&c->local));
    w.labels = copy_of(w.local.digest.labels, label_bytes(&w.local));
    w.scales = copy_of(w.local.digest.scales, scale_bytes(&w.local));
    return w;
}

static void close_world(world *w)
{
    free_pools(&w->local);
    free_pools(&w->home);
    cn_free(w->moves);
    cn_free(w->n_moves);
    cn_free(w->chosen);
    cn_free(w->origin);
    cn_free(w->kv);
    cn_free(w->labels);
    cn_free(w->scales);
    exchange_case_free(w->c);
}

static cn_exchange_args exchange_args(const world *w, bool fill)
{
    const exchange_case *c = w->c;
    return (cn_exchange_args){.score = c->score,
                              .first = c->first,
                              .n = c->n,
                              .base = c->base,
                              .entry_log2 = c->entry_log2,
                              .k = c->k,
                              .cap = c->cap,
                              .slots = c->slots,
                              .local = w->local,
                              .local_tables = c->holds ? c->local_tables : NULL,
                              .held_from = c->holds ? c->held_from : NULL,
                              .n_held = c->holds ? c->n_held : NULL,
                              .local_stride = c->local_stride,
                              .n_seqs = c->n_seqs,
                              .first_layer = c->first_layer,
                              .n_layers = c->n_layers,
                              .fill = fill,
                              .chosen = c->chosen,
                              .n_slots = c->n_slots,
                              .chosen_stride = c->chosen_stride,
                              .moves = w->moves,
                              .n_moves = w->n_moves,
                              .n_missed = w->n_missed,
                              .move_stride = c->move_stride};
}

static cn_fetch_args fetch_args(const world *w)
{
    const exchange_case *c = w->c;
    return (cn_fetch_args){.local = w->local,
                           .home = w->home,
                           .local_tables = c->local_tables,
                           .home_tables = c->home_tables,
                           .local_stride = c->local_stride,
                           .home_stride = c->home_stride,
                           .entry_log2 = c->entry_log2,
                           .moves = w->moves,
                           .n_moves = w->n_moves,
                           .move_stride = c->move_stride,
                           .n_seqs = c->n_seqs,
                           .first_layer = c->first_layer,
                           .n_layers = c->n_layers};
}

static void run(cn_backend *be, const world *w, bool fill)
{
    const cn_exchange_args x = exchange_args(w, fill);
    const cn_fetch_args f = fetch_args(w);
    memset(w->moves, POISON, exchange_case_units(w->c) * w->c->move_stride * sizeof *w->moves);
    memset(w->n_moves, POISON, 2 * exchange_case_units(w->c) * sizeof *w->n_moves);
    if (be->exchange(backend_rig_stream(be), &x) != CN_OK) fail_msg("%s", cn_last_error());
    if (be->fetch(backend_rig_stream(be), &f) != CN_OK) fail_msg("%s", cn_last_error());
}

/* ---- the reference ---- */

typedef struct ranked {
    uint32_t score, number; /* number: position / entry tokens */
} ranked;

static int best_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->number < y->number ? 1 : x->number > y->number ? -1 : 0;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static bool contains(const uint32_t *sorted, uint32_t n, uint32_t x)
{
    return bsearch(&x, sorted, n, sizeof x, ascending) != NULL;
}

/* Writes the wanted numbers, best first. */
static void wanted_of(const exchange_case *c, const exchange_case_unit *u, uint32_t *wanted)
{
    const uint32_t s = u->seq, log2 = c->entry_log2[s];
    uint32_t held[512], n_held = 0, n = 0;
    for (uint32_t i = 0; c->holds && i < c->n_held[s]; i++)
        held[n_held++] = c->origin[exchange_case_side(c, u, c->held_from[s] + i)];
    qsort(held, n_held, sizeof *held, ascending);
    ranked *all = cn_calloc(c->n[s] + 1, sizeof *all);
    for (uint32_t i = 0; i < c->n[s]; i++) {
        const uint32_t number = (c->base[s] >> log2) + i;
        if (!contains(held, n_held, number)) all[n++] = (ranked){c->score[u->score + i], number};
    }
    assert_true(n >= c->k[s]);
    qsort(all, n, sizeof *all, best_first);
    for (uint32_t i = 0; i < c->k[s]; i++) wanted[i] = all[i].number;
    cn_free(all);
}

/* Replaces entries of chosen[k] and returns the moves. */
static uint32_t reference(const uint32_t *wanted, uint32_t k, uint32_t cap, bool fill,
                          uint32_t *chosen, cn_move *moves, uint32_t *n_missed)
{
    uint32_t *in = copy_of(wanted, k * sizeof *in), *was = copy_of(chosen, k * sizeof *was);
    uint32_t n = 0, n_new = 0;
    qsort(in, k, sizeof *in, ascending);
    qsort(was, k, sizeof *was, ascending);
    for (uint32_t i = 0; i < k && fill; i++) {
        chosen[i] = in[i];
        moves[n++] = (cn_move){i, in[i]};
    }
    for (uint32_t i = 0, e = 0; i < k && !fill; i++) {
        if (contains(was, k, wanted[i]) || n_new++ >= cap) continue;
        while (contains(in, k, chosen[e])) e++;
        moves[n++] = (cn_move){e, wanted[i]};
        chosen[e++] = wanted[i];
    }
    *n_missed = fill ? 0 : n_new - n;
    cn_free(in);
    cn_free(was);
    return n;
}

/* No entry appears twice, none is held, and all are candidates. A cap that leaves nothing out gives
 * the wanted set. */
static void check_area(const exchange_case *c, const exchange_case_unit *u, const uint32_t *wanted,
                       uint32_t n_missed)
{
    const uint32_t s = u->seq, k = c->k[s], first = c->base[s] >> c->entry_log2[s];
    uint32_t *now = copy_of(c->chosen + u->chosen, k * sizeof *now);
    uint32_t *in = copy_of(wanted, k * sizeof *in);
    qsort(now, k, sizeof *now, ascending);
    qsort(in, k, sizeof *in, ascending);
    for (uint32_t i = 0; i < k; i++) {
        assert_true(i == 0 || now[i] > now[i - 1]);
        assert_true(now[i] >= first && now[i] < first + c->n[s]);
        assert_false(exchange_case_holds(c, u, now[i]));
    }
    if (n_missed == 0) assert_memory_equal(now, in, k * sizeof *now);
    cn_free(now);
    cn_free(in);
}

/* Copies a token from the home space to the expected local pool, with the label of a tile's
 * token. */
static void expect_token(const world *w, const exchange_case_unit *u, uint32_t slot,
                         uint32_t position)
{
    const exchange_case *c = w->c;
    const uint32_t b = c->local.block_tokens;
    const uint32_t to = c->local_tables[u->seq * c->local_stride + slot / b];
    const uint32_t from = c->home_tables[u->seq * c->home_stride + position / b];
    for (int part = CN_KV_K; part <= CN_KV_V; part++)
        memcpy(w->kv + cn_kv_row(&c->local, u->layer, to, u->head, slot % b, (cn_kv_part)part),
               (float *)w->home.kv +
                   cn_kv_row(&c->home, u->layer, from, u->head, position % b, (cn_kv_part)part),
               c->local.head_dim * sizeof(float));
    const size_t y = exchange_case_side(c, u, slot);
    const size_t x = cn_kv_side(&c->home, u->layer, from, u->head, position % b);
    const size_t n = w->home.digest.n_channels / 2;
    w->origin[y] = position;
    if (c->entry_log2[u->seq] == 0) return;
    memcpy(w->labels + y * n, w->home.digest.labels + x * n, n);
    w->scales[y] = w->home.digest.scales[x];
}

static void check_unit(const world *w, size_t unit, bool fill)
{
    const exchange_case *c = w->c;
    const exchange_case_unit u = exchange_case_unit_at(c, unit);
    const uint32_t s = u.seq, k = c->k[s], entry = 1U << c->entry_log2[s];
    const cn_move *moves = w->moves + unit * c->move_stride;
    uint32_t *wanted = cn_calloc(k + 1, sizeof *wanted), n_missed = 0, n = 0;
    cn_move *want = cn_calloc(k + 1, sizeof *want);
    if (k > 0) {
        wanted_of(c, &u, wanted);
        n = reference(wanted, k, c->cap[s], fill, w->chosen + u.chosen, want, &n_missed);
        check_area(c, &u, wanted, n_missed);
    }
    assert_int_equal(w->n_moves[unit], n);
    assert_int_equal(w->n_missed[unit], n_missed);
    assert_memory_equal(moves, want, n * sizeof *want);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < entry; t++)
            expect_token(w, &u, want[i].entry * entry + t, want[i].source * entry + t);
    cn_free(wanted);
    cn_free(want);
}

static void check_round(const world *w, bool fill)
{
    for (size_t i = 0; i < exchange_case_units(w->c); i++) check_unit(w, i, fill);
    assert_memory_equal(w->c->chosen, w->chosen, chosen_bytes(w));
    assert_memory_equal(w->c->origin, w->origin, side_bytes(w));
    assert_memory_equal(w->local.kv, w->kv, cn_kv_pool_bytes(&w->c->local));
    assert_memory_equal(w->local.digest.labels, w->labels, label_bytes(&w->local));
    assert_memory_equal(w->local.digest.scales, w->scales, scale_bytes(&w->local));
}

static void run_rounds(cn_backend *be, test_rng *r, uint32_t longest, uint32_t n_rounds)
{
    world w = open_world(exchange_case_draw(r, longest), r);
    for (uint32_t round = 0; round < n_rounds; round++) {
        if (round > 0) {
            exchange_case_next(w.c, r, (exchange_change)test_rng_below(r, N_SCORE_CHANGES),
                               w.c->chosen);
            memcpy(w.origin, w.c->origin, side_bytes(&w));
        }
        run(be, &w, round == 0);
        check_round(&w, round == 0);
    }
    close_world(&w);
}

/* ---- tests ---- */

static void random_rounds_agree_with_sorting(void **state)
{
    (void)state;
    enum { ROUNDS = 8, LONGEST = 700 };
    cn_backend *be = backend_rig_open(2);
    test_rng r = {11};
    for (int i = 0; i < N_DRAWN; i++) run_rounds(be, &r, LONGEST, ROUNDS);
    backend_rig_close(be);
}

static void long_sequences_agree_with_sorting(void **state)
{
    (void)state;
    enum { ROUNDS = 4, LONGEST = 90000 };
    cn_backend *be = backend_rig_open(2);
    test_rng r = {12};
    for (int i = 0; i < N_LONG; i++) run_rounds(be, &r, LONGEST, ROUNDS);
    backend_rig_close(be);
}

/* Equal scores repeated change nothing. With a cap of 1 an exchange replaces one entry, so after as
 * many exchanges as there were newcomers the area holds the wanted set. */
static void small_caps_reach_the_wanted_set_step_by_step(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {13};
    for (int i = 0; i < N_SMALL_CAPS; i++) {
        world w = open_world(exchange_case_draw(&r, 300), &r);
        run(be, &w, true);
        check_round(&w, true);
        for (uint32_t s = 0; s < w.c->n_seqs; s++) w.c->cap[s] = 1;
        exchange_case_next(w.c, &r, SCORES_INVERTED, w.c->chosen);
        memcpy(w.origin, w.c->origin, side_bytes(&w));
        for (uint32_t left = 1, round = 0; left > 0; round++) {
            run(be, &w, false);
            check_round(&w, false);
            left = 0;
            for (size_t u = 0; u < exchange_case_units(w.c); u++)
                left = cn_max_u32(left, w.n_missed[u] + w.n_moves[u]);
            assert_true(round <= w.c->chosen_stride);
        }
        close_world(&w);
    }
    backend_rig_close(be);
}

/* Moves that all layers share give what the same moves give layer by layer. */
static void one_list_serves_all_layers(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {17};
    for (int i = 0; i < N_SMALL_CAPS; i++) {
        world w = open_world(exchange_case_draw(&r, 300), &r);
        exchange_case *c = w.c;
        const uint32_t n_layers = c->n_layers;
        const size_t bytes = cn_kv_pool_bytes(&c->local);
        c->n_layers = 1; /* the moves of one layer */
        run(be, &w, true);
        c->n_layers = n_layers;
        cn_fetch_args f = fetch_args(&w);
        f.one_list = true;
        assert_int_equal(be->fetch(backend_rig_stream(be), &f), CN_OK);
        void *shared = copy_of(w.local.kv, bytes);
        memcpy(w.local.kv, w.kv, bytes);
        for (uint32_t l = 0; l < n_layers; l++) {
            f = fetch_args(&w);
            f.first_layer += l;
            f.n_layers = 1;
            assert_int_equal(be->fetch(backend_rig_stream(be), &f), CN_OK);
        }
        assert_memory_equal(w.local.kv, shared, bytes);
        cn_free(shared);
        close_world(&w);
    }
    backend_rig_close(be);
}

static void what_has_no_room_is_refused(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {14};
    world w = open_world(exchange_case_draw(&r, 300), &r);
    w.c->k[0] = w.c->chosen_stride + 1;
    w.c->n[0] = w.c->k[0];
    cn_exchange_args x = exchange_args(&w, true);
    assert_int_equal(be->exchange(backend_rig_stream(be), &x), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "entries"));
    w.c->k[0] = 5;
    w.c->n[0] = 4;
    assert_int_equal(be->exchange(backend_rig_stream(be), &x), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "candidates"));
    cn_fetch_args f = fetch_args(&w);
    f.home.layout.block_bytes++;
    assert_int_equal(be->fetch(backend_rig_stream(be), &f), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "home blocks"));
    close_world(&w);
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rounds_agree_with_sorting),
        cmocka_unit_test(long_sequences_agree_with_sorting),
        cmocka_unit_test(small_caps_reach_the_wanted_set_step_by_step),
        cmocka_unit_test(one_list_serves_all_layers),
        cmocka_unit_test(what_has_no_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
