/* start_plan.h - plans the memory that an engine takes from its backend at start, part by part. The
 * engine uses the plan and `cinch plan` prints it.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, after the backend is open and before
 * weights are read, so that a plan that does not fit is refused at once.
 *
 * On a CPU the options alone give the KV memory. A GPU has one memory for all parts: KV gets what
 * weights, workspace and step arrays leave of --gpu-memory-utilization. With
 * --kv-cache-memory-bytes the size of KV is given, and the engine takes only as much of the GPU as
 * all parts need. */
#ifndef CN_START_PLAN_H
#define CN_START_PLAN_H

#include "engine/batch.h"
#include "engine/planner.h"

typedef struct cn_start_plan {
    uint64_t weight_bytes, workspace_bytes;
    /* GPU only: sampling, compression and the batch arrays, rounded up. */
    uint64_t step_bytes;
    cn_memory_plan kv;
} cn_start_plan;

/* Rows and tokens of the largest step including padding, the length of the longest request, and
 * the batch arrays for such steps. */
uint32_t cn_start_max_rows(const cn_config *c);
uint32_t cn_start_max_tokens(const cn_config *c);
uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m);
cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens);

/* CN_ERR_MEMORY when the parts do not fit, or when the KV memory is too small for one request. The
 * text has the numbers and the option to change. */
cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be);

/* The device memory that these options need: the sum of all parts if --kv-cache-memory-bytes is
 * set, else 0, which means as much as allowed. Works before the backend has allocated memory.
 * CN_ERR_MEMORY as above. */
cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be);

/* Sum of all parts, bytes. */
uint64_t cn_start_plan_bytes(const cn_start_plan *p);

#endif
