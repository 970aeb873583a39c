/* cpu_compress.h - compression events on the CPU: score, select, move (DESIGN.md §2, paper C).
 *
 * Thread: the worker of stream 1, one event at a time; nothing here allocates, locks or spawns.
 * The work of one (layer, kv head) is a cn_score_job, done start to end before the next, so its
 * keys are read from the pool once and stay in the cache, and a request's result depends on
 * nothing but that request. Matrix products go through OpenBLAS, which the backend holds to one
 * thread. */
#ifndef CN_CPU_COMPRESS_H
#define CN_CPU_COMPRESS_H

#include "engine/cpu/score.h"

/* Op table entry `compress`: returns when every request is done. CN_ERR_ARG names the request's
 * field and value; requests before the faulty one are done, it and those after it untouched.
 * Keys, values, queries f32. */
cn_status cn_cpu_compress(cn_stream *s, const cn_compress_args *a);

/* Op table entry `compress_scratch_bytes`: for requests of up to n_max slots, one at a time.
 * O(n_max * head_dim). */
size_t cn_cpu_compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_max);

/* ---- the parts of an event ---- */

/* out[d, n] = the keys of (layer, kv head), a column each, in order of slots. */
void cn_cpu_gather_keys(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                        uint32_t kv_head, float *out);

/* kept[0..k) = slots of the k largest scores, ascending; equal scores: the newer (higher) slot. NaN
 * counts as the lowest. k <= n; bits[n] is scratch; kept has room for n. Linear in n. */
void cn_cpu_select_top(const float *score, uint32_t n, uint32_t k, uint32_t *bits, uint32_t *kept);

/* Rearranges kept[k], ascending, so that target slot i < k takes slot kept[i] with few rows moving:
 * kept[i] = i where slot i is kept, and the kept slots from k on take the holes in between, both
 * ascending (move `fill`). scratch[k]. */
void cn_cpu_fill_holes(uint32_t *kept, uint32_t k, uint32_t *scratch);

/* kept[k] = the first min(sinks, k) slots and the newest others, ascending: policy `window`. */
void cn_cpu_select_window(uint32_t n, uint32_t k, uint32_t sinks, uint32_t *kept);

/* Where the moves of an event would overwrite a block before its slots are read. `staged` blocks
 * are copied aside first: source block i when it is also target block j < i. Kept slots only ever
 * move towards lower indices, so every other overlap is safe in the order of targets. */
typedef struct cn_cpu_stage {
    uint32_t *index; /* [n_blocks] place in the stage, or CN_CPU_NOT_STAGED */
    uint32_t n_staged;
} cn_cpu_stage;
#define CN_CPU_NOT_STAGED UINT32_MAX

/* Fills stage from the request's tables. index[n_blocks] is the caller's. */
void cn_cpu_stage_plan(const cn_compress_req *req, uint32_t *index, cn_cpu_stage *stage);
/* Floats of staging memory for a request of n slots, whatever its tables. */
size_t cn_cpu_stage_floats(const cn_pools *pools, uint32_t n);

/* Paper C.6, algorithm 4. Moves K, V and, where the pools have them, F and P of the kept slots of
 * (layer, kv head) into the target blocks: target slot i takes slot kept[i]. */
void cn_cpu_compact(const cn_pools *pools, const cn_compress_req *req, uint32_t layer,
                    uint32_t kv_head, const uint32_t *kept, const cn_cpu_stage *stage,
                    float *stage_mem);

#endif
