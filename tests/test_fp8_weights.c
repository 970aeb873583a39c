/* test_fp8_weights.c - FP8 weights on the CPU: logits of every form equal those of transformers,
 * products equal sums over the dequantised values, FP8 made at load is the nearest, and damaged
 * files are refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/checkpoint/fp8_weights.h"
#include "engine/checkpoint/quant.h"
#include "paged/kv_fp8.h"
#include "tests/lib/golden.h"
#include "tests/lib/model_rig.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/tensor_file.h"

static const char *const models[] = {"fp8-block",     "fp8-block-ue8m0", "fp8-channel",
                                     "fp8-tensor",    "fp8-moe-block",   "fp8-moe-fused",
                                     "fp8-moe-channel", "fp8-latent-moe-block",
                                     "fp8-latent-moe-channel"};
enum { N_MODELS = sizeof models / sizeof *models };

static void *room(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    assert_non_null(p);
    return p;
}

/* ---- figures of transformers ---- */

static double rms_diff(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += pow((double)a[i] - (double)b[i], 2);
    return sqrt(sum / (double)n);
}

/* The text of transformers follows the tokens of the last pass, of which `logits` are the last. */
static void check_greedy(model_rig *r, const golden *g, const char *name, const float *logits)
{
    size_t n;
    const uint32_t *greedy = golden_u32(g, "greedy", &n);
    for (size_t i = 0; i < n; i++) {
        uint32_t best = 0;
        for (uint32_t v = 1; v < r->cfg.vocab; v++)
            if (logits[v] > logits[best]) best = v;
        if (best != greedy[i])
            fail_msg("%s: greedy token %zu: got %u, expected %u", name, i, best, greedy[i]);
        const model_rig_chunk chunk = {0, 1, &greedy[i]};
        logits = model_rig_pass(r, &chunk, 1, 1, true);
    }
}

/* Compares the logits of the checkpoint in dir with `head` times those of the golden model. */
static void check_logits_of(const char *dir, const char *name, float head, bool plain_inputs)
{
    size_t n = 0, rows = 0, cols = 0;
    golden *g = golden_open(name);
    const uint32_t *tokens = golden_u32(g, "tokens", &n);
    const float *plain = golden_f32(g, "logits", &rows, &cols);
    const float *rounded = golden_f32(g, "logits_rounded", &rows, &cols);
    model_rig *r = model_rig_open(&(model_rig_opts){.dir = dir,
                                                    .n_threads = 2,
                                                    .max_tokens = (uint32_t)n,
                                                    .max_seqs = 1,
                                                    .max_kv_tokens = 256,
                                                    .block_tokens = 16,
                                                    .plain_inputs = plain_inputs});
    assert_int_equal(rows, n);
    assert_int_equal(cols, r->cfg.vocab);
    const model_rig_chunk chunk = {0, (uint32_t)n, tokens};
    const float *passed = model_rig_pass(r, &chunk, 1, 0, true);
    float *logits = room(rows * cols, sizeof *logits);
    for (size_t i = 0; i < rows * cols; i++) logits[i] = passed[i] * head;
    if (plain_inputs) {
        const double diff = golden_max_diff(logits, plain, rows * cols);
        if (diff > 1e-4) fail_msg("%s: logits differ by %g", name, diff);
        if (strstr(name, "moe")) check_greedy(r, g, name, passed + (rows - 1) * cols);
    } else {
        /* A last bit of an input can change which e4m3 is nearest. */
        const double diff = rms_diff(logits, rounded, rows * cols);
        const double effect = rms_diff(rounded, plain, rows * cols);
        if (!(diff < 0.15 * effect))
            fail_msg("%s: logits differ by %g (rms), of %g that rounding does", name, diff, effect);
    }
    free(logits);
    model_rig_close(r);
    golden_close(g);
}

static void check_logits(const char *name, bool plain_inputs)
{
    char dir[256];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    check_logits_of(dir, name, 1, plain_inputs);
}

static void every_form_equals_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) check_logits(models[i], true);
}

