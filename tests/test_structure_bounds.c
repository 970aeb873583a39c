/* test_structure_bounds.c - costly forms in an engine: they are compiled beside the steps, for one
 * waiting request of an owner; a row whose mask is late sits out while others go on, and samples
 * the same tokens; rows whose items must differ take turns; a text that costs too much ends,
 * wherever it runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_state.h"
#include "tests/lib/run_engine.h"

#define COSTLY "(?:[a-m].{0,900}|[n-z].{0,1000}|[^a-z].{0,900}){40}"
#define TOO_COSTLY "(?:[a-m].{9,900}|[n-z].{9,1000}|[^a-z].{9,900}){40}"
#define SLOW_TO_COMPILE "(((){65535}){65535}){65535}"

enum { N_TOKENS = 6, N_FREE = 50, N_PROMPT = 446 }; /* blocks of 64 and 2 tokens less */

static cn_request_params params(const run *r, const char *expression, uint32_t max_tokens,
                                uint64_t seed)
{
    static cn_message message;
    cn_request_params p = run_params(r, "Say something.", &message, max_tokens);
    p.enable_thinking = 0;
    if (expression) p.structure = (cn_structure){CN_STRUCTURE_REGEX, expression, NULL, false};
    p.sampling.temperature = 2.0f;
    p.sampling.has_seed = true;
    p.sampling.seed = seed;
    p.sampling.ignore_eos = !expression;
    return p;
}

/* ---- late masks ---- */

