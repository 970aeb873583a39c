/* test_model.c - the forward pass on the CPU: logits and greedy text equal those of transformers. A
 * row has the same bits in any batch, in any chunks of the prompt, and with a prefix that another
 * sequence computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/start/device_choice.h"
#include "tests/lib/golden.h"
#include "tests/lib/linked_products.h"
#include "tests/lib/model_rig.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/sanitizer.h"

static const double LOGITS_TOLERANCE = 1e-4;
static const char REASONER[] = "examples/tiny-reasoner";

static model_rig *open_golden(const char *name, uint32_t max_tokens, uint32_t max_seqs,
                              uint32_t block_tokens, bool links_norm)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    return model_rig_open(&(model_rig_opts){.dir = dir,
                                            .n_threads = 2,
                                            .max_tokens = max_tokens,
                                            .max_seqs = max_seqs,
                                            .max_kv_tokens = 512,
                                            .block_tokens = block_tokens,
                                            .links_norm = links_norm});
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- golden figures ---- */

static void check_golden_model(const char *name, bool links_norm)
{
    golden *g = golden_open(name);
    size_t n = 0, n_greedy = 0, rows = 0, cols = 0;
    const uint32_t *tokens = golden_u32(g, "tokens", &n);
    const uint32_t *greedy = golden_u32(g, "greedy", &n_greedy);
    const float *want = golden_f32(g, "logits", &rows, &cols);
    model_rig *r = open_golden(name, (uint32_t)n, 1, 16, links_norm);
    assert_int_equal(rows, n);
    assert_int_equal(cols, r->cfg.vocab);

    model_rig_chunk chunk = {0, (uint32_t)n, tokens};
    const float *logits = model_rig_pass(r, &chunk, 1, 0, true);
    double diff = golden_max_diff(logits, want, rows * cols);
    if (diff > LOGITS_TOLERANCE) fail_msg("%s: logits differ by %g", name, diff);

    uint32_t next = argmax(logits + (n - 1) * cols, r->cfg.vocab);
    for (size_t i = 0; i < n_greedy; i++) {
        if (next != greedy[i])
            fail_msg("%s: greedy token %zu: got %u, expected %u", name, i, next, greedy[i]);
        chunk = (model_rig_chunk){0, 1, &greedy[i]};
        next = argmax(model_rig_pass(r, &chunk, 1, 1, true), r->cfg.vocab);
    }
    model_rig_close(r);
    golden_close(g);
}

static void every_architecture_equals_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; golden_models[i]; i++) check_golden_model(golden_models[i], false);
}

/* The norms of all layers but the first norm and the last one are computed by products. */
static void norms_in_products_equal_transformers(void **state)
{
    (void)state;
    uint32_t n_models = 0;
    for (size_t i = 0; golden_models[i]; i++) {
        check_golden_model(golden_models[i], true);
        n_models += linked_products_count() > 0;
    }
    assert_true(n_models >= 4); /* the others have fewer than CN_NORM_COLUMNS columns */
}

enum { N_PROMPTS = 4 };

/* The number of tokens per text that are decoded one by one. One pass checks each whole text. */
enum { N_DECODED = BY_SANITIZER(210, 20, 20) };

typedef struct trace {
    const uint32_t *prompt, *greedy, *positions;
    const float *logits;
    size_t n_prompt, n_greedy, n_positions;
} trace;

static trace read_trace(golden *g, uint32_t i)
{
    trace t;
    char name[32];
    size_t rows = 0, cols = 0;
    snprintf(name, sizeof name, "%u.prompt", i);
    t.prompt = golden_u32(g, name, &t.n_prompt);
    snprintf(name, sizeof name, "%u.greedy", i);
    t.greedy = golden_u32(g, name, &t.n_greedy);
    snprintf(name, sizeof name, "%u.positions", i);
    t.positions = golden_u32(g, name, &t.n_positions);
    snprintf(name, sizeof name, "%u.logits", i);
    t.logits = golden_f32(g, name, &rows, &cols);
    assert_int_equal(rows, t.n_positions);
    return t;
}

/* Compares the logits that the token at `position` produced. */
static void check_trace_logits(const trace *t, uint32_t position, const float *logits,
                               uint32_t vocab)
{
    for (size_t i = 0; i < t->n_positions; i++) {
        if (t->positions[i] != position) continue;
        double diff = golden_max_diff(logits, t->logits + i * vocab, vocab);
        if (diff > LOGITS_TOLERANCE) fail_msg("position %u: logits differ by %g", position, diff);
    }
}

