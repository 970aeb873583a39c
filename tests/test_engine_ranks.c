/* test_engine_ranks.c - a model that is split over ranks (--tensor-parallel-size): the greedy text
 * is that of transformers and of one rank; with any number of ranks nothing depends on chunks,
 * preemption, prefix hits, swap or batch composition; a rank that stops ends the engine in time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cpu/cpu_ranks.h"
#include "engine/engine_state.h"
#include "tests/lib/golden.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/tensor_file.h"

enum { N_REQUESTS = 8, MAX_TOKENS = 80, GOLDEN_TOKENS = 200 };
static const char *const sizes[] = {"1", "2", "4", "8"};
static const char *prompts[N_REQUESTS];
static char folder[64];

/* ---- the golden checkpoint ---- */

static void the_text_is_that_of_transformers(void **state)
{
    (void)state;
    golden *g = golden_open("llama-ranks-bf16");
    size_t n_tokens, n_greedy;
    const uint32_t *tokens = golden_u32(g, "tokens", &n_tokens);
    const uint32_t *greedy = golden_u32(g, "greedy", &n_greedy);
    assert_int_equal(n_greedy, GOLDEN_TOKENS);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run r;
        run_open(&r, (const char *[]){"model", "tests/golden/models/llama-ranks-bf16", "tokenizer",
                                      "examples/tiny-reasoner", "tensor-parallel-size", sizes[i],
                                      "max-num-batched-tokens", "64", "max-num-seqs", "4", NULL});
        cn_message m;
        cn_request_params p = run_params(&r, NULL, &m, GOLDEN_TOKENS);
        p.messages = NULL;
        p.n_messages = 0;
        p.tokens = tokens;
        p.n_tokens = n_tokens;
        p.sampling.temperature = 0;
        p.sampling.ignore_eos = true;
        run_submit(&r, &p);
        run_finish(&r);
        const run_sample *s = &r.samples[0][0];
        assert_int_equal(s->n_tokens, n_greedy);
        for (uint32_t t = 0; t < n_greedy; t++)
            if (s->tokens[t] != greedy[t]) fail_msg("%s ranks: token %u", sizes[i], t);
        run_close(&r);
    }
    golden_close(g);
}

/* ---- policies, selectors and samples ---- */

static const char config_text[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": 96, \"intermediate_size\": 128,"
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 16, \"num_key_value_heads\": 8,"
    " \"head_dim\": 16, \"vocab_size\": 2048, \"tie_word_embeddings\": true,"
    " \"max_position_embeddings\": 4096, \"eos_token_id\": 2045, \"initializer_range\": 0.2}";

static const char *options[] = {"model", folder, "tokenizer", "examples/tiny-reasoner",
                                "load-format", "dummy", "block-size", "64", "kv-policies",
                                "full,window,zip", "kv-selectors", "ds,quest,tls,spade,random",
                                "kv-budget", "128", "kv-window", "16", "select-tokens", "128",
                                "max-num-seqs", "16", "kv-cache-memory-bytes", "64M", NULL};

/* Full KV, a policy or a selector, by the number of the request; the last one has two samples. */
static cn_request_params params_of(const run *r, uint32_t i, cn_message *m)
{
    static const cn_kv_select selects[N_REQUESTS] = {[3] = CN_SELECT_DS, [4] = CN_SELECT_QUEST,
                                                     [5] = CN_SELECT_SPADE, [6] = CN_SELECT_RANDOM};
    cn_request_params p = run_params(r, prompts[i], m, MAX_TOKENS);
    if (i == 1 || i == 2) p.kv.policy = i == 1 ? CN_KV_ZIP : CN_KV_WINDOW;
    p.kv.select = selects[i];
    p.kv.select_tokens = 64;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = 0;
    p.sampling.logprobs = 2;
    if (i == N_REQUESTS - 1) {
        p.sampling.n = 2;
        p.sampling.temperature = 1;
        p.sampling.has_seed = true;
        p.sampling.seed = 7;
    }
    return p;
}

static run *run_all(const char *n_ranks, const char *const *extra)
{
    const char *more[32] = {"tensor-parallel-size", n_ranks};
    for (size_t i = 0; extra && extra[i]; i++) more[i + 2] = extra[i];
    run *r = run_new(options, more);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        cn_message m;
        const cn_request_params p = params_of(r, i, &m);
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

static run *references[4]; /* by the place in sizes */

static int setup(void **state)
{
    (void)state;
    make_model_folder(folder, config_text);
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_REQUESTS), N_REQUESTS);
    for (size_t i = 0; i < 4; i++) references[i] = run_all(sizes[i], NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) run_free(references[i]);
    remove_folder(folder);
    return 0;
}