/* Steps until done, and counts those in which a row sat out while another had one. */
static uint32_t finish(run *r)
{
    uint32_t n = 0;
    for (bool idle = false; !idle;) {
        const uint64_t steps = r->engine->stats->steps;
        if (cn_engine_step(r->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
        n += r->engine->late.n > 0 && r->engine->stats->steps > steps;
    }
    assert_int_equal(r->n_done, r->n_requests);
    return n;
}

/* Two costly texts, one of two samples, and free ones. *n: steps in which a row sat out. */
static run *run_all(const char *const *options, const char *const *more, uint32_t *n)
{
    run *r = run_new(options, more);
    for (uint32_t i = 0; i < 6; i++) {
        cn_request_params p = params(r, i % 3 ? NULL : COSTLY, i % 3 ? N_FREE : N_TOKENS, i);
        p.sampling.n = i == 3 ? 2 : 1;
        p.owner = 1 + i % 3;
        run_submit(r, &p);
    }
    *n = finish(r);
    return r;
}

static void check_kind(const char *name, const char *const *more)
{
    static const char *const sync[] = {"async-scheduling", "off", NULL}, *const async[] = {
                                                                             "async-scheduling",
                                                                             "on", NULL};
    uint32_t n_sync, n_async;
    run *a = run_all(sync, more, &n_sync), *b = run_all(async, more, &n_async);
    run *alone = run_new(sync, more);
    if (n_sync < 10 || n_async < 10)
        fail_msg("%s: rows sat out in %u and %u steps", name, n_sync, n_async);
    cn_request_params p = params(alone, COSTLY, N_TOKENS, 0);
    run_submit(alone, &p);
    finish(alone);
    run_assert_same(alone, 0, a, 0, 0);
    for (uint32_t i = 0; i < a->n_requests; i++)
        for (uint32_t s = 0; s < (i == 3 ? 2 : 1); s++) {
            run_assert_same(a, i, b, i, s);
            assert_int_equal(a->samples[i][s].finish, CN_FINISH_LENGTH);
        }
    run_free(a);
    run_free(b);
    run_free(alone);
}

static void late_rows_sample_the_same_tokens(void **state)
{
    (void)state;
#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})
    check_kind("plain", NULL);
    check_kind("few blocks", OPTIONS("num-gpu-blocks-override", "28", "max-model-len", "256"));
    check_kind("zip", OPTIONS("kv-policies", "zip", "kv-policy", "zip", "kv-budget", "32",
                              "kv-window", "8"));
    check_kind("window", OPTIONS("kv-policies", "window", "kv-policy", "window", "kv-budget", "32",
                                 "kv-sinks", "4"));
    check_kind("penalties", OPTIONS("repetition-penalty", "1.3"));
}

/* KV that lies at another home from the first token on. */
static const char *const away[] = {"block-size",
                                   "64",
                                   "kv-selectors",
                                   "spade",
                                   "kv-homes",
                                   "peer",
                                   "cache-device",
                                   "cpu",
                                   "home-space",
                                   "0.1",
                                   "kv-select",
                                   "spade",
                                   "select-tokens",
                                   "64",
                                   "kv-home",
                                   "peer",
                                   "select-cap",
                                   "8",
                                   NULL};

/* A prompt of N_PROMPT tokens. */
static void set_long_prompt(cn_request_params *p)
{
    static uint32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i < N_PROMPT; i++) prompt[i] = 97 + i % 26;
    p->messages = NULL;
    p->n_messages = 0;
    p->tokens = prompt;
    p->n_tokens = N_PROMPT;
}

/* An exchange with a home changes what the next step attends to, so it is not repeated: the rows
 * are paused before the step. */
static void away_rows_run_once(void **state)
{
    (void)state;
    run *both[2];
    for (int async = 0; async < 2; async++) {
        run *r = both[async] =
            run_new(away, (const char *const[]){"async-scheduling", async ? "on" : "off", NULL});
        for (uint32_t i = 0; i < 2; i++) {
            cn_request_params p = params(r, i ? NULL : COSTLY, i ? N_FREE : 2 * N_TOKENS, i);
            set_long_prompt(&p);
            run_submit(r, &p);
        }
        assert_true(finish(r) > 3);
        assert_true(r->samples[0][0].usage.kv.exchanges > 0);
        assert_int_equal(r->samples[0][0].usage.kv.exchanges,
                         both[0]->samples[0][0].usage.kv.exchanges);
        assert_int_equal(r->samples[0][0].usage.kv.fetched_entries,
                         both[0]->samples[0][0].usage.kv.fetched_entries);
        run_assert_same(both[0], 0, r, 0, 0);
        run_assert_same(both[0], 1, r, 1, 0);
    }
    run_free(both[0]);
    run_free(both[1]);
}

/* A free text ends before costly ones do. */
static void others_go_on_beside_late_rows(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){NULL});
    cn_request_params costly = params(&r, COSTLY, 100, 0), free = params(&r, NULL, 30, 1);
    for (uint32_t i = 0; i < 4; i++) {
        costly.owner = 1;
        costly.sampling.seed = 10 + i;
        run_submit(&r, &costly);
    }
    while (r.engine->late.n == 0) run_steps(&r, 1);
    free.owner = 2;
    const uint32_t i = run_submit(&r, &free);
    uint64_t most = 0;
    while (r.samples[i][0].finish == CN_FINISH_NONE) {
        uint64_t before = 0, after = 0;
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t *sum = k ? &after : &before;
            for (cn_list_node *at = r.engine->requests.head; at; at = at->next)
                *sum += CN_CONTAINER_OF(at, cn_engine_request, node)->samples[0].seq->mask_steps;
            if (k == 0) run_steps(&r, 1);
        }
        most = after > before && after - before > most ? after - before : most;
    }
    assert_int_equal(r.n_done, 1);
    assert_in_range(most, 1, 4100000); /* a step's share, and one transition more */
    for (uint32_t k = 0; k < i; k++) cn_engine_cancel(r.engine, r.ids[k]);
    run_finish(&r);
    run_close(&r);
}

/* ---- items that differ ---- */

static cn_request_params different_items(const run *r, uint32_t max_tokens, uint64_t seed)
{
    cn_request_params p = params(r, NULL, max_tokens, seed);
    p.structure = (cn_structure){CN_STRUCTURE_SCHEMA,
                                 "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":"
                                 "100,\"maximum\":999},\"uniqueItems\":true,\"minItems\":80}",
                                 NULL, true};
    p.sampling.ignore_eos = false;
    return p;
}

/* Makes a longer text, whose masks the automaton then has: those of the others lack only what
 * uniqueItems takes out. */
static void make_masks(run *r)
{
    const cn_request_params p = different_items(r, 300, 100);
    const uint32_t i = run_submit(r, &p);
    finish(r);
    assert_int_equal(r->samples[i][0].finish, CN_FINISH_LENGTH);
}

