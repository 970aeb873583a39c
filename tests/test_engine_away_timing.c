/* test_engine_away_timing.c - requests with and without a home give the same tokens and usage,
 * whatever the timing.
 *     test_engine_away_timing [SEEDS [FIRST]]
 *
 * A seed draws requests that arrive over time; some are cancelled. They run once alone, one after
 * the other, and once together: with chunks, preemption, swap, forks and prefix hits, with events
 * that commit early or late, and on a device and a cache device that run all ops late. No token,
 * log-probability or count may differ. An engine may be freed, and all requests may be cancelled,
 * at any step. */
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

/* The late device has no threads, so the thread sanitizer skips it. Both sanitizers are slow. */
enum { DEFAULT_SEEDS = BY_SANITIZER(32, 8, 4), RUNS_LATE = BY_SANITIZER(true, true, false) };
static uint32_t n_seeds = DEFAULT_SEEDS, first_seed = 1;

/* Totals, so that the test fails when nothing was tested. */
static struct {
    uint64_t exchanges, compressions, preemptions, cached, cancelled, moved, beside, graphs, copies;
    uint64_t prompt_puts;
} seen;

/* ---- timing ---- */

/* homes: "peer", "host" or both. */
static void draw_timed_kv(away_scenario *x, away_ask *a, const char *homes)
{
    const uint32_t kind = away_below(x, 10);
    const bool any = strcmp(homes, "peer,host") == 0;
    const bool peer = any ? away_chance(x, 50) : strcmp(homes, "peer") == 0;
    const cn_kv_home home = peer ? CN_HOME_PEER : CN_HOME_HOST;
    away_draw_select(x, &a->kv);
    away_draw_zip(x, &a->kv);
    a->kv.global_score = true;
    if (kind < 2) { /* no home, and no selector or no policy */
        a->kv.policy = kind == 0 ? CN_KV_ZIP : CN_KV_FULL;
        if (kind == 0 || away_chance(x, 50)) a->kv.select = CN_SELECT_NONE;
        return;
    }
    a->kv.home = home;
    a->kv.select_cap = away_chance(x, 50) ? 0 : away_between(x, 1, 16);
    if (home == CN_HOME_HOST) a->kv.select_keys = CN_SELECT_LABELS;
    if (kind >= 8) a->kv.policy = CN_KV_ZIP;
    if (kind == 7) a->kv.policy = CN_KV_WINDOW;
    if (kind == 4) a->kv.select = CN_SELECT_SPEC;
    if (kind != 5 && kind != 6) return;
    a->kv.select = CN_SELECT_TLS;
    a->kv.select_tiles = away_between(x, 2, 3);
    a->kv.select_tokens = away_between(x, 1, 100);
    a->kv.select_group = (cn_select_group)away_below(x, 2);
    a->kv.select_query = (cn_select_query)away_below(x, 2);
    a->kv.select_cap = away_chance(x, 50) ? 0 : 1;
    a->kv.select_keys = CN_SELECT_LABELS;
}

static void draw_asks(away_scenario *x, const char *homes)
{
    uint32_t common[AWAY_CONTEXT];
    for (uint32_t i = 0; i < AWAY_CONTEXT; i++) common[i] = away_below(x, x->vocab);
    x->n_asks = away_between(x, 3, AWAY_MAX_REQUESTS);
    for (uint32_t r = 0; r < x->n_asks; r++) {
        away_ask *a = &x->asks[r];
        a->n_prompt = away_between(x, 1, away_chance(x, 30) ? 400 : 150);
        const uint32_t alike = away_chance(x, 50) ? away_below(x, a->n_prompt) : 0;
        for (uint32_t i = 0; i < a->n_prompt; i++)
            a->prompt[i] = i < alike ? common[i] : away_below(x, x->vocab);
        const uint32_t room = AWAY_CONTEXT - a->n_prompt;
        a->max_tokens = away_between(x, away_chance(x, 80) ? 149 : 1, room);
        a->max_tokens = cn_min_u32(a->max_tokens, 330);
        a->n = away_chance(x, 80) ? 1 : 2;
        a->greedy = away_chance(x, 60);
        a->klass = r < x->n_asks * 2 / 3 ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
        a->at_step = a->klass == CN_CLASS_INTERACTIVE ? away_between(x, 100, 300)
                     : away_chance(x, 50)                  ? 0
                                                      : away_below(x, 100);
        a->cancel_at = away_chance(x, 20) ? a->at_step + away_between(x, 1, 300) : 0;
        draw_timed_kv(x, a, homes);
    }
}

