/* select_file.h - select.safetensors: the channels of each kv head that labels are made of, and the
 * offsets that are subtracted from them. `cinch calibrate` writes it beside the weights.
 *
 * Owner: the caller. Thread: any. Stage: start.
 *
 * The file has two tensors. `channels` [n_layers, n_kv_heads, n], n of cn_select_channels_each, has
 * for each head different channel numbers, ascending: U8, or U16 where keys have more than 256
 * elements. `offsets` F32 of the same shape has a number for each of them; a file without it has
 * offsets 0. Its metadata have the rule that ranked the channels, `max`, and the number of tokens
 * it was measured on. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "paged/planes.h"

#define CN_SELECT_FILE "select.safetensors"

/* Channels of a kv head. */
static inline uint32_t cn_select_channels_each(const cn_model_config *m)
{
    return m->latent.rank > 0 ? cn_latent_label_channels(m->head_dim)
                              : cn_label_channels(m->head_dim);
}

/* Returns whether a channel number needs more than a byte. */
static inline bool cn_select_channels_are_wide(const cn_model_config *m)
{
    return m->head_dim > UINT8_MAX + 1;
}

/* Channels of all kv heads: the elements of the arrays below. */
static inline size_t cn_select_channels_n(const cn_model_config *m)
{
    return (size_t)m->n_layers * m->n_kv_heads * cn_select_channels_each(m);
}

/* Reads dir/select.safetensors into channels and offsets [n_layers, n_kv_heads, n].
 * CN_ERR_MODEL names the file, what was expected, and the command that writes it. */
cn_status cn_select_channels_load(const char *dir, const cn_model_config *m, uint16_t *channels,
                                  float *offsets);

/* Writes such a file. n_tokens goes into the metadata. CN_ERR_IO names the path. */
cn_status cn_select_channels_write(const char *path, const cn_model_config *m,
                                   const uint16_t *channels, const float *offsets,
                                   uint64_t n_tokens);

/* Writes n channel numbers as the bytes that the file and a device have of them: one or two each.
 * Returns the number of bytes. `out` may be `channels`. */
size_t cn_select_channels_pack(const cn_model_config *m, const uint16_t *channels, void *out);
