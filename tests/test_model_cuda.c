/* test_model_cuda.c - the forward pass on a GPU: the logits of random checkpoints compared with
 * those of the CPU. The products compute the norms between them (cn_norm_link), which the CPU runs
 * as ops; the ops of each pass are counted. The sizes of the bundled checkpoints have no links, and
 * neither have models with experts. Without a GPU nothing is tested.
 *     test_model_cuda [TEST [DEVICE]]
 * DEVICE cpu takes the links of tests/lib/linked_products.h, to check the test itself. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/start/device_choice.h"
#include "tests/lib/bf16.h"
#include "tests/lib/linked_products.h"
#include "tests/lib/model_rig.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/tensor_file.h"

enum {
    N_LAYERS = 3,
    MOST_LINKED = 64, /* CN_GEMM_MAX_LINK of cuda/gemm/gemm.h */
    MOST_SEQS = MOST_LINKED + 1,
    MOST_PROMPT = 7,
    MOST_ROWS = MOST_SEQS * MOST_PROMPT,
    MOST_KV = 128
};

/* Largest distance of a row of logits from the CPU's, relative to its length. Activations are bf16
 * on the GPU and f32 on the CPU. */
static const double TOLERANCE = 3e-2;
/* A rounded bf16 can have another nearest e4m3 than the f32 of the CPU. */
static const double FP8_TOLERANCE = 0.3;

/* The eps is not small beside the squares of the residual, so that a norm without it differs. */
#define SIZES                                                              \
    "\"hidden_size\": 512, \"intermediate_size\": 640, \"head_dim\": 64, " \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 8, "               \
    "\"num_key_value_heads\": 2, \"vocab_size\": 320, "                    \
    "\"tie_word_embeddings\": false, \"rms_norm_eps\": 0.5"
#define CONFIG(arch, more) "{\"architectures\": [\"" arch "\"], " SIZES more "}"

static bool on_cpu, no_gpu;
static bool makes_blocks; /* FP8 weights, in the running test */
static double tolerance;
static uint32_t most_linked; /* rows of a pass with links of the running test */
static cn_backend *opened;

/* ---- a backend that counts the ops of a pass ---- */

static cn_backend inner, counting;
static struct {
    uint32_t norms, firsts, seconds; /* ops; first and second products of a link */
} ran;

static cn_status count_norm(cn_stream *s, const cn_rmsnorm_args *a)
{
    ran.norms++;
    return inner.rmsnorm(s, a);
}

static cn_status count_product(cn_stream *s, const cn_gemm_args *a)
{
    ran.firsts += a->adds != NULL;
    ran.seconds += a->norms != NULL;
    return inner.gemm(s, a);
}

static cn_status count_gated(cn_stream *s, const cn_gemm_silu_mul_args *a)
{
    ran.seconds += a->norms != NULL;
    return inner.gemm_silu_mul(s, a);
}

/* The norms of a pass are those of each layer's two halves and the final one. All but the first and
 * the final one are between products. */
static void check_ops(uint32_t n_tokens)
{
    const uint32_t n_norms = 2 * N_LAYERS + 1, n_links = n_tokens > most_linked ? 0 : n_norms - 2;
    if (ran.norms != n_norms - n_links || ran.firsts != n_links || ran.seconds != n_links)
        fail_msg("%u tokens: %u norms, %u first and %u second products: expected %u links",
                 n_tokens, ran.norms, ran.firsts, ran.seconds, n_links);
    memset(&ran, 0, sizeof ran);
}

static bool links_few_rows(cn_backend *be, uint32_t n_tokens, const cn_product_shape *first,
                           const cn_product_shape *second)
{
    (void)be;
    assert_int_equal(first->n, second->k);
    return n_tokens <= MOST_LINKED;
}

/* With CN_CUDA_GEMM_OWN and without timings (hidden = 0) the plan of a product depends only on its
 * shape. The fastest plan may be one of the library, which has no links. */