static void rounded_inputs_equal_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) check_logits(models[i], false);
}

/* Writes the config.json of a model with ties undone. */
static void write_untied_config(const char *from, const char *dir)
{
    static const char tied[] = "\"tie_word_embeddings\": true";
    static const char untied[] = "\"tie_word_embeddings\": false";
    char path[300];
    cn_buf text = {0}, out = {0};
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_int_equal(cn_json_read_file(&text, path, 1 << 20), CN_OK);
    const char *at = strstr(text.data, tied);
    assert_non_null(at);
    assert_int_equal(cn_buf_addf(&out, "%.*s%s%s", (int)(at - text.data), text.data, untied,
                                 at + strlen(tied)), CN_OK);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, out.data, out.len);
    cn_buf_free(&text);
    cn_buf_free(&out);
}

/* Writes a copy of a tied model with an lm_head, which is the embedding times -1. */
static void write_untied(const char *from, const char *dir)
{
    char path[300];
    cn_safetensors *s;
    tensor_file f = {0};
    write_untied_config(from, dir);
    assert_int_equal(cn_safetensors_open(&s, from), CN_OK);
    for (size_t i = 0; i < cn_safetensors_count(s); i++) {
        const cn_st_tensor *t = cn_safetensors_at(s, i);
        const uint64_t rows = t->n_dims == 2 ? t->shape[0] : 0;
        const uint64_t cols = t->n_dims == 0 ? 1 : t->shape[t->n_dims - 1];
        const char *dtype = cn_st_dtype_name(t->dtype);
        tensor_file_add(&f, t->name, dtype, rows, cols, t->data, t->n_bytes);
        if (strcmp(t->name, "model.embed_tokens.weight") != 0) continue;
        const size_t elem = t->n_bytes / (rows * cols);
        uint8_t *head = room(t->n_bytes, 1);
        memcpy(head, t->data, t->n_bytes);
        for (size_t b = elem - 1; b < t->n_bytes; b += elem) head[b] ^= 0x80;
        tensor_file_add(&f, "lm_head.weight", dtype, rows, cols, head, t->n_bytes);
        free(head);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    tensor_file_write(&f, path);
    tensor_file_free(&f);
    cn_safetensors_close(s);
}

/* The matrix of the logits is read from its own tensor, in the dtype that the file has. */
static void an_untied_head_is_plain(void **state)
{
    (void)state;
    static const char *const names[] = {"fp8-block", "fp8-channel"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[256], dir[64];
        make_folder(dir);
        snprintf(from, sizeof from, "tests/golden/models/%s", names[i]);
        write_untied(from, dir);
        check_logits_of(dir, names[i], -1, true);
        remove_folder(dir);
    }
}

/* ---- products ---- */

typedef struct product {
    uint32_t t, n, k;
    cn_x_form x_form;
    uint32_t scale_n, scale_k, stride;
    uint8_t *codes;
    float *scales, *x, *plain, *out, *want, *rounded;
} product;

/* Finite values of e4m3 and scales that are no powers of two; some inputs are zero. */
static void draw_product(product *p, test_rng *rng)
{
    const size_t scale_cols = cn_ceil_div(p->k, p->scale_k);
    p->stride = (uint32_t)cn_round_up(p->k, 128);
    p->codes = room((size_t)p->n * p->stride, 1);
    p->plain = room((size_t)p->n * p->k, sizeof(float));
    p->scales = room(cn_ceil_div(p->n, p->scale_n) * scale_cols, sizeof(float));
    p->x = room((size_t)p->t * p->k, sizeof(float));
    p->rounded = room((size_t)p->t * p->k, sizeof(float));
    p->out = room((size_t)p->t * p->n, sizeof(float));
    p->want = room((size_t)p->t * p->n, sizeof(float));
    for (size_t i = 0; i < cn_ceil_div(p->n, p->scale_n) * scale_cols; i++)
        p->scales[i] = 0.006F + test_rng_uniform(rng) * 0.005F;
    for (size_t i = 0; i < (size_t)p->t * p->k; i++)
        p->x[i] = i / p->k % 5 == 3 ? 0 : test_rng_uniform(rng) * 3;
    for (uint32_t n = 0; n < p->n; n++)
        for (uint32_t k = 0; k < p->k; k++) {
            uint8_t *code = &p->codes[(size_t)n * p->stride + k];
            *code = (uint8_t)test_rng_below(rng, 256);
            if ((*code & 0x7f) == 0x7f) *code ^= 1;
            p->plain[(size_t)n * p->k + k] =
                cn_fp8_value(*code) * p->scales[n / p->scale_n * scale_cols + k / p->scale_k];
        }
}

static void free_product(product *p)
{
    void *const all[] = {p->codes, p->plain, p->scales, p->x, p->rounded, p->out, p->want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static const float STATIC_SCALE = 0.01F;

/* x of a row as the product must read it: the nearest multiple of the scale, found by search. */
static double rounded_x(const product *p, uint32_t row, uint32_t k)
{
    const float *x = p->x + (size_t)row * p->k;
    const uint32_t span = p->x_form == CN_X_BLOCKS ? 128 : p->k, first = k / span * span;
    float most = 0;
    if (p->x_form == CN_X_PLAIN) return x[k];
    for (uint32_t i = first; i < first + span && i < p->k; i++) most = fmaxf(most, fabsf(x[i]));
    const float scale = p->x_form == CN_X_STATIC ? STATIC_SCALE : most / 448;
    double best = 0;
    if (scale == 0) return 0;
    for (uint32_t code = 0; code < 256; code++) {
        const double value = (double)cn_fp8_value((uint8_t)code) * (double)scale;
        if (fabs(value - (double)x[k]) < fabs(best - (double)x[k])) best = value;
    }
    return best;
}

static void run_product(cn_backend *be, cn_stream *s, product *p)
{
    cn_gemm_args a = {.out = p->out,
                      .x = p->x,
                      .rounded = p->x_form == CN_X_PLAIN ? NULL : p->rounded,
                      .weight = {.data = p->codes,
                                 .form = CN_MATRIX_FP8,
                                 .x = p->x_form,
                                 .scales = p->scales,
                                 .stride = p->stride,
                                 .scale_n = p->scale_n,
                                 .scale_k = p->scale_k,
                                 .x_scale = STATIC_SCALE},
                      .n_tokens = p->t,
                      .n = p->n,
                      .k = p->k};
    assert_int_equal(be->gemm(s, &a), CN_OK);
    if (p->x_form != CN_X_PLAIN) return;
    a.weight = (cn_matrix){.data = p->plain};
    a.out = p->want;
    assert_int_equal(be->gemm(s, &a), CN_OK);
    assert_memory_equal(p->out, p->want, (size_t)p->t * p->n * sizeof(float));
}

/* Two e4m3 can be equally near, and the search takes the first. */
static void check_sums(const product *p)
{
    for (uint32_t t = 0; t < p->t; t++)
        for (uint32_t n = 0; n < p->n; n += 7) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < p->k; k++) {
                const double term = rounded_x(p, t, k) * (double)p->plain[(size_t)n * p->k + k];
                sum += term;
                size += fabs(term);
            }
            const double got = p->out[(size_t)t * p->n + n];
            if (!(fabs(got - sum) <= 1e-5 * size + 1e-30))
                fail_msg("T=%u N=%u K=%u x=%d: row %u, column %u: %g, expected %g", p->t, p->n,
                         p->k, (int)p->x_form, t, n, got, sum);
        }
}

static void products_are_sums_of_dequantised_values(void **state)
{
    (void)state;
    static const uint32_t sizes[][3] = {{1, 1, 1},    {3, 130, 129},  {2, 65, 1100}, {5, 48, 128},
                                        {9, 100, 300}, {1, 128, 2200}, {4, 33, 77}};
    test_rng rng = {7};
    cn_backend *be;
    cn_stream *s;
    assert_int_equal(cn_backend_cpu_open(&be, &(cn_cpu_backend_opts){.n_threads = 2}), CN_OK);
    assert_int_equal(be->stream_create(be, CN_PRIORITY_HIGH, &s), CN_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (cn_x_form x = 0; x < CN_N_X_FORMS; x++)
            for (int by_row = 0; by_row < 2; by_row++) {
                product p = {.t = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .x_form = x};
                p.scale_n = by_row ? 1 : i % 2 ? 128 : 16;
                p.scale_k = by_row ? p.k : 128;
                draw_product(&p, &rng);
                run_product(be, s, &p);
                check_sums(&p);
                free_product(&p);
            }
    be->stream_free(s);
    be->close(be);
}

/* ---- FP8 from plain values ---- */

static void made_values_are_the_nearest(void **state)
{
    (void)state;
    enum { ROWS = 200, COLS = 300 };
    static float x[ROWS * COLS], scales[ROWS * 3];
    static uint8_t codes[ROWS * COLS];
    test_rng rng = {3};
    for (int by_row = 0; by_row < 2; by_row++) {
        for (size_t i = 0; i < ROWS * COLS; i++) x[i] = test_rng_uniform(&rng) * 2;
        memset(x, 0, COLS * sizeof *x); /* a row of zeros */
        cn_fp8_make(x, ROWS, COLS, by_row, codes, scales);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLS; c++) {
                const float scale = scales[by_row ? r : r / 128 * 3 + c / 128];
                const double got = (double)cn_fp8_value(codes[r * COLS + c]) * (double)scale;
                const double want = (double)x[r * COLS + c];
                /* 3 mantissa bits, and 2^-10 of the scale below the least normal value */
                assert_true(fabs(got - want) <= fabs(want) / 16 + (double)scale / 1024 + 1e-7);
            }
    }
}

/* Where max / 448 is 0 in f32, zeros stay zeros and no value becomes NaN. */
static void tiny_values_make_no_nan(void **state)
{
    (void)state;
    enum { K = 130 };
    static const cn_x_form forms[] = {CN_X_BLOCKS, CN_X_ROWS};
    float x[K] = {[5] = 1e-43F}, rounded[K], scales[2], one = 1, out = NAN;
    uint8_t codes[K], ones[K];
    cn_backend *be;
    cn_stream *s;
    cn_fp8_make(x, 1, K, false, codes, scales);
    assert_true(scales[0] > 0 && scales[1] > 0);
    for (size_t i = 0; i < K; i++) {
        assert_true((codes[i] & 0x7f) != 0x7f);
        if (i != 5) assert_int_equal(codes[i], 0);
    }
    memset(ones, cn_fp8_of(1), sizeof ones);
    assert_int_equal(cn_backend_cpu_open(&be, &(cn_cpu_backend_opts){.n_threads = 1}), CN_OK);
    assert_int_equal(be->stream_create(be, CN_PRIORITY_HIGH, &s), CN_OK);
    for (size_t i = 0; i < 2; i++) {
        const cn_gemm_args a = {.out = &out,
                                .x = x,
                                .rounded = rounded,
                                .weight = {.data = ones,
                                           .form = CN_MATRIX_FP8,
                                           .x = forms[i],
                                           .scales = &one,
                                           .scale_n = 1,
                                           .scale_k = K},
                                .n_tokens = 1,
                                .n = 1,
                                .k = K};
        assert_int_equal(be->gemm(s, &a), CN_OK);
        assert_true(fabsf(out) <= 2e-43F);
    }
    be->stream_free(s);
    be->close(be);
}

typedef struct loaded {
    cn_model_config c;
    cn_backend *be;
    cn_stream *s;
    cn_checkpoint *ck;
    cn_weights *w;
    void *memory;
} loaded;

/* Loads a plain checkpoint with --quantization fp8. */
static loaded load_as_fp8(const char *dir)
{
    loaded l = {0};
    cn_config *options = cn_config_create();
    assert_non_null(options);
    assert_int_equal(cn_config_set(options, "quantization", "fp8"), CN_OK);
    assert_int_equal(cn_model_config_load(&l.c, dir), CN_OK);
    assert_int_equal(cn_quant_choose(&l.c, options), CN_OK);
    cn_config_free(options);
    assert_int_equal(cn_backend_cpu_open(&l.be, &(cn_cpu_backend_opts){.n_threads = 1}), CN_OK);
    assert_int_equal(l.be->stream_create(l.be, CN_PRIORITY_HIGH, &l.s), CN_OK);
    assert_int_equal(cn_checkpoint_open(&l.ck, dir, &l.c, CN_OPT_LOAD_AUTO, 0), CN_OK);
    assert_int_equal(l.be->mem_alloc(l.be, cn_weights_bytes(&l.c, l.be), &l.memory), CN_OK);
    assert_int_equal(cn_weights_load(&l.w, l.be, l.s, l.ck, l.memory), CN_OK);
    return l;
}

static void unload(loaded *l)
{
    cn_checkpoint_close(l->ck);
    cn_weights_free(l->w);
    l->be->mem_free(l->be, l->memory);
    l->be->stream_free(l->s);
    l->be->close(l->be);
}

/* A checkpoint made FP8 at load has the values of its blocks. */
static void blocks_are_made_at_load(void **state)
{
    (void)state;
    static const char dir[] = "tests/golden/models/qwen3-d80-f32";
    cn_model_config plain;
    loaded l = load_as_fp8(dir);
    assert_int_equal(cn_model_config_load(&plain, dir), CN_OK);
    const uint64_t plain_bytes = cn_weights_bytes(&plain, l.be);
    const double plain_step = cn_weights_step_bytes(&plain, l.be, 1);
    const uint64_t params = 2 * (480 * 32 + 32 * 160 + 3 * 64 * 32);
    const uint64_t bytes = cn_weights_bytes(&l.c, l.be);
    assert_int_equal(cn_model_config_n_fp8(&l.c, 1), params);
    /* Rows of 32 and 64 columns take 128 bytes, those of 160 take 256. */
    const uint64_t padded = 2 * (480 * 128 + 32 * 256 + 2 * 64 * 128 + 32 * 128);
    assert_in_range(bytes, plain_bytes - 4 * params + padded,
                    plain_bytes - 4 * params + padded + 8192);
    assert_true(cn_weights_step_bytes(&l.c, l.be, 1) <
                plain_step - 4 * (double)params + (double)padded + 8192);
    const cn_matrix m = cn_weights_matrix(l.w, CN_W_QKV, 1);
    assert_int_equal(m.form, CN_MATRIX_FP8);
    assert_int_equal(m.scale_n, 32); /* parts of 160 rows */
    size_t n_parts, n_checked = 0;
    const cn_weight_part *parts = cn_checkpoint_parts(l.ck, &n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].id != CN_W_QKV || parts[i].layer != 1) continue;
        float x[160 * 32], scales[2];
        uint8_t codes[160 * 32];
        cn_checkpoint_read(l.ck, &parts[i], 0, 160 * 32, CN_F32, x);
        cn_fp8_make(x, 160, 32, false, codes, scales);
        for (size_t r = 0; r < 160; r++) {
            const size_t row = parts[i].first_elem / 32 + r;
            const uint8_t *got = (const uint8_t *)m.data + row * m.stride, zeros[128 - 32] = {0};
            assert_memory_equal(got, codes + r * 32, 32);
            assert_memory_equal(got + 32, zeros, sizeof zeros);
            assert_true(m.scales[row / 32] == scales[r / 128]);
        }
        n_checked++;
    }
    assert_int_equal(n_checked, 3);
    assert_int_equal(cn_weights_matrix(l.w, CN_W_LM_HEAD, 0).form, CN_MATRIX_PLAIN);
    unload(&l);
}