/* Runs prompt and answer in one pass. Each position of the answer must predict the next token. */
static void check_whole_text(model_rig *r, const trace *t)
{
    uint32_t n = (uint32_t)(t->n_prompt + t->n_greedy), vocab = r->cfg.vocab;
    uint32_t *text = cn_calloc(n, sizeof *text);
    memcpy(text, t->prompt, t->n_prompt * sizeof *text);
    memcpy(text + t->n_prompt, t->greedy, t->n_greedy * sizeof *text);
    model_rig_chunk chunk = {0, n, text};
    const float *logits = model_rig_pass(r, &chunk, 1, 0, true);
    for (uint32_t p = 0; p < n; p++) {
        const float *row = logits + (size_t)p * vocab;
        check_trace_logits(t, p, row, vocab);
        if (p + 1 >= t->n_prompt && p + 1 < n) assert_int_equal(argmax(row, vocab), text[p + 1]);
    }
    model_rig_reset(r, 0);
    cn_free(text);
}

/* Prefills the prompts together, then decodes in one batch. */
static void check_decoding(model_rig *r, const trace *t)
{
    model_rig_chunk chunks[N_PROMPTS];
    uint32_t next[N_PROMPTS], vocab = r->cfg.vocab;
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        chunks[i] = (model_rig_chunk){i, (uint32_t)t[i].n_prompt, t[i].prompt};
    const float *logits = model_rig_pass(r, chunks, N_PROMPTS, 0, false);
    for (uint32_t step = 0; step < N_DECODED; step++) {
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            const float *row = logits + (size_t)i * vocab;
            check_trace_logits(&t[i], (uint32_t)t[i].n_prompt + step - 1, row, vocab);
            next[i] = argmax(row, vocab);
            assert_int_equal(next[i], t[i].greedy[step]);
            chunks[i] = (model_rig_chunk){i, 1, &next[i]};
        }
        logits = model_rig_pass(r, chunks, N_PROMPTS, N_PROMPTS, false);
    }
}

static void the_bundled_model_gives_the_text_of_transformers(void **state)
{
    (void)state;
    enum { MAX_TEXT = 1536 };
    golden *g = golden_open("tiny-reasoner");
    model_rig *r = model_rig_open(&(model_rig_opts){.dir = REASONER,
                                                    .n_threads = 1,
                                                    .max_tokens = MAX_TEXT,
                                                    .max_seqs = N_PROMPTS,
                                                    .max_kv_tokens = MAX_TEXT,
                                                    .block_tokens = 64});
    trace t[N_PROMPTS];
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        t[i] = read_trace(g, i);
        assert_true(t[i].n_greedy >= N_DECODED);
        check_whole_text(r, &t[i]);
    }
    check_decoding(r, t);
    model_rig_close(r);
    golden_close(g);
}

/* ---- same bits ---- */

enum { N_SEQS = 64, MAX_LEN = 90 };

typedef struct crowd {
    uint32_t tokens[N_SEQS][MAX_LEN], len[N_SEQS];
    float *alone; /* [N_SEQS, V] logits of each last token, computed alone in one pass */
} crowd;

static crowd *draw_crowd(model_rig *r, test_rng *rng)
{
    crowd *c = cn_calloc(1, sizeof *c);
    uint32_t vocab = r->cfg.vocab;
    c->alone = cn_calloc((size_t)N_SEQS * vocab, sizeof *c->alone);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        c->len[s] = 2 + test_rng_below(rng, s % 8 ? 20 : MAX_LEN - 1);
        for (uint32_t i = 0; i < c->len[s]; i++) c->tokens[s][i] = test_rng_below(rng, vocab);
        model_rig_chunk chunk = {s, c->len[s], c->tokens[s]};
        const float *logits = model_rig_pass(r, &chunk, 1, 0, false);
        memcpy(c->alone + (size_t)s * vocab, logits, vocab * sizeof *logits);
        model_rig_reset(r, s);
    }
    return c;
}

static void free_crowd(crowd *c)
{
    cn_free(c->alone);
    cn_free(c);
}

/* Runs all sequences at once. The first n_decode run as decodes after a pass with their earlier
 * tokens. The others run as prefills that continue a first chunk of that pass. */