/* The lead of the best token over the next one, by token of an answer. */
typedef struct leads {
    float at[MAX_TOKENS];
    uint32_t n;
} leads;

static void keep_leads(void *user, const cn_event *ev)
{
    leads *l = user;
    for (uint32_t i = 0; ev->logprobs && i < ev->n_tokens && l->n < MAX_TOKENS; i++)
        l->at[l->n++] = ev->logprobs[i].top[0].logprob - ev->logprobs[i].top[1].logprob;
}

static void leads_of(uint32_t request, leads *l)
{
    run *r = run_new(options, NULL);
    cn_message m;
    uint64_t id;
    bool idle = false;
    const cn_request_params p = params_of(r, request, &m);
    l->n = 0;
    assert_int_equal(cn_engine_submit(r->engine, &p, keep_leads, l, &id), CN_OK);
    while (!idle) assert_int_equal(cn_engine_step(r->engine, &idle), CN_OK);
    run_free(r);
}

/* Other orders of sums may turn a near tie, and nothing else: of two tokens in the text, or of two
 * scores that choose what is kept or read. */
static void ranks_give_the_tokens_of_one(void **state)
{
    (void)state;
    enum { MOST_TIES = 1 };
    uint32_t n_ties = 0;
    for (size_t i = 1; i < 4; i++)
        for (uint32_t k = 0; k + 1 < N_REQUESTS; k++) {
            const run_sample *a = &references[0]->samples[k][0];
            const run_sample *b = &references[i]->samples[k][0];
            uint32_t t = 0;
            assert_int_equal(a->n_tokens, MAX_TOKENS);
            assert_int_equal(b->n_tokens, MAX_TOKENS);
            while (t < MAX_TOKENS && a->tokens[t] == b->tokens[t]) t++;
            if (t == MAX_TOKENS) continue;
            leads l;
            leads_of(k, &l);
            print_message("%s ranks, request %u: token %u, lead %g\n", sizes[i], k, t,
                          (double)l.at[t]);
            if (l.at[t] > 2e-3f) fail_msg("%s ranks, request %u: token %u", sizes[i], k, t);
            n_ties++;
        }
    assert_in_range(n_ties, 0, MOST_TIES);
}

static void policies_and_selectors_take_effect(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (uint32_t k = 0; k < N_REQUESTS; k++) {
            const cn_usage *u = &references[i]->samples[k][0].usage;
            const cn_usage *one = &references[0]->samples[k][0].usage;
            assert_true((u->kv.compressions > 0) == (k == 1 || k == 2));
            assert_true((u->kv.selected_steps > 0) == (k >= 3 && k <= 6));
            assert_int_equal(u->kv.evicted, one->kv.evicted);
            assert_int_equal(u->kv.freed_bytes, one->kv.freed_bytes); /* of all ranks */
        }
        run_assert_accounts(references[i]);
    }
}

static void assert_same_with(const char *const *extra)
{
    for (size_t i = 1; i < 4; i++) {
        run *r = run_all(sizes[i], extra);
        for (uint32_t k = 0; k < N_REQUESTS; k++)
            run_assert_same_bits(references[i], k, r, k, 0);
        run_assert_same_bits(references[i], N_REQUESTS - 1, r, N_REQUESTS - 1, 1);
        run_free(r);
    }
}

static void chunks_and_scheduling_change_no_bit(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-batched-tokens", "64", "max-num-seqs", "5", NULL});
    assert_same_with((const char *[]){"async-scheduling", "off", "sync-compression", "true", NULL});
}