static cn_status open_backend(void)
{
    const cn_cuda_backend_opts o = {.memory_bytes = UINT64_C(1) << 30,
                                    .n_heads = 8,
                                    .n_kv_heads = 2,
                                    .head_dim = 64,
                                    .max_seqs = MOST_SEQS,
                                    .max_tokens = MOST_ROWS,
                                    .switches = &(cn_cuda_switches){.gemm = CN_CUDA_GEMM_OWN}};
    if (on_cpu) return cn_backend_cpu_open(&opened, &(cn_cpu_backend_opts){0});
    return cn_backend_cuda_load(&opened, o);
}

static bool links_any(cn_backend *be)
{
    const cn_product_shape square = {.n = 512, .k = 512};
    return be->links_norm(be, 1, &square, &square);
}

static int setup(void **state)
{
    (void)state;
    if (open_backend() != CN_OK) {
        no_gpu = true;
        print_message("SKIPPED: no GPU: %s\n", cn_last_error());
        return 0;
    }
    inner = *opened;
    if (on_cpu) {
        linked_products_open(&inner, opened);
        inner.links_norm = links_few_rows;
    } else if (!links_any(opened)) { /* only Hopper has own products */
        no_gpu = true;
        print_message("SKIPPED: this GPU has no norms in products\n");
    }
    counting = inner;
    counting.rmsnorm = count_norm;
    counting.gemm = count_product;
    if (inner.gemm_silu_mul) counting.gemm_silu_mul = count_gated;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (opened) opened->close(opened);
    return 0;
}

/* ---- random checkpoints ---- */

/* One value of a tensor. Norms differ from 1 and biases from 0. Branches are about as large as the
 * residual to which they are added. */
static float draw_weight(const cn_weight_part *p, test_rng *rng)
{
    const float x = test_rng_uniform(rng);
    switch (p->id) {
    case CN_W_FINAL_NORM:
    case CN_W_ATTN_NORM:
    case CN_W_Q_NORM:
    case CN_W_K_NORM:
    case CN_W_MLP_NORM: return 1 + 0.5f * x;
    case CN_W_QKV_BIAS:
    case CN_W_O_BIAS: return x;
    case CN_W_EMBED: return 1.7f * x;
    default: return 2.6f / sqrtf((float)p->tensor.cols) * x;
    }
}

