/* test_engine_draft.c - selector `spec` with a retrieval head that reads states of the model, in
 * the engine: batches, chunks, preemption, prefix hits, forks and asynchronous scheduling give the
 * same bits. The head has random weights, so that its lists depend on every bit of the states. */
#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/checkpoint/file_sum.h"
#include "engine/engine_probe.h"
#include "engine/engine_state.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/tensor_file.h"

/* The bundled checkpoint: hidden size, kv heads; and the head's query heads and head_dim. */
enum { HIDDEN = 384, KV_HEADS = 2, HEADS = 4, DIM = 32, N_PROMPTS = 4, MAX_TOKENS = 100 };

static const char *const bundled = "examples/tiny-reasoner";
static const char *prompts[N_PROMPTS];
static scratch_dir folder;

/* Short lists and tails, so that the first decoded tokens rank, and soon are ranked. */
static const char *const options[] = {
    "model", folder.path, "block-size", "64", "kv-select", "spec", "select-tokens", "16",
    "recent-tokens", "8", "select-dense-layers", "1", "enable-prefix-caching", "false", NULL};

/* Links the files of the bundled checkpoint, but its head. */
static void link_model(void)
{
    char root[256], from[640], to[640];
    assert_non_null(getcwd(root, sizeof root));
    DIR *d = opendir(bundled);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "retrieval.safetensors") == 0) continue;
        snprintf(from, sizeof from, "%s/%s/%s", root, bundled, e->d_name);
        snprintf(to, sizeof to, "%s/%s", folder.path, e->d_name);
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
}

static void add_matrix(tensor_file *f, test_rng *r, const char *name, uint64_t rows, uint64_t cols,
                       float scale)
{
    const size_t n = (rows ? rows : 1) * cols;
    float *values = cn_calloc(n, sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = rows ? test_rng_uniform(r) * scale : scale;
    tensor_file_add(f, name, "F32", rows, cols, values, n * sizeof *values);
    cn_free(values);
}

/* Writes a head whose fused states are multiplied by `states`. */
static void write_head(float states)
{
    tensor_file f = {0};
    test_rng r = {5};
    char path[128];
    uint64_t sum;
    assert_int_equal(cn_file_sum_weights(&sum, folder.path), CN_OK);
    assert_int_equal(cn_buf_addf(&f.header,
                                 "\"__metadata__\":{\"hidden_layers\":\"[1, 3, 5]\",\"head_dim\":"
                                 "\"%d\",\"rope_theta\":\"10000.0\",\"context\":\"8192\",\"base\":"
                                 "\"%016" PRIx64 "\"}",
                                 DIM, sum),
                     CN_OK);
    add_matrix(&f, &r, "norm.weight", 0, HIDDEN, 1);
    add_matrix(&f, &r, "q_proj.weight", HEADS * DIM, 2 * HIDDEN, 0.2f);
    add_matrix(&f, &r, "k_proj.weight", KV_HEADS * DIM, 2 * HIDDEN, 0.2f);
    add_matrix(&f, &r, "fc.weight", HIDDEN, 3 * HIDDEN, 0.1f);
    add_matrix(&f, &r, "hidden_norm.weight", 0, HIDDEN, states);
    snprintf(path, sizeof path, "%s/retrieval.safetensors", folder.path);
    tensor_file_write(&f, path);
    tensor_file_free(&f);
}

static uint32_t submit(run *r, uint32_t i, uint32_t n)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
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

static run *run_all(const char *const *extra, uint32_t n)
{
    run *r = run_new(options, extra);
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, n);
    run_finish(r);
    return r;
}

static run *reference;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_PROMPTS), N_PROMPTS);
    scratch_dir_open(&folder);
    link_model();
    write_head(1);
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
    run *r = run_new(options, (const char *[]){"enable-prefix-caching", "true", NULL});
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

/* Without its states the head chooses other tokens. */
static void the_head_reads_the_states(void **state)
{
    (void)state;
    write_head(0);
    run *r = run_all(NULL, 1);
    write_head(1);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_true(r->samples[i][0].logprob_hash != reference->samples[i][0].logprob_hash);
    run_free(r);
}

/* The bytes that bench and serve count for a step have the head's keys of almost all tokens. */
static void bytes_of_a_step_have_the_keys_of_the_head(void **state)
{
    (void)state;
    enum { RESIDENT = 4096 };
    cn_engine *e = reference->engine;
    const cn_kv_params *kv = &e->config->kv;
    const uint32_t dim = e->pools.layout.draft_dim;
    assert_int_equal(dim, DIM);
    const double with = cn_engine_row_bytes(e, kv, RESIDENT);
    e->pools.layout.draft_dim = 0;
    const double without = cn_engine_row_bytes(e, kv, RESIDENT);
    e->pools.layout.draft_dim = dim;
    const double rows = (with - without) / (KV_HEADS * DIM * 4);
    if (rows < 0.95 * RESIDENT || rows > RESIDENT) fail_msg("keys of %g tokens", rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_give_the_same_tokens),
        cmocka_unit_test(chunks_of_a_prompt_give_the_same_tokens),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(a_prefix_hit_changes_nothing),
        cmocka_unit_test(forks_give_the_same_tokens),
        cmocka_unit_test(the_head_reads_the_states),
        cmocka_unit_test(bytes_of_a_step_have_the_keys_of_the_head),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
