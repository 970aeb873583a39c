/* test_draft.c - the retrieval head of selector `spec`: its file and what is refused, the op
 * draft_store, and the lists of decode rows, against sums written out here in double. Heads that
 * read states of the model give the same bits wherever a prompt is cut. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/checkpoint/file_sum.h"
#include "engine/checkpoint/retrieval_file.h"
#include "engine/model/draft.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/tensor_file.h"
#include "tests/lib/paged_batch.h"

/* ---- the file ---- */

enum { HIDDEN = 32, KV = 2, HEADS = 6, DIM = 16 };

static cn_model_config small_model(void)
{
    return (cn_model_config){.hidden = HIDDEN,
                             .n_layers = 4,
                             .n_heads = 4,
                             .n_kv_heads = KV,
                             .head_dim = 32,
                             .max_position = 4096,
                             .rope_theta = 1e6,
                             .rms_eps = 1e-6f};
}

/* What a test changes in a good file. */
typedef struct file_change {
    const char *metadata; /* in place of the good one; BASE stands for the right sum */
    uint64_t k_rows, q_rows, k_cols, fc_rows;
    bool states; /* a head with hidden layers */
    const char *dtype, *k_name, *extra; /* extra: one more tensor */
} file_change;

#define META(LAYERS, DIM, BASE_TEXT)                                                               \
    "\"__metadata__\":{\"hidden_layers\":\"" LAYERS "\",\"head_dim\":\"" DIM                       \
    "\",\"rope_theta\":\"10000.0\",\"context\":\"512\",\"base\":\"" BASE_TEXT "\"}"

static void add_metadata(tensor_file *f, const scratch_dir *d, const char *text)
{
    uint64_t sum;
    assert_int_equal(cn_file_sum_weights(&sum, d->path), CN_OK);
    const char *base = strstr(text, "BASE");
    const int n = base ? (int)(base - text) : (int)strlen(text);
    assert_int_equal(cn_buf_addf(&f->header, "%.*s", n, text), CN_OK);
    if (base) assert_int_equal(cn_buf_addf(&f->header, "%016" PRIx64 "%s", sum, base + 4), CN_OK);
}

static void write_head(const scratch_dir *d, file_change c)
{
    tensor_file f = {0};
    char path[128];
    const uint64_t k_rows = c.k_rows ? c.k_rows : KV * DIM;
    const uint64_t q_rows = c.q_rows ? c.q_rows : HEADS * DIM;
    const uint64_t width = c.states ? 2 * HIDDEN : HIDDEN, cols = c.k_cols ? c.k_cols : width;
    const uint64_t fc_rows = c.fc_rows ? c.fc_rows : HIDDEN;
    const char *dtype = c.dtype ? c.dtype : "F32";
    const size_t elem = strcmp(dtype, "F32") == 0 ? 4 : 1;
    float *zeros = calloc(1 << 16, sizeof *zeros);
    assert_non_null(zeros);
    add_metadata(&f, d, c.metadata ? c.metadata
                          : c.states ? META("[0,1,3]", "16", "BASE")
                                     : META("[]", "16", "BASE"));
    tensor_file_add(&f, "norm.weight", "F32", 0, HIDDEN, zeros, HIDDEN * 4);
    tensor_file_add(&f, "q_proj.weight", "F32", q_rows, width, zeros, q_rows * width * 4);
    tensor_file_add(&f, c.k_name ? c.k_name : "k_proj.weight", dtype, k_rows, cols, zeros,
                    k_rows * cols * elem);
    if (c.states) {
        tensor_file_add(&f, "fc.weight", "F32", fc_rows, 3 * HIDDEN, zeros,
                        fc_rows * 3 * HIDDEN * 4);
        tensor_file_add(&f, "hidden_norm.weight", "F32", 0, HIDDEN, zeros, HIDDEN * 4);
    }
    if (c.extra) tensor_file_add(&f, c.extra, "F32", 0, 4, zeros, 16);
    snprintf(path, sizeof path, "%s/retrieval.safetensors", d->path);
    tensor_file_write(&f, path);
    tensor_file_free(&f);
    free(zeros);
}

static void refused(const scratch_dir *d, const char *part)
{
    const cn_model_config m = small_model();
    cn_retrieval_file *f;
    assert_int_equal(cn_retrieval_open(&f, d->path, &m, CN_OPT_LOAD_AUTO), CN_ERR_MODEL);
    assert_null(f);
    if (!strstr(cn_last_error(), part) || !strstr(cn_last_error(), "retrieval.safetensors"))
        fail_msg("expected \"%s\", got \"%s\"", part, cn_last_error());
}

