/* test_calibrate.c - channels of the calibrator against those of stored queries and keys, ranked by
 * sums written here; and select.safetensors: what is written is read back, and every kind of
 * invalid file is refused with its path and the way out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/select_file.h"
#include "engine/select/calibrate.h"
#include "tests/lib/model_rig.h"
#include "tests/lib/overflow_model.h"
#include "tests/lib/tensor_file.h"

enum { N_TOKENS = 90, WINDOW = 40 };

/* ---- the calibrator ---- */

/* Queries [layer][t][head][d] and keys [layer][t][kv head][d] of all tokens. */
static struct {
    cn_status (*rope_store)(cn_stream *s, const cn_rope_store_args *a);
    cn_status (*latent_store)(cn_stream *s, const cn_latent_store_args *a);
    const model_rig *rig;
    float *q, *k;
    uint32_t first; /* token of the current window */
} seen;

static cn_status record(cn_stream *s, const cn_rope_store_args *a)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t d = l->head_dim, hk = l->n_kv_heads, b = l->block_tokens;
    CN_TRY(seen.rope_store(s, a));
    for (uint32_t t = 0; t < a->batch->n_tokens; t++) {
        const size_t row = (size_t)a->layer * N_TOKENS + seen.first + t;
        const uint32_t slot = a->batch->kv_slots[t];
        memcpy(seen.q + row * a->n_heads * d, (const float *)a->q + (size_t)t * a->n_heads * d,
               (size_t)a->n_heads * d * sizeof(float));
        for (uint32_t h = 0; h < hk; h++)
            memcpy(seen.k + (row * hk + h) * d,
                   (const char *)a->kv + cn_kv_at(l, a->layer, slot / b, h, slot % b, CN_KV_K),
                   d * sizeof(float));
    }
    return CN_OK;
}

/* q[0:r] times the key matrix of the head, and the rotated elements. */
static void multiply_query(const cn_latent *l, uint32_t layer, uint32_t head, const float *raw,
                           float *q)
{
    const float *matrices = cn_weights_matrix(seen.rig->weights, CN_W_KV_B, layer).data;
    const float *keys = matrices + (size_t)head * (l->nope + l->value) * l->rank;
    for (uint32_t c = 0; c < l->rank; c++) {
        double sum = 0;
        for (uint32_t i = 0; i < l->nope; i++) sum += (double)raw[i] * keys[i * l->rank + c];
        q[c] = (float)sum;
    }
    memcpy(q + l->rank, raw + l->nope, l->rope * sizeof *q);
}

static cn_status record_latent(cn_stream *s, const cn_latent_store_args *a)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t d = l->head_dim, b = l->block_tokens;
    CN_TRY(seen.latent_store(s, a));
    for (uint32_t t = 0; t < a->batch->n_tokens; t++) {
        const size_t row = (size_t)a->layer * N_TOKENS + seen.first + t;
        const uint32_t slot = a->batch->kv_slots[t];
        for (uint32_t h = 0; h < a->n_heads; h++)
            multiply_query(&seen.rig->cfg.latent, a->layer, h,
                           (const float *)a->q + ((size_t)t * a->n_heads + h) * l->query_dim,
                           seen.q + (row * a->n_heads + h) * d);
        memcpy(seen.k + row * d,
               (const char *)a->kv + cn_kv_at(l, a->layer, slot / b, 0, slot % b, CN_KV_K),
               d * sizeof(float));
    }
    return CN_OK;
}

static double key_at(const cn_model_config *m, uint32_t layer, uint32_t t, uint32_t head,
                     uint32_t channel)
{
    const size_t row = (size_t)layer * N_TOKENS + t;
    return (double)seen.k[(row * m->n_kv_heads + head) * m->head_dim + channel];
}

/* The mean of a channel over the tokens [from, to). */
static double mean_of(const cn_model_config *m, uint32_t layer, uint32_t head, uint32_t channel,
                      uint32_t from, uint32_t to)
{
    double sum = 0;
    for (uint32_t t = from; t < to; t++) sum += key_at(m, layer, t, head, channel);
    return sum / (to - from);
}