static void check_crowd(model_rig *r, const crowd *c, uint32_t n_decode, test_rng *rng)
{
    model_rig_chunk first[N_SEQS], rest[N_SEQS];
    uint32_t vocab = r->cfg.vocab;
    for (uint32_t s = 0; s < N_SEQS; s++) {
        uint32_t cut = s < n_decode ? c->len[s] - 1 : 1 + test_rng_below(rng, c->len[s] - 1);
        first[s] = (model_rig_chunk){s, cut, c->tokens[s]};
        rest[s] = (model_rig_chunk){s, c->len[s] - cut, c->tokens[s] + cut};
        model_rig_reset(r, s);
    }
    model_rig_pass(r, first, N_SEQS, 0, false);
    const float *logits = model_rig_pass(r, rest, N_SEQS, n_decode, false);
    assert_memory_equal(logits, c->alone, (size_t)N_SEQS * vocab * sizeof *logits);
}

static void a_batch_of_64_has_the_bits_of_64_batches_of_one(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3-d80-f32", "qwen2-tied-bf16", "llama-yarn-bias-f16",
                                         "glm4-moe-bf16", "deepseek-v3-moe-bf16"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        test_rng rng = {i};
        model_rig *r = open_golden(models[i], N_SEQS * MAX_LEN, N_SEQS, 16u << i % 3, false);
        crowd *c = draw_crowd(r, &rng);
        for (uint32_t n_decode = 0; n_decode <= N_SEQS; n_decode += 21)
            check_crowd(r, c, n_decode, &rng);
        check_crowd(r, c, N_SEQS, &rng);
        free_crowd(c);
        model_rig_close(r);
    }
}

static void the_bundled_model_is_batch_invariant(void **state)
{
    (void)state;
    test_rng rng = {77};
    model_rig *r = model_rig_open(&(model_rig_opts){.dir = REASONER,
                                                    .n_threads = 3,
                                                    .max_tokens = N_SEQS * MAX_LEN,
                                                    .max_seqs = N_SEQS,
                                                    .max_kv_tokens = 128,
                                                    .block_tokens = 64});
    crowd *c = draw_crowd(r, &rng);
    check_crowd(r, c, N_SEQS, &rng);
    check_crowd(r, c, 40, &rng);
    free_crowd(c);
    model_rig_close(r);
}

/* Runs one prompt in chunks of random sizes. The logits of every row must equal the whole
 * prompt's. */
static void check_chunks(const char *name)
{
    enum { LEN = 300 };
    test_rng rng = {5};
    model_rig *r = open_golden(name, LEN, 2, 32, false);
    uint32_t tokens[LEN], vocab = r->cfg.vocab;
    for (uint32_t i = 0; i < LEN; i++) tokens[i] = test_rng_below(&rng, vocab);
    model_rig_chunk chunk = {0, LEN, tokens};
    float *want = cn_calloc((size_t)LEN * vocab, sizeof *want);
    memcpy(want, model_rig_pass(r, &chunk, 1, 0, true), (size_t)LEN * vocab * sizeof *want);
    for (int round = 0; round < 4; round++) {
        model_rig_reset(r, 1);
        for (uint32_t at = 0; at < LEN; at += chunk.n) {
            uint32_t n = 1 + test_rng_below(&rng, round % 2 ? 9 : 130);
            chunk = (model_rig_chunk){1, cn_min_u32(n, LEN - at), tokens + at};
            bool decode = chunk.n == 1;
            const float *logits = model_rig_pass(r, &chunk, 1, decode, true);
            assert_memory_equal(logits, want + (size_t)at * vocab,
                                (size_t)chunk.n * vocab * sizeof *want);
        }
    }
    cn_free(want);
    model_rig_close(r);
}

static void a_prompt_in_chunks_has_the_bits_of_a_whole_one(void **state)
{
    (void)state;
    check_chunks("qwen3-bf16");
    check_chunks("glm4-lite-moe-bf16");
}

/* Rope tables that are extended while a model runs have the values of whole ones. */
static void positions_may_be_covered_later(void **state)
{
    (void)state;
    enum { LEN = 200, FIRST = 7 };
    test_rng rng = {6};
    model_rig *r = open_golden("qwen3-bf16", LEN, 1, 32, false);
    uint32_t tokens[LEN], vocab = r->cfg.vocab;
    for (uint32_t i = 0; i < LEN; i++) tokens[i] = test_rng_below(&rng, vocab);
    const model_rig_chunk first = {0, FIRST, tokens}, rest = {0, LEN - FIRST, tokens + FIRST};
    const size_t bytes = (size_t)(LEN - FIRST) * vocab * sizeof(float);
    float *want = cn_calloc(bytes, 1);
    model_rig_pass(r, &first, 1, 0, true);
    memcpy(want, model_rig_pass(r, &rest, 1, 0, true), bytes);
    model_rig_close(r);
    const model_rig_opts o = {.dir = "tests/golden/models/qwen3-bf16",
                              .n_threads = 2,
                              .max_tokens = LEN,
                              .max_seqs = 1,
                              .max_kv_tokens = 512,
                              .block_tokens = 32,
                              .eager_positions = FIRST};
    r = model_rig_open(&o);
    model_rig_pass(r, &first, 1, 0, true);
    assert_memory_equal(model_rig_pass(r, &rest, 1, 0, true), want, bytes);
    model_rig_close(r);
    cn_free(want);
}