/* Each step has time for the mask of one row. */
static void rows_whose_items_must_differ_take_turns(void **state)
{
    (void)state;
    enum { N_ROWS = 4, N_STEPS = 200 };
    static run r;
    uint32_t before[N_ROWS + 1];
    for (int async = 0; async < 2; async++) {
        run_open(&r, (const char *[]){"async-scheduling", async ? "on" : "off", NULL});
        make_masks(&r);
        for (uint32_t i = 1; i <= N_ROWS; i++) {
            cn_request_params p = different_items(&r, 400, i);
            p.owner = 1;
            run_submit(&r, &p);
        }
        run_steps(&r, 20);
        r.engine->mask_share = 1;
        for (uint32_t i = 1; i <= N_ROWS; i++) before[i] = r.samples[i][0].n_tokens;
        run_steps(&r, N_STEPS);
        for (uint32_t i = 1; i <= N_ROWS; i++)
            assert_in_range(r.samples[i][0].n_tokens - before[i], N_STEPS / N_ROWS - 5,
                            N_STEPS / N_ROWS + 5);
        for (uint32_t i = 1; i <= N_ROWS; i++) cn_engine_cancel(r.engine, r.ids[i]);
        run_finish(&r);
        run_close(&r);
    }
}

/* Steps until done. Each has time for one mask, and those of first tokens, which do not wait. */
static void finish_by_turns(run *r, uint32_t n_rows, uint32_t n_tokens)
{
    uint32_t n = 0;
    for (bool idle = false; !idle; n++)
        if (cn_engine_step(r->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
    assert_in_range(n, n_rows * (n_tokens - 1), 2 * n_rows * n_tokens);
}

/* The share changes no token, not that of rows whose KV lies elsewhere either. */
static void check_small_share(const char *const *options)
{
    enum { N_ROWS = 3, N = 60 };
    run *r[2];
    for (uint32_t k = 0; k < 2; k++) {
        r[k] = run_new(options, (const char *const[]){"async-scheduling", "on", NULL});
        make_masks(r[k]);
        if (k == 1) r[k]->engine->mask_share = 1;
        for (uint32_t i = 1; i <= N_ROWS; i++) {
            cn_request_params p = different_items(r[k], N, i);
            if (options) set_long_prompt(&p);
            p.owner = i / 2;
            run_submit(r[k], &p);
        }
        if (k == 1)
            finish_by_turns(r[k], N_ROWS, N);
        else
            finish(r[k]);
    }
    for (uint32_t i = 1; i <= N_ROWS; i++) {
        assert_int_equal(r[0]->samples[i][0].finish, CN_FINISH_LENGTH);
        assert_true(!options || r[0]->samples[i][0].usage.kv.exchanges > 0);
        run_assert_same(r[0], i, r[1], i, 0);
    }
    run_free(r[0]);
    run_free(r[1]);
}

static void a_small_share_samples_the_same_tokens(void **state)
{
    (void)state;
    check_small_share(NULL);
    check_small_share(away);
}

static void a_text_that_costs_too_much_ends(void **state)
{
    (void)state;
    static run r, twins;
    run_open(&r, (const char *[]){NULL});
    run_open(&twins, (const char *[]){"async-scheduling", "on", NULL});
    cn_request_params p = params(&r, TOO_COSTLY, 300, 0);
    run_assert_invalid(&r, &p, "structured_outputs", "too many automaton steps");
    for (uint32_t i = 0; i < 3; i++) {
        p.sampling.seed = i;
        p.owner = i;
        run_submit(&twins, &p);
    }
    finish(&twins);
    run_assert_same(&r, 0, &twins, 0, 0); /* the masks that another text has made count too */
    assert_in_range(r.samples[0][0].n_tokens, 8, 200);
    for (uint32_t i = 0; i < 3; i++) assert_true(twins.samples[i][0].invalid);
    run_close(&r);
    run_close(&twins);
}

static void a_late_row_can_be_cancelled(void **state)
{
    (void)state;
    static run r;
    for (int async = 0; async < 2; async++) {
        run_open(&r, (const char *[]){"async-scheduling", async ? "on" : "off", NULL});
        cn_request_params p = params(&r, COSTLY, 200, 0), free = params(&r, NULL, 20, 1);
        p.sampling.n = 2;
        const uint32_t i = run_submit(&r, &p);
        run_submit(&r, &free);
        while (r.engine->late.n == 0) run_steps(&r, 1);
        cn_engine_cancel(r.engine, r.ids[i]);
        run_finish(&r);
        assert_int_equal(r.engine->late.n, 0);
        assert_int_equal(r.samples[i][0].finish, CN_FINISH_CANCELLED);
        run_close(&r);
    }
}

/* ---- compilation ---- */

static void forms_are_compiled_beside_the_steps(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){NULL});
    cn_request_params slow = params(&r, SLOW_TO_COMPILE, 10, 0), free = params(&r, NULL, 5, 1);
    const uint32_t refused = run_submit(&r, &slow), again = run_submit(&r, &slow);
    const uint32_t answered = run_submit(&r, &free);
    run_steps(&r, 1);
    assert_int_equal(r.stats.waiting, 2);
    assert_int_equal(r.stats.running, 1);
    run_finish(&r);
    assert_int_equal(r.samples[answered][0].finish, CN_FINISH_LENGTH);
    assert_true(r.samples[refused][0].invalid && r.samples[again][0].invalid);
    run_assert_refused(&r, &slow, "steps");
    run_close(&r);
}