static double importance(const cn_model_config *m, uint32_t layer, uint32_t head,
                         uint32_t channel)
{
    const uint32_t group = m->n_heads / m->n_kv_heads, d = m->head_dim;
    double sum = 0;
    for (uint32_t g = 0; g < group; g++) {
        double most = 0;
        for (uint32_t t = 0; t < N_TOKENS; t++) {
            const size_t row = (size_t)layer * N_TOKENS + t;
            const double q = seen.q[(row * m->n_heads + head * group + g) * d + channel];
            const uint32_t from = t / WINDOW * WINDOW, to = cn_min_u32(from + WINDOW, N_TOKENS);
            const double k =
                key_at(m, layer, t, head, channel) - mean_of(m, layer, head, channel, from, to);
            most = fmax(most, fabs(q * k));
        }
        sum += most;
    }
    return sum;
}

/* Every chosen channel must be at least as important as every other one. */
static void check_head(const cn_model_config *m, uint32_t layer, uint32_t head,
                       const uint16_t *channels)
{
    double least = INFINITY, most = 0;
    for (uint32_t c = 0, i = 0; c < m->head_dim; c++) {
        const double value = importance(m, layer, head, c);
        if (i < cn_select_channels_each(m) && channels[i] == c) {
            least = fmin(least, value);
            i++;
        } else {
            most = fmax(most, value);
        }
        if (c == m->head_dim - 1) assert_int_equal(i, cn_select_channels_each(m));
    }
    /* Queries that are multiplied here differ in their last bits. */
    assert_true(least >= most * (m->latent.rank > 0 ? 1 - 1e-5 : 1 - 1e-12));
}

static void check_offsets(const cn_model_config *m, uint32_t layer, uint32_t head,
                          const uint16_t *channels, const float *offsets)
{
    for (uint32_t i = 0; i < cn_select_channels_each(m); i++) {
        const double want = mean_of(m, layer, head, channels[i], 0, N_TOKENS);
        assert_true(fabs((double)offsets[i] - want) <= 1e-6 * (1 + fabs(want)));
    }
}

static void check_model(const char *dir)
{
    uint32_t tokens[N_TOKENS];
    model_rig *r = model_rig_open(&(model_rig_opts){.dir = dir, .n_threads = 1,
                                                    .max_tokens = WINDOW, .max_seqs = 1,
                                                    .max_kv_tokens = 64, .block_tokens = 16});
    const cn_model_config m = r->cfg;
    for (uint32_t t = 0; t < N_TOKENS; t++) tokens[t] = (t * t * 7 + 3) % m.vocab;
    seen.q = cn_calloc((size_t)m.n_layers * N_TOKENS * m.n_heads * m.head_dim, sizeof(float));
    seen.k = cn_calloc((size_t)m.n_layers * N_TOKENS * m.n_kv_heads * m.head_dim, sizeof(float));
    seen.rig = r;
    seen.rope_store = r->be->rope_store;
    seen.latent_store = r->be->latent_store;
    r->be->rope_store = record;
    r->be->latent_store = record_latent;
    cn_calibrator *c;
    assert_int_equal(cn_calibrator_create(&c, dir, WINDOW), CN_OK);
    for (seen.first = 0; seen.first < N_TOKENS; seen.first += WINDOW) {
        const uint32_t n = cn_min_u32(WINDOW, N_TOKENS - seen.first);
        model_rig_reset(r, 0);
        model_rig_pass(r, &(model_rig_chunk){0, n, tokens + seen.first}, 1, 0, false);
        assert_int_equal(cn_calibrator_add(c, tokens + seen.first, n), CN_OK);
    }
    assert_int_equal(cn_calibrator_tokens(c), N_TOKENS);
    uint16_t *channels = cn_calloc(cn_select_channels_n(&m), sizeof *channels);
    float *offsets = cn_calloc(cn_select_channels_n(&m), sizeof *offsets);
    cn_calibrator_result(c, channels, offsets);
    for (uint32_t l = 0, n = cn_select_channels_each(&m); l < m.n_layers; l++)
        for (uint32_t h = 0; h < m.n_kv_heads; h++) {
            const uint32_t first = (l * m.n_kv_heads + h) * n;
            check_head(&m, l, h, channels + first);
            check_offsets(&m, l, h, channels + first, offsets + first);
        }
    cn_free(channels);
    cn_free(offsets);
    cn_calibrator_free(c);
    model_rig_close(r);
    cn_free(seen.q);
    cn_free(seen.k);
}

