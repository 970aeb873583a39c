/* test_select_probe.c - the figures of --select-probe compared with plain loops over the KV of an
 * engine. The op attend_selected of its backend is replaced by one that also computes them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_probe.h"
#include "engine/engine_state.h"
#include "engine/select/select_math.h"
#include "tests/lib/run_engine.h"

enum { MAX_TOKENS = 170, LIST = 64, EVERY = 7, SINKS = 4, MAX_LEN = 1024, MAX_UNITS = 64 };
enum { N_PROMPTS = 3 };
static const char *prompts[N_PROMPTS];
static run *dense; /* every prompt with full attention; its tokens are forced on all requests */

static const char *const options[] = {
    "block-size", "64", "kv-selectors", "*",
    "select-tokens", "64", "select-tiles", "2", "select-dense-layers", "1",
    "recent-tokens", "0", "kv-sinks", "4", NULL};

/* ---- plain loops, for one request at a time ---- */

static struct {
    cn_status (*attend_selected)(cn_stream *s, const cn_attend_selected_args *a);
    uint32_t n_forced; /* sinks of the request's selector */
    bool was_read[MAX_UNITS][MAX_LEN]; /* the lists of the previous step, by unit */
    uint32_t last_position[MAX_UNITS];
    cn_select_figures sums;
    double k_of_n; /* sum over units of tokens in the list / candidates */
} naive;

static double logit(const cn_attn_args *a, uint32_t head, uint32_t slot)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t b = l->block_tokens, kv_head = head / (a->n_heads / l->n_kv_heads);
    const size_t at =
        cn_kv_at(l, a->layer, a->batch->tables[slot / b], kv_head, slot % b, CN_KV_K);
    const float *k = (const float *)(const void *)((const char *)a->kv + at);
    const float *q = (const float *)a->q + (size_t)head * l->head_dim;
    double sum = 0;
    for (uint32_t i = 0; i < l->head_dim; i++) sum += (double)q[i] * (double)k[i];
    return sum * (double)a->scale;
}

/* Softmax of the slots [from, to) for a query head. */
static void softmax(const cn_attn_args *a, uint32_t head, uint32_t from, uint32_t to, double *out)
{
    double sum = 0;
    for (uint32_t i = from; i < to; i++) sum += out[i] = exp(logit(a, head, i));
    for (uint32_t i = from; i < to; i++) out[i] /= sum;
}

static double plain_mass(const cn_attn_args *a, uint32_t head, uint32_t group, const bool *attended)
{
    double share[MAX_LEN], mass = 0;
    for (uint32_t g = 0; g < group; g++) {
        softmax(a, head * group + g, 0, a->batch->kv_len[0], share);
        for (uint32_t i = 0; i < a->batch->kv_len[0]; i++) mass += attended[i] ? share[i] : 0;
    }
    return mass / group;
}

/* Raises score[i] to the share of a query head, for the slots [from, to). */
static void raise_to_shares(const cn_attn_args *a, uint32_t head, uint32_t from, uint32_t to,
                            uint16_t *score)
{
    float x[MAX_LEN];
    double sum = 0; /* of weights, linear between powers of two */
    for (uint32_t i = from; i < to; i++) {
        x[i] = (float)logit(a, head, i) * CN_LOG2_E;
        const double power = floor((double)x[i]);
        sum += ldexp(1 + (double)x[i] - power, (int)power);
    }
    const float log2_sum = cn_f16_value(cn_f16_bits((float)log2(sum) - 0.0430356f));
    for (uint32_t i = from; i < to; i++) {
        const uint16_t share = cn_share_score(cn_f16_value(cn_f16_bits(x[i])) - log2_sum);
        score[i] = share > score[i] ? share : score[i];
    }
}

/* Tokens of a list that are among the k candidates of [from, to) with the largest share of any
 * head. */