static void a_head_is_read_and_checked(void **state)
{
    (void)state;
    scratch_dir d;
    const cn_model_config m = small_model();
    cn_retrieval_file *f;
    scratch_dir_open(&d);
    scratch_dir_put(&d, "model.safetensors", "weights", 7);
    refused(&d, "the file is missing");
    write_head(&d, (file_change){0});
    assert_int_equal(cn_retrieval_open(&f, d.path, &m, CN_OPT_LOAD_AUTO), CN_OK);
    const cn_draft_head *head = cn_retrieval_head(f);
    assert_int_equal(head->n_heads, HEADS);
    assert_int_equal(head->head_dim, DIM);
    assert_int_equal(head->context, 512);
    assert_true(head->rope_theta == 10000);
    assert_int_equal(head->n_hidden_layers, 0);
    cn_retrieval_close(f);
    write_head(&d, (file_change){.states = true});
    assert_int_equal(cn_retrieval_open(&f, d.path, &m, CN_OPT_LOAD_AUTO), CN_OK);
    head = cn_retrieval_head(f);
    assert_int_equal(head->n_hidden_layers, 3);
    assert_true(head->hidden_layers[0] == 0 && head->hidden_layers[1] == 1);
    assert_int_equal(head->hidden_layers[2], 3);
    assert_int_equal(cn_retrieval_parts(f)[CN_HEAD_FC].tensor.cols, 3 * HIDDEN);
    cn_retrieval_close(f);

    const struct {
        file_change change;
        const char *says;
    } bad[] = {
        {{.metadata = META("[1,2,4]", "16", "BASE")},
         "hidden_layers [1,2,4]: expected [] or three ascending layers from 0 to 3"},
        {{.metadata = META("[1,1,2]", "16", "BASE")}, "hidden_layers [1,1,2]: expected []"},
        {{.metadata = META("[-1,1,2]", "16", "BASE")}, "hidden_layers [-1,1,2]: expected []"},
        {{.metadata = META("[1,2]", "16", "BASE")}, "hidden_layers [1,2]: expected []"},
        {{.metadata = META("[0,1.5,2]", "16", "BASE")}, "hidden_layers [0,1.5,2]: expected []"},
        {{.metadata = META("{}", "16", "BASE")}, "hidden_layers {}: expected []"},
        {{.metadata = META("[0,1,3]", "16", "BASE")}, "q_proj.weight: expected [rows, 64], got"},
        {{.states = true, .fc_rows = HIDDEN - 16}, "fc.weight: expected 32 rows, got 16"},
        {{.states = true, .extra = "fc2.weight"}, "fc2.weight: expected only norm.weight"},
        {{.metadata = META("[]", "24", "BASE")}, "head_dim 24: expected a multiple of 16"},
        {{.metadata = META("[]", "512", "BASE")},
         "head_dim 512: expected a multiple of 16 from 16 to 256"},
        {{.metadata = META("[]", "16", "0123456789abcdef")}, "the head is of another model"},
        {{.metadata = "\"__metadata__\":{}"}, "metadata hidden_layers: expected a value"},
        {{.k_rows = 3 * DIM}, "k_proj.weight: expected 32 rows, 2 kv heads of 16, got 48"},
        {{.q_rows = 3 * DIM}, "q_proj.weight: expected a multiple of 32 rows"},
        {{.k_cols = 16}, "k_proj.weight: expected [rows, 32], got [32, 16]"},
        {{.dtype = "U8"}, "k_proj.weight: expected F32, BF16 or F16, got U8"},
        {{.extra = "fc.weight"}, "fc.weight: expected only norm.weight"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_head(&d, bad[i].change);
        refused(&d, bad[i].says);
    }
    /* The weights change: the head is of another model. */
    write_head(&d, (file_change){0});
    scratch_dir_put(&d, "model.safetensors", "Weights", 7);
    refused(&d, "the head is of another model");
    scratch_dir_close(&d);
}

/* What a test changes in a good EAGLE-3 file of a model of 8 layers and 64 tokens. */
typedef struct eagle_change {
    uint64_t k_rows, t2d, lm_rows;
    int64_t d2t; /* of draft token 1 */
    const char *prefix, *extra, *config; /* of the layer; one more tensor; retrieval.json */
    bool no_norm;
} eagle_change;

static void add_zeros(tensor_file *f, const char *prefix, const char *name, uint64_t rows,
                      uint64_t cols)
{
    char text[80];
    const size_t n = (rows ? rows : 1) * cols;
    float *zeros = calloc(n, sizeof *zeros);
    assert_non_null(zeros);
    snprintf(text, sizeof text, "%s%s", prefix, name);
    tensor_file_add(f, text, "F32", rows, cols, zeros, n * sizeof *zeros);
    free(zeros);
}

static void write_eagle(const scratch_dir *d, eagle_change c)
{
    enum { VOCAB = 64, DRAFT_VOCAB = 8 };
    tensor_file f = {0};
    char path[128];
    const char *at = c.prefix ? c.prefix : "midlayer.";
    const int64_t d2t[DRAFT_VOCAB] = {0, c.d2t ? c.d2t : 3, VOCAB - 3, -3};
    const char t2d[2 * VOCAB] = {0};
    const uint64_t n_t2d = c.t2d ? c.t2d : VOCAB;
    tensor_file_add(&f, "d2t", "I64", 0, DRAFT_VOCAB, d2t, sizeof d2t);
    tensor_file_add(&f, "t2d", "BOOL", 0, n_t2d, t2d, n_t2d);
    add_zeros(&f, at, "input_layernorm.weight", 0, HIDDEN);
    if (!c.no_norm) add_zeros(&f, at, "hidden_norm.weight", 0, HIDDEN);
    add_zeros(&f, at, "self_attn.q_proj.weight", HEADS * DIM, 2 * HIDDEN);
    add_zeros(&f, at, "self_attn.k_proj.weight", c.k_rows ? c.k_rows : KV * DIM, 2 * HIDDEN);
    add_zeros(&f, at, "self_attn.v_proj.weight", KV * DIM, 2 * HIDDEN);
    add_zeros(&f, at, "mlp.down_proj.weight", HIDDEN, 3);
    add_zeros(&f, "", "fc.weight", HIDDEN, 3 * HIDDEN);
    add_zeros(&f, "", "lm_head.weight", c.lm_rows ? c.lm_rows : DRAFT_VOCAB, HIDDEN);
    if (c.extra) add_zeros(&f, "", c.extra, 0, 4);
    snprintf(path, sizeof path, "%s/retrieval.safetensors", d->path);
    tensor_file_write(&f, path);
    tensor_file_free(&f);
    snprintf(path, sizeof path, "%s/retrieval.json", d->path);
    remove(path);
    if (c.config) scratch_dir_put(d, "retrieval.json", c.config, strlen(c.config));
}

#define EAGLE_JSON(H, VOCAB, HEADS, MORE)                                              \
    "{\"hidden_size\":" H ",\"vocab_size\":" VOCAB ",\"num_key_value_heads\":" HEADS    \
    ",\"max_position_embeddings\":1024" MORE "}"
#define IDS(LIST) ",\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":" LIST "}"

static cn_draft_head open_eagle(const scratch_dir *d, const cn_model_config *m, eagle_change c)
{
    cn_retrieval_file *f;
    write_eagle(d, c);
    if (cn_retrieval_open(&f, d->path, m, CN_OPT_LOAD_AUTO) != CN_OK)
        fail_msg("%s", cn_last_error());
    const cn_draft_head head = *cn_retrieval_head(f);
    assert_int_equal(cn_retrieval_parts(f)[CN_HEAD_Q].tensor.cols, 2 * HIDDEN);
    assert_int_equal(cn_retrieval_parts(f)[CN_HEAD_FC].tensor.cols, 3 * HIDDEN);
    cn_retrieval_close(f);
    return head;
}

static void assert_layers(const cn_draft_head *head, uint32_t a, uint32_t b, uint32_t c)
{
    assert_int_equal(head->n_hidden_layers, 3);
    assert_int_equal(head->hidden_layers[0], a);
    assert_int_equal(head->hidden_layers[1], b);
    assert_int_equal(head->hidden_layers[2], c);
}

static void eagle_3_files_are_read_and_checked(void **state)
{
    (void)state;
    scratch_dir d;
    cn_model_config m = small_model();
    scratch_dir_open(&d);
    scratch_dir_put(&d, "model.safetensors", "weights", 7);
    m.n_layers = 8;
    m.vocab = 64;
    cn_draft_head head = open_eagle(&d, &m, (eagle_change){0});
    assert_int_equal(head.n_heads, HEADS);
    assert_int_equal(head.head_dim, DIM);
    assert_int_equal(head.context, 2048);
    assert_true(head.rope_theta == m.rope_theta);
    assert_layers(&head, 2, 4, 5);
    head = open_eagle(&d, &m, (eagle_change){
        .prefix = "layers.0.",
        .config = EAGLE_JSON("32", "64", "2", ",\"rope_theta\":5e5" IDS("[-1, 0, 6]"))});
    assert_int_equal(head.context, 1024);
    assert_true(head.rope_theta == 5e5);
    assert_layers(&head, 0, 1, 7);
    head = open_eagle(&d, &m, (eagle_change){.config = EAGLE_JSON("32", "64", "2", "")});
    assert_true(head.rope_theta == 1e4); /* what transformers take */
    assert_layers(&head, 2, 4, 5);
    const struct {
        eagle_change change;
        const char *says;
    } bad[] = {
        {{.k_rows = 5}, "head_dim 2: expected a multiple of 16"},
        {{.k_rows = 4 * DIM}, "self_attn.q_proj.weight: expected a multiple of 64"},
        {{.t2d = 65}, "t2d: expected 64 rows, the vocabulary of the model, got 65"},
        {{.lm_rows = 9}, "lm_head.weight: expected 8 rows, as d2t, got 9"},
        {{.d2t = 63}, "d2t: draft token 1 plus 63: expected a token below 64"},
        {{.d2t = -2}, "d2t: draft token 1 plus -2: expected a token below 64"},
        {{.extra = "midlayer.self_attn.q_proj.bias"}, "q_proj.bias: expected only the tensors"},
        {{.extra = "layers.1.mlp.up_proj.weight"}, "layers.1.mlp.up_proj.weight: expected only"},
        {{.no_norm = true}, "expected a tensor midlayer.hidden_norm.weight, got none"},
        {{.config = EAGLE_JSON("48", "64", "2", "")}, "hidden_size 48: expected 32, as of"},
        {{.config = EAGLE_JSON("32", "65", "2", "")}, "vocab_size 65: expected 64, as of"},
        {{.config = EAGLE_JSON("32", "64", "1", "")}, "num_key_value_heads 1: expected 2, as of"},
        {{.config = EAGLE_JSON("32", "64", "2", ",\"head_dim\":32")},
         "self_attn.k_proj.weight: expected 64 rows, 2 kv heads of 32, got 32"},
        {{.config = EAGLE_JSON("32", "64", "2", IDS("[1, 3, 7]"))}, "layer_ids: expected three"},
        {{.config = EAGLE_JSON("32", "64", "2", IDS("[1, 1, 6]"))}, "layer_ids: expected three"},
        {{.config = EAGLE_JSON("32", "64", "2", IDS("[1, 6]"))}, "layer_ids: expected three"},
        {{.config = EAGLE_JSON("32", "64", "2", ",\"rope_scaling\":{\"rope_type\":\"llama3\"}")},
         "rope_type llama3: supported of an EAGLE-3 head is default"},
        {{.config = "{}"}, "hidden_size"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cn_retrieval_file *f;
        write_eagle(&d, bad[i].change);
        assert_int_equal(cn_retrieval_open(&f, d.path, &m, CN_OPT_LOAD_AUTO), CN_ERR_MODEL);
        if (!strstr(cn_last_error(), bad[i].says) || !strstr(cn_last_error(), "retrieval."))
            fail_msg("expected \"%s\", got \"%s\"", bad[i].says, cn_last_error());
    }
    m.n_layers = 6;
    write_eagle(&d, (eagle_change){0});
    cn_retrieval_file *f;
    assert_int_equal(cn_retrieval_open(&f, d.path, &m, CN_OPT_LOAD_AUTO), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "not known for a model of 6 layers"));
    scratch_dir_close(&d);
}

static void dummy_weights_have_a_head_of_their_own(void **state)
{
    (void)state;
    const cn_model_config m = small_model();
    cn_retrieval_file *f;
    assert_int_equal(cn_retrieval_open(&f, "/nonexistent", &m, CN_OPT_LOAD_DUMMY), CN_OK);
    assert_int_equal(cn_retrieval_head(f)->n_heads, m.n_heads);
    assert_int_equal(cn_retrieval_head(f)->head_dim, m.head_dim);
    cn_retrieval_close(f);
}

/* ---- a step ---- */

/* Frequencies of YaRN (Peng et al., section 3.2) with a context of 512, of pair i of DIM / 2. */
static double yarn_frequency(uint32_t i, double factor)
{
    const double theta = 10000, two_pi = 6.283185307179586;
    const double own = pow(theta, -2.0 * i / DIM), ln = 2 * log(theta);
    const double low = floor(DIM * log(512 / (32 * two_pi)) / ln);
    const double high = ceil(DIM * log(512 / two_pi) / ln);
    const double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return own * (1 - ramp) + own / factor * ramp;
}

/* A head turns as it was trained up to its context. If the model has more positions, it turns with
 * YaRN, whatever the longest request. */
static void a_head_turns_with_yarn_beyond_its_context(void **state)
{
    enum { LAST = 4096, FIRST = 1000, N = LAST - FIRST, HALF = DIM / 2 };
    (void)state;
    scratch_dir d;
    cn_model_config m = small_model();
    cn_backend *be = backend_rig_open(1);
    cn_config *c = cn_config_create();
    scratch_dir_open(&d);
    scratch_dir_put(&d, "model.safetensors", "weights", 7);
    write_head(&d, (file_change){0});
    assert_int_equal(cn_config_set(c, "model", d.path), CN_OK);
    float *memory = cn_calloc(2 * LAST * HALF + (size_t)(1 + (HEADS + KV) * DIM) * HIDDEN, 4);
    assert_non_null(memory);
    for (uint32_t i = 0; i < 3; i++) {
        m.max_position = i == 0 ? 512 : i == 1 ? 400 : 4096;
        m.draft = (cn_draft_head){
            .n_heads = HEADS, .head_dim = DIM, .context = 512, .rope_theta = 10000};
        cn_draft draft = {.cos = memory, .sin = memory + LAST * HALF};
        float *weights = memory + 2 * LAST * HALF;
        draft.norm = weights;
        draft.q_proj = weights + HIDDEN;
        draft.k_proj = weights + HIDDEN + HEADS * DIM * HIDDEN;
        if (cn_draft_load(&draft, be, backend_rig_stream(be), c, &m, NULL) != CN_OK)
            fail_msg("%s", cn_last_error());
        const double factor = i < 2 ? 1 : 8, scale = 0.1 * log(factor) + 1;
        assert_int_equal(cn_draft_cover(&draft, backend_rig_stream(be), FIRST, N), CN_OK);
        for (uint32_t p = FIRST; p < LAST; p += 77)
            for (uint32_t k = 0; k < HALF; k++) {
                const double angle = p * yarn_frequency(k, factor);
                const double x = (double)draft.cos[p * HALF + k];
                const double y = (double)draft.sin[p * HALF + k];
                if (fabs(x - scale * cos(angle)) > 1e-3 || fabs(y - scale * sin(angle)) > 1e-3)
                    fail_msg("factor %g, position %u, pair %u: expected %g %g, got %g %g", factor,
                             p, k, scale * cos(angle), scale * sin(angle), x, y);
            }
    }
    cn_free(memory);
    cn_config_free(c);
    backend_rig_close(be);
    scratch_dir_close(&d);
}

enum { LAYERS = 5, BLOCK = 64, BLOCKS = 12, MAX_LEN = 300, MAX_SEQS = 3 };
enum { MAX_DIM = 48, MAX_HEADS = 8 };

/* Sequences whose tokens are stored in one pass each, and then decode a token. */
typedef struct world {
    test_rng rng;
    cn_backend *be;
    uint32_t n_kv, n_heads, dim, n_seqs;
    cn_draft draft;
    cn_pools pools;
    float *embedded[MAX_SEQS]; /* [len, h] */
    /* [len, h] what enters each layer; layers 0, 2 and 3 are those of a head that reads states. */
    float *states[MAX_SEQS][LAYERS];
    uint32_t len[MAX_SEQS], table[MAX_SEQS][BLOCKS];
} world;

static float *draw(world *w, size_t n)
{
    float *x = cn_calloc_aligned(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = test_rng_uniform(&w->rng);
    return x;
}

static uint32_t between(world *w, uint32_t low, uint32_t high)
{
    return low + test_rng_below(&w->rng, high - low + 1);
}

static bool reads_states(const world *w) { return w->draft.head.n_hidden_layers > 0; }

static uint32_t width_of(const world *w) { return reads_states(w) ? 2 * HIDDEN : HIDDEN; }

static void draw_states(world *w)
{
    const uint32_t h = HIDDEN;
    w->draft.head.n_hidden_layers = 3;
    memcpy(w->draft.head.hidden_layers, (uint32_t[]){0, 2, 3}, 3 * sizeof(uint32_t));
    w->draft.fc = draw(w, (size_t)3 * h * h);
    w->draft.hidden_norm = draw(w, h);
    w->draft.states = draw(w, (size_t)MAX_LEN * 3 * h);
    w->draft.fused = draw(w, (size_t)MAX_LEN * h);
    w->draft.before = draw(w, (size_t)MAX_LEN * h);
    w->draft.input = draw(w, (size_t)MAX_LEN * 2 * h);
    w->pools.layout.draft_state = h;
    w->pools.state = draw(w, (size_t)BLOCKS * h);
}

static void open_world(world *w, uint64_t seed, bool states)
{
    static const uint32_t kv[] = {1, 2, 4}, groups[] = {1, 2, 3};
    memset(w, 0, sizeof *w);
    w->rng.state = seed;
    w->be = backend_rig_open(2);
    w->n_kv = kv[seed % 3];
    w->n_heads = w->n_kv == 4 ? 8 : w->n_kv * groups[seed / 3 % 3];
    w->dim = 16 * between(w, 1, 3);
    w->n_seqs = between(w, 1, MAX_SEQS);
    const uint32_t h = HIDDEN, half = w->dim / 2;
    w->draft = (cn_draft){.be = w->be,
                          .head = {.n_heads = w->n_heads, .head_dim = w->dim},
                          .hidden = h,
                          .eps = 1e-6f};
    w->draft.norm = draw(w, h);
    w->draft.q_proj = draw(w, (size_t)w->n_heads * w->dim * 2 * h);
    w->draft.k_proj = draw(w, (size_t)w->n_kv * w->dim * 2 * h);
    w->draft.cos = draw(w, (size_t)MAX_LEN * half);
    w->draft.sin = draw(w, (size_t)MAX_LEN * half);
    w->draft.normed = draw(w, (size_t)MAX_LEN * h);
    w->draft.queries = draw(w, (size_t)MAX_SEQS * w->n_heads * w->dim);
    w->draft.keys = draw(w, (size_t)MAX_LEN * w->n_kv * w->dim);
    w->pools.layout = cn_kv_layout_make(2, BLOCKS, w->n_kv, BLOCK, 16, CN_F32);
    w->pools.layout.draft_dim = w->dim;
    w->pools.act_dtype = CN_F32;
    w->pools.draft = draw(w, (size_t)BLOCKS * w->n_kv * BLOCK * w->dim);
    if (states) draw_states(w);
    uint32_t order[BLOCKS], next = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) order[i] = (i * 7 + (uint32_t)seed) % BLOCKS;
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        w->len[s] = between(w, 40, BLOCKS / MAX_SEQS * BLOCK);
        w->embedded[s] = draw(w, (size_t)w->len[s] * h);
        for (uint32_t i = 0; states && i < LAYERS; i++)
            w->states[s][i] = draw(w, (size_t)w->len[s] * h);
        for (uint32_t i = 0; i * BLOCK < w->len[s]; i++) w->table[s][i] = order[next++];
    }
}