/* Those of latent attention too, but kv_b: heads_gemm multiplies plain values. */
static void blocks_of_latent_attention_are_made_at_load(void **state)
{
    (void)state;
    static const cn_weight_id ids[] = {CN_W_Q_A, CN_W_Q, CN_W_KV_A, CN_W_O};
    loaded l = load_as_fp8("tests/golden/models/deepseek-v3-moe-bf16");
    uint64_t n_fp8 = 0, n_other = 0, rows, cols;
    for (uint32_t layer = 0; layer < l.c.n_layers; layer++)
        for (cn_weight_id id = 0; id < CN_W_COUNT; id++) {
            cn_weight_shape(&l.c, id, layer, &rows, &cols);
            const bool fp8 = cn_weights_matrix(l.w, id, layer).form == CN_MATRIX_FP8;
            *(fp8 ? &n_fp8 : &n_other) += rows * cols;
        }
    assert_int_equal(cn_model_config_n_fp8(&l.c, UINT32_MAX), n_fp8);
    assert_true(n_other > 0);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_int_equal(cn_weights_matrix(l.w, ids[i], 1).form, CN_MATRIX_FP8);
    assert_int_equal(cn_weights_matrix(l.w, CN_W_KV_B, 1).form, CN_MATRIX_PLAIN);
    unload(&l);
}