static away_scenario *draw_timing(uint64_t seed)
{
    away_scenario *x = away_draw_scenario(seed, 3);
    const char *homes = away_draw_homes(x);
    away_set(x, "select-cap", 16);
    draw_asks(x, homes);
    return x;
}

/* The device's memory and how steps are composed. */
static void draw_shortage(away_scenario *x)
{
    const uint32_t most = (uint32_t)cn_ceil_div(AWAY_CONTEXT, x->block);
    away_set(x, "num-gpu-blocks-override", most + 2 + away_below(x, away_chance(x, 60) ? 8 : 40));
    away_set(x, "max-num-seqs", away_between(x, 2, 8));
    away_set(x, "max-num-batched-tokens", away_between(x, 16, 300));
    away_set_text(x, "enable-prefix-caching", away_chance(x, 70) ? "true" : "false");
    away_set_text(x, "async-scheduling", away_chance(x, 60) ? "on" : "off");
    away_set_text(x, "swap-space", away_chance(x, 60) ? "0.05" : "0");
    away_set_text(x, "hybrid-scheduling", away_chance(x, 80) ? "true" : "false");
}

/* A graph or a copy may use blocks that the last exchanges still read or write. So each of them
 * must follow, in its stream, a wait for the last exchange of each pack. */
enum { MAX_STREAMS = 6 };
static struct {
    const cn_homes *homes;
    uint32_t launched[CN_N_HOMES][CN_MAX_PACKS]; /* exchanges */
    const cn_stream *streams[MAX_STREAMS];
    uint32_t waited[MAX_STREAMS][CN_N_HOMES][CN_MAX_PACKS]; /* `launched` at the last wait */
    cn_status (*record)(cn_fence *f, cn_stream *s);
    cn_status (*wait)(cn_stream *s, cn_fence *f);
    cn_status (*launch)(cn_stream *s, cn_graph *g);
    cn_status (*copy)(cn_stream *s, const cn_copy_args *a);
} watched;

static uint32_t index_of(const cn_stream *s)
{
    uint32_t i = 0;
    while (i < MAX_STREAMS && watched.streams[i] && watched.streams[i] != s) i++;
    assert_true(i < MAX_STREAMS);
    watched.streams[i] = s;
    return i;
}

static cn_status note_record(cn_fence *f, cn_stream *s)
{
    for (int h = 0; h < CN_N_HOMES; h++)
        for (uint32_t p = 0; p < CN_MAX_PACKS; p++)
            watched.launched[h][p] += watched.homes->at[h].done[p] == f;
    return watched.record(f, s);
}

static cn_status note_wait(cn_stream *s, cn_fence *f)
{
    for (int h = 0; h < CN_N_HOMES; h++)
        for (uint32_t p = 0; p < CN_MAX_PACKS; p++)
            if (watched.homes->at[h].done[p] == f)
                watched.waited[index_of(s)][h][p] = watched.launched[h][p];
    return watched.wait(s, f);
}

static void expect_waited(const cn_stream *s)
{
    const uint32_t i = index_of(s);
    assert_memory_equal(watched.waited[i], watched.launched, sizeof watched.launched);
}

static cn_status note_launch(cn_stream *s, cn_graph *g)
{
    expect_waited(s);
    seen.graphs++;
    return watched.launch(s, g);
}

static cn_status note_copy(cn_stream *s, const cn_copy_args *a)
{
    expect_waited(s);
    seen.copies++;
    seen.prompt_puts += s == watched.homes->puts;
    return watched.copy(s, a);
}

