/* select_file.c - see select_file.h. */
#include "engine/checkpoint/select_file.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/replace_file.h"
#include "engine/checkpoint/safetensors.h"

enum { MAX_BYTES = 16 << 20, HEADER_BYTES = 512, HEADER_STEP = 8, TEXT_BYTES = 512 };

static cn_status check_head(const char *path, const uint16_t *channels, const cn_model_config *m,
                            uint32_t layer, uint32_t head)
{
    for (uint32_t i = 0; i < cn_select_channels_each(m); i++) {
        if (channels[i] >= m->head_dim)
            return cn_fail(CN_ERR_MODEL,
                           "%s: layer %u, kv head %u: expected channels below head_dim %u, got %u",
                           path, layer, head, m->head_dim, channels[i]);
        if (i > 0 && channels[i] <= channels[i - 1])
            return cn_fail(CN_ERR_MODEL,
                           "%s: layer %u, kv head %u: expected ascending channels, got %u after %u",
                           path, layer, head, channels[i], channels[i - 1]);
    }
    return CN_OK;
}

static cn_status check_tensor(const char *path, const cn_st_tensor *t, const char *name,
                              cn_st_dtype dtype, const cn_model_config *m)
{
    const uint32_t n = cn_select_channels_each(m);
    char shape[64];
    if (t->dtype != dtype || t->n_dims != 3 || t->shape[0] != m->n_layers ||
        t->shape[1] != m->n_kv_heads || t->shape[2] != n)
        return cn_fail(CN_ERR_MODEL, "%s: %s: expected %s [%u, %u, %u], got %s %s", path, name,
                       cn_st_dtype_name(dtype), m->n_layers, m->n_kv_heads, n,
                       cn_st_dtype_name(t->dtype), cn_st_shape_text(t, shape, sizeof shape));
    return CN_OK;
}

static cn_status read_select_channels(const char *path, const cn_safetensors *file,
                                      const cn_model_config *m, uint16_t *channels)
{
    const cn_st_tensor *t = cn_safetensors_find(file, "channels");
    const uint32_t n = cn_select_channels_each(m);
    const bool wide = cn_select_channels_are_wide(m);
    if (!t) return cn_fail(CN_ERR_MODEL, "%s: expected a tensor channels, got none", path);
    CN_TRY(check_tensor(path, t, "channels", wide ? CN_ST_U16 : CN_ST_U8, m));
    const uint8_t *bytes = t->data;
    for (size_t i = 0; i < cn_select_channels_n(m); i++)
        channels[i] = (uint16_t)(wide ? bytes[2 * i] | bytes[2 * i + 1] << 8 : bytes[i]);
    for (uint32_t l = 0; l < m->n_layers; l++)
        for (uint32_t h = 0; h < m->n_kv_heads; h++)
            CN_TRY(check_head(path, channels + ((size_t)l * m->n_kv_heads + h) * n, m, l, h));
    return CN_OK;
}

static cn_status read_offsets(const char *path, const cn_safetensors *file,
                              const cn_model_config *m, float *offsets)
{
    const size_t n = cn_select_channels_n(m);
    const cn_st_tensor *t = cn_safetensors_find(file, "offsets");
    memset(offsets, 0, n * sizeof *offsets);
    if (!t) return CN_OK;
    CN_TRY(check_tensor(path, t, "offsets", CN_ST_F32, m));
    memcpy(offsets, t->data, t->n_bytes);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(offsets[i]))
            return cn_fail(CN_ERR_MODEL, "%s: offsets: element %zu is infinite or NaN", path, i);
    return CN_OK;
}

static cn_status read_select_file(const char *path, const cn_model_config *m, uint16_t *channels,
                                  float *offsets)
{
    cn_buf image = {0};
    cn_safetensors *file = NULL;
    if (access(path, F_OK) != 0) return cn_fail(CN_ERR_MODEL, "%s: the file is missing", path);
    cn_status status = cn_json_read_file(&image, path, MAX_BYTES);
    if (status == CN_OK) status = cn_safetensors_open_image(&file, image.data, image.len, path);
    if (status == CN_OK) status = read_select_channels(path, file, m, channels);
    if (status == CN_OK) status = read_offsets(path, file, m, offsets);
    cn_safetensors_close(file);
    cn_buf_free(&image);
    return status;
}

cn_status cn_select_channels_load(const char *dir, const cn_model_config *m, uint16_t *channels,
                                  float *offsets)
{
    char why[TEXT_BYTES];
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/" CN_SELECT_FILE, dir));
    cn_status status = read_select_file(path.data, m, channels, offsets);
    cn_buf_free(&path);
    if (status == CN_OK || status == CN_ERR_MEMORY) return status;
    snprintf(why, sizeof why, "%s", cn_last_error());
    return cn_fail(CN_ERR_MODEL, "%s: run cinch calibrate --model %s --text FILES", why, dir);
}

size_t cn_select_channels_pack(const cn_model_config *m, const uint16_t *channels, void *out)
{
    const size_t n = cn_select_channels_n(m);
    uint8_t *bytes = out;
    if (cn_select_channels_are_wide(m)) {
        memmove(out, channels, n * sizeof *channels);
        return n * sizeof *channels;
    }
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)channels[i];
    return n;
}

cn_status cn_select_channels_write(const char *path, const cn_model_config *m,
                                   const uint16_t *channels, const float *offsets,
                                   uint64_t n_tokens)
{
    char header[HEADER_BYTES];
    const size_t n_elems = cn_select_channels_n(m), n_offsets = n_elems * sizeof *offsets;
    const uint32_t n_each = cn_select_channels_each(m);
    uint16_t *packed = cn_calloc(n_elems, sizeof *packed);
    if (!packed) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for the channels", path);
    const size_t n_bytes = cn_select_channels_pack(m, channels, packed);
    /* The offsets come first, so that they are aligned. */
    size_t n = (size_t)snprintf(
        header, sizeof header,
        "{\"__metadata__\":{\"importance\":\"max\",\"tokens\":\"%" PRIu64 "\"},\"channels\":{"
        "\"dtype\":\"%s\",\"shape\":[%u,%u,%u],\"data_offsets\":[%zu,%zu]},\"offsets\":{"
        "\"dtype\":\"F32\",\"shape\":[%u,%u,%u],\"data_offsets\":[0,%zu]}}",
        n_tokens, cn_select_channels_are_wide(m) ? "U16" : "U8", m->n_layers, m->n_kv_heads, n_each,
        n_offsets, n_offsets + n_bytes, m->n_layers, m->n_kv_heads, n_each, n_offsets);
    CN_ASSERT(n + HEADER_STEP <= sizeof header);
    while (n % HEADER_STEP) header[n++] = ' ';
    const uint64_t length = n;
    cn_buf image = {0};
    cn_status status = cn_buf_add(&image, &length, sizeof length);
    if (status == CN_OK) status = cn_buf_add(&image, header, n);
    if (status == CN_OK) status = cn_buf_add(&image, offsets, n_offsets);
    if (status == CN_OK) status = cn_buf_add(&image, packed, n_bytes);
    if (status == CN_OK) status = cn_replace_file(path, image.data, image.len);
    cn_buf_free(&image);
    cn_free(packed);
    return status;
}