static void the_most_important_channels_are_chosen(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen3-bf16", "qwen3-d80-f32", "llama-f32",
                                         "glm4-lite-moe-bf16", "deepseek-v2-moe-groups-f32"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", models[i]);
        check_model(dir);
    }
}

static void keys_that_overflow_are_refused(void **state)
{
    (void)state;
    static const uint32_t tokens[4] = {5, 6, 7, 8};
    scratch_dir dir;
    overflow_model_open(&dir);
    cn_calibrator *c;
    assert_int_equal(cn_calibrator_create(&c, dir.path, WINDOW), CN_OK);
    assert_int_equal(cn_calibrator_add(c, tokens, 4), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "layer 1, kv head 0: a query or key is infinite"));
    cn_calibrator_free(c);
    scratch_dir_close(&dir);
}

static void windows_above_the_context_are_refused(void **state)
{
    (void)state;
    cn_calibrator *c;
    const char *dir = "examples/tiny-reasoner";
    assert_int_equal(cn_calibrator_create(&c, dir, 9000), CN_ERR_ARG);
    assert_null(c);
    assert_non_null(strstr(cn_last_error(), "--calibrate-len 9000 exceeds the context length"));
    assert_int_equal(cn_calibrator_create(&c, "/nowhere", 16), CN_ERR_IO);
    assert_null(c);
}

/* ---- the file ---- */

static const cn_model_config shape = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
enum { N = 2 * 2 * 4 };
static const float shifts[N] = {0, 1, -2.5f, 211, -0.0f, 1e-9f, 1e30f, 7};
static const uint16_t good[N] = {0, 1, 2, 3, 12, 13, 14, 15, 1, 5, 6, 9, 0, 4, 8, 15};

typedef struct folder {
    char dir[64], path[96];
} folder;

static void open_folder(folder *f)
{
    make_folder(f->dir);
    snprintf(f->path, sizeof f->path, "%s/select.safetensors", f->dir);
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    folder f;
    uint16_t channels[N] = {0};
    float offsets[N];
    open_folder(&f);
    assert_int_equal(cn_select_channels_write(f.path, &shape, good, shifts, 4711), CN_OK);
    assert_int_equal(cn_select_channels_load(f.dir, &shape, channels, offsets), CN_OK);
    assert_memory_equal(channels, good, sizeof good);
    assert_memory_equal(offsets, shifts, sizeof shifts);
    char text[1024];
    FILE *file = fopen(f.path, "rb");
    assert_non_null(file);
    const size_t n = fread(text, 1, sizeof text, file);
    fclose(file);
    uint64_t length;
    memcpy(&length, text, sizeof length);
    assert_int_equal(length % 8, 0);
    assert_int_equal(n, 8 + length + sizeof shifts + N);
    text[8 + length] = '\0';
    assert_non_null(strstr(text + 8, "{\"importance\":\"max\",\"tokens\":\"4711\"}"));
    assert_int_equal(cn_select_channels_write("/nowhere/x", &shape, good, shifts, 1),
                     CN_ERR_IO);
    remove_folder(f.dir);
}

