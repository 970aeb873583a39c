/* test_engine_auto.c - requests with home `auto` get the tokens of the home that was chosen.
 *     test_engine_auto [SEEDS [FIRST]]
 *
 * A seed draws requests, most of them with home `auto`, that arrive over time; some are cancelled.
 * They run together in an engine with homes on a second CPU backend and in host memory, with
 * shortage, chunks, swap and prefix hits, on devices that run all ops late in half of the seeds.
 * Then each runs alone with the home that its usage names. A request that moved while it ran is
 * counted for the right home in each step. */
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
#include "scheduler/sched_state.h"
#include "tests/lib/away_scenario.h"
#include "tests/lib/late_device.h"
#include "tests/lib/sanitizer.h"

enum { DEFAULT_SEEDS = BY_SANITIZER(8, 8, 2) };
enum { N_STEPS = 900 };
static uint32_t n_seeds = DEFAULT_SEEDS, first_seed = 1;

/* Totals, so that the test fails when nothing was tested. */
static struct {
    uint64_t compared[CN_N_HOMES], moved, moved_ahead, cancelled;
} seen;

static void draw_kv(away_scenario *x, away_ask *a)
{
    const uint32_t kind = away_below(x, 10);
    away_draw_select(x, &a->kv);
    a->kv.select_keys = CN_SELECT_LABELS; /* home `host` expects them */
    away_draw_zip(x, &a->kv);
    if (kind < 3) { /* full KV without a selector: admitted where it does not fit to its end */
        a->kv.select = CN_SELECT_NONE;
        return;
    }
    a->kv.home = CN_HOME_AUTO;
    if (kind == 8) a->kv.policy = CN_KV_ZIP;
    if (kind == 7) a->kv.policy = CN_KV_WINDOW;
    if (kind == 6) a->kv.select = CN_SELECT_SPEC;
    if (kind != 9) return;
    a->kv.select = CN_SELECT_TLS;
    a->kv.select_tiles = 3;
    a->kv.select_tokens = away_between(x, 1, 100);
    a->kv.select_query = (cn_select_query)away_below(x, 2);
}

static away_scenario *draw(uint64_t seed)
{
    away_scenario *x = away_draw_scenario(seed, 3);
    away_draw_homes(x);
    x->n_asks = away_between(x, 5, 8);
    for (uint32_t r = 0; r < x->n_asks; r++) {
        away_ask *a = &x->asks[r];
        a->n = 1;
        a->n_prompt = away_between(x, 1, 150);
        for (uint32_t i = 0; i < a->n_prompt; i++) a->prompt[i] = away_below(x, x->vocab);
        a->max_tokens = away_between(x, 280, 400);
        a->greedy = away_chance(x, 60);
        a->klass = away_chance(x, 70) ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
        a->at_step = r < 2 ? 0 : away_below(x, 100);
        a->cancel_at = away_chance(x, 10) ? a->at_step + away_between(x, 1, 400) : 0;
        draw_kv(x, a);
    }
    return x;
}

/* The device's memory and how steps are composed. */
static void draw_shortage(away_scenario *x)
{
    const uint32_t most = (uint32_t)cn_ceil_div(AWAY_CONTEXT, x->block);
    away_set(x, "num-gpu-blocks-override", most + 4 + away_below(x, most));
    away_set(x, "max-num-seqs", away_between(x, 4, 8));
    away_set(x, "max-num-batched-tokens", away_between(x, 64, 300));
    away_set_text(x, "async-scheduling", away_chance(x, 60) ? "on" : "off");
    away_set_text(x, "swap-space", away_chance(x, 30) ? "0.05" : "0");
}

static uint32_t find_option(const away_scenario *x, const char *name)
{
    uint32_t i = 0;
    while (strcmp(x->options[2 * i], name) != 0) i++;
    return i;
}

/* A request with home `auto`, then one with full KV. Both fill their blocks together, and the pool
 * lacks the last block of each, so the first one moves. */
