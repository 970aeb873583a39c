/* weights.h - the matrices of the forward pass in a backend's memory.
 *
 * Owner: engine. Thread: one at a time. Stage: start. The engine opens the checkpoint, which checks
 * every tensor but reads none (checkpoint.h), loads the weights, and closes the checkpoint. From
 * then on the weights are in memory once.
 *
 * Fused matrices, row-major [rows, cols]; hq, hk query and kv heads, d head_dim, h hidden, I
 * intermediate, V vocabulary:
 *   EMBED [V, h]      FINAL_NORM [1, h]   LM_HEAD [V, h]; the same memory as EMBED when tied
 *   ATTN_NORM [1, h]  QKV [(hq+2hk)*d, h]: query, key, value rows   QKV_BIAS [1, (hq+2hk)*d]
 *   Q_NORM [1, d]     K_NORM [1, d]       O [h, hq*d]               O_BIAS [1, h]
 * Instead of QKV with latent attention (cn_latent; r rank, dn, dr nope and rope, dv value):
 *   Q_A [rq, h]       Q_A_NORM [1, rq]    Q [hq*(dn+dr), rq]; without Q_A and its norm [.., h]
 *   KV_A [r+dr, h]    KV_A_NORM [1, r]    KV_B [hq*(dn+dv), r]: key rows, then value rows of a head
 *   O [h, hq*dv]
 *   MLP_NORM [1, h]   GATE_UP [2*I, h]: gate rows, then up rows     DOWN [h, I]
 * In a layer with E experts, I of the last two is that of the MLP that every token takes besides:
 *   ROUTER [E, h]     ROUTER_BIAS [1, E], f32
 *   EXPERT_GATE_UP [E*2*I, h]: as GATE_UP, expert by expert         EXPERT_DOWN [E*h, I]
 *
 * A rank of several (cn_model_config.n_ranks) has slices. Of QKV it has the rows of its query and
 * kv heads, of GATE_UP and LM_HEAD its rows, of O and DOWN the matching columns. EMBED, norms and
 * the rest are whole. Only rank 0 has O_BIAS, because the outputs of O are added up. */
#pragma once

#include "engine/checkpoint/checkpoint.h"

/* A matrix that is FP8 (cn_weight_is_fp8) has e4m3 values, then its scales (cn_matrix).
 *
 * Rows and columns of a fused matrix. 0 and 0 when the layer has none, and for a tied LM_HEAD.
 * `layer` is 0 outside the layers. */
void cn_weight_shape(const cn_model_config *c, cn_weight_id id, uint32_t layer, uint64_t *rows,
                     uint64_t *cols);

/* Bytes of backend memory that cn_weights_load fills. */
uint64_t cn_weights_bytes(const cn_model_config *c, const cn_backend *be);

/* Bytes that a decode step of n_tokens requests reads: all weights except the embedding table and
 * experts that no token takes (cn_model_config_experts_read). A step reads one row of the embedding
 * table for each request, or the whole table if it is the output matrix too. */
double cn_weights_step_bytes(const cn_model_config *c, const cn_backend *be, uint32_t n_tokens);

typedef struct cn_weights cn_weights;

/* Fills `memory` of the backend (cn_weights_bytes, borrowed) with all weights, converted to the
 * backend's dtypes, through a staging buffer of 1 MiB, or of 128 rows where FP8 is made of plain
 * weights. The backend computes dummy weights itself if
 * it has the op. The checkpoint may be closed afterwards. */
cn_status cn_weights_load(cn_weights **out, cn_backend *be, cn_stream *s, const cn_checkpoint *ck,
                          void *memory);
/* The same for the rank of config c, whose whole model is that of the checkpoint. */
cn_status cn_weights_load_rank(cn_weights **out, cn_backend *be, cn_stream *s,
                               const cn_checkpoint *ck, const cn_model_config *c, void *memory);
void cn_weights_free(cn_weights *w); /* NULL is fine */

/* Device pointer of a fused matrix, 256-byte-aligned within the allocation, or NULL when the model
 * has none. `layer` is ignored outside the layers. */
const void *cn_weights_at(const cn_weights *w, cn_weight_id id, uint32_t layer);

/* The same with the form of the matrix. */
cn_matrix cn_weights_matrix(const cn_weights *w, cn_weight_id id, uint32_t layer);