static void close_world(world *w)
{
    void *const memory[] = {w->draft.norm,   w->draft.q_proj,  w->draft.k_proj, w->draft.cos,
                            w->draft.sin,    w->draft.normed,  w->draft.queries, w->draft.keys,
                            w->pools.draft,  w->draft.fc,      w->draft.hidden_norm,
                            w->draft.states, w->draft.fused,   w->draft.before,
                            w->draft.input,  w->pools.state};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cn_free(memory[i]);
    for (uint32_t s = 0; s < w->n_seqs; s++) {
        cn_free(w->embedded[s]);
        for (uint32_t i = 0; i < LAYERS; i++) cn_free(w->states[s][i]);
    }
    backend_rig_close(w->be);
}

/* out[n] = x[n] / rms(x) * weight. */
static void naive_norm(const double *x, const float *weight, uint32_t n, double *out)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += x[i] * x[i];
    const double scale = 1 / sqrt(squares / n + 1e-6);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * scale * (double)weight[i];
}

/* out[h or 2 h] = what the head reads of a token, as train.py computes it. */
static void naive_input(const world *w, uint32_t s, uint32_t position, double *out)
{
    double x[HIDDEN], fused[HIDDEN] = {0};
    for (uint32_t i = 0; i < HIDDEN; i++)
        x[i] = (double)w->embedded[s][(size_t)position * HIDDEN + i];
    naive_norm(x, w->draft.norm, HIDDEN, out);
    if (!reads_states(w)) return;
    for (uint32_t r = 0; position > 0 && r < HIDDEN; r++)
        for (uint32_t c = 0; c < 3 * HIDDEN; c++) {
            const uint32_t layer = w->draft.head.hidden_layers[c / HIDDEN];
            const float *state = w->states[s][layer] + (size_t)(position - 1) * HIDDEN;
            const float *row = (const float *)w->draft.fc + (size_t)r * 3 * HIDDEN;
            fused[r] += (double)state[c % HIDDEN] * (double)row[c];
        }
    naive_norm(fused, w->draft.hidden_norm, HIDDEN, out + HIDDEN);
}