static void draw_move(away_scenario *x)
{
    const uint32_t need = (uint32_t)cn_ceil_div(459, x->block);
    x->n_asks = 2;
    for (uint32_t r = 0; r < 2; r++) {
        away_ask *a = &x->asks[r];
        a->n_prompt = 60;
        a->max_tokens = 400;
        a->klass = CN_CLASS_BATCH;
        a->at_step = r;
        a->cancel_at = 0;
        away_draw_select(x, &a->kv);
        a->kv.select_keys = CN_SELECT_LABELS;
        if (away_chance(x, 50)) a->kv.select = CN_SELECT_SPEC; /* it needs no ring */
        if (r == 0) a->kv.home = CN_HOME_AUTO;
        else a->kv.select = CN_SELECT_NONE;
    }
    away_set(x, "num-gpu-blocks-override", 2 * need - 2);
    away_set(x, "max-num-seqs", 4);
    away_set_text(x, "async-scheduling", away_chance(x, 60) ? "on" : "off");
}

/* A request that was given the device is preempted for an interactive one with a long prompt, and
 * comes back with another home. While it computes its tokens again, past its first event, a third
 * request exchanges in the same steps. Blocks have 64 tokens. */
static void draw_return(away_scenario *x)
{
    const bool peer = strstr(x->options[1 + 2 * find_option(x, "kv-homes")], "peer") != NULL;
    x->n_asks = 3;
    for (uint32_t r = 0; r < 3; r++) {
        away_ask *a = &x->asks[r];
        a->n_prompt = r == 1 ? 560 : 60;
        a->max_tokens = r == 1 ? 60 : 420;
        for (uint32_t i = 0; i < a->n_prompt; i++) a->prompt[i] = away_below(x, x->vocab);
        a->klass = r == 1 ? CN_CLASS_INTERACTIVE : CN_CLASS_BATCH;
        a->at_step = r == 0 ? 0 : r == 1 ? 330 : 340;
        a->cancel_at = 0;
        away_draw_select(x, &a->kv);
        a->kv.select_keys = CN_SELECT_LABELS;
        a->kv.home = r == 0 ? CN_HOME_AUTO : peer ? CN_HOME_PEER : CN_HOME_HOST;
    }
    x->asks[1].kv.select = CN_SELECT_NONE;
    x->asks[1].kv.home = CN_HOME_DEVICE;
    away_set(x, "num-gpu-blocks-override", 16);
    away_set(x, "max-num-seqs", 4);
    away_set(x, "max-num-batched-tokens", 600);
    away_set_text(x, "async-scheduling", away_chance(x, 60) ? "on" : "off");
}

/* Notes where requests move to another home: the position is that of the first step after it. A
 * move takes more than one step. */
static void note_moves(const run *r, void *user)
{
    uint32_t *moved_at = user;
    for (cn_list_node *at = r->engine->requests.head; at; at = at->next) {
        const cn_engine_request *q = CN_CONTAINER_OF(at, cn_engine_request, node);
        for (uint32_t i = 0; i < r->n_requests; i++)
            if (r->ids[i] == q->id && q->samples[0].seq->sched->moving)
                moved_at[i] = q->samples[0].seq->n_computed;
    }
}

/* Before the move the steps are those of home `device`, after it each has an exchange. */
static void check_moved(const away_scenario *x, const away_ask *a, const run_sample *s,
                        uint32_t moved_at)
{
    const cn_kv_usage *u = &s->usage.kv;
    cn_kv_params kv = u->params;
    const uint32_t end = a->n_prompt + s->n_tokens - 1;
    assert_int_equal(moved_at % x->block, 0);
    assert_true(kv.home == CN_HOME_PEER || kv.home == CN_HOME_HOST);
    kv.home = CN_HOME_AUTO;
    kv = cn_away_form(&kv, CN_HOME_DEVICE);
    /* On the device this selector rounds its list up to 16, not to a block. */
    if (kv.select == CN_SELECT_SPEC)
        kv.select_tokens = (uint32_t)cn_round_up(a->kv.select_tokens, 16);
    uint32_t n_before = 0;
    for (uint32_t p = a->n_prompt; p < cn_min_u32(end, moved_at); p++)
        n_before += cn_select_span_at(&kv, a->n_prompt, p, x->block).listed;
    const uint32_t n_after = end > moved_at ? end - moved_at : 0;
    assert_int_equal(u->exchanges, n_after);
    assert_int_equal(u->selected_steps, n_before + n_after);
    seen.moved++;
    seen.moved_ahead += kv.select == CN_SELECT_SPEC;
}

