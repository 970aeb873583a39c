/* start_plan.h - what a start takes of a backend's memory, part by part, before any of it is taken:
 * the engine obeys it and `cinch plan` prints it.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, after the backend is open, before
 * weights are read, so that a plan which cannot be is refused at once.
 *
 * A host's KV memory is a figure of the options, whatever the rest takes. A device has one memory:
 * KV gets what weights, workspace and the arrays of steps leave of --gpu-memory-utilization. With
 * --kv-cache-memory-bytes it is the other way round: so much for KV, and no more of the device is
 * taken than all parts need. */
#ifndef CN_START_PLAN_H
#define CN_START_PLAN_H

#include "engine/batch.h"
#include "engine/planner.h"

typedef struct cn_start_plan {
    uint64_t weight_bytes, workspace_bytes;
    /* Of a device: sampling, compression and what steps are described in, rounded up. */
    uint64_t step_bytes;
    cn_memory_plan kv;
} cn_start_plan;

/* Rows and tokens of the largest step, padding included, the longest request of these options, and
 * what such steps are described in. */
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens);

/* CN_ERR_MEMORY when the parts, or not even one request's KV, fit; the text has the numbers and the
 * option to change. */
cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be);

/* What these options want of a device's memory: all parts where --kv-cache-memory-bytes gives the
 * share of KV; else 0, as much as there is. The backend's memory need not be there yet.
 * CN_ERR_MEMORY as above. */
cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be);

/* All parts, bytes. */
uint64_t cn_start_plan_bytes(const cn_start_plan *p);

#endif