/* out[dim] = the rotated query or key of head `head` of a token, in double. */
static void naive_head(const world *w, uint32_t s, uint32_t position, const float *weight,
                       uint32_t head, double *out)
{
    const uint32_t d = w->dim, half = d / 2, width = width_of(w);
    double input[2 * HIDDEN], raw[MAX_DIM];
    naive_input(w, s, position, input);
    for (uint32_t c = 0; c < d; c++) {
        const float *row = weight + ((size_t)head * d + c) * width;
        raw[c] = 0;
        for (uint32_t i = 0; i < width; i++) raw[c] += input[i] * (double)row[i];
    }
    for (uint32_t i = 0; i < half; i++) {
        const double c = (double)w->draft.cos[position * half + i];
        const double s_i = (double)w->draft.sin[position * half + i];
        out[i] = raw[i] * c - raw[half + i] * s_i;
        out[half + i] = raw[half + i] * c + raw[i] * s_i;
    }
}

static void near_to(const double *want, const float *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (fabs(want[i] - (double)got[i]) > 1e-3 * (1 + fabs(want[i])))
            fail_msg("element %u: expected %g, got %g", i, want[i], (double)got[i]);
}

/* Runs the layers of a pass with the world's states of its tokens, which are of seqs[T]. */
static void run_layers(world *w, const cn_batch_view *b, const uint32_t *seqs)
{
    float *residual = draw(w, (size_t)b->n_tokens * HIDDEN);
    for (uint32_t layer = 0; reads_states(w) && layer < LAYERS; layer++) {
        for (uint32_t t = 0; t < b->n_tokens; t++)
            memcpy(residual + (size_t)t * HIDDEN,
                   w->states[seqs[t]][layer] + (size_t)b->positions[t] * HIDDEN,
                   HIDDEN * sizeof *residual);
        assert_int_equal(cn_draft_enter_layer(&w->draft, backend_rig_stream(w->be), b, &w->pools,
                                              residual, layer),
                         CN_OK);
    }
    cn_free(residual);
}