static void check_prefix(const char *name)
{
    enum { LEN = 120, BLOCK = 16 };
    test_rng rng = {8};
    model_rig *r = open_golden(name, LEN, 3, BLOCK, false);
    uint32_t tokens[LEN], vocab = r->cfg.vocab;
    for (uint32_t i = 0; i < LEN; i++) tokens[i] = test_rng_below(&rng, vocab);
    model_rig_chunk chunk = {0, LEN, tokens};
    float *want = cn_calloc(vocab, sizeof *want);
    memcpy(want, model_rig_pass(r, &chunk, 1, 0, false), vocab * sizeof *want);
    for (uint32_t n_shared = BLOCK; n_shared < LEN; n_shared += BLOCK) {
        model_rig_share(r, 1, 0, n_shared);
        chunk = (model_rig_chunk){1, LEN - n_shared, tokens + n_shared};
        assert_memory_equal(model_rig_pass(r, &chunk, 1, 0, false), want, vocab * sizeof *want);
    }
    cn_free(want);
    model_rig_close(r);
}

static void a_shared_prefix_gives_the_bits_of_a_computed_one(void **state)
{
    (void)state;
    check_prefix("llama-llama3-bf16");
    check_prefix("deepseek-v2-moe-bf16");
}

/* ---- start and step ---- */

static void check_allocations(const char *name)
{
    model_rig *r = open_golden(name, 64, 2, 16, false);
    uint32_t tokens[20] = {1, 2, 3};
    model_rig_chunk chunks[] = {{0, 20, tokens}, {1, 7, tokens}};
    uint64_t before = cn_alloc_count();
    model_rig_pass(r, chunks, 2, 0, false);
    chunks[0].n = chunks[1].n = 1;
    model_rig_pass(r, chunks, 2, 2, false);
    assert_int_equal(cn_alloc_count(), before);
    model_rig_close(r);
}

static void a_pass_allocates_nothing(void **state)
{
    (void)state;
    check_allocations("qwen3-bf16");
    check_allocations("glm4-moe-bf16");
    check_allocations("deepseek-v3-moe-bf16");
}

static void a_missing_op_is_refused_by_name(void **state)
{
    (void)state;
    model_rig *r = open_golden("qwen3-bf16", 8, 1, 16, false);
    cn_backend lacking = *r->be;
    lacking.attn_prefill = NULL;
    cn_model *m = NULL;
    const cn_model_opts o = {.backend = &lacking, .config = &r->cfg};
    assert_int_equal(cn_model_create(&m, &o), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "attn_prefill"));
    assert_null(m);
    lacking = *r->be;
    lacking.compress = NULL;
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_FULL, 0, 0), CN_OK);
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_ZIP, 0, 0), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "compress"));
    lacking = *r->be;
    lacking.copy_blocks = NULL;
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_FULL, 0, 0), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "copy_blocks"));
    lacking = *r->be;
    lacking.keeps &= ~(1U << CN_KEEP_BEST);
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_WINDOW, 0, 0), CN_OK);
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_ZIP, 0, 0), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "policy zip"));
    lacking = *r->be;
    lacking.scores &= ~(1U << CN_SCORE_FLASH);
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_WINDOW, 0, 0), CN_OK);
    assert_int_equal(cn_backend_check_ops(&lacking, 1U << CN_KV_ZIP, 0, 0), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "does not compute the score flash of kv policy zip"));
    lacking = *r->be;
    lacking.predict = NULL;
    assert_int_equal(cn_backend_check_ops(&lacking, 0, 1U << CN_SELECT_DS, 0), CN_OK);
    assert_int_equal(cn_backend_check_ops(&lacking, 0, 1U << CN_SELECT_LAST, 0), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "predict"));
    lacking = *r->be;
    lacking.fetch = NULL;
    assert_int_equal(cn_backend_check_ops(&lacking, 0, 0, 1U << CN_HOME_DEVICE), CN_OK);
    assert_int_equal(cn_backend_check_ops(&lacking, 0, 0, 1U << CN_HOME_HOST), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "fetch"));
    lacking.exchange = NULL;
    assert_int_equal(cn_backend_check_ops(&lacking, 0, 0, 1U << CN_HOME_PEER), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "exchange"));
    lacking = *r->be;
    lacking.expert_down = NULL;
    assert_int_equal(cn_backend_check_model(&lacking, &r->cfg), CN_OK);
    model_rig_close(r);
}