static void preemption_changes_no_bit(void **state)
{
    (void)state;
    const char *const extra[] = {"num-gpu-blocks-override", "7", "max-model-len", "448",
                                 "enable-prefix-caching", "false", "sync-compression", "true",
                                 "async-scheduling", "off", NULL};
    for (size_t i = 1; i < 4; i++) {
        run *r = run_all(sizes[i], extra);
        for (uint32_t k = 0; k < N_REQUESTS; k++) run_assert_same_bits(references[i], k, r, k, 0);
        assert_true(r->stats.preemptions > 0);
        run_free(r);
    }
}

static void a_prefix_hit_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 1; i < 4; i++) {
        run *r = run_new(options, (const char *[]){"tensor-parallel-size", sizes[i], NULL});
        for (uint32_t k = 0; k < 2; k++) {
            cn_message m;
            const cn_request_params p = params_of(r, 0, &m);
            run_submit(r, &p);
            run_finish(r);
        }
        assert_true(r->samples[1][0].usage.cached_tokens >= 64);
        run_assert_same_bits(references[i], 0, r, 0, 0);
        run_assert_same_bits(references[i], 0, r, 1, 0);
        run_free(r);
    }
}

/* ---- swap ---- */

/* Runs three compressed requests, and between them one that needs their blocks if there is no
 * memory for all. */
static run *run_swapped(const char *n_ranks, bool is_small)
{
    static const char *const small[] = {"num-gpu-blocks-override", "17", "max-num-seqs", "3",
                                        "max-model-len", "272", "swap-space", "0.1", NULL};
    const char *more[32] = {"tensor-parallel-size", n_ranks, "block-size", "16",
                            "kv-selectors", "none", "kv-budget", "64", "enable-prefix-caching",
                            "false"};
    for (size_t i = 0; is_small && small[i]; i++) more[i + 10] = small[i];
    run *r = run_new(options, more);
    for (uint32_t i = 0; i < 4; i++) {
        cn_message m;
        cn_request_params p = run_params(r, i < 3 ? "tell me a story" : "and you", &m,
                                         i < 3 ? 120 : 20);
        p.kv.policy = i < 3 ? CN_KV_ZIP : CN_KV_FULL;
        p.klass = i < 3 ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 0;
        p.sampling.temperature = 1;
        p.sampling.has_seed = true;
        p.sampling.seed = i;
        for (uint32_t k = 0; i == 3 && k < 200 && r->stats.compressions < 5; k++) run_steps(r, 1);
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

static void a_swapped_request_continues_unchanged(void **state)
{
    (void)state;
    for (size_t i = 1; i < 4; i++) {
        run *all = run_swapped(sizes[i], false), *r = run_swapped(sizes[i], true);
        assert_true(r->stats.swap_outs > 0 && all->stats.swap_outs == 0);
        assert_int_equal(r->stats.swap_ins, r->stats.swap_outs);
        for (uint32_t k = 0; k < 4; k++) run_assert_same_bits(all, k, r, k, 0);
        run_free(all);
        run_free(r);
    }
}

/* ---- channels of labels ---- */

/* The channels of select.safetensors differ between kv heads: each rank has those of its own. */
static void labels_have_the_channels_of_their_heads(void **state)
{
    (void)state;
    const char *const more[] = {"kv-selectors", "ds", NULL};
    run *one = run_new(more, NULL);
    run *two = run_new(more, (const char *[]){"tensor-parallel-size", "2", NULL});
    const cn_digest *whole = &one->engine->pools.digest;
    const uint32_t n_layers = one->engine->model_config.n_layers, n = whole->n_channels;
    bool differ = false;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t head = 0; head < 2; head++) {
            const cn_digest *d = head ? &two->engine->ranks.at[0].pools.digest
                                      : &two->engine->pools.digest;
            const uint8_t *want = whole->channels + (2 * layer + head) * n;
            assert_memory_equal(d->channels + layer * n, want, n);
            assert_memory_equal(d->offsets + layer * n, whole->offsets + (2 * layer + head) * n,
                                n * sizeof(float));
            differ |= head && memcmp(want - n, want, n) != 0;
        }
    assert_true(differ);
    run_free(one);
    run_free(two);
}

/* ---- scores of prompts ---- */

typedef struct scores {
    float at[1024];
    uint32_t n;
} scores;

static void keep_scores(void *user, const cn_event *ev)
{
    scores *s = user;
    if (!ev->prompt_logprobs) return;
    s->n = cn_min_u32(ev->n_prompt, 1024);
    for (uint32_t i = 1; i < s->n; i++) s->at[i] = ev->prompt_logprobs[i].chosen.logprob;
}

static void prompts_are_scored_on_ranks(void **state)
{
    (void)state;
    static scores got[2];
    for (size_t i = 0; i < 2; i++) {
        run *r = run_new(options, (const char *[]){"tensor-parallel-size", sizes[2 * i],
                                                   "max-num-batched-tokens", "64", NULL});
        cn_message m;
        uint64_t id;
        bool idle = false;
        cn_request_params p = run_params(r, prompts[0], &m, 4);
        p.score_prompt = true;
        assert_int_equal(cn_engine_submit(r->engine, &p, keep_scores, &got[i], &id), CN_OK);
        while (!idle) assert_int_equal(cn_engine_step(r->engine, &idle), CN_OK);
        run_free(r);
    }
    assert_true(got[0].n > 100 && got[0].n == got[1].n);
    for (uint32_t i = 1; i < got[0].n; i++)
        if (fabsf(got[0].at[i] - got[1].at[i]) > 1e-3f) fail_msg("token %u", i);
}

/* ---- a rank that stops ---- */

static void a_stopped_rank_ends_the_engine(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank += 3) {
        char text[128];
        cn_status status = CN_OK;
        bool idle = false;
        run *r = run_new(options, (const char *[]){"tensor-parallel-size", "4",
                                                   "collective-timeout", "1", NULL});
        cn_message m;
        const cn_request_params p = params_of(r, 0, &m);
        run_submit(r, &p);
        run_steps(r, 5);
        assert_int_equal(r->engine->backend->stream_sync(r->engine->stream), CN_OK);
        const double began_s = cn_now_s();
        cn_cpu_barrier_hold(r->engine->ranks.model.barrier, rank, 4); /* of 6 sums and 2 meetings */
        while (status == CN_OK && !idle) status = cn_engine_step(r->engine, &idle);
        const double took_s = cn_now_s() - began_s;
        assert_int_equal(status, CN_ERR_DEVICE);
        snprintf(text, sizeof text, "rank %u did not reach the sum after the MLP of layer 1 "
                                    "within 1 s", rank);
        if (!strstr(cn_last_error(), text)) fail_msg("%s", cn_last_error());
        assert_true(took_s >= 0.9 && took_s < 3);
        run_free(r);
    }
}