/* Stores tokens [first, end) of a sequence, as a chunk of its prompt. */
static void store(world *w, uint32_t s, uint32_t first, uint32_t end)
{
    uint32_t positions[MAX_LEN], slots[MAX_LEN], seqs[MAX_LEN];
    const uint32_t q_start[] = {0, end - first};
    for (uint32_t p = first; p < end; p++) {
        positions[p - first] = p;
        slots[p - first] = w->table[s][p / BLOCK] * BLOCK + p % BLOCK;
        seqs[p - first] = s;
    }
    const cn_batch_view b = {.n_tokens = end - first,
                             .n_seqs = 1,
                             .positions = positions,
                             .kv_slots = slots,
                             .q_start = q_start,
                             .kv_len = &end,
                             .tables = w->table[s],
                             .table_stride = BLOCKS};
    assert_int_equal(cn_draft_store(&w->draft, backend_rig_stream(w->be), &b, &w->pools,
                                    w->embedded[s] + (size_t)first * HIDDEN),
                     CN_OK);
    run_layers(w, &b, seqs);
}

static void check_keys(const world *w)
{
    const cn_kv_layout l = cn_kv_layout_draft(&w->pools.layout);
    double want[MAX_DIM];
    for (uint32_t s = 0; s < w->n_seqs; s++)
        for (uint32_t p = 0; p < w->len[s]; p++)
            for (uint32_t h = 0; h < w->n_kv; h++) {
                naive_head(w, s, p, w->draft.k_proj, h, want);
                near_to(want,
                        (const float *)w->pools.draft +
                            cn_kv_row(&l, 0, w->table[s][p / BLOCK], h, p % BLOCK, CN_KV_K),
                        w->dim);
            }
}