static uint32_t plain_overlap(const cn_attn_args *a, uint32_t head, uint32_t group,
                              const bool *in_list, uint32_t from, uint32_t to, uint32_t k)
{
    uint16_t score[MAX_LEN] = {0};
    for (uint32_t g = 0; g < group; g++) raise_to_shares(a, head * group + g, from, to, score);
    uint32_t common = 0;
    for (uint32_t i = from; i < to; i++) {
        uint32_t rank = 0;
        for (uint32_t j = from; j < to; j++)
            rank += score[j] > score[i] || (score[j] == score[i] && j > i);
        common += rank < k && in_list[i];
    }
    return common;
}

static void observe_head(const cn_attend_selected_args *a, uint32_t head)
{
    const uint32_t n_kv = a->attn.layout.n_kv_heads, group = a->attn.n_heads / n_kv;
    const uint32_t unit = a->attn.layer * n_kv + head, n = a->attn.batch->kv_len[0];
    const uint32_t from = naive.n_forced, tail = a->rows.tail[0], k = a->rows.list_len[0] - from;
    bool in_list[MAX_LEN] = {false}, attended[MAX_LEN] = {false};
    assert_true(unit < MAX_UNITS && n <= MAX_LEN);
    for (uint32_t i = 0; i < a->rows.list_len[0]; i++) {
        const uint32_t slot = a->scratch.list[head * a->scratch.list_stride + i];
        in_list[slot] = i >= from;
        attended[slot] = true;
    }
    for (uint32_t i = tail; i < n; i++) attended[i] = true;
    if ((n - 1) % EVERY == 0) {
        uint32_t n_new = 0;
        for (uint32_t i = 0; i < MAX_LEN; i++) n_new += in_list[i] && !naive.was_read[unit][i];
        const bool follows = naive.last_position[unit] == n - 2;
        cn_select_figures *f = &naive.sums;
        f->steps += unit == n_kv; /* layer 0 is dense */
        f->units++;
        f->n_churn += follows;
        f->churn += follows ? (double)n_new / k : 0;
        f->mass += plain_mass(&a->attn, head, group, attended);
        f->overlap += (double)plain_overlap(&a->attn, head, group, in_list, from, tail, k) / k;
        naive.k_of_n += (double)k / (tail - from);
    }
    memcpy(naive.was_read[unit], in_list, sizeof in_list);
    naive.last_position[unit] = n - 1;
}

static cn_status observe(cn_stream *s, const cn_attend_selected_args *a)
{
    CN_TRY(naive.attend_selected(s, a));
    assert_int_equal(a->attn.batch->n_decode, 1);
    for (uint32_t h = 0; h < a->attn.layout.n_kv_heads; h++) observe_head(a, h);
    return CN_OK;
}

/* ---- requests ---- */

/* A request with each selector, alone in a probed engine. */
static struct {
    cn_select_figures got, want;
    double k_of_n;
    uint64_t logprob_hash;
} alone[CN_N_SELECTORS];

/* Selectors whose tail is that of oracle decode the same text. */
static uint32_t prompt_of(cn_kv_select select)
{
    return select == CN_SELECT_SPADE ? 1 : select == CN_SELECT_LAST ? 2 : 0;
}

static run *open_run(uint32_t every)
{
    run *r = run_new(options, NULL);
    if (every) assert_int_equal(cn_engine_probe_selection(r->engine, every), CN_OK);
    return r;
}

/* Requests are forced to the tokens of full attention. */
static void submit(run *r, uint32_t prompt, cn_kv_select select)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[prompt], &m, MAX_TOKENS);
    p.kv.select = select;
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 0;
    if (dense) {
        p.forced = dense->samples[prompt][0].tokens;
        p.n_forced = dense->samples[prompt][0].n_tokens;
    }
    run_submit(r, &p);
}

static void probe_alone(run *r, cn_kv_select select)
{
    memset(naive.last_position, 0, sizeof naive.last_position);
    naive.sums = (cn_select_figures){0};
    naive.k_of_n = 0;
    naive.n_forced = (uint32_t)cn_round_up(SINKS, cn_selector_of(select)->entry_tokens);
    submit(r, prompt_of(select), select);
    run_finish(r);
    alone[select].got = cn_engine_take_selection(r->engine);
    alone[select].want = naive.sums;
    alone[select].k_of_n = naive.k_of_n;
    alone[select].logprob_hash = r->samples[r->n_requests - 1][0].logprob_hash;
}

