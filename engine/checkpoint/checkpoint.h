/* checkpoint.h - finds and checks each tensor that a config requires, and gives its place in the
 * fused matrices of the forward pass (weights.h).
 *
 * Owner: engine. Thread: one at a time. Stage: start; closed once the weights are loaded.
 *
 * Dummy weights (--load-format dummy) need no weight file and exist for any config. Norm weights
 * are 1; the elements of other tensors are those of dummy_weight.h with
 *   key      = cn_hash64(cn_hash64(0, seed as 8 bytes, little-endian), name), 64 bits
 *   scale    = (float)(std / sqrt((2^32 - 1) / 3)), std the f32 initializer_range, in double; for
 *              the weights of a router 1 / sqrt(hidden), so that its logits differ by about 1 */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

typedef enum cn_weight_id {
    CN_W_EMBED,
    CN_W_FINAL_NORM,
    CN_W_LM_HEAD,
    CN_W_ATTN_NORM, /* this and all later ones exist once per layer */
    CN_W_QKV,
    CN_W_QKV_BIAS,
    CN_W_Q_NORM,
    CN_W_K_NORM,
    CN_W_Q_A, /* this and the next five: of latent attention */
    CN_W_Q_A_NORM,
    CN_W_Q,
    CN_W_KV_A,
    CN_W_KV_A_NORM,
    CN_W_KV_B,
    CN_W_O,
    CN_W_O_BIAS,
    CN_W_MLP_NORM,
    CN_W_GATE_UP, /* of the MLP that every token takes */
    CN_W_DOWN,
    CN_W_ROUTER,
    CN_W_ROUTER_BIAS,
    CN_W_EXPERT_GATE_UP,
    CN_W_EXPERT_DOWN,
    CN_W_COUNT
} cn_weight_id;

/* A tensor as stored in a file: row-major [rows, cols], of any alignment. A vector has one row. */
typedef struct cn_host_tensor {
    const void *data;
    cn_dtype dtype;
    uint64_t rows, cols;
} cn_host_tensor;

/* One tensor of the checkpoint and its place. */
typedef struct cn_weight_part {
    char name[64];         /* in the checkpoint: "model.layers.3.self_attn.k_proj.weight" */
    cn_weight_id id;       /* the fused matrix it belongs to */
    uint32_t layer;        /* 0 outside the layers */
    uint64_t first_elem;   /* offset of the part in that matrix; parts are contiguous */
    uint32_t stack;        /* > 0: the tensor has a third dimension before rows / stack and cols */
    /* > 0: rows of a head are in another order in the file, in which RoPE pairs dimensions i and
     * i + rotary / 2. cn_checkpoint_read pairs i and i + head_dim / 2, as the op does. With `last`
     * they are the last rows of a head, and those of the file have pairs (2i, 2i + 1): i and
     * i + rotary / 2 of them are paired then. */
    uint32_t rotary, head_dim;
    bool last;
    cn_host_tensor tensor; /* data is NULL for dummy weights */
    /* A tensor in e4m3: its scales and, if inputs have a static scale, that (fp8_weights.h). */
    const struct cn_st_tensor *scale, *x_scale;
} cn_weight_part;

typedef struct cn_checkpoint cn_checkpoint;

/* Finds every tensor that the config requires and checks its dtype and shape. Reads no elements,
 * except to compare embedding and lm_head when they are tied and the files have both. CN_ERR_MODEL
 * names the file, the tensor and the numbers. Other tensors are ignored, unless they belong to a
 * part of the model that is computed here (a bias or norm that the architecture does not have);
 * these are refused by name. With CN_OPT_LOAD_DUMMY no weight file is opened; only then is `seed`
 * used. */
cn_status cn_checkpoint_open(cn_checkpoint **out, const char *dir, const cn_model_config *c,
                             cn_opt_load_format format, uint64_t seed);
void cn_checkpoint_close(cn_checkpoint *ck); /* NULL is fine */

/* All parts, [*n], in layer order. */
const cn_weight_part *cn_checkpoint_parts(const cn_checkpoint *ck, size_t *n);

/* The config that was passed to cn_checkpoint_open. Borrowed from ck. */
const cn_model_config *cn_checkpoint_config(const cn_checkpoint *ck);

/* Writes n elements of a part that is not in e4m3, from element `first`, to host memory as `dtype`
 * (CN_F32 or CN_BF16, rounded to nearest even). */
void cn_checkpoint_read(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t first,
                        uint64_t n, cn_dtype dtype, void *out);

/* The row of the tensor in the file that is row `row` of the part here. */
uint64_t cn_part_row_in_file(const cn_weight_part *p, uint64_t row);

/* The value of an f16. */
float cn_f32_of_f16(uint16_t half);

/* CN_ERR_MODEL if the tensor of a file has an infinite element or a NaN, which a damaged file often
 * has. Every answer of such a model would be wrong without any other error. */
cn_status cn_checkpoint_check_finite(const cn_weight_part *p);

/* Whether the elements of a part are those of dummy_weight.h, and with which key and scale, so that
 * a device can compute them itself. False for tensors of a file and for norms, which are 1. */
bool cn_checkpoint_is_random(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t *key,
                             float *scale);