static uint32_t count_grammars(const run *r)
{
    uint32_t n = 0;
    for (cn_list_node *at = r->engine->requests.head; at; at = at->next)
        n += CN_CONTAINER_OF(at, cn_engine_request, node)->grammar != NULL;
    return n;
}

static void one_waiting_request_of_an_owner_has_a_grammar(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){"max-num-seqs", "1", "max-queue", "64", NULL});
    cn_request_params free = params(&r, NULL, 400, 1);
    run_submit(&r, &free);
    for (uint32_t i = 0; i < 24; i++) {
        char expression[32];
        snprintf(expression, sizeof expression, "[ab]{%u}", 3 + i);
        cn_request_params p = params(&r, expression, 40, i);
        p.owner = i % 3;
        run_submit(&r, &p);
    }
    uint32_t most = 0;
    for (int i = 0; i < 300; i++) {
        run_steps(&r, 1);
        most = cn_max_u32(most, count_grammars(&r));
    }
    assert_int_equal(most, 3);
    run_finish(&r);
    for (uint32_t i = 1; i < r.n_requests; i++) {
        assert_int_equal(r.samples[i][0].finish, CN_FINISH_STOP);
        assert_int_equal(r.samples[i][0].text.len, 2 + i);
    }
    run_close(&r);
}

/* The form of a request that is cancelled goes to another that waits for it. Requests that come and
 * go leave nothing in the queue of the compiler. */
static void cancelled_forms_leave_the_compiler(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){"max-queue", "64", NULL});
    for (uint32_t i = 0; i < 30; i++) {
        char expression[64];
        snprintf(expression, sizeof expression, "(((){65535}){65535}){%u}", 60000 + i);
        cn_request_params p = params(&r, expression, 10, 0);
        p.owner = 1;
        const uint32_t k = run_submit(&r, &p);
        run_steps(&r, 1);
        cn_engine_cancel(r.engine, r.ids[k]);
        run_steps(&r, 1);
    }
    cn_request_params p = params(&r, "[ab]{3}", 10, 0);
    p.owner = 2;
    const uint32_t a = run_submit(&r, &p), b = run_submit(&r, &p);
    run_steps(&r, 1);
    cn_engine_cancel(r.engine, r.ids[a]);
    const double began = cn_now_s();
    run_finish(&r);
    assert_int_equal(r.samples[b][0].finish, CN_FINISH_STOP);
    assert_true(cn_now_s() - began < 10); /* 30 compilations would take longer */
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_rows_sample_the_same_tokens),
        cmocka_unit_test(away_rows_run_once),
        cmocka_unit_test(others_go_on_beside_late_rows),
        cmocka_unit_test(rows_whose_items_must_differ_take_turns),
        cmocka_unit_test(a_small_share_samples_the_same_tokens),
        cmocka_unit_test(a_text_that_costs_too_much_ends),
        cmocka_unit_test(a_late_row_can_be_cancelled),
        cmocka_unit_test(forms_are_compiled_beside_the_steps),
        cmocka_unit_test(one_waiting_request_of_an_owner_has_a_grammar),
        cmocka_unit_test(cancelled_forms_leave_the_compiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