typedef enum kind { ANY, MOVES, RETURNS } kind;

/* Where a preempted request ran first is unknown. */
static void run_both(uint64_t seed, kind k)
{
    away_scenario *x = draw(seed);
    uint32_t moved_at[AWAY_MAX_REQUESTS] = {0};
    const uint32_t n_options = x->n_options;
    if (k == MOVES) draw_move(x);
    else if (k == RETURNS) draw_return(x);
    else draw_shortage(x);
    late_device_choose(seed % 2 == 0 ? seed : 0);
    run *beside = away_run_asks(x, &(away_plan){.commits = (commit_time)(seed % N_COMMIT_TIMES),
                                                .n_steps = N_STEPS, .cancels = true,
                                                .after = note_moves, .user = moved_at});
    uint64_t n_chosen = 0, n_auto = 0, n_moved = 0;
    for (int h = 0; h < CN_N_HOMES; h++) n_chosen += beside->stats.auto_admissions[h];
    for (int h = 0; h < CN_N_HOMES; h++)
        assert_true(beside->stats.home_link_bytes_per_s[h] == 0); /* a CPU has no link */
    for (uint32_t i = 0; i < x->n_asks; i++) {
        const run_sample *s = &beside->samples[i][0];
        const cn_kv_home home = s->usage.kv.params.home;
        cn_kv_params *kv = &x->asks[i].kv;
        n_auto += kv->home == CN_HOME_AUTO && home != CN_HOME_AUTO;
        n_moved += moved_at[i] > 0;
        *kv = cn_away_form(kv, home == CN_HOME_AUTO ? CN_HOME_DEVICE : home);
    }
    assert_true(n_chosen >= n_auto); /* a preempted request is admitted again */
    assert_int_equal(n_moved, beside->stats.auto_moves);
    if (k == MOVES) assert_int_equal(beside->stats.preemptions, 0);
    const cn_usage *first = &beside->samples[0][0].usage;
    if (k == RETURNS) {
        assert_int_equal(first->preemptions, 1);
        assert_true(first->kv.params.home != CN_HOME_DEVICE && first->kv.exchanges > 0);
    }
    x->n_options = n_options;
    away_set_text(x, "sync-compression", "true");
    away_set(x, "max-num-seqs", 1);
    late_device_choose(0);
    run *alone = away_run_asks(x, &(away_plan){.commits = BY_LUCK, .n_steps = N_STEPS});
    for (uint32_t i = 0; i < x->n_asks; i++) {
        const run_sample *s = &beside->samples[i][0];
        if (moved_at[i] > 0) {
            check_moved(x, &x->asks[i], s, moved_at[i]);
        } else if (s->usage.preemptions == 0) {
            seen.cancelled += !away_assert_alone(s, &alone->samples[i][0], seed, i);
            seen.compared[x->asks[i].kv.home]++;
        }
    }
    run_free(alone);
    run_free(beside);
    late_device_choose(0);
    away_free_scenario(x);
}

static void tokens_are_those_of_the_chosen_home(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) run_both(seed, ANY);
    print_message("%u seeds: %llu requests at device, %llu at peer, %llu at host, %llu moved, "
                  "%llu cancelled\n",
                  n_seeds, (unsigned long long)seen.compared[0],
                  (unsigned long long)seen.compared[1], (unsigned long long)seen.compared[2],
                  (unsigned long long)seen.moved, (unsigned long long)seen.cancelled);
    if (n_seeds < 8) return;
    assert_true(seen.compared[CN_HOME_DEVICE] > 5 && seen.cancelled > 2);
    assert_true(seen.compared[CN_HOME_PEER] > 2 && seen.compared[CN_HOME_HOST] > 0);
}

