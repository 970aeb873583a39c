/* select_file.h - select.safetensors: the channels of each kv head that labels are made of, and the
 * offsets that are subtracted from them. `cinch calibrate` writes it beside the weights.
 *
 * Owner: the caller. Thread: any. Stage: start.
 *
 * The file has two tensors. `channels` U8 [n_layers, n_kv_heads, head_dim / 4] has for each head
 * different channel numbers, ascending. `offsets` F32 of the same shape has a number for each of
 * them; a file without it has offsets 0. Its metadata have the rule that ranked the channels,
 * `max`, and the number of tokens it was measured on. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "paged/planes.h"

#define CN_SELECT_FILE "select.safetensors"

/* Channels of all kv heads: the elements of the arrays below. */
static inline size_t cn_select_channels_n(const cn_model_config *m)
{
    return (size_t)m->n_layers * m->n_kv_heads * cn_label_channels(m->head_dim);
}

/* Reads dir/select.safetensors into channels and offsets [n_layers, n_kv_heads, head_dim / 4].
 * CN_ERR_MODEL names the file, what was expected, and the command that writes it. */
cn_status cn_select_channels_load(const char *dir, const cn_model_config *m, uint8_t *channels,
                                  float *offsets);

/* Writes such a file. n_tokens goes into the metadata. CN_ERR_IO names the path. */
cn_status cn_select_channels_write(const char *path, const cn_model_config *m,
                                   const uint8_t *channels, const float *offsets,
                                   uint64_t n_tokens);