static int setup(void **state)
{
    (void)state;
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_PROMPTS), N_PROMPTS);
    run *r = open_run(0);
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, CN_SELECT_NONE);
    run_finish(r);
    dense = r;

    r = open_run(EVERY);
    naive.attend_selected = r->engine->backend->attend_selected;
    r->engine->backend->attend_selected = observe;
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++) probe_alone(r, (cn_kv_select)i);
    run_free(r);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(dense);
    return 0;
}

static void figures_are_those_of_plain_loops(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++) {
        const cn_select_figures *got = &alone[i].got, *want = &alone[i].want;
        const double n = (double)want->units;
        assert_true(want->steps >= 8 && want->n_churn > 0);
        assert_int_equal(got->steps, want->steps);
        assert_int_equal(got->units, want->units);
        assert_int_equal(got->n_churn, want->n_churn);
        assert_true(fabs(got->mass - want->mass) < 1e-5 * n);
        /* Two tokens whose scores nearly tie may change places. */
        assert_true(fabs(got->overlap - want->overlap) < 1e-3 * n);
        assert_true(fabs(got->churn - want->churn) < 1e-9 * n);
    }
}

static void oracle_agrees_with_itself_and_reads_the_most(void **state)
{
    (void)state;
    static const cn_kv_select others[] = {CN_SELECT_QUEST, CN_SELECT_DS, CN_SELECT_TLS,
                                          CN_SELECT_RANDOM};
    const cn_select_figures *best = &alone[CN_SELECT_ORACLE].got;
    assert_true(best->overlap == (double)best->units);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const cn_select_figures *f = &alone[others[i]].got;
        const double n = (double)f->units;
        assert_true(f->mass / n < best->mass / (double)best->units && f->overlap < n);
    }
}

static void random_lists_agree_with_oracle_by_chance(void **state)
{
    (void)state;
    const cn_select_figures *f = &alone[CN_SELECT_RANDOM].got;
    const double n = (double)f->units, chance = alone[CN_SELECT_RANDOM].k_of_n / n;
    assert_true(chance < 0.7);
    assert_true(fabs(f->overlap / n - chance) < 0.02);
    /* A token stays in the list by chance too. */
    assert_true(fabs(f->churn / (double)f->n_churn - (1 - chance)) < 0.02);
}

static run *run_together(uint32_t every)
{
    run *r = open_run(every);
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++)
        submit(r, prompt_of((cn_kv_select)i), (cn_kv_select)i);
    run_finish(r);
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++)
        assert_true(r->samples[i - 1][0].logprob_hash == alone[i].logprob_hash);
    return r;
}

static void figures_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    cn_select_figures want = {0};
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++) {
        const cn_select_figures *f = &alone[i].got;
        want.steps += f->steps;
        want.units += f->units;
        want.n_churn += f->n_churn;
        want.mass += f->mass;
        want.overlap += f->overlap;
        want.churn += f->churn;
    }
    run *r = run_together(EVERY);
    const cn_select_figures f = cn_engine_take_selection(r->engine);
    const double n = (double)f.units;
    assert_int_equal(f.steps, want.steps);
    assert_int_equal(f.units, want.units);
    assert_int_equal(f.n_churn, want.n_churn);
    assert_true(fabs(f.mass - want.mass) < 1e-9 * n);
    assert_true(fabs(f.overlap - want.overlap) < 1e-9 * n);
    assert_true(fabs(f.churn - want.churn) < 1e-9 * n);
    assert_int_equal(cn_engine_take_selection(r->engine).steps, 0);
    run_free(r);
}

/* run_together compares the log-probabilities with those of probed requests. */
static void probing_changes_no_result(void **state)
{
    (void)state;
    run *r = run_together(0);
    assert_int_equal(cn_engine_take_selection(r->engine).steps, 0);
    run_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_plain_loops),
        cmocka_unit_test(oracle_agrees_with_itself_and_reads_the_most),
        cmocka_unit_test(random_lists_agree_with_oracle_by_chance),
        cmocka_unit_test(figures_do_not_depend_on_the_batch),
        cmocka_unit_test(probing_changes_no_result),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