/* A model with experts on a backend that has no ops for them. */
static void experts_without_their_ops_are_refused_by_name(void **state)
{
    (void)state;
    model_rig *r = open_golden("qwen3-moe-bf16", 8, 1, 16, false);
    cn_backend lacking = *r->be;
    lacking.expert_down = NULL;
    cn_model *m = NULL;
    const cn_model_opts o = {.backend = &lacking, .config = &r->cfg};
    assert_int_equal(cn_model_create(&m, &o), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "Qwen3MoeForCausalLM has layers with experts, and the "
                                            "cpu backend lacks the op expert_down"));
    assert_null(m);
    model_rig_close(r);
}

static void latent_attention_without_its_ops_is_refused_by_name(void **state)
{
    (void)state;
    model_rig *r = open_golden("glm4-lite-moe-bf16", 8, 1, 16, false);
    cn_backend lacking = *r->be;
    lacking.heads_gemm = NULL;
    cn_model *m = NULL;
    const cn_model_opts o = {.backend = &lacking, .config = &r->cfg};
    assert_int_equal(cn_model_create(&m, &o), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "Glm4MoeLiteForCausalLM has latent attention, and the "
                                            "cpu backend lacks the op heads_gemm"));
    assert_null(m);
    model_rig_close(r);
}

/* The model writes up to the end of the planned bytes and not beyond. */
static void check_workspace(const char *name)
{
    enum { GUARD = 256, TOKENS = 100, ROWS = 7, POSITIONS = 64 };
    model_rig *r = open_golden(name, 8, 1, 16, false);
    const size_t bytes = cn_model_workspace_bytes(&r->cfg, r->be, TOKENS, ROWS, POSITIONS);
    unsigned char *memory = cn_calloc_aligned(bytes + GUARD, 1);
    memset(memory + bytes, 0xa5, GUARD);
    const cn_model_opts o = {.backend = r->be,
                             .stream = r->stream,
                             .config = &r->cfg,
                             .weights = r->weights,
                             .memory = memory,
                             .max_tokens = TOKENS,
                             .max_rows = ROWS,
                             .max_position = POSITIONS};
    cn_model *m = NULL;
    assert_int_equal(cn_model_create(&m, &o), CN_OK);
    assert_int_equal(cn_model_products(m, r->stream, TOKENS, ROWS), CN_OK);
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(memory[bytes + i], 0xa5);
    size_t last = bytes;
    while (last > 0 && memory[last - 1] == 0) last--;
    assert_in_range(last, bytes - GUARD, bytes); /* the rope tables are at the end */
    cn_model_free(m);
    cn_free(memory);
    model_rig_close(r);
}

static void the_workspace_has_the_planned_size(void **state)
{
    (void)state;
    check_workspace("llama-f32");
    check_workspace("qwen3-moe-bf16");
    check_workspace("glm4-moe-plain-f32"); /* no layer without experts */
    check_workspace("deepseek-v2-moe-bf16");
    check_workspace("deepseek-v3-moe-bf16"); /* two factors of the query matrix */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_equals_transformers),
        cmocka_unit_test(norms_in_products_equal_transformers),
        cmocka_unit_test(the_bundled_model_gives_the_text_of_transformers),
        cmocka_unit_test(a_batch_of_64_has_the_bits_of_64_batches_of_one),
        cmocka_unit_test(the_bundled_model_is_batch_invariant),
        cmocka_unit_test(a_prompt_in_chunks_has_the_bits_of_a_whole_one),
        cmocka_unit_test(positions_may_be_covered_later),
        cmocka_unit_test(a_shared_prefix_gives_the_bits_of_a_computed_one),
        cmocka_unit_test(a_pass_allocates_nothing),
        cmocka_unit_test(a_missing_op_is_refused_by_name),
        cmocka_unit_test(experts_without_their_ops_are_refused_by_name),
        cmocka_unit_test(latent_attention_without_its_ops_is_refused_by_name),
        cmocka_unit_test(the_workspace_has_the_planned_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
