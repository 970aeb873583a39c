/* test_weight_slice.c - the weights of the ranks of a model that is split over several are those of
 * the whole model: every element is where weights.h says, of files and of dummy weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/weights.h"
#include "tests/lib/backend_rig.h"

typedef struct loaded {
    cn_model_config config;
    cn_weights *weights;
    void *memory;
} loaded;

static cn_backend *be;
static cn_stream *stream;

static void load_rank(loaded *out, const cn_checkpoint *ck, uint32_t rank, uint32_t n_ranks)
{
    const cn_model_config *whole = cn_checkpoint_config(ck);
    assert_int_equal(cn_model_config_rank(&out->config, whole, rank, n_ranks), CN_OK);
    assert_int_equal(be->mem_alloc(be, cn_weights_bytes(&out->config, be), &out->memory), CN_OK);
    if (cn_weights_load_rank(&out->weights, be, stream, ck, &out->config, out->memory) != CN_OK)
        fail_msg("%s", cn_last_error());
}

static void unload(loaded *l)
{
    cn_weights_free(l->weights);
    be->mem_free(be, l->memory);
}

/* Element i of a matrix of a rank must be element at(i) of the whole model's. */
typedef struct place {
    uint64_t rows, cols; /* of the rank */
    uint64_t row_sections[4], n_sections; /* rows of the whole model in sections, each split */
    bool by_columns;
} place;

static uint64_t whole_element(const place *p, uint64_t i, uint32_t rank, uint32_t n_ranks,
                              uint64_t first_row)
{
    uint64_t row = i / p->cols, col = i % p->cols, base = 0;
    if (p->by_columns) return row * p->cols * n_ranks + rank * p->cols + col;
    if (p->n_sections == 0) return (first_row + row) * p->cols + col;
    uint64_t s = 0;
    while (row >= p->row_sections[s] / n_ranks) {
        row -= p->row_sections[s] / n_ranks;
        base += p->row_sections[s++];
    }
    assert_true(s < p->n_sections);
    return (base + rank * (p->row_sections[s] / n_ranks) + row) * p->cols + col;
}

static void check_matrix(const loaded *whole, const loaded *part, cn_weight_id id, uint32_t layer)
{
    const cn_model_config *c = &whole->config;
    const uint32_t rank = part->config.rank, n_ranks = part->config.n_ranks;
    const uint64_t d = c->head_dim, q = c->n_heads * d, kv = c->n_kv_heads * d;
    place p = {.by_columns = id == CN_W_O || id == CN_W_DOWN};
    cn_weight_shape(&part->config, id, layer, &p.rows, &p.cols);
    const float *got = cn_weights_at(part->weights, id, layer);
    const float *want = cn_weights_at(whole->weights, id, layer);
    uint64_t first_row = 0;
    if (id == CN_W_QKV || id == CN_W_QKV_BIAS)
        p = (place){p.rows, p.cols, {q, kv, kv}, 3, false};
    if (id == CN_W_GATE_UP)
        p = (place){p.rows, p.cols, {c->intermediate, c->intermediate}, 2, false};
    if (id == CN_W_QKV_BIAS) p = (place){p.cols, 1, {q, kv, kv}, 3, false};
    if (id == CN_W_LM_HEAD) {
        first_row = cn_head_first_row(&part->config, rank);
        p.rows = cn_head_rows(&part->config);
        p.cols = c->hidden;
    }
    if (id == CN_W_O_BIAS && rank > 0) want = NULL;
    assert_int_equal(got == NULL, want == NULL);
    for (uint64_t i = 0; got && i < p.rows * p.cols; i++)
        if (got[i] != want[whole_element(&p, i, rank, n_ranks, first_row)])
            fail_msg("matrix %d of layer %u, rank %u of %u: element %llu", (int)id, layer, rank,
                     n_ranks, (unsigned long long)i);
}

static void check_model(const char *dir, cn_opt_load_format format, uint32_t n_ranks)
{
    cn_model_config config;
    cn_checkpoint *ck;
    loaded whole, part;
    uint64_t head_rows = 0;
    assert_int_equal(cn_model_config_load(&config, dir), CN_OK);
    if (cn_checkpoint_open(&ck, dir, &config, format, 7) != CN_OK) fail_msg("%s", cn_last_error());
    load_rank(&whole, ck, 0, 1);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        load_rank(&part, ck, rank, n_ranks);
        head_rows += cn_head_rows(&part.config);
        for (uint32_t layer = 0; layer < config.n_layers; layer++)
            for (cn_weight_id id = 0; id < CN_W_COUNT; id++)
                if (layer == 0 || id >= CN_W_ATTN_NORM) check_matrix(&whole, &part, id, layer);
        unload(&part);
    }
    assert_int_equal(head_rows, config.vocab);
    unload(&whole);
    cn_checkpoint_close(ck);
}

static void ranks_have_slices_of_the_whole_model(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n_ranks;
    } models[] = {
        {"qwen3-bf16", 2},          /* tied, q and k norms */
        {"llama-yarn-bias-f16", 2}, /* biases of QKV and O */
        {"mistral-bf16", 2},        /* untied, a vocabulary of 301 */
        {"llama-ranks-bf16", 8},    /* a kv head for each rank */
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", models[i].name);
        check_model(dir, CN_OPT_LOAD_AUTO, models[i].n_ranks);
        check_model(dir, CN_OPT_LOAD_DUMMY, models[i].n_ranks);
    }
}

static void assert_rank_refused(const char *name, uint32_t n_ranks, const char *text)
{
    char dir[256];
    cn_model_config whole, part;
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    assert_int_equal(cn_model_config_load(&whole, dir), CN_OK);
    assert_int_equal(cn_model_config_rank(&part, &whole, 0, n_ranks), CN_ERR_ARG);
    if (!strstr(cn_last_error(), text)) fail_msg("%s", cn_last_error());
}

static void what_is_not_split_is_refused_by_name(void **state)
{
    (void)state;
    assert_rank_refused("qwen3-bf16", 4, "num_key_value_heads of config.json is 2");
    assert_rank_refused("qwen2-tied-bf16", 2, "num_key_value_heads of config.json is 3");
    assert_rank_refused("deepseek-v3-moe-bf16", 2, "latent attention");
    assert_rank_refused("qwen3-moe-bf16", 2, "layers with experts");
    assert_rank_refused("fp8-block", 2, "FP8 weights");
    cn_model_config whole, part;
    assert_int_equal(cn_model_config_load(&whole, "tests/golden/models/qwen3-bf16"), CN_OK);
    whole.intermediate = 97;
    assert_int_equal(cn_model_config_rank(&part, &whole, 0, 2), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "intermediate_size of config.json is 97"));
}

static int open_backend(void **state)
{
    (void)state;
    be = backend_rig_open(1);
    return be->stream_create(be, CN_PRIORITY_HIGH, &stream);
}

static int close_backend(void **state)
{
    (void)state;
    be->stream_free(stream);
    be->close(be);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_have_slices_of_the_whole_model),
        cmocka_unit_test(what_is_not_split_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
