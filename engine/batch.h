/* batch.h - a step's plan as the flat arrays that kernels read.
 *
 * Owner: cn_engine. Thread: engine only. Stage 5 of the path of a request (docs/ARCHITECTURE.md).
 *
 * The arrays are packed in one buffer, so that a step needs one host-to-device copy. All memory is
 * allocated at creation. */
#pragma once

#include "engine/model/pass.h"
#include "engine/ops.h"
#include "engine/select/select.h"
#include "engine/start/start_plan.h"
#include "scheduler/scheduler.h"

typedef struct cn_batch cn_batch;

typedef struct cn_batch_opts {
    uint32_t max_tokens; /* query tokens of a step */
    uint32_t max_seqs;   /* rows of a step, including forked samples */
    uint32_t max_blocks_per_seq;
    uint32_t max_bans, max_biases; /* over all rows of a step */
    uint32_t block_tokens, window_tokens;
    uint32_t select_room; /* cn_select_scratch.room; 0: no selectors */
    uint32_t select_seed; /* of selector `random` */
    uint32_t selectors;   /* that requests may have: bit i is cn_kv_select i */
    uint32_t max_home_blocks; /* of a row that reads the plane of dense layers; 0: no plane */
    cn_kv_layout plane_layout;
    void *plane_kv;
    uint32_t max_draft_blocks; /* of a row whose draft K lies by home block; 0: there are none */
    uint32_t draft_first;      /* the first block of their plane behind those of the pool */
    uint32_t plane_first[CN_N_HOMES]; /* the first block of each home in both planes */
} cn_batch_opts;

/* The options of batches of the largest steps; plane_first and draft_first are left 0. */
cn_batch_opts cn_batch_opts_of(const cn_config *c, const cn_model_config *m, uint32_t block_tokens,
                               uint32_t window_tokens);

/* Bytes of device memory that a batch needs, and the same number of host memory. */
size_t cn_batch_device_bytes(const cn_batch_opts *o);
/* Adds this memory to the start plan. *slot becomes `device` of cn_batch_create. */
void cn_batch_declare(cn_start_plan *p, void **slot);

/* `device` is memory of the backend, of cn_batch_device_bytes bytes, and is borrowed.
 * CN_ERR_MEMORY. */
cn_status cn_batch_create(cn_batch **out, cn_backend *be, const cn_batch_opts *o, void *device);
void cn_batch_free(cn_batch *b);

/* Starts a step: flattens the plan's rows. Adds one logit row for each row that samples, in plan
 * order, then one for each fork. shape.rows > 0: the plan must only decode; it is padded to that
 * many rows (engine/ops.h), and tables to their maximum length, as a step graph requires. */
void cn_batch_build(cn_batch *b, const cn_plan *plan, cn_step_shape shape);

/* The sampling parameters of logit row i. The engine fills them before cn_batch_upload. prev_row is
 * set: the row of the previous step's sample op that holds the sequence's pending token, if it has
 * one. */
uint32_t cn_batch_n_logit_rows(const cn_batch *b);
cn_sample_row *cn_batch_sample_row(cn_batch *b, uint32_t i);
cn_seq *cn_batch_logit_seq(const cn_batch *b, uint32_t i);
/* Append to the ban and bias lists; false when the list of this step is full. */
bool cn_batch_try_add_ban(cn_batch *b, uint32_t token, uint32_t *index);
bool cn_batch_try_add_bias(cn_batch *b, cn_logit_bias bias, uint32_t *index);

/* Copies everything to the device. The views below are then valid until the next build. `sampled`
 * is the token array of the previous step's sample op, on the device, indexed by logit row; it has
 * the ids that the host has not read yet. */
cn_status cn_batch_upload(cn_batch *b, cn_stream *s, const uint32_t *sampled);
const cn_batch_view *cn_batch_device_view(const cn_batch *b);
/* A batch whose arrays are those of another one, on another device; for the ranks of a split model.
 * `of` is built; upload copies its arrays, but not what only sampling reads. CN_ERR_MEMORY. */
cn_status cn_batch_create_copy(cn_batch **out, cn_backend *be, const cn_batch *of, void *device);
cn_status cn_batch_upload_copy(cn_batch *copy, const cn_batch *of, cn_stream *s,
                               const uint32_t *sampled);
const cn_select_view *cn_batch_select_view(const cn_batch *b); /* NULL: all rows are dense */
const cn_plane_view *cn_batch_plane_view(const cn_batch *b);   /* NULL: no row reads the plane */
/* The batch by the slots of draft K. NULL: these are the slots of the KV. */
const cn_batch_view *cn_batch_draft_view(const cn_batch *b);
const uint32_t *cn_batch_logit_rows(const cn_batch *b);      /* device */
const cn_sample_row *cn_batch_sample_rows(const cn_batch *b); /* device */
const uint32_t *cn_batch_bans(const cn_batch *b);            /* device */
const cn_logit_bias *cn_batch_biases(const cn_batch *b);     /* device */