/* The request moves instead of a preemption, and the other one has the tokens that it has alone. */
static void a_request_moves_while_it_runs(void **state)
{
    (void)state;
    seen.moved = seen.compared[CN_HOME_DEVICE] = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) run_both(seed, MOVES);
    assert_true(seen.moved > n_seeds / 2 && seen.compared[CN_HOME_DEVICE] >= n_seeds);
    assert_true(n_seeds < 8 || (seen.moved_ahead > 0 && seen.moved > seen.moved_ahead));
}

static void a_request_returns_with_another_home(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint64_t seed = first_seed; n < cn_min_u32(n_seeds, 2); seed++) {
        away_scenario *x = draw(seed);
        const bool small = x->block == 64;
        away_free_scenario(x);
        if (!small) continue;
        run_both(seed, RETURNS);
        n++;
    }
}

/* All requests are cancelled in one step, whatever they do: they wait, run, or move. */
static void cancelled_requests_return_all_they_hold(void **state)
{
    (void)state;
    uint64_t n_moves = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        away_scenario *x = draw(seed);
        draw_shortage(x);
        late_device_choose(seed % 2 == 0 ? seed : 0);
        run *r = away_open_run(x);
        for (uint32_t i = 0; i < x->n_asks; i++) away_submit(r, &x->asks[i]);
        const uint32_t n_steps = 150 + away_below(x, 300);
        /* Half of the seeds stop in the step that starts a move. */
        for (uint32_t n = 0; n < 600; n++) {
            const uint64_t before = r->stats.auto_moves;
            run_steps(r, 1);
            if (seed % 2 == 0 && r->stats.auto_moves > before) break;
            if (seed % 2 == 1 && n == n_steps) break;
        }
        n_moves += r->stats.auto_moves;
        for (uint32_t i = 0; i < x->n_asks; i++) cn_engine_cancel(r->engine, r->ids[i]);
        run_finish(r);
        away_assert_empty(r);
        assert_int_equal(r->n_done, x->n_asks);
        run_free(r);
        late_device_choose(0);
        away_free_scenario(x);
    }
    assert_true(n_seeds < 8 || n_moves > 0);
}

/* ---- starts and refusals ---- */

/* Without another home, `auto` of a request is the device, and as an option it is refused; a wrong
 * form of any declared home is refused. */
static void wrong_requests_are_refused(void **state)
{
    (void)state;
    static const char *const common[] = {"device", "cpu", "kv-select", "spade", "select-tokens",
                                         "256", NULL};
    run *r = run_new(common, (const char *[]){"kv-selectors", "spade,ds", NULL});
    cn_kv_params good, kv;
    cn_engine_default_kv(r->engine, &good);
    good.home = CN_HOME_AUTO;
    const uint32_t prompt[] = {65, 66, 67};
    cn_request_params p = {.tokens = prompt, .n_tokens = 3, .kv = good};
    cn_engine_default_sampling(r->engine, &p.sampling);
    p.sampling.max_tokens = 4;
    run_submit(r, &p);
    run_finish(r);
    assert_int_equal(r->samples[0][0].usage.kv.params.home, CN_HOME_DEVICE);
    assert_int_equal(r->stats.auto_admissions[CN_HOME_DEVICE], 1);
    kv = good, kv.select = CN_SELECT_DS;
    run_assert_kv_refused(r, &kv, "kv home auto with kv select ds: expected spade, last, tls");
    kv = good, kv.select = CN_SELECT_NONE;
    run_assert_kv_refused(r, &kv, "kv home auto with kv select none");
    run_free(r);
    r = run_new(common, (const char *[]){"kv-home", "auto", "kv-homes", "host", "home-space", "0.1",
                                         NULL});
    cn_engine_default_kv(r->engine, &good);
    assert_int_equal(good.home, CN_HOME_AUTO);
    kv = good, kv.select_keys = CN_SELECT_ROWS;
    run_assert_kv_refused(r, &kv, "kv select_keys rows with kv home host");
    kv = good, kv.select_cap = 200;
    run_assert_kv_refused(r, &kv, "kv select_cap 200: expected at most 8");
    run_free(r);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_seeds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_the_chosen_home),
        cmocka_unit_test(a_request_moves_while_it_runs),
        cmocka_unit_test(a_request_returns_with_another_home),
        cmocka_unit_test(cancelled_requests_return_all_they_hold),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