/* best[n] = log of the largest share that a query head of the kv head gives to each candidate. */
static void naive_shares(const world *w, uint32_t s, uint32_t kv, uint32_t base, uint32_t n,
                         double *best)
{
    const uint32_t group = w->n_heads / w->n_kv, at = w->len[s] - 1;
    double q[MAX_DIM], k[MAX_DIM], logits[MAX_LEN];
    for (uint32_t g = 0; g < group; g++) {
        double sum = 0;
        naive_head(w, s, at, w->draft.q_proj, kv * group + g, q);
        for (uint32_t c = 0; c < n; c++) {
            naive_head(w, s, base + c, w->draft.k_proj, kv, k);
            logits[c] = 0;
            for (uint32_t i = 0; i < w->dim; i++) logits[c] += q[i] * k[i] / sqrt(w->dim);
            sum += exp(logits[c]);
        }
        for (uint32_t c = 0; c < n; c++) {
            const double share = logits[c] - log(sum);
            best[c] = g == 0 ? share : fmax(best[c], share);
        }
    }
}

/* A list has k different candidates, none with a smaller share than one that it lacks. Scores are
 * f16, so shares that differ by less than 2 % of their logarithm count as equal. */
static void check_list(const world *w, uint32_t s, uint32_t kv, const uint32_t *list, uint32_t base,
                       uint32_t n, uint32_t k)
{
    double best[MAX_LEN], least = INFINITY, most_lacking = -INFINITY;
    bool listed[MAX_LEN] = {false};
    naive_shares(w, s, kv, base, n, best);
    for (uint32_t i = 0; i < k; i++) {
        assert_in_range(list[i], base, base + n - 1);
        assert_false(listed[list[i] - base]);
        listed[list[i] - base] = true;
        least = fmin(least, best[list[i] - base]);
    }
    for (uint32_t c = 0; c < n; c++)
        if (!listed[c]) most_lacking = fmax(most_lacking, best[c]);
    if (most_lacking > least + 0.02 * (1 + fabs(least)))
        fail_msg("sequence %u, head %u: share %g is listed, %g is not", s, kv, least, most_lacking);
}