/* Numbers above 255 are written in two bytes. */
static void channels_of_wide_rows_are_read_back(void **state)
{
    (void)state;
    enum { WIDE = 128 };
    const cn_model_config m = {
        .n_layers = 1, .n_heads = 20, .n_kv_heads = 1, .head_dim = 576, .latent = {.rank = 512}};
    folder f;
    uint16_t wide[WIDE], channels[WIDE] = {0};
    float offsets[WIDE] = {0}, read[WIDE];
    open_folder(&f);
    for (uint32_t i = 0; i < WIDE; i++) wide[i] = (uint16_t)(i * 4 + i / 2);
    assert_int_equal(cn_select_channels_n(&m), WIDE);
    assert_int_equal(cn_select_channels_write(f.path, &m, wide, offsets, 9), CN_OK);
    assert_int_equal(cn_select_channels_load(f.dir, &m, channels, read), CN_OK);
    assert_memory_equal(channels, wide, sizeof wide);
    wide[WIDE - 1] = 576;
    assert_int_equal(cn_select_channels_write(f.path, &m, wide, offsets, 9), CN_OK);
    assert_int_equal(cn_select_channels_load(f.dir, &m, channels, read), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "expected channels below head_dim 576, got 576"));
    remove_folder(f.dir);
}

static void expect_refusal(const folder *f, const cn_model_config *m, const char *words)
{
    uint16_t channels[2 * N];
    float offsets[2 * N];
    char command[128];
    snprintf(command, sizeof command, ": run cinch calibrate --model %s --text FILES", f->dir);
    assert_int_equal(cn_select_channels_load(f->dir, m, channels, offsets), CN_ERR_MODEL);
    const char *why = cn_last_error();
    if (!strstr(why, words) || !strstr(why, f->path) || !strstr(why, command))
        fail_msg("\"%s\" lacks \"%s\", the path or the command", why, words);
}

/* A file of an earlier version has no offsets. */
static void a_file_without_offsets_has_offsets_0(void **state)
{
    (void)state;
    folder f;
    cn_buf image = {0};
    uint16_t channels[N];
    float offsets[N];
    static const char header[] =
        "{\"channels\":{\"dtype\":\"U8\",\"shape\":[2,2,4],\"data_offsets\":[0,16]}}";
    open_folder(&f);
    tensor_file_raw(&image, header, N);
    for (uint32_t i = 0; i < N; i++) image.data[image.len - N + i] = (char)good[i];
    write_file(f.path, image.data, image.len);
    memset(offsets, 0xff, sizeof offsets);
    assert_int_equal(cn_select_channels_load(f.dir, &shape, channels, offsets), CN_OK);
    assert_memory_equal(channels, good, sizeof good);
    for (uint32_t i = 0; i < N; i++) assert_true(offsets[i] == 0);
    cn_buf_free(&image);
    remove_folder(f.dir);
}

/* Writes the file with another dtype and shape. */
static void put_tensor(const folder *f, const char *name, const char *dtype, const char *dims,
                       size_t n_bytes)
{
    char header[256];
    cn_buf image = {0};
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%zu]}}", name, dtype,
             dims, n_bytes);
    tensor_file_raw(&image, header, n_bytes);
    write_file(f->path, image.data, image.len);
    cn_buf_free(&image);
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    expect_refusal(&f, &shape, "the file is missing");
    write_file(f.path, "short", 5);
    expect_refusal(&f, &shape, "too few for a safetensors file");
    put_tensor(&f, "other", "U8", "2,2,4", N);
    expect_refusal(&f, &shape, "expected a tensor channels");
    put_tensor(&f, "channels", "I8", "2,2,4", N);
    expect_refusal(&f, &shape, "expected U8 [2, 2, 4], got I8 [2, 2, 4]");
    put_tensor(&f, "channels", "U8", "4,4", N);
    expect_refusal(&f, &shape, "expected U8 [2, 2, 4], got U8 [4, 4]");
    put_tensor(&f, "channels", "U8", "2,2,4,1", N);
    expect_refusal(&f, &shape, "got U8 [2, 2, 4, 1]");
    assert_int_equal(cn_select_channels_write(f.path, &shape, good, shifts, 1), CN_OK);
    float bad[N] = {0};
    bad[5] = NAN;
    assert_int_equal(cn_select_channels_write(f.path, &shape, good, bad, 1), CN_OK);
    expect_refusal(&f, &shape, "offsets: element 5 is infinite or NaN");
    cn_model_config other = shape;
    other.head_dim = 32;
    expect_refusal(&f, &other, "expected U8 [2, 2, 8], got U8 [2, 2, 4]");
    other = shape;
    other.n_layers = 1;
    expect_refusal(&f, &other, "expected U8 [1, 2, 4]");
    remove_folder(f.dir);
}