/* The blocks of each expert's gate, up and down are made alone, of one tensor of all too. */
static void blocks_of_experts_are_made_at_load(void **state)
{
    (void)state;
    enum { H = 32, INTER = 16, EXPERTS = 5 };
    static const struct {
        cn_weight_id id;
        uint32_t rows, cols, each; /* of the matrix; rows that have blocks of their own */
    } matrices[] = {{CN_W_EXPERT_GATE_UP, EXPERTS * 2 * INTER, H, INTER},
                    {CN_W_EXPERT_DOWN, EXPERTS * H, INTER, H}};
    loaded l = load_as_fp8("tests/golden/models/qwen3-moe-fused-f32");
    const uint64_t each = 3 * H * INTER, attention = 4 * H * 16 + 2 * H * 16;
    assert_int_equal(cn_model_config_n_fp8(&l.c, UINT32_MAX), 2 * (EXPERTS * each + attention));
    assert_int_equal(cn_model_config_n_fp8(&l.c, 1), 2 * (3 * each + attention));
    for (size_t i = 0; i < 2; i++) {
        const cn_matrix m = cn_weights_matrix(l.w, matrices[i].id, 1);
        assert_int_equal(m.form, CN_MATRIX_FP8);
        size_t n_parts, n_checked = 0;
        const cn_weight_part *parts = cn_checkpoint_parts(l.ck, &n_parts);
        for (size_t p = 0; p < n_parts; p++) {
            if (parts[p].id != matrices[i].id || parts[p].layer != 1) continue;
            for (uint32_t row = 0; row < matrices[i].rows; row += matrices[i].each) {
                const uint32_t cols = matrices[i].cols, n = matrices[i].each * cols;
                float x[H * H], scale;
                uint8_t codes[H * H];
                cn_checkpoint_read(l.ck, &parts[p], (uint64_t)row * cols, n, CN_F32, x);
                cn_fp8_make(x, matrices[i].each, cols, false, codes, &scale);
                for (uint32_t r = 0; r < matrices[i].each; r++)
                    assert_memory_equal((const uint8_t *)m.data + (row + r) * m.stride,
                                        codes + r * cols, cols);
                assert_true(m.scales[row / m.scale_n] == scale);
                n_checked++;
            }
        }
        assert_int_equal(n_checked, matrices[i].rows / matrices[i].each);
        assert_int_equal(cn_weights_matrix(l.w, CN_W_ROUTER, 1).form, CN_MATRIX_PLAIN);
    }
    unload(&l);
}