/* All sequences decode their last token in one batch. Row 0 attends to all tokens. */
static void decode(world *w)
{
    enum { SINKS = 3, STRIDE = 64 };
    const uint32_t n = w->n_seqs;
    uint32_t positions[MAX_SEQS], slots[MAX_SEQS], first[MAX_SEQS], count[MAX_SEQS], k[MAX_SEQS];
    uint32_t base[MAX_SEQS], forced[MAX_SEQS], tables[MAX_SEQS * BLOCKS], end = 0;
    uint32_t seqs[MAX_SEQS], q_start[MAX_SEQS + 1] = {0};
    cn_sel_stage stages[MAX_SEQS] = {{0}};
    float *rows = draw(w, (size_t)n * HIDDEN);
    float *logits = draw(w, (size_t)MAX_SEQS * MAX_LEN * 4 * MAX_HEADS);
    uint32_t list[MAX_SEQS * 4 * STRIDE];
    uint16_t score[MAX_SEQS * MAX_LEN * 4];
    memset(list, 0xff, sizeof list);
    for (uint32_t s = 0; s < n; s++) {
        positions[s] = w->len[s] - 1;
        seqs[s] = s;
        q_start[s + 1] = s + 1;
        slots[s] = w->table[s][positions[s] / BLOCK] * BLOCK + positions[s] % BLOCK;
        memcpy(rows + (size_t)s * HIDDEN, w->embedded[s] + (size_t)positions[s] * HIDDEN,
               HIDDEN * sizeof *rows);
        memcpy(tables + s * BLOCKS, w->table[s], sizeof w->table[s]);
        if (s > 0) stages[s] = (cn_sel_stage){.active = 1, .group = CN_GROUP_MAX};
        base[s] = forced[s] = s > 0 ? SINKS : 0;
        count[s] = s > 0 ? w->len[s] - 8 - SINKS : 0;
        k[s] = s > 0 ? between(w, 1, 24) : 0;
        first[s] = end;
        end += count[s];
    }
    const cn_batch_view b = {.n_tokens = n, .n_seqs = n, .n_decode = n, .positions = positions,
                             .kv_slots = slots, .q_start = q_start, .kv_len = w->len,
                             .tables = tables, .table_stride = BLOCKS};
    const cn_row_range range = {0, n};
    const cn_select_view view = {
        .ranks_ahead = true,
        .rows = {.stage = {[1] = {.first = first, .n = count, .base = base, .k = k}},
                 .n_forced = forced,
                 .seed = first},
        .ahead = stages,
        .ranges = &range,
        .n_ranges = 1};
    const cn_select_scratch scratch = {.score = score, .logits = logits, .list = list,
                                       .list_stride = STRIDE};
    const cn_select_step step = {.be = w->be, .stream = backend_rig_stream(w->be), .batch = &b,
                                 .pools = &w->pools, .view = &view, .scratch = &scratch};
    assert_int_equal(cn_draft_store(&w->draft, step.stream, &b, &w->pools, rows), CN_OK);
    assert_int_equal(cn_draft_select(&w->draft, &step), CN_OK);
    run_layers(w, &b, seqs);
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t h = 0; h < w->n_kv; h++) {
            const uint32_t *mine = list + (s * w->n_kv + h) * STRIDE;
            if (s == 0) {
                assert_int_equal(mine[0], UINT32_MAX);
                continue;
            }
            for (uint32_t i = 0; i < SINKS; i++) assert_int_equal(mine[i], i);
            check_list(w, s, h, mine + SINKS, SINKS, count[s], k[s]);
        }
    cn_free(rows);
    cn_free(logits);
}