/* ---- refusals ---- */

static void what_ranks_do_not_support_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *text;
    } cases[] = {
        {"tensor-parallel-size", "3", "--tensor-parallel-size 3: expected 1, 2, 4 or 8"},
        {"tensor-parallel-size", "4", "num_key_value_heads of config.json is 2"},
        {"kv-home", "host", "homes peer and host are not supported"},
        {"kv-selectors", "spec", "selector spec is not supported"},
        {"dump", "q:0:0", "dumps are not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_assert_start_refused(
            (const char *[]){"tensor-parallel-size", "2", cases[i].name, cases[i].value, NULL},
            cases[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_that_of_transformers),
        cmocka_unit_test(ranks_give_the_tokens_of_one),
        cmocka_unit_test(policies_and_selectors_take_effect),
        cmocka_unit_test(chunks_and_scheduling_change_no_bit),
        cmocka_unit_test(preemption_changes_no_bit),
        cmocka_unit_test(a_prefix_hit_changes_no_bit),
        cmocka_unit_test(a_swapped_request_continues_unchanged),
        cmocka_unit_test(labels_have_the_channels_of_their_heads),
        cmocka_unit_test(prompts_are_scored_on_ranks),
        cmocka_unit_test(a_stopped_rank_ends_the_engine),
        cmocka_unit_test(what_ranks_do_not_support_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