/* Writes a checkpoint of this config. The parts are those of dummy weights. */
static void write_checkpoint(const scratch_dir *d, const char *config)
{
    cn_model_config cfg;
    cn_checkpoint *ck = NULL;
    tensor_file f = {0};
    test_rng rng = {1};
    char path[128];
    size_t n_parts = 0;
    scratch_dir_put(d, "config.json", config, strlen(config));
    OP_OK(cn_model_config_load(&cfg, d->path));
    assert_int_equal(cfg.n_layers, N_LAYERS);
    OP_OK(cn_checkpoint_open(&ck, d->path, &cfg, CN_OPT_LOAD_DUMMY, 0));
    const cn_weight_part *parts = cn_checkpoint_parts(ck, &n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        const cn_host_tensor *t = &parts[i].tensor;
        const size_t n = (size_t)(t->rows * t->cols);
        uint16_t *values = cn_calloc(n, sizeof *values);
        for (size_t k = 0; k < n; k++) values[k] = to_bf16(draw_weight(&parts[i], &rng));
        tensor_file_add(&f, parts[i].name, "BF16", t->rows > 1 ? t->rows : 0, t->cols, values,
                        n * sizeof *values);
        cn_free(values);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", d->path);
    tensor_file_write(&f, path);
    tensor_file_free(&f);
    cn_checkpoint_close(ck);
}

/* ---- a checkpoint on both sides ---- */

typedef struct pair {
    model_rig *cpu, *gpu;
    test_rng rng;
    uint32_t n_rows, n_agreed; /* rows compared; rows with the same greedy token */
    double worst;
} pair;

static pair both; /* of the running test */

static void open_pair(pair *p, const char *dir)
{
    model_rig_opts o = {.dir = dir,
                        .max_tokens = MOST_ROWS,
                        .max_seqs = MOST_SEQS,
                        .max_kv_tokens = MOST_KV,
                        .block_tokens = 64,
                        .makes_blocks = makes_blocks};
    memset(&ran, 0, sizeof ran);
    *p = (pair){.rng = {2}};
    p->cpu = model_rig_open(&o);
    o.backend = &counting;
    p->gpu = model_rig_open(&o);
}

/* Runs after each test, because a failed assertion leaves the test early. */
static int close_pair(void **state)
{
    (void)state;
    if (both.cpu) model_rig_close(both.cpu);
    if (both.gpu) model_rig_close(both.gpu);
    both = (pair){0};
    return 0;
}

static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Returns the CPU's greedy token. The GPU may choose another one of two nearly equal logits. */
static uint32_t compare_row(pair *p, const float *want, const float *got)
{
    const uint32_t vocab = p->cpu->cfg.vocab;
    const uint32_t token = argmax(want, vocab), other = argmax(got, vocab);
    const double error = op_row_error_of(got, want, vocab);
    double squares = 0;
    for (uint32_t i = 0; i < vocab; i++) squares += (double)want[i] * want[i];
    const double near = 4 * tolerance * sqrt(squares / vocab);
    if (!(error <= tolerance))
        fail_msg("%u tokens%s: a row of logits differs by %g of its length", p->gpu->batch.n_tokens,
                 p->gpu->recorded ? ", from a graph" : "", error);
    if ((double)(want[token] - want[other]) > near)
        fail_msg("%u tokens: greedy tokens %u and %u: the CPU's logits differ by %g, expected at "
                 "most %g",
                 p->gpu->batch.n_tokens, token, other, (double)(want[token] - want[other]), near);
    p->worst = fmax(p->worst, error);
    p->n_rows++;
    p->n_agreed += token == other;
    return token;
}

/* Runs a pass on both sides and compares its rows. next[n_chunks] = the CPU's greedy tokens behind
 * the chunks. */
static void run_pass(pair *p, const model_rig_chunk *chunks, uint32_t n_chunks, uint32_t n_decode,
                     uint32_t *next)
{
    const uint32_t vocab = p->cpu->cfg.vocab;
    const float *want = model_rig_pass(p->cpu, chunks, n_chunks, n_decode, true);
    const float *got = model_rig_pass(p->gpu, chunks, n_chunks, n_decode, true);
    const uint32_t n_tokens = p->gpu->batch.n_tokens;
    if (!p->gpu->recorded) check_ops(n_tokens);
    for (uint32_t row = 0, chunk = 0; row < n_tokens; row++) {
        const size_t at = (size_t)row * vocab;
        next[chunk] = compare_row(p, want + at, got + at);
        chunk += row + 1 == p->gpu->q_start[chunk + 1];
    }
}

static void draw_tokens(pair *p, uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) tokens[i] = test_rng_below(&p->rng, p->cpu->cfg.vocab);
}

/* Starts n sequences with prompts of a few tokens. */
static void run_prompts(pair *p, uint32_t n, uint32_t *next)
{
    uint32_t tokens[MOST_SEQS][MOST_PROMPT];
    model_rig_chunk chunks[MOST_SEQS];
    for (uint32_t i = 0; i < n; i++) {
        draw_tokens(p, tokens[i], MOST_PROMPT);
        chunks[i] = (model_rig_chunk){i, 1 + test_rng_below(&p->rng, MOST_PROMPT), tokens[i]};
        model_rig_reset(p->cpu, i);
        model_rig_reset(p->gpu, i);
    }
    run_pass(p, chunks, n, 0, next);
}

/* Decodes n sequences, the first steps op by op and the others from a graph. */
static void run_decodes(pair *p, uint32_t n, uint32_t *next)
{
    enum { STEPS = 5, EAGER_STEPS = 2 };
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t tokens[MOST_SEQS];
        model_rig_chunk chunks[MOST_SEQS];
        memcpy(tokens, next, n * sizeof *tokens);
        for (uint32_t i = 0; i < n; i++) chunks[i] = (model_rig_chunk){i, 1, &tokens[i]};
        if (step == EAGER_STEPS && counting.graph_begin) {
            model_rig_record(p->gpu);
            check_ops(n);
        }
        run_pass(p, chunks, n, n, next);
    }
    model_rig_forget(p->gpu);
}