/* Stores all tokens but the last of a sequence, in chunks that begin at random. */
static void store_prompt(world *w, uint32_t s, uint32_t n_chunks)
{
    uint32_t first = 0;
    const uint32_t end = w->len[s] - 1;
    for (; n_chunks > 1 && first + 1 < end; n_chunks--) {
        const uint32_t cut = between(w, first + 1, end - 1);
        store(w, s, first, cut);
        first = cut;
    }
    store(w, s, first, end);
}

/* MHA, GQA and MQA heads, with and without states; prompts stored whole or in chunks. */
static void keys_and_lists_are_those_of_naive_sums(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        world w;
        open_world(&w, seed, seed > 12);
        for (uint32_t s = 0; s < w.n_seqs; s++) store_prompt(&w, s, seed % 2 ? 2 : 1);
        decode(&w);
        check_keys(&w);
        close_world(&w);
    }
}

/* Draft K and states have the same bits, wherever a prompt is cut. */
static void cuts_change_no_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        world whole, cut;
        open_world(&whole, seed, true);
        open_world(&cut, seed, true);
        for (uint32_t s = 0; s < whole.n_seqs; s++) {
            store_prompt(&whole, s, 1);
            store_prompt(&cut, s, 2 + (uint32_t)seed % 5);
        }
        decode(&whole);
        decode(&cut);
        const size_t n_keys = (size_t)BLOCKS * whole.n_kv * BLOCK * whole.dim;
        assert_memory_equal(whole.pools.draft, cut.pools.draft, n_keys * sizeof(float));
        assert_memory_equal(whole.pools.state, cut.pools.state, BLOCKS * HIDDEN * sizeof(float));
        close_world(&whole);
        close_world(&cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read_and_checked),
        cmocka_unit_test(eagle_3_files_are_read_and_checked),
        cmocka_unit_test(dummy_weights_have_a_head_of_their_own),
        cmocka_unit_test(a_head_turns_with_yarn_beyond_its_context),
        cmocka_unit_test(keys_and_lists_are_those_of_naive_sums),
        cmocka_unit_test(cuts_change_no_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