static void watch_waits(run *r)
{
    cn_engine *e = r->engine;
    cn_backend *be = e->backend;
    if (!be->graph_launch) return;
    memset(&watched, 0, sizeof watched);
    watched.homes = &e->homes;
    watched.record = be->fence_record;
    watched.wait = be->fence_wait;
    watched.launch = be->graph_launch;
    watched.copy = be->copy_blocks;
    for (int h = 0; h < CN_N_HOMES; h++)
        if (e->homes.at[h].be) e->homes.at[h].be->fence_record = note_record;
    be->fence_wait = note_wait;
    be->graph_launch = note_launch;
    be->copy_blocks = note_copy;
}

static void count_beside(const run *r, void *user)
{
    (void)user;
    seen.beside += r->stats.compressing > 0;
}

/* Runs the requests of x alone, then together. `draw` sets options of the second run. */
static void compare_runs(away_scenario *x, uint64_t seed, bool late, void (*draw)(away_scenario *x))
{
    const uint32_t n_options = x->n_options;
    away_set_text(x, "sync-compression", "true");
    away_set_text(x, "enable-prefix-caching", "false");
    late_device_choose(0);
    away_set(x, "max-num-seqs", 1);
    away_plan plan = {.commits = BY_LUCK, .n_steps = 700, .before = watch_waits,
                      .after = count_beside};
    run *alone = away_run_asks(x, &plan);
    x->n_options = n_options;
    draw(x);
    late_device_choose(late ? seed : 0);
    plan.commits = (commit_time)(seed % N_COMMIT_TIMES);
    plan.cancels = true;
    run *beside = away_run_asks(x, &plan);
    for (uint32_t i = 0; i < x->n_asks; i++)
        for (uint32_t s = 0; s < x->asks[i].n; s++)
            seen.cancelled +=
                !away_assert_alone(&beside->samples[i][s], &alone->samples[i][s], seed, i);
    run_assert_accounts(alone);
    run_assert_accounts(beside);
    seen.exchanges += beside->stats.exchanges;
    seen.compressions += beside->stats.compressions;
    seen.preemptions += beside->stats.preemptions;
    seen.cached += beside->stats.cached_tokens;
    seen.moved += beside->stats.swap_outs;
    run_free(alone);
    run_free(beside);
    late_device_choose(0);
    away_free_scenario(x);
}

static void run_both(uint64_t seed, bool late)
{
    compare_runs(draw_timing(seed), seed, late, draw_shortage);
}

static void timing_changes_nothing(void **state)
{
    (void)state;
    seen.exchanges = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) run_both(seed, false);
    print_message("%u seeds: %llu exchanges, %llu compressions, %llu steps beside, %llu "
                  "preemptions, %llu cached tokens, %llu cancelled, %llu moves to swap space\n",
                  n_seeds, (unsigned long long)seen.exchanges,
                  (unsigned long long)seen.compressions, (unsigned long long)seen.beside,
                  (unsigned long long)seen.preemptions, (unsigned long long)seen.cached,
                  (unsigned long long)seen.cancelled, (unsigned long long)seen.moved);
    if (n_seeds < DEFAULT_SEEDS) return;
    assert_true(seen.exchanges > 100 * n_seeds && seen.beside > n_seeds);
}

static void late_devices_change_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; RUNS_LATE && seed < first_seed + n_seeds; seed++)
        run_both(seed, true);
    print_message("%llu graphs, %llu copies of blocks, %llu of them of prompts\n",
                  (unsigned long long)seen.graphs, (unsigned long long)seen.copies,
                  (unsigned long long)seen.prompt_puts);
    if (!RUNS_LATE || n_seeds < DEFAULT_SEEDS) return;
    assert_true(seen.graphs > 100 && seen.copies > 3 * n_seeds);
}

/* ---- prompts ---- */

static void draw_prompt(away_scenario *x, const char *homes, uint32_t r, uint32_t n_prompt,
                        uint32_t at_step)
{
    away_ask *a = &x->asks[r];
    const bool host = strstr(homes, "host") != NULL;
    *a = (away_ask){.n_prompt = n_prompt, .max_tokens = AWAY_CONTEXT - n_prompt, .n = 1,
                    .greedy = true, .at_step = at_step, .klass = CN_CLASS_BATCH};
    for (uint32_t i = 0; i < n_prompt; i++) a->prompt[i] = away_below(x, x->vocab);
    away_draw_select(x, &a->kv);
    a->kv.home = host ? CN_HOME_HOST : CN_HOME_PEER;
    a->kv.select_keys = CN_SELECT_LABELS;
}