/* ---- damaged files ---- */

typedef struct damage {
    const char *model, *tensor;
    const char *words;  /* of the error; NULL: it must load */
    const char *dtype;  /* stored as; NULL: unchanged */
    bool drop, reshape; /* leave it out; store it as a vector */
    uint64_t byte;      /* first of those that are replaced */
    uint8_t value[4];
    uint32_t n_bytes;
} damage;

/* Writes the checkpoint with the damage, and returns the status of loading it. */
static cn_status load_damaged(const damage *d)
{
    char dir[64], from[256], path[300];
    cn_safetensors *s;
    tensor_file f = {0};
    make_folder(dir);
    snprintf(from, sizeof from, "tests/golden/models/%s", d->model);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(cn_safetensors_open(&s, from), CN_OK);
    for (size_t i = 0; i < cn_safetensors_count(s); i++) {
        const cn_st_tensor *t = cn_safetensors_at(s, i);
        const bool hit = strcmp(t->name, d->tensor) == 0;
        uint8_t *data = room(t->n_bytes, 1);
        memcpy(data, t->data, t->n_bytes);
        if (hit) memcpy(data + d->byte, d->value, d->n_bytes);
        const bool flat = hit && d->reshape;
        const uint64_t stack = t->n_dims == 3 ? t->shape[0] : 0;
        const uint64_t rows = t->n_dims >= 2 ? t->shape[t->n_dims - 2] : 0;
        const uint64_t cols = t->n_dims == 0 ? 1 : t->shape[t->n_dims - 1];
        const uint64_t n = (stack ? stack : 1) * (rows ? rows : 1) * cols;
        const char *dtype = hit && d->dtype ? d->dtype : cn_st_dtype_name(t->dtype);
        const uint64_t n_bytes = strcmp(dtype, "F8_E4M3") == 0 ? n : t->n_bytes;
        if (!hit || !d->drop)
            tensor_file_add_stack(&f, t->name, dtype, flat ? 0 : stack, flat ? 0 : rows,
                                  flat ? n : cols, data, n_bytes);
        free(data);
    }
    tensor_file_write(&f, path);
    tensor_file_free(&f);
    cn_safetensors_close(s);

    cn_model_config c;
    cn_backend *be;
    cn_stream *stream;
    cn_checkpoint *ck = NULL;
    cn_weights *w = NULL;
    void *memory;
    assert_int_equal(cn_model_config_load(&c, from), CN_OK);
    assert_int_equal(cn_backend_cpu_open(&be, &(cn_cpu_backend_opts){.n_threads = 1}), CN_OK);
    assert_int_equal(be->stream_create(be, CN_PRIORITY_HIGH, &stream), CN_OK);
    assert_int_equal(be->mem_alloc(be, cn_weights_bytes(&c, be), &memory), CN_OK);
    cn_status status = cn_checkpoint_open(&ck, dir, &c, CN_OPT_LOAD_AUTO, 0);
    if (status == CN_OK) status = cn_weights_load(&w, be, stream, ck, memory);
    cn_weights_free(w);
    cn_checkpoint_close(ck);
    be->mem_free(be, memory);
    be->stream_free(stream);
    be->close(be);
    remove_folder(dir);
    return status;
}

