/* test_biased_keys.c - labels of a checkpoint with large key biases rank as well as those of one
 * without. A bias of a channel that RoPE hardly rotates moves all logits of a query alike, so both
 * checkpoints have the same attention. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/select_file.h"
#include "engine/engine_probe.h"
#include "engine/select/calibrate.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/scratch_dir.h"

/* 2 layers, 1 kv head, 16 channels, rope_theta 1e6. RoPE rotates channels 7 and 15 by 6e-6 a
 * token. */
#define SOURCE "tests/golden/models/qwen2-f16/"
enum { N_LAYERS = 2, N_CHANNELS = 4, N = N_LAYERS * N_CHANNELS, N_PROMPT = 640, N_FORCED = 48 };
enum { PROBE_EVERY = 4, WINDOW = 512 };
#define LARGE_BIAS 211.0f
#define LARGE_BIAS_F16 0x5a98u

static uint32_t tokens[N_PROMPT + N_FORCED];

/* ---- checkpoints ---- */

static void set_biases(cn_buf *shard)
{
    cn_safetensors *st;
    assert_int_equal(cn_safetensors_open_image(&st, shard->data, shard->len, SOURCE), CN_OK);
    for (int l = 0; l < N_LAYERS; l++) {
        static const uint32_t channels[] = {7, 15};
        static const uint16_t values[] = {LARGE_BIAS_F16, LARGE_BIAS_F16 | 0x8000u};
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_proj.bias", l);
        const cn_st_tensor *t = cn_safetensors_find(st, name);
        if (!t) continue;
        assert_true(t->dtype == CN_ST_F16 && t->shape[0] == 16);
        char *data = shard->data + ((const char *)t->data - shard->data);
        for (int i = 0; i < 2; i++) memcpy(data + 2 * channels[i], &values[i], 2);
    }
    cn_safetensors_close(st);
}

static void open_model(scratch_dir *d, bool is_biased)
{
    static const char *const names[] = {
        "config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"};
    scratch_dir_open(d);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        cn_buf file = {0};
        snprintf(path, sizeof path, SOURCE "%s", names[i]);
        assert_int_equal(cn_json_read_file(&file, path, (size_t)1 << 24), CN_OK);
        if (is_biased && i >= 2) set_biases(&file);
        scratch_dir_put(d, names[i], file.data, file.len);
        cn_buf_free(&file);
    }
}

static void write_channels(const scratch_dir *d, const uint16_t *channels, const float *offsets)
{
    cn_model_config m;
    char path[128];
    snprintf(path, sizeof path, "%s/" CN_SELECT_FILE, d->path);
    assert_int_equal(cn_model_config_load(&m, d->path), CN_OK);
    assert_int_equal(cn_select_channels_n(&m), N);
    assert_int_equal(cn_select_channels_write(path, &m, channels, offsets, 1), CN_OK);
}

static void calibrate(const scratch_dir *d, uint16_t *channels, float *offsets)
{
    cn_calibrator *c;
    assert_int_equal(cn_calibrator_create(&c, d->path, WINDOW), CN_OK);
    assert_int_equal(cn_calibrator_add(c, tokens, WINDOW), CN_OK);
    cn_calibrator_result(c, channels, offsets);
    cn_calibrator_free(c);
}

/* ---- what labels find ---- */

typedef struct finding {
    double mass, overlap;
} finding;

static finding measure(const scratch_dir *d)
{
    const char *const options[] = {"model",
                                   d->path,
                                   "tokenizer",
                                   "examples/tiny-reasoner",
                                   "block-size",
                                   "64",
                                   "kv-selectors",
                                   "ds",
                                   "select-tokens",
                                   "64",
                                   "select-dense-layers",
                                   "0",
                                   "kv-cache-memory-bytes",
                                   "16M",
                                   "device",
                                   "cpu",
                                   NULL};
    cn_message m;
    run *r = run_new(options, NULL);
    assert_int_equal(cn_engine_probe_selection(r->engine, PROBE_EVERY), CN_OK);
    cn_request_params p = run_params(r, "", &m, N_FORCED);
    p.messages = NULL;
    p.n_messages = 0;
    p.tokens = tokens;
    p.n_tokens = N_PROMPT;
    p.forced = tokens + N_PROMPT;
    p.n_forced = N_FORCED;
    p.kv.select = CN_SELECT_DS;
    run_submit(r, &p);
    run_finish(r);
    const cn_select_figures f = cn_engine_take_selection(r->engine);
    assert_true(f.units > 20);
    run_free(r);
    return (finding){f.mass / (double)f.units, f.overlap / (double)f.units};
}

static void calibrated_channels_rank_as_well_with_biases(void **state)
{
    (void)state;
    finding found[2];
    for (int i = 0; i < 2; i++) {
        scratch_dir d;
        uint16_t channels[N];
        float offsets[N];
        open_model(&d, i == 1);
        calibrate(&d, channels, offsets);
        write_channels(&d, channels, offsets);
        found[i] = measure(&d);
        scratch_dir_close(&d);
    }
    print_message("mass %.3f, with biases %.3f; overlap %.3f, with biases %.3f\n", found[0].mass,
                  found[1].mass, found[0].overlap, found[1].overlap);
    assert_true(found[1].mass > found[0].mass - 0.02);
    assert_true(found[1].overlap > found[0].overlap - 0.03);
}

/* The biased channels among others, with their bias as offset and without. */
static void an_offset_undoes_a_bias(void **state)
{
    (void)state;
    static const uint16_t channels[N] = {3, 7, 11, 15, 3, 7, 11, 15};
    static const float biases[N] = {0, LARGE_BIAS, 0, -LARGE_BIAS, 0, LARGE_BIAS, 0, -LARGE_BIAS};
    static const float zeros[N] = {0};
    scratch_dir plain, biased;
    open_model(&plain, false);
    open_model(&biased, true);
    write_channels(&plain, channels, zeros);
    write_channels(&biased, channels, biases);
    const finding want = measure(&plain), with = measure(&biased);
    write_channels(&biased, channels, zeros);
    const finding without = measure(&biased);
    print_message("overlap %.3f, with biases %.3f, without offsets %.3f\n", want.overlap,
                  with.overlap, without.overlap);
    assert_true(with.overlap > want.overlap - 0.03 && with.mass > want.mass - 0.02);
    assert_true(without.overlap < want.overlap - 0.1);
    scratch_dir_close(&plain);
    scratch_dir_close(&biased);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calibrated_channels_rank_as_well_with_biases),
        cmocka_unit_test(an_offset_undoes_a_bias),
    };
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        seed = seed * 1664525 + 1013904223;
        tokens[i] = (seed >> 8) % 300;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