static void draw_two(away_scenario *x)
{
    away_set(x, "max-num-seqs", 2);
    away_set(x, "max-num-batched-tokens", 128);
}

/* The second request gets the home blocks of the first, which is cancelled while its prompt goes
 * home. It has no puts before its first event. The third one comes after that event and waits for
 * puts, so a put of the first request that nothing has waited for would run now. */
static void puts_of_a_cancelled_prompt_come_before_the_next_owner(void **state)
{
    (void)state;
    const uint64_t copies = seen.prompt_puts;
    for (uint64_t seed = first_seed; RUNS_LATE && seed < first_seed + n_seeds; seed++) {
        away_scenario *x = away_draw_scenario(seed, 3);
        const char *homes = away_draw_homes(x);
        away_set(x, "select-cap", 16);
        x->n_asks = 3;
        draw_prompt(x, homes, 0, 560, 0);
        x->asks[0].cancel_at = 4;
        draw_prompt(x, homes, 1, 100, 5);
        draw_prompt(x, homes, 2, 560, 430);
        compare_runs(x, seed, true, draw_two);
    }
    assert_true(!RUNS_LATE || n_seeds < DEFAULT_SEEDS || seen.prompt_puts > copies + n_seeds);
}

/* ---- ends ---- */

/* The late device leaves events, fills and exchanges in the streams. */
static run *run_until(away_scenario *x, uint32_t n_steps)
{
    run *r = away_open_run(x);
    for (uint32_t i = 0; i < x->n_asks; i++) away_submit(r, &x->asks[i]);
    run_steps(r, n_steps);
    return r;
}

static away_scenario *draw_end(uint64_t seed)
{
    away_scenario *x = draw_timing(seed);
    away_set_text(x, "async-scheduling", away_chance(x, 70) ? "on" : "off");
    away_set(x, "max-num-batched-tokens", 2048);
    for (uint32_t r = 0; r < x->n_asks; r++) x->asks[r].cancel_at = 0;
    return x;
}

/* Whatever is in flight: puts, fills, exchanges, events. */
static void an_engine_can_be_freed_at_any_step(void **state)
{
    (void)state;
    uint64_t exchanges = 0, compressing = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        away_scenario *x = draw_end(seed);
        late_device_choose(seed % 2 == 0 ? seed : 0);
        run *r = run_until(x, 120 + away_below(x, 260));
        exchanges += r->stats.exchanges;
        compressing += r->stats.compressing > 0;
        run_free(r);
        late_device_choose(0);
        away_free_scenario(x);
    }
    assert_true(n_seeds < 8 || (exchanges > 100 && compressing > 0));
}

/* All requests are cancelled in one step; blocks of the device and of the home become free, and the
 * engine goes on. */
static void cancelled_requests_return_their_homes(void **state)
{
    (void)state;
    uint64_t compressing = 0;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        away_scenario *x = draw_end(seed);
        late_device_choose(seed % 2 == 0 ? seed : 0);
        run *r = run_until(x, 120 + away_below(x, 260));
        compressing += r->stats.compressing > 0;
        for (uint32_t i = 0; i < x->n_asks; i++) cn_engine_cancel(r->engine, r->ids[i]);
        run_steps(r, 1);
        for (uint32_t i = 0; i < x->n_asks; i++) away_submit(r, &x->asks[i]);
        run_finish(r);
        away_assert_empty(r);
        run_free(r);
        late_device_choose(0);
        away_free_scenario(x);
    }
    assert_true(n_seeds < 8 || compressing > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_seeds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timing_changes_nothing),
        cmocka_unit_test(late_devices_change_nothing),
        cmocka_unit_test(puts_of_a_cancelled_prompt_come_before_the_next_owner),
        cmocka_unit_test(an_engine_can_be_freed_at_any_step),
        cmocka_unit_test(cancelled_requests_return_their_homes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