#define LAYER "model.layers.0.mlp.down_proj."
#define BLOCK_SCALE LAYER "weight_scale_inv"
#define EXPERT "model.layers.3.mlp.experts.2.up_proj."
#define FUSED "model.layers.1.mlp.experts.gate_up_proj"

static void damaged_files_are_refused_by_name(void **state)
{
    (void)state;
    const damage cases[] = {
        {"fp8-block", "", NULL, .drop = false},
        {"fp8-block", BLOCK_SCALE, "its scale is missing: expected " BLOCK_SCALE, .drop = true},
        {"fp8-block", BLOCK_SCALE, "tensor " BLOCK_SCALE ": expected shape [2, 2], of blocks",
         .reshape = true},
        {"fp8-block", BLOCK_SCALE, "tensor " BLOCK_SCALE ": expected dtype F32", .dtype = "I32"},
        {"fp8-block", BLOCK_SCALE, "tensor " BLOCK_SCALE ": element 1 is nan", .byte = 4,
         .value = {0, 0, 0xc0, 0x7f}, .n_bytes = 4},
        {"fp8-block", BLOCK_SCALE, "tensor " BLOCK_SCALE ": element 0 is inf",
         .value = {0, 0, 0x80, 0x7f}, .n_bytes = 4},
        {"fp8-block", BLOCK_SCALE, "element 3 is -1", .byte = 12, .value = {0, 0, 0x80, 0xbf},
         .n_bytes = 4},
        {"fp8-block", BLOCK_SCALE, "element 2 is 0 for weights that are not zero", .byte = 8,
         .n_bytes = 4},
        {"fp8-block-ue8m0", BLOCK_SCALE, "element 0 is nan", .value = {255}, .n_bytes = 1},
        {"fp8-block", LAYER "weight", "row 1 of the tensor has the e4m3 value NaN", .byte = 300,
         .value = {0x7f}, .n_bytes = 1},
        {"fp8-channel", LAYER "weight", "row 0 of the tensor has the e4m3 value NaN",
         .value = {0xff}, .n_bytes = 1},
        {"fp8-block", LAYER "weight", "config.json says that it is FP8", .dtype = "I8"},
        {"fp8-channel", LAYER "weight_scale", NULL, .reshape = true},
        {"fp8-channel", LAYER "weight_scale", "expected " LAYER "weight_scale_inv or ",
         .drop = true},
        {"fp8-tensor", LAYER "weight", "expected shape [80, 144] from", .reshape = true},
        {"fp8-tensor", LAYER "input_scale", "expected " LAYER "input_scale", .drop = true},
        {"fp8-tensor", LAYER "input_scale", "tensor " LAYER "input_scale: element 0 is 0",
         .n_bytes = 4},
        {"fp8-block", "model.layers.1.self_attn.o_proj.weight",
         "o_proj.weight: expected dtype F32, BF16 or F16, got I16", .dtype = "I16"},
        {"fp8-block", "model.embed_tokens.weight",
         "embed_tokens.weight: expected dtype F32, BF16 or F16, got F8_E4M3: FP8 of the embedding "
         "and of lm_head is not supported: use a checkpoint",
         .dtype = "F8_E4M3"},
        {"fp8-block", "model.layers.1.self_attn.o_proj.weight",
         "got F8_E4M3: config.json does not say that this tensor is FP8", .dtype = "F8_E4M3"},
        {"fp8-moe-block", EXPERT "weight_scale_inv",
         "its scale is missing: expected " EXPERT "weight_scale_inv", .drop = true},
        {"fp8-moe-block", EXPERT "weight_scale_inv",
         "tensor " EXPERT "weight_scale_inv: element 1 is nan", .byte = 4,
         .value = {0, 0, 0xc0, 0x7f}, .n_bytes = 4},
        {"fp8-moe-block", EXPERT "weight", "row 0 of the tensor has the e4m3 value NaN",
         .value = {0xff}, .n_bytes = 1},
        {"fp8-moe-fused", FUSED, NULL, .drop = false},
        {"fp8-moe-fused", FUSED "_scale_inv", "its scale is missing: expected " FUSED "_scale_inv",
         .drop = true},
        {"fp8-moe-fused", FUSED "_scale_inv", "expected shape [5, 3, 2], of blocks of 128 x 128",
         .reshape = true},
        {"fp8-moe-fused", FUSED "_scale_inv",
         "tensor " FUSED "_scale_inv: element 29 is 0 for weights that are not zero",
         .byte = 29 * 4, .n_bytes = 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const damage *d = &cases[i];
        const cn_status status = load_damaged(d);
        assert_int_equal(status, d->words ? CN_ERR_MODEL : CN_OK);
        if (d->words && !strstr(cn_last_error(), d->words))
            fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), d->words);
        if (d->words) assert_non_null(strstr(cn_last_error(), strrchr(d->tensor, '.')));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_equals_transformers),
        cmocka_unit_test(rounded_inputs_equal_torch),
        cmocka_unit_test(an_untied_head_is_plain),
        cmocka_unit_test(products_are_sums_of_dequantised_values),
        cmocka_unit_test(made_values_are_the_nearest),
        cmocka_unit_test(tiny_values_make_no_nan),
        cmocka_unit_test(blocks_are_made_at_load),
        cmocka_unit_test(blocks_of_latent_attention_are_made_at_load),
        cmocka_unit_test(blocks_of_experts_are_made_at_load),
        cmocka_unit_test(damaged_files_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
