/* retrieval_file.h - retrieval.safetensors: the retrieval head of selector `spec` (SELECTION.md
 * §9). examples/retrieval/train.py writes it beside the weights.
 *
 * Owner: the caller. Thread: any. Stage: start.
 *
 * Tensors, F32, BF16 or F16, with the hidden size h and the kv heads of the model:
 *   norm.weight         [h]         RMS norm of the embedding of a token
 *   q_proj.weight       [hq * d, w] any multiple of the kv heads; w is h, or 2 h with hidden layers
 *   k_proj.weight       [hk * d, w]
 *   fc.weight           [h, 3 h]    only with hidden layers: fuses their states
 *   hidden_norm.weight  [h]         only with hidden layers: RMS norm of the fused state
 * Metadata, all required:
 *   hidden_layers  "[]": the head reads embeddings alone. Three layers, ascending: also the states
 *                  that entered them when they ran for the token before.
 *   head_dim, rope_theta, context  d, and the positions it was trained on
 *   base           16 hexadecimal digits: cn_file_sum_weights of the model it was trained for
 * An EAGLE-3 file is taken in its place, with a warning (eagle_head.h). */
#pragma once

#include "engine/checkpoint/checkpoint.h"

#define CN_RETRIEVAL_FILE "retrieval.safetensors"
#define CN_RETRIEVAL_CONFIG "retrieval.json" /* of an EAGLE-3 file */

typedef struct cn_retrieval_file cn_retrieval_file;

/* Opens dir/retrieval.safetensors and checks it. With dummy weights no file is read: the head has
 * the shape of the model's attention. CN_ERR_MODEL names the file, what was expected and, if there
 * is none, what writes it. */
cn_status cn_retrieval_open(cn_retrieval_file **out, const char *dir, const cn_model_config *m,
                            cn_opt_load_format format);
void cn_retrieval_close(cn_retrieval_file *f); /* NULL is fine */

const cn_draft_head *cn_retrieval_head(const cn_retrieval_file *f);

/* The tensors, for cn_checkpoint_read. They are valid until the close. */
enum {
    CN_HEAD_NORM,
    CN_HEAD_Q,
    CN_HEAD_K,
    CN_HEAD_FC, /* the last two: only with hidden layers */
    CN_HEAD_STATE_NORM,
    CN_N_HEAD_PARTS
};
const cn_weight_part *cn_retrieval_parts(const cn_retrieval_file *f);

/* Sets m->draft if a declared selector needs a head. */
cn_status cn_retrieval_describe(cn_model_config *m, const cn_config *c);
