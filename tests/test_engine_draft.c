/* test_engine_draft.c - selector `spec` with a retrieval head that reads states of the model, in
 * the engine: batches, chunks, preemption, prefix hits, forks and asynchronous scheduling give the
 * same bits. On the CPU, or, as `test_engine_draft cuda`, with --batch-invariant on a GPU: there
 * also with and without graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_state.h"
#include "tests/lib/draft_head.h"
#include "tests/lib/run_engine.h"

enum { N_PROMPTS = 4, MAX_TOKENS = 100 };

static const char *prompts[N_PROMPTS];
static scratch_dir folder;
static bool on_gpu;
static uint32_t max_tokens = MAX_TOKENS;

/* Short lists and tails, so that the first decoded tokens rank, and soon are ranked. */
static const char *const options[] = {
    "model", folder.path, "block-size", "64", "kv-select", "spec", "select-tokens", "16",
    "recent-tokens", "8", "select-dense-layers", "1", "enable-prefix-caching", "false", NULL};
/* A given size, so that two engines have room. */
static const char *const gpu_options[] = {
    "device", "cuda", "kv-cache-memory-bytes", "1G", "batch-invariant", "true", NULL};
static const char *const cpu_options[] = {"device", "cpu", NULL};

static uint32_t submit(run *r, uint32_t i, uint32_t n)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, max_tokens);
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 0;
    p.sampling.n = n;
    if (n > 1) {
        p.sampling.temperature = 1;
        p.sampling.has_seed = true;
        p.sampling.seed = 7;
    }
    return run_submit(r, &p);
}

/* Opens an engine with `options`, those of the device, and `extra`. */
static run *open_run(const char *const *extra)
{
    const char *all[64];
    size_t n = 0;
    for (const char *const *o = on_gpu ? gpu_options : cpu_options; *o; o++) all[n++] = *o;
    for (const char *const *o = extra; o && *o; o++) all[n++] = *o;
    assert_true(n < sizeof all / sizeof *all);
    all[n] = NULL;
    return run_new(options, all);
}

static run *run_all(const char *const *extra, uint32_t n)
{
    run *r = open_run(extra);
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, n);
    run_finish(r);
    return r;
}

static run *reference;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_PROMPTS), N_PROMPTS);
    draft_head_open(&folder);
    reference = run_all(NULL, 1);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_true(reference->samples[i][0].usage.kv.selected_steps > 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    scratch_dir_close(&folder);
    return 0;
}

/* Equal bits of the log-probabilities show that the lists, and so the draft K, were the same. */
static void assert_same(const run *got, uint32_t first)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same_bits(reference, i, got, first + i, 0);
}

static void assert_same_with(const char *const *extra)
{
    run *got = run_all(extra, 1);
    assert_same(got, 0);
    run_free(got);
}

static void batches_give_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-seqs", "1", NULL});
    assert_same_with((const char *[]){"async-scheduling", "on", NULL});
    if (on_gpu) assert_same_with((const char *[]){"enforce-eager", "true", NULL});
}

/* Chunks end inside blocks and at their borders. */
static void chunks_of_a_prompt_give_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-batched-tokens", "48", "max-num-seqs", "16", NULL});
    assert_same_with((const char *[]){"max-num-batched-tokens", "64", "max-num-seqs", "1", NULL});
}

static void preemption_changes_nothing(void **state)
{
    (void)state;
    run *r = run_all((const char *[]){"num-gpu-blocks-override", "16", NULL}, 1);
    assert_true(r->stats.preemptions > 0 && r->stats.recomputed_tokens > 0);
    assert_same(r, 0);
    run_free(r);
}

/* The second turn begins behind cached blocks, whose last state it reads. */
static void a_prefix_hit_changes_nothing(void **state)
{
    (void)state;
    run *r = open_run((const char *[]){"enable-prefix-caching", "true", NULL});
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, 1);
        run_finish(r);
        assert_same(r, turn * N_PROMPTS);
    }
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_true(r->samples[N_PROMPTS + i][0].usage.cached_tokens > 0);
    run_free(r);
}

/* Samples copy the block in which the prompt ends, with its state. In a small pool that block was
 * another one's before. */
static void forks_give_the_same_tokens(void **state)
{
    (void)state;
    run *together = run_all(NULL, 3);
    run *apart = run_all(
        (const char *[]){"max-num-seqs", "1", "num-gpu-blocks-override", "16", NULL}, 3);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        for (uint32_t s = 0; s < 3; s++) run_assert_same_bits(together, i, apart, i, s);
    run_free(together);
    run_free(apart);
}

