/* eagle_head.h - an EAGLE-3 file in the place of a retrieval head. Such files have other names for
 * the tensors, and name neither RoPE nor the model they were trained for.
 *
 * Owner: the caller. Thread: any. Stage: start. Used by retrieval_file.c alone.
 *
 * What is read, as published: `midlayer.` or `layers.0.` before input_layernorm.weight,
 * hidden_norm.weight, self_attn.q_proj.weight and self_attn.k_proj.weight, and fc.weight. The rest
 * of the draft model is not used. The head reads the model's own embeddings.
 *
 * retrieval.json beside it is the config.json that was published with it. Without one, rope_theta
 * is that of the model, and the head was trained on CN_EAGLE_CONTEXT positions. hidden_layers are
 * 2, half and the number of layers less 3, or what follows the layers of
 * eagle_config.eagle_aux_hidden_state_layer_ids. Norms use the rms_norm_eps of the model. */
#pragma once

#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/safetensors.h"

enum { CN_EAGLE_CONTEXT = 2048 };

/* The names of the parts CN_HEAD_* of a retrieval head; NULL: the file is not one of EAGLE-3. */
const char *const *cn_eagle_names(const cn_safetensors *s);

/* Checks names and vocabulary of dir/retrieval.safetensors, `path` in errors, and sets all of *head
 * but n_heads. CN_ERR_MODEL names the file, what was expected and what there is. */
cn_status cn_eagle_read(cn_draft_head *head, const cn_safetensors *s, const char *dir,
                        const char *path, const cn_model_config *m);