/* Decodes the first n_decode sequences and reads the prompt of another one, in one pass. */
static void run_mixed(pair *p, uint32_t n_tokens, uint32_t n_decode)
{
    uint32_t tokens[MOST_KV], next[MOST_SEQS];
    model_rig_chunk chunks[MOST_SEQS];
    draw_tokens(p, tokens, n_tokens);
    for (uint32_t i = 0; i < n_decode; i++) chunks[i] = (model_rig_chunk){i, 1, tokens + i};
    chunks[n_decode] = (model_rig_chunk){n_decode, n_tokens - n_decode, tokens + n_decode};
    model_rig_reset(p->cpu, n_decode);
    model_rig_reset(p->gpu, n_decode);
    run_pass(p, chunks, n_decode + 1, n_decode, next);
}

/* ---- the tests ---- */

/* Every compiled kernel of products with links, and more rows than these have. */
static void check_model(const char *config, uint32_t linked)
{
    static const uint32_t sizes[] = {1, 3, 8, 12, 24, 33, 64, 65};
    scratch_dir d;
    pair *p = &both;
    uint32_t next[MOST_SEQS];
    if (no_gpu) skip();
    most_linked = linked;
    tolerance = makes_blocks ? FP8_TOLERANCE : TOLERANCE;
    scratch_dir_open(&d);
    write_checkpoint(&d, config);
    open_pair(p, d.path);
    scratch_dir_close(&d);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_prompts(p, sizes[i], next);
        run_decodes(p, sizes[i], next);
    }
    run_mixed(p, MOST_LINKED, 8);
    run_mixed(p, MOST_LINKED + 1, 8);
    print_message("    %u rows, worst error %.1e of %.1e, the greedy token of %u is the CPU's\n",
                  p->n_rows, p->worst, tolerance, p->n_agreed);
    assert_true(p->n_agreed >= p->n_rows - p->n_rows / (makes_blocks ? 4 : 20));
}

static void norms_in_products_equal_the_cpu(void **state)
{
    (void)state;
    check_model(CONFIG("Qwen3ForCausalLM", ""), MOST_LINKED);
}

/* Both products of attention have a bias, which the second one adds behind the norm. */
static void norms_in_products_with_biases_equal_the_cpu(void **state)
{
    (void)state;
    check_model(CONFIG("LlamaForCausalLM", ", \"attention_bias\": true"), MOST_LINKED);
}

/* Every token takes all experts: with fewer, the GPU's rounding would now and then choose others
 * than the CPU. The middle layer has none. */
static void layers_with_experts_equal_the_cpu(void **state)
{
    (void)state;
    check_model(CONFIG("Qwen3MoeForCausalLM",
                       ", \"num_experts\": 6, \"num_experts_per_tok\": 6, "
                       "\"moe_intermediate_size\": 192, \"norm_topk_prob\": true, "
                       "\"mlp_only_layers\": [1]"),
                0);
}

/* Sigmoid, biases and a shared expert; an expert's width is not whole tiles. */
static void shared_experts_equal_the_cpu(void **state)
{
    (void)state;
    check_model(CONFIG("Glm4MoeForCausalLM",
                       ", \"n_routed_experts\": 5, \"num_experts_per_tok\": 5, "
                       "\"moe_intermediate_size\": 136, \"n_shared_experts\": 1, "
                       "\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, "
                       "\"routed_scaling_factor\": 1.5, \"first_k_dense_replace\": 1"),
                0);
}

static void fp8_weights_equal_the_cpu(void **state)
{
    (void)state;
    makes_blocks = true;
    check_model(CONFIG("LlamaForCausalLM", ", \"attention_bias\": true"), 0);
    makes_blocks = false;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(norms_in_products_equal_the_cpu, close_pair),
        cmocka_unit_test_teardown(norms_in_products_with_biases_equal_the_cpu, close_pair),
        cmocka_unit_test_teardown(layers_with_experts_equal_the_cpu, close_pair),
        cmocka_unit_test_teardown(shared_experts_equal_the_cpu, close_pair),
        cmocka_unit_test_teardown(fp8_weights_equal_the_cpu, close_pair),
    };
    on_cpu = argc > 2 && strcmp(argv[2], "cpu") == 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("model_cuda", tests, setup, teardown);
}