static void wrong_channels_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t at;
        uint16_t value;
        const char *words;
    } faults[] = {
        {3, 16, "layer 0, kv head 0: expected channels below head_dim 16, got 16"},
        {15, 255, "layer 1, kv head 1: expected channels below head_dim 16, got 255"},
        {9, 1, "layer 1, kv head 0: expected ascending channels, got 1 after 1"},
        {7, 3, "layer 0, kv head 1: expected ascending channels, got 3 after 14"},
    };
    folder f;
    open_folder(&f);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint16_t bad[N];
        memcpy(bad, good, sizeof bad);
        bad[faults[i].at] = faults[i].value;
        assert_int_equal(cn_select_channels_write(f.path, &shape, bad, shifts, 1), CN_OK);
        expect_refusal(&f, &shape, faults[i].words);
    }
    remove_folder(f.dir);
}

/* A file cut at any byte, or with a changed byte, is refused or has valid channels. */
static void damaged_files_are_refused(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    assert_int_equal(cn_select_channels_write(f.path, &shape, good, shifts, 99), CN_OK);
    unsigned char image[1024];
    FILE *file = fopen(f.path, "rb");
    assert_non_null(file);
    const size_t n = fread(image, 1, sizeof image, file);
    fclose(file);
    for (size_t cut = 0; cut < n; cut++) {
        write_file(f.path, image, cut);
        expect_refusal(&f, &shape, f.path);
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t channels[N];
        float offsets[N];
        image[i] ^= 0x10;
        write_file(f.path, image, n);
        image[i] ^= 0x10;
        if (cn_select_channels_load(f.dir, &shape, channels, offsets) != CN_OK) continue;
        for (uint32_t j = 0; j < N; j++)
            assert_true(isfinite(offsets[j]) && channels[j] < 16 &&
                        (j % 4 == 0 || channels[j] > channels[j - 1]));
    }
    remove_folder(f.dir);
}

/* The files of the bundled checkpoints fit their models. */
static void bundled_files_are_valid(void **state)
{
    (void)state;
    static const char *const dirs[] = {"examples/tiny-reasoner", "examples/prose-base"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/config.json", dirs[i]);
        FILE *present = fopen(path, "r");
        if (!present) {
            print_message("skipped: %s is missing\n", dirs[i]);
            continue;
        }
        fclose(present);
        cn_model_config m;
        assert_int_equal(cn_model_config_load(&m, dirs[i]), CN_OK);
        uint16_t *channels = cn_calloc(cn_select_channels_n(&m), sizeof *channels);
        float *offsets = cn_calloc(cn_select_channels_n(&m), sizeof *offsets);
        if (cn_select_channels_load(dirs[i], &m, channels, offsets) != CN_OK)
            fail_msg("%s", cn_last_error());
        cn_free(channels);
        cn_free(offsets);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_important_channels_are_chosen),
        cmocka_unit_test(keys_that_overflow_are_refused),
        cmocka_unit_test(windows_above_the_context_are_refused),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(channels_of_wide_rows_are_read_back),
        cmocka_unit_test(a_file_without_offsets_has_offsets_0),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(wrong_channels_are_refused),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(bundled_files_are_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