/* Runs all prompts with `home`, `extra` besides, and `turns` times. */
static run *run_away(const char *home, const char *const *extra, uint32_t turns)
{
    const char *all[32] = {"kv-homes", home, "kv-home", home, "home-space", "0.1"};
    size_t n = 6;
    if (strcmp(home, "peer") == 0) {
        all[n++] = "cache-device";
        all[n++] = "cpu";
    }
    for (const char *const *o = extra; o && *o; o++) all[n++] = *o;
    run *r = open_run(all);
    for (uint32_t t = 0; t < turns; t++) {
        for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, 1);
        run_finish(r);
    }
    for (uint32_t i = 0; i < turns * N_PROMPTS; i++)
        assert_true(r->samples[i][0].usage.kv.exchanges > 0);
    return r;
}

/* The states of the head go home with its keys. */
static void batches_with_a_home_give_the_same_tokens(void **state)
{
    (void)state;
    static const char *const extras[][5] = {{"max-num-seqs", "1"},
                                            {"async-scheduling", "on"},
                                            {"max-num-batched-tokens", "48", "max-num-seqs", "16"},
                                            {"num-gpu-blocks-override", "18"}};
    const char *const homes[] = {"host", "peer"};
    max_tokens = 2 * MAX_TOKENS; /* past the first event */
    for (int h = 0; h < (on_gpu ? 1 : 2); h++) {
        run *own = run_away(homes[h], NULL, 1);
        for (size_t e = 0; e < sizeof extras / sizeof *extras; e++) {
            run *r = run_away(homes[h], extras[e], 1);
            for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same_bits(own, i, r, i, 0);
            run_free(r);
        }
        run *hit = run_away(homes[h], (const char *[]){"enable-prefix-caching", "true", NULL}, 2);
        for (uint32_t i = 0; i < 2 * N_PROMPTS; i++)
            run_assert_same_bits(own, i % N_PROMPTS, hit, i, 0);
        assert_true(hit->samples[N_PROMPTS][0].usage.cached_tokens > 0);
        run_free(hit);
        run_free(own);
    }
    max_tokens = MAX_TOKENS;
}

/* Without its states the head chooses other tokens. */
static void the_head_reads_the_states(void **state)
{
    (void)state;
    draft_head_write(&folder, 0);
    run *r = run_all(NULL, 1);
    draft_head_write(&folder, 1);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_true(r->samples[i][0].logprob_hash != reference->samples[i][0].logprob_hash);
    run_free(r);
}

/* An EAGLE-3 file with the same tensors is the same head. */
static void an_eagle_3_file_gives_the_same_tokens(void **state)
{
    (void)state;
    draft_head_write(&folder, 0.5f); /* the two norms differ */
    run *own = run_all(NULL, 1);
    draft_head_write_eagle(&folder, 0.5f);
    run *eagle = run_all(NULL, 1);
    draft_head_write(&folder, 1);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same_bits(own, i, eagle, i, 0);
    run_free(own);
    run_free(eagle);
}

/* The bytes that bench and serve count for a step have the head's keys of almost all tokens. */
static void bytes_of_a_step_have_the_keys_of_the_head(void **state)
{
    (void)state;
    enum { RESIDENT = 4096 };
    cn_engine *e = reference->engine;
    const cn_kv_params *kv = &e->config->kv;
    const uint32_t dim = e->pools.layout.draft_dim;
    assert_int_equal(dim, DRAFT_HEAD_DIM);
    const double with = cn_engine_row_bytes(e, kv, RESIDENT);
    e->pools.layout.draft_dim = 0;
    const double without = cn_engine_row_bytes(e, kv, RESIDENT);
    e->pools.layout.draft_dim = dim;
    const double elem = on_gpu ? 2 : 4;
    const double rows = (with - without) / (DRAFT_HEAD_KV_HEADS * DRAFT_HEAD_DIM * elem);
    if (rows < 0.95 * RESIDENT || rows > RESIDENT) fail_msg("keys of %g tokens", rows);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_give_the_same_tokens),
        cmocka_unit_test(chunks_of_a_prompt_give_the_same_tokens),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(a_prefix_hit_changes_nothing),
        cmocka_unit_test(forks_give_the_same_tokens),
        cmocka_unit_test(batches_with_a_home_give_the_same_tokens),
        cmocka_unit_test(the_head_reads_the_states),
        cmocka_unit_test(an_eagle_3_file_gives_the_same_tokens),
        cmocka_unit_test(bytes_of_a_step_have_the_keys_of_the_head),
    };
    on_gpu = argc > 1 && strcmp(argv[1], "cuda") == 0;
    return cmocka_run_group_tests_name(on_gpu ? "cuda" : "cpu", tests, setup, teardown);
}
